"""One run: attempts, recorded calls, recovery and durability."""

from __future__ import annotations

from triage.core.constructors import check_constructors
from triage.core.manifest import Manifest, manifest_of, schema_of

from .agent import Agent, AgentLike, Options, RunsOnAgent, agent, underlying_agent
from .answering import time_of, waits_for
from .asked_calls import answered_by, answers, asked_in
from .call_keys import SAID, says_the_same, tally, within_call
from .calls import (
    Begun,
    Reused,
    Run,
    begin,
    call_async,
    call_sync,
    current_run,
    fail,
    finish,
    note_try,
    record_call,
)
from .checks import Refused
from .config import check_run_id
from .decorators import model, tool
from .event_loop import CANCELLATIONS
from .forking import fork
from .journal import TASK
from .loop import Restarted
from .mending import mend
from .models import BRIEF, CUT, IDS, MODEL, is_judging, judging
from .options import CallDenied, Checks, Durability, Guard, GuardedCall, Watching
from .outside import (
    WAITING,
    FirstAnswer,
    answers_to,
    asked_inside_by,
    asks_of,
    cancel,
    first_answer,
    is_about_call,
    lease_of,
    not_asked,
    resolve,
)
from .questions import ANSWER, APPROVAL, ELSEWHERE, Question, ask, question_at, wait_for_answer
from .recovery import position_of
from .refusals import About, Refusal, approved_before, asks_about, decline, describe, standing
from .resume import MissingArguments, Recovered
from .returning import WAITS, Point, foretell, point_of_return
from .run import Guidance, Recorder, current, sees_requests
from .tools import (
    TOOL_ATTRIBUTE,
    Compensator,
    Returns,
    Tool,
    calling,
    current_call,
    read_function,
    restored,
    shown,
    tool_of,
    tries_of,
)
from .undeclared import (
    GOES_ON,
    NOT_ATTEMPTED,
    RECORDS_TOOLS,
    SEEN,
    Change,
    goes_on,
    hold_back,
    is_held,
    open_changes,
)

__all__ = [
    "ANSWER",
    "APPROVAL",
    "BRIEF",
    "CANCELLATIONS",
    "CUT",
    "ELSEWHERE",
    "GOES_ON",
    "IDS",
    "MODEL",
    "NOT_ATTEMPTED",
    "RECORDS_TOOLS",
    "SAID",
    "SEEN",
    "TASK",
    "TOOL_ATTRIBUTE",
    "WAITING",
    "WAITS",
    "About",
    "Agent",
    "AgentLike",
    "Begun",
    "CallDenied",
    "Change",
    "Checks",
    "Compensator",
    "Durability",
    "FirstAnswer",
    "Guard",
    "GuardedCall",
    "Guidance",
    "Manifest",
    "MissingArguments",
    "Options",
    "Point",
    "Question",
    "Recorder",
    "Recovered",
    "Refusal",
    "Refused",
    "Restarted",
    "Returns",
    "Reused",
    "Run",
    "RunsOnAgent",
    "Tool",
    "Watching",
    "agent",
    "answered_by",
    "answers",
    "answers_to",
    "approved_before",
    "ask",
    "asked_in",
    "asked_inside_by",
    "asks_about",
    "asks_of",
    "begin",
    "call_async",
    "call_sync",
    "calling",
    "cancel",
    "check_run_id",
    "current",
    "current_call",
    "current_run",
    "decline",
    "describe",
    "fail",
    "finish",
    "first_answer",
    "foretell",
    "fork",
    "goes_on",
    "hold_back",
    "is_about_call",
    "is_held",
    "is_judging",
    "judging",
    "lease_of",
    "manifest_of",
    "mend",
    "model",
    "not_asked",
    "note_try",
    "open_changes",
    "point_of_return",
    "position_of",
    "question_at",
    "read_function",
    "record_call",
    "resolve",
    "restored",
    "says_the_same",
    "schema_of",
    "sees_requests",
    "shown",
    "standing",
    "tally",
    "time_of",
    "tool",
    "tool_of",
    "tries_of",
    "underlying_agent",
    "wait_for_answer",
    "waits_for",
    "within_call",
]

check_constructors(globals())
