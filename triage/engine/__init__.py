"""One run: attempts, recorded calls, recovery and durability."""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .agents import Agent, AgentLike, Options, agent
from .asked_calls import answers
from .calls import Run, current_run
from .checks import Refused
from .decorators import model, tool
from .forking import fork
from .loop import Restarted
from .models import judging
from .options import CallDenied, Checks, Durability, Guard, GuardedCall, Watching
from .outside import cancel
from .questions import Question
from .resume import MissingArguments, Recovered
from .run import Guidance
from .tools import Compensator, Returns, Tool, current_call

__all__ = [
    "Agent",
    "AgentLike",
    "CallDenied",
    "Checks",
    "Compensator",
    "Durability",
    "Guard",
    "GuardedCall",
    "Guidance",
    "MissingArguments",
    "Options",
    "Question",
    "Recovered",
    "Refused",
    "Restarted",
    "Returns",
    "Run",
    "Tool",
    "Watching",
    "agent",
    "answers",
    "cancel",
    "current_call",
    "current_run",
    "fork",
    "judging",
    "model",
    "tool",
]

check_constructors(globals())
