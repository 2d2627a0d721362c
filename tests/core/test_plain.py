"""Whatever an agent records becomes JSON of its own: nothing raises, hangs or changes later."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import pathlib
import uuid
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from event_values import json_values, texts
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from support import Says
from tables import table

from triage import Agent, FailurePolicy, FailureType, Retry, Step
from triage.core import ActionChosen, RunFinished, RunStarted, dumps, fold, loads
from triage.stores import MemoryStore


def kept(value: Any) -> Any:
    """What a step keeps of a tool's output, which must be JSON."""
    output = Step(action="call", tool_output=value).tool_output
    assert json.loads(json.dumps(output, allow_nan=False)) == output
    return output


# Values that raise --------------------------------------------------------------------------------


class Trap(Exception):
    """What a hostile object raises."""


def _spring(*_args: Any, **_kwargs: Any) -> Any:
    raise Trap


def hostile(*names: str, bases: tuple[type, ...] = (), value: Any = None) -> Any:
    """An object whose special methods of these names raise."""
    cls = type("Hostile", bases, dict.fromkeys(names, _spring))
    return cls() if value is None else cls(value)


@dataclass
class Broken:
    """A dataclass with a field that cannot be read."""

    one: int = 1

    def __getattribute__(self, name: str) -> Any:
        return _spring() if name == "one" else object.__getattribute__(self, name)


HOSTILE = {
    "repr": hostile("__repr__"),
    "str and repr": hostile("__str__", "__repr__", "__format__"),
    "hash and eq": hostile("__hash__", "__eq__"),
    "iter of a list": hostile("__iter__", bases=(list,), value=[1]),
    "len of a list": hostile("__len__", bases=(list,), value=[1]),
    "iter of a set": hostile("__iter__", "__len__", bases=(set,), value=[1]),
    "repr in a set": {hostile("__repr__")},
    "items of a dict": hostile("items", "keys", "__iter__", bases=(dict,), value={"a": 1}),
    "items of a mapping": hostile("__getitem__", "__iter__", "keys", bases=(UserDict,)),
    "str of text": hostile("__str__", "__repr__", bases=(str,), value="x"),
    "int of a number": hostile("__int__", "__index__", "__trunc__", bases=(int,), value=3),
    "float of a number": hostile("__float__", "__repr__", bases=(float,), value=3.5),
    "model_dump": hostile("model_dump"),
    "getattr": hostile("__getattr__"),
    "isoformat": type("Date", (dt.date,), {"isoformat": _spring})(2024, 1, 1),
    "a field": Broken(),
    "a released view": memoryview(b"x"),
}
HOSTILE["a released view"].release()


@table("name", HOSTILE)
def test_an_object_that_raises_is_marked_and_raises_nothing(name: str) -> None:
    value = HOSTILE[name]
    kept(value)
    kept({"deep": [value, {"deeper": value}]})


def _as_key(value: Any) -> dict[Any, int] | None:
    try:
        return {value: 1}
    except (TypeError, ValueError, Trap):
        return None


KEYED = {name: mapping for name, value in HOSTILE.items() if (mapping := _as_key(value))}


@table("name", KEYED)
def test_an_object_that_raises_may_be_a_mappings_key(name: str) -> None:
    kept(KEYED[name])


@table("claimed", [str, int, bool, type(None), float, dict, list])
def test_an_object_that_claims_to_be_of_another_class_is_json_all_the_same(claimed: type) -> None:
    # As lazy texts, proxies and mocks with a spec do.
    proxy = type("Proxy", (), {"__class__": property(lambda _self: claimed)})()
    kept(proxy)
    kept({"text": [proxy]})


def test_an_object_whose_class_cannot_be_read_is_marked() -> None:
    # As an unbound context-local proxy does.
    proxy = type("Proxy", (), {"__class__": property(_spring)})()
    kept(proxy)
    kept({"inside": [proxy]})


# Values of many rows -------------------------------------------------------------------------------


def test_very_many_rows_are_kept_whole() -> None:
    rows = [{"id": number, "of": [number]} for number in range(30_000)]
    assert Step(tool_output=rows).tool_output == rows


