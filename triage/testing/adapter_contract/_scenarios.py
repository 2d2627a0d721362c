"""The scenarios: what every adapter must get right, each for one way in which agents fail."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from triage.actions import Replan, Retry, Rollback
from triage.answers import happened
from triage.errors import TriageEscalationError, TriageSuspendedError
from triage.events import StepRecorded
from triage.limits import Limits
from triage.policy import FailurePolicy
from triage.taxonomy import Effect, FailureType
from triage.testing._crash import Crash

from ._bench import Bench
from ._play import HINT, Played, Stage, diagnosis_of, play, words_of
from ._script import (
    CRASHES,
    HANGS,
    TOKENS,
    After,
    Asks,
    Call,
    Deed,
    Fails,
    Hangs,
    Request,
    Rule,
    Script,
    asks,
    call,
    says,
    unavailable,
)
from ._wire import check_wire, results_in

RETRY = FailurePolicy(default=Retry())
HINTED = FailurePolicy(default=Replan(HINT))
SECONDS = 1.0
"""Of an attempt in which something hangs."""
CHARGE, SEARCH = asks(call("charge", cents=300)), asks(call("search", query="x"))
BOTH = (Rule(says("done"), "receipt 5"), Rule(CHARGE, "found 17"), Rule(SEARCH))
PAID_FIRST = (Rule(says("done"), "found 17"), Rule(SEARCH, "receipt 5"), Rule(CHARGE))
RATE_LIMITED, TIMED_OUT = "external_fault: rate_limited", "external_fault: timeout"
UNAVAILABLE, BROKEN = "external_fault: unavailable", "external_fault: server_error"
UNKNOWN_TOOL, MISFIT = "wrong_tool_called: unknown_tool", "schema_mismatch: invalid_arguments"
REFUSED, LIMIT = "plan_incomplete: check_failed", "plan_incomplete: limit"
IN_DOUBT, OUTPUT_CUT = "external_fault: in_doubt", "context_overflow: output_cut"


async def healthy(bench: Bench) -> None:
    """A run without a fault: each call is a step as it ends, with input, output, effect, usage and time."""
    done = await play(bench, Script(BOTH))
    done.check_done()
    assert done.world.deeds == ["search(x)", "charge(300)"], done.world.deeds
    assert len(done.world.requests) == 3, f"{len(done.world.requests)} requests, not 3"
    assert len(done.models) == 3, f"{len(done.models)} steps of model calls, not 3"
    found = [
        (s.tool_called, s.tool_input, words_of(s.tool_output), s.error, s.effect)
        for s in done.tools
    ]
    wanted = [
        ("search", {"query": "x"}, "found 17", None, Effect.READ),
        ("charge", {"cents": 300}, "receipt 5", None, Effect.ONCE),
    ]
    assert found == wanted, f"the steps of the tools are {found}"
    order = [kind for kind in map(_kind, done.world.log) if kind]
    assert order == _LIVE, f"what happened, and when it was recorded: {order}"
    asked = [step.tool_output for step in done.models[:2]]
    assert asked == [_asking(SEARCH), _asking(CHARGE)], f"the models asked for {asked}"
    assert all(step.duration_s is not None for step in done.steps), "a step has no duration"
    assert done.models[-1].llm_output == "done", f"the last step is {done.models[-1]}"
    used = (done.usage.input_tokens, done.usage.output_tokens, done.usage.calls)
    assert used == (3 * TOKENS[0], 3 * TOKENS[1], 3), f"the usage is {done.usage}"


_LIVE = [
    *("request", "model", "search(x)", "search"),
    *("request", "model", "charge(300)", "charge"),
    *("request", "model"),
]


def _kind(entry: object) -> str:
    """What an entry in a world's log is, empty for what the order leaves out."""
    if isinstance(entry, Request):
        return "request"
    if isinstance(entry, Deed):
        return entry.text
    return entry.step.tool_called or "model" if isinstance(entry, StepRecorded) else ""


