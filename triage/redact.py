"""What must not leave the process as it is: credentials, in the shapes providers give them."""

from __future__ import annotations

import re
from functools import cache

HIDDEN = "[redacted]"

# Shapes are taken from the providers' own documentation of their keys. Every repetition is bounded or
# over one class with no overlap, so matching is linear.
_SHAPES = (
    r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{16,256}",  # OpenAI, Anthropic, Stripe (with dashes)
    r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,256}",  # Stripe
    r"\bgh[pousr]_[A-Za-z0-9]{20,256}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{20,256}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,256}",  # Slack
    r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b",  # AWS key ids
    r"\bAIza[A-Za-z0-9_-]{30,64}",  # Google
    r"\bhf_[A-Za-z0-9]{20,64}",  # Hugging Face
    r"\beyJ[A-Za-z0-9_-]{8,2048}\.[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{0,2048}",  # JWT
    r"(?i:\b(?:bearer|basic)\s{1,4})[A-Za-z0-9._~+/=-]{8,4096}",
    r"(?<=://)[^\s:/@]{1,256}:[^\s/@]{1,256}(?=@)",  # user:password in a URL
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,16384}",
    # A name may end so: OPENAI_API_KEY, aws_secret_access_key, AccountKey.
    (
        r"(?i:(?:api[_-]?key|password|passwd|pwd|secret|authorization|access[_-]?key|account[_-]?key|"
        r"private[_-]?key|shared[_-]?access[_-]?(?:key|signature)|client[_-]?secret)"
        r"[\"']?\s{0,4}[=:]\s{0,4})[\"']?[^\s\"',;&]{4,512}"
    ),
    # A token by name only where it looks like one: parsers complain of an "unexpected token: name".
    r"(?i:\btoken\b[\"']?\s{0,4}[=:]\s{0,4})[\"']?[A-Za-z0-9._~+/-]{16,512}",
)


# One of these stands, in small letters, in whatever a shape fits: texts without any, which are nearly
# all, are passed at a tenth of the cost.
_MARKS = (
    "sk-", "rk-", "pk-", "k_live_", "k_test_", "gh", "xox", "akia", "asia", "aiza", "hf_", "eyj",
    "bearer", "basic", "://", "-----begin", "api", "passw", "pwd", "secret", "authorization", "key",
    "signature", "token",
)  # fmt: skip


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(_SHAPES))


def redact(text: str) -> str:
    """`text` with everything that looks like a credential replaced by `[redacted]`."""
    low = text.lower()
    for mark in _MARKS:
        if mark in low:
            return _pattern().sub(HIDDEN, text)
    return text
