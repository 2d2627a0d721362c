"""`triage diagnose`: what it prints, as text and as JSON, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from adapters.trace_forms import EXAMPLE, FORMS, attempts
from event_values import json_values
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.cli_agents import KEY
from triage.cli import main

GOLDEN = Path(__file__).parents[1] / "golden" / "events_v1.jsonl"
FIELDS = {"v", "kind", "file", "line", "id", "format", "task", "attempt", "outcome", "steps", "error",
          "diagnosis", "action", "policy", "recorded"}  # fmt: skip
TOLD = {"failure_type", "cause", "severity", "level", "confidence", "critical_step", "user_message",
        "technical_details", "hint", "suggestions", "retry_after_s", "candidates", "classifier",
        "evidence"}  # fmt: skip
CLASSIFIERS = """
from triage import Diagnosis, FailureType

class Drifts:
    def classify(self, trajectory, task):
        return Diagnosis(FailureType.GOAL_DRIFT, evidence=())

class Later:
    async def classify(self, trajectory, task):
        return FailureType.GOAL_DRIFT

class Needy:
    def __init__(self, model): ...

def drifts(trajectory, task):
    return "no type" if task == "junk" else FailureType.GOAL_DRIFT

later = Later()
number = 7
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with classifiers in it."""
    (tmp_path / "mine.py").write_text(CLASSIFIERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def looping(*, task: str = "Book a flight", found: str = "[]", **more: Any) -> str:
    step = {"tool_called": "search", "tool_input": {"q": "museum"}, "tool_output": found}
    return json.dumps({"task": task, "steps": [{"action": "look"}, *[step] * 3], **more})


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.usefixtures("here")
class TestDiagnose:
    def test_it_says_why_quotes_the_steps_and_tells_what_a_policy_would_do(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "talk.jsonl").write_text(looping(id="r7"), encoding="utf-8")
        (here / "policy.toml").write_text('LOOP_DETECTED = "abort"', encoding="utf-8")
        assert main(["diagnose", "talk.jsonl"]) == 0
        assert main(["diagnose", "talk.jsonl", "--policy", "policy.toml", "--task", "Mine"]) == 0
        out, err = capsys.readouterr()
        for words in (
            "talk.jsonl, line 1 (r7)",
            "task  Book a flight",
            "diagnosis  loop_detected (repetition), replanning, level medium, confidence 0.97",
            "because  steps.loop: 'search' 3 times with the same arguments and result",
            'step 1  search({"q": "museum"}) → []',
            "hint  You called search",
            "policy  retry (the recommended policy)",
            "task  Mine",
            "policy  abort (policy.toml)",
        ):
            assert words in out
        assert err == ""

    @pytest.mark.parametrize("name", FORMS)
    def test_every_form_is_diagnosed(
        self, name: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "file").write_text(json.dumps(FORMS[name](EXAMPLE), indent=1), encoding="utf-8")
        assert main(["diagnose", "file", "--json"]) == 0
        (told,) = objects(capsys.readouterr().out)
        assert set(told) == FIELDS
        assert set(told["diagnosis"]) == TOLD
        assert (told["format"], told["task"], told["steps"]) == (name, "Book a flight", 3)

    def test_json_is_an_object_a_line_with_the_same_fields_and_problems_among_them(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "talk.jsonl").write_text(f"{looping()}\nnonsense\n{looping()}", encoding="utf-8")
        assert main(["diagnose", "talk.jsonl", str(GOLDEN), "--json"]) == 1
        out, err = capsys.readouterr()
        first, problem, second, *attempts = objects(out)
        assert (problem["kind"], problem["line"], problem["column"]) == ("problem", 2, 1)
        for told in (first, second, *attempts):
            assert set(told) == FIELDS
        assert first["action"] == {"action": "retry", "hint": first["diagnosis"]["hint"]}
        assert first["diagnosis"]["evidence"][0]["quoted"] == 'search({"q": "museum"}) → []'
        assert attempts[0]["recorded"]["diagnosis"]["failure_type"] == "external_fault"
        assert err == ""

    def test_what_cannot_be_read_is_told_with_its_line_and_the_rest_is_diagnosed(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "talk.jsonl").write_text(
            f"{looping()}\n{looping()[:50]}\n{looping()}", encoding="utf-8"
        )
        assert main(["diagnose", "talk.jsonl"]) == 1
        out, err = capsys.readouterr()
        assert out.count("loop_detected") == 2
        assert err.startswith("triage: talk.jsonl: line 2, column ")

    def test_standard_input_is_read(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(looping().encode())))
        assert main(["diagnose", "-"]) == 0
        assert "standard input, line 1" in capsys.readouterr().out

    def test_tools_may_be_told(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        record = {"steps": [{"tool_called": "serch", "error": "no such tool"}]}
        (here / "talk.json").write_text(json.dumps(record), encoding="utf-8")
        (here / "tools.json").write_text('["search", "book"]', encoding="utf-8")
        assert main(["diagnose", "talk.json", "--tools", "tools.json"]) == 0
        out = capsys.readouterr().out
        assert "wrong_tool_called (unknown_tool)" in out
        assert "search" in out

    def test_an_attempt_that_went_well_is_not_acted_on(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record = {"steps": [{"action": "a", "llm_output": "ok"}], "outcome": "success"}
        (here / "talk.json").write_text(json.dumps(record), encoding="utf-8")
        assert main(["diagnose", "talk.json"]) == 0
        assert "policy  nothing: the recording says that it went well" in capsys.readouterr().out

    @pytest.mark.parametrize("place", ["mine:Drifts", "mine:later", "mine:drifts"])
    def test_any_classifier_may_be_asked(
        self, place: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "talk.json").write_text(looping(), encoding="utf-8")
        assert main(["diagnose", "talk.json", "--classifier", place]) == 0
        assert "goal_drift, replanning" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["none.json"], "none.json: cannot be read: No such file"),
            (["talk.json", "--format", "chat"], "the formats are openai, responses"),
            (["talk.json", "--policy", "none.toml"], "none.toml: cannot be read"),
            (["talk.json", "--tools", "none.json"], "--tools none.json: cannot be read"),
            (["talk.json", "--tools", "mine.py"], "--tools mine.py: is not JSON"),
            (["talk.json", "--tools", "empty.json"], "--tools empty.json: holds no tools"),
            (["talk.json", "--classifier", "mine:Drift"], "did you mean 'Drifts'"),
            (["talk.json", "--classifier", "mine:number"], "mine:number is no classifier"),
            (["talk.json", "--classifier", "mine:Needy"], "cannot be made without arguments"),
            (
                ["talk.json", "--classifier", "mine:drifts", "--task", "junk"],
                "classifier drifts failed",
            ),
            ([], "triage diagnose needs FILE, as in triage diagnose FILE: A recording"),
        ],
    )
    def test_misuse_is_told_in_one_line_and_exits_with_2(
        self, arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "talk.json").write_text(looping(), encoding="utf-8")
        (here / "empty.json").write_text("[]", encoding="utf-8")
        assert main(["diagnose", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert err.count("\n") == 1


HOSTILE = f"\x1b[2J\x1b]0;owned\x07[bold red]x[/] \u202e\u200b {KEY} line\nbreak\r \x9b31m"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_recording_says_is_neither_markup_nor_a_secret_nor_a_control(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool,
) -> None:
    (here / "talk.json").write_text(
        looping(task=HOSTILE, found=HOSTILE, id=HOSTILE, error=f"ValueError: {HOSTILE}"),
        encoding="utf-8",
    )
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "400")
    for extra in ([], ["--json"]):
        assert main(["diagnose", "talk.json", *extra]) == 0
    out, err = capsys.readouterr()
    text = re.sub(r"\x1b\[[\d;]*m", "", out + err)
    assert (text != out + err) == terminal
    assert "[bold red]x[/]" in text
    assert "[redacted]" in text
    for hidden in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\u200b", "\r", KEY[:12]):
        assert hidden not in text, hidden


@settings(max_examples=100)  # one way of each file: a command takes longer than a file
@given(
    st.binary(max_size=60)
    | st.builds(lambda value: json.dumps(value).encode(), json_values | attempts),
    st.sampled_from([[], ["--json"], ["--format", "steps"], ["--format", "openai"]]),
)
def test_no_file_ends_the_command_with_anything_but_an_exit_code(
    tmp_path_factory: pytest.TempPathFactory, source: bytes, extra: list[str]
) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(source)
    assert main(["diagnose", str(path), *extra]) in {0, 1}


def test_a_reader_that_has_enough_ends_it_without_a_complaint(here: Path) -> None:
    (here / "talk.jsonl").write_text("\n".join([looping()] * 3000), encoding="utf-8")
    command = [sys.executable, "-m", "triage.cli", "diagnose", "talk.jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=here,
                          env={**os.environ, "PYTHONUTF8": "1"}) as done:  # fmt: skip
        assert done.stdout is not None
        assert done.stderr is not None
        assert done.stdout.readline() == b"talk.jsonl, line 1\n"
        done.stdout.close()
        assert done.stderr.read() == b""
    assert done.returncode == 1
