"""The watch over one attempt: it is told each step once, and knows at any time what is wrong.

The same code looks at a run while it goes on and at a finished one. What a step costs does not
depend on how many came before it, nor does what is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triage.state import is_reused
from triage.steps import ERROR, INPUT, METADATA, OUTPUT, TOOL, Row, Step

from ._finding import (
    ARGUMENTS,
    CYCLE,
    FORBIDDEN,
    LOOP,
    MONOLOGUE,
    NEAR_LOOP,
    SAME_ERROR,
    UNKNOWN_TOOL,
    Finding,
)
from ._fits import quick
from ._loops import Loop, Loops

if TYPE_CHECKING:
    from triage.steps import Constraint

_RULES = {"same": LOOP, "near": NEAR_LOOP, "error": SAME_ERROR, "talk": MONOLOGUE}
_MAX_MISFITS = 256


class Watch:
    """Looks at the steps of one attempt as they come.

    tools: the manifest, name to JSON Schema of the arguments or None; empty: not known. constraints:
    what no output may be. exempt: names of tools that may repeat themselves. start: position of the
    first step it will be told of. Not safe for use from several threads at once.

    loop: the one that the last steps are in, None if they are in none.
    """

    __slots__ = (
        "_at", "_constraints", "_forbidden", "_loops", "_misfits", "_schemas", "_tools", "_unknown",
        "loop",
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
        self._schemas = {
            name: (quick(schema), schema)
            for name, schema in self._tools.items()
            if isinstance(schema, Mapping) and schema
        }
        self._constraints = tuple(constraints)
        self._loops = Loops(frozenset(exempt), tools=bool(tools))
        self._at = start
        self.loop: Loop | None = None
        self._unknown: Finding | None = None
        self._forbidden: Finding | None = None
        self._misfits: dict[str, Finding] = {}

    def add(self, step: Step) -> Finding | None:
        """What this step has newly made wrong, None if nothing.

        A loop is told when it has gone round three times, and once. Steps that were reused from an
        earlier attempt are passed over.
        """
        at = self._at
        self._at = at + 1
        row = step.row
        metadata = row[METADATA]
        if metadata and is_reused(metadata):
            return None
        new: Finding | None = None
        tool = row[TOOL]
        if self._tools and tool is not None:
            new = self._call(row, tool, at)
        if self._constraints and self._forbidden is None:
            self._forbidden = forbidden(step, at, self._constraints)
            new = self._forbidden or new
        was = self.loop
        loop = self.loop = self._loops.add(row, at)
        if loop is not None and (was is None or (was.start, was.kind) != (loop.start, loop.kind)):
            return new or loop_finding(loop, self._loops.one_round(loop))
        return new

    def _call(self, row: Row, tool: str, at: int) -> Finding | None:
        if tool not in self._tools:
            if self._unknown is not None:
                return None
            text = f"{tool!r} is not among the {len(self._tools)} tools"
            self._unknown = Finding(UNKNOWN_TOOL, text, at, tool)
            return self._unknown
        self._unknown = None
        known = self._schemas.get(tool)
        if known is None:
            return None
        fits, schema = known
        if fits is not None and fits.surely(row[INPUT]):
            if self._misfits:
                self._misfits.pop(tool, None)
            return None
        from triage.classifiers._arguments import check

        problem = check(tool, row[INPUT], schema)
        if problem is None:
            self._misfits.pop(tool, None)
            return None
        if tool in self._misfits or len(self._misfits) >= _MAX_MISFITS:
            return None
        # A tool that gave a result all the same has taken what it was given.
        rule = (
            ARGUMENTS if row[ERROR] or row[OUTPUT] is None else ARGUMENTS._replace(confidence=0.6)
        )
        found = Finding(rule, f"{tool!r}: {problem.text}", at, tool)
        self._misfits[tool] = found
        return found

    def found(self, loop: Loop) -> Finding:
        """The standing loop as a finding."""
        return loop_finding(loop, self._loops.one_round(loop))

    @property
    def unknown_tool(self) -> Finding | None:
        """The first of the last calls that were of a tool that does not exist."""
        return self._unknown

    @property
    def forbidden(self) -> Finding | None:
        """The first output that breaks a constraint."""
        return self._forbidden

    @property
    def misfit(self) -> Finding | None:
        """The earliest call whose arguments do not fit, and whose tool was not called better since."""
        if not self._misfits:
            return None
        return min(self._misfits.values(), key=lambda found: found.step or 0)


def loop_finding(loop: Loop, steps: Sequence[Step]) -> Finding:
    """A loop as a finding. steps: those of one round."""
    names = [step.tool_called or step.action or "the same step" for step in steps]
    name = names[0]
    if loop.kind == "error":
        text = f"{name!r} failed {loop.repeats} times with the same error"
    elif loop.kind == "talk":
        text = f"{loop.repeats} turns of words in a row, and no tool was called"
    elif loop.length > 1:
        text = f"the cycle {' → '.join(names)} {loop.repeats} times"
    elif loop.kind == "near":
        text = f"{name!r} {loop.repeats} times in other words with the same result"
    else:
        text = f"{name!r} {loop.repeats} times with the same arguments and result"
    rule = CYCLE if loop.kind == "same" and loop.length > 1 else _RULES[loop.kind]
    return Finding(rule, text, loop.start, steps[0].tool_called, loop.repeats, loop.length)


def forbidden(step: Step, at: int, constraints: Iterable[Constraint]) -> Finding | None:
    """The first constraint an output of this step breaks."""
    from triage.classifiers._constraints import check

    for output in (step.llm_output, step.tool_output):
        if output is None:
            continue
        broken = check(constraints, output).broken
        if broken is not None:
            return Finding(FORBIDDEN, f"output {broken.text}", at, step.tool_called)
    return None
