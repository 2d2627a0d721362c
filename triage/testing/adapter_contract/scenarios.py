"""The scenarios: what every adapter must get right, each for one way in which agents fail."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from triage.core.actions import Replan, Retry, Rollback, approve, happened
from triage.core.errors import TriageEscalationError, TriageSuspendedError
from triage.core.events import StepRecorded
from triage.core.steps import Step
from triage.core.taxonomy import Effect, FailureType
from triage.strategies.limits import Limits
from triage.strategies.policy import FailurePolicy
from triage.testing.faults import Answer, Crash, status_error
from triage.testing.time import VirtualTime

from .bench import (
    BEFORE,
    CRASHES,
    HANGS,
    TOKENS,
    After,
    Asks,
    Bench,
    Call,
    Cut,
    Deed,
    Fails,
    Hangs,
    Heard,
    Helper,
    Request,
    Rule,
    Script,
    asks,
    call,
    says,
)
from .playing import CHARGE, HINT, SEARCH, Played, Stage, declared_in, diagnosis_of, play, scenario
from .providers import check_wire, messages_in, results_in

RETRY = FailurePolicy(default=Retry())
HINTED = FailurePolicy(default=Replan(HINT))
SECONDS = 60.0
CUT_OFF = Limits(attempts=2, attempt_seconds=SECONDS)
"""Of a run in virtual time, whose attempt ends as soon as a model or a tool hangs."""
BOTH = (Rule(says("done"), "receipt 5"), Rule(CHARGE, "found 17"), Rule(SEARCH))
PAID_FIRST = (Rule(says("done"), "found 17"), Rule(SEARCH, "receipt 5"), Rule(CHARGE))
RATE_LIMITED, TIMED_OUT = "external_fault: rate_limited", "external_fault: timeout"
UNAVAILABLE, BROKEN = "external_fault: unavailable", "external_fault: server_error"
UNKNOWN_TOOL, MISFIT = "wrong_tool_called: unknown_tool", "schema_mismatch: invalid_arguments"
REFUSED, LIMIT = "plan_incomplete: check_failed", "plan_incomplete: limit"
IN_DOUBT, OUTPUT_CUT = "external_fault: in_doubt", "context_overflow: output_cut"


@scenario()
async def healthy(bench: Bench) -> None:
    """A run without a fault: each call is a step as it ends, with input, output, effect, usage and time."""
    done = await play(bench, Script(BOTH))
    done.check_done(deeds=["search(x)", "charge(300)"], requests=3)
    assert len(done.models) == 3, f"{len(done.models)} steps of model calls, not 3"
    found = [
        (s.tool_called, s.tool_input, _words_of(s.tool_output), s.error, s.effect)
        for s in done.tools
    ]
    wanted = [
        ("search", {"query": "x"}, "found 17", None, Effect.READ),
        ("charge", {"cents": 300}, "receipt 5", None, Effect.ONCE),
    ]
    assert found == wanted, f"the steps of the tools are {found}"
    order = [kind for kind in map(_kind, done.world.log) if kind]
    live = ["request", "model", "search(x)", "search", "request", "model", "charge(300)", "charge"]
    assert order == [*live, "request", "model"], (
        f"in this order it happened and was recorded: {order}"
    )
    asked = [step.tool_output for step in done.models[:2]]
    assert asked == [_asking(SEARCH), _asking(CHARGE)], f"the models asked for {asked}"
    assert all(step.duration_s is not None for step in done.steps), "a step has no duration"
    assert done.models[-1].llm_output == "done", f"the last step is {done.models[-1]}"
    used = (done.usage.input_tokens, done.usage.output_tokens, done.usage.calls)
    assert used == (3 * TOKENS[0], 3 * TOKENS[1], 3), f"the usage is {done.usage}"


def _kind(entry: object) -> str:
    """What an entry in a world's log is, empty for what the order leaves out."""
    if isinstance(entry, Request):
        return "request"
    if isinstance(entry, Deed):
        return entry.text
    return entry.step.tool_called or "model" if isinstance(entry, StepRecorded) else ""


