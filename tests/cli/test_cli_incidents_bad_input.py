"""What `triage incidents` and `triage supervise` refuse: in one line, and nothing has changed."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_incidents import DIED, Room, room_of_file

from triage.cli import main

__all__ = ["room_of_file"]
KEY = "sk-" + "a1" * 20
HOOK = ("--hook", "restart=agents:restart")


def everything(room: Room) -> Any:
    """All that the room's tables hold."""
    db = sqlite3.connect(room.folder / "runs.db")
    tables = ("incidents", "incident_log", "messages", "sightings", "runs", "agents", "tasks")
    found = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    db.close()
    return found


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says why."""
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("triage: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "err-999"), "the store knows no incident err-999"),
        (("show", "banana"), "'banana' is no incident's id; they look like err-001"),
        (("handle", "err-999", *HOOK), "the store knows no incident err-999"),
        (("handle", "err-001; DROP TABLE"), "is no incident's id"),
        (("escalate", "err-999", "architect"), "the store knows no incident err-999"),
        (("ack", "err-999"), "the store knows no incident err-999"),
        (("resolve", "err-999"), "the store knows no incident err-999"),
        (("log", "banana"), "is no incident's id"),
        (("escalate", "err-001", "architetc"), "did you mean 'architect'?"),
        (("escalate", "err-001", "critical"), "level must be one of code_developer, architect"),
        (("recover", "TASK-9", "restart", *HOOK), "no incident of TASK-9 is open"),
        (("recover", "TASK-1", "reboot", *HOOK), 'Invalid value "reboot" for STRATEGY'),
        (("recover", "TASK-1", "restart"), "say what carries out restart: --hook restart="),
        (("recover", "TASK-1", "clear_cache", *HOOK), "one that a hook carries out"),
        (("recover", "", "restart", *HOOK), "task must be text that is not empty"),
        (("resolve", "err-001", "--outcome", "banana"), 'Invalid value "banana" for --outcome'),
        (("ack", "err-001", "--by", ""), "by must be text that is not empty"),
        (("list", "--status", "banana"), 'Invalid value "banana" for --status'),
        (("list", "--limit", "0"), "--limit must be a whole number from 1, not 0"),
        (("detect", "--limit", "many"), 'unable to convert "many" into int'),
        (("detect", "--silent-for", "-1"), "Watch.lease_lost_s must be"),
        (("detect", "--silent-for", "nan"), "Watch.lease_lost_s must be"),
        (("handle", "err-001", "--hook", "restart"), "must be strategy=module:function"),
        (("handle", "err-001", "--hook", "manual=agents:restart"), "must be strategy=module"),
        (("handle", "err-001", "--hook", "restart=agents:nothing"), "there is no 'nothing'"),
        (("handle", "err-001", "--hook", "restart=agents:number"), "is no function but int"),
        (("handle", "err-001", "--hook", "restart=nowhere:restart"), "there is no module 'nowhere'"),
        (("handle", "err-001", *HOOK, *HOOK), "--hook restart is given twice"),
        (("handle", "err-001", "--agent", "agents:looker", *HOOK), "leave one out"),
        (("handle", "err-001", "--agent", "agents:number"), "int"),
        (("handle", "err-001", *HOOK, "--deadline", "0"), "Hooks.deadline_s must be"),
        (("handle", "err-001", "--on-in-doubt", "maybe"), 'Invalid value "maybe" for --on-in-doubt'),
        (("list", "--owner", "x" * 300), "IncidentDesk.owner must be"),
        (("list", "--desk", "agents:number"), "is no IncidentDesk but int"),
        (("list", "--desk", "agents:kept_in_memory"), "what is in memory ends with its process"),
        (("detect", "--desk", "agents:desk", "--silent-for", "5"), "leave out --silent-for"),
        (("handle", "err-001", "--desk", "agents:desk", *HOOK), "leave out --hook"),
        (("report", ""), "report.message must say what went wrong"),
        (("report", DIED, "--agent-id", ""), "report.agent_id must be"),
        (("report", DIED, "--key", "k" * 300), "report.key must be"),
        (("report", DIED, "--file", ""), "report.files item must be"),
        (("prune", "--older-than", "soon"), "must be a number and a unit"),
        (("prune",), "--older-than requires an argument"),
        (("explode",), 'Unknown command "explode"'),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(
    arguments: tuple[str, ...], said: str, room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    room.report()
    before = everything(room)
    assert room(*arguments) == 2
    assert said in refused(capsys)
    assert everything(room) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "the report must be JSON"),
        ("[]", "the report must be a JSON object, not list"),
        ("", "the report must be JSON"),
        ('{"message": NaN}', "the report must be JSON"),
        ('{"message": 7}', "report.message must be text, not int"),
        ('{"task_id": "T-1"}', "report.message must say what went wrong"),
        ('{"message": "died", "task": "T-1"}', "the report has a field 'task'; known are agent_id"),
        ('{"message": "died", "files": "a.py"}', "report.files must be a list of paths"),
        ('{"message": "died", "files": [7]}', "report.files item must be text"),
        ('{"message": "died", "task_id": 31}', "report.task_id must be text"),
        ('{"message": "died", "stack_trace": {}}', "report.stack_trace must be text"),
        ('{"message": "died", "agent_type": []}', "report.agent_type must be text"),
        ("[" * 100_000, "the report must be JSON"),
    ],
)
def test_a_malformed_report_is_refused(
    text: str,
    said: str,
    room: Room,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = everything(room)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert room("report", "-") == 2
    assert said in refused(capsys)
    assert everything(room) == before


VERBS = (
    ("detect",), ("list",), ("show", "err-001"), ("handle", "err-001", *HOOK), ("stats",), ("log",),
    ("recover", "TASK-1", "restart", *HOOK), ("escalate", "err-001", "architect"), ("ack", "err-001"),
    ("resolve", "err-001"), ("report", DIED), ("prune", "--older-than", "1d"),
)  # fmt: skip


def test_only_what_may_come_first_makes_a_file_that_is_missing(
    room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {"detect", "report"}
    for number, (verb, *arguments) in enumerate(VERBS):
        file = room.folder / f"new-{number}.db"
        code = room(verb, *arguments, "--store", f"sqlite:///{file.name}")
        out, err = capsys.readouterr()
        assert (code, file.exists()) == ((0, True) if verb in first else (2, False)), verb
        said = f"made {file}" if verb in first else "--store: there is no file"
        assert said in err, (verb, out, err)
    file = room.folder / "new.db"
    assert main(["supervise", "--once", "--quiet", "--store", "sqlite:///new.db"]) == 0
    assert json.loads(capsys.readouterr().out)["detected"] == 0
    assert room("list", "--store", "sqlite:///new.db") == 0
    assert room("detect", "--store", "sqlite:///no/such/folder.db") != 0


@pytest.mark.parametrize("arguments", VERBS, ids=[verb[0] for verb in VERBS])
class TestStores:
    def test_a_store_of_a_newer_release(
        self, arguments: tuple[str, ...], room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report()
        room.execute("UPDATE incident_meta SET version = 99")
        before = everything(room)
        assert room(*arguments) == 1
        assert "StoreTooNew: the store's incidents are of version 99" in refused(capsys)
        assert everything(room) == before

    def test_a_store_that_somebody_holds(
        self, arguments: tuple[str, ...], room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reads = arguments[0] in ("list", "show", "stats", "log")
        room.report()
        before = everything(room)
        holder = sqlite3.connect(room.folder / "runs.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            code = room(*arguments, "--store", "sqlite:///runs.db?timeout=0.1")
        finally:
            holder.close()
        assert code == (0 if reads else 1)  # who only reads is not held up
        assert reads or "StoreUnavailable: " in refused(capsys)
        assert everything(room) == before

    def test_a_store_that_may_only_be_read(
        self, arguments: tuple[str, ...], room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report()
        before = everything(room)
        place = room.folder / "runs.db"
        place.chmod(0o400)
        try:
            assert room(*arguments) == 1
        finally:
            place.chmod(0o600)
        assert "StoreReadOnly: " in refused(capsys)
        assert everything(room) == before

    def test_a_store_that_cannot_hold_incidents(
        self, arguments: tuple[str, ...], room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert room(*arguments, "--store", "memory:") == 2
        assert "in memory" in refused(capsys)

    def test_a_store_whose_url_holds_a_password(
        self, arguments: tuple[str, ...], room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        url = f"postgresql://user:{KEY}@127.0.0.1:1/none?timeout=0.1"
        assert room(*arguments, "--store", url) == 1
        assert KEY not in refused(capsys)


def test_without_a_store_it_is_said_how_to_name_one(
    room: Room, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIAGE_STORE")
    for command in (("incidents", "list"), ("supervise",)):
        assert main([*command]) == 2
        assert "say where the runs are: --store" in refused(capsys)


class TestWhatWasTried:
    """Exit code 1: it is somebody else's, over, or it has failed."""

    def test_what_is_closed_or_waits(self, room: Room, capsys: pytest.CaptureFixture[str]) -> None:
        room.report()
        assert room("resolve", "err-001") == 0
        capsys.readouterr()
        assert room("handle", "err-001", *HOOK) == 1
        assert refused(capsys) == "triage: err-001 is recovered already"
        room.report("Merge conflict in a.py", task_id="TASK-2")
        assert room("ack", "err-002", "--by", "ann") == 0
        capsys.readouterr()
        assert room("handle", "err-002", *HOOK) == 1
        assert "ann has it" in refused(capsys)

    def test_a_hook_that_fails(self, room: Room, capsys: pytest.CaptureFixture[str]) -> None:
        room.report()
        hook = ("--hook", "restart=agents:refuses")
        assert room("handle", "err-001", *hook, "--json") == 1
        out, err = capsys.readouterr()
        answer = json.loads(out)
        assert (answer["success"], "sk-abc" in out + err) == (False, False)
        assert "ConnectionError: no spawner" in answer["error"]
        assert room("recover", "TASK-1", "restart", *hook) == 1
        out, err = capsys.readouterr()
        assert "Recovery failed: ConnectionError" in out

    def test_a_store_that_fails_once_the_hook_has_run(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report()
        assert room("handle", "err-001", "--hook", "restart=agents:loses_its_store") == 1
        assert "err-001: restart has run, how it ended is not kept" in refused(capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--interval", "0"), "Supervisor.interval_s must be"),
        (("--at-once", "0"), "Supervisor.at_once must be"),
        (("--grace", "-1"), "Supervisor.grace_s must be"),
        (("--agent", "agents:nobody"), "there is no 'nobody'"),
        (("--agent", "agents:looker", "--agent", "agents:look"), "a name of its own"),
        (("--sink", "pigeon"), "--sink must be log, file:PATH, an https URL or module:function"),
        (("--sink", "architect=agents:number"), "is no function but int"),
        (("--sink", "log", "--sink", "*=log"), "--sink for all is given twice"),
        (("--sink", "https://user:pw@hooks.example.com/x"), "give its secret by TRIAGE_WEBHOOK_SECRET"),
        (("--sink", "file:"), "FileSink.path must be"),
        (("--error-threshold", "0"), "ERROR_THRESHOLD must be"),
        (("--once", "--status", "h.json"), "Mutually exclusive arguments: {--once, --status}"),
        (("--status", "nowhere.json"), "--status nowhere.json cannot be read"),
        (("--status", "agents.py"), "--status agents.py must be JSON"),
        (("--status", "other.json"), "is no health file of triage supervise"),
        (("--health", "no/such/folder/h.json"), "--health: there is no folder"),
    ],
)  # fmt: skip
def test_a_supervisor_that_cannot_begin_says_why(
    arguments: tuple[str, ...], said: str, room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.json").write_text('{"state": "running"}', encoding="utf-8")
    assert main(["supervise", "--quiet", *arguments]) == 2
    assert said in refused(capsys)


@pytest.mark.parametrize("once", [(), ("--once",)], ids=["going on", "once"])
def test_a_supervisor_fails_with_a_store_of_a_newer_release(
    once: tuple[str, ...], room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    room.execute("UPDATE incident_meta SET version = 99")
    assert main(["supervise", "--quiet", *once]) == 1
    assert "StoreTooNew" in refused(capsys)
    assert os.environ["TRIAGE_STORE"] == room.text
