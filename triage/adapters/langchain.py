"""LangChain: any runnable. Its model calls and tool calls are recorded wherever in it they are made.

    agent = triage.wrap(prompt | model | parser, policy)
    await agent.run({"topic": "bees"}, config={"tags": ["x"]})

LangChain has hooks that listen and none, for an agent that is built already, that stand around a call.
So the methods through which every call of a chat model and of a tool goes are replaced, once in a
process, by ones that look whether a wrapped agent is running. Where none is they call straight on.
"""

from __future__ import annotations

import inspect
import re
import traceback
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import takewhile
from typing import Any

from .extras import missing

try:
    import langchain_core  # noqa: F401 # pyright: ignore[reportUnusedImport] - the first of its imports
except ImportError as error:
    raise missing("langgraph", error) from error

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import AIMessageChunk, add_ai_message_chunks
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from triage.core.capture import hint, not_attempted
from triage.core.json_values import plain
from triage.core.messages import neutral, reading, wires
from triage.core.messages.reading import listed, mapping
from triage.core.taxonomy import Cause, FailureType
from triage.engine.drivers import SYNC, step
from triage.strategies.layers import RetryLayer

from . import base
from .base import Seam
from .calls import Form, canonical
from .replacing import Scopes, replace_method
from .runnables import clients_in, layers_in, tools_in
from .unheard import Unheard

__all__ = ["LangChainAdapter"]


# Models that do not ask over HTTP -------------------------------------------------------------------

_FIELDS = (
    "content", "id", "name", "tool_calls", "invalid_tool_calls", "usage_metadata",
    "additional_kwargs", "response_metadata",
)  # fmt: skip


def _dump_answer(result: ChatResult) -> Any:
    """The messages of an answer, in fields that have a JSON form."""
    messages = [generation.message for generation in result.generations]
    kept = [{name: getattr(one, name, None) for name in _FIELDS} for one in messages]
    return [{name: value for name, value in one.items() if value} for one in kept]


def _load_answer(data: Any) -> ChatResult:
    messages = [AIMessage(**{"content": "", **kept}) for kept in data]
    return ChatResult(generations=[ChatGeneration(message=one) for one in messages])


def _read_answer(data: Any) -> neutral.Answer:
    """What an answer says; the first one of several."""
    kept = mapping(data[0]) if data else {}
    about = mapping(kept.get("response_metadata"))
    calls = (*listed(kept.get("tool_calls")), *listed(kept.get("invalid_tool_calls")))
    reasons = map(about.get, ("finish_reason", "stop_reason", "done_reason"))
    ended = next(filter(None, reasons), None)
    return neutral.Answer(
        reading.content_text(kept.get("content", "")),
        tuple(neutral.Asked(one["id"] or "", one["name"] or "", one["args"]) for one in calls),
        reading.usage_of(kept.get("usage_metadata"), about.get("model_name")),
        ended.lower() if isinstance(ended, str) else None,
    )


ANSWER = Form(_dump_answer, _load_answer, _read_answer)


def _essence(message: BaseMessage) -> str:
    """The parts of a message that decide an answer, without ids that are new each time."""
    found: list[Any] = [message.type, message.content]
    if isinstance(message, AIMessage):
        found += [[call["name"], call["args"]] for call in message.tool_calls]
    return f"{canonical([*found, message.status] if isinstance(message, ToolMessage) else found)},"


def _described(
    model: Any, messages: Sequence[BaseMessage], options: Mapping[str, Any]
) -> base.ModelOptions:
    """A model call as the journal has it."""
    declared = [mapping(tool) for tool in options.get("tools") or ()]
    tools = [mapping(one.get("function", one)).get("name") for one in declared]
    chosen = list(map(options.get, ("tool_choice", "response_format", "stop")))
    text = "".join(map(_essence, messages)) + canonical([tools, chosen])
    key, name = sha256(text.encode()).hexdigest()[:32], model_name(model)
    said = [{"role": one.type, "content": one.content} for one in _new_in(messages)]
    return {
        "form": ANSWER,
        "request": [type(model).__name__, name or None, key],
        "said": said[: wires.MOST_SHOWN],
        "model": name,
        "max_tokens": reading.max_tokens_of(options) or reading.max_tokens_of(vars(model)),
        "tools": options.get("tools") or (),
    }


