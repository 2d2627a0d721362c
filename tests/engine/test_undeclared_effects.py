"""Tools whose effect nobody declared: a read by its name follows the policy, all else is asked about."""

from __future__ import annotations

import logging
from typing import Any

import agents
import pytest
from adapters.langchain_agents import Scripted as ScriptedChat
from adapters.pydantic_agents import Scripted
from adapters.pydantic_agents import call as pydantic_call
from adapters.sdk_agents import calls as sdk_calls
from adapters.sdk_agents import model as sdk_model
from adapters.sdk_agents import says as sdk_says
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool as langchain_tool
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from pydantic_ai import Agent as PydanticAgent
from support import always
from tables import table

import triage
from triage import Agent, Effect, Retry, Step, Suspend, TriageSuspendedError, UsageError
from triage.adapters.mcp import record
from triage.core import CallStarted, Event, StepRecorded, infer_effect
from triage.engine import Checks, Guard
from triage.testing.adapter_contract import Rule, Script, World, asks, call, says

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


def _listed(text: str) -> list[str]:
    return text.split()


READS = _listed(
    """
    read_file read_text_file read_multiple_files read_media_file list_allowed_directories
    search_files get_file_info search_nodes read_graph search_repositories get_file_contents
    list_commits list_issues get_pull_request_files search_code get_me list_pull_requests fetch
    fetch_html brave_web_search brave_local_search tavily-search get_current_time list_tables
    describe_table read_query list_channels get_channel_history get_user_profile get_users
    search_flights search_direct_flight get_reservation_details get_user_details get_product_details
    list_all_airports find_user_id_by_email web_search google_search duckduckgo_search file_search
    view_source getForecast get_alerts searchJiraIssuesUsingJql getConfluencePage
    getAccessibleAtlassianResources notion-fetch.search mcp__github__search_issues
    github.search_issues functions.get_weather mcp__postgres__list_schemas GET_ACCOUNT_BALANCE
    get_order_details lookup lookup_customer look_up_customer find_element list_branches listTables
    s3.list_buckets get_base64_image search_v2
    search_issues get_issue get_commit list_notifications list_code_scanning_alerts search_users
    get_repository_tree mcp__slack__slack_search mcp__filesystem__get_file_info list_databases
    list_collections find_documents find aggregate_search describe_instances DescribeStacks
    ListObjects getUpdates get_transcript search_papers read_paper get_quote fetchStockPrices
    view_cart view_file find_restaurants mcp_weather.get_forecast SearchContacts READ_RESOURCE
    get_order_status
    """
)
"""Names of tools that change nothing, as public MCP servers and examples of frameworks have them."""


CHANGES = _listed(
    """
    get_or_create_label find_and_cancel_reservation get_next_task check_in list_for_sale
    fetch_and_save read_and_archive view_and_mark_as_read lookup_or_insert get_lock
    search_and_replace describe_and_apply getOrCreate findOneAndUpdate find-one-and-delete
    FIND_OR_CREATE_CONTACT findByIdAndRemove mcp__db__fetch_then_delete queue.get_next_message
    get_and_increment get_and_clear_alerts fetch_add list_item list_property_for_sale
    list_directory_entry_delete view_once_secret search_replace find_file_and_delete fetch2pay
    list4sale read_later get_access_token getNewAddress get_rid_of_file find_me_a_room_and_book_it
    get_paid get_refund search_and_book_hotel cancel_search start_search save_search delete_search
    create_saved_search subscribe_search get_upload_url find_match_merge list_product_on_marketplace
    get_verified read_write_file fetch_git_pull view_increment claim_search get_checkout_session
    lookup_and_enrich_contact get_signed_up orders.delete.search delete__get get_file_upload
    describe_image_and_post find_slot_reserve get_exclusive_lease read_n_archive list_address
    check_out_book get_page_publish fetch_dequeue find_unused_remove get_free_trial_activate
    get_and_set read_and_delete_message find_and_modify fetch_and_ack fetchOrCreateUser
    get_or_insert getOrElseUpdate search_and_destroy search_then_buy list_on_ebay
    list_nft_for_auction list_car get_unique_ticket get_invite_link view_and_approve_request
    describe_then_fix find_replace_all lookup_and_charge_card look_up_and_block get_lease
    read_inbox_mark_seen fetch_latest_and_deploy get_one_time_password get_presigned_url
    get_verification_code fetch_job_lock mcp__shop__get_item_reserved findAndReplaceText
    getNextSequence get_queue_message find_a_driver_and_dispatch view_counter_increment
    search_listing_publish fetch_into_table read_back_restore find_free_seat_hold get_subscribed
    resume_search post_search email_search getRidOfDuplicates list_house list_apartment_on_airbnb
    find_swap_tokens get_gas_refill read_once_token get_me_a_ride get_tickets_bought get_slot_held
    find_friend_request_accept read_mail_and_move search_catalog_reindex view_story_seen
    fetch_webhook_replay get_sms_code get_backup_restored lookup_number_dial find_person_hire
    get_api_key_rotated list_vehicles_for_rent list_token_sale fetch_rows_truncate
    read_sensor_recalibrate find_table_seat_guests describe_schema_migrate fetch_email_unsubscribe
    view_as_admin_impersonate find_dead_links_prune search_tickets_assign getAndAdd get_door_opened
    """
)
"""Names that look like a read, of tools that change something."""


