"""Results that are reused: their types, and what cannot be read back."""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
from calls import LOST, Killed, in_two_processes, recovers
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

import triage
from triage import (
    Agent,
    Escalate,
    ResultLost,
    Retry,
    Run,
    Step,
    TriageEscalationError,
    TriageSuspendedError,
)

pytestmark = pytest.mark.anyio


class Ticket(BaseModel):
    city: str


async def test_a_reused_result_has_its_declared_type_and_is_nobody_elses() -> None:
    @triage.tool(effect="once")
    async def typed() -> list[Ticket]:
        return [Ticket(city="Rome")]

    @triage.tool(effect="once")
    async def tuple_(n: int) -> tuple[int, int]:
        return (n, n)

    @triage.tool(effect="once")
    async def untyped():  # type: ignore[no-untyped-def] # noqa: ANN202 - without an annotation on purpose
        return {"list": [1]}

    seen: list[Any] = []

    async def works(task: str, *, run: Run) -> None:
        values = [await typed(), await tuple_(1), await untyped()]  # type: ignore[no-untyped-call] # as above
        seen.append(values)
        if run.attempt == 1:
            values[0].append("spoiled")
            values[2]["list"].append("spoiled")
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert seen[1] == [[Ticket(city="Rome")], (1, 1), {"list": [1]}]


async def test_a_result_without_a_json_form_is_reused_in_this_process() -> None:
    class Opaque:
        pass

    made: list[Opaque] = []

    @triage.tool(effect="once")
    async def make() -> Opaque:
        made.append(Opaque())
        return made[-1]

    async def works(task: str, *, run: Run) -> bool:
        value = await make()
        if run.attempt == 1:
            raise ConnectionError("late")
        return value is made[0]

    assert await Agent(works, **recovers(Retry())).run("t")
    assert len(made) == 1


# In another process -------------------------------------------------------------------------------


class Suit(Enum):
    HEARTS = "h"


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Parcel:
    raw: bytes
    sent: dt.datetime
    suits: frozenset[Suit] = frozenset()


KINDS: list[tuple[Any, Any]] = [
    (Ticket, Ticket(city="Rome")),
    (list[Ticket], [Ticket(city="Rome"), Ticket(city="Oslo")]),
    (Parcel, Parcel(b"\x00\xff", dt.datetime(2026, 1, 2, tzinfo=dt.UTC), frozenset({Suit.HEARTS}))),
    (Point, Point(1, 2)),
    (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)),
    (dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
    (PurePosixPath, PurePosixPath("a/b")),
    (bytes, b"\x00\xff"),
    (Suit, Suit.HEARTS),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (frozenset[bytes], frozenset({b"\xff"})),
    (dict[int, str], {1: "a"}),
    (float, math.inf),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Ticket | None, None),
    (str | dt.datetime, "2026-01-02T00:00:00"),
    (dict[str, Any], {"a": [1, None, "x"]}),
]


@given(st.timedeltas(min_value=dt.timedelta(days=-999_999_998)))
def test_a_length_of_time_is_read_back_to_the_microsecond(length: dt.timedelta) -> None:
    text = Step(action="call", tool_output=length).tool_output
    assert text.lstrip("-").startswith("P")
    assert TypeAdapter(dt.timedelta).validate_json(json.dumps(text)) == length


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=lambda given: str(given)[:40])
async def test_a_result_comes_back_in_another_process_as_it_was(
    kind: Any, value: Any, tmp_path: Path
) -> None:
    made: list[str] = []

    async def make() -> Any:
        made.append("made")
        return value

    make.__annotations__["return"] = kind
    tool = triage.tool(effect="once")(make)

    async def works(task: str, *, run: Run) -> bool:
        result = await tool()
        assert type(result) is type(value)
        assert result == value
        if "cut" not in made:
            made.append("cut")
            raise Killed
        return True

    assert await in_two_processes(works, tmp_path)
    assert made == ["made", "cut"]


class Opaque:
    pass


class Special(Ticket):
    extra: int = 0


def no_annotation() -> Any:
    return (1, 2)


def opaque() -> Opaque:
    return Opaque()


def ambiguous() -> str | dt.date:
    return dt.date(2026, 1, 2)


def more_than_declared() -> list[Ticket]:
    return [Special(city="Rome", extra=1)]


LOST_ONES = [no_annotation, opaque, ambiguous, more_than_declared]


@pytest.mark.parametrize("make", LOST_ONES)
async def test_a_result_that_would_come_back_as_another_is_lost_and_said_so(
    make: Any, tmp_path: Path
) -> None:
    made: list[Any] = []

    @triage.tool(effect="once")
    @functools.wraps(make)
    def once() -> Any:
        made.append(make())
        return made[-1]

    async def works(task: str, *, run: Run) -> None:
        await run.call(once)
        if len(made) == 1 and not run.history:
            made.append("cut")
            raise Killed

    with pytest.raises(TriageEscalationError) as caught:
        await in_two_processes(works, tmp_path, **recovers(Escalate()))
    lost = caught.value.__cause__
    assert isinstance(lost, ResultLost)
    assert "return annotation" in str(lost)
    assert lost.tool == make.__name__
    assert len(made) == 2


@pytest.mark.parametrize("make", LOST_ONES)
async def test_it_is_the_same_object_in_its_own_process(make: Any) -> None:
    made: list[Any] = []

    @triage.tool(effect="once")
    @functools.wraps(make)
    def once() -> Any:
        made.append(make())
        return made[-1]

    async def works(task: str, *, run: Run) -> bool:
        result = once()
        if run.attempt == 1:
            raise ConnectionError("late")
        return result is made[0]

    assert await Agent(works, **recovers(Retry())).run("t")
    assert len(made) == 1


async def test_a_read_whose_result_is_lost_is_made_again(tmp_path: Path) -> None:
    made: list[Opaque] = []

    @triage.tool(effect="read")
    def look() -> Opaque:
        made.append(Opaque())
        return made[-1]

    async def works(task: str, *, run: Run) -> bool:
        result = look()
        if len(made) == 1:
            raise Killed
        return result is made[1]

    assert await in_two_processes(works, tmp_path)
    assert len(made) == 2


async def test_an_annotation_of_a_nested_class_is_found(tmp_path: Path) -> None:
    class Inner(BaseModel):
        n: int

    made: list[Inner] = []

    @triage.tool(effect="once")
    async def make() -> Inner:
        made.append(Inner(n=1))
        return made[-1]

    async def works(task: str, *, run: Run) -> int:
        result = await make()
        if len(made) == 1 and made[0] is result:
            raise Killed
        return result.n

    assert await in_two_processes(works, tmp_path) == 1
    assert len(made) == 1


async def test_what_a_person_says_has_happened_is_of_the_declared_type(tmp_path: Path) -> None:
    @triage.tool(effect="once")
    async def book() -> Ticket:
        raise LOST

    async def works(task: str, *, run: Run) -> str:
        return (await book()).city

    agent = Agent(works, **recovers(Retry()))
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    assert await agent.resume(caught.value.token, triage.happened({"city": "Rome"})) == "Rome"
