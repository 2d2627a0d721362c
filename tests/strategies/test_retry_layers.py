from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import anthropic
import httpx
import openai
import pytest
from tables import table

from triage import UsageError
from triage.strategies import retry_layers, single_retry_layer, warn_of_retries

CLIENTS: list[tuple[type[Any], str]] = [
    (openai.OpenAI, "openai.OpenAI"),
    (openai.AsyncOpenAI, "openai.AsyncOpenAI"),
    (anthropic.Anthropic, "anthropic.Anthropic"),
    (anthropic.AsyncAnthropic, "anthropic.AsyncAnthropic"),
]


@table(("kind", "name"), CLIENTS)
def test_a_client_that_retries_by_itself_is_found_and_made_to_stop(
    kind: type[Any], name: str
) -> None:
    client = kind(api_key="x")
    (layer,) = retry_layers(client)
    assert (layer.where, layer.retries, layer.removable) == (name, 2, True)
    single = single_retry_layer(client)
    assert type(single) is kind
    assert retry_layers(single) == ()
    assert (single.max_retries, client.max_retries) == (0, 2)
    assert single._client is client._client


def test_a_client_that_does_not_retry_is_given_back() -> None:
    client = openai.OpenAI(api_key="x", max_retries=0)
    assert single_retry_layer(client) is client
    assert retry_layers(client) == ()


@pytest.mark.anyio
async def test_one_call_is_one_request_afterwards() -> None:
    from openai import DefaultAsyncHttpxClient

    sent: list[str] = []
    transport_of = pytest.importorskip("httpx2").MockTransport
    response_of = pytest.importorskip("httpx2").Response

    def answer(request: Any) -> Any:
        sent.append(str(request.url))
        return response_of(429, headers={"retry-after": "0.01"}, json={"error": {}})

    http = DefaultAsyncHttpxClient(transport=transport_of(answer))
    client = single_retry_layer(openai.AsyncOpenAI(api_key="x", http_client=http))
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert len(sent) == 1
    await http.aclose()


@table(
    "make",
    [
        lambda: httpx.Client(transport=httpx.HTTPTransport(retries=3)),
        lambda: httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=3)),
        lambda: httpx.Client(mounts={"https://": httpx.HTTPTransport(retries=3)}),
        lambda: httpx.HTTPTransport(retries=3),
    ],
)
def test_a_transport_that_connects_again_is_found_and_made_to_stop(make: Any) -> None:
    client = make()
    (layer,) = retry_layers(client)
    assert (layer.retries, layer.removable) == (3, True)
    assert single_retry_layer(client) is client
    assert retry_layers(client) == ()


def test_a_plain_httpx_client_is_no_layer() -> None:
    assert retry_layers(httpx.Client()) == ()


def test_a_client_inside_of_a_wrapper_is_found() -> None:
    client = openai.AsyncOpenAI(api_key="x", max_retries=4)
    model = SimpleNamespace(provider=SimpleNamespace(client=client))
    (layer,) = retry_layers(model)
    assert (layer.where, layer.retries) == ("openai.AsyncOpenAI", 4)


class Boto:
    def __init__(self, retries: dict[str, Any] | None) -> None:
        self.meta = SimpleNamespace(service_model=object(), config=SimpleNamespace(retries=retries))


@table(
    ("retries", "often"),
    [
        (None, 4),
        ({"mode": "legacy"}, 4),
        ({"mode": "standard"}, 2),
        ({"mode": "adaptive"}, 2),
        ({"max_attempts": 7}, 7),
        ({"max_attempts": 0}, None),
        ({"total_max_attempts": 3, "mode": "standard"}, 2),
        ({"total_max_attempts": 1}, None),
    ],
)
def test_what_botocore_does_is_said(retries: dict[str, Any] | None, often: int | None) -> None:
    found = retry_layers(Boto(retries))
    assert [layer.retries for layer in found] == ([] if often is None else [often])
    assert all("total_max_attempts" in layer.remedy and not layer.removable for layer in found)


def test_what_a_client_of_google_does_is_said() -> None:
    options = SimpleNamespace(retry_options=SimpleNamespace(attempts=5))
    client = SimpleNamespace(_api_client=SimpleNamespace(_http_options=options))
    (layer,) = retry_layers(client)
    assert (layer.retries, layer.remedy) == (4, "make it with HttpRetryOptions(attempts=1)")


def test_what_a_session_of_requests_does_is_said() -> None:
    adapter = SimpleNamespace(max_retries=SimpleNamespace(total=6))
    session = SimpleNamespace(adapters={"https://": adapter}, mount=print)
    assert [layer.retries for layer in retry_layers(session)] == [6]


def test_a_model_with_retries_of_its_own_is_said() -> None:
    (layer,) = retry_layers(SimpleNamespace(max_retries=6))
    assert str(layer) == (
        "types.SimpleNamespace retries up to 6 times by itself; make it with max_retries=0"
    )


class Hostile:
    @property
    def max_retries(self) -> int:
        raise RuntimeError("not now")

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Everything:
    """Has every attribute, as a mock has."""

    asked: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return Everything()


def test_a_mock_is_no_layer_and_is_not_searched() -> None:
    assert retry_layers(Everything()) == ()
    assert len(Everything.asked) < 10


def test_odd_objects_are_no_layers_and_break_nothing() -> None:
    loop = SimpleNamespace()
    loop.client = loop
    endless: Any = SimpleNamespace()
    current = endless
    for _ in range(1_000):
        current.client = SimpleNamespace()
        current = current.client
    odd: tuple[Any, ...] = (
        None,
        5,
        "x",
        [1],
        {},
        object(),
        loop,
        endless,
        Hostile(),
        MagicMock(),
        openai.OpenAI,
    )
    assert retry_layers(*odd) == ()


def test_each_kind_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Chatty:
        max_retries = 3

    with caplog.at_level(logging.WARNING, "triage.retries"):
        for _ in range(3):
            warn_of_retries(Chatty(), "a text", None)
    assert len(caplog.records) == 1
    assert "Chatty retries up to 3 times by itself" in caplog.text


def test_what_cannot_be_turned_off_is_said(caplog: pytest.LogCaptureFixture) -> None:
    client = Boto({"max_attempts": 9})
    with caplog.at_level(logging.WARNING, "triage.retries"):
        assert single_retry_layer(client) is client
    assert "Boto retries up to 9 times by itself" in caplog.text


@table("value", [None, "client", 5, [openai], openai.OpenAI])
def test_what_is_no_client_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"single_retry_layer\(\) client must be a client"):
        single_retry_layer(value)
