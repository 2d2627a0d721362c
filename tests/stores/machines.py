"""State machines that are run over real stores."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import anyio.from_thread
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from store_kinds import EXAMPLES, Opened


def play_over(
    machine: type[RuleBasedStateMachine], kind: str, backend: Any, *, examples: int, steps: int
) -> None:
    """Run a state machine over a new store of a kind: its `store`, and `call`, which waits for it."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        opened = stack.enter_context(Opened(kind, Path(folder)))
        portal = stack.enter_context(anyio.from_thread.start_blocking_portal(backend))
        made = opened.new()
        stack.callback(portal.call, made.close)
        bound: Any = type("Bound", (machine,), {"store": made, "call": staticmethod(portal.call)})
        play(bound, examples=examples, steps=steps)


def play(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a state machine that waits for real stores, however long they take."""
    counts = settings(max_examples=examples * EXAMPLES, stateful_step_count=steps)
    run_state_machine_as_test(machine, settings=counts)
