"""What is ordinary stays, and every kind of key is hidden, wherever it is written."""

from __future__ import annotations

import base64
import random
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Any

from tables import table

from core.ordinary_values import LATER, ORDINARY
from triage.core import Redactor, redact
from triage.core.secret_shapes import HIDDEN

REDACTOR = Redactor(environment=False)
BECH32 = "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"
HEX = "0123456789abcdef"
ANY = ascii_letters + digits


def test_at_most_one_in_a_hundred_ordinary_values_is_taken_for_a_secret() -> None:
    hidden = [value for value in [*ORDINARY, *LATER] if REDACTOR.value(value)[1]]
    assert len(hidden) <= len([*ORDINARY, *LATER]) // 100, hidden


def key(length: int, letters: str = ANY) -> str:
    """Random letters with a digit among them, the same in each test run."""
    draw = random.Random(length)
    return "7" + "".join(draw.choice(letters) for _ in range(length - 1))


KEYS = [
    f"ATATT3xFfGF0{key(160)}={key(8, HEX)}",
    f"ATBB{key(32)}",
    f"lin_api_{key(40)}",
    f"figd_{key(40)}",
    f"sbp_{key(40, HEX)}",
    f"sb_secret_{key(31)}",
    f"NRAK-{key(27, ascii_uppercase + digits)}",
    f"{key(36, HEX)}NRAL",
    f"glsa_{key(32)}_{key(8, HEX)}",
    f"glc_eyJ{key(80)}",
    f"dp.pt.{key(43)}",
    f"dp.st.dev.{key(43)}",
    f"aB38Q~{key(34)}",
    f"SK{key(32, HEX)}",
    f"key-{key(32, HEX)}",
    f"{key(32, HEX)}-{key(8, HEX)}-{key(8, HEX)}",
    f"MTA{key(21)}.{key(6)}.{key(38)}",
    f"AGE-SECRET-KEY-1{key(58, BECH32)}",
    f"fw_{key(24)}",
    f"1//0{key(60)}",
    f"dckr_pat_{key(27)}",
    f"rubygems_{key(48, HEX)}",
    f"nvapi-{key(64)}",
    f"jina_{key(32, HEX)}{key(28)}",
    f"fc-{key(32, HEX)}",
    f"e2b_{key(40, HEX)}",
    f"tgp_v1_{key(43)}",
    f"csk-{key(48, ascii_lowercase + digits)}",
    f"pul-{key(40, HEX)}",
    f"{key(14)}.atlasv1.{key(67)}",
    f"ops_eyJ{key(300)}",
    f"vcp_{key(56)}",
    f"pat{key(14)}.{key(64, HEX)}",
    f"pa-{key(43)}",
    f"IQoJb3JpZ2luX2Vj{key(400)}",
    f"FwoGZXIvYXdzE{key(300)}=",
    f"zzz_{key(36)}",
    f"new-v2-{key(40)}",
    f"acme_live_{key(32)}",
]


@table("secret", KEYS)
def test_a_key_is_hidden_by_its_form(secret: str) -> None:
    assert redact(f"it said {secret} and stopped") == f"it said {HIDDEN} and stopped"
    assert REDACTOR.value({"note": [f"<{secret}>"]}) == ({"note": [f"<{HIDDEN}>"]}, True)


NEAR_MISSES = [
    "fc-barcelona won, pa-system off, pat. pending, pul-ley, csk-tournament",
    "FC-" + "goal" * 8,
    f"fc-{key(31, HEX)}",
    f"fc-{key(33, HEX)}",
    f"e2b_{key(39, HEX)}",
    f"pul-{key(41, HEX)}",
    "the nvapi-reference-for-display-drivers-and-their-settings-on-windows",
    "jina_embeddings_v3_base_english_and_multilingual_with_late_chunking_enabled_by_default",
    "pa-announcement-of-the-evening-train-to-chester",
    "patterns.compiled, patchwork.example, pathological.cases",
    "vcp_client_connection_pool_settings, vcr_cassettes_of_recorded_http_calls",
    "tgp_v1_migration, ops_eyes, state.atlasv1.json",
    f"chatcmpl-{key(29)}, call_{key(24)}, toolu_{key(24)}, pi_{key(24)}, dpl_{key(28)}",
    f"resp_{key(48, HEX)}, trace-{key(32, HEX)}",
    f"sha512-{key(86)}== nonce-{key(32)}",
    f"cs_test_{key(58)}",
    "test_an_answer_of_32_words, background-image-of-the-2nd-Version",
    "csk-super-kings-win-the-final-of-the-season-by-ten-runs",
]


