"""`python -m bench.races` finds nothing lost, and says so where something is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_kinds import Opened

import triage
from bench.races import boss_of, judged
from triage.engine import cancel

HERE = Path(__file__).parents[1]
PATH = os.pathsep.join((str(Path(triage.__file__).parents[1]), str(HERE)))


def test_two_that_recover_a_run_at_once_lose_and_repeat_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.races", "--rounds", "6"],
        env={**os.environ, "PYTHONPATH": PATH},
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["rounds"] == 6
    assert (line["lost_runs"], line["lost_questions"], line["repeated_effects"]) == (0, 0, 0)


@pytest.mark.anyio
@pytest.mark.usefixtures("theirs_may_block")
async def test_a_lost_run_and_a_repeated_effect_are_counted(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    with Opened("sqlite", tmp_path) as opened:
        store = opened.new()
        await boss_of(store, effects, "between").run("once", run_id="once")
        found = await judged(store, effects, "once", "between", [])
        assert not found.lost_run
        assert found.repeated == 0
        await boss_of(store, effects, "between").run("once", run_id="twice")
        found = await judged(store, effects, "once", "between", [])
        assert found.repeated == 2
        with pytest.raises(triage.TriageSuspendedError):
            await boss_of(store, effects, "asks").run("asks", run_id="asks")
        assert (await judged(store, effects, "asks", "asks", [])).lost_question
        await cancel(store, "asks", now=1.0)
        assert (await judged(store, effects, "asks", "asks", [])).lost_run
        await store.close()
