"""The point of return: how far back a failed attempt goes; recorded calls before the point are reused.

The world is reused, the judgement is not. The model is asked again for an answer that led to a failure;
reads and effects before that answer are reused. Everything here is computed from the journal alone, so
that every process finds the same point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from triage.core.actions import Action, Replan, Resume, Retry, Rollback
from triage.core.constructors import Struct
from triage.core.failures import Attempt, ErrorInfo
from triage.core.json_values import texts_within
from triage.core.state import Call, RunState, label_of
from triage.core.taxonomy import UNSAFE, Cause, FailureType

from .event_loop import CANCELLATIONS

START = 0
"""The point of return before everything: only completed unsafe calls are reused."""

WAITS = "waits_for_answer"
"""Cause of an attempt's end that is no failure: a framework's agent waits for a person."""

_STOPPED = (Cause.IN_DOUBT, Cause.NEEDS_APPROVAL, Cause.LIMIT, WAITS)
"""Causes that stop an attempt from outside."""


class Point(Struct, frozen=True):
    """A point of return. at: position in the journal; earlier calls are reused. why: in words."""

    at: int
    why: str


class Impasse(Struct, frozen=True):
    """Every further attempt would end as the last one did. why: in words."""

    why: str


def point_of_return(state: RunState, action: Action) -> Point | Impasse:
    """Return the point of return of an action; the last attempt of `state` has failed.

    Only Retry, Replan, Rollback and Resume have one; any other action gets the start.
    """
    match action:
        case Retry():
            return _behind_effects(state, _origin(state))
        case Resume():
            point = _behind_effects(state, _origin(state))
            done = max((seq for seq, _ in state.ledger.completed), default=START)
            if isinstance(point, Point) and point.at < done:
                return Point(done, "the last subgoal that was completed")
            return point
        case Rollback(checkpoint_id=int(checkpoint)):
            return Point(checkpoint + 1, f"checkpoint {checkpoint}")
        case Replan():
            return Point(START, "a new plan begins at the start")
        case _:
            return Point(START, "the start")


def _origin(state: RunState) -> Point | Impasse:
    """Return the point from which the failure came, ignoring effects behind it."""
    past = state.history[-1]
    calls = _ended(state, past.number)
    diagnosis = past.diagnosis
    end = Point(state.last_seq, "the end: all that was recorded is reused")
    if was_stopped(past):
        return end
    if _type_of(past) is FailureType.EXTERNAL_FAULT:
        if diagnosis.cause == Cause.CONFLICT:
            return Point(START, "the start: after a conflict nothing that was read is trusted")
        failed = _failed(calls, past)
        if failed is not None:
            return Point(_end_of(failed), f"the call of {failed.tool} that failed")
        return _last_answer(calls, diagnosis.critical_step) if repeats_itself(state) else end
    failed = _failed_request(calls, past)
    too_long = _type_of(past) is FailureType.CONTEXT_OVERFLOW
    if failed is not None and (too_long or not _has_returned(state)):
        return Point(_end_of(failed), f"the request of {failed.tool} that failed")
    if _has_returned(state):
        return Point(START, "the start: to ask the last answer anew has led to the same failure")
    return _last_answer(calls, diagnosis.critical_step)


def _failed_request(calls: list[Call], past: Attempt) -> Call | None:
    """Return the last model call if the attempt failed by its length or its unreadable answer.

    A request refused for another reason may contain an earlier bad answer.
    """
    asked = next((call for call in reversed(calls) if call.kind == "model"), None)
    if asked is None or not _is_same(asked.error, past.error):
        return None
    if past.failure_type is FailureType.CONTEXT_OVERFLOW:
        return asked
    critical = past.diagnosis.critical_step
    refused = any((error.status_code or 0) >= 400 for error in _chain(asked.error))
    earlier = critical is not None and asked.step is not None and critical < asked.step
    return None if refused or earlier else asked


def _last_answer(calls: list[Call], critical: int | None) -> Point | Impasse:
    """Return the last answered model call, at or before the critical step if known."""
    answers = [call for call in calls if _is_answer(call)]
    if critical is not None:
        answers = [call for call in answers if call.step is not None and call.step <= critical]
    if not answers:
        return Point(START, "the start: no model call is recorded that could have led here")
    repeatable = [call for call in answers if call.effect not in UNSAFE]
    if not repeatable:
        return Impasse(
            f"{answers[-1].tool} has completed with an effect, so it is not run again, and no model "
            "call is recorded that could be asked anew"
        )
    last = repeatable[-1]
    around = _around(calls, last)
    if around is not None:
        return Point(_end_of(around) + 1, f"just behind {around.tool}, which is not repeated")
    return Point(_end_of(last), f"the last answered model call ({last.tool})")


def _is_answer(call: Call) -> bool:
    """Whether a call returned a model's answer: a model call, or an inner run that asked a model."""
    if call.outcome != "done" or call.undone:
        return False
    return call.kind == "model" or (call.kind == "run" and call.asked_model)


