"""An order to the agent in a tool's result, which its next calls carry out.

Pages about agents, prompts in code and echoed searches hold such words as well. So an order alone shows
nothing: a call soon after it must have values that stand in the order and nowhere before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triage.core.patterns import Pattern
from triage.core.quoting import said_by
from triage.core.steps import Step
from triage.core.taxonomy import Effect, infer_effect

from .finding import INJECTED, Finding
from .results import RECORDS, text_in, text_of

_SOON = 8
"""Calls after an order in which it may be carried out."""
_LEAST_WORDS = 2
_MOST_ORDER = 400
_MOST_TEXT = 4_000
_SAME = 60
"""Characters by which an order is known again in a later result."""
_STEM = 6

_READER = (
    r"(?:ais?|llms?|chat ?bots?|(?:language |ai )models?|(?:ai |virtual )?assistants?|ai agents?|"
    r"automat(?:ed|ic) \w{3,12}|(?:programs?|software|models?|agents?|bots?) "
    r"(?=(?:that |which |who )?(?:reads?|reading|process\w{0,3})\b))"
)
_ORDER = Pattern(
    r"[\[<({*#]{1,3}\s?(?:system|assistants?|admin(?:istrator)?|developer|supervisor|orchestrator)"
    r"[ _-]{1,2}(?:update|notice|message|note|override|alert|prompt|instructions?|directive|command|"
    r"order|task)\s?[\]>)}:*#]"
    r"|\b(?:ignore|disregard|forget|override) (?:\w{1,12} ){0,3}(?:previous|prior|above|earlier|"
    r"preceding|original) (?:\w{1,12} ){0,2}(?:instructions?|prompts?|directions?|guidelines|goals?|"
    r"objectives?|orders?)\b"
    r"|\byour (?:new |only |real |next )?(?:assignment|task|goal|job|mission|objective) "
    r"(?:is now|has changed)\b|\bfrom now on you\b|\byou are now\b"
    r"|\b(?:note|notice|message|memo|instructions?|attention|reminder) (?:to|for) "
    rf"(?:the |any |all |every )?{_READER}\b"
    rf"|\b(?:to|for) (?:the|any|all|every|whichever) {_READER} ?(?:that|who|\w{{3,12}}ing|picks?)\b",
    re.IGNORECASE,
)
"""How a text gives the program that reads it another task."""
_DUTY = Pattern(
    rf"\b{_READER}[^.!?\n]{{0,80}}"
    r"\b(?:must|shall|has to|have to|needs? to|(?:is|are) (?:to|required|asked))\b",
    re.IGNORECASE,
)
"""How it gives it a duty. Articles about models say so too, so only a change carries it out."""
_TOKEN = Pattern(r"[\w.+-]+@[\w.-]+\w|\w[\w-]*[\d_][\w-]*|[^\W\d_]{4,}")
"""An address, an id or a number, or a word."""
_HARD = Pattern(r"[\d@_]")
_SHELLS = Pattern(r"(?i:bash|shell|terminal|exec|command|python|code|repl|git)")


def carried_out(steps: Sequence[Step], task: Any) -> Finding | None:
    """Find the first order in a result that a call soon after it carries out."""
    known = _tokens(text_in(task))
    order, found, only_changes, left = "", None, False, 0
    for at, step in enumerate(steps):
        tool = step.tool_called
        if tool is None:
            known |= set() if found else _tokens(step.llm_output or "")
            continue
        reads = infer_effect(tool) is Effect.READ
        may_follow = found is not None and left > 0 and not (reads and only_changes)
        if may_follow and _follows(step, order, known, reads=reads):
            return found
        left -= 1
        result = text_of(step.tool_output) or ""
        if found is None and not _shows_files(tool):
            for pattern in (_ORDER, _DUTY):
                order = order or _order_in(result, pattern)
                only_changes = pattern is _DUTY
                if order:
                    said = f"the result says {said_by(order)}"
                    found = Finding(INJECTED, said, at, tool)
                    break
        if order and order[:_SAME] in result:
            left = _SOON
            result = result.partition(order[:_SAME])[0]
        known |= _tokens(f"{tool} {text_in(step.tool_input)} {result}")
    return None


def _order_in(result: str, pattern: Pattern) -> str:
    """The order of a result; empty if there is none, or only in a quotation."""
    hit = pattern.search(result[:_MOST_TEXT])
    if hit is None:
        return ""
    before = result[: hit.start()]
    is_data = result[:1] in ("{", "[")
    if before[-1:] in ("'", '"', "`", "\u201c", "\u2018") and not is_data:
        return ""
    return "" if before.count('"') % 2 and not is_data else result[hit.start() :][:_MOST_ORDER]


def _shows_files(tool: str) -> bool:
    """Whether a tool shows what was written down: a repository's own notes may speak to agents."""
    return RECORDS.search(tool) is not None or _SHELLS.search(tool) is not None


def _follows(step: Step, order: str, known: set[str], *, reads: bool) -> bool:
    """Whether a call has values that the order has, and nothing before it."""
    ordered = _tokens(order) - known
    for text in _texts(step.tool_input):
        tokens = _tokens(text)
        new = tokens & ordered
        if len(new) >= _LEAST_WORDS and 2 * len(new) >= len(tokens):
            return True
        if not reads and any(map(_HARD.search, new)):
            return True
    return False


def _tokens(text: str) -> set[str]:
    found = _TOKEN.findall(text[:_MOST_TEXT].lower())
    return {token if _HARD.search(token) else token[:_STEM] for token in found}


def _texts(value: Any) -> Iterator[str]:
    """The texts and numbers of a call's arguments."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item
        elif item is not None and not isinstance(item, bool):
            yield str(item)[:_MOST_TEXT]
