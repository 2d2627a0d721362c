"""A real browser, and the page served to it: one of each for the tests of a file."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)
from web.page_runs import journals
from web.page_served import Served

from examples.page import file_incidents
from triage.stores import SQLiteStore
from triage.web import Person, Role, app

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")
# On a busy machine a browser takes longer than Playwright's five seconds.
expect.set_options(timeout=15_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or another one that is installed."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        if os.environ.get("TRIAGE_REQUIRE_SERVICES") == "1":
            pytest.fail("TRIAGE_REQUIRE_SERVICES=1, and there is no chromium")
        pytest.skip("no browser: install Debian's chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store with the runs of `examples.page`, for somebody who may do everything."""
    runs = journals()
    store = SQLiteStore(tmp_path_factory.mktemp("page") / "runs.db")
    with Served(store, app(store, who=lambda _: Person("you", Role.ADMIN))) as serving:
        for run_id, events in reversed(runs.items()):
            serving.do(store.append(run_id, events, at=0, epoch=0))
        serving.do(file_incidents(store))
        yield serving


@pytest.fixture
def context(browser: Browser, served: Served) -> Iterator[BrowserContext]:
    """A browser that nobody has used, 1280 by 900."""
    made = browser.new_context(base_url=served.url, viewport={"width": 1280, "height": 900})
    made.set_default_timeout(15_000)
    yield made
    made.close()


@pytest.fixture
def tab(context: BrowserContext, served: Served) -> Iterator[Page]:
    """An empty tab. What a page says to the console, and what it asks of others, fails the test."""
    wrong: list[str] = []

    def asked(request: Request) -> None:
        if not request.url.startswith((served.url, "data:", "blob:")):
            wrong.append(f"asked for {request.url}")

    def said(message: ConsoleMessage) -> None:
        refused = re.search(r"responded with a status of (404|409|422)", message.text)
        if message.type in ("error", "warning") and refused is None:
            wrong.append(message.text)

    page = context.new_page()
    page.on("request", asked)
    page.on("console", said)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    yield page
    assert wrong == []
