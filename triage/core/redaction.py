"""Hide secrets before a text leaves the process: `Redactor` knows them by form, name or value."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeAlias, overload
from urllib.parse import unquote_plus

from . import secret_shapes
from .errors import misuse
from .guards import guarded
from .json_values import HUGE, plain
from .secret_shapes import HIDDEN

__all__ = ["HIDDEN", "Redactor", "redact"]

Span: TypeAlias = tuple[int, int]
"""The start and end of a part of a text."""

_SHORTEST_KEY = 16
"""Minimum length of a run of letters, digits and `+/_=-` in a key, or in base64 worth decoding."""
_KEY_CHARACTERS = bytes(
    97 if chr(code).isascii() and (chr(code).isalnum() or chr(code) in "+/_=-") else 32
    for code in range(256)
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_=-]{16,}(?:[\r\n]{1,16}[ \t]{0,16}[A-Za-z0-9+/_=-]{4,})*")
_ESCAPE = re.compile(
    r"(?<!\\)\\++(?:[nrt]|u(?!00[0-7])([0-9a-fA-F]{4}))"
    r"|(?:\x1b|(?<!\\)\\++(?:u001[bB]|x1[bB]|033|e))\[[0-9;]{0,16}m"
)
"""Escapes of white space and letters in JSON or a repr, however often escaped; colours of a terminal."""
_HEX = "0123456789abcdefABCDEF-"
_PRINTABLE = bytes(97 if b" " <= bytes([code]) <= b"~" else 0 for code in range(256))
_ESCAPED_WORD = re.compile(r"[^\s\"'<>&?;%]*%[0-9A-Fa-f]{2}[^\s\"'<>&?;]*")

_MAX_DEPTH = 100
"""Values nested deeper are hidden unread."""
_LABELS = ("name", "key", "header", "field")
_JSON_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_LEAVES = frozenset({str, bool, int, float})
_CONTAINERS = frozenset({dict, list, tuple})
_LONG_NUMBER = 9_999_999
"""Larger numbers are searched as text, for a card number among `values` or `patterns`."""

_LEAST = 4
_LEAST_OF_ENVIRONMENT = 8
_SHORTEST_IN_BASE64 = 32
_MOST_SLASHES = 3
_MOST_OF_ENVIRONMENT = 256
_LONGEST_OF_ENVIRONMENT = 8_192


@overload
def redact(value: str) -> str: ...
@overload
def redact(value: Any) -> Any: ...
def redact(value: Any) -> Any:
    """Replace everything in a text or value that looks like a credential by `[redacted]`.

    A value is judged by its JSON form; returns the same object if nothing is hidden, else JSON. Uses
    `Redactor()`; in a run with a `Redactor` in `Durability.redact` that one, and in a nested run both.
    """
    for redactor in _in_force.get() or (standard(),):
        value, _ = redactor.value(value)
    return value


_in_force: ContextVar[tuple[Redactor, ...]] = ContextVar("triage_redactors", default=())


@contextmanager
def redacting(redactor: Redactor) -> Generator[None]:
    """Make `redact` use this redactor too, in this context and tasks started from it."""
    in_force = _in_force.get()
    if redactor in in_force:
        yield
        return
    token = _in_force.set((*in_force, redactor))
    try:
        yield
    finally:
        _in_force.reset(token)


@dataclass(frozen=True)
class Redactor:
    """Finds secrets in texts and JSON values, and replaces them by `[redacted]`.

    It knows the keys of providers by their form, JWTs, private keys in PEM, passwords and secret
    parameters in URLs and commands, `Authorization` and `Cookie` headers, and values under names such
    as `password`, `api_key` or `token`; all of these in base64 and percent-encoding, too. Placeholders
    (`$TOKEN`, `<token>`) and remarks about a secret (`password: required`) stay.

    fields: further names of fields that hold secrets; case and separators are ignored. patterns:
    regular expressions, as text or compiled, whose matches are hidden. values: secrets themselves, of
    at least 4 characters. keep: names of fields that sound secret but are not. environment: True hides
    the values, from 8 characters, of environment variables with secret-sounding names, read when the
    redactor is first used.

    Pickles with `values`; the environment is read again after unpickling. Raises UsageError, which
    names the field, for a value of the wrong kind.
    """

    fields: tuple[str, ...] = ()
    patterns: tuple[str | re.Pattern[str], ...] = ()
    values: tuple[str, ...] = field(default=(), repr=False)
    keep: tuple[str, ...] = ()
    environment: bool = True

    def __post_init__(self) -> None:
        for name, wanted in (
            ("fields", "a tuple of names of fields"),
            ("values", "a tuple of secrets"),
            ("keep", "a tuple of names of fields"),
            ("patterns", "a tuple of patterns"),
        ):
            texts = _texts(f"Redactor.{name}", getattr(self, name), wanted)
            object.__setattr__(self, name, texts)
        for name in ("fields", "keep"):
            for text in getattr(self, name):
                if not secret_shapes.bare(text):
                    raise misuse(f"Redactor.{name} item", text, "a name with a letter in it")
        for number, value in enumerate(self.values):
            if len(value) < _LEAST:
                # The message omits the value, a secret.
                raise misuse(
                    f"Redactor.values[{number}]",
                    HIDDEN,
                    f"a secret of at least {_LEAST} characters",
                    "name its field in fields=(…)",
                )
        if not isinstance(self.environment, bool):
            raise misuse("Redactor.environment", self.environment, "True or False")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out values from the environment, which are read again after unpickling."""
        state = dict(vars(self))
        state.pop("_known", None)
        return state

    def text(self, text: str) -> str:
        """Hide the secrets in a text; return the same object if there are none.

        Raises UsageError for anything but text.
        """
        if not isinstance(text, str):
            raise misuse(
                "Redactor.text() text", type(text), "text", "call value() for other values"
            )
        return self._text(text)

    @guarded(lambda _self, _text: HIDDEN)
    def _text(self, text: str) -> str:
        if type(text) is not str:  # a subclass may override methods
            copy = str.__str__(text)
            clean = self._text(copy)
            return text if clean is copy else clean
        if (
            len(text) < _SHORTEST_KEY
            and text.isidentifier()
            and not self._known
            and not self.patterns
        ):
            return text  # as most field names are
        clean = _hide(text, self._spans(text))
        return _hide(clean, self._encoded(clean))

    @guarded(lambda _self, _value: (HIDDEN, True))
    def value(self, value: Any) -> tuple[Any, bool]:
        """Hide the secrets in a JSON value, and return whether there were any.

        Returns the same object without any, else a copy. None, booleans and empty values stay, whatever
        their name. A value that is not JSON is judged by its stored JSON form.
        """
        clean = self._clean(value, "", "", None)
        return clean, clean is not value

    @guarded(lambda _self, _value, at="": (at,))
    def fields_of(self, value: Any, at: str = "") -> tuple[str, ...]:
        """List the paths of the secrets in a JSON value, such as `state['user']['password']`.

        at: the beginning of each path. A key that is itself a secret is redacted in its path.
        """
        found: list[str] = []
        self._clean(value, "", at, found)
        return tuple(dict.fromkeys(found))

    # Texts ------------------------------------------------------------------------------------

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(item) if isinstance(item, str) else item for item in self.patterns)

    @cached_property
    def _own(self) -> frozenset[str]:
        return frozenset(map(secret_shapes.bare, self.fields))

    @cached_property
    def _kept(self) -> frozenset[str]:
        return frozenset(map(secret_shapes.bare, self.keep))

    @cached_property
    def _known(self) -> tuple[str, ...]:
        """Every form of a known secret in a text."""
        known = (*self.values, *(_environment() if self.environment else ()))
        return tuple({form for value in known for form in _forms(value)})

    def _spans(self, text: str) -> list[Span]:
        """Find secrets in a text of any length, also by the user's patterns."""
        return [*self._plain(text), *self._by_patterns(text)]

    def _plain(self, text: str) -> list[Span]:
        """Find secrets that are not encoded; the spans may overlap."""
        spans: list[Span] = []
        for known in self._known:
            start = text.find(known)
            while start >= 0:
                spans.append((start, start + len(known)))
                start = text.find(known, start + len(known))
        text = _unescaped(text)
        low = text.lower()
        marked = [mark for mark in secret_shapes.MARKS if mark in low]
        for shape in secret_shapes.PLACES:
            if shape.mark in marked:
                spans.extend(_found(shape, text))
        if self._own or any(part in marked for part in secret_shapes.PARTS_OF_NAMES):
            spans.extend(self._named(text))
        if has_key_characters(text):
            for shape in secret_shapes.KEYS:
                if shape.mark in low:
                    spans.extend(_found(shape, text))
        return spans

    def _named(self, text: str) -> Iterator[Span]:
        """Find values under the names of secrets: `name=value`, `<name>value</name>`."""
        for pattern, usual in (
            (secret_shapes.QUERY, secret_shapes.names_a_secret_parameter),
            (secret_shapes.ELEMENT, secret_shapes.names_a_secret),
        ):
            for match in pattern.finditer(text):
                if self._names(match[1], usual) and secret_shapes.is_secret(match[1], match[2]):
                    yield match.span(2)
        yield from self._paired(text)
        for match in secret_shapes.ASSIGNED.finditer(text):
            name = match[1]
            if " " in name and not self._names(name, secret_shapes.names_a_secret):
                name = name.rpartition(" ")[2]
            if not self._names(name, secret_shapes.names_a_secret):
                continue
            given = secret_shapes.value_pattern(name).match(text, match.end())
            if given is None or given.lastindex is None:
                continue
            value = given[given.lastindex]
            if secret_shapes.bare(name) in self._own:
                secret = not value.startswith(HIDDEN)
            elif given.lastindex in secret_shapes.UNQUOTED_GROUPS:
                # Prose may follow a colon, but not an equals sign.
                rest = "" if "=" in match[0] else text[given.end() : given.end() + 40]
                secret = secret_shapes.is_secret_in_text(name, value, rest)
            else:
                secret = secret_shapes.is_secret(name, value)
            if secret:
                yield given.span(given.lastindex)

    def _paired(self, text: str) -> Iterator[Span]:
        """Find headers shown as pairs: `('cookie', 'sid=…')`."""
        for match in secret_shapes.PAIR.finditer(text):
            if self._names(match[1], secret_shapes.names_a_secret) and self._holds_header(
                match[1], match[2]
            ):
                yield match.span(2)

    def _by_patterns(self, text: str) -> Iterator[Span]:
        for pattern in self._compiled:
            yield from (match.span() for match in pattern.finditer(text) if match[0])

    def _encoded(self, text: str) -> list[Span]:
        """Find runs of base64 or percent-encoding that hold a secret."""
        text = _unescaped(text)
        spans: list[Span] = []
        if has_key_characters(text):
            spans.extend(
                match.span()
                for match in _BASE64.finditer(text)
                if any(map(self._tells, _from_base64(match[0])))
            )
        if "%" in text:
            spans.extend(
                match.span()
                for match in _ESCAPED_WORD.finditer(text)
                if self._tells(unquote_plus(match[0]))
            )
        return spans

    def _tells(self, decoded: str) -> bool:
        """Whether decoded text holds a secret; decoded noise in the form of a secret does not count."""
        return any(
            "".join(decoded[start:end].split()).isprintable() and "\ufffd" not in decoded[start:end]
            for start, end in self._spans(decoded)
        )

    # Values -----------------------------------------------------------------------------------

    def _holds_header(self, name: str, value: str) -> bool:
        """Whether a pair is a header, `["authorization", "…"]`, and not two names of fields."""
        return secret_shapes.bare(name) in self._own or secret_shapes.looks_random(value)

    def _names(self, name: Any, usual: Callable[[str], bool]) -> bool:
        if not isinstance(name, str):
            return False
        plain = secret_shapes.bare(name)
        return plain in self._own or (plain not in self._kept and usual(name))

    def _clean(
        self, value: Any, name: str, path: str, found: list[str] | None, depth: int = 0
    ) -> Any:
        """Hide the secrets in a JSON value; return the same object if there are none.

        name: the secret name of the value, "" for none. found: collects the paths.
        """
        kind = type(value)
        if kind in _LEAVES:
            clean = self._leaf(value, name)
        elif depth >= _MAX_DEPTH and kind in _CONTAINERS:
            clean = HIDDEN
        elif kind is dict:
            return self._object(value, name, path, found, depth)
        elif kind in _CONTAINERS:
            return self._list(value, name, path, found, depth)
        elif value is None:
            return None
        else:
            stored = plain(value)
            clean = self._clean(stored, name, path, found, depth + 1)
            return value if clean is stored else clean
        if clean is not value and found is not None:
            found.append(path)
        return clean

    def _leaf(self, value: str | float, name: str) -> Any:
        if isinstance(value, bool):
            return value
        own = secret_shapes.bare(name) in self._own
        if isinstance(value, str):
            if name and value and value != HIDDEN and (own or secret_shapes.is_secret(name, value)):
                return HIDDEN
            return self.text(value)
        if name and (own or not secret_shapes.counts(name)):
            return HIDDEN
        if _LONG_NUMBER < abs(value) < HUGE and self.text(repr(value)) != repr(value):
            return HIDDEN
        return value

    def _object(
        self, value: dict[Any, Any], name: str, path: str, found: list[str] | None, depth: int
    ) -> Any:
        types = value.get("type")
        types = types if type(types) is list else [types]
        if types and all(_JSON_TYPES.count(one) for one in types):
            name = ""  # a schema of the secret, not the secret itself
        label = next(
            (
                value[key]
                for key in _LABELS
                if self._names(value.get(key), secret_shapes.names_a_secret)
            ),
            "",
        )
        copy: dict[Any, Any] = {}
        changed = False
        for key, item in value.items():
            clean_key = self.text(key) if isinstance(key, str) else key
            below = f"{path}[{clean_key!r}]" if found is not None else path
            if clean_key is not key and found is not None:
                found.append(below)
            below_name = label if label and key == "value" else name
            if self._names(key, secret_shapes.names_a_secret):
                below_name = key
            clean = self._clean(item, below_name, below, found, depth + 1)
            changed = changed or clean is not item or clean_key is not key
            number = 1
            unique = clean_key
            while unique in copy:
                number += 1
                unique = f"{clean_key} {number}"
            copy[unique] = clean
        return copy if changed else value

    def _list(
        self, value: Sequence[Any], name: str, path: str, found: list[str] | None, depth: int
    ) -> Any:
        header = ""
        match value:
            case [name_, str(given)] if self._names(name_, secret_shapes.names_a_secret):
                header = name_ if self._holds_header(name_, given) else ""
            case _:
                pass
        copy: list[Any] = []
        for at, item in enumerate(value):
            below = f"{path}[{at}]" if found is not None else path
            copy.append(
                self._clean(item, header if header and at else name, below, found, depth + 1)
            )
        if all(clean is item for clean, item in zip(copy, value, strict=True)):
            return value
        return copy


