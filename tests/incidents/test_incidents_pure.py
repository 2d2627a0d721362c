"""The parts that only compute: causes, circles, fingerprints, files, times."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage import RulesClassifier, diagnose
from triage.classifiers import RULES, Rule
from triage.core import ErrorInfo, Level
from triage.incidents import RecoveryStrategy
from triage.incidents.detection import cycles
from triage.incidents.model import (
    MAX_FILES,
    clean,
    files_in,
    fingerprint,
    iso,
    seconds_of,
)
from triage.incidents.playbook import LAST, OPERATIONS, classified, operations_classifier, play_of

S = RecoveryStrategy
TABLE = [
    # The document's table, its keywords, and their forms as people write them.
    ("Process died", "medium", True, S.RESTART),
    ("process_died", "medium", True, S.RESTART),
    ("Process died unexpectedly", "medium", True, S.RESTART),
    ("Task timeout", "medium", True, S.INCREASE_TIMEOUT),
    ("Task Timeout after 3600 seconds", "medium", True, S.INCREASE_TIMEOUT),
    ("timeout", "medium", True, S.INCREASE_TIMEOUT),
    ("Git conflict", "high", False, S.MANUAL),
    ("merge_conflict", "high", False, S.MANUAL),
    ("Merge conflict in coffee_maker/models/database.py", "high", False, S.MANUAL),
    ("Syntax error", "high", False, S.MANUAL),
    ("syntax_error", "high", False, S.MANUAL),
    ("spec_not_found", "high", False, S.MANUAL),
    ("Resource exhausted", "medium", True, S.WAIT_AND_RETRY),
    ("resource_exhaustion", "medium", True, S.WAIT_AND_RETRY),
    ("Deadlock detected", "high", False, S.MANUAL),
    ("Network timeout", "low", True, S.RETRY),
    ("network_timeout", "low", True, S.RETRY),
    ("temporary_error", "low", True, S.RETRY),
    ("rate_limited", "low", True, S.RETRY),
    ("database_lock", "low", True, S.RETRY),
    ("corruption", "critical", False, S.FALLBACK),
    ("data_loss", "critical", False, S.FALLBACK),
    ("authentication_failed", "critical", False, S.FALLBACK),
    ("Cache corruption detected", "medium", True, S.CLEAR_CACHE),
    # What keywords get wrong.
    ("401 authentication_failed while timeout", "critical", False, S.FALLBACK),
    ("corruption in politics; timeout", "medium", True, S.INCREASE_TIMEOUT),
    ("banana", "medium", False, S.MANUAL),
    ("", "medium", False, S.MANUAL),
]


@table(("text", "level", "retryable", "strategy"), TABLE)
@table("form", [str, str.upper, str.lower])
def test_each_error_of_the_document_has_its_level_and_its_way(
    text: str, level: str, strategy: RecoveryStrategy, form: type[str], *, retryable: bool
) -> None:
    diagnosis = classified(form(text), None, operations_classifier())
    play = play_of(diagnosis)
    found = (play.level or diagnosis.level, play.retryable, play.strategy)
    assert found == (level, retryable, strategy)


def test_an_unknown_error_is_for_manual_review() -> None:
    play = play_of(classified("banana", None, operations_classifier()))
    assert (play.level, play.retryable, play.action) == (Level.MEDIUM, False, "manual_review")


@table("rule", [*OPERATIONS, *LAST])
def test_every_rule_for_operations_fires_on_its_examples_and_no_near_miss(rule: Rule) -> None:
    assert rule.examples
    assert rule.near_misses
    for text in rule.examples:
        (evidence, *_) = classified(text, None, operations_classifier()).evidence
        assert evidence.rule == rule.name, text
    for text in rule.near_misses:
        found = classified(text, None, operations_classifier())
        assert all(evidence.rule != rule.name for evidence in found.evidence), text


def test_what_the_operations_rules_do_not_know_is_as_triage_says() -> None:
    for text in (
        "Rate limit exceeded",
        "HTTP 503 Service Unavailable",
        "maximum context length is 8192",
    ):
        info = ErrorInfo("", message=text)
        assert classified(text, None, operations_classifier()) == diagnose(
            info, classifier=RulesClassifier((*RULES,))
        )


names = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(names, names), max_size=20))
def test_a_circle_is_found_if_and_only_if_somebody_waits_for_themselves(
    edges: list[tuple[str, str]],
) -> None:
    reach: dict[str, set[str]] = {}
    for waits, what in edges:
        reach.setdefault(waits, set()).add(what)
    for _ in range(8):
        for node, those in list(reach.items()):
            reach[node] = those.union(*(reach.get(other, set()) for other in those))
    knotted = {
        frozenset(o for o in reach[n] if n in reach.get(o, ())) for n in reach if n in reach[n]
    }
    found = cycles(edges)
    assert len(found) == len(knotted)
    for path in found:
        assert path[0] == min(next(knot for knot in knotted if path[0] in knot))
        assert len(set(path)) == len(path)
        around = zip(path, (*path[1:], path[0]), strict=True)
        assert all(pair in edges for pair in around)
    assert found == cycles(reversed(edges))


def test_a_long_chain_is_no_recursion() -> None:
    chain = [(str(n), str(n + 1)) for n in range(20_000)]
    assert cycles(chain) == []
    assert len(cycles([*chain, ("20000", "0")])[0]) == 20_001


@given(st.text(), st.integers(0, 10**9), st.integers(0, 10**9))
def test_numbers_and_case_do_not_make_another_trouble(text: str, one: int, other: int) -> None:
    first = fingerprint("T-1", "coder", "unknown", None, f"{text} pid {one}")
    assert first == fingerprint("T-1", "coder", "unknown", None, f"{text} PID {other}")
    assert first != fingerprint("T-2", "coder", "unknown", None, f"{text} pid {one}")
    assert first != fingerprint("T-1", "coder", "unknown", "timeout", f"{text} pid {one}")


@table(
    ("text", "files"),
    [
        ("Merge conflict in coffee_maker/models/database.py", ["coffee_maker/models/database.py"]),
        ("a.py, b.py and a.py again", ["a.py", "b.py"]),
        ('File "/srv/app/main.py", line 3', ["/srv/app/main.py"]),
        ("./x.toml ../y/z.yaml", ["./x.toml", "../y/z.yaml"]),
        ("see https://example.com/a.html for more", []),
        ("version 1.2.3 of e.g. nothing", []),
        (None, []),
    ],
)
def test_files_are_found_in_messages(text: str | None, files: list[str]) -> None:
    assert list(files_in(text)) == files


@given(st.text(max_size=300))
def test_looking_for_files_is_bounded_and_finds_what_is_there(text: str) -> None:
    found = files_in(text + "/" * 3000 + "a." * 300)
    assert len(found) <= MAX_FILES
    assert "src/x.py" in files_in(f"in src/x.py {text}")


@given(st.text(), st.integers(2, 50))
def test_a_cleaned_text_is_kept_by_every_database(text: str, most: int) -> None:
    found = clean(text + "\ud800\0", most)
    assert len(found) <= most
    assert "\0" not in found
    assert found.encode().decode() == found
    assert clean(found, most) == found


@given(st.integers(0, 4_000_000_000))
def test_times_come_back_in_every_form(seconds: int) -> None:
    assert seconds_of(iso(seconds)) == seconds
    assert seconds_of(iso(seconds).replace("T", " ").rstrip("Z")) == seconds
    assert seconds_of(seconds) == seconds
    assert seconds_of(dt.datetime.fromtimestamp(seconds, dt.UTC)) == seconds


@table("value", ["soon", "", None, True, b"1", [], "2025-99-99"])
def test_what_is_no_time_is_none(value: object) -> None:
    assert seconds_of(value) is None
