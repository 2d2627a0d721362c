"""Model and tool calls of a framework as recorded calls, as each of them looks in the journal.

A call of a framework is a `Tool` of its own, made for that one call: how it is known, how its result is
kept and how its step reads come with it. A model call is matched by its place, and its step names no
tool: what the model said, which calls it asked for, what it used.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple, cast

from triage._drivers import _drive, call_sync
from triage._plain import plain
from triage._recorded import Begun, Reused, begin, fail, finish
from triage._recorder import current
from triage._results import Returns
from triage._run import Run
from triage._serde import digest
from triage._tally import within_call
from triage._tool import Tool
from triage.steps import EFFECT, ERROR, METADATA, OUTPUT, SAID, Row, Usage
from triage.taxonomy import UNSAFE, Effect
from triage.traces._talk import ending_of

from ._forms import Answer, Failed, Form

MODEL = "model"
"""In the metadata of a step: the model that was asked. In its action: that it is a model's."""
_NONE: dict[str, Any] = {}
Ended = Callable[[Answer | None, Exception | None], None]


class ModelCall(NamedTuple):
    """A model call that is to be made.

    name: whose it is (`openai`), with the sub-agent's name where there is one; calls are counted by
    it. model: which model. said: what is new in the request, as JSON of its own, for the step. key:
    digest of the whole request, without the hint. form: how the answer is written down and read back.
    """

    name: str
    model: str
    said: Any
    key: str
    form: Form


class ToolCall(NamedTuple):
    """A tool call that is to be made. id: the model's own id of it, None without one."""

    name: str
    arguments: Any
    effect: Effect | str = Effect.UNKNOWN
    id: str | None = None
    form: Form | None = None


# A value inside itself is found by how deep it goes: to look out for it in each container is felt.
encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), default=plain, check_circular=False
).encode
"""JSON of a value, equal values, equal text. Raises `NO_JSON` for one that has none as a whole."""
NO_JSON = (TypeError, ValueError, RecursionError)
"""Keys of many kinds, a value inside itself."""


def canonical(value: Any) -> str:
    """JSON of any value, equal values, equal text."""
    try:
        if type(value) is dict:
            # The arguments of most calls are texts and numbers, and to make an encoder is felt.
            items: list[str] = []
            for name in sorted(value):
                item = value[name]
                kind = type(item)
                if kind is str:
                    items.append(f"{_quoted(name)}:{_quoted(item)}")
                elif kind is int:
                    items.append(f"{_quoted(name)}:{item}")
                else:
                    return encode(value)
            return f"{{{','.join(items)}}}"
        return encode(value)
    except NO_JSON:
        return encode(plain(value))


def key_of(request: Any) -> str:
    """The digest of a request: equal requests, equal text."""
    return sha256(canonical(request).encode()).hexdigest()[:DIGITS]


DIGITS = 32
"""Of the digest of a request."""


def within() -> str:
    """The recorded call that this code is part of, as steps name it; empty outside of any."""
    run = current.get()
    return "" if run is None else within_call(run.run_id) or ""


# The tools of the engine ----------------------------------------------------------------------------


