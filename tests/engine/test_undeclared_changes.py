"""Changes that no tool records: seen on the wire, and never made twice without a word."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from blockbuster import BlockBuster
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

import triage
from triage import Agent, Durability, TriageEscalationError, TriageSuspendedError
from triage.adapters.mcp import record
from triage.core import ActionChosen, Event, Replan
from triage.core.taxonomy import names_a_change
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio


class Dead(BaseException):
    """The process dies."""


class World:
    """A model that asks for calls one after the other, and the tools that make them.

    calls: of each turn. fails: by the name of a tool, how many of its calls raise. die: the tool behind
    whose first call the process dies; empty for none. given: the argument of each turn, 1 without one.
    made: the calls.
    """

    def __init__(self, *calls: list[str], **fails: int) -> None:
        self.calls = calls
        self.fails = fails
        self.made: list[str] = []
        self.die = ""
        self.given: dict[int, Any] = {}
        self.down = 0

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        messages = json.loads(request.content)["messages"]
        if self.down:
            self.down -= 1
            return httpx2.Response(503, json={"error": {"message": "Service overloaded"}})
        turn = sum(message["role"] == "assistant" for message in messages)
        turn -= str(messages).count("This call was not made")  # so it is asked for again
        said: dict[str, Any] = {"role": "assistant", "content": "done"}
        if turn < len(self.calls):
            names = self.calls[turn]
            given = json.dumps({"n": self.given.get(turn, 1)})
            said["content"] = None
            said["tool_calls"] = [
                {"id": f"{turn}.{at}", "function": {"name": name, "arguments": given}}
                for at, name in enumerate(names)
            ]
        choice = {"index": 0, "finish_reason": "stop", "message": said}
        return httpx2.Response(200, json={"choices": [choice]})

    async def call(self, name: str, n: int) -> str:
        self.made.append(name)
        if self.fails.get(name, 0) > 0:
            self.fails[name] -= 1
            raise ValueError(f"{name} has failed")
        if name == self.die:
            self.die = ""
            raise Dead
        return f"{name} gave {n}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(
            base_url="http://model", transport=httpx2.MockTransport(self.answer)
        ) as client:
            yield client

    def agent(
        self, tools: dict[str, Callable[..., Any]] | None = None, **options: Any
    ) -> Agent[Any]:
        return Agent(self.loop(tools), environment=VirtualTime(), **options)

    def loop(
        self, tools: dict[str, Callable[..., Any]] | None = None, kept: list[Any] | None = None
    ) -> Callable[[str], Any]:
        """An ordinary loop. kept: its messages, where it goes on with them by itself."""
        known = tools or {}

        async def loop(task: str) -> str:
            messages: list[Any] = [] if kept is None else kept
            messages += [] if messages else [{"role": "user", "content": task}]
            async with self.client() as client:
                while True:
                    body = {"model": "m", "messages": messages}
                    made = await client.post("/v1/chat/completions", json=body)
                    made.raise_for_status()
                    said = made.json()["choices"][0]["message"]
                    messages.append(said)
                    if not said.get("tool_calls"):
                        return str(said["content"])
                    for one in said["tool_calls"]:
                        name = one["function"]["name"]
                        given = json.loads(one["function"]["arguments"])
                        tool = known.get(name)
                        found = await (self.call(name, **given) if tool is None else tool(**given))
                        messages.append(
                            {"role": "tool", "tool_call_id": one["id"], "content": found}
                        )

        return loop


@pytest.mark.parametrize(
    ("calls", "fails", "seen", "open_"),
    [
        ([["send_mail"], ["look"]], {"look": 1}, ["send_mail"], []),
        ([["send_mail"]], {"send_mail": 1}, [], ["send_mail"]),
        ([["send_mail", "look"]], {"look": 1}, [], ["send_mail"]),
        ([["send_mail"], ["delete_row"]], {"delete_row": 1}, ["send_mail"], ["delete_row"]),
    ],
)
@pytest.mark.parametrize("kept", ["memory", "sqlite"])
async def test_a_change_that_was_made_or_may_have_been_is_not_made_again_unasked(
    calls: list[list[str]],
    fails: dict[str, int],
    seen: list[str],
    open_: list[str],
    kept: str,
    tmp_path: Path,
) -> None:
    world = World(*calls, **fails)
    durable = kept == "sqlite"
    store = f"sqlite:///{tmp_path / 'runs.db'}" if durable else None
    agent = world.agent(store=store)
    with pytest.raises(TriageSuspendedError if durable else TriageEscalationError) as caught:
        await agent.run("t")
    text = str(caught.value)
    made = list(world.made)
    for name in seen:
        assert f'{name}({{"n": 1}}) gave "{name} gave 1"' in text
    for name in open_:
        assert f'outcome unknown: {name}({{"n": 1}})' in text
    assert '@triage.tool(effect="once")' in text
    assert len(made) == len(set(made))
    if durable:
        assert isinstance(caught.value, TriageSuspendedError)
        assert await agent.resume(caught.value.token, triage.approve()) == "done"
        assert world.made == [*made, *(name for turn in calls for name in turn)]
        await agent.store.close()


async def test_calls_that_change_nothing_are_made_again_as_bare_code_would() -> None:
    world = World(["check_stock", "python"], ["look"], look=1)
    assert await world.agent().run("t") == "done"
    assert world.made.count("look") == 2


async def test_it_is_said_once_which_tools_are_made_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "triage")
    agent = World(["get_stock", "python"], ["look_at"], look_at=2).agent(name=f"stock {uuid4()}")
    assert await agent.run("t") == "done"
    said = [one.getMessage() for one in caplog.records if "record nothing" in one.getMessage()]
    assert len(said) == 1
    assert '"python"' in said[0]
    assert "get_stock" not in said[0]


async def test_it_is_said_once_that_nothing_was_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "triage")
    failed = iter([ConnectionError("reset"), ConnectionError("reset")])

    async def works(task: str) -> str:
        for error in failed:
            raise error
        return task

    agent = Agent(works, name=f"works {uuid4()}", environment=VirtualTime())
    assert await agent.run("t") == "t"
    said = [one for one in caplog.records if "recorded nothing" in one.getMessage()]
    assert len(said) == 1


async def test_whoever_wants_it_has_the_function_called_again() -> None:
    world = World(["send_mail"], ["look"], look=1)
    agent = world.agent(durability=Durability(undeclared="retry"))
    assert await agent.run("t") == "done"
    assert world.made.count("send_mail") == 2


async def test_a_tool_that_records_itself_is_made_once_and_nobody_is_asked() -> None:
    world = World(["send_mail"], ["look"], look=1)

    @triage.tool(effect="once")
    async def send_mail(n: int) -> str:
        return await world.call("send_mail", n)

    assert await world.agent({"send_mail": send_mail}).run("t") == "done"
    assert world.made.count("send_mail") == 1


@pytest.mark.parametrize("fails", [1, 2])
async def test_a_tool_that_records_itself_and_has_not_begun_is_asked_for_again(fails: int) -> None:
    world = World(["look", "send_letter"], look=fails)

    @triage.tool(effect="once")
    async def send_letter(n: int) -> str:
        return await world.call("send_letter", n)

    assert await world.agent({"send_letter": send_letter}).run("t") == "done"
    assert world.made.count("send_letter") == 1


@pytest.mark.parametrize("failing", [{"look": 1}, {"send_memo": 1}])
async def test_a_tool_of_another_agent_does_not_record_for_one_of_the_same_name(
    failing: dict[str, int],
) -> None:
    @triage.tool(effect="once")
    async def send_memo(n: int) -> str:
        return "sent"

    world = World(["send_memo"], ["look"], **failing)
    with pytest.raises(TriageEscalationError, match="send_memo"):
        await world.agent().run("t")
    assert world.made.count("send_memo") == 1
    assert await send_memo(1) == "sent"


async def test_an_outage_of_the_model_is_waited_out_where_it_is_and_no_change_made_again() -> None:
    events: list[Event] = []
    world = World(["send_mail"])
    agent = world.agent(observers=[events.append])
    call = world.call

    async def and_then_it_is_down(name: str, n: int) -> str:
        world.down = 3
        return await call(name, n)

    world.call = and_then_it_is_down  # type: ignore[method-assign]
    assert await agent.run("t") == "done"
    assert world.made == ["send_mail"]
    assert not [event for event in events if isinstance(event, ActionChosen)]


async def test_after_a_crash_it_is_asked_before_a_change_is_made_again(tmp_path: Path) -> None:
    """The process dies between the model's order and its next request: nobody knows what was done."""

    world = World(["send_mail"], ["look"])
    world.die = "look"
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with pytest.raises(Dead):
        await world.agent(store=store, name="mails").run("t", run_id="run-1")
    other = world.agent(store=store, name="mails")
    with pytest.raises(TriageSuspendedError, match="send_mail"):
        await other.recover("run-1")
    assert world.made.count("send_mail") == 1
    await other.store.close()


