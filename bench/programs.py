"""Draw programs of agents, kill them, answer their questions, and see that nothing is lost or repeated.

    python -m bench.programs [--seconds 60] [--seed 1] [--count 1000]
        [--store memory|sqlite] [--backend asyncio|trio]

A program is an agent that pays, reads, asks a model, fails, and runs other agents, in sequence and side
by side. It is drawn from a seed, together with its policy, the instants at which its process is killed
(SQLite only: a real process, ended by `os._exit`) and a person's answers, which are always the truth. A
plain ledger outside counts each payment. Afterwards the run must be done, with the result that the
program gives without its faults, and each payment must stand in the ledger once, or never where the
person refused it. A run may give up where the documentation says so: under the recommended policy after
its last try, after a refusal, and where another agent's run that had an effect would have to run again.
Even then, no payment is made twice.

Each seed that breaks this is printed with its program; `--seed N --count 1` plays it again. The last line
is JSON: programs, killed processes, questions, runs that gave up, and the faults by seed. Exits with 1 if
there is a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

import triage
from triage import (
    Agent,
    Checks,
    Escalate,
    FailurePolicy,
    Limits,
    Replan,
    Retry,
    Run,
    Suspend,
    TriageEscalationError,
    TriageSuspendedError,
)
from triage.core.events import RunSuspended
from triage.engine import CallDenied, GuardedCall
from triage.stores import MemoryStore, SQLiteStore, Store
from triage.testing import VirtualTime

RUN = "program"
KILLED = 9
MOST_PROCESSES = 12
"""A program is killed at most so often, less two for processes that only answer."""
MOST_QUESTIONS = 40
HANGS_S = 60
"""Seconds of real time after which a process counts as hanging; no program waits for the clock."""


@dataclass(frozen=True)
class Pay:
    """A call with effect `once`.

    outcome: of its first try: `paid`, `refused` (never sent), `unsent` (lost on the way) or `unanswered`
    (paid, the answer lost). guard: the person's answer before it may run, `approves` or `refuses`; None
    if nobody is asked.
    """

    name: str
    outcome: str = "paid"
    guard: str | None = None
    pauses: int = 0


@dataclass(frozen=True)
class Read:
    """A call with effect `read`, of which the first `failures` tries fail."""

    name: str
    failures: int = 0
    pauses: int = 0


@dataclass(frozen=True)
class Ask:
    """A model call."""

    name: str
    pauses: int = 0


@dataclass(frozen=True)
class Fail:
    """An error of the agent itself, the first `times` times it comes here."""

    name: str
    error: type[Exception]
    times: int = 1


@dataclass(frozen=True)
class Note:
    """A change of the run's state."""

    name: str


@dataclass(frozen=True)
class InTurn:
    """Parts one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Together:
    """Parts at once, by `gather` of asyncio or a task group."""

    parts: tuple[Node, ...]
    way: str


@dataclass(frozen=True)
class Inside:
    """Another agent's run."""

    name: str
    body: Node


Node = Pay | Read | Ask | Fail | Note | InTurn | Together | Inside


@dataclass(frozen=True)
class Program:
    """A drawn program. kills: instants at which a process dies, counted over all its processes."""

    seed: int
    body: Node
    policy: str
    kills: frozenset[int] = frozenset()
    payments: tuple[Pay, ...] = ()


