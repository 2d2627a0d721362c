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

from triage.core.errors import StoreError, UsageError, check_count, closest, misuse
from triage.core.json_values import exact, refuse_constant
from triage.core.redaction import redact

FORMAT = 1
"""Version of the JSON form of a plan."""


canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
"""Encode a JSON value; equal values have equal texts."""


def content_hash(value: Any) -> str:
    """SHA-256 of a JSON value as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


class Input(NamedTuple):
    """A result a step needs. type: the type it must have. key: the `context_key` it is kept under."""

    type: str
    key: str


class Parameters(Mapping[str, Any]):
    """An immutable JSON object: kept as text; reading it gives copies."""

    __slots__ = ("names", "text")

    def __init__(self, values: Mapping[str, Any], place: str = "parameters") -> None:
        kept = exact(values, place)
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
        """The values as a new dict."""
        values: dict[str, Any] = json.loads(self.text)
        return values


NOTHING = Parameters({})


@dataclass(frozen=True)
class PlannedStep:
    """One step of a plan.

    context_key: the name its result is kept under, unique in a plan. capability: which to call.
    task_objective: what it should achieve. success_criteria: how to tell. expected_output: the type of
    its result; None takes the only one its capability provides. parameters: JSON values for the
    capability. inputs: the results it needs.

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
        """A copy of the parameters."""
        parameters = self.parameters
        return parameters.copy() if isinstance(parameters, Parameters) else dict(parameters)

    @cached_property
    def text(self) -> str:
        """The step as canonical JSON; equal steps have equal texts."""
        return canonical(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The step as a JSON object, without empty fields."""
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
    """Steps in the order they are taken. Immutable.

    version: the number of the plan in its run, from 1. Raises UsageError for a field of the wrong type;
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
        """SHA-256 of the steps, 64 hexadecimal digits; the same in every process, whatever the version."""
        text = f"[{','.join(step.text for step in self.steps)}]"
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object. `v` is the version of this form."""
        return {
            "v": FORMAT,
            "version": self.version,
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: object) -> ExecutionPlan:
        """Read a plan from a JSON object or its text.

        Raises UsageError naming every invalid field, and a version this release cannot read.
        """
        reading = read(data)
        plan = reading.plan
        if reading.faults or plan is None:
            raise UsageError("; ".join(fault.message for fault in reading.faults))
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file that only its owner can read, completely or not at all.

        Blocks. Raises StoreError if the file cannot be written.
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
        """Read a plan from a file that `save` or a person wrote. `validate` it like any other.

        Blocks. Raises UsageError naming the file and every invalid field.
        """
        name = os.fspath(path)
        try:
            with Path(path).open(encoding="utf-8", errors="surrogatepass") as file:
                text = file.read(_MOST_CHARACTERS + 1)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"{name}: the plan cannot be read: {why}") from error
        try:
            return cls.from_json(text)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None


# Foreign text in our messages, quoted, capped and without credentials; and names.


_MOST_READ = 2_000
_LONGEST_NAME = 100


def shortened(text: object, longest: int = 300) -> str:
    """The text on one line of at most `longest` characters, without credentials."""
    line = " ".join(redact(str(text)[:_MOST_READ]).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def quoted(text: object, longest: int = 80) -> str:
    """The same as a JSON string, so that foreign text cannot leave its quotation marks."""
    return json.dumps(shortened(text, longest), ensure_ascii=False)


def suggested(name: str | None) -> str:
    """`; did you mean "x"?`, empty for None."""
    return "" if name is None else f"; did you mean {quoted(name)}?"


def name_of(field: str, value: object) -> str:
    """Check a name that plans use. Raises UsageError naming the field."""
    if not isinstance(value, str) or not value.strip():
        raise misuse(field, value, "text that is not blank")
    if value != value.strip() or not value.isprintable() or len(value) > _LONGEST_NAME:
        wanted = f"printable text of at most {_LONGEST_NAME} characters, without spaces around it"
        raise misuse(field, value, wanted)
    return value


# Plans from JSON: all invalid fields are reported at once, each with its place.


_TEXTS = ("context_key", "capability", "task_objective", "success_criteria", "expected_output")
_FIELDS = (*_TEXTS, "parameters", "inputs")
_PLAN_FIELDS = ("v", "version", "steps")
_REQUIRED = {"context_key": "blank_key", "capability": "blank_capability"}
_MOST_CHARACTERS = 2_000_000
"""The longest text that is read as a plan."""


class Fault(NamedTuple):
    """A fault in the form of a plan. code: an `IssueCode`. message: begins with the place.

    step: index of the step, None for the plan. field: of the step. nearest: the name probably meant.
    harmless: the field can be ignored, since nothing like it is missing.
    """

    code: str
    message: str
    step: int | None = None
    field: str = ""
    nearest: str | None = None
    harmless: bool = False


class Reading(NamedTuple):
    """Data read as a plan. steps: None for each step that could not be read."""

    steps: tuple[PlannedStep | None, ...]
    version: int
    faults: tuple[Fault, ...]

    @property
    def plan(self) -> ExecutionPlan | None:
        """The plan; None if a step of it could not be read."""
        steps = tuple(step for step in self.steps if step is not None)
        return ExecutionPlan(steps, self.version) if len(steps) == len(self.steps) else None


def read(data: object) -> Reading:
    """Read a plan from a plan, its JSON object, the text of one, or a pydantic model. Never raises."""
    if isinstance(data, ExecutionPlan):
        return Reading(data.steps, data.version, ())
    try:
        return _read(data)
    except Exception as error:  # a foreign object may raise anything
        message = f"plan: reading it raised {type(error).__name__}: {shortened(error)}"
        return Reading((), 1, (Fault("malformed", message),))


def _read(data: object) -> Reading:
    faults: list[Fault] = []
    found = _object(data, faults)
    if found is None:
        return Reading((), 1, tuple(faults))
    _unknown(found, _PLAN_FIELDS, "plan", None, faults)
    if found.get("v", FORMAT) != FORMAT or isinstance(found.get("v"), bool):
        told = quoted(found["v"])
        message = f"v: this release reads plans of version {FORMAT}, not {told}"
        faults.append(Fault("malformed", message, field="v"))
    version = found.get("version", 1)
    if type(version) is not int or version < 1:
        message = f"version: must be a whole number from 1, not {quoted(version)}"
        faults.append(Fault("malformed", message, field="version"))
        version = 1
    steps = found.get("steps")
    if not isinstance(steps, list | tuple):
        told = f"must be a list, not {type(steps).__name__}" if "steps" in found else "is missing"
        faults.append(Fault("malformed", f"steps: {told}", field="steps"))
        steps = ()
    made = tuple(_step(at, step, faults) for at, step in enumerate(steps))
    return Reading(made, version, tuple(faults))


def _object(data: object, faults: list[Fault]) -> Mapping[str, Any] | None:
    if isinstance(data, str):
        if len(data) > _MOST_CHARACTERS:
            faults.append(Fault("malformed", f"plan: has {len(data)} characters, too many for one"))
            return None
        try:
            data = json.loads(data, parse_constant=refuse_constant, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            faults.append(Fault("malformed", f"plan: is no JSON: {shortened(error)}"))
            return None
    dump = getattr(data, "model_dump", None)
    if dump is not None and not isinstance(data, type):
        data = dump()
    if not isinstance(data, Mapping):
        message = f"plan: must be an object with steps, not {type(data).__name__}"
        faults.append(Fault("malformed", message))
        return None
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the field {quoted(twice)} twice")
    return made


def _unknown(
    found: Mapping[Any, Any],
    fields: tuple[str, ...],
    place: str,
    step: int | None,
    faults: list[Fault],
) -> None:
    for name in found:
        if name in fields:
            continue
        near = closest(str(name), (field for field in fields if field not in found))
        message = f"{place}: has no field {quoted(name)}{suggested(near)}"
        faults.append(Fault("unknown_field", message, step, str(name), near, near is None))


def _step(at: int, data: object, faults: list[Fault]) -> PlannedStep | None:
    place = f"steps[{at}]"
    if isinstance(data, PlannedStep):
        return data
    if not isinstance(data, Mapping):
        message = f"{place}: must be an object, not {type(data).__name__}"
        faults.append(Fault("malformed", message, at))
        return None
    _unknown(data, _FIELDS, place, at, faults)
    texts = {name: _text(at, name, data.get(name), faults) for name in _TEXTS}
    return PlannedStep(
        context_key=texts["context_key"] or "",
        capability=texts["capability"] or "",
        task_objective=texts["task_objective"] or "",
        success_criteria=texts["success_criteria"] or "",
        expected_output=texts["expected_output"],
        parameters=_parameters(at, data.get("parameters"), faults),
        inputs=_inputs(at, data.get("inputs"), faults),
    )


def _text(at: int, name: str, value: object, faults: list[Fault]) -> str | None:
    if isinstance(value, str):
        return value
    if value is not None:
        message = f"steps[{at}].{name}: must be text, not {type(value).__name__}"
        faults.append(Fault("malformed", message, at, name))
    elif name in _REQUIRED:
        faults.append(Fault(_REQUIRED[name], f"steps[{at}].{name}: is missing", at, name))
    return None


def _parameters(at: int, value: object, faults: list[Fault]) -> Mapping[str, Any]:
    place = f"steps[{at}].parameters"
    if value is None:
        return NOTHING
    if not isinstance(value, Mapping):
        message = f"{place}: must be an object, not {type(value).__name__}"
        faults.append(Fault("malformed", message, at, "parameters"))
        return NOTHING
    if isinstance(value, Parameters):
        return value
    try:
        return Parameters(value, place)
    except UsageError as error:
        faults.append(Fault("parameters_not_json", shortened(error), at, "parameters"))
        return NOTHING


def _inputs(at: int, value: object, faults: list[Fault]) -> tuple[Input, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        message = f"steps[{at}].inputs: must be a list, not {type(value).__name__}"
        faults.append(Fault("malformed", message, at, "inputs"))
        return ()
    made: list[Input] = []
    for number, item in enumerate(value):
        if isinstance(item, Input):
            pairs: list[tuple[Any, Any]] = [(item.type, item.key)]
        elif isinstance(item, Mapping) and item:
            named = item.keys() == {"type", "key"}
            pairs = [(item["type"], item["key"])] if named else list(item.items())
        else:
            pairs = [(None, None)]
        if all(isinstance(text, str) for pair in pairs for text in pair):
            made += (Input(kind, key) for kind, key in pairs)
        else:
            message = (
                f"steps[{at}].inputs[{number}]: must be an object that names a type and a key, such "
                f'as {{"TYPE": "key"}}, not {quoted(item)}'
            )
            faults.append(Fault("malformed", message, at, "inputs"))
    return tuple(made)


def plan_schema(names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The JSON Schema of a plan, for structured answers of models.

    names: the capabilities a step may name; empty for any. Parameters are an open object, which some
    providers allow only in their non-strict mode.
    """
    text = {"type": "string"}
    name = {"type": "string", "enum": list(names)} if names else text
    pair = {
        "type": "object",
        "properties": {"type": text, "key": text},
        "required": ["type", "key"],
        "additionalProperties": False,
    }
    fields = {
        **dict.fromkeys(_TEXTS, text),
        "capability": name,
        "parameters": {"type": "object"},
        "inputs": {"type": "array", "items": pair},
    }
    step = {
        "type": "object",
        "properties": fields,
        "required": ["context_key", "capability", "task_objective"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"steps": {"type": "array", "items": step}},
        "required": ["steps"],
        "additionalProperties": False,
    }