def _around(calls: list[Call], inner: Call) -> Call | None:
    """Return the outermost completed unsafe call around this one."""
    found: Call | None = None
    done = [call for call in calls if call.outcome == "done"]
    part: Call | None = inner
    while part is not None and part.within is not None:
        part = _holding(done, part.within)
        if part is not None and part.effect in UNSAFE and part.kind == "tool":
            found = part
    return found


def _behind_effects(state: RunState, point: Point | Impasse) -> Point | Impasse:
    """Move a point behind the last effect that a model has seen: asked again, it would vary that call.

    An effect of an earlier attempt counts too: a conversation may continue from it without the call.
    """
    if isinstance(point, Impasse):
        return point
    calls = _ended(state)
    answers = [call for call in calls if call.kind in ("model", "run") and call.outcome == "done"]
    for call in reversed(calls):
        if call.outcome != "done" or call.undone or call.effect not in UNSAFE:
            continue
        end = _end_of(call)
        if end < point.at:
            break
        if any(_begun_after(end, answer, state) for answer in answers):
            return Point(end + 1, f"just behind {call.tool}, whose result the model has seen")
    return point


def _begun_after(position: int, call: Call, state: RunState) -> bool:
    """Whether an ended call began after this position, in its attempt."""
    reused = call.seq < state.started_at
    return (_end_of(call) if reused else call.seq) > position


def _ended(state: RunState, attempt: int | None = None) -> list[Call]:
    """Return the ended calls, in order of their ends: made or reused by an attempt; None: all."""
    calls = [call for call in state.calls.values() if attempt in (None, call.attempt)]
    return sorted((call for call in calls if call.done_at is not None), key=_end_of)


def _end_of(call: Call) -> int:
    assert call.done_at is not None
    return call.done_at


# Why an attempt failed ------------------------------------------------------------------------------


def _has_returned(state: RunState) -> bool:
    """Whether the model was already asked again after the previous failure of this type."""
    *before, past = state.history
    for earlier in reversed(before):
        if was_stopped(earlier):
            continue
        if _type_of(earlier) is not _type_of(past):
            return False
        asked_again = isinstance(earlier.action, Retry | Resume)
        return asked_again and state.returns.get(earlier.number + 1, START) > START
    return False


def was_stopped(past: Attempt) -> bool:
    """Whether an attempt was stopped from outside, so that its guidance stays in force."""
    return past.diagnosis.cause in _STOPPED and not _broke_off(past)


def _type_of(past: Attempt) -> FailureType:
    return FailureType.UNKNOWN if _broke_off(past) else past.failure_type


def _broke_off(past: Attempt) -> bool:
    """Whether the agent's own failure cut off the calls in doubt, rather than a call failing."""
    error = past.error
    if past.diagnosis.cause != Cause.IN_DOUBT or error is None:
        return False
    if any(_comes_from_outside(part) for part in error.walk()):
        return False
    in_doubt = [
        step for step in past.trajectory if step.effect in UNSAFE and step.error is not None
    ]
    return bool(in_doubt) and all(step.exception_type in CANCELLATIONS for step in in_doubt)


def repeats_itself(state: RunState) -> bool:
    """Whether the last two attempts failed with the same error of the agent's own, the second without a
    new call. Then no other side has failed, and the reused results are wrong.
    """
    if len(state.history) < 2:
        return False
    before, past = state.history[-2:]
    if past.error is None or any(_comes_from_outside(error) for error in past.error.walk()):
        return False
    same = before.error is not None and (before.error.type_name, before.error.message) == (
        past.error.type_name,
        past.error.message,
    )
    return same and not _has_begun_calls(state, past.number)


def _comes_from_outside(error: ErrorInfo) -> bool:
    return error.status_code is not None or error.is_a("OSError")


def _has_begun_calls(state: RunState, attempt: int) -> bool:
    """Whether an attempt has begun a call, other than reusing one."""
    return any(
        call.attempt == attempt and call.seq > state.started_at for call in state.calls.values()
    )


def _failed(calls: list[Call], past: Attempt) -> Call | None:
    """Return the recorded call that failed, or whose answer was the error; None if none did."""
    for call in calls[::-1]:
        if _is_same(call.error, past.error):
            return call
    if calls and (calls[-1].outcome != "done" or _answered_badly(calls[-1], past)):
        return calls[-1]
    texts = [part.message for part in _chain(past.error) if len(part.message) >= _MIN_LENGTH]
    for call in calls[::-1]:
        if call.effect not in UNSAFE and _answered_with(call, texts):
            return call
    critical = past.diagnosis.critical_step
    at_step = [call for call in calls if call.step is not None and call.step == critical]
    return at_step[0] if at_step else None


_MIN_LENGTH = 8
"""Minimum length of an error's message to look for in an answer."""


def _chain(error: ErrorInfo | None) -> Iterator[ErrorInfo]:
    return iter(()) if error is None else error.walk()


