"""`triage runs prune`: what has ended goes, what is open stays."""

from __future__ import annotations

import pytest

from cli.cli_runs import Office, runs_of_file, three_runs
from triage.core import Event, RunFinished, RunStarted

__all__ = ["runs_of_file", "three_runs"]


class TestPrune:
    @pytest.fixture
    def old(self, three: Office) -> Office:
        """Beside the three, a run of long ago that is over; by the store's clock it ended now."""
        events: list[Event] = [
            RunStarted("old-1", 0, 1.0, "look", "fly"),
            RunFinished("old-1", 1, 2.0, "done"),
        ]
        three.write("old-1", events)
        return three

    @pytest.mark.parametrize(
        ("arguments", "count"),
        [
            (("--keep", "0"), 2),
            (("--keep", "1"), 1),
            (("--keep", "5"), 0),
            (("--older-than", "1h"), 0),
        ],
    )
    def test_what_has_ended_goes_and_what_is_open_stays(
        self,
        arguments: tuple[str, ...],
        count: int,
        old: Office,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        capsys.readouterr()
        assert old("prune", *arguments) == 0
        assert capsys.readouterr().out == f"{count} run{'' if count == 1 else 's'} removed\n"
        left = {info.run_id for info in old.do(lambda store: store.runs())}
        assert len(left) == 4 - count
        assert {"waits-1", "left-1"} <= left

    def test_a_dry_run_counts_and_removes_nothing(
        self, old: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for arguments, count in (
            (("--keep", "0"), "2 runs"),
            (("--keep", "1"), "1 run"),
            (("--older-than", "4w"), "1 run"),
            (("--older-than", "4w", "--keep", "2"), "0 runs"),
        ):
            capsys.readouterr()
            assert old("prune", *arguments, "--dry-run") == 0
            told = f"{count} would be removed, by the times of their last events\n"
            assert capsys.readouterr().out == told
        assert len(old.do(lambda store: store.runs())) == 4

    @pytest.mark.parametrize("text", ["30", "d", "-1d", "1y", "1e3s", "٣d", "", "1d 2h"])
    def test_a_length_of_time_is_a_number_and_a_unit(
        self, text: str, old: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert old("prune", f"--older-than={text}") == 2
        assert "must be a number and a unit: 90s, 30m, 12h, 30d, 4w" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [(), ("--dry-run",), ("--keep", "-1")])
    def test_what_may_go_must_be_said(
        self, arguments: tuple[str, ...], old: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert old("prune", *arguments) == 2
        assert "--keep" in capsys.readouterr().err
        assert len(old.do(lambda store: store.runs())) == 4
