"""Clients of model providers whose calls are recorded, and the loop that runs tools with one.

The clients send every request through a client of httpx; a copy of the client is given one that records
them. So all ways to ask (whole, streamed, parsed, raw, in helpers) are recorded alike, copies of the client
too, and everything else of it is as ever.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import anyio

from triage.adapters.wire.bodies import response_in
from triage.adapters.wire.clients import is_recorded, recorded_client
from triage.core.errors import check_count, misuse
from triage.core.manifest import Manifest, schema_of
from triage.core.messages.neutral import Asked, ending_of, text_of
from triage.core.messages.reading import as_data
from triage.core.messages.wires import ProviderWire
from triage.engine.call_keys import tally
from triage.engine.calls import Run
from triage.engine.run import current
from triage.engine.tools import TOOL_ATTRIBUTE, Tool
from triage.strategies.layers import warn_of_retries

from .base import cut_short
from .calls import conversation, key_of
from .conversations import Turn, carried, continued, repaired, use
from .tools import note_refused, refusal_of

__all__ = ["Conversation", "Provider", "converse", "recorded"]


C = TypeVar("C")


class Provider(NamedTuple):
    """A package of clients. name: that of the package."""

    name: str
    clients: tuple[str, ...]


def recorded(provider: Provider, client: C, *, hint: bool) -> C:
    """A copy of the client whose model calls are recorded; see `record` of each provider."""
    kinds = [
        kind.__name__
        for kind in type(client).__mro__
        if kind.__module__.partition(".")[0] == provider.name
    ]
    if not any(name in provider.clients for name in kinds):
        wanted = f"a client of {provider.name}, {' or '.join(provider.clients)}"
        raise misuse(f"{provider.name}.record(client)", client, wanted)
    made: Any = client
    if is_recorded(made._client):
        return client
    if not isinstance(hint, bool):
        raise misuse(f"{provider.name}.record(hint=…)", hint, "True or False")
    warn_of_retries(client)
    # Not by `with_options`, which calls a subclass's constructor. What is cached refers to the client.
    made = copy.copy(client)
    made._client = recorded_client(made._client, hint=hint)
    for name in list(vars(made)):
        if isinstance(inspect.getattr_static(type(made), name, None), cached_property):
            delattr(made, name)
    return cast("C", made)


# The loop that everybody writes -------------------------------------------------------------------


Ask = Callable[[list[Any], list[Any]], Awaitable[Any]]
"""Sends messages and the tools' declarations."""
Tools = Mapping[str, Callable[..., Any]]


class Conversation(NamedTuple):
    """How a conversation ended. text: the model's last words. messages: all, in the provider's form."""

    text: str
    messages: list[Any]


async def converse(
    wire: ProviderWire,
    ask: Ask,
    messages: str | Iterable[Any],
    tools: Iterable[Callable[..., Any]],
    turns: int,
) -> Conversation:
    """The loop of `run_tools`: see there."""
    check_count("run_tools(turns=…)", turns, 1, "each asks the model once")
    given = [wire.user(messages)] if isinstance(messages, str) else list(messages)
    known: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        if not callable(tool):
            raise misuse("run_tools(tools=…) item", tool, "a function", "best a @triage.tool")
        declared = getattr(tool, TOOL_ATTRIBUTE, None)
        name = declared.name if isinstance(declared, Tool) else getattr(tool, "__name__", "tool")
        known[name] = tool
    run = current.get()
    if not isinstance(run, Run):
        return await _converse(wire, ask, given, known, turns)
    run.session.recorded_tools |= known.keys()
    name = _name_of(run, given)
    token = conversation.set(name)
    try:
        return await _converse(wire, ask, [*given, *_before(wire, run, name)], known, turns)
    finally:
        conversation.reset(token)


def _name_of(run: Run, messages: list[Any]) -> str:
    """What a conversation is known by in every attempt: what it begins with, and how often one did."""
    opening = key_of(messages)
    beside = tally(run).beside
    beside[f"conversation {opening}"] = count = beside.get(f"conversation {opening}", 0) + 1
    return f"{opening[:12]}.{count}"


def _before(wire: ProviderWire, run: Run, name: str) -> list[Any]:
    """The turns of this conversation in an earlier attempt."""

    def answer(turn: Turn) -> tuple[list[Any], Iterable[Asked]] | None:
        response = response_in(wire, turn.value) if turn.conversation == name else None
        return None if response is None else (wire.turn(response), wire.answer(response).calls)

    def result(asked: Asked, turn: Turn) -> Any:
        text = text_of(turn.value) if turn.error is None else turn.error
        return wire.joined([wire.result(asked, text, failed=turn.error is not None)], None)[0]

    turns = carried(run)
    return continued(turns, answer=answer, result=result, use=lambda turn: use(run, turn))


async def _converse(
    wire: ProviderWire, ask: Ask, messages: list[Any], tools: Tools, turns: int
) -> Conversation:
    declared = [wire.declared(name, tool.__doc__, schema_of(tool)) for name, tool in tools.items()]
    for _ in range(turns):
        messages = repaired(wire, messages).messages
        response = as_data(await ask(messages, declared))
        messages = [*messages, *wire.turn(response)]
        answer = wire.answer(response)
        ending = ending_of(answer.ended)
        if ending is not None:  # what it asks for may not be whole
            raise cut_short(ending)
        if not answer.calls:
            return Conversation(answer.text, messages)
        messages += wire.joined(await _side_by_side(wire, answer.calls, tools), None)
    raise RuntimeError(f"no answer after {turns} turns")


async def _side_by_side(wire: ProviderWire, calls: tuple[Asked, ...], tools: Tools) -> list[Any]:
    """What came of all calls of one turn. The first error, in the order of the calls, is raised."""
    if len(calls) == 1:  # in this task, as what several tasks ask has no order to be known by
        return [await _result(wire, calls[0], tools)]
    results: list[Any] = [None] * len(calls)
    errors: dict[int, Exception] = {}

    async def one(at: int) -> None:
        try:
            results[at] = await _result(wire, calls[at], tools)
        except Exception as error:
            errors[at] = error

    async with anyio.create_task_group() as group:
        for at in range(len(calls)):
            group.start_soon(one, at)
    if errors:
        raise errors[min(errors)]
    return results


async def _result(wire: ProviderWire, asked: Asked, tools: Tools) -> Any:
    run = current.get()
    refusal = refusal_of(asked, Manifest(tools))
    if refusal is not None:
        if run is not None:
            kind = refusal.kind
            note_refused(run, asked.name, asked.arguments, refusal.text, kind=kind, id=asked.id)
        return wire.result(asked, refusal.text, failed=True)
    tool, arguments = tools[asked.name], asked.arguments or {}
    if isinstance(run, Run):
        value = await run.call(tool, **arguments)
    else:
        value = tool(**arguments)
        value = await value if inspect.isawaitable(value) else value
    return wire.result(asked, text_of(value), failed=False)
