"""A model's endpoint that fails: whatever it does, the run gets a diagnosis, in time."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_server import Handler, Reply, Request, cut_off, fails, raw, says, serving, silent
from support import FakeEnvironment, always

from classifiers.test_llm_classifier import ATTEMPT, DRIFT, ONE_BACKEND, PROVIDERS, asking
from triage import Agent, Diagnosis, Escalate, FailureType, TriageEscalationError, Usage, UsageError
from triage.classifiers import BlockingClassifier, LLMClassifier
from triage.core import AttemptFailed, UsageRecorded, dumps, loads

OVERLOADED = fails(529, "Overloaded", "overloaded_error")
RATE = fails(429, "Rate limit reached", "rate_limit_exceeded", {"retry-after": "7"})
DOWN = fails(500, "The server had an error", "server_error")


def why(found: Diagnosis) -> tuple[str, str]:
    assert (found.failure_type, found.confidence) == (FailureType.UNKNOWN, 0.0)
    assert found.classifier == "llm"
    return found.evidence[0].rule, found.evidence[0].text


@PROVIDERS
@pytest.mark.anyio
async def test_a_request_that_failed_for_now_is_repeated_after_the_delay_asked_for(
    provider: str,
) -> None:
    clock = FakeEnvironment()
    with serving(RATE, OVERLOADED, says(DRIFT)) as server:
        found = await asking(server, provider, environment=clock).classify(ATTEMPT)
        assert await anyio.to_thread.run_sync(server.all_closed)
    assert found.failure_type is FailureType.HALLUCINATED_STATE
    assert found.usage == Usage(100, 20, None, 3, "m")
    assert clock.slept == [7.0, 0.75]


@PROVIDERS
@pytest.mark.parametrize("trouble", [DOWN, cut_off], ids=["500", "cut off"])
@pytest.mark.anyio
async def test_it_gives_up_after_its_retries_and_says_why(provider: str, trouble: Reply) -> None:
    clock = FakeEnvironment()
    with serving(trouble) as server:
        found = await asking(server, provider, retries=3, environment=clock).classify(ATTEMPT)
        assert await anyio.to_thread.run_sync(server.all_closed)
    assert (len(server.requests), clock.slept) == (4, [0.375, 0.75, 1.5])
    rule, text = why(found)
    assert rule == "llm:failed"
    assert text.startswith("the model could not be asked: ")
    assert found.usage == Usage(0, 0, None, 4, "m")


@ONE_BACKEND
@pytest.mark.anyio
async def test_a_delay_that_would_pass_the_deadline_is_not_waited_for() -> None:
    clock = FakeEnvironment()
    slow = fails(429, "Rate limit reached", "rate_limit_exceeded", {"retry-after": "700"})
    with serving(slow) as server:
        rule, text = why(await asking(server, environment=clock).classify(ATTEMPT))
    assert (rule, clock.slept, len(server.requests)) == ("llm:failed", [], 1)
    assert text.endswith("waiting 700 s would pass the deadline")


HOPELESS = [
    (401, "Incorrect API key provided: sk-abcdefghijklmnopqrstuv", "invalid_api_key", "llm:failed"),
    (429, "You exceeded your current quota", "insufficient_quota", "llm:failed"),
    (404, "The model `m` does not exist", "model_not_found", "llm:failed"),
    (400, "This model's maximum context length is 8", "context_length_exceeded", "llm:failed"),
    (400, "The response was filtered", "content_filter", "llm:refused"),
]


@ONE_BACKEND
@PROVIDERS
@pytest.mark.anyio
async def test_what_no_repetition_can_mend_is_asked_once(
    provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "triage")
    clock = FakeEnvironment()
    for status, message, code, rule in HOPELESS:
        with serving(fails(status, message, code)) as server:
            found = await asking(server, provider, environment=clock).classify(ATTEMPT)
        said = why(found)
        assert (said[0], clock.slept, len(server.requests)) == (rule, [], 1), message
        assert message[:20] in said[1]
        assert "sk-abcdefgh" not in f"{found} {found.technical_details} {said} {caplog.text}"


@ONE_BACKEND
@pytest.mark.anyio
async def test_a_refusal_of_every_form_ends_in_the_endpoints_own_words() -> None:
    with serving(fails(400, "temperature is wrong", "invalid_request_error")) as server:
        rule, text = why(await asking(server).classify(ATTEMPT))
    assert [request.form for request in server.requests] == ["schema", "tool", "text"]
    assert rule == "llm:failed"
    assert "temperature is wrong" in text


@PROVIDERS
@pytest.mark.anyio
async def test_silence_ends_at_the_deadline(provider: str) -> None:
    with serving(silent) as server:
        found = await asking(server, provider, deadline=0.5).classify(ATTEMPT)
        assert await anyio.to_thread.run_sync(server.all_closed)
    assert why(found) == ("llm:deadline", "no answer within 0.5 s")
    # On a loaded machine, opening the client may take that long by itself.
    assert found.usage in (None, Usage(0, 0, None, 1, "m"))


@PROVIDERS
@pytest.mark.anyio
async def test_cancelling_the_run_cancels_the_request(provider: str) -> None:
    async def broken(task: str) -> str:
        raise RuntimeError("who knows")

    with serving(silent) as server:
        agent = Agent(broken, classifier=asking(server, provider))
        async with anyio.create_task_group() as group:
            group.start_soon(agent.run, "x")
            assert await anyio.to_thread.run_sync(server.was_asked)
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(server.all_closed)
        assert server.hung_up.is_set()


@pytest.mark.anyio
async def test_a_port_where_nobody_listens_is_no_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        clock = FakeEnvironment()
        classifier = LLMClassifier(
            "openai", "m", base_url=url, api_key="k", retries=1, environment=clock
        )
        found = await classifier.classify(ATTEMPT)
    assert why(found) == (
        "llm:failed",
        "the model could not be asked: APIConnectionError: Connection error.",
    )
    assert clock.slept == [0.375]


MALFORMED: dict[str, Reply] = {
    "no JSON": says("It was the hotel's fault."),
    "half an object": says('{"failure_type": "unknown", "confi'),
    "cut off": says('{"failure_type": "unknown", "confi', cut=True),
    "another form": says('{"type": "hallucinated_state"}'),
    "a list": says("[1, 2]"),
    "nothing": says(""),
    "not a number": says(json.dumps({**DRIFT, "confidence": float("nan")})),
    "deep": says('{"a":' * 5000),
    "half a letter": says(json.dumps({**DRIFT, "failure_type": "\ud800"})),
    "no answer of the protocol": raw(200, b'{"choices": [], "content": 7, "output": 7}'),
    "no object at all": raw(200, b"null"),
    "a page": raw(200, b"<html>Sign in to the Wi-Fi</html>"),
}


@ONE_BACKEND
@PROVIDERS
@pytest.mark.anyio
async def test_a_malformed_answer_is_asked_for_twice_and_then_given_up(provider: str) -> None:
    for name, reply in MALFORMED.items():
        with serving(reply) as server:
            rule, text = why(await asking(server, provider).classify(ATTEMPT))
        assert (rule, len(server.requests)) == ("llm:invalid", 2), name
        assert text.startswith("2 answers could not be used; of the last, ")
        assert "Wi-Fi" not in text


@pytest.mark.anyio
async def test_a_run_goes_on_to_its_policy_without_an_answer() -> None:
    async def broken(task: str) -> str:
        raise KeyError("its own error")

    seen: list[Any] = []
    with serving(cut_off) as server:
        classifier = asking(server, environment=FakeEnvironment())
        policy = always(Escalate())
        with pytest.raises(TriageEscalationError) as caught:
            await Agent(broken, policy, classifier=classifier, observers=[seen.append]).run("x")
    assert isinstance(caught.value.__cause__, KeyError)
    assert [type(event) for event in seen if isinstance(event, UsageRecorded | AttemptFailed)] == [
        UsageRecorded,
        AttemptFailed,
    ]
    assert [loads(dumps(event)) for event in seen] == seen


# Any text -----------------------------------------------------------------------------------------

TEXTS = st.text(max_size=80)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
QUOTES = st.fixed_dictionaries(
    {"step": st.none() | st.integers(-1, 4), "quote": TEXTS | st.just("there is no hotel 99")}
)
ANSWERS = st.fixed_dictionaries(
    {
        "failure_type": st.sampled_from([*FailureType, "LOOP_DETECTED "]),
        "confidence": st.floats(-0.1, 1.1),
        "critical_step": st.none() | st.integers(-2, 5),
        "evidence": st.lists(QUOTES, max_size=7),
        "cause": st.none() | TEXTS | st.just("rate_limited"),
        "hint": st.none() | TEXTS,
        "why": TEXTS,
    }
)


class Replies:
    """A server whose one reply is changed between requests."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, handler: Handler, request: Request) -> None:
        says(self.text)(handler, request)


