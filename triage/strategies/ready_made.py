"""Strategies that call the function again as it is: after a while, or with the tools named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, cast

from msgspec.structs import force_setattr

from triage.core import actions
from triage.core.constructors import Struct
from triage.core.errors import UsageError, check_count, check_number, misuse
from triage.core.failures import ErrorInfo, FailureContext, words_of
from triage.core.json_values import texts_within
from triage.core.patterns import Pattern
from triage.core.quoting import call_text, quote
from triage.core.steps import Step
from triage.core.taxonomy import UNSAFE, Cause, FailureType, Severity

from .base import (
    Answer,
    Outage,
    Strategy,
    always,
    answer_of,
    as_strategy,
    better_told,
    cannot_be_shorter,
    counted,
    failed_tool,
    last_failed,
    may_pass,
    named,
    needs_a_person,
    no_retry,
    nothing_new,
    outage_of,
    same_again,
    sentences,
    then,
    used_up,
    waiting_cures,
)

# How long to wait before a retry: `Backoff`, and presets that also say how often to retry.


_FLOOR = 0.5
"""The part of a delay that jitter never shortens."""


class Backoff(Struct, frozen=True):
    """A delay that grows with every retry.

    Before retry n, from 1, the delay is `min(cap, base * factor ** (n - 1))` seconds. Half of it is
    fixed, and a random part of the other half is added, which keeps many clients from coming back
    together. It is never less than what the other side asked for.

    base: seconds, 1 by default; 0 never waits. factor: from 1, 2 by default. cap: seconds, 60 by
    default. jitter: False waits the whole time. Raises UsageError, which names the field.

    With the defaults and no jitter: 1, 2, 4, 8, 16, 32, 60, 60, … seconds.

    >>> [Backoff(jitter=False).delay(n) for n in (1, 2, 3, 7)]
    [1.0, 2.0, 4.0, 60.0]
    >>> Backoff(base=2.0).delay(3, draw=0.25)
    5.0
    >>> Backoff(base=2.0).delay(3, draw=0.25, retry_after_s=90)
    90.0
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    jitter: bool = True

    CAPABILITY: ClassVar[Preset]
    INFRA: ClassVar[Preset]
    EXTRACT: ClassVar[Preset]
    CLASSIFY: ClassVar[Preset]
    LLM: ClassVar[Preset]
    WRITE: ClassVar[Preset]

    def __post_init__(self) -> None:
        check_number("Backoff.base", self.base, "seconds")
        check_number("Backoff.factor", self.factor, "", least=1.0)
        check_number("Backoff.cap", self.cap, "seconds")
        if not isinstance(self.jitter, bool):
            raise misuse("Backoff.jitter", self.jitter, "True or False")

    def delay(self, n: int, draw: float = 1.0, retry_after_s: float | None = None) -> float:
        """Seconds to wait before retry `n`.

        n: from 1. draw: the random number for this failure, from 0 to 1; `FailureContext.draw` has
        one. Not used without jitter. retry_after_s: what the other side asked for, seconds; the
        delay is never less, whatever the cap. Raises UsageError for an `n` or a `draw` outside.
        """
        check_count("Backoff.delay n", n, 1, "the first retry is 1")
        if not 0 <= draw <= 1:
            raise misuse("Backoff.delay draw", draw, "a number from 0 to 1")
        seconds = min(self.cap, self._grown(n - 1))
        if self.jitter:
            seconds *= _FLOOR + (1 - _FLOOR) * draw
        return float(seconds if retry_after_s is None else max(seconds, retry_after_s))

    def _grown(self, times: int) -> float:
        if self.base == 0 or self.factor == 1:
            return self.base
        try:
            return self.base * self.factor**times
        except OverflowError:
            return self.cap


class Preset(NamedTuple):
    """A known way of trying again: how often, and how long to wait.

    attempts: calls altogether, the first one included, so 1 never retries. backoff: what waits
    between them. `backoff_and_retry.preset(Backoff.LLM)` makes a strategy of one.
    """

    attempts: int
    backoff: Backoff

    @property
    def retries(self) -> int:
        """Calls after the first one."""
        return self.attempts - 1


