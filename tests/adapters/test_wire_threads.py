"""Model requests that an agent makes in threads are those of its attempt, however it starts them."""

from __future__ import annotations

import asyncio
import decimal
import gc
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar
from multiprocessing.pool import ThreadPool
from typing import Any

import aiohttp
import anyio
import httpx
import openai
import pytest
from llm_server import says, serving
from support import always, on_both_backends
from tables import table

import triage
from triage import Agent, Retry, Run, current_run
from triage.core import StepRecorded, UsageError
from triage.testing import VirtualTime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
anyio_backend = on_both_backends()

Work = Callable[[], Any]
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """A pool that is older than any run, with its threads."""
    with ThreadPoolExecutor(2) as made:
        list(made.map(str, range(10)))
        yield made


# Ways into a thread: each calls the work there once, and waits for it.


def submitted(work: Work, pool: ThreadPoolExecutor) -> None:
    pool.submit(work).result()


def mapped(work: Work, pool: ThreadPoolExecutor) -> None:
    list(pool.map(lambda _: work(), [1]))


def pool_of_its_own(work: Work, _pool: ThreadPoolExecutor) -> None:
    with ThreadPoolExecutor() as own:
        own.submit(work).result()


def thread(work: Work, _pool: ThreadPoolExecutor) -> None:
    started = threading.Thread(target=work)
    started.start()
    started.join()


def daemon_of_a_class(work: Work, _pool: ThreadPoolExecutor) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            work()

    started = Worker(daemon=True)
    started.start()
    started.join()


def thread_of_a_thread(work: Work, pool: ThreadPoolExecutor) -> None:
    thread(lambda: submitted(work, pool), pool)


def timer(work: Work, _pool: ThreadPoolExecutor) -> None:
    started = threading.Timer(0, work)
    started.start()
    started.join()


def pool_of_multiprocessing(work: Work, _pool: ThreadPoolExecutor) -> None:
    with ThreadPool(1) as own:
        own.apply(work)


def default_executor(work: Work, _pool: ThreadPoolExecutor) -> None:
    async def asks() -> None:
        await asyncio.get_running_loop().run_in_executor(None, work)

    asyncio.run(asks())


WAYS = [
    submitted, mapped, pool_of_its_own, thread, daemon_of_a_class, thread_of_a_thread, timer,
    pool_of_multiprocessing, default_executor,
]  # fmt: skip


# Clients, each with one request.


def plain_httpx(url: str) -> None:
    httpx.post(f"{url}/v1/chat/completions", json=BODY).raise_for_status()


