"""Every adapter keeps the contract, and the page says which scenarios each of them can do."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benches import failures_of
from blockbuster import BlockBuster

from triage.testing.adapter_contract import CAPABILITIES, Bench, benches_in, matrix, taken_from

pytestmark = pytest.mark.anyio

BENCHES = benches_in("benches")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adapters.md"
CASES = [
    pytest.param(bench, backend, id=f"{bench.name}-{backend}")
    for bench in BENCHES
    for backend in bench.backends
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("bench", "anyio_backend"), CASES)
async def test_an_adapter_keeps_the_contract(bench: Bench, never_blocked: BlockBuster) -> None:
    # Frameworks look at files and clocks in the event loop; that is theirs.
    never_blocked.deactivate()
    assert await failures_of(bench) == {}


def test_the_page_says_what_each_adapter_offers() -> None:
    assert taken_from(PAGE) == matrix(BENCHES), (
        "write it anew: python -m triage.testing.adapter_contract tests.benches --write docs/adapters.md"
    )


def test_the_command_of_the_page_finds_the_benches() -> None:
    """It is run as a contributor does, but plays one bench that there is not, and writes nothing."""
    written = re.search(r"`python (-m \S+ \S+) --write docs/adapters\.md`", PAGE.read_text("utf-8"))
    assert written is not None
    command = [sys.executable, *shlex.split(written[1]), "--bench", "none of them"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_tells_every_capability() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [
        name for name, said in CAPABILITIES.items() if f"| `{name}` | {said} |" not in page
    ] == []
