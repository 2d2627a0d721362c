"""The scenarios of calls that were left open, and of retries underneath."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count

from triage.limits import Limits

from ._bench import Bench
from ._play import HINT, play
from ._scenarios import HINTED, SEARCH, SECONDS
from ._script import BEFORE, HANGS, Call, Fails, Rule, Script, says
from ._wire import results_in

_numbers = count(1_000)


async def open_call(bench: Bench) -> None:
    """A conversation that stopped at a call without a result: it is given one, and not made."""
    script = Script((Rule(says("done")),), open_call=Call("charge", {"cents": 300}))
    done = await play(bench, script)
    done.check_done()
    assert not done.world.deeds, f"it called {done.world.deeds}"
    (request,) = done.world.requests
    assert BEFORE in request.text, "what was said before is not in the request"
    told = results_in(request)
    assert [tool for tool, _ in told] == ["charge"], f"the results in the request are {told}"
    assert "receipt" not in told[0][1], f"the result is made up: {told}"


async def interrupted_turn(bench: Bench) -> None:
    """A tool that was cut off, and a new plan: its call is closed or left out, and no result made up."""
    rules = (Rule(says("done"), HINT), Rule(SEARCH))
    script = Script(rules, tools={"search": (HANGS,)})
    limits = Limits(attempts=2, attempt_seconds=SECONDS)
    done = await play(bench, script, policy=HINTED, limits=limits)
    done.check_done()
    assert done.told() == [0, 1], f"the hint stands so often in the requests: {done.told()}"
    assert done.count("search(x)") == 1, done.world.deeds
    assert done.world.cancelled == ["search"], "the tool did not hear that it was cut off"
    told = [result for tool, result in results_in(done.world.requests[-1]) if tool == "search"]
    assert not any("found" in result for result in told), f"the result is made up: {told}"


async def nested_retries(bench: Bench) -> None:
    """A client that tries again by itself: it is said, with how often and the remedy, and only then."""
    quiet = Script((Rule(says("done")),))
    with _log() as said:
        (await play(bench, quiet)).check_done()
        assert not said, f"it is said of a client that tries once: {said}"
        # The log says it once of each number; so each play has its own.
        often = next(_numbers)
        refused = {1: Fails(503, "Overloaded", 0.0)}
        done = await play(bench, quiet._replace(retries=often, faults=refused))
    done.check_done()
    assert len(done.world.requests) == 2, "the client did not try again by itself"
    # A wrapper of a client may be named, too.
    told = [text for text in said if f"retries up to {often} times by itself" in text]
    assert told, f"what is said of the client's {often} retries: {said}"
    assert all("max_retries=0" in text for text in told), f"the remedy is not said: {told}"


@contextmanager
def _log() -> Generator[list[str]]:
    """What is said of retries while the block runs."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger("triage.retries"), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)  # a framework may have set another for all logs
    try:
        yield said
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
