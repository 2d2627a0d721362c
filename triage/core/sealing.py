"""Keep what redaction removes from an event, encrypted: `Keyring`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeVar

from msgspec.structs import replace

from .errors import StoreCorrupt, StoreKeyMissing, UsageError, misuse
from .events import Recorded

__all__ = ["Keyring"]

E = TypeVar("E", bound=Recorded)

VARIABLE = "TRIAGE_KEY"
"""The environment variable with the keys, separated by commas, newest first."""
_KEY_BYTES = 32
_NONCE_BYTES = 12
_ID_LETTERS = 8
_WANTED = "32 bytes, or their 64 hexadecimal digits or base64"
_REMEDY = 'make one with python -c "import secrets; print(secrets.token_hex(32))"'


class Keyring:
    """The keys of sealed events, newest first: the first one seals, all of them open.

    A sealed event is a redacted one that carries its original, encrypted with AES-256-GCM. The run's id
    and the event's position and type are authenticated too, so it opens only in its own place.

    Needs the extra `encryption`. Raises UsageError for an invalid key.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = {hashlib.sha256(key).hexdigest()[:_ID_LETTERS]: key for key in keys}

    @classmethod
    def of(cls, given: object) -> Keyring | None:
        """Make the keyring of `Durability(key=…)`; for None that of `TRIAGE_KEY`, None if unset."""
        name = "Durability.key"
        if given is None:
            given = [part for part in os.environ.get(VARIABLE, "").split(",") if part.strip()]
            name = VARIABLE
            if not given:
                return None
        several = list(given) if isinstance(given, list | tuple) else [given]
        if not several:
            raise misuse(name, given, _WANTED, _REMEDY)
        return cls([_key(name, item) for item in several])

    @cached_property
    def _ciphers(self) -> dict[str, Any]:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise UsageError(
                'keys need the package cryptography: pip install "triage-recovery[encryption]"'
            ) from error
        return {key_id: AESGCM(key) for key_id, key in self._keys.items()}

    def sealed(self, shown: E, line: str) -> E:
        """Seal the original's line into the redacted event."""
        key_id, cipher = next(iter(self._ciphers.items()))
        nonce = os.urandom(_NONCE_BYTES)
        data = cipher.encrypt(nonce, line.encode(), _place(shown))
        return replace(shown, sealed=f"{key_id}.{base64.b64encode(nonce + data).decode()}")

    def opened(self, event: Recorded) -> str:
        """Decrypt the line of a sealed event's original.

        Raises StoreKeyMissing if its key is not on the ring, StoreCorrupt if the sealed data was changed
        or moved.
        """
        from cryptography.exceptions import InvalidTag

        key_id, _, coded = event.sealed.partition(".")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise missing_key(event)
        try:
            data = base64.b64decode(coded, validate=True)
            line = cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _place(event))
        except (InvalidTag, binascii.Error, ValueError) as error:
            raise StoreCorrupt(
                f"run {event.run_id} is damaged at position {event.seq}: what is encrypted there does "
                "not open"
            ) from error
        return bytes(line).decode()


def missing_key(event: Recorded) -> StoreKeyMissing:
    """Make the error for an event sealed with a key that was not given."""
    key_id = event.sealed.partition(".")[0]
    return StoreKeyMissing(
        f"run {event.run_id} holds values that are encrypted with key {key_id}, which is not given; add "
        f"it to Durability(key=[…]) or {VARIABLE}"
    )


def _place(event: Recorded) -> bytes:
    return f"{event.run_id}\n{event.seq}\n{type(event).__name__}".encode()


def _key(name: str, given: object) -> bytes:
    if isinstance(given, bytes) and len(given) == _KEY_BYTES:
        return given
    if isinstance(given, str):
        text = given.strip()
        for read in (bytes.fromhex, base64.b64decode, base64.urlsafe_b64decode):
            try:
                found = read(text)
            except ValueError:
                continue
            if len(found) == _KEY_BYTES:
                return found
    raise UsageError(f"{name} must be {_WANTED}, or several of them, newest first; {_REMEDY}")
