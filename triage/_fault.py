"""What every fault is: `Fault`, and what its classes share. The catalogue is `triage.faults`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar, cast

from .errors import UsageError
from .taxonomy import (
    CATEGORY_RECOVERY,
    DEFAULT_LEVEL,
    RECOVERY_SEVERITY,
    Category,
    Cause,
    FailureType,
    Level,
    Recovery,
    Severity,
)

if TYPE_CHECKING:
    from typing import Unpack

E = TypeVar("E", bound=StrEnum)
_WORDS: dict[str, type[StrEnum]] = {
    "category": Category,
    "recovery": Recovery,
    "failure_type": FailureType,
    "severity": Severity,
    "level": Level,
}
_MOST_LISTED = 20
_LONGEST_LISTED = 200


class Said(TypedDict, total=False):
    """What one fault may say in place of its class; see `Fault`."""

    user_message: str
    technical_details: str
    hint: str
    suggestions: tuple[str, ...]
    retry_after_s: float
    cause: Cause | str
    recovery: Recovery
    severity: Severity
    level: Level


class Fault(Exception):
    """Base of all. A class of your own sets the attributes, one fault its keywords.

    category: what kind of thing failed. recovery: what would help; where a class says only its
    category, that category's. severity: what may be done next; follows from the recovery. level: who
    must know; follows from the severity. failure_type, cause: as in a `Diagnosis`. user_message: for an
    end user, no internals. technical_details: for an engineer, and what a REGENERATE is told. hint: what
    the next attempt is told, None for a sentence made from the message. suggestions: for a person.
    retry_after_s: seconds to wait, None for no word on it. not_attempted: nothing was done that could
    have an effect, so a tool that raises this may be called again.

    A property may stand for any of them. Pickles with its attributes and with the faults it was raised
    from. An exception class that is no Fault takes part if it sets `__triage_fault__ = True`.

    Raises UsageError where a class sets one of the words to something that is none of them; raising a
    fault never fails for what it is given.
    """

    __triage_fault__: ClassVar[bool] = True

    category: Category = Category.WORKFLOW
    recovery: Recovery = Recovery.ASK
    failure_type: FailureType = FailureType.UNKNOWN
    cause: Cause | str | None = None
    severity: Severity = Severity.CRITICAL
    level: Level = Level.HIGH
    user_message: str = ""
    technical_details: str = ""
    hint: str | None = None
    suggestions: tuple[str, ...] = ()
    retry_after_s: float | None = None
    not_attempted: bool = False

    def __init__(self, message: object = None, **said: Unpack[Said]) -> None:
        super().__init__(*(() if message is None else (message,)))
        for name in said:
            if name not in Said.__annotations__:
                known = ", ".join(Said.__annotations__)
                raise UsageError(f"{type(self).__name__} takes no {name!r}; it takes {known}")
        self.__dict__.update({name: value for name, value in said.items() if value is not None})

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = cls.__dict__
        for name, words in _WORDS.items():
            if isinstance(own.get(name), str):
                setattr(cls, name, _word(f"{cls.__name__}.{name}", own[name], words))
            elif name in own and not hasattr(own[name], "__get__"):
                raise _wrong(f"{cls.__name__}.{name}", own[name], words)
        if "category" in own and "recovery" not in own and isinstance(cls.category, Category):
            cls.recovery = CATEGORY_RECOVERY[cls.category]
        if "recovery" in own and "severity" not in own:
            cls.severity = RECOVERY_SEVERITY.get(cls.recovery, cls.severity)
        if "severity" in own and "level" not in own:
            cls.level = DEFAULT_LEVEL.get(cls.severity, cls.level)
        if cls.category is Category.SAFETY and cls.recovery is not Recovery.NEVER:
            raise UsageError(
                f"{cls.__name__}.recovery must be never, as its category is safety; take another "
                "category for what may be tried again"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # The chain is lost with pickling, and with it what a fault behind this one says.
        behind = next((cause for cause in _causes(self) if isinstance(cause, Fault)), None)
        return (_rebuilt, (type(self), self.args, behind), dict(self.__dict__))

    def should_retry_execution(self) -> bool:
        """True if the same may be run again as it is: nothing in it was wrong.

        As for the diagnosis, the gravest fault counts of this one and those it was raised from.
        """
        return self._helps() == Recovery.RETRY

    def should_retry_code_generation(self) -> bool:
        """True if it may be generated anew, told what was wrong. Counts as `should_retry_execution`."""
        return self._helps() == Recovery.REGENERATE

    def _helps(self) -> Recovery:
        faults = [self, *(cause for cause in _causes(self) if isinstance(cause, Fault))]
        gravest = max(faults, key=lambda fault: _ORDER.get(fault.category, 0))
        return Recovery.NEVER if gravest.category is Category.SAFETY else gravest.recovery


_ORDER: dict[object, int] = {category: weight for weight, category in enumerate(Category, 1)}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an error was raised from, nearest first."""
    seen = {id(error)}
    inner = error.__cause__
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        inner = inner.__cause__


def _rebuilt(cls: type[Fault], args: tuple[Any, ...], cause: Fault | None) -> Fault:
    fault = cls.__new__(cls)
    fault.args = args
    if cause is not None:
        fault.__cause__ = cause
    return fault


def _word(field: str, value: str, words: type[E]) -> E:
    try:
        return words(value)
    except ValueError:
        raise _wrong(field, value, words) from None


def _wrong(field: str, value: object, words: type[StrEnum]) -> UsageError:
    known = ", ".join(member.value for member in words)
    return UsageError(f"{field} must be one of {known}, not {value!r} ({type(value).__name__})")


def few(items: object) -> tuple[str, ...]:
    """The first of some values as texts, as far as they can be shown. A text is one value."""
    found: list[str] = []
    try:
        values: Any = (items,) if isinstance(items, str) else items
        for item in islice(values, _MOST_LISTED):
            found.append(str(item)[:_LONGEST_LISTED])  # noqa: PERF401 - those before one that cannot be shown are kept
    except Exception:  # noqa: BLE001, S110 - raising a fault never fails for what it is given
        pass
    return tuple(found)


def one(value: object) -> str:
    """A value as a text, empty where it cannot be shown."""
    return "".join(few((value,)))


def said_or(message: object, made: str) -> object:
    """The message that was given, else the one made of a fault's fields, else None."""
    return (made or None) if message is None else message


def told(said: Said, **made: str) -> Said:
    """What is said of one fault, completed by what its fields say where that is not empty."""
    return cast("Said", {**{name: text for name, text in made.items() if text}, **said})
