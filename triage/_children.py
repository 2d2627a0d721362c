"""Runs inside runs: the id of a child follows from its parent's, so that every attempt finds it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._recorder import Recorder
from ._serde import canonical, digest
from ._tally import tally
from .errors import UsageError


def child_id(
    parent: str, agent_name: str, task: Any, kwargs: Mapping[str, Any], occurrence: int
) -> str:
    """The id of a run inside another: 32 hexadecimal digits, the same for the same child.

    parent: the outer run's id. occurrence: how often this child has been started in the attempt, from
    1. Raises UsageError, naming the argument, where one has no exact JSON form.
    """
    return digest(parent, f"{_child(agent_name, task, kwargs)}:{occurrence}")


def next_child(run: Recorder, agent_name: str, task: Any, kwargs: Mapping[str, Any]) -> str | None:
    """The id of the child that this attempt starts now; counts it.

    None where an argument has no exact JSON form: such a child cannot be found again.
    """
    try:
        name = f"run:{_child(agent_name, task, kwargs)}"
    except UsageError:
        return None
    counted = tally(run)
    with run.session.lock:
        occurrence = counted.occurrence(name)
    return child_id(run.run_id, agent_name, task, kwargs, occurrence)


def _child(agent_name: str, task: Any, kwargs: Mapping[str, Any]) -> str:
    given = [f"{name}={canonical(value, name)}" for name, value in sorted(kwargs.items())]
    return "\0".join([agent_name, canonical(task, "task"), *given])
