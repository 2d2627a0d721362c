"""A run as its journal tells it, and what a recovery of it would reuse: as JSON, and as a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from triage.core.actions import Replan, Resume, Retry, Rollback
from triage.core.errors import UsageError
from triage.core.events import AttemptFailed, Event, RunRecovered, RunStarted
from triage.core.quoting import action_text, counted, json_text, moment, one_line, span
from triage.core.redaction import redact
from triage.core.state import Call, RunState, active_seconds, fold
from triage.core.steps import Step
from triage.core.wire import to_json
from triage.engine.answering import waits_for
from triage.engine.digest import Digest, status_of
from triage.engine.outside import WAITING, answers_to, asks_of, is_about_call, lease_of
from triage.engine.questions import question_at
from triage.engine.recovery import position_of
from triage.engine.returning import Point, foretell, point_of_return
from triage.stores.base import RunInfo

from .options import place_of, suggested
from .output import fields_of, now
from .progress import Line, failure_lines, step_line, used

_MOST_STEPS = 20
"""Of an attempt, the newest; calls too. `--events` has all."""
_EXPECTED = {
    None: "started, its outcome is not known",
    "in_doubt": "in doubt: it may have happened",
    "not_attempted": "not attempted",
}
_ABOUT = {"call in doubt": "in doubt", "approval": "not begun: it waits for an approval"}


# As JSON ------------------------------------------------------------------------------------------


def run_as_json(info: RunInfo, events: Sequence[Event], clock: float) -> dict[str, Any]:
    """A run as values of a JSON object; every field is always there. clock: the store's time."""
    state = fold(events)
    asked = waits_for(events)
    return {
        "v": 1,
        **info._asdict(),
        "shown": status_of(info, events, clock),
        "age_s": round(now() - info.started, 3),
        "task": to_json(state.task),
        "unstored": _unstored(events),
        "attempts": [
            {
                "attempt": number,
                "steps": [to_json(step) for step in steps],
                "error": None if past is None else past.error,
                "diagnosis": None if past is None else past.diagnosis,
                "action": None if past is None else past.action,
            }
            for number, steps, past in _attempts(state)
        ],
        "calls": [
            {
                **fields_of(call),
                "arguments": to_json(call.arguments),
                "result": to_json(call.result),
            }
            for call in state.calls.values()
        ],
        "waits": None if asked is None else {**fields_of(asked), "waits_for": asks_of(events)},
        "usage": state.usage,
        "steps": state.all_steps,
        "active_s": round(active_seconds(events), 3),
        "result": to_json(state.result),
        "error": state.error,
    }


# As a page ----------------------------------------------------------------------------------------


def run_page(
    info: RunInfo, events: Sequence[Event], store: str | None, clock: float
) -> Iterator[Line]:
    """What is said of a run, its title first.

    store: as it was given by `--store`. clock: the store's time, by which leases and questions end.
    """
    state, time = fold(events), now()
    digest = Digest(events)
    yield Line("", "bold", f"run {info.run_id} of {info.agent}: {digest.status(info, clock)}")
    yield Line("task", "dim", f'"{one_line(json_text(to_json(state.task)))}"')
    if state.origin is not None:
        from_ = f"{state.origin.run_id}, behind its event {state.origin.at}"
        yield Line("forked from", "dim", from_)
    unstored = _unstored(events)
    if unstored:
        yield Line("not stored", "yellow", f"{', '.join(unstored)}: give again to recover it")
    ago = f"{moment(info.started)}, {span(time - info.started)} ago"
    yield Line("started", "dim", f"{ago}; last event {span(time - info.updated)} ago")
    yield Line("owner", "dim", _owner(info, events, clock))
    for number, steps, past in _attempts(state):
        yield Line("attempt", "cyan", f"{number}, {counted(len(steps), 'step')}")
        yield from _newest([_step_line(index, step) for index, step in enumerate(steps)])
        if past is not None:
            if past.diagnosis.cause in WAITING:
                yield Line("waited", "yellow", str(past.diagnosis.user_message))
            else:
                yield from failure_lines(
                    AttemptFailed(info.run_id, 0, past.ended, number, past.error, past.diagnosis)
                )
            if past.action is not None:
                yield Line("action", "yellow", action_text(past.action))
    yield from _newest([_call(call) for call in state.calls.values()])
    yield from _waits(info, events, clock, store)
    yield from _left(info, clock, store)
    if state.result is not None:
        yield Line("result", "green", json_text(to_json(state.result)))
    if state.error is not None and state.status not in ("running", "suspended"):
        yield Line("ended by", "red", str(state.error))
    yield Line("used", "dim", ", ".join(used(digest, calls=True)))
    yield Line("at work", "dim", f"{digest.busy:.2f} s")


