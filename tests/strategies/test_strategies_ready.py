"""Ready-made strategies that ask otherwise: another model, a shorter request, another tool, each field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from engine.asked_models import completion, said, text_of, user
from msgspec.structs import replace
from support import FakeEnvironment
from tables import table

import triage
from strategies.strategy_contexts import TIMED_OUT, WRONG_KEY, answer, context, reason_of
from triage import (
    Agent,
    Diagnosis,
    Escalate,
    FailurePolicy,
    FailureType,
    Replan,
    Retry,
    Run,
    Step,
    Suspend,
    Trajectory,
    TriageEscalationError,
    UsageError,
)
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.openai import record
from triage.core import ErrorInfo, Evidence, StepRecorded
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    RateGate,
    RetryBudget,
    Strategy,
    ask_again,
    backoff_and_retry,
    behind_gate,
    break_loop,
    by_severity,
    chain,
    circuit_breaker,
    repair_arguments,
    replan,
    retry_expired_credential,
    rollback_to_checkpoint,
    sequence,
    shrink_context,
    substitute,
    switch_model,
    within_budget,
)

pytestmark = pytest.mark.usefixtures("theirs_may_block")
OVERFLOW = Diagnosis(FailureType.CONTEXT_OVERFLOW, cause="context_length")
Body = dict[str, Any]


class Line:
    """A provider as its requests reach it, and clients of it that are recorded."""

    def __init__(self, reply: Callable[[Body], tuple[int, Body]]) -> None:
        self.reply = reply
        self.bodies: list[Body] = []
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._handle))
        self.plain = openai.AsyncOpenAI(
            base_url="http://provider/v1", api_key="x", max_retries=0, http_client=http
        )
        self.client = record(self.plain)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        status, data = self.reply(body)
        return httpx2.Response(status, json=data)

    async def ask(self, messages: list[Any]) -> str:
        return text_of(await self.client.chat.completions.create(model="first", messages=messages))


def refused(status: int, message: str, code: str = "") -> tuple[int, Body]:
    return status, {"error": {"message": message, "code": code, "type": code}}


def only(*models: str) -> Callable[[Body], tuple[int, Body]]:
    """A provider that serves these models alone."""

    def reply(body: Body) -> tuple[int, Body]:
        if body["model"] not in models:
            return refused(503, "overloaded")
        return 200, completion(f"{body['model']}: {body['messages'][-1]['content']}")

    return reply


@pytest.mark.anyio
async def test_a_model_that_is_down_is_replaced_and_what_was_done_is_kept() -> None:
    down = [False]

    def reply(body: Body) -> tuple[int, Body]:
        if down[0] and body["model"] == "first":
            return refused(503, "overloaded")
        return 200, completion(f"{body['model']}: {body['messages'][-1]['content']}")

    line = Line(reply)
    steps: list[Step] = []

    async def works(task: str) -> str:
        messages = [user("one")]
        messages += [said(await line.ask(messages)), user("two")]
        down[0] = True
        messages += [said(await line.ask(messages)), user("three")]
        return await line.ask(messages)

    policy = FailurePolicy.recommended(models=["second"])
    agent = Agent(
        works,
        policy,
        environment=FakeEnvironment(),
        observers=[lambda event: steps.append(event.step) if isinstance(event, StepRecorded) else None],
    )  # fmt: skip
    assert await agent.run("x") == "second: three"
    asked = [(body["model"], body["messages"][-1]["content"]) for body in line.bodies]
    assert asked[0] == ("first", "one")
    assert set(asked[1:-2]) == {("first", "two")}
    assert asked[-2:] == [("second", "two"), ("second", "three")]
    assert line.bodies[-1]["messages"][1]["content"] == "first: one"
    assert [(step.metadata or {})["model"] for step in steps[-2:]] == ["second", "second"]


@pytest.mark.anyio
async def test_the_model_stays_switched_when_something_else_fails_later() -> None:
    line = Line(only("second"))
    failed: list[int] = []

    async def works(task: str) -> str:
        said_ = await line.ask([user("one")])
        failed.append(1)
        if len(failed) < 3:
            raise ValueError("odd")
        return said_

    policy = FailurePolicy(EXTERNAL_FAULT=switch_model(["second"]), default=Retry())
    assert await Agent(works, policy, environment=FakeEnvironment()).run("x") == "second: one"
    assert [body["model"] for body in line.bodies] == ["first", "second", "second", "second"]


@pytest.mark.anyio
async def test_an_agent_with_requests_of_its_own_reads_the_model_from_its_guidance() -> None:
    asked: list[str] = []

    async def works(task: str, *, run: Run) -> str:
        asked.append(run.guidance.model or "mine")
        if len(asked) < 3:
            raise ConnectionError("down")
        return asked[-1]

    policy = FailurePolicy(default=switch_model(("b", "c")))
    assert await Agent(works, policy).run("x") == "c"
    assert asked == ["mine", "b", "c"]


@pytest.mark.anyio
async def test_a_switched_model_is_known_after_the_process_has_gone(tmp_path: Any) -> None:
    asked: list[str | None] = []

    async def works(task: str, *, run: Run) -> str:
        asked.append(run.guidance.model)
        if len(asked) < 3:
            raise ConnectionError("down")
        return "done"

    def policy(failure: Any) -> Any:
        return Retry(model="b") if failure.attempt == 1 else Suspend("go on?")

    store = f"sqlite:///{tmp_path / 'runs.db'}"
    agent = Agent(works, FailurePolicy(default=policy), store=store, name="works")
    with pytest.raises(triage.TriageSuspendedError) as caught:
        await agent.run("x")
    other = Agent(works, FailurePolicy(default=policy), store=store, name="works")
    assert await other.resume(caught.value.token, Retry()) == "done"
    assert asked == [None, "b", "b"]


def test_each_model_is_tried_once_for_a_failure_type() -> None:
    strategy = switch_model(["b", "c"])
    first = answer(strategy, context())
    second = answer(strategy, context(first))
    assert (first, second) == (
        Retry("Ask for less.", model="b"),
        Retry("Ask for less.", model="c"),
    )
    assert "every other model (b, c)" in reason_of(answer(strategy, context(first, second)))


def test_another_model_is_no_help_against_a_tool() -> None:
    failing = Trajectory((Step(tool_called="search", error="503"),))
    assert "search" in reason_of(answer(switch_model(["b"]), context(trajectory=failing)))


def test_another_model_or_tool_is_tried_where_a_person_would_have_to_act() -> None:
    chained = chain(backoff_and_retry(), switch_model(["b"]))
    assert answer(chained, context(diagnosis=WRONG_KEY)) == Retry(model="b")
    nested = chain(backoff_and_retry(), chain(switch_model(["b"]), replan()))
    used = answer(nested, context(Retry(model="b"), diagnosis=WRONG_KEY))
    assert isinstance(used, Escalate)


def test_a_wait_that_is_too_long_goes_to_another_model_at_once() -> None:
    limited = Diagnosis(FailureType.EXTERNAL_FAULT, cause="rate_limited", retry_after_s=900)
    chained = chain(backoff_and_retry(None), chain(switch_model(["b"]), replan()))
    assert answer(chained, context(diagnosis=limited)) == Retry(model="b")
    alone = answer(chain(backoff_and_retry(None), replan()), context(diagnosis=limited))
    assert isinstance(alone, Retry)
    assert alone.delay == 900


# --- shorter requests ---


def long_talk(results: int) -> list[Any]:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, user("Do it.")]
    for number in range(results):
        tool = "pay" if number == 1 else "read"
        function = {"name": tool, "arguments": "{}"}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": f"c{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{tool} {number} " + "x" * 900},
        ]  # fmt: skip
    return messages


def too_long(most: int) -> Callable[[Body], tuple[int, Body]]:
    def reply(body: Body) -> tuple[int, Body]:
        size = len(json.dumps(body["messages"]))
        if size > most:
            return refused(400, "maximum context length exceeded", "context_length_exceeded")
        return 200, completion("done")

    return reply


@triage.tool(effect="read")
async def read(number: int) -> str:
    return f"read {number}"


@triage.tool(effect="once")
async def pay(number: int) -> str:
    return f"pay {number}"


async def shrinking(most: int, policy: FailurePolicy | None = None) -> tuple[Any, list[Body]]:
    line = Line(too_long(most))

    async def works(task: str) -> str:
        await read(0)
        await pay(1)
        return await line.ask(long_talk(16))

    result = await Agent(works, policy, environment=FakeEnvironment()).run("x")
    return result, line.bodies


@pytest.mark.anyio
async def test_old_outputs_of_tools_are_left_out_and_receipts_and_the_last_messages_stay() -> None:
    result, bodies = await shrinking(12_000)
    assert result == "done"
    given, sent = long_talk(16), bodies[-1]["messages"]
    assert len(bodies) == 2
    assert sent[-11:-1] == given[-10:]
    assert [message["role"] for message in sent[:-1]] == [message["role"] for message in given]
    outputs = [message["content"] for message in sent if message["role"] == "tool"]
    assert outputs[0] == "[left out: 907 characters]"
    assert outputs[1] == given[5]["content"]
    assert "call a read again" in sent[-1]["content"]


@pytest.mark.anyio
async def test_then_a_summary_stands_for_the_old_messages() -> None:
    seen: list[int] = []

    async def summarize(failure: Any) -> str:
        seen.append(failure.attempt)
        return "Sixteen pages were read."

    policy = FailurePolicy(CONTEXT_OVERFLOW=shrink_context(4, summarize))
    result, bodies = await shrinking(4_600, policy)
    assert result == "done"
    assert seen == [2]
    sent = bodies[-1]["messages"]
    assert sent[:2] == long_talk(16)[:2]
    assert sent[2]["role"] == "user"
    assert "Sixteen pages were read." in sent[2]["content"]
    assert "not to be done again:\n- pay(" in sent[2]["content"]
    assert '"pay 1' in sent[2]["content"]
    calls = {call["id"] for message in sent for call in message.get("tool_calls") or ()}
    results = {message["tool_call_id"] for message in sent if message["role"] == "tool"}
    assert calls == results == {"c14", "c15"}


@pytest.mark.anyio
async def test_what_is_still_too_long_escalates() -> None:
    with pytest.raises(TriageEscalationError, match="nothing more can be left out"):
        await shrinking(100, FailurePolicy(CONTEXT_OVERFLOW=shrink_context()))


def test_without_a_function_the_calls_are_listed() -> None:
    done = Trajectory(
        (
            Step(tool_called="search", tool_input={"q": "x"}, tool_output="nothing"),
            Step(tool_called="fetch", tool_input={}, error="404"),
        )
    )
    first = answer(shrink_context(), context(diagnosis=OVERFLOW, trajectory=done))
    assert isinstance(first, Retry)
    assert (first.keep_last, first.summary) == (10, None)
    second = answer(shrink_context(), context(first, diagnosis=OVERFLOW, trajectory=done))
    assert isinstance(second, Retry)
    assert second.summary == '- search({"q": "x"}) → "nothing"\n- fetch({}) → failed: "404"'


def test_an_answer_that_was_cut_off_is_asked_for_again_and_no_request_is_made_shorter() -> None:
    cut = Diagnosis(FailureType.CONTEXT_OVERFLOW, cause="output_cut", hint="Be brief.")
    first = answer(shrink_context(), context(diagnosis=cut))
    assert first == Retry("Be brief.")
    second = answer(shrink_context(), context(first, diagnosis=cut))
    assert "already retried" in reason_of(
        answer(shrink_context(), context(first, second, diagnosis=cut))
    )


@pytest.mark.anyio
async def test_a_short_talk_with_a_huge_output_goes_on_with_a_part_of_it() -> None:
    line = Line(too_long(11_000))
    talk = long_talk(2)
    talk[3]["content"] = "page " * 4_000

    async def works(task: str) -> str:
        await read(0)
        await pay(1)
        return await line.ask(talk)

    assert await Agent(works, environment=FakeEnvironment()).run("x") == "done"
    sent = line.bodies[-1]["messages"]
    assert len(line.bodies) == 2
    assert sent[3]["content"] == f"{'page ' * 1_600}… [left out: 12,000 of 20,000 characters]"
    assert (*sent[:3], *sent[4:-1]) == (*talk[:3], *talk[4:])


@pytest.mark.anyio
async def test_anthropic_messages_are_made_shorter_too() -> None:
    bodies: list[Body] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        bodies.append(body)
        if len(bodies) == 1:
            error = {
                "type": "invalid_request_error",
                "message": "prompt is too long: 250000 tokens",
            }
            return httpx2.Response(400, json={"type": "error", "error": error})
        return httpx2.Response(
            200,
            json={
                "id": "m", "type": "message", "role": "assistant", "model": "m",
                "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            },
        )  # fmt: skip

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    client = record_anthropic(
        anthropic.AsyncAnthropic(
            base_url="http://provider", api_key="x", max_retries=0, http_client=http
        )
    )
    messages: list[Any] = [user("Do it.")]
    for number in range(8):
        block = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "y" * 900}
        messages += [
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": [result]},
        ]

    async def works(task: str) -> str:
        await read(0)
        await client.messages.create(model="m", max_tokens=500, messages=messages)
        return "done"

    assert await Agent(works, environment=FakeEnvironment()).run("x") == "done"
    sent = bodies[-1]["messages"]
    assert sent[2]["content"][0]["content"] == "[left out: 900 characters]"
    assert sent[-1]["content"][0] == messages[-1]["content"][0]
    assert sent[-2] == messages[-2]


# --- the end of a request ---


@pytest.mark.anyio
async def test_a_hint_leaves_all_bytes_before_it_as_they_were() -> None:
    """So that the provider's prompt cache keeps its prefix."""
    raw: list[bytes] = []
    wrong = ["no number", "5"]

    def handle(request: httpx2.Request) -> httpx2.Response:
        raw.append(request.content)
        return httpx2.Response(200, json=completion(wrong.pop(0)))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    client = record(
        openai.AsyncOpenAI(
            base_url="http://provider/v1", api_key="x", max_retries=0, http_client=http
        )
    )

    async def works(task: str) -> int:
        messages: Any = [{"role": "system", "content": "Count."}, user("How many?")]
        return int(text_of(await client.chat.completions.create(messages=messages, model="m")))

    assert await Agent(works, environment=FakeEnvironment()).run("x") == 5
    first, second = raw
    end = first.index(b"How many?") + len(b'How many?"}')
    assert second[:end] == first[:end]
    assert second[end : end + 1] == b","
    told = json.loads(second)["messages"]
    assert told[:-1] == json.loads(first)["messages"]
    assert told[-1]["role"] == "user"