def _asking(turn: Asks) -> list[Any]:
    return [{"tool": one.tool, "arguments": one.arguments} for one in turn.calls]


async def rate_limited_model(bench: Bench) -> None:
    """429 from the model: a retry goes on where it was, and pays for nothing twice."""
    script = Script(BOTH, faults={3: Fails(429, "Rate limit reached", 0.0)})
    done = await play(bench, script, policy=RETRY)
    done.check_done()
    assert done.world.deeds == ["search(x)", "charge(300)"], done.world.deeds
    assert len(done.world.requests) == 4, f"{len(done.world.requests)} requests, not 4"
    error = done.failure.error
    assert error is not None, "the error of the attempt is not known"
    assert any("429" in one.message for one in error.walk()), f"the error is taken for {error}"
    assert done.diagnosis == RATE_LIMITED, f"it is taken for {done.diagnosis}"
    refused = [step for step in done.models if step.error]
    assert len(refused) == 1, f"{len(refused)} failed model calls are recorded, not 1"


async def unavailable_tool(bench: Bench) -> None:
    """503 in a tool: it is called again, and nothing before it is."""
    script = Script(PAID_FIRST, tools={"search": (unavailable(), "found 17")})
    done = await play(bench, script, policy=RETRY)
    done.check_done()
    assert (done.count("charge(300)"), done.count("search(x)")) == (1, 2), done.world.deeds
    failed = [step for step in done.tools if step.error]
    assert [step.tool_called for step in failed] == ["search"], f"the failed calls are {failed}"
    _check_taken_for(done, UNAVAILABLE)


async def unknown_tool(bench: Bench) -> None:
    """A tool that does not exist: recorded with its error, corrected, and the history stays valid."""
    rules = (Rule(says("done"), "found 17"), Rule(SEARCH, "lookup"), Rule(asks(call("lookup"))))
    policy = FailurePolicy(default=Replan("There is no tool lookup: use search."))
    done = await play(bench, Script(rules), policy=policy)
    done.check_done()
    wrong = [step for step in done.tools if step.tool_called == "lookup"]
    assert wrong, "the call of the unknown tool is not recorded"
    assert all(step.error for step in wrong), "the call of the unknown tool has no error"
    assert done.world.deeds == ["search(x)"], done.world.deeds
    _check_taken_for(done, UNKNOWN_TOOL)


async def bad_arguments(bench: Bench) -> None:
    """Arguments that do not fit: the tool does not run with them, and the model is corrected."""
    rules = (
        Rule(says("done"), "receipt 5"),
        Rule(CHARGE, "many"),
        Rule(asks(Call("charge", {"cents": "many"}))),
    )
    policy = FailurePolicy(default=Replan("cents is a number, and many is none."))
    done = await play(bench, Script(rules), policy=policy)
    done.check_done()
    assert done.world.deeds == ["charge(300)"], done.world.deeds
    refused = [step.tool_input for step in done.tools if step.error]
    assert refused == [{"cents": "many"}], f"the refused calls are {refused}"
    _check_taken_for(done, MISFIT)


def _check_taken_for(done: Played, diagnosis: str) -> None:
    """Where a framework tells its model of an error instead of failing, there is nothing to diagnose."""
    found = [diagnosis_of(attempt) for attempt in done.failures]
    assert found in ([], [diagnosis]), f"it is taken for {found}"


async def malformed_output(bench: Bench) -> None:
    """An answer that cannot be read: the next attempt is told, once in each request."""
    rules = (Rule(says('{"ok": true}'), HINT), Rule(says('{"ok": tr')))

    def readable(result: Any) -> None:
        json.loads(bench.text(result))

    done = await play(bench, Script(rules), policy=HINTED, verify=readable)
    done.check_done('{"ok": true}')
    assert done.told() == [0, 1], f"the hint stands so often in the requests: {done.told()}"
    assert done.diagnosis == REFUSED, f"it is taken for {done.diagnosis}"


