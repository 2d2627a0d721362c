"""The model: a pure function of the messages and the task, but for how often it was asked at a turn."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .tasks import Slip, Task
from .world import DOMAINS, Domain, Item, items_of

MISSING = object()
RECEIPT = re.compile(r"^- (\w+)\((\{.*\})\) → (\{.*\})$", re.MULTILINE)
"""A call, its arguments and its result, as words tell them in place of messages that are left out."""


@dataclass(frozen=True)
class Asked:
    """A tool call that stands in the conversation, and what came of it."""

    name: str
    arguments: dict[str, Any]
    result: Any = MISSING


@dataclass(frozen=True)
class Move:
    """What the model does next: it calls tools, or it says something."""

    turn: str
    calls: tuple[tuple[str, Any], ...] = ()
    """Names and arguments; arguments may be a text that is no JSON."""
    data: Any = None
    text: str | None = None
    finish: str = "stop"


@dataclass
class View:
    """What the model sees: which calls have which results, and what it was told besides the task."""

    calls: list[Asked] = field(default_factory=list)
    told: str = ""
    asks: Counter[str] = field(default_factory=Counter)

    def got(self, name: str, **arguments: Any) -> Any:
        """The newest result of such a call, else MISSING. Arguments that are not named may be any."""
        for call in reversed(self.calls):
            fits = all(call.arguments.get(key) == value for key, value in arguments.items())
            if call.name == name and call.result is not MISSING and fits:
                return call.result
        return MISSING

    def count(self, name: str, **arguments: Any) -> int:
        """How many such calls have a result."""
        return sum(
            call.name == name
            and call.result is not MISSING
            and all(call.arguments.get(key) == value for key, value in arguments.items())
            for call in self.calls
        )


def view_of(messages: list[dict[str, Any]], known: tuple[str, ...]) -> View:
    """Read a conversation. `known` are the texts of system and user that belong to the task."""
    view, told = View(), []
    open_calls: dict[str, int] = {}
    for message in messages:
        role, text = message["role"], _text(message.get("content"))
        if role == "assistant":
            for call in message.get("tool_calls") or ():
                try:
                    arguments = json.loads(call["function"]["arguments"])
                except ValueError:
                    arguments = {}
                if not isinstance(arguments, dict):
                    arguments = {}
                open_calls[call["id"]] = len(view.calls)
                view.calls.append(Asked(call["function"]["name"], arguments))
        elif role == "tool":
            try:
                result = json.loads(text)
            except ValueError:
                result = MISSING
                told.append(text)
            if isinstance(result, dict) and "error" in result:
                told.append(text)
                result = MISSING
            at = open_calls.get(str(message.get("tool_call_id")))
            if at is not None:
                view.calls[at] = replace(view.calls[at], result=result)
        else:
            view.calls += _receipts(text)
            for part in known:
                text = text.replace(part, "")
            if text.strip():
                told.append(text)
    view.told = "\n".join(told)
    return view


def _receipts(text: str) -> list[Asked]:
    found = RECEIPT.findall(text)
    return [Asked(name, json.loads(given), json.loads(result)) for name, given, result in found]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""


class Model:
    """The scripted model of one task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.domain: Domain = next(d for d in DOMAINS if d.name == task.domain)
        self.items = items_of(self.domain, task.seed)
        self.asked: Counter[str] = Counter()
        self.slipped: Counter[str] = Counter()

    def place(self, n: int = 0) -> str:
        """The n-th place the task is about."""
        return self.domain.places[(self.task.seed + n) % len(self.domain.places)]

    def there(self, n: int = 0) -> list[Item]:
        """The items of that place, as a search gives them."""
        return sorted((i for i in self.items if i.place == self.place(n)), key=lambda i: i.id)

    def wanted(self, n: int = 0) -> Item:
        """The n-th item that the task is about."""
        there = self.there()
        return there[(self.task.seed + n) % len(there)]

    def clean(self, view: View) -> Move:
        """Move as a model does that never errs: ask for what is missing, else answer."""
        try:
            data = SHAPES[self.task.shape](Reader(self, view))
        except Wants as wants:
            return wants.move
        return Move("final", data=data, text=said(self.task, data))

    def answer(self, view: View) -> Move:
        """What this model does: the clean move, or one of its slips."""
        move = self.clean(view)
        self.asked[move.turn] += 1
        view.asks = self.asked
        for slip in self.task.slips:
            if slip.turn == move.turn and self._errs(slip, view):
                slipped = SLIPS[slip.how](self, view, move)
                if slipped != move:
                    self.slipped[slip.turn] += 1
                    return slipped
        return move

    def _errs(self, slip: Slip, view: View) -> bool:
        if slip.until == "always":
            return True
        if slip.until == "told":
            return not view.told
        if slip.until == "named":
            told = re.sub(r"\w+_v2", "", view.told).casefold()
            return not any(word.casefold() in told for word in slip.words)
        return self.slipped[slip.turn] < {"once": 1, "twice": 2}[slip.until]


