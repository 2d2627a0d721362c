"""LangGraph: any compiled graph, and so each agent of `langchain.agents.create_agent`.

    graph = create_agent(model, tools, checkpointer=saver)
    agent = triage.wrap(graph, policy, effects={"charge": "once"})
    await agent.run("Pay the bill.", config={"configurable": {"thread_id": "7"}})

A graph with a checkpointer goes on where its thread stands: after a Retry only what had failed runs
again, a Rollback takes up an older checkpoint, a Replan begins before the run. One without starts over,
and its calls are answered from the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from .extras import missing

try:
    import langgraph  # noqa: F401 # pyright: ignore[reportUnusedImport] - the first of its imports
except ImportError as error:
    raise missing("langgraph", error) from error

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import Command, GraphOutput, StateSnapshot

from triage.core.errors import UsageError
from triage.core.events import StepRecorded
from triage.core.messages.neutral import Asked
from triage.core.messages.reading import content_text
from triage.core.steps import Step
from triage.core.taxonomy import Cause, FailureType
from triage.engine.call_keys import tally
from triage.engine.calls import Run
from triage.engine.models import MODEL

from .base import Seam, SoftFailure
from .conversations import guidance_text, outcomes
from .interrupts import answer_for, ask, settled
from .langchain import LangChainAdapter, Scope, entered, last_message

__all__ = ["LangGraphAdapter"]


RUN = "triage_run"
"""Key in the metadata of a checkpoint: the run that made it, which tells it from those of earlier runs on
the same thread."""
ATTEMPT = "triage_attempt"
"""Key beside it: the number of the attempt that made it, or of the one that attempt went on with."""


class Start(NamedTuple):
    """The call of an attempt's graph. held: ids of the tool calls whose results it begins with."""

    given: Any
    config: dict[str, Any]
    held: frozenset[str] = frozenset()

    def latest(self) -> dict[str, Any]:
        """The config of the thread's newest checkpoint."""
        place = self.config["configurable"]
        left = {
            name: place[name] for name in place if name not in ("checkpoint_id", "checkpoint_map")
        }
        return {**self.config, "configurable": left}


async def start_of(graph: Any, seam: Seam, given: Any, config: Any) -> Start:
    """Where this attempt begins: with its input, or at a checkpoint. given: the graph's input."""
    run = seam.run
    replay = run.replay
    config = dict(config or {})
    if has_saver(graph):
        config = _marked(graph, config, run)
        if replay is not None:
            # Without the checkpoint at which the first attempt began.
            place = {k: v for k, v in config["configurable"].items() if k != "checkpoint_id"}
            found = await _taken_up(graph, seam, given, {**config, "configurable": place})
            return Start(given, config) if found is None else found
    return Start(given, config)


async def _taken_up(graph: Any, seam: Seam, given: Any, config: dict[str, Any]) -> Start | None:
    """Where an attempt goes on in the graph's thread; None if the run has no checkpoint there."""
    run = seam.run
    assert run.replay is not None
    kind = run.replay.kind
    newest = await graph.aget_state(config, subgraphs=True)
    if not _is_of(newest, run):
        return None
    chosen = newest
    goes_on = run.replay.begun < run.number or kind == "crash"
    if goes_on and _attempt_of(newest) not in (None, run.replay.begun):
        # It was stopped before its first checkpoint, so it begins.
        goes_on, kind = False, _kind_of(run)
    dropped = [] if goes_on else _dropped(run, kind)
    # A task that has ended is no longer in `next`, although its step is not yet in a checkpoint.
    has_ended = not (newest.tasks or goes_on)
    if (kind == "replan" and not goes_on) or dropped or has_ended:
        line = [one async for one in _line(graph, config, newest, run)]
        if kind == "replan":
            # The checkpoint before the run, without the input of the failed plan.
            return Start(_with_turns(given, seam, line[-1], newest), _at(config, line[-1]))
        chosen = _before(dropped, line) if dropped else _last_asking(run, line)
    if "__start__" in chosen.next:
        return Start(_with_turns(given, seam, chosen, newest), _at(config, chosen))
    held = frozenset(_results_in(chosen))
    _count(run, held, chosen)
    # Named, a checkpoint has a subgraph begin anew; the newest one would go on inside of it.
    if chosen is not newest or any(map(_is_inside, _answers(dropped))):
        return Start(None, _at(config, chosen), held)
    answers = answer_for(seam, chosen.interrupts)
    return Start(None if answers is None else Command(resume=answers), config, held)


