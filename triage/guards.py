"""A guard over calls that matter: it lets one run, denies it with a reason, or asks a person first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

from ._fault import Fault
from ._options import misuse
from .actions import Suspend
from .steps import effect_of
from .taxonomy import Category, Effect, FailureType, Recovery

Ruling: TypeAlias = bool | str | Suspend | None
"""True or None: the call may run. False or a reason: it may not. A `Suspend`: a person is asked."""


class GuardedCall(NamedTuple):
    """A call that is about to run, as its guard sees it.

    tool: its name. arguments: as JSON, by parameter, those of `ignore=` left out. effect: what it does
    to the world. run_id, attempt, task: of the run that makes it.
    """

    tool: str
    arguments: Mapping[str, Any]
    effect: Effect
    run_id: str
    attempt: int
    task: Any


Decide: TypeAlias = Callable[[GuardedCall], Ruling | Awaitable[Ruling]]


class CallDenied(Fault):
    """Raised at the call that a guard has denied; nothing was done. tool: its name. reason: the guard's.

    An agent may catch it and go on in another way; one that does not is given a new plan.
    """

    category = Category.DATA
    recovery = Recovery.REPLAN
    failure_type = FailureType.CONSTRAINT_IGNORED
    not_attempted = True
    user_message = "A step was not allowed."

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(
            f"the call of {tool} was denied: {reason}",
            hint=f"The call of {tool} is not allowed here: {reason!r}. Reach the goal without it.",
        )
        self.tool = tool
        self.reason = reason


@dataclass(frozen=True)
class Guard:
    """Which calls are looked at before they run, and who decides.

    decide: sync or async, is given a `GuardedCall` and answers with a `Ruling`. One that raises or
    answers anything else lets nothing run: a person is asked. effects: calls with these effects are
    looked at, `("once",)` by default. tools: and those whose name matches one of these, with `*` and
    `?` as in a shell.

    Calls whose result is known already run no more, and are not looked at. An approval is for exactly
    that call, its tool and its arguments, once. Raises UsageError, which names the field.
    """

    decide: Decide
    effects: tuple[Effect | str, ...] = (Effect.ONCE,)
    tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.decide):
            raise misuse("Guard.decide", self.decide, "a function of the call")
        effects = _texts("Guard.effects", self.effects)
        try:
            known = tuple(effect_of("Guard.effects item", effect) for effect in effects)
        except ValueError as error:
            raise misuse("Guard.effects", self.effects, "a tuple of effects", str(error)) from None
        object.__setattr__(self, "effects", known)
        object.__setattr__(self, "tools", _texts("Guard.tools", self.tools))

    def covers(self, tool: str, effect: Effect) -> bool:
        """Whether a call of this tool is looked at."""
        return effect in self.effects or any(fnmatchcase(tool, rule) for rule in self.tools)


def _texts(field: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise misuse(field, given, "a tuple of texts", "write (text,)")
    texts: tuple[Any, ...] = tuple(given)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise misuse(f"{field} item", text, "a text that is not empty")
    return texts