def _new_in(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages behind the model's last turn."""
    return list(takewhile(lambda one: not isinstance(one, AIMessage), reversed(messages)))[::-1]


def _hinted(messages: Sequence[BaseMessage], hint: str | None) -> list[BaseMessage]:
    """The messages with the hint as the user's last one, unless they contain it already."""
    is_said = not hint or any(reading.says(message.content, hint) for message in messages)
    return [*messages] if is_said or not hint else [*messages, HumanMessage(hint)]


# Results of tools -----------------------------------------------------------------------------------

_MESSAGE = "tool_message"
_OWN = "graph_value"


def result_form(name: str, call: str) -> Form:
    """How the result of a tool call is stored. call: the model's id of it."""

    def load(data: Any) -> Any:
        if _OWN in mapping(data):
            return _serializer().loads_typed(("msgpack", b64decode(data[_OWN])))
        kept = mapping(data).get(_MESSAGE, {"content": reading.as_text(data)})
        return ToolMessage(tool_call_id=call, name=name, **kept)

    def shown(data: Any) -> Any:
        kept = mapping(data)
        return kept.get("shown", mapping(kept.get(_MESSAGE)).get("content", data))

    return Form(_dump_result, load, shown=shown)


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
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # for tools of a graph alone

    return JsonPlusSerializer()


_LIMITS = re.compile(
    r"Sorry, need more steps to process this request\.\Z|Model call limits exceeded: "
    r"|(?:Tool|'[^']*' tool) call limit reached: "
)
"""What `create_react_agent` and LangChain's limiting middlewares return in place of an answer."""
_OUT_OF_STEPS = ("ModelCallLimitExceededError", "ToolCallLimitExceededError")
_GAVE_UP = re.compile(r"Model call failed after \d+ attempts? with (\w+)")
"""What `ModelRetryMiddleware` returns in place of an answer."""

_STRUCTURED = "structured_response"
"""The key of an agent's result that is None where a declared `response_format` was not given."""


class LangChainAdapter(base.Adapter):
    """Run any runnable of LangChain: `run(input, config=…, **options)` is its `ainvoke`.

    Models that do not ask over HTTP get no shorter or repaired requests, and no other one is asked instead.
    """

    name = "langchain"
    asyncio_only = True
    validates = True
    on_wire = True
    switches = False

    async def attempt(self, seam: Seam, task: Any, *, config: Any = None, **options: Any) -> Any:
        with entered(Scope(seam)):
            return await self.target.ainvoke(task, config, **options)

    def answer(self, result: Any) -> Any:
        """The structured response, else the words of the last message, else the result."""
        given = result.get(_STRUCTURED) if isinstance(result, Mapping) else None
        message = last_message(result)
        said = result if message is None else _words(message)
        return said if given is None else given

    def said(self, result: Any) -> Any:
        """The result, with its last message's words in place of the conversation."""
        message = last_message(result)
        if message is None:
            return result
        words = _words(message)
        return {**result, "messages": words} if isinstance(result, Mapping) else words

    def soft_failure(self, result: Any) -> BaseException | None:
        """The failure in the last message: of a tool, or of a middleware in place of an answer."""
        message = last_message(result)
        if isinstance(message, ToolMessage) and message.status == "error":
            return base.SoftFailure(f"it ended with a failed tool call: {_words(message)}")
        if not isinstance(message, AIMessage) or message.tool_calls:
            return None
        if message.invalid_tool_calls:
            name = message.invalid_tool_calls[0]["name"]
            text = f"it ended with a call of {name} whose arguments cannot be read"
            return base.SoftFailure(text, failure_type=FailureType.SCHEMA_MISMATCH)
        if isinstance(result, Mapping) and result.get(_STRUCTURED, self) is None:
            text = f"it ended in words, without the {_STRUCTURED} that the agent declares"
            return base.SoftFailure(text, failure_type=FailureType.SCHEMA_MISMATCH)
        text = _words(message)
        if _LIMITS.match(text):
            kind = FailureType.PLAN_INCOMPLETE
            return base.SoftFailure(text, failure_type=kind, cause=Cause.STEP_BUDGET)
        return base.SoftFailure(text) if _GAVE_UP.match(text) else None

    def tools(self) -> Mapping[str, Any] | None:
        return tools_in(self.target) or None

    def clients(self) -> Iterable[object]:
        return clients_in(self.target)

    def layers(self) -> Iterable[RetryLayer]:
        return layers_in(self.target)

    def explain(self, error: Exception) -> None:
        """Read a limit that was reached from the class of the middleware's error."""
        if type(error).__name__ in _OUT_OF_STEPS:
            hint(error, failure_type=FailureType.PLAN_INCOMPLETE, cause=Cause.STEP_BUDGET)


def last_message(result: Any) -> BaseMessage | None:
    """The message that a result is or ends with."""
    messages: Any = result.get("messages") if isinstance(result, Mapping) else result
    last: Any = messages[-1] if isinstance(messages, list) and messages else messages
    return last if isinstance(last, BaseMessage) else None


def _words(message: BaseMessage) -> str:
    return reading.content_text(message.content)


def model_name(model: Any) -> str:
    """The name of the model that a chat model asks; empty where it has none."""
    names = (getattr(model, field, None) for field in _NAMES)
    return next((name for name in names if isinstance(name, str)), "")


class Scope:
    """One attempt. known: ids of the tool calls whose results it begins with. forced: the last request
    forced a tool call.
    """

    def __init__(self, seam: Seam, known: Iterable[str] = ()) -> None:
        self.seam = seam
        self.forced = False
        self._known = set(known)

    def asking(
        self, model: Any, messages: Sequence[BaseMessage], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments of `Seam.asked` and `Seam.streamed` for a model call."""
        self._note_refused(messages)
        self.forced = options.get("tool_choice") not in (None, False, "auto", "none")
        described = partial(_described, model, messages, options)
        return {"model": model, "name": model_name(model), "options": described, "who": place()}

    def _note_refused(self, messages: Sequence[BaseMessage]) -> None:
        """Note calls that the agent itself answered with an error: unknown tools, forbidden calls."""
        new = _new_in(messages)
        turn: Any = messages[-len(new) - 1] if len(new) < len(messages) else AIMessage("")
        asked = {call["id"]: call for call in turn.tool_calls + turn.invalid_tool_calls}
        for result in new:
            id_: Any = getattr(result, "tool_call_id", None)
            if id_ in asked and id_ not in self._known and getattr(result, "status", "") == "error":
                self._known.add(id_)
                call = asked[id_]
                self.seam.refused(call["name"] or "?", call["args"], _words(result), id=id_)

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

    @contextmanager
    def judging(self, words: Mapping[str, Any]) -> Generator[None]:
        """Mark an error as not attempted where the tool's body did not run."""
        try:
            yield
        except Exception as error:
            if _is_signal(error) or _is_misfit(error):
                not_attempted(error)
                # A tool that records itself was not reached, and has recorded nothing.
                if base.is_tool(words["function"]) and not _is_signal(error):
                    kind = type(error).__name__
                    self.seam.refused(words["name"], words["arguments"], str(error), kind=kind)
            raise


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
    about = (var_child_runnable_config.get() or {}).get("metadata") or {}
    names = about.get("langgraph_checkpoint_ns")
    if not isinstance(names, str):
        return ""
    nodes = "/".join(part.partition(":")[0] for part in names.split("|"))
    sent = (f".{part}" for part in about.get("langgraph_path") or () if type(part) is int)
    return f"{nodes}#{about.get('langgraph_step')}{''.join(sent)}"


_NAMES = ("model_name", "model", "model_id")
"""Fields of chat models that hold the model's name."""


def _shown(tool: BaseTool, given: Any) -> Any:
    """The arguments as LangChain tells its callbacks: without those that the agent injects."""
    return dict(tool._filter_injected_args(given)) if isinstance(given, dict) else given


_SIGNAL = "langgraph.errors.GraphBubbleUp"
_FITTING = BaseTool._to_args_and_kwargs.__code__  # where arguments are looked at, not the body


def _is_signal(error: Exception) -> bool:
    """Whether it is a graph's control flow: an interrupt, or a command to its parent."""
    return any(f"{k.__module__}.{k.__name__}" == _SIGNAL for k in type(error).__mro__)


def _is_misfit(error: Exception) -> bool:
    """Whether the error is about arguments that do not fit the tool."""
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, ValidationError) and _FITTING in frames


def _generating(original: Any) -> Any:
    is_async = inspect.iscoroutinefunction(original)

    def generate(
        self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Any:
        def ask(hint: str | None) -> Any:
            given = _hinted(messages, hint)
            return original(self, given, stop=stop, run_manager=run_manager, **options)

        scope = _SCOPES.active()
        if scope is None:
            return ask(None)
        asked = scope.seam.asked if is_async else scope.seam.asked_sync
        return asked(ask=ask, **scope.asking(self, messages, {**options, "stop": stop}))

    return generate


def _streaming(original: Any) -> Any:
    is_async = inspect.isasyncgenfunction(original)

    def stream(self: Any, input: Any, config: Any = None, **options: Any) -> Any:
        scope = _SCOPES.active()
        # As the method itself decides and converts.
        if scope is None or not self._should_stream(async_api=is_async, **options, stream=True):
            return original(self, input, config, **options)
        given = self._convert_input(input).to_messages()

        def send(call: Unheard) -> Any:
            return original(self, _hinted(given, call.hint), config, **options)

        begin = partial(scope.seam.streamed, **scope.asking(self, given, options))
        return _pieces(begin, send) if is_async else _pieces_sync(begin, send)

    return stream


async def _pieces(begin: Callable[[], Unheard], send: Any) -> AsyncIterator[AIMessageChunk]:
    call = begin()
    if call.known is not None:
        yield _in_one_piece(call.known)
        return
    keep = _keeping(call)
    with call.passing():
        async for piece in call.pieces(send(call)):
            keep(piece)
            yield piece
        keep(None)
    await call.durable()


def _pieces_sync(begin: Callable[[], Unheard], send: Any) -> Generator[AIMessageChunk]:
    call = begin()
    if call.known is not None:
        yield _in_one_piece(call.known)
        return
    keep = _keeping(call)
    with call.passing():
        for piece in call.pieces_sync(send(call)):
            keep(piece)
            yield piece
        keep(None)
    step(call.durable(SYNC))


def _keeping(call: Unheard) -> Callable[[AIMessageChunk | None], None]:
    """Takes each piece before it is passed on: whoever has the last one may leave. None: it has ended."""
    pieces: list[AIMessageChunk] = []

    def keep(piece: AIMessageChunk | None) -> None:
        if piece is not None:
            pieces.append(piece)
        if piece is None or getattr(piece, "chunk_position", None) == "last":
            whole = add_ai_message_chunks(*pieces) if pieces else AIMessageChunk(content="")
            call.done(ChatResult(generations=[ChatGeneration(message=whole)]))

    return keep


def _in_one_piece(answer: ChatResult) -> AIMessageChunk:
    fields: dict[str, Any] = {**dict(answer.generations[0].message), "type": "AIMessageChunk"}
    return AIMessageChunk(**fields, chunk_position="last")


def _running(original: Any) -> Any:
    is_async = inspect.iscoroutinefunction(original)

    def run(self: Any, tool_input: Any, *args: Any, **options: Any) -> Any:
        scope = _SCOPES.active()
        if scope is None:
            return original(self, tool_input, *args, **options)
        words = scope.using(self, tool_input, options.get("tool_call_id"))

        async def do() -> Any:
            with scope.judging(words):
                return await original(self, tool_input, *args, **options)

        def do_sync() -> Any:
            with scope.judging(words):
                return original(self, tool_input, *args, **options)

        seam = scope.seam
        return seam.tool(do=do, **words) if is_async else seam.tool_sync(do=do_sync, **words)

    return run


_REPLACED: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (BaseChatModel, "_agenerate_with_cache", _generating),
    (BaseChatModel, "_generate_with_cache", _generating),
    (BaseChatModel, "astream", _streaming),
    (BaseChatModel, "stream", _streaming),
    (BaseTool, "arun", _running),
    (BaseTool, "run", _running),
)
