"""What to tell the next attempt, the user and a person, with what the failure names.

Words that come from an error or a tool are data: they are quoted and cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from triage.failures import ErrorInfo
from triage.steps import Step
from triage.taxonomy import Cause, FailureType, Severity

from ._fields import fields_of, not_json
from ._shown import as_json, call_text, quote
from .detectors._hints import hint as of_finding

_MAX_NAMES = 20
_MAX_TOOLS = 64


class Case(NamedTuple):
    """What advice is given on. step: the decisive one. tools: name to schema, empty if unknown."""

    failure_type: FailureType
    cause: str | None
    severity: Severity
    error: ErrorInfo | None
    step: Step | None
    tool: str | None
    tools: Mapping[str, Any]
    retry_after_s: float | None
    repeats: int
    cycle: Sequence[Step]
    found: str


def passes(failure_type: FailureType, severity: Severity) -> bool:
    """Whether the same again is right, after a while: then there is nothing to do otherwise."""
    return failure_type is _EXTERNAL and severity is _RETRIABLE


# A member of an enumeration costs a call wherever it is asked for by name.
_EXTERNAL, _RETRIABLE = FailureType.EXTERNAL_FAULT, Severity.RETRIABLE


def hint(case: Case) -> str:
    """What to do otherwise, in full sentences, about what does not pass by itself."""
    told = of_finding(case.failure_type, case.cause, case.found)
    if told is not None:
        return told
    writer = _WRITERS.get(case.cause or "") or _BY_TYPE.get(case.failure_type, _unknown)
    return writer(case)


# --- tools ---------------------------------------------------------------------------------


@cache
def _name_patterns() -> tuple[re.Pattern[str], ...]:
    name = r"['\"`]?(?P<name>[\w.:-]{1,80})['\"`]?"
    return (
        re.compile(
            r"(?:unknown|no such|unregistered|invalid) (?:tool|function|command)"
            rf"(?: type| name)?:? {name}",
            re.IGNORECASE,
        ),
        re.compile(rf"(?:tool|function|command) {name} (?:is |was |does )?not ", re.IGNORECASE),
        re.compile(rf"{name} is not (?:a valid tool|among)", re.IGNORECASE),
    )


@cache
def _list_pattern() -> re.Pattern[str]:
    return re.compile(
        r"(?:available (?:tools|functions) ?(?:are)?|should be one of|try one of|"
        r"valid tools(?: are)?|known tools(?: are)?):? ?\[?(?P<names>[^\]\n.]{1,400})",
        re.IGNORECASE,
    )


def _tool_names(case: Case) -> list[str]:
    """The names of the tools that exist: from the manifest, else from the error's own words."""
    if case.tools:
        return list(case.tools)
    for info in case.error.walk() if case.error else ():
        hit = _list_pattern().search(info.message[:4_000])
        if hit:
            return [name for part in hit["names"].split(",") if (name := part.strip(" '\"`[]"))][
                :_MAX_NAMES
            ]
    return []


def _called(case: Case) -> str | None:
    for info in case.error.walk() if case.error else ():
        for pattern in _name_patterns():
            hit = pattern.search(info.message[:4_000])
            if hit:
                return hit["name"]
    return case.tool


def _tool(case: Case) -> str:
    from difflib import get_close_matches

    called, names = _called(case), _tool_names(case)
    text = (
        f"There is no tool {quote(called, 80)}. "
        if called
        else "The tool that was called does not exist. "
    )
    if not names:
        return text + "Call only tools you were given, by their exact names."
    close = get_close_matches(called, names, 1, 0.5) if called else []
    # Every name once: what comes after this in a prompt may name the tools too.
    others = [name for name in names if name not in close]
    listed = [f"{name[:80]} (the closest name)" for name in close]
    listed += [name[:80] for name in others[:_MAX_TOOLS]]
    rest = ", …" if len(others) > _MAX_TOOLS else ""
    return f"{text}The tools are: {', '.join(listed)}{rest}."


# --- the form of data ----------------------------------------------------------------------


def _arguments(case: Case) -> str:
    fields = fields_of(case.error) if case.error else ()
    about = f" of {quote(case.tool, 80)}" if case.tool else ""
    if fields:
        said = "; ".join(
            f"{quote(field.name or 'the value', 80)}: {quote(field.problem, 160)}"
            for field in fields
        )
        text = f"Data{about} had not the agreed form. Correct these fields: {said}."
    else:
        text = (
            f"Data{about} had not the agreed form: {_said(case)}. Correct it before the next call."
        )
    return text + _schema(case)


def _schema(case: Case) -> str:
    schema = case.tools.get(case.tool) if case.tool else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        return ""
    required = schema.get("required") if isinstance(schema, Mapping) else None
    needed = set(required) if isinstance(required, list | tuple) else set()
    parts = [
        f"{str(name)[:60]} ({_kind(kind)}{', required' if name in needed else ''})"
        for name, kind in list(properties.items())[:_MAX_NAMES]
    ]
    return f" Its arguments are: {', '.join(parts)}."


