"""Watch a running attempt: a detector's finding is noted, told to the agent, or interrupts the attempt."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from triage.classifiers.detectors.finding import LOOP, Finding
from triage.classifiers.detectors.loops import Calls, Loop, Polling
from triage.classifiers.detectors.watch import Watch
from triage.classifiers.rules import RulesClassifier
from triage.core.diagnosis import Diagnosis
from triage.core.events import Event, StepRecorded, WatchNoticed
from triage.core.failures import Attempt
from triage.core.large_values import json_of
from triage.core.observers import logger
from triage.core.state import is_reused
from triage.core.steps import Constraint, Step
from triage.core.taxonomy import FailureType

from .options import Watching

if TYPE_CHECKING:
    from .run import Recorder


@cache
def standard_rules() -> RulesClassifier:
    """Return the classifier of agents without their own; it has no state, so all share one."""
    return RulesClassifier()


MAX_COMPARED = 250_000
"""Maximum size in bytes of a call's arguments and result for comparison with other calls."""
REPEATED = 3
"""Minimum identical calls in one attempt to count as repeated; fewer are forgotten with the attempt."""
MOST = 10
"""Maximum identical calls over all attempts of a run, if an earlier attempt repeated the call."""
_STOP_AT = 2
"""Number of a call of an interrupted loop, in a later attempt, at which that attempt is interrupted too."""
_LAST_STEPS = 200
_POLLED = LOOP._replace(name="limit:polling_seconds")
"""Rule of polling for longer than the limit."""


class LoopsBefore:
    """Calls that earlier attempts repeated, except polls, and how often this attempt makes them."""

    def __init__(self, history: Sequence[Attempt]) -> None:
        self._before: Counter[str] = Counter()
        self._stopped: set[str] = set()
        # Calls polled for longer than the limit: their number in this attempt, and the earlier evidence.
        self._polled: dict[str, tuple[int, str]] = {}
        self._now = Calls(_identity)
        for past in history:
            steps = past.trajectory[-_LAST_STEPS:]
            calls = Calls(_identity)
            for step in steps:
                calls.add(step)
            made = calls.counts
            known = self._before
            repeated = {
                name: times for name, times in made.items() if times >= REPEATED or name in known
            }
            self._before.update(repeated)
            # An attempt that raised was not interrupted, and may have been about to leave its loop.
            if past.failure_type is not FailureType.LOOP_DETECTED or past.error is not None:
                continue
            polled = [one.text for one in past.diagnosis.evidence if one.rule == _POLLED.name]
            last = _identity(steps[-1]) if polled else None
            if last is not None:
                self._polled[last] = (0, polled[0])
            else:
                self._stopped.update(name for name in repeated if made[name] > REPEATED)

    def __bool__(self) -> bool:
        return bool(self._before or self._polled)

    def add(self, step: Step) -> str | None:
        """Add the next step of this attempt; return why it continues a loop, or None."""
        name, is_poll = self._now.add(step)
        if name is None:
            return None
        tool = step.tool_called
        if name in self._polled:
            times, text = self._polled[name]
            self._polled[name] = (times + 1, text)
            if times + 1 >= _STOP_AT:
                return f"it is polled again, though in an earlier attempt {text}"
        if is_poll or name not in self._before:
            return None
        now = self._now.counts[name]
        total = now + self._before[name]
        if total < MOST and not (name in self._stopped and now >= _STOP_AT):
            return None
        return f"{tool} was called in the same way {total} times over the attempts of the run"


def _identity(step: Step) -> str | None:
    """Return the key of an identical call; None for a reused or very large one, and without a call."""
    if step.tool_called is None or is_reused(step.metadata):
        return None
    if len(json_of((step.tool_input, step.tool_output))) > MAX_COMPARED:
        return None
    return repr((step.tool_called, step.tool_input, step.tool_output, step.error))


_ROUNDS = 4
"""Minimum rounds of a loop before it is interrupted, as a loop of few long rounds may still end."""


