"""Agents whose runs are cut, killed and cancelled in the tests of durable runs, and what must hold then."""

from __future__ import annotations

import sysconfig  # noqa: F401 - what a first failure imports looks at the disk, which no event loop may
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from support import Says

import triage
from triage import (
    Abort,
    Agent,
    Diagnosis,
    Escalate,
    FailurePolicy,
    FailureType,
    Replan,
    Resume,
    Retry,
    Rollback,
    Severity,
    Step,
    Suspend,
    Usage,
)
from triage.core import (
    CallStarted,
    Cause,
    Event,
    RunFinished,
    RunRecovered,
    RunStarted,
    TriageError,
    TriageSuspendedError,
)
from triage.stores import Store

RUN = "run-1"
PAID = "paid {}"
STEPS: dict[str, tuple[Any, ...]] = {
    "retry": (Retry(hint="once more", inject={"extra": 7}), Retry()),
    "replan": (Replan(), Replan(hint="another way")),
    "rollback": (Rollback(), Rollback()),
    "resume": (Resume(), Retry()),
    "suspend": (Suspend("go on?"), Retry()),
    "escalate": (Retry(), Escalate("enough")),
    "abort": (Abort("no"),),
    "fatal": (),
    "none": (),
}
"""By scenario, what is done about the first failure, the second, …; then the agent succeeds."""


class World(Protocol):
    """What is outside of the run: effects stay, whatever becomes of the process."""

    def do(self, effect: str) -> None:
        """Have an effect."""
        ...

    def done(self) -> Counter[str]:
        """How often each has happened."""
        ...


class Kept:
    """A world in memory."""

    def __init__(self, effects: Sequence[str] = ()) -> None:
        self.effects = list(effects)

    def do(self, effect: str) -> None:
        self.effects.append(effect)

    def done(self) -> Counter[str]:
        return Counter(self.effects)


def failures(history: Sequence[Any]) -> int:
    """How often the agent itself has failed, questions about calls left out."""
    return sum(past.diagnosis.cause != Cause.IN_DOUBT for past in history)


def policy_of(scenario: str) -> FailurePolicy:
    """Acts as the scenario says."""
    actions = STEPS[scenario]

    def strategy(context: Any) -> Any:
        return actions[min(failures(context.attempt_history), len(actions) - 1)]

    return FailurePolicy(default=strategy)


def agent_of(
    scenario: str,
    store: Store | str,
    world: World,
    *,
    told: Callable[[str, str], None] = lambda _list, _line: None,
    **options: Any,
) -> Agent[Any]:
    """An agent of a scenario: it reads, pays twice, records all there is to record, and fails.

    told: called with `acknowledged` and a name once what it names must be durable.
    """
    fails = 1 if scenario == "fatal" else len(STEPS[scenario])

    @triage.tool(effect="read")
    async def look(number: int) -> int:
        world.do(f"look {number}")
        return number * 10

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        world.do(f"pay {cents}")
        return PAID.format(cents)

    async def works(
        task: str,
        *,
        run: triage.Run,
        record_step: Callable[[Step], int],
        update_state: Callable[[dict[str, Any]], int],
        record_usage: Callable[[Usage], None],
        extra: int = 0,
    ) -> list[Any]:
        run.subgoals(["first", "second"])
        found = [await look(number) for number in (1, 2)]
        record_step(Step(action="think", tool_output=found))
        record_usage(Usage(input_tokens=100, output_tokens=10))
        await run.flush()
        told("acknowledged", "think")
        paid = [await pay(5)]
        told("acknowledged", "pay 5")
        update_state({"paid": paid, "found": found})
        paid.append(await pay(7))
        told("acknowledged", "pay 7")
        if failures(run.history) < fails:
            raise ConnectionError("the service is gone")
        run.complete("first")
        run.complete("second")
        return [task, *found, *paid]

    severity = Severity.FATAL if scenario == "fatal" else Severity.RETRIABLE
    says = Says(Diagnosis(FailureType.EXTERNAL_FAULT, severity=severity))
    return Agent(works, policy_of(scenario), classifier=says, store=store, name=scenario, **options)


PAYMENTS = Counter({"pay 5": 1, "pay 7": 1})


def payments(world: World) -> Counter[str]:
    """The effects that must happen once."""
    return Counter({name: count for name, count in world.done().items() if name.startswith("pay")})


async def brought_to_its_end(
    agent: Agent[Any], world: World, first: Callable[[], Any]
) -> tuple[Any, int]:
    """The run's result or the type of its error, and how many calls were in doubt.

    first: begins or goes on with the run. What is asked is answered: about a call truly, else yes.
    """
    doubts = 0
    step = first
    while True:
        try:
            return await step(), doubts
        except TriageSuspendedError as question:
            token = question.token
            answer: Any = triage.approve()
            if in_doubt(question):
                doubts += 1
                answer = truth(world, question.question)
            step = partial(agent.resume, token, answer)
        except TriageError as error:
            return type(error).__name__, doubts


def in_doubt(question: TriageSuspendedError) -> bool:
    """Whether it is a call that is asked about."""
    assert question.context is not None
    return question.context.diagnosis.cause == Cause.IN_DOUBT


def truth(world: World, question: str) -> Any:
    """What somebody who can look answers: whether the payment that is asked about has happened."""
    cents = next(cents for cents in (5, 7) if f'"cents": {cents}' in question)
    happened = world.done()[f"pay {cents}"]
    return triage.happened(PAID.format(cents)) if happened else triage.rerun()


def check_journal(events: Sequence[Event], epoch: int | None = None) -> None:
    """A journal is whole: no gap, one start, one end at most and nothing behind it, no owner twice."""
    assert [event.seq for event in events] == list(range(len(events)))
    assert [event for event in events if isinstance(event, RunStarted)] == [events[0]]
    ends = [event.seq for event in events if isinstance(event, RunFinished)]
    assert ends in ([], [len(events) - 1])
    owners = [event.epoch for event in events if isinstance(event, RunRecovered)]
    assert owners == sorted(set(owners))
    if epoch is not None:
        assert max([0, *owners]) <= epoch
    triage.core.fold(events)


def left_open(events: Sequence[Event]) -> list[str]:
    """The payments of a journal that were begun and of whose end it says nothing."""
    calls = triage.core.fold(events).calls.values()
    lost = [call for call in calls if call.tool == "pay" and call.outcome is None]
    return [f"pay {call.arguments['cents']}" for call in lost]


def begun(events: Sequence[Event]) -> list[str]:
    """The payments a journal knows of, each once."""
    found = [event for event in events if isinstance(event, CallStarted) and event.tool == "pay"]
    return list(dict.fromkeys(f"pay {event.arguments['cents']}" for event in found))
