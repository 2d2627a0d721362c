"""What the other side answered, in any words: settings, names, money, rates and rights."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType

from ._loose import loose_rule as _rule
from ._rule import Rule

_EXTERNAL = FailureType.EXTERNAL_FAULT

LOOSE_WORLD: tuple[Rule, ...] = (
    _rule(
        "config",
        _EXTERNAL,
        Cause.MISSING_CONFIG,
        r"""
        (?:environment|env)(?: variable)?s?<id> (?:is|are|was|were|must be|has|have) (?:not |
            n'?t )?(?:been )?(?:set|defined|found|missing|empty|required|unset)
        (?:no|missing|without|provide (?:a|an|your)|specify (?:a|an|your)|supply (?:a|an|
            your)) (?:valid )?(?:api ?key|api ?token|access ?token|auth ?token|credentials?|
            configuration|connection string|environment variable|env var)
        (?:api ?key|api ?token|credentials?|credentials file|config(?:uration)?(?: file)?|
            connection string|region|setting)\ <isnt> (?:found|set|configured|provided|given|
            supplied|specified|defined|present)
        (?:must|need to|please|have to) (?:first )?(?:set|configure|export|define) (?:the |a |an |
            your )?(?:\w{1,40} ){0,2}(?:region|variable|api ?key|credentials|environment|endpoint|
            token)
        <isnt> configured(?: yet| properly| correctly)?(?= ?(?:$|[.,;:!]|for))
        """,
        on=r"""
        Environment variable LAB_KEY is not set
        No API key provided
        The connection string was not provided
        """,
        not_on=r"""
        the key is missing from the piano
        the table is set
        """,
        quotes=True,
    ),
    _rule(
        "tls",
        _EXTERNAL,
        Cause.TLS,
        r"""
        (?:ssl|tls|https) (?:(?:handshake|certificate|cert|negotiation|verification|
            connection) ){0,2}(?:error|fail(?:ed|s|ure)|problem|alert|expired|rejected|invalid|
            mismatch)(?!\w)
        (?:invalid|expired|untrusted|bad|unverified|unknown) (?:ssl|tls|https|x509) (?:cert|
            certificate)(?!\w)
        certificate(?: \w{1,12}){0,4} (?:could not be verified|cannot be verified|
            can'?t be verified|is not trusted|untrusted|self signed|does not match|doesn'?t match|
            mismatch|verification|chain|is invalid|invalid)
        (?:verify|validate|trust) (?:the |its )?(?:server'?s? |host'?s? |peer'?s? |
            remote )?certificate
        """,
        on=r"""
        SSL certificate problem: unable to get local issuer certificate
        The server's certificate could not be verified
        """,
        not_on=r"""
        certificate of attendance was not printed
        """,
    ),
    _rule(
        "dns",
        _EXTERNAL,
        Cause.DNS,
        r"""
        no dns (?:record|entry|answer|server)
        dns .{0,30}(?:fail(?:ed|ure|s)|error|not found|timed out|nxdomain)
        (?:host ?name|domain(?: name)?|host|address)<id>? (?:<cantbe> (?:resolved|looked up|
            found in dns)|(?:does not|doesn'?t) resolve)
        <cant> (?:resolve|look ?up) (?:the )?(?:host|domain|dns|address|ip|server)(?: ?name)?
        (?:unknown|no such) host(?: ?name)?(?= ?(?:$|[.,;:!(\[]|\w{1,60}\.))
        enotfound|eai again|nxdomain
        """,
        on=r"""
        DNS lookup failed for files.lab
        Unknown host: files.lab
        Host name could not be resolved
        """,
        not_on=r"""
        the host could not resolve the dispute
        an unknown host opened the door
        """,
    ),
    _rule(
        "quota",
        _EXTERNAL,
        Cause.QUOTA_EXHAUSTED,
        r"""
        (?:used(?: up)?|consumed|exhausted|spent|run out of|ran out of|(?<!run )(?<!ran )out of|
            exceeded) (?:all )?(?:of )?(?:your|the|its|their|our)?(?: ?(?:free|monthly|daily|weekly|
            yearly|annual|remaining|available|included|allotted|prepaid|api|usage)){0,3} ?(?:quota|
            credits?|allowance|allotment|api calls|free calls|tokens for this (?:month|day|
            week))(?!\w)
        (?:account|credit|wallet|prepaid|remaining) ?balance (?:<did>)(?:too low|not enough|
            not sufficient|insufficient|exhausted|used up|depleted|negative|empty|gone|spent|zero|0)
        (?:credits?|quota|allowance|api calls) (?:for .{0,30} )?(?:<did>)(?:too low|not enough|
            not sufficient|insufficient|exhausted|used up|depleted|empty|gone|spent|all used)
        (?:not|n'?t) (?:have )?(?:enough|sufficient|any)(?: remaining)? (?:credits?|balance|quota|
            funds)
        (?:no|zero|0) (?:more |remaining )?(?:credits?|quota|api calls|balance)(?: (?:left|
            remaining|available))?(?!\w)
        (?:plan|tier|free tier|subscription|trial|billing|usage|spending|spend|monthly|daily|
            account) (?:usage |spending |spend )?(?:limits?|cap|quota|allowance|period|
            budget) (?:for .{0,30} )?(?:<did>)(?:exceeded|reached|hit|used up|exhausted|over|
            expired|ended)
        (?:upgrade|renew) (?:to continue|(?:your|to a|the|to another|to an) (?:\w{1,20} )?(?:plan|
            subscription|tier|account))
        (?:subscription|trial|license|licence|plan|free period) (?:<did>)(?:expired|ended|lapsed|
            inactive|suspended|cancelled|canceled|over)
        unpaid (?:invoices?|bills?|balance)
        (?:buy|purchase|add|need) (?:more|additional|extra) (?:credits?|quota)
        (?:billing|payment) (?:<did>)(?:not (?:enabled|set up|active|configured)|disabled|overdue|
            past due|inactive|failed|required|declined)
        """,
        on=r"""
        You have used all of your monthly API calls
        Account balance is too low to process this request
        The free tier limit has been reached, please upgrade your plan
        """,
        not_on=r"""
        credits roll after the film
        balance of the scale is off
        our plan for the garden was not approved
        """,
    ),
    _rule(
        "rate",
        _EXTERNAL,
        Cause.RATE_LIMITED,
        r"""
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
        rate limit(?:er|ed|ing)?(?= ?(?:$|[.,;:!]))
        limit of \d{1,9} <call>
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
        """,
        on=r"""
        API call rate exceeded for this key
        Limit of 60 requests/min reached
        Maximum request rate exceeded, retry later
        """,
        not_on=r"""
        the speed limit of 60 was reached by the car
        call limit: 3 calls per customer
        too many eggs in one basket
        """,
    ),
    _rule(
        "auth",
        _EXTERNAL,
        Cause.AUTH,
        r"""
        <key> (?:you (?:\w{1,12} )?(?:provided|supplied|sent|used|entered|gave) |
            included in .{0,20} |for .{0,30} )?(?:<did>)(?:not (?:valid|correct|accepted|
            recogni[sz]ed)|n'?t (?:valid|correct|accepted)|invalid|incorrect|wrong|expired|revoked|
            rejected|refused|missing or \w{1,12}|disabled|deactivated|
            deleted|suspended|not active|inactive|no longer valid|unknown|does not match|
            doesn'?t match|did not match|has expired|was not accepted)(?!\w)
        (?:token|session|cookie|log ?in|access|ticket granting ticket) (?:has |is |was |have |
            had )?(?:expired|revoked|no longer valid|timed out and)(?!\w)
        (?:invalid|incorrect|wrong|bad|expired|revoked|rejected|unknown|unrecogni[sz]ed|
            stale) <key>(?!\w)
        signature (?:(?:does|did) (?:not|n'?t)|doesn'?t|
            didn'?t) match (?:the )?(?:\w{1,20} ){0,2}(?:key|secret|request|signature|expected)
        <cant> (?:authenticate|log ?in|sign ?in|log on|verify (?:your |the )?(?:identity|
            credentials|token|signature))d?
        <cant> (?:verify|validate|confirm|check) (?:your |the |this )?(?:<key>|identity)
        tokens? (?:<did>)(?:rejected|revoked|expired|refused|no longer accepted)(?!\w)
        (?:account|organi[sz]ation|workspace|tenant) (?:<did>)(?:suspended|deactivated|disabled|
            blocked|frozen|locked|banned)(?!\w)
        (?:log|sign) ?in to (?:continue|proceed|access|use|your)(?!\w)
        <isnt> (?:authenticated|logged in|signed in)
        (?:log ?in|sign ?in|log ?on|authentication|re ?authentication) (?:is )?(?:required|needed|
            necessary|failed|failure|error|unsuccessful|rejected|denied)(?!to )(?= ?(?:$|[.,;:!(]|
            for|with|because|by|as|due))
        (?:please|must|need to|have to) (?:first )?(?:log|sign) ?in(?: again| first)?(?!\w)
        (?:please|must|need to|have to) (?:re ?)?authenticate
        unauthori[sz]ed(?: (?:request|access|client|user|call))?(?= ?(?:$|[.,;:!(]|to|for))
        """,
        on=r"""
        The provided API token is not valid
        Could not authenticate with the supplied credentials
        Session expired, please log in again
        """,
        not_on=r"""
        the lecture on authentication failed to impress
        the key did not fit the lock
        the password field is empty
        """,
    ),
    _rule(
        "permission",
        _EXTERNAL,
        Cause.PERMISSION,
        r"""
        (?:not|n'?t) (?:allowed|permitted|authori[sz]ed|entitled|privileged) (?:to|for) (?:you |
            perform|access|do|read|write|delete|edit|view|see|create|update|modify|change|use|call|
            run|execute|list|open|make|send|this|that|these|the (?:resource|action|operation|
            project|file|folder))
        (?:lack(?:s|ed|ing)?|missing|insufficient|inadequate|not enough|without|no|need(?:s|ed)?|
            requires?|required) .{0,30}(?:permissions?|privileges?|scopes?|access rights|
            admin(?:istrator)? rights|rights to|required role|necessary role|role:)(?!\w)(?! denied)
        (?:permission|access|authori[sz]ation)(?: (?!not |never )\w{1,20}){0,6} (?:<did>)(?:denied|
            forbidden|refused|restricted|not granted|rejected|blocked)(?!\w)
        (?:does|do|did)(?: not|n'?t) (?:have|grant|permit|allow|
            include) (?:\w{1,20} ){0,3}(?:access|rights?|permissions?|privileges?|editing|deleting|
            writing|reading|deletion|scope|role)(?!\w)
        only (?:\w{1,20} )?(?:admin(?:istrator)?s?|owners?|superusers?|moderators?|editors?) (?:can|
            may|are)(?!\w)
        (?:requires?|reserved for|restricted to|limited to) (?:\w{1,20} )?(?:admin(?:istrator)?s?|owners?|
            superusers?|moderators?|editors?)(?!\w)
        (?:scope|permission|role|privilege)s? (?:'?[\w.:/]{1,60}'? )?(?:is |are |was |
            were )?(?:required|missing|needed|insufficient)(?!\w)
        """,
        on=r"""
        You are not allowed to perform this action
        The user lacks the required role
        Account does not have access to this project
        """,
        not_on=r"""
        the customer is not allowed to smoke
        permission slip for minors required: no
        there is no right way
        """,
    ),
)
