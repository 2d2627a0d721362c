"""A wrong value is refused where it is given, in words that name it: the field, what was found, what to do.

Each row: what somebody does wrong, and the words the error must have. What an agent function gives its
handles ends the run as the caller's mistake: it is never diagnosed and never tried again. What a strategy
or a classifier gives becomes an escalation or an unknown diagnosis.
"""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from support import Says, escalation_of, question_of

import triage
from triage import (
    Abort,
    Agent,
    Checks,
    Diagnosis,
    Durability,
    Escalate,
    FailurePolicy,
    FailureType,
    Limits,
    Replan,
    Resume,
    Retry,
    Rollback,
    RulesClassifier,
    Run,
    Step,
    Suspend,
    Usage,
    UsageError,
)
from triage.classifiers import Grounds
from triage.core import AttemptStarted, Cause, Evidence, RunFinished, StepRecorded, fold
from triage.engine import Compensator, Guard, Watching
from triage.stores import MemoryStore
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    always,
    backoff_and_retry,
    by_severity,
    chain,
    circuit_breaker,
    compensating_rollback,
    replan,
    resume_from_subgoal,
    retry_with_tool_manifest,
    rollback_to_checkpoint,
    sequence,
)

pytestmark = pytest.mark.anyio


NAN = float("nan")
UNKNOWN = FailureType.UNKNOWN
OF_UNKNOWN = {"failure_type": UNKNOWN}


@pytest.fixture
def anyio_backend() -> str:
    """What is refused does not depend on the event loop."""
    return "asyncio"


def does(*rows: Any) -> Callable[[Callable[..., Any]], Any]:
    """Have a test look at every row, and fail with all those that are wrong."""

    def over_all(test: Callable[..., Any]) -> Any:
        wrong: list[str] = []

        @contextmanager
        def row(words: list[str]) -> Generator[None]:
            try:
                yield
            except (Exception, pytest.fail.Exception) as error:
                wrong.append(f"{words[0]}: {type(error).__name__}: {error}")

        def each() -> None:
            for do, *words in rows:
                with row(words):
                    test(do, words)
            assert not wrong, "\n".join(wrong)

        async def each_async() -> None:
            for do, *words in rows:
                with row(words):
                    await test(do, words)
            assert not wrong, "\n".join(wrong)

        return each_async if inspect.iscoroutinefunction(test) else each

    return over_all


