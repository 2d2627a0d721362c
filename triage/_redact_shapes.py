"""Where in a text something stands that looks like a credential.

A shape is looked for only around its mark, a few letters that every text of that shape has, so a text
without marks costs a few searches at the speed of C. All shapes are bounded: time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple, TypeAlias

from ._redact_names import names_a_secret

Span: TypeAlias = tuple[int, int]
"""Where something begins, and where it ends."""


class Shape(NamedTuple):
    """mark: letters in lower case that begin the shape. form: what is found at the mark.

    before: what may stand before the mark and belongs to it; None where nothing does.
    """

    mark: str
    form: str
    before: str | None = None


RUN = 16
"""Keys have at least so many letters, digits, `+`, `/`, `_`, `=` and `-` in a row; prose has not."""

_ALONE = r"(?<![A-Za-z0-9])"
_WORD = r"[A-Za-z0-9_-]"

# The forms are those of the providers' own documentation of their keys.
_KEYS = (
    *(Shape(f"{mark}-", rf"{_ALONE}{mark}-{_WORD}{{16,256}}") for mark in ("sk", "rk", "pk")),
    *(  # Stripe
        Shape(f"{mark}_{mode}_", rf"{_ALONE}{mark}_{mode}_[A-Za-z0-9]{{10,256}}")
        for mark in ("sk", "rk", "pk")
        for mode in ("live", "test")
    ),
    Shape("whsec_", rf"{_ALONE}whsec_[A-Za-z0-9+/=]{{16,256}}"),
    Shape("gh", rf"{_ALONE}gh[pousr]_[A-Za-z0-9]{{20,256}}"),  # GitHub
    Shape("github_pat_", rf"{_ALONE}github_pat_[A-Za-z0-9_]{{20,256}}"),
    Shape("glpat-", rf"{_ALONE}glpat-{_WORD}{{16,256}}"),  # GitLab
    Shape("xox", rf"{_ALONE}xox[abeoprs]-[A-Za-z0-9-]{{11,256}}"),  # Slack
    Shape("xapp-", rf"{_ALONE}xapp-[A-Za-z0-9-]{{11,256}}"),
    Shape("hooks.slack.com/", r"hooks\.slack\.com/[a-z]{4,20}/[A-Za-z0-9/_-]{16,256}"),
    Shape("akia", rf"{_ALONE}AKIA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),  # AWS key ids
    Shape("asia", rf"{_ALONE}ASIA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    Shape("aiza", rf"{_ALONE}AIza{_WORD}{{30,64}}"),  # Google
    Shape("ya29.", rf"{_ALONE}ya29\.{_WORD}{{16,2048}}"),
    Shape("gocspx-", rf"{_ALONE}GOCSPX-{_WORD}{{16,64}}"),
    Shape("hf_", rf"{_ALONE}hf_[A-Za-z0-9]{{20,64}}"),  # Hugging Face
    Shape("gsk_", rf"{_ALONE}gsk_[A-Za-z0-9]{{20,256}}"),  # Groq
    Shape("xai-", rf"{_ALONE}xai-[A-Za-z0-9]{{20,256}}"),
    Shape("pplx-", rf"{_ALONE}pplx-[A-Za-z0-9]{{20,256}}"),  # Perplexity
    Shape("r8_", rf"{_ALONE}r8_[A-Za-z0-9]{{20,64}}"),  # Replicate
    Shape("lsv2_", rf"{_ALONE}lsv2_[a-z]{{2}}_[A-Za-z0-9_]{{20,128}}"),  # LangSmith
    Shape("tvly-", rf"{_ALONE}tvly-{_WORD}{{16,128}}"),  # Tavily
    Shape("pcsk_", rf"{_ALONE}pcsk_[A-Za-z0-9_]{{20,256}}"),  # Pinecone
    Shape("npm_", rf"{_ALONE}npm_[A-Za-z0-9]{{30,64}}"),
    Shape("pypi-", rf"{_ALONE}pypi-{_WORD}{{16,512}}"),
    Shape("sg.", rf"{_ALONE}SG\.{_WORD}{{16,64}}\.{_WORD}{{16,128}}"),  # SendGrid
    Shape("hvs.", rf"{_ALONE}hvs\.{_WORD}{{20,256}}"),  # Vault
    Shape("dop_v1_", rf"{_ALONE}dop_v1_[a-f0-9]{{32,128}}"),  # DigitalOcean
    Shape("shpat_", rf"{_ALONE}shpat_[A-Fa-f0-9]{{32,64}}"),  # Shopify
    Shape("ntn_", rf"{_ALONE}ntn_[A-Za-z0-9]{{20,128}}"),  # Notion
    Shape("dapi", rf"{_ALONE}dapi[a-f0-9]{{32}}(?![A-Za-z0-9])"),  # Databricks
    Shape(":aa", rf":AA{_WORD}{{33}}(?!{_WORD})", r"(?<![0-9])[0-9]{8,10}\Z"),  # Telegram
    # The start of a JSON object in base64url, three parts: a JWT.
    Shape("eyj", rf"{_ALONE}eyJ{_WORD}{{13,512}}+\.{_WORD}{{8,8192}}+\.{_WORD}{{0,2048}}"),
)

# "Basic authentication." is prose: a value has a digit, a capital or a sign within, or is long.
_WITHIN = r"[A-Za-z]?[a-z]{0,64}(?:[A-Z0-9]|[._~+/=-][A-Za-z0-9=])"
_TOKEN = rf"(?:(?={_WITHIN})[A-Za-z0-9._~+/=-]{{8,4096}}|[a-z]{{16,4096}})"
_SCHEMES = (
    Shape("bearer", rf"(?i:{_ALONE}bearer)\s{{1,4}}{_TOKEN}"),
    Shape("basic", rf"(?i:{_ALONE}basic)\s{{1,4}}{_TOKEN}"),
    Shape(
        "-----begin",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----END)[^\"'{}]){0,16384}+"
        r"(?:-----END [A-Z ]{0,40}-----)?",
    ),
)

# A name, and what is given under it: quoted, even by JSON within JSON, or up to the next separator.
_DONE = r"(?![\\\"']{0,4}\[redacted\](?:[\s\\\"',;&)}\]]|\Z))"
_IS = rf"[\\\"']{{0,4}}\s{{0,4}}(?:=>|[=:])\s{{0,4}}{_DONE}"
# In plain quotes a backslash escapes; within quotes that are escaped themselves it ends the value.
_QUOTED = (
    r"\"(?:[^\"\\]|\\.){1,4096}+|'(?:[^'\\]|\\.){1,4096}+|"
    r"\\{1,3}\"[^\"\\]{1,4096}|\\{1,3}'[^'\\]{1,4096}"
)
_GIVEN = rf"(?:{_QUOTED}|[\"']?[^\s\"',;&\\]{{4,4096}})"
_SCHEME = r"(?i:basic|bearer|digest|token|negotiate|ntlm|hmac|apikey|aws4[a-z0-9-]{0,24})"
_HEADER = rf"(?:{_QUOTED}|{_SCHEME}\s[^\"'\r\n\\]{{3,4096}}|[^\s\"',;&\\]{{4,4096}})"
_COOKIES = rf"(?:{_QUOTED}|[^\s\"'=;\\]{{1,128}}=[^\"'\r\n\\]{{1,4096}})"
_NAMES = (
    Shape("key", rf"(?i:key){_IS}{_GIVEN}", r"(?i:api|access|account|private|signing)[_-]?\Z"),
    Shape("pass", rf"(?i:pass(?:word|wd|phrase|_?code)){_IS}{_GIVEN}"),
    Shape("pwd", rf"(?i:pwd){_IS}{_GIVEN}"),
    Shape("secr", rf"(?i:secret(?:[_-]?key)?){_IS}{_GIVEN}", r"(?i:client[_-]?)?\Z"),
    Shape("sig", rf"(?i:signature){_IS}{_GIVEN}", r"(?i:shared[_-]?access[_-]?)\Z"),
    Shape("authoriz", rf"(?i:authorization){_IS}{_HEADER}"),
    Shape("cook", rf"(?i:cookie){_IS}{_COOKIES}", r"(?i:set-)?\Z"),
    # A token by name only where it looks like one: parsers complain of an "unexpected token: name".
    Shape("tok", rf"(?i:token){_IS}[\\\"']{{0,4}}[A-Za-z0-9._~+/-]{{16,4096}}"),
)
"""Short marks that end in a rare letter are the quickest to miss."""

# `user:password@`, or a token in its place; the host stays to be read.
_USER = r"(?<=://)(?:[^\s:/@]{0,256}:[^\s/\"'<>]{1,256}|[^\s:/@\"'<>]{16,512})(?=@)"

_QUERY = r"[?&;#]([^=&\s?#\"'<>]{1,64})=([^&\s#\"'<>]{1,4096})"
_ASSIGNED = rf"(?<![\w.-])([\w.-]{{1,64}}){_IS}"
_ENCODED = r"%[0-9A-Fa-f]{2}"
_BACK = 24

compiled = cache(re.compile)

_CLASSES = bytes(
    97 if chr(code).isascii() and (chr(code).isalnum() or chr(code) in "+/_=-") else 32
    for code in range(256)
)
_LONG = b"a" * RUN

_SCHEME_MARKS = tuple(shape.mark for shape in _SCHEMES)
_NAME_MARKS = tuple(shape.mark for shape in _NAMES)


def _by_sign(shapes: Iterable[Shape]) -> dict[str, list[Shape]]:
    found: dict[str, list[Shape]] = {}
    for shape in shapes:
        sign = next((char for char in shape.mark if not char.isalnum()), "")
        found.setdefault(sign, []).append(shape)
    return found


_KEYS_BY_SIGN = tuple(_by_sign(_KEYS).items())
"""Keys by the first sign in their marks: where it does not stand, none of them is looked for."""


def is_marked(text: str, others: Iterable[str] = ()) -> bool:
    """False where a text without runs surely holds nothing of all this, and none of the others.

    The quick question before the search, by the marks alone: most texts have none.
    """
    low = text.lower()
    if "%" in text or len(low) != len(text):
        return True
    for mark in _SCHEME_MARKS:
        if mark in low:
            return True
    if "=" in text or ":" in text:
        if "@" in text or "?" in text or "&" in text:
            return True
        for mark in _NAME_MARKS:
            if mark in low:
                return True
    for other in others:  # noqa: SIM110 - a generator costs a call for each
        if other in text:
            return True
    return False


def spans_in(text: str, runs: list[Span]) -> list[Span]:
    """Where credentials stand in a text as it is, in no order; they may overlap. runs: its `runs_in`."""
    low = text.lower()
    if len(low) != len(text):
        # The only letter whose small form is longer; positions must be those of the text.
        low = text.replace("\u0130", "I").lower()
    found: list[Span] = []
    for shape in _SCHEMES:
        if shape[0] in low:
            _look(shape, text, low, found)
    if "=" in text or ":" in text:
        for shape in _NAMES:
            if shape[0] in low:
                _look(shape, text, low, found)
        if "@" in text and "://" in text:
            found.extend(match.span() for match in compiled(_USER).finditer(text))
        if "=" in text and ("?" in text or "&" in text):
            found.extend(
                match.span(2)
                for match in compiled(_QUERY).finditer(text)
                if names_a_secret(match[1], in_address=True)
            )
    if runs:
        # What comes before a dot or a colon stands before the run.
        near = "\n".join([low[max(0, start - _BACK) : end] for start, end in runs])
        for shape in _keys_marked(near):
            _look(shape, text, low, found)
    return found


def _keys_marked(near: str) -> list[Shape]:
    return [
        shape
        for sign, shapes in _KEYS_BY_SIGN
        if sign in near
        for shape in shapes
        if shape[0] in near
    ]


def given_under(text: str, is_secret: Callable[[str], bool]) -> list[Span]:
    """What a text gives under names, as `name=value` or `"name": "value"`, where the name is secret."""
    if "=" not in text and ":" not in text:
        return []
    given = compiled(_GIVEN).match
    found: list[Span] = []
    for match in compiled(_ASSIGNED).finditer(text):
        hit = given(text, match.end()) if is_secret(match[1]) else None
        if hit:
            found.append(hit.span())
    return found


def runs_in(text: str) -> list[Span]:
    """Where `RUN` letters and more stand that keys are made of."""
    if len(text) < RUN:
        return []
    classes = text.encode("ascii", "replace").translate(_CLASSES)
    if _LONG not in classes:
        return []  # nearly always, and `find` takes longer to say so
    start = classes.find(_LONG)
    found: list[Span] = []
    while start >= 0:
        end = classes.find(b" ", start)
        end = len(classes) if end < 0 else end
        found.append((start, end))
        start = classes.find(_LONG, end)
    return found


def encoded_in(text: str, runs: list[Span]) -> list[tuple[Span, str]]:
    """The parts of a text that say something in base64 or with percent signs, and what they say."""
    found: list[tuple[Span, str]] = []
    for start, end in runs:
        found.extend(((start, end), said) for said in _from_base64(text[start:end]))
    if "%" in text and compiled(_ENCODED).search(text):
        from urllib.parse import unquote_plus

        found.extend(
            (match.span(), unquote_plus(match[0]))
            for match in compiled(r"[^\s\"'<>&?;]+").finditer(text)
            if "%" in match[0]
        )
    return found


def hide(text: str, spans: list[Span], hidden: str) -> str:
    """The text with what stands at these places replaced; places that touch are one."""
    parts: list[str] = []
    upto = 0
    for start, end in sorted(spans):
        if not parts or start > upto:
            parts += (text[upto:start], hidden)
        upto = max(upto, end)
    parts.append(text[upto:])
    return "".join(parts)


def _look(shape: Shape, text: str, low: str, found: list[Span]) -> None:
    mark, form, before = shape
    match = compiled(form).match
    at = low.find(mark)
    while at >= 0:
        hit = match(text, at)
        end = at + 1
        if hit:
            start: int | None = at
            if before is not None:
                head = compiled(before).search(text, max(0, at - _BACK), at)
                start = head.start() if head else None
            if start is not None:
                end = hit.end()
                found.append((start, end))
        at = low.find(mark, end)


def _from_base64(run: str) -> list[str]:
    """What a run of letters says in base64, wherever in it the base64 begins; texts only."""
    import binascii

    if not run.strip(_HEX) or run.islower():
        return []  # a digest, an id or a path: base64 of a text has capitals
    plain = run.rstrip("=").replace("-", "+").replace("_", "/").replace("=", "/")
    said: list[str] = []
    for skip in range(4):
        length = (len(plain) - skip) // 4 * 4
        rest = plain[skip + length :]
        tail = rest + "=" * (4 - len(rest)) if len(rest) > 1 else ""
        data = binascii.a2b_base64(plain[skip : skip + length] + tail)
        if _READABLE in data.translate(_PRINTABLE):
            said.append(data.decode("utf-8", "replace"))
    return said


_PRINTABLE = bytes(97 if b" " <= bytes([code]) <= b"~" else 0 for code in range(256))
_HEX = "0123456789abcdefABCDEF-"
_READABLE = b"a" * 8
