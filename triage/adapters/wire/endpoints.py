"""Which request asks a model: a table by path and body, whatever the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from triage.core.errors import UsageError, misuse
from triage.core.messages.anthropic import ANTHROPIC
from triage.core.messages.chat import CHAT
from triage.core.messages.cohere import COHERE
from triage.core.messages.converse import CONVERSE
from triage.core.messages.gemini import GEMINI
from triage.core.messages.ollama import OLLAMA
from triage.core.messages.responses import RESPONSES
from triage.core.messages.wires import ProviderWire

Form = Literal["chat", "responses", "anthropic", "gemini", "converse", "ollama", "cohere"]
_WIRES: Mapping[str, ProviderWire] = {
    "chat": CHAT,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
    "converse": CONVERSE,
    "ollama": OLLAMA,
    "cohere": COHERE,
}
_MESSAGES: Mapping[str, str] = {"responses": "input", "gemini": "contents"}
"""The field with the conversation, where it is not `messages`."""


class Endpoint(NamedTuple):
    """One way to ask a model.

    provider: how steps name it. path: a regular expression that a request's path ends with. messages: the
    field of the body with the conversation. wire: the form of the messages and of the answers. needs: a
    field that the body must have besides; empty for none.
    """

    provider: str
    path: re.Pattern[str]
    messages: str
    wire: ProviderWire
    needs: str = ""

    def asks(self, body: object) -> bool:
        """Whether a body asks a model."""
        return (
            isinstance(body, dict)
            and self.messages in body
            and (self.needs or self.messages) in body
        )


class Asked(NamedTuple):
    """A request that asks a model: its endpoint and its body."""

    endpoint: Endpoint
    body: dict[str, Any]


def _row(provider: str, path: str, form: Form, needs: str = "") -> Endpoint:
    messages = _MESSAGES.get(form, "messages")
    return Endpoint(provider, re.compile(rf"{path}\Z"), messages, _WIRES[form], needs)


# The name of a model on Bedrock may be an ARN, which holds slashes where its path is decoded.
_INVOKED = "/invoke(?:-with-response-stream)?"

ENDPOINTS: list[Endpoint] = [
    _row("openai", "/chat/completions", "chat"),
    _row("openai", "/responses", "responses"),
    _row("anthropic", "/v1/messages", "anthropic"),
    _row("anthropic", ":(?:streamR|r)awPredict", "anthropic", "anthropic_version"),
    _row("anthropic", f"/model/.+{_INVOKED}", "anthropic", "anthropic_version"),
    _row("bedrock", f"/model/.*amazon\\.nova.*{_INVOKED}", "converse"),
    _row("bedrock", "/model/.+/converse(?:-stream)?", "converse"),
    _row("gemini", ":(?:generateContent|streamGenerateContent)", "gemini"),
    _row("ollama", "/api/chat", "ollama", "model"),
    _row("cohere", "/v2/chat", "cohere", "model"),
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
    rows = [one for one in ENDPOINTS if one.path.search(path)]
    if not rows:
        return None
    try:
        body = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return None
    found = next((one for one in rows if one.asks(body)), None)
    return None if found is None else Asked(found, body)


def knows(path: str) -> bool:
    """Whether a request to this path may ask a model, before its body is read."""
    return any(one.path.search(path) for one in ENDPOINTS)
