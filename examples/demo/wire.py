"""The bodies the service sends: chat completions, their stream, errors and the tools' answers."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from .faults import Fault, Kind
from .model import Reply, tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .shop import Shop

_PIECE = 12
"""Characters per streamed piece of text or arguments."""

_ERROR_TYPES = {429: "requests", 500: "server_error", 503: "server_error"}


class Answer(NamedTuple):
    """Status, JSON body and extra headers of an answer."""

    status: int
    body: Any
    headers: dict[str, Any] | None = None


def new_id(prefix: str) -> str:
    """A fresh id, as the provider makes one for each answer."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


def error(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, Any] | None = None,
) -> Answer:
    """An error as the provider words it: `{"error": {"message", "type", "param", "code"}}`."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return Answer(status, body, headers)


def refusal(fault: Fault) -> Answer | None:
    """The error answer of a fault, None where the fault is no error answer."""
    match fault.kind:
        case Kind.RATE_LIMIT:
            seconds = f"{fault.seconds:g}"
            return error(
                429,
                "Rate limit reached for requests per min (RPM): Limit 3, Used 3, Requested 1."
                f" Please try again in {seconds}s.",
                code="rate_limit_exceeded",
                headers={
                    "Retry-After": seconds,
                    "X-RateLimit-Limit-Requests": 3,
                    "X-RateLimit-Remaining-Requests": 0,
                    "X-RateLimit-Reset-Requests": f"{seconds}s",
                },
            )
        case Kind.OVERLOADED:
            return error(503, "The engine is currently overloaded, please try again later.")
        case Kind.SERVER_ERROR:
            return error(500, "The server had an error while processing your request. Sorry!")
        case _:
            return None


def chat_problem(body: Any) -> Answer | None:
    """The 400 of a request that is none, None if the request is in order."""
    for name, kind in (("model", str), ("messages", list)):
        if not isinstance(body, dict) or name not in body:
            return error(400, f"Missing required parameter: '{name}'.", param=name)
        if not isinstance(body[name], kind):
            return error(400, f"Invalid type for '{name}'.", param=name, code="invalid_type")
    return None


def completion(model: str, messages: Sequence[Mapping[str, Any]], reply: Reply) -> dict[str, Any]:
    """A whole chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.call is not None:
        number = sum(message["role"] == "tool" for message in messages) + 1
        function = {"name": reply.call.name, "arguments": reply.call.arguments}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    prompt, answer = tokens(messages), tokens(message)
    return {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "stop" if reply.call is None else "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        },
    }


def stream(whole: Mapping[str, Any], *, include_usage: bool) -> list[str]:
    """The data of the server-sent events that say the same, `[DONE]` included."""
    choice = whole["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = []
    if "tool_calls" in message:
        call = message["tool_calls"][0]
        name = {"name": call["function"]["name"], "arguments": ""}
        first = {"index": 0, "id": call["id"], "type": "function", "function": name}
        deltas.append({"role": "assistant", "content": None, "tool_calls": [first]})
        deltas.extend(
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            for piece in _pieces(call["function"]["arguments"])
        )
    else:
        deltas.append({"role": "assistant", "content": ""})
        deltas.extend({"content": piece} for piece in _pieces(message["content"]))
    ends = [None] * len(deltas) + [choice["finish_reason"]]
    head = {name: whole[name] for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    chunks = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in zip([*deltas, {}], ends, strict=True)
    ]
    if include_usage:
        chunks = [chunk | {"usage": None} for chunk in chunks]
        chunks.append(head | {"choices": [], "usage": whole["usage"]})
    return [*map(json.dumps, chunks), "[DONE]"]


def tool(shop: Shop, name: str, body: Any, key: str) -> Answer:
    """What a tool answers: 200, 404 for an unknown order, 422 for a wrong request."""
    try:
        match name:
            case "fares":
                found = shop.fares(str(body["city"]), int(body["passengers"]))
                return Answer(200, {"city": body["city"], "fares": [f._asdict() for f in found]})
            case "orders":
                order = shop.order(int(body["order_id"]))
                if order is None:
                    return Answer(404, {"detail": f"there is no order {body['order_id']}"})
                return Answer(200, order._asdict())
            case _:
                receipt = shop.charge(int(body["order_id"]), int(body["cents"]), key)
                return Answer(200, {"receipt": receipt})
    except LookupError as problem:
        status = 422 if isinstance(problem, KeyError) else 404
        return Answer(status, {"detail": str(problem)})
    except (TypeError, ValueError) as problem:
        return Answer(422, {"detail": str(problem)})


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
