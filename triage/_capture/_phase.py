"""How far a request got, by the names of the classes clients raise."""

from __future__ import annotations


def _names(block: str) -> list[str]:
    return block.split()


NOT_SENT = frozenset(
    _names(
        """
        gaierror herror NameResolutionError ClientConnectorDNSError ConnectionRefusedError
        ConnectError ConnectTimeout ConnectTimeoutError ConnectionTimeout.connect
        NewConnectionError ClientConnectorError ConnectionTimeoutError
        ClientProxyConnectionError ProxyError ProxyConnectionError EndpointConnectionError
        SSLCertVerificationError CertificateError ClientConnectorCertificateError
        ClientConnectorSSLError InsecureCertificateException BadHostKeyException PoolTimeout
        EmptyPoolError UnsupportedProtocol InvalidURL InvalidUrlClientError MissingSchema
        InvalidSchema LocationParseError LocalProtocolError CircuitBreakerError
        """
    )
)
"""Nothing left this machine, or the other side was never reached."""

SENT = frozenset(
    _names(
        """
        ReadTimeout ReadTimeoutError ReadError SocketTimeoutError WriteError WriteTimeout
        ConnectionResetError BrokenPipeError ConnectionAbortedError RemoteProtocolError
        RemoteDisconnected IncompleteRead IncompleteReadError BadStatusLine ProtocolError
        ServerDisconnectedError ServerTimeoutError ChunkedEncodingError ClientPayloadError
        ContentDecodingError DecodingError DecodeError ConnectionClosed ConnectionClosedError
        SMTPServerDisconnected ReadTimeoutException TooManyRedirects ConnectionClosedByBroker
        """
    )
)
"""The request was on its way, at least in part."""

_ERRNO_NOT_SENT = frozenset(
    _names(
        """
        ECONNREFUSED ENETUNREACH EHOSTUNREACH EHOSTDOWN ENETDOWN EADDRNOTAVAIL EAI
        CERTIFICATE_VERIFY_FAILED WRONG_VERSION_NUMBER TLSV1_ALERT_PROTOCOL_VERSION
        SSLV3_ALERT_HANDSHAKE_FAILURE NO_PROTOCOLS_AVAILABLE UNSUPPORTED_PROTOCOL
        """
    )
)
_ERRNO_SENT = frozenset({"ECONNRESET", "EPIPE", "ECONNABORTED"})

_WRAPPERS = (
    "ConnectionError",
    "TransportError",
    "ConnectionFailure",
    "MaxRetryError",
    "SSLError",
    "URLError",
)
"""Ends of class names that say no more than "the connection"; what they wrap says more."""


def of(names: tuple[str, ...], code: str | None, message: str, *, answered: bool) -> str | None:
    """The phase an exception states itself, None where it does not."""
    if answered:
        return "answered"
    for name in names:
        if name in NOT_SENT or name in SENT:
            return "not_sent" if name in NOT_SENT else "sent"
    if code in _ERRNO_SENT:
        return "sent"
    # gRPC has one status for "never reached" and "lost on the way"; only its words tell them apart.
    unreached = code == "UNAVAILABLE" and any(words in message for words in _UNREACHED)
    return "not_sent" if unreached or code in _ERRNO_NOT_SENT else None


_UNREACHED = ("failed to connect to all", "errors resolving")


def wraps(names: tuple[str, ...]) -> bool:
    """True for a client's general connection error, whose phase is that of what it wraps."""
    return any(name.endswith(_WRAPPERS) or name in ("OSError", "ClientError") for name in names[:4])
