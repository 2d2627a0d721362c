"""Changes that a model has asked for and that no tool has recorded: they are seen on the wire alone.

Where the function is called again, they would be made again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from triage.core import ApprovalAsked, Event, RunResumed, StepRecorded, names_a_change
from triage.core.constructors import Struct
from triage.core.messages.base import Asked
from triage.core.quoting import as_json

from .approvals import MODEL
from .asked_calls import answered_by, asked_in

SEEN = "wire"
"""In the metadata of a step: it was read off a conversation with a model."""
_LONGEST = 300
_MOST = 10


class Change(Struct, frozen=True):
    """A call that changes something. ended: its result is known. result: None where it is not."""

    tool: str
    arguments: Any
    ended: bool = False
    result: Any = None

    @property
    def text(self) -> str:
        """The call in words."""
        given = "" if self.arguments is None else as_json(self.arguments, _LONGEST)
        gave = f" gave {as_json(self.result, _LONGEST)}" if self.ended else ""
        return f"{self.tool[:80]}({given}){gave}"


def undeclared_changes(events: Iterable[Event], known: Iterable[str]) -> list[Change]:
    """The changes since a person last decided on the run, in the order in which they were asked for.

    known: tools that record their calls.
    """
    recorded = set(known)
    waiting: list[Asked] = []
    found: list[Change] = []
    for event in events:
        if isinstance(event, ApprovalAsked) and event.kind == "call":
            # It would record its call, once approved.
            recorded.add(event.subject.rsplit(":", 2)[0])
        elif isinstance(event, RunResumed):
            waiting, found = [], []
        elif isinstance(event, StepRecorded):
            step = event.step
            is_seen = (step.metadata or {}).get(SEEN) is True
            if step.action == MODEL:
                waiting += asked_in(step) if is_seen else ()
            elif step.tool_called is not None:
                asked = next((one for one in waiting if answered_by(step, one)), None)
                if asked is not None:
                    waiting.remove(asked)
                if is_seen and _is_change(step.tool_called, recorded):
                    result = step.tool_output if step.error is None else step.error
                    found.append(
                        Change(step.tool_called, step.tool_input, ended=True, result=result)
                    )
    open_ = [one for one in waiting if _is_change(one.name, recorded)]
    return [*found, *(Change(one.name, one.arguments) for one in open_)]


def _is_change(tool: str, recorded: set[str]) -> bool:
    return names_a_change(tool) and tool not in recorded


def told(changes: list[Change]) -> str:
    """Why the function is not simply called again, and what cures that."""
    ended = [one.text for one in changes if one.ended][:_MOST]
    asked = [one.text for one in changes if not one.ended][:_MOST]
    seen = f"seen on the wire: {'; '.join(ended)}. " if ended else ""
    open_ = f"asked for, and its outcome unknown: {'; '.join(asked)}. " if asked else ""
    name = changes[0].tool[:80]
    return (
        "calling the agent again may repeat what its model has asked for and no tool has recorded. "
        f"{seen}{open_}Declare such a tool, and nothing is made twice: "
        f'@triage.tool(effect="once") above {name}'
    )
