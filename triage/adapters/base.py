"""What every adapter to a framework is made of: `Adapter`, and the `Seam` of one attempt.

An adapter is one class in one file. It says whose objects it runs, runs one once, and lets every model
call and every tool call of the framework pass through the seam:

    class MyAdapter(Adapter):
        name = "mine"
        cannot = {"stop": "its hooks swallow every exception"}

        async def attempt(self, seam, task, **kwargs):
            ...  # await seam.model(…) and await seam.tool(…) from the framework's own hooks

Recording, reuse of what is known, hints, stopping and failures that look like a success are then the
same for all. Recovery needs no help of the framework: after a Retry, a Rollback or a crash the agent
starts over, and each call that was made before is answered from the journal, unpaid and without its
effect, up to the point from which the work goes on.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from triage._capture import hint as write_hint
from triage._plain import plain
from triage._run import Run
from triage.actions import RecoveryAction, Resume, Retry, Rollback
from triage.errors import UsageError
from triage.failures import ErrorInfo
from triage.steps import Step, effect_of
from triage.taxonomy import Cause, Effect, FailureType
from triage.traces._talk import ending_of

from ._carried import Turn, carried
from ._forms import (
    ENDINGS,
    Answer,
    Asked,
    Failed,
    Form,
    read_anthropic,
    read_chat,
    read_responses,
)
from ._hints import hinted_anthropic, hinted_chat, hinted_responses, says, told
from ._recording import (
    Asking,
    ModelCall,
    Stream,
    StreamLeft,
    ToolCall,
    Using,
    ask_sync,
    key_of,
    make,
    make_sync,
    within,
)
from ._recording import ask as ask_model
from ._repair import LOST, Repaired, repair_anthropic, repair_chat, repair_responses

__all__ = [
    "ABILITIES",
    "LOST",
    "Adapter",
    "Answer",
    "Asked",
    "Failed",
    "Form",
    "Repaired",
    "Seam",
    "SoftFailure",
    "Stream",
    "StreamLeft",
    "Turn",
    "hinted_anthropic",
    "hinted_chat",
    "hinted_responses",
    "key_of",
    "read_anthropic",
    "read_chat",
    "read_responses",
    "repair_anthropic",
    "repair_chat",
    "repair_responses",
    "says",
]

ABILITIES = ("record", "stop", "hint", "resume", "rollback", "repair", "soft_failures")
"""What an adapter can do: journal the framework's calls; stop it from inside; tell the model a hint; go
on without repeating what was done; go back to a checkpoint; close calls that were cut off; see that a
run which looks like a success has failed."""

_log = logging.getLogger("triage.adapters")


class SoftFailure(Exception):
    """The framework gave a result, and the work has failed all the same.

    Raise it from the error behind it, where that is known: the diagnosis is then of that error.
    failure_type, cause: what went wrong, where the result itself says so.
    """

    def __init__(
        self,
        message: str,
        *,
        failure_type: FailureType | None = None,
        cause: Cause | str | None = None,
    ) -> None:
        super().__init__(message)
        if failure_type is not None or cause is not None:
            write_hint(self, failure_type=failure_type, cause=cause)


def cut_short(ending: ErrorInfo) -> SoftFailure:
    """The failure that an answer is which was cut off or refused: `ending_of` its reason to stop."""
    failure_type, cause = ENDINGS[ending.type_name]
    return SoftFailure(ending.message, failure_type=failure_type, cause=cause)


class Adapter(ABC):
    """Runs the objects of one framework. One instance for each wrapped object; it keeps nothing of a run.

    target: the wrapped object. effects: what each tool does to the world, by name; tools that are not
    named are `unknown`. Raises UsageError for an effect that is none, and for a class whose `cannot`
    names no ability.

    name: as the user says it. cannot: which of `ABILITIES` it has not, with the reason, as a sentence.
    """

    name: ClassVar[str]
    cannot: ClassVar[Mapping[str, str]] = {}

    def __init__(self, target: Any, *, effects: Mapping[str, Effect | str] | None = None) -> None:
        unknown = ", ".join(sorted(set(self.cannot) - set(ABILITIES)))
        if unknown:
            known = ", ".join(ABILITIES)
            raise UsageError(
                f"{type(self).__name__}.cannot names {unknown}; abilities are: {known}"
            )
        self.target = target
        self.effects: dict[str, Effect] = {}
        for tool, effect in (effects or {}).items():
            try:
                self.effects[tool] = effect_of(f"wrap(effects={{{tool!r}: …}})", effect)
            except ValueError as error:
                raise UsageError(str(error)) from None

    @abstractmethod
    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        """Run the wrapped object once, from the beginning; its result.

        Give the framework's exceptions on as they are. kwargs: as given to `Agent.run`, for the
        framework. What `seam` raises must reach the caller, at the latest from here.
        """

    def soft_failure(self, result: Any) -> BaseException | None:  # noqa: ARG002 - for those who can
        """The failure that a result stands for: a `SoftFailure`, or the error itself; None: a good one."""
        return None

    def tools(self) -> Iterable[Any] | Mapping[str, Any] | None:
        """The tools the object has, as `Checks.tools`; None where it does not say."""
        return None

    def clients(self) -> Iterable[object]:
        """Clients or models it calls, to be looked at for retries of their own."""
        return ()

    async def run(self, task: Any, run: Run, kwargs: Mapping[str, Any]) -> Any:
        """One attempt with all that is the same for every framework: what `triage.wrap` calls."""
        seam = Seam(self, run)
        result = await self.attempt(seam, task, **kwargs)
        failure = self.soft_failure(result)
        if failure is not None:
            cause = None if failure is seam.last_error else seam.last_error
            raise failure from failure.__cause__ or cause
        if seam.last_error is not None:
            text = "the last model call failed, and the framework gave a result all the same"
            raise SoftFailure(text) from seam.last_error
        if seam.ending is not None:
            raise cut_short(seam.ending)
        return result


class Seam:
    """Where a framework and an attempt meet: what an adapter's hooks call. Safe from tasks of the attempt.

    adapter: whose it is. run: the attempt's handle. last_error: what the last model call raised, None
    once one has succeeded. ending: why the last answer is none, where it was cut off or refused.
    """

    def __init__(self, adapter: Adapter, run: Run) -> None:
        self.adapter = adapter
        self.run = run
        self.last_error: BaseException | None = None
        self.ending: ErrorInfo | None = None
        self._notes = tuple(_notes(adapter, run))
        self._carried: tuple[Turn, ...] | None = None

    # Reading ------------------------------------------------------------------------------------

    @property
    def hint(self) -> str | None:
        """What the model is to be told with its next request: transient, new at each call, None mostly.

        None while calls of the attempt before are given again, as those were asked without it.
        """
        return "\n".join(filter(None, (told(self.run.guidance), *self._notes))) or None

    @property
    def carried(self) -> tuple[Turn, ...]:
        """What this attempt's conversation begins with, oldest first; empty mostly.

        After a Replan: the turns of the attempt before, without the loop it was in, so that the new
        plan knows what was found. Empty after a context that was too long. An adapter that can begin
        a conversation in the middle puts them behind the task and repairs it; others leave them.
        """
        if self._carried is None:
            self._carried = carried(self.run)
        return self._carried

    def check_open(self) -> None:
        """Raise AttemptInterrupted (a BaseException) where the attempt was stopped."""
        self.run.check_open()

    # Calls --------------------------------------------------------------------------------------

    def model(
        self,
        ask: Callable[[str | None], Awaitable[Any]],
        *,
        form: Form,
        request: Any,
        said: Any = None,
        model: str = "",
        who: str = "",
    ) -> Coroutine[Any, Any, Any]:
        """Ask the model, recorded; its answer, or `form.load` of the recorded one.

        ask: sends the request with a hint, None for none. form: how the answer is kept. request: all
        that decides the answer, without the hint; any value, only its digest is kept. said: what is
        new in the request, for the journal; no ids in it. model: its name. who: the sub-agent's name,
        so that agents side by side are kept apart; empty: the call it is part of, if any. Raises what
        `ask` raises.
        """
        call = self._model_call(form, request, said, model, who)
        return ask_model(self.run, Asking(call, lambda: ask(self.hint)), self._ended)

    def model_sync(
        self,
        ask: Callable[[str | None], Any],
        *,
        form: Form,
        request: Any,
        said: Any = None,
        model: str = "",
        who: str = "",
    ) -> Any:
        """`model` for sync hooks, in a thread of the attempt."""
        call = self._model_call(form, request, said, model, who)
        return ask_sync(self.run, Asking(call, lambda: ask(self.hint)), self._ended)

    def stream(
        self, *, form: Form, request: Any, said: Any = None, model: str = "", who: str = ""
    ) -> Stream:
        """`model` for an answer that comes in pieces: begin the call, or find its answer known.

        stream = seam.stream(form=FORM, request=request)
        if stream.known is not None: ...  # give it, in as many pieces as you like
        with stream.passing():
            ...  # send it with seam.hint, and give the pieces on as they come
            stream.done(whole)
        await stream.durable()
        """
        return Stream(self.run, self._model_call(form, request, said, model, who), self._ended)

    def _ended(self, answer: Answer | None, error: Exception | None) -> None:
        """A model call has ended: the last one for now."""
        self.last_error = error
        if error is None:
            self.ending = None if answer is None or answer.calls else ending_of(answer.ended)

    def _model_call(self, form: Form, request: Any, said: Any, model: str, who: str) -> ModelCall:
        who = who or within()  # an agent inside of a tool is matched by itself
        name = f"{self.adapter.name} {who}" if who else self.adapter.name
        return ModelCall(name, model, plain(said), key_of(request), form)

    def tool(
        self,
        name: str,
        arguments: Any,
        do: Callable[[], Awaitable[Any]],
        *,
        id: str | None = None,  # noqa: A002 - what models call it
        effect: Effect | str | None = None,
        form: Form | None = None,
        function: object = None,
    ) -> Awaitable[Any]:
        """Call a tool, recorded; its result, or `form.load` of the recorded one.

        do: runs the tool. arguments: as the model gave them. id: the model's id of the call. effect:
        what the framework itself knows; `wrap(effects=…)` wins; None: unknown. form: for results that
        are no JSON; None keeps them as they are. function: what the tool runs; a `@triage.tool`
        records itself, and is only called. Raises what `do` raises. A result that `form.failed` knows
        as an error is given like any other, and its step has the error. It answered, so it is not in
        doubt; the next attempt is told the same, or calls it again where it may be repeated.

        A tool that pauses the framework (for an approval) must not look like one that failed: give
        its signal through `triage.not_attempted`.
        """
        if is_tool(function):
            self.run.check_open()
            return do()
        return make(self.run, Using(self._tool_call(name, arguments, id, effect, form), do))

    def tool_sync(
        self,
        name: str,
        arguments: Any,
        do: Callable[[], Any],
        *,
        id: str | None = None,  # noqa: A002 - what models call it
        effect: Effect | str | None = None,
        form: Form | None = None,
        function: object = None,
    ) -> Any:
        """`tool` for sync hooks, in a thread of the attempt."""
        if is_tool(function):
            self.run.check_open()
            return do()
        call = self._tool_call(name, arguments, id, effect, form)
        return make_sync(self.run, Using(call, do))

    def _tool_call(
        self,
        name: str,
        arguments: Any,
        id: str | None,  # noqa: A002 - what models call it
        effect: Effect | str | None,
        form: Form | None,
    ) -> ToolCall:
        known = self.adapter.effects.get(name, effect or Effect.UNKNOWN)
        return ToolCall(name, arguments, known, id, form)

    def refused(self, name: str, arguments: Any, error: str, *, kind: str | None = None) -> None:
        """Record a tool call that never ran: an unknown tool, arguments that do not fit.

        error: what the model is told. kind: the exception's class, None without one.
        """
        step = Step(
            action="call", tool_called=name, tool_input=arguments, error=error, exception_type=kind
        )
        self.run.record_step(step)


def is_tool(function: object) -> bool:
    """Whether a function is a `@triage.tool`, which records itself."""
    return hasattr(function, "__triage_tool__")


class _Fallback(NamedTuple):
    """What is done where an adapter lacks an ability. said: to the model; empty: nothing."""

    instead: str
    said: str = ""


_FALLBACKS: dict[tuple[type[RecoveryAction], str], _Fallback] = {
    (Rollback, "rollback"): _Fallback(
        "the agent begins with a new plan",
        "The work could not be set back to where it was: what has been done stands. Find out what "
        "that is before you do it again.",
    ),
    (Retry, "resume"): _Fallback("the agent starts over"),
    (Resume, "resume"): _Fallback(
        "the agent starts over with the subgoal", "Parts of the work may have been done before."
    ),
}


def _notes(adapter: Adapter, run: Run) -> Iterator[str]:
    """What the model must be told because the adapter cannot do what was decided; said in the log, too."""
    action = run.told.action
    for (kind, ability), fallback in _FALLBACKS.items():
        if isinstance(action, kind) and ability in adapter.cannot:
            _say(adapter, run, ability, f"after a {kind.__name__} {fallback.instead}")
            if fallback.said:
                yield fallback.said
    if told(run.told) is not None and "hint" in adapter.cannot:
        _say(adapter, run, "hint", "the attempt is made without its hint")


def _say(adapter: Adapter, run: Run, ability: str, instead: str) -> None:
    reason = adapter.cannot[ability]
    _log.warning("run %s: %s (%s: %s)", run.run_id, instead, adapter.name, reason)
