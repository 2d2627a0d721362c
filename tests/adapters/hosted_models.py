"""Models as Bedrock, Ollama and Cohere give them: answers, streams, and plain clients that ask for them."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import anthropic
import boto3  # type: ignore[import-untyped]  # it has no types
import httpx
from botocore.config import Config  # type: ignore[import-untyped]  # as above
from llm_server import Handler, Reply, Request

TOKENS = (10, 5)
PIECE = 3


class Said(NamedTuple):
    """An answer of a model. calls: id, name and arguments of each."""

    text: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    is_cut: bool = False


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


# Answers --------------------------------------------------------------------------------------------


def converse(said: Said) -> dict[str, Any]:
    content: list[Any] = [{"text": said.text}] if said.text else []
    content += [
        {"toolUse": {"toolUseId": id_, "name": name, "input": given}}
        for id_, name, given in said.calls
    ]
    ended = "max_tokens" if said.is_cut else "tool_use" if said.calls else "end_turn"
    usage = {"inputTokens": TOKENS[0], "outputTokens": TOKENS[1], "totalTokens": sum(TOKENS)}
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": ended,
        "usage": usage,
        "metrics": {"latencyMs": 1},
    }


def converse_events(said: Said) -> Iterator[tuple[str, dict[str, Any]]]:
    made = converse(said)
    yield "messageStart", {"role": "assistant"}
    for at, block in enumerate(made["output"]["message"]["content"]):
        place = {"contentBlockIndex": at}
        if "text" in block:
            for text in _pieces(block["text"]):
                yield "contentBlockDelta", {**place, "delta": {"text": text}}
        else:
            asked = dict(block["toolUse"])
            given = json.dumps(asked.pop("input"))
            yield "contentBlockStart", {**place, "start": {"toolUse": asked}}
            for text in _pieces(given):
                yield "contentBlockDelta", {**place, "delta": {"toolUse": {"input": text}}}
        yield "contentBlockStop", place
    yield "messageStop", {"stopReason": made["stopReason"]}
    yield "metadata", {"usage": made["usage"], "metrics": {"latencyMs": 1}}


def claude(said: Said) -> dict[str, Any]:
    content: list[Any] = [{"type": "text", "text": said.text}] if said.text else []
    content += [
        {"type": "tool_use", "id": id_, "name": name, "input": given}
        for id_, name, given in said.calls
    ]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": "max_tokens" if said.is_cut else "tool_use" if said.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1]},
    }


def claude_events(said: Said) -> Iterator[dict[str, Any]]:
    made = claude(said)
    usage = {**made["usage"], "output_tokens": 1}
    begun = {**made, "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": begun}
    for at, block in enumerate(made["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        yield {"type": "content_block_start", "index": at, "content_block": empty}
        for text in _pieces(block["text"] if is_text else json.dumps(block["input"])):
            kind, field = (
                ("text_delta", "text") if is_text else ("input_json_delta", "partial_json")
            )
            yield {"type": "content_block_delta", "index": at, "delta": {"type": kind, field: text}}
        yield {"type": "content_block_stop", "index": at}
    ended = {"stop_reason": made["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": made["usage"]}
    yield {"type": "message_stop"}


def ollama(said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.calls:
        functions = [{"name": name, "arguments": given} for _, name, given in said.calls]
        message["tool_calls"] = [{"function": function} for function in functions]
    return {
        "model": "m",
        "message": message,
        "done": True,
        "done_reason": "length" if said.is_cut else "stop",
        "prompt_eval_count": TOKENS[0],
        "eval_count": TOKENS[1],
    }


def ollama_events(said: Said) -> Iterator[dict[str, Any]]:
    made = ollama(said)
    for text in _pieces(said.text):
        yield {"model": "m", "message": {"role": "assistant", "content": text}, "done": False}
    for call in made["message"].get("tool_calls", ()):
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"model": "m", "message": message, "done": False}
    yield {**made, "message": {"role": "assistant", "content": ""}}


def cohere(said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    if said.calls:
        message["tool_plan"] = said.text
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": n, "arguments": json.dumps(given)}}
            for id_, n, given in said.calls
        ]
    else:
        message["content"] = [{"type": "text", "text": said.text}]
    ended = "MAX_TOKENS" if said.is_cut else "TOOL_CALL" if said.calls else "COMPLETE"
    tokens = {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1]}
    usage = {"billed_units": {"input_tokens": 1, "output_tokens": 1}, "tokens": tokens}
    return {"id": "c1", "message": message, "finish_reason": ended, "usage": usage}


def cohere_events(said: Said) -> Iterator[dict[str, Any]]:
    made = cohere(said)

    def event(kind: str, at: int | None = None, **message: Any) -> dict[str, Any]:
        place = {} if at is None else {"index": at}
        return {"type": kind, **place, "delta": {"message": message}}

    yield {"id": "c1", **event("message-start", role="assistant", content=[], tool_calls=[])}
    for text in _pieces(made["message"].get("tool_plan", "")):
        yield event("tool-plan-delta", tool_plan=text)
    for at, part in enumerate(made["message"].get("content", ())):
        yield event("content-start", at, content={"type": "text", "text": ""})
        for text in _pieces(part["text"]):
            yield event("content-delta", at, content={"text": text})
        yield {"type": "content-end", "index": at}
    for at, call in enumerate(made["message"].get("tool_calls", ())):
        function = {**call["function"], "arguments": ""}
        yield event("tool-call-start", at, tool_calls={**call, "function": function})
        for text in _pieces(call["function"]["arguments"]):
            yield event("tool-call-delta", at, tool_calls={"function": {"arguments": text}})
        yield {"type": "tool-call-end", "index": at}
    ended = {"finish_reason": made["finish_reason"], "usage": made["usage"]}
    yield {"type": "message-end", "delta": ended}


# Streams --------------------------------------------------------------------------------------------


def frame(kind: str, payload: Any, message: str = "event") -> bytes:
    """One frame of Amazon's event streams. message: `event` or `exception`."""
    named = {
        ":message-type": message,
        f":{message}-type": kind,
        ":content-type": "application/json",
    }
    headers = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in named.items()
    )
    body = json.dumps(payload).encode()
    head = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    head += struct.pack(">I", zlib.crc32(head))
    made = head + headers + body
    return made + struct.pack(">I", zlib.crc32(made))