def _kind(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return str(kind)[:40] if kind is not None else "any"


def _output(case: Case) -> str:
    parser = not_json(case.error) if case.error else None
    if parser is not None:
        return (
            f"The answer is not valid JSON; the parser said: {quote(parser, 200)}. Answer with one "
            "valid JSON value only, nothing before or after it."
        )
    fields = fields_of(case.error) if case.error else ()
    if fields:
        return _arguments(case)
    return (
        f"The answer could not be read: {_said(case)}. Answer in exactly the form asked "
        "for, with nothing before or after it."
    )


def _bad_response(case: Case) -> str:
    return (
        f"The other side's answer could not be read: {_said(case)}. Call it once more; if "
        "it stays so, use another source."
    )


# --- the agent's own doing -----------------------------------------------------------------


def _loop(case: Case) -> str:
    if len(case.cycle) > 1:
        calls = " → ".join(call_text(step) for step in case.cycle)
        return (
            f"You went {case.repeats} times through the same steps: {calls}. Do not take "
            "them again: change the arguments, use another tool, or answer with what you "
            "have."
        )
    step = case.cycle[0] if case.cycle else case.step
    if step is None:
        return (
            "The same steps were repeated without progress. Take another approach, or "
            "answer with what you have."
        )
    result = step.error or (step.tool_output if step.tool_output is not None else step.llm_output)
    outcome = f" with the same result {as_json(result)}" if result is not None else ""
    return (
        f"You called {call_text(step)} {case.repeats} times{outcome}. Do not make this "
        "call again: change the arguments, use another tool, or answer with what you "
        "have."
    )


def _budget(_: Case) -> str:
    return (
        "The allowed steps were used up before the task was done. Plan fewer steps: skip "
        "what is not needed, join calls, and answer as soon as the result is there."
    )


def _context(_: Case) -> str:
    return (
        "The prompt is longer than the model can hold. Send less: shorten or summarise "
        "earlier messages and tool outputs, or take the input in parts."
    )


def _output_cut(_: Case) -> str:
    return (
        "The answer was cut off at the token limit. Ask for a shorter answer, answer in "
        "parts, or allow more output tokens."
    )


def _content(case: Case) -> str:
    return (
        f"A content policy refused this: {_said(case)}. Reword the request, or leave out "
        "what it refuses; do not send it again unchanged."
    )


def _constraint(case: Case) -> str:
    return (
        f"A rule of the task was broken: {case.found or _said(case)}. Do the task again without it."
    )


def _missing(case: Case) -> str:
    looked = (
        f" in {call_text(case.step)}" if case.step is not None and case.step.tool_called else ""
    )
    return (
        f"Something that was named{looked} does not exist: {_said(case)}. Look up what "
        "exists (list, search) and use only names found there."
    )


def _incomplete(case: Case) -> str:
    return (
        f"Parts of the task are still open: {_said(case)}. Do them before you declare the "
        "task done."
    )


def _drift(case: Case) -> str:
    said = f": {_said(case)}" if case.error is not None or case.found else ""
    return (
        f"The last steps led away from the task{said}. The task has not changed: read it "
        "again, and take only steps that it asks for."
    )


# --- the other side ------------------------------------------------------------------------


def _refused(case: Case) -> str:
    return (
        f"The other side did not serve the call ({_cause(case)}): {_said(case)}. Do not make the "
        "same call again: change it, or use another source."
    )


def _person(case: Case) -> str:
    return (
        f"This cannot be solved by another plan ({_cause(case)}): a person must act. Use "
        "another tool or source if there is one, else stop."
    )


def _not_found(case: Case) -> str:
    return (
        f"The address asked for does not exist: {_said(case)}. Check it, or find the "
        "right one by searching; do not ask for it again."
    )


def _too_large(_: Case) -> str:
    return "What was sent is too large for the other side. Send less, or send it in parts."


def _unknown(case: Case) -> str:
    what = f": {_said(case)}" if case.error else ""
    return (
        f"The last attempt failed for a reason that is not known{what}. Do not assume "
        "that its last step took effect; check before you go on."
    )


def _cause(case: Case) -> str:
    return str(case.cause or case.failure_type).replace("_", " ")


def _said(case: Case) -> str:
    if case.error is None:
        return quote(case.found) if case.found else "no more is known"
    return quote(case.error.message, 200)


_WRITERS: dict[str, Callable[[Case], str]] = {
    Cause.UNKNOWN_TOOL: _tool,
    Cause.INVALID_ARGUMENTS: _arguments,
    Cause.INVALID_RESULT: _arguments,
    Cause.BAD_REQUEST: _arguments,
    Cause.MALFORMED_OUTPUT: _output,
    Cause.BAD_RESPONSE: _bad_response,
    Cause.PAYLOAD_TOO_LARGE: _too_large,
    Cause.STEP_BUDGET: _budget,
    Cause.OUTPUT_CUT: _output_cut,
    Cause.CONTENT_FILTER: _content,
    Cause.NOT_FOUND: _not_found,
    Cause.MISSING_RESOURCE: _missing,
    Cause.QUOTA_EXHAUSTED: _person,
    Cause.AUTH: _person,
    Cause.PERMISSION: _person,
    Cause.TLS: _person,
    Cause.MODEL_MISSING: _person,
    Cause.MISSING_CONFIG: _person,
    Cause.RESOURCE_EXHAUSTED: _person,
    Cause.DEPLOYMENT: _person,
    Cause.CODE_ERROR: _unknown,
}
_BY_TYPE: dict[FailureType, Callable[[Case], str]] = {
    FailureType.WRONG_TOOL_CALLED: _tool,
    FailureType.CONSTRAINT_IGNORED: _constraint,
    FailureType.LOOP_DETECTED: _loop,
    FailureType.HALLUCINATED_STATE: _missing,
    FailureType.PLAN_INCOMPLETE: _incomplete,
    FailureType.SCHEMA_MISMATCH: _arguments,
    FailureType.CONTEXT_OVERFLOW: _context,
    FailureType.GOAL_DRIFT: _drift,
    FailureType.EXTERNAL_FAULT: _refused,
}
