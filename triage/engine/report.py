"""`Report`: the facts of a failure and their analysis, as Markdown, text or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias, assert_never, cast

from msgspec.structs import asdict

from triage.core import Usage, UsageError, check_word, text_of
from triage.core.escaping import UNSEEN
from triage.core.notebook import lines

from .facts import (
    AttemptFacts,
    Facts,
    StepFacts,
    as_json,
    for_a_person,
    from_json,
    safely,
    without_internals,
)

__all__ = [
    "Analysis",
    "Report",
]


# `Report`: the facts of a failure and their analysis, as plain values that print anywhere.


Audience: TypeAlias = Literal["person", "developer"]
AUDIENCES = ("person", "developer")
Completeness: TypeAlias = Literal["full", "structured", "minimal", "constant"]
VERSION = 1
CONSTANT = "Something went wrong, and no report of it could be made."


class Analysis(NamedTuple):
    """An analyst's opinion of the facts.

    text: why it failed, in a few sentences. suggestions: what to do now, one text each. by: the
    analyst's name. usage: what the analysis consumed, None if not known.
    """

    text: str
    suggestions: tuple[str, ...] = ()
    by: str = ""
    usage: Usage | None = None


class Report(NamedTuple):
    """A report of a failure.

    time: when it was made, seconds since the epoch. completeness: `"full"` with an analysis,
    `"structured"` without one, `"minimal"` if little more than the failure is known, `"constant"` if
    not even that could be read. facts: plain values, bounded and without secrets. analysis: None
    without one; missing: the reason, in words, empty if none was asked for.

    A person sees what happened, the steps and what to do; a developer sees everything. Words of tools,
    models and errors are quoted. Nothing here raises, apart from UsageError for an unknown audience.
    """

    time: float = 0.0
    completeness: Completeness = "constant"
    facts: Facts = Facts()
    analysis: Analysis | None = None
    missing: str = ""

    def to_markdown(self, audience: Audience = "person") -> str:
        """Write the report as CommonMark."""
        shown = self.seen_by(audience)
        return safely(lambda: markdown(page(shown)), f"{CONSTANT}\n")

    def to_text(self, audience: Audience = "person") -> str:
        """Write the report as plain lines."""
        shown = self.seen_by(audience)
        return safely(lambda: text(page(shown)), f"{CONSTANT}\n")

    def _repr_html_(self) -> str:
        """Show the developer's report in a notebook."""
        return lines(self.to_text("developer"))

    def as_dict(self, audience: Audience = "developer") -> dict[str, Any]:
        """Return the report as a JSON object, without fields that have their defaults."""
        shown = self.seen_by(audience)
        found: dict[str, Any] = {
            "v": VERSION,
            "time": shown.time,
            "completeness": shown.completeness,
            "facts": as_json(shown.facts),
        }
        if shown.analysis is not None:
            analysis = as_json(shown.analysis)
            if shown.analysis.usage is not None:
                analysis["usage"] = asdict(shown.analysis.usage)
            found["analysis"] = analysis
        if shown.missing:
            found["missing"] = shown.missing
        return found

    def to_json(self, audience: Audience = "developer") -> str:
        """Write `as_dict` on one line, in ASCII."""
        shown = self.seen_by(audience)
        return safely(lambda: json.dumps(shown.as_dict(), allow_nan=False), "{}")

    def seen_by(self, audience: Audience) -> Report:
        """Keep what this audience may see. Raises UsageError for an unknown audience."""
        check_word("audience", audience, AUDIENCES)
        if audience == "developer":
            return self
        told = self.analysis
        if told is not None:
            said = (told.text, *told.suggestions)
            text, *more = (without_internals(one, self.facts) for one in said)
            told = told._replace(text=text, suggestions=tuple(more), usage=None)
        missing = "No analysis could be made." if self.missing else ""
        return self._replace(facts=for_a_person(self.facts), analysis=told, missing=missing)

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """Read the report that `as_dict` wrote. Raises UsageError naming the wrong field."""
        if not isinstance(data, dict):
            raise UsageError(f"a report must be a JSON object, not {type(data).__name__}")
        version, how = data.get("v"), data.get("completeness")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise UsageError(f"Report.v must be a version from 1 to {VERSION}, not {version!r}")
        check_word("Report.completeness", how, ("full", "structured", "minimal", "constant"))
        time, missing = data.get("time", 0.0), data.get("missing", "")
        if isinstance(time, bool) or not isinstance(time, int | float):
            raise UsageError(f"Report.time must be a number, not {type(time).__name__}")
        if not isinstance(missing, str):
            raise UsageError(f"Report.missing must be text, not {type(missing).__name__}")
        facts = from_json(Facts, data.get("facts", {}), "Report.facts")
        complete = cast("Completeness", how)
        return cls(float(time), complete, facts, _analysis(data.get("analysis")), missing)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read the report that `to_json` wrote. Raises UsageError for anything else."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"a report must be one JSON object: {error}") from None
        return cls.from_dict(data)

    def __str__(self) -> str:
        return self.to_text()


