"""An agent function that notes what each of its attempts is told."""

from __future__ import annotations

from typing import Any

from triage import Run, Step


class Recording:
    """An agent function that fails until its last attempt and notes what each was told."""

    def __init__(self, attempts: int = 2) -> None:
        self.attempts = attempts
        self.told: list[dict[str, Any]] = []

    async def __call__(
        self,
        task: str,
        *,
        run: Run,
        record_step: Any,
        update_state: Any,
        _triage_hint: Any,
        _triage_subgoal: Any,
        _triage_state: Any,
        _triage_context: Any,
        extra: str = "none",
    ) -> str:
        self.told.append(
            {
                "hint": _triage_hint,
                "subgoal": _triage_subgoal,
                "state": _triage_state,
                "extra": extra,
                "steps": [step.action for step in run.trajectory],
            }
        )
        if run.attempt < self.attempts:
            for number in range(3):
                record_step(Step(action=f"{run.attempt}.{number}"))
                update_state({"last": number, f"key{number}": run.attempt})
            raise ConnectionError("down")
        return "done"
