"""The base of every adapter to a framework: `Adapter`, and the `Seam` of one attempt.

An adapter is one class in one file. It says whose objects it runs, runs one once, and lets every model
call and every tool call of the framework pass through the seam:

    class MyAdapter(Adapter):
        name = "mine"
        cannot = {"stop": "its hooks swallow every exception"}

        async def attempt(self, seam, task, **kwargs):
            ...  # await seam.model(…) and await seam.tool(…) from the framework's own hooks

Recording, reuse of recorded calls, hints, stopping, and failures that look like a success then work the
same for every framework. Recovery needs no help from the framework: after a Retry, a Rollback or a crash
the agent starts over, and each call made before is answered from the journal, without paying for it or
repeating its effect, up to the point from which the work goes on.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    Required,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

import anyio

from triage.adapters.wire.conversations import overheard
from triage.classifiers.detectors.arguments import load_schemas
from triage.core.actions import RecoveryAction, Resume, Retry, Rollback
from triage.core.capture import capture, hint
from triage.core.errors import UsageError
from triage.core.events import ApprovalAsked, ApprovalGiven
from triage.core.failures import ErrorInfo
from triage.core.json_values import plain
from triage.core.messages.neutral import ENDINGS, Answer
from triage.core.messages.reading import arguments as read_arguments
from triage.core.messages.reading import mapping
from triage.core.messages.receipts import Shrink
from triage.core.observers import child_logger
from triage.core.steps import Step, effect_of
from triage.core.taxonomy import UNSAFE, Cause, Effect, FailureType, infer_effect
from triage.engine import models, refusals
from triage.engine.call_keys import SAID, tally
from triage.engine.calls import Run
from triage.engine.drivers import ASYNC, SYNC, Driver, immediate, step
from triage.engine.run import sees_requests
from triage.engine.tools import TOOL_ATTRIBUTE
from triage.strategies.layers import RetryLayer

from .asking import AskedCall, Asking, Said, said_to
from .asking import ask as ask_person
from .calls import (
    Declared,
    Ended,
    Form,
    ModelCall,
    RecordedModelCall,
    RecordedToolCall,
    Stream,
    ask_model,
    is_brief,
    key_of,
    make,
    within,
)
from .conversations import Turn, carried, guidance_text, passes_all, use
from .tools import (
    UNKNOWN,
    CallRefused,
    Finishing,
    Tools,
    effect_of_hints,
    finishing,
    note_refused,
    tools_by_name,
    trusts,
)
from .unheard import ON_WIRE, UNHEARD, Kind, Unheard, is_listening

__all__ = [
    "ABILITIES",
    "Adapter",
    "ModelOptions",
    "NoSuchModel",
    "Seam",
    "SoftFailure",
    "ToolOptions",
    "cut_short",
    "is_tool",
]


ABILITIES = (
    "record", "stop", "hint", "resume", "rollback", "repair", "soft_failures", "shrink", "switch",
)  # fmt: skip
"""What an adapter can do: journal the framework's calls; stop it from inside; tell the model a hint; go
on without repeating what was done; go back to a checkpoint; close calls that were cut off; see that a
run which looks like a success has failed; make requests shorter; ask another model."""

_log = child_logger("adapters")
load_schemas()


S = TypeVar("S")
T = TypeVar("T")


class SoftFailure(Exception):
    """The framework returned a result although the work has failed.

    Raise it from the underlying error where there is one, so that the diagnosis is of that error.
    failure_type, cause: what went wrong, where the result itself says so.
    """

    def __init__(
        self,
        message: str,
        *,
        failure_type: FailureType | None = None,
        cause: Cause | str | None = None,
    ) -> None:
        super().__init__(message)
        if failure_type is not None or cause is not None:
            hint(self, failure_type=failure_type, cause=cause)


class NoSuchModel(Exception):
    """The framework cannot make a model from a name that a strategy gave. Raise it where
    `Seam.other_model` cannot be used: the policy goes on with the next name, or escalates.

    name: the model's. why: what is missing, and what name would do, as a sentence.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"Retry(model={name!r}), as of switch_model or recommended(models=…): {why}"
        )
        hint(self, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.MODEL_MISSING)


