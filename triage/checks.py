"""What a result must be, and how safely a run is kept: `Checks` and `Durability`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ._options import check_number, check_word, misuse
from .diagnosis import Diagnosis
from .errors import UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Verdict: TypeAlias = bool | str | Diagnosis | None
Verifier: TypeAlias = Callable[[Any], Verdict | Awaitable[Verdict]]
"""Given the result, answers True or None (good), or False, a text or a `Diagnosis` saying why it is bad."""
Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema of a tool's arguments."""

_TOOLS_REMEDY = "give its name as text"
_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema")


@dataclass(frozen=True)
class Checks:
    """What a result and the steps before it must satisfy; a failed check fails the attempt.

    tools: the tools that exist; a call of another is a failure. A list of names, functions, tool
    objects (with a `name`) or tool definitions as model providers take them, or a mapping of names
    to JSON Schemas of the arguments (None where it is not known). None or empty: not known.
    result_type: what the result must be, any type pydantic can validate; None: anything. verify:
    one function or several, sync or async, that are given the result and answer True or None
    (good), False or a reason (bad). constraints: strings that no output may contain, whatever their
    case. subgoals: True fails a result while declared subgoals are open.

    Raises UsageError, which names the field, for a value of another kind.
    """

    tools: Iterable[Any] | Mapping[str, Any] | None = None
    result_type: Any = None
    verify: Verifier | Iterable[Verifier] | None = None
    constraints: tuple[str, ...] = ()
    subgoals: bool = True

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        tools: Any = self.tools
        if tools is not None and not isinstance(tools, Mapping):
            if isinstance(tools, str | bytes) or not _is_iterable(tools):
                raise misuse("Checks.tools", tools, "a list or a mapping of tools", "write [tool]")
            set_(self, "tools", tuple(tools))
        verify = self.verify
        if verify is not None and not callable(verify):
            if not _is_iterable(verify):
                raise misuse("Checks.verify", verify, "a function of the result, or several")
            set_(self, "verify", tuple(verify))
        constraints: Any = self.constraints
        if isinstance(constraints, str) or not _is_iterable(constraints):
            remedy = "write constraints=(text,)"
            raise misuse("Checks.constraints", constraints, "a tuple of texts", remedy)
        set_(self, "constraints", tuple(constraints))
        for text in self.constraints:
            if not isinstance(cast("object", text), str) or not text:
                raise misuse("Checks.constraints item", text, "a text that is not empty")
        if not isinstance(cast("object", self.subgoals), bool):
            raise misuse("Checks.subgoals", self.subgoals, "True or False")
        for verifier in self.verifiers:
            if not callable(verifier):
                raise misuse("Checks.verify item", verifier, "a function of the result")
        self.manifest  # noqa: B018 - read here, so that a tool without a name is told at once
        if self.result_type is not None:
            _early(self.result_type)

    @cached_property
    def manifest(self) -> Mapping[str, Schema | None]:
        """The tools by name, each with the JSON Schema of its arguments or None; or none known."""
        tools = self.tools
        if tools is None:
            return {}
        if isinstance(tools, Mapping):
            named = cast("Mapping[Any, Any]", tools)
            return {_name(key): _schema(key, value) for key, value in named.items()}
        manifest: dict[str, Schema | None] = {}
        for tool in tools:
            name, schema = _entry(tool)
            if name in manifest:
                raise UsageError(f"Checks.tools names {name!r} twice; give each tool its own name")
            manifest[name] = schema
        return manifest

    @property
    def verifiers(self) -> tuple[Verifier, ...]:
        """`verify` as a tuple, empty for None."""
        verify = self.verify
        if verify is None:
            return ()
        return (verify,) if callable(verify) else cast("tuple[Verifier, ...]", verify)

    def violations(self, text: str) -> str | None:
        """The first of `constraints` that `text` contains, as it was configured; None if none."""
        if not self.constraints:
            return None
        folded = _fold(text)
        for constraint, wanted in zip(self.constraints, self._folded, strict=True):
            if wanted in folded:
                return constraint
        return None

    @cached_property
    def _folded(self) -> tuple[str, ...]:
        return tuple(_fold(text) for text in self.constraints)


def validate_result(result_type: Any, result: object) -> object:
    """`result` as `result_type`, converted as pydantic does (`"5"` is an int, a dict a model).

    Text that is not itself a `result_type` is read as JSON: `'{"id": 1}'` is a model. Raises
    pydantic.ValidationError if it is neither, and UsageError if pydantic cannot handle the type.
    """
    from pydantic import PydanticUserError, ValidationError

    try:
        adapter = _adapter(result_type)
    except (PydanticUserError, NameError) as error:
        raise _unfit(result_type, error) from error
    try:
        return adapter.validate_python(result)
    except PydanticUserError as error:  # it names a class that was never defined
        raise _unfit(result_type, error) from error
    except ValidationError as error:
        if not isinstance(result, str | bytes | bytearray) or result_type is str:
            raise
        try:
            return adapter.validate_json(result)
        except ValidationError as of_json:
            # Text that is JSON is told what its fields lack, other text what it should have been.
            if of_json.errors(include_url=False)[0]["type"] == "json_invalid":
                raise error from None
            raise of_json from None


