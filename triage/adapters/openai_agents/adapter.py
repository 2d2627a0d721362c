"""The adapter: one attempt of an agent, to its end or to an approval that it waits for; how the SDK's runs
and tools find the attempt they are part of; and the sessions that it may write to.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from threading import Lock, get_ident
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import anyio

from triage.adapters.extras import missing

try:
    import agents
except ImportError as error:
    raise missing("openai-agents", error) from error

import openai
from agents.agent import AgentBase
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.memory import Session
from agents.memory import is_openai_responses_compaction_aware_session as compacts_itself
from agents.memory.session_settings import resolve_session_limit
from agents.models._openai_shared import get_default_openai_client
from agents.run_internal import run_loop
from agents.tool import resolve_function_tool_failure_error_function
from pydantic import BaseModel

from triage.adapters.base import Adapter, NoSuchModel, Seam, SoftFailure
from triage.adapters.calls import Form, within
from triage.adapters.conversations import repaired
from triage.adapters.replacing import Scopes, replace_method
from triage.adapters.tools import refusal_of
from triage.core.capture import hint, not_attempted
from triage.core.errors import UsageError
from triage.core.json_values import plain
from triage.core.messages.neutral import ENDINGS, Asked
from triage.core.messages.reading import arguments, as_text
from triage.core.messages.responses import RESPONSES
from triage.core.state import label_of
from triage.core.taxonomy import UNSAFE, Category, Cause, Effect, FailureType
from triage.engine.calls import Run
from triage.engine.models import judging
from triage.engine.tools import shown
from triage.strategies.layers import RetryLayer

from .model import SeamModel


class _Paused(Exception):
    """An agent used as a tool waits for an approval."""


_Called: TypeAlias = agents.FunctionTool | agents.CustomTool
_lock = Lock()
_PASSES = "__triage_passes__"
"""Attribute of a tool's function that already passes its calls through the current scope."""


