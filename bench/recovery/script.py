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
        """What a model does that never errs."""
        return SHAPES[self.task.shape](self, view)

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

    def say(self, data: Any, turn: str = "final") -> Move:
        """The final answer, in the form that the agent reads."""
        return Move(turn, data=data, text=said(self.task, data))


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


def _search(model: Model, view: View, n: int = 0) -> Move | list[dict[str, Any]]:
    """The search of a place, or what it has given."""
    d, place = model.domain, model.place(n)
    for tool in (d.search, d.backup):
        found = view.got(tool, place=place)
        if found is not MISSING:
            return list(found)
    arguments: dict[str, Any] = {"place": place}
    tool = d.search
    broken = (d.search, "503", "unavailable", "410", "409", "conflict", "Expecting value")
    if model.task.options.get("substitute") and _word(view, *broken):
        tool = d.backup
    if model.task.options.get("greedy"):
        arguments["limit"] = 5 if view.told else 400
    return Move("search" if n == 0 else f"search{n}", ((tool, arguments),))


def _word(view: View, *words: str) -> bool:
    told = view.told.casefold()
    return any(word.casefold() in told for word in words)


def _named(found: list[dict[str, Any]], item: Item) -> str:
    return next((str(row["id"]) for row in found if row["name"] == item.name), item.id)


def _chosen(model: Model, view: View, right: str, turn: str) -> str:
    """What the conversation has settled on: a model goes on with what it once chose, unless told."""
    if any(s.how == "wrong_id" and s.turn == turn for s in model.task.slips) and not view.told:
        for call in view.calls:
            if call.name == model.domain.detail:
                return str(call.arguments.get("item_id"))
    return right


def _detail(model: Model, view: View, n: int = 0) -> Move | dict[str, Any]:
    found = _search(model, view)
    if isinstance(found, Move):
        return found
    turn = "detail" if n == 0 else f"detail{n}"
    item_id = _chosen(model, view, _named(found, model.wanted(n)), turn)
    tool = model.domain.detail
    got = view.got(tool, item_id=item_id)
    stale = n == 0 and model.task.options.get("stale") and _word(view, "409", "conflict")
    if got is MISSING or (stale and view.count(tool, item_id=item_id) < 2 and not _fresh(got)):
        return Move(turn, ((tool, {"item_id": item_id}),))
    return dict(got)


def _fresh(got: dict[str, Any]) -> bool:
    return bool(got["version"] > 1)


def price(model: Model, view: View) -> Move:
    """Search, look at one item, answer its price."""
    got = _detail(model, view)
    if isinstance(got, Move):
        return got
    return model.say({"id": got["id"], "price": got["price"]})


def code(model: Model, view: View) -> Move:
    """Search, look at one item, read the note it names, answer what stands there."""
    got = _detail(model, view)
    if isinstance(got, Move):
        return got
    note = view.got(model.domain.note, file_name=got["file"])
    if note is MISSING:
        return Move("note", ((model.domain.note, {"file_name": got["file"]}),))
    return model.say({"id": got["id"], "code": note[model.domain.found_in_note]})


def cheapest(model: Model, view: View) -> Move:
    """Look at every item of a place, one after the other, and name the cheapest."""
    found = _search(model, view)
    if isinstance(found, Move):
        return found
    seen = []
    for n, row in enumerate(found):
        got = view.got(model.domain.detail, item_id=row["id"])
        if got is MISSING:
            return Move(f"detail{n}", ((model.domain.detail, {"item_id": row["id"]}),))
        seen.append(got)
    best = min(seen, key=lambda got: got["price"])
    return model.say({"id": best["id"], "price": best["price"]})


def compare(model: Model, view: View) -> Move:
    """Look at every item of a place in one turn, and name the cheapest."""
    found = _search(model, view)
    if isinstance(found, Move):
        return found
    tool = model.domain.detail
    open_ids = [r["id"] for r in found if view.got(tool, item_id=r["id"]) is MISSING]
    if open_ids:
        return Move("details", tuple((tool, {"item_id": one}) for one in open_ids))
    best = min((view.got(tool, item_id=r["id"]) for r in found), key=lambda got: got["price"])
    return model.say({"id": best["id"], "price": best["price"]})


def audit(model: Model, view: View) -> Move:
    """Look at every item of several places and add up what they cost."""
    total, at = 0, 0
    for n in range(int(model.task.options.get("places", 3))):
        found = _search(model, view, n)
        if isinstance(found, Move):
            return found
        for row in found:
            got = view.got(model.domain.detail, item_id=row["id"])
            if got is MISSING:
                return Move(f"detail{at}", ((model.domain.detail, {"item_id": row["id"]}),))
            total += got["price"]
            at += 1
    return model.say({"items": at, "price": total})


def trip(model: Model, view: View) -> Move:
    """Search three places and say how many there are in each."""
    counts = {}
    for n in range(3):
        found = _search(model, view, n)
        if isinstance(found, Move):
            return found
        counts[model.place(n)] = len({row["id"] for row in found})
    return model.say(counts)


