"""OpenAI's clients with recorded calls, and a plain loop that runs tools with one.

client = record(openai.AsyncOpenAI())

async def agent(task):
return (await run_tools(client, task, model="gpt-4o", tools=[search])).text
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from triage._manifest import schema_of

from ._clients import Endpoint, Provider, recorded
from ._forms import Answer, read_chat, read_responses
from ._hints import hinted_chat, hinted_responses
from ._loop import Conversation, Dialect, Result, converse, name_of
from ._repair import as_data, never_sure, open_in_chat, repair_chat, repair_responses
from ._said import said_in_chat, said_in_items
from ._wholes import chat_ended, response_ended, whole_chat, whole_response

__all__ = ["Conversation", "record", "run_tools"]

C = TypeVar("C")


def _prepared_chat(body: dict[str, Any], hint: str | None, valid: bool) -> dict[str, Any]:  # noqa: FBT001 - as `Endpoint` has it
    messages = body["messages"] if valid else repair_chat(body.get("messages") or ()).messages
    return {**body, "messages": hinted_chat(messages, hint)}


def _prepared_responses(body: dict[str, Any], hint: str | None, valid: bool) -> dict[str, Any]:  # noqa: ARG001, FBT001 - as `Endpoint` has it
    given = body.get("input")
    if not isinstance(given, str) and not body.get("previous_response_id"):
        # What a previous response asked for is known to the provider alone.
        given = repair_responses(given or ()).messages
    return {**body, "input": hinted_responses(given, hint)}


_PROVIDER = Provider(
    "openai",
    ("AsyncOpenAI", "OpenAI"),
    (
        Endpoint(
            "/chat/completions",
            "messages",
            read_chat,
            _prepared_chat,
            open_in_chat,
            lambda body: said_in_chat(body.get("messages")),
            whole_chat,
            chat_ended,
        ),
        Endpoint(
            "/responses",
            "input",
            read_responses,
            _prepared_responses,
            never_sure,
            lambda body: said_in_items(body.get("input")),
            whole_response,
            response_ended,
        ),
    ),
)


def record(client: C, *, hint: bool = True) -> C:
    """The same client, async or sync, whose model calls are recorded while they are made in a run.

    Recorded are chat completions and responses in every form: whole, streamed, parsed, and by the
    `stream` helpers; through `with_raw_response` a call is noted, and never reused. Inside a run each
    request is repaired first (a tool call without a result is given one), and ends with the run's hint
    as a message of the user, once, unless it stands there already. Outside of a run nothing is done.

    The client given stays as it is; the copy shares its connections. hint: False leaves hints to your
    own code. Raises UsageError for what is no client of openai's. Retries of the client's own are said
    in the log `triage.retries`: see `triage.single_retry_layer`.
    """
    return cast("C", recorded(_PROVIDER, client, hint=hint))


# The loop -------------------------------------------------------------------------------------------


async def run_tools(
    client: Any,
    messages: str | Iterable[Any],
    *,
    model: str,
    tools: Iterable[Callable[..., Any]] = (),
    turns: int = 20,
    **options: Any,
) -> Conversation:
    """Ask the model, run the tools it asks for, and ask again, until it answers in words.

    client: an async client; its calls are recorded if `record` made it. messages: the conversation so
    far, or what the user says. tools: functions, best `@triage.tool`, async or sync; their signatures
    and docstrings are what the model is told. turns: of the model, 20 by default. options: for
    `chat.completions.create`.

    Tools asked for in one turn run side by side. A tool that does not exist, and arguments that do not
    fit, are recorded and told to the model; what a tool raises is raised. In an attempt after a Replan
    the conversation goes on where it was. Raises SoftFailure for an answer that is cut off or refused,
    RuntimeError after the last turn.
    """
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages

    async def ask(messages: list[Any], definitions: list[Any]) -> Any:
        more = {"tools": definitions} if definitions else {}
        return await client.chat.completions.create(
            model=model, messages=messages, **more, **options
        )

    return await converse(_DIALECT, ask, list(given), tools, turns)


def _turn(data: Mapping[str, Any]) -> list[Any]:
    message = data["choices"][0]["message"]
    kept = {
        key: message[key]
        for key in ("role", "content", "tool_calls", "refusal")
        if message.get(key)
    }
    return [{"content": None, **kept}]


def _results(results: list[Result]) -> list[Any]:
    return [{"role": "tool", "tool_call_id": one.id, "content": one.text} for one in results]


def _definition(tool: Callable[..., Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name_of(tool)}
    if tool.__doc__:
        function["description"] = tool.__doc__
    schema = schema_of(tool)
    if schema is not None:
        function["parameters"] = schema
    return {"type": "function", "function": function}


def _answer(response: Any) -> tuple[Answer, list[Any]]:
    data = as_data(response)
    return read_chat(data), _turn(data)


_DIALECT = Dialect("openai", _answer, _turn, _results, _definition, repair_chat)
