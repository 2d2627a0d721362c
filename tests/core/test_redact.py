"""What looks like a credential never leaves as it is, and everything else stays."""

from __future__ import annotations

import base64
import random
import time

from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage.core import Redactor, redact
from triage.core.secret_shapes import HIDDEN

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
    f"gsk_{LONG}",
    f"ya29.{LONG}",
    f"SG.{LONG}.{LONG}",
    f"hvs.{LONG}",
    f"123456789:AA{LONG}abcdef",
    f"https://hooks.slack.com/services/T0/B0/{LONG}",
    f"eyJ{LONG}.{LONG}.{LONG}",
    f"Bearer {LONG}",
    f"basic {LONG}",
    f"-----BEGIN PRIVATE KEY-----\n{LONG}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{LONG}",
    f"OPENAI_API_KEY={LONG}",
    f'"password": "{LONG}"',
    f'"password": "three words {LONG}"',
    f'"password": "with \\"quotes\\" {LONG}"',
    f"passwd={LONG}",
    f"PWD={LONG}",
    f"client_secret={LONG}",
    f"Authorization: {LONG}",
    f"authorization: AWS4-HMAC-SHA256 Credential=a, Signature={LONG}",
    f"Cookie: a=b; sid={LONG}",
    f"AccountKey={LONG}",
    f"SharedAccessSignature={LONG}",
    f"token={LONG}",
    f"?sig={LONG}",
    f"https://{LONG}@git.example/x",
    f"https://:{LONG}@git.example/x",
]


@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_credential_is_hidden_wherever_it_stands(before: str, after: str) -> None:
    for credential in CREDENTIALS:
        shown = redact(f"{before} {credential} {after}")
        assert LONG not in shown
        assert "IOSFODNN7" not in shown
        assert HIDDEN in shown


@table("credential", CREDENTIALS)
def test_what_is_hidden_stays_as_it_is_when_it_is_redacted_again(credential: str) -> None:
    for text in (credential, f"x {credential} y", base64.b64encode(credential.encode()).decode()):
        shown = redact(text)
        assert shown != text
        assert redact(shown) is shown


def test_the_password_in_an_address_is_hidden_and_its_host_is_not() -> None:
    assert redact("postgresql://ann:hunter22@db.example/app") == (
        f"postgresql://{HIDDEN}@db.example/app"
    )
    assert redact("https://h.example/a?page=2&sig=abc&key=k-1#top") == (
        f"https://h.example/a?page=2&sig={HIDDEN}&key={HIDDEN}#top"
    )


def test_two_credentials_in_one_text_are_hidden_both() -> None:
    assert redact(f"first sk-{LONG} then ghp_{LONG}.") == f"first {HIDDEN} then {HIDDEN}."


IMAGE = base64.b64encode(random.Random(7).randbytes(3_000)).decode()

ORDINARY = [
    "connection refused for task 5",
    "unexpected token: name",
    "the key is missing",
    "see https://example.org/docs",
    "https://example.org/a/b/c?page=2&sort=asc#top",
    "http://localhost:8080/health?at=noon",
    "basic auth is off",
    "Basic authentication is required.",
    "Bearer authentication failed",
    "the bearer of bad news",
    "2f1f6d1c-9a2b-4a1e-8f4e-0b6f2f6a9d3c",
    "commit 8f1873b0cf3d238f1873b0cf3d238f1873b0cf3d",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "01HF8Z3V9QXK2M4N6P8R0S2T4V",
    "arn:aws:iam::123456789012:role/admin",
    "s3://bucket/some/long/key/name.parquet",
    "/usr/lib/python3.11/site-packages/anyio/_core.py:42",
    "git@github.example:org/repo.git",
    "postgres://db.example:5432/app",
    "max_tokens=4096, input_tokens: 17",
    "next_page_token=p2",
    "KeyError: 'name'",
    "primary key: id, sort_key=price, cache key: user:42",
    "session expired",
    "unknown cookie: chocolate",
    "authorization failed",
    "passed=12 failed=3, compass: north",
    "risk-assessment-and-mitigation-plan",
    "2026-11-21T10:00:00+00:00",
    "50% off, a%20b%2Fc",
    "Content-Type: application/json; charset=utf-8",
    "İstanbul, ülke: Türkiye",
    f"data:image/png;base64,{IMAGE}",
    "",
]


@table("text", ORDINARY)
def test_other_words_stay(text: str) -> None:
    assert redact(text) is text


@given(st.lists(st.sampled_from(ORDINARY), max_size=4))
def test_ordinary_texts_stay_together_too(texts: list[str]) -> None:
    value = [{"said": texts}, *texts]
    assert Redactor(environment=False).value(value) == (value, False)


PIECES = [
    "a", "eyJ", "-eyJ", "eyJaaaaaaaaaaaaaa.", "sk-", "-----BEGIN PRIVATE KEY-----", "://", "://a:b",
    "https://a:b@", "?a=", "&key=&", "%41 ", "basic a", 'password:"', "api key=", "token:a",
    "cookie=a", '\\"', ":AA", "authorization: bearer", "====a", "QUJD REVGR0hJSktMTU5P ", "\u0130",
    "\ud800", "a=b&", "a-b_",
]  # fmt: skip


@table("piece", PIECES)
def test_a_long_text_made_to_be_slow_is_not(piece: str) -> None:
    redactor = Redactor(fields=("ssn",), values=("some words",), environment=False)
    text = piece * (2**16 // len(piece))
    began = time.process_time()
    redactor.text(text)
    # An eighth of a second at the worst where it was written; what is quadratic takes many.
    assert time.process_time() - began < 2
