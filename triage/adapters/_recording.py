"""Model and tool calls of a framework as recorded calls, as each of them looks in the journal.

A model call is matched by its place, and its step names no tool: what the model said, which calls it
asked for, what it used. `_Seen` is the attempt's own handle with other words for the step; `_Course`
knows the model calls of the attempt before.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from triage._drivers import _drive, call_sync
from triage._plain import plain
from triage._recorded import Begun, Reused, begin, fail, finish
from triage._recorder import Recorder, current
from triage._run import Run
from triage._tally import LINE, Tally, _Prefix, _steps_before, reusable
from triage._tool import Tool
from triage.steps import Step
from triage.taxonomy import UNSAFE, Effect
from triage.traces._talk import ending_of

from ._forms import Form

AsStep = Callable[[Step], Step]
MODEL = "model"
"""In the metadata of a step: the model that was asked. In its action: that it is a model's."""


class ModelCall(NamedTuple):
    """A model call that is to be made.

    name: whose it is (`openai`), with the sub-agent's name where there is one; calls are counted by
    it. model: which model. said: what is new in the request, as JSON, for the step. key: digest of the
    whole request, without the hint. form: how the answer is written down and read back.
    """

    name: str
    model: str
    said: Any
    key: str
    form: Form


class ToolCall(NamedTuple):
    """A tool call that is to be made. id: the model's own id of it, None without one."""

    name: str
    arguments: Any
    effect: Effect | str = Effect.UNKNOWN
    id: str | None = None
    form: Form | None = None