def _is_same(of_call: ErrorInfo | None, of_attempt: ErrorInfo | None) -> bool:
    """Whether two errors, or errors behind them, are one failure: equal, or of one HTTP answer.

    Each client words the HTTP answer of a failed request in its own way.
    """
    return any(
        (one.type_name, one.message) == (other.type_name, other.message)
        or _quotes_answer(other, one)
        for one in _chain(of_call)
        for other in _chain(of_attempt)
    )


def _quotes_answer(error: ErrorInfo, answer: ErrorInfo) -> bool:
    if answer.status_code is None or answer.status_code != error.status_code:
        return False
    message = _letters(answer.message.removeprefix(f"{answer.status_code}: "))
    return len(message) >= _MIN_LENGTH and message in _letters(error.message)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _answered_badly(call: Call, past: Attempt) -> bool:
    """Whether a call returned an error as its answer."""
    steps = past.trajectory.steps
    return call.step is not None and call.step < len(steps) and steps[call.step].error is not None


def _answered_with(call: Call, texts: list[str]) -> bool:
    """Whether a call's result is an error object with the error of the attempt."""
    if call.outcome != "done" or not isinstance(call.result, Mapping):
        return False
    error = call.result.get("error") or call.result.get("errors")
    words = [text for text in texts_within(error) if len(text) >= _MIN_LENGTH]
    return any(word in text or text in word for word in words for text in texts)


# Reuse ----------------------------------------------------------------------------------------------


def asks_anew(state: RunState, point: Point) -> bool:
    """Whether a call of the last attempt would run again behind this point; True without any model call."""
    calls = [call for call in state.calls.values() if call.attempt == state.attempt]
    if not any(call.kind == "model" or call.asked_model for call in calls):
        return True
    return any(
        call.done_at is None or call.outcome != "done" or call.done_at >= point.at
        for call in calls
        if call.effect not in UNSAFE
    )


class Reach(Struct, frozen=True):
    """The reads and model calls of earlier attempts that an attempt reuses.

    limits: by attempt, the position before which its reused calls end. at: the point of return, in the
    failed attempt. began: position at which that attempt began. around: keys of the call at the point, and
    of the calls around it.

    A call that began before the point is reused even if it ended later, unless it is around the call at the
    point.
    """

    limits: Mapping[int, float] = {}
    at: float = START
    began: int = -1
    around: frozenset[str] = frozenset()

    def holds(self, call: Call) -> bool:
        """Whether a completed call that may be repeated is reused."""
        end = _end_of(call)
        limit = self.limits.get(call.attempt, START)
        if end < limit:
            return True
        return limit == self.at and self.began < call.seq < limit and call.key not in self.around


def reach(state: RunState, attempt: int, at: float) -> Reach:
    """Return the reach of an attempt that returns to this position.

    A call of an earlier attempt counts unless a later attempt has returned to before it.
    """
    limits: dict[int, float] = {attempt: float("inf")}
    limit = at
    for number in range(attempt - 1, 0, -1):
        limits[number] = limit
        limit = min(limit, state.returns.get(number, START))
    return Reach(
        limits, at, state.starts.get(attempt - 1, -1), _around_point(state, attempt - 1, at)
    )


def _around_point(state: RunState, attempt: int, at: float) -> frozenset[str]:
    """Return the keys of the call that ended at a position, and of the calls around it."""
    calls = _ended(state, attempt)
    part = next((call for call in calls if _end_of(call) == at), None)
    keys: set[str] = set()
    while part is not None and part.key not in keys:
        keys.add(part.key)
        part = None if part.within is None else _holding(calls, part.within)
    return frozenset(keys)


def _holding(calls: list[Call], label: str) -> Call | None:
    """Return the call with this label in steps."""
    for call in calls:
        if label_of(call.tool, call.idempotency_key) == label:
            return call
    return None


# Dry run --------------------------------------------------------------------------------------------


class Foretold(Struct, frozen=True):
    """The fate of a recorded call if the next attempt made it again.

    fate: `reused`, `asked anew` (a model), `run again`, `undone first`, or `cannot be undone` (the run
    escalates).
    """

    call: Call
    fate: str


def _undoing(state: RunState, call: Call) -> str:
    known = any(entry.key == call.key and not entry.ran for entry in state.compensations)
    return "undone first" if known else "cannot be undone"


def foretell(state: RunState, action: Action) -> list[Foretold]:
    """Return the fate of each ended call under an action, in order of their ends; changes nothing.

    The last attempt of `state` has failed.
    """
    point = point_of_return(state, action)
    at = point.at if isinstance(point, Point) else state.last_seq
    reused = reach(state, state.attempt + 1, at)
    found: list[Foretold] = []
    for call in sorted((c for c in state.calls.values() if c.done_at is not None), key=_end_of):
        if call.outcome == "done" and not call.undone and call.effect in UNSAFE:
            behind = isinstance(action, Rollback) and _end_of(call) >= at
            found.append(Foretold(call, _undoing(state, call) if behind else "reused"))
        elif call.outcome == "done" and not call.undone and reused.holds(call):
            found.append(Foretold(call, "reused"))
        else:
            asks = call.kind in ("model", "judge")
            found.append(Foretold(call, "asked anew" if asks else "run again"))
    return found
