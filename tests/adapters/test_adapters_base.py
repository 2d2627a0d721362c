"""What is the same for every adapter: finding one, its calls, going on, fallbacks, soft failures."""

from __future__ import annotations

import json
import logging
from hashlib import sha256
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import always, on_both_backends
from tables import table

import triage
from adapters.own_framework import FORM, Framework, Poor, Theirs, recording, steps_of, three
from triage import FailurePolicy, Limits, Replan, Retry, Rollback, TriageEscalationError, Usage
from triage.adapters import Seam, SoftFailure, Turn
from triage.core import CallStarted
from triage.testing import faults

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()

# Recording ------------------------------------------------------------------------------------------


async def test_a_model_call_is_a_step_with_words_calls_tokens_and_time() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        await framework.model(seam, "first", {"text": "let me look", "asks": ["look"]})
        await framework.model(seam, "second", {"text": "done"})
        return "end"

    agent, events = recording(Framework(course))
    assert await agent.run("t") == "end"
    first, second = steps_of(events)
    assert (first.action, first.tool_called, first.tool_input) == ("model", None, "first")
    assert first.tool_output == [{"tool": "look", "arguments": {}}]
    assert first.metadata is not None
    assert first.metadata["said"] == "let me look"
    assert (second.llm_output, second.usage) == ("done", Usage(7, 3, model="m"))
    assert all(step.duration_s is not None and step.error is None for step in (first, second))


async def test_a_tool_call_is_a_step_with_its_arguments_its_effect_and_the_models_id() -> None:
    agent, events = recording(Framework(three), effects={"charge": "once", "look": "read"})
    await agent.run("t")
    tools = [step for step in steps_of(events) if step.tool_called]
    assert [(s.tool_called, s.effect, s.tool_input) for s in tools] == [
        ("look", "read", {"n": 1}),
        ("charge", "once", {"n": 1}),
        ("look", "read", {"n": 1}),
    ]
    assert [step.metadata and step.metadata["id"] for step in tools] == [
        "call 0",
        "call 1",
        "call 2",
    ]


async def test_a_tool_that_records_itself_is_recorded_once() -> None:
    @triage.tool(effect="read")
    async def look(n: int) -> str:
        return "seen"

    async def course(framework: Framework, seam: Seam) -> Any:
        return await seam.tool("look", {"n": 1}, lambda: look(n=1), function=look)

    agent, events = recording(Framework(course))
    assert await agent.run("t") == "seen"
    assert [step.tool_called for step in steps_of(events)] == ["look"]


async def test_what_a_call_records_by_itself_is_written_in_its_own_words() -> None:
    @triage.tool(effect="read")
    async def inner(n: int) -> int:
        return n

    async def course(framework: Framework, seam: Seam) -> str:
        async def ask(hint: str | None) -> Any:
            await inner(1)
            return {"text": "end"}

        async def do() -> int:
            return await inner(2)

        await seam.tool("look", {}, do, id="c1", effect="read")
        return str((await seam.model(ask, form=FORM, request=1))["text"])

    agent, events = recording(Framework(course))
    assert await agent.run("t") == "end"
    found = [(s.action, s.tool_called, (s.metadata or {}).get("id")) for s in steps_of(events)]
    assert found == [
        ("call", "inner", None),
        ("call", "look", "c1"),
        ("call", "inner", None),
        ("model", None, None),
    ]


async def test_a_refused_call_is_a_step_with_an_error_and_runs_nothing() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        seam.refused("lookup", {"q": 1}, "there is no tool lookup", kind="UnknownTool")
        return "end"

    agent, events = recording(Framework(course))
    await agent.run("t")
    (step,) = steps_of(events)
    assert (step.tool_called, step.error, step.exception_type) == (
        "lookup",
        "there is no tool lookup",
        "UnknownTool",
    )


