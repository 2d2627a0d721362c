"""A result of a declared type comes back from the journal equal, whatever its fields are called there."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
import pytest
import typing_extensions
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    computed_field,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as checked
from support import Killed, in_two_processes
from tables import table

import triage
from triage import Agent, Escalate, FailurePolicy, FailureType, TriageEscalationError
from triage.core import ResultLost
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio

ESCALATES: Any = {"policy": FailurePolicy(default=Escalate()), "name": "shop"}

T = TypeVar("T")


class Plain(BaseModel):
    id: int = 1
    at: date = date(2026, 1, 2)


class Aliased(BaseModel):
    order_id: int = Field(alias="orderId")
    note: str = Field("", alias="remark")


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")
    order_id: int
    line_items: list[Aliased]


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    order_id: int = Field(alias="orderId")


class ByAlias(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    order_id: int = Field(alias="orderId")


class TwoAliases(BaseModel):
    order_id: int = Field(validation_alias="from_api", serialization_alias="toApi")


class Choices(BaseModel):
    order_id: int = Field(validation_alias=AliasChoices("oid", "orderId"))
    first: str = Field("x", validation_alias=AliasPath("names", 0))


class Swapped(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Optional_(BaseModel):
    order_id: int | None = Field(None, alias="orderId")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    cents: int

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def euros(self) -> float:
        return self.cents / 100


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int


class Private(BaseModel):
    id: int
    _seen: list[int] = PrivateAttr(default_factory=list)


class Loads(BaseModel):
    rows: Json[list[int]]


class Cat(BaseModel):
    kind: Literal["cat"] = Field("cat", alias="petKind")
    lives: int = Field(9, alias="livesLeft")


class Dog(BaseModel):
    kind: Literal["dog"] = Field("dog", alias="petKind")


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    spare: Cat | Dog | None = None


class Page(BaseModel, Generic[T]):
    items: list[T] = Field(alias="pageItems")


class Names(RootModel[dict[str, Aliased]]):
    pass


@dataclasses.dataclass
class Receipt:
    id: int
    when: date
    lines: tuple[str, ...] = ()


@checked
class Checked:
    id: int = Field(alias="theId")


class Struct(msgspec.Struct):
    order_id: int
    at: date


class Renamed(msgspec.Struct, rename="camel", tag="r"):
    order_id: int


class Typed(TypedDict):
    when: date


class TypedWithModel(typing_extensions.TypedDict):
    when: date
    of: Aliased


class Named(NamedTuple):
    id: int
    when: date


@attrs.define
class Attrs:
    id: int
    tags: list[str] = attrs.field(factory=list)


DAY = date(2026, 1, 2)
ALIASED = Aliased(orderId=7, remark="r")
RESULTS: list[tuple[Any, Any]] = [
    (Plain, Plain(id=3)),
    (Aliased, ALIASED),
    (list[Aliased], [ALIASED, ALIASED]),
    (dict[str, Aliased], {"a": ALIASED}),
    (Aliased | None, ALIASED),
    (tuple[Aliased, int], (ALIASED, 1)),
    (Camel, Camel.model_validate({"orderId": 1, "lineItems": [ALIASED]})),
    (ByName, ByName.model_validate({"order_id": 3})),
    (ByAlias, ByAlias(orderId=3)),
    (TwoAliases, TwoAliases.model_validate({"from_api": 4})),
    (Choices, Choices.model_validate({"oid": 4, "names": ["y"]})),
    (Swapped, Swapped.model_validate({"a": 1, "b": 2})),
    (Optional_, Optional_(orderId=4)),
    (Computed, Computed(cents=5)),
    (Extra, Extra.model_validate({"id": 1, "more": {"a": 1}})),
    (Private, Private(id=1)),
    (Loads, Loads.model_validate({"rows": "[1, 2]"})),
    (Home, Home.model_validate({"pet": {"petKind": "dog"}, "spare": {"petKind": "cat"}})),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        Cat.model_validate({"petKind": "cat", "livesLeft": 3}),
    ),
    (Page[Aliased], Page[Aliased](pageItems=[ALIASED])),
    (Page[int], Page[int](pageItems=[1])),
    (Names, Names({"a": ALIASED})),
    (Receipt, Receipt(1, DAY, ("a",))),
    (list[Receipt], [Receipt(1, DAY)]),
    (Checked, Checked(theId=4)),
    (Struct, Struct(1, DAY)),
    (list[Struct], [Struct(1, DAY)]),
    (Renamed, Renamed(1)),
    (Typed, {"when": DAY}),
    (TypedWithModel, {"when": DAY, "of": ALIASED}),
    (Named, Named(1, DAY)),
    (Attrs, Attrs(1, ["a"])),
    (list[Attrs], [Attrs(1)]),
    (date, DAY),
    (set[int], {1, 2}),
    (bytes, b"\xff\x00"),
]


@table(("declared", "result"), RESULTS)
async def test_a_tools_result_comes_back_equal_in_another_process(
    tmp_path: Path, declared: Any, result: Any
) -> None:
    paid: list[int] = []

    async def pay(cents: int) -> Any:
        paid.append(cents)
        return result

    pay.__annotations__["return"] = declared
    tool = triage.tool(effect="once")(pay)
    processes: list[Any] = []

    async def works(task: str) -> str:
        processes.append(await tool(5))
        if len(processes) == 1:
            raise Killed
        assert type(processes[1]) is type(result)
        assert processes[1] == result
        return "paid"

    assert await in_two_processes(works, tmp_path, **ESCALATES) == "paid"
    assert paid == [5]


@table(("declared", "result"), RESULTS)
async def test_a_runs_result_comes_back_equal(tmp_path: Path, declared: Any, result: Any) -> None:
    async def works(task: str) -> Any:
        return result

    works.__annotations__["return"] = declared
    store = SQLiteStore(tmp_path / "runs.db")
    agent: Agent[Any] = Agent(works, store=store, **ESCALATES)
    assert await agent.run("x", run_id="run") is result
    found = await agent.recover("run")
    await store.close()
    assert type(found) is type(result)
    assert found == result


class Closed:
    """A result that no declaration reads back."""


@table("policy", [None, FailurePolicy.recommended()])
async def test_a_result_that_is_lost_is_told_as_such_and_not_tried_again(
    tmp_path: Path, policy: Any
) -> None:
    paid: list[int] = []
    calls: list[int] = []

    @triage.tool(effect="once")
    async def pay(cents: int) -> Closed:
        paid.append(cents)
        return Closed()

    async def works(task: str) -> str:
        calls.append(1)
        await pay(5)
        if len(calls) == 1:
            raise Killed
        return "paid"

    options = {"name": "shop"} if policy is None else {"name": "shop", "policy": policy}
    with pytest.raises(TriageEscalationError) as ended:
        await in_two_processes(works, tmp_path, **options)
    assert isinstance(ended.value.__cause__, ResultLost)
    assert ended.value.diagnosis is not None
    assert ended.value.diagnosis.cause == "result_lost"
    assert ended.value.diagnosis.severity == "critical"
    assert ended.value.diagnosis.failure_type is not FailureType.UNKNOWN
    assert len(calls) == 2  # once in each process
    assert paid == [5]
