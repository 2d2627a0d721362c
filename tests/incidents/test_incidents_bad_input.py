"""What cannot be done says why in one typed error, and changes nothing; so do tables and stores."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from incident_desks import Restarts, World
from tables import table

import triage
from triage import Diagnosis, UsageError
from triage.core import Noted, StoreCorrupt, StoreError, StoreReadOnly, StoreUnavailable
from triage.incidents import (
    Hooks,
    IncidentDesk,
    NotificationPolicy,
    Retries,
    Threshold,
    UnknownIncident,
    Watch,
)
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio


WRONG: tuple[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str], ...] = (
    ("handle", ("err-999",), {}, UnknownIncident, "knows no incident err-999"),
    ("handle", (7,), {}, UsageError, "error_id must be text"),
    ("recover", ("T-1", "restrat"), {}, UsageError, "did you mean 'restart'"),
    ("recover", ("T-1", "clear_cache"), {}, UsageError, r"Hooks\(clear_cache"),
    ("recover", ("T-99", "restart"), {}, UnknownIncident, "no incident of T-99 is open"),
    ("recover", ("", "restart"), {}, UsageError, "task must be text"),
    ("escalate", ("THERE", "architetc"), {}, UsageError, "did you mean 'architect'"),
    ("escalate", ("THERE", None), {}, UsageError, "level must be one of"),
    ("escalate", ("err-999", "architect"), {}, UnknownIncident, "err-999"),
    ("log", ("err-999",), {}, UnknownIncident, "knows no incident err-999"),
    ("acknowledge", ("THERE",), {"by": ""}, UsageError, "by must be text"),
    ("resolve", ("THERE",), {"by": "ann", "outcome": "gone"}, UsageError, "outcome must be one of"),
    ("resolve", ("THERE",), {"by": "ann", "note": 7}, UsageError, "note must be text"),
    ("report", ("",), {}, UsageError, "must say what went wrong"),
    ("report", (None,), {}, UsageError, "report.message must be text"),
    ("report", ("x",), {"error": "ValueError"}, UsageError, "report.error must be an exception"),
    ("report", ("x",), {"files": "a.py"}, UsageError, "report.files must be a list"),
    ("report", ("x",), {"agent_id": 7}, UsageError, "report.agent_id must be text"),
    ("report", ("x",), {"task_id": "x" * 300}, UsageError, "at most 256"),
    ("report", ("x",), {"stack_trace": 7}, UsageError, "report.stack_trace"),
    ("put_task", ("T-1",), {"priority": -1}, UsageError, "priority must be a whole number"),
    ("put_task", ("T-1",), {"waits_for": "T-2"}, UsageError, "waits_for must be a list"),
    ("detect", (), {"limit": 0}, UsageError, "limit must be a whole number"),
    ("incidents", ("opened",), {}, UsageError, "status must be one of"),
    ("tick", (), {"at_once": 0}, UsageError, "at_once"),
)


async def test_each_wrong_argument_is_named_and_nothing_changes(world: World) -> None:
    desk = world.desk(hooks=Restarts().hooks)
    there = (await desk.report("Process died unexpectedly", task_id="T-1")).error_id
    before = await world.all()
    for name, args, options, error, said in WRONG:
        given = [there if value == "THERE" else value for value in args]
        with pytest.raises(error, match=said):
            await getattr(desk, name)(*given, **options)
    assert await world.all() == before
    await world.close()


@table(
    ("make", "said"),
    [
        (lambda: IncidentDesk(owner=""), "owner"),
        (lambda: IncidentDesk(hooks={"restart": print}), r"IncidentDesk\.hooks must be a Hooks"),  # type: ignore[arg-type] # under test
        (lambda: IncidentDesk(sinks={"x": 7}), r"sinks\['x'\]"),  # type: ignore[dict-item] # under test
        (lambda: IncidentDesk(sources=["theirs"]), r"IncidentDesk\.sources item"),  # type: ignore[list-item] # under test
        (lambda: IncidentDesk(classifier=print), "a synchronous classifier"),  # type: ignore[arg-type] # under test
        (lambda: Hooks(restart="x"), r"Hooks\.restart"),  # type: ignore[arg-type] # under test
        (lambda: Hooks(deadline_s=0), r"Hooks\.deadline_s"),
        (lambda: Hooks(on_in_doubt="guess"), r"Hooks\.on_in_doubt"),  # type: ignore[arg-type] # under test
        (lambda: Threshold(errors=0), r"Threshold\.errors"),
        (lambda: Threshold(scope="agent"), r"Threshold\.scope"),  # type: ignore[arg-type] # under test
        (lambda: Retries(most=-1), r"Retries\.most"),
        (lambda: Retries(by_cause={"x": "y"}), r"Retries\.by_cause\['x'\]"),  # type: ignore[dict-item] # under test
        (lambda: Watch(suspended_s=-1), r"Watch\.suspended_s"),
        (lambda: NotificationPolicy(chain=()), r"NotificationPolicy\.chain"),
        (lambda: NotificationPolicy(starts={"high": "nobody"}), r"starts\['high'\]"),
        (lambda: NotificationPolicy(roles={"hihg": ()}), "did you mean 'high'"),
        (lambda: Watch(look_back_s=-1), r"Watch\.look_back_s"),
    ],
)
def test_what_is_configured_wrongly_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


# Stores -------------------------------------------------------------------------------------------


async def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(UsageError, match="store"):
        IncidentDesk("nowhere://x")


async def test_a_file_that_cannot_be_a_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    gone = IncidentDesk(f"sqlite:///{tmp_path}/none/runs.db")
    with pytest.raises(StoreUnavailable, match="cannot be made"):
        await gone.detect()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE agent_lifecycle (x)")
    db.close()
    before = other.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        await IncidentDesk(f"sqlite:///{other}").detect()
    assert other.read_bytes() == before
    marked = tmp_path / "marked.db"
    desk = IncidentDesk(f"sqlite:///{marked}")
    await desk.report("x")
    await desk.close()
    assert stat.S_IMODE(marked.stat().st_mode) == 0o600
    marked.chmod(0o400)
    with pytest.raises(StoreReadOnly):
        await IncidentDesk(f"sqlite:///{marked}").incidents()


async def test_a_locked_file_is_unavailable_and_the_report_not_half_there(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db", timeout=0.1)
    desk = IncidentDesk(store)
    await desk.report("x")
    with sqlite3.connect(store.path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await desk.report("Merge conflict in a.py")
        db.execute("ROLLBACK")
    db.close()
    (one,) = await desk.incidents()
    assert one.messages == ()
    await desk.close()


async def test_a_database_that_does_not_answer_is_an_error_soon() -> None:
    desk = IncidentDesk("postgresql://postgres@127.0.0.1:1/test?timeout=1")
    with pytest.raises(StoreError):
        await desk.incidents()
    await desk.close()


# Journals -----------------------------------------------------------------------------------------

CHANGES = (
    """UPDATE events SET body = replace(body, '"medium"', '"banana"')""",
    """UPDATE events SET body = replace(body, 'died', 'lived')""",
    "UPDATE runs SET status = 'recovered' WHERE kind = 'incident'",
    "UPDATE runs SET events = 1 WHERE kind = 'incident'",
    "DELETE FROM events WHERE seq = 1",
)


@table(("kind", "change"), list(product(("sqlite", "postgres"), CHANGES)))
async def test_a_change_made_by_hand_is_found(kind: str, change: str, tmp_path: Path) -> None:
    with World(kind, tmp_path) as world:
        desk = world.desk()
        one = await desk.report("Process died unexpectedly", task_id="T-1")
        await desk.escalate(one.error_id, "architect")
        await world.close()
        world.execute(change)
        with pytest.raises(StoreCorrupt):
            await world.desk("other").incident(one.error_id)
        await world.close()


@pytest.mark.parametrize(
    ("verb", "status"), [("recovered", "recovered"), ("detected", "detected"), ("fixed", "ignored")]
)
async def test_a_move_that_no_incident_may_make_is_no_journal(
    verb: str, status: str, world: World
) -> None:
    desk = world.desk()
    one = await desk.report("Process died unexpectedly", task_id="T-1")
    entry = Noted(one.error_id, 1, 1.0, kind="incident", verb=verb, status=status)
    await world.store.append(one.error_id, [entry], at=1, epoch=0)
    with pytest.raises(StoreCorrupt, match=one.error_id):
        await desk.incident(one.error_id)
    await world.close()


# What others hand in ------------------------------------------------------------------------------


async def test_a_classifier_that_fails_loses_no_incident(world: World) -> None:
    class Broken:
        def classify(self, trajectory: Any, task: Any) -> Diagnosis:
            raise ZeroDivisionError

    one = await world.desk(classifier=Broken()).report("Process died unexpectedly")
    assert (one.failure_type, one.level, one.retryable) == ("unknown", "medium", False)
    await world.close()


async def test_no_secret_reaches_the_store(world: World) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
    desk = world.desk()
    with pytest.raises(RuntimeError) as raised:
        refuse(secret)
    one = await desk.report(error=raised.value, files=[f"{secret}.py"])
    assert one.stack_trace is not None
    assert "RuntimeError" in one.stack_trace
    task = await desk.put_task("T-1", title=f"Renew {secret}")
    await desk.detect()
    kept = [str(await desk.incidents()), str(await world.log()), str(await world.messages())]
    kept += [str(task), str(await desk.task("T-1"))]
    assert not any(secret in text for text in kept)
    await world.close()


def refuse(secret: str) -> None:
    raise RuntimeError(f"refused: Authorization: Bearer {secret}")


async def test_a_report_under_a_key_is_made_once(world: World) -> None:
    desk = world.desk()
    for _ in range(3):
        assert (await desk.report("x", key="build-7")).occurrences == 1
    assert len(await world.all()) == 1
    await world.close()


def test_importing_triage_imports_nothing_of_the_room() -> None:
    program = "import sys, triage; print([n for n in sys.modules if 'incidents' in n])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(triage.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
