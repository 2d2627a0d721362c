"""What the last answer of an attempt says of the attempt: used up, refused, left open, or done and was not.

Only what an agent says of itself in plain words counts. What it reports of others, quotes or supposes
is an answer like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from triage.classifiers._claims import Deeds, claims_in, is_quoted
from triage.classifiers._shown import said_by
from triage.steps import Step

from ._failure import failure_of, text_of
from ._finding import CLAIMED, LEFT_OPEN, REFUSAL, STOPPED, Finding
from ._unfinished import ended, left_over, sentence_start

_MAX_TEXT = 8_000
_SHORT = 240


def last_words(steps: Sequence[Step], start: int = 0, tools: Iterable[str] = ()) -> Finding | None:
    """What the last step says, if it is words; None where they say nothing against the attempt.

    start: position of the first of these steps in the attempt. tools: those that exist, if that is known.
    """
    last = steps[-1]
    found = ended(last, start + len(steps) - 1)
    if found is not None:
        return found
    if last.tool_called is not None or last.tool_output is not None or not last.llm_output:
        return None
    text, at = last.llm_output[:_MAX_TEXT].strip().replace("\u2019", "'"), start + len(steps) - 1
    if len(text) <= _SHORT:
        if _stopped().fullmatch(text):
            return Finding(STOPPED, f"the last answer is {said_by(text)}", at)
        if _refusal().fullmatch(text) or _refused_elsewhere().fullmatch(text):
            return Finding(REFUSAL, f"the last answer is {said_by(text)}", at)
    said = _left_open(text, steps)
    if said is not None:
        return Finding(LEFT_OPEN, f"the last answer says {said_by(said)}", at)
    return _claimed(text, steps, at, tools) or left_over(text, steps, at)


# --- used up, refused ----------------------------------------------------------------------


@cache
def _stopped() -> re.Pattern[str]:
    limit = (
        r"(?:(?:the |its |my )?(?:max(?:imum)?|allowed|limit)\b[^.\n]{0,24}\b(?:iteration|step|turn|round|"
        r"tool call)s?|(?:the |its |my )?(?:iteration|step|turn|time|recursion)s? limit)"
    )
    return re.compile(
        rf"(?:(?:the )?(?:agent|run|execution)(?: was| has)? |i(?: have|'ve| was)? )?"
        rf"(?:stopped|halted|terminated|ended) (?:due to|because of|on|after|at|by) {limit}\b[^\n]{{0,60}}"
        rf"|(?:(?:the )?agent(?: has)? |i(?: have|'ve)? )?(?:reached|hit|exceeded|used up) {limit}"
        r"[^\n]{0,60}"
        r"|max(?:imum)?(?: number of)? (?:iterations|steps|turns|rounds|tool calls)(?: \(?\d{1,6}\)?)? "
        r"(?:was |were |has been |have been )?(?:reached|exceeded|used up)[^\n]{0,60}"
        r"|sorry, (?:i )?need more steps to process this request\.?",
        re.IGNORECASE,
    )


@cache
def _refusal() -> re.Pattern[str]:
    cannot = r"(?:can't|cannot|can not|won't|will not|(?:am|'m) (?:unable|not able) to)"
    verb = r"(?:help|assist|comply|engage|fulfil+)"
    return re.compile(
        r"(?:(?:i'm|i am) (?:very |really |so )?sorry|sorry|i apologi[sz]e|my apologies|unfortunately)?"
        rf"[,.;:]? ?(?:but )?i ?{cannot} {verb}(?: you)?(?: (?:with|on|in|to))?"
        r"(?: (?:that|this|it|your|the))?(?: (?:request|question|topic|task|kind of request|type of "
        r"request|content|information))?(?: at this time| right now)?[.!]?",
        re.IGNORECASE,
    )


@cache
def _refused_elsewhere() -> re.Pattern[str]:
    """The same in other languages."""
    return re.compile(
        r"(?:(?:es )?tut mir (?:sehr )?leid|entschuldigung|leider)?,? ?(?:aber )?(?:(?:dabei|damit|"
        r"hierbei|bei "
        r"(?:dieser|ihrer|deiner) (?:anfrage|bitte)) )?(?:kann|darf) ich (?:ihnen |dir )?(?:(?:dabei|"
        r"damit|hierbei) )?"
        r"(?:leider )?nicht (?:weiter)?helfen[.!]?"
        r"|(?:je suis |(?:toutes )?mes )?(?:désolée?|excuses)?,? ?(?:mais )?je ne peux pas (?:vous |"
        r"t['\u2019])?aider"
        r"(?: (?:avec|pour|sur|dans|à) (?:cela|ça|cette (?:demande|requête)|ce sujet))?[.!]?"
        r"|(?:lo siento|disculpe|perdón)?,? ?(?:pero )?no puedo (?:ayudar|asistir)(?:te|le|"
        r"lo)?(?: con (?:eso|esto|"
        r"(?:esa|esta|su|tu) (?:solicitud|petición|consulta)))?[.!]?"
        r"|(?:desculpe|sinto muito|lamento)?,? ?(?:mas )?não posso (?:te |lhe )?ajudar(?: com (?:isso|"
        r"este pedido|essa "
        r"solicitação))?[.!]?"
        "|(?:\u975e\u5e38|\u5f88|\u5341\u5206)?(?:\u62b1\u6b49|\u5bf9\u4e0d\u8d77)[,\uff0c\u3002]?"
        "\u6211(?:\u65e0\u6cd5|\u4e0d\u80fd|\u6ca1\u529e\u6cd5)(?:\u534f\u52a9|\u5e2e\u52a9|\u56de\u7b54|\u6ee1\u8db3|\u63d0\u4f9b)"
        "(?:\u60a8|\u4f60)?(?:\u7684|\u8fd9\u4e2a|\u8be5|\u6b64)?(?:\u8bf7\u6c42|\u95ee\u9898|\u8981\u6c42|\u5e2e\u52a9)?[.\u3002\uff01]?"
        "|(?:\u7533\u3057\u8a33(?:\u3042\u308a\u307e\u305b\u3093|\u3054\u3056\u3044\u307e\u305b\u3093)\u304c?|\u3059\u307f\u307e\u305b\u3093\u304c?)"
        "[\u3001\u3002]?(?:\u305d\u306e|\u3053\u306e|\u3054)?(?:\u30ea\u30af\u30a8\u30b9\u30c8|\u8981\u6c42|\u8cea\u554f|\u4f9d\u983c)?"
        "(?:\u306b\u306f?|\u3092|\u306f)?(?:\u304a\u624b\u4f1d\u3044|\u5bfe\u5fdc|\u304a\u5fdc\u3048|\u304a\u7b54\u3048)"
        "(?:\u3059\u308b\u3053\u3068(?:\u306f|\u304c)|\u306f)?(?:\u3067\u304d\u307e\u305b\u3093|\u3067\u304d\u304b\u306d\u307e\u3059)\u3002?",
        re.IGNORECASE,
    )


# --- left open -----------------------------------------------------------------------------


@cache
def _gave_up() -> re.Pattern[str]:
    """Words in which an agent says that it has not done all of the task."""
    whole = r"(?:the|this|your|my)(?: \w{1,16})? (?:task|job|work|assignment)\b"
    rest = r"(?:the )?(?:rest|remaining|remainder|last \w{1,12} \w{1,16}|other \w{1,16})\b"
    return re.compile(
        r"\bi (?:(?:was|am|have been) (?:not able|unable) to|could(?:n't| not)|did(?:n't| not)|"
        rf"have(?:n't| not)(?: been able to)?) (?:fully )?(?:complete|completed|finish|finished) "
        rf"(?:{whole}|{rest})"
        r"|\bi(?: have|'ve)? (?:ran|run) out of (?:steps|turns|tokens|context|iterations|tool calls)\b"
        r"|\bi(?:'ve| have)? (?:left|leave|am leaving|'m leaving) (?:the (?:rest|remaining|others?)|it|"
        r"this|them)\b[^.\n]{0,40}\b(?:as an exercise|unimplemented|undone|unfinished|for later|todos?)\b",
        re.IGNORECASE,
    )


_REPORT = re.compile(
    r"\A\W{0,4}(?:done|finished|completed)\b[^\n:]{0,40}[.!]"
    r"|\bi(?: have|'ve) (?:done|completed|finished|processed|migrated)\b",
    re.IGNORECASE,
)
_PUT_OFF = re.compile(
    r"\bi(?:'ll| will| am going to) (?:continue|go on|proceed|finish|complete|do|handle|process|address)"
    r"\b[^.\n]{0,80}\b(?:later|next time|in (?:the|a) (?:next|later|follow-up) \w{1,12})\b",
    re.IGNORECASE,
)
_NOT_DONE = re.compile(
    r"\b(?:remaining|outstanding|unfinished|still open|left)\b[^.:\n]{0,20}:[^.\n]{0,120}"
    r"\b(?:not|never)(?: been| yet| fully){0,2} (?:completed|done|finished|started|processed|executed)\b",
    re.IGNORECASE,
)
_BOX = re.compile(
    r"^\s{0,8}(?:[-*+]|\d{1,3}\.) \[(?P<mark>[ xX])\] (?P<item>[^\n]{1,200})", re.MULTILINE
)
_LETTER = re.compile(
    r"\A\W{0,4}(?:dear|hi|hello|subject:)|\b(?:regards|sincerely|yours)\b", re.IGNORECASE
)
"""What is written for somebody else to send."""
_STATE = re.compile(
    r"\b(?:open|pending|to-?dos?|not started|in progress|unfinished|incomplete|remaining|outstanding|"
    r"overdue)\b|\[ \]",
    re.IGNORECASE,
)
"""What a tool answers, or is asked for, where the state of some work is looked up."""
_SUPPOSED = re.compile(r"\b(?:if|when|unless|in case|whether|would)\b", re.IGNORECASE)


_OF_WORK = (
    "complete", "finish", "done", "processed", "migrated", "out of", "left", "leav", "i'll", "i will",
    "going to",
)  # fmt: skip
"""One of these stands in every text that the patterns above find."""


def _left_open(text: str, steps: Sequence[Step]) -> str | None:
    """The words by which an answer leaves parts of its task open."""
    low = text.lower()
    # Most answers have none of these words, and a word is found sooner than a pattern.
    if not any(word in low for word in _OF_WORK) or _LETTER.search(text) is not None:
        return None
    for hit in _gave_up().finditer(text):
        begun = sentence_start(text, hit.start())
        before = text[begun : hit.end()]
        if not is_quoted(before) and not _SUPPOSED.search(before):
            return text[begun : hit.end() + 80].strip()
    put_off = _PUT_OFF.search(text) is not None
    if not (put_off or _REPORT.search(text)) or any(_asks_of_work(step) for step in steps):
        return None
    # In an audit an empty box is a finding; here its own work is put off.
    boxes = list(_BOX.finditer(text)) if put_off else []
    unticked = [box["item"].strip() for box in boxes if box["mark"] == " "]
    if 0 < len(unticked) < len(boxes):
        return f"that {len(unticked)} of {len(boxes)} parts are open, first {unticked[0]!r}"
    left = _NOT_DONE.search(text)
    return left[0] if left is not None and not is_quoted(text[: left.start()]) else None


def _asks_of_work(step: Step) -> bool:
    """Whether a call looks up the state of some work: what is open there is the answer."""
    if step.tool_called is None:
        return False
    told = (step.tool_called, step.tool_input, step.tool_output)
    texts = ((text_of(value) or "").replace("_", " ") for value in told)
    return any(_STATE.search(text) is not None for text in texts)


# --- done, and was not ---------------------------------------------------------------------


def _claimed(text: str, steps: Sequence[Step], at: int, tools: Iterable[str]) -> Finding | None:
    """A claim of what only a call that failed should have done, where that call was the last step.

    Or of what only a tool could have done that exists and was never called.
    """
    call = steps[-2] if len(steps) > 1 else None
    failed = None if call is None or call.tool_called is None else failure_of(call)
    if failed is not None and _ALREADY.search(failed.text[:_SHORT]):
        return None
    names = frozenset(tools)
    if failed is None and not names:
        return None
    deeds = Deeds()
    for step in steps:
        if step.tool_called is not None:
            deeds.add(
                step.tool_called,
                step.tool_input,
                step.tool_output,
                failed=failure_of(step) is not None,
            )
    if call is None or call.tool_called is None or failed is None:
        heard = (step.llm_output or "" for step in steps[:-1] if step.tool_called is None)
        undone = deeds.never_called(claims_in(text), names, "\n".join(heard))
        if undone is None:
            return None
        said = f"the last answer says {said_by(undone[0])}, and {undone[1]!r} was never called"
        return Finding(CLAIMED, said, at, undone[1])
    claims = deeds.failed(claims_in(text), call.tool_called, call.tool_input)
    if not claims:
        return None
    tool = call.tool_called
    said = f"the last answer says {said_by(claims[0])}, and {tool!r} had failed: {said_by(failed.text)}"
    return Finding(CLAIMED, said, at, tool)


_ALREADY = re.compile(
    r"\balready\b(?! (?:taken|in use|full|sold|occupied|assigned to))|\bexists\b", re.IGNORECASE
)
"""What a call says that failed for what it should do having been done before."""
