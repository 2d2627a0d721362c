"""`triage incidents`: what it shows, does and answers."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import pytest
from cli_incidents import DIED, Room, room_of_file, room_of_stores, told

from triage.cli import main
from triage.incidents import Status

__all__ = ["room_of_file", "room_of_stores"]
KEY = "sk-" + "a1" * 20
WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def timeless(answer: dict[str, Any]) -> Any:
    return json.loads(WHEN.sub("a time", json.dumps(answer)))


class TestTheFourOperations:
    """In JSON, key for key as their document has them; the desk's own tests compare with it."""

    def test_detect(self, rooms: Room, capsys: pytest.CaptureFixture[str]) -> None:
        rooms.report()
        rooms.report("Merge conflict in src/a.py", agent_id="coder-2", task_id="TASK-2")
        assert rooms("detect", "--json") == 0
        assert timeless(told(capsys)) == {
            "success": True,
            "action": "detect",
            "errors_found": 2,
            "errors": [
                {
                    "error_id": "err-001", "agent_id": "coder-1", "task_id": "TASK-1",
                    "error_message": DIED, "severity": "medium", "retryable": True,
                    "timestamp": "a time",
                },
                {
                    "error_id": "err-002", "agent_id": "coder-2", "task_id": "TASK-2",
                    "error_message": "Merge conflict in src/a.py", "severity": "high",
                    "retryable": False, "timestamp": "a time",
                },
            ],
        }  # fmt: skip

    def test_handle(self, rooms: Room, capsys: pytest.CaptureFixture[str]) -> None:
        rooms.report()
        assert rooms("handle", "err-001", "--hook", "restart=agents:restart", "--json") == 0
        out, err = capsys.readouterr()
        assert timeless(json.loads(out)) == {
            "success": True,
            "action": "handle",
            "error_id": "err-001",
            "error_message": DIED,
            "severity": "medium",
            "recovery_action": "auto_restart",
            "details": {
                "agent_id": "coder-1",
                "task_id": "TASK-1",
                "retry_attempt": 1,
                "max_retries": 3,
                "message_sent": True,
                "timestamp": "a time",
            },
        }
        assert err.startswith("restarting ")  # what a hook prints does not mix with the answer
        assert rooms.incident().status is Status.RECOVERED

    def test_what_is_tried_later_is_said_to_be_scheduled(
        self, rooms: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rooms.report("Error 429: rate limit exceeded, retry after 60 seconds")
        hook = ("--hook", "retry=agents:restart")
        assert rooms("handle", "err-001", *hook) == 0
        told_of, when = capsys.readouterr().out.split(": scheduled for ")
        assert told_of.startswith("err-001: ")
        assert told_of.endswith(", retry 1 of 3")
        assert WHEN.match(when)
        assert rooms.incident().status is Status.WAITING

    def test_recover(self, rooms: Room, capsys: pytest.CaptureFixture[str]) -> None:
        rooms.report("Merge conflict in a.py")
        hook = ("--hook", "restart=agents:restart")
        assert rooms("recover", "TASK-1", "restart", *hook, "--by", "ann", "--json") == 0
        assert timeless(told(capsys)) == {
            "success": True,
            "action": "recover",
            "task_id": "TASK-1",
            "recovery_strategy": "restart",
            "new_agent_id": "coder-2",
            "recovery_timestamp": "a time",
            "message": "Agent restarted to recover from error",
        }
        log = rooms.do(lambda desk: desk.log("err-001"))
        assert ("recovering", "ann") in [(entry.verb, entry.by) for entry in log]

    def test_escalate(self, rooms: Room, capsys: pytest.CaptureFixture[str]) -> None:
        rooms.report("Merge conflict in src/a.py")
        assert rooms("escalate", "err-001", "architect", "--json") == 0
        assert timeless(told(capsys)) == {
            "success": True,
            "action": "escalate",
            "error_id": "err-001",
            "escalation_level": "architect",
            "escalation_message": "Merge conflict in TASK-1 requires manual resolution",
            "details": {
                "agent_id": "coder-1",
                "task_id": "TASK-1",
                "severity": "high",
                "files_affected": ["src/a.py"],
                "message_sent": True,
                "timestamp": "a time",
            },
        }

    def test_the_threshold_and_the_retries_of_the_document(
        self, rooms: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        hook = ("--hook", "restart=agents:restart")
        rooms.report()
        assert rooms("detect", "--retry-max", "5", "--error-threshold", "2", "--json") == 0
        assert told(capsys)["errors_found"] == 1
        assert rooms("handle", "err-001", *hook, "--retry-max", "7", "--json") == 0
        assert json.loads(capsys.readouterr().out)["details"]["max_retries"] == 7
        rooms.report(task_id="TASK-2", key="a")
        rooms.report(task_id="TASK-2", key="b")
        assert rooms("handle", "err-002", *hook, "--error-threshold", "1") == 0
        assert "manual_intervention" in capsys.readouterr().out
        assert rooms.incident("err-002").status is Status.ESCALATED
        rooms.report(task_id="TASK-3")
        assert main(["supervise", *hook, "--retry-max", "0", "--once", "--quiet"]) == 0
        assert rooms.incident("err-003").status is Status.ESCALATED
        assert rooms("handle", "err-003", "--desk", "agents:desk", "--retry-max", "-1") == 2
        assert "RETRY_MAX must be" in capsys.readouterr().err

    def test_a_critical_failure_comes_with_an_alternative(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report("Data corruption in table orders")
        other = room.incident().alternative
        assert "last good copy" in other
        assert room("handle", "err-001", "--json") == 0
        assert told(capsys)["details"]["suggested_alternative"] == other
        assert room("show", "err-001") == 0
        assert other in " ".join(capsys.readouterr().out.split())
        assert room("show", "err-001", "--json") == 0
        assert told(capsys)["suggested_alternative"] == other


class TestInLines:
    def test_detect_and_list_are_tables(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report()
        room.report("Merge conflict in a.py", agent_id=None, task_id="TASK-2")
        assert room("detect") == 0
        out, err = capsys.readouterr()
        head, *lines = out.splitlines()
        assert head.split() == [
            "error",
            "severity",
            "retryable",
            "agent",
            "task",
            "time",
            "message",
        ]
        assert [line.split()[:5] for line in lines] == [
            ["err-001", "medium", "yes", "coder-1", "TASK-1"],
            ["err-002", "high", "no", "-", "TASK-2"],
        ]
        assert err == ""
        assert room("list") == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head.split() == (["error", "severity", "status", "seen", "agent", "task", "message"])
        assert [line.split()[:3] for line in lines] == [
            ["err-002", "high", "detected"],
            ["err-001", "medium", "detected"],
        ]

    def test_what_there_is_more_is_said(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert room("detect") == room("list") == room("log") == 0
        err = capsys.readouterr().err
        assert "nothing is unhandled" in err
        assert "no incident" in err
        assert "nothing was done yet" in err
        for number in range(3):
            room.report(task_id=f"TASK-{number}")
        assert room("detect", "--limit", "2") == room("list", "--limit", "2") == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 6
        assert "these are the newest 2 of 3; --limit shows more" in err
        assert "these are the newest 2; --limit shows more" in err

    def test_each_step_of_a_life_is_told(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report("Merge conflict in a.py")
        assert room("handle", "err-001") == 0
        assert room("ack", "err-001", "--by", "ann", "--note", "mine") == 0
        assert room("resolve", "err-001", "--outcome", "failed", "--by", "ann") == 0
        assert room("note", "err-001", "the disk was full", "--by", "bob") == 0
        assert capsys.readouterr().out.splitlines() == [
            "err-001: manual_intervention, retry 0 of 3: done, told",
            "err-001 is acknowledged",
            "err-001 is failed",
            "err-001 is noted",
        ]
        assert room("stats") == 0
        assert capsys.readouterr().out.startswith("1 incident, 0 open\n")
        assert room("log", "err-001") == 0
        lines = [line.split(None, 3)[2:] for line in capsys.readouterr().out.splitlines()[1:]]
        assert [line[0] for line in lines] == ["err-001"] * 5
        assert lines[-1][1].split() == ["noted", "bob", "the", "disk", "was", "full"]
        did = ["detected", "escalated", "acknowledged", "resolved", "noted"]
        assert [line[1].split()[0] for line in lines] == did
        assert room("list", "--status", "failed", "--json") == 0
        assert told(capsys)["status"] == "failed"

    def test_one_is_shown_with_its_log_and_messages(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report(message=f"{DIED} in src/a.py")
        assert room("escalate", "err-001", "architect") == 0
        capsys.readouterr()
        assert room("show", "err-001") == 0
        out = capsys.readouterr().out
        assert out.splitlines()[0] == "err-001  medium  escalated"
        for label, text in (
            ("message", "Process died unexpectedly in src/a.py"),
            ("diagnosis", "external_fault (process_died), retriable"),
            ("recommended", "restart_agent, retryable"),
            ("agent", "coder coder-1"),
            ("task", "TASK-1"),
            ("files", "src/a.py"),
            ("retries", "0 of 3, by restart"),
            ("message", "pending: escalated to architect"),
        ):
            assert f"{label:>11}  {text}\n" in out
        assert "to architect; the next role is told " in out
        assert room("show", "err-001", "--json") == 0
        shown = told(capsys)
        assert (shown["severity"], shown["route"], shown["files_affected"]) == (
            "medium", "retriable", ["src/a.py"],
        )  # fmt: skip
        assert [entry["verb"] for entry in shown["log"]] == ["detected", "escalated"]
        assert [message["role"] for message in shown["messages"]] == ["architect"]
        assert {shown[name] is None or bool(WHEN.fullmatch(shown[name])) for name in (
            "first_seen", "last_seen", "ack_due", "resolved_at", "lease_until",
        )} == {True}  # fmt: skip

    def test_numbers(self, room: Room, capsys: pytest.CaptureFixture[str]) -> None:
        room.report()
        assert room("stats") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == [
            "1 incident, 1 open",
            "by status: detected 1",
            "open by severity: medium 1",
        ]
        assert room("stats", "--json") == 0
        assert told(capsys)["open_by_severity"]["medium"] == 1

    def test_texts_are_data_and_hold_no_secret(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        hostile = f"\x1b[2Jred\u202e {DIED}\nsecond line api_key={KEY}"
        room.report(hostile, agent_type=f"t-{KEY}", task_id="T\x1b[31m")
        for arguments in (("detect",), ("list",), ("show", "err-001"), ("log",)):
            assert room(*arguments) == 0
            assert room(*arguments, "--json") == 0
        out, err = capsys.readouterr()
        assert KEY not in out + err
        assert "\x1b" not in out
        assert "\u202e" not in out


class TestReport:
    def test_another_system_reports_by_options_or_json(
        self, room: Room, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = ("--agent-id", "a-1", "--agent-type", "coder", "--task-id", "T-1", "--key", "k-1")
        for _ in range(2):
            assert room("report", DIED, *given, "--file", "b.py", "--json") == 0
            one = told(capsys)
            assert (one["error_id"], one["occurrences"], one["files_affected"]) == (
                "err-001", 1, ["b.py"],
            )  # fmt: skip
        text = json.dumps({"message": "Syntax error", "task_id": "T-2", "files": ["c.py"]})
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert room("report", "-", "--run-id", "r-1") == 0
        assert capsys.readouterr().out == "err-002: high, code_review, seen 1 time\n"
        one = room.incident("err-002")
        assert (one.task_id, one.run_id, one.files) == ("T-2", "r-1", ("c.py",))


class TestRuns:
    def test_a_run_whose_process_is_gone_is_found_after_so_long(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.leave("run-1", ago=200.0)
        assert room("detect", "--silent-for", "300", "--json") == 0
        assert told(capsys)["errors_found"] == 0
        assert room("detect", "--silent-for", "100", "--json") == 0
        (error,) = told(capsys)["errors"]
        assert (error["agent_id"], error["severity"]) == ("run-1", "medium")
        assert error["error_message"].startswith("Process died: run run-1 lost its owner's lease")

    @pytest.mark.parametrize("agent", ["agents:looker", "agents:look"])
    def test_its_agent_goes_on_with_it(
        self, agent: str, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.leave("run-1")
        assert room("detect") == 0
        assert room("handle", "err-001", "--agent", agent) == 0
        out, err = capsys.readouterr()
        assert out.splitlines()[-1] == "err-001: auto_restart, retry 1 of 3: done, told"
        assert "looking at fly" in err
        assert room.run("run-1").status == "done"

    def test_another_agent_asks_a_person_at_once(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.leave("run-1", agent="other")
        assert room("detect") == 0
        assert room("handle", "err-001", "--agent", "agents:looker") == 1
        assert "is of no run of look, but of other" in capsys.readouterr().err
        one = room.incident()
        assert (one.status, one.attempt) == (Status.ESCALATED, 1)


class TestDesk:
    def test_a_desk_of_ones_own_is_taken_as_it_is(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.leave("run-1")
        assert room("detect", "--desk", "agents:desk", "--json") == 0
        assert told(capsys)["errors_found"] == 0  # it watches no runs
        assert main(["incidents", "report", DIED, "--desk", "agents:desk"]) == 0
        assert room.do(lambda desk: desk.log())[-1].by == "ours"


class TestPrune:
    def test_what_has_ended_goes_and_what_is_open_stays(
        self, room: Room, capsys: pytest.CaptureFixture[str]
    ) -> None:
        room.report(task_id="T-1")
        room.report(task_id="T-2")
        assert room("resolve", "err-001") == 0
        room.execute("UPDATE incidents SET resolved_at = resolved_at - 7200 WHERE id = 1")
        capsys.readouterr()
        assert room("prune", "--older-than", "3h") == 0
        assert room("prune", "--older-than", "1h", "--dry-run") == 0
        assert room("prune", "--older-than", "1h") == 0
        assert capsys.readouterr().out.splitlines() == [
            "0 incidents, 0 log lines, 0 messages and 0 ended agents removed",
            "1 incident would be removed",
            "1 incident, 2 log lines, 0 messages and 0 ended agents removed",
        ]
        assert room("list", "--json") == 0
        assert told(capsys)["error_id"] == "err-002"
