"""An agent's model as the runner asks it: calls that do not leave over HTTP are recorded here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from agents import Model, ModelResponse
from agents.usage import Usage, deserialize_usage
from openai.types.responses import Response, ResponseCompletedEvent
from pydantic import TypeAdapter

from triage.adapters.base import ModelOptions, Seam
from triage.adapters.calls import Form, UnfinishedStream
from triage.adapters.tools import tools_by_name
from triage.core.messages.neutral import Answer
from triage.core.messages.responses import RESPONSES

_ANSWER = TypeAdapter(ModelResponse)
_PARAMETERS = (
    "system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing",
)  # fmt: skip


class SeamModel(Model):
    """A model that is asked through the seam. who: as of `Seam.asked`."""

    def __init__(self, seam: Seam, model: Model, who: str) -> None:
        self._seam, self._model, self._who = seam, model, who
        self._name = str(getattr(model, "model", "") or "")
        for own in ("get_retry_advice", "_cleanup_on_run_end"):
            setattr(self, own, getattr(model, own))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def get_response(self, *args: Any, **more: Any) -> ModelResponse:
        given = {**dict(zip(_PARAMETERS, args, strict=False)), **more}

        async def ask(hint: str | None) -> ModelResponse:
            return await self._model.get_response(**_hinted(given, hint))

        def options() -> ModelOptions:
            return self._options(given)

        return await self._seam.asked(self._model, self._name, ask, options, who=self._who)

    async def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Ask the model, recorded with the last piece; a reused answer comes in one piece."""
        given = {**dict(zip(_PARAMETERS, args, strict=False)), **more}

        def options() -> ModelOptions:
            return self._options(given)

        asking = self._seam.streamed(self._model, self._name, options, who=self._who)
        if asking.known is not None:
            yield _last_event(asking.known)
            return
        is_over = False
        with asking.passing():
            with asking.listening():
                pieces: Any = self._model.stream_response(**_hinted(given, asking.hint))
            async with aclosing(pieces), aclosing(asking.pieces(pieces)) as passing:
                async for piece in passing:
                    if isinstance(piece, ResponseCompletedEvent):
                        is_over = True
                        asking.done(_whole(piece.response))
                        await asking.durable()
                    yield piece
            if not is_over:
                raise UnfinishedStream

    def _options(self, given: dict[str, Any]) -> ModelOptions:
        handoffs = {one.tool_name: None for one in given["handoffs"]}
        tools = {**tools_by_name(given["tools"]), **handoffs}
        return {
            "form": Form(_dump, _ANSWER.validate_python, self._read),
            "request": [given["input"], self._name, given["system_instructions"], list(tools)],
            "said": RESPONSES.new_in(given["input"]),
            "model": self._name,
            "max_tokens": given["model_settings"].max_tokens,
            "tools": tools,
        }

    def _read(self, data: Any) -> Answer:
        is_cut = any(item.get("status") == "incomplete" for item in data["output"])
        ended = {"incomplete_details": {"reason": "length"}} if is_cut else {}
        return RESPONSES.answer({**data, "model": self._name, **ended})


def _hinted(given: dict[str, Any], hint: str | None) -> dict[str, Any]:
    return {**given, "input": RESPONSES.hinted(given["input"], hint)}


def _dump(answer: ModelResponse) -> Any:
    return _ANSWER.dump_python(answer, mode="json", warnings=False, exclude_unset=True)


def _whole(response: Response) -> ModelResponse:
    """The answer that a stream ended with."""
    used = response.usage
    usage = Usage() if used is None else deserialize_usage({"requests": 1, **used.model_dump()})
    return ModelResponse(response.output, usage, response.id)


def _last_event(answer: ModelResponse) -> ResponseCompletedEvent:
    """The last event of a stream with this answer."""
    known = {**_dump(answer), "id": answer.response_id or "", "status": "completed"}
    response = Response.construct(None, **known)
    return ResponseCompletedEvent.construct(
        type="response.completed", sequence_number=0, response=response
    )
