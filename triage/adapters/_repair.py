"""Histories that a provider accepts: every tool call has its result, and every result its call.

A failure in the middle of a turn leaves calls without results; the next request would be refused for
it. Each function gives a new list, valid whatever it was given; a valid one comes back equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from triage.traces._values import listed, mapping

LOST = (
    "This call has no result: the work was interrupted while it ran. It may have taken effect or not; "
    "find out before you call it again."
)
"""What stands in the place of a result that never came."""


class Repaired(NamedTuple):
    """A history that is valid now. closed: calls that were given a result. dropped: results without a
    call, and second results, that were left out.
    """

    messages: list[Any]
    closed: int = 0
    dropped: int = 0


def as_data(message: Any) -> Any:
    """A message as a mapping: a client's own objects are read, anything else stays as it is."""
    if isinstance(message, dict):
        return message
    dump = getattr(message, "model_dump", None)
    return message if dump is None else dump(exclude_unset=True)


Place = tuple[int, int]
"""A message and a part of it, both from 0."""


class _Pairs:
    """Which result belongs to which call: the first of its id that comes after it, and before the next
    call of that id. calls, results: where they stand, with their ids.
    """

    def __init__(self, calls: list[tuple[Place, str]], results: list[tuple[Place, str]]) -> None:
        self.of: dict[Place, Place] = {}
        waiting: dict[str, Place] = {}
        both = [(at, False, call) for at, call in calls] + [
            (at, True, call) for at, call in results
        ]
        for at, is_result, call in sorted(both):
            if not is_result:
                waiting[call] = at
            elif call in waiting:
                self.of[waiting.pop(call)] = at
        self.closed = len(calls) - len(self.of)
        self.dropped = len(results) - len(self.of)

    def results(self, calls: list[tuple[Place, str]]) -> tuple[list[Place], list[str]]:
        """Where the results of these calls stand, in that order, and the calls that have none."""
        found = sorted(self.of[at] for at, _ in calls if at in self.of)
        return found, [call for at, call in calls if at not in self.of]


def repair_chat(messages: Iterable[Any], text: str = LOST) -> Repaired:
    """Chat messages of OpenAI's form: results follow right after the turn that asked for them."""
    given = list(messages)
    if open_in_chat(given, ()) == ():
        return Repaired(given)
    data = [mapping(as_data(message)) for message in given]
    asked = [_calls_in_chat(at, message) for at, message in enumerate(data)]
    answers = [
        ((at, 0), str(message.get("tool_call_id")))
        for at, message in enumerate(data)
        if message.get("role") == "tool"
    ]
    pairs = _Pairs([call for calls in asked for call in calls], answers)
    found: list[Any] = []
    for at, message in enumerate(data):
        if message.get("role") == "tool":
            continue
        found.append(given[at])
        there, lost = pairs.results(asked[at])
        found += [given[place] for place, _ in there]
        found += [{"role": "tool", "tool_call_id": call, "content": text} for call in lost]
    return Repaired(found, pairs.closed, pairs.dropped)


# Most histories are valid, and each request brings the whole of one: these tell so in one look at each
# message. Given the calls that have no result yet, they give those that have none after these messages;
# None where that is not sure, and nothing but a repair will tell.

Open = tuple[Any, ...]
"""The ids of calls that have no result yet."""


def open_in_chat(messages: Iterable[Any], before: Open) -> Open | None:
    """The calls of chat messages that are open at their end; see above."""
    waiting = list(before)
    for message in messages:
        if type(message) is not dict:
            return None
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            if call not in waiting:
                return None
            waiting.remove(call)
            continue
        if waiting:
            return None
        for call in message.get("tool_calls") or ():
            if type(call) is not dict or type(call.get("id")) is not str:
                return None
            waiting.append(call["id"])
    return tuple(waiting)


