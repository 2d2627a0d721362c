"""A report as a page of lines, and the page as CommonMark or as plain text.

What others said comes in two forms. `Said` is quoted as it stands: code in Markdown, quotation marks in
text. `Told` are sentences for people, in which nothing can be read as Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, assert_never

from triage._capture._probe import text_of

from ._clean import UNSEEN

if TYPE_CHECKING:
    from ._facts import AttemptFacts, CapabilityFacts, CounterFacts, Facts, StepFacts
    from ._report import Report


class Said(NamedTuple):
    """What a tool, a model or an error said."""

    text: str


class Told(NamedTuple):
    """A sentence for people, written by somebody else."""

    text: str


Bit: TypeAlias = "str | Said | Told"
"""Part of a line; a `str` is our own words."""


class Heading(NamedTuple):
    """The title of what follows. depth: from 1."""

    text: str
    depth: int = 2


class Line(NamedTuple):
    """A line with what it is about before it."""

    label: str
    bits: tuple[Bit, ...]


class Item(NamedTuple):
    """A line of a list."""

    bits: tuple[Bit, ...]


class Aside(NamedTuple):
    """What somebody else thinks, set apart."""

    told: Told


Block: TypeAlias = "Heading | Line | Item | Aside"


# What is on it ------------------------------------------------------------------------------------


def page(report: Report) -> list[Block]:
    """The report, in the order in which one wants to know."""
    return [
        *_head(report),
        *_steps(report.facts),
        *_attempts(report.facts.attempts),
        *_figures(report.facts),
        *_what_now(report),
        *_details(report.facts),
        *_analysis(report),
    ]


def _head(report: Report) -> Iterator[Block]:
    facts = report.facts
    yield Heading(_TITLES.get(facts.ended, "This did not work"), 1)
    if report.time:
        made = datetime.fromtimestamp(report.time, UTC)
        yield Line("Time", (f"{made:%Y-%m-%d %H:%M:%S} UTC",))
    if facts.severity:
        words = [facts.failure_type, facts.cause, facts.severity, f"level {facts.level}"]
        sure = "" if facts.confidence is None else f", confidence {facts.confidence:.2f}"
        yield Line("Diagnosis", (Said(", ".join(filter(None, words)) + sure),))
    if facts.task is not None:
        yield Line("Asked", (Said(facts.task),))
    if facts.failed:
        yield Line("Failed", (Said(facts.failed),))
    if facts.where:
        yield Line("Where", (Said(facts.where),))
    yield Line("What happened", (Told(facts.user_message or _NOTHING_KNOWN),))
    if facts.error:
        yield Line("Error", (Said(facts.error),))
    answer = [str(facts.status_code or ""), facts.code]
    if any(answer):
        yield Line("Answer", (Said(" ".join(filter(None, answer))),))
    if facts.reason:
        yield Line("Ended", (Said(facts.reason),))
    named = [("Run", facts.run_id), ("Agent", facts.agent), ("Recovery", facts.recovery)]
    yield from (Line(label, (Said(value),)) for label, value in named if value)


_TITLES = {
    "suspended": "This waits for an answer",
    "cancelled": "This was stopped",
    "": "This did not work",
}
_NOTHING_KNOWN = "Something went wrong, and no more is known of it."


def _steps(facts: Facts) -> Iterator[Block]:
    if not facts.steps:
        return
    yield Heading("Step by step")
    several = len({step.attempt for step in facts.steps}) > 1
    for attempt, steps in groupby(facts.steps, key=lambda step: step.attempt):
        if several:
            yield Heading(f"Attempt {attempt}", 3)
        yield from (Item(tuple(_step(step))) for step in steps)


def _step(step: StepFacts) -> Iterator[Bit]:
    decisive = ", which decided it" if step.decisive else ""
    yield f"step {step.number}, {step.outcome}{decisive}: "
    yield Said(step.name)
    for label, value in (
        ("", step.objective),
        ("to be judged by", step.criteria),
        ("given", step.given),
        ("result", step.result),
        ("error", step.error),
    ):
        if value is not None and value != "":
            yield f", {label} " if label else ", "
            yield Said(value)
    if step.seconds:
        yield f", {step.seconds:.3g} s"


def _attempts(attempts: Iterable[AttemptFacts]) -> Iterator[Block]:
    attempts = tuple(attempts)
    if not attempts:
        return
    yield Heading("What was tried")
    for attempt in attempts:
        yield Item(tuple(_attempt(attempt)))


def _attempt(attempt: AttemptFacts) -> Iterator[Bit]:
    yield f"attempt {attempt.number}: "
    yield Told(attempt.user_message or "It failed.")
    if attempt.failure:
        yield " "
        yield Said(attempt.failure)
    if attempt.steps:
        failed = f", {attempt.failed_steps} failed" if attempt.failed_steps else ""
        yield f" {attempt.steps} {'step' if attempt.steps == 1 else 'steps'}{failed}."
    if attempt.error:
        yield " Error: "
        yield Said(attempt.error)
    if attempt.action:
        after = f" after {attempt.delay_s:.3g} s" if attempt.delay_s else ""
        yield f" Then: {_ACTIONS.get(attempt.action, 'something else was done')}{after}."
    if attempt.hint:
        yield " It was told: "
        yield Said(attempt.hint)


_ACTIONS = {
    "retry": "it was tried again",
    "replan": "another plan was made",
    "rollback": "it went back to an earlier point",
    "resume": "it went on with what was open",
    "suspend": "a person was asked",
    "escalate": "it was handed over to a person",
    "abort": "it was stopped",
    "reclassify": "other means were chosen",
    "regenerate": "it was generated anew",
}


def _figures(facts: Facts) -> Iterator[Block]:
    if not facts.counters and facts.elapsed_s is None:
        return
    yield Heading("Figures")
    for counter in facts.counters:
        yield Item((Told(counter.name), f": {_counted(counter)}"))
    if facts.elapsed_s is not None:
        yield Item((f"seconds: {facts.elapsed_s:.3g}",))


def _counted(counter: CounterFacts) -> str:
    of = "" if counter.limit is None else f" of {counter.limit:.12g}"
    return f"{counter.used:.12g}{of}"


def _what_now(report: Report) -> Iterator[Block]:
    facts = report.facts
    yield Heading("What can be done")
    if facts.question:
        yield Item(("Answer this: ", Said(facts.question)))
    seen = dict.fromkeys((*facts.next_steps, *facts.suggestions))
    for one in seen:
        yield Item((Told(one),))
    if not seen and not facts.question:
        yield Item(
            (_OTHERWISE.get(facts.ended, "Try again; if it stays so, ask whoever runs this."),)
        )


_OTHERWISE = {
    "escalated": "Whoever runs this has to look at it. Trying again as it is will hardly help.",
    "aborted": "It was stopped on purpose. Ask whoever runs this before trying again.",
    "fatal": "It cannot be done as it was asked. Ask whoever runs this.",
    "cancelled": "Ask again when it is still wanted.",
}


def _details(facts: Facts) -> Iterator[Block]:
    lists = [
        ("Evidence", facts.evidence),
        ("Errors, outermost first", facts.chain),
        ("Raised at", facts.frames),
        ("What can be used", tuple(filter(None, (_named(one) for one in facts.capabilities)))),
        ("Left out", facts.left_out),
    ]
    for title, texts in lists:
        if texts:
            yield Heading(title)
            yield from (Item((Said(text),)) for text in texts)
    single = [
        ("Details", facts.technical_details),
        ("Hint for the next attempt", facts.hint),
        ("So far", facts.partial or ""),
        ("Said by", facts.classifier),
    ]
    if any(text for _, text in single):
        yield Heading("Details")
        yield from (Line(label, (Said(text),)) for label, text in single if text)


def _named(capability: CapabilityFacts) -> str:
    about = capability.description
    return f"{capability.name}: {about}" if about else capability.name


def _analysis(report: Report) -> Iterator[Block]:
    if report.analysis is None:
        if report.missing:
            yield Heading("Analysis")
            yield Item((Told(report.missing),))
        return
    yield Heading("Analysis")
    by = f" of {report.analysis.by}" if report.analysis.by else ""
    yield Line("An opinion, no fact", (Told(f"what follows is the guess{by}"),))
    yield Aside(Told(report.analysis.text))
    yield from (Item((Told(one),)) for one in report.analysis.suggestions)


# As Markdown --------------------------------------------------------------------------------------


def markdown(blocks: Iterable[Block]) -> str:
    """The page as CommonMark: each block a paragraph, a heading or an item of a list."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(text=text, depth=depth):
                parts.append(f"\n{'#' * depth} {text}\n")
            case Line(label=label, bits=bits):
                parts.append(f"**{label}:** {_marked(bits)}\\")
            case Item(bits=bits):
                parts.append(f"- {_marked(bits)}")
            case Aside(told=told):
                parts.append(f"\n> {_escaped(told.text)}\n")
            case _:
                assert_never(block)
    return _settled("\n".join(parts))


