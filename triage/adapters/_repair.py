"""Histories that a provider accepts: every tool call has its result, and every result its call.

A failure in the middle of a turn leaves calls without results; the next request would be refused for
it. Each function gives a new list, valid whatever it was given; a valid one comes back equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

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
    dump = getattr(message, "model_dump", None)
    return message if dump is None or isinstance(message, dict) else dump(exclude_unset=True)


def repair_chat(messages: Iterable[Any], text: str = LOST) -> Repaired:
    """Chat messages of OpenAI's form: results follow right after the turn that asked for them."""

    def asked(message: Any) -> list[str]:
        calls = listed(mapping(message).get("tool_calls"))
        return [call["id"] for call in map(mapping, calls) if isinstance(call.get("id"), str)]

    def made(call: str) -> Any:
        return {"role": "tool", "tool_call_id": call, "content": text}

    def answers(message: Any) -> str | None:
        found = mapping(message)
        return found.get("tool_call_id", "") if found.get("role") == "tool" else None

    return _repaired(list(messages), asked, answers, made)


def repair_responses(items: Iterable[Any], text: str = LOST) -> Repaired:
    """Input items of OpenAI's Responses API: each call's output follows it."""

    def asked(item: Any) -> list[str]:
        found = mapping(item)
        is_call = found.get("type") in _OUTPUTS and isinstance(found.get("call_id"), str)
        return [found["call_id"]] if is_call else []

    given = [as_data(item) for item in items]
    kinds = {call: mapping(item)["type"] for item in given for call in asked(item)}

    def made(call: str) -> Any:
        return {"type": _OUTPUTS[kinds[call]], "call_id": call, "output": text}

    def answers(item: Any) -> str | None:
        found = mapping(item)
        return found.get("call_id", "") if found.get("type") in _OUTPUTS.values() else None

    return _repaired(given, asked, answers, made, together=True)


_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}


def _repaired(
    given: list[Any],
    asked: Callable[[Any], list[str]],
    answers: Callable[[Any], str | None],
    made: Callable[[str], Any],
    *,
    together: bool = False,
) -> Repaired:
    """Put each result behind its call. together: calls side by side come before their results."""
    data = [as_data(message) for message in given]
    results: dict[str, Any] = {}
    for at, message in enumerate(data):
        call = answers(message)
        if call is not None:
            results.setdefault(call, given[at])
    found: list[Any] = []
    waiting: list[str] = []
    known: set[str] = set()
    used = closed = 0
    for at, message in enumerate(data):
        if answers(message) is not None:
            continue
        calls = [call for call in asked(message) if call not in known]
        if waiting and not (together and calls):
            found += [results.get(call) or made(call) for call in waiting]
            waiting = []
        if together and asked(message) and not calls:
            continue  # the same call once more
        found.append(given[at])
        waiting += calls
        known.update(calls)
        used += sum(call in results for call in calls)
        closed += sum(call not in results for call in calls)
    found += [results.get(call) or made(call) for call in waiting]
    count = sum(answers(message) is not None for message in data)
    return Repaired(found, closed, count - used)


def repair_anthropic(messages: Iterable[Any], text: str = LOST) -> Repaired:
    """Anthropic messages: the turn after one that calls tools begins with all their results."""
    given = [as_data(message) for message in messages]
    results: dict[str, Any] = {}
    count = 0
    for message in given:
        for block in _blocks(message):
            if _is_result(block):
                count += 1
                results.setdefault(mapping(block).get("tool_use_id", ""), block)
    found: list[Any] = []
    waiting: list[str] = []
    known: set[str] = set()
    closed = used = 0
    for message in given:
        is_user = mapping(message).get("role") == "user"
        if waiting and not is_user:
            found.append({"role": "user", "content": _results(waiting, results, text)})
            waiting = []
        if is_user:
            rest = [block for block in _blocks(message) if not _is_result(block)]
            had = len(rest) != len(_blocks(message))
            if waiting or had:
                content = [*_results(waiting, results, text), *map(_block, rest)]
                waiting = []
                if content:
                    found.append({**message, "content": content})
                continue
        found.append(message)
        for block in _blocks(message):
            call = mapping(block).get("id")
            if (
                mapping(block).get("type") == "tool_use"
                and isinstance(call, str)
                and call not in known
            ):
                known.add(call)
                waiting.append(call)
                used += call in results
                closed += call not in results
    if waiting:
        found.append({"role": "user", "content": _results(waiting, results, text)})
    return Repaired(found, closed, count - used)


def _blocks(message: Any) -> list[Any]:
    content = mapping(message).get("content")
    if isinstance(content, str):
        return [content]
    return [as_data(block) for block in cast("Iterable[Any]", content or ())]


def _block(block: Any) -> Any:
    return {"type": "text", "text": block} if isinstance(block, str) else block


def _is_result(block: Any) -> bool:
    return mapping(block).get("type") == "tool_result"


def _results(calls: list[str], results: dict[str, Any], text: str) -> list[Any]:
    return [
        results.get(call)
        or {"type": "tool_result", "tool_use_id": call, "content": text, "is_error": True}
        for call in calls
    ]
