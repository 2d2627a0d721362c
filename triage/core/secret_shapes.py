"""The forms of credentials: providers' keys, names of secrets, and values that are no secrets.

Everything here judges only text. `redaction` decides where to look, and replaces the secrets.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from msgspec import Struct

from .patterns import Pattern

HIDDEN = "[redacted]"
"""The replacement of a secret."""


class Shape(Struct, frozen=True):
    """The form of one kind of key.

    mark: lower-case letters in every text with such a key; a text without them is not searched.
    pattern: the whole key, or group 1 where only part of the match is secret. random: True where
    ordinary words can have this form (`sk-trail-shoe-42`); then only a random-looking match counts.
    """

    mark: str
    pattern: str
    random: bool = False


_ALONE = r"(?<![A-Za-z0-9])"
_WORD = r"[A-Za-z0-9_-]"
_END = r"(?![A-Za-z0-9])"

KEYS: tuple[Shape, ...] = (
    *(
        Shape(f"{mark}-", rf"{_ALONE}{mark}-{_WORD}{{16,256}}", random=True)
        for mark in ("sk", "rk", "pk")
    ),
    *(
        Shape(f"{mark}_{mode}_", rf"{_ALONE}{mark}_{mode}_[A-Za-z0-9]{{10,256}}")
        for mark in ("sk", "rk", "pk")
        for mode in ("live", "test")
    ),
    Shape("whsec_", rf"{_ALONE}whsec_[A-Za-z0-9+/=]{{16,256}}"),
    # Code and its builds
    Shape("gh", rf"{_ALONE}gh[pousr]_[A-Za-z0-9]{{20,256}}"),
    Shape("github_pat_", rf"{_ALONE}github_pat_[A-Za-z0-9_]{{20,256}}"),
    Shape("glpat-", rf"{_ALONE}gl(?:pat|dt|rt|cbt|ptt|agent)-{_WORD}{{16,256}}"),
    Shape("tt3", rf"{_ALONE}AT[AC]TT3[A-Za-z0-9_=-]{{20,512}}"),  # Atlassian
    Shape("atbb", rf"{_ALONE}ATBB[A-Za-z0-9]{{24,64}}"),  # Bitbucket
    Shape("lin_", rf"{_ALONE}lin_(?:api|oauth)_[A-Za-z0-9]{{16,128}}"),  # Linear
    Shape("fig", rf"{_ALONE}fig[dor][a-z]?_{_WORD}{{20,128}}"),  # Figma
    Shape("npm_", rf"{_ALONE}npm_[A-Za-z0-9]{{30,64}}"),
    Shape("pypi-", rf"{_ALONE}pypi-{_WORD}{{16,512}}", random=True),
    Shape("rubygems_", rf"{_ALONE}rubygems_[a-f0-9]{{32,64}}"),
    Shape("dckr_pat_", rf"{_ALONE}dckr_pat_{_WORD}{{20,64}}"),  # Docker
    Shape("sntry", rf"{_ALONE}sntry[su]_[A-Za-z0-9+/=_-]{{20,512}}"),  # Sentry
    Shape("pmak-", rf"{_ALONE}PMAK-[a-f0-9]{{20,64}}-[a-f0-9]{{20,64}}"),  # Postman
    # Messages and mail
    Shape("xox", rf"{_ALONE}xox[abeoprs]-[A-Za-z0-9-]{{11,256}}"),  # Slack
    Shape("xapp-", rf"{_ALONE}xapp-[A-Za-z0-9-]{{11,256}}"),
    Shape("hooks.slack.com/", r"hooks\.slack\.com/[a-z]{4,20}/[A-Za-z0-9/_-]{16,256}"),
    Shape("/api/webhooks/", r"/api/webhooks/[0-9]{15,22}/[A-Za-z0-9_-]{40,128}"),  # Discord
    Shape(".", rf"{_ALONE}[MNO][A-Za-z0-9_-]{{22,27}}\.[A-Za-z0-9_-]{{6}}\.[A-Za-z0-9_-]{{27,48}}"),
    Shape(":aa", rf"(?<![0-9])[0-9]{{8,10}}:AA{_WORD}{{33}}(?!{_WORD})"),  # Telegram
    Shape("sg.", rf"{_ALONE}SG\.{_WORD}{{16,64}}\.{_WORD}{{16,128}}"),  # SendGrid
    Shape("sk", rf"{_ALONE}SK[0-9a-f]{{32}}{_END}"),  # Twilio
    Shape("key-", rf"{_ALONE}key-[0-9a-z]{{32}}{_END}"),  # Mailgun
    Shape("-", rf"{_ALONE}[0-9a-f]{{32}}-[0-9a-f]{{8}}-[0-9a-f]{{8}}(?![A-Za-z0-9-])"),
    # Clouds and their tools
    Shape("akia", rf"{_ALONE}AKIA[A-Z0-9]{{16}}{_END}"),  # AWS
    Shape("asia", rf"{_ALONE}ASIA[A-Z0-9]{{16}}{_END}"),
    Shape("aiza", rf"{_ALONE}AIza{_WORD}{{30,64}}"),  # Google
    Shape("ya29.", rf"{_ALONE}ya29\.{_WORD}{{16,2048}}"),
    Shape("1//0", rf"{_ALONE}1//0{_WORD}{{30,256}}"),
    Shape("gocspx-", rf"{_ALONE}GOCSPX-{_WORD}{{16,64}}"),
    Shape("q~", r"(?<![\w.~-])[\w.~-]{3}[0-9]Q~[\w.~-]{31,34}(?![\w.~-])"),  # Azure AD
    Shape("hvs.", rf"{_ALONE}hv[sb]\.{_WORD}{{20,512}}"),  # Vault
    Shape("dop_v1_", rf"{_ALONE}do[opr]_v1_[a-f0-9]{{32,128}}"),  # DigitalOcean
    Shape("dp.", rf"{_ALONE}dp\.[a-z]{{2,5}}\.[A-Za-z0-9._-]{{30,128}}"),  # Doppler
    Shape("sbp_", rf"{_ALONE}sbp_[a-f0-9v_]{{36,64}}"),  # Supabase
    Shape("sb_secret_", rf"{_ALONE}sb_secret_{_WORD}{{20,128}}"),
    Shape("nr", rf"{_ALONE}NR(?:AK|II|IQ|AA|JS|RA)-[A-Za-z0-9_-]{{16,64}}"),  # New Relic
    Shape("nral", rf"{_ALONE}[A-Fa-f0-9]{{36}}NRAL{_END}"),
    Shape("glsa_", rf"{_ALONE}glsa_[A-Za-z0-9]{{20,64}}_[A-Fa-f0-9]{{8}}"),  # Grafana
    Shape("glc_", rf"{_ALONE}glc_[A-Za-z0-9+/=]{{32,512}}"),
    Shape("dapi", rf"{_ALONE}dapi[a-f0-9]{{32}}{_END}"),  # Databricks
    Shape("shp", rf"{_ALONE}shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{{32,64}}"),  # Shopify
    Shape("sq0", rf"{_ALONE}sq0[a-z]{{3}}-{_WORD}{{22,64}}"),  # Square
    Shape("ntn_", rf"{_ALONE}ntn_[A-Za-z0-9]{{20,128}}"),  # Notion
    Shape("secret_", rf"{_ALONE}secret_[A-Za-z0-9]{{40,64}}{_END}"),
    Shape("pscale_", rf"{_ALONE}pscale_(?:tkn|pw|oauth)_[\w.=-]{{20,128}}"),  # PlanetScale
    Shape(
        ".atlasv1.", rf"{_ALONE}[A-Za-z0-9]{{14}}\.atlasv1\.[A-Za-z0-9_=-]{{60,80}}"
    ),  # Terraform
    Shape("pul-", rf"{_ALONE}pul-[a-f0-9]{{40}}{_END}"),  # Pulumi
    Shape("ops_eyj", rf"{_ALONE}ops_eyJ[A-Za-z0-9+/_-]{{100,4096}}={{0,2}}"),  # 1Password
    Shape("vc", rf"{_ALONE}vc[acikpr]_[A-Za-z0-9]{{24,128}}{_END}", random=True),  # Vercel
    Shape("pat", rf"{_ALONE}pat[A-Za-z0-9]{{14}}\.[a-f0-9]{{64}}{_END}"),  # Airtable
    # AWS session tokens: base64 that begins with their version
    Shape("iqojb3jpz2lux2vj", rf"{_ALONE}IQoJb3JpZ2luX2Vj[A-Za-z0-9+/]{{64,4096}}={{0,2}}"),
    Shape("ogzxiv", rf"{_ALONE}F[wQ]oGZXIv[A-Za-z0-9+/]{{64,4096}}={{0,2}}"),
    Shape("age-secret-key-", r"AGE-SECRET-KEY-1[A-Z0-9]{30,128}"),
    # Models
    Shape("hf_", rf"{_ALONE}hf_[A-Za-z0-9]{{20,64}}"),  # Hugging Face
    Shape("gsk_", rf"{_ALONE}gsk_[A-Za-z0-9]{{20,256}}"),  # Groq
    Shape("xai-", rf"{_ALONE}xai-[A-Za-z0-9]{{20,256}}"),
    Shape("pplx-", rf"{_ALONE}pplx-[A-Za-z0-9]{{20,256}}"),  # Perplexity
    Shape("fw_", rf"{_ALONE}fw_[A-Za-z0-9]{{20,64}}"),  # Fireworks
    Shape("r8_", rf"{_ALONE}r8_[A-Za-z0-9]{{20,64}}"),  # Replicate
    Shape("lsv2_", rf"{_ALONE}lsv2_[a-z]{{2}}_[A-Za-z0-9_]{{20,128}}"),  # LangSmith
    Shape("tvly-", rf"{_ALONE}tvly-{_WORD}{{16,128}}", random=True),  # Tavily
    Shape("pcsk_", rf"{_ALONE}pcsk_[A-Za-z0-9_]{{20,256}}"),  # Pinecone
    Shape("nvapi-", rf"{_ALONE}nvapi-{_WORD}{{48,128}}", random=True),  # NVIDIA
    Shape("jina_", rf"{_ALONE}jina_[a-f0-9]{{32}}{_WORD}{{16,64}}"),  # Jina
    Shape("fc-", rf"{_ALONE}fc-[a-f0-9]{{32}}{_END}"),  # Firecrawl
    Shape("e2b_", rf"{_ALONE}e2b_[a-f0-9]{{40}}{_END}"),  # E2B
    Shape("tgp_v1_", rf"{_ALONE}tgp_v1_{_WORD}{{40,64}}"),  # Together
    Shape("csk-", rf"{_ALONE}csk-[a-z0-9]{{40,64}}{_END}"),  # Cerebras
    Shape("pa-", rf"{_ALONE}pa-{_WORD}{{43}}(?!{_WORD})", random=True),  # Voyage
    # A key of an unlisted provider: a short prefix, then 32 letters and digits of every kind.
    # Ids of providers are shorter; digests for browsers and Stripe's checkouts are no secrets.
    *(
        Shape(
            end,
            rf"(?<![A-Za-z0-9_./+=-])(?!sha\d|nonce-|cs_)[a-z][a-z0-9]{{1,11}}(?:[_-][a-z0-9]{{1,8}}){{0,2}}{end}"
            r"(?=[A-Za-z]{0,255}[0-9])(?=[a-z0-9]{0,255}[A-Z])(?=[A-Z0-9]{0,255}[a-z])[A-Za-z0-9]{32,256}"
            + _END,
        )
        for end in ("_", "-")
    ),
    # The start of a JSON object in base64url, in three parts: a JWT
    Shape("eyj", rf"{_ALONE}eyJ{_WORD}{{13,512}}+\.{_WORD}{{8,8192}}+\.{_WORD}{{0,2048}}"),
)
"""Keys with a form of their own, as their providers document them."""

# "Basic authentication." is prose: a credential has a digit, capital or sign inside, or is long.
_WITHIN = r"[A-Za-z]?[a-z]{0,64}(?:[A-Z0-9]|[._~+/=-][A-Za-z0-9=])"
_TOKEN = rf"((?={_WITHIN})[A-Za-z0-9._~+/=-]{{8,4096}}|[a-z]{{16,4096}})"
_FLAG_NAMES = (
    r"(?:pass(?:word|wd|phrase|code)?|token|secret|(?:[\w-]{0,32}-)(?:password|token|secret|key))"
)

PLACES: tuple[Shape, ...] = (
    Shape("bearer", rf"(?i:{_ALONE}bearer)\s{{1,4}}{_TOKEN}"),
    Shape("basic", rf"(?i:{_ALONE}basic)\s{{1,4}}{_TOKEN}"),
    Shape(
        "-----begin",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----END)[^\"'{}]){0,16384}+"
        r"(?:-----END [A-Z ]{0,40}-----)?",
    ),
    # user:password@, or a token in its place. A port and path are no password; the host stays.
    Shape(
        "://", r"(?<=://)((?!\[redacted\])[^\s:/@]{0,256}:(?![0-9]{1,5}/)[^\s\"'<>]{1,256})(?=@)"
    ),
    Shape("://", r"(?<=://)([^\s:/@\"'<>]{16,512})(?=@)"),
    Shape(
        "curl",
        r"(?:(?<![\w-])-[A-Za-z]{0,8}u[ =]?|--user[ =])[\"']?([^\s\"':]{1,128}:[^\s\"']{1,256})",
    ),
    Shape("mysql", r"\bmysql\w*\s[^\n]{0,200}?\s-p([^\s\"'-][^\s\"']{3,256})"),
    Shape("sshpass", r"\bsshpass\s+-p\s?[\"']?([^\s\"']{4,256})"),
    Shape("redis-cli", r"\bredis-cli\s[^\n]{0,200}?-a\s+[\"']?([^\s\"']{4,256})"),
    Shape(
        "pass", r"(?i)\bpass(?:word|wd|phrase|code)(?: is| was)?:? ([^\s\"'<>]{6,256})", random=True
    ),
    Shape("--", rf"(?<!\S)--{_FLAG_NAMES}[ =][\"']?((?!-)[^\s\"']{{4,4096}})"),
    Shape(
        "type", r"(?i)<input\b(?=[^<>]{0,200}\bpassword\b)[^<>]{0,200}\bvalue=[\"']([^\"']{1,512})"
    ),
)
"""Places of credentials: after a scheme, in an address, in a command."""

ASSIGNED = Pattern(
    r"(?<![\w.-])((?:(?i:access|account|api|auth|card|encryption|master|private|refresh|secret|signing) )?"
    r"[\w.-]{1,64})[\\\"']{0,4}\s{0,4}(?:=>|:=|=(?!=)|:(?!:))\s{0,4}"
)
"""A name of one word or two, up to where its value begins."""

PAIR = Pattern(
    r"[(\[]\s{0,4}b?\\{0,3}[\"']([\w.-]{1,64})\\{0,3}[\"'],\s{0,4}b?\\{0,3}[\"']([^\"'\\\r\n]{1,4096})"
)
"""A name and a value as a list or tuple of two, the form of headers in clients' messages."""

