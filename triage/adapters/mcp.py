"""MCP: sessions whose tool calls are recorded while a run makes them.

    async with Client("http://localhost:8000/mcp") as plain:
        client = record(plain, effects={"charge": "once"})
        result = await client.call_tool("charge", {"cents": 300})

A session that is gone (the server was started again) stays gone. `record` takes what opens sessions, too,
and opens a new one then:

    async with record(lambda: Client("http://localhost:8000/mcp")) as client:
        ...

What a server says of its tools (`readOnlyHint`, `idempotentHint`, `destructiveHint`) says what may be
done again; a result that is an error is returned, and its call has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

import anyio

from .extras import missing

try:
    import mcp  # noqa: F401 # pyright: ignore[reportUnusedImport] - the first of its imports
except ImportError as error:
    raise missing("mcp", error) from error

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

from triage.core.capture import hint, not_attempted
from triage.core.errors import UsageError, misuse
from triage.core.foreign import frames_of
from triage.core.messages.reading import as_text, content_text, listed, mapping
from triage.core.observers import logger
from triage.core.steps import effect_of
from triage.core.taxonomy import Cause, Effect, FailureType
from triage.engine.calls import Run
from triage.engine.run import current

from .calls import Declared, Failed, Form, RecordedToolCall, make
from .tools import effect_of_hints

__all__ = ["Reopening", "effect_of_tool", "record"]


S = TypeVar("S", Client, ClientSession, ClientSessionGroup, "Reopening")
Factory = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a session, which is ready when its context is entered, and closes it."""

_KINDS = (Client, ClientSession, ClientSessionGroup)
_MOST_PAGES = 50


@overload
def record(
    session: S,
    *,
    effects: Mapping[str, Effect | str] | None = ...,
    trusted: bool = ...,
    prefix: str = ...,
    infer_effects: bool = ...,
) -> S: ...


@overload
def record(
    session: Factory,
    *,
    effects: Mapping[str, Effect | str] | None = ...,
    trusted: bool = ...,
    prefix: str = ...,
    infer_effects: bool = ...,
) -> Reopening: ...


def record(
    session: Any,
    *,
    effects: Mapping[str, Effect | str] | None = None,
    trusted: bool = False,
    prefix: str = "",
    infer_effects: bool = True,
) -> Any:
    """The session to use instead, whose tool calls are recorded inside of a run; outside it is the same.

    session: a `Client`, a `ClientSession` or a `ClientSessionGroup` of the package mcp. It is not
    changed, and shares its connection with the one that is given back, which has the same class. Or a
    function that opens one, `lambda: Client(url)`: a `Reopening` is given back, which opens another one
    when a session is gone.

    effects: what tools do to the world, by the server's name of them. trusted: whether you trust what the
    server says of the others. False: its annotations are claims, of which only the strict ones count
    (`destructiveHint`); else a tool's name tells its effect. infer_effects: False for a server whose
    names are not to be believed either: its tools are `unknown` then, as unsafe to repeat as `once`.
    prefix: stands before the tools' names in steps (`files.read`), to keep two servers apart that have
    tools of the same name.

    A session that is recorded already is given back as it is. Raises UsageError for anything that is
    none, and for an effect that is none.
    """
    if isinstance(session, Reopening):
        return session
    if not isinstance(session, _KINDS) and not (
        callable(session) and not isinstance(session, type)
    ):
        wanted = (
            "a Client, ClientSession or ClientSessionGroup of the package mcp, or what opens one"
        )
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
    if not isinstance(session, _KINDS):
        return Reopening(cast("Factory", session), tools)
    return _recorded_kind(type(session))(session, tools)


def effect_of_tool(annotations: ToolAnnotations | None) -> Effect:
    """What a server says that a tool does to the world; `unknown` where it does not say."""
    return effect_of_hints(annotations, trusted=True) or Effect.UNKNOWN


