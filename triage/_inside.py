"""What a living run has to know of the runs inside it, besides what its journal says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._serde import digest

if TYPE_CHECKING:
    from ._questions import Question
    from ._session import Session


class Inside:
    """Of the runs inside one, as far as only this process knows it.

    asked: the error by which one of them said that it waits for an answer, and what is asked. answers:
    those that were given to this run and are meant for one inside it, by the digest of the token of its
    question. left: those that were cut off, by id: results without a JSON form, and compensators.
    """

    __slots__ = ("answers", "asked", "left")

    def __init__(self) -> None:
        self.asked: tuple[BaseException, Question] | None = None
        self.answers: dict[str, Any] = {}
        self.left: dict[str, Session] = {}


def inside(session: Session) -> Inside:
    """That of a run, made when it is first asked for."""
    if session.inner is None:
        session.inner = Inside()
    return session.inner


def inner_id(session: Session, key: str, bound: dict[str, Any]) -> str:
    """The id of the run that a call is: the same until that run has ended, as the caller chose it."""
    known = session.state.calls.get(key)
    ended = 0 if known is None else known.ended
    chosen = bound.get("run_id")
    if chosen is not None:
        return f"{chosen}.{ended + 1}" if ended else str(chosen)
    return digest(session.run_id, f"{key}:{ended + 1}")
