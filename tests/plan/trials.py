"""One run of a drawn world as it is seen from outside: what it is told, what it reports, what happened."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from typing import Any

import pytest
from support import FakeEnvironment

import triage
from triage import Severity, TriageError, TriageSuspendedError, UsageError
from triage.core import (
    ApprovalGiven,
    CapabilitiesSelected,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
)
from triage.plan import ExecutionPlan, Orchestrator, PlannedStep, PlanRequest, SelectionRequest

from .actors import Deeds, Planner, Selector, registry
from .worlds import World

RUN = "run-1"
TASK = {"what": "the beam"}
ENDS = ("report", "stop", "end")
ANSWERS = 60
"""A run that was answered so often and has not ended goes round in circles."""
DOUBT = re.compile(r'did (\S+) with \{"n": (\d)')
AGAIN = re.compile(r'(\S+) has completed in this run with .* may it run again with \{"n": (\d)')


class Trial:
    """One run of a world, and what is seen of it from outside."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.abilities = {ability.name: ability for ability in world.abilities}
        self.deeds = Deeds()
        self.events: list[Any] = []
        self.told: list[str] = []
        """What a planner or selector was told that is not so."""
        self.allowed: Counter[tuple[str, int]] = Counter()
        self.answered = 0
        self.env = FakeEnvironment()
        self.planner = Planner(world, self.hears)
        self.selector = Selector(world)
        self.registry = registry(world, self.deeds)
        self.made = Orchestrator(
            self.registry,
            self.planner,
            selector=None if world.selections is None else self._selects,
            limits=world.limits,
            approval=world.approval,
            environment=self.env,
            observers=[self.events.append],
            durability=triage.Durability(on_in_doubt=world.on_in_doubt),
        )

    async def run(self) -> tuple[Any, TriageError | None]:
        """To its end: the result, or the error it ended with."""
        work: Any = partial(self.made.run, TASK, run_id=RUN, background="b")
        while self.answered < ANSWERS:
            try:
                return await work(), None
            except TriageSuspendedError as asked:
                self.reported(asked)
                work = partial(self.made.resume, asked.token, await self._reply(asked))
                self.answered += 1
            except UsageError as refused:
                # A person's edit that cannot be run: the token is still good.
                if "the edited plan cannot be run, and the run still waits" not in str(refused):
                    raise
                work = partial(self.made.resume, work.args[0], triage.approve())
            except TriageError as error:
                self.reported(error)
                return None, error
        pytest.fail("the run does not end")

    async def _reply(self, asked: TriageSuspendedError) -> Any:
        said = self.world.replies[self.answered % len(self.world.replies)]
        doubt, again = DOUBT.match(asked.question), AGAIN.match(asked.question)
        if doubt is not None:
            deed = doubt[1], int(doubt[2])
            happened = self.deeds.effects[deed] > self.completed()[deed]
            result = self.abilities[deed[0]].result(deed[1])
            return triage.happened(result) if happened else triage.rerun()
        if again is not None:
            assert len(self.of(PlanMade)) > 1, "the same plan asks whether it may go on"
            if said != "approve":
                return triage.reject("not again")
            self.allowed[again[1], int(again[2])] += 1
            return triage.approve()
        question = await self.made.asked(RUN)
        assert question is not None, asked.question
        if said == "edit" and question.of == "plan":
            return triage.edit(self._edited(question.arguments))
        return triage.approve() if said == "approve" else triage.reject(f"reason {self.answered}")

    def _edited(self, payload: Any) -> Any:
        """The plan with another number in its first step, or without the step before its last."""
        steps = [dict(one) for one in payload["steps"]]
        if self.answered % 2 and len(steps) > 1:
            del steps[-2]
        elif "n" in steps[0].get("parameters", {}):
            steps[0]["parameters"] = {"n": 1 - steps[0]["parameters"]["n"]}
        return {**payload, "steps": steps}

    def of(self, *kinds: type) -> list[Any]:
        """The events of these types so far."""
        return [one for one in self.events if isinstance(one, kinds)]

    def completed(self) -> Counter[tuple[str, int]]:
        """What the journal knows of as done, each call once."""
        calls = triage.core.fold(self.events).calls.values()
        done = [call for call in calls if call.tool in self.abilities and call.outcome == "done"]
        return Counter((call.tool, call.arguments["n"]) for call in done)

    def in_doubt(self) -> list[Any]:
        """The calls of which nobody knows whether they happened."""
        calls = triage.core.fold(self.events).calls.values()
        return [call for call in calls if call.outcome in ("in_doubt", None)]

    def planned(self) -> dict[str, PlannedStep]:
        """The steps of all plans that were made, by their keys."""
        return {
            step.context_key: step
            for made in self.of(PlanMade)
            for step in ExecutionPlan.from_json(made.plan).steps
        }

    def done(self) -> dict[str, PlannedStep]:
        """The steps that were done, by their keys."""
        steps = self.planned()
        return {one.step: steps[one.step] for one in self.of(PlanStepMoved)}

    def done_by_version(self) -> list[tuple[int, PlannedStep]]:
        """The steps that were done, each with the version of its plan."""
        version, planned = 0, self.planned()
        found: list[tuple[int, PlannedStep]] = []
        for one in self.of(PlanMade, PlanStepMoved):
            if isinstance(one, PlanMade):
                version = one.version
            else:
                found.append((version, planned[one.step]))
        return found

    # What is told ---------------------------------------------------------------------------------

    def hears(self, request: PlanRequest) -> None:
        """What the planner is told is so."""
        done = self.done()
        self._is(request.results.keys() == done.keys(), f"results {request.results}")
        self._is((request.task, request.background) == (TASK, "b"), "the task")
        self._is(request.version == len(self.of(PlanMade)) + 1, f"version {request.version}")
        entered = [one for one in self.of(PlanRouted) if one.target not in ENDS]
        self._is(request.entry == len(entered), f"entry {request.entry}")
        names = {one["name"] for one in request.capabilities}
        active = {*self.of(CapabilitiesSelected)[-1].names, self.world.responds}
        self._is(names == active, f"capabilities {names}")
        self._feedback(request.feedback, done)
        failure = self._failure()
        if self.planner.planted and failure is not None and failure.target == "planner":
            self._is(self.planner.planted in request.feedback, f"planted {self.planner.planted!r}")

    def _selects(self, request: SelectionRequest) -> Any:
        again = [one for one in self.of(PlanRouted) if one.counter == "reclassifications"]
        self._is(request.selection == len(again) + 1, f"selection {request.selection}")
        self._feedback(request.feedback, self.done())
        return self.selector(request)

    def _is(self, holds: bool, what: str) -> None:  # noqa: FBT001 - the law and its name
        if not holds:
            self.told.append(f"{what} is not so (after {len(self.events)} events)")

    def _feedback(self, text: str, done: dict[str, PlannedStep]) -> None:
        lines = text.splitlines()
        used_up = [line for line in lines if line.endswith(": it has happened")]
        for key, step in done.items():
            by = self.abilities.get(step.capability)
            line = f'- "{step.capability}" for "{key}": it has happened'
            safe = by is None or by.repeatable
            self._is((line in used_up) is not safe, f"{'free' if safe else 'used up'} {key}")
            told = [one for one in lines if one.startswith(f'- "{key}"') and "made by" in one]
            self._is(len(told) == 1, f"done {key}")
        self._is(len(used_up) <= len(done), "used up")
        failure, refused = self._failure(), self._refusal()
        if failure is None:
            self._is("What failed" not in text and "not accepted" not in text, "a failure")
        elif failure.target == "step":
            self._is(f'What failed: "{failure.step}"' in text, f"failed {failure.step}")
        else:
            wrong = [
                found for found in failure.diagnosis.evidence if found.rule.startswith("plan.")
            ]
            missing = [found.text for found in wrong if found.text[:100] not in text]
            self._is(not missing, f"issues {missing}")
            self._is(f"What failed: the {failure.target}" in text, f"failed {failure.target}")
        said = "" if refused is None else json.dumps(refused.reason)
        self._is((refused is not None) == ("A person refused the plan." in text), "a refusal")
        self._is(said in text, f"reason {said}")
        if not (failure or refused or done):
            self._is(not text, f"nothing: {text!r}")

    def _failure(self) -> PlanFailed | None:
        """The last failure that was not made good, unless only asking failed."""
        found: PlanFailed | None = None
        for one in self.events:
            if isinstance(one, PlanFailed):
                asking = one.target in ("planner", "selector")
                if not (asking and one.diagnosis.severity is Severity.RETRIABLE):
                    found = one
            elif isinstance(one, PlanMade) or (
                found is not None
                and (
                    (isinstance(one, PlanStepMoved) and one.step == found.step)
                    or (isinstance(one, CapabilitiesSelected) and found.target == "selector")
                )
            ):
                found = None
        return found

    def _refusal(self) -> ApprovalGiven | None:
        """A person's refusal of the last plan."""
        found: ApprovalGiven | None = None
        for one in self.of(PlanMade, ApprovalGiven):
            if isinstance(one, PlanMade):
                found = None
            elif one.decision == "rejected" and one.kind != "call":
                found = one
        return found

    # What is reported -----------------------------------------------------------------------------

    def reported(self, error: TriageError) -> None:
        """Whatever the run ends with has a report that tells what was done, and what was used up."""
        report = error.report
        assert report is not None
        assert report.completeness == "structured"
        assert report.to_markdown("developer").strip()
        counted = {one.name: (one.used, one.limit) for one in report.facts.counters}
        for name, used in self.used().items():
            told = counted[name.removeprefix("total_")]
            assert told == (used, getattr(self.world.limits, name)), name
        done = [step.name for step in report.facts.steps if step.outcome == "done"]
        assert Counter(done) == Counter(step.capability for step in self.done().values())
        known = {one.name for one in report.facts.capabilities}
        assert known == {*self.abilities, self.world.responds}
        if isinstance(error, TriageSuspendedError):
            assert report.facts.question
        else:
            assert report.facts.reason
            failed = [step for step in report.facts.steps if step.outcome == "failed"]
            failure = self._failure()
            if failure is not None and failure.target == "step" and not self._refusal():
                assert failed, "the step that failed"

    def used(self) -> dict[str, int]:
        """What was used up of each limit, counted in the journal."""
        counters = Counter(one.counter for one in self.of(PlanRouted))
        return {
            "total_retries": counters["retries"],
            "replans": counters["replans"],
            "reclassifications": counters["reclassifications"],
            "rejections": counters["rejections"],
            "entries": sum(one.target not in ENDS for one in self.of(PlanRouted)),
        }
