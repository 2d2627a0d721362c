"""Rules on names: faults of the other side, what the agent did wrong, and the built-in exceptions."""

from __future__ import annotations

from triage.core.taxonomy import Cause, FailureType, Severity

from .rule import Rule
from .rule import name_rule as _name

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_UNKNOWN = FailureType.UNKNOWN
_WRONG_TOOL = FailureType.WRONG_TOOL_CALLED
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW
_INCOMPLETE = FailureType.PLAN_INCOMPLETE

# fmt: off
FAULT_NAMES: tuple[Rule, ...] = (
    _name("rate_limited", _EXTERNAL, Cause.RATE_LIMITED, """
        rate limit, rate limited, ratelimited, ratelimit, rate limit exceeded, rate limit reached,
        rate exceeded, too many requests, throttling, throttled, throttle, throughput exceeded,
        request limit exceeded, slow down, resource exhausted, request rate too large,
        requests limit exceeded, rejected execution, flood wait, flood control, retry after,
        request quota exceeded, tokens per minute exceeded, limit burst exceeded,
        concurrency limit exceeded, too many simultaneous queries
        + RateLimitError TooManyRequests rate_limit_exceeded ThrottlingException
        - RateLimitConfigError RateLimitSettings
        """, weak=True),
    _name("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, """
        insufficient quota, quota exhausted, quota exceeded, billing, billing hard limit reached, =quota,
        insufficient balance, insufficient credits, insufficient funds, payment required,
        credit limit, credits exhausted, billing not active, service quota exceeded,
        account balance too low, spend limit exceeded, out of credits, usage limit exceeded,
        usage limit reached, credits exceeded, insufficient credit, billing disabled,
        spend limit reached, spending limit reached, spending limit exceeded,
        daily limit exceeded, daily limit, resource limit exceeded
        + insufficient_quota QuotaError LMBillingError billing_hard_limit_reached
        - QuotaReport BillingAddress
        """),
    _name("overloaded", _EXTERNAL, Cause.OVERLOADED, """
        overloaded, queue exceeded, queue full, server busy, too busy, over capacity, capacity exceeded,
        insufficient capacity, insufficient instance capacity, insufficient host capacity,
        resource insufficient
        + OverloadedError InsufficientInstanceCapacity overloaded_error queue_exceeded
        - OverloadedMethodResolver
        """),
    _name("unavailable", _EXTERNAL, Cause.UNAVAILABLE, """
        service unavailable, unavailable, unavailable for now, not primary, not writable primary,
        shutdown in progress, bad gateway, too many connections, cannot connect now, busy loading,
        cluster down, model not ready, admin shutdown, no brokers available, ftplib.error_temp,
        master down, try again, tab crashed, selenium.common.exceptions.InvalidSessionIdException,
        primary stepped down, interrupted at shutdown, no master, not discovered, target closed,
        not available, no responders, busy, down, worker busy, not ready, transient, on maintenance,
        slot not covered, empty pool, full pool, pool exhausted, =again, not leader for partition,
        not leader or follower, not coordinator, not controller, not enough replicas
        + ServiceUnavailable NotPrimaryError cluster_manager_not_discovered_exception
        - UnavailableItemReport
        """),
    _name("server_error", _EXTERNAL, Cause.SERVER_ERROR, """
        internal server, server, =internal, internal failure, internal service, =backend, =fatal,
        =model error, phase execution, =service, =gateway, external
        + InternalServerError server_error internal_error
        - ServerSettings
        """, weak=True),
    _name("timeout", _EXTERNAL, Cause.TIMEOUT, """
        timeout, timed out, time out, timeout expired, deadline exceeded, time limit exceeded,
        too slow, gateway timeout, max time ms expired, query canceled, request timeout,
        lifetime timeout, exceeded time limit
        + ReadTimeout APITimeoutError TimeoutException DeadlineExceeded MaxTimeMSExpired
        - TimeoutConfigError TimeoutSettings
        """),
    _name("redirects", _EXTERNAL, Cause.BAD_REQUEST, """
        too many redirects, redirect loop, redirect limit
        + TooManyRedirects
        - RedirectSettings
        """, severity=Severity.CRITICAL),
    _name("dns", _EXTERNAL, Cause.DNS, """
        gaierror, herror, name resolution, dns, nxdomain, no nameservers, host not found,
        unknown host, no answer, server not found
        + gaierror NameResolutionError ClientConnectorDNSError NXDOMAIN
        - DNSRecordEditor
        """),
    _name("tls", _EXTERNAL, Cause.TLS, """
        ssl, ssl cert verification, certificate, insecure certificate, tls, bad host key,
        handshake failure, cert verification, host key not verifiable,
        fingerprint mismatch, incompatible peer
        + SSLError SSLCertVerificationError InsecureCertificateException
        - CertificatePrinter
        """, weak=True),
    _name("connection", _EXTERNAL, Cause.CONNECTION, """
        connect, connection, network, transport, remote protocol, protocol, chunked encoding,
        client payload, new connection, incomplete read, bad status line, remote disconnected,
        disconnected, max retry, connection refused, connection reset, broken pipe,
        connection aborted, connection closed, connection loss, stream lost, connection lost,
        client connector,
        client os, api connection, proxy, connection failure, auto reconnect,
        connection does not exist, end of stream, server disconnected, incompatible protocol,
        connection closed by broker, unexpected close, server handshake, invalid handshake, invalid status,
        broken resource, content length, no valid connections, service request, service response,
        connection timeout wrapper, communication, connect call failed, peer gone, no servers,
        no host available, ssleof, ssl zero return, ssl syscall, imaplib.IMAP4.abort, disconnection,
        not connected, connector, response streaming, http client, proxy command failure, content too short,
        unreachable, unreachable host
        + ConnectError APIConnectionError RemoteProtocolError ServerDisconnectedError
        - ConnectionSettings ProtocolVersionTable
        """, weak=True),
    _name("auth", _EXTERNAL, Cause.AUTH, """
        authentication, authentication failed, unauthorized, unauthenticated, bad credentials,
        invalid api key, auth, invalid auth, not authed, token revoked, token expired,
        expired token, invalid token, invalid password, login, unrecognized client,
        invalid client token id, signature does not match, account inactive, wrong api key,
        expired signature, invalid signature, ldap bind, =refresh, invalid credentials,
        invalid grant, authentication required, client authentication, password required,
        invalid authorization specification, no authentication, incomplete signature,
        missing authentication token, missing token, unauthorized *, request time too skewed,
        invalid access key id, signature expired, bad signature, =logon, no auth token, token load,
        token retrieval, token renewal, token provider, token exchange, two factor,
        signature verification, interaction required, consent required, login required,
        invalid client, invalid client id, account suspended, account disabled, account deactivated,
        api key invalid, api key expired, invalid session id, invalid api keys, session expired,
        token refresh required
        + AuthenticationError invalid_api_key token_revoked BadCredentialsException
        - AuthorBiography LoginPage
        """, weak=True),
    _name("permission", _EXTERNAL, Cause.PERMISSION, """
        permission denied, forbidden, permission, access denied, insufficient privilege, gated repo,
        authorization, missing scope, not authorized, request forbidden, insufficient permissions,
        insufficient access rights, forbidden *, restricted action, read only,
        operation not permitted, unsupported country region territory, sender refused,
        access refused, not allowed token type, read only sql transaction, readonly,
        insufficient privileges, authorization failed, invalid scope, on hold, service disabled,
        consumer suspended
        + PermissionDeniedError ForbiddenError missing_scope AuthorizationException
        - PermissionTable
        """, weak=True),
    _name("model_missing", _EXTERNAL, Cause.MODEL_MISSING, """
        model not found, deployment not found, invalid model, unsupported model,
        model not available, model decommissioned, model does not exist, unknown model,
        model deprecated
        + model_not_found DeploymentNotFound LMUnsupportedModelError
        - ModelNotFittedError
        """),
    _name("missing_config", _EXTERNAL, Cause.MISSING_CONFIG, """
        default credentials, no credentials, partial credentials, no region, profile not found,
        credential unavailable, credentials unavailable, config not found, missing credentials,
        credential retrieval, improperly configured, missing configuration, missing api key,
        no api key, api key missing, api key not found, api key not set
        + DefaultCredentialsError NoCredentialsError NoRegionError
        - CredentialsPrinted
        """),
    _name("conflict", _EXTERNAL, Cause.CONFLICT, """
        conflict, version conflict, version conflict engine, serialization failure, stale data,
        optimistic lock, write conflict, precondition failed, aborted, concurrent modification,
        resource modified, transaction rollback, conditional check failed, transaction canceled,
        lock not available, locked, already locked, lock, resource in use, resource locked,
        already enqueued, already started, already running, bad version, locked resource,
        transaction conflict, =watch, concurrency, lock lost, in progress, unable to lock row
        + ConflictError version_conflict_engine_exception WriteConflict
        - ConflictReport
        """),
    _name("deadlock", _EXTERNAL, Cause.DEADLOCK, """
        deadlock, deadlock detected, deadlock found
        + DeadlockDetected
        - DeadlockPrinter
        """),
    _name("circuit", _EXTERNAL, Cause.CIRCUIT_OPEN, """
        circuit breaker, circuit open, breaker open, circuit breaker open, bucket full,
        circuit breaking, bulkhead full
        + CircuitBreakerError circuit_breaking_exception BucketFullException
        - CircuitDiagram
        """),
    _name("exhausted", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, """
        disk full, cluster block, no space, storage full, no space left, out of memory,
        storage limit exceeded, memory limit exceeded, map full,
        memory limit, not enough space, insufficient storage
        + DiskFull cluster_block_exception
        - DiskFullnessReport
        """),
    _name("process_died", _EXTERNAL, Cause.PROCESS_DIED, """
        broken process pool, broken thread pool, broken executor, broken interpreter pool,
        worker lost, worker died, process died, terminated worker, process exited,
        broken worker process, broken worker interpreter
        + BrokenProcessPool WorkerLostError
        - WorkerListing
        """),
    _name("deployment", _UNKNOWN, Cause.DEPLOYMENT, """
        not installed, missing dependency, missing dependencies, missing package, missing extra,
        missing module, missing optional dependency, dependency not found, no such module,
        no such driver, unknown driver, optional dependency, optional dependency not available,
        not installed *
        + DriverNotInstalledError MissingDependencyException NoSuchModuleError
        - DependencyGraph
        """, severity=Severity.CRITICAL),
    _name("session", _EXTERNAL, Cause.UNAVAILABLE, """
        session not created
        + SessionNotCreatedException
        - SessionNotes
        """, severity=Severity.CRITICAL),
)

AGENT_NAMES: tuple[Rule, ...] = (
    _name("unknown_tool", _WRONG_TOOL, Cause.UNKNOWN_TOOL, """
        unknown tool, tool not found, no such tool, invalid tool, tool not available,
        unknown function, function not found, command not found, no such command,
        unknown method, tool not registered, tool does not exist, invalid tool name,
        method not found, method unavailable, unregistered tool, unknown action, no such action
        + UnknownToolError ToolNotFoundError CommandNotFound unknown_method
        - ToolNotFoundSettings ToolBox
        """),
    _name("step_budget", _INCOMPLETE, Cause.STEP_BUDGET, """
        graph recursion, max iterations, max turns exceeded, max iterations reached, max steps,
        max steps reached, max turns, max steps exceeded, iteration limit,
        pydantic_ai.exceptions.UsageLimitExceeded, max iterations exceeded, max component runs,
        step limit, turn limit exceeded, step limit exceeded, step limit reached, agent max steps,
        max rounds, rounds exceeded, call limit exceeded, call limits exceeded
        + GraphRecursionError MaxTurnsExceeded MaxIterationsReached AgentMaxStepsError
        - MaxStepsTable
        """),
    _name("spend_budget", _INCOMPLETE, Cause.STEP_BUDGET, """
        budget exceeded, budget exhausted, cost limit exceeded, max budget exceeded
        + BudgetExceededError budget_exceeded
        - BudgetTable
        """, severity=Severity.CRITICAL),
    _name("context", _OVERFLOW, Cause.CONTEXT_LENGTH, """
        context window exceeded, context length exceeded, context overflow, context length,
        prompt too long, context window, token limit exceeded, context size, input too long,
        exceed context size, context window overflow, string above max length, tokens exceeded,
        request too large, max context length exceeded, tokens limit reached, token limit reached
        + context_length_exceeded ContextWindowExceededError exceed_context_size_error
        + tokens_limit_reached
        - ContextWindowButton ContextManager
        """),
    _name("output_cut", _OVERFLOW, Cause.OUTPUT_CUT, """
        length finish reason, incomplete output, max tokens reached, output truncated,
        max output tokens, output token limit exceeded
        + LengthFinishReasonError IncompleteOutputException
        - FinishReasonTable
        """),
    _name("content_filter", _CONSTRAINT, Cause.CONTENT_FILTER, """
        content filter, content filter finish reason, content policy violation, refusal,
        model refusal, safety, moderation, responsible ai policy violation, prohibited content,
        invalid prompt, blocked prompt, stop candidate, content filtered, content policy,
        prompt blocked, content blocked, data inspection failed, sensitive content
        + content_filter ContentFilterFinishReasonError OpenAIRefusalError invalid_prompt
        - ContentFilterSettings SafetyStock
        """),
    _name("output_guardrail", _CONSTRAINT, Cause.FORBIDDEN_OUTPUT, """
        output guardrail, output guardrail tripwire triggered, tool input guardrail,
        tool input guardrail tripwire triggered, output guardrail triggered, forbidden output,
        output rejected
        + OutputGuardrailTripwireTriggered ToolInputGuardrailTripwireTriggered
        - OutputGuardrailSettings
        """),
    _name("guardrail", _CONSTRAINT, Cause.GUARDRAIL, """
        guardrail, tripwire triggered, constraint violation, policy violation, constraint violated,
        guardrail triggered, guardrail violation, guardrail tripwire triggered, sandbox violation,
        rule violation, path escape, path traversal, outside roots
        + InputGuardrailTripwireTriggered ConstraintViolation
        - GuardrailEditor
        """),
    _name("sandbox", _CONSTRAINT, Cause.GUARDRAIL, """
        =security, sandbox security, resource security
        + SecurityError
        - SecurityGuardName
        """, weak=True),
    _name("missing", _MISSING, Cause.MISSING_RESOURCE, """
        not found, no such element, stale element reference, stale element, no such key,
        no such bucket, does not exist, unknown object, no such window, no such frame,
        undefined table, undefined column, no such table, undefined object,
        element click intercepted, no result found, element not interactable, element not visible,
        is a directory, not a directory, file exists, unknown resource, missing resource,
        no such entity, namespace not found, no such file, undefined function, =missing,
        no such alert, move target out of bounds, no such cookie, no such object, =gone,
        not in channel, no node, no such *, unknown *, non existent *, no result, no results, no script,
        detached shadow root, no alert present, =catalog, =binder, resource missing,
        hvac.exceptions.InvalidPath, not found entity, nonexistent, no match, id unknown, element lost
        + NotFoundError NoSuchElementException channel_not_found index_not_found_exception
        - NotFoundPageTheme
        """, weak=True),
    _name("bad_request", _SCHEMA, Cause.BAD_REQUEST, """
        bad request, invalid request, unprocessable entity, unprocessable, invalid argument,
        out of range, bad value, illegal argument, invalid value, invalid type, wrong api format,
        invalid parameter, missing field, invalid blocks, msg too long, invalid parameter value,
        missing parameter, missing required parameter, unknown parameter, request validation,
        param validation, invalid params, method not allowed, not acceptable,
        unsupported media type, invalid json, invalid url, invalid url client, missing schema,
        invalid schema, invalid header, unsupported protocol, invalid uri, location parse,
        not supported, feature not supported, =parsing, document parsing, mapper parsing,
        query shard, schema validation, input validation, invalid input, =malformed, query, syntax,
        invalid *, bad *, malformed *, unsupported *, missing *, re.error, re.PatternError,
        compilation, command syntax, cross slot, cross slot transaction, exec abort,
        string too long, name too long, request malformed, unknown command, wrong type
        + BadRequestError invalid_request_error parsing_exception MissingSchema
        - BadRequestCounter
        """, weak=True),
    _name("history", _SCHEMA, Cause.BROKEN_HISTORY, """
        invalid request message order
        + invalid_request_message_order
        - MessageOrderTable
        """),
    _name("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, """
        request entity too large, payload too large, too large, max payload, size limit exceeded,
        content too large, entity too large, too long, message too large, document too large, too big
        + RequestEntityTooLarge
        - EntityTable
        """),
    _name("integrity", _SCHEMA, Cause.BAD_REQUEST, """
        integrity, unique violation, duplicate key, duplicate *, constraint validation,
        foreign key violation, not null violation, check violation, already exists, duplicate,
        document validation failure, resource already exists, integrity constraint violation,
        =constraint, uniqueness
        + IntegrityError UniqueViolation DuplicateKeyError
        - IntegrityReport
        """),
    _name("bad_response", _SCHEMA, Cause.BAD_RESPONSE, """
        content type, content decoding, decoding, bad response, unexpected content type,
        invalid response, api response validation, xml syntax, limit overrun, line too long,
        payload encoding, checksum, unparsable, unparseable
        + ContentTypeError DecodingError
        - ContentTypeMenu
        """),
    _name("output", _SCHEMA, Cause.MALFORMED_OUTPUT, """
        output parser, adapter parse, unexpected model behavior, model behavior, json decode,
        agent parsing, output parsing, malformed output, invalid output, output validation,
        toml decode, yaml, tool parser, incomplete generation
        + OutputParserException JSONDecodeError UnexpectedModelBehavior YAMLError
        - OutputParserRegistry
        """, weak=True),
    _name("arguments", _SCHEMA, Cause.INVALID_ARGUMENTS, """
        tool call, tool arguments, invalid tool arguments, tool input, invalid arguments
        + AgentToolCallError
        - ToolCallLog
        """, weak=True),
    _name("validation", _SCHEMA, Cause.INVALID_ARGUMENTS, """
        validation, validation failed, =schema, class validation, type coercion, multiple invalid,
        =invalid
        + ValidationError HFValidationError
        - ValidationReport
        """, weak=True),
    _name("bad_data", _SCHEMA, Cause.INVALID_ARGUMENTS, """
        parse, parser, decode, unicode, unicode decode, unicode encode, unicode translate,
        serialization, deserialization, document invalid, invalid selector, x path eval, xpath eval,
        x path, template syntax, template assertion, empty data, bad zip file, invalid id,
        invalid document, date parse, unidentified image, invalid file, tokenize, invalid operation,
        =scanner, =composer, =constructor, unsupported mime type, encode, binascii.Error,
        _csv.Error, struct.error, =data, forbidden extra keys, sql parse,
        invalid text representation, xpath syntax, selector syntax, =unpacking, =corrupt, corrupt *,
        corrupted *, bad gzip file, tarfile.ReadError, tarfile.CompressionError, lzma.LZMAError,
        zlib.error, pickle.UnpicklingError, pdf read, not decrypted, multiple results found,
        shutil.ReadError, unpickling, tarfile.HeaderError, validate, invalid tag, =conversion,
        multiple objects returned,
        =shape, arrow invalid, out of bounds datetime, out of bounds timedelta, datatype mismatch,
        cannot coerce
        + ParserError UnicodeDecodeError InvalidSelectorException TemplateSyntaxError
        - ParserTable
        """, weak=True),
)
# fmt: on


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
        NameError NotImplementedError RecursionError SyntaxError Warning
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
        TypeError AttributeError UnboundLocalError KeyError IndexError ArithmeticError
        AssertionError StopIteration StopAsyncIteration ReferenceError SystemError
        subprocess.CalledProcessError
        """,
    ),
)