def chunk(event: Any) -> bytes:
    """An event of a model's own form, as Bedrock passes it on."""
    return frame(
        "chunk", {"bytes": base64.b64encode(json.dumps(event).encode()).decode(), "p": "ab"}
    )


def line(event: Any) -> bytes:
    return json.dumps(event).encode() + b"\n"


def sent_event(event: Any) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


class Form(NamedTuple):
    """How a provider answers. kind: content type of its streams. events: of a streamed answer, encoded."""

    name: str
    kind: str
    answer: Callable[[Said], dict[str, Any]]
    events: Callable[[Said], list[bytes]]


FRAMES = "application/vnd.amazon.eventstream"
CONVERSE = Form(
    "converse", FRAMES, converse, lambda said: [frame(*one) for one in converse_events(said)]
)
CLAUDE = Form("anthropic", FRAMES, claude, lambda said: [chunk(one) for one in claude_events(said)])
OLLAMA = Form(
    "ollama",
    "application/x-ndjson",
    ollama,
    lambda said: [line(one) for one in ollama_events(said)],
)
COHERE = Form(
    "cohere", "text/event-stream", cohere, lambda said: [sent_event(e) for e in cohere_events(said)]
)


def stream(kind: str, events: Iterable[bytes], *, ends: bool = True) -> Reply:
    """A streamed answer of these events. ends: False breaks the connection behind them."""

    def reply(handler: Handler, _request: Request) -> None:
        handler.send_response(200)
        handler.send_header("content-type", kind)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for piece in events:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if ends:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.close_connection = True

    return reply


# Clients --------------------------------------------------------------------------------------------


class Tool(NamedTuple):
    name: str
    schema: dict[str, Any]


Turn = tuple[Any, Said]
"""The message that continues the conversation, and what it says."""


class Way:
    """A client that asks for answers of a form. streamed: in pieces."""

    form: Form
    signed = False
    """Its requests cannot be changed."""

    def __init__(self, *, streamed: bool) -> None:
        self.streamed = streamed

    def __str__(self) -> str:
        return f"{type(self).__name__} {'streamed' if self.streamed else 'whole'}"

    def reply(self, said: Said) -> Reply:
        """The answer as this client expects it."""
        if self.streamed:
            return stream(self.form.kind, self.form.events(said))
        body = json.dumps(self.form.answer(said)).encode()
        return lambda handler, _request: handler.answer(200, body)

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def results(self, calls: Any, outputs: list[str]) -> list[Any]:
        raise NotImplementedError

    def ask(self, url: str, messages: list[Any], tools: list[Tool]) -> Turn:
        raise NotImplementedError


