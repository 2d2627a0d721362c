"""Which request asks a model: a table by path and body, whatever the host."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from triage.core import UsageError, misuse
from triage.core.messages.anthropic import ANTHROPIC
from triage.core.messages.base import ProviderWire
from triage.core.messages.chat import CHAT
from triage.core.messages.gemini import GEMINI
from triage.core.messages.responses import RESPONSES

Form = Literal["chat", "responses", "anthropic", "gemini"]
_WIRES: Mapping[str, ProviderWire] = {
    "chat": CHAT,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
}
_MESSAGES = {
    "chat": "messages",
    "responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
}


class Endpoint(NamedTuple):
    """One way to ask a model.

    provider: how steps name it. path: a regular expression that a request's path ends with. messages: the
    field of the body with the conversation. wire: the form of the messages and of the answers.
    """

    provider: str
    path: re.Pattern[str]
    messages: str
    wire: ProviderWire


class Asked(NamedTuple):
    """A request that asks a model: its endpoint and its body."""

    endpoint: Endpoint
    body: dict[str, Any]


def _row(provider: str, path: str, form: Form) -> Endpoint:
    return Endpoint(provider, re.compile(rf"{path}\Z"), _MESSAGES[form], _WIRES[form])


ENDPOINTS: list[Endpoint] = [
    _row("openai", "/chat/completions", "chat"),
    _row("openai", "/responses", "responses"),
    _row("anthropic", "/v1/messages", "anthropic"),
    _row("anthropic", ":(?:streamR|r)awPredict", "anthropic"),
    _row("anthropic", "/model/[^/]+/invoke(?:-with-response-stream)?", "anthropic"),
    _row("gemini", ":(?:generateContent|streamGenerateContent)", "gemini"),
]
"""The endpoints that are known, of which the first one that fits counts."""


def endpoint(path: str, *, form: Form, provider: str) -> None:
    """Make requests to an endpoint of your own known as requests to a model.

    path: what the path of their addresses ends with, as in `/v3/generate`. form: whose messages and answers
    they have. provider: how steps name it. Raises UsageError for an unknown form or an empty path.
    """
    if form not in _WIRES:
        raise misuse("endpoint(form=…)", form, f"one of {', '.join(_WIRES)}")
    if not isinstance(path, str) or not path.strip("/"):
        raise misuse("endpoint(path)", path, "the end of a path, as in '/v3/generate'")
    if not isinstance(provider, str) or not provider:
        raise UsageError("endpoint(provider=…) takes a name for the steps, and got none")
    ENDPOINTS.insert(0, _row(provider, re.escape(path), form))


def asked_of(method: str, path: str, content: bytes | str) -> Asked | None:
    """What a request asks of a model; None for any other request, and for a body that cannot be read."""
    if method.upper() != "POST":
        return None
    found = next((one for one in ENDPOINTS if one.path.search(path)), None)
    if found is None:
        return None
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or found.messages not in body:
        return None
    return Asked(found, body)


def knows(path: str) -> bool:
    """Whether a request to this path may ask a model, before its body is read."""
    return any(one.path.search(path) for one in ENDPOINTS)
