"""Rules on the words of any message in anybody's words, tried when no known wording was found.

Programs say the same few things in endless ways. So these rules are sentences built of classes of words
(`WORDS`): who (a server, a tool, a parameter), and what is the matter with it. A noun alone never fires,
nor does a complaint alone; both together in one short stretch do.
"""

from __future__ import annotations

from triage.core import Cause, FailureType

from .rule import LOOSE, Rule, word_rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_WRONG_TOOL = FailureType.WRONG_TOOL_CALLED
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW
_INCOMPLETE = FailureType.PLAN_INCOMPLETE

WORDS = {
    "cant": (
        r"(?:(?:could|can|was|is) ?not(?: be)?|(?:can|couldn|wasn|isn)'?t(?: be)?|unable to(?: be)?|"
        r"fail(?:ed|s|ure) to|not able to)"
    ),
    "isnt": r"(?:is|are|was|were|does|do|did|has|have|had)(?: not|n'?t)(?: been| a| an)?",
    "did": r"(?:(?:is|are|was|were|has|have|had|been|got|being|currently|already|now) ){0,3}",
    "site": (
        r"(?:servers?|service|host|api|end ?point|backend|gateway|upstream|database|broker|web ?site|"
        r"provider|engine|system|proxy|cluster|node|peer|registry|cache|queue|platform|instance|"
        r"data ?store|data ?base|site)"
    ),
    "call": r"(?:requests?|calls?|api calls?|messages|quer(?:y|ies)|searches|invocations|hits)",
    "span": r"(?:s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|days?)",
    "job": (
        r"(?:requests?|response|reply|operation|query|call|tool|task|job|command|process|execution|script|"
        r"search|function|download|upload|transaction|read|write|fetch|handshake|attempt|page|it)"
    ),
    "key": (
        r"(?:api ?keys?|jwt|credentials?|password|passphrase|client secret|secret key|access key|"
        r"(?:api|access|auth|authentication|bearer|security|session|id|refresh|login|oauth|user|service|app)"
        r"(?: \w{1,12})? tokens?|user ?name)"
    ),
    "field": (
        r"(?:parameters?|arguments?|args?|fields?|propert(?:y|ies)|attributes?|keyword|option|input|"
        r"inputs|body|payload|values?)"
    ),
    "named": r"(?:[ :]{1,2}(?:['\"`][^'\"`]{1,80}['\"`]|[\w./:]{1,60}))",
    "id": r"(?:[ :]{1,2}(?:['\"`][^'\"`]{1,80}['\"`]|[\w./:]{1,60}(?: [\w./:]{1,60}){0,3}?))",
    "cantbe": r"(?:(?:(?:could|can) ?not|(?:can|couldn)'?t) be|(?:is|was)(?: not|n'?t))",
    "kind": (
        r"(?:strings?|str|int|integers?|numbers?|numeric|float|booleans?|bool|lists?|arrays?|objects?|"
        r"dict|positive|negative|date|iso|uuid|email|url|json|one of|at least|at most|between|greater|less|"
        r"in the)"
    ),
    "thing": (
        r"(?:files?|folder|director(?:y|ies)|path|table|column|row|record|document|page|entry|entity|item|"
        r"object|key|user|account|customer|order|invoice|ticket|issue|project|repo(?:sitory)?|branch|"
        r"commit|sheet|worksheet|tab|channel|bucket|index|collection|dataset|data ?set|database|"
        r"queue|topic|template|variable|url|resource|element|event|calendar|message|thread|job|"
        r"workflow|container|image|package|contact|product|session|node)"
    ),
    "writer": (
        r"(?:llm|model|assistant|agent|ai|gpt|completion|generation)(?:'?s)?(?: (?:output|answer|response|"
        r"reply|message|text|completion|generation))?"
    ),
    "output": r"(?:output|answer|response|reply|completion|generation|function call|tool call|tool)",
}
"""Classes of words, written `<name>` in the expressions below."""


def _said(name: str, kind: FailureType, cause: Cause, table: str, *, quotes: bool = False) -> Rule:
    """A rule of sentences. quotes: names in quotation marks are part of them, not passed over."""
    for word, meant in WORDS.items():
        table = table.replace(f"<{word}>", meant)
    rule = word_rule(
        "text",
        f"said_{name}",
        kind,
        cause,
        table,
        unquoted=not quotes,
        source="sentences of a subject and a complaint, in any order people use",
    )
    return rule._replace(confidence=LOOSE)


