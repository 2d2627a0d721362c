"""The demonstration does what it says: the service, the model, the tasks and the whole of it."""

from __future__ import annotations

import asyncio
import copy
import html
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from rich.console import Console

from examples.demo import wire
from examples.demo.__main__ import Report, run_task
from examples.demo.agent import SYSTEM
from examples.demo.faults import Fault, Kind
from examples.demo.model import complete
from examples.demo.modes import desk
from examples.demo.service import Service
from examples.demo.shop import DATA, Shop
from examples.demo.show import Show
from examples.demo.tasks import TASKS, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

# Any test may be the first that waits for the demonstration.
pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parent.parent
BY_ID = {task.id: task for task in TASKS}
MESSAGES: list[Any] = [{"role": "user", "content": "Find the cheapest fare to Madrid."}]

CURES = {
    "unknown_tool": "These tools exist: get_order, search_fares.",
    "wrong_argument": "passengers must be an integer.",
    "malformed_output": "Answer with one JSON object.",
    "loop": 'Do not call search_fares with {"city": "Porto"} again.',
    "false_success": "The order is not paid: call charge_card.",
}
IN_PLACE = ("rate_limit", "outage", "timeout", "late_crash")
"""Tasks whose request to the model fails."""
NO_CURES = ("", "Try again.", "That was wrong. Think step by step and avoid the mistake.")


@pytest.fixture(autouse=True)
def no_real_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as running:
        yield running


def ask(service: Service, *, stream: bool = True, timeout: float = 30.0, **changes: Any) -> Any:
    """One chat request of the task `t`: the completion, or the chunks of its stream."""
    request: dict[str, Any] = {"model": "scripted", "messages": MESSAGES, "stream": stream}
    client = openai.OpenAI(
        base_url=f"{service.url}/v1",
        api_key="sk-test",
        max_retries=0,
        timeout=timeout,
        default_headers={"X-Demo-Task": "t"},
    )
    with client:
        answer = client.chat.completions.create(**(request | changes))
        return list(answer) if stream else answer