SESSION = boto3.Session("AKID", "secret", region_name="us-east-1")


def bedrock(url: str, **retries: Any) -> Any:
    """A client of boto3's."""
    config = Config(retries=retries or {"total_max_attempts": 1}, read_timeout=5)
    return SESSION.client("bedrock-runtime", endpoint_url=url, config=config)


class Converse(Way):
    """boto3's `converse` and `converse_stream`."""

    form = CONVERSE

    def user(self, text: str) -> Any:
        return {"role": "user", "content": [{"text": text}]}

    def results(self, calls: Any, outputs: list[str]) -> list[Any]:
        blocks = [
            {"toolResult": {"toolUseId": id_, "content": [{"text": output}]}}
            for (id_, _, _), output in zip(calls, outputs, strict=True)
        ]
        return [{"role": "user", "content": blocks}]

    def ask(self, url: str, messages: list[Any], tools: list[Tool]) -> Turn:
        specs = [
            {"toolSpec": {"name": tool.name, "inputSchema": {"json": tool.schema}}}
            for tool in tools
        ]
        given: dict[str, Any] = {"modelId": "m:0", "messages": messages}
        if specs:
            given["toolConfig"] = {"tools": specs}
        client = bedrock(url)
        if not self.streamed:
            message = client.converse(**given)["output"]["message"]
        else:
            with closing(client.converse_stream(**given)["stream"]) as events:
                message = _of_events(events)
        text = "".join(block.get("text", "") for block in message["content"])
        asked = [block["toolUse"] for block in message["content"] if "toolUse" in block]
        calls = tuple((one["toolUseId"], one["name"], one["input"]) for one in asked)
        return message, Said(text, calls)


def _of_events(events: Iterable[Any]) -> Any:
    blocks: dict[int, Any] = {}
    for event in events:
        if "contentBlockStart" in event:
            begun = event["contentBlockStart"]
            blocks[begun["contentBlockIndex"]] = {
                "toolUse": {**begun["start"]["toolUse"], "input": ""}
            }
        if "contentBlockDelta" in event:
            at, delta = (
                event["contentBlockDelta"]["contentBlockIndex"],
                event["contentBlockDelta"]["delta"],
            )
            if "text" in delta:
                blocks.setdefault(at, {"text": ""})["text"] += delta["text"]
            else:
                blocks[at]["toolUse"]["input"] += delta["toolUse"]["input"]
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    return {"role": "assistant", "content": [blocks[at] for at in sorted(blocks)]}


class _Claude(Way):
    form = CLAUDE

    def results(self, calls: Any, outputs: list[str]) -> list[Any]:
        blocks = [
            {"type": "tool_result", "tool_use_id": id_, "content": output}
            for (id_, _, _), output in zip(calls, outputs, strict=True)
        ]
        return [{"role": "user", "content": blocks}]

    def given(self, messages: list[Any], tools: list[Tool]) -> dict[str, Any]:
        specs = [{"name": tool.name, "input_schema": tool.schema} for tool in tools]
        return {"max_tokens": 1_000, "messages": messages, "tools": specs}

    def said(self, content: list[Any]) -> Turn:
        text = "".join(block["text"] for block in content if block["type"] == "text")
        asked = [block for block in content if block["type"] == "tool_use"]
        calls = tuple((one["id"], one["name"], one["input"]) for one in asked)
        return {"role": "assistant", "content": content}, Said(text, calls)


class Invoke(_Claude):
    """boto3's `invoke_model` and `invoke_model_with_response_stream`, with a body of Anthropic's."""

    def ask(self, url: str, messages: list[Any], tools: list[Tool]) -> Turn:
        given = {"anthropic_version": "bedrock-2023-05-31", **self.given(messages, tools)}
        client, body = bedrock(url), json.dumps(given)
        model = "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude"
        if not self.streamed:
            answer = client.invoke_model(modelId=model, body=body)
            return self.said(json.loads(answer["body"].read())["content"])
        answer = client.invoke_model_with_response_stream(modelId=model, body=body)
        blocks: dict[int, Any] = {}
        with closing(answer["body"]) as frames:
            events = [json.loads(one["chunk"]["bytes"]) for one in frames]
        for event in events:
            if event["type"] == "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "input": ""}
            if event["type"] == "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                else:
                    block["input"] += delta["partial_json"]
        for block in blocks.values():
            if block["type"] == "text":
                del block["input"]
            else:
                block["input"] = json.loads(block["input"])
        return self.said(list(blocks.values()))


