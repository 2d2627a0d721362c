"""Rules on words: what an answer says (first), what any message says (last).

Every expression is bounded: no `*` or `+` over more than one character class, and gaps have a maximum, so
that reading is linear in the length of the text. A number alone never fires.
"""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from ._rule import LooksAt, Rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_PROVIDERS = "documented error texts of model and API providers"
_WORDING = "wording that clients, tools and agent frameworks share"


def _rule(  # noqa: PLR0913 - the columns of a table
    name: str,
    failure_type: FailureType,
    cause: Cause | None,
    *keys: str,
    examples: tuple[str, ...],
    near: tuple[str, ...],
    severity: Severity | None = None,
    looks_at: LooksAt = "text",
    unquoted: bool = False,
    source: str = _WORDING,
    confidence: float = 0.75,
) -> Rule:
    return Rule(
        f"{looks_at}.{name}", failure_type, cause, looks_at, keys, severity, unquoted=unquoted,
        confidence=confidence, source=source, examples=examples, near_misses=near,
    )  # fmt: skip


_CONTEXT = (
    r"maximum (?:context|prompt) length", r"context length exceeded", r"context (?:window|length|size) (?:exceeded|overflow)",
    r"exceed(?:s|ed|ing)? (?:the |this |its )?(?:model'?s? )?(?:maximum |available )?context(?: window| length| size)?",
    r"prompt is too long", r"input is too long", r"input length exceeds", r"too many (?:input )?tokens",
    r"reduce (?:the|your) (?:length of (?:the|your) )?(?:messages|prompt|input)",
    r"tokens \+ `?max new tokens`? must be", r"(?:input )?token count .{0,40}exceeds",
    r"exceeds the maximum number of (?:input )?tokens", r"request too large for .{0,80}tokens",
    r"longer than the model'?s? (?:maximum )?context",
)  # fmt: skip
_QUOTA = (
    r"insufficient (?:quota|balance|funds|credits?)", r"exceeded your (?:current|monthly) (?:quota|usage|spending)",
    r"billing (?:hard )?limit", r"check your plan and billing", r"credit (?:balance|limit)", r"requires? more credits",
    r"out of credits", r"(?:weekly|monthly|yearly|spending|spend) (?:usage )?limit", r"no quota left", r"enable billing",
    r"(?:calls|requests|messages) ?(?:/|per) ?(?:a )?month", r"prepaid credits", r"arrears", r"payment (?:is )?required",
)  # fmt: skip
_RATE = (
    r"rate limit(?:s|ing)?(?: has been| was| is)? (?:exceeded|reached|hit)", r"rate limit reached", r"exceeded rate limits?",
    r"exceeded a? ?(?:secondary )?(?:token )?rate limit", r"secondary rate limit", r"api rate limit", r"too many requests",
    r"rate ?limited", r"request rate is (?:too )?large", r"throttl(?:ed|ing)", r"requests per (?:minute|second|hour|day)",
    r"slow ?down", r"too many (?:messages|connections)", r"greylisted", r"reached your .{0,30}rate limit", r"toomanyrequests",
    r"per[ -]minute (?:quota|limit)",
)  # fmt: skip
_CONTENT = (
    r"content (?:management )?polic(?:y|ies)", r"content filter(?:ed|ing)?", r"usage polic(?:y|ies)", r"responsible ai",
    r"flagged (?:as|by|for)", r"prompt (?:was|is|has been) (?:blocked|rejected)", r"blocked (?:by|due to|for) .{0,30}(?:safety|guardrail|polic)",
    r"blocked input", r"safety (?:system|settings|filters?)", r"violat(?:e|es|ed|ing) .{0,30}(?:polic|guidelines)",
)  # fmt: skip
_MODEL = (
    r"model:? ['\"`]?[\w./: ]{1,80}['\"`]? (?:was |is |has been |could )?(?:not (?:be )?found|not exist|not available|decommissioned|retired)",
    r"model ['\"`]?[\w./: ]{1,80}['\"`]? does not exist", r"unable to access model", r"deployment .{0,60}does not exist",
    r"no such model", r"unknown model", r"is not a valid model",
)  # fmt: skip
_TLS = (
    r"certificate verify failed", r"wrong version number", r"self signed certificate", r"certificate has expired", r"bad certificate",
    r"tls (?:handshake|alert)", r"sslv3 alert", r"err cert \w{1,40}", r"err ssl \w{1,40}", r"unknown ca", r"host key verification failed",
    r"certificate is not (?:yet )?(?:valid|trusted)", r"not found in known hosts", r"hostname mismatch",
)  # fmt: skip
_DNS = (
    r"name or service not known", r"temporary failure in name resolution", r"nodename nor servname", r"getaddrinfo failed",
    r"could not resolve host\w{0,6}", r"failed to resolve", r"err name not resolved", r"name resolution", r"name not resolved",
    r"no address associated with hostname", r"errors resolving", r"getaddrinfo (?:enotfound|eai again)",
)  # fmt: skip
_CONNECTION = (
    r"connection refused", r"connection reset", r"connection aborted", r"all connection attempts failed",
    r"connect call failed", r"failed to connect to \S{1,200}", r"client failed to connect", r"server closed the connection", r"remote end closed",
    r"peer closed connection", r"server disconnected", r"connection (?:was )?(?:unexpectedly )?closed (?:unexpectedly|by)",
    r"connection unexpectedly closed", r"could not connect to \w{1,100}", r"can'?t connect to \w{1,100}", r"lost connection to \w{1,100}", r"gone away",
    r"network is unreachable", r"no route to host", r"err (?:connection|network|internet|address) \w{1,40}", r"broken pipe", r"econnrefused", r"econnreset",
    r"bad status line", r"response ended prematurely", r"connection broken", r"transport indicated eof", r"connection error",
    r"invalid response to ssl negotiation", r"unexpected eof", r"connection lost", r"cannot connect to host", r"unable to connect to proxy",
    r"error reading ssh protocol banner", r"socket is closed",
)  # fmt: skip
_TIMEOUT = (
    r"timed ?out", r"(?:connection|connect|read|write|request|handshake|statement|lock wait|operation|execution|query|script) timeout(?: (?:expired|exceeded|reached|error))?",
    r"timeout (?:expired|exceeded|reached|during|while|after|waiting)", r"deadline (?:expired|exceeded)", r"exceeded (?:the )?time limit",
    r"time ?limit exceeded", r"gateway time ?out", r"timeout of [\d.]{1,12} ?m?s exceeded", r"err timed out",
)  # fmt: skip