# fmt: off
LOOSE_RULES: tuple[Rule, ...] = (
    _said("tool", _WRONG_TOOL, Cause.UNKNOWN_TOOL, r"""
        (?:tool|function|action)<id> <isnt> (?:known|defined|found|available|registered|exist|provided|
            offered|supported|in the|among|one of)(?: (?:in|among|to|for|by|of) .{0,40})?(?:tools?|
            functions?|list|registry|agent|toolbox|manifest)
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
        tool ['\"`][^'\"`]{1,80}['\"`] <isnt> (?:enabled|available|allowed|offered|installed|provided|
            supported|known|found|registered)(?!\w)
        (?:not|n'?t) have (?:a |any )?(?:tool|function) (?:named|called|for)
        <isnt> (?:a |an |one of the |among the |in the list of )?(?:\w{1,20} ){0,2}tools?(?= ?(?:$|
            [.,;:!]|name))
        (?:call(?:ed|ing)?|request(?:ed|ing)?|invoke[ds]?|us(?:e|ed|ing)|tried) (?:to \w{1,10} )?(?:a |
            an |the )?(?:unknown|unavailable|non ?existent|undefined|unregistered|nonexisting) (?:tool|
            function)
        (?:tool|function|action)<named>,? (?:which|that|but it|and it) (?:<isnt>|is unknown|is missing|
            is unavailable)
        (?:tool|function) (?:that |which )?(?:we |it |was |were |is )?(?:have |had )?(?:never|
            not) (?:been )?(?:offered|declared|provided|registered|defined|given)
        (?:tool|function) (?:name )?(?:\w{1,20} )?(?:hallucinated|made up|invented)
        + Function get_wether is not defined in the tool list
        + Cannot find tool "serch"
        + 'serch' is not a registered tool
        + the agent called an unknown tool
        - there is no tool like patience
        - the tool belt is missing a buckle
        - the saw is not a toy
        """, quotes=True),
    _said("steps", _INCOMPLETE, Cause.STEP_BUDGET, r"""
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
        <isnt> (?:finish|finished|complete|completed|done|solve|solved|answer) (?:.{0,30} )?(?:within|
            in|after)\ (?:the )?(?:allowed |maximum )?(?:of )?(?:\d{1,6} )?(?:steps|iterations|turns|
            rounds|tool calls)
        (?:used|spent|consumed|exhausted) (?:up )?all (?:\d{1,6} )?(?:of )?(?:its |the |
            their )?(?:\d{1,6} )?(?:allowed |available )?(?:steps|iterations|turns|tool calls|rounds)
        (?:steps|iterations|turns|tool calls) <did>(?:used up|exhausted|exceeded)
        (?:more than|over) (?:the )?(?:allowed |maximum )?(?:of )?\d{1,6} (?:steps|iterations|turns|
            tool calls)
        + Agent reached its maximum number of steps
        + The run was stopped after 20 iterations
        + Iteration cap of 15 hit without a final answer
        - the stairs have more steps than I thought
        - it took 12 turns to get there
        """),
    _said("guard", _CONSTRAINT, Cause.GUARDRAIL, r"""
        (?:blocked|rejected|refused|filtered|withheld|stopped|flagged|denied|prohibited|forbidden|
            disallowed)\ (?:by|due to|because of|under|for) .{0,30}(?:safety|guardrails?|moderation|
            content|polic(?:y|ies)|filters?|guidelines|sandbox)(?!\w)
        contains? (?:disallowed|forbidden|prohibited|banned|unsafe|harmful|blocked) (?:content|words?|
            terms?|phrases?|material|language)
        (?:violates?|violated|breach(?:es|ed)?|against|breaks?) (?:\w{1,20} ){0,3}(?:polic(?:y|ies)|
            guidelines|guardrails?|terms of (?:use|service)|usage rules)
        (?:safety|moderation|guardrail|content) (?:check|filter|system|layer|
            policy)s? (?:<did>)(?:failed|triggered|tripped|blocked|refused|rejected)
        personal (?:data|information) (?:<did>)(?:detected|found|blocked)
        + Response was blocked by the content safety system
        + This action is prohibited by policy
        + The answer contains forbidden words
        - the road was blocked by snow
        - the answer contains 40 words
        """),
    _said("context", _OVERFLOW, Cause.CONTEXT_LENGTH, r"""
        (?:conversation|prompt|history|chat|context|transcript|messages?|input|document) (?:is|are|
            has become|have become|was|were|got|grew) (?:far |much )?(?:too (?:long|large|big)|longer|
            larger|full|bigger) (?:for|than) .{0,30}(?:model|context|window|llm|limit|token)
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
        + The conversation is too long for this model
        + Your message exceeds the token limit
        + The prompt has 140000 tokens, but the model supports at most 128000
        - Limit 30000 tokens per minute
        - the speech was too long for the guests
        - 4429 tokens were used
        """),
    _said("output", _SCHEMA, Cause.MALFORMED_OUTPUT, r"""
        <cant> (?:parse|decode|read|interpret|deserialize|extract|understand)d? .{0,40}(?:<output>|
            arguments?|json)(?!\w)
        <writer> <cantbe> (?:parsed|decoded|read|interpreted|understood|validated)
        <output> <cantbe> (?:parsed|decoded|interpreted|deserialized)
        (?:malformed|invalid|broken|incomplete|unparsable|unparseable|truncated|bad) (?:json|xml|yaml|
            function call|tool call|tool arguments|function arguments)
        <writer> (?:returned|produced|gave|generated|wrote|emitted|sent) (?:an? |some )?(?:malformed|
            invalid|broken|empty|unparsable|unparseable|incomplete|unexpected)
        expected (?:valid )?(?:json|xml|yaml|a json \w{1,20})(?: object)?,? (?:but )?(?:got|received|
            found|was)
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
        + Could not decode the model's response as JSON
        + The assistant's reply could not be parsed
        + Expected JSON but got plain text
        - the handwriting could not be read
        - expected rain but got snow
        """),
    _said("config", _EXTERNAL, Cause.MISSING_CONFIG, r"""
        (?:environment|env)(?: variable)?s?<id> (?:is|are|was|were|must be|has|have) (?:not |
            n'?t )?(?:been )?(?:set|defined|found|missing|empty|required|unset)
        (?:no|missing|without|provide (?:a|an|your)|specify (?:a|an|your)|supply (?:a|an|
            your)) (?:valid )?(?:api ?key|api ?token|access ?token|auth ?token|credentials?|
            configuration|connection string|environment variable|env var)
        (?:api ?key|api ?token|credentials?|credentials file|config(?:uration)?(?: file)?|
            connection string|region|setting)\ <isnt> (?:found|set|configured|provided|given|supplied|
            specified|defined|present)
        (?:must|need to|please|have to) (?:first )?(?:set|configure|export|define) (?:the |a |an |
            your )?(?:\w{1,40} ){0,2}(?:region|variable|api ?key|credentials|environment|endpoint|
            token)
        <isnt> configured(?: yet| properly| correctly)?(?= ?(?:$|[.,;:!]|for))
        + Environment variable LAB_KEY is not set
        + No API key provided
        + The connection string was not provided
        - the key is missing from the piano
        - the table is set
        """, quotes=True),
    _said("tls", _EXTERNAL, Cause.TLS, r"""
        (?:ssl|tls|https) (?:(?:handshake|certificate|cert|negotiation|verification|
            connection) ){0,2}(?:error|fail(?:ed|s|ure)|problem|alert|expired|rejected|invalid|
            mismatch)(?!\w)
        (?:invalid|expired|untrusted|bad|unverified|unknown) (?:ssl|tls|https|x509) (?:cert|
            certificate)(?!\w)
        certificate(?: \w{1,12}){0,4} (?:could not be verified|cannot be verified|can'?t be verified|
            is not trusted|untrusted|self signed|does not match|doesn'?t match|mismatch|verification|
            chain|is invalid|invalid)
        (?:verify|validate|trust) (?:the |its )?(?:server'?s? |host'?s? |peer'?s? |remote )?certificate
        + SSL certificate problem: unable to get local issuer certificate
        + The server's certificate could not be verified
        - certificate of attendance was not printed
        """),
    _said("dns", _EXTERNAL, Cause.DNS, r"""
        no dns (?:record|entry|answer|server)
        dns .{0,30}(?:fail(?:ed|ure|s)|error|not found|timed out|nxdomain)
        (?:host ?name|domain(?: name)?|host|address)<id>? (?:<cantbe> (?:resolved|looked up|
            found in dns)|(?:does not|doesn'?t) resolve)
        <cant> (?:resolve|look ?up) (?:the )?(?:host|domain|dns|address|ip|server)(?: ?name)?
        (?:unknown|no such) host(?: ?name)?(?= ?(?:$|[.,;:!(\[]|\w{1,60}\.))
        enotfound|eai again|nxdomain
        + DNS lookup failed for files.lab
        + Unknown host: files.lab
        + Host name could not be resolved
        - the host could not resolve the dispute
        - an unknown host opened the door
        """),
    _said("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, r"""
        (?:used(?: up)?|consumed|exhausted|spent|run out of|ran out of|(?<!run )(?<!ran )out of|
            exceeded) (?:all )?(?:of )?(?:your|the|its|their|our)?(?: ?(?:free|monthly|daily|weekly|
            yearly|annual|remaining|available|included|allotted|prepaid|api|usage)){0,3} ?(?:quota|
            credits?|allowance|allotment|api calls|free calls|tokens for this (?:month|day|week))(?!\w)
        (?:account|credit|wallet|prepaid|remaining) ?balance (?:<did>)(?:too low|not enough|
            not sufficient|insufficient|exhausted|used up|depleted|negative|empty|gone|spent|zero|0)
        (?:credits?|quota|allowance|api calls) (?:for .{0,30} )?(?:<did>)(?:too low|not enough|
            not sufficient|insufficient|exhausted|used up|depleted|empty|gone|spent|all used)
        (?:not|n'?t) (?:have )?(?:enough|sufficient|any)(?: remaining)? (?:credits?|balance|quota|
            funds)
        (?:no|zero|0) (?:more |remaining )?(?:credits?|quota|api calls|balance)(?: (?:left|remaining|
            available))?(?!\w)
        (?:plan|tier|free tier|subscription|trial|billing|usage|spending|spend|monthly|daily|
            account) (?:usage |spending |spend )?(?:limits?|cap|quota|allowance|period|
            budget) (?:for .{0,30} )?(?:<did>)(?:exceeded|reached|hit|used up|exhausted|over|expired|
            ended)
        (?:upgrade|renew) (?:to continue|(?:your|to a|the|to another|to an) (?:\w{1,20} )?(?:plan|
            subscription|tier|account))
        (?:subscription|trial|license|licence|plan|free period) (?:<did>)(?:expired|ended|lapsed|
            inactive|suspended|cancelled|canceled|over)
        unpaid (?:invoices?|bills?|balance)
        (?:buy|purchase|add|need) (?:more|additional|extra) (?:credits?|quota)
        (?:billing|payment) (?:<did>)(?:not (?:enabled|set up|active|configured)|disabled|overdue|
            past due|inactive|failed|required|declined)
        + You have used all of your monthly API calls
        + Account balance is too low to process this request
        + The free tier limit has been reached, please upgrade your plan
        - credits roll after the film
        - balance of the scale is off
        - our plan for the garden was not approved
        """),
    _said("rate", _EXTERNAL, Cause.RATE_LIMITED, r"""
        (?:<call>|api) rate (?:limit )?(?:<did>)(?:exceeded|too high|reached|limited)
        (?:max(?:imum)?|allowed|permitted) (?:number of )?<call>(?: rate)? (?:<did>)(?:exceeded|
            reached|hit)
        (?:rate|throttl\w{1,5})[ -]?limit\w{0,5}(?: \w{1,20}){0,4} (?:in effect|active|exceeded|
            reached|hit|triggered|applies|kicked in|applied|violation|breached)
        (?:requests?|calls?|rate|api|usage) limit (?:<did>)(?:hit|reached|exceeded|breached|
            passed)(?!\w)
        (?:hit|reached|exceeded|over|past|above) (?:the|your|our|a|its) (?:\w{1,20} ){0,2}(?:rate|
            request|call|throttl\w{1,5}) limit
        quota per <span>
        \d{1,9} (?:times|requests|calls|queries|messages) (?:per|an?|each|every) <span>(?!\w)
        (?:api|service|search|call|request|endpoint):? rate exceeded
        rate limit(?:er|ed|ing)?(?= ?(?:$|[.,;:!]))|limit of \d{1,9} <call>
        (?:too many|number of|amount of|volume of|flood of|
            exceed\w{0,3} .{0,30}) ?(?:api )?<call>(?!\w).{0,40}(?:exceed|limit|second|minute|hour|
            wait|slow|period|quickly|short|time|ip|recently|again|later)
        too many (?:api |concurrent |parallel |simultaneous |recent )?(?:<call>|attempts|tokens per)
        <call> ?(?:/|per|a|each|every|in) ?(?:the last )?\d{0,5} ?<span>(?!\w)
        <call> (?:<did>)(?:too (?:fast|quickly|often|frequent(?:ly)?)|throttled|limited|rate)
        (?:calling|sending|requesting|querying|hitting|polling) .{0,40}too (?:fast|quickly|often|
            frequently|many)
        (?:please |and |, |then )(?:back off|slow down|pace yourself|ease off)
        try(?:ing)? again in \d{1,6}(?:\.\d{1,6})? ?<span>(?!\w)
        + API call rate exceeded for this key
        + Limit of 60 requests/min reached
        + Maximum request rate exceeded, retry later
        - the speed limit of 60 was reached by the car
        - call limit: 3 calls per customer
        - too many eggs in one basket
        """),
    _said("auth", _EXTERNAL, Cause.AUTH, r"""
        <key> (?:you (?:\w{1,12} )?(?:provided|supplied|sent|used|entered|gave) |included in .{0,20} |
            for .{0,30} )?(?:<did>)(?:not (?:valid|correct|accepted|recogni[sz]ed)|n'?t (?:valid|
            correct|accepted)|invalid|incorrect|wrong|expired|revoked|rejected|refused|
            missing or \w{1,12}|disabled|deactivated|deleted|suspended|not active|inactive|
            no longer valid|unknown|does not match|doesn'?t match|did not match|has expired|
            was not accepted)(?!\w)
        (?:token|session|cookie|log ?in|access|ticket granting ticket) (?:has |is |was |have |
            had )?(?:expired|revoked|no longer valid|timed out and)(?!\w)
        (?:invalid|incorrect|wrong|bad|expired|revoked|rejected|unknown|unrecogni[sz]ed|
            stale) <key>(?!\w)
        signature (?:(?:does|did) (?:not|n'?t)|doesn'?t|
            didn'?t) match (?:the )?(?:\w{1,20} ){0,2}(?:key|secret|request|signature|expected)
        <cant> (?:authenticate|log ?in|sign ?in|log on|verify (?:your |the )?(?:identity|credentials|
            token|signature))d?
        <cant> (?:verify|validate|confirm|check) (?:your |the |this )?(?:<key>|identity)
        tokens? (?:<did>)(?:rejected|revoked|expired|refused|no longer accepted)(?!\w)
        (?:account|organi[sz]ation|workspace|tenant) (?:<did>)(?:suspended|deactivated|disabled|
            blocked|frozen|locked|banned)(?!\w)
        (?:log|sign) ?in to (?:continue|proceed|access|use|your)(?!\w)
        <isnt> (?:authenticated|logged in|signed in)
        (?:log ?in|sign ?in|log ?on|authentication|re ?authentication) (?:is )?(?:required|needed|
            necessary|failed|failure|error|unsuccessful|rejected|denied)(?!to )(?= ?(?:$|[.,;:!(]|for|
            with|because|by|as|due))
        (?:please|must|need to|have to) (?:first )?(?:log|sign) ?in(?: again| first)?(?!\w)
        (?:please|must|need to|have to) (?:re ?)?authenticate
        unauthori[sz]ed(?: (?:request|access|client|user|call))?(?= ?(?:$|[.,;:!(]|to|for))
        + The provided API token is not valid
        + Could not authenticate with the supplied credentials
        + Session expired, please log in again
        - the lecture on authentication failed to impress
        - the key did not fit the lock
        - the password field is empty
        """),
    _said("permission", _EXTERNAL, Cause.PERMISSION, r"""
        (?:not|n'?t) (?:allowed|permitted|authori[sz]ed|entitled|privileged) (?:to|for) (?:you |
            perform|access|do|read|write|delete|edit|view|see|create|update|modify|change|use|call|run|
            execute|list|open|make|send|this|that|these|the (?:resource|action|operation|project|file|
            folder))
        (?:lack(?:s|ed|ing)?|missing|insufficient|inadequate|not enough|without|no|need(?:s|ed)?|
            requires?|required) .{0,30}(?:permissions?|privileges?|scopes?|access rights|
            admin(?:istrator)? rights|rights to|required role|necessary role|role:)(?!\w)(?! denied)
        (?:permission|access|authori[sz]ation)(?: (?!not |never )\w{1,20}){0,6} (?:<did>)(?:denied|
            forbidden|refused|restricted|not granted|rejected|blocked)(?!\w)
        (?:does|do|did)(?: not|n'?t) (?:have|grant|permit|allow|include) (?:\w{1,20} ){0,3}(?:access|
            rights?|permissions?|privileges?|editing|deleting|writing|reading|deletion|scope|
            role)(?!\w)
        only (?:\w{1,20} )?(?:admin(?:istrator)?s?|owners?|superusers?|moderators?|editors?) (?:can|
            may|are)(?!\w)
        (?:requires?|reserved for|restricted to|limited to) (?:\w{1,20} )?(?:admin(?:istrator)?s?|
            owners?|superusers?|moderators?|editors?)(?!\w)
        (?:scope|permission|role|privilege)s? (?:'?[\w.:/]{1,60}'? )?(?:is |are |was |
            were )?(?:required|missing|needed|insufficient)(?!\w)
        + You are not allowed to perform this action
        + The user lacks the required role
        + Account does not have access to this project
        - the customer is not allowed to smoke
        - permission slip for minors required: no
        - there is no right way
        """),
    _said("timeout", _EXTERNAL, Cause.TIMEOUT, r"""
        took (?:too long|longer than|more than|over) .{0,20}(?:\d{1,9} ?<span>|to (?:complete|respond|
            answer|finish|load|run|return|execute|process|reply|connect)|time ?out|limit|aborted|
            allowed|cancel\w{0,4})(?!\w)
        (?:request|query|operation|tool|call|job|server|service|api|model|command|script|execution|
            search) took too long
        (?:aborted|cancell?ed|killed|stopped|terminated) after (?:waiting|\d{1,9} ?<span>)(?!\w)
        (?:not|n'?t) (?:get|receive) (?:a |an |any )?(?:answer|response|reply) (?:within|after|
            in) \d{1,9} ?<span>(?!\w)
        (?:gave|given|giving) up (?:waiting|after \d{1,9} ?<span>)
        (?:no|without(?: an?| any)?) (?:answer|response|reply|result)s? (?:.{0,40} )?(?:within|after|
            in) (?:\w{1,8} )?\d{1,9}(?:\.\d{1,6})? ?<span>(?!\w)
        (?:<isnt> )(?:complete|completed|finish|finished|respond|responded|answer|answered|return|
            returned|reply|replied|done|load|loaded|ready)(?:.{0,20} )?(?:in time|
            within (?:the )?(?:\d{1,9}|allotted|allowed|time|given|limit|specified|expected|configured|
            deadline)|in \d{1,9} ?<span>|after \d{1,9} ?<span>|before the deadline)
        (?:time|duration|run ?time|execution) (?:limit|budget|allowance|
            cap)(?: of [\d.]{1,9} ?\w{1,8})? (?:<did>)(?:reached|exceeded|expired|hit|exhausted|over|
            up|elapsed)
        exceed(?:s|ed|ing)? (?:its |the |a |their |your )?(?:\w{1,20} )?(?:time ?out|time (?:limit|
            budget|allowance)|deadline|max(?:imum)? (?:run|execution|wait(?:ing)?|duration) ?time)
        exceed(?:s|ed|ing)? (?:its |the |a |their |your )?[\d.]{1,9} ?\w{1,12} (?:deadline|limit|
            time ?out|budget)
        (?:ran|running|run|runs) out of time(?!\w)
        <job> (?:\w{1,12} )?(?:ran|is running|was running|has been running) (?:for )?too long(?!\w)
        still (?:running|waiting|pending|working|not done) after \d{1,9} ?<span>(?!\w)
        (?:deadline|time ?out)(?: of [\d.]{1,9} ?\w{1,12})? (?:<did>)(?:passed|missed|elapsed|reached|
            exceeded|expired|hit|triggered|occurred)
        time ?out(?:s)? (?:occurred|error|while|during|before|reading|connecting|talking|calling|
            contacting|fetching|from|on|in|at|when)
        time ?out:? (?:no|the|could|server|client|request|after|\d)
        (?:waited|waiting) (?:for )?(?:more than |over )?\d{1,9} ?<span> .{0,30}(?:no|without|but|
            for)(?!\w)
        + The request took too long to complete
        + Gave up waiting for a response after 30 seconds
        + Operation did not complete within the allotted time
        - the meeting took too long and was adjourned
        - the time limit for the exam is 3 hours
        - Timeout value must be a number
        """),
    _said("connection", _EXTERNAL, Cause.CONNECTION, r"""
        <cant> (?:reach(?:ed)?|contact(?:ed)?|connect(?:ed)? to|talk to|communicate with) (?:the |a |
            an |any |to |our |remote )?(?:\w{1,20} ){0,2}(?:<site>|internet|network|
            [\w]{1,60}(?:\.[\w]{1,60}){1,4}|[\w.]{1,60}:\d{2,5})
        <site>(?: [\w.:]{1,40})? <cantbe> (?:reached|contacted|connected)
        <cant> (?:establish|open|make|create|get|obtain|maintain)(?:ed)? (?:a |an |the )?(?:new |
            secure |network |tcp |http |ssh |database ){0,3}(?:connection|socket|tunnel|
            websocket)(?!s?\w)
        (?:remote )?(?:host|peer|server|client|proxy|side|end ?point|database) (?:\w{1,12} )?(?:closed|
            dropped|reset|terminated|aborted|refused|severed|cut|ended) (?:the |our |this )?connection
        (?:dropped|closed|cut|reset|severed|tore down) (?:the|our) (?:socket|session|link|stream|
            line)(?!\w)
        connection (?:(?!not |never )\w{1,20} ){0,4}?(?:(?:was|is|has been|got|been|unexpectedly|
            prematurely|suddenly|abruptly) ){0,3}(?:lost|refused|reset|dropped|interrupted|aborted|
            terminated|broken|severed|cut off|failed|unreachable|closed by|closed before|closed un|
            closed prem)(?!\w{3})
        <site> hung up
        (?:no|never any) (?:response|answer|reply) (?:was )?(?:received )?from (?:the )?
            (?:\w{1,20} ){0,2}(?:<site>)(?!\w)
        <site> (?:did|does|is|has|was)(?: not|n'?t) (?:respond|responding|answer|answering|reply|
            replying|responded|reachable)
        (?:host|network|server|destination|service|site|peer|internet|database|end ?point) (?:is |was |
            are |were )?(?:currently )?(?:unreachable|not reachable|offline|unresponsive)
        network (?:error|failure|problem|issue|connection (?:lost|error)|is down|changed|was lost)
        (?:dropped|lost|losing|broken|interrupted|unstable|flaky) (?:the |our |its )?(?:connection|
            network|connectivity) (?:to|with|while|during)
        + Could not reach the database server
        + The remote host forcibly closed the connection
        + Connection to broker lost
        - the connection in Lisbon was missed
        - no response from the guest about the menu
        - he could not reach the top shelf
        """),
    _said("unavailable", _EXTERNAL, Cause.UNAVAILABLE, r"""
        (?:<site>|model) (?:(?:is|are|was|were|has been|have been|seems to be|
            appears to be) )?(?:(?:currently|temporarily|now|still|at the moment|down|momentarily|
            presently) ){0,2}(?:unavailable|not available(?= ?(?:$|[.,;:!]|at|right|now|for the))|
            down(?= ?(?:$|[.,;:!]|for|due|at|right|now))|out of (?:service|order)|offline|
            under maintenance|over capacity|at capacity|overloaded|overwhelmed|unhealthy|degraded|
            in maintenance|not ready|starting up|restarting|warming up)
        <site> (?:is|are|was|were) (?:having|experiencing) (?:\w{1,20} )?(?:problems|issues|trouble|
            difficulties)(?!\w)
        (?:scheduled|planned|undergoing|under|ongoing|emergency) maintenance(?= ?(?:$|[.,;:!]|window|
            at|until|please|try|come|and))
        (?:down|closed|offline|unavailable) for (?:\w{1,20} )?maintenance(?= ?(?:$|[.,;:!]|until|
            please|try|at|and))
        (?:experiencing|under|due to|because of) (?:\w{1,20} )?(?:high|heavy|increased|unusual|
            too much) (?:load|traffic|demand|volume)
        (?:went|gone) wrong (?:on|at) (?:our|the server|the other|their) (?:end|side)
        (?:<site>) (?:\w{1,20} ){0,2}(?:returned|encountered|reported|raised|had|answered with|
            responded with) (?:an |a )?(?:\w{1,20} ){0,2}(?:error|failure|problem|fault)(?!\w)
        (?:internal|unexpected|unknown|unhandled|temporary|transient) (?:server|service|system|backend|
            upstream) (?:error|failure|fault|problem|issue)
        (?:internal|unexpected|unknown|unhandled) (?:error|failure|fault|
            exception) (?:\w{1,20} )?(?:in|on|at|from|inside|of) (?:the |our |a )?(?:remote |
            other )?<site>
        (?:server|service|backend|upstream|gateway|database|api|provider|engine|
            end ?point) (?:service |side )?(?:fault|failure|crash(?:ed)?|died|restarted|hiccup)(?!\w)
        (?:having|experiencing|during|due to) an? (?:\w{1,20} )?outage(?!\w)
        technical (?:difficulties|problems|issues)(?!\w)
        (?:<site>|model) (?:\w{1,20} ){0,5}not ready(?: yet)?(?!\w)
        please retry(?= ?(?:$|[.,;:!]))
        (?:temporary|transient|intermittent) (?:failure|error|outage|problem|issue|glitch|fault)(?!\w)
        (?:service|system|partial|major|regional|api|ongoing|known|provider|platform|
            cloud) outage(?!\w)
        (?:please (?:try|retry)|(?:try|retry) (?:the|your) (?:request|operation|call))(?: again|
            the \w{1,20}| your \w{1,20}| it)?\ (?:later|shortly|in a (?:few|moment|while|minute|bit|
            couple)|after a (?:while|moment|short))
        + The service is down for maintenance
        + Our servers are experiencing high load
        + Something went wrong on our end
        - the bridge is closed for maintenance of the railing
        - the host is down with a cold
        - the service at the restaurant was bad
        """),
    _said("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, r"""
        (?:not enough|insufficient|no|out of|low on|ran out of|run out of|no more|too little) (?:free |
            available |remaining )?(?:disk|storage|hard disk|drive|volume)(?: space| capacity)?
        (?:disk|volume|drive|storage|file ?system|partition) (?:\w{1,20} )?(?:is |was |has )?(?:full|
            out of space|no space|run out)
        + Not enough disk space
        + The disk is full
        - the storage box is blue
        - there is not enough room for a drive-in cinema
        """),
    _said("conflict", _EXTERNAL, Cause.CONFLICT, r"""
        (?:modified|changed|updated|edited|locked|held|reserved|claimed) (?:\w{1,20} )?by (?:another|
            a different|some other|an other|other|someone else|a concurrent) ?(?:user|process|
            transaction|session|client|request|thread|job|worker|writer|update)?(?!\w)
        (?:used|in use|open(?:ed)?) by (?:another|a different|some other) (?:process|program|
            application|session)
        (?:optimistic|pessimistic|row|table|advisory|write|file) lock(?:ing)? (?:failed|failure|error|
            conflict|exception|timeout)
        dead ?lock (?:occurred|detected|found|error|victim|happened|was)
        (?:version|revision|etag|edit|concurrent \w{1,20}|write|update|merge|concurrency|
            transaction) (?:mismatch|conflict)s?(?!\w)
        concurrent (?:modification|update|write|edit|change|access)s?(?!\w)
        + The record was modified by another user
        + A deadlock occurred, please retry the transaction
        - the door is locked
        - the schedule was changed by the weather
        """),
    _said("arguments", _SCHEMA, Cause.INVALID_ARGUMENTS, r"""
        missing (?:the |a )?(?:required|mandatory) (?:\w{1,20} )?(?:input|value|argument|parameter|
            field|key|data)s?(?!\w)
        lack(?:s|ed|ing)? (?:the |a |an |its )?(?:required |mandatory )?(?:field|key|property|argument|
            parameter|column|attribute)s?(?!\w)
        (?:parameter|argument|arg|field|property|attribute|keyword|option|key)s?<named>? (?:is|are|was|
            were|must be|has to be) (?:required|missing|mandatory|not provided|not given|not supplied|
            unknown|unexpected|not allowed|not supported|unsupported|invalid|not valid|malformed|empty|
            null)
        (?:parameter|argument|arg|field|property|attribute|option)s?<named> (?:should|must|has to|
            have to|needs to|cannot|can'?t|may not|can) (?:not )?(?:be|have|contain|match|start|
            end)(?!\w)
        (?:missing|unexpected|unknown|unrecogni[sz]ed|invalid|extra|illegal|bad|required|wrong|
            unsupported|incorrect) (?:value |values |type )?(?:for |of )?(?:the )?(?:required |
            mandatory |keyword |positional |query |input )?(?:parameter|argument|arg|field|property|
            keyword|option|body)s?(?!\w)(?! list)
        <field><named> (?:<isnt> )(?:provided|given|supplied|specified|valid|allowed|supported|
            recogni[sz]ed|present|match|expected)
        (?:must|should|has to|needs to) be (?:a |an |of type |one of |in the |either )?(?:valid |
            non empty |positive |negative )?<kind>(?!\w).{0,40}(?:got|received|was|not|given|found|
            but)(?!\w)
        (?:input|arguments?|payload|body|data|parameters?) (?:(?:does|do|did)(?: not|n'?t)) (?:match|
            conform to|validate against|fit|satisfy) (?:its |the |their )?(?:\w{1,20} )?(?:schema|
            format|signature|model)
        expected (?:a |an )?<kind>(?!\w).{0,40}(?:but )?(?:got|received|found|was given)(?!\w)
        (?:has|have|is|in|with|of) (?:the |a |an )?(?:wrong|invalid|incorrect|bad|unsupported|
            unexpected) (?:date |data |time |file )?(?:format|type|data type)(?!\w)
        <field><named> (?:(?:is|are|was|value) )?(?:out of range|too (?:long|short|large|small|big|
            high|low|many|few)|not a (?:valid )?<kind>)(?!\w)
        must (?:pass|provide|specify|supply|give|set|include) (?:either|one of|at least one|both|
            exactly one|only one|a value|a valid|the (?:required )?(?:parameter|argument|field))(?!\w)
        + Parameter 'city' is required
        + The field 'date' must be a string
        + Tool input does not match its schema
        - the argument between the neighbours was invalid
        - the field was flooded
        - required reading: chapter 4
        - Timeout must be positive
        """, quotes=True),
    _said("missing", _MISSING, Cause.MISSING_RESOURCE, r"""
        no (?:such )?(?:\w{1,20} )?<thing>s? (?:(?:was|were|could be|is|are) )?(?:found|exists?|
            matching|matches|matched|with (?:the |that |this )?(?:id|name|key|number)|named|
            called)(?!\w)
        (?:there is|there's|there are) no (?:such )?(?:\w{1,20} )?<thing>s? (?:named|called|with|
            matching|at|for|in)(?!\w)
        no such <thing>(?!\w)
        (?:nobody|no one|nothing) (?:called|named|by the name of)<named>? (?:is|was|could be|exists|
            lives|has)(?!\w)
        nothing (?:was |could be )?found (?:at|under|in|for) (?:path|url|the (?:path|url|address|
            location|key|id)|location|address|id|key|this (?:path|url|id|key))(?!\w)
        unknown <thing> ?(?:id|name|key|number)(?!\w)
        <thing>(?: (?:with|by|at|named|called|for|you|requested|that) .{1,60}?|
            \ [a-z]{1,12} (?=[a-z]{0,20}\d)[a-z\d]{1,40}|:? ?['\"`][^'\"`]{1,80}['\"`]|
            \ (?=\S*[./])[\w./:@#]{1,120})? (?:(?:does|do|did)(?: not|n'?t) exist|(?:(?:could|
            can) ?(?:not|n'?t) be |was not |were not |is not |not |cannot be |can'?t be |isn'?t |
            wasn'?t )(?:found|located)|no longer exists?)(?= ?(?:$|[.,;:!)]|in|on|at|for|or|any|\())
        <cant> (?:find|locate|open|look up) (?:the |a |an |any )?(?:\w{1,20} )?<thing>s?(?!\w)
        <thing> (?:id |name |key )?['\"`]?[\w./:@#]{1,80}['\"`]? (?:is|was) (?:unknown|missing|
            not there|gone|deleted|not known|invalid)
        + No record with id 42 exists
        + Customer with this id does not exist
        + Cannot open the file missing.txt
        - the customer could not find his shoes
        - no seats within 10 rows of the stage
        - no such luck today
        - user 500 not found
        """, quotes=True),
)