def open_in_anthropic(messages: Iterable[Any], before: Open) -> Open | None:
    """The calls of Anthropic messages that are open at their end; see above."""
    waiting = list(before)
    for message in messages:
        if type(message) is not dict:
            return None
        content = message.get("content")
        if type(content) is str:
            if waiting:
                return None
            continue
        if type(content) is not list:
            return None
        results = True
        asked: list[Any] = []
        for block in content:
            read = block.get if type(block) is dict else partial(getattr, block)
            kind = read("type", None)
            if kind == "tool_result":
                call = read("tool_use_id", None)
                if not results or call not in waiting:
                    return None
                waiting.remove(call)
                continue
            results = False
            if kind == "tool_use":
                asked.append(read("id", None))
        if waiting or (asked and message.get("role") == "user"):
            return None
        waiting = asked
    return tuple(waiting)


def never_sure(messages: Iterable[Any], before: Open) -> None:
    """For items whose calls may have been made in a request before: only a repair tells."""


def _calls_in_chat(at: int, message: Mapping[str, Any]) -> list[tuple[Place, str]]:
    calls = [mapping(as_data(call)).get("id") for call in listed(message.get("tool_calls"))]
    return [((at, part), call) for part, call in enumerate(calls) if isinstance(call, str)]


_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}


def repair_responses(items: Iterable[Any], text: str = LOST) -> Repaired:
    """Input items of OpenAI's Responses API: each call has its output somewhere behind it."""
    given = list(items)
    data = [mapping(as_data(item)) for item in given]

    def ids(kinds: Collection[str]) -> list[tuple[Place, str]]:
        found = [
            (at, item.get("call_id")) for at, item in enumerate(data) if item.get("type") in kinds
        ]
        return [((at, 0), call) for at, call in found if isinstance(call, str)]

    calls = ids(_OUTPUTS)
    pairs = _Pairs(calls, ids(_OUTPUTS.values()))
    kept = set(pairs.of.values())
    open_ = {at: call for (at, part), call in calls if (at, part) not in pairs.of}
    found: list[Any] = []
    for at, item in enumerate(data):
        kind = str(item.get("type"))
        if kind in _OUTPUTS.values() and (at, 0) not in kept:
            continue
        found.append(given[at])
        if at in open_:
            found.append({"type": _OUTPUTS[kind], "call_id": open_[at], "output": text})
    return Repaired(found, pairs.closed, pairs.dropped)


def repair_anthropic(messages: Iterable[Any], text: str = LOST) -> Repaired:
    """Anthropic messages: the turn after one that calls tools begins with all their results."""
    given: list[Any] = list(messages)
    if open_in_anthropic(given, ()) == ():
        return Repaired(given)
    given = [mapping(as_data(message)) for message in given]
    blocks = [_blocks(message) for message in given]
    asked = [_calls_in_blocks(at, found) for at, found in enumerate(blocks)]
    answers = [
        ((at, part), str(block.get("tool_use_id")))
        for at, found in enumerate(blocks)
        for part, block in enumerate(found)
        if block.get("type") == "tool_result"
    ]
    pairs = _Pairs([call for calls in asked for call in calls], answers)
    made: list[Any] = []
    waiting: list[Any] = []
    for at, message in enumerate(given):
        if message.get("role") == "user":
            rest = [block for block in blocks[at] if block.get("type") != "tool_result"]
            if waiting or len(rest) != len(blocks[at]):
                content = [*waiting, *rest]
                made += [{**message, "content": content}] if content else []
                waiting = []
                continue
        elif waiting:
            made.append({"role": "user", "content": waiting})
            waiting = []
        made.append(message)
        there, lost = pairs.results(asked[at])
        waiting = [blocks[place][part] for place, part in there]
        waiting += [
            {"type": "tool_result", "tool_use_id": call, "content": text, "is_error": True}
            for call in lost
        ]
    if waiting:
        made.append({"role": "user", "content": waiting})
    return Repaired(made, pairs.closed, pairs.dropped)


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [mapping(as_data(block)) for block in content or ()]


def _calls_in_blocks(at: int, blocks: list[Mapping[str, Any]]) -> list[tuple[Place, str]]:
    calls = [block.get("id") if block.get("type") == "tool_use" else None for block in blocks]
    return [((at, part), call) for part, call in enumerate(calls) if isinstance(call, str)]
