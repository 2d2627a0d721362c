"""What a person answers a suspended run, beside an action: `approve`, `reject`, `edit` and the like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .actions import Action, Retry, optional_text


@dataclass(frozen=True)
class Happened:
    """Answer to "did this call happen?": yes, with this result, which the call then returns."""

    result: Any = None


@dataclass(frozen=True)
class Rerun:
    """Answer to "may this call run?": yes, once."""


def happened(result: Any = None) -> Happened:
    """The call in doubt has happened, with this result. For `Agent.resume`."""
    return Happened(result)


def rerun() -> Rerun:
    """The call in doubt has not happened, or may happen again: run it. For `Agent.resume`."""
    return Rerun()


@dataclass(frozen=True)
class Approved:
    """Answer to a question: yes, go on."""


@dataclass(frozen=True)
class Rejected:
    """Answer to a question: no. reason: told on; None tells none."""

    reason: str | None = None

    def __post_init__(self) -> None:
        optional_text(self, "reason")


@dataclass(frozen=True)
class Edited:
    """Answer to a question: go on with this. payload: keyword arguments for the next attempt."""

    payload: Mapping[str, Any]

    def __post_init__(self) -> None:
        Retry(inject=self.payload)  # the same is asked of both


def approve() -> Approved:
    """Go on: retry, or make the call that was asked about. For `Agent.resume`."""
    return Approved()


def reject(reason: str | None = None) -> Rejected:
    """Do not go on: end the run, or let the agent find another way than the call asked about."""
    return Rejected(reason)


def edit(payload: Mapping[str, Any]) -> Edited:
    """Go on with other input: keyword arguments for the next attempt. For `Agent.resume`."""
    return Edited(payload)


Reply: TypeAlias = Action | Happened | Rerun | Approved | Rejected | Edited
"""What `Agent.resume` takes."""
