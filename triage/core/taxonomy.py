"""The vocabulary of a diagnosis: the failure, its cause, the route, and who must know.

Three meanings of "severity" in other systems are separate here: the kind of failure (`FailureType` and
`Cause`), the route (`Severity`), and who must know (`Level`). `Effect` tells whether a tool may be called
again, and `infer_effect` guesses it from a name. With `Category` and `Recovery`, failing code describes
its own failure.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

from .patterns import Pattern


class FailureType(StrEnum):
    """The ten kinds of failure, each with its own recovery. Anything finer is a `Cause`."""

    WRONG_TOOL_CALLED = "wrong_tool_called"
    CONSTRAINT_IGNORED = "constraint_ignored"
    LOOP_DETECTED = "loop_detected"
    HALLUCINATED_STATE = "hallucinated_state"
    PLAN_INCOMPLETE = "plan_incomplete"
    SCHEMA_MISMATCH = "schema_mismatch"
    CONTEXT_OVERFLOW = "context_overflow"
    GOAL_DRIFT = "goal_drift"
    EXTERNAL_FAULT = "external_fault"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """The route of the run after a failure.

    RETRIABLE: the same call would succeed later. REPLANNING: the agent can succeed in another way.
    RECLASSIFICATION: the cause is not known, or the agent has the wrong tools. CRITICAL: a person must
    act; nothing is repeated. FATAL: the run cannot continue.
    """

    RETRIABLE = "retriable"
    REPLANNING = "replanning"
    RECLASSIFICATION = "reclassification"
    CRITICAL = "critical"
    FATAL = "fatal"


class Level(StrEnum):
    """The impact: who must know. LOW is logged, CRITICAL wakes somebody."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Effect(StrEnum):
    """The effect of a tool on the world, which decides whether it may be called again.

    READ changes nothing. IDEMPOTENT may be repeated with the same arguments. ONCE must not happen
    twice. UNKNOWN was not declared and counts as unsafe to repeat.
    """

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"
    UNKNOWN = "unknown"

    @property
    def repeatable(self) -> bool:
        """True for READ and IDEMPOTENT."""
        return self is Effect.READ or self is Effect.IDEMPOTENT


UNSAFE = frozenset({Effect.ONCE, Effect.UNKNOWN})
"""Effects that must not be repeated."""


class Cause(StrEnum):
    """A finer name of a failure. Fields take `Cause | str`, so applications can add their own."""

    # the other side
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    DNS = "dns"
    TLS = "tls"
    AUTH = "auth"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    MODEL_MISSING = "model_missing"
    CONFLICT = "conflict"
    CIRCUIT_OPEN = "circuit_open"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    PROCESS_DIED = "process_died"
    DEADLOCK = "deadlock"
    MISSING_CONFIG = "missing_config"
    # the form of data
    BAD_REQUEST = "bad_request"
    BAD_RESPONSE = "bad_response"
    MALFORMED_OUTPUT = "malformed_output"
    INVALID_ARGUMENTS = "invalid_arguments"
    INVALID_RESULT = "invalid_result"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    # the agent's own doing
    UNKNOWN_TOOL = "unknown_tool"
    REPETITION = "repetition"
    CYCLE = "cycle"
    STEP_BUDGET = "step_budget"
    CONTEXT_LENGTH = "context_length"
    OUTPUT_CUT = "output_cut"
    CONTENT_FILTER = "content_filter"
    FORBIDDEN_OUTPUT = "forbidden_output"
    GUARDRAIL = "guardrail"
    DENIED = "denied"
    INCOMPLETE = "incomplete"
    UNGROUNDED = "ungrounded"
    MISSING_RESOURCE = "missing_resource"
    CHECK_FAILED = "check_failed"
    OMITTED_FAILURE = "omitted_failure"
    # ours and the code around the agent
    LIMIT = "limit"
    IN_DOUBT = "in_doubt"
    NEEDS_APPROVAL = "needs_approval"
    CANCELLED = "cancelled"
    DEPLOYMENT = "deployment"
    CODE_ERROR = "code_error"
    BROKEN_HISTORY = "broken_history"
    OUT_OF_MEMORY = "out_of_memory"


class Category(StrEnum):
    """The kind of thing that failed, as stated by the code that raised the error.

    In the order of seriousness: of an error and its cause, the later category counts, so that wrapping an
    error can only make it more serious.

    CODE: generated code is wrong. DATA: data is missing or wrong. INFRASTRUCTURE: a dependency failed;
    the work itself may be right. WORKFLOW: the work cannot continue without a person. CONFIGURATION: a
    setting is wrong. SAFETY: the work was refused.
    """

    CODE = "code"
    DATA = "data"
    INFRASTRUCTURE = "infrastructure"
    WORKFLOW = "workflow"
    CONFIGURATION = "configuration"
    SAFETY = "safety"


