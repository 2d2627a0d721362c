"""Readers of recorded conversations: from a file that something else has written to a `Trajectory`.

    from triage.traces import read

    for trace in read("conversation.json").traces:
        print(trace.trajectory)

Known are OpenAI chat messages and Responses items, Anthropic messages, OpenTelemetry GenAI spans,
journals of triage and plain steps. What cannot be read is a `Problem` with its line; the rest is read.
"""

from __future__ import annotations

from ._detect import FORMATS, Detection, detect
from ._faults import error_of
from ._nouns import Problem, Reading, Trace
from ._reading import Recording, read, stream
from ._values import tools_of

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
