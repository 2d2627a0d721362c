"""What did not come back, and what is not there, in any words."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType

from ._loose import loose_rule as _rule
from ._rule import Rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH

LOOSE_REACH: tuple[Rule, ...] = (
    _rule(
        "timeout",
        _EXTERNAL,
        Cause.TIMEOUT,
        r"""
        took (?:too long|longer than|more than|over) .{0,20}(?:\d{1,9} ?<span>|to (?:complete|
            respond|answer|finish|load|run|return|execute|process|reply|connect)|time ?out|limit|
            aborted|allowed|cancel\w{0,4})(?!\w)
        (?:request|query|operation|tool|call|job|server|service|api|model|command|script|execution|
            search) took too long
        (?:aborted|cancell?ed|killed|stopped|terminated) after (?:waiting|\d{1,9} ?<span>)(?!\w)
        (?:not|n'?t) (?:get|receive) (?:a |an |any )?(?:answer|response|reply) (?:within|after|
            in) \d{1,9} ?<span>(?!\w)
        (?:gave|given|giving) up (?:waiting|after \d{1,9} ?<span>)
        (?:no|without(?: an?| any)?) (?:answer|response|reply|result)s? (?:.{0,40} )?(?:within|
            after|in) (?:\w{1,8} )?\d{1,9}(?:\.\d{1,6})? ?<span>(?!\w)
        (?:<isnt> )(?:complete|completed|finish|finished|respond|responded|answer|answered|return|
            returned|reply|replied|done|load|loaded|ready)(?:.{0,20} )?(?:in time|
            within (?:the )?(?:\d{1,9}|allotted|allowed|time|given|limit|specified|expected|
            configured|deadline)|in \d{1,9} ?<span>|after \d{1,9} ?<span>|before the deadline)
        (?:time|duration|run ?time|execution) (?:limit|budget|allowance|
            cap)(?: of [\d.]{1,9} ?\w{1,8})? (?:<did>)(?:reached|exceeded|expired|hit|exhausted|
            over|up|elapsed)
        exceed(?:s|ed|ing)? (?:its |the |a |their |your )?(?:\w{1,20} )?(?:time ?out|time (?:limit|
            budget|allowance)|deadline|max(?:imum)? (?:run|execution|wait(?:ing)?|duration) ?time)
        exceed(?:s|ed|ing)? (?:its |the |a |their |your )?[\d.]{1,9} ?\w{1,12} (?:deadline|limit|
            time ?out|budget)
        (?:ran|running|run|runs) out of time(?!\w)
        <job> (?:\w{1,12} )?(?:ran|is running|was running|has been running) (?:for )?too long(?!\w)
        still (?:running|waiting|pending|working|not done) after \d{1,9} ?<span>(?!\w)
        (?:deadline|time ?out)(?: of [\d.]{1,9} ?\w{1,12})? (?:<did>)(?:passed|missed|elapsed|
            reached|exceeded|expired|hit|triggered|occurred)
        time ?out(?:s)? (?:occurred|error|while|during|before|reading|connecting|talking|calling|
            contacting|fetching|from|on|in|at|when)
        time ?out:? (?:no|the|could|server|client|request|after|\d)
        (?:waited|waiting) (?:for )?(?:more than |over )?\d{1,9} ?<span> .{0,30}(?:no|without|but|
            for)(?!\w)
        """,
        on=r"""
        The request took too long to complete
        Gave up waiting for a response after 30 seconds
        Operation did not complete within the allotted time
        """,
        not_on=r"""
        the meeting took too long and was adjourned
        the time limit for the exam is 3 hours
        Timeout value must be a number
        """,
    ),
    _rule(
        "connection",
        _EXTERNAL,
        Cause.CONNECTION,
        r"""
        <cant> (?:reach(?:ed)?|contact(?:ed)?|connect(?:ed)? to|talk to|communicate with) (?:the |
            a |an |any |to |our |remote )?(?:\w{1,20} ){0,2}(?:<site>|internet|network|
            [\w]{1,60}(?:\.[\w]{1,60}){1,4}|[\w.]{1,60}:\d{2,5})
        <site>(?: [\w.:]{1,40})? <cantbe> (?:reached|contacted|connected)
        <cant> (?:establish|open|make|create|get|obtain|maintain)(?:ed)? (?:a |an |the )?(?:new |
            secure |network |tcp |http |ssh |database ){0,3}(?:connection|socket|tunnel|
            websocket)(?!s?\w)
        (?:remote )?(?:host|peer|server|client|proxy|side|end ?point|
            database) (?:\w{1,12} )?(?:closed|dropped|reset|terminated|aborted|refused|severed|cut|
            ended) (?:the |our |this )?connection
        (?:dropped|closed|cut|reset|severed|tore down) (?:the|our) (?:socket|session|link|stream|
            line)(?!\w)
        connection (?:(?!not |never )\w{1,20} ){0,4}?(?:(?:was|is|has been|got|been|unexpectedly|
            prematurely|suddenly|abruptly) ){0,3}(?:lost|refused|reset|dropped|interrupted|aborted|
            terminated|broken|severed|cut off|failed|unreachable|closed by|closed before|closed un|
            closed prem)(?!\w{3})
        <site> hung up
        (?:no|never any) (?:response|answer|
            reply) (?:was )?(?:received )?from (?:the )?(?:\w{1,20} ){0,2}(?:<site>)(?!\w)
        <site> (?:did|does|is|has|was)(?: not|n'?t) (?:respond|responding|answer|answering|reply|
            replying|responded|reachable)
        (?:host|network|server|destination|service|site|peer|internet|database|end ?point) (?:is |
            was |are |were )?(?:currently )?(?:unreachable|not reachable|offline|unresponsive)
        network (?:error|failure|problem|issue|connection (?:lost|error)|is down|changed|was lost)
        (?:dropped|lost|losing|broken|interrupted|unstable|flaky) (?:the |our |its )?(?:connection|
            network|connectivity) (?:to|with|while|during)
        """,
        on=r"""
        Could not reach the database server
        The remote host forcibly closed the connection
        Connection to broker lost
        """,
        not_on=r"""
        the connection in Lisbon was missed
        no response from the guest about the menu
        he could not reach the top shelf
        """,
    ),
    _rule(
        "unavailable",
        _EXTERNAL,
        Cause.UNAVAILABLE,
        r"""
        (?:<site>|model) (?:(?:is|are|was|were|has been|have been|seems to be|
            appears to be) )?(?:(?:currently|temporarily|now|still|at the moment|down|momentarily|
            presently) ){0,2}(?:unavailable|not available(?= ?(?:$|[.,;:!]|at|right|now|for the))|
            down(?= ?(?:$|[.,;:!]|for|due|at|right|now))|out of (?:service|order)|offline|
            under maintenance|over capacity|at capacity|overloaded|overwhelmed|unhealthy|degraded|
            in maintenance|not ready|starting up|restarting|warming up)
        <site> (?:is|are|was|were) (?:having|experiencing) (?:\w{1,20} )?(?:problems|issues|trouble|
            difficulties)(?!\w)
        (?:scheduled|planned|undergoing|under|ongoing|emergency) maintenance(?= ?(?:$|[.,;:!]|
            window|at|until|please|try|come|and))
        (?:down|closed|offline|unavailable) for (?:\w{1,20} )?maintenance(?= ?(?:$|[.,;:!]|until|
            please|try|at|and))
        (?:experiencing|under|due to|because of) (?:\w{1,20} )?(?:high|heavy|increased|unusual|
            too much) (?:load|traffic|demand|volume)
        (?:went|gone) wrong (?:on|at) (?:our|the server|the other|their) (?:end|side)
        (?:<site>) (?:\w{1,20} ){0,2}(?:returned|encountered|reported|raised|had|answered with|
            responded with) (?:an |a )?(?:\w{1,20} ){0,2}(?:error|failure|problem|fault)(?!\w)
        (?:internal|unexpected|unknown|unhandled|temporary|transient) (?:server|service|system|
            backend|upstream) (?:error|failure|fault|problem|issue)
        (?:internal|unexpected|unknown|unhandled) (?:error|failure|fault|
            exception) (?:\w{1,20} )?(?:in|on|at|from|inside|of) (?:the |our |a )?(?:remote |
            other )?<site>
        (?:server|service|backend|upstream|gateway|database|api|provider|engine|
            end ?point) (?:service |side )?(?:fault|failure|crash(?:ed)?|died|restarted|
            hiccup)(?!\w)
        (?:having|experiencing|during|due to) an? (?:\w{1,20} )?outage(?!\w)
        technical (?:difficulties|problems|issues)(?!\w)
        (?:<site>|model) (?:\w{1,20} ){0,5}not ready(?: yet)?(?!\w)
        please retry(?= ?(?:$|[.,;:!]))
        (?:temporary|transient|intermittent) (?:failure|error|outage|problem|issue|glitch|
            fault)(?!\w)
        (?:service|system|partial|major|regional|api|ongoing|known|provider|platform|
            cloud) outage(?!\w)
        (?:please (?:try|retry)|(?:try|retry) (?:the|your) (?:request|operation|call))(?: again|
             the \w{1,20}| your \w{1,20}| it)?\ (?:later|shortly|in a (?:few|moment|while|minute|
            bit|couple)|after a (?:while|moment|short))
        """,
        on=r"""
        The service is down for maintenance
        Our servers are experiencing high load
        Something went wrong on our end
        """,
        not_on=r"""
        the bridge is closed for maintenance of the railing
        the host is down with a cold
        the service at the restaurant was bad
        """,
    ),
    _rule(
        "disk",
        _EXTERNAL,
        Cause.RESOURCE_EXHAUSTED,
        r"""
        (?:not enough|insufficient|no|out of|low on|ran out of|run out of|no more|
            too little) (?:free |available |remaining )?(?:disk|storage|hard disk|drive|
            volume)(?: space| capacity)?
        (?:disk|volume|drive|storage|file ?system|partition) (?:\w{1,20} )?(?:is |was |
            has )?(?:full|out of space|no space|run out)
        """,
        on=r"""
        Not enough disk space
        The disk is full
        """,
        not_on=r"""
        the storage box is blue
        there is not enough room for a drive-in cinema
        """,
    ),
    _rule(
        "conflict",
        _EXTERNAL,
        Cause.CONFLICT,
        r"""
        (?:modified|changed|updated|edited|locked|held|reserved|
            claimed) (?:\w{1,20} )?by (?:another|a different|some other|an other|other|someone else|
            a concurrent) ?(?:user|process|transaction|session|client|request|thread|job|worker|
            writer|update)?(?!\w)
        (?:used|in use|open(?:ed)?) by (?:another|a different|some other) (?:process|program|
            application|session)
        (?:optimistic|pessimistic|row|table|advisory|write|file) lock(?:ing)? (?:failed|failure|
            error|conflict|exception|timeout)
        dead ?lock (?:occurred|detected|found|error|victim|happened|was)
        (?:version|revision|etag|edit|concurrent \w{1,20}|write|update|merge|concurrency|
            transaction) (?:mismatch|conflict)s?(?!\w)
        concurrent (?:modification|update|write|edit|change|access)s?(?!\w)
        """,
        on=r"""
        The record was modified by another user
        A deadlock occurred, please retry the transaction
        """,
        not_on=r"""
        the door is locked
        the schedule was changed by the weather
        """,
    ),
    _rule(
        "arguments",
        _SCHEMA,
        Cause.INVALID_ARGUMENTS,
        r"""
        missing (?:the |a )?(?:required|mandatory) (?:\w{1,20} )?(?:input|value|argument|
            parameter|field|key|data)s?(?!\w)
        lack(?:s|ed|ing)? (?:the |a |an |its )?(?:required |mandatory )?(?:field|key|property|argument|
            parameter|column|attribute)s?(?!\w)
        (?:parameter|argument|arg|field|property|attribute|keyword|option|key)s?<named>? (?:is|are|
            was|were|must be|has to be) (?:required|missing|mandatory|not provided|not given|
            not supplied|unknown|unexpected|not allowed|not supported|unsupported|invalid|not valid|
            malformed|empty|null)
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
        (?:input|arguments?|payload|body|data|parameters?) (?:(?:does|do|did)(?: not|
            n'?t)) (?:match|conform to|validate against|fit|satisfy) (?:its |the |
            their )?(?:\w{1,20} )?(?:schema|format|signature|model)
        expected (?:a |an )?<kind>(?!\w).{0,40}(?:but )?(?:got|received|found|was given)(?!\w)
        (?:has|have|is|in|with|of) (?:the |a |an )?(?:wrong|invalid|incorrect|bad|unsupported|
            unexpected) (?:date |data |time |file )?(?:format|type|data type)(?!\w)
        <field><named> (?:(?:is|are|was|value) )?(?:out of range|too (?:long|short|large|small|big|
            high|low|many|few)|not a (?:valid )?<kind>)(?!\w)
        must (?:pass|provide|specify|supply|give|set|include) (?:either|one of|at least one|both|
            exactly one|only one|a value|a valid|the (?:required )?(?:parameter|argument|
            field))(?!\w)
        """,
        on=r"""
        Parameter 'city' is required
        The field 'date' must be a string
        Tool input does not match its schema
        """,
        not_on=r"""
        the argument between the neighbours was invalid
        the field was flooded
        required reading: chapter 4
        Timeout must be positive
        """,
        quotes=True,
    ),
    _rule(
        "missing",
        FailureType.HALLUCINATED_STATE,
        Cause.MISSING_RESOURCE,
        r"""
        no (?:such )?(?:\w{1,20} )?<thing>s? (?:(?:was|were|could be|is|are) )?(?:found|exists?|
            matching|matches|matched|with (?:the |that |this )?(?:id|name|key|number)|named|
            called)(?!\w)
        (?:there is|there's|there are) no (?:such )?(?:\w{1,20} )?<thing>s? (?:named|called|with|
            matching|at|for|in)(?!\w)
        no such <thing>(?!\w)
        (?:nobody|no one|nothing) (?:called|named|by the name of)<named>? (?:is|was|could be|exists|lives|
            has)(?!\w)
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
        """,
        on=r"""
        No record with id 42 exists
        Customer with this id does not exist
        Cannot open the file missing.txt
        """,
        not_on=r"""
        the customer could not find his shoes
        no seats within 10 rows of the stage
        no such luck today
        user 500 not found
        """,
        quotes=True,
    ),
)
