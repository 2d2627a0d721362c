"""What the steps of a run show while it goes on: loops, and what is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage import FailureType, RulesClassifier, Step, Trajectory
from triage.classifiers import Finding, Watch
from triage.core import Cause

CLASSIFIER = RulesClassifier()
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "nights": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}


def call(tool: str, given: Any, result: Any = None, **more: Any) -> Step:
    return Step(
        action=f"call {tool}", tool_called=tool, tool_input=given, tool_output=result, **more
    )


def seen(steps: list[Step], **options: Any) -> list[Finding]:
    """What a watch says, step by step."""
    watch = CLASSIFIER.watch() if not options else Watch(**options)
    return [found for step in steps if (found := watch.add(step)) is not None]


def classified(steps: list[Step], **options: Any) -> Any:
    return RulesClassifier(**options).classify(Trajectory(steps))


# --- loops ---------------------------------------------------------------------------------


@table("length", range(1, 7))
def test_a_cycle_is_told_once_when_it_has_gone_round_three_times(length: int) -> None:
    cycle = [call(f"tool{at}", {"q": at}, f"answer {at}") for at in range(length)]
    watch = Watch()
    told = [watch.add(step) for step in [call("other", {}, "x"), *cycle * 4]]
    assert [at for at, found in enumerate(told) if found] == [3 * length]
    found = told[3 * length]
    assert found is not None
    assert (found.step, found.length, found.repeats) == (1, length, 3)
    assert found.rule.failure_type is FailureType.LOOP_DETECTED


def test_a_cycle_is_named_from_where_it_began() -> None:
    a, b, c = (call(name, {}, name) for name in "abc")
    [found] = seen([call("z", {}, 1), *[a, b, c] * 3])
    assert found.text == "the cycle a → b → c 3 times"


def test_a_loop_outranks_nothing_once_it_was_left() -> None:
    loop = [call("look", {"q": 1}, "same")] * 3
    assert classified(loop).failure_type is FailureType.LOOP_DETECTED
    left = classified([*loop, call("read", {"q": 2}, "new")])
    assert left.failure_type is FailureType.UNKNOWN


def test_an_exempt_tool_may_repeat_itself_and_joins_nothing_around_it() -> None:
    poll = call("poll", {"id": 7}, "pending")
    wait = call("wait", {"seconds": 5}, "done")
    assert classified([poll] * 5, exempt=["poll"]).failure_type is FailureType.UNKNOWN
    assert classified([wait, poll] * 5, exempt=["poll"]).failure_type is FailureType.UNKNOWN
    assert classified([wait, poll] * 5).failure_type is FailureType.LOOP_DETECTED


def test_reused_steps_are_passed_over() -> None:
    reused = call("look", {"q": 1}, "same", metadata={"replayed": True})
    fresh = call("look", {"q": 1}, "same")
    assert seen([reused] * 5) == []
    assert seen([fresh, reused, fresh]) == []
    [found] = seen([fresh, reused, fresh, fresh])
    assert found.step == 0


def asked(tool: str, question: int, *, reused: bool = False) -> list[Step]:
    """A model's turn without words, and the call that it asked for."""
    about = {"replayed": True} if reused else None
    turn = Step(action="model", llm_output="")
    return [turn, call(tool, {"q": question}, "same", metadata=about)]


def test_reused_calls_stand_between_the_turns_that_asked_for_them() -> None:
    ways = [step for number in range(5) for step in asked("look", number, reused=True)]
    assert seen(ways) == []
    again = [step for _ in range(3) for step in asked("look", 1, reused=True)]
    [found] = seen(again)
    assert found.step == 0


def test_calls_in_other_words_with_the_same_result_are_a_loop() -> None:
    words = [
        "cheap hotel Porto",
        "Cheap hotels in Porto",
        "a cheap hotel, Porto",
        "cheap hotel porto",
    ]
    found = classified([call("search", {"q": text}, "nothing found") for text in words])
    assert found.failure_type is FailureType.LOOP_DETECTED
    assert found.evidence[0].rule == "steps.near_loop"
    assert found.critical_step == 0


ASKED_ANEW = (
    "gate code of bay 7", "code for the gate, bay 7", "bay 7 gate code number",
    "which code opens gate 7", "open gate bay 7", "how is the gate of bay 7 opened",
    "gate 7 keypad digits", "bay 7: digits of the gate",
)  # fmt: skip
GOODS = ("oats", "rye", "malt", "hops", "peat", "salt", "zinc", "wax")


