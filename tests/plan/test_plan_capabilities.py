"""Capabilities and their registry: what is refused, what is found, and who explains a failure."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage import Diagnosis, Effect, FailureType, Severity, UsageError, tool
from triage.plan import Capability, Registry, capability
from triage.strategies import Backoff, Preset

from .values import SMALL, made, names, nothing


@capability("find", "finds it", requires="A", provides=["B"], effect="read", retry=Backoff.LLM)
async def find(place: str = "") -> str:
    return f"found {place}"


@capability("respond", "answers the user")
def respond() -> str:
    return "hello"


@pytest.mark.anyio
async def test_a_decorated_function_is_called_as_before() -> None:
    assert await find("it") == "found it"
    assert respond() == "hello"


def test_a_registry_knows_what_was_said_of_a_function() -> None:
    registry = Registry([find, respond])
    known = registry.get("find")
    assert known is not None
    assert (known.function, known.requires, known.provides) == (find, ("A",), ("B",))
    assert (known.effect, known.repeatable, known.tries) == (Effect.READ, True, Backoff.LLM)
    assert (known.is_async, known.responds) == (True, False)
    other = registry.get("respond")
    assert other is not None
    assert (other.is_async, other.responds, other.effect) == (False, True, Effect.UNKNOWN)
    assert not other.repeatable
    assert other.tries == Backoff.CAPABILITY
    assert repr(registry) == "Registry(find, respond)"


@table(("retry", "attempts"), [(None, 3), (0, 1), (2, 3), (Preset(1, Backoff()), 1)])
def test_a_capability_says_how_often_it_is_tried(retry: Any, attempts: int) -> None:
    assert made("x", retry=retry).tries.attempts == attempts


class Desk:
    def __init__(self, where: str) -> None:
        self.where = where

    @capability("look", "looks on the desk")
    def look(self) -> str:
        return self.where


def test_a_method_is_bound_to_its_object() -> None:
    one, other = Registry([Desk("here").look]), Registry([Desk("there").look])
    found = [registry.get("look") for registry in (one, other)]
    assert [known.function() for known in found if known is not None] == ["here", "there"]


def test_a_tool_gives_its_effect_to_the_capability_it_is() -> None:
    @capability("pay", "pays")
    @tool(effect="once")
    async def pay() -> None: ...

    (known,) = Registry([pay])
    assert known.effect is Effect.ONCE


def test_a_tool_that_is_a_capability_has_no_other_effect() -> None:
    @tool(effect="once")
    async def pay() -> None: ...

    assert Capability("pay", "pays", pay, effect="once").effect is Effect.ONCE
    with pytest.raises(UsageError, match=r"its triage\.tool has the effect once"):
        Capability("pay", "pays", pay, effect="read")


def test_registries_share_nothing() -> None:
    one, other = Registry([find]), Registry()
    other.add(respond)
    assert (one.names, other.names) == (("find",), ("respond",))


@table(
    ("fields", "named"),
    [
        ({"name": ""}, "Capability.name must be text that is not blank"),
        ({"name": " \t"}, "Capability.name must be text that is not blank"),
        ({"name": None}, "Capability.name"),
        ({"name": " x"}, "Capability.name must be printable"),
        ({"name": "a\nb"}, "Capability.name must be printable"),
        ({"name": "x" * 101}, "at most 100 characters"),
        ({"description": "  "}, "Capability.description"),
        ({"function": 3}, "Capability.function"),
        ({"requires": 3}, "Capability.requires"),
        ({"requires": ("A", "A")}, "Capability.requires must be names of types, each of them once"),
        ({"provides": ("A", "")}, "Capability.provides item"),
        ({"effect": "twice"}, "Capability.effect must be one of read"),
        ({"retry": -1}, "Capability.retry"),
        ({"retry": Backoff()}, "Capability.retry"),
        ({"classify_error": "x"}, "Capability.classify_error"),
        ({"classify_error": find}, "Capability.classify_error must be a function that is not async"),
        ({"responds": 1}, "Capability.responds"),
    ],
)  # fmt: skip
def test_a_wrong_capability_is_refused_by_its_field(fields: dict[str, Any], named: str) -> None:
    given = {"name": "x", "description": "y", "function": nothing, **fields}
    with pytest.raises(UsageError, match=named):
        Capability(**given)


def test_a_function_is_one_capability_only() -> None:
    with pytest.raises(UsageError, match="a function can be one only"):
        capability("another", "the same again")(find)


@table("name", ["find", "FIND", "Find"])
def test_a_name_is_registered_once_whatever_its_case(name: str) -> None:
    registry = Registry([find])
    with pytest.raises(UsageError, match=f'"{name}" is registered already'):
        registry.add(respond, made(name))
    assert registry.names == ("find",), "all are added, or none"
    with pytest.raises(UsageError, match="registered already"):
        registry.add(find)


@table("value", [None, "find", nothing, 3])
def test_what_is_no_capability_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=re.escape("Registry.add() must be a Capability")):
        Registry([value])


@given(st.lists(names, unique_by=str.casefold, min_size=1, max_size=8))
def test_every_name_is_found_however_it_is_written(written: list[str]) -> None:
    registry = Registry(map(made, written))
    assert registry.names == tuple(written)
    assert len(registry) == len(written)
    for name in written:
        for form in (name, name.upper(), name.lower(), f" {name} "):
            known = registry.get(form)
            assert known is not None
            assert known.name == name
            assert form in registry


def test_the_nearest_name_is_offered_and_nothing_far_away() -> None:
    assert SMALL.nearest("Respnd") == "respond"
    assert SMALL.nearest("finde") == "find"
    assert SMALL.nearest("teleport") is None
    assert SMALL.nearest("x" * 10_000) is None
    assert "teleport" not in SMALL
    assert 3 not in SMALL


def test_a_subset_keeps_what_responds_and_the_order() -> None:
    assert SMALL.subset(["PAY", "find"]).names == ("find", "pay", "respond")
    assert SMALL.subset([]).names == ("respond",)
    with pytest.raises(UsageError, match=r'no capability "fnd"; did you mean "find"\?'):
        SMALL.subset(["fnd"])


def test_a_subset_takes_in_whoever_provides_what_it_requires() -> None:
    chain = Registry([
        made("a", provides="A"), made("b", requires="A", provides="B"), made("c", requires="B"),
        made("d", provides="D"),
    ])  # fmt: skip
    assert chain.subset(["c"], providers=True).names == ("a", "b", "c")
    assert [known.name for known in chain.providers("B")] == ["b"]


def test_the_manifest_is_json_with_all_a_planner_must_know() -> None:
    manifest = json.loads(json.dumps(SMALL.manifest()))
    assert [entry["name"] for entry in manifest] == list(SMALL.names)
    assert manifest[1] == {
        "name": "join",
        "description": "does join",
        "requires": ["A", "B"],
        "provides": ["C"],
        "effect": "read",
    }
    assert manifest[-1]["ends_the_plan"] is True


def test_what_responds_can_be_said_of_any_capability() -> None:
    registry = Registry([made("say", responds=True), made("clarify"), made("respond")])
    assert [known.responds for known in registry] == [True, True, True]
    answering = registry.responder
    assert answering is not None
    assert answering.name == "respond"
    assert Registry([made("say", responds=True), made("clarify")]).responder == made(
        "say", responds=True
    )
    assert Registry([made("respond", responds=False)]).responder is None


# Who explains a failure ---------------------------------------------------------------------------

FULL = OSError("disk full")


class RateLimitError(Exception):
    status_code = 429


async def _later() -> None: ...


def explained(answer: Any, error: BaseException = FULL) -> Diagnosis:
    def classify(_error: BaseException, _context: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer() if answer is _later else answer

    return made("store", classify_error=classify).diagnose(error)


def test_a_capability_explains_its_own_failure() -> None:
    own = Diagnosis(FailureType.SCHEMA_MISMATCH, severity=Severity.REPLANNING)
    told: list[Any] = []

    def classify(error: BaseException, context: Any) -> Diagnosis:
        told.append((error, context))
        return own

    found = made("store", classify_error=classify).diagnose(FULL, {"step": "a"})
    assert (found.failure_type, found.severity, found.classifier) == (*FAILED, "store")
    assert told == [(FULL, {"step": "a"})]


FAILED = (FailureType.SCHEMA_MISMATCH, Severity.REPLANNING)


def test_a_severity_or_a_type_is_answer_enough() -> None:
    assert explained(Severity.FATAL).severity is Severity.FATAL
    assert explained(FailureType.GOAL_DRIFT).failure_type is FailureType.GOAL_DRIFT
    assert "disk full" in explained(FailureType.GOAL_DRIFT).technical_details


def test_an_unknown_failure_is_critical_even_if_the_capability_says_so() -> None:
    assert made("store").diagnose(RuntimeError("odd")).severity is Severity.CRITICAL
    assert explained(FailureType.UNKNOWN).severity is Severity.CRITICAL


@table("answer", [None, KeyError("x"), 3, "retriable", _later])
def test_an_explanation_that_fails_does_not_replace_the_failure(answer: Any) -> None:
    found, plain = explained(answer), made("store").diagnose(FULL)
    assert (found.failure_type, found.cause, found.severity) == (
        plain.failure_type,
        plain.cause,
        plain.severity,
    )
    assert "disk full" in found.technical_details
    noted = [item for item in found.evidence if item.rule == "capability.classify_error"]
    assert len(noted) == (answer is not None)


def test_without_an_explanation_the_rules_judge_by_class_and_status() -> None:
    plain = made("ask")
    assert plain.diagnose(RateLimitError("slow down")).severity is Severity.RETRIABLE
    assert plain.diagnose(ValueError("invalid JSON config")).severity is not Severity.RETRIABLE
    assert plain.diagnose(TimeoutError()).severity is Severity.RETRIABLE
    assert plain.diagnose(TimeoutError()).technical_details.strip()
    for error in (ConnectionError("gone"), ConnectionResetError(104, "reset"), TimeoutError()):
        found = plain.diagnose(error)
        assert found.severity is Severity.RETRIABLE
        assert type(error).__name__ in found.technical_details
        assert found.user_message
        assert type(error).__name__ not in found.user_message
