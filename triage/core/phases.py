"""Tell whether a request was sent before its exception, and whether the client made several.

The evidence is the names of clients' exception classes, codes, and the functions of the traceback.
"""

from __future__ import annotations

from types import FrameType

from .failures import ErrorInfo
from .foreign import attr, entry, frames_of, is_a, some, whole, words
from .retry_after import header

__all__ = ["caught_by_a_client", "made_several_requests", "phase_by_name", "phase_of"]

_NOT_SENT = frozenset(
    """
    gaierror herror NameResolutionError ClientConnectorDNSError ConnectionRefusedError
    ConnectError ConnectTimeout ConnectTimeoutError ConnectionTimeout.connect
    NewConnectionError ClientConnectorError ConnectionTimeoutError
    ClientProxyConnectionError ProxyError ProxyConnectionError EndpointConnectionError
    SSLCertVerificationError CertificateError ClientConnectorCertificateError
    ClientConnectorSSLError InsecureCertificateException BadHostKeyException PoolTimeout
    EmptyPoolError UnsupportedProtocol InvalidURL InvalidUrlClientError MissingSchema
    InvalidSchema LocationParseError LocalProtocolError CircuitBreakerError
    """.split()
)
"""Nothing left this machine, or the other side was never reached."""
_SENT = frozenset(
    """
    ReadTimeout ReadTimeoutError ReadError SocketTimeoutError WriteError WriteTimeout
    ConnectionResetError BrokenPipeError ConnectionAbortedError RemoteProtocolError
    RemoteDisconnected IncompleteRead IncompleteReadError BadStatusLine ProtocolError
    ServerDisconnectedError ServerTimeoutError ChunkedEncodingError ClientPayloadError
    ContentDecodingError DecodingError DecodeError ConnectionClosed ConnectionClosedError
    SMTPServerDisconnected ReadTimeoutException TooManyRedirects ConnectionClosedByBroker
    """.split()
)
"""Part of the request, at least, was sent."""
_CODES_NOT_SENT = frozenset(
    """
    ECONNREFUSED ENETUNREACH EHOSTUNREACH EHOSTDOWN ENETDOWN EADDRNOTAVAIL EAI
    CERTIFICATE_VERIFY_FAILED WRONG_VERSION_NUMBER TLSV1_ALERT_PROTOCOL_VERSION
    SSLV3_ALERT_HANDSHAKE_FAILURE NO_PROTOCOLS_AVAILABLE UNSUPPORTED_PROTOCOL
    """.split()
)
_CODES_SENT = frozenset({"ECONNRESET", "EPIPE", "ECONNABORTED"})
_UNREACHED = ("failed to connect to all", "errors resolving")
_WRAPPERS = (
    "ConnectionError", "TransportError", "ConnectionFailure", "MaxRetryError", "SSLError", "URLError",
    "RetryError",
)  # fmt: skip
"""Suffixes of the names of general classes for connection trouble, whose wrapped error is more exact."""


def phase_by_name(name: str) -> str | None:
    """Return the phase of a request by the name of a client's class or of a code, or None."""
    if name in _NOT_SENT or name in _CODES_NOT_SENT:
        return "not_sent"
    return "sent" if name in _SENT or name in _CODES_SENT else None


def phase_of(
    exc: BaseException,
    package: str,
    names: tuple[str, ...],
    code: str | None,
    message: str,
    related: tuple[ErrorInfo, ...],
) -> str | None:
    """Return the phase of a request without an answer, or None without evidence.

    package: the top-level package of the exception's class. names: those of the class and its bases.
    """
    for name in names:
        if name in _NOT_SENT or name in _SENT:
            return "not_sent" if name in _NOT_SENT else "sent"
    if code in _CODES_SENT:
        return "sent"
    # gRPC has one status for "never reached" and "lost on the way", told apart by the message only.
    theirs = package in _CLIENTS or "OSError" in names or "RpcError" in names
    unreached = code == "UNAVAILABLE" and any(said in message for said in _UNREACHED)
    # The code of any other exception may be text that the application received.
    if (theirs and (unreached or code in _CODES_NOT_SENT)) or _raised_connecting(exc):
        return "not_sent"
    # A general connection error has the phase of its wrapped error. A built-in class belongs to the
    # package whose code raised it.
    general = any(
        name.endswith(_WRAPPERS) or name in ("OSError", "ClientError") for name in names[:4]
    )
    if general and (package in _CLIENTS or package == "builtins") and _raised_by_a_client(exc):
        phases = (info.phase for info in related)
        return next((phase for phase in phases if phase in ("not_sent", "sent")), None)
    return None


# The number of requests a client made before it raised, and the code that raised or caught an exception.
# A client with retries raises its last error only. Earlier requests show in the error's fields, and in
# the traceback where the client's functions recurse or loop.


