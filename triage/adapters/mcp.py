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

from triage.core import (
    Cause,
    Effect,
    FailureType,
    UsageError,
    effect_of,
    hint,
    misuse,
    not_attempted,
)
from triage.core.messages.base import as_text, content_text, listed, mapping
from triage.engine import Run, current

from .calls import Failed, Form, RecordedToolCall, make
from .tools import effect_of_hints

__all__ = ["effect_of_tool", "record"]


S = TypeVar("S", Client, ClientSession, ClientSessionGroup)

_KINDS = (Client, ClientSession, ClientSessionGroup)
_MOST_PAGES = 50


def record(
    session: S,
    *,
    effects: Mapping[str, Effect | str] | None = None,
    trusted: bool = False,
    prefix: str = "",
    infer_effects: bool = True,
) -> S:
    """The session to use instead, whose tool calls are recorded inside of a run; outside it is the same.

    session: a `Client`, a `ClientSession` or a `ClientSessionGroup` of the package mcp. It is not
    changed, and shares its connection with the one that is given back, which has the same class.

    effects: what tools do to the world, by the server's name of them. trusted: whether you trust what the
    server says of the others. False: its annotations are claims, of which only the strict ones count
    (`destructiveHint`); else a tool's name tells its effect. infer_effects: False for a server whose
    names are not to be believed either: its tools are `unknown` then, as unsafe to repeat as `once`.
    prefix: stands before the tools' names in steps (`files.read`), to keep two servers apart that have
    tools of the same name.

    A session that is recorded already is given back as it is. Raises UsageError for anything that is
    none, and for an effect that is none.
    """
    if not isinstance(session, _KINDS):
        wanted = "a Client, ClientSession or ClientSessionGroup of the package mcp"
        raise misuse("mcp.record(session)", session, wanted)
    for option, flag in (("trusted", trusted), ("infer_effects", infer_effects)):
        if not isinstance(flag, bool):
            raise misuse(f"mcp.record({option}=…)", flag, "True or False")
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
    tools = _Tools(known, trusted=trusted, prefix=prefix, infer=infer_effects)
    recorded: S = _recorded_kind(type(session))(session, tools)
    return recorded


def effect_of_tool(annotations: ToolAnnotations | None) -> Effect:
    """What a server says that a tool does to the world; `unknown` where it does not say."""
    return effect_of_hints(annotations, trusted=True) or Effect.UNKNOWN


class _Tools:
    """What is known of a session's tools. listed: whether the server was asked."""

    def __init__(
        self, effects: dict[str, Effect], *, trusted: bool, prefix: str, infer: bool
    ) -> None:
        self.effects = effects
        self.prefix = prefix
        self.listed = False
        self._trusted = trusted
        self._unsaid = None if infer else Effect.UNKNOWN
        self._said: dict[str, Effect | None] = {}

    def note(self, tools: list[Tool]) -> None:
        """The server has told of these."""
        for tool in tools:
            self._said[tool.name] = effect_of_hints(tool.annotations, trusted=self._trusted)

    def knows(self, name: str) -> bool:
        """Whether there is nothing more to be found out about a tool."""
        return self.listed or name in self.effects or name in self._said

    def effect(self, name: str) -> Effect | None:
        """What a tool does to the world; None where only its name tells."""
        return self.effects.get(name, self._said.get(name)) or self._unsaid


def _recorded_kind(kind: type[Any]) -> type[Any]:
    def __init__(self: Any, session: Any, tools: _Tools) -> None:  # noqa: N807 - of the class made below
        self.__dict__ = session.__dict__  # one session, with one method that is another
        self.triage = tools

    async def call_tool(
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
        effect = tools.effect(name)
        return await make(
            run, RecordedToolCall(do, shown, arguments or {}, effect=effect, form=RESULT)
        )

    async def list_tools(self: Any, *args: Any, **options: Any) -> ListToolsResult:
        page: ListToolsResult = await kind.list_tools(self, *args, **options)
        self.triage.note(page.tools)
        return page

    names: dict[str, Any] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__slots__": ("triage",),
        "triage_recorded": True,
        "__init__": __init__,
        "call_tool": call_tool,
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
                if isinstance(session, Client):
                    page = await session.list_tools(cursor=cursor)
                else:
                    params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
                    page = await session.list_tools(params=params)
                cursor = page.next_cursor
                if cursor is None:
                    break
    tools.listed = True  # at the end: calls side by side must not take it for unknown meanwhile


def _dump(result: Any) -> Any:
    return result.model_dump(mode="json", warnings=False, by_alias=True, exclude_none=True)


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