async def loop(bench: Bench) -> None:
    """The same call with the same result: found as a loop, and another way is taken."""
    rules = (Rule(says("done"), HINT), Rule(SEARCH))
    script = Script(rules, tools={"search": ("nothing",)})
    done = await play(bench, script, policy=HINTED)
    done.check_done()
    assert done.failure.failure_type is FailureType.LOOP_DETECTED, done.diagnosis
    told = done.told()
    assert told == [0] * (len(told) - 1) + [1], f"the hint stands so often in the requests: {told}"


async def budget(bench: Bench) -> None:
    """A budget of tokens that is used up: the run stops at once, from inside."""
    rules = (Rule(SEARCH),)
    limits = Limits(tokens=2 * sum(TOKENS))
    done = await play(bench, Script(rules), limits=limits)
    assert isinstance(done.error, TriageEscalationError), f"the run ended in {done.error!r}"
    assert len(done.world.requests) == 3, f"{len(done.world.requests)} requests, not 3"
    assert done.count("search(x)") == 2, "a tool ran after the budget was used up"
    assert done.usage.total_tokens == 3 * sum(TOKENS), f"the usage is {done.usage}"
    assert done.diagnosis == LIMIT, f"it is taken for {done.diagnosis}"


async def hang(bench: Bench) -> None:
    """A model that never answers: the attempt ends in time, and the next one goes on."""
    script = Script(BOTH, faults={3: Hangs()})
    done = await play(bench, script, policy=RETRY, limits=Limits(attempt_seconds=SECONDS))
    done.check_done()
    assert done.world.deeds == ["search(x)", "charge(300)"], done.world.deeds
    _check_timed_out(done)


async def hanging_tool(bench: Bench) -> None:
    """A tool that never answers: it is cut off in time and called again, and nothing before it is."""
    script = Script(PAID_FIRST, tools={"search": (HANGS, "found 17")})
    done = await play(bench, script, policy=RETRY, limits=Limits(attempt_seconds=SECONDS))
    done.check_done()
    assert (done.count("charge(300)"), done.count("search(x)")) == (1, 2), done.world.deeds
    assert done.world.cancelled == ["search"], "the tool did not hear that it was cut off"
    _check_timed_out(done)


def _check_timed_out(done: Played) -> None:
    """On a slow machine another attempt may run out of time, too."""
    found = {diagnosis_of(attempt) for attempt in done.failures}
    assert found == {TIMED_OUT}, f"it is taken for {found}"


async def crash_and_resume(bench: Bench) -> None:
    """The process dies in a tool: another one goes on, and asks and pays for nothing twice."""
    script = Script(PAID_FIRST, tools={"search": (CRASHES, "found 17")})
    with tempfile.TemporaryDirectory() as folder:
        async with Stage(bench, script) as stage:
            store = f"sqlite:///{Path(folder) / 'runs.db'}"
            agent = await stage.agent(store=store)
            died = False
            try:
                await stage.run(agent)
            except (Crash, BaseExceptionGroup):
                died = True
            assert died, "the crash was swallowed"
            # Another process has its own store and agent.
            second = await stage.agent(store=store)
            done = await stage.of(lambda: second.recover(stage.events[0].run_id))
            done.check_done()
            await agent.store.close()
            await second.store.close()
    assert (done.count("charge(300)"), done.count("search(x)")) == (1, 2), done.world.deeds
    assert len(done.world.requests) == 3, f"{len(done.world.requests)} requests, not 3"