def _bought(model: Model, view: View, got: dict[str, Any], n: int = 0) -> Move | str:
    done = view.got(model.domain.act, item_id=got["id"])
    if done is not MISSING:
        return str(done["receipt"])
    turn = "act" if n == 0 else f"act{n}"
    memo = "for the team"
    if model.task.options.get("reworded"):
        memo = ("for the team", "the team needs it", "team order, thanks")[model.asked[turn] % 3]
    arguments = {"item_id": got["id"], "price": got["price"], "memo": memo}
    return Move(turn, ((model.domain.act, arguments),))


def buy(model: Model, view: View) -> Move:
    """Search, look, buy, answer with the receipt."""
    got = _detail(model, view)
    if isinstance(got, Move):
        return got
    receipt = _bought(model, view, got)
    if isinstance(receipt, Move):
        return receipt
    return model.say({"receipt": receipt, "price": got["price"]})


def buy_then_read(model: Model, view: View) -> Move:
    """Search, look, buy, then read the note; answer with both."""
    got = _detail(model, view)
    if isinstance(got, Move):
        return got
    receipt = _bought(model, view, got)
    if isinstance(receipt, Move):
        return receipt
    note = view.got(model.domain.note, file_name=got["file"])
    if note is MISSING:
        return Move("note", ((model.domain.note, {"file_name": got["file"]}),))
    data = {"receipt": receipt, "price": got["price"], "code": note[model.domain.found_in_note]}
    return model.say(data)


def two(model: Model, view: View) -> Move:
    """Buy one item, then another."""
    receipts, total = [], 0
    for n in range(2):
        got = _detail(model, view, n)
        if isinstance(got, Move):
            return got
        receipt = _bought(model, view, got, n)
        if isinstance(receipt, Move):
            return receipt
        receipts.append(receipt)
        total += got["price"]
    return model.say({"receipt": " and ".join(receipts), "price": total})


def batch(model: Model, view: View) -> Move:
    """Take all items of a place in one call, of which the last is sold out, and say how many there are."""
    found = _search(model, view)
    if isinstance(found, Move):
        return found
    ids = ",".join(str(row["id"]) for row in found)
    done = view.got("order_all", item_ids=ids)
    if done is MISSING:
        return Move("act", (("order_all", {"item_ids": ids}),))
    return model.say({"ordered": len(done["receipts"]), "failed": done["failed"]})


def poll(model: Model, view: View) -> Move:
    """Ask for a status until it is done."""
    tool = model.domain.status
    state = view.got(tool, job="job-1")
    if state is MISSING or state["state"] != "done":
        return Move("status", ((tool, {"job": "job-1"}),))
    return model.say({"id": "job-1", "price": state["value"]})


def twice(model: Model, view: View) -> Move:
    """Look at the same item before and after another one: an equal call that is meant."""
    got = _detail(model, view)
    if isinstance(got, Move):
        return got
    other = _detail(model, view, 1)
    if isinstance(other, Move):
        return other
    if view.count(model.domain.detail, item_id=got["id"]) < 2:
        return Move("again", ((model.domain.detail, {"item_id": got["id"]}),))
    return model.say({"id": got["id"], "price": got["price"]})


def handled(model: Model, view: View) -> Move:
    """Look for an item that is gone, be told so, take another: the agent handles the error itself."""
    found = _search(model, view)
    if isinstance(found, Move):
        return found
    tool = model.domain.detail
    gone = f"{model.domain.prefix}-000"
    if not any(call.name == tool and call.arguments.get("item_id") == gone for call in view.calls):
        return Move("gone", ((tool, {"item_id": gone}),))
    return price(model, view)


def nobody(model: Model, view: View) -> Move:
    """Ask for a tool that nobody has, whatever the answer to that is."""
    found = _search(model, view)
    if isinstance(found, Move):
        return found
    return Move("detail", (("launch_satellite", {"orbit": "low"}),))


SHAPES: dict[str, Callable[[Model, View], Move]] = {
    made.__name__: made
    for made in (
        price, code, cheapest, compare, audit, trip, buy, buy_then_read, two, batch, poll, twice,
        handled, nobody,
    )
}  # fmt: skip


# ---------------------------------------------------------------- how a model errs


def _prose(model: Model, view: View, move: Move) -> Move:
    pairs = ", ".join(f"{key} = {value}" for key, value in move.data.items())
    return replace(move, text=f"Sure! Here is what I found: {pairs}")


def _fenced(model: Model, view: View, move: Move) -> Move:
    return replace(move, text=f"Here you are:\n```json\n{move.text}\n```\nAnything else?")


def _missing_key(model: Model, view: View, move: Move) -> Move:
    kept = dict(move.data)
    kept.pop(list(kept)[-1])
    return replace(move, text=json.dumps(kept))


def _renamed_key(model: Model, view: View, move: Move) -> Move:
    renamed = {("cost" if key == "price" else key): value for key, value in move.data.items()}
    return replace(move, text=json.dumps(renamed))


