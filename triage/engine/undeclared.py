"""Changes that a model has asked for and no tool has recorded: they are seen on the wire alone.

Calling the function again would repeat them.
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
"""Key in a step's metadata: the step was read off a conversation with a model."""
NOT_ATTEMPTED = "not_attempted"
"""Key in a step's metadata: the call ended before it could have taken effect."""
RECORDS_TOOLS = "__triage_records_tools__"
"""True on functions that record each tool call that their models ask for."""
GOES_ON = "__triage_goes_on__"
"""True on functions whose only state is the conversation with their model."""
HOW_TO_GO_ON = (
    "Answer approve() to have it called again, or Replan() to have its model go on from there"
)
_AGAIN = " again"
"""Suffix of the tool's name in the key of a question whether the tool may be called again."""
_logged: set[str] = set()
"""Names of agents whose repeated calls were logged."""
_MAX_TEXT = 300
_MAX_NAMED = 10


class Change(Struct, frozen=True):
    """A call that changes something. ended: the result is known; else `result` is None."""

    tool: str
    arguments: Any
    ended: bool = False
    result: Any = None

    @property
    def text(self) -> str:
        """The call in words."""
        arguments = "" if self.arguments is None else as_json(self.arguments, _MAX_TEXT)
        gave = f" gave {as_json(self.result, _MAX_TEXT)}" if self.ended else ""
        return f"{self.tool[:80]}({arguments}){gave}"


def repeats_changes(session: Session) -> str | None:
    """Return why calling the function again would repeat unrecorded changes; None if it would not."""
    changes = open_changes(session)
    return told(changes) if changes else None


def carries_turns(session: Session) -> bool:
    """Whether the next attempt continues the model's conversation, and so repeats no change."""
    if goes_on(session):
        return True
    resumed = [event.action for event in session.events if isinstance(event, RunResumed)]
    return bool(resumed) and isinstance(resumed[-1], Replan)


def goes_on(session: Session) -> bool:
    """Whether the function's only state is the conversation with its model."""
    function = session.config.function
    is_marked = function is not None and getattr(function, GOES_ON, False)
    return session.config.durability.undeclared == "carry" or is_marked is True


def log_called_again(session: Session) -> None:
    """Log once per agent the unrecorded calls that are repeated as its function is called again."""
    name = session.config.name
    if name in _logged or getattr(session.config.function, RECORDS_TOOLS, False) is True:
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
        _logged.add(name)
        logger.info(
            "agent %s is called again, which repeats calls of tools that record nothing: %s. Put "
            "@triage.tool above a tool to reuse its results", name,
            ", ".join(map(quote, tools[:_MAX_NAMED])),
        )  # fmt: skip
    elif not session.has_calls and not session.state.all_steps:
        _logged.add(name)
        logger.info(
            "agent %s is called again from its beginning: it has recorded nothing, and no request of its "
            "to a model was seen", name,
        )  # fmt: skip


def _recorded(session: Session) -> set[str]:
    """Return the tools that have recorded calls in the run, or are known to record them."""
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
    """Return the changes that another call of the function would repeat."""
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
    """Return the changes since a person last decided on the run, in the order of the model's requests.

    known: tools that record their calls. stands: a person's decision does not settle the changes.
    """
    recorded = set(known)
    waiting: list[Asked] = []
    last: list[Asked] = []
    found: list[Change] = []
    for event in events:
        if isinstance(event, ApprovalAsked) and event.kind == "call":
            if is_held(event.subject):
                waiting = [one for one in waiting if one not in last]
            else:  # the tool would record its call, once approved
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
    """Return why the function is not called again, and the remedy."""
    ended = [one.text for one in changes if one.ended][:_MAX_NAMED]
    asked = [one.text for one in changes if not one.ended][:_MAX_NAMED]
    seen = f"seen on the wire: {'; '.join(ended)}. " if ended else ""
    open_ = f"asked for, and its outcome unknown: {'; '.join(asked)}. " if asked else ""
    name = changes[0].tool[:80]
    return (
        "calling the agent again may repeat what its model has asked for and no tool has recorded. "
        f"{seen}{open_}Declare such a tool, and nothing is made twice: "
        f'@triage.tool(effect="once") above {name}'
    )


def hold_back(run: Recorder, changes: list[Change], asked: list[Asked]) -> None:
    """Stop before the agent gets an answer that asks again for a change that ran or may have run.

    changes: of earlier attempts. asked: calls that this attempt's model has asked for, newest last.
    """
    newest = asked[-1]
    equal = [one for one in changes if (one.tool, one.arguments) == (newest.name, newest.arguments)]
    if not equal:
        return
    session, arguments = run.session, plain(newest.arguments)
    times = sum((one.name, one.arguments) == (newest.name, newest.arguments) for one in asked)
    named = digest(session.salt, json.dumps(arguments, sort_keys=True))
    key = f"{newest.name}{_AGAIN}:{named}:{len(equal) - 1 + times}"
    if key in session.state.approved:
        return
    how = "was made before" if equal[-1].ended else "was asked for before, and may have been made"
    text = f"{equal[-1].text} {how}, and the model asks for it once more. May it be made again?"
    effect = Effect.UNKNOWN.value
    question = Question(key, newest.name, effect, arguments, text, doubt=False, kind=APPROVAL)
    ask(run, question)


def approved_again(session: Session) -> str | None:
    """Return the hint for a model that a person has just allowed to repeat a change; None otherwise."""
    for event in reversed(session.events):
        if isinstance(event, ApprovalGiven) and is_held(event.subject):
            tool = event.subject.rsplit(":", 2)[0].removesuffix(_AGAIN)
            hint = f"A person has approved that {tool} is called once more: call it."
            return hint if event.decision == "approved" else None
        if isinstance(event, AttemptFailed):
            return None
    return None


def is_held(subject: str) -> bool:
    """Whether a question is about an answer that `hold_back` stopped."""
    return subject.rsplit(":", 2)[0].endswith(_AGAIN)
