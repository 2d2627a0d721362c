"""A wrapped agent cannot be told from a bare one on the wire, nor by what its own code is given."""

from __future__ import annotations

import inspect
import json
import re
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from http.client import parse_headers
from io import BytesIO
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, NamedTuple, TypeAlias, cast

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_server import cut_off, fails, serving
from store_kinds import EXAMPLES

from triage import Agent, TriageError
from triage.strategies import FailurePolicy
from triage.testing import VirtualTime
from triage.testing.adapter_contract import Call, Cut, Fails, Rule, Script, World, loopback, says
from triage.testing.adapter_contract import asks as asks_for

from .hosted_models import WAYS, Said, Tool, stream
from .own_loops import CLIENTS, PARAMETERS, own_loop

pytestmark = [pytest.mark.usefixtures("theirs_may_block")]


# What is sent ---------------------------------------------------------------------------------------


class _Passing(BaseRequestHandler):
    """Passes one connection on to the server behind, and keeps what the client sends."""

    def handle(self) -> None:
        tap = cast("_Tap", self.server)
        with socket.create_connection(tap.behind) as server:
            back = threading.Thread(target=_pass, args=(server, self.request, lambda _: None))
            back.start()
            _pass(self.request, server, tap.sent.extend)
            back.join()


def _pass(source: socket.socket, target: socket.socket, keep: Callable[[bytes], None]) -> None:
    try:
        while data := source.recv(1 << 16):
            keep(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, target):
            one.close()