# --- arguments ---

SCHEMA = {
    "properties": {"city": {"type": "string", "examples": ["Porto"]}, "days": {"type": "integer"}}
}


def invalid(**input_: Any) -> Any:
    from pydantic import ValidationError, create_model

    model = create_model("Args", city=(str, ...), days=(int, ...))
    with pytest.raises(ValidationError) as caught:
        model.model_validate(input_)
    return caught.value


def fields_told(action: Any) -> list[dict[str, Any]]:
    hint: str = action.hint
    found: list[dict[str, Any]] = json.loads(hint[hint.index("[{") :])
    return found


def test_each_wrong_field_is_told_as_data() -> None:
    wrong = Diagnosis(FailureType.SCHEMA_MISMATCH, hint="Correct it.")
    failing = Trajectory(
        (Step(tool_called="trip", tool_input={}, error="bad"),), tools={"trip": SCHEMA}
    )
    failure = context(
        diagnosis=wrong, exception=invalid(citty="Rome", days="3"), trajectory=failing
    )
    assert fields_told(answer(repair_arguments(), failure)) == [
        {"field": "city", "expected": "required, string", "example": "Porto"},
        {"field": "citty", "got": "Rome", "did_you_mean": "city"},
    ]  # fmt: skip
    failure = context(diagnosis=wrong, exception=invalid(city="Rome", days="three"))
    assert fields_told(answer(repair_arguments(), failure)) == [
        {
            "field": "days",
            "got": "three",
            "expected": "a valid integer, unable to parse string as an integer",
            "example": 1,
        }
    ]