def refused(do: Callable[..., Any], words: list[str], *args: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        do(*args)
    for word in words:
        assert word in str(error.value)


def any_(value: Any) -> Any:
    """The value as code gives it that no type checker has seen."""
    return value


def no_context() -> Retry:
    return Retry()


# Values -------------------------------------------------------------------------------------------
WRONG: list[tuple[Any, dict[str, Any], dict[str, list[Any]]]] = [
    (Step, {}, {"index": ["search", -1], "action": [None], "tool_called": [len]}),
    (Step, {}, {"llm_output": [["a"]], "error": [OSError("x")], "exception_type": [OSError]}),
    (Step, {}, {"effect": ["twice"], "usage": [{}], "metadata": [[1]], "timestamp": [NAN]}),
    (Step, {}, {"duration_s": ["1"]}),
    (
        Usage,
        {},
        {"input_tokens": [-1, "5"], "output_tokens": [1.5], "calls": [False], "model": [4]},
    ),
    (Usage, {}, {"cost_usd": [NAN, "1"]}),
    (Retry, {}, {"hint": [3], "delay": [-1, "1"], "inject": [["a"]]}),
    (Replan, {}, {"delay": [NAN]}),
    (Rollback, {}, {"checkpoint_id": ["4", -1]}),
    (Resume, {}, {"subgoal": [["a"]]}),
    (Suspend, {}, {"question": [1], "metadata": [[]]}),
    (Escalate, {}, {"reason": [OSError()]}),
    (Abort, {}, {"reason": [0]}),
    (Diagnosis, {}, {"failure_type": ["tired"]}),
    (Diagnosis, OF_UNKNOWN, {"severity": [1], "level": ["x"], "confidence": [2, NAN], "hint": [1]}),
    (Diagnosis, OF_UNKNOWN, {"evidence": ["x", ["x"]], "critical_step": [-1], "cause": [1]}),
    (Diagnosis, OF_UNKNOWN, {"suggestions": ["a"], "retry_after_s": [-1], "candidates": [["x"]]}),
    (Diagnosis, OF_UNKNOWN, {"user_message": [1]}),
    (Limits, {}, {"attempts": [0, "3"], "steps": [True], "retries": [-1], "tokens": [1.5]}),
    (
        Limits,
        {},
        {"seconds": [0], "attempt_seconds": [NAN], "cost_usd": ["1"], "prices": [{"a": 1}]},
    ),
    (
        Checks,
        {},
        {"tools": ["search", 3, [3], [""], [lambda q: q], {7: None}, {"a": 3}, ["a", "a"]]},
    ),
    (Checks, {}, {"tools": [[{"type": "web_search"}]], "verify": [3, [bool, "no"]], "guard": [5]}),
    (Checks, {}, {"constraints": ["x", 7, ("",), re.compile("x"), [re.compile(b"x")], [b"x"]]}),
    (
        Checks,
        {},
        {"subgoals": [1], "result_type": [3, object()], "grounding": [1], "watch": [None]},
    ),
    (Durability, {}, {"mode": ["Step", 7], "on_in_doubt": ["guess"], "on_store_error": [1, None]}),
    (Durability, {}, {"lease_s": [0, "30"], "redact": ["x"]}),
    (MemoryStore, {}, {"keep": ["9"]}),
    (Backoff, {}, {"base": [-1], "factor": [0.5], "cap": ["60"], "jitter": [1]}),
    (CircuitBreaker, {}, {"failures": [0], "cooldown_s": [-1]}),
    (Grounds, {}, {"kinds": ["number", (), ("numbers",), 7], "at_least": [0, True]}),
    (Watching, {}, {"hint_after": [0, True], "interrupt_after": [1.5, "3"]}),
    (Guard, {}, {"decide": ["no"]}),
    (Guard, {"decide": print}, {"effects": [("twice",), "once"], "tools": ["send", ("",)]}),
    (Compensator, {}, {"function": ["refund"]}),
    (Compensator, {"function": print}, {"retries": [-1]}),
]


def test_a_value_is_not_made_with_a_wrong_field_which_is_named() -> None:
    made: list[str] = []
    for kind, given, wrong in WRONG:
        for field, values in wrong.items():
            for value in values:
                try:
                    kind(**given, **{field: value})
                except (TypeError, ValueError) as error:
                    if f"{kind.__name__}.{field}" in str(error):
                        continue
                made.append(f"{kind.__name__}.{field} = {value!r}")
    assert made == []


@does(
    (lambda: Step(any_("search")), "Step.index", "str ('search')", "Step(action=…)"),
    (lambda: Step(error=any_(OSError("x"))), "Step.error", "OSError", "str(value)"),
    (lambda: Usage(any_("5")), "Usage.input_tokens", "str ('5')", "provider's count"),
    (lambda: Retry(inject={"a b": 1}), "Retry.inject", "'a b'", "parameter name"),
    (lambda: Diagnosis(UNKNOWN, evidence=(Evidence(any_(3), "x"),)), "rule", "int (3)"),
    (lambda: Diagnosis(UNKNOWN, evidence=(Evidence("r", any_(None)),)), "text", "NoneType"),
    (lambda: Diagnosis(UNKNOWN, evidence=(Evidence("r", "t", any_("1")),)), "step", "str ('1')"),
    (lambda: Limits(attempts=any_("3")), "Limits.attempts", "str ('3')", "None for no limit"),
    (lambda: Limits(**any_({"retry": 1})), "Limits has no 'retry'", "'retries'"),
    (lambda: Checks(tools="search"), "Checks.tools", "str ('search')", "[tool]"),
    (lambda: Checks(tools={"a": 3}), "Checks.tools['a']", "JSON Schema", "None"),
    (lambda: Checks(constraints=any_((later,))), "a sync function", "give it as verify"),
    (lambda: Checks(constraints=any_((no_context,))), "constraints item", "one argument, the text"),
    (lambda: Checks(verify=any_(no_context)), "Checks.verify", "one argument, the result"),
    (lambda: Checks(guard=any_(no_context)), "Checks.guard", "one argument, the call"),
    (lambda: Guard(any_(no_context)), "Guard.decide", "one argument, the call"),
    (lambda: Grounds(kinds=("numbers",)), "Grounds.kinds item", "did you mean 'number'?"),
    (lambda: Durability(mode=any_("Step")), "Durability.mode", "'Step'", "did you mean 'step'?"),
    (lambda: Backoff().delay(0), "Backoff.delay n", "int (0)", "the first retry is 1"),
    (lambda: Backoff().delay(1, draw=2), "Backoff.delay draw", "from 0 to 1"),
)
def test_the_error_says_what_was_found_and_what_to_write(do: Any, words: list[str]) -> None:
    refused(do, words)


@does(
    (lambda: backoff_and_retry(-1), "backoff_and_retry.max_attempts", "-1", "counts retries"),
    (lambda: backoff_and_retry(5, any_(Backoff.LLM)), "backoff_and_retry.backoff", ".preset(…)"),
    (lambda: retry_with_tool_manifest(any_("3")), "retry_with_tool_manifest.max_attempts", "'3'"),
    (lambda: replan(any_(3)), "replan.hint", "int (3)", "text or None"),
    (lambda: replan(max_replans=any_(1.5)), "replan.max_replans", "1.5", "whole number"),
    (lambda: rollback_to_checkpoint(any_("7")), "rollback_to_checkpoint.checkpoint_id", "'7'"),
    (lambda: compensating_rollback(max_rollbacks=-1), "compensating_rollback.max_rollbacks", "-1"),
    (lambda: resume_from_subgoal(any_("a")), "resume_from_subgoal.max_resumes", "str ('a')"),
    (lambda: circuit_breaker(any_(3), Retry()), "circuit_breaker.breaker", "a CircuitBreaker"),
    (lambda: circuit_breaker(CircuitBreaker(), any_(3)), "circuit_breaker.inner", "int (3)"),
    (lambda: chain(Retry(), any_("abort")), "chain.fallback", "str ('abort')", "strategy"),
    (lambda: chain(Retry(), Abort(), any_("x")), "chain.after", "(Escalate, Abort)"),
    (sequence, "sequence", "at least one", "sequence(replan(), …)"),
    (lambda: sequence(Retry(), any_(None)), "sequence[1]", "NoneType", "strategy"),
    (lambda: by_severity(any_(None)), "by_severity.otherwise", "NoneType"),
    (lambda: always(any_("retry")), "always.action", "Retry()"),
    (lambda: FailurePolicy(**any_({"LOOP": None})), "'LOOP'", "LOOP_DETECTED"),
    (lambda: FailurePolicy(UNKNOWN=any_(3)), "FailurePolicy.UNKNOWN", "int (3)", "an action"),
    (lambda: FailurePolicy(default=any_(replan)), "FailurePolicy.default", "class", "replan(…)"),
    (lambda: FailurePolicy(default=any_(no_context)), "FailurePolicy.default", "one argument"),
    (lambda: FailurePolicy(UNKNOWN=any_(Retry)), "UNKNOWN", "Retry(…)"),
    (lambda: FailurePolicy(causes={"auth": any_(Retry)}), "auth", "Retry(…)"),
    (lambda: FailurePolicy(recoveries={"retry": any_(Retry)}), "retry", "Retry(…)"),
    (lambda: FailurePolicy(causes=any_([1])), "FailurePolicy.causes", "list", "mapping"),
    (lambda: FailurePolicy(causes={"auth": any_("abort")}), "causes['auth']", "str ('abort')"),
    (lambda: FailurePolicy().replace(**any_({"LOOPS": 1})), "'LOOPS'", "LOOP_DETECTED"),
    (lambda: FailurePolicy.from_dict(any_([])), "FailurePolicy.from_dict", "mapping"),
)  # fmt: skip
def test_a_policy_or_strategy_with_a_wrong_part_is_not_made(do: Any, words: list[str]) -> None:
    refused(do, words)


# Wrapping -----------------------------------------------------------------------------------------
called: list[Any] = []


async def good(task: str, *, record_step: Any = None, city: str, days: int = 1) -> str:
    called.append((task, record_step, city, days))
    return "done"


@pytest.fixture(autouse=True)
def _nothing_was_called() -> Any:
    called.clear()
    yield
    assert called == []


class NoClassifier:
    """Has no `classify`."""


def _streams(task: Any) -> Any:
    yield task


@does(
    (lambda: Agent(any_(None)), "an agent must be a function", "NoneType"),
    (lambda: Agent(any_("module:function")), "an agent must be a function", "str"),
    (lambda: Agent(lambda: 1), "takes no task", "first parameter"),
    (lambda: Agent(any_(lambda *, task: task)), "takes no task", "first parameter"),
    (lambda: Agent(lambda record_step: record_step), "must be the task", "not record_step"),
    (lambda: Agent(any_(lambda task, extra, /: (task, extra))), "extra by position only", "task"),
    (lambda: Agent(_streams), "sync generator", "async generator"),
    (lambda: Agent(dict), "not the class dict"),
    (
        lambda: Agent(good, any_(Retry())),
        "Agent(policy=…)",
        "a FailurePolicy",
        "FailurePolicy(default=…)",
    ),
    (lambda: Agent(good, policy=any_("policy.toml")), "Agent(policy=…)", "a FailurePolicy", "str"),
    (lambda: Agent(good, limits=any_(3)), "Agent(limits=…)", "Limits or None", "int"),
    (lambda: Agent(good, checks=any_({})), "Agent(checks=…)", "Checks or None", "dict"),
    (lambda: Agent(good, checks=any_({}), verify=bool), "Agent(checks=…)", "Checks or None"),
    (lambda: Agent(good, checks=Checks(verify=bool), verify=bool), "verify is given", "once"),
    (lambda: Agent(good, verify=any_(3)), "Checks.verify", "int (3)", "function"),
    (lambda: Agent(good, result_type=any_(3)), "Checks.result_type", "int (3)", "pydantic"),
    (lambda: Agent(good, durability=any_("step")), "Agent(durability=…)", "Durability or None"),
    (lambda: Agent(good, classifier=any_(NoClassifier())), "classify(trajectory, task)", "none"),
    (lambda: Agent(good, classifier=any_(RulesClassifier)), "Agent(classifier=…)", "class"),
    (lambda: Agent(good, store=any_(3)), "store must be a Store", "int"),
    (lambda: Agent(good, store="sqlit:///x"), "'sqlit:///x' is not known", "memory:"),
    (lambda: Agent(good, observers=any_(print)), "observers must be a list", "observers=[f]"),
    (lambda: Agent(good, observers=any_([3])), "observers must be callables", "int"),
    (lambda: Agent(good, observers=any_(3)), "observers must be", "int"),
    (lambda: Agent(good, observers=any_([good])), "nothing can be awaited", "a plain function"),
    (lambda: Agent(good, name=any_(3)), "Agent(name=…)", "str or None", "int"),
    (lambda: Agent(good, environment=any_(3)), "Agent(environment=…)", "Environment", "int"),
    (lambda: Agent(good, **any_({"retries": 3})), "limits=Limits(retries=3)"),
    (lambda: Agent(good, any_(FailurePolicy)), "policy"),
    (lambda: Agent(good, any_(lambda: None)), "policy"),
    (lambda: triage.agent(limits=any_(3))(good), "Agent(limits=…)", "Limits or None", "int"),
)
def test_an_agent_that_cannot_work_is_refused_when_it_is_wrapped(do: Any, words: list[str]) -> None:
    refused(do, words)


def tool_of(**options: Any) -> Any:
    """A tool whose function notes that it was called."""

    def pay(client: Any, cents: int) -> None:
        called.append((client, cents))

    return triage.tool(**options)(pay)


@does(
    (lambda: triage.tool(any_(3)), "tool() decorates a function", "int"),
    (lambda: triage.tool(tool_of(effect="once")), "pay is a tool already", "once"),
    (lambda: triage.tool(_streams), "_streams is a generator", "return a list"),
    (lambda: tool_of(effect="twice"), "tool(effect=…)", "'twice'", "read, idempotent, once"),
    (lambda: tool_of(compensate="undo"), "tool(compensate=…)", "a function", "str"),
    (lambda: tool_of(key="cents"), "tool(key=…)", "a function", "str"),
    (lambda: tool_of(ignore="client"), "tool(ignore=…)", 'ignore=("client",)'),
    (lambda: tool_of(ignore=("klient",)), "tool(ignore=…)", "klient", "client, cents"),
    (lambda: tool_of(ignore=3), "tool(ignore=…)", "int", "tuple"),
    (lambda: tool_of(timeout=0), "tool(timeout=…)", "above 0", "int (0)"),
    (lambda: tool_of(timeout="1"), "tool(timeout=…)", "number of seconds", "'1'"),
    (lambda: tool_of(timeout=NAN), "tool(timeout=…)", "number of seconds", "nan"),
    (lambda: tool_of(name=3), "tool(name=…)", "int"),
    (lambda: tool_of(retries="3"), "tool(retries=…)", "str"),
    (lambda: tool_of(retries=-1), "tool(retries=…)"),
    (lambda: tool_of(retries=True), "tool(retries=…)"),
    (lambda: tool_of(retries=Backoff()), "tool(retries=…)"),
    (lambda: tool_of(effect="once", match="position"), 'match="position"', 'effect="read"'),
    (lambda: tool_of(effect="unknown", match="position"), 'match="position"', 'effect="read"'),
    (lambda: tool_of(effect="read", match="place"), "arguments, position"),
)
def test_a_tool_that_cannot_work_is_refused_when_it_is_decorated(do: Any, words: list[str]) -> None:
    refused(do, words)


# Starting -----------------------------------------------------------------------------------------
@does(
    (lambda agent: agent.run("t"), "good needs city", "run(task, city=…)"),
    (lambda agent: agent.run("t", city="x", country="y"), "no parameter country", "city, days"),
    (lambda agent: agent.run("t", city="x", record_step=print), "record_step is filled by the run"),
    (lambda agent: agent.run("t", city="x", task="u"), "task"),
    (lambda agent: agent.run("t", city="x", run_id=3), "run_id must be text or None", "int"),
    (lambda agent: agent.run("t", city="x", run_id=""), "run_id ''", "1 to 128"),
    (lambda agent: agent.run("t", city="x", run_id="._:-"), "run_id '._:-'", "a letter or digit"),
    (lambda agent: agent.run("t", city="x", run_id="a b"), "run_id 'a b'", "A-Z a-z 0-9"),
    (lambda agent: agent.run("t", city="x", run_id="x" * 129), "run_id 'xxx", "1 to 128"),
    (lambda agent: agent("t"), "good needs city", "city=…"),
    (lambda agent: agent(), "takes one task", "0 positional arguments"),
    (lambda agent: agent("t", "Lisboa", 3), "takes one task", "3 positional arguments"),
    (lambda agent: agent("t", "Lisboa"), "takes one task", "2 positional arguments"),
    (lambda agent: agent.stream("t", town="x"), "no parameter town", "city, days"),
    (lambda agent: agent.run_sync("t", town="x"), "no parameter town", "city, days"),
)
def test_a_run_with_wrong_arguments_is_refused_before_it_starts(do: Any, words: list[str]) -> None:
    refused(do, words, Agent(good))  # raised by the call itself, with nothing awaited


def test_a_second_positional_argument_is_no_parameter_of_the_function() -> None:
    async def chatty(task: str, model: str = "small") -> None:
        called.append((task, model))

    # "t" must not be taken for the object whose method this is, and "large" for the task.
    refused(lambda: Agent(chatty)("t", "large").close(), ["takes one task", "2 positional"])


@does(
    (triage.current_run, "current_run()", "outside of a run", "from an agent function"),
    (triage.current_call, "current_call()", "outside of a recorded call", "@triage.tool"),
)
def test_a_handle_is_refused_outside_of_a_run(do: Any, words: list[str]) -> None:
    refused(do, words)


@pytest.mark.anyio
async def test_running_synchronously_in_async_code_is_refused_with_what_to_write() -> None:
    words = ["run_sync()", "await agent.run(task)"]
    refused(lambda: Agent(good).run_sync("t", city="x"), words)


# Inside of a run ----------------------------------------------------------------------------------
DOWN = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.CONNECTION, classifier="Says")


