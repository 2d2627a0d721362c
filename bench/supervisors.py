"""Supervisors that are killed in the middle of their work: what do they lose, what do they do twice?

    python -m bench.supervisors --store sqlite --incidents 10000 --kills 25

Two processes of `triage supervise` share a store with so many incidents. One of them, whichever chance
says, is killed with SIGKILL at points drawn from a seed, and started again. In the end every incident
must have been recovered or handed to a person, each once; every message must have been delivered, and by
its key once. `--in-doubt escalate` asks a person about what a killed one was doing, and repeats nothing;
`rerun` repeats it, under the same key. Prints a line of JSON; exits with 1 where anything was lost or done
twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from triage.incidents import (
    Hooks,
    Incident,
    IncidentDesk,
    Message,
    NotificationPolicy,
    Recovery,
    Retries,
    Status,
    Threshold,
    Watch,
)

ROOT = Path(__file__).parent.parent
POSTGRES = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
CALLS, MAIL, EVERYTHING = "calls.txt", "mail.txt", 1_000_000
HOOK_S = 0.05
KINDS = (
    ("Process died unexpectedly", 14),
    ("Task timeout after 3600 seconds", 2),
    ("Cache corruption detected", 2),
    ("Merge conflict in src/models.py", 1),
    ("Data loss in table orders", 1),
)
"""Failures, and how many of twenty are such; the last two are for a person."""


class Place(NamedTuple):
    """What the processes share.

    folder: for what hooks and sinks write down. patience_s: until others take up what one has left.
    """

    store: str
    folder: str
    in_doubt: str
    patience_s: float


def note(path: Path, line: str) -> None:
    """Add a line that no kill can take back."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def desk() -> IncidentDesk:
    """The desk of one supervisor, of what its environment says."""
    place = Place(*json.loads(os.environ["BENCH_PLACE"]))
    return desk_of(place, f"desk-{os.getpid()}")


def desk_of(place: Place, owner: str) -> IncidentDesk:
    """A desk whose hooks take a moment, and note what they were asked for before they do it."""
    folder = Path(place.folder)

    async def recover(recovery: Recovery) -> str:
        note(folder / CALLS, recovery.key)
        await anyio.sleep(HOOK_S * random.random())
        return f"agent-of-{recovery.incident.error_id}-{recovery.attempt}"

    def mail(message: Message) -> None:
        note(folder / MAIL, message.key)

    in_doubt: Any = place.in_doubt
    patience = place.patience_s
    return IncidentDesk(
        place.store,
        owner=owner,
        hooks=Hooks(restart=recover, clear_cache=recover, lease_s=patience, on_in_doubt=in_doubt),
        threshold=Threshold(errors=EVERYTHING, scope="task"),
        retries=Retries(most=EVERYTHING, by_cause={}),
        notifications=NotificationPolicy(rate=EVERYTHING, deadline_s=patience, ack_s={}),
        sinks={"*": mail},
        watch=Watch(runs=False),
    )


class Supervisor(NamedTuple):
    """One process. health: a file that it writes once it hears signals."""

    process: subprocess.Popen[bytes]
    health: Path

    def begun(self, until: float) -> None:
        """Wait until it is at work, has ended, or has had its time."""
        while not self.health.exists() and self.process.poll() is None:
            if time.monotonic() > until:
                return
            time.sleep(0.02)


class Herd:
    """Two supervisors, one of which is killed now and then."""

    def __init__(self, place: Place, source: random.Random) -> None:
        self._folder = Path(place.folder)
        self._environment = {
            **os.environ,
            "BENCH_PLACE": json.dumps(place),
            "PYTHONPATH": str(ROOT),
        }
        self._source = source
        self.kills = 0
        self._living = [self._start(f"{number}.json") for number in range(2)]

    def _start(self, name: str) -> Supervisor:
        health = self._folder / name
        arguments = "supervise --desk bench.supervisors:desk --interval 0.2 --at-once 20 --quiet"
        command = [sys.executable, "-m", "triage.cli", *arguments.split(), "--health", str(health)]
        return Supervisor(subprocess.Popen(command, cwd=ROOT, env=self._environment), health)

    def kill(self) -> None:
        """Kill one, and start another in its place."""
        at = self._source.randrange(len(self._living))
        gone = self._living[at].process
        gone.kill()
        gone.wait()
        self.kills += 1
        self._living[at] = self._start(f"after-{self.kills}.json")

    def stop(self) -> list[int]:
        """Tell them to stop; how they ended. One that still starts would just end by the signal."""
        until = time.monotonic() + 60
        for one in self._living:
            one.begun(until)
            one.process.send_signal(signal.SIGTERM)
        return [one.process.wait(timeout=60) for one in self._living]

    def end(self) -> None:
        """Whatever has happened, leave none behind."""
        for one in self._living:
            one.process.kill()
            one.process.wait()


async def fill(desk: IncidentDesk, count: int, source: random.Random) -> None:
    """Report so many failures, each in a task of its own."""
    texts = [text for text, _ in KINDS]
    weights = [weight for _, weight in KINDS]
    limiter = anyio.CapacityLimiter(50)

    async def one(number: int, text: str) -> None:
        async with limiter:
            task, agent = f"T-{number}", f"agent-{number}"
            await desk.report(text, task_id=task, agent_id=agent, agent_type="coder")

    async with anyio.create_task_group() as group:
        for number, text in enumerate(source.choices(texts, weights, k=count)):
            group.start_soon(one, number, text)


async def unfinished(desk: IncidentDesk) -> bool:
    """Whether anything is still to be done about an incident or a message."""
    # Also those that are leased, which are due again if their owner was killed.
    return any(row.due is not None for row in await desk.store.journals("incident"))


