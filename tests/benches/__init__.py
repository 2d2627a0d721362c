"""One bench for each adapter: see triage.testing.adapter_contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.testing.adapter_contract import World


class Texts:
    """A bench whose agents give a text, on both event loops, and need nothing beside their task."""

    backends = ("asyncio", "trio")

    def text(self, result: Any) -> str:
        return str(result)

    def given(self, world: World) -> Mapping[str, Any]:
        return {}
