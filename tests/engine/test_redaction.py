"""A run's redactor holds wherever its texts go, and no secret that a run uses reaches a store."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from support import Says, always, in_turn, question_of, recovers
from tables import table

import triage
from triage import (
    Agent,
    Checks,
    Durability,
    Escalate,
    FailurePolicy,
    Retry,
    Run,
    Step,
    Suspend,
)
from triage.classifiers import Grounds
from triage.core import LoggingObserver, Redactor, RunFinished, TriageError, redact
from triage.core.secret_shapes import HIDDEN
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio


SECRET = "BADGE-4711"


KEY = "sk-aB3dE5gH7jK9mN1pQ3sT5vW7"


OWN = Durability(redact=Redactor(patterns=(r"BADGE-\d+",)))


def clean(text: str) -> bool:
    return SECRET not in text and HIDDEN in text


async def test_the_usual_one_does_not_know_what_this_one_finds() -> None:
    assert redact(SECRET) == SECRET


async def fails(task: str) -> None:
    raise ConnectionError(f"no entry with {SECRET}")


async def test_errors_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(
        fails,
        always(lambda _context: Escalate(f"ask {SECRET}")),
        durability=OWN,
        observers=[LoggingObserver(logging.WARNING)],
    )
    with caplog.at_level(logging.WARNING, "triage"), pytest.raises(TriageError) as raised:
        await agent.run(SECRET)
    assert clean(str(raised.value))
    assert raised.value.diagnosis is not None
    assert clean(raised.value.diagnosis.technical_details)
    assert clean(caplog.text)
    assert redact(SECRET) == SECRET  # the run is over


async def test_whatever_fails_beside_a_run_is_logged_without_what_is_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def classify(self, trajectory: Any, task: Any) -> Any:
            raise LookupError(f"the classifier was asked with {SECRET} and {KEY}")

    def observer(event: Any) -> None:
        raise ValueError(f"the observer saw {SECRET}") from OSError(f"password={KEY}")

    agent = Agent(
        fails,
        always(lambda _context: Escalate("enough")),
        classifier=Broken(),
        observers=[observer],
        durability=OWN,
    )
    with caplog.at_level(logging.DEBUG, "triage"), pytest.raises(TriageError) as raised:
        await agent.run("t")
    assert "the classifier was asked with" in caplog.text
    assert "the observer saw" in caplog.text
    assert "Traceback" in caplog.text
    assert clean(caplog.text)
    assert KEY not in caplog.text
    assert KEY not in repr(raised.value.diagnosis)


async def test_questions_of_a_policy_and_of_calls() -> None:
    asks = Agent(fails, always(lambda _c: Suspend(f"may {SECRET} in?")), durability=OWN)
    raised = await question_of(asks.run("t"))
    assert clean(raised.question)

    @triage.tool(effect="once")
    async def enter(badge: str) -> None:
        raise ConnectionResetError("reset by peer")

    async def enters(task: str) -> None:
        await enter(SECRET)

    raised = await question_of(Agent(enters, durability=OWN).run("t"))
    assert clean(raised.question)


@table(
    "checks",
    [
        Checks(verify=lambda result: f"{result} is refused"),
        Checks(grounding=Grounds(kinds=("id",))),
    ],
)
async def test_hints_of_checks(checks: Checks) -> None:
    async def works(task: str) -> str:
        return f"the answer is {SECRET}"

    agent = Agent(
        works,
        always(lambda _context: Escalate("enough")),
        checks=checks,
        durability=OWN,
    )
    with pytest.raises(TriageError) as raised:
        await agent.run("t")
    assert raised.value.diagnosis is not None
    assert clean(str(raised.value.diagnosis.hint))


async def test_what_a_classifier_and_code_inside_the_run_redact() -> None:
    seen: list[str] = []

    class Sees:
        def classify(self, trajectory: Any, task: Any) -> Any:
            seen.append(redact(SECRET))
            return Says().answer

    async def works(task: str, *, run: Run) -> str:
        seen.append(redact(SECRET))
        if run.attempt == 1:
            raise ConnectionError("late")
        return "done"

    agent = Agent(works, always(lambda _c: Retry()), classifier=Sees(), durability=OWN)
    await agent.run("t")
    assert seen == [HIDDEN] * 3


async def test_a_stream_redacts_inside_and_not_for_who_reads_it() -> None:
    seen: list[str] = []

    async def counts(task: str) -> Any:
        for number in range(2):
            seen.append(redact(SECRET))
            yield number

    async for _ in Agent(counts, durability=OWN).stream("t"):
        assert redact(SECRET) == SECRET
    assert seen == [HIDDEN] * 2


async def test_runs_inside_hide_what_the_outer_one_hides_and_what_is_theirs() -> None:
    inner_own = Durability(redact=Redactor(patterns=("ROOM-[0-9]+",)))
    seen: list[str] = []

    async def inner(task: str) -> str:
        seen.append(redact(f"{SECRET} ROOM-7"))
        return "done"

    for durability in (None, inner_own):
        agent = Agent(inner, durability=durability)

        async def outer(task: str, agent: Any = agent) -> str:
            found = await agent.run(task)
            seen.append(redact(f"{SECRET} ROOM-7"))
            return str(found)

        await Agent(outer, durability=OWN).run("t")
    assert seen == [
        f"{HIDDEN} ROOM-7",
        f"{HIDDEN} ROOM-7",
        f"{HIDDEN} {HIDDEN}",
        f"{HIDDEN} ROOM-7",
    ]


async def test_the_journal_of_a_run_inside_hides_what_either_run_hides(tmp_path: Path) -> None:
    async def inner(task: str) -> str:
        return f"{task}, in ROOM-7"

    own = Durability(redact=Redactor(patterns=("ROOM-[0-9]+",)))
    inside = Agent(inner, name="inside", durability=own)

    async def outer(task: str) -> str:
        return str(await inside.run(f"let {SECRET} in"))

    store = SQLiteStore(tmp_path / "runs.db")
    await Agent(outer, name="outer", store=store, durability=OWN).run("t")
    (info,) = await store.runs(agent="inside")
    journal = repr(await store.read(info.run_id))
    await store.close()
    assert clean(journal)
    assert "ROOM-7" not in journal


class Names(Redactor):
    """Hides a name in its own way."""

    def text(self, text: str) -> str:
        return super().text(text).replace("Ann", "A.")


async def test_redactors_that_hide_in_their_own_way_do_so_in_runs_inside(tmp_path: Path) -> None:
    async def innermost(task: str) -> str:
        return f"{task} of Ann, in ROOM-7 and HALL-7"

    async def inner(task: str) -> str:
        return str(await agents["innermost"].run(task))

    async def outer(task: str) -> str:
        return str(await agents["inner"].run(task))

    rooms = Durability(redact=Redactor(patterns=("ROOM-[0-9]+",)))
    halls = Durability(redact=Redactor(patterns=("HALL-[0-9]+",)))
    agents = {
        "innermost": Agent(innermost, name="innermost", durability=halls),
        "inner": Agent(inner, name="inner", durability=Durability(redact=Names())),
    }
    store = SQLiteStore(tmp_path / "runs.db")
    await Agent(outer, name="outer", store=store, durability=rooms).run("the task")
    (info,) = await store.runs(agent="innermost")
    finished = (await store.read(info.run_id))[-1]
    await store.close()
    assert isinstance(finished, RunFinished)
    assert finished.result == f"the task of A., in {HIDDEN} and {HIDDEN}"


async def test_a_run_that_is_gone_on_with_keeps_its_redactor() -> None:
    async def works(task: str, *, run: Run) -> None:
        raise ConnectionError(f"no entry with {SECRET}")

    agent = Agent(works, **recovers(in_turn(Suspend("?"), Escalate("e"))), durability=OWN)
    asked = await question_of(agent.run("t"))
    with pytest.raises(TriageError) as raised:
        await agent.resume(asked.token, Retry())
    assert clean(str(raised.value))


PASSWORD = "hunter2-and-more"


FORMS = (KEY, PASSWORD, base64.b64encode(KEY.encode()).decode())


@triage.tool(effect="once")
async def log_in(user: str) -> str:
    return KEY


async def uses_secrets(task: str, *, record_step: Any, update_state: Any, run: Any) -> bool:
    record_step(
        Step(
            action="ask",
            tool_called="vault",
            tool_input={"password": PASSWORD, "note": "fine"},
            tool_output=f"the key is {KEY}, in base64 {base64.b64encode(KEY.encode()).decode()}",
            llm_output=f"I have {KEY}",
        )
    )
    record_step(Step(action="note", metadata={"header": f"Authorization: Bearer {KEY}"}))
    update_state({"key": KEY}, secret_ok=["key"])
    known = await log_in("ann")
    if run.attempt == 1:
        error = ConnectionError(f"refused for {KEY}")
        error.add_note(f"tried with password={PASSWORD}")
        raise error from ValueError(f"Authorization: Bearer {KEY}")
    return bool(known == KEY)


def kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


async def test_no_secret_is_in_the_bytes_of_the_store(tmp_path: Path) -> None:
    policy = FailurePolicy(default=lambda _: Retry(hint=f"use {KEY}"))
    agent = Agent(uses_secrets, policy, store=f"sqlite:///{tmp_path}/runs.db")
    assert await agent.run(f"use {KEY}") is True
    await agent.store.close()
    raw = kept(tmp_path)
    assert b"vault" in raw
    assert [form for form in FORMS if form.encode() in raw] == []


async def test_a_run_may_say_that_its_store_keeps_everything(tmp_path: Path) -> None:
    async def shows(task: str, *, update_state: Any) -> str:
        update_state({"key": KEY})
        return task

    everything = Durability(redact=False)
    agent = Agent(shows, store=f"sqlite:///{tmp_path}/runs.db", durability=everything)
    assert await agent.run("go on") == "go on"
    await agent.store.close()
    assert KEY.encode() in kept(tmp_path)
