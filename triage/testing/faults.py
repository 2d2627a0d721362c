"""What can go wrong with a call, as values: `faults.rate_limit(retry_after=2)`, `faults.hang()`, …

A fault says what happens to one call of a tool, of a client or of a whole agent; a `FaultPlan` says to
which. Where `after=True` is taken, the call happens and its answer is lost: what nobody can tell from a
call that never happened.
"""

# ruff: noqa: ARG002, D102 - what each method is for, and given, is said by `Fault`

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from triage._options import check_count, check_number, misuse

from ._errors import Answer, check_client

if TYPE_CHECKING:
    from ._site import Site

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

MALFORMED = '{"result": [{"id": 1, "name": "fir'


class Fault:
    """What happens to one call. The functions of this module make them.

    Compared by their arguments, and printed as they are written.
    """

    def wait(self) -> float:
        """Seconds that pass before anything else; infinite: for ever."""
        return 0.0

    def lets_run(self, site: Site) -> bool:
        """Whether the call itself is made."""
        return False

    def end(self, site: Site, answer: Any) -> Any:
        """What the caller gets; raises what the caller is to see. answer: None if no call was made."""
        raise NotImplementedError

    def __repr__(self) -> str:
        given = [
            f"{field.name}={value!r}"
            for field in fields(self)  # type: ignore[arg-type] # all of them are dataclasses
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"faults.{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False, kw_only=True)
class _Raising(Fault):
    """A fault that ends in an error."""

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
        """The error, as this client raises it."""
        raise NotImplementedError


def _answered(answer: Answer, client: str | None) -> BaseException:
    from ._errors import status_error

    return status_error(answer, client)


@dataclass(frozen=True, repr=False)
class rate_limit(_Raising):  # noqa: N801 - faults are written like functions
    """429. retry_after: seconds, as the answer's `Retry-After` says; None: it says nothing.

    client: whose class of error it is; None: that of the wrapped client, or one of the same shape.
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
        return _answered(answer, client)


@dataclass(frozen=True, repr=False)
class timeout(_Raising):  # noqa: N801 - faults are written like functions
    """No answer in time. after=True: the call took effect all the same."""

    def error(self, client: str | None) -> BaseException:
        from ._errors import timeout_error

        return timeout_error(client)


@dataclass(frozen=True, repr=False)
class server_error(_Raising):  # noqa: N801 - faults are written like functions
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
        return _answered(Answer(self.status, text, "", "server_error"), client)


@dataclass(frozen=True, repr=False)
class connection_refused(_Raising):  # noqa: N801 - faults are written like functions
    """Nobody listens at the other side: the call was never sent."""

    def error(self, client: str | None) -> BaseException:
        from ._errors import refused_error

        return refused_error(client)


@dataclass(frozen=True, repr=False)
class auth(_Raising):  # noqa: N801 - faults are written like functions
    """401: the key is wrong."""

    def error(self, client: str | None) -> BaseException:
        text = "Incorrect API key provided."
        return _answered(Answer(401, text, "invalid_api_key", "authentication_error"), client)


@dataclass(frozen=True, repr=False)
class context_length(_Raising):  # noqa: N801 - faults are written like functions
    """400: the prompt is longer than the model takes."""

    def error(self, client: str | None) -> BaseException:
        text = (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in "
            "9001 tokens. Please reduce the length of the messages."
        )
        kind = "invalid_request_error"
        return _answered(Answer(400, text, "context_length_exceeded", kind), client)


@dataclass(frozen=True, repr=False)
class raises(Fault):  # noqa: N801 - faults are written like functions
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

    def __repr__(self) -> str:
        return f"faults.raises({self.error!r}{', after=True' if self.after else ''})"


@dataclass(frozen=True, repr=False)
class hang(Fault):  # noqa: N801 - faults are written like functions
    """The call never comes back. What ends it: the tool's `timeout`, or `Limits(attempt_seconds=…)`."""

    def wait(self) -> float:
        return math.inf

    def end(self, site: Site, answer: Any) -> Any:
        raise AssertionError(f"{site.name}: nothing comes after a call that never comes back")


@dataclass(frozen=True, repr=False)
class slow(Fault):  # noqa: N801 - faults are written like functions
    """The call takes this many seconds, and then happens as ever. seconds: above 0."""

    seconds: float

    def __post_init__(self) -> None:
        check_number("faults.slow(seconds)", self.seconds, "seconds", above=True)

    def wait(self) -> float:
        return self.seconds

    def lets_run(self, site: Site) -> bool:
        return True

    def end(self, site: Site, answer: Any) -> Any:
        return answer

    def __repr__(self) -> str:
        return f"faults.slow({self.seconds!r})"


@dataclass(frozen=True, repr=False)
class malformed_json(Fault):  # noqa: N801 - faults are written like functions
    """The call happens, and its answer is no JSON.

    A text, list or mapping becomes `text`. In an object of a client, the fields that hold what a
    model said (`content`, `text`, `arguments`) do; where there are none, the whole answer.
    """

    text: str = MALFORMED

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise misuse("faults.malformed_json(text)", self.text, "text")

    def lets_run(self, site: Site) -> bool:
        return True

    def end(self, site: Site, answer: Any) -> Any:
        from ._answers import with_text

        return with_text(answer, self.text) if site.kind == "client" else self.text


@dataclass(frozen=True, repr=False)
class wrong_tool(Fault):  # noqa: N801 - faults are written like functions
    """A tool that does not exist is called.

    In the answer of a client, the calls it asks for get this name; where it asks for none, and for
    tools and agents, the error is raised that a caller of an unknown tool gets, and nothing runs.
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
        from triage import not_attempted

        from ._answers import with_tool
        from ._errors import UnknownToolError

        if site.kind == "client":
            changed = with_tool(answer, self.name)
            if changed is not None:
                return changed
        error = UnknownToolError(f"Unknown tool: {self.name}")
        if site.kind == "agent":
            site.record(self.name, error=str(error), exception_type=type(error).__name__)
        raise not_attempted(error)

    def __repr__(self) -> str:
        return f"faults.wrong_tool({self.name!r})"


@dataclass(frozen=True, repr=False)
class loop(Fault):  # noqa: N801 - faults are written like functions
    """Nothing moves. times: from 2, 4 by default.

    A tool or client gives the answer of this call to the next ones as well, `times` in all, and they do
    not run. An agent records the same step `times` times and raises.
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

    def __repr__(self) -> str:
        return f"faults.loop({self.times!r})"


@dataclass(frozen=True, repr=False)
class crash(Fault):  # noqa: N801 - faults are written like functions
    """The process dies here; a durable store is left as it is at this moment.

    Raises `Crash`, which no `except Exception` catches, and keeps what the run records from here on
    from its store, its lease included: `await agent.recover(run_id)` finds what a killed process
    leaves. after=True: the call happens first, and its end is not recorded. exit_code: 1 to 255, ends
    the process itself at once, for programs that run as a child; None raises.
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
        from ._crash import die

        die(site.run, site.name, self.exit_code)


def as_fault(field: str, value: object) -> Fault:
    """A fault, also from an exception. UsageError for anything else, naming `field`."""
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