class Draw:
    """Draws a program from its seed."""

    def __init__(self, seed: int, *, trio: bool) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._trio = trio
        self._count = 0
        self._payments: list[Pay] = []

    def program(self, *, kills: bool) -> Program:
        """A whole program."""
        body = self._node(depth=self._random.choice([2, 3, 3, 4]))
        policy = self._random.choice(["retry", "retry", "replan", "recommended"])
        instants = 4 * self._count + 8
        deaths = self._random.choice([0, 1, 1, 2, 3]) if kills else 0
        drawn = frozenset(self._random.randrange(instants) for _ in range(deaths))
        return Program(self._seed, body, policy, drawn, tuple(self._payments))

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _node(self, depth: int) -> Node:  # noqa: PLR0911 - one for each kind
        kinds = ["pay"] * 4 + ["read", "ask", "fail", "note"]
        if depth:
            kinds += ["sequence"] * 6 + ["together"] * 4 + ["inside"] * 3
        kind = self._random.choice(kinds)
        pauses = self._random.choice([0, 0, 1, 3])
        if kind == "pay":
            return self._pay(pauses)
        if kind == "read":
            return Read(self._name("r"), self._random.choice([0, 0, 0, 1, 2]), pauses)
        if kind == "ask":
            return Ask(self._name("m"), pauses)
        if kind == "fail":
            errors: list[type[Exception]] = [ConnectionError, ValueError, RuntimeError, KeyError]
            return Fail(
                self._name("f"), self._random.choice(errors), self._random.choice([1, 1, 2])
            )
        if kind == "note":
            return Note(self._name("n"))
        if kind == "inside":
            return Inside(self._name("agent-"), self._node(depth - 1))
        parts = tuple(self._node(depth - 1) for _ in range(self._random.choice([2, 2, 3, 4])))
        if kind == "sequence":
            return InTurn(parts)
        return Together(
            parts, "task group" if self._trio else self._random.choice(["gather", "task group"])
        )

    def _pay(self, pauses: int) -> Pay:
        outcome = self._random.choice(["paid"] * 5 + ["refused", "unsent", "unanswered"])
        guard = self._random.choice([None] * 6 + ["approves", "refuses"])
        pay = Pay(self._name("p"), outcome, guard, pauses)
        self._payments.append(pay)
        return pay


class World:
    """What is outside of the run: what happened stays, whatever becomes of the process.

    file: where it is kept for other processes; None for a program that lives in one.
    """

    def __init__(self, file: Path | None = None, kills: frozenset[int] = frozenset()) -> None:
        self._file = file
        self._kills = kills
        lines = file.read_text().split("\n") if file is not None and file.exists() else []
        self.noted = Counter(lines)

    def note(self, line: str) -> int:
        """Note this, and say how often it has been noted."""
        self.noted[line] += 1
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(f"{line}\n")
        return self.noted[line]

    def instant(self) -> None:
        """Die here, if this is an instant at which the process is to be killed."""
        if self._file is not None and self.note("instant") - 1 in self._kills:
            os._exit(KILLED)

    def paid(self, name: str) -> int:
        """How often this was paid."""
        return self.noted[f"paid {name}"]


def expected(node: Node) -> Any:
    """What the program returns if nothing goes wrong but what a person refuses."""
    match node:
        case Pay(name, _, "refuses"):
            return f"{name} was refused"
        case Pay(name):
            return f"receipt of {name}"
        case Read(name) | Ask(name):
            return f"answer of {name}"
        case Fail() | Note():
            return None
        case InTurn(parts) | Together(parts):
            return [expected(part) for part in parts]
        case Inside(_, body):
            return expected(body)


