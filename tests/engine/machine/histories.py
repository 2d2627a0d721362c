"""What is played: a program, and what becomes of its processes. Plain data, drawn or written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from hypothesis import strategies as st

# --- programs: an agent as a tree of steps ---------------------------------------------------------


class _Short:
    """Shows what differs from the defaults, so that a history that failed can be written down."""

    def __repr__(self) -> str:
        shown = [
            f"{one.name}={value!r}"
            for one in fields(self)  # type: ignore[arg-type] # all that inherit are dataclasses
            if one.repr and (value := getattr(self, one.name)) != one.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Pay(_Short):
    """A payment. Equal nodes are equal calls.

    outcome: of its first try: `paid`, `refused` (never sent), `unsent` (lost on the way) or `unanswered`
    (paid, the answer lost). guard: what a person says before it may run: `approve`, `reject`, `edit`, or
    `insist` where it is rejected and the agent asks for it all the same; None asks nobody. undo: its
    compensator `works`, `fails` for ever or fails `once`. keyed: the bank gets the call's idempotency
    key. varies: the first attempt asks for another amount than the later ones. pauses: turns that others
    get before and after the money moves.
    """

    name: str
    effect: str = "once"
    outcome: str = "paid"
    guard: str | None = None
    undo: str | None = None
    keyed: bool = False
    varies: bool = False
    sync: bool = False
    retries: int = 0
    pauses: int = 0

    @property
    def is_unsafe(self) -> bool:
        """Whether it must not happen twice."""
        return self.effect in ("once", "unknown")


@dataclass(frozen=True, repr=False)
class Read(_Short):
    """A call that changes nothing. failures: how many of its tries fail, at first."""

    name: str
    failures: int = 0
    pauses: int = 0


@dataclass(frozen=True, repr=False)
class Ask(_Short):
    """A model call."""

    name: str
    pauses: int = 0


@dataclass(frozen=True, repr=False)
class Fail(_Short):
    """An error of the agent itself, the first `times` times it comes here.

    kind: `external`, `conflict`, `unknown` or `fatal`. action: what the policy does about it.
    """

    name: str
    kind: str = "external"
    action: str = "retry"
    times: int = 1


@dataclass(frozen=True, repr=False)
class Note(_Short):
    """A change of the run's state, which is a checkpoint."""

    name: str


@dataclass(frozen=True, repr=False)
class InTurn(_Short):
    """Parts one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, repr=False)
class Together(_Short):
    """Parts at once, in a task group or by `gather` of asyncio."""

    parts: tuple[Node, ...]
    gather: bool = False


@dataclass(frozen=True, repr=False)
class Inside(_Short):
    """Another agent's run."""

    name: str
    body: Node


Node: TypeAlias = Pay | Read | Ask | Fail | Note | InTurn | Together | Inside


def walk(node: Node) -> list[Node]:
    """The steps of a program, in their order."""
    match node:
        case InTurn(parts) | Together(parts):
            return [node, *(found for part in parts for found in walk(part))]
        case Inside(_, body):
            return [node, *walk(body)]
        case _:
            return [node]


# --- rules: what becomes of the processes --------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Death(_Short):
    """How a process ends: at its `at`-th write or payment, before it or after it.

    clean: it is cancelled, and gives the run back; else it is gone without a word.
    """

    at: int
    clean: bool = False


@dataclass(frozen=True, repr=False)
class Recover(_Short):
    """A process takes the run over. how: `plain`, `polite` (only a free lease) or `force`."""

    how: str = "plain"
    death: Death | None = None


@dataclass(frozen=True, repr=False)
class Race(_Short):
    """Two processes take the run over, the second one `later` turns after the first."""

    later: int = 0
    polite: bool = False
    first: Death | None = None
    second: Death | None = None


@dataclass(frozen=True, repr=False)
class Answer(_Short):
    """A person answers what the run asks, and the process goes on.

    how: the `truth`; a `lie` (a payment in doubt is to run again though it was made); `wrong`, which does
    not fit the question; `written` down only; `twice`, in two processes at once; or to an `old` question.
    """

    how: str = "truth"
    death: Death | None = None


@dataclass(frozen=True, repr=False)
class AskAnew(_Short):
    """The question is asked anew, under another token."""


@dataclass(frozen=True, repr=False)
class Cancel(_Short):
    """The run is ended from outside."""


@dataclass(frozen=True, repr=False)
class Zombie(_Short):
    """A process that was overtaken, or is one write behind, tries to write."""

    behind: int = 1


@dataclass(frozen=True, repr=False)
class StartAgain(_Short):
    """Another run is to begin under the same id."""


Rule: TypeAlias = Recover | Race | Answer | AskAnew | Cancel | Zombie | StartAgain


@dataclass(frozen=True, repr=False)
class History(_Short):
    """A program, the death of its first process, and the rules that follow.

    Whatever they leave is brought to its end by processes that do not die and answers that are true.
    one_tool: payments of one kind are made by one tool, else each by its own. on_in_doubt: as in
    `Durability`. lag: turns that others get before a write;
    those not written yet are lost with their process.
    """

    body: Node
    death: Death | None = None
    rules: tuple[Rule, ...] = ()
    one_tool: bool = False
    on_in_doubt: str = "ask"
    lag: int = 0
    # The steps of the body, by kind.
    pays: tuple[Pay, ...] = field(init=False, repr=False, compare=False)
    steps: tuple[Node, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        steps = tuple(walk(self.body))
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "pays", tuple(one for one in steps if isinstance(one, Pay)))


