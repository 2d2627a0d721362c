"""Turn a journal into a timeline: group events into moments and describe each in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from triage.core import events
from triage.core.quoting import action_text, counted, json_text, one_line, span
from triage.core.state import is_call, is_reused
from triage.core.steps import Step, Usage
from triage.core.wire import to_json
from triage.engine.outside import WAITING

IDLE_S = 60.0
"""Seconds without an event from which the timeline shows a pause."""
_LONGEST = 200
_LONGEST_RESULT = 140
"""The most characters of a text and of its result on the timeline; the event's own page shows all."""
_GIVEN = 100


class Moment:
    """Events shown as one line: a call from its start to its end, or a single other event."""

    __slots__ = ("events",)

    def __init__(self, event: events.Event) -> None:
        self.events = [event]

    @property
    def first(self) -> events.Event:
        """The first event, whose position is the moment's address."""
        return self.events[0]

    @property
    def last(self) -> events.Event:
        return self.events[-1]


class Moments:
    """Group the events of a journal into moments, in order. Keeps only the calls that have not ended."""

    def __init__(self) -> None:
        self._open: dict[str, Moment] = {}

    def apply(self, event: events.Event) -> Moment:
        """Apply the next event; return the moment it starts or joins."""
        match event:
            case events.CallStarted(key=key, keyed=keyed):
                known = self._open.get(key) if keyed else None
                if known is None:
                    known = self._open[key] = Moment(event)
                    return known
            case events.StepRecorded(step=step) if is_call(step):
                key = str((step.metadata or {})["call"])
                known = self._open.get(key)
                if known is None:  # a reused call starts with its step
                    known = self._open[key] = Moment(event)
                    return known
            case events.CallFinished(key=key):
                known = self._open.pop(key, None)
            case _:
                known = None
        if known is None:
            return Moment(event)
        known.events.append(event)
        return known


class Entry(NamedTuple):
    """A moment as one line of the timeline.

    seq, last: positions of its first and latest event; `seq` is its address. kind: one or two words. tone:
    `ok`, `reused`, `bad`, `warn`, `open` or `quiet`. text: what happened. result: the outcome. at: time
    since the run started. took: duration and usage. idle: length of the pause before it; empty below
    `IDLE_S`. attempt: its attempt's number; 0 outside an attempt. step: its step's index in the attempt;
    -1 if it has no step. All times are in words, and empty if unknown.
    """

    seq: int
    last: int
    kind: str
    tone: str
    text: str
    result: str = ""
    at: str = ""
    took: str = ""
    idle: str = ""
    attempt: int = 0
    step: int = -1


def entry_of(moment: Moment, started: float, before: float | None) -> Entry:
    """Describe a moment.

    started: when the run started. before: when the event before it happened; None for the first. Both in
    seconds since the epoch.
    """
    first = moment.first
    idle = 0.0 if before is None else first.time - before
    step = next((e for e in moment.events if isinstance(e, events.StepRecorded)), None)
    said = _call(moment, step) if isinstance(first, events.CallStarted) else _said(first)
    return said._replace(
        seq=first.seq,
        last=moment.last.seq,
        at=since(first.time - started),
        idle=span(idle) if idle >= IDLE_S else "",
        attempt=getattr(first, "attempt", 0),
        step=-1 if step is None else step.index,
    )


def since(seconds: float) -> str:
    """Format the time since the start: `+0.42 s`, `+3 min 20 s`, `+2 h 5 min`."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"+{seconds:.2f} s"
    for size, unit, small, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min")):
        if seconds >= size:
            return f"+{int(seconds // size)} {unit} {int(seconds % size // small)} {below}"
    return f"+{int(seconds // 60)} min {int(seconds % 60)} s"


def lasted(seconds: float | None) -> str:
    """Format a duration: `3 ms`, `1.24 s`, `2 min`; empty for None (unknown)."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{1_000 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else span(seconds)


def used(usage: Usage | None) -> str:
    """Format a usage: `1,200 tokens, $0.0031`; empty for None or nothing."""
    if usage is None:
        return ""
    parts = [f"{usage.total_tokens:,} tokens"] if usage.total_tokens else []
    if usage.cost_usd:
        parts.append(f"${usage.cost_usd:.4f}")
    return ", ".join(parts)


