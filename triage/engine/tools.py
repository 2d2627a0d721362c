"""Functions whose calls are recorded (`Tool`), and the recorded call that code runs in (`CurrentCall`)."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import inspect
import json
import sys
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import reduce
from operator import or_
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, get_args
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from triage.core import errors
from triage.core.failures import ErrorInfo
from triage.core.json_values import MARK, canonical, canonical_items, digest, plain, plain_noting
from triage.core.large_values import is_cut
from triage.core.observers import logger
from triage.core.redaction import redact
from triage.core.secret_shapes import HIDDEN
from triage.core.state import Call, label_of
from triage.core.steps import Step, effect_of
from triage.core.taxonomy import UNSAFE, Effect, infer_effect
from triage.strategies.ready_made import Backoff, Preset

if TYPE_CHECKING:
    from .calls import Run


# The agent function and its parameters.


_INJECTED: dict[str, Callable[[Run], Any]] = {
    "record_step": lambda run: run.record_step,
    "update_state": lambda run: run.update_state,
    "record_usage": lambda run: run.record_usage,
    "run": lambda run: run,
    "_triage_hint": lambda run: run.told.hint,
    "_triage_subgoal": lambda run: run.told.subgoal,
    "_triage_state": lambda run: run.take_state(),
    "_triage_context": lambda run: run.take_context(),
}


STREAMED = ("generator", "wrapped")
"""Values of `Function.kind` whose items are streamed as they come."""


class Function(Struct, frozen=True, eq=False, weakref=True):
    """A user's function and its parameters.

    kind: `async`, `sync`, `generator`, or `wrapped`: a plain wrapper of a generator, known as such only by
    calling it. injected: parameters that the run fills. wanted: other parameters without a default. known:
    keyword parameters for the caller; None if it takes any. of_instance: the first parameter is the
    instance or class to bind. kwargs_filled: guidance that the run passes through `**kwargs`, if there is
    any. ignores_hints: no parameter receives a hint, so the agent finds it only in `current_run()`.
    names_hint: a named parameter receives the hint.
    """

    function: Callable[..., Any]
    name: str
    kind: str
    injected: tuple[tuple[str, Callable[[Run], Any]], ...]
    wanted: frozenset[str]
    known: frozenset[str] | None
    of_instance: bool
    kwargs_filled: tuple[tuple[str, Callable[[Run], Any]], ...]
    ignores_hints: bool
    names_hint: bool

    @property
    def has_generated_name(self) -> bool:
        """Whether Python generated its name; other functions may share it, and an edit may change it."""
        if isinstance(self.function, functools.partial):
            return True
        return "<locals>" in self.name or "<lambda>" in self.name

    def check_bound(self) -> None:
        """Raise UsageError for a method called through its class, as the task would be its `self`."""
        if self.of_instance:
            raise errors.UsageError(
                f"{self.name} is a method and was called through its class; call it through an instance, "
                "or give the instance before the task"
            )

    def check(self, kwargs: Mapping[str, Any]) -> None:
        """Raise UsageError for arguments that are missing, unknown, or filled by the run."""
        self.check_bound()
        for name in kwargs:
            if name in _INJECTED and any(name == injected for injected, _ in self.injected):
                raise errors.UsageError(
                    f"{name} is filled by the run; do not give it to run() as well"
                )
            if self.known is not None and name not in self.known:
                known = ", ".join(sorted(self.known)) or "none but the task"
                raise errors.UsageError(f"{self.name} takes no parameter {name}; it takes: {known}")
        missing = self.wanted - kwargs.keys()
        if missing:
            names = ", ".join(sorted(missing))
            raise errors.UsageError(f"{self.name} needs {names}; give it as run(task, {names}=…)")


def read_function(function: Any, *, bound: bool) -> Function:
    """Read the parameters of a user's function. bound: the function is a bound method.

    Raises UsageError if the function cannot be called with a task.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if inspect.isclass(function):
        raise errors.UsageError(
            f"an agent must be a function, not the class {name}; give a method of an instance, or "
            f"triage.wrap({name}(…)) for an agent of a framework"
        )
    if not callable(function):
        raise errors.UsageError(f"an agent must be a function, not {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise errors.UsageError(f"{name} has no signature to read; wrap it in a function") from None
    except TypeError:  # a callable object that imitates a function's attributes
        signature = inspect.signature(MethodType(type(function).__call__, function))
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    leading = 2 if not bound and positional and positional[0].name in ("self", "cls") else 1
    if len(positional) < leading and not takes_any:
        raise errors.UsageError(f"{name} takes no task; its first parameter must be the task")
    if positional and positional[leading - 1].name in _INJECTED:
        raise errors.UsageError(
            f"the first parameter of {name} must be the task, not {positional[leading - 1].name}"
        )
    rest = [p for p in parameters if p not in positional[:leading]]
    for p in rest:
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise errors.UsageError(
                f"{name} takes {p.name} by position only; only the task is given so"
            )
    keywords = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    _refuse_misspelt(name, keywords)
    takes_hint = any(p.name in ("run", "_triage_hint", "_triage_context") for p in keywords)
    return Function(
        function=function,
        name=name,
        kind=_kind(function, name),
        injected=tuple((p.name, _INJECTED[p.name]) for p in keywords if p.name in _INJECTED),
        wanted=frozenset(
            p.name for p in keywords if p.default is p.empty and p.name not in _INJECTED
        ),
        # A function that takes no guidance by name gets the hint through its `**kwargs`.
        kwargs_filled=(("_triage_hint", _INJECTED["_triage_hint"]),)
        if open_ended and not takes_hint
        else (),
        known=None
        if open_ended
        else frozenset(p.name for p in keywords if p.name not in _INJECTED),
        of_instance=leading > 1,
        ignores_hints=not (takes_hint or open_ended),
        names_hint=any(p.name in ("_triage_hint", "_triage_context") for p in keywords),
    )


_DATA = {kind for data in (bool, int, float, str) for kind in (data, data.__name__)}


def _refuse_misspelt(name: str, keywords: list[inspect.Parameter]) -> None:
    """Raise UsageError for a parameter that probably misspells an injected one.

    Such a name is one edit away, has no default and no annotation of plain data. `run` is too short to
    guess.
    """
    names = {p.name for p in keywords}
    for p in keywords:
        if p.default is not p.empty or p.name in _INJECTED or p.annotation in _DATA:
            continue
        for meant in _INJECTED:
            if meant != "run" and meant not in names and _is_one_edit(p.name, meant):
                raise errors.UsageError(
                    f"{name} takes {p.name}, which no run fills; did you mean {meant}? A parameter that "
                    "run(…) is to be given needs another name, a default or the annotation of its data"
                )


def _is_one_edit(one: str, other: str) -> bool:
    """Whether the names differ by one letter inserted, deleted, replaced or swapped with the next."""
    if len(one) > len(other):
        one, other = other, one
    if one == other or len(other) - len(one) > 1:
        return False
    at = next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one)
    )
    if len(one) < len(other):
        return one[at:] == other[at + 1 :]
    swapped = one[:at] + one[at : at + 2][::-1] + one[at + 2 :]
    return one[at + 1 :] == other[at + 1 :] or swapped == other