Backoff.CAPABILITY = Preset(3, Backoff(0.5, 1.5))
"""A tool or capability of your own: 3 attempts, 0.5 s, factor 1.5."""
Backoff.INFRA = Preset(2, Backoff(0.2, 1.2))
"""Local infrastructure, quick to answer: 2 attempts, 0.2 s, factor 1.2."""
Backoff.EXTRACT = Preset(3, Backoff(1.0, 1.5))
"""A small model call, such as extracting a task: 3 attempts, 1 s, factor 1.5."""
Backoff.CLASSIFY = Preset(4, Backoff(1.0, 1.8))
"""Many concurrent model calls: 4 attempts, 1 s, factor 1.8."""
Backoff.LLM = Preset(4, Backoff(2.0, 2.0))
"""A long model call, such as planning: 4 attempts, 2 s, factor 2."""
Backoff.WRITE = Preset(1, Backoff(2.0, 2.0))
"""A write to hardware or another system: 1 attempt, because a second could write twice."""

_DEFAULT_BACKOFF = Backoff()
_MOST_TOOLS = 64
_DEFAULT_RETRIES = 5
_NO_TIME = 1e-3
"""Seconds below which a clock cannot be trusted."""


class backoff_and_retry(Struct, frozen=True):
    """Wait, longer every time, and call the function again.

    max_attempts: retries for this failure type in this run, 5 by default; 0 never retries. For an
    external fault that may pass, only those since the run last made progress count. None: retries for
    `Limits.outage_seconds` of the run, 300 s by default, if waiting cures the failure, and 5 times
    for anything else, such as a conflict or an unreadable answer. backoff: how long to wait, at least
    what the other side asked for (`diagnosis.retry_after_s`). The next attempt is told the diagnosis'
    hint, if it has one.

    Escalates once the retries or the seconds are used up; at once if the delay would pass the run's
    deadline, or if the diagnosis is CRITICAL or FATAL (a wrong key, a spent quota), which waiting
    cannot fix.

    >>> backoff_and_retry(max_attempts=3)  # doctest: +ELLIPSIS
    backoff_and_retry(max_attempts=3, backoff=Backoff(base=1.0, factor=2.0, ...))
    """

    max_attempts: int | None = 5
    backoff: Backoff = _DEFAULT_BACKOFF
    same_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            remedy = "it counts retries; None holds out for Limits(outage_seconds=…)"
            check_count("backoff_and_retry.max_attempts", self.max_attempts, 0, remedy)
        backoff: object = self.backoff
        if not isinstance(backoff, Backoff):
            is_preset = isinstance(backoff, Preset)
            remedy = "write backoff_and_retry.preset(…) for a preset" if is_preset else ""
            raise misuse("backoff_and_retry.backoff", self.backoff, "a Backoff", remedy)

    @classmethod
    def preset(cls, preset: Preset) -> Self:
        """Make the strategy of a preset: `backoff_and_retry.preset(Backoff.LLM)` retries 3 times."""
        return cls(preset.retries, preset.backoff)

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        diagnosis, left = context.diagnosis, context.seconds_left
        outage = outage_of(context) if may_pass(diagnosis) else None
        tried = context.tried(actions.Retry) if outage is None else outage.retries
        asked = diagnosis.retry_after_s
        most = _DEFAULT_RETRIES if self.max_attempts is None else self.max_attempts
        holds_out = self.max_attempts is None and waiting_cures(context)
        stop = needs_a_person(context)
        remaining = None
        if holds_out and outage is not None:
            if context.outage_seconds is not None:
                remaining = context.outage_seconds - outage.seconds
            if remaining is not None and remaining <= _NO_TIME:
                stop = stop or _given_up(context, outage)
        else:
            stop = stop or used_up(context, "retried", tried, most)
        if stop is not None:
            return stop
        delay = self.backoff.delay(tried + 1, context.draw, asked)
        if remaining is not None and asked is None:
            delay = min(delay, remaining)
        if left is not None and delay > left:
            until = f"{max(left, 0.0):.3g} s are left to the deadline"
            return actions.Escalate(f"the next retry would wait {delay:.3g} s, and {until}")
        return actions.Retry(hint=diagnosis.hint, delay=delay, outage=holds_out)


def _given_up(context: FailureContext, outage: Outage) -> actions.Escalate:
    often = f"and was tried again {counted(outage.retries)}" if outage.retries else ""
    lasted = f"the outage has lasted {outage.seconds:.4g} s {often}".rstrip()
    return actions.Escalate(
        f"{named(context)}: {lasted} (the most is {context.outage_seconds:g} s, Limits.outage_seconds)"
    )