class _Tools:
    """What is known of a session's tools. listed: whether the server was asked. whole: it named all."""

    def __init__(
        self, effects: dict[str, Effect], *, trusted: bool, prefix: str, infer: bool
    ) -> None:
        self.effects = effects
        self.prefix = prefix
        self.listed = self.whole = False
        self._trusted = trusted
        self._unsaid = None if infer else Effect.UNKNOWN
        self._said: dict[str, Effect | None] = {}
        self._schemas: dict[str, Mapping[str, Any] | None] = {}

    def note(self, tools: list[Tool]) -> None:
        """The server has told of these."""
        for tool in tools:
            self._said[tool.name] = effect_of_hints(tool.annotations, trusted=self._trusted)
            self._schemas[tool.name] = tool.input_schema

    def knows(self, name: str) -> bool:
        """Whether there is nothing more to be found out about a tool."""
        return self.listed or name in self.effects or name in self._said

    def effect(self, name: str) -> Effect | None:
        """What a tool does to the world; None where only its name tells."""
        return self.effects.get(name, self._said.get(name)) or self._unsaid

    def call(
        self, do: Callable[[], Any], name: str, arguments: dict[str, Any] | None
    ) -> RecordedToolCall:
        """A call of a tool, to be recorded."""
        run = current.get()
        if run is not None:
            run.session.recorded_tools |= {name, *self._said, *self.effects}
        shown = f"{self.prefix}.{name}" if self.prefix else name
        given, effect = arguments or {}, self.effect(name)

        def declared() -> Declared:
            return Declared(self._schemas.get(name), name in self._schemas or not self.whole)

        return RecordedToolCall(do, shown, given, effect=effect, form=RESULT, declared=declared)


_GONE = "the MCP session is gone"


class _Opened:
    """One session of a `Reopening`. error: why it could not be opened."""

    def __init__(self) -> None:
        self.session: Any = None
        self.error: Exception | None = None
        self.ready, self.closing, self.closed = anyio.Event(), anyio.Event(), anyio.Event()


class Reopening:
    """A session that is opened when it is first needed, and anew when it is gone; made by `record`.

    Enter it for as long as it is used; what it does not have is that of the session. A call that meets a
    session that is gone fails, as its answer may be lost; the next one opens another session.
    """

    triage_recorded = True

    def __init__(self, factory: Factory, tools: _Tools) -> None:
        self.triage = tools
        self._factory = factory
        self._opened: _Opened | None = None
        self._stack = AsyncExitStack()
        self._group: Any = None
        self._lock = anyio.Lock()

    def __getattr__(self, name: str) -> Any:
        opened = self.__dict__.get("_opened")
        if opened is None or opened.session is None:
            raise AttributeError(
                f"no session is open yet, which could have {name}; call a tool first"
            )
        return getattr(opened.session, name)

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if self._opened is not None:
            self._opened.closing.set()
        self._group = None
        return await self._stack.__aexit__(kind, error, traceback)

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *args: Any, **options: Any
    ) -> Any:
        """Call a tool, as a session does; inside of a run the call is recorded."""

        async def do() -> Any:
            result = await self._asked("call_tool", name, arguments, *args, **options)
            if self._opened is not None:
                await _list_after(result, self._opened.session, self.triage)
            return result

        run = current.get()
        if not isinstance(run, Run):
            return await do()
        if not self.triage.knows(name):
            opened = await self._open()
            await _list_all(opened.session, self.triage)
        return await make(run, self.triage.call(do, name, arguments))

    async def list_tools(self, *args: Any, **options: Any) -> ListToolsResult:
        """Ask the server what tools it has."""
        page: ListToolsResult = await self._asked("list_tools", *args, **options)
        self.triage.note(page.tools)
        return page

    async def _asked(self, method: str, *args: Any, **options: Any) -> Any:
        opened = await self._open()
        try:
            return await getattr(opened.session, method)(*args, **options)
        except Exception as error:
            if _name(error) or opened.closed.is_set():
                opened.closing.set()
            raise

    async def _open(self) -> _Opened:
        """The session that is open, or another one."""
        if self._group is None:
            raise UsageError("enter the session first: async with record(…) as session")
        async with self._lock:
            opened = self._opened
            if opened is None or opened.closing.is_set() or opened.closed.is_set():
                opened = self._opened = _Opened()
                self._group.start_soon(self._hold, opened)
            await opened.ready.wait()
        if opened.error is not None:
            self._opened = None
            hint(opened.error, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.CONNECTION)
            not_attempted(opened.error)
            raise opened.error
        return opened

    async def _hold(self, opened: _Opened) -> None:
        """Keep a session open in one task, which some transports need, outside of any run."""
        current.set(None)
        try:
            async with self._factory() as opened.session:
                opened.ready.set()
                await opened.closing.wait()
        except Exception as error:
            if opened.ready.is_set():
                logger.debug("an MCP session ended: %r", error)
            else:
                opened.error = error
        finally:
            opened.closed.set()
            opened.ready.set()


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
            await _list_all(self, tools)

        async def do() -> Any:
            try:
                result = await kind.call_tool(self, name, arguments, *args, **options)
            except Exception as error:
                if _name(error):
                    logger.warning("%s; record(lambda: …) of what opens it opens a new one", _GONE)
                raise
            await _list_after(result, self, tools)
            return result

        return await make(run, tools.call(do, name, arguments))

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


