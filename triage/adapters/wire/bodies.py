"""Bodies of answers: events of a stream as they pass, and what a model said in a body that is complete."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypedDict

from triage.core.messages.neutral import Answer
from triage.core.messages.reading import mapping
from triage.core.messages.wires import ProviderWire

DROPPED = frozenset(
    "authorization connection content-encoding content-length cookie keep-alive proxy-authenticate "
    "proxy-authorization set-cookie transfer-encoding www-authenticate x-api-key".split()
)
"""Headers of an answer that are not kept: credentials, and what only the live connection means."""
EVENTS = "text/event-stream"
LINES = ("application/x-ndjson", "application/jsonl", "application/json-lines")
FRAMES = "application/vnd.amazon.eventstream"
"""Frames of Amazon's, which its library reads."""
DONE = "[DONE]"


class Kept(TypedDict):
    """An answer as the journal has it. headers: pairs. body: text, or base64 where it is no UTF-8."""

    status: int
    headers: list[list[str]]
    body: str
    base64: bool


def kept(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Kept:
    """An answer as the journal has it. body: decoded."""
    pairs = [[name, value] for name, value in headers if name.lower() not in DROPPED]
    try:
        return Kept(status=status, headers=pairs, body=body.decode(), base64=False)
    except UnicodeDecodeError:
        text = base64.b64encode(body).decode()
        return Kept(status=status, headers=pairs, body=text, base64=True)


def body_of(answer: Kept) -> bytes:
    """The body of a recorded answer, as it came."""
    return base64.b64decode(answer["body"]) if answer["base64"] else answer["body"].encode()


def content_type(headers: Mapping[str, str] | Iterable[Iterable[str]]) -> str:
    """The content type without its parameters, in lower case; empty without one."""
    pairs: Any = headers.items() if isinstance(headers, Mapping) else headers
    found = next((value for name, value in pairs if name.lower() == "content-type"), "")
    return found.partition(";")[0].strip().lower()


def is_stream(kind: str) -> bool:
    """Whether an answer of this content type comes in pieces."""
    return kind == EVENTS or kind in LINES or (kind == FRAMES and find_spec("botocore") is not None)


def answer_in(wire: ProviderWire, answer: Kept) -> Answer:
    """What the model said; an empty answer where the body cannot be read."""
    response = response_in(wire, answer)
    return Answer() if response is None else wire.answer(response)


def response_in(wire: ProviderWire, answer: Any) -> Any:
    """The response in a recorded answer, as it comes without streaming; None where it cannot be read.

    answer: a `Kept`, or the response itself, as journals before 0.3.0 have it.
    """
    if "body" not in answer:
        return wire.whole(answer) if isinstance(answer, list) else answer
    kind = content_type(answer["headers"])
    body = body_of(answer)
    if is_stream(kind):
        return wire.whole(list(_pieces(kind, body)))
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return wire.whole(data) if isinstance(data, list) else data


def _pieces(kind: str, body: bytes) -> Iterator[Any]:
    reader = Reader(kind)
    for piece in (*reader.feed(body), *reader.rest()):
        if piece != DONE:
            yield piece


class Reader:
    """Reads the events of a stream from its bytes, however these are cut into chunks."""

    def __init__(self, kind: str) -> None:
        self._frames = _Frames() if kind == FRAMES else None
        self._by_lines = kind != EVENTS
        self._tail = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Any]:
        """The events that are complete with this chunk: JSON values, and `DONE`."""
        if self._frames is not None:
            return self._frames.feed(chunk)
        *lines, self._tail = (self._tail + chunk).split(b"\n")
        found: list[Any] = []
        for line in lines:
            found += self._line(line.rstrip(b"\r").decode("utf-8", "replace"))
        return found

    def rest(self) -> list[Any]:
        """The event that the body ends with, without the empty line that ends others."""
        line, self._tail = self._tail.decode("utf-8", "replace"), b""
        return [*self._line(line), *self._line("")]

    def _line(self, line: str) -> Iterator[Any]:
        if self._by_lines:
            yield from _value(line)
        elif line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line and self._data:
            text, self._data = "\n".join(self._data), []
            yield from [DONE] if text.strip() == DONE else _value(text)


def _value(text: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        return


class _Frames:
    """Reads Amazon's frames: `{event: payload}`, the payload of a chunk, or `{"error": …}`."""

    def __init__(self) -> None:
        self._buffer: Any = import_module("botocore.eventstream").EventStreamBuffer()

    def feed(self, chunk: bytes) -> list[Any]:
        """The events that are complete with this chunk; none any more behind a frame that is broken."""
        if self._buffer is None:
            return []
        found: list[Any] = []
        self._buffer.add_data(chunk)
        try:
            for frame in self._buffer:
                found += _event(frame.headers, frame.payload)
        except Exception:  # its reader fails by the same frame, and says so
            self._buffer = None
        return found


def _event(headers: Mapping[str, Any], payload: bytes) -> Iterator[Any]:
    said = mapping(next(_value(payload.decode("utf-8", "replace")), None))
    if headers.get(":message-type") != "event":
        kind = headers.get(":exception-type") or headers.get(":error-code")
        message = said.get("message") or headers.get(":error-message")
        yield {"error": {"type": kind, "message": message}}
    elif isinstance(said.get("bytes"), str):
        yield from _value(base64.b64decode(said["bytes"]).decode("utf-8", "replace"))
    else:
        yield {headers.get(":event-type"): said}