@pytest.fixture(scope="module")
def blocking() -> Iterator[tuple[Replies, BlockingClassifier]]:
    replies = Replies()
    with serving(replies) as server:
        yield replies, BlockingClassifier(asking(server))


@given(st.one_of(TEXTS, JSON.map(json.dumps), ANSWERS.map(json.dumps)))
def test_whatever_a_model_says_becomes_a_diagnosis_that_can_be_stored(
    blocking: tuple[Replies, BlockingClassifier], text: str
) -> None:
    replies, classifier = blocking
    replies.text = text
    found = classifier.classify(ATTEMPT)
    assert isinstance(found, Diagnosis)
    assert found.confidence <= 0.9
    assert found.critical_step in (None, 0, 1, 2)
    assert all(item.step in (None, 0, 1, 2) for item in found.evidence)
    event = AttemptFailed("r", 0, 1.0, 1, ATTEMPT.error, found)
    assert loads(dumps(event)) == event
    dumps(event).encode("utf-8")


# Use ----------------------------------------------------------------------------------------------


@pytest.fixture
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("OPENAI", "ANTHROPIC"):
        for name in ("MODEL", "BASE_URL", "API_KEY"):
            monkeypatch.delenv(f"{provider}_{name}", raising=False)


@pytest.mark.usefixtures("_bare")
def test_a_wrong_argument_is_refused_at_once() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"model": None}, "OPENAI_MODEL"),
        ({"provider": "openai-responses", "model": None}, "OPENAI_MODEL"),
        ({"provider": "anthropic", "api_key": None}, "ANTHROPIC_API_KEY"),
        ({"provider": "mistral"}, "provider must be 'openai', 'openai-responses', 'anthropic', an"),
        ({"provider": object()}, "not object"),
        ({"model": ""}, "model must be text that is not empty"),
        ({"api_key": b"secret"}, "api_key must be text that is not empty, .* not bytes"),
        ({"base_url": "localhost:80"}, "base_url must be a URL with http"),
        ({"deadline": 0}, "deadline must be a finite number of seconds above 0"),
        ({"retries": -1}, "retries must be a whole number from 0"),
        ({"max_chars": 10}, "max_chars must be a whole number from 2000"),
        ({"price": 2.0}, "price must be a pair"),
        ({"price": (1.0, -1.0)}, "price must be a finite number"),
        ({"budget": 5}, "budget must be a Budget or None"),
        ({"environment": 5}, "environment must be an Environment"),
    ]
    for arguments, words in wrong:
        with pytest.raises(UsageError, match=words) as caught:
            LLMClassifier(**{"provider": "openai", "model": "m", "api_key": "k", **arguments})
        assert "secret" not in str(caught.value)


def test_the_environment_names_model_key_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MODEL", "m-1"), ("API_KEY", "k"), ("BASE_URL", "http://u:pw@host/v1")):
        monkeypatch.setenv(f"OPENAI_{name}", value)
    shown = repr(LLMClassifier())
    assert shown == "LLMClassifier('openai', 'm-1', base_url='http://[redacted]@host/v1')"
    assert repr(LLMClassifier("openai-responses")).startswith("LLMClassifier('openai-responses'")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    for provider in ("openai", "openai-responses"):
        with pytest.raises(UsageError, match=r"pip install 'triage-recovery\[openai\]'"):
            LLMClassifier(provider, "m", api_key="k")


def test_a_client_for_sync_code_is_refused() -> None:
    from openai import OpenAI

    with (
        OpenAI(api_key="k", base_url="http://127.0.0.1:1") as client,
        pytest.raises(UsageError, match="give an AsyncOpenAI"),
    ):
        LLMClassifier(client, "m")
