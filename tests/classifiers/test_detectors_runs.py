"""What a run shows as a whole: failures passed over, equal calls, one answer to every question."""

from __future__ import annotations

from typing import Any

from tables import table

from triage import Diagnosis, RulesClassifier, Step, Trajectory
from triage.classifiers import Watch
from triage.classifiers.detectors.loops import outline


def call(tool: str, given: Any = None, result: Any = None, **more: Any) -> Step:
    return Step(action=tool, tool_called=tool, tool_input=given, tool_output=result, **more)


def said(text: str, who: str = "model") -> Step:
    return Step(action=who, llm_output=text)


def classified(*steps: Step, task: Any = None) -> Diagnosis:
    return RulesClassifier().classify(Trajectory(steps, task=task))


SEEN = call("get_van", {"id": "vans/11"}, {"id": "vans/11", "seats": 9})
PAGE = "<html><body><form><input name=u><input type='password'></form></body></html>"
FAILURES = {
    "an error of no known kind": call("get_van", {"id": "vans/12"}, {"error": "core meltdown"}),
    "a page to sign in": call("get_van", {"id": "vans/12"}, PAGE),
    "a message alone": call("get_van", {"id": "vans/12"}, {"message": "bridge is shut"}),
    "a status alone": call("get_van", {"id": "vans/12"}, {"status": 504, "body": ""}),
    "a refusal": call("get_van", {"id": "vans/12"}, {"ok": False, "reason": "it is let"}),
    "the name of an error": call("get_van", {"id": "vans/12"}, error="ReadTimeout"),
}


@table("failed", FAILURES.values())
def test_a_failure_that_the_answer_passes_over_is_found(failed: Step) -> None:
    found = classified(SEEN, failed, said("vans/12 is ready."))
    assert (found.failure_type.value, found.critical_step) == ("external_fault", 1)


@table(
    "steps",
    [
        (SEEN, FAILURES["an error of no known kind"], said("I could not read vans/12.")),
        (SEEN, FAILURES["an error of no known kind"], said("There was a meltdown at vans/12.")),
        (SEEN, FAILURES["an error of no known kind"], said("It comes to 412.50.")),
        (call("get_page", {"n": 1}, PAGE), call("get_page", {"n": 2}, PAGE), said("Two forms.")),
    ],
)
def test_a_failure_that_the_answer_is_about_is_none(steps: tuple[Step, ...]) -> None:
    assert classified(*steps).failure_type.value == "unknown"


def test_json_that_breaks_off_is_seen_in_content_as_well() -> None:
    cut = {"content": [{"type": "text", "text": '[{"id": "vans/11", "seats": 9}, {"id": "va'}]}
    found = classified(call("list_vans", {}, cut), said("One van."))
    assert found.failure_type.value == "schema_mismatch"


@table(
    "tool, given, result, effect",
    [
        ("remind", {"customer": "C17"}, None, "once"),
        ("send_reminder", {"customer": "C17"}, {"sent": True, "error": None}, None),
        ("email_customer", {}, "The reminder has been sent to the customer by mail.", "unknown"),
        ("put_line", {"order": "vans/11"}, "ok", "idempotent"),
        ("get_state", {}, "The van is clean, full and ready to leave the yard.", "read"),
    ],
)
def test_a_list_of_numbers_worked_through_with_equal_answers_is_no_loop(
    tool: str, given: dict[str, Any], result: Any, effect: str | None
) -> None:
    steps = [call(tool, {**given, "number": at}, result, effect=effect) for at in range(1001, 1041)]
    assert classified(*steps, said("All are done.")).failure_type.value == "unknown"
    watch = Watch()
    assert not any(map(watch.add, steps))


@table(("apart", "kind"), [(0, "unknown"), (1, "loop_detected")])
def test_a_round_whose_calls_have_one_number_is_about_it_and_one_that_counts_its_calls_is_a_loop(
    apart: int, kind: str
) -> None:
    steps: list[Step] = []
    for at in range(100, 124, 2):
        steps.append(call("check", {"van": "vans/11", "n": at}, "open", effect="read"))
        steps.append(call("remind", {"van": "vans/11", "n": at + apart}, "ok", effect="once"))
    assert classified(*steps, said("Done.")).failure_type.value == kind


def test_changes_of_which_nothing_came_are_a_loop_though_their_numbers_differ() -> None:
    tries = [call("book", {"van": "vans/11", "attempt": at}, "no seats left") for at in range(6)]
    assert classified(*tries).evidence[0].rule == "steps.counting_loop"


def test_results_that_differ_in_their_times_alone_are_a_loop() -> None:
    polls = [
        call("state", {"id": "vans/11"}, {"state": "idle", "at": f"2031-03-04T10:0{at}:00Z"})
        for at in range(6)
    ]
    assert classified(*polls).evidence[0].rule == "steps.counting_loop"
    assert classified(*polls[:4]).failure_type.value == "unknown"


