"""Model and tool calls of a framework as recorded calls, as each of them looks in the journal.

A call of a framework is a `Tool` of its own, made for that one call: how it is known, how its result is
kept and how its step reads come with it. A model call is matched by its place, and its step names no
tool: what the model said, which calls it asked for, what it used.
"""

from __future__ import annotations

import inspect
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, cast

from msgspec.structs import replace
from pydantic import BaseModel

from triage.classifiers.error_results import REFUSED_ARGUMENTS, error_of_result
from triage.core.capture import capture
from triage.core.failures import ErrorInfo
from triage.core.json_values import digest, plain
from triage.core.messages.neutral import Answer, ending_of
from triage.core.messages.reading import MAX_TOKENS, mapping
from triage.core.messages.wires import refused_request
from triage.core.state import is_reused
from triage.core.steps import Step, Usage
from triage.core.taxonomy import Effect, infer_effect
from triage.engine import calls
from triage.engine.call_keys import tally, within_call
from triage.engine.drivers import ASYNC, Driver
from triage.engine.mending import mend
from triage.engine.models import BRIEF, CUT, IDS, MODEL
from triage.engine.run import current
from triage.engine.tools import Returns, Tool
from triage.engine.undeclared import SEEN

from .conversations import CONVERSATION

conversation: ContextVar[str] = ContextVar("triage_conversation", default="")
"""The conversation that the calling code holds; empty where there is only one."""
_DIGITS = 32
"""Of the digest of a request."""


class Failed(NamedTuple):
    """A tool that answered with an error. kind: its class, or whatever it is called.

    refuses: that class asks for other arguments.
    """

    text: str
    kind: str | None = None
    refuses: bool = False


class Form(NamedTuple):
    """How a framework's answer or result is stored: `dump` gives JSON, and `load` reads it back.

    read: what a model's answer says, for model calls only. failed: the error that a tool's result stands
    for, None for a good one. shown: what the model is told of a tool's result. The framework must be able
    to use `load(dump(x))` in place of `x`.
    """

    dump: Callable[[Any], Any] = lambda answer: answer
    load: Callable[[Any], Any] = lambda data: data
    read: Callable[[Any], Answer] = lambda data: Answer()
    failed: Callable[[Any], Failed | None] = lambda data: None
    shown: Callable[[Any], Any] = lambda data: data

    @classmethod
    def of(cls, model: type[BaseModel], read: Callable[[Any], Answer] | None = None) -> Form:
        """The form of answers or results that are pydantic models: the fields that were set, as JSON."""

        def dump(answer: BaseModel) -> Any:
            return answer.model_dump(mode="json", warnings=False, exclude_unset=True)

        form = cls(dump, lambda data: model.model_validate_json(json.dumps(data)))
        return form if read is None else form._replace(read=read)


class Declared(NamedTuple):
    """What is known of a tool's declaration.

    schema: of its arguments, None if it is not known. exists: False if the tools that there are were
    declared, and it is none of them.
    """

    schema: Mapping[str, Any] | None = None
    exists: bool = True


@dataclass(frozen=True)
class ModelCall:
    """A model call that is to be made.

    name: the client or framework (`openai`), with the sub-agent's name where there is one; calls are
    counted by it. model: the model's name. said: what is new in the request, for the step. key: digest of
    the whole request, without the hint. form: how the answer is stored. is_brief: the token limit is so
    low that an answer cut off by its length is intended. max_tokens: that limit, where it can be raised.
    is_seen: it was seen on the wire, so that nothing
    says whether the tools that it asks for record themselves. conversation: the one that it belongs to,
    empty for the first.
    """

    name: str
    model: str
    said: Any
    key: str
    form: Form
    is_brief: bool = False
    max_tokens: int | None = None
    is_seen: bool = False
    conversation: str = ""


def canonical(value: Any) -> str:
    """JSON of any value, the same text for equal values."""
    try:
        return _CANONICAL.encode(value)
    except (TypeError, ValueError, RecursionError):  # keys of many kinds, a value inside itself
        return _CANONICAL.encode(plain(value))


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=plain)


def key_of(request: Any) -> str:
    """The digest of a request, the same for equal requests."""
    return sha256(canonical(request).encode()).hexdigest()[:_DIGITS]


def within() -> str:
    """The recorded call that this code is part of, as steps name it; empty outside a recorded call."""
    run = current.get()
    return "" if run is None else within_call(run.run_id) or ""


def is_brief(max_tokens: object) -> bool:
    """Whether the token limit is so low that an answer cut off by its length is intended."""
    return isinstance(max_tokens, int) and max_tokens <= BRIEF


