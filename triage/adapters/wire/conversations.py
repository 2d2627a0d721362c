"""What an attempt's conversations tell: the calls that models ask for, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import unwrap
from itertools import count
from pathlib import Path
from sysconfig import get_paths
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from triage.adapters.calls import ModelCall
from triage.adapters.conversations import guidance_text, records_tools
from triage.adapters.tools import (
    UNKNOWN,
    CallRefused,
    Mistakes,
    Refusal,
    note_refused,
    refusal_of,
    tools_by_name,
)
from triage.core.capture import capture
from triage.core.failures import ErrorInfo
from triage.core.foreign import frames_of
from triage.core.manifest import schema_of
from triage.core.messages import neutral, reading, wires
from triage.core.steps import Step
from triage.core.taxonomy import names_a_change
from triage.engine.asked_calls import answered_by, answers
from triage.engine.call_keys import tally
from triage.engine.calls import Run
from triage.engine.event_loop import current_caller
from triage.engine.models import CUT
from triage.engine.run import Guidance
from triage.engine.tools import Tool
from triage.engine.undeclared import NOT_ATTEMPTED, SEEN, hold_back, open_changes

from .carrying import Carried, Carrying

if TYPE_CHECKING:
    from .requests import Tee

_LIBRARIES = (
    *(get_paths()[name] for name in ("purelib", "platlib", "stdlib")),
    str(Path(__file__).parents[2]),
)
"""Where code is that is nobody's agent: what is installed, and this package."""
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

    whole: each call in it has its result, and each result its call. name: tells it from others in the
    attempt, empty for the first one. carried: the turns of earlier attempts in it; None without any.
    """

    def __init__(self, messages: list[Any], name: str = "", carried: Carried | None = None) -> None:
        self.messages = messages
        self.name = name
        self.carried = carried
        self.known = 0
        self.whole = False


class Overheard:
    """What the requests of one attempt have told.

    open: streamed answers that are still being read. changes: those of earlier attempts that no tool has
    recorded, and that are not to be made again. mistakes: calls that do not fit, while they may still be
    made. last_error: what the agent's last model call raised, None once one has succeeded. ending: why its
    last answer does not count, where it was cut off or refused. cut: why the calls in it may not be whole.
    notes: what models are told beside the hint. switches: whether another model's name is written into
    requests. raises: whether a higher token limit for answers is. raised: limits of which that was told,
    each with its factor.
    """

    def __init__(self, run: Run) -> None:
        self.open: list[Tee] = []
        self.changes = open_changes(run.session) if run.replay is not None else []
        self.last_error: BaseException | None = None
        self.ending: ErrorInfo | None = None
        self.cut: ErrorInfo | None = None
        self.notes: tuple[str, ...] = ()
        self.switches = True
        self.raises = True
        self.raised: set[tuple[int, int]] = set()
        self._run = run
        self._carrying = Carrying(run) if run.replay is not None else None
        self._asked_for: list[neutral.Asked] = []
        self._calls: list[neutral.Asked] = []
        self._conversations: list[Conversation] = []
        self._tools: dict[str, Any] = {}
        self.mistakes = Mistakes()
        self._claimed: set[int] = set()
        # By the task or thread that asked, for its last request where that failed.
        self._failed: dict[int, tuple[ModelCall, str]] = {}

    def told(self, guidance: Guidance) -> str | None:
        """What models are told: the hint of the attempt, and the notes."""
        return "\n".join(filter(None, (guidance_text(guidance), *self.notes))) or None

    def begun(self, call: ModelCall) -> str | None:
        """A request begins: the key of the call that it is another try of, None for a call of its own.

        Clients repeat a request that failed, in the same task, before they ask anything else.
        """
        before, key = self._failed.pop(current_caller(), (None, None))
        same = before is not None and (before.name, before.key) == (call.name, call.key)
        return key if same else None

    def failed(self, call: ModelCall, key: str | None) -> None:
        """A request failed in a way for which a client makes it again. key: of its recorded call."""
        if key is not None:
            self._failed[current_caller()] = (call, key)

    def sent(
        self, wire: wires.ProviderWire, messages: Any, tools: Any, *, begins: str | None = ""
    ) -> Conversation:
        """Read a request before it is sent: results of earlier calls are steps.

        begins: the agent of whose own conversations it may begin one, as of `ModelRequest`; None: of none.
        """
        for tee in list(self.open):
            tee.left()
        if tools:
            self._tools.update(tools_by_name(reading.listed(tools)))
        if isinstance(messages, str):
            messages = [wire.user(messages)]
        elif not isinstance(messages, list):
            return Conversation([])
        going_on = self._going_on(wire, messages, begins)
        new = messages[going_on.known :]
        for result in [one for message in new for one in wire.read(message).results]:
            asked = self._asked(result, continued=going_on.known > 0)
            if asked is not None:
                self._calls.remove(asked)
                refusal = self.mistakes.take(asked.name, asked.arguments, asked.id or None)
                if refusal is None or refusal.kind != UNKNOWN or not records_tools(self._run):
                    self._record(asked, result)
                    continue
                # A framework whose tools are all recorded has told its model that there is none.
                told, id_ = neutral.text_of(result.output), asked.id or None
                note_refused(self._run, asked.name, asked.arguments, told, kind=UNKNOWN, id=id_)
        return going_on

    def answered(
        self, answer: neutral.Answer | None, error: Exception | None, *, brief: bool
    ) -> None:
        """Note how a call of the agent's model has ended. brief: an answer that is cut off is intended."""
        self.last_error = error
        if error is not None:
            return
        told = None if answer is None else neutral.ending_of(answer.ended)
        is_cut = told is not None and told.type_name == CUT
        if brief and is_cut:
            told, is_cut = None, False
        self.ending = None if answer is None or answer.calls else told
        self.cut = told if is_cut else None

    def asked(self, answer: neutral.Answer | None, *, brief: bool) -> None:
        """Note the calls that an answer asks for. brief: as of `answered`."""
        if answer is None:
            return
        known = {one.id for one in self._calls if one.id}
        new = [one for one in answer.calls if one.id not in known]
        self._calls += new
        ending = neutral.ending_of(answer.ended)
        cut = not brief and ending is not None and ending.type_name == CUT
        self.mistakes.note(_ALL, new, self._tools, cut=cut)
        self.hold(answer)
        self._asked_for += answer.calls

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

    def _refusal(self, asked: neutral.Asked, tool: Tool) -> Refusal | None:
        known = self.mistakes.take(asked.name, asked.arguments, asked.id or None)
        if known is not None or not tool.editable:
            return known
        # It has the names that its tool takes, as it was bound.
        schema = {**(schema_of(tool.function) or {}), "required": []}
        return refusal_of(asked, {tool.name: schema})

    def dismiss(self, id_: str, name: str) -> None:
        """A person has refused a call: what the model is told instead of a result is no step."""
        refused = self._asked(neutral.Result(id_, None, name), continued=True)
        if refused is not None:
            self._calls.remove(refused)

    def hold(self, answer: neutral.Answer) -> None:
        """Stop where an answer asks for a change that an earlier attempt has made, or may have."""
        asked = list(self._asked_for)
        for one in answer.calls if self.changes else ():
            asked.append(one)
            hold_back(self._run, self.changes, asked)

    def ended(self, error: BaseException | None = None) -> None:
        """The attempt has ended: what is still open is left, and calls without a result are noted.

        error: what its function raised.
        """
        for tee in list(self.open):
            tee.left()
        if error is not None:
            self._raised(error)
        self.mistakes.settle(self._run, but=self._may_have_run)

    def _may_have_run(self, asked: neutral.Asked, refusal: Refusal) -> bool:
        """Whether a tool that does not record itself may have changed something all the same."""
        recorded = self._run.session.recorded_tools
        return refusal.lenient and names_a_change(asked.name) and asked.name not in recorded

    def _going_on(
        self, wire: wires.ProviderWire, messages: list[Any], begins: str | None
    ) -> Conversation:
        """The conversation that a request goes on with, or a new one. begins: as of `sent`."""
        found, known = None, 0
        for one in self._conversations:
            common = _common(one.messages, messages)
            if common > known and (one.carried is None or common >= one.carried.at):
                found, known = one, common
        if found is None:
            carried = None
            if self._carrying is not None and begins is not None:
                carried = self._carrying.by(wire, messages, begins)
            found = Conversation(messages, self._name(carried), carried)
            self._conversations.append(found)
            return found
        found.whole = found.whole and known == len(found.messages)
        found.messages, found.known = messages, known
        return found

    def _name(self, carried: Carried | None) -> str:
        """The name of a new conversation: that of the one it goes on with, else one of its own."""
        if carried is not None:
            return carried.name
        taken = {one.name for one in self._conversations}
        numbers = (str(number) for number in count(len(taken) + 1))
        return "" if "" not in taken else next(one for one in numbers if one not in taken)

    def _asked(self, result: neutral.Result, *, continued: bool) -> neutral.Asked | None:
        """The call that a result answers; None for one of an earlier time."""
        if result.call:
            found = next((one for one in self._calls if one.id == result.call), None)
            if found is not None:
                return found
        if not continued:
            return None
        # A framework makes up ids where the model gives none.
        return next((one for one in self._calls if not one.id and one.name == result.name), None)

    def _raised(self, error: BaseException) -> None:
        """Record the call that an error came out of, where it says that the call took no effect.

        The traceback shows the call: it has a function of the tool's name, which no library has.
        """
        agent = getattr(unwrap(self._run.session.config.function), "__code__", None)
        codes = (frame.f_code for frame in frames_of(error))
        functions = {
            code.co_name
            for code in codes
            if code is not agent and not code.co_filename.startswith(_LIBRARIES)
        }
        open_ = [one for one in self._calls if one.name in functions]
        if len(open_) != 1:
            return
        info = capture(error, self._run.session.handled)
        if info.not_attempted:
            result = neutral.Result(open_[0].id, info.message, open_[0].name, failed=True)
            self._record(open_[0], result, **{NOT_ATTEMPTED: True})

    def _record(self, asked: neutral.Asked, result: neutral.Result, **about: Any) -> None:
        """Record what came of a call, unless it has recorded itself. about: metadata of the step."""
        steps = self._run.session.state.steps
        for at in range(self._run.first, len(steps)):
            if at not in self._claimed and _is_result(steps[at], asked):
                self._claimed.add(at)
                return
        about |= {"id": asked.id} if asked.id else {}
        self._run.record_step(
            Step(
                action="call",
                tool_called=asked.name or "?",
                tool_input=asked.arguments,
                tool_output=None if result.failed else result.output,
                error=neutral.text_of(result.output) if result.failed else None,
                metadata={**about, SEEN: True},
            )
        )


def _is_result(step: Step, asked: neutral.Asked) -> bool:
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