@table(
    ("asked", "found"),
    [
        (ASKED_ANEW, "steps.near_loop"),
        (ASKED_ANEW[:7], "none"),
        ([text.replace("7", str(1997 + at % 2)) for at, text in enumerate(ASKED_ANEW)], "none"),
        ([f"gate code of bay {at}" for at in range(1, 9)], "none"),
        ([f"price of {name} today" for name in GOODS], "none"),
    ],
)
def test_one_question_asked_anew_eight_times_for_nothing_is_a_loop(
    asked: Sequence[str], found: str
) -> None:
    steps = [call("search", {"q": text}, "No entry matches.") for text in asked]
    assert classified(steps).evidence[0].rule == found


def test_another_limit_makes_no_other_question() -> None:
    asked = [
        {"q": text, "limit": 50} if at % 3 else {"q": text} for at, text in enumerate(ASKED_ANEW)
    ]
    steps = [call("search", given, {"hits": []}) for given in asked]
    assert classified(steps).evidence[0].rule == "steps.near_loop"
    paged = [{"id": "B-7"}, *({"id": "B-7", "page": at} for at in range(1, 6))]
    found = classified([call("search", given, {"hits": []}) for given in paged])
    assert found.failure_type is FailureType.LOOP_DETECTED


def test_calls_that_a_model_asks_for_fail_in_a_row_although_it_speaks_between_them() -> None:
    steps: list[Step] = []
    for city in ("Rome", "Oslo", "Bern"):
        asked = [{"tool": "find", "arguments": {"city": city}}]
        steps += [
            Step(action="model", tool_input=f"look for {city}", tool_output=asked),
            call("find", {"city": city}, error="the index is broken", exception_type="OSError"),
        ]
    [found] = seen(steps)
    assert found.text == "'find' failed 3 times with the same error"
    answer = Step(action="model", llm_output="I do not know", tool_input="look")
    assert not seen([*steps[:4], answer, *steps[4:]])


def test_the_same_error_again_is_a_loop_whatever_the_arguments() -> None:
    steps = [call("plan", {"day": text}, error=f"day '{text}' does not work") for text in "abc"]
    found = classified(steps)
    assert (found.failure_type, found.cause) == (FailureType.LOOP_DETECTED, Cause.REPETITION)
    assert found.evidence[0].rule == "steps.same_error"


def test_an_answer_said_again_after_the_work_is_no_loop_yet() -> None:
    answer = Step(action="model", llm_output="It costs 40 EUR.")
    work = call("search", {"q": "fare"}, "40 EUR")
    assert classified([work, *[answer] * 3]).failure_type is FailureType.UNKNOWN
    assert classified([work, *[answer] * 5]).failure_type is FailureType.LOOP_DETECTED
    assert classified([answer] * 3).failure_type is FailureType.LOOP_DETECTED


# --- what is no loop -----------------------------------------------------------------------

names = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=8)
results = st.sampled_from(
    ["ok", "No results found.", "The record was updated successfully.", [], {}]
)


@st.composite
def batches(draw: st.DrawFn) -> list[Step]:
    """A list worked through, each item with the same result."""
    items = draw(st.lists(names | st.integers(1, 999), min_size=1, max_size=8, unique=True))
    tool, result = draw(names), draw(results)
    key = draw(st.sampled_from(["id", "name", "page", "query"]))
    fixed = draw(
        st.dictionaries(st.sampled_from(["limit", "kind"]), st.integers(1, 50), max_size=2)
    )
    return [call(tool, {key: item, **fixed}, result) for item in items]


@st.composite
def polls(draw: st.DrawFn) -> list[Step]:
    """The same call until it is done, with another result each time."""
    tool, count = draw(names), draw(st.integers(1, 8))
    shown = draw(st.sampled_from(["progress {} %", "{} of 90 rows", "as of 12:{:02}"]))
    return [call(tool, {"job": 1}, shown.format(at)) for at in range(count)]


@st.composite
def retries(draw: st.DrawFn) -> list[Step]:
    """A call that fails once or twice, and then gives something."""
    tool, given = draw(names), {"q": draw(names)}
    failed = call(tool, given, error=draw(st.sampled_from(["503", "timed out", "busy"])))
    return [*[failed] * draw(st.integers(1, 2)), call(tool, given, f"rows of {tool}")]


@st.composite
def healthy(draw: st.DrawFn) -> list[Step]:
    """Work of all these kinds, a turn of words of its own after each."""
    parts = draw(st.lists(batches() | polls() | retries(), min_size=1, max_size=5))
    steps: list[Step] = []
    for at, part in enumerate(parts):
        steps += part
        steps.append(Step(action="model", llm_output=f"Part {at} is done, going on."))
    return steps


@given(healthy())
def test_nothing_is_said_of_healthy_work(steps: list[Step]) -> None:
    assert seen(steps) == []
    assert classified(steps).failure_type is FailureType.UNKNOWN