class Unasked:
    """A classifier that must not be asked: a caller's mistake is no failure of the agent."""

    def classify(self, trajectory: Any, task: Any) -> Diagnosis:
        raise AssertionError("asked")


@triage.tool(effect="once")
async def pay(card: Any, cents: int = 1) -> None:
    raise AssertionError("ran")


# Inside of the agent function ---------------------------------------------------------------------
@does(
    (lambda run: run.record_step("search"), "record_step()", "a Step, not str", "Step(action=…)"),
    (lambda run: run.record_step({"action": "a"}), "record_step()", "not dict", "Step(action=…)"),
    (lambda run: run.record_step(None), "record_step()", "NoneType", "Step(action=…)"),
    (lambda run: run.update_state([1]), "update_state()", "a mapping, not list", '{"key": …}'),
    (lambda run: run.update_state("fare"), "update_state()", "not str ('fare')", '{"key": …}'),
    (lambda run: run.record_usage({"tokens": 1}), "record_usage()", "a Usage, not dict"),
    (lambda run: run.record_usage(12), "record_usage()", "a Usage, not int (12)"),
    (lambda run: run.subgoals("book"), "subgoals()", "list of names", "[name]"),
    (lambda run: run.subgoals(["a", 2]), "subgoals()", "text", "2"),
    (lambda run: run.subgoals([""]), "subgoals()", "text", "''"),
    (lambda run: run.subgoals(3), "subgoals()", "int"),
    (lambda run: run.complete("pay"), "complete('pay')", "no such subgoal", "declared are: book"),
    (lambda run: run.complete(["book"]), "complete(['book'])", "no such subgoal"),
    (lambda run: run.compensator("refund"), "compensator()", "a function, not str"),
    (lambda run: run.call("pay"), "run.call()", "a function, not str"),
    (lambda run: run.call(pay, object()), "card of type object", 'ignore=("card",)', "key="),
    (lambda run: pay({"at": [object()]}), "card['at'][0] of type object", 'ignore=("card",)'),
    (lambda run: Agent(uncalled).run("t", town=1), "no parameter town", "none but the task"),
)
async def test_a_handle_used_wrongly_ends_the_run_at_once(do: Any, words: list[str]) -> None:
    await ended_by(do, words)