async def rollback(bench: Bench) -> None:
    """Back to a checkpoint: what was done up to it stands, and the model is told."""
    script = Script(BOTH, faults={3: Fails(500, "Internal error")})
    done = await play(bench, script, policy=FailurePolicy(default=Rollback(hint=HINT)))
    done.check_done()
    assert done.world.deeds == ["search(x)", "charge(300)"], done.world.deeds
    assert done.told() == [0, 0, 0, 1], f"the hint stands so often in the requests: {done.told()}"
    assert done.diagnosis == BROKEN, f"it is taken for {done.diagnosis}"


async def approval(bench: Bench) -> None:
    """A payment whose answer was lost: a person is asked, and it does not happen twice."""
    rules = (Rule(says("done"), "receipt 5"), Rule(CHARGE))
    lost = TimeoutError("read timed out")
    async with Stage(bench, Script(rules, tools={"charge": (lost,)})) as stage:
        agent = await stage.agent(policy=RETRY)
        asked = await stage.of(lambda: stage.run(agent))
        assert isinstance(asked.error, TriageSuspendedError), f"the run ended in {asked.error!r}"
        assert asked.diagnosis == IN_DOUBT, f"it is taken for {asked.diagnosis}"
        token = asked.error.token
        done = await stage.of(lambda: agent.resume(token, happened("receipt 5")))
    done.check_done()
    assert done.count("charge(300)") == 1, done.world.deeds
    assert len(done.world.requests) == 2, f"{len(done.world.requests)} requests, not 2"


async def soft_failure(bench: Bench) -> None:
    """An answer that was cut off is no success, whatever the framework makes of it."""
    rules = (Rule(says("done"), HINT), Rule(says("half of i", ended="length")))
    done = await play(bench, Script(rules), policy=HINTED)
    done.check_done()
    assert done.diagnosis == OUTPUT_CUT, f"it is taken for {done.diagnosis}"


async def cancellation(bench: Bench) -> None:
    """The caller gives up: the tool that runs is cancelled, and nothing is tried again."""
    import anyio

    script = Script((Rule(SEARCH),), tools={"search": (HANGS,)})
    async with Stage(bench, script) as stage:
        agent = await stage.agent(policy=RETRY)
        async with anyio.create_task_group() as group:
            group.start_soon(stage.run, agent)
            began = await anyio.to_thread.run_sync(stage.world.wait_for, "search(x)")
            assert began, "the tool was never called"
            group.cancel_scope.cancel()
        done = stage.played()
        heard = await anyio.to_thread.run_sync(stage.world.wait_until_cancelled, "search")
    assert done.status == "cancelled", f"the run ended as {done.status!r}"
    assert heard, "the tool did not hear of it"
    assert done.count("search(x)") == 1, done.world.deeds
    found = [(step.tool_called, bool(step.error)) for step in done.steps]
    assert found == [(None, False), ("search", True)], f"the steps are {found}"
    check_wire(done.world.requests)


async def parallel_tools(bench: Bench) -> None:
    """Two calls side by side in one turn: each has its own step and result, and a retry reuses both."""
    both = asks(call("search", query="a"), call("search", query="b"))
    meet = {"a": After("search(b)", "found 17 a"), "b": After("search(a)", "found 17 b")}
    script = Script(
        (Rule(says("done"), "found 17"), Rule(both)),
        faults={2: Fails(503, "Service unavailable")},
        tools={"search": (meet.__getitem__,)},
    )
    done = await play(bench, script, policy=RETRY)
    done.check_done()
    assert sorted(done.world.deeds) == ["search(a)", "search(b)"], done.world.deeds
    found = sorted((str(step.tool_input), words_of(step.tool_output)) for step in done.tools)
    wanted = [(str({"query": name}), f"found 17 {name}") for name in ("a", "b")]
    assert found == wanted, f"the steps of the tools are {found}"
    told = [results_in(request) for request in done.world.requests]
    given = [("search", "found 17 a"), ("search", "found 17 b")]
    assert told == [[], given, given], f"the model was told {told}"
    assert done.diagnosis == UNAVAILABLE, f"it is taken for {done.diagnosis}"
