"""Write events as JSON and read them back, for stores, golden files and other programs.

An event is an object with `"event"`, the name of its type, and its fields by name. A field that has its
default is left out; fields in seconds end in `_s`; `"v"` is always present. A reader ignores unknown
fields and refuses a version newer than its own. Secrets are hidden; with a key (`Keyring`), the encrypted
original is kept beside the event.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache, cached_property, lru_cache
from operator import is_
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec.structs import FieldInfo, replace

from . import taxonomy
from .errors import StoreCorrupt, StoreError, StoreKeyMissing, StoreTooNew, UsageError, misuse
from .events import (
    CallFinished,
    Event,
    Recorded,
    RunFinished,
    RunStarted,
    StateUpdated,
    StepRecorded,
)
from .json_values import plain, refuse_constant
from .patterns import Pattern
from .redaction import Redactor
from .steps import Usage

EVENTS: dict[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}
"""Every event type by its name on the wire."""

V = TypeVar("V", bound=msgspec.Struct)
_encoder = msgspec.json.Encoder(enc_hook=plain)
_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@cache
def _decoder() -> msgspec.json.Decoder[Event]:
    return msgspec.json.Decoder(Event)


@cache
def _newest(cls: type[Event]) -> int:
    """Return the newest version of an event type that this release reads; it writes the same."""
    (field,) = (field for field in _fields(cls) if field.name == "v")
    return int(field.default_factory())


@lru_cache(maxsize=256)
def _fields(cls: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a struct, cached since msgspec evaluates all annotations each time."""
    return msgspec.structs.fields(cls)


# Out ----------------------------------------------------------------------------------------------