class _Made(Tool):
    """One call of a framework's. function: makes it, and takes no arguments. bound: as it is shown."""

    __slots__ = ("_bound",)
    # What could be declared of a function is not asked here.
    by_position = False
    compensate = None
    ignore = frozenset[str]()
    is_async = True
    key = None
    returns = Returns(print, Any)
    signature = inspect.Signature()
    timeout = None
    tries = None

    _bound: dict[str, Any]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - none are given
        """Its arguments, which are JSON already."""
        return self._bound

    def shown(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """All of them: JSON that nobody else has."""
        return cast("dict[str, Any]", bound)


class Asking(_Made):
    """A model call. answer: what was answered, None until that is known."""

    __slots__ = ("_form", "_key", "answer")
    counted = False
    by_position = True
    effect = Effect.READ

    def __init__(self, call: ModelCall, ask: Callable[[], Any]) -> None:
        self.name, model, said, self._key, self._form = call
        self.function = ask
        self._bound = {"model": model, "said": said}
        self.answer: Answer | None = None

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:  # noqa: ARG002 - the request says all
        """The digest of its request."""
        return digest(salt, f'"{self._key}"')

    def dumped(self, result: Any) -> tuple[Any, bool]:
        """The answer, as its form has it."""
        data = self._form.kept(result)
        self.answer = self._form.read(data)
        return data, True

    def loaded(self, data: Any) -> Any:
        """The answer for the framework."""
        self.answer = self._form.read(data)
        return self._form.load(data)

    def row(self, row: Row) -> Row:
        """What the model was told, said and asked for."""
        _, _, _, _, _, _, error, kind, _, _, metadata, at, took = row
        bound = self._bound
        metadata["model"] = bound["model"]
        asked: list[Any] | None = None
        words: str | None = None
        usage: Usage | None = None
        if error is None and self.answer is not None:
            text, calls, usage, ended = self.answer
            ending = ending_of(ended)
            if ending is not None:
                error, kind = ending.message, ending.type_name
            words = text or ""
            if calls:
                # Without the ids, which are new each time: a loop must look like one.
                asked = [{"tool": name, "arguments": arguments} for _, name, arguments in calls]
                if words:
                    metadata["said"] = words
                words = None  # words beside a call are no turn of words
        return (
            None, MODEL, None, bound["said"], asked, words, error, kind, None, usage, metadata, at, took,
        )  # fmt: skip


class Using(_Made):
    """A tool call of a framework's."""

    __slots__ = ("_failed", "_form", "_id")

    def __init__(self, call: ToolCall, do: Callable[[], Any]) -> None:
        self.name, arguments, effect, self._id, self._form = call
        self.effect = effect if type(effect) is Effect else Effect(effect)
        self.function = do
        self._bound = _named(arguments)
        self._failed: Failed | None = None

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        """The digest of its arguments."""
        return digest(salt, canonical(bound)[1:-1])

    def dumped(self, result: Any) -> tuple[Any, bool]:
        """The result, as its form has it."""
        form = self._form
        if form is None:
            return super().dumped(result)
        data = form.kept(result)
        self._failed = form.failed(data)
        return data, True

    def loaded(self, data: Any) -> Any:
        """The result for the framework."""
        form = self._form
        if form is None:
            return data
        self._failed = form.failed(data)
        return form.load(data)

    def fails(self, data: Any) -> bool:  # noqa: ARG002 - its form was asked already
        """An error is no answer where the tool may be asked again."""
        return self._failed is not None and self.effect not in UNSAFE

    def row(self, row: Row) -> Row:
        """With the model's id of the call, and failed where its result says so."""
        if self._id is not None:
            row[METADATA]["id"] = self._id
        if self._failed is None or row[ERROR]:
            return row
        return (*row[:OUTPUT], None, row[SAID], *self._failed, *row[EFFECT:])


def _named(arguments: Any) -> dict[str, Any]:
    """A call's arguments by name, as JSON."""
    found = plain(arguments)
    if isinstance(found, dict) and all(map(str.isidentifier, found)):
        return found
    return {} if found is None else {"arguments": found}


# Calling --------------------------------------------------------------------------------------------

# Frameworks go deep, and each coroutine between them and what they call makes all below it dearer: an
# exception, even one that is caught at once, looks for its context in every one. So there are few here.


def make(run: Run, call: Using) -> Coroutine[Any, Any, Any]:
    """Call a tool, recorded: what it gives, from the journal where it must not be called again."""
    return _drive(run, call, (), _NONE)


async def ask(run: Run, call: Asking, ended: Ended) -> Any:
    """Ask a model, recorded: its answer, from the journal where it is known already.

    No guard and no compensator has a say in it. ended: told of what was answered, or of the error.
    """
    try:
        begun = begin(run, call, (), _NONE)
        if isinstance(begun, Begun):
            begun.enter(run)
            try:  # not `Running`, which takes twice as long
                begun.idle = False
                answer = await call.function()
            except BaseException as error:
                fail(run, begun, error)
                raise
            finally:
                begun.leave()
            finish(run, begun, answer)
            if run.session.durable and not run.over:
                await run.session.barrier()
        else:
            assert isinstance(begun, Reused)
            answer = begun.result
    except Exception as error:
        ended(None, error)
        raise
    ended(call.answer, None)
    return answer


def make_sync(run: Run, call: Asking | Using) -> Any:
    """`make` for sync code."""
    token = current.set(run)
    try:
        return call_sync(call, (), _NONE)
    finally:
        current.reset(token)


def ask_sync(run: Run, call: Asking, ended: Ended) -> Any:
    """`ask` for sync code."""
    try:
        answer = make_sync(run, call)
    except Exception as error:
        ended(None, error)
        raise
    ended(call.answer, None)
    return answer


def call_model(
    run: Run, call: ModelCall, send: Callable[[], Awaitable[Any]]
) -> Coroutine[Any, Any, Any]:
    """Ask a model of nobody's seam."""
    return ask(run, Asking(call, send), told_nobody)


def call_model_sync(run: Run, call: ModelCall, send: Callable[[], Any]) -> Any:
    """`call_model` for sync code."""
    return make_sync(run, Asking(call, send))


def call_tool(
    run: Run, call: ToolCall, do: Callable[[], Awaitable[Any]]
) -> Coroutine[Any, Any, Any]:
    """Call a framework's tool, recorded: its result, from the journal where it must not run again."""
    return make(run, Using(call, do))


def told_nobody(answer: Answer | None, error: Exception | None) -> None:
    """Nobody waits for how it ended."""


def _begun_here() -> None:
    """Never called: the call is begun and ended by hand."""


class StreamLeft(Exception):
    """A stream was left before its end, so its answer is not known."""

    def __init__(self, text: str = "the stream was left before its end") -> None:
        super().__init__(text)


class UnfinishedStream(ConnectionError):
    """A stream ended in the middle of its answer, and the connection as if all were well."""

    def __init__(self) -> None:
        super().__init__("the stream ended before the answer did")


class Stream:
    """A model call whose answer comes in pieces: see `Seam.stream`.

    known: the answer for the framework where it is known already. None: it is to be asked for.
    """

    def __init__(self, run: Run, call: ModelCall, ended: Ended) -> None:
        self._run = run
        self._asking = Asking(call, _begun_here)
        self._ended = ended
        begun = begin(run, self._asking, (), _NONE)
        self._begun = begun if isinstance(begun, Begun) else None
        self.known: Any = None
        if self._begun is not None:
            self._begun.idle = False
        else:
            assert isinstance(begun, Reused)
            self.known = begun.result
            ended(self._asking.answer, None)

    def done(self, answer: Any) -> None:
        """All of it has come: the answer as the framework has it."""
        begun, self._begun = self._begun, None
        if begun is not None:
            finish(self._run, begun, answer)
            self._ended(self._asking.answer, None)

    def failed(self, error: BaseException) -> None:
        """It broke off with this error. After `done` this says nothing any more."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if isinstance(error, Exception) and not isinstance(error, StreamLeft):
            self._ended(None, error)
        fail(self._run, begun, error)

    @contextmanager
    def passing(self) -> Generator[None]:
        """Around the pieces as they come: an error breaks the call off, and so does leaving early."""
        try:
            yield
        except GeneratorExit:
            self.failed(StreamLeft())
            raise
        except BaseException as error:
            self.failed(error)
            raise

    async def durable(self) -> None:
        """Wait until what was recorded is stored, where a store keeps the run."""
        session = self._run.session
        if session.durable and not self._run.over:
            await session.barrier()
