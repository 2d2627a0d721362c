"""Values for the options of an agent: checks of results, durability, guards and watching."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias, cast

from msgspec.structs import force_setattr
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from triage.classifiers.grounding import Grounds
from triage.core import errors
from triage.core.actions import Suspend
from triage.core.constructors import Struct
from triage.core.diagnosis import Diagnosis
from triage.core.faults import Fault
from triage.core.json_values import only_json
from triage.core.large_values import MB, MOST_RESULT_MB
from triage.core.manifest import Schema, manifest_of
from triage.core.observers import logger
from triage.core.quoting import quote
from triage.core.redaction import Redactor, standard
from triage.core.steps import Constraint, effect_of
from triage.core.taxonomy import Category, Effect, FailureType, Recovery
from triage.core.wire import Keyring

Verdict: TypeAlias = bool | str | Diagnosis | None
Verifier: TypeAlias = Callable[[Any], Verdict | Awaitable[Verdict]]
"""Takes the result; returns True or None if it is good, else False, a reason or a `Diagnosis`."""


class Checks(Struct, frozen=True, dict=True):
    """Requirements on a result and the steps before it; a failed check fails the attempt.

    tools: the existing tools; calling any other is a failure. A list of names, functions, tool objects
    (with a `name`) or tool definitions in a provider's form, or a mapping of names to JSON Schemas of the
    arguments (None for an unknown schema). None or empty: the tools are not known. result_type: any type
    that pydantic can validate, in a thread and within 30 s; None accepts anything. verify: one or more
    functions, sync or async, that take the result and return True or None if it is good, False or a reason
    if it is bad. constraints: forbidden in every output: texts (ignoring case), compiled patterns, and
    functions of the output's text that return values like `verify`. subgoals: whether a result fails while
    declared subgoals are open, True by default. grounding: True or a `Grounds` fails a result with facts
    found in neither the task nor any step; False by default. watch: whether steps are checked as they are
    recorded: True (default), a `Watching`, or False. guard: decides whether a call with the effect `once`
    may run: a function of the call, a `Guard`, which can cover other calls too, or None.

    Raises UsageError naming the field for a value of the wrong kind.
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
        tools: Any = self.tools
        if tools is not None and not isinstance(tools, Mapping):
            if isinstance(tools, str | bytes) or not _is_iterable(tools):
                raise errors.misuse(
                    "Checks.tools", tools, "a list or a mapping of tools", "write [tool]"
                )
            force_setattr(self, "tools", tuple(tools))
        verify = self.verify
        if verify is not None and not callable(verify):
            if not _is_iterable(verify):
                raise errors.misuse("Checks.verify", verify, "a function of the result, or several")
            force_setattr(self, "verify", tuple(verify))
        force_setattr(self, "constraints", _constraints(self.constraints))
        if not isinstance(cast("object", self.subgoals), bool):
            raise errors.misuse("Checks.subgoals", self.subgoals, "True or False")
        self._options()
        for verifier in self.verifiers:
            _takes("Checks.verify item", verifier, "result")
        self.manifest  # noqa: B018 - reading it refuses a tool without a name at once
        if self.result_type is not None:
            _early(self.result_type)

    def _options(self) -> None:
        """Raise UsageError for a switch that is neither a bool nor its detailed form."""
        if not isinstance(cast("object", self.grounding), bool | Grounds):
            wanted = "True, False or a Grounds"
            raise errors.misuse(
                "Checks.grounding", self.grounding, wanted, "write Grounds(kinds=(…))"
            )
        if not isinstance(cast("object", self.watch), bool | Watching):
            wanted = "True, False or a Watching"
            raise errors.misuse("Checks.watch", self.watch, wanted, "write Watching(hint_after=3)")
        if self.guard is not None and not isinstance(self.guard, Guard):
            _takes("Checks.guard", self.guard, "call", ", or a Guard")

    @cached_property
    def manifest(self) -> Mapping[str, Schema | None]:
        """The tools by name, with the JSON Schemas of their arguments or None; empty if not known."""
        if self.tools is None:
            return {}
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
        return Grounds() if grounding else None

    @cached_property
    def guarding(self) -> Guard | None:
        """`guard` as a `Guard`, None without one."""
        guard = self.guard
        return guard if guard is None or isinstance(guard, Guard) else Guard(guard)


def _constraints(given: Any) -> tuple[Constraint, ...]:
    if isinstance(given, str | re.Pattern) or not _is_iterable(given):
        remedy = "write constraints=(text,)"
        raise errors.misuse("Checks.constraints", given, "a tuple of constraints", remedy)
    constraints = tuple(given)
    for constraint in constraints:
        pattern = constraint.pattern if isinstance(constraint, re.Pattern) else constraint
        if isinstance(pattern, str) and pattern:
            continue
        if isinstance(pattern, str | bytes) or not callable(pattern):
            wanted = "a text that is not empty, a compiled pattern of text or a function"
            raise errors.misuse("Checks.constraints item", constraint, wanted)
        if inspect.iscoroutinefunction(pattern):
            wanted = "a sync function of a text"
            raise errors.misuse("Checks.constraints item", constraint, wanted, "give it as verify")
        _takes("Checks.constraints item", pattern, "text")
    return constraints