@dataclass(frozen=True)
class Joined(Redactor):
    """Several redactors, applied one after another."""

    parts: tuple[Redactor, ...] = ()

    def text(self, text: str) -> str:
        """As in `Redactor`."""
        for part in self.parts:
            text = part.text(text)
        return text

    def value(self, value: Any) -> tuple[Any, bool]:
        """As in `Redactor`."""
        clean = value
        for part in self.parts:
            clean, _ = part.value(clean)
        return clean, clean is not value

    def fields_of(self, value: Any, at: str = "") -> tuple[str, ...]:
        """As in `Redactor`."""
        return tuple(
            dict.fromkeys(path for part in self.parts for path in part.fields_of(value, at))
        )


def joined(*redactors: Redactor) -> Redactor:
    """Return a redactor that applies all of these."""
    parts: list[Redactor] = []
    for redactor in redactors:
        for part in redactor.parts if isinstance(redactor, Joined) else (redactor,):
            if part not in parts:
                parts.append(part)
    return parts[0] if len(parts) == 1 else Joined(parts=tuple(parts))


@cache
def standard() -> Redactor:
    """Return the shared `Redactor()`, made on first use with the environment of then."""
    return Redactor()


def has_key_characters(text: str) -> bool:
    """Whether the text has a run of key characters at least as long as the shortest key."""
    if len(text) < _SHORTEST_KEY:
        return False
    return b"a" * _SHORTEST_KEY in text.encode("ascii", "replace").translate(_KEY_CHARACTERS)


