"""Do the arguments of a call fit the JSON Schema of its tool?

`jsonschema` judges, by draft 2020-12. What it cannot read is accepted: a broken schema, a reference that
leads nowhere, a pattern that might take long, arguments of great size. So a problem that is found is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

import msgspec

from triage.core.json_values import MARK
from triage.core.observers import logger
from triage.core.redaction import redact

MAX_TEXT = 1_000_000
"""Arguments that are JSON text are read up to this many characters; longer ones are accepted."""
_MAX_NODES = 5_000
_MAX_DEPTH = 32
_MAX_REFERENCES = 5_000
_MAX_NAME = 60
_MAX_LISTED = 4
_MAX_NAMES = 20
_MAX_PATTERN = 200
_MAX_SEARCHED = 128
_MAX_OPEN = 3


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One argument that does not fit.

    kind: `missing`, `unexpected`, `type` or `value`. path: where it is, `items[0].price`; empty for
    the arguments as a whole. wanted, found: in a few words. text: all of it in one line, quoted, cut
    and without what looks like a credential, for evidence or a hint.
    """

    kind: str
    path: str
    wanted: str
    found: str
    text: str


def takes(declared: Any) -> Any:
    """The schema of a tool's arguments: what is declared, or its part for them, as MCP's tools have it."""
    parts = (_part(declared, key) for key in ("inputSchema", "input_schema", "parameters"))
    return next((part for part in parts if part is not None), declared)


def gives(declared: Any) -> Mapping[str, Any] | None:
    """The schema of a tool's results, None where it declares none."""
    return _part(declared, "outputSchema")


def _part(declared: Any, key: str) -> Mapping[str, Any] | None:
    try:
        part = declared.get(key) if isinstance(declared, Mapping) else None
    except Exception:  # a schema may be anything of the user's
        return None
    return part if isinstance(part, Mapping) else None


class Schema:
    """A JSON Schema, read once: what plainly fits is accepted at once, anything else goes to `jsonschema`.

    declared: the schema; None, or anything else that is no mapping, accepts all.
    """

    def __init__(self, declared: Any) -> None:
        self.declared: Mapping[str, Any] | None = (
            declared if isinstance(declared, Mapping) else None
        )
        try:
            self._fits = _plainly(declared)
        except Exception:  # a schema may be anything of the user's
            self._fits = _never

    def problem(self, value: Any) -> Problem | None:
        """The first problem of a value that is not excused; None if it fits, or if that cannot be said."""
        if self.declared is None or self._fits(value) or _is_large(value):
            return None
        _references.set(iter(range(_MAX_REFERENCES)))
        try:
            validator = _validator(msgspec.json.encode(self.declared, enc_hook=dict))
            errors = () if validator is None else validator.iter_errors(value)
            error = next((error for error in errors if not _is_excused(error)), None)
            return None if error is None else _problem(error)
        except Exception:  # a schema may hold anything; what it says then is not known
            return None

    def of_result(self, output: Any) -> str | None:
        """What of a result does not fit, in one line; None if it fits. Never raises.

        output: the value, its JSON text, or what a server of the Model Context Protocol answers.
        """
        if isinstance(output, Mapping) and "structuredContent" in output:
            output = output["structuredContent"]
        elif isinstance(output, str) and output.lstrip()[:1] in ("{", "["):
            try:
                output = json.loads(output[:MAX_TEXT])
            except (ValueError, RecursionError):
                return None  # what is no JSON is told elsewhere
        problem = self.problem(output)
        if problem is None:
            return None
        return f"{problem.path or 'it'} must be {problem.wanted}, not {problem.found}"

    def of_arguments(self, tool: str, arguments: Any) -> Problem | None:
        """The first problem of a call's arguments; None if they fit, or if that cannot be said.

        arguments: an object, or JSON text of one. Anything else is how somebody wrote a step down, not
        what a model gave, and is accepted. Never raises.
        """
        if self.declared is None:
            return None
        if isinstance(arguments, str):
            if len(arguments) > MAX_TEXT or arguments.lstrip()[:1] != "{":
                return None
            try:
                arguments = json.loads(arguments)
            except RecursionError:
                return None
            except ValueError:
                found = "text that is no valid JSON"
                return Problem(
                    kind="type",
                    path="",
                    wanted="a JSON object",
                    found=found,
                    text=f"the arguments of {_quoted(tool)} are {found}",
                )
        return self.problem(arguments) if isinstance(arguments, Mapping) else None


