"""What `triage diagnose` says of whole files: a loop in any form, and files that are no JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from adapters.trace_forms import FORMS, Call, Told

from triage.cli import main

SORRY = "Sorry, I could not find anything."
NOTHING = Call("search", {"q": "fares"}, "no results")


def told(here: Path, capsys: pytest.CaptureFixture[str], content: str, *flags: str) -> list[Any]:
    """Each diagnosis and each problem that is printed about a file."""
    (here / "file").write_text(content, encoding="utf-8")
    main(["diagnose", str(here / "file"), "--json", *flags])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize("last", [SORRY, "There are 4 fares."])
def test_the_same_call_with_the_same_result_and_no_other_work_is_a_loop(
    last: str, repeats: int, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = FORMS[name](Told("Find fares", [NOTHING] * repeats, last))
    (found,) = told(tmp_path, capsys, json.dumps(recorded))
    assert found["diagnosis"]["failure_type"] == "loop_detected"
    assert f"{repeats} times" in found["diagnosis"]["hint"]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("calls", [
    [NOTHING] * 2,
    [NOTHING._replace(given={"q": q}) for q in ("Porto", "Faro", "Lagos")],
    [NOTHING._replace(result=f"{n} of 3 pages read") for n in range(3)],
    [*[NOTHING] * 3, Call("book", {"seat": "4a"}, "booked")],
    [Call("login", {}, "welcome"), *[NOTHING] * 3],
])  # fmt: skip
def test_other_calls_other_results_and_other_work_are_none(
    calls: list[Call], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = FORMS[name](Told("Find fares", calls, "That is all."))
    (found,) = told(tmp_path, capsys, json.dumps(recorded))
    assert found["diagnosis"]["failure_type"] != "loop_detected"


def test_what_is_asked_anew_or_polled_with_pauses_or_passed_on_is_no_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"tool_called": "search", "tool_input": {"q": "x"}, "tool_output": "none"}
    asked = {"action": "user: and now?"}
    last = {"action": "model", "llm_output": SORRY}
    sent = {"action": "model", "llm_output": "It is being shipped."}
    anew = [call, asked, call, asked, call, last]
    polled = [{**call, "timestamp": 60.0 * at, "duration_s": 1.0} for at in range(3)]
    at_once = [{**call, "timestamp": 2.0 * at, "duration_s": 1.0} for at in range(3)]
    lines = "\n".join(
        json.dumps({"steps": steps})
        for steps in (
            anew,
            [*polled, last],
            [{**call, "tool_output": "being shipped"}] * 3 + [sent],
        )
    )
    lines += "\n" + json.dumps({"steps": [*at_once, last]})
    found = [one["diagnosis"]["failure_type"] for one in told(tmp_path, capsys, lines)]
    assert found == ["unknown", "unknown", "unknown", "loop_detected"]


# Files that are no JSON -------------------------------------------------------------------------------

TRACEBACK = """\
Traceback (most recent call last):
  File "/app/x.py", line 3, in main
    answer = client.messages.create()
openai.RateLimitError: Error code: 429 - slow down
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/app/main.py", line 40, in <module>
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/app/default.py", line 101, in map_exceptions
    |     yield
    | httpcore.ReadTimeout
    |
    | The above exception was the direct cause of the following exception:
    |
    | httpx.ReadTimeout
    +------------------------------------
"""
GOOGLE = """503 UNAVAILABLE. {'error': {'code': 503, 'message': 'No', 'status': 'UNAVAILABLE'}}\n"""
CUT = """\
event: message_start
data: {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}}

event: error
data: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

"""
BODY = json.dumps({"error": {"code": 429, "message": "Slow down", "status": "RESOURCE_EXHAUSTED"}})
HISTORY = "Error: 400 " + json.dumps({
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "tool_use ids were found without results"},
})  # fmt: skip


@pytest.mark.parametrize(("content", "cause"), [
    (TRACEBACK, "rate_limited"),
    (GROUP, "timeout"),
    (GOOGLE, "unavailable"),
    (CUT, "overloaded"),
    (BODY, "rate_limited"),
    (json.dumps([{"error": HISTORY, "timestamp": "2026-08-10T01:00:00Z"}]), "broken_history"),
    (json.dumps({"error": HISTORY}), "broken_history"),
])  # fmt: skip
def test_an_error_alone_is_diagnosed_as_one_trace(
    content: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = told(tmp_path, capsys, content)
    assert (found["kind"], found["steps"]) == ("diagnosis", 0)
    assert found["diagnosis"]["cause"] == cause


SPAN = {"id": "a", "traceId": "t", "type": "TOOL", "name": "search", "parentObservationId": None,
        "startTime": "2026-08-03T11:10:35.216Z", "input": {"q": "x"}, "output": "none"}  # fmt: skip
RUN = {"id": "a", "run_type": "tool", "name": "search", "inputs": {"q": "x"}, "outputs": {}}


@pytest.mark.parametrize(("content", "name"), [
    (json.dumps([SPAN, SPAN]), "Langfuse"),
    ("\n".join([json.dumps(SPAN)] * 3), "Langfuse"),
    (json.dumps({"id": "t", "name": "agent", "observations": [SPAN]}), "Langfuse"),
    (json.dumps([RUN]), "LangSmith"),
    (json.dumps({**RUN, "run_type": "chain", "child_runs": []}), "LangSmith"),
    ('data: {"object": "chat.completion.chunk", "choices": []}\n\ndata: [DONE]\n\n', "events"),
    ("# Notes\n\nThe agent ran twice.\nNothing was found.\n", "text"),
    ("[INFO] start\n[INFO] end\n", "text"),
])  # fmt: skip
def test_another_file_is_refused_once_by_name_with_what_to_do(
    content: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = told(tmp_path, capsys, content)
    assert found["kind"] == "problem"
    assert name in found["text"]
    assert found["remedy"]


def test_a_broken_line_among_records_is_told_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.dumps({"steps": [{"action": "a", "llm_output": "ok"}]})
    found = told(tmp_path, capsys, f"not json\n{record}\nnor this\n{record}\n")
    assert sorted(one["kind"] for one in found) == ["diagnosis"] * 2 + ["problem"] * 2
