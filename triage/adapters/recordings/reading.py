"""Reading a recording: the JSON values in its bytes, its form, and the attempts in it.

Malformed content never raises: it becomes a `Problem`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias, cast

from msgspec.structs import replace

from triage.core.errors import StoreError, UsageError
from triage.core.events import AttemptStarted
from triage.core.messages import neutral, reading, wires
from triage.core.messages.anthropic import ANTHROPIC as ANTHROPIC_WIRE
from triage.core.messages.chat import CHAT
from triage.core.messages.gemini import GEMINI as GEMINI_WIRE
from triage.core.messages.reading import number
from triage.core.messages.responses import RESPONSES as RESPONSES_WIRE
from triage.core.state import RunState
from triage.core.steps import Step, Trajectory
from triage.core.taxonomy import Effect
from triage.core.wire import EVENTS, load

from .otlp import FORMAT as OTLP
from .otlp import OtlpReader
from .trajectories import Conversation, Problem, Problems, Trace, error_in, error_of, trajectory_of

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
    """A JSON value and the line it starts on, from 1. Of a file that is no JSON, its text is the value."""

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
    text: list[str] = []
    held: list[Value | Problem] = []
    found = False

    def lines() -> Iterator[_Line | Problem]:
        for line in _lines(stream):
            if isinstance(line, _Line) and not found and len(text) <= _MOST_TEXT:
                text.append(line.text)
            yield line

    try:
        for entry in _values(lines()):
            if found:
                yield entry
            elif isinstance(entry, Value) and isinstance(entry.value, dict | list):
                found = True
                yield from (*held, entry)
            elif len(held) <= _MOST_TEXT:
                held.append(entry)
        if not found:
            yield from _text("\n".join(text), held)
    finally:
        if ours:
            stream.close()


_MOST_TEXT = 10_000
"""Lines that are kept of a file without JSON."""
_BEGINS_JSON = re.compile(r"\s*(?:\{|\[\s*(?:[\[{\"\]]|\Z))")
_SSE = re.compile(r"\s*(?:(?:event|data|id|retry):|: )")


def _text(text: str, held: list[Value | Problem]) -> Iterator[Value | Problem]:
    """Read a file that holds no JSON object: as server-sent events, or as one text."""
    broken = any(isinstance(entry, Problem) and not entry.line for entry in held)
    if not text.strip() or broken or _BEGINS_JSON.match(text):
        yield from held
        return
    if not _SSE.match(text):
        yield Value(1, text)
        return
    for at, line in enumerate(text.split("\n"), 1):
        try:
            event = (
                reading.mapping(parsed(line.removeprefix("data:"))) if line[:5] == "data:" else {}
            )
        except ValueError:
            continue
        error = event.get("error") or reading.mapping(event.get("response")).get("error")
        if error:
            yield Value(at, {"error": error})
            return
    yield Problem(0, "the file is a stream of server-sent events", "save the message they make up")


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


# Values to traces ---------------------------------------------------------------------------------

OPENAI, RESPONSES, ANTHROPIC = "openai", "responses", "anthropic"
GEMINI, JOURNAL, PLAIN, TEXT = "gemini", "journal", "steps", "text"
FORMATS: dict[str, str] = {
    OPENAI: "OpenAI chat messages",
    RESPONSES: "items of the OpenAI Responses API",
    ANTHROPIC: "Anthropic messages",
    GEMINI: "contents of the Gemini API",
    OTLP: "OpenTelemetry GenAI spans, as OTLP JSON",
    JOURNAL: "journals of triage",
    PLAIN: "plain steps, or an error alone",
    TEXT: "the text of an error, such as a traceback",
}
"""The formats: the name that `format=` takes, and a description."""

MAX_PROBLEMS = 100
"""Problems listed for one recording, at most; the rest are counted."""
SAMPLE = 20
"""Values of a recording read to detect its format."""
STEP_FIELDS = frozenset(
    {"action", "tool_called", "tool_input", "tool_output", "llm_output", "exception_type"}
)
"""Fields that identify an object as a step."""
_HEAVY = (
    "steps",
    "messages",
    "contents",
    "tools",
    "tool_schemas",
    "functions",
    "input",
    "output",
    "choices",
)
_DEEP = "it is nested too deeply to be read"


class Reading(NamedTuple):
    """A whole recording. format: None if not recognized. reason: why this format was chosen."""

    format: str | None
    reason: str
    traces: list[Trace]
    problems: list[Problem]


class Reader(Protocol):
    """Takes the records of a file one by one and returns the traces in them."""

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        """Add a record."""
        ...

    def close(self) -> Iterator[Trace | Problem]:
        """Return what remains when all records have been added."""
        ...


class Recording(Iterator[Trace | Problem]):
    """A recording read while it is iterated over, yielding traces and problems in order.

    format: None if not recognized. reason: why this format was chosen.
    """

    def __init__(self, format: str | None, reason: str, found: Iterator[Trace | Problem]) -> None:
        self.format = format
        self.reason = reason
        self._found = found

    def __next__(self) -> Trace | Problem:
        return next(self._found)


def stream(source: Source, format: str | None = None) -> Recording:
    """Read a recording while iterating over it.

    source: a path, or the content as bytes, an open binary file, or a text that begins with a bracket.
    Gzip is unpacked. format: one of `FORMATS`; None detects it from the first values. A file with a record
    on each line is read line by line; journals and OpenTelemetry traces, which may be spread over a file,
    are yielded at its end. Malformed content never raises. Raises UsageError for a path that cannot be
    read and for an unknown format.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"format {format!r} is not known; the formats are {', '.join(FORMATS)}")
    found = values(source)
    if format is not None:
        return Recording(format, "it was asked for", _capped(_traces(found, format)))
    sample: list[Value | Problem] = []
    taken = 0
    for entry in found:
        sample.append(entry)
        taken += isinstance(entry, Value)
        if taken == SAMPLE or len(sample) > MAX_PROBLEMS:
            break
    detection = detect(entry.value for entry in sample if isinstance(entry, Value))
    if detection.format is not None:
        traces = _traces(chain(sample, found), detection.format)
        return Recording(detection.format, detection.reason, _capped(traces))
    problems = [entry for entry in sample if isinstance(entry, Problem)]
    if taken:
        problems.append(Problem(0, detection.reason, detection.remedy))
    elif not problems:
        problems.append(Problem(0, "the file holds nothing", "give a file with a recording in it"))
    return Recording(None, detection.reason, _capped(iter(problems)))


