"""Keys of an attempt's recorded calls, and calls of earlier attempts that it reuses by position."""

from __future__ import annotations

import itertools
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from triage.core.actions import lasting
from triage.core.events import AttemptStarted
from triage.core.failures import Attempt
from triage.core.json_values import texts_within
from triage.core.state import LINE, WITHIN, Call
from triage.core.taxonomy import UNSAFE

from .event_loop import current_caller
from .run import NO_GUIDANCE, Guidance, Recorder
from .tools import Tool, calling

__all__ = ["NO_PLACE", "Place", "Tally", "reusable", "tally", "within_call"]


class Place(Struct, frozen=True):
    """The place of a call. line, within: as in the metadata of its step; None without."""

    line: int | None = None
    within: str | None = None

    def metadata(self, key: str, inner: str | None) -> dict[str, Any]:
        """Return the metadata of the call's step. inner: id of the inner run, if the call is one."""
        metadata: dict[str, Any] = {"call": key}
        if self.line is not None:
            metadata[LINE] = self.line
        if self.within is not None:
            metadata[WITHIN] = self.within
        if inner is not None:
            metadata["run"] = inner
        return metadata


NO_PLACE = Place()
_MODEL = "model"
"""Argument that names the model; another model may be asked the same question."""
OWN = 0
"""Line of the agent function's own task or thread; others are numbered from 1."""
_OWN_PLACE = Place(OWN)


class Tally:
    """Gives each call of an attempt its own key: tool, digest and occurrence.

    Also queues, by tool, the calls of earlier attempts whose results are reused by position. The queues
    are dropped when this attempt runs a call: from then on it no longer follows the old course.

    beside: notes of adapters and checks about this attempt. heard: keys of calls in doubt that returned an
    error to the agent.
    """

    def __init__(self, run: Recorder) -> None:
        self.beside: dict[Any, Any] = {}
        self.heard: tuple[str, ...] = ()
        self._lock = run.session.lock
        self._claimed: dict[str, set[int]] = {}
        self._recorded = _recorded_counts(run)
        self._started = [] if run.replay is None else _started(run)
        self._hints = {event.hint for event in self._started if event.hint}
        # By id, tasks and threads that the agent has started.
        self._places: dict[int, Place] = {}
        self._waiting: dict[str, _Prefix] = {}
        starts = run.session.state.starts
        self._order: dict[str, int] = {}
        for at, (call, is_reused) in enumerate(_made_by_position(run)):
            self._order[call.key] = at
            is_new = call.ended == 1 and call.seq > starts.get(call.attempt, -1)
            prefix = self._waiting.setdefault(call.tool, _Prefix())
            prefix.add(call, is_reused=is_reused, is_new=is_new)

    @property
    def replaying(self) -> bool:
        """Whether results matched by position are still queued."""
        return any(prefix.replaying for prefix in self._waiting.values())

    def told_before(self, run: Recorder) -> tuple[Guidance, Iterable[Call]]:
        """Return the guidance under which the next queued call was made, and the calls recorded by then.

        With it the agent asks the same question again. No guidance if tasks that the agent started made
        queued calls, as their order is chance.
        """
        calls = run.session.state.calls
        waiting = [prefix for prefix in list(self._waiting.values()) if prefix.replaying]
        if not waiting or not all(prefix.ordered for prefix in waiting):
            return NO_GUIDANCE, calls.values()
        made = calls[min((prefix.keys[0] for prefix in waiting), key=self._order.__getitem__)].seq
        started = next(event for event in reversed(self._started) if event.seq < made)
        known = (call for call in calls.values() if call.seq < made)
        return _told(started, run.session.state.history), known

    def claim(self, name: str) -> str:
        """Take the first free key of this name, preferring keys of recorded calls.

        A refused call takes no key, as the agent may have tried again by itself.
        """
        with self._lock:
            claimed = self._claimed.setdefault(name, set())
            counts = itertools.chain(self._recorded.get(name, ()), itertools.count(1))
            count = next(count for count in counts if count not in claimed)
            claimed.add(count)
        return f"{name}:{count}"

    def upcoming(self, name: str, taken: Collection[str] = ()) -> str:
        """Return the next key that `claim` will take, other than these."""
        with self._lock:
            claimed = self._claimed.get(name, set())
            counts = itertools.chain(self._recorded.get(name, ()), itertools.count(1))
            free = (f"{name}:{count}" for count in counts if count not in claimed)
            return next(key for key in free if key not in taken)

    def is_free(self, key: str) -> bool:
        """Whether the attempt has not made the call of this key."""
        name, _, count = key.rpartition(":")
        with self._lock:
            return int(count) not in self._claimed.get(name, ())

    def carry(self, run: Recorder, tool: str, key: str) -> None:
        """Claim the key of a recorded call whose turn is carried into this attempt's conversation."""
        self._give(key)
        if run.session.state.calls[key].outcome == "in_doubt":
            self.hear(key)
        if run.replay is not None:
            run.replay.meet(tool, key)

    def hear(self, key: str) -> None:
        """Note that the agent has received the error of a call that may have happened."""
        with self._lock:
            self.heard = (*self.heard, key)

    def _give(self, key: str) -> None:
        name, _, count = key.rpartition(":")
        with self._lock:
            self._claimed.setdefault(name, set()).add(int(count))

    def not_begun(self, key: str) -> None:
        """Give back the key of a call that was not made."""
        name, _, count = key.rpartition(":")
        with self._lock:
            self._claimed[name].discard(int(count))

    def take(self, run: Recorder, tool: str, place: Place, arguments: Any) -> str | None:
        """Take the key of the next recorded call of this tool; None without one to reuse.

        None if a task that the agent started makes this call, or made a queued one, as their order was
        chance; if the next recorded call failed, as the answers behind it belong to later calls; and if its
        words differ, as the agent has not reached it.
        """
        prefix = self._waiting.get(tool)
        if place.line != OWN or prefix is None or not (prefix.ordered and prefix.replaying):
            return None
        before = run.session.state.calls[prefix.keys[0]].arguments
        if not says_the_same(before, arguments, self._hints):
            return None
        key = prefix.keys.popleft()
        self._give(key)
        return key

    def meet(self, tool: str, key: str) -> None:
        """Remove a recorded call that the attempt has made from its queue."""
        prefix = self._waiting.get(tool)
        if prefix is not None:
            prefix.meet(key)

    def leave(self) -> None:
        """Drop all queues: a call runs, so no recorded call matches the following ones."""
        self._waiting.clear()

    def place(self, tool: Tool, run: Recorder) -> Place:
        """Return the place of a call; to be called in the task or thread that makes it."""
        within = None if calling.get() is None else within_call(run.run_id)
        place = NO_PLACE
        if tool.by_position:
            caller = current_caller()
            if caller == run.caller:
                place = _OWN_PLACE
            else:
                if caller not in self._places:
                    self._places[caller] = Place(OWN + 1 + len(self._places))
                place = self._places[caller]
        return place if within is None else Place(place.line, within)


