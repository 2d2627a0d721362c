"""A client of httpx whose model requests are recorded, with nothing replaced in the process."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, TypeVar, cast

from triage.core.errors import misuse

from .httpx_clients import recording

__all__ = ["is_recorded", "recorded_client"]

C = TypeVar("C")
_LIBRARIES = ("httpx", "httpx2")


def recorded_client(client: C, *, hint: bool = True) -> C:
    """The client of httpx or httpx2 that records what it asks models in a run, and is this one in all else.

    `openai.AsyncOpenAI(http_client=recorded_client(httpx.AsyncClient()))`, and whatever else takes a client
    of httpx. Also where the seam is off (`Agent(seam="off")`, `TRIAGE_SEAM=off`). It shares all that the
    other one has, and leaves it to that one to be closed when nobody needs it.

    hint: False leaves hints to your own code. Raises UsageError for anything but such a client.
    """
    kind = type(client)
    names = [one.__module__.partition(".")[0] for one in kind.__mro__]
    library = next((name for name in names if name in _LIBRARIES), None)
    if library is None or not hasattr(kind, "send"):
        raise misuse("recorded_client(client)", client, "a Client or AsyncClient of httpx")
    if is_recorded(client):
        return client
    send = recording(sys.modules[library], "send", _sent_by(client), hint=hint, explicit=True)
    attributes = {
        "__module__": kind.__module__, "__doc__": kind.__doc__, "__del__": lambda _: None,
        # As a property, which hides what somebody has put on the client itself.
        "send": property(lambda self: functools.partial(send, self)),
        "triage_recorded": True, "triage_of": client,
    }  # fmt: skip
    recorded: Any = type(kind.__name__, (kind,), attributes)
    made: Any = recorded.__new__(recorded)
    made.__dict__ = client.__dict__
    return cast("C", made)


def is_recorded(client: object) -> bool:
    """Whether a client records already."""
    return isinstance(getattr(type(client), "triage_recorded", None), bool)


def _sent_by(client: Any) -> Any:
    """What a client sends requests by, as a function that is given another client first."""
    if inspect.iscoroutinefunction(type(client).send):

        async def send(_client: Any, request: Any, **options: Any) -> Any:
            return await client.send(request, **options)

        return send
    return lambda _client, request, **options: client.send(request, **options)
