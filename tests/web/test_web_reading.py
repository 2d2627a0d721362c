"""What the page reads from a journal: any event in one line, places in pictures, pairs of steps."""

from __future__ import annotations

import pytest
from event_values import event_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from starlette.testclient import TestClient
from web.page_runs import journals, long_run, stored

from triage.core import CallFinished, CallStarted, Event, StepRecorded
from triage.core.wire import EVENTS
from triage.engine.digest import Digest
from triage.web import app
from triage.web.pictures import WIDTH, Scale, picture_of
from triage.web.story import Story, compared
from triage.web.timeline import Moments, entries_of, since

any_event = st.one_of([event_of(kind) for kind in EVENTS.values()])


@given(any_event)
@example(
    CallStarted(
        run_id="a", seq=0, time=0.0, attempt=1, key="k", tool="pay", effect="safe", kind="\r"
    )
)
@settings(max_examples=200)
def test_every_event_is_told_in_a_line_of_text_that_can_be_shown(event: Event) -> None:
    moment = Moments().apply(event)
    (entry,) = entries_of([moment], 0.0, None)
    assert entry.kind
    for text in (entry.kind, entry.text, entry.result, entry.took, entry.at):
        assert len(text) <= 200
        assert "\n" not in text
        assert not any("\ud800" <= char <= "\udfff" for char in text)


@given(any_event)
def test_a_list_takes_every_event(event: Event) -> None:
    digest = Digest()
    digest.apply(event)
    assert digest.events == event.seq + 1
    assert len(digest.task) <= 160
    assert len(digest.error) <= 200


@pytest.mark.parametrize("run", [f"order-100{n}" for n in range(1, 8)])
def test_each_event_belongs_to_one_moment_in_the_order_of_their_starts(run: str) -> None:
    events = journals()[run]
    moments = Story(events).moments
    assert sorted(event.seq for moment in moments for event in moment.events) == [
        event.seq for event in events
    ]
    starts = [moment.first.seq for moment in moments]
    assert starts == sorted(starts)


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_places_in_a_picture_are_in_order_and_inside_whatever_the_pauses(
    times: list[float],
) -> None:
    scale = Scale(times)
    places = [scale.at(time) for time in sorted(times)]
    assert places == sorted(places)
    assert all(0 <= place <= WIDTH + 0.1 for place in places)


def test_a_day_without_events_takes_little_room_and_is_said() -> None:
    scale = Scale([0, 10, 10 + 86_400, 20 + 86_400])
    ((place, length),) = scale.idle
    assert (round(place), length) == (486, "24 h")
    assert scale.at(10 + 86_400) - scale.at(10) < 30


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "+0.00 s"),
        (0.423, "+0.42 s"),
        (99.99, "+99.99 s"),
        (200, "+3 min 20 s"),
        (7_500, "+2 h 5 min"),
        (90_000, "+1 d 1 h"),
    ],
)
def test_a_time_is_told_from_the_start(seconds: float, said: str) -> None:
    assert since(seconds) == said


def test_of_very_many_calls_all_that_failed_are_drawn() -> None:
    events = long_run(2_000, ends=False)
    failed = [event for event in events if isinstance(event, CallFinished)][7::400]
    events = [replace(one, outcome="failed") if one in failed else one for one in events]
    (lane,) = picture_of(Story(events)).lanes
    assert 100 < len(lane.bars) <= 410
    assert sum(bar.tone == "bad" for bar in lane.bars) == len(failed) == 5


@pytest.mark.parametrize(("left", "right"), [(1, 2), (2, 3), (3, 1), (5, 5)])
def test_each_step_of_two_attempts_stands_in_one_pair(left: int, right: int) -> None:
    story = Story(journals()["order-1005"])
    sides = compared(story, left, right)
    for side, number in (("left", left), ("right", right)):
        shown = [getattr(pair, side).step for pair in sides.pairs if getattr(pair, side)]
        steps = [
            event.index
            for moment in story.moments
            for event in moment.events
            if isinstance(event, StepRecorded) and event.attempt == number
        ]
        assert sorted(shown) == sorted(steps)


def test_a_journal_that_no_release_writes_gets_a_page_that_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Calls that ended and never began.
    ended = [one for one in long_run(2, "odd") if not isinstance(one, CallStarted | StepRecorded)]
    store = stored([replace(event, seq=at) for at, event in enumerate(ended)])
    page = TestClient(app(store), base_url="http://localhost").get("/runs/odd")
    assert page.status_code == 500
    assert "The page failed" in page.text
    assert "/runs/odd" in caplog.text
