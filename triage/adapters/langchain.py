"""LangChain: any runnable. Its model calls and tool calls are recorded wherever in it they are made.

    agent = triage.wrap(prompt | model | parser, policy)
    await agent.run({"topic": "bees"}, config={"tags": ["x"]})

LangChain has hooks that listen and none, for an agent that is built already, that stand around a call.
So the methods through which every call of a chat model and of a tool goes are replaced, once in a
process, by ones that look whether a wrapped agent is running. Where none is they call straight on.

Graphs, and so the agents of `langchain.agents.create_agent`, have an adapter of their own that knows
their checkpoints: triage.adapters.langgraph.
"""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from base64 import b64decode, b64encode
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from hashlib import sha256
from operator import is_
from threading import Lock
from typing import Any, NamedTuple, cast

from .extras import missing

try:
    import langchain_core  # noqa: F401 # pyright: ignore[reportUnusedImport] - the first of its imports
except ImportError as error:
    raise missing("langgraph", error) from error

from langchain_core.language_models.base import BaseLanguageModel
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ValidationError

from triage.core import Cause, FailureType, hint, not_attempted, plain
from triage.core.messages.base import (
    Answer,
    Asked,
    Message,
    Outcome,
    Result,
    Role,
    Shrink,
    Tell,
    Wire,
    as_text,
    content_text,
    listed,
    mapping,
    max_tokens_of,
    rewritten,
    says,
    tell_nobody,
    usage_of,
)
from triage.strategies import RetryLayer

from .base import (
    Adapter,
    ModelOptions,
    NoSuchModel,
    Scopes,
    Seam,
    SoftFailure,
    is_tool,
    replace_method,
)
from .calls import Form, Stream, UnfinishedStream, canonical
from .conversations import repaired

__all__ = [
    "LangChainAdapter",
    "hinted_langchain",
    "read_langchain",
    "repair_langchain",
    "said_langchain",
    "shrunk_langchain",
]


_ROLES: Mapping[str, Role] = {"system": "system", "ai": "model", "tool": "tool"}


class LangChainWire(Wire):
    """LangChain's messages: each result is a message of its own, behind the one that asked for it."""

    def read(self, message: BaseMessage, tell: Tell = tell_nobody) -> Message:
        if isinstance(message, ToolMessage):
            failed = message.status == "error"
            result = Result(message.tool_call_id, message.content, message.name or "", failed)
            return Message("tool", results=(result,))
        if not isinstance(message, AIMessage):
            return Message(_ROLES.get(message.type, "user"), _words(message.content))
        calls = (*message.tool_calls, *message.invalid_tool_calls)
        return Message("model", _words(message.content), tuple(map(_asked, calls)))

    def user(self, text: str) -> Any:
        return HumanMessage(text)

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        status = "error" if failed else "success"
        name = asked.name or None
        return ToolMessage(text, tool_call_id=asked.id, name=name, status=status)

    def closing(self, asked: Asked, outcome: Outcome, lost: str, message: Any) -> Any:
        if outcome.how == "done":
            found = result_form(asked.name, asked.id).load(outcome.value)
            if isinstance(found, ToolMessage):
                return found
        return super().closing(asked, outcome, lost, message)

    def masked(self, message: BaseMessage, outputs: Mapping[int, str]) -> Any:
        return message.model_copy(update={"content": outputs[0]})

    def rewritten(self, message: BaseMessage, change: Callable[[str], str]) -> Any:
        return message.model_copy(update={"content": rewritten(message.content, change)})

    def shown(self, message: BaseMessage) -> Any:
        return {"role": message.type, "content": message.content}

    def says(self, messages: Any, text: str) -> bool:
        return any(says(message.content, text) for message in messages)


LANGCHAIN = LangChainWire()


def hinted_langchain(messages: Sequence[BaseMessage], hint: str | None) -> list[BaseMessage]:
    """The messages with the hint as the user's last one, unless they contain it already."""
    return list(LANGCHAIN.hinted(messages, hint))


def shrunk_langchain(
    messages: Sequence[BaseMessage], shrink: Shrink | None
) -> Sequence[BaseMessage]:
    """The messages without old tool outputs, as `shrink` says; None: unchanged."""
    found: Sequence[BaseMessage] = LANGCHAIN.shrunk(messages, shrink)
    return found


