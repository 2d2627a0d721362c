"""One attempt of a plan-first run: read from the journal where the run stands, and continue."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace as dataclasses_replace
from typing import Any, NamedTuple, NoReturn, TypeAlias

from msgspec.structs import replace

from triage.core import errors, events
from triage.core.actions import Action, Escalate, Replan, Retry
from triage.core.capture import capture
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.failures import ErrorInfo, FailureContext
from triage.core.faults import PlanInvalid
from triage.core.json_values import canonical
from triage.core.observers import logger
from triage.core.taxonomy import DEFAULT_LEVEL, Cause, Effect, FailureType, Severity
from triage.engine.call_keys import tally
from triage.engine.calls import Run, record_call
from triage.engine.checks import Refused
from triage.engine.questions import Question, ask
from triage.engine.tools import Tool, restored
from triage.strategies.policy import FailurePolicy

from . import capabilities
from .approval import Approval, ApprovalMode, subject_of
from .plans import ExecutionPlan, PlannedStep, quoted, shortened
from .routing import Decision, PlanLimits, PlanState, Target, fold_plan, route
from .validation import Validation, feedback, issues_of, validate

# How capabilities are called, and why a call cannot begin.


class Known(NamedTuple):
    """A capability with what is needed to call it. owner: the object its function is bound to, if any."""

    capability: capabilities.Capability
    tool: Tool
    owner: tuple[Any, ...]
    takes: capabilities.Takes


def _unregistered(name: str) -> Tool:
    """Stand in for a capability that this process does not have, to read its recorded results."""

    def gone() -> None: ...

    return Tool(gone, name=name)


def _by_origin_if_inexact(
    known: Known, step: PlannedStep, given: Mapping[str, Any], state: PlanState
) -> Tool:
    """The tool; an input without an exact JSON form is identified by the call that produced it."""
    tool = known.tool
    if tool.key is not None or not step.inputs:
        return tool
    calls = {done.step.context_key: done.call for done in state.done}
    origins: dict[str, list[str]] = {}
    for kind, key in step.inputs:
        for name in {
            capabilities.place_of(kind, key, known.takes),
            *({"results"} & known.takes.names),
        } - {None}:
            origins.setdefault(str(name), []).append(calls.get(key, ""))
    inexact: dict[str, str] = {}
    for name, keys in origins.items():
        try:
            canonical(given[name], "value")
        except errors.UsageError:
            inexact[name] = " ".join(keys)
    return capabilities.by_origin(tool, inexact) if inexact else tool


def misfit(step: PlannedStep, known: Known | None) -> str | None:
    """Why a step cannot begin; None if it can."""
    if known is None:
        return f"there is no capability {quoted(step.capability)}"
    unknown, missing = capabilities.misfits(step, known.takes)
    said = [f"takes no {quoted(name)}" for name in unknown]
    said += [f"needs {quoted(name)}" for name in missing]
    if not said:
        return None
    names = ", ".join(sorted(known.takes.told)) or "nothing"
    return f"{quoted(known.capability.name)} {', '.join(said)}; it takes {names}"


# Are the success criteria of a step met? What its judge is asked.

_MAX_WHY = 500
_MAX_WRONGS = 2_000


class StepOutcome(NamedTuple):
    """What the judge of a step is given.

    task: as given to the run. step: as planned, with its `success_criteria`. result: what its capability
    returned.
    """

    task: Any
    step: PlannedStep
    result: Any


StepJudge: TypeAlias = Callable[
    [StepOutcome], bool | tuple[bool, str] | Awaitable[bool | tuple[bool, str]]
]
"""Says whether the criteria of a step are met: True, False, or either with a reason. A sync judge runs in
a thread."""


def judging(field: str, judge: Any) -> Tool:
    """Wrap a judge as a recorded call, identified by the call it judges and the criteria.

    Raises UsageError for anything but a function.
    """
    if isinstance(judge, type) or not callable(judge):
        raise errors.misuse(field, judge, "a function of the StepOutcome, async or not")
    function: Callable[[StepOutcome], Any] = judge

    # The arguments beside the outcome identify the call.
    async def ask(call: str, criteria: str, outcome: StepOutcome) -> list[Any]:  # noqa: ARG001
        return _verdict(await function(outcome))

    def ask_in_a_thread(call: str, criteria: str, outcome: StepOutcome) -> Any:  # noqa: ARG001
        answer = function(outcome)
        return (
            capabilities.Later(answer, _verdict)
            if inspect.isawaitable(answer)
            else _verdict(answer)
        )

    chosen = ask if capabilities.is_async(judge) else ask_in_a_thread
    return Tool(chosen, effect=Effect.READ, name="criteria", ignore=("outcome",))


def _verdict(answer: object) -> list[Any]:
    """The answer in a form the journal keeps exactly. Raises TypeError for an invalid answer."""
    met, why = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
    if not isinstance(met, bool) or not isinstance(why, str):
        raise TypeError(
            f"the judge of a step answered {type(answer).__name__}, not True or False, alone or with a "
            "reason"
        )
    return [met, why]


# How an attempt ends: the router's decision as a diagnosis, which the policy turns into an action.

ROUTED = "plan.route"
"""Evidence with the reason of the decision that ended an attempt."""
_LONGEST = 500
_SEVERITY = {
    Target.SELECTOR: Severity.RECLASSIFICATION,
    Target.PLANNER: Severity.REPLANNING,
    Target.REPORT: Severity.CRITICAL,
    Target.STOP: Severity.FATAL,
}


def routed(state: PlanState, decision: Decision) -> Diagnosis:
    """The last failure, with the severity of what follows. A retry is RETRIABLE after its delay."""
    found = _failure(state)
    retried = decision.counter == "retries"
    severity = Severity.RETRIABLE if retried else _SEVERITY.get(decision.target, Severity.RETRIABLE)
    level = found.level if found.severity is severity else DEFAULT_LEVEL[severity]
    return replace(
        found,
        severity=severity,
        level=level,
        critical_step=None,
        retry_after_s=decision.delay_s or None,
        evidence=(*found.evidence, Evidence(ROUTED, decision.reason[:_LONGEST])),
    )


def _failure(state: PlanState) -> Diagnosis:
    if state.failure is not None:
        return state.failure.diagnosis
    if state.rejection is not None:
        said = f": {state.rejection.reason}" if state.rejection.reason else ""
        details = f"a person refused the plan{said}"[:_LONGEST]
        return _diagnosis("rejected", "What was planned was not approved.", details)
    details = "a limit of the plan was reached"
    return _diagnosis(Cause.LIMIT, "The work took more than it may.", details)


def _diagnosis(
    cause: str | None,
    user_message: str,
    details: str,
    *,
    kind: FailureType = FailureType.PLAN_INCOMPLETE,
    severity: Severity = Severity.REPLANNING,
    rule: str = "",
    hint: str | None = None,
) -> Diagnosis:
    """Make a diagnosis of our own. rule: names the evidence; empty for none."""
    return Diagnosis(
        kind,
        cause=cause,
        severity=severity,
        evidence=(Evidence(rule, details),) if rule else (),
        user_message=user_message,
        technical_details=details,
        hint=hint,
        classifier="plan",
    )


def policy() -> FailurePolicy:
    """What follows when an attempt has ended: what the router decided.

    A failure the router has not seen (a limit of the run, a check of its result) goes to a person.
    """

    def action(context: FailureContext) -> Action:
        diagnosis = context.diagnosis
        last = diagnosis.evidence[-1] if diagnosis.evidence else Evidence("", "")
        if last.rule != ROUTED:
            return Escalate(str(diagnosis))
        match diagnosis.severity:
            case Severity.RETRIABLE:
                return Retry(delay=diagnosis.retry_after_s or 0.0)
            case Severity.REPLANNING | Severity.RECLASSIFICATION:
                return Replan(last.text)
            case _:
                return Escalate(last.text)

    return FailurePolicy(default=action)


class Setup(NamedTuple):
    """What all runs of an orchestrator share. selector: None selects all. judge: None judges nothing."""

    registry: capabilities.Registry
    known: Mapping[str, Known]
    planner: Tool
    selector: Tool | None
    judge: Tool | None
    approval: Approval
    limits: PlanLimits

    def validated(self, answer: Any, state: PlanState, task: str = "") -> Validation:
        """Validate a plan as the next one of a run."""
        context, active = state.context(self.registry), self.active(state)
        return validate(
            answer, self.registry, context, active=active, task=task, limits=self.limits
        )

    def active(self, state: PlanState) -> list[str] | None:
        """The selected capabilities that this process still has, None before a selection."""
        if state.active is None:
            return None
        return [name for name in state.active if name in self.registry]


class PlanAttempt:
    """One attempt at a plan. Attempts share nothing but the journal."""

    def __init__(
        self, setup: Setup, run: Run, task: Any, background: Any, *, development: bool
    ) -> None:
        self._setup = setup
        self._run = run
        self._session = run.session
        self._task = task
        self._background = background
        self._development = development
        self._results: dict[str, Any] = {}
        self._adopted: ExecutionPlan | None = None
        """The plan made in this attempt, validated against these very capabilities."""
        self._approval: tuple[object, Question | None] = None, None
        """A plan or step, and the question about the approval it needs."""
        self.state = fold_plan(self._session.events)

    async def run(self) -> Any:
        """Run to the end of the plan; returns its last result. Raises `Refused` where the attempt ends."""
        self._take_refused_call()
        while True:
            if self.state.edited is not None:
                self._adopt(self._validated(self.state.edited.payload), Target.APPROVER)
                continue
            match await self._enter_next():
                case Target.STEP:
                    self._carry_calls()
                    await self._step()
                case Target.SELECTOR:
                    await self._select()
                case Target.PLANNER:
                    await self._plan()
                case Target.APPROVER:
                    self._ask()
                case Target.END:
                    done = self.state.done
                    return await self._result(done[-1].step.context_key) if done else None
                case ended:
                    reason = self.state.decisions[-1].reason
                    raise Refused(routed(self.state, Decision(ended, reason=reason)))

    def _add(self, kind: Callable[..., events.Event], /, **fields: Any) -> None:
        """Journal an event, and apply it to the state."""
        event = self._session.put(kind, **fields)
        self._session.tell(event)
        self.state = self.state.apply(event)

    # Routing --------------------------------------------------------------------------------------

    async def _enter_next(self) -> Target:
        """Decide what to enter next, journal the decision, and wait out its delay."""
        state = self.state
        failed = state.pending == "failure"
        decision = self._route(retried=failed, approval=self._approval_question())
        entered = state.at is decision.target and not state.pending
        if not entered and state.ended is None:
            self._add(events.PlanRouted, **decision.recorded)
            if decision.delay_s:
                self._session.waits.say(
                    f"plan {decision.target}",
                    self._session.named,
                    decision.delay_s,
                    f"the plan goes on with {decision.target} after a failure",
                    "this wait alone",
                    "the retries of its capability",
                )
                await self._session.config.env.sleep(decision.delay_s)
        if not decision.target.ends:
            await self._session.barrier()  # a target that kills the process has been counted
        return decision.target

    def _route(self, *, retried: bool, approval: Question | None = None) -> Decision:
        session, failure, step = self._session, self.state.failure, self.state.next_step
        env = session.config.env
        retry = None
        if retried and failure is not None and failure.target == Target.STEP and step is not None:
            capability = self._setup.registry.get(step.capability)
            retry = None if capability is None else capability.tries
        return route(
            self.state,
            self._setup.limits,
            retry=retry,
            draw=env.random() if retried else 1.0,
            elapsed_s=env.monotonic() - session.started,
            approval=approval,
        )

    def _failed(
        self,
        target: Target,
        diagnosis: Diagnosis,
        error: Exception | None,
        step: str = "",
        *,
        doubt: bool = False,
    ) -> Refused:
        """Journal a failure and the decision about it; returns what ends the attempt, to be raised."""
        info = None if error is None else self._captured(error)
        if info is not None and info.refused:
            diagnosis = replace(diagnosis, severity=Severity.FATAL)
        self._add(
            events.PlanFailed,
            target=target,
            diagnosis=diagnosis,
            step=step,
            error=info,
            doubt=doubt,
        )
        decision = self._route(retried=True)
        if decision.cut:
            failed = f"step {quoted(step)}" if step else f"the {target}"
            logger.warning(
                "run %s: %s is not tried again: %s", self.state.run_id, failed, decision.cut
            )
        if self._development and not decision.target.ends:
            decision = Decision(Target.REPORT, reason="in development nothing is tried again")
        self._add(events.PlanRouted, **decision.recorded)
        return Refused(routed(self.state, decision))

    def _captured(self, error: BaseException) -> ErrorInfo:
        """The error without what the caller of the run was handling."""
        return capture(error, self._session.handled)

    def _raise_unroutable(self, error: Exception) -> None:
        """Raise what the router does not handle: an interrupt, or the question of a run inside this one."""
        outside = self._run.interrupt is not None or isinstance(error, errors.TriageSuspendedError)
        if outside or self._session.failed_with(error):
            raise error

    # Selecting and planning -----------------------------------------------------------------------

    async def _select(self) -> None:
        registry, selector = self._setup.registry, self._setup.selector
        if selector is None:
            self._add(events.CapabilitiesSelected, names=registry.names)
            return
        request = capabilities.SelectionRequest(
            task=self._task,
            capabilities=registry.manifest(),
            feedback=feedback((), self.state, registry),
            selection=1 + self.state.reclassifications,
            background=self._background,
        )
        answer = await self._consult(selector, request, Target.SELECTOR)
        if isinstance(answer, list | tuple) and all(isinstance(name, str) for name in answer):
            unknown = [name for name in answer if name not in registry]
            if not unknown:
                self._add(events.CapabilitiesSelected, names=registry.subset(answer).names)
                return
            fault = f"selected what does not exist: {', '.join(map(quoted, unknown[:10]))}"
            kind, cause = FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL
        else:
            fault = f"answered {type(answer).__name__}, not the names of capabilities"
            kind, cause = FailureType.SCHEMA_MISMATCH, Cause.INVALID_RESULT
        diagnosis = _diagnosis(
            cause,
            "The means for this task could not be chosen.",
            f"the selector {fault}",
            kind=kind,
            severity=Severity.RECLASSIFICATION,
            hint=f"The selector {fault}. There are: {', '.join(map(quoted, registry.names))}.",
        )
        raise self._failed(Target.SELECTOR, diagnosis, None)

    async def _plan(self) -> None:
        state, registry = self.state, self._setup.registry
        names = self._setup.active(state)
        active = registry if names is None else registry.subset(names)
        request = capabilities.PlanRequest(
            task=self._task,
            capabilities=active.manifest(),
            results=state.context(registry),
            feedback=feedback(issues_of(state), state, registry),
            version=state.version + 1,
            steps=self._setup.limits.steps,
            background=self._background,
            entry=state.entries,
        )
        answer = await self._consult(self._setup.planner, request, Target.PLANNER)
        self._adopt(self._validated(answer), Target.PLANNER)

    async def _consult(self, tool: Tool, request: Any, target: Target) -> Any:
        """Ask the planner or the selector. The answer to an equal request is reused."""
        if self._run.replay is not None:
            # A call is identified by its request, and earlier answers were to other requests.
            tally(self._run).leave()
        try:
            return await record_call(self._run, tool, (request,), {})
        except Exception as error:
            self._raise_unroutable(error)
            diagnosis = capabilities.diagnosed(self._captured(error), f"the {target}")
            raise self._failed(target, diagnosis, error) from error

    def _validated(self, answer: Any) -> Validation:
        task = self._task if isinstance(self._task, str) else ""
        return self._setup.validated(answer, self.state, task)

    def _adopt(self, found: Validation, target: Target) -> None:
        """Make this the plan of the run if it can be run; an edit that cannot goes back to the person."""
        if found.plan is None or not found.ok:
            error = PlanInvalid(issues=[issue.message for issue in found.issues])
            if target is Target.APPROVER and self._setup.approval.mode != ApprovalMode.OFF:
                diagnosis = found.diagnosis()
                info = self._captured(error)
                self._add(events.PlanFailed, target=target, diagnosis=diagnosis, error=info)
                return
            raise self._failed(target, found.diagnosis(), error) from error
        for fix in found.fixes:
            logger.info("run %s: %s", self.state.run_id, fix.message)
        version = self.state.version + 1
        plan = dataclasses_replace(found.plan, version=version)
        subject = subject_of(self.state.run_id, "plan", plan)
        self._add(events.PlanMade, plan=plan.to_json(), version=version, subject=subject)
        self._adopted = self.state.plan

    # Approval -------------------------------------------------------------------------------------

    def _approval_question(self) -> Question | None:
        """The question about the approval the next step needs; None if it needs none."""
        approval, state = self._setup.approval, self.state
        step = state.next_step
        if approval.mode == ApprovalMode.OFF or state.plan is None or step is None:
            return None
        content = state.plan if approval.of == "plan" else step
        if self._approval[0] is not content:  # ask the evaluator once only
            self._approval = content, approval.question(state.run_id, content)
        return self._approval[1]

    def _ask(self) -> NoReturn:
        question = self._approval_question()
        assert question is not None
        failure = self.state.failure
        if failure is not None and failure.target == Target.APPROVER:
            wrong = shortened(failure.diagnosis.technical_details, _MAX_WRONGS)
            question = replace(
                question, text=f"The edited plan cannot be run: {wrong}. {question.text}"
            )
        ask(self._run, question)

    def _take_refused_call(self) -> None:
        """Journal that a person refused a call of the entered step and wants another plan."""
        past, state = self._session.state.history, self.state
        action = past[-1].action if past else None
        if not isinstance(action, Replan) or state.at is not Target.STEP or state.pending:
            return  # the router's own decision
        details = action.hint or "a person refused a call"
        message, kind = "A step was not allowed.", FailureType.UNKNOWN
        diagnosis = _diagnosis("rejected", message, details, kind=kind, hint=action.hint)
        self._add(events.PlanFailed, target=Target.STEP, diagnosis=diagnosis, step=state.step)

    # Steps ----------------------------------------------------------------------------------------

    async def _step(self) -> None:
        step = self.state.next_step
        assert step is not None
        key = step.context_key
        known = self._setup.known.get(step.capability.casefold())
        unfit = None if self._adopted is self.state.plan else misfit(step, known)
        if known is None or unfit is not None:
            unbegun = _diagnosis(
                Cause.INVALID_ARGUMENTS,
                "A step of the plan could not be begun.",
                unfit or "",
                kind=FailureType.SCHEMA_MISMATCH,
                rule="plan.step",
                hint=unfit,
            )
            raise self._failed(Target.STEP, unbegun, None, key)
        try:
            call = await self._call(step, known)
        except errors.AttemptInterrupted as error:
            self._note_question(key, error)
            raise
        except Exception as error:
            self._note_question(key, error)
            self._raise_unroutable(error)
            facts = {"step": key, "objective": step.task_objective, "task": self._task}
            diagnosis = known.capability.diagnose(error, facts, info=self._captured(error))
            raise self._failed(Target.STEP, diagnosis, error, key) from error
        if self._setup.judge is not None and step.success_criteria.strip():
            await self._judge(self._setup.judge, step, known, call)
        self._add(events.PlanStepMoved, step=key, status="done", detail=call)

    def _carry_calls(self) -> None:
        """Count the calls of the plan's done steps as met, so that nobody is asked about them again."""
        if self._run.replay is None or self.state.plan is None:
            return  # calls of an earlier plan are met only when they are made again
        counted = tally(self._run)
        for done in self.state.done:
            if done.version == self.state.version and done.call:
                tool, _, _ = done.call.rsplit(":", 2)
                counted.carry(self._run, tool, done.call)

    async def _call(self, step: PlannedStep, known: Known) -> str:
        """Call the capability of a step; returns the key of the call. Raises what the capability raises."""
        results = {key: await self._result(key) for _, key in step.inputs}
        given = capabilities.arguments(step, known.takes, results, self._task)
        tool = _by_origin_if_inexact(known, step, given, self.state)
        self._results[step.context_key] = await record_call(self._run, tool, known.owner, given)
        prefix = f"{known.tool.name}:"
        for event in reversed(self._session.events):
            if isinstance(event, events.CallFinished) and event.key.startswith(prefix):
                return event.key
        return ""

    async def _result(self, key: str) -> Any:
        """The result of a done step, from memory or from its recorded call. Raises ResultLost."""
        if key in self._results:
            return self._results[key]
        done = next(done for done in self.state.done if done.step.context_key == key)
        known = self._setup.known.get(done.step.capability.casefold())
        call = self._session.state.calls.get(done.call)
        if call is None:
            raise errors.UsageError(f"the result of {quoted(key)} is not in the journal")
        tool = _unregistered(done.step.capability) if known is None else known.tool
        try:
            self._results[key] = restored(tool, call, self._session.live)
        except errors.ResultLost:
            if known is None or not known.capability.repeatable:
                raise
            await self._call(done.step, known)
        return self._results[key]

    async def _judge(self, judge: Tool, step: PlannedStep, known: Known, call: str) -> None:
        """Return if the criteria of a step are met. If not, its effect has happened all the same."""
        key = step.context_key
        outcome = StepOutcome(self._task, step, await self._result(key))
        try:
            args = (call, step.success_criteria, outcome)
            met, why = await record_call(self._run, judge, args, {})
        except Exception as error:
            self._raise_unroutable(error)
            diagnosis = capabilities.diagnosed(self._captured(error), "the judge of a step")
            raise self._failed(Target.STEP, diagnosis, error, key) from error
        if not met:
            doubt = not known.capability.repeatable
            said = f": {shortened(why, _MAX_WHY)}" if why.strip() else ""
            text = f"{quoted(step.success_criteria, _MAX_WHY)} is not met by {quoted(key)}{said}"
            message = "A step did not achieve what it was to achieve."
            unmet = _diagnosis(None, message, text, rule="plan.criteria", hint=text)
            raise self._failed(Target.STEP, unmet, None, key, doubt=doubt)

    def _note_question(self, key: str, error: BaseException) -> None:
        """Journal that the plan ends here if the question about this step's call is put to nobody.

        Where somebody is asked, the step has not failed: it waits for the answer.
        """
        question, diagnosis = self._session.question, self._run.interrupt
        if self._session.config.durability.on_in_doubt != "fail" or diagnosis is None:
            return
        if question is None or question.inner or not question.guesses:
            return
        began = isinstance(error, Exception)
        info = self._captured(error) if began else None
        doubt = question.doubt
        self._add(
            events.PlanFailed,
            target=Target.STEP,
            diagnosis=diagnosis,
            step=key,
            error=info,
            doubt=doubt,
        )
        self._add(events.PlanRouted, **route(self.state, self._setup.limits).recorded)