def whole(function: Any) -> Any:
    """Unwrap `functools.partial`; return anything else unchanged."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _kind(function: Any, name: str) -> str:
    function = whole(function)
    candidates = (function, getattr(function, "__call__", None))
    if any(inspect.isasyncgenfunction(candidate) for candidate in candidates):
        return "generator"
    if any(inspect.iscoroutinefunction(candidate) for candidate in candidates):
        return "async"
    if any(inspect.isgeneratorfunction(candidate) for candidate in candidates):
        raise errors.UsageError(
            f"{name} is a sync generator; make it an async generator to stream from it"
        )
    if not inspect.isroutine(function):
        return "sync"
    # A decorator's plain wrapper usually returns the wrapped function's generator.
    behind = inspect.unwrap(function, stop=inspect.iscoroutinefunction)
    return "wrapped" if inspect.isasyncgenfunction(behind) else "sync"


def fingerprint(function: Function) -> str:
    """Return a digest of the function's code, nested functions included.

    If the code cannot be read (a callable of a compiled module), the digest is of the name alone.
    """
    target = whole(inspect.unwrap(function.function))
    target = getattr(target, "__func__", target)
    if not hasattr(target, "__code__"):  # a callable object
        target = type(target).__call__
    code = getattr(target, "__code__", None)
    found = hashlib.sha256(function.name.encode())
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        block = waiting.pop()
        found.update(block.co_code)
        found.update(repr(block.co_names).encode())
        for constant in block.co_consts:
            if isinstance(constant, CodeType):
                waiting.append(constant)
            else:
                # The order of a set differs between processes.
                items = constant if isinstance(constant, frozenset) else (constant,)
                found.update(repr(sorted(map(repr, items))).encode())
    return found.hexdigest()[:16]


# The declared result type of a tool; it restores results from JSON.


_UNREAD = object()


class Returns:
    """The declared result type of a function: its return annotation, or a given type.

    The type, read at first use, restores a value without an exact JSON form (a model, a dataclass, a tuple,
    a date) from JSON. `recorded` tries whether that works.
    """

    __slots__ = ("_adapter", "_function", "_type")

    def __init__(self, function: Callable[..., Any], declared: Any = None) -> None:
        self._function = function
        self._type: Any = _UNREAD if declared is None else declared
        self._adapter: Any = None

    @property
    def type(self) -> Any:
        """The declared type; None without one, or if only type checkers can resolve it."""
        if self._type is _UNREAD:
            self._type = _declared(self._function)
        return self._type

    def recorded(self, result: Any, data: Any) -> tuple[Any, bool]:
        """Return the JSON form of `result` to record, and whether reading it restores an equal value.

        The form is `data`, or else the declared type's own form for a round trip.
        """
        if self.type is not None and self.type is not Any:
            for written in (None, {"by_alias": False}, {"by_alias": True}):
                try:
                    form = (
                        data
                        if written is None
                        else self._adapter.dump_python(
                            result, mode="json", round_trip=True, warnings=False, **written
                        )
                    )
                    back = self.read(form)
                    if type(back) is type(result) and bool(back == result):
                        return form, True
                except Exception as error:
                    logger.debug("a result is not the declared type: %s", type(error).__name__)
        return data, False

    def read(self, data: Any) -> Any:
        """Restore a value from its JSON form. Raises ValueError, or as pydantic does, if that fails."""
        if self.type is None:
            raise ValueError("no return annotation")
        if self._adapter is None:
            self._adapter = _adapter_of(self.type)
        text = json.dumps(data)
        if MARK in text:
            return self._adapter.validate_python(_unmarked(data), **_NAMES)
        return self._adapter.validate_json(text, **_NAMES)


# The first adapter makes pydantic search the disk for plugins; do that now, as no event loop should wait
# for it.
TypeAdapter(object)


_NAMES: dict[str, bool] = (
    {"by_alias": True, "by_name": True}
    if "by_name" in inspect.signature(TypeAdapter.validate_json).parameters
    else {}  # before pydantic 2.11
)
"""Accept both: fields are recorded under their names, while people use their aliases."""


class _MsgspecAdapter:
    """Acts as a `TypeAdapter` for types of msgspec that pydantic refuses: structs, attrs classes."""

    def __init__(self, declared: Any) -> None:
        self._type = declared

    def validate_python(self, data: Any, **_: Any) -> Any:
        try:
            return msgspec.convert(data, self._type)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error

    def validate_json(self, text: str, **_: Any) -> Any:
        return self.validate_python(json.loads(text))

    def dump_python(self, value: Any, **_: Any) -> Any:
        return msgspec.to_builtins(value)


def _adapter_of(declared: Any) -> Any:
    """Make a pydantic adapter; for a union with members that are no data, of its models alone."""
    try:
        return TypeAdapter(declared)
    except PydanticUserError:
        members = [kind for kind in get_args(declared) if isinstance(kind, type)]
        models = [kind for kind in members if issubclass(kind, BaseModel)]
        if not models:
            return _MsgspecAdapter(declared)
        return TypeAdapter(reduce(or_, models))


def _declared(function: Any, of: str = "return") -> Any:
    """Return the resolved annotation of the result or of a parameter; None if it does not resolve."""
    function = whole(function)
    if not hasattr(function, "__code__"):
        # A callable object or a bound method.
        function = getattr(function, "__func__", type(function).__call__)
    try:
        found = inspect.get_annotations(function).get(of)
        if found is None:
            return None
        inner = inspect.unwrap(function)
        cells = getattr(inner, "__closure__", None) or ()
        names = inner.__code__.co_freevars if cells else ()
        local: dict[str, Any] = {
            name: cell.cell_contents for name, cell in zip(names, cells, strict=False)
        }
        holder = type("holder", (), {"__annotations__": {of: found}})
        return typing.get_type_hints(holder, getattr(inner, "__globals__", {}), local)[of]
    except Exception:
        return None


def _unmarked(data: Any) -> Any:
    """Restore values from the marks of their types in JSON. Raises ValueError for a lossy mark."""
    if isinstance(data, list):
        return [_unmarked(item) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data.get(MARK)
    if kind == "bytes":
        return base64.b64decode(data["text"], validate=True)
    if kind == "map":
        return {_unmarked(key): _unmarked(value) for key, value in data["items"]}
    if kind == "float":
        return float(data["text"])
    if kind is not None:
        raise ValueError(f"a value was lost: {kind}")
    return {key: _unmarked(value) for key, value in data.items()}


# Retries inside one call: their number, errors and pauses.


_PERMANENT = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 422, 501, 505})
"""HTTP statuses that a repeated request gets again."""
_MISTAKES = (
    errors.TriageError, TypeError, AttributeError, NameError, ImportError, AssertionError,
    NotImplementedError,
)  # fmt: skip
"""Errors of the program, which no retry cures."""


def tries_of(field: str, value: object) -> Preset | None:
    """Read an option `retries=`: None, a number of retries after `Backoff()`, or a `Preset`.

    Returns None for a single call. Raises UsageError naming the field.
    """
    if value is None:
        return None
    if isinstance(value, Backoff):
        raise errors.misuse(
            field, value, "a number of retries or a Preset", "write Preset(3, Backoff(…))"
        )
    if isinstance(value, Preset):
        errors.check_count(f"{field} attempts", value.attempts, 1, "1 never retries")
        if not isinstance(value.backoff, Backoff):
            raise errors.misuse(f"{field} backoff", value.backoff, "a Backoff")
        return value if value.retries else None
    errors.check_count(field, value, 0, "0 never retries")
    assert isinstance(value, int)
    return Preset(value + 1, Backoff()) if value else None


def pause_before(
    tries: Preset | None,
    retry: int,
    error: Exception,
    info: ErrorInfo,
    *,
    draw: float,
    left: float | None,
) -> float | None:
    """Return the seconds to wait before a retry, or None for no retry.

    There is no retry of a permanent error, after a Retry-After above the cap, or past the deadline. retry:
    its number, from 1. left: seconds until the deadline; None without one.
    """
    if tries is None or retry > tries.retries or not _may_pass(error, info):
        return None
    retry_after = _retry_after(info)
    if retry_after is not None and retry_after > tries.backoff.cap:
        return None
    pause = tries.backoff.delay(retry, draw, retry_after)
    return None if left is not None and pause >= left else pause


def _retry_after(info: ErrorInfo) -> float | None:
    """Return the wait in seconds that the error or one of its causes asks for."""
    for error in info.walk():
        hinted = None if error.hint is None else error.hint.get("retry_after_s")
        seconds: float | None = error.retry_after_s if hinted is None else hinted
        if seconds is not None:
            return seconds
    return None


def _may_pass(error: Exception, info: ErrorInfo) -> bool:
    if isinstance(error, _MISTAKES) or info.status_code in _PERMANENT:
        return False
    decisive = info.decisive
    hint = None if decisive is None else decisive.hint
    severity = None if hint is None else hint.get("severity")
    return not info.refused and severity in (None, "retriable")


class Compensator:
    """A function that undoes a call, with its retries: `tool(compensate=Compensator(…))`.

    function: as for `compensate`. retries: a number, or a `Preset` of `triage.strategies`; None tries
    once. A compensation interrupted by the end of its process always runs again, with the same
    idempotency key. Raises UsageError naming the field.
    """

    __slots__ = ("__weakref__", "function", "tries")

    def __init__(
        self, function: Callable[..., Any], *, retries: int | Preset | None = None
    ) -> None:
        if not callable(function):
            raise errors.misuse("Compensator.function", function, "a function")
        self.function = function
        self.tries = tries_of("Compensator.retries", retries)
        declare(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Compensator({name_of(self.function)}, retries={self.tries})"


class Undoing:
    """A compensator bound to its arguments."""

    __slots__ = ("_args", "_kwargs", "function", "tries")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.tries: Preset | None = None
        if isinstance(function, Compensator):
            self.tries = function.tries
            function = function.function
        self.function = function
        self._args = args
        self._kwargs = kwargs

    @property
    def bound(self) -> Callable[[], Any]:
        """The function with its arguments, as a partial, which shows whether it is async."""
        return functools.partial(self.function, *self._args, **self._kwargs)

    def __call__(self) -> Any:
        return self.bound()


MAX_SHOWN = 200
"""Maximum characters of a call's arguments shown to people."""
_MAX_KNOWN = 300


