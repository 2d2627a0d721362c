"""One bench for each adapter: see triage.testing.adapter_contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.testing.adapter_contract import Bench, World, adapter_scenarios, check_adapter


class Texts:
    """A bench whose agents give a text, on both event loops, and need nothing beside their task."""

    backends: tuple[str, ...] = ("asyncio", "trio")

    def text(self, result: Any) -> str:
        return str(result)

    def given(self, world: World) -> Mapping[str, Any]:
        return {}


async def failures_of(bench: Bench) -> dict[str, str]:
    """The scenarios that a bench is to keep and does not, with what is wrong."""
    failures: dict[str, str] = {}
    for scenario in adapter_scenarios:
        try:
            await check_adapter(bench, scenario)
        except AssertionError as error:
            failures[scenario.__name__] = str(error)
    return failures
