from __future__ import annotations

import enum
import pickle
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from triage.checks import Checks, Durability, objection, validate_result
from triage.errors import UsageError
from triage.grounds import Grounds

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


CLOSED = {**SCHEMA, "required": ["q"], "additionalProperties": False}


class Ticket(BaseModel):
    id: int
    seat: str | None = None


@dataclass
class Point:
    x: int
    y: int


class Row(TypedDict):
    name: str


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class NamedTool:
    name: str


@dataclass(frozen=True)
class DescribedTool:
    name: str
    inputSchema: dict[str, Any]  # noqa: N815 - as the protocol writes it


def search(q: str) -> str:
    return q


def any_(value: Any) -> Any:
    """The value as code gives it that no type checker has seen."""
    return value


def fine(result: object) -> bool:
    return result is not None


@pytest.mark.parametrize(
    ("tools", "manifest"),
    [
        (None, {}),
        ([], {}),
        (["search", "book"], {"search": None, "book": None}),
        ({"search": SCHEMA, "book": None}, {"search": SCHEMA, "book": None}),
        ({"search": search}, {"search": CLOSED}),
        ([search, NamedTool("book")], {"search": CLOSED, "book": None}),
        ([DescribedTool("book", SCHEMA)], {"book": SCHEMA}),
        (
            [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}],
            {"search": SCHEMA},
        ),
        ([{"type": "function", "function": {"name": "search"}}], {"search": None}),
        ([{"type": "function", "name": "search", "parameters": SCHEMA}], {"search": SCHEMA}),
        ([{"name": "search", "input_schema": SCHEMA}], {"search": SCHEMA}),
        ([{"name": "search", "inputSchema": SCHEMA}], {"search": SCHEMA}),
        (iter(["search", "book"]), {"search": None, "book": None}),
    ],
)
def test_tools_are_taken_in_the_forms_people_have_them(tools: Any, manifest: Any) -> None:
    assert Checks(tools=tools).manifest == manifest


def take(_: str) -> str:
    return ""


take.__name__ = "<lambda>"


@pytest.mark.parametrize(
    "tools",
    [
        "search",
        7,
        [7],
        [""],
        ["search", "search"],
        [{"type": "web_search"}],
        [{"function": "search"}],
        [take],
        {"search": "object"},
        {7: None},
    ],
)
def test_tools_without_a_usable_name_are_refused_at_once(tools: Any) -> None:
    with pytest.raises(UsageError, match=r"Checks\.tools"):
        Checks(tools=tools)


def test_a_list_that_changes_later_does_not_change_the_manifest() -> None:
    tools = ["search"]
    checks = Checks(tools=tools)
    tools.append("book")
    assert list(checks.manifest) == ["search"]


def test_one_verifier_or_several_are_a_tuple() -> None:
    assert Checks().verifiers == ()
    assert Checks(verify=fine).verifiers == (fine,)
    assert Checks(verify=[fine, fine]).verifiers == (fine, fine)


async def slow(text: str) -> bool:
    return bool(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("verify", 7),
        ("verify", [fine, "no"]),
        ("constraints", "secret"),
        ("constraints", [""]),
        ("constraints", [7]),
        ("constraints", 7),
        ("constraints", [re.compile(b"x")]),
        ("constraints", [b"x"]),
        ("constraints", re.compile("x")),
        ("constraints", [slow]),
        ("subgoals", "yes"),
        ("grounding", "yes"),
        ("grounding", 1),
        ("grounding", None),
        ("result_type", 7),
        ("result_type", object()),
    ],
)
def test_other_values_are_refused_by_the_name_of_their_field(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"Checks\.{field}"):
        Checks(**{field: value})


