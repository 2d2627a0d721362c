"""What a step of a plan can do: a named function, what it needs and what it produces."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from triage.classifiers.rules import diagnose
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.errors import UsageError, closest, misuse
from triage.core.failures import ErrorInfo
from triage.core.steps import effect_of
from triage.core.taxonomy import DEFAULT_LEVEL, Effect, FailureType, Severity
from triage.engine.tools import TOOL_ATTRIBUTE, Tool, tool_of, tries_of
from triage.strategies.ready_made import Backoff, Preset

from .plans import ExecutionPlan, PlannedStep, name_of, quoted, suggested

CAPABILITY_ATTRIBUTE = "__triage_capability__"
_RESPONDERS = ("respond", "clarify")

F = TypeVar("F", bound=Callable[..., Any])
ClassifyError: TypeAlias = Callable[
    [BaseException, Mapping[str, Any]], Diagnosis | FailureType | Severity | None
]
"""Explains a failure, given the exception and the facts of the step; None leaves it to the rules."""


@dataclass(frozen=True)
class Capability:
    """A function a plan may use, and what planner and validator must know about it.

    name: up to 100 characters; case does not count. description: for the planner. function: async or
    not. requires: types of the results it must be given. provides: types of the results it may produce;
    empty is not checked. effect: `read`, `idempotent`, `once` or `unknown`; None takes that of a
    `triage.tool`, else `unknown`. retry: a number of retries or a `Preset`; None is `Backoff.CAPABILITY`.
    classify_error: explains a failure. responds: whether it answers the user and so ends a plan; None:
    capabilities named respond and clarify do.

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
        if classify is not None and (not callable(classify) or is_async(classify)):
            wanted = "a function that is not async, of the exception and what is known of the step"
            raise misuse("Capability.classify_error", classify, wanted)
        if self.responds is None:
            put("responds", self.name.casefold() in _RESPONDERS)
        elif not isinstance(self.responds, bool):
            raise misuse("Capability.responds", self.responds, "True, False or None")

    def _effect(self) -> Effect:
        known = getattr(self.function, TOOL_ATTRIBUTE, None)
        own = known.effect if isinstance(known, Tool) else None
        if self.effect is None:
            return own or Effect.UNKNOWN
        try:
            given = effect_of("Capability.effect", self.effect)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if own is not None and given is not own:
            remedy = f"its triage.tool has the effect {own}; change it there"
            raise misuse("Capability.effect", self.effect, "None for a triage.tool", remedy)
        return given

    @property
    def is_async(self) -> bool:
        """Whether the function is async."""
        return is_async(self.function)

    @property
    def repeatable(self) -> bool:
        """Whether its effect allows running it again whatever happened the first time."""
        return self.effect in (Effect.READ, Effect.IDEMPOTENT)

    @property
    def tries(self) -> Preset:
        """How often it is tried, and the waits in between."""
        if self.retry is None:
            return Backoff.CAPABILITY
        return tries_of("Capability.retry", self.retry) or Preset(1, Backoff())

    def diagnose(
        self,
        error: BaseException,
        context: Mapping[str, Any] | None = None,
        *,
        info: ErrorInfo | None = None,
    ) -> Diagnosis:
        """Diagnose a failure by its `classify_error`, else by the rules.

        context: facts of the step, passed on. info: what `capture` made of the error; None captures it
        here. A Severity or a FailureType as an answer goes into the diagnosis of the rules. A
        `classify_error` that raises, or answers anything else, is noted as evidence and does not change
        the diagnosis. An unknown failure is CRITICAL: neither another plan nor another selection would
        mend it.
        """
        found = diagnosed(error if info is None else info, self.name)
        if self.classify_error is None:
            return found
        try:
            answer: Any = self.classify_error(error, dict(context or {}))
        except Exception as fault:  # it must not hide the failure
            return _noting(found, f"raised {type(fault).__name__}: {fault}")
        if isinstance(answer, Diagnosis):
            return (
                answer
                if answer.classifier
                else msgspec.structs.replace(answer, classifier=self.name)
            )
        if isinstance(answer, Severity):
            return msgspec.structs.replace(found, severity=answer, classifier=self.name)
        if isinstance(answer, FailureType):
            told = found.technical_details
            named = Diagnosis(answer, technical_details=told, classifier=self.name)
            return _critical_if_unknown(named, self.name)
        if answer is None:
            return found
        if inspect.iscoroutine(answer):
            answer.close()
        return _noting(found, f"answered {type(answer).__name__}, which is no diagnosis")


