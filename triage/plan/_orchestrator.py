"""`Orchestrator`: plan first, then act, on the engine of `Agent`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from triage._agent import Agent
from triage._options import misuse
from triage.checks import Checks, Durability
from triage.errors import TriageError, TriageSuspendedError, UnknownRun
from triage.limits import Limits
from triage.reports import ErrorReporter, Report

from ._approving import OFF, Approval, asked_in, carried, read_answer
from ._calls import Known
from ._capability import Capability
from ._criteria import StepJudge, judging
from ._ending import policy
from ._given import takes, tool_for
from ._limits import LIMITS, PlanLimits
from ._plan_facts import facts_of_plan
from ._progress import Narrator, Progress
from ._registry import Registry
from ._requests import Planner, Selector, asked
from ._room import Room, Setup
from ._state import PlanState, fold_plan

if TYPE_CHECKING:
    from triage._env import Environment
    from triage._reopen import Recovered
    from triage._run import Run
    from triage.observers import Observer
    from triage.reports import Facts
    from triage.stores.base import Store

    from ._approval import ApprovalAnswer, ApprovalRequest

T = TypeVar("T")
_RESPOND = "answers the user with the results it is given"


class Options(TypedDict, total=False):
    """The options an orchestrator has in common with agents; see `Orchestrator`."""

    store: Store | str | None
    durability: Durability | None
    observers: Iterable[Observer]
    checks: Checks | None
    name: str
    environment: Environment | None


class Orchestrator:
    """Plans first, then acts: selects capabilities, has a plan made, checks it, runs it step by step.

    registry: what can be done; what is added to it later is not seen. planner: makes a plan from a
    `PlanRequest`. selector: chooses the capabilities a plan may use from a `SelectionRequest`; None takes
    all. responder: answers the user with the results it is given, async or not; it becomes the
    capability `respond` where none responds. judge: asked after each step that has `success_criteria`
    whether they are met; a no is a failure of that step, an error of the judge is never a no; None:
    nobody is asked. reporter: makes the report of a run that cannot be done;
    None: one without analysis. approval: what a person must approve; None: nothing. limits: None:
    `PlanLimits()`. budget: what a run may use beside, of tokens, money, calls and time; its `attempts`
    are not used, as `limits` counts them. store, durability, observers, checks, environment: as for
    `Agent`. name: as it stands in journals, `orchestrator` by default.

    One orchestrator serves any number of concurrent runs. Each call of a capability is a recorded
    call, so none that is done is made again, in this process or another. Raises UsageError for what
    cannot be used, naming the argument.
    """

    __triage_agent__ = True

    def __init__(
        self,
        registry: Registry,
        planner: Planner,
        *,
        selector: Selector | None = None,
        responder: Callable[..., Any] | None = None,
        judge: StepJudge | None = None,
        reporter: ErrorReporter | None = None,
        approval: Approval | None = None,
        limits: PlanLimits | None = None,
        budget: Limits | None = None,
        **options: Unpack[Options],
    ) -> None:
        for field, value, kind in (
            ("registry", registry, Registry),
            ("reporter", reporter or ErrorReporter(), ErrorReporter),
            ("approval", approval or OFF, Approval),
            ("limits", limits or LIMITS, PlanLimits),
            ("budget", budget or Limits(), Limits),
        ):
            if not isinstance(value, kind):
                raise misuse(f"Orchestrator.{field}", value, f"a {kind.__name__}")
        self._registry = _answering(registry, responder)
        self._reporter = reporter or ErrorReporter()
        setup = Setup(
            self._registry,
            _known(self._registry),
            asked("Orchestrator.planner", planner, "planner"),
            None if selector is None else asked("Orchestrator.selector", selector, "selector"),
            None if judge is None else judging("Orchestrator.judge", judge),
            approval or OFF,
            limits or LIMITS,
        )
        self._limits = setup.limits
        self._agent = _agent(setup, budget or Limits(), options)

    @property
    def agent(self) -> Agent[Any]:
        """The agent underneath, for what knows agents only. Its errors have reports without the plan."""
        return self._agent

    @property
    def name(self) -> str:
        """The orchestrator's name, as it stands in journals."""
        return self._agent.name

    @property
    def store(self) -> Store:
        """Where the journals of the runs are."""
        return self._agent.store

    async def run(
        self,
        task: Any,
        *,
        run_id: str | None = None,
        background: Any = None,
        development: bool = False,
    ) -> Any:
        """Select, plan and act until the plan is done: what its last step gave.

        run_id: as for `Agent.run`. background: what planner and selector are told beside the task:
        what was said before, what is known of the user. development: True tries nothing again and
        raises the error of the user's own code as it is.

        Raises `TriageSuspendedError` where a person must approve, `TriageEscalationError` or
        `TriageFatalError` where it cannot be done; each has `.report`.
        """
        given = _given(background, development=development)
        work = self._agent.run(task, run_id=run_id, **given)
        return await self._reported(work, development=development)

    def __call__(self, task: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """`run`."""
        return self.run(task, **kwargs)

    async def events(
        self, task: Any, *, background: Any = None, development: bool = False
    ) -> AsyncIterator[Progress]:
        """Run, and give what happens as `Progress`; ends with the run, raising as `run` does.

        Nothing waits for whoever listens: what is not taken stays in the journal. Leaving early cancels
        the run; close it (`contextlib.aclosing`) when you do.
        """
        narrator = Narrator(self._registry)
        given = _given(background, development=development)
        ended: TriageError | None = None
        try:
            async with aclosing(self._agent.events(task, **given)) as events:  # type: ignore[type-var] # it is a generator
                async for event in events:
                    for told in narrator.tell(event):
                        yield told
        except TriageError as error:
            if error.reporter is None:
                raise
            ended = error
        if ended is None:
            return
        first = await self._facts(ended)
        waits = isinstance(ended, TriageSuspendedError)
        if not waits:
            yield narrator.report(first, last=False)
        report = await self._told(ended, first)
        if not waits:
            yield narrator.report(report, last=True)
        raise _own_error(ended, development=development)

    async def resume(self, token: str, answer: Any, *, by: str = "") -> Any:
        """Go on with a suspended run, once: its result, as `run` gives it.

        answer: `approve()`, `reject(reason)`, whose reason the planner is told, or `edit(plan)` with
        another plan, which is checked; and everything else that `Agent.resume` takes. by: who answers.
        Raises as `Agent.resume` and `run` do.
        """
        request = await self._asked(token.partition("~")[0]) if isinstance(token, str) else None
        reply = None if request is None else read_answer(request, answer, by)
        if request is not None and reply is not None:
            # Whether it comes in time is seen with the token, by the clock of the store.
            answer = carried(request._replace(expires=None), reply, 0.0)
        return await self._reported(self._agent.resume(token, answer))

    async def recover(self, run_id: str, **given: Any) -> Any:
        """Take over a run that its process has left, and go on with it; as `Agent.recover`."""
        return await self._reported(self._agent.recover(run_id, **given))

    async def recover_all(self, *, concurrency: int = 10) -> list[Recovered]:
        """Take over all runs whose processes are gone; as `Agent.recover_all`."""
        found = await self._agent.recover_all(concurrency=concurrency)
        for one in found:
            if isinstance(one.error, TriageError) and one.error.reporter is not None:
                await self._told(one.error)
        return found

    async def asked(self, run_id: str) -> ApprovalRequest | None:
        """What a run waits to have approved; None for nothing. Raises UnknownRun."""
        return await asked_in(self.store, run_id)

    async def answer(self, answer: ApprovalAnswer) -> None:
        """Answer what a run waits to have approved, without its token; `recover` goes on with it.

        Raises as `answer_in` does.
        """
        from ._approving import answer_in

        await answer_in(self.store, answer)

    def __repr__(self) -> str:
        return f"<Orchestrator {self.name}>"

    # Errors and reports ---------------------------------------------------------------------------

    async def _asked(self, run_id: str) -> ApprovalRequest | None:
        try:
            return await asked_in(self.store, run_id)
        except UnknownRun:
            return None

    async def _reported(self, work: Coroutine[Any, Any, T], *, development: bool = False) -> T:
        """The result of a run, or its error with the report of its plan."""
        try:
            return await work
        except TriageError as error:
            if error.reporter is None:
                raise
            ended = error
        await self._told(ended)
        raise _own_error(ended, development=development)

    async def _told(self, ended: TriageError, first: Report | None = None) -> Report:
        """Give an error its report: the facts first, then what an analyst makes of a failure."""
        report = await self._facts(ended) if first is None else first
        ended._report = report  # noqa: SLF001 - its report is that of its plan
        if isinstance(ended, TriageSuspendedError):
            return report  # a question needs no explanation
        ended._report = await self._reporter.generate(report.facts)  # noqa: SLF001 - as above
        return ended._report  # noqa: SLF001 - as above

    async def _facts(self, ended: TriageError) -> Report:
        """The report of the facts; what the store cannot tell is left out."""
        state = PlanState()
        try:
            if ended.context is not None:
                state = fold_plan(await self.store.read(ended.context.run_id))
        except Exception as error:  # noqa: BLE001 - a report is made whatever the store does
            ended.add_note(f"the report goes without the plan: {type(error).__name__}")
        base = self._reporter.facts(ended)
        made: Facts = facts_of_plan(base.facts, state, self._registry, self._limits, self.name)
        return self._reporter.facts(made)


def _own_error(ended: TriageError, *, development: bool) -> Exception:
    """What is raised of a run that has ended: in development the error of the user's own code."""
    original = None if ended.context is None else ended.context.exception
    waits = isinstance(ended, TriageSuspendedError)
    if development and isinstance(original, Exception) and not waits:
        return original
    return ended


def _given(background: Any, *, development: bool) -> dict[str, Any]:
    given: dict[str, Any] = {} if background is None else {"background": background}
    return {**given, "development": True} if development else given


def _answering(registry: Registry, responder: Callable[..., Any] | None) -> Registry:
    """The capabilities as they are now, and one that responds if there is a responder."""
    if responder is None:
        return Registry(registry)
    if isinstance(responder, type) or not callable(responder):
        raise misuse("Orchestrator.responder", responder, "a function, async or not")
    if registry.responder is not None:
        known = registry.responder.name
        wanted = f"None where the registry has a capability that responds, here {known}"
        raise misuse("Orchestrator.responder", responder, wanted)
    from triage.strategies.backoff import Backoff

    respond = Capability(
        "respond", _RESPOND, responder, effect="read", retry=Backoff.LLM, responds=True
    )
    return Registry([*registry, respond])


def _known(registry: Registry) -> dict[str, Known]:
    known: dict[str, Known] = {}
    for found in registry:
        tool, owner = tool_for(found.function, found.name, found.effect)
        known[found.name.casefold()] = Known(found, tool, owner, takes(found.function))
    return known


def _agent(setup: Setup, budget: Limits, options: Options) -> Agent[Any]:
    async def orchestrate(
        task: Any,
        *,
        run: Run,
        background: Any = None,
        development: bool = False,
        approval: Any = None,
    ) -> Any:
        room = Room(setup, run, task, background, development=development)
        return await room.go(approval)

    seconds = [limit for limit in (budget.seconds, setup.limits.seconds) if limit is not None]
    checks = options.get("checks") or Checks()
    return Agent[Any](
        orchestrate,
        policy(setup.approval.expires_s),
        limits=replace(budget, attempts=None, seconds=min(seconds, default=None)),
        # Equal steps are what was planned; what goes round in circles the router ends.
        checks=replace(checks, watch=False) if checks.watch is True else checks,
        store=options.get("store"),
        durability=options.get("durability"),
        observers=options.get("observers", ()),
        name=options.get("name", "orchestrator"),
        environment=options.get("environment"),
    )
