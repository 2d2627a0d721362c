"""Anthropic's clients with recorded calls, and a plain loop that runs tools with one.

client = record(anthropic.AsyncAnthropic())

async def agent(task):
return (await run_tools(client, task, model="claude-…", max_tokens=500, tools=[search])).text
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from triage._manifest import schema_of

from ._clients import Endpoint, Provider, recorded
from ._forms import Answer, read_anthropic
from ._hints import hinted_anthropic
from ._loop import Conversation, Dialect, Result, converse, name_of
from ._repair import as_data, open_in_anthropic, repair_anthropic
from ._said import said_in_chat
from ._wholes import message_ended, whole_message

__all__ = ["Conversation", "record", "run_tools"]

C = TypeVar("C")


def _prepared(body: dict[str, Any], hint: str | None, valid: bool) -> dict[str, Any]:  # noqa: FBT001 - as `Endpoint` has it
    messages = body["messages"] if valid else repair_anthropic(body.get("messages") or ()).messages
    return {**body, "messages": hinted_anthropic(messages, hint)}


_PROVIDER = Provider(
    "anthropic",
    ("AsyncAnthropic", "Anthropic"),
    (
        Endpoint(
            "/messages",
            "messages",
            read_anthropic,
            _prepared,
            open_in_anthropic,
            lambda body: said_in_chat(body.get("messages")),
            whole_message,
            message_ended,
        ),
    ),
)


def record(client: C, *, hint: bool = True) -> C:
    """The same client, async or sync, whose model calls are recorded while they are made in a run.

    Recorded are messages in every form: whole, streamed, parsed, and by the `stream` helper; through
    `with_raw_response` a call is noted, and never reused. Inside a run each request is repaired first
    (a tool call without a result is given one), and ends with the run's hint as words of the user,
    once, unless it stands there already. Outside of a run nothing is done.

    The client given stays as it is; the copy shares its connections. hint: False leaves hints to your
    own code. Raises UsageError for what is no client of anthropic's. Retries of the client's own are
    said in the log `triage.retries`: see `triage.single_retry_layer`.
    """
    return cast("C", recorded(_PROVIDER, client, hint=hint))


async def run_tools(
    client: Any,
    messages: str | Iterable[Any],
    *,
    model: str,
    max_tokens: int,
    tools: Iterable[Callable[..., Any]] = (),
    turns: int = 20,
    **options: Any,
) -> Conversation:
    """Ask the model, run the tools it asks for, and ask again, until it answers in words.

    client: an async client; its calls are recorded if `record` made it. messages: the conversation so
    far, or what the user says. max_tokens: of one answer. tools: functions, best `@triage.tool`, async
    or sync; their signatures and docstrings are what the model is told. turns: of the model, 20 by
    default. options: for `messages.create`.

    Tools asked for in one turn run side by side. A tool that does not exist, and arguments that do not
    fit, are recorded and told to the model; what a tool raises is raised. In an attempt after a Replan
    the conversation goes on where it was. Raises SoftFailure for an answer that is cut off or refused,
    RuntimeError after the last turn.
    """
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages

    async def ask(messages: list[Any], definitions: list[Any]) -> Any:
        more = {"tools": definitions} if definitions else {}
        return await client.messages.create(
            model=model, max_tokens=max_tokens, messages=messages, **more, **options
        )

    return await converse(_DIALECT, ask, list(given), tools, turns)


def _turn(data: Mapping[str, Any]) -> list[Any]:
    return [{"role": "assistant", "content": data["content"]}]


def _results(results: list[Result]) -> list[Any]:
    blocks: list[dict[str, Any]] = []
    for one in results:
        block = {"type": "tool_result", "tool_use_id": one.id, "content": one.text}
        blocks.append({**block, "is_error": True} if one.failed else block)
    return [{"role": "user", "content": blocks}]


def _definition(tool: Callable[..., Any]) -> dict[str, Any]:
    schema = schema_of(tool) or {"type": "object"}
    made = {"name": name_of(tool), "input_schema": schema}
    return {**made, "description": tool.__doc__} if tool.__doc__ else made


def _answer(response: Any) -> tuple[Answer, list[Any]]:
    data = as_data(response)
    return read_anthropic(data), _turn(data)


_DIALECT = Dialect("anthropic", _answer, _turn, _results, _definition, repair_anthropic)
