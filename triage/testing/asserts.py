"""`assert_recovers` and `assert_escalates`: assertions on what a policy does about faults."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import anyio

from triage.core import errors
from triage.core.environment import Environment
from triage.core.events import CallFinished, CallStarted, CompensatorRan, Event, RunStarted
from triage.core.failures import Attempt
from triage.core.redaction import redact
from triage.core.state import RunState, fold
from triage.core.taxonomy import UNSAFE
from triage.engine.agents import Agent, underlying_agent

from .faults import Crash
from .plans import FaultPlan, Injected, Performed, has_faults_of, observed, wrap
from .time import VirtualTime

tested: deque[Account] = deque(maxlen=1000)
"""Accounts of the assertions, newest last, until the pytest plugin takes them for its report."""
_LONGEST = 300
_MOST_ATTEMPTS = 30
"""Attempts shown in the account, at most."""


@dataclass(frozen=True)
class Account:
    """What a tested run did.

    result: what it returned, None if it raised. error: what it raised, None if it returned. seconds: on
    the run's clock. events: its journal. restarts: how often it was recovered after a crash. plan: the
    fault plan, or None. `str()` gives the account that failed assertions print.
    """

    result: Any
    error: BaseException | None
    seconds: float
    events: tuple[Event, ...]
    restarts: int = 0
    plan: FaultPlan | None = None

    @cached_property
    def state(self) -> RunState:
        """The state of the run, folded from its journal."""
        return fold(self.events)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.state.run_id

    @property
    def attempts(self) -> int:
        """The number of attempts."""
        return self.state.attempt

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """The failed attempts, oldest first, each with its diagnosis and action."""
        return tuple(self.state.history)

    @property
    def injected(self) -> tuple[Injected, ...]:
        """The faults that the plan injected in this run."""
        if self.plan is None:
            return ()
        return tuple(done for done in self.plan.injected if done.run_id == self.run_id)

    @property
    def effects(self) -> Counter[str]:
        """How often each tool took effect and was not undone, by name.

        For a tool wrapped by the plan this counts executions of its body, so that a call with a lost
        answer counts; for others it counts the completed calls in the journal.
        """
        found: Counter[str] = Counter()
        for key, times in self._by_call().items():
            found[_tool_of(key)] += times
        return +found

    @property
    def repeated(self) -> tuple[str, ...]:
        """Calls with the effect `once` or `unknown` that took effect more than once, as texts."""
        unsafe = {e.key for e in self._starts.values() if e.effect in UNSAFE}
        unsafe |= {self._key(done) for done in self._performed if done.effect in UNSAFE}
        shown = {event.key: event.arguments for event in self._starts.values()}
        return tuple(
            f"{_tool_of(key)} took effect {times} times for one call, with {shown.get(key)}"
            for key, times in self._by_call().items()
            if times > 1 and key in unsafe
        )

    @cached_property
    def _starts(self) -> dict[str, CallStarted]:
        """The recorded starts of calls, by what a wrapped tool knows of its call."""
        starts = (event for event in self.events if isinstance(event, CallStarted))
        return {event.idempotency_key: event for event in starts}

    @cached_property
    def _performed(self) -> list[Performed]:
        """The executions of wrapped tools in this run."""
        if self.plan is None:
            return []
        return [done for done in self.plan.performed if done.run_id == self.run_id]

    def _key(self, done: Performed) -> str:
        """Return the call's key in the journal, or one of that form for a call of an inner run."""
        started = self._starts.get(done.call or "")
        return f"{done.tool}:{done.call}:1" if started is None else started.key

    def _by_call(self) -> Counter[str]:
        """Count how often each call took effect and was not undone, by its key in the journal."""
        found = Counter(self._key(done) for done in self._performed)
        wrapped = {done.tool for done in self._performed}
        for event in self.events:
            match event:
                case CallFinished(outcome="done", replayed=False, key=key):
                    if _tool_of(key) not in wrapped:
                        found[key] += 1
                case CompensatorRan(error=None, begins=False, key=key):
                    found[key] -= 1
                case _:
                    pass
        return found

    @property
    def summary(self) -> str:
        """Summarize in one line how it ended, after how many attempts, and what each failure led to."""
        if self.error is not None:
            ending = f"ended in {type(self.error).__name__}"
        else:
            ending = "recovered" if self.failures or self.restarts else "did not fail"
        attempts = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        ways = Counter(
            f"{one.failure_type} → {'no action' if one.action is None else one.action.kind}"
            for one in self.failures
        )
        told = [way if times == 1 else f"{way} ({times} times)" for way, times in ways.items()]
        if self.restarts:
            told.append(f"died and went on ({self.restarts} times)")
        return f"{ending} after {attempts}" + (f": {', '.join(told)}" if told else "")

    def __str__(self) -> str:
        lines = [f"the run {self._ending()}"]
        if self.events:
            lines.append(f"attempts: {self.attempts}, {self.seconds:g} s on its own clock")
        if self.restarts:
            lines.append(f"restarts after a crash: {self.restarts}")
        for attempt in self.failures[:_MOST_ATTEMPTS]:
            lines += _told(attempt)
        if len(self.failures) > _MOST_ATTEMPTS:
            lines.append(f"and {len(self.failures) - _MOST_ATTEMPTS} failed attempts more")
        if self.plan is not None:
            lines += ["faults:", *(f"  {done}" for done in self.injected or ("none was injected",))]
            lines += [f"  never came: {self.plan.missed(place)}" for place in self.plan.unreached]
        if self.effects:
            done = ", ".join(f"{tool} {times}" for tool, times in sorted(self.effects.items()))
            lines.append(f"took effect: {done}")
        return redact("\n".join(lines))

    def _ending(self) -> str:
        if self.error is None:
            return f"gave {_short(self.result)}"
        name = type(self.error).__name__
        return f"ended in {name}: {_short(str(self.error))}"