def cut_short(ending: ErrorInfo) -> SoftFailure:
    """The failure of an answer that was cut off or refused. ending: what `ending_of` gave for it."""
    failure_type, cause = ENDINGS[ending.type_name]
    return SoftFailure(ending.message, failure_type=failure_type, cause=cause)


class Adapter(ABC):
    """Run the objects of one framework. There is one instance per wrapped object, without state of a run.

    target: the wrapped object. effects: what each tool does to the world, by name; the effect of any other
    tool is inferred from its name, or is `unknown`. Raises UsageError for an unknown effect, and for a
    class whose `cannot` names an unknown ability.

    name: the framework's. asyncio_only: it does not run on trio. cannot: the `ABILITIES` it lacks, each
    with the reason as a sentence. validates: the framework refuses arguments that do not fit; otherwise
    the seam refuses them. on_wire: models are asked through `Seam.asked` and `Seam.streamed`, so that those
    that ask over HTTP are recorded there. switches: the adapter itself asks `Seam.other_model`. finishing:
    seconds for which a call that must not be repeated may run on after the framework gave it up, as it does
    when a parallel call fails; after that it is cut off, and in doubt.
    """

    name: ClassVar[str]
    asyncio_only: ClassVar[bool] = False
    cannot: ClassVar[Mapping[str, str]] = {}
    validates: ClassVar[bool] = False
    on_wire: ClassVar[bool] = False
    switches: ClassVar[bool] = True
    finishing: ClassVar[float] = 30.0
    trust_hints: bool | tuple[str, ...] = False
    """The tools whose annotations count, as given to `wrap(trust_hints=…)`."""

    def __init__(self, target: Any, *, effects: Mapping[str, Effect | str] | None = None) -> None:
        unknown = ", ".join(sorted(set(self.cannot) - set(ABILITIES)))
        if unknown:
            known = ", ".join(ABILITIES)
            raise UsageError(
                f"{type(self).__name__}.cannot names {unknown}; abilities are: {known}"
            )
        self.target = target
        self.effects: dict[str, Effect] = {}
        for tool, effect in (effects or {}).items():
            try:
                self.effects[tool] = effect_of(f"wrap(effects={{{tool!r}: …}})", effect)
            except ValueError as error:
                raise UsageError(str(error)) from None

    def hinted(self, name: str, annotations: object) -> Effect | None:
        """The effect that an MCP tool's annotations give it; None where they do not say.

        annotations: an object or a mapping with `readOnlyHint` and the like, or None. They are claims: one
        that allows repeating a call counts only where the user trusts the tool (`wrap(trust_hints=…)`);
        one that forbids it always counts.
        """
        return effect_of_hints(annotations, trusted=trusts(name, given=self.trust_hints))

    @abstractmethod
    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        """Run the wrapped object once, from the beginning, and return its result.

        Let the framework's exceptions pass unchanged. kwargs: what `Agent.run` was given for the
        framework. Whatever `seam` raises must reach the caller.
        """

    def soft_failure(self, result: Any) -> BaseException | None:
        """The failure that a result stands for: a `SoftFailure` or the error itself; None if it is good."""
        return None

    def result_type(self) -> Any:
        """The type of the object's results, by which a recorded one is restored; None if not known."""
        return None

    def answer(self, result: Any) -> Any:
        """The answer that a result holds, which `result_type` is about where the result is not of it."""
        return result

    def said(self, result: Any) -> Any:
        """What a result says, in which `Checks` look for facts and what is forbidden: the answer."""
        return self.answer(result)

    def tools(self) -> Iterable[Any] | Mapping[str, Any] | None:
        """The object's tools, as `Checks.tools` takes them; None where they are not known."""
        return None

    def clients(self) -> Iterable[object]:
        """The clients or models it calls, to be checked for retries of their own."""
        return ()

    def layers(self) -> Iterable[RetryLayer]:
        """The framework's own retries, which the log `triage.retries` warns about."""
        return ()

    def explain(self, error: Exception) -> None:  # noqa: B027 - the words of most say it
        """Attach what went wrong to an error, with `triage.hint`, if its message does not tell."""

    async def run(self, task: Any, run: Run, kwargs: Mapping[str, Any]) -> Any:
        """Run one attempt, with all that is the same for every framework.

        Raises UsageError on another event loop than the framework's.
        """
        if self.asyncio_only and anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
            raise UsageError(
                f"{self.name} runs on asyncio alone; run the agent with asyncio.run(agent.run(…))"
            )
        seam = Seam(self, run)

        async def attempt(calls: Finishing) -> Any:
            seam.finishing = calls
            return await self.attempt(seam, task, **kwargs)

        try:
            result = await finishing(attempt)
        except Exception as error:
            seam.settle()
            self.explain(error)
            seam.blame(error)
            raise
        seam.settle()
        failure = self.soft_failure(result)
        if failure is not None:
            seam.blame(failure)
            cause = None if failure is seam.last_error else seam.last_error
            raise failure from failure.__cause__ or cause
        if seam.last_error is not None:
            text = "the last model call failed, and the framework gave a result all the same"
            raise SoftFailure(text) from seam.last_error
        if seam.ending is not None:
            raise cut_short(seam.ending)
        tally(run).beside[SAID] = self.answer(result), self.said(result)
        return result


