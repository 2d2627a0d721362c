"""`Report`: the facts of a failure and their analysis, as plain values that print anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias, get_args

from msgspec.structs import replace

from triage.core import wire
from triage.core.constructors import Struct
from triage.core.errors import StoreError, UsageError, check_word
from triage.core.guards import guarded
from triage.core.notebook import lines
from triage.core.quoting import counted, moment
from triage.core.steps import Usage

from .document import Bit, Item, Prose, Quote, Section, markdown, text
from .facts import AttemptFacts, Facts, StepFacts, for_a_person, without_internals

Audience: TypeAlias = Literal["person", "developer"]
Completeness: TypeAlias = Literal["full", "structured", "minimal", "constant"]
VERSION = 1
CONSTANT = "Something went wrong, and no report of it could be made.\n"


class Analysis(Struct, frozen=True):
    """An analyst's opinion of the facts.

    text: the reason of the failure, in a few sentences. suggestions: next steps, one text each. by: the
    analyst's name. usage: of the analysis, None if not known.
    """

    text: str
    suggestions: tuple[str, ...] = ()
    by: str = ""
    usage: Usage | None = None


class Report(Struct, frozen=True):
    """A report of a failure.

    time: of the report, in seconds since the epoch. completeness: `"full"` with an analysis,
    `"structured"` without one, `"minimal"` if little more than the failure is known, `"constant"` if
    not even that could be read. facts: plain values, bounded and without secrets. analysis: None
    without one; missing: the reason for that, in words, empty if no analyst was asked.

    A person sees the failure, the steps and the suggestions; a developer sees everything. Words of tools,
    models and errors are quoted. Nothing here raises, apart from UsageError for an unknown audience.
    """

    time: float = 0.0
    completeness: Completeness = "constant"
    facts: Facts = Facts()
    analysis: Analysis | None = None
    missing: str = ""

    def to_markdown(self, audience: Audience = "person") -> str:
        """Write the report as CommonMark."""
        return _written(self.seen_by(audience), markdown)

    def to_text(self, audience: Audience = "person") -> str:
        """Write the report as plain lines."""
        return _written(self.seen_by(audience), text)

    def to_json(self, audience: Audience = "developer") -> str:
        """Write `as_dict` on one line, in ASCII."""
        return _dumped(self.seen_by(audience))

    def as_dict(self, audience: Audience = "developer") -> dict[str, Any]:
        """Return the report as a JSON object, without fields that have their defaults."""
        shown = self.seen_by(audience)
        always = {"time": shown.time, "completeness": shown.completeness}
        return {"v": VERSION, **always, "facts": {}, **wire.to_json(shown)}

    def seen_by(self, audience: Audience) -> Report:
        """Keep the facts for this audience. Raises UsageError for an unknown audience."""
        check_word("audience", audience, get_args(Audience))
        if audience == "developer":
            return self
        told = self.analysis
        if told is not None:
            said, *suggestions = (
                without_internals(one, self.facts) for one in (told.text, *told.suggestions)
            )
            told = Analysis(said, tuple(suggestions), told.by)
        missing = "No analysis could be made." if self.missing else ""
        return replace(self, facts=for_a_person(self.facts), analysis=told, missing=missing)

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """Read the report that `as_dict` wrote. Raises UsageError naming the wrong field."""
        if not isinstance(data, dict):
            raise UsageError(f"a report must be a JSON object, not {type(data).__name__}")
        version = data.get("v")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise UsageError(f"Report.v must be a version from 1 to {VERSION}, not {version!r}")
        check_word("Report.completeness", data.get("completeness"), get_args(Completeness))
        try:
            return wire.from_json(cls, data, "Report")
        except StoreError as error:
            raise UsageError(str(error)) from None

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

    def _repr_html_(self) -> str:
        """Render the developer's report for a notebook."""
        return lines(self.to_text("developer"))


@guarded(lambda _report, _write: CONSTANT)
def _written(report: Report, write: Callable[[Iterable[Section]], str]) -> str:
    return write(sections(report))


@guarded(lambda _report: "{}")
def _dumped(report: Report) -> str:
    return json.dumps(report.as_dict(), allow_nan=False)


# The sections, most important first. `Quote` and `Prose` mark all words that are not ours.


def sections(report: Report) -> Iterator[Section]:
    """Yield the sections of a report that have contents."""
    facts = report.facts
    yield Section(_TITLES.get(facts.ended, "This did not work"), tuple(_head(report)), depth=1)
    yield from _steps(facts.steps)
    tools = (f"{one.name}: {one.description}".removesuffix(": ") for one in facts.capabilities)
    for section in (
        Section("What was tried", items=tuple(map(_attempt, facts.attempts))),
        Section("Figures", items=tuple(_figures(facts))),
        Section("What can be done", items=tuple(_what_now(facts))),
        *(Section(title, items=_quoted(getattr(facts, name))) for name, title in _LISTS.items()),
        Section("What can be used", items=_quoted(filter(None, tools))),
        Section("Details", tuple(_labelled(facts, _DETAILS))),
        *_analysis(report),
    ):
        if section.lines or section.items:
            yield section