def has_saver(graph: Any) -> bool:
    """Whether a graph has a checkpointer."""
    return graph.checkpointer is not None and not isinstance(graph.checkpointer, bool)


def _marked(graph: Any, config: dict[str, Any], run: Run) -> dict[str, Any]:
    """The config with the run's id and a thread, which is the run's own unless one is named."""
    begun = run.number if run.replay is None else run.replay.begun
    bound = (graph.config or {}).get("configurable") or {}
    configurable = {"thread_id": run.run_id, **bound, **(config.get("configurable") or {})}
    metadata = {**(config.get("metadata") or {}), RUN: run.run_id, ATTEMPT: begun}
    return {**config, "configurable": configurable, "metadata": metadata}


def _at(config: dict[str, Any], snapshot: Any) -> dict[str, Any]:
    place = {**config["configurable"], **snapshot.config["configurable"]}
    return {**config, "configurable": place}


def _is_of(snapshot: Any, run: Run) -> bool:
    return bool((snapshot.metadata or {}).get(RUN) == run.run_id)


def _attempt_of(snapshot: Any) -> int | None:
    """The attempt that a checkpoint was made in; None for one of an older version."""
    found = (snapshot.metadata or {}).get(ATTEMPT)
    return found if isinstance(found, int) else None


def _kind_of(run: Run) -> str:
    """The kind of the action that began this attempt, or the one that it goes on with."""
    assert run.replay is not None
    history = run.session.state.history[: run.replay.begun - 1]
    return history[-1].action.kind if history and history[-1].action is not None else "retry"


async def _line(graph: Any, config: Any, newest: Any, run: Run) -> AsyncIterator[Any]:
    """The run's checkpoints, newest first, each followed by its parent."""
    snapshot = newest
    while _is_of(snapshot, run):
        yield snapshot
        if snapshot.parent_config is None:
            return
        snapshot = await graph.aget_state({**config, **snapshot.parent_config}, subgraphs=True)


# Which checkpoint -----------------------------------------------------------------------------------


def _last_asking(run: Run, line: list[Any]) -> Any:
    """For a graph that has ended: the newest checkpoint before its last model call.

    What came after that answer cannot improve it.
    """
    for step in reversed(_steps(run)):
        if step.action == MODEL:
            node = _place_of(step).partition("#")[0].partition("/")[0]
            return next((one for one in line if node in one.next), line[-1])
    return line[-1]


def _dropped(run: Run, kind: str) -> list[Step]:
    state = run.session.state
    replay = run.replay
    if replay is None or replay.begun < 2 or kind not in ("retry", "resume", "rollback"):
        return []
    if kind == "rollback":
        return list(state.history[replay.begun - 2].trajectory.steps[len(state.steps) :])
    at = state.returns.get(replay.begun, replay.reach.at)
    return [
        step
        for ledger in state.ledgers[:-1]
        for step, position in zip(ledger.steps, ledger.positions, strict=True)
        if position >= at
    ]


