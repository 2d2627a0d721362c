"""Classifiers in their threads, beside an event loop that goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest
from support import RETRY, Says

from triage import Agent, FailureType

pytestmark = pytest.mark.anyio
FAILURES = 8


class FailsOften:
    """An agent that awaits nothing, and fails so many times before it is done."""

    def __init__(self) -> None:
        self.failed = 0

    async def __call__(self, task: str) -> str:
        if self.failed < FAILURES:
            self.failed += 1
            raise ConnectionError(f"refused for the {self.failed}. time")
        return "done"


async def test_other_tasks_have_their_turn_after_each_failure() -> None:
    agent = FailsOften()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while agent.failed < FAILURES:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        assert await Agent(agent, RETRY, classifier=Says()).run("t") == "done"
    assert (
        turns >= FAILURES - 2
    )  # the first has failed before the other begins, and it ends with the last


async def test_classifiers_of_agents_that_fail_at_once_are_at_work_at_once() -> None:
    together = threading.Barrier(4)

    class Meets:
        def classify(self, trajectory: Any, task: Any) -> FailureType:
            together.wait(30)
            return FailureType.EXTERNAL_FAULT

    async def recovers() -> None:
        failed: list[str] = []

        async def agent(task: str) -> str:
            if not failed:
                failed.append(task)
                raise ConnectionError("refused")
            return "done"

        done.append(await Agent(agent, RETRY, classifier=Meets()).run("t"))

    done: list[str] = []
    async with anyio.create_task_group() as group:
        for _ in range(together.parties):
            group.start_soon(recovers)
    assert done == ["done"] * together.parties


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_after_a_classification_classifies_too() -> None:
    program = """
import os, sys
from triage import Agent, FailurePolicy, Retry

failed = []

async def agent(task):
    if not failed:
        failed.append(task)
        raise ConnectionError(f"refused in {os.getpid()}")
    failed.clear()
    return "done"

async def again(context):
    assert context.failure_type.value == "external_fault"
    return Retry()

def recovers():
    return Agent(agent, FailurePolicy(default=again)).run_sync("t") == "done"

assert recovers()
child = os.fork()
if not child:
    os._exit(0 if recovers() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)
