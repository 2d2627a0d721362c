"""Asks a model through its provider's public client, in one of three protocols.

The clients are extras, imported when a model is first asked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import anyio
import msgspec

from triage.core.asking import in_worker
from triage.core.errors import UsageError, misuse
from triage.core.redaction import redact

PROSE = "prose"
_MAX_OUTPUT = 2048
_MAX_BODY = 1_000_000
_OPENING_SECONDS = 30.0
_CLOSING_SECONDS = 2.0

M = TypeVar("M")
Count = Annotated[int, msgspec.Meta(ge=0)]


class Unusable(Exception):
    """An answer of the wrong form; the message tells the model what is wrong with it."""


class Asked(NamedTuple):
    """The form of a structured answer. name, about: for the model. strict: it leaves nothing open."""

    name: str
    about: str
    schema: dict[str, Any]
    strict: bool = True

    @property
    def as_text(self) -> str:
        """The request for this form in words, for endpoints without structured output."""
        schema = json.dumps(self.schema, separators=(",", ":"))
        return f"\n\nAnswer with one JSON object and nothing else. Its JSON Schema: {schema}"


class Endpoint(NamedTuple):
    """Where to ask. base_url: None is the provider's own. client: the user's own, which is not closed;
    None: one is opened for each diagnosis.
    """

    model: str
    base_url: str | None
    api_key: str | None
    client: Any = None


class Reply(NamedTuple):
    """An answer. refused: the words of a refusal, None if there is none. cut: the answer ends at the
    limit of output tokens.
    """

    text: str
    refused: str | None
    input_tokens: int
    output_tokens: int
    cut: bool = False


class Provider:
    """One protocol. forms: the ways to ask for a structured answer, best first; `PROSE` asks for none.

    A client belongs to one event loop, so it is opened for each diagnosis and closed after it. Opening
    runs in a worker thread: the first import takes about a second.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    client_class: ClassVar[str]
    forms: ClassVar[tuple[str, ...]]

    def open(self, endpoint: Endpoint) -> Any:
        """A client for this event loop; raises what the client raises."""
        raise NotImplementedError

    def send(
        self, client: Any, model: str, form: str, system: str, text: str, asked: Asked | None = None
    ) -> Any:
        """Return the awaitable of one request; the body of its result goes to `read`.

        asked: the form of the answer, None for prose.
        """
        raise NotImplementedError

    def read(self, body: str) -> Reply:
        """Read the body of an answer. Raises Unusable if it does not follow the protocol."""
        raise NotImplementedError


class _Function(msgspec.Struct, frozen=True):
    arguments: str = ""


class _ToolCall(msgspec.Struct, frozen=True):
    function: _Function


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message
    finish_reason: str | None = None


class _OpenAIUsage(msgspec.Struct, frozen=True):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class _Completion(msgspec.Struct, frozen=True):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _OpenAIUsage | None = None