@pytest.mark.parametrize(
    ("result_type", "result", "validated"),
    [
        (int, 5, 5),
        (int, "5", 5),
        (Ticket, Ticket(id=1), Ticket(id=1)),
        (Ticket, {"id": "1"}, Ticket(id=1)),
        (Ticket, '{"id": 1}', Ticket(id=1)),
        (Ticket, b' {"id": 1}\n', Ticket(id=1)),
        (list[Ticket], '[{"id": 1}]', [Ticket(id=1)]),
        (list[int], (1, "2"), [1, 2]),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Row, '{"name": "a"}', {"name": "a"}),
        (Ticket | None, None, None),
        (Ticket | None, "null", None),
        (str, '{"id": 1}', '{"id": 1}'),
        (str | None, "null", "null"),
        (Literal["yes", "no"], "yes", "yes"),
        (Colour, "red", Colour.RED),
        (Annotated[int, Field(gt=0)], "3", 3),
        (dict[str, int] | str, '{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_result_is_converted_to_its_type(result_type: Any, result: Any, validated: Any) -> None:
    found = validate_result(result_type, result)
    assert found == validated
    assert type(found) is type(validated)


@pytest.mark.parametrize(
    ("result_type", "result", "kind"),
    [
        (int, "five", "int_parsing"),
        (Ticket, {"seat": "1A"}, "missing"),
        (Ticket, '{"seat": "1A"}', "missing"),
        (Ticket, "I could not find it", "model_type"),
        (str, 5, "string_type"),
        (Ticket, None, "model_type"),
    ],
)
def test_a_result_of_another_kind_says_what_it_lacks(
    result_type: Any, result: Any, kind: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        validate_result(result_type, result)
    assert caught.value.errors()[0]["type"] == kind


def test_a_type_that_names_an_unknown_class_is_a_mistake_of_the_caller() -> None:
    checks = Checks(result_type=list["Nowhere"])  # type: ignore[name-defined] # noqa: F821 - on purpose
    with pytest.raises(UsageError, match=r"Checks\.result_type must be a type that pydantic"):
        validate_result(checks.result_type, [])


def test_a_class_that_is_defined_later_is_found() -> None:
    class Trip(BaseModel):
        leg: Leg

    checks = Checks(result_type=Trip)

    class Leg(BaseModel):
        n: int

    Trip.model_rebuild()
    assert validate_result(checks.result_type, {"leg": {"n": 1}}) == Trip(leg=Leg(n=1))


def test_the_order_of_a_union_is_kept() -> None:
    class A(BaseModel):
        n: int

    class B(BaseModel):
        n: int

    assert type(validate_result(A | B, {"n": 1})) is A
    assert type(validate_result(B | A, {"n": 1})) is B


def test_a_type_that_cannot_be_hashed_is_validated_all_the_same() -> None:
    assert validate_result(Annotated[int, Field(json_schema_extra={"a": []}), []], "3") == 3


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (True, None),
        (None, None),
        ("", None),
        (False, "fine answered False"),
        ("no seat", "no seat"),
        (0, "fine answered with int, not with True, False, None or a reason"),
        ([], "fine answered with list, not with True, False, None or a reason"),
    ],
)
def test_a_verdict_is_good_or_gives_the_reason(verdict: Any, reason: str | None) -> None:
    assert objection(fine, verdict) == reason


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Checks(constraints=("",)), "not str (''), a text that is not empty"),
        (lambda: Checks(constraints=any_(7)), "Checks.constraints|int (7)|(text,)"),
        (lambda: Checks(constraints=any_((slow,))), "a sync function|give it as verify"),
        (lambda: Checks(constraints=any_(re.compile("x"))), "Checks.constraints|(text,)"),
        (lambda: Checks(grounding=any_(1)), "Checks.grounding|int (1)|Grounds(kinds=(…))"),
        (lambda: Grounds(kinds=any_("number")), "Grounds.kinds|str ('number')|kinds=(kind,)"),
        (lambda: Grounds(kinds=()), "Grounds.kinds|grounding=False"),
        (lambda: Grounds(kinds=("numbers",)), "Grounds.kinds item|did you mean 'number'?"),
        (lambda: Grounds(kinds=any_(7)), "Grounds.kinds|int (7)"),
        (lambda: Grounds(at_least=0), "Grounds.at_least|int (0)|from 1"),
        (lambda: Grounds(at_least=any_(bool(1))), "Grounds.at_least|bool (True)"),
        (lambda: Checks(tools={"a": any_(3)}), "Checks.tools['a']|a function or None|int (3)"),
    ],
)
def test_a_wrong_value_is_told_with_its_field_and_the_remedy(make: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    for word in words.replace("not str (''), ", "").split("|"):
        assert word in str(caught.value)


def test_kinds_may_be_any_collection() -> None:
    assert Grounds(kinds=any_(["number", "id"])).kinds == ("number", "id")
    assert Checks(grounding=True).grounds == Grounds()
    assert Checks().grounds is None


def test_a_manifest_of_functions_can_be_pickled() -> None:
    manifest = Checks(tools=[search, lambda_named()]).manifest
    assert pickle.loads(pickle.dumps(manifest)) == manifest


def lambda_named() -> Any:
    def inner(x: int) -> int:
        return x

    return inner


def test_the_safe_ways_of_keeping_a_run_are_the_default() -> None:
    default = Durability()
    assert (default.mode, default.on_in_doubt, default.on_store_error) == ("step", "ask", "fail")
    assert (default.lease_s, default.redact) == (30.0, True)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("mode", "steps", "did you mean 'step'?"),
        ("mode", 7, "not int"),
        ("on_in_doubt", "Ask", "did you mean 'ask'?"),
        ("on_store_error", None, "one of fail, continue"),
        ("lease_s", 0, "a finite number of seconds above 0"),
        ("lease_s", "30", "not str"),
        ("redact", "yes", "True, False or a Redactor"),
    ],
)
def test_a_wrong_durability_says_what_is_possible(field: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Durability(**{field: value})
    assert str(caught.value).startswith(f"Durability.{field} must be ")
    assert said in str(caught.value)
