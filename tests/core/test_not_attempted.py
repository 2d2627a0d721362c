"""Which failed calls were not attempted, and which are in doubt: real clients over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import smtplib
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx
import httpx2
import openai
import psycopg
import pytest
import redis
import redis.asyncio
import redis.backoff
import redis.retry
import requests
import requests.adapters
import tenacity
import urllib3
from store_kinds import POSTGRES, missing
from support import recovers
from tables import table

import triage
from core.failing_servers import (
    CLOSE,
    HANG_UP,
    REFUSE,
    RESET,
    SILENCE,
    RedisThatDies,
    Server,
    full_port,
    untrusted_port,
)
from core.failing_servers import (
    http as answer,
)
from triage import Agent, Retry, TriageSuspendedError

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

HASTE = "retry-after-ms: 1"
Act = Callable[[], Any]
FREE: dict[str, Act] = {}
DOUBT: dict[str, Act] = {}


@pytest.fixture
def anyio_backend() -> str:
    """The clients of this file run on asyncio."""
    return "asyncio"


def free(act: Act) -> Act:
    """Put a call among those that were not attempted."""
    FREE[act.__name__] = act
    return act


def doubt(act: Act) -> Act:
    """Put a call among those that may have happened."""
    DOUBT[act.__name__] = act
    return act


# --- Calls of the clients, for one server each.


def post(url: str, **options: Any) -> None:
    with httpx.Client(timeout=5, **options) as client:
        client.post(url, json={"cents": 1}).raise_for_status()


async def post_async(url: str, **options: Any) -> None:
    async with httpx.AsyncClient(timeout=5, **options) as client:
        (await client.post(url, json={"cents": 1})).raise_for_status()


def post_with_requests(url: str, retries: Any = None, **options: Any) -> None:
    with requests.Session() as session:
        session.trust_env = False
        if retries is not None:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.post(url, json={"cents": 1}, **{"timeout": 5, **options}).raise_for_status()


def post_with_urllib3(url: str, retries: Any) -> None:
    with urllib3.PoolManager() as pool:
        pool.request("POST", url, body=b"1", retries=retries, timeout=5)


def post_with_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(url, data=b"1", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def again(times: int = 3, **options: Any) -> urllib3.Retry:
    return urllib3.Retry(times, allowed_methods=None, backoff_factor=0, **options)


class HastyOpenAI(openai.OpenAI):
    """Does not wait before it tries again."""

    def _calculate_retry_timeout(self, *args: Any, **kwargs: Any) -> float:
        return 0


class HastyAsyncOpenAI(openai.AsyncOpenAI):
    """Does not wait before it tries again."""

    def _calculate_retry_timeout(self, *args: Any, **kwargs: Any) -> float:
        return 0


MESSAGES: Any = [{"role": "user", "content": "buy it"}]


def ask_openai(server: Server, max_retries: int) -> None:
    with HastyOpenAI(api_key="k", base_url=server.url, max_retries=max_retries) as client:
        client.chat.completions.create(model="m", messages=MESSAGES)


async def ask_openai_async(server: Server, max_retries: int) -> None:
    async with HastyAsyncOpenAI(
        api_key="k", base_url=server.url, max_retries=max_retries
    ) as client:
        await client.chat.completions.create(model="m", messages=MESSAGES)


def ask_anthropic(server: Server, max_retries: int) -> None:
    with anthropic.Anthropic(api_key="k", base_url=server.url, max_retries=max_retries) as client:
        client.messages.create(model="m", messages=MESSAGES, max_tokens=20)


NO_WAIT = redis.retry.Retry(redis.backoff.NoBackoff(), 3)
REDIS: dict[str, Any] = {"host": "127.0.0.1", "protocol": 2, "retry": NO_WAIT}


def increment(server: Server) -> None:
    with redis.Redis(port=server.port, **REDIS) as client:
        client.incr("sold")


async def increment_async(server: Server) -> None:
    backoff = redis.backoff.NoBackoff()
    options = REDIS | {"retry": redis.asyncio.retry.Retry(backoff, 3)}
    async with redis.asyncio.Redis(port=server.port, **options) as client:
        await client.incr("sold")


def at(call: Callable[[Server], Any], *replies: Any) -> Act:
    """A call to a server that answers so."""

    async def act() -> None:
        with Server(*replies) as server:
            made = call(server)
            if inspect.isawaitable(made):
                await made

    return act


def dead() -> str:
    """The address of a port that refuses."""
    with Server(REFUSE) as server:
        return server.url


def status(code: int, *headers: str) -> None:
    with Server(answer(code, *headers)) as server:
        post(server.url)


# --- Not attempted: nothing was connected to, or the one request was refused.


@free
def httpx_refused() -> None:
    post(dead())


@free
def httpx2_refused() -> None:
    with httpx2.Client() as client:
        client.post(dead())


@free
def httpx_connect_timeout() -> None:
    with full_port() as url, httpx.Client(timeout=httpx.Timeout(5, connect=0.01)) as client:
        client.post(url)


@free
async def httpx_async_connect_timeout() -> None:
    with full_port() as url:
        async with httpx.AsyncClient(timeout=httpx.Timeout(5, connect=0.01)) as client:
            await client.post(url)


@free
async def httpx_no_connection_left() -> None:
    limits = httpx.Limits(max_connections=1)
    body = answer(200)[:-5]
    with Server(body, REFUSE) as server:
        async with (
            httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(5, pool=0.01)) as client,
            client.stream("GET", server.url),
        ):
            await client.post(server.url)


FREE["httpx_untrusted"] = lambda: None  # replaced by the test that has a folder


@free
def requests_connect_timeout() -> None:
    with full_port() as url:
        post_with_requests(url, timeout=(0.01, 5))


@free
def psycopg_refused() -> None:
    with Server(REFUSE) as server:
        psycopg.connect(f"host=127.0.0.1 port={server.port}")


@free
def said_by_the_tool() -> None:
    raise triage.not_attempted(ValueError("looked at before it is sent"))


@free
def said_by_the_tool_of_bad_input() -> None:
    try:
        int("ten")
    except ValueError as error:
        raise triage.not_attempted(RuntimeError("no amount")) from error


@free
async def two_refused_in_a_group() -> None:
    url = dead()
    async with asyncio.TaskGroup() as group:
        group.create_task(post_async(url))
        group.create_task(post_async(url))


@free
async def one_refused_in_a_group_of_anyio() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(post_async, dead())


class Refusal(Exception):
    """An error of a client of somebody's own, which says the status."""

    def __init__(self, status_code: int) -> None:
        super().__init__("refused")
        self.status_code = status_code