_TITLES = {"suspended": "This waits for an answer", "cancelled": "This was stopped"}
_NOTHING_KNOWN = "Something went wrong, and no more is known of it."
_BEFORE = {"task": "Asked", "failed": "Failed", "where": "Where"}
_AFTER = {
    "error": "Error", "reason": "Ended", "run_id": "Run", "agent": "Agent", "recovery": "Recovery",
}  # fmt: skip
_STEP = {
    "objective": "", "criteria": "to be judged by ", "given": "given ", "result": "result ",
    "error": "error ",
}  # fmt: skip
_ATTEMPT = {"failure": "Failure", "error": "Error"}
_LISTS = {
    "not_undone": "Not undone", "evidence": "Evidence", "chain": "Errors, outermost first",
    "frames": "Raised at", "left_out": "Left out",
}  # fmt: skip
_DETAILS = {
    "technical_details": "Details", "hint": "Hint for the next attempt", "partial": "So far",
    "classifier": "Said by",
}  # fmt: skip


def _labelled(record: Any, labels: dict[str, str]) -> Iterator[tuple[str, Quote]]:
    values = ((label, getattr(record, name)) for name, label in labels.items())
    return ((label, Quote(value)) for label, value in values if value)


def _quoted(texts: Iterable[str]) -> tuple[Item, ...]:
    return tuple((Quote(text),) for text in texts)


def _head(report: Report) -> Iterator[tuple[str, Bit]]:
    facts = report.facts
    if report.time:
        yield "Time", moment(report.time)
    if facts.severity:
        words = (facts.failure_type, facts.cause, facts.severity, f"level {facts.level}")
        sure = "" if facts.confidence is None else f", confidence {facts.confidence:.2f}"
        yield "Diagnosis", Quote(", ".join(filter(None, words)) + sure)
    yield from _labelled(facts, _BEFORE)
    yield "What happened", Prose(facts.user_message or _NOTHING_KNOWN)
    if facts.status_code or facts.code:
        yield "Answer", Quote(f"{facts.status_code or ''} {facts.code}")
    yield from _labelled(facts, _AFTER)


def _steps(steps: tuple[StepFacts, ...]) -> Iterator[Section]:
    attempts = dict.fromkeys(step.attempt for step in steps)
    if steps:
        yield Section("Step by step", items=() if len(attempts) > 1 else tuple(map(_step, steps)))
    if len(attempts) > 1:
        for number in attempts:
            items = tuple(_step(step) for step in steps if step.attempt == number)
            yield Section(f"Attempt {number}", items=items, depth=3)


def _step(step: StepFacts) -> Item:
    decisive = ", which decided it" if step.decisive else ""
    bits: list[Bit] = [
        f"step {step.number}, ",
        Prose(step.outcome),
        f"{decisive}: ",
        Quote(step.name),
    ]
    for label, said in _labelled(step, _STEP):
        bits += (f", {label}", said)
    return (*bits, f", {step.seconds:.3g} s" if step.seconds else "")


def _attempt(attempt: AttemptFacts) -> Item:
    bits: list[Bit] = [f"attempt {attempt.number}: ", Prose(attempt.user_message or "It failed.")]
    if attempt.steps:
        failed = f", {attempt.failed_steps} failed" if attempt.failed_steps else ""
        bits.append(f" {counted(attempt.steps, 'step')}{failed}.")
    for label, said in _labelled(attempt, _ATTEMPT):
        bits += (f" {label}: ", said, ".")
    if attempt.action:
        after = f" after {attempt.delay_s:.3g} s" if attempt.delay_s else ""
        bits.append(f" Then: {_ACTIONS.get(attempt.action, 'something else was done')}{after}.")
    if attempt.hint:
        bits += (" It was told: ", Quote(attempt.hint))
    return tuple(bits)


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


def _figures(facts: Facts) -> Iterator[Item]:
    for counter in facts.counters:
        of = "" if counter.limit is None else f" of {counter.limit:.12g}"
        yield (Prose(counter.name), f": {counter.used:.12g}{of}")
    if facts.elapsed_s is not None:
        yield (f"seconds: {facts.elapsed_s:.3g}",)


def _what_now(facts: Facts) -> Iterator[Item]:
    known = dict.fromkeys((*facts.next_steps, *facts.suggestions))
    if facts.question:
        yield ("Answer this: ", Quote(facts.question))
    elif not known:
        yield (_OTHERWISE.get(facts.ended, "Try again; if it stays so, ask whoever runs this."),)
    yield from ((Prose(one),) for one in known)


_OTHERWISE = {
    "escalated": "Whoever runs this has to look at it. Trying again as it is will hardly help.",
    "aborted": "It was stopped on purpose. Ask whoever runs this before trying again.",
    "fatal": "It cannot be done as it was asked. Ask whoever runs this.",
    "cancelled": "Ask again when it is still wanted.",
}


def _analysis(report: Report) -> Iterator[Section]:
    said = report.analysis
    if said is None:
        yield Section("Analysis", items=((Prose(report.missing),),) if report.missing else ())
        return
    guess = Prose("what follows is the guess" + (f" of {said.by}" if said.by else ""))
    items = tuple((Prose(one),) for one in said.suggestions)
    yield Section("Analysis", (("An opinion, no fact", guess),), Prose(said.text), items)
