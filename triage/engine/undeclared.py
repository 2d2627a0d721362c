"""Changes that a model has asked for and that no tool has recorded: they are seen on the wire alone.

Where the function is called again, they would be made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from triage.core import ApprovalAsked, Event, RunResumed, Step, StepRecorded, names_a_change
from triage.core.constructors import Struct
from triage.core.quoting import as_json

from .approvals import IDS, MODEL

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
    waiting: list[tuple[str | None, Change]] = []
    found: list[Change] = []
    for event in events:
        if isinstance(event, ApprovalAsked) and event.kind == "call":
            recorded.add(
                event.subject.rsplit(":", 2)[0]
            )  # which would record its call, once approved
        elif isinstance(event, RunResumed):
            waiting, found = [], []
        elif isinstance(event, StepRecorded):
            step = event.step
            is_seen = (step.metadata or {}).get(SEEN) is True
            if step.action == MODEL:
                waiting += _asked(step) if is_seen else ()
            elif step.tool_called is not None:
                asked = next((one for one in waiting if _is_of(step, *one)), None)
                if asked is not None:
                    waiting.remove(asked)
                if is_seen and _is_change(step.tool_called, recorded):
                    result = step.tool_output if step.error is None else step.error
                    found.append(
                        Change(step.tool_called, step.tool_input, ended=True, result=result)
                    )
    return [*found, *(one for _, one in waiting if _is_change(one.tool, recorded))]


def _asked(step: Step) -> Iterable[tuple[str | None, Change]]:
    ids = (step.metadata or {}).get(IDS) or []
    calls = step.tool_output if isinstance(step.tool_output, list) else []
    for at, call in enumerate(calls):
        if isinstance(call, Mapping) and isinstance(call.get("tool"), str):
            id_ = ids[at] if at < len(ids) else None
            yield (id_ or None), Change(call["tool"], call.get("arguments"))


def _is_of(step: Step, id_: str | None, call: Change) -> bool:
    own = (step.metadata or {}).get("id")
    if own is not None and id_ is not None:
        return bool(own == id_)
    if step.tool_called != call.tool:
        return False
    given = call.arguments if isinstance(call.arguments, Mapping) else {}
    taken = step.tool_input if isinstance(step.tool_input, Mapping) else {}
    return all(taken.get(key) == value for key, value in given.items())


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
