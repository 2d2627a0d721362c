"""Pydantic AI's tools, called through the attempt's seam."""

from __future__ import annotations

from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset

from triage.taxonomy import Effect

from ._pydantic_ai_messages import RESULT, Spoken
from .base import Seam


class Toolset(WrapperToolset[Any]):
    """Tools that are called through a seam."""

    def __init__(self, wrapped: AbstractToolset[Any], seam: Seam) -> None:
        super().__init__(wrapped)
        self.seam = seam

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return self._around(await self.wrapped.for_run(ctx))

    async def for_run_step(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return self._around(await self.wrapped.for_run_step(ctx))

    def visit_and_replace(self, visitor: Any) -> AbstractToolset[Any]:
        return self._around(self.wrapped.visit_and_replace(visitor))

    def _around(self, wrapped: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return self if wrapped is self.wrapped else Toolset(wrapped, self.seam)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        once = self.seam.adapter.effects.get(name) is Effect.ONCE

        async def do() -> Any:
            try:
                return await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except (ModelRetry, ToolFailed) as refusal:
                if once and refusal.__context__ is not None:
                    raise  # what stands behind it may have come after the effect
                return refusal
            except (ApprovalRequired, CallDeferred) as signal:
                return signal

        answer = await self.seam.tool(
            name,
            tool_args,
            do,
            id=ctx.tool_call_id,
            effect=_effect_of(tool.tool_def),
            form=RESULT,
            function=_function_of(tool),
        )
        if isinstance(answer, Spoken):
            raise answer
        return answer


def _effect_of(tool: ToolDefinition) -> Effect | None:
    """What a tool of an MCP server says of itself."""
    hints = (tool.metadata or {}).get("annotations")
    said = hints if isinstance(hints, dict) else {}
    return next((effect for hint, effect in _HINTS.items() if said.get(hint) is True), None)


_HINTS = {
    "readOnlyHint": Effect.READ,
    "idempotentHint": Effect.IDEMPOTENT,
    "destructiveHint": Effect.ONCE,
}


def _function_of(tool: ToolsetTool[Any]) -> object:
    """The user's own function, where the tool is one."""
    held: Any = tool.toolset
    if not isinstance(held, FunctionToolset):
        return None
    name = getattr(tool, "original_name", None) or tool.tool_def.name
    found = held.tools.get(name)
    return None if found is None else found.function