async def uncalled(task: Any, *, run: Run) -> None:
    raise AssertionError("called")


def _ring() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    return ring


class Odd:
    """No JSON value."""


@does(
    (lambda: {"a": {"b": {1, 2}}}, "state['a']['b']", "type set", "lists and dicts"),
    (lambda: {"raw": b"x"}, "state['raw']", "type bytes", "keep text"),
    (lambda: {"list": [1, {"n": NAN}]}, "state['list'][1]['n']", "type float"),
    (lambda: {"n": float("inf")}, "state['n']", "type float"),
    (lambda: {"a": {"keys": {1: "one"}}}, "state['a']['keys']", "type dict", "keys are text"),
    (lambda: {2: "b"}, "state", "type dict", "keys are text"),
    (lambda: {"a": [Odd()]}, "state['a'][0]", "type Odd"),
    (lambda: {"at": dt.date(2024, 1, 1)}, "state['at']", "type date"),
    (lambda: {"t": ({"s": {1}},)}, "state['t'][0]['s']", "type set"),
    (lambda: {"f": len}, "state['f']", "type builtin_function_or_method"),
    (lambda: {"kind": FailureType.UNKNOWN}, "state['kind']", "type FailureType", "keep text"),
    (lambda: {"ok": 1, "first": {1}, "second": b""}, "state['first']", "type set"),
    (lambda: {"n": 10**5_000}, "state['n']", "more than 4,000 digits", "as text"),
    (_ring, "state['ring']", "it contains itself"),
)  # fmt: skip
async def test_state_that_cannot_be_restored_is_refused_with_its_place(
    do: Any, words: list[str]
) -> None:
    state = await ended_by(lambda run: run.update_state(do()), ["cannot be restored", *words])
    assert state.state == {"fare": "f1"}