ELEMENT = Pattern(r"<([\w:.-]{1,64})(?:\s[^<>]{0,200})?>([^<>]{1,4096})</")
"""An element of XML or HTML, and its text."""

QUERY = Pattern(r"[?&;#]([^=&\s?#\"'<>]{1,64})=([^&\s#\"'<>]{1,4096})")
"""A parameter in an address."""

_QUOTED = r"\"((?:[^\"\\]|\\.){1,4096}+)|'((?:[^'\\]|\\.){1,4096}+)|\\{1,3}[\"']([^\"'\\]{1,4096})"
_SCHEME = r"(?i:basic|bearer|digest|token|negotiate|ntlm|hmac|apikey|aws4[a-z0-9-]{0,24})"
_UNQUOTED = r"([^\s\"',;&\\]{4,4096})"

VALUE = Pattern(rf"{_QUOTED}|[\"']?{_UNQUOTED}")
HEADER = Pattern(rf"{_QUOTED}|({_SCHEME}\s[^\"'\r\n\\]{{3,4096}})|{_UNQUOTED}")
COOKIES = Pattern(rf"{_QUOTED}|([^\s\"'=;\\]{{1,128}}=[^\"'\r\n\\]{{1,4096}})")
"""The value after a name: quoted, even as JSON inside JSON, or up to the next separator."""

