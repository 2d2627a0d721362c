"""The answers a run accepts, as forms, and the conversion of a submitted form into an answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types
from jsonschema.exceptions import (  # type: ignore[import-untyped] # as above
    SchemaError,
    best_match,
)

from triage.core import (
    Abort,
    ApprovalGiven,
    AttemptFailed,
    CallFinished,
    Escalate,
    Event,
    Redactor,
    Replan,
    Reply,
    Retry,
    RunFinished,
    RunResumed,
    RunSuspended,
    UsageError,
    action_text,
    approve,
    edit,
    happened,
    json_text,
    refuse_constant,
    reject,
    rerun,
    to_json,
)
from triage.engine import Question, answers_to, question_at, waits_for
from triage.plan import ApprovalAnswer, ApprovalRequest, request_in
from triage.stores import RunInfo

Schemas: TypeAlias = Mapping[str, Mapping[str, Any] | None]
"""JSON Schemas of tools' arguments by tool name; None for an unknown schema."""

ENDED = ("escalated", "aborted", "fatal", "cancelled", "error")
"""Final statuses of runs that can be tried again in a new run."""
_LONG = 80
_WORDS = {
    "approve": "Approve",
    "reject": "Reject",
    "edit": "Approve with changes",
    "happened": "It happened",
    "rerun": "It did not happen: run it again",
    "retry": "Try again",
    "replan": "Make a new plan",
    "abort": "End the run",
    "escalate": "Escalate",
}
_WITH_REASON = ("reject", "retry", "replan", "abort", "escalate")


class Field(NamedTuple):
    """A form field for one argument of a call.

    name: the argument's name. key: the field's name in the form. kind: `text`, `lines`, `number`, `flag`,
    `choice` or `json`. value: the current value as text. choices: the values a `choice` allows. note: the
    description in the schema, or "".
    """

    name: str
    key: str
    kind: str
    value: str
    choices: tuple[str, ...] = ()
    note: str = ""


class Choice(NamedTuple):
    """An answer that a run accepts. word: the label of its button."""

    name: str
    word: str


class Offer(NamedTuple):
    """What a person can do with a run.

    question: identifies the open question; empty if the run is not waiting. choices: the answers it
    accepts. tool, effect, arguments: the call in question; empty if it is not about a call. fields: the
    form fields for changing the arguments. plan: the plan or step to approve, as JSON; empty if there is
    none. retries_at: position of the failure from which a new run can try again; None if there is none.
    command: the shell command that recovers the run; empty if nobody needs to run it.
    """

    question: str = ""
    choices: tuple[Choice, ...] = ()
    tool: str = ""
    effect: str = ""
    arguments: str = ""
    fields: tuple[Field, ...] = ()
    plan: str = ""
    retries_at: int | None = None
    command: str = ""

    @property
    def takes_reason(self) -> bool:
        """Whether any of the answers takes a reason."""
        return any(choice.name in _WITH_REASON for choice in self.choices)

    def takes(self, name: str) -> bool:
        """Return whether the run accepts the answer of this name."""
        return any(choice.name == name for choice in self.choices)


def offer_of(info: RunInfo, events: Sequence[Event], schemas: Schemas, *, runs_here: bool) -> Offer:
    """Return what can be done with a run. runs_here: whether this process continues it by itself."""
    force = " --force" if info.status == "dead_letter" else ""
    recover = f"triage runs recover {shlex.quote(info.run_id)} module:agent{force}"
    left = info.status == "dead_letter" or (info.status == "running" and info.lease_until is None)
    offer = Offer(command=recover if left and not runs_here and info.parent is None else "")
    if info.status in ENDED:
        failed = [event.seq for event in events if isinstance(event, AttemptFailed)]
        return offer._replace(retries_at=failed[-1] if failed else None)
    asked = waits_for(events)
    if asked is None:
        return offer
    request = request_in(events)
    if request is not None:
        names = ("approve", "reject", *(("edit",) if request.kind == "plan" else ()))
        plan = json.dumps(_shown(request.payload), ensure_ascii=False, indent=2)
        return offer._replace(question=asked.token_digest, choices=_choices(names), plan=plan)
    question = question_at(events)
    fields = tuple(_fields(question, schemas))
    names = tuple(
        name
        for name in answers_to(events)
        if name != "edit" or fields  # nothing to edit
    )
    offer = offer._replace(question=asked.token_digest, choices=_choices(names), fields=fields)
    if question is None:
        return offer
    return offer._replace(
        tool=question.tool,
        effect=question.effect,
        arguments=json.dumps(_shown(question.arguments), ensure_ascii=False, indent=2),
    )


def _choices(names: Sequence[str]) -> tuple[Choice, ...]:
    return tuple(Choice(name, _WORDS[name]) for name in names)


def _shown(value: Any) -> Any:
    """Convert a value to JSON data with its secrets redacted."""
    return Redactor().value(to_json(value))[0]


# The form of a call's arguments ---------------------------------------------------------------------


def _fields(question: Question | None, schemas: Schemas) -> Iterator[Field]:
    if question is None or not question.not_begun or not isinstance(question.arguments, Mapping):
        return
    schema = schemas.get(question.tool) or {}
    for at, name in enumerate(question.editable):
        value = _shown(question.arguments.get(name))
        yield _field(str(name), f"arg-{at}", value, schema.get("properties", {}).get(name))


