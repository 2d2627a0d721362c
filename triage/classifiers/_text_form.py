"""Rules on the words of any message: data, queries and arguments without the agreed form."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType

from ._rule import Rule
from ._rule import word_rule as _rule

_SCHEMA = FailureType.SCHEMA_MISMATCH

FORM_TEXTS: tuple[Rule, ...] = (
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
        instead of (?:the |a |an )?(?:\w{1,20} ){0,2}(?:tool call|function call|json|structured output)
        invalid (?:tool|function) call
        (?:expecting value|extra data|expecting .{1,40} delimiter|expecting property name .{0,40}|
            unterminated string .{0,20}|invalid control character .{0,6}|
            invalid .{1,3}escape): line \d{1,9} column
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
        incorrect syntax near
        not a valid (?:css |xpath )?selector
        strict mode violation
        has \d{1,6} columns? but \d{1,6} values? (?:were|was) supplied
        invalid syntax
        cannot query field .{1,80} on type
        unknown argument .{1,80} on (?:field|directive)
        variable .{1,80} of (?:required |non null )?type .{1,80} was not provided
        variable .{1,80} got invalid value
        must have a (?:selection of subfields|sub ?selection)
        field .{1,60} not found (?:in|on) type
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
        violation of (?:primary|unique|foreign) key constraint
        (?:unique|check|integrity) constraint .{1,80} violated
        cannot insert (?:the value )?null
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
        unconverted data remains
        (?:string or binary )?data would be truncated
        (?:value|data) too long for (?:type|column)
        conversion failed when converting
        invalid input syntax for (?:type )?\w{1,20}
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
