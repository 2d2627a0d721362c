"""triage-agent, which is imported by the name of ours: this runs in an environment of its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .agents import loop
from .desk import Desk


async def triage_agent(desk: Desk) -> Any:
    """Its quick start's policy, filled up: every type it knows is retried or planned anew."""
    triage: Any = import_module("triage")
    agent_module: Any = import_module("triage.agent")
    retry: Any = import_module("triage.strategies.retry")
    again: Any = import_module("triage.strategies.replan")

    class Anyio:
        @staticmethod
        async def sleep(seconds: float) -> None:
            desk.clock.sleep(seconds)

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("anyio"), name)

    agent_module.anyio = Anyio()

    async def agent(_task: str, *, record_step: Any, _triage_hint: Any = None, **_: Any) -> Any:
        count = 0

        def record(**fields: Any) -> None:
            nonlocal count
            record_step(triage.Step(index=count, **fields))
            count += 1

        async def ask(**request: Any) -> Any:
            answer = await desk.client.chat.completions.create(**request)
            said = answer.choices[0].message
            record(action="model", llm_output=said.content or "")
            return answer

        def recorded(name: str, function: Any) -> Any:
            async def call(**arguments: Any) -> Any:
                result = await function(**arguments)
                fields = {"tool_called": name, "tool_input": arguments, "tool_output": result}
                record(action=f"called {name}", **fields)
                return result

            return call

        tools = {kit.name: recorded(kit.name, kit.function) for kit in desk.kits}
        return await loop(desk.task, desk.name, ask, tools, desk.kits, _triage_hint)

    policy = triage.FailurePolicy(
        WRONG_TOOL_CALLED=retry.retry_with_tool_manifest(max_attempts=3),
        SCHEMA_MISMATCH=retry.backoff_and_retry(max_attempts=3),
        EXTERNAL_FAULT=retry.backoff_and_retry(max_attempts=5),
        TIMEOUT=retry.backoff_and_retry(max_attempts=5),
        LOOP_DETECTED=again.replan(hint="Try a different approach."),
        CONSTRAINT_IGNORED=again.replan(hint="Keep to the constraints."),
        PLAN_INCOMPLETE=again.replan(hint="Finish every part of the task."),
        CONTEXT_OVERFLOW=again.replan(hint="The context is full: ask for less."),
        default=retry.backoff_and_retry(max_attempts=3),
    )
    return await triage.Agent(agent, policy=policy).run(desk.prompt)


CONTESTANTS = {"triage-agent": triage_agent}