class Scope:
    """One attempt of a wrapped agent.

    failed: the errors of tool calls that the model was told about, by the calls' ids. unfinished: those
    that came after an effect of the call, by the tools' names. again: one of them whose tool was called
    again. It ends the attempt: the next one finishes the first call without repeating the effect. thread:
    that of the attempt's event loop.
    """

    def __init__(self, seam: Seam) -> None:
        self.seam = seam
        self.failed: dict[str, BaseException] = {}
        self.unfinished: dict[str, Exception] = {}
        self.again: Exception | None = None
        self.working: set[asyncio.Future[Any]] = set()
        self._models: dict[Any, SeamModel] = {}
        self.thread = get_ident()
        self._cancelled = self._cancellations()

    def resolved(self, original: Callable[..., Any], agent: Any, config: agents.RunConfig) -> Any:
        """A model that the runner asks next, or its settings. original: finds them. Raises NoSuchModel."""
        if self.again is not None:
            raise self.again
        chosen = agent.model if config.model is None else config.model
        name = self.seam.other_model
        by_name = None if isinstance(chosen, agents.Model) else name
        try:
            found = original(agent, config if by_name is None else replace(config, model=by_name))
        except Exception as error:
            if by_name is None:
                raise
            raise NoSuchModel(by_name, f"the run's model_provider has none: {error}") from error
        if not isinstance(found, agents.Model):
            return found
        is_known = within() or agent.name == self.seam.adapter.target.name
        who = "" if is_known else agent.name
        key = id(found), who, name
        if key not in self._models:
            model = found if name is None or by_name else _renamed(found, name)
            self._models[key] = SeamModel(self.seam, model, who)
        return self._models[key]

    async def call(self, tool: _Called, inner: Callable[..., Any], ctx: Any, given: Any) -> Any:
        """Make a tool call through the seam. inner: the tool's own function."""
        if ctx.tool_name in self.unfinished:
            self.again = self.unfinished[ctx.tool_name]
            raise self.again
        label = ""

        async def do() -> Any:
            nonlocal label
            label = within()
            try:
                work = inner(ctx, given)
                if getattr(tool.on_invoke_tool, "__agents_sync_function_tool__", False):
                    found = await self._to_its_end(work)
                else:
                    found = await work if inspect.isawaitable(work) else work
            except agents.ModelBehaviorError as error:
                if str(error).startswith(f"Invalid JSON input for tool {ctx.tool_name}"):
                    _note_misfit(tool, ctx, given, error)
                raise
            if _is_paused(tool, ctx):
                raise not_attempted(_Paused("it waits for an approval"))
            return found

        # The model is told that a call took too long: one that ran on would have it made again.
        seconds = getattr(tool, "timeout_seconds", None)
        task = asyncio.current_task()
        assert task is not None
        self.working.add(task)
        try:
            return await self.seam.tool(
                ctx.tool_name,  # the current name, as a copy of the tool may have another
                arguments(given),
                do,
                id=ctx.tool_call_id,
                effect=_effect_of(tool, self.seam),
                form=_RESULT,
                function=getattr(tool, "__wrapped__", None),
                finishing=self.seam.adapter.finishing if seconds is None else 0.0,
            )
        except _Paused:
            return None  # as the SDK does until the agent goes on
        except (Exception, asyncio.CancelledError) as error:
            if _tells_of_errors(tool):
                late = seconds is not None and isinstance(error, asyncio.CancelledError)
                seen = (
                    TimeoutError(f"{tool.name} took longer than {seconds:g} s") if late else error
                )
                self.failed[ctx.tool_call_id] = seen
                if label and isinstance(error, Exception) and _had_effect(self.seam.run, label):
                    self.unfinished[ctx.tool_name] = error
            raise
        finally:
            self.working.discard(task)

    async def _to_its_end(self, work: Any) -> Any:
        """Await a call in a thread, which cannot be stopped, even if this code is cancelled."""
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            attempt_cancelled = self._cancellations() > self._cancelled
            await until_done({task})
            if attempt_cancelled:
                raise
            return task.result()

    def _cancellations(self) -> int:
        known = self.seam.run.cancellations
        return 0 if known is None else known.count()


async def until_done(tasks: set[asyncio.Future[Any]]) -> None:
    """Wait for tasks even if cancelled meanwhile; the cancellation is raised when they are done."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while waiting := {task for task in tasks if not task.done()}:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _note_misfit(tool: Any, ctx: Any, given: Any, error: agents.ModelBehaviorError) -> None:
    """Have the model told what is wrong with arguments that kept the tool from running."""
    not_attempted(error)
    tools = {tool.name: getattr(tool, "params_json_schema", None)}
    refusal = refusal_of(Asked(ctx.tool_call_id, tool.name, given), tools)
    what = "they have not the form that it takes" if refusal is None else refusal.text
    text = f"The tool was not called: its arguments do not fit. {what}"
    kind, cause = FailureType.SCHEMA_MISMATCH, Cause.INVALID_ARGUMENTS
    hint(error, failure_type=kind, cause=cause, hint=f"{tool.name}: {text}")
    config = ctx.run_config or agents.RunConfig()
    if config.tool_error_formatter is None:
        ctx.run_config = replace(config, tool_error_formatter=lambda _given: text)


def _is_paused(tool: Any, ctx: Any) -> bool:
    """Whether this call of an agent used as a tool waits for an approval inside."""
    call = getattr(ctx, "tool_call", None)
    if call is None or not getattr(tool, "_is_agent_tool", False):
        return False
    result = peek_agent_tool_run_result(call, scope_id=get_agent_tool_state_scope(ctx))
    return result is not None and bool(result.interruptions)


def _pass_through_scope(tool: agents.Tool) -> None:
    """Make a tool's calls pass through whatever scope is current when they are made."""
    if not isinstance(tool, agents.FunctionTool | agents.CustomTool):
        return
    with _lock:
        holder: Any = tool
        name = "on_invoke_tool"
        # The SDK's error handling stays outside, so that the call's own error is seen.
        if hasattr(tool.on_invoke_tool, "__agents_bind_function_tool__"):
            holder, name = tool.on_invoke_tool, "_invoke_tool_impl"  # it has no other place
        inner = getattr(holder, name)
        if not getattr(inner, _PASSES, False):
            setattr(holder, name, _passing(tool, inner))


