"""Deals made-up records: each fault in all of its wordings, and each kind of healthy run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .records import FAULTY, MADE_HEALTHY, Record, half

WORDINGS = 5

Step = dict[str, Any]
Told = tuple[str, list[Step], int]
"""The task, the steps after those a run begins with, and which of these goes wrong."""
Healthy = tuple[str, list[Step]]
"""The task, and the steps after those a run begins with."""


def call(tool: str | None, given: Any, output: Any, error: str | None = None) -> Step:
    """One step that calls a tool."""
    return {
        "action": f"call {tool}" if tool else "",
        "tool_called": tool,
        "tool_input": given,
        "tool_output": output,
        "llm_output": None,
        "error": error,
    }


def say(text: str, who: str = "answer") -> Step:
    """One step in which an agent says something."""
    return {**call(None, None, None), "action": who, "llm_output": text}


class Run(Protocol):
    """What a run is made with. tools: those that are declared, each with its schema or None."""

    @property
    def tools(self) -> Mapping[str, Any]: ...
    def start(self) -> list[Step]:
        """The steps a run begins with, whatever comes of it."""
        ...


R = TypeVar("R", bound=Run)


class Fault(NamedTuple, Generic[R]):
    """A kind of fault, the failure types that are right for it, and how it is put into a run."""

    name: str
    kinds: str
    make: Callable[[R, int], Told]


@dataclass(frozen=True)
class Look(Generic[R]):
    """A set of made-up records. run: makes a run from a seed; the same seed gives the same run."""

    name: str
    run: Callable[[int], R]
    faults: Sequence[Fault[R]]
    endings: Mapping[str, Callable[[R], Healthy]]
    seed: int
    per_wording: int
    per_ending: int

    def records(self) -> list[Record]:
        """All records, those with a fault first."""
        return [*self._faulty(), *self._healthy()]

    def _faulty(self) -> Iterator[Record]:
        seed = self.seed
        for fault in self.faults:
            for wording in range(WORDINGS):
                for turn in range(self.per_wording):
                    seed += 1
                    run = self.run(seed)
                    begun = run.start()
                    task, steps, wrong = fault.make(run, wording)
                    id_ = f"{self.name}/{fault.name}/{wording}/{turn}"
                    yield Record(
                        id_, self.name + FAULTY, task, (*begun, *steps), frozenset(fault.kinds.split()),
                        frozenset(), len(begun) + wrong, half(id_), run.tools,
                    )  # fmt: skip

    def _healthy(self) -> Iterator[Record]:
        seed = self.seed * 2
        for name, ending in self.endings.items():
            for turn in range(self.per_ending):
                seed += 1
                run = self.run(seed)
                begun = run.start()
                task, steps = ending(run)
                id_ = f"{self.name}/{name}/0/{turn}"
                yield Record(
                    id_, self.name + MADE_HEALTHY, task, (*begun, *steps), frozenset(), frozenset(),
                    None, half(id_), run.tools,
                )  # fmt: skip


def by_name(*endings: Callable[[R], Healthy]) -> dict[str, Callable[[R], Healthy]]:
    """Kinds of healthy runs by what their functions are called."""
    return {one.__name__.strip("_").replace("_", " "): one for one in endings}


def kind(record: Record) -> tuple[str, int]:
    """The fault of a record, or the kind of healthy run, and its wording from 0."""
    _, name, wording, _ = record.id.split("/")
    return name, int(wording)
