"""Rules on the words of any message, read last: the agent's own doing and the form of data.

Every expression is bounded: no unlimited repetition, and gaps have a maximum, so that reading is
linear in the length of the text. A number alone never fires.
"""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from . import _phrases
from ._loose_agent import LOOSE_AGENT
from ._loose_reach import LOOSE_REACH
from ._loose_world import LOOSE_WORLD
from ._rule import Rule
from ._rule import word_rule as _rule
from ._text_missing import MISSING_TEXTS
from ._text_world import WORLD_TEXTS

_SCHEMA = FailureType.SCHEMA_MISMATCH
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW
_PROVIDERS = "documented error texts of model and API providers"

_AGENT_TEXTS: tuple[Rule, ...] = (
    _rule(
        "unknown_tool",
        FailureType.WRONG_TOOL_CALLED,
        Cause.UNKNOWN_TOOL,
        r"""
        (?:unknown|no such|unregistered|invalid) tool(?! (?:call|use|input|output|result|
            argument|choice))(?: type| name)?:? ['\"`]?[\w.:]{1,80}
        tool ['\"`][\w.: ]{1,80}['\"`] (?:is |was |does )?not (?:found|available|exist|registered|
            defined|valid|known)
        (?:tool|function) [\w.:]{1,80} (?:is |was |does )?not (?:found|available|exist|
            registered)(?: in (?:the )?(?:tools?|registry|toolbox|agent|manifest)| ?[.,;:]| ?$)
        is not a valid tool
        is not (?:one of|among) the (?:explicitly )?(?:allowed|available|known|registered) tools
        no tool (?:named|called) ['\"`]?[\w.:]{1,80}
        (?:tool|action) (?:named |called )?['\"`][\w.: ]{1,80}['\"`],? (?:which |that )?(?:is |was |do |
            does )?(?:not|don'?t|doesn'?t|isn'?t) (?:in the list of tools|among|one of|exist)
        no (?:handler|implementation|function) (?:is |was )?(?:registered |found |defined )?for
            \ (?:the )?tool
        """,
        on=r"""
        Unknown tool: serch
        Tool 'serch' is not available. Available tools: open, search
        No such tool: 'serch'
        serch is not a valid tool, try one of ['open', 'search'].
        """,
        not_on=r"""
        tool hammer not found in aisle 4
        tool registry rebuilt
        the tool found nothing
        no such table: tools
        """,
    ),
    _rule(
        "endless",
        FailureType.LOOP_DETECTED,
        Cause.REPETITION,
        r"""
        maximum number of \d{1,9} iterations in \w{1,10} loop exceeded
        infinite loop detected
        stuck in (?:a |an )?(?:infinite |endless )?loop
        repeated the same (?:action|call|step)
        """,
        on=r"""
        Maximum number of 10000 iterations in While loop exceeded
        """,
        not_on=r"""
        event loop is closed
        the loop of the necklace
        """,
    ),
    _rule(
        "step_budget",
        FailureType.PLAN_INCOMPLETE,
        Cause.STEP_BUDGET,
        r"""
        max(?:imum)?(?: number of)? (?:iterations?|steps?|turns?|rounds?)
            (?: ?\(\d{1,6}\)| of \d{1,6}| \d{1,6})?
            \ (?:was |were |has been |have been )?(?:reached|exceeded|used up|
            hit)
        (?:iteration|step|turn|recursion) (?:limit|
            budget)(?: or time limit)?(?: of \d{1,6})? (?:was |has been |is )?(?:reached|exceeded|
            used up|hit|exhausted)
        stopped due to (?:the )?(?:max(?:imum)? )?(?:iteration|step|turn)s?(?: limit)?
        (?:request|call) limit of \d{1,6} (?:was |has been |would be )?exceeded
        (?:reached|exceeded|hit) (?:the )?max(?:imum)?(?: number)?(?: of)?(?: \d{1,6})? (?:allowed )?
            (?:iterations?|steps?|turns?|rounds?|tool calls)
        too many (?:tool calls|agent steps|iterations|turns)
        (?:in|within) (?:the )?max(?:imum)?(?: number of)? (?:steps|iterations|turns)
        max(?:imum)? run count(?: of)? \d{1,6} (?:reached|exceeded)
        """,
        on=r"""
        max iterations (4) reached
        Agent stopped due to iteration limit or time limit.
        Recursion limit of 5 reached without hitting a stop condition
        """,
        not_on=r"""
        maximum recursion depth exceeded
        step 429 of 900 failed
        gave up after step 500 of 900
        """,
    ),
    _rule(
        "spend_budget",
        FailureType.PLAN_INCOMPLETE,
        Cause.STEP_BUDGET,
        r"""
        (?:token|cost|money|spend|spending) budget (?:of .{1,20} )?(?:is |was |has been )?(?:exhausted|
            exceeded|used up|spent)
        exceeded (?:the|your|its) (?:token|cost|spend|spending) budget
        """,
        on=r"""
        Token budget of 10000 exhausted
        the run exceeded its cost budget
        """,
        not_on=r"""
        the budget of the ministry
        """,
        severity=Severity.CRITICAL,
    ),
    _rule(
        "incomplete",
        FailureType.PLAN_INCOMPLETE,
        Cause.INCOMPLETE,
        r"""
        \d{1,6} of \d{1,6} (?:sub ?)?(?:tasks|goals|steps|parts) (?:are|is|were|remain) (?:not|
            still|un)\w{0,12}
        (?:sub ?)?(?:tasks|goals) (?:are |is )?(?:not (?:done|complete|completed|finished)|
            unfinished|still open|remaining)
        plan (?:is |was )?(?:incomplete|not completed?)
        """,
        on=r"""
        finished, but 2 of 5 subtasks are not done: ['mail']
        """,
        not_on=r"""
        2 of 5 items were blue
        tasks are listed below
        """,
    ),
    _rule(
        "guardrail",
        _CONSTRAINT,
        Cause.GUARDRAIL,
        r"""
        must not (?:contain|mention|include)
        (?:violates|violated|breaks) (?:the |a )?(?:constraint|policy|rule|guardrail)
        import of [\w.]{1,80} is not allowed
        blocked by (?:a |the )?(?:guardrail|policy|safety)
        guardrail (?:triggered|tripped|tripwire)
        not allowed by (?:the )?policy
        (?:forbidden|disallowed|blocked) by robots\.?txt
        prompt injection (?:was )?(?:detected|found|attempt)
        jailbreak (?:was )?(?:detected|attempt)
        """,
        on=r"""
        the answer must not contain prices
        Import of subprocess is not allowed. Authorized imports are: math
        """,
        not_on=r"""
        balance must not be negative: -1
        the policy number is missing
        """,
    ),
    _rule(
        "context",
        _OVERFLOW,
        Cause.CONTEXT_LENGTH,
        _phrases.CONTEXT,
        on=r"""
        This model's maximum context length is 128000 tokens.
        context_length_exceeded
        """,
        not_on=r"""
        4429 tokens
        requested 500 tokens
        context manager exited
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "content",
        _CONSTRAINT,
        Cause.CONTENT_FILTER,
        r"""
        content (?:management )?policy
        (?:rejected|refused|blocked|filtered) by the content filter
        """,
        on=r"""
        the request was rejected by the content filter
        """,
        not_on=r"""
        content of the policy folder
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "output",
        _SCHEMA,
        Cause.MALFORMED_OUTPUT,
        r"""
        could not parse (?:the )?(?:llm|lm|model|response|tool call|output)\w{0,3}
        could not (?:extract|find) (?:a |an |the |any )?(?:tool (?:use|call)|json|action|answer|code)\w{0,3}
        no (?:tool calls?|function calls?|json|code)(?: or function calls?)? (?:was |were )?found in
        failed to parse .{0,60}(?:completion|response|output|json)
        invalid json(?: output)?
        (?:are|is) not valid json
        code snippet is invalid
        (?:llm|model|response|output|completion).{0,40} (?:did not|does not|didn'?t|doesn'?t) (?:contain|
            return|match|produce|conform to|follow) (?:a |any |the )?(?:valid|expected|required) (?:json|
            schema|format|structure|output)
        code parsing failed
        error in code parsing
        not (?:a )?valid json
        invalid (?:tool|function) call
        (?:expecting value|extra data|expecting property name .{0,40}|
            unterminated string .{0,20}): line \d{1,9} column
        """,
        on=r"""
        Could not parse LLM output: `I think I should search`
        Function Joke arguments: ... are not valid JSON
        """,
        not_on=r"""
        could not park the car
        the parser was sold
        """,
    ),
    _rule(
        "validation",
        _SCHEMA,
        Cause.INVALID_ARGUMENTS,
        r"""
        \d{1,6} validation errors? (?:for|in) \w{1,100}
        error invoking tool
        is not in the tool'?s input schema
        input validation error
        failed validation
        schema validation (?:failed|error)
        missing required (?:argument|parameter|field|propert)\w{0,3}
        required (?:arguments?|parameters?|fields?) (?:is |are )?missing
        (?:exactly|at least|only) one of .{1,80} must be (?:provided|given|set|specified)
        field required
        contains unknown field
        object missing required field
        is a required property
        is not of type '\w{1,40}'
        expected `?\w{1,40}`?, got `?\w{1,40}`?
        invalid (?:arguments?|parameters?) for (?:tool|function)
        """,
        on=r"""
        2 validation errors for call[divide]
        Argument qerry is not in the tool's input schema
        """,
        not_on=r"""
        validation stamp on the ticket
        the form was valid
        """,
    ),
    _rule(
        "query",
        _SCHEMA,
        Cause.BAD_REQUEST,
        r"""
        syntax error
        error in your sql syntax
        unrecognized (?:name|token)
        unbalanced parenthesis
        unterminated character set
        invalid regular expression
        unknown operator
        unknown command
        wrongtype operation
        is not an integer or out of range
        you can only execute one statement
        error binding parameter
        invalid selector
        unclosed quotation mark
        not a valid (?:css |xpath )?selector
        strict mode violation
        has \d{1,6} columns? but \d{1,6} values? (?:were|was) supplied
        invalid syntax
        """,
        on=r"""
        near "SELEC": syntax error
        syntax error at or near "FORM"
        """,
        not_on=r"""
        the syntax of Latin
        """,
    ),
    _rule(
        "integrity",
        _SCHEMA,
        Cause.BAD_REQUEST,
        r"""
        (?:unique|not null|check|foreign key|primary key) constraint failed
        duplicate (?:key|entry)
        violates \w{1,20}(?: \w{1,20})? constraint
        """,
        on=r"""
        UNIQUE constraint failed: orders.email
        duplicate key value violates unique constraint
        """,
        not_on=r"""
        a unique constraint of nature
        """,
    ),
    _rule(
        "value",
        _SCHEMA,
        Cause.INVALID_ARGUMENTS,
        r"""
        invalid literal for int
        could not convert string to float
        invalid isoformat string
        does not match format
        codec can'?t (?:de|en)code
        is not json serializable
        are not json compliant
        invalid url
        header values may not contain
        does not appear to be an ipv4
        vector dimension error
        dimension(?:ality)? .{0,60}(?:does not|doesn'?t) match
        expected dim
        is not a database
        badly formed hexadecimal uuid
        unsupported format string
        unknown (?:datetime )?string format
        month must be in
        day is out of range for month
        """,
        on=r"""
        invalid literal for int() with base 10: 'twelve'
        Invalid isoformat string: '31/12/2026'
        """,
        not_on=r"""
        timeout parameter must be positive
        timeout is 'fast', must be a number
        processed 500 items, but the manifest lists 512
        """,
    ),
)