class _FrameworkCall(Tool):
    """One call of a framework's. function: makes it, and takes no arguments."""

    editable = False  # it is given no arguments when it runs
    # What a declared function could say has no meaning here.
    by_position = False
    compensate = None
    ignore = frozenset[str]()
    is_async = True
    key = None
    kind = "tool"
    returns = Returns(print, Any)
    signature = inspect.Signature()
    timeout = None
    tries = None

    _bound: dict[str, Any]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Its arguments, which are JSON already."""
        return self._bound

    def shown(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        return cast("dict[str, Any]", bound)


class RecordedModelCall(_FrameworkCall):
    """A model call. answer: what was answered, None until that is known."""

    counted = False
    declared = True
    inferred = False
    by_position = True
    effect = Effect.READ
    kind = "model"

    def __init__(self, call: ModelCall, ask: Callable[[], Any]) -> None:
        self.name = call.name
        self.function = ask
        self.answer: Answer | None = None
        self._call = call
        self._bound = {"model": call.model, "said": plain(call.said)}

    def asks(self, other: str | None) -> None:
        """Note that another model is asked instead; None: the same one."""
        if other is not None:
            self._bound = {**self._bound, MODEL: other}

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        return digest(salt, f'"{self._call.key}"')

    def dumped(self, result: Any) -> tuple[Any, bool]:
        data = plain(self._call.form.dump(result))
        self.answer = self._call.form.read(data)
        return data, True

    def loaded(self, data: Any) -> Any:
        self.answer = self._call.form.read(data)
        return self._call.form.load(data)

    def step(self, step: Step) -> Step:
        """What the model was told, said and asked for."""
        error, kind = step.error, step.exception_type
        metadata = dict(step.metadata or {})
        bound = self._bound
        # A reused answer names the model that gave it.
        about = mapping(step.tool_input) if is_reused(metadata) else bound
        metadata[MODEL] = about.get(MODEL, bound[MODEL])
        if self._call.is_seen:
            metadata[SEEN] = True
        if belongs := self._call.conversation or conversation.get():
            metadata[CONVERSATION] = belongs
        if error is not None:
            metadata = refused_request(metadata)
        asked: list[Any] | None = None
        words: str | None = None
        usage: Usage | None = None
        if error is None and self.answer is not None:
            answer = self.answer
            usage = answer.usage
            ending = ending_of(answer.ended)
            if ending is not None and not (self._call.is_brief and ending.type_name == CUT):
                error, kind = ending.message, ending.type_name
                if kind == CUT and self._call.max_tokens is not None:
                    metadata[MAX_TOKENS] = self._call.max_tokens
            if answer.calls:
                asked = [{"tool": call.name, "arguments": call.arguments} for call in answer.calls]
                metadata[IDS] = [call.id for call in answer.calls]
                if answer.text:
                    metadata["said"] = answer.text  # words beside a call are no turn of words
            else:
                words = answer.text
        return Step(
            action=MODEL,
            tool_input=bound["said"],
            tool_output=asked,
            llm_output=words,
            error=error,
            exception_type=kind,
            usage=usage,
            metadata=metadata,
            duration_s=step.duration_s,
        )


class RecordedToolCall(_FrameworkCall):
    """A tool call of a framework's.

    effect: None where nobody declared it. id: the model's own id of the call, None without one. form: of a
    result that is no JSON. declared: says what is known of the tool's declaration.
    """

    def __init__(
        self,
        do: Callable[[], Any],
        name: str,
        arguments: Any,
        *,
        effect: Effect | str | None = None,
        id: str | None = None,
        form: Form | None = None,
        declared: Callable[[], Declared] = Declared,
    ) -> None:
        self.name = name
        self.declared = effect is not None
        self.inferred = False
        self.effect = Effect.UNKNOWN if effect is None else Effect(effect)
        self.function = do
        self._id = id
        self._form = form
        self._declared = declared
        self._failed: Failed | None = None
        self._raised: ErrorInfo | None = None
        named = plain(arguments)
        if not isinstance(named, dict) or not all(map(str.isidentifier, named)):
            named = {} if named is None else {"arguments": named}
        self._bound = named

    def by_name(self) -> RecordedToolCall:
        """Itself, with the effect inferred from its name; the object belongs to this one call."""
        self.effect = infer_effect(self.name)
        self.inferred = self.effect is not Effect.UNKNOWN
        return self

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        return digest(salt, canonical(bound)[1:-1])

    def dumped(self, result: Any) -> tuple[Any, bool]:
        if self._form is None:
            return super().dumped(result)
        data = plain(self._form.dump(result))
        self._failed = self._form.failed(data)
        if self._failed is not None and isinstance(result, BaseException):
            self._raised = capture(result)
        return data, True

    def loaded(self, data: Any) -> Any:
        if self._form is None:
            return data
        self._failed = self._form.failed(data)
        return self._form.load(data)

    def failure(self, data: Any) -> ErrorInfo | None:
        """The error that a result stands for: by the framework's own exception, else by its text."""
        if self._failed is None:
            return None
        text, kind, refuses = self._failed
        raised = self._raised
        if raised is not None and raised.not_attempted:
            return replace(raised, hint=REFUSED_ARGUMENTS) if refuses else raised
        if raised is not None and raised.related:
            return raised
        schema, exists = self._declared()
        return error_of_result(
            text, kind or "ToolError", self.name, self._bound, schema, exists=exists
        )

    def step(self, step: Step) -> Step:
        """Add the model's id of the call, what it is told, and the error that the result stands for."""
        if self._id is not None:
            step = replace(step, metadata={**(step.metadata or {}), "id": self._id})
        if self._form is not None and step.error is None:
            step = replace(step, tool_output=self._form.shown(step.tool_output))
        if self._failed is None or step.error:
            return step
        error, kind, _ = self._failed
        return replace(step, tool_output=None, error=error, exception_type=kind)