class ModelOptions(TypedDict, total=False):
    """What a seam needs to know about a model call.

    form: how the answer is stored. request: everything that decides the answer, without the hint; any
    value, as only its digest is kept. said: what is new in the request, for the journal, without ids.
    model: its name. who: the sub-agent's name, which keeps parallel agents apart, and behind a # what tells
    its calls apart; empty: the tool call this is part of, if any. max_tokens: the limit that the request
    sets; an answer cut off after 16 tokens or fewer is taken as intended. tools: those that the request
    declares, in any form that `Checks.tools` takes; None: those of `Adapter.tools`. A call that fits none
    of them is recorded as one that never ran, unless the framework makes it anyway; without tools nothing
    is checked.
    """

    form: Required[Form]
    request: Required[Any]
    said: Any
    model: str
    who: str
    max_tokens: object
    tools: Iterable[Any] | Mapping[str, Any] | None


class ToolOptions(TypedDict, total=False):
    """What a seam needs to know about a tool call.

    id: the model's id of the call. effect: what the framework knows of it; `wrap(effects=…)` wins over it;
    None: inferred from the tool's name, else unknown. form: for results that are not JSON; None stores them
    as they are. function: what the tool runs; a `@triage.tool` records itself, and is only called.
    refused: turns the message for the model into a result of the framework; None raises CallRefused.
    finishing: as `Adapter.finishing`, for this call; 0 cuts it off at once. schema: of the arguments.
    """

    id: str | None
    effect: Effect | str | None
    form: Form | None
    function: object
    refused: Callable[[str], Any] | None
    finishing: float
    schema: Mapping[str, Any] | None


