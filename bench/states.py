"""How far the calls of recorded agents had come when these failed: python -m bench.states [--records FILE].

Each recorded run is played by a plain loop that declares nothing: its model asks for the recorded calls,
and its tools give the recorded results. It fails twice: in its last tool, and in its own code behind the
last answer. What is printed is what the wire has told of each call by then, and whether the function is
called again. Exits with 0 where there are no records, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from triage import Agent, Checks, FailurePolicy, Retry, TriageEscalationError
from triage.core import Effect, Event, StepRecorded, infer_effect
from triage.core.taxonomy import names_a_change
from triage.engine.undeclared import SEEN
from triage.testing import VirtualTime

RECORDS = Path(__file__).resolve().parents[2] / "shared" / "trajectories" / "dev.jsonl.gz"
KINDS = ("change", "read", "other")
STATES = ("ended", "may have happened", "not asked for")
"""How far a call has come. The recorded agents ask for one at a time, so that none waits for another."""


class Call(NamedTuple):
    """A recorded call."""

    tool: str
    arguments: dict[str, Any]
    result: str

    @property
    def kind(self) -> str:
        """What its name says that it does."""
        if names_a_change(self.tool):
            return "change"
        return "read" if infer_effect(self.tool) is Effect.READ else "other"


def calls_in(record: dict[str, Any]) -> list[Call]:
    """The calls of a recorded run, in order."""
    return [
        Call(
            step["tool_called"],
            step["tool_input"] if isinstance(step["tool_input"], dict) else {},
            str(step["tool_output"] if step["tool_output"] is not None else step["error"] or ""),
        )
        for step in record["steps"]
        if step["tool_called"]
    ]


class Played(NamedTuple):
    """One run that failed. states: of its calls, in order. again: its function was called again."""

    calls: list[Call]
    states: list[str]
    again: bool


async def play(calls: list[Call], *, in_tool: bool) -> Played:
    """Play a run that fails once, in its last tool or behind its last answer."""
    events: list[Event] = []
    broken = [ConnectionError("the connection broke off")]

    def answer(request: httpx.Request) -> httpx.Response:
        turn = sum(m["role"] == "assistant" for m in json.loads(request.content)["messages"])
        said: dict[str, Any] = {"role": "assistant", "content": "It is done."}
        if turn < len(calls):
            given = json.dumps(calls[turn].arguments)
            function = {"name": calls[turn].tool, "arguments": given}
            said["tool_calls"] = [{"id": f"c{turn}", "type": "function", "function": function}]
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice]})

    async def loop(task: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(base_url="http://model", transport=transport) as client:
            for call in calls:
                asked = {"model": "m", "messages": messages}
                said = (await client.post("/v1/chat/completions", json=asked)).json()
                messages.append(said["choices"][0]["message"])
                if in_tool and call is calls[-1] and broken:
                    raise broken.pop()
                id_ = messages[-1]["tool_calls"][0]["id"]
                messages.append({"role": "tool", "tool_call_id": id_, "content": call.result})
            await client.post("/v1/chat/completions", json={"model": "m", "messages": messages})
        if broken:
            raise broken.pop()
        return "done"

    def note(event: Event) -> None:
        if isinstance(event, StepRecorded) and event.attempt == 1:
            events.append(event)

    # Loops of the recorded agents are no matter here.
    agent = Agent(
        loop,
        FailurePolicy(default=Retry()),
        environment=VirtualTime(),
        observers=[note],
        checks=Checks(watch=False),
    )
    try:
        await agent.run("t")
        again = True
    except TriageEscalationError:
        again = False
    return Played(calls, list(_states(calls, events)), again)


def _states(calls: list[Call], events: list[Event]) -> Iterator[str]:
    """How far each call has come by what the wire has told."""
    steps = [event.step for event in events if isinstance(event, StepRecorded)]
    seen = [step for step in steps if (step.metadata or {}).get(SEEN) is True]
    asked = sum(step.action == "model" and bool(step.tool_output) for step in seen)
    ended = sum(step.tool_called is not None for step in seen)
    for at, _ in enumerate(calls):
        if at < ended:
            yield "ended"
        else:
            yield "may have happened" if at < asked else "not asked for"


def table(played: list[Played]) -> str:
    """Calls by kind and state, and runs by what came of them."""
    counted = Counter(
        (call.kind, state)
        for one in played
        for call, state in zip(one.calls, one.states, strict=True)
    )
    rows = [f"| calls | {' | '.join(STATES)} |", "|---" * (1 + len(STATES)) + "|"]
    rows += [
        f"| {kind} | {' | '.join(str(counted[kind, state]) for state in STATES)} |"
        for kind in KINDS
    ]
    changed = [one for one in played if any(call.kind == "change" for call in one.calls)]
    stopped = [one for one in played if not one.again]
    rows.append("")
    rows.append(
        f"{len(played)} runs, {len(changed)} with a change; {len(stopped)} are not called again, "
        f"of which {sum(one in changed for one in stopped)} have one"
    )
    return "\n".join(rows)


async def main(arguments: list[str]) -> int:
    """Play all records, and print what was counted."""
    parser = argparse.ArgumentParser(prog="python -m bench.states", description=__doc__)
    parser.add_argument(
        "--records", type=Path, default=RECORDS, help="lines of JSON, packed by gzip"
    )
    given = parser.parse_args(arguments)
    if not given.records.exists():
        print(f"left out: there are no recorded trajectories at {given.records.name}")
        return 0
    with gzip.open(given.records, "rt", encoding="utf-8") as lines:
        runs = [calls for line in lines if (calls := calls_in(json.loads(line)))]
    for title, in_tool in (("in the last tool", True), ("behind the last answer", False)):
        print(f"It fails {title}:\n")
        print(table([await play(calls, in_tool=in_tool) for calls in runs]), end="\n\n")
    return 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(asyncio.run(main(sys.argv[1:])))
