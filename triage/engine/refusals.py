"""Calls that a person has refused, and whether a refusal is in force when its call comes again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from triage.core.constructors import Struct
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.errors import AttemptInterrupted
from triage.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    AttemptFailed,
    AttemptStarted,
    Event,
    StepRecorded,
)
from triage.core.json_values import digest, plain
from triage.core.state import is_reused
from triage.core.steps import Step
from triage.core.taxonomy import FailureType

from .call_keys import tally
from .journal import Session
from .run import Recorder
from .tools import shown

DECLINED = "declined"
"""`ApprovalGiven.kind` of a call that an earlier refusal has answered."""
MOST_TOLD = 20
"""Maximum number of refusals in one hint."""


class About(Struct, frozen=True):
    """A call in question.

    key: of the recorded call, if it begins. same: keys that identical calls share, also across inner runs.
    text: the call in words.
    """

    key: str
    same: Sequence[str]
    text: str


class Refusal(Struct, frozen=True):
    """A refusal in force. times: how often the call was attempted, the refused one included."""

    about: About
    reason: str
    times: int = 1

    def is_about(self, call: About) -> bool:
        """Whether the refusal covers this call."""
        return not set(self.about.same).isdisjoint(call.same)

    @property
    def text(self) -> str:
        """The refusal in words."""
        return f"{self.about.text}: {self.reason!r}" if self.reason else self.about.text


def describe(session: Session, key: str, tool: str, arguments: Any, text: str = "") -> About:
    """Describe a call for a question. text: empty makes one from the arguments."""
    outermost = session
    while outermost.parent is not None:
        outermost = outermost.parent.session
    data = plain(arguments)
    arguments_digest = digest(outermost.state.salt, json.dumps(data, sort_keys=True))
    same = (key.rpartition(":")[0], f"{tool}@{arguments_digest}")
    return About(key, same, text or f"the call of {tool} with {shown(data)}")


def abouts_in(asked: ApprovalAsked) -> list[About]:
    """Return the calls of a journalled question; empty in journals before 0.3.0."""
    payload = asked.payload if isinstance(asked.payload, dict) else {}
    return [About(**each) for each in payload.get("calls", ())]


def asks_about(asked: ApprovalAsked, key: str) -> bool:
    """Whether a journalled question is about the call of this key, alone or among others."""
    return any(each.key == key for each in abouts_in(asked))


def refusals(events: Iterable[Event]) -> list[Refusal]:
    """Return the refusals in force after these events.

    A refusal is lifted by `reject(…, ask_again=True)`, by another answer to the same call, and by other
    completed work. It is counted once per attempt, and from 1 again after any other answer.
    """
    asked: dict[str, list[About]] = {}
    pending: list[About] = []
    standing: list[Refusal] = []
    completed: set[str] = set()
    for event in events:
        match event:
            case ApprovalAsked(kind="call", subject=subject):
                pending = asked[subject] = abouts_in(event)
                asked.update({each.key: [each] for each in pending})
            case AttemptFailed():
                standing = [
                    replace(one, times=one.times + 1) if _holds(pending, one.about) else one
                    for one in standing
                ]
                pending = []
            case ApprovalGiven(kind="call", subject=subject):
                answered = asked.get(subject, [])
                standing = [
                    replace(one, times=1) for one in standing if not _holds(answered, one.about)
                ]
                if event.decision == "rejected" and not event.ask_again:
                    standing += [Refusal(each, event.reason) for each in _distinct(answered)]
            case ApprovalGiven(kind="declined", subject=subject):
                standing = [
                    replace(one, times=one.times + 1) if subject in one.about.same else one
                    for one in standing
                ]
            case StepRecorded(step=step) if _is_work(step):
                done = json.dumps([step.tool_called, step.tool_input, step.tool_output])
                if done not in completed:
                    completed.add(done)
                    standing = []
            case _:
                pass
    return standing


def approved_before(events: Iterable[Event]) -> dict[str, ApprovalGiven]:
    """Return the approvals that are the last answer about their calls, by key."""
    asked: dict[str, list[About]] = {}
    found: dict[str, ApprovalGiven] = {}
    for event in events:
        if isinstance(event, ApprovalAsked) and event.kind == "call":
            asked[event.subject] = abouts_in(event)
        elif isinstance(event, ApprovalGiven) and event.kind == "call":
            for each in asked.get(event.subject, ()):
                found[each.key] = event
    return {key: given for key, given in found.items() if given.decision != "rejected"}


def _is_work(step: Step) -> bool:
    done = step.tool_called is not None and step.error is None
    return done and not is_reused(step.metadata)


def _holds(calls: Iterable[About], sought: About) -> bool:
    refusal = Refusal(sought, "")
    return any(map(refusal.is_about, calls))


def _distinct(calls: Iterable[About]) -> Iterator[About]:
    seen: list[About] = []
    for each in calls:
        if not _holds(seen, each):
            seen.append(each)
            yield each


def standing(session: Session) -> list[Refusal]:
    """Return the refusals in force in a run, including its outer runs'."""
    journals = [session.events]
    outer = session.parent
    while outer is not None:
        journals.append(outer.session.events)
        outer = outer.session.parent
    return refusals(itertools.chain.from_iterable(reversed(journals)))


def refused_before(session: Session, calls: Sequence[About]) -> list[Refusal]:
    """Return the refusals of these calls; empty unless every call was refused."""
    known = standing(session)
    found = [next((one for one in known if one.is_about(each)), None) for each in calls]
    return [one for one in found if one is not None] if all(found) else []


def decline(run: Recorder, refused: Iterable[Refusal]) -> None:
    """Record that calls were refused again by their first answer, once per turn of the model.

    Raises AttemptInterrupted, which ends the run, for a call refused too often. A continued attempt makes
    the same calls again; they are recorded once.
    """
    session = run.session
    turn = sum(step.action == "model" for step in session.state.steps)
    begun = run.number if run.replay is None else run.replay.begun
    began = next(
        event.seq
        for event in session.events
        if isinstance(event, AttemptStarted) and event.attempt == begun
    )
    for one in refused:
        subject = one.about.same[-1]
        turns: set[int] = tally(run).beside.setdefault((DECLINED, subject), set())
        noted = sum(
            isinstance(event, ApprovalGiven)
            and (event.kind, event.subject) == (DECLINED, subject)
            and event.seq > began
            for event in session.events
        )
        turns.add(turn)
        if len(turns) <= noted:
            continue
        evidence = (Evidence("call:refused", f"a person has refused {one.text}"),)
        failed = Diagnosis(FailureType.PLAN_INCOMPLETE, evidence=evidence)
        breach = session.limits.refused(one.times + 1, failed)
        if breach is not None:
            run.stop(breach)
            raise AttemptInterrupted(breach)
        session.add(
            ApprovalGiven, kind=DECLINED, subject=subject, decision="rejected", reason=one.reason
        )


def refusal_hint(refused: Sequence[Refusal], before: Iterable[Refusal] = ()) -> str:
    """Return the hint that names refused calls and the reasons. before: earlier refusals in force."""
    calls = [one.about for one in refused]
    more = [one.text for one in before if not _holds(calls, one.about)]
    hint = f"A person refused {_listed([one.text for one in refused])}. Find another way."
    return f"{hint} Refused before: {_listed(more)}." if more else hint


def _listed(texts: Sequence[str]) -> str:
    left = len(texts) - MOST_TOLD
    return "; ".join([*texts[:MOST_TOLD], *([f"and {left} more"] if left > 0 else ())])
