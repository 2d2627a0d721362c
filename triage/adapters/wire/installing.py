"""Standing where requests leave: libraries are patched when they are imported, and never imported by us."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import Lock
from types import ModuleType
from typing import Any

from triage.adapters.base import replace_method
from triage.core import child_logger

from .httpx_clients import sends_of

__all__ = ["install"]

OFF = "TRIAGE_SEAM"
"""Environment variable that leaves all libraries as they are, where it is `off`."""
_log = child_logger("adapters")
_installing = Lock()
_installed = False


def _httpx(library: Any) -> None:
    sends = sends_of(library)
    replace_method(library.AsyncClient, "send", sends.asynchronous)
    replace_method(library.Client, "send", sends.synchronous)


_PATCHES: Mapping[str, Callable[[Any], None]] = {"httpx": _httpx, "httpx2": _httpx}
"""What is done to a library, by the name of its module."""


def install() -> None:
    """See all requests to models from now on, of libraries that are imported and those that will be.

    Does nothing a second time, and nothing where the environment says `TRIAGE_SEAM=off`.
    """
    global _installed
    if os.environ.get(OFF, "").strip().lower() == "off":
        return
    with _installing:
        if _installed:
            return
        _installed = True
        sys.meta_path.insert(0, _Finder())
    for name in _PATCHES:
        if name in sys.modules:
            _patch(sys.modules[name])


def _patch(module: ModuleType) -> None:
    """Patch a library; one of a form that is not known stays as it is."""
    try:
        _PATCHES[module.__name__](module)
    except Exception:
        _log.warning("%s cannot be seen on the wire", module.__name__, exc_info=True)


class _Finder(MetaPathFinder):
    """Finds the libraries where they would be found, and has them patched once they are loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _patch(module)
