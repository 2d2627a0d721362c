"""Checks of what users configure: one form of message for every value that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ._refuse import refuse
from .errors import UsageError


def misuse(field: str, value: object, wanted: str, remedy: str = "") -> UsageError:
    """The error for a wrong value: names the field, what was found, its type and the remedy."""
    return UsageError(str(refuse(field, value, wanted, remedy)))


def check_count(field: str, value: object, least: int, remedy: str = "") -> None:
    """Raise UsageError unless `value` is a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise misuse(field, value, f"a whole number from {least}", remedy)


def check_number(
    field: str,
    value: object,
    unit: str,
    *,
    least: float = 0.0,
    above: bool = False,
    remedy: str = "",
) -> None:
    """Raise UsageError unless `value` is a finite number from `least`, or above it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        high_enough = value > least if above else value >= least
        if high_enough and value <= sys.float_info.max:
            return
    bound = f"above {least:g}" if above else f"from {least:g}"
    raise misuse(field, value, f"a finite number of {unit} {bound}".replace("  ", " "), remedy)


def check_word(field: str, value: object, words: tuple[str, ...]) -> None:
    """Raise UsageError unless `value` is one of `words`."""
    if not isinstance(value, str) or value not in words:
        guess = nearest(value, words) if isinstance(value, str) else ""
        raise misuse(field, value, "one of " + ", ".join(words), guess)


def nearest(word: str, names: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest of `names`, whatever its case; empty if none is close."""
    from difflib import get_close_matches

    by_folded = {name.casefold(): name for name in names}
    close = get_close_matches(word.casefold(), by_folded, n=1)
    return f"did you mean {by_folded[close[0]]!r}?" if close else ""
