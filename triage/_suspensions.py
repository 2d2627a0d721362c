"""The runs of an agent that wait in this process, by their tokens."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from .errors import UsageError

if TYPE_CHECKING:
    from ._session import Config, Session
    from .failures import FailureContext


class Waiting(NamedTuple):
    """A suspended run: its session, the failure it stopped at and when (monotonic seconds)."""

    session: Session
    context: FailureContext
    since: float


class Suspensions:
    """The runs of an agent that wait for an answer in this process, by the digests of their tokens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, Waiting] = {}

    def put(self, token: str, waiting: Waiting) -> None:
        """A run begins to wait."""
        with self._lock:
            self._waiting[digest_of(token)] = waiting

    def find(self, digest: str) -> Waiting | None:
        """The run that waits with this token, None if none does here."""
        with self._lock:
            return self._waiting.get(digest)

    def drop(self, digest: str) -> None:
        """The token was used up in the store."""
        with self._lock:
            self._waiting.pop(digest, None)


def digest_of(token: str) -> str:
    """What a token is known by where it is kept: its SHA-256. Raises UsageError for no text."""
    if not isinstance(token, str):
        raise UsageError(f"a token is text, not {type(token).__name__}")
    import hashlib

    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


async def time_of(config: Config) -> float:
    """By what questions expire: the store's clock, that all who may answer share; seconds since the epoch.

    Where the store does not outlive this process, the process' own.
    """
    return await config.store.now() if config.durable else config.env.time()
