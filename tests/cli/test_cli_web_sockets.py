"""`triage web` with more half-open connections than it has descriptors: it answers others meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import triage

MANY, DESCRIPTORS, SOON_S = 280, 256, 60.0
PROGRAM = """
import resource, sys
from triage.cli import main, sockets
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
sockets.HALF_OPEN_S = float(sys.argv[2])
sys.exit(main(["web", "--store", "sqlite:///runs.db", "--port", "0"]))
"""
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"
SENT = {
    "nothing": b"",
    "part of the headers": b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "part of the body": b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 99\r\n\r\nto",
    "a request and nothing more": GET,
    "a request and part of another": GET + b"GET / HT",
}


@contextmanager
def page(folder: Path, half_open_s: float) -> Generator[tuple[str, int]]:
    """A page whose process has few descriptors: where it listens."""
    (folder / "runs.db").touch()
    command = [sys.executable, "-c", PROGRAM, str(DESCRIPTORS), str(half_open_s)]
    env = {**os.environ, "PYTHONPATH": str(Path(triage.__file__).parents[1])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, encoding="utf-8", env=env, cwd=folder
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        place = urlsplit(process.stdout.readline().strip())
        assert place.hostname is not None
        assert place.port is not None
        try:
            yield place.hostname, place.port
        finally:
            process.terminate()


def answers(place: tuple[str, int]) -> bool:
    """Whether somebody else gets an answer."""
    with socket.create_connection(place, SOON_S) as other:
        other.sendall(GET % place[1])
        return other.recv(12).startswith(b"HTTP/1.1 ")


def closed(one: socket.socket) -> bool:
    """Wait until the server has closed a connection."""
    try:
        while one.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def test_a_page_answers_during_and_after_more_open_connections_than_it_can_hold(
    tmp_path: Path,
) -> None:
    kinds = [(data, half) for data in SENT.values() for half in (False, True)]
    with page(tmp_path, 1.0) as place, ExitStack() as stack:
        opened = []
        for (data, half), _ in zip(cycle(kinds), range(MANY), strict=False):
            one = stack.enter_context(socket.create_connection(place, SOON_S))
            one.sendall(data.replace(b"%d", b"%d" % place[1]))
            if half:
                one.shutdown(socket.SHUT_WR)
            opened.append(one)
        assert answers(place)
        assert all(closed(one) for one in opened)
        assert answers(place)


def test_a_page_answers_while_all_connections_are_within_their_time(tmp_path: Path) -> None:
    with page(tmp_path, 600.0) as place, ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(place, SOON_S)) for _ in range(MANY)]
        assert answers(place)
        # The oldest has made room for a newer one.
        assert closed(opened[0])
        opened[-1].sendall(GET % place[1])
        assert opened[-1].recv(12).startswith(b"HTTP/1.1 ")