class AnthropicBedrock(_Claude):
    """Anthropic's client for Bedrock, which signs its requests before httpx has them."""

    signed = True

    def ask(self, url: str, messages: list[Any], tools: list[Tool]) -> Turn:
        client = anthropic.AnthropicBedrock(
            aws_access_key="AKID",
            aws_secret_key="secret",
            aws_region="us-east-1",
            base_url=url,
            max_retries=0,
        )
        given: Any = {"model": "us.anthropic.claude", **self.given(messages, tools)}
        with client:
            if self.streamed:
                with client.messages.stream(**given) as events:
                    made = events.get_final_message()
            else:
                made = client.messages.create(**given)
        return self.said([block.model_dump(exclude_none=True) for block in made.content])


class _Http(Way):
    path: str

    def ask(self, url: str, messages: list[Any], tools: list[Tool]) -> Turn:
        functions = [{"name": tool.name, "parameters": tool.schema} for tool in tools]
        body = {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function", "function": function} for function in functions],
            "stream": self.streamed,
        }
        with httpx.Client(base_url=url) as client:
            if not self.streamed:
                answer = client.post(self.path, json=body)
                answer.raise_for_status()
                return self.said(answer.json()["message"])
            with client.stream("POST", self.path, json=body) as answer:
                answer.raise_for_status()
                return self.said(self.joined(answer.iter_lines()))

    def said(self, message: dict[str, Any]) -> Turn:
        raise NotImplementedError

    def joined(self, lines: Iterator[str]) -> dict[str, Any]:
        raise NotImplementedError


class Ollama(_Http):
    """Ollama's server, asked by plain HTTP."""

    form = OLLAMA
    path = "/api/chat"

    def results(self, calls: Any, outputs: list[str]) -> list[Any]:
        return [
            {"role": "tool", "tool_name": name, "content": output}
            for (_, name, _), output in zip(calls, outputs, strict=True)
        ]

    def said(self, message: dict[str, Any]) -> Turn:
        asked = [call["function"] for call in message.get("tool_calls", ())]
        calls = tuple(("", one["name"], one["arguments"]) for one in asked)
        return message, Said(message["content"], calls)

    def joined(self, lines: Iterator[str]) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": ""}
        for event in map(json.loads, lines):
            made["content"] += event["message"]["content"]
            if "tool_calls" in event["message"]:
                made.setdefault("tool_calls", []).extend(event["message"]["tool_calls"])
        return made


class Cohere(_Http):
    """Cohere's second version, asked by plain HTTP."""

    form = COHERE
    path = "/v2/chat"

    def results(self, calls: Any, outputs: list[str]) -> list[Any]:
        return [
            {
                "role": "tool",
                "tool_call_id": id_,
                "content": [
                    {"type": "document", "document": {"data": json.dumps({"data": output})}}
                ],
            }
            for (id_, _, _), output in zip(calls, outputs, strict=True)
        ]

    def said(self, message: dict[str, Any]) -> Turn:
        text = "".join(part["text"] for part in message.get("content") or ())
        calls = tuple(
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        return message, Said(text, calls)

    def joined(self, lines: Iterator[str]) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": [], "tool_calls": []}
        for data in lines:
            if not data.startswith("data: "):
                continue
            event = json.loads(data[6:])
            message = event.get("delta", {}).get("message", {})
            match event["type"]:
                case "content-start":
                    made["content"].append({"type": "text", "text": ""})
                case "content-delta":
                    made["content"][-1]["text"] += message["content"]["text"]
                case "tool-call-start":
                    made["tool_calls"].append(message["tool_calls"])
                case "tool-call-delta":
                    function = made["tool_calls"][-1]["function"]
                    function["arguments"] += message["tool_calls"]["function"]["arguments"]
        return {name: value for name, value in made.items() if value}


WAYS: list[Way] = [
    kind(streamed=streamed)
    for kind in (Converse, Invoke, AnthropicBedrock, Ollama, Cohere)
    for streamed in (False, True)
]
