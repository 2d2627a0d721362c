"""Rules on the words of any message: the other side and the machine."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from . import _phrases
from ._rule import Rule
from ._rule import word_rule as _rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_PROVIDERS = "documented error texts of model and API providers"

_CODE = r"['\"](?:error ?)?(?:code|type|reason)['\"] ?: ?['\"](?:\w{1,40}\.)?"


def _coded(name: str, kind: FailureType, cause: Cause, words: str, *, on: str, not_on: str) -> Rule:
    """A rule on a code in an answer that somebody wrote into a message as JSON. words: the codes."""
    key = f"{_CODE}(?:{words})(?: (?:error|exception))?['\"]"
    return _rule(f"coded_{name}", kind, cause, key, on=on, not_on=not_on, source=_PROVIDERS)


CODED_TEXTS: tuple[Rule, ...] = (
    _coded(
        "rate",
        _EXTERNAL,
        Cause.RATE_LIMITED,
        "rate ?limit(?:ed)?(?: exceeded| reached)?|throttl(?:ed|ing)|too many requests|resource exhausted",
        on=r"""
        {"errors":[{"message":"Slow","extensions":{"code":"THROTTLED"}}]}
        {'error': {'type': 'rate_limit_error', 'message': 'Wait'}}
        """,
        not_on=r"""
        {"code": "throttle", "part": "pedal"}
        """,
    ),
    _coded(
        "auth",
        _EXTERNAL,
        Cause.AUTH,
        "unauthenticated|unauthorized|invalid (?:api key|token|grant|credentials)|authentication",
        on=r"""
        {"errors":[{"message":"No","extensions":{"code":"UNAUTHENTICATED"}}]}
        """,
        not_on=r"""
        {"type": "author", "name": "Pessoa"}
        """,
    ),
    _coded(
        "permission",
        _EXTERNAL,
        Cause.PERMISSION,
        "forbidden|permission denied|access ?denied|insufficient (?:scope|permissions?)",
        on=r"""
        {"errors":[{"message":"No","extensions":{"code":"FORBIDDEN"}}]}
        """,
        not_on=r"""
        {"type": "fruit", "name": "forbidden"}
        """,
    ),
    _coded(
        "server",
        _EXTERNAL,
        Cause.SERVER_ERROR,
        "internal(?: server)?(?: error)?|service unavailable|overloaded|server|downstream service error",
        on=r"""
        {"errors":[{"message":"Oops","extensions":{"code":"INTERNAL_SERVER_ERROR"}}]}
        """,
        not_on=r"""
        {"type": "desktop", "model": "server"}
        """,
    ),
    _coded(
        "form",
        FailureType.SCHEMA_MISMATCH,
        Cause.BAD_REQUEST,
        "bad user input|bad request|graphql (?:parse|validation) failed|validation(?: failed)?|"
        "invalid (?:request|argument)",
        on=r"""
        {"errors":[{"message":"No","extensions":{"code":"BAD_USER_INPUT"}}]}
        {"error": {"type": "invalid_request_error", "message": "No"}}
        """,
        not_on=r"""
        {"type": "invalid", "seats": 2}
        """,
    ),
)

WORLD_TEXTS: tuple[Rule, ...] = (
    _rule(
        "tls",
        _EXTERNAL,
        Cause.TLS,
        _phrases.TLS,
        on=r"""
        [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed
        """,
        not_on=r"""
        the birth certificate is expired
        certificate of origin
        """,
    ),
    _rule(
        "dns",
        _EXTERNAL,
        Cause.DNS,
        _phrases.DNS,
        on=r"""
        [Errno -2] Name or service not known
        net::ERR_NAME_NOT_RESOLVED
        """,
        not_on=r"""
        customer name not known
        could not resolve the dispute
        """,
    ),
    _rule(
        "redirects",
        _EXTERNAL,
        Cause.BAD_REQUEST,
        r"""
        too many redirects
        redirect loop
        redirect error that would lead to an infinite loop
        (?:exceeded|more than) \d{1,4} redirects
        err too many redirects
        """,
        on=r"""
        HTTP Error 302: a redirect error that would lead to an infinite loop.
        Exceeded 30 redirects.
        """,
        not_on=r"""
        the redirect was followed
        """,
        severity=Severity.CRITICAL,
    ),
    _rule(
        "circuit",
        _EXTERNAL,
        Cause.CIRCUIT_OPEN,
        r"""
        circuit (?:for |of )?['\"`][\w.: ]{0,60}['\"`] (?:is |was |has )?tripped
        circuit (?:breaker )?['\"`]?[\w.:]{0,60}['\"`]? ?is (?:currently |still )?open(?= ?(?:$|[.,;:]))
        circuit breaker (?:still )?open
        (?:circuit ?)?breaker ['\"`]?[\w.: ]{0,60}?['\"`]? ?(?:is |was |has been |still |currently |now |
            got ){0,3}(?:open|
            opened|tripped)(?= ?(?:$|[.,;:(]|until|for|after))
        """,
        on=r"""
        Circuit payments is open
        Timeout not elapsed yet, circuit breaker still open
        """,
        not_on=r"""
        the circuit was short
        circuit training is open to members
        """,
    ),
    _rule(
        "lock",
        _EXTERNAL,
        Cause.CONFLICT,
        _phrases.LOCK,
        on=r"""
        database is locked
        deadlock detected
        """,
        not_on=r"""
        the door is locked
        busy schedule
        """,
    ),
    _rule(
        "timeout",
        _EXTERNAL,
        Cause.TIMEOUT,
        _phrases.TIMEOUT,
        on=r"""
        Request timed out.
        Timed out after 0.3s waiting for 'tools/call'
        connection timeout expired
        """,
        not_on=r"""
        timeout parameter must be positive
        Timeout value connect was fast, but it must be an int, float or None.
        retry() got an unexpected keyword argument 'timeout'
        """,
        unquoted=True,
    ),
    _rule(
        "connection",
        _EXTERNAL,
        Cause.CONNECTION,
        _phrases.CONNECTION,
        on=r"""
        <urlopen error [Errno 111] Connection refused>
        Connection error.
        All connection attempts failed
        """,
        not_on=r"""
        port 503 closed
        the connection is closed
        Cannot send a request, as the client has been closed.
        """,
        unquoted=True,
    ),
    _rule(
        "quota",
        _EXTERNAL,
        Cause.QUOTA_EXHAUSTED,
        _phrases.QUOTA,
        on=r"""
        insufficient_quota
        You exceeded your current quota
        """,
        not_on=r"""
        the quota of fish
        """,
        unquoted=True,
        source=_PROVIDERS,
    ),
    _rule(
        "rate",
        _EXTERNAL,
        Cause.RATE_LIMITED,
        _phrases.RATE,
        on=r"""
        rate limit exceeded
        upstream rate limit reached, retry after 15 seconds
        429 Too Many Requests
        """,
        not_on=r"""
        rate limit must be an integer
        order #429 rejected
        customer 'Too Many Requests Ltd' is unknown
        """,
        unquoted=True,
        source=_PROVIDERS,
    ),
    _rule(
        "model",
        _EXTERNAL,
        Cause.MODEL_MISSING,
        r"""
        is not a valid model(?: identifier| id| name)
        model ['\"`][\w./: ]{1,80}['\"`] (?:was |is )?(?:not found|not available|does not exist|retired)
        model (?=[\w./: ]{0,50}\d[\w./: ]{0,50} (?:has been|is) )[\w./: ]{1,80} (?:has been|
            is) (?:deprecated|decommissioned)
        """,
        on=r"""
        lab/none is not a local folder and is not a valid model identifier listed on the hub
        model 'llama9' not found
        """,
        not_on=r"""
        the model of the car is unknown
        """,
    ),
    _rule(
        "no_quota",
        _EXTERNAL,
        Cause.QUOTA_EXHAUSTED,
        r"""
        quota (?:has been |was |is )?(?:exceeded|exhausted|used up)
        """,
        on=r"""
        quota exceeded for this project
        """,
        not_on=r"""
        customer 'Quota Exceeded Ltd' has no tax number on file
        """,
        unquoted=True,
        source=_PROVIDERS,
    ),
    _rule(
        "unavailable",
        _EXTERNAL,
        Cause.UNAVAILABLE,
        _phrases.UNAVAILABLE,
        on=r"""
        upstream: service unavailable
        529 overloaded
        sorry, too many clients already
        """,
        not_on=r"""
        customer 'Service Unavailable GmbH' has no tax number on file
        user 500 not found
        name 'service_unavailable' is not defined
        """,
        unquoted=True,
    ),
    _rule(
        "disk",
        _EXTERNAL,
        Cause.RESOURCE_EXHAUSTED,
        r"""
        no ?space ?left(?: on device)?
        (?:database or )?disk (?:is )?full
        disk quota exceeded
        used memory > 'maxmemory'
        too many open files
        unable to persist (?:on|to) disk
        unable to extend (?:table|index|segment|tablespace)
        \[(?:errno (?:24|28|122)|winerror 112)\]
        kein speicherplatz
        aucun espace disponible
        no queda espacio
        """,
        on=r"""
        database or disk is full
        [Errno 28] No space left on device
        """,
        not_on=r"""
        the bus is full
        """,
    ),
    _rule(
        "config",
        _EXTERNAL,
        Cause.MISSING_CONFIG,
        r"""
        missing credentials
        api ?key (?:is |was |must be )?(?:not set|missing|required|set|provided)
        set the .{0,60}environment variable
        (?:could not find|unable to locate|no) (?:default )?credentials
        no .{0,30}is loaded\. please configure
        credentials were not found
        must specify a region
        missing api ?key
        (?:api ?key|credentials?(?: file)?) (?:(?:was|is|were|are|could) )?not (?:be )?found
        """,
        on=r"""
        Missing credentials. Please pass an `api_key`
        Unable to locate credentials
        API key not found in the environment
        """,
        not_on=r"""
        the key is missing from the piano
        """,
    ),
    _rule(
        "auth",
        _EXTERNAL,
        Cause.AUTH,
        _phrases.AUTH,
        on=r"""
        FATAL: password authentication failed for user "agent"
        invalid_api_key
        """,
        not_on=r"""
        the password field is empty
        author unknown
        """,
    ),
    _rule(
        "permission",
        _EXTERNAL,
        Cause.PERMISSION,
        _phrases.PERMISSION,
        on=r"""
        attempt to write a readonly database
        permission denied for table salaries
        """,
        not_on=r"""
        planning permission granted
        """,
        unquoted=True,
    ),
)
