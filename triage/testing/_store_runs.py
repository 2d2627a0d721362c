"""Checks of statuses, tokens, listings and removal."""

from __future__ import annotations

from typing import Any

from triage import StaleWriter
from triage.errors import UsageError
from triage.stores import RunInfo, Store

from ._store_written import LEASE, Written, promise, refused


async def the_status_follows_from_the_events(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    await run.status("running")
    await run.append(run.step(), run.suspended("digest", ahead=1))
    await run.status("suspended")
    await run.append(run.step())
    await run.status("suspended")
    await run.append(run.resumed(), run.step(ahead=1))
    await run.status("running")
    await run.append(run.finished("escalated"))
    await run.status("escalated")
    at_once = Written(store)
    await at_once.append(at_once.started(), at_once.finished("done", ahead=1), lease_s=LEASE)
    await at_once.status("done")
    promise((await at_once.info()).lease_until is None, "a finished run has no lease")


async def a_token_is_found_while_its_question_waits(store: Store) -> None:
    run, other = await Written(store).begin(), await Written(store).begin()
    await run.append(run.suspended("first"))
    promise(await store.find("first") == run.run_id, "the run that waits is found")
    promise(await store.find("second") is None, "no other token finds it")
    await run.append(run.resumed())
    promise(await store.find("first") is None, "an answered question is found no more")
    await run.append(run.suspended("second"))
    promise(await store.find("first") is None, "an old token never meets a new question")
    promise(await store.find("second") == run.run_id, "the new one does")
    await other.append(other.suspended("third"), other.resumed(ahead=1), other.step(ahead=2))
    promise(await store.find("third") is None, "a question answered in its batch is not found")
    await run.append(run.finished("cancelled"))
    promise(await store.find("second") is None, "a finished run waits for nothing")


async def a_question_is_answered_once(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.suspended("token"))
    answer, late = run.resumed(), run.resumed()
    await run.append(answer)
    tried = store.append(run.run_id, [late], at=2, epoch=0)
    await refused(StaleWriter, "a second answer", tried)
    await run.stands()


async def runs_are_listed_newest_first(store: Store) -> None:
    runs = [
        await Written(store, agent=agent, parent=parent).begin()
        for agent, parent in (("a", None), ("b", "above"), ("a", "above"), ("it's\0 \ud800", None))
    ]
    await runs[0].append(runs[0].finished())
    ids = [run.run_id for run in runs]

    async def listed(expected: list[int], **wanted: Any) -> None:
        found = [info.run_id for info in await store.runs(**wanted)]
        promise(found == [ids[at] for at in expected], f"runs({wanted}) gives {found}")

    await listed([3, 2, 1, 0])
    await listed([3, 2, 1], status="running")
    await listed([0], status="done")
    await listed([], status="suspended")
    await listed([2, 0], agent="a")
    await listed([3], agent="it's\0 \ud800")
    await listed([2, 1], parent="above")
    await listed([2], parent="above", agent="a", status="running")
    for hostile in ("' OR 1=1 --", "\0", "\ud800", "%", "*"):
        await listed([], status=hostile)
        await listed([], agent=hostile)
        await listed([], parent=hostile)
    for limit in (0, 1, 2, 9):
        found = [info.run_id for info in await store.runs(limit=limit)]
        promise(found == ids[::-1][:limit], f"runs(limit={limit}) gives the newest of them")


async def a_listing_tells_of_a_run(store: Store) -> None:
    run = await Written(store, agent="it's\0", parent="above").begin()
    await run.append(run.step())
    expected = RunInfo(
        run.run_id, "it's\0", "running", run.events[0].time, run.events[1].time, 2, parent="above"
    )
    promise(await run.info() == expected, f"info gives {await run.info()}, not {expected}")
    promise(await store.runs() == [expected], "runs gives the same")


async def pruning_removes_finished_runs_only(store: Store) -> None:
    runs = [await Written(store).begin() for _ in range(6)]
    await runs[0].append(runs[0].suspended("waits"))
    for run in runs[2:]:
        await run.append(run.finished())
    promise(await store.prune() == 0, "with neither bound nothing is removed")
    promise(await store.prune(older_than=3600) == 0, "none finished an hour ago")
    promise(await store.prune(keep=4) == 0, "there are four finished ones")
    promise(await store.prune(keep=3) == 1, "the oldest one goes")
    promise(await store.info(runs[2].run_id) is None, "it is gone")
    promise(await store.prune(older_than=0, keep=2) == 1, "both bounds: what neither keeps")
    promise(await store.prune(older_than=3600, keep=0) == 0, "both bounds: the first keeps all")
    left = [info.run_id for info in await store.runs()]
    expected = [run.run_id for run in (*runs[4:], *runs[:2])]
    promise(sorted(left) == sorted(expected), "the others stay")
    promise(await store.prune(older_than=0) == 2, "all finished ones go")
    promise(await store.find("waits") == runs[0].run_id, "a suspended run is never removed")
    await runs[0].stands()
    await runs[1].append(runs[1].step())


async def a_removed_id_may_be_used_again(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.finished())
    promise(await store.prune(keep=0) == 1, "the finished run goes")
    again = Written(store)
    again.run_id = run.run_id
    await again.begin()
    await again.append(again.step())
    await again.stands()
    await again.status("running")


async def bounds_that_mean_nothing_are_refused(store: Store) -> None:
    run = await Written(store).begin()
    await refused(UsageError, "a negative age", store.prune(older_than=-1))
    await refused(UsageError, "a negative count", store.prune(keep=-1))
    for lease_s in (0, -1, float("nan"), float("inf")):
        await refused(UsageError, "no lease", store.claim(run.run_id, lease_s=lease_s))
        await refused(UsageError, "no lease", store.renew(run.run_id, epoch=0, lease_s=lease_s))
    promise((await run.info()).epoch == 0, "nothing was changed")


CHECKS = (
    the_status_follows_from_the_events,
    a_token_is_found_while_its_question_waits,
    a_question_is_answered_once,
    runs_are_listed_newest_first,
    a_listing_tells_of_a_run,
    pruning_removes_finished_runs_only,
    a_removed_id_may_be_used_again,
    bounds_that_mean_nothing_are_refused,
)
