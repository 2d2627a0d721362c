"""Two processes recover the same outer run at once: is anything lost, or done twice?

    python -m bench.races --rounds 200 --store sqlite

In each round a process dies in a run inside the outer one, and two others recover the outer one at the same
moment. What is asked then is answered truly. Afterwards the outer run and the one run inside it must be
done, and every payment must have happened once. Prints one line of JSON; exits with 1 if a run or a
question was lost, or an effect repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import anyio

import triage
from triage import Agent, FailurePolicy, Retry, Run, Suspend, TriageError, TriageSuspendedError
from triage.core import AlreadyResumed, UsageError
from triage.stores import Store, open_store

POSTGRES = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
KINDS = ("between", "asks", "doubt")
"""The process dies between two payments (the run inside may ask then), or within the second one."""
RESULT = ["paid 1", "paid 2"]
SPREAD_S = 0.004
"""The two begin at most so many seconds apart."""
PATIENCE_S = 60.0


class Dead(BaseException):
    """The process is gone."""


class Found(NamedTuple):
    """What a round has come to."""

    lost_run: str = ""
    lost_question: str = ""
    repeated: int = 0


def place_of(store: str, folder: Path) -> str:
    """The text that opens a store of this kind."""
    return {
        "sqlite": f"sqlite:///{folder}/runs.db",
        "postgres": f"{POSTGRES}?schema=bench",
    }[store]


def boss_of(store: Store, effects: Path, kind: str, *, dies: bool = False) -> Agent[Any]:
    """An agent whose clerk pays twice. dies: the process does, where the kind of the round says."""

    @triage.tool(effect="once")
    async def pay(number: int, run: str) -> str:
        with effects.open("a") as file:
            file.write(f"{run} {number}\n")
        if dies and kind == "doubt" and number == len(RESULT):
            raise Dead
        return f"paid {number}"

    async def clerk(task: str, *, run: Run) -> list[str]:
        paid = [await pay(1, task)]
        if dies and kind != "doubt":
            raise Dead
        if kind == "asks" and run.attempt == 1:
            raise PermissionError("may I?")
        return [*paid, await pay(2, task)]

    inner = Agent(clerk, FailurePolicy(default=Suspend("may I?")), store=store, name="clerk")

    async def boss(task: str) -> list[str]:
        found: list[str] = await inner.run(task)
        return found

    return Agent(boss, FailurePolicy(default=Retry()), store=store, name="boss")


# A worker: it recovers each run that it is told of, and says what came of it.


async def work(place: str, effects: Path) -> None:
    """Recover what the lines of the standard input name, until they end."""
    store = open_store(place)
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        told = json.loads(line)
        await anyio.sleep(max(0.0, told["at"] - time.time()))
        said: dict[str, Any] = {}
        try:
            said["result"] = await boss_of(store, effects, told["kind"]).recover(told["run"])
        except TriageSuspendedError as asked:
            said["token"], said["question"] = asked.token, asked.question
        except TriageError as error:
            said["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(said), flush=True)
    await store.close()


def worker(place: str, effects: Path) -> subprocess.Popen[str]:
    """A process that works."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench.races", "--worker", place, str(effects)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(workers: list[subprocess.Popen[str]], run_id: str, kind: str) -> list[dict[str, Any]]:
    """Have all of them recover a run, nearly at once; what each of them says."""
    start = time.time() + 0.005
    for each in workers:
        assert each.stdin is not None
        at = start + random.random() * SPREAD_S
        each.stdin.write(json.dumps({"run": run_id, "kind": kind, "at": at}) + "\n")
        each.stdin.flush()
    said = []
    for each in workers:
        assert each.stdout is not None
        said.append(json.loads(each.stdout.readline()))
    return said


# A round.


async def race(
    store: Store, effects: Path, workers: list[subprocess.Popen[str]], kind: str
) -> tuple[Found, list[str]]:
    """What came of one run that two have recovered, and how each of the two has ended."""
    run_id = f"race-{uuid.uuid4().hex}"
    with contextlib.suppress(Dead):
        await boss_of(store, effects, kind, dies=True).run(run_id, run_id=run_id)
    said = await anyio.to_thread.run_sync(ask, workers, run_id, kind)
    ways = [
        each["error"].partition(":")[0] if "error" in each else next(iter(each)) for each in said
    ]
    found = await judged(store, effects, run_id, kind, said)
    return found, ways


