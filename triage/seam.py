"""Where requests leave the process: HTTP libraries are patched when they are imported.

None of them is imported by us. What a request says is read by `triage.adapters.wire`, which is imported
for the first request of a run. A request outside of a run goes straight on.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple

from anyio import to_thread

from triage.engine.run import open_attempts
from triage.engine.threads import carry

__all__ = ["install", "is_off"]

VARIABLE = "TRIAGE_SEAM"
"""The environment variable that leaves all libraries as they are, where it is `off`."""
_log = logging.getLogger("triage.adapters")
_lock = Lock()


class _Method(NamedTuple):
    """A method of a library through which its requests pass. reader: module that makes the new one."""

    owner: str
    name: str
    reader: str


_HTTPX = (
    _Method("AsyncClient", "send", "httpx_clients"),
    _Method("Client", "send", "httpx_clients"),
)
_BOTOCORE = tuple(
    _Method("Endpoint", name, "botocore_clients")
    for name in ("make_request", "_needs_retry", "_send")
)
_LIBRARIES: Mapping[str, tuple[_Method, ...]] = {
    "aiohttp": (_Method("ClientSession", "_request", "aiohttp_clients"),),
    "botocore.endpoint": _BOTOCORE,
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
}
"""The methods that are patched, by the module that has their classes."""


def is_off() -> bool:
    """Whether the environment says that no library is to be patched."""
    return os.environ.get(VARIABLE, "").strip().lower() == "off"


def install(current: ContextVar[Any]) -> None:
    """See the requests of runs from now on, of libraries that are imported and of those that will be.

    current: holds the attempt that the calling code is part of, None outside of any. Does nothing where the
    environment says `TRIAGE_SEAM=off`. A second time it patches again what somebody else has replaced
    since: a cassette, say, puts back at its end what it found when it was imported.
    """
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        with _lock:
            finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
            if is_off():
                return
            if finder is None:
                finder = _Finder(current)
                sys.meta_path.insert(0, finder)
        carry()
    for name in _LIBRARIES:
        library = sys.modules.get(name)
        if library is not None:
            finder.patch(library)


class _Finder(MetaPathFinder):
    """Finds the libraries where they would be found, and has them patched once they are loaded."""

    def __init__(self, current: ContextVar[Any]) -> None:
        self._current = current
        self._missing: set[tuple[ModuleType, _Method]] = set()
        self._finding: ContextVar[bool] = ContextVar("triage_finding", default=False)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _LIBRARIES or self._finding.get():
            return None
        token = self._finding.set(True)
        try:
            spec = find_spec(name)
        finally:
            self._finding.reset(token)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader, self.patch)
        return spec

    def patch(self, library: ModuleType) -> None:
        """Patch a library; one whose classes are others than those known stays as it is."""
        if getattr(library.__spec__, "_initializing", False):  # it is patched when it is loaded
            return
        for method in _LIBRARIES[library.__name__]:
            owner = getattr(library, method.owner, None)
            original = getattr(owner, method.name, None)
            # Wrappers of others take the attributes of what they wrap.
            if original is not None and getattr(original, "triage_seam", None) is original:
                continue
            if original is None:
                if (library, method) not in self._missing:
                    self._missing.add((library, method))
                    _log.warning(
                        "%s has no %s.%s: requests through it are not seen; see TRIAGE_SEAM",
                        library.__name__, method.owner, method.name,
                    )  # fmt: skip
                continue
            made = _seen(
                original, self._current, functools.partial(_reader, library, method, original)
            )
            made.triage_seam = made
            setattr(owner, method.name, made)


def _reader(library: ModuleType, method: _Method, original: Any) -> Any:
    reading = import_module(f"triage.adapters.wire.{method.reader}")
    return reading.recording(library, method.name, original)


def _seen(original: Any, current: ContextVar[Any], make: Callable[[], Any]) -> Any:
    """The method in place of the original one. make: the one that records, made when it is first needed."""
    made: list[Any] = []

    def ready() -> Any:
        try:
            return make()
        except Exception:
            _log.exception("requests through %s are not seen", original.__qualname__)
            return original

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            if current.get() is None and not open_attempts:
                return await original(*args, **kwargs)
            if not made:  # files are read for it, which an event loop is not to wait for
                made.append(await to_thread.run_sync(ready))
            return await made[0](*args, **kwargs)

        return asynchronous

    @functools.wraps(original)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        if current.get() is None and not open_attempts:
            return original(*args, **kwargs)
        if not made:
            made.append(ready())
        return made[0](*args, **kwargs)

    return synchronous


class _Patching(Loader):
    """Loads a module as its own loader does, and patches it then."""

    def __init__(self, loader: Any, patch: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """As its own loader does; then its methods are replaced."""
        self._loader.exec_module(module)
        self._patch(module)
