"""No exception, however hostile, breaks or slows its reader."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from core.raised import APIError, response
from triage import Abort, Agent, FailurePolicy, TriageAbortError
from triage.core import hint
from triage.core.capture import capture


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(name)


class Liar(Exception):
    status_code = property(lambda self: 1 / 0)
    headers = property(lambda self: (_ for _ in ()).throw(SystemExit))
    body: ClassVar[Any] = {"a": type("Bad", (str,), {"__str__": lambda self: 1 / 0})("x")}

    @property  # type: ignore[misc] # lying about the class is the test
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Endless(dict[str, Any]):
    def items(self) -> Any:
        while True:
            yield "a", self


def test_hostile_exceptions_are_captured_all_the_same() -> None:
    assert capture(Hostile()).message == "Hostile"
    assert capture(Liar("x")).type_name == "Liar"
    assert capture(APIError(body=Endless())).body is not None
    huge = capture(APIError(status_code=10**5_000, retry_after=10**5_000))
    assert (huge.status_code, huge.retry_after_s) == (None, None)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=30),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
    st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=5), max_size=3),
    st.sampled_from([object(), Hostile, lambda: 1 / 0, Endless(), response(headers=Endless())]),
)
ATTRIBUTES = """
    status_code status code response headers body data details content error errors type sqlstate
    retry_after trailing_metadata smtp_code errno __notes__ exceptions message reason resp
"""
attributes = st.sampled_from(sorted(set(ATTRIBUTES.split())))


@given(st.dictionaries(attributes, values, max_size=6), st.text(max_size=50))
def test_no_attribute_makes_capture_raise(found: dict[str, Any], message: str) -> None:
    error = type("ValidationHTTPError", (Exception,), {})(message)
    for name, value in found.items():
        setattr(error, name, value)
    info = capture(error)
    assert isinstance(info.message, str)
    assert info.status_code is None or 100 <= info.status_code <= 599
    assert info.retry_after_s is None or 0 <= info.retry_after_s < float("inf")


# --- code that does not come back ------------------------------------------------------------


class Waits:
    """Lets whatever reads it wait until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def wait(self, *_: Any) -> Any:
        self.over.wait(60)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    monkeypatch.setattr(sys.modules["triage.core.capture"], "READING_S", 0.05)
    found = Waits()
    yield found
    found.over.set()


def slow(waits: Waits, name: str) -> type[Exception]:
    """A new class whose attribute or method of this name does not come back."""
    member = waits.wait if name.startswith("__") else property(waits.wait)
    found: type[Exception] = type("SlowError", (Exception,), {name: member, "code": 7})
    return found


NAMES = ["status_code", "response", "headers", "retry_after", "anything", "__str__", "__getattr__"]


@pytest.mark.parametrize("name", NAMES)
def test_an_attribute_that_blocks_is_left_out(waits: Waits, name: str) -> None:
    outer = RuntimeError("the tool failed")
    outer.__cause__ = slow(waits, name)("out of order")
    info = capture(outer)
    assert info.message == "the tool failed"
    assert [inner.message for inner in info.related] == ["out of order"]
    assert info.related[0].mro[0].endswith(".SlowError")


def test_a_value_that_blocks_is_left_out(waits: Waits) -> None:
    mapping = type("Slow", (dict,), {"get": waits.wait, "items": waits.wait})
    nested = SimpleNamespace(status_code=429, headers=mapping())
    for error in (APIError("x", headers=mapping()), APIError("x", response=nested)):
        assert capture(hint(error, cause="c")).hint == {"cause": "c"}
    assert capture(KeyError(type("Key", (), {"__repr__": waits.wait})())).message == "KeyError"


def test_a_class_that_was_slow_is_not_waited_for_again(waits: Waits) -> None:
    kind = slow(waits, "status_code")
    capture(kind("first"))
    waits.over.set()  # it would answer now
    assert capture(kind("second")).status_code is None


async def test_the_event_loop_goes_on_beside_an_exception_that_blocks(
    waits: Waits, anyio_backend: str
) -> None:
    async def fails(task: str) -> None:
        raise slow(waits, "status_code")("out of order")

    with pytest.raises(TriageAbortError) as caught:
        await Agent(fails, FailurePolicy(default=Abort())).run("x")
    context = caught.value.context
    assert context is not None
    assert context.error is not None
    assert context.error.message == "out of order"


def test_slots_are_read() -> None:
    class Slotted(Exception):
        __slots__ = ("status_code",)
        status_code: int

    error = Slotted("x")
    error.status_code = 503
    assert capture(error).status_code == 503


class Unhashable(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Unnamed(Exception, metaclass=Unhashable):
    pass


class Yes(Exception):
    """Answers everything, with itself."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self


def test_metaclasses_and_mocks_are_read_like_anything_else() -> None:
    assert capture(Unnamed("x")).type_name == "Unnamed"
    assert capture(Yes("x")).type_name == "Yes"
    mocked = capture(APIError("x", response=MagicMock(), body=MagicMock()))
    assert (mocked.status_code, mocked.retry_after_s) == (None, None)


@table("depth", [10_000])
def test_deep_and_wide_ones_are_cut(depth: int) -> None:
    chain: Exception = ValueError("0")
    for number in range(depth):
        wrapped = RuntimeError(str(number))
        wrapped.__context__ = chain
        chain = wrapped
    assert len(list(capture(chain).walk())) <= 13
    wide = ExceptionGroup("g", [slow_group_member(number) for number in range(depth)])
    assert len(list(capture(wide).walk())) <= 25


def slow_group_member(number: int) -> Exception:
    return Yes(str(number)) if number % 2 else ValueError(str(number))
