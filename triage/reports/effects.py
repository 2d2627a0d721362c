"""Effects of a run that its compensators have not undone."""

from __future__ import annotations

from triage.core.quoting import as_json
from triage.core.redaction import redact
from triage.core.state import Call, Compensation, RunState
from triage.core.taxonomy import UNSAFE

_MAX_ARGUMENTS = 200


def not_undone(state: RunState) -> tuple[str, ...]:
    """Describe the effects that should have been undone and stay, newest first, each with the reason.

    Without an action with `compensate` and without a failed compensator, only calls in doubt.
    """
    last = state.history[-1].action if state.history else None
    failed = any(entry.tries and not entry.ran for entry in state.compensations)
    if not (failed or getattr(last, "compensate", False)):
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
    """Write how often a compensator was started: `1 try`, `2 tries`."""
    return "1 try" if entry.tries == 1 else f"{entry.tries} tries"