UNSAID = _listed(
    """
    check_balance show_invoice query_database count_users charge send_email create_issue write_file
    push_files navigate browser_click execute_sql run_command python puppeteer_evaluate list
    directory_tree move_file edit_file book_reservation update_reservation_flights send_certificate
    transfer_to_human_agents add_observations delete_entities think calculate getorders
    retrieve_documents load_page searching toString get_latest_release slack_list_channels 获取文件
    get_größe _ __ 42 a
    """
)
"""Names that do not begin as a read does, whatever they do."""


ODD = ["", "  ", "\ud800", "get_" * 50_000 + "and_pay", "A" * 300_000]


@table(
    ("names", "effect"),
    [
        (READS, Effect.READ),
        (CHANGES, Effect.UNKNOWN),
        (UNSAID, Effect.UNKNOWN),
        (ODD, Effect.UNKNOWN),
    ],
)
def test_the_name_of_a_tool_says_read_where_it_reads_and_never_where_it_changes_something(
    names: list[str], effect: Effect
) -> None:
    assert {name for name in names if infer_effect(name) is not effect} == set()


# Runs ---------------------------------------------------------------------------------------------
class Net:
    """A network that breaks off so often. did: what reached it."""

    def __init__(self, breaks: int = 1) -> None:
        self.did: list[str] = []
        self.breaks = breaks

    async def get(self, what: str) -> str:
        self.did.append(what)
        if len(self.did) <= self.breaks:
            raise ConnectionResetError("connection reset by peer")
        return f"page {what}"


def steps_of(events: list[Event]) -> list[Step]:
    return [event.step for event in events if isinstance(event, StepRecorded)]


def effects_of(events: list[Event]) -> list[str]:
    return [event.effect for event in events if isinstance(event, CallStarted)]


# Functions ----------------------------------------------------------------------------------------
async def test_a_tool_with_the_name_of_a_read_is_called_again_after_a_reset() -> None:
    net, events = Net(), list[Event]()

    @triage.tool
    async def fetch(url: str) -> str:
        return await net.get(url)

    async def agent(task: str) -> str:
        return await fetch(task)

    made = Agent(agent, always(Retry()), observers=[events.append])
    assert await made.run("a") == "page a"
    assert net.did == ["a", "a"]
    assert effects_of(events) == ["read", "read"]
    assert [step.metadata["effect_from"] for step in steps_of(events)] == ["name", "name"]  # type: ignore[index] # each has some
    assert [step.effect for step in steps_of(events)] == [Effect.READ, Effect.READ]


async def test_a_function_given_to_run_call_has_the_effect_of_its_name() -> None:
    net, listed = Net(), list[str]()

    async def get_page(url: str) -> str:
        return await net.get(url)

    def list_pages() -> list[str]:
        listed.append("list")
        if len(listed) == 1:
            raise ConnectionResetError("connection reset by peer")
        return ["a"]

    async def agent(task: str, *, run: Any) -> str:
        await run.call(list_pages)
        return str(await run.call(get_page, task))

    assert await Agent(agent, always(Retry())).run("a") == "page a"
    assert (listed, net.did) == (["list"] * 2, ["a", "a"])


