"""Words for one thing that both an answer and a plain message use, one expression a line."""

from __future__ import annotations

CONTEXT = r"""
maximum (?:context|prompt) length
context length exceeded
context (?:window|length|size) (?:exceeded|overflow)
exceed(?:s|ed|ing)? (?:the |this |its )?(?:model'?s? )?(?:maximum |available )?
    context(?: window| length| size)?
prompt is too long
input is too long
input length exceeds
too many (?:input )?tokens(?!.{0,3}(?:please |per |wait|try|slow|retry))
exceeds? context limit
(?:maximum|max) context length
reduce (?:the|your) (?:length of (?:the|your) )?(?:messages|prompt|input)
tokens \+ `?max new tokens`? must be
(?:input )?token count .{0,40}exceeds
exceeds the maximum number of (?:input )?tokens
request too large for .{0,80}tokens
longer than the model'?s? (?:maximum )?context
must have (?:less|fewer) than \d{1,9} tokens
"""

QUOTA = r"""
insufficient (?:quota|balance|funds|credits?)
exceeded your (?:current|monthly) (?:quota|usage|spending)
billing (?:hard )?limit
check your plan and billing
credit (?:balance|limit)
requires? more credits
out of credits
(?:weekly|monthly|yearly|spending|spend) (?:usage )?limit
no quota left
enable billing
(?:calls|requests|messages) ?(?:/|per) ?(?:a )?month
prepaid credits
reached your (?:specified )?(?:api )?(?:usage|spend(?:ing)?|credit) limits?
run out of (?:searches|credits?|funds|quota|balance|api calls)
exceeds your plan'?s
usage limit (?:for|of) (?:your|this|the) plan
recharge your account
top up your
arrears
payment (?:is )?required
"""

RATE = r"""
rate limit(?:s|ing)?(?: has been| was| is)? (?:exceeded|reached|hit)
rate limit reached
exceeded rate limits?
exceeded a? ?(?:secondary )?(?:token )?rate limit
secondary rate limit
api rate limit
too many requests
rate ?limited
request rate is (?:too )?large
throttl(?:ed|ing)
requests per (?:minute|second|hour|day)
slow ?down
too many (?:messages|connections)
greylisted
reached your .{0,30}rate limit
toomanyrequests
per[ -]minute (?:quota|limit)
"""

CONTENT = r"""
content (?:management )?polic(?:y|ies)
content filter(?:ed|ing)?
usage polic(?:y|ies)
responsible ai
flagged (?:as|by|for)
prompt (?:was|is|has been) (?:blocked|rejected)
blocked (?:by|due to|for) .{0,30}(?:safety|guardrail|polic)
blocked input
safety (?:system|settings|filters?)
violat(?:e|es|ed|ing) .{0,30}(?:polic|guidelines)
"""

MODEL = r"""
model:? ['\"`]?[\w./: ]{1,80}['\"`]? (?:was |is |has been |could )?(?:not (?:be )?found|not exist|
    not available|decommissioned|retired)
model ['\"`]?[\w./: ]{1,80}['\"`]? does not exist
unable to access model
deployment .{0,60}does not exist
no such model
unknown model
no endpoints found for
is not a valid model(?: identifier| id| name)?
invalid model(?: name| id)?: [\w./:@ ]{1,80}
models/[\w.:@ ]{1,80} (?:is |was )?not found
model (?:identifier|id|name) is (?:invalid|not valid|unknown)
model: [\w./: ]{0,40}\d[\w./: ]{0,20}$
"""

TLS = r"""
certificate verify failed
wrong version number
self signed certificate
certificate has expired
bad certificate
tls (?:handshake|alert)
sslv3 alert
err cert \w{1,40}
err ssl \w{1,40}
unknown ca
signed by (?:an )?unknown authority
x509
host key verification failed
certificate is not (?:yet )?(?:valid|trusted)
not found in known hosts
hostname mismatch
"""

DNS = r"""
name or service not known
temporary failure in name resolution
nodename nor servname
getaddrinfo failed
could not resolve host\w{0,6}
failed to resolve
err name not resolved
name resolution
name not resolved
no address associated with hostname
errors resolving
no such host(?: is known)?
getaddrinfo (?:enotfound|eai again)
"""

CONNECTION = r"""
connection refused
connection reset
connection aborted
all connection attempts failed
connect call failed
failed to connect to \S{1,200}
client failed to connect
server closed the connection
remote end closed
peer closed connection
server disconnected
connection (?:was |has been )?(?:unexpectedly )?closed (?:unexpectedly|by)
upstream connect error
(?:connect|disconnect)/reset before headers
socket hang ?up
connection unexpectedly closed
could not connect to \w{1,100}
can'?t connect to \w{1,100}
lost connection to \w{1,100}
gone away
network is unreachable
no route to host
err (?:connection|network|internet|address) \w{1,40}
broken pipe
econnrefused
econnreset
bad status line
response ended prematurely
connection broken
transport indicated eof
connection error
invalid response to ssl negotiation
unexpected eof
connection lost
cannot connect to host
unable to connect to proxy
error reading ssh protocol banner
no existing session
socket is closed
defunct connection
(?:fail(?:ed)?|unable|could not|cannot) (?:to )?connect(?:ing)? to (?:any|all|(?:the )?(?:\w{1,20} )?
    (?:server|servers|database|broker|brokers|host|node|cluster))
^connection closed\.?$
unexpected eof while reading
eof occurred in violation of protocol
tls/ssl connection has been closed
"""

TIMEOUT = r"""
timed ?out
(?:connection|connect|read|write|request|handshake|statement|lock wait|operation|execution|query|
    script) timeout(?: (?:expired|exceeded|reached|error))?
timeout (?:expired|exceeded|reached|during|while|after|waiting)
deadline (?:expired|exceeded)
exceeded (?:the )?time limit
time ?limit exceeded
gateway time ?out
timeout of [\d.]{1,12} ?m?s exceeded
err timed out
"""
