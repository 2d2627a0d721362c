"""What the agent did wrong, in any words: tools, steps, rules, form and length."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType

from ._loose import loose_rule as _rule
from ._rule import Rule

_SCHEMA = FailureType.SCHEMA_MISMATCH
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED

LOOSE_AGENT: tuple[Rule, ...] = (
    _rule(
        "tool",
        FailureType.WRONG_TOOL_CALLED,
        Cause.UNKNOWN_TOOL,
        r"""
        (?:tool|function|action)<id> <isnt> (?:known|defined|found|available|registered|exist|
            provided|offered|supported|in the|among|one of)(?: (?:in|among|to|for|by|
            of) .{0,40})?(?:tools?|functions?|list|registry|agent|toolbox|manifest)
        (?:no|not any) (?:tool|function) (?:is |was )?(?:registered|available|found|known|
            defined) (?:under|with|by|for|named|as)
        (?:tool|function)<named> (?:requested|called|chosen|named|asked for) (?:by|
            in) .{1,30} <isnt> (?:registered|known|available|found|defined|offered)
        tool<named> (?:is|was) (?:unknown|unavailable|unregistered|undefined)(?= ?(?:$|[.,;:!]))
        (?:no|there is no|there's no) (?:\w{1,20} )?(?:tool|function) (?:named|called|with|by|
            for)(?!\w)
        <cant> find (?:a |the |any )?tool
        (?:unrecogni[sz]ed|unregistered|undefined|nonexistent|non existent|unsupported) (?:tool|
            function)(?: name| call)?(?= ?(?:$|[.,;:!'\"`]))
        tool ['\"`][^'\"`]{1,80}['\"`] <isnt> (?:enabled|available|allowed|offered|installed|
            provided|supported|known|found|registered)(?!\w)
        (?:not|n'?t) have (?:a |any )?(?:tool|function) (?:named|called|for)
        <isnt> (?:a |an |one of the |among the |in the list of )?(?:\w{1,20} ){0,2}tools?(?= ?(?:$|
            [.,;:!]|name))
        (?:call(?:ed|ing)?|request(?:ed|ing)?|invoke[ds]?|us(?:e|ed|ing)|
            tried) (?:to \w{1,10} )?(?:a |an |the )?(?:unknown|unavailable|non ?existent|undefined|
            unregistered|nonexisting) (?:tool|function)
        (?:tool|function|action)<named>,? (?:which|that|but it|and it) (?:<isnt>|is unknown|is missing|
            is unavailable)
        (?:tool|function) (?:that |which )?(?:we |it |was |were |is )?(?:have |had )?(?:never|
            not) (?:been )?(?:offered|
            declared|provided|registered|defined|given)
        (?:tool|function) (?:name )?(?:\w{1,20} )?(?:hallucinated|made up|invented)
        """,
        on=r"""
        Function get_wether is not defined in the tool list
        Cannot find tool "serch"
        'serch' is not a registered tool
        the agent called an unknown tool
        """,
        not_on=r"""
        there is no tool like patience
        the tool belt is missing a buckle
        the saw is not a toy
        """,
        quotes=True,
    ),
    _rule(
        "steps",
        FailureType.PLAN_INCOMPLETE,
        Cause.STEP_BUDGET,
        r"""
        max(?:imum)? (?:number )?(?:of )?\d{1,6} (?:steps|iterations|turns|rounds|
            tool calls) (?:<did>)(?:reached|exceeded|hit|used up)
        (?:reached|exceeded|hit|used up|ran out of|exhausted) (?:its|the|all|their|your|
            of)? ?(?:the )?(?:max(?:imum)?|allowed|permitted|configured|available)? ?(?:number of |
            amount of |count of )?(?:\d{1,6} )?(?:allowed |available |permitted |agent |
            reasoning )?(?:steps|iterations|turns|tool calls|rounds|function calls|
            llm calls)(?: limit)?
        (?:step|iteration|turn|round|tool call|recursion|loop) (?:cap|limit|budget|ceiling|maximum|
            count)(?: of)?(?: \d{1,6})? (?:<did>)(?:reached|exceeded|hit|exhausted|used up|spent)
        (?:stopped|aborted|ended|terminated|halted|gave up|cut off|giving up)(?: early)? (?:after|
            at)(?: reaching)?(?: the)?(?: max(?:imum)?(?: of)?)? \d{1,6} (?:steps|iterations|turns|
            rounds|tool calls|llm calls)
        <isnt> (?:finish|finished|complete|completed|done|solve|solved|
            answer) (?:.{0,30} )?(?:within|in|after)\ (?:the )?(?:allowed |
            maximum )?(?:of )?(?:\d{1,6} )?(?:steps|iterations|turns|rounds|tool calls)
        (?:used|spent|consumed|exhausted) (?:up )?all (?:\d{1,6} )?(?:of )?(?:its |the |
            their )?(?:\d{1,6} )?(?:allowed |
            available )?(?:steps|iterations|turns|tool calls|rounds)
        (?:steps|iterations|turns|tool calls) <did>(?:used up|exhausted|exceeded)
        (?:more than|over) (?:the )?(?:allowed |maximum )?(?:of )?\d{1,6} (?:steps|iterations|turns|
            tool calls)
        """,
        on=r"""
        Agent reached its maximum number of steps
        The run was stopped after 20 iterations
        Iteration cap of 15 hit without a final answer
        """,
        not_on=r"""
        the stairs have more steps than I thought
        it took 12 turns to get there
        """,
    ),
    _rule(
        "guard",
        _CONSTRAINT,
        Cause.GUARDRAIL,
        r"""
        (?:blocked|rejected|refused|filtered|withheld|stopped|flagged|denied|prohibited|forbidden|
            disallowed)\ (?:by|due to|because of|under|for) .{0,30}(?:safety|guardrails?|moderation|
            content|polic(?:y|ies)|filters?|guidelines|sandbox)(?!\w)
        contains? (?:disallowed|forbidden|prohibited|banned|unsafe|harmful|blocked) (?:content|
            words?|terms?|phrases?|material|language)
        (?:violates?|violated|breach(?:es|ed)?|against|breaks?) (?:\w{1,20} ){0,3}(?:polic(?:y|ies)|
            guidelines|guardrails?|terms of (?:use|service)|usage rules)
        (?:safety|moderation|guardrail|content) (?:check|filter|system|layer|
            policy)s? (?:<did>)(?:failed|triggered|tripped|blocked|refused|rejected)
        personal (?:data|information) (?:<did>)(?:detected|found|blocked)
        """,
        on=r"""
        Response was blocked by the content safety system
        This action is prohibited by policy
        The answer contains forbidden words
        """,
        not_on=r"""
        the road was blocked by snow
        the answer contains 40 words
        """,
    ),
    _rule(
        "context",
        FailureType.CONTEXT_OVERFLOW,
        Cause.CONTEXT_LENGTH,
        r"""
        (?:conversation|prompt|history|chat|context|transcript|messages?|input|document) (?:is|are|
            has become|have become|was|were|got|grew) (?:far |much )?(?:too (?:long|large|big)|
            longer|larger|full|bigger) (?:for|than) .{0,30}(?:model|context|window|llm|limit|token)
        (?:conversation|prompt|history|chat|transcript|messages?|input|context) .{0,30}(?:past|beyond|
            more than) (?:what )?(?:the|this) model can (?:take|hold|handle|read|process|fit)
        context (?:window )?(?:is |was )?(?:full|exhausted|overflow(?:ed|s)?|used up)
        exceed(?:s|ed|ing)? .{0,40}(?:context|token limit|tokens|token budget|token count|
            prompt length|prompt size)(?!.{0,20}(?:per|/) ?(?:min|sec|hour|day|s|m|h)\w{0,4})
        tokens,? (?:but|and|while|which|exceed|more|over|above) .{0,60}(?:at most|only|maximum|max|
            limit|supports?|allows?|exceeds?)(?!.{0,40}(?:per|/) ?(?:min|sec|hour|day))
        (?:at most|only|up to|maximum of|max of|limit of) \d{1,9} (?:input )?tokens(?! ?(?:per|/))
        model (?:only )?(?:accepts?|supports?|allows?|takes?|handles?|has) (?:only |at most |up to |
            a maximum of )?\d{1,9}k? tokens
        \d{1,9}k? tokens .{0,30}(?:window|context)(?!\w)
        too (?:long|large|many tokens) (?:for|to fit)(?: in| into)? (?:the |this |its )?(?:model|
            context|window)
        (?:doesn'?t|does not|won'?t|cannot|can'?t|do not|did not|don'?t|no longer) fits? (?:in|into|
            inside|within) (?:the |its )?(?:model'?s? )?(?:context|token|window)
        """,
        on=r"""
        The conversation is too long for this model
        Your message exceeds the token limit
        The prompt has 140000 tokens, but the model supports at most 128000
        """,
        not_on=r"""
        Limit 30000 tokens per minute
        the speech was too long for the guests
        4429 tokens were used
        """,
    ),
    _rule(
        "output",
        _SCHEMA,
        Cause.MALFORMED_OUTPUT,
        r"""
        <cant> (?:parse|decode|read|interpret|deserialize|extract|understand)d? .{0,40}(?:<output>|
            arguments?|json)(?!\w)
        <writer> <cantbe> (?:parsed|decoded|read|interpreted|understood|validated)
        <output> <cantbe> (?:parsed|decoded|interpreted|deserialized)
        (?:malformed|invalid|broken|incomplete|unparsable|unparseable|truncated|bad) (?:json|xml|
            yaml|function call|tool call|tool arguments|function arguments)
        <writer> (?:returned|produced|gave|generated|wrote|emitted|sent) (?:an? |
            some )?(?:malformed|invalid|broken|empty|unparsable|unparseable|incomplete|unexpected)
        expected (?:valid )?(?:json|xml|yaml|a json \w{1,20})(?: object)?,? (?:but )?(?:got|
            received|found|was)
        <output> (?:is|was|has|does|did|came)? ?(?:<isnt> )?(?:missing|lack(?:s|ed|ing)|without|
            not contain(?: the)?|contain(?: the| a)?)\ (?:the |a |an )?(?:required |
            expected )?(?:keys?|fields?|json|section|tag|propert\w{1,3})
        <output> (?:(?:did|does|do)(?: not|n'?t)) (?:match|follow|conform to|have|fit|obey|
            comply with) .{0,20}(?:format|schema|form|structure|json|template)
        <output> .{0,20}(?:supposed|expected|meant) to be (?:valid |pure |strict )?(?:json|xml|yaml)
        <writer> <isnt> (?:parse?able|readable|json|valid|well formed|understood)(?!\w)
        <writer> (?:answered|replied|responded|returned|wrote|came back|gave) .{0,40}(?:where|when|
            instead of|rather than|while|not) .{0,20}json(?!\w)
        <output> <isnt> (?:valid |proper |well formed |correct )(?:json|xml|yaml|python|sql)
        """,
        on=r"""
        Could not decode the model's response as JSON
        The assistant's reply could not be parsed
        Expected JSON but got plain text
        """,
        not_on=r"""
        the handwriting could not be read
        expected rain but got snow
        """,
    ),
)
