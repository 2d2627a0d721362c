"""Plans from JSON: what is wrong is said for all fields at once, each with its place."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from triage.errors import UsageError

from ._plan import FORMAT, NOTHING, ExecutionPlan, Input, Parameters, PlannedStep
from ._words import closest, quoted, shortened, suggested

_TEXTS = ("context_key", "capability", "task_objective", "success_criteria", "expected_output")
_FIELDS = (*_TEXTS, "parameters", "inputs")
_PLAN_FIELDS = ("v", "version", "steps")
_REQUIRED = {"context_key": "blank_key", "capability": "blank_capability"}
_MOST_CHARACTERS = 2_000_000
"""No plan has so many, and reading takes its time."""


class Fault(NamedTuple):
    """Something wrong in the form of a plan. code: an `Issue`'s. place: a path. message: begins with it.

    step: index of the step, None for the plan. field: of the step. nearest: the name that was meant.
    harmless: the field can be left out, as nothing like it is missing.
    """

    code: str
    message: str
    step: int | None = None
    field: str = ""
    nearest: str | None = None
    harmless: bool = False


class Reading(NamedTuple):
    """What was made of data that should be a plan. steps: those of the right form, else None."""

    steps: tuple[PlannedStep | None, ...]
    version: int
    faults: tuple[Fault, ...]

    @property
    def plan(self) -> ExecutionPlan | None:
        """The plan, None if a step of it could not be read."""
        steps = tuple(step for step in self.steps if step is not None)
        return ExecutionPlan(steps, self.version) if len(steps) == len(self.steps) else None


def read(data: object) -> Reading:
    """Make what can be made of `data`: a plan, its JSON object, the text of one, or a model of one.

    Never raises.
    """
    if isinstance(data, ExecutionPlan):
        return Reading(data.steps, data.version, ())
    try:
        return _read(data)
    except Exception as error:  # noqa: BLE001 - an object of somebody's; whatever it is, it is no plan
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
            data = json.loads(data, parse_constant=_no_json, object_pairs_hook=_once)
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


def _no_json(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


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
        texts["context_key"] or "",
        texts["capability"] or "",
        texts["task_objective"] or "",
        texts["success_criteria"] or "",
        texts["expected_output"],
        _parameters(at, data.get("parameters"), faults),
        _inputs(at, data.get("inputs"), faults),
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


def read_strictly(data: object) -> ExecutionPlan:
    """The plan; UsageError with every fault, harmless ones too: nothing is left out unsaid."""
    reading = read(data)
    plan = reading.plan
    if reading.faults or plan is None:
        raise UsageError("; ".join(fault.message for fault in reading.faults))
    return plan


def read_file(path: str | os.PathLike[str]) -> ExecutionPlan:
    """The plan of a file; UsageError naming the file and what is wrong."""
    name = os.fspath(path)
    try:
        with Path(path).open(encoding="utf-8", errors="surrogatepass") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{name}: the plan cannot be read: {why}") from error
    try:
        return read_strictly(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def plan_schema(names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The JSON Schema of a plan, for models that answer by a schema.

    names: of the capabilities a step may name; empty leaves them open. Parameters are an open object,
    which some providers allow in their non-strict mode only.
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