def shown(arguments: Any) -> str:
    """Render a call's arguments for people: redacted and capped."""
    text = redact(json.dumps(arguments))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def name_of(function: Any) -> str:
    """Return a function's name as shown to people."""
    if isinstance(function, Compensator):
        function = function.function
    return getattr(function, "__qualname__", None) or type(function).__name__


def module_of(function: Any) -> str | None:
    """Return the module that has a function under its name; None for closures and bound methods."""
    if isinstance(function, Compensator):
        function = function.function
    try:
        names = function.__qualname__.split(".")
        found = reduce(getattr, names, sys.modules[function.__module__])
    except (AttributeError, KeyError):
        return None
    return function.__module__ if found is function else None


_living: WeakValueDictionary[int, Any] = WeakValueDictionary()


def declare(item: Any) -> None:
    """Register a compensator, or a function that records its calls, for as long as it lives."""
    _living[id(item)] = item


def declared() -> list[Any]:
    """Return the living compensators and recorded functions, oldest first."""
    found = [reference() for reference in _living.valuerefs()]
    return [item for item in found if item is not None]


def declared_tools() -> list[Tool]:
    """Return the tools of the living recorded functions, oldest first."""
    return [
        getattr(item, TOOL_ATTRIBUTE) for item in declared() if not isinstance(item, Compensator)
    ]