def read(source: Source, format: str | None = None) -> Reading:
    """Read a whole recording: its traces, its problems and its format.

    Arguments and errors are those of `stream`. At most 100 problems are listed, and a last one counts
    the rest.
    """
    recording = stream(source, format)
    traces: list[Trace] = []
    problems: list[Problem] = []
    for found in recording:
        if isinstance(found, Trace):
            traces.append(found)
        else:
            problems.append(found)
    return Reading(recording.format, recording.reason, traces, problems)


def _capped(found: Iterable[Trace | Problem]) -> Iterator[Trace | Problem]:
    """List the first problems, and count the rest in a last one."""
    problems = 0
    for entry in found:
        if isinstance(entry, Problem):
            problems += 1
            if problems > MAX_PROBLEMS:
                continue
        yield entry
    if problems > MAX_PROBLEMS:
        yield Problem(0, f"{problems - MAX_PROBLEMS} more problems are not listed")


def _traces(found: Iterable[Value | Problem], name: str) -> Iterator[Trace | Problem]:
    reader = _READERS[name]()
    for entry in found:
        if isinstance(entry, Problem):
            yield entry
            continue
        for record in records(entry.value):
            try:
                yield from reader.feed(entry.line, record)
            except RecursionError:
                yield Problem(entry.line, _DEEP)
    try:
        yield from reader.close()
    except RecursionError:
        yield Problem(0, _DEEP)


# Conversations --------------------------------------------------------------------------------------