UNQUOTED_GROUPS = (4, 5)
"""The groups of these patterns that match a value without quotes."""

_NAMES = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "pass", "apikey", "xapikey", "secret",
    "secrets", "credential", "credentials", "privatekey", "xauthkey", "otp", "totp", "mfacode", "cvv",
    "cvc", "cardcvc", "cardnumber", "creditcard", "creditcardnumber", "iban",
})  # fmt: skip
_LOOSE_NAMES = frozenset({
    "token", "session", "sessionid", "sessionkey", "sessiontoken", "cookie", "cookies", "setcookie",
    "authorization", "proxyauthorization",
})  # fmt: skip
"""Also everyday words: a value under one of them is a secret only if it looks like one."""
_ENDINGS = (
    "password", "passwd", "passphrase", "pwd", "apikey", "accesskey", "accountkey", "privatekey",
    "secretkey", "signingkey", "encryptionkey", "masterkey", "clientsecret", "secret", "credentials",
    "sharedaccesssignature", "authorization", "token", "jwt",
)  # fmt: skip
_NO_SECRETS = (
    "pagetoken", "nexttoken", "continuationtoken", "synctoken", "cursortoken", "eostoken", "bostoken",
    "padtoken", "unktoken", "septoken", "clstoken", "masktoken", "stoptoken", "starttoken",
    "endtoken", "maxtoken", "pertoken", "lasttoken", "firsttoken", "unexpectedtoken",
    "publickeytoken", "nosecret", "nopassword", "notoken",
)  # fmt: skip
PARTS_OF_NAMES = (
    "pass", "pwd", "key", "secret", "token", "auth", "cookie", "session", "credential", "otp", "mfa",
    "cvv", "cvc", "card", "iban", "jwt", "sig", "access",
)  # fmt: skip
"""Every name of a secret contains one of these, so a text without them names no secret."""
_IN_ADDRESSES = frozenset({
    "key", "sig", "signature", "auth", "accesscode", "sharedkey", "xamzsignature", "xamzcredential",
    "xgoogsignature", "xgoogcredential",
})  # fmt: skip
_STATES = frozenset({
    "absent", "accepted", "active", "bad", "blank", "boolean", "bytes", "cached", "changed",
    "configured", "correct", "default", "denied", "disabled", "documented", "empty", "enabled",
    "encrypted", "error", "expected", "expires", "expired", "failed", "false", "found", "generated",
    "given", "granted", "hash", "hashed", "hidden", "incorrect", "int", "integer", "invalid", "leave",
    "length", "locked", "loaded", "malformed", "mandatory", "masked", "match", "mismatch", "missing",
    "must", "needed", "new", "nil", "none", "null", "number", "object", "ok", "omitted", "optional",
    "pending", "present", "prompt", "provided", "random", "redacted", "refused", "rejected",
    "removed", "renewed", "required", "reset", "revoked", "rotated", "secret", "secretstr", "see",
    "sent", "set", "str", "string", "text", "too", "true", "unchanged", "undefined", "unknown",
    "unset", "unsigned", "unused", "updated", "valid", "verified", "weak", "wrong", "yes", "no",
})  # fmt: skip
"""Words about a secret or its type in place of its value."""

