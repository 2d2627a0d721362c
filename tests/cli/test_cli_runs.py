"""`triage runs list`, `show` and `prune`: what they say, and that it is data and holds no secret."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from stores.store_runs import run_of

from cli.cli_runs import Office, runs_of_file, three_runs
from cli.runs_agents import ask, asking
from cli.test_cli_runs_going_on import program
from triage import Step
from triage.core import (
    AttemptStarted,
    Event,
    RunStarted,
    RunSuspended,
    StateUpdated,
    StepRecorded,
    loads,
)

__all__ = ["runs_of_file", "three_runs"]

KEY = "sk-" + "a1" * 20


class TestList:
    def test_runs_stand_in_a_table_the_newest_first(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert three("list") == 0
        out, err = capsys.readouterr()
        lines = out.splitlines()
        assert lines[0].split() == ["run", "agent", "task", "status", "age", "lease"]
        assert [re.split(" {2,}", line)[:4] for line in lines[1:]] == [
            ["left-1", "look", "fly", "waiting for a worker"],
            ["waits-1", "pay", "order 17", "suspended"],
            ["done-1", "look", "fly", "done"],
        ]
        assert all(re.search(r"  \d+ s  ", line) for line in lines[1:])
        assert err == ""

    def test_a_status_an_agent_and_a_limit_choose(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def listed(*arguments: str) -> list[str]:
            capsys.readouterr()
            assert three("list", *arguments) == 0
            return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]

        assert listed("--status", "suspended") == ["waits-1"]
        assert listed("--agent", "look") == ["left-1", "done-1"]
        assert listed("--agent", "look", "--status", "done") == ["done-1"]
        assert three("list", "--limit", "2") == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 3
        assert err == "triage: these are the newest 2; --limit shows more\n"
        assert three("list", "--limit", "3") == 0
        assert capsys.readouterr().err == ""

    def test_json_is_a_line_for_each(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert three("list", "--json") == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [entry["run_id"] for entry in found] == ["left-1", "waits-1", "done-1"]
        for entry in found:
            assert 0 <= entry.pop("age_s") < 60
            left = entry["run_id"] == "left-1"
            assert entry.pop("shown") == ("waiting for a worker" if left else entry["status"])
            assert entry == three.info(entry["run_id"])._asdict()

    def test_a_lease_is_told_as_what_is_left_of_it(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("a", "look", lease_s=1000.0)
        assert runs("list") == 0
        assert re.search(r"16 min left$", capsys.readouterr().out, re.MULTILINE)

    def test_a_store_without_runs_is_no_error(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.do(lambda store: store.runs())
        assert runs("list") == 0
        assert capsys.readouterr() == ("", "triage: no run\n")

    def test_ids_that_were_made_are_short_and_the_table_fits_the_screen(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made = ["75d6683f" + "0" * 24, "75d6683e" + "0" * 24, "75d6683e1" + "0" * 23]
        for run_id in [*made, "of somebody"]:
            runs.leave(run_id, "an agent of a very long name " * 2, "a task of many words " * 9)
        assert runs("list") == 0
        lines = capsys.readouterr().out.splitlines()
        assert {line.split("  ")[0] for line in lines[1:]} == {
            "75d6683f0", "75d6683e0", "75d6683e1", "of somebody",
        }  # fmt: skip
        assert max(map(len, lines)) <= 80
        assert runs("list", "--json") == 0
        ids = {json.loads(line)["run_id"] for line in capsys.readouterr().out.splitlines()}
        assert ids == {*made, "of somebody"}

    def test_a_terminal_gets_the_same_in_colour(
        self, three: Office, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
        three.leave("[red]x[/red]", "look")
        capsys.readouterr()
        assert three("list") == 0
        assert three("show", "waits-1") == 0
        out = capsys.readouterr().out
        assert "\x1b[33msuspended" in out
        plain = re.sub(r"\x1b\[[\d;]*m", "", out)
        assert re.search(
            r"^\[red\]x\[/red\] +look +fly +waiting for a worker ", plain, re.MULTILINE
        )
        assert re.search(r"^ +waits  did charge with .* happen", plain, re.MULTILINE)


MISUSES: dict[str, tuple[list[str], str]] = {
    "no store": (["list"], "--store sqlite:///runs.db, or TRIAGE_STORE"),
    "memory": (["list", "--store", "memory:"], "ends with its process"),
    "no such kind": (["list", "--store", "sqlit:///x"], "did you mean 'sqlite'?"),
    "no such file": (["list", "--store", "sqlite:///none.db"], "there is no file"),
    "a status": (["list", "--status", "dead"], "dead_letter"),
    "a limit": (["list", "--limit", "0"], "--limit must be a whole number from 1, not 0"),
}


@pytest.mark.parametrize(("arguments", "told"), MISUSES.values(), ids=MISUSES.keys())
def test_what_is_misused_is_said_with_the_remedy_and_exits_with_2(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRIAGE_STORE", raising=False)
    assert Office("", tmp_path)(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["list", "show", "cancel", "resolve", "prune"])
def test_a_store_that_cannot_be_read_is_said_and_exits_with_1(
    what: str, runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs.folder / "runs.db").write_bytes(b"no database" * 100)
    given = {"show": ["x"], "cancel": ["x"], "resolve": ["x", "rerun"], "prune": ["--keep", "1"]}
    assert runs(what, *given.get(what, [])) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"triage: StoreCorrupt: \S+runs\.db is damaged, or no store; .*\n", err)
    assert (runs.folder / "runs.db").read_bytes() == b"no database" * 100


class TestShow:
    def test_a_run_that_waits_says_what_for_and_how_to_answer(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert three("show", "waits-1") == 0
        out = capsys.readouterr().out
        for line in (
            "run waits-1 of pay: suspended",
            ' +task  "order 17"',
            r" +step 0  charge\(.*order 17.*\) failed: the bank did not answer",
            " +failed  attempt 1: TimeoutError: the bank did not answer",
            r" +diagnosis  external_fault \(in_doubt\), critical, confidence 1.00",
            " +action  suspend: did charge .* happen.*",
            r" +call  charge\(.*order 17.*\) \[once\] in doubt: it may have happened: Timeout.*",
            " +waits  did charge with .* happen.*",
            r" +about  the call charge:\w+:1, in doubt",
            " +answer  triage runs resolve waits-1 happened",
            " +or  triage runs resolve waits-1 rerun",
            " +used  1 step",
            r" +at work  \d\.\d\d s",
        ):
            assert re.search(rf"^{line}$", out, re.MULTILINE), line

    def test_a_run_that_is_left_says_how_to_go_on_and_one_that_is_done_its_result(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert three("show", "left-1") == 0
        out = capsys.readouterr().out
        assert "left  no process has it\n" in out
        assert "recover  triage runs recover left-1 module:agent\n" in out
        assert three("show", "done-1") == 0
        out = capsys.readouterr().out
        assert 'result  {"task": "fly", "client": null, "days": 1}' in out
        assert "recover" not in out

    def test_a_question_about_no_call_is_answered_by_its_token(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(ask, "fly", "asks-1", policy=asking)
        assert runs("show", "asks-1") == 0
        out = capsys.readouterr().out
        assert re.search(r"waits  how many days\?$", out, re.MULTILINE)
        assert re.search(r"answer  by its token, .*\n +triage runs resume - module:agent approve$",
                         out, re.MULTILINE)  # fmt: skip

    def test_a_question_that_came_too_late_says_so(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.write(
            "late",
            [
                RunStarted("late", 0, 1.0, "ask", "fly"),
                AttemptStarted("late", 1, 1.0, 1),
                RunSuspended("late", 2, 2.0, 1, "digest", "may I?", expires=3.0),
            ],
        )
        assert runs("show", "late") == 0
        out = capsys.readouterr().out
        assert "expires  1970-01-01 00:00:03Z, over: its token is refused" in out
        assert "answer  triage runs resolve late approve" in out
        assert "runs resume" not in out

    def test_the_beginning_of_an_id_is_enough_where_one_run_begins_so(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert three("show", "waits") == 0
        assert capsys.readouterr().out.startswith("run waits-1 of pay")
        three.leave("waits-2", "look")
        assert three("show", "waits") == 2
        told = "triage: 2 runs begin with 'waits': waits-2, waits-1; give more of it\n"
        assert capsys.readouterr().err == told
        assert three("show", "d") == 0
        assert capsys.readouterr().out.startswith("run done-1 of look")
        for given in ("nothing", "", "\x00"):
            assert three("show", given) == 2
            assert "the store knows no run" in capsys.readouterr().err

    def test_json_has_all_there_is_to_know(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert three("show", "waits-1", "--json") == 0
        out = capsys.readouterr().out
        assert out.count("\n") == 1
        found = json.loads(out)
        assert (found["status"], found["task"], found["steps"]) == ("suspended", "order 17", 1)
        assert found["waits"]["doubt"] is True
        assert found["waits"]["call"] == found["calls"][0]["key"]
        assert found["calls"][0]["outcome"] == "in_doubt"
        assert found["attempts"][0]["diagnosis"]["cause"] == "in_doubt"
        assert set(found["usage"]) >= {"input_tokens", "output_tokens", "cost_usd", "calls"}
        assert three("show", "left-1", "--json") == 0
        left = json.loads(capsys.readouterr().out)
        assert set(left) == set(found)
        assert left["waits"] is None

    def test_events_are_the_journal(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert three("show", "waits-1", "--events") == 0
        lines = capsys.readouterr().out.splitlines()
        assert [loads(line) for line in lines] == three.read("waits-1")

    def test_of_many_steps_the_newest_are_shown(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.write("long", run_of("long", 100))
        capsys.readouterr()
        assert runs("show", "long", "--events") == 0
        assert len(capsys.readouterr().out.splitlines()) == 102


class TestHostile:
    @pytest.fixture
    def hostile(self, runs: Office) -> Office:
        """A run whose every text would steer a terminal, and holds a key, as other hands may store it."""
        now, rid = time.time(), "bad"
        text = f"\x1b[2J\x1b]0;title\x07[red]x[/red]\r\n {KEY}"
        step = Step(
            action=text,
            tool_called="t\x07ool",
            tool_input={"password": "hunter22", text: 1},
            tool_output=text,
        )
        events: list[Event] = [
            RunStarted(rid, 0, now, "\x1b[31mred", text, {"api_key": "abcdefgh1"}, (text,)),
            AttemptStarted(rid, 1, now, 1, hint=text),
            StepRecorded(rid, 2, now, 1, 0, step),
            StepRecorded(rid, 3, now, 1, 1, Step(tool_called="t\x07ool", tool_input=[1])),
            StateUpdated(rid, 4, now, 1, {"token": "hunter22hunter22"}),
            RunSuspended(rid, 5, now, 1, "digest", text, {"password": "hunter22"}),
        ]
        runs.write(rid, events)
        return runs

    @pytest.mark.parametrize(
        "arguments",
        [("list",), ("list", "--json"), ("show",), ("show", "--json"), ("show", "--events")],
    )
    def test_nothing_steers_the_terminal_and_nothing_secret_is_shown(
        self, arguments: tuple[str, ...], hostile: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        run = ("bad",) if arguments[0] == "show" else ()
        assert hostile(arguments[0], *run, *arguments[1:]) == 0
        out, err = capsys.readouterr()
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out + err)
        for secret in (KEY, "hunter22", "abcdefgh1"):
            assert secret not in out + err

    def test_control_characters_without_a_secret_are_shown_as_escapes(
        self, hostile: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert hostile("show", "bad") == 0
        out = capsys.readouterr().out
        assert r"of \x1b[31mred: suspended" in out
        assert r"step 1  t\x07ool([1])" in out
        assert "[red]x[/red]" in out


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_a_list_that_is_watched_prints_what_has_changed(
    form: tuple[str, ...], three: Office
) -> None:
    with program("runs", "list", "--watch", *form) as watching:
        assert watching.stdout is not None
        first = [watching.stdout.readline() for _ in range(3 if form else 4)]
        assert sum("waits-1" in line for line in first) == 1
        three.leave("new-1", "look")
        assert "new-1" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=60)
    assert (watching.returncode, out, err) == (130, "", "triage: interrupted\n")
