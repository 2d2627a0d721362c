"""Plans as immutable values, and read from JSON: `ExecutionPlan`, its `PlannedStep`s and their `Input`s."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types

from triage.core.errors import StoreError, UsageError, check_count, closest, misuse
from triage.core.json_values import exact, refuse_constant
from triage.core.redaction import redact
from triage.core.taxonomy import Severity

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

    __slots__ = ("text",)

    def __init__(self, values: Mapping[str, Any], place: str = "parameters") -> None:
        self.text = canonical(exact(values, place))

    def copy(self) -> dict[str, Any]:
        """The values as a new dict."""
        values: dict[str, Any] = json.loads(self.text)
        return values

    def __getitem__(self, name: str) -> Any:
        return self.copy()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Parameters):
            return self.text == other.text  # 1, 1.0 and True are not the same
        return isinstance(other, Mapping) and self.copy() == dict(other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return repr(self.copy())


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
        parameters = cast("Parameters", self.parameters)
        return parameters.copy()

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
        steps, version, issues, fixes = read(data)
        if issues or fixes:
            raise UsageError(
                "; ".join([found.message for found in issues] + [fix.message for fix in fixes])
            )
        return cls(cast("tuple[PlannedStep, ...]", steps), version)

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


class IssueCode(StrEnum):
    """What can be wrong with a plan."""

    MALFORMED = "malformed"
    UNKNOWN_FIELD = "unknown_field"
    EMPTY_PLAN = "empty_plan"
    TOO_MANY_STEPS = "too_many_steps"
    BLANK_CAPABILITY = "blank_capability"
    UNKNOWN_CAPABILITY = "unknown_capability"
    INACTIVE_CAPABILITY = "inactive_capability"
    BLANK_KEY = "blank_key"
    DUPLICATE_KEY = "duplicate_key"
    UNKNOWN_REFERENCE = "unknown_reference"
    FORWARD_REFERENCE = "forward_reference"
    SELF_REFERENCE = "self_reference"
    INPUT_TYPE = "input_type"
    OUTPUT_TYPE = "output_type"
    MISSING_REQUIREMENT = "missing_requirement"
    UNKNOWN_PARAMETER = "unknown_parameter"
    MISSING_PARAMETER = "missing_parameter"
    EARLY_RESPONSE = "early_response"
    PARAMETERS_NOT_JSON = "parameters_not_json"


class Issue(NamedTuple):
    """A reason why a plan cannot be run.

    severity: RECLASSIFICATION if a capability that is not active would resolve it, else REPLANNING.
    message: for the maker of the next plan; begins with the place. step: its index, None for the plan.
    field: of the step. nearest: the name probably meant, None if none is close.
    """

    code: IssueCode
    severity: Severity
    message: str
    step: int | None = None
    field: str = ""
    nearest: str | None = None


class Fix(NamedTuple):
    """A change made so that the plan can be run.

    code: `appended_response`, `spelling` or `ignored_field`. message: begins with the place. step: its
    index, None for the plan.
    """

    code: str
    message: str
    step: int | None = None


class Reading(NamedTuple):
    """Data read as a plan. steps: None for each step that could not be read. fixes: ignored fields."""

    steps: tuple[PlannedStep | None, ...]
    version: int = 1
    issues: tuple[Issue, ...] = ()
    fixes: tuple[Fix, ...] = ()


_MOST_CHARACTERS = 2_000_000
"""The longest text that is read as a plan."""
_TEXT = {"type": "string"}
_TEXTS = ("context_key", "capability", "task_objective", "success_criteria", "expected_output")
_STEP: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **dict.fromkeys(_TEXTS, _TEXT),
        "parameters": {"type": "object"},
        "inputs": {
            "type": "array",
            "items": {"type": "object", "minProperties": 1, "additionalProperties": _TEXT},
        },
    },
    "required": ["context_key", "capability"],
}
_PLAN: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "v": {"const": FORMAT},
        "version": {"type": "integer", "minimum": 1},
        "steps": {"type": "array", "items": _STEP},
    },
    "required": ["steps"],
}
_FORM = Draft202012Validator(_PLAN)
_WANTED = {"string": "text", "object": "an object", "array": "a list"}
_BLANK = {"context_key": IssueCode.BLANK_KEY, "capability": IssueCode.BLANK_CAPABILITY}


def read(data: object) -> Reading:
    """Read a plan from a plan, its JSON object, the text of one, or a pydantic model. Never raises."""
    if isinstance(data, ExecutionPlan):
        return Reading(data.steps, data.version)
    try:
        return _read(_plain(_object(data)))
    except _Unreadable as error:
        message = str(error)
    except Exception as error:  # a foreign object may raise anything
        message = f"reading it raised {type(error).__name__}: {shortened(error)}"
    return Reading((), issues=(_issue(f"plan: {message}"),))


class _Unreadable(Exception):
    """Data that holds no plan at all."""


def _object(data: object) -> Mapping[Any, Any]:
    """The object that a planner's answer is."""
    if isinstance(data, str):
        if len(data) > _MOST_CHARACTERS:
            raise _Unreadable(f"has {len(data)} characters, too many for one")
        try:
            data = json.loads(data, parse_constant=refuse_constant, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise _Unreadable(f"is no JSON: {shortened(error)}") from None
    dump = getattr(data, "model_dump", None)
    if dump is not None and not isinstance(data, type):
        data = dump()
    if not isinstance(data, Mapping):
        raise _Unreadable(f"must be an object with steps, not {type(data).__name__}")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the field {quoted(twice)} twice")
    return made


def _plain(value: Any, depth: int = 4) -> Any:
    """Mappings, tuples and our own values as JSON, as deep as a plan is; without fields that are None."""
    match value:
        case PlannedStep():
            return value.to_json()
        case Input():
            return {"type": value.type, "key": value.key}
        case Mapping() if depth:
            return {
                str(name): one if name == "parameters" else _plain(one, depth - 1)
                for name, one in value.items()
                if one is not None
            }
        case list() | tuple() if depth:
            return [_plain(one, depth - 1) for one in value]
        case _:
            return value


def _read(plain: dict[str, Any]) -> Reading:
    """Read a plan's JSON object; its fields that have issues are left out."""
    issues: dict[tuple[Any, ...], Issue] = {}
    fixes: list[Fix] = []
    for error in _FORM.iter_errors(plain):
        for issue in _issues_of(error, plain):
            if issue.code is IssueCode.UNKNOWN_FIELD and issue.nearest is None:
                fixes.append(Fix("ignored_field", issue.message, issue.step))
            else:
                issues.setdefault((issue.step, issue.message), issue)
    steps = plain.get("steps")
    made: list[PlannedStep | None] = []
    for at, step in enumerate(steps if isinstance(steps, list) else ()):
        wrong = {issue.field for issue in issues.values() if issue.step == at}
        try:
            made.append(_step(at, step, wrong))
        except UsageError as error:  # parameters without an exact JSON form
            code = IssueCode.PARAMETERS_NOT_JSON
            issues[at, code] = _issue(shortened(error), at, "parameters", code=code)
            made.append(_step(at, step, {*wrong, "parameters"}))
    wrong = {issue.field for issue in issues.values() if issue.step is None}
    version = 1 if "version" in wrong else int(plain.get("version", 1))
    fixes.sort(key=lambda fix: -1 if fix.step is None else fix.step)
    return Reading(tuple(made), version, tuple(issues.values()), tuple(fixes))


def _step(at: int, plain: Any, wrong: Collection[str]) -> PlannedStep | None:
    """A step without the fields that are wrong; None for data that is no object."""
    if not isinstance(plain, dict):
        return None
    fields = {
        name: value
        for name, value in plain.items()
        if name in _STEP["properties"] and name not in wrong
    }
    parameters = Parameters(fields.pop("parameters", {}), f"steps[{at}].parameters")
    pairs = [
        [(one["type"], one["key"])] if one.keys() == {"type", "key"} else one.items()
        for one in fields.pop("inputs", ())
    ]
    inputs = tuple(Input(kind, key) for items in pairs for kind, key in items)
    required = dict.fromkeys(_STEP["required"], "")
    return PlannedStep(**{**required, **fields}, parameters=parameters, inputs=inputs)


def _issues_of(error: Any, plain: dict[str, Any]) -> Iterator[Issue]:
    """What an error of the schema says. An object's missing and unknown fields are one issue each."""
    path, found, wanted = list(error.absolute_path), error.instance, error.validator_value
    step = path[1] if len(path) > 1 else None
    field = str(path[2] if len(path) > 2 else path[0] if len(path) == 1 else "")
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[:4])[1:]
    if len(path) > 3:
        item = plain["steps"][step][field][path[3]]
        text = f'a type and a key, such as {{"TYPE": "key"}}, not {quoted(item)}'
        yield _issue(f"{place}: must be an object that names {text}", step, field)
        return
    match error.validator:
        case "required":
            for name in wanted:
                if name not in found:
                    missing = f"{place}.{name}".removeprefix(".")
                    code = _BLANK.get(name, IssueCode.MALFORMED)
                    yield _issue(f"{missing}: is missing", step, name, code=code)
        case "additionalProperties":
            known = error.schema["properties"]
            for name in (name for name in found if name not in known):
                near = closest(name, (other for other in known if other not in found))
                text = f"{place or 'plan'}: has no field {quoted(name)}{suggested(near)}"
                code = IssueCode.UNKNOWN_FIELD
                yield _issue(text, step, name, near, code)
        case "const":
            text = f"this release reads plans of version {wanted}, not {quoted(found)}"
            yield _issue(f"{place}: {text}", step, field)
        case "type" if wanted in _WANTED:
            text = f"must be {_WANTED[wanted]}, not {type(found).__name__}"
            yield _issue(f"{place}: {text}", step, field)
        case _:
            yield _issue(
                f"{place}: must be a whole number from 1, not {quoted(found)}", step, field
            )


def _issue(
    message: str,
    step: int | None = None,
    field: str = "",
    nearest: str | None = None,
    code: IssueCode = IssueCode.MALFORMED,
) -> Issue:
    return Issue(code, Severity.REPLANNING, message, step, field, nearest)


def plan_schema(names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The JSON Schema of a plan, for structured answers of models.

    names: the capabilities a step may name; empty for any. Parameters are an open object, which some
    providers allow only in their non-strict mode.
    """
    pair = {
        "type": "object",
        "properties": {"type": _TEXT, "key": _TEXT},
        "required": ["type", "key"],
        "additionalProperties": False,
    }
    fields = {
        **_STEP["properties"],
        "capability": {"type": "string", "enum": list(names)} if names else _TEXT,
        "inputs": {"type": "array", "items": pair},
    }
    step = {**_STEP, "properties": fields, "required": [*_STEP["required"], "task_objective"]}
    steps = {"type": "array", "items": step}
    return {**_PLAN, "properties": {"steps": steps}}
