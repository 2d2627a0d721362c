"""Answering on the page in a real browser: logins, answers, forks, incidents, other sites' pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # it has no stubs
from playwright.sync_api import Browser, BrowserContext, Page, expect
from web.page_served import Served

import triage
from triage import Agent, Checks, FailurePolicy, Suspend, TriageError
from triage.core import ApprovalGiven, RunFinished, RunResumed, StepRecorded
from triage.incidents import IncidentDesk
from triage.stores import SQLiteStore
from triage.web import Login, Person, Role, app

pytestmark = pytest.mark.usefixtures("theirs_may_block")


class Office:
    """A served page with agents that ask. sent: what the bank was told to send. told: the next tokens."""

    def __init__(self, folder: Any) -> None:
        self.store = SQLiteStore(folder / "runs.db")
        self.desk = IncidentDesk(self.store, owner="test")
        self.sent: list[int] = []
        self.fails = True
        self.made = 0
        self.told: list[str] = []

        @triage.tool(effect="once")
        async def send(to: str, cents: int) -> str:
            self.sent.append(cents)
            return f"sent {cents} to {to}"

        async def pay(task: str) -> str:
            return await send(task, 500)

        async def parcel(task: str, *, record_step: Callable[[triage.Step], int]) -> str:
            record_step(triage.Step(action="packed"))
            if self.fails:
                raise RuntimeError("the depot is closed")
            return f"{task} is sent"

        asks = Checks(guard=lambda _call: Suspend("a person must see it"))
        self.pay = Agent(pay, FailurePolicy(), store=self.store, checks=asks, name="pay")
        self.elsewhere = Agent(
            pay, FailurePolicy(), store=self.store, checks=asks, name="elsewhere"
        )
        self.parcel = Agent(parcel, FailurePolicy(), store=self.store, name="parcel")
        self.login = Login(Person("ann", Role.ADMIN), told=self.told.append)
        self.page = app(
            self.store, login=self.login, agents=[self.pay, self.parcel], desk=self.desk
        )

    def begin(self, served: Served, agent: Agent[Any], task: str = "bob") -> str:
        """A run that waits or has failed; its id."""
        self.made += 1
        run_id = f"{agent.name}-{self.made}"

        async def begun() -> None:
            with pytest.raises(TriageError):
                await agent.run(task, run_id=run_id)

        served.do(begun())
        return run_id

    def status(self, served: Served, run_id: str) -> str:
        info = served.do(self.store.info(run_id))
        assert info is not None
        return info.status

    def last(self, served: Served, run_id: str, kind: type[Any]) -> Any:
        events = served.do(self.store.read(run_id))
        return next(event for event in reversed(events) if isinstance(event, kind))


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    return Office(tmp_path_factory.mktemp("office"))


@pytest.fixture(scope="module", name="served")
def served_office(office: Office) -> Iterator[Served]:
    with Served(office.store, office.page) as serving:
        yield serving
        serving.do(office.desk.close())


@pytest.fixture(name="context")
def context_of_ann(browser: Browser, served: Served, office: Office) -> Iterator[BrowserContext]:
    """A browser that has logged in."""
    made = browser.new_context(base_url=served.url, viewport={"width": 1280, "height": 900})
    made.set_default_timeout(20_000)
    made.request.get(f"/?token={office.login.token}", headers={"Sec-Fetch-Site": "none"})
    yield made
    made.close()


# Logging in ---------------------------------------------------------------------------------------


def test_a_link_lets_in_and_leaves_the_address_bar_and_scripts_see_no_cookie(
    browser: Browser, served: Served, office: Office
) -> None:
    context = browser.new_context(base_url=served.url)
    tab = context.new_page()
    link = f"/?token={office.login.token}"
    tab.goto(link)
    expect(tab.locator("h1")).to_have_text("Runs")
    assert tab.url == f"{served.url}/"
    assert tab.evaluate("document.cookie") == ""
    (cookie,) = context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    context.clear_cookies()
    tab.goto(link)
    expect(tab.locator("h1")).to_have_text("Log in first")
    context.close()


def test_without_a_cookie_a_token_is_asked_for_and_a_wrong_one_is_said(
    browser: Browser, served: Served, office: Office
) -> None:
    context = browser.new_context(base_url=served.url)
    tab = context.new_page()
    tab.goto("/questions")
    tab.get_by_label("Token").fill("wrong")
    tab.get_by_role("button", name="Log in").click()
    expect(tab.locator("main")).to_contain_text("This token is wrong")
    tab.get_by_label("Token").fill(office.login.token)
    tab.get_by_role("button", name="Log in").click()
    expect(tab.locator("h1")).to_have_text("Runs")
    context.close()


# Answers ------------------------------------------------------------------------------------------


def test_an_approved_run_whose_agent_is_here_is_seen_to_end(
    tab: Page, served: Served, office: Office
) -> None:
    run_id, before = office.begin(served, office.pay), len(office.sent)
    tab.goto(f"/runs/{run_id}")
    tab.get_by_role("button", name="Approve").click()
    expect(tab.locator("h1 .badge")).to_have_text("done")
    assert len(office.sent) == before + 1
    assert office.last(served, run_id, ApprovalGiven).by == "ann"


def test_an_approved_run_of_another_process_shows_the_command_that_goes_on(
    tab: Page, served: Served, office: Office
) -> None:
    run_id = office.begin(served, office.elsewhere)
    tab.goto(f"/runs/{run_id}")
    tab.get_by_role("button", name="Approve").click()
    expect(tab.locator("main")).to_contain_text(f"triage runs recover {run_id} module:agent")


def test_a_rejection_without_a_reason_is_asked_for_one_and_enter_rejects_nothing(
    tab: Page, served: Served, office: Office
) -> None:
    run_id = office.begin(served, office.elsewhere)
    tab.goto(f"/runs/{run_id}")
    tab.get_by_role("button", name="Reject").click()
    expect(tab.get_by_role("alert")).to_contain_text("say why")
    tab.get_by_label("Reason").fill("too much")
    tab.get_by_label("Reason").press("Enter")
    expect(tab.get_by_role("alert")).to_contain_text("press one of the buttons")
    expect(tab.get_by_label("Reason")).to_have_value("too much")
    tab.get_by_role("button", name="Reject").click()
    expect(tab.locator("h1")).to_contain_text(run_id)
    given = office.last(served, run_id, ApprovalGiven)
    assert (given.decision, given.reason) == ("rejected", "too much")


def test_an_edit_that_does_not_fit_keeps_what_was_typed_and_then_counts(
    tab: Page, served: Served, office: Office
) -> None:
    run_id = office.begin(served, office.pay)
    tab.goto(f"/runs/{run_id}/answer")
    tab.get_by_text("Change its arguments").click()
    tab.get_by_label("cents").fill("many")
    tab.get_by_role("button", name="Approve with changes").click()
    expect(tab.get_by_role("alert")).to_contain_text("cents must be JSON")
    expect(tab.get_by_label("cents")).to_have_value("many")
    tab.get_by_label("cents").fill("77")
    tab.get_by_role("button", name="Approve with changes").click()
    expect(tab.locator("h1 .badge")).to_have_text("done")
    assert office.sent[-1] == 77


def test_the_second_of_two_tabs_is_told_who_was_first(
    tab: Page, served: Served, office: Office, context: BrowserContext
) -> None:
    run_id = office.begin(served, office.elsewhere)
    other = context.new_page()
    for one in (tab, other):
        one.goto(f"/runs/{run_id}/answer")
    other.get_by_label("Reason").fill("not today")
    other.get_by_role("button", name="Reject").click()
    expect(other.locator("h1")).to_contain_text(run_id)
    tab.get_by_role("button", name="Approve").click()
    expect(tab.locator(".first")).to_contain_text("ann answered")
    expect(tab.locator(".said")).to_have_text("rejected: not today")


def test_picked_questions_are_answered_at_once(tab: Page, served: Served, office: Office) -> None:
    runs = [office.begin(served, office.elsewhere, task="carol") for _ in range(3)]
    tab.goto("/questions?q=carol")
    expect(tab.get_by_role("checkbox", name=re.compile("^Pick"))).to_have_count(3)
    for run_id in runs[:2]:
        tab.get_by_role("checkbox", name=f"Pick {run_id}", exact=True).check()
    tab.get_by_role("button", name="Approve").click()
    expect(tab.locator("h1")).to_have_text("2 of 2 questions answered")
    assert office.status(served, runs[2]) == "suspended"


def test_all_that_fit_a_filter_are_answered_at_once(
    tab: Page, served: Served, office: Office
) -> None:
    runs = [office.begin(served, office.elsewhere, task="dave") for _ in range(3)]
    tab.goto("/questions?q=dave")
    tab.get_by_label("all 3 of these").check()
    tab.get_by_label("Reason").fill("dave has left")
    tab.get_by_role("button", name="Reject").click()
    expect(tab.locator("h1")).to_have_text("3 of 3 questions answered")
    for run_id in runs:
        assert office.last(served, run_id, ApprovalGiven).reason == "dave has left"


# Ends and forks -----------------------------------------------------------------------------------


def test_a_run_is_cancelled_and_says_so(tab: Page, served: Served, office: Office) -> None:
    run_id = office.begin(served, office.elsewhere)
    tab.goto(f"/runs/{run_id}")
    tab.get_by_role("button", name="Cancel the run").click()
    expect(tab.locator("h1 .badge")).to_have_text("cancelled")
    assert office.last(served, run_id, RunFinished).by == "ann"


def test_a_failed_run_is_tried_again_in_a_new_one(
    tab: Page, served: Served, office: Office
) -> None:
    office.fails = True
    run_id = office.begin(served, office.parcel)
    office.fails = False
    tab.goto(f"/runs/{run_id}")
    tab.get_by_placeholder("What the new run is told").fill("the other depot")
    tab.get_by_role("button", name="Try again in a new run").click()
    expect(tab.locator("h1 .badge")).to_have_text("done")
    assert run_id not in tab.url
    expect(tab.locator("main")).to_contain_text(f"forked from {run_id}")


def test_a_run_goes_on_from_a_step_in_a_new_one(tab: Page, served: Served, office: Office) -> None:
    office.fails = True
    run_id = office.begin(served, office.parcel)
    office.fails = False
    tab.goto(f"/runs/{run_id}/events/{office.last(served, run_id, StepRecorded).seq}")
    tab.get_by_role("button", name="Go on from here in a new run").click()
    expect(tab.locator("h1 .badge")).to_have_text("done")
    new_id = tab.url.rpartition("/")[2]
    assert office.last(served, new_id, ApprovalGiven).by == "ann"


# Incidents ----------------------------------------------------------------------------------------


def test_an_incident_is_taken_noted_and_closed(tab: Page, served: Served, office: Office) -> None:
    one = served.do(office.desk.report("Process died", agent_type="coder")).error_id
    tab.goto("/incidents")
    tab.get_by_role("link", name=one).click()
    tab.get_by_label("Note").fill("looking at it")
    tab.get_by_role("button", name="Acknowledge").click()
    expect(tab.locator("main")).to_contain_text("ann has it")
    expect(tab.locator(".events")).to_contain_text("looking at it")
    tab.get_by_label("Note").fill("only a note")
    tab.get_by_label("Note").press("Enter")
    expect(tab.locator(".events")).to_contain_text("only a note")
    tab.get_by_label("Outcome").select_option("ignored")
    tab.get_by_role("button", name="Close").click()
    expect(tab.locator("h1")).to_contain_text("ignored")
    tab.goto("/incidents")
    expect(tab.get_by_role("link", name=one)).to_have_count(0)


# For everybody ------------------------------------------------------------------------------------


def test_questions_and_incidents_have_no_serious_finding_of_axe(
    tab: Page, served: Served, office: Office
) -> None:
    run_id = office.begin(served, office.elsewhere, task="erin")
    one = served.do(office.desk.report("disk full", agent_type="coder")).error_id
    pages = (
        "/questions",
        "/incidents",
        f"/incidents/{one}",
        f"/runs/{run_id}/answer",
        f"/runs/{run_id}",
    )
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        for address in pages:
            tab.goto(address)
            # axe puts its own script into the page, which the policy of the page allows to the debugger.
            found = Axe().run(tab).response["violations"]
            grave = [
                (one["id"], one["nodes"][0]["html"])
                for one in found
                if one["impact"] in ("serious", "critical")
            ]
            assert grave == [], (address, scheme)


def test_questions_and_incidents_can_be_read_at_400_pixels(
    tab: Page, served: Served, office: Office
) -> None:
    run_id = office.begin(served, office.elsewhere, task="frank")
    tab.set_viewport_size({"width": 400, "height": 800})
    for address in ("/questions", "/incidents", f"/runs/{run_id}/answer"):
        tab.goto(address)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400, address


def test_a_question_is_answered_by_keyboard_alone(
    tab: Page, served: Served, office: Office
) -> None:
    run_id = office.begin(served, office.elsewhere, task="grace")
    tab.goto(f"/runs/{run_id}/answer")
    tab.get_by_label("Reason").focus()
    tab.keyboard.type("no")
    for reached in (
        tab.get_by_role("checkbox", name="ask about the same call again"),
        tab.get_by_role("button", name="Approve"),
        tab.get_by_role("button", name="Reject"),
    ):
        tab.keyboard.press("Tab")
        expect(reached).to_be_focused()
    tab.keyboard.press("Enter")
    expect(tab.locator("h1")).to_contain_text(run_id)
    assert office.last(served, run_id, RunResumed).by == "ann"


# Other sites' pages -------------------------------------------------------------------------------


@pytest.fixture
def evil(context: BrowserContext, served: Served) -> Callable[[str], Page]:
    """Opens a page of another server on this machine, in a browser that has logged in to ours."""

    def opened(body: str) -> Page:
        tab = context.new_page()
        tab.route(
            "http://localhost:9/", lambda route: route.fulfill(body=body, content_type="text/html")
        )
        tab.route(
            "http://127.0.0.1:9/", lambda route: route.fulfill(body=body, content_type="text/html")
        )
        tab.goto("http://127.0.0.1:9/")
        return tab

    return opened


def test_a_form_of_another_port_with_our_cookie_changes_nothing(
    evil: Callable[[str], Page], served: Served, office: Office
) -> None:
    run_id = office.begin(served, office.elsewhere)
    tab = evil(
        f'<form method=post action="{served.url}/runs/{run_id}/cancel"><button>Win</button></form>'
    )
    with tab.expect_response(lambda got: got.url.endswith("/cancel")) as sent:
        tab.get_by_role("button").click()
    assert "triage_" in (sent.value.request.all_headers().get("cookie") or "")
    assert sent.value.status == 403
    assert office.status(served, run_id) == "suspended"


def test_another_port_reads_nothing_of_ours_and_frames_nothing(
    evil: Callable[[str], Page], served: Served
) -> None:
    tab = evil(f'<iframe id=ours src="{served.url}/"></iframe><img id=image src="{served.url}/">')
    read = (
        f"fetch('{served.url}/', {{credentials: 'include'}}).then(r => r.text(), () => 'refused')"
    )
    assert tab.evaluate(read) == "refused"
    assert tab.frame_locator("#ours").locator("table, #runs").count() == 0
    assert tab.evaluate("document.querySelector('#image').naturalWidth") == 0


def test_a_page_of_ours_makes_no_markup_of_text_and_runs_no_inline_script(
    context: BrowserContext,
) -> None:
    tab = context.new_page()
    tab.goto("/")
    refused = tab.evaluate(
        """() => {
            try { document.body.innerHTML = "<img src=x onerror=alert(1)>"; return false; }
            catch (error) { return error instanceof TypeError; }
        }"""
    )
    assert refused
    ran = tab.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.textContent = "window.ran = true"; } catch { return "refused"; }
            document.body.append(script);
            return window.ran === true;
        }"""
    )
    assert ran in (False, "refused")
