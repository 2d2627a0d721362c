"""The configuration of an agent: its options, validated and completed for runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar, cast

import anyio
from msgspec.structs import replace

from triage.classifiers.base import Classifier, check_classifier
from triage.core.constructors import Struct
from triage.core.environment import SYSTEM, Environment
from triage.core.errors import StoreUnavailable, UsageError, check_word, short
from triage.core.events import Event
from triage.core.observers import Observer
from triage.core.redaction import Redactor
from triage.core.wire import unsealed
from triage.stores.base import Store
from triage.stores.memory import MemoryStore
from triage.stores.opening import open_store
from triage.strategies.limits import Limits
from triage.strategies.policy import FailurePolicy, Policy, as_policy

from .options import Checks, Durability, Watching, texts_given
from .tools import Function, Returns, fingerprint

V = TypeVar("V")


LEAST_PATIENCE = 10.0
"""Minimum seconds for a store to answer; a longer lease allows its own length."""


def patience_of(lease_s: float) -> float:
    """Return the seconds that a store has to answer."""
    return max(lease_s, LEAST_PATIENCE)


async def soon(work: Awaitable[V], lease_s: float) -> V:
    """Await a store's answer. Raises StoreUnavailable if none comes within `patience_of` the lease."""
    seconds = patience_of(lease_s)
    with anyio.move_on_after(seconds):
        return await work
    raise silent(seconds)


def silent(seconds: float) -> StoreUnavailable:
    """Return the error of a store that does not answer."""
    return StoreUnavailable(f"the store has not answered in {seconds:g} s")


class Config(Struct, frozen=True, eq=False):
    """The validated options of an `Agent`, and values derived from them.

    policy, classifier: None means the recommended ones. parameters: keyword parameters of the function for
    the caller; None if it takes any. filled: parameters that the run fills. plain: attempts need no cancel
    scope, and there are no observers. watch: the limits, if one must be checked at each event. busy: there
    are observers, or `watch`. watching: None if steps are not checked. durable: the store outlives this
    process. code: fingerprint of the function if durable, else empty. suspensions: runs waiting in this
    process (`Waiting`), by the digests of their tokens. returns: the declared type of results. redactor:
    None for the standard one. infer_effects: infer an undeclared tool's effect from its name. seam: whether
    requests to models are recorded where they leave. aliases: earlier names of the agent. generated: Python
    generated its name.
    """

    name: str
    policy: FailurePolicy | None
    classifier: Classifier | None
    limits: Limits
    store: Store
    checks: Checks | None
    durability: Durability
    observers: tuple[Observer, ...]
    env: Environment
    parameters: frozenset[str] | None
    filled: frozenset[str]
    plain: bool
    watch: Limits | None
    busy: bool
    watching: Watching | None
    durable: bool
    code: str
    suspensions: dict[str, Any]
    returns: Returns
    function: Callable[..., Any]
    redactor: Redactor | None
    infer_effects: bool = True
    seam: Literal["on", "off"] = "on"
    aliases: tuple[str, ...] = ()
    generated: bool = False

    def check_owns(self, run_id: str, agent: str) -> None:
        """Raise UsageError unless `agent`, the run's owner, is this agent's name or one of its aliases."""
        if agent != self.name and agent not in self.aliases:
            raise UsageError(
                f"run {run_id} belongs to the agent {agent}, not to {self.name}; give it to that agent, or "
                f"write Agent(…, name={self.name!r}, aliases=({agent!r},)) if it was renamed"
            )

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """Read a run's events after a position, with encrypted values opened.

        Raises StoreKeyMissing if the key for them is missing.
        """
        found = await soon(self.store.read(run_id, after), self.durability.lease_s)
        return unsealed(found, self.durability.keys)


