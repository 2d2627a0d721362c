"""The neutral form of a conversation with a model, for all providers and frameworks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from triage.core.failures import ErrorInfo
from triage.core.steps import Usage
from triage.core.taxonomy import Cause, FailureType


class Asked(Struct, frozen=True):
    """A tool call requested by a model. arguments: parsed from JSON, or the text if it is not JSON."""

    id: str
    name: str
    arguments: Any


class Result(Struct, frozen=True):
    """A tool's result. call: the call's id. name: the tool, empty if only the call names it."""

    call: str
    output: Any
    name: str = ""
    failed: bool = False


class Answer(Struct, frozen=True):
    """A model's answer. ended: the provider's stop reason, None if not given."""

    text: str = ""
    calls: tuple[Asked, ...] = ()
    usage: Usage | None = None
    ended: str | None = None


Role: TypeAlias = Literal["system", "user", "model", "tool"]
"""The speaker. `tool` is a message with tool results, which may also hold text of the user."""


class Message(Struct, frozen=True):
    """One message of a conversation. usage, ended: as in `Answer`, for a model's message.

    server_calls, server_results: of tools that the provider runs itself.
    """

    role: Role
    text: str = ""
    calls: tuple[Asked, ...] = ()
    results: tuple[Result, ...] = ()
    usage: Usage | None = None
    ended: str | None = None
    server_calls: tuple[Asked, ...] = ()
    server_results: tuple[Result, ...] = ()

    @property
    def answer(self) -> Answer:
        """The message as a model's answer."""
        return Answer(self.text, self.calls, self.usage, self.ended)


Tell: TypeAlias = Callable[[str, str], None]
"""Reports a problem of the input, with the remedy."""


def tell_nobody(_text: str, _remedy: str) -> None:
    """Ignore the problem."""


ENDINGS: Mapping[str, tuple[FailureType, Cause]] = {
    "LengthFinishReasonError": (FailureType.CONTEXT_OVERFLOW, Cause.OUTPUT_CUT),
    "ContentFilterFinishReasonError": (FailureType.CONSTRAINT_IGNORED, Cause.CONTENT_FILTER),
    "ResponseServerError": (FailureType.EXTERNAL_FAULT, Cause.SERVER_ERROR),
}
"""The diagnosis of an answer that ended early, by exception class."""


_CUT = ("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded")


_REFUSED = (
    "content_filter", "content_filtered", "guardrail_intervened", "refusal", "safety", "recitation",
    "blocklist", "prohibited_content", "spii",
)  # fmt: skip


_BROKEN = ("failed", "error", "timeout")


def ending_of(reason: object) -> ErrorInfo | None:
    """Return the error for a stop reason, or None if the model had finished."""
    if reason in _CUT:
        name, message = "LengthFinishReasonError", f"the output was cut: finish reason {reason}"
    elif reason in _REFUSED:
        name = "ContentFilterFinishReasonError"
        message = f"the model refused: finish reason {reason}"
    elif reason in _BROKEN:
        name, message = "ResponseServerError", f"the provider failed: finish reason {reason}"
    else:
        return None
    mro = (name, "builtins.Exception", "builtins.BaseException")
    return ErrorInfo(type_name=name, module="", mro=mro, message=message)


LOST = (
    "This call has no result: the work was interrupted while it ran. It may have taken effect or not; "
    "find out before you call it again."
)
"""Replaces a result that never came."""


NOT_MADE = "This call was not made: the work was stopped before it began."
"""Replaces the result of a call that never began."""


UNDONE = "This call was made, and what it did has been undone since."
"""Replaces the result of a call that a compensator has undone."""


STAND_INS = frozenset({LOST, NOT_MADE, UNDONE})
"""Texts in place of a result, without a failure of the tool."""


class Outcome(Struct, frozen=True):
    """The outcome of a call. value: its result in the journal. error: its error message.

    how: `done`, `failed` (it returned or raised an error), `cut_off` (it was stopped while running),
    `not_made` (it never began), `undone` (a compensator reverted it) or `unknown` (its tool is not
    recorded, or the conversation is older than the run).
    """

    how: Literal["done", "failed", "cut_off", "not_made", "undone", "unknown"]
    value: Any = None
    error: str = ""

    def told(self, lost: str = LOST) -> tuple[str, bool]:
        """Return the text of the result for the model, and whether it reports a failure.

        lost: the text for a call that was cut off or whose outcome is unknown.
        """
        match self.how:
            case "done":
                return text_of(self.value), False
            case "failed":
                return self.error, True
            case "not_made":
                return NOT_MADE, True
            case "undone":
                return UNDONE, True
            case "cut_off" | "unknown":
                return lost, True


def outcome_unknown(_asked: Asked) -> Outcome:
    """Return the outcome `unknown`, as for any call outside of a run."""
    return Outcome("unknown")


def text_of(value: Any) -> str:
    """Return a result as text for a model."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