class _Opinion(NamedTuple):
    text: str = ""
    suggestions: tuple[str, ...] = ()
    by: str = ""


def _analysis(data: object) -> Analysis | None:
    if data is None:
        return None
    said = from_json(_Opinion, data, "Report.analysis")
    used = data.get("usage") if isinstance(data, dict) else None
    try:
        usage = None if used is None else Usage(**used)
    except (TypeError, ValueError) as error:
        raise UsageError(f"Report.analysis.usage cannot be read: {error}") from None
    return Analysis(said.text, said.suggestions, said.by, usage)


# A report as a page of lines, and the page as CommonMark or as plain text.
#
# Words of others come in two forms. `Said` is quoted: as code in Markdown, in quotation marks in text.
# `Told` are sentences for people, with everything that means something in Markdown escaped.


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
    """A line with a label before it."""

    label: str
    bits: tuple[Bit, ...]


class Item(NamedTuple):
    """A line of a list."""

    bits: tuple[Bit, ...]


class Aside(NamedTuple):
    """An opinion that is not ours, set apart."""

    told: Told


Block: TypeAlias = "Heading | Line | Item | Aside"


# What is on it ------------------------------------------------------------------------------------


def page(report: Report) -> list[Block]:
    """Return the blocks of the report, most important first."""
    return [
        *_head(report),
        *_pages_steps(report.facts),
        *_attempts(report.facts.attempts),
        *_figures(report.facts),
        *_what_now(report),
        *_details(report.facts),
        *_pages_analysis(report),
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


def _pages_steps(facts: Facts) -> Iterator[Block]:
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
        yield Item(tuple(_pages_attempt(attempt)))


def _pages_attempt(attempt: AttemptFacts) -> Iterator[Bit]:
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
        of = "" if counter.limit is None else f" of {counter.limit:.12g}"
        yield Item((Told(counter.name), f": {counter.used:.12g}{of}"))
    if facts.elapsed_s is not None:
        yield Item((f"seconds: {facts.elapsed_s:.3g}",))


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
        ("Not undone", facts.not_undone),
        ("Evidence", facts.evidence),
        ("Errors, outermost first", facts.chain),
        ("Raised at", facts.frames),
        (
            "What can be used",
            tuple(filter(None, (": ".join(filter(None, one)) for one in facts.capabilities))),
        ),
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


def _pages_analysis(report: Report) -> Iterator[Block]:
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
    """Write the page as CommonMark."""
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
    text = "\n".join(parts) + "\n"
    # Drop hard breaks before a blank line, and surplus blank lines.
    text = re.sub(r"\\\n(?=\n|- |> |#|$)", "\n", text)
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
    """Write the text as a code span that its own content cannot close."""
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
    """Escape everything that has a meaning in Markdown."""
    return _MEANINGFUL.sub(r"\\\g<0>", _one_line(text))


# As text ------------------------------------------------------------------------------------------


def text(blocks: Iterable[Block]) -> str:
    """Write the page as plain lines."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(text=title, depth=1):
                parts += [title, "=" * len(title)]
            case Heading(text=title, depth=depth):
                parts += ["", title if depth == 2 else f"  {title}"]  # what stands within a section
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
    # A report may also be made by hand, without the reporter's cleaning.
    return " ".join(UNSEEN.sub("", text_of(text)).split())