def repair_langchain(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """The messages with a result behind each call; the given ones where nothing is missing."""
    found = repaired(LANGCHAIN, messages).messages
    is_same = len(found) == len(messages) and all(map(is_, found, messages))
    return messages if is_same else found


def said_langchain(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The messages after the model's last turn."""
    return LANGCHAIN.new_in(messages)


# Answers of models ----------------------------------------------------------------------------------

_FIELDS = (
    "content", "id", "name", "tool_calls", "invalid_tool_calls", "usage_metadata",
    "additional_kwargs", "response_metadata",
)  # fmt: skip


def _dump_answer(result: ChatResult) -> Any:
    """What a model gave, in fields that have a JSON form.

    What LangChain keeps beside the messages is in them, too, or counts tokens, which are not used again.
    """
    return [_dumped(generation.message) for generation in result.generations]


def _dumped(message: BaseMessage) -> dict[str, Any]:
    return {name: value for name in _FIELDS if (value := getattr(message, name, None))}


def _load_answer(data: Any) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message_of(kept)) for kept in data])


def message_of(kept: Mapping[str, Any]) -> AIMessage:
    return AIMessage(**{"content": "", **kept})


def _read_answer(data: Any) -> Answer:
    """What an answer says; the first one of several."""
    kept = mapping(data[0]) if data else {}
    about = mapping(kept.get("response_metadata"))
    calls = (*(kept.get("tool_calls") or ()), *(kept.get("invalid_tool_calls") or ()))
    parts = map(mapping, listed(kept.get("content")))
    refusals = (part.get("refusal") for part in (mapping(kept.get("additional_kwargs")), *parts))
    refused = next(filter(None, refusals), None)
    name = about.get("model_name") or about.get("model")
    details = mapping(about.get("incomplete_details"))
    reasons = (
        *map(about.get, ("finish_reason", "stop_reason", "done_reason")),
        details.get("reason"),
    )
    ended = next(filter(None, reasons), None)
    return Answer(
        refused or _words(kept.get("content", "")),
        tuple(map(_asked, calls)),
        usage_of(kept.get("usage_metadata"), name),
        "refusal" if refused else ended.lower() if isinstance(ended, str) else None,
    )


def _asked(call: Mapping[str, Any]) -> Asked:
    return Asked(call.get("id") or "", call.get("name") or "", call.get("args"))


def read_langchain(message: BaseMessage) -> Answer:
    """What a message of a model says, asks for and used, and why it ended."""
    return _read_answer([_dumped(message)])


def _words(content: Any) -> str:
    """The text of a message's content, which with some providers holds calls, too."""
    if isinstance(content, list):
        content = [part for part in content if isinstance(part, str) or part.get("type") == "text"]
    return content_text(content)


ANSWER = Form(_dump_answer, _load_answer, _read_answer)

_SAY_WHY = ("openai", "anthropic")
"""Providers that give a reason for the end of every answer."""
_ENDED = ("finish_reason", "stop_reason", "status")


def finished(result: ChatResult) -> ChatResult:
    """The answer. Raises UnfinishedStream if it stopped in the middle."""
    for generation in result.generations:
        about = generation.message.response_metadata
        if about.get("model_provider") in _SAY_WHY and not any(map(about.get, _ENDED)):
            raise UnfinishedStream
    return result


# Results of tools -----------------------------------------------------------------------------------

_MESSAGE = "tool_message"
_OWN = "graph_value"


def result_form(name: str, call: str) -> Form:
    """How the result of a tool call is stored. call: the model's id of it."""

    def load(data: Any) -> Any:
        if _OWN in mapping(data):
            return _serializer().loads_typed(("msgpack", b64decode(data[_OWN])))
        kept = mapping(data).get(_MESSAGE)
        if isinstance(kept, dict):
            return ToolMessage(tool_call_id=call, name=name, **kept)
        return ToolMessage(as_text(data), tool_call_id=call, name=name)

    return Form(_dump_result, load)