def key_of(request: Any) -> str:
    """The digest of a request: equal requests, equal text."""
    text = json.dumps(plain(request), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# Steps --------------------------------------------------------------------------------------------


class _Seen(Run):
    """The handle of the same attempt, whose next step is written in other words."""

    __slots__ = ("_as_step",)
    _as_step: AsStep

    def record_call_step(self, step: Step) -> int:
        return super().record_call_step(self._as_step(step))


class _Asking(_Seen):
    """A handle for a model call, which is no tool call: the limits on those leave it alone."""

    __slots__ = ()

    def check_call(self, tool: str) -> None:
        """Nothing to check."""


def _seen(run: Recorder, as_step: AsStep, kind: type[_Seen] = _Seen) -> _Seen:
    view = object.__new__(kind)
    view.__dict__ = run.__dict__  # nothing of its own but the words
    view._as_step = as_step
    return view


def _model_step(call: ModelCall) -> AsStep:
    def as_step(step: Step) -> Step:
        metadata = {**(step.metadata or {}), MODEL: call.model}
        base = step._replace(
            action=MODEL, tool_called=None, tool_input=call.said, effect=None, metadata=metadata
        )
        if step.error is not None or step.tool_output is None:
            return base
        answer = call.form.read(step.tool_output)
        asked = [{"tool": asked.name, "arguments": asked.arguments} for asked in answer.calls]
        ending = ending_of(answer.ended)
        if asked and answer.text:
            metadata["said"] = answer.text
        return base._replace(
            # Without the ids, which are new each time: a loop must look like one.
            tool_output=asked or None,
            # Words beside a call are no turn of words.
            llm_output=None if asked else answer.text or "",
            error=None if ending is None else ending.message,
            exception_type=None if ending is None else ending.type_name,
            usage=answer.usage,
        )

    return as_step


def _tool_step(call: ToolCall) -> AsStep:
    def as_step(step: Step) -> Step:
        if call.id is not None:
            step = step._replace(metadata={**(step.metadata or {}), "id": call.id})
        failed = None if call.form is None or step.error else call.form.failed(step.tool_output)
        if failed is not None:
            return step._replace(tool_output=None, error=failed.text, exception_type=failed.kind)
        return step

    return as_step


class _Told(Exception):
    """A tool that may be called again answered with an error: to the engine, it failed."""


def _answer(call: ToolCall, value: Any) -> Any:
    """What a tool gave, as JSON. An unsafe tool's error is its answer, and never asked for again."""
    if call.form is None:
        return value
    data = plain(call.form.dump(value))
    failed = None if Effect(call.effect) in UNSAFE else call.form.failed(data)
    if failed is not None:
        raise type(failed.kind or "ToolError", (_Told,), {})(failed.text)
    return data


# The tools of the engine ----------------------------------------------------------------------------


def _model_tool(call: ModelCall, body: Callable[..., Any]) -> Tool:
    return Tool(body, effect=Effect.READ, match="position", name=call.name, key=lambda: call.key)


def _framework_tool(call: ToolCall, body: Callable[..., Any], given: Mapping[str, Any]) -> Tool:
    tool = Tool(body, effect=call.effect, name=call.name)
    keyword = inspect.Parameter.KEYWORD_ONLY
    tool.signature = inspect.Signature([inspect.Parameter(name, keyword) for name in given])
    return tool


def _named(arguments: Any) -> dict[str, Any]:
    """A call's arguments by name, as JSON."""
    found = plain(arguments)
    if isinstance(found, dict) and all(name.isidentifier() for name in found):
        return found
    return {} if found is None else {"arguments": found}


# Calling --------------------------------------------------------------------------------------------


async def call_model(run: Run, call: ModelCall, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask a model, recorded: its answer, from the journal where it is known already."""
    _take_course(run)
    made: list[Any] = []

    async def body(model: str, said: Any) -> Any:  # noqa: ARG001 - as the journal shows them
        with _inside(run):
            made.append(await ask())
        return plain(call.form.dump(made[0]))

    tool = _model_tool(call, body)
    known = await _drive(_seen(run, _model_step(call), _Asking), tool, (call.model, call.said), {})
    return made[0] if made else call.form.load(known)


def call_model_sync(run: Run, call: ModelCall, ask: Callable[[], Any]) -> Any:
    """`call_model` for sync code."""
    _take_course(run)
    made: list[Any] = []

    def body(model: str, said: Any) -> Any:  # noqa: ARG001 - as the journal shows them
        with _inside(run):
            made.append(ask())
        return plain(call.form.dump(made[0]))

    tool = _model_tool(call, body)
    known = _call_sync(_seen(run, _model_step(call), _Asking), tool, (call.model, call.said), {})
    return made[0] if made else call.form.load(known)


class Streamed:
    """A model call whose answer comes in pieces. known: the recorded answer, None if it is to run."""

    def __init__(self, run: Run, call: ModelCall) -> None:
        _take_course(run)
        self._run = _seen(run, _model_step(call), _Asking)
        self._form = call.form

        def body(model: str, said: Any) -> None:
            """Never called: the call is begun and ended here."""

        begun = begin(self._run, _model_tool(call, body), (call.model, call.said), {})
        assert not isinstance(begun, tuple) or isinstance(begun, Reused)
        self.known: Any = begun.result if isinstance(begun, Reused) else None
        self._begun = begun if isinstance(begun, Begun) else None
        if self._begun is not None:
            self._begun.idle = False

    def done(self, answer: Any) -> None:
        """All of it has come: the answer, as JSON."""
        begun, self._begun = self._begun, None
        if begun is not None:
            finish(self._run, begun, answer)

    async def durable(self) -> None:
        """Wait until what was recorded is stored, where a store keeps the run."""
        session = self._run.session
        if session.durable and not self._run.over:
            await session.barrier()

    def failed(self, error: BaseException) -> None:
        """It broke off."""
        begun, self._begun = self._begun, None
        if begun is not None:
            fail(self._run, begun, error)


async def call_tool(run: Run, call: ToolCall, do: Callable[[], Awaitable[Any]]) -> Any:
    """Call a framework's tool, recorded: its result, from the journal where it must not run again."""
    given = _named(call.arguments)
    made: list[Any] = []

    async def body(**arguments: Any) -> Any:  # noqa: ARG001 - the framework has its own
        with _inside(run):
            made.append(await do())
        return _answer(call, made[0])

    tool = _framework_tool(call, body, given)
    try:
        known = await _drive(_seen(run, _tool_step(call)), tool, (), given)
    except _Told:
        return made[0]
    if made or call.form is None:
        return made[0] if made else known
    return call.form.load(known)


def call_tool_sync(run: Run, call: ToolCall, do: Callable[[], Any]) -> Any:
    """`call_tool` for sync code."""
    given = _named(call.arguments)
    made: list[Any] = []

    def body(**arguments: Any) -> Any:  # noqa: ARG001 - the framework has its own
        with _inside(run):
            made.append(do())
        return _answer(call, made[0])

    tool = _framework_tool(call, body, given)
    try:
        known = _call_sync(_seen(run, _tool_step(call)), tool, (), given)
    except _Told:
        return made[0]
    if made or call.form is None:
        return made[0] if made else known
    return call.form.load(known)


@contextmanager
def _inside(run: Run) -> Generator[None]:
    """What a call's body records by itself is written in its own words."""
    token = current.set(run)
    try:
        yield
    finally:
        current.reset(token)


def _call_sync(run: Run, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    token = current.set(run)
    try:
        return call_sync(tool, args, kwargs)
    finally:
        current.reset(token)


# The course of the attempt before -------------------------------------------------------------------


class _Course(Tally):
    """A tally that also knows the model calls of the attempt before, whose steps name no tool."""

    __slots__ = ()

    def __init__(self, run: Recorder, before: Tally | None) -> None:
        super().__init__(run)
        if before is not None:
            self.update(before)
        if before is not None and _has_run(run):
            self._waiting.clear()
            return
        self._waiting.clear()
        for name, key, line in _calls_before(run):
            self._waiting.setdefault(name, _Prefix()).add(key, line)


def _take_course(run: Recorder) -> None:
    found = run.occurrences
    if isinstance(found, _Course):
        return
    made = _Course(run, found if isinstance(found, Tally) else None)
    with run.session.lock:
        if not isinstance(run.occurrences, _Course):
            run.occurrences = made


def _has_run(run: Recorder) -> bool:
    """Whether a call of this attempt has run already, so that its course is its own."""
    kept = frozenset[str]() if run.replay is None else run.replay.kept
    metas = (step.metadata for step in run.session.state.steps if step.metadata)
    return any(
        "call" in meta and not meta.get("replayed") and meta["call"] not in kept for meta in metas
    )


def _calls_before(run: Recorder) -> list[tuple[str, str | None, int]]:
    """Name, key and line of the calls by position that this attempt would make again, in order."""
    replay, session = run.replay, run.session
    if replay is None or replay.kind == "replan" or not session.has_calls:
        return []
    state = session.state
    found: list[tuple[str, str | None, int]] = []
    ended = False
    seen: set[str] = set()
    for step in _steps_before(run, replay, state):
        metadata = step.metadata or {}
        call = state.calls.get(metadata.get("call", ""))
        if LINE not in metadata or call is None or call.key in seen:
            continue
        seen.add(call.key)
        ended = ended or not reusable(call, run)
        found.append((call.tool, None if ended else call.key, metadata[LINE]))
    return found
