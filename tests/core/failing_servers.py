"""Local servers that fail as they are told, over real sockets, for clients that are really installed."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
import struct
import threading
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

RESET = "reset"
CLOSE = "close"
HANG_UP = "hang up"
SILENCE = "silence"
REFUSE = "refuse"
TLS = b"\x16\x03"
"""How a client begins that wants to speak TLS."""


def http(status: int, *headers: str, body: str = '{"error": {"message": "no"}}') -> bytes:
    """An answer of HTTP/1.1 that ends its connection."""
    lines = [
        f"HTTP/1.1 {status} Said",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


class Server:
    """Answers one connection after the other as `answers` say; when there are no more, it refuses.

    An answer is bytes, or one of RESET (the request is read, the connection reset), CLOSE (read and
    closed without a word), HANG_UP (closed at once) and SILENCE (read, and nothing comes).
    """

    def __init__(self, *answers: bytes | str) -> None:
        self.taken: list[bytes] = []
        self._answers = list(answers)
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        if answers == (REFUSE,):
            self._answers = []
            self._listener.close()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        # Wakes a thread that waits for a connection that never came.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            pass
        self._thread.join(30)
        for connection in self._open:
            connection.close()
        self._listener.close()

    def _serve(self) -> None:
        while self._answers:
            connection, _ = self._listener.accept()
            answer = self._answers.pop(0)
            if answer != HANG_UP:
                self.taken.append(self._read(connection))
            if not self._answers:
                # Closed before the answer is given, so that the client's next connection is refused.
                self._listener.close()
            if answer == SILENCE:
                self._open.append(connection)
                continue
            with connection:
                if isinstance(answer, bytes):
                    connection.sendall(answer)
                elif answer == RESET:
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    @staticmethod
    def _read(connection: socket.socket) -> bytes:
        read = b""
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in read:
                more = connection.recv(65536)
                if not more:
                    return read
                read += more
                if read.startswith(TLS):
                    return read
            head, _, body = read.partition(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    while len(body) < int(line.split(b":")[1]):
                        more = connection.recv(65536)
                        body += more
                        read += more
        return read


class RedisThatDies(Server):
    """Takes what a client says of itself, and dies as soon as it was sent the command."""

    def __init__(self) -> None:
        super().__init__(RESET)

    @staticmethod
    def _read(connection: socket.socket) -> bytes:
        while True:
            read = connection.recv(65536)
            if not read or b"INCR" in read:
                return read
            connection.sendall(b"+OK\r\n" * read.count(b"*"))


@contextlib.contextmanager
def full_port() -> Generator[str]:
    """The address of a port whose queue is full: to connect to it takes for ever."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.settimeout(0)
            filler.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"


@cache
def _certificate() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + made.public_bytes(pem)


@contextlib.contextmanager
def untrusted_port(folder: Path) -> Generator[str]:
    """The address of a server over TLS, whose certificate nobody has signed."""
    path = folder / "certificate.pem"
    path.write_bytes(_certificate())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(30)
