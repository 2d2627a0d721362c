"""The text of an error result as an error: which facts it states about the call that returned it.

A tool that returns an error leaves nothing but its text, and anybody may have written any part of that.
So words decide nothing. A status, a code or the class of an exception counts where the text begins with
it, and a refusal of the call's arguments or name where they are wrong by the tool's declaration, too.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from triage.classifiers.detectors.arguments import Problem, check
from triage.classifiers.detectors.results import denies_tool
from triage.core.failures import BUSY, ErrorInfo, fields_of
from triage.core.foreign import MAX_TEXT
from triage.core.patterns import Pattern
from triage.core.phases import phase_by_name
from triage.core.retry_after import from_body, from_text
from triage.core.taxonomy import Cause, FailureType

from .matching import Judge, answer_in, leading_status
from .rules import RULES

__all__ = ["REFUSED_ARGUMENTS", "error_of_result"]

REFUSED_ARGUMENTS = {"cause": Cause.INVALID_ARGUMENTS.value}
"""The hint of an error that says that the arguments of a call were refused."""

_FRAME = frozenset(
    "an the error errors exception failure failed executing calling invoking running in of mcp tool".split()
)
"""Words with which servers and frameworks introduce the error of a tool."""
_WORDS = Pattern(r"\w+")
_CLASS = Pattern(
    r"(?:[a-z_]\w{0,40}\.){0,6}(?P<name>[A-Z]\w{0,60}(?:Error|Exception|Timeout|Refused))"
)
_NUMBER = Pattern(r"[\[(]?errno (?P<number>-?\d{1,3})\b", re.IGNORECASE)
_NAME = Pattern(r"(?:connect )?(?P<name>E[A-Z]{3,15})\b")
"""The name of an error as Node writes it: `connect ECONNREFUSED 127.0.0.1:80`."""
_HEADER = Pattern(r"(?i)\bretry-after: ?\d")


def error_of_result(
    text: str,
    type_name: str,
    tool: str,
    arguments: Any,
    schema: Mapping[str, Any] | None = None,
    *,
    exists: bool = True,
) -> ErrorInfo:
    """Return the error that a call's result stands for.

    type_name: what the error is called. tool, arguments: of the call. schema: of the tool's arguments, None
    if it is not known. exists: False if the server has declared its tools, and this is none of them.
    """
    info = _stated(text, type_name, tool)
    if info.phase is not None or info.status_code is not None:
        return info
    if not exists:
        return replace(info, phase="not_sent") if denies_tool(info.message, tool) else info
    problem = check(tool, arguments or {}, schema)
    if problem is None or not _is_about(info, problem, arguments or {}):
        return info
    return replace(info, phase="not_sent", hint=REFUSED_ARGUMENTS)


def _stated(text: str, type_name: str, tool: str) -> ErrorInfo:
    """The error with the status, code or class that its text begins with, behind the server's frame."""
    message = text[:MAX_TEXT]
    said, status, code = message.strip(), None, None
    frame = _FRAME.union(_words(tool))
    while True:
        lead, colon, rest = said.partition(":")
        kind = _CLASS.fullmatch(lead)
        phase = None if kind is None else phase_by_name(kind["name"])
        is_frame = kind is not None or _words(lead) <= frame
        if phase is not None or not (is_frame and colon and rest.strip()):
            break
        said = rest.strip()
    answer = answer_in(said) if "{" in said else None
    if phase is None:
        code = _code(said)
        phase = None if code is None else phase_by_name(code)
        status = answer.status if answer is not None and said[0] == "{" else leading_status(said)
    told = from_text(said)
    asked = told if _HEADER.search(said) else None if answer is None else from_body(answer.body)
    if status == BUSY and asked is None and told is not None:
        phase = "sent"  # a header states a refusal; words may come from anybody
    return ErrorInfo(
        type_name,
        message=message,
        status_code=status,
        code=code,
        retry_after_s=told if asked is None else asked,
        phase=phase,
        body=None if answer is None else answer.body,
    )


def _code(said: str) -> str | None:
    """The name of the system's error that a text begins with."""
    named = _NAME.match(said)
    if named is not None and named["name"] in errno.errorcode.values():
        return named["name"]
    numbered = _NUMBER.match(said)
    number = 0 if numbered is None else int(numbered["number"])
    return "EAI" if number < 0 else errno.errorcode.get(number)


def _is_about(info: ErrorInfo, problem: Problem, arguments: Mapping[str, Any]) -> bool:
    """Whether an error is about this argument: by the field that it names, or the value it quotes."""
    verdict = _judge().judge(info)
    if verdict is None or verdict.rule.failure_type is not FailureType.SCHEMA_MISMATCH:
        return False
    name = re.split(r"[.\[]", problem.path)[0]
    fields = fields_of(info)
    if fields:
        return any(re.split(r"[.\[]", field.name)[0] == name for field in fields)
    value = arguments.get(name)
    return name.lower() in _words(info.message) or (
        name in arguments and (repr(value) in info.message or json.dumps(value) in info.message)
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(text))


@cache
def _judge() -> Judge:
    return Judge(RULES)
