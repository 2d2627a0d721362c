"""The calls of one attempt as they are counted, and those matched by position."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ._interrupt import current_task
from ._tool import calling

if TYPE_CHECKING:
    from ._guidance import Replay
    from ._recorder import Recorder
    from ._tool import Tool
    from .state import Call, RunState
    from .steps import Step

LINE = "line"
"""In the metadata of a step: the call may be matched by position; the task or thread that made it,
numbered in the attempt from 0."""

WITHIN = "within"
"""In the metadata of a step: the recorded call that it is part of, by its tool and the beginning of its
idempotency key (`research 3f2a9c01`)."""


class Place(NamedTuple):
    """Where a call is made. line, within: as in the metadata of its step, None where they are not said."""

    line: int | None = None
    within: str | None = None

    def metadata(self, key: str, inner: str | None) -> dict[str, Any]:
        """The metadata of the step of such a call. inner: id of the run inside this one that it is."""
        metadata: dict[str, Any] = {"call": key}
        line, within = self
        if line is not None:
            metadata[LINE] = line
        if within is not None:
            metadata[WITHIN] = within
        if inner is not None:
            metadata["run"] = inner
        return metadata


NO_PLACE = Place()


class Tally(dict[str, int]):
    """How often each call has been made in this attempt, by tool and digest.

    The calls of the attempt before that may be given again by their position wait here, by tool,
    until this attempt runs a call of its own: from then on its course is another one.

    beside: what an adapter remembers of the calls of this attempt, to make the next one cheaper.
    """

    __slots__ = ("_lock", "_places", "_waiting", "beside")

    def __init__(self, run: Recorder) -> None:
        super().__init__()
        self.beside: dict[Any, Any] = {}
        self._lock = run.session.lock
        # By the calling task, or thread where there is no event loop.
        self._places: dict[int, Place] = {}
        self._waiting: dict[str, _Prefix] = {}
        for name, key, line in _recorded_before(run):
            self._waiting.setdefault(name, _Prefix()).add(key, line)

    @property
    def replaying(self) -> bool:
        """Whether results that are matched by position are still to be given."""
        return any(prefix.keys for prefix in self._waiting.values())

    def occurrence(self, name: str) -> int:
        """Count a call; how often it has been made with this one."""
        self._lock.acquire()  # not `with`, which takes twice as long
        try:
            count = self[name] = self.get(name, 0) + 1
        finally:
            self._lock.release()
        return count

    def carry(self, run: Recorder, tool: str, key: str) -> None:
        """A recorded call that a conversation holds stays done: it is met, and the next is another."""
        self.occurrence(key.rpartition(":")[0])
        if run.replay is not None:
            run.replay.meet(tool, key)

    def not_begun(self, name: str) -> None:
        """Take back that a call was counted."""
        with self._lock:
            self[name] -= 1

    def take(self, tool: str) -> str | None:
        """Key of the recorded call at this position of the tool's calls; None where none is sure.

        Calls that several tasks made have no order: which came first was luck.
        """
        prefix = self._waiting.get(tool)
        if prefix is None or not prefix.single:
            return None
        try:
            return prefix.keys.popleft()
        except IndexError:
            return None

    def meet(self, tool: str, key: str) -> None:
        """The attempt has come to this recorded call."""
        prefix = self._waiting.get(tool)
        if prefix is not None:
            with suppress(ValueError):
                prefix.keys.remove(key)

    def leave(self) -> None:
        """A call runs: what comes now has not been recorded."""
        self._waiting.clear()

    def place(self, tool: Tool, run_id: str) -> Place:
        """Where a call of this run is made. Asked in the task or thread that makes it."""
        within = None if calling.get() is None else within_call(run_id)
        place = NO_PLACE
        if tool.by_position:
            caller = _caller()
            if caller not in self._places:
                self._places[caller] = Place(len(self._places))
            place = self._places[caller]
        return place if within is None else Place(place.line, within)


class _Prefix:
    """Recorded calls of one tool, in order. single: one task alone made them."""

    __slots__ = ("_line", "keys", "single")

    def __init__(self) -> None:
        self.keys: deque[str] = deque()
        self.single = True
        self._line: int | None = None

    def add(self, key: str | None, line: int) -> None:
        self.single = self.single and self._line in (None, line)
        self._line = line
        if key is not None:
            self.keys.append(key)


def within_call(run_id: str) -> str | None:
    """The recorded call of this run that the calling code is part of, as steps name it."""
    owner = calling.get()
    return None if owner is None or owner.run_id != run_id else owner.label


def _caller() -> int:
    task = current_task()
    if task is not None:
        return id(task)
    import anyio

    try:
        return anyio.get_current_task().id
    except RuntimeError:
        return threading.get_ident()


def tally(run: Recorder) -> Tally:
    """The tally of an attempt, made when it is first asked for."""
    found = run.occurrences
    if isinstance(found, Tally):
        return found
    made = Tally(run)
    with run.session.lock:
        found = run.occurrences
        if not isinstance(found, Tally):
            found = run.occurrences = made
    return found


def reusable(call: Call, run: Recorder) -> bool:
    """Whether the attempt may be given the result that a call which is safe to repeat once had."""
    replay = run.replay
    if replay is None or call.outcome != "done" or call.undone:
        return False
    # A run inside this one that has ended gives its result, wherever the failure came from.
    before = (
        replay.critical_step is None
        or call.run is not None
        or (call.step is not None and call.step < replay.critical_step)
    )
    match replay.kind:
        case "retry" | "resume":
            return before and call.attempt == run.number - 1
        case "crash":
            # The attempt goes on in another process; what it had come to is not asked for again.
            known = call.attempt == run.number or call.key in replay.kept
            return known or (_goes_on(run) and before and call.attempt == run.number - 1)
        case "rollback":
            return call.key in replay.kept
        case _:
            return False


def _goes_on(run: Recorder) -> bool:
    """Whether the attempt that was cut off was one that reuses what the one before it did."""
    history = run.session.state.history
    action = history[-1].action if history else None
    return action is not None and action.kind in ("retry", "resume")


def _recorded_before(run: Recorder) -> Iterator[tuple[str, str | None, int]]:
    """Tool, key and line of the calls matched by position that this attempt would make again, in order.

    The key is None from the first one on that it is not given again. The tool is the call's own: the
    step of one need not name it.
    """
    replay, session = run.replay, run.session
    if replay is None or replay.kind == "replan" or not session.has_calls:
        return
    state = session.state
    ended = False
    seen: set[str] = set()
    for step in _steps_before(run, replay, state):
        metadata = step.metadata
        # What a call has done inside comes again only if that call runs, which is another course.
        if metadata is None or LINE not in metadata or WITHIN in metadata:
            continue
        call = state.calls.get(metadata.get("call", ""))
        # A tool that is called with other arguments each time has its own key each time.
        if call is None or call.key in seen:
            continue
        seen.add(call.key)
        ended = ended or not reusable(call, run)
        yield call.tool, None if ended else call.key, metadata[LINE]


def _steps_before(run: Recorder, replay: Replay, state: RunState) -> Iterator[Step]:
    """The steps that this attempt is expected to come to again, in order."""
    if replay.kind in ("rollback", "crash") and replay.kept:
        yield from state.ledgers[-1].steps
    if replay.kind == "crash":
        yield from state.ledgers[-2].steps
    if (replay.kind in ("retry", "resume") or _goes_on(run)) and state.history:
        yield from state.history[-1].trajectory.steps