async def ended_by(do: Callable[[Any], Any], words: list[str]) -> triage.core.RunState:
    """The run that this mistake ended: its journal has all that came before, and nothing after."""
    calls = 0

    async def agent(_task: Any, *, run: Run) -> None:
        nonlocal calls
        calls += 1
        run.subgoals(["book"])
        run.record_step(Step(action="before"))
        run.update_state({"fare": "f1"})
        answer = do(run)
        if hasattr(answer, "__await__"):
            await answer
        raise AssertionError("went on")

    store = MemoryStore()
    policy = FailurePolicy(default=Retry())
    with pytest.raises(UsageError) as error:
        await Agent(agent, policy, classifier=Unasked(), store=store).run("t", run_id="r")
    for word in words:
        assert word in str(error.value)
    journal = await store.read("r")
    state = fold(journal)
    assert calls == 1
    assert [step.action for step in state.steps] == ["before"]
    assert state.status == "error"
    assert state.error is not None
    assert state.error.type_name == "UsageError"
    assert isinstance(journal[-1], RunFinished)
    return state


async def test_a_mistake_that_the_agent_catches_itself_ends_nothing() -> None:
    async def agent(_task: Any, *, run: Run, update_state: Any) -> dict[str, Any]:
        try:
            update_state({"a": {1}})
        except UsageError:
            update_state({"a": [1]})
        return run.state

    assert await Agent(agent).run("t") == {"a": [1]}