def openai_client(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        client.chat.completions.create(**BODY)


def openai_async(url: str) -> None:
    async def asks() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
            await client.chat.completions.create(**BODY)

    asyncio.run(asks())


def aiohttp_session(url: str) -> None:
    async def asks() -> None:
        async with aiohttp.ClientSession() as session:
            await (await session.post(f"{url}/v1/chat/completions", json=BODY)).read()

    asyncio.run(asks())


CLIENTS = [plain_httpx, openai_client, openai_async, aiohttp_session]


class Asking:
    """An agent that asks twice in threads and fails once behind it."""

    def __init__(self, work: Callable[[], None], **options: Any) -> None:
        self.models = 0
        self.attempts = 0
        self._work = work
        options = {"environment": VirtualTime(), "observers": [self._observe], **options}
        self.agent = Agent(self._attempt, always(Retry()), **options)

    def _observe(self, event: Any) -> None:
        self.models += isinstance(event, StepRecorded) and event.step.action == "model"

    def _attempt(self, task: str) -> str:
        self.attempts += 1
        self._work()
        self._work()
        if self.attempts == 1:
            raise ConnectionError("down")
        return "done"


@table("way", WAYS)
@table("client", CLIENTS)
async def test_requests_from_threads_are_recorded_and_reused(
    way: Callable[[Work, ThreadPoolExecutor], None],
    client: Callable[[str], None],
    pool: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(says("hello")) as server:
        asking = Asking(lambda: way(lambda: client(server.url), pool))
        assert await asking.agent.run("t") == "done"
        assert len(server.requests) == 2
    assert asking.models == 4  # two asked, two given again
    assert "outside of any run" not in caplog.text


@table("way", WAYS)
async def test_tools_called_in_threads_are_recorded_and_made_once(
    way: Callable[[Work, ThreadPoolExecutor], None], pool: ThreadPoolExecutor
) -> None:
    made: list[str] = []

    @triage.tool(effect="once")
    def pay(what: str) -> str:
        made.append(what)
        return "paid"

    bills = iter("abab")
    asking = Asking(lambda: way(lambda: pay(next(bills)), pool))
    assert await asking.agent.run("t") == "done"
    assert made == ["a", "b"]


OFF = """
import threading
from triage import Agent, current_run
def agent(task):
    def work():
        try:
            print(current_run())
        except Exception as error:
            print(type(error).__name__)
    started = threading.Thread(target=work)
    started.start()
    started.join()
Agent(agent, seam={seam!r}).run_sync("t")
"""


@table(("seam", "variable", "found"), [("off", "", "UsageError"), ("on", "off", "UsageError")])
async def test_without_the_seam_threads_are_as_ever(seam: str, variable: str, found: str) -> None:
    environment = {**os.environ, "TRIAGE_SEAM": variable}
    program = [sys.executable, "-c", OFF.format(seam=seam)]
    assert (await anyio.run_process(program, env=environment)).stdout.decode().strip() == found


@table("way", WAYS)
async def test_the_context_of_others_is_in_threads_as_without_us(
    way: Callable[[Work, ThreadPoolExecutor], None], pool: ThreadPoolExecutor
) -> None:
    theirs: ContextVar[int] = ContextVar("theirs", default=0)

    def found() -> list[Any]:
        seen: list[Any] = []
        with decimal.localcontext(prec=3):
            theirs.set(1)
            way(lambda: seen.append((theirs.get(), decimal.getcontext().prec)), pool)
        return seen

    def agent(task: str) -> list[Any]:
        return found()

    assert await Agent(agent).run("t") == await anyio.to_thread.run_sync(found)


class Service:
    """What a library starts when it is first needed, and what serves everybody from then on."""

    def __init__(self) -> None:
        self._given: queue.Queue[tuple[Work, Future[Any]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def ask(self, work: Work) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        answer: Future[Any] = Future()
        self._given.put((work, answer))
        return answer.result(10)

    def _serve(self) -> None:
        while (given := self._given.get()) is not None:
            work, answer = given
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)

    def end(self) -> None:
        self._given.put(None)
        if self._thread is not None:
            self._thread.join()


@contextmanager
def closing_service(service: Service) -> Generator[None]:
    try:
        yield
    finally:
        service.end()


@triage.tool(effect="once")
def note(what: str) -> str:
    return f"noted {what}"


async def test_a_thread_that_outlives_its_attempt_is_part_of_none() -> None:
    service, events = Service(), list[Any]()

    def asks(url: str) -> str:
        plain_httpx(url)
        return "asked"

    with serving(says("hello")) as server, closing_service(service):

        def agent(task: str, *, run: Run) -> str:
            if run.attempt == 1:
                service.ask(lambda: asks(server.url))
                raise ConnectionError("down")
            # The service does not belong to this attempt, and works all the same.
            return str(service.ask(lambda: asks(server.url)))

        made = Agent(agent, always(Retry()), environment=VirtualTime(), observers=[events.append])
        assert await made.run("t") == "asked"
        assert service.ask(lambda: asks(server.url)) == "asked"
        assert service.ask(lambda: note("it")) == "noted it"
        with pytest.raises(UsageError):
            service.ask(current_run)
        assert len(server.requests) == 3
    models = [one for one in events if isinstance(one, StepRecorded) and one.step.action == "model"]
    assert [one.attempt for one in models] == [1]


async def test_a_thread_keeps_no_run_alive() -> None:
    service, runs = Service(), list[weakref.ref[Run]]()
    with closing_service(service):

        def agent(task: str, *, run: Run) -> None:
            runs.append(weakref.ref(run))
            service.ask(lambda: None)

        await Agent(agent).run("t")
        gc.collect()
        assert [one() for one in runs] == [None]


async def test_the_threads_of_a_pool_serve_others_than_the_run_that_started_them() -> None:
    with ThreadPoolExecutor(1) as own:

        async def agent(task: str) -> str:
            return own.submit(current_run).result().run_id

        assert await Agent(agent).run("t", run_id="r1") == "r1"

        async def asks_bare(task: str, *, run: Run) -> None:
            with pytest.raises(UsageError):
                bare.run(lambda: own.submit(current_run).result())

        bare = Context()
        await Agent(asks_bare).run("t")
        with pytest.raises(UsageError):
            own.submit(current_run).result()


UNSEEN = """
import sys
from concurrent.futures import Future
import queue, threading
import httpx
from triage import Agent

work = queue.Queue()
def serve():
    for answer in iter(work.get, None):
        answer.set_result(httpx.post(sys.argv[1], json={"model": "m", "messages": []}).status_code)
threading.Thread(target=serve).start()  # older than any run

def ask(task=None):
    answer = Future()
    work.put(answer)
    return answer.result()

ask()
Agent(ask, seam="off").run_sync("t")
print("bare", file=sys.stderr, flush=True)
Agent(ask).run_sync("t")
Agent(ask).run_sync("t")
work.put(None)
"""


async def test_a_request_without_context_is_warned_of_once_while_runs_go_on() -> None:
    with serving(says("hello")) as server:
        url = f"{server.url}/v1/chat/completions"
        done = await anyio.run_process([sys.executable, "-c", UNSEEN, url])
        assert len(server.requests) == 4
    before, _, after = done.stderr.decode().partition("bare")
    assert "outside of any run" not in before
    assert after.count("outside of any run") == 1


async def test_a_thread_that_cannot_be_started_is_as_it_was() -> None:
    async def agent(task: str) -> str:
        started = threading.Thread(target=list)
        started.start()
        with pytest.raises(RuntimeError, match="once"):
            started.start()
        started.join()
        assert "run" not in vars(started)
        return "done"

    assert await Agent(agent).run("t") == "done"