# Calls and steps ----------------------------------------------------------------------------------

_TONES = {"done": "ok", "failed": "bad", "not_attempted": "bad", "in_doubt": "warn"}
_OUTCOMES = {
    "failed": "failed",
    "not_attempted": "not attempted",
    "in_doubt": "in doubt: it may have happened",
}


def _entry(kind: str, tone: str, text: str, result: str = "", took: str = "") -> Entry:
    said = (
        one_line(kind, 20) or "event",
        tone,
        one_line(text, _LONGEST),
        one_line(result, _LONGEST_RESULT),
    )
    return Entry(0, 0, *said, took=took)


def _call(moment: Moment, recorded: events.StepRecorded | None) -> Entry:
    begun = moment.first
    assert isinstance(begun, events.CallStarted)
    finished = next((e for e in moment.events if isinstance(e, events.CallFinished)), None)
    kind = begun.kind or ("tool" if begun.run is None else "run")
    text = f"{begun.tool}({_given(begun.arguments)})"
    if kind in ("model", "judge") and recorded is not None and recorded.step.tool_called is None:
        text = begun.tool
    if begun.effect in ("once", "unknown"):
        text += f" [{begun.effect}]"
    if finished is None:
        return _entry(kind, "open", text, "not ended")
    tone = "reused" if finished.replayed else _TONES.get(finished.outcome, "warn")
    if finished.outcome != "done":
        error = "" if finished.error is None else f": {finished.error}"
        result = f"{_OUTCOMES.get(finished.outcome, finished.outcome)}{error}"
    else:
        result = _outcome(None if recorded is None else recorded.step, finished.result)
    step = None if recorded is None else recorded.step
    seconds = step.duration_s if step is not None and step.duration_s is not None else None
    if seconds is None and not finished.replayed:
        seconds = finished.time - begun.time
    took = (
        [] if finished.replayed else [lasted(seconds), used(None if step is None else step.usage)]
    )
    return _entry(kind, tone, text, result, ", ".join(filter(None, took)))


def _outcome(step: Step | None, result: Any) -> str:
    if step is not None and step.llm_output is not None:
        return step.llm_output
    return json_text(to_json(result))


def _given(arguments: Any) -> str:
    if arguments is None:
        return ""
    if isinstance(arguments, dict):
        parts = (f"{name}={_short(value)}" for name, value in arguments.items())
        return one_line(", ".join(parts), _GIVEN)
    return one_line(json_text(to_json(arguments)), _GIVEN)


def _short(value: Any) -> str:
    text = json_text(to_json(value)) if not isinstance(value, str) else f'"{value}"'
    return one_line(text, _GIVEN)


def _step(event: events.StepRecorded) -> Entry:
    step = event.step
    reused = is_reused(step.metadata)
    kind, tone = ("reused", "reused") if reused else ("step", "ok")
    if step.action in ("model", "judge"):
        kind = step.action
    parts = (
        [step.action] if step.action and step.action not in {"call", kind, step.tool_called} else []
    )
    if step.tool_called is not None:
        parts.append(f"{step.tool_called}({_given(step.tool_input)})")
    took = ", ".join(filter(None, (lasted(step.duration_s), used(step.usage))))
    if step.error is not None:
        return _entry(kind, "bad", " ".join(parts), f"failed: {step.error}", took)
    if not parts and step.llm_output is not None:
        return _entry(kind, tone, step.llm_output, took=took)
    result = "" if step.tool_output is None else json_text(step.tool_output)
    return _entry(kind, tone, " ".join(parts), step.llm_output or result, took)


# All other events ---------------------------------------------------------------------------------