def _dump_result(result: Any) -> Any:
    if _is_for_graphs(result):
        kind, data = _serializer().dumps_typed(result)
        if kind == "msgpack":
            return {_OWN: b64encode(data).decode(), "shown": plain(result)}
    if not isinstance(result, ToolMessage):
        return result
    if isinstance(result.content, str) and result.artifact is None and result.status == "success":
        return result.content
    kept = {"content": result.content, "status": result.status, "artifact": result.artifact}
    return {_MESSAGE: {name: value for name, value in kept.items() if value is not None}}


def _is_for_graphs(result: Any) -> bool:
    """Whether a tool returned commands for its graph, with or without messages."""
    if isinstance(result, list):
        return any(map(_is_for_graphs, result))
    return isinstance(result, ToolOutputMixin) and not isinstance(result, ToolMessage)


def _serializer() -> Any:
    """LangGraph's serializer, which only the tools of a graph need."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    return JsonPlusSerializer()


# Requests -------------------------------------------------------------------------------------------

_CHOSEN = ("tool_choice", "response_format")
"""Options that decide an answer, beside the names of the tools and the stop words."""


def key_of_request(messages: Sequence[BaseMessage], options: Mapping[str, Any], stop: Any) -> str:
    """The digest of everything that decides an answer, without ids that are new each time."""
    tools = [_name_of(tool) for tool in options.get("tools") or ()]
    chosen = [*map(options.get, _CHOSEN), stop]
    text = "".join(map(_essence, messages)) + canonical([tools, chosen])
    return sha256(text.encode()).hexdigest()[:32]


def _essence(message: BaseMessage) -> str:
    """The parts of a message that decide an answer, as JSON with a comma."""
    found: list[Any] = [message.type, message.content]
    if isinstance(message, AIMessage):
        found += [[call["name"], call["args"]] for call in message.tool_calls]
    elif isinstance(message, ToolMessage):
        found.append(message.status)
    return f"{canonical(found)},"


def _name_of(tool: Any) -> Any:
    found = mapping(tool)
    return mapping(found.get("function")).get("name") or found.get("name")


_LIMITS = re.compile(
    r"Sorry, need more steps to process this request\.\Z"
    r"|Model call limits exceeded: "
    r"|(?:Tool|'[^']*' tool) call limit reached: "
)
"""What `create_react_agent` and LangChain's limiting middlewares return in place of an answer."""
_OUT_OF_STEPS = ("ModelCallLimitExceededError", "ToolCallLimitExceededError")
_GAVE_UP = re.compile(r"Model call failed after \d+ attempts? with (\w+)")
"""What `ModelRetryMiddleware` returns in place of an answer."""

_STRUCTURED = "structured_response"
"""The key of an agent's result that is None where a declared `response_format` was not given."""


class LangChainAdapter(Adapter):
    """Run any runnable of LangChain: `run(input, config=…, **options)` is its `ainvoke`."""

    name = "langchain"
    asyncio_only = True
    validates = True

    async def attempt(self, seam: Seam, task: Any, *, config: Any = None, **options: Any) -> Any:
        with entered(Scope(seam)):
            return await self.target.ainvoke(task, config, **options)

    def answer(self, result: Any) -> Any:
        """The structured response, else the words of the last message, else the result."""
        given = result.get(_STRUCTURED) if isinstance(result, Mapping) else None
        message = last_message(result)
        if given is not None or message is None:
            return result if given is None else given
        return _langchain_words(message)

    def said(self, result: Any) -> Any:
        """The result, with its last message's words in place of the conversation."""
        message = last_message(result)
        if message is None:
            return result
        words = _langchain_words(message)
        return {**result, "messages": words} if isinstance(result, Mapping) else words

    def soft_failure(self, result: Any) -> BaseException | None:
        """The failure in the last message: of a tool, or of a middleware in place of an answer."""
        message = last_message(result)
        if isinstance(message, ToolMessage) and message.status == "error":
            return SoftFailure(f"it ended with a failed tool call: {_langchain_words(message)}")
        if not isinstance(message, AIMessage) or message.tool_calls:
            return None
        if message.invalid_tool_calls:
            name = message.invalid_tool_calls[0]["name"]
            text = f"it ended with a call of {name} whose arguments cannot be read"
            return SoftFailure(text, failure_type=FailureType.SCHEMA_MISMATCH)
        if isinstance(result, Mapping) and result.get(_STRUCTURED, self) is None:
            text = f"it ended in words, without the {_STRUCTURED} that the agent declares"
            return SoftFailure(text, failure_type=FailureType.SCHEMA_MISMATCH)
        text = _langchain_words(message)
        if _GAVE_UP.match(text):
            return SoftFailure(text)
        if _LIMITS.match(text):
            return SoftFailure(
                text, failure_type=FailureType.PLAN_INCOMPLETE, cause=Cause.STEP_BUDGET
            )
        return None

    def tools(self) -> Mapping[str, Any] | None:
        """The tools that the graph's nodes run, with their schemas."""
        return tools_in(self.target) or None

    def clients(self) -> Iterable[object]:
        """The models, and middleware that retries."""
        return clients_in(self.target)

    def layers(self) -> Iterable[RetryLayer]:
        """LangChain's and LangGraph's own retries around models and tools."""
        return layers_in(self.target)

    def explain(self, error: Exception) -> None:
        """Read a limit that was reached from the class of the middleware's error."""
        if type(error).__name__ in _OUT_OF_STEPS:
            hint(error, failure_type=FailureType.PLAN_INCOMPLETE, cause=Cause.STEP_BUDGET)


