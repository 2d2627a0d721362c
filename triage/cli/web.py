"""`triage web`: serve the page of a store's runs on this machine."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Annotated, Literal

from cyclopts import App, Parameter

from triage.core.errors import UsageError
from triage.core.redaction import redact
from triage.stores.base import Store

from .fleet import Fleet, FleetOption, fleet_of
from .options import VARIABLE, StoreText, epilogue, store_of, you
from .output import note, write

TOKEN = "TRIAGE_WEB_TOKEN"  # noqa: S105 - the name of a variable
_CODES = """\
exit codes:
  0    it was told to stop, and has
  2    it was never begun: the port is taken, no such store, bad arguments
  130  interrupted

Prints a link that logs one browser in and, once it is used, prints the next.
Other machines have access only with --token and --trusted-host; from one of
them, ssh -L 8321:127.0.0.1:8321 needs neither.
"""

app = App(
    name="web",
    help_epilogue=epilogue(
        _CODES,
        "web --store sqlite:///runs.db",
        "web --store sqlite:///runs.db --role view --port 0",
        "web --host 0.0.0.0 --trusted-host https://ops.example.com",
    ),
)


@app.default
def web(
    *,
    store: StoreText = None,
    fleet: FleetOption = None,
    host: Annotated[
        str,
        Parameter(metavar="ADDRESS", help="Address to listen on (127.0.0.1: this machine only)."),
    ] = "127.0.0.1",
    port: Annotated[
        int, Parameter(metavar="N", help="Port to listen on; 0 takes any free one (8321).")
    ] = 8321,
    token: Annotated[
        str | None,
        Parameter(
            metavar="TEXT",
            help=f"Token for any number of logins (the environment's {TOKEN}, where other users "
            "cannot see it; else a new token for each login).",
        ),
    ] = None,
    trusted_host: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="NAME",
            help="A name the page answers to, such as https://ops.example.com; may be repeated.",
        ),
    ] = (),
    role: Annotated[
        Literal["view", "answer", "admin"],
        Parameter(help="What a person may do: view, also answer, or also cancel and fork (admin)."),
    ] = "admin",
) -> None:
    """Show the runs of a store as a page, live, and answer them there."""
    try:
        import uvicorn

        from triage.web.application import app as page
        from triage.web.security import LOOPBACK, Login, Person, Role, check_bind

        from .sockets import BACKLOG, Connection
    except ImportError as error:
        raise UsageError(
            f'the page needs {error.name}: pip install "triage-recovery[web]"'
        ) from error
    token = os.environ.get(TOKEN) or None if token is None else token
    check_bind(host, token=token, hosts=trusted_host)
    opened = store_of(store) if fleet is None else fleet_of(fleet)
    login = Login(Person(you(), Role(role)), token=token)
    listening = _listening(host, port)
    port = listening.getsockname()[1]
    seen = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # noqa: S104 - compared
    place = f"http://{f'[{seen}]' if ':' in seen else seen}:{port}"

    login.told = lambda made: write(f"the next link: {place}/?token={made}")
    hosts = [*trusted_host, *(f"{name}:{port}" for name in LOOPBACK)] if trusted_host else []
    config = uvicorn.Config(
        page(opened, login=login, hosts=hosts),
        # The link to log in contains the token, and headers of a proxy can be forged.
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
        log_level="warning",
        timeout_graceful_shutdown=2,
        http=Connection,
        backlog=BACKLOG,
    )
    named = fleet or store or os.environ.get(VARIABLE, "")
    write(f"the page of {redact(named)}, with the role {role}; Ctrl-C stops it")
    link = place if token is not None else f"{place}/?token={login.token}"
    write(link)
    if token is not None:
        note(f"log in with the token of --token or {TOKEN}")
    asyncio.run(_serve(uvicorn.Server(config), listening, opened))


async def _serve(server: object, listening: socket.socket, opened: Store | Fleet) -> None:
    import uvicorn

    assert isinstance(server, uvicorn.Server)
    try:
        await server.serve(sockets=[listening])
    finally:
        await opened.close()


def _listening(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises UsageError naming the remedy if it cannot."""
    if not 0 <= port < 65_536:
        raise UsageError(f"--port must be a number from 0 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )[0]
    except OSError as error:
        raise UsageError(f"--host {host}: {error}") from error
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {host} is taken, perhaps by another triage web: open that one, or take "
                "any free port with --port 0"
            ) from error
        raise UsageError(f"--host {host} --port {port}: {error}") from error
    return made
