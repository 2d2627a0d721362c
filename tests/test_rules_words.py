"""Rules on words are looked for only where they can be: what is skipped could not have fired."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from diagnoses import classify, said, search
from event_values import steady
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triage._capture import capture
from triage._capture._answer import ASKED
from triage.classifiers import RULES, Rule, RulesClassifier
from triage.classifiers._needed import Need, needed
from triage.classifiers._rule import bounded, normal
from triage.classifiers._rule import unquoted as bare
from triage.classifiers._search import Words, words_in
from triage.classifiers.detectors._loops import Loop, Loops, ends_anew
from triage.classifiers.detectors._near import near
from triage.steps import Step
from triage.taxonomy import Cause, FailureType

KEYS = sorted({key for rule in RULES if rule.looks_at in ("text", "answer") for key in rule.keys})


def length(word: str) -> int:
    """The shorter a word, the rarer: an order that has nothing to do with the rules' own."""
    return len(word)


def need_of(key: str) -> Need | None:
    return needed(key, length)


@settings(steady, max_examples=400)
@given(st.data())
def test_a_text_that_an_expression_fits_has_the_words_it_needs(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(KEYS))
    need = need_of(key)
    found = normal(data.draw(st.from_regex(re.compile(key, re.DOTALL), fullmatch=True)))
    around = data.draw(st.sampled_from(["{}", "then {} again", "({})", "x{}", "{}y", "7 {}\u2026"]))
    text = around.format(found)
    if need is None or bounded(key).search(text) is None:
        return
    words = words_in(text)
    for one_of in (need.first, *need.others):
        assert one_of & words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("sold out", [{"sold"}, {"out"}]),
        ("sold ?out of", [{"out", "soldout"}, {"of"}]),
        ("no (?:seat|bed)s? left", [{"no"}, {"seat", "seats", "bed", "beds"}, {"left"}]),
        ("sold|gone for ever", [{"sold", "for"}]),
        (r"seat (?:\w{1,9} ){0,3}(?:is |was )?(?:sold|gone)", [{"seat"}, {"sold", "gone"}]),
        (r"seat(?: \w{1,9})*(?: now)? sold", [{"seat"}, {"sold"}]),
        (r"seat(?: now|ing)? sold", [{"seat", "now", "seating"}, {"sold"}]),
        (r"(?:the ?){0,2}seat sold", [{"sold"}]),
        (r"['\"]seat['\"] ?: ?taken", [{"seat"}, {"taken"}]),
        (r"seat \d{1,3} is (?!not )taken(?: already)?", [{"seat"}, {"is"}, {"taken"}]),
        (r"(?:no |not )?pre\w{1,9}", None),
        (r"\w{1,9}", None),
        (r"(?P<what>sold) out", None),
        (r"(?i:sold) out", None),
        ("", None),
    ],
)
def test_the_words_an_expression_needs_are_read_from_it(
    expression: str, words: list[set[str]] | None
) -> None:
    need = need_of(expression)
    if words is None:
        assert need is None
    else:
        assert need is not None
        assert {frozenset(one_of) for one_of in words} >= {need.first, *need.others}
        assert need.first in [frozenset(one_of) for one_of in words]


@given(st.text(alphabet="ab1_ .-'\u2019\u2026\xdf\u0130\t\n", max_size=30))
def test_words_are_what_expressions_call_words(text: str) -> None:
    assert words_in(text) == set(re.findall(r"\w+", text))


AT_EDGES = (
    "a", "ab?a", "(?:a|ba)b", "^a", "(?:^|b )a", r"\Aa", "(?<! )a", r"(?<!\bb )a", r"(?<=\W)a", "(?<!.)a",
    r"\Ba", r"\ba", "a$", "[^a]b", r"\.a", "(?:a )?b", r"\w b", "'a'", "\xe4b?",
    "aba?", "ab a", "aab|b", "ab b?|a", "(?<!b )aab?", "(?<!b )(?<![^b]a[.'] )a(?:b| a)", "(?<!b )ab |a",
    "(?<!b )(?:ab|b)", r"(?<!b )a\(|b", r"(?<!b )a[|(]|b", "(?<!b )?ab", "(?<!b )(?<!ab )?a", "(?i:aab)|a",
    "(?<!b )^a", r"(?<!b )\w+ b(?<!ab)",
)  # fmt: skip


@settings(steady, max_examples=400)
@given(
    key=st.sampled_from(AT_EDGES),
    unquoted=st.booleans(),
    text=st.text(alphabet="ab .'\0\xe4", max_size=12),
)
@example(key="(?<!b )(?:ab|b)", unquoted=False, text="b ab b b a b")
@example(key="(?<!b )aab?", unquoted=False, text="b aa baa aab")
@example(key="(?<!b )(?<![^b]a[.'] )a(?:b| a)", unquoted=False, text="a. ab  a. ab ab")
def test_an_expression_is_found_where_it_stands_between_bounds_of_words(
    *, key: str, unquoted: bool, text: str
) -> None:
    rule = Rule("own", FailureType.UNKNOWN, None, "text", (key,), unquoted=unquoted)
    read = bare(text) if unquoted else text
    hit = bounded(key).search(read)
    assert Words([rule]).first(text) == (None if hit is None else (rule, hit.group()))


