"""No guard raises, whatever it is given: it says less."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tables import table

from triage import (
    Diagnosis,
    FailureType,
    RulesClassifier,
    Step,
    Trajectory,
    diagnose,
)
from triage.core import (
    AttemptFailed,
    LoggingObserver,
    Redactor,
    RunFinished,
    RunStarted,
    dumps,
    redact,
)
from triage.core.capture import capture
from triage.core.json_values import plain
from triage.core.observers import notify
from triage.core.quoting import as_json, call_text, json_text, one_line, quote, said_by
from triage.core.secret_shapes import HIDDEN
from triage.core.wire import redacted

DEPTHS = (1, 40, 64, 100, 500, 1_000, 5_000)


def deep(depth: int, wrap: Callable[[Any], Any], leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


@dataclass
class Node:
    below: Any


class Words(str):
    """A text that answers for itself."""

    __slots__ = ()

    def _no(self, *_: Any, **__: Any) -> Any:
        raise ValueError("no")

    lower = encode = isidentifier = isprintable = split = strip = _no
    __str__ = __repr__ = __len__ = __iter__ = __getitem__ = __hash__ = _no


class Named(dict[Any, Any]):
    def _no(self, *_: Any) -> Any:
        raise ValueError("no")

    get = items = values = keys = __iter__ = __len__ = __getitem__ = __repr__ = _no


class Items(list[Any]):
    def _no(self, *_: Any) -> Any:
        raise ValueError("no")

    __iter__ = __len__ = __getitem__ = __repr__ = _no


class Liar:
    @property  # type: ignore[misc] # lying about the class is the test
    def __class__(self) -> Any:
        raise ValueError("no")

    def __repr__(self) -> str:
        raise ValueError("no")

    def model_dump(self, **_: Any) -> Any:
        raise ValueError("no")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    def __hash__(self) -> int:
        raise ValueError("no")


def _cycle() -> Any:
    found: list[Any] = [{}]
    found[0]["again"] = found
    return found


WRAPS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "dataclass": Node,
    "set of tuples": lambda inner: ({"a"}, inner),
}

HOSTILE: dict[str, Any] = {
    "text that answers for itself": Words("password=hunter22 and so on"),
    "a dict that does not": Named(password=1),
    "a list that does not": Items([1]),
    "an object that lies": Liar(),
    "one inside": {"password": [Liar(), Words("x")], "type": ["string", "null"], 3: Words("y")},
    "types that are no text": {"type": {"a": 1}},
    "a name that is no text": {"name": ["password"], "key": {}, "value": 1},
    "an endless number": {"n": 10**5_000},
    "no number": [float("nan"), float("inf")],
    "half a letter": "\ud800" * 40,
    "a cycle": _cycle(),
    "bytes": b"\xff\x00" * 40,
    "a class": Liar,
    "a live generator": (one for one in (1, 2)),
    "deep JSON": "[" * 100_000,
    "deep JSON that ends": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "deep JSON in a sentence": "it said " + "[" * 3_000 + "]" * 3_000,
    "base64 of two escapes": "aGVsbG8gd29ybGQgYWdhaW4\\\\nYW5kIGFnYWlu",
    **{
        f"{name} of {depth} levels": deep(depth, wrap)
        for name, wrap in WRAPS.items()
        for depth in DEPTHS
    },
}


def _error(value: Any) -> Exception:
    error = ValueError(value)
    error.body = error.details = error.response = error.code = value  # type: ignore[attr-defined]
    error.add_note("see")
    return error


def _steps(value: Any) -> list[Step]:
    step = Step(
        action="tool",
        tool_called="look",
        tool_input={"x": value},
        tool_output=value,
        llm_output=value if type(value) is str else None,
        metadata={"m": value},
    )
    return [step, step, Step(action="tool", tool_called="look", tool_output=value, error="failed")]


def _ruled(value: Any) -> Diagnosis:
    trajectory = Trajectory(tuple(_steps(value)), error=capture(_error(value)), task=value)
    return RulesClassifier().classify(trajectory, value)


def _observed(value: Any) -> None:
    def fails(event: Any) -> None:
        raise ValueError(value)

    found = Diagnosis(FailureType.UNKNOWN)
    for event in (
        RunStarted("r", 0, 0.0, "a", task=value),
        AttemptFailed("r", 0, 0.0, 1, capture(_error(value)), found),
    ):
        notify((fails, LoggingObserver(level=logging.ERROR)), event, [])


GUARDS: dict[str, Callable[[Any], Any]] = {
    "redact": redact,
    "Redactor.value": Redactor(environment=False).value,
    "Redactor.value of its own": Redactor(fields=("a",), values=("secret",)).value,
    "Redactor.fields_of": Redactor(environment=False).fields_of,
    "plain": plain,
    "quote": quote,
    "as_json": as_json,
    "json_text": lambda value: json_text(plain(value)),
    "call_text": lambda value: call_text(_steps(value)[0]),
    "capture": lambda value: capture(_error(value)),
    "diagnose": lambda value: diagnose(_error(value), _steps(value), task=value),
    "diagnose without an error": lambda value: diagnose(None, _steps(value), task=value),
    "RulesClassifier": _ruled,
    "observers": _observed,
    "events": lambda value: dumps(
        redacted(RunFinished("r", 0, 0.0, "done", result=value), Redactor())
    ),
}
OF_TEXTS: dict[str, Callable[[str], Any]] = {
    "Redactor.text": Redactor(environment=False).text,
    "one_line": one_line,
    "said_by": said_by,
}


@table("name", GUARDS)
def test_no_guard_raises(name: str) -> None:
    failed = {}
    for what, value in HOSTILE.items():
        try:
            GUARDS[name](value)
        except BaseException as error:
            failed[what] = repr(type(error))
    assert not failed, name


@table("name", OF_TEXTS)
def test_no_guard_of_texts_raises(name: str) -> None:
    for value in HOSTILE.values():
        if type(value) is str:
            OF_TEXTS[name](value)


def test_a_guard_that_fails_hides_the_value_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Exception):
        pass

    class Key(str):
        __slots__ = ()

        def __hash__(self) -> int:
            if self.armed:
                raise Broken("hunter22")
            return 1

        armed = False

    value = {Key("a"): "hunter22", "password": "hunter22"}
    Key.armed = True
    for _ in range(3):
        assert Redactor(environment=False).value(value) == (HIDDEN, True)
        assert Redactor(environment=False).fields_of(value, "task") == ("task",)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "Broken" in caplog.text
    assert "hunter22" not in caplog.text
