"""The command line: the result on standard output, the rest on standard error, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from cyclopts import App
from event_values import any_event
from hypothesis import given
from rich.console import Console
from support import RETRY, Says
from tables import table

import triage
from cli.cli_agents import KEY
from triage import Agent, Step, Usage
from triage.cli import Progress, main
from triage.cli.app import app
from triage.core import Event

ROOT = Path(__file__).parents[2]
POLICY = """
EXTERNAL_FAULT = { strategy = "backoff_and_retry", max_attempts = 1, backoff = { base = 0 } }
default = "escalate"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with agents and a policy, which is the current one."""
    shutil.copy(ROOT / "tests" / "cli" / "cli_agents.py", tmp_path / "agents.py")
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("agents", "broken", "needy", "leaves"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def run(*arguments: str) -> int:
    code = main(["run", *arguments])
    sys.modules.pop("agents", None)
    return code


POLICED = ("--policy", "policy.toml")


@pytest.mark.usefixtures("project")
class TestRun:
    def test_a_run_shows_its_steps_failures_actions_and_totals_and_gives_its_result(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:book", "fly", *POLICED) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == {"task": "fly", "city": "Lisboa", "days": 1}
        for line in (
            r"run  book \([0-9a-f]{8}\)",
            r'step  look search\(\{"city": "Lisboa"\}\) → \["f1"\]',
            r'step  charge\(\{"cents": 995\}\) → \{"paid": 995\}',
            r"failed  attempt 1: ConnectionError: the service is down",
            r"diagnosis  external_fault \(connection\), retriable",
            r"because  .*ConnectionError",
            r"action  retry.* \(policy\)",
            r"attempt  2, told: nothing",
            r"reused  charge\(",
            r"done  2 attempts, 3 steps, 240 tokens, \$0\.0200, \d+\.\d\d s",
        ):
            assert re.search(rf"^ +\d+\.\d\d s +{line}", err, re.MULTILINE), line
        assert "printed by the function" in err
        assert "printed by the function" not in out

    def test_json_is_one_line_with_all_there_is_to_know(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:book", "fly", "--json", "--quiet", *POLICED) == 0
        out, err = capsys.readouterr()
        assert out.count("\n") == 1
        report = json.loads(out)
        assert len(report.pop("run_id")) == 32
        assert report.pop("seconds") >= 0
        assert report == {
            "status": "done",
            "result": {"task": "fly", "city": "Lisboa", "days": 1},
            "attempts": 2,
            "steps": 3,
            "usage": {"input_tokens": 200, "output_tokens": 40, "cost_usd": 0.02, "calls": 2},
        }
        assert err == "printed by the function\n" * 2

    def test_a_run_that_fails_says_why_and_exits_with_1(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:book", "fly", "--attempts", "1", "--json") == 1
        out, err = capsys.readouterr()
        report = json.loads(out)
        assert (report["status"], report["result"]) == ("escalated", None)
        assert report["failure_type"] == "external_fault"
        assert report["error"].startswith("TriageEscalationError: run ")
        assert "limit reached: 1 of 1 attempts used" in err.splitlines()[-1]
        assert err.splitlines()[-1].startswith("triage: run ")

    def test_an_aborted_run_exits_with_1_and_prints_no_result(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:aborts", "fly", "--quiet") == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"triage: run .* aborted after attempt 1: .*enough.*\n", err)

    def test_a_mistake_inside_of_a_run_is_a_run_that_failed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:misused", "fly", "--json") == 1
        assert json.loads(capsys.readouterr().out)["status"] == "error"

    def test_a_run_that_waits_gives_its_question_and_token_and_exits_with_3(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:asks", "fly", "--json") == 3
        out, err = capsys.readouterr()
        report = json.loads(out)
        assert report["status"] == "suspended"
        assert report["question"] == "may I go on? [redacted]"
        assert f"token {report['token']}: agent.resume(token, action)" in err
        assert "the run waits for an answer: may I go on? [redacted]" in err
        assert run("agents:asks", "fly") == 3
        assert capsys.readouterr().out == ""

    @table("name", ["interrupted", "stops"])
    def test_an_interrupted_run_exits_with_130(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(f"agents:{name}", "fly") == 130
        out, err = capsys.readouterr()
        assert out == ""
        assert err.endswith("triage: interrupted\n")
        assert "Traceback" not in err

    def test_what_tools_and_errors_say_is_neither_markup_nor_a_secret_nor_a_control(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:hostile", "fly", "--attempts", "1") == 1
        out, err = capsys.readouterr()
        assert r"[red]not markup[/red]\x1b[2J and more" in err
        assert "[/oops]" in err
        assert "[redacted]" in err
        assert "hunter22" not in err
        assert "sk-a1" not in err
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out + err)
        assert all(len(line) < 250 for line in err.splitlines()[:-1])

    @table(
        ("function", "printed"),
        [
            ("plain", "plain fly\n"),
            ("items", '[\n  1,\n  "fly"\n]\n'),
            ("desk.answer", "desk fly\n"),
            ("nothing", ""),
            ("odd", "a\\x1b[31mb\tc\nd\\ud800\n"),
            ("unencodable", "[\n  1,\n  2\n]\n"),
        ],
    )
    def test_a_result_of_any_kind_is_printed_as_data(
        self, function: str, printed: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(f"agents:{function}", "fly", "--quiet") == 0
        assert capsys.readouterr().out == printed

    def test_arguments_are_json_where_they_can_be_read_so_and_text_otherwise(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = ("--arg", "days=3", "--arg", "city=Porto = Oporto", *POLICED)
        assert run("agents:book", "fly", *given) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["days"], result["city"]) == (3, "Porto = Oporto")

    def test_limits_bound_the_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("agents:book", "fly", "--cost", "0.001") == 1
        assert "cost_usd" in capsys.readouterr().err
        assert run("agents:book", "fly", "--seconds", "0.000001", "--quiet") == 1
        assert "seconds" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("option", "code"),
        [
            ("refusals=1", 0),
            ("polling_seconds=60.5", 0),
            ("polling_seconds=null", 0),
            ('calls_per_tool={"charge": 2}', 0),
            ("attempts=1", 1),
            ("tool_calls=1", 1),
        ],
    )
    def test_any_limit_can_be_set(
        self, option: str, code: int, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("agents:book", "fly", *POLICED, "--quiet", "--limit", option) == code
        assert ("limit reached" in capsys.readouterr().err) == bool(code)


MISUSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no function": (("agents", "t"), ("'agents'", "module:function")),
    "a file": (("agents.py:book", "t"), ("agents.py is a file", "agents:book")),
    "a path": (("./sub/agents.py:book", "t"), ("is a file", "sub.agents:book")),
    "no module": (("agent:book", "t"), ("no module 'agent'", "in its directory")),
    "no submodule": (("agents.x:book", "t"), ("agents.x", "no module")),
    "a typo": (("agents:bok", "t"), ("no 'bok'", "did you mean 'book'?")),
    "an unknown name": (("agents:zzz", "t"), ("no 'zzz'", "function")),
    "no callable": (("agents:number", "t"), ("must be a function", "int")),
    "broken": (("broken:f", "t"), ("ValueError: at import", "broken.py, line 1)")),
    "needy": (("needy:f", "t"), ("needy needs the module 'no_such_module'", "install it")),
    "leaves": (("leaves:f", "t"), ("leaves cannot be imported", "SystemExit")),
    "no policy": (("agents:book", "t", "--policy", "no.toml"), ("no.toml", "cannot be read")),
    "bad policy": (("agents:book", "t", "--policy", "agents.py"), ("agents.py", "not TOML")),
    "attempts 0": (("agents:book", "t", "--attempts", "0"), ("--attempts must", "int (0)\n")),
    "attempts x": (
        ("agents:book", "t", "--attempts", "x"),
        ("--attempts", '"x" into int', "triage run --help"),
    ),
    "seconds 0": (("agents:book", "t", "--seconds", "0"), ("--seconds must be", "above 0")),
    "cost nan": (("agents:book", "t", "--cost", "nan"), ("--cost must be", "finite")),
    "limit 0": (("agents:book", "t", "--limit", "refusals=0"), ("--limit refusals must be",)),
    "limit x": (("agents:book", "t", "--limit", "tokens=x"), ("--limit tokens must be",)),
    "a limit": (("agents:book", "t", "--limit", "refusal=1"), ("did you mean 'refusals'?",)),
    "limit of an agent": (
        ("agents:asks", "t", "--limit", "refusals=1"),
        ("leave out --limit",),
    ),
    "an argument": (("agents:book", "t", "--arg", "town=x"), ("town", "city, days")),
    "no value": (("agents:book", "t", "--arg", "city"), ("--arg 'city'", "name=value")),
    "no name": (("agents:book", "t", "--arg", "a b=1"), ("--arg 'a b=1'", "name=value")),
    "twice": (("agents:book", "t", "--arg", "days=1", "--arg", "days=2"), ("days", "once")),
    "an injected": (("agents:book", "t", "--arg", "run=1"), ("run is filled by the run",)),
    "an agent": (("agents:asks", "t", "--attempts", "1"), ("an Agent", "leave out --attempts")),
    "no task": (
        ("agents:book",),
        ("needs TASK, as in triage run FUNCTION TASK:", "triage run --help"),
    ),
    "an option": (("agents:book", "t", "--fast"), ("--fast", "--help")),
    "words": (("agents:book", "to", "Rome now"), ("'Rome now'", "in quotes", "--arg NAME=VALUE")),
    "a bare argument": (("agents:book", "t", "days=2"), ("place for days=2", "--arg days=2")),
}


@pytest.mark.parametrize("name", MISUSES)
def test_what_cannot_be_run_is_said_in_one_line_and_exits_with_2(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "broken.py").write_text("raise ValueError('at import\\nof it')")
    (project / "needy.py").write_text("import no_such_module")
    (project / "leaves.py").write_text("import sys\nsys.exit(0)")
    arguments, words = MISUSES[name]
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"triage: [^\n]+\n", err)
    for word in words:
        assert word in err


@table("arguments", [[], ["runs"], ["incidents"]])
def test_a_command_that_is_not_finished_is_a_question_for_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    bare = capsys.readouterr()
    assert main([*arguments, "--help"]) == 0
    assert capsys.readouterr() == bare
    assert "Commands" in bare.out


def test_the_version_is_that_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"triage {triage.__version__}\n"


@table("arguments", [["--help"], ["run", "--help"]])
def test_help_says_what_each_exit_code_means(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for code in ("0 ", "1 ", "2 ", "3 ", "130 "):
        assert re.search(rf"^  {code} +\w", out, re.MULTILINE)


def commands(of: App, *words: str) -> Iterator[tuple[str, ...]]:
    """Every command that does something."""
    if of.default_command is not None:
        yield words
    for name, command in of.resolved_commands().items():
        if not name.startswith("-"):
            yield from commands(command, *words, name)


@pytest.mark.parametrize("words", list(commands(app)), ids=" ".join)
def test_help_of_a_command_fits_the_screen_and_has_examples_that_are_commands(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert "exit codes:" in out
    text = out[out.index("examples:") :]
    assert max(map(len, text.splitlines())) <= 80
    examples = re.findall(r"^  triage (.*?)(?: < .*)?$", text, re.MULTILINE)
    assert examples
    for example in examples:
        assert example.startswith(" ".join(words))
        app.parse_args(shlex.split(example))


def test_without_its_extra_the_command_line_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("triage.cli.app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    assert main(["runs", "list"]) == 2
    told = 'the command line needs cyclopts; install it: pip install "triage-recovery[cli]"'
    assert capsys.readouterr() == ("", f"triage: {told}\n")


@table(
    ("arguments", "told"),
    [
        (["rnus", "list"], 'Did you mean "runs"?'),
        (["rnus", "list"], " and others; see triage --help"),
        (["runs", "lst"], 'Did you mean "list"?'),
        (["runs", "list", "--statu", "done"], "Did you mean --status?"),
        (["runs", "list", "--status", "don"], 'Did you mean "done"?'),
    ],
)
def test_what_is_nearly_right_is_put_right(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_without_rich_progress_is_plain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    Progress()(triage.core.events.StepRecorded("run", 1, 0.0, 1, 0, Step(action="look")))
    assert capsys.readouterr().err == "   0.00 s       step  look\n"


# As a program -------------------------------------------------------------------------------------


def program(project: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "triage.cli", *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # A shell's background jobs ignore interrupts, and what they start would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )


def test_it_runs_as_a_program(project: Path) -> None:
    with program(project, "run", "agents:book", "fly", *POLICED) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["task"] == "fly"
    assert "diagnosis  external_fault (connection)" in err


def test_ctrl_c_ends_it_with_130_and_no_traceback(project: Path) -> None:
    with program(project, "run", "agents:waits", "fly", "--quiet") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "triage: interrupted\n")


# Progress, in programs of one's own ---------------------------------------------------------------


def terminal(**options: Any) -> Console:
    return Console(file=io.StringIO(), width=60, color_system=None, **options)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@given(any_event)
def test_any_event_of_any_content_can_be_shown(event: Event) -> None:
    for console in (terminal(), terminal(force_terminal=True)):
        Progress(console)(event)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", shown(console))


def test_a_long_line_is_folded_in_a_terminal_and_left_whole_in_a_log() -> None:
    event = triage.core.events.StepRecorded("run", 1, 0.0, 1, 0, Step(action="word " * 30))
    folded, whole = terminal(force_terminal=True), terminal()
    for console in (folded, whole):
        Progress(console)(event)
    assert all(len(line) <= 60 for line in shown(folded).splitlines())
    assert len(shown(folded).splitlines()) > 2
    assert len(shown(whole).splitlines()) == 1


def test_a_credential_at_the_edge_of_what_is_shown_is_not_shown_in_part() -> None:
    for before in range(150, 260):
        console = terminal()
        text = "x" * before + " " + KEY
        Progress(console)(triage.core.events.RunSuspended("run", 0, 0.0, 1, "digest", text))
        assert "sk-" not in shown(console)


@pytest.mark.anyio
async def test_one_progress_shows_runs_side_by_side_each_with_its_own_totals() -> None:
    console = terminal()

    async def work(task: int, *, record_step: Any, run: Any) -> None:
        for number in range(task):
            record_step(Step(action=f"step {number}", usage=Usage(task, 0)))
            await anyio.lowlevel.checkpoint()
        if run.attempt == 1:
            raise ConnectionError

    agent = Agent(work, RETRY, classifier=Says(), observers=[Progress(console)])
    async with anyio.create_task_group() as group:
        for task in (1, 2, 3):
            group.start_soon(agent.run, task)
    for steps, tokens in ((2, 2), (4, 8), (6, 18)):
        assert f"done  2 attempts, {steps} steps, {tokens} tokens" in shown(console)


@pytest.mark.anyio
async def test_progress_may_be_called_from_the_threads_of_a_sync_agent() -> None:
    console = terminal()

    def work(task: str, *, record_step: Any) -> None:
        record_step(Step(action=task))

    await Agent(work, observers=[Progress(console)]).run("in a thread")
    assert "step  in a thread" in shown(console)
