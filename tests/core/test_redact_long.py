"""Long texts are looked through in slices: what is found is what is found in one go."""

from __future__ import annotations

import base64
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage.core import HIDDEN, Redactor
from triage.core import json_values as _parts
from triage.core import redaction as _redact_work

CANARY = "qX7vT2mK9pL4wN8zR3cY6"
REGISTERED = f"correct {CANARY} battery"
SECRETS = (
    f"sk-{CANARY}",
    f"AIza{CANARY}{CANARY}",
    f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.{CANARY}",
    f"Authorization: Bearer {CANARY}",
    f"postgres://ann:{CANARY}@db.example/app",
    f"https://a.example/x?page=2&api_key={CANARY}&z=1",
    f"OPENAI_API_KEY={CANARY}",
    f'{{"password": "two words {CANARY}"}}',
    f"ssn: {CANARY}",
    f"ticket-{CANARY}",
    REGISTERED,
)
FORMS = (
    lambda secret: secret,
    lambda secret: base64.b64encode(secret.encode()).decode(),
    lambda secret: quote(secret, safe=""),
)
FILLERS = (
    "prose ",
    "a-name=1 ",
    "two lines\n",
    "100% sure ",
    "İstanbul ",
    "0af3" * 9 + " ",
    "key: ",
)


def _redactor() -> Redactor:
    return Redactor(
        fields=("ssn",), patterns=(r"ticket-[A-Za-z0-9]+",), values=(REGISTERED,), environment=False
    )


def _sliced(text: str, size: int, reach: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_redact_work, "SLICE", size)
        patch.setattr(_redact_work, "REACH", reach)
        return _redactor().text(text)


fillers = st.lists(st.sampled_from(FILLERS), max_size=60).map("".join)


@given(fillers, st.sampled_from(SECRETS), st.sampled_from(FORMS), fillers, st.integers(1, 400))
def test_a_secret_is_found_wherever_a_slice_ends(
    before: str, secret: str, form: Callable[[str], str], after: str, size: int
) -> None:
    text = f"{before} {form(secret)} {after}"
    clean = _sliced(text, size, 600)
    assert CANARY not in clean
    assert form(secret) not in clean
    assert HIDDEN in clean
    assert clean == _redactor().text(text)


@given(fillers, st.integers(1, 400))
def test_what_is_cut_there_looks_like_no_secret(text: str, size: int) -> None:
    assert _sliced(text, size, 600) == _redactor().text(text)


@table("form", FORMS)
def test_a_long_text_is_looked_through_to_its_end(form: Callable[[str], str]) -> None:
    """As it is: slices of the real size, with a private key across each of their ends."""
    slice_ = _parts.SLICE
    key = "-----BEGIN PRIVATE KEY-----\n" + CANARY * 100 + "\n-----END PRIVATE KEY-----"
    coded = form(key)
    for back in (len(coded) - 1, len(coded) // 2, 1):
        text = "x " * ((slice_ - back) // 2) + coded + " y" * slice_
        clean = Redactor(environment=False).text(text)
        assert CANARY not in clean
        assert coded[: len(coded) // 2] not in clean
        assert coded[len(coded) // 2 :] not in clean
        assert clean.startswith("x x ")
        assert clean.endswith(" y y")
