"""Adapters to model clients and frameworks: one file each, imported only when used.

`triage.wrap` finds the one for an agent of a framework; `triage.adapters.openai` and
`triage.adapters.anthropic` record a client's calls; `triage.adapters.base` has what adapters are made of.
"""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .asking import Said
from .base import ABILITIES, Adapter, NoSuchModel, Seam, SoftFailure
from .calls import Failed, Form, Stream, StreamLeft, key_of
from .conversations import (
    Turn,
    hinted_anthropic,
    hinted_chat,
    hinted_gemini,
    hinted_responses,
    read_anthropic,
    read_chat,
    read_gemini,
    read_responses,
    repair_anthropic,
    repair_chat,
    repair_gemini,
    repair_responses,
    said_anthropic,
    said_chat,
    said_gemini,
    said_responses,
    shrunk_anthropic,
    shrunk_chat,
    shrunk_gemini,
    shrunk_responses,
)
from .model_clients import Conversation
from .tools import CallRefused
from .wrapping import wrap

__all__ = [
    "ABILITIES",
    "Adapter",
    "CallRefused",
    "Conversation",
    "Failed",
    "Form",
    "NoSuchModel",
    "Said",
    "Seam",
    "SoftFailure",
    "Stream",
    "StreamLeft",
    "Turn",
    "hinted_anthropic",
    "hinted_chat",
    "hinted_gemini",
    "hinted_responses",
    "key_of",
    "read_anthropic",
    "read_chat",
    "read_gemini",
    "read_responses",
    "repair_anthropic",
    "repair_chat",
    "repair_gemini",
    "repair_responses",
    "said_anthropic",
    "said_chat",
    "said_gemini",
    "said_responses",
    "shrunk_anthropic",
    "shrunk_chat",
    "shrunk_gemini",
    "shrunk_responses",
    "wrap",
]

check_constructors(globals())