def check(tool: str, arguments: Any, schema: Mapping[str, Any] | None) -> Problem | None:
    """The first problem of a call's arguments; None if they fit, or if that cannot be said.

    arguments: as of `Schema.of_arguments`. schema: as a tool declares it; None accepts all. Never raises.
    """
    return Schema(takes(schema)).of_arguments(tool, arguments)


def arguments_of(declared: Any) -> str:
    """The arguments of a tool by name, each with its type; empty where its schema names none."""
    schema = takes(declared)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return ""
    required = schema.get("required")
    needed = set(required) if isinstance(required, list | tuple) else set()
    listed: list[str] = []
    for name, field in list(properties.items())[:_MAX_NAMES]:
        kind = field.get("type") if isinstance(field, Mapping) else None
        kind = "any" if kind is None else str(kind)[:40]
        listed.append(f"{str(name)[:60]} ({kind}{', required' if name in needed else ''})")
    return ", ".join(listed)


def _is_large(arguments: Any) -> bool:
    """Whether judging these arguments might take long."""
    level, nodes = [arguments], 0
    for _ in range(_MAX_DEPTH):
        nodes += len(level)
        if not level or nodes > _MAX_NODES:
            break
        level = [
            inner
            for value in level
            if isinstance(value, Mapping | list | tuple)
            for inner in (value.values() if isinstance(value, Mapping) else value)
        ]
    return bool(level)


# --- what plainly fits ---------------------------------------------------------------------

_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
_READ = frozenset(
    {"type", "enum", "properties", "required", "additionalProperties", "items", "anyOf"}
)
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "format", "nullable"})


def _never(_: Any) -> bool:
    return False


def _plainly(schema: Any) -> Callable[[Any], bool]:
    """A check of values against a schema of the usual keywords: True only for what surely fits."""
    if not isinstance(schema, Mapping) or not schema.keys() <= _READ | _NOTES:
        return _never
    if "anyOf" in schema:
        branches = [_plainly(branch) for branch in schema["anyOf"]]
        alone = schema.keys() <= _NOTES | {"anyOf"}
        return (lambda value: any(fits(value) for fits in branches)) if alone else _never
    wanted = schema.get("type", tuple(_KINDS))
    names = [wanted] if isinstance(wanted, str) else wanted
    kinds = {kind for name in names for kind in _KINDS[name]}
    choices = frozenset(schema["enum"]) if "enum" in schema else None
    if choices is not None:
        kinds &= {str}
    fields = {name: _plainly(field) for name, field in schema.get("properties", {}).items()}
    required = frozenset(schema.get("required", ()))
    is_open = schema.get("additionalProperties", True) is True
    item = _plainly(schema["items"]) if "items" in schema else None

    def fits(value: Any) -> bool:
        kind = type(value)
        if kind not in kinds or (choices is not None and value not in choices):
            return False
        if kind is dict:
            return required <= value.keys() and all(
                fields[name](inner) if name in fields else is_open for name, inner in value.items()
            )
        if kind is list and item is not None:
            return len(value) <= _MAX_NODES and all(map(item, value))
        return True

    return fits


# --- the validator -------------------------------------------------------------------------