@table("name", ["get_or_create_page", "load_page", "fetch_and_save"])
async def test_a_tool_that_may_change_something_is_asked_about(name: str) -> None:
    net, events = Net(), list[Event]()

    async def work(url: str) -> str:
        return await net.get(url)

    tool = triage.tool(name=name)(work)

    async def agent(task: str) -> str:
        return str(await tool(task))

    with pytest.raises(TriageSuspendedError, match="happen"):
        await Agent(agent, always(Retry()), observers=[events.append]).run("a")
    assert net.did == ["a"]
    assert effects_of(events) == ["unknown"]
    assert "effect_from" not in (steps_of(events)[0].metadata or {})


async def test_infer_effects_false_leaves_every_undeclared_effect_unknown() -> None:
    net = Net()

    @triage.tool
    async def fetch(url: str) -> str:
        return await net.get(url)

    async def agent(task: str) -> str:
        return await fetch(task)

    with pytest.raises(TriageSuspendedError):
        await Agent(agent, always(Retry()), infer_effects=False).run("a")
    assert await Agent(agent, always(Retry())).run("b") == "page b", (
        "one agent's option was another's"
    )


@table("effect", ["unknown", "once"])
async def test_what_was_declared_stands_whatever_the_name(effect: str) -> None:
    net = Net()

    @triage.tool(effect=effect)
    async def fetch(url: str) -> str:
        return await net.get(url)

    async def agent(task: str) -> str:
        return await fetch(task)

    with pytest.raises(TriageSuspendedError):
        await Agent(agent, always(Retry())).run("a")


async def test_an_inferred_effect_is_said_once_in_the_log(caplog: Any) -> None:
    net = Net(breaks=0)

    async def find_spoken_words(what: str) -> str:
        return await net.get(what)

    async def agent(task: str, *, run: Any) -> None:
        await run.call(find_spoken_words, "a")
        await run.call(find_spoken_words, "b")

    with caplog.at_level(logging.INFO, logger="triage"):
        await Agent(agent).run("go")
        await Agent(agent).run("go")
    said = [
        entry.getMessage() for entry in caplog.records if "find_spoken_words" in entry.getMessage()
    ]
    assert len(said) == 1
    assert "infer_effects=False" in said[0]


async def test_a_guard_over_undeclared_tools_is_asked_whatever_their_names_say() -> None:
    net, seen = Net(breaks=0), list[Effect]()

    @triage.tool
    async def get_secret(which: str) -> str:
        return await net.get(which)

    async def agent(task: str) -> str:
        return await get_secret(task)

    def decide(asked: Any) -> Suspend:
        seen.append(asked.effect)
        return Suspend()

    guard = Guard(decide, effects=("once", "unknown"))
    with pytest.raises(TriageSuspendedError):
        await Agent(agent, checks=Checks(guard=guard)).run("a")
    assert net.did == []
    assert seen == [Effect.UNKNOWN]


def test_infer_effects_that_is_no_flag_is_refused() -> None:
    with pytest.raises(UsageError, match="infer_effects"):
        Agent(print, infer_effects="no")  # type: ignore[call-overload] # the wrong type is the test


@table("given", ["look", 7, ["look", ""], [7]])
def test_trust_in_hints_that_names_nothing_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="trust_hints"):
        triage.wrap(RunnableLambda(print), trust_hints=given)


# Frameworks ---------------------------------------------------------------------------------------
def langgraph(net: Net, name: str) -> Any:
    async def work(url: str) -> str:
        """Work."""
        return await net.get(url)

    script = (Rule(says("done"), "page a"), Rule(asks(call(name, url="a"))))
    return create_agent(
        ScriptedChat(world=World(Script(script))), tools=[langchain_tool(name)(work)]
    )


def langchain(net: Net, name: str) -> Any:
    async def work(url: str) -> str:
        """Work."""
        return await net.get(url)

    made = langchain_tool(name)(work)

    async def chain(task: str) -> str:
        assert await made.ainvoke({"url": "a"}) == "page a"
        return "done"

    return RunnableLambda(chain)


def pydantic_ai(net: Net, name: str) -> Any:
    async def work(url: str) -> str:
        return await net.get(url)

    def answer(messages: list[Any]) -> Any:
        return "done" if "page a" in str(messages) else pydantic_call(name, url="a")

    made: PydanticAgent[Any, Any] = PydanticAgent(Scripted(answer).model)
    made.tool_plain(name=name)(work)
    return made