@table("text", NEAR_MISSES)
def test_words_that_begin_as_a_key_does_stay(text: str) -> None:
    assert redact(text) is text


WORD = "hK7-pQ2vXz"


@table(
    ("text", "shown"),
    [
        (f"run --password {WORD} now", f"run --password {HIDDEN} now"),
        (f"deploy --api-token={WORD}", f"deploy --api-token={HIDDEN}"),
        (f"x --token '{WORD}'", f"x --token '{HIDDEN}'"),
        (f"curl -u ann:{WORD} https://a.example", f"curl -u {HIDDEN} https://a.example"),
        (f"curl --user 'ann:{WORD}' b", f"curl --user '{HIDDEN}' b"),
        (f"curl -uann:{WORD} b", f"curl -u{HIDDEN} b"),
        (f"curl -sSu ann:{WORD} b", f"curl -sSu {HIDDEN} b"),
        (
            f"Headers([('a', 'b'), ('cookie', 'id={WORD}')])",
            f"Headers([('a', 'b'), ('cookie', '{HIDDEN}')])",
        ),
        (f'[["x-api-key", "{WORD}"]]', f'[["x-api-key", "{HIDDEN}"]]'),
        (f"[(b'authorization', b'{WORD}')]", f"[(b'authorization', b'{HIDDEN}')]"),
        ("columns = ['token', 'session']", "columns = ['token', 'session']"),
        (f"mysql -u root -p{WORD} db", f"mysql -u root -p{HIDDEN} db"),
        (f"sshpass -p {WORD} ssh h", f"sshpass -p {HIDDEN} ssh h"),
        (f"redis-cli -a {WORD} ping", f"redis-cli -a {HIDDEN} ping"),
        (f"machine h login ann password {WORD}", f"machine h login ann password {HIDDEN}"),
        (f"the password is {WORD}, he said", f"the password is {HIDDEN} he said"),
        (f"<password>{WORD}</password>", f"<password>{HIDDEN}</password>"),
        (f"<db:apiKey a='b'>{WORD}</db:apiKey>", f"<db:apiKey a='b'>{HIDDEN}</db:apiKey>"),
        (f'<input type="password" value="{WORD}">', f'<input type="password" value="{HIDDEN}">'),
        (f"postgres://ann:a/{WORD}@h.example/db", f"postgres://{HIDDEN}@h.example/db"),
        (f"DB_PASS={WORD} make", f"DB_PASS={HIDDEN} make"),
        (f"API key: {WORD}", f"API key: {HIDDEN}"),
        (f'{{"refreshToken": "{WORD}"}}', f'{{"refreshToken": "{HIDDEN}"}}'),
        (f"Password={WORD};Server=x", f"Password={HIDDEN};Server=x"),
        ("password: swordfish", f"password: {HIDDEN}"),
    ],
)
def test_a_secret_is_hidden_by_its_place_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) is shown


def test_base64_that_is_wrapped_is_read_as_one() -> None:
    coded = base64.encodebytes(
        f"note: {WORD} is the password: {WORD}. {'x' * 90}".encode()
    ).decode()
    assert "\n" in coded.strip()
    assert redact(f"see\n{coded}") == f"see\n{HIDDEN}\n"
    assert HIDDEN in redact(coded.replace("\n", "\\n"))


@table(
    "value",
    [
        {"password": {"type": "string", "minLength": 8}},
        {"session": "3f2f6d1c-9a2b-4a1e-8f4e-0b6f2f6a9d3c", "token": 17},
        {"authorization": {"status": "pending"}},
        {"required": ["password", "username"]},
        {"password": {"type": ["string", "null"], "minLength": 8}},
    ],
)
def test_schemas_ids_and_states_are_no_secrets(value: Any) -> None:
    assert REDACTOR.value(value) == (value, False)


@table(
    "value",
    [
        {"session": "s-9kX3vQ2mZ7"},
        {"token": "tK9vQ2mZ7pLw"},
        {"cookie": "sid=tK9vQ2mZ7pLw"},
        {"password": "swordfish"},
        {"password": "word"},
        {"otp": 482913},
        {"headers": [["authorization", "Bearer tK9vQ2mZ7pLw"]]},
        {"deep": {"apiKey": {"live": "swordfish"}}},
    ],
)
def test_what_looks_like_a_credential_under_such_a_name_is_one(value: Any) -> None:
    assert REDACTOR.value(value)[1]
