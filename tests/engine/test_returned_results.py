"""A returned result is looked at by what cannot be mistaken."""

from __future__ import annotations

from typing import Any

import pytest
from adapters.recorded_clients import anthropic_line, openai_line
from support import always
from tables import table

import triage
from triage import Agent, Escalate, FailureType, Retry, Step, TriageEscalationError
from triage.testing.adapter_contract import Rule, Script, says

pytestmark = pytest.mark.anyio
STOP = always(Escalate("stop"))


async def outcome(agent: Any) -> Any:
    """The failure type of the run, or what it gave."""
    try:
        return await Agent(agent, STOP).run("task")
    except TriageEscalationError as error:
        return error.context and error.context.diagnosis.failure_type


# Tool errors ------------------------------------------------------------------------------------------


@table("shape", ["text", "prefixed", "stripped"])
async def test_the_last_tool_error_handed_on_as_the_answer_is_a_failure(shape: str) -> None:
    @triage.tool(effect="read")
    async def search(q: str) -> str:
        raise ConnectionError("search is not reachable")

    async def agent(task: str) -> str:
        try:
            return await search("x")
        except ConnectionError as error:
            return {
                "text": str(error),
                "prefixed": f"Error: {error}",
                "stripped": f"  {error}\n",
            }[shape]

    assert await outcome(agent) is FailureType.EXTERNAL_FAULT


async def test_the_same_by_a_hand_written_step() -> None:
    async def agent(task: str, *, record_step: Any) -> str:
        record_step(
            Step(
                action="look",
                tool_called="search",
                tool_input={"q": "x"},
                error="search is not reachable",
            )
        )
        return "search is not reachable"

    assert isinstance(await outcome(agent), FailureType)


@table("answer", ["I could not search: it is not reachable.", "", None, 0, "ok"])
async def test_what_is_not_the_error_itself_is_a_result(answer: Any) -> None:
    async def agent(task: str, *, record_step: Any) -> Any:
        record_step(
            Step(
                action="look",
                tool_called="search",
                tool_input={"q": "x"},
                error="search is not reachable",
            )
        )
        return answer

    assert await outcome(agent) == answer


async def test_an_error_before_the_last_tool_call_is_not_looked_at() -> None:
    async def agent(task: str, *, record_step: Any) -> Any:
        record_step(Step(action="look", tool_called="search", tool_input={"q": "x"}, error="ok"))
        record_step(
            Step(action="look", tool_called="search", tool_input={"q": "y"}, tool_output="ok")
        )
        return "ok"

    assert await outcome(agent) == "ok"


# Answers of the model -----------------------------------------------------------------------------------


LINES = {"openai": openai_line, "anthropic": anthropic_line}


async def ask(provider: str, client: Any, **options: Any) -> str:
    messages = [{"role": "user", "content": "hello"}]
    if provider == "openai":
        made = await client.chat.completions.create(model="m", messages=messages, **options)
        return str(made.choices[0].message.content or "")
    options.setdefault("max_tokens", 500)
    made = await client.messages.create(model="m", messages=messages, **options)
    return "".join(block.text for block in made.content)


ENDED = [
    ("openai", "length", FailureType.CONTEXT_OVERFLOW),
    ("openai", "content_filter", FailureType.CONSTRAINT_IGNORED),
    ("openai", "error", FailureType.EXTERNAL_FAULT),
    ("anthropic", "length", FailureType.CONTEXT_OVERFLOW),
    ("anthropic", "content_filter", FailureType.CONSTRAINT_IGNORED),
]


@table(("provider", "ended", "expected"), ENDED)
async def test_an_answer_that_was_cut_or_refused_and_is_returned_as_it_is_is_a_failure(
    provider: str, ended: str, expected: FailureType
) -> None:
    async with LINES[provider](Script((Rule(says("The first half", ended=ended)),))) as line:

        async def agent(task: str) -> str:
            return await ask(provider, line.client)

        assert await outcome(agent) is expected