class _Conversations:
    """Conversations: each record is one, or the whole file is one and each record a message."""

    def __init__(self, name: str, wire: wires.Wire) -> None:
        self._name, self._wire = name, wire
        self._loose: Conversation | None = None
        self._line = 0

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        problems = Problems(line)
        if not isinstance(value, dict | list):
            yield Problem(line, f"a record must be an object or a list, not {type(value).__name__}")
            return
        if isinstance(value, dict) and self._is_message(value):
            if self._loose is None:
                self._loose, self._line = Conversation(), line
            self._take(value, self._loose, problems.tell)
            yield from problems
            return
        record = reading.mapping(value)
        conversation = Conversation(record.get("task"))
        self._take(value, conversation, problems.tell)
        conversation.error = conversation.error or error_of(record.get("error") or None)
        yield from problems
        yield from self._finished(conversation, line, record)

    def close(self) -> Iterator[Trace | Problem]:
        if self._loose is not None:
            yield from self._finished(self._loose, self._line, {})

    def _finished(
        self, conversation: Conversation, line: int, record: Mapping[str, Any]
    ) -> Iterator[Trace | Problem]:
        if conversation.steps or conversation.error is not None:
            yield _trace(conversation.trajectory(), self._name, line, record)
        else:
            yield Problem(line, "there is nothing in it that an agent did")

    def _is_message(self, value: dict[str, Any]) -> bool:
        if "messages" in value or "choices" in value:
            return False
        if self._name == GEMINI:
            return "parts" in value
        if self._name != RESPONSES:
            return "role" in value
        is_call = reading.as_text(value.get("type")).endswith(("_call", "_output"))
        is_response = value.get("object") == "response" or ("output" in value and not is_call)
        return ("type" in value or "role" in value) and not is_response

    def _take(self, value: Any, into: Conversation, tell: neutral.Tell) -> None:
        """Add a message, a list of messages, a request or a response to a conversation."""
        if isinstance(value, list):
            for entry in value:
                self._take(entry, into, tell)
        elif not isinstance(value, dict):
            tell(f"a message must be an object, not {type(value).__name__}", "")
        elif self._is_message(value):
            message = self._wire.read(value, tell)
            if self._name == GEMINI:
                message = replace(message, results=tuple(map(_unwrapped, message.results)))
            into.take(message, tell)
        else:
            into.tools.update(reading.tools_of(value.get("tools") or value.get("functions")))
            given = value.get({RESPONSES: "input", GEMINI: "contents"}.get(self._name, "messages"))
            if isinstance(given, str):
                into.take(neutral.Message("user", given), tell)
            elif isinstance(given, list):
                self._take(given, into, tell)
            elif given is not None:
                tell(f"messages must be a list, not {type(given).__name__}", "")
            if not self._take_answer(value, into, tell) and given is None:
                tell("there are neither messages nor an answer", "")

    def _take_answer(self, record: dict[str, Any], into: Conversation, tell: neutral.Tell) -> bool:
        """Add the answer in a record to a conversation; return False if there is none."""
        choices, output, answer = map(record.get, ("choices", "output", "response"))
        if self._name == OPENAI and isinstance(choices, list) and choices:
            if isinstance(reading.mapping(choices[0]).get("message"), dict):
                into.take(CHAT.choice(record), tell)
            else:
                tell("a choice has no message", "a streamed answer must be put together first")
        elif self._name == RESPONSES and isinstance(output, list):
            before = len(into.steps)
            self._take(output, into, tell)
            usage = reading.usage_of(record.get("usage"), record.get("model"))
            if usage is not None:
                grown = len(into.steps) > before
                (into.steps[-1] if grown else into.add(action="model"))["usage"] = usage
            reason = reading.mapping(record.get("incomplete_details")).get("reason")
            into.error = error_of(record.get("error") or None) or neutral.ending_of(reason)
        elif self._name == GEMINI and isinstance(record.get("candidates"), list):
            made = GEMINI_WIRE.answer(record)
            into.take(
                neutral.Message("model", made.text, made.calls, usage=made.usage, ended=made.ended),
                tell,
            )
        elif self._name == ANTHROPIC and isinstance(answer, dict):
            self._take(answer, into, tell)
        elif self._name == ANTHROPIC and "stop_reason" in record and "content" in record:
            into.take(self._wire.read({**record, "role": "assistant"}), tell)
        else:
            return False
        return True


def _unwrapped(result: neutral.Result) -> neutral.Result:
    """Return a function's response without the `result` or `error` that its client put around it."""
    held = result.output
    for key in ("result", "output", "error"):
        if isinstance(held, dict) and held.keys() == {key}:
            return replace(result, output=held[key], failed=key == "error")
    return result


def _trace(trajectory: Trajectory, name: str, line: int, record: Mapping[str, Any]) -> Trace:
    fields = {key: value for key, value in record.items() if key not in _HEAVY}
    names = ("id", "trace_id", "conversation_id", "custom_id")
    known = next((reading.as_text(fields[key]) for key in names if fields.get(key)), "")
    return Trace(trajectory, name, line, known, reading.text_or_none(fields.get("outcome")), fields)


# Plain steps ----------------------------------------------------------------------------------------


