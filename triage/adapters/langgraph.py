"""LangGraph: any compiled graph, and so each agent of `langchain.agents.create_agent`.

    graph = create_agent(model, tools, checkpointer=saver)
    agent = triage.wrap(graph, policy, effects={"charge": "once"})
    await agent.run("Pay the bill.", config={"configurable": {"thread_id": "7"}})

A graph with a checkpointer goes on where its thread stands: after a Retry only what had failed runs
again, a Rollback takes up an older checkpoint, a Replan begins before the run. One without starts over,
and its calls are answered from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import HumanMessage

from triage.errors import UsageError

from ._langchain_hooks import entered
from ._langchain_scope import Scope
from ._langgraph_interrupts import ask
from ._langgraph_thread import Start, has_saver, start_of
from .base import Seam
from .langchain import LangChainAdapter, named

__all__ = ["LangGraphAdapter"]

_INTERRUPTS = "__interrupt__"


class LangGraphAdapter(LangChainAdapter):
    """Runs a compiled graph: `run(input, config=…, **options)` is its `ainvoke`.

    A text is given to a graph with `messages` as what the user says. A graph with a checkpointer whose
    config names no thread has one of the run's own, named by the run's id. An interrupt suspends the
    run, and `Agent.resume(token, happened(value))` gives the value to the graph; `approve()` gives True,
    or approves all that a HumanInTheLoopMiddleware asks for.

    on_chunk: called with each piece that `stream_mode` names ("updates", "messages", "custom", …), as
    `(mode, piece)`, while the graph runs; it may be async.
    """

    name = "langgraph"

    async def attempt(
        self,
        seam: Seam,
        task: Any,
        *,
        config: Any = None,
        on_chunk: Callable[[str, Any], Any] | None = None,
        **options: Any,
    ) -> Any:
        """One course of the graph, from where its thread stands, or from the beginning."""
        start = await start_of(self.target, seam, self._given(task), config)
        with entered(Scope(seam, start.held)), named():
            if on_chunk is None:
                result = await self.target.ainvoke(start.given, start.config, **options)
            else:
                result = await _streamed(self.target, start, on_chunk, options)
        if isinstance(result, Mapping) and result.get(_INTERRUPTS):
            if not has_saver(self.target):
                raise UsageError(
                    "the graph waits for an answer and keeps nothing to go on from: compile it with a "
                    "checkpointer, or create the agent with checkpointer=…"
                )
            ask(seam.run, result[_INTERRUPTS])
        return result

    def _given(self, task: Any) -> Any:
        if isinstance(task, str) and "messages" in self.target.channels:
            return {"messages": [HumanMessage(task)]}
        return task


async def _streamed(
    graph: Any, start: Start, on_chunk: Callable[[str, Any], Any], options: dict[str, Any]
) -> Any:
    """What `ainvoke` gives, with the pieces told as they come."""
    wanted = options.pop("stream_mode", "updates")
    modes = [wanted] if isinstance(wanted, str) else list(wanted)
    result: Any = None
    interrupts: list[Any] = []
    asked = {*modes, "updates", "values"}
    stream = graph.astream(start.given, start.config, stream_mode=sorted(asked), **options)
    async for mode, piece in stream:
        if mode == "values":
            result = piece
        elif mode == "updates" and isinstance(piece, dict):
            interrupts += piece.get(_INTERRUPTS, ())
        if mode in modes:
            told = on_chunk(mode, piece)
            if told is not None and hasattr(told, "__await__"):
                await told
    return {**(result or {}), _INTERRUPTS: interrupts} if interrupts else result