async def test_sync_hooks_record_the_same() -> None:
    def work(seam: Seam) -> Any:
        answer = seam.model_sync(lambda hint: {"text": f"told {hint}"}, form=FORM, request=1)
        return answer["text"], seam.tool_sync("look", {"n": 1}, lambda: "seen", effect="read")

    async def course(framework: Framework, seam: Seam) -> Any:
        return await anyio.to_thread.run_sync(work, seam)

    agent, events = recording(Framework(course))
    assert await agent.run("t") == ("told None", "seen")
    assert [step.tool_called for step in steps_of(events)] == [None, "look"]


# Going on -------------------------------------------------------------------------------------------


@table("action", [Retry("be brief"), Rollback(hint="be brief")])
async def test_what_was_done_is_not_done_again_and_the_hint_is_told_where_work_goes_on(
    action: Any,
) -> None:
    framework = Framework(three, {3: ConnectionError("reset")})
    agent, _ = recording(
        framework, policy=always(action), effects={"charge": "once", "look": "read"}
    )
    assert await agent.run("t") == "end"
    assert framework.asked == [
        ("turn 0", None),
        ("turn 1", None),
        ("turn 2", None),
        ("turn 2", "be brief"),
    ]
    assert framework.did == ["look", "charge", "look"]


async def test_after_a_new_plan_the_conversation_so_far_is_at_hand() -> None:
    seen: list[tuple[Turn, ...]] = []

    async def course(framework: Framework, seam: Seam) -> str:
        seen.append(seam.carried)
        await framework.model(seam, f"turn of {seam.run.attempt}")
        await framework.tool(seam, "look", id="c1")
        if seam.run.attempt == 1:
            raise ConnectionError("reset")
        return "end"

    agent, _ = recording(Framework(course), policy=always(Replan("other")))
    await agent.run("t")
    assert seen[0] == ()
    model, tool = (turn._replace(key=None) for turn in seen[1])
    said = "on turn of 1"
    assert model == Turn("model", "theirs", {"text": said}, said="turn of 1", text=said)
    assert tool == Turn("tool", "look", "look done", "c1", arguments={"n": 1})


async def test_of_a_loop_and_of_a_context_that_was_too_long_nothing_is_carried_over() -> None:
    seen: list[list[str]] = []

    async def course(framework: Framework, seam: Seam) -> str:
        seen.append([turn.name for turn in seam.carried])
        if seam.run.attempt == 1:
            await framework.tool(seam, "find")
            for _ in range(9):
                await framework.tool(seam, "look")
            raise RuntimeError("no answer after 9 turns")
        if seam.run.attempt == 2:
            raise faults.context_length().error(None)
        return "end"

    effects = {"find": "read", "look": "read"}
    agent, _ = recording(Framework(course), policy=always(Replan("other")), effects=effects)
    assert await agent.run("t") == "end"
    assert seen == [[], ["find"], []]


@table(("used", "times"), [(True, 2), (False, 1)])
async def test_a_call_counts_as_made_where_a_conversation_begins_with_its_turn(
    *, used: bool, times: int
) -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        if not seam.carried:
            await framework.tool(seam, "charge")
            raise ConnectionError("reset")
        for turn in seam.carried if used else ():
            seam.use(turn)
        await framework.tool(seam, "charge")  # where the first one is met, this is a second one
        return "end"

    framework = Framework(course)
    agent, _ = recording(framework, policy=always(Replan("other")), effects={"charge": "once"})
    assert await agent.run("t") == "end"
    assert framework.did == ["charge"] * times


@table("attempt", [1, 2])
async def test_agents_side_by_side_are_kept_apart(attempt: int) -> None:
    async def course(framework: Framework, seam: Seam) -> list[str]:
        answers: dict[str, str] = {}

        async def one(who: str) -> None:
            for n in range(2):
                told = f"{who} {n} {min(seam.run.attempt, attempt)}"
                answers[who] = (await framework.model(seam, told, who=who))["text"]

        async with anyio.create_task_group() as group:
            group.start_soon(one, "left")
            group.start_soon(one, "right")
        if seam.run.attempt == 1:
            raise ConnectionError("reset")
        return [answers["left"], answers["right"]]

    framework = Framework(course)
    agent, _ = recording(framework, policy=always(Retry()))
    # Told something else, they are asked anew: the order of tasks is chance.
    assert await agent.run("t") == [f"on left 1 {attempt}", f"on right 1 {attempt}"]
    assert len(framework.asked) == 4 * attempt