def _unstored(events: Sequence[Event]) -> tuple[str, ...]:
    first = events[0] if events else None
    return first.unstored if isinstance(first, RunStarted) else ()


def _owner(info: RunInfo, events: Sequence[Event], clock: float) -> str:
    parts = [
        f"epoch {info.epoch}",
        f"lease {lease_of(info, clock)}" if lease_of(info, clock) else "no lease",
    ]
    if info.claims:
        parts.append(f"taken over {counted(info.claims, 'time')} since it last got on")
    if any(isinstance(event, RunRecovered) and event.changed for event in events):
        parts.append("its code has changed since it began")
    if info.parent is not None:
        parts.append(f"inside run {info.parent}")
    return ", ".join(parts)


def _left(info: RunInfo, clock: float, store: str | None) -> Iterator[Line]:
    """How to go on with a run that nobody works on."""
    recover = ("runs", "recover", info.run_id, place_of(info.agent))
    if info.status == "dead_letter":
        again = suggested(*recover, "--force", store=store)
        yield Line("left", "red", "too many processes have died with it; when that is mended:")
        yield Line("recover", "red", again)
    elif info.status == "running" and (info.lease_until is None or info.lease_until <= clock):
        yield Line("left", "yellow", "no process has it")
        yield Line("recover", "yellow", suggested(*recover, store=store))


def _attempts(state: RunState) -> Iterator[tuple[int, Sequence[Step], Any]]:
    """Each attempt with its steps, and how it failed; None for one that did not."""
    for past in state.history:
        yield past.number, past.trajectory.steps, past
    if state.attempt and (not state.history or state.history[-1].number != state.attempt):
        yield state.attempt, state.steps, None


def _newest(lines: list[Line]) -> list[Line]:
    left_out = len(lines) - _MOST_STEPS
    if left_out <= 0:
        return lines
    return [Line("…", "dim", f"{left_out} before"), *lines[left_out:]]


def _step_line(index: int, step: Step) -> Line:
    line = step_line(step)
    reused = "reused " if line.label == "reused" else ""
    return Line(f"step {index}", line.style, f"{reused}{line.text}")


def _call(call: Call) -> Line:
    outcome, style = _EXPECTED.get(call.outcome, call.outcome or ""), "yellow"
    if call.outcome == "done":
        style = "green"
        given = (
            one_line(json_text(to_json(call.result)), 80)
            if call.exact
            else "its result is not kept"
        )
        outcome = "undone" if call.undone else f"done → {given}"
    if call.error is not None:
        outcome = f"{outcome}: {call.error}"
    given = "" if call.arguments is None else one_line(json_text(to_json(call.arguments)), 80)
    return Line("call", style, f"{call.tool}({given}) [{call.effect}] {outcome}")


_WITHOUT_TOKEN = ("approve", "reject", "abort")
"""How `resolve` answers a question that is not about a call."""
_PLAN = (("--yes",), ("--reject", "REASON"))
"""How `approve` answers a question about a plan or a step."""