def test_of_several_expressions_of_a_rule_the_one_that_fits_first_in_the_text_is_shown() -> None:
    rule = Rule(
        "own", FailureType.PLAN_INCOMPLETE, None, "text", ("sold out", "no seats?", "seats sold")
    )
    with_ = RulesClassifier((rule,))
    shown = [
        classify(said(text), with_=with_).evidence[0].text
        for text in ("all seats sold out", "no seat, sold out", "sold out, no seats")
    ]
    assert shown == [
        "RuntimeError: the words 'seats sold'",
        "RuntimeError: the words 'no seat'",
        "RuntimeError: the words 'sold out'",
    ]


def test_a_rule_without_a_word_of_its_own_fires_all_the_same() -> None:
    rule = Rule("own", FailureType.PLAN_INCOMPLETE, None, "text", (r"e\d{4}",))
    assert classify(said("code e1234 again"), with_=RulesClassifier((rule,))).evidence[0].rule == (
        "own"
    )


# --- loops -----------------------------------------------------------------------------------


def step_of(fields: dict[str, Any]) -> Step:
    return Step(**fields)


_STEPS = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["search", "model"]),
        "tool_called": st.sampled_from(["search", "open", None]),
        "tool_input": st.sampled_from([None, {"q": "Porto"}, {"q": "the porto"}, {"page": 1}]),
        "tool_output": st.sampled_from([None, "nothing", "found"]),
        "llm_output": st.sampled_from([None, None, "Well."]),
        "error": st.sampled_from([None, None, None, "day 1 does not work"]),
        "metadata": st.sampled_from([None, None, None, {"replayed": True}]),
    }
).map(step_of)


@given(
    st.lists(_STEPS, min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=24),
    st.sampled_from([frozenset[str](), frozenset({"open"})]),
)
def test_no_loop_stands_where_the_last_step_is_like_none_before_it(
    kinds: list[Step], order: list[int], exempt: frozenset[str]
) -> None:
    steps = [kinds[at % len(kinds)] for at in order]
    loops = Loops(exempt)
    standing: Loop | None = None
    for at, step in enumerate(steps):
        if not (step.metadata and step.metadata.get("replayed")):
            standing = loops.add(step.row, at)
    if ends_anew(steps, exempt):
        assert standing is None


def _standing(steps: list[Step], like: Callable[[Step, Step], bool]) -> tuple[int, int] | None:
    """By comparing each step with the one so many before it: length and rounds of the shortest loop."""
    for length in range(1, 7):
        row = 0
        while row + length < len(steps) and like(steps[-1 - row], steps[-1 - row - length]):
            row += 1
        if row >= 2 * length:
            return length, row // length + 1
    return None


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=7), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    )
)
def test_a_loop_is_seen_wherever_it_begins_and_counted_from_there(
    rounds: list[tuple[list[int], int]],
) -> None:
    said = ["Porto", "porto", "the Porto", "Faro", "Lisbon 1"]
    order = [at for cycle, times in rounds for at in cycle * times]
    steps = [search(said[at]) for at in order]
    loops = Loops()
    for at, step in enumerate(steps):
        found = loops.add(step.row, at)
        expected = _standing(steps[: at + 1], lambda one, other: one == other)
        kind = "same"
        if expected is None:
            kind = "near"
            expected = _standing(
                steps[: at + 1],
                lambda one, other: near(one.tool_input["q"], other.tool_input["q"]),
            )
        assert (found and (found.length, found.repeats, found.kind)) == (
            expected and (*expected, kind)
        )


def test_the_last_of_distinct_calls_begins_no_loop() -> None:
    assert ends_anew([search("Porto"), search("Lisbon"), search("Faro")])
    assert not ends_anew([search("Porto")] * 3)


def test_failures_with_words_between_them_are_counted_from_the_first_one_after_the_words() -> None:
    failed = [search("a", output=None, error=f"day {at} does not work") for at in range(4)]
    found = classify(None, [failed[0], Step(action="model", llm_output="Again."), *failed[1:]])
    assert (found.failure_type, found.cause) == (FailureType.LOOP_DETECTED, Cause.REPETITION)
    assert found.critical_step == 2


# --- reading an exception ----------------------------------------------------------------------


class DatabaseError(Exception):
    """A driver's, by its name."""


class WatchedValidationError(DatabaseError):
    """Notes what it is asked for."""

    asked: set[str] = set()  # noqa: RUF012 - all readings of the class are meant

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self.asked.add(name)
        raise AttributeError(name)


def test_all_that_an_exception_is_asked_for_is_known() -> None:
    WatchedValidationError.asked.clear()
    capture(WatchedValidationError("08006", "no"))
    assert {"status_code", "response", "retry_after"} <= WatchedValidationError.asked <= ASKED


class Bare(Exception):
    pass


class Telling(Bare):
    retry_after = 4


def test_what_a_class_says_is_read_as_what_an_exception_holds() -> None:
    plain, telling = Bare("x"), Telling("x")
    assert capture(plain).retry_after_s is None
    assert capture(telling).retry_after_s == 4
    plain.status_code = 503  # type: ignore[attr-defined] # as clients hang it on
    assert capture(plain).status_code == 503