@free
def status_of_an_error_of_its_own() -> None:
    raise Refusal(404)


@free
def status_of_an_error_of_its_own_from_the_same() -> None:
    try:
        status(404)
    except httpx.HTTPStatusError as error:
        raise Refusal(404) from error


# --- In doubt: something may have been sent and taken.


@doubt
def httpx_read_timeout() -> None:
    with Server(SILENCE) as server, httpx.Client(timeout=httpx.Timeout(30, read=0.02)) as client:
        client.post(server.url)


@doubt
async def stopped_by_a_deadline() -> None:
    with Server(SILENCE) as server, anyio.fail_after(0.05):
        await post_async(server.url)


@doubt
def httpx_reset() -> None:
    with Server(RESET) as server:
        post(server.url)


@doubt
def http_client_closed() -> None:
    with Server(CLOSE) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/")
        connection.getresponse()


@doubt
def redis_died_then_refused() -> None:
    with RedisThatDies() as server:
        increment(server)


@doubt
async def redis_async_died_then_refused() -> None:
    with RedisThatDies() as server:
        await increment_async(server)


def connect_to_postgres() -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(POSTGRES, connect_timeout=5)
    except psycopg.OperationalError as error:
        missing("postgres", error)
        raise


@doubt
def psycopg_lost() -> None:
    with connect_to_postgres() as connection:
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@doubt
def psycopg_lost_then_refused() -> None:
    try:
        psycopg_lost()
    except psycopg.OperationalError:
        psycopg_refused()