def _said(event: events.Event) -> Entry:
    match event:
        case events.StepRecorded():
            said = _step(event)
        case events.RunStarted(agent=agent, task=task):
            said = _entry("run", "quiet", f"{agent} began", json_text(to_json(task)))
        case events.AttemptStarted(attempt=number, hint=hint):
            said = _entry("attempt", "quiet", f"attempt {number}", f"told: {hint}" if hint else "")
        case events.AttemptFailed(attempt=number, diagnosis=diagnosis) if (
            diagnosis.cause in WAITING
        ):
            said = _entry(
                "asked", "warn", f"attempt {number} stopped to ask", diagnosis.user_message
            )
        case events.AttemptFailed(attempt=number, error=error, diagnosis=diagnosis):
            why = "a check or a limit said no" if error is None else str(error)
            said = _entry("failed", "bad", f"attempt {number}: {why}", str(diagnosis))
        case events.ActionChosen(action=action, by=by, reason=reason):
            said = _entry(
                "action", "warn", action_text(action), ", ".join(filter(None, (by, reason)))
            )
        case events.RunSuspended(question=question):
            said = _entry("waits", "warn", question)
        case events.RunResumed(action=action):
            said = _entry("answer", "ok", action_text(action))
        case events.RunRecovered(epoch=epoch, changed=changed):
            code = "its code has changed" if changed else ""
            said = _entry("taken over", "warn", f"by process {epoch + 1} of this run", code)
        case events.RunFinished(status=status, error=error, result=result):
            tone = "ok" if status == "done" else "bad"
            given = json_text(to_json(result)) if error is None else str(error)
            said = _entry("end", tone, status, given if result is not None or error else "")
        case _:
            said = _noted(event)
    return said


def _noted(event: events.Event) -> Entry:
    match event:
        case events.StateUpdated(values=values):
            said = _entry("state", "quiet", ", ".join(map(str, values)), json_text(to_json(values)))
        case events.UsageRecorded(usage=usage):
            said = _entry("usage", "quiet", used(usage) or counted(usage.calls, "call"))
        case events.CallFinished(key=key, outcome=outcome, result=result):
            tool = key.rsplit(":", 2)[0]
            said = _entry("answer", "ok", f"{tool}: {outcome}", json_text(to_json(result)))
        case events.WatchNoticed(response=response, rule=rule, text=text):
            said = _entry("noticed", "warn", f"{rule}: {text}", response)
        case events.SubgoalsDeclared(names=names):
            said = _entry("goals", "quiet", ", ".join(names))
        case events.SubgoalCompleted(name=name):
            said = _entry("reached", "ok", name)
        case events.CompensatorRegistered(name=name):
            said = _entry("can undo", "quiet", name)
        case events.CompensatorRan(name=name, error=error, begins=begins):
            failed = "" if error is None else f"failed: {error}"
            tone = "open" if begins else "bad" if failed else "ok"
            said = _entry("undoing" if begins else "undone", tone, name, failed)
        case events.ApprovalAsked(kind=kind, question=question):
            said = _entry("asks", "warn", question or kind)
        case events.ApprovalGiven(decision=decision, by=by, reason=reason):
            tone = "bad" if decision == "rejected" else "ok"
            said = _entry("answer", tone, f"{decision}{f' by {by}' if by else ''}", reason)
        case _:
            said = _planned(event)
    return said


def _planned(event: events.Event) -> Entry:
    match event:
        case events.CapabilitiesSelected(names=names):
            said = _entry("selected", "quiet", ", ".join(names))
        case events.PlanMade(version=version, plan=plan):
            said = _entry("plan", "quiet", f"version {version}", json_text(to_json(plan)))
        case events.PlanRouted(target=target, step=step, reason=reason):
            said = _entry("route", "quiet", f"{target} {step}".strip(), reason)
        case events.PlanFailed(target=target, step=step, error=error, diagnosis=diagnosis):
            why = str(diagnosis) if error is None else f"{error} ({diagnosis})"
            said = _entry("failed", "bad", f"{target} {step}".strip(), why)
        case events.PlanStepMoved(step=step, status=status, detail=detail):
            said = _entry(
                "plan step", "ok" if status == "done" else "quiet", f"{step}: {status}", detail
            )
        case _:
            said = _entry("event", "quiet", type(event).__name__)
    return said


def entries_of(moments: Iterable[Moment], started: float, before: float | None) -> Iterator[Entry]:
    """Describe consecutive moments of a run. started, before: as in `entry_of`, for the first of them."""
    for moment in moments:
        yield entry_of(moment, started, before)
        before = max(before or 0.0, *(event.time for event in moment.events))
