"""The type of a strategy, and what the files of this room share."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from inspect import isawaitable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from triage.core.actions import ACTIONS, DELAYED, PROCEEDING, Abort, Action, Escalate, Retry
from triage.core.constructors import Struct
from triage.core.diagnosis import Diagnosis
from triage.core.errors import UsageError, check_takes, closest, misuse
from triage.core.failures import Attempt, ErrorInfo, FailureContext, words_of
from triage.core.steps import Step
from triage.core.taxonomy import Cause, FailureType, Severity

Answer: TypeAlias = Action | Awaitable[Action]
Strategy: TypeAlias = Callable[[FailureContext], Answer]
"""Decides what to do about a failure: takes its context and returns an action. May be async."""


class always(Struct, frozen=True):
    """Answers every failure with the same action: what an action given as a strategy becomes."""

    action: Action

    def __post_init__(self) -> None:
        if not isinstance(self.action, ACTIONS):
            raise misuse("always.action", self.action, "an action, such as Retry()")

    def __call__(self, context: FailureContext) -> Action:
        """Return the action."""
        return self.action

    def __repr__(self) -> str:
        return repr(self.action)


def answer_of(strategy: Strategy, context: FailureContext) -> Answer:
    """Ask a strategy, and note what it answers unless it is made of others that note it."""
    if getattr(strategy, "is_composite", False):
        return strategy(context)

    def noted(action: Action) -> Action:
        context.note("strategy", [shown_strategy(strategy), getattr(action, "kind", "")])
        return action

    return then(strategy(context), noted)


def shown_strategy(strategy: object) -> str:
    """Return a strategy as text that is the same in each process."""
    try:
        text = repr(strategy)
    except Exception:  # it is the user's
        text = type(strategy).__name__
    return _ADDRESS.sub("", text)


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def same_again(strategy: Strategy) -> bool:
    """Whether a strategy only tries again, without supplying what a person would have to."""
    if isinstance(strategy, always):
        return isinstance(strategy.action, PROCEEDING)
    return getattr(strategy, "same_again", False) is True


def takes_no_time(value: Any) -> bool:
    """Whether a strategy is made of this package's own parts, so that no function of a user's is called."""
    kind = type(value)
    if isinstance(value, tuple | list | frozenset):
        return all(map(takes_no_time, value))
    if isinstance(value, dict):
        return all(map(takes_no_time, value.values()))
    if kind.__module__ == "builtins" or isinstance(value, ACTIONS):
        return not callable(value)
    if isinstance(value, type) or not kind.__module__.startswith("triage."):
        return False
    if isinstance(value, Enum) or getattr(kind, "takes_no_time", False):
        return True
    names = getattr(kind, "__struct_fields__", None)
    fields = [getattr(value, name) for name in names] if names else vars(value).values()
    return all(map(takes_no_time, fields))


def nothing_new(strategies: Iterable[Strategy | Action | None]) -> bool:
    """Whether all of these only try again or end the run, and one of them tries again."""
    given = [cast("Strategy", strategy) for strategy in strategies if strategy is not None]
    trying = [strategy for strategy in given if not _ends(strategy)]
    return bool(trying) and all(map(same_again, trying))


def _ends(strategy: Strategy) -> bool:
    return isinstance(strategy, always) and isinstance(strategy.action, Escalate | Abort)


def as_strategy(field: str, value: object) -> Strategy:
    """Return `value` as a strategy; an action becomes `always(action)`. Raises UsageError otherwise."""
    if isinstance(value, ACTIONS):
        return always(value)
    wanted = "a strategy (a function of the FailureContext) or an action"
    if isinstance(value, type):
        remedy = f"make one: {value.__name__}(…)"
        raise UsageError(f"{field} must be {wanted}, not the class {value.__name__}; {remedy}")
    if not callable(value):
        names = [action.__name__ for action in ACTIONS]
        meant = closest(value, names) if isinstance(value, str) else None
        raise misuse(field, value, wanted, "" if meant is None else f"did you mean {meant}()?")
    check_takes(field, value, wanted, "the context")
    return cast("Strategy", value)


def then(answer: Answer, go_on: Callable[[Action], Answer]) -> Answer:
    """Return `go_on(action)` for the action that `answer` is, or becomes once awaited."""
    if isawaitable(answer):
        return _awaited(answer, go_on)
    return go_on(answer)


async def _awaited(answer: Awaitable[Action], go_on: Callable[[Action], Answer]) -> Action:
    final: Any = go_on(await answer)
    if isawaitable(final):
        final = await final
    return cast("Action", final)


def used_up(context: FailureContext, what: str, times: int, most: int) -> Escalate | None:
    """Escalate once `what` was done `most` times for this failure type; None before that."""
    if times < most:
        return None
    done = "never allowed" if most == 0 else f"already {what} {counted(times)} (the most is {most})"
    return Escalate(f"{named(context)}: {done}")


def needs_a_person(context: FailureContext) -> Escalate | None:
    """Escalate a diagnosis that repeating cannot fix; None for any other."""
    severity = context.diagnosis.severity
    if severity is not Severity.CRITICAL and severity is not Severity.FATAL:
        return None
    return Escalate(f"{named(context)}: {severity}, a person must act; repeating it cures nothing")


class RefusedRequest(NamedTuple):
    """Characters of a request that was too long, and of the receipts in it."""

    characters: int
    receipts: int


def refused_request(context: FailureContext) -> RefusedRequest | None:
    """Return the size of the last request that failed, as its step tells it; None where it is not known."""
    for step in reversed(context.trajectory.steps):
        found = None if step.error is None else (step.metadata or {}).get("request")
        if isinstance(found, Mapping) and type(found.get("characters")) is int:
            return RefusedRequest(found["characters"], found.get("receipts", 0))
    return None


def cannot_be_shorter(context: FailureContext) -> bool:
    """Whether the refused request was longer than wanted, so that nothing more can be left out of it."""
    if context.failure_type is not FailureType.CONTEXT_OVERFLOW:
        return False
    request = refused_request(context)
    wanted = [
        past.action.max_characters
        for past in context.attempt_history
        if isinstance(past.action, Retry) and past.action.max_characters is not None
    ]
    return request is not None and bool(wanted) and request.characters > wanted[-1]


def no_retry(context: FailureContext, most: int) -> Escalate | None:
    """Escalate if a retry fixes nothing, or `most` were made for this failure type; None otherwise."""
    return needs_a_person(context) or used_up(context, "retried", context.tried(Retry), most)


def last_failed(context: FailureContext) -> Step | None:
    """Return the last failed step of this attempt, None without one."""
    return next(
        (step for step in reversed(context.trajectory.steps) if step.error is not None), None
    )


def failed_tool(failed: FailureContext | Attempt) -> Step | None:
    """Return the step of the tool whose error ended this attempt, if a model had been asked before it.

    Such a call is the model's choice, so a model that hears of the failure can choose otherwise.
    """
    last = _last_step(failed)
    if last is None or last.tool_called is None:
        return None
    for step in failed.trajectory.steps:
        if step is last:
            return None
        if step.tool_called is None and _is_answer(step):
            return last
    return None


def _last_step(failed: FailureContext | Attempt) -> Step | None:
    """Return the step whose error ended this attempt, None if no step has it."""
    steps = reversed(failed.trajectory.steps)
    return next((s for s in steps if s.error is not None and _ended_with(s, failed.error)), None)


def _is_answer(step: Step) -> bool:
    return step.action == "model" or step.llm_output is not None


def _ended_with(step: Step, error: ErrorInfo | None) -> bool:
    """Whether a failed step has the error that ended its attempt, or a cause of it."""
    said = (step.error or "")[:_COMPARED]
    return error is None or any(
        words_of(info)[:_COMPARED] == said or (said and said in info.message)
        for info in error.walk()
    )


_COMPARED = 200
"""Characters of two error messages that are compared."""


def named(context: FailureContext) -> str:
    """Name the failure in two words: `external_fault (timeout)`."""
    diagnosis = context.diagnosis
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    return f"{diagnosis.failure_type}{cause}"


def counted(times: int) -> str:
    """Write a number of times: `once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def sentences(*texts: str | None) -> str:
    """Join the texts that are not empty."""
    return " ".join(text.strip() for text in texts if text and text.strip())


# How long the other side has been down, judging by a run's attempts.


class Outage(Struct, frozen=True):
    """The outage that a failure belongs to.

    retries: how often the function was called again because of it. seconds: from its first failure to
    now, as the sum of the attempts and the delays between them; time without a process does not count.
    """

    retries: int = 0
    seconds: float = 0.0


def may_pass(diagnosis: Diagnosis) -> bool:
    """Whether the other side failed in a way that passes by itself."""
    return (
        diagnosis.failure_type is FailureType.EXTERNAL_FAULT
        and diagnosis.severity is Severity.RETRIABLE
    )


_UNCURED = (Cause.CONFLICT, Cause.BAD_RESPONSE)
_LOCKED = 423
_LOCKS = ("busy", "lock", "locked")
"""The last words of rules about a lock that somebody else holds, which is a conflict that passes."""


def waiting_cures(context: FailureContext) -> bool:
    """Whether the same call succeeds later by itself.

    False for a conflict that is no lock (a used idempotency key, another version) and for an answer that
    cannot be read, unless the other side asks to wait.
    """
    diagnosis, error = context.diagnosis, context.error
    if not may_pass(diagnosis):
        return False
    if diagnosis.cause not in _UNCURED or diagnosis.retry_after_s is not None:
        return True
    if error is not None and any(info.status_code == _LOCKED for info in error.walk()):
        return True
    rules = [item.rule.rpartition(".")[2] for item in diagnosis.evidence[:1]]
    return any(rule in _LOCKS for rule in rules)


_TRIES = 3
_TRIES_UNCURED = 2
_PATIENCE_S = 20.0


def better_told(context: FailureContext, delay: float) -> bool:
    """Whether a model is to hear of this failure rather than wait another `delay` seconds.

    A tool that the model chose is tried three times, or for 20 s: there may be another way. What waiting
    does not cure is tried twice.
    """
    if not context.hint_read:
        return False
    if not waiting_cures(context):
        return outage_of(context).retries + 1 >= _TRIES_UNCURED
    step = failed_tool(context)
    if step is None:
        return False
    outage = outage_of(context, step.tool_called)
    return outage.retries + 1 >= _TRIES or outage.seconds + delay > _PATIENCE_S


def outage_of(context: FailureContext, tool: str | None = None) -> Outage:
    """Measure the outage that this failure belongs to.

    It begins when the other side first fails, and begins anew after an attempt that made progress: see
    `_Progress`. tool: count only failures in a row of this tool; None counts all.
    """
    past = context.attempt_history
    progress = _progress(context)
    retries, seconds = 0, 0.0
    took = context.attempt_s
    for at in range(len(past) - 1, -1, -1):
        before = past[at]
        if not may_pass(before.diagnosis) or progress[at + 1] is not _Progress.NONE:
            break
        if tool is not None and getattr(failed_tool(before), "tool_called", None) != tool:
            break
        retries += isinstance(before.action, Retry)
        delay = before.action.delay if isinstance(before.action, DELAYED) else 0.0
        seconds += took + delay
        took = max(0.0, before.ended - before.started)
    return Outage(retries, seconds)


def outage_repeats(context: FailureContext) -> int:
    """Count the attempts that only found the other side still down, or came further than any before.

    The first attempt of an outage is left out, so that an outage counts as one attempt. So is one that
    did different work without coming further, or else a run could fail forever at ever different work.
    """
    progress = _progress(context)
    diagnoses = [*(one.diagnosis for one in context.attempt_history), context.diagnosis]
    return sum(
        isinstance(before.action, Retry)
        and before.action.outage
        and may_pass(diagnoses[number])
        and progress[number] is not _Progress.OTHER
        for number, before in enumerate(context.attempt_history, start=1)
    )


class _Progress(Enum):
    """What an attempt achieved that none before it had. Failed steps do not count.

    FURTHER: more steps than any before. OTHER: no more steps, but a new tool call. NONE: neither, or it
    ended with a tool call that has failed before and not succeeded since. A model's words are no
    progress, as it says the same in other words when asked again.
    """

    NONE = "none"
    OTHER = "other"
    FURTHER = "further"


def _progress(context: FailureContext) -> list[_Progress]:
    """Return the progress of each attempt of the run, the failed one last."""
    found: list[_Progress] = []
    most, calls, failing = 0, set[tuple[str, str]](), set[tuple[str, str]]()
    attempts: tuple[FailureContext | Attempt, ...] = (*context.attempt_history, context)
    for failed in attempts:
        done = [step for step in failed.trajectory.steps if step.error is None]
        called = {_call(step) for step in done if step.tool_called is not None}
        last = _last_step(failed)
        call = None if last is None or last.tool_called is None else _call(last)
        failing -= called
        if call in failing:
            found.append(_Progress.NONE)
        elif len(done) > most:
            found.append(_Progress.FURTHER)
        else:
            found.append(_Progress.OTHER if called - calls else _Progress.NONE)
        most = max(most, len(done))
        calls |= called
        if call is not None:
            failing.add(call)
    return found


def _call(step: Step) -> tuple[str, str]:
    return step.tool_called or "", repr(step.tool_input)


# TOML: files of users, with errors that name the file, and text of our own.


def read_toml(path: Path, where: str) -> dict[str, Any]:
    """Read a file of TOML.

    Raises UsageError, which begins with `where`, for one that cannot be read or is not TOML.
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{where}: is not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text of TOML. Raises ValueError for any other."""
    import tomllib  # an import of triage would take longer by 3 ms for what few programs use

    return tomllib.loads(text)
