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
        rate limit, rate limited, ratelimited, too many requests, throttling, throttled,
        throughput exceeded, request limit, slow down, resource exhausted, request rate too large,
        rejected execution, retry after, request quota exceeded, concurrency limit,
        too many simultaneous queries
        + RateLimitError TooManyRequests rate_limit_exceeded ThrottlingException
        - RateLimitConfigError RateLimitSettings
        """, weak=True),
    _name("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, """
        insufficient quota, quota exhausted, quota exceeded, billing, billing hard limit, =quota,
        insufficient balance, insufficient credits, insufficient funds, payment required, credit limit,
        credits exhausted, billing not active, spend limit, out of credits, usage limit,
        billing disabled, daily limit, resource limit
        + insufficient_quota QuotaError LMBillingError billing_hard_limit_reached
        - QuotaReport BillingAddress
        """),
    _name("overloaded", _EXTERNAL, Cause.OVERLOADED, """
        overloaded, queue exceeded, queue full, server busy, over capacity, capacity exceeded,
        insufficient instance capacity, resource insufficient
        + OverloadedError InsufficientInstanceCapacity overloaded_error queue_exceeded
        - OverloadedMethodResolver
        """),
    _name("unavailable", _EXTERNAL, Cause.UNAVAILABLE, """
        unavailable, not primary, not writable primary, shutdown in progress, bad gateway,
        too many connections, cannot connect now, busy loading, model not ready, admin shutdown,
        selenium.common.exceptions.InvalidSessionIdException, not discovered, not available,
        no responders, busy, down, =again, not leader for partition, not enough replicas
        + ServiceUnavailable NotPrimaryError cluster_manager_not_discovered_exception
        - UnavailableItemReport
        """),
    _name("server_error", _EXTERNAL, Cause.SERVER_ERROR, """
        server, =internal, =backend, phase execution, =service, =gateway, external
        + InternalServerError server_error internal_error
        - ServerSettings
        """, weak=True),
    _name("timeout", _EXTERNAL, Cause.TIMEOUT, """
        timeout, timed out, timeout expired, deadline exceeded, time limit, max time ms expired
        + ReadTimeout APITimeoutError TimeoutException DeadlineExceeded MaxTimeMSExpired
        - TimeoutConfigError TimeoutSettings
        """),
    _name("redirects", _EXTERNAL, Cause.BAD_REQUEST, """
        too many redirects, redirect limit
        + TooManyRedirects
        - RedirectSettings
        """, severity=Severity.CRITICAL),
    _name("dns", _EXTERNAL, Cause.DNS, """
        gaierror, herror, name resolution, dns, nxdomain, no nameservers, no answer, server not found
        + gaierror NameResolutionError ClientConnectorDNSError NXDOMAIN
        - DNSRecordEditor
        """),
    _name("tls", _EXTERNAL, Cause.TLS, """
        ssl, ssl cert verification, certificate, host key not verifiable
        + SSLError SSLCertVerificationError InsecureCertificateException
        - CertificatePrinter
        """, weak=True),
    _name("connection", _EXTERNAL, Cause.CONNECTION, """
        connect, connection, network, transport, protocol, chunked encoding, client payload,
        incomplete read, bad status line, disconnected, max retry, connection refused, connection reset,
        broken pipe, connection closed, connection loss, connection lost, proxy, auto reconnect,
        connection does not exist, end of stream, unexpected close, server handshake, invalid handshake,
        invalid status, broken resource, content length, no valid connections, service request,
        service response, communication, no host available, ssleof, ssl zero return, ssl syscall,
        http client, unreachable host
        + ConnectError APIConnectionError RemoteProtocolError ServerDisconnectedError
        - ConnectionSettings ProtocolVersionTable
        """, weak=True),
    _name("auth", _EXTERNAL, Cause.AUTH, """
        authentication, authentication failed, unauthorized, unauthenticated, bad credentials,
        invalid api key, auth, token revoked, token expired, expired token, invalid token, login,
        unrecognized client, invalid client token id, signature does not match, wrong api key,
        expired signature, invalid signature, =refresh, invalid credentials, invalid grant,
        authentication required, incomplete signature, missing authentication token, missing token,
        unauthorized *, request time too skewed, invalid access key id, bad signature,
        signature verification, login required, invalid client, account disabled, api key invalid,
        invalid session id, invalid api keys, session expired, token refresh required
        + AuthenticationError invalid_api_key token_revoked BadCredentialsException
        - AuthorBiography LoginPage
        """, weak=True),
    _name("permission", _EXTERNAL, Cause.PERMISSION, """
        permission denied, forbidden, permission, access denied, gated repo, authorization,
        missing scope, insufficient permissions, forbidden *, read only,
        unsupported country region territory, access refused, readonly, insufficient privileges,
        authorization failed, invalid scope
        + PermissionDeniedError ForbiddenError missing_scope AuthorizationException
        - PermissionTable
        """, weak=True),
    _name("model_missing", _EXTERNAL, Cause.MODEL_MISSING, """
        model not found, deployment not found, invalid model, unsupported model, model not available,
        model decommissioned, unknown model
        + model_not_found DeploymentNotFound LMUnsupportedModelError
        - ModelNotFittedError
        """),
    _name("missing_config", _EXTERNAL, Cause.MISSING_CONFIG, """
        default credentials, no credentials, partial credentials, no region, credential unavailable,
        missing credentials, missing api key
        + DefaultCredentialsError NoCredentialsError NoRegionError
        - CredentialsPrinted
        """),
    _name("conflict", _EXTERNAL, Cause.CONFLICT, """
        conflict, version conflict engine, serialization failure, stale data, precondition failed,
        conditional check failed, lock not available, lock, resource locked, already started,
        bad version, locked resource, in progress, unable to lock row
        + ConflictError version_conflict_engine_exception WriteConflict
        - ConflictReport
        """),
    _name("deadlock", _EXTERNAL, Cause.DEADLOCK, """
        deadlock, deadlock detected
        + DeadlockDetected
        - DeadlockPrinter
        """),
    _name("circuit", _EXTERNAL, Cause.CIRCUIT_OPEN, """
        circuit breaker, circuit open, breaker open, circuit breaking
        + CircuitBreakerError circuit_breaking_exception
        - CircuitDiagram
        """),
    _name("exhausted", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, """
        disk full, cluster block, no space, storage full, no space left, out of memory, memory limit,
        map full, not enough space
        + DiskFull cluster_block_exception
        - DiskFullnessReport
        """),
    _name("process_died", _EXTERNAL, Cause.PROCESS_DIED, """
        broken process pool, broken thread pool, worker lost, worker died, broken worker process
        + BrokenProcessPool WorkerLostError
        - WorkerListing
        """),
    _name("deployment", _UNKNOWN, Cause.DEPLOYMENT, """
        not installed, missing dependency, missing package, no such module, optional dependency
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
        unknown tool, tool not found, no such tool, invalid tool, unknown function, command not found,
        unknown method, method not found, method unavailable
        + UnknownToolError ToolNotFoundError CommandNotFound unknown_method
        - ToolNotFoundSettings ToolBox
        """),
    _name("step_budget", _INCOMPLETE, Cause.STEP_BUDGET, """
        graph recursion, max iterations, max turns, max steps,
        pydantic_ai.exceptions.UsageLimitExceeded, step limit, call limit
        + GraphRecursionError MaxTurnsExceeded MaxIterationsReached AgentMaxStepsError
        - MaxStepsTable
        """),
    _name("spend_budget", _INCOMPLETE, Cause.STEP_BUDGET, """
        budget exceeded
        + BudgetExceededError budget_exceeded
        - BudgetTable
        """, severity=Severity.CRITICAL),
    _name("context", _OVERFLOW, Cause.CONTEXT_LENGTH, """
        context length, context overflow, prompt too long, context window, input too long,
        exceed context size, request too large, tokens limit
        + context_length_exceeded ContextWindowExceededError exceed_context_size_error tokens_limit_reached
        - ContextWindowButton ContextManager
        """),
    _name("output_cut", _OVERFLOW, Cause.OUTPUT_CUT, """
        length finish reason, incomplete output, max output tokens, output token limit
        + LengthFinishReasonError IncompleteOutputException
        - FinishReasonTable
        """),
    _name("content_filter", _CONSTRAINT, Cause.CONTENT_FILTER, """
        content filter, content filter finish reason, content policy violation, refusal, safety,
        moderation, responsible ai policy violation, prohibited content, invalid prompt, content policy,
        data inspection failed
        + content_filter ContentFilterFinishReasonError OpenAIRefusalError invalid_prompt
        - ContentFilterSettings SafetyStock
        """),
    _name("output_guardrail", _CONSTRAINT, Cause.FORBIDDEN_OUTPUT, """
        output guardrail, output guardrail tripwire triggered, tool input guardrail,
        tool input guardrail tripwire triggered, forbidden output
        + OutputGuardrailTripwireTriggered ToolInputGuardrailTripwireTriggered
        - OutputGuardrailSettings
        """),
    _name("guardrail", _CONSTRAINT, Cause.GUARDRAIL, """
        guardrail, tripwire triggered, constraint violation, policy violation, guardrail tripwire
        + InputGuardrailTripwireTriggered ConstraintViolation
        - GuardrailEditor
        """),
    _name("sandbox", _CONSTRAINT, Cause.GUARDRAIL, """
        =security, sandbox security
        + SecurityError
        - SecurityGuardName
        """, weak=True),
    _name("missing", _MISSING, Cause.MISSING_RESOURCE, """
        not found, no such element, stale element reference, no such key, does not exist,
        unknown object, element click intercepted, no result found, is a directory, file exists,
        no such file, no such object, no node, no such *, unknown *, non existent *, no script,
        =catalog, =binder, resource missing, hvac.exceptions.InvalidPath, not found entity, no match,
        id unknown, element lost
        + NotFoundError NoSuchElementException channel_not_found index_not_found_exception
        - NotFoundPageTheme
        """, weak=True),
    _name("bad_request", _SCHEMA, Cause.BAD_REQUEST, """
        bad request, invalid request, unprocessable entity, invalid argument, bad value,
        illegal argument, invalid value, invalid type, wrong api format, invalid parameter,
        missing field, invalid blocks, msg too long, invalid parameter value, unknown parameter,
        request validation, param validation, invalid url, invalid url client, missing schema,
        invalid schema, invalid header, unsupported protocol, invalid uri, location parse,
        not supported, =parsing, document parsing, schema validation, invalid input, =malformed, query,
        syntax, invalid *, bad *, malformed *, unsupported *, missing *, re.error, request malformed,
        unknown command, wrong type
        + BadRequestError invalid_request_error parsing_exception MissingSchema
        - BadRequestCounter
        """, weak=True),
    _name("history", _SCHEMA, Cause.BROKEN_HISTORY, """
        invalid request message order
        + invalid_request_message_order
        - MessageOrderTable
        """),
    _name("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, """
        too large, max payload, too long, too big
        + RequestEntityTooLarge
        - EntityTable
        """),
    _name("integrity", _SCHEMA, Cause.BAD_REQUEST, """
        integrity, unique violation, duplicate key, constraint validation, foreign key violation,
        not null violation, check violation, already exists, duplicate, =constraint, uniqueness
        + IntegrityError UniqueViolation DuplicateKeyError
        - IntegrityReport
        """),
    _name("bad_response", _SCHEMA, Cause.BAD_RESPONSE, """
        content type, decoding, invalid response, xml syntax, limit overrun, unparsable
        + ContentTypeError DecodingError
        - ContentTypeMenu
        """),
    _name("output", _SCHEMA, Cause.MALFORMED_OUTPUT, """
        output parser, model behavior, json decode, agent parsing, output parsing, malformed output,
        invalid output, output validation, toml decode, yaml, incomplete generation
        + OutputParserException JSONDecodeError UnexpectedModelBehavior YAMLError
        - OutputParserRegistry
        """, weak=True),
    _name("arguments", _SCHEMA, Cause.INVALID_ARGUMENTS, """
        tool call, tool arguments, invalid arguments
        + AgentToolCallError
        - ToolCallLog
        """, weak=True),
    _name("validation", _SCHEMA, Cause.INVALID_ARGUMENTS, """
        validation, validation failed, =schema, multiple invalid, =invalid
        + ValidationError HFValidationError
        - ValidationReport
        """, weak=True),
    _name("bad_data", _SCHEMA, Cause.INVALID_ARGUMENTS, """
        parse, parser, decode, unicode encode, serialization, document invalid, invalid selector,
        x path eval, template syntax, template assertion, empty data, bad zip file, invalid id,
        invalid document, invalid file, invalid operation, =scanner, =composer, =constructor,
        binascii.Error, bad gzip file, tarfile.ReadError, zlib.error, pdf read, unpickling, validate,
        =conversion, multiple objects returned
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
