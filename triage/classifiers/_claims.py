"""Claims of an action: "I have sent the email", "your refund has been issued"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

_MAX_ARGUMENTS = 20_000
_MAX_CLAIM = 200
_MAX_CLAIMS = 50

# What an agent says it did, and the stems of tools that do it. A stem fits at the beginning of any word
# in the name of a tool, in its arguments or in what it answered.
_DEEDS: dict[str, tuple[str, ...]] = {
    deed: tuple(stems.split())
    for deed, stems in {
        "sent": "send sent mail messag notif sms slack "
        "post deliver dispatch reply forward request invite transfer",
        "emailed": "send sent mail messag notif",
        "forwarded": "forward send sent mail transfer escalat",
        "notified": "notif send sent mail messag alert call slack page",
        "booked": "book reserv purchas order schedul creat buy appointment",
        "reserved": "reserv book hold creat",
        "scheduled": "schedul creat book add calendar event meeting insert remind plan",
        "rescheduled": "schedul updat modif chang mov calendar",
        "cancelled": "cancel delet remov terminat void updat status unsubscrib",
        "refunded": "refund return cancel credit pay reimburs exchang",
        "issued": "issu refund certificate credit creat send sent gener pay cancel return grant",
        "purchased": "purchas buy order book pay checkout creat plac",
        "ordered": "order purchas buy plac creat checkout",
        "paid": "pay paid charg transfer settl bill checkout",
        "charged": "charg pay paid bill debit book order updat modif",
        "transferred": "transfer send mov forward pay escalat handoff wire",
        "deleted": "delet remov drop clear clean rm purge unlink truncat cancel destroy",
        "uploaded": "upload put push post creat writ sav send s3 stor",
        "published": "publish post deploy releas push creat upload",
        "deployed": "deploy releas publish rollout push kubectl "
        "apply helm launch pipeline trigger ship",
        "restarted": "restart reboot start reset relaunch cycle systemctl",
        "submitted": "submit send sent post creat fil request apply ticket order",
        "filed": "fil creat submit open ticket report issue",
        "escalated": "escalat transfer forward assign ticket human notif priorit",
        "merged": "merg git pull",
        "renewed": "renew extend updat subscri",
        "unsubscribed": "unsubscri remov delet updat cancel opt",
        "revoked": "revok remov delet disabl updat deactiv permission",
        "pushed": "push",
        "committed": "commit",
        "called": "call phone dial contact ring",
        "contacted": "contact call mail messag send sent notif phone",
    }.items()
}
_NOUNS = {
    "refund": "refunded",
    "cancellation": "cancelled",
    "booking": "booked",
    "reservation": "reserved",
    "payment": "paid",
    "transfer": "transferred",
    "purchase": "purchased",
}
_SPELLINGS = {"canceled": "cancelled", "e-mailed": "emailed"}

# Tools that may do anything: with one of them, no claim is without a deed.
_ANYTHING = re.compile(
    r"(?:^|[\W_])(?:python|bash|shell|sh|exec|execute|run|code|terminal|computer|browser|http|curl|"
    r"fetch|api|sql|query|db|eval|script|command|cmd|powershell|repl|interpreter|invoke|agent|"
    r"delegate|handoff|task|workflow|playwright|selenium|click|mcp|rpc|requests?|graphql)(?:$|[\W_])"
)
# Tools that only look: what they answer shows what others did.
_LOOKS = re.compile(
    r"(?:get|list|search|lookup|look|fetch|read|view|show|describe|count|retrieve|load)(?:_|$)"
)
_NOT_REALLY = re.compile(
    r"\b(?:if|when|whenever|once|unless|until|after|before|would|could|should|might|may|can|cannot|"
    r"will|going to|not|never|no|nothing|n't|failed|unable|whether|assuming|suppose|in case|had|as "
    r"soon as|please|ensure|make sure|check|confirm|verify|unfortunately|example|e\.g\.)\b|n['\u2019]t\b"
)


class Claim(NamedTuple):
    """A claim in an answer. deed: the verb, a key of the deeds. own: said in the first person."""

    text: str
    deed: str
    own: bool


@cache
def _pattern() -> re.Pattern[str]:
    verbs = "|".join([*_DEEDS, *_SPELLINGS])
    adverbs = r"(?:(?:now|just|already|also|successfully|officially|then|since) ){0,3}"
    own = rf"\b(?:I|we)(?: have|['\u2019]ve)? {adverbs}(?P<own>{verbs})\b(?! (?:by|if|when))"
    done = (
        rf"\b(?:the|your|an?|this|that)(?: [\w'\u2019#-]{{1,40}}){{1,6}} (?:has|have) {adverbs}been "
        rf"{adverbs}(?:\w{{1,16}}ed and )?(?P<done>{verbs})\b"
    )
    noun = (
        rf"\byour (?P<noun>{'|'.join(_NOUNS)})(?: [\w.,$\u20ac\u00a3'\u2019#-]{{1,40}}){{0,6}} (?:has|"
        rf"have) "
        rf"{adverbs}been {adverbs}(?:processed|completed|made|placed)\b"
    )
    # Without "successfully" the past tense may tell of anything that happened.
    past = (
        rf"\b(?:the|your|this|that)(?: [\w.'\u2019#-]{{1,60}}){{1,6}} (?:was|were) "
        rf"(?:(?P<well>successfully) )?(?P<past>{verbs})\b(?(well)|(?=[^!?\n]{{0,80}}\bsuccessfully\b))"
    )
    return re.compile(f"{own}|{done}|{noun}|{past}", re.IGNORECASE)


def claims_in(text: str) -> Iterator[Claim]:
    """The claims of a text, at most 50: not what is asked, quoted, denied, supposed or yet to come."""
    count = 0
    for sentence in re.finditer(r"(?:[^.!?\n]|\.(?=\w)){1,2000}[.!?]?", text):
        said = sentence[0]
        if said.endswith("?") or said.lstrip()[:1] in (">", '"', "“", "'"):
            continue
        for match in _pattern().finditer(said):
            before = said[: match.end()]
            if _NOT_REALLY.search(before.lower()) or is_quoted(before):
                continue
            verb = (match["own"] or match["done"] or match["noun"] or match["past"]).lower()
            verb = _SPELLINGS.get(verb) or _NOUNS.get(verb, verb)
            yield Claim(
                " ".join(said.split())[:_MAX_CLAIM].rstrip(".!"), verb, match["own"] is not None
            )
            count += 1
            if count >= _MAX_CLAIMS:
                return


def is_quoted(before: str) -> bool:
    """Whether a quotation is open at the end of this text."""
    return before.count('"') % 2 == 1 or before.count("“") > before.count("”")


class Deeds:
    """What the agent did: the names of its tools, their arguments and answers."""

    def __init__(self) -> None:
        self.known = False
        self._anything = False
        self._texts: list[str] = []
        self._seen = ""

    def tools(self, names: Iterable[str]) -> None:
        """Tools that exist, called or not: an agent without tools can do nothing to be judged by."""
        self.known = self.known or any(True for _ in names)

    def add(self, tool: str, arguments: Any, output: Any, *, failed: bool = False) -> None:
        """A call of a tool. failed: it did nothing, so nothing rests on it."""
        self.known = True
        if failed:
            return
        spaced = _spaced(tool)
        self._anything = self._anything or _ANYTHING.search(spaced) is not None
        if _LOOKS.match(spaced):
            self._seen += f"\n{_text(output)}"[: _MAX_CLAIM * _MAX_CLAIMS]
        else:
            self._texts += (spaced, _text(arguments), _text(output))

    def without(self, claims: Iterable[Claim], sources: str) -> list[str]:
        """The claims that no call fits. sources: all that is known, in small letters."""
        if self._anything:
            return []
        done = "\n".join(self._texts)
        return [
            claim.text
            for claim in claims
            if not _stems(claim.deed).search(done if claim.own else sources)
        ]

    def failed(self, claims: Iterable[Claim], tool: str, arguments: Any) -> list[str]:
        """The claims that no call fits but this one, which failed."""
        spaced = _spaced(tool)
        if _LOOKS.match(spaced) or (self._anything and not _ANYTHING.search(spaced)):
            return []
        done = "\n".join(self._texts)
        tried = f"{spaced}\n{_text(arguments)}"
        return [
            claim.text
            for claim in claims
            if _stems(claim.deed).search(tried) and not _stems(claim.deed).search(done)
        ]

    def never_called(
        self, claims: Iterable[Claim], names: Iterable[str], heard: str
    ) -> tuple[str, str] | None:
        """The first claim that one of these tools alone could have made true, and that tool.

        None where a tool that may do anything was called, and where anybody else has spoken of it: the deed
        may have been theirs. heard: what was said before.
        """
        spaced = {name: _spaced(name) for name in names}
        if self._anything or any(_ANYTHING.search(name) for name in spaced.values()):
            return None
        done = "\n".join(self._texts)
        for claim in claims:
            stems = _stems(claim.deed)
            fits = [name for name in spaced if stems.search(spaced[name])]
            able = [name for name in fits if not _LOOKS.match(spaced[name])]
            said = re.compile(rf"\b{claim.deed}\b", re.IGNORECASE)
            if able and not stems.search(done) and not said.search(heard + self._seen):
                return claim.text, able[0]
        return None


def _spaced(tool: str) -> str:
    """The name of a tool in small letters, its words apart."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tool[:_MAX_CLAIM]).lower()


@cache
def _stems(deed: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:re|un|pre|e|auto)?(?:{'|'.join(_DEEDS[deed])})")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            return ""
    return str(value)[:_MAX_ARGUMENTS].casefold()
