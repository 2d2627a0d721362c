"""Large values of events: kept apart under the digest of their content, compressed, identical ones once."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from triage import _wire
from triage._parts import json_parts
from triage.errors import StoreCorrupt
from triage.events import Event

PIECE_BYTES = 4096
"""Values of a large event whose JSON is longer than this stand apart."""
_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Piece(NamedTuple):
    """A value that stands apart. seq: position of its event. path: of keys. body: its JSON."""

    seq: int
    path: tuple[str, ...]
    digest: str
    body: bytes

    def ref(self) -> list[Any]:
        """What stands in the journal's row for it."""
        return [self.seq, list(self.path), self.digest]


def split(event: Event, seq: int) -> tuple[str, list[Piece]]:
    """An event's line with its large values taken out, and those values."""
    data = _wire.dump(event)
    pieces: list[Piece] = []
    _take_out(data, (), seq, pieces)
    return _json(data), pieces


def _take_out(data: dict[str, Any], path: tuple[str, ...], seq: int, pieces: list[Piece]) -> None:
    for name, value in data.items():
        if name == "step" and not path and isinstance(value, dict):
            _take_out(value, ("step",), seq, pieces)
        elif isinstance(value, str | dict | list):
            body = b"".join(part.encode("ascii") for part in json_parts(value))
            if len(body) > PIECE_BYTES:
                digest = hashlib.sha256(body).hexdigest()
                pieces.append(Piece(seq, (*path, name), digest, body))
                data[name] = None


def refs_text(pieces: Iterable[Piece]) -> str | None:
    """What a row says of the values that stand apart, None for none."""
    refs = [piece.ref() for piece in pieces]
    return _json(refs) if refs else None


def packed(body: bytes) -> bytes:
    """A value as it is kept."""
    return zlib.compress(body, 3)


def unpacked(digest: str, kept: bytes | None) -> Any:
    """The value of what is kept under a digest. Raises StoreCorrupt if it is not that."""
    try:
        body = zlib.decompress(kept or b"")
    except zlib.error:
        body = b""
    if hashlib.sha256(body).hexdigest() != digest:
        raise StoreCorrupt(f"the value kept as {digest[:16]} is damaged or gone")
    return json.loads(body)


def join(line: str, refs: Iterable[Any], fetch: Callable[[str], bytes | None]) -> Event:
    """The event of a line whose large values stand apart."""
    data = json.loads(line)
    for _seq, path, digest in refs:
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = unpacked(digest, fetch(digest))
    return _wire.load(data)
