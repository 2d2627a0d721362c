"""One attempt of a wrapped agent: how the SDK's runs and tools find it and pass through the seam."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
)
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from threading import Lock, get_ident
from typing import Any, NamedTuple

import anyio
from agents import (
    CustomTool,
    FunctionTool,
    ModelBehaviorError,
    RunConfig,
    Runner,
    Tool,
    ToolErrorFormatterArgs,
)
from agents.agent import AgentBase
from agents.tool import (
    default_tool_error_function,
    resolve_function_tool_failure_error_function,
)

from triage.adapters.base import Seam
from triage.adapters.scopes import Scopes, replace_method
from triage.adapters.tools import refusal_of
from triage.core import (
    Cause,
    Effect,
    FailureType,
    child_logger,
    hint,
    not_attempted,
)
from triage.core.messages.base import Asked, arguments

from .model import RESULT, SeamModel


class _Place(NamedTuple):
    """Where code runs. calls: the tool calls that contain it, outermost first, each with its id.

    results: of the agent runs that it has started.
    """

    calls: str
    results: list[Any]


class _Paused(Exception):
    """An agent used as a tool waits for an approval."""


_log = child_logger("adapters")
_lock = Lock()
_PASSES = "__triage_passes__"
"""Attribute of a tool's function that already passes its calls through the current scope."""
_place: ContextVar[_Place | None] = ContextVar("triage_openai_agents_place", default=None)


class Scope:
    """One attempt of a wrapped agent.

    failed: the errors of tool calls that the model was told about, by the calls' ids. thread: that of the
    attempt's event loop.
    """

    def __init__(self, seam: Seam) -> None:
        self.seam = seam
        self.failed: dict[str, BaseException] = {}
        self._misfits: dict[str, str] = {}
        self._working: set[asyncio.Task[Any]] = set()
        self._owned: list[Any] = []
        self._runs = 0
        self.thread = get_ident()
        self._cancelled = self._cancellations()

    def options(self, agent: Any, options: dict[str, Any]) -> dict[str, Any]:
        """The options for an agent run that begins; the first run is the wrapped agent's own."""
        self._runs += 1
        given = options.get("run_config")
        config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
        if isinstance(config.model, SeamModel):
            config = config.model.config  # a tool hands on what its own run has
        elif given is None or (isinstance(given, dict) and "model_provider" not in given):
            self._owned.append(config.model_provider)
        place = _place.get()
        inside = "" if place is None else place.calls
        if self._runs > 1 and not inside:
            inside = f"/{agent.name}"
        model = SeamModel(self.seam, config, inside)
        config = replace(
            config,
            model=model,
            call_model_input_filter=model.asked_by,
            tool_error_formatter=config.tool_error_formatter or self._told,
        )
        return {**options, "run_config": config}

    async def settle(self) -> None:
        """Wait for cancelled tools that nobody waited for; close what the SDK would have closed."""
        await until_done(self._working)
        for provider in self._owned:
            try:
                await provider.aclose()
            except Exception:
                _log.warning(
                    "a model provider that was made for a run did not close", exc_info=True
                )

    async def call(
        self, tool: FunctionTool | CustomTool, inner: Callable[..., Any], ctx: Any, given: Any
    ) -> Any:
        """Make a tool call through the seam. inner: the tool's own function."""

        async def do() -> Any:
            try:
                work = inner(ctx, given)
                if getattr(tool.on_invoke_tool, "__agents_sync_function_tool__", False):
                    found = await self._to_its_end(work)
                else:
                    found = await work if inspect.isawaitable(work) else work
            except ModelBehaviorError as error:
                if str(error).startswith(f"Invalid JSON input for tool {ctx.tool_name}"):
                    self._misfit(tool, ctx.tool_call_id, given, error)
                raise
            is_agent = getattr(tool, "_is_agent_tool", False)
            if is_agent and any(result.interruptions for result in place.results):
                raise not_attempted(_Paused("it waits for an approval"))
            return found

        around = _place.get()
        calls = f"{'' if around is None else around.calls}/{ctx.tool_name} {ctx.tool_call_id}"
        place = _Place(calls, [])
        task = asyncio.current_task()
        assert task is not None
        self._working.add(task)
        token = _place.set(place)
        try:
            return await self.seam.tool(
                ctx.tool_name,  # the current name, as a copy of the tool may have another
                arguments(given),
                do,
                id=ctx.tool_call_id,
                effect=_effect_of(tool, self.seam),
                form=RESULT,
                function=getattr(tool, "__wrapped__", None),
            )
        except _Paused:
            return None  # as the SDK does until the agent goes on
        except (Exception, asyncio.CancelledError) as error:
            if _tells_of_errors(tool):
                self.failed[ctx.tool_call_id] = _as_seen(tool, error)
            raise
        finally:
            self._working.discard(task)
            _place.reset(token)

    async def _to_its_end(self, work: Awaitable[Any]) -> Any:
        """Await a call in a thread, which cannot be stopped, even if this code is cancelled."""
        task: asyncio.Task[Any] = asyncio.create_task(_awaited(work))
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

    def _misfit(
        self, tool: FunctionTool | CustomTool, call: str, given: Any, error: ModelBehaviorError
    ) -> None:
        """Tell the model what is wrong with arguments that kept the tool from running."""
        not_attempted(error)
        hint(error, failure_type=FailureType.SCHEMA_MISMATCH, cause=Cause.INVALID_ARGUMENTS)
        tools = {tool.name: getattr(tool, "params_json_schema", None)}
        refusal = refusal_of(Asked(call, tool.name, given), tools)
        what = "they have not the form that it takes" if refusal is None else refusal.text
        self._misfits[call] = f"The tool was not called: its arguments do not fit. {what}"

    def _told(self, given: ToolErrorFormatterArgs[Any]) -> str | None:
        return self._misfits.get(given.call_id)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def until_done(tasks: set[asyncio.Task[Any]]) -> None:
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


