"""Recorded conversations, read into trajectories.

    from triage.adapters.recordings import read

    for trace in read("conversation.json").traces:
        print(trace.trajectory)

Reads OpenAI chat messages and Responses items, Anthropic messages, OpenTelemetry GenAI spans, journals
of triage and plain steps. What cannot be read becomes a `Problem` with its line; the rest is read.
"""

from __future__ import annotations

from triage.core.messages.reading import tools_of

from .reading import FORMATS, Detection, Reading, Recording, detect, read, stream
from .trajectories import Problem, Trace, error_of

__all__ = [
    "FORMATS",
    "Detection",
    "Problem",
    "Reading",
    "Recording",
    "Trace",
    "detect",
    "error_of",
    "read",
    "stream",
    "tools_of",
]
