"""Checks of appending and reading."""

from __future__ import annotations

import threading
from typing import Any

import anyio

from triage import StaleWriter
from triage.events import Event, StateUpdated
from triage.stores import Store

from ._store_written import LEASE, Written, promise, refused


async def a_store_has_every_method(store: Store) -> None:
    promise(isinstance(store, Store), "it has the methods of `Store`")


async def what_is_appended_is_read(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.attempt())
    await run.append(run.step(), run.step({"deep": [1, 2.5, None, True]}, ahead=1))
    await run.stands()
    for after in range(-1, len(run.events) + 1):
        found = await store.read(run.run_id, after)
        promise(found == run.events[after + 1 :], f"read(after={after}) gives what is behind it")


async def an_unknown_run_has_no_events(store: Store) -> None:
    for run_id in (
        "nobody",
        "' OR 1=1 --",
        "../../etc/passwd",
        "a\0b",
        "\ud800",
        "",
        "%",
        "*",
        "?",
    ):
        promise(await store.read(run_id) == [], f"run {run_id!r} has no events")
        promise(await store.info(run_id) is None, f"run {run_id!r} is not known")
        promise(await store.find(run_id) is None, f"nobody waits with {run_id!r}")


async def a_run_begins_at_its_start(store: Store) -> None:
    run = Written(store)
    for at, epoch in ((1, 0), (0, 1), (7, 3)):
        tried = store.append(run.run_id, [run.started()], at=at, epoch=epoch)
        await refused(StaleWriter, f"position {at} of epoch {epoch} of a new run", tried)
    promise(await store.info(run.run_id) is None, "a refused append leaves no run")


async def an_append_elsewhere_is_stale(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.step(1), run.step(2, ahead=1))
    for at in (0, 1, 2, 4, 100):
        tried = store.append(run.run_id, [run.step("other")], at=at, epoch=0)
        await refused(StaleWriter, f"position {at} of a journal with 3 events", tried)
    await run.stands()


async def an_append_of_another_epoch_is_stale(store: Store) -> None:
    run = await Written(store).begin()
    await run.claim()
    for epoch in (0, 2, 9):
        tried = store.append(run.run_id, [run.step()], at=1, epoch=epoch)
        await refused(StaleWriter, f"epoch {epoch} while 1 is the newest", tried)
    await run.append(run.step())
    await run.stands()


async def an_append_that_comes_again_is_written_once(store: Store) -> None:
    run = await Written(store).begin()
    first = [run.step(1), run.step(2, ahead=1)]
    await run.append(*first)
    await store.append(run.run_id, first, at=1, epoch=0)
    await run.stands()
    await run.append(run.step(3))
    await store.append(run.run_id, first, at=1, epoch=0)
    await run.stands()
    await store.append(run.run_id, run.events[:1], at=0, epoch=0)
    await run.stands()
    await run.claim()
    tried = store.append(run.run_id, first, at=1, epoch=0)
    await refused(StaleWriter, "an append that comes again from an owner before", tried)


async def one_of_many_writers_wins(store: Store) -> None:
    run = await Written(store).begin()
    won: list[Event] = []

    async def write(number: int) -> None:
        event = run.step(number)
        try:
            await store.append(run.run_id, [event], at=1, epoch=0)
        except StaleWriter:
            return
        won.append(event)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(write, number)
    promise(len(won) == 1, f"{len(won)} of 20 writers wrote at one position")
    await run.stands([*run.events, *won])


async def a_stale_append_does_not_fail_its_neighbours(store: Store) -> None:
    runs = [await Written(store).begin() for _ in range(10)]
    outcomes: dict[int, bool] = {}

    async def write(number: int, run: Written) -> None:
        at = 1 if number % 2 else 5
        try:
            await store.append(run.run_id, [run.step(number)], at=at, epoch=0)
            outcomes[number] = True
        except StaleWriter:
            outcomes[number] = False

    async with anyio.create_task_group() as group:
        for number, run in enumerate(runs):
            group.start_soon(write, number, run)
    promise(outcomes == {n: bool(n % 2) for n in range(10)}, "the right ones are written")
    for number, run in enumerate(runs):
        length = len(await store.read(run.run_id))
        promise(length == 1 + number % 2, "a refused append leaves nothing, a good one stands")


