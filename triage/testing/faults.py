"""Faults as values: `faults.rate_limit(retry_after=2)`, `faults.hang()`, …

A fault is what happens to one call of a tool, a client or a whole agent; a `FaultPlan` chooses the call.
With `after=True` the call happens but its answer is lost, which its caller cannot tell from a call that
never happened.
"""

from __future__ import annotations

import copy
import errno
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, NoReturn, cast

from triage.core.capture import not_attempted
from triage.core.errors import UsageError, check_count, check_number, check_word, misuse
from triage.core.steps import Step
from triage.engine.run import Recorder

__all__ = [
    "Fault",
    "auth",
    "connection_refused",
    "context_length",
    "crash",
    "hang",
    "loop",
    "malformed_json",
    "raises",
    "rate_limit",
    "server_error",
    "slow",
    "timeout",
    "wrong_tool",
]


CLIENTS = ("openai", "anthropic")
"""Clients whose own error classes are raised if installed, else classes of the same shape."""


class APIError(Exception):
    """A client's error; the base of the others here."""


class APIStatusError(APIError):
    """The service answered with an error. status_code, headers, body: those of the answer."""

    def __init__(
        self, message: str, status_code: int, headers: Mapping[str, str], body: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.headers = dict(headers)
        self.body = body
        self.request_id = "req_test"
        self.response = SimpleNamespace(status_code=status_code, headers=self.headers)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.status_code, self.headers, self.body)


class BadRequestError(APIStatusError):
    """400."""


class AuthenticationError(APIStatusError):
    """401."""


class RateLimitError(APIStatusError):
    """429."""


class InternalServerError(APIStatusError):
    """500 and above."""


class APITimeoutError(APIError, TimeoutError):
    """No answer came in time."""


class UnknownToolError(LookupError):
    """A tool that does not exist was called."""


class Answer(NamedTuple):
    """An error answer. code, kind: the service's names for the error, empty for none."""

    status: int
    message: str
    code: str = ""
    kind: str = ""
    headers: Mapping[str, str] = {}


def status_error(answer: Answer, client: str | None) -> Exception:
    """Make the error a client raises for an answer. client: None for a generic one."""
    text = f"Error code: {answer.status} - {answer.message}"
    detail = {"message": answer.message, "type": answer.kind, "code": answer.code or None}
    by_status = {400: "BadRequestError", 401: "AuthenticationError", 429: "RateLimitError"}
    named = by_status.get(answer.status, "APIStatusError")
    if answer.status >= 500:
        named = "InternalServerError"
    if client is None:
        kinds = {kind.__name__: kind for kind in APIStatusError.__subclasses__()}
        kind = kinds.get(named, APIStatusError)
        return kind(text, answer.status, answer.headers, {"error": detail})
    module = _real(client)
    http = _http(client)
    request = http.Request("POST", f"https://{client}.invalid/v1")
    response = http.Response(answer.status, headers=dict(answer.headers), request=request)
    # One client takes the error out of its envelope, the other hands over the whole.
    body = detail if client == "openai" else {"type": "error", "error": detail}
    real: Exception = getattr(module, named)(text, response=response, body=body)
    return real


def timeout_error(client: str | None) -> Exception:
    """Make the error a client raises when no answer comes in time."""
    if client is None:
        return APITimeoutError("Request timed out.")
    request = _http(client).Request("POST", f"https://{client}.invalid/v1")
    real: Exception = _real(client).APITimeoutError(request=request)
    real.__cause__ = _http(client).ReadTimeout("The read operation timed out", request=request)
    return real


def refused_error(client: str | None) -> Exception:
    """Make the error a client raises when its connection is refused."""
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    if client is None:
        return refused
    http = _http(client)
    request = http.Request("POST", f"https://{client}.invalid/v1")
    real: Exception = _real(client).APIConnectionError(request=request)
    between = http.ConnectError("[Errno 111] Connection refused", request=request)
    between.__cause__ = refused
    real.__cause__ = between
    return real


def check_client(field: str, client: object) -> None:
    """Raise UsageError for a client that is unknown or not installed."""
    if client is None:
        return
    check_word(field, client, CLIENTS)
    _real(str(client))


def _real(client: str) -> Any:
    try:
        return import_module(client)
    except ImportError:
        raise UsageError(
            f"client={client!r} makes the errors of the package {client}, which is not installed; "
            f"install it (pip install {client}), or leave client away"
        ) from None


