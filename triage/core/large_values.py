"""Cut values that are too large to keep: a store gets the size, digest and beginning of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from .events import CallFinished, CallStarted, Event, StepRecorded
from .json_values import MARK, plain
from .redaction import Redactor
from .steps import Step
from .taxonomy import UNSAFE
from .wire import to_json

__all__ = ["MB", "MOST_RESULT_MB", "fitting", "is_cut", "json_of"]

MB = 2**20
MOST_RESULT_MB = 64
"""Maximum size, in MB of JSON, of the result of a call that must not be repeated."""
HEAD = 2_000
"""Characters kept of a cut value."""
_LONGEST_SECRET = 2**15
"""Characters searched beyond the head, for a secret that crosses its end."""
_CUT = "cut"
_encoder = msgspec.json.Encoder(enc_hook=plain)


def json_of(value: Any) -> bytes:
    """Return the JSON of a JSON value."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode
        return json.dumps(to_json(value), separators=(",", ":")).encode()


def is_cut(value: Any) -> bool:
    """Whether a recorded value was cut."""
    return isinstance(value, dict) and value.get(MARK) == _CUT


def fitting(
    event: Event, most: int, redactor: Redactor | None, effect_of: Callable[[CallFinished], str]
) -> Event:
    """Cut the values of an event that are too large to keep; return the same event if there are none.

    most: maximum bytes of JSON of each argument of a call, each value of a step, and a result; 64 MB for
    the result of a call that must not be repeated. A cut result is not `exact`. effect_of: returns the
    effect of a finished call. redactor: hides secrets before the cut, since half a secret is not
    recognised.
    """
    match event:
        case CallStarted(arguments=Mapping() as arguments) if len(json_of(arguments)) > most:
            cutter = _Cutter(most, redactor)
            return replace(
                event, arguments={name: cutter.value(item) for name, item in arguments.items()}
            )
        case StepRecorded() if len(json_of(event.step)) > most:
            return replace(event, step=_Cutter(most, redactor).step(event.step))
        case CallFinished() if len(body := json_of(event.result)) > most:
            if effect_of(event) in UNSAFE:
                most = max(most, MOST_RESULT_MB * MB)
            if len(body) > most:
                result = _Cutter(most, redactor).value(event.result)
                return replace(event, result=result, exact=False, typed=False)
        case _:
            pass
    return event


class _Cutter:
    """Cuts values whose JSON takes more than `most` bytes."""

    def __init__(self, most: int, redactor: Redactor | None) -> None:
        self._most = most
        self._redactor = redactor

    def step(self, step: Step) -> Step:
        arguments = step.tool_input
        # Cut one by one, as in `CallStarted`.
        if isinstance(arguments, dict):
            arguments = {name: self.value(item) for name, item in arguments.items()}
        return replace(
            step,
            tool_input=self.value(arguments),
            tool_output=self.value(step.tool_output),
            metadata=self.value(step.metadata),
            llm_output=self._text(step.llm_output),
            error=self._text(step.error),
        )

    def value(self, value: Any) -> Any:
        body = json_of(value)
        if len(body) <= self._most:
            return value
        return {
            MARK: _CUT,
            "type": type(value).__name__,
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "head": self._head(value, body),
        }

    def _text(self, text: str | None) -> str | None:
        mark = self.value(text)
        if not is_cut(mark):
            return text
        return f"{mark['head']}… [cut: {mark['bytes']} bytes of JSON, SHA-256 {mark['sha256']}]"

    def _head(self, value: Any, body: bytes) -> str:
        longest = HEAD + _LONGEST_SECRET
        if isinstance(value, str):
            head = value[:longest]
        else:
            head = body[: 4 * longest].decode(errors="ignore")[:longest]
        if self._redactor is not None:
            head = self._redactor.text(head)
        return head[:HEAD]
