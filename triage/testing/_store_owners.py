"""Checks of owners, leases and dead letters."""

from __future__ import annotations

import anyio

from triage.errors import DeadLetter, RunBusy, RunOver, StaleWriter, UnknownRun
from triage.stores import Claim, Store

from ._store_written import LEASE, OVER, Written, promise, refused


async def who_is_taken_over_can_write_no_more(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    await run.append(run.step())
    claim = await store.claim(run.run_id, lease_s=LEASE)
    promise(claim == Claim(epoch=1, events=2, claims=1), f"the first claim is {claim}")
    for late in (run.step("late"), run.suspended("token"), run.resumed(), run.finished()):
        await refused(StaleWriter, "an append of the owner before", run.append(late))
    tried = store.renew(run.run_id, epoch=0, lease_s=LEASE)
    await refused(StaleWriter, "a renewal of the owner before", tried)
    await refused(StaleWriter, "a release of the owner before", store.release(run.run_id, epoch=0))
    await run.stands()
    run.epoch = claim.epoch
    await run.append(run.step("mine"))
    await run.stands()


async def a_lease_keeps_others_away(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    busy = await refused(RunBusy, "a lease lives", store.claim(run.run_id, lease_s=LEASE))
    promise(0 < busy.wait_s <= LEASE, "RunBusy says how long the lease lasts")
    promise((await run.info()).epoch == 0, "a refused claim changes nothing")
    await run.claim(force=True)
    await refused(RunBusy, "a new lease lives", store.claim(run.run_id, lease_s=LEASE))
    tried = store.claim(run.run_id, lease_s=LEASE, revive=True)
    await refused(RunBusy, "to revive is not to pass over a lease", tried)


async def a_lease_ends_by_itself(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    await run.claim(lease_s=OVER)
    await run.claim(lease_s=OVER)
    promise((await run.info()).claims == 2, "claims are counted")


async def leases_are_on_the_clock_that_the_store_tells(store: Store) -> None:
    before = await store.now()
    run = await Written(store).begin(lease_s=LEASE)
    after = await store.now()
    lease = (await run.info()).lease_until or 0.0
    promise(before - 1 <= lease - LEASE <= after + 1, "a lease lasts so many seconds from now()")
    promise(before <= after, "the time goes on")


async def a_run_without_a_lease_can_be_claimed(store: Store) -> None:
    run = await Written(store).begin()
    promise((await run.info()).lease_until is None, "there is no lease")
    await run.claim()
    promise((await run.info()).lease_until is not None, "a claim brings a lease")


async def appends_and_renewals_extend_the_lease(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    await run.append(run.step(), lease_s=LEASE)
    await refused(RunBusy, "an append extends the lease", store.claim(run.run_id, lease_s=LEASE))
    before = (await run.info()).lease_until or 0.0
    await run.append(run.step())
    promise((await run.info()).lease_until == before, "an append without lease_s leaves it")
    await store.renew(run.run_id, epoch=0, lease_s=2 * LEASE)
    promise(((await run.info()).lease_until or 0.0) > before, "a renewal extends it")
    await store.renew(run.run_id, epoch=0, lease_s=OVER)
    await run.claim()


async def a_release_ends_the_lease_and_takes_back_the_claim(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    await store.release(run.run_id, epoch=0)
    for _ in range(5):
        await run.claim()
        promise((await run.info()).claims == 1, "a release takes back the claim")
        await store.release(run.run_id, epoch=run.epoch)
        await store.release(run.run_id, epoch=run.epoch)
    promise((await run.info()).claims == 0, "a release takes back one claim")
    await run.status("running")


async def three_lost_owners_make_a_dead_letter(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    for _ in range(3):
        await run.claim(lease_s=OVER)
    for force in (True, False):
        tried = store.claim(run.run_id, lease_s=LEASE, force=force)
        await refused(DeadLetter, "a fourth claim, whether the lease lives or not", tried)
        await run.status("dead_letter")
    letters = await store.runs("dead_letter")
    promise([info.run_id for info in letters] == [run.run_id], "a dead letter is listed")
    await refused(StaleWriter, "its last owner is fenced", run.append(run.step()))
    claim = await store.claim(run.run_id, lease_s=LEASE, revive=True)
    promise(claim.claims == 1, "of a dead letter that is revived, the claims count anew")
    run.epoch = claim.epoch
    await run.status("running")
    await run.append(run.finished())
    await run.status("done")


async def a_suspension_forgives_the_claims(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    for number in range(3):
        await run.claim(lease_s=OVER)
        await run.claim(lease_s=LEASE)
        await run.append(run.suspended(f"token-{run.run_id}-{number}"), lease_s=LEASE)
        info = await run.info()
        promise(info.claims == 0, "a suspension forgives the claims")
        promise(info.lease_until is None, "a suspended run has no lease")
        await run.claim(lease_s=OVER)
        await run.status("suspended")
        await run.append(run.resumed())
    await run.status("running")


async def renewing_what_waits_or_has_ended_does_nothing(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    await run.append(run.suspended(f"token-{run.run_id}"))
    await store.renew(run.run_id, epoch=0, lease_s=LEASE)
    promise((await run.info()).lease_until is None, "a suspended run gets no lease")
    await run.claim()
    await run.append(run.resumed(), run.finished(ahead=1))
    await store.renew(run.run_id, epoch=run.epoch, lease_s=LEASE)
    promise((await run.info()).lease_until is None, "a finished run gets no lease")


async def a_run_that_has_ended_cannot_be_claimed(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.finished("aborted"))
    for force in (False, True):
        tried = store.claim(run.run_id, lease_s=LEASE, force=force)
        await refused(RunOver, "a claim of a finished run", tried)
    await run.status("aborted")


async def an_unknown_run_cannot_be_claimed(store: Store) -> None:
    for force in (False, True):
        tried = store.claim("nobody", lease_s=LEASE, force=force)
        await refused(UnknownRun, "a claim of an unknown run", tried)
    await refused(UnknownRun, "a renewal of one", store.renew("nobody", epoch=0, lease_s=LEASE))
    await refused(UnknownRun, "a release of one", store.release("nobody", epoch=0))
    promise(await store.runs() == [], "nothing was made of it")


async def one_of_many_claims_wins(store: Store) -> None:
    run = await Written(store).begin()
    won: list[Claim] = []

    async def take() -> None:
        try:
            won.append(await store.claim(run.run_id, lease_s=LEASE))
        except RunBusy:
            return

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(take)
    promise(won == [Claim(1, 1, 1)], f"{len(won)} of 20 claims won")


CHECKS = (
    who_is_taken_over_can_write_no_more,
    a_lease_keeps_others_away,
    a_lease_ends_by_itself,
    leases_are_on_the_clock_that_the_store_tells,
    a_run_without_a_lease_can_be_claimed,
    appends_and_renewals_extend_the_lease,
    a_release_ends_the_lease_and_takes_back_the_claim,
    three_lost_owners_make_a_dead_letter,
    a_suspension_forgives_the_claims,
    renewing_what_waits_or_has_ended_does_nothing,
    a_run_that_has_ended_cannot_be_claimed,
    an_unknown_run_cannot_be_claimed,
    one_of_many_claims_wins,
)
