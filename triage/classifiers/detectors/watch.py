"""The watch over one attempt: it is told each step once, and knows at any time what is wrong.

The same code looks at a run while it goes on and at a finished one. What a step costs does not
depend on how many came before it, nor does what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from triage.core.failures import ErrorInfo
from triage.core.patterns import Pattern
from triage.core.state import is_reused
from triage.core.steps import Constraint, Step
from triage.core.taxonomy import FailureType

from . import finding
from .arguments import Schema, gives, takes
from .injected import carried_out
from .loops import REPEATS, Loop, Loops, Polling, outline, same_step
from .results import Results, cut_short, denies, ended, failure_of, is_pending, text_in, text_of
from .services import same_answers
from .tool_calls import WATCHED, check_output

WHOLE = 400
"""Of a longer trajectory calls and results are read, not where each value came from."""
_RULES = {
    "same": finding.LOOP,
    "near": finding.NEAR_LOOP,
    "vague": finding.NEAR_LOOP,
    "counted": finding.COUNTING,
    "error": finding.SAME_ERROR,
}
_MAX_MISFITS = 256
MANY = 8
"""Rounds after which a loop is one although an answer came after it."""


class Watch:
    """Looks at the steps of one attempt as they come.

    tools: the manifest, name to JSON Schema of the arguments or None; empty: not known. constraints:
    what no output may be. exempt: names of tools that may repeat themselves. start: position of the
    first step it will be told of. Not safe for use from several threads at once.

    loop: the one that the last steps are in, None if they are in none. polling: equal calls that the last
    one goes on with and that are no loop, None if it was no poll. unknown_tool: the first of the last calls
    that were of a tool that does not exist. forbidden: the first output that breaks a constraint.
    """

    __slots__ = (
        "_constraints", "_loops", "_misfits", "_next", "_odd_results", "_schemas", "_tools", "forbidden",
        "loop", "past", "polling", "unknown_tool",
    )  # fmt: skip

    def __init__(
        self,
        *,
        tools: Mapping[str, Any] | None = None,
        constraints: Iterable[Constraint] = (),
        exempt: Collection[str] = (),
        start: int = 0,
    ) -> None:
        self._tools = tools or {}
        # What each tool takes and what it gives, read when it is first called.
        self._schemas: dict[str, tuple[Schema, Schema]] = {}
        self._constraints = tuple(constraints)
        self._loops = Loops(frozenset(exempt))
        self._next = start
        self._misfits: dict[str, finding.Finding] = {}
        self._odd_results: dict[str, finding.Finding] = {}
        self.loop: Loop | None = None
        self.polling: Polling | None = None
        self.past: finding.Finding | None = None
        self.unknown_tool: finding.Finding | None = None
        self.forbidden: finding.Finding | None = None

    def add(self, step: Step, time: float | None = None) -> finding.Finding | None:
        """Take in the next step; return what it has newly made wrong, None if nothing.

        A loop is told when it has gone round three times, and once. Steps that were reused from an
        earlier attempt stand between others; nothing is wrong with them. time: when the step was recorded,
        in seconds since the epoch, if it has no timestamp.
        """
        at = self._next
        self._next += 1
        new = self._check(step, at) if self._tools or self._constraints else None
        was = self.loop
        standing = None if was is None else self.found(was)
        loop = self.loop = self._loops.add(step, at, time)
        self.polling = self._loops.polling
        if loop is None:
            if standing is not None:
                self.past = standing._replace(rule=finding.PAST_LOOP)
        elif was is None or (was.start, was.kind) != (loop.start, loop.kind):
            return new or self.found(loop)
        return new

    def _check(self, step: Step, at: int) -> finding.Finding | None:
        """Hold a step against the manifest and the constraints."""
        if step.metadata and is_reused(step.metadata):
            return None
        new: finding.Finding | None = None
        if self._tools and step.tool_called is not None:
            new = self._call(step, step.tool_called, at)
        if self._constraints and self.forbidden is None:
            self.forbidden = _forbidden(step, at, self._constraints)
            new = self.forbidden or new
        return new

    def _call(self, step: Step, tool: str, at: int) -> finding.Finding | None:
        if tool not in self._tools:
            if self.unknown_tool is not None:
                return None
            text = f"{tool!r} is not among the {len(self._tools)} tools"
            self.unknown_tool = finding.Finding(finding.UNKNOWN_TOOL, text, at, tool)
            return self.unknown_tool
        self.unknown_tool = None
        if tool not in self._schemas:
            declared = self._tools[tool]
            self._schemas[tool] = Schema(takes(declared)), Schema(gives(declared))
        arguments, result = self._schemas[tool]
        self._result(step, tool, at, result)
        problem = arguments.of_arguments(tool, step.tool_input)
        if problem is None:
            self._misfits.pop(tool, None)
            return None
        if tool in self._misfits or len(self._misfits) >= _MAX_MISFITS:
            return None
        # A tool that gave a result all the same has taken what it was given.
        taken = not step.error and step.tool_output is not None
        rule = finding.ARGUMENTS._replace(confidence=finding.WEAK) if taken else finding.ARGUMENTS
        found = self._misfits[tool] = finding.Finding(rule, f"{tool!r}: {problem.text}", at, tool)
        return found

    def _result(self, step: Step, tool: str, at: int, schema: Schema) -> None:
        """Hold a result against the schema that its tool declares for results."""
        if not schema.declared or step.error is not None or step.tool_output is None:
            return
        asked = f"{tool} {outline(step.tool_input)}"
        problem = None if failure_of(step) else schema.of_result(step.tool_output)
        if problem is None:
            self._odd_results.pop(asked, None)
        elif len(self._odd_results) < _MAX_MISFITS:
            found = finding.Finding(finding.RESULT, f"the result of {tool!r}: {problem}", at, tool)
            self._odd_results.setdefault(asked, found)

    def found(self, loop: Loop) -> finding.Finding:
        """The standing loop as a finding."""
        return _of_loop(loop, self._loops)

    @property
    def misfit(self) -> finding.Finding | None:
        """The earliest call whose arguments do not fit, and whose tool was not called better since."""
        return min(self._misfits.values(), key=lambda found: found.step or 0, default=None)

    @property
    def result(self) -> finding.Finding | None:
        """The earliest result that does not fit its tool's schema, and was not asked for again."""
        return min(self._odd_results.values(), key=lambda found: found.step or 0, default=None)