class Recovery(StrEnum):
    """The remedy, as stated by the code that raised the error.

    RETRY: the same again, later. REGENERATE: the same step, with the error. REPLAN: another way to the
    goal. RECLASSIFY: other tools or capabilities. ASK: a person. CONFIGURE: a person who changes a
    setting. NEVER: none; the run ends, whatever the policy.
    """

    RETRY = "retry"
    REGENERATE = "regenerate"
    REPLAN = "replan"
    RECLASSIFY = "reclassify"
    ASK = "ask"
    CONFIGURE = "configure"
    NEVER = "never"


CATEGORY_RECOVERY: dict[Category, Recovery] = {
    Category.CODE: Recovery.REGENERATE,
    Category.DATA: Recovery.REPLAN,
    Category.INFRASTRUCTURE: Recovery.RETRY,
    Category.WORKFLOW: Recovery.ASK,
    Category.CONFIGURATION: Recovery.CONFIGURE,
    Category.SAFETY: Recovery.NEVER,
}
"""The default recovery of a category."""

RECOVERY_SEVERITY: dict[Recovery, Severity] = {
    Recovery.RETRY: Severity.RETRIABLE,
    Recovery.REGENERATE: Severity.REPLANNING,
    Recovery.REPLAN: Severity.REPLANNING,
    Recovery.RECLASSIFY: Severity.RECLASSIFICATION,
    Recovery.ASK: Severity.CRITICAL,
    Recovery.CONFIGURE: Severity.CRITICAL,
    Recovery.NEVER: Severity.FATAL,
}
"""The default severity of a recovery."""

DEFAULT_SEVERITY: dict[FailureType, Severity] = {
    FailureType.WRONG_TOOL_CALLED: Severity.REPLANNING,
    FailureType.CONSTRAINT_IGNORED: Severity.REPLANNING,
    FailureType.LOOP_DETECTED: Severity.REPLANNING,
    FailureType.HALLUCINATED_STATE: Severity.REPLANNING,
    FailureType.PLAN_INCOMPLETE: Severity.REPLANNING,
    FailureType.SCHEMA_MISMATCH: Severity.REPLANNING,
    FailureType.CONTEXT_OVERFLOW: Severity.REPLANNING,
    FailureType.GOAL_DRIFT: Severity.REPLANNING,
    FailureType.EXTERNAL_FAULT: Severity.RETRIABLE,
    FailureType.UNKNOWN: Severity.RECLASSIFICATION,
}
"""The default severity of a failure type."""

CAUSE_SEVERITY: dict[str, Severity] = {
    Cause.QUOTA_EXHAUSTED: Severity.CRITICAL,
    Cause.TLS: Severity.CRITICAL,
    Cause.AUTH: Severity.CRITICAL,
    Cause.PERMISSION: Severity.CRITICAL,
    Cause.MODEL_MISSING: Severity.CRITICAL,
    Cause.NOT_FOUND: Severity.REPLANNING,
    Cause.MISSING_CONFIG: Severity.CRITICAL,
    Cause.RESOURCE_EXHAUSTED: Severity.CRITICAL,
    Cause.IN_DOUBT: Severity.CRITICAL,
    Cause.NEEDS_APPROVAL: Severity.CRITICAL,
    Cause.LIMIT: Severity.CRITICAL,
    Cause.DEPLOYMENT: Severity.CRITICAL,
    Cause.CODE_ERROR: Severity.CRITICAL,
    Cause.CANCELLED: Severity.FATAL,
    Cause.OUT_OF_MEMORY: Severity.FATAL,
}
"""The default severity of a cause, if it differs from that of the failure type."""

DEFAULT_LEVEL: dict[Severity, Level] = {
    Severity.RETRIABLE: Level.LOW,
    Severity.REPLANNING: Level.MEDIUM,
    Severity.RECLASSIFICATION: Level.MEDIUM,
    Severity.CRITICAL: Level.HIGH,
    Severity.FATAL: Level.CRITICAL,
}
"""The default level of a severity."""


def severity_of(failure_type: FailureType, cause: Cause | str | None) -> Severity:
    """Return the default severity: that of the cause if it has one, else that of the failure type."""
    if cause is not None and cause in CAUSE_SEVERITY:
        return CAUSE_SEVERITY[cause]
    return DEFAULT_SEVERITY[failure_type]


# Undeclared effects -------------------------------------------------------------------------------


def _listed_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_VERBS = _listed_words("describe fetch find get lookup read search view")
"""First words of reads; `list` is one, too, before a plural."""

LOOKING_VERBS = _listed_words(
    """
    calculate can check compare compute count estimate has is list preview query show summarize validate
    verify
    """
)
"""Words followed by their object, also if that word could be a verb: `check_stock`."""

