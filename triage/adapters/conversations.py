"""Conversations as the journal shows them: the outcome of each call, and the turns of earlier attempts.

A conversation that broke off holds calls without results. Some of them completed, and only the message
with their result is missing; the journal decides what the model is told about each. After a Replan a
conversation may continue with the turns of earlier attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

from triage.core import events
from triage.core.actions import Replan, Rollback
from triage.core.failures import Attempt
from triage.core.messages.anthropic import ANTHROPIC
from triage.core.messages.chat import CHAT
from triage.core.messages.gemini import GEMINI
from triage.core.messages.neutral import LOST, Asked, Outcome, outcome_unknown
from triage.core.messages.responses import RESPONSES
from triage.core.messages.wires import Repaired, Wire
from triage.core.state import WITHIN, is_reused
from triage.core.steps import Step
from triage.core.taxonomy import Cause, FailureType
from triage.engine.asked_calls import answered_by, answers, asked_in
from triage.engine.call_keys import tally
from triage.engine.event_loop import CANCELLATIONS
from triage.engine.models import MODEL
from triage.engine.run import Guidance, Recorder, current
from triage.engine.undeclared import is_held

CONVERSATION = "conversation"
"""Key in the metadata of a model's step: its conversation, where an attempt can have several."""


_SEAM = "seam"
"""Key in what an attempt remembers: the name of the adapter whose tools all pass through a seam."""
_MODELS = "models"
"""Key in what an attempt remembers: whether its models do as well."""


def guidance_text(guidance: Guidance) -> str | None:
    """The hint and subgoal of an attempt's guidance as one text; None without either."""
    parts = [guidance.hint] if guidance.hint else []
    if guidance.subgoal:
        parts.append(f"Go on with this part of the work: {guidance.subgoal}")
    return "\n".join(parts) or None


def repaired(wire: Wire, messages: Iterable[Any]) -> Repaired:
    """Call `Wire.repair`; inside a run, close each completed call with its recorded result."""
    return wire.repair(messages, LOST, outcomes())


def outcomes() -> Callable[[Asked], Outcome]:
    """A function that tells the outcome of a call as the journal of the current run has it."""
    run = current.get()
    reading: list[_Reading] = []

    def outcome_of(asked: Asked) -> Outcome:
        if run is None:
            return outcome_unknown(asked)
        if not reading:  # most conversations are whole, and the journal need not be read
            reading.append(_Reading(run))
        return reading[0].of(asked)

    return outcome_of


# The usual forms of messages, for adapters of others ------------------------------------------------

read_chat, said_chat = CHAT.answer, CHAT.new_in
read_responses, said_responses = RESPONSES.answer, RESPONSES.new_in
read_anthropic, said_anthropic = ANTHROPIC.answer, ANTHROPIC.new_in
read_gemini, said_gemini = GEMINI.answer, GEMINI.new_in
hinted_chat, shrunk_chat = CHAT.hinted, CHAT.shrunk
hinted_responses, shrunk_responses = RESPONSES.hinted, RESPONSES.shrunk
hinted_anthropic, shrunk_anthropic = ANTHROPIC.hinted, ANTHROPIC.shrunk
hinted_gemini, shrunk_gemini = GEMINI.hinted, GEMINI.shrunk


def repair_chat(messages: Iterable[Any]) -> Repaired:
    """Chat messages of OpenAI's form in which every call has its result; see `Wire.repair`.

    Inside of a run a call that completed is closed with its result, as the journal has it; of any other the
    model is told that it was cut off. The other forms are repaired alike.
    """
    return repaired(CHAT, messages)


def repair_responses(items: Iterable[Any]) -> Repaired:
    """Input items of OpenAI's Responses API; see `repair_chat`."""
    return repaired(RESPONSES, items)


def repair_anthropic(messages: Iterable[Any]) -> Repaired:
    """Anthropic messages; see `repair_chat`."""
    return repaired(ANTHROPIC, messages)


def repair_gemini(contents: Iterable[Any]) -> Repaired:
    """Contents of Gemini's API; see `repair_chat`."""
    return repaired(GEMINI, contents)


# Outcomes of calls ----------------------------------------------------------------------------------


def is_cut_off(step: Step) -> bool:
    """Whether a call was stopped while it ran, so that its error does not tell what it did."""
    return step.exception_type in CANCELLATIONS


def passes_all(run: Recorder, adapter: str, *, models: bool) -> None:
    """Note that this attempt records every tool call that this adapter's model asks for.

    models: and all that its models are asked, so that nothing is recorded where it leaves.
    """
    tally(run).beside[_SEAM] = adapter
    tally(run).beside[_MODELS] = models


def adapter_of(run: Recorder) -> str | None:
    """The name of the adapter that this attempt runs under; None without one."""
    return None if run.tally is None else run.tally.beside.get(_SEAM)


def records_tools(run: Recorder) -> bool:
    """Whether this attempt runs under an adapter, which records each tool call of its framework."""
    return adapter_of(run) is not None


def records_models(run: Recorder) -> bool:
    """Whether this attempt runs under an adapter that records what its framework's models are asked."""
    return run.tally is not None and run.tally.beside.get(_MODELS) is True


