"""What a living run has to know of the runs inside it, besides what its journal says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