ANSWER_RULES: tuple[Rule, ...] = (
    _rule("context", FailureType.CONTEXT_OVERFLOW, Cause.CONTEXT_LENGTH, *_CONTEXT, looks_at="answer", source=_PROVIDERS,
          confidence=0.95,
          examples=("This model's maximum context length is 8192 tokens, however you requested 9001 tokens",
                    "prompt is too long: 210000 tokens > 200000 maximum",
                    "`inputs` tokens + `max_new_tokens` must be <= 4096"),
          near=("Limit 30000, Used 29500, Requested 1200 tokens per min", "4429 tokens were used", "Invalid context type")),
    _rule("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED,
          r"no space left on device", r"disk (?:usage exceeded|is full|full|quota)", r"requires more system memory",
          r"more system memory .{0,40}than is available",
          looks_at="answer", confidence=0.9,
          examples=("write /tmp/x: no space left on device", "model requires more system memory (38 GiB) than is available (15 GiB)"),
          near=("no space in the garage",)),
    _rule("content", FailureType.CONSTRAINT_IGNORED, Cause.CONTENT_FILTER, *_CONTENT, looks_at="answer", source=_PROVIDERS,
          examples=("The response was filtered due to the content management policy",
                    "your prompt was flagged as potentially violating our usage policy"),
          near=("the policy document is missing", "Invalid content type")),
    _rule("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, *_QUOTA, looks_at="answer", source=_PROVIDERS,
          examples=("You exceeded your current quota, please check your plan and billing details.",
                    "Your credit balance is too low to access the API", "limited to 1000 API calls / month"),
          near=("limited to 10 API calls / minute. You can upgrade to a key with higher limits", "Rate limit reached")),
    _rule("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, r"message larger than max", r"message size exceeds", r"payload too large",
          r"request entity too large",
          looks_at="answer", examples=("Received message larger than max (5242880 vs. 4194304)",), near=("a larger message board",)),
    _rule("rate", _EXTERNAL, Cause.RATE_LIMITED, *_RATE, looks_at="answer", source=_PROVIDERS,
          examples=("API rate limit exceeded for user 1.", "Exceeded rate limits: too many api requests per user per method",
                    "Request rate is large"),
          near=("the rate is limited to members", "interest rate 5")),
    _rule("key", _EXTERNAL, Cause.AUTH, r"(?:invalid|incorrect|wrong|expired) api ?key", r"api ?key (?:not valid|is invalid|has expired|expired)",
          r"invalid (?:authentication )?(?:token|credentials)", r"authentication failed",
          looks_at="answer", source=_PROVIDERS,
          examples=("API key not valid. Please pass a valid API key.", "Forbidden: Invalid api-key"), near=("the key of the piano",)),
    _rule("tool", FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL,
          r"(?:function|tool) ['\"`][\w.: ]{1,80}['\"`] (?:was |is |does )?not (?:found|defined|available|exist|in)",
          r"no such (?:tool|command)", r"unknown tool",
          looks_at="answer", source=_PROVIDERS,
          examples=("Invalid value for 'tool_choice': function 'get_wheather' was not found in the 'tools' parameter.",),
          near=("tool 'x' must be a string",)),
    _rule("model", _EXTERNAL, Cause.MODEL_MISSING, *_MODEL, looks_at="answer", source=_PROVIDERS,
          examples=("The model `gpt-99` does not exist or you do not have access to it.", 'model "llama3.2" not found, try pulling it first',
                    "Unable to access model lab/none."),
          near=("model_validate failed", "the model car was sold")),
    _rule("overloaded", _EXTERNAL, Cause.OVERLOADED, r"overloaded", r"at capacity", r"high (?:traffic|demand)", r"server busy",
          looks_at="answer", source=_PROVIDERS,
          examples=("That model is currently overloaded with other requests.",), near=("the overload protection",)),
    _rule("not_http", _EXTERNAL, Cause.CONNECTION, r"bad status line", looks_at="answer", examples=("400, message: Bad status line",),
          near=("status line of the form",)),
)  # fmt: skip

