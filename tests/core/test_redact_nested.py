"""A text is judged the same wherever it stands: as it is, or escaped once or twice in JSON or a repr."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from core.ordinary_values import LATER, ORDINARY
from triage import diagnose
from triage.core import Redactor, redact
from triage.core.secret_shapes import HIDDEN

REDACTOR = Redactor(environment=False)
CANARY = "qX7vT2mK9pL4wN8zR3cY6"
HEX = "0f3a9c71e5b28d46"
ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"

Form = Callable[[str], str]


def _in_json(text: str) -> str:
    return json.dumps({"stdout": text})


def _in_json_of_any_letter(text: str) -> str:
    return json.dumps([text], ensure_ascii=False)


NESTED: tuple[Form, ...] = (_in_json, _in_json_of_any_letter, repr)
FORMS: list[Form] = [
    str,
    *NESTED,
    *(lambda text, a=a, b=b: b(a(text)) for a in NESTED for b in NESTED),
]  # fmt: skip


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{key}: {item}\n"
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


def _pages(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".md", ".py", ".txt", ".json", ".jsonl") and path.stat().st_size < 2**17:
            text = path.read_text(errors="replace")
            yield from (text[start : start + 2_000] for start in range(0, len(text), 2_000))


CORPUS = [*_texts_in([*ORDINARY, *LATER]), *list(_pages(ROOT / "docs"))[::4]]


def _changed(texts: list[str]) -> list[str]:
    """The clean texts that are changed once they are nested; none may raise."""
    return [
        text
        for text in texts
        if REDACTOR.text(text) is text
        and any(REDACTOR.text(form(text)) != form(text) for form in FORMS)
    ]


def test_ordinary_text_stays_however_deep_it_is_nested() -> None:
    assert _changed(CORPUS) == []


@pytest.mark.skipif(not SHARED.exists(), reason="../shared is absent")
def test_ordinary_text_of_the_background_material_stays_too() -> None:
    texts = list(_pages(SHARED))[::16]
    assert len(texts) > 20
    assert len(_changed(texts)) <= len(texts) // 100


words = st.text("abcdefghijKLMNOPQ0123456789+/_-=", min_size=4, max_size=40)
lines = st.lists(words | st.text(max_size=8), max_size=6).map("\n".join)


@given(lines | st.text(), st.sampled_from(FORMS))
def test_any_text_can_be_read_and_words_around_it_stay(text: str, form: Form) -> None:
    whole = f"it said: {form(text)} ; and went on"
    shown = REDACTOR.text(whole)
    assert shown.startswith("it said: ")
    assert shown.endswith(" ; and went on")
    diagnose(RuntimeError(whole))


SECRETS = [
    f"sk-{CANARY}",
    f"ghp_{CANARY}",
    f"AIza{CANARY}{CANARY}",
    f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.{CANARY}",
    f"Authorization: Bearer {CANARY}",
    f"Bearer {CANARY}",
    f"postgres://ann:{CANARY}@db.example/app",
    f"OPENAI_API_KEY={CANARY}",
    f"otp={CANARY}",
    f"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128\n\n{CANARY}\n-----END RSA PRIVATE KEY-----",
]


def _wrapped(secret: str, width: int, end: str) -> str:
    coded = base64.b64encode(f"{secret} {'and so on ' * 9}".encode()).decode()
    return end.join(coded[start : start + width] for start in range(0, len(coded), width))


PLACES: list[tuple[str, Form]] = [
    ("on a line of its own", lambda secret: f"first\n{secret}\nlast"),
    ("on a line of its own, as Windows ends it", lambda secret: f"first\r\n{secret}\r\nlast"),
    ("after a tab", lambda secret: f"a\t{secret}\tb"),
    ("in colour", lambda secret: f"\x1b[32m{secret}\x1b[0m"),
    ("in base64", lambda secret: base64.b64encode(secret.encode()).decode()),
    ("in wrapped base64", lambda secret: f"see\n{_wrapped(secret, 76, chr(10))}"),
    ("in narrow base64", lambda secret: f"see\n{_wrapped(secret, 24, chr(10))}"),
    ("in base64 of Windows", lambda secret: _wrapped(secret, 64, "\r\n")),
    ("in base64 that is indented", lambda secret: _wrapped(secret, 64, "\n    ")),
]


def _leaks(shown: str) -> bool:
    if CANARY in shown:
        return True
    letters = "".join(
        char if char.isalnum() or char in "+/" else " " for char in shown.replace("\\n", "")
    ).split()
    for run in letters:
        for skip in range(4):
            some = run[skip:]
            if CANARY[4:-4].encode() in base64.b64decode(some[: len(some) // 4 * 4]):
                return True
    return False


@table(("place", "put"), PLACES)
@table("form", FORMS)
@table("secret", SECRETS)
def test_a_secret_is_hidden_however_deep_it_is_nested(
    secret: str, form: Form, place: str, put: Form
) -> None:
    shown = REDACTOR.text(form(put(secret)))
    assert HIDDEN in shown, (place, form(put(secret)))
    assert not _leaks(shown), (place, shown)


def test_redact_takes_any_value_and_hides_inside_of_it() -> None:
    assert redact({"headers": {"authorization": f"Bearer {CANARY}"}, "n": 1}) == {
        "headers": {"authorization": HIDDEN},
        "n": 1,
    }
    assert redact([f"sk-{CANARY}", None, 3]) == [HIDDEN, None, 3]
    clean = {"city": "Porto"}
    assert redact(clean) is clean
    assert redact(None) is None
    assert CANARY not in str(redact(f"sk-{CANARY}".encode()))
