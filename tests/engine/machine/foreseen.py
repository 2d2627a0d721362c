"""What a run of one branch asks the world for: how often each read and each model call is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .histories import Ask, Fail, History, Inside, Node, Pay, Read, Together


def foreseen(history: History) -> tuple[str, Counter[str]] | None:
    """Tell the status a run ends with, and count what it asks the world for.

    None where that depends on chance, on who dies and on what is answered.
    """
    chance = any(isinstance(step, Together | Inside) for step in history.steps)
    if chance or history.death or history.rules or history.one_tool:
        return None
    if any(pay.varies or pay.guard == "insist" for pay in history.pays):
        return None
    run = _Run(
        history.on_in_doubt,
        [step for step in history.steps if isinstance(step, Pay | Read | Ask | Fail)],
    )
    return run.end(), run.made


@dataclass
class _Run:
    """A run in its model.

    known: places of the calls whose results are reused. kept: of those among them that a rollback has kept
    in the trajectory, ahead of the attempt's first checkpoint.
    """

    on_in_doubt: str
    steps: list[Node]
    made: Counter[str] = field(default_factory=Counter)
    known: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    approved: set[int] = field(default_factory=set)
    returned: str = ""
    ended: str = ""

    def end(self) -> str:
        """Play attempt after attempt; how the run ends."""
        while not self.ended:
            if self._attempt():
                self.ended = "done"
        return self.ended

    def _attempt(self) -> bool:
        """Whether the attempt comes to its end. Else what it reuses is left in `known`."""
        met: list[int] = []
        for place, step in enumerate(self.steps):
            if place in self.known:
                met.append(place)
                continue
            match step:
                case Read(name, failures):
                    self.made[f"read {name}"] += 1
                    if self.made[f"read {name}"] <= failures:
                        self.returned, self.kept = "", []
                        self._stopped(met)
                        return False
                case Ask(name):
                    self.made[f"asked {name}"] += 1
                case Pay():
                    if not self._pays(place, step, met):
                        return False
                    if step.name in self.refused:
                        continue
                case Fail(name, _, _, times):
                    self.made[f"failed {name}"] += 1
                    if self.made[f"failed {name}"] <= times:
                        self._failed(step, met)
                        return False
                    continue
                case _:
                    continue
            met.append(place)
        return True

    def _pays(self, place: int, pay: Pay, met: list[int]) -> bool:
        if pay.name in self.refused:
            return True
        if pay.guard is not None and place not in self.approved:
            if pay.guard == "reject":
                self.refused.add(pay.name)
                self._start(met)
            else:
                self.approved.add(place)
                self._stopped(met)
            return False
        self.made[f"tried {pay.name}"] += 1
        first = self.made[f"tried {pay.name}"] == 1
        if not first or pay.outcome == "paid":
            return True
        repeats = pay.retries and not pay.sync
        if repeats and (pay.outcome == "refused" or not pay.is_unsafe or pay.keyed):
            self.made[f"tried {pay.name}"] += 1
            return True
        unsure = pay.outcome != "refused" and pay.is_unsafe and not pay.keyed
        if unsure and self.on_in_doubt == "fail":
            self.ended = "escalated"
        if unsure and pay.outcome == "unanswered":
            met.append(place)
        if not unsure:
            self.returned, self.kept = "", []
        if pay.guard is not None and not unsure:
            self.approved.discard(place)
        self._stopped(met)
        return False

    # --- where the next attempt returns to ---

    def _stopped(self, met: list[int]) -> None:
        """A call failed or waits for a person: all before it is reused."""
        self.known = met

    def _effects(self, met: list[int]) -> list[int]:
        return [place for place in met if self._is_unsafe(place)]

    def _is_unsafe(self, place: int) -> bool:
        step = self.steps[place]
        return isinstance(step, Pay) and step.is_unsafe

    def _start(self, met: list[int]) -> None:
        self.known = self._effects(met)

    def _failed(self, fail: Fail, met: list[int]) -> None:
        """The agent itself failed."""
        if fail.kind == "fatal":
            self.ended = "fatal"
            return
        match fail.action:
            case "abort":
                self.ended = "aborted"
            case "escalate" | "compensate":
                self.ended = "escalated"
            case "start over" if not self._can_be_undone(met):
                self.ended = "escalated"
            case "replan":
                self._start(met)
                self.kept = []
                self.returned = ""
            case "start over":
                self.known = self.kept
                self.returned = ""
            case "rollback":
                self.known = self.kept = met
                self.returned = ""
            case _:
                self._return(fail, met)

    def _can_be_undone(self, met: list[int]) -> bool:
        behind = [place for place in met if place not in self.kept]
        undone = [step for place in behind if isinstance(step := self.steps[place], Pay)]
        return all(
            pay.undo in ("works", "once") or (pay.undo is None and not pay.is_unsafe)
            for pay in undone
        )

    def _return(self, fail: Fail, met: list[int]) -> None:
        kind = "unknown" if fail.kind == "unknown" else "external"
        asks = [at for at, place in enumerate(met) if isinstance(self.steps[place], Ask)]
        at: int | None = len(met)
        if fail.kind == "conflict" or (kind == "unknown" and self.returned == "unknown"):
            at = None
        elif kind == "unknown":
            at = asks[-1] if asks else None
        # No point before an effect that a model has been told of.
        for effect in range(len(met) - 1, (at or 0) - 1, -1):
            if self._is_unsafe(met[effect]) and asks and asks[-1] > effect:
                at = effect + 1
                break
        self.kept = []
        self.returned = "" if at is None else kind
        self.known = [*met[: at or 0], *self._effects(met[at or 0 :])]