class Player:
    """Makes the agents of a program, and runs them."""

    def __init__(self, program: Program, world: World, store: Store) -> None:
        self._program = program
        self._world = world
        self._store = store
        self._pays = {pay.name: pay for pay in program.payments}

    def agent(self, name: str, body: Node) -> Agent[Any]:
        """An agent that does this."""

        async def works(_task: str, *, run: Run) -> Any:
            return await self._do(body, run)

        # The default policy waits and holds out by the clock; a program has none.
        options: dict[str, Any] = (
            {}
            if self._program.policy == "recommended"
            else {
                "policy": FailurePolicy(
                    default=Retry() if self._program.policy == "retry" else Replan()
                )
            }
        )
        return Agent(
            works,
            name=name,
            store=self._store,
            limits=Limits(attempts=200),
            checks=Checks(guard=self._guard),
            environment=VirtualTime(),
            **options,
        )

    def _guard(self, call: GuardedCall) -> Suspend | None:
        pay = self._pays.get(call.tool.removeprefix("pay_"))
        if pay is None or pay.guard is None or self._world.noted[f"asked {pay.name}"]:
            return None
        return Suspend(f"approve {call.tool}?")

    async def _do(self, node: Node, run: Run) -> Any:  # noqa: PLR0911 - one for each kind
        match node:
            case Pay():
                return await self._pay(node)
            case Read():
                return await triage.tool(effect="read", name=f"read_{node.name}")(self._read)(
                    node.name, node.failures
                )
            case Ask(name):
                return await run.model(self._model, name)
            case Fail(name, error, times):
                if (count := self._world.note(f"failed {name}")) <= times:
                    raise error(f"failure {count} at {name}")
                return None
            case Note(name):
                run.update_state({name: True})
                return None
            case InTurn(parts):
                return [await self._do(part, run) for part in parts]
            case Together(parts, way):
                return await self._together(parts, way, run)
            case Inside(name, body):
                return await self.agent(name, body).run(f"task of {name}")

    async def _together(self, parts: Sequence[Node], way: str, run: Run) -> list[Any]:
        if way == "gather":
            return list(await asyncio.gather(*(self._do(part, run) for part in parts)))
        found: list[Any] = [None] * len(parts)

        async def one(index: int) -> None:
            found[index] = await self._do(parts[index], run)

        async with anyio.create_task_group() as group:
            for index in range(len(parts)):
                group.start_soon(one, index)
        return found

    async def _pay(self, pay: Pay) -> str:
        @triage.tool(effect="once", name=f"pay_{pay.name}")
        async def body(name: str) -> str:
            tries = self._world.note(f"tried {name}")
            await self._pause(pay.pauses)
            self._world.instant()
            if tries == 1 and pay.outcome == "refused":
                raise ConnectionRefusedError("connection refused")
            if tries == 1 and pay.outcome == "unsent":
                raise ConnectionResetError("connection reset")
            self._world.note(f"paid {name}")
            self._world.instant()
            await self._pause(pay.pauses)
            if tries == 1 and pay.outcome == "unanswered":
                raise ConnectionResetError("connection reset")
            return f"receipt of {name}"

        try:
            return await body(pay.name)
        except CallDenied:
            return f"{pay.name} was refused"

    async def _read(self, name: str, failures: int) -> str:
        self._world.instant()
        await self._pause(1)
        if (count := self._world.note(f"read {name}")) <= failures:
            raise ConnectionError(f"failure {count} at {name}")
        return f"answer of {name}"

    async def _model(self, name: str) -> str:
        self._world.instant()
        await self._pause(1)
        return f"answer of {name}"

    @staticmethod
    async def _pause(turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()

    async def play(self) -> Any:
        """Bring the program's run to its end, and answer what it asks."""
        agent = self.agent(RUN, self._program.body)
        info = await self._store.info(RUN)
        going: Callable[[], Awaitable[Any]]
        if info is None:
            going = partial(agent.run, "go", run_id=RUN)
        else:
            going = partial(agent.recover, RUN, force=True)
        for _ in range(MOST_QUESTIONS):
            try:
                return await going()
            except TriageSuspendedError as asked:
                answer = await self._answer(asked)
                self._world.note("question")
                self._world.instant()
                going = partial(agent.resume, asked.token, answer)
        raise AssertionError(f"asked more than {MOST_QUESTIONS} questions")

    async def _answer(self, asked: TriageSuspendedError) -> Any:
        """The truth: whether the payment in doubt was made, or what the person thinks of it."""
        events = await self._store.read(RUN)
        suspended = next(event for event in reversed(events) if isinstance(event, RunSuspended))
        found = re.match(r"\w+ pay_(p\d+)", asked.question)
        if found is None:
            return Escalate(
                "another agent's run that ended in an error is for a person to look into"
            )
        pay = self._pays[found[1]]
        if suspended.doubt:
            return (
                triage.happened(f"receipt of {pay.name}")
                if self._world.paid(pay.name)
                else triage.rerun()
            )
        if pay.guard == "refuses":
            return triage.reject("no")
        return triage.approve()


GAVE_UP = "gave up"


@dataclass
class Verdict:
    """wrong: what broke, `GAVE_UP`, or nothing."""

    wrong: str = ""
    kills: int = 0
    questions: int = 0


def may_give_up(program: Program, why: str) -> bool:
    """Whether the documentation lets a run of this program escalate for this reason."""
    refused = any(pay.guard == "refuses" for pay in program.payments)
    return program.policy == "recommended" or "completed with an effect" in why or refused


def judge(program: Program, world: World, result: Any, error: BaseException | None) -> str:
    """What is wrong with how a program ended."""
    for pay in program.payments:
        if world.paid(pay.name) > 1:
            return f"repeated: {pay.name} was paid {world.paid(pay.name)} times"
        if pay.guard == "refuses" and world.paid(pay.name):
            return f"repeated: {pay.name} was paid although it was refused"
    if isinstance(error, TriageEscalationError) and may_give_up(program, str(error)):
        return GAVE_UP
    if error is not None:
        return f"ended: {type(error).__name__}: {error}"
    if result != expected(program.body):
        return f"lost: the result is {result}"
    return ""


def in_memory(program: Program, backend: str) -> Verdict:
    """Play a program in this process."""
    world = World()
    error: BaseException | None = None
    result = None

    async def play() -> Any:
        with anyio.fail_after(HANGS_S):
            return await Player(program, world, MemoryStore()).play()

    try:
        result = anyio.run(play, backend=backend)
    except BaseException as raised:
        if isinstance(raised, (KeyboardInterrupt, SystemExit)):
            raise
        error = raised
    return Verdict(judge(program, world, result, error), 0, world.noted["question"])


def with_kills(program: Program, backend: str) -> Verdict:
    """Play a program in processes that are killed."""
    folder = Path(tempfile.mkdtemp())
    try:
        kills = 0
        for _ in range(MOST_PROCESSES):
            child = os.fork()
            if not child:
                _process(program, backend, folder)
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status) != KILLED:
                break
            kills += 1
        world = World(folder / "world")
        verdict = folder / "verdict"
        wrong = verdict.read_text() if verdict.exists() else "ended: no process came to an end"
        return Verdict(wrong, kills, world.noted["question"])
    finally:
        shutil.rmtree(folder)


