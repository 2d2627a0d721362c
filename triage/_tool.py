"""What is known of a function whose calls are recorded, and the call a tool runs in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from ._options import check_number, check_word, misuse
from ._plain import NEGATIVE, NUMBERS, SMALL, plain, plain_noting
from ._results import Returns
from ._serde import canonical, canonical_items, digest
from ._tries import tries_of
from .errors import UsageError
from .steps import Row, effect_of
from .taxonomy import UNSAFE, Effect

if TYPE_CHECKING:
    from .strategies.backoff import Preset


class Compensator:
    """A function that undoes a call, and how often it is tried: `tool(compensate=Compensator(…))`.

    function: as for `compensate`. retries: a number, or a `Preset` of `triage.strategies`; None tries
    once. To give retries says that the function may be repeated. Raises UsageError naming the field.
    """

    __slots__ = ("function", "tries")

    def __init__(
        self, function: Callable[..., Any], *, retries: int | Preset | None = None
    ) -> None:
        if not callable(function):
            raise misuse("Compensator.function", function, "a function")
        self.function = function
        self.tries = tries_of("Compensator.retries", retries)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Compensator({name_of(self.function)}, retries={self.tries})"


class Undoing:
    """A compensator with what it is to be called with."""

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

    def __call__(self) -> Any:
        return self.function(*self._args, **self._kwargs)


def name_of(function: Any) -> str:
    """A function's name for people."""
    if isinstance(function, Compensator):
        function = function.function
    return getattr(function, "__qualname__", None) or type(function).__name__


