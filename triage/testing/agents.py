"""`ScriptedAgent`: an agent function that plays a script, for tests of policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from triage.core.errors import UsageError, check_number, misuse
from triage.core.steps import Step, Usage
from triage.engine.calls import Run

from .faults import Fault, Site, as_fault, slow
from .plans import pass_time


class _Attempt:
    """An attempt in which a script is played. last: the result of the last call. result: how it ends."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.last: Any = None
        self.ended = False
        self.result: Any = None

    def end(self, result: Any) -> None:
        self.ended, self.result = True, result

    async def play(self, moves: Sequence[_Made]) -> None:
        """Make the moves one after the other, until one ends the attempt."""
        for move in moves:
            await move.make(self)
            if self.ended:
                return


class _Made(NamedTuple):
    """A move of a script, as a function of this module made it."""

    make: Callable[[_Attempt], Awaitable[None]]


Move: TypeAlias = Step | Usage | _Made
"""A move of a script."""
_MOVES = (Step, Usage, _Made)
_WANTED = (
    "a Step, a Usage, or what calls, gives, fails, sets, waits, subgoals, … or when_told makes"
)


class _Last:
    def __repr__(self) -> str:
        return "LAST"


LAST: Any = _Last()
"""In `gives(LAST)`: the result of the script's last call, None without one."""


def calls(tool: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Move:
    """A move: make a recorded call of a tool or function, as `run.call` does."""
    if not callable(tool):
        raise misuse(
            "calls(tool)", tool, "a tool or function", "a Step records a call by name alone"
        )

    async def make(attempt: _Attempt) -> None:
        attempt.last = await attempt.run.call(tool, *args, **kwargs)

    return _Made(make)


def gives(result: Any) -> Move:
    """A move: return this result and end the attempt; `LAST` returns that of the last call."""

    async def make(attempt: _Attempt) -> None:
        attempt.end(attempt.last if result is LAST else result)

    return _Made(make)


def fails(error: Fault | BaseException) -> Move:
    """A move: raise this exception or perform this fault, which ends the attempt unless it is `slow`."""
    fault = as_fault("fails(error)", error)

    async def make(attempt: _Attempt) -> None:
        site = Site("the script", "agent", attempt.run, None, None, lambda _answer, _times: None)
        await pass_time(site, fault.wait())
        if not isinstance(fault, slow):
            attempt.end(fault.end(site, None))

    return _Made(make)


def _of_run(make: Callable[[Run], object]) -> _Made:
    """A move that tells the run something."""

    async def told(attempt: _Attempt) -> None:
        make(attempt.run)

    return _Made(told)


def sets(**values: Any) -> Move:
    """A move: merge these values into the state."""
    return _of_run(lambda run: run.update_state(values))


def subgoals(*names: str) -> Move:
    """A move: declare subgoals, in order."""
    return _of_run(lambda run: run.subgoals(names))


def completes(name: str) -> Move:
    """A move: mark a declared subgoal as done."""
    return _of_run(lambda run: run.complete(name))


def waits(seconds: float) -> Move:
    """A move: wait this many seconds on the run's clock."""
    check_number("waits(seconds)", seconds, "seconds")

    async def make(attempt: _Attempt) -> None:
        await attempt.run.session.config.env.sleep(seconds)

    return _Made(make)


def when_told(
    text: str, *, then: Move | Sequence[Move], otherwise: Move | Sequence[Move] = ()
) -> Move:
    """A move: play `then` if the attempt's hint or subgoal contains the text in any case, else `otherwise`.

    Choose a text that the correction must carry, such as the right name of a tool: the test passes only
    if the hint does. The script goes on if the branch does not end the attempt.
    """
    if not isinstance(text, str) or not text:
        raise misuse("when_told(text)", text, "a text that is not empty")
    told = _moves("when_told(then=…)", then)
    not_told = _moves("when_told(otherwise=…)", otherwise)

    async def make(attempt: _Attempt) -> None:
        guidance = attempt.run.guidance
        heard = f"{guidance.hint or ''}\n{guidance.subgoal or ''}".casefold()
        await attempt.play(told if text.casefold() in heard else not_told)

    return _Made(make)


class ScriptedAgent:
    """An agent function that plays a script and records its steps.

    script: the moves of every attempt, or a list of such lists, one for each attempt, the last of which
    also serves all further ones. A script that does not end in `gives` or `fails` returns None. told: the
    hint of each attempt so far, None for one without. Raises UsageError with the position of anything
    that is not a move.

    >>> agent = ScriptedAgent([fails(TimeoutError("slow")), ])
    """

    def __init__(self, script: Sequence[Move] | Sequence[Sequence[Move]]) -> None:
        if isinstance(script, _MOVES):
            script = [cast("Move", script)]
        if not isinstance(cast("object", script), list | tuple):
            raise misuse(
                "ScriptedAgent(script)", script, "a list of moves, or one for each attempt"
            )
        parts = [isinstance(part, list) for part in script]
        if not parts:
            raise UsageError(
                "ScriptedAgent(script) is empty; give at least one move: [gives('done')]"
            )
        if any(parts) and not all(parts):
            raise UsageError(
                "ScriptedAgent(script) mixes moves and lists of moves; give one list, or one for each "
                "attempt"
            )
        each = script if all(parts) else [script]
        self.script = tuple(
            _moves(f"ScriptedAgent(script)[{number}]", cast("Any", moves))
            for number, moves in enumerate(each)
        )
        self.told: list[str | None] = []
        self.__name__ = self.__qualname__ = "scripted"

    async def __call__(self, task: Any, *, run: Run) -> Any:
        """Play one attempt. task: any value, which is ignored."""
        self.told.append(run.guidance.hint)
        moves = self.script[min(run.attempt, len(self.script)) - 1]
        attempt = _Attempt(run)
        await attempt.play(moves)
        return attempt.result

    def __repr__(self) -> str:
        return f"<ScriptedAgent: {len(self.script)} scripts>"


def _moves(field: str, given: Any) -> tuple[_Made, ...]:
    """Check the moves; a single one is a script of one."""
    moves: Any = (given,) if isinstance(given, _MOVES) else given
    if not isinstance(moves, list | tuple):
        raise misuse(field, given, "a list of moves")
    found = cast("Sequence[Any]", moves)
    for position, move in enumerate(found):
        if not isinstance(move, _MOVES):
            remedy = "write fails(…) to raise it" if isinstance(move, BaseException | Fault) else ""
            raise misuse(f"{field}[{position}]", move, _WANTED, remedy)
    return tuple(map(_move_of, found))


def _move_of(move: Any) -> _Made:
    if isinstance(move, Step):
        return _of_run(lambda run: run.record_step(move))
    return _of_run(lambda run: run.record_usage(move)) if isinstance(move, Usage) else move
