"""Find clients that retry by themselves, warn once of each, and turn their retries off where possible.

No client library is imported. A retry inside a retry multiplies: three attempts of an agent with a
client that tries three times are nine requests.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

from triage.core.errors import misuse
from triage.core.observers import child_logger

C = TypeVar("C")

_DEEPEST = 3
_MOST_OBJECTS = 64
_OF_NOBODY = "triage_asks_for_an_attribute_that_no_client_has"
_MOST_SAID = 1_000
_INNER = (
    "client", "async_client", "root_client", "root_async_client", "_client", "_async_client",
    "provider", "model", "llm", "_model",
)  # fmt: skip
"""Attributes in which wrappers of models keep their client."""
_PLAIN = (str, bytes, int, float, bool, type(None), dict, list, tuple, set, frozenset)
_BOTO_DEFAULTS = {"standard": 2, "adaptive": 2}
"""Retries of botocore's modes, where none are set."""
_BOTO_LEGACY = 4
_log = child_logger("retries")
_said: set[tuple[str, int | None]] = set()
_lock = Lock()


class RetryLayer(NamedTuple):
    """Something that repeats requests by itself.

    where: its class, with the module. retries: how many, None if not known. remedy: how to turn it off.
    removable: True if `single_retry_layer` turns it off.
    """

    where: str
    retries: int | None
    remedy: str
    removable: bool = False

    def __str__(self) -> str:
        often = "by itself" if self.retries is None else f"up to {self.retries} times by itself"
        return f"{self.where} retries {often}; {self.remedy}"


def retry_layers(*objects: object) -> tuple[RetryLayer, ...]:
    """Find what retries by itself in these clients, models or transports, outermost first.

    Recognises clients of OpenAI and Anthropic and those built like them, httpx clients and transports,
    requests sessions, botocore clients, google-genai clients, and wrappers that hold one of these.
    Nothing else is found, and only attributes are read.
    """
    found: list[RetryLayer] = []
    for layer in _walk(objects):
        if layer not in found:
            found.append(layer)
    return tuple(found)


def single_retry_layer(client: C) -> C:
    """Return the client with its own retries off, so that only triage retries.

    A client of OpenAI or Anthropic is copied with `max_retries=0`; the copy shares connections with the
    original, which stays unchanged. An httpx client or transport cannot be copied, so its connection
    retries are turned off in place. Anything else that retries is logged to `triage.retries`, with the
    remedy. A client that does not retry is returned unchanged. Raises UsageError for a value that is no
    client, such as text or None.
    """
    if isinstance(client, (*_PLAIN, type)):
        raise misuse("single_retry_layer() client", client, "a client, as it is used for requests")
    single: Any = client
    if _retries_of_sdk(client):
        single = cast("Any", client).with_options(max_retries=0)
    for held in (single, _attribute(single, "_client")):
        for pool in _pools(held):
            pool._retries = 0  # httpx has no other way
    warn_of_retries(single)
    return cast("C", single)


def warn_of_retries(*objects: object) -> None:
    """Log what retries by itself among these, each kind once per process."""
    for layer in retry_layers(*objects):
        key = (layer.where, layer.retries)
        with _lock:
            new = key not in _said and len(_said) < _MOST_SAID
            if new:
                _said.add(key)
        if new:
            _log.warning("%s. Each retry of triage's is multiplied by these.", layer)


def warn_of_retries_in(function: Callable[..., Any], values: Iterable[object]) -> None:
    """As `warn_of_retries`, for what a function can reach and for its arguments; once for each function."""
    try:
        if function in _looked_at:
            return
        _looked_at.add(function)
    except TypeError:  # it has no hash, or cannot be referred to weakly
        return
    warn_of_retries(*values, *_reached(function))


_looked_at: WeakSet[Callable[..., Any]] = WeakSet()