def talk(task: Task, shop: Shop, hint: str | None = None) -> list[list[dict[str, Any]]]:
    """The message lists of one conversation of the model about a task, up to eight turns."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.prompt},
    ]
    if hint is not None:
        messages.append({"role": "system", "content": hint})
    seen = [list(messages)]
    places = {"search_fares": "fares", "get_order": "orders", "charge_card": "charge"}
    for turn in range(8):
        call = complete(messages).call
        if call is None or call.name not in places:
            break
        answer = wire.tool(shop, places[call.name], json.loads(call.arguments), f"{task.id}-{turn}")
        function = {"name": call.name, "arguments": call.arguments}
        asked = {"id": f"c{turn}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        content = json.dumps(answer.body)
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": content})
        seen.append(list(messages))
    return seen


def test_the_model_is_a_function_of_its_messages_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    asked = [m for t in TASKS for hint in (None, CURES.get(t.id)) for m in talk(t, shop, hint)]
    before = copy.deepcopy(asked)
    answers = [complete(messages) for messages in asked]
    assert asked == before
    for index in (*reversed(range(len(asked))), *range(len(asked))):
        assert complete(copy.deepcopy(asked[index])) == answers[index]
    assert len(set(answers)) > len(TASKS)


@pytest.mark.parametrize("task_id", CURES)
def test_only_a_hint_with_the_fact_corrects_the_model(service: Service, task_id: str) -> None:
    task = BY_ID[task_id]

    async def done(hint: str | None) -> bool:
        async with desk(service, task.id) as agent:
            try:
                answer = await agent.book(task.prompt, _triage_hint=hint)
            except (LookupError, ValueError, RuntimeError):
                return False
        return await asyncio.to_thread(task.check, answer, service.shop)

    for hint in (None, *NO_CURES):
        assert not asyncio.run(done(hint)), hint
    others = CURES.keys() - {task_id}
    if task_id == "unknown_tool":
        others -= {"loop"}  # which happens to name the tool
    for other in sorted(others):
        assert not asyncio.run(done(CURES[other])), other
    assert asyncio.run(done(CURES[task_id]))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        (Kind.RATE_LIMIT, openai.RateLimitError, 429),
        (Kind.OVERLOADED, openai.InternalServerError, 503),
        (Kind.SERVER_ERROR, openai.InternalServerError, 500),
        (Kind.CUT, openai.APIConnectionError, None),
        (Kind.HANG, openai.APITimeoutError, None),
        (Kind.MALFORMED, json.JSONDecodeError, None),
    ],
)
def test_a_fault_is_the_clients_own_error(
    service: Service, *, stream: bool, kind: Kind, error: type[Exception], status: int | None
) -> None:
    service.faults.set("t", [Fault(kind, seconds=5)])
    with pytest.raises(error) as caught:
        ask(service, stream=stream, timeout=0.4 if kind is Kind.HANG else 30.0)
    assert getattr(caught.value, "status_code", None) == status


def test_a_rate_limit_says_how_long_and_lasts_as_long(service: Service) -> None:
    service.faults.set("t", [Fault(Kind.RATE_LIMIT, seconds=60)])
    for _ in range(2):
        with pytest.raises(openai.RateLimitError) as caught:
            ask(service)
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.response.headers["retry-after"] == "60"
    service.faults.set("t", [Fault(Kind.RATE_LIMIT, seconds=0)])
    assert ask(service)


def test_a_wrong_request_is_a_400_and_a_missing_key_a_401(service: Service) -> None:
    with pytest.raises(openai.BadRequestError, match="messages"):
        ask(service, messages="not a list")
    url = f"{service.url}/v1/chat/completions"
    answer = httpx.post(url, json={"model": "m", "messages": MESSAGES})
    assert answer.status_code == 401
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_the_stream_says_what_the_whole_answer_says(service: Service) -> None:
    whole = ask(service, stream=False)
    chunks = ask(service, stream_options={"include_usage": True})
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    pieces = [delta.tool_calls[0].function for delta in deltas if delta.tool_calls]
    call = whole.choices[0].message.tool_calls[0].function
    assert pieces[0].name == call.name
    assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert chunks[-1].usage == whole.usage
    assert whole.usage.total_tokens > 0


def test_the_shipped_database_is_the_shipped_script() -> None:
    with (
        closing(sqlite3.connect(f"file:{DATA / 'shop.sqlite'}?mode=ro", uri=True)) as shipped,
        closing(sqlite3.connect(":memory:")) as built,
    ):
        built.executescript((DATA / "shop.sql").read_text(encoding="utf-8"))
        assert list(shipped.iterdump()) == list(built.iterdump())


def test_a_charge_with_a_known_key_takes_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert shop.charge(1001, 100, "a") == shop.charge(1001, 100, "a") == "R-1"
    assert shop.repeated_charges() == 0
    assert shop.charge(1001, 100, "b") == "R-2"
    assert shop.repeated_charges() == 1


def test_a_charge_whose_answer_is_late_has_happened(service: Service) -> None:
    service.faults.set("t", [Fault(Kind.HANG, where="charge", seconds=5)])
    headers = {"X-Demo-Task": "t", "Idempotency-Key": "k"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{service.url}/tools/charge",
            json={"order_id": 1001, "cents": 100},
            headers=headers,
            timeout=httpx.Timeout(30, read=0.5),
        )
    # The service may be slower to read the request than the client is to give up.
    while not service.shop.charges():
        time.sleep(0.01)
    assert [row.order_id for row in service.shop.charges()] == [1001]


def test_with_a_key_the_same_agent_talks_to_the_real_endpoint(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    task = BY_ID["healthy"]
    with Service(tmp_path / "other") as real:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{real.url}/v1")
        show = Show(Console(file=io.StringIO()), "bare")
        outcome = asyncio.run(run_task("bare", task, service, show))
        assert outcome.done
        assert outcome.model_calls == real.faults.requests(task.id) > 0
        assert service.faults.requests(task.id) == 0
        assert service.faults.requests(task.id, "charge") == 1


@pytest.fixture(scope="module")
def demo() -> tuple[str, list[dict[str, Any]]]:
    """What `make demo` prints, and its JSON lines."""
    environment = {name: value for name, value in os.environ.items() if "OPENAI" not in name}
    finished = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--plain", "--verbose"],
        cwd=ROOT,
        env=environment | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = finished.stdout.splitlines()
    return finished.stdout, [json.loads(line) for line in lines[-3:]]


def test_the_demo_ends_with_one_json_line_for_each_mode(demo: Any) -> None:
    _, reports = demo
    assert [report["mode"] for report in reports] == ["bare", "tenacity", "triage"]
    for report in reports:
        assert tuple(report) == Report._fields
        assert report["tasks"] == len(TASKS)


def test_triage_does_every_task_and_repeats_no_effect(demo: Any) -> None:
    _, (bare, tenacity, guided) = demo
    assert guided["done"] == guided["tasks"]
    assert guided["repeated_effects"] == 0
    assert bare["done"] < tenacity["done"] < guided["done"]
    assert bare["repeated_effects"] == bare["seconds_waited"] == 0
    assert tenacity["repeated_effects"] >= 2
    assert guided["model_calls"] < tenacity["model_calls"]
    assert 1 <= guided["seconds_waited"] < tenacity["seconds_waited"]


def test_a_row_a_task_says_how_it_ended_in_each_mode(demo: Any) -> None:
    text, reports = demo
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()[:1]}
    for task in TASKS:
        assert task.trouble in rows[task.id]
        assert rows[task.id].rstrip().endswith("✓"), "done under triage"
        assert len(rows[task.id]) <= 80
    assert rows["late_crash"].count("paid again") == 1
    assert rows["done"].split()[-3:] == [str(report["done"]) for report in reports]


def test_the_demo_shows_the_diagnosis_the_evidence_and_the_action(demo: Any) -> None:
    text, _ = demo
    for task in TASKS:
        block = text.partition(f"\n{task.id} ")[2]
        assert task.prompt in block.partition("\n  bare\n")[0]
        part = block.partition("\n  triage\n")[2].partition("✓ done")[0]
        if task.id == "healthy":
            assert "failed" not in part
            continue
        # A refused request is made again in its place.
        whole = ("failed", "diagnosis", "evidence", "action", "again")
        labels = ("failed",) if task.id in IN_PLACE else whole
        for label in labels:
            assert f"{label}  " in part, (task.id, label)


def test_the_picture_of_the_readme_shows_what_is_printed(demo: Any) -> None:
    text, _ = demo
    svg = (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")
    drawn = "".join(html.unescape("".join(re.findall(r">([^<>]+)</text>", svg))).split())
    for task in TASKS:
        (row,) = (line for line in text.splitlines() if line.startswith(f"{task.id} "))
        assert "".join(row.split()) in drawn


def test_it_ends_with_what_to_paste_for_a_function_of_ones_own(demo: Any) -> None:
    text, _ = demo
    code = text.partition("from any framework or none.\n")[2].partition("\n{")[0]
    own = "async def your_function(task): return f'did {task}'\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", own], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "did your task\n", done.stderr
