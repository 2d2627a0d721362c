"""Do the arguments of a call fit the JSON Schema of its tool?

A part of JSON Schema, the one tool definitions are written in. What is not known is accepted: a
schema may say more than is checked here, never less, so a problem that is found is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard, cast

from triage._plain import MARK
from triage.redact import redact

MAX_TEXT = 1_000_000
"""Arguments that are JSON text are read up to this many characters; longer ones are accepted."""
_MAX_DEPTH = 32
_MAX_WORK = 20_000
_MAX_NAME = 60
_MAX_SHOWN = 4
_MAX_PATTERN = 200
_MAX_SEARCHED = 128
_MAX_OPEN = 3


class Problem(NamedTuple):
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


def check(tool: str, arguments: Any, schema: Mapping[str, Any] | None) -> Problem | None:
    """The first problem of a call's arguments; None if they fit, or if that cannot be said.

    arguments: an object, or JSON text of one. Anything else is how somebody wrote a step down, not
    what a model gave, and is accepted; so is a schema of None. Never raises.
    """
    if not isinstance(schema, Mapping):
        return None
    try:
        arguments = _read(arguments)
    except ValueError:
        text = f"the arguments of {_quoted(tool)} are text that is no valid JSON"
        return Problem("type", "", "a JSON object", "text that is no valid JSON", text)
    if not isinstance(arguments, Mapping) or MARK in arguments:
        return None
    try:
        return _Walk(schema).problem(arguments, schema, "", 0)
    except _OutOfWorkError:
        return None
    except Exception:  # noqa: BLE001 - a schema may hold anything; what it says then is not known
        return None


def _read(arguments: Any) -> Any:
    """What JSON text says; anything else as it is. Raises ValueError for text that only begins as JSON."""
    if not isinstance(arguments, str) or len(arguments) > MAX_TEXT:
        return arguments
    if arguments.lstrip()[:1] != "{":
        return arguments
    try:
        return json.loads(arguments)
    except RecursionError:
        return None


class _OutOfWorkError(Exception):
    """The schema or the arguments are too large to be judged."""


class _Walk:
    """One walk over arguments and their schema together, of bounded length."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.left = _MAX_WORK

    def problem(self, value: Any, schema: Any, path: str, depth: int) -> Problem | None:
        """What is wrong with the value at this path, None if it fits."""
        self.left -= 1
        if self.left < 0 or depth > _MAX_DEPTH:
            raise _OutOfWorkError
        if not isinstance(schema, Mapping) or _lost(value):
            return None
        if value is None and schema.get("nullable") is True:
            return None
        if "default" in schema and value is None and schema["default"] is None:
            return None
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self.problem(value, self._resolved(reference), path, depth + 1)
        return (
            _wrong_type(value, schema.get("type"), path)
            or self._joined(value, schema, path, depth)
            or _wrong_value(value, schema, path)
            or self._inside(value, schema, path, depth)
        )

    def _resolved(self, reference: str) -> Any:
        """What a local reference names; None, which accepts anything, for any other."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        found: Any = self.root
        for part in reference.split("/")[1:]:
            self.left -= 1
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return None
            found = found[key]
        return found

    def _joined(self, value: Any, schema: Mapping[str, Any], path: str, depth: int) -> Any:
        for part in _list(schema.get("allOf")):
            found = self.problem(value, part, path, depth + 1)
            if found is not None:
                return found
        for word in ("anyOf", "oneOf"):
            parts = _list(schema.get(word))
            if not parts:
                continue
            problems: list[Problem] = []
            for part in parts:
                found = self.problem(value, part, path, depth + 1)
                if found is None:
                    break
                problems.append(found)
            else:
                return _of_all(problems, value, path)
        return None

    def _inside(self, value: Any, schema: Mapping[str, Any], path: str, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._object(value, schema, path, depth)
        items = schema.get("items")
        if isinstance(value, list) and isinstance(items, Mapping) and "prefixItems" not in schema:
            for at, item in enumerate(value):
                found = self.problem(item, items, f"{path}[{at}]", depth + 1)
                if found is not None:
                    return found
        return None

    def _object(
        self, value: Mapping[str, Any], schema: Mapping[str, Any], path: str, depth: int
    ) -> Problem | None:
        known = schema.get("properties")
        properties = cast("Mapping[str, Any]", known if isinstance(known, Mapping) else {})
        for name in _list(schema.get("required")):
            self.left -= 1
            if isinstance(name, str) and name not in value:
                place = _join(path, name)
                text = f"argument {_quoted(place)} is missing"
                return Problem("missing", place, _kinds(properties.get(name)), "nothing", text)
        closed = schema.get("additionalProperties")
        open_ended = closed is not False or "patternProperties" in schema
        for name, item in value.items():
            if name in properties:
                found = self.problem(item, properties[name], _join(path, name), depth + 1)
            elif not open_ended:
                return _unexpected(_join(path, name), properties)
            elif isinstance(closed, Mapping) and "patternProperties" not in schema:
                found = self.problem(item, closed, _join(path, name), depth + 1)
            else:
                continue
            if found is not None:
                return found
        return None


_NAMES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
}


def _kind(value: Any) -> str:
    """The JSON Schema name of a value's type."""
    return next((name for name, fits in _REVERSED if fits(value)), type(value).__name__)


_REVERSED = [(name, _NAMES[name]) for name in _NAMES if name not in ("number", "integer")] + [
    (name, _NAMES[name]) for name in ("integer", "number")
]


def _wrong_type(value: Any, wanted: Any, path: str) -> Problem | None:
    names = [wanted] if isinstance(wanted, str) else _list(wanted)
    if not names or any(not isinstance(name, str) or name not in _NAMES for name in names):
        return None
    if any(_NAMES[name](value) for name in names):
        return None
    return _mistyped(path, " or ".join(dict.fromkeys(names)), value)


