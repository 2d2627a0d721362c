"""Is this plan one that can be run? All that is wrong with it is found at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from triage._options import misuse
from triage.taxonomy import Severity

from ._capability import Capability
from ._given import misfits, takes
from ._issues import Fix, Issue, IssueCode, Validation
from ._limits import LIMITS, PlanLimits
from ._plan import ExecutionPlan, Input, PlannedStep
from ._read import Fault, read
from ._registry import Registry, output_of
from ._words import closest, quoted, suggested


def validate(
    plan: object,
    registry: Registry,
    context: Mapping[str, str | None] | None = None,
    *,
    active: Iterable[str] | None = None,
    task: str = "",
    limits: PlanLimits = LIMITS,
) -> Validation:
    """Everything that is wrong with a plan, and the plan as it can be run.

    plan: an `ExecutionPlan`, its JSON object, the text of one, or whatever a planner answered; nothing
    that it is makes this raise. registry: all capabilities there are. context: results that are there
    already, key to type, None where the type is not known. active: names of those a plan may use, None
    for all; what responds always may be used. task: what the user asked, quoted in a response that is
    appended. limits: `steps` is the most a plan may have, an appended response included; no more are looked
    at.

    What is fixed is said: a response is appended where a plan does not end in one and there is a
    capability that responds; names are written as registered; unknown fields are left out. The plan
    that was given is never changed. Raises UsageError for a registry or a name in `active` that is none.
    """
    if not isinstance(registry, Registry):
        raise misuse("validate() registry", registry, "a Registry")
    if not isinstance(limits, PlanLimits):
        raise misuse("validate() limits", limits, "a PlanLimits")
    if context is not None and not isinstance(context, Mapping):
        raise misuse("validate() context", context, "a mapping of keys to types, or None")
    usable = registry if active is None else registry.subset(active)
    reading = read(plan)
    walk = _Walk(registry, usable, dict(context or {}))
    walk.take(reading.faults)
    walk.check(reading.steps, limits.steps)
    fixed = None if walk.lossy else walk.finished(task)
    count = len(reading.steps if fixed is None else fixed)
    if count > limits.steps:
        message = f"plan: has {count} steps with its response; at most {limits.steps} are allowed"
        walk.add(IssueCode.TOO_MANY_STEPS, message)
    return Validation(
        None if fixed is None else ExecutionPlan(fixed, reading.version),
        tuple(sorted(walk.issues, key=lambda issue: -1 if issue.step is None else issue.step)),
        tuple(walk.fixes),
        tuple(walk.outside),
        tuple(walk.invented),
    )


class _Walk:
    """One pass over the steps: what is known at each, and what was found."""

    def __init__(
        self, registry: Registry, usable: Registry, context: dict[str, str | None]
    ) -> None:
        self.registry = registry
        self.usable = usable
        self.known = dict(context)
        """Results that are there for the step that is looked at, key to type."""
        self.issues: list[Issue] = []
        self.fixes: list[Fix] = []
        self.outside: dict[str, None] = {}
        self.invented: dict[str, None] = {}
        self.lossy = False
        self.made: list[PlannedStep] = []
        self._seen: set[tuple[int | None, str]] = set()
        self._later: dict[str, int] = {}
        self._looked_for = 0

    def add(
        self,
        code: IssueCode,
        message: str,
        step: int | None = None,
        field: str = "",
        nearest: str | None = None,
        severity: Severity = Severity.REPLANNING,
    ) -> None:
        """Note what is wrong."""
        self.issues.append(Issue(code, severity, message, step, field, nearest))

    def take(self, faults: tuple[Fault, ...]) -> None:
        """Faults of the form are issues, but for a field that can be left out."""
        for fault in faults:
            if fault.harmless:
                self.fixes.append(
                    Fix("ignored_field", f"{fault.message}; it is ignored", fault.step)
                )
                continue
            self.lossy = True
            self._seen.add((fault.step, fault.field))
            code = IssueCode(fault.code)
            self.add(code, fault.message, fault.step, fault.field, fault.nearest)

    def check(self, steps: tuple[PlannedStep | None, ...], most: int) -> None:
        """Look at every step in order, as long as there are not far too many."""
        if not steps and (None, "steps") not in self._seen and not self.lossy:
            self.add(IssueCode.EMPTY_PLAN, "plan: has no steps", field="steps")
        for at, step in enumerate(steps):
            if step is not None and step.context_key.strip():
                self._later.setdefault(step.context_key, at)
        for at, step in enumerate(steps):
            if step is None:
                continue
            if at >= most:
                self.made.append(step)
                continue
            found, written = self._capability(at, step)
            if found is not None and found.responds and at < len(steps) - 1:
                message = (
                    f"steps[{at}].capability: {quoted(found.name)} ends a plan, and "
                    f"{len(steps) - 1 - at} more follow"
                )
                self.add(IssueCode.EARLY_RESPONSE, message, at, "capability")
            self._inputs(at, step)
            if found is not None:
                self._requirements(at, step, found)
                self._parameters(at, step, found)
            self._result(at, step, found)
            self.made.append(written)

    def _capability(self, at: int, step: PlannedStep) -> tuple[Capability | None, PlannedStep]:
        name = step.capability
        place = f"steps[{at}].capability"
        if not name.strip():
            if (at, "capability") not in self._seen:
                self.add(IssueCode.BLANK_CAPABILITY, f"{place}: is blank", at, "capability")
            return None, step
        found = self.registry.get(name)
        if found is None:
            self.invented[name] = None
            near = self._near(name, self.usable.names, self.registry.names)
            message = f"{place}: there is no capability {quoted(name)}{suggested(near)}"
            self.add(IssueCode.UNKNOWN_CAPABILITY, message, at, "capability", near)
            return None, step
        if found.name not in self.usable:
            self.outside[found.name] = None
            message = (
                f"{place}: {quoted(found.name)} exists and is not among the active capabilities"
            )
            self.add(
                IssueCode.INACTIVE_CAPABILITY,
                message,
                at,
                "capability",
                severity=Severity.RECLASSIFICATION,
            )
        if found.name != name:
            message = f"{place}: {quoted(name)} is written {quoted(found.name)}"
            self.fixes.append(Fix("spelling", message, at))
            step = replace(step, capability=found.name)
        return found, step

    def _near(self, name: str, *among: Iterable[str]) -> str | None:
        """The nearest name of the first of these that have one; looked for so often only."""
        if self._looked_for >= _MOST_LOOKED_FOR:
            return None
        self._looked_for += 1
        found = (closest(name, names) for names in among)
        return next((near for near in found if near is not None), None)

    def _inputs(self, at: int, step: PlannedStep) -> None:
        for number, (kind, key) in enumerate(step.inputs):
            place = f"steps[{at}].inputs[{number}]"
            if key in self.known:
                there = self.known[key]
                if there is not None and there != kind:
                    message = (
                        f"{place}: {quoted(key)} is of type {quoted(there)}, not {quoted(kind)}"
                    )
                    self.add(IssueCode.INPUT_TYPE, message, at, "inputs", there)
            elif key == step.context_key:
                message = f"{place}: {quoted(key)} is the result of this very step"
                self.add(IssueCode.SELF_REFERENCE, message, at, "inputs")
            elif self._later.get(key, -1) > at:
                message = f"{place}: {quoted(key)} is there only after steps[{self._later[key]}]"
                self.add(IssueCode.FORWARD_REFERENCE, message, at, "inputs")
            else:
                near = self._near(key, self.known)
                message = f"{place}: nothing is kept under {quoted(key)}{suggested(near)}"
                self.add(IssueCode.UNKNOWN_REFERENCE, message, at, "inputs", near)

    def _requirements(self, at: int, step: PlannedStep, found: Capability) -> None:
        given = {kind for kind, _ in step.inputs}
        for kind in found.requires:
            if kind in given:
                continue
            name, severity = quoted(found.name), Severity.REPLANNING
            message = f"steps[{at}].inputs: {name} needs an input of type {quoted(kind)}"
            key = next((key for key, there in self.known.items() if there == kind), None)
            outside = [known.name for known in self._outsiders(kind)]
            if key is not None:
                message += f"; {quoted(key)} is one"
            elif self.usable.providers(kind):
                names = ", ".join(quoted(known.name) for known in self.usable.providers(kind)[:3])
                message += f"; a step before it can provide one with {names}"
            elif outside:
                names = ", ".join(map(quoted, outside[:3]))
                message += f", which only {names} provides, and that is not active"
                self.outside |= dict.fromkeys(outside)
                severity = Severity.RECLASSIFICATION
            self.add(IssueCode.MISSING_REQUIREMENT, message, at, "inputs", key, severity)

    def _parameters(self, at: int, step: PlannedStep, found: Capability) -> None:
        known = takes(found.function)
        unknown, missing = misfits(step, known)
        for name in unknown:
            near = self._near(name, known.told)
            message = f"steps[{at}].parameters: {quoted(found.name)} takes no {quoted(name)}"
            code = IssueCode.UNKNOWN_PARAMETER
            self.add(code, message + suggested(near), at, "parameters", near)
        wired = {kind.lower() for kind in found.requires}
        for name in missing:
            if name not in wired:  # else the requirement has been told already
                message = f"steps[{at}].parameters: {quoted(found.name)} needs {quoted(name)}"
                self.add(IssueCode.MISSING_PARAMETER, message, at, "parameters", name)

    def _outsiders(self, kind: str) -> Iterator[Capability]:
        return (known for known in self.registry.providers(kind) if known.name not in self.usable)

    def _result(self, at: int, step: PlannedStep, found: Capability | None) -> None:
        key = step.context_key
        kind = output_of(step, found)
        if not key.strip():
            if (at, "context_key") not in self._seen:
                self.add(
                    IssueCode.BLANK_KEY, f"steps[{at}].context_key: is blank", at, "context_key"
                )
            return
        if key in self.known:
            message = f"steps[{at}].context_key: a result is kept under {quoted(key)} already"
            self.add(IssueCode.DUPLICATE_KEY, message, at, "context_key")
        provided = () if found is None else found.provides
        if found is not None and provided and kind is not None and kind not in provided:
            near = self._near(kind, provided)
            names = ", ".join(map(quoted, provided))
            message = (
                f"steps[{at}].expected_output: {quoted(found.name)} provides {names}, not "
                f"{quoted(kind)}"
            )
            self.add(IssueCode.OUTPUT_TYPE, message, at, "expected_output", near)
        self.known[key] = kind

    def finished(self, task: str) -> tuple[PlannedStep, ...]:
        """The steps with a response at their end."""
        steps = tuple(self.made)
        responder = self.registry.responder
        last = self.registry.get(steps[-1].capability) if steps else None
        if not steps or responder is None or (last is not None and last.responds):
            return steps
        key = "user_response"
        while key in self.known:
            key += "_"
        read = {item.key for step in steps for item in step.inputs}
        unread = dict.fromkeys(step.context_key for step in steps)
        inputs = tuple(
            Input(kind, name)
            for name in unread
            if name not in read and (kind := self.known.get(name)) is not None
        )
        asked = f"Respond to the user's request: {quoted(task, 500)}" if task else "Respond"
        added = PlannedStep(
            key, responder.name, asked, expected_output=output_of(None, responder), inputs=inputs
        )
        message = (
            f"plan: does not end in a response; a step of {quoted(responder.name)} is appended"
        )
        self.fixes.append(Fix("appended_response", message, len(steps)))
        self._requirements(len(steps), added, responder)
        return (*steps, added)


_MOST_LOOKED_FOR = 32
"""Names for which the nearest is looked for; it takes far longer than everything else."""