TEXT_RULES: tuple[Rule, ...] = (
    # --- the agent's own doing ---
    _rule("unknown_tool", FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL,
          r"(?:unknown|no such|unregistered|invalid) tool(?: type| name)?:? ['\"`]?[\w.:]{1,80}",
          r"tool ['\"`][\w.: ]{1,80}['\"`] (?:is |was |does )?not (?:found|available|exist|registered|defined|valid|known)",
          r"tool [\w.:]{1,80} (?:is |was |does )?not (?:found|available|exist|registered)(?: in (?:the )?(?:tools?|registry|toolbox|agent|manifest)| ?[.,;:]| ?$)",
          r"is not a valid tool", r"is not (?:one of|among) the (?:explicitly )?(?:allowed|available|known|registered) tools",
          r"no tool (?:named|called) ['\"`]?[\w.:]{1,80}",
          examples=("Unknown tool: serch", "Tool 'serch' is not available. Available tools: open, search", "No such tool: 'serch'",
                    "serch is not a valid tool, try one of ['open', 'search']."),
          near=("tool hammer not found in aisle 4", "tool registry rebuilt", "the tool found nothing", "no such table: tools")),
    _rule("endless", FailureType.LOOP_DETECTED, Cause.REPETITION, r"maximum number of \d{1,9} iterations in \w{1,10} loop exceeded",
          r"infinite loop detected", r"repeated the same (?:action|call|step)",
          examples=("Maximum number of 10000 iterations in While loop exceeded",),
          near=("event loop is closed", "the loop of the necklace")),
    _rule("step_budget", FailureType.PLAN_INCOMPLETE, Cause.STEP_BUDGET,
          r"max(?:imum)?(?: number of)? (?:iterations?|steps?|turns?|rounds?)(?: ?\(\d{1,6}\)| of \d{1,6}| \d{1,6})? (?:was |were |has been |have been )?(?:reached|exceeded|used up|hit)",
          r"(?:iteration|step|turn|recursion) (?:limit|budget)(?: or time limit)?(?: of \d{1,6})? (?:was |has been |is )?(?:reached|exceeded|used up|hit|exhausted)",
          r"stopped due to (?:the )?(?:max(?:imum)? )?(?:iteration|step|turn)s?(?: limit)?",
          r"(?:request|call) limit of \d{1,6} (?:was |has been |would be )?exceeded",
          examples=("max iterations (4) reached", "Agent stopped due to iteration limit or time limit.",
                    "Recursion limit of 5 reached without hitting a stop condition"),
          near=("maximum recursion depth exceeded", "step 429 of 900 failed", "gave up after step 500 of 900")),
    _rule("incomplete", FailureType.PLAN_INCOMPLETE, Cause.INCOMPLETE,
          r"\d{1,6} of \d{1,6} (?:sub ?)?(?:tasks|goals|steps|parts) (?:are|is|were|remain) (?:not|still|un)\w{0,12}",
          r"(?:sub ?)?(?:tasks|goals) (?:are |is )?(?:not (?:done|complete|completed|finished)|unfinished|still open|remaining)",
          r"plan (?:is |was )?(?:incomplete|not completed?)",
          examples=("finished, but 2 of 5 subtasks are not done: ['mail']",), near=("2 of 5 items were blue", "tasks are listed below")),
    _rule("guardrail", FailureType.CONSTRAINT_IGNORED, Cause.GUARDRAIL,
          r"must not (?:contain|mention|include)", r"(?:violates|violated|breaks) (?:the|a) (?:constraint|policy|rule|guardrail)",
          r"import of [\w.]{1,80} is not allowed", r"blocked by (?:a |the )?(?:guardrail|policy|safety)", r"guardrail (?:triggered|tripped|tripwire)",
          r"not allowed by (?:the )?policy",
          examples=("the answer must not contain prices", "Import of subprocess is not allowed. Authorized imports are: math"),
          near=("balance must not be negative: -1", "the policy number is missing")),
    _rule("context", FailureType.CONTEXT_OVERFLOW, Cause.CONTEXT_LENGTH, *_CONTEXT, source=_PROVIDERS,
          examples=("This model's maximum context length is 128000 tokens.", "context_length_exceeded"),
          near=("4429 tokens", "requested 500 tokens", "context manager exited")),
    _rule("content", FailureType.CONSTRAINT_IGNORED, Cause.CONTENT_FILTER,
          r"content (?:management )?policy", r"(?:rejected|refused|blocked|filtered) by the content filter", source=_PROVIDERS,
          examples=("the request was rejected by the content filter",), near=("content of the policy folder",)),
    # --- the form of data ---
    _rule("output", _SCHEMA, Cause.MALFORMED_OUTPUT,
          r"could not parse (?:the )?(?:llm|lm|model|response|tool call|output)\w{0,3}", r"failed to parse .{0,60}(?:completion|response|output|json)",
          r"invalid json(?: output)?", r"(?:are|is) not valid json", r"code snippet is invalid", r"code parsing failed", r"error in code parsing",
          r"not (?:a )?valid json", r"invalid (?:tool|function) call",
          r"(?:expecting value|extra data|expecting property name .{0,40}|unterminated string .{0,20}): line \d{1,9} column",
          examples=("Could not parse LLM output: `I think I should search`", "Function Joke arguments: ... are not valid JSON"),
          near=("could not park the car", "the parser was sold")),
    _rule("validation", _SCHEMA, Cause.INVALID_ARGUMENTS,
          r"\d{1,6} validation errors? (?:for|in) \w{1,100}", r"error invoking tool", r"is not in the tool'?s input schema", r"input validation error",
          r"failed validation", r"schema validation (?:failed|error)", r"field required", r"contains unknown field", r"object missing required field", r"is a required property",
          r"is not of type '\w{1,40}'", r"expected `?\w{1,40}`?, got `?\w{1,40}`?", r"invalid (?:arguments?|parameters?) for (?:tool|function)",
          examples=("2 validation errors for call[divide]", "Argument qerry is not in the tool's input schema"),
          near=("validation stamp on the ticket", "the form was valid")),
    _rule("query", _SCHEMA, Cause.BAD_REQUEST,
          r"syntax error", r"error in your sql syntax", r"unrecognized (?:name|token)", r"unbalanced parenthesis", r"unterminated character set",
          r"invalid regular expression", r"unknown operator", r"you can only execute one statement", r"error binding parameter",
          r"invalid selector", r"unclosed quotation mark", r"invalid syntax",
          examples=('near "SELEC": syntax error', 'syntax error at or near "FORM"'), near=("the syntax of Latin",)),
    _rule("integrity", _SCHEMA, Cause.BAD_REQUEST,
          r"(?:unique|not null|check|foreign key|primary key) constraint failed", r"duplicate (?:key|entry)", r"violates \w{1,20}(?: \w{1,20})? constraint",
          examples=("UNIQUE constraint failed: orders.email", "duplicate key value violates unique constraint"),
          near=("a unique constraint of nature",)),
    _rule("value", _SCHEMA, Cause.INVALID_ARGUMENTS,
          r"invalid literal for int", r"could not convert string to float", r"invalid isoformat string", r"does not match format", r"codec can'?t (?:de|en)code",
          r"is not json serializable", r"are not json compliant", r"invalid url", r"header values may not contain", r"does not appear to be an ipv4",
          r"vector dimension error", r"expected dim", r"is not a database", r"badly formed hexadecimal uuid", r"unsupported format string",
          r"unknown (?:datetime )?string format", r"month must be in", r"day is out of range for month",
          examples=("invalid literal for int() with base 10: 'twelve'", "Invalid isoformat string: '31/12/2026'"),
          near=("timeout parameter must be positive", "timeout is 'fast', must be a number", "processed 500 items, but the manifest lists 512")),
    # --- the other side ---
    _rule("tls", _EXTERNAL, Cause.TLS, *_TLS, examples=("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",),
          near=("the birth certificate is expired", "certificate of origin")),
    _rule("dns", _EXTERNAL, Cause.DNS, *_DNS, examples=("[Errno -2] Name or service not known", "net::ERR_NAME_NOT_RESOLVED"),
          near=("customer name not known", "could not resolve the dispute")),
    _rule("lock", _EXTERNAL, Cause.CONFLICT,
          r"(?:database|table|file|resource) (?:is|schema is) locked", r"deadlock (?:detected|found)", r"lock wait timeout", r"could not serialize access",
          r"could not be acquired", r"resource (?:is )?busy", r"resource temporarily unavailable", r"is locked by another", r"address already in use",
          r"conflicted with another operation", r"version conflict", r"already in use",
          examples=("database is locked", "deadlock detected"), near=("the door is locked", "busy schedule")),
    _rule("timeout", _EXTERNAL, Cause.TIMEOUT, *_TIMEOUT, unquoted=True,
          examples=("Request timed out.", "Timed out after 0.3s waiting for 'tools/call'", "connection timeout expired"),
          near=("timeout parameter must be positive", "Timeout value connect was fast, but it must be an int, float or None.",
                "retry() got an unexpected keyword argument 'timeout'")),
    _rule("connection", _EXTERNAL, Cause.CONNECTION, *_CONNECTION, unquoted=True,
          examples=("<urlopen error [Errno 111] Connection refused>", "Connection error.", "All connection attempts failed"),
          near=("port 503 closed", "the connection is closed", "Cannot send a request, as the client has been closed.")),
    _rule("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, *_QUOTA, unquoted=True, source=_PROVIDERS,
          examples=("insufficient_quota", "You exceeded your current quota"), near=("the quota of fish",)),
    _rule("rate", _EXTERNAL, Cause.RATE_LIMITED, *_RATE, unquoted=True, source=_PROVIDERS,
          examples=("rate limit exceeded", "upstream rate limit reached, retry after 15 seconds", "429 Too Many Requests"),
          near=("rate limit must be an integer", "order #429 rejected", "customer 'Too Many Requests Ltd' is unknown")),
    _rule("no_quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, r"quota (?:has been |was |is )?(?:exceeded|exhausted|used up)", unquoted=True, source=_PROVIDERS,
          examples=("quota exceeded for this project",), near=("customer 'Quota Exceeded Ltd' has no tax number on file",)),
    _rule("unavailable", _EXTERNAL, Cause.UNAVAILABLE,
          r"service (?:is )?(?:temporarily |currently )?unavailable", r"bad gateway", r"internal server error", r"overloaded(?: error)?",
          r"server (?:is )?(?:too )?busy", r"too many clients", r"(?:database|server|system) (?:system )?is (?:starting up|shutting down|in recovery)",
          r"remaining connection slots", r"service shutting down", r"tab crashed", r"cluster is down", r"no healthy upstream", r"model is (?:currently )?loading",
          r"connection slots are reserved", r"too many connections", r"internal error encountered",
          unquoted=True,
          examples=("upstream: service unavailable", "529 overloaded", "sorry, too many clients already"),
          near=("customer 'Service Unavailable GmbH' has no tax number on file", "user 500 not found", "name 'service_unavailable' is not defined")),
    _rule("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, r"no space left on device", r"(?:database or )?disk (?:is )?full", r"disk quota exceeded",
          r"used memory > 'maxmemory'", r"too many open files",
          examples=("database or disk is full", "[Errno 28] No space left on device"), near=("the bus is full",)),
    _rule("config", _EXTERNAL, Cause.MISSING_CONFIG,
          r"missing credentials", r"api ?key (?:is |was |must be )?(?:not set|missing|required|set|provided)", r"set the .{0,60}environment variable",
          r"(?:could not find|unable to locate|no) (?:default )?credentials", r"no .{0,30}is loaded\. please configure", r"credentials were not found",
          r"must specify a region", r"missing api ?key",
          examples=("Missing credentials. Please pass an `api_key`", "Unable to locate credentials"), near=("the key is missing from the piano",)),
    _rule("auth", _EXTERNAL, Cause.AUTH,
          r"(?:invalid|incorrect|wrong|expired|revoked) (?:api ?key|credentials|password|access token|auth token|bearer token)",
          r"(?:password )?authentication failed", r"401 unauthorized", r"invalid grant", r"bad credentials",
          r"no pg hba\.conf entry", r"login (?:was )?refused", r"login incorrect", r"not logged in", r"noauth \w{1,100}", r"wrongpass \w{1,100}", r"authentication (?:is )?required",
          r"access denied for user", r"username and password not accepted", r"token has (?:been )?(?:expired|revoked)", r"unauthenticated", r"logon failure",
          examples=('FATAL: password authentication failed for user "agent"', "invalid_api_key", "401 Unauthorized"),
          near=("the password field is empty", "author unknown")),
    _rule("permission", _EXTERNAL, Cause.PERMISSION,
          r"permission denied", r"access denied", r"403 forbidden", r"read ?only (?:database|transaction|file system)", r"unable to open database file",
          r"operation not permitted", r"not authorized (?:on|to|for)", r"insufficient (?:permissions?|privileges?|scopes?)", r"sender address rejected",
          unquoted=True,
          examples=("attempt to write a readonly database", "permission denied for table salaries"), near=("planning permission granted",)),
    _rule("deployment", FailureType.UNKNOWN, Cause.DEPLOYMENT,
          r"please install", r"pip install", r"executable doesn'?t exist", r"command not found", r"no module named", r"is not installed",
          r"playwright install", r"executable needs to be in path",
          severity=Severity.CRITICAL,
          examples=("Please install 'mlx-lm' extra", "/bin/sh: foo: command not found"), near=("the kitchen was installed",)),
    # --- what is not there ---
    _rule("mailbox_later", _EXTERNAL, Cause.UNAVAILABLE, r"\(4\d\d, b'[^']{1,200}", examples=("{'bob@lab': (450, b'4.2.0 try later')}",), near=("(450, 12)",)),
    _rule("mailbox", _MISSING, Cause.MISSING_RESOURCE, r"\(55[013], b'[^']{1,200}", r"mailbox (?:unavailable|not found|does not exist)",
          examples=("{'bob@lab': (550, b'5.1.1 no such account')}",), near=("(550, 12)",)),
    _rule("missing", _MISSING, Cause.MISSING_RESOURCE,
          r"no such (?:table|column|index|view|function|collection|bucket|key|container|element|file or directory|command|container|image|index|object|database|queue|topic|channel|resource|document)",
          r"(?:collection|index|table|queue|bucket|channel|document|dataset|container|repository|branch|element|topic|resource|database|schema|relation|column|worksheet|namespace|secret|object)"
          r":? ['\"`]?[\w./:@#-]{1,120}['\"`]? (?:(?:was |could |is )?not (?:be )?found|(?:does not|doesn'?t) exist|is unknown)",
          r"(?:resource|file|page|element|element|document|object|key|index|collection) (?:was |is )?not found",
          r"unknown (?:resource|column|table|database|collection|index|topic)", r"(?:relation|column|function|table|type|database|schema|role) .{1,120} does(?: not|n'?t) exist",
          r"stale element", r"unable to locate element", r"invalid session id", r"element click intercepted",
          examples=("no such table: sales_q9", "Collection papers not found", "Unknown resource: lab://nothing", 'relation "x" does not exist'),
          near=("user 500 not found", "tool hammer not found in aisle 4", "the parrot does not exist anymore")),
)  # fmt: skip

