"""The OpenAI Agents SDK: bare, with its own settings for retries, and wrapped."""

from __future__ import annotations

from typing import Any

import agents
import openai
from agents import ModelRetryBackoffSettings, ModelRetrySettings, ModelSettings, retry_policies

from bench.adapters import TRIES, Framework, Task

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


def _own(task: Task, url: str) -> agents.Agent[Any]:
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
    return _agent(task, url, model_settings=ModelSettings(retry=retry))


async def _ask(agent: agents.Agent[Any], given: str) -> str:
    return _text(await agents.Runner.run(agent, given, max_turns=TURNS))


def _text(result: Any) -> str:
    return str(result.final_output)


FRAMEWORK = Framework(
    "openai-agents", _agent, _ask, _text,
    own={"with its retry settings": _own}, options={"max_turns": TURNS},
)  # fmt: skip