_PLACEHOLDER = Pattern(
    r"\$(?:[A-Za-z_]+|[{(].*|_[A-Z]+\[.*)"  # $TOKEN, ${TOKEN}, $(cat token), $_POST[
    r"|[{<%(]+[A-Za-z_. -]*[)}>s]*"  # {token}, {{ token }}, <token>, %(token)s
    r"|[*x.•_-]+"
    r"|[A-Z]{2,12}|[A-Z]{2,}(?:_[A-Z]+)+"  # TOKEN, YOUR_API_KEY
    r"|(?i:your[-_ ]?|changeme|(?:my|the|some|example|dummy|change|replace|insert)[-_ ])[A-Za-z_ -]*",
    re.DOTALL,
)
_MASKED = Pattern(r"\*{3}|\.{3}|…|•{3}")  # sk-...
_CODE = Pattern(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+|[A-Za-z_.]+[(\[].*", re.DOTALL)
_REMARK = Pattern(
    r"[A-Za-z' -]*\b(?:be|is|isn't|was|must|has|have|not|can't|cannot|should|too|needs|does|doesn't)\b"
    r"[\w ',.()-]*"
)
_WORD_OF_PROSE = Pattern(r"\(?[A-Za-z][a-z'-]*[.,;!?)]?")
_PROSE_GOES_ON = Pattern(r"\s[A-Za-z]{1,20}[\s.,;!?)]|\s\d{1,4}\s[a-z]")
_UUID = Pattern(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PARTS = Pattern(r"[A-Za-z0-9+]+")
_WORD_AND_NUMBER = Pattern(
    r"[A-Za-z]?[a-z]{2,}\d{0,4}|[A-Z]{2,}\d{0,4}|\d{1,11}[a-z]{0,2}|[A-Za-z]\d{0,2}"
)
_HUMP = Pattern(r"[A-Z]?[a-z]+|[A-Z]+")
_LONGEST_NAME = 128
_LONGEST_WORD = 24
_LONGEST_PART = 16
_MOST_JUDGED = 256
_SHORTEST_HUMP = 2.5
_SHORTEST_MIXED = 12
_SHORTEST_RANDOM = 5

MARKS = (*PARTS_OF_NAMES, *dict.fromkeys(shape.mark for shape in PLACES))
"""Every text with a secret known by its place or name contains one of these."""

compiled = cache(re.compile)


@lru_cache(maxsize=4096)
def bare(name: str) -> str:
    """Drop case and separators from a name: `X-Api-Key` and `xApiKey` become `xapikey`."""
    return "".join(filter(str.isalnum, name[-_LONGEST_NAME:].lower()))


@lru_cache(maxsize=4096)
def names_a_secret(name: str) -> bool:
    """Whether this is a usual name for a secret."""
    plain = bare(name)
    if plain in _NAMES or plain in _LOOSE_NAMES or name.lower().endswith(("_pass", "-pass")):
        return True
    return plain.endswith(_ENDINGS) and not plain.endswith(_NO_SECRETS)


def names_a_secret_parameter(name: str) -> bool:
    """As `names_a_secret`, for a parameter in the query of a URL."""
    return bare(name) in _IN_ADDRESSES or names_a_secret(name)


def names_a_secret_variable(name: str) -> bool:
    """As `names_a_secret`, for an environment variable."""
    plain = bare(name)
    if plain.endswith(_NO_SECRETS):
        return False
    if name.lower().endswith(("_pass", "_pat")):  # as in DB_PASS and GITHUB_PAT
        return True
    return plain in _NAMES or plain.endswith((*_ENDINGS, "key", "auth", "dsn", "connectionstring"))


def counts(name: str) -> bool:
    """Whether a number under this name is a count or an id rather than a secret."""
    return bare(name) in _LOOSE_NAMES or bare(name) == "pass"


def value_pattern(name: str) -> Pattern:
    """Return the pattern that matches the value of this name in a text."""
    plain = bare(name)
    if plain.endswith("authorization"):
        return HEADER
    return COOKIES if plain.endswith("cookie") else VALUE


def is_secret(name: str, value: str) -> bool:
    """Whether the value under a secret's name is a secret.

    An empty value, a placeholder and a remark about the secret (`required`) are none. Under an everyday
    word (`session`, `cookie`) the value must look like a credential.
    """
    value = value[:_MOST_JUDGED].strip()
    plain = value.rstrip(".,;:!?)")
    if not any(map(str.isalnum, value)) or value.startswith(HIDDEN):
        return False
    if plain.lower() in _STATES or _PLACEHOLDER.fullmatch(value):
        return False
    if _MASKED.search(value) and not looks_random(value):
        return False
    if bare(plain) == bare(name.rpartition(".")[2]) or (" " in plain and _REMARK.fullmatch(plain)):
        return False
    if bare(name) == "pwd" and re.fullmatch(r"(?:[A-Za-z]:|~)?[/\\][\w./\\ -]*", plain):
        return False  # the working directory
    return bare(name) not in _LOOSE_NAMES or looks_random(plain)


def is_secret_in_text(name: str, value: str, rest: str) -> bool:
    """As `is_secret`, for a value without quotes. rest: the text that follows.

    Such a value may also be code that reads the secret (`settings.api_key`), or the first word of a
    sentence.
    """
    value = value[:_MOST_JUDGED].rstrip(")]};,")
    if _CODE.fullmatch(value):
        return False
    if _WORD_OF_PROSE.fullmatch(value) and (value[0] == "(" or _PROSE_GOES_ON.match(rest)):
        return False
    return is_secret(name, value)


def is_no_phrase(text: str) -> bool:
    """Whether a text is more than words and numbers joined by punctuation."""
    return looks_random(text) or any(len(part) >= _LONGEST_PART for part in _PARTS.findall(text))


def looks_random(text: str) -> bool:
    """Whether part of the text is neither word, number nor id: `kX3-9vQ2m`, not `spring-2026`."""
    if _UUID.fullmatch(text):
        return False
    return any(map(_is_random, _PARTS.findall(text[:_MOST_JUDGED])))


def _is_random(part: str) -> bool:
    if part.isalpha():
        humps = len(_HUMP.findall(part))
        return len(part) > _LONGEST_WORD or (
            len(part) >= _SHORTEST_MIXED and len(part) / max(humps, 1) < _SHORTEST_HUMP
        )
    return len(part) >= _SHORTEST_RANDOM and not _WORD_AND_NUMBER.fullmatch(part)
