"""Changes that a model has asked for and that no tool has recorded: they are seen on the wire alone.

Where the function is called again, they would be made again.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from triage.core.actions import Replan
from triage.core.constructors import Struct
from triage.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    AttemptFailed,
    Event,
    RunResumed,
    StepRecorded,
)
from triage.core.foreign import instance_dict
from triage.core.json_values import digest, plain
from triage.core.messages.neutral import Asked
from triage.core.observers import logger
from triage.core.quoting import as_json, quote
from triage.core.state import is_reused
from triage.core.taxonomy import Effect, infer_effect, names_a_change

from .asked_calls import answered_by, asked_in
from .journal import Session
from .models import MODEL
from .questions import APPROVAL, Question, ask
from .run import Recorder
from .tools import TOOL_ATTRIBUTE, Compensator, declared, whole

SEEN = "wire"
"""In the metadata of a step: it was read off a conversation with a model."""
NOT_ATTEMPTED = "not_attempted"
"""In the metadata of a step: the call was made, and ended before it could have taken effect."""
RECORDS_TOOLS = "__triage_records_tools__"
"""True on functions that record each tool call that their models ask for."""
GOES_ON = "__triage_goes_on__"
"""True on functions that hold no state beside the conversation with their model."""
HOW_TO_GO_ON = (
    "Answer approve() to have it called again, or Replan() to have its model go on from there"
)
_AGAIN = " again"
"""Follows the tool in the key of a question whether it may be called again."""
_said: set[str] = set()
"""Names of agents of which it was said already what is made again."""
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


def repeats_changes(session: Session) -> str | None:
    """Why the function is not simply called again: it would repeat changes that nothing has recorded."""
    changes = open_changes(session)
    return told(changes) if changes else None


def carries_turns(session: Session) -> bool:
    """Whether the model's conversation goes on with its earlier turns, so that it repeats no change."""
    if goes_on(session):
        return True
    resumed = [event.action for event in session.events if isinstance(event, RunResumed)]
    return bool(resumed) and isinstance(resumed[-1], Replan)


def goes_on(session: Session) -> bool:
    """Whether the function holds no state beside the conversation with its model."""
    function = session.config.function
    is_marked = function is not None and getattr(function, GOES_ON, False)
    return session.config.durability.undeclared == "carry" or is_marked is True


def say_called_again(session: Session) -> None:
    """Log, once an agent, what is made again as nothing records it, where its function is called again."""
    name = session.config.name
    if name in _said or getattr(session.config.function, RECORDS_TOOLS, False) is True:
        return
    asked = dict.fromkeys(
        one.name
        for event in session.events
        if isinstance(event, StepRecorded) and (event.step.metadata or {}).get(SEEN) is True
        for one in asked_in(event.step)
    )
    changing = [tool for tool in asked if infer_effect(tool) is not Effect.READ]
    known = _recorded(session) | _held(session) if changing else set()
    tools = [tool for tool in changing if tool not in known]
    if tools:
        _said.add(name)
        logger.info(
            "agent %s is called again, and so are tools that record nothing: %s. With @triage.tool above "
            "one it is given its result instead", name, ", ".join(map(quote, tools[:_MOST])),
        )  # fmt: skip
    elif not session.has_calls and not session.state.all_steps:
        _said.add(name)
        logger.info(
            "agent %s is called again from its beginning: it has asked no model that was seen, and "
            "recorded nothing", name,
        )  # fmt: skip


def _recorded(session: Session) -> set[str]:
    """Tools that have recorded calls in the run, or were named as such."""
    known = {call.tool for call in session.state.calls.values() if call.kind != "model"}
    return known | session.recorded_tools


def _held(session: Session) -> set[str]:
    """Declared tools in the module, closure, object or arguments of the agent's function.

    A tool that is declared anywhere else may be another agent's.
    """
    function: Any = inspect.unwrap(whole(session.config.function))
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    namespaces = (getattr(function, "__globals__", {}), instance_dict(owner), vars(type(owner)))
    held = [*session.kwargs.values(), *_cells(function)]
    held += [value for namespace in namespaces for value in namespace.values()]
    held += [value for place in held for value in _values(place)]
    known = set(map(id, held))
    return {
        getattr(item, TOOL_ATTRIBUTE).name
        for item in declared()
        if id(item) in known and not isinstance(item, Compensator)
    }


