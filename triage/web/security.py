"""Access control of the page: hosts, origins, logins and roles, checked before anything else."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from html import escape
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triage.core.errors import UsageError, misuse
from triage.core.observers import logger
from triage.core.quoting import one_line


class Role(StrEnum):
    """What a person may do, each role including the one before.

    view: read all pages. answer: answer questions and handle incidents. admin: cancel, recover and fork.
    """

    VIEW = "view"
    ANSWER = "answer"
    ADMIN = "admin"

    def covers(self, other: Role) -> bool:
        """Return whether this role includes the other."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class Person(NamedTuple):
    """The person behind a request. name: as journals record it, 1 to 256 characters. role: their rights."""

    name: str
    role: Role


Who: TypeAlias = Callable[[HTTPConnection], Person | Awaitable[Person | None] | None]
"""Identifies the person behind a request that the host application let through; None refuses them."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MAX_FIELDS = 2_000
"""The most fields in a form."""
MAX_BODY = 1_048_576
"""The most bytes in a form."""
MAX_QUERY = 8_192
"""The most bytes in a query string."""
SHORTEST_TOKEN = 16
_MAX_NAME = 256
_TRIES, _TRIES_S = 20, 60.0
"""The most wrong tokens that are checked, and the seconds in which they count."""
_PERSON = "triage.person"
"""The key in the ASGI scope under which the guard stores the person."""

_OURS = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site of requests that a person or our own page makes."""
_PATH = re.compile(r"/?|(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~:-]*)+/?")
_HOST = re.compile(r"(?:(https?)://)?((?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?)")
_FORM = re.compile(r"application/x-www-form-urlencoded(?: *; *charset=\"?utf-8\"?)?", re.IGNORECASE)
_SINGLE = ("authorization", "host", "origin", "content-length", "content-type", "sec-fetch-site")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`, with which browsers send our own forms with `Origin: null`.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
"""The headers of every response that does not set its own."""


def person_of(request: HTTPConnection) -> Person:
    found: Person = request.scope[_PERSON]
    return found


def base_of(scope: Scope) -> str:
    """Return the path that the page is mounted under, empty for the root."""
    base: str = scope.get("root_path", "")
    return base.rstrip("/")


def need(request: HTTPConnection, role: Role) -> Person:
    """Return the person behind a request. Raises HTTPException (403) if they lack this role."""
    person = person_of(request)
    if not person.role.covers(role):
        raise HTTPException(403, f"this needs the role {role}, and {person.name} has {person.role}")
    return person


def check_hosts(hosts: Iterable[str]) -> None:
    """Raise UsageError for an invalid host name; see `Guard`."""
    for name in hosts:
        _host_of(name)


def check_bind(host: str, *, token: str | None, hosts: Iterable[str]) -> None:
    """Raise UsageError unless a server may listen on this address and answer to these names.

    A loopback address needs neither token nor names; any other address needs both.
    """
    check_hosts(hosts)
    if host == "localhost":
        return
    try:
        if ipaddress.ip_address(host.strip("[]")).is_loopback:
            return
    except ValueError:
        pass
    missing = [
        option
        for option, given in (("--token", token), ("--trusted-host", list(hosts)))
        if not given
    ]
    if missing:
        raise UsageError(
            f"--host {host} lets other machines in: give {' and '.join(missing)} as well, or leave --host "
            "out and reach this machine by ssh -L"
        )


# The login ------------------------------------------------------------------------------------------


class Login:
    """Log one person in by a token, and recognize them afterwards by a cookie.

    person: whoever logs in. token: at least 16 printable characters, valid for any number of logins; None
    makes a token that is valid for one login, after which `told` is called with the next. The cookie is
    derived from the first token, so browsers stay logged in when a restart uses the same token.

    Raises UsageError for a token that is too short or not printable.
    """

    def __init__(
        self,
        person: Person,
        *,
        token: str | None = None,
        told: Callable[[str], object] = lambda _token: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isprintable()):
            raise UsageError(
                f"a token must be at least {SHORTEST_TOKEN} printable characters; make one with "
                'python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        self.person = person
        self.token = secrets.token_urlsafe(32) if token is None else token
        self._once = token is None
        self.told = told
        self._clock = clock
        self._wrong: deque[float] = deque(maxlen=_TRIES)
        key = self.token.encode()
        self.cookie = hmac.new(key, b"triage: cookie of the page", hashlib.sha256).hexdigest()

    @property
    def is_closed(self) -> bool:
        """Whether too many wrong tokens were given in the last minute, so that no token is checked."""
        wrong = self._wrong
        return len(wrong) == _TRIES and self._clock() - wrong[0] < _TRIES_S

    def takes(self, token: str) -> bool:
        """Return whether the token is right. A token for one login is then replaced by the next."""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            self._wrong.append(self._clock())
            return False
        if self._once:
            self.token = secrets.token_urlsafe(32)
            self.told(self.token)
        return True

    def knows(self, cookie: str) -> bool:
        """Return whether this is the cookie that a login sets."""
        return hmac.compare_digest(cookie.encode("utf-8", "replace"), self.cookie.encode())


# The guard ------------------------------------------------------------------------------------------


class Guard:
    """ASGI middleware that refuses requests from other sites and from people without access.

    who: identifies the person behind a request when the host application has its own login. login: admits
    one person by a token instead. Without either, everybody can view and nobody can change anything.
    hosts: the exact host names to answer to, with the port unless it is the scheme's default
    (`ops.example.com`, `127.0.0.1:8100`), preceded by the scheme if a proxy in front speaks another
    (`https://ops.example.com`); empty (default): this machine's own names.

    Raises UsageError for an invalid host name.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        who: Who | None = None,
        login: Login | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._who = who
        self._login = login
        self._hosts = dict(map(_host_of, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, answer a login, or refuse the request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        began = False

        async def answer(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                _protect(message)
            await send(message)

        body = _bounded(receive)
        request = Request(scope, body)
        try:
            origin = check_request(request, self._hosts)
            if self._login is not None and await self._logs_in(request, self._login):
                base, secure = base_of(scope), "; Secure" if origin.startswith("https:") else ""
                cookie = f"{_cookie_name(scope)}={self._login.cookie}; Path={base or '/'}"
                told = {"set-cookie": f"{cookie}; HttpOnly; SameSite=Strict{secure}"}
                await RedirectResponse(f"{base}/", 303, told)(scope, receive, answer)
                return
            scope[_PERSON] = await self._person(request)
            if request.method == "POST" and not person_of(request).role.covers(Role.ANSWER):
                raise HTTPException(
                    403, "you may look but not change anything: ask for the role answer"
                )
            await self._app(scope, body, answer)
        except HTTPException as refused:
            if not began:
                page = _refusal(refused.status_code, refused.detail, base_of(scope))
                await page(scope, receive, answer)
        except Exception:
            logger.exception("the page failed on %s", one_line(scope["path"], 200))
            if began:
                raise
            page = _refusal(500, "the page failed: the log of its process has the error")
            await page(scope, receive, answer)

    async def _person(self, request: Request) -> Person:
        if self._who is not None:
            found: Any = self._who(HTTPConnection(request.scope))
            if inspect.isawaitable(found):
                found = await found
            if found is None:
                raise HTTPException(
                    403, "you have no access here: log in to the application around this page"
                )
            return _person(found)
        if self._login is None:
            return Person("nobody", Role.VIEW)
        # There are several if another site on this host has set the cookie too.
        cookies = [
            value
            for line in request.headers.getlist("cookie")
            for name, _, value in (part.strip().partition("=") for part in line.split(";"))
            if name == _cookie_name(request.scope)
        ]
        if len(cookies) == 1 and self._login.knows(cookies[0]):
            return self._login.person
        raise HTTPException(401, "")

    async def _logs_in(self, request: Request, login: Login) -> bool:
        """Return whether the request is a login. Raises HTTPException for a wrong token."""
        path = _path_of(request.scope)
        ours = request.headers.get("sec-fetch-site") in _OURS
        given: list[str] = []
        if request.method == "POST" and path == "/login":
            given = [value for name, value in await form_of(request) if name == "token"]
        elif request.method == "GET" and path == "/" and ours:
            given = request.query_params.getlist("token")
            if not given:
                return False
        else:
            return False
        if login.is_closed:
            raise HTTPException(429, "too many wrong tokens: wait a minute")
        if len(given) != 1 or not login.takes(given[0].strip()):
            raise HTTPException(401, "this token is wrong or was used already")
        return True


def _cookie_name(scope: Scope) -> str:
    """Name the cookie after the port: browsers send a cookie to every port of its host."""
    server = scope.get("server") or ("", 0)
    return f"triage_{server[1] or 0}"


def _host_of(name: object) -> tuple[str, str]:
    match = _HOST.fullmatch(name.lower()) if isinstance(name, str) else None
    if match is None:
        raise misuse("hosts", name, "names such as ops.example.com, or with a port 127.0.0.1:8100")
    return match[2], match[1] or ""


def _person(found: object) -> Person:
    """Return what `who` answered. Raises UsageError unless it is a valid Person."""
    if isinstance(found, Person) and isinstance(found.name, str) and isinstance(found.role, Role):
        name = found.name.strip()
        if name and len(name) <= _MAX_NAME and name.isprintable():
            return found
    raise UsageError(
        "who= must answer Person(name, Role.VIEW | ANSWER | ADMIN) with a printable name, or None, not "
        f"{type(found).__name__}"
    )


# Requests and responses -----------------------------------------------------------------------------


def check_request(request: Request, hosts: Mapping[str, str]) -> str:
    """Check method, headers, address, host and origin; return the page's origin.

    hosts: schemes by host name; empty for this machine's own names. Raises HTTPException.
    """
    headers = request.headers
    if request.method not in ("GET", "HEAD", "POST"):
        raise HTTPException(405, "the page accepts GET, HEAD and POST")
    for name in _SINGLE:
        if len(headers.getlist(name)) > 1:
            raise HTTPException(400, f"the header {name} appears more than once")
    _check_address(request.scope)
    origin = _origin(request.scope, headers, hosts)
    if request.method == "POST":
        _check_form(headers, origin)
    elif headers.get("sec-fetch-site") not in _OURS:
        fetched = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        if fetched != ("navigate", "document"):  # a link to the page
            raise HTTPException(403, "another site's page requested this")
    return origin


def _path_of(scope: Scope) -> str:
    """Return the path of a request without the prefix that the page is mounted under."""
    path, base = scope["path"], base_of(scope)
    inside = path == base or path.startswith(f"{base}/")
    return (path.removeprefix(base) if inside else path) or "/"


def _check_address(scope: Scope) -> None:
    path, raw = _path_of(scope), scope.get("raw_path")
    # Our paths need no escapes; one that has them tries to be read differently somewhere else.
    same = raw is None or path == "/" or raw.partition(b"?")[0].decode("latin-1").endswith(path)
    if len(path) > MAX_QUERY or not same or not _PATH.fullmatch(path):
        raise HTTPException(400, "no page can have this address")
    if len(scope.get("query_string", b"")) > MAX_QUERY:
        raise HTTPException(414, f"the query is longer than {MAX_QUERY} bytes")


def _origin(scope: Scope, headers: Headers, hosts: Mapping[str, str]) -> str:
    """Return the page's origin: scheme, host and port. Raises HTTPException for an unknown host name."""
    host, scheme = headers.get("host", "").lower(), scope.get("scheme", "http")
    known = hosts
    if not hosts:
        port = (scope.get("server") or ("", None))[1]
        usual = port in (None, {"http": 80, "https": 443}.get(scheme))
        known = {name if usual else f"{name}:{port}": "" for name in LOOPBACK}
    if host not in known:
        raise HTTPException(
            421,
            f"this page does not answer to the name {one_line(host, 80)!r}: start it with "
            "--trusted-host, or give app(hosts=[…])",
        )
    return f"{known[host] or scheme}://{host}"


def _check_form(headers: Headers, ours: str) -> None:
    """Raise HTTPException for a form of another site's page, or in another form."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin") or (origin is None and site is None):
        raise HTTPException(
            403, "this did not come from our own pages: open the page and try again"
        )
    if origin not in (None, ours):
        raise HTTPException(403, "this came from another site's page")
    if not _FORM.fullmatch(headers.get("content-type", "").strip()):
        raise HTTPException(415, "a form must be sent as application/x-www-form-urlencoded")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdecimal():
        raise HTTPException(400, "the header content-length is not a number")


def _bounded(receive: Receive) -> Receive:
    """Receive a request's body. Raises HTTPException (413) if it has more than `MAX_BODY` bytes."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise HTTPException(413, f"the form has more than {MAX_BODY:,} bytes")
        return message

    return bounded


async def form_of(request: Request) -> list[tuple[str, str]]:
    """Read the fields of a form, in order. Raises HTTPException (400) for more than `MAX_FIELDS`."""
    raw = await request.body()
    try:
        return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise HTTPException(400, f"the form has more than {MAX_FIELDS} fields") from None


def _protect(message: Message) -> None:
    """Add the headers in `HEADERS` to the start of a response that does not set its own."""
    headers = MutableHeaders(scope=message)
    for name in ("server", "x-powered-by"):
        del headers[name]
    for name, value in HEADERS.items():
        headers.setdefault(name, value)


def _refusal(status: int, text: str, base: str = "") -> HTMLResponse:
    """Make the page that says why a request is refused. base: where the page is mounted."""
    said = f"<p>{escape(text[:1].upper() + text[1:])}.</p>" if text else ""
    login = _LOGIN.format(base=escape(base)) if status == 401 else ""
    title = "Log in first" if status == 401 else "Refused"
    return HTMLResponse(_PAGE.format(title=title, said=said, login=login), status)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title}</title></head>
<body><main><h1>{title}</h1>{said}{login}</main></body></html>
"""
_LOGIN = """
<p>Open the link that <code>triage web</code> printed. Each link works once, and the next one is printed
when it is used. If you came here from another site's link, <a href="">open this page again</a>.</p>
<form method="post" action="{base}/login"><label>Token <input name="token" type="password"
autocomplete="off" required></label> <button>Log in</button></form>
"""
