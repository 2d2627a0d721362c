"""The watch over a running attempt: what the detectors see is noted, told to the agent, or stops it.

An attempt of a few steps costs a look or two. The first look that sees a step come back, and the
sixteenth step at the latest, puts the detectors to work on every step from the first one on.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from ._journal import CODES, STEP, WIDTH
from .diagnosis import Diagnosis
from .events import AttemptStarted, WatchNoticed
from .observers import logger
from .steps import step_of
from .watching import Watching

if TYPE_CHECKING:
    from ._recorder import Recorder
    from .classifiers.detectors import Finding, Watch
    from .classifiers.detectors._loops import Loop
    from .steps import Constraint

_ATTEMPT = CODES[AttemptStarted]
_ROUNDS = 4
"""A loop of few long rounds may still find its end: none is stopped before its fourth."""


class Watcher:
    """Looks at one attempt as it goes on. Safe to call from several threads: one of them looks.

    Raises whatever the classifier whose detectors are used raises.
    """

    __slots__ = (
        "_at", "_busy", "_finding", "_loop", "_noted", "_rules", "_run", "_seen", "_told", "_watch",
    )  # fmt: skip

    def __init__(self, run: Recorder) -> None:
        self._run = run
        self._rules = _rules_of(run)
        checks = run.session.config.checks
        self._watch: Watch = self._rules.watch(
            None if checks is None else checks.manifest,
            () if checks is None else tuple(map(_until_it_raises, checks.constraints)),
            run.first,
        )
        self._at = _start_of(run)
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
        if not self._busy.acquire(False):  # noqa: FBT003 - by name it takes twice as long
            return  # whoever looks sees these steps too, or the next look does
        try:
            self._take_all(self._run.session.records)
        except Exception as error:  # noqa: BLE001 - a tool's schema or a user's constraint may raise anything
            _failed(self._run, error)
        finally:
            self._busy.release()

    def _take_all(self, records: list[Any]) -> None:
        end = len(records)
        for at in range(self._at, end, WIDTH):
            if records[at] == STEP:
                self._seen += 1
                found = self._watch.add(step_of(records[at + WIDTH - 1]))
                if found is not None and not found.repeats:
                    self._take(found)
        self._at = end
        # Of loops the one counts that stands: those between two looks were left again.
        loop = self._watch.loop
        if loop is not None or self._noted is not None:
            self._judge(loop)
        if self._finding is not None and not self._stands:
            self._finding = None
            self._show()

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
        if self._told is None and _over(wasted, watching.hint_after):
            self._told = self._seen
            found = self._watch.found(loop)
            self._loop = self._explained(found)
            self._show()
            self._note("hint", found)
        elif (
            _over(wasted, watching.interrupt_after)
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

    @property
    def _watching(self) -> Watching:
        watching = self._run.session.config.watching
        return watching if isinstance(watching, Watching) else _usual()

    def _explained(self, found: Finding) -> Diagnosis:
        explained = self._rules.explain(found, self._run.ended_by(None))
        if not isinstance(explained, Diagnosis):
            raise TypeError(f"explain() must give a Diagnosis, not {type(explained).__name__}")
        return explained

    def _note(self, response: str, found: Finding) -> None:
        self._run.notice(WatchNoticed, response, found.rule.name, found.text, found.step)


def begin(run: Recorder) -> Watcher | None:
    """The watcher of an attempt; None where its classifier cannot watch, which is logged."""
    try:
        return Watcher(run)
    except Exception as error:  # noqa: BLE001 - a classifier of the user may raise anything
        _failed(run, error)
        return None


def _failed(run: Recorder, error: Exception) -> None:
    # That is no failure of the agent.
    logger.error("run %s: watching failed, and ends with this attempt", run.run_id, exc_info=error)
    run.unwatched()


def _over(wasted: int, allowed: int | None) -> bool:
    return allowed is not None and wasted >= allowed


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