class _Plain:
    """Plain steps: each record is an attempt with steps, or a step of the file's only attempt."""

    def __init__(self) -> None:
        self._loose: list[Step] = []
        self._line = 0

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        problems = Problems(line)
        if isinstance(value, list) and value and all(map(_is_error, value)):
            for entry in value:
                yield from self.feed(line, entry)
        elif isinstance(value, dict) and ("steps" in value or _is_error(value)):
            yield _trace(_read_record({"steps": [], **value}, problems.tell), PLAIN, line, value)
        elif isinstance(value, list):
            yield _trace(_read_record({"steps": value}, problems.tell), PLAIN, line, {})
        elif not STEP_FIELDS.isdisjoint(reading.mapping(value)):
            self._line = self._line or line
            self._loose.append(_read_step(value, len(self._loose), problems.tell))
        else:
            kinds = ", ".join(sorted(STEP_FIELDS))
            told = "is neither a record with steps nor a step"
            problems.tell(told, f"a step has one of {kinds}")
        yield from problems

    def close(self) -> Iterator[Trace | Problem]:
        if self._loose:
            trajectory = trajectory_of(self._loose, None, task=None, tools={})
            yield _trace(trajectory, PLAIN, self._line, {})


class _Texts:
    """The text of an error, which is a whole file."""

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        if isinstance(value, str):
            error = error_in(value) or error_of(value)
            yield _trace(trajectory_of([], error, task=None, tools={}), TEXT, line, {})
        else:
            yield Problem(line, f"a text is expected, not {type(value).__name__}")

    def close(self) -> Iterator[Trace | Problem]:
        return iter(())


def _is_error(value: object) -> bool:
    """Whether a record holds an error and nothing that was done."""
    found = reading.mapping(value)
    return bool(found.get("error")) and STEP_FIELDS.isdisjoint(found) and _HOLDS.isdisjoint(found)


_HOLDS = frozenset({*_HEAVY, "role", "type", "event", "run_type", "observations", "candidates"})


def _read_record(value: dict[str, Any], tell: neutral.Tell) -> Trajectory:
    """Read a record with `steps` and, optionally, `task`, `tools` and `error`."""
    entries = value.get("steps")
    if not isinstance(entries, list):
        tell(f"steps must be a list, not {type(entries).__name__}", "")
    steps = [_read_step(entry, at, tell) for at, entry in enumerate(reading.listed(entries))]
    tools = reading.tools_of(value.get("tools") or value.get("tool_schemas"))
    error = error_of(value.get("error") or None, value.get("exception_type"))
    return trajectory_of(steps, error, task=value.get("task"), tools=tools)


def _read_step(value: object, index: int, tell: neutral.Tell) -> Step:
    """Read the usable fields of a step; what is no object becomes an empty step."""
    if not isinstance(value, dict):
        tell(f"step {index} must be an object, not {type(value).__name__}", "it is left empty")
        return Step(index=index, action="unreadable")

    def refuse(name: str, wanted: str) -> None:
        told = f"step {index}: {name} must be {wanted}, not {type(value[name]).__name__}"
        tell(told, "the rest of the step is read")

    def text(name: str) -> str | None:
        found = value.get(name)
        if found is not None and not isinstance(found, str):
            refuse(name, "text")
            return reading.as_text(found)
        return found

    effect: Effect | None = None
    if value.get("effect") is not None:
        try:
            effect = Effect(value["effect"])
        except ValueError:
            refuse("effect", f"one of {', '.join(Effect)}")
    metadata = value.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        refuse("metadata", "an object")
        metadata = None
    said = reading.text_or_none(value.get("user_input"))
    if said is not None:  # from neither the model nor a tool
        metadata = {**(metadata or {}), "user_input": said}
    error, kind = value.get("error") or None, text("exception_type")
    if isinstance(error, dict):
        known = error_of(error, kind)
        error = None if known is None else known.message
        kind = kind or (None if known is None else known.type_name)
    return Step(
        index=index,
        action=text("action") or "",
        tool_called=text("tool_called") or None,
        tool_input=value.get("tool_input"),
        tool_output=value.get("tool_output"),
        llm_output=text("llm_output"),
        error=reading.as_text(error) or None,
        exception_type=kind,
        effect=effect,
        usage=reading.usage_of(value.get("usage")),
        metadata=metadata,
        timestamp=number(value.get("timestamp")),
        duration_s=number(value.get("duration_s")),
    )


# Journals -------------------------------------------------------------------------------------------


