"""The user's functions that ask a model: `run.model(function, …)` and `@triage.model`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from triage.core.errors import UsageError
from triage.core.json_values import plain, plain_noting
from triage.core.messages.any_answer import read_answer
from triage.core.messages.neutral import ending_of
from triage.core.messages.wires import refused_request
from triage.core.steps import Step, Usage
from triage.core.taxonomy import Effect
from triage.strategies.ready_made import Preset

from .tools import TOOL_ATTRIBUTE, Tool

MODEL = "model"
"""Key in a step's metadata: name of the asked model. As a step's action: the step of a model."""


IDS = "ids"
"""Key in the metadata of a model's step: the model's ids of its requested calls, in order. Kept out of the
step's output, as new ids each time would hide a loop."""


CUT = "LengthFinishReasonError"
"""Error type of an answer that its provider marks as cut off by its length."""


BRIEF = 16
"""Maximum tokens of a request that wants a single word, so that a cut-off answer is good."""


_judging: ContextVar[bool] = ContextVar("triage_judging", default=False)


@contextmanager
def judging() -> Generator[None]:
    """Mark model calls inside this context as a judge's.

    The work does not continue from a verdict: a recovery asks the judged model again, and then the judge.
    """
    token = _judging.set(True)
    try:
        yield
    finally:
        _judging.reset(token)


def is_judging() -> bool:
    """Whether the calling code judges an answer."""
    return _judging.get()


class Model(Tool):
    """A function that asks a model: a call is identified by its arguments, else by its position.

    judge: apply `judging` to each call. Other options as of `tool`.
    """

    __slots__ = ("_answer",)
    counted = False

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        judge: bool = False,
        ignore: tuple[str, ...] = (),
        timeout: float | None = None,
        retries: int | Preset | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(judge, bool):
            raise UsageError(f"model(judge=…) must be True or False, not {type(judge).__name__}")
        super().__init__(
            function,
            effect=Effect.READ,
            match="position",
            ignore=ignore,
            timeout=timeout,
            retries=retries,
            name=name,
        )
        self.kind = "judge" if judge else "model"

    def shown(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments as JSON; of a conversation, only messages after the model's last turn."""
        known = {name: _new_in(value) for name, value in bound.items() if name not in self._hidden}
        return plain(known)  # type: ignore[no-any-return] # JSON of a dict

    def dumped(self, result: Any) -> tuple[Any, bool]:
        """Return the answer as JSON. Raises UsageError for a stream, which holds no answer yet."""
        if isinstance(result, AsyncIterator | Iterator) or hasattr(result, "__aiter__"):
            raise UsageError(
                f"{self.name} gave a stream, which cannot be recorded as one answer; ask for the whole "
                "answer, or use record(client), which records streams"
            )
        return plain_noting(result)

    def step(self, step: Step) -> Step:
        """Return the step of a model: its input, answer and requested calls."""
        arguments, output, error, kind = (
            step.tool_input,
            step.tool_output,
            step.error,
            step.exception_type,
        )
        metadata = dict(step.metadata or {})
        said: str | None = None
        asked: Any = None
        usage: Usage | None = None
        if error is not None:
            metadata = refused_request(metadata)
        else:
            answer = read_answer(output)
            usage = None if answer is None else answer.usage
            ending = None if answer is None else ending_of(answer.ended)
            if ending is not None and not (ending.type_name == CUT and _is_brief(arguments)):
                error, kind = ending.message, ending.type_name
            if answer is None:
                asked = output
            elif answer.calls:
                asked = [{"tool": call.name, "arguments": call.arguments} for call in answer.calls]
                metadata[IDS] = [call.id for call in answer.calls]
                if answer.text:
                    metadata["said"] = answer.text
            else:
                said = answer.text
        answering = usage.model if usage is not None else None
        metadata[MODEL] = answering or _named(arguments) or self.name
        return Step(
            action=MODEL,
            tool_input=arguments,
            tool_output=asked,
            llm_output=said,
            error=error,
            exception_type=kind,
            usage=usage,
            metadata=metadata,
            duration_s=step.duration_s,
        )


def _is_brief(arguments: Any) -> bool:
    """Whether the request allows so few tokens that a cut-off answer is expected."""
    if not isinstance(arguments, Mapping):
        return False
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    return any(isinstance(arguments.get(name), int) and arguments[name] <= BRIEF for name in names)


def _named(arguments: Any) -> str | None:
    """Return the model named by the arguments."""
    found = arguments.get(MODEL) if isinstance(arguments, Mapping) else None
    return found if isinstance(found, str) else None


def _new_in(value: Any) -> Any:
    """Return the messages of a conversation after the model's last turn, without their ids, which differ
    each time; any other value unchanged.
    """
    if not isinstance(value, list) or not all(_part_of(item, "role") for item in value):
        return value
    new: list[Any] = []
    for item in reversed(value):
        if _part_of(item, "role") == "assistant":
            break
        new.append({"role": _part_of(item, "role"), "content": _part_of(item, "content")})
    return new[::-1]


def _part_of(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


_plain_model = functools.lru_cache(maxsize=1024)(Model)


def model_of(function: Callable[..., Any]) -> tuple[Model, tuple[Any, ...]]:
    """Return the `Model` of a function given to `run.model`, and the object it is bound to, if any."""
    owner: tuple[Any, ...] = ()
    unbound = getattr(function, "__func__", None)
    if unbound is not None:
        owner, function = (function.__self__,), unbound  # type: ignore[attr-defined] # a bound method
    known = getattr(function, TOOL_ATTRIBUTE, None)
    if isinstance(known, Model):
        return known, owner
    if known is not None:
        raise UsageError(
            f"run.model() was given {known.name}, which is a tool; call it as it is, or decorate it with "
            "@triage.model instead"
        )
    if not callable(function):
        raise UsageError(f"run.model() takes a function, not {type(function).__name__}")
    try:
        return _plain_model(function), owner
    except TypeError:  # an unhashable callable
        return Model(function), owner
