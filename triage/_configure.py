"""The options of an agent, checked and completed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ._call import Function, fingerprint
from ._env import SYSTEM, Environment
from ._results import Returns
from ._session import FIRST_LOOK, Config
from ._suspensions import Suspensions
from .checks import Checks, Durability
from .errors import UsageError
from .limits import Limits
from .observers import checked
from .stores.base import Store


def joined(checks: Checks | None, verify: Any, result_type: Any) -> Checks | None:
    """`checks` with its short forms put in. UsageError where both say the same thing."""
    if verify is None and result_type is None:
        _expect("checks", checks, Checks)
        return checks
    _expect("checks", checks, Checks)
    base = checks or Checks()
    for name, value in (("verify", verify), ("result_type", result_type)):
        if value is not None and getattr(base, name) is not None:
            raise UsageError(f"{name} is given to Agent and to Checks; give it once")
    return replace(
        base,
        verify=base.verify if verify is None else verify,
        result_type=base.result_type if result_type is None else result_type,
    )


def _expect(field: str, value: object, *kinds: type) -> None:
    if value is not None and not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(f"Agent({field}=…) must be {wanted} or None, not {type(value).__name__}")


def _check_parts(policy: Any, classifier: Any) -> None:
    """What is seldom given, and costs an import to be checked."""
    if policy is not None:
        from .policy import FailurePolicy

        _expect("policy", policy, FailurePolicy)
    if classifier is not None:
        from .classifiers._consult import check_classifier

        check_classifier("Agent(classifier=…)", classifier)


def configure(
    function: Function,
    *,
    policy: Any,
    classifier: Any,
    limits: Any,
    store: Any,
    checks: Checks | None,
    durability: Any,
    observers: Any,
    name: Any,
    env: Any,
) -> Config:
    """The options of an agent, checked and completed."""
    _check_parts(policy, classifier)
    _expect("limits", limits, Limits)
    _expect("durability", durability, Durability)
    _expect("name", name, str)
    if env is not None and not isinstance(env, Environment):
        raise UsageError(f"Agent(environment=…) is no Environment: {type(env).__name__}")
    limits = limits or Limits()
    durability = durability or Durability()
    listening = checked(observers)
    kept = _store(store)
    # A third party's store is taken for a durable one unless it says otherwise.
    durable = bool(getattr(kept, "durable", True))
    watch = checks is None or checks.watch
    timed = any(
        seconds is not None
        for seconds in (limits.seconds, limits.attempt_seconds, limits.stall_seconds)
    )
    return Config(
        name=name or function.name,
        policy=policy,
        classifier=classifier,
        limits=limits,
        store=kept,
        checks=checks,
        durability=durability,
        observers=listening,
        env=env or SYSTEM,
        parameters=None
        if function.known is None
        else function.known | {injected for injected, _ in function.injected},
        plain=not (timed or limits.watches or listening) and function.kind == "async",
        watch=limits if limits.watches else None,
        busy=limits.watches or bool(listening),
        watching=watch,
        first_look=FIRST_LOOK if watch else math.inf,
        durable=durable,
        code=fingerprint(function) if durable else "",
        suspensions=Suspensions(),
        returns=Returns(function.function, None if checks is None else checks.result_type),
        function=function.function,
        redactor=None if isinstance(durability.redact, bool) else durability.redact,
    )


def _store(store: Any) -> Store:
    from .stores import open_store

    return open_store(store)
