"""Which field failed, and what was expected of it: from validation errors and their messages."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from triage.failures import ErrorInfo

MAX_FIELDS = 6


class Field(NamedTuple):
    """name: path of the field, with dots. problem: what was said about it, as it was said."""

    name: str
    problem: str


def fields_of(error: ErrorInfo) -> tuple[Field, ...]:
    """The fields that failed, most telling first; empty where nothing names one."""
    for info in error.walk():
        found = _from_body(info.body)
        if found:
            return found[:MAX_FIELDS]
    for info in error.walk():
        found = _from_message(info.message[:4_000], info.body)
        if found:
            return found[:MAX_FIELDS]
        found = _from_notes(info)
        if found:
            return found[:MAX_FIELDS]
    return ()


def not_json(error: ErrorInfo) -> str | None:
    """What a parser said of a text that is no JSON at all; None where nothing says that it is."""
    if error.is_a("YAMLError", "TOMLDecodeError"):  # JSON may have been tried before it
        return None
    for info in error.walk():
        said = _invalid_json(info)
        if said is None and info.is_a("JSONDecodeError"):
            said = info.message
        if said is not None:
            return said
    return None


def is_invalid_json(info: ErrorInfo) -> bool:
    """Whether a validation error is about a text that is no JSON, rather than about its fields."""
    return _invalid_json(info) is not None


def _invalid_json(info: ErrorInfo) -> str | None:
    detail = info.body.get("detail") if isinstance(info.body, dict) else None
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        item = detail[0]
        # With a path it is one field that should hold JSON; the rest could be read.
        if item.get("type") != "json_invalid" or item.get("loc"):
            return None
        return str(item.get("msg") or info.message)
    hit = re.match(
        r"1 validation error for [^\n]{1,200}\n {2}(?P<problem>Invalid JSON: [^\n]{1,300}?)"
        r"(?: \[type=json_invalid[^\n]{0,300})?(?:\n|$)",
        info.message[:2_000],
    )
    return hit["problem"] if hit else None


def _from_body(body: Any) -> tuple[Field, ...]:
    if not isinstance(body, dict):
        return ()
    for name in ("detail", "details", "errors", "fieldViolations"):
        listed = body.get(name)
        if isinstance(listed, list):
            found = tuple(field for item in listed if (field := _item(item)) is not None)
            if found:
                return found
    inner = body.get("error")
    if isinstance(inner, dict):
        found = _from_body(inner)
        if found:
            return found
        body = inner
    name = body.get("param")
    message = body.get("message")
    if isinstance(name, str) and name and isinstance(message, str):
        return (Field(name, message),)
    return ()


def _item(item: Any) -> Field | None:
    if not isinstance(item, dict):
        return None
    violations = item.get("fieldViolations") or item.get("field_violations")
    if isinstance(violations, list) and violations:
        return _item(violations[0])
    loc = item.get("loc", item.get("field", item.get("path", item.get("name"))))
    if isinstance(loc, list | tuple):
        parts = [str(part) for part in loc]
        name = ".".join(
            parts[1:] if len(parts) > 1 and parts[0] in ("body", "query", "path") else parts
        )
    else:
        name = loc if isinstance(loc, str) else ""
    problem = next(
        (
            found
            for key in ("msg", "message", "description", "code")
            if isinstance(found := item.get(key), str)
        ),
        "",
    )
    if item.get("type") == "missing":
        problem = "Field required"
    return Field(name, problem) if name or problem else None


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(
        re.compile(pattern)
        for pattern in (
            r"missing \d{1,3} required (?:[\w-]{1,20} )?arguments?: (?P<names>.{1,200})",
            r"unexpected keyword argument '(?P<extra>[^']{1,80})'",
            r"missing required field `(?P<required>[^`]{1,80})`",
            r"contains unknown field `(?P<extra>[^`]{1,80})`",
            r"(?P<problem>Expected `[^`]{1,40}`, got `[^`]{1,40}`) - at `\$\.?(?P<path>[^`]+)`",
            r"'(?P<required>[^']{1,80})' is a required property",
            r"Argument (?P<extra>\w{1,80}) is not in the tool",
            r"failed to parse field \[(?P<path>[^\]]{1,80})\] of type \[(?P<kind>[^\]]{1,40})\]",
            r"(?:constraint failed: \w{1,80}\.|column \")(?P<path>\w{1,80})",
            r"Invalid (?:type|value|parameter) for '(?P<path>[^']{1,99})': (?P<problem>.{1,200})",
            r"Field [`'\"](?P<path>[^`'\"]{1,80})[`'\"] (?P<problem>[^\n]{1,200})",
        )
    )


@cache
def _listed() -> re.Pattern[str]:
    # The text form of a pydantic error: the field on a line of its own, the problem indented below.
    return re.compile(
        r"^(?P<path>[\w.\[\]-]{1,120})\n {2}(?P<problem>[^\n]{1,200}?)(?: \[type=[^\n]{0,300})?$",
        re.MULTILINE,
    )


@cache
def _colons() -> re.Pattern[str]:
    return re.compile(
        r"^ ?(?P<path>\w[\w.]{0,80}): "
        r"(?P<problem>(?:Input should|Field required|Value error)[^\n]{0,160})$",
        re.MULTILINE,
    )


def _from_message(message: str, _: Any) -> tuple[Field, ...]:
    for pattern in (_listed(), _colons()):
        found = tuple(Field(hit["path"], hit["problem"]) for hit in pattern.finditer(message))
        if found:
            return found
    for pattern in _patterns():
        hit = pattern.search(message)
        if hit is not None:
            return _from_hit(hit)
    return ()


def _from_hit(hit: re.Match[str]) -> tuple[Field, ...]:
    groups = {name: value for name, value in hit.groupdict().items() if value}
    if "names" in groups:
        names = re.findall(r"'([^']{1,80})'", groups["names"])
        return tuple(Field(name, "required, and missing") for name in names)
    if "required" in groups:
        return (Field(groups["required"], "required, and missing"),)
    if "extra" in groups:
        return (Field(groups["extra"], "not known, must not be given"),)
    problem = groups.get("problem") or (
        f"must be of type {groups['kind']}" if "kind" in groups else "not accepted"
    )
    return (Field(groups["path"], problem),)


def _from_notes(info: ErrorInfo) -> tuple[Field, ...]:
    for note in info.notes:
        hit = re.search(r"@ attribute (\w{1,80})", note[:300])
        if hit is not None:
            missing = info.type_name == "KeyError"
            return (Field(hit.group(1), "required, and missing" if missing else info.message),)
    return ()
