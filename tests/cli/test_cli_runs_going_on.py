"""`triage runs recover` and `resume`, on real stores."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import triage
from cli.cli_runs import Office, runs_of_stores
from cli.runs_agents import ask, asking, pay

ROOT = Path(triage.__file__).parents[1]


__all__ = ["runs_of_stores"]


class TestRecover:
    def test_a_run_that_was_left_goes_on_and_gives_its_result(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look", days=3)
        assert runs("recover", "r1", "agents:look") == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == {"task": "fly", "client": None, "days": 3}
        assert "printed by the function" in err
        assert re.search(r"done  \d attempts?, 0 steps", err)
        assert runs.info("r1").status == "done"
        assert runs("recover", "r1", "agents:look", "--quiet") == 0
        again, err = capsys.readouterr()
        assert (again, err) == (out, "")

    def test_json_is_the_whole_run_in_one_line(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look")
        assert runs("recover", "r1", "agents:look", "--json", "--quiet") == 0
        out = capsys.readouterr().out
        report = json.loads(out)
        assert out.count("\n") == 1
        assert (report["status"], report["run_id"], report["attempts"]) == ("done", "r1", 1)

    def test_what_could_not_be_stored_is_named_and_may_be_given(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look", None, unstored=("task", "client"))
        before = runs.info("r1")
        assert runs("recover", "r1", "agents:look") == 2
        told = "task, client could not be stored with run r1; give it again: "
        assert f"{told}--task TEXT --arg client=VALUE" in capsys.readouterr().err
        assert runs.info("r1") == before
        given = ("--task", "sail", "--arg", 'client={"a": 1}')
        assert runs("recover", "r1", "agents:look", *given) == 0
        result = json.loads(capsys.readouterr().out)
        assert result == {"task": "sail", "client": {"a": 1}, "days": 1}

    def test_a_run_that_waits_is_not_recovered(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(pay, "17", "r1")
        before = runs.read("r1")
        assert runs("recover", "r1", "agents:pay") == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert "run r1 waits for an answer: did charge with" in err
        assert "how it may be answered: triage runs show r1" in err
        assert runs.read("r1") == before

    def test_a_run_whose_owner_seems_to_live_is_taken_with_force_only(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look", lease_s=600.0)
        assert runs("recover", "r1", "agents:look") == 1
        assert "seems to live, 9 min left; wait, or take it: --force" in capsys.readouterr().err
        assert runs("recover", "r1", "agents:look", "--force") == 0

    def test_a_dead_letter_is_taken_with_force_only(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look")
        for _ in range(3):
            runs.do(lambda store: store.claim("r1", lease_s=0.001))
            wait_for_end_of_lease(runs, "r1")
        assert runs("recover", "r1", "agents:look") == 1
        assert "taken over 3 times and did not get on" in capsys.readouterr().err
        assert runs.info("r1").status == "dead_letter"
        assert runs("show", "r1") == 0
        assert "recover  triage runs recover r1 agents:look --force" in capsys.readouterr().out
        assert runs("recover", "r1", "agents:look", "--force") == 0

    def test_only_the_agent_it_was_started_with_recovers_a_run(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look")
        before = runs.info("r1")
        for function, told in (
            ("agents:pay", "run r1 is one of the agent look, and agents:pay is pay"),
            ("agents:pay", "that it was started with: agents:look\n"),
            ("look", "write module:function, as in agents:book"),
            ("agents:lok", "did you mean 'look'?"),
            ("nowhere:f", "no module 'nowhere'"),
        ):
            assert runs("recover", "r1", function) == 2
            assert told in capsys.readouterr().err
        assert runs("recover", "r2", "agents:look") == 2
        assert "the store knows no run 'r2'" in capsys.readouterr().err
        assert runs("recover", "r1", "agents:look", "--arg", "force=1") == 2
        assert "--arg force is none of the function's arguments" in capsys.readouterr().err
        assert runs.info("r1") == before

    def test_a_run_cannot_be_recovered_without_its_agent(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look")
        for given in ((), ("--agent", "agents:look"), ("--agent=agents:look",)):
            assert runs("recover", "r1", *given) == 2
            err = capsys.readouterr().err
            assert "triage runs recover RUN FUNCTION" in err
            assert err.endswith("; see triage runs recover --help\n")
        assert runs("recover") == 2
        assert (
            "triage runs recover needs RUN, as in triage runs recover RUN FUNCTION: Its id, or"
            in capsys.readouterr().err
        )

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("fails", "escalated after attempt 1: .*ValueError: not today"),
            ("misused", "no step|Step"),
        ],
    )
    def test_a_run_that_fails_says_why_and_exits_with_1(
        self, name: str, told: str, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", name)
        assert runs("recover", "r1", f"agents:{name}", "--attempts", "1", "--quiet") == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert re.search(told, err)

    def test_an_interrupted_run_is_given_back_to_the_store(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "interrupted")
        assert runs("recover", "r1", "agents:interrupted") == 130
        assert capsys.readouterr().err.endswith("triage: interrupted\n")
        info = runs.info("r1")
        assert (info.status, info.claims, info.lease_until) == ("running", 0, None)

    def test_an_agent_has_its_own_options_and_may_be_given_the_store(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "fails")
        assert runs("recover", "r1", "agents:aborting", "--attempts", "2") == 2
        assert "an Agent, which has options of its own" in capsys.readouterr().err
        assert runs("recover", "r1", "agents:aborting", "--quiet") == 1
        assert "aborted after attempt 1" in capsys.readouterr().err
        assert runs.info("r1").status == "aborted"

    def test_an_agent_with_a_durable_store_needs_none(
        self, runs: Office, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "ask", days=2)
        monkeypatch.setenv("DESK_STORE", runs.text)
        monkeypatch.delenv("TRIAGE_STORE")
        assert runs("recover", "r1", "agents:desk", "--quiet") == 0
        assert json.loads(capsys.readouterr().out) == ["fly", 2, None]


def wait_for_end_of_lease(runs: Office, run_id: str) -> None:
    """A store's clock cannot be set, and the lease is a millisecond."""
    until = runs.info(run_id).lease_until
    while until is not None and time.time() <= until:
        pass