Ended = Callable[[Answer | None, Exception | None], object]
"""Called with the answer, or with the error."""


def ignore_end(answer: Answer | None, error: Exception | None) -> None:
    """An `Ended` that does nothing."""


def make(
    run: calls.Run, call: RecordedModelCall | RecordedToolCall, driver: Driver = ASYNC
) -> Coroutine[Any, Any, Any]:
    """Make and record a call, or take its result from the journal where it must not be made again."""
    return calls.record_call(run, call, (), {}, driver)


async def ask_model(
    run: calls.Run, call: RecordedModelCall, ended: Ended = ignore_end, driver: Driver = ASYNC
) -> Any:
    """Ask a model and record the call, or take its answer from the journal."""
    try:
        answer = await make(run, call, driver)
    except Exception as error:
        ended(None, error)
        raise
    ended(call.answer, None)
    return answer


class StreamLeft(Exception):
    """A stream was abandoned before its end, so its answer is not known."""

    def __init__(self) -> None:
        super().__init__("the stream was left before its end")


class UnfinishedStream(ConnectionError):
    """A stream ended in the middle of its answer, although the connection closed normally."""

    def __init__(self) -> None:
        super().__init__("the stream ended before the answer did")


class Passing(ABC):
    """A call whose answer comes in pieces."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Record that the call broke off with this error."""

    @contextmanager
    def passing(self) -> Generator[None]:
        """Use around the pieces as they come: an error, or leaving early, ends the call."""
        try:
            yield
        except GeneratorExit:
            self.failed(StreamLeft())
            raise
        except BaseException as error:
            self.failed(error)
            raise


class Stream(Passing):
    """A model call that is begun and ended by hand, as its answer may come in pieces: see `Seam.stream`.

    known: the recorded answer, for the framework. None: it must be asked for. key: of the call, None for
    one that is reused. again: key of the same call where this is another try of it. until: when the request
    can no longer be made again as it is, in monotonic seconds. amends: changes the request for what it was
    refused for, if it can, so that it is made again at once.
    """

    def __init__(
        self,
        run: calls.Run,
        call: ModelCall,
        ended: Ended = ignore_end,
        *,
        again: str | None = None,
        until: float = math.inf,
    ) -> None:
        self._run = run
        self._until = until
        if again is not None:
            tally(run).not_begun(again)
        self._asking = RecordedModelCall(call, lambda: None)  # begun and ended by hand
        self._ended = ended
        begun = calls.begin(run, self._asking, (), {})
        self.amends: Callable[[Exception], bool] = lambda _error: False
        self._begun = begun if isinstance(begun, calls.Begun) else None
        self.key = begun.key if isinstance(begun, calls.Begun) else None
        self.known: Any = None
        if self._begun is not None:
            self._begun.idle = False
        else:
            assert isinstance(begun, calls.Reused)
            self.known = begun.result
            ended(self._asking.answer, None)

    def asks(self, other: str | None) -> None:
        """Note that another model is asked instead; None: the same one."""
        self._asking.asks(other)

    def done(self, answer: Any) -> None:
        """Record the complete answer, as the framework has it."""
        begun, self._begun = self._begun, None
        if begun is not None:
            calls.finish(self._run, begun, answer)
            self._ended(self._asking.answer, None)

    def tried(self, error: Exception) -> None:
        """Note a failed try that the client itself repeats."""
        if self._begun is not None:
            calls.note_try(self._run, self._begun, error)

    async def mended(self, error: Exception, driver: Driver = ASYNC) -> bool:
        """Whether the request is to be made again, after a wait as the policy says of its error.

        False for sync code in the event loop's own thread, which cannot wait.
        """
        begun = self._begun
        if begun is None:
            return False
        if not self.amends(error) and not (
            driver.can_wait and await driver.call(mend, self._run, error, self._until)
        ):
            return False
        calls.note_try(self._run, begun, error)
        return True

    def failed(self, error: BaseException) -> None:
        """Record that the stream broke off with this error. Does nothing after `done`."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if isinstance(error, Exception) and not isinstance(error, StreamLeft):
            self._ended(None, error)
        calls.fail(self._run, begun, error)

    async def durable(self, driver: Driver = ASYNC) -> None:
        """Wait until the store has what was recorded, for a durable run.

        Sync code in the event loop's own thread waits for nothing.
        """
        session = self._run.session
        if session.durable and not self._run.over:
            await driver.barrier(session)
