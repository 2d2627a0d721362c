"""Which facts of an answer have a source: cases by hand, whole runs, and real answers that were right."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from triage import Step
from triage.classifiers import Grounding

ORDER = {"order": "K5550137", "status": "pending", "total": 318.40, "items": [{"price": 95.15}]}
SALES = [{"region": "north", "sold": 1250}, {"region": "south", "sold": 830}]


def missing(sources: Any, answer: Any) -> list[tuple[str, str]]:
    grounding = Grounding()
    grounding.source(sources)
    return [(fact.kind, fact.text) for fact in grounding.unsupported(answer)]


@table(
    ("sources", "answer"),
    [
        # numbers, however they are written
        ("population: 2148327", "Paris has 2,148,327 inhabitants."),
        ("population: 2148327", "Paris has about 2.1 million inhabitants."),
        ("population: 2148327", "Paris has 2.15 million inhabitants."),
        ("2.148.327 Einwohner", "It has 2148327 inhabitants."),
        ({"cents": 129900}, "It costs $1,299.00."),
        ("EUR 1.299,50", "The price is €1,299.50."),
        ("pi is 3.14159265", "Pi is roughly 3.14, or 3.1416."),
        ({"rate": 0.0825}, "The tax is 8.25%."),
        ({"rate": 0.0825}, "The tax is 8.3 percent."),
        ("seventy-five guests are coming", "There are 75 guests."),
        ("three hundred and twelve people", "312 people came."),
        ({"kb": 2048}, "The file has 2 MB, that is 2,097,152 bytes."),
        ("a flight of 135 minutes", "The flight takes 2.25 hours."),
        ("it is 20 °C outside", "It is 68 °F outside."),
        ("he is 6 feet tall", "He is 183 cm tall."),
        ("a wind of 50 m/s", "The wind blows at 180 km/h."),
        ("1500 people", "More than 1,400 people came."),
        ("revenue 48.7k", "The revenue was $48,700."),
        ("revenue 48700", "The revenue was $48.7k."),
        # what is reckoned from them
        (ORDER, "The lamp and the rest cost $223.25 more than the $95.15."),
        (SALES, "Together 2,080 units were sold."),
        (SALES, "The north sold 420 more than the south."),
        (SALES, "The north sold 60.1% of it: 1250 of 2080."),
        ({"price": 120, "nights": 4}, "Four nights cost $480."),
        ("arrival 2026-05-05, 3 nights", "Check-out is on 8 May."),
        ({"a": 430, "b": 315, "hotel": 120}, "430 + 315 + 3 * 120 = 1105"),
        ({"a": 430, "b": 315}, "430 + 315 = 855: what is reckoned wrong is not made up"),
        ({"a": 430, "b": 315, "hotel": 120}, "The total cost of the trip is $1105."),
        ({"a": 430, "b": 315, "hotel": 120}, "Together that is about $1,100."),
        ({"prices": [12.5, 3.99, 7.25, 101]}, "The sum is 124.74."),
        ({"users": [f"user{n}" for n in range(42)]}, "There are 42 users."),
        # small and usual figures
        ("", "Here are 3 options; each takes 5-7 business days."),
        ("", "Please wait 30 seconds and try again within 24 hours. I am 100% sure."),
        ("", "1. Open the page\n2. Log in\n15. Done, see step 14 and section 27."),
        ("", "He came 21st in the race [17]."),
        # names
        (ORDER, "Your order #K5550137 is pending."),
        (ORDER, "Your order `k5550137` is pending."),
        ({"phone": "555-014-7731"}, "I called (555) 014-7731, which is 555.014.7731."),
        ({"payment": "mastercard_3061"}, "It goes to the card ending in 3061."),
        ({"id": "6f1c2a9e-77aa-4b3f-9d55-1e2c3b4a5d6f"}, "Run 6F1C2A9E-77AA-4B3F-9D55-1E2C3B4A5D6F ended."),
        ("docs at https://docs.acme.io/start", "See https://docs.acme.io/start/."),
        ("docs at https://docs.acme.io/start", "See [the docs](https://docs.acme.io/start)."),
        ("host docs.acme.io, page setup", "See <https://docs.acme.io/setup>."),
        ("wrote /srv/app/config.yaml", "I read `/srv/app/config.yaml`."),
        ({"files": ["config.yaml"], "cwd": "/srv/app"}, "It is in /srv/app/config.yaml."),
        ("mail Ana.Silva@acme.io", "Her address is ana.silva@acme.io."),
        ("", "Use SHA-256, AES256, UTF-8, Python 3.11, IPv6, a GPT-4 model or an A4 page."),
        ("", "An order's number looks like #W0123456, e.g. #W9999999."),
        ("", "Try it on http://localhost:8000/health or write to https://example.com/form."),
        # dates and times
        ({"date": "2026-11-21"}, "It is on 21 November 2026, i.e. Nov 21."),
        ("on November 21st, 2026", "It is on 2026-11-21 (11/21/2026)."),
        ("on 21.11.2026", "It is on Nov. 21, 2026."),
        ("created 1795219200", "It was created on 21 November 2026."),
        ("in year 1987", "It was founded in 1987."),
        ({"departs": "14:05:00"}, "It departs at 2:05 PM."),
        ("at 7pm", "It starts at 19:00."),
        ("The booking is for 2025-03-11. The day after, please.", "I looked at 2025-03-12."),
        ("As seen", "As of 21 November 2026 nothing is known."),
        # no facts
        ("", "```python\nprint(4711, 'W1234567')\n```"),
        ("", "Run `curl -X POST http://10.2.3.4/v1?x=12345` first."),
        ("", "Choose either/or, 24/7, and/or N/A."),
        ("", ""),
    ],
)  # fmt: skip
def test_a_fact_that_a_source_holds_in_any_form_is_supported(sources: Any, answer: str) -> None:
    assert missing(sources, answer) == []


@table(
    ("sources", "answer", "facts"),
    [
        ("population: 2148327", "Paris has 2,198,327 inhabitants.", [("number", "2,198,327")]),
        ("population: 2148327", "Paris has 3.4 million.", [("number", "3.4 million")]),
        (ORDER, "Your order costs $402.75.", [("number", "$402.75")]),
        (ORDER, "You paid €71 for it.", [("number", "€71")]),
        ({"rate": 0.0825}, "The tax is 9.5%.", [("number", "9.5%")]),
        ("some text", "There are 47 open tickets.", [("number", "47")]),
        ("pi is 3.14159265", "Pi is 3.15.", [("number", "3.15")]),
        ("founded in 1987", "It was founded in 1993.", [("number", "1993")]),
        ("4 sensors, 21.5 degrees", "It is 38.6 degrees warm.", [("number", "38.6")]),
        ("Sales rose.", "Sales rose by 17%.", [("number", "17%")]),
        (SALES, "The west sold 990.", [("number", "990")]),
        ({"a": 430, "b": 315, "hotel": 120}, "That is $1,234 in total.", [("number", "$1,234")]),
        ({"flights": [414, 267, 365], "hotel": 214}, "In all it comes to $1295.",
         [("number", "$1295")]),
        (ORDER, "Your order #K1112223 is pending.", [("id", "#K1112223")]),
        (ORDER, "The flight is QF9311.", [("id", "QF9311")]),
        (ORDER, "The reservation is R7T0QZ.", [("id", "R7T0QZ")]),
        (ORDER, "See ticket #884422.", [("id", "#884422")]),
        (ORDER, "It was paid with voucher_4410932.", [("id", "voucher_4410932")]),
        (ORDER, "Call 555-867-5309.", [("id", "555-867-5309")]),
        (ORDER, "The server is 10.20.30.41.", [("id", "10.20.30.41")]),
        (ORDER, "Commit 9fceb02d0ae598e95dc970b74767f19372d61af8.",
         [("id", "9fceb02d0ae598e95dc970b74767f19372d61af8")]),
        ({"card": "mastercard_3061"}, "It goes to the card ending in 9912.", [("number", "9912")]),
        ("docs at https://docs.acme.io/start", "See https://docs.acme.io/pricing.",
         [("url", "https://docs.acme.io/pricing")]),
        ("no links", "See www.acme-support.io/help!", [("url", "www.acme-support.io/help")]),
        ("no files", "I read /etc/app/secrets.toml.", [("path", "/etc/app/secrets.toml")]),
        ("no files", "Look at src/billing/invoice.py, line 12.",
         [("path", "src/billing/invoice.py")]),
        ("no files", r"It is in C:\Users\ana\report.docx.", [("path", r"C:\Users\ana\report.docx")]),
        ("ana@acme.io", "Write to billing@acme.io.", [("email", "billing@acme.io")]),
        ({"date": "2026-11-21"}, "It is on 22 November 2026.", [("date", "22 November 2026")]),
        ({"date": "2026-11-21"}, "It is on Dec 3.", [("date", "Dec 3")]),
        ({"date": "2025-11-21"}, "It is on 2026-11-21.", [("date", "2026-11-21")]),
        ({"date": "2026-11-21"}, "It is on 12/24/2026.", [("date", "12/24/2026")]),
        ({"departs": "14:05"}, "It departs at 16:35.", [("date", "16:35")]),
        ({"departs": "14:05"}, "It departs at 9 am.", [("date", "9 am")]),
        (ORDER, "It costs $318.40 and ships on 4 July 2031 to x9@y.io.",
         [("email", "x9@y.io"), ("date", "4 July 2031")]),
        (ORDER, {"order": "K5550137", "price": 981.25, "confidence": 0.97}, [("number", "981.25")]),
        (ORDER, ["K5550137", {"carrier": "1Z999AA10123456784"}], [("id", "1Z999AA10123456784")]),
    ],
)  # fmt: skip
def test_a_fact_that_no_source_holds_is_named(
    sources: Any, answer: Any, facts: list[tuple[str, str]]
) -> None:
    assert missing(sources, answer) == facts


def test_sources_may_come_after_an_answer() -> None:
    grounding = Grounding()
    assert grounding.unsupported("It costs $47.11.")
    grounding.source({"price": 47.11})
    assert grounding.unsupported("It costs $47.11.") == ()


def test_only_the_kinds_that_are_asked_for_are_looked_at() -> None:
    grounding = Grounding(("email",))
    found = grounding.unsupported("It costs $47.11. Write to a@b.io. 2 * 3 = 47")
    assert [fact.kind for fact in found] == ["email"]


RECORDS = Path(__file__).parents[3] / "shared" / "trajectories" / "dev.jsonl.gz"


SHOWN = ("action", "tool_called", "tool_input", "tool_output", "error")


def replies(source: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each reply of a recorded run with its facts that nothing before it holds."""
    if not RECORDS.exists():
        pytest.skip("the recorded trajectories are not on this machine")
    with gzip.open(RECORDS, "rt", encoding="utf-8") as lines:
        records = [record for record in map(json.loads, lines) if record["source"] == source]
    for record in records:
        grounding = Grounding()
        grounding.source(record["task"])
        for step in record["steps"]:
            said, tool = step["llm_output"], step["tool_called"]
            if said and " -> " not in said[:2_000] and not said.startswith("["):
                yield record["id"], grounding.unsupported(said)
            if tool is None and not said:
                grounding.source(step["action"])
            grounding.source(step.get("user_input"))
            grounding.step(Step(**{name: step[name] for name in SHOWN}))