def _before(dropped: list[Step], line: list[Any]) -> Any:
    """The newest checkpoint without anything that was dropped.

    That is the first one where a dropped answer of a model has no known place in the graph. A call that
    failed has left nothing in a checkpoint. What was done in a subgraph is not in the checkpoint before
    the node that is the subgraph.
    """
    answers = _answers(dropped)
    if not all(map(_place_of, answers)):
        return line[-1]
    inside = Counter(_place_of(step) for step in answers if _is_inside(step))
    ids = {_of(step).get("id") for step in dropped if step.tool_called is not None}
    first = min(map(_number_of, map(_place_of, dropped)), default=_NOWHERE)
    for place, visits in inside.items():
        node = place.partition("/")[0]
        entered = [_step_of(one) for one in line if node in one.next][:visits]
        first = min([first, *(number + 1 for number in entered)])
    for one in line:
        late = _step_of(one) >= first
        if not late and ids.isdisjoint(_results_in(one)):
            return one
    return line[-1]


def _step_of(snapshot: Any) -> int:
    """The graph's step that made a checkpoint; -1 for the input."""
    return int((snapshot.metadata or {}).get("step", -1))


def _of(step: Step) -> Mapping[str, Any]:
    return step.metadata or {}


def _steps(run: Run) -> list[Step]:
    events = run.session.events
    return [event.step for event in events if isinstance(event, StepRecorded)]


def _place_of(step: Step) -> str:
    """Where in the graph a step was made, as `place` gives it; empty where that is not known."""
    metadata = step.metadata or {}
    if step.action == MODEL:
        name = str(metadata.get("call", "")).rsplit(":", 2)[0]
        return name.partition(" ")[2]
    found = metadata.get("id")
    return found if isinstance(found, str) and "#" in found else ""


def _answers(steps: Iterable[Step]) -> list[Step]:
    """The answers of models among steps."""
    return [step for step in steps if step.action == MODEL and step.error is None]


def _is_inside(step: Step) -> bool:
    """Whether a step was made in a subgraph."""
    return "/" in _place_of(step).partition("#")[0]


def _number_of(place: str) -> float:
    """The graph's step number of a place outside any subgraph; infinite where it is not known."""
    nodes, _, number = place.partition("#")
    number = number.partition(".")[0]
    return int(number) if number.isdigit() and "/" not in nodes else _NOWHERE


_NOWHERE = float("inf")


# What a checkpoint holds ----------------------------------------------------------------------------


def _results_in(snapshot: Any) -> set[str]:
    """The ids of the tool calls whose results a checkpoint holds, including pending writes and
    subgraphs.
    """
    messages = _messages_in(snapshot)
    return {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}


def _messages_in(snapshot: Any) -> Iterator[BaseMessage]:
    """The messages in a checkpoint, in its pending writes, and in those of subgraphs."""
    yield from _messages_of(snapshot.values)
    for task in snapshot.tasks:
        yield from _messages_of(task.result)
        if isinstance(task.state, StateSnapshot):
            yield from _messages_in(task.state)


def _messages_of(value: Any) -> Iterator[BaseMessage]:
    if isinstance(value, BaseMessage):
        yield value
    elif isinstance(value, Mapping):
        yield from _each(value.values())
    elif isinstance(value, list | tuple):
        yield from _each(cast("list[Any]", value))


def _each(values: Iterable[Any]) -> Iterator[BaseMessage]:
    for value in values:
        yield from _messages_of(value)


def _count(run: Run, held: frozenset[str], snapshot: Any) -> None:
    """Count the calls whose results the graph begins with as made: an equal call is another one."""
    counted = tally(run)
    reached = _step_of(snapshot)
    seen: set[str] = set()
    for step in _steps(run):
        metadata = step.metadata or {}
        key, called = metadata.get("call"), metadata.get("id")
        if step.tool_called is None or key is None or key in seen:
            continue
        if called not in held and _number_of(_place_of(step)) > reached:
            continue
        seen.add(key)
        counted.carry(run, step.tool_called, key)


# A conversation to go on with -----------------------------------------------------------------------