def account(
    events: Sequence[Event],
    *,
    result: Any = None,
    error: BaseException | None = None,
    seconds: float = 0.0,
    restarts: int = 0,
    plan: FaultPlan | None = None,
) -> Account:
    """Make the account of a run from the events that an observer received."""
    first = next((event.run_id for event in events if isinstance(event, RunStarted)), None)
    own = tuple(event for event in events if event.run_id == first)
    return Account(result, error, seconds, own, restarts, plan)


def _told(attempt: Attempt) -> list[str]:
    lines = [f"attempt {attempt.number}: {attempt.diagnosis}"]
    if attempt.error is not None:
        lines.append(f"  raised {_short(str(attempt.error))}")
    elif attempt.diagnosis.evidence:
        lines.append(f"  because {_short(attempt.diagnosis.evidence[0].text)}")
    if attempt.action is not None:
        lines.append(f"  then {_short(repr(attempt.action))}")
    return lines


def _tool_of(key: str) -> str:
    """Return the tool in a call's key (tool, digest, occurrence); its name may contain colons."""
    return key.rsplit(":", 2)[0]


def _short(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text[: _LONGEST + 1].split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def failed(
    account: Account | None, problems: Sequence[str], cause: BaseException | None
) -> AssertionError:
    """Make the error of a failed assertion: what is wrong, then the whole account."""
    text = "\n".join(problems)
    if account is not None:
        text = f"{text}\n\n{account}"
    error = AssertionError(redact(text))
    error.__cause__ = cause
    return error


ANYTHING: Any = type("Anything", (), {"__repr__": lambda _self: "ANYTHING"})()
"""For `result`: accepts any result."""
_MOST_RESTARTS = 10
_ENDINGS = (
    errors.TriageEscalationError,
    errors.TriageSuspendedError,
    errors.TriageAbortError,
    errors.TriageFatalError,
)


async def assert_recovers(
    agent: Any,
    task: Any,
    plan: FaultPlan | None = None,
    *,
    result: Any = ANYTHING,
    at_most_attempts: int | None = None,
    within_s: float | None = None,
    effects: Mapping[str, int] | None = None,
    allow_unreached: bool = False,
    environment: Environment | None = None,
    real_seconds: float = 10.0,
    **arguments: Any,
) -> Account:
    """Run an agent under a plan's faults, expect it to succeed, and return the account of the run.

    agent: an `Agent`, or an agent function, which gets the recommended policy. plan: must already wrap
    the tools and clients (`wrap_tool`, `wrap_client`); the agent is wrapped here if the plan names it.
    After a `crash()` the run is recovered from its store, which must be durable. arguments: for the agent
    function.

    result: the expected result, or a predicate of it. at_most_attempts: the limit on attempts. within_s:
    the limit in seconds on the run's clock. effects: how often each of these tools must have taken
    effect. allow_unreached: accept that a named fault never happened. environment: None for a new
    `VirtualTime()`. real_seconds: seconds of real time after which the run counts as hanging.

    Raises AssertionError with attempts, diagnoses, actions and faults if the run ends in another way, or
    if any call with the effect `once` or `unknown` took effect twice.
    """
    __tracebackhide__ = True
    _check_bounds(at_most_attempts, within_s, effects, real_seconds)
    done = await _tried(agent, task, plan, environment, real_seconds, arguments)
    if done.error is not None:
        raise failed(done, ["the run did not recover", *_unsuspended(done)], done.error)
    problems = _result_problems(result, done.result)
    problems += _problems(
        done, at_most_attempts, within_s, effects, allow_unreached=allow_unreached
    )
    if problems:
        raise failed(done, problems, None)
    return done


async def assert_escalates(  # noqa: PLR0913 - what may be expected of a run, each with a default
    agent: Any,
    task: Any,
    plan: FaultPlan | None = None,
    *,
    because: str | None = None,
    ends_in: type[errors.TriageError] = errors.TriageEscalationError,
    at_most_attempts: int | None = None,
    within_s: float | None = None,
    effects: Mapping[str, int] | None = None,
    allow_unreached: bool = False,
    environment: Environment | None = None,
    real_seconds: float = 10.0,
    **arguments: Any,
) -> Account:
    """As `assert_recovers`, for a run that must stop and hand over to a person.

    because: the failure type or cause of the last diagnosis, as member or value; None accepts any.
    ends_in: `TriageEscalationError`, `TriageSuspendedError`, `TriageAbortError` or `TriageFatalError`.
    """
    __tracebackhide__ = True
    _check_bounds(at_most_attempts, within_s, effects, real_seconds)
    if not isinstance(ends_in, type) or not issubclass(ends_in, _ENDINGS):
        names = ", ".join(kind.__name__ for kind in _ENDINGS)
        raise errors.misuse("assert_escalates(ends_in=…)", ends_in, f"one of {names}")
    done = await _tried(agent, task, plan, environment, real_seconds, arguments)
    if done.error is None:
        raise failed(done, ["the run came to a result, and was to stop"], None)
    problems: list[str] = []
    if not isinstance(done.error, ends_in):
        problems.append(f"it ended in {type(done.error).__name__}, not in {ends_in.__name__}")
    diagnosis = getattr(done.error, "diagnosis", None)
    if because is not None and (
        diagnosis is None or because not in (diagnosis.failure_type, diagnosis.cause)
    ):
        problems.append(f"it ended because of {diagnosis}, not of {because}")
    problems += _problems(
        done, at_most_attempts, within_s, effects, allow_unreached=allow_unreached
    )
    if problems:
        raise failed(done, problems, done.error)
    return done


def assert_recovers_sync(
    agent: Any,
    task: Any,
    plan: FaultPlan | None = None,
    *,
    backend: str = "asyncio",
    **expected: Any,
) -> Account:
    """`assert_recovers` for a plain test function. backend: `asyncio` or `trio`."""
    __tracebackhide__ = True
    return _in_loop(partial(assert_recovers, agent, task, plan, **expected), backend)


def assert_escalates_sync(
    agent: Any,
    task: Any,
    plan: FaultPlan | None = None,
    *,
    backend: str = "asyncio",
    **expected: Any,
) -> Account:
    """`assert_escalates` for a plain test function. backend: `asyncio` or `trio`."""
    __tracebackhide__ = True
    return _in_loop(partial(assert_escalates, agent, task, plan, **expected), backend)


def _in_loop(call: Callable[[], Any], backend: str) -> Account:
    __tracebackhide__ = True
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:  # no event loop is running, as it should be
        return cast("Account", anyio.run(call, backend=backend))
    raise errors.UsageError(
        "the sync form cannot be used in async code; await the one without _sync"
    )


async def _tried(
    agent: Any,
    task: Any,
    plan: FaultPlan | None,
    environment: Environment | None,
    real_seconds: float,
    arguments: dict[str, Any],
) -> Account:
    if plan is not None and not isinstance(plan, FaultPlan):
        raise errors.misuse(
            "assert_recovers(plan)", plan, "a FaultPlan or None", "write FaultPlan({…})"
        )
    agent = underlying_agent(agent) or Agent(agent)
    if plan is not None and plan.names(agent.name) and not has_faults_of(agent, plan):
        agent = wrap(plan, agent)
    env = VirtualTime() if environment is None else environment
    events: list[Event] = []
    watched = observed(agent, env, events.append)
    began = env.monotonic()
    told = partial(account, events, plan=plan)
    lived: tuple[Any, errors.TriageError | None, int] | None = None
    with anyio.move_on_after(real_seconds) as in_time:
        lived = await _lived(watched, task, arguments, events)
    # What is in a thread or blocks the event loop cannot be cancelled, and comes back late with a result.
    if lived is None or anyio.current_time() >= in_time.deadline:
        hung = (
            f"the run hangs: {real_seconds:g} s of real time have passed. Something never comes back and "
            "nothing ends it: give the tool a timeout=…, or the agent Limits(attempt_seconds=…)"
        )
        raise failed(told(seconds=env.monotonic() - began), [hung], None)
    result, error, restarts = lived
    if restarts:
        events[:] = await watched.store.read(events[0].run_id)
    done = told(result=result, error=error, seconds=env.monotonic() - began, restarts=restarts)
    tested.append(done)
    return done


async def _lived(
    agent: Agent[Any], task: Any, arguments: dict[str, Any], events: list[Event]
) -> tuple[Any, errors.TriageError | None, int]:
    """Run to the end through any number of crashes; return result or error, and the number of crashes."""
    restarts = 0
    following: Callable[[], Any] = partial(agent.run, task, **arguments)
    while True:
        try:
            return await following(), None, restarts
        except errors.UsageError:
            raise
        except errors.TriageError as error:
            return None, error, restarts
        except (Crash, BaseExceptionGroup) as crash:
            # A task group of the agent raises it in an exception group.
            if isinstance(crash, BaseExceptionGroup) and crash.subgroup(Crash) is None:
                raise
            if not getattr(agent.store, "durable", True) or not events:
                raise errors.UsageError(
                    "the process died, and its records with it: a run that is to survive needs a "
                    'durable store, such as Agent(…, store="sqlite:///test.db")'
                ) from crash
            restarts += 1
            if restarts > _MOST_RESTARTS:
                raise
            following = partial(_recovered, agent, events[0].run_id, task, arguments)


async def _recovered(agent: Agent[Any], run_id: str, task: Any, arguments: dict[str, Any]) -> Any:
    """Recover the run; if nothing of it was stored, start it again."""
    if await agent.store.info(run_id) is None:
        return await agent.run(task, run_id=run_id, **arguments)
    return await agent.recover(run_id)


def _check_bounds(
    attempts: object, within_s: object, effects: object, real_seconds: object
) -> None:
    if attempts is not None:
        errors.check_count("at_most_attempts", attempts, 1, "None for any number")
    if within_s is not None:
        errors.check_number("within_s", within_s, "seconds", remedy="None for any time")
    errors.check_number("real_seconds", real_seconds, "seconds", above=True)
    if effects is None:
        return
    if not isinstance(effects, Mapping):
        raise errors.misuse(
            "effects", effects, "a mapping of tools to counts", 'write effects={"charge": 1}'
        )
    for tool, times in effects.items():
        errors.check_count(
            f"effects[{tool!r}]", times, 0, "it counts how often the tool took effect"
        )


def _result_problems(wanted: Any, found: Any) -> list[str]:
    if wanted is ANYTHING:
        return []
    # A class or function decides whether the result is right; any other value must equal it.
    if callable(wanted):
        right = isinstance(found, wanted) if isinstance(wanted, type) else bool(wanted(found))
        name = getattr(wanted, "__name__", repr(wanted))
        return [] if right else [redact(f"the result is wrong: {name} refused {found!r}"[:500])]
    return [] if found == wanted else [redact(f"the result is {found!r}, not {wanted!r}"[:500])]


def _problems(
    done: Account,
    attempts: int | None,
    within_s: float | None,
    effects: Mapping[str, int] | None,
    *,
    allow_unreached: bool,
) -> list[str]:
    problems = list(done.repeated)
    if attempts is not None and done.attempts > attempts:
        problems.append(f"it took {done.attempts} attempts, and {attempts} were allowed")
    if within_s is not None and done.seconds > within_s:
        problems.append(f"it took {done.seconds:g} s, and {within_s:g} s were allowed")
    happened = done.effects
    for tool, times in (effects or {}).items():
        if happened[tool] != times:
            problems.append(f"{tool} took effect {happened[tool]} times, not {times}")
    if done.plan is not None and not allow_unreached:
        problems += [
            f"a fault never came, so the test proves nothing about it: {done.plan.missed(place)}"
            for place in done.plan.unreached
        ]
    return problems


def _unsuspended(done: Account) -> list[str]:
    """Say what to do about a run that waits for a person."""
    if not isinstance(done.error, errors.TriageSuspendedError):
        return []
    hint = (
        "it waits for a person, as it cannot know whether a call took effect. If that is right, expect "
        "it: assert_escalates(…, ends_in=TriageSuspendedError)"
    )
    return [hint]
