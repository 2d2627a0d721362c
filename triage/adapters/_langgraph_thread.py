"""Where a graph begins an attempt: with its input, or at a checkpoint of its thread.

The checkpoints of a run carry its id, so that they are told from those of runs before it on the same
thread. Recorded calls whose results a checkpoint holds count as made: the next call of that kind is
another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

from triage._run import Run
from triage._tally import tally
from triage.events import StepRecorded
from triage.steps import Step

from ._langchain_messages import message_of, repair, result_form
from ._langgraph_interrupts import answer_for
from ._recording import MODEL
from .base import Seam, Turn

RUN = "triage_run"
"""In the metadata of a checkpoint: the run that made it."""


class Start(NamedTuple):
    """What an attempt's graph is called with. held: ids of the tool calls whose results it has."""

    given: Any
    config: dict[str, Any]
    held: frozenset[str] = frozenset()


async def start_of(graph: Any, seam: Seam, given: Any, config: Any) -> Start:
    """Where this attempt begins. given: the input of a graph that begins at its beginning."""
    run = seam.run
    replay = run.replay
    config = dict(config or {})
    if has_saver(graph):
        config = _marked(graph, config, run.run_id)
        if replay is not None:
            found = await _taken_up(graph, seam, given, _latest(config))
            return Start(given, config) if found is None else found
    elif replay is not None and replay.kind == "replan":
        given = _with_turns(given, seam)
    return Start(given, config)


async def _taken_up(graph: Any, seam: Seam, given: Any, config: dict[str, Any]) -> Start | None:
    """Where an attempt goes on in the graph's thread; None where the run has left nothing there."""
    run = seam.run
    assert run.replay is not None
    kind = run.replay.kind
    newest = await graph.aget_state(config)
    if not _is_of(newest, run):
        return None
    chosen = newest
    if kind in ("replan", "rollback") or not newest.next:
        line = [one async for one in _line(graph, config, newest, run)]
        if kind == "replan":
            # Before the run: the input of the plan that failed is not in it.
            return Start(_with_turns(given, seam), _at(config, line[-1]))
        chosen = _before(run, line) if kind == "rollback" else _last_asking(run, line)
    if "__start__" in chosen.next:
        return Start(given, _at(config, chosen))
    whole = await graph.aget_state(_at(config, chosen), subgraphs=True)
    held = frozenset(_results_in(whole))
    _count(run, held, whole)
    if chosen is not newest:
        return Start(None, _at(config, chosen), held)
    answers = answer_for(run, whole.interrupts)
    return Start(None if answers is None else Command(resume=answers), config, held)


def has_saver(graph: Any) -> bool:
    """Whether a graph keeps checkpoints of its own."""
    return graph.checkpointer is not None and not isinstance(graph.checkpointer, bool)


def _marked(graph: Any, config: dict[str, Any], run_id: str) -> dict[str, Any]:
    """The config with the run's mark, and with a thread: where none is named, one of the run's own."""
    bound = (graph.config or {}).get("configurable") or {}
    configurable = {"thread_id": run_id, **bound, **(config.get("configurable") or {})}
    metadata = {**(config.get("metadata") or {}), RUN: run_id}
    return {**config, "configurable": configurable, "metadata": metadata}


def _at(config: dict[str, Any], snapshot: Any) -> dict[str, Any]:
    place = {**config["configurable"], **snapshot.config["configurable"]}
    return {**config, "configurable": place}


def _latest(config: dict[str, Any]) -> dict[str, Any]:
    """The config without the checkpoint that the first attempt began at."""
    place = {key: value for key, value in config["configurable"].items() if key != "checkpoint_id"}
    return {**config, "configurable": place}


def _is_of(snapshot: Any, run: Run) -> bool:
    return bool((snapshot.metadata or {}).get(RUN) == run.run_id)


async def _line(graph: Any, config: Any, newest: Any, run: Run) -> AsyncIterator[Any]:
    """The run's checkpoints from the newest to the first, each one's parent after it."""
    snapshot = newest
    while _is_of(snapshot, run):
        yield snapshot
        if snapshot.parent_config is None:
            return
        snapshot = await graph.aget_state({**config, **snapshot.parent_config})


# Which checkpoint -----------------------------------------------------------------------------------