def test_fields_are_found_in_words_and_without_the_exception() -> None:
    wrong = Diagnosis(FailureType.SCHEMA_MISMATCH)
    error = ErrorInfo("TypeError", message="trip() got an unexpected keyword argument 'citty'")
    failing = Trajectory(
        (Step(tool_called="trip", tool_input={"citty": "Rome"}, error="bad"),),
        tools={"trip": SCHEMA},
    )
    told = fields_told(
        answer(repair_arguments(), context(diagnosis=wrong, error=error, trajectory=failing))
    )
    assert told[0]["field"] == "citty"
    assert told[0]["did_you_mean"] == "city"
    detail = [{"loc": ["days"], "msg": "Input should be a valid integer", "type": "int_type"}]
    kept = ErrorInfo("ValidationError", message="x", body={"detail": detail})
    told = fields_told(answer(repair_arguments(), context(diagnosis=wrong, error=kept)))
    assert told == [{"field": "days", "expected": "a valid integer", "example": 1}]


def test_a_word_that_is_no_choice_is_told_the_nearest() -> None:
    from typing import Literal

    from pydantic import TypeAdapter, ValidationError

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, Literal["green", "red"]]).validate_python({"colour": "gren"})
    wrong = Diagnosis(FailureType.SCHEMA_MISMATCH)
    (told,) = fields_told(
        answer(repair_arguments(), context(diagnosis=wrong, exception=caught.value))
    )
    assert told == {
        "field": "colour",
        "got": "gren",
        "expected": "'green' or 'red'",
        "example": "green",
        "did_you_mean": "green",
    }