def _of_loop(loop: Loop, loops: Loops) -> finding.Finding:
    steps = loops.one_round(loop)
    called = [step for step in steps if step.tool_called is not None]
    names = [step.tool_called or step.action or "the same step" for step in called or steps]
    name = names[0]
    if loop.kind == "error":
        text = f"{name!r} failed {loop.repeats} times with the same error"
    elif len(names) > 1:
        text = f"the cycle {' → '.join(names)} {loop.repeats} times"
    elif loop.kind == "counted":
        text = f"{name!r} {loop.repeats} times with other numbers and the same result"
    elif loop.kind in ("near", "vague"):
        text = f"{name!r} {loop.repeats} times in other words with the same result"
    else:
        text = f"{name!r} {loop.repeats} times with the same arguments and result"
    rule = finding.CYCLE if loop.kind == "same" and loop.length > 1 else _RULES[loop.kind]
    return finding.Finding(rule, text, loop.start, steps[0].tool_called, loop.repeats, loop.length)


def _forbidden(step: Step, at: int, constraints: Iterable[Constraint]) -> finding.Finding | None:
    """The first constraint an output of this step breaks."""
    for output in (step.llm_output, step.tool_output):
        broken = None if output is None else check_output(constraints, output, WATCHED).broken
        if broken is not None:
            return finding.Finding(finding.FORBIDDEN, f"output {broken.text}", at, step.tool_called)
    return None


# --- a finished attempt ----------------------------------------------------------------------


class Seen(NamedTuple):
    """What the watch saw. firm: beyond doubt. loose: less sure."""

    firm: tuple[finding.Finding, ...] = ()
    loose: tuple[finding.Finding, ...] = ()


def look(
    steps: Sequence[Step],
    tools: Mapping[str, Any],
    constraints: Sequence[Constraint],
    exempt: Collection[str],
    *,
    raised: bool,
) -> Seen:
    """Replay steps through a watch. raised: whether an exception ended them."""
    watch = Watch(tools=tools, constraints=constraints, exempt=exempt)
    for step in steps:
        watch.add(step)
    firm = [watch.unknown_tool, watch.forbidden]
    past = watch.past
    if past is not None and past.repeats >= MANY and _answered(steps, past):
        past = past._replace(rule=finding.NEAR_LOOP)
    loose = [watch.misfit, watch.result, past]
    loop = watch.loop
    if loop is None and not raised and (repeated := _only_repeats(steps, exempt)):
        loose.append(repeated)
    if loop is not None and loop.kind == "same":
        firm.insert(0, watch.found(loop))
    elif loop is not None:
        loose.insert(0, watch.found(loop))
    else:
        loose.append(_behind_talk(steps, exempt))
    return Seen(
        tuple(found for found in firm if found is not None),
        tuple(found for found in loose if found is not None),
    )


_WORD = Pattern(r"[^\W_]{4,}")
_PAUSE_S = 5.0
"""Seconds between calls, from which on they poll."""


