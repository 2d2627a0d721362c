"""What an adapter brings to the contract: a bench on which its framework runs a script."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from triage._agent import Agent

from ._script import World


class Bench(Protocol):
    """How a script is run with one adapter.

    name: the adapter's, a column of the matrix. cannot: scenarios that it cannot do, each with the
    reason. backends: the event loops that the framework runs on.
    """

    @property
    def name(self) -> str:
        """The adapter's name."""
        ...

    @property
    def cannot(self) -> Mapping[str, str]:
        """Scenarios, each with its reason."""
        ...

    @property
    def backends(self) -> tuple[str, ...]:
        """`asyncio`, `trio` or both."""
        ...

    def text(self, result: Any) -> str:
        """The model's last words, from what the agent gave."""
        ...

    def given(self, world: World) -> Mapping[str, Any]:
        """What `Agent.run` is given beside the task: options of the framework's own.

        For a script that is streamed: what gives the pieces to `world.hear`. For one that begins in the
        middle: `world.before()` as the framework's history. Empty where neither needs it.
        """
        ...

    def agent(
        self, world: World, url: str, **options: Any
    ) -> AbstractAsyncContextManager[Agent[Any]]:
        """An agent of the framework, wrapped with these options of `Agent`.

        Its task is a text. It has the world's tools (as `@triage.tool`, or as plain functions with
        `wrap(effects=world.effects)`), and gives up after some ten turns of the model. Its model is a
        client of the loopback provider at `url` (see `loopback`), which retries nothing by itself, or
        the framework's own fake model, which answers as `await world.ask(messages)` says. What else a
        script may ask for is said at `Script`: streams, helpers, retries of the client.
        """
        ...