def diagnosed(error: BaseException | ErrorInfo, name: str) -> Diagnosis:
    """Diagnose an error by the rules; an unknown one is CRITICAL. name: of what failed."""
    return _critical_if_unknown(diagnose(error), name)


def _critical_if_unknown(found: Diagnosis, name: str) -> Diagnosis:
    unknown = found.failure_type is FailureType.UNKNOWN
    if not unknown or found.severity is not Severity.RECLASSIFICATION:
        return found
    return msgspec.structs.replace(
        found,
        severity=Severity.CRITICAL,
        level=DEFAULT_LEVEL[Severity.CRITICAL],
        user_message=f"Something went wrong in {name} that nobody expected.",
        suggestions=found.suggestions
        or (f"Look at what {name} logged.", "Ask whoever looks after it."),
    )


def _noting(diagnosis: Diagnosis, what: str) -> Diagnosis:
    evidence = Evidence("capability.classify_error", f"classify_error {what}"[:500])
    return msgspec.structs.replace(diagnosis, evidence=(*diagnosis.evidence, evidence))


def is_async(function: Any) -> bool:
    """Whether this is an async function, or an object with an async `__call__`."""
    return any(map(inspect.iscoroutinefunction, (function, function.__call__)))


def types_of(field: str, value: object) -> tuple[str, ...]:
    """Names of types as a tuple. A single name may be given as text."""
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
    """Declare a function, async or not, as a `Capability`, whose arguments these are.

    The function itself does not change; `Registry.add` reads the declaration. For a bound method make a
    `Capability` yourself. Raises UsageError for invalid arguments and for a function that is one already.
    """

    def decorate(function: F) -> F:
        if hasattr(function, CAPABILITY_ATTRIBUTE):
            raise UsageError(f"{quoted(name)} decorates a capability; a function can be one only")
        known = Capability(
            name=name,
            description=description,
            function=function,
            requires=types_of("Capability.requires", requires),
            provides=types_of("Capability.provides", provides),
            effect=effect,
            retry=retry,
            classify_error=classify_error,
            responds=responds,
        )
        setattr(function, CAPABILITY_ATTRIBUTE, known)
        return function

    return decorate


def capability_of(value: object) -> Capability:
    """The capability that a value is or was declared as, bound to its object for a method."""
    if isinstance(value, Capability):
        return value
    known = getattr(value, CAPABILITY_ATTRIBUTE, None)
    if not isinstance(known, Capability):
        wanted = "a Capability or a function decorated with capability(…)"
        raise misuse("Registry.add()", value, wanted)
    bound = getattr(value, "__self__", None) is not None
    return replace(known, function=cast("Callable[..., Any]", value)) if bound else known


# What a capability's function is called with: the plan's parameters and results of earlier steps.


FILLED = ("task", "step", "results")
"""Parameters the run fills if a function names them."""


class Takes(NamedTuple):
    """The parameters of a function. required: those without a default. open: whether it has `**kwargs`.

    told: name to annotation and default, for a planner. filled: those the run fills.
    """

    names: frozenset[str]
    required: frozenset[str]
    open: bool
    told: Mapping[str, str]
    filled: tuple[str, ...]


def takes(function: Callable[..., Any]) -> Takes:
    """The parameters a function takes by name."""
    tool, owner = tool_of(function)
    return _takes(tool.function, len(owner))


@lru_cache(maxsize=1024)
def _takes(function: Callable[..., Any], bound: int) -> Takes:
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    told = {p.name: _told(p) for p in named}
    required = (p.name for p in named if p.default is p.empty and p.name not in FILLED)
    return Takes(
        names=frozenset(told),
        required=frozenset(required),
        open=any(p.kind is p.VAR_KEYWORD for p in parameters),
        told={name: text for name, text in told.items() if name not in FILLED},
        filled=tuple(name for name in FILLED if name in told),
    )


