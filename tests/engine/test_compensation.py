"""What was done is undone: by a rollback, before it is done otherwise, and when a run ends."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from support import (
    RETRY,
    FakeEnvironment,
    Killed,
    World,
    escalation_of,
    in_turn,
    in_two_processes,
    recovers,
)

import triage
from triage import (
    Abort,
    Agent,
    Escalate,
    FailurePolicy,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
    TriageAbortError,
    TriageEscalationError,
    UsageError,
)
from triage.core import Action, CompensatorRan
from triage.engine import Compensator
from triage.stores import SQLiteStore
from triage.strategies import Backoff, Preset
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio


class Bank:
    """Charges, and refunds that fail as often as told."""

    def __init__(self, *fails: Exception, **policy: Any) -> None:
        self.log: list[str] = []
        self.fails = list(fails)
        self.events: list[triage.core.Event] = []
        self.environment = FakeEnvironment()
        self.charge: Any = triage.tool(
            effect="once", compensate=Compensator(self._refund, **policy), name="charge"
        )(self._charge)

    async def _charge(self, what: str) -> str:
        self.log.append(f"charge {what}")
        return what

    async def _refund(self, receipt: str) -> None:
        self.log.append(f"refund {receipt}")
        if self.fails:
            raise self.fails.pop(0)

    @property
    def ran(self) -> list[str]:
        """What the journal says of compensators."""
        return [
            "begins" if event.begins else "done" if event.error is None else event.error.message
            for event in self.events
            if isinstance(event, CompensatorRan)
        ]

    async def goes_back(self) -> Any:
        async def works(task: str, *, run: Run) -> None:
            run.record_step(Step(action="begin"))
            await self.charge("a")
            if run.attempt == 1:
                raise ConnectionError("late")

        options = recovers(
            Rollback(2), environment=self.environment, observers=[self.events.append]
        )
        await Agent(works, **options).run("t")


async def test_it_is_tried_again_as_often_as_it_says_and_each_try_is_journalled() -> None:
    bank = Bank(LookupError("closed"), ConnectionError("lost"), retries=2)
    await bank.goes_back()
    assert bank.log == ["charge a", "refund a", "refund a", "refund a", "charge a"]
    assert bank.ran == ["begins", "closed", "begins", "lost", "begins", "done"]
    assert bank.environment.slept == [0.75, 1.5], "half of each step is always waited"


async def test_it_waits_as_its_preset_says() -> None:
    bank = Bank(LookupError("closed"), retries=Preset(2, Backoff(base=7.0, jitter=False)))
    await bank.goes_back()
    assert bank.environment.slept == [7.0]


@pytest.mark.parametrize(("retries", "tries"), [(None, 1), (2, 3)])
async def test_one_that_fails_to_the_end_is_reported(
    retries: int | None, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank(*(LookupError(f"closed {n}") for n in range(5)), retries=retries)
    caught = await escalation_of(bank.goes_back(), match="_refund failed with LookupError")
    assert bank.ran[-1] == f"closed {tries - 1}"
    assert bank.log == ["charge a"] + ["refund a"] * tries
    assert f"closed {tries - 1}" in str(caught.__cause__.__notes__)  # type: ignore[union-attr] # set
    assert "compensator" in caplog.text


async def test_it_has_an_idempotency_key_of_its_own() -> None:
    keys: list[str] = []

    @triage.tool(effect="once", compensate=Compensator(lambda _: refund(), retries=1))
    async def charge() -> None:
        keys.append(triage.current_call().idempotency_key)

    def refund() -> None:
        keys.append(triage.current_call().idempotency_key)
        if len(keys) == 2:
            raise ConnectionError("lost")

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await charge()
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, environment=FakeEnvironment(), **recovers(Rollback(2))).run("t")
    assert keys[1] == keys[2] != keys[0]


async def test_a_call_made_again_after_it_was_undone_has_a_new_idempotency_key() -> None:
    answers: dict[str, str] = {}
    log: list[str] = []

    async def refund(receipt: str) -> None:
        log.append(f"refund {receipt}")

    @triage.tool(effect="once", compensate=refund)
    async def charge() -> str:
        """The other side answers to a key that it knows as it did before, and charges nothing."""
        key = triage.current_call().idempotency_key
        if key not in answers:
            answers[key] = f"receipt {len(answers) + 1}"
            log.append(f"charge {answers[key]}")
            if len(answers) == 2:
                raise ConnectionResetError("the answer was lost")
        return answers[key]

    async def works(task: str, *, run: Run) -> str:
        begin = run.record_step(Step(action="begin"))
        receipt = await charge()
        if run.attempt == 1:
            actions.append(Rollback(begin))
            raise ConnectionError("late")
        return receipt

    actions: list[Action] = []
    policy = FailurePolicy(default=lambda _: actions.pop() if actions else Retry())
    assert await Agent(works, policy).run("t") == "receipt 2"
    assert log == ["charge receipt 1", "refund receipt 1", "charge receipt 2"]


async def test_a_tool_that_undoes_another_is_no_call_of_the_attempt() -> None:
    log: list[str] = []

    @triage.tool(effect="once")
    async def refund(receipt: str) -> None:
        log.append(f"refund {receipt}")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> list[str | None]:
        await charge(f"plan {run.attempt}")
        if run.attempt == 1:
            raise ConnectionError("late")
        return [step.tool_called for step in run.trajectory]

    assert await Agent(works, **recovers(Replan())).run("t") == ["charge"]
    assert log == ["charge plan 1", "refund plan 1", "charge plan 2"]


# In another process -------------------------------------------------------------------------------
did: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    did.clear()


async def give_back(receipt: str, what: str) -> None:
    did.append(f"give back {receipt} for {what}")


@triage.tool(effect="once", compensate=give_back)
async def rent(what: str) -> str:
    did.append(f"rent {what}")
    return f"receipt {what}"


@triage.tool(effect="once")
def unsend(letter: str) -> None:
    did.append(f"unsend {letter}")


def unlist(name: str) -> None:
    did.append(f"unlist {name}")


UNLIST = Compensator(unlist)


def once(what: str) -> None:
    """Die where this is done for the first time."""
    if what not in did:
        did.append(what)
        raise Killed


async def test_it_is_at_hand_in_the_process_that_goes_on(tmp_path: Path) -> None:
    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await rent("a")
        await rent("b")
        once("cut")
        if run.attempt == 1:
            raise ConnectionError("late")

    await in_two_processes(works, tmp_path, **recovers(Rollback(2)))
    assert did == [
        "rent a", "rent b", "cut",
        "give back receipt b for b", "give back receipt a for a", "rent a", "rent b",
    ]  # fmt: skip


@pytest.mark.parametrize("undoes", [give_back, unsend, UNLIST])
async def test_of_a_hand_written_step_it_is_at_hand_where_it_is_declared(
    undoes: Any, tmp_path: Path
) -> None:
    async def works(task: str, *, run: Run) -> None:
        if not did:
            run.record_step(Step(action="by hand", effect="once"))
            run.compensator(undoes, "it", *(["all"] if undoes is give_back else []))
        once("cut")
        raise ConnectionError("late")

    caught = await escalation_of(
        in_two_processes(works, tmp_path, **recovers(Escalate(compensate=True)))
    )
    if undoes is give_back:
        assert did == ["cut"]
        assert "not at hand in this process" in str(caught.__notes__)
    else:
        assert did == ["cut", "unsend it" if undoes is unsend else "unlist it"]


async def test_that_of_another_run_is_never_taken(tmp_path: Path) -> None:
    """One that was made inside a function undoes in the name of whoever it was made for."""

    def account(owner: str) -> Any:
        def pay_back(receipt: str) -> None:
            did.append(f"pay {receipt} back to {owner}")

        @triage.tool(effect="once", compensate=pay_back)
        async def pay(what: str) -> str:
            return what

        return pay

    others: list[Any] = []

    async def works(task: str, *, run: Run) -> None:
        if not did:
            await account("ann")("rent")
        once("cut")
        others.append(account("bob"))
        raise ConnectionError("late")

    caught = await escalation_of(
        in_two_processes(works, tmp_path, **recovers(Escalate(compensate=True)))
    )
    assert did == ["cut"]
    assert "not at hand in this process" in str(caught.__notes__)


async def test_one_that_was_made_inside_a_function_is_at_hand_once_its_call_is_made_again(
    tmp_path: Path,
) -> None:
    shop = Shop()

    async def works(task: str, *, run: Run) -> None:
        await shop.book("flight")
        once("cut")
        raise ConnectionError("late")

    await escalation_of(in_two_processes(works, tmp_path, **recovers(Escalate(compensate=True))))
    assert shop.log == ["book flight", "cancel flight"]


async def test_one_that_was_cut_off_is_run_again_with_the_same_key() -> None:
    log: list[str] = []
    keys: list[str] = []
    waiting = anyio.Event()

    async def refund(receipt: str) -> None:
        log.append("refund")
        keys.append(triage.current_call().idempotency_key)
        if log.count("refund") == 1:
            waiting.set()
            await anyio.sleep_forever()

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            await charge("first")
            raise ConnectionError("late")
        if run.attempt == 2:
            async with anyio.create_task_group() as group:
                group.start_soon(charge, "second")
                await waiting.wait()
                group.cancel_scope.cancel()
            raise ConnectionError("cut off")
        await charge("second")

    await Agent(works, **recovers(Replan())).run("t")
    assert log == ["charge first", "refund", "refund", "charge second"]
    assert keys[0] == keys[1]


# Compensators that are killed ---------------------------------------------------------------------
class Killing:
    """Charges three times and books by hand; its process dies where `dies` says, as often as it says.

    dies: by what is undone, where the process dies, in turn: `before` or `after` the undoing itself.
    """

    current: ClassVar[Killing]

    def __init__(self, dies: dict[str, list[str]], refuses: str = "") -> None:
        self.log: list[str] = []
        self.keys: dict[str, set[str]] = {}
        self.dies = dies
        self.refuses = refuses
        Killing.current = self

    def undo(self, what: str) -> None:
        self.keys.setdefault(what, set()).add(triage.current_call().idempotency_key)
        where = self.dies[what].pop(0) if self.dies.get(what) else ""
        if where == "before":
            raise Killed
        self.log.append(f"undo {what}")
        if where == "after":
            raise Killed
        if what == self.refuses:
            raise LookupError(f"{what} is too late")

    async def works(self, task: str, *, run: Run) -> str:
        if run.attempt > 1:
            return "without"
        run.record_step(Step(action="begin"))
        for what in "abc":
            await charge(what)
        run.record_step(Step(action="book", effect="once"))
        run.compensator(CANCEL, "taxi")
        raise ConnectionError("late")

    async def runs(self, action: Action, path: Path) -> Any:
        """The result of the run, in as many processes as it takes."""
        options = recovers(action, critical_step=1)
        begun = False
        while True:
            store = SQLiteStore(path / "runs.db")
            agent: Agent[Any] = Agent(self.works, store=store, **options)
            try:
                if begun:
                    return await agent.recover("run", force=True)
                begun = True
                return await agent.run("t", run_id="run")
            except Killed:
                continue
            finally:
                await store.close()


def undo(what: str) -> None:
    Killing.current.undo(what)


@triage.tool(effect="once", compensate=undo)
async def charge(what: str) -> str:
    Killing.current.log.append(f"charge {what}")
    return what


CANCEL = Compensator(undo)
UNDONE = ["taxi", "c", "b", "a"]
DEATHS = [["before"], ["after"], ["before", "after"], ["after", "after"], ["before"] * 5]


@pytest.mark.parametrize("deaths", DEATHS)
@pytest.mark.parametrize("what", UNDONE)
async def test_a_rollback_that_is_killed_goes_on_however_often(
    what: str, deaths: list[str], tmp_path: Path
) -> None:
    killing = Killing({what: list(deaths)})
    assert await killing.runs(Rollback(), tmp_path) == "without"
    undone = killing.log[3:]
    assert list(dict.fromkeys(undone)) == [f"undo {name}" for name in UNDONE]
    assert len(undone) == len(UNDONE) + deaths.count("after"), "again only where it was cut off"
    assert all(len(keys) == 1 for keys in killing.keys.values())


@pytest.mark.parametrize("deaths", DEATHS)
async def test_an_escalation_that_is_killed_while_it_undoes_goes_on(
    deaths: list[str], tmp_path: Path
) -> None:
    killing = Killing({"c": list(deaths), "a": list(deaths)}, refuses="b")
    caught = await escalation_of(killing.runs(Escalate(compensate=True), tmp_path))
    assert list(dict.fromkeys(killing.log[3:])) == [f"undo {name}" for name in UNDONE]
    assert caught.report is not None
    (stays,) = caught.report.facts.not_undone
    assert stays.startswith('charge({"what": "b"}) stays: ')
    assert "LookupError: b is too late after " in stays
    assert stays in caught.report.to_markdown("developer").replace("\\", "")
    person = caught.report.to_text()
    assert "1 effect could not be undone" in person
    assert "LookupError" not in person
    assert "charge(" not in person

    store = SQLiteStore(tmp_path / "runs.db")
    agent: Agent[Any] = Agent(killing.works, store=store)
    again = await escalation_of(agent.recover("run"))
    await store.close()
    assert again.report is not None
    assert again.report.facts.not_undone == (stays,), "whoever asks later is told the same"


async def test_a_rollback_that_fails_tells_which_how_often_and_what_stays(tmp_path: Path) -> None:
    killing = Killing({"b": ["before"]}, refuses="b")
    caught = await escalation_of(killing.runs(Rollback(), tmp_path))
    assert killing.log[3:] == ["undo taxi", "undo c", "undo b"]
    text = str(caught)
    assert "undo failed with LookupError after 2 tries" in text
    assert 'charge({"what": "b"}) stays' in text
    assert 'charge({"what": "a"}) stays' in text
    assert 'charge({"what": "c"})' not in text
    assert "b is too late" in str(caught.__notes__)


async def test_of_two_tools_of_one_name_none_is_guessed(tmp_path: Path) -> None:
    first, second = Shop(), Shop()

    async def works(task: str, *, run: Run) -> None:
        if "cut" not in first.log:
            await first.book("flight")
            first.log.append("cut")
            raise Killed
        assert second.book is not first.book
        raise ConnectionError("late")

    caught = await escalation_of(
        in_two_processes(works, tmp_path, **recovers(Escalate(compensate=True)))
    )
    assert (first.log, second.log) == (["book flight", "cut"], [])
    assert "not at hand" in str(caught.__notes__)


# Rollbacks ----------------------------------------------------------------------------------------
async def test_a_rollback_over_an_effect_without_compensator_escalates() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await once("x")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="compensate="):
        await Agent(works, **recovers(Rollback(2))).run("t")


async def test_every_compensator_of_a_step_runs_newest_first() -> None:
    log: list[str] = []

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="book", effect="once"))
        run.compensator(log.append, "undo flight")
        run.compensator(log.append, "undo hotel")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert log == ["undo hotel", "undo flight"]


async def test_a_compensator_undoes_the_step_by_hand_although_a_call_came_between() -> None:
    log: list[str] = []

    @triage.tool(effect="read")
    async def look() -> str:
        return "there"

    async def works(task: str, *, run: Run) -> str:
        run.record_step(Step(action="mail", effect="once"))
        log.append("mail")
        await look()
        run.compensator(log.append, "recall")
        if run.attempt == 1:
            raise ConnectionError("late")
        return "done"

    assert await Agent(works, **recovers(Retry())).run("t") == "done"
    assert log == ["mail", "recall", "mail"]


async def test_a_call_is_no_step_for_a_compensator_by_hand() -> None:
    @triage.tool(effect="read")
    async def look() -> str:
        return "there"

    async def works(task: str, *, run: Run) -> None:
        await look()
        run.compensator(len_of, "x")

    with pytest.raises(UsageError, match="none is recorded"):
        await Agent(works, RETRY).run("t")


async def test_an_effect_of_an_earlier_attempt_is_not_forgotten() -> None:
    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            run.subgoals(["rest"])
            run.record_step(Step(action="send mail", effect="once"))
        raise ConnectionError("late")

    options = recovers(in_turn(Resume(), Retry()))
    with pytest.raises(TriageEscalationError, match="send mail"):
        await Agent(works, **options).run("t")


async def test_a_rollback_does_not_pass_over_an_effect_of_an_earlier_attempt() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            run.record_step(Step(action="begin"))
            await once("a")
        if run.attempt == 3:
            await once("b")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="compensate="):
        await Agent(works, **recovers(in_turn(Retry(), Rollback(2), Retry()))).run("t")
    assert world.did == ["once(a)"]


async def test_a_compensator_needs_a_step_to_undo() -> None:
    async def works(task: str, *, run: Run) -> None:
        run.compensator(len_of, "x")

    with pytest.raises(UsageError, match="none is recorded"):
        await Agent(works, RETRY).run("t")


async def test_a_rollback_before_the_first_step_starts_over() -> None:
    kept: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        kept.append(len(run.trajectory))
        if run.attempt == 1:
            run.record_step(Step(action="wrong from the start"))
            raise ConnectionError("late")

    await Agent(works, **recovers(Rollback(), critical_step=0)).run("t")
    assert kept == [0, 0]


@pytest.mark.parametrize("action", [Retry(), Replan()])
async def test_a_hand_written_effect_is_never_repeated(action: Any) -> None:
    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="send mail", effect="once"))
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match=r"send mail.*recorded by hand"):
        await Agent(works, **recovers(action)).run("t")


async def test_a_step_recorded_by_hand_without_an_action_goes_by_its_tool() -> None:
    async def pays(task: str, *, run: Run) -> None:
        run.record_step(Step(tool_called="pay", effect="once"))
        raise ConnectionError("down")

    with pytest.raises(TriageEscalationError, match=r"the step pay had the effect once"):
        await Agent(pays, **recovers(Retry())).run("x")


async def test_an_unsafe_call_left_running_is_waited_for() -> None:
    finished: list[str] = []
    begun = anyio.Event()

    @triage.tool(effect="once")
    async def slow() -> str:
        begun.set()
        await anyio.sleep(0.02)
        finished.append("slow")
        return "slow"

    async with anyio.create_task_group() as outside:

        async def works(task: str, *, run: Run) -> str:
            if run.attempt == 1:
                outside.start_soon(functools.partial(run.call, slow))  # outlives its attempt
                await begun.wait()
                raise ConnectionError("late")
            return await slow()

        assert await Agent(works, **recovers(Retry())).run("t") == "slow"
    assert finished == ["slow"]


async def test_an_interrupt_lets_an_unsafe_call_finish_and_starts_no_other() -> None:
    log: list[str] = []
    clock = VirtualTime()

    @triage.tool(effect="once")
    async def charge(what: str) -> str:
        log.append(f"begin {what}")
        await clock.sleep(60)
        log.append(f"end {what}")
        return what

    async def works(task: str, *, run: Run) -> str:
        first = await charge("a")
        await charge("b")
        return first

    limits = triage.Limits(attempt_seconds=30, attempts=2)
    agent = Agent(works, limits=limits, environment=clock, **recovers(Retry()))
    with pytest.raises(TriageEscalationError):
        await agent.run("t")
    assert log[:2] == ["begin a", "end a"]
    assert log.count("begin a") == 1


def len_of(text: str) -> int:
    return len(text)


# Runs that end ------------------------------------------------------------------------------------
class Shop:
    """Books and cancels; cancelling what `refuses` names fails."""

    def __init__(self, refuses: str = "") -> None:
        self.log: list[str] = []

        def cancel(what: str) -> None:
            self.log.append(f"cancel {what}")
            if what == refuses:
                raise LookupError(f"{what} cannot be cancelled")

        @triage.tool(effect="once", compensate=cancel)
        async def book(what: str) -> str:
            self.log.append(f"book {what}")
            return what

        self.book = book
        self.cancel = cancel

    async def works(self, task: str, *, run: Run) -> None:
        await self.book("flight")
        await self.book("hotel")
        if run.attempt == 1:
            run.record_step(Step(action="by hand", effect="once"))
            run.compensator(self.cancel, "taxi")
        raise ConnectionError("late")


@pytest.mark.parametrize(
    ("action", "kind"), [(Escalate, TriageEscalationError), (Abort, TriageAbortError)]
)
async def test_all_is_undone_newest_first_where_it_is_asked_for(action: Any, kind: Any) -> None:
    shop = Shop()
    with pytest.raises(kind) as caught:
        await Agent(shop.works, **recovers(action("enough", compensate=True))).run("t")
    assert shop.log[2:] == ["cancel taxi", "cancel hotel", "cancel flight"]
    assert [note.partition(":")[0] for note in caught.value.__notes__] == ["explained"]


@pytest.mark.parametrize("action", [Escalate(), Abort()])
async def test_nothing_is_undone_where_it_is_not(action: Action) -> None:
    shop = Shop()
    with pytest.raises(triage.TriageError):
        await Agent(shop.works, **recovers(action)).run("t")
    assert shop.log == ["book flight", "book hotel"]


async def test_one_that_fails_is_told_on_the_error_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(refuses="hotel")
    caught = await escalation_of(Agent(shop.works, **recovers(Escalate(compensate=True))).run("t"))
    assert shop.log[2:] == ["cancel taxi", "cancel hotel", "cancel flight"]
    assert "hotel cannot be cancelled" in str(caught.__notes__)
    assert isinstance(caught.__cause__, ConnectionError)


async def test_a_rollback_undoes_what_was_given_again_behind_its_checkpoint() -> None:
    shop = Shop()
    begins: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        begins.append(run.record_step(Step(action="begin")))
        await shop.book("flight")
        if run.attempt < 3:
            raise ConnectionError("late")

    def back(context: triage.FailureContext) -> Action:
        return Retry() if context.attempt == 1 else Rollback(begins[-1])

    await Agent(works, **recovers(back)).run("t")
    assert shop.log == ["book flight", "cancel flight", "book flight"]


async def test_a_rollback_keeps_what_its_checkpoint_had_although_it_was_given_again_later() -> None:
    shop = Shop()
    places: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        await shop.book("flight")
        places.append(run.record_step(Step(action="booked")))
        if run.attempt < 3:
            raise ConnectionError("late")

    def back(context: triage.FailureContext) -> Action:
        return Retry() if context.attempt == 1 else Rollback(places[0])

    await Agent(works, **recovers(back)).run("t")
    assert shop.log == ["book flight"]


async def test_no_rollback_goes_to_a_checkpoint_whose_effects_have_been_undone() -> None:
    shop = Shop()
    places: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        places.append(run.record_step(Step(action="begin")))
        receipt = await shop.book("flight")
        places.append(run.update_state({"receipt": receipt}))
        if run.attempt < 4:
            raise ConnectionError("late")
        return str(run.state["receipt"])

    # The second one would bring back the state with the receipt of the flight that was cancelled.
    back = in_turn(lambda: Rollback(places[0]), lambda: Rollback(places[1]))
    agent = Agent(works, **recovers(lambda context: back(context)()))
    caught = await escalation_of(agent.run("t"), match="does not hold any more")
    assert "book" in str(caught)
    assert shop.log == ["book flight", "cancel flight", "book flight"]


async def test_a_rollback_goes_to_a_checkpoint_of_what_was_done_again_after_it_was_undone() -> None:
    shop = Shop()
    places: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        places.append(run.record_step(Step(action="begin")))
        await shop.book("flight")
        places.append(run.record_step(Step(action="booked")))
        if run.attempt < 3:
            raise ConnectionError("late")

    back = in_turn(lambda: Rollback(places[0]), lambda: Rollback(places[3]))
    await Agent(works, **recovers(lambda context: back(context)())).run("t")
    assert shop.log == ["book flight", "cancel flight", "book flight"]


async def test_what_only_the_process_before_could_undo_is_told(tmp_path: Path) -> None:
    shop = Shop()

    async def works(task: str, *, run: Run) -> None:
        if "cut" not in shop.log:

            @triage.tool(effect="once", compensate=shop.cancel)
            async def rent(what: str) -> str:
                return what

            await rent("car")
            shop.log.append("cut")
            raise Killed
        raise ConnectionError("late")

    caught = await escalation_of(
        in_two_processes(works, tmp_path, **recovers(Escalate(compensate=True)))
    )
    assert shop.log == ["cut"]
    assert "not at hand in this process" in str(caught.__notes__)


async def test_a_policy_for_hand_written_steps_is_kept() -> None:
    tries: list[str] = []

    def cancel() -> None:
        tries.append("cancel")
        if len(tries) == 1:
            raise ConnectionError("busy")

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="by hand", effect="once"))
        run.compensator(Compensator(cancel, retries=1))
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, environment=FakeEnvironment(), **recovers(in_turn(Retry(), Escalate()))).run(
        "t"
    )
    assert tries == ["cancel", "cancel"]
