"""Asking a model through its public client: where, in which of two protocols, and what came back.

The clients are extras, imported when a model is first asked.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from triage.core import UsageError, misuse, redact

PROSE = "prose"
_MAX_OUTPUT = 2048
_MAX_BODY = 1_000_000

M = TypeVar("M")
Count = Annotated[int, msgspec.Meta(ge=0)]


class Unusable(Exception):
    """An answer of the wrong form; the message says to the model what is wrong with it."""


class Asked(NamedTuple):
    """The form of a structured answer. name, about: for the model. strict: the schema has no open part."""

    name: str
    about: str
    schema: dict[str, Any]
    strict: bool = True

    @property
    def as_text(self) -> str:
        """How it is asked for in words."""
        schema = json.dumps(self.schema, separators=(",", ":"))
        return f"\n\nAnswer with one JSON object and nothing else. Its JSON Schema: {schema}"


class Endpoint(NamedTuple):
    """Where a model is asked. base_url: None is the provider's own. client: one that the user made;
    it is not closed.
    """

    model: str
    base_url: str | None
    api_key: str | None
    client: Any = None


class Reply(NamedTuple):
    """What came back. refused: in what words, None if it did not refuse."""

    text: str
    refused: str | None
    input_tokens: int
    output_tokens: int


class Provider:
    """One protocol. forms: how a structured answer may be asked for, best first; `PROSE` asks for none.

    The client is an extra: it is imported and made when a diagnosis is asked for, in a worker thread (that
    takes 30 ms, and the first import a second), and closed after it, as it belongs to one event loop.
    """

    name: ClassVar[str]
    client_class: ClassVar[str]
    forms: ClassVar[tuple[str, ...]]

    def open(self, endpoint: Endpoint) -> Any:
        """A client for this event loop; raises what the client raises."""
        raise NotImplementedError

    def send(
        self, client: Any, model: str, form: str, system: str, text: str, asked: Asked | None = None
    ) -> Any:
        """The awaitable of one request; its result goes to `read`. asked: the form of the
        answer, None for prose.
        """
        raise NotImplementedError

    def read(self, body: str) -> Reply:
        """What an answer says. Raises Unusable for one that is not of the protocol."""
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
    """Chat completions, of OpenAI and of whatever speaks as it does."""

    name = "openai"
    client_class = "AsyncOpenAI"
    forms = ("schema", "tool", "text")

    def open(self, endpoint: Endpoint) -> Any:
        """See `Provider`."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0, timeout=None
        )

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
        create = client.chat.completions.with_raw_response.create
        return create(model=model, messages=messages, **extra)

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
        return Reply(text, refused, usage.prompt_tokens, usage.completion_tokens)


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
    """Messages, of Anthropic."""

    name = "anthropic"
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
        messages = [{"role": "user", "content": text}]
        create = client.messages.with_raw_response.create
        return create(
            model=model, max_tokens=_MAX_OUTPUT, system=system, messages=messages, **extra
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
        return Reply(text, refused, usage.input_tokens + cached, usage.output_tokens)


def _decoded(form: type[M], body: str) -> M:
    try:
        return msgspec.json.decode(body[:_MAX_BODY], type=form)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Unusable("it has not the form of the protocol") from None


PROVIDERS: dict[str, Provider] = {"openai": _OpenAI(), "anthropic": _Anthropic()}


def provider_of(value: object, owner: str = "LLMClassifier") -> tuple[Provider, Any]:
    """The protocol of a name, with None, or of a client that the user made, with that client.

    owner: whose argument it is. Raises UsageError for anything else, and where the extra is not installed.
    """
    if isinstance(value, str) and value in PROVIDERS:
        if find_spec(value) is None:
            raise UsageError(
                f"{owner}(provider={value!r}) needs the package {value}, which is not "
                f"installed; run pip install triage-recovery[{value}]"
            )
        return PROVIDERS[value], None
    for name, provider in PROVIDERS.items():
        # Whoever has made a client has imported its package.
        module = sys.modules.get(name)
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
        f"{owner}.provider must be 'openai', 'anthropic', an AsyncOpenAI or an AsyncAnthropic, "
        f"not {shown[:60]}"
    )


def endpoint_of(
    owner: str, protocol: Provider, client: Any, model: object, base_url: object, api_key: object
) -> Endpoint:
    """Where to ask, from the arguments of `owner` or else from the environment.

    Raises UsageError for what is missing or cannot be used, naming the argument and the variable.
    """
    if client is not None and (base_url is not None or api_key is not None):
        raise UsageError(
            f"{owner}.base_url and api_key are the client's own where one is given; leave them out"
        )
    prefix = protocol.name.upper()
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


def _setting(field: str, value: object, variable: str) -> str | None:
    if value is None:
        return os.environ.get(variable, "").strip() or None
    if not isinstance(value, str) or not value.strip():
        # Of a key not even a part is shown.
        raise UsageError(
            f"{field} must be text that is not empty, or None for {variable}, not "
            f"{'empty text' if isinstance(value, str) else type(value).__name__}"
        )
    return value.strip()
