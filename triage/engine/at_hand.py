"""The compensators of another process, made again from the journal and the tools of the agent."""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from triage.core import HIDDEN, Call, Compensation, ResultLost
from triage.core.foreign import instance_dict, is_a, namespace_of

from .calls import restored
from .journal import Session
from .tools import Compensator, Tool, Undoing, name_of, named_by

MOST_LOOKED_AT = 20_000
"""The most objects searched for tools: an agent's are close to it, and a program is large."""

_OPAQUE = (str, bytes, bytearray, int, float, complex, type(None), Session)


def bring_compensators(session: Session, function: Callable[..., Any]) -> None:
    """Rebuild the compensators of the previous process, as far as that is possible.

    A compensator is looked for among the tools and compensators that the agent's own code refers to,
    never by a name alone: what a store says is not imported. Its arguments are those of the journal. One
    that is not found is at hand once the agent has come to its call again.
    """
    waiting = [entry for entry in session.state.compensations if not entry.ran]
    if not waiting:
        return
    known = session.undo = {} if session.undo is None else session.undo
    found = list(_declared(function, dict(session.kwargs)))
    for entry in waiting:
        call = session.state.calls.get(entry.key)
        made = _of_step(entry, found) if call is None else _of_call(session, entry, call, found)
        if made is not None:
            known.setdefault(entry.seq, made)


def _of_call(session: Session, entry: Compensation, call: Call, found: list[Any]) -> Undoing | None:
    tools = [
        tool
        for tool in found
        if isinstance(tool, Tool) and tool.name == call.tool and tool.compensate is not None
        if name_of(tool.compensate) == entry.name
    ]
    if not _is_one([tool.compensate for tool in tools]) or _is_hidden(call.arguments):
        return None
    tool = tools[0]
    undo = tool.compensate
    assert undo is not None
    wanted = named_by(undo, tool.signature.parameters, after=1)
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    if not wanted.keys() <= arguments.keys():  # one that is ignored, or the instance
        return None
    try:
        result = restored(tool, call, session.live)
        given = {name: tool.argument(name, arguments[name]) for name in wanted}
    except (ResultLost, ValueError, TypeError):
        return None
    return Undoing(undo, (result,), given)


def _of_step(entry: Compensation, found: list[Any]) -> Undoing | None:
    """Of a hand-written step: one that was declared as a `Compensator` or a tool."""
    if entry.args is None or _is_hidden(entry.args):
        return None
    named = [item.function if isinstance(item, Tool) else item for item in found]
    functions = [item for item in named if name_of(item) == entry.name]
    return Undoing(functions[0], tuple(entry.args), {}) if _is_one(functions) else None


def _is_one(functions: list[Any]) -> bool:
    """Whether these are one function: of several, nobody can say which was meant."""
    return bool(functions) and all(function == functions[0] for function in functions)


def _is_hidden(data: Any) -> bool:
    return HIDDEN in json.dumps(data)


def _declared(*roots: Any) -> Iterator[Tool | Compensator]:
    """The tools and compensators that these refer to, each once, the nearest first."""
    waiting: deque[Any] = deque(roots)
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MOST_LOOKED_AT:
        item = waiting.popleft()
        if issubclass(type(item), _OPAQUE) or id(item) in seen:
            continue
        seen[id(item)] = item
        if is_a(item, Tool) or is_a(item, Compensator):
            yield item
        waiting.extend(_referred_to(item))


def _referred_to(item: Any) -> Iterator[Any]:
    """What a value holds, or a function's code names. No code of the value's class runs."""
    # Not `match`, nor `isinstance`: both ask the value for its `__class__`.
    if is_a(item, FunctionType):
        yield from vars(item).values()  # what it wraps, and the tool that it is
        yield from (item.__defaults__ or ())
        yield from (item.__kwdefaults__ or {}).values()
        for cell in item.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from _named(item.__globals__, set(_names(item.__code__)))
    elif is_a(item, MethodType):
        yield item.__func__
        yield item.__self__
        yield from _named(namespace_of(type(item.__self__)), set(_names_of(item.__func__)))
    elif is_a(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    elif is_a(item, dict):
        yield from dict.values(item)
    elif kind := next((kind for kind in (list, tuple, set, frozenset) if is_a(item, kind)), None):
        yield from kind.__iter__(item)
    elif is_a(item, Tool):
        yield from (item.function, item.compensate)
    elif is_a(item, Compensator):
        yield item.function
    elif not (is_a(item, type) or is_a(item, ModuleType)):
        yield from instance_dict(item).values()


def _named(names: Mapping[str, Any], wanted: set[str]) -> Iterator[Any]:
    for name in wanted & names.keys():
        value = names[name]
        if is_a(value, ModuleType):  # `shop.charge(…)`
            module = instance_dict(value)
            yield from (module[other] for other in wanted & module.keys())
        else:
            yield value


def _names_of(function: Any) -> Iterator[str]:
    code = getattr(function, "__code__", None)
    return iter(()) if code is None else _names(code)


def _names(code: CodeType) -> Iterator[str]:
    """All that a function's code names, with the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
