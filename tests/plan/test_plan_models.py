"""Selecting, planning and answering by models, over real HTTP to an endpoint on this machine."""

from __future__ import annotations

import json
from typing import Any

import anthropic  # noqa: F401 - what imports a client looks at the disk, which no event loop may
import anyio
import openai
import pytest
from llm_server import Server, cut_off, fails, knows_only, refuses, says, serving
from support import FakeEnvironment
from tables import table

import triage
from triage import TriageEscalationError, UsageError
from triage.core import TriageFatalError
from triage.plan import (
    Capability,
    JudgeEach,
    Judgement,
    LLMJudge,
    LLMPlanner,
    LLMResponder,
    Orchestrator,
    Registry,
    SelectionRequest,
)

from .runs import FIND, GOOD, READ, RESULT, Kept, Script, orchestrator, plan, step

pytestmark = pytest.mark.anyio
PROVIDERS = ("openai", "anthropic")
PLAN = {
    "steps": [
        {"context_key": "where", "capability": "find", "task_objective": "find it",
         "parameters": {"name": "beam"}, "inputs": []},
        {"context_key": "now", "capability": "read", "task_objective": "read it",
         "inputs": [{"type": "ADDRESS", "key": "where"}]},
        {"context_key": "out", "capability": "respond", "task_objective": "say it",
         "inputs": [{"type": "VALUE", "key": "now"}]},
    ]
}  # fmt: skip
INVENTED = {"steps": [{"context_key": "x", "capability": "teleport", "task_objective": "go"}]}


def asking(kind: Any, server: Server, provider: str = "openai", **more: Any) -> Any:
    return kind(provider, "m", base_url=server.base_url(provider), api_key="k", **more)


@table("provider", PROVIDERS)
async def test_a_model_plans_and_is_told_what_was_wrong(provider: str) -> None:
    with serving(says(INVENTED), says(PLAN)) as server:
        made = orchestrator(asking(LLMPlanner, server, provider))
        assert await made.run("What is the beam?", run_id="run-1") == RESULT
        first, second = server.requests
        shown = json.loads(first.shown)
        assert shown["task"] == "What is the beam?"
        assert shown["capabilities"][0]["parameters"] == {"name": "str"}
        assert "teleport" in json.loads(second.shown)["feedback"]
        schema = json.dumps(first.body)
        assert '"find"' in schema
        assert first.form == ("schema" if provider == "openai" else "tool")
    usage = triage.core.fold(await made.store.read("run-1")).usage
    assert (usage.calls, usage.input_tokens) == (2, 200)


async def test_an_endpoint_that_knows_no_schemas_is_asked_in_words() -> None:
    with serving(knows_only("text", says("Here it is: " + json.dumps(PLAN)))) as server:
        made = orchestrator(asking(LLMPlanner, server))
        assert await made.run("task") == RESULT
        assert [request.form for request in server.requests] == ["schema", "tool", "text"]
        assert '"enum":["find"' in server.requests[-1].system.replace(" ", "")
        assert await made.run("task") == RESULT
        assert len(server.requests) == 4


async def test_an_endpoint_that_fails_is_asked_again_by_the_router_alone() -> None:
    env = FakeEnvironment()
    limited = fails(429, "slow down", "rate_limit_exceeded", {"retry-after": "7"})
    with serving(limited, fails(503, "overloaded"), cut_off, says(PLAN)) as server:
        made = orchestrator(asking(LLMPlanner, server), environment=env)
        assert await made.run("task") == RESULT
        assert len(server.requests) == 4
    assert env.slept == [7.0, 3.0, 6.0]


async def test_a_selector_waits_as_its_endpoint_asks_and_gives_up_where_waiting_is_no_use() -> None:
    env = FakeEnvironment()
    limited = fails(429, "slow down", "rate_limit_exceeded", {"retry-after": "7"})
    only_read = Registry([Capability("find", "finds", _find, provides=("ADDRESS",), effect="read")])
    the_plan = plan(FIND)
    with serving(limited, says({"needed": True})) as server:
        made = Orchestrator(
            only_read,
            Script(the_plan),
            selector=JudgeEach(asking(LLMJudge, server)),
            environment=env,
        )
        await made.run("Where?")
        assert len(server.requests) == 2
    assert env.slept == [7.0]
    with serving(fails(401, "no key")) as server:
        made = Orchestrator(
            only_read, Script(the_plan), selector=JudgeEach(asking(LLMJudge, server))
        )
        with pytest.raises(TriageEscalationError):
            await made.run("Where?")
        assert len(server.requests) == 1


async def test_a_key_that_is_refused_is_not_tried_again() -> None:
    with serving(fails(401, "Incorrect API key provided", "invalid_api_key")) as server:
        with pytest.raises(TriageEscalationError) as ended:
            await orchestrator(asking(LLMPlanner, server)).run("task")
        assert len(server.requests) == 1
    assert ended.value.report is not None
    assert ended.value.report.facts.failed == "the planner"