class Given(Struct, frozen=True):
    """A call's arguments by name, and their digest."""

    bound: dict[str, Any]
    digest: str


class Tool:
    """A function whose calls are recorded, and its options. Made by `tool`, read by the engine.

    declared: the effect was declared. inferred: the effect was inferred from the name.
    """

    nested: ClassVar[bool] = False
    """Whether each call is an inner run."""

    kind: str
    """Kind of its calls in the journal: `model`, `judge`, `tool` or `run`."""

    editable: ClassVar[bool] = True
    """Whether a person who approves a call may edit its arguments."""

    counted: ClassVar[bool] = True
    """Whether limits and guards for tool calls apply; False for models."""

    __slots__ = (
        "_by_name", "_hidden", "_known_by", "by_position", "compensate",
        "declared", "effect", "function", "ignore", "inferred", "is_async", "key", "kind", "name",
        "returns", "signature", "timeout", "tries",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        effect: Effect | str | None = None,
        compensate: Callable[..., Any] | None = None,
        key: Callable[..., Any] | None = None,
        ignore: tuple[str, ...] = (),
        match: str = "arguments",
        timeout: float | None = None,
        retries: int | Preset | None = None,
        name: str | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise errors.UsageError(f"tool(name=…) must be text or None, not {type(name).__name__}")
        self.function = function
        self.name = str(name or getattr(function, "__name__", type(function).__name__))
        try:
            self.effect = effect_of("tool(effect=…)", Effect.UNKNOWN if effect is None else effect)
        except ValueError as error:
            raise errors.UsageError(str(error)) from None
        for option, value in (("compensate", compensate), ("key", key)):
            if value is not None and not callable(value):
                raise errors.UsageError(
                    f"tool({option}=…) must be a function, not {type(value).__name__}"
                )
        if timeout is not None:
            errors.check_number("tool(timeout=…)", timeout, "seconds", above=True)
        errors.check_word("tool(match=…)", match, ("arguments", "position"))
        if match == "position" and self.effect in UNSAFE:
            raise errors.UsageError(
                f'tool(match="position") is for calls that may be made again: say effect="read" for '
                f"{self.name}; what must not happen twice is known by its arguments"
            )
        self.declared = effect is not None
        self.inferred = False
        self._by_name: Tool | None = None
        self.by_position = match == "position"
        self.kind = "model" if self.by_position else "tool"
        self.tries = tries_of("tool(retries=…)", retries)
        self.compensate = compensate
        self.key = key
        self.timeout = timeout
        called = getattr(function, "__call__", None)
        self.is_async = any(map(inspect.iscoroutinefunction, (function, called)))
        self.signature = _signature(function, self.name)
        self.ignore = _ignored(ignore, self.name, self.signature)
        first = next(iter(self.signature.parameters), None)
        self._hidden = self.ignore | ({first} if first in ("self", "cls") else set())
        names = sorted(self.signature.parameters.keys() - self._hidden)
        # Each name with the JSON text before its value in a key.
        self._known_by = [(name, f'{"," if at else ""}"{name}":') for at, name in enumerate(names)]
        self.returns = Returns(function)

    def by_name(self) -> Tool:
        """Return the tool with the effect inferred from its name, or itself if none can be inferred."""
        if self.declared or infer_effect(self.name) is Effect.UNKNOWN:
            return self
        if self._by_name is None:
            known = copy.copy(self)
            known.effect, known.inferred = infer_effect(self.name), True
            self._by_name = known
        return self._by_name

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, defaults included. Raises TypeError if they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], salt: str) -> Given:
        """Read a call's arguments. Raises as `bind` and `digest` do."""
        bound = self.bind(args, kwargs)
        return Given(bound, self.digest(bound, salt))

    def spread(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn arguments by name into the positional and keyword arguments of a call."""
        ordered = {name: bound[name] for name in self.signature.parameters if name in bound}
        arguments = inspect.BoundArguments(self.signature, OrderedDict(ordered))
        return arguments.args, arguments.kwargs

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        """Digest the call's arguments, or the result of `key` for them."""
        if self.key is not None:
            named = named_by(self.key, bound)
            known_by = self.key(**named)
            try:
                return digest(salt, canonical(known_by, "key"))
            except errors.UsageError:
                raise errors.UsageError(
                    f"tool(key=…) of {self.name} returned a value of type {type(known_by).__name__}, "
                    "which has no exact JSON form; return text or numbers, or a list or dict of them"
                ) from None
        try:
            text = canonical_items(self._known_by, bound)
        except errors.UsageError:
            if not self.by_position:
                raise
            # A call matched by position needs no exact JSON form.
            return digest(salt, json.dumps(self.shown(bound), sort_keys=True))
        return digest(salt, text)

    def argument(self, name: str, data: Any) -> Any:
        """Restore an argument from its JSON form. Raises ValueError, or as pydantic does, if that fails."""
        declared = _declared(self.function, name)
        if declared is None and MARK in json.dumps(data):
            raise ValueError(f"the type of {name} is not declared")
        return data if declared is None else Returns(self.function, declared).read(data)

    def shown(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments as JSON for people, without `self`, `cls` and ignored ones."""
        hidden = self._hidden
        if hidden:
            bound = {name: value for name, value in bound.items() if name not in hidden}
        return plain(bound)  # type: ignore[no-any-return] # JSON of a dict

    def dumped(self, result: Any) -> tuple[Any, bool]:
        """Return a result as JSON, and whether that form is exact."""
        return plain_noting(result)

    def loaded(self, data: Any) -> Any:
        """Read back a result whose JSON form is exact."""
        return data

    def failure(self, data: Any) -> ErrorInfo | None:
        """Return the error that a result reports, to be treated as if it had been raised."""
        return None

    def step(self, step: Step) -> Step:
        """Return the step that records a call; by default `step` unchanged."""
        return step


def restored(tool: Tool, call: Call, live: dict[str, Any] | None) -> Any:
    """Restore the result of a completed call. Raises ResultLost if it cannot be read back."""
    if live is not None and call.key in live:
        kept = live[call.key]
        return tool.loaded(plain(kept)) if call.exact else kept
    if call.exact and not call.answered:
        return tool.loaded(plain(call.result))
    # A person's answer is read as the declared type if it fits.
    if call.typed or call.answered:
        try:
            return tool.loaded(tool.returns.read(call.result))
        except Exception as error:
            logger.debug("%s: its result is not the declared type: %s", tool.name, error)
    if call.exact:
        return tool.loaded(plain(call.result))
    known = str(call.result)[:_MAX_KNOWN]
    if is_cut(call.result):
        why = (
            "it was too large to keep; return where a large value is, such as a path, in its place"
        )
    elif HIDDEN in known:
        why = "it held a secret, which no store keeps"
    else:
        why = "give the tool a return annotation pydantic can validate, or return a value of JSON types"
    raise errors.ResultLost(
        f"{tool.name} completed, but its result cannot be read back here; {why}. What is known of it: "
        f"{known}",
        tool=tool.name,
        key=call.key,
    )


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    called = getattr(function, "__call__", None)
    if any(map(inspect.isgeneratorfunction, (function, called))) or any(
        map(inspect.isasyncgenfunction, (function, called))
    ):
        raise errors.UsageError(
            f"tool {name} is a generator, whose result is never complete; return a list, or record "
            "its steps by hand with record_step"
        )
    try:
        return inspect.signature(function)
    except ValueError:
        raise errors.UsageError(
            f"tool {name} has no signature to read its arguments from; wrap it in a function"
        ) from None


def _ignored(ignore: object, name: str, signature: inspect.Signature) -> frozenset[str]:
    if isinstance(ignore, str):
        raise errors.UsageError(
            f'tool(ignore=…) takes names in a tuple; write ignore=("{ignore}",)'
        )
    if not isinstance(ignore, tuple | list | frozenset | set):
        raise errors.UsageError(
            f"tool(ignore=…) takes names in a tuple, not {type(ignore).__name__}"
        )
    unknown = {str(entry) for entry in ignore} - signature.parameters.keys()
    if unknown:
        raise errors.UsageError(
            f"tool(ignore=…) names {', '.join(sorted(unknown))}, but {name} takes "
            f"{', '.join(signature.parameters) or 'nothing'}"
        )
    return frozenset(ignore)


def named_by(
    function: Callable[..., Any], bound: Mapping[str, Any], *, after: int = 0
) -> dict[str, Any]:
    """Select the arguments of a call that a function has parameters for; all if it takes any name.

    after: number of leading parameters that are filled otherwise.
    """
    if isinstance(function, Compensator):
        function = function.function
    parameters = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) and not after:
        return dict(bound)
    wanted = {parameter.name for parameter in parameters[after:]}
    return {name: value for name, value in bound.items() if name in wanted}


class CurrentCall:
    """The recorded call around a running tool.

    kind: as of `Tool`. on_asked: called when the tool first reads its key.
    """

    __slots__ = ("_key", "asked", "kind", "on_asked", "run_id", "tool")

    def __init__(self, tool: str, key: str, run_id: str, kind: str = "tool") -> None:
        self.tool = tool
        self.kind = kind
        self.run_id = run_id
        self._key = key
        self.asked = False
        self.on_asked: Callable[[], object] | None = None

    @property
    def label(self) -> str:
        """The call's name in the steps made inside it; reading it does not count as reading the key."""
        return label_of(self.tool, self._key)

    @property
    def idempotency_key(self) -> str:
        """The idempotency key: 32 hexadecimal digits, the same in every attempt and process of the run.

        A call repeated after it was undone has a new key. Send the key to a service that deduplicates by
        it: a tool that has read its key may run again after a failure that leaves its outcome open.
        """
        if not self.asked:
            self.asked = True
            if self.on_asked is not None:
                self.on_asked()
        return self._key


calling: ContextVar[CurrentCall | None] = ContextVar("triage_call", default=None)


def current_call() -> CurrentCall:
    """Return the recorded call around the calling code. Raises UsageError outside of one."""
    call = calling.get()
    if call is None:
        raise errors.UsageError(
            "current_call() was called outside of a recorded call; use it inside a @triage.tool "
            "function, or one given to run.call, while an agent runs"
        )
    return call


TOOL_ATTRIBUTE = "__triage_tool__"
AGENT_ATTRIBUTE = "__triage_agent__"
"""True on agents, for code that must not import them."""


_undeclared = functools.lru_cache(maxsize=1024)(Tool)


class Nested(Tool):
    """An agent as a tool: each call is an inner run.

    It is idempotent, as the inner run has its own journal and continues when it is started again.
    """

    __slots__ = ()
    nested = True
    editable = False

    def __init__(self, name: str, returns: Returns) -> None:
        super().__init__(_any, effect=Effect.IDEMPOTENT, name=name)
        self.kind = "run"
        self.returns = returns

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task and the arguments as given."""
        (task,) = args
        return {"task": task, **kwargs}

    def shown(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return all arguments as JSON; their names may be any text."""
        return plain(bound)  # type: ignore[no-any-return] # JSON of a dict

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        """Digest the task and the arguments; an argument without an exact JSON form counts by name.

        Raises UsageError if the task has no exact JSON form.
        """
        parts = [f'"task":{canonical(bound["task"], "task")}']
        for name, value in bound.items():
            if name != "task":
                parts.append(_named(name, value))
        return digest(salt, "run,{}".format(",".join(sorted(parts))))


def _any(task: Any, **arguments: Any) -> None:
    """Give an agent as a tool its signature; never called."""


def _named(name: str, value: Any) -> str:
    try:
        return f'"{name}":{canonical(value, name)}'
    except errors.UsageError:
        return f'"{name}"'


def tool_of(function: Callable[..., Any]) -> tuple[Tool, tuple[Any, ...]]:
    """Return the tool of a function given to `run.call`, and the object it is bound to, if any.

    A function that is no tool gets one with the effect `unknown`.
    """
    owner: tuple[Any, ...] = ()
    bound_to = getattr(function, "__self__", None)
    if bound_to is not None:
        unbound = getattr(function, "__func__", None)
        if unbound is not None:
            owner, function = (bound_to,), unbound
    known = getattr(function, TOOL_ATTRIBUTE, None)
    if isinstance(known, Tool):
        return known, owner
    if not callable(function):
        raise errors.UsageError(f"run.call() takes a function, not {type(function).__name__}")
    try:
        return _undeclared(function), owner
    except TypeError:  # an unhashable callable
        return Tool(function), owner