JOINING_WORDS = _listed_words(
    """
    also and as away back but down else for if in into later more n nor off on once onto or otherwise out
    over plus then through to unless until up when while
    """
)
"""Words that join a second action or its object. No read has one."""

CHANGING_VERBS = _listed_words(
    """
    abolish abort absorb accept ack acknowledge acquire activate add adjust adopt advance advertise affirm
    allocate allow alter amend annul anonymize append apply appoint approve archive arm arrange ask assign
    attach authorize backdate backfill ban banish barter bestow bid bill bind blacklist block book boost
    bootstrap bribe broadcast build bump burn buy calibrate call cancel capture cede certify change charge
    check checkin checkout claim clean clear click clone close collect commence commission compact
    compensate compile complete concede confer configure confirm confiscate connect consume continue
    contribute convert convey cool copy create credit crop cut deactivate deallocate debit decline
    decommission decouple decrease decrement decrypt deduct dedupe defer delegate delete deliver demote
    deny deploy deposit deprecate deprovision dequeue deregister destroy detach detain dial disable disarm
    disassociate disburse discard disconnect discontinue disengage dismiss dispatch dispense displace
    dispose dissolve distribute divert dm donate downgrade download downsize downvote drain draw drop
    duplicate earn edit eject elect emit empty enable encrypt end endorse enforce engage enlist enqueue
    enrich enroll ensure enter erase escalate establish evacuate eval evaluate evict exchange exec execute
    exempt expand expedite expel expire extend fax feed fill finalize finish fire fix flag flush fly
    follow forfeit forget forgive fork format forward free freeze fuel fulfil fulfill fund furnish garnish
    generate give go grant hang heal heat hedge hide hire hold hydrate ignore impersonate impose incr
    increase increment indemnify inform ingest init initialize initiate inject insert install instruct
    insure interrupt invest invite invoke isolate join jump keep kick kill launch leave lend lift link
    liquidate load lock log login logout lower maintain manufacture mark mask mend merge migrate mint
    mirror mkdir mobilize modify monitor mount move mutate mute nominate notify nudge nuke nullify
    obfuscate obliterate obtain offboard offer onboard open operate organize override overwrite paint pair
    park paste patch pause pawn pay penalize perform persist pin ping play poke pop populate prepare
    prescribe preserve press print proceed process procure produce prolong promote propagate propose
    prosecute provision prune publish pull pump punish purchase purge push put quarantine quash queue quit
    raise reactivate reallocate reap rebalance rebase reboot rebuild receive recharge reclaim reconcile
    recover recreate recruit rectify redact redeem redirect reduce refill refinance refresh refund
    regenerate register reimburse reindex reinforce reinstate reject rekey release relinquish reload
    relocate remind remit remove rename render renew rent reopen reorder repair repeal replace replay
    replicate repost request requeue rerun reschedule rescind rescue resend reserve reset resign resize
    resolve respond restart restock restore restrict resume retire retract retrain retry return revert
    revise revoke rework rewrite ring rm roll rollback rotate run sanction save scale schedule scrap seal
    secure seed seize sell send serve set settle sever share shelve ship shrink shut shutdown shutter sign
    signin signoff signout signup silence skip sms snooze solicit spawn spend spin split sponsor spoof
    squash stake stamp start stash steal steer stop store strike strip stripe subcontract submit subscribe
    substitute summon supplant supply suppress surrender suspend swap sweep switch sync synchronize take
    tap teardown tell terminate throttle toggle top toss touch track trade train transact transfer
    transform transmit trash trigger trim truncate tune turn tweet type unarchive unassign unban unbind
    unblock undelete undeploy undo unfollow unfreeze uninstall unlink unload unlock unmount unmute unpin
    unpublish unregister unsend unshare unstake unsubscribe untag unzip update upgrade upload upsert
    upvote use vacuum validate vend verify void vote wait waive wake warm wash whip whitelist wipe
    withdraw withhold write yank zap zip
    """
)
"""Verbs of change. No read has one, anywhere in its name."""

CHANGING_NOUNS = _listed_words(
    """
    alert charter comment commit email export gift import invoice issue lease mail make message
    order place pledge post record reply report review reward seat tag tip wire
    """
)
"""Verbs of change that are mostly nouns: a read has one only right after its first word (`get_order`) or
after `by` (`find_user_by_email`)."""

TAKING_WORDS = _listed_words(
    """
    airdrop another approval bonus captcha cashback consent dibs faucet fresh funds going lease license link
    loan lock magic marketplace mutex new next nextval nonce otp paid permission permit presigned ready
    reward rewards rid ride sale seen semaphore signature started ticket token turn unused verification
    voucher
    """
)
"""Things that are used up or created by getting them. No read has one. `token`, `ticket` and a few others
count only as the last word: `get_token_price` reads a price."""