class _Journals:
    """Events of one or many runs: all their attempts, also those without a recorded end."""

    def __init__(self) -> None:
        self._runs: dict[str, RunState] = {}
        self._lines: dict[tuple[str, int], int] = {}

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        try:
            event = load(value)
        except StoreError as error:
            yield Problem(line, str(error)[:500], "the other events are read")
            return
        state = self._runs.setdefault(event.run_id, RunState())
        if event.seq != state.last_seq + 1:
            told = f"event {event.seq} comes after event {state.last_seq} of its run"
            yield Problem(line, told, "what is missing between them is not known")
        if isinstance(event, AttemptStarted):
            self._lines[event.run_id, event.attempt] = line
        self._lines.setdefault((event.run_id, 0), line)
        try:
            state.apply(event)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            told = f"{type(event).__name__} does not fit the events before it"
            yield Problem(line, f"{told} ({type(error).__name__})", "it is left out")

    def close(self) -> Iterator[Trace | Problem]:
        for run_id, state in self._runs.items():
            for at, attempt in enumerate(state.history):
                yield Trace(
                    attempt.trajectory,
                    JOURNAL,
                    self._line(run_id, attempt.number),
                    f"{run_id}, attempt {attempt.number}",
                    "failure",
                    attempt=attempt,
                    earlier=tuple(state.history[:at]),
                )
            ended = {attempt.number for attempt in state.history}
            if state.attempt and state.attempt not in ended:
                yield Trace(
                    Trajectory(state.steps, attempt=state.attempt, task=state.task),
                    JOURNAL,
                    self._line(run_id, state.attempt),
                    f"{run_id}, attempt {state.attempt}",
                    "success" if state.status == "done" else None,
                    earlier=tuple(state.history),
                )

    def _line(self, run_id: str, attempt: int) -> int:
        return self._lines.get((run_id, attempt), self._lines[run_id, 0])


_READERS: Mapping[str, Callable[[], Reader]] = {
    OPENAI: lambda: _Conversations(OPENAI, CHAT),
    RESPONSES: lambda: _Conversations(RESPONSES, RESPONSES_WIRE),
    ANTHROPIC: lambda: _Conversations(ANTHROPIC, ANTHROPIC_WIRE),
    GEMINI: lambda: _Conversations(GEMINI, GEMINI_WIRE),
    OTLP: OtlpReader,
    JOURNAL: _Journals,
    PLAIN: _Plain,
    TEXT: _Texts,
}


# Which form -----------------------------------------------------------------------------------------

_MOST_MESSAGES = 50
_ITEMS = ("function_call", "function_call_output", "reasoning", "custom_tool_call", "mcp_call")
_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use")
_WHOLE = (
    "steps",
    "messages",
    "resourceSpans",
    "resource_spans",
    "event",
    "choices",
    "output",
    "contents",
    "candidates",
)


class Detection(NamedTuple):
    """A detected format. format: None if unknown. reason: why. candidates: all formats that fit.

    remedy: what to do where it is unknown.
    """

    format: str | None
    reason: str
    candidates: tuple[str, ...] = ()
    remedy: str = "name the one that is meant (--format)"


def records(value: Any) -> list[Any]:
    """Return the entries of a list of whole records, else the value as the only record."""
    if isinstance(value, list) and value:
        first = next((entry for entry in value if isinstance(entry, dict | list)), None)
        if isinstance(first, list) or _is_whole(reading.mapping(first)):
            return value if not _one_talk(value) else [value]
    return [value]


def _is_whole(entry: Any) -> bool:
    request = isinstance(entry.get("input"), list) and "type" not in entry
    return request or any(key in entry for key in _WHOLE)


def _one_talk(entries: list[Any]) -> bool:
    """Whether a list is one conversation (messages, items, responses) and no list of records."""
    found = [reading.mapping(entry) for entry in entries[:_MOST_MESSAGES]]
    return any("choices" in entry and "messages" not in entry for entry in found) or any(
        entry.get("type") in _ITEMS for entry in found
    )