STATUS_IN_TEXT = (
    # "HTTP 503", "status code: 503", "Error code: 429 - …": the word says that the number is a status.
    r"(?:http(?:/\d(?:\.\d)?)?(?: error)?(?: status)?(?: code)?|status ?code|status|error code|response code)(?: of| is)?[ :=(]{1,3}([45]\d\d)(?= ?(?:$|[.,;:)\]'\"<>]| |error))",
    # "the gateway answered 503, try later": a server, a verb, a number that counts nothing.
    r"(?:gateway|server|upstream|api|service|endpoint|backend|host|site|proxy)\b.{0,40}?\b(?:answered|returned|responded|replied|said|gave)(?: with)?(?: an?)?(?: http)?(?: status)?(?: code)? ([45]\d\d)(?= ?(?:$|[.,;:)\]'\"]))",
    # "502 Bad Gateway": the number with its name.
    r"([45]\d\d) (?:bad request|unauthorized|payment required|forbidden|not found|method not allowed|conflict|gone|too many requests|unprocessable|internal server error|bad gateway|service (?:temporarily )?unavailable|gateway time ?out|client error|server error)",
    # "503 Server Error: …" and "too many 503 error responses"
    r"([45]\d\d) error responses?",
)
"""Statuses written out in a message; each has one group with the number."""
