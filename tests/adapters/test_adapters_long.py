"""What requests of recorded clients are known by, and how they are sent."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

import anthropic
import anyio
import openai
import recorded_clients
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from triage import Agent
from triage.adapters import key_of, repair_anthropic, repair_chat
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.openai import record as record_openai
from triage.core import CallStarted, Event

assert recorded_clients.ANSWERS
RUN = "run-1"
CHAT = ChatCompletion.construct(id="1", choices=[], created=1, model="m", object="chat.completion")
MESSAGE = Message.construct(id="1", content=[], model="m", role="assistant", type="message")


class Chat(openai.OpenAI):
    """A client that sends nothing, and keeps what it would have sent."""

    sent: ClassVar[list[Any]] = []

    def post(self, path: str, **options: Any) -> Any:
        self.sent.append(options["body"])
        return CHAT


class Messages(anthropic.Anthropic):
    """As `Chat`, of the other provider."""

    sent: ClassVar[list[Any]] = []

    def post(self, path: str, **options: Any) -> Any:
        self.sent.append(options["body"])
        return MESSAGE


class Provider(NamedTuple):
    kind: type[Any]
    record: Callable[..., Any]
    path: str
    repair: Callable[[list[Any]], Any]


PROVIDERS = [
    Provider(Chat, record_openai, "/chat/completions", repair_chat),
    Provider(Messages, record_anthropic, "/messages", repair_anthropic),
]


def send(provider: Provider, bodies: list[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """Send requests in a run: the digests that their calls are known by, and what was sent."""
    events: list[Event] = []
    client = provider.record(provider.kind(api_key="x", max_retries=0), hint=False)
    provider.kind.sent.clear()

    async def attempt(task: str) -> None:
        for body in bodies:
            client.post(provider.path, cast_to=object, body=body)

    async def run() -> None:
        await Agent(attempt, observers=[events.append]).run("t", run_id=RUN)

    anyio.run(run)
    keys = [event.key for event in events if isinstance(event, CallStarted)]
    return [key.split(":")[1] for key in keys], list(provider.kind.sent)


def known_by(path: str, body: dict[str, Any]) -> str:
    """The digest in the key of a call, as journals have it."""
    return sha256(f'{RUN}\0"{key_of([path, body])}"'.encode()).hexdigest()[:32]


ATOMS = st.sampled_from(
    ["", "go", '"messages":[]', "\ud800", None, 1, True, 1.0, 0, False, 0.0, -0.0]
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b", "messages"]), inner, max_size=2)
        | st.tuples(inner)
        | st.dictionaries(st.sampled_from([1, True, 2.5, None, "c"]), inner, max_size=2)
    ),
    max_leaves=4,
)
IDS = st.sampled_from("abc")


def _asks(call: str) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": call, "name": "look", "input": {}}]
    return {"role": "assistant", "content": blocks, "tool_calls": [{"id": call}]}


def _answers(call: str) -> list[dict[str, Any]]:
    blocks = [{"type": "tool_result", "tool_use_id": call, "content": "seen"}]
    return [
        {"role": "tool", "tool_call_id": call, "content": "seen"},
        {"role": "user", "content": blocks},
    ]


TURNS = st.one_of(
    IDS.map(_asks),
    IDS.flatmap(lambda call: st.sampled_from(_answers(call))),
    st.builds(lambda value: {"role": "user", "content": [{"type": "text", "text": value}]}, VALUES),
    st.just({"role": "assistant", "content": "words"}),
)


@given(st.sampled_from(PROVIDERS), st.lists(TURNS, max_size=6), VALUES)
def test_a_request_is_known_by_all_of_it_and_sent_repaired(
    provider: Provider, messages: list[Any], more: Any
) -> None:
    bodies: list[dict[str, Any]] = [
        {"model": "m", "messages": messages},
        {"model": "m", "messages": [], "tools": more},
    ]
    keys, sent = send(provider, deepcopy(bodies))
    assert keys == [known_by(provider.path, body) for body in bodies]
    assert [body["messages"] for body in sent] == [
        provider.repair(body["messages"]).messages for body in bodies
    ]


def test_what_is_left_out_of_a_request_is_no_part_of_what_it_is_known_by() -> None:
    left_out = (openai.omit, openai.NOT_GIVEN, anthropic.omit, anthropic.NOT_GIVEN)
    given = [{"model": "m", "n": at, "messages": []} for at in range(len(left_out))]
    bodies = [{**body, "tools": value} for body, value in zip(given, left_out, strict=True)]
    for provider in PROVIDERS:
        keys, _ = send(provider, bodies)
        assert keys == [known_by(provider.path, body) for body in given]
