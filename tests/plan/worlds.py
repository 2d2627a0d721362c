"""Random capabilities, planners, selectors and people for the laws of plan-first runs.

What is drawn is plain data; `actors` has who acts by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st

from triage import Severity
from triage.core.faults import AmbiguousInput, PolicyRefused, ReclassificationRequired
from triage.plan import Approval, PlanLimits, unsafe_effects
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