def objection(verifier: Verifier, verdict: object) -> str | None:
    """Why `verifier` finds the result bad, None if its verdict is good.

    True, None and an empty text are good. False is bad, a text is the reason. Any other verdict is
    bad too, and the reason says what was answered.
    """
    if verdict is None or verdict is True or verdict == "":
        return None
    if isinstance(verdict, str):
        return verdict
    name = getattr(verifier, "__name__", None) or type(verifier).__name__
    if verdict is False:
        return f"{name} answered False"
    answered = type(verdict).__name__
    return f"{name} answered with {answered}, not with True, False, None or a reason"


@lru_cache(maxsize=256)
def _cached_adapter(result_type: Any, _written: str) -> TypeAdapter[Any]:
    # `A | B` equals `B | A`, yet validates in another order: how it is written is part of the key.
    return _new_adapter(result_type)


def _new_adapter(result_type: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(result_type)


def _unfit(result_type: Any, error: Exception) -> UsageError:
    reason = str(error).partition("\n")[0].rstrip(". ")
    return misuse("Checks.result_type", result_type, "a type that pydantic can validate", reason)


def _adapter(result_type: Any) -> TypeAdapter[Any]:
    try:
        hash(result_type)
    except TypeError:
        return _new_adapter(result_type)
    return _cached_adapter(result_type, repr(result_type))


def _early(result_type: Any) -> None:
    """Refuse a type that can never be validated; one that names a class still to come may wait."""
    from pydantic import PydanticUserError

    try:
        _adapter(result_type)
    except PydanticUserError as error:
        raise _unfit(result_type, error) from error
    except NameError:  # older releases of pydantic say it so
        return


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    from unicodedata import normalize

    return normalize("NFC", text.casefold())


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise misuse("Checks.tools name", name, "a text that is not empty", _TOOLS_REMEDY)
    return name


def _schema(name: object, value: object) -> Schema | None:
    if value is None or callable(value):
        return None
    if isinstance(value, Mapping):
        return cast("Schema", value)
    wanted = "a JSON Schema (a mapping) or None"
    raise misuse(f"Checks.tools[{name!r}]", value, wanted, "None if it is not known")


def _entry(tool: object) -> tuple[str, Schema | None]:
    if isinstance(tool, str):
        return _name(tool), None
    if isinstance(tool, Mapping):
        return _definition(cast("Mapping[str, Any]", tool))
    for attribute in ("name", "__name__"):
        name = getattr(tool, attribute, None)
        if isinstance(name, str):
            return _name(name), None
    wanted = "a name, a function, an object with a name or a tool definition"
    raise misuse("Checks.tools item", tool, wanted, _TOOLS_REMEDY)


def _definition(tool: Mapping[str, Any]) -> tuple[str, Schema | None]:
    inner = tool.get("function", tool)
    function = cast("Mapping[str, Any]", inner if isinstance(inner, Mapping) else {})
    if not isinstance(function.get("name"), str):
        wanted = "a tool definition with a name"
        raise misuse("Checks.tools item", tool, wanted, _TOOLS_REMEDY)
    name = _name(function["name"])
    schema = next((function[key] for key in _SCHEMA_KEYS if key in function), None)
    return name, _schema(name, schema)


@dataclass(frozen=True)
class Durability:
    """How safely a run is kept in its store.

    mode: `"step"` (default): a recorded call returns once its result is durable; `"attempt"`: what
    happened is durable when the attempt ends; `"exit"`: when the run ends. on_in_doubt: what is
    done about a call that may or may not have happened: `"ask"` a person (default), `"rerun"` it,
    `"fail"` the run. on_store_error: `"fail"` the run (default), or `"continue"` without the store.
    lease_s: seconds, 30 by default, after which a run whose process is silent may be taken over.
    redact: given a text, returns it without its secrets; None redacts with the built-in rules.

    Raises UsageError, which names the field, for any other value.
    """

    mode: Literal["step", "attempt", "exit"] = "step"
    on_in_doubt: Literal["ask", "rerun", "fail"] = "ask"
    on_store_error: Literal["fail", "continue"] = "fail"
    lease_s: float = 30.0
    redact: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        check_word("Durability.mode", self.mode, ("step", "attempt", "exit"))
        check_word("Durability.on_in_doubt", self.on_in_doubt, ("ask", "rerun", "fail"))
        check_word("Durability.on_store_error", self.on_store_error, ("fail", "continue"))
        check_number("Durability.lease_s", self.lease_s, "seconds", above=True)
        if self.redact is not None and not callable(self.redact):
            raise misuse("Durability.redact", self.redact, "a function of a text, or None")
