"""JSON values in bytes, one on each line or spread over several. Malformed content never raises."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

from triage.core import UsageError

from .trajectories import Problem

Source: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO
"""A path, or the content: bytes, an open binary file, or text that starts like JSON."""

LONGEST = 64 * 1024 * 1024
"""Bytes of a line, and of a document over several lines, at most."""
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_OTHER_UTF = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_CONVERT = "save it as UTF-8, for example with iconv"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("|\\?$)|[\[\]{}]')


class Value(NamedTuple):
    """A JSON value and the line it starts on, from 1."""

    line: int
    value: Any


class _Line(NamedTuple):
    number: int
    text: str


def values(source: Source) -> Iterator[Value | Problem]:
    """Read the JSON values of a recording in order, with the problems between them.

    Raises UsageError for a path that cannot be read, and for a source of another type.
    """
    stream, ours = _open(source)
    try:
        yield from _values(_lines(stream))
    finally:
        if ours:
            stream.close()


# Bytes to lines -----------------------------------------------------------------------------------


def _open(source: Source) -> tuple[io.BufferedReader, bool]:
    """Open a source; also return whether the caller must close it."""
    if isinstance(source, str) and source.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        source = source.encode("utf-8", "surrogatepass")
    if isinstance(source, bytes | bytearray):
        return io.BufferedReader(io.BytesIO(source)), True
    if isinstance(source, str | os.PathLike):
        try:
            return Path(source).open("rb"), True
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            name = os.fspath(source)[:500]
            raise UsageError(f"{name}: cannot be read: {why}; give the path of a file") from error
    if isinstance(source, io.BufferedReader):
        return source, False
    if hasattr(source, "readinto") and hasattr(source, "readable"):
        return io.BufferedReader(cast("Any", source)), False
    raise UsageError(
        f"a recording must be a path, bytes or a file open in binary mode, not {type(source).__name__}"
    )


def _lines(stream: io.BufferedReader) -> Iterator[_Line | Problem]:
    number = 0
    plain = stream
    try:
        if stream.peek(2)[:2] == _GZIP:
            plain = io.BufferedReader(gzip.GzipFile(fileobj=stream))
        start = plain.peek(64)[:64]
        if start.startswith(_OTHER_UTF) or b"\0" in start:
            what = "is UTF-16 or UTF-32" if start.startswith(_OTHER_UTF) else "is binary or UTF-16"
            yield Problem(0, f"the file {what}, which is not read", _CONVERT)
            return
        while raw := plain.readline(LONGEST + 1):
            number += 1
            if len(raw) > LONGEST:
                while not raw.endswith(b"\n") and (raw := plain.readline(LONGEST)):
                    pass
                yield Problem(number, f"the line has more than {LONGEST:,} bytes", "split it")
                continue
            yield from _decoded(number, raw.removeprefix(_BOM) if number == 1 else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield Problem(number + 1, f"the compressed data ends or breaks here: {error}")
    except OSError as error:
        yield Problem(number + 1, f"cannot be read further: {error.strerror or error}")


def _decoded(number: int, raw: bytes) -> Iterator[_Line | Problem]:
    try:
        yield _Line(number, raw.decode("utf-8").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        text = f"byte {error.start + 1} of the line is not UTF-8; such bytes are read as \ufffd"
        yield Problem(number, text, _CONVERT)
        yield _Line(number, raw.decode("utf-8", "replace").rstrip("\r\n"))


# Lines to values ----------------------------------------------------------------------------------


def parsed(text: str) -> Any:
    """Parse a JSON text. Raises ValueError for whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _Open:
    """A document over several lines: the lines so far and the brackets still open."""

    def __init__(self, line: _Line) -> None:
        self.lines: list[_Line] = []
        self.brackets: list[str] = []
        self.size = 0
        self.torn = False
        self.add(line)

    def add(self, line: _Line) -> None:
        self.lines.append(line)
        self.size += len(line.text)
        for token in _TOKEN.finditer(line.text):
            found = token[0][0]
            if found == '"':
                self.torn = self.torn or token[1] != '"'
            elif found in "{[":
                self.brackets.append(found)
            elif self.brackets:
                self.brackets.pop()

    @property
    def unfinished(self) -> bool:
        """Whether a further line can complete it: brackets are open and no string is."""
        return bool(self.brackets) and not self.torn and self.size <= LONGEST

    def goes_on_with(self, text: str) -> bool:
        """Whether JSON can continue with this line, which it cannot where no value may follow."""
        if text[:1] not in ("{", "["):
            return True
        last = self.lines[-1].text.rstrip()[-1:]
        return last in {"", ":"} or (self.brackets[-1] == "[" and last in {",", "["})


def _values(lines: Iterator[_Line | Problem]) -> Iterator[Value | Problem]:
    held: _Open | None = None
    for line in lines:
        if isinstance(line, Problem):
            yield line
            continue
        if held is not None and held.goes_on_with(line.text):
            held.add(line)
            if not held.unfinished:
                yield from _document(held.lines)
                held = None
            continue
        if held is not None:
            yield from _document(held.lines)
            held = None
        if not line.text.strip():
            continue
        try:
            yield Value(line.number, parsed(line.text))
        except ValueError as error:
            held = _Open(line)
            if not held.unfinished:
                held = None
                yield _refused(line.number, error)
    if held is not None:
        yield from _document(held.lines)


def _document(lines: list[_Line]) -> Iterator[Value | Problem]:
    """Read a value over several lines; if it is broken, the values on single lines of it."""
    first = lines[0].number
    try:
        yield Value(first, parsed("\n".join(line.text for line in lines)))
    except ValueError as error:
        broken = _refused(first, error)
        yield broken
        for line in lines:
            text = line.text.strip().rstrip(",")
            if not text.startswith(('{"', "[{")):
                continue
            try:
                yield Value(line.number, parsed(text))
            except ValueError as problem:
                if line.number != broken.line and line.text[:1] in "{[" and text[-1:] in "}]":
                    yield _refused(line.number, problem)


def _refused(line: int, error: ValueError) -> Problem:
    if isinstance(error, json.JSONDecodeError):
        remedy = "the line may be cut, or be no JSON"
        return Problem(
            line + error.lineno - 1, f"is not JSON: {error.msg}", remedy, column=error.colno
        )
    return Problem(line, f"is not JSON that can be read: {str(error)[:200]}")