_references: ContextVar[Iterator[int]] = ContextVar("triage_schema_references")
"""How many references the check in hand may still follow."""


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    """The validator of a schema; None, said once in the log, for a schema that is broken."""
    from referencing import Registry

    try:
        validator = _dialect()(msgspec.json.decode(schema), registry=Registry())
        validator.check_schema(validator.schema)
    except Exception as error:  # whatever is wrong with it, it cannot be read
        why = redact(str(getattr(error, "message", error)))[:200]
        logger.warning("a tool's schema cannot be read, so nothing is checked against it: %s", why)
        return None
    return validator


def load_schemas() -> None:
    """Load the library that judges schemas, which takes 0.1 s: best done outside of any event loop."""
    _dialect()


@cache
def _dialect() -> Any:
    """Draft 2020-12 where it takes bounded time and asks for nothing that tools do not ask for."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types
    from jsonschema.validators import extend  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable

    standard: Mapping[str, Any] = Draft202012Validator.VALIDATORS

    def reference(validator: Any, to: Any, value: Any, schema: Any) -> Iterator[Any]:
        next(_references.get())  # beyond the last RuntimeError: too large to be judged
        try:
            yield from standard["$ref"](validator, to, value, schema)
        except Unresolvable:
            return

    def pattern(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, str) and len(value) <= _MAX_SEARCHED and _is_quick(wanted):
            yield from standard["pattern"](validator, wanted, value, schema)

    def additional(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from standard["additionalProperties"](validator, wanted, value, schema)

    def ignored(*_: Any) -> Iterable[Any]:
        return ()

    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "array": lambda _, value: isinstance(value, list | tuple),
            "object": lambda _, value: isinstance(value, Mapping),
        }
    )
    return extend(
        Draft202012Validator,
        {
            "$ref": reference,
            "pattern": pattern,
            "additionalProperties": additional,
            # A tool takes what fits two alternatives.
            "oneOf": standard["anyOf"],
            "$dynamicRef": ignored,
            "patternProperties": ignored,
            "unevaluatedItems": ignored,
            "unevaluatedProperties": ignored,
            "uniqueItems": ignored,
        },
        type_checker=types,
    )


@lru_cache(maxsize=256)
def _is_quick(pattern: str) -> bool:
    """Whether a pattern takes short time on every text: no repeated group, few open repetitions."""
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern[: _MAX_PATTERN + 1])
    open_ended = len(re.findall(r"[*+]|\{\d*,\d*\}", bare))
    if len(pattern) > _MAX_PATTERN or open_ended > _MAX_OPEN or re.search(r"\)[*+{]", bare):
        return False
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _is_excused(error: Any) -> bool:
    """True for a value that is lost, and for a null where OpenAPI's `nullable` or the default allow it."""
    value, schema = error.instance, error.schema
    if isinstance(value, Mapping) and MARK in value:
        return True
    if value is None and (schema.get("nullable") is True or schema.get("default", ...) is None):
        return True
    return any(all(map(_is_excused, branch)) for branch in _branches(error))


def _branches(error: Any) -> list[list[Any]]:
    """The errors of each alternative of `anyOf`."""
    branches: dict[Any, list[Any]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.relative_schema_path[0], []).append(inner)
    return list(branches.values())


# --- errors in our words -------------------------------------------------------------------

_LIMITS = {
    "minLength": "have at least {} characters",
    "maxLength": "have at most {} characters",
    "minItems": "have at least {} items",
    "maxItems": "have at most {} items",
    "minimum": "be from {}",
    "maximum": "be up to {}",
    "exclusiveMinimum": "be above {}",
    "exclusiveMaximum": "be below {}",
    "const": "be {}",
    "multipleOf": "be a multiple of {}",
    "pattern": "be text like {}",
}


