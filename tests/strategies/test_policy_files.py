"""Policies in files and mappings: read as written, and every mistake named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tables import table

from triage import strategies
from triage.core import Abort, Cause, Escalate, FailureType, Retry, Suspend, UsageError
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    FailurePolicy,
    backoff_and_retry,
    by_severity,
    chain,
    circuit_breaker,
    replan,
    resume_from_subgoal,
    rollback_to_checkpoint,
    sequence,
)

FILE = """
LOOP_DETECTED = "replan"
GOAL_DRIFT = { strategy = "replan", hint = "Stay with the task.", max_replans = 1 }
UNKNOWN = ["backoff_and_retry", { strategy = "abort", reason = "twice" }]
default = "escalate"

[EXTERNAL_FAULT]
strategy = "by_severity"
otherwise = "replan"
retriable = { strategy = "backoff_and_retry", max_attempts = 2, backoff = "LLM" }

[SCHEMA_MISMATCH]
strategy = "backoff_and_retry"
backoff = { base = 0.5, jitter = false }

[PLAN_INCOMPLETE]
strategy = "chain"
primary = "resume_from_subgoal"
fallback = "rollback_to_checkpoint"
after = ["escalate", "abort"]

[causes]
auth = { strategy = "suspend", question = "Which key?" }
sold_out = "replan"
"""


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(FILE, encoding="utf-8")
    expected = FailurePolicy(
        LOOP_DETECTED=replan(),
        GOAL_DRIFT=replan("Stay with the task.", max_replans=1),
        UNKNOWN=sequence(backoff_and_retry(), Abort("twice")),
        EXTERNAL_FAULT=by_severity(
            replan(), retriable=backoff_and_retry(2, backoff=Backoff.LLM.backoff)
        ),
        SCHEMA_MISMATCH=backoff_and_retry(backoff=Backoff(base=0.5, jitter=False)),
        PLAN_INCOMPLETE=chain(
            resume_from_subgoal(), rollback_to_checkpoint(), after=(Escalate, Abort)
        ),
        default=Escalate(),
        causes={Cause.AUTH: Suspend("Which key?"), "sold_out": replan()},
    )
    assert FailurePolicy.from_file(path) == expected
    assert FailurePolicy.from_file(str(path)) == expected


def test_a_breaker_in_a_file_is_its_own() -> None:
    table = {"strategy": "circuit_breaker", "failures": 2, "cooldown_s": 5.0, "inner": "replan"}
    policy = FailurePolicy.from_dict({"EXTERNAL_FAULT": table})
    strategy = policy.strategies[FailureType.EXTERNAL_FAULT]
    assert isinstance(strategy, circuit_breaker)
    assert (strategy.breaker.failures, strategy.breaker.cooldown_s) == (2, 5.0)
    assert strategy.inner == replan()


def test_a_mapping_may_hold_values_where_a_file_has_tables() -> None:
    shared = CircuitBreaker()
    policy = FailurePolicy.from_dict(
        {
            "EXTERNAL_FAULT": {"strategy": "circuit_breaker", "breaker": shared},
            "UNKNOWN": {"strategy": "backoff_and_retry", "backoff": Backoff(base=3.0)},
        }
    )
    expected: dict[FailureType, Any] = {
        FailureType.EXTERNAL_FAULT: circuit_breaker(shared, backoff_and_retry()),
        FailureType.UNKNOWN: backoff_and_retry(backoff=Backoff(base=3.0)),
    }
    assert policy.strategies == expected


def test_a_mapping_may_hold_strategies_and_actions() -> None:
    given_ = {"UNKNOWN": Retry(), "default": [replan(), Abort()], "causes": {"auth": Abort()}}
    assert FailurePolicy.from_dict(given_) == FailurePolicy(
        UNKNOWN=Retry(), default=sequence(replan(), Abort()), causes={"auth": Abort()}
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('LOOP_DETECTD = "replan"', ["'LOOP_DETECTD'", "did you mean 'LOOP_DETECTED'?"]),
        ('loop_detectd = "replan"', ["did you mean 'LOOP_DETECTED'?"]),
        ('BANANA = "replan"', ["the keys are WRONG_TOOL_CALLED, "]),
        ("refusals = 1", ["'refusals' is a limit", "Limits(refusals=…)", "--limit refusals="]),
        ("polling_seconds = 60", ["'polling_seconds' is a limit", "--limit polling_seconds="]),
        ("[limits]\nrefusals = 1", ["limits", "are no part of a policy", "Limits("]),
        ('UNKNOWN = "replam"', ["UNKNOWN", "'replam'", "did you mean 'replan'?"]),
        ('UNKNOWN = "banana"', ["the strategies are backoff_and_retry, "]),
        ("UNKNOWN = 5", ["UNKNOWN must be the name of a strategy", "not int (5)"]),
        ("UNKNOWN = []", ["UNKNOWN is an empty list"]),
        ("UNKNOWN = { max_replans = 5 }", ["UNKNOWN.strategy must be the name of a strategy"]),
        ('UNKNOWN = ["replan", "bananas"]', ["UNKNOWN[1]: there is no strategy 'bananas'"]),
        (
            'UNKNOWN = { strategy = "replan", max_replan = 5 }',
            ["UNKNOWN: replan has no argument 'max_replan'; did you mean 'max_replans'?"],
        ),
        (
            'UNKNOWN = { strategy = "replan", banana = 5 }',
            ["replan has no argument 'banana'; it takes hint, max_replans"],
        ),
        (
            'UNKNOWN = { strategy = "replan", max_replans = "5" }',
            ["UNKNOWN: replan.max_replans must be a whole number from 0, not str ('5')"],
        ),
        (
            'UNKNOWN = { strategy = "backoff_and_retry", backoff = "LMM" }',
            ["UNKNOWN.backoff: there is no preset 'LMM'; did you mean 'LLM'?"],
        ),
        (
            'UNKNOWN = { strategy = "backoff_and_retry", backoff = { bas = 1 } }',
            ["UNKNOWN.backoff: backoff has no argument 'bas'; did you mean 'base'?"],
        ),
        (
            'UNKNOWN = { strategy = "backoff_and_retry", backoff = 5 }',
            ["UNKNOWN.backoff must be the name of a preset or a table"],
        ),
        ('UNKNOWN = { strategy = "chain", primary = "replan" }', ["UNKNOWN: ", "fallback"]),
        (
            'UNKNOWN.strategy = "chain"\nUNKNOWN.primary = "replan"\nUNKNOWN.after = "x"',
            ["UNKNOWN.after must be one of retry, replan,"],
        ),
        (
            'UNKNOWN = { strategy = "circuit_breaker", failures = 0 }',
            ["UNKNOWN: CircuitBreaker.failures must be"],
        ),
        ("causes = 5", ["causes must be a table"]),
        ('[causes]\nauth = "banana"', ["causes.auth: there is no strategy 'banana'"]),
        ("UNKNOWN =", ["is not TOML"]),
    ],
)
def test_a_mistake_in_a_file_names_the_file_the_key_and_what_is_close(
    tmp_path: Path, written: str, said: list[str]
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(written, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        FailurePolicy.from_file(path)
    for text in (str(path), *said):
        assert text in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml: cannot be read"):
        FailurePolicy.from_file(tmp_path / "nowhere.toml")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"binary\.toml: is not TOML"):
        FailurePolicy.from_file(tmp_path / "binary.toml")


@table("data", [None, "UNKNOWN", ["UNKNOWN"]])
def test_a_described_policy_is_a_mapping(data: Any) -> None:
    with pytest.raises(UsageError, match="a mapping of failure types to strategies"):
        FailurePolicy.from_dict(data)


# Every strategy ---------------------------------------------------------------------------------------

STRATEGIES = [
    name
    for name in strategies.__all__
    if name.islower() and isinstance(getattr(strategies, name), type)
]
PAGES = Path(__file__).parents[2] / "docs"


def test_a_file_names_every_strategy_that_is_exported() -> None:
    with pytest.raises(UsageError, match="the strategies are") as refused:
        FailurePolicy.from_dict({"UNKNOWN": "bananas"})
    named = str(refused.value).partition("the strategies are ")[2].split(", ")
    assert {*named, "sequence", "always"} == {*STRATEGIES, "escalate", "abort", "suspend"}


def test_the_pages_tell_every_strategy_that_is_exported() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    assert [name for name in STRATEGIES if f"| `{name}(" not in text] == []
