"""A text without a mark is not searched: that changes nothing that becomes of any text."""

from __future__ import annotations

import pytest
from event_values import steady
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triage import _redact_names as names
from triage import _redact_shapes as shapes
from triage.redact import HIDDEN, Redactor

LONG = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9"
HEX = "0a" * 16

EXAMPLES = {
    "-----begin": f"-----BEGIN EC PRIVATE KEY-----\n{LONG}",
    ":aa": f"123456789:AA{LONG}abcdef",
    "aiza": f"AIza{LONG}{LONG}",
    "akia": "AKIAIOSFODNN7EXAMPLE",
    "asia": "ASIAIOSFODNN7EXAMPLE",
    "authoriz": "authorization: digest abc",
    "basic": "Basic abc4defgh",
    "bearer": "Bearer abc4defgh",
    "cook": "set-cookie: a=b",
    "dapi": f"dapi{HEX}",
    "dop_v1_": f"dop_v1_{HEX}",
    "eyj": f"eyJ{LONG}.{LONG}.{LONG}",
    "gh": f"ghs_{LONG}",
    "gocspx-": f"GOCSPX-{LONG}",
    "hooks.slack.com/": f"hooks.slack.com/services/{LONG}",
    "key": "api_key: abcd",
    "lsv2_": f"lsv2_pt_{LONG}",
    "pass": "passphrase=abcd",
    "pwd": "pwd=abcd",
    "secr": "secret: abcd",
    "sg.": f"SG.{LONG}.{LONG}",
    "shpat_": f"shpat_{HEX}",
    "sig": "shared_access_signature=abcd",
    "tok": f"token: {LONG}",
    "xox": f"xoxp-{LONG}",
}
"""By their marks the shapes of which the mark and letters are no text."""

MARKS = [shape.mark for shape in (*shapes._KEYS, *shapes._SCHEMES, *shapes._NAMES)]
TEXTS = [EXAMPLES.get(mark, f"{mark}{LONG}{LONG}") for mark in MARKS]
NAMES = sorted({*names.NAMES, *names._ENDINGS, *names._IN_ADDRESSES})

# A pattern fits without a mark, this one never: all texts are searched.
NEVER = r"(?!)"


def redactors(*values: str) -> tuple[Redactor, Redactor]:
    """One that asks the quick question, and one that does not, else alike."""
    return (
        Redactor(values=values, environment=False),
        Redactor(values=values, environment=False, patterns=(NEVER,)),
    )


USUAL, SEARCHING = redactors()
KNOWING, KNOWING_SEARCHING = redactors("hunter22", "a short one", LONG)


def same(text: str) -> None:
    assert USUAL.text(text) == SEARCHING.text(text)
    assert USUAL.clears([text]) == SEARCHING.clears([text])
    assert KNOWING.text(text) == KNOWING_SEARCHING.text(text)


@pytest.mark.parametrize("text", TEXTS)
def test_of_each_shape_a_text_is_found(text: str) -> None:
    for shown in (text, f"see {text}", f"({text})"):
        assert HIDDEN in USUAL.text(shown)
        assert not USUAL.clears([shown])
        same(shown)


@pytest.mark.parametrize("name", NAMES)
def test_under_each_name_a_value_is_found(name: str) -> None:
    for text in (f"/a?{name}=v1", f"/a?b=c&{name.upper()}=v1"):
        assert "v1" not in USUAL.text(text)
        same(text)


@pytest.mark.parametrize("value", ["hunter22", "a short one"])
def test_a_value_that_is_known_is_found_where_there_is_no_mark(value: str) -> None:
    assert KNOWING.text(f"so {value} it is") == f"so {HIDDEN} it is"


def test_a_field_of_ones_own_is_found_where_there_is_no_mark() -> None:
    assert Redactor(fields=("ssn",)).text("ssn: 4711") == f"ssn: {HIDDEN}"


@steady
@given(st.text())
@example("bas\u0130c abc4defgh")
@example("shared_access_s\u0130gnature=abcd")
@example("\u212aey: abcd, api_\u212aey: abcd")
def test_any_text_becomes_what_it_becomes_when_it_is_searched(text: str) -> None:
    same(text)


_PARTS = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from(NAMES),
    # A mark may be written in capitals, and with the letters whose small form is one of ours.
    st.sampled_from(MARKS).flatmap(
        lambda mark: st.sampled_from([
            mark, mark.upper(), mark.title(), mark.replace("i", "\u0130"), mark.replace("k", "\u212a")
        ])
    ),
    st.sampled_from(list("=:@?&;#% .,\"'/\n-_\\")),
    st.sampled_from(["://", "%41", "word", "hunter22", "a short one", "abc4defgh", "abcd", LONG, HEX]),
    st.text(max_size=3),
)  # fmt: skip


@settings(steady, max_examples=400)
@given(st.lists(_PARTS, max_size=8))
def test_a_text_of_pieces_of_secrets_becomes_what_it_becomes_when_it_is_searched(
    parts: list[str],
) -> None:
    same("".join(parts))