def dump(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object. Never fails: `plain` marks values without a JSON form."""
    data: dict[str, Any] = to_json(event)
    return data


def dumps(event: Event) -> str:
    """Return the object of `dump` as one line of JSON, in ASCII, without a line break."""
    # A step holds JSON values already; other events may hold anything.
    value = event if isinstance(event, StepRecorded) else dump(event)
    try:
        line = _encoder.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode
        return _json(dump(event))
    if line.isascii() and b"\x7f" not in line:
        return line.decode()
    return _json(dump(event))


def to_json(value: Any) -> Any:
    """Return a struct, enum or tuple as JSON values, without fields that have their defaults."""
    kind = type(value)
    if issubclass(kind, Enum):
        return value.value
    if issubclass(kind, tuple):
        return [to_json(item) for item in value]
    if not issubclass(kind, msgspec.Struct):
        return plain(value)
    record: msgspec.Struct = value
    config = record.__struct_config__
    data: dict[str, Any] = {} if config.tag_field is None else {config.tag_field: config.tag}
    for field in _fields(type(record)):
        item = getattr(record, field.name)
        default = {} if field.default_factory is dict else field.default
        if type(item) is not type(default) or item != default:
            data[field.encode_name] = to_json(item)
    return data


# In -----------------------------------------------------------------------------------------------


def loads(line: str) -> Event:
    """Read an event from one line of JSON. Raises StoreError naming the error."""
    try:
        event = _decoder().decode(line)
    except (ValueError, OverflowError, RecursionError):
        # The line may be a newer release's, or hold a lone surrogate, which only Python's reader accepts.
        event = None
    if event is not None and 1 <= event.v <= _newest(type(event)):
        return event
    try:
        data = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"an event must be one line of JSON: {error}") from None
    return load(data)


def load(data: Mapping[str, Any]) -> Event:
    """Read an event from a JSON object. Raises StoreError naming the error."""
    if not isinstance(data, Mapping):
        raise StoreError(f"an event must be a JSON object, not {type(data).__name__}")
    name = data.get("event")
    cls = EVENTS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise StoreError(f"unknown event {name!r}; this release knows {', '.join(EVENTS)}")
    version = data.get("v")
    if type(version) is not int or version < 1:
        raise StoreError(f"{name}.v must be a version from 1, not {version!r}")
    if version > _newest(cls):
        raise StoreTooNew(
            f"{name} has version {version}, this release reads up to {_newest(cls)}; "
            "read it with the release that wrote it or a newer one"
        )
    try:
        return from_json(cls, data, cls.__name__)
    except RecursionError:
        raise StoreError(f"{name} is nested too deeply to be read") from None


def from_json(cls: type[V], data: object, where: str) -> V:
    """Read the `cls` that `to_json` wrote as `data`. Raises StoreError naming `where` and the field."""
    if not isinstance(data, Mapping):
        raise StoreError(f"{where} must be a JSON object, not {type(data).__name__}")
    given: dict[str, Any] = dict(cast("Mapping[str, Any]", data))
    try:
        return msgspec.convert(given, cls)
    except (ValueError, OverflowError) as error:
        raise StoreError(_explained(str(error), given, where)) from None


_AT = Pattern(r"(?P<problem>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_TYPE = Pattern(r"Expected `(?P<wanted>[^`|]+)[^`]*`, got `(?P<found>[^`]+)`")
_MISSING = Pattern(r"Object missing required field `(?P<name>[^`]+)`")
_WORD = Pattern(r"Invalid enum value (?P<word>.*)", re.DOTALL)
_NO_TAG = ("Object missing required field `action`", "Invalid value ", "Expected `object`")
_NAMES = {"object": "dict", "array": "list", "null": "NoneType"}


def _explained(said: str, data: dict[str, Any], where: str) -> str:
    """Rephrase msgspec's message about a wrong value, with the place as a field name."""
    at = _AT.fullmatch(said)
    assert at is not None
    problem, path = at["problem"], at["path"] or ""
    place = where + path
    if path in (".action", ".action.action") and problem.startswith(_NO_TAG):
        action = data.get("action")
        kind = action.get("action") if isinstance(action, Mapping) else None
        return f"{where}.action is no action: {kind!r}"
    if (missing := _MISSING.fullmatch(problem)) is not None:
        return f"{place} has no {missing['name']}"
    if (word := _WORD.fullmatch(problem)) is not None:
        field = path.rpartition(".")[2].partition("[")[0]
        return f"{place} is no {_ENUMS.get(field, 'word of ours')}: {word['word']}"
    if (wrong := _TYPE.fullmatch(problem)) is not None:
        wanted = wrong["wanted"].strip()
        wanted = {"object": "a JSON object", "array": "a list"}.get(wanted, wanted)
        return f"{place} must be {wanted}, not {_NAMES.get(wrong['found'], wrong['found'])}"
    return f"{place} cannot be read: {problem}"


_ENUMS = {
    "failure_type": taxonomy.FailureType.__name__,
    "candidates": taxonomy.FailureType.__name__,
    "severity": taxonomy.Severity.__name__,
    "level": taxonomy.Level.__name__,
    "recovery": taxonomy.Recovery.__name__,
}


# Keeping the original of a redacted event, encrypted: `Keyring`.


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

    A sealed event is redacted and carries its original, encrypted with AES-256-GCM. The run's id and the
    event's position and type are authenticated too, so the original opens only in its own place.

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
    """Make the error for an event whose key is missing."""
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


# Hiding secrets before an event leaves the process, and restoring them: `redacted`, `unsealed`.


_AS_THEY_ARE = frozenset({
    "run_id", "seq", "time", "attempt", "v", "parent", "agent", "key", "idempotency_key", "token_digest",
    "subject", "call", "kind", "tool", "effect", "outcome", "status", "decision", "unstored",
    "type_name", "module", "mro", "phase", "relation", "failure_type", "severity", "level", "usage",
    "rule", "candidates", "run", "sealed", "origin", "policy",
})  # fmt: skip
"""Fields that the journal is read by: ids, digests, fixed words and names in code, never user data."""


def redacted(event: Event, redactor: Redactor, keys: Keyring | None = None) -> Event:
    """Replace the secrets in an event's user data; return the same object if there are none.

    keys: seal the original into a changed event; None drops the original.

    No reader may take the rest for the original: a changed result is not `exact`, and a changed argument
    or task is named in `unstored`.
    """
    changed = _changed(event, redactor)
    if not changed:
        return event
    if "result" in changed and isinstance(event, CallFinished | RunFinished):
        changed["exact"] = changed["typed"] = False
    if isinstance(event, RunStarted):
        changed = _unstored(event, changed)
    if isinstance(event, StateUpdated):
        clean = changed["values"]
        kept = {name: item for name, item in event.values.items() if clean.get(name, ...) == item}
        lost = [name for name in event.values if name not in kept]
        changed = {"values": kept, "unstored": (*event.unstored, *map(redactor.text, lost))}
    shown = replace(event, **changed)
    return shown if keys is None else keys.sealed(shown, dumps(event))


def unsealed(events: Iterable[Event], keys: Keyring | None) -> list[Event]:
    """Restore events as they were recorded. Raises StoreKeyMissing for an event without its key."""
    opened: list[Event] = []
    for event in events:
        if event.sealed:
            if keys is None:
                raise missing_key(event)
            event = loads(keys.opened(event))  # noqa: PLW2901 - the same event, whole
        opened.append(event)
    return opened


def _unstored(event: RunStarted, changed: dict[str, Any]) -> dict[str, Any]:
    """Add arguments that held secrets to `unstored`, since resuming the run needs them again."""
    names = list(event.unstored)
    if "task" in changed:
        names.insert(0, "task")
    clean = changed.get("args")
    if clean is not None:
        given = event.args
        changed["args"] = {name: item for name, item in clean.items() if given.get(name) == item}
        names += [name for name in given if name not in changed["args"]]
    return {**changed, "unstored": tuple(dict.fromkeys(names))}


def _changed(record: msgspec.Struct, redactor: Redactor) -> dict[str, Any]:
    """Return the redacted fields of an event, or of a value in an event, that held secrets."""
    # `code` is an agent's fingerprint in `RunStarted`, and a provider's answer in an error.
    kept = {*_AS_THEY_ARE, "code"} if isinstance(record, RunStarted) else _AS_THEY_ARE
    changed: dict[str, Any] = {}
    for name in record.__struct_fields__:
        if name not in kept:
            given = getattr(record, name)
            clean = _clean(given, redactor)
            if clean is not given:
                changed[name] = clean
    return changed


def _clean(given: Any, redactor: Redactor) -> Any:
    if given is None or type(given) is Usage or issubclass(type(given), Enum):
        return given
    if issubclass(type(given), msgspec.Struct):
        changed = _changed(given, redactor)
        return replace(given, **changed) if changed else given
    if type(given) is tuple and any(issubclass(type(item), msgspec.Struct) for item in given):
        clean = tuple(_clean(item, redactor) for item in given)
        return given if all(map(is_, clean, given)) else clean
    return redactor.value(given)[0]