TEXT_RULES = (
    *_AGENT_TEXTS,
    *WORLD_TEXTS,
    *MISSING_TEXTS,
    *LOOSE_AGENT,
    *LOOSE_WORLD,
    *LOOSE_REACH,
)
"""All of them, in the order in which they are tried."""

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

STATUS_IN_TEXT = (
    # "HTTP 503", "status code: 503", "Error code: 429 - …": the words say that the number is a
    # status.
    (
        r"(?:http(?:/\d(?:\.\d)?)?(?: error)?(?: status)?(?: code)?|status ?code|status|error code|"
        rf"response code)(?: of| is)?[ :=(]{{1,3}}{_ITS_NUMBER}"
    ),
    # "the gateway answered 503, try later": a server, a verb, a number that counts nothing.
    (
        r"(?:gateway|server|upstream|api|service|endpoint|backend|host|site|proxy)\b.{0,40}?"
        r"\b(?:answered|returned|responded|replied|said|gave)(?: with)?(?: an?)?(?: http)?"
        r"(?: status)?(?: code)? ([45]\d\d)(?= ?(?:$|[.,;:)\]'\"]))"
    ),
    # "502 Bad Gateway": the number with its own name.
    rf"({_NAMED})",
    # "404 Not Found", but not "user 404 not found": these names are ordinary words.
    rf"(?:^|[:;,.(\[\"'<] ?|http |status |error |code |answered |returned )({_NAMED_LIKE_WORDS})",
    # "too many 503 error responses"
    r"([45]\d\d) error responses?",
)
"""Statuses written out in a message; each expression has one group with the number."""
