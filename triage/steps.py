"""What the agent did: `Step`, what it used: `Usage`, and the read-only `Trajectory` of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, overload

from ._plain import FEW, NEGATIVE, NUMBERS, SMALL, plain
from ._refuse import refuse, short
from .taxonomy import Effect

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from .failures import ErrorInfo

Constraint: TypeAlias = "str | re.Pattern[str] | Callable[[str], bool | str | None]"
"""What no output may be: a text it must not contain, a pattern it must not match, or a function of
the output's text that answers True or None (fine), or False or a reason (broken)."""


class _UsageFields(NamedTuple):
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    calls: int
    model: str | None


class Usage(_UsageFields):
    """What model calls consumed.

    Tokens and calls are counts, `cost_usd` is US dollars, None where the price is not known (never
    guessed as 0). `calls` is the number of model calls this value stands for, 1 by default. Raises
    TypeError or ValueError for a negative or non-numeric field.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class says it
        cls,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost_usd: float | None = None,
        calls: int = 1,
        model: str | None = None,
    ) -> Self:
        # Whole numbers, and their signs in one: the common case without a loop, as in `Step`.
        whole = int is input_tokens.__class__ is output_tokens.__class__ is calls.__class__
        if not whole or input_tokens | output_tokens | calls < 0:
            _refuse_counts(input_tokens=input_tokens, output_tokens=output_tokens, calls=calls)
        if cost_usd is not None:
            if isinstance(cost_usd, bool) or not isinstance(cost_usd, int | float):
                raise refuse("Usage.cost_usd", cost_usd, "a number of US dollars or None")
            if not 0 <= cost_usd < inf:
                raise ValueError(f"Usage.cost_usd must be a finite number from 0, not {cost_usd}")
        if model is not None and not isinstance(model, str):
            raise refuse("Usage.model", model, "a model's name or None")
        return tuple.__new__(cls, (input_tokens, output_tokens, cost_usd, calls, model))

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: Usage) -> Usage:
        """The sum. A cost that is unknown on one side leaves the known part, which is then a floor."""
        cost = self.cost_usd
        if other.cost_usd is not None:
            cost = other.cost_usd if cost is None else cost + other.cost_usd
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cost,
            self.calls + other.calls,
            self.model if self.model == other.model else None,
        )


def _refuse_counts(**counts: object) -> None:
    """Raise for the first that is no whole number from 0."""
    for name, count in counts.items():
        if type(count) is not int:
            raise refuse(f"Usage.{name}", count, "a whole number", "give the provider's count")
        if count < 0:
            raise ValueError(f"Usage.{name} must be 0 or more, not {count}")


NO_USAGE = Usage(calls=0)
"""Nothing consumed."""


Row: TypeAlias = "tuple[Any, ...]"
"""The fields of a step in their order, as the journal keeps them."""
(
    INDEX, ACTION, TOOL, INPUT, OUTPUT, SAID, ERROR, EXCEPTION_TYPE, EFFECT, USAGE, METADATA, TIMESTAMP,
    DURATION,
) = range(13)  # fmt: skip
"""Where they stand: names cost time where every step is looked at."""


class Step:
    """One observable thing the agent did.

    index: position in the attempt, from 0; a trajectory sets it, may be left out. action: what was done,
    in a word or two (`"search"`, `"model"`). tool_called, tool_input, tool_output: the tool and its
    data. llm_output: what the model said. error, exception_type: what this step failed with, if it
    did. effect: what the tool does to the world; None means not said. usage: what it consumed.
    metadata: anything more. timestamp: seconds since the epoch, set when recorded. duration_s:
    seconds, None if not measured.

    A step keeps JSON values: containers are copied when it is made, so that a later change of the
    caller's object cannot change what was recorded. Raises TypeError or ValueError
    for a field of the wrong type or value. It has the methods of a named tuple (`_replace`, `_asdict`).

    row: all fields in their order; what the journal keeps, as a tuple costs the collector next to nothing.
    """

    __slots__ = ("row",)
    _fields: ClassVar = (
        "index", "action", "tool_called", "tool_input", "tool_output", "llm_output", "error",
        "exception_type", "effect", "usage", "metadata", "timestamp", "duration_s",
    )  # fmt: skip
    _field_defaults: ClassVar = {**dict.fromkeys(_fields), "action": ""}
    row: Row

    def __init__(  # noqa: PLR0913, PLR0917 - the fields of a record; the class says them
        self,
        index: int | None = None,
        action: str = "",
        tool_called: str | None = None,
        tool_input: Any = None,
        tool_output: Any = None,
        llm_output: str | None = None,
        error: str | None = None,
        exception_type: str | None = None,
        effect: Effect | str | None = None,
        usage: Usage | None = None,
        metadata: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        duration_s: float | None = None,
    ) -> None:
        if type(tool_input) is dict and len(tool_input) < FEW:
            # `plain` would say the same; a step is made with each turn, and the call is felt.
            tool_input = tool_input.copy()
            for key in tool_input:
                item = tool_input[key]
                if key.__class__ is str and (
                    item.__class__ is str or (item.__class__ in NUMBERS and NEGATIVE < item < SMALL)
                ):
                    continue
                tool_input = plain(tool_input)
                break
        elif tool_input is not None:
            tool_input = plain(tool_input)
        if tool_output is not None and type(tool_output) is not str:
            tool_output = plain(tool_output)
        # The common case first: tests without a loop or a call.
        if (
            action.__class__ is not str
            or (index is not None and (index.__class__ is not int or index < 0))
            or (tool_called is not None and tool_called.__class__ is not str)
            or (llm_output is not None and llm_output.__class__ is not str)
            or (error is not None and error.__class__ is not str)
            or (exception_type is not None and exception_type.__class__ is not str)
        ):
            _check_names(index, action, tool_called, llm_output, error, exception_type)
        if (
            effect is not None
            or usage is not None
            or metadata is not None
            or timestamp is not None
            or duration_s is not None
        ):
            _check_seconds("Step.timestamp", timestamp)
            _check_seconds("Step.duration_s", duration_s)
            effect, metadata = _checked(effect, usage, metadata)
        self.row = (
            index, action, tool_called, tool_input, tool_output, llm_output, error, exception_type,
            effect, usage, metadata, timestamp, duration_s,
        )  # fmt: skip

    @property
    def index(self) -> int | None:  # noqa: D102 - the class says it
        return self.row[INDEX]  # type: ignore[no-any-return]

    @property
    def action(self) -> str:  # noqa: D102 - the class says it
        return self.row[ACTION]  # type: ignore[no-any-return]

    @property
    def tool_called(self) -> str | None:  # noqa: D102 - the class says it
        return self.row[TOOL]  # type: ignore[no-any-return]

    @property
    def tool_input(self) -> Any:  # noqa: D102 - the class says it
        return self.row[INPUT]

    @property
    def tool_output(self) -> Any:  # noqa: D102 - the class says it
        return self.row[OUTPUT]

    @property
    def llm_output(self) -> str | None:  # noqa: D102 - the class says it
        return self.row[SAID]  # type: ignore[no-any-return]

    @property
    def error(self) -> str | None:  # noqa: D102 - the class says it
        return self.row[ERROR]  # type: ignore[no-any-return]

    @property
    def exception_type(self) -> str | None:  # noqa: D102 - the class says it
        return self.row[EXCEPTION_TYPE]  # type: ignore[no-any-return]

    @property
    def effect(self) -> Effect | None:  # noqa: D102 - the class says it
        return self.row[EFFECT]  # type: ignore[no-any-return]

    @property
    def usage(self) -> Usage | None:  # noqa: D102 - the class says it
        return self.row[USAGE]  # type: ignore[no-any-return]

    @property
    def metadata(self) -> Mapping[str, Any] | None:  # noqa: D102 - the class says it
        return self.row[METADATA]  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> float | None:  # noqa: D102 - the class says it
        return self.row[TIMESTAMP]  # type: ignore[no-any-return]

    @property
    def duration_s(self) -> float | None:  # noqa: D102 - the class says it
        return self.row[DURATION]  # type: ignore[no-any-return]

    @classmethod
    def _make(cls, row: Row) -> Self:
        """The step of a row that was checked already."""
        made = _blank(cls)
        made.row = row
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self.row, strict=True))

    def _replace(self, **changes: Any) -> Self:
        fields = self._asdict()
        if not changes.keys() <= fields.keys():
            raise TypeError(f"Step has no field {', '.join(changes.keys() - fields.keys())}")
        return self._make(tuple((fields | changes).values()))

    def __eq__(self, other: object) -> bool:
        return self.row == other.row if isinstance(other, Step) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.row)

    def __repr__(self) -> str:
        return f"Step({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


_blank = object.__new__
step_of = Step._make


def _check_names(index: object, action: object, *texts: object) -> None:
    """Raise for what is no index, no action or no text; a subclass of a text's class is one."""
    if index is not None and type(index) is not int:
        raise refuse("Step.index", index, "a whole number or None", "write Step(action=…)")
    if index is not None and index < 0:
        raise ValueError(f"Step.index must be 0 or more, not {index}")
    if not isinstance(action, str):
        raise refuse("Step.action", action, "text")
    for value, (name, wanted) in zip(texts, _TEXTS, strict=True):
        if value is not None and not isinstance(value, str):
            raise refuse(f"Step.{name}", value, wanted, "pass str(value)")