def _http(client: str) -> Any:
    """Return the HTTP library that this release of the client uses."""
    home = import_module(f"{client}._exceptions")
    return getattr(home, "httpx2", None) or import_module("httpx")


MALFORMED = '{"result": [{"id": 1, "name": "fir'


class Site(NamedTuple):
    """Where a fault happens.

    run: the current attempt, None outside of one. client: the package whose errors to raise, None for
    generic ones. timeout: the tool's, in seconds, or None. repeat: gives this answer to as many of the
    next calls as it is told.
    """

    name: str
    kind: Literal["tool", "client", "agent"]
    run: Recorder | None
    client: str | None
    timeout: float | None
    repeat: Callable[[Any, int], None]

    def record(self, tool: str, **fields: Any) -> None:
        """Record a step that an agent would have recorded."""
        if self.run is not None:
            self.run.record_step(Step(action="call", tool_called=tool, **fields))


class Fault:
    """What happens to one call; made by the functions of this module.

    Faults compare by their arguments and print as they are written.
    """

    def wait(self) -> float:
        """Seconds that pass first; infinite for ever."""
        return 0.0

    def lets_run(self, site: Site) -> bool:
        """Whether the call itself runs."""
        return False

    def end(self, site: Site, answer: Any) -> Any:
        """Return or raise what the caller gets. answer: the call's, None if it did not run."""
        raise NotImplementedError

    def __repr__(self) -> str:
        given = [
            repr(value) if field.default is MISSING else f"{field.name}={value!r}"
            for field in fields(self)  # type: ignore[arg-type] # all of them are dataclasses
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"faults.{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False, kw_only=True)
class _Raising(Fault):
    """A fault that raises an error."""

    after: bool = False
    client: Literal["openai", "anthropic"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.after, bool):
            raise misuse(f"faults.{type(self).__name__}(after=…)", self.after, "True or False")
        check_client(f"faults.{type(self).__name__}(client=…)", self.client)

    def lets_run(self, site: Site) -> bool:
        return self.after

    def end(self, site: Site, answer: Any) -> Any:
        raise self.error(self.client or site.client)

    def error(self, client: str | None) -> BaseException:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class rate_limit(_Raising):
    """429. retry_after: seconds in the answer's `Retry-After` header; None sends no such header.

    client: the package whose error to raise; None for the wrapped client's, or a generic one.
    """

    retry_after: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retry_after is not None:
            remedy = "None for no Retry-After"
            check_number(
                "faults.rate_limit(retry_after=…)", self.retry_after, "seconds", remedy=remedy
            )

    def error(self, client: str | None) -> BaseException:
        said = "" if self.retry_after is None else f" Try again in {self.retry_after:g} s."
        headers = {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}
        text = f"Rate limit reached for requests.{said}"
        answer = Answer(429, text, "rate_limit_exceeded", "rate_limit_error", headers)
        return status_error(answer, client)


@dataclass(frozen=True, repr=False)
class timeout(_Raising):
    """No answer in time. after=True: the call takes effect nevertheless."""

    def error(self, client: str | None) -> BaseException:
        return timeout_error(client)


@dataclass(frozen=True, repr=False)
class server_error(_Raising):
    """An error of the service. status: 500 to 599, 500 by default."""

    status: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(
            "faults.server_error(status)", self.status, 500, "errors of a service are 500 to 599"
        )
        if self.status > 599:
            raise misuse("faults.server_error(status)", self.status, "a status from 500 to 599")

    def error(self, client: str | None) -> BaseException:
        text = {503: "Service unavailable.", 529: "Overloaded."}.get(self.status, "Internal error.")
        return status_error(Answer(self.status, text, "", "server_error"), client)


@dataclass(frozen=True, repr=False)
class connection_refused(_Raising):
    """The connection is refused, so the call is never sent."""

    def error(self, client: str | None) -> BaseException:
        return refused_error(client)


@dataclass(frozen=True, repr=False)
class auth(_Raising):
    """401: the key is wrong."""

    def error(self, client: str | None) -> BaseException:
        text = "Incorrect API key provided."
        return status_error(Answer(401, text, "invalid_api_key", "authentication_error"), client)


@dataclass(frozen=True, repr=False)
class context_length(_Raising):
    """400: the prompt is longer than the model accepts."""

    def error(self, client: str | None) -> BaseException:
        text = (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in "
            "9001 tokens. Please reduce the length of the messages."
        )
        kind = "invalid_request_error"
        return status_error(Answer(400, text, "context_length_exceeded", kind), client)


@dataclass(frozen=True, repr=False)
class raises(Fault):
    """An error of your own: an exception, or a function that makes one each time.

    after=True: the call happens first. An exception given to a plan as it is means this.
    """

    error: BaseException | Callable[[], BaseException]
    after: bool = False

    def __post_init__(self) -> None:
        made: object = self.error
        if not isinstance(made, BaseException) and not callable(made):
            raise misuse("faults.raises(error)", made, "an exception, or a function that makes one")

    def lets_run(self, site: Site) -> bool:
        return self.after

    def end(self, site: Site, answer: Any) -> Any:
        error = self.error
        if isinstance(error, BaseException):
            raise error.with_traceback(None)
        raise error()


@dataclass(frozen=True, repr=False)
class hang(Fault):
    """The call never returns; the tool's `timeout` or `Limits(attempt_seconds=…)` ends it."""

    def wait(self) -> float:
        return math.inf

    def end(self, site: Site, answer: Any) -> Any:
        raise AssertionError(f"{site.name}: nothing comes after a call that never comes back")


@dataclass(frozen=True, repr=False)
class slow(Fault):
    """The call happens after a delay. seconds: above 0."""

    seconds: float

    def __post_init__(self) -> None:
        check_number("faults.slow(seconds)", self.seconds, "seconds", above=True)

    def wait(self) -> float:
        return self.seconds

    def lets_run(self, site: Site) -> bool:
        return True

    def end(self, site: Site, answer: Any) -> Any:
        return answer


@dataclass(frozen=True, repr=False)
class malformed_json(Fault):
    """The call happens, but its answer is not valid JSON.

    A text, list or mapping is replaced by `text`. In a client's object, the fields with the model's
    output (`content`, `text`, `arguments`) are; without any such field, the whole answer is.
    """

    text: str = MALFORMED

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise misuse("faults.malformed_json(text)", self.text, "text")

    def lets_run(self, site: Site) -> bool:
        return True

    def end(self, site: Site, answer: Any) -> Any:
        return with_text(answer, self.text) if site.kind == "client" else self.text


@dataclass(frozen=True, repr=False)
class wrong_tool(Fault):
    """A tool that does not exist is called.

    In a client's answer, the calls that the model asks for get this name. If it asks for none, and for
    tools and agents, nothing runs and the error of an unknown tool is raised.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise misuse(
                "faults.wrong_tool(name)", self.name, "the name of a tool that is not there"
            )

    def lets_run(self, site: Site) -> bool:
        return site.kind == "client"

    def end(self, site: Site, answer: Any) -> Any:
        if site.kind == "client":
            changed = with_tool(answer, self.name)
            if changed is not None:
                return changed
        error = UnknownToolError(f"Unknown tool: {self.name}")
        if site.kind == "agent":
            site.record(self.name, error=str(error), exception_type=type(error).__name__)
        raise not_attempted(error)


@dataclass(frozen=True, repr=False)
class loop(Fault):
    """No progress. times: from 2, 4 by default.

    A tool or client gives the answer of this call `times` in all, the later ones without running. An
    agent records the same step `times` times and raises.
    """

    times: int = 4

    def __post_init__(self) -> None:
        check_count("faults.loop(times)", self.times, 2, "one call is no loop")

    def lets_run(self, site: Site) -> bool:
        return site.kind != "agent"

    def end(self, site: Site, answer: Any) -> Any:
        if site.kind != "agent":
            site.repeat(answer, self.times - 1)
            return answer
        for _ in range(self.times):
            site.record("search", tool_input={"query": "the same"}, tool_output="nothing found")
        raise RuntimeError(f"no answer after {self.times} turns")


@dataclass(frozen=True, repr=False)
class crash(Fault):
    """The process dies here, leaving a durable store as it is at this moment.

    Raises `Crash`, which no `except Exception` catches, and cuts the run off from its store, lease
    included, so that `await agent.recover(run_id)` finds what a killed process leaves behind.
    after=True: the call happens first, but its end is not recorded. exit_code: 1 to 255 really ends the
    process at once, for programs that run as a child; None raises.
    """

    after: bool = False
    exit_code: int | None = None

    def __post_init__(self) -> None:
        if self.exit_code is not None:
            field = "faults.crash(exit_code=…)"
            check_count(field, self.exit_code, 1, "None raises Crash instead")
            if self.exit_code > 255:
                raise misuse(field, self.exit_code, "a whole number from 1 to 255")

    def lets_run(self, site: Site) -> bool:
        return self.after

    def end(self, site: Site, answer: Any) -> Any:
        die(site.run, site.name, self.exit_code)


def as_fault(field: str, value: object) -> Fault:
    """Return a fault, made from an exception if need be. Raises UsageError naming `field`."""
    if isinstance(value, Fault):
        return value
    if isinstance(value, BaseException):
        return raises(value)
    remedy = ""
    if isinstance(value, type) and issubclass(value, Fault):
        remedy = f"write faults.{value.__name__}(…)"
    elif isinstance(value, type) and issubclass(value, BaseException):
        remedy = f"write {value.__name__}('…')"
    raise misuse(field, value, "a fault of triage.testing.faults, or an exception", remedy)


_SAID = ("content", "text", "arguments", "output_text")
"""Fields with a model's output."""
_MOST = 2_000
"""Parts of an answer that are searched, at most."""


def with_text(answer: Any, text: str) -> Any:
    """Copy an answer with all output of the model replaced by a text; the text if there is none."""
    changed = _changed(answer, lambda part: _put(part, _SAID, text))
    return text if changed is None else changed


def with_tool(answer: Any, name: str) -> Any:
    """Copy an answer with the name of every requested call replaced; None if it requests none."""
    return _changed(answer, lambda part: _asks(part) and _put(part, ("name",), name))


def _changed(answer: Any, change: Callable[[Any], bool]) -> Any:
    if isinstance(answer, str | bytes) or answer is None:
        return None
    try:
        copied = copy.deepcopy(answer)
    except Exception:
        return None
    # A list, so that all parts are changed and not just the first.
    found = [change(part) for part in _walk(copied)]
    return copied if any(found) else None


def _walk(answer: Any) -> Iterator[Any]:
    """Walk an answer and everything in it, each part once."""
    waiting, seen = [answer], set[int]()
    while waiting and len(seen) < _MOST:
        part = waiting.pop()
        if id(part) in seen or part is None or isinstance(part, str | bytes | int | float | type):
            continue
        seen.add(id(part))
        yield part
        waiting += _fields_of(part).values()


def _fields_of(part: Any) -> dict[Any, Any]:
    if isinstance(part, dict):
        return part
    if isinstance(part, list | tuple):
        return dict(enumerate(cast("list[Any]", part)))
    return cast("dict[Any, Any]", getattr(part, "__dict__", {}))


def _put(part: Any, names: tuple[str, ...], value: str) -> bool:
    """Replace the texts under these names; return whether there were any."""
    held = _fields_of(part)
    found = [name for name in names if isinstance(held.get(name), str)]
    for name in found:
        held[name] = value
    return bool(found)


def _asks(part: Any) -> bool:
    """Whether a part of an answer is a tool call: a name with arguments or input."""
    held = _fields_of(part)
    return "name" in held and ("arguments" in held or "input" in held)


class Crash(BaseException):
    """A fault killed the process here. A BaseException, so that no agent catches it."""


class _Unreachable:
    """The store of a dead process: it accepts everything and keeps nothing."""

    def submit(
        self,
        run_id: str,
        events: Sequence[Any],
        *,
        done: Callable[[BaseException | None], None],
        **position: Any,
    ) -> None:
        """Report success to the dead process's writer."""
        done(None)

    async def renew(self, run_id: str, **lease: Any) -> None:
        """Renew nothing: the lease expires."""

    async def release(self, run_id: str, **lease: Any) -> None:
        """A dead process releases nothing."""


def die(run: Recorder | None, name: str, exit_code: int | None) -> NoReturn:
    """End the process with a code; for None, cut the run and its parents off their stores and raise."""
    if exit_code is not None:
        os._exit(exit_code)
    while run is not None:
        keeper = run.session.keeper
        if keeper is not None:
            keeper.store = _Unreachable()  # type: ignore[assignment] # of a store, what a writer calls
            keeper.over = True
        run = run.session.parent
    raise Crash(f"the process died in {name}")