async def test_a_run_id_that_is_taken_is_refused_before_the_function_is_called() -> None:
    calls: list[Any] = []
    store = MemoryStore()

    async def agent(task: Any) -> None:
        calls.append(task)

    wrapped = Agent(agent, store=store)
    await wrapped.run("first", run_id="r")
    journal = await store.read("r")
    with pytest.raises(UsageError, match="run_id r is taken; choose another"):
        await wrapped.run("second", run_id="r")
    assert calls == ["first"]
    assert await store.read("r") == journal


# Strategies ---------------------------------------------------------------------------------------
def no_answer(_context: Any) -> Any:
    return None


def says_retry(_context: Any) -> Any:
    return "retry"


def a_class(_context: Any) -> Any:
    return Retry


async def awaits_nothing(_context: Any) -> Any:
    return None


def breaks(_context: Any) -> Any:
    raise LookupError("no plan")


class Chooser:
    """A strategy with a name of its own."""

    def __call__(self, _context: Any) -> Any:
        return 3


@does(
    (lambda: no_answer, "the strategy no_answer answered NoneType", "no action"),
    (lambda: says_retry, "the strategy says_retry answered str", "no action"),
    (lambda: a_class, "the strategy a_class answered the class", "no action", "Retry()"),
    (lambda: awaits_nothing, "the strategy awaits_nothing answered NoneType"),
    (Chooser, "the strategy Chooser answered int", "no action"),
    (lambda: breaks, "the strategy breaks raised LookupError('no plan')", "test_bad_input.py"),
    (lambda: None, "no strategy for external_fault", "EXTERNAL_FAULT=… or default=…"),
    (lambda: Rollback(0), "Rollback.checkpoint_id 0", "no checkpoint", "record_step"),
    (lambda: Rollback(99), "Rollback.checkpoint_id 99", "no checkpoint", "None"),
    (lambda: Rollback(10**30), "Rollback.checkpoint_id 1000", "no checkpoint"),
    (lambda: Retry(inject={"model": 1}), "Retry.inject names model", "does not take"),
    (lambda: Retry(inject={"task": 1}), "Retry.inject names task", "does not take"),
    (lambda: Retry(inject={"run": 1}), "Retry.inject names run", "the run fills"),
    (Resume, "Resume() needs a subgoal", "none is declared"),
)
async def test_an_answer_that_cannot_be_performed_escalates_and_says_whose_it_was(
    do: Any, words: list[str]
) -> None:
    attempts: list[int] = []

    async def agent(_task: Any, *, run: Run) -> None:
        attempts.append(run.attempt)
        run.record_step(Step(action="before"))
        raise ConnectionError("down")

    store = MemoryStore()
    policy = FailurePolicy(default=do())
    error = await escalation_of(
        Agent(agent, policy, classifier=Says(DOWN), store=store).run("t", run_id="r")
    )
    for word in words:
        assert word in str(error)
    assert error.diagnosis == DOWN
    assert isinstance(error.__cause__, ConnectionError)
    assert error.context is not None
    assert [step.action for step in error.context.trajectory] == ["before"]
    assert attempts == [1]
    state = fold(await store.read("r"))
    assert state.status == "escalated"
    assert isinstance(state.history[0].action, Escalate)