def said(task: Task, data: Any) -> str:
    """An answer in words, or in the form that the agent parses."""
    form = task.finish
    if form in ("int", "choice"):
        return str(data["price"] if isinstance(data, dict) else data)
    if form == "label":
        return "urgent" if data["price"] > 500 else "later"
    if form == "text":
        return "; ".join(f"{key}: {value}" for key, value in data.items()) + "."
    if form == "none":
        return "nothing"
    return json.dumps(data)


# ---------------------------------------------------------------- what the tasks ask for


class Wants(Exception):
    """The model has to call tools before it can answer."""

    def __init__(self, turn: str, *calls: tuple[str, Any]) -> None:
        self.move = Move(turn, calls)


class Reader:
    """The results that a model has been given. Each method raises Wants for a call that has none yet."""

    def __init__(self, model: Model, view: View) -> None:
        self.model = model
        self.task = model.task
        self.domain = model.domain
        self.view = view

    def called(self, turn: str, tool: str, **arguments: Any) -> Any:
        """Return the result of this call."""
        got = self.view.got(tool, **arguments)
        if got is MISSING:
            raise Wants(turn, (tool, arguments))
        return got

    def search(self, n: int = 0) -> list[dict[str, Any]]:
        """Return what there is at the n-th place."""
        d, place = self.domain, self.model.place(n)
        for tool in (d.search, d.backup):
            found = self.view.got(tool, place=place)
            if found is not MISSING:
                return list(found)
        arguments: dict[str, Any] = {"place": place}
        tool = d.search
        broken = (d.search, "503", "unavailable", "410", "409", "conflict", "Expecting value")
        if self.task.options.get("substitute") and self._hears(*broken):
            tool = d.backup
        if self.task.options.get("greedy"):
            arguments["limit"] = 5 if self.view.told else 400
        raise Wants(_numbered("search", n), (tool, arguments))

    def detail(self, n: int = 0) -> dict[str, Any]:
        """Return what is known of the n-th item that the task is about."""
        wanted, turn = self.model.wanted(n), _numbered("detail", n)
        named = (str(row["id"]) for row in self.search() if row["name"] == wanted.name)
        item_id = self._chosen(next(named, wanted.id), turn)
        got = dict(self.called(turn, self.domain.detail, item_id=item_id))
        stale = n == 0 and self.task.options.get("stale") and self._hears("409", "conflict")
        read_once = self.view.count(self.domain.detail, item_id=item_id) < 2
        if stale and read_once and got["version"] <= 1:
            raise Wants(turn, (self.domain.detail, {"item_id": item_id}))
        return got

    def note(self, item: dict[str, Any]) -> Any:
        """Return what stands in the note of an item."""
        note = self.called("note", self.domain.note, file_name=item["file"])
        return note[self.domain.found_in_note]

    def bought(self, item: dict[str, Any], n: int = 0) -> str:
        """Return the receipt for an item."""
        done = self.view.got(self.domain.act, item_id=item["id"])
        if done is not MISSING:
            return str(done["receipt"])
        turn = _numbered("act", n)
        memo = "for the team"
        if self.task.options.get("reworded"):
            memos = ("for the team", "the team needs it", "team order, thanks")
            memo = memos[self.model.asked[turn] % 3]
        arguments = {"item_id": item["id"], "price": item["price"], "memo": memo}
        raise Wants(turn, (self.domain.act, arguments))

    def _hears(self, *words: str) -> bool:
        told = self.view.told.casefold()
        return any(word.casefold() in told for word in words)

    def _chosen(self, right: str, turn: str) -> str:
        """What the conversation has settled on: a model goes on with its choice, unless told."""
        if any(s.how == "wrong_id" and s.turn == turn for s in self.task.slips):
            for call in self.view.calls:
                if call.name == self.domain.detail and not self.view.told:
                    return str(call.arguments.get("item_id"))
        return right


def _numbered(turn: str, n: int) -> str:
    return turn if n == 0 else f"{turn}{n}"


