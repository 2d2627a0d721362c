"""Pydantic AI's deferred tool calls as questions of the run: asked once, answered by the run's token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    ToolApproved,
    ToolDenied,
)

from triage._plain import plain
from triage._questions import Question, shown, wait_for_answer
from triage._run import Run
from triage._serde import digest
from triage.errors import UsageError
from triage.taxonomy import Effect
from triage.traces._values import arguments


def answers_to(run: Run, requests: DeferredToolRequests) -> DeferredToolResults:
    """What a person said to these calls. Where nobody was asked yet the attempt ends, and the run waits.

    The same calls are the same question, however often the agent starts over: their ids are the model's,
    whose answer is given again from the journal.
    """
    calls = [*requests.approvals, *requests.calls]
    names = ", ".join(dict.fromkeys(call.tool_name for call in calls))
    about = [[call.tool_call_id, call.tool_name, arguments(call.args)] for call in calls]
    name = f"{names} (approval)" if requests.approvals else f"{names} (done elsewhere)"
    key = f"{name}:{digest(run.run_id, str(plain(about)))}:1"
    state = run.session.state
    call = state.calls.get(key)
    if call is not None and call.outcome == "done":
        said = (run.session.live or {}).get(key, call.result)
        return _told(requests, said if len(calls) > 1 else {calls[0].tool_call_id: said})
    if key not in state.approved:
        _ask(run, key, name, calls)
    if requests.calls:
        text = f"{names} is done elsewhere: answer with happened(result), not with approve()"
        raise UsageError(text)
    return requests.build_results(approve_all=True)


def _ask(run: Run, key: str, name: str, calls: Sequence[ToolCallPart]) -> NoReturn:
    """Ask, and stop the attempt."""
    asked = {call.tool_call_id: [call.tool_name, plain(arguments(call.args))] for call in calls}
    given: Any = plain(arguments(calls[0].args)) if len(calls) == 1 else asked
    words = "; ".join(
        f"{call.tool_name} with {shown(asked[call.tool_call_id][1])}" for call in calls
    )
    text = f"the agent waits for an answer about {words}"
    question = Question(key, name, Effect.READ.value, given, text, doubt=False)
    wait_for_answer(run, question, "agent:deferred")


def _told(requests: DeferredToolRequests, said: Any) -> DeferredToolResults:
    """The answers of a person, by the ids of the calls."""
    ids = [call.tool_call_id for call in (*requests.approvals, *requests.calls)]
    missing = [one for one in ids if not isinstance(said, Mapping) or one not in said]
    if missing:
        raise UsageError(
            f"{len(ids)} calls wait: answer with happened({{id: answer, …}}); there is none for "
            f"{', '.join(missing)}"
        )
    return requests.build_results(
        approvals={
            one.tool_call_id: _approval(said[one.tool_call_id]) for one in requests.approvals
        },
        calls={one.tool_call_id: said[one.tool_call_id] for one in requests.calls},
    )


def _approval(said: Any) -> ToolApproved | ToolDenied:
    """Yes, no, no and why, or yes with other arguments."""
    if isinstance(said, bool):
        return ToolApproved() if said else ToolDenied()
    if isinstance(said, str):
        return ToolDenied(said)
    if isinstance(said, Mapping):
        return ToolApproved(override_args=dict(said))
    raise UsageError(
        "a call that waits for approval is answered with approve(), reject(reason), or happened() of "
        f"True, False, the reason against it, or the arguments it may have; not {type(said).__name__}"
    )
