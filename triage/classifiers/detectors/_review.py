"""A finished attempt, looked at as a whole: through the same watch as a run that goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from triage.steps import Step

from ._finding import OPEN_SUBGOALS, Finding
from ._loops import ends_anew, reach_back
from ._watch import Watch, forbidden, loop_finding

if TYPE_CHECKING:
    from triage.steps import Constraint

    from ._results import Judged

WHOLE = 400
"""A trajectory of up to so many steps is looked at whole."""
TAIL = 30
"""Of a longer one the last steps: what went wrong before them and was got over decides nothing. Then
calls and results alone are looked at, not what was said."""


class Seen(NamedTuple):
    """What the watch saw. firm: beyond doubt. loose: less sure. start: where it began. exempt: tools that
    may repeat themselves.
    """

    firm: tuple[Finding, ...]
    loose: tuple[Finding, ...]
    start: int
    exempt: Collection[str] = ()


_NOTHING = Seen((), (), 0)


def look(
    steps: Sequence[Step],
    tools: Mapping[str, Any],
    constraints: Sequence[Constraint],
    exempt: Collection[str],
) -> Seen:
    """Replay steps through a watch. Constraints are asked about every step, however many there are."""
    if not steps:
        return _NOTHING
    start = 0 if len(steps) <= WHOLE else len(steps) - TAIL
    if not tools and not constraints and ends_anew(steps[start:] if start else steps, exempt):
        return _NOTHING if start == 0 and not exempt else Seen((), (), start, exempt)
    early = None
    if constraints:
        before = (forbidden(steps[at], at, constraints) for at in range(start))
        early = next((found for found in before if found is not None), None)
    watch = Watch(
        tools=tools,
        constraints=() if early is not None else constraints,
        exempt=exempt,
        start=start,
    )
    add = watch.add
    for step in steps[start:] if start else steps:
        add(step)
    loop = watch.loop
    firm: list[Finding | None] = []
    loose: list[Finding | None] = []
    if loop is not None:
        found = watch.found(loop)
        if loop.kind == "same" and start:
            whole = reach_back(steps, loop)
            found = watch.found(whole)
        (firm if loop.kind == "same" else loose).append(found)
    firm += [watch.unknown_tool, early or watch.forbidden]
    loose.insert(0, watch.misfit)
    return Seen(
        tuple(found for found in firm if found is not None),
        tuple(found for found in loose if found is not None),
        start,
        exempt,
    )


def review(
    steps: Sequence[Step],
    seen: Seen,
    judge: Judged,
    subgoals: Iterable[str],
    task: Any = None,
    tools: Iterable[str] = (),
) -> list[Finding]:
    """What only the whole shows, most decisive first. seen: what the watch saw of the same steps."""
    from ._anew import asked_anew, asks_on
    from ._disobeyed import disobeyed
    from ._last_words import last_words
    from ._results import Results
    from ._written import history_cut, invented, rewritten

    results = Results()
    part = steps[seen.start :]
    for at, step in enumerate(part, seen.start):
        results.add(step, at)
    found: list[Finding | None] = [*results.standing(judge), *seen.loose]
    found.append(disobeyed(part, task, seen.start))
    again = asked_anew(part, seen.exempt) or asks_on(part)
    if again is not None:
        again = again._replace(start=again.start + seen.start)
        found.append(loop_finding(again, steps[-1:]))
    if seen.start == 0:
        found += [rewritten(part), history_cut(part)]
    found += [open_subgoals(steps, subgoals), last_words(part, seen.start, tools)]
    if seen.start == 0:
        found.append(invented(part))
    return [one for one in found if one is not None]


def open_subgoals(steps: Sequence[Step], subgoals: Iterable[str]) -> Finding | None:
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
    return Finding(OPEN_SUBGOALS, text, None)