def last_message(result: Any) -> BaseMessage | None:
    """The message that a result is or ends with."""
    messages: Any = result
    if isinstance(result, Mapping):
        messages = result.get("messages")
    if isinstance(messages, list) and messages:
        messages = messages[-1]
    return messages if isinstance(messages, BaseMessage) else None


def _langchain_words(message: BaseMessage) -> str:
    return content_text(message.content)


# One attempt ----------------------------------------------------------------------------------------


class Scope:
    """One attempt of a wrapped agent.

    known: ids of the tool calls whose results the agent begins with. forced: the last request forced a
    tool call.
    """

    def __init__(self, seam: Seam, known: Iterable[str] = ()) -> None:
        self.seam = seam
        self.forced = False
        self._known = set(known)
        self._others: dict[tuple[int, str], Any] = {}
        self._lock = Lock()

    # Models -------------------------------------------------------------------------------------

    def asking(
        self, model: Any, messages: Sequence[BaseMessage], options: Mapping[str, Any], stop: Any
    ) -> PreparedCall:
        """Prepare a model call with repaired messages, after noting the calls that never ran."""
        self._note_refused(messages)
        given = repair_langchain(messages)
        name = getattr(model, "model_name", None) or getattr(model, "model", None)
        self.forced = options.get("tool_choice") not in (None, False, "auto", "none")
        said: ModelOptions = {
            "form": ANSWER,
            "request": [type(model).__name__, name, key_of_request(given, options, stop)],
            "said": said_langchain(given),
            "model": name if isinstance(name, str) else "",
            "who": place(),
            "max_tokens": max_tokens_of(options) or max_tokens_of(vars(model)),
            "tools": options.get("tools") or (),
        }
        return PreparedCall(given, said)

    def sent(
        self, model: Any, asking: PreparedCall, hint: str | None
    ) -> tuple[Any, Sequence[BaseMessage]]:
        """The model to ask, and the messages to send. Raises NoSuchModel."""
        messages = shrunk_langchain(asking.messages, self.seam.shrink)
        return self._asked(model), hinted_langchain(messages, hint)

    def _asked(self, model: Any) -> Any:
        """The model, or the one to ask instead, which is made once as it may have a client."""
        name = self.seam.other_model
        if name is None:
            return model
        with self._lock:
            other = self._others.get((id(model), name))
            if other is None:
                other = self._others[id(model), name] = _named(model, name)
        return other

    def _note_refused(self, messages: Sequence[BaseMessage]) -> None:
        """Note calls that the agent itself answered with an error: unknown tools, forbidden calls."""
        at = len(messages) - 1
        while at >= 0 and not isinstance(messages[at], AIMessage):
            at -= 1
        turn = messages[at] if at >= 0 else None
        if not isinstance(turn, AIMessage):
            return
        asked = {call["id"]: call for call in (*turn.tool_calls, *turn.invalid_tool_calls)}
        for result in messages[at + 1 :]:
            if not isinstance(result, ToolMessage) or result.status != "error":
                continue
            id_ = result.tool_call_id
            call = None if id_ in self._known else asked.get(id_)
            if call is not None:
                self._known.add(id_)
                told = content_text(result.content)
                self.seam.refused(call["name"] or "?", call["args"], told, id=id_)

    # Tools --------------------------------------------------------------------------------------

    def using(self, tool: BaseTool, given: Any, call: str | None) -> dict[str, Any]:
        """The options of `Seam.tool` for a tool call."""
        if call is not None:
            self._known.add(call)
        return {
            "name": tool.name,
            "arguments": _shown(tool, given),
            "id": call or place() or None,
            "effect": self.seam.adapter.hinted(tool.name, tool.metadata),
            "form": None if call is None else result_form(tool.name, call),
            "function": getattr(tool, "coroutine", None) or getattr(tool, "func", None),
        }

    def judge(self, error: Exception, words: dict[str, Any]) -> None:
        """Mark an error as not attempted where the tool's body did not run."""
        if _is_signal(error):
            not_attempted(error)
        elif _is_misfit(error):
            not_attempted(error)
            if is_tool(words["function"]):  # it was not reached, and has recorded nothing
                kind = type(error).__name__
                self.seam.refused(words["name"], words["arguments"], str(error), kind=kind)