# Classifiers --------------------------------------------------------------------------------------
class Answers:
    """A classifier that gives what it is told to make."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def classify(self, trajectory: Any, task: Any) -> Any:
        return self.make()


class Unprintable:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError


async def later(value: Any) -> Any:
    return value


@does(
    (lambda: None, "NoneType", "Diagnosis or a FailureType"),
    (lambda: "rate limited", "str", "'rate limited'", "Diagnosis or a FailureType"),
    (lambda: 3, "int", "3"),
    (lambda: {"failure_type": "unknown"}, "dict"),
    (lambda: (DOWN,), "tuple"),
    (lambda: FailureType, "EnumType", "FailureType"),
    (Unprintable, "Unprintable", "no repr"),
    (lambda: later(None), "NoneType", "Diagnosis"),
    (lambda: Diagnosis(any_("tired")), "ValueError", "Diagnosis.failure_type", "'tired'"),
    (lambda: 1 / 0, "ZeroDivisionError", "division by zero"),
)
async def test_an_answer_that_is_no_diagnosis_makes_it_unknown_and_says_why(
    do: Any, words: list[str]
) -> None:
    async def agent(_task: Any, *, record_step: Any) -> None:
        record_step(Step(action="before"))
        raise ConnectionError("down")

    store = MemoryStore()
    policy = FailurePolicy(default=Escalate())
    error = await escalation_of(
        Agent(agent, policy, classifier=Answers(do), store=store).run("t", run_id="r")
    )
    diagnosis = error.diagnosis
    assert diagnosis is not None
    assert diagnosis.failure_type is FailureType.UNKNOWN
    assert (diagnosis.confidence, diagnosis.classifier) == (0.0, "Answers")
    (evidence,) = diagnosis.evidence
    for word in ("Answers", *words):
        assert word in evidence.text
    assert isinstance(error.__cause__, ConnectionError)
    events = [type(event) for event in await store.read("r")]
    assert events[1:3] == [AttemptStarted, StepRecorded]


# Answers to a suspended run -----------------------------------------------------------------------
async def suspended(*, doubt: bool) -> tuple[Agent[Any], str, list[int]]:
    """An agent whose run waits, its token, and the attempts so far."""
    attempts: list[int] = []

    @triage.tool(effect="once")
    async def charge() -> None:
        raise TimeoutError

    async def agent(_task: Any, *, run: Run) -> str:
        attempts.append(run.attempt)
        if run.attempt == 1:
            if doubt:
                await charge()
            raise ConnectionError
        return "done"

    policy = FailurePolicy(default=Suspend("go on?"))
    wrapped = Agent(agent, policy, classifier=Says(DOWN), durability=Durability())
    error = await question_of(wrapped.run("t"))
    return wrapped, error.token, attempts


@does(
    (lambda: None, "resume()", "Retry, Replan", "not NoneType"),
    (lambda: "yes", "resume()", "an action", "not str"),
    (lambda: Retry, "resume()", "an action", "not type"),
    (Suspend, "resume()", "an action", "not Suspend"),
    (triage.happened, "waits for an action", "no call of it is in doubt"),
    (triage.rerun, "waits for an action", "no call of it is in doubt"),
    (lambda: Rollback(99), "Rollback.checkpoint_id 99", "no checkpoint"),
    (lambda: Retry(inject={"model": 1}), "Retry.inject names model", "does not take"),
    (lambda: Retry(inject={"run": 1}), "Retry.inject names run", "the run fills"),
    (lambda: triage.edit({"run": 1}), "Retry.inject names run", "the run fills"),
    (Resume, "Resume() needs a subgoal"),
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_token_stays_good(
    do: Any, words: list[str]
) -> None:
    agent, token, attempts = await suspended(doubt=False)
    with pytest.raises(UsageError) as error:
        await agent.resume(token, do())
    for word in words:
        assert word in str(error.value)
    assert attempts == [1]
    assert await agent.resume(token, Retry()) == "done"


@does(
    (Retry, "did charge", "happened(result)", "not Retry"),
    (Replan, "did charge", "rerun()", "not Replan"),
    (Rollback, "did charge", "Escalate()", "not Rollback"),
    (lambda: True, "resume()", "happened(result)", "not bool"),
)  # fmt: skip
async def test_a_call_in_doubt_takes_an_answer_about_the_call_only(
    do: Any, words: list[str]
) -> None:
    agent, token, attempts = await suspended(doubt=True)
    with pytest.raises(UsageError) as error:
        await agent.resume(token, do())
    for word in words:
        assert word in str(error.value)
    assert attempts == [1]
    assert await agent.resume(token, triage.happened()) == "done"


@does(
    (lambda: "0" * 32, "no run of this agent waits", "TriageSuspendedError"),
    (lambda: "", "no run of this agent waits"),
    (lambda: "\ud800", "no run of this agent waits"),
    (lambda: 3, "a token is text", "not int"),
    (lambda: None, "a token is text", "not NoneType"),
)
async def test_a_token_that_is_none_is_refused(do: Any, words: list[str]) -> None:
    agent, token, attempts = await suspended(doubt=False)
    with pytest.raises(UsageError) as error:
        await agent.resume(do(), Retry())
    for word in words:
        assert word in str(error.value)
    assert attempts == [1]
    assert await agent.resume(token, Retry()) == "done"