class Tool:
    """What is known of a function whose calls are recorded. Made by `tool`, read by the engine."""

    nested: ClassVar[bool] = False
    """Whether each call is a run of its own, inside the one that makes it."""

    counted: ClassVar[bool] = True
    """Whether its calls are calls of a tool: limits and guards leave others alone, as those of a model."""

    __slots__ = (
        "_defaults", "_hidden", "_known_by", "_names", "by_position", "compensate", "effect", "function",
        "ignore", "is_async", "key", "name", "returns", "signature", "timeout", "tries",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        effect: Effect | str = Effect.UNKNOWN,
        compensate: Callable[..., Any] | None = None,
        key: Callable[..., Any] | None = None,
        ignore: tuple[str, ...] = (),
        match: str = "arguments",
        timeout: float | None = None,
        retries: int | Preset | None = None,
        name: str | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise UsageError(f"tool(name=…) must be text or None, not {type(name).__name__}")
        self.function = function
        self.name = str(name or getattr(function, "__name__", type(function).__name__))
        try:
            self.effect = effect_of("tool(effect=…)", effect)
        except ValueError as error:
            raise UsageError(str(error)) from None
        for option, value in (("compensate", compensate), ("key", key)):
            if value is not None and not callable(value):
                raise UsageError(f"tool({option}=…) must be a function, not {type(value).__name__}")
        if timeout is not None:
            check_number("tool(timeout=…)", timeout, "seconds", above=True)
        check_word("tool(match=…)", match, ("arguments", "position"))
        if match == "position" and self.effect in UNSAFE:
            raise UsageError(
                f'tool(match="position") is for calls that may be made again: say effect="read" for '
                f"{self.name}; what must not happen twice is known by its arguments"
            )
        self.by_position = match == "position"
        self.tries = tries_of("tool(retries=…)", retries)
        self.compensate = compensate
        self.key = key
        self.timeout = timeout
        self.is_async = _is_async(function)
        self.signature = _signature(function, self.name)
        self.ignore = _ignored(ignore, self.name, self.signature)
        self._hidden = _hidden(self.signature, self.ignore)
        names = sorted(self.signature.parameters.keys() - self._hidden)
        # Each with what stands before it in a key's text.
        self._known_by = [(name, f'{"," if at else ""}"{name}":') for at, name in enumerate(names)]
        self._names = _plain_names(self.signature)
        given = ((name, each.default) for name, each in self.signature.parameters.items())
        self._defaults = {
            name: value for name, value in given if value is not inspect.Parameter.empty
        }
        self.returns = Returns(function)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name, defaults filled in. TypeError if they do not fit."""
        names = self._names
        if names is not None and len(args) <= len(names):
            # As most calls are, and the general way is felt.
            given: dict[str, Any] = dict(zip(names, args, strict=False))
            missing = len(names) - len(args) - len(kwargs)
            try:
                for name in names[len(args) :]:
                    if not missing or name in kwargs:
                        given[name] = kwargs[name]
                    else:
                        given[name] = self._defaults[name]
                        missing -= 1
            except KeyError:
                missing = -1
            if not missing:
                return given
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        """The digest of the call's arguments, or of what `key` says of them."""
        if self.key is not None:
            named = named_by(self.key, bound)
            return digest(salt, canonical(self.key(**named), "the result of key"))
        try:
            text = canonical_items(self._known_by, bound)
        except UsageError:
            if not self.by_position:
                raise
            # Known by its position, it needs no exact form.
            import json

            return digest(salt, json.dumps(self.shown(bound), sort_keys=True))
        return digest(salt, text)

    def shown(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as JSON, for people: without `self`, `cls` and those to ignore."""
        hidden = self._hidden
        if hidden:
            bound = {name: value for name, value in bound.items() if name not in hidden}
        for value in bound.values():
            kind = type(value)
            if kind is str or value is None or (kind in NUMBERS and NEGATIVE < value < SMALL):
                continue
            return plain(bound)  # type: ignore[no-any-return] # JSON of a dict
        # As most are: JSON as it stands, in a dict of the call's own, which nobody changes.
        return bound

    def dumped(self, result: Any) -> tuple[Any, bool]:
        """A result as JSON of its own, and whether that says all of it."""
        return plain_noting(result)

    def loaded(self, data: Any) -> Any:
        """The result of which JSON says all."""
        return data

    def fails(self, data: Any) -> bool:  # noqa: ARG002 - for those who can tell
        """Whether a result says that the call has failed, so that it is made again, not reused."""
        return False

    def row(self, row: Row) -> Row:
        """The step of one of its calls, as the journal is to have it. The metadata are the call's own."""
        return row


def _hidden(signature: inspect.Signature, ignore: frozenset[str]) -> frozenset[str]:
    """The parameters that a call is not known by."""
    first = next(iter(signature.parameters), None)
    return ignore | {first} if first in ("self", "cls") else ignore


def _plain_names(signature: inspect.Signature) -> tuple[str, ...] | None:
    """The parameters in order, where each may be given by place or by name; None otherwise."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return tuple(signature.parameters) if kinds <= {both} else None


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    )


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    called = getattr(function, "__call__", None)  # noqa: B004 - an object that is called
    if any(map(inspect.isgeneratorfunction, (function, called))) or any(
        map(inspect.isasyncgenfunction, (function, called))
    ):
        raise UsageError(
            f"tool {name} is a generator, whose result is never complete; return a list, or record "
            "its steps by hand with record_step"
        )
    try:
        return inspect.signature(function)
    except ValueError:
        raise UsageError(
            f"tool {name} has no signature to read its arguments from; wrap it in a function"
        ) from None


def _ignored(ignore: object, name: str, signature: inspect.Signature) -> frozenset[str]:
    if isinstance(ignore, str):
        raise UsageError(f'tool(ignore=…) takes names in a tuple; write ignore=("{ignore}",)')
    if not isinstance(ignore, tuple | list | frozenset | set):
        raise UsageError(f"tool(ignore=…) takes names in a tuple, not {type(ignore).__name__}")
    unknown = {str(entry) for entry in ignore} - signature.parameters.keys()
    if unknown:
        raise UsageError(
            f"tool(ignore=…) names {', '.join(sorted(unknown))}, but {name} takes "
            f"{', '.join(signature.parameters) or 'nothing'}"
        )
    return frozenset(ignore)


def named_by(
    function: Callable[..., Any], bound: Mapping[str, Any], *, after: int = 0
) -> dict[str, Any]:
    """Those of a call's arguments that a function names; all where it takes any.

    after: so many of its first parameters are filled otherwise.
    """
    if isinstance(function, Compensator):
        function = function.function
    parameters = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) and not after:
        return dict(bound)
    wanted = {parameter.name for parameter in parameters[after:]}
    return {name: value for name, value in bound.items() if name in wanted}


class CurrentCall:
    """The recorded call a tool runs in. on_asked: called when the tool first takes its key.

    label: how steps name it that are part of it, by its tool and the beginning of its key.
    """

    __slots__ = ("_key", "asked", "on_asked", "run_id", "tool")

    def __init__(self, tool: str, key: str, run_id: str) -> None:
        self.tool = tool
        self.run_id = run_id
        self._key = key
        self.asked = False
        self.on_asked: Callable[[], object] | None = None

    @property
    def label(self) -> str:
        """Names it in the steps of what is done inside; the key does not count as taken."""
        return f"{self.tool} {self._key[:8]}"

    @property
    def idempotency_key(self) -> str:
        """32 hexadecimal digits, the same for this call in every attempt and process of the run.

        Give it to a service that knows such keys: a tool that has taken it may be run again after a
        failure that leaves open whether it happened.
        """
        if not self.asked:
            self.asked = True
            if self.on_asked is not None:
                self.on_asked()
        return self._key


calling: ContextVar[CurrentCall | None] = ContextVar("triage_call", default=None)


def current_call() -> CurrentCall:
    """The recorded call the calling code runs in. Raises UsageError outside of any."""
    call = calling.get()
    if call is None:
        raise UsageError(
            "current_call() was called outside of a recorded call; use it inside a @triage.tool "
            "function, or one given to run.call, while an agent runs"
        )
    return call


TOOL_ATTRIBUTE = "__triage_tool__"
AGENT_ATTRIBUTE = "__triage_agent__"
"""True on agents, by which code that imports nothing of ours knows them."""


@functools.lru_cache(maxsize=1024)
def _undeclared(function: Callable[..., Any]) -> Tool:
    return Tool(function)


class Nested(Tool):
    """An agent as a tool: each of its calls is a run inside the run that makes it.

    Idempotent, as such a run has a journal of its own: started again, it is gone on with.
    """

    __slots__ = ()
    nested = True

    def __init__(self, name: str, returns: Returns) -> None:
        super().__init__(_any, effect=Effect.IDEMPOTENT, name=name)
        self.returns = returns

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The task and the arguments that were given."""
        (task,) = args
        return {"task": task, **kwargs}

    def shown(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """All of them. Their names may be of any kind of text."""
        return plain(bound)  # type: ignore[no-any-return] # JSON of a dict

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        """The digest of the task and the arguments; of one without an exact form, its name alone.

        Raises UsageError where it is the task that has none.
        """
        parts = [f'"task":{canonical(bound["task"], "task")}']
        for name, value in bound.items():
            if name != "task":
                parts.append(_named(name, value))
        return digest(salt, "run,{}".format(",".join(sorted(parts))))


def _any(task: Any, **arguments: Any) -> None:
    """What an agent is called with; it is never called itself."""


def _named(name: str, value: Any) -> str:
    try:
        return f'"{name}":{canonical(value, name)}'
    except UsageError:
        return f'"{name}"'


def tool_of(function: Callable[..., Any]) -> tuple[Tool, tuple[Any, ...]]:
    """What is known of a function given to `run.call`, and the object it is bound to, if any.

    A function that is no tool has the effect `unknown`.
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
        raise UsageError(f"run.call() takes a function, not {type(function).__name__}")
    try:
        return _undeclared(function), owner
    except TypeError:  # an unhashable callable
        return Tool(function), owner
