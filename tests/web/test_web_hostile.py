"""Texts from runs and incidents stay texts: no dialog, no request, no markup, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request
from tables import covering
from web.hostile_pages import EVIL, PAYLOADS, RUNS, run_of, texts_of
from web.page_served import Served

from triage.core import UsageError
from triage.incidents import IncidentDesk
from triage.stores import SQLiteStore
from triage.web import Person, Role, app
from triage.web.pages import slug

pytestmark = pytest.mark.usefixtures("theirs_may_block")
NAMES = ("<script>alert(1)</script>", "../../x", "a b\u202e")
"""Ids of runs."""
# Elements that no page of ours has, and attributes that none of ours has.
STRANGE = (
    "iframe, object, embed, base, img, video, math, animate, style, [onload], [onerror], [onclick], "
    "[onmouseover], [onfocus], [ontoggle], [onbegin], [style], a[href^='javascript' i], a[href^='data' i], "
    "a[href*='evil.example'], form[action*='evil.example'], script:not([src]), meta[http-equiv]"
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store whose every field is hostile, for somebody who may do all."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    store = SQLiteStore(folder / "runs.db")
    desk = IncidentDesk(store, owner="test")
    page = app(store, who=lambda _: Person("<b>ann</b>", Role.ADMIN), desk=desk)

    async def fill() -> None:
        for number in range(RUNS):
            events = run_of(f"hostile-{number}", texts_of(number), asks=number % 2 == 1)
            await store.append(events[0].run_id, events, at=0, epoch=0)
        for name in NAMES:
            await store.append(name, run_of(name, [name], asks=False), at=0, epoch=0)
        for number, text in enumerate(PAYLOADS):
            await desk.report(text if text.strip() else "x", stack_trace=text, key=str(number))
        for text in PAYLOADS:
            await desk.note("err-001", text[:4000], by="<i>bob</i>")

    with Served(store, page) as serving:
        serving.do(fill())
        yield serving
        serving.do(desk.close())


def addresses() -> Iterator[str]:
    yield from ("/", "/questions", "/incidents", "/incidents/err-001")
    yield from ("/?q=%3Cscript%3E&agent=%22%3E%3Cb%3E", "/questions?q=%22%3E%3Cimg%3E")
    yield from (f"/runs/{slug(name)}" for name in NAMES)
    yield from (f"/incidents/err-{number:03}" for number in range(2, len(PAYLOADS), 9))
    for number in range(RUNS):
        yield f"/runs/hostile-{number}/attempts"
        if number % 2:
            yield f"/runs/hostile-{number}/answer"
    for number, page in covering(range(RUNS), ("", "?page=2")):
        yield f"/runs/hostile-{number}{page}"
    for number, seq in covering(range(RUNS), (0, 2, 4, 8)):
        yield f"/runs/hostile-{number}/events/{seq}"


def test_hostile_texts_in_every_field_stay_texts(browser: Browser, hostile: Served) -> None:
    context = browser.new_context(base_url=hostile.url)
    tab, wrong = context.new_page(), list[str]()

    def asked(request: Request) -> None:
        if not request.url.startswith(hostile.url):
            wrong.append(f"asked for {request.url}")

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def opened(dialog: Dialog) -> None:
        wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    tab.on("request", asked)
    tab.on("console", said)
    tab.on("dialog", opened)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    for address in addresses():
        got = tab.goto(address, wait_until="load")
        assert got is not None
        assert got.status == 200, address
        strange = tab.locator(STRANGE).count()
        if strange or tab.url != f"{hostile.url}{address}":
            wrong.append(f"{address}: {strange} strange elements at {tab.url}")
    assert wrong == []
    context.close()


def test_hostile_texts_come_into_no_header_and_no_address(
    hostile: Served, browser: Browser
) -> None:
    context = browser.new_context(base_url=hostile.url)
    for address in addresses():
        got = context.request.get(address, headers={"Sec-Fetch-Site": "none"})
        assert EVIL not in str(got.headers)
        assert "set-cookie" not in got.headers
        assert not re.search(r"""(?:href|src|action)="(?:javascript|data|https?:|//)""", got.text())
    context.close()


def test_a_hostile_text_that_is_typed_comes_back_as_it_was_typed(
    browser: Browser, hostile: Served
) -> None:
    context = browser.new_context(base_url=hostile.url)
    tab: Page = context.new_page()
    tab.on("dialog", lambda dialog: pytest.fail(dialog.message))
    for text in ('"><script>alert(1)</script>', "{{ 7 * 7 }}", "' onfocus='alert(1)"):
        tab.goto("/runs/hostile-1/answer")
        tab.get_by_label("Reason").fill(text)
        tab.get_by_text("Change its arguments").click()
        tab.get_by_role("button", name="Approve with changes").click()
        assert tab.get_by_role("alert").is_visible()
        assert tab.get_by_label("Reason").input_value() == text
    context.close()


def test_a_name_that_would_break_a_line_is_nobody() -> None:
    with pytest.raises(UsageError, match="names such as"):
        app(SQLiteStore("x.db"), hosts=["evil.example\r\nx"])
