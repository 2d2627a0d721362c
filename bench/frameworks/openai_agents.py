"""The OpenAI Agents SDK: bare, with its own settings for retries, and wrapped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import agents
import openai
from agents import ModelRetryBackoffSettings, ModelRetrySettings, ModelSettings, retry_policies

import triage
from bench.adapters import Framework, Task, policy

TRIES = 3
TURNS = 30

agents.set_tracing_disabled(disabled=True)


def _agent(task: Task, url: str, **options: Any) -> agents.Agent[Any]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    return agents.Agent(
        name="clerk",
        model=agents.OpenAIChatCompletionsModel("m", client),
        tools=[agents.function_tool(tool) for tool in task.tools],
        **options,
    )


def _bare(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    return _asked(_agent(task, url))


def _own(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    retry = ModelRetrySettings(
        max_retries=TRIES,
        backoff=ModelRetryBackoffSettings(initial_delay=0.0, max_delay=0.0, jitter=False),
        policy=retry_policies.any(
            retry_policies.provider_suggested(),
            retry_policies.retry_after(),
            retry_policies.network_error(),
            retry_policies.http_status([429, 503]),
        ),
    )
    return _asked(_agent(task, url, model_settings=ModelSettings(retry=retry)))


def _wrapped(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    agent = triage.wrap(_agent(task, url), policy(), effects=task.effects)

    async def run() -> str:
        return str((await agent.run("go", max_turns=TURNS)).final_output)

    return run


def _asked(agent: agents.Agent[Any]) -> Callable[[], Awaitable[str]]:
    async def run() -> str:
        return str((await agents.Runner.run(agent, "go", max_turns=TURNS)).final_output)

    return run


FRAMEWORK = Framework(
    "openai-agents",
    _bare,
    _wrapped,
    {"Runner.run": _bare, "with its retry settings": _own, "wrapped": _wrapped},
)
