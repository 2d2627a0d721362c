"""The digest of a request whose conversation begins as the one before: only what is new is written down.

A conversation is sent as a whole with each request. To write all of it down each time, for the digest
that the call is known by, would make every turn dearer than the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from ._recording import DIGITS, NO_JSON, encode, key_of
from ._repair import Open

_MARKS = 3
"""Places that are remembered; a client may change its newest messages once more."""
Opened = Callable[[list[Any], Open], Open | None]

# Tuples without names, as they are made anew for each request: a class would cost more than it tells.

Mark = tuple[int, Any, Open | None]
"""A place in a conversation to go on from: how many messages stand before it, the digest of the
request's text up to here, and the calls that have no result here, None where the conversation may have
to be repaired.
"""
Around = tuple[Any, Mark, bytes]
"""A request without its messages: all but them as it was, the place before the first of them, and the
text after the last.
"""
Sent = tuple[Around, tuple[Any, ...], tuple[Mark, ...]]
"""What is remembered of a conversation's last request: what is around its messages, the messages as they
were, and the places to go on from, the newest last.
"""
_NOWHERE: Mark = (0, None, None)
_NOTHING: Around = (None, _NOWHERE, b"")
_NEVER: Sent = (_NOTHING, (), ())


def key_of_next(
    beside: dict[Any, Any],
    usual: dict[str, Around],
    known: tuple[str, str, str],
    body: Mapping[Any, Any],
    opened: Opened,
) -> tuple[str, bool]:
    """`key_of([path, body])` of an attempt's next request, and whether its messages are surely valid.

    beside: what the attempt remembers. usual: what is around the messages of a client's last new
    conversation, by path. known: whose conversation it is, the path, and the name of the messages in the
    body. opened: which calls are open after messages. Marks of what was left out are no part of the body,
    as they are not sent.
    """
    _, path, conversation = known
    messages = body.get(conversation)
    if type(messages) is list:
        rest = {**body, conversation: path}
        try:
            sent = _after(beside.get(known, _NEVER), usual, rest, conversation, messages, opened)
        except NO_JSON:
            pass  # it is written down as a whole
        else:
            beside[known] = sent
            around, _, marks = sent
            _, digest, open_ = marks[-1]
            digest = digest.copy()
            digest.update(around[2])
            return digest.hexdigest()[:DIGITS], open_ == ()
    return key_of([path, _given(body)]), False


def _given(body: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in body.items() if not _is_left_out(value.__class__)}


@cache
def _is_left_out(kind: Any) -> bool:
    return kind.__name__ in ("Omit", "NotGiven")


def _after(
    before: Sent,
    usual: dict[str, Around],
    rest: dict[str, Any],
    conversation: str,
    messages: list[Any],
    opened: Opened,
) -> Sent:
    around, kept, marks = before
    if around[0] != rest:
        path = rest[conversation]
        around = usual.get(path, _NOTHING)
        if around[0] != rest:
            around = usual[path] = _around(path, rest, conversation)
        marks = (around[1],)
    same = _same(kept, messages)
    while marks[-1][0] > same:
        marks = marks[:-1] or (around[1],)
    count, digest, open_ = marks[-1]
    new = messages[count:]
    if new:
        digest = digest.copy()
        digest.update(f"{',' if count else ''}{encode(new)[1:-1]}".encode())
        open_ = None if open_ is None else opened(new, open_)
        marks = (*marks, (len(messages), digest, open_))[-_MARKS:]
        kept = kept[:same] + tuple(map(_exact, messages[same:]))
    return around, kept, marks


def _around(path: str, rest: dict[str, Any], conversation: str) -> Around:
    given = _given(rest)
    first = {name: value for name, value in given.items() if name < conversation}
    last = {name: value for name, value in given.items() if name > conversation}
    head = f'{encode([path, first])[:-2]}{"," if first else ""}"{conversation}":['
    tail = f"]{',' if last else ''}{encode(last)[1:]}]"
    # A mark of what was left out is equal to itself alone.
    kept = {name: _exact(value) if name in given else value for name, value in rest.items()}
    return kept, (0, sha256(head.encode()), ()), tail.encode()


def _same(kept: tuple[Any, ...], messages: list[Any]) -> int:
    """How many messages at the beginning are what they were."""
    if kept == tuple(messages[: len(kept)]):
        return len(kept)
    for at, (one, other) in enumerate(zip(kept, messages, strict=False)):
        if one != other:
            return at
    return len(messages)


class _Number:
    """A number that is only equal to one which is written alike: 1 is neither 1.0 nor True."""

    __slots__ = ("_kind", "_text")
    __hash__ = None  # type: ignore[assignment] # nobody looks for it

    def __init__(self, value: float) -> None:
        self._kind = type(value)
        self._text = repr(value)

    def __eq__(self, other: object) -> bool:
        return type(other) is self._kind and repr(other) == self._text


class _Unlike:
    """Stands for what is no JSON: it is never what it was."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment] # nobody looks for it

    def __eq__(self, other: object) -> bool:
        return False


_UNLIKE = _Unlike()
_NUMBERS = frozenset({bool, int, float})


def _exact(value: Any) -> Any:
    """A copy that is equal only to what has the same JSON text."""
    kind = type(value)
    if kind is dict:
        copy = value.copy()
        for key in copy:
            if key.__class__ is not str:
                return _UNLIKE
            item = copy[key]
            if item.__class__ is not str:
                copy[key] = _exact(item)
        return copy
    if kind is list:
        items = value.copy()
        for at, item in enumerate(items):
            if item.__class__ is not str:
                items[at] = _exact(item)
        return items
    if kind is str or value is None:
        return value
    return _Number(value) if kind in _NUMBERS else _UNLIKE
