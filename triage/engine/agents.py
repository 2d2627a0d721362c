"""`Agent`: wraps an agent function so that its failures are diagnosed and recovered."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import (
    Any,
    Generic,
    Literal,
    Never,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import anyio

from triage.classifiers.base import Classifier
from triage.core.actions import Action, Reply
from triage.core.environment import Environment, in_event_loop
from triage.core.errors import UsageError
from triage.core.events import Event
from triage.core.json_values import plain_noting
from triage.core.observers import Observer
from triage.stores.base import Store
from triage.stores.opening import open_store
from triage.strategies.limits import Limits
from triage.strategies.policy import Policy

from .answering import time_of
from .config import Config, check_run_id, configure, moved, observed
from .event_loop import Background
from .journal import TASK, Session
from .loop import Restarted, claim_run_id, run_loop, stream_loop
from .nested import at_least_as_safe, run_inside, stream_inside
from .options import Checks, Durability
from .outside import cancel
from .resume import UNSET, Recovered, answer_only, check_owner, reopen, reopen_all, resume
from .run import current, surrounding
from .tools import STREAMED, read_function

T = TypeVar("T")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """Options of an agent, except its policy and result type; see `Agent`."""

    classifier: Classifier | None
    limits: Limits | None
    store: Store | str | None
    checks: Checks | None
    durability: Durability | None
    observers: Iterable[Observer]
    name: str | None
    aliases: Iterable[str]
    verify: Callable[[Any], Any] | None
    environment: Environment | None
    infer_effects: bool
    seam: Literal["on", "off"]


class Agent(Generic[T]):
    """An agent function with diagnosis and recovery around it.

    fn: takes the task first; async, sync (runs in a thread) or an async generator. Each of these parameters
    is passed if the function names it: `record_step`, `update_state`, `record_usage`, `run`,
    `_triage_hint`, `_triage_subgoal`, `_triage_state`, `_triage_context`.
    policy: chooses the action after a failure; None: `FailurePolicy.recommended()`. classifier: diagnoses
    the failure; None: `RulesClassifier()`. limits: None: `Limits()`, 10 attempts and nothing else. store:
    keeps the journals; None: the memory of this process. checks: requirements on results and tool calls;
    `verify` and `result_type` are short forms. durability: None: `Durability()`. observers: called
    with each event. name: owner of the runs and their tokens; None: the function's name. aliases: earlier
    names of a renamed agent; their runs may be taken over. environment: clock, ids, sleep and random
    numbers; None: the machine's. infer_effects: infer an undeclared effect from the tool's name
    (`triage.core.infer_effect`); False: such an effect is `unknown`. seam: record requests to models where
    they leave the process; `"off"`: leave this agent's requests alone.

    An agent is callable (`await agent(task)` is `run`) and may decorate methods. One agent serves any
    number of concurrent runs. Raises UsageError for a function that cannot be called with a task, and for
    arguments of the wrong type.
    """

    __triage_agent__ = True

    @overload
    def __init__(
        self: Agent[R],
        fn: Callable[..., Any],
        policy: Policy | None = None,
        *,
        result_type: type[R],
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[R],
        fn: Callable[..., Coroutine[Any, Any, R]],
        policy: Policy | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[list[R]],
        fn: Callable[..., AsyncIterator[R]],
        policy: Policy | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[R],
        fn: Callable[..., R],
        policy: Policy | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    def __init__(  # noqa: PLR0913 - the options of an agent, grouped in values as far as they belong together
        self,
        fn: Any,
        policy: Policy | None = None,
        *,
        classifier: Classifier | None = None,
        limits: Limits | None = None,
        store: Store | str | None = None,
        checks: Checks | None = None,
        durability: Durability | None = None,
        observers: Iterable[Observer] = (),
        name: str | None = None,
        aliases: Iterable[str] = (),
        verify: Callable[[Any], Any] | None = None,
        result_type: Any = None,
        environment: Environment | None = None,
        infer_effects: bool = True,
        seam: Literal["on", "off"] = "on",
    ) -> None:
        self._wrapped: Any = fn
        # A classmethod or staticmethod is called only through its class: `__get__` reads it then.
        deferred = isinstance(fn, classmethod | staticmethod)
        self._function = read_function(fn.__func__ if deferred else fn, bound=False)
        self._config = configure(
            self._function,
            policy=policy,
            classifier=classifier,
            limits=limits,
            store=store,
            checks=checks,
            durability=durability,
            observers=observers,
            name=name,
            aliases=aliases,
            verify=verify,
            result_type=result_type,
            environment=environment,
            infer_effects=infer_effects,
            seam=seam,
        )
        functools.update_wrapper(self, fn)

    @property
    def name(self) -> str:
        """The agent's name in journals."""
        return self._config.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Earlier names of this agent; it may take over their runs."""
        return self._config.aliases

    @property
    def checks(self) -> Checks | None:
        """Requirements on its results and tool calls; None without any."""
        return self._config.checks

    @property
    def store(self) -> Store:
        """The store of this agent's journals."""
        return self._config.store

    def run(
        self, task: Any, *more: Never, run_id: str | None = None, **kwargs: Any
    ) -> Coroutine[Any, Any, T]:
        """Run the function on a task until it succeeds or recovery ends.

        run_id: 1 to 128 of `A-Z a-z 0-9 . _ : -`, at least one a letter or digit; None makes one.
        kwargs: for the function. Returns the function's result, validated if `result_type` is set.
        Raises UsageError for arguments the function does not take. A failed run raises
        `TriageEscalationError`, `TriageAbortError`, `TriageFatalError` or `TriageSuspendedError`, with
        `.context`, from the original exception.
        """
        self._one_task("run", more)
        self._function.check(kwargs)
        if run_id is not None:
            check_run_id(run_id)
        outer = surrounding()
        if outer is not None:
            begun = run_inside(outer, self._config, self._function, task, kwargs, run_id)
        else:
            session = Session(self._config, task, kwargs, run_id, current.get())
            first = None if run_id is None else claim_run_id(session)
            begun = run_loop(session, self._function, first)
        # Python's warning names a coroutine that was never awaited.
        cast("Any", begun).__qualname__ = f"Agent.run of {self.name}"
        return begun

    def _one_task(self, method: str, more: tuple[object, ...]) -> None:
        if more:
            raise UsageError(
                f"Agent.{method} takes one task, and {self.name} was given {len(more)} more positional "
                "arguments; give the others by name"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T]:
        """Call `run`; with an instance and a task, the `run` bound to that instance."""
        # classmethod calls the function it wraps with the class and the task.
        if len(args) == 2 and self._function.of_instance:
            return self.__get__(args[0]).run(args[1], **kwargs)
        if len(args) != 1:
            raise UsageError(
                f"{self.name} takes one task, and {len(args)} positional arguments were given; give "
                "the others by name"
            )
        return self.run(args[0], **kwargs)

    def run_sync(self, task: Any, *more: Never, run_id: str | None = None, **kwargs: Any) -> T:
        """Call `run` from sync code, in a new event loop.

        Raises UsageError if an event loop is running in this thread; await `run` there.
        """
        self._one_task("run_sync", more)
        if in_event_loop():
            raise UsageError("run_sync() cannot be used in async code; write await agent.run(task)")
        return anyio.run(functools.partial(self.run, task, run_id=run_id, **kwargs))

    def stream(self, task: Any, *more: Never, **kwargs: Any) -> AsyncIterator[Any | Restarted]:
        """Yield the items of an async generator as they come, or a function's result as the only item.

        Yields `Restarted(attempt, diagnosis, action)` before the items of a new attempt. Closing the
        stream early cancels the run. Raises as `run` does.
        """
        self._one_task("stream", more)
        self._function.check(kwargs)
        outer = surrounding()
        if outer is not None:
            return stream_inside(outer, self._config, self._function, task, kwargs)
        session = Session(self._config, task, kwargs, None, current.get())
        if self._function.kind in STREAMED:
            return stream_loop(session, self._function)

        async def single() -> AsyncIterator[Any]:
            yield await run_loop(session, self._function)

        return single()

    async def events(self, task: Any, **kwargs: Any) -> AsyncIterator[Event]:
        """Run, and yield each event as it is recorded; ends with the run, raising as `run` does.

        Leaving early cancels the run; `contextlib.aclosing` waits for its end.
        """
        self._function.check(kwargs)
        bell = _Bell()
        session = Session(observed(self._config, bell), task, kwargs, None, current.get())
        raised: list[BaseException] = []
        over = False

        async def run() -> None:
            nonlocal over
            try:
                await run_loop(session, self._function)
            except BaseException as error:
                raised.append(error)
            finally:
                over = True
                bell.ring()

        yielded = 0
        background = Background(run)
        try:
            while True:
                finished = over
                while yielded < session.position:
                    yield session.events[yielded]
                    yielded += 1
                if finished:
                    break
                await bell.wait()
        finally:
            await background.stop()
        if raised:
            raise raised[0]

    async def resume(
        self,
        token: str,
        action: Reply,
        *,
        task: Any = UNSET,
        state: Mapping[str, Any] | None = None,
        by: str = "",
        **kwargs: Any,
    ) -> T:
        """Resume a suspended run, once, with an action or an answer to its question.

        action: any action but Suspend, `approve()`, `reject(reason)`, `edit(payload)`, or for a call in
        doubt `happened(result)` or `rerun()`. kwargs, task, state: values that could not be stored and must
        be given again. by: who answers, for the journal. With a durable store any process may answer.
        Raises AlreadyResumed for a used token, TokenExpired for a late one, and RunBusy while a process
        that died answering still holds the lease. Raises UsageError for a token that is unknown or
        another agent's, and for an answer that does not fit the question; the token stays good after
        these.
        """
        self._function.check_bound()
        config = self._config_here()
        result: T = await resume(config, self._function, token, action, kwargs, task, state, by)
        return result

    async def recover(
        self,
        run_id: str,
        *,
        at_once: bool = True,
        task: Any = UNSET,
        state: Mapping[str, Any] | None = None,
        force: bool = False,
        **kwargs: Any,
    ) -> T:
        """Take over a run that its process has left, and continue it.

        Recorded work is not repeated: completed calls return their results, the interrupted attempt
        starts again under its number, with its state as `_triage_state`, and limits count the recorded
        usage. A finished run returns its recorded result, or raises the error it ended with.
        at_once: take over despite a live lease; False: raise RunBusy while it lives, with the seconds left
        in `wait_s`. kwargs, task: values that could not be stored and must be given again; state: the
        same, merged into the recorded state. force: take over even after three processes have died with
        the run; a suspended run asks its question again, with a new token.

        Raises UnknownRun, DeadLetter, UsageError (another agent's run; missing arguments; a suspended
        run), ResultLost (a finished run whose result has no JSON form), RunBusy if another process has
        taken the run over meanwhile, and as `run` does.
        """
        self._function.check_bound()
        result: T = await reopen(
            self._config_here(),
            self._function,
            run_id,
            kwargs,
            task=task,
            state=state,
            at_once=at_once,
            force=force,
        )
        return result

    async def answer(self, asked: str, answer: Reply, *, by: str = "") -> Action:
        """Record the answer to a suspended run's question, without resuming the run.

        The process that recovers the run next acts on the answer. asked: the question's token, or the run's
        id for its current question. by: who answers, for the journal. Returns the resulting action. Raises
        AlreadyResumed, TokenExpired, UnknownRun and RunOver; RunBusy while another process is answering;
        UsageError for another agent's run, a run that is not suspended, an answer that does not fit the
        question, and a secret in the answer.
        """
        return await answer_only(self._config, asked, answer, by=by)

    async def cancel(self, run_id: str) -> None:
        """End a run and its inner runs for good, whichever process owns them.

        The journal records the end. Code that awaits the run gets StaleWriter, and its function is
        cancelled: at once in this process, elsewhere at the next lease renewal, within a third of
        `lease_s`. Running calls with an effect finish first. Raises UnknownRun, RunOver for a run that has
        ended, and UsageError for another agent's run.
        """
        events = await self._config.read(run_id)
        if events:
            check_owner(self._config, events)
        await cancel(self._config.store, run_id, now=await time_of(self._config))

    def portable(self, task: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return a task and the arguments of its run as JSON, so that another process can begin the run.

        Raises UsageError for an argument the function does not take, a value without an exact JSON form,
        and an apparent secret, which must not be enqueued.
        """
        self._function.check(kwargs)
        redactor = self._config.durability.redactor
        arguments: dict[str, Any] = {}
        for name, value in {TASK: task, **kwargs}.items():
            arguments[name], exact = plain_noting(value)
            if not exact:
                raise UsageError(
                    f"{name} cannot be enqueued: JSON does not say all of {type(value).__name__}; give "
                    "values of JSON types, such as an id by which the agent finds the rest"
                )
            places = [] if redactor is None else redactor.fields_of(arguments[name], name)
            if places:
                raise UsageError(
                    f"{', '.join(places)} holds what looks like a secret, which no queue keeps; give what "
                    "the agent can look the secret up by"
                )
        return arguments.pop(TASK), arguments

    def stored_in(self, store: Store | str, *, lease_s: float | None = None) -> Agent[T]:
        """Return this agent with its runs kept in another store.

        lease_s: as in `Durability`; None keeps this agent's.
        """
        stored = copy.copy(self)
        stored._config = moved(self._config, self._function, open_store(store), lease_s)
        return stored

    def observed_by(self, *observers: Observer) -> Agent[T]:
        """Return this agent with further observers."""
        copied = copy.copy(self)
        copied._config = observed(self._config, *observers)
        return copied

    async def recover_all(self, *, concurrency: int = 10) -> list[Recovered]:
        """Take over this agent's runs whose processes are gone, and run each to its end.

        Covers runs under its name and its aliases, except runs with a live lease. A run that needs
        arguments again, waits for an answer or is a dead letter is returned with the error that says so.
        concurrency: runs at once.
        """
        self._function.check_bound()
        return await reopen_all(self._config, self._function, concurrency)

    def _config_here(self) -> Config:
        """Return the config for resuming here; inside an attempt, as strict as the outer run's."""
        outer = current.get()
        return (
            self._config if outer is None else at_least_as_safe(self._config, self._function, outer)
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Agent[T]:
        """Bind the agent of a method to its instance or class."""
        if isinstance(self._wrapped, classmethod | staticmethod):
            function = self._wrapped.__get__(instance, owner)
        elif instance is None:
            return self
        else:
            function = self._function.function.__get__(instance, owner)
        bound = copy.copy(self)
        vars(bound).update(_wrapped=function, _function=read_function(function, bound=True))
        return bound

    def __repr__(self) -> str:
        return f"<Agent {self.name}>"


@overload
def agent(fn: Callable[..., Coroutine[Any, Any, R]], /) -> Agent[R]: ...
@overload
def agent(fn: Callable[..., R], /) -> Agent[R]: ...
@overload
def agent(
    *, policy: Policy | None = None, result_type: type[R], **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], Agent[R]]: ...
@overload
def agent(
    *, policy: Policy | None = None, **options: Unpack[Options]
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Agent[R]]: ...
def agent(fn: Any = None, /, **options: Any) -> Any:
    """Decorate a function as an `Agent`, with or without options: `@agent`, `@agent(limits=…)`."""
    if fn is None:
        return lambda decorated: Agent(decorated, **options)
    return Agent(fn, **options)


class RunsOnAgent(Protocol):
    """An object built on an agent, such as an `Orchestrator`."""

    @property
    def agent(self) -> Agent[Any]:
        """The agent underneath."""
        ...

    @property
    def name(self) -> str:
        """The agent's name."""
        ...


AgentLike: TypeAlias = Agent[Any] | RunsOnAgent
"""An agent, or an object built on one."""


def underlying_agent(value: object) -> Agent[Any] | None:
    """Return `value` if it is an agent, else the agent underneath; None without one."""
    found = value if isinstance(value, Agent) else getattr(value, "agent", None)
    return found if isinstance(found, Agent) else None


class _Bell:
    """Wakes `Agent.events` from any thread an agent records in."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()

    def __call__(self, _event: Event) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        try:
            anyio.from_thread.run_sync(self._event.set)
        except RuntimeError:
            # No event loop started this thread: its event is yielded with the next one.
            return

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()
