"""Write what telemetry shows of a run: names, content if it is wanted, and log events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from triage.core import events
from triage.core.escaping import escaped
from triage.core.json_values import plain
from triage.core.quoting import one_line
from triage.core.redaction import redact
from triage.core.steps import Step

from . import names

LONGEST = 16_384
"""Maximum number of characters of an attribute with content; longer text is cut and ends in "…"."""
_MOST_LINES = 500
"""How many texts of a run are cached in the form in which they are shown."""


class Shown:
    """Formats the values of a run. content: whether to include prompts, outputs, arguments and results."""

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self._lines: dict[str, str] = {}

    def line(self, text: str) -> str:
        """Return a text on one line, redacted and cut. The same few names recur, so results are cached."""
        known = self._lines.get(text)
        if known is None:
            known = one_line(text)
            if len(self._lines) < _MOST_LINES:
                self._lines[text] = known
        return known

    def text(self, text: str | None) -> str | None:
        """Return a text that is content on one line; None if content is not wanted or the text is empty."""
        return one_line(text) if self.content and text else None

    def json(self, value: Any) -> str | None:
        """Return a value that is content as JSON; None if content is not wanted or the value is None."""
        return content_json(value) if self.content and value is not None else None


def content_json(value: Any) -> str:
    """Write a value as JSON, or a text as it is, redacted as in stores and cut at `LONGEST` characters."""
    clean = redact(plain(value))
    text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False)
    text = escaped(text, lines=True)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def input_messages(given: Any) -> list[dict[str, Any]]:
    """Return a model's input as messages. A step holds only what was new in the request."""
    entries = given if isinstance(given, list) else [given]
    messages: list[dict[str, Any]] = []
    for entry in entries:
        role, said = "user", entry
        if isinstance(entry, Mapping) and "content" in entry:
            role, said = str(entry.get("role") or "user"), entry["content"]
        messages.append({"role": role, "parts": [_text(said)]})
    return messages


def output_messages(step: Step, result: Any = None) -> list[dict[str, Any]]:
    """Return a model's words in a step and the calls it asked for, as one message.

    result: the call's result, used if the step has neither words nor calls.
    """
    metadata = step.metadata or {}
    words = metadata.get("said") if step.llm_output is None else step.llm_output
    parts: list[dict[str, Any]] = []
    if words:
        parts.append(_text(words))
    asked = step.tool_output if isinstance(step.tool_output, list) else []
    known = metadata.get("ids")
    ids = known if isinstance(known, list) else []
    for at, call in enumerate(asked):
        if not isinstance(call, Mapping):
            continue
        part = {"type": "tool_call", "name": call.get("tool"), "arguments": call.get("arguments")}
        if at < len(ids):
            part["id"] = ids[at]
        parts.append(part)
    if not parts and result is not None:
        parts.append(_text(result))
    return [{"role": "assistant", "parts": parts}]


def _text(said: Any) -> dict[str, Any]:
    content = said if isinstance(said, str) else json.dumps(plain(said), ensure_ascii=False)
    return {"type": "text", "content": content}


# Log events for the events that neither begin nor end a span --------------------------------------


class Note(NamedTuple):
    """A log event. Attributes that are None are left out."""

    name: str
    attributes: Mapping[str, Any]
    severity: str = "INFO"


def _state_updated(event: events.StateUpdated, shown: Shown) -> Note:
    given = {
        "triage.state.keys": [shown.line(str(name)) for name in event.values],
        "triage.state.values": shown.json(event.values),
    }
    return Note("triage.state.updated", given)


def _watch_noticed(event: events.WatchNoticed, shown: Shown) -> Note:
    given = {
        "triage.watch.rule": shown.line(event.rule),
        "triage.watch.response": shown.line(event.response),
        "triage.watch.step": event.step,
        "triage.watch.text": shown.text(event.text),
    }
    return Note("triage.watch.noticed", given, "WARN")


def _subgoals_declared(event: events.SubgoalsDeclared, shown: Shown) -> Note:
    given: dict[str, Any] = {"triage.subgoal.count": len(event.names)}
    if shown.content:
        given["triage.subgoal.names"] = [shown.line(name) for name in event.names]
    return Note("triage.subgoals.declared", given)


def _subgoal_completed(event: events.SubgoalCompleted, shown: Shown) -> Note:
    return Note("triage.subgoal.completed", {"triage.subgoal.name": shown.text(event.name)})


def _compensator_registered(event: events.CompensatorRegistered, shown: Shown) -> Note:
    given = {names.COMPENSATOR: shown.line(event.name), names.CALL_KEY: shown.line(event.key)}
    return Note("triage.compensator.registered", given)


def _approval_given(event: events.ApprovalGiven, shown: Shown) -> Note:
    given = {
        "triage.approval.kind": shown.line(event.kind),
        "triage.approval.subject": shown.line(event.subject),
        "triage.approval.decision": shown.line(event.decision),
        "triage.approval.by": shown.line(event.by) or None,
        "triage.approval.reason": shown.text(event.reason),
    }
    return Note("triage.approval.given", given)


NOTES: Mapping[type, Callable[[Any, Shown], Note]] = {
    events.ApprovalGiven: _approval_given,
    events.CompensatorRegistered: _compensator_registered,
    events.StateUpdated: _state_updated,
    events.SubgoalCompleted: _subgoal_completed,
    events.SubgoalsDeclared: _subgoals_declared,
    events.WatchNoticed: _watch_noticed,
}
