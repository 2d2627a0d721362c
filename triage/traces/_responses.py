"""Items of the OpenAI Responses API: a list of them, a request with `input`, a response."""

from __future__ import annotations

from typing import Any

from ._faults import error_of
from ._nouns import Tell
from ._talk import Talk, ending_of
from ._values import (
    arguments,
    as_text,
    content_text,
    mapping,
    result_value,
    text_or_none,
    tools_of,
    usage_of,
)

_CALLS = ("function_call", "custom_tool_call", "mcp_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_WITHOUT_WORDS = ("reasoning", "item_reference", "mcp_list_tools", "mcp_approval_request")


def read_responses(value: Any, talk: Talk, tell: Tell) -> None:
    """Put an item, a list of items, a request or a response into a talk."""
    if isinstance(value, list):
        for entry in value:
            read_responses(entry, talk, tell)
        return
    if not isinstance(value, dict):
        tell(f"an item must be an object, not {type(value).__name__}", "")
        return
    is_item = "output" not in value or value.get("type") in (*_CALLS, *_RESULTS)
    if is_item and ("type" in value or "role" in value):
        _item(value, talk, tell)
        return
    talk.tools.update(tools_of(value.get("tools")))
    given = value.get("input")
    if isinstance(given, str):
        talk.user(given)
    elif isinstance(given, list):
        read_responses(given, talk, tell)
    output = value.get("output")
    if isinstance(output, list):
        before = len(talk)
        read_responses(output, talk, tell)
        _ending(value, talk, grown=len(talk) > before)
    elif given is None:
        tell("there is neither input nor output", "")


def _ending(response: dict[str, Any], talk: Talk, *, grown: bool) -> None:
    """What the response as a whole says: its usage, and what it failed with."""
    usage = usage_of(response.get("usage"), response.get("model"))
    if usage is not None:
        (talk.last if grown else talk.add(action="model"))["usage"] = usage
    reason = mapping(response.get("incomplete_details")).get("reason")
    talk.error = error_of(response.get("error") or None) or ending_of(reason)


def _item(item: dict[str, Any], talk: Talk, tell: Tell) -> None:
    kind = item.get("type", "message")
    if kind in _CALLS:
        name = text_or_none(item.get("name"))
        if name is None:
            tell(f"a {kind} has no name", "")
            return
        given = arguments(item.get("arguments", item.get("input")))
        call = item.get("call_id") or item.get("id")
        talk.turn("", [{"id": call, "name": name, "input": given}])
        if kind == "mcp_call" and (item.get("output") is not None or item.get("error")):
            failed = bool(item.get("error"))
            talk.result(call, item["error"] if failed else item["output"], failed=failed)
    elif kind in _RESULTS:
        output = result_value(item.get("output"))
        if not talk.result(item.get("call_id"), output):
            told = as_text(item.get("call_id"))[:60]
            tell(f"a result is for the call {told!r}, which is not there", "it is kept as a step")
    elif kind == "message":
        _message(item, talk)
    elif isinstance(kind, str) and kind.endswith("_call"):
        failed = item.get("status") == "failed"
        talk.add(action="call", tool_called=kind, error="the call failed" if failed else None)
    elif kind not in _WITHOUT_WORDS:
        tell(f"an item is of the type {as_text(kind)[:40]!r}", "it is left out")


def _message(item: dict[str, Any], talk: Talk) -> None:
    content = item.get("content")
    if item.get("role") == "user":
        talk.user(content_text(content))
    elif item.get("role") == "assistant":
        refused = isinstance(content, list) and any(
            mapping(part).get("type") == "refusal" for part in content
        )
        talk.turn(content_text(content), [], ended="refusal" if refused else None)
