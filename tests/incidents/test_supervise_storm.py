"""Supervisors as processes, killed in the middle of their work: nothing is lost, nothing is done twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from store_kinds import Opened

from bench.supervisors import in_store


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("kind", "in_doubt"), [("sqlite", "rerun"), ("postgres", "escalate")])
def test_each_incident_is_handled_once_whoever_is_killed(
    kind: str, in_doubt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small form of `make incidents`, which does the same with ten thousand."""
    with Opened(kind, tmp_path):
        told: dict[str, Any] = in_store(
            kind, in_doubt, incidents=90, kills=3, seed=7, seconds=220.0, patience_s=0.5
        )
    with capsys.disabled():
        sys.stdout.write(f"\n{told}\n")
    assert told["kills"] == 3
    assert told["incidents"] == told["recovered"] + told["escalated"] == 90
    assert told["deliveries"] >= told["messages"] > 90
    assert not any(told["wrong"].values()), told["wrong"]
    if in_doubt == "escalate":
        assert told["hooks_repeated"] == 0
    else:
        assert told["in_doubt"] == 0
