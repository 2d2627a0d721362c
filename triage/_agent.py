"""`Agent`: any agent function, wrapped so that its failures are diagnosed and recovered."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from ._function import read_function
from ._given import Given
from .errors import UsageError

if TYPE_CHECKING:
    from ._env import Environment
    from ._function import Function
    from ._loop import Restarted
    from ._reopen import Recovered
    from ._session import Config
    from .answers import Reply
    from .checks import Checks, Durability
    from .classifiers.base import Classifier
    from .events import Event
    from .limits import Limits
    from .observers import Observer
    from .policy import FailurePolicy
    from .stores.base import Store

T = TypeVar("T")
R = TypeVar("R")
_UNSET: Any = object()


@functools.cache
def _start() -> Callable[
    [Config, Function, Any, dict[str, Any], str | None], Coroutine[Any, Any, Any]
]:
    """How a run begins, imported with the first one: to make an agent needs none of it."""
    from ._start import start

    return start


class _Completed:
    """The options of an agent, completed when they are first used; an attribute of its own from then on."""

    def __get__(self, agent: Agent[Any] | None, owner: type) -> Any:
        if agent is None:
            return self
        made = vars(agent)["_config"] = agent._given.config()  # noqa: SLF001 - part of it
        return made


class Options(TypedDict, total=False):
    """The options of an agent beside its policy and its result type; see `Agent`."""

    classifier: Classifier | None
    limits: Limits | None
    store: Store | str | None
    checks: Checks | None
    durability: Durability | None
    observers: Iterable[Observer]
    name: str | None
    verify: Callable[[Any], Any] | None
    environment: Environment | None


class Agent(Generic[T]):
    """Any agent function with diagnosis and recovery around it.

    fn: takes the task first; async, sync (runs in a thread) or an async generator. It is given only
    those of these parameters that it names: `record_step`, `update_state`, `record_usage`, `run`,
    `_triage_hint`, `_triage_subgoal`, `_triage_state`, `_triage_context`.
    policy: what to do about a failure; None: `FailurePolicy.recommended()`. classifier: says why it
    failed; None: `RulesClassifier()`. limits: None: `Limits()`, 10 attempts and nothing else. store:
    where journals are kept; None: this process' memory. checks: what a result must satisfy, of which
    `verify` and `result_type` are short forms. durability: None: `Durability()`. observers: called
    with each event. name: None: the function's. environment: clock, ids, sleep and chance; None: the
    machine's.

    An agent is callable (`await agent(task)` is `run`) and may decorate methods. One agent serves any
    number of concurrent runs. Raises UsageError for a function that cannot be called so, and for
    arguments of the wrong type.
    """

    __triage_agent__ = True
    _config: Config = cast("Any", _Completed())

    @overload
    def __init__(
        self: Agent[R],
        fn: Callable[..., Any],
        policy: FailurePolicy | None = None,
        *,
        result_type: type[R],
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[R],
        fn: Callable[..., Coroutine[Any, Any, R]],
        policy: FailurePolicy | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[list[R]],
        fn: Callable[..., AsyncIterator[R]],
        policy: FailurePolicy | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[R],
        fn: Callable[..., R],
        policy: FailurePolicy | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    def __init__(  # noqa: PLR0913 - the options of an agent, grouped in values as far as they belong together
        self,
        fn: Any,
        policy: FailurePolicy | None = None,
        *,
        classifier: Classifier | None = None,
        limits: Limits | None = None,
        store: Store | str | None = None,
        checks: Checks | None = None,
        durability: Durability | None = None,
        observers: Iterable[Observer] = (),
        name: str | None = None,
        verify: Callable[[Any], Any] | None = None,
        result_type: Any = None,
        environment: Environment | None = None,
    ) -> None:
        self._wrapped: Any = fn
        # A classmethod or staticmethod is called only through its class: `__get__` reads it then.
        deferred = isinstance(fn, classmethod | staticmethod)
        self._function = read_function(fn.__func__ if deferred else fn, bound=False)
        self._given = Given(
            self._function,
            policy=policy,
            classifier=classifier,
            limits=limits,
            store=store,
            checks=checks,
            durability=durability,
            observers=observers,
            name=name,
            verify=verify,
            result_type=result_type,
            environment=environment,
        )
        functools.update_wrapper(self, fn)

    @property
    def name(self) -> str:
        """The agent's name, as it stands in journals."""
        return self._given.name

    @property
    def store(self) -> Store:
        """Where the journals of this agent's runs are."""
        return self._config.store

    def run(self, task: Any, *, run_id: str | None = None, **kwargs: Any) -> Coroutine[Any, Any, T]:
        """Run the function on a task until it succeeds or recovery ends.

        run_id: 1 to 128 of `A-Z a-z 0-9 . _ : -`; None makes one. kwargs: for the function. Gives
        the function's result, validated where `result_type` is set. Raises UsageError for arguments
        the function does not take; `TriageEscalationError`, `TriageAbortError`, `TriageFatalError` or
        `TriageSuspendedError`, each with `.context` and from the original exception.
        """
        return _start()(self._config, self._function, task, kwargs, run_id)

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T]:
        """`run`. Called with an instance and a task, as a method is: that instance's `run`."""
        if len(args) == 2 and self._function.of_instance:  # noqa: PLR2004 - instance and task: how classmethod calls what it wraps
            return self.__get__(args[0]).run(args[1], **kwargs)
        if len(args) != 1:
            raise UsageError(
                f"{self.name} takes one task, and {len(args)} positional arguments were given; give "
                "the others by name"
            )
        return self.run(args[0], **kwargs)

    def run_sync(self, task: Any, *, run_id: str | None = None, **kwargs: Any) -> T:
        """`run` for code that is not async, in an event loop of its own.

        Raises UsageError when an event loop is running in this thread: await `run` there.
        """
        import anyio

        from ._env import in_event_loop

        if in_event_loop():
            raise UsageError("run_sync() cannot be used in async code; write await agent.run(task)")
        return anyio.run(functools.partial(self.run, task, run_id=run_id, **kwargs))

    def stream(self, task: Any, **kwargs: Any) -> AsyncIterator[Any | Restarted]:
        """The items of an async generator as they come; a plain function's result as the only item.

        Yields `Restarted(attempt, diagnosis, action)` before the items of a new attempt. Closing it
        early cancels the run. Raises as `run` does.
        """
        from ._start import stream

        return stream(self._config, self._function, task, kwargs)

    def events(self, task: Any, **kwargs: Any) -> AsyncIterator[Event]:
        """Run, and give each event as it is recorded; ends with the run, raising as `run` does.

        Leaving early cancels the run; close it (`contextlib.aclosing`) when you do.
        """
        from ._start import events

        return events(self._config, self._function, task, kwargs)

    async def resume(self, token: str, action: Reply, **kwargs: Any) -> T:
        """Go on with a suspended run, once, by an action or an answer to what was asked.

        action: any action but Suspend, `approve()`, `reject(reason)`, `edit(payload)`, or for a call in
        doubt `happened(result)` or `rerun()`. kwargs: arguments that could not be stored and must be
        given again. With a durable store any process may answer. Raises AlreadyResumed for a token
        used before, TokenExpired for one used too late, RunBusy where somebody has died while answering
        and has a lease left; UsageError for one this agent does not know and for an answer that does not
        fit the question. After the last three the token stays good.
        """
        from ._resume import resume
        from ._start import kept

        config = kept(self._config, self._function)
        return cast("T", await resume(config, self._function, token, action, kwargs))

    async def recover(
        self, run_id: str, *, task: Any = _UNSET, force: bool = False, **kwargs: Any
    ) -> T:
        """Take over a run that its process has left, at once, and go on with it.

        What is recorded is not done again: completed calls give their results, the attempt that was
        cut off starts once more under its number, with its state as `_triage_state`, and limits count
        what was used. A finished run gives its recorded result, or raises the error it ended with.
        kwargs, task: what could not be stored and must be given again. force: take it over although
        three processes have died with it; a run that waits asks its question anew, with a new token.

        Raises UnknownRun, DeadLetter, UsageError (arguments that are missing; a run that waits for
        an answer), ResultLost (a finished run whose result has no JSON form), and as `run` does.
        """
        from ._reopen import UNSET, reopen
        from ._start import kept

        config = kept(self._config, self._function)
        given = UNSET if task is _UNSET else task
        found = await reopen(config, self._function, run_id, kwargs, task=given, force=force)
        return cast("T", found)

    async def recover_all(self, *, concurrency: int = 10) -> list[Recovered]:
        """Take over this agent's runs whose processes are gone, and bring them to their end.

        Those whose lease lives are left alone; those that need arguments again, wait for an answer or
        are dead letters are given back with the error that says so. concurrency: how many at once.
        """
        from ._reopen import reopen_all

        return await reopen_all(self._config, self._function, concurrency)

    def __get__(self, instance: Any, owner: type | None = None) -> Agent[T]:
        """The agent of a method, bound to its instance or class."""
        if isinstance(self._wrapped, classmethod | staticmethod):
            function = self._wrapped.__get__(instance, owner)
        elif instance is None:
            return self
        else:
            function = self._function.function.__get__(instance, owner)
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._wrapped = function
        bound._function = read_function(function, bound=True)
        return bound

    def __repr__(self) -> str:
        return f"<Agent {self.name}>"


@overload
def agent(fn: Callable[..., Coroutine[Any, Any, R]], /) -> Agent[R]: ...
@overload
def agent(fn: Callable[..., R], /) -> Agent[R]: ...
@overload
def agent(
    *, policy: FailurePolicy | None = None, result_type: type[R], **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], Agent[R]]: ...
@overload
def agent(
    *, policy: FailurePolicy | None = None, **options: Unpack[Options]
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Agent[R]]: ...
def agent(fn: Any = None, /, **options: Any) -> Any:
    """`Agent` as a decorator, with or without options: `@agent`, `@agent(limits=…)`."""
    if fn is None:
        return lambda decorated: Agent(decorated, **options)
    return Agent(fn, **options)