def _passing(tool: _Called, inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    async def invoke(ctx: Any, given: Any) -> Any:
        scope = active()
        if scope is not None:
            return await scope.call(tool, inner, ctx, given)
        found = inner(ctx, given)
        return await found if inspect.isawaitable(found) else found

    setattr(invoke, _PASSES, True)
    return invoke


def _tells_of_errors(tool: _Called) -> bool:
    """Whether the SDK itself tells the model about an error of this tool."""
    if not isinstance(tool, agents.FunctionTool):
        return False
    return resolve_function_tool_failure_error_function(tool) is agents.default_tool_error_function


def _had_effect(run: Run, label: str) -> bool:
    """Whether a call with this label had an effect, by calls that it made."""
    inside = [call for call in run.session.state.calls.values() if call.within == label]
    return any(
        (call.effect in UNSAFE and call.outcome == "done" and not call.undone)
        or _had_effect(run, label_of(call.tool, call.idempotency_key))
        for call in inside
    )


def _effect_of(tool: _Called, seam: Seam) -> Effect | None:
    """The effect that an MCP server declares; READ for an agent as a tool, whose calls are recorded."""
    if getattr(tool, "_is_agent_tool", False):
        return Effect.READ
    return seam.adapter.hinted(tool.name, getattr(tool, "mcp_annotations", None))


def _dump_result(value: Any) -> Any:
    """JSON that reads the same to the model as the value would."""
    if isinstance(value, list):
        return [_dump_result(item) for item in value]
    if isinstance(value, BaseModel) and type(value).__module__ == "agents.tool":
        return value.model_dump(mode="json", warnings=False, exclude_none=True)
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)


_RESULT = Form(_dump_result)
_SCOPES = Scopes[Scope]("openai_agents", lambda scope: scope.seam.run)


@asynccontextmanager
async def entered(seam: Seam) -> AsyncGenerator[Scope]:
    """Make the agents that this code, its tasks and its threads run pass through a seam."""
    replace_method(run_loop, "get_model", _resolving)
    replace_method(run_loop, "get_model_settings", _resolving)
    replace_method(AgentBase, "get_all_tools", _get_all_tools)
    replace_method(agents.InputGuardrail, "run", _judges)
    replace_method(agents.OutputGuardrail, "run", _judges)
    scope = Scope(seam)
    try:
        with _SCOPES.entered(scope):
            yield scope
    finally:
        await until_done(scope.working)


def active() -> Scope | None:
    """The attempt that this code belongs to; None outside an attempt."""
    scope = _SCOPES.active()
    # Code in a thread with an event loop of its own is part of the tool that started it.
    if scope is None or scope.seam.run.over or scope.thread != get_ident():
        return None
    return scope


def _resolving(original: Any) -> Any:
    def resolve(agent: Any, config: agents.RunConfig) -> Any:
        scope = active()
        return original(agent, config) if scope is None else scope.resolved(original, agent, config)

    return resolve


def _renamed(model: agents.Model, name: str) -> agents.Model:
    """The same model with another name: of its class, with its client."""
    if not isinstance(getattr(model, "model", None), str):
        why = f"{type(model).__name__} has no attribute `model` that could be another; give the agent its"
        raise NoSuchModel(name, f"{why} model by name, so that RunConfig.model_provider makes it")
    renamed: Any = copy.copy(model)
    renamed.model = name
    return cast("agents.Model", renamed)