def price(r: Reader) -> Any:
    """Search, look at one item, answer its price."""
    got = r.detail()
    return {"id": got["id"], "price": got["price"]}


def code(r: Reader) -> Any:
    """Search, look at one item, read the note it names, answer what stands there."""
    got = r.detail()
    return {"id": got["id"], "code": r.note(got)}


def cheapest(r: Reader) -> Any:
    """Look at every item of a place, one after the other, and name the cheapest."""
    seen = [
        r.called(f"detail{n}", r.domain.detail, item_id=row["id"])
        for n, row in enumerate(r.search())
    ]
    best = min(seen, key=lambda got: got["price"])
    return {"id": best["id"], "price": best["price"]}


def compare(r: Reader) -> Any:
    """Look at every item of a place in one turn, and name the cheapest."""
    tool = r.domain.detail
    seen = {row["id"]: r.view.got(tool, item_id=row["id"]) for row in r.search()}
    missing = [item_id for item_id, got in seen.items() if got is MISSING]
    if missing:
        raise Wants("details", *((tool, {"item_id": item_id}) for item_id in missing))
    best = min(seen.values(), key=lambda got: got["price"])
    return {"id": best["id"], "price": best["price"]}


def audit(r: Reader) -> Any:
    """Look at every item of several places and add up what they cost."""
    total = at = 0
    for n in range(int(r.task.options.get("places", 3))):
        for row in r.search(n):
            total += r.called(f"detail{at}", r.domain.detail, item_id=row["id"])["price"]
            at += 1
    return {"items": at, "price": total}


def trip(r: Reader) -> Any:
    """Search three places and say how many there are in each."""
    return {r.model.place(n): len({row["id"] for row in r.search(n)}) for n in range(3)}


def buy(r: Reader) -> Any:
    """Search, look, buy, answer with the receipt."""
    got = r.detail()
    return {"receipt": r.bought(got), "price": got["price"]}


def buy_then_read(r: Reader) -> Any:
    """Search, look, buy, then read the note; answer with both."""
    got = r.detail()
    return {"receipt": r.bought(got), "price": got["price"], "code": r.note(got)}


def two(r: Reader) -> Any:
    """Buy one item, then another."""
    receipts, total = [], 0
    for n in range(2):
        got = r.detail(n)
        receipts.append(r.bought(got, n))
        total += got["price"]
    return {"receipt": " and ".join(receipts), "price": total}


def batch(r: Reader) -> Any:
    """Take all items of a place in one call, of which the last is sold out, and say how many there are."""
    ids = ",".join(str(row["id"]) for row in r.search())
    done = r.called("act", "order_all", item_ids=ids)
    return {"ordered": len(done["receipts"]), "failed": done["failed"]}


def poll(r: Reader) -> Any:
    """Ask for a status until it is done."""
    state = r.called("status", r.domain.status, job="job-1")
    if state["state"] != "done":
        raise Wants("status", (r.domain.status, {"job": "job-1"}))
    return {"id": "job-1", "price": state["value"]}


def twice(r: Reader) -> Any:
    """Look at the same item before and after another one: an equal call that is meant."""
    got, _ = r.detail(), r.detail(1)
    if r.view.count(r.domain.detail, item_id=got["id"]) < 2:
        raise Wants("again", (r.domain.detail, {"item_id": got["id"]}))
    return {"id": got["id"], "price": got["price"]}


def handled(r: Reader) -> Any:
    """Look for an item that is gone, be told so, take another: the agent handles the error itself."""
    r.search()
    gone = {"item_id": f"{r.domain.prefix}-000"}
    if not any(call.name == r.domain.detail and call.arguments == gone for call in r.view.calls):
        raise Wants("gone", (r.domain.detail, gone))
    return price(r)


def nobody(r: Reader) -> Any:
    """Ask for a tool that nobody has, whatever the answer to that is."""
    r.search()
    raise Wants("detail", ("launch_satellite", {"orbit": "low"}))


SHAPES: dict[str, Callable[[Reader], Any]] = {
    made.__name__: made
    for made in (
        price, code, cheapest, compare, audit, trip, buy, buy_then_read, two, batch, poll, twice,
        handled, nobody,
    )
}  # fmt: skip
"""What a model answers, as data, by what the task asks for."""


# ---------------------------------------------------------------- how a model errs

Errs = Callable[[Model, View, Move], Move]


def _text_of(make: Callable[[Move], str], **changes: Any) -> Errs:
    """Say something else."""
    return lambda model, view, move: replace(move, text=make(move), calls=(), **changes)