CARRY = Durability(undeclared="carry")


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_model_goes_on_from_its_turns_however_often_the_work_breaks_off(times: int) -> None:
    world = World(["send_mail"], ["look"], ["delete_row"], ["find"], look=times, find=times)
    assert await world.agent(durability=CARRY).run("t") == "done"
    for name in ("send_mail", "delete_row"):
        assert world.made.count(name) == 1


async def test_an_object_of_a_framework_goes_on_from_its_turns() -> None:
    world = World(["send_mail"], ["look"], look=1)
    loop = world.loop()

    class Crew:
        async def arun(self, task: str) -> str:
            return str(await loop(task))

    assert await triage.wrap(Crew(), environment=VirtualTime()).run("t") == "done"
    assert world.made.count("send_mail") == 1


async def test_a_client_that_keeps_its_messages_is_not_told_them_twice() -> None:
    world = World(["send_mail"], ["look"], look=1)
    sent: list[str] = []
    answer = world.answer

    def noted(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.content.decode())
        return answer(request)

    world.answer = noted  # type: ignore[method-assign]
    agent = Agent(world.loop(kept=[]), environment=VirtualTime(), durability=CARRY)
    assert await agent.run("t") == "done"
    assert world.made.count("send_mail") == 1
    assert max(text.count('"tool_calls"') for text in sent) == 2


