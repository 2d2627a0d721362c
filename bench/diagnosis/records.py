"""Labelled trajectories: read, and split in two halves that share no record."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FILE = "dev.jsonl.gz"
HEALTHY = ("tau2_ok", "sentinel_healthy")
"""Sources of real runs that went well: every answer there is a false alarm."""
FRESH_HEALTHY = "fresh_healthy"
SECOND_HEALTHY = "second_healthy"
"""The sources of made-up runs that went well."""
_STEP = ("action", "tool_called", "tool_input", "tool_output", "llm_output", "error")


class Record(NamedTuple):
    """One run. labels: the failure types that count as right, empty if none is scored. weak: arguable
    ones. where: position of the decisive step, None if not known. half: 0 or 1, by its id. tools: those
    that exist, each with the schema of its arguments or None; empty if they are not known.
    """

    id: str
    source: str
    task: Any
    steps: tuple[dict[str, Any], ...]
    labels: frozenset[str]
    weak: frozenset[str]
    where: int | None
    half: int
    tools: Mapping[str, Any] = {}

    @property
    def healthy(self) -> bool:
        """True for a run that went well."""
        return self.source in (*HEALTHY, FRESH_HEALTHY, SECOND_HEALTHY)


def read(folder: Path) -> Iterator[Record]:
    """All records of a folder. Raises FileNotFoundError if there is none."""
    with gzip.open(folder / FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield _record(json.loads(line))


def _record(raw: dict[str, Any]) -> Record:
    steps = tuple({name: step.get(name) for name in _STEP} for step in raw["steps"])
    for step in steps:
        step["action"] = step["action"] or ""
    return Record(
        raw["id"],
        raw["source"],
        raw["task"],
        steps,
        frozenset(raw["mapped_labels"]) - {"unknown"},
        frozenset(raw.get("mapped_weak") or ()),
        raw.get("where_label"),
        half(raw["id"]),
    )


def half(id_: str) -> int:
    """The half a record belongs to, 0 or 1, by its id."""
    return hashlib.sha256(id_.encode()).digest()[0] % 2