def _found(shape: secret_shapes.Shape, text: str) -> Iterator[Span]:
    for match in secret_shapes.compiled(shape.pattern).finditer(text):
        group = match.lastindex or 0
        # Only the password, not the user before it, can be a placeholder.
        if (not shape.random or secret_shapes.is_no_phrase(match[group])) and (
            not group or secret_shapes.is_secret("", match[group].rpartition(":")[2])
        ):
            yield match.span(group)


def _unescaped(text: str) -> str:
    """Undo escapes of white space and non-ASCII letters, keeping the length of the text."""
    if "\\" not in text and "\x1b" not in text:
        return text
    return _ESCAPE.sub(_same_length, text)


def _same_length(match: re.Match[str]) -> str:
    letter = (
        chr(int(match[1], 16)) if match[1] is not None else " " if match[0][-1] in "tm" else "\n"
    )
    return letter * len(match[0])


def _hide(text: str, spans: list[Span]) -> str:
    """Replace these spans of the text, touching spans together."""
    if not spans:
        return text
    parts: list[str] = []
    upto = 0
    for start, end in sorted(spans):
        if not parts or start > upto:
            parts += (text[upto:start], HIDDEN)
        upto = max(upto, end)
    parts.append(text[upto:])
    clean = "".join(parts)
    return text if clean == text else clean


