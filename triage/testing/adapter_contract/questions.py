"""Scenarios of questions to a person: in whatever attempt one is put, it is put once, and its answer holds.

Each is played with a guard, which every adapter owes, and with the framework's own approvals.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from triage.core.actions import Replan, Resume, Retry, Rollback, Suspend, approve, reject
from triage.core.errors import TriageEscalationError, TriageSuspendedError
from triage.core.events import ApprovalAsked
from triage.core.taxonomy import Cause
from triage.engine.options import Checks
from triage.strategies.policy import FailurePolicy

from .bench import Bench, Fails, Rule, Script, asks, call, says
from .playing import CHARGE, HINT, SEARCH, Played, Scenario, Stage, scenario

Asker = Literal["guard", "approval"]
ASKERS: tuple[Asker, ...] = ("guard", "approval")
Answers = Callable[[int, str], Any]
"""The answer to a question, by its number from 1 and the calls that it is about, in words."""

DONE = Rule(says("done"), "receipt 5")
NO = "far too dear"
BEGUN_BY: Sequence[Any] = (
    None,
    Retry(HINT),
    Replan(HINT),
    Rollback(hint=HINT),
    Resume(subgoal="pay", hint=HINT),
)
"""What began the attempt that asks; None: it is the first."""
ELSEWHERE = (type(None), Rollback)
"""Of those, the ones whose question another process answers too: the plainest, and one that undoes."""
MOST_ASKED = 6
CENTS = range(1, 6)
"""The charges of one turn, of which a person refuses the first three that are put."""


def _charges(call: Any) -> Suspend | None:
    return Suspend("a charge") if call.tool == "charge" else None


async def _answered(
    bench: Bench,
    asker: Asker,
    rules: Sequence[Rule],
    answers: Answers,
    *,
    elsewhere: bool = False,
    **options: Any,
) -> tuple[Played, int]:
    """Run to the end, answering each question; the outcome, and how many questions were put.

    elsewhere: another process answers each question.
    """
    faults = options.pop("faults", {})
    script = Script(tuple(rules), faults, approvals=("charge",) if asker == "approval" else ())
    checks: dict[str, Any] = {"guard": _charges} if asker == "guard" else {}
    if "verify" in options:
        checks["verify"] = options.pop("verify")
    if checks:
        options["checks"] = Checks(**checks)
    with tempfile.TemporaryDirectory() as folder:
        if elsewhere:
            options["store"] = f"sqlite:///{Path(folder) / 'runs.db'}"
        async with Stage(bench, script) as stage:
            agents = [await stage.agent(**options)]
            done = await stage.outcome(lambda: stage.run(agents[-1]))
            asked = 0
            while isinstance(done.error, TriageSuspendedError):
                asked += 1
                assert asked <= MOST_ASKED, f"it is asked for ever: {done.error.question}"
                token, answer = done.error.token, answers(asked, _asked_about(done))
                if elsewhere:
                    agents.append(await stage.agent(**options))
                answered = partial(agents[-1].resume, token, answer)
                done = await stage.outcome(answered)
            if elsewhere:
                for agent in agents:
                    await agent.store.close()
    return done, asked


def _asked_about(done: Played) -> str:
    question = next(event for event in reversed(done.events) if isinstance(event, ApprovalAsked))
    return "; ".join(str(each["text"]) for each in question.payload["calls"])


def _approved(_number: int, _calls: str) -> Any:
    return approve()


def _refused(_number: int, _calls: str) -> Any:
    return reject(NO)


async def _goes_on(bench: Bench, asker: Asker) -> None:
    def verify(result: Any) -> str | None:
        return None if bench.text(result) == "done" else "it is not done"

    for action in BEGUN_BY:
        for elsewhere in (False, True) if isinstance(action, ELSEWHERE) else (False,):
            # A rollback keeps the last answer, so the attempt before it must fail without one.
            faults = {1: Fails(500, "Internal error")} if isinstance(action, Rollback) else {}
            begins = (Rule(CHARGE),) if action is None else (Rule(CHARGE, HINT), Rule(says("no")))
            done, asked = await _answered(
                bench, asker, (DONE, *begins), _approved, faults=faults, elsewhere=elsewhere,
                policy=FailurePolicy(default=action or Retry()), verify=verify,
            )  # fmt: skip
            where = f"begun by {action!r}, answered {'elsewhere' if elsewhere else 'here'}"
            assert asked == 1, f"{where}: {asked} questions were put"
            done.check_done(deeds=["charge(300)"])
            sent = len(done.world.requests)
            assert sent == (2 if action is None else 3), f"{where}: {sent} requests"


async def _refused_again(bench: Bench, asker: Asker) -> None:
    for elsewhere in (False, True):
        done, asked = await _answered(bench, asker, [Rule(CHARGE)], _refused, elsewhere=elsewhere)
        assert asked == 1, f"the refused call was asked about {asked} times"
        assert isinstance(done.error, TriageEscalationError), f"the run ended in {done.error!r}"
        assert done.failures[-1].action is not None, "the end is not decided"
        context = done.error.context
        assert context is not None, "the end has no context"
        assert context.diagnosis.cause == Cause.LIMIT, context.diagnosis
        assert "refusals" in str(done.error), f"the limit is not named: {done.error}"
        assert not done.world.deeds, f"it did what was refused: {done.world.deeds}"
        told = [request.text for request in done.world.requests]
        assert len(told) == 3, f"{len(told)} requests"
        for text in told[1:]:
            assert "charge" in text, "the model is not told which call was refused"
            assert "300" in text, "the model is not told which call was refused"
            assert NO in text, "the model is not told why it was refused"


async def _refused_and_heard(bench: Bench, asker: Asker) -> None:
    """One refusal, after which the model does something else."""
    done, asked = await _answered(bench, asker, [Rule(says("done"), NO), Rule(CHARGE)], _refused)
    assert asked == 1, f"{asked} questions were put"
    done.check_done(deeds=[], requests=2)


async def _asked_anew(bench: Bench, asker: Asker) -> None:
    """The person wants to be asked again, or something else was found out in between."""
    done, asked = await _answered(
        bench, asker, [DONE, Rule(CHARGE)],
        lambda number, _: reject(NO, ask_again=True) if number < 5 else approve(),
    )  # fmt: skip
    assert asked == 5, f"the person wants to be asked again, and was asked {asked} times"
    done.check_done(deeds=["charge(300)"])
    between = [DONE, Rule(CHARGE, "found 17"), Rule(SEARCH, NO), Rule(CHARGE)]
    done, asked = await _answered(
        bench, asker, between, lambda number, _: reject(NO) if number == 1 else approve()
    )
    assert asked == 2, f"after a search {asked} questions were put, not 2"
    done.check_done(deeds=["search(x)", "charge(300)"])


async def _refused_in_a_turn(bench: Bench, asker: Asker) -> None:
    """Equal calls in one turn are one question, and refusing one of several counts none of the others."""
    three = asks(*(call("charge", cents=300) for _ in range(3)))
    done, asked = await _answered(bench, asker, [Rule(says("done"), NO), Rule(three)], _refused)
    assert asked == 1, f"three equal calls were {asked} questions"
    done.check_done(deeds=[], requests=2)
    mails = {cents: call("charge", cents=cents) for cents in CENTS}
    # The calls of a turn run in any order, and so they are asked about.
    rules = [DONE] + [
        Rule(
            asks(*(mail for cents, mail in mails.items() if cents not in refused)),
            sees=tuple(f"too dear: {cents}" for cents in refused),
        )
        for count in (3, 2, 1, 0)
        for refused in combinations(CENTS, count)
    ]
    left = set(CENTS)

    def three_are_refused(number: int, calls: str) -> Any:
        cents = next(cents for cents in CENTS if f"{cents}}}" in calls)
        if number > 3:
            return approve()
        left.discard(cents)
        return reject(f"too dear: {cents}")

    done, asked = await _answered(bench, asker, rules, three_are_refused)
    if _are_asked_together(done):
        return  # refused together; some of them are refused in the framework's own words
    assert asked == 5, f"five different calls were {asked} questions"
    assert sorted(done.world.deeds) == [f"charge({cents})" for cents in sorted(left)]
    done.check_done()


def _are_asked_together(done: Played) -> bool:
    """Whether the framework asks about all calls of a turn at once."""
    asked = [event for event in done.events if isinstance(event, ApprovalAsked)]
    return any(len(event.payload["calls"]) > 1 for event in asked)


def _next_of(looks: Iterator[str], _: Any) -> str | None:
    return next(looks, None)


async def _done_is_settled(bench: Bench, asker: Asker) -> None:
    for action, elsewhere in ((Retry(HINT), False), (Replan(HINT), False), (Replan(HINT), True)):
        looks = iter(("not yet", "not yet"))
        done, asked = await _answered(
            bench, asker, [DONE, Rule(CHARGE)], _approved, elsewhere=elsewhere,
            policy=FailurePolicy(default=action), verify=partial(_next_of, looks),
        )  # fmt: skip
        assert asked == 1, f"what is approved and done is asked about {asked} times"
        done.check_done(deeds=["charge(300)"])


def _scenarios() -> list[Scenario]:
    def made(name: str, about: str, play: Any, asker: Asker, *needs: str) -> Scenario:
        async def played(bench: Bench) -> None:
            await play(bench, asker)

        played.__name__ = f"{asker}_{name}"
        played.__doc__ = about
        return scenario(*needs, *(("approvals",) if asker == "approval" else ()))(played)

    table: tuple[tuple[str, str, Any, tuple[str, ...]], ...] = (
        (
            "in_any_attempt",
            "A question in an attempt, whatever began it: asked once, and the attempt goes on.",
            _goes_on,
            (),
        ),
        (
            "refused_again",
            "A refused call is made again: refused without asking, and then the run ends.",
            _refused_again,
            (),
        ),
        ("refused_and_heard", "The model is told, and goes another way.", _refused_and_heard, ()),
        ("asked_anew", "A refusal that is lifted, or overtaken by other work.", _asked_anew, ()),
        (
            "refused_in_a_turn",
            "Equal calls of a turn are one question; refusing some counts none of the others.",
            _refused_in_a_turn,
            ("parallel_tools",),
        ),
        (
            "done_is_settled",
            "What is approved and done is never asked about again.",
            _done_is_settled,
            (),
        ),
    )
    return [
        made(name, about, play, asker, *needs)
        for asker in ASKERS
        for name, about, play, needs in table
    ]


QUESTIONS: tuple[Scenario, ...] = tuple(_scenarios())