# Stopping -------------------------------------------------------------------------------------------


async def test_a_stop_that_a_framework_turns_into_an_error_is_a_stop_all_the_same() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        try:
            for n in range(9):
                await framework.model(seam, f"turn {n}")
        except BaseException as error:
            raise RuntimeError("the tool failed") from error
        return "end"

    framework = Framework(course)
    agent, _ = recording(framework, limits=Limits(tokens=20))
    with pytest.raises(TriageEscalationError) as raised:
        await agent.run("t")
    assert raised.value.context is not None
    assert raised.value.context.diagnosis.cause == "limit"
    assert len(framework.asked) == 3


# Soft failures --------------------------------------------------------------------------------------


async def test_a_run_whose_last_model_call_failed_has_failed_for_that_reason() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        try:
            await framework.model(seam, "turn")
        except ConnectionError as error:
            return f"Model call failed after 3 attempts with {error}"
        return "end"

    framework = Framework(course, {1: ConnectionResetError("reset by peer")})
    agent, _ = recording(framework, policy=always(Retry()))
    assert await agent.run("t") == "end"
    assert len(framework.asked) == 2


@table("ended", ["length", "max_tokens", "content_filter"])
async def test_an_answer_that_was_cut_off_or_refused_is_no_success(ended: str) -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        last = {"text": "half of i", "ended": ended} if seam.run.attempt == 1 else {"text": "all"}
        return str((await framework.model(seam, "turn", last))["text"])

    agent, events = recording(Framework(course), policy=always(Replan("shorter")))
    assert await agent.run("t") == "all"
    assert [bool(step.error) for step in steps_of(events)] == [True, False]


async def test_what_an_adapter_sees_in_a_result_decides_the_diagnosis() -> None:
    class Sees(Theirs):
        def soft_failure(self, result: Any) -> BaseException | None:
            if result == "gave up":
                return SoftFailure(
                    "the turns were used up", failure_type=triage.FailureType.LOOP_DETECTED
                )
            return None

    async def course(framework: Framework, seam: Seam) -> str:
        return "gave up" if seam.run.attempt == 1 else "end"

    told: list[Any] = []

    def strategy(context: Any) -> Any:
        told.append(context.failure_type)
        return Retry()

    agent, _ = recording(Framework(course), Sees, policy=FailurePolicy(default=strategy))
    assert await agent.run("t") == "end"
    assert told == [triage.FailureType.LOOP_DETECTED]


# Fallbacks ------------------------------------------------------------------------------------------


async def test_what_an_adapter_cannot_do_is_said_to_the_model_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    framework = Framework(three, {3: ConnectionError("reset")})
    agent, _ = recording(framework, Poor, policy=always(Rollback(hint="be brief")))
    with caplog.at_level(logging.WARNING, "triage.adapters"):
        await agent.run("t")
    assert "it has one way only" in caplog.text
    assert "its prompt is fixed" in caplog.text
    told = framework.asked[-1][1]
    assert told is not None
    assert "could not be set back" in told


ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "b", "é", "c d", '"']),
    st.one_of(
        st.text(max_size=3),
        st.sampled_from([0, -1, True, None, 1.5, 10**30, "\ud800", [1], {"b": 1, "a": "x"}, []]),
    ),
    max_size=3,
)


@given(ARGUMENTS)
def test_a_tools_call_is_known_by_the_json_of_its_arguments(arguments: dict[str, Any]) -> None:
    async def course(framework: Framework, seam: Seam) -> None:
        async def do() -> str:
            return "done"

        await seam.tool("look", arguments, do)

    agent, events = recording(Framework(course))

    async def run() -> None:
        await agent.run("t", run_id="run-1")

    anyio.run(run)
    named = arguments if all(map(str.isidentifier, arguments)) else {"arguments": arguments}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))[1:-1]
    known = sha256(f"run-1\0{text}".encode()).hexdigest()[:32]
    assert [e.key for e in events if isinstance(e, CallStarted)] == [f"look:{known}:1"]
