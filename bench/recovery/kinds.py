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
Variants = Callable[[Domain, random.Random], list[Variant]]
"""Makes the variants of a kind in a domain, by chance."""


@dataclass(frozen=True)
class Kind:
    """One way in which a task goes."""

    name: str
    group: str
    variants: Variants


def v(shape: str, finish: str = "json", **fields: Any) -> Variant:
    """One variant; `slip`, `outage` and `breakage` may be one or several."""
    options = fields.pop("options", {})
    made: Variant = {"shape": shape, "finish": finish, "options": options}
    for one, many in (("slip", "slips"), ("outage", "outages"), ("breakage", "breakages")):
        given = fields.pop(one, ())
        made[many] = given if isinstance(given, tuple) else (given,)
    return made | fields


_GREEDY = {"greedy": True, "room": 60_000}
_ROOMS = {"room": 60_000, "last_room": 12_000}
_LAST = Slip("final", "catalogue")
_NAMED = ("price",)
_GONE = {"bad_file": True}
_BUDGET = {"budget": 0}
_CATCHES = {"catches": True}
_STALE = {"stale": True}
_WORDS = {"reworded": True}
_OTHER = {"substitute": True}
_CUT = Slip("final", "cut_label", "always")


def _rate_limited(wait: float) -> list[Variant]:
    return [
        v("price", outage=Outage("search", "429", seconds=wait - 2, retry_after=wait)),
        v("buy", outage=Outage("act", "429", seconds=wait - 2, retry_after=wait)),
        v("trip", "complete", outage=Outage("final", "429", seconds=wait - 2, retry_after=wait)),
        v("code", "grounded", outage=Outage("note", "429", times=2)),
    ]


