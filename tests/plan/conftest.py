"""Backends of the tests of plans: trio too where it can matter."""

from __future__ import annotations

import pytest

BOTH = ("test_plan_runs_ways",)
"""Modules about waiting and cancelling, which run on trio too."""


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The backend of an async test."""
    return str(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run async tests on asyncio, and on trio too in the modules that say so."""
    marks = metafunc.definition.iter_markers("parametrize")
    own = any("anyio_backend" in mark.args[0] for mark in marks)
    if "anyio_backend" in metafunc.fixturenames and not own:
        both = metafunc.module.__name__.rpartition(".")[2] in BOTH
        backends = ["asyncio", "trio"] if both else ["asyncio"]
        metafunc.parametrize("anyio_backend", backends, indirect=True)
