"""A session of the OpenAI Agents SDK that keeps a conversation only once it has come to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from agents.memory import (
    OpenAIConversationsSession,
    Session,
    is_openai_responses_compaction_aware_session,
)
from agents.memory.session_settings import resolve_session_limit

from triage._run import Run

from ._openai_agents_items import repaired

_ALL = 1_000_000
"""More items than a session has: the settings of its own may name fewer."""


class _Known:
    """What a run knows of a session. before: what stood in it. written: what the run has added."""

    def __init__(self, before: list[Any]) -> None:
        self.before = before
        self.written: list[Any] = []


_KNOWN: WeakKeyDictionary[object, dict[int, _Known]] = WeakKeyDictionary()


def held(run: Run, session: Session, *, closing: bool) -> Session:
    """The session as an attempt may see it; one that a provider keeps stays as it is.

    closing: calls in it that have no output are given one, as the SDK would leave them out, and the model
    would not know of them. False where the attempt goes on with such a call.
    """
    theirs = isinstance(session, OpenAIConversationsSession)
    if theirs or is_openai_responses_compaction_aware_session(session):
        return session
    return Held(run, session, closing=closing)


class Held(Session):
    """A session as one attempt sees it: what it adds reaches the real one by `keep` alone.

    An attempt that fails leaves nothing behind, and the next one finds what the first one found.
    """

    def __init__(self, run: Run, session: Session, *, closing: bool) -> None:
        self._session = session
        self._closing = closing
        self._of_run = _KNOWN.setdefault(run.session, {})
        self._items: list[Any] | None = None
        self.session_id = session.session_id
        self.session_settings = session.session_settings

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The newest items, all without a limit."""
        items = await self._all()
        most = resolve_session_limit(limit, self.session_settings)
        if most is None:
            return list(items)
        return items[-most:] if most > 0 else []

    async def add_items(self, items: list[Any]) -> None:
        """Add items to what the attempt sees."""
        mine = await self._all()
        mine += items

    async def pop_item(self) -> Any:
        """Take the newest item from what the attempt sees."""
        items = await self._all()
        return items.pop() if items else None

    async def clear_session(self) -> None:
        """Let the attempt see nothing any more."""
        (await self._all()).clear()

    async def keep(self) -> None:
        """Write the conversation into the real session, in the place of what this run had written."""
        if self._items is None:
            return
        known = self._of_run[id(self._session)]
        there = await self._session.get_items(limit=_ALL)
        if known.written and there[-len(known.written) :] == known.written:
            await self._take_back(len(known.written))
        same = _common(known.before, self._items)
        await self._take_back(len(known.before) - same)
        known.written = self._items[same:]
        if known.written:
            await self._session.add_items(list(known.written))

    async def _take_back(self, count: int) -> None:
        for _ in range(count):
            await self._session.pop_item()

    async def _all(self) -> list[Any]:
        if self._items is None:
            known = self._of_run.get(id(self._session))
            if known is None:
                known = _Known(list(await self._session.get_items(limit=_ALL)))
                self._of_run[id(self._session)] = known
            self._items = list(repaired(known.before) if self._closing else known.before)
        return self._items


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two lists have in common from their beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
