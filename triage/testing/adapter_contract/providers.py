"""A model provider on this machine, over real HTTP: chat completions, responses, messages and contents,
whole and streamed. A `World` gives its answers; `check_wire` tells whether a real provider would have
accepted a request.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias, cast

import anyio

from .bench import MODEL, TOKENS, Asks, Cut, Fails, Hangs, Request, Says, World

SECONDS = 10.0
PIECE = 6
"""Characters of one piece of a streamed answer."""
Event: TypeAlias = tuple[str, dict[str, Any] | str]
"""A server-sent event: its name, empty without one, and its data."""


class _Form(NamedTuple):
    """How a stream is written. written: events, of which so many came before. end: what is behind all."""

    content_type: str
    written: Callable[[Iterable[Event], int], Iterable[str]]
    end: tuple[str, ...] = ()


def _as_events(events: Iterable[Event], _before: int) -> Iterator[str]:
    for name, data in events:
        head = f"event: {name}\n" if name else ""
        yield f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def _as_array(events: Iterable[Event], before: int) -> Iterator[str]:
    for at, (_, data) in enumerate(events, before):
        yield f"{',' if at else '['}{json.dumps(data, indent=2)}\n"


_AS_EVENTS = _Form("text/event-stream", _as_events)
_AS_ARRAY = _Form("application/json", _as_array, ("]",))
_PROTOCOLS = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "anthropic",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
}
"""How paths end."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    wbufsize = 1 << 16  # an answer in one piece: two would wait for each other

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        body = json.loads(self.rfile.read(size))
        path, _, query = self.path.partition("?")
        ends = (end for end in _PROTOCOLS if path.endswith(end))
        protocol = _PROTOCOLS[next(ends, "/chat/completions")]
        streams = body.get("stream") or path.endswith(":streamGenerateContent")
        form = _AS_ARRAY if protocol == "gemini" and "alt=sse" not in query else _AS_EVENTS
        world = cast("_Server", self.server).world
        turn = world.answer(protocol, body)
        match turn:
            case Hangs():
                self._hang()
            case Fails(status, message, retry_after, code):
                error: dict[str, Any] = {"type": "api_error", "message": message, "code": code}
                if protocol == "gemini":
                    error = {"code": status, "message": message, "status": code or "UNKNOWN"}
                headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
                self._send(status, {"type": "error", "error": error}, headers)
            case Cut(whole, silently):
                made = _ANSWERS[protocol](whole, len(world.requests))
                self._begin_stream(form)
                self._pass(form.written(_halves(protocol, made, whole)[0], 0))
                if not silently:
                    return
                self._end_stream()
            case Says() | Asks():
                made = _ANSWERS[protocol](turn, len(world.requests))
                if not streams:
                    self._send(200, made, {})
                    return
                self._begin_stream(form)
                first, second = _halves(protocol, made, turn)
                self._pass(form.written(first, 0))
                if world.script.streamed and isinstance(turn, Says):
                    self.wfile.flush()
                    world.wait_until_heard()
                self._pass(form.written(second, len(first)))
                self._pass(form.end)
                self._end_stream()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def _hang(self) -> None:
        """Send nothing until the client disconnects."""
        self.close_connection = True
        try:
            self.connection.recv(1)
        except OSError:
            return

    def _send(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        fields = {"content-type": "application/json", "content-length": str(len(data)), **headers}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _begin_stream(self, form: _Form) -> None:
        self.send_response(200)
        self.send_header("content-type", form.content_type)
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def _pass(self, pieces: Iterable[str]) -> None:
        for text in pieces:
            piece = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, world: World) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.world = world

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, as some scenarios make them."""


@contextmanager
def loopback(world: World) -> Generator[str]:
    """Run a provider that gives the world's answers while the block runs; gives its address.

    `/v1/chat/completions` and `/v1/responses` are OpenAI's, `/v1/messages` is Anthropic's, and
    `/v1beta/models/NAME:generateContent` and `…:streamGenerateContent` are Gemini's.
    """
    server = _Server(world)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@asynccontextmanager
async def provider(world: World) -> AsyncGenerator[str]:
    """`loopback` for async code."""
    entered = loopback(world)
    url = entered.__enter__()
    try:
        yield url
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(entered.__exit__, None, None, None)


def _chat(turn: Says | Asks, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    ended = turn.ended
    if isinstance(turn, Says):
        message["content"] = turn.text
    else:
        ended = "tool_calls" if ended == "stop" else ended
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{at}",
                "type": "function",
                "function": {"name": asked.tool, "arguments": asked.text},
            }
            for at, asked in enumerate(turn.calls)
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": ended, "logprobs": None}],
        "usage": {
            "prompt_tokens": TOKENS[0],
            "completion_tokens": TOKENS[1],
            "total_tokens": sum(TOKENS),
        },
    }


def _responses(turn: Says | Asks, number: int) -> dict[str, Any]:
    output: list[dict[str, Any]]
    cut = turn.ended == "length"
    if isinstance(turn, Says):
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        output = [
            {
                "id": f"msg_{number}",
                "type": "message",
                "role": "assistant",
                "status": "incomplete" if cut else "completed",
                "content": [part],
            }
        ]
    else:
        output = [
            {
                "id": f"fc_{number}_{at}",
                "type": "function_call",
                "status": "incomplete" if cut else "completed",
                "call_id": f"call_{number}_{at}",
                "name": asked.tool,
                "arguments": asked.text,
            }
            for at, asked in enumerate(turn.calls)
        ]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": TOKENS[0],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": TOKENS[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(TOKENS),
        },
    }


def _anthropic(turn: Says | Asks, number: int) -> dict[str, Any]:
    ended = "tool_use" if isinstance(turn, Asks) else "end_turn"
    ended = {"length": "max_tokens", "content_filter": "refusal"}.get(turn.ended, ended)
    if isinstance(turn, Says):
        content: list[dict[str, Any]] = [{"type": "text", "text": turn.text}]
    else:
        content = [
            {
                "type": "tool_use",
                "id": f"toolu_{number}_{at}",
                "name": asked.tool,
                "input": asked.arguments if not isinstance(asked.arguments, str) else {},
            }
            for at, asked in enumerate(turn.calls)
        ]
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": ended,
        "stop_sequence": None,
        "usage": {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1]},
    }


def _gemini(turn: Says | Asks, number: int) -> dict[str, Any]:
    ended = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}.get(turn.ended, "STOP")
    if isinstance(turn, Says):
        parts: list[dict[str, Any]] = [{"text": turn.text}]
    else:
        parts = [
            {
                "functionCall": {
                    "name": asked.tool,
                    "args": asked.arguments if not isinstance(asked.arguments, str) else {},
                }
            }
            for asked in turn.calls
        ]
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"index": 0, "content": content, "finishReason": ended}],
        "usageMetadata": {
            "promptTokenCount": TOKENS[0],
            "candidatesTokenCount": TOKENS[1],
            "totalTokenCount": sum(TOKENS),
        },
        "modelVersion": MODEL,
        "responseId": f"gemini-{number}",
    }


_ANSWERS = {"chat": _chat, "responses": _responses, "anthropic": _anthropic, "gemini": _gemini}


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def _halves(
    protocol: str, made: dict[str, Any], turn: Says | Asks
) -> tuple[list[Event], list[Event]]:
    """The events of a streamed answer, cut in the middle."""
    if protocol == "anthropic":
        events = list(_anthropic_stream(made, turn))
    else:
        events = list(_STREAMS[protocol](made))
    middle = len(events) // 2
    return events[:middle], events[middle:]


def _chat_stream(made: dict[str, Any]) -> Iterator[Event]:
    choice = made["choices"][0]
    message = choice["message"]
    head = {key: made[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"

    def chunk(delta: dict[str, Any], ended: str | None = None) -> Event:
        return "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": ended}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(message["content"] or ""):
        yield chunk({"content": piece})
    for at, asked in enumerate(message.get("tool_calls", ())):
        function = {"name": asked["function"]["name"], "arguments": ""}
        begun = {"index": at, "id": asked["id"], "type": "function", "function": function}
        yield chunk({"tool_calls": [begun]})
        for piece in _pieces(asked["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    yield "", {**head, "choices": [], "usage": made["usage"]}
    yield "", "[DONE]"


def _responses_stream(made: dict[str, Any]) -> Iterator[Event]:
    count = 0

    def event(kind: str, **fields: Any) -> Event:
        nonlocal count
        count += 1
        return kind, {"type": kind, "sequence_number": count - 1, **fields}

    yield event("response.created", response={**made, "status": "in_progress", "output": []})
    for at, item in enumerate(made["output"]):
        place = {"output_index": at, "item_id": item["id"]}
        begun = {**item, "status": "in_progress"}
        if item["type"] == "function_call":
            yield event(
                "response.output_item.added", output_index=at, item=begun | {"arguments": ""}
            )
            for piece in _pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **place, delta=piece)
        else:
            yield event("response.output_item.added", output_index=at, item=begun | {"content": []})
            (part,) = item["content"]
            words = {**place, "content_index": 0}
            yield event("response.content_part.added", **words, part=part | {"text": ""})
            for piece in _pieces(part["text"]):
                yield event("response.output_text.delta", **words, delta=piece, logprobs=[])
            yield event("response.output_text.done", **words, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **words, part=part)
        yield event("response.output_item.done", output_index=at, item=item)
    yield event(f"response.{made['status']}", response=made)


def _anthropic_stream(made: dict[str, Any], turn: Says | Asks) -> Iterator[Event]:
    """Text that is no JSON comes as it is, where a whole answer holds an empty object."""
    texts = [turn.text] if isinstance(turn, Says) else [asked.text for asked in turn.calls]
    begun = {
        **made,
        "content": [],
        "stop_reason": None,
        "usage": {**made["usage"], "output_tokens": 1},
    }
    yield "message_start", {"type": "message_start", "message": begun}
    for at, (block, text) in enumerate(zip(made["content"], texts, strict=True)):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": at, "content_block": empty},
        )
        for piece in _pieces(text):
            delta = (
                {"type": "text_delta", "text": piece}
                if is_text
                else {"type": "input_json_delta", "partial_json": piece}
            )
            yield (
                "content_block_delta",
                {"type": "content_block_delta", "index": at, "delta": delta},
            )
        yield "content_block_stop", {"type": "content_block_stop", "index": at}
    ended = {"stop_reason": made["stop_reason"], "stop_sequence": None}
    usage = made["usage"]  # all there was, as the provider counts
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _gemini_stream(made: dict[str, Any]) -> Iterator[Event]:
    (candidate,) = made["candidates"]
    words = [
        {"text": piece}
        for part in candidate["content"]["parts"]
        for piece in _pieces(part.get("text", ""))
    ]
    parts: list[Any] = words or candidate["content"]["parts"]
    about = {key: made[key] for key in ("modelVersion", "responseId")}
    for part in parts:
        content = {"role": "model", "parts": [part]}
        yield "", {**about, "candidates": [{"index": 0, "content": content}]}
    last = {**candidate, "content": {"role": "model", "parts": [{"text": ""}]}}
    yield "", {**made, "candidates": [last]}


_STREAMS = {
    "chat": _chat_stream,
    "responses": _responses_stream,
    "gemini": _gemini_stream,
}


def check_wire(requests: Iterable[Request]) -> None:
    """Raise AssertionError for the first request that a provider would refuse."""
    for number, request in enumerate(requests, 1):
        problem = _WIRE_CHECKS.get(request.protocol, _wire_chat)(request.body)
        if "triage" in json.dumps(request.body, default=str).lower():
            problem = "it holds a field or a word of triage's own"
        if problem is not None:
            raise AssertionError(f"request {number} would be refused: {problem}")


def results_in(request: Request) -> list[tuple[str, str]]:
    """The results in a request, in the order of their calls: the tool, and its result."""
    if request.protocol == "gemini":
        parts = (part for content in messages_in(request) for part in content["parts"])
        found = (part["functionResponse"] for part in parts if "functionResponse" in part)
        return [(one["name"], "".join(map(str, one["response"].values()))) for one in found]
    calls: dict[str, str] = {}
    results: dict[str, str] = {}
    for item in _items(request):
        kind, own = item.get("type"), item.get("role") == "tool"
        for call in item.get("tool_calls") or ():
            calls[call["id"]] = call["function"]["name"]
        if kind in ("function_call", "tool_use"):
            calls[item.get("call_id") or item["id"]] = item["name"]
        elif own or kind in ("function_call_output", "tool_result"):
            ids = (item.get(name) for name in ("tool_call_id", "call_id", "tool_use_id"))
            told = item["content"] if own or kind == "tool_result" else item["output"]
            results[next(filter(None, ids), "")] = _text(told)
    return [(name, results[call]) for call, name in calls.items() if call in results]


def messages_in(request: Request) -> list[Any]:
    given = next(filter(None, map(request.body.get, ("messages", "input", "contents"))), None)
    return given if isinstance(given, list) else []


def _items(request: Request) -> Iterator[dict[str, Any]]:
    """All messages, content blocks and items."""
    for item in messages_in(request):
        yield item
        content = item.get("content")
        yield from content if isinstance(content, list) and item.get("role") != "tool" else ()


def _text(told: Any) -> str:
    return told if isinstance(told, str) else "".join(part.get("text", "") for part in told)


def _wire_chat(body: dict[str, Any]) -> str | None:
    waiting: list[str] = []
    for message in body["messages"]:
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            if call not in waiting:
                return f"the result of {call} does not follow its call"
            waiting.remove(call)
            continue
        if waiting:
            return f"the calls {waiting} have no result"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return f"the calls {waiting} have no result" if waiting else None


def _wire_responses(body: dict[str, Any]) -> str | None:
    if isinstance(body["input"], str):
        return None
    waiting: list[str] = []
    for item in body["input"]:
        if item.get("type") == "function_call":
            waiting.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in waiting:
                return f"the output of {item['call_id']} has no call"
            waiting.remove(item["call_id"])
    return f"the calls {waiting} have no output" if waiting else None


def _wire_anthropic(body: dict[str, Any]) -> str | None:
    waiting: list[str] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [] if isinstance(content, str) else content
        results = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
        if sorted(results) != sorted(waiting):
            return f"the calls {waiting} are answered by the results {results}"
        if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
            return "results do not come first in their turn"
        if not content:
            return "a message is empty"
        waiting = [block["id"] for block in blocks if block.get("type") == "tool_use"]
    return f"the calls {waiting} have no result" if waiting else None


def _wire_converse(body: dict[str, Any]) -> str | None:
    waiting: list[str] = []
    for message in body["messages"]:
        blocks = message["content"]
        results = [block["toolResult"] for block in blocks if "toolResult" in block]
        if sorted(result["toolUseId"] for result in results) != sorted(waiting):
            return f"the calls {waiting} are answered by the results {results}"
        if any("toolResult" not in block for block in blocks[: len(results)]):
            return "results do not come first in their turn"
        if not blocks or not all(result["content"] for result in results):
            return "a message or a result is empty"
        waiting = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    return f"the calls {waiting} have no result" if waiting else None


def _wire_ollama(body: dict[str, Any]) -> str | None:
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] != "tool":
            if waiting:
                return f"the calls {waiting} have no result"
            waiting = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            continue
        name = message.get("tool_name") or next(iter(waiting), None)
        if name not in waiting:
            return f"the result of {name} does not follow its call"
        waiting.remove(name)
    return f"the calls {waiting} have no result" if waiting else None


def _wire_gemini(body: dict[str, Any]) -> str | None:
    waiting: list[str] = []
    for content in body["contents"]:
        parts = content["parts"]
        results = [one["functionResponse"]["name"] for one in parts if "functionResponse" in one]
        if results != waiting:
            return f"the calls {waiting} are answered by the results {results}"
        if any("functionResponse" not in part for part in parts[: len(results)]):
            return "results do not come first in their turn"
        if not parts:
            return "a content is empty"
        waiting = [one["functionCall"]["name"] for one in parts if "functionCall" in one]
    return f"the calls {waiting} have no result" if waiting else None


_WIRE_CHECKS = {
    "chat": _wire_chat,
    "responses": _wire_responses,
    "anthropic": _wire_anthropic,
    "converse": _wire_converse,
    "ollama": _wire_ollama,
    "cohere": _wire_chat,
    "gemini": _wire_gemini,
}
