"""The recovery lab itself: the ledger counts, the oracle is right, and the harness adds no mistakes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.recovery import __main__ as program
from bench.recovery import ours, plain
from bench.recovery.agents import loop
from bench.recovery.desk import Desk, Lab
from bench.recovery.kinds import KINDS, chosen, tasks
from bench.recovery.tasks import Breakage, Slip, Task

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("theirs_may_block"),
]
ONE_OF_EACH = [next(tasks(1, (kind.name,))) for kind in KINDS]


Line = dict[str, Any]


def plays(*wanted: tuple[Any, list[Task]]) -> list[list[Line]]:
    """Plays of one lab, which finds out once for each task what a perfect agent does."""

    async def all_of_them() -> list[list[Line]]:
        lab = Lab()
        try:
            return [
                [await lab.play(f"test {at}", contestant, task) for task in some]
                for at, (contestant, some) in enumerate(wanted)
            ]
        finally:
            await lab.close()

    return asyncio.run(all_of_them())


def play(contestant: Any, *wanted: Task) -> list[Line]:
    [lines] = plays((contestant, list(wanted)))
    return lines


@pytest.fixture(scope="module")
def of_each_kind() -> list[list[Line]]:
    """The bare agent, the bare agent where nothing goes wrong, and one that starts over."""
    kept = ("greedy", "room", "bad_file", "stale", "bug")
    unseen = ("tool_error_as_answer", "broken_tool_with_a_substitute", "list_of_failures")
    recoverable = [t for t in ONE_OF_EACH if t.group == "recoverable"]
    whole = [
        replace(
            task,
            id=f"{task.id} whole",
            slips=(),
            outages=(),
            breakages=(),
            wasted=0,
            options={k: v for k, v in task.options.items() if k not in kept},
        )
        for task in recoverable
    ]
    seen = [t for t in recoverable if t.kind not in unseen]
    return plays((plain.bare, ONE_OF_EACH), (plain.bare, whole), (started_over, seen))


def task_of(kind: str, at: int = 0) -> Task:
    return list(tasks(1, (kind,)))[at]


def test_there_are_as_many_kinds_and_tasks_as_are_asked_for() -> None:
    everything = list(tasks(1))
    count = {group: sum(t.group == group for t in everything) for group in
             ("recoverable", "hopeless", "healthy")}  # fmt: skip
    assert len({t.kind for t in everything if t.group == "recoverable"}) >= 25
    assert count["recoverable"] >= 200
    assert count["hopeless"] >= 50
    assert count["healthy"] >= 100
    assert len({t.id for t in everything}) == len(everything)


def test_the_same_seed_gives_the_same_tasks_and_another_one_others() -> None:
    assert list(tasks(1)) == list(tasks(1))
    assert list(tasks(1)) != list(tasks(2))


def test_a_part_of_the_tasks_holds_tasks_of_every_kind() -> None:
    assert {t.kind for t in chosen(1, (), len(KINDS))} == {kind.name for kind in KINDS}


def test_the_bare_agent_does_every_healthy_task_and_no_recoverable_one(
    of_each_kind: list[list[Line]],
) -> None:
    bare, _, _ = of_each_kind
    for line in bare:
        if line["group"] == "healthy":
            assert line["good"], str(line)
        if line["group"] == "recoverable":
            assert not line["good"], line


def test_a_task_without_its_faults_is_done_by_the_bare_agent(
    of_each_kind: list[list[Line]],
) -> None:
    _, whole, _ = of_each_kind
    for line in whole:
        assert line["good"], str(line)
        assert line["answered"] == line["oracle"], line


async def started_over(desk: Desk) -> Any:
    """Start the plain agent again, told what was wrong."""
    tools = {kit.name: kit.function for kit in desk.kits}
    hint, words = None, [word for slip in desk.task.slips for word in slip.words]
    for _ in range(6):
        try:
            ask = desk.client.chat.completions.create
            return await loop(desk.task, desk.name, ask, tools, desk.kits, hint)
        except Exception as error:
            hint = f"{error} {' '.join(words)}"
            desk.clock.sleep(400)
    raise AssertionError("six times")


def test_what_nobody_has_bought_before_is_recovered_by_a_restart_that_knows_the_fault(
    of_each_kind: list[list[Line]],
) -> None:
    _, _, restarted = of_each_kind
    for line in restarted:
        if not line["repeated"]:
            assert line["good"], str(line)


def test_the_ledger_counts_what_was_bought_twice() -> None:
    [line] = play(started_over, task_of("failure_after_a_purchase", 1))
    assert line["orders"][0] == line["orders"][1]
    assert line["repeated"] == 1
    assert not line["good"]


def test_an_order_whose_receipt_was_lost_stands_in_the_ledger() -> None:
    [line] = play(plain.bare, task_of("lost_receipt"))
    assert line["status"] == "raised"
    assert line["orders"] == line["expected_orders"]


def test_a_wrong_result_that_is_returned_is_counted() -> None:
    task = replace(task_of("questions"), id="x", finish="text", slips=(Slip("final", "half"),))
    [line] = play(plain.bare, replace(task, group="recoverable"))
    assert line["wrong"]
    assert not line["good"]


def test_waiting_takes_no_time() -> None:
    down = replace(
        task_of("flaky_read"), breakages=(Breakage(task_of_search(), "503", seconds=50.0),)
    )
    [line] = play(started_over, down)
    assert line["good"], str(line)
    assert line["virtual_s"] > 400
    assert line["wall_s"] < 10


def task_of_search() -> str:
    return task_of("flaky_read").breakages[0].tool


def test_ours_keeps_what_it_has_bought_and_asks_only_for_what_led_to_the_failure() -> None:
    wanted = [task_of("failure_after_a_purchase", at) for at in range(3)]
    for line in play(ours.client, *wanted):
        assert line["good"], str(line)
        assert line["answered"] <= line["oracle"] + 1


def test_ours_makes_no_effect_again_when_the_context_overflows_twice() -> None:
    for line in play(ours.client, *tasks(1, ("overflow_twice",))):
        assert line["good"], str(line)
        assert sum("overflow" in request for request in line["requests"]) == 2


def test_ours_does_nothing_that_was_refused_and_asks_once_about_it() -> None:
    wanted = list(tasks(1, ("refused_calls",)))
    for task, line in zip(wanted, play(ours.client, *wanted), strict=True):
        assert line["good"], str(line)
        assert len(line["orders"]) == task.options["allowed"]
        assert len(line["questions"]) == task.options["allowed"] + 1


def test_ours_leaves_each_kind_of_healthy_task_alone() -> None:
    for line in play(ours.client, *(t for t in ONE_OF_EACH if t.group == "healthy")):
        assert line["good"], str(line)


def test_the_figures_are_counted_from_the_lines() -> None:
    lines = play(plain.bare, task_of("questions"), task_of("missing_key"), task_of("bad_key"))
    found = program.figures(lines)
    assert (found.recoverable, found.recovered) == (1, 0)
    assert (found.hopeless, found.stopped) == (1, 1)
    assert (found.healthy, found.broken) == (1, 0)
    assert "ours recovers 0.0%, asked are 93 %" in program.missed("ours", found)
    assert "| bare |" in program.table([{**line, "contestant": "bare"} for line in lines])


def test_ours_with_nothing_declared_leaves_to_a_person_what_it_would_buy_again() -> None:
    wanted = [task_of("failure_after_a_purchase", 1), task_of("purchase_not_attempted")]
    for line, status in zip(play(ours.undeclared_loop, *wanted), ("left", "returned"), strict=True):
        assert line["good"], str(line)
        assert line["status"] == status
        assert not line["repeated"]


def test_the_checkout_is_played_whatever_else_is_installed(tmp_path: Path) -> None:
    other = tmp_path / "triage"
    other.mkdir()
    (other / "__init__.py").write_text("raise ImportError('another one')", encoding="utf-8")
    asked = {"contestants": ["ours: record"], "seed": 1, "kinds": ["questions"], "tasks": 1}
    done = subprocess.run(
        [sys.executable, str(Path(program.__file__).with_name("play.py")), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["good"]