class Renamed(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("row", "form"),
    [
        ({"id": 1, "name": "a", "ok": True, "none": None, "cost": 1.5}, None),
        ({"id": 2**80}, None),
        ({"id": [1, {"of": 2}]}, None),
        ({"id": (1, 2)}, {"id": [1, 2]}),
        ({"id": float("nan")}, {"id": {"$triage": "float", "type": "float", "text": "nan"}}),
        ({1: 2}, {"$triage": "map", "items": [[1, 2]]}),
        ({Renamed("id"): Renamed("x")}, {"$triage": "map", "items": [["id", "x"]]}),
        (OrderedDict(id=1), {"id": 1}),
        (dt.date(2024, 1, 1), "2024-01-01"),
    ],
)
def test_a_row_among_very_many_is_kept_as_it_is_alone(row: Any, form: Any) -> None:
    usual = {"id": 0, "name": "b", "cost": 0.5}
    rows = [dict(usual) for _ in range(25_000)]
    rows[12_000] = row
    expected = [dict(usual) for _ in range(25_000)]
    expected[12_000] = row if form is None else form
    copy = Step(tool_output=rows).tool_output
    assert copy == expected
    assert copy[12_000] == Step(tool_output=row).tool_output
    assert {type(key) for item in copy if isinstance(item, dict) for key in item} == {str}
    assert copy[0] is not rows[0]


# Values of every kind -----------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Node:
    name: str
    links: list[Any] = field(default_factory=list)


class Model(BaseModel):
    at: dt.date
    inner: dict[str, Any] = {}


class Text(str):
    __slots__ = ()


@table(
    ("value", "expected"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Point(1, 2.5), {"x": 1, "y": 2.5}),
        (Node("a", [Node("b")]), {"name": "a", "links": [{"name": "b", "links": []}]}),
        (Model(at=dt.date(2024, 2, 29)), {"at": "2024-02-29", "inner": {}}),
        (Colour.RED, "red"),
        ([Number.ONE, FailureType.UNKNOWN, Text("t")], [1, "unknown", "t"]),
        (OrderedDict(a=MappingProxyType({"b": 1})), {"a": {"b": 1}}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset(("b", "a")), ["a", "b"]),
        (dt.datetime(2024, 1, 2, 3, 4, tzinfo=dt.UTC), "2024-01-02T03:04:00+00:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.50"), "1.50"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        ("\ud800 \x00", "\ud800 \x00"),
        (-0.0, -0.0),
        (10**300, 10**300),
    ],
)
def test_what_has_a_usual_json_form_gets_it(value: Any, expected: Any) -> None:
    assert kept(value) == expected


@table(
    ("value", "kind"),
    [
        (float("nan"), "float"),
        (float("-inf"), "float"),
        (b"\x00\xff", "bytes"),
        (bytearray(b"x"), "bytes"),
        ({1: "a", "b": 2}, "map"),
        (object(), "lost"),
        (deque([1]), "lost"),
        (len, "lost"),
    ],
)
def test_what_has_no_json_form_leaves_a_mark(value: Any, kind: str) -> None:
    assert kept(value)["$triage"] == kind
    assert kept([{"in": value}])[0]["in"]["$triage"] == kind


def test_a_number_of_more_digits_than_json_can_be_read_with_is_json_all_the_same() -> None:
    kept(10**5000)
    kept({"n": [10**5000]})
    kept({10**5000: 1})


def _armed(name: str) -> Any:
    return HOSTILE[name]  # looked up late: hypothesis prints what its strategies are made of


_odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), texts, st.binary(max_size=4),
    st.datetimes(), st.timedeltas(), st.uuids(), st.decimals(), st.complex_numbers(),
    st.sampled_from([object(), Colour.RED, Number.ONE, int, Ellipsis]),
    st.sampled_from(sorted(HOSTILE)).map(_armed),
)  # fmt: skip
_hashable = st.one_of(st.none(), st.booleans(), st.integers(), texts, st.binary(max_size=4))
_nested = st.recursive(
    _odd,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_hashable, inner, max_size=4)
        | st.dictionaries(_hashable, inner, max_size=4).map(MappingProxyType)
        | st.sets(_hashable, max_size=4)
        | st.builds(Node, texts, st.lists(inner, max_size=3))
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


@given(_nested)
def test_any_value_becomes_json(value: Any) -> None:
    kept(value)


@given(_nested)
def test_a_step_with_any_payload_survives_the_wire(value: Any) -> None:
    step = Step(action="a", tool_input={"value": value}, tool_output=value, metadata={"m": value})
    event = RunStarted("run", 0, 0.0, "agent", step.tool_output, step.tool_input)
    assert loads(dumps(event)) == event


@given(json_values)
def test_json_values_are_kept_as_they_are(value: Any) -> None:
    assert kept(value) == value


# Depth and size -----------------------------------------------------------------------------------


WRAPS: dict[str, Callable[[Any], Any]] = {
    "list": lambda value: [value],
    "dict": lambda value: {"key": value},
    "tuple": lambda value: (value,),
    "dataclass": lambda value: Node("n", [value]),
    "odd keys": lambda value: {1: value},
    "mapping": lambda value: UserDict(key=value),
    "named tuple": lambda value: Point(value, 1),
}


