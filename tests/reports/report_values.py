"""What the tests of reports share: failures of all kinds, and objects that fight back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

from triage import Diagnosis, ErrorInfo, FailureContext, FailureType, Retry, Step, Trajectory, Usage
from triage.core import Attempt, Evidence
from triage.reports import AttemptFacts, CapabilityFacts, CounterFacts, Facts, StepFacts

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
RUN = "run-4711-abcdef"
DIAGNOSIS = Diagnosis(
    FailureType.EXTERNAL_FAULT,
    cause="timeout",
    evidence=(Evidence("name.timeout", "class ArchiveTimeoutError"),),
    user_message="The archive took too long to answer.",
    technical_details="ArchiveTimeoutError: no answer from db-7 within 30 s",
    hint="Ask for less.",
    suggestions=("Ask for a smaller range.",),
    critical_step=1,
    classifier="rules",
)
INNER = ErrorInfo("SocketGoneError", message="reset by peer", relation="cause")
ERROR = ErrorInfo(
    "ArchiveTimeoutError",
    "archive",
    ("archive.ArchiveTimeoutError",),
    f"no answer with key {SECRET}",
    504,
    "GATEWAY",
    related=(INNER,),
)
STEPS = (
    Step(action="plan", tool_called="list_channels", tool_input={"q": "beam"}, tool_output=[1, 2]),
    Step(
        tool_called="read_archive",
        tool_input={"api_key": SECRET},
        error="ArchiveTimeoutError: no answer",
        exception_type="ArchiveTimeoutError",
        duration_s=30.0,
    ),
)


def context(**fields: Any) -> FailureContext:
    """The second failure of a run: one step had worked, one had not."""
    first = Attempt(
        1,
        Trajectory(STEPS[:1]),
        {},
        ERROR,
        DIAGNOSIS,
        Retry(hint="Ask for less.", delay=2.0),
        Usage(10, 2, 0.001),
        100.0,
        103.0,
    )
    given: dict[str, Any] = {
        "run_id": RUN,
        "task": "Show the beam current of last week",
        "attempt": 2,
        "diagnosis": DIAGNOSIS,
        "error": ERROR,
        "trajectory": Trajectory(STEPS, error=ERROR),
        "usage": Usage(100, 20, 0.01, 3),
        "attempt_history": (first,),
        "tools": ("list_channels", "read_archive"),
        "elapsed_s": 35.2,
    }
    return FailureContext(**{**given, **fields})


PLAN = Facts(
    task="Show the beam current of last week",
    failed="step 2, archive_retrieval",
    user_message="The archive took too long to answer.",
    steps=(
        StepFacts(1, "channel_finding", "done", "Find the channels of the beam current"),
        StepFacts(
            2,
            "archive_retrieval",
            "failed",
            "Read last week's values",
            criteria="one value a minute",
            error="ArchiveTimeoutError",
        ),
        StepFacts(3, "respond", "open", "Show them"),
    ),
    attempts=(AttemptFacts(1, user_message="The archive did not answer.", action="replan"),),
    counters=(CounterFacts("replans", 1, 2), CounterFacts("retries of step 2", 3, 3)),
    capabilities=(CapabilityFacts("archive_retrieval", "reads recorded values"),),
    next_steps=("Ask for a shorter time.",),
)


# --- what fights back -----------------------------------------------------------------------------


class Mute:
    """Nothing can be read of it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(name)

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no items")


class Endless(Mapping[str, Any]):
    """It never ends."""

    def __getitem__(self, key: str) -> Any:
        return self

    def __iter__(self) -> Iterator[str]:
        while True:
            yield "key"

    def __len__(self) -> int:
        return 1 << 62


class EndlessList(list[Any]):
    """It says that it has one item and never ends."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self


class Lies:
    """It says that it is something else, and leaves when it is asked."""

    @property  # type: ignore[misc] # what is tested
    def __class__(self) -> Any:
        return FailureContext

    @property
    def context(self) -> Any:
        raise GeneratorExit


class Loud(Exception):
    """An error all of whose attributes leave the program."""

    def __str__(self) -> str:
        raise SystemExit(1)

    @property
    def context(self) -> Any:
        raise BaseExceptionGroup("both", [SystemExit(2), ValueError("x")])


class Broken(FailureContext, frozen=True):
    """A context of which nothing can be read."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


def cycle() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = [{}]
    found[0]["again"] = found
    return found


HOSTILE: tuple[Any, ...] = (
    Mute(),
    Endless(),
    EndlessList([1]),
    Lies(),
    Loud(),
    cycle(),
    "\ud800 lone \udfff",
    "x" * 5_000_000,
    b"\xff\xfe" * 1_000,
    float("nan"),
    10**5_000,
    iter(int, 1),
    {1: Mute(), "b": Endless()},
    Usage,
    object,
    type("T", (), {"__module__": None}),
    asyncio.CancelledError("as a value"),
)
# By their places: some of them cannot be hashed.
BAD = st.integers(0, len(HOSTILE) - 1).map(HOSTILE.__getitem__)
VALUES = BAD | st.text() | st.none() | st.integers() | st.floats()
