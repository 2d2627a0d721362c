"""One attempt of a plan-first run: it reads from the journal where the run stands, and goes on."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclasses_replace
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from msgspec.structs import replace

from triage.core import (
    DEFAULT_LEVEL,
    Action,
    ApprovalAsked,
    ApprovalGiven,
    Approved,
    AttemptInterrupted,
    CallFinished,
    CapabilitiesSelected,
    Cause,
    Diagnosis,
    Edited,
    Effect,
    Escalate,
    Event,
    Evidence,
    FailureContext,
    FailureType,
    PlanFailed,
    PlanInvalid,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    Redactor,
    Rejected,
    Replan,
    ResultLost,
    Retry,
    RunResumed,
    Severity,
    Suspend,
    TokenExpired,
    TriageSuspendedError,
    UnknownRun,
    UsageError,
    canonical,
    capture,
    check_number,
    check_word,
    logger,
    misuse,
)
from triage.engine import (
    Refused,
    Run,
    Tool,
    record_call,
    resolve,
    restored,
    tally,
    time_of,
    waits_for,
)
from triage.stores import Store
from triage.strategies import FailurePolicy

from .approval import (
    ApprovalAnswer,
    ApprovalMode,
    ApprovalRequest,
    Evaluator,
    mismatch,
    needs_approval,
    subject_of,
)
from .capabilities import (
    Capability,
    Later,
    PlanRequest,
    Registry,
    SelectionRequest,
    Takes,
    arguments,
    by_origin,
    diagnosed,
    is_async,
    misfits,
    place_of,
)
from .plans import ExecutionPlan, PlannedStep, content_hash, quoted, shortened
from .routing import Decision, PlanLimits, PlanState, Target, fold_plan, route
from .validation import Validation, feedback, issues_of, validate

# Approvals of a run that waits: what is asked, and an answer given where the run is kept.


ANSWER = "approval"
"""The parameter by which an attempt is told of an answer."""
_MAX_QUESTION = 300
_MAX_WRONGS = 2_000


@dataclass(frozen=True)
class Approval:
    """What a person must approve before it is run.

    mode: `off`, `selective` or `all`; any other text means that everything needs it. evaluator: says
    what does in the mode `selective`; without one everything does. of: `plan` asks once for each plan,
    before its first step; `step` asks before each step. expires_s: seconds until which an answer
    counts, None for ever.

    Raises UsageError naming the field.
    """

    mode: ApprovalMode | str = ApprovalMode.ALL
    evaluator: Evaluator | None = None
    of: Literal["plan", "step"] = "plan"
    expires_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str):
            raise misuse("Approval.mode", self.mode, "off, selective or all")
        if self.evaluator is not None and not callable(self.evaluator):
            raise misuse("Approval.evaluator", self.evaluator, "a function of the plan or the step")
        check_word("Approval.of", self.of, ("plan", "step"))
        if self.expires_s is not None:
            check_number("Approval.expires_s", self.expires_s, "seconds", above=True)


OFF = Approval(ApprovalMode.OFF)


def validated(
    answer: Any, state: PlanState, registry: Registry, limits: PlanLimits, task: str = ""
) -> Validation:
    """Validate a plan as the next one of a run."""
    return validate(
        answer, registry, state.context(registry), active=state.active, task=task, limits=limits
    )


def unsafe_effects(registry: Registry) -> Evaluator:
    """An evaluator: approval is needed for what has an effect that must not happen twice.

    That is a capability whose effect is `once` or `unknown`, or which `registry` does not know.
    """

    def evaluate(content: ExecutionPlan | PlannedStep) -> tuple[bool, str]:
        steps = content.steps if isinstance(content, ExecutionPlan) else (content,)
        for step in steps:
            found = registry.get(step.capability)
            effect = Effect.UNKNOWN if found is None else found.effect
            if found is None or not found.repeatable:
                return True, f"{quoted(step.context_key)} has the effect {effect}"
        return False, "every effect may happen twice"

    return evaluate


def request_for(
    approval: Approval, run_id: str, content: ExecutionPlan | PlannedStep
) -> ApprovalRequest | None:
    """What must be approved before a plan or a step is run; None for nothing.

    Its id comes with the token.
    """
    need = needs_approval(approval.mode, content, approval.evaluator)
    if not need:
        return None
    steps = content.steps if isinstance(content, ExecutionPlan) else (content,)
    what = ", ".join(f"{quoted(step.context_key)} by {quoted(step.capability)}" for step in steps)
    question = f"May this {approval.of} be run ({need.why[:_MAX_QUESTION]}): {what}?"
    subject = subject_of(run_id, approval.of, content)
    return ApprovalRequest(
        id="",
        run_id=run_id,
        kind=approval.of,
        subject=subject,
        question=question[: 2 * _MAX_QUESTION],
        payload=content.to_json(),
    )


def request_in(events: Sequence[Event]) -> ApprovalRequest | None:
    """What a run waits to have approved, by its journal; None if it waits for nothing of that kind."""
    waits = waits_for(events)
    asked = fold_plan(events).asked
    if waits is None or waits.call is not None or asked is None:
        return None
    # The token's digest names this very question, so that an answer to an equal earlier one is too late.
    return ApprovalRequest(
        id=waits.token_digest,
        run_id=waits.run_id,
        kind=asked.kind,
        subject=asked.subject,
        question=asked.question,
        payload=asked.payload,
        expires=waits.expires,
    )


def read_answer(request: ApprovalRequest, reply: Any, by: str = "") -> ApprovalAnswer | None:
    """A reply to a run that waits for approval as the answer to what it asks; None for any other.

    Raises UsageError for an edit of anything but a plan, and for a payload that is none.
    """
    match reply:
        case ApprovalAnswer():
            return reply
        case Approved():
            return request.answer("approved", by=by)
        case Rejected(reason=reason):
            return request.answer("rejected", by=by, reason=reason or "")
        case Edited(payload=payload):
            return request.answer("edited", by=by, payload=payload)
        case _:
            return None


def carried(
    request: ApprovalRequest,
    answer: ApprovalAnswer,
    now: float,
    check: Callable[[ExecutionPlan], Validation],
) -> Retry:
    """The action by which the next attempt is told of an answer.

    check: validates an edited plan. Raises UsageError for an answer that does not fit the question and
    for a plan that cannot be run, TokenExpired for a late answer.
    """
    if request.expires is not None and now >= request.expires:
        raise TokenExpired(
            f"the answer to run {request.run_id} came after its time; the run still waits"
        )
    why = mismatch(request, answer, now=now)
    if why is not None:
        raise UsageError(f"this answer does not count: {why}")
    data: dict[str, Any] = answer._asdict()
    if answer.decision == "edited":
        if request.kind != "plan":
            raise UsageError(f"a {request.kind} cannot be edited; reject it, and say what is wrong")
        plan = answer.payload
        if not isinstance(plan, ExecutionPlan):
            plan = ExecutionPlan.from_json(plan)
        found = check(plan)
        if not found.ok:
            raise UsageError(
                f"the edited plan cannot be run, and the run still waits: {wrongs(found)}"
            )
        data["payload"] = plan.to_json()
        data["hash"] = content_hash(data["payload"])
    return Retry(inject={ANSWER: data})


def wrongs(found: Validation) -> str:
    """What is wrong with a plan, for the person who wrote it."""
    return "; ".join(issue.message for issue in found.issues)[:_MAX_WRONGS]


def validated_by_journal(plan: ExecutionPlan, state: PlanState) -> Validation:
    """Validate a plan where nothing is known but its run's journal.

    That has the names of the capabilities, and the keys and planned types of results. What the
    capabilities take and provide is found out by whoever goes on with the run.
    """
    registry = Registry(
        Capability(name, "known by its name alone", _takes_anything, responds=False)
        for name in state.active or {step.capability.strip(): None for step in plan.steps}
        if name
    )
    limits = PlanLimits(steps=max(1, len(plan.steps)))
    return validate(plan, registry, state.context(registry), limits=limits)


def _takes_anything(**_parameters: Any) -> None:
    """Stand for the function of a capability."""


def told(asked: ApprovalAsked, data: Any) -> tuple[ApprovalAnswer | None, str]:
    """The answer an attempt was told of, if it counts for what is asked; else why it does not."""
    fields = {name: data.get(name) for name in ApprovalAnswer._fields}
    answer = ApprovalAnswer(**fields)
    request = ApprovalRequest(answer.id, asked.run_id, asked.kind, asked.subject)
    why = mismatch(request, answer, now=0.0)
    if why is None and answer.decision == "edited" and content_hash(answer.payload) != data["hash"]:
        why = "the plan held a secret, which no store keeps; resume it in the process that runs it"
    return (None, why) if why is not None else (answer, "")


# At the store -------------------------------------------------------------------------------------


async def asked_in(store: Store, run_id: str) -> ApprovalRequest | None:
    """What a run waits to have approved; None if it waits for nothing of that kind.

    Raises UnknownRun for a run that the store does not know.
    """
    events = await store.read(run_id)
    if not events:
        raise UnknownRun(f"the store knows no run {run_id}")
    return request_in(events)


async def answer_in(
    store: Store,
    answer: ApprovalAnswer,
    *,
    check: Callable[[ExecutionPlan, PlanState], Validation] = validated_by_journal,
) -> None:
    """Answer what a run waits to have approved, where it is kept; whoever recovers it goes on.

    answer: made by `ApprovalRequest.answer` of what `asked_in` gave. It counts once, for that very
    question, and before its time is over. check: validates an edited plan; by default with the names
    that the journal has. Raises UnknownRun, UsageError for a run that does not wait for it, an answer
    that does not fit, a plan that cannot be run and one with what looks like a secret, TokenExpired,
    AlreadyResumed if somebody else has just answered, RunBusy while somebody else is answering (or has
    died of it, for at most 30 seconds), and StoreError. The run still waits after each of them but
    AlreadyResumed.
    """
    events = await store.read(answer.run_id)
    if not events:
        raise UnknownRun(f"the store knows no run {answer.run_id}")
    request = request_in(events)
    if request is None:
        raise UsageError(f"run {answer.run_id} does not wait for an approval")
    now = await store.now()
    state = fold_plan(events)
    action = carried(request, answer, now, lambda plan: check(plan, state))
    places = Redactor().fields_of(action.inject[ANSWER].get("payload"), "plan")
    if places:
        raise UsageError(
            f"{', '.join(places)} holds what looks like a secret, which no store keeps; resume the run "
            "by its token, in the process that goes on with it"
        )
    await resolve(store, answer.run_id, action, now=now)


# How capabilities are called, and why a call cannot be begun.


class Known(NamedTuple):
    """A capability as it is called. owner: the object its function is bound to, if any."""

    capability: Capability
    tool: Tool
    owner: tuple[Any, ...]
    takes: Takes


def _by_origin_if_inexact(
    known: Known, step: PlannedStep, given: Mapping[str, Any], state: PlanState
) -> Tool:
    """The tool; a result passed on that has no exact form is identified by the call it comes from."""
    tool = known.tool
    if tool.key is not None or not step.inputs:
        return tool
    calls = {done.step.context_key: done.call for done in state.done}
    origins: dict[str, list[str]] = {}
    for kind, key in step.inputs:
        for name in {place_of(kind, key, known.takes), *({"results"} & known.takes.names)} - {None}:
            origins.setdefault(str(name), []).append(calls.get(key, ""))
    inexact: dict[str, str] = {}
    for name, keys in origins.items():
        try:
            canonical(given[name], "value")
        except UsageError:
            inexact[name] = " ".join(keys)
    return by_origin(tool, inexact) if inexact else tool


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


# Are the success criteria of a step met? What a step's judge is asked, and what its no leads to.


NAME = "criteria"
"""The name of the recorded calls by which a judge is asked."""
_MAX_WHY = 500


class StepOutcome(NamedTuple):
    """What the judge of a step is given.

    task: as given to the run. step: as planned, with its `success_criteria`. result: what its capability
    gave.
    """

    task: Any
    step: PlannedStep
    result: Any


StepJudge: TypeAlias = Callable[
    [StepOutcome], bool | tuple[bool, str] | Awaitable[bool | tuple[bool, str]]
]
"""Says whether the criteria of a step are met: True, False, or one of them with a reason. Sync ones run
in a thread."""


def judging(field: str, judge: Any) -> Tool:
    """A judge as a recorded call, known by the call that it judges and by the criteria.

    Raises UsageError for none.
    """
    if isinstance(judge, type) or not callable(judge):
        raise misuse(field, judge, "a function of the StepOutcome, async or not")
    function: Callable[[StepOutcome], Any] = judge

    # The arguments beside the outcome identify the call.
    async def ask(call: str, criteria: str, outcome: StepOutcome) -> list[Any]:  # noqa: ARG001
        return _verdict(await function(outcome))

    def ask_in_a_thread(call: str, criteria: str, outcome: StepOutcome) -> Any:  # noqa: ARG001
        answer = function(outcome)
        return Later(answer, _verdict) if inspect.isawaitable(answer) else _verdict(answer)

    chosen = ask if is_async(judge) else ask_in_a_thread
    return Tool(chosen, effect=Effect.READ, name=NAME, ignore=("outcome",))


def _verdict(answer: object) -> list[Any]:
    """The answer in a form that another process can read from the journal; TypeError for none."""
    met, why = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
    if not isinstance(met, bool) or not isinstance(why, str):
        raise TypeError(
            f"the judge of a step answered {type(answer).__name__}, not True or False, alone or with a "
            "reason"
        )
    return [met, why]


def unmet(step: PlannedStep, why: str) -> Diagnosis:
    """Why a step has failed whose result is not what was wanted."""
    said = f": {shortened(why, _MAX_WHY)}" if why.strip() else ""
    text = f"{quoted(step.success_criteria, _MAX_WHY)} is not met by {quoted(step.context_key)}"
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        evidence=(Evidence("plan.criteria", f"{text}{said}"),),
        user_message="A step did not achieve what it was to achieve.",
        technical_details=f"{text}{said}",
        hint=f"{text}{said}",
        classifier="plan",
    )


# How an attempt of a plan-first run ends, and what is done then: the router's word, as an action.


ROUTED = "plan.route"
"""Evidence with the reason of the decision that ended an attempt."""
ASKED = "plan.approval"
"""Evidence with the question that ended an attempt."""
_LONGEST = 500

_SEVERITY = {
    Target.SELECTOR: Severity.RECLASSIFICATION,
    Target.PLANNER: Severity.REPLANNING,
    Target.REPORT: Severity.CRITICAL,
    Target.STOP: Severity.FATAL,
}


def routed(state: PlanState, decision: Decision) -> Diagnosis:
    """The last failure as what it leads to. What is tried again is RETRIABLE after the delay."""
    found = _failure(state)
    severity = _SEVERITY.get(decision.target, Severity.RETRIABLE)
    if decision.counter == "retries":
        severity = Severity.RETRIABLE
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
        return Diagnosis(
            FailureType.PLAN_INCOMPLETE,
            cause="rejected",
            user_message="What was planned was not approved.",
            technical_details=f"a person refused the plan{said}"[:_LONGEST],
            classifier="plan",
        )
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        cause=Cause.LIMIT,
        user_message="The work took more than it may.",
        technical_details="a limit of the plan was reached",
        classifier="plan",
    )


def waiting(question: str) -> Diagnosis:
    """Why an attempt ends that waits for a person."""
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        cause="approval",
        severity=Severity.CRITICAL,
        evidence=(Evidence(ASKED, question),),
        user_message="The work waits until somebody approves what is planned.",
        technical_details=question,
        classifier="plan",
    )


def policy(expires_s: float | None) -> FailurePolicy:
    """What is done when an attempt has ended: as the router has said, or a person is asked.

    What the router has not seen (a limit of the run, a check of its result) is for a person.
    """

    def action(context: FailureContext) -> Action:
        diagnosis = context.diagnosis
        last = diagnosis.evidence[-1] if diagnosis.evidence else Evidence("", "")
        if last.rule == ASKED:
            return Suspend(last.text, expires_s=expires_s)
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
    """What all runs of an orchestrator share. selector: None selects all; judge: None asks nobody."""

    registry: Registry
    known: Mapping[str, Known]
    planner: Tool
    selector: Tool | None
    judge: Tool | None
    approval: Approval
    limits: PlanLimits


class PlanAttempt:
    """One attempt at a plan. Nothing but the journal goes from one attempt to the next."""

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
        """The plan made in this attempt, which was validated against these very capabilities."""
        self._request: tuple[object, ApprovalRequest | None] = None, None
        """What must be approved, and for which content that was found."""
        self.state = fold_plan(self._session.events)

    async def run(self, answer: Any) -> Any:
        """Go to the end of the plan: what its last step gave. Raises `Refused` where the attempt ends."""
        self._take_answer(answer)
        self._carry_calls()
        while True:
            if self.state.edited is not None:
                self._adopt(self._validated(self.state.edited.payload), Target.APPROVER)
                continue
            match await self._enter_next():
                case Target.STEP:
                    await self._step()
                case Target.SELECTOR:
                    await self._select()
                case Target.PLANNER:
                    await self._plan()
                case Target.APPROVER:
                    await self._ask()
                case Target.END:
                    done = self.state.done
                    return await self._result(done[-1].step.context_key) if done else None
                case ended:
                    reason = self.state.decisions[-1].reason
                    raise Refused(routed(self.state, Decision(ended, reason=reason)))

    def _add(self, kind: Callable[..., Event], /, **fields: Any) -> None:
        """Write an event down, and apply it."""
        event = self._session.put(kind, **fields)
        self._session.tell(event)
        self.state = self.state.apply(event)

    # Routing --------------------------------------------------------------------------------------

    async def _enter_next(self) -> Target:
        """Decide what is entered next, write it down, and wait as long as that says."""
        state = self.state
        failed = state.pending == "failure"
        decision = self._route(retried=failed, approval=self._approval_request())
        entered = state.at is decision.target and not state.pending
        if not entered and state.ended is None:
            self._enter(decision)
            if decision.delay_s:
                await self._session.config.env.sleep(decision.delay_s)
        return decision.target

    def _route(self, *, retried: bool, approval: ApprovalRequest | None = None) -> Decision:
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

    def _enter(self, decision: Decision) -> None:
        self._add(
            PlanRouted,
            target=decision.target,
            step=decision.step,
            counter=decision.counter,
            reason=decision.reason,
            delay_s=decision.delay_s,
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
        """Write down what failed and where that leads; what ends the attempt, to be raised."""
        info = None if error is None else capture(error)
        if info is not None and info.refused:
            diagnosis = replace(diagnosis, severity=Severity.FATAL)
        self._add(
            PlanFailed, target=target, diagnosis=diagnosis, step=step, error=info, doubt=doubt
        )
        decision = self._route(retried=True)
        if decision.cut:
            failed = f"step {quoted(step)}" if step else f"the {target}"
            logger.warning(
                "run %s: %s is not tried again: %s", self.state.run_id, failed, decision.cut
            )
        if self._development and not decision.target.ends:
            decision = Decision(Target.REPORT, reason="in development nothing is tried again")
        self._enter(decision)
        return Refused(routed(self.state, decision))

    def _raise_unroutable(self, error: Exception) -> None:
        """Raise what is not for the router: an interrupt, and the question of a run inside this one."""
        if (
            self._run.interrupt is not None
            or isinstance(error, TriageSuspendedError)
            or self._session.failed_with(error)
        ):
            raise error

    # Selecting and planning -----------------------------------------------------------------------

    async def _select(self) -> None:
        registry, selector = self._setup.registry, self._setup.selector
        if selector is None:
            self._add(CapabilitiesSelected, names=registry.names)
            return
        request = SelectionRequest(
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
                self._add(CapabilitiesSelected, names=registry.subset(answer).names)
                return
            fault = f"selected what does not exist: {', '.join(map(quoted, unknown[:10]))}"
            kind, cause = FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL
        else:
            fault = f"answered {type(answer).__name__}, not the names of capabilities"
            kind, cause = FailureType.SCHEMA_MISMATCH, Cause.INVALID_RESULT
        diagnosis = Diagnosis(
            kind,
            cause=cause,
            severity=Severity.RECLASSIFICATION,
            user_message="The means for this task could not be chosen.",
            technical_details=f"the selector {fault}",
            hint=f"The selector {fault}. There are: {', '.join(map(quoted, registry.names))}.",
            classifier="plan",
        )
        raise self._failed(Target.SELECTOR, diagnosis, None)

    async def _plan(self) -> None:
        state, registry = self.state, self._setup.registry
        active = registry if state.active is None else registry.subset(state.active)
        request = PlanRequest(
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
        """Ask the planner or the selector; once more only if this has been entered once more."""
        if self._run.replay is not None:
            # A call is known by its request alone, and earlier answers were to other requests.
            tally(self._run).leave()
        try:
            return await record_call(self._run, tool, (request,), {})
        except Exception as error:
            self._raise_unroutable(error)
            raise self._failed(target, diagnosed(error, f"the {target}"), error) from error

    def _validated(self, answer: Any) -> Validation:
        task = self._task if isinstance(self._task, str) else ""
        return validated(answer, self.state, self._setup.registry, self._setup.limits, task)

    def _adopt(self, found: Validation, target: Target) -> None:
        """Make a plan the one that is run, if it can be; a person's that cannot goes back to them."""
        if found.plan is None or not found.ok:
            error = PlanInvalid(issues=[issue.message for issue in found.issues])
            if target is Target.APPROVER and self._setup.approval.mode != ApprovalMode.OFF:
                diagnosis = found.diagnosis()
                self._add(PlanFailed, target=target, diagnosis=diagnosis, error=capture(error))
                return
            raise self._failed(target, found.diagnosis(), error) from error
        for fix in found.fixes:
            logger.info("run %s: %s", self.state.run_id, fix.message)
        version = self.state.version + 1
        plan = dataclasses_replace(found.plan, version=version)
        subject = subject_of(self.state.run_id, "plan", plan)
        self._add(PlanMade, plan=plan.to_json(), version=version, subject=subject)
        self._adopted = self.state.plan

    # Approval -------------------------------------------------------------------------------------

    def _approval_request(self) -> ApprovalRequest | None:
        """What must be approved before the next step; None for nothing."""
        approval, state = self._setup.approval, self.state
        step = state.next_step
        if approval.mode == ApprovalMode.OFF or state.plan is None or step is None:
            return None
        content = state.plan if approval.of == "plan" else step
        if self._request[0] is not content:  # the evaluator is asked once
            self._request = content, request_for(approval, state.run_id, content)
        return self._request[1]

    async def _ask(self) -> NoReturn:
        request = self._approval_request()
        assert request is not None
        failure = self.state.failure
        if failure is not None and failure.target == Target.APPROVER:
            wrong = shortened(failure.diagnosis.technical_details, _MAX_WRONGS)
            edited = f"The edited plan cannot be run: {wrong}. {request.question}"
            request = request._replace(question=edited)
        expires = None
        if self._setup.approval.expires_s is not None:
            expires = await time_of(self._session.config) + self._setup.approval.expires_s
        self._add(
            ApprovalAsked,
            kind=request.kind,
            subject=request.subject,
            question=request.question,
            payload=request.payload,
            expires=expires,
        )
        raise Refused(waiting(request.question))

    def _take_answer(self, answer: Any) -> None:
        """Write down what a person has said since the last attempt."""
        asked = self.state.asked
        if asked is None:
            if answer is None:  # else an attempt whose process ended has written it down
                self._take_refused_call()
            return
        if answer is None:
            answer = self._answer_by_action(asked)
        if answer is None:
            return
        accepted, why = told(asked, answer)
        if accepted is None:
            logger.warning("run %s: an answer does not count: %s", asked.run_id, why)
            return
        self._add(
            ApprovalGiven,
            kind=accepted.kind,
            subject=accepted.subject,
            decision=accepted.decision,
            by=accepted.by,
            reason=accepted.reason,
            payload=accepted.payload,
        )

    def _answer_by_action(self, asked: ApprovalAsked) -> dict[str, Any] | None:
        """Read the answer from the action of a resume, as an agent around this run gives it."""
        resumed = (
            event
            for event in self._session.events[asked.seq + 1 :]
            if isinstance(event, RunResumed)
        )
        request = ApprovalRequest("", asked.run_id, asked.kind, asked.subject)
        match next((event.action for event in resumed), None):
            case Retry(inject=inject) if not inject:
                return request.answer("approved")._asdict()
            case Replan(hint=hint):
                return request.answer("rejected", reason=hint or "")._asdict()
            case _:
                return None

    def _take_refused_call(self) -> None:
        """Write down that a person refused a call of the entered step and wants another plan."""
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
        self._add(PlanFailed, target=Target.STEP, diagnosis=diagnosis, step=state.step)

    # Steps ----------------------------------------------------------------------------------------

    async def _step(self) -> None:
        step = self.state.next_step
        assert step is not None
        key = step.context_key
        known = self._setup.known.get(step.capability.casefold())
        unfit = None if self._adopted is self.state.plan else misfit(step, known)
        if known is None or unfit is not None:
            raise self._failed(Target.STEP, unbegun(unfit or ""), None, key)
        try:
            call = await self._call(step, known)
        except AttemptInterrupted as error:
            self._note_question(key, error)
            raise
        except Exception as error:
            self._note_question(key, error)
            self._raise_unroutable(error)
            diagnosis = known.capability.diagnose(
                error, {"step": key, "objective": step.task_objective, "task": self._task}
            )
            raise self._failed(Target.STEP, diagnosis, error, key) from error
        if self._setup.judge is not None and step.success_criteria.strip():
            await self._judge(self._setup.judge, step, known, call)
        self._add(PlanStepMoved, step=key, status="done", detail=call)

    def _carry_calls(self) -> None:
        """Count the calls of the plan's done steps as met: nobody is asked about them again."""
        if self._run.replay is None or self.state.plan is None:
            return  # the calls of an earlier plan are met only when they are made again
        counted = tally(self._run)
        for done in self.state.done:
            if done.version == self.state.version and done.call:
                tool, _, _ = done.call.rsplit(":", 2)
                counted.carry(self._run, tool, done.call)

    async def _call(self, step: PlannedStep, known: Known) -> str:
        """Call the capability of a step; the key of the call. Raises what it raises."""
        results = {key: await self._result(key) for _, key in step.inputs}
        given = arguments(step, known.takes, results, self._task)
        tool = _by_origin_if_inexact(known, step, given, self.state)
        self._results[step.context_key] = await record_call(self._run, tool, known.owner, given)
        prefix = f"{known.tool.name}:"
        for event in reversed(self._session.events):
            if isinstance(event, CallFinished) and event.key.startswith(prefix):
                return event.key
        return ""

    async def _result(self, key: str) -> Any:
        """What a step has given: at hand, or read back from its call. Raises ResultLost."""
        if key in self._results:
            return self._results[key]
        done = next(done for done in self.state.done if done.step.context_key == key)
        known = self._setup.known.get(done.step.capability.casefold())
        call = self._session.state.calls.get(done.call)
        if known is None or call is None:
            raise UsageError(f"the result of {quoted(key)} is not in the journal")
        try:
            self._results[key] = restored(known.tool, call, self._session.live)
        except ResultLost:
            if not known.capability.repeatable:
                raise
            await self._call(done.step, known)
        return self._results[key]

    async def _judge(self, judge: Tool, step: PlannedStep, known: Known, call: str) -> None:
        """Return where the criteria of a step are met. If not, its effect has happened all the same."""
        key = step.context_key
        outcome = StepOutcome(self._task, step, await self._result(key))
        try:
            args = (call, step.success_criteria, outcome)
            met, why = await record_call(self._run, judge, args, {})
        except Exception as error:
            self._raise_unroutable(error)
            diagnosis = diagnosed(error, "the judge of a step")
            raise self._failed(Target.STEP, diagnosis, error, key) from error
        if not met:
            doubt = not known.capability.repeatable
            raise self._failed(Target.STEP, unmet(step, why), None, key, doubt=doubt)

    def _note_question(self, key: str, error: BaseException) -> None:
        """Write down that the plan ends here: a question about this step's call is asked of nobody.

        Where somebody is asked, the step waits for the answer and has not failed.
        """
        question, diagnosis = self._session.question, self._run.interrupt
        fails = self._session.config.durability.on_in_doubt == "fail"
        if not fails or diagnosis is None or question is None:
            return
        if question.inner or not question.guesses:
            return
        info = capture(error) if isinstance(error, Exception) else None  # else it was not begun
        self._add(
            PlanFailed,
            target=Target.STEP,
            diagnosis=diagnosis,
            step=key,
            error=info,
            doubt=question.doubt,
        )
        self._enter(route(self.state, self._setup.limits))