_WORD = re.compile(r"\w+")


def says_the_same(before: Any, now: Any, hints: Collection[str]) -> bool:
    """Whether two calls' arguments have the same words, except for numbers, ids and the model.

    Arguments that quote a hint may have additional words.

    >>> says_the_same({"q": "step 3 of 5"}, {"q": "step 3 of 5 (be brief)"}, ["be brief"])
    True
    >>> says_the_same({"q": "what is it?"}, {"q": "who is it (be brief)?"}, ["be brief"])
    False
    """
    old, quoted = _words_beside(before, hints)
    new, quotes = _words_beside(now, hints)
    return old == new or (quotes and old <= new) or (quoted and new <= old)


def _words_beside(arguments: Any, hints: Collection[str]) -> tuple[Counter[str], bool]:
    """Return the words of the arguments' texts without quoted hints, and whether they quote a hint."""
    if isinstance(arguments, Mapping):
        arguments = {name: value for name, value in arguments.items() if name != _MODEL}
    text = "\n".join(texts_within(arguments))
    quoted = [hint for hint in hints if hint in text]
    for hint in quoted:
        text = text.replace(hint, " ")
    words = (word for word in _WORD.findall(text) if not any(map(str.isdigit, word)))
    return Counter(words), bool(quoted)


def _started(run: Recorder) -> list[AttemptStarted]:
    return [event for event in run.session.events if isinstance(event, AttemptStarted)]