def _get_all_tools(original: Any) -> Any:
    async def get_all_tools(self: Any, run_context: Any) -> list[agents.Tool]:
        found: list[agents.Tool] = await original(self, run_context)
        if active() is not None:
            for tool in found:
                _pass_through_scope(tool)
        return found

    return get_all_tools


def _judges(original: Any) -> Any:
    """A guardrail judges: what its verdict is about is asked anew, not the verdict."""

    async def run(self: Any, *args: Any, **options: Any) -> Any:
        with nullcontext() if active() is None else judging():
            return await original(self, *args, **options)

    return run


# Sessions that are written to only when an attempt has succeeded, or the run has ended ------------


_ALL = 1_000_000
"""A limit above any session's length, since the session's own settings may name a lower one."""


class _Known:
    """A run's view of a session. before: its items at first. written: what the run has added."""

    def __init__(self, before: list[Any]) -> None:
        self.before = before
        self.written: list[Any] = []


_KNOWN: WeakKeyDictionary[object, dict[int, _Known]] = WeakKeyDictionary()


class HeldSession(Session):
    """A session as one attempt sees it; only `keep` writes its additions to the real one.

    After a failed attempt the next one starts from the original items; if the run ends with it, its
    conversation is kept. A session whose methods take the run's context (`wrapper`), as some do to keep
    tenants apart, receives it.

    closing: give each call without an output one, as the SDK would drop the call and the model would not
    know of it. False where the attempt goes on with such a call.
    """

    def __init__(self, run: Run, session: Session, *, closing: bool) -> None:
        self._session = session
        self._closing = closing
        self._of_run = _KNOWN.setdefault(run.session, {})
        self._items: list[Any] | None = None
        methods = (session.get_items, session.add_items, session.pop_item, session.clear_session)
        self._takes_context = all(_takes(method, "wrapper") for method in methods)
        self._context: dict[str, Any] = {}
        self.session_id = session.session_id
        self.session_settings = session.session_settings

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
        items = await self._all(wrapper)
        most = resolve_session_limit(limit, self.session_settings)
        if most is None:
            return list(items)
        return items[-most:] if most > 0 else []

    async def add_items(self, items: list[Any], *, wrapper: Any = None) -> None:
        mine = await self._all(wrapper)
        mine += items

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        items = await self._all(wrapper)
        return items.pop() if items else None

    async def clear_session(self, *, wrapper: Any = None) -> None:
        (await self._all(wrapper)).clear()

    async def keep(self) -> None:
        """Write the conversation to the real session, replacing what this run wrote before."""
        if self._items is None:
            return
        known = self._of_run[id(self._session)]
        there = await self._read()
        if known.written and there[-len(known.written) :] == known.written:
            await self._take_back(len(known.written))
        same = _common(known.before, self._items)
        await self._take_back(len(known.before) - same)
        known.written = self._items[same:]
        if known.written:
            await self._session.add_items(list(known.written), **self._context)

    async def _take_back(self, count: int) -> None:
        for _ in range(count):
            await self._session.pop_item(**self._context)

    async def _read(self) -> list[Any]:
        """All items of the real session."""
        limit = {"limit": _ALL} if _takes(self._session.get_items, "limit") else {}
        return list(await self._session.get_items(**limit, **self._context))

    async def _all(self, context: Any) -> list[Any]:
        if context is not None and self._takes_context:
            self._context = {"wrapper": context}
        if self._items is None:
            known = self._of_run.get(id(self._session))
            if known is None:
                known = _Known(await self._read())
                self._of_run[id(self._session)] = known
            self._items = list(
                repaired(RESPONSES, known.before).messages if self._closing else known.before
            )
        return self._items


def _takes(method: Callable[..., Any], name: str) -> bool:
    """Whether a method takes an argument of this name."""
    try:
        return name in inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the common prefix of two lists."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


# The adapter --------------------------------------------------------------------------------------

