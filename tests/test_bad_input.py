"""A wrong value is refused where it is given, in words that name it: when it is made, wrapped or started.

Each row: what somebody does wrong, and the words the error must have: the field, what was found, and
what to do instead. What goes wrong inside of a run is in `test_bad_input_runs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import triage
from triage import (
    Abort,
    Agent,
    Checks,
    Diagnosis,
    Durability,
    Escalate,
    Evidence,
    FailurePolicy,
    FailureType,
    Limits,
    MemoryStore,
    Replan,
    Resume,
    Retry,
    Rollback,
    RulesClassifier,
    Step,
    Suspend,
    Usage,
    UsageError,
)
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

NAN = float("nan")
UNKNOWN = FailureType.UNKNOWN


def does(*rows: Any) -> pytest.MarkDecorator:
    """Rows as parameters, each known by its first word."""
    return pytest.mark.parametrize(
        ("do", "words"), [pytest.param(do, words, id=words[0]) for do, *words in rows]
    )


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


@does(
    (lambda: Step(any_("search")), "Step.index", "str ('search')", "Step(action=…)"),
    (lambda: Step(index=-1), "Step.index", "-1", "0 or more"),
    (lambda: Step(action=any_(None)), "Step.action", "text", "NoneType"),
    (lambda: Step(tool_called=any_(len)), "Step.tool_called", "builtin_function", "str(value)"),
    (lambda: Step(llm_output=any_(["a"])), "Step.llm_output", "list (['a'])", "str(value)"),
    (lambda: Step(error=any_(OSError("x"))), "Step.error", "OSError", "str(value)"),
    (lambda: Step(exception_type=any_(OSError)), "Step.exception_type", "class name", "type"),
    (lambda: Step(effect="twice"), "Step.effect", "'twice'", "read, idempotent, once, unknown"),
    (lambda: Step(usage=any_({})), "Step.usage", "a Usage", "dict"),
    (lambda: Step(metadata=any_([1])), "Step.metadata", "a mapping", "list"),
    (lambda: Step(timestamp=NAN), "Step.timestamp", "finite", "nan"),
    (lambda: Step(duration_s=any_("1")), "Step.duration_s", "number of seconds", "str ('1')"),
    (lambda: Usage(-1), "Usage.input_tokens", "-1", "0 or more"),
    (lambda: Usage(any_("5")), "Usage.input_tokens", "str ('5')", "provider's count"),
    (lambda: Usage(output_tokens=any_(1.5)), "Usage.output_tokens", "float (1.5)", "whole number"),
    (lambda: Usage(calls=any_(NAN > 0)), "Usage.calls", "bool (False)", "whole number"),
    (lambda: Usage(cost_usd=NAN), "Usage.cost_usd", "nan", "finite"),
    (lambda: Usage(cost_usd=any_("1")), "Usage.cost_usd", "US dollars", "str"),
    (lambda: Usage(model=any_(4)), "Usage.model", "int (4)", "name"),
    (lambda: Retry(hint=any_(3)), "Retry.hint", "int (3)", "text or None"),
    (lambda: Retry(delay=-1), "Retry.delay", "-1", "finite"),
    (lambda: Retry(delay=any_("1")), "Retry.delay", "str ('1')", "seconds"),
    (lambda: Retry(inject=any_(["a"])), "Retry.inject", "list", "mapping"),
    (lambda: Retry(inject={"a b": 1}), "Retry.inject", "'a b'", "parameter name"),
    (lambda: Replan(delay=NAN), "Replan.delay", "nan", "finite"),
    (lambda: Rollback(any_("4")), "Rollback.checkpoint_id", "str ('4')", "record_step"),
    (lambda: Rollback(-1), "Rollback.checkpoint_id", "int (-1)", "record_step"),
    (lambda: Resume(any_(["a"])), "Resume.subgoal", "list", "text or None"),
    (lambda: Suspend(any_(1)), "Suspend.question", "int", "text or None"),
    (lambda: Suspend(metadata=any_([])), "Suspend.metadata", "list", "mapping"),
    (lambda: Escalate(any_(OSError())), "Escalate.reason", "OSError", "text or None"),
    (lambda: Abort(any_(0)), "Abort.reason", "int (0)", "text or None"),
    (lambda: Diagnosis(any_("tired")), "Diagnosis.failure_type", "'tired'", "one of wrong_tool"),
    (lambda: Diagnosis(UNKNOWN, severity=any_(1)), "Diagnosis.severity", "1", "one of retriable"),
    (lambda: Diagnosis(UNKNOWN, level=any_("x")), "Diagnosis.level", "'x'", "one of low"),
    (lambda: Diagnosis(UNKNOWN, confidence=2), "Diagnosis.confidence", "from 0 to 1", "2"),
    (lambda: Diagnosis(UNKNOWN, confidence=NAN), "Diagnosis.confidence", "nan"),
    (lambda: Diagnosis(UNKNOWN, evidence=any_("x")), "Diagnosis.evidence", "tuple of Evidence"),
    (lambda: Diagnosis(UNKNOWN, evidence=any_(["x"])), "Diagnosis.evidence item", "str ('x')"),
    (lambda: Diagnosis(UNKNOWN, critical_step=-1), "Diagnosis.critical_step", "-1"),
    (lambda: Diagnosis(UNKNOWN, hint=any_(1)), "Diagnosis.hint", "int (1)", "text or None"),
    (lambda: Diagnosis(UNKNOWN, cause=any_(1)), "Diagnosis.cause", "int (1)", "text or None"),
    (lambda: Diagnosis(UNKNOWN, suggestions=any_("a")), "Diagnosis.suggestions", "tuple of str"),
    (lambda: Diagnosis(UNKNOWN, retry_after_s=-1), "Diagnosis.retry_after_s", "-1", "finite"),
    (lambda: Diagnosis(UNKNOWN, candidates=any_(["x"])), "Diagnosis.candidates item", "str"),
    (lambda: Diagnosis(UNKNOWN, user_message=any_(1)), "Diagnosis.user_message", "int", "text"),
    (lambda: Diagnosis(UNKNOWN, evidence=(Evidence(any_(3), "x"),)), "rule", "int (3)"),
    (lambda: Diagnosis(UNKNOWN, evidence=(Evidence("r", any_(None)),)), "text", "NoneType"),
    (lambda: Diagnosis(UNKNOWN, evidence=(Evidence("r", "t", any_("1")),)), "step", "str ('1')"),
)
def test_a_fact_with_a_wrong_field_is_not_made(do: Any, words: list[str]) -> None:
    refused(do, words)


@does(
    (lambda: Limits(attempts=0), "Limits.attempts", "int (0)", "from 1", "None for no limit"),
    (lambda: Limits(attempts=any_("3")), "Limits.attempts", "str ('3')", "None for no limit"),
    (lambda: Limits(steps=any_(NAN != 0)), "Limits.steps", "bool (True)", "whole number"),
    (lambda: Limits(retries=-1), "Limits.retries", "int (-1)", "from 0"),
    (lambda: Limits(tokens=any_(1.5)), "Limits.tokens", "float (1.5)", "whole number"),
    (lambda: Limits(seconds=0), "Limits.seconds", "above 0", "None for no limit"),
    (lambda: Limits(attempt_seconds=NAN), "Limits.attempt_seconds", "nan", "finite"),
    (lambda: Limits(cost_usd=any_("1")), "Limits.cost_usd", "US dollars", "str ('1')"),
    (lambda: Limits(**any_({"retry": 1})), "retry", "unexpected"),
    (lambda: Checks(tools="search"), "Checks.tools", "str ('search')", "[tool]"),
    (lambda: Checks(tools=any_(3)), "Checks.tools", "int (3)", "list"),
    (lambda: Checks(tools=[3]), "Checks.tools item", "int (3)", "name as text"),
    (lambda: Checks(tools=["a", "a"]), "Checks.tools", "'a' twice", "own name"),
    (lambda: Checks(tools={"a": 3}), "Checks.tools['a']", "JSON Schema", "None"),
    (lambda: Checks(constraints=any_("x")), "Checks.constraints", "str ('x')", "(text,)"),
    (lambda: Checks(constraints=("",)), "Checks.constraints item", "not empty"),
    (lambda: Checks(verify=any_(3)), "Checks.verify", "function of the result", "int (3)"),
    (lambda: Checks(subgoals=any_(1)), "Checks.subgoals", "True or False", "int (1)"),
    (lambda: Checks(result_type=3), "Checks.result_type", "pydantic", "int (3)"),
    (lambda: Durability(mode=any_("Step")), "Durability.mode", "'Step'", "did you mean 'step'?"),
    (lambda: Durability(on_in_doubt=any_("guess")), "Durability.on_in_doubt", "ask, rerun, fail"),
    (lambda: Durability(on_store_error=any_(1)), "Durability.on_store_error", "fail, continue"),
    (lambda: Durability(lease_s=0), "Durability.lease_s", "above 0", "seconds"),
    (lambda: Durability(redact=any_("x")), "Durability.redact", "or a Redactor"),
    (lambda: MemoryStore(keep=any_("9")), "MemoryStore.keep", "'9'", "whole number"),
    (lambda: Backoff(base=-1), "Backoff.base", "int (-1)", "seconds"),
    (lambda: Backoff(factor=0.5), "Backoff.factor", "0.5", "from 1"),
    (lambda: Backoff(cap=any_("60")), "Backoff.cap", "str ('60')", "seconds"),
    (lambda: Backoff(jitter=any_(1)), "Backoff.jitter", "int (1)", "True or False"),
    (lambda: Backoff().delay(0), "Backoff.delay n", "int (0)", "the first retry is 1"),
    (lambda: Backoff().delay(1, draw=2), "Backoff.delay draw", "from 0 to 1"),
)
def test_an_option_with_a_wrong_value_is_not_made(do: Any, words: list[str]) -> None:
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
    (lambda: CircuitBreaker(failures=0), "CircuitBreaker.failures", "int (0)", "from 1"),
    (lambda: CircuitBreaker(cooldown_s=-1), "CircuitBreaker.cooldown_s", "-1", "seconds"),
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
    (lambda: FailurePolicy(causes=any_([1])), "FailurePolicy.causes", "list", "mapping"),
    (lambda: FailurePolicy(causes={"auth": any_("abort")}), "causes['auth']", "str ('abort')"),
    (lambda: FailurePolicy().replace(**any_({"LOOPS": 1})), "'LOOPS'", "LOOP_DETECTED"),
    (lambda: FailurePolicy.from_dict(any_([])), "FailurePolicy.from_dict", "mapping"),
)  # fmt: skip
def test_a_policy_or_strategy_with_a_wrong_part_is_not_made(do: Any, words: list[str]) -> None:
    refused(do, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("LOOP_DETECTED = ", ("is not TOML",)),
        (
            'LOOP_DETECTD = "replan"',
            ("'LOOP_DETECTD'", "no failure type", "did you mean 'LOOP_DETECTED'?"),
        ),
        ('UNKNOWN = "replann"', ("UNKNOWN", "'replann'", "did you mean 'replan'?")),
        ("UNKNOWN = 3", ("UNKNOWN", "int (3)", "name of a strategy")),
        ("UNKNOWN = []", ("UNKNOWN", "empty list", "at least one")),
        ("UNKNOWN = { hint = 'x' }", ("UNKNOWN.strategy", '{ strategy = "replan" }')),
        ("UNKNOWN = { strategy = 'replan', max = 1 }", ("'max'", "max_replans")),
        ("UNKNOWN = { strategy = 'replan', max_replans = -1 }", ("replan.max_replans", "-1")),
        ("UNKNOWN = { strategy = 'backoff_and_retry', backoff = 'LMM' }", ("'LMM'", "'LLM'")),
        ("causes = 3", ("causes", "table of causes")),
        ("[causes]\nauth = 'stop'", ("causes.auth", "'stop'", "the strategies are")),
    ],
)
def test_a_policy_file_that_cannot_be_used_is_named_with_the_place(
    text: str, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        FailurePolicy.from_file(path)
    for word in (str(path), *words):
        assert word in str(error.value)


def test_a_policy_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(lambda: FailurePolicy.from_file(tmp_path / "no.toml"), ["no.toml", "cannot be read"])


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
    (lambda: Agent(dict), "dict has no signature", "wrap it in a function"),
    (lambda: Agent(good, any_(Retry())), "Agent(policy=…)", "FailurePolicy or None", "Retry"),
    (lambda: Agent(good, policy=any_("policy.toml")), "Agent(policy=…)", "not str"),
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
    (lambda: Agent(good, **any_({"retries": 3})), "'retries'", "unexpected"),
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