async def test_a_person_may_have_the_model_of_a_bare_function_go_on(tmp_path: Path) -> None:
    world = World(["send_mail"], ["look"], ["find"], look=1, find=1)
    agent = world.agent(store=f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    assert "Replan()" in str(caught.value)
    assert await agent.resume(caught.value.token, Replan()) == "done"  # also when it fails again
    assert world.made.count("send_mail") == 1
    await agent.store.close()


@pytest.mark.parametrize("approves", [True, False])
async def test_a_change_that_is_asked_for_once_more_waits_for_a_person(
    *, approves: bool, tmp_path: Path
) -> None:
    world = World(["send_mail"], ["look"], ["send_mail"], look=1)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    agent = world.agent(store=store, name="mails", durability=CARRY)
    with pytest.raises(TriageSuspendedError, match=r"send_mail.* was made before") as caught:
        await agent.run("t")
    assert world.made.count("send_mail") == 1
    other = world.agent(store=store, name="mails", durability=CARRY)
    if approves:
        assert await other.resume(caught.value.token, triage.approve()) == "done"
        assert world.made.count("send_mail") == 2
    else:
        with pytest.raises(TriageEscalationError, match="refusals"):  # it asks for nothing else
            await other.resume(caught.value.token, triage.reject("one mail is enough"))
        assert world.made.count("send_mail") == 1
    await other.store.close()
    await agent.store.close()


async def test_an_approval_is_of_one_change_however_alike_another_begins(tmp_path: Path) -> None:
    turns = [["send_mail"], ["send_mail"], ["look"], ["send_mail"], ["send_mail"]]
    world = World(*turns, look=1)
    one, other = "x" * 400 + "1", "x" * 400 + "2"
    world.given = {0: one, 1: other, 3: one, 4: other}
    agent = world.agent(store=f"sqlite:///{tmp_path / 'runs.db'}", durability=CARRY)
    with pytest.raises(TriageSuspendedError) as first:
        await agent.run("t")
    with pytest.raises(TriageSuspendedError, match="once more"):
        await agent.resume(first.value.token, triage.approve())
    assert world.made.count("send_mail") == 3
    await agent.store.close()


async def test_after_a_crash_the_model_goes_on_from_its_turns(tmp_path: Path) -> None:
    world = World(["send_mail"], ["look"])
    world.die = "look"
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with pytest.raises(Dead):
        await world.agent(store=store, name="mails", durability=CARRY).run("t", run_id="run-1")
    other = world.agent(store=store, name="mails", durability=CARRY)
    assert await other.recover("run-1") == "done"
    assert world.made == ["send_mail", "look"]
    await other.store.close()


async def test_whoever_approves_a_call_knows_what_that_repeats(tmp_path: Path) -> None:
    world = World(["send_mail"], ["delete_row"])

    @triage.tool(effect="once")
    async def delete_row(n: int) -> str:
        return await world.call("delete_row", n)

    def guard(call: Any) -> Any:
        return triage.Suspend(f"may {call.tool} run?")

    agent = world.agent(
        {"delete_row": delete_row},
        store=f"sqlite:///{tmp_path / 'runs.db'}",
        checks=triage.Checks(guard=guard),
    )
    with pytest.raises(TriageSuspendedError, match=r"may delete_row run.*Mind that .*send_mail"):
        await agent.run("t")
    await agent.store.close()


def test_the_option_takes_its_words_alone() -> None:
    with pytest.raises(triage.UsageError, match="undeclared"):
        Durability(undeclared="never")  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["", "desk"])
