"""Texts of others in messages of ours: quoted, capped, without credentials; and the nearest name."""

from __future__ import annotations

import json
from collections.abc import Iterable

from triage.redact import redact

_MOST_READ = 2_000
_LONGEST_COMPARED = 100


def shortened(text: object, longest: int = 300) -> str:
    """Text on one line of at most `longest` characters, without credentials."""
    line = " ".join(redact(str(text)[:_MOST_READ]).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def quoted(text: object, longest: int = 80) -> str:
    """The same as a JSON string: whatever it says, it stays within its marks."""
    return json.dumps(shortened(text, longest), ensure_ascii=False)


def closest(word: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most like `word`, whatever its case; None if none is close."""
    from difflib import get_close_matches

    by_folded = {name.casefold(): name for name in names if len(name) <= _LONGEST_COMPARED}
    near = get_close_matches(word.casefold()[:_LONGEST_COMPARED], by_folded, n=1)
    return by_folded[near[0]] if near else None


def suggested(name: str | None) -> str:
    """`; did you mean "x"?`, empty for None."""
    return "" if name is None else f"; did you mean {quoted(name)}?"
