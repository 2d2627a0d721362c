"""`triage runs show`: a run as its journal tells it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from triage import RunState, Step, Usage, fold
from triage._answers import waits_for
from triage._journal import active_seconds
from triage._wire import dump, to_json
from triage.events import AttemptFailed, Event, RunRecovered, RunStarted, RunSuspended
from triage.redact import Redactor
from triage.reports import report_of
from triage.state import Call
from triage.stores import RunInfo, Store

from ._pages import print_lines
from ._run import _note, _write, told
from ._runs import carry_out, lease, moment, now, run_of, shown, span, store_of
from ._runs_list import as_json
from ._show import Line, _action, _counted, _failure, _step, json_text

_MOST_STEPS = 20
"""Of an attempt, the newest; calls too. `--events` has all."""
_EXPECTED = {
    None: "started, its outcome is not known",
    "in_doubt": "in doubt: it may have happened",
    "not_attempted": "not attempted",
}


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    store = store_of(options.store)
    assert store is not None

    async def work(store: Store) -> tuple[RunInfo, list[Event]]:
        info = await run_of(store, options.run)
        return info, await store.read(info.run_id)

    def say(found: tuple[RunInfo, list[Event]]) -> None:
        info, events = found
        if options.report is not None:
            state = fold(events)
            if state.status in ("done", "running"):
                _note(f"run {info.run_id} has not failed: {state.status}")
            else:
                told(report_of(state), options)
        elif options.events:
            for event in events:
                _write(_line(dump(event)))
        elif options.json:
            _write(_line(report(info, events)))
        else:
            print_lines(list(page(info, events)))

    return carry_out(store, work, say)


# As JSON ------------------------------------------------------------------------------------------


def _line(value: Any) -> str:
    return json.dumps(Redactor().value(value)[0], allow_nan=False)


def report(info: RunInfo, events: Sequence[Event]) -> dict[str, Any]:
    """A run as a JSON object; every field is always there."""
    state, time = fold(events), now()
    asked = waits_for(events)
    return {
        "v": 1,
        **as_json(info, time),
        "task": to_json(state.task),
        "unstored": list(_unstored(events)),
        "attempts": [
            {
                "attempt": number,
                "steps": [to_json(step) for step in steps],
                "error": None if past is None else to_json(past.error),
                "diagnosis": None if past is None else to_json(past.diagnosis),
                "action": None if past is None or past.action is None else to_json(past.action),
            }
            for number, steps, past in _attempts(state)
        ],
        "calls": [_call_as_json(call) for call in state.calls.values()],
        "waits": None if asked is None else _question_as_json(asked),
        "usage": state.usage._asdict(),
        "steps": state.all_steps,
        "active_s": round(active_seconds(events), 3) if events else 0.0,
        "result": to_json(state.result),
        "error": None if state.error is None else to_json(state.error),
    }


def _call_as_json(call: Call) -> dict[str, Any]:
    return {
        "key": call.key,
        "tool": call.tool,
        "effect": call.effect,
        "arguments": to_json(call.arguments),
        "attempt": call.attempt,
        "outcome": call.outcome,
        "result": to_json(call.result),
        "error": None if call.error is None else to_json(call.error),
        "undone": call.undone,
    }


def _question_as_json(asked: RunSuspended) -> dict[str, Any]:
    return {
        "question": asked.question,
        "call": asked.call,
        "doubt": asked.doubt,
        "since": asked.time,
        "expires": asked.expires,
        "metadata": to_json(asked.metadata),
    }


# As a page ----------------------------------------------------------------------------------------


def page(info: RunInfo, events: Sequence[Event]) -> Iterator[Line]:
    """What is said of a run, its title first."""
    state, time = fold(events), now()
    yield Line("", "bold", f"run {info.run_id} of {info.agent}: {info.status}")
    yield Line("task", "dim", f'"{shown(json_text(to_json(state.task)))}"')
    unstored = _unstored(events)
    if unstored:
        yield Line("not stored", "yellow", f"{', '.join(unstored)}: give again to recover it")
    ago = f"{moment(info.started)}, {span(time - info.started)} ago"
    yield Line("started", "dim", f"{ago}; last event {span(time - info.updated)} ago")
    yield Line("owner", "dim", _owner(info, events, time))
    for number, steps, past in _attempts(state):
        yield Line("attempt", "cyan", f"{number}, {_counted(len(steps), 'step')}")
        yield from _newest([_step_line(index, step) for index, step in enumerate(steps)])
        if past is not None:
            yield from _failure(
                AttemptFailed(info.run_id, 0, past.ended, number, past.error, past.diagnosis)
            )
            if past.action is not None:
                yield Line("action", "yellow", _action(past.action))
    yield from _newest([_call(call) for call in state.calls.values()])
    yield from _waits(info, events, time)
    yield from _left(info, time)
    yield from _end(state, events)


def _unstored(events: Sequence[Event]) -> tuple[str, ...]:
    first = events[0] if events else None
    return first.unstored if isinstance(first, RunStarted) else ()


def _owner(info: RunInfo, events: Sequence[Event], time: float) -> str:
    parts = [
        f"epoch {info.epoch}",
        f"lease {lease(info, time)}" if lease(info, time) else "no lease",
    ]
    if info.claims:
        parts.append(f"taken over {_counted(info.claims, 'time')} since it last came to a stop")
    if any(isinstance(event, RunRecovered) and event.changed for event in events):
        parts.append("its code has changed since it began")
    if info.parent is not None:
        parts.append(f"inside run {info.parent}")
    return ", ".join(parts)


def _left(info: RunInfo, time: float) -> Iterator[Line]:
    """How to go on with a run that nobody works on."""
    recover = f"triage runs recover {info.run_id} module:agent"
    if info.status == "dead_letter":
        yield Line("left", "red", f"too many processes have died with it; {recover} --force")
    elif info.status == "running" and (info.lease_until is None or info.lease_until <= time):
        yield Line("left", "yellow", f"no process has it; {recover}")


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
    line = _step(step)
    reused = "reused " if line.label == "reused" else ""
    return Line(f"step {index}", line.style, f"{reused}{line.text}")


def _call(call: Call) -> Line:
    outcome, style = _EXPECTED.get(call.outcome, call.outcome or ""), "yellow"
    if call.outcome == "done":
        style = "green"
        given = (
            shown(json_text(to_json(call.result)), 80) if call.exact else "its result is not kept"
        )
        outcome = "undone" if call.undone else f"done → {given}"
    if call.error is not None:
        outcome = f"{outcome}: {call.error}"
    given = "" if call.arguments is None else shown(json_text(to_json(call.arguments)), 80)
    return Line("call", style, f"{call.tool}({given}) [{call.effect}] {outcome}")


def _waits(info: RunInfo, events: Sequence[Event], time: float) -> Iterator[Line]:
    asked = waits_for(events)
    if asked is None:
        return
    yield Line("waits", "bold yellow", asked.question)
    yield Line("since", "yellow", f"{moment(asked.time)}, {span(time - asked.time)} ago")
    if asked.expires is not None:
        left = asked.expires - time
        until = f"{span(left)} left" if left > 0 else "over: its token is refused"
        yield Line("expires", "yellow", f"{moment(asked.expires)}, {until}")
    if asked.call is not None:
        state = "in doubt" if asked.doubt else "not begun"
        yield Line("about", "yellow", f"the call {asked.call}, {state}")
        answers = "happened|rerun|abort"
        yield Line("answer", "yellow", f"triage runs resolve {info.run_id} {answers}")
    else:
        yield Line("answer", "yellow", "triage runs resume TOKEN module:agent approve|reject|…")


def _end(state: RunState, events: Sequence[Event]) -> Iterator[Line]:
    if state.result is not None:
        yield Line("result", "green", json_text(to_json(state.result)))
    if state.error is not None and state.status not in ("running", "suspended"):
        yield Line("ended by", "red", str(state.error))
    yield Line("used", "dim", _used(state.all_steps, state.usage))
    yield Line("at work", "dim", f"{active_seconds(events) if events else 0.0:.2f} s")


def _used(steps: int, usage: Usage) -> str:
    parts = [_counted(steps, "step")]
    if usage.calls:
        parts.append(_counted(usage.calls, "model call"))
    if usage.total_tokens:
        parts.append(_counted(usage.total_tokens, "token"))
    if usage.cost_usd is not None:
        parts.append(f"${usage.cost_usd:.4f}")
    return ", ".join(parts)
