"""What a model is asked, and what of its answer is believed; over real clients and real HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llm_server import Server, filtered, knows_only, refuses, says, serving
from support import FakeEnvironment, always
from tables import table

from triage import (
    Agent,
    Diagnosis,
    Escalate,
    FailureType,
    Limits,
    Retry,
    Severity,
    Step,
    Trajectory,
    TriageEscalationError,
    Usage,
)
from triage.classifiers import Budget, LLMClassifier
from triage.core import Cause, ErrorInfo, UsageRecorded

PROVIDERS = pytest.mark.parametrize("provider", ["openai", "openai-responses", "anthropic"])
ONE_BACKEND = pytest.mark.parametrize("anyio_backend", ["asyncio"])
pytestmark = pytest.mark.anyio

STEPS = [
    Step(tool_called="search", tool_input={"q": "hotel in Porto"}, tool_output='3 "hotels" found'),
    Step(tool_called="open", tool_input={"id": 99}, tool_output="there is no hotel 99"),
    Step(action="model", llm_output="Hotel 99 is the best one"),
]
ERROR = ErrorInfo("ValueError", mro=("builtins.ValueError",), message="nothing was booked at all")
ATTEMPT = Trajectory(STEPS, error=ERROR, task="Book a hotel in Porto")
DRIFT: dict[str, Any] = {
    "why": "It made up a hotel.",
    "evidence": [
        {"step": 1, "quote": "there is no hotel 99"},
        {"step": None, "quote": "nothing was booked"},
    ],
    "failure_type": "hallucinated_state",
    "cause": "missing_resource",
    "critical_step": 1,
    "confidence": 0.85,
    "hint": "Open only hotels that the search has found.",
}


def asking(server: Server, provider: str = "openai", **options: Any) -> LLMClassifier:
    return LLMClassifier(
        provider, "m", base_url=server.base_url(provider), api_key="a-key", **options
    )


async def answered(provider: str, answer: dict[str, Any] | str, **options: Any) -> Diagnosis:
    with serving(says(answer)) as server:
        return await asking(server, provider, **options).classify(ATTEMPT, ATTEMPT.task)


@PROVIDERS
async def test_an_answer_with_true_quotes_is_the_diagnosis(provider: str) -> None:
    found = await answered(provider, DRIFT)
    assert found.failure_type is FailureType.HALLUCINATED_STATE
    assert (found.cause, found.severity) == (Cause.MISSING_RESOURCE, Severity.REPLANNING)
    assert (found.confidence, found.critical_step, found.classifier) == (0.85, 1, "llm")
    assert [(item.rule, item.step) for item in found.evidence] == [
        ("llm:quote", 1),
        ("llm:quote", None),
    ]
    assert found.evidence[0].text == '"there is no hotel 99"'
    assert "It made up a hotel." in found.technical_details
    assert found.hint is not None
    assert '"Open only hotels that the search has found."' in found.hint
    assert found.usage == Usage(100, 20, None, 1, "m")


@ONE_BACKEND
@PROVIDERS
async def test_the_request_holds_key_model_and_attempt_and_asks_reasons_before_the_type(
    provider: str,
) -> None:
    with serving(says(DRIFT)) as server:
        await asking(server, provider).classify(ATTEMPT, "Book a hotel in Porto")
    (request,) = server.requests
    # Which header carries the key is the client's affair, and has changed between its releases.
    assert {"Bearer a-key", "a-key"} & set(request.headers.values())
    assert (request.protocol, request.body["model"]) == (provider, "m")
    assert request.form == ("tool" if provider == "anthropic" else "schema")
    assert '{"task":"Book a hotel in Porto"}' in request.shown
    assert '"output":"there is no hotel 99"' in request.shown
    assert "nothing was booked at all" in request.shown
    assert request.fields == [
        "evidence", "why", "critical_step", "failure_type", "cause", "confidence", "hint",
    ]  # fmt: skip


@ONE_BACKEND
@PROVIDERS
async def test_a_provider_can_cache_what_comes_before_the_attempt(provider: str) -> None:
    with serving(says(DRIFT)) as server:
        classifier = asking(server, provider)
        await classifier.classify(ATTEMPT, "Book a hotel in Porto")
        await classifier.classify(Trajectory([Step(action="other")]), "Something else")
    first, second = server.requests
    assert first.system == second.system
    assert len(first.system) > 4_000
    assert "Porto" not in first.system
    if provider == "anthropic":
        assert first.body["system"][-1]["cache_control"] == {"type": "ephemeral"}


@ONE_BACKEND
async def test_what_is_not_in_the_attempt_is_dropped_and_believed_less() -> None:
    true = DRIFT["evidence"]
    changes: list[tuple[dict[str, Any], float]] = [
        ({"evidence": [{"step": 0, "quote": "there is no hotel 99"}]}, 0.3),
        ({"evidence": [{"step": 7, "quote": "there is no hotel 99"}]}, 0.3),
        ({"evidence": [{"step": 1, "quote": "e"}]}, 0.3),
        ({"evidence": []}, 0.3),
        ({"evidence": [*true, {"step": 0, "quote": "made up"}]}, 0.425),
        ({"evidence": [*true, {"step": None, "quote": "hotel in Porto"}]}, 0.85),
        ({"critical_step": 3}, 0.425),
        ({"critical_step": -1}, 0.425),
        ({"confidence": 1.0}, 0.9),
    ]
    with serving(*(says({**DRIFT, **change}) for change, _ in changes)) as server:
        for change, confidence in changes:
            found = await asking(server).classify(ATTEMPT, ATTEMPT.task)
            assert found.failure_type is FailureType.HALLUCINATED_STATE
            assert found.confidence == pytest.approx(confidence), change
            if "critical_step" in change:
                assert found.critical_step is None
            quotes = {item.text for item in found.evidence if item.rule == "llm:quote"}
            assert not quotes & {'"made up"', '"e"'}


@ONE_BACKEND
async def test_a_model_cannot_make_a_failure_fatal_or_name_a_cause_of_ours() -> None:
    causes = ("limit", "cancelled", "in_doubt", "out_of_memory", "my own")
    with serving(*(says({**DRIFT, "cause": cause}) for cause in causes)) as server:
        for cause in causes:
            found = await asking(server).classify(ATTEMPT)
            assert (found.cause, found.severity) == (None, Severity.REPLANNING), cause


@ONE_BACKEND
@PROVIDERS
async def test_a_model_that_does_not_know_says_unknown(provider: str) -> None:
    found = await answered(provider, {**DRIFT, "failure_type": "unknown"})
    assert found.failure_type is FailureType.UNKNOWN
    assert (found.hint, found.critical_step) == (None, None)


@ONE_BACKEND
@table("text", ["Here you are:\n```json\n{}\n```", "<think>{{a}}</think> {}"])
async def test_an_object_among_words_is_found(text: str) -> None:
    found = await answered("openai", text.replace("{}", json.dumps(DRIFT)))
    assert found.failure_type is FailureType.HALLUCINATED_STATE


@PROVIDERS
async def test_an_answer_that_cannot_be_used_is_asked_for_once_more(provider: str) -> None:
    wrong = {**DRIFT, "failure_type": "bad luck", "confidence": 7}
    with serving(says(wrong), says(DRIFT)) as server:
        found = await asking(server, provider).classify(ATTEMPT)
    assert found.failure_type is FailureType.HALLUCINATED_STATE
    assert found.usage == Usage(200, 40, None, 2, "m")
    first, again = (request.shown for request in server.requests)
    assert again.startswith(first)
    assert "could not be used: wrong or missing: failure_type (enum), confidence" in again
    assert "bad luck" not in again


@ONE_BACKEND
@PROVIDERS
async def test_an_answer_that_was_cut_off_is_asked_for_in_fewer_words(provider: str) -> None:
    with serving(says('{"why": "It is a long', cut=True), says(DRIFT)) as server:
        found = await asking(server, provider).classify(ATTEMPT)
    assert found.failure_type is FailureType.HALLUCINATED_STATE
    assert "could not be used: it was cut off; answer in fewer words." in server.requests[1].shown


# A record that does not fit ------------------------------------------------------------------------

LONG = Trajectory(
    [
        Step(tool_called="look", tool_input={"page": at}, tool_output=f"page {at} " + "z" * 400)
        for at in range(200)
    ]
)


@PROVIDERS
async def test_a_long_record_is_read_in_two_passes(provider: str) -> None:
    region = {"why": "There it turns.", "first_step": 149, "last_step": 120}
    drift = {**DRIFT, "critical_step": 130, "evidence": [{"step": 130, "quote": "page 130 zzz"}]}
    with serving(says(region), says(drift, tokens=(300, 30))) as server:
        found = await asking(server, provider, max_chars=40_000).classify(LONG)
    assert (found.critical_step, found.confidence) == (130, 0.85)
    assert found.usage == Usage(400, 50, None, 2, "m")
    first, second = server.requests
    assert first.system == second.system
    assert first.fields == ["why", "first_step", "last_step"]
    assert "z" * 400 not in first.shown
    for request in (first, second):
        assert len(request.shown) <= 40_000
        lines = [json.loads(line) for line in request.shown.split("\n") if line.startswith("{")]
        assert [item["step"] for item in lines if "step" in item] == list(range(200))
    whole = [item for item in lines if "z" * 400 in item.get("output", "")]
    assert [item["step"] for item in whole] == list(range(120, 150))


@ONE_BACKEND
async def test_a_region_that_cannot_be_read_ends_the_diagnosis_and_one_outside_changes_nothing() -> (
    None
):
    outside = {"why": "", "first_step": 5_000, "last_step": 6_000}
    with serving(says("anywhere"), says("anywhere"), says(outside), says(DRIFT)) as server:
        classifier = asking(server, max_chars=40_000)
        broken = await classifier.classify(LONG)
        assert (broken.evidence[0].rule, len(server.requests)) == ("llm:invalid", 2)
        found = await classifier.classify(LONG)
    assert found.failure_type is FailureType.HALLUCINATED_STATE


# Forms, clients, usage -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["tool", "text"])
@PROVIDERS
async def test_an_endpoint_that_knows_no_schema_is_asked_in_a_way_it_knows(
    provider: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(knows_only(form, says(DRIFT))) as server:
        classifier = asking(server, provider)
        first = await classifier.classify(ATTEMPT)
        asked = len(server.requests)
        second = await classifier.classify(ATTEMPT)
    assert first.failure_type is second.failure_type is FailureType.HALLUCINATED_STATE
    assert [request.form for request in server.requests[asked:]] == [form]
    if form == "text":
        assert caplog.text.count("asked by text from now on") == 1


async def test_a_client_of_ones_own_is_used_as_it_is_and_left_open() -> None:
    from openai import AsyncOpenAI

    with serving(says(DRIFT)) as server:
        async with AsyncOpenAI(
            base_url=server.base_url("openai"), api_key="its-own", default_headers={"x-team": "a"}
        ) as client:
            classifier = LLMClassifier(client, "m")
            for _ in range(2):
                found = await classifier.classify(ATTEMPT)
                assert found.failure_type is FailureType.HALLUCINATED_STATE
            assert not client.is_closed()
    assert {request.headers["x-team"] for request in server.requests} == {"a"}


async def test_what_is_consumed_counts_as_the_runs() -> None:
    async def fails(task: str) -> str:
        raise RuntimeError("who knows")

    with serving(says(DRIFT, tokens=(1000, 100))) as server:
        classifier = asking(server, price=(2.0, 10.0), environment=FakeEnvironment())
        seen: list[Any] = []
        agent = Agent(
            fails,
            always(lambda _context: Retry()),
            classifier=classifier,
            limits=Limits(cost_usd=0.005),
            observers=[seen.append],
        )
        with pytest.raises(TriageEscalationError, match=r"limit|cost") as caught:
            await agent.run("x")
    context = caught.value.context
    assert context is not None
    assert context.usage == Usage(2000, 200, 0.006, 2, None)
    assert [event.attempt for event in seen if isinstance(event, UsageRecorded)] == [1, 2]
    assert classifier.usage.total_tokens == 2200


@ONE_BACKEND
@table(
    ("budget", "requests"),
    [(Budget(calls=2), 2), (Budget(tokens=100), 1), (Budget(cost_usd=0.0005), 2)],
)
async def test_nothing_is_asked_once_the_budget_is_used_up(budget: Budget, requests: int) -> None:
    with serving(says(DRIFT)) as server:
        classifier = asking(server, budget=budget, price=(1.0, 10.0))
        found = [await classifier.classify(ATTEMPT) for _ in range(4)]
    assert len(server.requests) == requests
    kinds = [item.failure_type for item in found]
    assert kinds[:requests] == [FailureType.HALLUCINATED_STATE] * requests
    assert kinds[requests:] == [FailureType.UNKNOWN] * (4 - requests)
    assert found[3].evidence[0].rule == "llm:budget"
    assert found[3].usage is None


async def test_each_run_has_a_budget_of_its_own() -> None:
    async def fails(task: str) -> str:
        raise RuntimeError("who knows")

    with serving(says(DRIFT)) as server:
        agent = Agent(
            fails,
            always(lambda context: Retry() if context.attempt < 4 else Escalate()),
            classifier=asking(server, run_budget=Budget(calls=2)),
        )
        for asked in (2, 4):
            with pytest.raises(TriageEscalationError) as caught:
                await agent.run("x")
            assert len(server.requests) == asked
            assert caught.value.context is not None
            history = caught.value.context.attempt_history
            kinds = [past.failure_type for past in history]
            assert kinds == [FailureType.HALLUCINATED_STATE] * 2 + [FailureType.UNKNOWN]


@ONE_BACKEND
@PROVIDERS
async def test_a_refusal_is_unknown_and_says_so(provider: str) -> None:
    with serving(refuses("I would rather not. sk-abcdefghijklmnopqrstuv"), filtered) as server:
        classifier = asking(server, provider)
        found = await classifier.classify(ATTEMPT)
        assert len(server.requests) == 1
        assert (found.failure_type, found.confidence) == (FailureType.UNKNOWN, 0.0)
        assert found.evidence[0].rule == "llm:refused"
        assert found.evidence[0].text == "the model refused: I would rather not. [redacted]"
        assert found.usage == Usage(50, 5, None, 1, "m")
        if provider != "anthropic":
            stopped = await classifier.classify(ATTEMPT)
            assert stopped.evidence[0].text == "the model refused: its content filter stopped it"
