"""`triage.wrap`: finding the adapter of an object, and what it makes of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import agents
import openai
import pydantic_ai
import pytest
import trio
from langchain_core.runnables import RunnableLambda
from pydantic_ai.models.test import TestModel
from support import always, on_both_backends
from tables import table

import triage
from triage import Agent, Limits, Retry, UsageError
from triage.adapters import Adapter, Seam

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()


class Framework:
    """A framework whose agent answers with what it is given."""


class Theirs(Adapter):
    name = "theirs"

    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        return task, kwargs


def test_an_object_that_nothing_runs_is_refused_with_the_way_out() -> None:
    class Two(Framework):
        async def run(self, user: str, text: str) -> str:
            return user + text

    for target in (object(), Two(), Two):
        with pytest.raises(
            UsageError, match=r"no method by which \w+ is run; give Agent a function"
        ):
            triage.wrap(target)


class Awaited:
    async def arun(self, task: str, *, times: int = 1) -> str:
        return task * times

    def run(self, task: str) -> str:
        raise AssertionError("a thread is needed for it")


class ByName:
    async def run(self, *, task: str | None = None) -> str:
        return f"{task}"


class Blocking:
    name = "kitchen"

    def kickoff(self, inputs: Any = None) -> str:
        return f"{inputs}"


class Called:
    async def __call__(self, task: str) -> str:
        return task


@table("target", [Awaited(), ByName(), Blocking(), Called(), partial(Awaited.arun, Awaited())])
async def test_an_object_of_any_framework_is_run_by_its_method(target: Any) -> None:
    agent = triage.wrap(target)
    assert await agent.run("soup") == "soup"
    assert agent.name in ("Awaited", "ByName", "kitchen", "Called", "partial")


async def test_what_the_method_takes_is_given_on() -> None:
    assert await triage.wrap(Awaited()).run("ab", times=2) == "abab"


def test_a_function_and_a_client_are_shown_their_own_way() -> None:
    assert triage.wrap(lambda task: task).run_sync(7) == 7
    with pytest.raises(UsageError, match=r"effects and trust_hints are for agents of frameworks"):
        triage.wrap(lambda task: task, effects={"pay": "once"})
    with pytest.raises(UsageError, match=r"triage.adapters.openai.record\(client\)"):
        triage.wrap(openai.OpenAI(api_key="x"))


@table("adapter", [object, Theirs(None), "theirs"])
def test_what_is_no_adapter_is_refused(adapter: Any) -> None:
    with pytest.raises(UsageError, match=r"wrap\(adapter=…\)"):
        triage.wrap(object(), adapter=adapter)


def test_a_class_that_lacks_what_is_no_ability_is_refused() -> None:
    class Odd(Theirs):
        cannot: ClassVar[Mapping[str, str]] = {"fly": "it has no wings"}

    with pytest.raises(UsageError, match=r"Odd.cannot names fly; abilities are: record"):
        triage.wrap(Framework(), adapter=Odd)


def test_an_effect_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'charge'.*read, idempotent, once, unknown"):
        triage.wrap(object(), adapter=Theirs, effects={"charge": "twice"})


def test_wrap_takes_the_options_of_an_agent_and_names_it_for_its_target() -> None:
    class Named(Framework):
        name = "travel desk"

    agent = triage.wrap(Named(), always(Retry()), adapter=Theirs, limits=Limits(attempts=2))
    assert isinstance(agent, Agent)
    assert agent.name == "travel desk"
    assert triage.wrap(Framework(), adapter=Theirs).name == "theirs"


@table(
    "target",
    [RunnableLambda(str), pydantic_ai.Agent(TestModel(call_tools=[])), agents.Agent(name="clerk")],
)
def test_a_framework_that_needs_asyncio_says_so_on_trio(target: Any) -> None:
    with pytest.raises(UsageError, match=r"runs on asyncio alone; run the agent with asyncio\.run"):
        trio.run(triage.wrap(target).run, "hi")


async def test_what_run_is_given_besides_the_task_goes_to_the_framework() -> None:
    agent = triage.wrap(Framework(), adapter=Theirs)
    assert await agent.run("t", thread="t1") == ("t", {"thread": "t1"})


async def test_the_tools_that_the_target_has_are_checked() -> None:
    class Knows(Theirs):
        def tools(self) -> list[str]:
            return ["look"]

        async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
            return list(seam.run.trajectory.tools)

    assert await triage.wrap(Framework(), adapter=Knows).run("t") == ["look"]
    own = triage.Checks(tools=["find"])
    assert await triage.wrap(Framework(), adapter=Knows, checks=own).run("t") == ["find"]


PROGRAM = """
import sys, triage
try:
    triage.wrap(object())
except triage.UsageError:
    pass
names = ("openai", "anthropic", "langgraph", "pydantic_ai", "agents", "mcp")
print(*[name for name in names if name in sys.modules])
"""


def test_finding_an_adapter_imports_no_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(triage.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
