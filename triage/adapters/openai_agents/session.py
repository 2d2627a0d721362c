"""Sessions that are written to only when an attempt has succeeded, or the run has ended."""

from __future__ import annotations

import inspect
from collections.abc import (
    Callable,
    Sequence,
)
from typing import Any
from weakref import WeakKeyDictionary

from agents.memory import (
    OpenAIConversationsSession,
    Session,
    is_openai_responses_compaction_aware_session,
)
from agents.memory.session_settings import resolve_session_limit

from triage.engine import Run

from .model import whole_input

_ALL = 1_000_000
"""A limit above any session's length, since the session's own settings may name a lower one."""


class _Known:
    """A run's view of a session. before: its items at first. written: what the run has added."""

    def __init__(self, before: list[Any]) -> None:
        self.before = before
        self.written: list[Any] = []


_KNOWN: WeakKeyDictionary[object, dict[int, _Known]] = WeakKeyDictionary()


def hold_session(run: Run, session: Session, *, closing: bool) -> Session:
    """The session for one attempt. A session that the provider stores is returned as it is.

    closing: give each call without an output one, as the SDK would drop the call and the model would not
    know of it. False where the attempt goes on with such a call.
    """
    theirs = isinstance(session, OpenAIConversationsSession)
    if theirs or is_openai_responses_compaction_aware_session(session):
        return session
    return HeldSession(run, session, closing=closing)


class HeldSession(Session):
    """A session as one attempt sees it; only `keep` writes its additions to the real one.

    After a failed attempt the next one starts from the original items; if the run ends with it, its
    conversation is kept. A session whose methods take the run's context (`wrapper`), as some do to keep
    tenants apart, receives it.
    """

    def __init__(self, run: Run, session: Session, *, closing: bool) -> None:
        self._session = session
        self._closing = closing
        self._of_run = _KNOWN.setdefault(run.session, {})
        self._items: list[Any] | None = None
        methods: list[Callable[..., Any]] = [
            session.get_items,
            session.add_items,
            session.pop_item,
            session.clear_session,
        ]
        self._takes_context = all(_takes(method, "wrapper") for method in methods)
        self._context: dict[str, Any] = {}
        self.session_id = session.session_id
        self.session_settings = session.session_settings

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
        """The newest items, all without a limit."""
        items = await self._all(wrapper)
        most = resolve_session_limit(limit, self.session_settings)
        if most is None:
            return list(items)
        return items[-most:] if most > 0 else []

    async def add_items(self, items: list[Any], *, wrapper: Any = None) -> None:
        """Add items to the attempt's view."""
        mine = await self._all(wrapper)
        mine += items

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        """Remove the newest item from the attempt's view."""
        items = await self._all(wrapper)
        return items.pop() if items else None

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Empty the attempt's view."""
        (await self._all(wrapper)).clear()

    async def keep(self) -> None:
        """Write the conversation to the real session, replacing what this run wrote before."""
        if self._items is None:
            return
        known = self._of_run[id(self._session)]
        there = await self._read()
        if known.written and there[-len(known.written) :] == known.written:
            await self._take_back(len(known.written))
        same = _common(known.before, self._items)
        await self._take_back(len(known.before) - same)
        known.written = self._items[same:]
        if known.written:
            await self._session.add_items(list(known.written), **self._context)

    async def _take_back(self, count: int) -> None:
        for _ in range(count):
            await self._session.pop_item(**self._context)

    async def _read(self) -> list[Any]:
        """All items of the real session."""
        limit = {"limit": _ALL} if _takes(self._session.get_items, "limit") else {}
        return list(await self._session.get_items(**limit, **self._context))

    async def _all(self, context: Any) -> list[Any]:
        if context is not None and self._takes_context:
            self._context = {"wrapper": context}
        if self._items is None:
            known = self._of_run.get(id(self._session))
            if known is None:
                known = _Known(await self._read())
                self._of_run[id(self._session)] = known
            self._items = list(whole_input(known.before) if self._closing else known.before)
        return self._items


def _takes(method: Callable[..., Any], name: str) -> bool:
    """Whether a method takes a keyword argument of this name."""
    try:
        parameter = inspect.signature(method).parameters.get(name)
    except Exception:
        return False
    return parameter is not None and parameter.kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the common prefix of two lists."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