def _process(program: Program, backend: str, folder: Path) -> None:
    """A process that works on the program until it ends or dies."""
    signal.alarm(HANGS_S)
    world = World(folder / "world", program.kills)
    error: BaseException | None = None
    result = None

    async def play() -> Any:
        store = SQLiteStore(folder / "runs.db")
        try:
            return await Player(program, world, store).play()
        finally:
            await store.close()

    try:
        result = anyio.run(play, backend=backend)
    except BaseException as raised:
        error = raised
    (folder / "verdict").write_text(judge(program, world, result, error))
    os._exit(0)


def shown(node: Node, indent: int = 2) -> str:
    """A program for people."""
    space = " " * indent
    match node:
        case InTurn(parts) | Together(parts):
            name = "sequence" if isinstance(node, InTurn) else node.way
            return "\n".join([f"{space}{name}", *(shown(part, indent + 2) for part in parts)])
        case Inside(name, body):
            return f"{space}{name}\n{shown(body, indent + 2)}"
        case _:
            return f"{space}{node}"


@dataclass
class Tally:
    """What came of the programs that were played."""

    programs: int = 0
    kills: int = 0
    questions: int = 0
    gave_up: int = 0
    wrong: dict[int, str] = field(default_factory=dict)


def play_many(
    *, seed: int, count: int, seconds: float, store: str, backend: str, most_wrong: int = 20
) -> Tally:
    """Play programs from `seed` on until `count` are played or the time is over."""
    tally = Tally()
    until = time.monotonic() + seconds
    for number in range(seed, seed + count):
        if time.monotonic() > until or len(tally.wrong) >= most_wrong:
            break
        program = Draw(number, trio=backend == "trio").program(kills=store != "memory")
        verdict = in_memory(program, backend) if store == "memory" else with_kills(program, backend)
        tally.programs += 1
        tally.kills += verdict.kills
        tally.questions += verdict.questions
        if verdict.wrong == GAVE_UP:
            tally.gave_up += 1
        elif verdict.wrong:
            tally.wrong[number] = verdict.wrong
            kills = f", killed at {sorted(program.kills)}" if program.kills else ""
            print(f"seed {number}, {backend}, {store}, {program.policy}{kills}: {verdict.wrong}")
            print(shown(program.body), flush=True)
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Play programs as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=["memory", "sqlite"], default="memory")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    given = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    tally = play_many(
        seed=given.seed,
        count=given.count,
        seconds=given.seconds,
        store=given.store,
        backend=given.backend,
    )
    print(
        json.dumps(
            {
                "harness": "programs",
                "store": given.store,
                "backend": given.backend,
                "programs": tally.programs,
                "kills": tally.kills,
                "questions": tally.questions,
                "gave_up": tally.gave_up,
                "wrong": tally.wrong,
            }
        )
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