def _pass_through_scope(tool: Tool) -> None:
    """Make a tool's calls pass through whatever scope is current when they are made."""
    if not isinstance(tool, FunctionTool | CustomTool):
        return
    with _lock:
        invoker: Any = tool.on_invoke_tool
        # The SDK's error handling stays outside, so that the call's own error is seen.
        inner: Any = getattr(invoker, "_invoke_tool_impl", None)
        if inner is None or not hasattr(invoker, "__agents_bind_function_tool__"):
            if not getattr(invoker, _PASSES, False):
                tool.on_invoke_tool = _passing(tool, invoker)
        elif not getattr(inner, _PASSES, False):
            invoker._invoke_tool_impl = _passing(tool, inner)  # it has no other place


def _passing(
    tool: FunctionTool | CustomTool, inner: Callable[..., Any]
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(inner)
    async def invoke(ctx: Any, given: Any) -> Any:
        scope = active()
        if scope is not None:
            return await scope.call(tool, inner, ctx, given)
        found = inner(ctx, given)
        return await found if inspect.isawaitable(found) else found

    setattr(invoke, _PASSES, True)
    return invoke


def _tells_of_errors(tool: FunctionTool | CustomTool) -> bool:
    """Whether the SDK itself tells the model about an error of this tool."""
    if not isinstance(tool, FunctionTool):
        return False
    return resolve_function_tool_failure_error_function(tool) is default_tool_error_function


def _as_seen(tool: FunctionTool | CustomTool, error: BaseException) -> BaseException:
    seconds = getattr(tool, "timeout_seconds", None)
    if seconds is None or not isinstance(error, asyncio.CancelledError):
        return error
    return TimeoutError(f"{tool.name} took longer than {seconds:g} s")


def _effect_of(tool: FunctionTool | CustomTool, seam: Seam) -> Effect | None:
    """The effect that an MCP server declares; READ for an agent as a tool, whose calls are recorded."""
    if getattr(tool, "_is_agent_tool", False):
        return Effect.READ
    return seam.adapter.hinted(tool.name, getattr(tool, "mcp_annotations", None))


_SCOPES = Scopes[Scope]("openai_agents", lambda scope: scope.seam.run)


@asynccontextmanager
async def entered(seam: Seam) -> AsyncGenerator[Scope]:
    """Make the agents that this code, its tasks and its threads run pass through a seam."""
    replace_method(Runner, "run", _run)
    replace_method(Runner, "run_streamed", _run_streamed)
    replace_method(AgentBase, "get_all_tools", _get_all_tools)
    scope = Scope(seam)
    try:
        with _SCOPES.entered(scope):
            yield scope
    finally:
        await scope.settle()


def active() -> Scope | None:
    """The attempt that this code belongs to; None outside an attempt."""
    scope = _SCOPES.active()
    # Code in a thread with an event loop of its own is part of the tool that started it.
    if scope is None or scope.seam.run.over or scope.thread != get_ident():
        return None
    return scope


def _run(original: Any) -> Any:
    async def run(cls: Any, starting_agent: Any, input: Any, **options: Any) -> Any:
        scope = active()
        if scope is not None:
            options = scope.options(starting_agent, options)
        return _noted(await original(cls, starting_agent, input, **options))

    return run


def _run_streamed(original: Any) -> Any:
    order = list(inspect.signature(original).parameters)

    def run_streamed(cls: Any, *args: Any, **options: Any) -> Any:
        scope = active()
        if scope is not None:
            options = {**dict(zip(order[1:], args, strict=False)), **options}
            options = scope.options(options["starting_agent"], options)
            args = ()
        return _noted(original(cls, *args, **options))

    return run_streamed


def _noted(result: Any) -> Any:
    place = _place.get()
    if place is not None:
        place.results.append(result)
    return result


def _get_all_tools(original: Any) -> Any:
    async def get_all_tools(self: Any, run_context: Any) -> list[Tool]:
        found: list[Tool] = await original(self, run_context)
        if active() is not None:
            for tool in found:
                _pass_through_scope(tool)
        return found

    return get_all_tools