def test_no_secret_and_no_long_text_is_told() -> None:
    wrong = Diagnosis(FailureType.SCHEMA_MISMATCH)
    failure = context(
        diagnosis=wrong,
        exception=invalid(city="x", days="sk-proj-" + "a1B2" * 12 + " and " + "z" * 5_000),
    )
    (told,) = fields_told(answer(repair_arguments(), failure))
    assert "a1B2" not in told["got"]
    assert len(told["got"]) <= 160


@table(
    ("given", "field"),
    [({"password": "hunter2secret"}, "password"), ({"passwort": "hunter2secret"}, "passwort")],
)
def test_a_secret_known_only_by_its_field_is_not_told(given: Any, field: str) -> None:
    from pydantic import ValidationError, create_model

    model = create_model("Login", password=(int, ...))
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    failure = context(diagnosis=Diagnosis(FailureType.SCHEMA_MISMATCH), exception=caught.value)
    told = fields_told(answer(repair_arguments(), failure))
    assert [one["got"] for one in told if one["field"] == field] == ["[redacted]"]


def test_without_a_field_the_diagnosis_own_hint_is_told() -> None:
    wrong = Diagnosis(FailureType.SCHEMA_MISMATCH, hint="Answer in JSON.")
    assert answer(repair_arguments(), context(diagnosis=wrong)) == Retry("Answer in JSON.")
    assert isinstance(answer(repair_arguments(0), context(diagnosis=wrong)), Escalate)


