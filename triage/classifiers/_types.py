"""Rules on names of the other side's faults, and on the built-in exceptions."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from ._rule import Rule
from ._rule import name_rule as _rule

_EXTERNAL = FailureType.EXTERNAL_FAULT

FAULT_NAMES: tuple[Rule, ...] = (
    _rule(
        "rate_limited",
        _EXTERNAL,
        Cause.RATE_LIMITED,
        """
        rate limit, rate limited, ratelimited, ratelimit, rate limit exceeded, rate limit reached,
        rate exceeded, too many requests, throttling, throttled, throttle, throughput exceeded,
        request limit exceeded, slow down, resource exhausted, request rate too large, requests
        limit exceeded, rejected execution, flood wait, flood control, retry after, request quota
        exceeded, tokens per minute exceeded, limit burst exceeded, concurrency limit exceeded
        """,
        examples="RateLimitError TooManyRequests rate_limit_exceeded ThrottlingException",
        near="RateLimitConfigError RateLimitSettings",
        weak=True,
    ),
    _rule(
        "quota",
        _EXTERNAL,
        Cause.QUOTA_EXHAUSTED,
        """
        insufficient quota, quota exhausted, quota exceeded, billing, billing hard limit reached,
        insufficient balance, insufficient credits, insufficient funds, payment required, credit
        limit, credits exhausted, billing not active, service quota exceeded, account balance too
        low, spend limit exceeded, out of credits, usage limit exceeded, usage limit reached,
        credits exceeded, insufficient credit, billing disabled, spend limit reached, spending limit
        reached, spending limit exceeded
        """,
        examples="insufficient_quota LMBillingError billing_hard_limit_reached",
        near="QuotaReport BillingAddress",
    ),
    _rule(
        "overloaded",
        _EXTERNAL,
        Cause.OVERLOADED,
        """
        overloaded, queue exceeded, server busy, too busy, over capacity, capacity exceeded
        """,
        examples="OverloadedError overloaded_error queue_exceeded",
        near="OverloadedMethodResolver",
    ),
    _rule(
        "unavailable",
        _EXTERNAL,
        Cause.UNAVAILABLE,
        """
        service unavailable, unavailable, unavailable for now, not primary, not writable primary,
        shutdown in progress, bad gateway, too many connections, cannot connect now, busy loading,
        cluster down, model not ready, admin shutdown, no brokers available, ftplib.error_temp,
        master down, try again, tab crashed,
        selenium.common.exceptions.InvalidSessionIdException, primary stepped down, interrupted
        at shutdown, no master, not discovered, target closed, not available, no responders, busy,
        down, worker busy, not ready, transient, on maintenance, slot not covered, empty pool, full
        pool, pool exhausted, =again, not leader for partition, not leader or follower, not
        coordinator, not controller
        """,
        examples="ServiceUnavailable NotPrimaryError cluster_manager_not_discovered_exception",
        near="UnavailableItemReport",
    ),
    _rule(
        "server_error",
        _EXTERNAL,
        Cause.SERVER_ERROR,
        """
        internal server, server, =internal, internal failure, internal service, =backend, =fatal,
        =model error, phase execution
        """,
        examples="InternalServerError server_error internal_error",
        near="ServerSettings",
        weak=True,
    ),
    _rule(
        "timeout",
        _EXTERNAL,
        Cause.TIMEOUT,
        """
        timeout, timed out, time out, timeout expired, deadline exceeded, time limit exceeded, too
        slow, gateway timeout, max time ms expired, query canceled, request timeout, lifetime
        timeout, exceeded time limit
        """,
        examples="ReadTimeout APITimeoutError TimeoutException DeadlineExceeded MaxTimeMSExpired",
        near="TimeoutConfigError TimeoutSettings",
    ),
    _rule(
        "redirects",
        _EXTERNAL,
        Cause.BAD_REQUEST,
        """
        too many redirects, redirect loop, redirect limit
        """,
        examples="TooManyRedirects",
        near="RedirectSettings",
        severity=Severity.CRITICAL,
    ),
    _rule(
        "dns",
        _EXTERNAL,
        Cause.DNS,
        """
        gaierror, herror, name resolution, dns, nxdomain, no nameservers, host not found, unknown
        host, no answer
        """,
        examples="gaierror NameResolutionError ClientConnectorDNSError NXDOMAIN",
        near="DNSRecordEditor",
    ),
    _rule(
        "tls",
        _EXTERNAL,
        Cause.TLS,
        """
        ssl, ssl cert verification, certificate, insecure certificate, tls, bad host key, handshake
        failure, cert verification, fingerprint mismatch, incompatible peer
        """,
        examples="SSLError SSLCertVerificationError InsecureCertificateException",
        near="CertificatePrinter",
        weak=True,
    ),
    _rule(
        "connection",
        _EXTERNAL,
        Cause.CONNECTION,
        """
        connect, connection, network, transport, remote protocol, protocol, chunked encoding, client
        payload, new connection, incomplete read, bad status line, remote disconnected,
        disconnected, max retry, connection refused, connection reset, broken pipe, connection
        aborted, connection closed, stream lost, connection lost, client connector, client os, api
        connection, proxy, connection failure, auto reconnect, connection does not exist, end of
        stream, server disconnected, incompatible protocol, connection closed by broker, server
        handshake, invalid handshake, invalid status, broken resource, content length, no valid
        connections, service request, service response, connection timeout wrapper, communication,
        connect call failed, peer gone, no servers, no host available, ssleof, ssl zero return, ssl
        syscall, imaplib.IMAP4.abort, disconnection, not connected, response streaming, http client,
        proxy command failure, content too short
        """,
        examples="ConnectError APIConnectionError RemoteProtocolError ServerDisconnectedError",
        near="ConnectionSettings ProtocolVersionTable",
        weak=True,
    ),
    _rule(
        "auth",
        _EXTERNAL,
        Cause.AUTH,
        """
        authentication, authentication failed, unauthorized, unauthenticated, bad credentials,
        invalid api key, auth, invalid auth, not authed, token revoked, token expired, expired
        token, invalid token, invalid password, login, unrecognized client, invalid client token id,
        signature does not match, account inactive, wrong api key, expired signature, invalid
        signature, ldap bind, =refresh, invalid credentials, invalid grant, authentication required,
        client authentication, password required, invalid authorization specification, no
        authentication, incomplete signature, missing authentication token, missing token,
        unauthorized *, request time too skewed, invalid access key id, signature expired, bad
        signature, =logon, no auth token, token load, token retrieval, token renewal, token provider,
        token exchange, two factor, signature verification, interaction required, consent required,
        login required, invalid client, invalid client id, account
        suspended, account disabled, account deactivated, api key invalid, api key expired, invalid
        session id
        """,
        examples="AuthenticationError invalid_api_key token_revoked BadCredentialsException",
        near="AuthorBiography LoginPage",
        weak=True,
    ),
    _rule(
        "permission",
        _EXTERNAL,
        Cause.PERMISSION,
        """
        permission denied, forbidden, permission, access denied, insufficient privilege, gated repo,
        authorization, missing scope, not authorized, request forbidden, insufficient permissions,
        insufficient access rights, forbidden *, restricted action, read only, operation not
        permitted, unsupported country region territory, sender refused, access refused, not allowed
        token type, read only sql transaction, readonly, insufficient privileges, authorization failed,
        invalid scope, on hold, service disabled, consumer suspended
        """,
        examples="PermissionDeniedError ForbiddenError missing_scope AuthorizationException",
        near="PermissionTable",
        weak=True,
    ),
    _rule(
        "model_missing",
        _EXTERNAL,
        Cause.MODEL_MISSING,
        """
        model not found, deployment not found, invalid model, unsupported model, model not
        available, model decommissioned, model does not exist, unknown model, model unavailable,
        model deprecated
        """,
        examples="model_not_found DeploymentNotFound LMUnsupportedModelError",
        near="ModelNotFittedError",
    ),
    _rule(
        "missing_config",
        _EXTERNAL,
        Cause.MISSING_CONFIG,
        """
        default credentials, no credentials, partial credentials, no region, profile not found,
        credential unavailable, credentials unavailable, config not found, missing credentials,
        credential retrieval, improperly configured, missing configuration, missing api key, no api
        key, api key missing, api key not found, api key not set
        """,
        examples="DefaultCredentialsError NoCredentialsError NoRegionError",
        near="CredentialsPrinted",
    ),
    _rule(
        "conflict",
        _EXTERNAL,
        Cause.CONFLICT,
        """
        conflict, version conflict, version conflict engine, serialization failure, stale data,
        optimistic lock, write conflict, precondition failed, aborted, concurrent modification,
        resource modified, transaction rollback, conditional check failed, transaction canceled,
        lock not available, locked, already locked, lock, resource in use, resource locked,
        transaction conflict, =watch, concurrency, lock lost, in progress, unable to lock row
        """,
        examples="ConflictError version_conflict_engine_exception WriteConflict",
        near="ConflictReport",
    ),
    _rule(
        "deadlock",
        _EXTERNAL,
        Cause.DEADLOCK,
        """
        deadlock, deadlock detected, deadlock found
        """,
        examples="DeadlockDetected",
        near="DeadlockPrinter",
    ),
    _rule(
        "circuit",
        _EXTERNAL,
        Cause.CIRCUIT_OPEN,
        """
        circuit breaker, circuit open, breaker open, circuit breaker open, bucket full, circuit
        breaking, bulkhead full
        """,
        examples="CircuitBreakerError circuit_breaking_exception BucketFullException",
        near="CircuitDiagram",
    ),
    _rule(
        "exhausted",
        _EXTERNAL,
        Cause.RESOURCE_EXHAUSTED,
        """
        disk full, cluster block, no space, storage full, no space left, out of memory, storage limit
        exceeded
        """,
        examples="DiskFull cluster_block_exception",
        near="DiskFullnessReport",
    ),
    _rule(
        "process_died",
        _EXTERNAL,
        Cause.PROCESS_DIED,
        """
        broken process pool, broken thread pool, broken executor, broken interpreter pool, worker
        lost, worker died, process died, terminated worker, process exited, broken worker process,
        broken worker interpreter
        """,
        examples="BrokenProcessPool WorkerLostError",
        near="WorkerListing",
    ),
    _rule(
        "deployment",
        FailureType.UNKNOWN,
        Cause.DEPLOYMENT,
        """
        not installed, missing dependency, missing dependencies, missing package, missing extra,
        missing module, missing optional dependency, dependency not found, no such module, no such
        driver, unknown driver, optional dependency, optional dependency not available, not
        installed *
        """,
        examples="DriverNotInstalledError MissingDependencyException NoSuchModuleError",
        near="DependencyGraph",
        severity=Severity.CRITICAL,
    ),
    _rule(
        "session",
        _EXTERNAL,
        Cause.UNAVAILABLE,
        """
        session not created
        """,
        examples="SessionNotCreatedException",
        near="SessionNotes",
        severity=Severity.CRITICAL,
    ),
)

_UNKNOWN = FailureType.UNKNOWN


def _built_in(name: str, cause: Cause | None, severity: Severity, classes: str) -> Rule:
    """A rule on full class names, those without a module being built in."""
    keys = tuple(key if "." in key else f"builtins.{key}" for key in classes.split())
    return Rule(
        f"builtin.{name}",
        _UNKNOWN,
        cause,
        "name",
        keys,
        severity,
        confidence=0.6,
        source="the language: a defect in the code around the agent, which no other plan repairs",
        examples=keys,
        near_misses=("builtins.ValueError", "builtins.RuntimeError"),
    )


BUILT_IN_RULES: tuple[Rule, ...] = (
    _built_in(
        "cancelled",
        Cause.CANCELLED,
        Severity.FATAL,
        """
        asyncio.exceptions.CancelledError concurrent.futures._base.CancelledError trio.Cancelled
        KeyboardInterrupt SystemExit GeneratorExit
        """,
    ),
    _built_in(
        "memory",
        Cause.OUT_OF_MEMORY,
        Severity.FATAL,
        "MemoryError torch.OutOfMemoryError torch.cuda.OutOfMemoryError",
    ),
    _built_in("deployment", Cause.DEPLOYMENT, Severity.CRITICAL, "ImportError ModuleNotFoundError"),
    _built_in(
        "code",
        Cause.CODE_ERROR,
        Severity.CRITICAL,
        """
        NameError AttributeError NotImplementedError RecursionError SyntaxError Warning
        asyncio.exceptions.InvalidStateError sqlalchemy.exc.InvalidRequestError
        cattrs.errors.StructureHandlerNotFoundError
        """,
    ),
    _built_in(
        "config",
        Cause.MISSING_CONFIG,
        Severity.CRITICAL,
        "configparser.NoSectionError configparser.NoOptionError",
    ),
    _built_in(
        "data",
        None,
        Severity.RECLASSIFICATION,
        """
        TypeError KeyError IndexError ArithmeticError AssertionError StopIteration
        StopAsyncIteration BufferError ReferenceError SystemError EOFError
        subprocess.CalledProcessError
        """,
    ),
)
