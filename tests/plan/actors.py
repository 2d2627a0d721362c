"""Who acts in the worlds of `worlds`, and remembers what really happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import triage
from triage import Severity
from triage.plan import Capability, Input, PlannedStep, PlanRequest, Registry, SelectionRequest

from .worlds import INVENTED, NOWHERE, Ability, Move, Raises, World


class Deeds:
    """What has happened outside of the run: bodies that were begun, effects, what steps were given."""

    def __init__(self) -> None:
        self.bodies: Counter[str] = Counter()
        self.effects: Counter[tuple[str, int]] = Counter()
        self.given: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        """Of each body: the key of its step, its results by key, and what it was given by type."""

    def capability(self, ability: Ability) -> Capability:
        """The capability; it takes a number, and is given its step and its inputs, by key and by type."""
        before, after = list(ability.before), list(ability.after)

        def work(
            n: int, step: PlannedStep, results: dict[str, Any], a: Any = None, b: Any = None
        ) -> Any:
            self.bodies[ability.name] += 1
            self.given.append((step.context_key, results, {"A": a, "B": b}))
            _raise_next(before)
            self.effects[ability.name, n] += 1
            _raise_next(after)
            return ability.result(n)

        async def works(
            n: int, step: PlannedStep, results: dict[str, Any], a: Any = None, b: Any = None
        ) -> Any:
            return work(n, step, results, a, b)

        return Capability(
            ability.name,
            f"can {ability.name}",
            works if ability.is_async else work,
            ability.requires,
            ability.provides,
            ability.effect,
            ability.retry,
            None if ability.says is None else _saying(ability.says),
        )


def _raise_next(errors: list[Raises | None]) -> None:
    error = errors.pop(0) if errors else None
    if error is not None:
        raise error()


def _saying(answer: Any) -> Callable[..., Any]:
    def classify(_error: BaseException, _known: Any) -> Any:
        if isinstance(answer, type):
            raise answer("cannot say")
        return answer

    return classify


def registry(world: World, deeds: Deeds) -> Registry:
    """The capabilities of a world, and one that answers with what it is given."""

    stutters = list(world.stutters)

    async def answer(results: dict[str, Any]) -> list[str]:
        _raise_next(stutters)
        return sorted(results)

    def replans(_error: BaseException, _known: Any) -> Any:
        return Severity.REPLANNING

    known = [deeds.capability(ability) for ability in world.abilities]
    classify = None if len(stutters) == 2 else replans
    responds = Capability(
        world.responds, "answers", answer, effect="read", classify_error=classify, responds=True
    )
    return Registry([*known, responds])


NONSENSE: tuple[Any, ...] = (None, "{", [], 7, {"steps": [None]}, {"steps": "all"}, {"steps": [{}]})


class Planner:
    """Plans by its moves, the last one for ever. told: called with each request.

    planted: what the last answer has that cannot be right, as it must be told.
    """

    def __init__(self, world: World, told: Callable[[PlanRequest], None]) -> None:
        self._world = world
        self._told = told
        self._last: Any = None
        self.count = 0
        self.planted = ""

    async def __call__(self, request: PlanRequest) -> Any:
        self._told(request)
        move = self._world.moves[min(self.count, len(self._world.moves) - 1)]
        self.count += 1
        if move.flaw == "repeats":
            return self._last
        self.planted = ""
        if move.flaw == "raises":
            raise move.error()
        if move.flaw == "nonsense":
            return NONSENSE[sum(move.picks) % len(NONSENSE)]
        steps = self._steps(request, move)
        plan = triage.plan.ExecutionPlan(tuple(steps))
        self._last = {"plan": plan, "object": plan.to_json(), "text": json.dumps(plan.to_json())}[
            move.form
        ]
        return self._last

    def _steps(self, request: PlanRequest, move: Move) -> list[PlannedStep]:
        if move.flaw == "empty":
            return []
        there = dict(request.results)
        steps: list[PlannedStep] = []
        for pick in move.picks:
            usable = [one for one in request.capabilities if _usable(one, there)]
            if not usable:
                break
            one = usable[pick % len(usable)]
            key = f"r{request.version}_{request.entry}_{len(steps)}"
            provided = one["provides"]
            kind = provided[pick % len(provided)] if provided else None
            inputs = tuple(Input(need, _found(there, need, pick)) for need in one["requires"])
            number = {"n": pick % 2}
            steps.append(PlannedStep(key, one["name"], expected_output=kind, parameters=number,
                                     inputs=inputs))  # fmt: skip
            there[key] = kind
        if sum(move.picks) % 2 or not steps:
            given = tuple(
                Input("ANY", step.context_key) for step in steps[-1:] if not step.expected_output
            )
            steps.append(PlannedStep(f"out{request.entry}", self._world.responds, inputs=given))
        return self._flawed(steps, request, move.flaw)

    def _flawed(
        self, steps: list[PlannedStep], request: PlanRequest, flaw: str
    ) -> list[PlannedStep]:
        """The steps with a fault in front of them, which is noted as planted."""
        active = {one["name"] for one in request.capabilities}
        some = next(iter(self._world.abilities))
        others = [known.name for known in self._world.abilities if known.name not in active]
        n = {"n": 1}
        needed = tuple(Input(kind, NOWHERE) for kind in some.requires or ("A",))
        made: dict[str, tuple[PlannedStep | None, str]] = {
            "invented": (PlannedStep("x", INVENTED), INVENTED),
            "inactive": (
                PlannedStep("x", others[0], parameters=n) if others else None,
                "is not among the active",
            ),
            "nowhere": (PlannedStep("x", some.name, parameters=n, inputs=needed), NOWHERE),
            "self": (
                PlannedStep("x", some.name, parameters=n, inputs=(Input("A", "x"),)),
                "is the result of this very step",
            ),
            "forward": (
                PlannedStep(
                    "x", some.name, parameters=n, inputs=(Input("A", steps[0].context_key),)
                ),
                "is there only after",
            ),
            "duplicate": (steps[0], "steps[1].context_key"),
            "early": (PlannedStep("x", self._world.responds), "ends a plan"),
            "parameter": (PlannedStep("x", some.name, parameters={**n, "warp": 9}), "warp"),
            "missing": (PlannedStep("x", some.name), '"n"'),
            "again": (
                PlannedStep(
                    next(iter(request.results)), self._world.abilities[0].name, parameters=n
                )
                if request.results
                else None,
                "steps[0].context_key",
            ),
        }
        if flaw not in made or made[flaw][0] is None:
            return steps
        fault, self.planted = made[flaw]
        assert fault is not None
        return [fault, *steps]


def _usable(one: dict[str, Any], there: dict[str, str | None]) -> bool:
    return not one.get("ends_the_plan") and set(one["requires"]) <= set(there.values())


def _found(there: dict[str, str | None], kind: str, pick: int) -> str:
    keys = [key for key, its in there.items() if its == kind]
    return keys[pick % len(keys)]


class Selector:
    """Selects by its script, the last answer for ever."""

    def __init__(self, world: World) -> None:
        self._answers = world.selections or ("all",)
        self.requests: list[SelectionRequest] = []

    def __call__(self, request: SelectionRequest) -> Any:
        answer = self._answers[min(len(self.requests), len(self._answers) - 1)]
        self.requests.append(request)
        names = [one["name"] for one in request.capabilities]
        if callable(answer):
            raise answer()
        said = {"all": names, "some": names[::2], "unknown": [INVENTED], "nonsense": 7}
        return said[answer]
