"""Rules on the words of any message in words of one's own: how they are made.

Programs say the same few things in endless ways. So these rules are sentences built of classes of words
(`WORDS`): who (a server, a tool, a parameter), and what is the matter with it. A noun alone never fires,
nor does a complaint alone; both together in one short stretch do.
"""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType

from ._rule import Rule, word_rule

LOOSE = 0.6
"""The confidence of these rules: what an error was raised from, or a status in its words, may say more."""

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


def _expanded(text: str) -> str:
    for name, words in WORDS.items():
        text = text.replace(f"<{name}>", words)
    return text


def loose_rule(
    name: str,
    kind: FailureType,
    cause: Cause,
    keys: str,
    *,
    on: str,
    not_on: str,
    quotes: bool = False,
) -> Rule:
    """A rule on words, tried when no other fired.

    quotes: names in quotation marks are part of the sentence; without it they are passed over.
    """
    rule = word_rule(
        f"said_{name}",
        kind,
        cause,
        _expanded(keys),
        on=on,
        not_on=not_on,
        unquoted=not quotes,
        source="sentences of a subject and a complaint, in any order people use",
    )
    return rule._replace(confidence=LOOSE)
