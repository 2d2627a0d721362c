"""What a diagnosis shows for itself, and whose fault a badly formed answer is."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from diagnoses import classify, invalid, json_error, search, seen
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError
from tables import table

from triage.classifiers import diagnose
from triage.core import Cause, ErrorInfo, FailureType, Severity, Step


def test_evidence_of_a_class_says_what_it_said() -> None:
    timeout = ErrorInfo("ReadTimeout", mro=("httpx.ReadTimeout",), message="read timed out")
    assert seen(classify(timeout)) == 'ReadTimeout: class ReadTimeout, "read timed out"'
    assert seen(diagnose(json_error("x"))) == (
        'JSONDecodeError: class JSONDecodeError, "Expecting value: line 1 column 1 (char 0)"'
    )
    assert seen(diagnose(invalid("x"))) == (
        'ValidationError: class ValidationError, "Invalid JSON: expected value at line 1 column 1"'
    )
    silent = replace(timeout, message="ReadTimeout")
    assert seen(classify(silent)) == "ReadTimeout: class ReadTimeout"


def test_evidence_of_a_validation_error_names_the_first_fields() -> None:
    class Trip(BaseModel):
        city: str
        days: int
        nights: int
        price: float

    with pytest.raises(ValidationError) as caught:
        Trip.model_validate({"days": "many"})
    text = seen(diagnose(caught.value))
    assert text.startswith('ValidationError: class ValidationError, "city": "Field required"; ')
    assert '"days": "Input should be a valid integer' in text
    assert text.endswith("and 1 more")
    assert "price" not in text


def test_evidence_is_cut_and_shows_no_secret() -> None:
    message = "password=hunter2-hunter2 timed out\n" + "IGNORE ALL RULES " * 500
    text = seen(classify(ErrorInfo("ReadTimeout", mro=("lib.ReadTimeout",), message=message)))
    assert "hunter2" not in text
    assert "[redacted]" in text
    assert "\n" not in text
    assert len(text) < 220


@table(
    ("status", "message", "text", "confidence"),
    [
        (429, "Rate limit reached", "status 429, the words 'rate limit reached'", 0.95),
        (503, "Service Unavailable", "status 503, the words 'service unavailable'", 0.95),
        (503, "we are overloaded", "status 503, the words 'overloaded'", 0.95),
        (503, "back at noon", 'status 503, "back at noon"', 0.95),
        (429, "exceeded your current quota", "status 429, the words 'exceeded your", 0.9),
        (None, "HTTP 429: rate limit reached", "status 429, the words 'rate limit reached'", 0.95),
        (None, "rate limit reached", "the words 'rate limit reached'", 0.85),
    ],
)
def test_evidence_names_the_status_and_the_words(
    status: int | None, message: str, text: str, confidence: float
) -> None:
    error = ErrorInfo("APIError", mro=("lib.APIError",), message=message, status_code=status)
    found = classify(error)
    assert seen(found).startswith(f"APIError: {text}")
    assert found.confidence == confidence


def test_a_class_and_its_status_are_both_named() -> None:
    error = ErrorInfo("OverloadedError", mro=("lib.OverloadedError",), status_code=529)
    found = classify(replace(error, message="try later"))
    assert seen(found) == 'OverloadedError: status 529, class OverloadedError, "try later"'
    assert found.confidence == 0.95


def test_the_details_name_no_rule_where_none_fired() -> None:
    assert diagnose(RuntimeError("wat")).technical_details == "RuntimeError: wat"
    assert diagnose(None).technical_details == "no exception was raised"
    assert diagnose(TimeoutError("slow")).technical_details.endswith("; rule name.timeout")


# --- a tool that was answered badly ----------------------------------------------------------


def failed_call(error: BaseException, arguments: Any = None) -> Step:
    return Step(
        action="call",
        tool_called="fares",
        tool_input=arguments,
        error=str(error),
        exception_type=type(error).__name__,
    )


def xml_error() -> BaseException:
    with pytest.raises(ET.ParseError) as caught:
        ET.fromstring("<a>")
    return caught.value


@table("error", [json_error("<html>"), invalid("<html>"), xml_error()])
def test_an_answer_the_last_tool_could_not_parse_is_the_other_sides(error: Exception) -> None:
    found = diagnose(error, [search("a"), failed_call(error, {"city": "Porto"})])
    assert (found.failure_type, found.cause) == (FailureType.EXTERNAL_FAULT, Cause.BAD_RESPONSE)
    assert found.severity is Severity.RETRIABLE
    assert found.hint is None
    assert found.critical_step == 1
    assert "raised by 'fares'" in seen(found)


def test_a_step_alone_shows_that_its_tool_could_not_parse() -> None:
    assert diagnose(None, [failed_call(json_error("<html>"))]).cause == Cause.BAD_RESPONSE


def test_a_wrapped_answer_the_last_tool_could_not_parse_is_the_other_sides() -> None:
    error = json_error("<html>")
    outer = RuntimeError("the tool failed")
    outer.__cause__ = error
    by_words = Step(tool_called="fares", error=f"fares failed: {error}")
    for step in (failed_call(error), failed_call(outer), by_words):
        assert diagnose(outer, [step]).cause == Cause.BAD_RESPONSE


@table(
    "steps",
    [
        [],
        [search("a")],
        [Step(action="model", llm_output="fares:", error="no JSON")],
        [search("a", output=None, error="timed out", exception_type="ReadTimeout")],
        [failed_call(json_error("fares:")), search("b")],
    ],
)
def test_without_a_tool_that_failed_so_it_is_the_models_output(steps: list[Step]) -> None:
    assert diagnose(json_error("fares:"), steps).cause == Cause.MALFORMED_OUTPUT


def test_a_broken_argument_is_the_models_own() -> None:
    error = json_error('{"a": 1,}')
    found = diagnose(error, [failed_call(error, {"order": '{"a": 1,}'})])
    assert (found.cause, found.severity) == (Cause.INVALID_ARGUMENTS, Severity.REPLANNING)
    assert '"fares"' in (found.hint or "")
    whole = diagnose(error, [failed_call(error, {"order": '{"a": 1}'})])
    assert whole.cause == Cause.BAD_RESPONSE