def _from_base64(run: str) -> Iterator[str]:
    """Decode the texts in a run of base64 letters, whichever letter the base64 begins at."""
    run = "".join(run.split())
    if not run.strip(_HEX) or run.islower():
        return  # a digest, an id or a path: text in base64 has capitals
    plain = run.rstrip("=").replace("-", "+").replace("_", "/").replace("=", "/")
    for skip in range(4):
        length = (len(plain) - skip) // 4 * 4
        rest = plain[skip + length :]
        tail = rest + "=" * (4 - len(rest)) if len(rest) > 1 else ""
        data = binascii.a2b_base64(plain[skip : skip + length] + tail)
        if b"a" * 8 in data.translate(_PRINTABLE):
            yield data.decode("utf-8", "replace")


def _forms(value: str) -> set[str]:
    """Return the forms of a value in a text. Inside longer base64, decoding finds it."""
    coded = value.encode("utf-8", "surrogatepass")
    return {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        base64.b64encode(coded).decode().rstrip("="),
        base64.urlsafe_b64encode(coded).decode().rstrip("="),
    }


def _texts(name: str, given: Any, wanted: str) -> tuple[Any, ...]:
    """Return texts (for `patterns` also compiled ones) as a tuple; raise UsageError for anything else."""
    if isinstance(given, str | bytes | re.Pattern) or not isinstance(given, Iterable):
        shown = HIDDEN if name.endswith("values") else given
        raise misuse(name, shown, wanted, "write (text,)")
    found = tuple(given)
    for item in found:
        if name.endswith("patterns") and isinstance(item, re.Pattern):
            if not isinstance(item.pattern, str):
                raise misuse(f"{name} item", item, "a pattern of text, not of bytes")
        elif not isinstance(item, str) or not item:
            shown = type(item) if name.endswith("values") else item
            raise misuse(f"{name} item", shown, "text that is not empty")
        elif name.endswith("patterns"):
            try:
                re.compile(item)
            except re.error as error:
                raise misuse(f"{name} item", item, "a regular expression", str(error)) from None
    return found


def _is_path(value: str) -> bool:
    """Whether a value is a path, on Windows too, rather than a key in base64 that begins with a slash."""
    drive = value[0].isalpha() and value[1:3] in {":\\", ":/"}
    if not drive and not value.startswith(("/", "./", "../", "~", "\\\\")):
        return False
    letters = value.rstrip("=").replace("/", "").replace("+", "")
    in_base64 = letters.isascii() and letters.isalnum() and value.count("/") <= _MOST_SLASHES
    return not (
        in_base64 and len(value) >= _SHORTEST_IN_BASE64 and secret_shapes.looks_random(value)
    )


def _environment() -> list[str]:
    """Return the values of environment variables with secret-sounding names, except paths."""
    found = [
        value
        for name, value in os.environ.items()
        if _LEAST_OF_ENVIRONMENT <= len(value) <= _LONGEST_OF_ENVIRONMENT
        and secret_shapes.names_a_secret_variable(name)
        and not _is_path(value)
    ]
    return found[:_MOST_OF_ENVIRONMENT]