class retry_expired_credential(Struct, frozen=True):
    """Call the function again after a credential has expired, so that it is fetched anew.

    max_attempts: retries after refusals in this run, 1 by default. Retries only after a refusal (401, 403)
    whose message says that something has expired. If an earlier read gave a value that the refused call
    was made with (a token, a signed URL), or was a login by its name, all reads are made again; otherwise
    only the refused call.

    Escalates for any other refusal, and once the retries are used up.
    """

    max_attempts: int = 1

    def __post_init__(self) -> None:
        field = "retry_expired_credential.max_attempts"
        check_count(field, self.max_attempts, 0, "it counts retries")

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        error = context.error
        expired = error is not None and any(map(_expired, error.walk()))
        if not expired or context.diagnosis.cause not in _REFUSALS:
            return needs_a_person(context) or actions.Escalate(
                f"{named(context)}: nothing has expired"
            )
        tried = sum(
            past.diagnosis.cause in _REFUSALS
            and isinstance(past.action, actions.Retry | actions.Replan)
            for past in context.attempt_history
        )
        stop = used_up(context, "tried again", tried, self.max_attempts)
        if stop is not None:
            return stop
        if _given_before(context) or any(map(_reads_credential, context.trajectory.steps)):
            return actions.Replan("A credential had expired. Fetch it again, and go on as before.")
        return actions.Retry()


_REFUSALS = (Cause.AUTH, Cause.PERMISSION)
_EXPIRED = Pattern(r"(?i)\bexpired?\b|\bexpiry\b|ExpiredToken|token_expired")
_CREDENTIAL = Pattern(
    r"(?i)(?:^|[^a-z])(?:access|auth\w*|credentials?|login|log_in|oauth|session|sign_in|tokens?)(?:[^a-z]|$)"
)


def _expired(info: ErrorInfo) -> bool:
    body = "" if info.body is None else str(info.body)
    said = (info.message, info.code or "", info.type_name, body)
    return any(_EXPIRED.search(text[:4_000]) for text in said)


def _given_before(context: FailureContext) -> bool:
    """Whether the refused call was made with a value that an earlier read of this attempt gave."""
    refused = last_failed(context)
    if refused is None:
        return False
    used = [text for text in texts_within(refused.tool_input) if len(text) >= _SHORTEST_CREDENTIAL]
    return any(
        given in text or text in given
        for step in context.trajectory.steps
        if step is not refused and step.error is None and step.effect not in UNSAFE
        for given in texts_within(step.tool_output)
        if len(given) >= _SHORTEST_CREDENTIAL
        for text in used
    )


_SHORTEST_CREDENTIAL = 6


def _reads_credential(step: Step) -> bool:
    """Whether a step read a token or the like, judging by the name of its tool."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", step.tool_called or "")
    return step.error is None and bool(_CREDENTIAL.search(name))


class retry_with_tool_manifest(Struct, frozen=True):
    """Call the function again and say which tools exist.

    max_attempts: retries for this failure type in this run, 3 by default. The hint names the tools of
    `context.tools`, at most 64 of them unless the diagnosis' hint already names them all, and ends with
    that hint; it is never empty. Escalates once the retries are used up, and at once if the diagnosis is
    CRITICAL or FATAL.
    """

    max_attempts: int = 3

    def __post_init__(self) -> None:
        field = "retry_with_tool_manifest.max_attempts"
        check_count(field, self.max_attempts, 0, "it counts retries")

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        stop = no_retry(context, self.max_attempts)
        if stop is not None:
            return stop
        told = context.diagnosis.hint
        return actions.Retry(hint=sentences(_manifest(context.tools, told or ""), told))


def _manifest(tools: tuple[str, ...], told: str) -> str:
    """Ask for existing tools, listing them unless the hint that follows names them all."""
    if all(_names(told, tool) for tool in tools[:_MOST_TOOLS]):
        return "Call only tools that exist, by their exact names."
    listed = ", ".join(tools[:_MOST_TOOLS])
    more = len(tools) - _MOST_TOOLS
    rest = f" and {more} more" if more > 0 else ""
    return f"Call only these tools, by their exact names: {listed}{rest}."


def _names(text: str, tool: str) -> bool:
    """Whether a tool's name appears in a text as a whole word."""
    return re.search(rf"(?<![\w.-]){re.escape(tool)}(?![\w-])", text) is not None


