"""Rules on the words of any message, read last: the agent's own doing, and all of them in their order.

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
from ._text_form import FORM_TEXTS
from ._text_missing import MISSING_TEXTS
from ._text_world import CODED_TEXTS, WORLD_TEXTS

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
        (?:tool|function) [\w.:]{1,40}(?: [\w.:]{1,40}){0,4} (?:is |was |does )?not (?:found|available|
            exist|
            registered|defined) in (?:the )?(?:tools?|registry|toolbox|agent|manifest|tool ?list)
        (?:tool|function) [\w.:]{1,80} (?:is |was |does )?not (?:found|available|exist|
            registered)(?: in (?:the )?(?:tools?|registry|toolbox|agent|manifest)| ?[.,;:]| ?$)
        ^(?:(?:mcp )?error {0,2}(?:\d{1,6})?: )?(?:tool|function) [\w.:]{1,40}(?: (?!(?:in|on|at|of|the|
            for|with|from|you|we|that|
            which)(?!\w))[\w.:]{1,40}){0,3}
            \ (?:is |was )?not (?:found|registered|defined|available)(?= ?(?:$|[.,;]))
        is not a valid tool
        is not (?:one of|among) the (?:explicitly )?(?:allowed|available|known|registered) tools
        no tool (?:named|called) ['\"`]?[\w.:]{1,80}
        (?:tool|action) (?:named |called )?['\"`][\w.: ]{1,80}['\"`],? (?:which |that )?(?:is |was |do |
            does )?(?:not|don'?t|doesn'?t|isn'?t) (?:in the list of tools|among|one of|exist)
        no (?:handler|implementation|function) (?:is |was )?(?:registered |found |defined )?for
            \ (?:the )?tool
        (?:attempted|tried) to (?:call|use|invoke) (?:a |the )?(?:tool|
            function) ['\"`][\w.: ]{1,80}['\"`],? (?:which |that )?(?:is |was )?not
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
        (?:agent|model|run|conversation|it) (?:is|was|keeps) (?:going|running|
            moving) (?:round )?in circles
        last \d{1,4} (?:actions|steps|calls|tool calls) (?:are|were) (?:identical|the same)
        stuck in (?:a |an )?(?:infinite |endless )?loop
        (?:repeated|repeating|repeats|called|calling) the (?:exact )?same (?:action|call|step|tool|
            function|arguments)
        (?:repeated|repeating|identical|same|duplicate) (?:identical |same )?(?:tool |function |
            agent )?(?:calls?|actions?|
            steps?) .{0,20}(?:in a row|\d{1,4} times|consecutive\w{0,2})
        (?:called|ran|run|tried|executed|invoked|repeated) (?:\d{1,4} times|repeatedly|
            again and again) (?:in a row )?with (?:the )?(?:exact )?(?:same|
            identical) (?:arguments|parameters|inputs?)
        (?:agent|tool|tool call|action|reasoning|conversation|repetition|execution) loop (?:was |
            has been )?detected
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
        max(?:imum)?(?: number of)? (?:consecutive )?(?:auto )?(?:iterations?|steps?|turns?|rounds?|
            replies)
            (?: ?\(\d{1,6}\)| of \d{1,6}| \d{1,6})?
            \ (?:was |were |has been |have been )?(?:reached|exceeded|used up|
            hit)
        (?:iteration|step|turn|recursion) (?:limit|
            budget)(?: or time limit)?(?: of \d{1,6})? (?:was |has been |is )?(?:reached|exceeded|
            used up|hit|exhausted)
        stopped due to (?:the )?(?:max(?:imum)? )?(?:iteration|step|turn)s?(?: limit)?
        (?:request|call) limit of \d{1,6} (?:was |has been |would be )?exceeded
        (?:reached|exceeded|hit) (?:the )?max(?:imum)?(?: number)?(?: of)?(?: \d{1,6})? (?:allowed |
            agent )?
            (?:iterations?|steps?|turns?|rounds?|tool calls)
        too many (?:tool calls|agent steps|iterations|turns)
        (?:reached|exceeded|hit|used up) (?:its|the|their|your) (?:\w{1,12} )?(?:iteration|step|turn|
            round|recursion|tool call) (?:limit|
            cap|budget|maximum)
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
        max(?:imum)? (?:cost|spend|budget)(?: of)?(?: [$€£]?[\d.,]{1,12}(?: ?[a-z]{3,8})?)? (?:was |
            has been )?(?:reached|
            exceeded|hit)
        (?:used|spent|exhausted|consumed|used up) (?:all (?:of )?)?(?:the|its) (?:\w{1,12} )?(?:token |
            cost )?(?:budget|allowance)
        (?:cost|budget|money|dollar) (?:limit|cap|
            ceiling)(?: of)?(?: [$€£]?[\d.,]{1,12}(?: ?[a-z]{3,8})?)? (?:was |has been |
            is )?(?:reached|exceeded|hit)
        (?:exceeded|exceeds|reached|hit) (?:the |its |your |this )?(?:\w{1,12} )?(?:cost|money|
            dollar) (?:limit|cap|budget|ceiling)
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
        \d{1,6} (?:sub ?)?(?:tasks|goals|steps|todos|todo items) (?:are|were|remain) still (?:open|
            pending|
            unfinished|incomplete|outstanding|undone)
        (?:sub ?)?(?:tasks|goals|steps) (?:were|are|have been) (?:never|not) (?:executed|completed|done|
            started|finished|
            attempted|addressed)
        (?:agent|run|task|workflow|plan|crew|assistant|model) (?:\w{1,12} )?(?:finished|ended|stopped|
            terminated|completed|
            exited|returned|concluded) (?:\w{1,12} )?without (?:producing|creating|writing|completing|
            finishing|saving|
            calling|achieving|meeting|reaching|answering|a final|an answer)
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
        guardrails? (?:has |have |was )?(?:triggered|tripped|tripwire|intervened|violated|blocked)
        only (?:\w{1,20} ){0,2}(?:statements?|queries|commands?|operations?|domains?|hosts?|tools?|
            imports?|
            modules?) (?:is|are) (?:permitted|allowed)
        not allowed by (?:the )?policy
        (?:forbidden|disallowed|blocked) by robots\.?txt
        prompt injection (?:was )?(?:detected|found|attempt)
        jailbreak (?:was )?(?:detected|attempt)
        not (?:allowed|permitted) (?:by|in|under) (?:the |this |our )?(?:\w{1,20} )?(?:polic(?:y|ies)|
            sandbox|guardrails?|
            rules|allow ?list)
        not (?:on|in) the (?:\w{1,20} )?(?:allow|white) ?list
        (?:is|are|was|were) (?:on|in) (?:the|a|our|your) (?:\w{1,20} )?(?:deny|block|black) ?list
        outside (?:of )?(?:the )?(?:allowed|permitted|sandbox|workspace|
            sandboxed) (?:\w{1,12} )?(?:director\w{1,3}|paths?|
            roots?|workspace|folders?)
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
        "output_cut",
        _OVERFLOW,
        Cause.OUTPUT_CUT,
        _phrases.OUTPUT_CUT,
        on=r"""
        finish_reason: length, max_tokens reached
        The completion was cut off at the token limit
        """,
        not_on=r"""
        the length of the answer was 40 words
        the branch was cut off by the storm
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
        content filter(?:ed)?(?= ?(?:$|[.,;:!(]|triggered|was|is|error))
        (?:response|output|completion|prompt|answer|candidate) (?:was |is |has been )?(?:filtered|
            blocked|withheld|flagged)(?= ?(?:$|[.,;:!(]|due|by|because|for|as))
        finish reason['\":= ]{1,4}(?:safety|recitation|prohibited content|blocklist|content filter)
        """,
        on=r"""
        the request was rejected by the content filter
        """,
        not_on=r"""
        content of the policy folder
        """,
        source=_PROVIDERS,
    ),
)

_DENIED = r"(?<!no )(?<![^an]n[o']t )"
"""What is denied did not happen: "no timeout occurred" is none. After "cannot" and "can't" it did."""


def _said(rule: Rule) -> Rule:
    return rule._replace(keys=tuple(f"{_DENIED}{key}" for key in rule.keys))


TEXT_RULES = tuple(
    map(
        _said,
        (
            *_AGENT_TEXTS,
            *FORM_TEXTS,
            *WORLD_TEXTS,
            *MISSING_TEXTS,
            *CODED_TEXTS,
            *LOOSE_AGENT,
            *LOOSE_WORLD,
            *LOOSE_REACH,
        ),
    )
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