def _words_of(output: Any) -> Any:
    """What a tool gave: the words of a result that has parts, else the output itself."""
    parts = output.get("content") if isinstance(output, dict) else None
    return "".join(part["text"] for part in parts) if isinstance(parts, list) else output


def _asking(turn: Asks) -> list[Any]:
    return [{"tool": one.tool, "arguments": one.arguments} for one in turn.calls]


@scenario()
async def rate_limited_model(bench: Bench) -> None:
    """429 from the model: a retry goes on where it was, and pays for nothing twice."""
    script = Script(BOTH, faults={3: Fails(429, "Rate limit reached", 0.0)})
    done = await play(bench, script, policy=RETRY)
    done.check_done(deeds=["search(x)", "charge(300)"], requests=4)
    refused = [step for step in done.models if step.error]
    assert len(refused) == 1, f"{len(refused)} failed model calls are recorded, not 1"
    assert "429" in str(refused[0].error), f"the error is taken for {refused[0].error}"
    _check_taken_for(done, RATE_LIMITED)


@scenario()
async def unavailable_tool(bench: Bench) -> None:
    """503 in a tool: it is called again, and nothing before it is."""
    unavailable = status_error(Answer(503, "Service unavailable."), None)
    script = Script(PAID_FIRST, tools={"search": (unavailable, "found 17")})
    done = await play(bench, script, policy=RETRY)
    done.check_done()
    assert done.count("search(x)") == 2, done.world.deeds
    failed = [step for step in done.tools if step.error]
    assert [step.tool_called for step in failed] == ["search"], f"the failed calls are {failed}"
    _check_taken_for(done, UNAVAILABLE)


@scenario()
async def unknown_tool(bench: Bench) -> None:
    """A tool that does not exist: recorded with its error, corrected, and the history stays valid."""
    rules = (Rule(says("done"), "found 17"), Rule(SEARCH, "lookup"), Rule(asks(call("lookup"))))
    policy = FailurePolicy(default=Replan("There is no tool lookup: use search."))
    done = await play(bench, Script(rules), policy=policy)
    done.check_done(deeds=["search(x)"])
    wrong = [step for step in done.tools if step.tool_called == "lookup"]
    assert wrong, "the call of the unknown tool is not recorded"
    assert all(step.error for step in wrong), "the call of the unknown tool has no error"
    _check_taken_for(done, UNKNOWN_TOOL)


@scenario()
async def bad_arguments(bench: Bench) -> None:
    """Arguments that do not fit: the tool does not run with them, and the model is corrected."""
    rules = (
        Rule(says("done"), "receipt 5"),
        Rule(CHARGE, "many"),
        Rule(asks(Call("charge", {"cents": "many"}))),
    )
    policy = FailurePolicy(default=Replan("cents is a number, and many is none."))
    done = await play(bench, Script(rules), policy=policy)
    done.check_done(deeds=["charge(300)"])
    refused = [step.tool_input for step in done.tools if step.error]
    assert refused == [{"cents": "many"}], f"the refused calls are {refused}"
    _check_taken_for(done, MISFIT)


def _check_taken_for(done: Played, diagnosis: str) -> None:
    """Where a framework tells its model of an error instead of failing, there is nothing to diagnose."""
    found = [diagnosis_of(attempt) for attempt in done.failures]
    assert found in ([], [diagnosis]), f"it is taken for {found}"


@scenario()
async def malformed_output(bench: Bench) -> None:
    """An answer that cannot be read: the next attempt is told, once in each request."""
    rules = (Rule(says('{"ok": true}'), HINT), Rule(says('{"ok": tr')))

    def readable(result: Any) -> None:
        json.loads(bench.text(result))

    done = await play(bench, Script(rules), policy=HINTED, verify=readable)
    done.check_done('{"ok": true}', diagnosis=REFUSED, hints=[0, 1])