class TestResume:
    @pytest.mark.parametrize(
        ("answer", "result"),
        [
            (("edit", "--payload", '{"days": 3}'), ["fly", 3, None]),
            (("retry", "--reason", "look again"), ["fly", 0, "look again"]),
            (("replan", "--reason", "by ship"), ["fly", 0, "by ship"]),
        ],
    )
    def test_an_answer_goes_on_with_the_run_once(
        self,
        answer: tuple[str, ...],
        result: list[Any],
        runs: Office,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        token = runs.run(ask, "fly", "r1", policy=asking)
        assert runs("resume", token, "agents:desk", *answer) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == result
        assert "done  " in err
        assert runs("resume", token, "agents:desk", *answer) == 1
        assert "this question was answered first" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("answer", "status", "told"),
        [
            (("reject", "--reason", "too dear"), "aborted", "too dear"),
            (("abort",), "aborted", "aborted after attempt 1"),
            (("escalate", "--reason", "ask Ann"), "escalated", "ask Ann"),
        ],
    )
    def test_an_answer_may_end_it(
        self,
        answer: tuple[str, ...],
        status: str,
        told: str,
        runs: Office,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        token = runs.run(ask, "fly", "r1", policy=asking)
        assert runs("resume", token, "agents:desk", *answer, "--quiet") == 1
        assert told in capsys.readouterr().err
        assert runs.info("r1").status == status

    def test_a_token_may_be_read_so_that_nobody_sees_it(
        self, runs: Office, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        token = runs.run(pay, "17", "r1")
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{token}\n"))
        answer = ("happened", "--payload", '"r-1"', "--quiet")
        assert runs("resume", "-", "agents:pay", *answer) == 0
        assert capsys.readouterr().out == "paid, receipt r-1\n"

    def test_a_run_that_asks_again_waits_with_a_new_token(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        token = runs.run(ask, "fly", "r1", policy=asking)
        assert runs("resume", token, "agents:desk", "approve", "--json", "--quiet") == 3
        out, err = capsys.readouterr()
        report = json.loads(out)
        assert (report["status"], report["question"]) == ("suspended", "how many days?")
        assert report["token"] != token
        resume = f"triage runs resume '{report['token']}' agents:desk approve"
        assert f"token {report['token']}: it goes on, once, by: {resume}\n" in err

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (("maybe",), 'Invalid value "maybe" for ANSWER'),
            (("edit",), "edit takes a payload"),
            (("edit", "--payload", "[1]"), "edit takes a payload"),
            (("edit", "--payload", "{days: 1}"), "--payload must be JSON"),
            (("edit", "--payload", '{"a b": 1}'), "no parameter name"),
            (
                ("edit", "--payload", '{"weeks": 1}'),
                "weeks, which the agent function does not take",
            ),
            (("approve", "--payload", "1"), "approve takes no payload"),
            (("approve", "--reason", "x"), "approve takes no reason"),
            (("rerun",), "no call of it is in doubt"),
        ],
    )
    def test_an_answer_that_does_not_fit_leaves_the_token_good(
        self,
        arguments: tuple[str, ...],
        told: str,
        runs: Office,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        token = runs.run(ask, "fly", "r1", policy=asking)
        assert runs("resume", token, "agents:desk", *arguments) == 2
        assert told in capsys.readouterr().err
        edit = ("edit", "--payload", '{"days": 1}')
        assert runs("resume", token, "agents:desk", *edit, "--quiet") == 0

    def test_an_unknown_token_is_said(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(ask, "fly", "r1", policy=asking)
        for token in ("r1~0", "r2~0", "", "r1"):
            assert runs("resume", token, "agents:desk", "approve") == 2
            assert "waits with this token" in capsys.readouterr().err


def program(*arguments: str) -> subprocess.Popen[str]:
    """`triage` as a program in the current directory."""
    return subprocess.Popen(
        [sys.executable, "-m", "triage.cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def test_a_run_whose_process_was_killed_is_found_and_recovered(
    runs: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_STORE", runs.text)
    with program("run", "agents:waiting", "the work", "--quiet") as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
    with program("runs", "list", "--status", "running", "--json") as listing:
        (line,) = listing.communicate(timeout=60)[0].splitlines()
    run_id = json.loads(line)["run_id"]
    (runs.folder / "go").touch()
    with program("runs", "recover", run_id[:12], "agents:waiting", "--force") as recovering:
        out, err = recovering.communicate(timeout=60)
    assert (recovering.returncode, out) == (0, "the work is done\n"), err
    assert "done  " in err