def _about(model: Model, view: View, move: Move) -> Move:
    return replace(move, text=f"about {move.text} euros")


def _wrong_type(model: Model, view: View, move: Move) -> Move:
    return replace(move, text=json.dumps({**move.data, "price": "not stated"}))


def _null(model: Model, view: View, move: Move) -> Move:
    return replace(move, text="null")


def _empty(model: Model, view: View, move: Move) -> Move:
    return replace(move, text="")


def _half(model: Model, view: View, move: Move) -> Move:
    assert move.text is not None
    return replace(move, text=move.text[: len(move.text) // 2], finish="length")


def _refusal(model: Model, view: View, move: Move) -> Move:
    text = "I'm sorry, but I can't help with that."
    return Move(move.turn, data=move.data, text=text, finish="content_filter")


def _invented(model: Model, view: View, move: Move) -> Move:
    key = "code" if "code" in move.data else "price"
    wrong = "Z00" if key == "code" else move.data[key] + 1017
    return replace(move, text=said(model.task, {**move.data, key: wrong}))


def _over_budget(model: Model, view: View, move: Move) -> Move:
    dear = max(model.there(), key=lambda item: item.price)
    return replace(move, text=json.dumps({**move.data, "id": dear.id, "price": dear.price}))


def _hides(model: Model, view: View, move: Move) -> Move:
    """Say that all went well."""
    count = move.data["ordered"] + len(move.data["failed"])
    return replace(move, text=json.dumps({"ordered": count, "failed": []}))


def _no_option(model: Model, view: View, move: Move) -> Move:
    return replace(move, text="medium")


def _echo(model: Model, view: View, move: Move) -> Move:
    """Hand the last tool error on as the answer."""
    return Move(move.turn, data=move.data, text=view.told.strip() or "Error: no result")


def _echo_after_error(model: Model, view: View, move: Move) -> Move:
    return _echo(model, view, move) if view.told else move


def _cut_label(model: Model, view: View, move: Move) -> Move:
    """Say the one word there was room for: the provider calls that cut off."""
    return replace(move, finish="length")


def _misnamed(model: Model, view: View, move: Move) -> Move:
    wrong = tuple((f"{name}_v2", arguments) for name, arguments in move.calls)
    return replace(move, calls=wrong)


def _misplaced(model: Model, view: View, move: Move) -> Move:
    wrong = []
    for name, arguments in move.calls:
        given = dict(arguments)
        first = next(iter(given))
        given[f"the_{first}"] = given.pop(first)
        wrong.append((name, given))
    return replace(move, calls=tuple(wrong))


def _broken_arguments(model: Model, view: View, move: Move) -> Move:
    wrong = tuple((name, json.dumps(arguments)[:-3]) for name, arguments in move.calls)
    return replace(move, calls=wrong)


def _wrong_id(model: Model, view: View, move: Move) -> Move:
    """Settle on an item of another place, or on one whose note is gone."""
    bad = model.task.options["bad_id"]
    return replace(move, calls=((move.calls[0][0], {"item_id": bad}),))


def _wrong_file(model: Model, view: View, move: Move) -> Move:
    tool, arguments = move.calls[0]
    return replace(move, calls=((tool, {"file_name": arguments["file_name"][:-5] + ".txt"}),))


def _repeat(model: Model, view: View, move: Move) -> Move:
    """Ask the first question again, and again."""
    return replace(move, calls=((model.domain.search, {"place": model.place()}),), text=None)


def _alternate(model: Model, view: View, move: Move) -> Move:
    """Go to and fro between two questions."""
    place = model.place(len(view.calls) % 2)
    return replace(move, calls=((model.domain.search, {"place": place}),), text=None)


def _reload(model: Model, view: View, move: Move) -> Move:
    """Ask for a status that does not change instead of going on."""
    return replace(move, calls=((model.domain.status, {"job": "stuck"}),), text=None)


def _catalogue(model: Model, view: View, move: Move) -> Move:
    """Read a whole catalogue, longer than the context, instead of going on."""
    given = {"place": model.place(), "limit": 400}
    return replace(move, calls=((model.domain.search, given),), text=None)


SLIPS: dict[str, Callable[[Model, View, Move], Move]] = {
    "prose": _prose,
    "fenced": _fenced,
    "missing_key": _missing_key,
    "renamed_key": _renamed_key,
    "about": _about,
    "wrong_type": _wrong_type,
    "null": _null,
    "empty": _empty,
    "half": _half,
    "refusal": _refusal,
    "invented": _invented,
    "over_budget": _over_budget,
    "incomplete": _missing_key,
    "no_option": _no_option,
    "hides": _hides,
    "echo": _echo,
    "echo_after_error": _echo_after_error,
    "cut_label": _cut_label,
    "misnamed": _misnamed,
    "misplaced": _misplaced,
    "broken_arguments": _broken_arguments,
    "wrong_id": _wrong_id,
    "wrong_file": _wrong_file,
    "repeat": _repeat,
    "alternate": _alternate,
    "reload": _reload,
    "catalogue": _catalogue,
}