_CLIENTS = frozenset(
    """
    http urllib socket ssl asyncio smtplib ftplib imaplib poplib xmlrpc anyio trio
    httpx httpcore httpx2 httpcore2 requests urllib3 aiohttp aiohappyeyeballs websockets grpc
    openai anthropic groq mistralai cohere together cerebras google pydantic_ai langchain_openai
    langchain_anthropic redis psycopg psycopg_pool asyncpg pymongo pymysql sqlalchemy elastic_transport
    kombu pika botocore aiobotocore azure stripe twilio slack_sdk tenacity
    """.split()
)
"""Client packages. An error that one of them catches and translates concerns the same request."""
_CONNECTING = frozenset({
    ("anyio._core._sockets", "connect_tcp"),
    ("asyncio.base_events", "create_connection"),
    ("socket", "create_connection"),
    ("trio._highlevel_open_tcp_stream", "open_tcp_stream"),
    ("psycopg.connection", "connect"),
    ("psycopg.connection_async", "connect"),
    ("redis.connection", "connect_check_health"),
    ("redis.asyncio.connection", "connect_check_health"),
})  # fmt: skip
"""Functions that only connect, so that their exceptions precede any request."""
_CALLING_THEMSELVES = frozenset({
    ("urllib3.connectionpool", "urlopen"),
    ("urllib3.poolmanager", "urlopen"),
    ("requests.sessions", "send"),
    ("urllib.request", "open"),
})  # fmt: skip
"""Functions that send one request and recurse for the next."""
_FOLLOWING_REDIRECTS = frozenset({
    ("httpx._client", "_send_handling_redirects"),
    ("httpx2._client", "_send_handling_redirects"),
    ("aiohttp.client", "_request"),
})  # fmt: skip
"""Functions that loop over requests and keep the redirects they followed in `history`."""
_RETRIES_OF_REDIS = (("redis.retry", "call_with_retry"), ("redis.asyncio.retry", "call_with_retry"))
"""The functions that retry both connecting and sending a command."""
_ALWAYS_AGAIN = (
    "backoff.", "retrying", "retry.api", "aiohttp_retry", "httpx_retries", "google.api_core.retry",
    "azure.core.pipeline.policies._retry", "botocore.endpoint", "stripe._http_client",
)  # fmt: skip
"""Modules that retry without a record of how often."""


def made_several_requests(exc: BaseException) -> bool:
    """Whether the client may have made more than one request before an exception."""
    return _says_several_requests(exc) or _shows_several_requests(exc)


def caught_by_a_client(exc: BaseException) -> bool:
    """Whether a client's code caught the exception."""
    frames = frames_of(exc)
    return bool(frames) and _package(frames[0]) in _CLIENTS


def _says_several_requests(exc: BaseException) -> bool:
    """Whether the fields of an exception show more than one request."""
    response = attr(exc, "response")
    for holder in (exc, response):
        if _is_filled_list(attr(holder, "history")):  # followed redirects
            return True
        again = header(attr(attr(holder, "request"), "headers"), "x-stainless-retry-count")
        if again not in (None, "0"):
            return True
    for answer in (response, attr(response, "raw")):  # urllib3, below requests
        if _is_filled_list(attr(attr(answer, "retries"), "history")):
            return True
    metadata = entry(response, "ResponseMetadata")  # botocore
    if (whole(entry(metadata, "RetryAttempts")) or 0) > 0:
        return True
    return (whole(attr(attr(exc, "last_attempt"), "attempt_number")) or 1) > 1  # tenacity


def _shows_several_requests(exc: BaseException) -> bool:
    """Whether the traceback shows that the client may have made more than one request."""
    frames = frames_of(exc)
    met: set[tuple[str, str]] = set()
    for at, frame in enumerate(frames):
        place = _place(frame)
        if place[0].startswith(_ALWAYS_AGAIN) or (place in _CALLING_THEMSELVES and place in met):
            return True
        if place in _FOLLOWING_REDIRECTS and _is_filled_list(frame.f_locals.get("history")):
            return True
        if place in _RETRIES_OF_REDIS and not (
            at and _place(frames[at - 1])[0].endswith(".connection")
        ):
            return True
        met.add(place)
    tenacity = [frame for frame in frames if _package(frame) == "tenacity"]
    states = [
        value
        for frame in tenacity
        for value in frame.f_locals.values()
        if type(value).__name__ == "RetryCallState" and type(value).__module__ == "tenacity"
    ]
    if not states:
        return bool(tenacity)
    return any(whole(attr(state, "attempt_number")) != 1 for state in states)


def _is_filled_list(value: object) -> bool:
    return (is_a(value, list) or is_a(value, tuple)) and bool(some(value, 1))


def _raised_connecting(exc: BaseException) -> bool:
    """Whether a function that only connects raised the exception."""
    frames = frames_of(exc)
    return bool(frames) and _place(frames[-1]) in _CONNECTING


def _raised_by_a_client(exc: BaseException) -> bool:
    """Whether a client's own code raised the exception."""
    frames = frames_of(exc)
    return bool(frames) and _package(frames[-1]) in _CLIENTS


def _place(frame: FrameType) -> tuple[str, str]:
    return words(frame.f_globals.get("__name__")) or "", frame.f_code.co_name


def _package(frame: FrameType) -> str:
    return _place(frame)[0].partition(".")[0]
