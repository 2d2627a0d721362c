"""Tool calls that a model asks for: whether they can be made, what their MCP annotations say of their
effect, and how those with an effect are finished although their framework gives them up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import anyio
import anyio.abc
import anyio.lowlevel

from triage.classifiers.detectors.arguments import arguments_of, check
from triage.core.capture import hint, not_attempted
from triage.core.errors import UsageError, misuse
from triage.core.json_values import plain
from triage.core.manifest import manifest_of
from triage.core.messages.neutral import ENDINGS, Asked
from triage.core.messages.reading import arguments as read_arguments
from triage.core.steps import Step
from triage.core.taxonomy import Cause, Effect, FailureType
from triage.engine.models import CUT
from triage.engine.run import Recorder

NEAR = 20
"""The most tools that are listed to a model that asked for one that does not exist."""
UNKNOWN, MISFIT = "UnknownTool", "InvalidArguments"

Tools = Mapping[str, Mapping[str, Any] | None]
"""Tools by name, each with the JSON Schema of its arguments, or None."""


class Refusal(NamedTuple):
    """Why a call that a model asks for cannot be made. text: for the model. kind: `UnknownTool`,
    `InvalidArguments`, or `CUT` for a call of an answer that was cut off. lenient: a tool may have taken
    it all the same.
    """

    text: str
    kind: str
    lenient: bool = False


_HALF = "the answer that asks for this call was cut off at the token limit"


class CallRefused(Exception):
    """A tool was not called, because the model's arguments do not fit it or are not whole.

    The message is for the model. An adapter whose framework can do so returns it as the call's result, and
    the conversation goes on; otherwise the exception ends the attempt.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        not_attempted(self)
        kind, cause = FailureType.SCHEMA_MISMATCH, Cause.INVALID_ARGUMENTS
        if refusal.kind == CUT:
            kind, cause = ENDINGS[CUT]
        hint(self, failure_type=kind, cause=cause)


def tools_by_name(declared: Iterable[Any] | Mapping[str, Any] | None) -> Tools:
    """Declared tools of any form, by name. A tool without a name runs at the provider, and is left out."""
    if declared is None or isinstance(declared, Mapping):
        return manifest_of(declared)
    found: dict[str, Mapping[str, Any] | None] = {}
    for tool in declared:
        several = _field(tool, "function_declarations") or _field(tool, "functionDeclarations")
        if several:
            found.update(tools_by_name(several))
            continue
        try:
            found.update(manifest_of([tool]))
        except UsageError:
            continue
    return found


def _field(tool: Any, name: str) -> Any:
    return tool.get(name) if isinstance(tool, Mapping) else getattr(tool, name, None)


def refusal_of(asked: Asked, tools: Tools) -> Refusal | None:
    """Why this call cannot be made; None if nothing speaks against it."""
    if asked.name not in tools:
        names = ", ".join(list(tools)[:NEAR]) or "none"
        return Refusal(f"there is no tool {asked.name!r}; the tools are: {names}", UNKNOWN)
    given = read_arguments(asked.arguments)
    if not isinstance(given, Mapping) and given not in (None, ""):
        return Refusal(f"the arguments of {asked.name!r} are no JSON object", MISFIT)
    schema = tools[asked.name]
    problem = check(asked.name, given or {}, schema)
    if problem is None:
        return None
    listed = "" if problem.kind == "value" else arguments_of(schema)
    text = f"{problem.text}; its arguments are: {listed}" if listed else problem.text
    return Refusal(text, MISFIT, lenient=problem.kind in ("type", "value"))


def note_refused(
    run: Recorder,
    name: str,
    arguments: Any,
    error: str,
    *,
    kind: str | None = None,
    id: str | None = None,
) -> None:
    """Record a call that never ran: a step with an error, and no recorded call."""
    step = Step(
        action="call",
        tool_called=name or "?",
        tool_input=arguments,
        error=error,
        exception_type=kind,
        metadata=None if id is None else {"id": id},
    )
    run.record_step(step)


class Mistakes:
    """Calls that the models of an attempt asked for and that do not fit, while they may still be made.

    A framework may be more lenient than the schema: it may accept `"3"` for 3, or a name in capitals. A
    call counts as a mistake only once the conversation has gone on, or the attempt has ended, without it.
    """

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[Asked, Refusal]]] = {}

    def note(self, who: str, asked: Iterable[Asked], tools: Tools, *, cut: bool = False) -> None:
        """Check the calls that the model of this conversation has asked for.

        cut: its answer was cut off, so that none of them counts as whole.
        """
        found: list[tuple[Asked, Refusal]] = []
        for one in asked:
            refusal = refusal_of(one, tools) if tools else None
            if cut:
                refusal = Refusal(_HALF, CUT, lenient=refusal is None or refusal.lenient)
            if refusal is not None:
                found.append((one, refusal))
        if found:
            self._of[who] = found

    def take(self, name: str, arguments: Any, id_: str | None) -> Refusal | None:
        """Take out the mistake in a call that the framework now makes or reports; None if there is none."""
        for held in self._of.values():
            for at, (asked, refusal) in enumerate(held):
                if _is_same_call(asked, name, arguments, id_):
                    del held[at]
                    return refusal
        return None

    def settle(
        self,
        run: Recorder,
        who: str | None = None,
        *,
        but: Callable[[Asked, Refusal], bool] = lambda _asked, _refusal: False,
    ) -> None:
        """Record the calls that never ran; who: of the conversation that goes on, None for all.

        but: tells a call that may have run all the same, which is left out.
        """
        for name in [who] if who is not None else list(self._of):
            for asked, refusal in self._of.pop(name, ()):
                if but(asked, refusal):
                    continue
                given = read_arguments(asked.arguments)
                note_refused(
                    run, asked.name, given, refusal.text, kind=refusal.kind, id=asked.id or None
                )


