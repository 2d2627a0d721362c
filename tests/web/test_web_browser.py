"""The page in a real browser: live, by keyboard, narrow, dark, printed, without JavaScript."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # it has no stubs
from msgspec.structs import replace
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect
from web.page_runs import journals, long_run
from web.page_served import Served

from examples.page import Working, work
from triage.core import AttemptFailed, Event, Step, StepRecorded

PAGES = {
    "runs": "/",
    "run": "/runs/order-1003",
    "waiting": "/runs/order-1006",
    "attempts": "/runs/order-1002/attempts",
    "event": "/runs/order-1002/events/3",
    "questions": "/questions",
    "incidents": "/incidents",
    "incident": "/incidents/err-001",
    "problem": "/runs/nobody",
}
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

pytestmark = pytest.mark.usefixtures("theirs_may_block")


@contextmanager
def working(served: Served, run_id: str) -> Generator[Working]:
    """A run in progress."""
    stack = AsyncExitStack()

    async def begun() -> Working:
        return await stack.enter_async_context(work(served.store, run_id))

    run = served.do(begun())
    try:
        yield run
    finally:
        served.do(stack.aclose())


def append(served: Served, *events: Event) -> None:
    """Write events into a run that has them next."""
    served.do(served.store.append(events[0].run_id, events, at=events[0].seq, epoch=0))


# Without JavaScript -------------------------------------------------------------------------------


def test_without_javascript_runs_are_listed_searched_and_opened(
    browser: Browser, served: Served
) -> None:
    context = browser.new_context(base_url=served.url, java_script_enabled=False)
    tab = context.new_page()
    tab.goto("/")
    tab.get_by_placeholder("Error, task").fill("refused escalated")
    tab.get_by_role("button", name="Search").click()
    expect(tab.locator("#runs tr")).to_have_count(1)
    tab.get_by_role("link", name="order-1005").click()
    expect(tab.locator("h1")).to_contain_text("order-1005")
    expect(tab.locator("#events > li.bad")).to_have_count(6)
    tab.get_by_role("link", name="side by side").click()
    expect(tab.locator("h1")).to_have_text("Attempts side by side")
    expect(tab.locator("#theme")).to_be_hidden()
    context.close()


# Live ---------------------------------------------------------------------------------------------


def test_a_new_run_appears_on_top_of_the_list_and_changes_as_it_goes_on(
    tab: Page, served: Served
) -> None:
    tab.goto("/")
    expect(tab.locator("#live")).to_have_text("live")
    with working(served, "live-list") as run:
        row = tab.locator('tr[data-run="live-list"]')
        expect(row.locator(".badge")).to_have_text("running")
        expect(tab.locator("#runs tr").first).to_have_attribute("data-run", "live-list")
        served.call(run.step)
        expect(row.locator('[data-field="cost"]')).to_have_text("$0.0009")
    expect(row.locator(".badge")).to_have_text("done")
    expect(row.locator(".badge")).to_have_class("badge s-done")


def test_steps_appear_as_they_are_recorded_and_the_page_turns_when_the_run_ends(
    tab: Page, served: Served
) -> None:
    with working(served, "live-run") as run:
        tab.goto("/runs/live-run")
        expect(tab.locator("#live")).to_have_text("live")
        for number in range(1, 4):
            served.call(run.step)
            expect(tab.locator('[data-field="steps"]')).to_have_text(str(2 * number))
            expect(tab.locator("#events")).to_contain_text(f"Nothing on day {number}.")
    expect(tab.locator("h1 .badge")).to_have_text("done")
    expect(tab.locator("[data-refresh=result]")).to_contain_text("looked at 3 days")
    shown = [item.get_attribute("id") for item in tab.locator("#events > li").all()]
    tab.reload()
    assert [item.get_attribute("id") for item in tab.locator("#events > li").all()] == shown


def test_what_a_run_says_is_text_in_a_live_page_too(tab: Page, served: Served) -> None:
    run_id, hostile = "live-hostile", '<img src=x onerror="alert(1)"><script>alert(2)</script>'
    append(served, *long_run(1, run_id, ends=False))
    tab.goto(f"/runs/{run_id}")
    expect(tab.locator("#live")).to_have_text("live")
    step = Step(action=hostile, tool_called=hostile, tool_output=hostile)
    append(served, StepRecorded(run_id, 5, 1.8e9, attempt=1, index=1, step=step))
    expect(tab.locator("#e5")).to_contain_text("<img src=x onerror=")
    assert tab.locator("#events img, #events script").count() == 0


def test_a_page_that_arrives_late_does_not_undo_a_newer_one(tab: Page, served: Served) -> None:
    events = long_run(1, "live-late")
    append(served, *events[:1])
    tab.goto("/runs/live-late")
    expect(tab.locator("#live")).to_have_text("live")
    older = tab.request.get("/runs/live-late")
    asked: list[Route] = []

    def hold_the_first(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    with tab.expect_request("**/runs/live-late"):
        tab.route("**/runs/live-late", hold_the_first)
        append(served, *events[1:2])
    append(served, *events[2:])
    expect(tab.locator("h1 .badge")).to_have_text("done")
    with tab.expect_request("**/runs/live-late"):
        asked[0].fulfill(response=older)
    expect(tab.locator("h1 .badge")).to_have_text("done")


def test_a_page_that_could_not_be_loaded_is_loaded_later(
    context: BrowserContext, served: Served
) -> None:
    tab = context.new_page()  # whose console may speak of the refusal
    events = long_run(1, "live-away")
    append(served, *events[:1])
    tab.goto("/runs/live-away")
    expect(tab.locator("#live")).to_have_text("live")
    refused: list[Route] = []

    def refuse(route: Route) -> None:
        refused.append(route)
        if len(refused) == 1:
            route.fulfill(status=503, body="away", content_type="text/html")
        else:
            route.continue_()

    tab.route("**/runs/live-away", refuse)
    append(served, *events[1:])
    expect(tab.locator("h1 .badge")).to_have_text("done")
    assert len(refused) == 2


def test_a_tab_that_was_cut_off_catches_up(
    context: BrowserContext, tab: Page, served: Served
) -> None:
    events = long_run(4, "live-cut", ends=False)
    append(served, *events[:5])
    tab.goto("/runs/live-cut")
    expect(tab.locator("#live")).to_have_text("live")
    # A hidden tab lets its connection go, and takes it up when it is shown again.
    turn = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
    turn += " document.dispatchEvent(new Event('visibilitychange')); }"
    tab.evaluate(turn, arg=True)
    append(served, *events[5:])
    tab.evaluate(turn, arg=False)
    expect(tab.locator("#events > li")).to_have_count(6)
    expect(tab.locator('[data-field="steps"]')).to_have_text("4")


def test_a_page_that_turns_keeps_what_is_open_in_focus_or_being_written(
    tab: Page, served: Served
) -> None:
    run_id = "live-turns"
    events = [replace(event, run_id=run_id) for event in journals()["order-1005"]]
    failed = [event.seq for event in events if isinstance(event, AttemptFailed)]
    append(served, *events[: failed[2]])
    tab.goto(f"/runs/{run_id}")
    expect(tab.locator("#live")).to_have_text("live")
    tab.get_by_text("Why attempt 1 failed").click()
    link = tab.locator("[data-refresh=attempts] th a").first
    link.focus()
    rows = tab.locator("[data-refresh=attempts] tbody tr")
    before = rows.count()
    append(served, *events[failed[2] : failed[3]])
    expect(rows).to_have_count(before + 1)
    expect(tab.locator("details[open] summary")).to_have_text(["Why attempt 1 failed"])
    expect(link).to_be_focused()


# Filter and keyboard ------------------------------------------------------------------------------


def test_the_list_is_searched_as_one_types_and_keeps_it_in_the_address(tab: Page) -> None:
    tab.goto("/")
    tab.get_by_placeholder("Error, task").fill("charge_and_hang_up")
    expect(tab.locator("#runs tr")).to_have_count(1)
    expect(tab).to_have_url(re.compile(r"/\?q=charge_and_hang_up$"))
    tab.reload()
    expect(tab.locator("#runs tr")).to_have_count(1)
    tab.get_by_label("Words").fill("")
    tab.get_by_label("Status").select_option("suspended")
    expect(tab.locator('#runs tr[data-run="order-1006"]')).to_be_visible()
    expect(tab.locator('#runs tr[data-run="order-1005"]')).to_have_count(0)
    tab.reload()
    tab.get_by_label("Agent").select_option("pays_much")
    expect(tab.locator("#runs tr")).to_have_count(1)


def test_the_timeline_is_filtered_as_one_types(tab: Page) -> None:
    tab.goto("/runs/order-1003")
    tab.get_by_label("Filter the timeline").fill("noticed")
    expect(tab.locator("#events > li:visible")).to_have_count(3)
    tab.get_by_label("Filter the timeline").fill("")
    assert tab.locator("#events > li:visible").count() > 10


def test_all_of_it_is_reached_by_keyboard(tab: Page) -> None:
    tab.goto("/?q=order-100")
    expect(tab.locator("html")).to_have_attribute("data-ready", "yes")
    for key in ("j", "j", "j", "k", "Enter"):
        tab.keyboard.press(key)
    expect(tab.locator("h1")).to_contain_text("order-1006")
    expect(tab.locator("html")).to_have_attribute("data-ready", "yes")
    tab.keyboard.press("j")
    expect(tab.locator("#events > li.here")).to_have_id("e0")
    tab.keyboard.press("/")
    expect(tab.get_by_label("Filter the timeline")).to_be_focused()
    tab.keyboard.press("Escape")
    tab.keyboard.press("?")
    expect(tab.get_by_role("dialog", name="Keys")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.get_by_role("dialog")).to_have_count(0)
    tab.keyboard.press("u")
    expect(tab.locator("h1")).to_have_text("Runs")
    tab.keyboard.press("Tab")
    expect(tab.get_by_role("link", name="Skip to content")).to_be_focused()


def test_pages_of_a_long_run_are_turned_by_keyboard(tab: Page, served: Served) -> None:
    append(served, *long_run(250, "long-keys"))
    tab.goto("/runs/long-keys")
    expect(tab.locator("html")).to_have_attribute("data-ready", "yes")
    tab.keyboard.press("]")
    expect(tab.get_by_text("page 2 of 3").first).to_be_visible()
    expect(tab.locator("html")).to_have_attribute("data-ready", "yes")
    tab.keyboard.press("[")
    expect(tab.get_by_text("page 1 of 3").first).to_be_visible()


# Addresses ----------------------------------------------------------------------------------------


def test_evidence_leads_to_its_step_which_is_marked(tab: Page) -> None:
    tab.goto("/runs/order-1003")
    tab.locator(".evidence a").first.click()
    target = tab.locator("#events > li:is(:target, :has(:target))")
    expect(target).to_be_in_viewport()
    expect(target).to_contain_text("Let me look once more.")


def test_an_event_and_its_place_on_the_run_lead_to_each_other(tab: Page) -> None:
    tab.goto("/runs/order-1002")
    tab.locator("#events > li.bad a").first.click()
    expect(tab.locator("h1")).to_contain_text("AttemptFailed")
    expect(tab.locator(".fields")).to_contain_text("connection refused")
    tab.get_by_role("link", name="order-1002").click()
    expect(tab.locator("#events > li:target")).to_contain_text("attempt 1: ConnectionError")


# Looks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_screen_reader_finds_nothing_serious_wrong_in_light_and_dark(
    name: str, browser: Browser, served: Served
) -> None:
    context = browser.new_context(base_url=served.url, bypass_csp=True)
    tab = context.new_page()
    tab.goto(PAGES[name])
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = Axe().run(tab).response["violations"]
        serious = [
            (one["id"], node["html"], node.get("failureSummary"))
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
        assert serious == []
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_each_page_has_its_picture_and_is_read_at_400_pixels_without_scrolling_sideways(
    name: str, tab: Page, tmp_path: Path
) -> None:
    """With TRIAGE_PICTURES=1 the pictures are those of the documentation."""
    folder = PICTURES if os.environ.get("TRIAGE_PICTURES") == "1" else tmp_path
    dark = name in ("waiting", "attempts")
    height = {
        "run": 1180,
        "waiting": 760,
        "questions": 400,
        "incidents": 340,
        "incident": 1060,
    }.get(name, 620)
    tab.set_viewport_size({"width": 1120, "height": height})
    tab.emulate_media(color_scheme="dark" if dark else "light")
    tab.goto(PAGES[name])
    tab.screenshot(path=folder / f"page-{name}.png", animations="disabled")
    assert (folder / f"page-{name}.png").stat().st_size > 5_000
    over = "parts => parts.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.outerHTML)"
    assert tab.locator(".events li > :not(i)").evaluate_all(over) == []
    tab.set_viewport_size({"width": 400, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_theme_that_is_chosen_stays_and_is_there_before_any_script_runs(
    tab: Page, context: BrowserContext
) -> None:
    tab.emulate_media(color_scheme="light")
    tab.goto("/")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(paper)
    tab.get_by_role("button", name="Theme: auto").click()
    tab.get_by_role("button", name="Theme: light").click()
    dark = tab.evaluate(paper)
    assert dark != light
    tab.goto("/runs/order-1002")
    expect(tab.get_by_role("button", name="Theme: dark")).to_be_visible()
    scriptless = context.new_page()
    scriptless.emulate_media(color_scheme="light")
    scriptless.route("**/*.mjs", lambda route: route.abort())
    scriptless.goto("/")
    expect(scriptless.locator("#theme")).to_be_hidden()
    assert scriptless.evaluate(paper) == dark
    tab.get_by_role("button", name="Theme: dark").click()
    scriptless.reload()
    assert scriptless.evaluate(paper) == light


def test_print_leaves_out_what_cannot_be_used_on_paper(tab: Page) -> None:
    tab.goto("/runs/order-1002")
    tab.emulate_media(media="print")
    expect(tab.locator(".top")).to_be_hidden()
    expect(tab.get_by_label("Filter the timeline")).to_be_hidden()
    expect(tab.locator("#events > li").last).to_be_visible()