def _takes(field: str, given: Any, what: str, otherwise: str = "") -> None:
    wanted = f"a function of the {what}{otherwise}"
    if not callable(given):
        raise errors.misuse(field, given, wanted)
    errors.check_takes(field, given, wanted, f"the {what}")


def validate_result(result_type: Any, result: object) -> object:
    """Return `result` as `result_type`, converted as pydantic does (`"5"` to an int, a dict to a model).

    Text of another type is parsed as JSON. If that fails, the only JSON value inside fences or prose is
    taken (see `only_json`), if it is valid in strict mode. Raises pydantic.ValidationError if nothing fits,
    and UsageError if pydantic cannot handle the type.
    """
    try:
        adapter = _adapter(result_type)
    except (PydanticUserError, NameError) as error:
        raise _unfit(result_type, error) from error
    try:
        return adapter.validate_python(result)
    except PydanticUserError as error:  # the type names a class that was never defined
        raise _unfit(result_type, error) from error
    except ValidationError as error:
        if not isinstance(result, str | bytes | bytearray) or result_type is str:
            raise
        try:
            return adapter.validate_json(result)
        except ValidationError as of_json:
            # For JSON, report the errors of its fields; for other text, the expected type.
            if of_json.errors(include_url=False)[0]["type"] != "json_invalid":
                raise of_json from None
        found = only_json(result) if isinstance(result, str) else None
        if found is None:
            raise error from None
        try:
            mended = adapter.validate_json(found, strict=True)
        except ValidationError as of_json:
            raise of_json from None
        logger.info("the result was extracted from the text around it: %s", quote(result))
        return mended


@lru_cache(maxsize=256)
def _cached_adapter(result_type: Any, _written: str) -> TypeAdapter[Any]:
    # `A | B` equals `B | A` but validates in another order, so the key includes the repr.
    return TypeAdapter(result_type)


def _unfit(result_type: Any, error: Exception) -> errors.UsageError:
    reason = str(error).partition("\n")[0].rstrip(". ")
    return errors.misuse(
        "Checks.result_type", result_type, "a type that pydantic can validate", reason
    )


def _adapter(result_type: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(result_type, repr(result_type))
    except TypeError:  # a type that cannot be hashed
        return TypeAdapter(result_type)


def _early(result_type: Any) -> None:
    """Raise UsageError for a type that can never be validated; accept unresolved forward references."""
    try:
        _adapter(result_type)
    except PydanticUserError as error:
        raise _unfit(result_type, error) from error
    except NameError:  # older pydantic, for a forward reference
        return


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable)


class Durability(Struct, frozen=True, dict=True):
    """How safely a run is kept in its store.

    mode: events are durable: `"step"` (default), before a recorded call returns; `"attempt"`, when the
    attempt ends; `"exit"`, when the run ends. on_in_doubt: for a call that may have happened: `"ask"` a
    person (default), `"rerun"` the call, or `"fail"` the run. undeclared: if calling the function again
    would repeat a change that a model has asked for and no tool has recorded: `"ask"` a person (default),
    or escalate a run that is not durable; `"carry"` the model's earlier turns into the next attempt, for a
    function without other state; or `"retry"`. Agents of frameworks, given to `wrap`, are carried.
    on_store_error: `"fail"` the run (default), or `"continue"` without the store. lease_s: seconds of
    silence after which another process may take the run over, 30 by default. redact: hides secrets before
    events are stored: True (default) uses `Redactor()`; a `Redactor`; False hides nothing.

    max_value_mb: megabytes of JSON, 8 by default, up to which an argument of a recorded call, a value of a
    step, or the result of a call that may be repeated is stored whole. Of a larger value the size, digest
    and beginning are stored: the run continues, and a recovery repeats such a call. The results of calls
    that must not be repeated are stored up to 64 MB; a recovery that needs a larger one raises ResultLost.

    key: encrypts the hidden values beside the journal, so that a recovery restores them: 32 bytes, as
    bytes, hexadecimal or base64; a list, newest first, for rotation; None (default) reads the environment
    variable `TRIAGE_KEY`, keys separated by commas. Without a key, hidden values are not stored. Needs the
    extra `encryption`.

    Raises UsageError naming the field for any other value.
    """

    mode: Literal["step", "attempt", "exit"] = "step"
    on_in_doubt: Literal["ask", "rerun", "fail"] = "ask"
    undeclared: Literal["ask", "carry", "retry"] = "ask"
    on_store_error: Literal["fail", "continue"] = "fail"
    lease_s: float = 30.0
    redact: bool | Redactor = True
    max_value_mb: float = 8
    key: str | bytes | Sequence[str | bytes] | None = None

    def __post_init__(self) -> None:
        errors.check_word("Durability.mode", self.mode, ("step", "attempt", "exit"))
        errors.check_word("Durability.on_in_doubt", self.on_in_doubt, ("ask", "rerun", "fail"))
        errors.check_word("Durability.undeclared", self.undeclared, ("ask", "carry", "retry"))
        errors.check_word("Durability.on_store_error", self.on_store_error, ("fail", "continue"))
        errors.check_number("Durability.lease_s", self.lease_s, "seconds", above=True)
        errors.check_number("Durability.max_value_mb", self.max_value_mb, "megabytes", above=True)
        if self.max_value_mb > MOST_RESULT_MB:
            wanted = f"at most {MOST_RESULT_MB} megabytes"
            raise errors.misuse("Durability.max_value_mb", self.max_value_mb, wanted)
        if not isinstance(cast("object", self.redact), bool | Redactor):
            wanted = "True, False or a Redactor"
            raise errors.misuse(
                "Durability.redact", self.redact, wanted, "write Redactor(patterns=(…,))"
            )
        if self.key is not None:
            Keyring.of(self.key)

    def __repr__(self) -> str:
        shown = [name for name in self.__struct_fields__ if name != "key"]
        return f"Durability({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @cached_property
    def keys(self) -> Keyring | None:
        """The `Keyring` of `key`, or of `TRIAGE_KEY`, read at first use; None without a key."""
        return Keyring.of(self.key)

    @property
    def max_value(self) -> int:
        """`max_value_mb` in bytes."""
        return int(self.max_value_mb * MB)

    @property
    def redactor(self) -> Redactor | None:
        """`redact` as a `Redactor`, None for False."""
        if not isinstance(self.redact, bool):
            return self.redact
        return standard() if self.redact else None


