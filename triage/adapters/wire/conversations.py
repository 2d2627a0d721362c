"""What an attempt's conversations tell: the calls that models ask for, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from triage.adapters.tools import (
    CallRefused,
    Mistakes,
    Refusal,
    note_refused,
    refusal_of,
    tools_by_name,
)
from triage.core import Step, names_a_change
from triage.core.manifest import schema_of
from triage.core.messages.base import (
    Answer,
    Asked,
    ProviderWire,
    Result,
    ending_of,
    listed,
    text_of,
)
from triage.engine import CUT, SEEN, Run, Tool, answered_by, answers, tally

if TYPE_CHECKING:
    from .requests import Tee

_ALL = ""
"""Whose mistakes are kept together: on the wire nobody says which agent asks."""


def overheard(run: Run) -> Overheard:
    """What the requests of this attempt have told so far."""
    beside = tally(run).beside
    found = beside.get(SEEN)
    if not isinstance(found, Overheard):
        found = beside[SEEN] = Overheard(run)
        run.at_end = (*run.at_end, found.ended)
        run.before_calls = (*run.before_calls, found.check)
    return found


class Conversation:
    """The messages of a request. known: how many of them an earlier one had sent.

    whole: each call in it has its result, and each result its call.
    """

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages
        self.known = 0
        self.whole = False


class Overheard:
    """What the requests of one attempt have told.

    open: streamed answers that are still being read.
    """

    def __init__(self, run: Run) -> None:
        self.open: list[Tee] = []
        self._run = run
        self._calls: list[Asked] = []
        self._conversations: list[Conversation] = []
        self._tools: dict[str, Any] = {}
        self._mistakes = Mistakes()
        self._claimed: set[int] = set()

    def sent(self, wire: ProviderWire, messages: Any, tools: Any) -> Conversation:
        """Read a request before it is sent: results of earlier calls are steps."""
        for tee in list(self.open):
            tee.left()
        if tools:
            self._tools.update(tools_by_name(listed(tools)))
        if not isinstance(messages, list):
            return Conversation([])
        going_on = self._going_on(messages)
        new = messages[going_on.known :]
        for result in [one for message in new for one in wire.read(message).results]:
            asked = self._asked(result, continued=going_on.known > 0)
            if asked is not None:
                self._calls.remove(asked)
                self._mistakes.take(asked.name, asked.arguments, asked.id or None)
                self._record(asked, result)
        return going_on

    def answered(self, answer: Answer | None, _error: Exception | None) -> None:
        """Note the calls that an answer asks for."""
        if answer is None:
            return
        known = {one.id for one in self._calls if one.id}
        new = [one for one in answer.calls if one.id not in known]
        self._calls += new
        ending = ending_of(answer.ended)
        cut = ending is not None and ending.type_name == CUT
        self._mistakes.note(_ALL, new, self._tools, cut=cut)

    def check(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Raise CallRefused for a call that a model asked for, and that is not whole or does not fit."""
        given = tool.shown(arguments)
        asked = next((one for one in self._calls if answers(None, tool.name, given, one)), None)
        refusal = None if asked is None else self._refusal(asked, tool)
        if asked is None or refusal is None:
            return
        id_ = asked.id or None
        note_refused(self._run, asked.name, given, refusal.text, kind=refusal.kind, id=id_)
        raise CallRefused(refusal)

    def _refusal(self, asked: Asked, tool: Tool) -> Refusal | None:
        known = self._mistakes.take(asked.name, asked.arguments, asked.id or None)
        if known is not None or not tool.editable:
            return known
        # It has the names that its tool takes, as it was bound.
        schema = {**(schema_of(tool.function) or {}), "required": []}
        return refusal_of(asked, {tool.name: schema})

    def ended(self) -> None:
        """The attempt has ended: what is still open is left, and calls without a result are noted."""
        for tee in list(self.open):
            tee.left()
        self._mistakes.settle(self._run, but=self._may_have_run)

    def _may_have_run(self, asked: Asked, refusal: Refusal) -> bool:
        """Whether a tool that does not record itself may have changed something all the same."""
        recorded = self._run.session.recorded_tools
        return refusal.lenient and names_a_change(asked.name) and asked.name not in recorded

    def _going_on(self, messages: list[Any]) -> Conversation:
        """The conversation that a request goes on with, or a new one."""
        found, known = Conversation(messages), 0
        for one in self._conversations:
            count = _common(one.messages, messages)
            if count > known:
                found, known = one, count
        if found.messages is messages:
            self._conversations.append(found)
            return found
        found.whole = found.whole and known == len(found.messages)
        found.messages, found.known = messages, known
        return found

    def _asked(self, result: Result, *, continued: bool) -> Asked | None:
        """The call that a result answers; None for one of an earlier time."""
        if result.call:
            return next((one for one in self._calls if one.id == result.call), None)
        if not continued:
            return None
        return next((one for one in self._calls if not one.id and one.name == result.name), None)

    def _record(self, asked: Asked, result: Result) -> None:
        """Record what came of a call, unless it has recorded itself."""
        steps = self._run.session.state.steps
        for at in range(self._run.first, len(steps)):
            if at not in self._claimed and _is_result(steps[at], asked):
                self._claimed.add(at)
                return
        self._run.record_step(
            Step(
                action="call",
                tool_called=asked.name or "?",
                tool_input=asked.arguments,
                tool_output=None if result.failed else result.output,
                error=text_of(result.output) if result.failed else None,
                metadata={"id": asked.id, SEEN: True} if asked.id else {SEEN: True},
            )
        )


def _is_result(step: Step, asked: Asked) -> bool:
    """Whether a recorded step is that of a call. A server's name may stand before the tool's."""
    if answered_by(step, asked):
        return True
    server, _, own = (step.tool_called or "").rpartition(".")
    return bool(server) and answered_by(replace(step, tool_called=own), asked)


def _common(known: list[Any], messages: list[Any]) -> int:
    """How many messages two lists begin with alike."""
    if messages[: len(known)] == known:
        return len(known)
    count = 0
    for one, other in zip(known, messages, strict=False):
        if one != other:
            break
        count += 1
    return count
