"""What users configure of a desk: small frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, cast

from triage._options import check_count, check_number, check_word, misuse
from triage.strategies.backoff import Backoff
from triage.taxonomy import Cause, Level

from ._model import RecoveryStrategy
from ._texts import check_id

Hook = Callable[..., Any]
"""`hook(recovery)`, sync or async: the id of the agent that goes on, None or True for done, False for
not. What it raises is the outcome of the attempt."""

_LEVELS = tuple(level.value for level in Level)
_FALL_BACK_ON_RESTART = frozenset({"retry", "increase_timeout", "wait_and_retry"})


@dataclass(frozen=True)
class Hooks:
    """What carries strategies out, one function each; triage itself starts and kills nothing.

    restart, retry, increase_timeout, wait_and_retry, clear_cache, fallback, custom: as the strategies
    are named. Without a hook of their own, retry, increase_timeout and wait_and_retry call restart.
    deadline_s: seconds, 300 by default, after which a hook counts as hung: an async one is cancelled, a
    sync one is left to its thread. lease_s: seconds, 60 by default, after which another desk takes up
    what one that fell silent was recovering; renewed while a hook runs. on_in_doubt: what is done where
    nobody knows whether a recovery happened, as its hook hung, or its desk died or was stopped:
    `"escalate"` (default) or `"rerun"`, for hooks that may be repeated.

    Raises UsageError, which names the field.
    """

    restart: Hook | None = None
    retry: Hook | None = None
    increase_timeout: Hook | None = None
    wait_and_retry: Hook | None = None
    clear_cache: Hook | None = None
    fallback: Hook | None = None
    custom: Hook | None = None
    deadline_s: float = 300.0
    lease_s: float = 60.0
    on_in_doubt: Literal["escalate", "rerun"] = "escalate"

    def __post_init__(self) -> None:
        for strategy in RecoveryStrategy:
            hook = getattr(self, strategy, None)
            if hook is not None and not callable(hook):
                raise misuse(f"Hooks.{strategy}", hook, "a function of one argument, or None")
        check_number("Hooks.deadline_s", self.deadline_s, "seconds", above=True)
        check_number("Hooks.lease_s", self.lease_s, "seconds", above=True)
        check_word("Hooks.on_in_doubt", self.on_in_doubt, ("escalate", "rerun"))

    def of(self, strategy: RecoveryStrategy) -> Hook | None:
        """The hook that carries a strategy out, None if there is none."""
        own = cast("Hook | None", getattr(self, strategy, None))
        return self.restart if own is None and strategy in _FALL_BACK_ON_RESTART else own


@dataclass(frozen=True)
class Threshold:
    """When trouble is too much for automatic recovery.

    errors: so many are recovered from, 3 by default; one more within `window_s` seconds (3,600)
    escalates, even if it could be retried. scope: what is counted together: the `"task"` (default; of a
    failure without a task: its run or its line of agents), the `"agent_type"`, or `"all"`. A failure
    that comes back within the window reopens its incident, whose attempts go on counting.

    Raises UsageError, which names the field.
    """

    errors: int = 3
    window_s: float = 3600.0
    scope: Literal["task", "agent_type", "all"] = "task"

    def __post_init__(self) -> None:
        check_count("Threshold.errors", self.errors, 1)
        check_number("Threshold.window_s", self.window_s, "seconds", above=True)
        check_word("Threshold.scope", self.scope, ("task", "agent_type", "all"))


@dataclass(frozen=True)
class Retries:
    """How often and when an incident is recovered automatically.

    most: attempts, 3 by default. by_cause: otherwise for these causes; 2 for exhausted resources and
    task timeouts by default. backoff: seconds before a retry, and before a second restart: 2, 4, 8, up to
    120. wait_s: seconds before wait_and_retry, 60. timeout_factor: what increase_timeout multiplies a
    task's timeout by, 1.5. timeout_cap_s: never beyond, 14,400. timeout_s: of a task that has none, 3,600.

    Raises UsageError, which names the field.
    """

    most: int = 3
    by_cause: Mapping[str, int] = field(
        default_factory=lambda: {Cause.RESOURCE_EXHAUSTED.value: 2, "task_timeout": 2}
    )
    backoff: Backoff = field(default_factory=partial(Backoff, 2.0, 2.0, 120.0, jitter=False))
    wait_s: float = 60.0
    timeout_factor: float = 1.5
    timeout_cap_s: float = 14_400.0
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        check_count("Retries.most", self.most, 0)
        for cause, most in _mapping("Retries.by_cause", self.by_cause).items():
            check_count(f"Retries.by_cause[{cause!r}]", most, 0)
        if not isinstance(cast("object", self.backoff), Backoff):
            raise misuse("Retries.backoff", self.backoff, "a Backoff")
        check_number("Retries.wait_s", self.wait_s, "seconds")
        check_number("Retries.timeout_factor", self.timeout_factor, "", least=1.0)
        check_number("Retries.timeout_cap_s", self.timeout_cap_s, "seconds", above=True)
        check_number("Retries.timeout_s", self.timeout_s, "seconds", above=True)

    def most_for(self, cause: str | None) -> int:
        """Attempts for an incident of this cause."""
        return self.by_cause.get(cause or "", self.most)

    def raised(self, timeout_s: float | None) -> float:
        """The timeout after `increase_timeout`; one beyond the cap stays as it is."""
        before = timeout_s or self.timeout_s
        return max(before, min(self.timeout_cap_s, before * self.timeout_factor))


@dataclass(frozen=True)
class Watch:
    """What counts as a failure although nobody said so.

    lease_lost_s: seconds, 60 by default, since a run's lease has ended, or it was given back, and nobody
    took it over.
    suspended_s: seconds a run may wait for an answer, 86,400 by default; None for ever. runs: False reads
    no runs at all, for stores whose agents look after themselves.

    Raises UsageError, which names the field.
    """

    lease_lost_s: float = 60.0
    suspended_s: float | None = 86_400.0
    runs: bool = True

    def __post_init__(self) -> None:
        check_number("Watch.lease_lost_s", self.lease_lost_s, "seconds")
        if self.suspended_s is not None:
            check_number("Watch.suspended_s", self.suspended_s, "seconds", above=True)
        if not isinstance(cast("object", self.runs), bool):
            raise misuse("Watch.runs", self.runs, "True or False")


def _roles() -> dict[str, tuple[str, ...]]:
    return {
        "critical": ("project_manager", "architect"),
        "high": ("architect", "code_developer"),
        "medium": ("code_developer",),
        "low": (),
    }


def _starts() -> dict[str, str]:
    return {
        "critical": "project_manager",
        "high": "architect",
        "medium": "architect",
        "low": "code_developer",
    }


def _ack() -> dict[str, float]:
    return {"critical": 300.0, "high": 900.0, "medium": 3600.0, "low": 14_400.0}


@dataclass(frozen=True)
class NotificationPolicy:
    """Who is told, by level.

    roles: who hears of an incident of a level: critical and high when it is detected, medium when it is
    being recovered; low is only logged. chain: the roles incidents are escalated along. starts: where in
    the chain an escalation of a level begins. ack_s: seconds, by level, until somebody must have
    acknowledged it; then the next role in the chain is told. rate, window_s: at most so many messages to
    one role in so many seconds (30 in 60); further ones wait, critical ones never. tries: deliveries of a
    message before it is given up (8); backoff: seconds between them. deadline_s: seconds a sink has for
    one message (15).

    Raises UsageError, which names the field.
    """

    roles: Mapping[str, tuple[str, ...]] = field(default_factory=_roles)
    chain: tuple[str, ...] = ("code_developer", "architect", "project_manager")
    starts: Mapping[str, str] = field(default_factory=_starts)
    ack_s: Mapping[str, float] = field(default_factory=_ack)
    rate: int = 30
    window_s: float = 60.0
    tries: int = 8
    deadline_s: float = 15.0
    backoff: Backoff = field(default_factory=partial(Backoff, 5.0, 2.0, 600.0, jitter=False))

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.chain), tuple) or not self.chain:
            raise misuse("NotificationPolicy.chain", self.chain, "a tuple of roles, not empty")
        for role in self.chain:
            check_id("NotificationPolicy.chain item", role)
        for name in ("roles", "starts", "ack_s"):
            _levels(f"NotificationPolicy.{name}", getattr(self, name))
        for level, told in self.roles.items():
            if not isinstance(cast("object", told), tuple):
                raise misuse(f"NotificationPolicy.roles[{level!r}]", told, "a tuple of roles")
            for role in told:
                check_id(f"NotificationPolicy.roles[{level!r}] item", role)
        for level, role in self.starts.items():
            check_word(f"NotificationPolicy.starts[{level!r}]", role, self.chain)
        for level, seconds in self.ack_s.items():
            check_number(f"NotificationPolicy.ack_s[{level!r}]", seconds, "seconds", above=True)
        check_count("NotificationPolicy.rate", self.rate, 1)
        check_number("NotificationPolicy.window_s", self.window_s, "seconds", above=True)
        check_count("NotificationPolicy.tries", self.tries, 1)
        check_number("NotificationPolicy.deadline_s", self.deadline_s, "seconds", above=True)
        if not isinstance(cast("object", self.backoff), Backoff):
            raise misuse("NotificationPolicy.backoff", self.backoff, "a Backoff")

    @property
    def known(self) -> tuple[str, ...]:
        """Every role there is, those of the chain first."""
        return tuple(
            dict.fromkeys((*self.chain, *(r for told in self.roles.values() for r in told)))
        )

    def start(self, level: Level) -> str:
        """The role an escalation of this level begins with."""
        return self.starts.get(level, self.chain[-1])

    def after(self, role: str) -> str | None:
        """The next role of the chain, None after the last one and for a role outside of it."""
        if role not in self.chain or role == self.chain[-1]:
            return None
        return self.chain[self.chain.index(role) + 1]


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise misuse(name, value, "a mapping")
    return value


def _levels(name: str, value: object) -> None:
    for level in _mapping(name, value):
        check_word(f"{name} key", level, _LEVELS)


def expect(name: str, value: object, kind: type) -> None:
    """Raise UsageError unless the value is of this kind."""
    if not isinstance(value, kind):
        wanted = f"a {kind.__name__}"
        given = ", ".join(entry.name for entry in fields(kind)[:3])
        raise misuse(name, value, wanted, f"write {kind.__name__}({given}, …)")
