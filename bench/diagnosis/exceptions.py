"""Live exceptions of clients that the fault lab does not have, and near misses: told, and counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import envs

from . import provoke
from .cases import Case, raised

Told = dict[str, Any]
"""A label, and what was said of the exception, as `provoke` writes them."""
_CLIENTS = Path(__file__).parent / "clients"
REQUIREMENTS = {
    "clients": _CLIENTS / "requirements.txt",
    "clients-fifth": _CLIENTS / "requirements-fifth.txt",
    "clients-sixth": _CLIENTS / "requirements-sixth.txt",
}
"""The clients that can be installed beside each other, by the name of their environment."""
_UNKNOWN = "unknown"
_NEAR_S = 0.65
"""How far a delay may be off: clients round, and time passes."""


def python(name: str = "clients", *, make: bool) -> Path | None:
    """The interpreter that has these clients, made first if asked to; None if there is none."""
    return envs.lab(name, REQUIREMENTS[name], make=make)


def of_clients(interpreter: Path, module: str = provoke.FIRST) -> list[Told]:
    """What is said of each exception of a set of clients. Raises CalledProcessError if that fails."""
    command = (interpreter, "-m", "bench.diagnosis.provoke", module)
    done = subprocess.run(command, cwd=envs.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    for absent in found["absent"]:
        print(f"clients: {absent} is not installed", file=sys.stderr)
    for failed in found["failed"]:
        print(f"clients: {failed}", file=sys.stderr)
    told: list[Told] = found["answers"]
    return told


def of_near_misses(cases: Iterable[Case]) -> list[Told]:
    """What is said of each near miss; they need no library."""
    return [provoke.answer(case, raised(case)) for case in cases]


class Line(NamedTuple):
    """The figures of so many exceptions; shares are None where there is nothing to measure.

    right: share whose failure type is a right one. misrouted: answers of another type, UNKNOWN apart.
    abstained: UNKNOWN where that is not right. cause, passes, delay: share of right answers of those
    that have a label for it; passes is whether RETRIABLE is said. invented: delays nobody asked for.
    """

    title: str
    cases: int
    right: float | None
    misrouted: int
    abstained: int
    cause: float | None
    passes: float | None
    delay: float | None
    invented: int


def by_library(told: Sequence[Told]) -> Iterator[Line]:
    """A line for each library, and one for all."""
    for name in dict.fromkeys(map(_library, told)):
        yield line(name, [one for one in told if _library(one) == name])
    yield line("all", told)


def line(title: str, told: Sequence[Told]) -> Line:
    """The figures of these."""
    wrong = [one for one in told if not _right(one)]
    asked = [one for one in told if one["retry_after_s"] is not None]
    unasked = [one for one in told if one["retry_after_s"] is None]
    abstained = sum(one["type"] == _UNKNOWN for one in wrong)
    return Line(
        title,
        len(told),
        _share(told, _right),
        len(wrong) - abstained,
        abstained,
        _share([one for one in told if one["causes"]], lambda one: one["cause"] in one["causes"]),
        _share([one for one in told if one["passes"] is not None], _passes),
        _share(asked, _delay),
        sum(one["delay_s"] is not None for one in unasked),
    )


def missed(told: Sequence[Told]) -> Iterator[str]:
    """Those with a wrong type, cause, route or delay, each with what is right and what was said."""
    for one in told:
        wrong = [
            f"{name}: {one[said]}, right is {one[wanted]}"
            for name, said, wanted, is_right in (
                ("type", "type", "types", _right(one)),
                ("cause", "cause", "causes", not one["causes"] or one["cause"] in one["causes"]),
                ("severity", "severity", "passes", one["passes"] is None or _passes(one)),
                ("delay", "delay_s", "retry_after_s", _waits(one)),
            )
            if not is_right
        ]
        if wrong:
            yield "\n  ".join((str(one["id"]), str(one["raised"]), *wrong))


def _library(one: Told) -> str:
    return str(one["id"]).split("/")[0]


def _right(one: Told) -> bool:
    return one["type"] in one["types"]


def _passes(one: Told) -> bool:
    return bool((one["severity"] == "retriable") == one["passes"])


def _delay(one: Told) -> bool:
    return one["delay_s"] is not None and abs(one["delay_s"] - one["retry_after_s"]) <= _NEAR_S


def _waits(one: Told) -> bool:
    return one["delay_s"] is None if one["retry_after_s"] is None else _delay(one)


def _share(told: Sequence[Told], test: Callable[[Told], bool]) -> float | None:
    return sum(map(test, told)) / len(told) if told else None
