"""Rules on names of what the agent itself did wrong, and of data without the agreed form."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from ._rule import Rule
from ._rule import name_rule as _rule

_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW

AGENT_NAMES: tuple[Rule, ...] = (
    _rule(
        "unknown_tool",
        FailureType.WRONG_TOOL_CALLED,
        Cause.UNKNOWN_TOOL,
        """
        unknown tool, tool not found, no such tool, invalid tool, tool not available, unknown
        function, function not found, command not found, no such command, unknown command, unknown
        method, tool not registered, tool does not exist, invalid tool name, method not found,
        unregistered tool, unknown action, no such action
        """,
        examples="UnknownToolError ToolNotFoundError CommandNotFound unknown_method",
        near="ToolNotFoundSettings ToolBox",
    ),
    _rule(
        "step_budget",
        FailureType.PLAN_INCOMPLETE,
        Cause.STEP_BUDGET,
        """
        graph recursion, max iterations, max turns exceeded, max iterations reached, max steps, max
        steps reached, max turns, max steps exceeded, iteration limit,
        pydantic_ai.exceptions.UsageLimitExceeded, max iterations exceeded, max component runs, step
        limit, turn limit exceeded, step limit exceeded, step limit reached, agent max steps, max
        rounds, rounds exceeded
        """,
        examples="GraphRecursionError MaxTurnsExceeded MaxIterationsReached AgentMaxStepsError",
        near="MaxStepsTable",
    ),
    _rule(
        "spend_budget",
        FailureType.PLAN_INCOMPLETE,
        Cause.STEP_BUDGET,
        """
        budget exceeded, budget exhausted, cost limit exceeded, max budget exceeded
        """,
        examples="BudgetExceededError budget_exceeded",
        near="BudgetTable",
        severity=Severity.CRITICAL,
    ),
    _rule(
        "context",
        _OVERFLOW,
        Cause.CONTEXT_LENGTH,
        """
        context window exceeded, context length exceeded, context overflow, context length, prompt
        too long, context window, token limit exceeded, context size, input too long, exceed context
        size, context window overflow, string above max length, tokens exceeded, request too large,
        max context length exceeded
        """,
        examples="context_length_exceeded ContextWindowExceededError exceed_context_size_error",
        near="ContextWindowButton ContextManager",
    ),
    _rule(
        "output_cut",
        _OVERFLOW,
        Cause.OUTPUT_CUT,
        """
        length finish reason, incomplete output, max tokens reached, output truncated, max output
        tokens, output token limit exceeded
        """,
        examples="LengthFinishReasonError IncompleteOutputException",
        near="FinishReasonTable",
    ),
    _rule(
        "content_filter",
        _CONSTRAINT,
        Cause.CONTENT_FILTER,
        """
        content filter, content filter finish reason, content policy violation, refusal, model
        refusal, safety, moderation, responsible ai policy violation, prohibited content, invalid
        prompt, blocked prompt, stop candidate, content filtered, content policy, prompt blocked,
        content blocked, data inspection failed, sensitive content
        """,
        examples="content_filter ContentFilterFinishReasonError OpenAIRefusalError invalid_prompt",
        near="ContentFilterSettings SafetyStock",
    ),
    _rule(
        "guardrail",
        _CONSTRAINT,
        Cause.GUARDRAIL,
        """
        guardrail, tripwire triggered, constraint violation, policy violation, constraint violated,
        guardrail triggered, guardrail violation, guardrail tripwire triggered, sandbox violation,
        rule violation, path escape, path traversal, outside roots
        """,
        examples="InputGuardrailTripwireTriggered ConstraintViolation",
        near="GuardrailEditor",
    ),
    _rule(
        "sandbox",
        _CONSTRAINT,
        Cause.GUARDRAIL,
        """
        =security, sandbox security, resource security
        """,
        examples="SecurityError",
        near="SecurityGuardName",
        weak=True,
    ),
    _rule(
        "missing",
        _MISSING,
        Cause.MISSING_RESOURCE,
        """
        not found, no such element, stale element reference, stale element, no such key, no such
        bucket, does not exist, unknown object, no such window, no such frame, undefined table,
        undefined column, no such table, undefined object, element click intercepted, no result
        found, element not interactable, element not visible, is a directory, not a directory, file
        exists, unknown resource, missing resource, no such entity, namespace not found, no such
        file, undefined function, =missing, no such alert, move target out of bounds, no such
        cookie, no such object, =gone, not in channel, no such *, unknown *, non existent *, no
        result, no results, no script, detached shadow root, no alert present, =catalog, =binder
        """,
        examples="NotFoundError NoSuchElementException channel_not_found index_not_found_exception",
        near="NotFoundPageTheme",
        weak=True,
    ),
    _rule(
        "bad_request",
        _SCHEMA,
        Cause.BAD_REQUEST,
        """
        bad request, invalid request, unprocessable entity, unprocessable, invalid argument, out of
        range, bad value, illegal argument, invalid value, invalid type, wrong api format, invalid
        parameter, missing field, invalid blocks, msg too long, invalid parameter value, missing
        parameter, missing required parameter, unknown parameter, request validation, param
        validation, invalid params, method not allowed, not acceptable, unsupported media type,
        invalid json, invalid url, invalid url client, missing schema, invalid schema, invalid
        header, unsupported protocol, invalid uri, location parse, not supported, feature not
        supported, =parsing, document parsing, mapper parsing, query shard, schema validation, input
        validation, invalid input, =malformed, query, syntax, invalid *, bad *, malformed *,
        unsupported *, missing *, re.error, re.PatternError, compilation, command syntax, cross slot,
        cross slot transaction, exec abort, string too long, name too long
        """,
        examples="BadRequestError invalid_request_error parsing_exception MissingSchema",
        near="BadRequestCounter",
        weak=True,
    ),
    _rule(
        "too_large",
        _SCHEMA,
        Cause.PAYLOAD_TOO_LARGE,
        """
        request entity too large, payload too large, too large, max payload, size limit exceeded,
        content too large, entity too large, message too large, document too large, too big
        """,
        examples="RequestEntityTooLarge",
        near="EntityTable",
    ),
    _rule(
        "integrity",
        _SCHEMA,
        Cause.BAD_REQUEST,
        """
        integrity, unique violation, duplicate key, duplicate *, constraint validation, foreign key
        violation, not null violation, check violation, already exists, duplicate, document
        validation failure, resource already exists, integrity constraint violation, =constraint
        """,
        examples="IntegrityError UniqueViolation DuplicateKeyError",
        near="IntegrityReport",
    ),
    _rule(
        "bad_response",
        _SCHEMA,
        Cause.BAD_RESPONSE,
        """
        content type, content decoding, decoding, bad response, unexpected content type, invalid
        response, api response validation, xml syntax, limit overrun, line too long, payload encoding,
        checksum
        """,
        examples="ContentTypeError DecodingError",
        near="ContentTypeMenu",
    ),
    _rule(
        "output",
        _SCHEMA,
        Cause.MALFORMED_OUTPUT,
        """
        output parser, adapter parse, unexpected model behavior, model behavior, json decode, agent
        parsing, output parsing, malformed output, invalid output, output validation, toml decode,
        yaml, tool parser, incomplete generation
        """,
        examples="OutputParserException JSONDecodeError UnexpectedModelBehavior YAMLError",
        near="OutputParserRegistry",
        weak=True,
    ),
    _rule(
        "arguments",
        _SCHEMA,
        Cause.INVALID_ARGUMENTS,
        """
        tool call, tool arguments, invalid tool arguments, tool input, invalid arguments
        """,
        examples="AgentToolCallError",
        near="ToolCallLog",
        weak=True,
    ),
    _rule(
        "validation",
        _SCHEMA,
        Cause.INVALID_ARGUMENTS,
        """
        validation, validation failed, =schema, class validation, type coercion, multiple invalid,
        =invalid
        """,
        examples="ValidationError HFValidationError",
        near="ValidationReport",
        weak=True,
    ),
    _rule(
        "bad_data",
        _SCHEMA,
        Cause.INVALID_ARGUMENTS,
        """
        parse, parser, decode, unicode, unicode decode, unicode encode, unicode translate,
        serialization, deserialization, document invalid, invalid selector, x path eval, xpath eval,
        x path, template syntax, template assertion, empty data, bad zip file, invalid id, invalid
        document, date parse, unidentified image, invalid file, tokenize, invalid operation,
        =scanner, =composer, =constructor, unsupported mime type, encode, binascii.Error,
        _csv.Error, struct.error, =data, forbidden extra keys, sql parse, invalid text
        representation, xpath syntax, selector syntax, =unpacking, =corrupt, corrupt *, corrupted *,
        bad gzip file, tarfile.ReadError, tarfile.CompressionError, lzma.LZMAError, zlib.error,
        pickle.UnpicklingError, pdf read, not decrypted, multiple results found, shutil.ReadError,
        unpickling, tarfile.HeaderError, validate, invalid tag, =conversion, =shape, arrow invalid,
        out of bounds datetime, out of bounds timedelta, datatype mismatch, cannot coerce
        """,
        examples="ParserError UnicodeDecodeError InvalidSelectorException TemplateSyntaxError",
        near="ParserTable",
        weak=True,
    ),
)
