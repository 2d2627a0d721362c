"""The watch over a running attempt: what the detectors see is noted, told to the agent, or stops it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from triage.classifiers.detectors.finding import LOOP, Finding
from triage.classifiers.detectors.loops import Calls, Loop
from triage.classifiers.detectors.watch import Watch
from triage.classifiers.rules import RulesClassifier
from triage.core.diagnosis import Diagnosis
from triage.core.events import AttemptStarted, Event, StepRecorded, WatchNoticed
from triage.core.failures import Attempt
from triage.core.large_values import json_of
from triage.core.observers import logger
from triage.core.state import is_reused
from triage.core.steps import Constraint, Step
from triage.core.taxonomy import FailureType

from .options import Watching

if TYPE_CHECKING:
    from .run import Recorder

# Calls that earlier attempts of the run repeated without end: they are counted on over its
# attempts.


@cache
def standard_rules() -> RulesClassifier:
    """The classifier of agents that have none of their own; it has no state, so one serves all."""
    return RulesClassifier()


COMPARED = 250_000
"""Bytes of a call's arguments and result up to which it is compared with others."""
REPEATED = 3
"""Identical calls in one attempt that count as repeated; fewer are forgotten with the attempt."""
MOST = 10
"""Identical calls that a run may make over its attempts where they were repeated before."""
_AGAIN = 2
"""How often a call of a loop that was stopped may be made in a later attempt until that is stopped too."""
_LOOKED_AT = 200
_POLLED = LOOP._replace(name="limit:polling_seconds")
"""The rule of polling that lasted longer than it may."""


class LoopsBefore:
    """What earlier attempts repeated, polls apart, and how often this one has done the same."""

    def __init__(self, history: Sequence[Attempt]) -> None:
        self._before: Counter[str] = Counter()
        self._stopped: set[str] = set()
        # The calls that were polled for longer than they may be: how often since, and what was said of it.
        self._polled: dict[str, tuple[int, str]] = {}
        self._now = Calls(_name)
        for past in history:
            steps = past.trajectory[-_LOOKED_AT:]
            calls = Calls(_name)
            for step in steps:
                calls.add(step)
            made = calls.counts
            known = self._before
            repeated = {
                name: times for name, times in made.items() if times >= REPEATED or name in known
            }
            self._before.update(repeated)
            # One that ended with an exception of its own was not stopped, and may have been about to leave.
            if past.failure_type is not FailureType.LOOP_DETECTED or past.error is not None:
                continue
            polled = [one.text for one in past.diagnosis.evidence if one.rule == _POLLED.name]
            last = _name(steps[-1]) if polled else None
            if last is not None:
                self._polled[last] = (0, polled[0])
            else:
                self._stopped.update(name for name in repeated if made[name] > REPEATED)

    def __bool__(self) -> bool:
        return bool(self._before or self._polled)

    def add(self, step: Step) -> str | None:
        """The next step of this attempt; why the loop goes on with it, None where it does not."""
        name, is_poll = self._now.add(step)
        if name is None:
            return None
        tool = step.tool_called
        if name in self._polled:
            times, text = self._polled[name]
            self._polled[name] = (times + 1, text)
            if times + 1 >= _AGAIN:
                return f"it is polled again, though in an earlier attempt {text}"
        if is_poll or name not in self._before:
            return None
        now = self._now.counts[name]
        all_in_all = now + self._before[name]
        if all_in_all < MOST and not (name in self._stopped and now >= _AGAIN):
            return None
        return f"{tool} was called in the same way {all_in_all} times over the attempts of the run"


def _name(step: Step) -> str | None:
    """A call by all that makes it the same call; None for what is no call that was made.

    None as well for a call with a large value, which would take too long to compare.
    """
    if step.tool_called is None or is_reused(step.metadata):
        return None
    if len(json_of((step.tool_input, step.tool_output))) > COMPARED:
        return None
    return repr((step.tool_called, step.tool_input, step.tool_output, step.error))


_ROUNDS = 4
"""A loop of few long rounds may still find its end: none is stopped before its fourth."""


