"""What is refused before a page is made: attacks on hosts, origins, logins, addresses and forms."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from tables import table

from triage import UsageError
from triage.stores import MemoryStore
from triage.web import Login, Person, Role, app, check_bind

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

PORT = 8100
HOST = f"127.0.0.1:{PORT}"
HERE = f"http://{HOST}"
ANN = Person("ann", Role.ADMIN)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


async def ask(
    application: Any,
    target: str = "/",
    *,
    method: str = "GET",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    body: bytes = b"",
    root: str = "",
    host: str | None = HOST,
    pieces: int = 1,
) -> Answer:
    """Ask an application as a server does that has read these very bytes."""
    path, _, query = target.partition("?")
    given = list(headers.items()) if isinstance(headers, dict) else list(headers or [])
    if host is not None:
        given.insert(0, ("host", host))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": root,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
    }
    size = max(1, -(-len(body) // pieces))
    parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent[1:]).decode("utf-8", "replace")
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, text)


OURS = {"origin": HERE, "sec-fetch-site": "same-origin"}
FORM = {**OURS, "content-type": "application/x-www-form-urlencoded"}


def cookie_of(login: Login) -> dict[str, str]:
    return {"cookie": f"triage_{PORT}={login.cookie}"}


CROSS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
ATTACKS: list[tuple[str, int, dict[str, Any]]] = [
    # DNS rebinding, and other names
    ("the name of an attacker", 421, {"host": "evil.example"}),
    ("the name of an attacker, with our port", 421, {"host": f"evil.example:{PORT}"}),
    ("a name that begins like ours", 421, {"host": f"127.0.0.1.evil.example:{PORT}"}),
    ("another port", 421, {"host": "127.0.0.1:9"}),
    ("no port", 421, {"host": "127.0.0.1"}),
    ("no name", 421, {"host": None}),
    ("an empty name", 421, {"host": ""}),
    ("every address", 421, {"host": f"0.0.0.0:{PORT}"}),
    ("our address as a number", 421, {"host": f"2130706433:{PORT}"}),
    ("a user before the name", 421, {"host": f"evil@127.0.0.1:{PORT}"}),
    ("two names", 400, {"headers": [("host", "evil.example")]}),
    (
        "our name in a proxy's header",
        421,
        {"host": "evil.example", "headers": {"x-forwarded-host": HOST}},
    ),
    # Cross-site requests
    ("an image on another site", 403, {"headers": CROSS}),
    (
        "a frame on another site",
        403,
        {"headers": {**CROSS, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}},
    ),
    (
        "a script on another port of this machine",
        403,
        {"headers": {**CROSS, "sec-fetch-site": "same-site"}},
    ),
    (
        "a form of another site",
        403,
        {
            "post": True,
            "headers": {**FORM, "origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        },
    ),
    (
        "a form of another site, its origin hidden",
        403,
        {"post": True, "headers": {**FORM, "origin": "null", "sec-fetch-site": "cross-site"}},
    ),
    ("a form from a sandbox", 403, {"post": True, "headers": {**FORM, "origin": "null"}}),
    (
        "a form of another port",
        403,
        {
            "post": True,
            "headers": {**FORM, "origin": "http://127.0.0.1:9", "sec-fetch-site": "same-site"},
        },
    ),
    (
        "a form of our name and another port",
        403,
        {"post": True, "headers": {**FORM, "origin": "http://127.0.0.1:9"}},
    ),
    (
        "a form of another scheme",
        403,
        {"post": True, "headers": {**FORM, "origin": f"https://{HOST}"}},
    ),
    (
        "a form of a name that begins like ours",
        403,
        {"post": True, "headers": {**FORM, "origin": f"{HERE}.evil.example"}},
    ),
    (
        "a form with nothing that says whence",
        403,
        {"post": True, "headers": {"content-type": FORM["content-type"]}},
    ),
    (
        "a form opened from outside of any page",
        403,
        {"post": True, "headers": {**FORM, "sec-fetch-site": "none"}},
    ),
    (
        "two origins",
        400,
        {"post": True, "headers": [*FORM.items(), ("origin", "https://evil.example")]},
    ),
    # Logins
    ("no cookie", 401, {"cookie": ""}),
    ("a forged cookie", 401, {"cookie": f"triage_{PORT}={'0' * 64}"}),
    ("an empty cookie", 401, {"cookie": f"triage_{PORT}="}),
    ("the token as a cookie", 401, {"cookie": f"triage_{PORT}=TOKEN"}),
    ("a cookie of another port", 401, {"cookie": "triage_9=COOKIE"}),
    (
        "our cookie behind one that was planted",
        401,
        {"cookie": f"triage_{PORT}=x; triage_{PORT}=COOKIE"},
    ),
    ("a wrong token", 401, {"target": "/?token=wrong", "cookie": ""}),
    ("an empty token", 401, {"target": "/?token=", "cookie": ""}),
    ("a token that only looks", 401, {"target": "/?token=TOKEN", "cookie": "", "method": "HEAD"}),
    (
        "a token in a link of another site",
        401,
        {
            "target": "/?token=TOKEN",
            "cookie": "",
            "headers": {**CROSS, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        },
    ),
    ("two tokens", 401, {"target": "/?token=wrong&token=TOKEN", "cookie": ""}),
    ("a token on another page", 401, {"target": "/runs/r?token=TOKEN", "cookie": ""}),
    ("a token in a header", 401, {"cookie": "", "headers": {"authorization": "Bearer TOKEN"}}),
    (
        "a login by a form of another site",
        403,
        {
            "target": "/login",
            "post": True,
            "cookie": "",
            "body": b"token=TOKEN",
            "headers": {**FORM, "origin": "https://evil.example"},
        },
    ),
    # Methods and smuggling
    ("TRACE", 405, {"method": "TRACE"}),
    ("PUT", 405, {"method": "PUT"}),
    ("OPTIONS", 405, {"method": "OPTIONS"}),
    ("CONNECT", 405, {"method": "CONNECT"}),
    ("a method in small letters", 405, {"method": "post"}),
    (
        "a GET that is meant as a POST",
        405,
        {"target": "/runs/r/cancel", "headers": {"x-http-method-override": "POST"}},
    ),
    (
        "two lengths",
        400,
        {
            "post": True,
            "headers": [*FORM.items(), ("content-length", "1"), ("content-length", "2")],
        },
    ),
    (
        "a length that is no number",
        400,
        {"post": True, "headers": {**FORM, "content-length": "+1"}},
    ),
    (
        "an address in a header",
        404,
        {"target": "/runs/r", "headers": {"x-original-url": "/", "x-rewrite-url": "/"}},
    ),
    # Addresses
    ("up and out", 400, {"target": "/static/../../../etc/passwd"}),
    ("up, escaped", 400, {"target": "/static/%2e%2e/%2e%2e/etc/passwd"}),
    ("up, escaped twice", 400, {"target": "/static/%252e%252e/secret"}),
    ("a slash, escaped", 400, {"target": "/runs/..%2f..%2fetc"}),
    ("a backslash", 400, {"target": "/static\\..\\x"}),
    ("NUL", 400, {"target": "/runs/r%00.html"}),
    ("a line break for the log", 400, {"target": "/runs/r%0d%0aset-cookie:x"}),
    ("another host's address", 400, {"target": "//evil.example/"}),
    ("a hidden file", 400, {"target": "/static/0/.env"}),
    ("a very long address", 400, {"target": f"/runs/{'r' * 9000}"}),
    ("a very long query", 414, {"target": f"/?q={'q' * 9000}"}),
    ("markup", 400, {"target": "/runs/<script>alert(1)</script>"}),
    # Forms
    (
        "JSON",
        415,
        {"post": True, "body": b"{}", "headers": {**FORM, "content-type": "application/json"}},
    ),
    (
        "plain text",
        415,
        {"post": True, "body": b"a=b", "headers": {**FORM, "content-type": "text/plain"}},
    ),
    (
        "files",
        415,
        {"post": True, "headers": {**FORM, "content-type": "multipart/form-data; boundary=x"}},
    ),
    ("a form without a type", 415, {"post": True, "headers": OURS}),
    (
        "a form in another encoding",
        415,
        {
            "post": True,
            "headers": {**FORM, "content-type": f"{FORM['content-type']}; charset=utf-7"},
        },
    ),
    (
        "a form of two megabytes",
        413,
        {"target": "/login", "post": True, "cookie": "", "body": b"token=" + b"x" * 2_000_000},
    ),
    (
        "a large form in small pieces",
        413,
        {"target": "/login", "post": True, "cookie": "", "body": b"x" * 1_100_000, "pieces": 900},
    ),
]


@pytest.fixture
def attacked() -> tuple[Any, Login]:
    """A page and its login, which no attack uses up."""
    login = Login(ANN)
    return app(MemoryStore(), login=login), login


@table(("what", "status", "attack"), ATTACKS)
async def test_an_attack_is_refused(
    what: str, status: int, attack: dict[str, Any], attacked: tuple[Any, Login]
) -> None:
    given = json.loads(
        json.dumps({k: v for k, v in attack.items() if k not in ("body", "headers")})
    )
    application, login = attacked
    post = given.pop("post", False)
    filled = {"COOKIE": login.cookie, "TOKEN": login.token}
    headers = attack.get("headers", FORM if post else {})
    pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
    pairs.append(("cookie", given.pop("cookie", cookie_of(login)["cookie"])))
    for name, value in filled.items():
        pairs = [(key, text.replace(name, value)) for key, text in pairs]
        given["target"] = given.get("target", "/").replace(name, value)
    body = attack.get("body", b"").replace(b"TOKEN", login.token.encode())
    if post:
        given.setdefault("method", "POST")
        given["target"] = "/runs/r/cancel" if given["target"] == "/" else given["target"]
    got = await ask(application, headers=pairs, body=body, **given)
    assert got.status == status, got
    assert "set-cookie" not in got.headers
    assert got.headers["content-security-policy"].startswith("default-src 'none'")
    assert login.token not in got.text
    assert "<script>alert" not in got.text


# Logging in ---------------------------------------------------------------------------------------


async def test_a_link_lets_in_once_and_leaves_no_token_in_the_address() -> None:
    told: list[str] = []
    login = Login(ANN, told=told.append)
    application, link = app(MemoryStore(), login=login), f"/?token={login.token}"
    first = await ask(application, link)
    assert (first.status, first.headers["location"], first.text) == (303, "/", "")
    cookie = first.headers["set-cookie"]
    assert cookie == f"triage_{PORT}={login.cookie}; Path=/; HttpOnly; SameSite=Strict"
    assert (await ask(application, headers=cookie_of(login))).status == 200
    assert (await ask(application, link)).status == 401
    assert told == [login.token]
    assert (await ask(application, f"/?token={told[0]}")).status == 303


async def test_a_token_that_was_chosen_lets_in_by_a_form_as_often_as_one_likes() -> None:
    login = Login(ANN, token="correct horse battery")
    body = urlencode({"token": "correct horse battery"}).encode()
    for _ in range(2):
        got = await ask(
            app(MemoryStore(), login=login), "/login", method="POST", headers=FORM, body=body
        )
        assert (got.status, got.headers["location"]) == (303, "/")


async def test_after_many_wrong_tokens_none_is_looked_at_for_a_minute() -> None:
    time = [0.0]
    login = Login(ANN, clock=lambda: time[0])
    application = app(MemoryStore(), login=login)
    for _ in range(20):
        assert (await ask(application, "/?token=wrong")).status == 401
    assert (await ask(application, f"/?token={login.token}")).status == 429
    assert (await ask(application, headers=cookie_of(login))).status == 200
    time[0] = 61.0
    assert (await ask(application, f"/?token={login.token}")).status == 303


async def test_a_link_on_another_site_leads_to_our_page_but_lets_nobody_in() -> None:
    login = Login(ANN)
    from_chat = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    got = await ask(app(MemoryStore(), login=login), headers=from_chat)
    assert got.status == 401
    assert "open this page again" in got.text


@table(
    ("host", "token", "hosts", "missing"),
    [
        ("127.0.0.1", None, (), None),
        ("127.8.8.8", None, (), None),
        ("::1", None, (), None),
        ("localhost", None, (), None),
        ("0.0.0.0", "correct horse battery", ("ops.example.com",), None),
        ("0.0.0.0", None, (), "--token and --trusted-host"),
        ("0.0.0.0", "correct horse battery", (), "give --trusted-host as well"),
        ("::", None, ("ops.example.com",), "give --token as well"),
        ("192.168.1.7", None, (), "--token and --trusted-host"),
        ("ops.example.com", None, (), "--token and --trusted-host"),
        ("", None, (), "--token and --trusted-host"),
    ],
)
def test_other_machines_are_let_in_only_with_a_token_and_a_name(
    host: str, token: str | None, hosts: tuple[str, ...], missing: str | None
) -> None:
    if missing is None:
        check_bind(host, token=token, hosts=hosts)
    else:
        with pytest.raises(UsageError, match=missing):
            check_bind(host, token=token, hosts=hosts)


def test_a_short_token_or_a_host_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="at least 16 printable characters"):
        Login(ANN, token="secret")
    with pytest.raises(UsageError, match="one of them says who asks"):
        app(MemoryStore(), who=lambda _request: ANN, login=Login(ANN))
    for name in ("a b", "https://", "ops.example.com/", "ftp://ops.example.com", ""):
        with pytest.raises(UsageError, match=r"names such as ops\.example\.com"):
            app(MemoryStore(), hosts=[name])


# Behind a host application ------------------------------------------------------------------------


def mounted(**options: Any) -> Starlette:
    return Starlette(routes=[Mount("/ops/triage", app=app(MemoryStore(), **options))])


async def test_a_mounted_page_asks_the_host_application_who_it_is() -> None:
    async def who(request: HTTPConnection) -> Person | None:
        name = request.headers.get("x-user")
        return None if name is None else Person(name, Role.VIEW)

    application = mounted(who=who)
    page = await ask(application, "/ops/triage/", headers={"x-user": "ann"})
    assert page.status == 200
    assert 'href="/ops/triage/' in page.text
    assert (await ask(application, "/ops/triage/")).status == 403
    change = {**FORM, "x-user": "ann"}
    got = await ask(application, "/ops/triage/runs/r/cancel", method="POST", headers=change)
    assert got.status == 403
    assert "you may look" in got.text.lower()


async def test_a_mounted_page_with_a_login_keeps_its_cookie_to_its_own_addresses() -> None:
    login = Login(ANN)
    got = await ask(mounted(login=login), f"/ops/triage/?token={login.token}")
    assert (got.status, got.headers["location"]) == (303, "/ops/triage/")
    assert "Path=/ops/triage;" in got.headers["set-cookie"]
    page = await ask(mounted(login=login), "/ops/triage/runs/r")
    assert 'action="/ops/triage/login"' in page.text


async def test_a_page_without_a_login_shows_and_changes_nothing() -> None:
    application = app(MemoryStore())
    assert (await ask(application)).status == 200
    assert (await ask(application, "/runs/r/cancel", method="POST", headers=FORM)).status == 403


async def test_behind_a_proxy_that_speaks_tls_the_origin_is_that_of_the_proxy() -> None:
    login = Login(ANN, token="correct horse battery")
    application = app(MemoryStore(), login=login, hosts=["https://ops.example.com"])
    body = urlencode({"token": "correct horse battery"}).encode()
    given: dict[str, Any] = {"method": "POST", "body": body, "host": "ops.example.com"}
    secure = {**FORM, "origin": "https://ops.example.com"}
    got = await ask(application, "/login", headers=secure, **given)
    assert got.status == 303
    assert got.headers["set-cookie"].endswith("; Secure")
    plain = {**FORM, "origin": "http://ops.example.com"}
    assert (await ask(application, "/login", headers=plain, **given)).status == 403
    assert (await ask(application, headers=cookie_of(login))).status == 421


@pytest.mark.parametrize(
    "found", ["ann", Person("", Role.VIEW), Person("a\nb", Role.ADMIN), ("ann", "admin")]
)
async def test_a_mistake_in_who_lets_nobody_in(
    found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    got = await ask(app(MemoryStore(), who=lambda _request: found))
    assert got.status == 500
    assert "who= must answer Person" in caplog.text


async def test_every_answer_has_the_headers_that_keep_a_browser_in() -> None:
    got = await ask(app(MemoryStore()))
    assert (
        "require-trusted-types-for 'script'; trusted-types 'none'"
        in got.headers["content-security-policy"]
    )
    assert "unsafe" not in got.headers["content-security-policy"]
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["referrer-policy"] == "same-origin"
    assert got.headers["cross-origin-opener-policy"] == "same-origin"
    assert got.headers["cross-origin-resource-policy"] == "same-origin"
    assert got.headers["cache-control"] == "no-store"
    assert "server" not in got.headers