async def judged(
    store: Store, effects: Path, run_id: str, kind: str, said: list[dict[str, Any]]
) -> Found:
    """Bring the run to its end with what the two were told, and see what is missing."""
    agent = boss_of(store, effects, kind)
    info = await store.info(run_id)
    result = None
    if info is not None and info.status == "suspended":
        tokens = [(each["token"], each["question"]) for each in said if "token" in each]
        for token, question in tokens:
            try:
                result = await answered(agent, effects, run_id, token, question)
                break
            except (AlreadyResumed, UsageError):  # of the one that has lost the run
                continue
        else:
            return Found(lost_question=f"{run_id}: no token opens it; {said}")
    else:
        try:
            result = await agent.recover(run_id)
        except TriageError as error:
            return Found(lost_run=f"{run_id}: {error!r}; {said}")
    did = done(effects)
    counts = [did[f"{run_id} {number}"] for number in (1, 2)]
    inner = [each.status for each in await store.runs(parent=run_id)]
    lost = result != RESULT or inner != ["done"] or 0 in counts
    return Found(
        lost_run=f"{run_id}: {result}, inside {inner}, paid {counts}; {said}" if lost else "",
        repeated=sum(count > 1 for count in counts),
    )


def done(effects: Path) -> Counter[str]:
    """How often each payment of each run has happened."""
    return Counter(effects.read_text().split("\n"))


async def answered(agent: Agent[Any], effects: Path, run_id: str, token: str, question: str) -> Any:
    """The result once all that is asked was answered truly."""
    while True:
        answer: Any = triage.approve()
        if "happen" in question:
            number = next(each for each in (1, 2) if f'"number": {each}' in question)
            happened = done(effects)[f"{run_id} {number}"]
            answer = triage.happened(f"paid {number}") if happened else triage.rerun()
        try:
            return await agent.resume(token, answer)
        except TriageSuspendedError as asked:
            token, question = asked.token, asked.question


async def races(kind_of_store: str, rounds: int) -> bool:
    """Run them all, print what was found; whether nothing was lost or repeated."""
    counts = Counter({"lost_runs": 0, "lost_questions": 0, "repeated_effects": 0})
    ways: Counter[str] = Counter()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        place, effects = place_of(kind_of_store, Path(folder)), Path(folder) / "effects"
        store = open_store(place)
        workers = [worker(place, effects) for _ in range(2)]
        try:
            for number in range(rounds):
                kind = KINDS[number % len(KINDS)]
                with anyio.fail_after(PATIENCE_S):
                    found, ended = await race(store, effects, workers, kind)
                ways[" + ".join(sorted(ended))] += 1
                counts["lost_runs"] += bool(found.lost_run)
                counts["lost_questions"] += bool(found.lost_question)
                counts["repeated_effects"] += found.repeated
                for text in filter(None, (found.lost_run, found.lost_question)):
                    print(f"{kind}: {text}", file=sys.stderr)
        finally:
            for each in workers:
                each.kill()
                each.communicate()
            await store.close()
    took = round(time.perf_counter() - began, 1)
    line = {
        "store": kind_of_store,
        "rounds": rounds,
        **counts,
        "ended": dict(ways),
        "seconds": took,
    }
    print(json.dumps(line))
    return not counts.total()


def main() -> int:
    """Race; 1 if anything was lost or repeated."""
    parser = argparse.ArgumentParser(prog="python -m bench.races", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Who loses a run says so in the log: here it is half of them.
    logging.getLogger("triage").setLevel(logging.CRITICAL)
    if options.worker:
        place, effects = options.worker
        anyio.run(work, place, Path(effects))
        return 0
    return int(not anyio.run(races, options.store, options.rounds))


if __name__ == "__main__":
    sys.exit(main())
