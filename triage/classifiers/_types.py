"""Rules on the names of exception classes and on the codes providers send, read as words."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from ._rule import Rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_CLIENTS = "class names and codes that clients and providers of many makes share"


def _rule(  # noqa: PLR0913 - the columns of a table
    name: str,
    failure_type: FailureType,
    cause: Cause | None,
    keys: str,
    *,
    examples: str,
    near: str,
    severity: Severity | None = None,
    weak: bool = False,
    source: str = _CLIENTS,
) -> Rule:
    return Rule(
        f"name.{name}", failure_type, cause, "name", tuple(key.strip() for key in keys.split(",")), severity,
        weak=weak, source=source, examples=tuple(examples.split()), near_misses=tuple(near.split()),
    )  # fmt: skip


NAME_RULES: tuple[Rule, ...] = (
    # --- the other side ---
    _rule("rate_limited", _EXTERNAL, Cause.RATE_LIMITED,
          "rate limit, rate limited, ratelimited, ratelimit, rate limit exceeded, rate limit reached, rate exceeded, "
          "too many requests, throttling, throttled, throttle, throughput exceeded, request limit exceeded, slow down, "
          "resource exhausted, request rate too large, requests limit exceeded, rejected execution, flood wait, "
          "request quota exceeded, tokens per minute exceeded, limit burst exceeded",
          weak=True, examples="RateLimitError LMRateLimitError TooManyRequests rate_limit_exceeded ThrottlingException",
          near="RateLimitConfigError RateLimitSettings"),
    _rule("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED,
          "insufficient quota, quota exhausted, quota exceeded, billing, billing hard limit reached, insufficient balance, "
          "insufficient credits, insufficient funds, payment required, credit limit, credits exhausted, billing not active, "
          "service quota exceeded, account balance too low, spend limit exceeded, out of credits",
          examples="insufficient_quota LMBillingError billing_hard_limit_reached", near="QuotaReport BillingAddress"),
    _rule("overloaded", _EXTERNAL, Cause.OVERLOADED, "overloaded, queue exceeded, server busy, too busy, over capacity",
          examples="OverloadedError overloaded_error queue_exceeded", near="OverloadedMethodResolver"),
    _rule("unavailable", _EXTERNAL, Cause.UNAVAILABLE,
          "service unavailable, unavailable, not primary, not writable primary, shutdown in progress, bad gateway, "
          "too many connections, cannot connect now, busy loading, cluster down, model not ready, admin shutdown, "
          "no brokers available, master down, try again, tab crashed, invalid session id, primary stepped down, "
          "interrupted at shutdown, no master, discovered, target closed",
          examples="ServiceUnavailable NotPrimaryError cluster_manager_not_discovered_exception",
          near="UnavailableItemReport"),
    _rule("server_error", _EXTERNAL, Cause.SERVER_ERROR,
          "internal server, server, internal, internal failure, internal service, backend, fatal, model error, "
          "phase execution, generation, webdriver.fatal",
          weak=True, examples="InternalServerError server_error internal_error", near="ServerSettings"),
    _rule("timeout", _EXTERNAL, Cause.TIMEOUT,
          "timeout, timed out, time out, timeout expired, deadline exceeded, time limit exceeded, too slow, gateway timeout, "
          "max time ms expired, query canceled, request timeout, lifetime timeout, time limit exceeded, exceeded time limit",
          examples="ReadTimeout APITimeoutError TimeoutException DeadlineExceeded MaxTimeMSExpired",
          near="TimeoutConfigError TimeoutSettings"),
    _rule("redirects", _EXTERNAL, Cause.BAD_REQUEST, "too many redirects, redirect loop, redirect limit",
          severity=Severity.CRITICAL, examples="TooManyRedirects", near="RedirectSettings"),
    _rule("dns", _EXTERNAL, Cause.DNS,
          "gaierror, herror, name resolution, dns, nxdomain, no nameservers, host not found, unknown host, no answer",
          examples="gaierror NameResolutionError ClientConnectorDNSError NXDOMAIN", near="DNSRecordEditor"),
    _rule("tls", _EXTERNAL, Cause.TLS,
          "ssl, ssl cert verification, certificate, insecure certificate, tls, bad host key, handshake failure, cert verification",
          weak=True, examples="SSLError SSLCertVerificationError InsecureCertificateException", near="CertificatePrinter"),
    _rule("connection", _EXTERNAL, Cause.CONNECTION,
          "connect, connection, network, transport, remote protocol, protocol, chunked encoding, client payload, new connection, "
          "incomplete read, bad status line, remote disconnected, disconnected, max retry, connection refused, "
          "connection reset, broken pipe, connection aborted, connection closed, stream lost, connection lost, "
          "client connector, client os, api connection, proxy, connection failure, auto reconnect, connection does not exist, "
          "end of stream, server disconnected, incompatible protocol, connection closed by broker, server handshake, "
          "invalid handshake, invalid status, broken resource, content length, no valid connections, service request, "
          "service response, connection timeout wrapper, communication, connect call failed, peer gone",
          weak=True, examples="ConnectError APIConnectionError RemoteProtocolError ServerDisconnectedError",
          near="ConnectionSettings ProtocolVersionTable"),
    _rule("auth", _EXTERNAL, Cause.AUTH,
          "authentication, authentication failed, unauthorized, unauthenticated, bad credentials, invalid api key, auth, "
          "invalid auth, not authed, token revoked, token expired, expired token, invalid token, invalid password, login, "
          "unrecognized client, invalid client token id, signature does not match, account inactive, wrong api key, refresh, "
          "invalid credentials, invalid grant, authentication required, client authentication, password required, "
          "invalid authorization specification, no authentication, incomplete signature, missing authentication token",
          weak=True, examples="AuthenticationError invalid_api_key UnauthorizedError token_revoked BadCredentialsException",
          near="AuthorBiography LoginPage"),
    _rule("permission", _EXTERNAL, Cause.PERMISSION,
          "permission denied, forbidden, permission, access denied, insufficient privilege, gated repo, authorization, "
          "missing scope, not authorized, request forbidden, insufficient permissions, restricted action, read only, "
          "operation not permitted, unsupported country region territory, sender refused, access refused, not allowed token type, "
          "read only sql transaction",
          weak=True, examples="PermissionDeniedError ForbiddenError missing_scope AuthorizationException",
          near="PermissionTable"),
    _rule("model_missing", _EXTERNAL, Cause.MODEL_MISSING,
          "model not found, deployment not found, unsupported model, model not available, model decommissioned, "
          "model does not exist, unknown model, model unavailable, model deprecated",
          examples="model_not_found DeploymentNotFound LMUnsupportedModelError", near="ModelNotFittedError"),
    _rule("missing_config", _EXTERNAL, Cause.MISSING_CONFIG,
          "default credentials, no credentials, partial credentials, no region, profile not found, config not found, "
          "missing credentials, credential retrieval, improperly configured, missing configuration",
          examples="DefaultCredentialsError NoCredentialsError NoRegionError", near="CredentialsPrinted"),
    _rule("conflict", _EXTERNAL, Cause.CONFLICT,
          "conflict, version conflict, version conflict engine, serialization failure, stale data, optimistic lock, write conflict, "
          "precondition failed, aborted, concurrent modification, resource modified, transaction rollback, "
          "conditional check failed, transaction canceled, lock not available, locked, already locked, lock, resource in use, "
          "resource locked, transaction conflict, watch, concurrency",
          examples="ConflictError version_conflict_engine_exception WriteConflict", near="ConflictReport"),
    _rule("deadlock", _EXTERNAL, Cause.DEADLOCK, "deadlock, deadlock detected, deadlock found",
          examples="DeadlockDetected", near="DeadlockPrinter"),
    _rule("circuit", _EXTERNAL, Cause.CIRCUIT_OPEN,
          "circuit breaker, circuit open, breaker open, circuit breaker open, bucket full, circuit breaking, bulkhead full",
          examples="CircuitBreakerError circuit_breaking_exception BucketFullException", near="CircuitDiagram"),
    _rule("exhausted", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "disk full, cluster block, no space, storage full",
          examples="DiskFull cluster_block_exception", near="DiskFullnessReport"),
    _rule("process_died", _EXTERNAL, Cause.PROCESS_DIED,
          "broken process pool, broken thread pool, broken executor, broken interpreter pool, worker lost, worker died, "
          "process died, terminated worker, process exited",
          examples="BrokenProcessPool WorkerLostError", near="WorkerListing"),
    _rule("session", _EXTERNAL, Cause.UNAVAILABLE, "session not created", severity=Severity.CRITICAL,
          examples="SessionNotCreatedException", near="SessionNotes"),
    # --- the agent's own doing ---
    _rule("unknown_tool", FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL,
          "unknown tool, tool not found, no such tool, invalid tool, tool not available, unknown function, function not found, "
          "command not found, no such command, unknown command, unknown method, tool not registered, tool does not exist, "
          "invalid tool name, unregistered tool, unknown action, no such action",
          examples="UnknownToolError ToolNotFoundError CommandNotFound unknown_method",
          near="ToolNotFoundSettings ToolBox"),
    _rule("step_budget", FailureType.PLAN_INCOMPLETE, Cause.STEP_BUDGET,
          "graph recursion, max iterations, max turns exceeded, max iterations reached, max steps, max steps reached, "
          "max turns, max steps exceeded, iteration limit, usage limit exceeded, max iterations exceeded, step limit, "
          "turn limit exceeded, step limit exceeded, step limit reached, agent max steps, budget exceeded, max rounds",
          examples="GraphRecursionError MaxTurnsExceeded MaxIterationsReached AgentMaxStepsError",
          near="MaxStepsTable"),
    _rule("context", FailureType.CONTEXT_OVERFLOW, Cause.CONTEXT_LENGTH,
          "context window exceeded, context length exceeded, context overflow, context length, prompt too long, context window, "
          "token limit exceeded, context size, input too long, exceed context size, context window overflow, string above max length, "
          "tokens exceeded, request too large",
          examples="context_length_exceeded ContextWindowExceededError exceed_context_size_error",
          near="ContextWindowButton ContextManager"),
    _rule("output_cut", FailureType.CONTEXT_OVERFLOW, Cause.OUTPUT_CUT,
          "length finish reason, incomplete output, max tokens reached, output truncated, max output tokens",
          examples="LengthFinishReasonError IncompleteOutputException", near="FinishReasonTable"),
    _rule("content_filter", _CONSTRAINT, Cause.CONTENT_FILTER,
          "content filter, content filter finish reason, content policy violation, refusal, model refusal, safety, moderation, "
          "responsible ai policy violation, prohibited content, invalid prompt, blocked prompt, stop candidate, "
          "content filtered, content policy, prompt blocked, content blocked",
          examples="content_filter ContentFilterFinishReasonError OpenAIRefusalError invalid_prompt",
          near="ContentFilterSettings SafetyStock"),
    _rule("guardrail", _CONSTRAINT, Cause.GUARDRAIL,
          "guardrail, tripwire triggered, constraint violation, policy violation, constraint violated, guardrail triggered, "
          "guardrail violation, guardrail tripwire triggered, security, sandbox violation, rule violation",
          examples="InputGuardrailTripwireTriggered ConstraintViolation SecurityError", near="GuardrailEditor"),
    _rule("missing", _MISSING, Cause.MISSING_RESOURCE,
          "not found, no such element, stale element reference, stale element, no such key, no such bucket, does not exist, "
          "unknown object, no such window, no such frame, undefined table, undefined column, no such table, undefined object, "
          "element click intercepted, no result found, element not interactable, element not visible, is a directory, "
          "not a directory, file exists, unknown resource, missing resource, no such entity, namespace not found, "
          "no such file, recipients refused, undefined function, does not exist on server, missing, no such alert, move target out of bounds, "
          "no such cookie, gone, not in channel",
          weak=True, examples="NotFoundError NoSuchElementException channel_not_found index_not_found_exception",
          near="NotFoundPageTheme"),
    # --- the form of data ---
    _rule("bad_request", _SCHEMA, Cause.BAD_REQUEST,
          "bad request, invalid request, unprocessable entity, unprocessable, invalid argument, out of range, bad value, "
          "illegal argument, invalid value, invalid type, wrong api format, invalid parameter, missing field, invalid blocks, "
          "msg too long, invalid parameter value, missing parameter, missing required parameter, unknown parameter, "
          "request validation, param validation, invalid params, method not allowed, not acceptable, unsupported media type, "
          "invalid json, invalid url, invalid url client, missing schema, invalid schema, invalid header, unsupported protocol, "
          "invalid uri, location parse, not supported, feature not supported, parsing, document parsing, mapper parsing, "
          "query shard, schema validation, input validation, invalid input, malformed",
          weak=True, examples="BadRequestError invalid_request_error InvalidArgument parsing_exception MissingSchema",
          near="BadRequestCounter"),
    _rule("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE,
          "request entity too large, payload too large, content too large, entity too large, message too large, document too large",
          examples="RequestEntityTooLarge", near="EntityTable"),
    _rule("integrity", _SCHEMA, Cause.BAD_REQUEST,
          "integrity, unique violation, duplicate key, foreign key violation, not null violation, check violation, already exists, "
          "duplicate, document validation failure, resource already exists, integrity constraint violation",
          examples="IntegrityError UniqueViolation DuplicateKeyError", near="IntegrityReport"),
    _rule("bad_response", _SCHEMA, Cause.BAD_RESPONSE,
          "content type, content decoding, decoding, bad response, unexpected content type, invalid response, "
          "api response validation, xml syntax, zlib.error",
          examples="ContentTypeError DecodingError", near="ContentTypeMenu"),
    _rule("output", _SCHEMA, Cause.MALFORMED_OUTPUT,
          "output parser, adapter parse, unexpected model behavior, model behavior, json decode, agent parsing, output parsing, "
          "malformed output, invalid output, output validation, toml decode, yaml, tool parser, incomplete generation",
          examples="OutputParserException JSONDecodeError UnexpectedModelBehavior AdapterParseError YAMLError",
          near="OutputParserRegistry"),
    _rule("arguments", _SCHEMA, Cause.INVALID_ARGUMENTS, "tool call, tool arguments, invalid tool arguments, tool input, invalid arguments",
          weak=True, examples="AgentToolCallError", near="ToolCallLog"),
    _rule("validation", _SCHEMA, Cause.INVALID_ARGUMENTS,
          "validation, validation failed, schema, base validation, class validation, type coercion, multiple invalid, invalid",
          weak=True, examples="ValidationError HFValidationError", near="ValidationReport"),
    _rule("bad_data", _SCHEMA, Cause.INVALID_ARGUMENTS,
          "parse, parser, decode, unicode, unicode decode, unicode encode, unicode translate, serialization, deserialization, "
          "document invalid, invalid selector, x path eval, xpath eval, x path, template syntax, template assertion, empty data, "
          "bad zip file, invalid id, invalid document, date parse, unidentified image, invalid file, tokenize, syntax, "
          "invalid operation, scanner, composer, constructor, unsupported mime type, encode, binascii.Error, data, "
          "forbidden extra keys, sql parse, invalid text representation, xpath syntax, selector syntax, unpacking, corrupt",
          weak=True, examples="ParserError UnicodeDecodeError SerializationError InvalidSelectorException TemplateSyntaxError",
          near="ParserTable"),
)  # fmt: skip

_BUILT_IN = "the language: a defect in the code around the agent, which no other plan repairs"
_UNKNOWN = FailureType.UNKNOWN


def _built_in(name: str, cause: Cause | None, classes: str, severity: Severity, near: str = "ValueError") -> Rule:
    keys = tuple(key if "." in key else f"builtins.{key}" for key in classes.split())
    examples = tuple(keys)
    return Rule(
        f"builtin.{name}", _UNKNOWN, cause, "name", keys, severity, source=_BUILT_IN, examples=examples,
        near_misses=(f"builtins.{near}",), confidence=0.6,
    )  # fmt: skip


BUILT_IN_RULES: tuple[Rule, ...] = (
    _built_in("cancelled", Cause.CANCELLED,
              "asyncio.exceptions.CancelledError concurrent.futures._base.CancelledError trio.Cancelled KeyboardInterrupt "
              "SystemExit GeneratorExit", Severity.FATAL),
    _built_in("memory", Cause.OUT_OF_MEMORY, "MemoryError torch.OutOfMemoryError torch.cuda.OutOfMemoryError", Severity.FATAL),
    _built_in("deployment", Cause.DEPLOYMENT, "ImportError", Severity.CRITICAL),
    _built_in("code", Cause.CODE_ERROR,
              "NameError AttributeError NotImplementedError RecursionError Warning asyncio.exceptions.InvalidStateError "
              "cattrs.errors.StructureHandlerNotFoundError",
              Severity.CRITICAL),
    _built_in("config", Cause.MISSING_CONFIG, "configparser.NoSectionError configparser.NoOptionError", Severity.CRITICAL),
    _built_in("data", None,
              "TypeError KeyError IndexError ArithmeticError AssertionError StopIteration StopAsyncIteration BufferError "
              "ReferenceError SystemError EOFError subprocess.CalledProcessError", Severity.RECLASSIFICATION),
)  # fmt: skip