def _cells(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # not filled yet
            yield cell.cell_contents


def _values(place: Any) -> Iterable[Any]:
    if type(place) is ModuleType:
        place = instance_dict(place)
    if type(place) is dict:
        return place.values()
    return place if type(place) in (list, tuple, set, frozenset) else ()


def open_changes(session: Session) -> list[Change]:
    """The changes that another call of the function would repeat."""
    recorded = getattr(session.config.function, RECORDS_TOOLS, False) is True
    if recorded or session.config.durability.undeclared == "retry":
        return []
    stands = carries_turns(session)
    known = _recorded(session)
    if not undeclared_changes(session.events, known, stands=stands):
        return []
    return undeclared_changes(session.events, known | _held(session), stands=stands)


def undeclared_changes(
    events: Iterable[Event], known: Iterable[str], *, stands: bool = False
) -> list[Change]:
    """The changes since a person last decided on the run, in the order in which they were asked for.

    known: tools that record their calls. stands: a person's decision leaves them as they are.
    """
    recorded = set(known)
    waiting: list[Asked] = []
    last: list[Asked] = []
    found: list[Change] = []
    for event in events:
        if isinstance(event, ApprovalAsked) and event.kind == "call":
            if is_held(event.subject):
                waiting = [one for one in waiting if one not in last]
            else:  # it would record its call, once approved
                recorded.add(event.subject.rsplit(":", 2)[0])
        elif isinstance(event, RunResumed) and not stands:
            waiting, found = [], []
        elif isinstance(event, StepRecorded):
            step, about = event.step, event.step.metadata or {}
            is_seen = about.get(SEEN) is True
            if step.action == MODEL and is_seen:
                last = list(asked_in(step))
                again = is_reused(about)
                waiting += [one for one in last if not (again and one in waiting)]
            elif step.tool_called is not None:
                asked = next((one for one in waiting if answered_by(step, one)), None)
                if asked is not None:
                    waiting.remove(asked)
                takes_effect = is_seen and not about.get(NOT_ATTEMPTED)
                if takes_effect and _is_change(step.tool_called, recorded):
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


def hold_back(run: Recorder, changes: list[Change], asked: list[Asked]) -> None:
    """Stop before an answer is given on that asks once more for a change that ran or may have run.

    changes: those of earlier attempts. asked: what this attempt has asked for, the newest last.
    """
    newest = asked[-1]
    equal = [one for one in changes if (one.tool, one.arguments) == (newest.name, newest.arguments)]
    if not equal:
        return
    session, given = run.session, plain(newest.arguments)
    times = sum((one.name, one.arguments) == (newest.name, newest.arguments) for one in asked)
    named = digest(session.salt, json.dumps(given, sort_keys=True))
    key = f"{newest.name}{_AGAIN}:{named}:{len(equal) - 1 + times}"
    if key in session.state.approved:
        return
    how = "was made before" if equal[-1].ended else "was asked for before, and may have been made"
    text = f"{equal[-1].text} {how}, and the model asks for it once more. May it be made again?"
    effect = Effect.UNKNOWN.value
    question = Question(key, newest.name, effect, given, text, doubt=False, kind=APPROVAL)
    ask(run, question)


def approved_again(session: Session) -> str | None:
    """What the model is told where a person has just let it make a change once more."""
    for event in reversed(session.events):
        if isinstance(event, ApprovalGiven) and is_held(event.subject):
            tool = event.subject.rsplit(":", 2)[0].removesuffix(_AGAIN)
            told = f"A person has approved that {tool} is called once more: call it."
            return told if event.decision == "approved" else None
        if isinstance(event, AttemptFailed):
            return None
    return None


def is_held(subject: str) -> bool:
    """Whether a question is about an answer that was held back."""
    return subject.rsplit(":", 2)[0].endswith(_AGAIN)
