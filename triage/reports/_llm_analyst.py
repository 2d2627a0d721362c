"""`LLMAnalyst`: a model explains a failure."""

from __future__ import annotations

import json
from typing import Any

import anyio

from triage._worker import in_worker
from triage.classifiers._llm_clients import PROSE, provider_of
from triage.classifiers._llm_endpoint import endpoint_of
from triage.redact import redact
from triage.steps import Usage

from ._report import Analysis
from ._reporter import Brief

_OPENING_SECONDS = 30.0
_CLOSING_SECONDS = 2.0
_MAX_ANSWER = 20_000


class LLMAnalyst:
    """Asks a model to explain a failure; for `ErrorReporter(analyst=…)`.

    One request, through the provider's own client; the reporter's deadline ends it. The model is shown the
    facts without secrets, as data. An answer that is no JSON is taken as the explanation.

    provider: `"openai"` (any endpoint with OpenAI's chat completions), `"anthropic"`, or an
    AsyncOpenAI or AsyncAnthropic of your own, which is used as it is and not closed. model, base_url,
    api_key: None reads OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY, or the same with ANTHROPIC.

    Raises UsageError for a value that cannot be used, a model or key that is nowhere to be found, and
    an extra that is not installed. Calling it raises what the client raises, and ValueError for an
    answer without a word; the reporter makes a report without analysis of that.
    """

    def __init__(
        self,
        provider: Any = "openai",
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._protocol, client = provider_of(provider, "LLMAnalyst")
        self._endpoint = endpoint_of("LLMAnalyst", self._protocol, client, model, base_url, api_key)

    async def __call__(self, brief: Brief) -> Analysis:
        """The model's explanation."""
        own = self._endpoint.client is None
        # Made in a thread: that reads certificates, and imports the client the first time.
        client = await in_worker(self._open, seconds=_OPENING_SECONDS)
        try:
            raw = await self._protocol.send(
                client, self._endpoint.model, PROSE, brief.prompt, brief.text
            )
        finally:
            if own:
                with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                    await client.close()
        reply = self._protocol.read(raw.http_response.text)
        if reply.refused is not None:
            raise ValueError(f"the model refused: {reply.refused}")
        text, suggestions = _parsed(reply.text[:_MAX_ANSWER])
        if not text:
            raise ValueError("the model answered nothing")
        used = Usage(reply.input_tokens, reply.output_tokens, None, 1, self._endpoint.model)
        return Analysis(text, suggestions, self._endpoint.model, used)

    def _open(self) -> Any:
        given = self._endpoint.client
        if given is None:
            return self._protocol.open(self._endpoint)
        return given.with_options(max_retries=0, timeout=None)

    def __repr__(self) -> str:
        where = self._endpoint.base_url
        at = f", base_url={redact(where)!r}" if where else ""
        return f"LLMAnalyst({self._protocol.name!r}, {self._endpoint.model!r}{at})"


def _parsed(said: str) -> tuple[str, tuple[str, ...]]:
    """The explanation and the suggestions: of the JSON that was asked for, else the text as it is."""
    begin, end = said.find("{"), said.rfind("}")
    try:
        found = json.loads(said[begin : end + 1])
    except (ValueError, RecursionError):
        return said.strip(), ()
    text = found.get("analysis") if isinstance(found, dict) else None
    if not isinstance(text, str):
        return said.strip(), ()
    given = found.get("suggestions")
    listed = given if isinstance(given, list) else []
    return text.strip(), tuple(one for one in listed if isinstance(one, str))
