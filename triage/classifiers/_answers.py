"""Rules on what the other side answered in words: they make a general status or code exact."""

from __future__ import annotations

from functools import partial

from triage.taxonomy import Cause, FailureType

from . import _phrases
from ._rule import Rule, word_rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW
_PROVIDERS = "documented error texts of model and API providers"

_rule = partial(word_rule, looks_at="answer")

ANSWER_RULES: tuple[Rule, ...] = (
    _rule(
        "context",
        _OVERFLOW,
        Cause.CONTEXT_LENGTH,
        _phrases.CONTEXT,
        on=r"""
        This model's maximum context length is 8192 tokens, however you requested 9001 tokens
        prompt is too long: 210000 tokens > 200000 maximum
        `inputs` tokens + `max_new_tokens` must be <= 4096
        """,
        not_on=r"""
        Limit 30000, Used 29500, Requested 1200 tokens per min
        4429 tokens were used
        Invalid context type
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "disk",
        _EXTERNAL,
        Cause.RESOURCE_EXHAUSTED,
        r"""
        no space left on device
        disk (?:usage exceeded|is full|full|quota)
        requires more system memory
        more system memory .{0,40}than is available
        """,
        on=r"""
        write data.bin: no space left on device
        model requires more system memory (38 GiB) than is available (15 GiB)
        """,
        not_on=r"""
        no space in the garage
        """,
    ),
    _rule(
        "content",
        _CONSTRAINT,
        Cause.CONTENT_FILTER,
        _phrases.CONTENT,
        on=r"""
        The response was filtered due to the content management policy
        your prompt was flagged as potentially violating our usage policy
        """,
        not_on=r"""
        the policy document is missing
        Invalid content type
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "quota",
        _EXTERNAL,
        Cause.QUOTA_EXHAUSTED,
        _phrases.QUOTA,
        on=r"""
        You exceeded your current quota, please check your plan and billing details.
        Your credit balance is too low to access the API
        limited to 1000 API calls / month
        """,
        not_on=r"""
        limited to 10 API calls / minute. You can upgrade to a key with higher limits
        Rate limit reached
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "too_large",
        _SCHEMA,
        Cause.PAYLOAD_TOO_LARGE,
        r"""
        message larger than max
        message size exceeds
        payload too large
        request entity too large
        """,
        on=r"""
        Received message larger than max (5242880 vs. 4194304)
        """,
        not_on=r"""
        a larger message board
        """,
    ),
    _rule(
        "rate",
        _EXTERNAL,
        Cause.RATE_LIMITED,
        _phrases.RATE,
        on=r"""
        API rate limit exceeded for user 1.
        Exceeded rate limits: too many api requests per user per method
        Request rate is large
        """,
        not_on=r"""
        the rate is limited to members
        interest rate 5
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "key",
        _EXTERNAL,
        Cause.AUTH,
        r"""
        (?:invalid|incorrect|wrong|expired) api ?key
        api ?key (?:not valid|is invalid|has expired|expired)
        pass a valid api ?key
        invalid (?:authentication )?(?:token|credentials)
        authentication failed
        """,
        on=r"""
        API key not valid. Please pass a valid API key.
        Please pass a valid API key
        Forbidden: Invalid api-key
        """,
        not_on=r"""
        the key of the piano
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "tool",
        FailureType.WRONG_TOOL_CALLED,
        Cause.UNKNOWN_TOOL,
        r"""
        (?:function|tool) ['\"`][\w.: ]{1,80}['\"`] (?:was |is |does )?not (?:found|defined|
            available|exist|in)
        (?:function|tool) ['\"`][\w.: ]{1,80}['\"`],? which (?:was|is) not in
        no such (?:tool|command)
        unknown tool
        """,
        on=r"""
        Invalid 'tool_choice': function 'get_wheather' was not found in the 'tools' parameter.
        tool call validation failed: attempted to call tool 'look_up' which was not in request.tools
        """,
        not_on=r"""
        tool 'x' must be a string
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "model",
        _EXTERNAL,
        Cause.MODEL_MISSING,
        _phrases.MODEL,
        on=r"""
        The model `gpt-99` does not exist or you do not have access to it.
        model "llama3.2" not found, try pulling it first
        Unable to access model lab/none.
        """,
        not_on=r"""
        model_validate failed
        model: field required
        error while running the model: unexpected EOF
        the model car was sold
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "permission",
        _EXTERNAL,
        Cause.PERMISSION,
        r"""
        (?:organi[sz]ation|account|identity|business) must be verified
        (?:key|token|credential)s? (?:is|are) only (?:authori[sz]ed|valid|allowed) for
        (?:location|country|region|territory) (?:is )?not supported
        """,
        on=r"""
        Your organization must be verified to stream this model.
        This credential is only authorized for use with the command line.
        User location is not supported for the API use.
        Country, region, or territory not supported
        """,
        not_on=r"""
        the address of the organization must be given
        the key is only the first part
        the encoding is not supported
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "overloaded",
        _EXTERNAL,
        Cause.OVERLOADED,
        r"""
        overloaded
        at capacity
        high (?:traffic|demand)
        server busy
        """,
        on=r"""
        That model is currently overloaded with other requests.
        """,
        not_on=r"""
        the overload protection
        """,
        source=_PROVIDERS,
    ),
    _rule(
        "not_http",
        _EXTERNAL,
        Cause.CONNECTION,
        r"""
        bad status line
        """,
        on=r"""
        400, message: Bad status line
        """,
        not_on=r"""
        status line of the form
        """,
    ),
)
