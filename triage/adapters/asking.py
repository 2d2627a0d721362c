"""Questions that a framework's agent puts to a person, and the answers to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

from triage.core.events import ApprovalGiven
from triage.core.json_values import digest, plain
from triage.core.taxonomy import Effect
from triage.engine import questions, refusals
from triage.engine.calls import Run
from triage.engine.tools import shown


class Said(NamedTuple):
    """A person's answer.

    decision: `approved`; `rejected`, with the reason as `value`; or `answered`, with the answer as `value`;
    for a call that was made elsewhere, that is its result. edits: replacements for arguments of an
    approved call.
    """

    decision: Literal["approved", "rejected", "answered"]
    value: Any = None
    edits: Mapping[str, Any] = {}

    @property
    def told(self) -> str:
        """What the model is told of a refused call."""
        why = f": {self.value!r}" if self.value else ""
        return f"A person refused this call{why}. Find another way."


class AskedCall(NamedTuple):
    """A tool call that a person is asked about. id: what tells it from others in the attempt."""

    id: str
    tool: str
    arguments: Any


class Asking(NamedTuple):
    """A question to a person.

    about: the tool, or another subject. of: what tells this question from others about it, equal whenever
    it is asked. text: the question; empty: made from the arguments. leave: it asks whether a call that has
    not begun may be made: it can be approved or rejected, and cannot have happened. rule: who asks, for
    evidence. elsewhere: it asks for the result of a call that somebody else makes. calls, parts: as of
    `Question`.
    """

    about: str
    of: Any
    text: str = ""
    arguments: Any = None
    leave: bool = False
    effect: Effect = Effect.READ
    editable: Sequence[str] = ()
    rule: str = "agent:asks"
    elsewhere: bool = False
    calls: Sequence[refusals.About] = ()
    parts: Sequence[str] = ()

    def key(self, run: Run) -> str:
        """The key of the question and its answer in the journal."""
        return f"{self.about}:{digest(run.salt, str(plain(self.of)))}:1"


def said_to(run: Run, key: str) -> Said | None:
    """The answer to a question; None where it was not asked, or has no answer yet."""
    state = run.session.state
    call = state.calls.get(key)
    if call is not None and call.outcome == "done":
        return Said("answered", (run.session.live or {}).get(key, call.result))
    if key in state.approved:
        return Said("approved", edits=state.edits.get(key, {}))
    for event in reversed(run.session.events):
        if isinstance(event, ApprovalGiven) and event.subject == key:
            return Said("rejected", event.reason or None) if event.decision == "rejected" else None
    return None


def ask(run: Run, asking: Asking) -> NoReturn:
    """End the attempt, and suspend the run until a person answers."""
    given = plain(asking.arguments)
    text = asking.text or f"may {asking.about} be called with {shown(given)}?"
    kind = (
        questions.APPROVAL
        if asking.leave
        else questions.ELSEWHERE
        if asking.elsewhere
        else questions.ANSWER
    )
    question = questions.Question(
        asking.key(run), asking.about, asking.effect.value, given, text,
        doubt=False, kind=kind, editable=asking.editable, calls=asking.calls, parts=asking.parts,
    )  # fmt: skip
    if asking.leave:
        questions.ask(run, question)
    questions.wait_for_answer(run, question, asking.rule)