def _with_turns(given: Any, seam: Seam, before: Any, newest: Any) -> Any:
    """The input with the turns that a new plan continues from, as the graph's state has them.

    before: the checkpoint before the run. newest: where it has come to. A graph that holds its messages
    elsewhere is told of those turns where its requests leave.
    """
    messages = given.get("messages") if isinstance(given, Mapping) else None
    if not isinstance(messages, list):
        return given
    old = {message.id for message in _messages_of(before.values)}
    found = _messages_of([newest.values.get("messages"), *(task.result for task in newest.tasks)])
    turns = _turns(seam, [message for message in found if message.id not in old])
    return {**given, "messages": [*messages, *turns]} if turns else given


def _turns(seam: Seam, messages: list[BaseMessage]) -> list[BaseMessage]:
    """The model's turns that are carried over, each of its calls with its result."""
    carried = [turn for turn in seam.carried if turn.kind == "model"]
    calls = [call for turn in carried for call in turn.calls]
    words = {turn.text for turn in carried if not turn.calls}
    results = {one.tool_call_id: one for one in messages if isinstance(one, ToolMessage)}
    found: list[BaseMessage] = []
    for message in messages:
        if not isinstance(message, AIMessage):
            continue
        if message.tool_calls and all(_is_among(calls, call) for call in message.tool_calls):
            found += [message, *(_result(call, results) for call in message.tool_calls)]
        elif not message.tool_calls and content_text(message.content) in words:
            found.append(message)
    told = {one.tool_call_id for one in found if isinstance(one, ToolMessage)}
    for turn in seam.carried:
        if turn.kind == "tool" and turn.id in told:
            seam.use(turn)
    is_answered = bool(found) and not isinstance(found[-1], ToolMessage)
    # A final answer is asked for anew, unless something is said to it.
    return found[:-1] if is_answered and guidance_text(seam.run.told) is None else found


def _is_among(calls: Iterable[Asked], call: Mapping[str, Any]) -> bool:
    """Whether a call in the state is one of these, some of which their provider gives no id."""
    same = {call["id"], ""}
    equal = (one for one in calls if one.id in same and one.name == call["name"])
    return any(one.id or one.arguments == call["args"] for one in equal)


def _result(call: Mapping[str, Any], results: Mapping[str, ToolMessage]) -> ToolMessage:
    """What came of a call: the result in the state, else as the journal has it."""
    found = results.get(call["id"])
    if found is not None:
        return found
    told, failed = outcomes()(Asked(call["id"], call["name"], call["args"])).told()
    status: Any = "error" if failed else "success"
    return ToolMessage(told, tool_call_id=call["id"], name=call["name"], status=status)


_INTERRUPTS = "__interrupt__"


