"""What clients, gateways, frameworks and tools write of a failure, and texts with the same words."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from triage import Agent, Diagnosis, Step, diagnose
from triage.classifiers import RulesClassifier
from triage.core import Cause, ErrorInfo, FailureType, Severity, Trajectory
from triage.testing import VirtualTime

LINES = (Path(__file__).parent / "words.jsonl").read_text(encoding="utf-8").splitlines()
"""One text a line. as: the ways it is met. tool: that was called. is: the causes that may be named, `?`
for none."""
CASES = [json.loads(line) for line in LINES]
GROUPS = {name: list(some) for name, some in groupby(CASES, key=lambda case: case["group"])}


def told(text: str, way: str, tool: str, tools: list[str] | None = None) -> Diagnosis:
    """The diagnosis of a text: raised, or of a step that failed or was answered with it."""
    match way:
        case "raised":
            return diagnose(RuntimeError(text), tools=tools)
        case "failed":
            step = Step(action="model", error=text, exception_type="APIError")
        case "error":
            step = Step(tool_called=tool, tool_input={"a": 1}, error=text)
        case _:
            step = Step(tool_called=tool, tool_input={"a": 1}, tool_output=text)
    return diagnose(None, [step], tools=tools)


def cause(found: Diagnosis) -> str:
    if found.failure_type is FailureType.UNKNOWN and found.cause is None:
        return "?"
    return str(found.cause or found.failure_type)


@pytest.mark.parametrize("group", GROUPS)
def test_a_text_is_told_by_its_statement_and_not_by_words_near_each_other(group: str) -> None:
    wrong = [
        (way, named, case["is"], case["text"])
        for case in GROUPS[group]
        for way in case["as"]
        if (named := cause(told(case["text"], way, case.get("tool", "ask")))) not in case["is"]
    ]
    assert wrong == []


def test_a_hint_denies_no_tool_but_the_one_that_was_called() -> None:
    for case in CASES:
        tool = case.get("tool", "ask")
        for tools in (None, ["query_metrics", "list_metrics"]):
            for way in case["as"]:
                hint = told(case["text"], way, tool, tools).hint or ""
                named = re.findall(r'There is no tool "(.*?)"', hint)
                assert set(named) <= {tool} - set(tools or ()), case


# Money --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [
    "Your credit balance is too low to access the API",
    "Insufficient balance",
    "check your billing details",
    "You have run out of credits",
    "billing hard limit has been reached",
    "payment required",
])  # fmt: skip
@pytest.mark.parametrize("status", [400, 402, 429])
def test_what_has_to_be_paid_for_never_passes_by_itself(status: int, words: str) -> None:
    body = {"error": {"code": status, "message": words}}
    info = ErrorInfo("APIError", mro=("lib.APIError",), message=words, status_code=status)
    errors: list[Any] = [
        info,
        ErrorInfo("APIError", message=words, status_code=status, retry_after_s=20.0),
        RuntimeError(f"Error code: {status} - {body}"),
        RuntimeError(json.dumps(body, indent=2)),
        Exception(body),
        Exception("the model failed", {"code": status, "message": words}),
    ]
    for error in errors:
        found = diagnose(error)
        assert (found.cause, found.severity) == (Cause.QUOTA_EXHAUSTED, Severity.CRITICAL), error


# Credentials -----------------------------------------------------------------------------------------

XML = """\
<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{code}</Code><Message>{words}</Message><RequestId>4442</RequestId></Error>"""
ERROR_RESPONSE = """\
<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <Error><Type>Sender</Type><Code>{code}</Code><Message>{words}</Message></Error>
</ErrorResponse>"""
ERRORS = """\
<Response><Errors><Error><Code>{code}</Code><Message>{words}</Message></Error></Errors></Response>"""
JSON = '{{"error": {{"code": "{code}", "message": "{words}"}}}}'


@pytest.mark.parametrize("form", [XML, "\ufeff" + XML, ERROR_RESPONSE, ERRORS, JSON])
@pytest.mark.parametrize(("named", "code", "words"), [
    ("auth", "ExpiredToken", "The provided token has expired."),
    ("auth", "TokenRefreshRequired", "The provided token must be refreshed."),
    ("auth", "InvalidAccessKeyId", "The key you provided does not exist in our records."),
    ("auth", "InvalidClientTokenId", "No"),
    ("auth", "access_token_expired", "No"),
    ("auth", "BadRequest", "The security token included in the request is expired"),
    ("auth", "BadRequest", "The refresh token has been revoked."),
    ("bad_request", "MalformedXML", "The XML you provided was not well-formed."),
    ("bad_request", "InvalidArgument", "The continuation token provided is incorrect."),
    ("bad_request", "ExpiredIterator", "The iterator has expired."),
    ("bad_request", "InvalidPageToken", "The page token has expired."),
    ("bad_request", "BadRequest", "The token limit of this model is 4096."),
])  # fmt: skip
def test_a_credential_that_is_refused_as_a_bad_request_is_told_from_one(
    named: str, code: str, words: str, form: str
) -> None:
    request = httpx.Request("GET", "https://bucket.example/key")
    text = form.format(code=code, words=words)
    response = httpx.Response(400, request=request, text=text)
    error = httpx.HTTPStatusError("Client error", request=request, response=response)
    plain = ErrorInfo(
        "APIError", mro=("lib.APIError",), message=f"400 {code}: {words}", status_code=400
    )
    assert cause(diagnose(error)) == named
    if code == "BadRequest":
        assert cause(diagnose(plain)) == named


# Bodies in texts and arguments -----------------------------------------------------------------------

BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("overloaded", "APIError", {"type": "error", "error": {"type": "overloaded_error", "message": "No"}}),
    ("unavailable", "APIError", {"error": {"code": 503, "message": "No", "status": "UNAVAILABLE"}}),
    ("rate_limited", "APIError", {"status": 429, "title": "No", "detail": "No"}),
    ("auth", "APIError", {"code": "401", "message": "No"}),
    ("permission", "APIError", {"error": {"code": 403, "message": "No"}}),
    ("model_missing", "APIError", {"error": {"code": "model_not_found", "message": "No"}}),
    ("context_length", "APIError", {"error": {"code": "context_length_exceeded", "message": "No"}}),
    ("server_error", "APIError", {"error": {"type": "server_error", "message": "No"}}),
]  # fmt: skip


@pytest.mark.parametrize(("named", "_kind", "body"), BODIES)
def test_an_answer_is_read_wherever_a_client_puts_it(
    named: str, _kind: str, body: dict[str, Any]
) -> None:
    outer = {"error": {"message": json.dumps(body), "metadata": {"provider_name": "x"}}}
    passed_on = {"error": {"message": "No", "metadata": {"raw": json.dumps(body)}}}
    errors = [
        Exception(body),
        Exception("the provider failed", body),
        RuntimeError(f"the provider failed - {body}"),
        RuntimeError(f"the provider failed: {json.dumps(body)}"),
        RuntimeError(json.dumps(body, indent=4)),
        RuntimeError(f"[{json.dumps(body)}]"),
        RuntimeError(json.dumps(outer)),
        RuntimeError(json.dumps(passed_on)),
    ]
    assert [cause(diagnose(error)) for error in errors] == [named] * len(errors)
    said = f"the provider failed: {json.dumps(body)}"
    assert [cause(told(said, way, "ask")) for way in ("failed", "error")] == [named] * 2


def test_a_status_in_words_does_not_say_that_a_call_was_refused_before_it_began() -> None:
    from triage.core.capture import capture

    assert not capture(Exception({"code": 429, "message": "slow down"})).not_attempted


def test_data_of_the_agents_own_is_no_answer() -> None:
    for error in (
        ValueError({"code": 404, "message": "x"}),
        KeyError("{'code': 503, 'message': 'x'}"),
    ):
        assert diagnose(error).failure_type is not FailureType.EXTERNAL_FAULT


# Pages in place of data ------------------------------------------------------------------------------

PAGES = [
    "<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in</body></html>",
    "\n\n  <html lang='en'><body>Maintenance</body></html>",
    "<!doctype HTML>\n<HTML><BODY>We will be back soon.</BODY></HTML>",
]
OTHERS = ["", "Sure! Here it is: 5", '{"price": 5', "<price>5</price>", "the <html> element"]


def parsed(text: str, way: str) -> Exception:
    response = httpx.Response(200, text=text, request=httpx.Request("GET", "http://service/x"))
    try:
        if way == "json.loads":
            json.loads(text)
        elif way == "response.json":
            response.json()
        else:
            try:
                json.loads(text)
            except ValueError as error:
                raise RuntimeError("no prices today") from error
    except Exception as error:
        return error
    raise AssertionError(text)


@pytest.mark.parametrize("way", ["json.loads", "response.json", "raised from it"])
@pytest.mark.parametrize("text", [*PAGES, *OTHERS])
def test_a_page_that_is_no_json_is_a_services_and_other_text_the_models(
    text: str, way: str
) -> None:
    found = diagnose(parsed(text, way))
    page = text in PAGES
    assert cause(found) == ("bad_response" if page else "malformed_output")
    assert (found.failure_type is FailureType.EXTERNAL_FAULT) == page
    said = [Step(action="model", llm_output=text)]
    assert cause(diagnose(parsed(text, way), said)) == "malformed_output"


@pytest.mark.anyio
@pytest.mark.parametrize("text", PAGES)
async def test_what_reads_a_page_is_tried_twice_and_not_at_once(text: str) -> None:
    began: list[tuple[float, str | None]] = []
    time = VirtualTime()

    async def work(_task: str, *, _triage_hint: str | None = None) -> str:
        began.append((time.monotonic(), _triage_hint))
        if _triage_hint is None:
            json.loads(text)
        return "by another way"

    assert await Agent(work, environment=time).run("t") == "by another way"
    (first, _), (second, _), (_, hint) = began
    assert second > first
    assert hint is not None


# Noise in groups ----------------------------------------------------------------------------------

NOISE: list[BaseException] = [
    RuntimeError("Attempted to exit cancel scope in a different task than it was entered in"),
    RuntimeError("async generator ignored GeneratorExit"),
    RuntimeError("aclose(): asynchronous generator is already running"),
    RuntimeError("generator didn't stop after athrow()"),
    anyio.BrokenResourceError(),
    anyio.ClosedResourceError(),
    anyio.EndOfStream(),
    GeneratorExit(),
    asyncio.CancelledError(),
]


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://x/mcp")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


KNOWN = [answered(503), answered(401), httpx.ReadTimeout("")]


@pytest.mark.parametrize("noise", NOISE, ids=lambda one: f"{type(one).__name__} {one}"[:40])
@pytest.mark.parametrize("known", KNOWN, ids=["503", "401", "ReadTimeout"])
def test_what_is_left_of_torn_down_tasks_does_not_vote(
    known: Exception, noise: BaseException
) -> None:
    alone = diagnose(known)
    assert alone.cause is not None
    groups = [
        BaseExceptionGroup("g", [known, noise]),
        BaseExceptionGroup("g", [noise, known, noise]),
        BaseExceptionGroup("g", [noise, BaseExceptionGroup("h", [noise, known])]),
        BaseExceptionGroup("g", [BaseExceptionGroup("h", [noise, noise]), known]),
    ]
    for group in groups:
        found = diagnose(group)
        assert (found.cause, found.severity) == (alone.cause, alone.severity)
    noise_raised_later = RuntimeError("Attempted to exit cancel scope in a different task")
    noise_raised_later.__context__ = known
    assert diagnose(noise_raised_later).cause == alone.cause


def test_members_that_say_something_else_do_vote() -> None:
    for other in (ValueError("bad"), KeyError("x"), RuntimeError("the scope of this plan is full")):
        assert diagnose(ExceptionGroup("g", [KNOWN[0], other])).cause is None


# Refusals, and broken histories -----------------------------------------------------------------------


def test_a_refused_call_that_the_answer_owns_up_to_is_no_failure() -> None:
    steps = [
        Step(tool_called="pay", tool_input={"cents": 5}, tool_output="Tool execution was not approved."),
        Step(action="model", llm_output="I did not pay, as you did not approve it."),
    ]  # fmt: skip
    assert diagnose(None, steps).failure_type is FailureType.UNKNOWN


def test_a_broken_history_is_not_the_models_to_correct() -> None:
    said = (
        "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: t1"
    )
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
    info = ErrorInfo("BadRequestError", message=f"400 {body}", status_code=400, body=body)
    found = RulesClassifier().classify(Trajectory(error=info))
    assert found.cause == Cause.BROKEN_HISTORY
    assert found.hint is not None
    assert "Correct" not in found.hint
    assert any("each tool call is followed by its result" in one for one in found.suggestions)
