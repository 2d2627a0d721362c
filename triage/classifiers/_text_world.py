"""Rules on the words of any message: the other side, the machine, and things that are not there."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from . import _phrases
from ._rule import Rule
from ._rule import word_rule as _rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_MISSING = FailureType.HALLUCINATED_STATE
_UNKNOWN = FailureType.UNKNOWN
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
        "lock",
        _EXTERNAL,
        Cause.CONFLICT,
        r"""
        (?:database|table|file|resource) (?:is|schema is) locked
        deadlock (?:detected|found)
        lock wait timeout
        could not serialize access
        could not be acquired
        resource (?:is )?busy
        resource temporarily unavailable
        is locked by another
        address already in use
        conflicted with another operation
        version conflict
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
        tab crashed
        cluster is down
        no healthy upstream
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
        """,
        on=r"""
        Missing credentials. Please pass an `api_key`
        Unable to locate credentials
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
            auth token|bearer token)
        (?:password )?authentication failed
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
    _rule(
        "deployment",
        _UNKNOWN,
        Cause.DEPLOYMENT,
        r"""
        please install
        pip install
        executable doesn'?t exist
        command not found
        no module named
        is not installed
        playwright install
        executable needs to be in path
        """,
        on=r"""
        Please install 'mlx-lm' extra
        /bin/sh: foo: command not found
        """,
        not_on=r"""
        the kitchen was installed
        """,
        severity=Severity.CRITICAL,
    ),
    _rule(
        "mailbox_later",
        _EXTERNAL,
        Cause.UNAVAILABLE,
        r"""
        \(4\d\d, b'[^']{1,200}
        """,
        on=r"""
        {'bob@lab': (450, b'4.2.0 try later')}
        """,
        not_on=r"""
        (450, 12)
        """,
    ),
    _rule(
        "mailbox",
        _MISSING,
        Cause.MISSING_RESOURCE,
        r"""
        \(55[013], b'[^']{1,200}
        mailbox (?:unavailable|not found|does not exist)
        """,
        on=r"""
        {'bob@lab': (550, b'5.1.1 no such account')}
        """,
        not_on=r"""
        (550, 12)
        """,
    ),
    _rule(
        "missing",
        _MISSING,
        Cause.MISSING_RESOURCE,
        r"""
        no such (?:table|column|index|view|function|collection|bucket|key|container|element|
            file or directory|command|container|image|index|object|database|queue|topic|channel|
            resource|document)
        (?:collection|index|table|queue|bucket|channel|document|dataset|container|repository|
            branch|element|topic|resource|database|schema|relation|column|worksheet|namespace|
            secret|object):? ['\"`]?[\w./:@#-]{1,120}['\"`]? (?:(?:was |could |
            is )?not (?:be )?found|(?:does not|doesn'?t) exist|is unknown)
        (?:resource|file|page|element|element|document|object|key|index|collection) (?:was |
            is )?not found
        unknown (?:resource|column|table|database|collection|index|topic)
        (?:relation|column|function|table|type|database|schema|role) .{1,120} does(?: not|
            n'?t) exist
        stale element
        unable to locate element
        invalid session id
        element click intercepted
        """,
        on=r"""
        no such table: sales_q9
        Collection papers not found
        Unknown resource: lab://nothing
        relation "x" does not exist
        """,
        not_on=r"""
        user 500 not found
        tool hammer not found in aisle 4
        the parrot does not exist anymore
        """,
    ),
)
