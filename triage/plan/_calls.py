"""The calls of capabilities in one attempt, and the results of those that are done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from triage._drivers import _drive
from triage._journal import CODES, WIDTH
from triage._recorded import restored
from triage._serde import canonical
from triage._tally import tally
from triage._tool import Tool
from triage.diagnosis import Diagnosis, Evidence
from triage.errors import ResultLost, UsageError
from triage.events import CallFinished
from triage.taxonomy import Cause, FailureType, Severity

from ._capability import Capability
from ._given import Takes, arguments, by_origin, misfits, place_of
from ._plan import PlannedStep
from ._state import DoneStep, PlanState
from ._words import quoted

if TYPE_CHECKING:
    from triage._run import Run


class Known(NamedTuple):
    """A capability as it is called. owner: the object its function is bound to, if any."""

    capability: Capability
    tool: Tool
    owner: tuple[Any, ...]
    takes: Takes


class Calls:
    """Calls the capabilities of a plan. known: by their names in lower case."""

    def __init__(self, known: Mapping[str, Known], run: Run, task: Any) -> None:
        self._known = known
        self._run = run
        self._session = run.session
        self._task = task
        self._results: dict[str, Any] = {}

    def take_up(self, state: PlanState) -> None:
        """Count what this plan has done as come to: it is not asked about, and not counted again."""
        replay = self._run.replay
        if replay is None or state.plan is None:
            return  # what an earlier plan has done is met again by its calls alone
        counted = tally(self._run)
        for done in state.done:
            if done.version == state.version and done.call:
                tool, _, _ = done.call.rsplit(":", 2)
                name, _, occurrence = done.call.rpartition(":")
                counted[name] = max(counted.get(name, 0), int(occurrence))
                replay.meet(tool, done.call)

    async def run(self, step: PlannedStep, state: PlanState) -> str:
        """Call the capability of a step; the key of the call. Raises what it raises."""
        known = self._known[step.capability.casefold()]
        results: dict[str, Any] = {}
        for _, key in step.inputs:
            results[key] = await self.result(key, state)
        given = arguments(step, known.takes, results, self._task)
        tool = _told_apart(known, step, given, state)
        self._results[step.context_key] = await _drive(self._run, tool, known.owner, given)
        return self._last(known.tool)

    def _last(self, tool: Tool) -> str:
        """The key of the call that has just ended: the journal's last of this tool."""
        records, code = self._session.records, CODES[CallFinished]
        prefix = f"{tool.name}:"
        for at in range(len(records) - WIDTH, -1, -WIDTH):
            if records[at] == code and records[at + 2][1].startswith(prefix):
                return str(records[at + 2][1])
        return ""

    async def result(self, key: str, state: PlanState) -> Any:
        """What a step has given: at hand, or read back from its call. Raises ResultLost."""
        if key not in self._results:
            done = next(done for done in state.done if done.step.context_key == key)
            await self._read(done, state)
        return self._results[key]

    async def _read(self, done: DoneStep, state: PlanState) -> None:
        known = self._known.get(done.step.capability.casefold())
        call = self._session.state.calls.get(done.call)
        key = done.step.context_key
        if known is None or call is None:
            raise UsageError(f"the result of {quoted(key)} is not in the journal")
        try:
            self._results[key] = restored(known.tool, call, self._session.live)
        except ResultLost:
            if not known.capability.repeatable:
                raise
            await self.run(done.step, state)


def _told_apart(
    known: Known, step: PlannedStep, given: Mapping[str, Any], state: PlanState
) -> Tool:
    """The tool; where a result that is passed on has no exact form, by the call it comes from."""
    tool = known.tool
    if tool.key is not None or not step.inputs:
        return tool
    calls = {done.step.context_key: done.call for done in state.done}
    origins: dict[str, list[str]] = {}
    for kind, key in step.inputs:
        for name in {place_of(kind, key, known.takes), *({"results"} & known.takes.names)} - {None}:
            origins.setdefault(str(name), []).append(calls.get(key, ""))
    lost = {name: " ".join(keys) for name, keys in origins.items() if not _exact(given[name])}
    return by_origin(tool, lost) if lost else tool


def _exact(value: Any) -> bool:
    try:
        canonical(value, "value")
    except UsageError:
        return False
    return True


# What cannot be begun -----------------------------------------------------------------------------


def misfit(step: PlannedStep, known: Known | None) -> str | None:
    """Why a step cannot be begun; None if it can."""
    if known is None:
        return f"there is no capability {quoted(step.capability)}"
    unknown, missing = misfits(step, known.takes)
    said = [f"takes no {quoted(name)}" for name in unknown]
    said += [f"needs {quoted(name)}" for name in missing]
    if not said:
        return None
    names = ", ".join(sorted(known.takes.told)) or "nothing"
    return f"{quoted(known.capability.name)} {', '.join(said)}; it takes {names}"


def unbegun(text: str) -> Diagnosis:
    """Why a step has failed that was not begun."""
    return Diagnosis(
        FailureType.SCHEMA_MISMATCH,
        cause=Cause.INVALID_ARGUMENTS,
        severity=Severity.REPLANNING,
        evidence=(Evidence("plan.step", text),),
        user_message="A step of the plan could not be begun.",
        technical_details=text,
        hint=text,
        classifier="plan",
    )