class LangGraphAdapter(LangChainAdapter):
    """Run a compiled graph: `run(input, config=…, **options)` is its `ainvoke`.

    For a graph with `messages`, a text becomes the user's message. A graph with a checkpointer whose config
    names no thread gets one named by the run's id. An interrupt suspends the run, and
    `Agent.resume(token, happened(value))` passes the value to the graph; `approve()` passes True, or
    approves everything that a HumanInTheLoopMiddleware asks for.

    on_chunk: called with each piece that `stream_mode` names ("updates", "messages", "custom", …), as
    `(mode, piece)`, while the graph runs; it may be async. With `subgraphs=True` it is called as
    `(namespace, mode, piece)`.
    """

    name = "langgraph"
    _tools: frozenset[str] | None = None

    async def attempt(
        self,
        seam: Seam,
        task: Any,
        *,
        config: Any = None,
        on_chunk: Callable[[str, Any], Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run the graph once, from its thread's checkpoint or from the beginning."""
        if on_chunk is None and options.get("stream_mode", "values") != "values":
            raise UsageError(
                "stream_mode chooses the pieces that on_chunk is told: give on_chunk=… with it; the "
                "result is the graph's last state"
            )
        is_text = isinstance(task, str) and "messages" in self.target.channels
        given = {"messages": [HumanMessage(task)]} if is_text else task
        start = await start_of(self.target, seam, given, config)
        scope = Scope(seam, start.held)
        while True:
            with entered(scope):
                if on_chunk is None:
                    result = await self.target.ainvoke(start.given, start.config, **options)
                else:
                    result = await _streamed(self.target, start, on_chunk, {**options})
            waits = _interrupts_in(result)
            answers = settled(seam, waits) if waits and has_saver(self.target) else None
            if answers is None:
                break
            start = Start(Command(resume=answers), start.latest(), start.held)
        if waits:
            if not has_saver(self.target):
                raise UsageError(
                    "the graph waits for an answer and keeps nothing to go on from: compile it with a "
                    "checkpointer, or create the agent with checkpointer=…"
                )
            ask(seam, waits)
        left = () if scope.forced else self._left_in(_state_of(result))
        if left and not await self._stands(start, options):
            raise SoftFailure(
                f"it ended before these calls were made: {', '.join(left)}",
                failure_type=FailureType.PLAN_INCOMPLETE,
                cause=Cause.INCOMPLETE,
            )
        return result

    def result_type(self) -> Any:
        return getattr(getattr(self.target, "builder", None), "output_schema", None)

    def answer(self, result: Any) -> Any:
        return super().answer(_state_of(result))

    def said(self, result: Any) -> Any:
        return super().said(_state_of(result))

    def soft_failure(self, result: Any) -> BaseException | None:
        return super().soft_failure(_state_of(result))

    def _left_in(self, result: Any) -> list[str]:
        """The tools that the last message still asks for, if the graph has them."""
        message = last_message(result)
        names = (
            [call["name"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
        )
        if self._tools is None:
            self._tools = frozenset(self.tools() or ())
        return names if not self._tools or self._tools.intersection(names) else []

    async def _stands(self, start: Start, options: Mapping[str, Any]) -> bool:
        """Whether the graph paused at a point where its user makes it stop."""
        told = ("interrupt_before", "interrupt_after")
        graph = self.target
        stops = any(options.get(name) or getattr(graph, f"{name}_nodes", None) for name in told)
        if not stops:
            return False
        return not has_saver(graph) or bool((await graph.aget_state(start.config)).next)


def _state_of(result: Any) -> Any:
    """What a graph returned, without the container of `version="v2"`."""
    return result.value if isinstance(result, GraphOutput) else result


def _interrupts_in(result: Any) -> Sequence[Any]:
    if isinstance(result, GraphOutput):
        return result.interrupts
    return result.get(_INTERRUPTS, ()) if isinstance(result, Mapping) else ()


async def _streamed(
    graph: Any, start: Start, on_chunk: Callable[..., Any], options: dict[str, Any]
) -> Any:
    """The result of `ainvoke`, passing each streamed piece to `on_chunk`."""
    wanted = options.pop("stream_mode", "updates")
    modes = [wanted] if isinstance(wanted, str) else list(wanted)
    asked = sorted({*modes, "updates", "values"})
    inside = options.get("subgraphs", False)
    result: Any = None
    interrupts: dict[str, Any] = {}
    stream = graph.astream(start.given, start.config, stream_mode=asked, **options)
    async for part in stream:
        # With `version="v2"` a dict; else a tuple, without the place where that is never a subgraph.
        named = (part["ns"], part["type"], part["data"]) if isinstance(part, dict) else part
        place, mode, piece = named if len(named) > 2 else ((), *named)
        if not place and mode == "values":
            result = piece
        elif not place and mode == "updates" and isinstance(piece, dict):
            interrupts |= {one.id: one for one in piece.get(_INTERRUPTS, ())}
        if mode in modes:
            told = on_chunk(place, mode, piece) if inside else on_chunk(mode, piece)
            if told is not None and hasattr(told, "__await__"):
                await told
    waits = tuple(interrupts.values())
    if options.get("version") == "v2":
        return GraphOutput(value=result, interrupts=waits)
    return {**(result or {}), _INTERRUPTS: list(waits)} if waits else result
