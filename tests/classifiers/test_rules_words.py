"""Where the words of a rule are found, where a loop begins, and what of an exception is read."""

from __future__ import annotations

from collections.abc import Callable

from diagnoses import classify, said, search
from hypothesis import given
from hypothesis import strategies as st

from triage.classifiers import Rule, RulesClassifier
from triage.core import Cause, FailureType, Step
from triage.core.capture import capture


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


def test_an_expression_may_refer_to_a_group_of_its_own() -> None:
    keys = (r"sold (out|off)", r"row (\d) and row \1", r"(?P<what>seat) taken")
    own = RulesClassifier((Rule("own", FailureType.PLAN_INCOMPLETE, None, "text", keys),))
    for text in ("all sold off", "row 4 and row 4", "no: seat taken"):
        assert classify(said(text), with_=own).failure_type is FailureType.PLAN_INCOMPLETE
    assert classify(said("row 4 and row 5"), with_=own).failure_type is FailureType.UNKNOWN


# --- loops -----------------------------------------------------------------------------------


def _standing(steps: list[Step], like: Callable[[Step, Step], bool]) -> tuple[int, int] | None:
    """By comparing each step with the one so many before it: length and rounds of the shortest loop."""
    for length in range(1, 7):
        row = 0
        while row + length < len(steps) and like(steps[-1 - row], steps[-1 - row - length]):
            row += 1
        if row >= 2 * length:
            return length, row // length + 1
    return None


def _reworded(one: Step, other: Step) -> bool:
    return one == other or {one.tool_input["q"], other.tool_input["q"]} <= {
        "Porto",
        "porto",
        "the Porto",
    }


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
    watch = RulesClassifier().watch()
    for at, step in enumerate(steps):
        watch.add(step)
        found = watch.loop
        expected = _standing(steps[: at + 1], lambda one, other: one == other)
        kind = "same"
        if expected is None:
            kind = "near"
            expected = _standing(steps[: at + 1], _reworded)
        assert (found and (found.length, found.repeats, found.kind)) == (
            expected and (*expected, kind)
        )


def test_failures_with_words_between_them_are_one_loop_from_the_first_of_them() -> None:
    failed = [search("a", output=None, error=f"day {at} does not work") for at in range(4)]
    found = classify(None, [failed[0], Step(action="model", llm_output="Again."), *failed[1:]])
    assert (found.failure_type, found.cause) == (FailureType.LOOP_DETECTED, Cause.REPETITION)
    assert found.critical_step == 0


# --- reading an exception ----------------------------------------------------------------------


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