def _settled(text: str) -> str:
    """Without a hard break before a blank line, or blank lines that nothing needs."""
    text = re.sub(r"\\\n(?=\n|- |> |#|$)", "\n", f"{text}\n")
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _marked(bits: Iterable[Bit]) -> str:
    return "".join(
        _as_code(bit.text)
        if isinstance(bit, Said)
        else _escaped(bit.text)
        if isinstance(bit, Told)
        else bit
        for bit in bits
    )


def _as_code(text: str) -> str:
    """As a span of code, which nothing in it can end."""
    line = _one_line(text)
    if not line:
        return '""'
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}"


_MEANINGFUL = re.compile(
    r"[\\`*_{}\[\]<>#|~&@$^]|(?<=:)/(?=/)|(?<=www)\.|^[-+=]|"
    r"(?:(?<=^\d)|(?<=^\d\d)|(?<=^\d{3})|(?<=^\d{4}))[.)]",
    re.IGNORECASE,
)


def _escaped(text: str) -> str:
    """As words, whatever they mean in Markdown."""
    return _MEANINGFUL.sub(r"\\\g<0>", _one_line(text))


# As text ------------------------------------------------------------------------------------------


def text(blocks: Iterable[Block]) -> str:
    """The page as plain lines."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(text=title, depth=1):
                parts += [title, "=" * len(title)]
            case Heading(text=title, depth=depth):
                parts += ["", title if depth == 2 else f"  {title}"]  # noqa: PLR2004 - what stands within a section
            case Line(label=label, bits=bits):
                parts.append(f"{label}: {_plain(bits)}")
            case Item(bits=bits):
                parts.append(f"  - {_plain(bits)}")
            case Aside(told=told):
                parts.append(f"  | {_one_line(told.text)}")
            case _:
                assert_never(block)
    return "\n".join(parts) + "\n"


def _plain(bits: Iterable[Bit]) -> str:
    return "".join(
        '"' + _one_line(bit.text).replace('"', "'") + '"'
        if isinstance(bit, Said)
        else _one_line(bit.text)
        if isinstance(bit, Told)
        else bit
        for bit in bits
    )


def _one_line(text: str) -> str:
    # What the reporter made is clean already; a report may be made by hand.
    return " ".join(UNSEEN.sub("", text_of(text)).split())