def _is_same_call(asked: Asked, name: str, arguments: Any, id_: str | None) -> bool:
    if asked.name != name:
        return False
    if asked.id and id_ is not None and asked.id == id_:
        return True
    given, wanted = read_arguments(arguments), read_arguments(asked.arguments)
    return bool((plain(given) or {}) == (plain(wanted) or {}))


_NAMES = {
    "read": ("readOnlyHint", "read_only_hint"),
    "idempotent": ("idempotentHint", "idempotent_hint"),
    "destructive": ("destructiveHint", "destructive_hint"),
}
"""The names of each annotation, on the wire and in the package mcp."""


def effect_of_hints(annotations: object, *, trusted: bool) -> Effect | None:
    """The effect that an MCP tool's annotations claim; None where no annotation counts.

    trusted: all of them count. Otherwise only the strict ones do: a destructive tool is `once`, and one
    that is not read-only is `unknown`.
    """
    claims = {kind: _claim(annotations, names) for kind, names in _NAMES.items()}
    if trusted and claims["read"] is True:
        return Effect.READ
    if trusted and claims["idempotent"] is True:
        return Effect.IDEMPOTENT
    if claims["destructive"] is True:
        return Effect.ONCE
    return Effect.UNKNOWN if claims["read"] is False else None


def _claim(annotations: object, names: tuple[str, ...]) -> Any:
    for name in names:
        held = annotations.get(name) if isinstance(annotations, Mapping) else None
        held = getattr(annotations, name, None) if held is None else held
        if held is not None:
            return held
    return None


def trusts(tool: str, *, given: bool | tuple[str, ...]) -> bool:
    return given if isinstance(given, bool) else any(fnmatchcase(tool, rule) for rule in given)


def checked_trust(given: object) -> bool | tuple[str, ...]:
    """The value of `wrap(trust_hints=…)`, checked. Raises UsageError."""
    if isinstance(given, bool):
        return given
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise misuse(
            "wrap(trust_hints=…)", given, "True, False, or names of tools", "write (name,)"
        )
    names = tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise misuse(
                "wrap(trust_hints=…) item", name, "the name of a tool, with * and ? for any"
            )
    return names


Work = Callable[[], Awaitable[Any]]


class Finishing:
    """Runs an attempt's calls with an effect, each in a task of the attempt.

    The task does not belong to the framework's code that waits for it: when the framework cancels that code
    because a parallel call failed, the call runs to its end and is recorded. A cancellation of the attempt
    itself reaches the call at once.
    """

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self._group = group

    async def run(self, work: Work, seconds: float) -> Any:
        """Return or raise what the work does. seconds: how long it may run on after it was given up."""
        call = _Running(work)
        self._group.start_soon(call.run)
        try:
            await call.ended.wait()
        except anyio.get_cancelled_exc_class():
            if seconds > 0:
                self._group.start_soon(call.end_within, seconds)
            else:
                call.scope.cancel()
            with anyio.CancelScope(shield=True):
                while not call.ended.is_set():
                    # A task of asyncio's can be cancelled by itself, shield or not.
                    with suppress(anyio.get_cancelled_exc_class()):
                        await call.ended.wait()
            raise
        if isinstance(call.error, anyio.get_cancelled_exc_class()):
            # The attempt was cancelled, and this code is part of it.
            await anyio.lowlevel.checkpoint()
        if call.error is not None:
            raise call.error
        return call.result


class _Running:
    """A call in a task of its own. ended: set once it has a result or an error."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    async def run(self) -> None:
        with self.scope:
            try:
                self.result = await self._work()
            except BaseException as error:
                self.error = error
            finally:
                self.ended.set()

    async def end_within(self, seconds: float) -> None:
        """Cancel the call if it has not ended by then."""
        with anyio.move_on_after(seconds):
            await self.ended.wait()
        self.scope.cancel()


async def finishing(work: Callable[[Finishing], Awaitable[Any]]) -> Any:
    """Return or raise what the work does, once all the calls that it started have ended."""
    result: Any = None
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            result = await work(Finishing(group))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            failure = error
    if failure is None:
        return result
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame
