"""What an agent was given, checked at once and completed when it is first used."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from ._refuse import short
from .errors import UsageError

if TYPE_CHECKING:
    from ._env import Environment
    from ._function import Function
    from ._session import Config
    from .checks import Checks, Durability
    from .classifiers.base import Classifier
    from .limits import Limits
    from .observers import Observer
    from .policy import FailurePolicy
    from .stores.base import Store


class Given:
    """The options of an agent and of its copies, as they were given; None where they were not.

    Raises UsageError for a value of the wrong type. What is not given is not imported either: its
    default is made with the first run.
    """

    def __init__(  # noqa: PLR0913 - the options of `Agent`
        self,
        function: Function,
        *,
        policy: FailurePolicy | None,
        classifier: Classifier | None,
        limits: Limits | None,
        store: Store | str | None,
        checks: Checks | None,
        durability: Durability | None,
        observers: Iterable[Observer],
        name: str | None,
        verify: Any,
        result_type: Any,
        environment: Environment | None,
    ) -> None:
        _check_parts(policy, classifier, limits, durability, environment)
        _expect("name", name, str)
        self.function = function
        self.name = name or function.name
        self.policy = policy
        self.classifier = classifier
        self.limits = limits
        self.store = _opened(store)
        self.checks = _joined(checks, verify, result_type)
        self.durability = durability
        self.observers = _called(observers)
        self.environment = environment

    def config(self) -> Config:
        """The same, completed; made once, whichever thread asks first."""
        made = self.__dict__.get("made")
        if made is None:
            from ._configure import configure

            # Of two threads that are here at once, the second takes what the first has made.
            made = self.__dict__.setdefault("made", configure(self))
        return cast("Config", made)


def _expect(field: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise UsageError(
            f"Agent({field}=…) must be {kind.__name__} or None, not {type(value).__name__}"
        )


def _check_parts(
    policy: object, classifier: object, limits: object, durability: object, environment: object
) -> None:
    """What costs an import to be checked is checked where it is given."""
    if policy is not None:
        from .policy import FailurePolicy

        _expect("policy", policy, FailurePolicy)
    if classifier is not None:
        from .classifiers._consult import check_classifier

        check_classifier("Agent(classifier=…)", classifier)
    if limits is not None:
        from .limits import Limits

        _expect("limits", limits, Limits)
    if durability is not None:
        from .checks import Durability

        _expect("durability", durability, Durability)
    if environment is not None:
        from ._env import Environment

        if not isinstance(environment, Environment):
            raise UsageError(
                f"Agent(environment=…) is no Environment: {type(environment).__name__}"
            )


def _joined(checks: Any, verify: Any, result_type: Any) -> Checks | None:
    """`checks` with its short forms put in. UsageError where both say the same thing."""
    short = {
        name: value
        for name, value in (("verify", verify), ("result_type", result_type))
        if value is not None
    }
    if checks is None and not short:
        return None
    from .checks import Checks

    _expect("checks", checks, Checks)
    if checks is None:
        return Checks(**short)
    for name in short:
        if getattr(checks, name) is not None:
            raise UsageError(f"{name} is given to Agent and to Checks; give it once")
    from dataclasses import replace

    return replace(cast("Checks", checks), **short)


def _opened(store: Store | str | None) -> Store | None:
    if store is None:
        return None
    from .stores import open_store

    return open_store(store)


def _called(observers: Any) -> tuple[Observer, ...]:
    """The observers as a tuple. Raises UsageError for one that cannot be called."""
    if callable(observers) or not isinstance(observers, Iterable):
        raise UsageError(
            f"observers must be a list of callables, not {type(observers).__name__}; "
            "write observers=[f]"
        )
    found = tuple(cast("Iterable[Observer]", observers))
    for observer in found:
        if not callable(observer):
            raise UsageError(
                f"observers must be callables of one argument, not {type(observer).__name__}"
            )
        if any(map(inspect.iscoroutinefunction, (observer, type(observer).__call__))):
            raise UsageError(
                "observers are called while an event is recorded, where nothing can be awaited; "
                f"make {short(observer)} a plain function"
            )
    return found