def _problem(error: Any) -> Problem:
    path, value = _path(error.absolute_path), error.instance
    keyword, wanted = str(error.validator), error.validator_value
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, Mapping) else {}
    properties = schema.get("properties") or {}
    if keyword in ("anyOf", "oneOf"):
        problems = [
            _problem(next(inner for inner in branch if not _is_excused(inner)))
            for branch in _branches(error)
        ]
        mistyped = [one for one in problems if one.kind == "type" and one.path == path]
        if len(mistyped) < len(problems):
            # An alternative of the right type says best what is wrong with the value.
            return next(one for one in problems if one not in mistyped)
        return _mistyped(path, [one.wanted for one in mistyped], value)
    if keyword == "type":
        return _mistyped(path, [wanted] if isinstance(wanted, str) else wanted, value)
    if keyword == "required":
        name = next(name for name in wanted if name not in value)
        place = _path([*error.absolute_path, name])
        kinds = properties.get(name, {}).get("type", ())
        return Problem(
            kind="missing",
            path=place,
            wanted=" or ".join([kinds] if isinstance(kinds, str) else kinds),
            found="nothing",
            text=f"argument {_quoted(place)} is missing",
        )
    if keyword == "additionalProperties" and wanted is False:
        place = _path(
            [*error.absolute_path, next(name for name in value if name not in properties)]
        )
        known = [_quoted(name) for name in properties]
        listed = ", ".join(known[:_MAX_LISTED] + ["…"] * (len(known) > _MAX_LISTED))
        return Problem(
            kind="unexpected",
            path=place,
            wanted=listed or "no arguments",
            found=_quoted(place),
            text=f"there is no argument {_quoted(place)}; there is {listed or 'no arguments'}",
        )
    if keyword == "enum":
        choices = [_shown(item) for item in wanted[:_MAX_LISTED]]
        must = f"be one of {', '.join(choices)}" + ", …" * (len(wanted) > _MAX_LISTED)
    else:
        must = _LIMITS.get(keyword, f"fit the schema's {keyword!r}").format(_shown(wanted))
    found = _shown(value)
    if keyword.endswith(("Length", "Items")):
        found = f"{len(value)} {'items' if keyword.endswith('Items') else 'characters'}"
    return Problem(
        kind="value",
        path=path,
        wanted=must.removeprefix("be "),
        found=found,
        text=f"{_argument(path)} must {must}, not {found}",
    )


def _mistyped(path: str, types: Iterable[str], value: Any) -> Problem:
    wanted, found = " or ".join(dict.fromkeys(types)), _type(value)
    return Problem(
        kind="type",
        path=path,
        wanted=wanted,
        found=found,
        text=f"{_argument(path)} must be {wanted}, not {found}",
    )


_TYPES: tuple[tuple[str, Any], ...] = (
    ("string", str),
    ("boolean", bool),
    ("null", type(None)),
    ("object", Mapping),
    ("array", (list, tuple)),
    ("integer", int),
    ("number", float),
)


def _type(value: Any) -> str:
    """The JSON Schema name of a value's type."""
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return next((name for name, kind in _TYPES if isinstance(value, kind)), type(value).__name__)


def _path(parts: Iterable[str | int]) -> str:
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part[:_MAX_NAME]}" if path else part[:_MAX_NAME]
    return path


def _argument(path: str) -> str:
    return f"argument {_quoted(path)}" if path else "the arguments as a whole"


def _quoted(text: str) -> str:
    line = " ".join(redact(text[: 4 * _MAX_NAME]).split()).replace("'", '"')
    return f"'{line}'" if len(line) <= _MAX_NAME else f"'{line[: _MAX_NAME - 1]}…'"


def _shown(value: Any) -> str:
    """A value as JSON on one line, cut and without credentials."""
    if isinstance(value, Mapping | list | tuple):
        return _type(value)
    if isinstance(value, str):
        value = value[: 4 * _MAX_NAME]
    line = " ".join(redact(json.dumps(value, ensure_ascii=False)).split())
    return line if len(line) <= _MAX_NAME else f"{line[: _MAX_NAME - 1]}…" + '"' * (line[0] == '"')