class GuardedCall(Struct, frozen=True):
    """A call that is about to run, for its guard.

    arguments: JSON values by parameter name, without the ignored ones (`ignore=`). effect: of the tool.
    run_id, attempt, task: of the calling run.
    """

    tool: str
    arguments: Mapping[str, Any]
    effect: Effect
    run_id: str
    attempt: int
    task: Any


Ruling: TypeAlias = bool | str | Suspend | None
"""True or None: the call may run. False or a reason: it may not. A `Suspend`: a person is asked."""
Decide: TypeAlias = Callable[[GuardedCall], Ruling | Awaitable[Ruling]]


class CallDenied(Fault):
    """A guard denied the call, and nothing was done. tool: the tool's name. reason: the guard's.

    An agent may catch this error and try another way; otherwise the run replans.
    """

    category = Category.DATA
    recovery = Recovery.REPLAN
    failure_type = FailureType.CONSTRAINT_IGNORED
    not_attempted = True
    user_message = "A step was not allowed."

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(
            f"the call of {tool} was denied: {reason}",
            hint=f"The call of {tool} is not allowed here: {reason!r}. Reach the goal without it.",
        )
        self.tool = tool
        self.reason = reason


class Guard(Struct, frozen=True):
    """Decides on calls before they run.

    decide: a sync or async function that takes a `GuardedCall` and returns a `Ruling`. If it raises or
    returns anything else, the call does not run and a person is asked. effects: guards calls with these
    effects, `("once",)` by default. tools: also guards tools whose names match one of these patterns, with
    `*` and `?` as in a shell.

    A call that reuses a recorded result does not run, so it is not guarded. An approval covers one call,
    with its tool and arguments, once. Raises UsageError naming the field.
    """

    decide: Decide
    effects: tuple[Effect | str, ...] = (Effect.ONCE,)
    tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _takes("Guard.decide", self.decide, "call")
        effects = texts_given("Guard.effects", self.effects)
        try:
            known = tuple(effect_of("Guard.effects item", effect) for effect in effects)
        except ValueError as error:
            raise errors.misuse(
                "Guard.effects", self.effects, "a tuple of effects", str(error)
            ) from None
        force_setattr(self, "effects", known)
        force_setattr(self, "tools", texts_given("Guard.tools", self.tools))

    def covers(self, tool: str, effect: Effect) -> bool:
        """Whether a call of this tool with this effect is guarded."""
        return effect in self.effects or any(fnmatchcase(tool, rule) for rule in self.tools)


def texts_given(field: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise errors.misuse(field, given, "a tuple of texts", "write (text,)")
    texts: tuple[Any, ...] = tuple(given)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise errors.misuse(f"{field} item", text, "a text that is not empty")
    return texts


class Watching(Struct, frozen=True):
    """Response to a loop while the attempt is running.

    Three equal rounds of steps are a loop, which is noted in the journal. Both settings count its steps
    after the first round; None means never. hint_after: steps before the agent gets a hint, in
    `run.guidance`; 3 by default. interrupt_after: steps before the attempt is interrupted and recovered
    like any other failure, 6 by default; never before the fourth round, nor before one more round after the
    hint. A later attempt is interrupted at its second call of a known loop, and any attempt at the run's
    tenth identical call, if several attempts made them. The detectors' other findings (an unknown tool,
    arguments that do not fit, an output that breaks a constraint) are noted, and the agent gets a hint.

    Raises UsageError naming the field for anything but a count from 1.
    """

    hint_after: int | None = 3
    interrupt_after: int | None = 6

    def __post_init__(self) -> None:
        for name in ("hint_after", "interrupt_after"):
            if getattr(self, name) is not None:
                errors.check_count(f"Watching.{name}", getattr(self, name), 1, "None for never")
