"""What a tested run did, as values and as text a person reads in a failed test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triage.events import CallFinished, CallStarted, CompensatorRan, Event, RunStarted
from triage.failures import Attempt
from triage.redact import redact
from triage.state import RunState, fold
from triage.taxonomy import UNSAFE

from ._plan import FaultPlan, Injected, Performed

_LONGEST = 300
_MOST_ATTEMPTS = 30
"""Attempts that the text shows."""


@dataclass(frozen=True)
class Account:
    """What a tested run did.

    result: what it returned, None where it did not. error: what it raised, None where it returned.
    seconds: on the run's own clock. events: its journal. restarts: how often it was recovered after a
    crash. plan: as given, None without one. `str()` of it tells it all, as failed assertions do.
    """

    result: Any
    error: BaseException | None
    seconds: float
    events: tuple[Event, ...]
    restarts: int = 0
    plan: FaultPlan | None = None

    @cached_property
    def state(self) -> RunState:
        """The run, as its journal tells it."""
        return fold(self.events)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.state.run_id

    @property
    def attempts(self) -> int:
        """How many attempts there were."""
        return self.state.attempt

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """The attempts that failed, oldest first, each with its diagnosis and action."""
        return tuple(self.state.history)

    @property
    def injected(self) -> tuple[Injected, ...]:
        """The plan's faults that happened in this run."""
        if self.plan is None:
            return ()
        return tuple(done for done in self.plan.injected if done.run_id == self.run_id)

    @property
    def effects(self) -> Counter[str]:
        """How often each tool took effect and was not undone, by name.

        For a tool that the plan wraps, its body is counted, so a call whose answer was lost counts;
        for others the completed calls of the journal are.
        """
        found: Counter[str] = Counter()
        for key, times in self._by_call().items():
            found[_tool_of(key)] += times
        return +found

    @property
    def repeated(self) -> tuple[str, ...]:
        """Calls with the effect `once` or `unknown` that took effect more than once; each as text."""
        unsafe = {e.key for e in self._starts.values() if e.effect in UNSAFE}
        unsafe |= {self._key(done) for done in self._performed if done.effect in UNSAFE}
        shown = {event.key: event.arguments for event in self._starts.values()}
        return tuple(
            f"{_tool_of(key)} took effect {times} times for one call, with {shown.get(key)}"
            for key, times in self._by_call().items()
            if times > 1 and key in unsafe
        )

    @cached_property
    def _starts(self) -> dict[str, CallStarted]:
        """The starts of calls by what a wrapped tool knows of its call."""
        starts = (event for event in self.events if isinstance(event, CallStarted))
        return {event.idempotency_key: event for event in starts}

    @cached_property
    def _performed(self) -> list[Performed]:
        """The bodies of wrapped tools that have run in this run."""
        if self.plan is None:
            return []
        return [done for done in self.plan.performed if done.run_id == self.run_id]

    def _key(self, done: Performed) -> str:
        """The call's key in the journal; one of the same form for a call of a run inside this one."""
        started = self._starts.get(done.call or "")
        return f"{done.tool}:{done.call}:1" if started is None else started.key

    def _by_call(self) -> Counter[str]:
        """How often each call took effect, less how often it was undone, by its key in the journal."""
        found = Counter(self._key(done) for done in self._performed)
        wrapped = {done.tool for done in self._performed}
        for event in self.events:
            match event:
                case CallFinished(outcome="done", replayed=False, key=key):
                    if _tool_of(key) not in wrapped:
                        found[key] += 1
                case CompensatorRan(error=None, begins=False, key=key):
                    found[key] -= 1
                case _:
                    pass
        return found

    def __str__(self) -> str:
        lines = [f"the run {self._ending()}"]
        if self.events:
            lines.append(f"attempts: {self.attempts}, {self.seconds:g} s on its own clock")
        if self.restarts:
            lines.append(f"restarts after a crash: {self.restarts}")
        for attempt in self.failures[:_MOST_ATTEMPTS]:
            lines += _told(attempt)
        if len(self.failures) > _MOST_ATTEMPTS:
            lines.append(f"and {len(self.failures) - _MOST_ATTEMPTS} failed attempts more")
        if self.plan is not None:
            lines += ["faults:", *(f"  {done}" for done in self.injected or ("none was injected",))]
            lines += [f"  never came: {self.plan.missed(place)}" for place in self.plan.unreached]
        if self.effects:
            done = ", ".join(f"{tool} {times}" for tool, times in sorted(self.effects.items()))
            lines.append(f"took effect: {done}")
        return redact("\n".join(lines))

    def _ending(self) -> str:
        if self.error is None:
            return f"gave {_short(self.result)}"
        name = type(self.error).__name__
        return f"ended in {name}: {_short(str(self.error))}"


def account(
    events: Sequence[Event],
    *,
    result: Any = None,
    error: BaseException | None = None,
    seconds: float = 0.0,
    restarts: int = 0,
    plan: FaultPlan | None = None,
) -> Account:
    """What one run did, from the events that an observer heard."""
    first = next((event.run_id for event in events if isinstance(event, RunStarted)), None)
    own = tuple(event for event in events if event.run_id == first)
    return Account(result, error, seconds, own, restarts, plan)


def _told(attempt: Attempt) -> list[str]:
    lines = [f"attempt {attempt.number}: {attempt.diagnosis}"]
    if attempt.error is not None:
        lines.append(f"  raised {_short(str(attempt.error))}")
    elif attempt.diagnosis.evidence:
        lines.append(f"  because {_short(attempt.diagnosis.evidence[0].text)}")
    if attempt.action is not None:
        lines.append(f"  then {_short(repr(attempt.action))}")
    return lines


def _tool_of(key: str) -> str:
    """The tool of a call's key, which is tool, digest and occurrence; names may hold colons."""
    return key.rsplit(":", 2)[0]


def _short(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not replace what is being told
        text = f"a {type(value).__name__}"
    text = " ".join(text[: _LONGEST + 1].split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def failed(
    account: Account | None, problems: Sequence[str], cause: BaseException | None
) -> AssertionError:
    """The error of a test that failed: what is wrong first, then all that is known."""
    text = "\n".join(problems)
    if account is not None:
        text = f"{text}\n\n{account}"
    error = AssertionError(redact(text))
    error.__cause__ = cause
    return error
