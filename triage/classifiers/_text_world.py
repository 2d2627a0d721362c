"""Rules on the words of any message: the other side and the machine."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from . import _phrases
from ._rule import Rule
from ._rule import word_rule as _rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_PROVIDERS = "documented error texts of model and API providers"

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
        circuit (?:breaker )?['\"`]?[\w.:]{0,60}['\"`]? ?is (?:currently |still )?open(?= ?(?:$|[.,;:]))
        circuit breaker (?:still )?open
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
        r"""
        (?:database|table|file|resource) (?:is|schema is) locked
        deadlock (?:detected|found)
        lock wait timeout
        could not serialize access
        could not be acquired
        (?:resource|device) (?:is )?busy
        is busy running
        resource temporarily unavailable
        is locked by another
        deadlock victim
        address already in use
        conflicted with another operation
        (?:version|write|update) conflict
        already in use
        """,
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
        r"""
        service (?:is )?(?:temporarily |currently )?unavailable
        bad gateway
        internal server error
        overloaded(?: error)?
        server (?:is )?(?:too )?busy
        too many (?:clients|users)
        (?:database|server|system) (?:system )?is (?:starting up|shutting down|in recovery)
        remaining connection slots
        service shutting down
        (?:tab|page|target) crashed
        cluster is down
        no healthy upstream
        no cluster leader
        no leader (?:elected|available|for partition)
        model is (?:currently )?loading
        connection slots are reserved
        too many connections
        internal error encountered
        """,
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
        no space left on device
        (?:database or )?disk (?:is )?full
        disk quota exceeded
        used memory > 'maxmemory'
        too many open files
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
        r"""
        (?:invalid|incorrect|wrong|expired|revoked) (?:api ?key|credentials|password|access token|
            auth token|bearer token|user ?name)
        (?:api ?key|access key|credentials?|password) (?:has |have |is |are )?(?:been )?(?:expired|revoked)
        (?:password )?authentication failed(?! to )
        invalid grant
        bad credentials
        no pg hba\.conf entry
        login (?:was )?refused
        login incorrect
        invalidcredentials
        not logged in
        noauth \w{1,100}
        wrongpass \w{1,100}
        authentication (?:is )?required
        access denied for user
        incorrect (?:username|user name|login|password)(?: or password)?
        username and password not accepted
        token has (?:been )?(?:expired|revoked)
        unauthenticated
        logon failure
        """,
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
        r"""
        permission denied
        access denied
        permission to access .{1,80} denied
        (?:do|does) not have (?:the )?(?:\w{1,20} )?permissions?
        don'?t have (?:the )?(?:\w{1,20} )?permissions?
        read ?only (?:database|transaction|file system)
        unable to open database file
        operation not permitted
        not authorized (?:on|to|for)
        insufficient (?:permissions?|privileges?|scopes?)
        sender address rejected
        """,
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