def test_results_that_differ_in_their_own_id_alone_are_a_loop() -> None:
    runs = [
        call("test", {"van": "vans/11"}, {"id": at, "state": "bad", "why": "brakes"})
        for at in range(6)
    ]
    assert classified(*runs).evidence[0].rule == "steps.counting_loop"
    made = [call("add_van", {"seats": 9}, {"id": at}) for at in range(3)]
    assert classified(*made, said("Three vans.")).failure_type.value == "unknown"


def test_other_orders_of_the_same_words_that_find_nothing_are_a_loop_and_other_names_are_none() -> (
    None
):
    words = ["van with brakes", "brakes with van", "van brakes", "with brakes van", "brakes van"]
    for asked, kind in (
        (words, "loop_detected"),
        (["van of Ines", "van of Odo", "van of Una", "van of Ida", "van of Eva"], "unknown"),
    ):
        steps = [call("search", {"q": one}, "No results.") for one in asked]
        assert classified(*steps).failure_type.value == kind


def test_empty_results_are_the_same_whatever_they_echo_or_count() -> None:
    words = ["van with brakes", "brakes with van", "van brakes", "with brakes van", "brakes van"]
    echoed = [
        call("ask", {"q": one}, {"q": one, "vans": [], "ms": at}) for at, one in enumerate(words)
    ]
    assert classified(*echoed).failure_type.value == "loop_detected"
    counted = [
        call("search", {"q": one}, f"{at} hits, too many, none shown")
        for at, one in enumerate(words, 200)
    ]
    assert classified(*counted).failure_type.value == "loop_detected"
    listed = [
        call("stock", {"van": 700 + at}, {"van": 700 + at, "seats": 9 * at, "sold": False})
        for at in range(9)
    ]
    assert classified(*listed).failure_type.value == "unknown"
    missing = [
        call("stock", {"van": at}, f"There is no van with the number {at}.") for at in range(9)
    ]
    assert classified(*missing).failure_type.value == "unknown"
    found = [call("ask", {"q": one}, {"q": one, "vans": [at]}) for at, one in enumerate(words)]
    assert classified(*found).failure_type.value == "unknown"


def test_many_rounds_are_a_loop_though_an_answer_followed_and_polling_that_ended_is_none() -> None:
    poll = call("state", {"id": "vans/11"}, "being washed")
    answer = said("It is being washed.")
    assert classified(*[poll] * 9, answer).failure_type.value == "loop_detected"
    assert classified(*[poll] * 5, answer).failure_type.value == "unknown"
    clean = call("state", {"id": "vans/11"}, "clean")
    assert classified(*[poll] * 9, clean, said("It is clean.")).failure_type.value == "unknown"


def test_calls_that_repeat_between_words_are_a_loop_where_the_words_repeat_as_well() -> None:
    talk = [said("Let me look once more.", "scout"), call("search", {"q": "vans"}, "none found")]
    other = said("Please go on until you have it.", "chief")
    steps = [*talk, other, *talk, said("Look elsewhere.", "chief"), *talk, other]
    assert classified(*steps).failure_type.value == "loop_detected"
    assert classified(*steps[:-1], said("There are no vans.")).failure_type.value == "unknown"


class _Counted(list[Any]):
    """A list that counts how many of its items were read, and that is never compared as a whole."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        _Counted.read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Any:
        raise AssertionError("read as a whole")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared as a whole")

    __hash__ = None


def test_of_a_large_result_a_bounded_part_is_read_at_each_step() -> None:
    rows = _Counted({"id": at} for at in range(190_000))
    assert len(outline(rows)) <= 400
    _Counted.read = 0
    assert outline(rows) == outline(rows)
    assert outline(rows) != outline(_Counted({"id": at} for at in range(190_001)))
    assert _Counted.read <= 4 * 400
    watch = Watch()
    for _ in range(3):
        watch.add(call("rows", {"all": True}, [{"id": at} for at in range(5_000)]))
    assert watch.loop is not None


def test_one_answer_of_a_tool_to_every_question_is_its_services() -> None:
    down = {"status": "ok", "body": "The gateway of the garage is being rebuilt until noon."}
    vans = [call("get_van", {"id": f"vans/{at}"}, down) for at in (12, 13)]
    found = classified(SEEN, *vans, said("vans/11 has nine seats."))
    assert (found.failure_type.value, found.critical_step) == ("external_fault", 1)
    assert classified(*vans, said("Hm.")).failure_type.value == "unknown"
    assert classified(SEEN, *vans, SEEN, said("Nine.")).failure_type.value == "unknown"
