"""A framework of our own with its adapter, for tests of what is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import triage
from triage import Step, Usage
from triage.adapters import Adapter, Form, Seam
from triage.core import Event, StepRecorded
from triage.core.capture import capture
from triage.core.messages.neutral import Answer, Asked
from triage.strategies import Prices

# The first exception that is read looks where packages are installed, and the first tokens are priced
# by a list that is read from a file, which no test's loop may do.
capture(triage.UsageError())
Prices()


def read(data: Any) -> Answer:
    return Answer(
        data.get("text", ""),
        tuple(Asked("", name, {}) for name in data.get("asks", ())),
        Usage(7, 3, model="m"),
        data.get("ended"),
    )


FORM = Form(read=read)
Course = Callable[["Framework", Seam], Any]


class Framework:
    """A framework whose agent does what its course says. asked: the hint of each request that was sent."""

    def __init__(self, course: Course, faults: dict[int, BaseException] | None = None) -> None:
        self.course = course
        self.faults = faults or {}
        self.asked: list[tuple[str, str | None]] = []
        self.did: list[str] = []

    async def model(self, seam: Seam, said: str, answer: Any = None, **options: Any) -> Any:
        async def ask(hint: str | None) -> Any:
            self.asked.append((said, hint))
            if len(self.asked) in self.faults:
                raise self.faults[len(self.asked)]
            return answer or {"text": f"on {said}"}

        return await seam.model(ask, form=FORM, request=said, said=said, model="m", **options)

    async def tool(self, seam: Seam, name: str, **options: Any) -> Any:
        async def do() -> str:
            self.did.append(name)
            return f"{name} done"

        return await seam.tool(name, {"n": 1}, do, **options)


class Theirs(Adapter):
    name = "theirs"

    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        return await self.target.course(self.target, seam, **kwargs)


class Poor(Theirs):
    cannot: ClassVar[Mapping[str, str]] = {
        "rollback": "it has one way only",
        "hint": "its prompt is fixed",
    }


def recording(framework: Framework, adapter: type[Adapter] = Theirs, **options: Any) -> Any:
    events: list[Event] = []
    agent = triage.wrap(framework, adapter=adapter, observers=[events.append], **options)
    return agent, events


def steps_of(events: list[Event]) -> list[Step]:
    return [event.step for event in events if isinstance(event, StepRecorded)]


async def three(framework: Framework, seam: Seam) -> str:
    for n in range(3):
        await framework.model(seam, f"turn {n}")
        await framework.tool(seam, "charge" if n == 1 else "look", id=f"call {n}")
    return "end"
