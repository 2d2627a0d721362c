"""Rules on words: of what the other side answered, and, read last, of the message of any error.

Every expression is bounded: no unlimited repetition, and gaps have a maximum, so that reading is
linear in the length of the text. A number alone never fires. An expression is here because a recorded
exception or run is told by it alone, or because a provider documents the text.

A table has one expression a line, which goes on in a line that is indented further; a line that begins
with `+` is a message on which the rule fires, one with `-` a message on which it must not. `<end>` means
that the phrase ends there, and goes on with no noun.
"""

from __future__ import annotations

from functools import partial

from triage.core.taxonomy import Cause, FailureType, Severity

from .rule import Rule, word_rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW
_INCOMPLETE = FailureType.PLAN_INCOMPLETE
_PROVIDERS = "documented error texts of model and API providers"

_answer = partial(word_rule, "answer")
_text = partial(word_rule, "text")

# Words that both an answer and a plain message use.
# fmt: off
_CONTEXT = r"""
        (?:maximum|max) (?:context|prompt|sequence|input) length
        context(?: window| length| size)?(?: of \d{1,9})? (?:(?:was |is )?exceeded|overflow)
        exceed(?:s|ed|ing)? (?:[\w']{1,12} ){0,3}(?:context|(?:context|prompt|sequence|
            input) (?:window|length|size|
            limit))
        (?:prompt|input)(?: is)? too long<end>|(?:prompt|input)(?: length)? exceeds
        too many (?:input )?tokens(?!.{0,3}(?:please |per |wait|try|slow|retry))
        (?:exceeds the maximum number of|must have (?:less|fewer) than \d{1,9}) (?:input )?tokens
        token count .{0,40}exceeds
        (?:longer|larger|more) than (?:the )?(?:specified )?(?:model'?s?|max(?:imum)? (?:context|
            model|sequence|prompt|token)|context)
        reduce (?:the|your) (?:length of (?:the|your) )?(?:messages?|prompt|input)
        tokens \+ `?max new tokens`? must be|request too large for .{0,200}tokens
        range of input length should be|with (?:n ctx|(?:a )?context (?:length|size|window) of)
        \d{2,9} tokens .{0,60}(?:context|window)
"""
_QUOTA = r"""
        insufficient (?:quota|balance|funds|credits?)
        (?:not enough|no|any|more|requires?|out of|purchase|buy|prepaid|cloud) credits<end>
        exceeded your (?:\w{1,12} )?(?:quota|usage|spending|(?:included )?credits)
        billing (?:hard )?limit|check your (?:plan and )?billing|enable billing|unpaid invoices?
        credit (?:balance|limit)
        (?:weekly|monthly|yearly|spending|spend) (?:usage )?(?:hard )?limit
        (?:calls|requests|messages) ?(?:/|per) ?(?:a )?month
        credits? (?:(?:is|are|has been|have been) )?(?:depleted|exhausted|expired|used up)
        (?:usage|spend(?:ing)?|free|plan'?s?|storage|download|monthly|daily) (?:.{0,40} )?(?:cap|
            ceiling|allowance|allocation)
            (?: (?:at|for|with|of|on) .{1,40})? (?:(?:was|has been|is) )?(?:exceeded|reached|hit|
            used up|exhausted)
        used up your .{0,30}(?:allowance|allocation|quota|credits)
        reached your (?:specified )?(?:api )?(?:usage|spend(?:ing)?|credit) limits?
        (?:run|ran|is) out of (?:searches|credits?|funds|quota|balance|api calls)
        out of (?:call volume )?quota
        no quota left|exceeds your plan'?s|usage limit (?:for|of) (?:your|this|the) plan
        recharge your account|top up your|arrear(?:s|age)|payment (?:is )?required
        account is in good standing|free \w{1,10} limit
"""
_RATE = r"""
        rate limits?(?:ing)?(?: quota)?(?: has been| was| is)? (?:exceeded|reached|hit)
        rate ?limited
        exceeded (?:\w{1,12} ){0,4}rate limits?|(?:secondary|api) rate limit|rate limit error
        (?:too many requests|throttl(?:ed|ing))<end>|toomanyrequests|throttlingexception
        requestthrottled
        request rate is (?:too )?large|requests per (?:minute|second|hour|day)
        per[ -]minute (?:quota|limit)
        slow ?down|too many (?:messages|connections)|greylisted|spike arrest violation
        quota .{0,40}(?:is|was|has been) (?:spent|used up|exhausted|consumed|exceeded|reached)
        max(?:imum)? (?:number of )?requests(?: limit)? (?:exceeded|reached)
        quota (?:will )?(?:resets?|renews?|refills?) (?:in|at|on|after)
"""
_PARTS_OF_HISTORY = (
    r"(?:tool ?uses?(?: ids?)?|tool ?results?|tool ?calls?(?: ids?)?|function (?:calls?|responses?)|roles?|"
    r"conversations?|(?:first|last|final) message|redacted thinking|type 'reasoning')"
)
_BESIDE_EACH_OTHER = (
    r"(?:without|corresponding|previous|preceed?ing|following|followed|immediately|alternate|duplicate|unique|"
    r"unexpected|the (?:same )?number of|must start|must use|must be a response|after role|no tool "
    r"(?:output|call) found)"
)
"""What is required of the order of messages. Only of an answer: elsewhere such words may mean anything."""
_THING = (
    r"(?:collection|index|table|view|queue|bucket|channel|document|dataset|container|repository|branch|element|"
    r"topic|resource|database|schema|relation|column|function|key|namespace|secret|object|file|folder|"
    r"directory|page|image|field|class|(?:work)?sheet)"
)
REFUSAL = (
    r"(?:tool|function) (?:call|use|execution|invocation)s? (?:(?:was|is|has been|not executed because it "
    r"was) )?(?:not approved|denied|rejected|declined)(?= ?(?:$|[.,;:!(]|by|because|for|with))"
    r"|(?:^|(?<=[:;,.(])|(?<=[:;,.(] ))approval (?:was |has been )?(?:denied|refused|rejected|declined|"
    r"not granted)|(?:^|(?<=[:;,.(] )|(?:tool|call|action|execution|command|permission)"
    r"(?: of [\w.:'\"` ]{1,60}?)? (?:(?:was|is|has been) )?)"
    r"(?:denied|rejected|declined|refused|not approved) by (?:the |a |an )?(?:human )?"
    r"(?:user|human|person|operator|reviewer|approver)"
    r"|(?:user|human|person|operator|reviewer|approver) (?:has )?(?:denied|rejected|declined|refused|"
    r"did not approve|doesn'?t want to proceed with) (?:(?:the|this|that|your|permission|to|run|"
    r"use|execute|execution of) ){0,3}(?:tool|function|call|action|execution|permission|command)"
    r"|permission to (?:use|run|call|execute) [\w.:]{1,60}(?: with .{1,80}?)? (?:was |has been )?denied"
)
"""Says that a person, or a policy in their place, did not let a call run."""
_TOO_LARGE = r"""
        message larger than max|(?:request entity|payload) too large
        max(?:imum)? (?:request|message|payload|body|document|upload) size (?:is |was )?exceeded
"""
ANSWER_RULES: tuple[Rule, ...] = (
    _answer("context", _OVERFLOW, Cause.CONTEXT_LENGTH, _CONTEXT + r"""
        + This model's maximum context length is 8192 tokens, however you requested 9001 tokens
        - Limit 30000, Used 29500, Requested 1200 tokens per min
        """, source=_PROVIDERS),
    _answer("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, r"""
        no space left on device|disk (?:usage exceeded|is full|full|quota)
        requires more system memory
        + write data.bin: no space left on device
        - no space in the garage
        """),
    _answer("content", _CONSTRAINT, Cause.CONTENT_FILTER, r"""
        content (?:management )?polic(?:y|ies)|content filter(?:ed|ing)?|blocked input
        (?:input|prompt|request|output|content|message) (?:was |is |has been )?flagged
        flagged (?:as|by|for)
        (?:contains?|containing|detected) (?:potentially )?(?:(?:inappropriate|sensitive|unsafe|harmful|
            prohibited|disallowed) (?:or )?){1,2}content
        violat(?:e|es|ed|ing) .{0,30}(?:polic|guidelines)
        + The response was filtered due to the content management policy
        - the policy document is missing
        """, source=_PROVIDERS),
    _answer("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, _QUOTA + r"""
        + You exceeded your current quota, please check your plan and billing details.
        - limited to 10 API calls / minute. You can upgrade to a key with higher limits
        """, source=_PROVIDERS),
    _answer("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, _TOO_LARGE + r"""
        + Received message larger than max (5242880 vs. 4194304)
        - a larger message board
        """),
    _answer("rate", _EXTERNAL, Cause.RATE_LIMITED, _RATE + r"""
        + API rate limit exceeded for user 1.
        - the rate is limited to members
        """, source=_PROVIDERS),
    _answer("integrity", _SCHEMA, Cause.BAD_REQUEST, r"""
        (?:unique|foreign key|not null|check) constraint violated|violates \w{1,20} constraint
        + [HTTP 409] unique constraint violated - in index primary
        - the constraint of the plan
        """),
    _answer("key", _EXTERNAL, Cause.AUTH, r"""
        (?:invalid|incorrect|wrong|expired) api ?key|pass a valid api ?key
        api ?key (?:not valid|is invalid|has expired|expired)
        invalid (?:authentication )?(?:token|credentials)|authentication failed
        (?:provided|access|auth|authentication|bearer|id|refresh|security|session) token
            (?: included in the request)? (?:has |is |was )?(?:been )?(?:expired|revoked)
        + The security token included in the request is expired
        - The page token has expired
        """, source=_PROVIDERS),
    _answer("tool", FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL, r"""
        (?:function|tool) ['\"`][\w.: ]{1,80}['\"`],? (?:which )?(?:was |is |does )?not (?:found|
            defined|available|
            exist|in)
        (?:no such|unknown) tool
        + Invalid 'tool_choice': function 'get_wheather' was not found in the 'tools' parameter.
        - tool 'x' must be a string
        """, source=_PROVIDERS),
    _answer("history", _SCHEMA, Cause.BROKEN_HISTORY, rf"""
        {_PARTS_OF_HISTORY}(?!\w).{{0,80}}(?<!\w){_BESIDE_EACH_OTHER}
        {_BESIDE_EACH_OTHER}(?!\w).{{0,80}}(?<!\w){_PARTS_OF_HISTORY}
        """ + r"""
        + `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1
        - Invalid type for 'messages[0].content'
        """, source=_PROVIDERS),
    _answer("model", _EXTERNAL, Cause.MODEL_MISSING, r"""
        model:? ['\"`]?[\w./: ]{1,80}['\"`]? (?:was |is |has been |could |does )?(?:not (?:be )?found|
            not exist|not available|decommissioned|retired)
        models/[\w.:@ ]{1,80} (?:is |was )?not found|(?:no such|unknown) model
        no endpoints found (?:for|that|matching)
        model: [\w./: ]{0,40}\d[\w./: ]{0,20}$
        + The model `gpt-99` does not exist or you do not have access to it.
        - error while running the model: unexpected EOF
        """, source=_PROVIDERS),
    _answer("permission", _EXTERNAL, Cause.PERMISSION, r"""
        (?:location|country|region|territory) (?:is )?not supported
        (?:organi[sz]ation|account|project|workspace) (?:must be verified|(?:is|
            has been) (?:disabled|suspended|
            deactivated))
        + User location is not supported for the API use.
        - the address of the organization must be given
        """, source=_PROVIDERS),
    _answer("overloaded", _EXTERNAL, Cause.OVERLOADED, r"""
        overloaded|at capacity|high (?:traffic|demand)|server busy
        + That model is currently overloaded with other requests.
        - the overload protection
        """, source=_PROVIDERS),
)
MESSAGE_RULES: tuple[Rule, ...] = (
    _text("denied", _CONSTRAINT, Cause.DENIED, f"        {REFUSAL}" + r"""
        + Tool 'pay' was not executed: approval denied
        - changes were rejected by the reviewer
        """),
    _text("history", _SCHEMA, Cause.BROKEN_HISTORY, r"""
        each `?tool (?:use|result)`? block must have a corresponding|expected tool ?result blocks
        `?tool use`? ids were found without|unexpected `?tool use id`? found
        tool calls['\"`]? must be followed by tool messages
        tool calls that do not have a corresponding
        no tool (?:output|call) found for function call
        roles must alternate (?:between )?['\"`]?user
        + Found AIMessages with tool_calls that do not have a corresponding ToolMessage.
        - Roles must alternate in the rota: nurse, porter, nurse
        """, source=_PROVIDERS),
    _text("unknown_tool", FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL, r"""
        (?:unknown|no such|unregistered|invalid) tool(?! (?:call|use|input|output|result|argument|
            choice))(?: type| name)?:? ['\"`]?[\w.:]{1,80}
        tool ['\"`][\w.: ]{1,80}['\"`] (?:is |was |does )?not (?:found|available|exist|registered|
            defined|valid|known)
        (?:tool|function) [\w.:]{1,40}(?: [\w.:]{1,40}){0,4} (?:is |was |does )?not (?:found|available|
            exist|registered|defined) in (?:the )?(?:tools?|registry|toolbox|agent|manifest|tool ?list)
        ^(?:error:? )?(?:tool|function) [\w.:]{1,40}(?: (?!(?:in|on|at|of|the|for|with|
            from)(?!\w))[\w.:]{1,40}){0,3}
            \ (?:is |was )?not (?:found|registered|defined|available)(?= ?(?:$|[.,;:]))
        is not (?:a valid tool|(?:one of|among) the (?:explicitly )?(?:allowed|available|known|
            registered) tools)
        + Tool 'serch' is not available. Available tools: open, search
        - tool hammer not found in aisle 4
        """),
    _text("endless", FailureType.LOOP_DETECTED, Cause.REPETITION, r"""
        iterations in \w{1,10} loop exceeded|(?:infinite|agent|tool) loop (?:was )?detected
        \d{1,4} times (?:in a row )?with (?:the )?(?:exact )?(?:same|identical) (?:arguments|
            parameters|inputs?)
        + Maximum number of 10000 iterations in While loop exceeded
        - event loop is closed
        """),
    _text("step_budget", _INCOMPLETE, Cause.STEP_BUDGET, r"""
        max(?:imum)?(?: number of)? (?:\w{1,12} ){0,2}(?:iterations?|steps?|turns?|rounds?|
            replies)(?: ?\(\d{1,6}\)|
            (?: of)? \d{1,6})? (?:was |were |has been |have been )?(?:reached|exceeded|used up|hit)
        (?:iteration|step|turn|recursion) (?:limit|budget)(?: or time limit)?(?: of \d{1,6})? (?:was |
            has been |is )?(?:reached|exceeded|used up|hit|exhausted)
        (?:reached|exceeded|hit) (?:its |the )?(?:iteration|step|turn|round|recursion) (?:limit|
            budget|cap)
        stopped due to (?:the )?(?:max(?:imum)? )?(?:iteration|step|turn)s?(?: limit)?
        would exceed the (?:request|tool calls?) limit of \d{1,6}
        + Recursion limit of 5 reached without hitting a stop condition
        - step 429 of 900 failed
        """),
    _text("incomplete", _INCOMPLETE, Cause.INCOMPLETE, r"""
        (?:sub ?)?(?:tasks|goals|steps) (?:(?:are|were|have been) )?(?:(?:not|never) (?:done|
            completed?|finished|
            executed|started)|unfinished|still open|remaining)
        + finished, but 2 of 5 subtasks are not done: ['mail']
        - tasks are listed below
        """),
    _text("guardrail", _CONSTRAINT, Cause.GUARDRAIL, r"""
        import of [\w.]{1,80} is not allowed|blocked by (?:a |the )?(?:guardrail|policy)
        + Import of subprocess is not allowed. Authorized imports are: math
        - the policy number is missing
        """),
    _text("context", _OVERFLOW, Cause.CONTEXT_LENGTH, _CONTEXT + r"""
        context length exceeded
        + Prompt too long: 300121 tokens, the maximum is 262144
        - context manager exited
        """, source=_PROVIDERS),
    _text("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, _TOO_LARGE + r"""
        + ERR max request size exceeded. Limit: 1048576 bytes
        - the size of the request form
        """),
    _text("output_cut", _OVERFLOW, Cause.OUTPUT_CUT, r"""
        finish reason['\":= ]{1,4}(?:length|max tokens)
        (?:response|answer|completion|output) (?:was |is )?(?:cut off|truncated) .{0,30}(?:token|
            length) limit
        + finish_reason: length, max_tokens reached
        - the branch was cut off by the storm
        """, source=_PROVIDERS),
    _text("content", _CONSTRAINT, Cause.CONTENT_FILTER, r"""
        content management policy
        finish reason['\":= ]{1,4}(?:safety|recitation|prohibited content|content filter)
        (?:response|output|completion|prompt|answer|candidate|request) (?:was |is |
            has been )?(?:filtered|
            blocked|withheld|flagged|rejected by the content filter)(?= ?(?:$|[.,;:!(]|due|by|
            because|for|as))
        + the request was rejected by the content filter
        - content of the policy folder
        """, source=_PROVIDERS),
    _text("output", _SCHEMA, Cause.MALFORMED_OUTPUT, r"""
        could not parse (?:the )?(?:json|llm|lm|model|response|tool call|output)\w{0,3}
        (?:retries|attempts) .{0,10}for (?:output|result|response) validation
        code snippet is invalid
        invalid json(?: output)?|not (?:a )?valid json|code parsing failed
        (?:expecting value|extra data|expecting .{1,40} delimiter|expecting property name .{0,40}|
            unterminated string .{0,20}|invalid control character .{0,6}|
            invalid .{1,3}escape):? (?:at )?line \d{1,9}
        + Could not parse LLM output: `I think I should search`
        - could not park the car
        """),
    _text("validation", _SCHEMA, Cause.INVALID_ARGUMENTS, r"""
        \d{1,6} validation errors? (?:for|in) \w{1,100}|error invoking tool|failed validation
        input validation error|validation error:? .{0,60}(?:expected|required|missing|must be)
        missing required (?:argument|parameter|field|propert)\w{0,3}|field required
        is a required property
        is not of type '\w{1,40}'|expected `?\w{1,40}`?, got `?\w{1,40}`?
        (?:invalid|malformed) (?:json )?(?:tool |function )?(?:arguments?|parameters?)(?= for
            \ (?:the )?(?:tool|function)|[.,:\[]| ?$)
        + Malformed JSON arguments for tool 'search'. The tool was not executed.
        - validation stamp on the ticket
        """),
    _text("query", _SCHEMA, Cause.BAD_REQUEST, r"""
        syntax error|unrecognized (?:name|token)|invalid method name
        parse error(?=:| (?:at|near|on) )
        wrongtype operation|unknown command|is not an integer or out of range|cannot query field
        you can only execute one statement|error binding parameter|strict mode violation
        + near "SELEC": syntax error
        - the syntax of Latin
        """),
    _text("integrity", _SCHEMA, Cause.BAD_REQUEST, r"""
        (?:record|row|document|entity|index|key) ['\"`][\w./: ]{1,80}['\"`] already (?:exists|contains)
        (?:unique|not null|check|foreign key|primary key) constraint failed
        violates \w{1,20} \w{0,20} ?constraint
        + Database record `books:1` already exists
        - a unique constraint of nature
        """),
    _text("value", _SCHEMA, Cause.INVALID_ARGUMENTS, r"""
        invalid literal for int|could not convert string to float|invalid isoformat string
        codec can'?t (?:de|en)code|(?:not json serializable|not json compliant)
        header values may not contain
        does not appear to be an ipv4|expected dim|error tokenizing
        ended before the end of stream marker|unexpected end of (?:the )?(?:file|data|input|stream)
        + Invalid isoformat string: '31/12/2026'
        - timeout is 'fast', must be a number
        """),
    _text("tls", _EXTERNAL, Cause.TLS, r"""
        certificate verify failed|wrong version number|self signed certificate
        err (?:cert|ssl) \w{1,40}
        certificate (?:has expired|is not (?:yet )?(?:valid|trusted))|not found in known hosts
        hostname mismatch
        + [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed
        - the birth certificate is expired
        """),
    _text("dns", _EXTERNAL, Cause.DNS, r"""
        name or service not known
        (?:name resolution|name not resolved|failed to resolve|errors resolving)
        could not resolve host\w{0,6}|getaddrinfo (?:failed|enotfound|eai again)
        nodename nor servname
        + [Errno -2] Name or service not known
        - could not resolve the dispute
        """),
    _text("redirects", _EXTERNAL, Cause.BAD_REQUEST, r"""
        (?:too many|exceeded \d{1,4}) redirects
        + Exceeded 30 redirects.
        - the redirect was followed
        """, severity=Severity.CRITICAL),
    _text("circuit", _EXTERNAL, Cause.CIRCUIT_OPEN, r"""
        circuit (?:breaker )?['\"`]?[\w.:]{0,60}['\"`]? ?is (?:currently |still )?open(?= ?(?:$|
            [.,;:]))
        + Circuit payments is open
        - circuit training is open to members
        """),
    _text("lock", _EXTERNAL, Cause.CONFLICT, r"""
        (?:database|table|file|resource) is locked|is locked by another|deadlock detected
        is busy running
        (?:conflict on|(?:version|write|update)) (?:update|insert|write|conflict)
        (?:address )?already in use
        \[(?:errno (?:11|16|26|98)|winerror (?:32|33|10048))\]
        + database is locked
        - the door is locked
        """),
    _text("timeout", _EXTERNAL, Cause.TIMEOUT, r"""
        timed ?out|gateway time ?out<end>|no response (?:was )?received<end>
        (?:connection|connect|read|write|request|handshake|statement|lock wait|operation|execution|
            query|script) timeout(?: (?:expired|exceeded|reached|error))?
        timeout (?:[\d.]{1,12} ?m?s )?(?:expired|exceeded|reached|during|while|after|waiting)
        deadline (?:expired|exceeded)
        \[(?:errno 110|winerror (?:121|10060))\]
        + Timed out after 0.3s waiting for 'tools/call'
        - timeout parameter must be positive
        - retry() got an unexpected keyword argument 'timeout'
        """, unquoted=True),
    _text("connection", _EXTERNAL, Cause.CONNECTION, r"""
        connection (?:refused|reset|aborted)<end>|connection error|network error<end>
        (?:fail(?:ed)?|unable|could not|cannot|
            can'?t) (?:to )?connect(?:ing)? to (?:\S{1,60}[.:]\S{1,60}|any|all|host|
            (?:the )?(?:\w{1,20} )?(?:servers?|database|brokers?|host|node|cluster))
        server closed the connection|(?:^|(?<=: ))connection closed\.?$
        upstream connect error|(?:connect|disconnect)/reset before headers|socket hang ?up
        no route to host
        err (?:connection|network|internet|address) \w{1,40}|broken pipe|econnrefused|econnreset
        bad status line
        unexpected eof|invalid response to ssl negotiation|error reading ssh protocol banner
        \[(?:errno (?:32|10[0134]|107|108|111|112|113)|winerror (?:1005[0134]|10061|10065))\]
        + <urlopen error [Errno 111] Connection refused>
        - the connection is closed
        - connection refused paint; sand it first
        """, unquoted=True),
    _text("session", _EXTERNAL, Cause.CONNECTION, r"""
        session (?:was |has been )?terminated
        session (?:with id \S{1,80} )?(?:was |could )?not (?:be )?found
        + MCP error -32600: Session terminated
        - the session of parliament was opened
        """),
    _text("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, _QUOTA + r"""
        + insufficient_quota
        - the quota of fish
        """, unquoted=True, source=_PROVIDERS),
    _text("rate", _EXTERNAL, Cause.RATE_LIMITED, _RATE + r"""
        + upstream rate limit reached, retry after 15 seconds
        - too many requests in clue 12: one question each
        - customer 'Too Many Requests Ltd' is unknown
        """, unquoted=True, source=_PROVIDERS),
    _text("model", _EXTERNAL, Cause.MODEL_MISSING, r"""
        model ['\"`][\w./: ]{1,80}['\"`] (?:was |is )?(?:not found|not available|does not exist|
            retired)
        + model 'llama9' not found
        - the model of the car is unknown
        """),
    _text("no_quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, r"""
        quota (?:has been |was |is )?(?:exceeded|exhausted|used up)
        + quota exceeded for this project
        - customer 'Quota Exceeded Ltd' has no tax number on file
        """, unquoted=True, source=_PROVIDERS),
    _text("unavailable", _EXTERNAL, Cause.UNAVAILABLE, r"""
        (?:(?:service|server) (?:is )?(?:temporarily |currently )?unavailable|bad gateway)<end>
        (?:service|server|node|cluster) (?:is )?not ready<end>|internal server error
        overloaded(?: error)?
        too many (?:clients|users)
        (?:database|server|system) (?:system )?(?:is )?(?:starting up|shutting down|in recovery)
        (?:tab|page|target) crashed|no healthy upstream|no cluster leader|queue (?:is )?full<end>
        (?:connection )?pool (?:is |was )?exhausted
        + service not ready: initializing
        - customer 'Service Unavailable GmbH' has no tax number on file
        - service unavailable before 15,000 km
        """, unquoted=True),
    _text("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, r"""
        no ?space ?left(?: on device)?|out of memory|disk (?:is )?full|too many open files
        \[(?:errno (?:24|28|122)|winerror 112)\]
        + database or disk is full
        - the bus is full
        """),
    _text("config", _EXTERNAL, Cause.MISSING_CONFIG, r"""
        missing (?:credentials|api ?key)|set the .{0,60}environment variable
        unable to locate credentials
        api ?key (?:is |was |must be )?(?:not set|not found|missing|required|set|provided)
        + API key not found in the environment
        - the key is missing from the piano
        """),
    _text("auth", _EXTERNAL, Cause.AUTH, r"""
        (?:invalid|incorrect|wrong|bad|expired|revoked) (?:api ?key|credentials|password|access token|
            auth token|bearer token|user ?name)
        (?:password )?authentication failed(?! to )|authentication (?:is )?required|invalid grant
        unauthenticated
        no pg hba\.conf entry|auth(?:entication)? check fail(?:ed|ure)|login (?:was )?refused
        wrongpass \w{1,100}
        fatal: {1,3}role .{1,80} (?:does not exist|is not permitted)|access denied for user
        token has (?:been )?(?:expired|revoked)|authorization violation
        + FATAL: password authentication failed for user "agent"
        - the password field is empty
        """),
    _text("permission", _EXTERNAL, Cause.PERMISSION, r"""
        permission den(?:ied|y)|access denied|read ?only (?:database|transaction|file system)
        (?:do|does)(?: not|n'?t) have (?:the )?(?:\w{1,20} )?permissions?|no permissions? (?:to|for)
        not authorized (?:on|to|for)|^(?:\[[\w: ]{1,20}\] )?not authorized\.?$
        insufficient (?:permissions?|privileges?|scopes?)|\[(?:errno (?:1|13|30)|winerror 5)\]
        + permission denied for table salaries
        - planning permission granted
        """, unquoted=True),
    _text("deployment", FailureType.UNKNOWN, Cause.DEPLOYMENT, r"""
        command (?:was )?not found|no module named|(?:please|pip|playwright) install
        + /bin/sh: foo: command not found
        - the kitchen was installed
        """, severity=Severity.CRITICAL),
    _text("missing", _MISSING, Cause.MISSING_RESOURCE, r"""
        \[(?:errno (?:2|20|21)|winerror (?:2|3|267))\]
        no such <thing>
        <thing>:? ['\"`]?[\w./:@#-]{1,120}['\"`]? (?:(?:was |could |is |can)?not (?:be )?(?:found|
            resolved)|
            does(?: not|n'?t) exist|is unknown)
        (?:resource|file|page|element|document|object|key|index|collection) (?:was |is )?not found
        unknown (?:resource|column|table|database|collection|index|topic)
        (?:relation|column|function|table|type|database|schema|role) .{1,120} does(?: not|n'?t) exist
        \w{1,40}\[[\w ./:-]{1,80}\] does not exist
        cannot resolve keyword ['\"][\w.]{1,80}['\"] into field
        (?:could not|couldn'?t|cannot|can'?t|unable to) (?:find|locate) (?:the |a |any )?<thing>
        no (?:files|rows|documents) (?:were )?found (?:that match|matching)
        element click intercepted
        + Collection papers not found
        + relation "x" does not exist
        - tool hammer not found in aisle 4
        """.replace("<thing>", _THING)),
    _text("later", _EXTERNAL, Cause.UNAVAILABLE, r"""
        (?:please )?(?:try|retry)(?: again)? later[.!'"}\] ]{0,4}$
        + Unknown error, please try again later
        - the guest will retry later in May
        """),
    _text("page", _SCHEMA, Cause.BAD_RESPONSE, r"""
        <(?:!doctype )?html[^>]{0,80}>|malformed (?:server )?response
        + Invalid response: <html><body>Maintenance</body></html>
        - html is no unit
        """, severity=Severity.RETRIABLE),
)
# fmt: on

_ITS_NUMBER = r"([45]\d\d)(?= ?(?:$|[.,;:)\]'\"<>]| |error))"
_NAMED = (
    "402(?= payment required)|405(?= method not allowed)|422(?= unprocessable)|429(?= too many requests)|"
    "500(?= internal server error)|502(?= bad gateway)|504(?= gateway time ?out)|"
    "503(?= service (?:temporarily )?unavailable)|[45][0-9][0-9](?= (?:client|server) error(?!\\w))"
)
_NAMED_LIKE_WORDS = (
    "400(?= bad request)|401(?= unauthorized)|403(?= forbidden)|404(?= not found)|409(?= conflict)|"
    "410(?= gone)"
)

STATUS_TOLD = (
    r"(?:gateway|server|upstream|api|service|endpoint|backend|host|site|proxy)\b.{0,40}?"
    r"\b(?:answered|returned|responded|replied|said|gave)(?: with)?(?: an?)?(?: http)?"
    r"(?: status)?(?: code)? ([45]\d\d)(?= ?(?:$|[.,;:)\]'\"]))"
)
"""A status that a sentence tells: "the gateway answered 503, try later" has a server, a verb, and a number
that counts nothing."""
STATUS_IN_TEXT = (
    # "HTTP 503", "status code: 503", "Error code: 429 - …": the words say that the number is a
    # status.
    (
        r"(?:http(?:/\d(?:\.\d)?)?(?: error)?(?: status)?(?: code)?|status ?code|status|error code|"
        rf"response code)(?: of| is)?[ :=(]{{1,3}}{_ITS_NUMBER}"
    ),
    STATUS_TOLD,
    # "502 Bad Gateway": the number with its own name.
    rf"({_NAMED})",
    # "404 Not Found", but not "user 404 not found": these names are ordinary words.
    rf"(?:^|[:;,.(\[\"'<] ?|http |status |error |code |answered |returned )({_NAMED_LIKE_WORDS})",
    # "the requested URL returned error: 404", and "error 401: Unauthorized" as the first words
    r"(?:url returned error:? |^error )([45]\d\d)(?= ?(?:$|[.,;:'\"]))",
    # "too many 503 error responses"
    r"([45]\d\d) error responses?",
)
"""Statuses written out in a message; each expression has one group with the number."""