def _reached(function: Any) -> Iterator[object]:
    """Yield what a function holds: its instance, closure, defaults, and the globals it names."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        yield from function.args
        yield from function.keywords.values()
        function = function.func
    if inspect.ismethod(function):
        yield from (
            vars(function.__self__).values() if hasattr(function.__self__, "__dict__") else ()
        )
        function = function.__func__
    if not inspect.isfunction(function):
        return
    yield from (cell.cell_contents for cell in function.__closure__ or () if _filled(cell))
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    names = function.__code__.co_names
    found = (function.__globals__.get(name) for name in names)
    # By the real class: a value may refuse to be asked for its `__class__`.
    yield from (value for value in found if not issubclass(type(value), ModuleType | FunctionType))


def _filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked for: an empty one raises
    except ValueError:
        return False
    return True


def _walk(objects: Iterable[object]) -> Iterator[RetryLayer]:
    waiting = [(value, _DEEPEST) for value in objects]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        value, deep = waiting.pop(0)
        if issubclass(type(value), (*_PLAIN, type)) or id(value) in seen:
            continue
        seen.add(id(value))
        if _attribute(value, _OF_NOBODY) is not None:
            continue  # a mock: it has every attribute, and makes each of them when it is asked
        yield from _layers_of(value)
        if deep:
            inner = (_attribute(value, name) for name in _INNER)
            waiting += [(held, deep - 1) for held in inner if held is not None]


def _layers_of(value: object) -> Iterator[RetryLayer]:
    where = f"{type(value).__module__}.{type(value).__qualname__}"
    sdk = _retries_of_sdk(value)
    if sdk:
        remedy = "use triage.strategies.single_retry_layer(client), or make it with max_retries=0"
        yield RetryLayer(where, sdk, remedy, removable=True)
    elif sdk is None and _count(_attribute(value, "max_retries")):
        yield RetryLayer(
            where, _count(_attribute(value, "max_retries")), "make it with max_retries=0"
        )
    for pool in _pools(value):
        if pool._retries:  # httpx has no other way
            remedy = (
                "use triage.strategies.single_retry_layer(client), or make its transport with "
                "retries=0"
            )
            yield RetryLayer(where, pool._retries, remedy, removable=True)
    for transport in _transports(value):
        total = _count(_attribute(_attribute(transport, "retry"), "total"))
        if total:
            yield RetryLayer(where, total, "make it without a transport that retries")
    yield from _requests(value, where)
    yield from _botocore(value, where)
    yield from _google(value, where)


def _retries_of_sdk(value: object) -> int | None:
    """Return `max_retries` of a client that can be copied with other options; None for others."""
    if not callable(_attribute(value, "with_options")):
        return None
    return _count(_attribute(value, "max_retries"))


def _pools(value: object) -> list[Any]:
    """Return the connection pools of an httpx client or transport."""
    pools = (_attribute(transport, "_pool") for transport in _transports(value))
    return [pool for pool in pools if _count(_attribute(pool, "_retries")) is not None]


def _transports(value: object) -> list[object]:
    """Return the transports of an httpx client, mounted ones too, or a transport and what it wraps."""
    found: list[object] = [value]
    mounts = _attribute(value, "_mounts")
    if isinstance(mounts, dict):
        found += list(cast("dict[object, object]", mounts).values())[:_MOST_OBJECTS]
    for holder in list(found):
        held = _attribute(holder, "_transport")
        while held is not None and len(found) < _MOST_OBJECTS:
            found.append(held)
            held = _attribute(held, "_wrapped_transport") or _attribute(held, "_transport")
    return found


def _requests(value: object, where: str) -> Iterator[RetryLayer]:
    adapters = _attribute(value, "adapters")
    if isinstance(adapters, dict) and callable(_attribute(value, "mount")):
        for adapter in list(cast("dict[object, object]", adapters).values())[:_MOST_OBJECTS]:
            total = _count(_attribute(_attribute(adapter, "max_retries"), "total"))
            if total:
                yield RetryLayer(where, total, "mount an HTTPAdapter(max_retries=0)")


def _botocore(value: object, where: str) -> Iterator[RetryLayer]:
    config = _attribute(_attribute(value, "meta"), "config")
    if config is None or _attribute(_attribute(value, "meta"), "service_model") is None:
        return
    given = _attribute(config, "retries")
    if given is not None and not isinstance(given, dict):
        return
    retries = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    total = _count(retries.get("total_max_attempts"))
    more = _count(retries.get("max_attempts"))
    often = _BOTO_DEFAULTS.get(str(retries.get("mode")), _BOTO_LEGACY)
    if total:
        often = total - 1
    elif more is not None:
        often = more
    if often > 0:
        yield RetryLayer(where, often, 'make it with Config(retries={"total_max_attempts": 1})')


def _google(value: object, where: str) -> Iterator[RetryLayer]:
    options = _attribute(_attribute(value, "_api_client"), "_http_options")
    attempts = _count(_attribute(_attribute(options, "retry_options"), "attempts"))
    if attempts is not None and attempts > 1:
        remedy = "make it with HttpRetryOptions(attempts=1)"
        yield RetryLayer(where, attempts - 1, remedy)


def _count(value: object) -> int | None:
    """Return a number of retries; None for anything else, such as an attribute of a mock."""
    return value if type(value) is int and value >= 0 else None


def _attribute(value: object, name: str) -> Any:
    """Return an attribute, None if there is none or reading it raises."""
    if value is None:
        return None
    try:
        return getattr(value, name, None)
    except Exception:
        return None
