"""What type checkers know of `wrap`: mypy checks this file too, and an unused ignore is an error."""

from __future__ import annotations

from typing import Any, TypedDict, assert_type

import pytest
from agents import Agent as OpenAIAgent
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel
from pydantic_ai.run import AgentRunResult

import triage
from triage import Agent, UsageError


class State(TypedDict):
    told: str


def test_the_result_type_of_a_framework_is_kept() -> None:
    wrapped = triage.wrap(PydanticAgent(TestModel(), output_type=int))
    assert_type(wrapped, Agent[AgentRunResult[int]])
    assert isinstance(wrapped, Agent)


def test_what_is_invoked_gives_its_output() -> None:
    runnable: RunnableLambda[str, int] = RunnableLambda(len)
    assert_type(triage.wrap(runnable), Agent[int])
    graph = StateGraph(State)
    graph.add_node("tell", lambda state: {"told": "all"})
    graph.add_edge(START, "tell")
    graph.add_edge("tell", END)
    wrapped = triage.wrap(graph.compile())
    assert_type(wrapped, Agent[dict[str, Any] | Any])
    assert wrapped.name


def test_a_result_type_that_is_given_is_the_agents() -> None:
    assert_type(triage.wrap(OpenAIAgent("desk"), result_type=str), Agent[str])
    assert_type(triage.wrap(OpenAIAgent("desk")), Agent[Any])


def test_what_nothing_runs_is_an_error_for_people_and_a_wrong_option_for_checkers() -> None:
    with pytest.raises(UsageError, match="wrap"):
        triage.wrap(42)
    with pytest.raises(TypeError, match="limit"):
        triage.wrap(OpenAIAgent("desk"), limit=3)  # type: ignore[call-overload]
