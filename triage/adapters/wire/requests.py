"""One request to a model, made in an attempt: what is sent, what is kept, what is given again."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from itertools import count
from typing import Any
from urllib.parse import quote, unquote

from triage.adapters import calls
from triage.adapters.conversations import records_models, repaired
from triage.adapters.unheard import note_heard
from triage.core.errors import TriageError
from triage.core.messages import neutral, reading, receipts
from triage.core.observers import child_logger
from triage.engine.calls import Run
from triage.engine.models import BRIEF, is_judging
from triage.engine.run import Recorder, current, open_attempts
from triage.engine.tools import calling

from .bodies import DONE, Kept, Reader, answer_in, content_type, is_stream, kept
from .conversations import Overheard, overheard
from .endpoints import Asked, asked_of, knows

__all__ = [
    "FailedStream", "ModelRequest", "RefusedRequest", "Tee", "is_streamed", "model_request", "passed",
    "record", "refused", "untouched",
]  # fmt: skip

_LONGEST = 4_000
_DIGITS = 32
"""Of the digest of a request."""
_DRAWN = frozenset({"prompt_cache_key", "metadata"})
"""Fields that clients may fill anew in each run. They decide no answer."""
_DIGESTS = ("x-amz-content-sha256", "content-md5", "content-digest", "digest")
"""Headers that name the digest of a body."""
_SIGNED_S = 120.0
"""Seconds for which a signature is sent again; most hold for 300, by a clock that may differ from ours."""
_MODEL_IN_PATH = re.compile(r"/models/(?P<gemini>[^:]*)|/model/(?P<bedrock>.+)/")
_NAMED_IN_PATH = re.compile(r"(/models/)[^/:?]+(?=:)|(/(?:model|deployments)/)[^/?]+(?=/)")
"""The model in the path of an address, as it is sent."""
_UNQUOTED = "-._~@"
"""What stays as it is in a path."""
_log = child_logger("adapters")
_passing: ContextVar[bool] = ContextVar("triage_wire", default=False)


@contextmanager
def passed() -> Generator[None]:
    """Around a request on its way: what it passes further down is the same request."""
    token = _passing.set(True)
    try:
        yield
    finally:
        _passing.reset(token)


def untouched(method: str, path: str, *, explicit: bool = False) -> bool:
    """Whether a request passes as it is: it is made outside of a run, asks no model, or is on its way.

    explicit: it is seen also where the agent's seam is off, and in the attempts of adapters.
    """
    if method.upper() != "POST" or _passing.get() or not knows(path):
        return True
    run = current.get()
    if run is None or current.is_left_behind:
        note_unseen()
        return True
    call = calling.get()
    if call is not None and call.kind in ("model", "judge"):  # it is part of a recorded call
        return True
    return not explicit and (run.session.config.seam == "off" or records_models(run))


_unseen = count(1)


def note_unseen() -> None:
    """A model is asked outside of any run while attempts go on: say once what that may mean."""
    if not current.is_unknown or not any(map(_is_seen, list(open_attempts.values()))):
        return
    number = next(_unseen)
    _log.log(
        logging.WARNING if number == 1 else logging.DEBUG,
        "a request to a model was made outside of any run while runs go on (%d so far): it is not "
        "recorded. If an agent made it, in a thread or task that was started before its run, give the "
        "work its context: contextvars.copy_context().run(…). Otherwise nothing is amiss",
        number,
    )


def _is_seen(run: Recorder) -> bool:
    return not (run.over or records_models(run))


@cache
def note_unread(library: str, why: str) -> None:
    """Say once why a request that may ask a model passes unrecorded."""
    _log.debug("a request by %s is not recorded: %s", library, why)


class RefusedRequest(Exception):
    """An answer with an HTTP status from 400 on. Its client makes an exception of its own of it.

    Its text is the status and what the provider says, or the body where that says it in no usual field.
    """

    def __init__(self, response: Any, status: int, body: bytes) -> None:
        text = body.decode("utf-8", "replace")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        super().__init__(f"{status}: {_message(said) or text}"[:_LONGEST])
        self.response = response
        self.status_code = status
        self.body = said


def is_streamed(response: Any) -> bool:
    """Whether a client's response is an answer in pieces."""
    return response.status_code < 400 and is_stream(content_type(response.headers))


def refused(response: Any) -> RefusedRequest | None:
    """The failure that a client's response stands for. Its body is read where it is one."""
    if response.status_code < 400:
        return None
    return RefusedRequest(response, response.status_code, response.content)


