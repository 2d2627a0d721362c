"""Texts, patterns and functions as constraints of an output."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage.classifiers import check_output as check
from triage.classifiers.detectors.tool_calls import MAX_SEARCHED


def short(text: str) -> bool:
    return len(text) < 40


def polite(text: str) -> str | None:
    return None if "please" in text else "say\n'please', sk-" + "a" * 30


def broken(text: str) -> bool:
    raise KeyError(text)


def odd(text: str) -> Any:
    return 7


CARD = re.compile(r"\b\d{4}-\d{4}\b")


@table(
    ("constraints", "output", "text"),
    [
        ((), "anything", None),
        (("internal only",), "nothing here", None),
        (("internal only",), "it is INTERNAL Only", "contains 'internal only'"),
        (("Straße", "internal"), "INTERNAL, STRASSE", "contains 'Straße'"),
        (("café",), "cafe\u0301", "contains 'café'"),
        ((CARD,), "card 1234-5678", r"matches '\\b\\d{4}-\\d{4}\\b'"),
        ((CARD,), "card 1234 5678", None),
        ((CARD,), {"rows": [{"card": "1234-5678"}]}, r"matches '\\b\\d{4}-\\d{4}\\b'"),
        (("4711",), {"rows": [{"card": 4711}]}, "contains '4711'"),
        (("secret",), {"Secret": None}, "contains 'secret'"),
        ((short,), "short", None),
        ((short,), "x" * 40, "is refused by short: 'short answered False'"),
        ((short,), {"a": ["x" * 40]}, "is refused by short: 'short answered False'"),
        ((polite,), "please", None),
        ((polite,), "no", "is refused by polite: \"say 'please', [redacted]\""),
        ((odd,), "no", "is refused by odd: 'odd answered with int, not with True"),
        (("x", CARD, short), "x 1234-5678", "contains 'x'"),
        ((re.compile(b"x"),), "x", None),
        (("None", "true"), {"a": None}, None),
    ],
)
def test_the_first_constraint_that_is_broken_is_named(
    constraints: Any, output: Any, text: str | None
) -> None:
    found, failed = check(constraints, output)
    assert failed == ()
    if text is None:
        assert found is None
    else:
        assert found is not None
        assert found.text.startswith(text)


def test_a_function_that_raises_breaks_nothing_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "triage"):
        found, failed = check((broken, "secret"), "a secret")
    assert found is not None
    assert failed == ("broken raised KeyError instead of answering",)
    assert "the constraint broken failed" in caplog.text
    assert check((broken,), "a secret").broken is None


def test_a_long_output_is_searched_in_whole_for_texts_and_in_part_by_functions() -> None:
    long = "." * MAX_SEARCHED + "secret"
    sizes: list[int] = []

    def note(text: str) -> bool:
        sizes.append(len(text))
        return True

    assert check(("secret",), long).broken is not None
    assert check((re.compile("secret"), note), long).broken is None
    assert sizes == [MAX_SEARCHED]


def test_the_time_grows_with_the_output_and_no_faster() -> None:
    started = time.process_time()
    check(("ab" * 50, CARD, short), "ab" * 500_000)
    check(("x",), [["y"]] * 200_000)
    assert time.process_time() - started < 10


@given(st.text(min_size=1), st.text(), st.text())
def test_a_text_is_found_wherever_it_stands(wanted: str, before: str, after: str) -> None:
    # An accent after a letter is another letter: it is kept apart.
    assert check((wanted,), f"{before} {wanted} {after}").broken is not None or not wanted.isascii()
    assert check((wanted,), {"deep": [before, {"a": wanted}]}).broken is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_any_value_may_be_an_output(output: Any) -> None:
    assert check(("x", CARD, short), output) is not None
