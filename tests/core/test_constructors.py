"""Misspelled, misplaced and extra arguments: errors name the public class and the field meant."""

from __future__ import annotations

import enum
import importlib
import inspect
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

import triage
from triage import (
    Agent,
    Checks,
    FailurePolicy,
    Limits,
    Step,
    Suspend,
    TriageSuspendedError,
    UsageError,
)
from triage.core.faults import RateLimited

ROOMS = (
    "triage", "triage.core", "triage.core.faults", "triage.strategies", "triage.classifiers",
    "triage.stores", "triage.engine", "triage.plan", "triage.incidents", "triage.testing",
    "triage.adapters", "triage.adapters.fleet", "triage.adapters.dbos", "triage.adapters.otel",
    "triage.web",
)  # fmt: skip


def constructors() -> dict[str, type]:
    """The public classes that take arguments, by their name."""
    found: dict[str, type] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            made = getattr(module, name)
            if not inspect.isclass(made) or issubclass(made, enum.Enum) or inspect.isabstract(made):
                continue
            if getattr(made, "_is_protocol", False) or hasattr(made, "__required_keys__"):
                continue
            if fields_of(made):
                found[f"{made.__module__}.{made.__qualname__}"] = made
    return found


def fields_of(made: type) -> list[str]:
    """The keywords that a class takes."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(made).parameters.values()
    except ValueError:  # an exception without a constructor of its own
        return []
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return []  # their keywords are data, or checked by other tests
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


CLASSES = constructors()


def refused(made: Any, *args: Any, **kwargs: Any) -> str:
    """The message of the error, without the note."""
    with pytest.raises(UsageError) as raised:
        made(*args, **kwargs)
    return str(raised.value)


def alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def test_the_table_has_the_public_classes() -> None:
    assert len(CLASSES) > 200


@pytest.mark.parametrize("name", CLASSES)
def test_every_constructor_says_its_class_and_the_nearest_field(name: str) -> None:
    made = CLASSES[name]
    fields = fields_of(made)
    for field in fields:
        wrong = next(
            w for w in (f"{field[:-1]}", f"{field}x", f"{field}xx") if w and w not in fields
        )
        said = refused(made, **{wrong: 1})
        assert said.startswith(f"{made.__name__} has no {wrong!r}; ")
        meant = [one for one in fields if f"did you mean {one!r}?" in said]
        assert meant or "write " in said, said
        assert all(alike(wrong, one) >= alike(wrong, field) for one in meant)
    said = refused(made, qqqqq=1)
    assert said == f"{made.__name__} has no 'qqqqq'; it takes {', '.join(fields)}"


@pytest.mark.parametrize("name", CLASSES)
def test_every_constructor_that_is_given_too_much_says_its_class(name: str) -> None:
    made = CLASSES[name]
    parameters = inspect.signature(made).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        pytest.skip("takes any number")
    assert made.__name__ in refused(made, *range(60))


async def work(task: str) -> str:
    return task


AGENT: Any = Agent(work)


@pytest.mark.parametrize(
    ("make", "args", "kwargs", "said"),
    [
        (Agent, (work,), {"max_attempts": 3}, "limits=Limits(attempts=3)"),
        (Agent, (work,), {"seconds": 3}, "limits=Limits(seconds=3)"),
        (Agent, (work,), {"guard": None}, "checks=Checks(guard=None)"),
        (Agent, (work,), {"lease_s": 5}, "durability=Durability(lease_s=5)"),
        (Limits, (), {"max_cost": 1}, "Limits has no 'max_cost'; did you mean 'cost_usd'?"),
        (Step, (), {"tool": "x"}, "Step has no 'tool'; did you mean 'tool_called'?"),
        (Checks, (), {"tool": []}, "did you mean 'tools'?"),
        (triage.tool, (), {"effects": "read"}, "tool has no 'effects'; did you mean 'effect'?"),
        (triage.tool, (), {"effect": "write"}, "one of read, idempotent, once, unknown"),
        (FailurePolicy, (), {"LOOP_DETECTED": "retry"}, "did you mean Retry()?"),
        (FailurePolicy, (), {"default": "abort"}, "did you mean Abort()?"),
        (Agent, (dict,), {}, "not the class dict"),
        (AGENT.run, ("x", 1), {}, "Agent.run takes one task"),
        (AGENT.run_sync, ("x", 1), {}, "Agent.run_sync takes one task"),
        (AGENT.stream, ("x", 1), {}, "Agent.stream takes one task"),
        (Agent, (work,), {"store": "runs.db"}, "did you mean 'sqlite:///runs.db'?"),
        (RateLimited, ("x",), {"hints": "y"}, "did you mean 'hint'?"),
    ],
)
def test_what_is_written_elsewhere_is_named(
    make: Any, args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    assert said in refused(make, *args, **kwargs)


def test_a_run_that_was_never_awaited_is_named() -> None:
    begun = AGENT.run("x")
    assert begun.__qualname__ == "Agent.run of work"  # what Python's warning names
    begun.close()


def test_diagnose_takes_text_and_tools_as_the_rest_of_the_package_does() -> None:
    told = triage.diagnose("Error code: 429 - rate limit exceeded")
    assert told.failure_type == "external_fault"
    steps = [Step(tool_called="serach", error="no such tool")]
    by_name = triage.diagnose(ValueError("x"), steps, tools=["work"])
    assert triage.diagnose(ValueError("x"), steps, tools=[work]) == by_name


def test_a_function_is_wrapped_as_by_agent() -> None:
    assert triage.wrap(work).run_sync("x") == "x"


@pytest.mark.anyio
async def test_a_question_says_how_it_is_answered(tmp_path: Path) -> None:
    async def asks(task: str) -> str:
        raise ValueError(task)

    store = f"sqlite:///{tmp_path / 'runs.db'}"
    agent = Agent(asks, FailurePolicy(default=Suspend("which?")), store=store, name="asks")
    with pytest.raises(TriageSuspendedError) as asked:
        await agent.run("x", run_id="order-17")
    assert "await agent.resume(error.token, " in str(asked.value)
    assert "triage approve order-17" in str(asked.value)
    await agent.store.close()


@pytest.mark.parametrize("name", ["langchain", "langgraph", "mcp", "openai_agents", "pydantic_ai"])
def test_an_adapter_without_its_framework_names_the_extra(name: str) -> None:
    lacks = ("langchain_core", "langgraph", "mcp", "agents", "pydantic_ai")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({lacks!r}))\nimport triage.adapters.{name}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: this adapter needs " in done.stderr
    assert "pip install 'triage-recovery[" in done.stderr