# Strategies made of strategies: in sequence, with a fallback, by severity.


@dataclass(frozen=True, init=False, repr=False)
class sequence:
    """Give the n-th failure of a type in a run the n-th strategy; escalate after the last.

    `sequence(backoff_and_retry(), replan())` retries once, replans once and then escalates.
    Raises UsageError without strategies, or for a value that is neither a strategy nor an action.
    """

    is_composite: ClassVar[bool] = True
    strategies: tuple[Strategy, ...]

    def __init__(self, *strategies: Strategy | actions.Action) -> None:
        if not strategies:
            raise UsageError("sequence needs at least one strategy; write sequence(replan(), …)")
        made = (as_strategy(f"sequence[{n}]", value) for n, value in enumerate(strategies))
        object.__setattr__(self, "strategies", tuple(made))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        n, most = context.failures(), len(self.strategies)
        if n <= most:
            return answer_of(self.strategies[n - 1], context)
        what = "the only strategy has" if most == 1 else f"all {most} strategies have"
        return actions.Escalate(f"{named(context)}: failed {counted(n)}, and {what} had a turn")

    @property
    def same_again(self) -> bool:
        """Whether each of them only tries again."""
        return nothing_new(self.strategies)

    def __repr__(self) -> str:
        return f"sequence({', '.join(map(repr, self.strategies))})"


class chain(Struct, frozen=True):
    """Answer as `primary`, or as `fallback` whenever primary's action is one of `after` (Escalate).

    `chain(rollback_to_checkpoint(), replan())` rolls back as long as that strategy does, then replans.
    A primary that raises is a bug, so fallback is not asked.

    Where the diagnosis is CRITICAL or FATAL, a fallback that would only try again (`replan`,
    `ask_again` and similar, or a combination of these) is not asked, nor after a CONTEXT_OVERFLOW where
    nothing more can be left out of the request. An external fault that waiting
    cannot fix skips a `backoff_and_retry`. A wait longer than `Limits.longest_wait` is skipped if
    fallback has another model or tool. Where a model can hear it, `backoff_and_retry(None)` asks fallback
    after three tries or 20 s of a tool that the model chose, and after two tries of what waiting does not
    cure; it goes on waiting if fallback does not proceed.
    """

    is_composite: ClassVar[bool] = True
    primary: Strategy | actions.Action
    fallback: Strategy | actions.Action
    after: tuple[type[actions.RecoveryAction], ...] = (actions.Escalate,)

    def __post_init__(self) -> None:
        force_setattr(self, "primary", as_strategy("chain.primary", self.primary))
        force_setattr(self, "fallback", as_strategy("chain.fallback", self.fallback))
        force_setattr(self, "after", _kinds(self.after))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        fallback = cast("Strategy", self.fallback)
        primary = cast("Strategy", self.primary)
        holds_out = isinstance(primary, backoff_and_retry) and primary.max_attempts is None
        asked = partial(answer_of, context=context)

        def go_on(action: actions.Action) -> Answer:
            if isinstance(action, self.after):
                hopeless = needs_a_person(context) or cannot_be_shorter(context)
                if isinstance(action, actions.Escalate) and hopeless and same_again(fallback):
                    return action
                return then(asked(fallback), lambda last: _both(action, last, fallback, context))
            if (
                holds_out
                and isinstance(action, actions.Retry)
                and better_told(context, action.delay)
            ):
                return then(
                    asked(fallback),
                    lambda last: last if isinstance(last, actions.PROCEEDING) else action,
                )
            longest = context.longest_wait
            if (
                isinstance(action, actions.DELAYED)
                and longest is not None
                and action.delay > longest
            ):
                return _another(fallback, context) or action
            return action

        if isinstance(primary, backoff_and_retry) and _needs_a_plan(context):
            return asked(fallback)
        return then(asked(primary), go_on)

    @property
    def same_again(self) -> bool:
        """Whether both only try again."""
        return nothing_new((self.primary, self.fallback))

    def __repr__(self) -> str:
        after = ", ".join(kind.__name__ for kind in self.after)
        shown = "" if self.after == (actions.Escalate,) else f", after=({after},)"
        return f"chain({self.primary!r}, {self.fallback!r}{shown})"


