"""`Agent`: any agent function, wrapped so that its failures are diagnosed and recovered."""

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
from .nested import kept_as_safely, run_inside, stream_inside
from .options import Checks, Durability
from .outside import cancel
from .resume import UNSET, Recovered, answer_only, check_owner, reopen, reopen_all, resume
from .run import current, surrounding
from .tools import STREAMED, read_function

T = TypeVar("T")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """The options of an agent beside its policy and its result type; see `Agent`."""

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
    """Any agent function with diagnosis and recovery around it.

    fn: takes the task first; async, sync (runs in a thread) or an async generator. It is given only
    those of these parameters that it names: `record_step`, `update_state`, `record_usage`, `run`,
    `_triage_hint`, `_triage_subgoal`, `_triage_state`, `_triage_context`.
    policy: what to do about a failure; None: `FailurePolicy.recommended()`. classifier: says why it
    failed; None: `RulesClassifier()`. limits: None: `Limits()`, 10 attempts and nothing else. store:
    where journals are kept; None: this process' memory. checks: what a result must satisfy, of which
    `verify` and `result_type` are short forms. durability: None: `Durability()`. observers: called
    with each event. name: None: the function's; runs and their tokens belong to it. aliases: earlier
    names of a renamed agent, whose runs this one may take over. environment: clock, ids, sleep and
    chance; None: the machine's. infer_effects: a tool of which nobody declared the effect has the one that
    its name tells (`triage.core.infer_effect`); False: it is `unknown`. seam: requests to models are seen
    where they leave the process, and recorded; `"off"`: this agent's pass untouched.

    An agent is callable (`await agent(task)` is `run`) and may decorate methods. One agent serves any
    number of concurrent runs. Raises UsageError for a function that cannot be called so, and for
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
        """The agent's name, as it stands in journals."""
        return self._config.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Earlier names of this agent, whose runs it may take over."""
        return self._config.aliases

    @property
    def checks(self) -> Checks | None:
        """What its results must satisfy, and the tools it may call; None for neither."""
        return self._config.checks

    @property
    def store(self) -> Store:
        """Where the journals of this agent's runs are."""
        return self._config.store

    def run(
        self, task: Any, *more: Never, run_id: str | None = None, **kwargs: Any
    ) -> Coroutine[Any, Any, T]:
        """Run the function on a task until it succeeds or recovery ends.

        run_id: 1 to 128 of `A-Z a-z 0-9 . _ : -`, at least one a letter or digit; None makes one.
        kwargs: for the function. Gives the function's result, validated where `result_type` is set.
        Raises UsageError for arguments the function does not take; `TriageEscalationError`,
        `TriageAbortError`, `TriageFatalError` or `TriageSuspendedError`, each with `.context` and from
        the original exception.
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
        """`run`. Called with an instance and a task, as a method is: that instance's `run`."""
        # Instance and task: this is how classmethod calls the function it wraps.
        if len(args) == 2 and self._function.of_instance:
            return self.__get__(args[0]).run(args[1], **kwargs)
        if len(args) != 1:
            raise UsageError(
                f"{self.name} takes one task, and {len(args)} positional arguments were given; give "
                "the others by name"
            )
        return self.run(args[0], **kwargs)

    def run_sync(self, task: Any, *more: Never, run_id: str | None = None, **kwargs: Any) -> T:
        """`run` for code that is not async, in an event loop of its own.

        Raises UsageError when an event loop is running in this thread: await `run` there.
        """
        self._one_task("run_sync", more)
        if in_event_loop():
            raise UsageError("run_sync() cannot be used in async code; write await agent.run(task)")
        return anyio.run(functools.partial(self.run, task, run_id=run_id, **kwargs))

    def stream(self, task: Any, *more: Never, **kwargs: Any) -> AsyncIterator[Any | Restarted]:
        """The items of an async generator as they come; a plain function's result as the only item.

        Yields `Restarted(attempt, diagnosis, action)` before the items of a new attempt. Closing it
        early cancels the run. Raises as `run` does.
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
        """Run, and give each event as it is recorded; ends with the run, raising as `run` does.

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

        given = 0
        background = Background(run)
        try:
            while True:
                finished = over
                while given < session.position:
                    yield session.events[given]
                    given += 1
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
        **kwargs: Any,
    ) -> T:
        """Go on with a suspended run, once, by an action or an answer to what was asked.

        action: any action but Suspend, `approve()`, `reject(reason)`, `edit(payload)`, or for a call in
        doubt `happened(result)` or `rerun()`. kwargs, task, state: what could not be stored and must
        be given again. With a durable store any process may answer. Raises AlreadyResumed for a token
        used before, TokenExpired for one used too late, RunBusy where somebody has died while answering
        and has a lease left; UsageError for one this agent does not know, for another agent's, and for an
        answer that does not fit the question. After the last three the token stays good.
        """
        self._function.check_bound()
        found: T = await resume(self._here(), self._function, token, action, kwargs, task, state)
        return found

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
        """Take over a run that its process has left, and go on with it.

        What is recorded is not done again: completed calls give their results, the attempt that was
        cut off starts once more under its number, with its state as `_triage_state`, and limits count
        what was used. A finished run gives its recorded result, or raises the error it ended with.
        at_once: although its owner's lease lives; False: only once it is free, else RunBusy, whose
        `wait_s` says how long it lasts. kwargs, task: what could not be stored and must be given again;
        state likewise, merged into what is recorded. force: take it over although three processes have
        died with it; a run that waits asks its question anew, with a new token.

        Raises UnknownRun, DeadLetter, UsageError (another agent's run; arguments that are missing; a
        run that waits for an answer), ResultLost (a finished run whose result has no JSON form), RunBusy
        where somebody else has taken the run over meanwhile and goes on with it, and as `run` does.
        """
        self._function.check_bound()
        found: T = await reopen(
            self._here(),
            self._function,
            run_id,
            kwargs,
            task=task,
            state=state,
            at_once=at_once,
            force=force,
        )
        return found

    async def answer(self, asked: str, answer: Reply, *, by: str = "") -> Action:
        """Write down the answer to what a suspended run asks, without going on with it.

        Whoever recovers the run next acts on it. asked: the question's token, or the run's id for what it
        asks now. by: who answers, for the journal. Gives the action that follows. Raises AlreadyResumed,
        TokenExpired, UnknownRun and RunOver; RunBusy while somebody else is answering; UsageError for
        another agent's run, one that does not wait, an answer that does not fit the question, and a secret
        in it.
        """
        return await answer_only(self._config, asked, answer, by=by)

    async def cancel(self, run_id: str) -> None:
        """End a run and those inside it, whoever has it; nobody goes on with it afterwards.

        The end stands in the journal. Who awaits the run gets StaleWriter, and its function is cancelled:
        at once in this process, elsewhere when its lease is renewed next, in a third of `lease_s`. Calls
        with an effect that are running are finished first. Raises UnknownRun, RunOver for a run that has
        ended, and UsageError for another agent's.
        """
        events = await self._config.read(run_id)
        if events:
            check_owner(self._config, events)
        await cancel(self._config.store, run_id, now=await time_of(self._config))

    def portable(self, task: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return a task and the arguments of its run as JSON, so that another process can begin the run.

        Raises UsageError for an argument the function does not take, for a value that JSON does not say in
        full, and for what looks like a secret, which no queue may keep.
        """
        self._function.check(kwargs)
        redactor = self._config.durability.redactor
        given: dict[str, Any] = {}
        for name, value in {TASK: task, **kwargs}.items():
            given[name], exact = plain_noting(value)
            if not exact:
                raise UsageError(
                    f"{name} cannot be enqueued: JSON does not say all of {type(value).__name__}; give "
                    "values of JSON types, such as an id by which the agent finds the rest"
                )
            places = [] if redactor is None else redactor.fields_of(given[name], name)
            if places:
                raise UsageError(
                    f"{', '.join(places)} holds what looks like a secret, which no queue keeps; give what "
                    "the agent can look the secret up by"
                )
        return given.pop(TASK), given

    def stored_in(self, store: Store | str, *, lease_s: float | None = None) -> Agent[T]:
        """The same agent with its runs kept in another store.

        lease_s: as in `Durability`; None leaves it as it is.
        """
        kept = copy.copy(self)
        kept._config = moved(self._config, self._function, open_store(store), lease_s)
        return kept

    def observed_by(self, *observers: Observer) -> Agent[T]:
        """The same agent with further observers."""
        seen = copy.copy(self)
        seen._config = observed(self._config, *observers)
        return seen

    async def recover_all(self, *, concurrency: int = 10) -> list[Recovered]:
        """Take over this agent's runs whose processes are gone, and bring them to their end.

        Its runs are those under its name and its aliases.

        Those whose lease lives are left alone; those that need arguments again, wait for an answer or
        are dead letters are given back with the error that says so. concurrency: how many at once.
        """
        self._function.check_bound()
        return await reopen_all(self._config, self._function, concurrency)

    def _here(self) -> Config:
        """The options of a run that is gone on with here: in an attempt, those of a run inside it."""
        outer = current.get()
        return (
            self._config if outer is None else kept_as_safely(self._config, self._function, outer)
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Agent[T]:
        """The agent of a method, bound to its instance or class."""
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
    """`Agent` as a decorator, with or without options: `@agent`, `@agent(limits=…)`."""
    if fn is None:
        return lambda decorated: Agent(decorated, **options)
    return Agent(fn, **options)


class RunsOnAgent(Protocol):
    """An object that has an agent underneath, such as an `Orchestrator`."""

    @property
    def agent(self) -> Agent[Any]:
        """The agent underneath."""
        ...

    @property
    def name(self) -> str:
        """The agent's name."""
        ...


AgentLike: TypeAlias = Agent[Any] | RunsOnAgent
"""An agent, or what has one underneath."""


def underlying_agent(given: object) -> Agent[Any] | None:
    """The agent that is meant: the one given, or the one underneath; None for anything else."""
    found = given if isinstance(given, Agent) else getattr(given, "agent", None)
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
            # A thread that no event loop started: what it recorded is given with the next event.
            return

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()
