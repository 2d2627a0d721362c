"""What a tool, a model or an error says never makes a run less careful than neutral words do."""

from __future__ import annotations

import anyio
from tables import covering, table

from bench import hostile

KINDS = (
    "once",
    "undeclared",
    "read",
    "model",
    "agent",
    "step",
    "guard",
    "approval",
    "compensation",
    "secret",
)


@table("kind", KINDS)
def test_no_words_make_a_run_less_careful(kind: str) -> None:
    channels = [name for name in hostile.CHANNELS if name.partition(":")[0] == kind]
    assert channels
    rows = covering(channels, hostile.WORDS, times=2)  # `make attack` has all in all

    async def compare() -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for name in channels:
            words = {word: hostile.WORDS[word] for other, word in rows if other == name}
            found[name] = await hostile.compare(name, words)
        return {name: less for name, less in found.items() if less}

    assert anyio.run(compare) == {}


def test_every_channel_is_compared_and_neutral_words_are_judged_as_expected() -> None:
    assert {name.partition(":")[0] for name in hostile.CHANNELS} == set(KINDS)

    async def neutral(name: str) -> hostile.Outcome:
        return await hostile.outcome(hostile.CHANNELS[name], hostile.NEUTRAL)

    asked = anyio.run(neutral, "once: message")
    assert (asked.ran, asked.asked) == ({"once": 1}, ["in_doubt"])
    held = anyio.run(neutral, "approval: arguments")
    assert ("once" in held.ran, held.asked) == (False, ["needs_approval"])
    assert anyio.run(neutral, "compensation: receipt and error").ran == {"once": 1, "refund": 1}
    assert anyio.run(neutral, "model: answer before a refused key").severities == ["critical"]