def _mistyped(path: str, wanted: str, value: Any) -> Problem:
    found = _kind(value)
    text = f"{_argument(path)} must be {wanted}, not {found}"
    return Problem("type", path, wanted, found, text)


def _of_all(problems: Sequence[Problem], value: Any, path: str) -> Problem:
    """One problem for a value that fits none of several schemas."""
    of_type = [found for found in problems if found.kind == "type" and found.path == path]
    if len(of_type) == len(problems):
        names = " or ".join(dict.fromkeys(found.wanted for found in of_type))
        return _mistyped(path, names, value)
    # A branch of the right type says best what is wrong with the value.
    return next(found for found in problems if found not in of_type)


def _wrong_value(value: Any, schema: Mapping[str, Any], path: str) -> Problem | None:
    if "const" in schema and not _same(value, schema["const"]):
        return _other(path, _shown(schema["const"]), value)
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and not any(_same(value, item) for item in choices):
        shown = [_shown(item) for item in choices[:_MAX_SHOWN]]
        more = ["…"] if len(choices) > _MAX_SHOWN else []
        return _other(path, "one of " + ", ".join(shown + more), value)
    if isinstance(value, str):
        return _wrong_text(value, schema, path)
    if isinstance(value, list | tuple):
        return _wrong_size(len(value), schema, ("minItems", "maxItems", "items"), path)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _out_of_range(value, schema, path)
    return None


def _wrong_text(value: str, schema: Mapping[str, Any], path: str) -> Problem | None:
    found = _wrong_size(len(value), schema, ("minLength", "maxLength", "characters"), path)
    if found is not None:
        return found
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(value) <= _MAX_SEARCHED:
        compiled = _pattern(pattern)
        if compiled is not None and not compiled.search(value):
            return _other(path, f"text like {_shown(pattern)}", value)
    return None


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> re.Pattern[str] | None:
    """The pattern, None if it might take long on some text: it is then accepted.

    Taken are patterns without a repeated group, and with at most three open repetitions.
    """
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern[: _MAX_PATTERN + 1])
    open_ended = len(re.findall(r"[*+]|\{\d*,\d*\}", bare))
    if len(pattern) > _MAX_PATTERN or open_ended > _MAX_OPEN or re.search(r"\)[*+{]", bare):
        return None
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


def _wrong_size(
    size: int, schema: Mapping[str, Any], words: tuple[str, str, str], path: str
) -> Problem | None:
    least, most, unit = schema.get(words[0]), schema.get(words[1]), words[2]
    if _is_number(least) and size < least:
        return _misfit(path, f"have at least {least:g} {unit}", f"{size} {unit}")
    if _is_number(most) and size > most:
        return _misfit(path, f"have at most {most:g} {unit}", f"{size} {unit}")
    return None


def _out_of_range(value: float, schema: Mapping[str, Any], path: str) -> Problem | None:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if above is True:  # how draft 4 wrote it
        least, above = None, least
    if below is True:
        most, below = None, most
    if _is_number(least) and value < least:
        return _other(path, f"from {_shown(least)}", value)
    if _is_number(above) and value <= above:
        return _other(path, f"above {_shown(above)}", value)
    if _is_number(most) and value > most:
        return _other(path, f"up to {_shown(most)}", value)
    if _is_number(below) and value >= below:
        return _other(path, f"below {_shown(below)}", value)
    return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _lost(value: Any) -> bool:
    """True for the mark of a value that has no JSON form: what it was is not known."""
    return isinstance(value, Mapping) and MARK in value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(value) if isinstance(value, tuple) else []


def _kinds(schema: Any) -> str:
    """The types a schema names, for a hint; empty if it names none."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    names = [wanted] if isinstance(wanted, str) else _list(wanted)
    return " or ".join(name for name in names if isinstance(name, str) and name in _NAMES)


def _other(path: str, wanted: str, value: Any) -> Problem:
    return _misfit(path, f"be {wanted}", _shown(value))


def _misfit(path: str, must: str, found: str) -> Problem:
    text = f"{_argument(path)} must {must}, not {found}"
    return Problem("value", path, must.removeprefix("be "), found, text)


def _unexpected(path: str, properties: Mapping[str, Any]) -> Problem:
    known = ", ".join(_quoted(str(name)) for name in list(properties)[:_MAX_SHOWN])
    more = ", …" if len(properties) > _MAX_SHOWN else ""
    wanted = f"{known}{more}" if known else "no arguments"
    text = f"there is no argument {_quoted(path)}; there is {wanted}"
    return Problem("unexpected", path, wanted, _quoted(path), text)


def _argument(path: str) -> str:
    return f"argument {_quoted(path)}" if path else "the arguments as a whole"


def _join(path: str, name: object) -> str:
    return f"{path}.{str(name)[:_MAX_NAME]}" if path else str(name)[:_MAX_NAME]


def _quoted(text: str) -> str:
    line = " ".join(redact(text[: 4 * _MAX_NAME]).split()).replace("'", '"')
    return f"'{line}'" if len(line) <= _MAX_NAME else f"'{line[: _MAX_NAME - 1]}…'"


def _shown(value: Any) -> str:
    """A value as JSON on one line, cut and without credentials."""
    if isinstance(value, str):
        value = value[: 4 * _MAX_NAME]
    elif isinstance(value, Mapping | list | tuple):
        return _kind(value)
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return type(value).__name__
    line = " ".join(redact(text).split())
    return line if len(line) <= _MAX_NAME else f"{line[: _MAX_NAME - 1]}…" + '"' * (line[0] == '"')