_TEXTS = (
    ("tool_called", "the tool's name or None"),
    ("llm_output", "text or None"),
    ("error", "text or None"),
    ("exception_type", "an exception's class name or None"),
)


def _checked(
    effect: object, usage: object, metadata: object
) -> tuple[Effect | None, Mapping[str, Any] | None]:
    """The effect and the metadata as they are kept."""
    if effect is not None and not isinstance(effect, Effect):
        effect = effect_of("Step.effect", effect)
    if usage is not None and not isinstance(usage, Usage):
        raise refuse("Step.usage", usage, "a Usage or None")
    if metadata is None:
        return effect, None
    if not isinstance(metadata, Mapping):
        raise refuse("Step.metadata", metadata, "a mapping or None")
    return effect, plain(metadata if type(metadata) is dict else dict(metadata))


def _check_seconds(field: str, value: Any) -> None:
    if value is None or (value.__class__ is float and 0 <= value < inf):
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(field, value, "a number of seconds or None")
    if not 0 <= value < inf:
        raise ValueError(f"{field} must be a finite number from 0, not {value}")


def effect_of(field: str, value: object) -> Effect:
    """`value` as an `Effect`; ValueError naming `field` and the four words otherwise."""
    try:
        return Effect(value)  # type: ignore[arg-type] # the enum itself says whether it knows the value
    except ValueError:
        words = ", ".join(effect.value for effect in Effect)
        raise ValueError(f"{field} must be one of {words}, not {short(value)}") from None