def is_of_seam(run: Recorder, name: str) -> bool:
    """Whether a model's call of this name was recorded where the framework makes it."""
    return tally(run).beside.get(_SEAM) == name.partition(" ")[0]


class _Call:
    """A call that a model asked for. model: key of the model's own recorded call.

    inside: that call is part of a tool's. waits: its result has not come yet in the attempt being read.
    key: of its own recorded call.
    """

    def __init__(self, asked: Asked, model: str, *, inside: bool) -> None:
        self.asked = asked
        self.model = model
        self.inside = inside
        self.waits = True
        self.key: str | None = None
        self.outcome: Outcome | None = None


class _Reading:
    """The outcomes of all calls in a run's journal."""

    def __init__(self, run: Recorder) -> None:
        self._calls: list[_Call] = []
        self._running: dict[str, tuple[str, Any]] = {}
        self._recorded: set[str] = set()
        self._seam: str | None = tally(run).beside.get(_SEAM)
        for event in run.session.events:
            match event:
                case events.StepRecorded(step=step):
                    self._take(step)
                case events.ApprovalAsked(kind="call", subject=subject) if is_held(subject):
                    self._hold()
                case events.CallStarted(key=key, tool=tool, kind="tool" | "run" | ""):
                    self._recorded.add(tool)
                    self._running[key] = (tool, event.arguments)
                case events.CallFinished(key=key, step=None, replayed=False, outcome="done"):
                    self._set(key, Outcome("done", event.result))  # a person said so
                case events.CompensatorRan(key=key, error=None, begins=False):
                    self._set(key, Outcome("undone"))
                case _:
                    pass
        for tool, arguments in self._running.values():
            call = self._waiting(partial(answers, None, tool, arguments))
            if call is not None:
                call.waits, call.outcome = False, Outcome("cut_off")

    def of(self, asked: Asked) -> Outcome:
        """The outcome of a call."""
        call = next((one for one in reversed(self._calls) if _is_same(one.asked, asked)), None)
        if call is None:
            return outcome_unknown(asked)
        if call.outcome is not None:
            return call.outcome
        # A loop inside of a tool may call tools that no seam knows.
        of_seam = self._seam is not None and not call.inside
        return (
            Outcome("not_made")
            if of_seam or asked.name in self._recorded
            else outcome_unknown(asked)
        )

    def _hold(self) -> None:
        """Note that the last answer was never given on."""
        for call in self._calls:
            if call.model == self._calls[-1].model and call.waits:
                call.waits, call.outcome = False, Outcome("not_made")

    def _take(self, step: Step) -> None:
        metadata = step.metadata or {}
        key = metadata.get("call")
        if step.action == MODEL:
            for asked in asked_in(step):
                new = _Call(asked, str(key), inside=WITHIN in metadata)
                self._ask(new, again=is_reused(metadata))
            return
        if step.tool_called is None:
            return
        if key is not None:
            self._running.pop(key, None)
            self._recorded.add(step.tool_called)
        call = self._waiting(lambda asked: answered_by(step, asked))
        if call is None:
            return
        call.waits, call.key = False, key
        if step.error is None:
            call.outcome = Outcome("done", step.tool_output)
        elif is_cut_off(step):
            call.outcome = Outcome("cut_off")
        else:
            call.outcome = Outcome("failed", error=step.error)

    def _ask(self, new: _Call, *, again: bool) -> None:
        """Note that a model asks for a call. again: its answer was reused, so the call is the same one."""
        if again:
            for call in reversed(self._calls):
                if call.model == new.model and call.asked == new.asked:
                    call.waits = True
                    return
        self._calls.append(new)

    def _waiting(self, fits: Callable[[Asked], bool]) -> _Call | None:
        """The latest call that waits for a result; the first of several equal ones in a turn."""
        found: _Call | None = None
        for call in reversed(self._calls):
            if found is not None and call.model != found.model:
                break
            if call.waits and fits(call.asked):
                found = call
        return found

    def _set(self, key: str, outcome: Outcome) -> None:
        for call in reversed(self._calls):
            if call.key == key:
                call.outcome = outcome
                return


def _is_same(known: Asked, asked: Asked) -> bool:
    """Whether a conversation's call is this one. Journals of older versions have no ids."""
    if known.id:
        return known.id == asked.id and known.name == asked.name
    return known.name == asked.name and known.arguments == asked.arguments


class Turn(NamedTuple):
    """One turn of a conversation.

    kind: `model`, with the answer as `form.dump` gave it for `value`, or `tool`, with its result. name: the
    tool, or the owner of the model. id: the model's id of a tool call, or None. error: what the tool failed
    with, or None. arguments: the tool's. key: of the recorded call; None for one that never ran.
    conversation: which one it belongs to, where an attempt has several. said: what the model was told.
    calls, text: what it asked for, and its words where it asked for nothing.
    """

    kind: Literal["model", "tool"]
    name: str
    value: Any
    id: str | None = None
    error: str | None = None
    arguments: Any = None
    key: str | None = None
    conversation: str = ""
    said: Any = None
    calls: tuple[Asked, ...] = ()
    text: str = ""

    def answers(self, id_: str, name: str, arguments: Any) -> bool:
        """Whether this turn of a tool is the result of a call that a model asked for."""
        return answers(self.id, self.name, self.arguments, Asked(id_, name, arguments))


