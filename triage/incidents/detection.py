"""Find failures in the runs of a store and in its tasks, and turn failures into incidents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triage.classifiers.base import Classifier
from triage.core.diagnosis import Diagnosis
from triage.core.events import AttemptFailed, Event, RunFinished, RunSuspended
from triage.core.failures import ErrorInfo
from triage.core.redaction import Redactor
from triage.core.taxonomy import Cause, FailureType, Severity
from triage.stores.base import RunInfo

from . import model, playbook
from .journal import Incident

# Deadlocks: who waits for whom in a circle -------------------------------------------------------

Edge = tuple[str, str]
"""(who waits, what for)."""


def cycles(edges: Iterable[Edge]) -> list[tuple[str, ...]]:
    """Find the cycles in who waits for whom.

    Returns one shortest cycle for each strongly connected part, starting with the least name; sorted.
    Linear in the edges, and without recursion, so that no chain is too long.
    """
    graph: dict[str, list[str]] = {}
    for waits, what in sorted(set(edges)):
        graph.setdefault(waits, []).append(what)
        graph.setdefault(what, [])
    found = [
        knot
        for knot in _knots(graph)
        if len(knot) > 1 or next(iter(knot)) in graph[next(iter(knot))]
    ]
    return sorted(_path(graph, knot) for knot in found)


def _knots(graph: dict[str, list[str]]) -> Iterator[set[str]]:
    """The strongly connected parts, by Tarjan's algorithm with an explicit stack."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: dict[str, None] = {}
    for root, first in graph.items():
        if root in index:
            continue
        work = [(root, iter(first))]
        index[root] = low[root] = len(index)
        open_[root] = None
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    open_[other] = None
                    work.append((other, iter(graph[other])))
                    break
                if other in open_:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    knot: set[str] = set()
                    while node not in knot:
                        knot.add(open_.popitem()[0])
                    yield knot


def _path(graph: dict[str, list[str]], knot: set[str]) -> tuple[str, ...]:
    """A shortest cycle through the least name of a strongly connected part."""
    start = min(knot)
    came: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for other in graph[node]:
            if other == start:
                path = [node]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return tuple(reversed(path))
            if other in knot and other not in came:
                came[other] = node
                queue.append(other)
    return tuple(sorted(knot))  # pragma: no cover - every name of a knot is in a cycle


def deadlocks(edges: Iterable[Edge]) -> Iterator[model.Failure]:
    """Yield a failure for each cycle of tasks that wait for each other."""
    for path in cycles(edges):
        around = " waits for ".join((*path, path[0]))
        yield model.Failure(
            source="tasks",
            key=f"cycle:{':'.join(sorted(path))}",
            message=f"Deadlock detected: {around}",
            task_id=path[0],
            status="deadlock",
            lasting=True,
        )


# Runs -----------------------------------------------------------------------------------------------

RUNS = "runs"
FAILED = ("escalated", "aborted", "fatal", "error")
"""Ends of runs that are failures."""
TAIL = 12
"""Events at the end of a journal that are read to learn why a run failed."""
_LEFT = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.PROCESS_DIED, severity=Severity.RETRIABLE)


def key_of_run(run: RunInfo) -> str:
    """Return a key that changes when the run fails anew."""
    match run.status:
        case "running" if run.lease_until is not None:
            return f"lost:{run.run_id}:{run.epoch}"
        case "running":
            return f"left:{run.run_id}:{run.events}"
        case "suspended":
            return f"waits:{run.run_id}:{run.events}"
        case "dead_letter":
            return f"dead:{run.run_id}:{run.epoch}"
        case _:
            return f"ended:{run.run_id}:{run.epoch}"


def failure_of_run(run: RunInfo, events: Sequence[Event], store_now: float) -> model.Failure:
    """Return the failure of a run. events: the end of its journal, empty if it cannot be read."""
    text, diagnosed = _told_by_run(run, events, store_now)
    return model.Failure(
        source=RUNS,
        key=key_of_run(run),
        message=text,
        agent_id=run.run_id,
        agent_type=run.agent,
        run_id=run.run_id,
        status=run.status,
        at=run.updated,
        diagnosed=diagnosed,
    )