@scenario()
async def loop(bench: Bench) -> None:
    """The same call with the same result: found as a loop, and another way is taken."""
    rules = (Rule(says("done"), HINT), Rule(SEARCH))
    script = Script(rules, tools={"search": ("nothing",)})
    done = await play(bench, script, policy=HINTED)
    done.check_done()
    assert done.failure.failure_type is FailureType.LOOP_DETECTED, done.diagnosis
    told = done.told()
    assert told == [0] * (len(told) - 1) + [1], f"the hint stands so often in the requests: {told}"


@scenario()
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


@scenario()
async def hang(bench: Bench) -> None:
    """A model that never answers: the attempt ends in time, and the next one goes on."""
    clock = VirtualTime()
    async with Stage(bench, Script(BOTH, faults={3: Hangs()})) as stage:
        agent = await stage.agent(policy=RETRY, limits=CUT_OFF, environment=clock)
        done = stage.played()
        async with anyio.create_task_group() as beside:
            beside.start_soon(stage.world.cut_off, clock, SECONDS)
            done = await stage.outcome(lambda: stage.run(agent))
            beside.cancel_scope.cancel()
    done.check_done(deeds=["search(x)", "charge(300)"], diagnosis=TIMED_OUT)


@scenario()
async def hanging_tool(bench: Bench) -> None:
    """A tool that never answers: it is cut off in time and called again, and nothing before it is."""
    script = Script(PAID_FIRST, tools={"search": (HANGS, "found 17")})
    done = await play(bench, script, policy=RETRY, limits=CUT_OFF, environment=VirtualTime())
    done.check_done(diagnosis=TIMED_OUT)
    assert done.count("search(x)") == 2, done.world.deeds
    assert done.world.cancelled == ["search"], "the tool did not hear that it was cut off"


@scenario()
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
            done = await stage.outcome(lambda: second.recover(stage.events[0].run_id))
            done.check_done()
            await agent.store.close()
            await second.store.close()
    assert done.count("search(x)") == 2, done.world.deeds
    assert len(done.world.requests) == 3, f"{len(done.world.requests)} requests, not 3"


@scenario()
async def rollback(bench: Bench) -> None:
    """Back to a checkpoint: what was done up to it stands, and the model is told."""
    script = Script(BOTH, faults={3: Fails(500, "Internal error")})
    done = await play(bench, script, policy=FailurePolicy(default=Rollback(hint=HINT)))
    done.check_done(deeds=["search(x)", "charge(300)"], diagnosis=BROKEN, hints=[0, 0, 0, 1])


@scenario()
async def approval(bench: Bench) -> None:
    """A payment whose answer was lost: a person is asked, and it does not happen twice."""
    rules = (Rule(says("done"), "receipt 5"), Rule(CHARGE))
    lost = TimeoutError("read timed out")
    async with Stage(bench, Script(rules, tools={"charge": (lost,)})) as stage:
        agent = await stage.agent(policy=RETRY)
        asked = await stage.outcome(lambda: stage.run(agent))
        assert isinstance(asked.error, TriageSuspendedError), f"the run ended in {asked.error!r}"
        assert asked.diagnosis == IN_DOUBT, f"it is taken for {asked.diagnosis}"
        token = asked.error.token
        done = await stage.outcome(lambda: agent.resume(token, happened("receipt 5")))
    done.check_done(requests=2)


@scenario("endings")
async def soft_failure(bench: Bench) -> None:
    """An answer that was cut off is no success, whatever the framework makes of it."""
    rules = (Rule(says("done"), HINT), Rule(says("half of i", ended="length")))
    done = await play(bench, Script(rules), policy=HINTED)
    done.check_done(diagnosis=OUTPUT_CUT)


@scenario()
async def cancellation(bench: Bench) -> None:
    """The caller gives up: the tool that runs is cancelled, and nothing is tried again."""
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


@scenario("parallel_tools")
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
    _check_taken_for(done, UNAVAILABLE)
    assert sorted(done.world.deeds) == ["search(a)", "search(b)"], done.world.deeds
    found = sorted((str(step.tool_input), _words_of(step.tool_output)) for step in done.tools)
    wanted = [(str({"query": name}), f"found 17 {name}") for name in ("a", "b")]
    assert found == wanted, f"the steps of the tools are {found}"
    told = [results_in(request) for request in done.world.requests]
    given = [("search", "found 17 a"), ("search", "found 17 b")]
    assert told == [[], given, given], f"the model was told {told}"