def carried(run: Recorder) -> tuple[Turn, ...]:
    """The turns of earlier attempts that a conversation of this one may begin with, after a Replan, and
    where changes that nothing has recorded would be made again otherwise.

    Report each turn that it does begin with by `use`.
    """
    state = run.session.state
    steps: list[tuple[int, Step]] = []
    seen: set[FailureType] = set()
    for past in state.history:
        action = past.action
        if past.number + 1 in state.carried:
            steps += [(past.number, step) for step in past.trajectory.steps]
        elif isinstance(action, Replan):
            steps = [] if _starts_fresh(past, seen) else steps + list(_steps_kept(past))
        elif isinstance(action, Rollback):
            steps = []  # its calls are given again one by one
        seen.add(past.failure_type)
    return tuple(_turns(run, steps)) if steps else ()


def continued(
    turns: Iterable[Turn],
    *,
    answer: Callable[[Turn], tuple[list[Any], Iterable[Asked]] | None],
    result: Callable[[Asked, Turn], Any],
    use: Callable[[Turn], object],
) -> list[Any]:
    """Turns of earlier attempts as a framework's messages, each result behind its call.

    answer: gives a model's turn as messages, and its calls that wait for a result; None for a turn of
    another conversation. result: gives a tool's turn as a message. use: called with each result used.
    """
    messages: list[Any] = []
    waiting: list[Asked] = []
    for turn in turns:
        if turn.kind == "model":
            found = answer(turn)
            if found is not None:
                messages += found[0]
                waiting = list(found[1])
            continue
        asked = next(
            (one for one in waiting if turn.answers(one.id, one.name, one.arguments)), None
        )
        if asked is not None:
            waiting.remove(asked)
            use(turn)
            messages.append(result(asked, turn))
    return messages


def use(run: Recorder, turn: Turn) -> None:
    """Note that a conversation begins with this turn: an equal call is another one."""
    if turn.kind == "tool" and turn.key is not None:
        tally(run).carry(run, turn.name, turn.key)


def _starts_fresh(past: Attempt, seen: Collection[FailureType]) -> bool:
    """Whether a fresh conversation is better. seen: the failure types of the attempts before."""
    diagnosis = past.diagnosis
    if diagnosis.cause == Cause.OUTPUT_CUT:
        return False  # the answer was too long, not what it answers
    if diagnosis.failure_type is not FailureType.EXTERNAL_FAULT and diagnosis.failure_type in seen:
        return True  # the conversation itself may be what leads there each time
    return diagnosis.failure_type is FailureType.CONTEXT_OVERFLOW


def _steps_kept(past: Attempt) -> Iterator[tuple[int, Step]]:
    """An attempt's steps; with a loop, those before it and the results of the turn it began with."""
    diagnosis = past.diagnosis
    is_loop = diagnosis.failure_type is FailureType.LOOP_DETECTED
    first = diagnosis.critical_step if is_loop else None
    waiting: list[Asked] = []
    for at, step in enumerate(past.trajectory.steps):
        is_before = first is None or at < first
        if step.action == MODEL and is_before:
            waiting = list(asked_in(step))
        asked = next((one for one in waiting if answered_by(step, one)), None)
        if asked is not None:
            waiting.remove(asked)
        if is_before or asked is not None:
            yield past.number, step


def _turns(run: Recorder, steps: list[tuple[int, Step]]) -> Iterator[Turn]:
    results = _results(run)
    for number, step in steps:
        metadata = step.metadata or {}
        key = metadata.get("call")
        if metadata.get(WITHIN) is not None:
            continue  # it is repeated only if the call that it is part of runs
        if is_cut_off(step):
            continue  # it has no result, and an equal call counts as the same one
        if step.action == MODEL and key is not None:
            value = results.get((number, key))
            if value is not None:
                conversation = metadata.get(CONVERSATION, "")
                name = key.rsplit(":", 2)[0]
                yield Turn(
                    "model",
                    name,
                    value,
                    key=key,
                    conversation=conversation,
                    said=step.tool_input,
                    calls=tuple(asked_in(step)),
                    text=step.llm_output or "",
                )
        elif step.tool_called is not None:
            yield Turn(
                "tool",
                step.tool_called,
                step.tool_output,
                metadata.get("id"),
                step.error,
                step.tool_input,
                key,
            )


def _results(run: Recorder) -> dict[tuple[int, str], Any]:
    """The result of each call, by attempt and key; a reused call has its recorded result."""
    latest: dict[str, Any] = {}
    found: dict[tuple[int, str], Any] = {}
    for event in run.session.events:
        if isinstance(event, events.CallFinished) and event.outcome == "done":
            if not event.replayed:
                latest[event.key] = event.result
            found[event.attempt, event.key] = latest.get(event.key)
    return found