def _told_by_run(run: RunInfo, events: Sequence[Event], store_now: float) -> tuple[str, Any]:
    """Return the message of a run's failure, and the diagnosis or cause if known."""
    match run.status:
        case "running" if run.lease_until is not None:
            silent = store_now - run.lease_until
            text = f"Process died: run {run.run_id} lost its owner's lease {silent:.0f} s ago"
            return text, None
        case "running":
            ago = f"{store_now - run.updated:.0f} s ago"
            return f"Run {run.run_id} was given back {ago}, and nobody goes on with it", _LEFT
        case "dead_letter":
            text = f"Run {run.run_id} is a dead letter: too many processes died with it"
            return text, "dead_letter"
        case "suspended":
            asked = next((e for e in reversed(events) if isinstance(e, RunSuspended)), None)
            question = f": {asked.question}" if asked is not None and asked.question else ""
            days = (store_now - run.updated) / 86_400
            text = f"Run {run.run_id} waits for an answer since {days:.1f} days{question}"
            return text, "waits_for_answer"
        case _:
            return _told_by_end(run, events)


def _told_by_end(run: RunInfo, events: Sequence[Event]) -> tuple[str, Diagnosis | None]:
    """Return the error of a run that ended, else that of its last failed attempt."""
    last = events[-1] if events else None
    failed = next((event for event in reversed(events) if isinstance(event, AttemptFailed)), None)
    error = last.error if isinstance(last, RunFinished) else None
    text = ""
    if error is not None:
        text = str(error)
    elif failed is not None:
        text = str(failed.error) if failed.error is not None else ""
    if not text and failed is not None:
        text = failed.diagnosis.technical_details or failed.diagnosis.user_message
    text = text or f"Run {run.run_id} ended as {run.status}"
    return text, None if failed is None else failed.diagnosis


# From a failure to its incident -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Turns failures into incidents to be. Slow, so it runs in a worker thread."""

    classifier: Classifier | None
    redactor: Redactor
    retries: model.Retries

    def draft(self, failure: model.Failure) -> Incident:
        """The incident of a failure, without id and times; its texts are redacted."""
        message = self.text(failure.message) or "no message"
        diagnosis = self._diagnosis(message, failure.diagnosed)
        play = playbook.play_of(diagnosis)
        cause = None if diagnosis.cause is None else model.clean(str(diagnosis.cause), model.MAX_ID)
        task_id, run_id, agent_id = map(
            short_id, (failure.task_id, failure.run_id, failure.agent_id)
        )
        scope = task_id or run_id or short_id(failure.scope) or agent_id or ""
        agent_type = model.clean(failure.agent_type, model.MAX_ID)
        trace = failure.trace
        files = (*failure.files, *model.files_in(message, trace))
        return Incident(
            error_id="",
            fingerprint=model.fingerprint(
                scope, agent_type, diagnosis.failure_type, cause, message
            ),
            scope=scope,
            source=model.clean(failure.source, model.MAX_ID),
            agent_id=agent_id,
            agent_type=agent_type,
            task_id=task_id,
            run_id=run_id,
            message=message,
            failure_type=diagnosis.failure_type,
            cause=cause,
            severity=diagnosis.severity,
            level=play.level or diagnosis.level,
            retryable=play.retryable,
            action=play.action,
            strategy=play.strategy,
            alternative=self.text(playbook.alternative_to(play, diagnosis)),
            max_retries=self.retries.most_for(cause),
            retry_after_s=diagnosis.retry_after_s,
            files=tuple(dict.fromkeys(self.text(name, model.MAX_ID) for name in files))[
                : model.MAX_FILES
            ],
            stack_trace=None if trace is None else self.text(trace, model.MAX_TRACE),
        )

    def text(self, text: str, most: int = model.MAX_MESSAGE) -> str:
        """The text as it is stored: cleaned, capped, redacted."""
        return self.redactor.text(model.clean(text, most))

    def _diagnosis(self, message: str, known: Any) -> Diagnosis:
        if isinstance(known, Diagnosis):
            return known
        if isinstance(known, str):
            return Diagnosis(FailureType.EXTERNAL_FAULT, cause=known, severity=Severity.CRITICAL)
        classifier = self.classifier or playbook.operations_classifier()
        error = known if isinstance(known, ErrorInfo) else None
        try:
            found = playbook.classified(message, error, classifier)
            # Its message may say more than the class of the exception.
            if error is not None and found.failure_type is FailureType.UNKNOWN:
                found = playbook.classified(message, None, classifier)
        except Exception as error:  # a classifier that fails must not lose the incident
            name = type(error).__name__
            return Diagnosis(FailureType.UNKNOWN, technical_details=f"the classifier raised {name}")
        return found


def short_id(text: str | None) -> str | None:
    """An id as it is stored: a long one is cut, and ends in a digest of all of it."""
    if text is None:
        return None
    if len(text) > model.MAX_ID:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        text = f"{text[: model.MAX_ID - 34]}~{digest[:32]}"
    return model.clean(text, model.MAX_ID)
