"""Random capabilities, planners, selectors and people for the laws of plan-first runs.

What is drawn is plain data; the classes here act by it, and remember what really happened.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st

import triage
from triage import Severity
from triage.faults import AmbiguousInput, PolicyRefused, ReclassificationRequired
from triage.plan import (
    Approval,
    Capability,
    Input,
    PlanLimits,
    PlannedStep,
    PlanRequest,
    Registry,
    SelectionRequest,
    unsafe_effects,
)
from triage.strategies import Backoff, Preset

TYPES = ("A", "B")
INVENTED = "teleport"
NOWHERE = "nowhere"
Raises: TypeAlias = Callable[[], Exception]
"""Makes the error that is raised: one that was raised before would remember it."""
HAPPENED: tuple[Raises, ...] = (
    partial(ConnectionError, "gone"),
    TimeoutError,
    ValueError,
    RuntimeError,
)
"""What may be raised after an effect: nothing that says it was not attempted."""
ERRORS: tuple[Raises, ...] = (
    *HAPPENED, partial(ConnectionRefusedError, "nobody there"), partial(KeyError, "k"),
    partial(AmbiguousInput, "which?"), partial(PolicyRefused, "never"),
    partial(ReclassificationRequired, "others"),
)  # fmt: skip


class Thing:
    """A result without a JSON form."""

    def __init__(self, said: str) -> None:
        self.said = said

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.said == self.said

    __hash__ = None  # type: ignore[assignment] # it is compared only


class Ability(NamedTuple):
    """A capability to be. before, after: what it raises around its effect, in order; None: it works."""

    name: str
    is_async: bool
    effect: str
    requires: tuple[str, ...]
    provides: tuple[str, ...]
    retry: Any
    before: tuple[Raises | None, ...]
    after: tuple[Raises | None, ...]
    says: Any
    exact: bool

    @property
    def repeatable(self) -> bool:
        return self.effect in ("read", "idempotent")

    def result(self, number: int) -> Any:
        """What it gives."""
        said = f"{self.name} {number}"
        return [said] if self.exact else Thing(said)


class Move(NamedTuple):
    """One answer of a planner. picks: what comes next, and with what. form: of the answer."""

    picks: tuple[int, ...]
    flaw: str
    form: str
    error: Raises


class World(NamedTuple):
    """Everything that is drawn of one run. responds, stutters: what answers, and what it raises first."""

    abilities: tuple[Ability, ...]
    responds: str
    stutters: tuple[Raises | None, ...]
    moves: tuple[Move, ...]
    selections: tuple[Any, ...] | None
    limits: PlanLimits
    approval: Approval
    replies: tuple[str, ...]
    on_in_doubt: Literal["ask", "fail"]


# Drawing ------------------------------------------------------------------------------------------

kinds = st.lists(st.sampled_from(TYPES), unique=True, max_size=2).map(tuple)
never = st.just(())
rarely = st.lists(st.none() | st.none() | st.sampled_from(ERRORS), max_size=3).map(tuple)
# The same again and again: what may be tried again uses up all of its retries.
stubborn = st.sampled_from((ERRORS[0], ERRORS[1], ERRORS[4])).map(lambda error: (error,) * 6)
hardly = st.lists(st.none() | st.none() | st.sampled_from(HAPPENED), max_size=2).map(tuple)
FLAWS = (
    "invented", "inactive", "nowhere", "self", "forward", "duplicate", "early", "parameter", "missing",
    "empty", "nonsense", "raises", "repeats", "again",
)  # fmt: skip
moves = st.builds(
    Move,
    st.lists(st.integers(0, 11), min_size=1, max_size=5).map(tuple),
    st.sampled_from((*[""] * 40, *FLAWS, "raises", "raises")),
    st.sampled_from(("plan", "object", "text")),
    st.sampled_from(ERRORS),
)
generous = st.builds(
    PlanLimits,
    retries=st.integers(0, 3),
    total_retries=st.sampled_from((1, 2, 10, 10)),
    climb=st.booleans(),
)
narrow = st.builds(
    PlanLimits,
    retries=st.integers(0, 3),
    total_retries=st.integers(0, 5),
    replans=st.integers(0, 3),
    reclassifications=st.integers(0, 2),
    rejections=st.integers(0, 2),
    steps=st.sampled_from((2, 50, 50)),
    entries=st.sampled_from((1, 5, 40, 200, 200, 200)),
    seconds=st.none() | st.none() | st.floats(0.5, 20),
    climb=st.booleans(),
)
limits = generous | generous | narrow
REPLIES = ("approve", "approve", "reject", "edit")


def _garbage(_content: Any) -> Any:
    return "perhaps"


def _fails(_content: Any) -> Any:
    raise LookupError("the rules are gone")


def _no(_content: Any) -> Any:
    return False


ALWAYS = (_garbage, _fails)
"""Evaluators that cannot say: approval is needed."""
evaluators = st.sampled_from((None, unsafe_effects, _no, *ALWAYS))


@st.composite
def abilities(draw: Any, name: str) -> Ability:
    effect = draw(st.sampled_from(("read", "idempotent", "once", "once", "unknown")))
    says = (None, None, *[Severity.REPLANNING] * 4, *Severity, "answers", ValueError)
    return Ability(
        name,
        draw(st.booleans()),
        effect,
        draw(st.just(()) | st.just(()) | kinds),
        draw(kinds),
        draw(st.sampled_from((None, None, 0, 1, Preset(3, Backoff(0.1, jitter=False))))),
        draw(never | never | rarely | stubborn),
        draw(never | hardly),
        draw(st.sampled_from(says)),
        draw(st.sampled_from((True, True, False))),
    )


@st.composite
def worlds(draw: Any) -> World:
    count = draw(st.integers(1, 5))
    known = tuple(draw(abilities(f"do{at}")) for at in range(count))
    usual = st.sampled_from(("all", "all", "all", "some", "unknown", "nonsense"))
    chosen = usual | usual | st.sampled_from(ERRORS)
    mode = draw(st.sampled_from(("off", "off", "selective", "all", "whatever")))
    approval = Approval(mode, draw(evaluators), draw(st.sampled_from(("plan", "step"))))
    return World(
        known,
        draw(st.sampled_from(("respond", "Answer"))),
        draw(never | st.lists(st.sampled_from(ERRORS), min_size=1, max_size=3).map(tuple)),
        tuple(draw(st.lists(moves, min_size=1, max_size=5))),
        draw(st.none() | st.lists(chosen, min_size=1, max_size=3).map(tuple)),
        draw(limits),
        approval,
        tuple(draw(st.lists(st.sampled_from(REPLIES), min_size=1, max_size=4))),
        draw(st.sampled_from(("ask", "ask", "fail"))),
    )


# Acting -------------------------------------------------------------------------------------------


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