def test_replies_of_runs_that_went_well_are_grounded() -> None:
    found = [facts for _, facts in replies("tau2_ok")]
    assert len(found) > 900
    assert sum(map(bool, found)) == 0


def test_answers_of_healthy_runs_have_few_facts_without_a_source() -> None:
    """Their agents were given no fault, yet some have prices or totals that nothing had answered."""
    found = [facts for _, facts in replies("sentinel_healthy")]
    assert len(found) > 150
    assert sum(map(bool, found)) <= 7


def test_invented_data_of_failed_runs_is_seen() -> None:
    invented = {name for name, facts in replies("whowhen_ag") if facts}
    assert len(invented) > 30


HOSTILE = (
    "1", "1,", "1.", "1 ", "$1", "1-", "a1", "#", "@a.", "http://a", "/a", '"a ', "“", "`", "``` ",
    "(1+", "= 1", "1=1+", "one ", "May 1 ", "12:34", "I have sent ", "the x ", "e.g. ", "-_", "\\", "%",
)  # fmt: skip


@table("piece", HOSTILE)
def test_the_time_grows_with_the_text_and_no_faster(piece: str) -> None:
    text = (piece * 30_000)[:30_000]
    started = time.process_time()
    missing(text, text)
    # Up to 0.4 s where it was written; what is quadratic takes 2.5 and more.
    assert time.process_time() - started < 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_value_may_be_a_source_or_an_answer(source: Any, answer: Any) -> None:
    assert isinstance(missing(source, answer), list)


@given(st.lists(st.integers(13, 10**9) | st.decimals(13, 10**6, places=2), min_size=1, max_size=6))
def test_a_number_that_was_given_is_never_missed(numbers: list[Any]) -> None:
    answer = "; ".join(f"it was {number:,} there" for number in numbers)
    assert missing({"rows": [float(number) for number in numbers]}, answer) == []


@given(st.dates())
def test_a_day_that_was_given_is_known_in_every_form(day: Any) -> None:
    forms = f"{day.isoformat()}, {day.day} {day:%B} {day.year}, {day:%b} {day.day}"
    if 1900 <= day.year < 2100:
        assert missing(day.isoformat(), forms) == []


@settings(max_examples=100)
@given(st.text(alphabet="0123456789.,+-*/()= x$%aI\"'`#@:/\n", max_size=80) | st.text(max_size=80))
def test_an_answer_that_repeats_its_source_is_grounded(text: str) -> None:
    assert missing(text, text) == []
