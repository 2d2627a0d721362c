"""The keys of an attempt's recorded calls, and the calls of earlier attempts it reuses by position."""

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
    """Where a call is made. line, within: as in the metadata of its step; None where it has none."""

    line: int | None = None
    within: str | None = None

    def metadata(self, key: str, inner: str | None) -> dict[str, Any]:
        """The metadata of the call's step. inner: the id of the inner run, for a call that is one."""
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
"""The argument that names the model: another one may be asked the same."""
OWN = 0
"""The line of the task or thread in which the agent function runs. The others are numbered from 1."""
_OWN_PLACE = Place(OWN)


class Tally:
    """Gives each call of an attempt a key of its own: tool, digest and occurrence.

    Also queues, by tool, the calls of earlier attempts whose results are reused by position. The queues
    are dropped when this attempt runs a call itself: from then on it no longer follows the old course.

    beside: what an adapter remembers of this attempt's calls, to make the next one cheaper. heard: keys of
    the calls in doubt that returned an error, which the agent has been told.
    """

    def __init__(self, run: Recorder) -> None:
        self.beside: dict[Any, Any] = {}
        self.heard: tuple[str, ...] = ()
        self._lock = run.session.lock
        self._claimed: dict[str, set[int]] = {}
        self._again = _given_again(run)
        # None are looked for before the second attempt.
        self._started = [] if run.replay is None else _started(run)
        self._hints = {event.hint for event in self._started if event.hint}
        # By the id of the calling task or thread, for those that the agent has started itself.
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
        """What the attempt was told that made the next queued call, and the calls recorded by then.

        So the agent asks again what it asked then. Nothing where tasks that the agent started made queued
        calls: which of those comes next is chance.
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
        """Take the first free key of this name, before all others those of calls that are given again.

        A call that was refused takes no place: the agent may have tried again by itself.
        """
        with self._lock:
            claimed = self._claimed.setdefault(name, set())
            counts = itertools.chain(self._again.get(name, ()), itertools.count(1))
            count = next(count for count in counts if count not in claimed)
            claimed.add(count)
        return f"{name}:{count}"

    def upcoming(self, name: str, taken: Collection[str] = ()) -> str:
        """The key that `claim` will give next, beside these."""
        with self._lock:
            claimed = self._claimed.get(name, set())
            counts = itertools.chain(self._again.get(name, ()), itertools.count(1))
            free = (f"{name}:{count}" for count in counts if count not in claimed)
            return next(key for key in free if key not in taken)

    def is_free(self, key: str) -> bool:
        """Whether the attempt has not come to the call of this key."""
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
        """Note that the agent has been told the error of a call that may have happened."""
        with self._lock:
            self.heard = (*self.heard, key)

    def _give(self, key: str) -> None:
        name, _, count = key.rpartition(":")
        with self._lock:
            self._claimed.setdefault(name, set()).add(int(count))

    def not_begun(self, key: str) -> None:
        """Give back the key of a call that is not made after all."""
        name, _, count = key.rpartition(":")
        with self._lock:
            self._claimed[name].discard(int(count))

    def take(self, run: Recorder, tool: str, place: Place, arguments: Any) -> str | None:
        """Take the key of the next recorded call of this tool; None where there is none.

        Also None where a task that the agent started makes this call, or made one of those: their order
        was chance. Where the next one failed, as the answers behind it belong to later calls. And where
        it says something else: the agent has not come to it.
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
        """Drop a recorded call from its queue: the attempt has reached it."""
        prefix = self._waiting.get(tool)
        if prefix is not None:
            prefix.meet(key)

    def leave(self) -> None:
        """Drop all queues: a call runs, so nothing recorded matches what follows."""
        self._waiting.clear()

    def place(self, tool: Tool, run: Recorder) -> Place:
        """Where a call is made. Call it in the task or thread that makes the call."""
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
    """Whether two calls' arguments are in the same words, whatever their numbers, ids and model.

    One that quotes a hint may have more words around it than the other.

    >>> says_the_same({"q": "step 3 of 5"}, {"q": "step 3 of 5 (be brief)"}, ["be brief"])
    True
    >>> says_the_same({"q": "what is it?"}, {"q": "who is it (be brief)?"}, ["be brief"])
    False
    """
    old, quoted = _words_beside(before, hints)
    new, quotes = _words_beside(now, hints)
    return old == new or (quotes and old <= new) or (quoted and new <= old)