class Trajectory(Sequence[Step]):
    """Read-only view of the steps of one attempt, oldest first, with the error that ended it.

    Indexing gives a `Step`, slicing a `Trajectory`. error: what ended the attempt, None while it runs
    or when no exception did. attempt: its number, from 1. task: as given to the run. tools: the tools
    that exist, name to JSON Schema of the arguments (None where it is not known); empty means the
    manifest is not known. constraints: what no output may be. run_id: of the run whose attempt it is,
    None outside of one; classifiers count by it what they may do once a run.
    """

    __slots__ = ("_steps", "attempt", "constraints", "error", "run_id", "task", "tools")

    def __init__(
        self,
        steps: Iterable[Step] = (),
        *,
        error: ErrorInfo | None = None,
        attempt: int = 1,
        task: Any = None,
        tools: Mapping[str, Any] | None = None,
        constraints: tuple[Constraint, ...] = (),
        run_id: str | None = None,
    ) -> None:
        self._steps = tuple(steps)
        self.error = error
        self.attempt = attempt
        self.task = task
        self.tools: Mapping[str, Any] = {} if tools is None else tools
        self.constraints = constraints
        self.run_id = run_id

    def replace(self, steps: Iterable[Step], *, task: Any = None) -> Trajectory:
        """The same attempt with other steps, and with another task if one is given."""
        return Trajectory(
            steps,
            error=self.error,
            attempt=self.attempt,
            task=self.task if task is None else task,
            tools=self.tools,
            constraints=self.constraints,
            run_id=self.run_id,
        )

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, oldest first."""
        return self._steps

    def last(self, n: int = 1) -> Trajectory:
        """The newest `n` steps, fewer if there are fewer."""
        return self[max(0, len(self._steps) - n) :]

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Trajectory: ...
    def __getitem__(self, index: int | slice) -> Step | Trajectory:
        if isinstance(index, slice):
            return self.replace(self._steps[index])
        return self._steps[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return (
            self._steps == other._steps
            and self.error == other.error
            and self.attempt == other.attempt
            and self.task == other.task
        )

    def __hash__(self) -> int:
        return hash((len(self._steps), self.attempt))

    def __repr__(self) -> str:
        end = "" if self.error is None else f", error={self.error.type_name}"
        return f"<Trajectory attempt={self.attempt} steps={len(self._steps)}{end}>"
