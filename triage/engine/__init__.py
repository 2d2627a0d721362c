"""One run: attempts, recorded calls, recovery and durability."""

from __future__ import annotations

from triage.core.constructors import check_constructors
from triage.core.manifest import Manifest, manifest_of, schema_of

from .agent import Agent, AgentLike, Options, RunsOnAgent, agent, underlying_agent
from .approvals import (
    ANSWER,
    APPROVAL,
    BRIEF,
    CUT,
    ELSEWHERE,
    IDS,
    MODEL,
    Question,
    ask,
    judging,
    question_at,
    time_of,
    wait_for_answer,
    waits_for,
)
from .asked_calls import answered_by, answers, asked_in
from .call_keys import SAID, tally, within_call
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
from .config import (
    CallDenied,
    Checks,
    Durability,
    Guard,
    GuardedCall,
    Watching,
    check_run_id,
)
from .decorators import model, tool
from .event_loop import CANCELLATIONS
from .facts import AttemptFacts, CapabilityFacts, Cleaner, CounterFacts, Facts, StepFacts
from .forking import fork
from .journal import TASK
from .loop import Restarted
from .mending import mend, mend_sync
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
from .recovery import position_of
from .refusals import About, Refusal, approved_before, asks_about, decline, describe, standing
from .report import Analysis, Brief, ErrorReporter, LLMAnalyst, Report, report_of
from .resume import MissingArguments, Recovered
from .returning import WAITS, Point, foretell, point_of_return
from .run import Guidance, Recorder, current
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
from .undeclared import SEEN

__all__ = [
    "ANSWER",
    "APPROVAL",
    "BRIEF",
    "CANCELLATIONS",
    "CUT",
    "ELSEWHERE",
    "IDS",
    "MODEL",
    "SAID",
    "SEEN",
    "TASK",
    "TOOL_ATTRIBUTE",
    "WAITING",
    "WAITS",
    "About",
    "Agent",
    "AgentLike",
    "Analysis",
    "AttemptFacts",
    "Begun",
    "Brief",
    "CallDenied",
    "CapabilityFacts",
    "Checks",
    "Cleaner",
    "Compensator",
    "CounterFacts",
    "Durability",
    "ErrorReporter",
    "Facts",
    "FirstAnswer",
    "Guard",
    "GuardedCall",
    "Guidance",
    "LLMAnalyst",
    "Manifest",
    "MissingArguments",
    "Options",
    "Point",
    "Question",
    "Recorder",
    "Recovered",
    "Refusal",
    "Refused",
    "Report",
    "Restarted",
    "Returns",
    "Reused",
    "Run",
    "RunsOnAgent",
    "StepFacts",
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
    "is_about_call",
    "judging",
    "lease_of",
    "manifest_of",
    "mend",
    "mend_sync",
    "model",
    "not_asked",
    "note_try",
    "point_of_return",
    "position_of",
    "question_at",
    "read_function",
    "record_call",
    "report_of",
    "resolve",
    "restored",
    "schema_of",
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
