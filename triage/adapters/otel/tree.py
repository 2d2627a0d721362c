"""Build trees of spans, log events and measurements from the events of runs, as plain values.

`Trees` takes events one by one and returns the spans that each event ends: live traces feed it as runs
record, `tree_of` feeds it whole journals. Every id derives from a run's id and a position in its journal.

    invoke_agent                 one for each process or answer that continues the run
      triage.attempt             one call of the agent's function
        plan, triage.plan.…      stages of a run that plans first
        chat, execute_tool       recorded calls and steps
          invoke_agent           a run inside this run
      triage.recovery            from a failure to the next attempt, with the wait
        triage.compensation
      triage.question            from a suspension to its answer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from triage.core import events
from triage.core.actions import Action
from triage.core.diagnosis import Diagnosis
from triage.core.failures import ErrorInfo
from triage.core.quoting import one_line
from triage.core.state import WITHIN, is_call, is_reused, label_of
from triage.core.steps import NO_USAGE, Step, Usage
from triage.engine.models import MODEL
from triage.strategies.limits import delay_of

from . import names, spans
from .content import Shown, content_json, input_messages, output_messages
from .names import NEWEST, Instrument, Names


class Trees:
    """Builds the trees of runs from their events, in any order of runs but with an outer run begun first.

    content: whether to include prompts, outputs, arguments and results. spelled: the names of a version of
    the conventions. limit: how many runs are built at the same time; beyond that, the oldest is forgotten.
    """

    def __init__(
        self, *, content: bool = False, spelled: Names = NEWEST, limit: int | None = None
    ) -> None:
        self._content, self._names, self._limit = content, spelled, limit
        self._runs: dict[str, _Run] = {}

    def feed(self, event: events.Event) -> list[spans.Told]:
        """Take a run's next event; return what it has ended, inner spans before outer ones.

        An event that was taken before changes nothing.
        """
        run = self._runs.get(event.run_id)
        if run is None:
            if self._limit is not None and len(self._runs) >= self._limit:
                self.forget(next(iter(self._runs)))
            run = self._runs[event.run_id] = _Run(self._around(event), self._content, self._names)
        return run.feed(event)

    def close(self, run_id: str) -> list[spans.Told]:
        """Return the open spans of a run, marked incomplete and ending at its last event."""
        return self._runs[run_id].close()

    def forget(self, run_id: str) -> None:
        """Drop the state of a run."""
        self._runs.pop(run_id, None)

    def _around(self, started: events.Event) -> spans.SpanRef | None:
        """Return the span around a run: that of the call that began it, or of its caller; else None."""
        parent = started.parent if isinstance(started, events.RunStarted) else None
        outer = None if parent is None else self._runs.get(parent)
        if outer is None:
            return spans.caller_of(started)
        call = outer.inside.get(started.run_id) or spans.caller_of(started)
        # Without a call, the outer run did not record this one: its task has no form to identify it by.
        return call or spans.SpanRef(
            outer.trace, spans.span_of(outer.run_id, 0, names.INVOKE_AGENT)
        )


def tree_of(
    journals: Sequence[Sequence[events.Event]], *, content: bool = False, spelled: Names = NEWEST
) -> tuple[list[spans.SpanData], list[spans.LogData]]:
    """Return the spans and log events of runs. Unfinished spans are marked `triage.incomplete`.

    journals: the events of each run, with an outer run before the runs inside it.
    """
    trees = Trees(content=content, spelled=spelled)
    told: list[spans.Told] = []
    for journal in filter(None, journals):
        for event in journal:
            told += trees.feed(event)
        told += trees.close(journal[0].run_id)
    return (
        [one for one in told if isinstance(one, spans.SpanData)],
        [one for one in told if isinstance(one, spans.LogData)],
    )


def operation_of_call(event: events.CallStarted) -> str:
    """Return the GenAI operation of a call."""
    return names.CHAT if event.kind in ("model", "judge") else names.EXECUTE_TOOL


class _Open:
    """A span that has not ended. shown: its name, if that is not the one its id derives from."""

    def __init__(
        self,
        event: events.Event,
        name: str,
        parent: str,
        attributes: dict[str, Any],
        *,
        shown: str = "",
    ) -> None:
        self.seq = event.seq
        self.id = spans.span_of(event.run_id, event.seq, name)
        self.name = shown or name
        self.parent = parent
        self.kind: spans.Kind = "client" if name == names.CHAT else "internal"
        self.start = event.time
        self.attributes = attributes
        self.links: list[spans.Link] = []

    @property
    def asks(self) -> bool:
        """Whether this is the span of a model call."""
        return self.kind == "client"


class _Call(_Open):
    """A recorded call in progress."""

    def __init__(self, event: events.CallStarted, parent: str, attributes: dict[str, Any]) -> None:
        super().__init__(event, operation_of_call(event), parent, attributes)
        self.tool = event.tool
        self.label = label_of(event.tool, event.idempotency_key)
        """How steps made inside the call name it."""


class _Chosen(NamedTuple):
    """The action chosen after a failure, until its outcome is known."""

    failure: str
    action: str


class _Run:
    """Builds the tree of one run.

    around: the span around the run; None gives the run a trace of its own. `inside` holds the spans of the
    calls that began runs inside this one, by the ids of those runs.
    """

    def __init__(self, around: spans.SpanRef | None, content: bool, spelled: Names) -> None:  # noqa: FBT001
        self.trace, self._around = around or ("", "")
        self.run_id = ""
        self.inside: dict[str, spans.SpanRef] = {}
        self._next_seq = 0
        self._shown = Shown(content=content)
        self._line, self._if_shown = self._shown.line, self._shown.json
        self._names = spelled
        self._agent = ""
        self._last = 0.0
        self._lost = 0
        self._told: list[spans.Told] = []
        self._segment: _Open | None = None
        # The `invoke_agent` span before the current one, and whether it belongs to another run.
        self._past: spans.SpanRef | None = None
        self._is_forked = False
        self._attempt: _Open | None = None
        self._recovery: _Open | None = None
        self._question: _Open | None = None
        self._stage: _Open | None = None
        # The unfinished stage that the plan was routed to, and when it began in the current attempt.
        self._routed: events.PlanRouted | None = None
        self._routed_at = 0.0
        self._calls: dict[str, _Call] = {}
        self._steps: dict[str, Step] = {}
        # The span in which each finished call ran, by the call's key.
        self._paid: dict[str, spans.SpanRef] = {}
        # For a fork, the run from which its first events are copied; their spans belong to that run.
        self._origin: events.Origin | None = None
        self._origin_trace = ""
        self._undoing: dict[int, _Open] = {}
        self._failure = ""
        self._chosen: _Chosen | None = None
        self._usage: Usage = NO_USAGE
        self._attempt_usage: Usage = NO_USAGE

    def feed(self, event: events.Event) -> list[spans.Told]:
        self._told = []
        if event.seq < self._next_seq:
            return self._told
        if not self.run_id:
            self.run_id = event.run_id
            self.trace = self.trace or spans.trace_of(event.run_id)
        if event.seq > self._next_seq:
            self._lost += event.seq - self._next_seq
        self._MAPPING[type(event)](self, event)
        self._next_seq = event.seq + 1
        self._last = event.time
        if self._origin is not None and event.seq < self._origin.events:
            self._told = []
            if self._next_seq == self._origin.events:
                self._leave_origin(self._origin)
        return self._told

    def close(self) -> list[spans.Told]:
        if self._origin is not None and self._next_seq < self._origin.events:
            return []  # the open spans are those of the original run
        self._told = []
        for span in (*self._calls.values(), *self._undoing.values(), *self._innermost_first()):
            if span is not None:
                span.attributes[names.INCOMPLETE] = True
        self._cut()
        if self._question is not None:
            self._end(self._question, self._last)
            self._question = None
        return self._told

    def _innermost_first(self) -> tuple[_Open | None, ...]:
        """Return the spans that are open, except calls and compensations."""
        return self._recovery, self._stage, self._attempt, self._segment, self._question

    def _here(self) -> str:
        """Return the id of the innermost of these spans, or else of the one around the run."""
        return next((span.id for span in self._innermost_first() if span), self._around)

    # Output -----------------------------------------------------------------------------------

    def _end(
        self, span: _Open, time: float, *, status: spans.Status = "unset", message: str = ""
    ) -> None:
        start = spans.nanoseconds(span.start)
        given = {names.RUN_ID: self.run_id, names.SEQ: span.seq, **span.attributes}
        self._told.append(
            spans.SpanData(
                self.run_id,
                span.seq,
                self.trace,
                span.id,
                span.parent,
                span.name,
                span.kind,
                start,
                max(start, spans.nanoseconds(time)),
                _known(given),
                tuple(span.links),
                status,
                message if status == "error" else "",
            )
        )

    def _log(
        self, event: events.Event, name: str, given: Mapping[str, Any], severity: str = "INFO"
    ) -> None:
        given = {names.RUN_ID: self.run_id, names.SEQ: event.seq, **given}
        here = self._here()
        self._told.append(
            spans.LogData(
                self.run_id,
                event.seq,
                self.trace if here else "",
                here,
                name,
                spans.nanoseconds(event.time),
                severity,
                _known(given),
            )
        )

    def _measure(
        self, instrument: Instrument, value: float, given: Mapping[str, Any], call: str = ""
    ) -> None:
        known = _known({names.AGENT_NAME: self._line(self._agent), **given})
        self._told.append(spans.Measure(instrument, value, known, call))

    # The run ----------------------------------------------------------------------------------

    def _run_started(self, event: events.RunStarted) -> None:
        self._agent = event.agent
        self._begin_segment(event).attributes |= {
            names.RUN_PARENT: self._line(event.parent or "") or None,
            names.TASK: self._if_shown(event.task),
        }
        if event.origin is not None:
            caller = spans.read_traceparent(event.trace)
            self._origin = event.origin
            self._origin_trace = (
                spans.trace_of(event.origin.run_id) if caller is None else caller.trace
            )

    def _leave_origin(self, origin: events.Origin) -> None:
        """Drop what is open when the copied events of a fork end, since it belongs to the original run."""
        self._segment = self._attempt = self._recovery = self._question = self._stage = None
        self._calls, self._undoing, self.inside = {}, {}, {}
        self._usage = self._attempt_usage = NO_USAGE
        self._chosen = None
        self._past = spans.SpanRef(
            self._origin_trace, spans.span_of(origin.run_id, 0, names.INVOKE_AGENT)
        )
        self._is_forked = True

    def _begin_segment(self, event: events.Event, link: str = "") -> _Open:
        agent = self._line(self._agent)
        given = {names.OPERATION: names.INVOKE_AGENT, names.AGENT_NAME: agent or None}
        shown = f"{names.INVOKE_AGENT} {agent}".rstrip()
        span = _Open(event, names.INVOKE_AGENT, self._around, given, shown=shown)
        if self._past is not None:
            span.links.append(spans.Link(*self._past, "forks" if self._is_forked else link))
            self._is_forked = False
        self._segment = span
        return span

    def _end_segment(
        self, time: float, run_status: str, *, status: spans.Status = "unset", message: str = ""
    ) -> None:
        span, self._segment = self._segment, None
        if span is None:
            return
        span.attributes |= {
            names.RUN_STATUS: run_status,
            **_totals(self._usage),
            names.EVENTS_LOST: self._lost or None,
        }
        self._past = spans.SpanRef(self.trace, span.id)
        self._end(span, time, status=status, message=message)

    def _run_recovered(self, event: events.RunRecovered) -> None:
        """End the spans that the lost process left open; a recovery under way continues in this process."""
        recovering = self._recovery
        self._cut()
        self._answer("asked_anew", event.time)
        self._begin_segment(event, "takes_over")
        if recovering is not None:
            link = spans.Link(self.trace, recovering.id, "goes_on")
            self._begin_recovery(event).links.append(link)

    def _cut(self) -> None:
        """End all open spans of a process at the last event, innermost first."""
        self._end_recovery(self._last, "cut_off")
        self._end_attempt("cut_off", self._last)
        self._end_segment(self._last, "cut_off")

    def _run_suspended(self, event: events.RunSuspended) -> None:
        self._end_recovery(event.time, "suspended")
        self._end_attempt("suspended", event.time)
        self._answer("asked_anew", event.time)
        given = {
            names.QUESTION_DOUBT: event.doubt,
            names.QUESTION_CALL: self._line(event.call or "") or None,
            names.QUESTION_TEXT: self._shown.text(event.question),
        }
        self._question = _Open(event, names.QUESTION, self._here(), given)
        self._end_segment(event.time, "suspended")
        self._measure(names.QUESTIONS, 1, {})

    def _run_resumed(self, event: events.RunResumed) -> None:
        self._cut()  # spans that the answer has begun
        self._answer("answered", event.time)
        self._begin_segment(event, "resumes")
        recovery = self._begin_recovery(event)
        self._choose(recovery, event.action, event.by or "person")

    def _answer(self, outcome: str, time: float) -> None:
        """End the span of the open question, if there is one."""
        span, self._question = self._question, None
        if span is None:
            return
        span.attributes[names.QUESTION_OUTCOME] = outcome
        self._end(span, time)
        self._measure(names.QUESTIONS, -1, {})
        seconds = max(0.0, time - span.start)
        self._measure(names.WAITS, seconds, {names.WAIT_FOR: "person"})

    def _run_finished(self, event: events.RunFinished) -> None:
        done = event.status == "done"
        error = event.error
        self._end_recovery(event.time, event.status)
        self._end_attempt(event.status, event.time, error=error)
        if self._chosen is not None:
            self._settle("recovered" if done else event.status)
        self._answer(event.status, event.time)
        if self._segment is not None:
            self._segment.attributes[names.RUN_BY] = self._line(event.by) or None
            self._segment.attributes[names.RESULT] = self._if_shown(event.result)
            if not done and event.status != "cancelled":
                kind = (error.type_name if error is not None else "") or self._failure
                self._segment.attributes[names.ERROR_TYPE] = self._line(kind or event.status)
        status: spans.Status = "ok" if done else "unset" if event.status == "cancelled" else "error"
        self._end_segment(event.time, event.status, status=status, message=event.status)
        self._measure(names.RUNS, 1, {names.RUN_STATUS: event.status})

    # Attempts and recoveries ------------------------------------------------------------------

    def _attempt_started(self, event: events.AttemptStarted) -> None:
        self._end_recovery(event.time, "proceeded")
        self._end_attempt("cut_off", self._last)
        given = {
            names.ATTEMPT_NUMBER: event.attempt,
            names.ATTEMPT_TOLD: event.hint is not None or event.subgoal is not None,
            names.ATTEMPT_HINT: self._shown.text(event.hint),
            names.RETURNS_TO: event.returns_to,
        }
        self._attempt = _Open(event, names.ATTEMPT, self._here(), given)
        self._attempt_usage = NO_USAGE
        self._routed_at = event.time

    def _end_attempt(
        self, outcome: str, time: float, *, error: ErrorInfo | None = None, failure: str = ""
    ) -> None:
        """End the attempt and the spans open in it."""
        for call in self._calls.values():
            call.attributes[names.CALL_OUTCOME] = "cut_off"
            self._end(call, time)
        self._calls = {}
        self._end_stage(time)
        span, self._attempt = self._attempt, None
        if span is None:
            return
        failed = outcome not in ("done", "suspended", "cut_off", "cancelled")
        span.attributes |= {names.ATTEMPT_OUTCOME: outcome, **_totals(self._attempt_usage)}
        if failed:
            kind = (error.type_name if error is not None else "") or failure or outcome
            span.attributes[names.ERROR_TYPE] = self._line(kind)
        self._end(span, time, status="error" if failed else "unset", message=failure)
        self._measure(names.ATTEMPTS, 1, {names.ATTEMPT_OUTCOME: outcome})

    def _attempt_failed(self, event: events.AttemptFailed) -> None:
        diagnosis = event.diagnosis
        self._failure = diagnosis.failure_type.value
        self._evaluate(event, event.error, diagnosis)
        self._end_attempt("failed", event.time, error=event.error, failure=self._failure)
        self._settle("failed")
        self._end_recovery(event.time, "cut_off")
        self._begin_recovery(event).attributes |= _of_diagnosis(diagnosis)

    def _evaluate(self, event: events.Event, error: ErrorInfo | None, diagnosis: Diagnosis) -> None:
        """Add a log event with the diagnosis of a failure."""
        given: dict[str, Any] = {
            names.EVALUATION_NAME: "triage.diagnosis",
            names.EVALUATION_LABEL: diagnosis.failure_type.value,
            names.EVALUATION_SCORE: diagnosis.confidence,
            **_of_diagnosis(diagnosis),
        }
        if error is not None:
            given[names.ERROR_TYPE] = given[names.EXCEPTION_TYPE] = self._line(error.type_name)
            given[names.EXCEPTION_MESSAGE] = self._line(error.message)
        else:
            given[names.ERROR_TYPE] = diagnosis.failure_type.value
        if self._shown.content:
            told = diagnosis.technical_details or diagnosis.user_message
            given[names.EVALUATION_EXPLANATION] = self._line(told) or None
            given[names.FAILURE_EVIDENCE] = [
                self._line(f"{seen.rule}: {seen.text}") for seen in diagnosis.evidence
            ] or None
        self._log(event, self._names.evaluation, given, "ERROR")

    def _begin_recovery(self, event: events.Event) -> _Open:
        self._recovery = _Open(event, names.RECOVERY, self._here(), {})
        return self._recovery

    def _action_chosen(self, event: events.ActionChosen) -> None:
        recovery = self._recovery or self._begin_recovery(event)
        self._choose(recovery, event.action, event.by or "policy", self._shown.text(event.reason))

    def _choose(self, recovery: _Open, action: Action, by: str, reason: str | None = None) -> None:
        delay = delay_of(action)
        recovery.attributes |= {
            names.ACTION: action.kind,
            names.ACTION_BY: self._line(by),
            names.ACTION_REASON: reason,
            names.DELAY: delay or None,
        }
        self._chosen = _Chosen(self._failure, action.kind)
        if delay:
            self._measure(names.WAITS, delay, {names.WAIT_FOR: "backoff"})

    def _end_recovery(self, time: float, outcome: str) -> None:
        for undoing in self._undoing.values():
            self._end(undoing, time)
        self._undoing = {}
        span, self._recovery = self._recovery, None
        if span is None:
            return
        span.attributes[names.RECOVERY_OUTCOME] = outcome
        self._end(span, time)
        if outcome == "suspended":
            self._settle(outcome)

    def _settle(self, outcome: str) -> None:
        """Count the outcome of the last action, once it is known."""
        chosen, self._chosen = self._chosen, None
        if chosen is not None:
            given = {
                names.FAILURE_TYPE: chosen.failure or None,
                names.ACTION: chosen.action,
                names.RECOVERY_OUTCOME: outcome,
            }
            self._measure(names.RECOVERIES, 1, given)

    # Calls and steps --------------------------------------------------------------------------

    def _call_started(self, event: events.CallStarted) -> None:
        if event.keyed and event.key in self._calls:
            return  # already begun; the tool has now taken the idempotency key
        self._enter_stage(event)
        kind = event.kind or ("tool" if event.run is None else "run")
        given = {
            names.OPERATION: operation_of_call(event),
            names.CALL_NAME: self._line(event.tool),
            names.CALL_KEY: self._line(event.key),
            names.CALL_KIND: self._line(kind),
            names.CALL_EFFECT: self._line(event.effect),
            names.CALL_RUN: self._line(event.run) if event.run is not None else None,
        }
        span = _Call(event, self._here(), given)
        self._name_call(span, event.tool, event.arguments)
        if not span.asks:
            span.attributes[names.TOOL_ARGUMENTS] = self._if_shown(event.arguments)
        if event.run is not None:
            self.inside.setdefault(event.run, spans.SpanRef(self.trace, span.id))
        self._calls[event.key] = span

    def _name_call(self, span: _Open, tool: str, about: Any) -> None:
        """Name a call after the model or the tool. about: its arguments, or its step's metadata."""
        if not span.asks:
            span.name = f"{names.EXECUTE_TOOL} {self._line(tool)}"
            span.attributes |= {names.TOOL_NAME: self._line(tool), names.TOOL_TYPE: "function"}
            return
        model = about.get(MODEL) if isinstance(about, Mapping) else None
        # If the model is unknown, its place holds the name of the function that asks it.
        if isinstance(model, str) and model not in ("", tool):
            span.name = f"{names.CHAT} {self._line(model)}"
            span.attributes[names.REQUEST_MODEL] = self._line(model)
        provider = names.PROVIDERS.get(tool.partition(" ")[0])
        if provider is not None:
            span.attributes[self._names.provider] = provider

    def _step_recorded(self, event: events.StepRecorded) -> None:
        self._enter_stage(event)
        step = event.step
        if is_call(step) and step.metadata is not None:
            self._steps[str(step.metadata["call"])] = step  # the call's end comes next
            return
        asks = step.tool_called is None and (step.llm_output is not None or step.usage is not None)
        operation = names.CHAT if asks else names.EXECUTE_TOOL
        if not asks and step.tool_called is None:
            operation = names.STEP
        end = event.time if step.timestamp is None else step.timestamp
        given = {names.STEP_ACTION: self._line(step.action) or None, names.CALL_EFFECT: step.effect}
        span = _Open(event, operation, self._here(), given)
        span.start = end - (step.duration_s or 0.0)
        if operation != names.STEP:
            span.attributes[names.OPERATION] = operation
            self._name_call(span, step.tool_called or "", step.metadata)
        self._describe(span, step)
        self._end_call(span, end, step)

    def _describe(self, span: _Open, step: Step, result: Any = None) -> None:
        """Add a step's usage to its span, and its input and output if content is wanted.

        result: the result of a model call, used if the step has no words or calls.
        """
        given = span.attributes
        metadata = step.metadata or {}
        within = metadata.get(WITHIN)
        for call in self._calls.values():
            if call.label == within:
                span.parent = call.id
        tries = metadata.get("tries")
        if isinstance(tries, list) and tries:
            given[names.CALL_TRIES] = len(tries) + 1
        if isinstance(metadata.get("id"), str):
            given[names.TOOL_CALL_ID] = self._line(metadata["id"])
        usage = step.usage
        if usage is not None and not is_reused(metadata):
            given |= {
                names.INPUT_TOKENS: usage.input_tokens,
                names.OUTPUT_TOKENS: usage.output_tokens,
                names.COST: usage.cost_usd,
                names.RESPONSE_MODEL: self._line(usage.model or "") or None,
            }
            self._use(usage, span)
        if not self._shown.content:
            return
        if span.asks:
            given[names.INPUT_MESSAGES] = content_json(input_messages(step.tool_input))
            given[names.OUTPUT_MESSAGES] = content_json(output_messages(step, result))
        elif step.tool_called is None:
            given[names.STEP_INPUT] = self._if_shown(step.tool_input)
            given[names.STEP_OUTPUT] = self._if_shown(step.tool_output)
        else:
            given.setdefault(names.TOOL_ARGUMENTS, self._if_shown(step.tool_input))
            given[names.TOOL_RESULT] = self._if_shown(step.tool_output)

    def _end_call(self, span: _Open, time: float, step: Step | None) -> None:
        failed = step is not None and (step.error is not None or step.exception_type is not None)
        if failed and step is not None:
            span.attributes[names.ERROR_TYPE] = self._line(step.exception_type or "") or "_OTHER"
        self._end(
            span,
            time,
            status="error" if failed else "unset",
            message="" if step is None else self._line(step.error or ""),
        )

    def _call_finished(self, event: events.CallFinished) -> None:
        step = self._steps.pop(event.key, None)
        span = self._calls.pop(event.key, None)
        if event.replayed:
            self._call_reused(event, step)
            return
        if span is None:
            # A person has answered how a call in doubt ended.
            given = {
                names.CALL_KEY: self._line(event.key),
                names.CALL_OUTCOME: self._line(event.outcome),
            }
            self._log(event, "triage.call.answered", given)
            return
        span.attributes[names.CALL_OUTCOME] = self._line(event.outcome)
        if event.effect:
            span.attributes[names.CALL_EFFECT] = self._line(event.effect)
        if step is not None:
            if span.asks:
                self._name_call(span, span.tool, step.metadata)
            self._describe(span, step, event.result)
        if event.outcome == "done":
            self._pay(event.key, span)
        error = event.error
        if error is not None and (step is None or step.error is None):
            step = Step(error=error.message, exception_type=error.type_name)
        self._end_call(span, event.time, step)

    def _pay(self, key: str, span: _Call) -> None:
        """Remember the span in which a call ran, which for a copied call is in the original run's trace."""
        origin = self._origin
        if origin is None or span.seq >= origin.events:
            self._paid[key] = spans.SpanRef(self.trace, span.id)
        elif span.seq <= origin.at:
            operation = span.attributes[names.OPERATION]
            there = spans.span_of(origin.run_id, span.seq, operation)
            self._paid[key] = spans.SpanRef(self._origin_trace, there)

    def _call_reused(self, event: events.CallFinished, step: Step | None) -> None:
        """Add a span of no length for a reused result, linked to the call that paid for it."""
        tool = event.key.rsplit(":", 2)[0]
        asks = step is not None and step.tool_called is None
        operation = names.CHAT if asks else names.EXECUTE_TOOL
        given = {
            names.OPERATION: operation,
            names.CALL_NAME: self._line(tool),
            names.CALL_KEY: self._line(event.key),
            names.CALL_REUSED: True,
            names.CALL_OUTCOME: self._line(event.outcome),
        }
        span = _Open(event, operation, self._here(), given)
        kind = "model" if asks else "tool"
        self._name_call(span, tool, None if step is None else step.metadata)
        if step is not None:
            run = (step.metadata or {}).get("run")
            if isinstance(run, str):
                kind = "run"
                span.attributes[names.CALL_RUN] = self._line(run)
            self._describe(span, step)
        span.attributes[names.CALL_KIND] = kind
        paid = self._paid.get(event.key)
        if paid is not None:
            span.links.append(spans.Link(*paid, "paid_by"))
        self._end_call(span, event.time, step)
        self._measure(names.REUSED, 1, {names.CALL_KIND: kind})

    def _usage_recorded(self, event: events.UsageRecorded) -> None:
        if event.run is None:
            self._use(event.usage, None)
        else:  # measured by a run inside this one; only the totals include it
            self._usage = self._usage.plus(event.usage)
            self._attempt_usage = self._attempt_usage.plus(event.usage)

    def _use(self, usage: Usage, span: _Open | None) -> None:
        self._usage = self._usage.plus(usage)
        self._attempt_usage = self._attempt_usage.plus(usage)
        about = {names.RESPONSE_MODEL: self._line(usage.model or "") or None}
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if not count:
                continue
            by_kind = {**about, names.TOKEN_TYPE: kind}
            self._measure(names.TOKENS, count, by_kind)
            if span is not None:
                known = {
                    name: span.attributes.get(name)
                    for name in (names.OPERATION, names.REQUEST_MODEL, self._names.provider)
                }
                self._measure(names.TOKEN_USAGE, count, {**by_kind, **known}, span.id)
        if usage.cost_usd:
            self._measure(names.COSTS, usage.cost_usd, about)

    # Compensation -----------------------------------------------------------------------------

    def _compensator_ran(self, event: events.CompensatorRan) -> None:
        span = self._undoing.pop(event.registered, None)
        if event.begins or span is None:
            if span is not None:
                self._end(span, self._last)
            given = {
                names.COMPENSATOR: self._line(event.name),
                names.CALL_KEY: self._line(event.key),
            }
            span = _Open(event, names.COMPENSATION, self._here(), given)
        if event.begins:
            self._undoing[event.registered] = span
            return
        error = event.error
        step = None if error is None else Step(error=error.message, exception_type=error.type_name)
        self._end_call(span, event.time, step)

    # Plans ------------------------------------------------------------------------------------

    def _plan_routed(self, event: events.PlanRouted) -> None:
        self._leave_stage(event.time)
        if event.target == "planner" or event.target in names.PLAN_STAGES:
            self._routed, self._routed_at = event, event.time
        else:
            self._log(event, "triage.plan.routed", self._route(event))
        if event.delay_s:
            self._measure(names.WAITS, event.delay_s, {names.WAIT_FOR: "backoff"})

    def _route(self, event: events.PlanRouted) -> dict[str, Any]:
        return {
            names.PLAN_TARGET: self._line(event.target),
            names.PLAN_STEP: self._line(event.step) or None,
            names.PLAN_REASON: self._shown.text(event.reason),
            names.DELAY: event.delay_s or None,
        }

    def _enter_stage(self, event: events.Event) -> None:
        """Begin the span of the stage that the plan was routed to, at the first event of the stage.

        A failed plan is routed before its attempt ends, and enters the stage in the next attempt.
        """
        route = self._routed
        if route is None or self._stage is not None or self._attempt is None:
            return
        planning = route.target == "planner"
        name = self._names.plan if planning else names.PLAN_STAGES[route.target]
        agent = self._line(self._agent)
        given = self._route(route)
        if planning:
            given |= {names.OPERATION: name, names.AGENT_NAME: agent or None}
        shown = f"{name} {agent}".rstrip() if planning else name
        span = _Open(event, name, self._here(), given, shown=shown)
        span.start = self._routed_at
        self._stage = span

    def _end_stage(self, time: float, error: str = "") -> None:
        """End the span of a stage. The stage itself may continue in another attempt."""
        span, self._stage = self._stage, None
        if span is None:
            return
        if error:
            span.attributes[names.ERROR_TYPE] = self._line(error)
        self._end(span, time, status="error" if error else "unset", message=self._line(error))

    def _leave_stage(self, time: float, error: str = "") -> None:
        self._end_stage(time, error)
        self._routed = None

    def _capabilities_selected(self, event: events.CapabilitiesSelected) -> None:
        self._enter_stage(event)
        given = {"triage.plan.capabilities": [self._line(name) for name in event.names]}
        self._log(event, "triage.plan.capabilities_selected", given)
        self._leave_stage(event.time)

    def _plan_made(self, event: events.PlanMade) -> None:
        self._enter_stage(event)
        if self._stage is not None:
            self._stage.attributes |= {
                names.PLAN_VERSION: event.version,
                names.PLAN_CONTENT: self._if_shown(event.plan),
            }
        self._log(event, "triage.plan.made", {names.PLAN_VERSION: event.version})
        self._leave_stage(event.time)

    def _plan_failed(self, event: events.PlanFailed) -> None:
        self._enter_stage(event)
        self._evaluate(event, event.error, event.diagnosis)
        error = event.error
        kind = event.diagnosis.failure_type.value
        self._leave_stage(event.time, kind if error is None else error.type_name or kind)

    def _plan_step_moved(self, event: events.PlanStepMoved) -> None:
        self._enter_stage(event)
        given = {
            names.PLAN_STEP: self._line(event.step),
            "triage.plan.step.status": self._line(event.status),
        }
        self._log(event, "triage.plan.step_moved", given)
        if event.status != "started":
            self._leave_stage(event.time)

    # Log events -------------------------------------------------------------------------------

    def _state_updated(self, event: events.StateUpdated) -> None:
        given = {
            "triage.state.keys": [self._line(str(name)) for name in event.values],
            "triage.state.values": self._if_shown(event.values),
        }
        self._log(event, "triage.state.updated", given)

    def _watch_noticed(self, event: events.WatchNoticed) -> None:
        given = {
            "triage.watch.rule": self._line(event.rule),
            "triage.watch.response": self._line(event.response),
            "triage.watch.step": event.step,
            "triage.watch.text": self._shown.text(event.text),
        }
        self._log(event, "triage.watch.noticed", given, "WARN")

    def _subgoals_declared(self, event: events.SubgoalsDeclared) -> None:
        given: dict[str, Any] = {"triage.subgoal.count": len(event.names)}
        if self._shown.content:
            given["triage.subgoal.names"] = [self._line(name) for name in event.names]
        self._log(event, "triage.subgoals.declared", given)

    def _subgoal_completed(self, event: events.SubgoalCompleted) -> None:
        given = {"triage.subgoal.name": self._shown.text(event.name)}
        self._log(event, "triage.subgoal.completed", given)

    def _compensator_registered(self, event: events.CompensatorRegistered) -> None:
        given = {
            names.COMPENSATOR: self._line(event.name),
            names.CALL_KEY: self._line(event.key),
        }
        self._log(event, "triage.compensator.registered", given)

    def _approval_asked(self, event: events.ApprovalAsked) -> None:
        self._enter_stage(event)
        given = {
            "triage.approval.kind": self._line(event.kind),
            "triage.approval.subject": self._line(event.subject),
            names.QUESTION_TEXT: self._shown.text(event.question),
        }
        self._log(event, "triage.approval.asked", given)

    def _approval_given(self, event: events.ApprovalGiven) -> None:
        given = {
            "triage.approval.kind": self._line(event.kind),
            "triage.approval.subject": self._line(event.subject),
            "triage.approval.decision": self._line(event.decision),
            "triage.approval.by": self._line(event.by) or None,
            "triage.approval.reason": self._shown.text(event.reason),
        }
        self._log(event, "triage.approval.given", given)

    _MAPPING: ClassVar[dict[type, Callable[[_Run, Any], None]]] = {
        events.RunStarted: _run_started,
        events.AttemptStarted: _attempt_started,
        events.StepRecorded: _step_recorded,
        events.StateUpdated: _state_updated,
        events.UsageRecorded: _usage_recorded,
        events.CallStarted: _call_started,
        events.CallFinished: _call_finished,
        events.WatchNoticed: _watch_noticed,
        events.SubgoalsDeclared: _subgoals_declared,
        events.SubgoalCompleted: _subgoal_completed,
        events.CompensatorRegistered: _compensator_registered,
        events.CompensatorRan: _compensator_ran,
        events.AttemptFailed: _attempt_failed,
        events.ActionChosen: _action_chosen,
        events.CapabilitiesSelected: _capabilities_selected,
        events.PlanMade: _plan_made,
        events.PlanRouted: _plan_routed,
        events.PlanFailed: _plan_failed,
        events.PlanStepMoved: _plan_step_moved,
        events.ApprovalAsked: _approval_asked,
        events.ApprovalGiven: _approval_given,
        events.RunSuspended: _run_suspended,
        events.RunResumed: _run_resumed,
        events.RunRecovered: _run_recovered,
        events.RunFinished: _run_finished,
    }


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are not None."""
    return {name: value for name, value in given.items() if value is not None}


def _of_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        names.FAILURE_TYPE: diagnosis.failure_type.value,
        names.FAILURE_CAUSE: one_line(str(diagnosis.cause))
        if diagnosis.cause is not None
        else None,
        names.FAILURE_SEVERITY: str(diagnosis.severity),
        names.FAILURE_LEVEL: str(diagnosis.level),
        names.FAILURE_STEP: diagnosis.critical_step,
        names.FAILURE_BY: one_line(diagnosis.classifier) or None,
    }


def _totals(used: Usage) -> dict[str, Any]:
    """Return the attributes of what a run or an attempt has used."""
    return {
        names.TOTAL_INPUT: used.input_tokens or None,
        names.TOTAL_OUTPUT: used.output_tokens or None,
        names.COST: used.cost_usd,
    }
