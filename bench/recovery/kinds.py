"""The kinds of failure, and the tasks made of them: kinds by domains by seeds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from .script import Model
from .tasks import Breakage, Outage, Slip, Task
from .world import DOMAINS, Domain

Variant = dict[str, Any]
"""Fields of a `Task`, with `slips`, `outages` and `breakages` as they are there."""


@dataclass(frozen=True)
class Kind:
    """One way in which a task goes."""

    name: str
    group: str
    variants: Callable[[Domain, random.Random], list[Variant]]


KINDS: list[Kind] = []


def kind(group: str) -> Callable[[Callable[..., list[Variant]]], Callable[..., list[Variant]]]:
    """Add a function of domain and chance to the kinds, under its own name."""

    def add(made: Callable[..., list[Variant]]) -> Callable[..., list[Variant]]:
        KINDS.append(Kind(made.__name__, group, made))
        return made

    return add


def v(shape: str, finish: str = "json", **fields: Any) -> Variant:
    """One variant; `slip`, `outage` and `breakage` may be one or several."""
    options = fields.pop("options", {})
    made: Variant = {"shape": shape, "finish": finish, "options": options}
    for one, many in (("slip", "slips"), ("outage", "outages"), ("breakage", "breakages")):
        given = fields.pop(one, ())
        made[many] = given if isinstance(given, tuple) else (given,)
    return made | fields


# ---------------------------------------------------------------- the provider fails


@kind("recoverable")
def unavailable_once(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", outage=Outage("search", "503", times=1)),
        v("code", outage=Outage("note", "500", times=1)),
        v("buy", outage=Outage("detail", "503", times=1)),
        v("audit", "int", outage=Outage("detail5", "503", times=1), options={"turns": 30}),
        v("trip", "complete", outage=Outage("final", "500", times=1)),
    ]


@kind("recoverable")
def outage_for_a_while(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", outage=Outage("final", "503", seconds=rng.choice((20, 45, 90)))),
        v("buy", outage=Outage("final", "503", seconds=rng.choice((30, 60, 150)))),
        v("code", "text", outage=Outage("detail", "500", seconds=rng.choice((20, 40, 120)))),
        v("cheapest", outage=Outage("detail2", "503", seconds=rng.choice((25, 75, 200)))),
    ]


@kind("recoverable")
def rate_limited(d: Domain, rng: random.Random) -> list[Variant]:
    wait = float(rng.choice((5, 20, 45, 90)))
    return [
        v("price", outage=Outage("search", "429", seconds=wait - 2, retry_after=wait)),
        v("buy", outage=Outage("act", "429", seconds=wait - 2, retry_after=wait)),
        v("trip", "complete", outage=Outage("final", "429", seconds=wait - 2, retry_after=wait)),
        v("code", "grounded", outage=Outage("note", "429", times=2)),
    ]


@kind("recoverable")
def error_in_200(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", outage=Outage("detail", "error_in_200", times=1)),
        v("buy", outage=Outage("final", "error_in_200", times=1)),
        v("code", "text", outage=Outage("search", "error_in_200", times=2)),
    ]


@kind("recoverable")
def dropped_connection(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", "int", outage=Outage("final", "drop", times=1)),
        v("buy", outage=Outage("act", "drop", times=1)),
        v("cheapest", outage=Outage("detail1", "drop", times=2)),
    ]


@kind("recoverable")
def malformed_body(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", outage=Outage("final", "bad_json", times=1)),
        v("buy", outage=Outage("detail", "bad_json", times=1)),
        v("compare", outage=Outage("details", "bad_json", times=1)),
    ]


@kind("recoverable")
def answer_cut_off(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("final", "half"), wasted=1),
        v("buy", slip=Slip("final", "half"), wasted=1),
        v("price", "pydantic", slip=Slip("final", "half", "twice"), wasted=2),
        v("trip", "complete", slip=Slip("final", "half", "told"), wasted=1),
        v("code", "text", slip=Slip("final", "half"), wasted=1),
    ]


@kind("recoverable")
def empty_answer(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("final", "empty"), wasted=1),
        v("code", "text", slip=Slip("final", "empty"), wasted=1),
        v("buy", slip=Slip("final", "empty", "told"), wasted=1),
        v("price", "int", slip=Slip("final", "empty"), wasted=1),
    ]


@kind("recoverable")
def context_overflow(d: Domain, rng: random.Random) -> list[Variant]:
    greedy = {"greedy": True, "room": 60_000}
    return [
        v("price", options=greedy, wasted=1),
        v("buy", options=greedy, wasted=1),
        v("compare", options=greedy, wasted=1),
        v("trip", "complete", options={**greedy, "room": 150_000}, wasted=2),
    ]


@kind("recoverable")
def overflow_twice(d: Domain, rng: random.Random) -> list[Variant]:
    rooms = {"room": 60_000, "last_room": 12_000}
    last = Slip("final", "catalogue")
    return [
        v("two", slip=(Slip("detail1", "catalogue"), last), options=rooms, wasted=2),
        v("buy_then_read", slip=(Slip("note", "catalogue"), last), options=rooms, wasted=2),
        v("buy", slip=(Slip("act", "catalogue"), last), options=rooms, wasted=2),
    ]


# ---------------------------------------------------------------- the model errs


@kind("recoverable")
def prose_for_json(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("final", "prose"), wasted=1),
        v("code", slip=Slip("final", "prose", "told"), wasted=1),
        v("buy", slip=Slip("final", "prose", "twice"), wasted=2),
        v("trip", "complete", slip=Slip("final", "prose"), wasted=1),
        v("price", slip=Slip("final", "null"), wasted=1),
    ]


@kind("recoverable")
def fenced_json(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("final", "fenced", "told"), wasted=1),
        v("price", "pydantic", slip=Slip("final", "fenced"), wasted=1),
        v("buy", slip=Slip("final", "fenced", "told"), wasted=1),
    ]


@kind("recoverable")
def missing_key(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("final", "missing_key"), wasted=1),
        v("price", slip=Slip("final", "renamed_key", "named", ("price",)), wasted=1),
        v("code", slip=Slip("final", "missing_key", "told"), wasted=1),
        v("buy", slip=Slip("final", "missing_key", "named", ("price",)), wasted=1),
    ]


@kind("recoverable")
def no_number(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", "int", slip=Slip("final", "about"), wasted=1),
        v("audit", "int", slip=Slip("final", "about"), options={"turns": 30}, wasted=1),
        v("buy", "int", slip=Slip("final", "about", "told"), wasted=1),
        v("poll", "int", slip=Slip("final", "about", "told"), wasted=1),
    ]


@kind("recoverable")
def validation_error(d: Domain, rng: random.Random) -> list[Variant]:
    named = ("price",)
    return [
        v("price", "pydantic", slip=Slip("final", "wrong_type"), wasted=1),
        v("price", "pydantic", slip=Slip("final", "wrong_type", "named", named), wasted=1),
        v("cheapest", "pydantic", slip=Slip("final", "missing_key", "told"), wasted=1),
        v("compare", "pydantic", slip=Slip("final", "renamed_key"), wasted=1),
    ]


@kind("recoverable")
def unknown_tool(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("search", "misnamed"), wasted=1),
        v("code", slip=Slip("note", "misnamed", "told"), wasted=1),
        v("buy", slip=Slip("act", "misnamed"), wasted=1),
        v("price", slip=Slip("detail", "misnamed", "named", (d.detail,)), wasted=1),
        v("cheapest", slip=Slip("detail2", "misnamed"), wasted=1),
    ]


@kind("recoverable")
def bad_arguments(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("detail", "misplaced"), wasted=1),
        v("buy", slip=Slip("act", "misplaced", "told"), wasted=1),
        v("code", slip=Slip("note", "misplaced"), wasted=1),
        v("compare", slip=Slip("search", "misplaced", "told"), wasted=1),
    ]


@kind("recoverable")
def broken_arguments(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("search", "broken_arguments"), wasted=1),
        v("buy", slip=Slip("act", "broken_arguments"), wasted=1),
        v("code", slip=Slip("detail", "broken_arguments", "told"), wasted=1),
    ]


@kind("recoverable")
def early_mistake_found_by_a_tool(d: Domain, rng: random.Random) -> list[Variant]:
    gone = {"bad_file": True}
    return [
        v("code", slip=Slip("detail", "wrong_id"), options=gone, wasted=2),
        v("code", slip=Slip("detail", "wrong_id", "told"), options=gone, wasted=2),
        v("code", "grounded", slip=Slip("detail", "wrong_id"), options=gone, wasted=2),
    ]


@kind("recoverable")
def early_mistake_found_at_the_end(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", "place", slip=Slip("detail", "wrong_id"), wasted="detail"),
        v("price", "place", slip=Slip("detail", "wrong_id", "told"), wasted="detail"),
        v("code", "place", slip=Slip("detail", "wrong_id"), wasted="detail"),
        v("code", "place", slip=Slip("detail", "wrong_id", "told"), wasted="detail"),
    ]


@kind("recoverable")
def wrong_file(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("code", slip=Slip("note", "wrong_file"), wasted=1),
        v("code", "text", slip=Slip("note", "wrong_file", "told"), wasted=1),
        v("buy_then_read", slip=Slip("note", "wrong_file"), wasted=1),
    ]


@kind("recoverable")
def loop(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("detail", "repeat", "told"), wasted=1),
        v("code", slip=Slip("note", "repeat", "told"), wasted=1),
        v("buy", slip=Slip("act", "repeat", "told"), wasted=1),
        v("buy", slip=Slip("final", "repeat", "told"), wasted=1),
    ]


@kind("recoverable")
def loop_of_two(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("detail", "alternate", "told"), wasted=1),
        v("trip", "complete", slip=Slip("final", "alternate", "told"), wasted=1),
    ]


@kind("recoverable")
def loop_of_polls(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("code", slip=Slip("note", "reload", "told"), wasted=1),
        v("price", "int", slip=Slip("final", "reload", "told"), wasted=1),
    ]


@kind("recoverable")
def list_of_failures(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("batch", slip=Slip("final", "hides", "told"), wasted=1)]


@kind("recoverable")
def invented_value(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", "grounded", slip=Slip("final", "invented"), wasted=1),
        v("code", "grounded", slip=Slip("final", "invented", "told"), wasted=1),
        v("buy", "grounded", slip=Slip("final", "invented"), wasted=1),
    ]


@kind("recoverable")
def constraint_ignored(d: Domain, rng: random.Random) -> list[Variant]:
    budget = {"budget": 0}
    return [
        v("cheapest", "budget", slip=Slip("final", "over_budget"), options=budget, wasted=1),
        v("compare", "budget", slip=Slip("final", "over_budget", "told"), options=budget, wasted=1),
        v("compare", "budget", slip=Slip("final", "over_budget", "named", ("budget",)),
          options=budget, wasted=1),
    ]  # fmt: skip


@kind("recoverable")
def incomplete_answer(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("trip", "complete", slip=Slip("final", "incomplete"), wasted=1),
        v("trip", "complete", slip=Slip("final", "incomplete", "told"), wasted=1),
        v(
            "trip",
            "complete",
            slip=Slip("final", "incomplete", "named", ("nothing about",)),
            wasted=1,
        ),
    ]


@kind("recoverable")
def no_such_option(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", "choice", slip=Slip("final", "no_option"), wasted=1),
        v("cheapest", "choice", slip=Slip("final", "no_option", "told"), wasted=1),
    ]


@kind("recoverable")
def tool_error_as_answer(d: Domain, rng: random.Random) -> list[Variant]:
    catches = {"catches": True}
    return [
        v("price", "text", slip=Slip("search", "echo_after_error"), options=catches,
          breakage=Breakage(d.search, "503", times=1), wasted=1),
        v("code", "text", slip=Slip("search", "echo_after_error"), options=catches,
          breakage=Breakage(d.search, "500", times=1), wasted=1),
    ]  # fmt: skip


# ---------------------------------------------------------------- the tools fail


@kind("recoverable")
def flaky_read(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", breakage=Breakage(d.search, "reset", times=1)),
        v("trip", "complete", breakage=Breakage(d.search, "reset", times=1, after=2)),
        v("buy", breakage=Breakage(d.search, "500", times=2)),
        v("code", breakage=Breakage(d.search, "429", times=1, retry_after=8.0)),
    ]


@kind("recoverable")
def locked_database(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", breakage=Breakage(d.detail, "locked", times=1)),
        v("cheapest", breakage=Breakage(d.detail, "locked", times=2, after=2)),
        v("compare", breakage=Breakage(d.detail, "locked", times=1, after=1)),
        v("buy", breakage=Breakage(d.detail, "locked", times=1)),
    ]


@kind("recoverable")
def stale_read(d: Domain, rng: random.Random) -> list[Variant]:
    stale = {"stale": True}
    return [
        v("buy", options=stale, wasted=1),
        v("buy", "int", options=stale, wasted=1),
        v("buy_then_read", options=stale, wasted=1),
    ]


@kind("recoverable")
def expired_credential(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", breakage=Breakage(d.search, "401", times=1)),
        v("trip", "complete", breakage=Breakage(d.search, "401", times=1, after=1)),
        v("poll", "int", breakage=Breakage(d.status, "401", times=1, after=1)),
    ]


@kind("recoverable")
def failure_after_a_purchase(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("buy", outage=Outage("final", "503", times=2)),
        v("buy", slip=Slip("final", "prose"), wasted=1),
        v("buy_then_read", slip=Slip("note", "misnamed"), wasted=1),
        v("two", slip=Slip("detail1", "broken_arguments"), wasted=1),
        v("two", outage=Outage("act1", "drop", times=1)),
        v("buy_then_read", slip=Slip("final", "missing_key", "told"), wasted=1),
    ]


@kind("recoverable")
def purchase_between_two_errors(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("buy", slip=(Slip("detail", "misnamed"), Slip("final", "prose")), wasted=2),
        v("buy", slip=(Slip("search", "broken_arguments"), Slip("final", "missing_key")), wasted=2),
        v("buy_then_read", slip=(Slip("act", "misplaced"), Slip("note", "wrong_file")), wasted=2),
        v("buy", "int", slip=Slip("final", "about"), outage=Outage("detail", "503", times=1),
          wasted=1),
    ]  # fmt: skip


@kind("recoverable")
def reworded_purchase(d: Domain, rng: random.Random) -> list[Variant]:
    words = {"reworded": True}
    return [
        v("buy", slip=Slip("final", "prose"), options=words, wasted=1),
        v("buy", slip=Slip("final", "missing_key", "told"), options=words, wasted=1),
        v("buy_then_read", outage=Outage("note", "500", times=1), options=words),
    ]


@kind("recoverable")
def lost_receipt(d: Domain, rng: random.Random) -> list[Variant]:
    lost = Breakage(d.act, "lost", times=1)
    return [
        v("buy", breakage=lost, may_ask=True),
        v("buy_then_read", breakage=lost, may_ask=True),
        v("two", breakage=Breakage(d.act, "lost", times=1, after=1), may_ask=True),
        v("buy", slip=Slip("final", "prose"), breakage=lost, may_ask=True, wasted=1),
    ]


@kind("recoverable")
def purchase_not_attempted(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("buy", breakage=Breakage("connect", "refused", times=1)),
        v("buy", breakage=Breakage(d.act, "429", times=1, retry_after=15.0)),
        v("buy_then_read", breakage=Breakage(d.act, "503", times=1, retry_after=10.0)),
    ]


@kind("recoverable")
def tool_down_for_minutes(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", breakage=Breakage(d.search, "503", seconds=rng.choice((40, 90, 150, 200)))),
        v(
            "poll",
            "int",
            breakage=Breakage(d.status, "503", seconds=rng.choice((30, 60, 120)), after=1),
        ),
        v("trip", "complete", breakage=Breakage(d.search, "reset", seconds=60, after=1)),
    ]


@kind("recoverable")
def broken_tool_with_a_substitute(d: Domain, rng: random.Random) -> list[Variant]:
    other = {"substitute": True}
    return [
        v("price", breakage=Breakage(d.search, "503"), options=other, wasted=1),
        v("code", breakage=Breakage(d.search, "410"), options=other, wasted=1),
        v("buy", breakage=Breakage(d.search, "503"), options=other, wasted=1),
    ]


@kind("recoverable")
def unreadable_source_with_a_substitute(d: Domain, rng: random.Random) -> list[Variant]:
    other = {"substitute": True}
    return [
        v("price", breakage=Breakage(d.search, "409"), options=other, wasted=1),
        v("code", breakage=Breakage(d.search, "page"), options=other, wasted=1),
        v("buy", breakage=Breakage(d.search, "page"), options=other, wasted=1),
    ]


# ---------------------------------------------------------------- nothing helps


@kind("hopeless")
def bad_key(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("price", outage=Outage("*", "key")), v("buy", outage=Outage("*", "key"))]


@kind("hopeless")
def quota_spent(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("price", outage=Outage("detail", "quota")), v("buy", outage=Outage("final", "quota"))]


@kind("hopeless")
def no_such_model(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("code", outage=Outage("*", "no_model"))]


@kind("hopeless")
def permission_denied(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", breakage=Breakage(d.search, "403")),
        v("buy", breakage=Breakage(d.act, "403")),
    ]


@kind("hopeless")
def tool_nobody_has(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("nobody")]


@kind("hopeless")
def bug_in_the_agent(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("price", options={"bug": True}), v("buy", options={"bug": True})]


@kind("hopeless")
def always_wrong(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("final", "prose", "always")),
        v("buy", slip=Slip("final", "missing_key", "always")),
        v("price", "int", slip=Slip("final", "about", "always")),
        v("cheapest", "budget", slip=Slip("final", "over_budget", "always"), options={"budget": 0}),
        v("code", "grounded", slip=Slip("final", "invented", "always")),
    ]


@kind("hopeless")
def always_in_a_loop(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("price", slip=Slip("detail", "repeat", "always"))]


@kind("hopeless")
def data_missing(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("code", breakage=Breakage(d.note, "missing")),
        v("price", breakage=Breakage(d.search, "404")),
    ]


@kind("hopeless")
def refused(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", slip=Slip("final", "refusal", "always")),
        v("code", "text", slip=Slip("final", "refusal", "always")),
    ]


@kind("hopeless")
def conflict_for_good(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", breakage=Breakage(d.search, "409")),
        v("code", breakage=Breakage(d.search, "page")),
    ]


@kind("hopeless")
def refused_calls(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("buy", options={"allowed": 0}),
        v("buy_then_read", options={"allowed": 0}),
        v("two", options={"allowed": 1}),
    ]


@kind("hopeless")
def down_for_good(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price", outage=Outage("detail", "503")),
        v("price", breakage=Breakage(d.search, "503")),
    ]


# ---------------------------------------------------------------- nothing is wrong


@kind("healthy")
def questions(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("price"), v("price", "int"), v("price", "pydantic"), v("code", "text"),
        v("code", "grounded"), v("price", "choice"), v("price", "place"), v("trip", "complete"),
    ]  # fmt: skip


@kind("healthy")
def purchases(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("buy"), v("buy_then_read"), v("buy", "int"), v("buy", "grounded")]


@kind("healthy")
def second_purchases(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("two"), v("two", "int")]


@kind("healthy")
def long_tasks(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("audit", "int", options={"turns": 60, "places": rng.choice((4, 5, 6))}),
        v("cheapest"),
        v("cheapest", "budget", options={"budget": 0}),
    ]


@kind("healthy")
def polling(d: Domain, rng: random.Random) -> list[Variant]:
    return [
        v("poll", "int", options={"polls": rng.choice((3, 6, 9, 14)), "turns": 20}),
        v("poll", "int", options={"polls": 40, "turns": 60, "still": True}),
    ]


@kind("healthy")
def batches(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("batch")]


@kind("healthy")
def parallel_calls(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("compare"), v("compare", "pydantic")]


@kind("healthy")
def nothing_to_say(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("price", "none")]


@kind("healthy")
def equal_reads(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("twice")]


@kind("healthy")
def errors_the_agent_handles(d: Domain, rng: random.Random) -> list[Variant]:
    return [v("handled", options={"catches": True}), v("handled", "int", options={"catches": True})]


@kind("healthy")
def short_labels(d: Domain, rng: random.Random) -> list[Variant]:
    cut = Slip("final", "cut_label", "always")
    return [v("price", "label", slip=cut, options={"max_tokens": 1})]


# ---------------------------------------------------------------- the tasks


PER_GROUP = {"recoverable": 6, "hopeless": 6, "healthy": 10}
SUBSTITUTES = ("broken_tool_with_a_substitute", "unreadable_source_with_a_substitute")
LOOPS = ("loop", "loop_of_two", "loop_of_polls", "always_in_a_loop")


def tasks(seed: int = 1, only: tuple[str, ...] = ()) -> Iterator[Task]:
    """All tasks, each kind's in turn over its variants and over the domains."""
    for number, made in enumerate(KINDS):
        if only and made.name not in only:
            continue
        rng = random.Random(f"{made.name}-{seed}")
        domains = cycle(rng.sample(DOMAINS, len(DOMAINS)))
        size = len(made.variants(DOMAINS[0], random.Random(0)))
        for at in range(max(PER_GROUP[made.group], size)):
            domain = next(domains)
            variant = made.variants(domain, rng)[at % size]
            task = Task(
                id=f"{made.name}-{at}",
                kind=made.name,
                group=made.group,
                domain=domain.name,
                seed=1000 * seed + 20 * number + at,
                **variant,
            )
            yield replace(task, options=_filled(task))


def chosen(seed: int, only: tuple[str, ...] = (), most: int = 0) -> list[Task]:
    """The tasks; with `most` about so many of them, taken evenly from the kinds."""
    made = list(tasks(seed, only))
    if not most or most >= len(made):
        return made
    made.sort(key=lambda task: int(task.id.rpartition("-")[2]))
    return sorted(made[:most], key=lambda task: task.id)


def _filled(task: Task) -> dict[str, object]:
    """The options, with what depends on the task's own data."""
    options = dict(task.options)
    model = Model(task)
    if any(slip.how == "wrong_id" for slip in task.slips):
        others = [i for i in model.items if i.place != model.place()]
        options["bad_id"] = others[task.seed % len(others)].id
    if "budget" in options:
        prices = sorted(item.price for item in model.there())
        options["budget"] = (prices[0] + prices[-1]) // 2
    return options
