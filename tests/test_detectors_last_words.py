"""What is seen of a failed attempt as a whole: its last answer, and one question asked in many ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage import Diagnosis, FailureType, RulesClassifier, Step, Trajectory

CLASSIFIER = RulesClassifier()
UNKNOWN = FailureType.UNKNOWN
INCOMPLETE = FailureType.PLAN_INCOMPLETE
LOOP = FailureType.LOOP_DETECTED


def call(tool: str, result: Any = None, given: Any = None, **more: Any) -> Step:
    return Step(action=tool, tool_called=tool, tool_input=given, tool_output=result, **more)


def says(text: str) -> Step:
    return Step(action="model", llm_output=text)


def classified(*steps: Step, **options: Any) -> Diagnosis:
    return RulesClassifier(**options).classify(Trajectory(steps))


LOOKED = call("look", "seven rooms")

# --- the last answer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "rule"),
    [
        ("Agent stopped due to max iterations.", INCOMPLETE, "steps.stopped"),
        ("Stopped after the maximum number of 12 steps", INCOMPLETE, "steps.stopped"),
        ("I have reached the maximum of 8 turns.", INCOMPLETE, "steps.stopped"),
        ("Sorry, need more steps to process this request.", INCOMPLETE, "steps.stopped"),
        ("I couldn't finish the remaining rooms.", INCOMPLETE, "steps.left_open"),
        ("I was unable to complete this task.", INCOMPLETE, "steps.left_open"),
        ("I\u2019ve left the rest unimplemented.", INCOMPLETE, "steps.left_open"),
        ("Two rooms done. Then I ran out of steps.", INCOMPLETE, "steps.left_open"),
        ("Done. Outstanding: the cellar was not processed.", INCOMPLETE, "steps.left_open"),
        (
            "- [x] attic\n- [ ] cellar\n\nI will handle the cellar later.",
            INCOMPLETE,
            "steps.left_open",
        ),
        ("I cannot assist with that.", FailureType.CONSTRAINT_IGNORED, "steps.refusal"),
        (
            "I apologise, but I'm unable to comply with your request.",
            FailureType.CONSTRAINT_IGNORED,
            "steps.refusal",
        ),
    ],
)
def test_a_last_answer_tells_of_its_own_failure(answer: str, kind: FailureType, rule: str) -> None:
    found = classified(LOOKED, says(answer))
    assert (found.failure_type, found.evidence[0].rule) == (kind, rule)
    assert found.evidence[0].step == 1
    assert found.hint
    # Said on the way, it was got over.
    assert classified(LOOKED, says(answer), LOOKED, says("Seven.")).failure_type is UNKNOWN


@pytest.mark.parametrize(
    "answer",
    [
        "The run of the river stopped at the third step of the weir.",
        "The log says 'Agent stopped due to max iterations.', so raise the limit.",
        'The page reads "I was unable to complete the task".',
        "If I could not complete the task, I would say so.",
        "Dear Ann, I was unable to complete the task you gave me. Best regards, Bob",
        "I cannot assist with rooms that are let: the rules of the house forbid it.",
        "I'm sorry, but the cellar can't be let, as it has no window.",
        "- [ ] attic\n- [ ] cellar",
        "Here is the list:\n- [x] attic\n- [ ] cellar",
        "I have completed the audit:\n- [x] locks doors\n- [ ] tests alarms",
        "I have completed the review. Open issues: two rooms are not yet finished.",
        "The cellar is still open and was not finished in 1970.",
        "",
    ],
)
def test_an_answer_that_tells_of_something_else_is_no_failure(answer: str) -> None:
    assert classified(LOOKED, says(answer)).failure_type is UNKNOWN


@pytest.mark.parametrize(
    "looked",
    [
        call("tickets", ["4 cellar", "7 attic"], {"state": "open"}),
        call("board", {"cellar": "in progress"}),
        call("list_todos", ["cellar"]),
    ],
)
def test_open_work_that_was_looked_up_is_the_answer(looked: Step) -> None:
    answer = "I have completed the list. Remaining: the cellar was not done."
    assert classified(looked, says(answer)).failure_type is UNKNOWN
    assert classified(LOOKED, says(answer)).failure_type is INCOMPLETE


# --- done, and was not ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failed", "answer"),
    [
        (call("delete_room", error="no right to"), "I've deleted the room."),
        (call("deleteRoom", "Error: it is let"), "I have now deleted room 3."),
        (call("delete_room", {"error": "it is let"}), "Your room has been deleted."),
        (call("book_room", '{"error": "no beds"}'), "The room was booked for you successfully."),
        (call("book_room", '{"error": "no beds"}'), "Your room was successfully booked."),
    ],
)
def test_a_claim_of_what_had_just_failed_is_a_failure(failed: Step, answer: str) -> None:
    found = classified(LOOKED, failed, says(answer))
    assert (found.failure_type, found.cause) == (FailureType.HALLUCINATED_STATE, "not_done")
    assert found.critical_step == 2
    # What did it in the end did it.
    done = call(failed.tool_called or "", "ok")
    assert classified(LOOKED, failed, done, says(answer)).failure_type is UNKNOWN


@pytest.mark.parametrize(
    ("failed", "answer"),
    [
        (call("delete_room", error="it is let"), "I could not delete the room."),
        (call("delete_room", error="it is let"), "The room is let until May."),
        (call("delete_room", "Error: already deleted"), "I have deleted the room."),
        (call("find_room", {"error": "gone"}), "I have deleted the room."),
        (call("get_deleted_rooms", {"error": "gone"}), "I have deleted the room."),
    ],
)
def test_a_claim_of_nothing_that_failed_is_none(failed: Step, answer: str) -> None:
    assert classified(LOOKED, failed, says(answer)).failure_type is UNKNOWN


# --- one question, many ways ---------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        [{"q": text} for text in ("quiet room sea", "room sea quiet", "sea quiet rooms")],
        ["quiet room sea", "sea quiet room", "Room, quiet: sea"],
        [{"q": "sea", "timestamp": 1_700_000_000 + at} for at in range(3)],
        [{"q": "sea", "now": f"2031-05-01T09:00:0{at}Z"} for at in range(3)],
        [{"q": "sea", "requestId": f"r-{at}{at}"} for at in range(3)],
        [f'{{"q": "sea", "nonce": "{at}"}}' for at in range(3)],
    ],
    ids=str,
)
def test_one_question_with_one_result_is_a_loop_at_the_end(asked: list[Any]) -> None:
    calls = [call("search", "nothing", given) for given in asked]
    found = classified(LOOKED, *calls)
    assert (found.failure_type, found.critical_step) == (LOOP, 1)
    between = [step for one in calls for step in (says(f"Once more {one.tool_input}"), one)]
    assert classified(LOOKED, *between).failure_type is LOOP
    # It was left, it is allowed, or it ended in another result.
    assert classified(*calls, says("There is none.")).failure_type is UNKNOWN
    assert classified(*calls, exempt=["search"]).failure_type is UNKNOWN
    assert classified(*calls[:-1], call("search", "Sol", asked[-1])).failure_type is UNKNOWN


@pytest.mark.parametrize(
    "asked",
    [
        ["Porto Faro", "Faro Porto", "Porto, Faro!"],
        ["room 1 of 3 sea", "room 3 of 1 sea", "sea room 1 of 3"],
        [{"q": "sea", "day": f"2031-05-0{at}"} for at in (1, 2, 3)],
        [{"q": "sea", "timestamp": 1_700_000_000 + 3_600 * at} for at in range(3)],
        [{"q": "sea", "timestamp": at} for at in range(3)],
        [{"q": "sea", "id": at} for at in range(3)],
        [{"q": "sea", "now": value} for value in (None, True, "soon:ish")],
    ],
    ids=str,
)
def test_other_questions_with_one_result_are_none(asked: list[Any]) -> None:
    calls = [call("search", "nothing", given) for given in asked]
    assert classified(LOOKED, *calls).failure_type is UNKNOWN


def test_a_run_that_goes_on_is_not_stopped_for_it() -> None:
    watch = CLASSIFIER.watch()
    for at in range(9):
        assert watch.add(call("search", "nothing", {"q": "sea", "request_id": at})) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "errors", "status", "code", "message", "ts", "now", "q"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, st.text(max_size=60))
def test_any_steps_are_judged_without_an_error(given: Any, result: Any, answer: str) -> None:
    steps = [call("search", result, given)] * 3
    for tail in ((), (says(answer),)):
        assert classified(*steps, *tail).failure_type in FailureType
