"""An agent's `Step`, its `Usage` of models, and an attempt's read-only `Trajectory`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from msgspec.structs import force_setattr

from .constructors import Value
from .errors import refuse, short
from .json_values import plain
from .notebook import table
from .taxonomy import Effect

if TYPE_CHECKING:
    from .failures import ErrorInfo


Constraint: TypeAlias = str | re.Pattern[str] | Callable[[str], bool | str | None]
"""A condition on every output: a forbidden text, a forbidden pattern, or a function of the output's text
that returns True or None (kept), or False or a reason (broken)."""


class Usage(Value, frozen=True, gc=False):
    """Tokens and money consumed by model calls.

    Tokens and calls are counts; `cost_usd` is in US dollars, None if the price is not known (never
    guessed as 0). `calls` is the number of model calls this value covers, 1 by default. Raises TypeError
    or ValueError for a negative or non-numeric field.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    calls: int = 1
    model: str | None = None

    def __post_init__(self) -> None:
        counts = (
            ("input_tokens", self.input_tokens),
            ("output_tokens", self.output_tokens),
            ("calls", self.calls),
        )
        for name, count in counts:
            if type(count) is not int:
                raise refuse(f"Usage.{name}", count, "a whole number", "give the provider's count")
            if count < 0:
                raise ValueError(f"Usage.{name} must be 0 or more, not {count}")
        cost = self.cost_usd
        if cost is not None:
            if isinstance(cost, bool) or not isinstance(cost, int | float):
                raise refuse("Usage.cost_usd", cost, "a number of US dollars or None")
            if not 0 <= cost < inf:
                raise ValueError(f"Usage.cost_usd must be a finite number from 0, not {cost}")
        if self.model is not None and not isinstance(self.model, str):
            raise refuse("Usage.model", self.model, "a model's name or None")

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: Usage) -> Usage:
        """Add two usages. If only one cost is known, it is the sum's cost, as a lower bound."""
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


NO_USAGE = Usage(calls=0)
"""Nothing consumed."""


class Step(Value, frozen=True, gc=False):
    """One observable action of the agent.

    index: position in the attempt, from 0; set when the step is recorded. action: its name, in a word or
    two (`"search"`, `"model"`). tool_called, tool_input, tool_output: the tool and its data. llm_output:
    the model's words. error, exception_type: message and class of the error, if the step failed. effect:
    of the tool, as an `Effect` or its value; None if not stated. usage: of models. metadata: anything
    else. timestamp: seconds since the epoch, set when recorded. duration_s: seconds, None if not measured.

    A step copies its JSON values when it is made, so that later changes to the caller's objects do not
    reach it. Raises TypeError or ValueError for a field of the wrong type or value.
    """

    index: int | None = None
    action: str = ""
    tool_called: str | None = None
    tool_input: Any = None
    tool_output: Any = None
    llm_output: str | None = None
    error: str | None = None
    exception_type: str | None = None
    effect: str | None = None
    usage: Usage | None = None
    metadata: Mapping[str, Any] | None = None
    timestamp: float | None = None
    duration_s: float | None = None

    def __post_init__(self) -> None:
        if self.index is not None:
            if type(self.index) is not int:
                raise refuse(
                    "Step.index", self.index, "a whole number or None", "write Step(action=…)"
                )
            if self.index < 0:
                raise ValueError(f"Step.index must be 0 or more, not {self.index}")
        if not isinstance(self.action, str):
            raise refuse("Step.action", self.action, "text")
        _check_text("tool_called", self.tool_called, "the tool's name or None")
        _check_text("llm_output", self.llm_output, "text or None")
        _check_text("error", self.error, "text or None")
        _check_text("exception_type", self.exception_type, "an exception's class name or None")
        _check_seconds("timestamp", self.timestamp)
        _check_seconds("duration_s", self.duration_s)
        if self.usage is not None and not isinstance(self.usage, Usage):
            raise refuse("Step.usage", self.usage, "a Usage or None")
        if self.effect is not None:
            force_setattr(self, "effect", effect_of("Step.effect", self.effect))
        if self.metadata is not None:
            if not isinstance(self.metadata, Mapping):
                raise refuse("Step.metadata", self.metadata, "a mapping or None")
            force_setattr(self, "metadata", plain(dict(self.metadata)))
        force_setattr(self, "tool_input", plain(self.tool_input))
        force_setattr(self, "tool_output", plain(self.tool_output))

    def recorded(self, index: int, time: float) -> Step:
        """Return a copy with this index, and with this time unless the step has one."""
        placed = copy.copy(self)  # without repeating the checks
        force_setattr(placed, "index", index)
        if placed.timestamp is None:
            force_setattr(placed, "timestamp", time)
        return placed


def step_of_json(*, tool_input: Any, tool_output: Any, **fields: Any) -> Step:
    """Make a step without copying its JSON values, which nobody may change from now on."""
    step = Step(**fields)
    force_setattr(step, "tool_input", tool_input)
    force_setattr(step, "tool_output", tool_output)
    return step


def _check_text(field: str, value: object, wanted: str) -> None:
    if value is not None and not isinstance(value, str):
        raise refuse(f"Step.{field}", value, wanted, "pass str(value)")


def _check_seconds(field: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(f"Step.{field}", value, "a number of seconds or None")
    if not 0 <= value < inf:
        raise ValueError(f"Step.{field} must be a finite number from 0, not {value}")


def effect_of(field: str, value: object) -> Effect:
    """Return `value` as an `Effect`. Raises ValueError naming `field` and the four values."""
    try:
        return Effect(value)  # type: ignore[arg-type] # the enum checks it
    except ValueError:
        words = ", ".join(effect.value for effect in Effect)
        raise ValueError(f"{field} must be one of {words}, not {short(value)}") from None


class Trajectory(Sequence[Step]):
    """Read-only view of the steps of one attempt, oldest first, with the error that ended it.

    Indexing gives a `Step`, slicing a `Trajectory`. error: the exception that ended the attempt, None
    while it runs or without one. attempt: its number, from 1. task: as given to the run. tools: name to
    JSON Schema of the arguments, or to MCP's `inputSchema` and `outputSchema` (None if unknown); empty if
    the tools are not known. constraints: conditions on every output. run_id: None outside of a run;
    classifiers use it for limits per run.
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
        """Copy the trajectory with other steps, and with another task if one is given."""
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
        """Return the newest `n` steps, or fewer if there are fewer."""
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

    def _repr_html_(self) -> str:
        """Render the steps for a notebook."""
        title = f"attempt {self.attempt}, {len(self._steps)} steps"
        rows: list[tuple[str, object]] = [
            (f"step {index}", partial(_in_a_line, step)) for index, step in enumerate(self._steps)
        ]
        end = None if self.error is None else f"{self.error.type_name}: {self.error.message}"
        return table(title, [*rows, ("ended by", end)])


def _in_a_line(step: Step) -> str:
    """Write a step as `search({'city': 'Porto'}) → 'found'`."""
    given = "" if step.tool_input is None else short(step.tool_input, 1_000)
    name = f"{step.tool_called}({given})" if step.tool_called else step.action or "step"
    if step.error is not None:
        return f"{name} failed: {step.error}"
    result = step.tool_output if step.tool_output is not None else step.llm_output
    return name if result is None else f"{name} → {short(result, 1_000)}"
