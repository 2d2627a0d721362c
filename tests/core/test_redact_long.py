"""Long texts are looked through to their end."""

from __future__ import annotations

import base64
from collections.abc import Callable
from urllib.parse import quote

from tables import table

from triage.core.redaction import Redactor
from triage.core.secret_shapes import HIDDEN

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


@table("form", FORMS)
@table(
    "secret", (*SECRETS, f"-----BEGIN PRIVATE KEY-----\n{CANARY * 100}\n-----END PRIVATE KEY-----")
)
def test_a_secret_is_found_behind_a_long_text(secret: str, form: Callable[[str], str]) -> None:
    redactor = Redactor(
        fields=("ssn",), patterns=(r"ticket-[A-Za-z0-9]+",), values=(REGISTERED,), environment=False
    )
    long = "".join(FILLERS) * 500
    clean = redactor.text(f"{long} {form(secret)} {long}")
    assert CANARY not in clean
    assert form(secret) not in clean
    assert HIDDEN in clean
    assert clean.startswith(long[:-100])
    assert clean.endswith(long[100:])
