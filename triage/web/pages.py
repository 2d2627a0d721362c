"""How a page is made: the templates, the addresses of runs, and what is said when something is wrong."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import DictLoader, Environment, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from triage.core import (
    Redactor,
    counted,
    escaped,
    json_text,
    moment,
    one_line,
    redact,
    span,
    to_json,
)

HERE = Path(__file__).parent
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_ESCAPED = re.compile(rb"~([0-9A-F]{2})|([A-Za-z0-9_.-])")
_MEDIA = {
    ".svg": "image/svg+xml",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
}


def slug(run_id: str) -> str:
    """Write a run's id as one part of a path, whatever characters it has; `unslug` reads it.

    Letters, digits, `_` and `-` stay, and dots inside; every other byte of its UTF-8 is `~` and two
    digits. A server that decodes the path cannot change its meaning.
    """
    parts = [
        char
        if _PLAIN.match(char) or (char == "." and at)
        else "".join(f"~{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for at, char in enumerate(run_id)
    ]
    return "".join(parts)


def unslug(part: str) -> str | None:
    """Read the run's id that `slug` wrote; None for what it never writes."""
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


class StaticFile(NamedTuple):
    """A file that pages name. digest: part of its address, so that a browser may keep it for good."""

    body: bytes
    media_type: str
    digest: str


def static_files() -> dict[str, StaticFile]:
    """Read the files that pages name, by name."""
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
    """Makes pages of templates. Every value is escaped; there is no way around that.

    title: the name on every page. tabs: names and paths of its sections. All templates are read when
    this is made.
    """

    def __init__(
        self, title: str, files: Mapping[str, StaticFile], tabs: Sequence[tuple[str, str]]
    ) -> None:
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
            "site": title,
            "statics": {name: f"{file.digest}/{name}" for name, file in files.items()},
        }
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def text(self, request: Request, name: str, **values: Any) -> str:
        """Fill a template in. It knows the request, `base` (where the page is mounted) and `now`."""
        template = self._environment.get_template(name)
        base = request.scope.get("root_path", "").rstrip("/")
        always = {"request": request, "base": base, "now": time.time(), **self._always}
        return template.render({**always, **values})

    def render(self, request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
        """Answer with a page."""
        return HTMLResponse(self.text(request, name, **values), status)

    def problem(
        self, request: Request, status: int, title: str, text: str, remedies: Sequence[str] = ()
    ) -> Response:
        """Answer with a page that says what is wrong and what to do."""
        return self.render(
            request,
            "problem.html",
            status=status,
            title=title,
            text=text,
            remedies=remedies,
        )


def money(dollars: float | None) -> str:
    """An amount in US dollars, with as many digits as it needs; a dash where it is not known."""
    if dollars is None:
        return "—"
    return f"${dollars:.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.4f}"


def lines(text: str, longest: int) -> str:
    """A text of several lines without secrets, cut; what cannot be seen is written as an escape."""
    text = escaped(redact(text), lines=True)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shown(value: Any) -> str:
    """A JSON value on several lines, without secrets."""
    found = Redactor().value(to_json(value))[0]
    text = found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False)
    return lines(text, 20_000)
