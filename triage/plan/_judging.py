"""`JudgeEach`: a selector that asks about each capability by itself, several at once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import anyio

from triage._drivers import _drive
from triage._options import check_count, misuse
from triage._recorder import current
from triage._tool import Tool
from triage.taxonomy import Effect

from ._requests import SelectionRequest
from ._words import quoted


class Judgement(NamedTuple):
    """What a judge is given: is this capability needed for the task?

    task, feedback, background: as in `SelectionRequest`. capability: as `Registry.manifest` tells it.
    selection: which selection it is for, from 1.
    """

    task: Any
    capability: dict[str, Any]
    feedback: str = ""
    selection: int = 1
    background: Any = None


Judge: TypeAlias = Callable[[Judgement], bool | Awaitable[bool]]
"""Says whether a capability is needed. Sync ones run in a thread."""


class JudgeEach:
    """A selector that has each capability judged by itself, for `Orchestrator(selector=…)`.

    judge: answers True or False. concurrency: so many at once, 5 by default. Each judgement is a recorded
    call: those that are done are not asked for again when the selection is tried again. One that fails
    fails the selection; it is never taken for a no.

    Raises UsageError for arguments of the wrong type. Calling it raises what a judge raises, the first of
    them, and TypeError for an answer that is neither True nor False.
    """

    def __init__(self, judge: Judge, *, concurrency: int = 5) -> None:
        if isinstance(judge, type) or not callable(judge):
            raise misuse("JudgeEach.judge", judge, "a function of the Judgement, async or not")
        check_count("JudgeEach.concurrency", concurrency, 1)
        self._judge = judge
        self._concurrency = concurrency
        self._tool = Tool(_answering(judge), effect=Effect.READ, match="position", name="judge")

    async def __call__(self, request: SelectionRequest) -> list[str]:
        """The names of the capabilities that are needed, in the order of registration."""
        judged = [one for one in request.capabilities if not one.get("ends_the_plan")]
        needed: dict[str, bool] = {}
        failed: list[Exception] = []
        limiter = anyio.CapacityLimiter(self._concurrency)

        async def ask(capability: dict[str, Any]) -> None:
            name = capability["name"]
            async with limiter:
                if failed:
                    return  # the selection has failed: no more is paid for
                question = Judgement(
                    request.task,
                    capability,
                    request.feedback,
                    request.selection,
                    request.background,
                )
                try:
                    needed[name] = _verdict(name, await self._asked(question))
                except Exception as error:  # noqa: BLE001 - raised below, when all have ended
                    failed.append(error)

        async with anyio.create_task_group() as group:
            for capability in judged:
                group.start_soon(ask, capability)
        if failed:
            raise failed[0]
        return [one["name"] for one in judged if needed[one["name"]]]

    async def _asked(self, question: Judgement) -> Any:
        run = current.get()
        if run is not None:
            return await _drive(run, self._tool, (question,), {})
        answer = self._tool.function(question)
        return await answer if inspect.isawaitable(answer) else answer


def _verdict(name: str, answer: object) -> bool:
    if isinstance(answer, bool):
        return answer
    raise TypeError(f"the judge answered {type(answer).__name__} about {quoted(name)}, not a bool")


def _answering(judge: Callable[..., Any]) -> Callable[..., Any]:
    called = getattr(judge, "__call__", None)  # noqa: B004 - an object whose call is async
    if any(map(inspect.iscoroutinefunction, (judge, called))):

        async def asked(question: Judgement) -> Any:
            return await judge(question)

        return asked

    def asked_in_a_thread(question: Judgement) -> Any:
        return judge(question)

    return asked_in_a_thread
