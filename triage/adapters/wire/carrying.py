"""Turns of earlier attempts with which the conversations of an attempt go on, in a provider's form."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from triage.adapters import conversations
from triage.core.messages.neutral import Asked
from triage.core.messages.wires import ProviderWire
from triage.engine.call_keys import says_the_same
from triage.engine.calls import Run
from triage.engine.undeclared import goes_on

from .bodies import response_in

_NEXT = "Go on."
"""Stands between two answers of a model that follow each other."""


class Carried(NamedTuple):
    """Turns that a conversation goes on with. name: its name in earlier attempts.

    at: how many messages of the client's own stand before them.
    """

    name: str
    at: int
    turns: list[Any]

    def within(self, messages: list[Any]) -> list[Any]:
        """The client's messages with these turns in their place."""
        return [*messages[: self.at], *self.turns, *messages[self.at :]]


class Carrying:
    """What an attempt's conversations go on with. Each of the earlier ones is gone on with once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # A function that may keep other state than its conversation begins a new one.
        goes_on_here = (
            run.session.state.carried or goes_on(run.session) or conversations.records_tools(run)
        )
        turns = [
            one
            for one in (conversations.carried(run) if goes_on_here else ())
            if one.kind == "tool" or not conversations.is_of_seam(run, one.name)
        ]
        names = dict.fromkeys(one.conversation for one in turns if one.kind == "model")
        self._waiting = {
            name: [one for one in turns if one.kind == "tool" or one.conversation == name]
            for name in names
        }

    def by(self, wire: ProviderWire, messages: list[Any], who: str) -> Carried | None:
        """What a conversation that begins with these messages goes on with; None for nothing.

        It is the agent's that began with the same words, else its next one: what a prompt says may change.
        One whose calls stand in the messages is gone on with by the client itself. who: the agent, as of
        `ModelRequest`.
        """
        waiting = {
            name: turns
            for name, turns in self._waiting.items()
            if _calls(turns) and _owner(turns) == who.partition("#")[0]
        }
        held = [call for message in messages for call in wire.read(message).calls]
        own = next((name for name, turns in waiting.items() if _holds(held, turns)), None)
        if own is not None:
            del self._waiting[own]
            return None
        said = wire.new_in(messages)
        same = [name for name, turns in waiting.items() if says_the_same(_said(turns), said, ())]
        name = next(iter([*same, *waiting]), None)
        if name is None:
            return None
        made = self._messages(wire, self._waiting.pop(name))
        return Carried(name, len(messages), made) if made else None

    def _messages(self, wire: ProviderWire, turns: list[conversations.Turn]) -> list[Any]:
        def answer(turn: conversations.Turn) -> tuple[list[Any], Iterable[Asked]] | None:
            response = response_in(wire, turn.value)
            return None if response is None else (wire.turn(response), wire.answer(response).calls)

        def result(_asked: Asked, _turn: conversations.Turn) -> None:
            return None

        found = conversations.continued(
            turns, answer=answer, result=result, use=partial(conversations.use, self._run)
        )
        answers = [one for one in found if one is not None]
        made: list[Any] = []
        for message in conversations.repaired(
            wire, answers
        ).messages:  # which gives each call its result
            if made and {wire.read(one).role for one in (made[-1], message)} == {"model"}:
                made.append(wire.user(_NEXT))
            made.append(message)
        is_answered = bool(made) and wire.read(made[-1]).role == "model"
        # A final answer is asked for anew, unless something is said to it.
        return (
            made[:-1]
            if is_answered and conversations.guidance_text(self._run.guidance) is None
            else made
        )


def _calls(turns: list[conversations.Turn]) -> list[Asked]:
    """The calls that the model of a conversation has asked for."""
    return [call for turn in turns for call in turn.calls]


def _holds(held: list[Asked], turns: list[conversations.Turn]) -> bool:
    """Whether calls of a conversation are among those that a client holds."""
    ids = {call.id for call in held if call.id}
    return any(call.id in ids if call.id else call in held for call in _calls(turns))


def _owner(turns: list[conversations.Turn]) -> str:
    """The agent that held a conversation, as of `ModelRequest`, without what tells its calls apart."""
    name = next(turn.name for turn in turns if turn.kind == "model")
    return name.partition(" ")[2].partition("#")[0]


def _said(turns: list[conversations.Turn]) -> Any:
    """What a conversation began with."""
    return next(turn.said for turn in turns if turn.kind == "model")
