"""What a framework's agent asks a person, through the seam: asked once, answered by the run's token."""

from __future__ import annotations

from typing import Any

import pytest
from support import always, on_both_backends

from adapters.own_framework import Framework, recording, steps_of
from triage import Retry, TriageSuspendedError, UsageError
from triage.adapters import Said, Seam
from triage.core import approve, edit, happened, reject

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()


class Desk:
    """An agent that asks for leave before it charges, as `times` says how often."""

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.said: list[Said] = []

    async def course(self, framework: Framework, seam: Seam) -> Any:
        await framework.model(seam, "what to do")
        for number in range(self.times):
            said = seam.ask_person(
                "charge",
                f"call {number}",
                arguments={"cents": number},
                leave=True,
                editable=["cents"],
            )
            self.said.append(said)
            if said.decision == "rejected":
                return f"not done: {said.value}"
            cents = said.edits.get("cents", number)
            await seam.tool("charge", {"cents": cents}, lambda: _gives("receipt"), effect="once")
        return "done"


async def _gives(value: Any) -> Any:
    return value


async def suspended(agent: Any) -> str:
    with pytest.raises(TriageSuspendedError) as waits:
        await agent.run("t")
    return waits.value.token


async def test_leave_is_asked_for_once_and_the_model_is_not_asked_again() -> None:
    desk = Desk()
    framework = Framework(desk.course)
    agent, events = recording(framework, policy=always(Retry()))
    with pytest.raises(TriageSuspendedError, match="may charge be called with") as waits:
        await agent.run("t")
    assert desk.said == []
    assert not [step for step in steps_of(events) if step.tool_called]
    assert await agent.resume(waits.value.token, approve()) == "done"
    assert [said.decision for said in desk.said] == ["approved"]
    assert len(framework.asked) == 1
    assert [step.tool_called for step in steps_of(events) if step.tool_called] == ["charge"]


async def test_a_call_may_be_made_with_other_arguments() -> None:
    desk = Desk()
    agent, events = recording(Framework(desk.course))
    assert await agent.resume(await suspended(agent), edit({"cents": 7})) == "done"
    (charged,) = [step for step in steps_of(events) if step.tool_called]
    assert charged.tool_input == {"cents": 7}


async def test_a_refusal_is_told_to_the_framework_and_is_not_asked_about_again() -> None:
    desk = Desk()
    agent, events = recording(Framework(desk.course))
    assert await agent.resume(await suspended(agent), reject("too dear")) == "not done: too dear"
    assert not [step for step in steps_of(events) if step.tool_called]


async def test_what_has_not_begun_cannot_have_happened() -> None:
    agent, _ = recording(Framework(Desk().course))
    token = await suspended(agent)
    with pytest.raises(UsageError, match="has not begun"):
        await agent.resume(token, happened("receipt"))


async def test_each_question_is_asked_by_itself() -> None:
    desk = Desk(times=2)
    agent, _ = recording(Framework(desk.course))
    with pytest.raises(TriageSuspendedError, match="charge") as second:
        await agent.resume(await suspended(agent), approve())
    assert await agent.resume(second.value.token, approve()) == "done"
    assert [said.decision for said in desk.said] == ["approved"] * 3  # the first is told again


async def test_a_question_may_have_any_answer() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        said = seam.ask_person("date", 1, "which day?")
        return said.decision, said.value

    agent, _ = recording(Framework(course))
    with pytest.raises(TriageSuspendedError, match="which day"):
        await agent.run("t")
    agent, _ = recording(Framework(course))
    assert await agent.resume(await suspended(agent), happened({"day": 3})) == (
        "answered",
        {"day": 3},
    )