async def test_a_model_that_refuses_ends_the_run() -> None:
    with serving(refuses("I will not")) as server, pytest.raises(TriageFatalError, match="refused"):
        await orchestrator(asking(LLMPlanner, server)).run("task")


async def test_a_model_that_is_silent_is_a_timeout() -> None:
    from llm_server import silent

    with serving(silent, says(PLAN)) as server:
        made = orchestrator(asking(LLMPlanner, server, deadline=5.0))
        assert await made.run("task") == RESULT


async def test_a_prompt_of_ones_own_is_used() -> None:
    with serving(says(PLAN)) as server:
        client = openai.AsyncOpenAI(base_url=server.base_url("openai"), api_key="k")
        planner = LLMPlanner(client, "m", prompt=lambda request: f"Plan {request.task}.")
        assert await orchestrator(planner).run("lunch") == RESULT
        assert server.requests[0].system == "Plan lunch."
        await client.close()


@table("provider", PROVIDERS)
async def test_models_select_plan_and_answer(provider: str) -> None:
    def judged(handler: Any, request: Any) -> None:
        name = json.loads(request.shown)["capability"]["name"]
        says({"needed": name != "pay"})(handler, request)

    registry = Registry(
        [
            Capability("find", "finds", _find, provides=("ADDRESS",), effect="read"),
            Capability("pay", "pays", _find, effect="once"),
        ]
    )
    the_plan = {"steps": PLAN["steps"][:1]}
    with (
        serving(judged) as judge,
        serving(says(the_plan)) as planner,
        serving(says("It is at beam-1.")) as responder,
    ):
        made = Orchestrator(
            registry,
            asking(LLMPlanner, planner, provider),
            selector=JudgeEach(asking(LLMJudge, judge, provider)),
            responder=asking(LLMResponder, responder, provider),
        )
        assert await made.run("Where?") == "It is at beam-1."
        assert len(judge.requests) == 2
        (asked,) = planner.requests
        assert [one["name"] for one in json.loads(asked.shown)["capabilities"]] == [
            "find", "respond",
        ]  # fmt: skip
        (told,) = responder.requests
        assert json.loads(told.shown) == {"task": "Where?", "results": {"where": "beam-1"}}


async def _find(name: str = "") -> str:
    return f"{name}-1"


def test_a_model_that_cannot_be_asked_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=r"LLMPlanner\.model"):
        LLMPlanner()
    with pytest.raises(UsageError, match=r"LLMJudge\.api_key"):
        LLMJudge(model="m")
    with pytest.raises(UsageError, match=r"LLMResponder\.provider"):
        LLMResponder("other", "m")
    with pytest.raises(UsageError, match=r"LLMPlanner\.prompt"):
        LLMPlanner("openai", "m", api_key="k", prompt=3)  # type: ignore[arg-type] # on purpose


# Judging each capability by itself ----------------------------------------------------------------


class Judge:
    """Needs what is in `needed`; fails as often as told. running: how many ran at once, at most."""

    def __init__(self, *needed: str, fails: int = 0, answer: Any = None) -> None:
        self.needed, self.fails, self.answer = needed, fails, answer
        self.asked: list[str] = []
        self.running = self.most = 0

    async def __call__(self, judgement: Judgement) -> Any:
        name = judgement.capability["name"]
        self.asked.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        await anyio.lowlevel.checkpoint()
        self.running -= 1
        if name == "pay" and self.fails:
            self.fails -= 1
            raise ConnectionError("gone")
        return name in self.needed if self.answer is None else self.answer


async def test_judgements_run_at_once_up_to_the_cap() -> None:
    request = SelectionRequest("t", [{"name": f"c{at}"} for at in range(9)])
    for cap in (1, 3):
        judge = Judge("c1", "c7")
        assert await JudgeEach(judge, concurrency=cap)(request) == ["c1", "c7"]
        assert judge.most == cap
    sync = JudgeEach(lambda judgement: judgement.capability["name"] == "c2")
    assert await sync(request) == ["c2"]


async def test_a_judgement_that_fails_fails_the_selection_and_the_others_are_kept() -> None:
    env = FakeEnvironment()
    judge = Judge("find", "read", fails=1)
    planner = Script(plan(FIND, READ, step("out", "respond", ("VALUE", "now"))))
    made = orchestrator(planner, selector=JudgeEach(judge), environment=env)
    assert await made.run("task") == RESULT
    assert env.slept == [0.75]
    assert sorted(judge.asked) == ["find", "measure", "pay", "pay", "read"]
    assert [one["name"] for one in planner.requests[0].capabilities] == ["find", "read", "respond"]


async def test_an_answer_that_is_neither_yes_nor_no_is_an_error() -> None:
    made = orchestrator(Script(GOOD), Kept(), selector=JudgeEach(Judge(answer="maybe")))
    with pytest.raises(TriageEscalationError, match="not a bool"):
        await made.run("task")


@table("given", [{"judge": 3}, {"concurrency": 0}])
async def test_a_wrong_judge_or_cap_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="JudgeEach"):
        JudgeEach(**{"judge": Judge(), **given})