class Seam:
    """The object that an adapter's hooks call during one attempt. Safe to use from any task of the attempt.

    run: the attempt's handle.
    """

    def __init__(self, adapter: Adapter, run: Run) -> None:
        self.adapter = adapter
        self.run = run
        self.finishing: Finishing | None = None
        self._known: Tools | None = None
        self._carried: tuple[Turn, ...] | None = None
        self._asked: dict[str, str] = {}
        passes_all(run, adapter.name, models=not adapter.on_wire)
        self._overheard = overheard(run)
        self._overheard.notes = tuple(_notes(adapter, run))
        self._overheard.switches = not adapter.switches

    @property
    def last_error(self) -> BaseException | None:
        """What the last model call raised, None once one has succeeded."""
        return self._overheard.last_error

    @property
    def ending(self) -> ErrorInfo | None:
        """Why the last answer does not count, where it was cut off or refused."""
        return self._overheard.ending

    @property
    def hint(self) -> str | None:
        """What to tell the model with its next request; usually None. It can change from call to call.

        Before a call that is reused, the hint with which that was asked for. None for a judge.
        """
        return None if models.is_judging() else self._overheard.told(self.run.guidance)

    @property
    def shrink(self) -> Shrink | None:
        """How to shorten the messages of the next request; usually None, for not at all.

        Set by `shrink_context` until the run ends. Read it where the request is sent, and pass it to
        `shrunk_chat` or one of its siblings before adding the hint.
        """
        if "shrink" in self.adapter.cannot:
            return None
        return Shrink.of(self.run.guidance, self.run)

    @property
    def other_model(self) -> str | None:
        """The name of the model to ask instead of the framework's own; usually None.

        Set by `switch_model` until the run ends. Read it where the request is sent; the call's step names
        it. Raise `NoSuchModel` where the framework cannot make a model from the name.
        """
        return None if "switch" in self.adapter.cannot else self.run.guidance.model

    @property
    def carried(self) -> tuple[Turn, ...]:
        """The turns that this attempt's conversation begins with, oldest first; usually none.

        After a Replan: the turns of the previous attempt, without the loop it was in, so that the new plan
        knows what was found. Empty after a context overflow. An adapter that can start a conversation in
        the middle puts its turns behind the task, repairs the result, and reports each turn it used with
        `use`; other adapters ignore them.
        """
        if self._carried is None:
            self._carried = carried(self.run)
        return self._carried

    def use(self, turn: Turn) -> None:
        """Report that the conversation begins with this turn of `carried`: its call counts as made."""
        use(self.run, turn)

    def check_open(self) -> None:
        """Raise AttemptInterrupted (a BaseException) where the attempt was stopped."""
        self.run.check_open()

    def model(
        self, ask: Callable[[str | None], Awaitable[Any]], **options: Unpack[ModelOptions]
    ) -> Coroutine[Any, Any, Any]:
        """Ask the model and record the call; return its answer, or `form.load` of the recorded one.

        ask: sends the request with a hint, or with None. options: see `ModelOptions`. Raises what `ask`
        raises.
        """
        return ask_model(self.run, self._asking(ask, options), self._ending(options))

    def model_sync(self, ask: Callable[[str | None], Any], **options: Unpack[ModelOptions]) -> Any:
        """`model` for sync hooks, in a thread of the attempt."""
        asking, ending = self._asking(ask, options), self._ending(options)
        return step(ask_model(self.run, asking, ending, SYNC))

    def stream(self, **options: Unpack[ModelOptions]) -> Stream:
        """`model` for a streamed answer: begin the call, or find its recorded answer.

        stream = seam.stream(form=FORM, request=request)
        if stream.known is not None: ...  # give it, in as many pieces as you like
        with stream.passing():
            ...  # send it with seam.hint, and give the pieces on as they come
            stream.done(whole)
        await stream.durable()
        """
        stream = Stream(self.run, self._model_call(options), self._ending(options))
        stream.asks(self.other_model)
        return stream

    async def asked(
        self,
        model: object,
        name: str,
        ask: Callable[[str | None], Awaitable[T]],
        options: Callable[[], ModelOptions],
        *,
        who: str = "",
        driver: Driver = ASYNC,
    ) -> T:
        """Ask a model of the framework. The call is recorded here where nothing of it leaves over HTTP.

        model: the framework's object, by whose class and name it is known how it asks. ask: sends the
        request with a hint, or with None. options: gives those of `model`, where they are needed. who: as
        of `ModelOptions`, for the call on the wire too.
        """
        asking = self.streamed(model, name, options, who=who)
        if asking.known is not None:
            return cast("T", asking.known)
        with asking.passing():
            with asking.listening():
                answer = await ask(asking.hint)
            asking.done(answer)
        await asking.durable(driver)
        return answer

    def asked_sync(
        self,
        model: object,
        name: str,
        ask: Callable[[str | None], T],
        options: Callable[[], ModelOptions],
        *,
        who: str = "",
    ) -> T:
        """`asked` for sync hooks, in a thread of the attempt."""
        return step(self.asked(model, name, immediate(ask), options, who=who, driver=SYNC))

    def streamed(
        self, model: object, name: str, options: Callable[[], ModelOptions], *, who: str = ""
    ) -> Unheard:
        """`asked` for a streamed answer.

        asking = seam.streamed(model, name, options)
        if asking.known is not None: ...  # give it, in as many pieces as you like
        with asking.passing():
            with asking.listening():
                source = ...  # send it with asking.hint
            async for piece in asking.pieces(source): ...  # give the pieces on
            asking.done(whole)
        await asking.durable()
        """
        kind = Kind(type(model), name)
        self.run.check_open()
        given_again = tally(self.run).replaying and self._was_recorded(name)
        is_on_wire = kind in ON_WIRE and not (self._is_unseen or given_again)
        if is_on_wire or is_listening():
            return Unheard(kind, None, lambda: None, here=False, who=who)
        here = kind in UNHEARD or self._is_unseen or self._was_recorded(name)
        # It is written into the request that leaves, as those of earlier attempts did.
        is_written = not here and self._was_recorded(name, here=False)

        def begin() -> Stream:
            other = self.other_model
            if other is not None and not self.adapter.switches:
                raise NoSuchModel(other, f"{type(model).__name__} does not ask over HTTP")
            given: ModelOptions = {"who": who, **options()}
            return self.stream(**given)

        return Unheard(kind, begin, lambda: None if is_written else self.hint, here=here, who=who)

    @property
    def _is_unseen(self) -> bool:
        """Whether no request of this run is seen where it leaves."""
        return not sees_requests(self.run.session)

    def _was_recorded(self, model: str, *, here: bool = True) -> bool:
        """Whether an earlier attempt has recorded a call of a model of this name here, or on the wire."""
        if self.run.replay is None:
            return False
        return any(
            mapping(call.arguments).get(models.MODEL) == model
            for call in self.run.session.state.calls.values()
            if call.kind == "model" and self._is_mine(call.tool) is here
        )

    def _is_mine(self, tool: str) -> bool:
        return tool == self.adapter.name or tool.startswith(f"{self.adapter.name} ")

    def _model_call(self, options: ModelOptions) -> ModelCall:
        who = options.get("who") or within()  # an agent inside of a tool is matched by itself
        return ModelCall(
            name=f"{self.adapter.name} {who}" if who else self.adapter.name,
            model=self.other_model or options.get("model", ""),
            said=options.get("said"),
            key=key_of(options["request"]),
            form=options["form"],
            is_brief=is_brief(options.get("max_tokens")),
        )

    def _asking(self, ask: Callable[[str | None], Any], options: ModelOptions) -> RecordedModelCall:
        def send() -> Any:
            # Known only now: what was asked before and is given again was asked of another.
            asking.asks(self.other_model)
            return ask(self.hint)

        asking = RecordedModelCall(self._model_call(options), send)
        return asking

    def _ending(self, options: ModelOptions) -> Ended:
        """A callback for the end of this model call, which is the latest one."""
        who, tools = options.get("who") or within(), options.get("tools")
        self._overheard.mistakes.settle(self.run, who)

        brief = is_brief(options.get("max_tokens"))
        judges = models.is_judging()

        def ended(answer: Answer | None, error: Exception | None) -> None:
            if not judges:
                self._overheard.answered(answer, error, brief=brief)
            if answer is not None and answer.calls:
                known = self._tools if tools is None else tools_by_name(tools)
                cut = self._overheard.cut is not None
                self._overheard.mistakes.note(who, answer.calls, known, cut=cut)

        return ended

    def blame(self, error: BaseException) -> None:
        """Say of data that does not fit that the answer which gives it was cut off, if it was."""
        cut = self._overheard.cut
        said = capture(error).decisive
        kind = None if said is None or said.hint is None else said.hint.get("failure_type")
        if cut is not None and kind == FailureType.SCHEMA_MISMATCH:
            failure_type, cause = ENDINGS[cut.type_name]
            hint(error, failure_type=failure_type, cause=cause)

    @property
    def _tools(self) -> Tools:
        if self._known is None:
            self._known = tools_by_name(self.adapter.tools())
        return self._known

    def settle(self) -> None:
        """Record, at the end of the attempt, the calls that a model asked for and that never ran."""
        self._overheard.mistakes.settle(self.run)

    async def tool(
        self,
        name: str,
        arguments: Any,
        do: Callable[[], Awaitable[Any]],
        **options: Unpack[ToolOptions],
    ) -> Any:
        """Call a tool and record the call; return its result, or `form.load` of the recorded one.

        do: runs the tool. arguments: as the model gave them. options: see `ToolOptions`. Raises what `do`
        raises. A result that `form.failed` recognises as an error is returned like any other, but the call
        has failed: facts decide whether it may have happened, as those of an exception do. A call in doubt
        does not end the attempt; it is asked about before it is made again.

        Arguments that do not fit the tool are refused, unless the framework validates them itself
        (`Adapter.validates`): `do` is not called, and the refusal is recorded. A call that must not be
        repeated runs to its end even if the framework gives it up (see `Adapter.finishing`).

        A tool that pauses the framework, for an approval, must not look like one that failed: pass its
        signal through `triage.not_attempted`.
        """
        refusal = self._refusal(name, arguments, options)
        if refusal is not None:
            return _answer_to(refusal, options.get("refused"))
        if is_tool(options.get("function")):
            self.run.check_open()
            work = do
        else:
            work = partial(make, self.run, self._recorded(name, arguments, do, options))
        if self._effect_of(name, options) in UNSAFE and self.finishing is not None:
            seconds = options.get("finishing", self.adapter.finishing)
            return await self.finishing.run(work, seconds)
        return await work()

    def tool_sync(
        self, name: str, arguments: Any, do: Callable[[], Any], **options: Unpack[ToolOptions]
    ) -> Any:
        """`tool` for sync hooks, in a thread of the attempt."""
        refusal = self._refusal(name, arguments, options)
        if refusal is not None:
            return _answer_to(refusal, options.get("refused"))
        if is_tool(options.get("function")):
            self.run.check_open()
            return do()
        return step(make(self.run, self._recorded(name, arguments, do, options), SYNC))

    def _recorded(
        self, name: str, arguments: Any, do: Callable[[], Any], options: ToolOptions
    ) -> RecordedToolCall:
        effect = self.adapter.effects.get(name, options.get("effect"))
        return RecordedToolCall(
            do,
            name,
            arguments,
            effect=effect,
            id=options.get("id"),
            form=options.get("form"),
            declared=lambda: Declared(options.get("schema")),
        )

    def _effect_of(self, name: str, options: ToolOptions) -> Effect:
        function = options.get("function")
        if is_tool(function):
            return Effect(getattr(function, TOOL_ATTRIBUTE).effect)
        return self.effect_of(name, options.get("effect"))

    def _refusal(self, name: str, arguments: Any, options: ToolOptions) -> CallRefused | None:
        """Record and return why a call is refused; None where it may be made."""
        id_ = options.get("id")
        refusal = self._overheard.mistakes.take(name, arguments, id_)
        if refusal is None or refusal.kind == UNKNOWN:
            return None  # there is such a tool, if it is called
        if refusal.kind == models.CUT:
            if self._effect_of(name, options) not in UNSAFE:
                return None
        elif self.adapter.validates:
            return None
        note_refused(
            self.run, name, read_arguments(arguments), refusal.text, kind=refusal.kind, id=id_
        )
        return CallRefused(refusal)

    def at_failure(self, whose: str, leave: Callable[[], Awaitable[object]]) -> None:
        """Register a function to await if the run ends in a failure, to write what an attempt held back.

        whose: what it is for; a later attempt's function replaces an earlier one. leave: takes no
        arguments, and is awaited once; an error it raises goes to the log.
        """
        session = self.run.session
        session.at_failure = {**(session.at_failure or {}), whose: leave}

    def effect_of(self, name: str, effect: Effect | str | None = None) -> Effect:
        """The effect a call of this tool will have. effect: as for `tool`."""
        known = self.adapter.effects.get(name, effect)
        if known is not None:
            return Effect(known)
        return infer_effect(name) if self.run.session.config.infer_effects else Effect.UNKNOWN

    def ask_person(
        self,
        about: str,
        of: Any,
        text: str = "",
        *,
        arguments: Any = None,
        leave: bool = False,
        editable: Sequence[str] = (),
        elsewhere: bool = False,
        calls: Sequence[AskedCall] = (),
    ) -> Said:
        """A person's answer to a question of the framework's agent. Without an answer yet, end the attempt
        and suspend the run until `Agent.resume` brings one.

        The agent then starts over, earlier calls are answered from the journal, and it arrives at the same
        question, which now has its answer.

        about: the subject, a tool or any other word. of: what tells this question from others about the
        same subject, equal whenever it is asked: the model's id of the call, or a number. text: the
        question; empty: whether the tool may be called with these arguments. leave: True for a call that
        has not begun: it can be approved, rejected or edited, and cannot have happened. False: any answer,
        given with `happened(value)`. editable: names of arguments that an edit may change. elsewhere: the
        call is made by somebody else, so only its result answers, and no approval. calls: the tool calls
        that it asks leave for; with `leave` the one of `about`. What was approved before, is done, or was
        refused before is not asked about again; the run ends where it is refused too often.
        """
        effect = self.effect_of(about) if leave else Effect.READ
        if leave:
            calls = (AskedCall(str(of), about, arguments),)
        asking = Asking(
            about, of, text, arguments, leave, effect, editable, elsewhere=elsewhere,
            calls=tuple(map(self.about, calls)),
        )  # fmt: skip
        said = said_to(self.run, asking.key(self.run))
        if leave and (said is None or said.decision == "rejected"):
            said = self.verdicts(calls).get(str(of))
        if said is None or (said.decision == "rejected" and not leave):
            ask_person(self.run, asking)
        return said

    def verdicts(self, calls: Sequence[AskedCall], *, all_or_none: bool = False) -> dict[str, Said]:
        """By their ids, those of these calls that need not be asked about, and the person's decision.

        A call is approved where it was before or is done, and refused where that still stands. Ends the
        run where one is refused too often. all_or_none: give nothing unless all are decided.
        """
        session = self.run.session
        approved, refused = refusals.approved_before(session.events), refusals.standing(session)
        found: dict[str, Said] = {}
        declined: list[refusals.Refusal] = []
        for call in calls:
            asked = self.about(call)
            made = session.state.calls.get(asked.key)
            before = next((one for one in refused if one.is_about(asked)), None)
            if made is not None and made.outcome == "done" and not made.undone:
                found[call.id] = Said("approved")
            elif before is not None:
                found[call.id] = Said("rejected", before.reason or None)
                declined.append(before)
                self._overheard.dismiss(call.id, call.tool)
            elif asked.key in approved:
                found[call.id] = Said("approved", edits=approved[asked.key].payload or {})
        if all_or_none and len(found) < len(calls):
            return {}
        refusals.decline(self.run, declined)
        return found

    def refuse(self, call: AskedCall, reason: str) -> None:
        """Record that a person refused one of several calls that were asked about together."""
        self._overheard.dismiss(call.id, call.tool)
        key = self.about(call).key
        for event in reversed(self.run.session.events):
            if isinstance(event, ApprovalGiven) and event.subject == key:
                return  # by an attempt that this one goes on with
            if isinstance(event, ApprovalAsked) and refusals.asks_about(event, key):
                break
        self.run.session.add(
            ApprovalGiven, kind="call", subject=key, decision="rejected", reason=reason
        )

    def about(self, call: AskedCall) -> refusals.About:
        """Describe a call by the recorded one that it will be, or equals."""
        run, counted = self.run, tally(self.run)
        key = self._asked.get(call.id)
        if key is None:
            taken = set(self._asked.values())
            recorded = RecordedToolCall(lambda: None, call.tool, call.arguments)
            digest = recorded.given((), {}, run.session.salt).digest
            told = plain(call.arguments)
            key = next(
                (
                    made.key
                    for made in run.session.state.calls.values()
                    if made.tool == call.tool and made.arguments == told and made.outcome == "done"
                    if counted.is_free(made.key) and made.key not in taken
                ),
                None,
            ) or counted.upcoming(f"{call.tool}:{digest}", taken)
            self._asked[call.id] = key
        return refusals.describe(run.session, key, call.tool, call.arguments)

    def decided(self, what: str, given: Any, result: Any) -> None:
        """Record that the user's own code made the result, however the last call ended.

        what: which code, as the step's action. given, result: its input and output. The result is
        trusted: an error of the last model call, or how its answer ended, no longer counts.
        """
        self.run.record_step(Step(action=what, tool_input=plain(given), tool_output=plain(result)))
        self._overheard.answered(None, None, brief=False)

    def refused(
        self,
        name: str,
        arguments: Any,
        error: str,
        *,
        kind: str | None = None,
        id: str | None = None,
    ) -> None:
        """Record a tool call that never ran, for a reason that the framework gives.

        error: what the model is told. kind: the exception's class, or None. id: the model's id of the call,
        or None. Unknown tools and arguments that do not fit are recorded without this; a call of this
        method replaces that record.
        """
        self._overheard.mistakes.take(name, arguments, id)
        note_refused(self.run, name, arguments, error, kind=kind, id=id)