RECOVERABLE: dict[str, Variants] = {
    # The provider fails.
    "unavailable_once": lambda d, rng: [
        v("price", outage=Outage("search", "503", times=1)),
        v("code", outage=Outage("note", "500", times=1)),
        v("buy", outage=Outage("detail", "503", times=1)),
        v("audit", "int", outage=Outage("detail5", "503", times=1), options={"turns": 30}),
        v("trip", "complete", outage=Outage("final", "500", times=1)),
    ],
    "outage_for_a_while": lambda d, rng: [
        v("price", outage=Outage("final", "503", seconds=rng.choice((20, 45, 90)))),
        v("buy", outage=Outage("final", "503", seconds=rng.choice((30, 60, 150)))),
        v("code", "text", outage=Outage("detail", "500", seconds=rng.choice((20, 40, 120)))),
        v("cheapest", outage=Outage("detail2", "503", seconds=rng.choice((25, 75, 200)))),
    ],
    "rate_limited": lambda d, rng: _rate_limited(float(rng.choice((5, 20, 45, 90)))),
    "error_in_200": lambda d, rng: [
        v("price", outage=Outage("detail", "error_in_200", times=1)),
        v("buy", outage=Outage("final", "error_in_200", times=1)),
        v("code", "text", outage=Outage("search", "error_in_200", times=2)),
    ],
    "dropped_connection": lambda d, rng: [
        v("price", "int", outage=Outage("final", "drop", times=1)),
        v("buy", outage=Outage("act", "drop", times=1)),
        v("cheapest", outage=Outage("detail1", "drop", times=2)),
    ],
    "malformed_body": lambda d, rng: [
        v("price", outage=Outage("final", "bad_json", times=1)),
        v("buy", outage=Outage("detail", "bad_json", times=1)),
        v("compare", outage=Outage("details", "bad_json", times=1)),
    ],
    "answer_cut_off": lambda d, rng: [
        v("price", slip=Slip("final", "half"), wasted=1),
        v("buy", slip=Slip("final", "half"), wasted=1),
        v("price", "pydantic", slip=Slip("final", "half", "twice"), wasted=2),
        v("trip", "complete", slip=Slip("final", "half", "told"), wasted=1),
        v("code", "text", slip=Slip("final", "half"), wasted=1),
    ],
    "empty_answer": lambda d, rng: [
        v("price", slip=Slip("final", "empty"), wasted=1),
        v("code", "text", slip=Slip("final", "empty"), wasted=1),
        v("buy", slip=Slip("final", "empty", "told"), wasted=1),
        v("price", "int", slip=Slip("final", "empty"), wasted=1),
    ],
    "context_overflow": lambda d, rng: [
        v("price", options=_GREEDY, wasted=1),
        v("buy", options=_GREEDY, wasted=1),
        v("compare", options=_GREEDY, wasted=1),
        v("trip", "complete", options={**_GREEDY, "room": 150_000}, wasted=2),
    ],
    "overflow_twice": lambda d, rng: [
        v("two", slip=(Slip("detail1", "catalogue"), _LAST), options=_ROOMS, wasted=2),
        v("buy_then_read", slip=(Slip("note", "catalogue"), _LAST), options=_ROOMS, wasted=2),
        v("buy", slip=(Slip("act", "catalogue"), _LAST), options=_ROOMS, wasted=2),
    ],
    # The model errs.
    "prose_for_json": lambda d, rng: [
        v("price", slip=Slip("final", "prose"), wasted=1),
        v("code", slip=Slip("final", "prose", "told"), wasted=1),
        v("buy", slip=Slip("final", "prose", "twice"), wasted=2),
        v("trip", "complete", slip=Slip("final", "prose"), wasted=1),
        v("price", slip=Slip("final", "null"), wasted=1),
    ],
    "fenced_json": lambda d, rng: [
        v("price", slip=Slip("final", "fenced", "told"), wasted=1),
        v("price", "pydantic", slip=Slip("final", "fenced"), wasted=1),
        v("buy", slip=Slip("final", "fenced", "told"), wasted=1),
    ],
    "missing_key": lambda d, rng: [
        v("price", slip=Slip("final", "missing_key"), wasted=1),
        v("price", slip=Slip("final", "renamed_key", "named", ("price",)), wasted=1),
        v("code", slip=Slip("final", "missing_key", "told"), wasted=1),
        v("buy", slip=Slip("final", "missing_key", "named", ("price",)), wasted=1),
    ],
    "no_number": lambda d, rng: [
        v("price", "int", slip=Slip("final", "about"), wasted=1),
        v("audit", "int", slip=Slip("final", "about"), options={"turns": 30}, wasted=1),
        v("buy", "int", slip=Slip("final", "about", "told"), wasted=1),
        v("poll", "int", slip=Slip("final", "about", "told"), wasted=1),
    ],
    "validation_error": lambda d, rng: [
        v("price", "pydantic", slip=Slip("final", "wrong_type"), wasted=1),
        v("price", "pydantic", slip=Slip("final", "wrong_type", "named", _NAMED), wasted=1),
        v("cheapest", "pydantic", slip=Slip("final", "missing_key", "told"), wasted=1),
        v("compare", "pydantic", slip=Slip("final", "renamed_key"), wasted=1),
    ],
    "unknown_tool": lambda d, rng: [
        v("price", slip=Slip("search", "misnamed"), wasted=1),
        v("code", slip=Slip("note", "misnamed", "told"), wasted=1),
        v("buy", slip=Slip("act", "misnamed"), wasted=1),
        v("price", slip=Slip("detail", "misnamed", "named", (d.detail,)), wasted=1),
        v("cheapest", slip=Slip("detail2", "misnamed"), wasted=1),
    ],
    "bad_arguments": lambda d, rng: [
        v("price", slip=Slip("detail", "misplaced"), wasted=1),
        v("buy", slip=Slip("act", "misplaced", "told"), wasted=1),
        v("code", slip=Slip("note", "misplaced"), wasted=1),
        v("compare", slip=Slip("search", "misplaced", "told"), wasted=1),
    ],
    "broken_arguments": lambda d, rng: [
        v("price", slip=Slip("search", "broken_arguments"), wasted=1),
        v("buy", slip=Slip("act", "broken_arguments"), wasted=1),
        v("code", slip=Slip("detail", "broken_arguments", "told"), wasted=1),
    ],
    "early_mistake_found_by_a_tool": lambda d, rng: [
        v("code", slip=Slip("detail", "wrong_id"), options=_GONE, wasted=2),
        v("code", slip=Slip("detail", "wrong_id", "told"), options=_GONE, wasted=2),
        v("code", "grounded", slip=Slip("detail", "wrong_id"), options=_GONE, wasted=2),
    ],
    "early_mistake_found_at_the_end": lambda d, rng: [
        v("price", "place", slip=Slip("detail", "wrong_id"), wasted="detail"),
        v("price", "place", slip=Slip("detail", "wrong_id", "told"), wasted="detail"),
        v("code", "place", slip=Slip("detail", "wrong_id"), wasted="detail"),
        v("code", "place", slip=Slip("detail", "wrong_id", "told"), wasted="detail"),
    ],
    "wrong_file": lambda d, rng: [
        v("code", slip=Slip("note", "wrong_file"), wasted=1),
        v("code", "text", slip=Slip("note", "wrong_file", "told"), wasted=1),
        v("buy_then_read", slip=Slip("note", "wrong_file"), wasted=1),
    ],
    "loop": lambda d, rng: [
        v("price", slip=Slip("detail", "repeat", "told"), wasted=1),
        v("code", slip=Slip("note", "repeat", "told"), wasted=1),
        v("buy", slip=Slip("act", "repeat", "told"), wasted=1),
        v("buy", slip=Slip("final", "repeat", "told"), wasted=1),
    ],
    "loop_of_two": lambda d, rng: [
        v("price", slip=Slip("detail", "alternate", "told"), wasted=1),
        v("trip", "complete", slip=Slip("final", "alternate", "told"), wasted=1),
    ],
    "loop_of_polls": lambda d, rng: [
        v("code", slip=Slip("note", "reload", "told"), wasted=1),
        v("price", "int", slip=Slip("final", "reload", "told"), wasted=1),
    ],
    "list_of_failures": lambda d, rng: [v("batch", slip=Slip("final", "hides", "told"), wasted=1)],
    "invented_value": lambda d, rng: [
        v("price", "grounded", slip=Slip("final", "invented"), wasted=1),
        v("code", "grounded", slip=Slip("final", "invented", "told"), wasted=1),
        v("buy", "grounded", slip=Slip("final", "invented"), wasted=1),
    ],
    "constraint_ignored": lambda d, rng: [
        v("cheapest", "budget", slip=Slip("final", "over_budget"), options=_BUDGET, wasted=1),
        v(
            "compare",
            "budget",
            slip=Slip("final", "over_budget", "told"),
            options=_BUDGET,
            wasted=1,
        ),
        v(
            "compare",
            "budget",
            slip=Slip("final", "over_budget", "named", ("budget",)),
            options=_BUDGET,
            wasted=1,
        ),
    ],
    "incomplete_answer": lambda d, rng: [
        v("trip", "complete", slip=Slip("final", "incomplete"), wasted=1),
        v("trip", "complete", slip=Slip("final", "incomplete", "told"), wasted=1),
        v(
            "trip",
            "complete",
            slip=Slip("final", "incomplete", "named", ("nothing about",)),
            wasted=1,
        ),
    ],
    "no_such_option": lambda d, rng: [
        v("price", "choice", slip=Slip("final", "no_option"), wasted=1),
        v("cheapest", "choice", slip=Slip("final", "no_option", "told"), wasted=1),
    ],
    "tool_error_as_answer": lambda d, rng: [
        v(
            "price",
            "text",
            slip=Slip("search", "echo_after_error"),
            options=_CATCHES,
            breakage=Breakage(d.search, "503", times=1),
            wasted=1,
        ),
        v(
            "code",
            "text",
            slip=Slip("search", "echo_after_error"),
            options=_CATCHES,
            breakage=Breakage(d.search, "500", times=1),
            wasted=1,
        ),
    ],
    # The tools fail.
    "flaky_read": lambda d, rng: [
        v("price", breakage=Breakage(d.search, "reset", times=1)),
        v("trip", "complete", breakage=Breakage(d.search, "reset", times=1, after=2)),
        v("buy", breakage=Breakage(d.search, "500", times=2)),
        v("code", breakage=Breakage(d.search, "429", times=1, retry_after=8.0)),
    ],
    "locked_database": lambda d, rng: [
        v("price", breakage=Breakage(d.detail, "locked", times=1)),
        v("cheapest", breakage=Breakage(d.detail, "locked", times=2, after=2)),
        v("compare", breakage=Breakage(d.detail, "locked", times=1, after=1)),
        v("buy", breakage=Breakage(d.detail, "locked", times=1)),
    ],
    "stale_read": lambda d, rng: [
        v("buy", options=_STALE, wasted=1),
        v("buy", "int", options=_STALE, wasted=1),
        v("buy_then_read", options=_STALE, wasted=1),
    ],
    "expired_credential": lambda d, rng: [
        v("price", breakage=Breakage(d.search, "401", times=1)),
        v("trip", "complete", breakage=Breakage(d.search, "401", times=1, after=1)),
        v("poll", "int", breakage=Breakage(d.status, "401", times=1, after=1)),
    ],
    "failure_after_a_purchase": lambda d, rng: [
        v("buy", outage=Outage("final", "503", times=2)),
        v("buy", slip=Slip("final", "prose"), wasted=1),
        v("buy_then_read", slip=Slip("note", "misnamed"), wasted=1),
        v("two", slip=Slip("detail1", "broken_arguments"), wasted=1),
        v("two", outage=Outage("act1", "drop", times=1)),
        v("buy_then_read", slip=Slip("final", "missing_key", "told"), wasted=1),
    ],
    "purchase_between_two_errors": lambda d, rng: [
        v("buy", slip=(Slip("detail", "misnamed"), Slip("final", "prose")), wasted=2),
        v("buy", slip=(Slip("search", "broken_arguments"), Slip("final", "missing_key")), wasted=2),
        v("buy_then_read", slip=(Slip("act", "misplaced"), Slip("note", "wrong_file")), wasted=2),
        v(
            "buy",
            "int",
            slip=Slip("final", "about"),
            outage=Outage("detail", "503", times=1),
            wasted=1,
        ),
    ],
    "reworded_purchase": lambda d, rng: [
        v("buy", slip=Slip("final", "prose"), options=_WORDS, wasted=1),
        v("buy", slip=Slip("final", "missing_key", "told"), options=_WORDS, wasted=1),
        v("buy_then_read", outage=Outage("note", "500", times=1), options=_WORDS),
    ],
    "lost_receipt": lambda d, rng: [
        v("buy", breakage=Breakage(d.act, "lost", times=1), may_ask=True),
        v("buy_then_read", breakage=Breakage(d.act, "lost", times=1), may_ask=True),
        v("two", breakage=Breakage(d.act, "lost", times=1, after=1), may_ask=True),
        v(
            "buy",
            slip=Slip("final", "prose"),
            breakage=Breakage(d.act, "lost", times=1),
            may_ask=True,
            wasted=1,
        ),
    ],
    "purchase_not_attempted": lambda d, rng: [
        v("buy", breakage=Breakage("connect", "refused", times=1)),
        v("buy", breakage=Breakage(d.act, "429", times=1, retry_after=15.0)),
        v("buy_then_read", breakage=Breakage(d.act, "503", times=1, retry_after=10.0)),
    ],
    "tool_down_for_minutes": lambda d, rng: [
        v("price", breakage=Breakage(d.search, "503", seconds=rng.choice((40, 90, 150, 200)))),
        v(
            "poll",
            "int",
            breakage=Breakage(d.status, "503", seconds=rng.choice((30, 60, 120)), after=1),
        ),
        v("trip", "complete", breakage=Breakage(d.search, "reset", seconds=60, after=1)),
    ],
    "broken_tool_with_a_substitute": lambda d, rng: [
        v("price", breakage=Breakage(d.search, "503"), options=_OTHER, wasted=1),
        v("code", breakage=Breakage(d.search, "410"), options=_OTHER, wasted=1),
        v("buy", breakage=Breakage(d.search, "503"), options=_OTHER, wasted=1),
    ],
    "unreadable_source_with_a_substitute": lambda d, rng: [
        v("price", breakage=Breakage(d.search, "409"), options=_OTHER, wasted=1),
        v("code", breakage=Breakage(d.search, "page"), options=_OTHER, wasted=1),
        v("buy", breakage=Breakage(d.search, "page"), options=_OTHER, wasted=1),
    ],
}
HOPELESS: dict[str, Variants] = {
    "bad_key": lambda d, rng: [
        v("price", outage=Outage("*", "key")),
        v("buy", outage=Outage("*", "key")),
    ],
    "quota_spent": lambda d, rng: [
        v("price", outage=Outage("detail", "quota")),
        v("buy", outage=Outage("final", "quota")),
    ],
    "no_such_model": lambda d, rng: [v("code", outage=Outage("*", "no_model"))],
    "permission_denied": lambda d, rng: [
        v("price", breakage=Breakage(d.search, "403")),
        v("buy", breakage=Breakage(d.act, "403")),
    ],
    "tool_nobody_has": lambda d, rng: [v("nobody")],
    "bug_in_the_agent": lambda d, rng: [
        v("price", options={"bug": True}),
        v("buy", options={"bug": True}),
    ],
    "always_wrong": lambda d, rng: [
        v("price", slip=Slip("final", "prose", "always")),
        v("buy", slip=Slip("final", "missing_key", "always")),
        v("price", "int", slip=Slip("final", "about", "always")),
        v("cheapest", "budget", slip=Slip("final", "over_budget", "always"), options={"budget": 0}),
        v("code", "grounded", slip=Slip("final", "invented", "always")),
    ],
    "always_in_a_loop": lambda d, rng: [v("price", slip=Slip("detail", "repeat", "always"))],
    "data_missing": lambda d, rng: [
        v("code", breakage=Breakage(d.note, "missing")),
        v("price", breakage=Breakage(d.search, "404")),
    ],
    "refused": lambda d, rng: [
        v("price", slip=Slip("final", "refusal", "always")),
        v("code", "text", slip=Slip("final", "refusal", "always")),
    ],
    "conflict_for_good": lambda d, rng: [
        v("price", breakage=Breakage(d.search, "409")),
        v("code", breakage=Breakage(d.search, "page")),
    ],
    "refused_calls": lambda d, rng: [
        v("buy", options={"allowed": 0}),
        v("buy_then_read", options={"allowed": 0}),
        v("two", options={"allowed": 1}),
    ],
    "down_for_good": lambda d, rng: [
        v("price", outage=Outage("detail", "503")),
        v("price", breakage=Breakage(d.search, "503")),
    ],
}
HEALTHY: dict[str, Variants] = {
    "questions": lambda d, rng: [
        v("price"),
        v("price", "int"),
        v("price", "pydantic"),
        v("code", "text"),
        v("code", "grounded"),
        v("price", "choice"),
        v("price", "place"),
        v("trip", "complete"),
    ],
    "purchases": lambda d, rng: [
        v("buy"),
        v("buy_then_read"),
        v("buy", "int"),
        v("buy", "grounded"),
    ],
    "second_purchases": lambda d, rng: [v("two"), v("two", "int")],
    "long_tasks": lambda d, rng: [
        v("audit", "int", options={"turns": 60, "places": rng.choice((4, 5, 6))}),
        v("cheapest"),
        v("cheapest", "budget", options={"budget": 0}),
    ],
    "polling": lambda d, rng: [
        v("poll", "int", options={"polls": rng.choice((3, 6, 9, 14)), "turns": 20}),
        v("poll", "int", options={"polls": 40, "turns": 60, "still": True}),
    ],
    "batches": lambda d, rng: [v("batch")],
    "parallel_calls": lambda d, rng: [v("compare"), v("compare", "pydantic")],
    "nothing_to_say": lambda d, rng: [v("price", "none")],
    "equal_reads": lambda d, rng: [v("twice")],
    "errors_the_agent_handles": lambda d, rng: [
        v("handled", options={"catches": True}),
        v("handled", "int", options={"catches": True}),
    ],
    "short_labels": lambda d, rng: [v("price", "label", slip=_CUT, options={"max_tokens": 1})],
}
KINDS = [
    Kind(name, group, variants)
    for group, kinds in (
        ("recoverable", RECOVERABLE),
        ("hopeless", HOPELESS),
        ("healthy", HEALTHY),
    )
    for name, variants in kinds.items()
]

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