def _told(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    if kind is parameter.empty:
        text = "any"
    elif isinstance(kind, str):
        text = kind
    else:
        text = kind.__name__ if isinstance(kind, type) else str(kind)
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"[:200]


def place_of(kind: str, key: str, known: Takes) -> str | None:
    """The parameter for an input: its type in lower case, else its key unless the run fills that.

    None if it takes neither.
    """
    name = kind.lower()
    if name in known.names:
        return name
    return key if (key in known.names or known.open) and key not in known.filled else None


def misfits(step: PlannedStep, known: Takes) -> tuple[list[str], list[str]]:
    """The parameters of a step that its function does not take, and those it lacks."""
    names = frozenset(step.parameters)
    given = names.union(place_of(kind, key, known) or "" for kind, key in step.inputs)
    unknown = [] if known.open else sorted(names - known.names)
    return unknown, sorted(known.required - given)


def arguments(
    step: PlannedStep, known: Takes, results: Mapping[str, Any], task: object
) -> dict[str, Any]:
    """The arguments of a call. results: of the step's inputs, by key.

    An input takes precedence over what the run fills, and that over a parameter of the same name. Several
    inputs of one type form a list.
    """
    filled = {"task": task, "step": step, "results": dict(results)}
    given = step.given | {name: filled[name] for name in known.filled}
    if step.inputs:
        counted: dict[str, list[Any]] = {}
        for kind, key in step.inputs:
            place = place_of(kind, key, known)
            if place is not None:
                counted.setdefault(place, []).append(results[key])
        for place, values in counted.items():
            given[place] = values[0] if len(values) == 1 else values
    return given


def tool_for(function: Callable[..., Any], name: str, effect: Any) -> tuple[Tool, tuple[Any, ...]]:
    """The tool that records a capability's calls, and the object its function is bound to, if any."""
    if hasattr(function, TOOL_ATTRIBUTE):
        return tool_of(function)
    known = takes(function)
    ignored = tuple(name for name in ("task", "step") if name in known.names)
    return Tool(function, effect=effect, name=name, ignore=ignored), ()


def by_origin(tool: Tool, origins: Mapping[str, str]) -> Tool:
    """The same tool, with these arguments identified by their origin instead of their value.

    origins: name of an argument to the key of the call that produced it.
    """

    def key(**bound: Any) -> dict[str, Any]:
        kept = {name: value for name, value in bound.items() if name not in tool.ignore}
        return {**kept, **{name: {"result of": key} for name, key in origins.items()}}

    return Tool(
        tool.function,
        effect=tool.effect if tool.declared else None,
        name=tool.name,
        ignore=tuple(tool.ignore),
        compensate=tool.compensate,
        timeout=tool.timeout,
        key=key,
    )


# The capabilities of one orchestrator.


class Registry:
    """Capabilities by name; the case of a name does not count.

    capabilities: to add at once. Raises UsageError as `add` does.
    """

    def __init__(self, capabilities: Iterable[Capability | Callable[..., Any]] = ()) -> None:
        self._known: dict[str, Capability] = {}
        self.add(*capabilities)

    def add(self, *capabilities: Capability | Callable[..., Any]) -> None:
        """Add capabilities, or functions declared as such; all of them or none.

        Raises UsageError for anything else and for a name that is taken, whatever its case.
        """
        known = dict(self._known)
        for given in capabilities:
            found = capability_of(given)
            before = known.get(found.name.casefold())
            if before is not None:
                other = "" if before.name == found.name else f", as {quoted(before.name)}"
                raise UsageError(
                    f"the capability {quoted(found.name)} is registered already{other}; give one of "
                    "them another name"
                )
            known[found.name.casefold()] = found
        self._known = known

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of registration."""
        return tuple(known.name for known in self)

    def __iter__(self) -> Iterator[Capability]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __repr__(self) -> str:
        return f"Registry({', '.join(self.names)})"

    def get(self, name: str) -> Capability | None:
        """The capability of this name, ignoring case and surrounding spaces; None if there is none."""
        return self._known.get(name.strip().casefold())

    def nearest(self, name: str) -> str | None:
        """The registered name most similar to this one; None if none is close."""
        return closest(name, self.names)

    def subset(self, names: Iterable[str], *, providers: bool = False) -> Registry:
        """A registry of these capabilities and all that respond, in the order of registration.

        providers: include the capabilities that provide what those require, transitively. Raises
        UsageError naming an unknown name and the nearest known one.
        """
        wanted: dict[str, Capability] = {}
        for name in [names] if isinstance(names, str) else names:
            found = self.get(name) if isinstance(name, str) else None
            if found is None:
                near = self.nearest(name) if isinstance(name, str) else None
                raise UsageError(f"there is no capability {quoted(name)}{suggested(near)}")
            wanted[found.name] = found
        wanted |= {known.name: known for known in self if known.responds}
        queue = list(wanted.values()) if providers else []
        while queue:
            needed = {kind for known in queue for kind in known.requires}
            queue = [known for kind in needed for known in self.providers(kind)]
            queue = [known for known in queue if known.name not in wanted]
            wanted |= {known.name: known for known in queue}
        return Registry(known for known in self if known.name in wanted)

    def providers(self, kind: str) -> tuple[Capability, ...]:
        """The capabilities that provide results of this type."""
        return tuple(known for known in self if kind in known.provides)

    @property
    def responder(self) -> Capability | None:
        """The capability appended to a plan without a response: `respond`, else the first that responds."""
        named = self.get("respond")
        if named is not None and named.responds:
            return named
        return next((known for known in self if known.responds), None)

    def manifest(self) -> list[dict[str, Any]]:
        """What a planner or a selector is told about each capability, as JSON values."""
        return [
            {
                "name": known.name,
                "description": known.description,
                "requires": list(known.requires),
                "provides": list(known.provides),
                "effect": str(known.effect),
                **_parameters(known),
                **({"ends_the_plan": True} if known.responds else {}),
            }
            for known in self
        ]


def _parameters(known: Capability) -> dict[str, dict[str, str]]:
    """The parameters a plan must fill, inputs excluded; empty if the function takes any."""
    found = takes(known.function)
    inputs = {kind.lower() for kind in known.requires}
    told = {name: text for name, text in found.told.items() if name not in inputs}
    return {} if found.open else {"parameters": told}


def output_of(step: PlannedStep | None, found: Capability | None) -> str | None:
    """The type of a step's result: as planned, else the only one its capability provides, else None."""
    if step is not None and step.expected_output is not None:
        return step.expected_output
    provided = () if found is None else found.provides
    return provided[0] if len(provided) == 1 else None


# What planners and selectors are given, and how they are called.


class PlanRequest(NamedTuple):
    """What a planner is given.

    task: as given to the run. capabilities: those a plan may use, from `Registry.manifest`. results:
    available results, key to type. feedback: what must not be repeated, what is done, and what was wrong
    before; empty the first time. version: of the plan to be made, from 1. steps: the most it may have.
    background: as given to the run. entry: how much the run has entered so far; it tells requests apart,
    and is the same in a process that recovers the run.
    """

    task: Any
    capabilities: list[dict[str, Any]]
    results: dict[str, str | None]
    feedback: str = ""
    version: int = 1
    steps: int = 50
    background: Any = None
    entry: int = 0


class SelectionRequest(NamedTuple):
    """What a selector is given.

    task: as given to the run. capabilities: all of them, from `Registry.manifest`. feedback: what failed
    before; empty the first time. selection: its number, from 1. background: as given to the run.
    """

    task: Any
    capabilities: list[dict[str, Any]]
    feedback: str = ""
    selection: int = 1
    background: Any = None


Planner: TypeAlias = Callable[[PlanRequest], Any | Awaitable[Any]]
"""Makes a plan: an `ExecutionPlan`, its JSON object, or the text of one. A sync one runs in a thread."""
Selector: TypeAlias = Callable[[SelectionRequest], Iterable[str] | Awaitable[Iterable[str]]]
"""Chooses the capabilities a plan may use, by name. A sync one runs in a thread."""


def asked(field: str, function: Any, name: str) -> Tool:
    """Wrap a planner, selector or judge as a recorded call. Raises UsageError for anything else.

    Calls are matched by position, so that a task needs no exact JSON form.
    """
    if isinstance(function, type) or not callable(function):
        raise misuse(field, function, "a function of the request, async or not")
    answering: Callable[[Any], Any] = function

    async def ask(request: Any) -> Any:
        return as_json(await answering(request))

    def ask_in_a_thread(request: Any) -> Any:
        answer = answering(request)
        return Later(answer, as_json) if inspect.isawaitable(answer) else as_json(answer)

    chosen = ask if is_async(function) else ask_in_a_thread
    return Tool(chosen, effect=Effect.READ, match="position", name=name)


class Later:
    """An awaitable from a sync function, converted when awaited. Trio takes no coroutine from a thread."""

    def __init__(self, answer: Awaitable[Any], form: Callable[[Any], Any]) -> None:
        self._answer = answer
        self._form = form

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._form((yield from self._answer.__await__()))


def as_json(answer: Any) -> Any:
    """An answer as JSON values where it has such a form, so that another process can read it."""
    if isinstance(answer, ExecutionPlan):
        return answer.to_json()
    dump = getattr(answer, "model_dump", None)
    if dump is not None and not isinstance(answer, type):
        return dump()
    if isinstance(answer, set | frozenset | tuple):
        return sorted(answer, key=str) if isinstance(answer, set | frozenset) else list(answer)
    return answer