_numbers = count(1_000)


@scenario("history")
async def open_call(bench: Bench) -> None:
    """A conversation that stopped at a call without a result: it is given one, and not made."""
    script = Script((Rule(says("done")),), open_call=Call("charge", {"cents": 300}))
    done = await play(bench, script)
    done.check_done()
    assert not done.world.deeds, f"it called {done.world.deeds}"
    (request,) = done.world.requests
    assert BEFORE in request.text, "what was said before is not in the request"
    told = results_in(request)
    assert [tool for tool, _ in told] == ["charge"], f"the results in the request are {told}"
    assert "receipt" not in told[0][1], f"the result is made up: {told}"


@scenario()
async def interrupted_turn(bench: Bench) -> None:
    """A tool that was cut off, and a new plan: its call is closed or left out, and no result made up."""
    rules = (Rule(says("done"), HINT), Rule(SEARCH))
    script = Script(rules, tools={"search": (HANGS,)})
    done = await play(bench, script, policy=HINTED, limits=CUT_OFF, environment=VirtualTime())
    done.check_done(hints=[0, 1])
    assert done.count("search(x)") == 1, done.world.deeds
    assert done.world.cancelled == ["search"], "the tool did not hear that it was cut off"
    told = [result for tool, result in results_in(done.world.requests[-1]) if tool == "search"]
    assert not any("found" in result for result in told), f"the result is made up: {told}"


@scenario("approvals")
async def asked_first(bench: Bench) -> None:
    """A tool that the framework has a person asked about: the run waits, and then pays once."""
    rules = (Rule(says("done"), "receipt 5"), Rule(CHARGE))
    async with Stage(bench, Script(rules, approvals=("charge",))) as stage:
        agent = await stage.agent()
        asked = await stage.outcome(lambda: stage.run(agent))
        assert isinstance(asked.error, TriageSuspendedError), f"the run ended in {asked.error!r}"
        assert not asked.world.deeds, f"it did not wait: {asked.world.deeds}"
        token = asked.error.token
        done = await stage.outcome(lambda: agent.resume(token, approve()))
    done.check_done(requests=2)


@scenario("client_retries")
async def nested_retries(bench: Bench) -> None:
    """A client that tries again by itself: it is said, with how often and the remedy, and only then."""
    quiet = Script((Rule(says("done")),))
    with _log() as said:
        (await play(bench, quiet)).check_done()
        assert not said, f"it is said of a client that tries once: {said}"
        # The log says it once of each number; so each play has its own.
        often = next(_numbers)
        refused = {1: Fails(503, "Overloaded", 0.0)}
        done = await play(bench, quiet._replace(retries=often, faults=refused))
    done.check_done()
    assert len(done.world.requests) == 2, "the client did not try again by itself"
    # A wrapper of a client may be named, too.
    told = [text for text in said if f"retries up to {often} times by itself" in text]
    assert told, f"what is said of the client's {often} retries: {said}"
    assert all("max_retries=0" in text for text in told), f"the remedy is not said: {told}"


