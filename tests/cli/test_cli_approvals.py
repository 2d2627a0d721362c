"""A call that waits for an approval, in a terminal: shown as that, and approved, rejected or edited."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from support import always

import triage
from cli.cli_runs import Office, runs_of_stores
from cli.runs_agents import pay
from triage import Agent, Checks, Retry, Suspend
from triage.cli import main
from triage.core import ApprovalGiven
from triage.stores import open_store

__all__ = ["runs_of_stores"]

charged: list[int] = []


@triage.tool(effect="once")
async def send(cents: int, to: str = "ann") -> str:
    charged.append(cents)
    return f"sent {cents} to {to}"


async def guarded(task: str, *, _triage_hint: str | None = None) -> str:
    return await send(300) if _triage_hint is None else _triage_hint


OPTIONS: dict[str, Any] = {"checks": Checks(guard=lambda _: Suspend("over 200"))}


@pytest.fixture(autouse=True)
def nothing_charged() -> None:
    charged.clear()


def recovered(runs: Office) -> Any:
    agent = Agent(guarded, always(Retry()), store=open_store(runs.text), **OPTIONS)

    async def work() -> Any:
        try:
            return await agent.recover("r1")
        finally:
            await agent.store.close()

    return anyio.run(work)


def approve(runs: Office, *arguments: str) -> int:
    return main(["approve", "r1", "--store", runs.text, *arguments])


def test_it_is_shown_as_waiting_and_not_as_a_failure_in_doubt(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.run(guarded, "go", "r1", **OPTIONS)
    runs.run(pay, "17", "r2")
    capsys.readouterr()
    assert runs("list") == 0
    listed = capsys.readouterr().out
    assert "suspended (approval)" in next(line for line in listed.splitlines() if "r1" in line)
    assert "approval" not in next(line for line in listed.splitlines() if "r2" in line)
    assert runs("show", "r1") == 0
    shown = capsys.readouterr().out
    assert "doubt" not in shown
    assert "failed" not in shown
    assert "it waits for an approval" in shown
    edit = """edit --payload '{"cents": 300, "to": "ann"}'"""
    for answer in ("approve", "reject", edit, "abort"):
        assert f"  triage runs resolve r1 {answer}\n" in shown
    assert runs("show", "r2") == 0
    shown = capsys.readouterr().out
    for answer in ("happened", "rerun", "abort"):
        assert f"  triage runs resolve r2 {answer}\n" in shown
    assert runs("show", "r1", "--report", "text") == 0
    assert "doubt" not in capsys.readouterr().out
    assert runs("show", "r1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["waits"]["waits_for"] == "approval"


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (("approve",), "sent 300 to ann"),
        (("edit", "--payload", '{"cents": 150}'), "sent 150 to ann"),
    ],
)
def test_resolve_takes_what_an_approval_is_answered_with(
    arguments: tuple[str, ...], result: str, runs: Office
) -> None:
    runs.run(guarded, "go", "r1", **OPTIONS)
    assert runs("resolve", "r1", *arguments) == 0
    assert charged == []
    assert recovered(runs) == result
    assert len(charged) == 1


def test_a_rejection_is_told_to_the_agent(runs: Office) -> None:
    runs.run(guarded, "go", "r1", **OPTIONS)
    assert runs("resolve", "r1", "reject", "--reason", "too much") == 0
    assert "too much" in recovered(runs)
    assert charged == []


@pytest.mark.parametrize("option", [("--ask-again",), ()])
@pytest.mark.parametrize("command", ["approve", "resolve", "resume"])
def test_a_rejection_may_leave_the_call_to_be_asked_about_again(
    command: str, option: tuple[str, ...], runs: Office
) -> None:
    token = runs.run(guarded, "go", "r1", **OPTIONS)
    match command:
        case "approve":
            assert approve(runs, "--reject", "no", *option) == 0
        case "resolve":
            assert runs("resolve", "r1", "reject", "--reason", "no", *option) == 0
        case _:
            answer = ("reject", "--reason", "no", "--quiet")
            assert runs("resume", token, "agents:guarded", *answer, *option) == 0
    (given,) = [event for event in runs.read("r1") if isinstance(event, ApprovalGiven)]
    assert (given.decision, given.ask_again) == ("rejected", bool(option))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("happened",), "has not begun, so it cannot have happened"),
        (("happened", "--result", "1"), "has not begun"),
        (("edit",), "edit takes a payload"),
        (("approve", "--payload", "{}"), "takes no payload"),
        (("edit", "--payload", "[1]"), "edit takes a payload"),
        (("edit", "--payload", '{"amount": 1}'), "edit() names amount"),
        (("edit", "--payload", '{"to": "sk-' + "a1" * 20 + '"}'), "looks like a secret"),
        (("approve", "--reason", "x"), "approve takes no reason"),
        (("approve", "--ask-again"), "only a rejection can be asked about again"),
        (("abort", "--ask-again"), "only a rejection can be asked about again"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_question_stays_open(
    arguments: tuple[str, ...], told: str, runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.run(guarded, "go", "r1", **OPTIONS)
    before = runs.read("r1")
    assert runs("resolve", "r1", *arguments) == 2
    assert told in capsys.readouterr().err
    assert runs.read("r1") == before
    assert runs("resolve", "r1", "approve") == 0
    assert recovered(runs) == "sent 300 to ann"


def test_triage_approve_shows_and_answers_a_call(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.run(guarded, "go", "r1", **OPTIONS)
    capsys.readouterr()
    assert approve(runs) == 0
    shown = capsys.readouterr().out
    assert "may send run with" in shown
    assert "it has not begun" in shown
    assert "--edit JSON" in shown
    assert approve(runs, "--json") == 0
    assert json.loads(capsys.readouterr().out)["arguments"] == {"cents": 300, "to": "ann"}
    assert approve(runs, "--plan", __file__) == 2
    assert approve(runs, "--edit", '{"to": "bob"}', "--by", "eve") == 0
    (given,) = [event for event in runs.read("r1") if isinstance(event, ApprovalGiven)]
    assert (given.decision, given.by, given.payload) == ("edited", "eve", {"to": "bob"})
    assert recovered(runs) == "sent 300 to bob"


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (("--yes",), "sent 300 to ann"),
        (("--reject", "no way"), "no way"),
        (("--reject", "no way", "--ask-again"), "no way"),
    ],
)
def test_triage_approve_takes_a_yes_or_a_no_to_a_call(
    arguments: tuple[str, ...], result: str, runs: Office
) -> None:
    runs.run(guarded, "go", "r1", **OPTIONS)
    assert approve(runs, *arguments) == 0
    assert result in recovered(runs)


def test_triage_approve_answers_nothing_about_a_call_in_doubt(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.run(pay, "17", "r1")
    before = runs.read("r1")
    assert approve(runs, "--yes") == 2
    assert "does not wait to have a plan or a call approved" in capsys.readouterr().err
    assert runs("resolve", "r1", "approve") == 2
    assert "Answer with happened(result), rerun()" in capsys.readouterr().err
    assert runs.read("r1") == before


def test_an_answered_call_is_listed_as_answered(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.run(guarded, "go", "r1", **OPTIONS)
    assert approve(runs, "--reject", "no way") == 0
    capsys.readouterr()
    assert runs("list") == 0
    assert "answered, waiting for a worker" in capsys.readouterr().out


def test_an_unknown_run_is_said_with_where_to_look(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ((), ("--yes",), ("--reject", "no")):
        assert main(["approve", "r9", *arguments]) == 2
        told = "the store knows no run 'r9'; see triage runs list --status suspended\n"
        assert capsys.readouterr().err.endswith(told)


def test_a_token_in_place_of_a_run_is_known_and_not_repeated(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    token = runs.run(guarded, "go", "r1", **OPTIONS)
    before = runs.read("r1")
    commands = (["approve"], ["runs", "show"], ["runs", "cancel"], ["runs", "recover"])
    for words in commands:
        rest = ["agents:pay"] if "recover" in words else []
        assert main([*words, token, *rest]) == 2
        err = capsys.readouterr().err
        assert "a token is given in place of a run; name the run it is of: r1" in err
        assert token not in err
    assert runs.read("r1") == before


def test_a_run_that_does_not_wait_is_said_with_its_status(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.leave("r1", "look")
    for status in ("running", "cancelled"):
        assert approve(runs, "--yes") == 2
        err = capsys.readouterr().err
        assert "run r1 does not wait to have a plan or a call approved" in err
        assert f"it is {status}; see triage runs show r1" in err
        assert runs("cancel", "r1") == (0 if status == "running" else 1)