@table("kind", WRAPS)
def test_a_value_nested_without_end_is_cut(kind: str) -> None:
    value: Any = "bottom"
    for _ in range(20_000):
        value = WRAPS[kind](value)
    assert "bottom" not in json.dumps(kept(value))
    while value != "bottom" and value:  # taken apart by hand: freeing it all at once overflows C
        value = next(iter(value.values())) if hasattr(value, "values") else _inside(value)


def _inside(value: Any) -> Any:
    return value.links[0] if isinstance(value, Node) else value[0]


def test_a_value_that_contains_itself_is_cut() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    ring: dict[str, Any] = {}
    ring["self"] = ring
    node = Node("parent")
    node.links.append(node)
    for value in (loop, ring, node):
        assert '"$triage": "cycle"' in json.dumps(kept(value))


class Tired(BaseException):
    """A value was looked at too often."""


class Counted(UserDict[str, Any]):
    """A mapping that counts how often it is read."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        Counted.reads += 1
        if Counted.reads > 5_000:
            raise Tired
        return super().__iter__()


def test_values_that_point_at_each_other_cost_no_more_than_they_are() -> None:
    # A tree whose nodes know their parent: followed without memory, this doubles at every level.
    parent = Counted()
    parent["children"] = [Counted(parent=parent, name=str(n)) for n in range(3)]
    Counted.reads = 0
    kept(parent)


def test_an_answer_that_holds_itself_by_model_dump_is_cut() -> None:
    class Endless:
        def model_dump(self, **_kwargs: Any) -> Any:
            return self

    kept(Endless())


def test_what_does_not_fit_its_model_is_kept_and_not_shown_in_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    class Bill(BaseModel):
        cents: int

    assert kept(Bill.model_construct(cents="hunter2")) == {"cents": "hunter2"}
    assert not recwarn.list


# Nothing changes later ----------------------------------------------------------------------------


@given(json_values)
def test_a_later_change_of_the_callers_object_does_not_change_the_step(value: Any) -> None:
    mine: dict[str, Any] = {"list": [value, [value]], "dict": {"k": value}}
    step = Step(action="a", tool_input=mine, tool_output=[mine], metadata=mine)
    before = json.dumps([step.tool_input, step.tool_output, step.metadata])
    mine["list"].append("later")
    mine["list"][1].append("later")
    mine["dict"]["k"] = mine["new"] = ["later"]
    assert json.dumps([step.tool_input, step.tool_output, step.metadata]) == before


@pytest.mark.anyio
async def test_a_later_change_of_the_agents_objects_does_not_change_the_journal() -> None:
    task, notes = {"cities": ["Lisboa"]}, {"seen": [{"id": 1}]}
    answer = {"fares": [99]}

    async def agent(task: Any, *, run: Any, update_state: Any) -> Any:
        update_state(notes)
        notes["seen"][0]["id"] = 2
        notes["seen"].append({"id": 3})
        task["cities"].append("Porto")
        if run.attempt == 1:
            raise ConnectionError
        return answer

    store = MemoryStore()
    wrapped = Agent(agent, FailurePolicy(default=Retry()), classifier=Says(), store=store)
    assert await wrapped.run(task, run_id="r") is answer
    answer["fares"].append(1)

    journal = await store.read("r")
    started, finished = journal[0], journal[-1]
    assert isinstance(started, RunStarted)
    assert started.task == {"cities": ["Lisboa"]}
    assert isinstance(finished, RunFinished)
    assert finished.result == {"fares": [99]}
    assert fold(journal).history[0].state == {"seen": [{"id": 1}]}


@pytest.mark.anyio
async def test_a_later_change_of_what_an_action_carries_does_not_change_the_journal() -> None:
    models = ["a"]

    async def agent(_task: Any, *, models: Any = None) -> str:
        if models is None:
            raise ConnectionError
        models.append("b")
        return "done"

    store = MemoryStore()
    policy = FailurePolicy(default=Retry(inject={"models": models}))
    await Agent(agent, policy, classifier=Says(), store=store).run("t", run_id="r")
    journal = await store.read("r")
    chosen = next(event for event in journal if isinstance(event, ActionChosen))
    assert isinstance(chosen.action, Retry)
    assert chosen.action.inject == {"models": ["a"]}


@pytest.mark.anyio
async def test_a_change_of_what_a_run_handed_out_does_not_change_the_journal() -> None:
    async def agent(_task: Any, *, run: Any, update_state: Any, record_step: Any) -> str:
        update_state({"seen": [1]})
        run.state["seen"].append(2)
        assert run.state == {"seen": [1]}
        if run.attempt == 1:
            raise ConnectionError
        return "done"

    def strategy(context: Any) -> Retry:
        context.state["seen"].append(3)
        return Retry()

    store = MemoryStore()
    wrapped = Agent(agent, FailurePolicy(default=strategy), classifier=Says(), store=store)
    await wrapped.run("t", run_id="r")
    assert fold(await store.read("r")).history[0].state == {"seen": [1]}
