"""Finding secrets in texts and JSON values: `Finder`; and copying a value without them: `Walk`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ._parts import SLICE
from ._redact_names import COUNTS, HIDDEN, bare, names_a_secret
from ._redact_shapes import Span, encoded_in, given_under, hide, is_marked, runs_in, spans_in

if TYPE_CHECKING:
    import re

MAX_DEPTH = 100
MAX_NODES = 1_000_000
"""What is nested deeper, or comes after so many values, is hidden unseen."""

REACH = 2**16
"""Characters that are looked at on both sides of a slice: no shape is longer, also where it is encoded."""
_ENCODED = 3
"""So many times as long a text may be where it is percent-encoded."""
_MOST_NAMES = 4_096
_LONG_NAME = 128
_PAIR = 2
_LEAST_OF_PAIR = 8
_LONG_NUMBER = 9_999_999
"""Numbers above it are looked at as text, for a card number or a PIN that was registered."""


class Finder:
    """What a redactor works with, made once from what it was given. values: all that are known."""

    def __init__(
        self,
        patterns: tuple[re.Pattern[str], ...],
        values: Iterable[str],
        named: frozenset[str],
        kept: frozenset[str],
    ) -> None:
        self.patterns = patterns
        self.named = named
        self.kept = kept
        known = tuple(values)
        needles = {form for value in known for form in _forms(value)}
        self.needles = tuple(sorted(needles, key=len, reverse=True))
        # What has a run in it cannot stand in a text that has none, and most have none.
        self.short = tuple(needle for needle in self.needles if not runs_in(needle))
        # What patterns and further names find has no mark.
        self.by_marks = not patterns and not named
        self.reach = max([REACH, *(_ENCODED * len(needle) for needle in self.needles)])
        self.numbers = bool(patterns) or any(value.isdecimal() for value in known)
        # Names seen and found to say nothing: a bounded memory of texts that are no secrets.
        self.plain_names: set[str] = set()

    # Texts ------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """The text without its secrets; the very same object where there are none."""
        if len(text) > SLICE:
            return self._without(text, None)
        runs = runs_in(text)
        if not runs and self.by_marks and not is_marked(text, self.short):
            return text
        return self._without(text, runs)

    def _without(self, text: str, runs: list[Span] | None) -> str:
        spans = self._spans(text, runs)
        clean = text
        if spans:
            clean = hide(text, spans, HIDDEN)
            runs = _runs(clean)
        if runs is None or runs or "%" in clean:
            coded = self._everywhere(clean, runs, self._coded)
            if coded:
                clean = hide(clean, coded, HIDDEN)
        return text if clean == text else clean

    def _spans(self, text: str, runs: list[Span] | None) -> list[Span]:
        spans = self._everywhere(text, runs, self._known)
        # Nobody knows how long what a pattern matches may be, nor what it must stand beside.
        for pattern in self.patterns:
            spans.extend(match.span() for match in pattern.finditer(text) if match[0])
        return spans

    def _everywhere(
        self, text: str, runs: list[Span] | None, find: Callable[[str, list[Span]], list[Span]]
    ) -> list[Span]:
        """What is found in a text; in a long one slice by slice, each with what stands around it."""
        if runs is not None:
            return find(text, runs)
        found: list[Span] = []
        for start in range(0, len(text), SLICE):
            stop = start + SLICE
            before = max(0, start - self.reach)
            part = text[before : stop + self.reach]
            # What only looks like something because the text was cut there does not reach the slice.
            found.extend(
                (before + first, before + end)
                for first, end in find(part, runs_in(part))
                if before + end > start and before + first < stop
            )
        return found

    def _known(self, text: str, runs: list[Span]) -> list[Span]:
        spans = spans_in(text, runs)
        for needle in self.needles if runs else self.short:
            at = text.find(needle)
            while at >= 0:
                spans.append((at, at + len(needle)))
                at = text.find(needle, at + len(needle))
        if self.named:
            spans.extend(given_under(text, self._is_own))
        return spans

    def _coded(self, text: str, runs: list[Span]) -> list[Span]:
        return [place for place, said in encoded_in(text, runs) if self._tells(said)]

    def _tells(self, said: str) -> bool:
        """Whether decoded text holds a secret; noise that happens to fit a shape is none."""
        return any(
            "".join(said[start:end].split()).isprintable() and "\ufffd" not in said[start:end]
            for start, end in self._spans(said, _runs(said))
        )

    # Names ------------------------------------------------------------------------------------

    def _is_own(self, name: str) -> bool:
        return bare(name) in self.named

    def _is_secret(self, name: Any) -> bool:
        if name.__class__ is not str or name in self.plain_names:
            return False
        plain = bare(name)
        if plain in self.kept:
            return False
        return plain in self.named or names_a_secret(name[-200:])

    def _is_plain(self, name: Any) -> bool:
        """Whether a key is no secret and names none; remembered, as the same keys come again."""
        if name.__class__ is not str:
            return name.__class__ in _ATOMS
        if self._is_secret(name) or self.text(name) is not name:
            return False
        if len(name) <= _LONG_NAME and len(self.plain_names) < _MOST_NAMES:
            self.plain_names.add(name)
        return True

    # Values -----------------------------------------------------------------------------------

    def clears(self, values: Sequence[Any]) -> bool:
        """True if none of these JSON values holds a secret; False where it takes a closer look."""
        texts: list[str] = []
        if not self._gather(values, texts):
            return False
        # A pattern may be tied to the beginning or the end of a text.
        return all(map(self._stays, texts if self.patterns else _joined(texts)))

    def _stays(self, text: str) -> bool:
        return self.text(text) is text

    def _gather(self, values: Sequence[Any], texts: list[str]) -> bool:  # noqa: C901 - one loop, for speed
        """All texts of JSON values; False where one cannot be judged by its texts alone."""
        plain = self.plain_names
        add = texts.append
        todo: list[Any] = [values]
        for container in todo:
            if container.__class__ is dict:
                for key in container:
                    if key not in plain and not self._is_plain(key):
                        return False
                items: Iterable[Any] = container.values()
                if "value" in container and self.labels(container):
                    return False
            else:
                items = container
                if len(container) == _PAIR and self.is_pair(container):
                    return False
            for item in items:
                kind = item.__class__
                if kind is str:
                    add(item)
                elif item is None:
                    continue
                elif kind is dict or kind is list:
                    todo.append(item)
                elif kind not in _ATOMS:
                    return False
                elif self.numbers and abs(item) > _LONG_NUMBER:
                    add(repr(item))
            if len(todo) > MAX_NODES:
                return False
        return True

    def leaf(self, item: Any, how: int) -> Any:
        """What stands for a value that is no container, under a name that hides so much."""
        if isinstance(item, str):
            if how:
                return HIDDEN if item and item != HIDDEN else item
            return self.text(item if item.__class__ is str else str.__str__(item))
        if item is None or item is True or item is False or not isinstance(item, int | float):
            return item
        if how == ALL:
            return HIDDEN
        if self.numbers and abs(item) > _LONG_NUMBER:
            shown = repr(item)
            return item if self.text(shown) is shown else HIDDEN
        return item

    def how(self, name: Any) -> int:
        """How much a name hides."""
        if not self._is_secret(name):
            return _NONE
        plain = bare(name)
        return _TEXTS if plain in COUNTS and plain not in self.named else ALL

    def is_pair(self, items: Any) -> bool:
        """Whether a list is a header or a cookie, as `["authorization", "…"]`."""
        name, value = items
        return value.__class__ is str and len(value) >= _LEAST_OF_PAIR and self._is_secret(name)

    def labels(self, entry: dict[Any, Any]) -> bool:
        """Whether an object is one, as `{"name": "authorization", "value": "…"}`."""
        return any(self._is_secret(entry.get(label)) for label in _LABELS)


def _runs(text: str) -> list[Span] | None:
    """The `runs_in` a text; None for a long one, which is looked at in slices."""
    return runs_in(text) if len(text) <= SLICE else None


def _joined(texts: list[str]) -> Iterator[str]:
    """All texts, those together that are no longer than a slice."""
    if sum(map(len, texts)) + len(texts) <= SLICE:
        yield "\n".join(texts)  # nearly always
        return
    start = size = 0
    for at, text in enumerate(texts):
        if size and size + len(text) > SLICE:
            yield "\n".join(texts[start:at])
            start, size = at, 0
        size += len(text) + 1
    yield "\n".join(texts[start:])


_ATOMS = frozenset({str, bool, int, float, type(None)})
_LABELS = ("name", "key", "header", "field")
_NONE, _TEXTS, ALL = 0, 1, 2


def _forms(value: str) -> set[str]:
    """How a value may stand in a text; where it is a part of some base64, it is found by decoding."""
    import base64
    import json

    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    coded = value.encode("utf-8", "surrogatepass")
    forms.add(base64.b64encode(coded).decode().rstrip("="))
    forms.add(base64.urlsafe_b64encode(coded).decode().rstrip("="))
    return forms


class Walk:
    """One walk over a JSON value that copies it without its secrets. found: gets their paths, if asked."""

    def __init__(self, finder: Finder, found: list[str] | None) -> None:
        self._finder = finder
        self._found = found
        self._changed = False
        # Each: a value, where its copy belongs, how much its name hides, its depth and its path.
        self._todo: list[tuple[Any, Any, Any, int, int, str]] = []

    def walk(self, value: Any, at: str) -> tuple[Any, bool]:
        """The copy, and whether it differs."""
        holder = [value]
        self._todo.append((value, holder, 0, _NONE, 0, at))
        for source, into, key, how, depth, path in self._todo:
            if not isinstance(source, dict | list | tuple):
                copy = self._finder.leaf(source, how)
                if copy is not source:
                    self._note(path)
            elif depth >= MAX_DEPTH or len(self._todo) > MAX_NODES:
                copy = HIDDEN
                self._note(path)
            elif isinstance(source, dict):
                copy = self._object(source, how, depth, path)
            else:
                copy = self._list(source, how, depth, path)
            into[key] = copy
        return (holder[0], True) if self._changed else (value, False)

    def _note(self, path: str) -> None:
        self._changed = True
        if self._found is not None:
            self._found.append(path)

    def _object(self, source: dict[Any, Any], how: int, depth: int, path: str) -> dict[Any, Any]:
        finder = self._finder
        copy: dict[Any, Any] = {}
        labelled = "value" in source and finder.labels(source)
        for key, item in source.items():
            name = finder.text(key) if key.__class__ is str else key
            below = path if self._found is None else f"{path}[{name!r}]"
            if name is not key:
                self._note(below)
            number = 1
            own = name
            while own in copy:
                number += 1
                own = f"{name} {number}"
            hides = ALL if labelled and key == "value" else max(how, finder.how(key))
            copy[own] = None
            self._todo.append((item, copy, own, hides, depth + 1, below))
        return copy

    def _list(self, source: Sequence[Any], how: int, depth: int, path: str) -> list[Any]:
        copy: list[Any] = [None] * len(source)
        pair = len(source) == _PAIR and self._finder.is_pair(source)
        for at, item in enumerate(source):
            below = path if self._found is None else f"{path}[{at}]"
            hides = ALL if pair and at else how
            self._todo.append((item, copy, at, hides, depth + 1, below))
        return copy
