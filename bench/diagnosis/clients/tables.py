"""Turns tables of answers into cases of one client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.diagnosis.cases import CONNECTION, DNS, TIMEOUT, TLS, Case, Label
from bench.diagnosis.servers import HOST, NOWHERE, Reply, Talk, closed_port, web, wire

Call = Callable[[str], object]
"""Lets a client call the server at a base address."""
Dial = Callable[[int], object]
"""Lets a client talk to a port on loopback."""


def answered(client: str, call: Call, rows: Mapping[str, tuple[Reply, Label]]) -> Iterator[Case]:
    """A case for each answer over HTTP."""
    for name, (reply, label) in rows.items():
        yield Case(f"{client}/{name}", _against(reply, call), label)


def unreached(client: str, call: Call, *, patient: bool = False) -> Iterator[Case]:
    """Faults below HTTP. patient: the client's own deadline cannot be set below the limit."""
    yield Case(f"{client}/refused", lambda: call(f"http://{HOST}:{closed_port()}"), CONNECTION)
    yield Case(f"{client}/reset", _against(Reply(reset=True), call), CONNECTION)
    yield Case(f"{client}/name", lambda: call(f"http://{NOWHERE}"), DNS)
    yield Case(f"{client}/certificate", lambda: _over_tls(call), TLS)
    if not patient:
        yield Case(f"{client}/slow", _against(Reply(200, {}, delay_s=4), call), TIMEOUT)


def _against(reply: Reply, call: Call) -> Callable[[], object]:
    def provoke() -> object:
        with web(reply) as base:
            return call(base)

    return provoke


def _over_tls(call: Call) -> object:
    with web(Reply(200, {}), tls=True) as base:
        return call(base)


def talked(client: str, dial: Dial, rows: Mapping[str, tuple[Talk, Label]]) -> Iterator[Case]:
    """A case for each way a server on a socket talks."""
    for name, (talk, label) in rows.items():
        yield Case(f"{client}/{name}", _with(talk, dial), label)


def _with(talk: Talk, dial: Dial) -> Callable[[], object]:
    def provoke() -> object:
        with wire(talk) as port:
            return dial(port)

    return provoke
