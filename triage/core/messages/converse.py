"""Messages of Amazon Bedrock's Converse API, and of models with the same form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from triage.core.json_values import plain
from triage.core.steps import Usage

from .neutral import Answer, Asked, Message, Result, Tell, tell_nobody
from .reading import as_data, as_text, listed, mapping, text_or_none, usage_of
from .receipts import Shrink
from .wires import BlockWire

_SILENT = ("reasoningContent", "cachePoint")
"""Blocks without words for the other side."""


class ConverseWire(BlockWire):
    """Results are blocks at the start of the user's turn after the one with the calls; turns alternate."""

    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        found = mapping(as_data(message))
        role = as_text(found.get("role"))
        if role not in ("user", "assistant"):
            tell(f"a message has the role {role[:40]!r}", "the roles are user and assistant")
        is_model = role == "assistant"
        words: list[str] = []
        calls: list[Asked] = []
        results: list[Result] = []
        server_calls: list[Asked] = []
        for block in _content(found):
            asked = mapping(block.get("toolUse"))
            if asked:
                named = as_text(asked.get("toolUseId")), as_text(asked.get("name"))
                by_server = asked.get("type") == "server_tool_use"
                (server_calls if by_server else calls).append(Asked(*named, asked.get("input")))
            elif _is_result(block):
                results.append(_result(block["toolResult"]))
            else:
                words += filter(None, (_text(block),))
        return Message(
            "model" if is_model else "tool" if results else "user",
            "\n".join(words),
            tuple(calls),
            () if is_model else tuple(results),
            server_calls=tuple(server_calls),
            server_results=tuple(results) if is_model else (),
        )

    def user(self, text: str) -> Any:
        return {"role": "user", "content": [{"text": text}]}

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        # Not every model accepts a status, so only the text reports a failure.
        return {"toolResult": {"toolUseId": asked.id, "content": [{"text": text}]}}

    def blocks(self, message: Any) -> list[Any]:
        return _content(message)

    def is_result(self, block: Any) -> bool:
        return _is_result(block)

    def masked(self, message: Any, outputs: Mapping[int, str]) -> Any:
        blocks = _content(message)
        places = [at for at, block in enumerate(blocks) if _is_result(block)]
        for place, text in outputs.items():
            given = blocks[places[place]]["toolResult"]
            blocks[places[place]] = {"toolResult": {**given, "content": [{"text": text}]}}
        return {**as_data(message), "content": blocks}

    def shown(self, message: Any) -> Any:
        shown: list[Any] = []
        for block in _content(message):
            if _is_result(block):
                shown.append({"result": plain(_result(block["toolResult"]).output)})
            else:
                shown += filter(None, (_text(block),))
        return {"role": plain(mapping(as_data(message)).get("role")), "content": shown}

    def ending_with(self, messages: list[Any], text: str) -> list[Any]:
        """Append to the user's last turn, in the last result if the turn has no words.

        Two user turns in a row are refused, and many models refuse words beside results.
        """
        last = messages[-1] if messages else None
        if mapping(as_data(last)).get("role") != "user":
            return [*messages, self.user(text)]
        blocks = _content(last)
        results = [at for at, block in enumerate(blocks) if _is_result(block)]
        if results and not any("text" in block for block in blocks):
            given = blocks[results[-1]]["toolResult"]
            told = [*listed(given.get("content")), {"text": text}]
            blocks[results[-1]] = {"toolResult": {**given, "content": told}}
        else:
            blocks.append({"text": text})
        return [*messages[:-1], {**as_data(last), "content": blocks}]

    def shrunk(self, messages: Sequence[Any], shrink: Shrink | None) -> Any:
        """Shorten as in `Wire`; turns that alternate still alternate afterwards."""
        made = super().shrunk(messages, shrink)
        if any(map(_are_users, messages, messages[1:])):
            return made
        joined: list[Any] = []
        for message in made:
            if joined and _are_users(joined[-1], message):
                content = [*_content(joined[-1]), *_content(message)]
                joined[-1] = {**as_data(message), "content": content}
            else:
                joined.append(message)
        return joined

    def answer(self, response: Any) -> Answer:
        found = mapping(response)
        said = self.read(
            {**mapping(mapping(found.get("output")).get("message")), "role": "assistant"}
        )
        ended = text_or_none(found.get("stopReason"))
        return replace(said.answer, usage=_usage(mapping(found.get("usage"))), ended=ended)

    def whole(self, pieces: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        blocks: dict[Any, dict[str, Any]] = {}
        inputs: dict[Any, str] = {}
        for piece in map(mapping, pieces):
            begun, more = mapping(piece.get("contentBlockStart")), piece.get("contentBlockDelta")
            if begun:
                blocks[begun.get("contentBlockIndex", 0)] = dict(mapping(begun.get("start")))
            if isinstance(more, dict):
                at, delta = more.get("contentBlockIndex", 0), mapping(more.get("delta"))
                block = blocks.setdefault(at, {})
                if "text" in delta:
                    block["text"] = as_text(block.get("text")) + as_text(delta["text"])
                elif "toolUse" in delta:
                    inputs[at] = inputs.get(at, "") + as_text(
                        mapping(delta["toolUse"]).get("input")
                    )
                elif "reasoningContent" in delta:
                    _reason(block, mapping(delta["reasoningContent"]))
            for name in ("messageStop", "metadata"):
                found |= mapping(piece.get(name))
        for at, block in blocks.items():
            asked = mapping(block.get("toolUse"))
            if asked or at in inputs:
                block["toolUse"] = {**asked, "input": _parsed(inputs.get(at, ""))}
        message = {"role": "assistant", "content": list(blocks.values())}
        return {**found, "output": {"message": message}}

    def is_whole(self, pieces: list[Any]) -> bool:
        return any("metadata" in mapping(piece) for piece in pieces[-2:])

    def turn(self, response: Any) -> list[Any]:
        return [response["output"]["message"]]

    def declared(self, name: str, description: str | None, schema: Any) -> dict[str, Any]:
        made = {"name": name, "inputSchema": {"json": schema or {"type": "object"}}}
        return {"toolSpec": {**made, "description": description} if description else made}


def _are_users(one: Any, other: Any) -> bool:
    return all(mapping(as_data(message)).get("role") == "user" for message in (one, other))


def _content(message: Any) -> list[Any]:
    content = mapping(as_data(message)).get("content")
    if isinstance(content, str):
        return [{"text": content}]
    return [block for block in listed(content) if isinstance(block, dict)]


def _is_result(block: Mapping[str, Any]) -> bool:
    return isinstance(block.get("toolResult"), dict)


def _result(given: Mapping[str, Any]) -> Result:
    """Read a result: its JSON if it holds nothing else, otherwise its text."""
    parts = [mapping(part) for part in listed(given.get("content"))]
    output: Any = "\n".join(
        as_text(part["json"]) if "json" in part else _text(part) for part in parts
    )
    if len(parts) == 1 and "json" in parts[0]:
        output = parts[0]["json"]
    return Result(as_text(given.get("toolUseId")), output, failed=given.get("status") == "error")


def _text(block: Mapping[str, Any]) -> str:
    cited = mapping(block.get("citationsContent"))
    if cited:
        return "".join(as_text(mapping(part).get("text")) for part in listed(cited.get("content")))
    said = block.get("text")
    if isinstance(said, str):
        return said
    return ", ".join(f"[{name}]" for name in block if name not in _SILENT)


def _reason(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a piece of the model's reasoning to the block."""
    known = mapping(mapping(block.get("reasoningContent")).get("reasoningText"))
    if "redactedContent" in delta:
        block["reasoningContent"] = dict(delta)
        return
    more = {name: as_text(known.get(name)) + as_text(text) for name, text in delta.items()}
    block["reasoningContent"] = {"reasoningText": {**known, **more}}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text


def _usage(found: Mapping[str, Any]) -> Usage | None:
    given, made = found.get("inputTokens"), found.get("outputTokens")
    cached = [found.get(name) for name in ("cacheReadInputTokens", "cacheWriteInputTokens")]
    if isinstance(given, int):  # tokens read from and written to the cache were sent, too
        given += sum(count for count in cached if isinstance(count, int))
    return usage_of({"input_tokens": given, "output_tokens": made})


CONVERSE = ConverseWire()