def record(call: calls.Stream, response: Any, failed: RefusedRequest | None) -> None:
    """Record a client's response with its body, or the failure that it stands for."""
    if failed is None:
        call.done(kept(response.status_code, response.headers.items(), response.content))
    else:
        call.failed(failed)


_REFUSES = (400, 413, 422)
"""Statuses of requests that a provider does not take as they are."""
_REPEATED = (408, 409, 425, 429)
"""Statuses below 500 that clients repeat a request for."""


def may_be_repeated(error: Exception) -> bool:
    """Whether a client makes the same request again behind this failure."""
    if isinstance(error, RefusedRequest):
        return error.status_code >= 500 or error.status_code in _REPEATED
    return True


class FailedStream(Exception):
    """A stream ended with an error that the provider reports in it."""

    def __init__(self, error: Any) -> None:
        super().__init__((_message({"error": error}) or str(error))[:_LONGEST])
        self.body = error


def _message(body: Any) -> str | None:
    """What an error body says: its message, or that of the error in it."""
    found = reading.mapping(body)
    inner = found.get("error", found)
    if isinstance(inner, str):
        return inner
    names = ("message", "detail", "Message")
    return next(
        filter(None, (reading.text_or_none(reading.mapping(inner).get(name)) for name in names)),
        None,
    )


def model_request(
    method: str,
    path: str,
    headers: Iterable[tuple[str, str]],
    content: bytes | str,
    *,
    hint: bool = True,
) -> ModelRequest | None:
    """The recorded call that a request is; None for what passes untouched.

    headers: those of the request. hint: False leaves hints to the agent's own code.
    """
    run = current.get()
    asked = asked_of(method, path, content) if isinstance(run, Run) else None
    if asked is None or not isinstance(run, Run):
        return None
    raw = content.encode() if isinstance(content, str) else content
    who = note_heard()
    if who is None:
        return None
    try:
        return ModelRequest(run, asked, path, raw, signed=_is_signed(headers), hint=hint, who=who)
    except TriageError:
        raise
    except Exception:  # nothing that is said to a model may keep it from being asked
        _log.exception(
            "run %s: a request to %s is not recorded", run.run_id, asked.endpoint.provider
        )
        return None


def _is_signed(headers: Iterable[tuple[str, str]]) -> bool:
    for name, value in headers:
        lower = name.lower()
        if lower in _DIGESTS or "signature" in lower:
            return True
        if lower == "authorization" and "signature=" in value.lower():
            return True
    return False


