"""Orchestrators for the tests of plan-first runs: what they can do, and planners that follow a script."""

from __future__ import annotations

import sysconfig  # noqa: F401 - what a first failure imports looks at the disk, which no event loop may
from collections import Counter
from collections.abc import Callable
from typing import Any

from engine.durable_runs import Kept, World
from support import FakeEnvironment

from triage.core import Event
from triage.plan import (
    Approval,
    Capability,
    ExecutionPlan,
    Input,
    Orchestrator,
    PlannedStep,
    PlanState,
    Registry,
    fold_plan,
)
from triage.stores import Store

__all__ = ["Approval", "Kept", "Script", "World", "orchestrator", "plan", "state_of", "step"]


def step(key: str, capability: str, *inputs: tuple[str, str], **parameters: Any) -> PlannedStep:
    """A step; parameters are those of the capability."""
    return PlannedStep(
        key,
        capability,
        f"do {key}",
        parameters=parameters,
        inputs=tuple(Input(kind, name) for kind, name in inputs),
    )


def plan(*steps: PlannedStep) -> ExecutionPlan:
    return ExecutionPlan(steps)


FIND = step("where", "find", name="beam")
READ = step("now", "read", ("ADDRESS", "where"))
PAY = step("bill", "pay", cents=5)
ANSWER = step("out", "respond", ("VALUE", "now"))
GOOD = plan(FIND, READ, PAY, ANSWER)
RESULT = {"now": ["value of", "beam-1"]}
BAD = plan(step("x", "teleport"))
"""A plan with a capability that exists nowhere."""
TORN = plan(FIND, step("now", "read", ("ADDRESS", "somewhere")), ANSWER)
"""A plan that refers to a result that nothing makes."""


class Script:
    """A planner or a selector that answers as written, the last answer for ever.

    An exception is raised, a function called. requests: what it was given.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.requests: list[Any] = []

    async def __call__(self, request: Any) -> Any:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    @property
    def count(self) -> int:
        """How often it was asked."""
        return len(self.requests)


class Fails:
    """What each capability raises, by name, one after the other; then it works."""

    def __init__(self, **errors: Any) -> None:
        self._left = {
            name: list(given if isinstance(given, list) else [given])
            for name, given in errors.items()
        }

    def __call__(self, name: str) -> None:
        left = self._left.get(name)
        if left:
            error = left.pop(0) if len(left) > 1 or not isinstance(left[0], type) else left[0]
            if error is not None:
                raise error


def capabilities(
    world: World, fails: Callable[[str], None] = lambda _name: None, **more: Any
) -> Registry:
    """Five things that can be done; each is told to the world, and may fail before or after that.

    more: options of capabilities by their names.
    """

    async def find(name: str) -> str:
        fails("find")
        world.do(f"find {name}")
        return f"{name}-1"

    async def read(address: str) -> list[str]:
        fails("read")
        world.do(f"read {address}")
        return ["value of", address]

    async def pay(cents: int) -> int:
        fails("pay")
        world.do(f"pay {cents}")
        fails("paid")
        return cents

    def measure(address: str, times: int = 1) -> object:
        fails("measure")
        world.do(f"measure {address} {times}")
        return object()

    async def respond(**results: Any) -> dict[str, Any]:
        fails("respond")
        world.do("respond")
        return results

    made = {
        "find": {"function": find, "provides": ("ADDRESS",), "effect": "read"},
        "read": {
            "function": read, "requires": ("ADDRESS",), "provides": ("VALUE",), "effect": "read",
        },
        "pay": {"function": pay, "effect": "once"},
        "measure": {"function": measure, "requires": ("ADDRESS",), "provides": ("RAW",), "effect": "read"},
        "respond": {"function": respond, "effect": "read"},
    }  # fmt: skip
    return Registry(
        Capability(name, f"can {name}", **{**options, **more.get(name, {})})
        for name, options in made.items()
    )


def orchestrator(
    planner: Any,
    world: World | None = None,
    *,
    fails: Callable[[str], None] = lambda _name: None,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Orchestrator:
    """An orchestrator whose time stands still but for sleep."""
    options.setdefault("environment", FakeEnvironment())
    registry = capabilities(world or Kept(), fails, **(more or {}))
    return Orchestrator(registry, planner, **options)


async def state_of(store: Store, run_id: str) -> PlanState:
    """Where the plan of a run stands, by its journal."""
    return fold_plan(await store.read(run_id))


def kinds(events: list[Event]) -> Counter[str]:
    """How often each event happened."""
    return Counter(type(event).__name__ for event in events)