@table(
    ("said", "expected"),
    [
        ("The record was updated successfully.", FailureType.UNKNOWN),
        ("Saved, the entry is up to date", FailureType.UNKNOWN),
        ("The counter is closed for the day, come tomorrow.", FailureType.EXTERNAL_FAULT),
    ],
)
def test_tools_that_change_things_may_say_so_in_the_same_words(
    said: str, expected: FailureType
) -> None:
    steps = [
        call("file", {"id": "a"}, "12 rows, two of them new"),
        call("file", {"id": "b"}, said),
        call("move", {"id": "c"}, said),
    ]
    assert classified(steps).failure_type is expected


@given(
    healthy(),
    st.integers(1, 6),
    st.integers(3, 5),
    st.sampled_from([{"error": "it does not work"}, {"result": "no such row"}]),
)
def test_a_loop_after_healthy_work_is_found_where_it_begins(
    steps: list[Step], length: int, rounds: int, more: dict[str, Any]
) -> None:
    cycle = [call(f"loop_{at}", {"at": at}, **more) for at in range(length)]
    found = classified([*steps, *cycle * rounds])
    assert found.failure_type is FailureType.LOOP_DETECTED
    assert found.evidence[0].step == len(steps)
    assert found.critical_step == len(steps)
    assert found.cause == (Cause.REPETITION if length == 1 else Cause.CYCLE)


@given(healthy(), st.integers(1, 6), st.integers(3, 4))
def test_watching_live_and_classifying_afterwards_see_the_same_loop(
    steps: list[Step], length: int, rounds: int
) -> None:
    cycle = [call(f"loop_{at}", {"at": at}, "no such row") for at in range(length)]
    everything = [*steps, *cycle * rounds]
    [live] = seen(everything)
    after = classified(everything)
    assert (live.step, live.rule.cause) == (after.evidence[0].step, after.cause)


def test_a_long_loop_is_found_from_its_true_beginning() -> None:
    steps = [call("page", {"n": at}, f"rows {at}") for at in range(300)]
    loop = [call("look", {"q": 1}, "same"), call("read", {"q": 2}, "same too")]
    found = classified([*steps, *loop * 150])
    assert (found.evidence[0].step, found.cause) == (300, Cause.CYCLE)


# --- tools and their arguments -------------------------------------------------------------


def test_a_tool_that_does_not_exist_is_told_at_once_with_the_closest_name() -> None:
    tools = {"search_hotel": SCHEMA, "book": None}
    [found] = seen([call("search_hotels", {"city": "Porto"})], tools=tools)
    assert (found.rule.name, found.tool) == ("steps.unknown_tool", "search_hotels")
    told = classified([call("search_hotels", {"city": "Porto"})], tools=tools)
    assert told.failure_type is FailureType.WRONG_TOOL_CALLED
    assert told.hint is not None
    assert "search_hotel (the closest name)" in told.hint


@table(
    ("given", "said"),
    [
        ({}, "'city' is missing"),
        ({"city": 5}, "must be string"),
        ({"city": "Porto", "night": 2}, "there is no argument 'night'"),
        ({"city": "Porto", "nights": "two"}, "must be integer"),
    ],
)
def test_arguments_that_do_not_fit_are_told_with_what_is_wrong(given: Any, said: str) -> None:
    tools = {"hotels": SCHEMA}
    [found] = seen([call("hotels", given, error="refused")], tools=tools)
    assert found.rule.failure_type is FailureType.SCHEMA_MISMATCH
    assert said in found.text
    told = classified([call("hotels", given)], tools=tools)
    assert (told.failure_type, told.critical_step) == (FailureType.SCHEMA_MISMATCH, 0)


def test_arguments_that_were_corrected_decide_nothing() -> None:
    tools = {"hotels": SCHEMA}
    steps = [call("hotels", {}, error="refused"), call("hotels", {"city": "Porto"}, ["Sol"])]
    assert classified(steps, tools=tools).failure_type is FailureType.UNKNOWN


@given(st.fixed_dictionaries({"city": st.text()}, optional={"nights": st.integers()}))
def test_arguments_that_fit_are_left_alone(given: dict[str, Any]) -> None:
    assert seen([call("hotels", given, "ok")], tools={"hotels": SCHEMA}) == []


def test_an_output_that_breaks_a_constraint_decides_however_long_ago_it_was() -> None:
    steps = [Step(action="model", llm_output="The password is hunter2")]
    steps += [call("page", {"n": at}, f"rows {at}") for at in range(1_000)]
    found = classified(steps, constraints=["PASSWORD"])
    assert (found.failure_type, found.critical_step) == (FailureType.CONSTRAINT_IGNORED, 0)
    [live] = seen(steps[:3], constraints=["password"])
    assert live.step == 0