def _data_of(change: Callable[[dict[str, Any]], Any]) -> Errs:
    """Say other data."""
    return _text_of(lambda move: json.dumps(change(dict(move.data))))


def _calls_of(change: Callable[[Model, str, Any], tuple[str, Any]]) -> Errs:
    """Call something else."""

    def errs(model: Model, view: View, move: Move) -> Move:
        return replace(move, calls=tuple(change(model, *call) for call in move.calls))

    return errs


def _instead(call: Callable[[Model, View], tuple[str, Any]]) -> Errs:
    """Call this instead of going on."""
    return lambda model, view, move: replace(move, calls=(call(model, view),), text=None)


def _invented(model: Model, view: View, move: Move) -> Move:
    key = "code" if "code" in move.data else "price"
    wrong = "Z00" if key == "code" else move.data[key] + 1017
    return replace(move, text=said(model.task, {**move.data, key: wrong}))


def _over_budget(model: Model, view: View, move: Move) -> Move:
    dear = max(model.there(), key=lambda item: item.price)
    return replace(move, text=json.dumps({**move.data, "id": dear.id, "price": dear.price}))


def _echo(model: Model, view: View, move: Move) -> Move:
    """Hand the last tool error on as the answer."""
    return Move(move.turn, data=move.data, text=view.told.strip() or "Error: no result")


def _misplaced(model: Model, tool: str, arguments: Any) -> tuple[str, Any]:
    first, *others = arguments
    return tool, {**{name: arguments[name] for name in others}, f"the_{first}": arguments[first]}


_without_last = _data_of(lambda data: dict(list(data.items())[:-1]))
SLIPS: dict[str, Errs] = {
    "prose": _text_of(
        lambda move: (
            "Sure! Here is what I found: "
            + ", ".join(f"{key} = {value}" for key, value in move.data.items())
        )
    ),
    "fenced": _text_of(lambda move: f"Here you are:\n```json\n{move.text}\n```\nAnything else?"),
    "missing_key": _without_last,
    "incomplete": _without_last,
    "renamed_key": _data_of(
        lambda data: {"cost" if key == "price" else key: value for key, value in data.items()}
    ),
    "about": _text_of(lambda move: f"about {move.text} euros"),
    "wrong_type": _data_of(lambda data: {**data, "price": "not stated"}),
    "null": _text_of(lambda _: "null"),
    "empty": _text_of(lambda _: ""),
    "half": _text_of(lambda move: str(move.text)[: len(str(move.text)) // 2], finish="length"),
    "refusal": _text_of(
        lambda _: "I'm sorry, but I can't help with that.", finish="content_filter"
    ),
    "invented": _invented,
    "over_budget": _over_budget,
    "no_option": _text_of(lambda _: "medium"),
    # Say that all of a batch went well.
    "hides": _data_of(
        lambda data: {"ordered": data["ordered"] + len(data["failed"]), "failed": []}
    ),
    "echo": _echo,
    "echo_after_error": lambda model, view, move: _echo(model, view, move) if view.told else move,
    # Say the one word there was room for: the provider calls that cut off.
    "cut_label": lambda model, view, move: replace(move, finish="length"),
    "misnamed": _calls_of(lambda _, tool, given: (f"{tool}_v2", given)),
    "misplaced": _calls_of(_misplaced),
    "broken_arguments": _calls_of(lambda _, tool, given: (tool, json.dumps(given)[:-3])),
    # Settle on an item of another place, or on one whose note is gone.
    "wrong_id": _calls_of(lambda model, tool, _: (tool, {"item_id": model.task.options["bad_id"]})),
    "wrong_file": _calls_of(
        lambda _, tool, given: (
            tool,
            {"file_name": given["file_name"].removesuffix(".json") + ".txt"},
        )
    ),
    # Ask the first question again, and again; or go to and fro between two.
    "repeat": _instead(lambda model, _: (model.domain.search, {"place": model.place()})),
    "alternate": _instead(
        lambda model, view: (model.domain.search, {"place": model.place(len(view.calls) % 2)})
    ),
    # Ask for a status that does not change.
    "reload": _instead(lambda model, _: (model.domain.status, {"job": "stuck"})),
    # Read a whole catalogue, longer than the context.
    "catalogue": _instead(
        lambda model, _: (model.domain.search, {"place": model.place(), "limit": 400})
    ),
}
"""How a model errs, by the name of the slip."""