def _told(started: AttemptStarted, history: Iterable[Attempt]) -> Guidance:
    """Return the guidance of an attempt, without its state and injected arguments."""
    before = [past for past in history if past.number < started.attempt]
    return Guidance(
        hint=started.hint,
        subgoal=started.subgoal,
        diagnosis=before[-1].diagnosis if before else None,
        action=before[-1].action if before else None,
        **lasting(past.action for past in before),
    )


_FAILED = ""
"""Stands for a failed call in a queue."""


def name_of_key(key: str) -> str:
    """Return the tool and digest of a call's key, the same for equal calls."""
    return key.rpartition(":")[0]


class _Prefix:
    """Queue of the recorded calls of one tool. ordered: the agent function's own task made all of them."""

    def __init__(self) -> None:
        self.keys: deque[str] = deque()
        self.ordered = True
        self._new_in = 0
        self._replaced: set[str] = set()
        self._name = ""

    @property
    def replaying(self) -> bool:
        """Whether a reusable result is queued."""
        return any(self.keys) and not (self.ordered and self.keys[0] == _FAILED)

    def meet(self, key: str) -> None:
        """Remove this call, or its later replacement with other arguments, from the queue."""
        if key in self.keys:
            self.keys.remove(key)
        elif key in self._replaced and self.keys:
            self.keys.popleft()

    def add(self, call: Call, *, is_reused: bool, is_new: bool) -> None:
        """Queue a call; the latest attempt's calls come first. is_new: no earlier attempt has made it.

        Behind a new call, no calls of earlier attempts are queued: it may have replaced any of them.
        """
        self.ordered = self.ordered and call.line == OWN
        name = name_of_key(call.key)
        if self.keys and self.keys[-1] == _FAILED and self._name == name:
            self.keys.pop()  # the agent has repeated the failed call
        self._name = name
        if call.attempt < self._new_in:
            self._replaced.add(call.key)
            return
        if is_new:
            self._new_in = call.attempt
        if is_reused:
            self.keys.append(call.key)
        elif call.outcome != "done":
            self.keys.append(_FAILED)


def within_call(run_id: str) -> str | None:
    """Return the label of the recorded call of this run around the running code; None outside of any."""
    owner = calling.get()
    return None if owner is None or owner.run_id != run_id else owner.label


SAID = "said"
"""Key in `Tally.beside`: an adapter's reading of the result, as the answer alone and as all its text."""


def tally(run: Recorder) -> Tally:
    """Return the tally of an attempt, made at first use."""
    found = run.tally
    if found is None:
        made = Tally(run)
        with run.session.lock:
            found = run.tally
            if found is None:
                found = run.tally = made
    return found


def reusable(call: Call, run: Recorder) -> bool:
    """Whether the attempt reuses the recorded result of a call that is safe to repeat."""
    replay = run.replay
    if replay is None or call.outcome != "done" or call.undone or call.done_at is None:
        return False
    return call.key in replay.kept or replay.reach.holds(call)


def _recorded_counts(run: Recorder) -> dict[str, list[int]]:
    """Return, by name, the occurrences of calls that are reused, continued, approved or in question."""
    found: dict[str, list[int]] = {}
    if run.replay is None:
        return found
    state = run.session.state
    keys = set(state.approved)
    for call in state.calls.values():
        open_or_done = call.outcome in (None, "in_doubt", "done") and not call.undone
        if reusable(call, run) or (call.effect in UNSAFE and open_or_done):
            keys.add(call.key)
    for key in keys:
        name, _, count = key.rpartition(":")
        found.setdefault(name, []).append(int(count))
    for counts in found.values():
        counts.sort()
    return found


def _made_by_position(run: Recorder) -> list[tuple[Call, bool]]:
    """Return earlier calls matched by position, in the expected order, and whether each is reused.

    Calls inside another call are left out, as only a repetition of that call repeats them.
    """
    if run.replay is None or not run.session.has_calls:
        return []
    calls = [
        call
        for call in run.session.state.calls.values()
        if call.line is not None and call.within is None and call.done_at is not None
    ]
    # An attempt follows the course of the latest attempt, then the courses of earlier ones.
    calls.sort(key=lambda call: (-call.attempt, call.done_at))
    return [(call, reusable(call, run)) for call in calls]
