"""What a result and the way to it must be, and how safely a run is kept: `Checks` and `Durability`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ._options import check_number, check_word, misuse
from .diagnosis import Diagnosis
from .errors import UsageError
from .steps import Constraint

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from ._manifest import Schema
    from .grounds import Grounds
    from .guards import Decide, Guard
    from .redact import Redactor
    from .watching import Watching

Verdict: TypeAlias = bool | str | Diagnosis | None
Verifier: TypeAlias = Callable[[Any], Verdict | Awaitable[Verdict]]
"""Given the result, answers True or None (good), or False, a text or a `Diagnosis` saying why it is bad."""


@dataclass(frozen=True)
class Checks:
    """What a result and the steps before it must satisfy; a failed check fails the attempt.

    tools: the tools that exist; a call of another is a failure. A list of names, functions, tool
    objects (with a `name`) or tool definitions as model providers take them, or a mapping of names
    to JSON Schemas of the arguments (None where it is not known). None or empty: not known.
    result_type: what the result must be, any type pydantic can validate; None: anything. verify:
    one function or several, sync or async, that are given the result and answer True or None
    (good), False or a reason (bad). constraints: what no output may be: texts, whatever their case,
    compiled patterns, and functions of the output's text that answer like `verify`. subgoals: True
    fails a result while declared subgoals are open. grounding: True, or a `Grounds`, fails a result
    with facts in it that neither the task nor any step holds; False by default. watch: whether the
    steps are looked at as they are recorded: True (default), a `Watching`, or False. guard: who is
    asked before a call with the effect `once` runs: a function of the call, a `Guard` that says which
    other calls are looked at, or None.

    Raises UsageError, which names the field, for a value of another kind.
    """

    tools: Iterable[Any] | Mapping[str, Any] | None = None
    result_type: Any = None
    verify: Verifier | Iterable[Verifier] | None = None
    constraints: tuple[Constraint, ...] = ()
    subgoals: bool = True
    grounding: bool | Grounds = False
    watch: bool | Watching = True
    guard: Decide | Guard | None = None

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
        set_(self, "constraints", _constraints(self.constraints))
        if not isinstance(cast("object", self.subgoals), bool):
            raise misuse("Checks.subgoals", self.subgoals, "True or False")
        self._options()
        for verifier in self.verifiers:
            if not callable(verifier):
                raise misuse("Checks.verify item", verifier, "a function of the result")
        self.manifest  # noqa: B018 - read here, so that a tool without a name is told at once
        if self.result_type is not None:
            _early(self.result_type)

    def _options(self) -> None:
        """Refuse options that are neither a word nor the value that says more."""
        if not isinstance(cast("object", self.grounding), bool):
            from .grounds import Grounds

            if not isinstance(self.grounding, Grounds):
                wanted = "True, False or a Grounds"
                raise misuse("Checks.grounding", self.grounding, wanted, "write Grounds(kinds=(…))")
        if not isinstance(cast("object", self.watch), bool):
            from .watching import Watching

            if not isinstance(self.watch, Watching):
                wanted = "True, False or a Watching"
                raise misuse("Checks.watch", self.watch, wanted, "write Watching(hint_after=3)")
        if self.guard is not None and not callable(self.guard):
            from .guards import Guard

            if not isinstance(self.guard, Guard):
                raise misuse("Checks.guard", self.guard, "a function of the call, or a Guard")

    @cached_property
    def manifest(self) -> Mapping[str, Schema | None]:
        """The tools by name, each with the JSON Schema of its arguments or None; or none known."""
        if self.tools is None:
            return {}
        from ._manifest import manifest_of

        return manifest_of(self.tools)

    @property
    def verifiers(self) -> tuple[Verifier, ...]:
        """`verify` as a tuple, empty for None."""
        verify = self.verify
        if verify is None:
            return ()
        return (verify,) if callable(verify) else cast("tuple[Verifier, ...]", verify)

    @property
    def grounds(self) -> Grounds | None:
        """`grounding` as a `Grounds`, None for False."""
        grounding = self.grounding
        if not isinstance(grounding, bool):
            return grounding
        from .grounds import Grounds

        return Grounds() if grounding else None

    @cached_property
    def guarding(self) -> Guard | None:
        """`guard` as a `Guard`, None without one."""
        from .guards import Guard

        guard = self.guard
        return guard if guard is None or isinstance(guard, Guard) else Guard(guard)


def _constraints(given: Any) -> tuple[Constraint, ...]:
    if isinstance(given, str | re.Pattern) or not _is_iterable(given):
        remedy = "write constraints=(text,)"
        raise misuse("Checks.constraints", given, "a tuple of constraints", remedy)
    constraints = tuple(given)
    for constraint in constraints:
        pattern = constraint.pattern if isinstance(constraint, re.Pattern) else constraint
        if isinstance(pattern, str) and pattern:
            continue
        if isinstance(pattern, str | bytes) or not callable(pattern):
            wanted = "a text that is not empty, a compiled pattern of text or a function"
            raise misuse("Checks.constraints item", constraint, wanted)
        if inspect.iscoroutinefunction(pattern):
            wanted = "a sync function of a text"
            raise misuse("Checks.constraints item", constraint, wanted, "give it as verify")
    return constraints


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


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable)


@dataclass(frozen=True)
class Durability:
    """How safely a run is kept in its store.

    mode: `"step"` (default): a recorded call returns once its result is durable; `"attempt"`: what
    happened is durable when the attempt ends; `"exit"`: when the run ends. on_in_doubt: what is
    done about a call that may or may not have happened: `"ask"` a person (default), `"rerun"` it,
    `"fail"` the run. on_store_error: `"fail"` the run (default), or `"continue"` without the store.
    lease_s: seconds, 30 by default, after which a run whose process is silent may be taken over.
    redact: what is hidden before the run is stored: True (default) what `Redactor()` finds, a
    `Redactor` of your own, False nothing.

    Raises UsageError, which names the field, for any other value.
    """

    mode: Literal["step", "attempt", "exit"] = "step"
    on_in_doubt: Literal["ask", "rerun", "fail"] = "ask"
    on_store_error: Literal["fail", "continue"] = "fail"
    lease_s: float = 30.0
    redact: bool | Redactor = True

    def __post_init__(self) -> None:
        check_word("Durability.mode", self.mode, ("step", "attempt", "exit"))
        check_word("Durability.on_in_doubt", self.on_in_doubt, ("ask", "rerun", "fail"))
        check_word("Durability.on_store_error", self.on_store_error, ("fail", "continue"))
        check_number("Durability.lease_s", self.lease_s, "seconds", above=True)
        if self.redact is not True:
            _check_redact(self.redact)

    @property
    def redactor(self) -> Redactor | None:
        """`redact` as a `Redactor`, None for False."""
        if not isinstance(self.redact, bool):
            return self.redact
        from ._redactor import standard

        return standard() if self.redact else None


def _check_redact(given: object) -> None:
    from .redact import Redactor

    if not isinstance(given, bool | Redactor):
        wanted = "True, False or a Redactor"
        raise misuse("Durability.redact", given, wanted, "write Redactor(patterns=(…,))")