async def many_runs_are_written_at_once(store: Store) -> None:
    runs = [Written(store) for _ in range(50)]

    async def live(run: Written) -> None:
        await run.begin(lease_s=LEASE)
        for number in range(6):
            await run.append(run.step(number), lease_s=LEASE)
        await run.append(run.finished())

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(live, run)
    for run in runs:
        await run.stands()
        await run.status("done")


async def a_later_change_does_not_reach_the_journal(store: Store) -> None:
    run = await Written(store).begin()
    values: dict[str, Any] = {"list": [1]}
    event = StateUpdated(run.run_id, 1, 1.0, 1, {"list": [1]})
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        done.set()

    given = event._replace(values=values)
    store.submit(run.run_id, (given,), at=1, epoch=0, lease_s=None, done=tell)
    await anyio.to_thread.run_sync(done.wait)
    found = await store.read(run.run_id, 0)
    promise(found == [event] and told == [None], "what was submitted is what is read")


async def any_value_comes_back(store: Store) -> None:
    run = await Written(store).begin()
    values: tuple[Any, ...] = (
        "a\0b", "\ud800 alone", "\u2028 ü 漢 🙂", "'; DROP TABLE runs; --", 2**70, -1e308, "",
        {"": {"$triage": "blob", "digest": "0" * 64}}, [[[[[[]]]]]], '\n\r\t|\\"',
    )  # fmt: skip
    for value in values:
        await run.append(run.step(value))
    await run.stands()


async def large_values_come_back(store: Store) -> None:
    big = {"rows": [{"name": f"row {number}", "text": "x" * 50} for number in range(2_000)]}
    one, two = await Written(store).begin(), await Written(store).begin()
    for run in (one, two):
        await run.append(
            run.step(big), run.step("y" * 100_000, ahead=1), run.step("small", ahead=2)
        )
        await store.append(run.run_id, run.events[1:], at=1, epoch=0)
        await run.stands()
    await one.append(one.finished())
    promise(await store.prune(keep=0) == 1, "one run had finished")
    await two.stands()
    promise(await store.read(one.run_id) == [], "a run that was removed is gone")


async def submitted_appends_keep_their_order(store: Store) -> None:
    run = await Written(store).begin()
    events = [run.step(number, ahead=number) for number in range(50)]
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        if len(told) == len(events):
            done.set()

    def submit_all() -> None:
        for event in events:
            store.submit(run.run_id, [event], at=event.seq, epoch=0, lease_s=LEASE, done=tell)

    await anyio.to_thread.run_sync(submit_all)
    await anyio.to_thread.run_sync(done.wait)
    promise(told == [None] * len(events), "each `done` is called once, with None")
    await run.stands([*run.events, *events])
    lease = (await run.info()).lease_until
    promise(lease is not None, "a submitted append extends the lease")


async def a_submitted_append_that_fails_says_so(store: Store) -> None:
    run = await Written(store).begin()
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        if len(told) == 2:
            done.set()

    for at in (3, 4):
        store.submit(run.run_id, [run.step()], at=at, epoch=0, lease_s=None, done=tell)
    await anyio.to_thread.run_sync(done.wait)
    stale = all(isinstance(error, StaleWriter) for error in told)
    promise(stale and len(told) == 2, "`done` is called once for each, with StaleWriter")
    await run.stands()


async def a_store_that_was_closed_opens_again(store: Store) -> None:
    run = await Written(store).begin()
    await store.close()
    await store.close()
    await run.append(run.step())
    await run.stands()


CHECKS = (
    a_store_has_every_method,
    what_is_appended_is_read,
    an_unknown_run_has_no_events,
    a_run_begins_at_its_start,
    an_append_elsewhere_is_stale,
    an_append_of_another_epoch_is_stale,
    an_append_that_comes_again_is_written_once,
    one_of_many_writers_wins,
    a_stale_append_does_not_fail_its_neighbours,
    many_runs_are_written_at_once,
    a_later_change_does_not_reach_the_journal,
    any_value_comes_back,
    large_values_come_back,
    submitted_appends_keep_their_order,
    a_submitted_append_that_fails_says_so,
    a_store_that_was_closed_opens_again,
)
