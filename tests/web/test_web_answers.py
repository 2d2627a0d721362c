"""Answers by forms: what is written down, what is refused, and what the second to click is told."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import triage
from triage import (
    Agent,
    Checks,
    FailurePolicy,
    Suspend,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.core import (
    ApprovalAsked,
    ApprovalGiven,
    AttemptFailed,
    AttemptStarted,
    Edited,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
    fold,
)
from triage.engine.answering import waits_for
from triage.engine.outside import resolve
from triage.plan import Approval, ExecutionPlan, Orchestrator, PlannedStep, Registry, capability
from triage.stores import MemoryStore, RunInfo
from triage.web import Person, Role, app
from triage.web.answers import offer_of, reply_in

pytestmark = pytest.mark.usefixtures("theirs_may_block")
LOCAL = "http://localhost"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
OURS = {"Origin": LOCAL, "Sec-Fetch-Site": "same-origin"}


class Bank:
    """Runs that ask, and the page of them. sent: what the bank was told to send."""

    def __init__(self, *, here: bool = False, role: Role = Role.ADMIN) -> None:
        self.store = MemoryStore()
        self.sent: list[Any] = []
        self.lost = False

        @triage.tool(effect="once")
        async def send(to: str, cents: int, urgent: bool = False, memo: Any = None) -> str:  # noqa: FBT001, FBT002
            self.sent.append((to, cents, urgent, memo))
            if self.lost:
                raise TimeoutError("the bank did not answer")
            return f"sent {cents}"

        async def pay(task: str) -> str:
            return await send(task, 500, memo={"ref": [1]})

        self.schema = {
            "type": "object",
            "properties": {
                "to": {"type": "string", "enum": ["ann", "bob"]},
                "cents": {"type": "integer", "maximum": 10_000, "description": "In cents."},
                "urgent": {"type": "boolean"},
            },
        }
        checks = Checks(
            guard=lambda _call: Suspend("a person must see it"),
            tools={"send": self.schema},
        )
        self.agent = Agent(pay, FailurePolicy(), store=self.store, checks=checks)
        self.name = "ann"
        self.role = role
        agents = [self.agent] if here else []
        page = app(self.store, who=lambda _: Person(self.name, self.role), agents=agents)
        self.client = TestClient(page, base_url=LOCAL, headers=OURS, follow_redirects=False)

    def asks(self, run_id: str = "r", task: str = "ann") -> str:
        """Begin a run that asks before it pays; the digest of its question."""

        async def begun() -> None:
            with pytest.raises(TriageSuspendedError):
                await self.agent.run(task, run_id=run_id)

        anyio.run(begun)
        return self.question(run_id)

    def question(self, run_id: str = "r") -> str:
        asked = waits_for(self.events(run_id))
        assert asked is not None
        return asked.token_digest

    def events(self, run_id: str = "r") -> list[Event]:
        return anyio.run(self.store.read, run_id)

    def post(self, path: str, **form: Any) -> Any:
        return self.client.post(path, data=form, headers=FORM)

    def answer(self, question: str, answer: str, run_id: str = "r", **form: str) -> Any:
        return self.post(f"/runs/{run_id}/answer", question=question, answer=answer, **form)

    def recovered(self, run_id: str = "r") -> Any:
        return anyio.run(self.agent.recover, run_id)


@pytest.fixture
def bank() -> Bank:
    return Bank()


def last(events: list[Event], kind: type[Event]) -> Any:
    return next(event for event in reversed(events) if isinstance(event, kind))


# One question -------------------------------------------------------------------------------------


def test_an_approval_is_in_the_journal_with_who_gave_it_and_the_call_runs_once(bank: Bank) -> None:
    got = bank.answer(bank.asks(), "approve")
    assert (got.status_code, got.headers["location"]) == (303, "/runs/r")
    events = bank.events()
    assert (last(events, ApprovalGiven).decision, last(events, ApprovalGiven).by) == (
        "approved",
        "ann",
    )
    assert last(events, RunResumed).by == "ann"
    page = bank.client.get("/runs/r").text
    assert "triage runs recover r module:agent" in page
    assert bank.recovered() == "sent 500"
    assert bank.sent == [("ann", 500, False, {"ref": [1]})]


def test_a_rejection_needs_a_reason_and_the_agent_is_told(bank: Bank) -> None:
    question = bank.asks()
    before = bank.events()
    got = bank.answer(question, "reject")
    assert got.status_code == 422
    assert "say why" in got.text
    assert bank.events() == before
    assert bank.answer(question, "reject", reason="too much <b>money").status_code == 303
    given = last(bank.events(), ApprovalGiven)
    assert (given.decision, given.reason) == ("rejected", "too much <b>money")
    assert "too much" in last(bank.events(), RunResumed).action.hint


def test_a_rejection_may_ask_to_be_asked_again(bank: Bank) -> None:
    question = bank.asks()
    assert 'name="ask_again"' in bank.client.get("/runs/r").text
    assert bank.answer(question, "reject", reason="later", ask_again="true").status_code == 303
    assert last(bank.events(), ApprovalGiven).ask_again


def test_an_edit_changes_what_was_changed_alone(bank: Bank) -> None:
    question = bank.asks()
    form = bank.client.get("/runs/r").text
    assert 'name="arg-1" value="500"' in form
    got = bank.answer(question, "edit", **{"arg-0": "ann", "arg-1": "700"})
    assert got.status_code == 303
    assert last(bank.events(), ApprovalGiven).payload == {"cents": 700}
    assert bank.recovered() == "sent 700"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"arg-1": "seven"}, "cents must be JSON"),
        ({"arg-1": "NaN"}, "cents must be JSON"),
        ({"arg-3": '{"ref": '}, "memo must be JSON"),
        ({"arg-1": "500"}, "nothing is changed"),
        ({}, "nothing is changed"),
        ({"arg-9": "x"}, "nothing is changed"),
        ({"arg-3": '"sk-' + "a1" * 20 + '"'}, "looks like a secret"),
    ],
)
def test_what_does_not_fit_is_said_and_what_was_typed_is_kept(
    bank: Bank, typed: dict[str, str], said: str
) -> None:
    question = bank.asks()
    before = bank.events()
    got = bank.answer(question, "edit", reason="as I said", **typed)
    assert got.status_code == 422
    assert said in got.text
    assert 'value="as I said"' in got.text
    assert bank.events() == before
    if typed.get("arg-1") == "seven":
        assert 'name="arg-1" value="seven"' in got.text


def test_where_the_agent_is_here_its_schemas_make_the_form_and_check_it() -> None:
    bank = Bank(here=True)
    question = bank.asks()
    form = bank.client.get("/runs/r/answer").text
    assert re.search(r'<select name="arg-0"><option value="ann" selected>ann</option>', form)
    assert "In cents." in form
    got = bank.answer(question, "edit", **{"arg-1": "70000"})
    assert got.status_code == 422
    assert "cents: 70000 is greater than the maximum" in got.text
    got = bank.answer(question, "edit", **{"arg-0": "eve"})
    assert "to: &#39;eve&#39; is not one of" in got.text


def test_where_the_agent_is_here_an_answered_run_goes_on_at_once() -> None:
    bank = Bank(here=True)
    question = bank.asks()

    async def ended() -> None:
        with anyio.fail_after(60):
            while not isinstance((await bank.store.read("r"))[-1], RunFinished):
                await anyio.sleep(0.01)

    with bank.client:
        bank.answer(question, "approve")
        assert bank.client.portal is not None
        bank.client.portal.call(ended)
    assert fold(bank.events()).result == "sent 500"


def test_a_run_that_nobody_has_is_gone_on_with_where_its_agent_is_here() -> None:
    bank = Bank(here=True)
    bank.asks()

    async def answered() -> None:
        await resolve(bank.store, "r", triage.approve(), now=0.0, by="eve")

    anyio.run(answered)
    assert "Go on with it here" in bank.client.get("/runs/r").text

    async def ended() -> None:
        with anyio.fail_after(60):
            while not isinstance((await bank.store.read("r"))[-1], RunFinished):
                await anyio.sleep(0.01)

    with bank.client:
        assert bank.post("/runs/r/recover").status_code == 303
        assert bank.client.portal is not None
        bank.client.portal.call(ended)
    assert fold(bank.events()).result == "sent 500"


def test_a_call_in_doubt_is_told_to_have_happened_or_is_run_again(bank: Bank) -> None:
    bank.lost = True
    bank.answer(bank.asks(), "approve")
    with pytest.raises(TriageSuspendedError):
        bank.recovered()
    bank.lost = False
    question = bank.question()
    assert bank.answer(question, "approve").status_code == 422
    assert bank.answer(question, "happened", result="sent").status_code == 422
    assert bank.answer(question, "happened", result='"sent, said the bank"').status_code == 303
    assert bank.recovered() == "sent, said the bank"
    assert len(bank.sent) == 1


def test_a_plan_inside_another_run_is_edited_and_approved_by_the_outer_run() -> None:
    store, measured = MemoryStore(), list[str]()

    @capability("measure", "measures a sensor", effect="read")
    async def measure(sensor: str) -> int:
        measured.append(sensor)
        return 21

    planned = ExecutionPlan((PlannedStep("t", "measure", parameters={"sensor": "hall"}),))
    room = Orchestrator(
        Registry([measure]), lambda _request: planned, store=store, approval=Approval()
    )

    async def ask_room(task: str) -> Any:
        return await room.run(task)

    desk = Agent(ask_room, store=store)

    async def begun() -> str:
        with pytest.raises(TriageSuspendedError):
            await desk.run("warm?", run_id="r")
        asked = waits_for(await store.read("r"))
        assert asked is not None
        return asked.token_digest

    question = anyio.run(begun)
    page = app(store, who=lambda _: Person("ann", Role.ADMIN))
    client = TestClient(page, base_url=LOCAL, headers=OURS, follow_redirects=False)
    shown = client.get("/runs/r/answer").text
    assert "hall" in shown
    steps = json.dumps(planned.to_json()["steps"]).replace("hall", "cellar")
    form = {"question": question, "answer": "edit", "arg-0": steps}
    assert client.post("/runs/r/answer", data=form, headers=FORM).status_code == 303
    assert anyio.run(desk.recover, "r") == 21
    assert measured == ["cellar"]


# Somebody was first -------------------------------------------------------------------------------


def test_the_second_to_click_is_told_who_was_first_and_what_they_said(bank: Bank) -> None:
    question = bank.asks()
    bank.answer(question, "reject", reason="not today")
    bank.name = "bob"
    before = bank.events()
    got = bank.answer(question, "approve")
    assert got.status_code == 409
    assert "ann answered" in got.text
    assert "rejected: not today" in got.text
    assert bank.events() == before


def test_a_replayed_answer_does_not_answer_the_next_question(bank: Bank) -> None:
    question = bank.asks()
    bank.lost = True
    bank.answer(question, "approve")
    with pytest.raises(TriageSuspendedError):
        bank.recovered()
    before = bank.events()
    for again in (question, "", "0" * 64):
        assert bank.answer(again, "rerun").status_code == 409
    assert bank.events() == before


def test_an_answer_that_comes_while_another_is_written_is_too_late(bank: Bank) -> None:
    question = bank.asks()
    read = bank.store.read

    async def read_and_be_overtaken(run_id: str, after: int = -1) -> list[Event]:
        events = await read(run_id, after)
        bank.store.read = read  # type: ignore[method-assign]
        await resolve(bank.store, "r", triage.reject("eve said no"), now=0.0, by="eve")
        return events

    bank.store.read = read_and_be_overtaken  # type: ignore[method-assign]
    got = bank.answer(question, "approve")
    assert got.status_code == 409
    assert "eve answered" in got.text


# Ends, forks and bulk -----------------------------------------------------------------------------


def test_a_run_is_cancelled_once_and_by_name(bank: Bank) -> None:
    bank.asks()
    assert bank.post("/runs/r/cancel").status_code == 303
    assert last(bank.events(), RunFinished).by == "ann"
    bank.name = "bob"
    got = bank.post("/runs/r/cancel")
    assert got.status_code == 409
    assert "ann answered" in got.text


def test_a_run_that_has_failed_is_tried_again_in_a_new_run_with_a_hint(bank: Bank) -> None:
    async def fails(_task: str) -> None:
        raise RuntimeError("the depot is closed")

    async def failed() -> None:
        with pytest.raises(TriageEscalationError):
            await Agent(fails, FailurePolicy(), store=bank.store).run("x", run_id="f")

    anyio.run(failed)
    at = last(bank.events("f"), AttemptFailed).seq
    assert "Try again in a new run" in bank.client.get("/runs/f").text
    got = bank.post("/runs/f/fork", at=str(at), hint="ask the other depot")
    assert got.status_code == 303
    made = got.headers["location"].rpartition("/")[2]
    resumed = last(bank.events(made), RunResumed)
    assert (resumed.action.hint, resumed.by) == ("ask the other depot", "ann")
    assert "forked from" in bank.client.get(f"/runs/{made}").text


@pytest.mark.parametrize("at", ["", "x", "-1", "0", "99", "9" * 30])
def test_a_fork_from_nowhere_is_refused(bank: Bank, at: str) -> None:
    bank.asks()
    assert bank.post("/runs/r/fork", at=at).status_code == 400
    assert bank.post("/runs/r/fork", at=at, end="yes").status_code == 400
    assert len(anyio.run(bank.store.runs)) == 1
    assert not isinstance(bank.events()[-1], RunFinished)


def test_a_run_whose_agent_is_not_here_is_gone_on_with_by_a_command(bank: Bank) -> None:
    bank.answer(bank.asks(), "approve")
    got = bank.post("/runs/r/recover")
    assert got.status_code == 400
    assert "triage runs recover r module:agent" in got.text


def test_many_are_answered_at_once_and_each_late_one_says_who_was_first(bank: Bank) -> None:
    names = ("one", "two", "three")
    picks = {name: f"{name}*{bank.asks(name, task=name)}" for name in names}
    page = bank.client.get("/questions?q=two").text
    assert picks["two"] in page
    assert picks["one"] not in page
    bank.answer(bank.question("two"), "reject", "two", reason="no")
    bank.name = "bob"
    got = bank.post("/questions", answer="approve", pick=list(picks.values()))
    assert "2 of 3 questions answered" in got.text
    assert "ann was first: rejected: no" in got.text
    assert [last(bank.events(name), RunResumed).by for name in names] == ["bob", "ann", "bob"]


def test_all_that_fit_a_filter_are_answered_but_none_that_was_asked_since(bank: Bank) -> None:
    bank.asks("early", task="x")
    seen = re.search(r'name="seen" value="([\d.]+)"', bank.client.get("/questions").text)
    assert seen is not None
    bank.asks("other", task="y")
    bank.asks("late", task="x")
    got = bank.post("/questions", answer="abort", all="yes", q="early", seen=seen[1])
    assert "1 of 1 question answered" in got.text
    got = bank.post("/questions", answer="abort", all="yes", seen=seen[1])
    assert "0 of 0 questions" in got.text
    assert waits_for(bank.events("late")) is not None


# Roles --------------------------------------------------------------------------------------------

POSTS = ("answer", "cancel", "recover", "fork")


def test_who_may_look_may_change_nothing_and_sees_no_button() -> None:
    bank = Bank(role=Role.VIEW)
    question = bank.asks()
    before = bank.events()
    for path in (*(f"/runs/r/{name}" for name in POSTS), "/questions"):
        assert bank.post(path, question=question, answer="approve").status_code == 403
    assert bank.events() == before
    for path in ("/runs/r", "/questions", "/runs/r/answer"):
        assert "<button name" not in bank.client.get(path).text


def test_who_may_answer_may_not_end_or_fork_runs() -> None:
    bank = Bank(role=Role.ANSWER)
    question = bank.asks()
    for name in ("cancel", "recover", "fork"):
        assert bank.post(f"/runs/r/{name}", at="1").status_code == 403
    pick = f"r*{question}"
    assert bank.post("/questions", answer="cancel", pick=pick).status_code == 403
    page = bank.client.get("/runs/r").text
    assert "Cancel the run" not in page
    assert bank.answer(question, "approve").status_code == 303


def test_an_unknown_run_is_said_to_be_none(bank: Bank) -> None:
    for name in POSTS:
        assert bank.post(f"/runs/nobody/{name}", question="x", answer="approve").status_code == 404
    assert bank.client.get("/runs/nobody/answer").status_code == 404


# The form of a call's arguments ---------------------------------------------------------------------

names = st.text(min_size=1, max_size=8)
parameters = st.sampled_from(["to", "cents", "memo", "urgent"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)


def asks_about(arguments: dict[str, Any]) -> list[Event]:
    """The journal of a run that waits to have a call with these arguments approved."""
    payload = {
        "tool": "send",
        "effect": "once",
        "arguments": arguments,
        "doubt": False,
        "kind": "approval",
        "editable": list(arguments),
    }
    return [
        RunStarted("r", 0, 0.0, "pay"),
        AttemptStarted("r", 1, 0.0, 1),
        ApprovalAsked("r", 2, 0.0, "call", "send:00:1", payload=payload),
        RunSuspended("r", 3, 0.0, 1, "0" * 64, "may it?", call="send:00:1"),
    ]


INFO = RunInfo("r", "pay", "suspended", 0.0, 0.0, 4)


@given(st.dictionaries(parameters, values, max_size=4))
def test_a_form_that_is_sent_as_it_is_shown_changes_nothing(arguments: dict[str, Any]) -> None:
    events = asks_about(arguments)
    offer = offer_of(INFO, events, {}, runs_here=False)
    form = {field.key: field.value.replace("\n", "\r\n") for field in offer.fields}
    with pytest.raises(UsageError):
        reply_in(offer, {"answer": "edit", **form}, {}, "ann")


@given(st.dictionaries(parameters, values, min_size=1, max_size=4), values, st.data())
def test_what_is_typed_as_json_is_what_the_call_gets(
    arguments: dict[str, Any], value: Any, data: st.DataObject
) -> None:
    events = asks_about(arguments)
    offer = offer_of(INFO, events, {}, runs_here=False)
    field = data.draw(st.sampled_from(offer.fields))
    is_text = field.kind in ("text", "lines")
    typed = str(value) if is_text else json.dumps(value)
    assume(typed.replace("\r\n", "\n") != field.value.replace("\r\n", "\n"))
    reply = reply_in(offer, {"answer": "edit", field.key: typed}, {}, "ann")
    assert isinstance(reply, Edited)
    expected = typed.replace("\r\n", "\n") if is_text else json.loads(typed)
    assert dict(reply.payload) == {field.name: expected}