class _Tap(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, behind: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind = behind
        self.sent = bytearray()


@contextmanager
def tapped(url: str) -> Generator[_Tap]:
    """A server before the one at the address, which keeps the bytes that pass."""
    host, port = url.removeprefix("http://").split(":")
    tap = _Tap((host, int(port)))
    thread = threading.Thread(target=tap.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield tap
    finally:
        tap.shutdown()
        thread.join()
        tap.server_close()


class Sent(NamedTuple):
    """A request as it was sent."""

    line: bytes
    headers: tuple[tuple[str, str], ...]
    body: bytes


_OF_THE_TIME = {"host", "authorization", "x-amz-date", "amz-sdk-invocation-id", "amz-sdk-request"}
"""Headers that no two requests have alike."""


def requests_in(sent: bytes) -> list[Sent]:
    """The requests in the bytes of clients, which send one after the other."""
    found: list[Sent] = []
    rest = BytesIO(sent)
    while line := rest.readline():
        headers = parse_headers(rest)
        size = headers["content-length"]
        body = rest.read(int(size)) if size else _chunks(rest)
        kept = tuple((k, v) for k, v in headers.items() if k.lower() not in _OF_THE_TIME)
        found.append(Sent(line, kept, body))
    return found


def _chunks(rest: BytesIO) -> bytes:
    body = b""
    while size := int(rest.readline(), 16):
        body += rest.read(size)
        rest.readline()
    rest.readline()
    return body


# What is played -------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """An answer of the model. calls: each with the result of its tool. words: where it asks for none."""

    words: str
    calls: tuple[tuple[Call, str], ...] = ()


class Refused(NamedTuple):
    """The provider refuses the request of this number, from 1; status 0: it breaks the connection."""

    number: int
    status: int


class Told(NamedTuple):
    """What came of a run. errors: class and text of those that reached the agent's own code."""

    sent: list[Sent]
    result: Any
    errors: list[tuple[str, str]]


Loop: TypeAlias = Callable[[str], Any]


class Line(NamedTuple):
    """A loop around a client, and the provider that it asks.

    serve: a provider of these turns, which may refuse one, as a context manager that gives its address.
    loop: around the client, with these tools.
    """

    name: str
    serve: Callable[[list[Turn], Refused | None], Any]
    loop: Callable[[str, dict[str, Any]], AbstractAsyncContextManager[Loop]]
    streamed: bool


def _scripted(turns: list[Turn], refused: Refused | None) -> Any:
    planned: list[Any] = [
        asks_for(*(call for call, _ in turn.calls)) if turn.calls else says(turn.words)
        for turn in turns
    ]
    if refused is not None:
        broken = Cut(says("never to be read in whole"))
        failed = Fails(refused.status, "It does not work.") if refused.status else broken
        planned.insert(refused.number - 1, failed)
    faults = dict(enumerate(planned, 1))
    return loopback(World(Script((Rule(planned[-1]),), faults=faults)))


def _client(name: str, *, streamed: bool) -> Line:
    def loop(url: str, tools: dict[str, Any]) -> AbstractAsyncContextManager[Loop]:
        return own_loop(name, url, tools, stream=streamed)

    return Line(f"{name}{', streamed' if streamed else ''}", _scripted, loop, streamed)


def _hosted(way: Any) -> Line:
    @contextmanager
    def serve(turns: list[Turn], refused: Refused | None) -> Generator[str]:
        replies = []
        for number, turn in enumerate(turns):
            calls = tuple(
                (f"c{number}_{at}", call.tool, dict(call.arguments))  # type: ignore[arg-type]
                for at, (call, _) in enumerate(turn.calls)
            )
            replies.append(way.reply(Said("" if calls else turn.words, calls)))
        if refused is not None:
            broken = stream(way.form.kind, [], ends=False) if way.streamed else cut_off
            failed = fails(refused.status, "It does not work.") if refused.status else broken
            replies.insert(refused.number - 1, failed)
        with serving(*replies) as server:
            yield server.url

    @asynccontextmanager
    async def loop(url: str, tools: dict[str, Any]) -> AsyncGenerator[Loop]:
        declared = [Tool(name, schema) for name, schema in PARAMETERS.items()]

        def agent(task: str) -> str:
            messages = [way.user(task)]
            while True:
                message, said = way.ask(url, messages, declared)
                if not said.calls:
                    return str(said.text)
                outputs = [
                    anyio.from_thread.run(_called, tools[name], taken)
                    for _, name, taken in said.calls
                ]
                messages += [message, *way.results(said.calls, outputs)]

        yield agent

    return Line(str(way), serve, loop, way.streamed)


async def _called(tool: Any, arguments: dict[str, Any]) -> str:
    return str(await tool(**arguments))


LINES = [
    *(_client(name, streamed=streamed) for name in CLIENTS for streamed in (False, True)),
    *map(_hosted, WAYS),
]
TASK = "Do it — with “care” & 日本語 \\u00e9 </s>."


def played(line: Line, turns: list[Turn], refused: Refused | None = None, **options: Any) -> Told:
    """What comes of the turns. options: of the agent's; without any, it is called as it is."""
    results = {_key(call): text for turn in turns for call, text in turn.calls}
    tools = {name: _tool(name, results) for name in PARAMETERS}
    errors: list[tuple[str, str]] = []
    port = 0

    def note(error: Exception) -> None:
        text = re.sub(r"\b0x[0-9a-f]+", "0x", str(error).replace(str(port), "PORT"))
        errors.append((type(error).__qualname__, text))

    async def main() -> Any:
        async with line.loop(url, tools) as loop:
            if inspect.iscoroutinefunction(loop):

                async def agent(task: str) -> Any:
                    try:
                        return await loop(task)
                    except Exception as error:
                        note(error)
                        raise

                return await (Agent(agent, **options).run(TASK) if options else agent(TASK))

            def agent_sync(task: str) -> Any:
                try:
                    return loop(task)
                except Exception as error:
                    note(error)
                    raise

            if options:
                return await Agent(agent_sync, **options).run(TASK)
            return await anyio.to_thread.run_sync(agent_sync, TASK)

    with line.serve(turns, refused) as behind, tapped(behind) as tap:
        port = tap.server_address[1]
        url = f"http://127.0.0.1:{port}"
        try:
            result = anyio.run(main)
        except TriageError:
            result = None
        except Exception:
            assert not options
            result = None
    return Told(requests_in(bytes(tap.sent)), result, errors)


def _key(call: Call) -> str:
    return f"{call.tool} {json.dumps(call.arguments, sort_keys=True)}"


def _tool(name: str, results: dict[str, str]) -> Any:
    async def tool(**arguments: Any) -> str:
        return results[_key(Call(name, arguments))]

    return tool


# Runs in which nothing is to be noticed: no call twice, no answer empty, none that tells of an error.
WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n\t"\\\x7f\u2028é日😀</&'),
    min_size=1,
    max_size=30,
).filter(str.strip)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    turns: list[Turn] = []
    for number in range(draw(st.integers(0, 3))):
        calls = []
        for at in range(draw(st.integers(1, 2))):
            named = f"{number}.{at}"
            search = Call("search", {"query": f"{named} {draw(WORDS)}"})
            charge = Call("charge", {"cents": 10 * number + at})
            calls.append((draw(st.sampled_from([search, charge])), f"{named}: {draw(WORDS)}"))
        turns.append(Turn("", tuple(calls)))
    return [*turns, Turn(f"So: {draw(WORDS)}")]


STATUSES = [400, 401, 404, 422, 429, 500, 503, 0]


@pytest.mark.parametrize("line", LINES, ids=[line.name for line in LINES])
@settings(max_examples=3 * EXAMPLES)
@given(turns=conversations())
def test_where_nothing_fails_requests_and_results_are_the_same(
    line: Line, turns: list[Turn]
) -> None:
    bare = played(line, turns)
    wrapped = played(line, turns, environment=VirtualTime())
    assert bare.result is not None
    assert len(bare.sent) == len(turns)
    assert wrapped == bare


@pytest.mark.parametrize("line", LINES, ids=[line.name for line in LINES])
@settings(max_examples=3 * EXAMPLES)
@given(turns=conversations(), status=st.sampled_from(STATUSES), data=st.data())
def test_an_error_reaches_the_agent_as_it_is_or_not_at_all(
    line: Line, turns: list[Turn], status: int, data: st.DataObject
) -> None:
    if not (status or line.streamed):
        status = 500
    refused = Refused(data.draw(st.integers(1, len(turns))), status)
    healthy, bare = played(line, turns), played(line, turns, refused)
    mended = played(line, turns, refused, environment=VirtualTime())
    if not bare.errors:  # the client tries again itself, or takes what broke off for an answer
        assert mended.result == healthy.result or status == 0
        return
    policy = FailurePolicy.escalate_by_default()
    stopped = played(line, turns, refused, policy=policy, environment=VirtualTime())
    assert stopped == bare
    number = refused.number
    assert mended.sent[:number] == bare.sent
    if mended.errors:
        assert mended.errors[0] == bare.errors[0]
    else:
        assert mended.result == healthy.result
        again = [*healthy.sent[:number], *healthy.sent[number - 1 :]]
        assert [_unnumbered(one) for one in mended.sent] == [_unnumbered(one) for one in again]


def _unnumbered(sent: Sent) -> Sent:
    """A request without the numbers of requests in the ids that the provider gave its calls."""
    return sent._replace(body=re.sub(rb"(call|toolu|fc|msg|resp)_\d+", rb"\1", sent.body))