def _only_repeats(steps: Sequence[Step], exempt: Collection[str]) -> finding.Finding | None:
    """The loop of a finished run that made one call, again and again, and nothing else.

    What a user or another agent says between them is a new question. Pauses are polling, and so are
    results that say something is not done yet, and an answer that passes the result on.
    """
    calls = [(at, step) for at, step in enumerate(steps) if step.tool_called is not None]
    if len(calls) < REPEATS or calls[0][1].tool_called in exempt:
        return None
    if is_pending(calls[0][1].tool_output):
        return None
    (start, first), (end, _) = calls[0], calls[-1]
    between = {one.action for one in steps[start:end] if one.tool_called is None}
    if len(between) > 1 or any(who.startswith("user") for who in between):
        return None
    words, output = steps[-1].llm_output, text_of(first.tool_output) or ""
    shared = set(_WORD.findall((words or "").lower())).intersection(_WORD.findall(output.lower()))
    if shared and not denies(output):
        return None
    for (_, before), (_, step) in pairwise(calls):
        if not same_step(first, step) or (step.metadata and is_reused(step.metadata)):
            return None
        if before.timestamp is not None and step.timestamp is not None:
            ended = before.timestamp + (before.duration_s or 0.0)
            if step.timestamp - ended >= _PAUSE_S:
                return None
    name, repeats = first.tool_called, len(calls)
    text = f"{name!r} {repeats} times with the same arguments and result, and nothing else was done"
    rule = finding.LOOP._replace(confidence=finding.STRUCTURE)
    return finding.Finding(rule, text, start, name, repeats, 1)


def _answered(steps: Sequence[Step], loop: finding.Finding) -> bool:
    """Whether nothing but an answer came after a loop: it did not end by getting another result."""
    end = (loop.step or 0) + loop.repeats * loop.length
    return all(step.tool_called is None for step in steps[end:])


def _behind_talk(steps: Sequence[Step], exempt: Collection[str]) -> finding.Finding | None:
    """The loop that the calls are in where agents talk between them, to the end and in the same words.

    What a user says is a new question.
    """
    said = [step.llm_output for step in steps if step.tool_called is None]
    if not said or (steps[-1].tool_called is None and said[-1] not in said[:-1]):
        return None
    loops, loop = Loops(frozenset(exempt)), None
    for at, step in enumerate(steps):
        if step.tool_called is not None:
            loop = loops.add(step, at)
        elif step.action.startswith("user"):
            loops, loop = Loops(frozenset(exempt)), None
    return None if loop is None else _of_loop(loop, loops)


def review(
    steps: Sequence[Step],
    seen: Seen,
    judge: Callable[[ErrorInfo], Any],
    tools: Mapping[str, Any],
    task: Any,
    subgoals: Iterable[str],
) -> list[finding.Finding]:
    """What only the whole shows, surest first. seen: what the watch saw of the same steps."""
    whole = len(steps) <= WHOLE
    results = Results(tools, brief=not whole)
    for at, step in enumerate(steps):
        results.add(step, at)
    found = [
        same_answers(steps, judge) if whole else None,
        *results.standing(judge),
        *seen.loose,
        _open_subgoals(steps, subgoals),
        ended(steps[-1], len(steps) - 1),
        cut_short(steps, text_in(task)),
        carried_out(steps, task) if whole else None,
    ]
    ranked = sorted((one for one in found if one is not None), key=lambda one: -one.rule.confidence)
    return [_from_first_void(one, steps) for one in _earliest_first(ranked)]


def _from_first_void(found: finding.Finding, steps: Sequence[Step]) -> finding.Finding:
    """A fault of the other side, from the first of the calls right before it that were given nothing.

    Only of tools that had never given anything: of others it may be the answer that there is nothing.
    """
    at = found.step
    if at is None or found.rule.failure_type is not FailureType.EXTERNAL_FAULT:
        return found
    gave = {step.tool_called for step in steps[:at] if not denies(text_of(step.tool_output))}
    while at and steps[at - 1].tool_called and steps[at - 1].tool_called not in gave:
        at -= 1
    return found._replace(step=at, tool=steps[at].tool_called)


def _earliest_first(ranked: list[finding.Finding]) -> list[finding.Finding]:
    """Put the earliest of those findings first that are as sure as the first and of its type."""
    alike = [
        one
        for one in ranked
        if one.rule.failure_type is ranked[0].rule.failure_type
        and one.rule.confidence == ranked[0].rule.confidence
        and one.step is not None
    ]
    if not alike:
        return ranked
    first = min(alike, key=lambda one: one.step or 0)
    return [first, *(one for one in ranked if one is not first)]


def _open_subgoals(steps: Sequence[Step], subgoals: Iterable[str]) -> finding.Finding | None:
    """The first subgoal that no step without an error names: in its action, its tool or its metadata."""
    wanted = tuple(subgoals)
    if not wanted:
        return None
    done: set[str] = set()
    for step in steps:
        if step.error is None:
            done.update((step.action, step.tool_called or ""))
            if step.metadata:
                done.add(str(step.metadata.get("subgoal", "")))
    left = [name for name in wanted if name not in done]
    if not left:
        return None
    text = f"{len(left)} of {len(wanted)} subgoals were not completed, first {left[0][:80]!r}"
    return finding.Finding(finding.OPEN_SUBGOALS, text, None)
