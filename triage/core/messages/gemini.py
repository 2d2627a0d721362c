"""Contents of the Gemini API: JSON with camelCase or snake_case names, or the client's objects."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from triage.core.json_values import plain
from triage.core.steps import Usage

from .neutral import Answer, Asked, Message, Result, Tell, tell_nobody
from .reading import as_data, as_text, listed, mapping, text_or_none, usage_of
from .receipts import Shrink
from .wires import ProviderWire, Repaired

_CALLS = ("functionCall", "function_call")
_RESPONSES = ("functionResponse", "function_response")


class GeminiWire(ProviderWire):
    """Responses are parts at the start of the turn after the calls, in the order of the calls.

    They have the function's name, and the call's id if calls have ids.
    """

    answers_in_order = True
    ends_at_once = False  # a finish reason may come in several pieces

    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        content = mapping(as_data(message))
        words: list[str] = []
        calls: list[Asked] = []
        results: list[Result] = []
        for part in map(mapping, listed(content.get("parts"))):
            call, response = _held(part, _CALLS), _held(part, _RESPONSES)
            if call is not None:
                id_, name = as_text(call.get("id")), as_text(call.get("name"))
                calls.append(Asked(id_, name, call.get("args")))
            elif response is not None:
                name = as_text(response.get("name"))
                results.append(Result(as_text(response.get("id")), response.get("response"), name))
            elif isinstance(part.get("text"), str) and part.get("thought") is not True:
                words.append(part["text"])
        if content.get("role") == "model":
            return Message("model", "".join(words), tuple(calls))
        return Message("tool" if results else "user", "".join(words), results=tuple(results))

    def key(self, one: Asked | Result) -> Hashable:
        return (one.name, one.id if isinstance(one, Asked) else one.call)

    def user(self, text: str) -> Any:
        return {"role": "user", "parts": [{"text": text}]}

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        about = {"id": asked.id} if asked.id else {}
        response = {"error" if failed else "result": text}
        return {"functionResponse": {**about, "name": asked.name, "response": response}}

    def closing(self, asked: Asked, outcome: Any, lost: str, message: Any) -> Any:
        made = super().closing(asked, outcome, lost, message)
        parts = listed(mapping(as_data(message)).get("parts"))
        if any("function_call" in mapping(part) for part in parts):
            return {"function_response": made["functionResponse"]}
        return made

    def held(self, message: Any) -> list[Any]:
        parts = listed(mapping(as_data(message)).get("parts"))
        return [part for part in parts if _is_response(part)]

    def joined(self, results: list[Any], message: Any | None) -> list[Any]:
        content = mapping(as_data(message))
        parts = listed(content.get("parts"))
        if results and parts[: len(results)] == results and len(self.held(message)) == len(results):
            return [message]
        rest = [part for part in parts if not _is_response(part)]
        first = [{"role": "user", "parts": results}] if results else []
        return [*first, {**content, "parts": rest}] if rest else first

    def masked(self, message: Any, outputs: Mapping[int, str]) -> Any:
        content = mapping(as_data(message))
        parts = list(content["parts"])
        places = [at for at, part in enumerate(parts) if _is_response(part)]
        for place, text in outputs.items():
            part = parts[places[place]]
            name = next(name for name in _RESPONSES if part.get(name))
            parts[places[place]] = {**part, name: {**part[name], "response": {"result": text}}}
        return {**content, "parts": parts}

    def shown(self, message: Any) -> Any:
        content = mapping(as_data(message))
        parts: list[Any] = []
        for part in map(mapping, listed(content.get("parts"))):
            response = _held(part, _RESPONSES)
            if response is not None:
                parts.append({"result": plain(response.get("response"))})
            else:
                words = part.get("text")
                parts.append(words if isinstance(words, str) else f"[{', '.join(part)}]")
        return {"role": plain(content.get("role")), "content": parts}

    def ending_with(self, messages: list[Any], text: str) -> list[Any]:
        return _alike(super().ending_with(messages, text), messages)

    def shrunk(self, messages: Sequence[Any], shrink: Shrink | None) -> Any:
        return _alike(super().shrunk(messages, shrink), messages)

    def repair(self, messages: Any, *args: Any, **more: Any) -> Repaired:
        return super().repair([mapping(as_data(one)) for one in messages], *args, **more)

    def answer(self, response: Any) -> Answer:
        """Read a response of the API, or one candidate of it."""
        found = mapping(response)
        one = _first(found) if found.get("candidates") else found
        said = self.read({**mapping(one.get("content")), "role": "model"})
        blocked = mapping(_either(found, "promptFeedback", "prompt_feedback"))
        ended = (
            _either(one, "finishReason", "finish_reason")
            or _either(blocked, "blockReason", "block_reason")
            or _either(one, "errorCode", "error_code")
        )
        reason = text_or_none(ended.lower() if isinstance(ended, str) else ended)
        return Answer(said.text, said.calls, _usage(found), reason)

    def whole(self, pieces: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        parts: list[Any] = []
        ended: dict[str, Any] = {}
        for piece in map(mapping, pieces):
            found |= piece
            one = _first(piece)
            parts += listed(mapping(one.get("content")).get("parts"))
            ended |= {key: value for key, value in one.items() if key != "content"}
        content = {"role": "model", "parts": parts}
        return {**found, "candidates": [{**ended, "content": content}]}

    def is_whole(self, pieces: list[Any]) -> bool:
        return any(self.answer(piece).ended is not None for piece in pieces)

    def turn(self, response: Any) -> list[Any]:
        return [listed(mapping(response).get("candidates"))[0]["content"]]

    def declared(self, name: str, description: str | None, schema: Any) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name}
        if description:
            made["description"] = description
        if schema is not None:
            made["parametersJsonSchema"] = schema
        return {"functionDeclarations": [made]}


def _first(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first of several answers; a piece of a stream may hold only a later one."""
    candidates = map(mapping, listed(response.get("candidates")))
    return next((one for one in candidates if not one.get("index")), {})


def _held(part: Mapping[str, Any], names: tuple[str, str]) -> Mapping[str, Any] | None:
    found = next((part[name] for name in names if part.get(name)), None)
    return found if isinstance(found, dict) else None


def _is_response(part: Any) -> bool:
    return _held(mapping(part), _RESPONSES) is not None


def _either(found: Mapping[str, Any], name: str, other: str) -> Any:
    """Return the value under a snake_case name or its camelCase form."""
    value = found.get(name)
    return found.get(other) if value is None else value


def _usage(response: Mapping[str, Any]) -> Usage | None:
    usage = mapping(_either(response, "usageMetadata", "usage_metadata"))
    made = _either(usage, "candidatesTokenCount", "candidates_token_count")
    thought = _either(usage, "thoughtsTokenCount", "thoughts_token_count")
    counted = [count for count in (made, thought) if isinstance(count, int)]
    known = {
        "input_tokens": _either(usage, "promptTokenCount", "prompt_token_count"),
        "output_tokens": sum(counted) if counted else None,
    }
    return usage_of(known, _either(response, "modelVersion", "model_version"))


def _alike(made: list[Any], given: Sequence[Any]) -> list[Any]:
    """Return new contents as the client's objects if the given contents are, else as JSON."""
    bases = (base for content in given for base in reversed(type(content).__mro__))
    kind: Any = next((base for base in bases if "parts" in getattr(base, "model_fields", ())), None)
    if kind is None:
        return made
    return [kind.model_validate(one) if isinstance(one, dict) else one for one in made]


GEMINI = GeminiWire()