async def _list_after(result: Any, session: Any, tools: _Tools) -> None:
    """After an error, ask the server what tools it has: by that it is judged whether the tool has run."""
    if getattr(result, "is_error", False) and not tools.listed:
        with suppress(Exception), anyio.move_on_after(_LISTING_S):
            await _list_all(session, tools)


_LISTING_S = 5.0


async def _list_all(session: Any, tools: _Tools) -> None:
    """Ask the server what tools it has. What it does not tell is `unknown`, and no failure."""
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
                tools.note(page.tools)
                cursor = page.next_cursor
                if cursor is None:
                    tools.whole = True
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

_CONNECTION_CLOSED, _TIMED_OUT, _INVALID_REQUEST = -32000, -32001, -32600
_NEVER_RAN = {-32601: Cause.BAD_REQUEST, -32602: Cause.INVALID_ARGUMENTS}
"""Codes of JSON-RPC by which a server refuses a request before it does anything. The client itself gives
others (-32600, -32700) to answers that it cannot read."""
_BROKEN = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)


def _name(error: Exception) -> bool:
    """Say of an error what its code says; whether the session is gone.

    A client's requests are valid, so an invalid one was refused for its session. The code of a timeout is a
    server's for a session that it does not know, where the client itself has not waited in vain.
    """
    if isinstance(error, _BROKEN):
        hint(error, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.CONNECTION)
        return True
    if not isinstance(error, MCPError):
        return False
    if error.code in _NEVER_RAN:
        hint(error, failure_type=FailureType.SCHEMA_MISMATCH, cause=_NEVER_RAN[error.code])
        not_attempted(error)
        return False
    if error.code == _TIMED_OUT and isinstance(error.__context__, TimeoutError):
        hint(error, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.TIMEOUT)
        return False
    if error.code not in (_CONNECTION_CLOSED, _TIMED_OUT, _INVALID_REQUEST):
        return False
    hint(error, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.CONNECTION)
    refused = error.code != _CONNECTION_CLOSED and "session" in str(error).casefold()
    if refused or _is_unsent(error):
        not_attempted(error)
    return True


def _is_unsent(error: Exception) -> bool:
    """Whether what sends a request has raised before it did anything: its connection was closed already."""
    frames = frames_of(error)
    code = frames[-1].f_code if frames else None
    if code is None or code.co_name != "send_raw_request":
        return False
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return set(frames[-1].f_locals) <= set(given)
