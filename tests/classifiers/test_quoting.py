"""Quotes are found in their source however they are written, and invented ones are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from bench import envs
from bench.diagnosis import records
from triage.classifiers.llm_prompt import show
from triage.classifiers.quoting import Source

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOLD = 1_000


def curly(text: str) -> str:
    pieces = text.split('"')
    marks = ["“", "”"] * len(pieces)
    told = "".join(piece + mark for piece, mark in zip(pieces, marks, strict=False))
    return told[:-1].replace("'", "\u2019")


def shortened(text: str, mark: str = "…") -> str:
    words = text.split()
    third = len(words) // 3
    return text if third < 3 else " ".join((*words[:third], mark, *words[-third:]))


WAYS: dict[str, Callable[[str], str]] = {
    "verbatim": str,
    "escaped as ASCII JSON": lambda text: json.dumps(text)[1:-1],
    "escaped as JSON": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "escaped twice": lambda text: json.dumps(json.dumps(text)[1:-1])[1:-1],
    "with escaped line breaks alone": lambda text: text.replace("\n", "\\n"),
    "with curly quotes": curly,
    "in quotes": lambda text: f"“{text}”",
    "in capitals": str.upper,
    "with other blanks": lambda text: "  ".join(text.split()),
    "shortened in the middle": shortened,
    "shortened with three dots": lambda text: shortened(text, "..."),
    "shortened in brackets": lambda text: shortened(text, "[...]"),
    "shortened at its end": lambda text: f"{text}…",
    "shortened at its start": lambda text: f"... {text}",
}


class Piece(NamedTuple):
    """A piece of a step's text. source: what a model is shown of the step."""

    source: Source
    text: str


@cache
def pieces() -> list[Piece]:
    """A thousand pieces of what real agents recorded, the same ones each time."""
    folder = envs.ROOT.parent / "shared" / "trajectories"
    if not (folder / records.RECORDED).is_file():
        pytest.skip(
            f"there are no trajectories of real agents: {folder / records.RECORDED} is missing"
        )
    chance = random.Random(7)
    found: list[Piece] = []
    runs = list(records.recorded(folder))
    while len(found) < TOLD:
        record = chance.choice(runs)
        sources = show(record.trajectory, record.task, 200_000).sources
        for at, step in enumerate(record.steps):
            texts = (step.tool_output, step.llm_output, step.error)
            for text in (text for text in texts if isinstance(text, str) and len(text) > 40):
                start, length = chance.randrange(len(text) - 30), chance.randrange(20, 200)
                found.append(Piece(sources[at], text[start : start + length]))
    return found[:TOLD]


@table("way", WAYS.values())
def test_at_most_one_true_quote_in_a_hundred_is_refused(way: Callable[[str], str]) -> None:
    refused = [piece.text for piece in pieces() if not piece.source.has(way(piece.text))]
    assert len(refused) <= TOLD // 100, refused[:5]


@table("way", WAYS.values())
def test_of_a_hundred_invented_quotes_at_most_one_is_believed(way: Callable[[str], str]) -> None:
    chance = random.Random(11)
    believed = []
    for source, text in pieces():
        told = way(text)
        at = chance.choice(
            [at for at, char in enumerate(told) if char.isalnum() and told[at - 1] != "\\"] or [0]
        )
        other = chance.choice([char for char in LETTERS if char != told[at].casefold()])
        altered = f"{told[:at]}{other}{told[at + 1 :]}"
        if source.has(altered):
            believed.append((told, altered))
    assert len(believed) <= TOLD // 100, believed[:5]


@given(st.text(min_size=4, max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_found_as_it_stands_and_as_json(before: str, text: str, after: str) -> None:
    whole = Source(json.dumps(f"{before}{text}{after}", ensure_ascii=False))
    if sum(char.isalnum() for char in text) >= 4:
        assert whole.has(text)
        assert whole.has(json.dumps(text))


@table(
    ("source", "quote", "stands"),
    [
        ('{"q":"hotel in Porto"}', '"q": "hotel in', True),
        (r'{"path":"C:\\new\\table"}', r"C:\new\table", True),
        (r'{"path":"C:\\new\\table"}', r"C:\\new\\table", True),
        (r'{"out":"{\"a\": \"one\\ntwo\"}"}', "one\ntwo", True),
        ('{"out":"five \u2013 six"}', "five - six", True),
        ('{"out":"it is 5\u00a0kg"}', "it is 5 kg", True),
        ('{"out":"wait... then go"}', "wait... then go", True),
        ('{"out":"the first and the last word"}', "the last … the first", False),
        ('{"out":"the first and the last word"}', "a … b … c … d", False),
        ('{"out":"the first and the last word"}', "the first … the least word", False),
        ('{"out":"there is no hotel"}', "there is a hotel", False),
        ('{"out":"abc"}', "abc", False),
        ('{"out":"abc"}', "…", False),
        ('{"out":"abc"}', "", False),
    ],
)
def test_what_counts_as_the_same(source: str, quote: str, *, stands: bool) -> None:
    assert Source(source).has(quote) is stands
