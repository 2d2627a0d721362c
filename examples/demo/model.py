"""The scripted model: `complete(messages)`, a pure function of the messages it is sent.

It plays a language model with the weaknesses real ones have. A weakness is triggered by words of
the request, and cured only by a later system message that states the fact the model is missing: the
name of the tool that exists, the argument and its type, the format, the call to stop making.
Nothing is counted, kept or drawn at random, and the tools' schemas are not looked at.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBER_WORDS = {"two": 2, "three": 3, "four": 4}
_CHARS_PER_TOKEN = 4


class ToolCall(NamedTuple):
    """A tool the model wants called; `arguments` is text and may be anything."""

    name: str
    arguments: str


class Reply(NamedTuple):
    """The assistant message: either text or a tool call."""

    content: str | None = None
    call: ToolCall | None = None


class _Result(NamedTuple):
    name: str
    output: Any


class _Talk(NamedTuple):
    """What the messages say: the request, what was added to it, and what the tools answered."""

    request: str
    hints: str
    results: tuple[_Result, ...]

    def said(self, pattern: str) -> re.Match[str] | None:
        """The first match of a pattern in the request."""
        return re.search(pattern, self.request)

    def outputs(self, name: str) -> list[Any]:
        """What this tool answered, oldest first."""
        return [result.output for result in self.results if result.name == name]


def complete(messages: Sequence[Mapping[str, Any]]) -> Reply:
    """The model's next message."""
    talk = _read(messages)
    order = talk.said(r"order (\d+)")
    order_id = int(order[1]) if order else None
    if order_id is not None and talk.said("Confirm") and not _told(talk, "charge_card"):
        invented = {"order_id": order_id, "fare_id": "ROM-1", "cents": 8300, "receipt": "R-9"}
        return _final(talk, invented)
    if order_id is not None and not talk.outputs("get_order"):
        return _call("get_order", order_id=order_id)
    fares = _fares(talk)
    if not fares:
        return _search(talk)
    best = min(fares, key=lambda fare: cast("int", fare["cents"]))
    cents = best["cents"] * (_passengers(talk) or 1)
    answer = {"order_id": order_id, "fare_id": best["fare_id"], "cents": cents, "receipt": None}
    if order_id is not None:
        receipts = talk.outputs("charge_card")
        if not receipts:
            return _call("charge_card", order_id=order_id, cents=cents)
        answer["receipt"] = receipts[-1]["receipt"]
    return _final(talk, answer)


def tokens(value: object) -> int:
    """About how many tokens a message or a text has."""
    return -(-len(json.dumps(value, ensure_ascii=False)) // _CHARS_PER_TOKEN)


def _search(talk: _Talk) -> Reply:
    """Search for fares; here three weaknesses live."""
    city = talk.said(r"to ([A-Z][a-z]+)")
    wanted = city[1] if city else ""
    other = talk.said(r"or to ([A-Z][a-z]+)")
    if other and _told(talk, "search_fares") and _told(talk, wanted):
        wanted = other[1]  # told which call to stop making; until then it is made again and again
    if talk.said(r"\bflight"):
        known = _tool_for(talk, "fare")
        if known is None:
            return _call("flight_search", destination=wanted)  # no such tool
        return _call(known, city=wanted, passengers=1)
    passengers = _passengers(talk)
    if passengers is None:
        return _call("search_fares", city=wanted, passengers=1)
    if _told(talk, "passengers") and re.search(r"\bint(eger)?\b", talk.hints):
        return _call("search_fares", city=wanted, passengers=passengers)
    word = talk.said("|".join(_NUMBER_WORDS))
    return _call("search_fares", city=wanted, passengers=word[0] if word else "")  # not an integer


def _final(talk: _Talk, answer: Mapping[str, Any]) -> Reply:
    text = json.dumps(answer)
    if talk.said("friendly") and not _told(talk, "JSON"):
        return Reply(content=f"Sure! Here is what I found:\n\n{text[:-9]}")
    return Reply(content=text)


def _call(name: str, **arguments: Any) -> Reply:
    return Reply(call=ToolCall(name, json.dumps(arguments)))


def _told(talk: _Talk, fact: str) -> bool:
    """Whether a hint holds this word."""
    return re.search(rf"\b{re.escape(fact)}\b", talk.hints) is not None


def _tool_for(talk: _Talk, subject: str) -> str | None:
    """A tool's name that a hint mentions and that is about the subject."""
    names = re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", talk.hints)
    return next((name for name in names if {subject, f"{subject}s"} & {*name.split("_")}), None)


def _passengers(talk: _Talk) -> int | None:
    word = talk.said("|".join(_NUMBER_WORDS))
    return _NUMBER_WORDS[word[0]] if word else None


def _fares(talk: _Talk) -> list[dict[str, Any]]:
    found = [result.output for result in talk.results if "fares" in result.output]
    return cast("list[dict[str, Any]]", found[-1]["fares"]) if found else []


def _read(messages: Sequence[Mapping[str, Any]]) -> _Talk:
    request, hints, results = "", list[str](), list[_Result]()
    calls: dict[str, str] = {}
    for message in messages:
        content = message.get("content") or ""
        match message["role"]:
            case "user" if not request:
                request = content
            case "system" | "developer" if request:
                hints.append(content)
            case "assistant":
                made = message.get("tool_calls") or ()
                calls.update({call["id"]: call["function"]["name"] for call in made})
            case "tool":
                name = calls[message["tool_call_id"]]
                results.append(_Result(name, json.loads(content)))
            case _:
                pass
    return _Talk(request, "\n".join(hints), tuple(results))