class PreparedCall(NamedTuple):
    """A model call to be made. messages: what is sent. options: for the seam."""

    messages: Sequence[BaseMessage]
    options: ModelOptions


_SCOPES = Scopes[Scope]("langchain", lambda scope: scope.seam.run)


@contextmanager
def entered(scope: Scope) -> Generator[None]:
    """Make the calls of this code, its tasks and its threads pass through a seam."""
    for kind, name, made in _REPLACED:
        replace_method(kind, name, made)
    with _SCOPES.entered(scope):
        yield


def place() -> str:
    """Where in a graph this code runs, equal in each attempt: nodes, outermost first, and the step.

    `model#3`, or `research/model#1` inside a subgraph; empty outside a graph.
    """
    config = var_child_runnable_config.get()
    about = None if config is None else config.get("metadata")
    names = about.get("langgraph_checkpoint_ns") if about else None
    if not about or not isinstance(names, str):
        return ""
    nodes = "/".join([part.partition(":")[0] for part in names.split("|")])
    sent = [f".{part}" for part in about.get("langgraph_path") or () if type(part) is int]
    several = "".join(sent)
    return f"{nodes}#{about.get('langgraph_step')}{several}"


_NAMES = ("model_name", "model", "model_id")
"""Fields of chat models that hold the model's name."""
_DEPLOYMENTS = ("deployment_name", "azure_deployment", "endpoint_name")
"""Fields of chat models whose deployment decides which model answers."""


def _named(model: Any, name: str) -> Any:
    """A copy of the chat model with another name, and the same settings, clients and key."""
    kind = type(model).__name__
    fields = type(model).model_fields
    if any(getattr(model, field, None) for field in _DEPLOYMENTS):
        raise NoSuchModel(name, f"which model {kind} asks is said by its deployment; {_REMEDY}")
    field = next((one for one in _NAMES if one in fields), None)
    if field is None:
        raise NoSuchModel(name, f"{kind} has no field for a model's name; {_REMEDY}")
    return model.model_copy(update={field: name})


_REMEDY = (
    "use a chat model that has `model`, or a middleware of your own such as ModelFallbackMiddleware"
)


def _shown(tool: BaseTool, given: Any) -> Any:
    """The arguments as the model gave them, without those that the agent injects."""
    if not isinstance(given, dict):
        return given
    return dict(tool._filter_injected_args(given))  # as LangChain's own callbacks are told


_SIGNAL = "langgraph.errors.GraphBubbleUp"
_FITTING = BaseTool._to_args_and_kwargs.__code__  # where arguments are looked at, not the body


def _is_signal(error: Exception) -> bool:
    """Whether it is a graph's control flow: an interrupt, or a command to its parent."""
    return any(f"{k.__module__}.{k.__name__}" == _SIGNAL for k in type(error).__mro__)


def _is_misfit(error: Exception) -> bool:
    """Whether the error is about arguments that do not fit the tool."""
    if not isinstance(error, ValidationError):
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _FITTING for frame, _ in frames)


# What LangChain calls -------------------------------------------------------------------------------