def openai_agents(net: Net, name: str) -> Any:
    async def work(url: str) -> str:
        """Work."""
        return await net.get(url)

    tool = agents.function_tool(work, name_override=name, failure_error_function=None)
    script = model_of(name)
    return agents.Agent(name="clerk", model=script, tools=[tool])


def model_of(name: str) -> Any:
    return sdk_model(sdk_calls(f"{name} 1", url="a"), sdk_says("done"))


FRAMEWORKS = [langgraph, langchain, pydantic_ai, openai_agents]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@table("framework", FRAMEWORKS)
async def test_a_newcomers_fetch_that_is_reset_follows_the_policy(framework: Any) -> None:
    net, events = Net(), list[Event]()
    await triage.wrap(framework(net, "fetch"), always(Retry()), observers=[events.append]).run("go")
    assert net.did == ["a", "a"]
    found = [step for step in steps_of(events) if step.tool_called == "fetch"]
    assert {step.effect for step in found} == {Effect.READ}
    assert all((step.metadata or {})["effect_from"] == "name" for step in found)


@table("framework", FRAMEWORKS)
@table(("name", "infer"), [("fetch_and_save", True), ("fetch", False)])
async def test_any_other_undeclared_tool_that_is_reset_is_asked_about(
    framework: Any, name: str, *, infer: bool
) -> None:
    net = Net()
    agent = triage.wrap(framework(net, name), always(Retry()), infer_effects=infer)
    with pytest.raises(TriageSuspendedError, match="happen"):
        await agent.run("go")
    assert net.did == ["a"]


@table("framework", FRAMEWORKS)
async def test_effects_that_wrap_is_given_win_over_names(framework: Any) -> None:
    net = Net()
    agent = triage.wrap(framework(net, "fetch"), always(Retry()), effects={"fetch": "once"})
    with pytest.raises(TriageSuspendedError, match="happen"):
        await agent.run("go")


# MCP ----------------------------------------------------------------------------------------------
CLAIMS: list[tuple[str, dict[str, bool], dict[str, Any], Effect]] = [
    ("get_page", {}, {}, Effect.READ),
    ("get_page", {}, {"infer_effects": False}, Effect.UNKNOWN),
    ("get_page", {"read_only_hint": False}, {}, Effect.UNKNOWN),
    ("get_page", {"destructive_hint": True}, {}, Effect.ONCE),
    ("get_page", {"read_only_hint": True}, {"infer_effects": False}, Effect.UNKNOWN),
    ("charge", {"read_only_hint": True}, {}, Effect.UNKNOWN),
    ("charge", {"read_only_hint": True}, {"trusted": True}, Effect.READ),
    ("charge", {"idempotent_hint": True}, {"trusted": True}, Effect.IDEMPOTENT),
    ("charge", {"idempotent_hint": True}, {}, Effect.UNKNOWN),
    ("charge", {}, {"trusted": True}, Effect.UNKNOWN),
    ("get_page", {}, {"trusted": True}, Effect.READ),
    ("get_page", {}, {"effects": {"get_page": "once"}}, Effect.ONCE),
]


@table(("name", "hints", "options", "effect"), CLAIMS)
async def test_what_a_server_claims_of_a_tool_counts_only_where_it_is_trusted_or_strict(
    name: str, hints: dict[str, bool], options: dict[str, Any], effect: Effect
) -> None:
    server, events = MCPServer("any"), list[Event]()

    @server.tool(name=name, annotations=ToolAnnotations.model_validate(hints))
    async def work() -> str:
        return "x"

    async with Client(server) as plain:
        session = record(plain, **options)

        async def agent(task: str) -> None:
            await session.call_tool(name)

        await Agent(agent, observers=[events.append]).run("go")
    assert [step.effect for step in steps_of(events)] == [effect]


async def test_an_agent_that_infers_no_effects_infers_none_of_a_server() -> None:
    server, events = MCPServer("any"), list[Event]()

    @server.tool()
    async def get_page() -> str:
        return "x"

    async with Client(server) as plain:
        session = record(plain)

        async def agent(task: str) -> None:
            await session.call_tool("get_page")

        await Agent(agent, observers=[events.append], infer_effects=False).run("go")
    assert [step.effect for step in steps_of(events)] == [Effect.UNKNOWN]