def _waits(
    info: RunInfo, events: Sequence[Event], clock: float, store: str | None
) -> Iterator[Line]:
    asked = waits_for(events)
    if asked is None:
        return
    yield Line("waits", "bold yellow", asked.question)
    yield Line("since", "yellow", f"{moment(asked.time)}, {span(now() - asked.time)} ago")
    left = math.inf if asked.expires is None else asked.expires - clock
    if asked.expires is not None:
        until = f"{span(left)} left" if left > 0 else "over: its token is refused"
        yield Line("expires", "yellow", f"{moment(asked.expires)}, {until}")
    asks, about_call = asks_of(events), is_about_call(events)
    if about_call:
        yield Line("about", "yellow", f"the call {asked.call}, {_ABOUT.get(asks, 'not begun')}")
    elif left > 0 and asks == "approval":
        for label, words in zip(("answer", "or"), _PLAN, strict=True):
            yield Line(label, "yellow", suggested("approve", info.run_id, *words, store=store))
        return
    elif left > 0 and asked.call is None:
        resume = ("runs", "resume", "-", place_of(info.agent), "approve")
        yield Line("answer", "yellow", "by its token, which this reads:")
        yield Line("", "yellow", suggested(*resume, store=store))
        return
    label = "answer"
    for answer in answers_to(events) if about_call else _WITHOUT_TOKEN:
        payload = ("--payload", _arguments_asked(events)) if answer == "edit" else ()
        resolve = ("runs", "resolve", info.run_id, answer, *payload)
        yield Line(label, "yellow", suggested(*resolve, store=store))
        label = "or"


def _arguments_asked(events: Sequence[Event]) -> str:
    """The arguments of the call that waits, to be edited."""
    question = question_at(events)
    arguments = None if question is None else redact(to_json(question.arguments))
    return json.dumps(arguments, ensure_ascii=False)


# What a recovery would do -------------------------------------------------------------------------

_ACTIONS: dict[str, Any] = {
    "retry": Retry(),
    "replan": Replan(),
    "resume": Resume(),
    "rollback": Rollback(),
}
_FATES = {
    "reused": "green",
    "asked anew": "yellow",
    "run again": "yellow",
    "undone first": "red",
    "cannot be undone": "bold red",
}


def would_as_json(events: Sequence[Event], word: str) -> dict[str, Any]:
    """The dry look as a JSON object. Raises UsageError for a run of which no attempt has failed."""
    state = fold(events)
    action = _foretold(state, word)
    point = point_of_return(state, action)
    returns = isinstance(point, Point)
    return {
        "would": word,
        "after_attempt": state.attempt,
        "returns_to": point.at if isinstance(point, Point) else None,
        "why": point.why if returns else f"escalates: {point.why}",
        "calls": [
            {
                "key": known.call.key,
                "tool": known.call.tool,
                "kind": known.call.kind,
                "effect": known.call.effect,
                "arguments": to_json(known.call.arguments),
                "fate": known.fate,
            }
            for known in foretell(state, action)
        ],
    }


def would_page(events: Sequence[Event], word: str) -> Iterator[Line]:
    """The dry look, line by line."""
    seen = would_as_json(events, word)
    yield Line("", "bold", f"after attempt {seen['after_attempt']}, {word} would return to:")
    yield Line("point", "cyan", seen["why"])
    for call in seen["calls"]:
        given = "" if call["arguments"] is None else json_text(call["arguments"])
        text = f"{call['tool']}({one_line(given, 80)}) [{call['effect']}]"
        yield Line(call["fate"], _FATES[call["fate"]], text)
    if not seen["calls"]:
        yield Line("", "dim", "no call is recorded: all of it runs again")


def _foretold(state: RunState, word: str) -> Any:
    if not state.history:
        raise UsageError(f"--would {word.upper()}: no attempt of run {state.run_id} has failed yet")
    action = _ACTIONS[word]
    if not isinstance(action, Rollback):
        return action
    return replace(action, checkpoint_id=position_of(state, state.history[-1].diagnosis))