# --- substitutes ---


@pytest.mark.anyio
async def test_a_tool_that_is_down_is_planned_around_with_its_substitute() -> None:
    hints: list[str | None] = []

    @triage.tool(effect="read")
    async def search(q: str) -> str:
        raise ConnectionError("search is down")

    @triage.tool(effect="read")
    async def search_archive(q: str) -> str:
        return f"old {q}"

    async def works(task: str, *, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        if _triage_hint and "search_archive" in _triage_hint:
            return await search_archive(task)
        return await search(task)

    policy = FailurePolicy.recommended(substitutes={"search": ["search_archive"]})
    assert await Agent(works, policy, environment=FakeEnvironment()).run("x") == "old x"
    assert hints[-1] == (
        'The call search({"q": "x"}) failed with "search is down". Reach the goal without it if you '
        "can, or say what is missing. In place of the tool search use search_archive, which does the "
        "same."
    )


def test_each_substitute_is_tried_once() -> None:
    strategy = substitute("a", by=["b", "c"])
    failing = {name: Trajectory((Step(tool_called=name, error="503"),)) for name in "abcd"}
    first = answer(strategy, context(trajectory=failing["a"]))
    second = answer(strategy, context(first, trajectory=failing["b"]))
    assert isinstance(first, Replan)
    assert isinstance(second, Replan)
    assert "use b" in (first.hint or "")
    assert "use c" in (second.hint or "")
    assert isinstance(answer(strategy, context(first, second, trajectory=failing["c"])), Escalate)
    assert isinstance(answer(strategy, context(trajectory=failing["d"])), Escalate)


# --- as values ---


def test_they_are_printed_as_they_are_written() -> None:
    strategies: list[Any] = [
        switch_model(["a", "b"]),
        shrink_context(keep_last=4),
        repair_arguments(max_attempts=2),
        substitute("a", by=["b"]),
        ask_again(),
        break_loop(),
        retry_expired_credential(),
        backoff_and_retry(max_attempts=None, backoff=Backoff(cap=30.0)),
    ]
    for strategy in strategies:
        assert eval(repr(strategy)) == strategy
        assert hash(eval(repr(strategy))) == hash(strategy)
        with pytest.raises(AttributeError):
            strategy.other = 1
    assert eval(repr(Retry(model="b", outage=True))) == Retry(model="b", outage=True)


@table(
    ("make", "field"),
    [
        (lambda: switch_model([]), r"switch_model\.models"),
        (lambda: switch_model("gpt"), r"switch_model\.models"),
        (lambda: switch_model(["a", ""]), r"switch_model\.models item"),
        (lambda: switch_model(["a", "a"]), r"switch_model\.models"),
        (lambda: substitute("", by=["b"]), r"substitute\.tool"),
        (lambda: substitute("a", by="b"), r"substitute\.by"),
        (lambda: substitute("a", by=["a"]), r"substitute\.by"),
        (lambda: shrink_context(-1), r"shrink_context\.keep_last"),
        (lambda: shrink_context(summarize="x"), r"shrink_context\.summarize"),  # type: ignore[arg-type]
        (lambda: repair_arguments(-1), r"repair_arguments\.max_attempts"),
        (lambda: ask_again(1.5), r"ask_again\.max_attempts"),  # type: ignore[arg-type]
        (lambda: break_loop("x"), r"break_loop\.max_attempts"),  # type: ignore[arg-type]
        (lambda: retry_expired_credential(-1), r"retry_expired_credential\.max_attempts"),
        (lambda: backoff_and_retry(-1), r"backoff_and_retry\.max_attempts"),
        (lambda: FailurePolicy.recommended(models="a"), r"models=…"),
        (lambda: FailurePolicy.recommended(substitutes=["a"]), r"substitutes=…"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_misuse_names_the_field(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(UsageError, match=field):
        make()


def test_a_policy_file_has_them_by_name() -> None:
    policy = FailurePolicy.from_dict(
        {
            "CONTEXT_OVERFLOW": {"strategy": "shrink_context", "keep_last": 4},
            "SCHEMA_MISMATCH": "repair_arguments",
            "EXTERNAL_FAULT": {
                "strategy": "chain",
                "primary": {"strategy": "switch_model", "models": ["b"]},
                "fallback": {"strategy": "substitute", "tool": "a", "by": ["c"]},
            },
        }
    )
    assert policy.strategies[FailureType.CONTEXT_OVERFLOW] == shrink_context(4)
    assert policy.strategies[FailureType.EXTERNAL_FAULT] == chain(
        switch_model(["b"]), substitute("a", by=["c"])
    )


def test_severity_decides_what_a_chain_falls_back_to() -> None:
    critical = Diagnosis(FailureType.LOOP_DETECTED, severity=triage.Severity.CRITICAL)
    for fallback in (replan(), ask_again(), break_loop(), Replan("x"), Retry()):
        found = answer(chain(backoff_and_retry(), fallback), context(diagnosis=critical))
        assert "a person must act" in reason_of(found)
    asked = answer(chain(backoff_and_retry(), Suspend("help?")), context(diagnosis=critical))
    assert asked == Suspend("help?")


@table(
    "fallback",
    [
        chain(rollback_to_checkpoint(), replan()),
        chain(replan(), Escalate("call Ann")),
        sequence(replan(), ask_again()),
        circuit_breaker(CircuitBreaker(), replan()),
        within_budget(replan(), RetryBudget()),
        behind_gate(sequence(Replan("x")), RateGate()),
    ],
)
def test_what_only_tries_again_does_so_inside_of_another_strategy(fallback: Strategy) -> None:
    found = answer(chain(backoff_and_retry(), fallback), context(diagnosis=WRONG_KEY))
    assert "a person must act" in reason_of(found)


@table(
    "fallback, asked",
    [
        (chain(replan(), Suspend("help?")), Replan),
        (sequence(Suspend("help?")), Suspend),
        (within_budget(switch_model(["b"]), RetryBudget()), Retry),
        (by_severity(replan(), critical=Suspend("help?")), Suspend),
    ],
)
def test_what_has_something_new_is_asked_inside_of_another_strategy(
    fallback: Strategy, asked: type
) -> None:
    found = answer(chain(backoff_and_retry(), fallback), context(diagnosis=WRONG_KEY))
    assert isinstance(found, asked)


def test_evidence_that_the_hint_holds_is_not_told_again() -> None:
    seen = Evidence("seen", "invoice 4711 stands nowhere")
    wrong = Diagnosis(FailureType.GOAL_DRIFT, hint="Look: invoice 4711 stands nowhere.")
    both = context(diagnosis=replace(wrong, evidence=(seen,)))
    assert answer(ask_again(), both) == Retry("Look: invoice 4711 stands nowhere.")
    other = context(diagnosis=replace(wrong, hint="Look again.", evidence=(seen,)))
    told = 'Look again. What shows it: "invoice 4711 stands nowhere".'
    assert answer(ask_again(), other) == Retry(told)


def test_nothing_is_fetched_again_that_has_not_expired() -> None:
    strategy = retry_expired_credential()
    assert isinstance(answer(strategy, context(diagnosis=TIMED_OUT)), Escalate)
    refusal = ErrorInfo("Unauthorized", message="bad key", status_code=401)
    assert isinstance(answer(strategy, context(diagnosis=WRONG_KEY, error=refusal)), Escalate)
    expired = replace(refusal, message="The token has expired")
    assert answer(strategy, context(diagnosis=WRONG_KEY, error=expired)) == Retry()
    read_before = Trajectory((Step(tool_called="get_access_token", tool_output="t"),))
    found = answer(strategy, context(diagnosis=WRONG_KEY, error=expired, trajectory=read_before))
    assert isinstance(found, Replan)
    assert isinstance(
        answer(strategy, context(found, diagnosis=WRONG_KEY, error=expired)), Escalate
    )
