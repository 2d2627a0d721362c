"""One attempt of a plan-first run: it reads from the journal where the run stands, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from triage._call import Refused
from triage._capture import capture
from triage._drivers import _drive
from triage._journal import WIDTH
from triage._suspensions import time_of
from triage._tally import tally
from triage._tool import Tool
from triage.actions import Replan, Retry
from triage.diagnosis import Diagnosis
from triage.errors import AttemptInterrupted, TriageSuspendedError
from triage.events import (
    ApprovalAsked,
    ApprovalGiven,
    CapabilitiesSelected,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    RunResumed,
)
from triage.faults import PlanInvalid
from triage.observers import logger
from triage.taxonomy import Cause, FailureType, Severity

from ._approval import ApprovalMode, ApprovalRequest, subject_of
from ._approving import Approval, request_for, told
from ._calls import Calls, Known, misfit, unbegun
from ._criteria import StepOutcome, unmet
from ._ending import of_asking, routed, waiting
from ._feedback import feedback, issues_of
from ._issues import Validation
from ._limits import PlanLimits
from ._plan import PlannedStep
from ._registry import Registry
from ._requests import PlanRequest, SelectionRequest
from ._route import Decision, route
from ._state import Target, fold_plan
from ._validate import validate
from ._words import quoted

if TYPE_CHECKING:
    from triage._run import Run
    from triage.events import Event


class Setup(NamedTuple):
    """What all runs of an orchestrator share. selector: None selects all; judge: None asks nobody."""

    registry: Registry
    known: Mapping[str, Known]
    planner: Tool
    selector: Tool | None
    judge: Tool | None
    approval: Approval
    limits: PlanLimits


class Room:
    """The plan of one run, in one attempt. Nothing but the journal goes from one attempt to the next."""

    def __init__(
        self, setup: Setup, run: Run, task: Any, background: Any, *, development: bool
    ) -> None:
        self._setup = setup
        self._run = run
        self._session = run.session
        self._task = task
        self._background = background
        self._development = development
        self._calls = Calls(setup.known, run, task)
        self._fits: object = None
        self._needs: tuple[object, ApprovalRequest | None] | None = None
        self.state = fold_plan(self._session.events)

    async def go(self, answer: Any) -> Any:
        """To the end of the plan: what its last step gave. Raises `Refused` where the attempt ends."""
        self._hear(answer)
        self._calls.take_up(self.state)
        while True:
            if self.state.edited is not None:
                self._adopt(self._checked(self.state.edited.payload), Target.APPROVER)
                continue
            match await self._next():
                case Target.STEP:  # most often
                    await self._step()
                case Target.SELECTOR:
                    await self._select()
                case Target.PLANNER:
                    await self._plan()
                case Target.APPROVER:
                    await self._ask()
                case Target.END:
                    return await self._answer()
                case ended:
                    reason = self.state.decisions[-1].reason
                    raise Refused(routed(self.state, Decision(ended, reason=reason)))

    # Where the run stands -------------------------------------------------------------------------

    def _add(self, kind: Callable[..., Event], *fields: Any) -> None:
        """Write an event down, and take it in."""
        session = self._session
        seq = session.put(kind, fields)
        if session.config.observers:
            session.tell(seq)
        time = session.records[seq * WIDTH + 1]
        self.state = self.state.apply(kind(session.run_id, seq, time, *fields))

    def _hear(self, answer: Any) -> None:
        """Take in what a person has said since the last attempt."""
        asked = self.state.asked
        if asked is None:
            if answer is None:  # else it was taken in, and then the process ended
                self._hear_of_a_call()
            return
        if answer is None:
            answer = self._plainly(asked)
        if answer is None:
            return
        given, why = told(asked, answer)
        if given is None:
            logger.warning("run %s: an answer does not count: %s", asked.run_id, why)
            return
        _, _, kind, subject, decision, by, reason, payload = given
        self._add(ApprovalGiven, kind, subject, decision, by, reason, payload)

    def _plainly(self, asked: ApprovalAsked) -> dict[str, Any] | None:
        """What a person has answered this question by an action, as an agent around this run does."""
        for event in self._session.events[asked.seq + 1 :]:
            if not isinstance(event, RunResumed):
                continue
            request = ApprovalRequest("", asked.run_id, asked.kind, asked.subject)
            match event.action:
                case Retry(inject=inject) if not inject:
                    return request.answer("approved")._asdict()
                case Replan(hint=hint):
                    return request.answer("rejected", reason=hint or "")._asdict()
                case _:
                    return None
        return None

    def _hear_of_a_call(self) -> None:
        """A person has refused a call of the step that was entered, and wants another plan."""
        action, state = self._run.told.action, self.state
        if not isinstance(action, Replan) or state.at is not Target.STEP or state.pending:
            return  # the router's own word
        diagnosis = Diagnosis(
            FailureType.UNKNOWN,
            cause="rejected",
            severity=Severity.REPLANNING,
            hint=action.hint,
            user_message="A step was not allowed.",
            technical_details=action.hint or "a person refused a call",
            classifier="plan",
        )
        self._add(PlanFailed, Target.STEP, diagnosis, state.step)

    async def _next(self) -> Target:
        """Decide what is entered next, write it down, and wait as long as that says."""
        session, state = self._session, self.state
        env = session.config.env
        failed = state.pending == "failure"
        decision = route(
            state,
            self._setup.limits,
            retry=self._tries() if failed else None,
            draw=env.random() if failed else 1.0,
            elapsed_s=env.monotonic() - session.started,
            approval=self._wanted(),
        )
        entered = state.at is decision.target and not state.pending
        if not entered and state.ended is None:
            self._add(PlanRouted, *decision[:5])
            if decision.delay_s:
                await env.sleep(decision.delay_s)
        return decision.target

    def _tries(self) -> Any:
        failure = self.state.failure
        if failure is None or failure.target != Target.STEP:
            return None
        step = self.state.next_step
        found = None if step is None else self._setup.registry.get(step.capability)
        return None if found is None else found.tries

    def _failed(
        self,
        target: Target,
        diagnosis: Diagnosis,
        error: Exception | None,
        step: str = "",
        *,
        doubt: bool = False,
    ) -> Refused:
        """Write down what failed and where that leads; what ends the attempt, to be raised."""
        info = None if error is None else capture(error)
        if info is not None and info.refused:
            diagnosis = replace(diagnosis, severity=Severity.FATAL)
        self._add(PlanFailed, target, diagnosis, step, info, doubt)
        session = self._session
        env = session.config.env
        decision = route(
            self.state,
            self._setup.limits,
            retry=self._tries(),
            draw=env.random(),
            elapsed_s=env.monotonic() - session.started,
        )
        if self._development and not decision.target.ends:
            decision = Decision(Target.REPORT, reason="in development nothing is tried again")
        self._add(PlanRouted, *decision[:5])
        return Refused(routed(self.state, decision))

    # Selecting and planning -----------------------------------------------------------------------

    async def _select(self) -> None:
        registry, selector = self._setup.registry, self._setup.selector
        if selector is None:
            self._add(CapabilitiesSelected, registry.names)
            return
        request = SelectionRequest(
            self._task,
            registry.manifest(),
            feedback((), self.state, registry),
            1 + self.state.reclassifications,
            self._background,
        )
        answer = await self._consult(selector, request, Target.SELECTOR)
        self._add(CapabilitiesSelected, self._chosen(answer))

    def _chosen(self, answer: Any) -> tuple[str, ...]:
        registry = self._setup.registry
        if isinstance(answer, list | tuple) and all(isinstance(name, str) for name in answer):
            unknown = [name for name in answer if name not in registry]
            if not unknown:
                return registry.subset(answer).names
            said = f"selected what does not exist: {', '.join(map(quoted, unknown[:10]))}"
            kind, cause = FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL
        else:
            said = f"answered {type(answer).__name__}, not the names of capabilities"
            kind, cause = FailureType.SCHEMA_MISMATCH, Cause.INVALID_RESULT
        diagnosis = Diagnosis(
            kind,
            cause=cause,
            severity=Severity.RECLASSIFICATION,
            user_message="The means for this task could not be chosen.",
            technical_details=f"the selector {said}",
            hint=f"The selector {said}. There are: {', '.join(map(quoted, registry.names))}.",
            classifier="plan",
        )
        raise self._failed(Target.SELECTOR, diagnosis, None)

    async def _plan(self) -> None:
        state, registry = self.state, self._setup.registry
        active = registry if state.active is None else registry.subset(state.active)
        request = PlanRequest(
            self._task,
            active.manifest(),
            state.context(registry),
            feedback(issues_of(state), state, registry),
            state.version + 1,
            self._setup.limits.steps,
            self._background,
            state.entries,
        )
        answer = await self._consult(self._setup.planner, request, Target.PLANNER)
        self._adopt(self._checked(answer), Target.PLANNER)

    async def _consult(self, tool: Tool, request: Any, target: Target) -> Any:
        """Ask the planner or the selector; once more only if this has been entered once more."""
        if self._run.replay is not None:
            # Known by what is asked alone: what was answered before was another question.
            tally(self._run).leave()
        try:
            return await _drive(self._run, tool, (request,), {})
        except Exception as error:
            self._pass(error)
            raise self._failed(target, of_asking(error), error) from error

    def _pass(self, error: Exception) -> None:
        """Raise what is not for the router: an interrupt, and the question of a run inside this one."""
        if self._run.interrupt is not None or isinstance(error, TriageSuspendedError):
            raise error
        if self._session.failed_with(error):
            raise error

    def _checked(self, answer: Any) -> Validation:
        return validate(
            answer,
            self._setup.registry,
            self.state.context(self._setup.registry),
            active=self.state.active,
            task=self._task if isinstance(self._task, str) else "",
            limits=self._setup.limits,
        )

    def _adopt(self, found: Validation, target: Target) -> None:
        """Make a plan the one that is run, if it can be."""
        if found.plan is None or not found.ok:
            error = PlanInvalid(issues=[issue.message for issue in found.issues])
            raise self._failed(target, found.diagnosis(), error) from error
        for fix in found.fixes:
            logger.info("run %s: %s", self.state.run_id, fix.message)
        version = self.state.version + 1
        plan = replace(found.plan, version=version)
        self._add(PlanMade, plan.to_json(), version, subject_of(self.state.run_id, "plan", plan))
        self._fits = self.state.plan

    # Approval -------------------------------------------------------------------------------------

    def _wanted(self) -> ApprovalRequest | None:
        """What must be approved before the next step; None for nothing."""
        approval, state = self._setup.approval, self.state
        if approval.mode == ApprovalMode.OFF:
            return None
        step = state.next_step
        if state.plan is None or step is None:
            return None
        content = state.plan if approval.of == "plan" else step
        if self._needs is None or self._needs[0] is not content:
            self._needs = content, request_for(approval, state.run_id, content)
        return self._needs[1]

    async def _ask(self) -> NoReturn:
        request = self._wanted()
        assert request is not None
        seconds = self._setup.approval.expires_s
        expires = None
        if seconds is not None:
            expires = await time_of(self._session.config) + seconds
        _, _, kind, subject, question, payload, _ = request
        self._add(ApprovalAsked, kind, subject, question, payload, expires)
        raise Refused(waiting(question))

    # Steps ----------------------------------------------------------------------------------------

    async def _step(self) -> None:
        step = self.state.next_step
        assert step is not None
        key = step.context_key
        known = self._setup.known.get(step.capability.casefold())
        # A plan that was made in this attempt was held against these very capabilities.
        unfit = None if self._fits is self.state.plan else misfit(step, known)
        if known is None or unfit is not None:
            raise self._failed(Target.STEP, unbegun(unfit or ""), None, key)
        try:
            call = await self._calls.run(step, self.state)
        except AttemptInterrupted as error:
            self._note_question(key, error)
            raise
        except Exception as error:
            self._note_question(key, error)
            self._pass(error)
            diagnosis = known.capability.diagnose(
                error, {"step": key, "objective": step.task_objective, "task": self._task}
            )
            raise self._failed(Target.STEP, diagnosis, error, key) from error
        if self._setup.judge is not None and step.success_criteria.strip():
            await self._judge(self._setup.judge, step, known, call)
        self._add(PlanStepMoved, key, "done", call)

    async def _judge(self, judge: Tool, step: PlannedStep, known: Known, call: str) -> None:
        """Comes back where the criteria of a step are met. If not, its effect has happened all the same."""
        key = step.context_key
        outcome = StepOutcome(self._task, step, await self._calls.result(key, self.state))
        try:
            args = (call, step.success_criteria, outcome)
            met, why = await _drive(self._run, judge, args, {})
        except Exception as error:
            self._pass(error)
            raise self._failed(Target.STEP, of_asking(error), error, key) from error
        if not met:
            doubt = not known.capability.repeatable
            raise self._failed(Target.STEP, unmet(step, why), None, key, doubt=doubt)

    def _note_question(self, key: str, error: BaseException) -> None:
        """Write down that the plan ends here: a question about this step's call is asked of nobody.

        Where somebody is asked, the step waits for the answer and has not failed.
        """
        question, told = self._session.question, self._run.interrupt
        fails = self._session.config.durability.on_in_doubt == "fail"
        if not fails or told is None or question is None or question.inner:
            return
        info = capture(error) if isinstance(error, Exception) else None  # else it was not begun
        self._add(PlanFailed, Target.STEP, told, key, info, question.doubt)
        self._add(PlanRouted, *route(self.state, self._setup.limits)[:5])

    async def _answer(self) -> Any:
        done = self.state.done
        return await self._calls.result(done[-1].step.context_key, self.state) if done else None