class ModelRequest:
    """A request on its way. overheard: what the attempt's requests have told so far.

    who: the framework's agent that asks, as of `ModelOptions`; empty where nobody says so.
    """

    def __init__(
        self, run: Run, asked: Asked, path: str, raw: bytes, *, signed: bool, hint: bool, who: str
    ) -> None:
        self.run = run
        self.overheard = overheard(run)
        self._endpoint, self._body = asked
        self._signed = signed
        self._hint = hint and not is_judging()  # it is for the model that is judged
        self._stream: calls.Stream | None = None
        self._is_raised = False
        messages = self._body.get(self._endpoint.messages)
        tools = self._body.get("tools") or reading.mapping(self._body.get("toolConfig")).get(
            "tools"
        )
        # A loop inside of a tool is a conversation of its own, which is matched by itself.
        inside = calls.within()
        self._is_own = not (inside or is_judging())
        begins = None if inside or is_continued(self._body) else who
        self._conversation = self.overheard.sent(
            self._endpoint.wire, messages, tools, begins=begins
        )
        carried = self._conversation.carried
        said_before = b"" if carried is None else json.dumps(carried.turns).encode()
        decisive = path.encode() + b"\n" + self._decisive(raw) + said_before
        provider = self._endpoint.provider
        limit = reading.max_tokens_of(self._body)
        self._call = calls.ModelCall(
            name=f"{provider} {who or inside}".rstrip(),
            model=(self._other_model or "") or self._model(path),
            said=self._endpoint.wire.new_in(messages),
            key=sha256(decisive).hexdigest()[:_DIGITS],
            form=calls.Form(read=self._read),
            is_brief=calls.is_brief(limit),
            max_tokens=None if self._signed or limit is None or limit <= BRIEF else limit,
            is_seen=True,
            conversation=self._conversation.name,
        )

    def _decisive(self, raw: bytes) -> bytes:
        """The part of a request's body that decides its answer."""
        if _DRAWN.isdisjoint(self._body):
            return raw
        kept = {name: value for name, value in self._body.items() if name not in _DRAWN}
        return json.dumps(kept).encode()

    def _model(self, path: str) -> str:
        named = self._body.get("model")
        if isinstance(named, str):
            return named
        # Gemini's and Bedrock's paths name it: /models/NAME:generateContent, /model/NAME/converse.
        at = _MODEL_IN_PATH.search(path)
        return unquote(at["gemini"] or at["bedrock"] or "") if at else ""

    def addressed(self, path: str) -> str:
        """The path, with the other model that the run asks for where it names one. path: as it is sent."""
        other = self._other_model
        if other is None or self._signed:
            return path
        segment = quote(other, safe=_UNQUOTED)
        return _NAMED_IN_PATH.sub(lambda at: f"{at[1] or at[2]}{segment}", path, count=1)

    def _read(self, answer: Kept) -> neutral.Answer:
        try:
            return answer_in(self._endpoint.wire, answer)
        except Exception:  # it is the agent's all the same
            _log.exception("run %s: an answer cannot be read", self.run.run_id)
            return neutral.Answer()

    def begin(self) -> calls.Stream:
        """Begin the recorded call, or find its recorded answer."""
        self.run.session.raise_held()
        again = self.overheard.begun(self._call)
        now = self.run.session.config.env.monotonic()
        until = now + _SIGNED_S if self._signed else math.inf
        self._stream = calls.Stream(self.run, self._call, self._ended, again=again, until=until)
        self._stream.amends = self._lowers
        return self._stream

    def _ended(self, answer: neutral.Answer | None, error: Exception | None) -> None:
        if self._is_own:
            self.overheard.answered(answer, error, brief=self._call.is_brief)
        self.overheard.asked(answer, brief=self._call.is_brief)
        if error is not None and self._stream is not None and may_be_repeated(error):
            self.overheard.failed(self._call, self._stream.key)

    @property
    def _other_model(self) -> str | None:
        return self.run.guidance.model if self.overheard.switches else None

    def changed(self) -> bytes | None:
        """The body to send; None: as the client wrote it. Read when it is sent: the hint may come late."""
        try:
            return self._changed()
        except Exception:
            _log.exception("run %s: a request is sent as its client wrote it", self.run.run_id)
            return None

    def _changed(self) -> bytes | None:
        guidance = self.run.guidance
        endpoint, given = self._endpoint, self._body
        body = dict(given)
        other = self._other_model
        if other is not None and "model" in body:
            body["model"] = other
        if other is not None and self._stream is not None:
            self._stream.asks(other)
        body = self._with_limit(body, guidance.output_factor)
        wire, name = endpoint.wire, endpoint.messages
        shrink = receipts.Shrink.of(guidance, self.run)
        messages, carried = body.get(name) or [], self._conversation.carried
        if carried is not None and not is_continued(body):
            given_by_client = [wire.user(messages)] if isinstance(messages, str) else messages
            messages = carried.within(given_by_client)
        messages = wire.shrunk(messages, shrink)
        if not isinstance(messages, str) and not is_continued(body):
            messages = self._repaired(messages, is_given=shrink is None and carried is None)
        hint = self.overheard.told(guidance) if self._hint else None
        body[name] = wire.hinted(messages, hint)
        if body == given:
            return None
        if self._signed:
            _log.warning(
                "run %s: a request to %s is signed already and is sent as it is: it cannot carry %s, which "
                "waits for a request that can",
                self.run.run_id, endpoint.provider, "the hint" if hint else "what is to be changed",
            )  # fmt: skip
            return None
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def _with_limit(self, body: dict[str, Any], factor: int | None) -> dict[str, Any]:
        """The body with a higher token limit for its answer, if it sets one."""
        limit, heard = self._call.max_tokens, self.overheard
        if limit is None or factor is None or not heard.raises:
            return body
        self._is_raised = True
        if (limit, factor) not in heard.raised:
            heard.raised.add((limit, factor))
            _log.warning(
                "run %s: an answer was cut off, so that requests to %s may have answers of %d tokens now, "
                "not of %d; FailurePolicy(causes={Cause.OUTPUT_CUT: ask_again(2)}) leaves limits alone",
                self.run.run_id, self._endpoint.provider, limit * factor, limit,
            )  # fmt: skip
        return reading.with_limit(body, factor, above=BRIEF)

    def _lowers(self, error: Exception) -> bool:
        """Whether a request is to be sent with its own limit, as the provider refuses the higher one."""
        refused = isinstance(error, RefusedRequest) and error.status_code in _REFUSES
        if not (refused and self._is_raised and self.overheard.raises):
            return False
        self.overheard.raises = False
        _log.warning(
            "run %s: %s refuses the higher limit for answers: requests have their own again",
            self.run.run_id, self._endpoint.provider,
        )  # fmt: skip
        return True

    def _repaired(self, messages: list[Any], *, is_given: bool) -> list[Any]:
        """The messages with a result for each call. Those that an earlier request had sent have theirs.

        is_given: they are the client's own, none of them left out.
        """
        before = self._conversation
        known = before.known if before.whole and is_given else 0
        new = messages[known:]
        made = repaired(self._endpoint.wire, new).messages
        before.whole = made == new and is_given
        return messages if before.whole else [*messages[:known], *made]

    def tee(self, recording: calls.Stream, status: int, headers: Iterable[tuple[str, str]]) -> Tee:
        """Keep a streamed answer as it passes."""
        return Tee(self, recording, status, list(headers))

    def is_whole(self, pieces: list[Any]) -> bool:
        return self._endpoint.wire.is_whole(pieces)

    def answer_of(self, pieces: list[Any]) -> neutral.Answer:
        """What the pieces of a stream say together."""
        wire = self._endpoint.wire
        return wire.answer(wire.whole(pieces))

    def is_last(self, piece: Any) -> bool:
        """Whether nothing comes behind this event of a stream."""
        wire = self._endpoint.wire
        return piece == DONE or (wire.ends_at_once and wire.is_whole([piece]))


