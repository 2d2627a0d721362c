"""`stream` and `read`: recordings of any known form, as traces and problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

from triage.errors import UsageError

from ._anthropic import read_anthropic
from ._chat import read_chat
from ._detect import ANTHROPIC, FORMATS, JOURNAL, OPENAI, OTLP, RESPONSES, SAMPLE, detect, records
from ._detect import STEPS as PLAIN
from ._faults import error_of
from ._journal import JournalReader
from ._nouns import Problem, Reading, Tell, Trace
from ._otlp import OtlpReader
from ._responses import read_responses
from ._source import Source, Value, values
from ._steps import STEP_FIELDS, read_record, read_step
from ._talk import Talk, ended_with
from ._values import as_text, mapping, text_or_none

MAX_PROBLEMS = 100
"""Problems of one recording that are listed; the rest are counted."""
_HEAVY = ("steps", "messages", "tools", "tool_schemas", "functions", "input", "output", "choices")
_DEEP = "it is nested too deeply to be read"


class Reader(Protocol):
    """Takes the records of a file in turn, and gives what it has made of them."""

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        """Take a record in."""
        ...

    def close(self) -> Iterator[Trace | Problem]:
        """What is left when all records are in."""
        ...


class Recording(Iterator[Trace | Problem]):
    """A recording that is being read: gives its traces, and its problems between them.

    format: its form, None where it was not recognised. reason: why it was taken for that.
    """

    def __init__(self, format: str | None, reason: str, found: Iterator[Trace | Problem]) -> None:  # noqa: A002 - as the option is called
        self.format = format
        self.reason = reason
        self._found = found

    def __next__(self) -> Trace | Problem:
        return next(self._found)


def stream(source: Source, format: str | None = None) -> Recording:  # noqa: A002 - as the option is called
    """A recording, read as it is iterated over.

    source: a path, or the content: bytes, an open binary file, or a text that begins with a bracket.
    Gzip is unpacked. format: one of `FORMATS`; None finds out from the first values. Lines are read
    one by one where each holds a record; journals and OpenTelemetry traces, which may be spread over
    a file, come at its end. No content raises. Raises UsageError for a path that cannot be read, and
    for a format that is not known.
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
        problems.append(Problem(0, detection.reason, "name the one that is meant (--format)"))
    elif not problems:
        problems.append(Problem(0, "the file holds nothing", "give a file with a recording in it"))
    return Recording(None, detection.reason, _capped(iter(problems)))


def read(source: Source, format: str | None = None) -> Reading:  # noqa: A002 - as the option is called
    """All of a recording at once: its traces, its problems, its form and why it was taken for that.

    Arguments and errors are those of `stream`. At most 100 problems are listed; a last one counts
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
    """Not a page of complaints for each line of a file that is something else."""
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


# Records that hold a whole attempt, or a piece of one ----------------------------------------------


class _Talks:
    """Conversations: a record is a whole one, or a message of the one that the file is."""

    def __init__(self, name: str, put: Callable[[Any, Talk, Tell], None]) -> None:
        self._name, self._put = name, put
        self._loose: Talk | None = None
        self._line = 0

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        problems: list[Problem] = []
        tell = _telling(problems, line)
        if not isinstance(value, dict | list):
            yield Problem(line, f"a record must be an object or a list, not {type(value).__name__}")
            return
        if self._is_piece(value):
            if self._loose is None:
                self._loose, self._line = Talk(), line
            self._put(value, self._loose, tell)
            yield from problems
            return
        record = mapping(value)
        talk = Talk(record.get("task"))
        self._put(value, talk, tell)
        talk.error = talk.error or error_of(record.get("error") or None)
        yield from problems
        yield from self._given(talk, line, record)

    def close(self) -> Iterator[Trace | Problem]:
        if self._loose is not None:
            yield from self._given(self._loose, self._line, {})

    def _is_piece(self, value: Any) -> bool:
        if not isinstance(value, dict) or "messages" in value or "choices" in value:
            return False
        item = self._name == RESPONSES and value.get("object") != "response" and "type" in value
        return "role" in value or item

    def _given(self, talk: Talk, line: int, record: Any) -> Iterator[Trace | Problem]:
        if len(talk) or talk.error is not None:
            yield _trace(talk.trajectory(), self._name, line, record)
        else:
            yield Problem(line, "there is nothing in it that an agent did")


class _Plain:
    """Plain steps: a record with its steps, or a step of the one attempt that the file is."""

    def __init__(self) -> None:
        self._loose: list[Any] = []
        self._line = 0

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        problems: list[Problem] = []
        tell = _telling(problems, line)
        if isinstance(value, dict) and "steps" in value:
            yield _trace(read_record(value, tell), PLAIN, line, value)
        elif isinstance(value, list):
            yield _trace(read_record({"steps": value}, tell), PLAIN, line, {})
        elif not STEP_FIELDS.isdisjoint(mapping(value)):
            self._line = self._line or line
            self._loose.append(read_step(value, len(self._loose), tell))
        else:
            kinds = ", ".join(sorted(STEP_FIELDS))
            tell("is neither a record with steps nor a step", f"a step has one of {kinds}")
        yield from problems

    def close(self) -> Iterator[Trace | Problem]:
        if self._loose:
            trajectory = ended_with(self._loose, None, task=None, tools={})
            yield _trace(trajectory, PLAIN, self._line, {})


def _telling(problems: list[Problem], line: int) -> Tell:
    return lambda text, remedy: problems.append(Problem(line, text, remedy))


def _trace(trajectory: Any, name: str, line: int, record: Any) -> Trace:
    fields = {key: value for key, value in mapping(record).items() if key not in _HEAVY}
    names = ("id", "trace_id", "conversation_id", "custom_id")
    known = next((as_text(fields[key]) for key in names if fields.get(key)), "")
    return Trace(trajectory, name, line, known, text_or_none(fields.get("outcome")), fields)


_READERS: dict[str, Callable[[], Reader]] = {
    OPENAI: lambda: _Talks(OPENAI, read_chat),
    RESPONSES: lambda: _Talks(RESPONSES, read_responses),
    ANTHROPIC: lambda: _Talks(ANTHROPIC, read_anthropic),
    OTLP: OtlpReader,
    JOURNAL: JournalReader,
    PLAIN: _Plain,
}