TWICE: dict[str, Any] = {"stop": tenacity.stop_after_attempt(2)}


@doubt
def tenacity_loop_reset_then_404() -> None:
    with Server(RESET, answer(404)) as server:
        only = tenacity.retry_if_exception_type(httpx.TransportError)
        for attempt in tenacity.Retrying(retry=only, **TWICE):
            with attempt:
                post(server.url)


@doubt
def an_error_of_its_own_from_404() -> None:
    try:
        status(404)
    except httpx.HTTPStatusError as error:
        raise RuntimeError("charged, receipt missing") from error


@doubt
def an_error_of_its_own_from_429() -> None:
    try:
        status(429)
    except httpx.HTTPStatusError as error:
        raise ValueError("no receipt") from error


@doubt
def an_error_of_its_own_beside_a_refusal() -> None:
    try:
        post(dead())
    except httpx.ConnectError:
        raise RuntimeError("no receipt") from None


@doubt
def an_error_of_its_own_with_a_refusal_as_context() -> None:
    try:
        post(dead())
    except httpx.ConnectError:
        int("no receipt")


@doubt
def an_error_of_its_own_from_what_the_tool_said() -> None:
    raise RuntimeError("no receipt") from triage.not_attempted(ValueError("bad"))


@doubt
def a_status_of_its_own_from_a_timeout() -> None:
    try:
        httpx_read_timeout()
    except httpx.ReadTimeout as error:
        raise Refusal(404) from error


@doubt
def reset_then_another_server_refuses() -> None:
    try:
        httpx_reset()
    except httpx.ReadError:
        post(dead())


@doubt
async def reset_then_another_server_refuses_async() -> None:
    try:
        httpx_reset()
    except httpx.ReadError:
        await post_async(dead())


@doubt
def reset_then_another_server_refuses_without_context() -> None:
    try:
        httpx_reset()
    except httpx.ReadError:
        raise Refusal(404) from None


@doubt
def timeout_then_connect_timeout() -> None:
    try:
        with Server(SILENCE) as server, socket.create_connection(("127.0.0.1", server.port)) as one:
            one.settimeout(0.02)
            one.sendall(b"charge\r\n\r\n")
            one.recv(1)
    except TimeoutError:
        httpx_connect_timeout()


async def both(*acts: Act) -> None:
    errors: list[Exception] = []
    for act in acts:
        try:
            made = act()
            if inspect.isawaitable(made):
                await made
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("both", errors)


@doubt
async def a_group_as_the_cause() -> None:
    try:
        await both(httpx_refused, httpx_refused)
    except ExceptionGroup as error:
        raise RuntimeError("neither") from error


@doubt
async def a_group_of_refused_after_a_reset() -> None:
    try:
        httpx_reset()
    except httpx.ReadError:
        await both(httpx_refused)


# --- One call of one client each.

