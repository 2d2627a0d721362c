"""Rules on words: of what the other side answered, and, read last, of the message of any error.

Every expression is bounded: no unlimited repetition, and gaps have a maximum, so that reading is
linear in the length of the text. A number alone never fires.

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
_UNKNOWN = FailureType.UNKNOWN
_WRONG_TOOL = FailureType.WRONG_TOOL_CALLED
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW
_INCOMPLETE = FailureType.PLAN_INCOMPLETE
_LOOP = FailureType.LOOP_DETECTED
_PROVIDERS = "documented error texts of model and API providers"

_answer = partial(word_rule, "answer")
_text = partial(word_rule, "text")

# Words that both an answer and a plain message use.
# fmt: off
_CONTEXT = r"""
        maximum (?:context|prompt) length|context length exceeded
        context (?:window|length|size) (?:of \d{1,9} )?(?:(?:was |is )?exceeded|overflow)
        exceed(?:s|ed|ing)? (?:the |this |its )?(?:model'?s? )?(?:maximum |
            available )?context(?: window| length| size)?
        (?:prompt|input) is too long<end>|prompt too long<end>|input length exceeds
        (?:prompt|input) exceeds (?:the )?max(?:imum)? (?:\w{1,12} )?length
        too many (?:input )?tokens(?!.{0,3}(?:please |per |wait|try|slow|retry))
        exceeds? context limit|(?:maximum|max) context length
        reduce (?:the|your) (?:length of (?:the|your) )?(?:messages?|prompt|input)
        tokens \+ `?max new tokens`? must be|(?:input )?token count .{0,40}exceeds
        exceeds the maximum number of (?:input )?tokens|request too large for .{0,200}tokens
        longer than the model'?s? (?:maximum )?context
        longer than the (?:specified )?max(?:imum)? (?:model|sequence|context|prompt|token) length
        range of input length should be
        exceed(?:s|ed|ing)? (?:the )?(?:model'?s? )?max(?:imum)? (?:sequence|context|prompt|
            model) (?:length|size)
        (?:longer|larger|more) than (?:the )?model'?s? max(?:imum)?
        (?:loaded|configured|running) with (?:a )?context (?:length|size|window) of (?:only )?\d{1,9}
        must have (?:less|fewer) than \d{1,9} tokens
        \d tokens of context|loaded with n ctx
"""
_QUOTA = r"""
        insufficient (?:quota|balance|funds|credits?)
        exceeded your (?:current|monthly) (?:quota|usage|spending)
        billing (?:hard )?limit|check your (?:plan and )?billing|credit (?:balance|limit)
        requires? more credits|(?<!run )(?<!ran )out of credits|(?:run|ran) out of credits
        (?:weekly|monthly|yearly|spending|spend) (?:usage )?(?:hard )?limit
        no quota left|enable billing
        (?:calls|requests|messages) ?(?:/|per) ?(?:a )?month
        prepaid credits
        credits? (?:is|are|has been|have been) (?:depleted|exhausted|used up)
        (?:plan|project|account|organi[sz]ation) (?:is )?out of (?:credits?|quota|funds)
        (?:usage|spend(?:ing)?|storage|bandwidth|transaction|download|
            upload) (?:cap|ceiling) (?:(?:at|for|with|of|on) .{1,40} )?(?:was |has been |
            is )?(?:exceeded|reached|hit)
        reached your (?:specified )?(?:api )?(?:usage|spend(?:ing)?|credit) limits?
        run out of (?:searches|credits?|funds|quota|balance|api calls)
        exceeds your plan'?s|usage limit (?:for|of) (?:your|this|the) plan|recharge your account
        top up your|arrears|payment (?:is )?required
"""
_RATE = r"""
        rate limit(?:s|ing)?(?: quota)?(?: has been| was| is)? (?:exceeded|reached|hit)
        rate limit reached|exceeded rate limits?
        exceeded a? ?(?:secondary )?(?:token )?rate limit
        secondary rate limit|api rate limit|(?:too many requests|throttl(?:ed|ing))<end>|rate ?limited
        request rate is (?:too )?large|requests per (?:minute|second|hour|day)
        slow ?down|too many (?:messages|connections)|greylisted|reached your .{0,30}rate limit
        toomanyrequests|per[ -]minute (?:quota|limit)|spike arrest violation
        quota .{0,40}(?:is|was|has been) (?:spent|used up|exhausted|consumed|exceeded|reached)
        rate limit error|throttlingexception|requestthrottled
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
_HISTORY = r"""
        each `?tool (?:use|result)`? block must have a corresponding
        `?tool use`? ids were found without|unexpected `?tool use id`? found
        tool calls['\"`]? must be followed by tool messages|tool calls that do not have a corresponding
        role ['\"`]tool['\"`] must be a response|unexpected role .{1,20} after role
        no tool (?:output|call) found for function call|without its required following item
        function (?:call|response) turn comes immediately after
        function response parts .{0,40}equal to the number of function call parts
        roles must alternate (?:between )?['\"`]?user|first message must use the .{1,3}user.{1,3} role
        expected tool ?result blocks|expected `?thinking`? or `?redacted thinking`?
"""
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
        message larger than max|message size exceeds|payload too large|request entity too large
        max(?:imum)? (?:request|message|payload|body|document|upload) size (?:is |was )?exceeded
