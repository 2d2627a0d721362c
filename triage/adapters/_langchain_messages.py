"""LangChain's messages as the seam wants them: kept as JSON, repaired, hinted, told apart."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from json.encoder import encode_basestring_ascii as _quoted
from operator import is_
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.outputs import ChatGeneration, ChatResult

from triage._plain import plain
from triage.traces._values import as_text, content_text, mapping, text_or_none, usage_of

from ._forms import Answer, Asked, Form
from ._hints import says
from ._recording import UnfinishedStream, canonical
from ._repair import LOST, repair_chat

MOST_SAID = 20
"""Messages that a step shows."""
_FIELDS = (
    "content", "id", "name", "tool_calls", "invalid_tool_calls", "usage_metadata",
    "additional_kwargs", "response_metadata",
)  # fmt: skip
_CHOSEN = ("tool_choice", "response_format")
"""Options of a request that decide its answer, beside the names of the tools and where to stop."""
_MESSAGE = "tool_message"
_OWN = "graph_value"


# Answers of models ----------------------------------------------------------------------------------


def dump_answer(result: ChatResult) -> Any:
    """What a model gave, in fields that have a JSON form.

    What LangChain keeps beside the messages is in them, too, or counts tokens, which are not used again.
    """
    return [_dumped(generation.message) for generation in result.generations]


def _dumped(message: BaseMessage) -> dict[str, Any]:
    kept = message.__dict__  # each field by itself goes through a lookup of pydantic's
    return {name: value for name in _FIELDS if (value := kept.get(name))}


def load_answer(data: Any) -> ChatResult:
    """What a model gave, from its JSON."""
    return ChatResult(generations=[ChatGeneration(message=message_of(kept)) for kept in data])


def message_of(kept: Mapping[str, Any]) -> AIMessage:
    """The message of one generation."""
    return AIMessage(**{"content": "", **kept})


def read_answer(data: Any) -> Answer:
    """What an answer says; of several the first."""
    kept = mapping(data[0]) if data else {}
    about = mapping(kept.get("response_metadata"))
    calls = (*(kept.get("tool_calls") or ()), *(kept.get("invalid_tool_calls") or ()))
    refused = mapping(kept.get("additional_kwargs")).get("refusal")
    name = about.get("model_name") or about.get("model")
    ended = about.get("finish_reason") or about.get("stop_reason") or about.get("done_reason")
    return Answer(
        refused or _words(kept.get("content", "")),
        tuple(map(_asked, calls)),
        usage_of(kept.get("usage_metadata"), name),
        "refusal" if refused else text_or_none(ended),
    )


def _asked(call: Mapping[str, Any]) -> Asked:
    return Asked(call.get("id") or "", call.get("name") or "", call.get("args"))


def _words(content: Any) -> str:
    """The words of a content: calls stand there, too, with some providers."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        content = [part for part in content if isinstance(part, str) or part.get("type") == "text"]
    return content_text(content)


ANSWER = Form(dump_answer, load_answer, read_answer)

_SAY_WHY = ("openai", "anthropic")
"""Providers that say of each answer why it ended."""
_ENDED = ("finish_reason", "stop_reason", "status")


def finished(result: ChatResult) -> ChatResult:
    """An answer that came to its end. UnfinishedStream for pieces of one that did not."""
    for generation in result.generations:
        about = generation.message.response_metadata
        if about.get("model_provider") in _SAY_WHY and not any(map(about.get, _ENDED)):
            raise UnfinishedStream
    return result


# Results of tools -----------------------------------------------------------------------------------


def result_form(name: str, call: str) -> Form:
    """How what a tool gave for a model's call is kept. call: the model's id of it."""

    def load(data: Any) -> Any:
        if _OWN in mapping(data):
            return _serializer().loads_typed(("msgpack", b64decode(data[_OWN])))
        kept = mapping(data).get(_MESSAGE)
        if isinstance(kept, dict):
            return ToolMessage(tool_call_id=call, name=name, **kept)
        return ToolMessage(as_text(data), tool_call_id=call, name=name)

    return Form(_dumped_result, load)


def _dumped_result(result: Any) -> Any:
    if not isinstance(result, ToolMessage):
        return _dumped_for_graphs(result) if _is_for_graphs(result) else result
    if isinstance(result.content, str) and result.artifact is None and result.status == "success":
        return result.content
    kept = {"content": result.content, "status": result.status, "artifact": result.artifact}
    return {_MESSAGE: {name: value for name, value in kept.items() if value is not None}}


def _dumped_for_graphs(result: Any) -> Any:
    kind, data = _serializer().dumps_typed(result)
    if kind != "msgpack":
        return result
    return {_OWN: b64encode(data).decode(), "shown": plain(result)}


def _is_for_graphs(result: Any) -> bool:
    """Whether a tool gave a graph something to do: commands, with or without messages beside them."""
    if isinstance(result, list):
        return any(map(_is_for_graphs, result))
    return isinstance(result, ToolOutputMixin) and not isinstance(result, ToolMessage)


