"""`ScriptedAgent`: an agent function that plays a script, for tests of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from triage.core import Step, Usage, UsageError, check_number, misuse
from triage.engine import Run

from .faults import Fault, Site, as_fault, slow
from .plans import pass_time


class _Calls(NamedTuple):
    tool: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Gives(NamedTuple):
    result: Any


class _Fails(NamedTuple):
    fault: Fault


class _Sets(NamedTuple):
    values: dict[str, Any]


class _Subgoals(NamedTuple):
    names: tuple[str, ...]


class _Completes(NamedTuple):
    name: str


class _Waits(NamedTuple):
    seconds: float


class _Told(NamedTuple):
    text: str
    then: tuple[Any, ...]
    otherwise: tuple[Any, ...]


Move: TypeAlias = (
    Step | Usage | _Calls | _Gives | _Fails | _Sets | _Subgoals | _Completes | _Waits | _Told
)
"""A move of a script."""
_MOVES = (Step, Usage, _Calls, _Gives, _Fails, _Sets, _Subgoals, _Completes, _Waits, _Told)
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
    return _Calls(tool, args, kwargs)


def gives(result: Any) -> Move:
    """A move: return this result and end the attempt; `LAST` returns that of the last call."""
    return _Gives(result)


def fails(error: Fault | BaseException) -> Move:
    """A move: raise this exception or perform this fault, which ends the attempt unless it is `slow`."""
    return _Fails(as_fault("fails(error)", error))


def sets(**values: Any) -> Move:
    """A move: merge these values into the state."""
    return _Sets(values)


def waits(seconds: float) -> Move:
    """A move: wait this many seconds on the run's clock."""
    check_number("waits(seconds)", seconds, "seconds")
    return _Waits(seconds)


def subgoals(*names: str) -> Move:
    """A move: declare subgoals, in order."""
    return _Subgoals(names)


def completes(name: str) -> Move:
    """A move: mark a declared subgoal as done."""
    return _Completes(name)


def when_told(
    text: str, *, then: Move | Sequence[Move], otherwise: Move | Sequence[Move] = ()
) -> Move:
    """A move: play `then` if the attempt's hint or subgoal contains the text in any case, else `otherwise`.

    Choose a text that the correction must carry, such as the right name of a tool: the test passes only
    if the hint does. The script goes on if the branch does not end the attempt.
    """
    if not isinstance(text, str) or not text:
        raise misuse("when_told(text)", text, "a text that is not empty")
    return _Told(
        text, _moves("when_told(then=…)", then), _moves("when_told(otherwise=…)", otherwise)
    )


class ScriptedAgent:
    """An agent function that plays a script and records its steps.

    script: the moves of every attempt, or a list of such lists, one for each attempt, the last of which
    also serves all further ones. A script that does not end in `gives` or `fails` returns None. told: the
    hint of each attempt so far, None for one without. Raises UsageError with the position of anything
    that is not a move.

    >>> agent = ScriptedAgent([fails(TimeoutError("slow")), ])
    """

    def __init__(
        self, script: Sequence[Move] | Sequence[Sequence[Move]], *, name: str = "scripted"
    ) -> None:
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
        self.__name__ = self.__qualname__ = name

    async def __call__(self, task: Any, *, run: Run) -> Any:
        """Play one attempt. task: any value, which is ignored."""
        self.told.append(run.guidance.hint)
        moves = self.script[min(run.attempt, len(self.script)) - 1]
        ended = await _play(run, moves, [None])
        return None if ended is None else ended.result

    def __repr__(self) -> str:
        return f"<ScriptedAgent {self.__name__}: {len(self.script)} scripts>"


def _moves(field: str, given: Any) -> tuple[Any, ...]:
    """Check the moves; a single one is a script of one."""
    moves: Any = (given,) if isinstance(given, _MOVES) else given
    if not isinstance(moves, list | tuple):
        raise misuse(field, given, "a list of moves")
    found = cast("Sequence[Any]", moves)
    for position, move in enumerate(found):
        if not isinstance(move, _MOVES):
            remedy = "write fails(…) to raise it" if isinstance(move, BaseException | Fault) else ""
            raise misuse(f"{field}[{position}]", move, _WANTED, remedy)
    return tuple(found)


async def _play(run: Run, moves: Sequence[Move], last: list[Any]) -> _Gives | None:  # noqa: C901 - one case for each kind of move
    """Do the moves one after the other; how the attempt ends, None if they do not say. last: the result of
    the last call.
    """
    for move in moves:
        ended: _Gives | None = None
        match move:
            case Step():
                run.record_step(move)
            case Usage():
                run.record_usage(move)
            case _Calls(tool, args, kwargs):
                last[0] = await run.call(tool, *args, **kwargs)
            case _Sets(values):
                run.update_state(values)
            case _Subgoals(names):
                run.subgoals(names)
            case _Completes(name):
                run.complete(name)
            case _Waits(seconds):
                await run.session.config.env.sleep(seconds)
            case _Told(text, then, otherwise):
                heard = f"{run.guidance.hint or ''}\n{run.guidance.subgoal or ''}"
                chosen = then if text.casefold() in heard.casefold() else otherwise
                ended = await _play(run, chosen, last)
            case _Fails(fault):
                ended = await _fail(run, fault)
            case _Gives(result):
                ended = _Gives(last[0] if result is LAST else result)
        if ended is not None:
            return ended
    return None


async def _fail(run: Run, fault: Fault) -> _Gives | None:
    site = Site("the script", "agent", run, None, None, lambda _answer, _times: None)
    await pass_time(site, fault.wait())
    if isinstance(fault, slow):
        return None
    return _Gives(fault.end(site, None))