class by_severity(Struct, frozen=True):
    """Use one strategy for each severity of the diagnosis.

    otherwise: for the severities without their own. retriable, replanning, reclassification: None uses
    `otherwise`. critical: for CRITICAL and FATAL; None escalates, whatever `otherwise` is, because these
    need a person.

    `by_severity(replan(), retriable=backoff_and_retry())` waits for what passes by itself, replans
    for the rest, and hands over what needs a person.
    """

    is_composite: ClassVar[bool] = True
    otherwise: Strategy | actions.Action
    retriable: Strategy | actions.Action | None = None
    replanning: Strategy | actions.Action | None = None
    reclassification: Strategy | actions.Action | None = None
    critical: Strategy | actions.Action | None = None

    def __post_init__(self) -> None:
        for name in ("otherwise", "retriable", "replanning", "reclassification", "critical"):
            value = getattr(self, name)
            if value is not None or name == "otherwise":
                force_setattr(self, name, as_strategy(f"by_severity.{name}", value))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        match context.diagnosis.severity:
            case Severity.RETRIABLE:
                chosen = self.retriable
            case Severity.REPLANNING:
                chosen = self.replanning
            case Severity.RECLASSIFICATION:
                chosen = self.reclassification
            case Severity.CRITICAL | Severity.FATAL:
                stop = needs_a_person(context)
                chosen = stop if self.critical is None else self.critical
                if isinstance(chosen, actions.Escalate):
                    return chosen
        return answer_of(cast("Strategy", self.otherwise if chosen is None else chosen), context)

    def __repr__(self) -> str:
        given = (
            f", {name}={getattr(self, name)!r}"
            for name in ("retriable", "replanning", "reclassification", "critical")
            if getattr(self, name) is not None
        )
        return f"by_severity({self.otherwise!r}{''.join(given)})"


def _both(
    first: actions.Action, last: actions.Action, fallback: Strategy, context: FailureContext
) -> actions.Action:
    """Join the reasons if both escalate; a fixed Escalate given as fallback keeps its own reason."""
    if not (isinstance(first, actions.Escalate) and isinstance(last, actions.Escalate)):
        return last
    if isinstance(fallback, always) or not first.reason or not last.reason:
        return last
    more = last.reason.removeprefix(f"{named(context)}: ")
    reason = first.reason if more in first.reason else f"{first.reason}; {more}"
    return actions.Escalate(reason, compensate=first.compensate or last.compensate)


def _another(strategy: Strategy, context: FailureContext) -> actions.Action | None:
    """Ask the first part of a strategy that has another model or tool; None if none proceeds."""
    if isinstance(strategy, chain):
        primary, fallback = cast("Strategy", strategy.primary), cast("Strategy", strategy.fallback)
        return _another(primary, context) or _another(fallback, context)
    if getattr(strategy, "has_another", False) is not True:
        return None
    answer = answer_of(strategy, context)
    return answer if isinstance(answer, actions.PROCEEDING) else None


def _needs_a_plan(context: FailureContext) -> bool:
    """Whether the other side failed in a way that needs another plan rather than waiting."""
    diagnosis = context.diagnosis
    if diagnosis.severity not in (Severity.REPLANNING, Severity.RECLASSIFICATION):
        return False
    return (
        diagnosis.failure_type is FailureType.EXTERNAL_FAULT or diagnosis.cause == Cause.NOT_FOUND
    )


def _kinds(after: Any) -> tuple[type[actions.Action], ...]:
    kinds: list[Any] = list(after) if hasattr(after, "__iter__") else [after]
    for kind in kinds:
        if kind not in actions.ACTIONS:
            wanted = "a tuple of action classes"
            raise misuse("chain.after item", kind, wanted, "write after=(Escalate, Abort)")
    return tuple(kinds)


# Strategies that continue differently: another plan, an earlier point, the next subgoal.


