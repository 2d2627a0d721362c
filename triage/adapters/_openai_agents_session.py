"""A session of the OpenAI Agents SDK that keeps a conversation only once it has come to its end."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from agents.memory import Session

from triage._run import Run

_BEFORE: WeakKeyDictionary[object, dict[int, list[Any]]] = WeakKeyDictionary()
"""What stood in a session before a run began, by the run and the session."""


class Held(Session):
    """A session as one attempt sees it: what it adds reaches the real one by `keep` alone.

    An attempt that fails leaves nothing behind, and the next one finds what the first one found.
    """

    def __init__(self, run: Run, session: Session) -> None:
        self._session = session
        self._known = _BEFORE.setdefault(run.session, {})
        self._items: list[Any] | None = None
        self.session_id = session.session_id
        self.session_settings = session.session_settings

    async def get_items(self, limit: int | None = None) -> list[Any]:
        items = await self._all()
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        if limit is None:
            return list(items)
        return items[-limit:] if limit > 0 else []

    async def add_items(self, items: list[Any]) -> None:
        held = await self._all()
        held += items

    async def pop_item(self) -> Any:
        items = await self._all()
        return items.pop() if items else None

    async def clear_session(self) -> None:
        (await self._all()).clear()

    async def keep(self) -> None:
        """Write the conversation into the real session, in the place of what this run had written."""
        if self._items is None:
            return
        there = await self._session.get_items(limit=_ALL)
        same = 0
        for old, new in zip(there, self._items, strict=False):
            if old != new:
                break
            same += 1
        for _ in there[same:]:
            await self._session.pop_item()
        if self._items[same:]:
            await self._session.add_items(self._items[same:])

    async def _all(self) -> list[Any]:
        if self._items is None:
            known = self._known.get(id(self._session))
            if known is None:
                known = list(await self._session.get_items(limit=_ALL))
                self._known[id(self._session)] = known
            self._items = list(known)
        return self._items


_ALL = 1_000_000
"""More items than a session has: its own settings may name fewer."""
