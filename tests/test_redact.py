"""What looks like a credential never leaves as it is, and everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage.redact import HIDDEN, redact

LONG = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9"

CREDENTIALS = [
    f"sk-{LONG}",
    f"sk-ant-api03-{LONG}",
    f"pk_live_{LONG}",
    f"rk_test_{LONG}",
    f"ghp_{LONG}",
    f"github_pat_{LONG}",
    f"xoxb-{LONG}",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    f"AIza{LONG}{LONG}",
    f"hf_{LONG}",
    f"eyJ{LONG}.{LONG}.{LONG}",
    f"Bearer {LONG}",
    f"basic {LONG}",
    f"-----BEGIN PRIVATE KEY-----\n{LONG}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{LONG}",
    f"OPENAI_API_KEY={LONG}",
    f'"password": "{LONG}"',
    f"passwd={LONG}",
    f"PWD={LONG}",
    f"client_secret={LONG}",
    f"Authorization: {LONG}",
    f"AccountKey={LONG}",
    f"SharedAccessSignature={LONG}",
    f"token={LONG}",
]


@pytest.mark.parametrize("credential", CREDENTIALS)
@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_credential_is_hidden_wherever_it_stands(
    credential: str, before: str, after: str
) -> None:
    shown = redact(f"{before} {credential} {after}")
    assert LONG not in shown
    assert "IOSFODNN7" not in shown
    assert HIDDEN in shown


def test_the_password_in_an_address_is_hidden_and_its_host_is_not() -> None:
    assert redact("postgresql://ann:hunter22@db.example/app") == (
        f"postgresql://{HIDDEN}@db.example/app"
    )


@pytest.mark.parametrize(
    "text",
    [
        "connection refused for task 5",
        "unexpected token: name",
        "the key is missing",
        "see https://example.org/docs",
        "basic auth is off",
        "",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert redact(text) == text
