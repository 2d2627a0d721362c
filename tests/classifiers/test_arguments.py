"""Arguments against the JSON Schema of a tool: what is found is wrong, whatever the schema holds."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema  # type: ignore[import-untyped] # it has no types of its own
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from tables import table

import triage
from triage import Checks, Step
from triage.classifiers import check
from triage.classifiers.detectors.arguments import Problem

CHARGE = {
    "type": "object",
    "properties": {
        "card": {"type": "string", "minLength": 4, "pattern": "^[a-z]+_\\d{4}$"},
        "cents": {"type": "integer", "minimum": 1, "maximum": 10_000},
        "currency": {"enum": ["EUR", "USD"]},
        "lines": {
            "type": "array",
            "maxItems": 2,
            "items": {"$ref": "#/$defs/Line"},
        },
        "note": {"type": ["string", "null"]},
        "tip": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "rate": {"type": "number", "exclusiveMinimum": 0},
        "mode": {"const": "live"},
        "old": {"type": "string", "nullable": True},
        "odd": {"not": {"multipleOf": 2}},
        "dozens": {"multipleOf": 12},
    },
    "required": ["card", "cents"],
    "additionalProperties": False,
    "$defs": {
        "Line": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    },
}
RIGHT = {"card": "visa_1234", "cents": 500}


def found(arguments: Any, schema: Any = CHARGE) -> Problem | None:
    return check("charge", arguments, schema)


@table(
    "more",
    [
        {},
        {"note": None, "tip": None, "old": None, "currency": "EUR", "mode": "live"},
        {"lines": [{"n": 1}, {"n": 2, "more": True}], "tip": 5, "rate": 0.5, "cents": 500.0},
        {"note": {"$triage": "lost", "type": "Path", "text": "x"}},
    ],
)
def test_arguments_that_fit_have_no_problem(more: dict[str, Any]) -> None:
    assert found({**RIGHT, **more}) is None
    assert found(json.dumps({**RIGHT, **more})) is None


@table(
    ("arguments", "kind", "path", "text"),
    [
        ({"card": "visa_1234"}, "missing", "cents", "argument 'cents' is missing"),
        ({**RIGHT, "cents": "500"}, "type", "cents", "argument 'cents' must be integer, not string"),
        ({**RIGHT, "cents": True}, "type", "cents", "argument 'cents' must be integer, not boolean"),
        ({**RIGHT, "cents": None}, "type", "cents", "argument 'cents' must be integer, not null"),
        ({**RIGHT, "cents": 0}, "value", "cents", "argument 'cents' must be from 1, not 0"),
        ({**RIGHT, "cents": 10**6}, "value", "cents", "must be up to 10000, not 1000000"),
        ({**RIGHT, "rate": 0}, "value", "rate", "argument 'rate' must be above 0, not 0"),
        ({**RIGHT, "note": 3}, "type", "note", "argument 'note' must be string or null, not integer"),
        ({**RIGHT, "tip": "3"}, "type", "tip", "argument 'tip' must be integer or null, not string"),
        ({**RIGHT, "currency": "eur"}, "value", "currency", 'must be one of "EUR", "USD", not "eur"'),
        ({**RIGHT, "mode": "test"}, "value", "mode", 'argument \'mode\' must be "live", not "test"'),
        ({**RIGHT, "card": "v_1"}, "value", "card", "have at least 4 characters, not 3 characters"),
        ({**RIGHT, "card": "visa-1234"}, "value", "card", "must be text like"),
        ({**RIGHT, "lines": [{}]}, "missing", "lines[0].n", "argument 'lines[0].n' is missing"),
        ({**RIGHT, "lines": [{"n": 1}] * 3}, "value", "lines", "at most 2 items, not 3 items"),
        ({**RIGHT, "lines": "n"}, "type", "lines", "argument 'lines' must be array, not string"),
        ({**RIGHT, "amount": 5}, "unexpected", "amount", "there is no argument 'amount'; there is"),
        ('{"card": ', "type", "", "the arguments of 'charge' are text that is no valid JSON"),
        ({**RIGHT, "odd": 2}, "value", "odd", "argument 'odd' must fit the schema's 'not', not 2"),
        ({**RIGHT, "dozens": 13}, "value", "dozens", "'dozens' must be a multiple of 12, not 13"),
    ],
)  # fmt: skip
def test_a_problem_is_named_by_its_kind_and_place(
    arguments: Any, kind: str, path: str, text: str
) -> None:
    problem = found(arguments)
    assert problem is not None
    assert (problem.kind, problem.path) == (kind, path)
    assert text in problem.text


@table(
    ("arguments", "schema"),
    [
        ({"x": 1}, None),
        ({"x": 1}, {}),
        ({"x": 1}, {"type": "record", "properties": [], "required": "x", "enum": "x"}),
        ({"x": 1}, {"properties": {"x": {"$ref": "#/$defs/none"}}}),
        ({"x": 1}, {"properties": {"x": {"$ref": "https://acme.io/schema"}}}),
        ({"x": 1}, {"properties": {"x": {"$ref": "#/properties/x"}}}),
        ({"x": "a" * 64}, {"properties": {"x": {"pattern": "^(a+)+$"}}}),
        ({"x": "b"}, {"properties": {"x": {"pattern": "(((", "minLength": "3"}}}),
        ({"x": "b"}, {"properties": {"x": {"type": "string", "format": "date"}}}),
        ({"x_1": 1}, {"additionalProperties": False, "patternProperties": {"^x_": {}}}),
        ("Porto", CHARGE),
        (7, CHARGE),
        (["visa_1234", 500], CHARGE),
        (None, CHARGE),
    ],
)
def test_what_is_not_known_is_accepted(arguments: Any, schema: Any) -> None:
    assert found(arguments, schema) is None


def test_a_schema_that_cannot_be_read_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"seat": {"type": "numbre", "title": "told once"}}}
    assert check("hold", {"seat": "x"}, schema) is None
    assert check("hold", {"seat": "y"}, schema) is None
    assert caplog.text.count("a tool's schema cannot be read") == 1
    assert "numbre" in caplog.text


def test_nothing_of_an_argument_that_looks_secret_is_told() -> None:
    secret = "sk-" + "a" * 30
    problem = found({**RIGHT, "currency": secret, "x": 1})
    assert problem is not None
    assert secret not in str(problem)


def test_texts_are_one_short_line() -> None:
    problem = found({**RIGHT, "x\n'; drop" + "y" * 500: 1})
    assert problem is not None
    assert "\n" not in problem.text
    assert len(problem.text) < 300


def test_deep_and_wide_arguments_take_bounded_time() -> None:
    tree: dict[str, Any] = {"$ref": "#/$defs/T"}
    node = {"anyOf": [tree, tree, {"type": "array", "items": tree}], "type": "array", "items": tree}
    schema = {"properties": {"x": tree}, "$defs": {"T": node}}
    deep: Any = 1
    for _ in range(200):
        deep = [deep, deep]
    started = time.process_time()
    assert found({"x": deep}, schema) is None
    assert found({"x": [[1] * 500] * 500}, schema) is None
    assert time.process_time() - started < 10


SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-5, 5) | st.text("ab1", max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
TYPES = ["string", "integer", "number", "boolean", "null", "object", "array"]


def some_of(
    words: dict[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[dict[str, Any]]:
    """A few of these words: with all that there are, the first ones always decide."""
    pairs = [st.tuples(st.just(word), value) for word, value in words.items()]
    return st.lists(st.one_of(pairs), max_size=4).map(dict)


PLAIN = some_of({
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "minimum": st.integers(-2, 2),
    "maximum": st.integers(-2, 2),
    "exclusiveMinimum": st.integers(-2, 2),
    "exclusiveMaximum": st.floats(-3, 3),
    "minLength": st.integers(0, 3),
    "maxLength": st.integers(0, 3),
    "minItems": st.integers(0, 3),
    "maxItems": st.integers(0, 3),
    "pattern": st.sampled_from(["^a", "b$", "^[ab]+$", "a.*1", "\\d{1,2}"]),
    "$ref": st.sampled_from(["#/$defs/d", "#", "#/$defs/e"]),
    "required": st.lists(st.sampled_from("abcd"), max_size=2, unique=True),
    "default": VALUES,
})  # fmt: skip
SCHEMAS = PLAIN | st.recursive(
    PLAIN,
    lambda inner: some_of({
        "type": st.sampled_from(TYPES),
        "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        "additionalProperties": st.booleans() | inner,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "allOf": st.lists(inner, min_size=1, max_size=3),
    }),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=100)
@given(SCALARS | VALUES, SCHEMAS, SCHEMAS)
def test_whatever_is_found_the_reference_finds_too(
    value: Any, schema: dict[str, Any], other: dict[str, Any]
) -> None:
    defined = {"$defs": {"d": other, "e": {"type": ["string", "object"]}}}
    for arguments, wanted in (
        (value, {**schema, **defined}),
        ({"a": value}, {"properties": {"a": schema}, **defined}),
    ):
        if found(arguments, wanted) is None:
            continue
        try:
            assert not jsonschema.Draft202012Validator(wanted).is_valid(arguments)
        except RecursionError:
            reject()  # a reference to itself has no end there


USUAL = st.recursive(
    some_of({
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "title": st.just("A"),
    }),
    lambda inner: some_of({
        "type": st.sampled_from(["object", "array"]),
        "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        "additionalProperties": st.booleans(),
        "items": inner,
        "anyOf": st.lists(inner, min_size=1, max_size=2),
    }),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=200)
@given(VALUES, USUAL)
def test_with_the_usual_words_of_schemas_it_finds_what_the_reference_finds(
    value: Any, schema: dict[str, Any]
) -> None:
    wanted = {"type": "object", "properties": {"a": schema}}
    fits = jsonschema.Draft202012Validator(wanted).is_valid({"a": value})
    assert (found({"a": value}, wanted) is None) == fits


WORDS = [*CHARGE, "items", "anyOf", "pattern", "minimum", "enum", "$ref"]


@settings(max_examples=100)
@given(
    VALUES,
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
            | st.dictionaries(st.sampled_from(WORDS), inner)
        ),
    ),
)
def test_a_schema_may_hold_anything(arguments: Any, schema: Any) -> None:
    problem = found(arguments, schema)
    assert problem is None or problem.kind in ("missing", "unexpected", "type", "value")


# The schema of a function ------------------------------------------------------------------------


class Unit(Enum):
    METRE = "m"


class Leg(BaseModel):
    origin: str = Field(alias="from")


class Pair(NamedTuple):
    x: int
    y: int


ORIGIN = Pair(0, 0)


@dataclass
class Client:
    handle: Any


class Context:
    """What a framework hands to a tool."""


def fly(
    ctx: Context, city: str, nights: int = 1, cabin: Literal["eco", "first"] | None = None,
    stops: Annotated[list[str], Field(max_length=2)] = [],  # noqa: B006 - never changed
    leg: Leg | None = None, at: Pair = ORIGIN, unit: Unit = Unit.METRE,
    pets: int = None,  # type: ignore[assignment] # noqa: RUF013 - as people write it
) -> str:  # fmt: skip
    return city


def open_ended(city, **more):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN003, ANN201 - a tool without annotations
    return city


def unresolved(city: "Nowhere") -> str:  # type: ignore[name-defined] # noqa: F821, UP037 - on purpose
    return str(city)


@triage.tool(name="pay", ignore=("client",))
def charge(client: Client, cents: int) -> str:
    return str(cents)


def kind_of(tool: Any, arguments: Any) -> str | None:
    ((name, schema),) = Checks(tools=[tool]).manifest.items()
    problem = check(name, arguments, schema)
    return None if problem is None else f"{problem.kind} {problem.path}"


@table(
    ("tool", "arguments", "problem"),
    [
        (fly, {"city": "Porto"}, None),
        (fly, {"city": "Porto", "cabin": "first", "stops": ["Oslo"], "pets": None}, None),
        (fly, {"city": "Porto", "leg": {"origin": "Oslo"}, "at": {"x": 1, "y": 2}, "unit": "m"}, None),
        (fly, {}, "missing city"),
        (fly, {"city": 7}, "type city"),
        (fly, {"city": "Porto", "nights": "two"}, "type nights"),
        (fly, {"city": "Porto", "cabin": "business"}, "value cabin"),
        (fly, {"city": "Porto", "stops": ["a", "b", "c"]}, "value stops"),
        (fly, {"city": "Porto", "hotel": True}, "unexpected hotel"),
        (open_ended, {"city": 7, "hotel": True}, None),
        (open_ended, {"hotel": True}, "missing city"),
        (unresolved, {"city": 7}, None),
        (charge, {"cents": 5}, None),
        (charge, {}, "missing cents"),
        (len, {"anything": 1}, None),
    ],
)  # fmt: skip
def test_the_schema_of_a_function_is_its_signature(
    tool: Any, arguments: Any, problem: str | None
) -> None:
    assert kind_of(tool, arguments) == problem


def test_a_tool_is_known_by_the_name_its_steps_have() -> None:
    assert list(Checks(tools=[charge]).manifest) == ["pay"]


@given(
    st.text(),
    st.integers(),
    st.sampled_from(["eco", "first", None]),
    st.lists(st.text(), max_size=2),
)
def test_a_call_that_python_takes_is_never_a_problem(
    city: str, nights: int, cabin: Any, stops: list[str]
) -> None:
    given_ = {
        "city": city,
        "nights": nights,
        "cabin": cabin,
        "stops": stops,
        "at": Pair(1, 2),
        "unit": Unit.METRE,
    }
    assert kind_of(fly, Step(tool_called="fly", tool_input=given_).tool_input) is None
