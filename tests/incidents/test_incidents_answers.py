"""Each operation answers with JSON that says whether it succeeded, what it did, and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from incident_desks import DIED, NOON, Restarts, World

from triage.core import errors

pytestmark = pytest.mark.anyio
AT_NOON = "2025-10-26T10:35:00Z"


def no_spawner(_recovery: Any) -> str:
    raise ConnectionError("no spawner")


async def test_every_answer_is_json_with_its_success_action_and_time(tmp_path: Path) -> None:
    with World("memory", tmp_path) as world:
        assert world.env.now == NOON
        desk = world.desk(hooks=Restarts().hooks)
        nothing = await desk.invoke({"ACTION": "detect"})
        assert nothing == {"success": True, "action": "detect", "errors_found": 0, "errors": []}
        await desk.report(DIED, agent_id="coder-1", task_id="T-1")
        await desk.report("Merge conflict in src/a.py", agent_id="coder-2", task_id="T-2")
        answers = [
            await desk.invoke({"ACTION": "detect"}),
            await desk.invoke({"ACTION": "handle", "ERROR_ID": await world.nth(1)}),
            await desk.invoke(
                {"ACTION": "recover", "TASK_ID": "T-2", "RECOVERY_STRATEGY": "restart"}
            ),
        ]
        assert [json.loads(json.dumps(one)) for one in answers] == answers
        assert [(one["success"], one["action"]) for one in answers] == [
            (True, "detect"),
            (True, "handle"),
            (True, "recover"),
        ]
        detected, handled, recovered = answers
        assert detected["errors_found"] == len(detected["errors"]) == 2
        assert {one["timestamp"] for one in detected["errors"]} == {AT_NOON}
        assert handled["details"]["timestamp"] == recovered["recovery_timestamp"] == AT_NOON
        assert recovered["new_agent_id"] != "coder-2"
        await world.close()


async def test_an_operation_that_fails_says_so_in_the_same_form(tmp_path: Path) -> None:
    with World("memory", tmp_path) as world:
        desk = world.desk(hooks=Restarts(no_spawner).hooks)
        await desk.report(DIED, agent_id="coder-1", task_id="T-1")
        for parameters in (
            {"ACTION": "handle", "ERROR_ID": await world.nth(1)},
            {"ACTION": "recover", "TASK_ID": "T-1", "RECOVERY_STRATEGY": "restart"},
        ):
            answer = await desk.invoke(parameters)
            assert (answer["success"], answer["action"]) == (False, parameters["ACTION"])
            assert "no spawner" in str(answer.get("error", answer.get("message")))
            assert json.loads(json.dumps(answer)) == answer
        await world.close()


async def test_an_unknown_error_or_task_is_no_answer_but_an_error(tmp_path: Path) -> None:
    with World("memory", tmp_path) as world:
        desk = world.desk(hooks=Restarts().hooks)
        for parameters in (
            {"ACTION": "handle", "ERROR_ID": "err-009"},
            {"ACTION": "recover", "TASK_ID": "T-9", "RECOVERY_STRATEGY": "restart"},
        ):
            with pytest.raises(errors.TriageError, match=r"err-009|T-9"):
                await desk.invoke(parameters)
        await world.close()