class _OpenAI(Provider):
    """Chat completions, of OpenAI and compatible endpoints."""

    name = package = "openai"
    client_class = "AsyncOpenAI"
    forms = ("schema", "tool", "text")

    def open(self, endpoint: Endpoint) -> Any:
        """See `Provider`."""
        from openai import AsyncOpenAI

        client = AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0, timeout=None
        )
        self._create(client)
        return client

    def _create(self, client: Any) -> Any:
        """The client's function for a request. The first use imports much, so `open` gets it, too."""
        return client.chat.completions.with_raw_response.create

    def send(
        self, client: Any, model: str, form: str, system: str, text: str, asked: Asked | None = None
    ) -> Any:
        """See `Provider`."""
        extra: dict[str, Any] = {}
        if asked is not None and form == "schema":
            schema = {"name": asked.name, "strict": asked.strict, "schema": asked.schema}
            extra["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif asked is not None and form == "tool":
            function = {"name": asked.name, "description": asked.about, "parameters": asked.schema}
            extra["tools"] = [{"type": "function", "function": function}]
            extra["tool_choice"] = {"type": "function", "function": {"name": asked.name}}
        elif asked is not None and form == "text":
            system += asked.as_text
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        return self._create(client)(model=model, messages=messages, **extra)

    def read(self, body: str) -> Reply:
        """See `Provider`."""
        answer = _decoded(_Completion, body)
        choice = answer.choices[0]
        message = choice.message
        usage = answer.usage or _OpenAIUsage()
        refused = message.refusal
        if refused is None and choice.finish_reason == "content_filter":
            refused = "its content filter stopped it"
        text = message.content or ""
        if message.tool_calls:
            text = message.tool_calls[0].function.arguments
        cut = choice.finish_reason == "length"
        return Reply(text, refused, usage.prompt_tokens, usage.completion_tokens, cut)


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    refusal: str = ""


class _Item(msgspec.Struct, frozen=True):
    type: str
    arguments: str = ""
    content: list[_Part] | None = None


class _Incomplete(msgspec.Struct, frozen=True):
    reason: str | None = None


class _ResponsesUsage(msgspec.Struct, frozen=True):
    input_tokens: Count = 0
    output_tokens: Count = 0


class _Response(msgspec.Struct, frozen=True):
    output: list[_Item]
    incomplete_details: _Incomplete | None = None
    usage: _ResponsesUsage | None = None


class _Responses(_OpenAI):
    """OpenAI's responses."""

    name = "openai-responses"

    def _create(self, client: Any) -> Any:
        return client.responses.with_raw_response.create

    def send(
        self, client: Any, model: str, form: str, system: str, text: str, asked: Asked | None = None
    ) -> Any:
        """See `Provider`."""
        extra: dict[str, Any] = {}
        if asked is not None and form == "schema":
            schema = {"name": asked.name, "strict": asked.strict, "schema": asked.schema}
            extra["text"] = {"format": {"type": "json_schema", **schema}}
        elif asked is not None and form == "tool":
            function = {"name": asked.name, "description": asked.about, "parameters": asked.schema}
            extra["tools"] = [{"type": "function", "strict": asked.strict, **function}]
            extra["tool_choice"] = {"type": "function", "name": asked.name}
        elif asked is not None and form == "text":
            system += asked.as_text
        create = self._create(client)
        return create(model=model, instructions=system, input=text, store=False, **extra)

    def read(self, body: str) -> Reply:
        """See `Provider`."""
        answer = _decoded(_Response, body)
        usage = answer.usage or _ResponsesUsage()
        parts = [part for item in answer.output for part in item.content or ()]
        called = [item.arguments for item in answer.output if item.type == "function_call"]
        said = "".join(part.text for part in parts if part.type == "output_text")
        refused = next((part.refusal for part in parts if part.type == "refusal"), None)
        stopped = None if answer.incomplete_details is None else answer.incomplete_details.reason
        if refused is None and stopped == "content_filter":
            refused = "its content filter stopped it"
        return Reply(
            called[0] if called else said,
            refused,
            usage.input_tokens,
            usage.output_tokens,
            stopped == "max_output_tokens",
        )


class _Block(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    input: Any = None


class _AnthropicUsage(msgspec.Struct, frozen=True):
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None


class _AnthropicMessage(msgspec.Struct, frozen=True):
    content: list[_Block]
    stop_reason: str | None = None
    usage: _AnthropicUsage = _AnthropicUsage()


class _Anthropic(Provider):
    """Anthropic's messages."""

    name = package = "anthropic"
    client_class = "AsyncAnthropic"
    forms = ("tool", "text")

    def open(self, endpoint: Endpoint) -> Any:
        """See `Provider`."""
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(
            base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0, timeout=None
        )

    def send(
        self, client: Any, model: str, form: str, system: str, text: str, asked: Asked | None = None
    ) -> Any:
        """See `Provider`."""
        extra: dict[str, Any] = {}
        if asked is not None and form == "tool":
            tool = {"name": asked.name, "description": asked.about, "input_schema": asked.schema}
            extra["tools"] = [tool]
            extra["tool_choice"] = {"type": "tool", "name": asked.name}
        elif asked is not None and form == "text":
            system += asked.as_text
        # OpenAI caches a prefix that it has seen by itself, Anthropic only up to such a mark.
        block = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
        create = client.messages.with_raw_response.create
        return create(
            model=model,
            max_tokens=_MAX_OUTPUT,
            system=[block],
            messages=[{"role": "user", "content": text}],
            **extra,
        )

    def read(self, body: str) -> Reply:
        """See `Provider`."""
        answer = _decoded(_AnthropicMessage, body)
        usage = answer.usage
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        called = [block.input for block in answer.content if block.type == "tool_use"]
        said = "".join(block.text for block in answer.content if block.type == "text")
        text = json.dumps(called[0]) if called else said
        refused = (said or "no reason given") if answer.stop_reason == "refusal" else None
        cut = answer.stop_reason == "max_tokens"
        return Reply(text, refused, usage.input_tokens + cached, usage.output_tokens, cut)


def _decoded(form: type[M], body: str) -> M:
    try:
        return msgspec.json.decode(body[:_MAX_BODY], type=form)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Unusable("it does not follow the protocol") from None


PROVIDERS: dict[str, Provider] = {
    provider.name: provider for provider in (_OpenAI(), _Responses(), _Anthropic())
}


def provider_of(value: object, owner: str = "LLMClassifier") -> tuple[Provider, Any]:
    """The provider of that name and None, or the provider of the user's own client and that client.

    owner: whose argument it is. Raises UsageError for anything else, and where the extra is not installed.
    """
    if isinstance(value, str) and value in PROVIDERS:
        package = PROVIDERS[value].package
        if find_spec(package) is None:
            raise UsageError(
                f"{owner}(provider={value!r}) needs the package {package}, which is not "
                f"installed; run pip install 'triage-recovery[{package}]'"
            )
        return PROVIDERS[value], None
    for provider in PROVIDERS.values():
        # Whoever has made a client has imported its package.
        module = sys.modules.get(provider.package)
        if module is None or isinstance(value, str | type):
            continue
        if isinstance(value, getattr(module, provider.client_class)):
            return provider, value
        if isinstance(value, getattr(module, provider.client_class.removeprefix("Async"))):
            raise UsageError(
                f"{owner}.provider is the synchronous client {type(value).__name__}; give an "
                f"{provider.client_class}"
            )
    shown = repr(value) if isinstance(value, str) else type(value).__name__
    raise UsageError(
        f"{owner}.provider must be 'openai', 'openai-responses', 'anthropic', an AsyncOpenAI or an "
        f"AsyncAnthropic, not {shown[:60]}"
    )


def endpoint_of(
    owner: str, protocol: Provider, client: Any, model: object, base_url: object, api_key: object
) -> Endpoint:
    """Where to ask, from the arguments of `owner` or else the environment.

    Raises UsageError for a missing or invalid value, naming the argument and the variable.
    """
    if client is not None and (base_url is not None or api_key is not None):
        raise UsageError(
            f"{owner}.base_url and api_key are the client's own where one is given; leave them out"
        )
    prefix = protocol.package.upper()
    found_model = _setting(f"{owner}.model", model, f"{prefix}_MODEL")
    if found_model is None:
        raise UsageError(f"{owner}.model is not given, and {prefix}_MODEL is not set; name a model")
    if client is not None:
        return Endpoint(found_model, None, None, client)
    key = _setting(f"{owner}.api_key", api_key, f"{prefix}_API_KEY")
    if key is None:
        raise UsageError(
            f"{owner}.api_key is not given, and {prefix}_API_KEY is not set; give any text to "
            "an endpoint that needs no key"
        )
    url = _setting(f"{owner}.base_url", base_url, f"{prefix}_BASE_URL")
    if url is not None and not url.startswith(("http://", "https://")):
        raise misuse(f"{owner}.base_url", redact(url), "a URL with http:// or https://")
    return Endpoint(found_model, url, key)


@asynccontextmanager
async def client_of(provider: Provider, endpoint: Endpoint) -> AsyncGenerator[Any]:
    """Open a client for this event loop and close it afterwards; the user's own is left open."""

    def opened() -> Any:
        if endpoint.client is None:
            return provider.open(endpoint)
        return endpoint.client.with_options(max_retries=0, timeout=None)

    # In a thread: opening reads certificates, and imports the client the first time.
    client = await in_worker(opened, seconds=_OPENING_SECONDS)
    try:
        yield client
    finally:
        if endpoint.client is None:
            with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                await client.close()


def _setting(field: str, value: object, variable: str) -> str | None:
    if value is None:
        return os.environ.get(variable, "").strip() or None
    if not isinstance(value, str) or not value.strip():
        # The value is not shown: it may be a key.
        raise UsageError(
            f"{field} must be text that is not empty, or None for {variable}, not "
            f"{'empty text' if isinstance(value, str) else type(value).__name__}"
        )
    return value.strip()
