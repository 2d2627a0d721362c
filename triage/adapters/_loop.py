"""A conversation with a model that may call tools: the loop that everybody writes, once."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import anyio

from triage._manifest import schema_of
from triage._options import check_count, misuse
from triage._recorder import current
from triage._run import Run
from triage._tool import TOOL_ATTRIBUTE, Tool
from triage.classifiers._arguments import check
from triage.steps import Step
from triage.traces._talk import ending_of

from ._carried import Turn, carried
from ._forms import Answer, Asked
from ._repair import Repaired
from .base import cut_short

NEAR = 20
"""Tools that are named to a model that asked for one that does not exist."""


class Conversation(NamedTuple):
    """How a conversation ended. text: the model's last words. messages: all, in the provider's form."""

    text: str
    messages: list[Any]


class Result(NamedTuple):
    """What a tool gave. id: of the call that asked for it."""

    id: str
    text: str
    failed: bool = False


class Dialect(NamedTuple):
    """How a provider writes a conversation down."""

    name: str
    answer: Callable[[Any], tuple[Answer, list[Any]]]
    turn: Callable[[Any], list[Any]]
    results: Callable[[list[Result]], list[Any]]
    definition: Callable[[Callable[..., Any]], dict[str, Any]]
    repair: Callable[[Iterable[Any]], Repaired]


async def converse(
    dialect: Dialect,
    ask: Callable[[list[Any], list[Any]], Awaitable[Any]],
    messages: list[Any],
    tools: Iterable[Callable[..., Any]],
    turns: int,
) -> Conversation:
    """The loop of `run_tools`. ask: sends the messages and the tools' definitions."""
    check_count("run_tools(turns=…)", turns, 1, "each asks the model once")
    known = _by_name(tools)
    definitions = [dialect.definition(tool) for tool in known.values()]
    run = current.get()
    if isinstance(run, Run):
        messages = [*messages, *_before(dialect, carried(run))]
    for _ in range(turns):
        messages = dialect.repair(messages).messages
        answer, turn = dialect.answer(await ask(messages, definitions))
        messages = [*messages, *turn]
        if not answer.calls:
            ending = ending_of(answer.ended)
            if ending is not None:
                raise cut_short(ending)
            return Conversation(answer.text, messages)
        messages += dialect.results(await _side_by_side(answer.calls, known))
    raise RuntimeError(f"no answer after {turns} turns")


def _by_name(tools: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    known: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        if not callable(tool):
            raise misuse("run_tools(tools=…) item", tool, "a function", "best a @triage.tool")
        known[name_of(tool)] = tool
    return known


def name_of(tool: Callable[..., Any]) -> str:
    """A tool's name, as the model and the journal know it."""
    declared = getattr(tool, TOOL_ATTRIBUTE, None)
    return declared.name if isinstance(declared, Tool) else getattr(tool, "__name__", "tool")


def _before(dialect: Dialect, turns: Iterable[Turn]) -> list[Any]:
    """Turns of an earlier attempt as messages; what one tool gave goes to its call by order."""
    messages: list[Any] = []
    waiting: list[Asked] = []
    for turn in turns:
        if turn.kind == "model":
            messages += dialect.turn(turn.value)
            waiting = list(dialect.answer(turn.value)[0].calls)
            continue
        asked = next((one for one in waiting if _is(one, turn)), None)
        if asked is not None:
            waiting.remove(asked)
            text = turn.error if turn.error is not None else _text(turn.value)
            messages += dialect.results([Result(asked.id, text, turn.error is not None)])
    return messages


def _is(asked: Asked, turn: Turn) -> bool:
    return asked.id == turn.id if turn.id else asked.name == turn.name


async def _side_by_side(
    calls: tuple[Asked, ...], known: dict[str, Callable[..., Any]]
) -> list[Result]:
    """All that was asked for in one turn. The first error, in the order of the calls, is raised."""
    if len(calls) == 1:
        return [await _result(calls[0], known)]
    results: list[Result | Exception | None] = [None] * len(calls)

    async def one(at: int) -> None:
        try:
            results[at] = await _result(calls[at], known)
        except Exception as error:  # noqa: BLE001 - raised below, when all have ended
            results[at] = error

    async with anyio.create_task_group() as group:
        for at in range(len(calls)):
            group.start_soon(one, at)
    found: list[Result] = []
    for result in results:
        if isinstance(result, Exception):
            raise result
        assert result is not None
        found.append(result)
    return found


async def _result(asked: Asked, known: dict[str, Callable[..., Any]]) -> Result:
    tool = known.get(asked.name)
    problem: str | None
    if tool is None:
        names = ", ".join(list(known)[:NEAR]) or "none"
        problem, kind = f"there is no tool {asked.name!r}; the tools are: {names}", "UnknownTool"
    else:
        problem, kind = _misfit(asked, tool), "InvalidArguments"
    if tool is None or problem is not None:
        _note(asked, problem or "", kind)
        return Result(asked.id, problem or "", failed=True)
    value = await _called(tool, asked)
    return Result(asked.id, _text(value))


def _misfit(asked: Asked, tool: Callable[..., Any]) -> str | None:
    if not isinstance(asked.arguments, dict) and asked.arguments not in (None, ""):
        return f"the arguments of {asked.name!r} are no JSON object"
    problem = check(asked.name, asked.arguments or {}, schema_of(tool))
    return None if problem is None else problem.text


async def _called(tool: Callable[..., Any], asked: Asked) -> Any:
    run = current.get()
    arguments = asked.arguments or {}
    if isinstance(run, Run):
        return await run.call(tool, **arguments)
    value = tool(**arguments)
    return await value if inspect.isawaitable(value) else value


def _note(asked: Asked, problem: str, kind: str) -> None:
    run = current.get()
    if run is not None:
        step = Step(
            action="call",
            tool_called=asked.name or "?",
            tool_input=asked.arguments,
            error=problem,
            exception_type=kind,
            metadata={"id": asked.id},
        )
        run.record_step(step)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