def configure(  # noqa: PLR0913 - the options of `Agent`
    function: Function,
    *,
    policy: Policy | None,
    classifier: Classifier | None,
    limits: Limits | None,
    store: Store | str | None,
    checks: Checks | None,
    durability: Durability | None,
    observers: Iterable[Observer],
    name: str | None,
    aliases: Iterable[str],
    verify: Any,
    result_type: Any,
    environment: Environment | None,
    infer_effects: bool,
    seam: str,
) -> Config:
    """Validate the options of an agent and fill in defaults. Raises UsageError for a wrong type."""
    if not isinstance(infer_effects, bool):
        raise UsageError(
            f"Agent(infer_effects=…) must be True or False, not {type(infer_effects).__name__}"
        )
    check_word("Agent(seam=…)", seam, ("on", "off"))
    if classifier is not None:
        check_classifier("Agent(classifier=…)", classifier)
    for option, value, kind in (
        ("limits", limits, Limits),
        ("durability", durability, Durability),
        ("checks", checks, Checks),
        ("name", name, str),
    ):
        if value is not None and not isinstance(value, kind):
            raise UsageError(
                f"Agent({option}=…) must be {kind.__name__} or None, not {type(value).__name__}"
            )
    if environment is not None and not isinstance(environment, Environment):
        raise UsageError(f"Agent(environment=…) is no Environment: {type(environment).__name__}")
    short_forms = {
        field: value
        for field, value in (("verify", verify), ("result_type", result_type))
        if value is not None
    }
    for option in short_forms:
        if getattr(checks, option, None) is not None:
            raise UsageError(f"{option} is given to Agent and to Checks; give it once")
    if short_forms:
        checks = Checks(**short_forms) if checks is None else replace(checks, **short_forms)
    listening = _observers(observers)
    limits = limits or Limits()
    durability = durability or Durability()
    where = MemoryStore() if store is None else open_store(store)
    durable = outlives(where)
    watch = True if checks is None else checks.watch
    watching = watch if isinstance(watch, Watching) else Watching() if watch else None
    timed = {limits.seconds, limits.attempt_seconds, limits.stall_seconds} != {None}
    return Config(
        name=name or function.name,
        policy=None if policy is None else as_policy(policy),
        classifier=classifier,
        limits=limits,
        store=where,
        checks=checks,
        durability=durability,
        observers=listening,
        env=environment or SYSTEM,
        parameters=function.known,
        filled=frozenset(parameter for parameter, _ in function.injected),
        plain=not (timed or limits.watches or listening) and function.kind == "async",
        watch=limits if limits.watches else None,
        busy=limits.watches or bool(listening),
        watching=watching,
        durable=durable,
        code=fingerprint(function) if durable else "",
        suspensions={},
        returns=Returns(function.function, None if checks is None else checks.result_type),
        function=function.function,
        infer_effects=infer_effects,
        seam=cast("Literal['on', 'off']", seam),
        aliases=texts_given("Agent.aliases", aliases),
        generated=not name and function.has_generated_name,
        redactor=None if isinstance(durability.redact, bool) else durability.redact,
    )


def outlives(store: Store) -> bool:
    """Whether a store outlives its process; a store without the attribute `durable` does."""
    return bool(getattr(store, "durable", True))


def moved(config: Config, function: Function, store: Store, lease_s: float | None = None) -> Config:
    """Return the options with another store. lease_s: None keeps the durability."""
    durable = outlives(store)
    durability = config.durability
    return replace(
        config,
        store=store,
        durable=durable,
        code=fingerprint(function) if durable else "",
        durability=durability if lease_s is None else replace(durability, lease_s=lease_s),
    )


def observed(config: Config, *observers: Observer) -> Config:
    """Return the options with further observers."""
    return replace(config, observers=(*config.observers, *observers), plain=False, busy=True)


def _observers(given: Any) -> tuple[Observer, ...]:
    """Return the observers as a tuple. Raises UsageError for an observer that is no sync callable."""
    if callable(given) or not isinstance(given, Iterable):
        raise UsageError(
            f"observers must be a list of callables, not {type(given).__name__}; "
            "write observers=[f]"
        )
    observers = tuple(cast("Iterable[Observer]", given))
    for observer in observers:
        if not callable(observer):
            raise UsageError(
                f"observers must be callables of one argument, not {type(observer).__name__}"
            )
        if any(map(inspect.iscoroutinefunction, (observer, type(observer).__call__))):
            raise UsageError(
                "observers are called while an event is recorded, where nothing can be awaited; "
                f"make {short(observer)} a plain function"
            )
    return observers


MAX_RUN_ID = 128


_PUNCTUATION = str.maketrans("", "", "._:-")


def check_run_id(run_id: object) -> None:
    """Raise UsageError for an invalid run id."""
    if not isinstance(run_id, str):
        raise UsageError(f"run_id must be text or None, not {type(run_id).__name__}")
    letters = run_id.translate(_PUNCTUATION)
    if not (letters.isascii() and letters.isalnum() and len(run_id) <= MAX_RUN_ID):
        raise UsageError(
            f"run_id {run_id[:40]!r} must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -, "
            "with a letter or digit among them"
        )