class replan(Struct, frozen=True):
    """Call the function again with a new plan.

    hint: for the next attempt; None uses the diagnosis' hint, or a sentence that asks for another plan;
    after an external fault it also names the failed call and quotes its error.
    max_replans: for this failure type in this run, 3 by default; after an external fault of a tool that
    a model chose, for each tool. Waits first if the other side asks for it, unless another tool may do.

    Escalates once they are used up, or if that wait would pass the deadline.
    """

    hint: str | None = None
    max_replans: int = 3
    same_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_text("replan.hint", self.hint)
        check_count("replan.max_replans", self.max_replans, 0)

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        external = context.failure_type is FailureType.EXTERNAL_FAULT
        step = failed_tool(context) if external and context.hint_read else None
        times = context.tried(actions.Replan) if step is None else _replanned_for(context, step)
        stop = used_up(context, "replanned", times, self.max_replans)
        if stop is not None:
            return stop
        asked = context.diagnosis.retry_after_s if external and step is None else None
        delay, left = asked or 0.0, context.seconds_left
        if left is not None and delay > left:
            return actions.Escalate(
                f"{named(context)}: the other side asks to wait {delay:.3g} s, and "
                f"{max(left, 0.0):.3g} s are left to the deadline"
            )
        if self.hint is None and external:
            call = failed_call(context)
            hint = None if call is None else sentences(context.diagnosis.hint, call)
            return actions.Replan(hint, delay)
        return actions.Replan(self.hint, delay)


def _replanned_for(context: FailureContext, step: Step) -> int:
    """Count the new plans that were made because of the same tool."""
    failed = (
        failed_tool(past)
        for past in context.attempt_history
        if past.failure_type is context.failure_type and isinstance(past.action, actions.Replan)
    )
    return sum(one is not None and one.tool_called == step.tool_called for one in failed)


class rollback_to_checkpoint(Struct, frozen=True):
    """Restore the steps and the state of an earlier point and call the function from there.

    checkpoint_id: None takes the last position before the critical step, or the last one if no step is
    critical; the start, if the first step is. max_rollbacks: for this failure type in this run, 3 by
    default. hint: None says that the work was taken back, and adds the diagnosis' hint.

    Escalates once the rollbacks are used up, or if nothing was recorded that could be taken back.
    """

    checkpoint_id: int | None = None
    max_rollbacks: int = 3
    hint: str | None = None
    same_again: ClassVar[bool] = True

    _TAKEN_BACK: ClassVar[str] = (
        "The work was taken back to an earlier point, and goes on from the state it had there. "
        "What was done after that point no longer counts: do it another way."
    )

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.checkpoint_id is not None:
            check_count(f"{name}.checkpoint_id", self.checkpoint_id, 0)
        _check_text(f"{name}.hint", self.hint)
        check_count(f"{name}.max_rollbacks", self.max_rollbacks, 0)

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        stop = used_up(context, "rolled back", context.tried(actions.Rollback), self.max_rollbacks)
        if stop is not None:
            return stop
        anything = context.checkpoint_id is not None or context.trajectory.steps or context.state
        if self.checkpoint_id is None and not anything:
            return actions.Escalate(
                f"{named(context)}: nothing was recorded that could be rolled back"
            )
        hint = sentences(self.hint) or sentences(self._TAKEN_BACK, context.diagnosis.hint)
        return actions.Rollback(self.checkpoint_id, hint)


class compensating_rollback(rollback_to_checkpoint, frozen=True):
    """Undo what the attempt did to the world after a point, and call the function from there.

    Rolls back as `rollback_to_checkpoint` does. Every rollback runs the compensators of completed calls
    after the checkpoint, newest first; this strategy also tells the next attempt, and rolls back only
    once by default, because undoing has a cost of its own.
    """

    max_rollbacks: int = 1

    _TAKEN_BACK: ClassVar[str] = (
        "The work was taken back to an earlier point, and what had been done to the outside world "
        "after that point was undone. Where it is still needed, it must be done again."
    )


class resume_from_subgoal(Struct, frozen=True):
    """Keep the state and completed work, and continue with the first open subgoal.

    max_resumes: for this failure type in this run, 3 by default. The diagnosis' hint, if it has
    one, is told too. Escalates once the resumes are used up, or if no declared subgoal is open.
    """

    max_resumes: int = 3
    same_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("resume_from_subgoal.max_resumes", self.max_resumes, 0)

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        stop = used_up(context, "resumed", context.tried(actions.Resume), self.max_resumes)
        if stop is not None:
            return stop
        if not context.open_subgoals:
            return actions.Escalate(f"{named(context)}: there is no open subgoal to resume from")
        return actions.Resume(context.open_subgoals[0], context.diagnosis.hint)


