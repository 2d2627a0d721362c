"""OpenAI's clients with recorded calls, and a plain loop that runs tools with one.

client = record(openai.AsyncOpenAI())

async def agent(task):
    done = await run_tools(client, task, model="gpt-4o", tools=[search])
    return done.text
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from triage.core.messages.chat import CHAT

from .model_clients import Conversation, Provider, converse, recorded

__all__ = ["record", "run_tools"]


C = TypeVar("C")


_PROVIDER = Provider("openai", ("AsyncOpenAI", "OpenAI"))


def record(client: C, *, hint: bool = True) -> C:
    """Return a copy of the client, async or sync, that records the model calls made inside a run.

    Recorded are chat completions and responses in every form: whole, streamed, parsed, and by the
    `stream` helpers, and through `with_raw_response`. Inside a run each request is repaired first (a
    tool call without a result is given one), and ends with the run's hint as a message of the user, once,
    unless it stands there already. Outside a run nothing is done.

    The client given is not modified; the copy shares its connections. hint: False leaves hints to your
    own code. Raises UsageError for anything but a client of openai. Retries of the client's own are said
    in the log `triage.retries`: see `triage.strategies.single_retry_layer`.
    """
    return recorded(_PROVIDER, client, hint=hint)


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

    async def ask(messages: list[Any], definitions: list[Any]) -> Any:
        more = {"tools": definitions} if definitions else {}
        return await client.chat.completions.create(
            model=model, messages=messages, **more, **options
        )

    return await converse(CHAT, ask, messages, tools, turns)