_OPTIONS = frozenset(inspect.signature(agents.Runner.run).parameters) - {"starting_agent", "input"}
_OF_A_STATE = {"previous_response_id", "conversation_id", "auto_previous_response_id"}
"""Options that a `RunState` brings along."""


def _kept(kind: type) -> type:
    """A class of results of which the journal stores the output only, not agents or the user's context."""
    fields = {"final_output": kind.__dict__["__dataclass_fields__"]["final_output"]}
    return type(kind.__name__, (kind,), {"__dataclass_fields__": fields, "__module__": __name__})


_KEPT = {kind: _kept(kind) for kind in (agents.RunResult, agents.RunResultStreaming)}


class OpenAIAgentsAdapter(Adapter):
    """Run an agent: `run(input, **options)` is `Runner.run(agent, input, **options)`.

    input: a text, a list of items, or a `RunState` to go on from. on_event: called with each event of
    `Runner.run_streamed`, which is used then; it may be async.

    A tool that needs approval suspends the run, once per call. `Agent.resume(token, approve())` calls the
    tool; after `reject(reason)` the conversation goes on with another plan; `happened(result)` gives the
    model a result without a call.
    """

    name = "openai-agents"
    asyncio_only = True
    validates = True
    on_wire = True

    async def attempt(
        self, seam: Seam, task: Any, *, on_event: Callable[[Any], Any] | None = None, **options: Any
    ) -> Any:
        """Run the agent from its input to its end, or to an approval that is still missing."""
        unknown = ", ".join(sorted(options.keys() - _OPTIONS))
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise UsageError(f"Runner.run takes no {unknown}; its options are: on_event, {known}")
        session = options.get("session")
        # The SDK itself writes what the provider stores.
        is_theirs = isinstance(session, agents.OpenAIConversationsSession)
        if not (session is None or is_theirs or compacts_itself(session)):
            closing = not isinstance(task, agents.RunState)
            session = options["session"] = HeldSession(seam.run, session, closing=closing)
            seam.at_failure(f"session {session.session_id}", session.keep)
        async with entered(seam) as scope:
            handlers = options.get("error_handlers")
            handled: list[str] = []
            if isinstance(handlers, Mapping):
                options["error_handlers"] = {
                    kind: _heard(kind, handler, handled) for kind, handler in handlers.items()
                }
            result = await self._run(task, options, on_event)
            while result.interruptions:
                state = result.to_state()
                decide(seam, state, result.interruptions)
                more = {name: value for name, value in options.items() if name not in _OF_A_STATE}
                result = await self._run(state, more, on_event)
        failure = _handed_on(scope, result)
        if handled:
            seam.decided("error_handler", {"error": handled[-1]}, result.final_output)
        elif failure is not None:
            raise SoftFailure("the result is the error of the last tool call") from failure
        if isinstance(session, HeldSession):
            await session.keep()
        kind = _KEPT.get(type(result))
        if kind is not None:
            result.__class__ = kind
        return result

    async def _run(
        self, given: Any, options: dict[str, Any], on_event: Callable[[Any], Any] | None
    ) -> Any:
        if on_event is None:
            return await agents.Runner.run(self.target, given, **options)
        result = agents.Runner.run_streamed(self.target, given, **options)
        try:
            async for event in result.stream_events():
                told = on_event(event)
                if inspect.isawaitable(told):
                    await told
        finally:
            running = result.run_loop_task
            if running is not None and not running.done():
                running.cancel()
                await until_done({running})
        return result

    def clients(self) -> Iterable[object]:
        """The agents' models, and the default client for models given by name."""
        models = [agent.model for agent in agents_of(self.target)]
        given = get_default_openai_client()
        return [given if not isinstance(model, agents.Model) else model for model in models]

    def layers(self) -> Iterable[RetryLayer]:
        """The SDK's own retries."""
        known = list(agents_of(self.target))
        for one in known:
            retry = one.model_settings.retry
            if retry is not None and retry.max_retries:
                where = f"agents.ModelSettings.retry of {one.name!r}"
                yield RetryLayer(where, retry.max_retries, "leave it out")
        named_only = any(not isinstance(one.model, agents.Model) for one in known)
        if named_only and get_default_openai_client() is None:
            remedy = "give agents.set_default_openai_client() one with max_retries=0"
            yield RetryLayer("the client that agents makes", openai.DEFAULT_MAX_RETRIES, remedy)

    def answer(self, result: Any) -> Any:
        return result.final_output

    def explain(self, error: Exception) -> None:
        """Read what went wrong from the messages of two classes, and from a guardrail's output."""
        ruled: Any = getattr(error, "guardrail_result", error)
        info = getattr(getattr(ruled, "output", None), "output_info", None)
        if isinstance(error, agents.AgentsException) and info not in (None, ""):
            hint(
                error,
                hint=f"A guardrail refused this: {shown(plain(info))}. Do the task without it.",
            )
        if isinstance(error, agents.ModelBehaviorError):
            text = str(error)
            if text.startswith("Tool ") and " not found" in text:
                hint(error, failure_type=FailureType.WRONG_TOOL_CALLED, cause=Cause.UNKNOWN_TOOL)
            elif "event `response.incomplete`" in text:
                filtered = "content_filter" in text
                of = "ContentFilterFinishReasonError" if filtered else "LengthFinishReasonError"
                failure_type, cause = ENDINGS[of]
                hint(error, failure_type=failure_type, cause=cause)
        elif isinstance(error, agents.UserError) and error.__cause__ is None:
            hint(error, category=Category.CONFIGURATION)


