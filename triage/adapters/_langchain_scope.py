"""One attempt of a wrapped agent as LangChain's calls find it, in whatever task or thread they are made."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from triage._capture import not_attempted
from triage._recorder import current
from triage.taxonomy import Effect
from triage.traces._values import content_text

from ._langchain_messages import ANSWER, Conversation, last_turn, result_form, said_in
from .base import Seam, is_tool


class Scope:
    """One attempt of a wrapped agent, as LangChain's calls find it.

    known: ids of the tool calls whose results the agent begins with.
    """

    def __init__(self, seam: Seam, known: Iterable[str] = ()) -> None:
        self.seam = seam
        self._known = set(known)
        self._hidden: dict[tuple[Any, ...], frozenset[Any]] = {}
        self._conversations: dict[str, Conversation] = {}
        self._lock = Lock()

    # Models -------------------------------------------------------------------------------------

    def asking(
        self, model: Any, messages: Sequence[BaseMessage], options: Mapping[str, Any], stop: Any
    ) -> Asking:
        """A model call that is to be made, its messages repaired; what never ran is noted first."""
        turn = last_turn(messages)
        self._note_refused(messages, turn)
        name = getattr(model, "model_name", None) or getattr(model, "model", None)
        who = place()
        node, _, number = who.partition("#")
        branch = node + number.partition(".")[2]
        with self._lock:
            conversation = self._conversations.setdefault(branch, Conversation())
            given, request = conversation.request(messages, options, stop)
        if given is not messages:
            turn = last_turn(given)
        words = {
            "form": ANSWER,
            "request": request,
            "said": said_in(given[turn + 1 :]),
            "model": name if isinstance(name, str) else "",
            "who": who,
        }
        return Asking(given, words)

    def _note_refused(self, messages: Sequence[BaseMessage], at: int) -> None:
        """Calls that the agent answered with an error itself: an unknown tool, a call not allowed.

        at: where the model's last turn stands.
        """
        if at < 0:
            return
        for result in messages[at + 1 :]:
            if not isinstance(result, ToolMessage) or result.status != "error":
                continue
            id_ = result.tool_call_id
            call = None if id_ in self._known else _call_of(messages[at], id_)
            if call is not None:
                self._known.add(id_)
                self.seam.refused(call["name"] or "?", call["args"], content_text(result.content))

    # Tools --------------------------------------------------------------------------------------

    def using(self, tool: BaseTool, given: Any, call: str | None) -> dict[str, Any]:
        """The seam's words for a tool call."""
        if call is not None:
            self._known.add(call)
        return {
            "name": tool.name,
            "arguments": self._shown(tool, given),
            "id": call or place() or None,
            "effect": _effect_of(tool) if tool.metadata else None,
            "form": None if call is None else result_form(tool.name, call),
            "function": getattr(tool, "coroutine", None) or getattr(tool, "func", None),
        }

    def judge(self, error: Exception, words: dict[str, Any]) -> None:
        """Say of an error that the tool's body has not run, or not to its end, where that is so."""
        if _is_signal(error):
            not_attempted(error)
        elif _is_misfit(error):
            not_attempted(error)
            if is_tool(words["function"]):  # it was not reached, and has recorded nothing
                kind = type(error).__name__
                self.seam.refused(words["name"], words["arguments"], str(error), kind=kind)

    def _shown(self, tool: BaseTool, given: Any) -> Any:
        """The arguments as the model gave them, without what the agent has put in beside them."""
        if not isinstance(given, dict):
            return given
        key = (id(tool), *given)
        hidden = self._hidden.get(key)
        if hidden is None:
            shown = tool._filter_injected_args(given)  # noqa: SLF001 - as LangChain's own callbacks are told
            hidden = self._hidden[key] = frozenset(given) - frozenset(shown)
        if not hidden:
            return given.copy()  # LangChain puts more in
        return {name: value for name, value in given.items() if name not in hidden}


class Asking(NamedTuple):
    """A model call that is to be made. messages: what is sent. words: as the seam is told."""

    messages: Sequence[BaseMessage]
    words: dict[str, Any]


_SIGNAL = "langgraph.errors.GraphBubbleUp"
_FITTING = BaseTool._to_args_and_kwargs.__code__  # noqa: SLF001 - where arguments are looked at, not the body
_scope: ContextVar[Scope | None] = ContextVar("triage_langchain", default=None)


class Within:
    """Have the calls of this code, and of tasks and threads it starts, belong to an attempt, or to none."""

    __slots__ = ("_before", "_scope")

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._before = _scope.set(self._scope)

    def __exit__(self, kind: object, error: object, where: object) -> None:
        _scope.reset(self._before)


def active() -> Scope | None:
    """The attempt that this code belongs to, None outside of any."""
    scope = _scope.get()
    if scope is None:
        return None
    run = current.get()
    # A run inside this one, of a function that is none of ours, keeps its own journal.
    if run is not None and run.session is not scope.seam.run.session:
        return None
    return scope


def place() -> str:
    """Where in a graph this code runs, the same each time: nodes from the outside in, and the step.

    `model#3`, or `research/model#1` inside of a subgraph; empty outside of any graph.
    """
    config = var_child_runnable_config.get()
    about = None if config is None else config.get("metadata")
    names = about.get("langgraph_checkpoint_ns") if about else None
    if not about or not isinstance(names, str):
        return ""
    nodes = "/".join([part.partition(":")[0] for part in names.split("|")])
    sent = [f".{part}" for part in about.get("langgraph_path") or () if type(part) is int]
    several = "".join(sent)
    return f"{nodes}#{about.get('langgraph_step')}{several}"


def _call_of(turn: BaseMessage, id_: str) -> Mapping[str, Any] | None:
    """The call with that id that a model's turn asks for, also one that cannot be read."""
    assert isinstance(turn, AIMessage)
    calls = (*turn.tool_calls, *turn.invalid_tool_calls)
    return next((call for call in calls if call["id"] == id_), None)


def _effect_of(tool: BaseTool) -> Effect | None:
    """What a tool of an MCP server says of itself."""
    hints = tool.metadata or {}
    if hints.get("readOnlyHint") is True:
        return Effect.READ
    return Effect.IDEMPOTENT if hints.get("idempotentHint") is True else None


def _is_signal(error: Exception) -> bool:
    """Whether a graph raised it to control itself: an interrupt, a command to its parent."""
    return any(f"{k.__module__}.{k.__name__}" == _SIGNAL for k in type(error).__mro__)


def _is_misfit(error: Exception) -> bool:
    """Whether it says that a tool's arguments do not fit."""
    if not isinstance(error, ValidationError):
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _FITTING for frame, _ in frames)