def failed_call(context: FailureContext) -> str | None:
    """Describe the failed call and its error in a sentence; None if no error is known."""
    step = failed_tool(context) or last_failed(context)
    error = context.error
    said = words_of(error) if error is not None else "" if step is None else step.error or ""
    if not said:
        return None
    error_text = quote(said, _LONGEST_ERROR)
    if step is None or step.tool_called is None:
        return f"A call to the other side failed with {error_text}."
    return (
        f"The call {call_text(step)} failed with {error_text}. Reach the goal without it if you can, "
        "or say what is missing."
    )


_LONGEST_ERROR = 300


def _check_text(field: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise misuse(field, value, "a text or None")


# Another model, or another tool.


class switch_model(Struct, frozen=True):
    """Call the function again with the next of these models, which stays in use until the run ends.

    models: names as the provider knows them, tried in this order, each once per failure type and run.
    Recorded calls before the failure are reused, whichever model made them. Recorded clients and
    adapters put the name into each request, and its step says which model was asked; an agent that
    builds its own requests reads `run.guidance.model`, which is None until a model was switched.

    Escalates once all were tried, and where a tool failed rather than a model. Raises UsageError for an
    empty list or a name that is not text.

    >>> switch_model(["gpt-4.1", "gpt-4.1-mini"])
    switch_model(['gpt-4.1', 'gpt-4.1-mini'])
    """

    models: Sequence[str]
    has_another: ClassVar[bool] = True

    def __post_init__(self) -> None:
        force_setattr(self, "models", _different_names("switch_model.models", self.models))

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        steps = context.trajectory.steps
        if context.failure_type is FailureType.EXTERNAL_FAULT and steps:
            last = steps[-1]
            if last.error is not None and last.tool_called is not None:
                tool = last.tool_called
                return actions.Escalate(f"{named(context)}: the tool {tool} failed, not a model")
        past = [
            (attempt.failure_type, attempt.action.model)
            for attempt in context.attempt_history
            if isinstance(attempt.action, actions.Retry) and attempt.action.model is not None
        ]
        asked = past[-1][1] if past else None
        tried = {model for kind, model in past if kind is context.failure_type}
        for model in self.models:
            if model != asked and model not in tried:
                return actions.Retry(context.diagnosis.hint, model=model)
        return actions.Escalate(
            f"{named(context)}: it stayed with every other model ({', '.join(self.models)})"
        )

    def __repr__(self) -> str:
        return f"switch_model({list(self.models)!r})"


class substitute(Struct, frozen=True):
    """Make a new plan with another tool in place of the one that failed.

    tool: the name of a tool. by: names of tools that do the same, tried in this order, each once per
    run. The hint says which tool failed, quoting its error, and which to use.

    Escalates if the failed call is of none of these tools, and once all were tried. Raises UsageError
    for names that are not text, or that are equal.

    >>> substitute("search", by=["search_archive"])
    substitute('search', by=['search_archive'])
    """

    tool: str
    by: Sequence[str]
    has_another: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str) or not self.tool:
            raise misuse("substitute.tool", self.tool, "the name of a tool")
        force_setattr(self, "by", _different_names("substitute.by", self.by))
        if self.tool in self.by:
            raise misuse("substitute.by", list(self.by), f"other tools than {self.tool!r}")

    def __call__(self, context: FailureContext) -> actions.Action:
        """What to do about this failure."""
        step = last_failed(context)
        failed = None if step is None else step.tool_called
        if failed is None or failed not in (self.tool, *self.by):
            return actions.Escalate(
                f"{named(context)}: the call that failed was none of {self.tool}"
            )
        told = [
            attempt.action.hint or ""
            for attempt in context.attempt_history
            if isinstance(attempt.action, actions.Replan)
        ]
        for name in self.by:
            if name == failed or any(self._use(name) in hint for hint in told):
                continue
            return actions.Replan(sentences(failed_call(context), self._use(name)))
        return actions.Escalate(f"{named(context)}: {self.tool} and what stands for it failed, too")

    def _use(self, name: str) -> str:
        return f"In place of the tool {self.tool} use {name}, which does the same."

    def __repr__(self) -> str:
        return f"substitute({self.tool!r}, by={list(self.by)!r})"


def _different_names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise misuse(field, value, "a list of names", "write [name]")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or not name:
            raise misuse(f"{field} item", name, "a name")
    if not names:
        raise misuse(field, list(names), "at least one name")
    if len(set(names)) < len(names):
        raise misuse(field, list(names), "names that differ")
    return cast("tuple[str, ...]", names)
