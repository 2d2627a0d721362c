"""Plans as immutable values: `ExecutionPlan`, its `PlannedStep`s and their `Input`s."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from triage._options import check_count, misuse
from triage._plain import is_flat
from triage._serde import exact
from triage.errors import StoreError

FORMAT = 1
"""Version of the form of a plan as JSON."""


canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
"""The text of a JSON value: equal values, equal texts."""


def content_hash(value: Any) -> str:
    """SHA-256 of a JSON value as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


class Input(NamedTuple):
    """What a step is given. type: the type the result must have. key: the `context_key` it stands under."""

    type: str
    key: str


class Parameters(Mapping[str, Any]):
    """A JSON object that nobody can change: it is kept as text, and what is read from it is a copy."""

    __slots__ = ("_flat", "names", "text")

    def __init__(self, values: Mapping[str, Any], place: str = "parameters") -> None:
        flat = type(values) is dict and is_flat(values)
        kept = values if flat else exact(values, place)
        self._flat = dict(kept) if is_flat(dict(kept)) else None  # to be copied, not read from text
        self.names = frozenset(kept)
        self.text = canonical(kept)

    def __getitem__(self, name: str) -> Any:
        return self.copy()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Parameters):
            return self.text == other.text
        return isinstance(other, Mapping) and self.copy() == dict(other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __bool__(self) -> bool:
        return self.text != "{}"

    def __repr__(self) -> str:
        return repr(self.copy())

    def copy(self) -> dict[str, Any]:
        """The values as a dict of one's own."""
        if self._flat is not None:
            return self._flat.copy()
        values: dict[str, Any] = json.loads(self.text)
        return values


NOTHING = Parameters({})


@dataclass(frozen=True)
class PlannedStep:
    """One step of a plan.

    context_key: the name its result is kept under, once in a plan. capability: what does it.
    task_objective: what it is to achieve. success_criteria: when it is achieved. expected_output: the
    type of its result; None takes the only one its capability provides. parameters: JSON values for
    the capability. inputs: results it is given, as `Input`s.

    Raises UsageError for a field of the wrong type and for parameters without an exact JSON form;
    `validate` says whether the step can be run.
    """

    context_key: str
    capability: str
    task_objective: str = ""
    success_criteria: str = ""
    expected_output: str | None = None
    parameters: Mapping[str, Any] = NOTHING
    inputs: tuple[Input, ...] = ()

    def __post_init__(self) -> None:
        put = self.__dict__.__setitem__
        for name in ("context_key", "capability", "task_objective", "success_criteria"):
            if not isinstance(getattr(self, name), str):
                raise misuse(f"PlannedStep.{name}", getattr(self, name), "text")
        kind = self.expected_output
        if kind is not None and not isinstance(kind, str):
            raise misuse("PlannedStep.expected_output", kind, "the name of a type or None")
        put("expected_output", kind or None)
        if not isinstance(self.parameters, Mapping):
            raise misuse("PlannedStep.parameters", self.parameters, "a mapping of JSON values")
        if not isinstance(self.parameters, Parameters):
            put("parameters", Parameters(self.parameters))
        if not isinstance(self.inputs, Iterable) or isinstance(self.inputs, str | Mapping):
            raise misuse("PlannedStep.inputs", self.inputs, "a tuple of Input(type, key)")
        put("inputs", tuple(self.inputs))
        for item in self.inputs:
            known = isinstance(item, Input) and isinstance(item.type, str)
            if not known or not isinstance(item.key, str):
                raise misuse("PlannedStep.inputs item", item, "an Input(type, key) of two texts")

    @property
    def given(self) -> dict[str, Any]:
        """The parameters as a dict of one's own."""
        parameters = self.parameters
        return parameters.copy() if isinstance(parameters, Parameters) else dict(parameters)

    @cached_property
    def text(self) -> str:
        """The step as canonical JSON: equal steps, equal texts."""
        return canonical(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The step as a JSON object; what is empty is left out."""
        made: dict[str, Any] = {"context_key": self.context_key, "capability": self.capability}
        for name in ("task_objective", "success_criteria", "expected_output"):
            if getattr(self, name):
                made[name] = getattr(self, name)
        if self.parameters:
            made["parameters"] = self.given
        if self.inputs:
            made["inputs"] = [{kind: key} for kind, key in self.inputs]
        return made


@dataclass(frozen=True)
class ExecutionPlan:
    """The steps that are to be taken, in order. It never changes; another plan is another value.

    version: which plan of its run it is, from 1. Raises UsageError for a field of the wrong type;
    `validate` says whether the plan can be run.
    """

    steps: tuple[PlannedStep, ...]
    version: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.steps, Iterable) or isinstance(self.steps, str | Mapping):
            raise misuse("ExecutionPlan.steps", self.steps, "a tuple of PlannedStep")
        self.__dict__["steps"] = tuple(self.steps)
        for step in self.steps:
            if not isinstance(step, PlannedStep):
                raise misuse("ExecutionPlan.steps item", step, "a PlannedStep")
        check_count("ExecutionPlan.version", self.version, 1)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the steps, 64 hexadecimal digits: the same in every process and version."""
        told = f"[{','.join(step.text for step in self.steps)}]"
        return hashlib.sha256(told.encode("ascii")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object, with `v`, the version of this form."""
        return {
            "v": FORMAT,
            "version": self.version,
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: object) -> ExecutionPlan:
        """The plan of a JSON object, or of its text.

        Raises UsageError that names every field that is wrong, and the version if it is newer than
        this release reads.
        """
        from ._read import read_strictly

        return read_strictly(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file that only its owner can read, whole or not at all.

        It blocks. Raises StoreError if the file cannot be written.
        """
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        part = Path(f"{os.fspath(path)}.{os.getpid()}.part")
        try:
            part.touch(0o600)
            part.write_text(text, encoding="utf-8", errors="surrogatepass")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            why = error.strerror or error
            raise StoreError(f"{os.fspath(path)}: the plan cannot be written: {why}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ExecutionPlan:
        """The plan of a file that `save` or a person wrote. Check it with `validate` as any other.

        It blocks. Raises UsageError that names the file and every field that is wrong.
        """
        from ._read import read_file

        return read_file(path)