def _words_beside(arguments: Any, hints: Collection[str]) -> tuple[Counter[str], bool]:
    """The words of the arguments' texts beside the hints that they quote, and whether they quote one."""
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
    """What an attempt was told, but for the state it was given and what was injected."""
    before = [past for past in history if past.number < started.attempt]
    return Guidance(
        hint=started.hint,
        subgoal=started.subgoal,
        diagnosis=before[-1].diagnosis if before else None,
        action=before[-1].action if before else None,
        **lasting(past.action for past in before),
    )


_FAILED = ""
"""Stands in a queue for a call that failed."""


def name_of_key(key: str) -> str:
    """The tool and the digest of a call, the same for equal calls."""
    return key.rpartition(":")[0]


class _Prefix:
    """The recorded calls of one tool. ordered: the agent function made all of them in its own task."""

    def __init__(self) -> None:
        self.keys: deque[str] = deque()
        self.ordered = True
        self._new_in = 0
        self._replaced: set[str] = set()
        self._name = ""

    @property
    def replaying(self) -> bool:
        """Whether a result is waiting that may be reused."""
        return any(self.keys) and not (self.ordered and self.keys[0] == _FAILED)

    def meet(self, key: str) -> None:
        """Drop a call, or the one with other arguments that a later attempt made in its place."""
        if key in self.keys:
            self.keys.remove(key)
        elif key in self._replaced and self.keys:
            self.keys.popleft()

    def add(self, call: Call, *, is_reused: bool, is_new: bool) -> None:
        """Queue a call, the latest attempt's first. is_new: no attempt before its own has made it.

        Behind such a call nothing is taken from attempts before: which of theirs it replaces is not known.
        """
        self.ordered = self.ordered and call.line == OWN
        name = name_of_key(call.key)
        if self.keys and self.keys[-1] == _FAILED and self._name == name:
            self.keys.pop()  # the agent tried again by itself
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
    """The label of the recorded call of this run that the current code runs in; None outside of any."""
    owner = calling.get()
    return None if owner is None or owner.run_id != run_id else owner.label


SAID = "said"
"""Key in what an attempt remembers: the answer in its result, and all that the result says."""


def tally(run: Recorder) -> Tally:
    """The tally of an attempt, made at first use."""
    found = run.tally
    if found is None:
        made = Tally(run)
        with run.session.lock:
            found = run.tally
            if found is None:
                found = run.tally = made
    return found


def reusable(call: Call, run: Recorder) -> bool:
    """Whether the attempt may reuse the recorded result of a call that is safe to repeat."""
    replay = run.replay
    if replay is None or call.outcome != "done" or call.undone or call.done_at is None:
        return False
    return call.key in replay.kept or replay.reach.holds(call)


def _given_again(run: Recorder) -> dict[str, list[int]]:
    """By name, the occurrences of calls that are given again, go on, were approved, or are asked about."""
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
    """Earlier calls matched by position, in the order expected now, and whether each is reused.

    Calls made inside another call are left out: they are repeated only if that call runs.
    """
    if run.replay is None or not run.session.has_calls:
        return []
    calls = [
        call
        for call in run.session.state.calls.values()
        if call.line is not None and call.within is None and call.done_at is not None
    ]
    # The latest attempt first: an attempt follows its course, then what only earlier ones reached.
    calls.sort(key=lambda call: (-call.attempt, call.done_at))
    return [(call, reusable(call, run)) for call in calls]
