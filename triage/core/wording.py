"""What pages and commands say of numbers, times, JSON values and actions."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any, assert_never

from .actions import Abort, Action, Escalate, Replan, Resume, Retry, Rollback, Suspend

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def counted(number: int, word: str) -> str:
    """A number of things: `1 step`, `2 steps`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def json_text(value: Any) -> str:
    """Text as it is, any other JSON value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def moment(seconds: float) -> str:
    """A time in seconds since the epoch, as UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "unknown"


def span(seconds: float) -> str:
    """How long something is, in the largest unit of which it has two: `119 s`, `2 min`, `47 h`."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = max(0, int(seconds))
    size, unit = next((entry for entry in _UNITS if whole >= 2 * entry[0]), _UNITS[-1])
    return f"{whole // size} {unit}"


def action_text(action: Action) -> str:
    """What is done after a failure, with what the next attempt is told."""
    match action:
        case Retry(delay=delay) | Replan(delay=delay):
            said = f"{action.kind} in {delay:.2f} s" if delay else action.kind
        case Rollback(checkpoint_id=checkpoint):
            said = f"rollback to {'the last good point' if checkpoint is None else checkpoint}"
        case Resume(subgoal=subgoal):
            said = f"resume from {subgoal or 'the first open subgoal'}"
        case Suspend(question=question):
            return f"suspend: {question}" if question else "suspend"
        case Escalate(reason=reason) | Abort(reason=reason):
            return f"{action.kind}: {reason}" if reason else action.kind
        case _:
            assert_never(action)
    return f"{said}, told: {action.hint}" if action.hint else said