_ONLY_LAST = frozenset({"license", "link", "signature", "ticket", "token", "funds"})
_PREPOSITIONS = frozenset({"at", "by", "from", "of", "per", "since", "under", "with", "within"})
_PLURALS = frozenset({"people", "children", "data", "media", "criteria", "metadata", "indices"})
_SINGULARS = frozenset({"atlas", "canvas", "gas", "lens"})
_DONE = _listed_words(
    "bought brought built cut done drawn gone held made put sent set sold written"
)
_LONGEST_NAME = 200
_NAMESPACE = Pattern(r"__|[./:\\]+")
_WORD = Pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NUMBER_FOR_WORD = Pattern(r"(?<=[a-z])[24](?=[a-z])", re.IGNORECASE)
"""`fetch2pay`, `list4sale`."""


def infer_effect(name: str) -> Effect:
    """Infer the effect of a tool from its name alone: READ, or else UNKNOWN.

    Names may be in snake_case, camelCase, kebab-case or capitals, with a namespace before them
    (`mcp__github__search_issues`, `github.search_issues`). A read begins with one of `READ_VERBS` or
    with `list` and a plural, or ends with `search`, and has no word of `JOINING_WORDS`,
    `CHANGING_VERBS`, `CHANGING_NOUNS` or `TAKING_WORDS`. In doubt the effect is UNKNOWN, which is as
    strict as ONCE.
    """
    if len(name) > _LONGEST_NAME or not name.isascii():
        return Effect.UNKNOWN
    parts = _parts(name)
    if not parts:
        return Effect.UNKNOWN
    own = parts[-1]
    around = {word for words in parts[:-1] for word in words}
    if _NUMBER_FOR_WORD.search(name) or any(map(_changes, around)) or not _begins_as_read(own):
        return Effect.UNKNOWN
    for at, word in enumerate(own):
        is_object = (at == 1 and own[0] in READ_VERBS) or own[at - 1] == "by"
        if (
            word in JOINING_WORDS
            or _changes(word)
            or (word in CHANGING_NOUNS and not is_object)
            or (word in TAKING_WORDS and (word not in _ONLY_LAST or at == len(own) - 1))
        ):
            return Effect.UNKNOWN
    # "get archived", "get tickets bought": a request for a change.
    if own[0] == "get" and len(own) > 1 and (own[-1].endswith("ed") or own[-1] in _DONE):
        return Effect.UNKNOWN
    return Effect.READ


@lru_cache(maxsize=1_024)
def names_a_change(name: str) -> bool:
    """Whether a tool's name names a change (`send_reminder`, `mcp__crm__update`).

    A name of a read or a check is none (`claimGet`, `read_return`, `check_order`).
    """
    parts = _parts(name[:_LONGEST_NAME])
    if not parts or not READ_VERBS.isdisjoint(parts[-1]):
        return False
    if parts[-1][0] in LOOKING_VERBS and JOINING_WORDS.isdisjoint(parts[-1]):
        return False
    return parts[-1][0] in CHANGING_NOUNS or any(map(_changes, parts[-1]))


_COMPOUND = Pattern(r"^look up\b|\b(?:pull|merge) requests?\b")


def _parts(name: str) -> list[list[str]]:
    """Return the words of a name, by namespace, its own words last."""
    return [words for part in _NAMESPACE.split(name) if (words := _words(part))]


def _words(part: str) -> list[str]:
    """Split a name into lower-case words, without numbers; `look up` and `pull request` become one word."""
    words = [word.lower() for word in _WORD.findall(part) if not word.isdecimal()]
    if {"one", "time"} <= set(words):
        words.append("once")
    joined = _COMPOUND.sub(lambda found: found[0].replace(" ", ""), " ".join(words))
    return joined.split()


def _begins_as_read(words: list[str]) -> bool:
    if words[0] == "list":
        return _is_plural(_listed(words[1:]))
    return words[0] in READ_VERBS or words[-1] == "search"


def _listed(words: list[str]) -> str:
    """Return the listed noun: the last word before `by`, `with` and the like; empty without one."""
    end = next((at for at, word in enumerate(words) if word in _PREPOSITIONS), len(words))
    return words[end - 1] if end else ""


def _is_plural(word: str) -> bool:
    if word in _PLURALS:
        return True
    return word.endswith("s") and not word.endswith(("ss", "us", "is")) and word not in _SINGULARS


def _changes(word: str) -> bool:
    """Whether a word is a verb of change, also after `re`, `un`, `auto`, `or` or `and`."""
    if word in CHANGING_VERBS:
        return True
    return any(
        word.startswith(prefix) and word[len(prefix) :] in CHANGING_VERBS
        for prefix in ("re", "un", "auto", "or", "and")
    )
