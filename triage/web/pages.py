"""What all pages share: templates and their filters, static files, the runs in paths and their places."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jinja2 import DictLoader, Environment, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from triage.core.errors import UnknownRun
from triage.core.escaping import escaped
from triage.core.events import Event
from triage.core.quoting import counted, json_text, moment, one_line, span
from triage.core.redaction import redact
from triage.core.wire import to_json
from triage.stores.base import RunInfo, Store

from .security import base_of

HERE = Path(__file__).parent
THEMES = ("light", "dark")
"""The themes a person can choose. Without a choice, the page follows the system."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_ESCAPED = re.compile(rb"~([0-9A-F]{2})|([A-Za-z0-9_.-])")
_MEDIA = {
    ".svg": "image/svg+xml",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
}


def slug(run_id: str) -> str:
    """Encode any run id as one segment of a path; `unslug` decodes it.

    ASCII letters, digits, `_`, `-` and dots after the first character stay; every other byte of the UTF-8
    becomes `~` and two hexadecimal digits. The result holds no `%`, so it survives servers that decode
    paths.
    """
    parts = [
        char
        if _PLAIN.match(char) or (char == "." and at)
        else "".join(f"~{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for at, char in enumerate(run_id)
    ]
    return "".join(parts)


def unslug(part: str) -> str | None:
    """Decode a run id that `slug` encoded; None for a text that `slug` never produces."""
    raw = part.encode("utf-8", "surrogatepass")
    found = [
        bytes.fromhex(match[1].decode()) if match[1] else match[2]
        for match in _ESCAPED.finditer(raw)
    ]
    try:
        run_id = b"".join(found).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return run_id if slug(run_id) == part else None


async def run_at(store: Store, part: str) -> RunInfo:
    """Return the run whose slug (see `slug`) is this part of a path. Raises UnknownRun."""
    run_id = unslug(part)
    info = None if run_id is None else await store.info(run_id)
    if info is None:
        raise UnknownRun(f"the store knows no run {one_line(run_id or part)}")
    return info


async def run_and_events(store: Store, part: str) -> tuple[RunInfo, list[Event]]:
    """Return the run of `run_at` and its events, both as of one moment. Raises UnknownRun.

    Events appended between the two reads are left out. With them, a page could say `running` below the
    event that ended the run, and its live updates would have nothing newer to tell.
    """
    info = await run_at(store, part)
    events = (await store.read(info.run_id))[: info.events]
    if not events:
        raise UnknownRun(f"the store knows no run {one_line(info.run_id)}")
    return info, events


class StaticFile(NamedTuple):
    """A static file. digest: part of its URL, so that browsers can cache the file forever."""

    body: bytes
    media_type: str
    digest: str


def static_files() -> dict[str, StaticFile]:
    found: dict[str, StaticFile] = {}
    for path in sorted((HERE / "static").iterdir()):
        if path.suffix in _MEDIA:
            body = path.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:12]
            found[path.name] = StaticFile(body, _MEDIA[path.suffix], digest)
    return found


def _templates() -> dict[str, str]:
    folder = HERE / "templates"
    files = sorted(folder.rglob("*.html"))
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in files}


class Pages:
    """Render pages from templates, escaping every value.

    files: the static files, by name. tabs: names and paths of the sections. All templates are read and
    compiled at once.
    """

    def __init__(self, files: Mapping[str, StaticFile], tabs: Sequence[tuple[str, str]]) -> None:
        self._environment = Environment(
            loader=DictLoader(_templates()),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        named = (slug, moment, span, counted, one_line, json_text, money, lines, shown)
        filters: dict[str, Any] = self._environment.filters
        filters.update({function.__name__: function for function in named})
        self._always: dict[str, Any] = {
            "tabs": tabs,
            "statics": {name: f"{file.digest}/{name}" for name, file in files.items()},
        }
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def text(self, request: Request, name: str, **values: Any) -> str:
        """Render a template. It also gets `request`, `base` (where the page is mounted), `now`, `theme`."""
        template = self._environment.get_template(name)
        theme = request.cookies.get("triage-theme")
        always = {
            "request": request,
            "base": base_of(request.scope),
            "now": time.time(),
            "theme": theme if theme in THEMES else "",
            **self._always,
        }
        return template.render({**always, **values})

    def render(self, request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self.text(request, name, **values), status)

    def problem(
        self, request: Request, status: int, title: str, text: str, remedies: Sequence[str] = ()
    ) -> Response:
        """Make a response that says what is wrong and what to do."""
        return self.render(
            request, "problem.html", status=status, title=title, text=text, remedies=remedies
        )


def money(dollars: float | None) -> str:
    """Format US dollars with two decimals, or four below $1; a dash for None (unknown)."""
    if dollars is None:
        return "—"
    return f"${dollars:.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.4f}"


def lines(text: str, longest: int) -> str:
    """Redact a text of several lines, escape invisible characters and cut it to `longest` characters."""
    text = escaped(redact(text), lines=True)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shown(value: Any) -> str:
    """Format a JSON value on several lines with its secrets redacted."""
    found = redact(to_json(value))
    text = found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False)
    return lines(text, 20_000)


# Fleets -------------------------------------------------------------------------------------------


@runtime_checkable
class Fleet(Protocol):
    """What the page needs of a `triage.adapters.fleet.Fleet`."""

    @property
    def store(self) -> Store:
        """Where the journals are."""
        ...

    async def places(self, run_ids: Sequence[str] | None = None) -> Sequence[Any]:
        """Return the `Place`s of these runs; None for every run that is delayed, queued or running."""
        ...


class Places:
    """Look up where runs are in a fleet. fleet: None for a store without one, whose runs have no places."""

    def __init__(self, fleet: Fleet | None) -> None:
        self._fleet = fleet

    async def of(self, run_ids: Sequence[str]) -> dict[str, Any]:
        """Return the `Place` of each of these runs that the fleet knows."""
        if self._fleet is None or not run_ids:
            return {}
        return {place.run_id: place for place in await self._fleet.places(run_ids)}