def _last_asking(run: Run, line: list[Any]) -> Any:
    """Of a graph that has ended: the newest checkpoint before a model was asked last.

    What came after that answer cannot make it a better one.
    """
    for step in reversed(_steps(run)):
        if step.action == MODEL:
            node = _place_of(step).partition("#")[0].partition("/")[0]
            return next((one for one in line if node in one.next), line[-1])
    return line[-1]


def _before(run: Run, line: list[Any]) -> Any:
    """The newest checkpoint that holds nothing of what a rollback has dropped."""
    kept = len(run.session.state.steps)
    past = run.session.state.history[-1].trajectory.steps
    dropped = past[kept:]
    ids = {(step.metadata or {}).get("id") for step in dropped if step.tool_called is not None}
    first = min(map(_number_of, map(_place_of, dropped)), default=None)
    for one in line:
        late = first is not None and (one.metadata or {}).get("step", 0) >= first
        if not late and ids.isdisjoint(_results_in(one)):
            return one
    return line[-1]


def _steps(run: Run) -> list[Step]:
    events = run.session.events
    return [event.step for event in events if isinstance(event, StepRecorded)]


def _place_of(step: Step) -> str:
    """Where in the graph a step was made, as `_langchain_scope.place` says it; empty: not known."""
    metadata = step.metadata or {}
    if step.action == MODEL:
        name = str(metadata.get("call", "")).rsplit(":", 2)[0]
        return name.partition(" ")[2]
    found = metadata.get("id")
    return found if isinstance(found, str) and "#" in found else ""


def _number_of(place: str) -> float:
    """The graph's own step of a place that is not inside of a subgraph; endless where it is not known."""
    nodes, _, number = place.partition("#")
    number = number.partition(".")[0]
    return int(number) if number.isdigit() and "/" not in nodes else float("inf")


# What a checkpoint holds ----------------------------------------------------------------------------


def _results_in(snapshot: Any) -> Iterator[str]:
    """The ids of the tool calls whose results a checkpoint holds, those of what ran beside what failed
    and of subgraphs, too.
    """
    yield from _ids_in(snapshot.values)
    for task in snapshot.tasks:
        yield from _ids_in(task.result)
        if task.state is not None and hasattr(task.state, "values"):
            yield from _results_in(task.state)


def _ids_in(value: Any) -> Iterator[str]:
    if isinstance(value, ToolMessage):
        yield value.tool_call_id
    elif isinstance(value, BaseMessage | str):
        return
    elif isinstance(value, Mapping):
        yield from _each(value.values())
    elif isinstance(value, list | tuple):
        yield from _each(cast("list[Any]", value))


def _each(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        yield from _ids_in(value)


def _count(run: Run, held: frozenset[str], snapshot: Any) -> None:
    """Calls whose results the graph begins with are not come to again."""
    counted = tally(run)
    reached = (snapshot.metadata or {}).get("step", -1)
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


def _with_turns(given: Any, seam: Seam) -> Any:
    """The input with the turns that a new plan goes on from, where its messages are known."""
    messages = given.get("messages") if isinstance(given, Mapping) else None
    if not isinstance(messages, list):
        return given
    turns = list(_messages(seam.carried))
    return {**given, "messages": [*messages, *repair(turns)]} if turns else given


def _messages(turns: Iterable[Turn]) -> Iterator[BaseMessage]:
    asked: dict[str, str] = {}
    for turn in turns:
        if turn.kind == "model":
            place = turn.name.partition(" ")[2]
            if "/" in place.partition("#")[0]:
                continue  # a conversation of its own, inside of a subgraph
            message = message_of(turn.value[0])
            if not message.tool_calls and not message.content:
                continue
            asked = {call["id"] or "": call["name"] for call in message.tool_calls}
            yield message
        else:
            call = _call_of(turn, asked)
            if call is not None:
                del asked[call]
                yield _result(turn, call)


def _call_of(turn: Turn, asked: dict[str, str]) -> str | None:
    """The id of the call that a tool's turn answers; None: of none in this conversation."""
    if turn.id is not None:
        return turn.id if turn.id in asked else None
    return next((call for call, name in asked.items() if name == turn.name), None)


def _result(turn: Turn, call: str) -> ToolMessage:
    if turn.error is not None:
        return ToolMessage(turn.error, tool_call_id=call, name=turn.name, status="error")
    found = result_form(turn.name, call).load(turn.value)
    return found if isinstance(found, ToolMessage) else ToolMessage(str(found), tool_call_id=call)