class Watcher:
    """Watches one running attempt. Safe to call from several threads: one of them looks."""

    __slots__ = (
        "_at", "_busy", "_finding", "_hinted_at", "_last", "_loop", "_noted", "_rules", "_run", "_watch",
        "_watching",
    )  # fmt: skip

    def __init__(self, run: Recorder) -> None:
        self._run = run
        # The agent's own classifier, if it has detectors.
        own: Any = run.session.config.classifier
        watches = hasattr(own, "watch") and hasattr(own, "explain")
        self._rules: Any = own if watches else standard_rules()
        assert run.session.config.watching is not None
        self._watching: Watching = run.session.config.watching
        checks = run.session.config.checks
        self._watch: Watch = self._rules.watch(
            None if checks is None else checks.manifest,
            () if checks is None else tuple(map(_until_it_raises, checks.constraints)),
            run.first,
        )
        # The next event to read, from the start of this attempt.
        self._at = run.position
        self._busy = threading.Lock()
        # Index of the last step seen.
        self._last = run.first
        # The noted loop, by its place and kind; the index of the step at which its hint was given.
        self._noted: tuple[int, str] | None = None
        self._hinted_at: int | None = None
        # Diagnoses shown to the agent: of a loop, and of another finding.
        self._loop: Diagnosis | None = None
        self._finding: Diagnosis | None = None

    def look(self) -> None:
        """Check the steps recorded since the last look, and respond to findings."""
        if not self._busy.acquire(blocking=False):
            return  # the thread that looks now, or the next look, sees these steps too
        try:
            self._take_all(self._run.session.events)
        except Exception as error:
            _failed(self._run, error)
        finally:
            self._busy.release()

    def _take_all(self, events: list[Event]) -> None:
        watch = self._watch
        new = events[self._at :]
        self._at += len(new)
        for event in new:
            if not isinstance(event, StepRecorded):
                continue
            self._last = event.index
            found = watch.add(event.step, event.time)
            if self._run.loops_before:
                again = self._run.loops_before.add(event.step.recorded(event.index, event.time))
                if again is not None:
                    # This attempt begins a loop of an earlier one.
                    tool = event.step.tool_called
                    self._stop(Finding(LOOP, again, event.index, tool, 2, 1))
                    return
            if found is not None and not found.repeats:
                self._take(found)
            if watch.polling is not None:
                self._bound_polling(watch.polling)
        # Only the current loop counts: the agent has left any loop between two looks.
        if watch.loop is not None or self._noted is not None:
            self._judge(watch.loop)
        if self._finding is not None and not self._stands:
            self._finding = None
            self._show()

    def _bound_polling(self, polling: Polling) -> None:
        """Interrupt an attempt that polls for longer than the limit."""
        longest = self._run.session.limits.polling_seconds
        if longest is None or polling.seconds <= longest:
            return
        text = (
            f"{polling.tool!r} was polled {polling.calls} times in {polling.seconds:.0f} s with the same "
            f"result, which is longer than Limits(polling_seconds={longest:g})"
        )
        self._stop(Finding(_POLLED, text, polling.start, polling.tool, polling.calls, 1))

    def _take(self, found: Finding) -> None:
        """Note a wrong step, and tell the agent at once."""
        self._note("note", found)
        if self._watching.hint_after is not None:
            self._finding = self._explained(found)
            self._show()
            self._note("hint", found)

    @property
    def _stands(self) -> bool:
        """Whether a wrong step has not been corrected since."""
        watch = self._watch
        return not (watch.unknown_tool is None and watch.misfit is None and watch.forbidden is None)

    def _judge(self, loop: Loop | None) -> None:
        """Escalate a loop: note it, hint, interrupt. loop: the current loop, or None."""
        if loop is None:
            if self._loop is not None:
                self._loop = None
                self._show()
            self._noted = None
            return
        if self._noted != (loop.start, loop.kind):
            self._noted = (loop.start, loop.kind)
            self._hinted_at = None
            self._note("note", self._watch.found(loop))
        watching = self._watching
        wasted = (loop.repeats - 1) * loop.length
        hint_after = watching.hint_after
        if self._hinted_at is None and hint_after is not None and wasted >= hint_after:
            self._hinted_at = self._last
            found = self._watch.found(loop)
            self._loop = self._explained(found)
            self._show()
            self._note("hint", found)
        elif (
            watching.interrupt_after is not None
            and wasted >= watching.interrupt_after
            and loop.repeats >= _ROUNDS
            # After its hint the agent may go round once more.
            and (self._hinted_at is None or self._last - self._hinted_at >= loop.length)
        ):
            self._stop(self._watch.found(loop))

    def _stop(self, found: Finding) -> None:
        run = self._run
        if run.interrupt is None and not run.over:
            explained = self._explained(found)
            self._note("interrupt", found)
            run.stop(explained)

    def _show(self) -> None:
        self._run.live = self._loop or self._finding

    def _explained(self, found: Finding) -> Diagnosis:
        explained = self._rules.explain(found, self._run.ended_by(None))
        if not isinstance(explained, Diagnosis):
            raise TypeError(f"explain() must give a Diagnosis, not {type(explained).__name__}")
        return explained

    def _note(self, response: str, found: Finding) -> None:
        self._run.notice(
            WatchNoticed,
            response=response,
            rule=found.rule.name,
            text=found.text,
            step=found.step,
        )


def watcher_of(run: Recorder) -> Watcher | None:
    """Return the watcher of an attempt; None, which is logged, if its classifier cannot watch."""
    try:
        return Watcher(run)
    except Exception as error:
        _failed(run, error)
        return None


def _failed(run: Recorder, error: Exception) -> None:
    # Not a failure of the agent.
    logger.error("run %s: watching failed, and ends with this attempt", run.run_id, exc_info=error)
    run.unwatched()


def _until_it_raises(constraint: Constraint) -> Constraint:
    """Wrap a constraint: once it has raised, it is not asked again in this attempt."""
    if not callable(constraint):
        return constraint
    failed = False

    def ask(text: str) -> Any:
        nonlocal failed
        if failed:
            return None
        try:
            return constraint(text)
        except Exception:
            failed = True
            raise

    ask.__name__ = getattr(constraint, "__name__", type(constraint).__name__)
    return ask
