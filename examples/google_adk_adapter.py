"""An adapter for Google's Agent Development Kit, as anybody may write one for a framework of theirs.

    agent = triage.wrap(LlmAgent(name="clerk", …), adapter=GoogleADKAdapter, effects={"charge": "once"})
    events = await agent.run("Pay the bill.", max_llm_calls=20)

Each attempt is one invocation in a session of its own. A clone of the agent runs, whose models ask through
the seam; the tools that a request to a model brings along are called through it, too.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent, RunConfig
from google.adk.events import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai.types import UserContent

from triage.adapters import (
    Adapter,
    Form,
    Seam,
    hinted_gemini,
    read_gemini,
    said_gemini,
    shrunk_gemini,
)


class GoogleADKAdapter(Adapter):
    """Runs an `LlmAgent` and its sub-agents: `run(text, **config)` gives the events of one invocation.

    config: fields of ADK's `RunConfig`.
    """

    name = "google-adk"

    async def attempt(self, seam: Seam, task: Any, **config: Any) -> Any:
        """One invocation."""
        sessions: Any = {"session_service": InMemorySessionService(), "auto_create_session": True}
        agent = through(seam, self.target.clone())
        async with Runner(app_name="app", agent=agent, **sessions) as runner:
            given: Any = {"new_message": UserContent(task), "run_config": RunConfig(**config)}
            return [one async for one in runner.run_async(user_id="me", session_id="1", **given)]


def through(seam: Seam, agent: BaseAgent) -> BaseAgent:
    """The agent and those it may hand over to, with models that ask through the seam."""
    if isinstance(agent, LlmAgent):
        inner = agent.canonical_model
        agent.model = Model(model=inner.model, inner=inner, seam=seam, who=agent.name)
    for one in agent.sub_agents:
        through(seam, one)
    return agent


class Model(BaseLlm):
    """A model that is asked through a seam, and whose answers come whole."""

    inner: BaseLlm
    seam: Any
    who: str

    async def generate_content_async(
        self, llm_request: Any, *_: Any, **__: Any
    ) -> AsyncGenerator[LlmResponse, None]:
        """One answer, new or known."""
        tools = llm_request.tools_dict
        tools.update({name: called(self.seam, tool) for name, tool in tools.items()})

        async def ask(hint: str | None) -> LlmResponse:
            told = hinted_gemini(shrunk_gemini(llm_request.contents, self.seam.shrink), hint)
            more = {"contents": told, "model": self.seam.other_model or llm_request.model}
            given = llm_request.model_copy(update=more)
            return [answer async for answer in self.inner.generate_content_async(given)][-1]

        request = llm_request.model_dump(mode="json", include={"contents", "config"})
        about = {"form": Form.of(LlmResponse, read_gemini), "request": request}
        about |= {"said": said_gemini(request["contents"]), "model": self.model, "who": self.who}
        yield await self.seam.model(ask, tools=llm_request.config.tools, **about)


def called(seam: Seam, tool: Any) -> Any:
    """The tool, called through a seam. What it has ADK do, such as a hand-over, is recorded, too."""

    async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
        do = partial(tool.run_async, args=args, tool_context=tool_context)
        form = Form(partial(noted, tool_context), partial(done_again, tool_context))
        return await seam.tool(tool.name, args, do, form=form, refused=lambda told: {"error": told})

    made = copy.copy(tool)
    made.run_async = run_async
    return made


def noted(context: Any, result: Any) -> Any:
    """A tool's result, with the actions and changes of the state that the tool asked for."""
    dumped = context.actions.model_dump(mode="json")
    actions = {name: value for name, value in dumped.items() if value}
    return {"result": result, ACTIONS: actions} if actions else result


def done_again(context: Any, recorded: Any) -> Any:
    """The recorded result of a tool, whose actions are asked for again."""
    if not isinstance(recorded, dict) or ACTIONS not in recorded:
        return recorded
    actions = EventActions.model_validate(recorded[ACTIONS])
    context.state.update(actions.state_delta)
    for name in actions.model_fields_set - {"state_delta"}:
        setattr(context.actions, name, getattr(actions, name))
    return recorded["result"]


ACTIONS = "google-adk actions"