def _serializer() -> Any:
    """LangGraph's own, as its checkpointers use it."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    return JsonPlusSerializer()


# Requests -------------------------------------------------------------------------------------------


def hinted(messages: Sequence[BaseMessage], hint: str | None) -> list[BaseMessage]:
    """The messages with the hint as the user's last one, unless it stands there already."""
    if not hint or any(says(message.content, hint) for message in messages):
        return list(messages)
    return [*messages, HumanMessage(hint)]


def repair(messages: Sequence[BaseMessage], text: str = LOST) -> Sequence[BaseMessage]:
    """The messages with a result behind each call; those given where nothing is amiss."""
    if is_valid(messages):
        return messages
    outline = [_outlined(at, message) for at, message in enumerate(messages)]
    return [
        messages[entry["at"]]
        if "at" in entry
        else ToolMessage(text, tool_call_id=entry["tool_call_id"], status="error")
        for entry in repair_chat(outline).messages
    ]


def _outlined(at: int, message: BaseMessage) -> dict[str, Any]:
    """Of a message what its place depends on, as a chat message."""
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": message.tool_call_id, "at": at}
    return {"role": "other", "tool_calls": [{"id": call} for call in asked_in(message)], "at": at}


def asked_in(message: BaseMessage) -> list[str]:
    """The ids of the calls that a message asks for, also of those that cannot be read."""
    if not isinstance(message, AIMessage):
        return []
    calls = [*message.tool_calls, *message.invalid_tool_calls]
    return [call["id"] for call in calls if call["id"]]


def is_valid(messages: Sequence[BaseMessage]) -> bool:
    """Whether each call has its result behind it, and each result its call before it."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
        elif waiting:
            return False
        elif isinstance(message, AIMessage):
            waiting = asked_in(message)
    return not waiting


class Conversation:
    """The requests of one place in an agent, each of which mostly is the one before with more at its end.

    Only what is new in a request is looked at: graphs hand on the same objects with each.
    """

    __slots__ = ("_digest", "_known", "_sent")

    def __init__(self) -> None:
        # What the last request was given, and that with a result behind each call: mostly the same list.
        self._known: Sequence[BaseMessage] = ()
        self._sent: Sequence[BaseMessage] = self._known
        self._digest = sha256()

    def request(
        self, messages: Sequence[BaseMessage], options: Mapping[str, Any], stop: Any
    ) -> tuple[Sequence[BaseMessage], str]:
        """The messages with a result behind each call, and the digest of the request.

        The digest is of what decides an answer, without ids that are new each time.
        """
        given = list(messages)
        sent = self._take(given)
        tools = ",".join([_text(_name_of(tool)) for tool in options.get("tools") or ()])
        chosen = ",".join([_text(options.get(name)) for name in _CHOSEN])
        whole = self._digest.copy()
        whole.update(f"[[{tools}],[{chosen},{_text(stop)}]]".encode())
        return messages if sent is given else sent, whole.hexdigest()[:32]

    def _take(self, messages: list[BaseMessage]) -> Sequence[BaseMessage]:
        """Go on from what was known with these messages; those with a result behind each call."""
        same = len(self._known)
        new: Sequence[BaseMessage] = messages[same:]
        sent: Sequence[BaseMessage] = messages
        goes_on = same <= len(messages) and all(map(is_, self._known, messages))
        if goes_on and is_valid(new):
            if self._sent is not self._known:
                sent = [*self._sent, *new]
        else:
            sent = new = repair(messages)
            self._digest = sha256()
        self._known, self._sent = messages, sent
        if new:
            # However many come at once, the text of all of them is the same.
            self._digest.update("".join(map(_essence, new)).encode())
        return sent


def _essence(message: BaseMessage) -> str:
    """What of a message decides an answer, as JSON with a comma behind it."""
    found = f"[{_text(message.type)},{_text(message.content)}"
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            found += f",[{_text(call['name'])},{canonical(call['args'])}]"
    elif isinstance(message, ToolMessage):
        found += f",{_text(message.status)}"
    return f"{found}],"


def _text(value: Any) -> str:
    """As `canonical`. Most are texts, or nothing, and to make an encoder for each is felt."""
    if type(value) is str:
        return _quoted(value)
    return "null" if value is None else canonical(value)


def _name_of(tool: Any) -> Any:
    found = mapping(tool)
    return mapping(found.get("function")).get("name") or found.get("name")


def said_in(new: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The messages after the model's last turn, for the step."""
    return [{"role": message.type, "content": message.content} for message in new[:MOST_SAID]]


def last_turn(messages: Sequence[BaseMessage]) -> int:
    """Where the model's last turn stands, behind which all is new; -1 where there is none."""
    at = len(messages) - 1
    while at >= 0 and not isinstance(messages[at], AIMessage):
        at -= 1
    return at