# --- drawing -------------------------------------------------------------------------------------------

PAUSES = st.sampled_from([0, 0, 1, 3])
KINDS = ["external", "external", "unknown", "conflict", "fatal"]
OUTCOMES = ["refused", "unsent", "unanswered"]
GUARDS = ["approve", "reject", "edit", "insist"]
ACTIONS = ["retry", "retry", "replan", "rollback", "start over", "resume", "suspend"]
ENDS = ["escalate", "compensate", "abort"]
LEAVES = ["p"] * 5 + ["r", "m", "f", "f", "n"]
BRANCHES = ["sequence"] * 5 + ["together"] * 3 + ["inside"] * 2


def one_in(count: int) -> st.SearchStrategy[bool]:
    """True once in so many draws."""
    return st.integers(1, count).map(lambda number: number == count)


class _Drawn:
    """Draws the steps of one program, with a name of its own for each, or the same step again.

    A program has few of all the features there are, so that those it has meet each other often.
    """

    def __init__(self, draw: Any, *, calm: bool) -> None:
        self._draw = draw
        self._calm = calm
        self._count = itertools.count(1)
        self._again: list[Node] = []
        some = st.sampled_from
        self._leaves = draw(
            some([LEAVES, LEAVES, ["p", "f"], ["p", "m", "f"], ["r", "m", "p", "f"]])
        )
        fails = st.builds(
            Fail,
            st.just("f"),
            some(draw(some([["external"], ["unknown"], ["conflict"], KINDS]))),
            some(draw(some([ACTIONS, ACTIONS + ENDS, *([each] for each in ACTIONS), ENDS]))),
            some([1, 1, 2]),
        )
        pays = st.builds(
            Pay,
            st.just("p"),
            some(draw(some([["once"], ["once", "unknown"], ["once", "unknown", "idempotent"]]))),
            some(draw(some([["paid"], ["paid", "unanswered"], ["paid", *OUTCOMES]]))),
            some(draw(some([[None], [None], [None], ["approve"], [None, *GUARDS]]))),
            some(
                draw(
                    some([[None], ["works"], ["works"], ["once"], [None, "works", "fails", "once"]])
                )
            ),
            some(draw(some([[False], [False], [True], [False, True]]))),
            some(draw(some([[False], [False], [False, True]]))),
            some(draw(some([[False], [False], [False, True]]))),
            some(draw(some([[0], [0], [1]]))),
            PAUSES,
        )
        reads = st.builds(Read, st.just("r"), some([0, 0, 0, 1, 2]), PAUSES)
        asks = st.builds(Ask, st.just("m"), PAUSES)
        self._leaf_of: dict[str, st.SearchStrategy[Any]] = {
            "p": pays,
            "r": reads,
            "m": asks,
            "n": st.just(Note("n")),
            "f": fails,
        }

    def program(self) -> Node:
        """The whole of it. calm: one branch."""
        if self._calm:
            before, after = (self._draw(st.integers(low, 3)) for low in (1, 0))
            leaves = [self.node(0) for _ in range(before)]
            return InTurn((*leaves, self._leaf("f"), *(self.node(0) for _ in range(after))))
        return self.node(self._draw(st.sampled_from([1, 1, 2, 2, 3])))

    def node(self, depth: int) -> Node:
        """A step, of at most so many layers."""
        kinds = BRANCHES if depth > 1 else self._leaves + (BRANCHES if depth else [])
        match self._draw(st.sampled_from(kinds)):
            case "sequence":
                return InTurn(self._parts(depth))
            case "together":
                return Together(self._parts(depth), self._draw(st.booleans()))
            case "inside":
                return Inside(f"agent-{next(self._count)}", self.node(depth - 1))
            case letter:
                return self._leaf(letter)

    def _parts(self, depth: int) -> tuple[Node, ...]:
        return tuple(self.node(depth - 1) for _ in range(self._draw(st.sampled_from([2, 2, 3]))))

    def _leaf(self, letter: str) -> Node:
        if letter in "prm" and self._again and self._draw(one_in(4)):
            again: Node = self._draw(st.sampled_from(self._again))
            return again
        drawn: Node = replace(
            self._draw(self._leaf_of[letter]), name=f"{letter}{next(self._count)}"
        )
        if letter in "prm":
            self._again.append(drawn)
        return drawn


deaths = st.none() | st.builds(Death, st.integers(0, 24), st.sampled_from([False, False, True]))
rules = st.one_of(
    st.builds(Recover, st.sampled_from(["plain", "plain", "polite", "force"]), deaths),
    st.builds(Race, st.integers(0, 20), st.booleans(), deaths, deaths),
    st.builds(
        Answer,
        st.sampled_from(["truth", "truth", "truth", "lie", "wrong", "written", "twice", "old"]),
        deaths,
    ),
    st.just(AskAnew()),
    st.builds(Zombie, st.integers(0, 2)),
    st.builds(Cancel),
    st.builds(StartAgain),
)


@st.composite
def histories(draw: Any) -> History:
    """Draw a history."""
    calm = draw(st.booleans())
    body = _Drawn(draw, calm=calm).program()
    if calm and draw(st.booleans()):
        return History(body)
    return History(
        body,
        draw(deaths),
        tuple(draw(st.lists(rules, max_size=5))),
        draw(st.booleans()),
        draw(st.sampled_from(["ask", "ask", "ask", "fail"])),
        draw(st.sampled_from([0, 0, 1, 3])),
    )
