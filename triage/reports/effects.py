"""The effects of a run that stay although they were to be undone."""

from __future__ import annotations

from triage.core.quoting import as_json
from triage.core.redaction import redact
from triage.core.state import Call, Compensation, RunState
from triage.core.taxonomy import UNSAFE

_MAX_ARGUMENTS = 200


def not_undone(state: RunState) -> tuple[str, ...]:
    """The effects that stay although they were to be undone, newest first, each with the reason.

    Where nothing was to be undone (no action said so, and no compensator has begun in vain), only calls
    that may have happened.
    """
    last = state.history[-1].action if state.history else None
    in_vain = any(entry.tries and not entry.ran for entry in state.compensations)
    if not (in_vain or getattr(last, "compensate", False)):
        return tuple(
            redact(f"{_called(call)} may have happened: its outcome is not known")
            for call in sorted(state.calls.values(), key=lambda call: -call.seq)
            if call.effect in UNSAFE and call.outcome == "in_doubt"
        )
    names = {effect.key: (effect.seq, effect.action, "") for effect in state.effects}
    for call in state.calls.values():
        if call.effect in UNSAFE and call.outcome == "done" and not call.undone:
            names[call.key] = (call.seq, _called(call), "")
        elif call.effect in UNSAFE and call.outcome in (None, "in_doubt"):
            names[call.key] = (call.seq, _called(call), "; its outcome is not known")
    waiting = {entry.key: entry for entry in state.compensations if not entry.ran}
    for key, entry in waiting.items():
        done = state.calls.get(key)
        names.setdefault(key, (entry.at, key if done is None else _called(done), ""))
    return tuple(
        redact(f"{name} stays: {_why(waiting.get(key))}{more}")
        for key, (_, name, more) in sorted(names.items(), key=lambda item: -item[1][0])
    )


def _called(call: Call) -> str:
    return f"{call.tool}({as_json(call.arguments, _MAX_ARGUMENTS)})"


def _why(entry: Compensation | None) -> str:
    if entry is None:
        return "it has no compensator"
    if entry.error is not None:
        error = f"{entry.error.type_name}: {entry.error.message}"
        return f"the compensator {entry.name} failed with {error} after {tried(entry)}"
    if entry.tries:
        return f"the compensator {entry.name} was cut off after {tried(entry)}"
    return f"the compensator {entry.name} did not run, or is not at hand in this process"


def tried(entry: Compensation) -> str:
    """How often a compensator was started, in words."""
    return "1 try" if entry.tries == 1 else f"{entry.tries} tries"