@contextmanager
def _log() -> Generator[list[str]]:
    """What is said of retries while the block runs."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger("triage.retries"), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)  # a framework may have set another for all logs
    try:
        yield said
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


_WINDOW = 6_000
"""Characters that the model takes."""
_PAGE = "x" * 4_000
_RECEIPT = f"receipt 5 {'y' * 400} end of the receipt"
_LONG_QUERY = "z" * 6_000
_TURNS = 6
"""Searches of a run: the first and the last give a page, and both are too much."""
_TOO_LONG = Fails(
    400, "This model's maximum context length is exceeded.", code="context_length_exceeded"
)


def _search(number: int) -> Rule:
    before = {0: "", 1: "receipt 5"}.get(number, f"found {number - 1}")
    return Rule(asks(call("search", query=f"q{number}")), before)


def _found(query: str) -> str:
    number = 0 if query == _LONG_QUERY else int(query[1:])
    has_page = query in ("q0", f"q{_TURNS - 1}")
    return f"found {number} {_PAGE}" if has_page else f"found {number}"


_GROWING = Script(
    (
        Rule(_TOO_LONG, longer=_WINDOW),
        Rule(says("done"), f"found {_TURNS - 1}"),
        *map(_search, range(_TURNS - 1, 0, -1)),
        Rule(CHARGE, "found 0"),
        _search(0),
    ),
    tools={"search": (_found,), "charge": (_RECEIPT,)},
)


@scenario("short_requests")
async def context_overflow(bench: Bench) -> None:
    """A request is too long: old outputs of tools are left out of it, receipts are not, and it goes on."""
    done = await play(bench, _GROWING)
    done.check_done()
    refused = _first_refused(done)
    last = done.world.requests[-1]
    assert len(last.text) <= _WINDOW, f"{len(last.text)} characters, not at most {_WINDOW}"
    told = dict.fromkeys(tool for tool, _ in results_in(last))
    assert list(told) == ["search", "charge"], f"the last request has the results of {told}"
    outputs = [output for _, output in results_in(last)]
    assert not any("found 0" in output for output in outputs), "the oldest output is still whole"
    assert any(_RECEIPT in output for output in outputs), "the receipt of the charge is left out"
    assert any(_PAGE in output for output in outputs), "the newest output is left out"
    _check_prefix(refused, last)


def _first_refused(done: Played) -> Request:
    refused = next((one for one in done.world.requests if len(one.text) > _WINDOW), None)
    assert refused is not None, "no request was too long: the outputs of tools are not in them"
    return refused


def _check_prefix(before: Request, after: Request) -> None:
    """All that both requests begin with is the same, but for the output that was left out."""
    pairs = list(zip(messages_in(before), messages_in(after), strict=False))[: 2 * _TURNS]
    changed = [old for old, new in pairs if old != new]
    assert len(changed) == 1, f"{len(changed)} messages were changed, not 1: {changed}"
    assert "found 0" in str(changed[0]), f"another message was changed: {changed[0]}"


@scenario("short_requests")
async def context_overflow_summarized(bench: Bench) -> None:
    """A request is too long without old outputs, too: a summary stands for what was said before."""
    first, *others = reversed(_GROWING.rules)
    rules = (
        Rule(_TOO_LONG, longer=_WINDOW + 3_000),
        *reversed(others[:-1]),
        first._replace(then=asks(call("search", query=_LONG_QUERY))),
    )
    done = await play(bench, _GROWING._replace(rules=rules))
    done.check_done()
    last = done.world.requests[-1]
    assert _LONG_QUERY not in last.text, "the oldest call is still there"
    assert _RECEIPT in last.text, "the receipt of the charge is left out"


DOWN = Fails(503, "Overloaded", 0.0)
GONE = Fails(404, "The model `m` does not exist.", code="model_not_found")


@scenario("other_models")
async def other_model(bench: Bench) -> None:
    """The model is down for good in the middle of the work: another one that is named goes on with it."""
    await _other_model(bench, DOWN)


@scenario("other_models")
async def model_not_found(bench: Bench) -> None:
    """The model is gone: the first other name is no model, either, and the second one goes on."""
    await _other_model(bench, GONE)


async def _other_model(bench: Bench, fault: Fails) -> None:
    rules = (Rule(says("done"), "receipt 5", model="other"), Rule(fault, "receipt 5"), Rule(CHARGE))
    policy = FailurePolicy.recommended(models=["missing", "other"])
    limits = Limits(outage_seconds=0.01)
    async with Stage(bench, Script(rules)) as stage:
        agent = await stage.agent(policy=policy, limits=limits)
        done = await stage.outcome(lambda: stage.run(agent))
    done.check_done()
    asked = [str(one.body.get("model")) for one in done.world.requests]
    assert list(dict.fromkeys(asked)) == [asked[0], "missing", "other"], f"asked were {asked}"
    said = [str((step.metadata or {}).get("model")) for step in done.models]
    assert said == asked, f"asked were {asked}, and the steps say {said}"


WORDS = "all of it is done"
SPOKEN = (Rule(says(WORDS), "receipt 5"), *BOTH[1:])


@scenario("streams")
async def streaming(bench: Bench) -> None:
    """Answers in pieces: given on as they come, and recorded as whole answers are."""
    whole = await play(bench, Script(SPOKEN))
    done = await play(bench, Script(SPOKEN, streamed=True))
    done.check_done(WORDS)
    found, wanted = [_shown(step) for step in done.steps], [_shown(step) for step in whole.steps]
    assert found == wanted, f"the steps are {found}; of whole answers they are {wanted}"
    (pieces,) = done.heard
    assert "".join(pieces) == WORDS, f"the caller was given {pieces}"
    assert len(pieces) > 1, "the caller was given the answer in one piece"
    log = done.world.log
    first = next(at for at, entry in enumerate(log) if isinstance(entry, Heard))
    ended = next((at for at, entry in enumerate(log) if _says(entry, WORDS)), -1)
    assert first < ended, "the answer was complete before the caller was given any of it"


@scenario("streams")
async def broken_stream(bench: Bench) -> None:
    """A connection that breaks in the middle of an answer: no answer, and only that is asked again."""
    await _cut(bench, Cut(says(WORDS)))


@scenario("streams")
async def unfinished_stream(bench: Bench) -> None:
    """A stream that ends in the middle as if all were well: no answer either."""
    await _cut(bench, Cut(says(WORDS), silently=True))


async def _cut(bench: Bench, cut: Cut) -> None:
    rules = (Rule(says(WORDS), "found 17"), Rule(SEARCH, "receipt 5"), Rule(CHARGE))
    done = await play(bench, Script(rules, faults={3: cut}, streamed=True), policy=RETRY)
    done.check_done(WORDS, deeds=["charge(300)", "search(x)"], requests=4)
    failure = done.failure
    assert failure.failure_type is FailureType.EXTERNAL_FAULT, failure.diagnosis
    _check_heard(done)
    answers = [(step.error is not None, step.llm_output) for step in done.models[2:]]
    assert answers == [(True, None), (False, WORDS)], f"the answers are recorded as {answers}"


def _check_heard(done: Played) -> None:
    """What came twice came in two attempts, of which the caller is told by the events."""
    given = ["".join(pieces) for pieces in done.heard]
    assert len(given) == 2, f"{len(given)} attempts, not 2"
    half, all_of_it = given
    assert half, "the caller was given nothing of the answer that broke off"
    assert half in WORDS[:-1], f"the caller was given {half!r} first"
    assert all_of_it == WORDS, f"the second attempt gave the caller {all_of_it!r}"


def _says(entry: object, words: str) -> bool:
    return isinstance(entry, StepRecorded) and entry.step.llm_output == words


def _shown(step: Step) -> tuple[Any, ...]:
    """What must be the same however an answer comes."""
    used = None if step.usage is None else (step.usage.input_tokens, step.usage.output_tokens)
    return (
        step.action, step.tool_called, step.tool_input, step.tool_output, step.llm_output, step.error,
        step.effect, used,
    )  # fmt: skip


OVERLOADED = Fails(503, "Overloaded")
PAYS = (Rule(says("ann paid"), "receipt 5"), Rule(CHARGE))


@scenario("sub_agents")
async def sub_agent(bench: Bench) -> None:
    """An agent in a tool fails, and later the one around it: what was paid is not paid again."""
    rules = (Rule(says("done"), "ann paid"), Rule(asks(call("ann", input="Pay."))))
    helpers = {"ann": Helper(PAYS, faults={2: OVERLOADED})}
    script = Script(rules, faults={2: OVERLOADED}, helpers=helpers)
    done = await play(bench, script, policy=RETRY)
    done.check_done(deeds=["charge(300)"])
    asked = [request.who for request in done.world.requests]
    assert sorted(asked) == ["", "", "", "ann", "ann", "ann"], f"the requests were of {asked}"
    assert _models(done, "ann") == [_asked("charge", cents=300), "error", "ann paid"]
    assert _models(done, "") == [_asked("ann", input="Pay."), "error", "done"]
    assert _tools(done) == [("ann", "charge", "receipt 5"), ("", "ann", "ann paid")]
    assert done.usage.calls == 4, f"the usage is {done.usage}"


@scenario("parallel_tools", "sub_agents")
async def parallel_agents(bench: Bench) -> None:
    """Two agents in tools of one turn: each has its own steps and results, also when they are reused."""
    both = asks(call("ann", input="Pay 300."), call("bob", input="Pay 500."))
    helpers = {name: _payer(name, cents) for name, cents in (("ann", 300), ("bob", 500))}
    meet = {300: After("charge(500)", "receipt 300"), 500: After("charge(300)", "receipt 500")}
    script = Script(
        (Rule(says("done"), "bob paid 500"), Rule(both)),
        faults={2: OVERLOADED},
        tools={"charge": (meet.__getitem__,)},
        helpers=helpers,
    )
    done = await play(bench, script, policy=RETRY)
    done.check_done()
    assert sorted(done.world.deeds) == ["charge(300)", "charge(500)"], done.world.deeds
    asked = sorted(request.who for request in done.world.requests)
    assert asked == ["", "", "", "ann", "ann", "bob", "bob"], f"the requests were of {asked}"
    for name, cents in (("ann", 300), ("bob", 500)):
        wanted = [_asked("charge", cents=cents), f"{name} paid {cents}"]
        assert _models(done, name) == wanted, f"{name}'s model said {_models(done, name)}"
    found = sorted(_tools(done))
    assert found == [
        ("", "ann", "ann paid 300"),
        ("", "bob", "bob paid 500"),
        ("ann", "charge", "receipt 300"),
        ("bob", "charge", "receipt 500"),
    ], f"the steps of the tools are {found}"
    told = sorted(results_in(done.world.requests[-1]))
    assert told == [("ann", "ann paid 300"), ("bob", "bob paid 500")], f"the model was told {told}"


@scenario("handoffs")
async def handoff(bench: Bench) -> None:
    """The agent hands over to another one, which fails: it goes on, and nothing is paid twice."""
    helpers = {"ann": Helper(PAYS, faults={2: OVERLOADED})}
    script = Script((Rule(asks(call("transfer_to_ann"))),), helpers=helpers, handoffs=True)
    done = await play(bench, script, policy=RETRY)
    done.check_done("ann paid", deeds=["charge(300)"])
    asked = [request.who for request in done.world.requests]
    assert asked == ["", "ann", "ann", "ann"], f"the requests were of {asked}"
    assert _models(done, "") == [_asked("transfer_to_ann")]
    assert _models(done, "ann") == [_asked("charge", cents=300), "error", "ann paid"]
    paid = [step for step in _tools(done) if step[1] == "charge"]
    assert paid == [("ann", "charge", "receipt 5")], f"the steps of the tools are {_tools(done)}"


def _payer(name: str, cents: int) -> Helper:
    done = Rule(says(f"{name} paid {cents}"), f"receipt {cents}")
    return Helper((done, Rule(asks(call("charge", cents=cents)))))


def _asked(tool: str, **arguments: Any) -> Any:
    return [{"tool": tool, "arguments": arguments}]


def _models(done: Played, who: str) -> list[Any]:
    """What the model of one agent said, in order."""
    return [
        "error" if step.error else step.llm_output or step.tool_output
        for step in done.models
        if done.owner(step) == who
    ]


def _tools(done: Played) -> list[tuple[str, Any, Any]]:
    """The tool calls that succeeded: whose, which, what they gave."""
    return [
        (done.owner(step), step.tool_called, step.tool_output)
        for step in done.tools
        if not step.error
    ]


SCENARIOS = declared_in(__name__)