def is_continued(body: dict[str, Any]) -> bool:
    """Whether the provider holds the conversation: calls whose results are sent are known to it alone."""
    thread = body.get("thread")
    return bool(
        body.get("previous_response_id")
        or body.get("conversation")
        or (isinstance(thread, dict) and thread.get("previous_message_id"))
    )


class Tee:
    """A streamed answer as it passes: it is recorded before its last event is given on.

    over: it is recorded, as an answer or as a failure.
    """

    def __init__(
        self,
        request: ModelRequest,
        recording: calls.Stream,
        status: int,
        headers: list[tuple[str, str]],
    ) -> None:
        self.over = False
        self.recording = recording
        self._request = request
        self._status, self._headers = status, headers
        self._reader = Reader(content_type(dict(headers)))
        self._body: list[bytes] = []
        self._pieces: list[Any] = []
        self._overheard: Overheard = request.overheard
        self._overheard.open.append(self)

    def feed(self, chunk: bytes) -> None:
        """Keep decoded bytes, before they are given on."""
        if self.over:
            return
        self._body.append(chunk)
        try:
            self._take(self._reader.feed(chunk))
        except Exception as error:
            _log.exception("run %s: a stream is not recorded", self._request.run.run_id)
            self._failed(error)

    def _take(self, pieces: Iterable[Any]) -> None:
        for piece in pieces:
            error = piece.get("error") if isinstance(piece, dict) else None
            if error:
                self._failed(FailedStream(error))
                return
            if piece != DONE:
                self._pieces.append(piece)
                if self._overheard.changes and self._request.is_whole([piece]):
                    # Readers may stop here, and do what they were asked to.
                    self._overheard.hold(self._request.answer_of(self._pieces))
            if self._request.is_last(piece):
                self._done()
                return

    def end(self) -> None:
        """The body has ended. Raises UnfinishedStream where the answer had not."""
        self._take(() if self.over else self._reader.rest())
        if self.over:
            return
        if self._request.is_whole(self._pieces):
            self._done()
            return
        error = calls.UnfinishedStream()
        self._failed(error)
        raise error

    def failed(self, error: BaseException) -> None:
        """The connection broke, or the reader left: what is whole has been answered all the same."""
        if self.over:
            return
        if self._request.is_whole(self._pieces):
            self._done()
        else:
            self._failed(calls.StreamLeft() if isinstance(error, GeneratorExit) else error)

    def left(self) -> None:
        """Nobody reads on."""
        self.failed(GeneratorExit())

    def _done(self) -> None:
        self._close()
        self.recording.done(kept(self._status, self._headers, b"".join(self._body)))

    def _failed(self, error: BaseException) -> None:
        self._close()
        self.recording.failed(error)

    def _close(self) -> None:
        if not self.over:
            self.over = True
            self._overheard.open.remove(self)
