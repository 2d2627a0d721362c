"""MCP: sessions whose tool calls are recorded while a run makes them.

    async with Client("http://localhost:8000/mcp") as plain:
        client = record(plain, effects={"charge": "once"})
        result = await client.call_tool("charge", {"cents": 300})

What a server says of its tools (`readOnlyHint`, `idempotentHint`, `destructiveHint`) says what may be
done again; a result that is an error is a step with an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from mcp import ClientSession, MCPError
from mcp.client.client import Client
from mcp.client.session_group import ClientSessionGroup
from mcp.types import (
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from triage._capture import hint, not_attempted
from triage._options import misuse
from triage._recorder import current
from triage._run import Run
from triage.errors import UsageError
from triage.steps import effect_of
from triage.taxonomy import Cause, Effect, FailureType
from triage.traces._values import as_text, content_text, listed, mapping

from ._forms import Failed, Form
from ._recording import ToolCall, call_tool

__all__ = ["effect_of_tool", "record"]

S = TypeVar("S", Client, ClientSession, ClientSessionGroup)

_KINDS = (Client, ClientSession, ClientSessionGroup)
_MOST_PAGES = 50


def record(
    session: S,
    *,
    effects: Mapping[str, Effect | str] | None = None,
    annotations: bool = True,
    prefix: str = "",
) -> S:
    """The session to use instead, whose tool calls are recorded inside of a run; outside it is the same.

    session: a `Client`, a `ClientSession` or a `ClientSessionGroup` of the package mcp. It is not
    changed, and shares its connection with the one that is given back, which has the same class.

    effects: what tools do to the world, by the server's name of them. annotations: whether what the
    server says of a tool counts for those that are not named; False for a server that is not trusted:
    they are `unknown` then, and as unsafe to repeat as `once`. prefix: stands before the tools' names in
    steps (`files.read`), to keep two servers apart that have tools of the same name.

    A session that is recorded already is given back as it is. Raises UsageError for anything that is
    none, and for an effect that is none.
    """
    if not isinstance(session, _KINDS):
        wanted = "a Client, ClientSession or ClientSessionGroup of the package mcp"
        raise misuse("mcp.record(session)", session, wanted)
    if not isinstance(prefix, str):
        raise misuse("mcp.record(prefix=…)", prefix, "text")
    if isinstance(getattr(type(session), "triage_recorded", None), bool):
        return session
    known: dict[str, Effect] = {}
    for tool, effect in (effects or {}).items():
        try:
            known[tool] = effect_of(f"record(effects={{{tool!r}: …}})", effect)
        except ValueError as error:
            raise UsageError(str(error)) from None
    kind = _recorded_kind(type(session))
    made: Any = object.__new__(kind)
    made.__dict__ = session.__dict__  # one session, with one method that is another
    made.triage = _Tools(known, trusted=annotations, prefix=prefix)
    found: S = made
    return found


def effect_of_tool(annotations: ToolAnnotations | None) -> Effect:
    """What a server says that a tool does to the world; `unknown` where it does not say."""
    if annotations is None:
        return Effect.UNKNOWN
    if annotations.read_only_hint:
        return Effect.READ
    if annotations.idempotent_hint:
        return Effect.IDEMPOTENT
    return Effect.ONCE if annotations.destructive_hint else Effect.UNKNOWN


class _Tools:
    """What is known of a session's tools. listed: whether the server was asked."""

    def __init__(self, effects: dict[str, Effect], *, trusted: bool, prefix: str) -> None:
        self.effects = effects
        self.prefix = prefix
        self.listed = not trusted
        self._trusted = trusted
        self._said: dict[str, Effect] = {}

    def note(self, tools: list[Tool]) -> None:
        """The server has told of these."""
        if self._trusted:
            self._said |= {tool.name: effect_of_tool(tool.annotations) for tool in tools}

    def knows(self, name: str) -> bool:
        """Whether there is nothing more to be found out about a tool."""
        return self.listed or name in self.effects or name in self._said

    def effect(self, name: str) -> Effect:
        """What a tool does to the world."""
        return self.effects.get(name, self._said.get(name, Effect.UNKNOWN))


def _recorded_kind(kind: type[Any]) -> type[Any]:
    async def call_tool_(
        self: Any, name: str, arguments: dict[str, Any] | None = None, *args: Any, **options: Any
    ) -> Any:
        run = current.get()
        if not isinstance(run, Run):
            return await kind.call_tool(self, name, arguments, *args, **options)
        tools: _Tools = self.triage
        if not tools.knows(name):
            await _list_all(self)

        async def do() -> Any:
            try:
                return await kind.call_tool(self, name, arguments, *args, **options)
            except MCPError as error:
                _name(error)
                raise

        shown = f"{tools.prefix}.{name}" if tools.prefix else name
        call = ToolCall(shown, arguments or {}, tools.effect(name), None, RESULT)
        return await call_tool(run, call, do)

    async def list_tools(self: Any, *args: Any, **options: Any) -> ListToolsResult:
        page: ListToolsResult = await kind.list_tools(self, *args, **options)
        self.triage.note(page.tools)
        return page

    names: dict[str, Any] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__slots__": ("triage",),
        "triage_recorded": True,
        "call_tool": call_tool_,
    }
    if hasattr(kind, "list_tools"):
        names["list_tools"] = list_tools
    return type(kind.__name__, (kind,), names)


async def _list_all(session: Any) -> None:
    """Ask the server what tools it has. What it does not tell is `unknown`, and no failure."""
    tools: _Tools = session.triage
    if isinstance(session, ClientSessionGroup):
        tools.note(list(session.tools.values()))
    else:
        with suppress(MCPError):
            cursor: str | None = None
            for _ in range(_MOST_PAGES):
                cursor = (await _page(session, cursor)).next_cursor
                if cursor is None:
                    break
    tools.listed = True  # at the end: calls side by side must not take it for unknown meanwhile


async def _page(session: Any, cursor: str | None) -> ListToolsResult:
    if isinstance(session, Client):
        return await session.list_tools(cursor=cursor)
    params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
    found: ListToolsResult = await session.list_tools(params=params)
    return found


# Results and errors -------------------------------------------------------------------------------


def _dump(result: Any) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def _load(data: Any) -> CallToolResult:
    if not isinstance(data, dict) or "content" not in data:
        # What a person says has happened.
        return CallToolResult(content=[TextContent(text=as_text(data))], structured_content=data)
    return CallToolResult.model_validate(data)


def _failed(data: Any) -> Failed | None:
    found = mapping(data)
    if found.get("isError") is not True:
        return None
    text = content_text(listed(found.get("content")))
    return Failed(text or "the tool failed, and did not say why", "ToolError")


RESULT = Form(_dump, _load, failed=_failed)

_CONNECTION_CLOSED, _TIMED_OUT = -32000, -32001
_NEVER_RAN = {
    -32700: Cause.BAD_REQUEST,
    -32600: Cause.BAD_REQUEST,
    -32601: Cause.BAD_REQUEST,
    -32602: Cause.INVALID_ARGUMENTS,
}
"""Codes of JSON-RPC by which a server refuses a request before it does anything."""


def _name(error: MCPError) -> None:
    """Say of an error what its code says."""
    if error.code in _NEVER_RAN:
        hint(error, failure_type=FailureType.SCHEMA_MISMATCH, cause=_NEVER_RAN[error.code])
        not_attempted(error)
    elif error.code == _TIMED_OUT:
        hint(error, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.TIMEOUT)
    elif error.code == _CONNECTION_CLOSED:
        hint(error, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.CONNECTION)