FREE |= {f"status_{code}": partial(status, code) for code in (401, 403, 404, 409, 412, 422, 429)}
FREE |= {
    "socket_refused": at(
        lambda server: socket.create_connection(("127.0.0.1", server.port)), REFUSE
    ),
    "anyio_refused": at(lambda server: anyio.connect_tcp("127.0.0.1", server.port), REFUSE),
    "anyio_refused_on_both_addresses": at(
        lambda server: anyio.connect_tcp("localhost", server.port), REFUSE
    ),
    "asyncio_refused": at(lambda server: asyncio.open_connection("127.0.0.1", server.port), REFUSE),
    "name_not_found": lambda: socket.getaddrinfo("nowhere.invalid", 80),
    "httpx_async_refused": lambda: post_async(dead()),
    "httpx_refused_with_retries_of_the_connection": lambda: post_async(
        dead(), transport=httpx.AsyncHTTPTransport(retries=1)
    ),
    "httpx_name_not_found": lambda: post("http://nowhere.invalid"),
    "httpx_no_tls_there": at(
        lambda server: post(server.url.replace("http:", "https:")), answer(400)
    ),
    "status_503_with_retry_after": lambda: status(503, "Retry-After: 0"),
    "requests_refused": lambda: post_with_requests(dead()),
    "requests_404": at(lambda server: post_with_requests(server.url), answer(404)),
    "requests_404_where_it_would_have_tried_again": at(
        lambda server: post_with_requests(server.url, again(status_forcelist=[500])), answer(404)
    ),
    "urllib3_refused": lambda: post_with_urllib3(dead(), retries=False),
    "urllib3_refused_with_no_retries_left": lambda: post_with_urllib3(dead(), retries=0),
    "urllib_refused": lambda: post_with_urllib(dead()),
    "urllib_404": at(lambda server: post_with_urllib(server.url), answer(404)),
    "http_client_refused": at(
        lambda server: http.client.HTTPConnection("127.0.0.1", server.port).request("POST", "/"),
        REFUSE,
    ),
    "smtp_refused": at(lambda server: smtplib.SMTP("127.0.0.1", server.port), REFUSE),
    "openai_refused": at(lambda server: ask_openai(server, 0), REFUSE),
    "openai_async_refused": at(lambda server: ask_openai_async(server, 0), REFUSE),
    "openai_429": at(lambda server: ask_openai(server, 0), answer(429)),
    "openai_404_where_it_would_have_tried_again": at(
        lambda server: ask_openai(server, 2), answer(404)
    ),
    "openai_409": at(lambda server: ask_openai(server, 0), answer(409)),
    "anthropic_refused": at(lambda server: ask_anthropic(server, 0), REFUSE),
    "anthropic_422": at(lambda server: ask_anthropic(server, 0), answer(422)),
    "redis_refused": at(increment, REFUSE),
    "redis_async_refused": at(increment_async, REFUSE),
    "psycopg_async_refused": at(
        lambda server: psycopg.AsyncConnection.connect(f"host=127.0.0.1 port={server.port}"), REFUSE
    ),
    "tenacity_tried_once": lambda: tenacity.retry(stop=tenacity.stop_after_attempt(1))(post)(
        dead()
    ),
    "tenacity_did_not_try_again": at(
        lambda server: tenacity.retry(retry=tenacity.retry_if_exception_type(httpx.TransportError))(
            post
        )(server.url),
        answer(404),
    ),
}
DOUBT |= {f"status_{code}": partial(status, code) for code in (400, 408, 500, 502, 503)}
DOUBT |= {
    "httpx_closed": at(lambda server: post(server.url), CLOSE),
    "smtp_closed": at(lambda server: smtplib.SMTP("127.0.0.1", server.port), HANG_UP),
    "requests_read_timeout": at(
        lambda server: post_with_requests(server.url, timeout=(5, 0.02)), SILENCE
    ),
    "requests_reset": at(lambda server: post_with_requests(server.url), RESET),
    "urllib3_reset_then_refused": at(lambda server: post_with_urllib3(server.url, again()), RESET),
    "urllib3_500_then_refused": at(
        lambda server: post_with_urllib3(server.url, again(status_forcelist=[500])), answer(500)
    ),
    "urllib3_always_500": at(
        lambda server: post_with_urllib3(server.url, again(1, status_forcelist=[500])),
        answer(500),
        answer(500),
    ),
    "requests_reset_then_refused": at(
        lambda server: post_with_requests(server.url, again()), RESET
    ),
    "requests_500_then_404": at(
        lambda server: post_with_requests(server.url, again(status_forcelist=[500])),
        answer(500),
        answer(404),
    ),
    "requests_reset_then_409": at(
        lambda server: post_with_requests(server.url, again()), RESET, answer(409)
    ),
    "requests_taken_and_shown_to_a_page_that_refuses": at(
        lambda server: post_with_requests(server.url), answer(303, "Location: /receipt")
    ),
    "requests_taken_and_shown_to_a_page_that_is_not": at(
        lambda server: post_with_requests(server.url),
        answer(303, "Location: /receipt"),
        answer(404),
    ),
    "httpx_taken_and_shown_to_a_page_that_refuses": at(
        lambda server: post(server.url, follow_redirects=True), answer(303, "Location: /receipt")
    ),
    "httpx_async_taken_and_shown_to_a_page_that_refuses": at(
        lambda server: post_async(server.url, follow_redirects=True),
        answer(303, "Location: /receipt"),
    ),
    "httpx_taken_and_shown_to_a_page_that_is_not": at(
        lambda server: post(server.url, follow_redirects=True),
        answer(303, "Location: /receipt"),
        answer(404),
    ),
    "urllib_taken_and_shown_to_a_page_that_refuses": at(
        lambda server: post_with_urllib(server.url), answer(303, "Location: /receipt")
    ),
    "urllib_taken_and_shown_to_a_page_that_is_not": at(
        lambda server: post_with_urllib(server.url), answer(303, "Location: /receipt"), answer(404)
    ),
    "openai_reset_then_refused": at(lambda server: ask_openai(server, 1), RESET),
    "openai_async_reset_then_refused": at(lambda server: ask_openai_async(server, 1), RESET),
    "openai_500_then_404": at(
        lambda server: ask_openai(server, 1), answer(500, HASTE), answer(404)
    ),
    "openai_409_twice": at(lambda server: ask_openai(server, 1), answer(409, HASTE), answer(409)),
    "anthropic_529_then_refused": at(lambda server: ask_anthropic(server, 1), answer(529, HASTE)),
    "anthropic_500_then_422": at(
        lambda server: ask_anthropic(server, 1), answer(500, HASTE), answer(422)
    ),
    "tenacity_reset_then_refused": at(
        lambda server: tenacity.retry(**TWICE)(post)(server.url), RESET
    ),
    "tenacity_reset_then_refused_and_raised_as_it_is": at(
        lambda server: tenacity.retry(reraise=True, **TWICE)(post)(server.url), RESET
    ),
    "tenacity_async_reset_then_refused_and_raised_as_it_is": at(
        lambda server: tenacity.retry(reraise=True, **TWICE)(post_async)(server.url), RESET
    ),
    "refused_and_timed_out_in_a_group": lambda: both(httpx_refused, httpx_read_timeout),
    "refused_and_something_else_in_a_group": lambda: both(httpx_refused, lambda: int("no")),
    "refused_and_something_else_in_a_group_of_groups": lambda: both(
        partial(both, httpx_refused), partial(both, httpx_refused, httpx_reset)
    ),
}