def lines(place: Place, name: str) -> list[str]:
    """What was noted in a file."""
    path = Path(place.folder) / name
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


async def worked_off(
    desk: IncidentDesk, herd: Herd, place: Place, kills: Iterable[int], seconds: float
) -> None:
    """Wait until all is done, and kill whenever so many hooks have been called."""
    due = sorted(kills)
    with anyio.fail_after(seconds):
        while True:
            called = len(lines(place, CALLS))
            while due and called >= due[0]:
                due.pop(0)
                await anyio.to_thread.run_sync(herd.kill)
            if not due and not await unfinished(desk):
                return
            await anyio.sleep(0.02 if due else 0.2)


def judged(place: Place, incidents: list[Incident]) -> dict[str, Any]:
    """The numbers, and under `wrong` what must not be.

    A sink that is slower than its deadline on a busy machine is an incident of the desk's own, one for
    each role. It is counted apart: nobody reported it.
    """
    slow_sinks = {one.error_id for one in incidents if one.source == "desk"}
    incidents = [one for one in incidents if one.error_id not in slow_sinks]
    calls = Counter(lines(place, CALLS))
    mail = Counter(lines(place, MAIL))
    messages = [message for one in incidents for message in one.messages]
    keys = {message.key for message in messages}
    status = Counter(str(one.status) for one in incidents)
    retryable = {one.error_id for one in incidents if one.retryable}
    ended = Counter(
        entry.error_id
        for one in incidents
        for entry in one.log
        if entry.verb in ("recovered", "escalated")
    )
    called_by = Counter(key.rpartition("-")[0] for key in calls)
    in_doubt = {one.error_id for one in incidents if one.retryable and one.status == "escalated"}
    wrong = {
        "lost": sum(n for word, n in status.items() if word not in ("recovered", "escalated")),
        "never_ended": sum(1 for one in incidents if not ended[one.error_id]),
        "ended_twice": sum(1 for count in ended.values() if count > 1),
        "never_called": sum(1 for one in retryable - in_doubt if not called_by[one]),
        "called_under_two_keys": sum(1 for count in called_by.values() if count > 1),
        "for_a_person_but_called": sum(1 for one in called_by if one not in retryable),
        "messages_lost": len(keys - mail.keys()),
        "messages_unknown": len(mail.keys() - keys),
        "messages_not_sent": sum(1 for message in messages if message.status != "sent"),
    }
    repeated = sum(calls.values()) - len(calls)
    if place.in_doubt == "escalate":
        wrong["called_twice"] = repeated
    else:
        wrong["left_to_a_person"] = len(in_doubt)
    return {
        "incidents": len(incidents),
        "recovered": status["recovered"],
        "escalated": status["escalated"],
        "in_doubt": len(in_doubt),
        "slow_sinks": len(slow_sinks),
        "hooks_called": sum(calls.values()),
        "hooks_repeated": repeated,
        "messages": len(keys),
        "deliveries": sum(mail.values()),
        "deliveries_repeated": sum(mail.values()) - len(mail),
        "wrong": wrong,
    }


async def everything(desk: IncidentDesk) -> list[Incident]:
    """All incidents in the store."""
    found: list[Incident] = []
    for status in Status:
        found += await desk.incidents(status, limit=EVERYTHING)
    return found


async def storm(
    place: Place, incidents: int, kills: int, seed: int, seconds: float
) -> dict[str, Any]:
    """Fill a store, let two supervisors work it off under fire, and say how that went."""
    source = random.Random(seed)
    parent = desk_of(place, "parent")
    began = time.monotonic()
    try:
        await fill(parent, incidents, source)
        filled = time.monotonic()
        herd = await anyio.to_thread.run_sync(Herd, place, source)
        try:
            points = (source.randrange(1, incidents * 3 // 4) for _ in range(kills))
            await worked_off(parent, herd, place, points, seconds)
            codes = await anyio.to_thread.run_sync(herd.stop)
        finally:
            herd.end()
        told = judged(place, await everything(parent))
    finally:
        await parent.close()
        await parent.store.close()
    told["wrong"]["ended_badly"] = sum(1 for code in codes if code)
    ended = time.monotonic()
    return {
        "store": place.store.partition(":")[0],
        "in_doubt_is": place.in_doubt,
        "kills": herd.kills,
        **told,
        "seconds_to_fill": round(filled - began, 1),
        "seconds_to_handle": round(ended - filled, 1),
    }


def in_store(
    kind: str, in_doubt: str, *, patience_s: float = 2.0, **options: Any
) -> dict[str, Any]:
    """`storm` in a store that is made for it, and removed."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sqlite":
            text = f"sqlite:///{folder}/runs.db?synchronous=normal"
            place = Place(text, folder, in_doubt, patience_s)
            return anyio.run(partial(storm, place, **options))
        import psycopg

        schema = f"bench_{uuid.uuid4().hex[:12]}"
        place = Place(f"{POSTGRES}?schema={schema}", folder, in_doubt, patience_s)
        try:
            return anyio.run(partial(storm, place, **options))
        finally:
            with psycopg.connect(POSTGRES, autocommit=True) as db:
                db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def main() -> int:
    """Print the numbers; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.supervisors", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--incidents", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--in-doubt", choices=("escalate", "rerun"), default="escalate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800.0)
    given = vars(parser.parse_args())
    told = in_store(given.pop("store"), given.pop("in_doubt"), **given)
    print(json.dumps(told))
    return int(any(told["wrong"].values()))


if __name__ == "__main__":
    sys.exit(main())
