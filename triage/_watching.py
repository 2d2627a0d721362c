"""The watch over a running attempt: what the detectors see is noted, told to the agent, or stops it.

An attempt of a few steps costs a look or two. The first look that sees a step come back, and the
sixteenth step at the latest, puts the detectors to work on every step from the first one on.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from ._journal import CODES, STEP, WIDTH
from .events import AttemptStarted, WatchNoticed
from .observers import logger
from .watching import Watching

if TYPE_CHECKING:
    from ._recorder import Recorder
    from .classifiers.detectors import Finding, Watch
    from .diagnosis import Diagnosis
    from .steps import Step

WHOLE_FROM = 16
"""The step from which on each one goes through the detectors."""
_LAGS = (1, 2, 3)
_BACK = 8 * WIDTH * max(_LAGS)
_ATTEMPT = CODES[AttemptStarted]
_ROUNDS = 4
"""A loop of few long rounds may still find its end: none is stopped before its fourth."""


class Watcher:
    """Looks at one attempt as it goes on. Safe to call from several threads: one of them looks."""

    __slots__ = ("_at", "_busy", "_rules", "_run", "_told", "_watch")

    def __init__(self, run: Recorder) -> None:
        self._run = run
        self._rules = _rules_of(run)
        checks = run.session.config.checks
        self._watch: Watch = self._rules.watch(
            None if checks is None else checks.manifest,
            () if checks is None else checks.constraints,
            run.first,
        )
        self._at = _start_of(run)
        self._busy = threading.Lock()
        # The loop the agent was told of, by its place and kind.
        self._told: tuple[int, str] | None = None

    def look(self) -> None:
        """Take in the steps recorded since the last look, and do what they ask for."""
        if not self._busy.acquire(blocking=False):
            return  # whoever looks will see these steps too
        try:
            records = self._run.session.records
            end = len(records)
            for at in range(self._at, end, WIDTH):
                if records[at] == STEP:
                    self._take(records[at + 4])
            self._at = end
        except Exception:  # noqa: BLE001 - a tool's schema or a user's constraint may raise anything
            # That is no failure of the agent.
            logger.exception(
                "run %s: watching failed, and ends with this attempt", self._run.run_id
            )
            self._run.unwatched()
        finally:
            self._busy.release()

    def _take(self, step: Step) -> None:
        found = self._watch.add(step)
        if found is not None:
            self._note("note", found)
        loop = self._watch.loop
        if loop is None:
            if self._told is not None:
                self._told = None
                self._run.live = None
        elif self._run.interrupt is None:
            wasted = (loop.repeats - 1) * loop.length
            watching = self._watching
            if _over(wasted, watching.interrupt_after) and loop.repeats >= _ROUNDS:
                self._stop(self._watch.found(loop))
            elif _over(wasted, watching.hint_after) and self._told != (loop.start, loop.kind):
                self._told = (loop.start, loop.kind)
                self._tell(self._watch.found(loop))
        if found is not None and not found.repeats and self._watching.hint_after is not None:
            self._tell(found)

    @property
    def _watching(self) -> Watching:
        watching = self._run.session.config.watching
        return watching if isinstance(watching, Watching) else _usual()

    def _tell(self, found: Finding) -> None:
        self._run.live = self._explained(found)
        self._note("hint", found)

    def _stop(self, found: Finding) -> None:
        self._note("interrupt", found)
        self._run.stop(self._explained(found))

    def _explained(self, found: Finding) -> Diagnosis:
        explained: Diagnosis = self._rules.explain(found, self._run.ended_by(None))
        return explained

    def _note(self, response: str, found: Finding) -> None:
        self._run.notice(WatchNoticed, response, found.rule.name, found.text, found.step)


def _over(wasted: int, allowed: int | None) -> bool:
    return allowed is not None and wasted >= allowed


def begin(run: Recorder, index: int) -> Watcher | None:
    """A look at an attempt of few steps: its watcher, where there is something to watch from now on."""
    if index + 1 >= WHOLE_FROM or _comes_back(run):
        return Watcher(run)
    return None


def _comes_back(run: Recorder) -> bool:
    """Whether the last step is one of the three before it over again."""
    records = run.session.records
    steps: list[Step] = []
    for at in range(len(records) - WIDTH, max(-1, len(records) - _BACK), -WIDTH):
        if records[at] == STEP:
            steps.append(records[at + 4])
            if len(steps) > max(_LAGS):
                break
        elif records[at] == _ATTEMPT:
            break
    last = steps[0]
    # Tool, output, then arguments, as they tell steps apart the sooner.
    return any(
        last[2] == other[2] and last[4] == other[4] and last[3] == other[3] for other in steps[1:]
    )


def _start_of(run: Recorder) -> int:
    """Where the journal of this attempt begins in the list."""
    records = run.session.records
    for at in range(len(records) - WIDTH, -1, -WIDTH):
        if records[at] == _ATTEMPT:
            return at
    return 0


def _rules_of(run: Recorder) -> Any:
    """The classifier by whose detectors the attempt is watched: the agent's own if it has them."""
    own = run.session.config.classifier
    if hasattr(own, "watch") and hasattr(own, "explain"):
        return own
    return _standard()


@cache
def _usual() -> Watching:
    return Watching()


@cache
def _standard() -> Any:
    from .classifiers import RulesClassifier

    return RulesClassifier()