def _heard(kind: str, handler: Any, handled: list[str]) -> Any:
    """A user's error handler that notes its kind in `handled` when it makes the final output."""

    @functools.wraps(handler)
    async def handle(found: Any) -> Any:
        made = handler(found)
        made = await made if inspect.isawaitable(made) else made
        if made is not None:
            handled.append(kind)
        return made

    return handle if callable(handler) else handler


def _handed_on(scope: Scope, result: Any) -> BaseException | None:
    """The last tool call's error, where its message for the model became the result."""
    last = next(
        (one for one in reversed(result.new_items) if isinstance(one, agents.ToolCallOutputItem)),
        None,
    )
    if last is None or last.output != result.final_output:
        return None
    return scope.failed.get(last.call_id or "")


def agents_of(agent: agents.Agent[Any]) -> Iterator[agents.Agent[Any]]:
    """An agent and all agents it reaches by handoffs and as tools."""
    waiting, seen = [agent], set[int]()
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        held = [
            _target_of(one) if isinstance(one, agents.Handoff) else one for one in found.handoffs
        ]
        held += [getattr(tool, "_agent_instance", None) for tool in found.tools]
        waiting += [one for one in held if isinstance(one, agents.Agent)]


def _target_of(handoff: agents.Handoff[Any, Any]) -> Any:
    kept = handoff._agent_ref  # a handoff does not say it otherwise
    return None if kept is None else kept()


def decide(
    seam: Seam, state: agents.RunState[Any], items: Sequence[agents.ToolApprovalItem]
) -> None:
    """Apply a person's decision to each of these calls, or ask about the first one without a decision.

    An approved call is made. A call that happened elsewhere, according to a journal of 0.1.0, is not: the
    model is told its result.
    """
    for item in items:
        name = item.qualified_name or item.name or "tool"
        given = arguments(item.arguments)
        said = seam.ask_person(name, f"approval {_id(item)}", arguments=given, leave=True)
        if said.decision == "answered":
            state.reject(item, rejection_message=as_text(said.value))
        elif said.decision == "rejected":
            state.reject(item, rejection_message=said.told)
            seam.refused(name, given, said.told, id=_id(item))
        else:
            state.approve(item)


def _id(item: agents.ToolApprovalItem) -> str:
    raw: Any = item.raw_item
    return str(item.call_id or (raw.get("id") if isinstance(raw, dict) else raw.id))
