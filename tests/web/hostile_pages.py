"""Texts that mean to become markup, a link, a header, a style or a template of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.hostile_texts import STEERING

from triage import Diagnosis, ErrorInfo, FailureType, Retry, Step, Usage
from triage.core import (
    ActionChosen,
    ApprovalAsked,
    ApprovalGiven,
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    CallStarted,
    Event,
    Evidence,
    RunFinished,
    RunStarted,
    RunSuspended,
    StateUpdated,
    StepRecorded,
    SubgoalsDeclared,
    WatchNoticed,
)

EVIL = "https://evil.example"
MARKUP: tuple[str, ...] = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    f"<img src={EVIL}/leak.png>",
    "<svg onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<body onload=alert(1)>",
    f"<iframe src={EVIL}></iframe>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'>",
    f"<link rel=stylesheet href={EVIL}/x.css>",
    f"<base href={EVIL}/>",
    f"<meta http-equiv=refresh content='0;url={EVIL}'>",
    f"<form action={EVIL}><button>Approve</button></form>",
    f"<object data={EVIL}></object><embed src={EVIL}>",
    "<details open ontoggle=alert(1)>x</details>",
    "<input autofocus onfocus=alert(1)>",
    "<video><source onerror=alert(1)></video>",
    "<math><mtext></mtext><script>alert(1)</script></math>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<!--><img src=x onerror=alert(1)>-->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<textarea></textarea><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</pre></code></td></tr></table><h1>Approved</h1>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "` onmouseover=alert(1) `",
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)//",
    "java\tscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:msgbox(1)",
    f"//{EVIL[8:]}/x",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
    "{{ 7 * 7 }}{{ self.__init__.__globals__ }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{# a comment #}{{ config }}",
    "${alert(1)}#{7*7}<%= 7*7 %>@{7*7}",
    "[[${7*7}]]{{constructor.constructor('alert(1)')()}}",
    f"</style><style>*{{background:url({EVIL}/x)}}</style>",
    f"color:red;background:url({EVIL}/x);position:fixed;inset:0",
    "expression(alert(1));-moz-binding:url(x)",
    "x\r\nSet-Cookie: triage=1\r\nLocation: https://evil.example",
    "../../../../etc/passwd",
    "__proto__[polluted]=1",
    "<a href=javascript:alert(1)>Approve</a>",
    "<style>@import 'https://evil.example/x.css';</style>",
    "x" * 20_000,
    "<b>" * 3_000,
    "\u202etxt.exe\u2066<script>alert(1)</script>\u2069",
    "a\u0301" * 400,
    "\U000e0001\U000e0062<img src=x onerror=alert(1)>",
)
PAYLOADS: tuple[str, ...] = (*MARKUP, *STEERING.values())


RUNS = 6


def texts_of(number: int) -> tuple[str, ...]:
    """The texts of one of the runs."""
    return PAYLOADS[number::RUNS]


def run_of(
    run_id: str, texts: Sequence[str], *, asks: bool, agent: str | None = None
) -> list[Event]:
    """A run with an attempt for each text, which is in all its fields; the last text names the run's own.

    asks: it waits for an approval; else it has failed. agent: its name; None: the last text.
    """
    events: list[Event] = []

    def add(make: Any, **fields: Any) -> None:
        events.append(make(run_id=run_id, seq=len(events), time=1.7e9 + len(events), **fields))

    text = texts[-1]
    add(
        RunStarted,
        agent=text if agent is None else agent,
        task={text: text},
        args={text: text},
        unstored=(text,),
    )
    for attempt, one in enumerate(texts, 1):
        _add_attempt(add, attempt, one)
    key = f"{text}:00:1"
    if asks:
        payload = {
            "tool": text,
            "effect": text,
            "arguments": {text: text},
            "doubt": False,
            "kind": "approval",
            "editable": [text],
        }
        add(ApprovalAsked, kind="call", subject=key, question=text, payload=payload)
        said = {"question": text, "call": key, "metadata": {text: text}}
        add(RunSuspended, attempt=len(texts), token_digest="0" * 64, **said)
    else:
        add(ApprovalGiven, kind=text, subject=text, decision=text, by=text, reason=text)
        add(RunFinished, status="escalated", result={text: text}, error=_error(text), by=text)
    return events


def _error(text: str) -> ErrorInfo:
    return ErrorInfo(text, text, (text,), text, code=text, body={text: text}, notes=(text,))


def _add_attempt(add: Any, attempt: int, text: str) -> None:
    """A failed attempt with a text in each of its fields."""
    diagnosis = Diagnosis(
        FailureType.UNKNOWN,
        cause=text,
        evidence=(Evidence(text, text, 0),),
        critical_step=0,
        user_message=text,
        technical_details=text,
        hint=text,
        suggestions=(text,),
        classifier=text,
    )
    step = Step(
        action=text,
        tool_called=text,
        tool_input={text: text},
        tool_output=[text],
        llm_output=text,
        error=text,
        exception_type=text,
        usage=Usage(1, 1, 0.1, 1, model=text),
        metadata={text: text},
    )
    call = {"attempt": attempt, "key": f"{text}:00:1"}
    add(AttemptStarted, attempt=attempt, hint=text, subgoal=text)
    add(SubgoalsDeclared, attempt=attempt, names=(text,))
    add(StepRecorded, attempt=attempt, index=0, step=step)
    add(StateUpdated, attempt=attempt, values={text: text})
    add(CallStarted, **call, tool=text, effect="once", arguments={text: text}, kind="tool")
    add(CallFinished, **call, outcome="failed", result={text: text}, error=_error(text))
    add(WatchNoticed, attempt=attempt, response="hint", rule=text, text=text, step=0)
    add(AttemptFailed, attempt=attempt, error=_error(text), diagnosis=diagnosis)
    add(ActionChosen, attempt=attempt, action=Retry(hint=text), by=text, reason=text)