class Watcher:
    """Looks at one attempt as it goes on. Safe to call from several threads: one of them looks.

    Raises whatever the classifier whose detectors are used raises.
    """

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
        # Where the journal of this attempt begins.
        self._at = next(
            event.seq for event in reversed(run.session.events) if isinstance(event, AttemptStarted)
        )
        self._busy = threading.Lock()
        self._seen = 0
        # The loop that was noted, by its place and kind; how many steps were seen when it was told.
        self._noted: tuple[int, str] | None = None
        self._told: int | None = None
        # What the agent is told of a loop, and of anything else.
        self._loop: Diagnosis | None = None
        self._finding: Diagnosis | None = None

    def look(self) -> None:
        """Take in the steps recorded since the last look, and do what they ask for."""
        if not self._busy.acquire(blocking=False):
            return  # whoever looks sees these steps too, or the next look does
        try:
            self._take_all(self._run.session.events)
        except Exception as error:
            _failed(self._run, error)
        finally:
            self._busy.release()

    def _take_all(self, events: list[Event]) -> None:
        end = len(events)
        for event in events[self._at : end]:
            if isinstance(event, StepRecorded):
                at = self._run.first + self._seen
                self._seen += 1
                step = event.step.recorded(at, event.time)
                found = self._watch.add(step)
                before = self._run.loops_before
                again = before.add(step) if before else None
                if again is not None:
                    # A loop that an earlier attempt was in, and this one begins again.
                    self._stop(Finding(LOOP, again, at, event.step.tool_called, 2, 1))
                    return
                if found is not None and not found.repeats:
                    self._take(found)
                self._bound_polling()
        self._at = end
        # Of loops the one counts that stands: those between two looks were left again.
        loop = self._watch.loop
        if loop is not None or self._noted is not None:
            self._judge(loop)
        if self._finding is not None and not self._stands:
            self._finding = None
            self._show()

    def _bound_polling(self) -> None:
        """Stop an attempt that polls for longer than it may."""
        polling = getattr(self._watch, "polling", None)
        longest = self._run.session.limits.polling_seconds
        if polling is None or longest is None or polling.seconds <= longest:
            return
        text = (
            f"{polling.tool!r} was polled {polling.calls} times in {polling.seconds:.0f} s with the same "
            f"result, which is longer than Limits(polling_seconds={longest:g})"
        )
        self._stop(Finding(_POLLED, text, polling.start, polling.tool, polling.calls, 1))

    def _take(self, found: Finding) -> None:
        """A step that is wrong by itself: noted and told at once."""
        self._note("note", found)
        if self._watching.hint_after is not None:
            self._finding = self._explained(found)
            self._show()
            self._note("hint", found)

    @property
    def _stands(self) -> bool:
        """Whether any of what was wrong by itself was not put right since."""
        watch = self._watch
        return not (watch.unknown_tool is None and watch.misfit is None and watch.forbidden is None)

    def _judge(self, loop: Loop | None) -> None:
        """What is to be done about the loop the last steps are in: noted, told, and at last stopped."""
        if loop is None:
            if self._loop is not None:
                self._loop = None
                self._show()
            self._noted = None
            return
        if self._noted != (loop.start, loop.kind):
            self._noted = (loop.start, loop.kind)
            self._told = None
            self._note("note", self._watch.found(loop))
        watching = self._watching
        wasted = (loop.repeats - 1) * loop.length
        if self._told is None and watching.hint_after is not None and wasted >= watching.hint_after:
            self._told = self._seen
            found = self._watch.found(loop)
            self._loop = self._explained(found)
            self._show()
            self._note("hint", found)
        elif (
            watching.interrupt_after is not None
            and wasted >= watching.interrupt_after
            and loop.repeats >= _ROUNDS
            # Whoever is told may go round once more before it is stopped.
            and (self._told is None or self._seen - self._told >= loop.length)
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
    """The watcher of an attempt; None where its classifier cannot watch, which is logged."""
    try:
        return Watcher(run)
    except Exception as error:
        _failed(run, error)
        return None


def _failed(run: Recorder, error: Exception) -> None:
    # That is no failure of the agent.
    logger.error("run %s: watching failed, and ends with this attempt", run.run_id, exc_info=error)
    run.unwatched()


def _until_it_raises(constraint: Constraint) -> Constraint:
    """A constraint that is asked no more in this attempt once it has raised: it is logged each time."""
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