def _field(name: str, key: str, value: Any, known: Any) -> Field:
    """Make the field of an argument. known: its schema; without one, the value decides the kind."""
    schema: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
    note = str(schema.get("description", ""))
    choices = schema.get("enum")
    if isinstance(choices, list) and all(isinstance(one, str) for one in choices):
        return Field(name, key, "choice", json_text(value), tuple(choices), note)
    kind = schema.get("type")
    if kind == "boolean" or (kind is None and isinstance(value, bool)):
        return Field(name, key, "flag", "true" if value is True else "false", (), note)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in ("integer", "number") or (kind is None and is_number):
        return Field(name, key, "number", json_text(value), (), note)
    if isinstance(value, str) and kind in ("string", None):
        long = len(value) > _LONG or "\n" in value
        return Field(name, key, "lines" if long else "text", value, (), note)
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return Field(name, key, "json", text, (), note)


def refilled(fields: Sequence[Field], form: Mapping[str, str]) -> tuple[Field, ...]:
    """Return the fields with the submitted values filled in."""
    return tuple(field._replace(value=form.get(field.key, field.value)) for field in fields)


def _changed(fields: Sequence[Field], form: Mapping[str, str]) -> dict[str, Any]:
    """Return the changed arguments. Raises UsageError if one is not valid JSON or none has changed."""
    changed: dict[str, Any] = {}
    for field in fields:
        given = form.get(field.key, field.value)
        if given.replace("\r\n", "\n") == field.value.replace("\r\n", "\n"):
            continue
        if field.kind in ("text", "lines", "choice"):
            changed[field.name] = given.replace("\r\n", "\n")
        else:
            changed[field.name] = _json(field.name, given)
    if not changed:
        raise UsageError("nothing is changed: change an argument, or approve the call as it is")
    return changed


def _check_schema(question: Question, changed: Mapping[str, Any], schemas: Schemas) -> None:
    """Raise UsageError if the changed arguments do not match the tool's schema."""
    schema = schemas.get(question.tool)
    if not schema or not isinstance(question.arguments, Mapping):
        return
    try:
        error = best_match(
            Draft202012Validator(schema).iter_errors({**question.arguments, **changed})
        )
    except SchemaError:
        return
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "the arguments"
        raise UsageError(f"{where}: {error.message[:300]}")


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} must be JSON, text in double quotes: {error}") from None


# From a form to an answer ---------------------------------------------------------------------------


def reply_of(
    events: Sequence[Event], offer: Offer, form: Mapping[str, str], schemas: Schemas, by: str
) -> Reply | ApprovalAnswer:
    """Convert a submitted form to an answer. Raises UsageError naming the field that is wrong."""
    name = form.get("answer", "")
    if not offer.takes(name):
        known = ", ".join(choice.name for choice in offer.choices) or "nothing"
        wrong = f", not with {name[:40]!r}" if name else ": press one of the buttons"
        raise UsageError(f"this run can be answered with {known}{wrong}")
    reason = form.get("reason", "").strip() or None
    if name == "reject" and reason is None:
        raise UsageError("reason: say why, so that the agent can find another way")
    request = request_in(events)
    if request is not None:
        return _of_plan(request, name, reason, form, by)
    made: Reply
    match name:
        case "approve":
            made = approve()
        case "reject":
            made = reject(reason)
        case "edit":
            question = question_at(events)
            assert question is not None
            changed = _changed(offer.fields, form)
            _check_schema(question, changed, schemas)
            made = _said(edit, changed)
        case "happened":
            text = form.get("result", "").strip()
            made = _said(happened, _json("result", text) if text else None)
        case "rerun":
            made = rerun()
        case "retry":
            made = Retry(reason)
        case "replan":
            made = Replan(reason)
        case "escalate":
            made = Escalate(reason)
        case _:
            made = Abort(reason or f"{by} ended it")
    return made


def _said(make: Any, value: Any) -> Reply:
    try:
        made: Reply = make(value)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return made


def _of_plan(
    request: ApprovalRequest, name: str, reason: str | None, form: Mapping[str, str], by: str
) -> ApprovalAnswer:
    if name == "edit":
        return request.answer("edited", by=by, payload=_json("plan", form.get("plan", "")))
    if name == "reject":
        return request.answer("rejected", by=by, reason=reason or "")
    return request.answer("approved", by=by)


# The first answer -----------------------------------------------------------------------------------


class First(NamedTuple):
    """An answer that has been given.

    by: who gave it; empty if unknown. time: in seconds since the epoch. said: the answer in words.
    """

    by: str
    time: float
    said: str


def first_answer(events: Sequence[Event], question: str) -> First | None:
    """Return how a question was answered; None if it is still open or was never asked."""
    given: First | None = None
    found = False
    for event in events:
        if isinstance(event, RunSuspended):
            found = event.token_digest == question
        elif found and isinstance(event, ApprovalGiven):
            said = f"{event.decision}: {event.reason}" if event.reason else event.decision
            given = First(event.by, event.time, said)
        elif found and isinstance(event, CallFinished) and event.step is None:
            given = First("", event.time, f"it happened: {json_text(_shown(event.result))}")
        elif found and isinstance(event, RunResumed):
            said = action_text(event.action) if given is None else given.said
            return First(event.by or (given.by if given else ""), event.time, said)
        elif found and isinstance(event, RunFinished):
            return First(event.by, event.time, event.status)
    return None
