"""The options of an agent, completed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ._env import SYSTEM
from ._function import fingerprint
from ._results import Returns
from ._session import FIRST_LOOK, Config
from ._suspensions import Suspensions
from .checks import Durability
from .limits import Limits
from .stores import MemoryStore

if TYPE_CHECKING:
    from ._given import Given


def configure(given: Given) -> Config:
    """The options of an agent, completed."""
    function, checks, listening = given.function, given.checks, given.observers
    limits = given.limits or Limits()
    durability = given.durability or Durability()
    kept = MemoryStore() if given.store is None else given.store
    # A third party's store is taken for a durable one unless it says otherwise.
    durable = bool(getattr(kept, "durable", True))
    watch = checks is None or checks.watch
    timed = any(
        seconds is not None
        for seconds in (limits.seconds, limits.attempt_seconds, limits.stall_seconds)
    )
    return Config(
        name=given.name,
        policy=given.policy,
        classifier=given.classifier,
        limits=limits,
        store=kept,
        checks=checks,
        durability=durability,
        observers=listening,
        env=given.environment or SYSTEM,
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
