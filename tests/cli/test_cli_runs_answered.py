"""`triage runs resolve` and `cancel`: what an operator does at the store alone."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from msgspec.structs import astuple, replace

from cli.cli_runs import Office, runs_of_stores
from cli.runs_agents import ask, asking, look, pay
from triage import Agent, Step, TriageSuspendedError, happened, rerun
from triage.cli.options import you
from triage.core import ApprovalGiven, Event, RunFinished, RunResumed, StaleWriter, StepRecorded
from triage.stores import open_store

KEY = "sk-" + "a1" * 20


__all__ = ["runs_of_stores"]


def _unsigned(event: Event) -> Event:
    """The event without the name of who answered."""
    return replace(event, by="") if isinstance(event, ApprovalGiven | RunResumed) else event


def told_by(events: list[Event], *, after: int) -> list[tuple[str, Any]]:
    """The events behind a position, without what differs from run to run."""
    return [
        (type(event).__name__, re.sub(r"charge:\w+:1", "call", repr(astuple(_unsigned(event))[3:])))
        for event in events[after:]
    ]


class TestResolve:
    @pytest.mark.parametrize(
        ("answer", "arguments"),
        [(happened("r-1"), ("happened", "--result", '"r-1"')), (rerun(), ("rerun",))],
    )
    def test_it_journals_what_resume_journals(
        self,
        answer: Any,
        arguments: tuple[str, ...],
        runs: Office,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        runs.run(pay, "17", "by-operator")
        token = runs.run(pay, "17", "by-token")
        before = len(runs.read("by-operator"))
        assert runs("resolve", "by-operator", *arguments) == 0
        assert "it goes on once it is recovered" in capsys.readouterr().out
        by_operator = told_by(runs.read("by-operator"), after=before)
        assert len(by_operator) == 2
        agent = Agent(pay, store=open_store(runs.text))

        async def resume() -> None:
            try:
                await agent.resume(token, answer)
            except TriageSuspendedError:  # rerun: it times out again
                pass
            finally:
                await agent.store.close()

        anyio.run(resume)
        assert told_by(runs.read("by-token"), after=before)[:2] == by_operator

    def test_any_worker_goes_on_with_a_resolved_run_and_nothing_happens_twice(
        self, runs: Office
    ) -> None:
        runs.run(pay, "17", "r1")
        assert runs("resolve", "r1", "happened", "--result", '"r-1"') == 0
        info = runs.info("r1")
        assert (info.status, info.claims, info.lease_until) == ("running", 0, None)
        agent = Agent(pay, store=open_store(runs.text))

        async def worker() -> Any:
            try:
                return await agent.recover_all()
            finally:
                await agent.store.close()

        (recovered,) = anyio.run(worker)
        assert recovered == ("r1", "paid, receipt r-1", None)
        assert (runs.folder / "charged.txt").read_text(encoding="utf-8") == "17\n"

    @pytest.mark.parametrize("answer", ["happened", "rerun", "abort"])
    def test_a_run_that_was_answered_is_listed_as_such_until_it_goes_on(
        self, answer: str, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def listed(*arguments: str) -> str:
            capsys.readouterr()
            assert runs("list", *arguments) == 0
            return capsys.readouterr().out

        runs.leave("left", "look")
        runs.run(pay, "17", "r1")
        assert runs("resolve", "r1", answer) == 0
        for arguments in ((), ("--status", "running")):
            line = next(line for line in listed(*arguments).splitlines() if "r1" in line)
            assert "  answered, waiting for a worker  " in line
        assert listed().count("answered") == 1
        runs.do(lambda store: store.claim("r1", lease_s=600.0))
        assert "answered" not in listed()

    def test_a_call_that_may_run_again_runs_once(self, runs: Office) -> None:
        runs.run(pay, "17", "r1")
        assert runs("resolve", "r1", "rerun") == 0
        assert runs("recover", "r1", "agents:pay", "--quiet") == 3
        assert (runs.folder / "charged.txt").read_text(encoding="utf-8") == "17\n17\n"

    def test_an_abort_is_carried_out_by_who_recovers(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(ask, "fly", "r1", policy=asking)
        assert runs("resolve", "r1", "abort") == 0
        assert "it ends as aborted once it is recovered" in capsys.readouterr().out
        assert runs("recover", "r1", "agents:desk", "--quiet") == 1
        assert "an operator ended it" in capsys.readouterr().err
        assert runs.info("r1").status == "aborted"

    def test_the_token_is_used_up(self, runs: Office, capsys: pytest.CaptureFixture[str]) -> None:
        token = runs.run(pay, "17", "r1")
        assert runs("resolve", "r1", "happened") == 0
        assert runs("resume", token, "agents:pay", "rerun") == 1
        assert ": it happened" in capsys.readouterr().err
        assert runs("resolve", "r1", "rerun") == 1
        assert ": it happened" in capsys.readouterr().err

    def test_while_somebody_else_answers_it_is_busy(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(pay, "17", "r1")
        before = runs.read("r1")
        runs.do(lambda store: store.claim("r1", lease_s=600.0))
        assert runs("resolve", "r1", "rerun") == 1
        assert "whose lease lasts" in capsys.readouterr().err
        assert runs.read("r1") == before

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (("happened", "--result", "r-1"), "--result must be JSON"),
            (("happened", "--result", "NaN"), "--result must be JSON"),
            (("rerun", "--result", "1"), "leave it out with rerun"),
            (("happened", "--result", json.dumps({"key": KEY})), "result['key'] holds what looks"),
            (("maybe",), 'Invalid value "maybe" for ANSWER'),
        ],
    )
    def test_what_does_not_fit_changes_nothing(
        self,
        arguments: tuple[str, ...],
        told: str,
        runs: Office,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        runs.run(pay, "17", "r1")
        before = runs.read("r1"), runs.info("r1")
        assert runs("resolve", "r1", *arguments) == 2
        err = capsys.readouterr().err
        assert told in err
        assert KEY not in err
        assert (runs.read("r1"), runs.info("r1")) == before

    def test_a_question_about_no_call_takes_an_action(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(ask, "fly", "r1", policy=asking)
        assert runs("resolve", "r1", "rerun") == 2
        assert "no call of it is in doubt" in capsys.readouterr().err

    def test_a_run_that_has_ended_or_is_unknown_is_said(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(look, "fly", "r1")
        assert runs("resolve", "r1", "abort") == 1
        assert "RunOver: run r1 has ended: done" in capsys.readouterr().err
        assert runs("resolve", "r2", "abort") == 2


class TestCancel:
    def test_an_owner_that_lives_can_write_no_more(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.leave("r1", "look", lease_s=600.0)
        assert runs("cancel", "r1") == 0
        told = (
            "run r1 is cancelled; its process, if it lives, stops when it next renews its lease\n"
        )
        assert capsys.readouterr().out == told
        events = runs.read("r1")
        assert isinstance(events[-1], RunFinished)
        assert (len(events), events[-1].status) == (3, "cancelled")
        assert runs.info("r1").lease_until is None
        late = RunFinished("r1", 2, 0.0, "done")
        with pytest.raises(StaleWriter):
            runs.do(lambda store: store.append("r1", [late], at=2, epoch=0))

    def test_a_run_that_waits_is_cancelled_and_its_token_with_it(self, runs: Office) -> None:
        token = runs.run(ask, "fly", "r1", policy=asking)
        assert runs("cancel", "r1") == 0
        assert runs.info("r1").status == "cancelled"
        assert runs("resume", token, "agents:desk", "approve") == 1

    def test_a_run_that_has_ended_stays_as_it_is(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs.run(look, "fly", "r1")
        before = runs.read("r1")
        assert runs("cancel", "r1") == 1
        assert "RunOver: run r1 has ended as done" in capsys.readouterr().err
        assert runs.read("r1") == before
        assert runs("cancel", "r2") == 2


class TestFork:
    def leave_failed(self, runs: Office) -> None:
        """A run of two steps that an operator has cancelled."""
        runs.leave("r1", "look")
        steps = [
            StepRecorded("r1", seq, 0.0, 1, seq - 2, Step(action=f"look {seq}")) for seq in (2, 3)
        ]
        runs.do(lambda store: store.append("r1", steps, at=2, epoch=0))

    def test_it_goes_on_from_a_step_in_a_new_run(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.leave_failed(runs)
        assert runs("cancel", "r1") == 0
        capsys.readouterr()
        assert runs("fork", "r1", "--at", "0", "--run-id", "r2") == 0
        out = capsys.readouterr().out
        assert "run r2 is forked from r1; it goes on" in out
        assert "triage runs recover r2 agents:look" in out
        assert [type(event) for event in runs.read("r2")[:3]] == [
            type(event) for event in runs.read("r1")[:3]
        ]
        assert runs("recover", "r2", "agents:look", "--quiet") == 0
        assert runs("show", "r2") == 0
        assert "forked from  r1, behind its event 2" in capsys.readouterr().out

    def test_who_ended_and_forked_a_run_is_in_its_journal(self, runs: Office) -> None:
        self.leave_failed(runs)
        assert runs("fork", "r1", "--at", "1.1", "--end", "--run-id", "r2", "--json") == 0
        ended = runs.read("r1")[-1]
        assert isinstance(ended, RunFinished)
        assert ended.by == you()
        assert runs.read("r2")[-1].by == you()  # type: ignore[union-attr]

    def test_what_cannot_be_forked_is_said_and_nothing_is_written(
        self, runs: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.leave_failed(runs)
        for arguments, told in (
            (("--at", "0"), "has not ended"),
            (("--at", "7"), "attempt 1 has steps 0 to 1"),
            (("--at", "4.0"), "attempt 4 has no steps"),
            (("--at", "first"), "must be a step's number"),
            (("--at", "0", "--hint", "x"), "leave it out with --at"),
            ((), "no attempt of the run has failed"),
        ):
            assert runs("fork", "r1", *arguments) == 2
            assert told in capsys.readouterr().err
        assert [info.run_id for info in runs.do(lambda store: store.runs())] == ["r1"]
