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
reduce (?:the|your) (?:length of (?:the|your) )?(?:messages?|prompt|input)
tokens \+ `?max new tokens`? must be
(?:input )?token count .{0,40}exceeds
exceeds the maximum number of (?:input )?tokens
request too large for .{0,200}tokens
longer than the model'?s? (?:maximum )?context
longer than the (?:specified )?max(?:imum)? (?:model|sequence|context|prompt|token) length
range of input length should be
exceed(?:s|ed|ing)? (?:the )?(?:model'?s? )?max(?:imum)? (?:sequence|context|prompt|model) (?:length|size)
(?:longer|larger|more) than (?:the )?model'?s? max(?:imum)?
(?:loaded|configured|running) with (?:a )?context (?:length|size|window) of (?:only )?\d{1,9}
must have (?:less|fewer) than \d{1,9} tokens
"""

QUOTA = r"""
insufficient (?:quota|balance|funds|credits?)
exceeded your (?:current|monthly) (?:quota|usage|spending)
billing (?:hard )?limit
check your plan and billing
credit (?:balance|limit)
requires? more credits
(?<!run )(?<!ran )out of credits
(?:run|ran) out of credits
(?:weekly|monthly|yearly|spending|spend) (?:usage )?limit
no quota left
enable billing
(?:calls|requests|messages) ?(?:/|per) ?(?:a )?month
prepaid credits
credits? (?:is|are|has been|have been) (?:depleted|exhausted|used up)
(?:plan|project|account|organi[sz]ation) (?:is )?out of (?:credits?|quota|funds)
(?:usage|spend(?:ing)?) (?:cap|ceiling) (?:(?:at|for|with|of|on) .{1,40} )?(?:was |has been |
    is )?(?:exceeded|reached|hit)
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
zu viele anfragen
trop de requêtes
demasiadas (?:solicitudes|peticiones)
l[íi]mite de (?:solicitudes|peticiones|velocidad|tasa) (?:superado|excedido|alcanzado)
muitas (?:solicitações|requisições)
troppe richieste
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
(?:contains?|containing|detected) (?:potentially )?(?:inappropriate|sensitive|unsafe|harmful|prohibited|
    disallowed) content
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
no endpoints found (?:for|that|matching)
invalid model name passed
model (?=[\w./: ]{0,50}\d[\w./: ]{0,50} (?:has been|was|is) )[\w./: ]{1,80} (?:has been|was|
    is) (?:deprecated|
    decommissioned|discontinued|retired|no longer (?:available|supported|offered))
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
name oder (?:der )?dienst (?:ist )?nicht bekannt
nom ou service inconnu
nombre o servicio desconocido
nome o servizio sconosciuto
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
no connection could be made
error while fetching server api version
web ?socket (?:connection )?(?:was )?(?:closed|dropped) (?:with|before|unexpectedly|by)
\[(?:errno (?:32|10[0134]|107|108|111|112|113)|winerror (?:1005[0134]|10061|10065))\]
(?:verbindung|verbindungsaufbau) (?:\w{1,12} )?(?:verweigert|abgelehnt|zurückgesetzt|abgebrochen|
    unterbrochen)
connexion (?:refusée|perdue|interrompue|ré ?initialisée)
conexión (?:rechazada|rehusada|perdida|reinicializada)
conexão (?:recusada|perdida|fechada)
connessione (?:rifiutata|interrotta)
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
timeout (?:of )?[\d.]{1,12} ?(?:m?s|milliseconds|seconds) exceeded
\[(?:errno 110|winerror (?:121|10060))\]
zeitüberschreitung
délai (?:d'(?:attente|exécution) )?(?:.{0,40} )?(?:dépassé|expiré|écoulé)
waiter \w{1,60} failed: max attempts exceeded
tiempo de espera (?:\w{1,20} ){0,3}(?:agotado|excedido|superado)
tempo (?:limite )?(?:esgotado|excedido|scaduto)
err timed out
"""

PERMISSION = r"""
permission denied
access denied
permission to access .{1,80} denied
(?:do|does) not have (?:the )?(?:\w{1,20} )?permissions?
don'?t have (?:the )?(?:\w{1,20} )?permissions?
read ?only (?:database|transaction|file system)
unable to open database file
operation not permitted
not authorized (?:on|to|for)
insufficient (?:permissions?|privileges?|scopes?)
sender address rejected
\[(?:errno (?:1|13|30)|winerror 5)\]
keine berechtigung
zugriff verweigert
(?:accès refusé|permission non accordée)
(?:permiso|acceso) denegado
(?:permissão|acesso) negad[ao]
(?:permesso|accesso) negato
"""

UNAVAILABLE = r"""
service (?:is )?(?:temporarily |currently )?unavailable
bad gateway
internal server error
overloaded(?: error)?
server (?:is )?(?:too )?busy
too many (?:clients|users)
(?:database|server|system) (?:system )?is (?:starting up|shutting down|in recovery)
remaining connection slots
service shutting down
(?:tab|page|target) crashed
cluster ?(?:is )?down
no healthy upstream
no cluster leader
no leader (?:elected|available|for partition)
leader (?:is )?not available
not (?:the )?leader for (?:partition|this)
model is (?:currently )?loading
connection slots are reserved
too many connections
internal error encountered
(?:connection )?pool (?:is |was )?exhausted
dienst (?:ist )?(?:\w{1,20} )?nicht verfügbar
service (?:temporairement )?indisponible
servicio no disponible
"""

LOCK = r"""
(?:database|table|file|resource) (?:is|schema is) locked
deadlock (?:detected|found)
lock wait timeout
could not serialize access
could not be acquired
(?:resource|device) (?:is )?busy
is busy running
resource temporarily unavailable
is locked by another
deadlock victim
deadlocked on lock
address already in use
conflicted with another operation
(?:version|write|update) conflict
already in use
being used by another process
\[(?:errno (?:11|16|26|98)|winerror (?:32|33|10048))\]
"""

AUTH = r"""
(?:invalid|incorrect|wrong|expired|revoked) (?:api ?key|credentials|password|access token|
    auth token|bearer token|user ?name)
(?:api ?key|access key|credentials?|password) (?:has |have |is |are )?(?:been )?(?:expired|revoked)
(?:password )?authentication failed(?! to )
authenticationfailed
invalid grant
bad credentials
no pg hba\.conf entry
fatal: {1,3}role .{1,80} (?:does not exist|is not permitted)
login (?:was )?refused
login incorrect
login failed for (?:user|login)
invalidcredentials
not logged in
noauth \w{1,100}
wrongpass \w{1,100}
authentication (?:is )?required
access denied for user
incorrect (?:username|user name|login|password)(?: or password)?
username and password not accepted
token has (?:been )?(?:expired|revoked)
unauthenticated
logon (?:failure|denied)
(?:anmeldung|authentifizierung) (?:ist )?fehlgeschlagen
échec de l'authentification
autenticación (?:fallida|incorrecta)
"""

OUTPUT_CUT = r"""
finish reason['\":= ]{1,4}(?:length|max tokens)
(?:as|because) the length limit was reached
(?:cut off|cut short|truncated|stopped) .{0,30}(?:max(?:imum)? (?:output |completion )?tokens|(?:token|
    length) limit)
hit (?:the )?max(?:imum)? (?:output |completion )?tokens
(?:max|maximum|output) (?:output |completion )?tokens?(?: limit)? (?:was |were |has been |
    is )?(?:reached|hit)
(?:response|answer|completion|generation|reply|model'?s? output) (?:was |is |has been |got )?(?:cut off|
    cut short|
    truncated)(?= ?(?:$|[.,;:!(]|due|by|because|at|after|before))
"""
