"""What operations does about each cause: rules for operational texts, and a play per cause."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from triage.classifiers.base import Classifier
from triage.classifiers.rules import RULES, RulesClassifier, diagnose
from triage.classifiers.tables.rule import Rule, lines
from triage.core.capture import captured_text
from triage.core.diagnosis import Diagnosis
from triage.core.failures import ErrorInfo
from triage.core.taxonomy import Cause, FailureType, Level, Severity

from .model import RecoveryStrategy as S

_SOURCE = "wording of orchestrators, version control and operating systems"
_HOST = r"(?:process|agent|worker|subprocess|child|container|daemon|interpreter|pod|orchestrator)"


def _rule(name: str, cause: str, severity: Severity, keys: str, *, on: str, not_on: str) -> Rule:
    kind = FailureType.EXTERNAL_FAULT
    return Rule(
        f"operations.{name}",
        kind,
        cause,
        "text",
        lines(keys),
        severity,
        confidence=0.75,
        source=_SOURCE,
        examples=lines(on),
        near_misses=lines(not_on),
    )


OPERATIONS: tuple[Rule, ...] = (
    _rule(
        "cache_corrupt",
        "cache_corrupt",
        Severity.RETRIABLE,
        r"""
        cache(?:d \w{1,20})? (?:is |was |has been |got )?(?:corrupt(?:ed|ion)?|poisoned)
        corrupt(?:ed)? cache
        """,
        on="""
        Cache corruption detected
        the cache is corrupted
        """,
        not_on="cache miss",
    ),
    _rule(
        "data_loss",
        "data_loss",
        Severity.CRITICAL,
        r"""
        (?<!no )(?<!without )(?<!any )(?<!potential )data ?loss
        (?:data|database|file|index|disk|table|page|checksum|state|store|block|record|repository|volume|log)
            \ (?:is |was |has been |are |got |file )?corrupt(?:ed|ion)?
        corrupt(?:ed|ion)? (?:of |in |on )?(?:the |a )?(?:data|database|file|index|disk|table|page|state|
            store|block|record|repository|volume|log)
        ^corruption(?: detected| found)?$
        """,
        on="""
        data_loss
        Data corruption in table orders
        corruption
        """,
        not_on="""
        corruption in politics
        backed up without data loss
        """,
    ),
    _rule(
        "merge_conflict",
        "merge_conflict",
        Severity.CRITICAL,
        r"""
        (?<!resolved )(?<!no )(?:merge|git|rebase|cherry pick) conflicts?
        conflict \((?:content|add/add|modify/delete|rename/\w{1,10})\)
        automatic merge failed
        unmerged paths
        """,
        on="""
        Merge conflict in src/models/database.py
        CONFLICT (content): a.py
        merge_conflict
        Git conflict
        """,
        not_on="""
        resolved merge conflict
        schedule conflict on monday
        """,
    ),
    _rule(
        "spec_not_found",
        "spec_not_found",
        Severity.CRITICAL,
        r"spec(?:ification)?s? (?:[\w.:/]{1,60} ){0,2}(?:was |is |were |are )?not found",
        on="""
        spec_not_found
        Spec SPEC-12 was not found
        """,
        not_on="special offer found",
    ),
    _rule(
        "syntax_error",
        "syntax_error",
        Severity.CRITICAL,
        r"""
        (?<!sql )syntax ?error(?! (?:at or near|in your sql|near ['\"]|or access))
        indentation ?error
        """,
        on="""
        Syntax error in foo.py line 3
        SyntaxError: invalid syntax
        syntax_error
        """,
        not_on='syntax error at or near "FORM"',
    ),
    _rule(
        "deadlock",
        Cause.DEADLOCK,
        Severity.CRITICAL,
        r"""
        dead ?lock(?:ed)? ?(?:detected|found|between|among|of)?
            (?!.{0,200}(?:sharelock|exclusivelock|transaction|victim|database|try restarting))
        circular (?:dependency|dependencies|wait)
        """,
        on="""
        Deadlock detected
        Deadlock between TASK-1 and TASK-2
        """,
        not_on="Deadlock found when trying to get lock; try restarting transaction",
    ),
    _rule(
        "resource_exhausted",
        Cause.RESOURCE_EXHAUSTED,
        Severity.RETRIABLE,
        r"""
        resources? (?:\w{1,20} )?(?:exhaust(?:ed|ion))(?!.{0,200}quota)
        out of (?:memory|disk space|file descriptors)
        oom ?kill(?:ed|er)
        cannot allocate memory
        (?:insufficient|not enough) (?:memory|resources|disk space)
        no space left on device
        disk (?:is )?full
        too many open files
        """,
        on="""
        Resource exhausted: memory
        resource_exhaustion
        Worker was OOMKilled
        """,
        not_on="""
        429 RESOURCE_EXHAUSTED. You exceeded your current quota
        a rich resource of examples
        """,
    ),
    _rule(
        "network_timeout",
        Cause.TIMEOUT,
        Severity.RETRIABLE,
        r"""
        network (?:is |was |connection |request )?(?:time ?out|timed out|unreachable|error|failure)
        """,
        on="""
        Network timeout
        network_timeout
        """,
        not_on="the network has many users",
    ),
    _rule(
        "temporary_error",
        Cause.UNAVAILABLE,
        Severity.RETRIABLE,
        r"(?:temporary|transient) (?:error|failure|fault)",
        on="""
        temporary_error
        Temporary failure, try later
        """,
        not_on="a temporary file",
    ),
    _rule(
        "database_lock",
        Cause.CONFLICT,
        Severity.RETRIABLE,
        r"database lock(?:ed)?",
        on="database_lock",
        not_on="database clock",
    ),
    _rule(
        "process_died",
        Cause.PROCESS_DIED,
        Severity.RETRIABLE,
        rf"""
        {_HOST}:? (?:\S{{1,64}} )?(?:has |was |had |is )?(?:unexpectedly )?(?:died|dead|crashed|killed|
            disappeared|terminated (?:unexpectedly|abnormally|by|with)|
            exited (?:unexpectedly|with (?:code|status|signal)))
        killed by (?:a )?signal \d{{1,3}}
        (?:lost|missed|no) heartbeats?
        heartbeats? (?:was |were |is )?(?:lost|missed|missing|stopped)
        sigkill|sigsegv|segmentation fault
        """,
        on="""
        Process died unexpectedly
        process_died
        Worker crashed
        killed by signal 9
        Agent a-1 died: no heartbeat for 120 s
        """,
        not_on="""
        the patient died
        the process was simple
        """,
    ),
    _rule(
        "task_timeout",
        "task_timeout",
        Severity.RETRIABLE,
        r"""
        (?:task|job|agent|build|step|process|command|subprocess|test suite|execution)(?: \S{1,64})?
            \ (?:has |was |had )?(?:time ?out|timed out|exceeded (?:its|the) (?:time ?limit|deadline))
        """,
        on="""
        Task timeout after 3600 seconds
        Task Timeout after 3600 seconds
        Job nightly timed out
        """,
        not_on="""
        Connection timed out
        set the timeout of the task
        """,
    ),
)
"""Rules for what orchestrators report, before the built-in ones."""

LAST: tuple[Rule, ...] = (
    _rule(
        "timeout",
        "task_timeout",
        Severity.RETRIABLE,
        r"(?<!invalid )(?<!bad )(?<!the )time ?out(?! (?:value|option|parameter|setting|must|of|is|=))",
        on="corruption in politics; timeout",
        not_on="invalid timeout value",
    ),
)
"""Rules after the built-in ones."""


class Play(NamedTuple):
    """What to do about a cause.

    level: None takes that of the diagnosis. action: a word for people. title, need: for the text of an
    escalation, "<title> in <task> requires <need>"; without a title, the message takes its place.
    alternative: another way to get the task done, in a sentence.
    """

    level: Level | None
    strategy: S
    action: str
    title: str = ""
    need: str = "manual review"
    alternative: str = ""

    @property
    def retryable(self) -> bool:
        """Whether the desk may recover it by itself."""
        return self.strategy not in (S.MANUAL, S.FALLBACK)


_WAIT = Play(
    Level.MEDIUM,
    S.WAIT_AND_RETRY,
    "wait_and_retry",
    "Resource exhaustion",
    alternative="Split the task, or run it where more memory and disk space are free.",
)
PLAYS: dict[str, Play] = {
    Cause.PROCESS_DIED: Play(
        Level.MEDIUM,
        S.RESTART,
        "restart_agent",
        "Process death",
        alternative="Run the task on another machine, or split it into smaller ones.",
    ),
    "task_timeout": Play(
        Level.MEDIUM,
        S.INCREASE_TIMEOUT,
        "increase_timeout",
        "Task timeout",
        alternative="Split the task into smaller ones.",
    ),
    Cause.RESOURCE_EXHAUSTED: _WAIT,
    Cause.OUT_OF_MEMORY: _WAIT,
    "cache_corrupt": Play(
        Level.MEDIUM,
        S.CLEAR_CACHE,
        "clear_cache",
        "Cache corruption",
        alternative="Run the task without the cache.",
    ),
    "merge_conflict": Play(
        Level.HIGH,
        S.MANUAL,
        "manual_intervention",
        "Merge conflict",
        "manual resolution",
        "Make the change anew on top of the current main branch.",
    ),
    "syntax_error": Play(
        Level.HIGH,
        S.MANUAL,
        "code_review",
        "Syntax error",
        "code review",
        "Go back to the last version that parses, and make the change again from there.",
    ),
    Cause.DEADLOCK: Play(
        Level.HIGH,
        S.MANUAL,
        "resolve_dependencies",
        "Deadlock",
        "its dependencies resolved",
        "Merge the tasks that wait for each other into one.",
    ),
    "spec_not_found": Play(
        Level.HIGH,
        S.MANUAL,
        "manual_intervention",
        "Missing specification",
        "a specification",
        "Put another task first that writes the specification.",
    ),
    "data_loss": Play(
        Level.CRITICAL,
        S.FALLBACK,
        "fallback",
        "Data loss or corruption",
        alternative="Restore the last good copy to another place, and do the task there.",
    ),
    Cause.AUTH: Play(
        Level.CRITICAL,
        S.FALLBACK,
        "fallback",
        "Failed authentication",
        "valid credentials",
        "Use another account or provider until the credentials are renewed.",
    ),
    Cause.CONFLICT: Play(
        Level.LOW,
        S.RETRY,
        "exponential_backoff",
        "Lock or conflict",
        alternative="Do the task when nothing else works on the same data.",
    ),
    "waits_for_answer": Play(
        Level.MEDIUM,
        S.MANUAL,
        "answer_it",
        "An unanswered question",
        "an answer",
        "Cancel the run, and start it again with the answer in its task.",
    ),
    "dead_letter": Play(
        Level.HIGH,
        S.MANUAL,
        "manual_intervention",
        "A dead letter",
        alternative="Cancel the run, and start its task again in smaller runs.",
    ),
    "sink_failing": Play(
        Level.MEDIUM,
        S.MANUAL,
        "mend_the_sink",
        "A failing sink",
        "repair",
        "Give the role another sink.",
    ),
}
"""Plays by cause. For other causes, the severity of the diagnosis decides."""

_RETRY = Play(
    None, S.RETRY, "exponential_backoff", alternative="Use another provider of the same service."
)
_OTHER_AGENT = "Give the task to another agent, or do it by hand."
_REVIEW = Play(None, S.MANUAL, "manual_review", alternative=_OTHER_AGENT)
_UNKNOWN = Play(Level.MEDIUM, S.MANUAL, "manual_review", alternative=_OTHER_AGENT)


def play_of(diagnosis: Diagnosis) -> Play:
    """The play for a diagnosis. An unknown failure is medium, not retryable, and left to review."""
    known = PLAYS.get(diagnosis.cause or "")
    if known is not None:
        return known
    if diagnosis.failure_type is FailureType.UNKNOWN:
        return _UNKNOWN
    return _RETRY if diagnosis.severity is Severity.RETRIABLE else _REVIEW


def alternative_to(play: Play, diagnosis: Diagnosis) -> str:
    """Suggest another way: that of the play; for a review, what the diagnosis suggests comes first."""
    suggested = " ".join(diagnosis.suggestions) if play.action == _REVIEW.action else ""
    return suggested or play.alternative


@cache
def operations_classifier() -> RulesClassifier:
    """The default classifier of a desk: the built-in rules, and rules for operational texts."""
    return RulesClassifier((*OPERATIONS, *RULES, *LAST))


_STATUS_TEXTS = {
    "killed": "Process was killed",
    "timeout": "Task timeout",
    "dead": "Process died unexpectedly",
}


def failure_text(status: str, message: str | None) -> str:
    """The message of a failure, or one made from its status."""
    text = (message or "").strip()
    return text or _STATUS_TEXTS.get(status, f"Agent {status} without a message")


def classified(message: str, error: ErrorInfo | None, classifier: Classifier) -> Diagnosis:
    """Diagnose a recorded text, or its exception if that is known."""
    return diagnose(captured_text(message) if error is None else error, classifier=classifier)