"""
ANSWER_RULES: tuple[Rule, ...] = (
    _answer("context", _OVERFLOW, Cause.CONTEXT_LENGTH, _CONTEXT + r"""
        + This model's maximum context length is 8192 tokens, however you requested 9001 tokens
        + prompt is too long: 210000 tokens > 200000 maximum
        + `inputs` tokens + `max_new_tokens` must be <= 4096
        - Limit 30000, Used 29500, Requested 1200 tokens per min
        - 4429 tokens were used
        - Invalid context type
        """, source=_PROVIDERS),
    _answer("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, r"""
        no space left on device|disk (?:usage exceeded|is full|full|quota)|requires more system memory
        more system memory .{0,40}than is available
        + write data.bin: no space left on device
        + model requires more system memory (38 GiB) than is available (15 GiB)
        - no space in the garage
        """),
    _answer("content", _CONSTRAINT, Cause.CONTENT_FILTER, r"""
        content (?:management )?polic(?:y|ies)|content filter(?:ed|ing)?|usage polic(?:y|ies)
        responsible ai|flagged (?:as|by|for)|prompt (?:was|is|has been) (?:blocked|rejected)
        blocked (?:by|due to|for) .{0,30}(?:safety|guardrail|polic)
        blocked input|safety (?:system|settings|filters?)
        (?:contains?|containing|detected) (?:potentially )?(?:(?:inappropriate|sensitive|unsafe|harmful|
            prohibited|disallowed) (?:or )?){1,2}content
        violat(?:e|es|ed|ing) .{0,30}(?:polic|guidelines)
        + The response was filtered due to the content management policy
        + your prompt was flagged as potentially violating our usage policy
        - the policy document is missing
        - Invalid content type
        """, source=_PROVIDERS),
    _answer("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, _QUOTA + r"""
        + You exceeded your current quota, please check your plan and billing details.
        + Your credit balance is too low to access the API
        + limited to 1000 API calls / month
        - limited to 10 API calls / minute. You can upgrade to a key with higher limits
        - Rate limit reached
        """, source=_PROVIDERS),
    _answer("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, _TOO_LARGE + r"""
        + Received message larger than max (5242880 vs. 4194304)
        - a larger message board
        """),
    _answer("rate", _EXTERNAL, Cause.RATE_LIMITED, _RATE + r"""
        + API rate limit exceeded for user 1.
        + Exceeded rate limits: too many api requests per user per method
        + Request rate is large
        - the rate is limited to members
        - interest rate 5
        """, source=_PROVIDERS),
    _answer("integrity", _SCHEMA, Cause.BAD_REQUEST, r"""
        (?:unique|foreign key|not null|check) constraint violated|violates \w{1,20} constraint
        + [HTTP 409] unique constraint violated - in index primary
        - the constraint of the plan
        """),
    _answer("key", _EXTERNAL, Cause.AUTH, r"""
        (?:invalid|incorrect|wrong|expired) api ?key
        api ?key (?:not valid|is invalid|has expired|expired)
        pass a valid api ?key
        invalid (?:authentication )?(?:token|credentials)
        authentication failed
        (?:provided|access|auth|authentication|bearer|id|refresh|security|session) token
            (?: included in the request)? (?:has |is |was )?(?:been )?(?:expired|revoked)
        + API key not valid. Please pass a valid API key.
        + The security token included in the request is expired
        + Please pass a valid API key
        + Forbidden: Invalid api-key
        - the key of the piano
        - The page token has expired
        """, source=_PROVIDERS),
    _answer("tool", _WRONG_TOOL, Cause.UNKNOWN_TOOL, r"""
        (?:function|tool) ['\"`][\w.: ]{1,80}['\"`] (?:was |is |does )?not (?:found|defined|available|
            exist|in)
        (?:function|tool) ['\"`][\w.: ]{1,80}['\"`],? which (?:was|is) not in
        no such (?:tool|command)|unknown tool
        + Invalid 'tool_choice': function 'get_wheather' was not found in the 'tools' parameter.
        + tool call validation failed: attempted to call tool 'look_up' which was not in request.tools
        - tool 'x' must be a string
        """, source=_PROVIDERS),
    _answer("history", _SCHEMA, Cause.BROKEN_HISTORY, rf"""
        {_PARTS_OF_HISTORY}(?!\w).{{0,80}}(?<!\w){_BESIDE_EACH_OTHER}
        {_BESIDE_EACH_OTHER}(?!\w).{{0,80}}(?<!\w){_PARTS_OF_HISTORY}
        """ + r"""
        + `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1
        + messages: roles must alternate between "user" and "assistant"
        + Not the same number of function calls and responses
        - Invalid type for 'messages[0].content'
        - the tool result is not valid
        """, source=_PROVIDERS),
    _answer("model", _EXTERNAL, Cause.MODEL_MISSING, r"""
        model:? ['\"`]?[\w./: ]{1,80}['\"`]? (?:was |is |has been |could )?(?:not (?:be )?found|
            not exist|not available|decommissioned|retired)
        model ['\"`]?[\w./: ]{1,80}['\"`]? does not exist
        unable to access model|deployment .{0,60}does not exist|no such model|unknown model
        no endpoints found (?:for|that|matching)|invalid model name passed
        model (?=[\w./: ]{0,50}\d[\w./: ]{0,50} (?:has been|was|is) )[\w./: ]{1,80} (?:has been|was|
            is) (?:deprecated|decommissioned|discontinued|retired|no longer (?:available|supported|
            offered))
        is not a valid model(?: identifier| id| name)?|invalid model(?: name| id)?: [\w./:@ ]{1,80}
        models/[\w.:@ ]{1,80} (?:is |was )?not found
        model version has reached the end of its life
        model (?:identifier|id|name) is (?:invalid|not valid|unknown)
        model: [\w./: ]{0,40}\d[\w./: ]{0,20}$
        + The model `gpt-99` does not exist or you do not have access to it.
        + model "llama3.2" not found, try pulling it first
        + Unable to access model lab/none.
        - model_validate failed
        - model: field required
        - error while running the model: unexpected EOF
        - the model car was sold
        """, source=_PROVIDERS),
    _answer("permission", _EXTERNAL, Cause.PERMISSION, r"""
        (?:organi[sz]ation|account|identity|business) must be verified
        (?:key|token|credential)s? (?:is|are) only (?:authori[sz]ed|valid|allowed) for
        (?:location|country|region|territory) (?:is )?not supported
        + Your organization must be verified to stream this model.
        + This credential is only authorized for use with the command line.
        + User location is not supported for the API use.
        + Country, region, or territory not supported
        - the address of the organization must be given
        - the key is only the first part
        - the encoding is not supported
        """, source=_PROVIDERS),
    _answer("overloaded", _EXTERNAL, Cause.OVERLOADED, r"""
        overloaded|at capacity|high (?:traffic|demand)|server busy
        + That model is currently overloaded with other requests.
        - the overload protection
        """, source=_PROVIDERS),
    _answer("not_http", _EXTERNAL, Cause.CONNECTION, r"""
        bad status line
        + 400, message: Bad status line
        - status line of the form
        """),
)
MESSAGE_RULES: tuple[Rule, ...] = (
    _text("denied", _CONSTRAINT, Cause.DENIED, f"        {REFUSAL}" + r"""
        + Tool execution was not approved.
        + The user denied permission to run this tool.
        + Tool 'pay' was not executed: approval denied
        - permission denied for table orders
        - the loan was not approved
        - changes were rejected by the reviewer
        - connection refused by peer
        """),
    _text("history", _SCHEMA, Cause.BROKEN_HISTORY, _HISTORY + r"""
        + Expected toolResult blocks at messages.2.content for the following Ids: t1
        + Found AIMessages with tool_calls that do not have a corresponding ToolMessage.
        - Roles must alternate in the rota: nurse, porter, nurse
        """, source=_PROVIDERS),
    _text("unknown_tool", _WRONG_TOOL, Cause.UNKNOWN_TOOL, r"""
        (?:unknown|no such|unregistered|invalid) tool(?! (?:call|use|input|output|result|argument|
            choice))(?: type| name)?:? ['\"`]?[\w.:]{1,80}
        tool ['\"`][\w.: ]{1,80}['\"`] (?:is |was |does )?not (?:found|available|exist|registered|
            defined|valid|known)
        (?:tool|function) [\w.:]{1,40}(?: [\w.:]{1,40}){0,4} (?:is |was |does )?not (?:found|available|
            exist|registered|defined) in (?:the )?(?:tools?|registry|toolbox|agent|manifest|tool ?list)
        (?:tool|function) [\w.:]{1,80} (?:is |was |does )?not (?:found|available|exist|
            registered)(?: in (?:the )?(?:tools?|registry|toolbox|agent|manifest)| ?[.,;:]| ?$)
        ^(?:(?:mcp )?error {0,2}(?:\d{1,6})?: )?(?:tool|function) [\w.:]{1,40}(?: (?!(?:in|on|at|of|
            the|for|with|from|you|we|that|which)(?!\w))[\w.:]{1,40}){0,3}\ (?:is |was )?not (?:found|
            registered|defined|available)(?= ?(?:$|[.,;]))
        (?:tool|function) (?:with (?:the )?name |named )?['\"`][\w.: ]{1,80}['\"`] (?:was not found in the
            \ (?:provided |given )?(?:tool|function)|does not exist)
        is not a valid tool
        is not (?:one of|among) the (?:explicitly )?(?:allowed|available|known|registered) tools
        no tool (?:named|called) ['\"`]?[\w.:]{1,80}
        (?:tool|action) (?:named |called )?['\"`][\w.: ]{1,80}['\"`],? (?:which |that )?(?:is |was |
            do |does )?(?:not|don'?t|doesn'?t|isn'?t) (?:in the list of tools|among|one of|exist)
        no (?:handler|implementation|function) (?:is |was )?(?:registered |found |
            defined )?for\ (?:the )?tool
        (?:attempted|tried) to (?:call|use|invoke) (?:a |the )?(?:tool|
            function) ['\"`][\w.: ]{1,80}['\"`],? (?:which |that )?(?:is |was )?not
        + Unknown tool: serch
        + Tool 'serch' is not available. Available tools: open, search
        + No such tool: 'serch'
        + serch is not a valid tool, try one of ['open', 'search'].
        + tool with name 'x' was not found in the provided tool definitions
        + function 'send_email' does not exist
        - tool hammer not found in aisle 4
        - tool registry rebuilt
        - the tool found nothing
        - no such table: tools
        """),
    _text("endless", _LOOP, Cause.REPETITION, r"""
        maximum number of \d{1,9} iterations in \w{1,10} loop exceeded
        infinite loop detected
        (?:agent|model|run|conversation|it) (?:is|was|keeps) (?:going|running|
            moving) (?:round )?in circles
        last \d{1,4} (?:actions|steps|calls|tool calls) (?:are|were) (?:identical|the same)
        stuck in (?:a |an )?(?:infinite |endless )?loop
        (?:repeated|repeating|repeats|called|calling) the (?:exact )?same (?:action|call|step|tool|
            function|arguments)
        (?:repeated|repeating|identical|same|duplicate) (?:identical |same )?(?:tool |function |
            agent )?(?:calls?|actions?|steps?) .{0,20}(?:in a row|\d{1,4} times|consecutive\w{0,2})
        (?:called|ran|run|tried|executed|invoked|repeated) (?:\d{1,4} times|repeatedly|
            again and again) (?:in a row )?with (?:the )?(?:exact )?(?:same|identical) (?:arguments|
            parameters|inputs?)
        (?:agent|tool|tool call|action|reasoning|conversation|repetition|execution) loop (?:was |
            has been )?detected
        + Maximum number of 10000 iterations in While loop exceeded
        - event loop is closed
        - the loop of the necklace
        """),
    _text("step_budget", _INCOMPLETE, Cause.STEP_BUDGET, r"""
        max(?:imum)?(?: number of)? (?:consecutive )?(?:auto )?(?:iterations?|steps?|turns?|rounds?|
            replies)(?: ?\(\d{1,6}\)| of \d{1,6}| \d{1,6})?\ (?:was |were |has been |
            have been )?(?:reached|exceeded|used up|hit)
        (?:iteration|step|turn|recursion) (?:limit|budget)(?: or time limit)?(?: of \d{1,6})? (?:was |
            has been |is )?(?:reached|exceeded|used up|hit|exhausted)
        stopped due to (?:the )?(?:max(?:imum)? )?(?:iteration|step|turn)s?(?: limit)?
        (?:request|call) limit of \d{1,6} (?:was |has been |would be )?exceeded
        would exceed the (?:request|tool calls?) limit of \d{1,6}
        (?:reached|exceeded|hit) (?:the )?max(?:imum)?(?: number)?(?: of)?(?: \d{1,6})? (?:allowed |
            agent )?(?:iterations?|steps?|turns?|rounds?|tool calls)
        too many (?:tool calls|agent steps|iterations|turns)
        (?:reached|exceeded|hit|used up) (?:its|the|their|your) (?:\w{1,12} )?(?:iteration|step|turn|
            round|recursion|tool call) (?:limit|cap|budget|maximum)
        (?:in|within) (?:the )?max(?:imum)?(?: number of)? (?:steps|iterations|turns)
        max(?:imum)? run count(?: of)? \d{1,6} (?:reached|exceeded)
        + max iterations (4) reached
        + Agent stopped due to iteration limit or time limit.
        + Recursion limit of 5 reached without hitting a stop condition
        - maximum recursion depth exceeded
        - step 429 of 900 failed
        - gave up after step 500 of 900
        """),
    _text("spend_budget", _INCOMPLETE, Cause.STEP_BUDGET, r"""
        (?:token|cost|money|spend|spending) budget (?:of (?!the window).{1,20} )?(?:is |was |
            has been )?(?:exhausted|exceeded|used up|spent)
        exceeded (?:the|your|its) (?:token|cost|spend|spending) budget
        max(?:imum)? (?:cost|spend|budget)(?: of)?(?: [$€£]?[\d.,]{1,12}(?: ?[a-z]{3,8})?)? (?:was |
            has been )?(?:reached|exceeded|hit)
        (?:used|spent|exhausted|consumed|used up) (?:all (?:of )?)?(?:the|its) (?:\w{1,12} )?(?:token |
            cost )?(?:budget|allowance)
        (?:cost|budget|money|dollar) (?:limit|cap|ceiling)(?: of)?(?: [$€£]?[\d.,]{1,12}(?: ?
            [a-z]{3,8})?)? (?:was |has been |is )?(?:reached|exceeded|hit)
        (?:exceeded|exceeds|reached|hit) (?:the |its |your |this )?(?:\w{1,12} )?(?:cost|money|
            dollar) (?:limit|cap|budget|ceiling)
        + Token budget of 10000 exhausted
        + the run exceeded its cost budget
        - the budget of the ministry
        """, severity=Severity.CRITICAL),
    _text("incomplete", _INCOMPLETE, Cause.INCOMPLETE, r"""
        \d{1,6} of \d{1,6} (?:sub ?)?(?:tasks|goals|steps|parts) (?:are|is|were|remain) (?:not|still|
            un)\w{0,12}
        (?:sub ?)?(?:tasks|goals) (?:are |is )?(?:not (?:done|complete|completed|finished)|unfinished|
            still open|remaining)
        plan (?:is |was )?(?:incomplete|not completed?)
        \d{1,6} (?:sub ?)?(?:tasks|goals|steps|todos|todo items) (?:are|were|remain) still (?:open|
            pending|unfinished|incomplete|outstanding|undone)
        (?:sub ?)?(?:tasks|goals|steps) (?:were|are|have been) (?:never|not) (?:executed|completed|
            done|started|finished|attempted|addressed)
        (?:agent|run|task|workflow|plan|crew|assistant|model) (?:\w{1,12} )?(?:finished|ended|stopped|
            terminated|completed|exited|returned|concluded) (?:\w{1,12} )?without (?:producing|
            creating|writing|completing|finishing|saving|calling|achieving|meeting|reaching|answering|
            a final|an answer)
        + finished, but 2 of 5 subtasks are not done: ['mail']
        - 2 of 5 items were blue
        - tasks are listed below
        """),
    _text("forbidden_output", _CONSTRAINT, Cause.FORBIDDEN_OUTPUT, r"""
        must not (?:contain|mention|include)
        output guardrails? (?:has |have |was )?(?:triggered|tripped|intervened|violated)
        outputguardrail triggered
        + the answer must not contain prices
        + Guardrail OutputGuardrail triggered tripwire
        - balance must not be negative: -1
        """),
    _text("guardrail", _CONSTRAINT, Cause.GUARDRAIL, r"""
        (?:violates|violated|breaks) (?:the |a )?(?:constraint|policy|rule|guardrail)
        import of [\w.]{1,80} is not allowed
        blocked by (?:a |the )?(?:guardrail|policy|safety)
        guardrails? (?:has |have |was )?(?:triggered|tripped|tripwire|intervened|violated|blocked)
        only (?:\w{1,20} ){0,2}(?:statements?|queries|commands?|operations?|domains?|hosts?|tools?|
            imports?|modules?) (?:is|are) (?:permitted|allowed)
        not allowed by (?:the )?policy|(?:forbidden|disallowed|blocked) by robots\.?txt
        prompt injection (?:was )?(?:detected|found|attempt)
        jailbreak (?:was )?(?:detected|attempt)
        not (?:allowed|permitted) (?:by|in|under) (?:the |this |our )?(?:\w{1,20} )?(?:polic(?:y|ies)|
            sandbox|guardrails?|rules|allow ?list)
        not (?:on|in) the (?:\w{1,20} )?(?:allow|white) ?list
        (?:is|are|was|were) (?:on|in) (?:the|a|our|your) (?:\w{1,20} )?(?:deny|block|black) ?list
        outside (?:of )?(?:the )?(?:allowed|permitted|sandbox|workspace|
            sandboxed) (?:\w{1,12} )?(?:director\w{1,3}|paths?|roots?|workspace|folders?)
        + Import of subprocess is not allowed. Authorized imports are: math
        - balance must not be negative: -1
        - the policy number is missing
        """),
    _text("context", _OVERFLOW, Cause.CONTEXT_LENGTH, _CONTEXT + r"""
        + This model's maximum context length is 128000 tokens.
        + Prompt too long: 300121 tokens, the maximum is 262144
        + Prompt exceeds max length
        + context_length_exceeded
        - 4429 tokens
        - requested 500 tokens
        - context manager exited
        """, source=_PROVIDERS),
    _text("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, _TOO_LARGE + r"""
        + ERR max request size exceeded. Limit: 1048576 bytes
        - the size of the request form
        """),
    _text("output_cut", _OVERFLOW, Cause.OUTPUT_CUT, r"""
        finish reason['\":= ]{1,4}(?:length|max tokens)|(?:as|because) the length limit was reached
        (?:cut off|cut short|truncated|stopped) .{0,30}(?:max(?:imum)? (?:output |completion )?tokens|
            (?:token|length) limit)
        hit (?:the )?max(?:imum)? (?:output |completion )?tokens
        (?:max|maximum|output) (?:output |completion )?tokens?(?: limit)? (?:was |were |has been |
            is )?(?:reached|hit)
        (?:response|answer|completion|generation|reply|model'?s? output) (?:was |is |has been |
            got )?(?:cut off|cut short|truncated)(?= ?(?:$|[.,;:!(]|due|by|because|at|after|before))
        + finish_reason: length, max_tokens reached
        + The completion was cut off at the token limit
        - the length of the answer was 40 words
        - the branch was cut off by the storm
        """, source=_PROVIDERS),
    _text("content", _CONSTRAINT, Cause.CONTENT_FILTER, r"""
        content management policy|content policy(?! ?:)
        (?:rejected|refused|blocked|filtered) by the content filter
        content filter(?:ed)?(?= ?(?:$|[.,;:!(]|triggered|was|is|error))
        (?:response|output|completion|prompt|answer|candidate) (?:was |is |has been )?(?:filtered|
            blocked|withheld|flagged)(?= ?(?:$|[.,;:!(]|due|by|because|for|as))
        finish reason['\":= ]{1,4}(?:safety|recitation|prohibited content|blocklist|content filter)
        + the request was rejected by the content filter
        - content of the policy folder
        - content policy: clause 4 is missing from the lease
        """, source=_PROVIDERS),
    _text("output", _SCHEMA, Cause.MALFORMED_OUTPUT, r"""
        could not parse (?:the )?(?:json|llm|lm|model|response|tool call|output)\w{0,3}
        could not (?:extract|find) (?:a |an |the |any )?(?:tool (?:use|call)|json|action|answer|
            code)\w{0,3}
        no (?:tool calls?|function calls?|json|code)(?: or function calls?)? (?:was |were )?found in
        failed to parse .{0,60}(?:completion|response|output|json)
        unexpected token .{1,20} in json at position|expecting value:? (?:at )?line \d
        (?:retries|attempts) .{0,10}for (?:output|result|response) validation
        invalid json(?: output)?|(?:are|is) not valid json|code snippet is invalid
        (?:llm|model|response|output|completion).{0,40} (?:did not|does not|didn'?t|
            doesn'?t) (?:contain|return|match|produce|conform to|follow) (?:a |any |the )?(?:valid|
            expected|required) (?:json|schema|format|structure|output)
        code parsing failed|error in code parsing|not (?:a )?valid json
        instead of (?:the |a |an )?(?:\w{1,20} ){0,2}(?:tool call|function call|json|structured output)
        invalid (?:tool|function) call
        (?:expecting value|extra data|expecting .{1,40} delimiter|expecting property name .{0,40}|
            unterminated string .{0,20}|invalid control character .{0,6}|
            invalid .{1,3}escape): line \d{1,9} column
        + Could not parse LLM output: `I think I should search`
        + Function Joke arguments: ... are not valid JSON
        - could not park the car
        - the parser was sold
        """),
    _text("validation", _SCHEMA, Cause.INVALID_ARGUMENTS, r"""
        \d{1,6} validation errors? (?:for|in) \w{1,100}|error invoking tool
        is not in the tool'?s input schema|input validation error|failed validation
        schema validation (?:failed|error)
        missing required (?:argument|parameter|field|propert)\w{0,3}
        required (?:arguments?|parameters?|fields?) (?:is |are )?missing
        (?:exactly|at least|only) one of .{1,80} must be (?:provided|given|set|specified)
        field required|contains unknown field|object missing required field|is a required property
        validation error:? .{0,60}(?:expected|required|missing|must be)
        is not of type '\w{1,40}'|expected `?\w{1,40}`?, got `?\w{1,40}`?
        (?:invalid|malformed) (?:json )?(?:tool |function )?(?:arguments?|parameters?)(?= for
            \ (?:the )?(?:tool|function)|[.,]| ?$)
        invalid (?:argument|parameter)s?(?: value)?(?=[:\[])
        + 2 validation errors for call[divide]
        + Argument qerry is not in the tool's input schema
        + validation error: expected string at field 'name'
        + invalid parameter[expected=IVF][actual=x]
        + Malformed JSON arguments for tool 'search'. The tool was not executed.
        + Invalid tool arguments
        - validation stamp on the ticket
        - the form was valid
        """),
    _text("query", _SCHEMA, Cause.BAD_REQUEST, r"""
        syntax error|error in your sql syntax|unrecognized (?:name|token)|unbalanced parenthesis
        invalid method name|parse error(?=:| (?:at|near|on) )|holding the wrong kind of value
        unterminated character set|invalid regular expression|unknown operator|unknown command
        wrongtype operation|is not an integer or out of range|you can only execute one statement
        error binding parameter|invalid selector|unclosed quotation mark|incorrect syntax near
        not a valid (?:css |xpath )?selector|strict mode violation
        has \d{1,6} columns? but \d{1,6} values? (?:were|was) supplied
        invalid syntax|cannot query field .{1,80} on type
        unknown argument .{1,80} on (?:field|directive)
        variable .{1,80} of (?:required |non null )?type .{1,80} was not provided
        variable .{1,80} got invalid value
        must have a (?:selection of subfields|sub ?selection)
        field .{1,60} not found (?:in|on) type
        + near "SELEC": syntax error
        + syntax error at or near "FORM"
        + Parse error: Unexpected token, expected Eof
        - the syntax of Latin
        """),
    _text("integrity", _SCHEMA, Cause.BAD_REQUEST, r"""
        (?:unique|not null|check|foreign key|primary key) constraint failed
        (?:record|row|document|entity|index|key) ['\"`][\w./: ]{1,80}['\"`] already (?:exists|contains)
        duplicate (?:key|entry)|violates \w{1,20}(?: \w{1,20})? constraint
        violation of (?:primary|unique|foreign) key constraint
        (?:unique|check|integrity) constraint .{1,80} violated
        cannot insert (?:the value )?null
        + UNIQUE constraint failed: orders.email
        + duplicate key value violates unique constraint
        + Database record `books:1` already exists
        - a unique constraint of nature
        """),
    _text("value", _SCHEMA, Cause.INVALID_ARGUMENTS, r"""
        invalid literal for int|could not convert string to float|invalid isoformat string
        does not match format|codec can'?t (?:de|en)code|is not json serializable
        are not json compliant|invalid url|header values may not contain|does not appear to be an ipv4
        vector dimension error
        dimension(?:ality)? .{0,60}(?:does not|doesn'?t) match
        expected dim|is not a database|badly formed hexadecimal uuid|unsupported format string
        unknown (?:datetime )?string format|month must be in|day is out of range for month
        unconverted data remains|(?:string or binary )?data would be truncated
        (?:value|data) too long for (?:type|column)|conversion failed when converting
        invalid input syntax for (?:type )?\w{1,20}
        error tokenizing
        ended before the end of stream marker|unexpected end of (?:the )?(?:file|data|input|stream)
        + invalid literal for int() with base 10: 'twelve'
        + Invalid isoformat string: '31/12/2026'
        - timeout parameter must be positive
        - timeout is 'fast', must be a number
        - processed 500 items, but the manifest lists 512
        """),
    _text("tls", _EXTERNAL, Cause.TLS, r"""
        certificate verify failed|wrong version number|self signed certificate|certificate has expired
        bad certificate|tls (?:handshake|alert)|sslv3 alert|err cert \w{1,40}|err ssl \w{1,40}
        unknown ca|signed by (?:an )?unknown authority|x509|host key verification failed
        certificate is not (?:yet )?(?:valid|trusted)|not found in known hosts|hostname mismatch
        + [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed
        - the birth certificate is expired
        - certificate of origin
        """),
    _text("dns", _EXTERNAL, Cause.DNS, r"""
        name or service not known|temporary failure in name resolution|nodename nor servname
        getaddrinfo failed|could not resolve host\w{0,6}|failed to resolve|err name not resolved
        name resolution|name not resolved|no address associated with hostname|errors resolving
        no such host(?: is known)?|getaddrinfo (?:enotfound|eai again)
        + [Errno -2] Name or service not known
        + net::ERR_NAME_NOT_RESOLVED
        - customer name not known
        - could not resolve the dispute
        """),
    _text("redirects", _EXTERNAL, Cause.BAD_REQUEST, r"""
        too many redirects|redirect loop
        redirect error that would lead to an infinite loop
        (?:exceeded|more than) \d{1,4} redirects|err too many redirects
        + HTTP Error 302: a redirect error that would lead to an infinite loop.
        + Exceeded 30 redirects.
        - the redirect was followed
        """, severity=Severity.CRITICAL),
    _text("circuit", _EXTERNAL, Cause.CIRCUIT_OPEN, r"""
        circuit (?:for |of )?['\"`][\w.: ]{0,60}['\"`] (?:is |was |has )?tripped
        circuit (?:breaker )?['\"`]?[\w.:]{0,60}['\"`]? ?is (?:currently |still )?open(?= ?(?:$|
            [.,;:]))
        circuit breaker (?:still )?open
        (?:circuit ?)?breaker ['\"`]?[\w.: ]{0,60}?['\"`]? ?(?:is |was |has been |still |currently |
            now |got ){0,3}(?:open|opened|tripped)(?= ?(?:$|[.,;:(]|until|for|after))
        + Circuit payments is open
        + Timeout not elapsed yet, circuit breaker still open
        - the circuit was short
        - circuit training is open to members
        """),
    _text("lock", _EXTERNAL, Cause.CONFLICT, r"""
        (?:database|table|file|resource) (?:is|schema is) locked
        deadlock (?:detected|found)|lock wait timeout|could not serialize access|could not be acquired
        (?:resource|device) (?:is )?busy|is busy running|resource temporarily unavailable
        is locked by another|deadlock victim|deadlocked on lock|address already in use
        conflict on (?:update|insert|write)
        conflicted with another operation|(?:version|write|update) conflict|already in use
        being used by another process
        \[(?:errno (?:11|16|26|98)|winerror (?:32|33|10048))\]
        + database is locked
        + deadlock detected
        - the door is locked
        - busy schedule
        """),
    _text("timeout", _EXTERNAL, Cause.TIMEOUT, r"""
        timed ?out
        (?:connection|connect|read|write|request|handshake|statement|lock wait|operation|execution|
            query|script) timeout(?: (?:expired|exceeded|reached|error))?
        timeout (?:expired|exceeded|reached|during|while|after|waiting)
        deadline (?:expired|exceeded)|exceeded (?:the )?time limit|time ?limit exceeded
        gateway time ?out<end>
        timeout (?:of )?[\d.]{1,12} ?(?:m?s|milliseconds|seconds) exceeded
        \[(?:errno 110|winerror (?:121|10060))\]|waiter \w{1,60} failed: max attempts exceeded
        err timed out|no response (?:was )?received<end>
        + Request timed out.
        + Timed out after 0.3s waiting for 'tools/call'
        + connection timeout expired
        + No response received after 3 retries
        - timeout parameter must be positive
        - Timeout value connect was fast, but it must be an int, float or None.
        - retry() got an unexpected keyword argument 'timeout'
        """, unquoted=True),
    _text("connection", _EXTERNAL, Cause.CONNECTION, r"""
        connection (?:refused|reset|aborted)<end>|all connection attempts failed
        connect call failed|failed to connect to \S{1,200}|client failed to connect
        server closed the connection|remote end closed|peer closed connection|server disconnected
        connection (?:was |has been )?(?:unexpectedly )?closed (?:unexpectedly|by)
        upstream connect error|(?:connect|disconnect)/reset before headers|socket hang ?up
        connection unexpectedly closed|could not connect to \w{1,100}|can'?t connect to \w{1,100}
        lost connection to \w{1,100}|gone away|network is unreachable|no route to host
        err (?:connection|network|internet|address) \w{1,40}
        broken pipe|econnrefused|econnreset|bad status line|response ended prematurely
        connection broken|network error<end>
        transport indicated eof|connection error|invalid response to ssl negotiation
        unexpected eof|connection lost|cannot connect to host|unable to connect to proxy
        error reading ssh protocol banner|no existing session|socket is closed|defunct connection
        (?:fail(?:ed)?|unable|could not|cannot) (?:to )?connect(?:ing)? to (?:any|all|
            (?:the )?(?:\w{1,20} )?(?:server|servers|database|broker|brokers|host|node|cluster))
        ^connection closed\.?$|(?<=: )connection closed\.?$
        unexpected eof while reading|eof occurred in violation of protocol
        tls/ssl connection has been closed|no connection could be made
        error while fetching server api version
        web ?socket (?:connection )?(?:was )?(?:closed|dropped) (?:with|before|unexpectedly|by)
        \[(?:errno (?:32|10[0134]|107|108|111|112|113)|winerror (?:1005[0134]|10061|10065))\]
        + <urlopen error [Errno 111] Connection refused>
        + Connection error.
        + All connection attempts failed
        - port 503 closed
        - the connection is closed
        - connection refused paint; sand it first
        - Cannot send a request, as the client has been closed.
        """, unquoted=True),
    _text("session", _EXTERNAL, Cause.CONNECTION, r"""
        session (?:was |has been )?terminated
        session (?:with id \S{1,80} )?(?:was |could )?not (?:be )?found
        + MCP error -32600: Session terminated
        + MCP session with ID 'df85' could not be found.
        - the session of parliament was opened
        """),
    _text("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, _QUOTA + r"""
        + insufficient_quota
        + You exceeded your current quota
        - the quota of fish
        """, unquoted=True, source=_PROVIDERS),
    _text("rate", _EXTERNAL, Cause.RATE_LIMITED, _RATE + r"""
        + rate limit exceeded
        + upstream rate limit reached, retry after 15 seconds
        + 429 Too Many Requests
        - rate limit must be an integer
        - too many requests in clue 12: one question each
        - throttled to 40 percent, expected 60
        - order #429 rejected
        - customer 'Too Many Requests Ltd' is unknown
        """, unquoted=True, source=_PROVIDERS),
    _text("model", _EXTERNAL, Cause.MODEL_MISSING, r"""
        is not a valid model(?: identifier| id| name)
        model ['\"`][\w./: ]{1,80}['\"`] (?:was |is )?(?:not found|not available|does not exist|
            retired)
        model (?=[\w./: ]{0,50}\d[\w./: ]{0,50} (?:has been|is) )[\w./: ]{1,80} (?:has been|
            is) (?:deprecated|decommissioned)
        + lab/none is not a local folder and is not a valid model identifier listed on the hub
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
        (?:service|server|node|cluster) (?:is )?not ready<end>
        internal server error|overloaded(?: error)?|server (?:is )?(?:too )?busy
        too many (?:clients|users)
        (?:database|server|system) (?:system )?(?:is )?(?:starting up|shutting down|in recovery)
        remaining connection slots|service shutting down|(?:tab|page|target) crashed
        cluster ?(?:is )?down|no healthy upstream|no cluster leader
        no leader (?:elected|available|for partition)|leader (?:is )?not available
        not (?:the )?leader for (?:partition|this)|model is (?:currently )?loading
        connection slots are reserved|too many connections
        queue (?:is )?full<end>|internal error encountered
        (?:connection )?pool (?:is |was )?exhausted
        + upstream: service unavailable
        + service not ready: initializing
        + 529 overloaded
        + sorry, too many clients already
        - customer 'Service Unavailable GmbH' has no tax number on file
        - user 500 not found
        - name 'service_unavailable' is not defined
        - service unavailable before 15,000 km
        """, unquoted=True),
    _text("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, r"""
        no ?space ?left(?: on device)?|out of memory|(?:database or )?disk (?:is )?full|disk quota exceeded
        used memory > 'maxmemory'|too many open files|unable to persist (?:on|to) disk
        unable to extend (?:table|index|segment|tablespace)
        \[(?:errno (?:24|28|122)|winerror 112)\]
        + database or disk is full
        + [Errno 28] No space left on device
        - the bus is full
        """),
    _text("config", _EXTERNAL, Cause.MISSING_CONFIG, r"""
        missing credentials
        api ?key (?:is |was |must be )?(?:not set|missing|required|set|provided)
        set the .{0,60}environment variable
        (?:could not find|unable to locate|no) (?:default )?credentials
        no .{0,30}is loaded\. please configure|credentials were not found|must specify a region
        missing api ?key
        (?:api ?key|credentials?(?: file)?) (?:(?:was|is|were|are|could) )?not (?:be )?found
        + Missing credentials. Please pass an `api_key`
        + Unable to locate credentials
        + API key not found in the environment
        - the key is missing from the piano
        """),
    _text("auth", _EXTERNAL, Cause.AUTH, r"""
        (?:invalid|incorrect|wrong|bad|expired|revoked) (?:api ?key|credentials|password|access token|
            auth token|bearer token|user ?name)
        (?:api ?key|access key|credentials?|password) (?:has |have |is |are )?(?:been )?(?:expired|
            revoked)
        (?:password )?authentication failed(?! to )|authenticationfailed|invalid grant|bad credentials
        no pg hba\.conf entry|auth(?:entication)? check fail(?:ed|ure)
        fatal: {1,3}role .{1,80} (?:does not exist|is not permitted)
        login (?:was )?refused|login incorrect|login failed for (?:user|login)|invalidcredentials
        not logged in|noauth \w{1,100}|wrongpass \w{1,100}|authentication (?:is )?required
        access denied for user
        incorrect (?:username|user name|login|password)(?: or password)?
        username and password not accepted|token has (?:been )?(?:expired|revoked)|unauthenticated
        logon (?:failure|denied)|authorization violation
        + FATAL: password authentication failed for user "agent"
        + invalid_api_key
        + Bad user name or password
        - the password field is empty
        - author unknown
        """),
    _text("permission", _EXTERNAL, Cause.PERMISSION, r"""
        permission den(?:ied|y)|access denied|permission to access .{1,80} denied
        (?:do|does) not have (?:the )?(?:\w{1,20} )?permissions?
        don'?t have (?:the )?(?:\w{1,20} )?permissions?|read ?only (?:database|transaction|file system)
        unable to open database file|operation not permitted|not authorized (?:on|to|for)
        no permissions? (?:to|for)|^(?:\[[\w: ]{1,20}\] )?not authorized\.?$
        insufficient (?:permissions?|privileges?|scopes?)|administratively prohibited
        sender address rejected|\[(?:errno (?:1|13|30)|winerror 5)\]
        + attempt to write a readonly database
        + permission denied for table salaries
        + [code:135] Not authorized
        - planning permission granted
        """, unquoted=True),
    _text("deployment", _UNKNOWN, Cause.DEPLOYMENT, r"""
        please install|pip install|executable doesn'?t exist|command not found|no module named
        is not installed|playwright install|command was not found|executable needs to be in path
        + Please install 'mlx-lm' extra
        + /bin/sh: foo: command not found
        - the kitchen was installed
        """, severity=Severity.CRITICAL),
    _text("mailbox_later", _EXTERNAL, Cause.UNAVAILABLE, r"""
        \(4\d\d, b'[^']{1,200}
        + {'bob@lab': (450, b'4.2.0 try later')}
        - (450, 12)
        """),
    _text("mailbox", _MISSING, Cause.MISSING_RESOURCE, r"""
        \(55[013], b'[^']{1,200}|mailbox (?:unavailable|not found|does not exist)
        + {'bob@lab': (550, b'5.1.1 no such account')}
        - (550, 12)
        """),
    _text("missing", _MISSING, Cause.MISSING_RESOURCE, r"""
        \[(?:errno (?:2|20|21)|winerror (?:2|3|267))\]
        no such (?:table|column|index|view|function|collection|bucket|key|container|element|
            file(?: or directory)?|command|container|image|index|object|database|queue|topic|channel|
            resource|document)
        (?:collection|index|table|queue|bucket|channel|document|dataset|container|repository|branch|
            element|topic|resource|database|schema|relation|column|worksheet|namespace|secret|object|
            file|folder|directory|view):? ['\"`]?[\w./:@#-]{1,120}['\"`]? (?:(?:was |could |is |
            can)?not (?:be )?(?:found|resolved)|
            (?:does not|doesn'?t) exist|is unknown)
        (?:resource|file|page|element|document|object|key|index|collection) (?:was |is )?not found
        unknown (?:resource|column|table|database|collection|index|topic)
        (?:relation|column|function|table|type|database|schema|role) .{1,120} does(?: not|n'?t) exist
        \w{1,40}\[[\w ./:-]{1,80}\] does not exist
        cannot resolve keyword ['\"][\w.]{1,80}['\"] into field
        invalid (?:object|column|table) name|(?:table|view) or view does not exist
        referenced column .{1,80} not found|stale element|unable to locate element
        (?:could not|couldn'?t|cannot|can'?t|unable to) find (?:the |a |any )?(?:class|collection|
            table|index|column|field|file|document|element|bucket|key|sheet|worksheet|dataset|topic|
            queue|database|schema|resource|page|object)(?!\w)
        no (?:files|rows|documents) (?:were )?found (?:that match|matching)
        no (?:\w{1,20} )?(?:repository|directory|file|document|record|index) (?:was |
            were )?found (?:at|in|for|with)
        (?:page|entity|user|chat|channel) id .{1,80} does not match any
        invalid session id|element click intercepted
        + no such table: sales_q9
        + Collection papers not found
        + Unknown resource: lab://nothing
        + relation "x" does not exist
        + Cannot resolve keyword 'isbn' into field. Choices are: id, title
        - user 500 not found
        - tool hammer not found in aisle 4
        - the parrot does not exist anymore
        """),
    _text("later", _EXTERNAL, Cause.UNAVAILABLE, r"""
        (?:please )?(?:try|retry)(?: again)? later[.!'"}\] ]{0,4}$
        + Unknown error, please try again later
        - try again later with row G
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
