"""Where the OpenAI Agents SDK's model calls and tool calls pass: through the attempt's seam.

Each run of an agent is given a configuration of its own, whose model asks the agent's model through the
seam. Tools have no such place, and a tool may run another agent; so three public methods, `Runner.run`,
`Runner.run_streamed` and `get_all_tools` of an agent, are replaced, once in a process, by ones that look
whether a wrapped agent is running. Where none is they call straight on. No agent and no tool is changed.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
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
from agents.tool import default_tool_error_function, resolve_function_tool_failure_error_function

from triage._capture import hint, not_attempted
from triage._recorder import current
from triage.classifiers._arguments import check
from triage.taxonomy import UNSAFE, Cause, Effect, FailureType
from triage.traces._values import arguments

from ._openai_agents_items import RESULT
from ._openai_agents_model import SeamModel
from .base import Seam


class _Place(NamedTuple):
    """Where code runs. calls: those of tools that it is part of, from the outside in, each with its id.

    results: of the runs of agents that it has begun.
    """

    calls: str
    results: list[Any]


class _Paused(Exception):
    """An agent that is a tool waits for an approval."""


_scope: ContextVar[Scope | None] = ContextVar("triage_openai_agents", default=None)
_place: ContextVar[_Place | None] = ContextVar("triage_openai_agents_place", default=None)


class Scope:
    """One attempt of a wrapped agent, as the SDK's calls find it.

    failed: what the calls of tools raised that the model was told of, by their ids. thread: that of its
    event loop.
    """

    def __init__(self, seam: Seam) -> None:
        self.seam = seam
        self.failed: dict[str, BaseException] = {}
        self._misfits: dict[str, str] = {}
        self._tools: dict[int, tuple[Tool, Tool]] = {}
        self._working: set[asyncio.Task[Any]] = set()
        self._owned: list[Any] = []
        self._runs = 0
        self.thread = get_ident()
        self._task = asyncio.current_task()
        self._asked = self._task.cancelling() if self._task is not None else 0

    # Runs ---------------------------------------------------------------------------------------

    def options(self, agent: Any, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a run of an agent that begins: the first is the wrapped agent's own."""
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
        made = replace(
            config,
            model=model,
            call_model_input_filter=model.asked_by,
            tool_error_formatter=config.tool_error_formatter or self._told,
        )
        return {**options, "run_config": made}

    async def settle(self) -> None:
        """Wait for tools that were cancelled and not waited for; close what the SDK would have closed."""
        await until_done(self._working)
        for provider in self._owned:
            await provider.aclose()

    # Tools --------------------------------------------------------------------------------------

    def tools(self, tools: Iterable[Tool]) -> list[Tool]:
        """The same tools, called through the seam."""
        return [self._tool(tool) for tool in tools]

    def _tool(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool | CustomTool):
            return tool
        found = self._tools.get(id(tool))
        if found is None:
            made = self._around(tool)
            self._tools[id(made)] = (made, made)
            found = self._tools[id(tool)] = (tool, made)
        return found[1]

    def _around(self, tool: FunctionTool | CustomTool) -> Tool:
        made: Any = object.__new__(type(tool))
        made.__dict__.update(vars(tool))
        invoker: Any = tool.on_invoke_tool
        inner = getattr(invoker, "_invoke_tool_impl", None)
        if inner is None:
            made.on_invoke_tool = self._recorded(tool, invoker, told=False)
            return made  # type: ignore[no-any-return] # of the tool's own class
        # What the SDK makes of an error stays around the call, which is seen as it is.
        around = copy.copy(invoker)
        assert isinstance(tool, FunctionTool)
        says = resolve_function_tool_failure_error_function(tool)
        told = says is default_tool_error_function
        around._invoke_tool_impl = self._recorded(tool, inner, told=told)  # noqa: SLF001 - it has no other place
        made.on_invoke_tool = around.__agents_bind_function_tool__(made)
        return made  # type: ignore[no-any-return] # of the tool's own class

    def _recorded(
        self, tool: FunctionTool | CustomTool, inner: Callable[..., Awaitable[Any]], *, told: bool
    ) -> Callable[..., Awaitable[Any]]:
        own = self.seam.adapter.effects.get(tool.name)
        effect = _effect_of(tool) if own is None else own
        is_agent = bool(getattr(tool, "_is_agent_tool", False))
        in_thread = bool(getattr(tool.on_invoke_tool, "__agents_sync_function_tool__", False))
        held = in_thread or (effect in UNSAFE and getattr(tool, "timeout_seconds", None) is None)
        function = getattr(tool, "__wrapped__", None)

        @functools.wraps(inner)
        async def invoke(ctx: Any, given: Any) -> Any:
            if active() is not self:
                return await inner(ctx, given)

            async def do() -> Any:
                try:
                    work = inner(ctx, given)
                    found = await (self._to_its_end(work, in_thread=in_thread) if held else work)
                except ModelBehaviorError as error:
                    if str(error).startswith(f"Invalid JSON input for tool {ctx.tool_name}"):
                        self._misfit(tool, ctx.tool_call_id, given, error)
                    raise
                if is_agent and any(result.interruptions for result in place.results):
                    raise not_attempted(_Paused("it waits for an approval"))
                return found

            around = _place.get()
            calls = f"{'' if around is None else around.calls}/{tool.name} {ctx.tool_call_id}"
            place = _Place(calls, [])
            task = asyncio.current_task()
            assert task is not None
            self._working.add(task)
            token = _place.set(place)
            try:
                return await self.seam.tool(
                    tool.name,
                    arguments(given),
                    do,
                    id=ctx.tool_call_id,
                    effect=effect,
                    form=RESULT,
                    function=function,
                )
            except _Paused:
                return None  # as the SDK has it, until the agent goes on
            except (Exception, asyncio.CancelledError) as error:
                if told:
                    self.failed[ctx.tool_call_id] = _as_seen(tool, error)
                raise
            finally:
                self._working.discard(task)
                _place.reset(token)

        return invoke

    async def _to_its_end(self, work: Awaitable[Any], *, in_thread: bool) -> Any:
        """A call that must not be cut off because another one failed; only its caller may give it up."""
        task: asyncio.Task[Any] = asyncio.create_task(_awaited(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            given_up = self._given_up()
            if given_up and not in_thread:
                task.cancel()
            await until_done({task})
            if given_up:
                raise
            return task.result()

    def _given_up(self) -> bool:
        return self._task is not None and self._task.cancelling() > self._asked

    def _misfit(
        self, tool: FunctionTool | CustomTool, call: str, given: Any, error: ModelBehaviorError
    ) -> None:
        """The tool did not run, as its arguments do not fit: the model is told what is wrong with them."""
        not_attempted(error)
        hint(error, failure_type=FailureType.SCHEMA_MISMATCH, cause=Cause.INVALID_ARGUMENTS)
        read = arguments(given)
        schema = getattr(tool, "params_json_schema", None)
        problem = check(tool.name, read, schema) if isinstance(read, dict) else None
        what = "they are no JSON object" if problem is None else problem.text
        self._misfits[call] = f"The tool was not called: its arguments do not fit. {what}"

    def _told(self, given: ToolErrorFormatterArgs[Any]) -> str | None:
        return self._misfits.get(given.call_id)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def until_done(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for tasks, however often this is cancelled; a cancellation is raised when they are done."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while waiting := {task for task in tasks if not task.done()}:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _as_seen(tool: FunctionTool | CustomTool, error: BaseException) -> BaseException:
    seconds = getattr(tool, "timeout_seconds", None)
    if seconds is None or not isinstance(error, asyncio.CancelledError):
        return error
    return TimeoutError(f"{tool.name} took longer than {seconds:g} s")


def _effect_of(tool: FunctionTool | CustomTool) -> Effect:
    """What a tool of an MCP server says of itself; an agent's own calls are recorded one by one."""
    if getattr(tool, "_is_agent_tool", False):
        return Effect.READ
    hints: Any = getattr(tool, "mcp_annotations", None)
    for effect, names in _HINTS.items():
        if any(getattr(hints, name, None) is True for name in names):
            return effect
    return Effect.UNKNOWN


_HINTS: Mapping[Effect, tuple[str, str]] = {
    Effect.READ: ("read_only_hint", "readOnlyHint"),
    Effect.IDEMPOTENT: ("idempotent_hint", "idempotentHint"),
}
"""What a tool's annotations are called, by one and the other version of mcp."""


# In a process ---------------------------------------------------------------------------------------


@asynccontextmanager
async def entered(seam: Seam) -> AsyncGenerator[Scope]:
    """Have the agents that this code runs, and tasks and threads of it, pass through a seam."""
    _install()
    scope = Scope(seam)
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)
        await scope.settle()


def active() -> Scope | None:
    """The attempt that this code belongs to, None outside of any."""
    scope = _scope.get()
    # What a tool runs in a thread, in an event loop of its own, is part of that tool.
    if scope is None or scope.seam.run.over or scope.thread != get_ident():
        return None
    run = current.get()
    # A run inside this one, of a function that is none of ours, keeps its own journal.
    if run is not None and run.session is not scope.seam.run.session:
        return None
    return scope


def _run(original: Any) -> Any:
    async def run(cls: Any, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002 - theirs
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
        scope = active()
        return found if scope is None else scope.tools(found)

    return get_all_tools


_lock = Lock()
_installed: list[str] = []


def _install() -> None:
    if _installed:
        return
    with _lock:
        if _installed:
            return
        for name, made in (("run", _run), ("run_streamed", _run_streamed)):
            original = Runner.__dict__[name].__func__
            setattr(Runner, name, classmethod(functools.wraps(original)(made(original))))
        every = AgentBase.get_all_tools
        AgentBase.get_all_tools = functools.wraps(every)(_get_all_tools(every))  # type: ignore[method-assign] # it takes what the original takes
        _installed.append("all")