def detect(values: Iterable[Any]) -> Detection:
    """Detect the format of a recording from its first values."""
    found: dict[str, str] = {}
    weak: dict[str, str] = {}
    for value in values:
        if isinstance(value, str):
            if error_in(value) is not None:
                return Detection(TEXT, "the text of an error", (TEXT,))
            return Detection(None, "the file is text, not JSON", (), _SAVE)
        for record in records(value)[:SAMPLE]:
            tracer = _tracer_of(record)
            if tracer is not None:
                return Detection(None, f"the file holds records of {tracer}", (), _SAVE)
            for name, reason in _signs(record):
                found.setdefault(name, reason)
            for name, reason in _weak_signs(record):
                weak.setdefault(name, reason)
    chosen = found or weak
    if len(chosen) == 1:
        ((name, reason),) = chosen.items()
        return Detection(name, reason, (name,))
    if not chosen:
        known = ", ".join(f"{name} ({what})" for name, what in FORMATS.items())
        return Detection(None, f"the form is none that is known: {known}")
    told = "; ".join(f"{name} ({reason})" for name, reason in sorted(chosen.items()))
    return Detection(None, f"the form may be any of {told}", tuple(sorted(chosen)))


_SAVE = "save the conversation, such as the messages of the last model call, as JSON"


def _tracer_of(record: Any) -> str | None:
    """Return whose records these are, where they are those of a tracing service."""
    for entry in map(reading.mapping, record if isinstance(record, list) else [record]):
        if "run_type" in entry:
            return "LangSmith"
        listing = isinstance(entry.get("observations"), list)
        if listing or {"traceId", "startTime", "parentObservationId"} <= entry.keys():
            return "Langfuse"
    return None


def _signs(record: Any) -> Iterator[tuple[str, str]]:
    """Return the formats that a value proves by what only they have."""
    found = reading.mapping(record)
    if "resourceSpans" in found or "resource_spans" in found:
        yield OTLP, "resourceSpans"
    errors = record if isinstance(record, list) else [record]
    if errors and all(map(_is_error, errors)):
        yield PLAIN, "an error alone"
        return
    event = found.get("event")
    if isinstance(event, str) and event in EVENTS and "run_id" in found:
        yield JOURNAL, f"the event {event}"
        return  # other fields, such as an action, may mean anything
    if isinstance(found.get("steps"), list):
        yield PLAIN, "a list of steps"
    else:
        for step in _messages(record, found) if isinstance(record, list) else [found]:
            fields = STEP_FIELDS & step.keys()
            if fields and "role" not in step and "messages" not in step:
                yield PLAIN, f"the step's field {min(fields)}"
    if isinstance(found.get("candidates"), list) or any(
        isinstance(one.get("parts"), list) and one.get("role") in ("user", "model")
        for one in _messages(record, found)
    ):
        yield GEMINI, "contents with parts"
    else:
        yield from _talk_signs(record, found)


def _talk_signs(record: Any, found: Any) -> Iterator[tuple[str, str]]:
    if isinstance(found.get("choices"), list) or found.get("object") == "chat.completion":
        yield OPENAI, "a response with choices"
    if found.get("object") == "response" or found.get("type") in _ITEMS:
        yield RESPONSES, f"the {found.get('object') or found['type']} item"
    if "stop_reason" in found or ("messages" in found and "system" in found):
        yield ANTHROPIC, "stop_reason" if "stop_reason" in found else "a system prompt of its own"
    for message in _messages(record, found):
        role, content = message.get("role"), message.get("content")
        if isinstance(message.get("choices"), list):
            yield OPENAI, "responses with choices"
        elif "tool_calls" in message or "function_call" in message:
            yield OPENAI, "an assistant's tool_calls"
        elif role in ("tool", "function", "developer", "system"):
            yield OPENAI, f"a message with the role {role}"
        if message.get("type") in _ITEMS:
            yield RESPONSES, f"the item {message['type']}"
        for part in reading.listed(content):
            kind = reading.mapping(part).get("type")
            if kind in _BLOCKS:
                yield ANTHROPIC, f"the block {kind}"
            elif kind in ("input_text", "output_text"):
                yield RESPONSES, f"the part {kind}"


def _weak_signs(record: Any) -> Iterator[tuple[str, str]]:
    """Return the formats that share what a value has, and read it the same way."""
    found = reading.mapping(record)
    if isinstance(found.get("output"), list) or isinstance(found.get("input"), list):
        yield RESPONSES, "a list of output or input"
    elif any("role" in message for message in _messages(record, found)):
        yield OPENAI, "messages with roles, which other forms have alike"


def _messages(record: Any, found: Any) -> list[Any]:
    if isinstance(record, list):
        entries = record
    elif "role" in found:
        entries = [found]
    else:
        entries = next(
            (
                found[key]
                for key in ("messages", "contents", "output", "input")
                if isinstance(found.get(key), list)
            ),
            [],
        )
    return [reading.mapping(entry) for entry in entries[:_MOST_MESSAGES]]
