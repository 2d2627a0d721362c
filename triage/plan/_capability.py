"""What a step of a plan can be: a function with a name, what it needs and what it leaves behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from triage._options import misuse
from triage._tool import TOOL_ATTRIBUTE, Tool
from triage._tries import tries_of
from triage.diagnosis import Diagnosis, Evidence
from triage.errors import UsageError
from triage.steps import effect_of
from triage.taxonomy import Effect, FailureType, Severity

from ._words import quoted

if TYPE_CHECKING:
    from triage.strategies.backoff import Preset

CAPABILITY_ATTRIBUTE = "__triage_capability__"
_LONGEST_NAME = 100
_RESPONDERS = ("respond", "clarify")

F = TypeVar("F", bound=Callable[..., Any])
ClassifyError: TypeAlias = Callable[
    [BaseException, Mapping[str, Any]], Diagnosis | FailureType | Severity | None
]
"""Says why a capability failed, given the exception and what is known of the step; None: it does not
know."""


@dataclass(frozen=True)
class Capability:
    """Something a plan may ask for: a function, and what a planner and a validator must know of it.

    name: what plans call it, up to 100 characters; case does not count. description: for the planner.
    function: does it, async or not. requires: types of the results it must be given. provides: types
    of the results it may leave; empty is not checked. effect: `read`, `idempotent`, `once` or `unknown`;
    None takes that of a `triage.tool`, else `unknown`. retry: how often and after how long it is tried
    again, a number of retries or a `Preset`; None is `Backoff.CAPABILITY`. classify_error: says why it
    failed. responds: it answers the user and so ends a plan; None: one called respond or clarify does.

    Raises UsageError naming the field.
    """

    name: str
    description: str
    function: Callable[..., Any]
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    effect: Effect | str | None = None
    retry: Preset | int | None = None
    classify_error: ClassifyError | None = None
    responds: bool | None = None

    def __post_init__(self) -> None:
        put = self.__dict__.__setitem__
        put("name", name_of("Capability.name", self.name))
        if not isinstance(self.description, str) or not self.description.strip():
            raise misuse("Capability.description", self.description, "text that is not blank")
        if not callable(self.function):
            raise misuse("Capability.function", self.function, "a function, async or not")
        put("requires", types_of("Capability.requires", self.requires))
        put("provides", types_of("Capability.provides", self.provides))
        put("effect", self._effect())
        tries_of("Capability.retry", self.retry)
        classify = self.classify_error
        if classify is not None and (not callable(classify) or _is_async(classify)):
            wanted = "a function that is not async, of the exception and what is known of the step"
            raise misuse("Capability.classify_error", classify, wanted)
        if self.responds is None:
            put("responds", self.name.casefold() in _RESPONDERS)
        elif not isinstance(self.responds, bool):
            raise misuse("Capability.responds", self.responds, "True, False or None")

    def _effect(self) -> Effect:
        if self.effect is not None:
            try:
                return effect_of("Capability.effect", self.effect)
            except ValueError as error:
                raise UsageError(str(error)) from None
        known = getattr(self.function, TOOL_ATTRIBUTE, None)
        return known.effect if isinstance(known, Tool) else Effect.UNKNOWN

    @property
    def is_async(self) -> bool:
        """True if calling the function gives something to await."""
        return _is_async(self.function)

    @property
    def repeatable(self) -> bool:
        """True if it may be run again whatever became of the first time: its effect says so."""
        return self.effect in (Effect.READ, Effect.IDEMPOTENT)

    @property
    def tries(self) -> Preset:
        """How often it is tried, and what waits between."""
        from triage.strategies.backoff import Backoff, Preset

        if self.retry is None:
            return Backoff.CAPABILITY
        return tries_of("Capability.retry", self.retry) or Preset(1, Backoff())

    def diagnose(self, error: BaseException, context: Mapping[str, Any] | None = None) -> Diagnosis:
        """Why it failed: what its `classify_error` says, else what `triage.diagnose` does.

        context: what is known of the step, passed on. A Severity or a FailureType as an answer is put
        into the diagnosis of the rules. What raises, or answers anything else, is noted as evidence: the
        failure itself stays what it was.
        """
        from triage.classifiers import diagnose

        if self.classify_error is None:
            return diagnose(error)
        try:
            answer: Any = self.classify_error(error, dict(context or {}))
        except Exception as fault:  # noqa: BLE001 - whoever explains a failure may not replace it
            return _noting(diagnose(error), f"raised {type(fault).__name__}: {fault}")
        if isinstance(answer, Diagnosis):
            return answer if answer.classifier else replace(answer, classifier=self.name)
        found = diagnose(error)
        if isinstance(answer, Severity):
            return replace(found, severity=answer, classifier=self.name)
        if isinstance(answer, FailureType):
            return Diagnosis(
                answer, technical_details=found.technical_details, classifier=self.name
            )
        if answer is None:
            return found
        if inspect.iscoroutine(answer):
            answer.close()
        return _noting(found, f"answered {type(answer).__name__}, which is no diagnosis")


def _noting(diagnosis: Diagnosis, what: str) -> Diagnosis:
    evidence = Evidence("capability.classify_error", f"classify_error {what}"[:500])
    return replace(diagnosis, evidence=(*diagnosis.evidence, evidence))


def _is_async(function: Any) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def name_of(field: str, value: object) -> str:
    """A name that can be written in a plan and found again; UsageError naming the field otherwise."""
    if not isinstance(value, str) or not value.strip():
        raise misuse(field, value, "text that is not blank")
    if value != value.strip() or not value.isprintable() or len(value) > _LONGEST_NAME:
        wanted = f"printable text of at most {_LONGEST_NAME} characters, without spaces around it"
        raise misuse(field, value, wanted)
    return value


def types_of(field: str, value: object) -> tuple[str, ...]:
    """Names of types as a tuple; a single one may be given as text."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable):
        raise misuse(field, value, "names of types")
    found = tuple(name_of(f"{field} item", item) for item in value)
    if len(set(found)) < len(found):
        raise misuse(field, found, "names of types, each of them once")
    return found


def capability(
    name: str,
    description: str,
    *,
    requires: Iterable[str] = (),
    provides: Iterable[str] = (),
    effect: Effect | str | None = None,
    retry: Preset | int | None = None,
    classify_error: ClassifyError | None = None,
    responds: bool | None = None,
) -> Callable[[F], F]:
    """Make a function, async or not, something a plan may ask for.

    The function stays as it is; `Registry.add` finds what is said here. The arguments are those of
    `Capability`. For a bound method make the `Capability` itself. Raises UsageError for arguments that
    do not fit, and for a function that is one already.
    """

    def decorate(function: F) -> F:
        if hasattr(function, CAPABILITY_ATTRIBUTE):
            raise UsageError(f"{quoted(name)} decorates a capability; a function can be one only")
        known = Capability(
            name,
            description,
            function,
            types_of("Capability.requires", requires),
            types_of("Capability.provides", provides),
            effect,
            retry,
            classify_error,
            responds,
        )
        setattr(function, CAPABILITY_ATTRIBUTE, known)
        return function

    return decorate


def capability_of(value: object) -> Capability:
    """The capability a value is, or was decorated as; a method's is bound to its object."""
    if isinstance(value, Capability):
        return value
    known = getattr(value, CAPABILITY_ATTRIBUTE, None)
    if not isinstance(known, Capability):
        wanted = "a Capability or a function decorated with capability(…)"
        raise misuse("Registry.add()", value, wanted)
    bound = getattr(value, "__self__", None) is not None
    return replace(known, function=cast("Callable[..., Any]", value)) if bound else known
