"""Interrupts of a graph as questions of the run: asked once, answered by its token, given back once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from triage._plain import plain
from triage._questions import Question, shown, wait_for_answer
from triage._run import Run
from triage._serde import digest
from triage.events import ApprovalAsked, StepRecorded
from triage.steps import Step
from triage.taxonomy import Effect

NAME = "interrupt"
"""What such a question is about, as the journal names it; in the metadata of a step: the key of the
question whose answer was given to the graph."""


def ask(run: Run, interrupts: Sequence[Any]) -> NoReturn:
    """Stop the attempt: what the graph waits for is asked of a person."""
    values = {one.id: plain(one.value) for one in interrupts}
    number = sum(key is not None for key in map(_key_of, run.session.events)) + 1
    key = f"{NAME}:{digest(run.run_id, str(number))}:1"
    words = "; ".join(shown(value) for value in values.values())
    text = f"the graph waits for an answer: {words}"
    question = Question(key, NAME, Effect.READ.value, values, text, doubt=False)
    wait_for_answer(run, question, "graph:interrupt")


def answer_for(run: Run, waiting: Sequence[Any]) -> dict[str, Any] | None:
    """What a person said to the last question, by interrupt, for a graph that waits; None: nothing yet.

    It is given once, and a step says so: a graph that asks again has another question.
    """
    events = run.session.events
    asked = [key for key in map(_key_of, events) if key is not None]
    if not asked or not waiting:
        return None
    key = asked[-1]
    steps = (event.step for event in events if isinstance(event, StepRecorded))
    if any((step.metadata or {}).get(NAME) == key for step in steps):
        return None
    state = run.session.state
    call = state.calls.get(key)
    if call is not None and call.outcome == "done":
        said = (run.session.live or {}).get(key, call.result)
        answers = said if len(waiting) > 1 else {waiting[0].id: said}
    elif key in state.approved:
        answers = {one.id: _approval(one.value) for one in waiting}
    else:
        return None
    questions = {one.id: plain(one.value) for one in waiting}
    run.record_step(
        Step(
            action="answer",
            tool_input=questions,
            tool_output=plain(answers),
            metadata={NAME: key},
        )
    )
    return answers


def _approval(value: Any) -> Any:
    """Yes, in the words of what asks: LangChain's HumanInTheLoopMiddleware, or anybody."""
    asked: Any = value if isinstance(value, Mapping) else {}
    if isinstance(asked.get("action_requests"), list):
        return {"decisions": [{"type": "approve"} for _ in asked["action_requests"]]}
    return {"type": "approve"} if asked.get("type") == "tool_approval" else True


def _key_of(event: Any) -> str | None:
    """The key of the question that an event asks about an interrupt; None for any other."""
    about = isinstance(event, ApprovalAsked) and event.kind == "call"
    return event.subject if about and event.subject.startswith(f"{NAME}:") else None
