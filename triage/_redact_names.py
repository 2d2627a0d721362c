"""Which names say that what stands under them is a secret."""

from __future__ import annotations

from functools import lru_cache

HIDDEN = "[redacted]"
"""What stands in place of a secret."""

NAMES = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "pass", "apikey", "xapikey", "authorization",
    "proxyauthorization", "cookie", "cookies", "setcookie", "token", "secret", "secrets", "credential",
    "credentials", "privatekey", "session", "sessionid", "sessionkey", "xauthkey", "otp", "totp",
    "mfacode", "cvv", "cvc", "cardcvc", "cardnumber", "creditcard", "creditcardnumber", "iban",
})  # fmt: skip
"""Names as they are, without case and separators."""

_ENDINGS = (
    "password", "passwd", "passphrase", "pwd", "apikey", "accesskey", "accountkey", "privatekey",
    "secretkey", "signingkey", "encryptionkey", "masterkey", "clientsecret", "secret", "credentials",
    "sharedaccesssignature", "authorization", "token", "jwt",
)  # fmt: skip
"""Names may end so: `OPENAI_API_KEY`, `db_password`."""

_NO_SECRETS = (
    "pagetoken", "nexttoken", "continuationtoken", "synctoken", "cursortoken", "eostoken", "bostoken",
    "padtoken", "unktoken", "septoken", "clstoken", "masktoken", "stoptoken", "starttoken", "endtoken",
    "maxtoken", "pertoken", "lasttoken", "firsttoken", "unexpectedtoken", "publickeytoken",
)  # fmt: skip
"""What ends in `token` and is none that lets anybody in."""

_IN_ADDRESSES = frozenset({
    "key", "sig", "signature", "auth", "accesscode", "sharedkey", "xamzsignature", "xamzcredential",
    "xgoogsignature", "xgoogcredential",
})  # fmt: skip
"""Further names of secrets in the query of a URL."""

COUNTS = frozenset({"pass", "token", "session"})
"""Under these a number is a count or an id, and no secret."""

_LONGEST = 128


def bare(name: str) -> str:
    """A name without case and separators: `X-Api-Key` and `xApiKey` are `xapikey`."""
    return "".join(filter(str.isalnum, name[-_LONGEST:].lower()))


@lru_cache(maxsize=1024)
def names_a_secret(name: str, *, in_address: bool = False) -> bool:
    """Whether what stands under this name is a secret, by the names that are usual."""
    plain = bare(name)
    if plain in NAMES or (in_address and plain in _IN_ADDRESSES):
        return True
    return plain.endswith(_ENDINGS) and not plain.endswith(_NO_SECRETS)


def holds_a_secret(variable: str) -> bool:
    """Whether an environment variable of this name holds one."""
    plain = bare(variable)
    if plain.endswith(_NO_SECRETS):
        return False
    return plain in NAMES or plain.endswith((*_ENDINGS, "key", "auth", "dsn", "connectionstring"))