def is_tool(function: object) -> bool:
    """Whether a function is a `@triage.tool`, which records itself."""
    return hasattr(function, TOOL_ATTRIBUTE)


def _answer_to(refusal: CallRefused, refused: Callable[[str], Any] | None) -> Any:
    if refused is None:
        raise refusal
    return refused(str(refusal))


class _Fallback(NamedTuple):
    """What happens where an adapter lacks an ability. said: what the model is told, if anything."""

    instead: str
    said: str = ""


_FALLBACKS: dict[tuple[type[RecoveryAction], str], _Fallback] = {
    (Rollback, "rollback"): _Fallback(
        "the agent begins with a new plan",
        "The work could not be set back to where it was: what has been done stands. Find out what "
        "that is before you do it again.",
    ),
    (Retry, "resume"): _Fallback("the agent starts over"),
    (Resume, "resume"): _Fallback(
        "the agent starts over with the subgoal", "Parts of the work may have been done before."
    ),
}


def _notes(adapter: Adapter, run: Run) -> Iterator[str]:
    """What the model must be told because the adapter cannot do what was decided; logged as well."""
    action = run.told.action
    for (kind, ability), fallback in _FALLBACKS.items():
        if isinstance(action, kind) and ability in adapter.cannot:
            _say(adapter, run, ability, f"after a {kind.__name__} {fallback.instead}")
            if fallback.said:
                yield fallback.said
    if guidance_text(run.told) is not None and "hint" in adapter.cannot:
        _say(adapter, run, "hint", "the attempt is made without its hint")
    if run.told.keep_last is not None and "shrink" in adapter.cannot:
        _say(adapter, run, "shrink", "requests are as long as before")
    if run.told.model is not None and "switch" in adapter.cannot:
        _say(adapter, run, "switch", f"the same model is asked, and not {run.told.model}")


def _say(adapter: Adapter, run: Run, ability: str, instead: str) -> None:
    reason = adapter.cannot[ability]
    _log.warning("run %s: %s (%s: %s)", run.run_id, instead, adapter.name, reason)
