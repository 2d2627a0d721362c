"""`Redactor`: what it is given, checked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from ._options import misuse
from ._redact_names import HIDDEN, bare, holds_a_secret
from ._redact_work import Finder, Walk

_LEAST = 4
_LEAST_OF_ENVIRONMENT = 8
_MOST_OF_ENVIRONMENT = 256
_LONGEST_OF_ENVIRONMENT = 8_192


@dataclass(frozen=True)
class Redactor:
    """Finds secrets in texts and JSON values, and replaces them by `[redacted]`.

    What is found without being told: keys in the shapes providers give them, JWTs, private keys in
    PEM, passwords and secret parameters in URLs, `Authorization` and `Cookie` headers, what is given
    under names such as `password`, `api_key`, `token`; and all of it in base64 and percent-encoded.

    fields: further names of fields that hold secrets; case and separators do not count. patterns:
    texts and compiled patterns of secrets; what a pattern matches is hidden. values: secrets
    themselves, of at least 4 characters. keep: names of fields that hold no secret although they
    sound so. environment: True hides the values of environment variables whose names say secret, as
    they are when the redactor is first used, from 8 characters.

    Pickles, with `values`; what the environment held is read again where it is used. Raises
    UsageError, which names the field, for a value of another kind.
    """

    fields: tuple[str, ...] = ()
    patterns: tuple[str | re.Pattern[str], ...] = ()
    values: tuple[str, ...] = field(default=(), repr=False)
    keep: tuple[str, ...] = ()
    environment: bool = True

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for name, wanted in (
            ("fields", "a tuple of names of fields"),
            ("values", "a tuple of secrets"),
            ("keep", "a tuple of names of fields"),
        ):
            set_(self, name, _texts(f"Redactor.{name}", getattr(self, name), wanted))
        set_(self, "patterns", _texts("Redactor.patterns", self.patterns, "a tuple of patterns"))
        for name in ("fields", "keep"):
            for text in getattr(self, name):
                if not bare(text):
                    raise misuse(f"Redactor.{name} item", text, "a name with a letter in it")
        for number, value in enumerate(self.values):
            if len(value) < _LEAST:
                # The value is a secret: the message does not show it.
                raise misuse(
                    f"Redactor.values[{number}]",
                    HIDDEN,
                    f"a secret of at least {_LEAST} characters",
                    "name its field in fields=(…)",
                )
        if not isinstance(self.environment, bool):
            raise misuse("Redactor.environment", self.environment, "True or False")

    @cached_property
    def _finder(self) -> Finder:
        patterns = tuple(
            re.compile(item) if isinstance(item, str) else item for item in self.patterns
        )
        known = (*self.values, *(_environment() if self.environment else ()))
        named = frozenset(map(bare, self.fields))
        return Finder(patterns, known, named, frozenset(map(bare, self.keep)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew where it is unpickled."""
        given = (self.fields, self.patterns, self.values, self.keep, self.environment)
        return (Redactor, given)

    def text(self, text: str) -> str:
        """The text without its secrets; the very same object where there are none."""
        return self._finder.text(text)

    def clears(self, values: Sequence[Any]) -> bool:
        """True if none of these JSON values holds a secret; False: some may, look at each.

        The quick question: it joins all texts and looks once.
        """
        return self._finder.clears(values)

    def value(self, value: Any) -> tuple[Any, bool]:
        """A JSON value without its secrets, and whether there were any.

        Without any it is the very same object, else a copy. None, booleans and what is empty stay,
        whatever their name. Values that are no JSON stay too: encode them first.
        """
        if value.__class__ is str:
            text = self._finder.text(value)
            return text, text is not value
        if self._finder.clears((value,)):
            return value, False
        return Walk(self._finder, None).walk(value, "")

    def fields_of(self, value: Any, at: str = "") -> tuple[str, ...]:
        """Where a JSON value holds secrets, as paths: `state['user']['password']`; never what they are.

        at: what the paths begin with. A key that is itself a secret is redacted in its path.
        """
        if self._finder.clears((value,)):
            return ()
        found: list[str] = []
        Walk(self._finder, found).walk(value, at)
        return tuple(dict.fromkeys(found))


def _texts(name: str, given: Any, wanted: str) -> tuple[Any, ...]:
    """The texts, and for `patterns` compiled ones too, as a tuple; UsageError for anything else."""
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


def _environment() -> list[str]:
    """The values of the environment variables whose names say secret; paths are no secrets."""
    found: list[str] = []
    for name, value in os.environ.items():
        fits = _LEAST_OF_ENVIRONMENT <= len(value) <= _LONGEST_OF_ENVIRONMENT
        if fits and holds_a_secret(name) and not value.startswith(("/", "./", "~")):
            found.append(value)
    return found[:_MOST_OF_ENVIRONMENT]


@cache
def standard() -> Redactor:
    """`Redactor()`, made at first use: what it read from the environment is of that moment."""
    return Redactor()


def usual() -> Callable[[str], str]:
    """What `standard()` does to a text, without a step between."""
    return standard()._finder.text  # noqa: SLF001 - of this module
