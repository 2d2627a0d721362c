"""The scenarios of answers that come in pieces."""

from __future__ import annotations

from typing import Any

from triage.events import StepRecorded
from triage.steps import Step
from triage.taxonomy import FailureType

from ._bench import Bench
from ._play import Played, play
from ._scenarios import BOTH, CHARGE, RETRY, SEARCH
from ._script import Cut, Heard, Rule, Script, says

WORDS = "all of it is done"
SPOKEN = (Rule(says(WORDS), "receipt 5"), *BOTH[1:])


async def streaming(bench: Bench) -> None:
    """Answers in pieces: given on as they come, and recorded as whole answers are."""
    whole = await play(bench, Script(SPOKEN))
    done = await play(bench, Script(SPOKEN, streamed=True))
    done.check_done(WORDS)
    found, wanted = [_shown(step) for step in done.steps], [_shown(step) for step in whole.steps]
    assert found == wanted, f"the steps are {found}; of whole answers they are {wanted}"
    (pieces,) = done.heard
    assert "".join(pieces) == WORDS, f"the caller was given {pieces}"
    assert len(pieces) > 1, "the caller was given the answer in one piece"
    log = done.world.log
    first = next(at for at, entry in enumerate(log) if isinstance(entry, Heard))
    ended = next((at for at, entry in enumerate(log) if _says(entry, WORDS)), -1)
    assert first < ended, "the answer was complete before the caller was given any of it"


async def broken_stream(bench: Bench) -> None:
    """A connection that breaks in the middle of an answer: no answer, and only that is asked again."""
    await _cut(bench, Cut(says(WORDS)))


async def unfinished_stream(bench: Bench) -> None:
    """A stream that ends in the middle as if all were well: no answer either."""
    await _cut(bench, Cut(says(WORDS), silently=True))


async def _cut(bench: Bench, cut: Cut) -> None:
    rules = (Rule(says(WORDS), "found 17"), Rule(SEARCH, "receipt 5"), Rule(CHARGE))
    done = await play(bench, Script(rules, faults={3: cut}, streamed=True), policy=RETRY)
    done.check_done(WORDS)
    assert done.world.deeds == ["charge(300)", "search(x)"], done.world.deeds
    assert len(done.world.requests) == 4, f"{len(done.world.requests)} requests, not 4"
    failure = done.failure
    assert failure.failure_type is FailureType.EXTERNAL_FAULT, failure.diagnosis
    _check_heard(done)
    answers = [(step.error is not None, step.llm_output) for step in done.models[2:]]
    assert answers == [(True, None), (False, WORDS)], f"the answers are recorded as {answers}"


def _check_heard(done: Played) -> None:
    """What came twice came in two attempts, of which the caller is told by the events."""
    given = ["".join(pieces) for pieces in done.heard]
    assert len(given) == 2, f"{len(given)} attempts, not 2"
    half, all_of_it = given
    assert half, "the caller was given nothing of the answer that broke off"
    assert half in WORDS[:-1], f"the caller was given {half!r} first"
    assert all_of_it == WORDS, f"the second attempt gave the caller {all_of_it!r}"


def _says(entry: object, words: str) -> bool:
    return isinstance(entry, StepRecorded) and entry.step.llm_output == words


def _shown(step: Step) -> tuple[Any, ...]:
    """What must be the same however an answer comes."""
    used = None if step.usage is None else (step.usage.input_tokens, step.usage.output_tokens)
    return (
        step.action, step.tool_called, step.tool_input, step.tool_output, step.llm_output, step.error,
        step.effect, used,
    )  # fmt: skip
