"""How much a run may use: `Limits`, checked after a failure, before an action and while recording.

All methods are pure: they are given what has been used, and return a `Diagnosis` of the limit that
stops the run, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias

from msgspec.structs import force_setattr, replace

from triage.core.actions import DELAYED, Action, Replan
from triage.core.constructors import Struct
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.errors import check_count, check_number, check_word, misuse
from triage.core.failures import FailureContext
from triage.core.steps import Usage
from triage.core.taxonomy import Cause, FailureType, Level, Severity

from .base import outage_repeats
from .prices import Prices, built_in

_FROM_1 = (
    "attempts", "attempts_per_type", "steps", "tool_calls", "input_tokens", "output_tokens",
    "tokens", "refusals",
)  # fmt: skip
_FROM_0 = ("retries", "replans", "reclassifications", "rollbacks", "resumes")
_AMOUNTS = (
    "seconds", "attempt_seconds", "stall_seconds", "slept_seconds", "outage_seconds",
    "longest_wait", "polling_seconds", "cost_usd",
)  # fmt: skip
_OPEN = "None for no limit"
_WORK = ("steps", "tool_calls", "calls_per_tool")
_WATCHED = (*_WORK, "input_tokens", "output_tokens", "tokens", "cost_usd")
"""The limits that `Limits.watch` checks."""
NO_CALLS: Mapping[str, int] = {}

_UNITS = {
    "attempts_per_type": "attempts ended by this failure type",
    "tool_calls": "tool calls",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "cost_usd": "US dollars",
    "refusals": "refusals of an identical call",
    "seconds": "seconds",
    "slept_seconds": "seconds of waiting between attempts",
}

OnLimit: TypeAlias = Literal["escalate", "suspend"] | Callable[[FailureContext], Any]
"""What happens when a limit is reached: a word or a strategy."""


class Limits(Struct, frozen=True, kw_only=True, dict=True):
    """How much one run may use. None sets no limit.

    attempts: calls of the function, 10 by default; an outage that is waited out counts once, however
    often it is tried. attempts_per_type: attempts that may end with one failure type. retries, replans,
    rollbacks, resumes: actions of that kind, over all failure types; 0 forbids the kind.
    reclassifications: new plans after failures of severity RECLASSIFICATION. refusals: of one call that
    is made again although a person has refused it, 2 by default: the second is refused without asking,
    the third ends the run; counted anew once other work was done. seconds: from the start
    of the run, waiting included; its deadline. attempt_seconds: for each attempt. stall_seconds: for
    which an attempt may record nothing. slept_seconds: of waiting between attempts, in total.
    outage_seconds: of waiting for a service that is down, 300 by default, counted anew once the run has
    made progress. longest_wait: seconds of one wait that the other side asks for, 120 by default; for a
    longer one a run in a durable store is suspended, and any other run ends. polling_seconds: for which
    an attempt may make the same call again and get the same result, where it waits in between or the
    result says that something is not done yet; 3600 by default. steps, tool_calls: in all
    attempts, without reused ones. calls_per_tool: the same by the tool's name. input_tokens,
    output_tokens, tokens (both together), cost_usd (US dollars): in all attempts; an unknown cost does
    not count. on_limit: what happens when a limit is reached: `"escalate"` (default); `"suspend"`,
    which asks a person, whose `approve()` grants the same amount again; or a strategy, which is asked
    once for each limit. prices: of model calls that do not state their cost; None uses the list that
    comes with triage.

    Each limit is a count from 1 (from 0 for the five kinds of actions) or a finite number above 0.
    Raises UsageError, which names the field, for anything else.

    >>> Limits(attempts=3, seconds=60)  # doctest: +ELLIPSIS
    Limits(attempts=3, attempts_per_type=None, ..., seconds=60, ...)
    """

    attempts: int | None = 10
    attempts_per_type: int | None = None
    retries: int | None = None
    replans: int | None = None
    reclassifications: int | None = None
    rollbacks: int | None = None
    resumes: int | None = None
    refusals: int | None = 2
    seconds: float | None = None
    attempt_seconds: float | None = None
    stall_seconds: float | None = None
    slept_seconds: float | None = None
    outage_seconds: float | None = 300.0
    longest_wait: float | None = 120.0
    polling_seconds: float | None = 3600.0
    steps: int | None = None
    tool_calls: int | None = None
    calls_per_tool: Mapping[str, int] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    on_limit: OnLimit = "escalate"
    prices: Prices | None = None

    def __post_init__(self) -> None:
        for least, names in ((1, _FROM_1), (0, _FROM_0)):
            for name in names:
                if getattr(self, name) is not None:
                    check_count(f"Limits.{name}", getattr(self, name), least, _OPEN)
        for name in _AMOUNTS:
            if getattr(self, name) is not None:
                field, unit = f"Limits.{name}", _UNITS.get(name, "seconds")
                check_number(field, getattr(self, name), unit, above=True, remedy=_OPEN)
        if self.calls_per_tool is not None:
            force_setattr(self, "calls_per_tool", _by_tool(self.calls_per_tool))
        if self.prices is not None and not isinstance(self.prices, Prices):
            raise misuse("Limits.prices", self.prices, "a Prices", "write Prices({name: (…)})")
        if not callable(self.on_limit):
            check_word("Limits.on_limit", self.on_limit, ("escalate", "suspend"))

    @cached_property
    def watches(self) -> bool:
        """True if a limit is set that `watch` checks; otherwise nothing needs counting."""
        return any(getattr(self, name) is not None for name in _WATCHED)

    def priced(self, usage: Usage) -> Usage:
        """Add the cost in US dollars to a usage, if the price of its model is known.

        An unknown model is logged once where `cost_usd` is limited.
        """
        if usage.cost_usd is not None or usage.model is None:
            return usage
        prices = self.prices or _listed()
        if self.cost_usd is None and prices.price(usage.model) is None:
            return usage
        cost = prices.cost(usage)
        return usage if cost is None else replace(usage, cost_usd=cost)

    def raised(self, grants: Mapping[str, int]) -> Limits:
        """Copy the limits, granting the amount of each named one that many more times."""
        more: dict[str, Any] = {}
        for limit, times in grants.items():
            name, _, tool = limit.partition(":")
            allowed = more.get(name, getattr(self, name, None))
            # A limit may have been set when it was reached, and not be set in this process.
            if tool and allowed is not None and tool in allowed:
                more[name] = {**allowed, tool: allowed[tool] * (1 + times)}
            elif not tool and allowed is not None:
                more[name] = allowed * (1 + times) or times
        return replace(self, **more)

    def before_call(self, tool: str, tool_calls: int, of_tool: int) -> Diagnosis | None:
        """Before a tool call runs, return the limit it would exceed, or None.

        tool_calls, of_tool: calls so far, of all tools and of this one.
        """
        by_tool = self.calls_per_tool or {}
        for name, used, allowed in (
            ("tool_calls", tool_calls, self.tool_calls),
            (f"calls_per_tool:{tool}", of_tool, by_tool.get(tool)),
        ):
            if allowed is not None and used >= allowed:
                return _reached(Diagnosis(FailureType.PLAN_INCOMPLETE), name, used, allowed)
        return None

    def watch(
        self, steps: int, tool_calls: int, usage: Usage, per_tool: Mapping[str, int] = NO_CALLS
    ) -> Diagnosis | None:
        """While recording, return the limit that the run's totals have exceeded, or None.

        The whole amount may be used: the fourth step exceeds `Limits(steps=3)`. The failure type is
        PLAN_INCOMPLETE, because a count shows only that the work was cut off, not why (a loop is found
        by looking at the steps, not by counting them); the cause is LIMIT.
        """
        for name, used, allowed in self._spending(steps, tool_calls, usage, per_tool):
            if used > allowed:
                return _reached(Diagnosis(FailureType.PLAN_INCOMPLETE), name, used, allowed)
        return None

    def exceeded(
        self,
        context: FailureContext,
        *,
        steps: int = 0,
        tool_calls: int = 0,
        per_tool: Mapping[str, int] = NO_CALLS,
    ) -> Diagnosis | None:
        """After a failure, before deciding, return the limit that forbids another attempt, or None.

        steps, tool_calls: of the whole run so far. The result is the failure's own diagnosis, with the
        cause LIMIT and the severity CRITICAL. Attempts and seconds end the run when they are used up;
        so do tokens and cost, as every attempt costs some. Steps and tool calls end it only when
        exceeded, as an attempt that reuses its calls may need none.
        """
        # A request that was made again in its place counts as an attempt.
        made = max(context.attempt, len(context.attempt_history) + 1)
        if self.attempts is not None and made >= self.attempts:
            asked = sum(past.asked for past in context.attempt_history)
            counted = made - outage_repeats(context) - asked
            if counted >= self.attempts:
                return _reached(context.diagnosis, "attempts", counted, self.attempts)
        late = self._late(context, 0.0)
        if late is not None or not self.watches:
            return late
        for name, used, allowed in self._spending(steps, tool_calls, context.usage, per_tool):
            spent = used > allowed if name.startswith(_WORK) else used >= allowed
            if spent:
                return _reached(context.diagnosis, name, used, allowed)
        return None

    def allows(self, action: Action, context: FailureContext) -> Diagnosis | None:
        """Before an action is taken, return the limit it would exceed, or None if it is allowed.

        Counts the actions taken so far in the run. A delay past the deadline is refused at once rather
        than slept through. Suspend, Escalate and Abort are always allowed.
        """
        if self.reclassifications is not None and isinstance(action, Replan):
            before = sum(
                isinstance(past.action, Replan)
                and past.diagnosis.severity is Severity.RECLASSIFICATION
                for past in context.attempt_history
            )
            again = context.diagnosis.severity is Severity.RECLASSIFICATION
            if again and before >= self.reclassifications:
                return _reached(
                    context.diagnosis, "reclassifications", before, self.reclassifications
                )
        name = _PER_RUN.get(action.kind)
        if name is None:
            return None
        allowed = getattr(self, name)
        if allowed is not None:
            kind = type(action)
            used = sum(
                isinstance(past.action, kind) and not past.asked for past in context.attempt_history
            )
            if used >= allowed:
                return _reached(context.diagnosis, name, used, allowed)
        per_type = self.attempts_per_type
        if per_type is not None and context.failures() >= per_type:
            return _reached(context.diagnosis, "attempts_per_type", context.failures(), per_type)
        delay = delay_of(action)
        if self.slept_seconds is not None and delay > 0:
            slept = sum(delay_of(past.action) for past in context.attempt_history)
            if slept + delay > self.slept_seconds:
                return _reached(
                    context.diagnosis, "slept_seconds", slept, self.slept_seconds, _passing(delay)
                )
        return self._late(context, delay) if delay > 0 else None

    def refused(self, times: int, diagnosis: Diagnosis) -> Diagnosis | None:
        """Before a call is refused so many times, return the limit it would exceed, or None."""
        if self.refusals is None or times <= self.refusals:
            return None
        return _reached(diagnosis, "refusals", times, self.refusals)

    def time_is_up(
        self, field: Literal["seconds", "attempt_seconds", "stall_seconds"]
    ) -> Diagnosis:
        """Diagnose an attempt that ran out of this time."""
        seconds, whole = _amount(getattr(self, field)), field == "seconds"
        return Diagnosis(
            FailureType.EXTERNAL_FAULT,
            cause=Cause.LIMIT if whole else Cause.TIMEOUT,
            severity=Severity.CRITICAL if whole else Severity.RETRIABLE,
            evidence=(Evidence(f"limit:{field}", f"Limits({field}={seconds}) has passed"),),
            technical_details=f"limit {field}: allowed {seconds} s, all of them used",
            user_message="This took longer than allowed.",
            hint="The attempt before took too long. Take fewer or smaller steps.",
            suggestions=(f"Raise Limits({field}=…) if the run was making progress.",),
            classifier="limits",
        )

    def _spending(
        self, steps: int, tool_calls: int, usage: Usage, per_tool: Mapping[str, int]
    ) -> Iterator[tuple[str, float, float]]:
        if self.steps is not None:
            yield "steps", steps, self.steps
        if self.tool_calls is not None:
            yield "tool_calls", tool_calls, self.tool_calls
        for tool, allowed in (self.calls_per_tool or {}).items():
            yield f"calls_per_tool:{tool}", per_tool.get(tool, 0), allowed
        if self.input_tokens is not None:
            yield "input_tokens", usage.input_tokens, self.input_tokens
        if self.output_tokens is not None:
            yield "output_tokens", usage.output_tokens, self.output_tokens
        if self.tokens is not None:
            yield "tokens", usage.total_tokens, self.tokens
        if self.cost_usd is not None and usage.cost_usd is not None:
            # Of a sum of floats: three times 0.1 is no more than 0.3.
            yield "cost_usd", round(usage.cost_usd, 9), round(self.cost_usd, 9)

    def too_long(self, action: Action, asked: float | None) -> bool:
        """Whether an action waits longer than `longest_wait` because the other side asks for that.

        asked: the seconds it asks for, None for none. A longer wait of the action's own is allowed.
        """
        longest = self.longest_wait
        if asked is None or longest is None:
            return False
        return asked > longest and delay_of(action) > longest

    def _late(self, context: FailureContext, delay: float) -> Diagnosis | None:
        """Return the deadline as a diagnosis, if it has passed or `delay` more seconds would pass it."""
        left = context.seconds_left
        if self.seconds is not None:
            own = self.seconds - context.elapsed_s
            left = own if left is None else min(left, own)
        if left is None or (left >= delay if delay else left > 0):
            return None
        elapsed = context.elapsed_s
        allowed = elapsed + left if self.seconds is None else self.seconds
        return _reached(context.diagnosis, "seconds", elapsed, allowed, _passing(delay))


@cache
def _listed() -> Prices:
    """Return the built-in prices only: `Prices()` would import more, and this runs in an event loop."""
    return Prices(built_in()[0], listed=False)


_PER_RUN = {"retry": "retries", "replan": "replans", "rollback": "rollbacks", "resume": "resumes"}
"""The limit on the number of actions, by their kind."""


def delay_of(action: Action | None) -> float:
    """Return the seconds an action waits before the next attempt."""
    return action.delay if isinstance(action, DELAYED) else 0.0


def _passing(delay: float) -> str:
    """What is said of a wait that would pass a limit; empty for none."""
    return f"; waiting another {_amount(delay)} s would pass it" if delay else ""


def limit_of(breach: Diagnosis) -> str:
    """Return the name of the limit that a diagnosis says was reached."""
    return breach.evidence[0].rule.removeprefix("limit:")


def _by_tool(given: object) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise misuse("Limits.calls_per_tool", given, "a mapping of tool names to counts", _OPEN)
    for tool, count in given.items():
        if not isinstance(tool, str) or not tool:
            raise misuse("Limits.calls_per_tool key", tool, "the name of a tool")
        check_count(f"Limits.calls_per_tool[{tool!r}]", count, 1, "leave it out for no limit")
    return dict(given)


def _reached(
    diagnosis: Diagnosis, name: str, used: float, allowed: float, tail: str = ""
) -> Diagnosis:
    """Return `diagnosis` with the limit as its cause."""
    rule = f"limit:{name}"
    if diagnosis.cause is Cause.LIMIT and any(rule == item.rule for item in diagnosis.evidence):
        return diagnosis
    field, _, tool = name.partition(":")
    unit = f"calls of {tool}" if tool else _UNITS.get(name, name)
    details = f"limit {name}: used {_amount(used)}, allowed {_amount(allowed)}{tail}"
    if diagnosis.evidence or diagnosis.technical_details:
        details += f"; the failure itself: {diagnosis}"
    if diagnosis.technical_details:
        details += f"; {diagnosis.technical_details}"
    text = f"{_amount(used)} of {_amount(allowed)} {unit} used{tail}"
    advice = f"Raise Limits({field}=…) if the run was making progress."
    return replace(
        diagnosis,
        cause=Cause.LIMIT,
        severity=Severity.CRITICAL,
        level=Level.CRITICAL if diagnosis.level is Level.CRITICAL else Level.HIGH,
        evidence=(Evidence(rule, text), *diagnosis.evidence),
        user_message=f"The run has reached its limit of {_amount(allowed)} {unit}.",
        technical_details=details,
        suggestions=(advice, *diagnosis.suggestions),
        classifier="limits",
    )


def _amount(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