async def test_tools_of_a_recorded_session_are_known_by_the_names_that_the_model_uses(
    prefix: str, never_blocked: BlockBuster
) -> None:
    never_blocked.deactivate()  # the package mcp reads files when a server is made
    world = World(["send_mail"], ["look", "delete_row"], look=1)
    server = MCPServer("desk", log_level="WARNING")

    async def send_mail(n: int) -> str:
        return await world.call("send_mail", n)

    async def delete_row(n: int) -> str:
        return await world.call("delete_row", n)

    for tool in (send_mail, delete_row):
        server.tool(annotations=ToolAnnotations(destructive_hint=True))(tool)
    async with Client(server) as plain:
        session = record(plain, prefix=prefix)

        async def mails(n: int) -> str:
            made = await session.call_tool("send_mail", {"n": n})
            return str(made.content[0].text)  # type: ignore[union-attr]

        async def deletes(n: int) -> str:
            made = await session.call_tool("delete_row", {"n": n})
            return str(made.content[0].text)  # type: ignore[union-attr]

        agent = world.agent({"send_mail": mails, "delete_row": deletes})
        assert await agent.run("t") == "done"
    assert world.made == ["send_mail", "look", "look", "delete_row"]


async def test_a_change_that_was_refused_before_it_took_effect_is_made_again_unasked() -> None:
    """Its traceback shows the tool, and the error that nothing was done."""
    made: list[int] = []

    async def send_mail(n: int) -> str:
        made.append(n)
        if len(made) == 1:
            raise triage.not_attempted(ConnectionError("nobody listens"))
        return "sent"

    world = World(["look"], ["send_mail"])
    assert await world.agent({"send_mail": send_mail}).run("t") == "done"
    assert made == [1, 1]
    assert world.made == ["look", "look"]


async def test_an_error_of_other_code_says_nothing_about_a_change_that_is_open() -> None:
    made: list[int] = []

    async def send_mail(n: int) -> str:
        made.append(n)
        return "sent"

    async def sent_and_noted(n: int) -> str:
        await send_mail(n)
        raise triage.not_attempted(ConnectionError("nobody listens where it is noted"))

    world = World(["send_mail"])
    with pytest.raises(TriageEscalationError, match="outcome unknown: send_mail"):
        await world.agent({"send_mail": sent_and_noted}).run("t")
    assert made == [1]


async def test_a_librarys_function_that_is_named_as_a_tool_shows_no_call_of_it(
    never_blocked: BlockBuster,
) -> None:
    never_blocked.deactivate()  # the client looks for a proxy
    made: list[int] = []

    async def sent_and_noted(n: int) -> str:
        made.append(n)
        async with httpx2.AsyncClient(verify=False) as client:
            await client.post("http://127.0.0.1:1/audit")
        return "sent"

    world = World(["send"])
    with pytest.raises(TriageEscalationError, match="outcome unknown: send") as caught:
        await world.agent({"send": sent_and_noted}).run("t")
    assert isinstance(caught.value.__cause__, httpx2.ConnectError)
    assert made == [1]


async def test_of_two_changes_of_one_turn_each_is_open_though_one_was_refused() -> None:
    async def send_mail(n: int) -> str:
        raise triage.not_attempted(ConnectionError("nobody listens"))

    world = World(["delete_row", "send_mail"])
    with pytest.raises(TriageEscalationError, match="outcome unknown: delete_row") as caught:
        await world.agent({"send_mail": send_mail}).run("t")
    assert "send_mail(" not in str(caught.value)
    assert world.made == ["delete_row"]


CHANGES = """
    lease_machine place_order make_payment wire_money reply_to_customer reimburse_traveller rescind_offer
    commit_changes import_contacts export_to_crm record_payment tip_driver waive_fee override_limit
    withhold_tax remit_tax nominate_candidate uninstall_app reinstate_user mcp__bank__repay reassign_ticket
    refuel_data send_mail delete_row book_flight issue_refund mcp.crm.update
"""
READS = """
    get_lease get_place_details search_orders get_commit list_imports read_reply get_invoice view_record
    check_order can_send_mms count_pledges find_rewards estimate_cost python think navigate
"""


def test_a_name_says_a_change_whatever_its_verb_and_no_read_does() -> None:
    assert [name for name in CHANGES.split() if not names_a_change(name)] == []
    assert [name for name in READS.split() if names_a_change(name)] == []
