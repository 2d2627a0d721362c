"""Figures that the pages state are those of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tables import table

from triage import FailureType, Limits
from triage.classifiers import HybridClassifier, LLMClassifier
from triage.core.secret_shapes import KEYS
from triage.engine import Watching
from triage.incidents import Hooks, Supervisor, Threshold
from triage.plan import Approval, JudgeEach, PlanLimits
from triage.reports.analysis import ErrorReporter
from triage.stores import MemoryStore
from triage.stores.postgres import PostgresStore
from triage.stores.sqlite import SQLiteStore
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    RateGate,
    RetryBudget,
    rollback_to_checkpoint,
    shrink_context,
)

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


@table(
    ("name", "words", "figure"),
    [
        ("limits-and-checks.md", "calls of the function; {} by default", Limits().attempts),
        (
            "limits-and-checks.md",
            "[an outage](#an-outage); {:g} by default",
            Limits().outage_seconds,
        ),
        ("limits-and-checks.md", "seconds; {:g} by default", Limits().longest_wait),
        (
            "limits-and-checks.md",
            "the same result; {:g} by default",
            Limits().polling_seconds,
        ),
        ("watching.md", "`hint_after` wasted steps ({})", Watching().hint_after),
        ("watching.md", "`interrupt_after` wasted steps ({})", Watching().interrupt_after),
        ("plans.md", "| `total_retries` | {} |", PlanLimits().total_retries),
        ("plans.md", "| `replans` | {} |", PlanLimits().replans),
        ("plans.md", "| `rejections` | {} |", PlanLimits().rejections),
        ("plans.md", "| `steps` | {} |", PlanLimits().steps),
        ("plans.md", "| `entries` | {} |", PlanLimits().entries),
        ("reports.md", "the default is {:g}", default(ErrorReporter, "deadline")),
        ("llm-classifiers.md", "retries included; {:g} |", default(LLMClassifier, "deadline")),
        ("llm-classifiers.md", "in one request; {:,} |", default(LLMClassifier, "max_chars")),
        (
            "llm-classifiers.md",
            "run asks, {} by default",
            default(HybridClassifier, "max_calls_per_run"),
        ),
        ("incidents.md", "runs longer than `deadline_s` ({:g})", Hooks().deadline_s),
        ("incidents.md", "(`lease_s`, {:g} seconds", Hooks().lease_s),
        ("incidents.md", "every `interval_s` ({:g} seconds)", default(Supervisor, "interval_s")),
        ("incidents.md", "up to `at_once` ({})", default(Supervisor, "at_once")),
        ("incidents.md", "up to `grace_s` ({:g} seconds)", default(Supervisor, "grace_s")),
    ],
)
def test_a_figure_on_a_page_is_that_of_the_code(name: str, words: str, figure: Any) -> None:
    assert words.format(figure) in page(name), (name, words, figure)


def signature(function: Callable[..., Any]) -> str:
    """A call with its parameters and defaults, as the pages write one; all gates take a clock."""
    parts = [
        one.name if one.default is inspect.Parameter.empty else f"{one.name}={written(one.default)}"
        for one in inspect.signature(function).parameters.values()
        if one.name != "environment"
    ]
    return f"{function.__name__}({', '.join(parts)})"


def written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


@table(
    ("name", "function"),
    [
        ("gates.md", RateGate),
        ("gates.md", CircuitBreaker),
        ("gates.md", RetryBudget),
        ("stores.md", MemoryStore),
        ("stores.md", SQLiteStore),
        ("stores.md", PostgresStore),
        ("policy-and-strategies.md", Backoff),
        ("policy-and-strategies.md", shrink_context),
        ("policy-and-strategies.md", rollback_to_checkpoint),
        ("plans.md", JudgeEach),
        ("plans.md", Approval),
        ("incidents.md", Threshold),
    ],
)
def test_a_signature_on_a_page_is_that_of_the_code(name: str, function: Callable[..., Any]) -> None:
    text = " ".join(page(name).split())
    assert plain(signature(function)) in plain(text), signature(function)


def plain(text: str) -> str:
    """The text with whole numbers written alike: 30.0 as 30."""
    return re.sub(r"(?<=\d)\.0\b", "", text)


def test_there_are_as_many_as_the_pages_say() -> None:
    assert len(FailureType) == 10
    assert len(KEYS) >= 50  # keys of some fifty providers
