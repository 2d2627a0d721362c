"""Whatever befalls a run and its processes: nothing is paid twice, nothing is lost, it ends as it should.

A program is drawn, together with its failures, the deaths of its processes and a person's answers, and is
played on a store beside a ledger of the payments. `make test` plays the same histories each time, `make
fuzz` draws new ones. A history in which a fault was found stays here, by the fault's name.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
from hypothesis import given, settings
from store_kinds import EXAMPLES, Opened
from tables import table

from .machine.game import Game
from .machine.histories import Fail, History, InTurn, Pay, Together, histories

SHARES = {
    ("memory", "asyncio"): 500,
    ("memory", "trio"): 200,
    ("sqlite", "asyncio"): 60,
    ("sqlite", "trio"): 40,
    ("postgres", "asyncio"): 40,
    ("postgres", "trio"): 20,
}
"""Histories that are played, by store and backend."""
FAULTS = {
    "a guard that answers after its attempt asks for nothing the run then waits for": History(
        InTurn(
            (
                Together((Fail("f1", action="suspend"), Pay("p2", guard="reject")), gather=True),
                Pay("p3", sync=True),  # makes the guard one that is asked in a thread
            )
        )
    ),
    "a guard asks without end about two equal calls that may be repeated": History(
        Together(tuple(Pay("p1", effect="idempotent", guard="approve", pauses=1) for _ in "ab"))
    ),
    "a payment that may be repeated is given back once for each time that it was made": History(
        Together(
            (
                Fail("f1", action="replan"),
                InTurn(
                    (
                        Pay("p2", effect="idempotent", undo="works"),
                        Fail("f3", action="start over", times=2),
                    )
                ),
            )
        ),
        lag=1,
    ),
    "a payment that is shared by equal calls is given back for each of them": History(
        InTurn(
            (
                *(Pay("p1", effect="idempotent", undo="works") for _ in "ab"),
                Fail("f2", action="compensate"),
            )
        )
    ),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Processes that die say so in the log."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@contextlib.contextmanager
def board(kind: str, backend: Any) -> Iterator[Callable[[History], None]]:
    """What plays histories on a new store of a kind."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        opened = stack.enter_context(Opened(kind, Path(folder)))
        portal = stack.enter_context(anyio.from_thread.start_blocking_portal(backend))
        store = opened.new()
        stack.callback(portal.call, store.close)

        def play(history: History) -> None:
            portal.call(Game(history, store).play)

        yield play


# A sync tool blocks the event loop until its call is stored, as its documentation says.
@pytest.mark.usefixtures("theirs_may_block")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("kind", "backend"), SHARES)
def test_no_history_pays_twice_or_loses_anything(
    kind: str, backend: str, pytestconfig: pytest.Config
) -> None:
    drawn_anew = EXAMPLES > 1 or pytestconfig.getoption("--hypothesis-seed") is not None
    with board(kind, backend) as play:

        @settings(max_examples=SHARES[kind, backend] * EXAMPLES, derandomize=not drawn_anew)
        @given(histories())
        def played(history: History) -> None:
            play(history)

        played()


@table("fault", FAULTS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_fault_that_was_found_stays_mended(fault: str, backend: str) -> None:
    with board("memory", backend) as play:
        play(FAULTS[fault])
