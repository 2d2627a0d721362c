"""Drawn programs of agents lose and repeat nothing, and the harness says so where one does."""

from __future__ import annotations

import pytest

from bench import programs
from bench.programs import Draw, Pay, Program, World, judge

SEEDS = 12  # `make fuzz` draws new ones all the time


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_drawn_programs_lose_and_repeat_nothing(backend: str) -> None:
    tally = programs.play_many(seed=1, count=SEEDS, seconds=60, store="memory", backend=backend)
    assert tally.wrong == {}
    assert tally.programs == SEEDS
    assert tally.questions > 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.usefixtures("theirs_may_block")
def test_drawn_programs_lose_and_repeat_nothing_when_they_are_killed(backend: str) -> None:
    tally = programs.play_many(
        seed=1, count=SEEDS // 3, seconds=60, store="sqlite", backend=backend
    )
    assert tally.wrong == {}
    assert tally.kills > 0


def test_a_seed_draws_the_same_program_each_time() -> None:
    drawn = [Draw(7, trio=False).program(kills=True) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != Draw(8, trio=False).program(kills=True)


@pytest.mark.parametrize(
    ("times", "result", "wrong"),
    [(1, "receipt of p1", ""), (2, "receipt of p1", "repeated"), (1, "nothing", "lost")],
)
def test_a_program_is_judged_by_the_ledger_and_the_result(
    times: int, result: str, wrong: str
) -> None:
    pay = Pay("p1")
    world = World()
    for _ in range(times):
        world.note("paid p1")
    program = Program(1, pay, "retry", payments=(pay,))
    assert judge(program, world, result, None).startswith(wrong)
    assert bool(judge(program, world, result, None)) == bool(wrong)
