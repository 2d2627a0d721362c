"""What all tests share: both async backends, an event loop that nothing of ours may block, and desks."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, settings
from store_kinds import EXAMPLES, Opened

pytest_plugins = ["quick_tests"]

# A loaded machine makes no example wrong. CI draws the same examples each time, elsewhere new ones.
settings.register_profile(
    "triage",
    max_examples=30 * EXAMPLES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.large_base_example,
    ],
    print_blob=True,
    derandomize="CI" in os.environ and EXAMPLES == 1,
)
settings.load_profile("triage")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and all that is started from there.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Never look for garbage among what is imported: all of it stays, and there is much."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of a file that plays some rows of a product; `make fuzz` plays them all."""
    for item in items:
        names = vars(getattr(item, "module", type))
        if "covering" in names or names.get("EXAMPLES") == EXAMPLES:
            item.add_marker(pytest.mark.products)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every async test runs on both."""
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def no_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody speaks TLS here, and a client that is made reads all the machine's certificates (40 ms)."""
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("SSL_CERT_FILE", raising=False)
        environment.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        yield


@pytest.fixture(autouse=True)
def agents_as_before() -> Iterator[None]:
    """Tests of commands write a module `agents`, and so is an SDK called that other tests need."""
    before = sys.modules.get("agents")
    yield
    after = sys.modules.get("agents")
    if after is before or hasattr(after, "__path__"):
        return
    sys.modules.pop("agents", None)
    if before is not None:
        sys.modules["agents"] = before


@pytest.fixture(autouse=True)
def never_blocked() -> Iterator[BlockBuster]:
    """A blocking call of the package inside the event loop is an error."""
    with blockbuster_ctx(scanned_modules=["triage"]) as guard:
        # Runs share a few locks, which are held for some instructions and never across a wait: event
        # loops of several threads may meet there.
        held_shortly = guard.functions["threading.Lock.acquire"]
        held_shortly.can_block_in("triage/engine/journal.py", {"put", "state"})
        held_shortly.can_block_in(
            "triage/engine/run.py",
            {"close", "inside", "leave", "record_step", "settle", "unsafe_begun", "unsafe_ended"},
        )
        held_shortly.can_block_in("triage/engine/calls.py", {"claim", "carry", "_give", "take"})
        held_shortly.can_block_in("triage/stores/memory.py", {"append"})
        # A classifier is waited for by the loop itself for a tenth of a millisecond.
        held_shortly.can_block_in("triage/classifiers/base.py", {"put", "_ends_shortly"})
        yield guard


@pytest.fixture
def theirs_may_block(never_blocked: BlockBuster) -> None:
    """Frameworks, clients and servers look at files and clocks in the event loop; that is theirs."""
    never_blocked.deactivate()


@pytest.fixture
async def store(opened: Opened) -> AsyncIterator[Any]:
    """A store of each of the kinds that the file of the test opens."""
    made = opened.new()
    yield made
    await made.close()