def completion(text: str, ended: str, **more: Any) -> Any:
    message = {"role": "assistant", "content": text, **more}
    return {"choices": [{"message": message, "finish_reason": ended}]}


async def test_an_answer_that_its_provider_marks_as_failed_is_asked_for_anew() -> None:
    answers = [completion("The first ha", "error"), completion("The whole.", "stop")]

    @triage.model
    async def ask_model(question: str) -> Any:
        return answers.pop(0)

    async def agent(task: str) -> str:
        return str((await ask_model(task))["choices"][0]["message"]["content"])

    assert await Agent(agent, always(Retry())).run("task") == "The whole."


async def test_the_empty_text_beside_a_refusal_is_a_failure() -> None:
    @triage.model
    async def ask_model(question: str) -> Any:
        return completion("", "stop", refusal="I cannot help with that.")

    async def agent(task: str) -> str:
        return str((await ask_model(task))["choices"][0]["message"]["content"])

    assert await outcome(agent) is FailureType.CONSTRAINT_IGNORED


async def test_an_empty_answer_of_a_hand_written_step_is_a_failure() -> None:
    async def agent(task: str, *, record_step: Any) -> str:
        record_step(Step(action="model", llm_output=""))
        return ""

    assert await outcome(agent) is FailureType.PLAN_INCOMPLETE


async def test_nothing_said_and_nothing_written_down_is_no_failure() -> None:
    async def agent(task: str, *, record_step: Any) -> str:
        record_step(Step(action="model"))
        return ""

    assert await outcome(agent) == ""


@table("provider", LINES)
async def test_an_empty_answer_returned_as_it_is_is_a_failure(provider: str) -> None:
    async with LINES[provider](Script((Rule(says("")),))) as line:

        async def agent(task: str) -> str:
            return await ask(provider, line.client)

        assert isinstance(await outcome(agent), FailureType)


@table("provider", LINES)
async def test_an_answer_cut_by_a_tiny_max_tokens_is_what_was_asked_for(provider: str) -> None:
    ended = "length" if provider == "openai" else "max_tokens"
    async with LINES[provider](Script((Rule(says("yes", ended=ended)),))) as line:

        async def agent(task: str) -> str:
            return await ask(provider, line.client, max_tokens=16)

        assert await outcome(agent) == "yes"


@table("provider", LINES)
async def test_what_the_agent_made_of_a_cut_answer_is_its_own(provider: str) -> None:
    ended = "length" if provider == "openai" else "max_tokens"
    async with LINES[provider](Script((Rule(says("The first half", ended=ended)),))) as line:

        async def agent(task: str) -> Any:
            await ask(provider, line.client)
            return "The answer was too long, so here is another."

        assert await outcome(agent) == "The answer was too long, so here is another."


@table("result", [None, "", "fine", {"a": 1}])
async def test_an_agent_that_gives_none_of_the_models_words_is_left_alone(result: Any) -> None:
    async with openai_line() as line:

        async def agent(task: str) -> Any:
            await ask("openai", line.client)
            return result

        assert await outcome(agent) == result


# What frameworks say in the model's place -----------------------------------------------------------------


STOPPED = [
    "Agent stopped due to max iterations.",
    "Agent stopped due to iteration limit or time limit.",
    "Sorry, need more steps to process this request.",
]


@table("text", STOPPED)
@table("shape", ["text", "output", "content", "messages"])
async def test_what_a_framework_says_when_it_ran_out_of_steps_is_a_failure(
    text: str, shape: str
) -> None:
    async def agent(task: str) -> Any:
        return {
            "text": text,
            "output": {"input": task, "output": text},
            "content": {"content": text},
            "messages": {
                "messages": [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": text},
                ]
            },
        }[shape]

    assert await outcome(agent) is FailureType.PLAN_INCOMPLETE


async def test_words_about_it_are_a_result() -> None:
    async def agent(task: str) -> str:
        return f"The log says: {STOPPED[0]}"

    assert await outcome(agent) == f"The log says: {STOPPED[0]}"
