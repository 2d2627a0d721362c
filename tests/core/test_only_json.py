"""Results that stand among prose: what is taken out of the text, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from tables import table

from triage.engine.options import validate_result

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
PROSE = st.text(alphabet=st.characters(exclude_characters='{}[]"`~', codec="utf-8"))


@given(
    value=st.dictionaries(st.text(), JSON), before=PROSE, after=PROSE, indent=st.none() | st.just(2)
)
def test_any_object_is_found_whatever_words_stand_around_it(
    value: dict[str, Any], before: str, after: str, indent: int | None
) -> None:
    text = f"{before}{json.dumps(value, indent=indent)}{after}"
    assert validate_result(dict[str, Any], text) == value
    fenced = f"{before}\n```json\n{json.dumps(value)}\n```\n{after}"
    assert validate_result(dict[str, Any], fenced) == value


@given(value=st.dictionaries(st.text(min_size=1), JSON, min_size=1), cut=st.integers(1, 10_000))
def test_no_part_of_a_value_that_was_cut_off_is_taken_for_the_whole(
    value: dict[str, Any], cut: int
) -> None:
    whole = json.dumps(value)
    text = f"Here it is: {whole[: 1 + cut % (len(whole) - 1)]}"
    with pytest.raises(ValidationError):
        validate_result(dict[str, Any] | list[Any], text)


@table(
    ("text", "kind", "value"),
    [
        ("```json\n5\n```", int, 5),
        ('```\n"green"\n```', bool | None, None),
        ("The answer is ```json\n[1, 2]\n```.", list[int], [1, 2]),
        ('```json {"a": 1}```', dict[str, int], {"a": 1}),
        ("~~~\ntrue\n~~~", bool, True),
        ("Answer: [1, 2]", tuple[int, int], (1, 2)),
        ('See [the table] and {name}: {"a": 1}', dict[str, int], {"a": 1}),
    ],
)  # fmt: skip
def test_fences_and_asides_are_looked_over(text: str, kind: Any, value: Any) -> None:
    if value is None:
        with pytest.raises(ValidationError):
            validate_result(kind, text)
    else:
        assert validate_result(kind, text) == value


@table(
    "text",
    [
        "The answer is 5",
        "```json\n5\n```\n```json\n6\n```",
        '{"a": 1}}',
        '] {"a": 1}',
        '{"a": NaN} it is',
        'It is {"a": {"b": 1, "b": 2}}',
        "[" * 100_000 + '{"a": 1}',
    ],
)  # fmt: skip
def test_what_is_not_sure_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        validate_result(dict[str, Any] | list[Any] | int, text)


def test_a_value_taken_out_of_prose_is_validated_strictly() -> None:
    assert TypeAdapter(dict[str, int]).validate_json('{"a": "1"}') == {"a": 1}
    assert validate_result(dict[str, int], '{"a": "1"}') == {"a": 1}
    with pytest.raises(ValidationError, match="valid integer"):
        validate_result(dict[str, int], 'It is {"a": "1"}')
