"""Items of the OpenAI Responses API, and its responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.core.json_values import plain

from . import reading
from .neutral import Answer, Asked, Message, Outcome, Result, Role, Tell, tell_nobody
from .receipts import Shrink
from .wires import ProviderWire

_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""The types of calls answered by the application, each with the type of its output."""
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "model"}
_WITHOUT_WORDS = ("reasoning", "item_reference", "mcp_list_tools", "mcp_approval_request")
_LAST = ("response.completed", "response.incomplete", "response.failed", "error")


class ResponsesWire(ProviderWire):
    """Each call and each output is an item; an output may follow its call at any distance."""

    results_follow = False

    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        item = reading.mapping(reading.as_data(message))
        kind = reading.as_text(item.get("type")) or "message"
        if kind in _OUTPUTS or kind == "mcp_call":
            return _call(item, kind)
        if kind in _OUTPUTS.values():
            result = Result(
                reading.as_text(item.get("call_id")), reading.result_value(item.get("output"))
            )
            return Message("tool", results=(result,))
        if kind == "message":
            content = item.get("content")
            refused = any(
                reading.mapping(part).get("type") == "refusal" for part in reading.listed(content)
            )
            role = _ROLES.get(reading.as_text(item.get("role")), "system")
            return Message(
                role, reading.content_text(content), ended="refusal" if refused else None
            )
        if kind.endswith("_call"):
            id_ = reading.as_text(item.get("id"))
            error = (Result(id_, "the call failed", kind, failed=True),)
            results = error if item.get("status") == "failed" else ()
            calls = (Asked(id_, kind, None),)
            return Message("model", server_calls=calls, server_results=results)
        if kind not in _WITHOUT_WORDS:
            tell(f"an item is of the type {kind[:40]!r}", "it is left out")
        return Message("tool" if kind.endswith(("_output", "_response")) else "model")

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        return {"type": "function_call_output", "call_id": asked.id, "output": text}

    def closing(self, asked: Asked, outcome: Outcome, lost: str, message: Any) -> Any:
        made = super().closing(asked, outcome, lost, message)
        return {**made, "type": _OUTPUTS[reading.mapping(reading.as_data(message))["type"]]}

    def masked(self, message: Any, outputs: Mapping[int, str]) -> Any:
        return {**reading.as_data(message), "output": outputs[0]}

    def shown(self, message: Any) -> Any:
        item = reading.mapping(reading.as_data(message))
        content = item.get("content", item.get("output"))
        return {"role": plain(item.get("role", "tool")), "content": reading.shown_content(content)}

    # The input may be one text instead of items.

    def hinted(self, messages: Any, hint: str | None) -> Any:
        if not hint or not isinstance(messages, str):
            return super().hinted(messages, hint)
        return messages if hint in messages else [self.user(messages), self.user(hint)]

    def new_in(self, messages: Any) -> list[Any]:
        return super().new_in([self.user(messages)] if isinstance(messages, str) else messages)

    def shrunk(self, messages: Any, shrink: Shrink | None) -> Any:
        return messages if isinstance(messages, str) else super().shrunk(messages, shrink)

    def answer(self, response: Any) -> Answer:
        found = reading.mapping(response)
        said = [self.read(item) for item in reading.listed(found.get("output"))]
        reason = reading.text_or_none(
            reading.mapping(found.get("incomplete_details")).get("reason")
        )
        refused = next((one.ended for one in said if one.ended), None)
        return Answer(
            "\n".join(one.text for one in said if one.text),
            tuple(call for one in said for call in one.calls),
            reading.usage_of(found.get("usage"), found.get("model")),
            refused or reason or reading.text_or_none(found.get("status")),
        )

    def whole(self, pieces: list[Any]) -> Any:
        """Return the last response in the events, with the text so far if an error followed."""
        events = [reading.mapping(piece) for piece in pieces]
        responses = (event.get("response") for event in reversed(events))
        found: Any = next((one for one in responses if one is not None), {})
        if not any(event.get("type") == "error" for event in events[-2:]):
            return found
        said = [event for event in events if event.get("type") == "response.output_text.delta"]
        text = "".join(reading.as_text(event.get("delta")) for event in said)
        message = {"type": "message", "role": "assistant", "content": text}
        return {**reading.mapping(reading.as_data(found)), "status": "failed", "output": [message]}

    def is_whole(self, pieces: list[Any]) -> bool:
        return any(reading.mapping(piece).get("type") in _LAST for piece in pieces[-2:])

    def turn(self, response: Any) -> list[Any]:
        return list(response["output"])

    def declared(self, name: str, description: str | None, schema: Any) -> dict[str, Any]:
        made = {"type": "function", "name": name, "parameters": schema}
        return {**made, "description": description} if description else made


def _call(item: Mapping[str, Any], kind: str) -> Message:
    given = reading.arguments(item.get("arguments", item.get("input")))
    name = reading.as_text(item.get("name"))
    if kind != "mcp_call":
        return Message("model", calls=(Asked(reading.as_text(item.get("call_id")), name, given),))
    call = Asked(reading.as_text(item.get("call_id") or item.get("id")), name, given)
    results: tuple[Result, ...] = ()
    if item.get("error"):
        results = (Result(call.id, item["error"], failed=True),)
    elif item.get("output") is not None:
        results = (Result(call.id, item["output"]),)
    return Message("model", server_calls=(call,), server_results=results)


RESPONSES = ResponsesWire()