def _agenerate(original: Any) -> Any:
    async def _agenerate_with_cache(
        self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Any:
        scope = _SCOPES.active()
        if scope is None:
            return await original(self, messages, stop=stop, run_manager=run_manager, **options)
        asking = scope.asking(self, messages, options, stop)

        async def ask(hint: str | None) -> Any:
            model, given = scope.sent(self, asking, hint)
            return finished(
                await original(model, given, stop=stop, run_manager=run_manager, **options)
            )

        with _SCOPES.entered(None):
            return await scope.seam.model(ask, **asking.options)

    return _agenerate_with_cache


def _generate(original: Any) -> Any:
    def _generate_with_cache(
        self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Any:
        scope = _SCOPES.active()
        if scope is None:
            return original(self, messages, stop=stop, run_manager=run_manager, **options)
        asking = scope.asking(self, messages, options, stop)

        def ask(hint: str | None) -> Any:
            model, given = scope.sent(self, asking, hint)
            return finished(original(model, given, stop=stop, run_manager=run_manager, **options))

        with _SCOPES.entered(None):
            return scope.seam.model_sync(ask, **asking.options)

    return _generate_with_cache


def _astream(original: Any) -> Any:
    async def astream(
        self: Any, input: Any, config: Any = None, *, stop: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        stream = _stream_of(self, input, options, stop, is_async=True)
        if stream is None:
            async for piece in original(self, input, config, stop=stop, **options):
                yield piece
            return
        for piece in stream.known():
            yield piece
        with stream.passing() as keep:
            if keep is not None:
                model, given = stream.sent()
                async for piece in original(model, given, config, stop=stop, **options):
                    keep(piece)
                    yield piece
        await stream.durable()

    return astream


def _stream(original: Any) -> Any:
    def stream(
        self: Any, input: Any, config: Any = None, *, stop: Any = None, **options: Any
    ) -> Iterator[Any]:
        found = _stream_of(self, input, options, stop, is_async=False)
        if found is None:
            yield from original(self, input, config, stop=stop, **options)
            return
        yield from found.known()
        with found.passing() as keep:
            if keep is not None:
                model, given = found.sent()
                for piece in original(model, given, config, stop=stop, **options):
                    keep(piece)
                    yield piece

    return stream


def _arun(original: Any) -> Any:
    async def arun(self: Any, tool_input: Any, *args: Any, **options: Any) -> Any:
        scope = _SCOPES.active()
        if scope is None:
            return await original(self, tool_input, *args, **options)
        words = scope.using(self, tool_input, options.get("tool_call_id"))

        async def do() -> Any:
            try:
                return await original(self, tool_input, *args, **options)
            except Exception as error:
                scope.judge(error, words)
                raise

        return await scope.seam.tool(do=do, **words)

    return arun


def _run(original: Any) -> Any:
    def run(self: Any, tool_input: Any, *args: Any, **options: Any) -> Any:
        scope = _SCOPES.active()
        if scope is None:
            return original(self, tool_input, *args, **options)
        words = scope.using(self, tool_input, options.get("tool_call_id"))

        def do() -> Any:
            try:
                return original(self, tool_input, *args, **options)
            except Exception as error:
                scope.judge(error, words)
                raise

        return scope.seam.tool_sync(do=do, **words)

    return run


_REPLACED: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (BaseChatModel, "_agenerate_with_cache", _agenerate),
    (BaseChatModel, "_generate_with_cache", _generate),
    (BaseChatModel, "astream", _astream),
    (BaseChatModel, "stream", _stream),
    (BaseTool, "arun", _arun),
    (BaseTool, "run", _run),
)


# Streams --------------------------------------------------------------------------------------------


def _stream_of(
    model: Any, given: Any, options: dict[str, Any], stop: Any, *, is_async: bool
) -> _Stream | None:
    """The recorded stream of a call; None outside a run, and for a model without streams."""
    scope = _SCOPES.active()
    wanted = {**options, "stop": stop, "stream": True}
    # As the method itself decides and converts.
    if scope is None or not model._should_stream(async_api=is_async, **wanted):
        return None
    messages = model._convert_input(given).to_messages()
    return _Stream(scope, model, scope.asking(model, messages, options, stop))


class _Stream:
    """A model call whose answer is streamed."""

    def __init__(self, scope: Scope, model: Any, asking: PreparedCall) -> None:
        self._scope = scope
        self._model = model
        self._asking = asking
        self._stream: Stream = scope.seam.stream(**asking.options)

    def sent(self) -> tuple[Any, Sequence[BaseMessage]]:
        """The model that is asked, and what it is sent."""
        return self._scope.sent(self._model, self._asking, self._scope.seam.hint)

    def known(self) -> Iterator[AIMessageChunk]:
        """A recorded answer, in one piece."""
        if self._stream.known is not None:
            fields = dict(self._stream.known.generations[0].message)
            fields.pop("type", None)
            yield AIMessageChunk(**fields, chunk_position="last")

    @contextmanager
    def passing(self) -> Generator[Callable[[Any], None] | None]:
        """Use around the pieces; gives a function that keeps each, None for a recorded answer."""
        if self._stream.known is not None:
            yield None
            return
        pieces: list[AIMessageChunk] = []
        recorded = False

        def record() -> None:
            nonlocal recorded
            whole = pieces[0] if pieces else AIMessageChunk(content="")
            for piece in pieces[1:]:
                whole = whole + piece
            answer = finished(ChatResult(generations=[ChatGeneration(message=whole)]))
            self._stream.done(answer)
            recorded = True

        def keep(piece: AIMessageChunk) -> None:
            pieces.append(piece)
            # Before it is passed on: whoever has the last piece may leave.
            if not recorded and getattr(piece, "chunk_position", None) == "last":
                record()

        with self._stream.passing():
            yield keep
            if not recorded:
                record()

    async def durable(self) -> None:
        """Wait until the answer is stored, where a store keeps the run."""
        await self._stream.durable()


# What a runnable or a graph is made of ---------------------------------------------------------------

MOST = 5_000
"""The most objects that are looked at."""
_THEIRS = ("langchain", "langgraph")
_PLAIN = (str, bytes, int, float, bool, type(None), type)


def parts_of(root: object) -> Iterator[Any]:
    """All objects reachable from one of LangChain's or LangGraph's."""
    waiting: list[Any] = [root]
    seen: set[int] = set()
    while waiting and len(seen) < MOST:
        value = waiting.pop(0)
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        waiting += _held_by(value)


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast("list[Any]", value))
    if isinstance(value, Mapping):
        return list(value.values())
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.isfunction(value):
        return _reached(value)
    if isinstance(value, BaseLanguageModel) or not _is_theirs(value):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _reached(function: Any) -> list[Any]:
    """The variables that a function closes over, and the globals that it names unless it is LangChain's."""
    try:
        found = inspect.getclosurevars(function)
    except ValueError:  # a variable that has no value yet
        return []
    own = function.__module__.startswith(_THEIRS)
    return [*found.nonlocals.values(), *(() if own else found.globals.values())]


def _is_theirs(value: object) -> bool:
    packages = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    return any(name.startswith(_THEIRS) for name in packages)


def clients_in(root: object) -> list[object]:
    """The models, and middleware with a number of retries."""
    return [
        part
        for part in parts_of(root)
        if isinstance(part, BaseLanguageModel)
        or (_is_theirs(part) and type(getattr(part, "max_retries", None)) is int)
    ]


def layers_in(root: object) -> Iterator[RetryLayer]:
    """LangChain's and LangGraph's own retries around models and tools."""
    for part in parts_of(root):
        where = f"{type(part).__module__}.{type(part).__qualname__}"
        if isinstance(part, RunnableRetry):
            often = part.max_attempt_number - 1
            yield RetryLayer(where, often, "leave .with_retry() out")
        elif where == "langgraph.types.RetryPolicy":
            yield RetryLayer(where, part.max_attempts - 1, "leave the node's retry_policy out")


def tools_in(root: object) -> dict[str, Any]:
    """The tools that the graph's own nodes run, name to JSON Schema."""
    nodes = [
        part
        for part in parts_of(root)
        if _is_theirs(part) and isinstance(getattr(part, "tools_by_name", None), dict)
    ]
    found: dict[str, BaseTool] = {}
    for node in nodes:
        found |= node.tools_by_name
    return {name: _schema(tool) for name, tool in found.items()}


def _schema(tool: BaseTool) -> Any:
    try:
        return convert_to_openai_tool(tool)["function"].get("parameters")
    except Exception:
        return None