# --- What an agent does with them.


async def charged(act: Act, effect: str) -> tuple[int, bool]:
    """How often a tool was called whose first call failed so, and whether a person was asked."""
    calls = 0

    @triage.tool(effect=effect)
    async def charge() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            made = act()
            if inspect.isawaitable(made):
                await made
            pytest.fail("the call is to fail")
        return "charged"

    async def buys(task: str) -> str:
        return await charge()

    try:
        assert await Agent(buys, **recovers(Retry(), seam="off")).run("buy") == "charged"
    except TriageSuspendedError:
        return calls, True
    return calls, False


@table("effect", ["once", "unknown"])
@table("name", FREE)
async def test_a_call_that_cannot_have_happened_is_made_again(
    name: str, effect: str, tmp_path: Path
) -> None:
    if name == "httpx_untrusted":
        with untrusted_port(tmp_path) as url:
            assert await charged(lambda: post(url), effect) == (2, False)
    else:
        assert await charged(FREE[name], effect) == (2, False)


@table("effect", ["once", "unknown"])
@table("name", DOUBT)
async def test_a_call_that_may_have_happened_is_asked_about(name: str, effect: str) -> None:
    assert await charged(DOUBT[name], effect) == (1, True)


async def test_a_failure_that_the_agent_has_answered_says_nothing_of_the_next_call() -> None:
    calls: list[str] = []

    @triage.tool(effect="read")
    async def look() -> None:
        httpx_read_timeout()

    @triage.tool(effect="once")
    async def charge() -> str:
        calls.append("charge")
        if len(calls) == 1:
            await post_async(dead())
        return "charged"

    async def buys(task: str) -> str:
        try:
            await look()
        except httpx.ReadTimeout:
            return await charge()
        return "looked"

    assert await Agent(buys, **recovers(Retry(), seam="off")).run("buy") == "charged"
    assert calls == ["charge", "charge"]
