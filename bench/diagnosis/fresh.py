"""Trajectories that no rule was written for: faults put into made-up runs, and hard healthy runs.

Every kind of fault comes in five wordings, every run in one of twelve trades and one of three forms
of tool output. The same seed gives the same records. The decisive step of a loop is the call it begins
with, as in the records of real agents; of any other fault it is the step that goes wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from .records import FRESH_HEALTHY, Record, half

SEED = 20_240
WORDINGS = 5
PER_WORDING = 2
FAULTY = "fresh_fault"

Step = dict[str, Any]
Told = tuple[list[Step], int]
"""The steps of a faulty part, and which of them went wrong."""


class Trade(NamedTuple):
    """What a run is about: the thing handled, how its ids look, and the tools."""

    thing: str
    prefix: str
    find: str
    show: str
    change: str
    undo: str
    other: str
    goal: str


TRADES = (
    Trade("parcel", "PX", "list_parcels", "track_parcel", "book_courier", "cancel_courier",
          "estimate_duty", "Book a courier for every parcel in the north depot"),
    Trade("appointment", "AP", "list_slots", "view_slot", "reserve_slot", "release_slot",
          "send_survey", "Reserve the physiotherapy slots that Ms Ortega asked for"),
    Trade("judgment", "JG", "search_cases", "open_case", "add_citation", "drop_citation",
          "convert_fee", "Collect the judgments on late delivery and cite them in the brief"),
    Trade("quest", "QS", "list_quests", "read_quest", "start_quest", "abandon_quest",
          "roll_dice", "Prepare the quests for Friday's table"),
    Trade("column", "CL", "list_columns", "profile_column", "cast_column", "revert_column",
          "plot_histogram", "Clean the columns of the survey export"),
    Trade("lamp", "LP", "list_lamps", "lamp_state", "switch_on", "switch_off",
          "play_music", "Light the ground floor for the evening"),
    Trade("order", "PO", "list_orders", "order_details", "approve_order", "withdraw_approval",
          "invite_supplier", "Approve the open orders for workshop supplies"),
    Trade("deployment", "DP", "list_deployments", "describe_deployment", "scale_up", "scale_down",
          "rotate_logs", "Scale the deployments that serve checkout"),
    Trade("Reise", "RS", "reisen_suchen", "reise_anzeigen", "reise_buchen", "reise_stornieren",
          "wetter_abfragen", "Buche die Reisen der Klasse 9b nach Weimar"),
    Trade("libro", "LB", "buscar_libros", "ver_libro", "prestar_libro", "devolver_libro",
          "enviar_boletin", "Presta los libros de la lista de la señora Ibarra"),
    Trade("return", "TX", "list_returns", "read_return", "file_return", "retract_return",
          "order_forms", "File the returns of the Hallam estate"),
    Trade("sample", "SM", "list_samples", "sample_record", "queue_assay", "dequeue_assay",
          "print_labels", "Queue assays for the samples of tray four"),
)  # fmt: skip


class Run:
    """What a run is made with: its trade, its ids, and its own chance."""

    def __init__(self, trade: Trade, seed: int) -> None:
        self.trade = trade
        self.chance = Random(seed)
        self.ids = [
            f"{trade.prefix}-{number}" for number in self.chance.sample(range(1000, 9999), 12)
        ]
        self.prices = [self.chance.randrange(900, 90_000) / 100 for _ in self.ids]
        self.form = self.chance.choice(("json", "prose", "table"))

    def listing(self, begin: int = 0, end: int = 12) -> str:
        """Ids and prices as a tool returns them."""
        rows = list(zip(self.ids[begin:end], self.prices[begin:end], strict=True))
        if self.form == "json":
            return json.dumps([{"id": id_, "amount": price} for id_, price in rows])
        if self.form == "prose":
            return "; ".join(f"{self.trade.thing} {id_} at {price:.2f}" for id_, price in rows)
        return "id | amount\n" + "\n".join(f"{id_} | {price:.2f}" for id_, price in rows)

    def start(self) -> list[Step]:
        """The search every run begins with, and a look at some of what it found."""
        looks = range(self.chance.randrange(2, 8))
        first = call(self.trade.find, {"limit": 12}, self.listing())
        return [first, *(self.look(at) for at in looks)]

    def look(self, at: int) -> Step:
        """A look at one thing."""
        return call(self.trade.show, {"id": self.ids[at]}, self.listing(at, at + 1))

    def change(self, id_: str, **more: Any) -> Step:
        """A change of one thing that worked."""
        return call(self.trade.change, {"id": id_, **more}, json.dumps({"id": id_, "done": True}))

    def say(self, text: str) -> Step:
        """What the agent says."""
        return {**call(None, None, None), "action": "answer", "llm_output": text}


def call(tool: str | None, given: Any, output: Any, error: str | None = None) -> Step:
    """One step that calls a tool."""
    return {
        "action": f"call {tool}" if tool else "",
        "tool_called": tool,
        "tool_input": given,
        "tool_output": output,
        "llm_output": None,
        "error": error,
    }


def _same_loop(run: Run, way: int) -> Told:
    tool, given, output = (
        (run.trade.show, {"id": run.ids[8]}, "nothing new"),
        (run.trade.find, {"query": "open"}, "[]"),
        (run.trade.change, {"id": run.ids[8]}, '{"state": "pending"}'),
        (run.trade.other, {}, None),
        (run.trade.show, {"id": run.ids[8]}, run.listing(8, 9)),
    )[way]
    return [call(tool, given, output) for _ in range(5 + way * 3)], 0


def _counting_loop(run: Run, way: int) -> Told:
    output = ("no change", "{}", "busy, try again", "sin cambios", "not ready")[way]
    counters = ("attempt", "try", "request_no", "intento", "nonce")[way]
    given = {"id": run.ids[8]}
    return [call(run.trade.show, {**given, counters: at}, output) for at in range(1, 10)], 0


def _cycle(run: Run, way: int) -> Told:
    size = (2, 3, 4, 2, 3)[way]
    tools = (run.trade.find, run.trade.show, run.trade.other, run.trade.undo)[:size]
    outputs = ("empty", "unchanged", "as before", "nichts gefunden", "no rows")
    once = [call(tool, {"id": run.ids[8]}, outputs[way]) for tool in tools]
    return [dict(step) for step in once * 4], 0


def _claim(run: Run, way: int) -> Told:
    amount = f"{run.prices[8] + 311.17:.2f}"
    text = (
        f"{run.ids[8]} costs {amount}.",
        f"The record gives {amount} as the amount of {run.ids[8]}.",
        f"I read {run.ids[8]}: its amount is {amount}.",
        f"Für {run.ids[8]} sind {amount} fällig.",
        f"As the tool returned, {run.ids[8]} stands at {amount}.",
    )[way]
    return [run.look(8), run.say(text)], 1


def _invented(run: Run, way: int) -> Told:
    id_ = f"{run.trade.prefix}-{(10_471, 20_883, 31_990, 42_006, 53_774)[way]}"
    given: dict[str, Any] = (
        {"id": id_},
        {"ids": [run.ids[8], id_]},
        {"payload": {"reference": id_}},
        {"note": f"concerning {id_}"},
        {"id": run.ids[8], "owner": "Thaddeus Quillfeather"},
    )[way]
    return [run.look(8), call(run.trade.change, given, "not found")], 1


def _constraint(run: Run, way: int) -> Told:
    tools = (run.trade.other, run.trade.other, run.trade.undo, run.trade.other, run.trade.undo)
    return [call(tools[way], {"id": run.ids[8]}, "ok"), run.change(run.ids[8])], 0


def _drift(run: Run, way: int) -> Told:
    aims = ("football scores", "recipes for soup", "used cars", "films de 1950", "crypto prices")
    searches = ("latest", "best", "cheap", "favourite", "history of")
    found = [
        call("web_search", {"query": f"{word} {aims[way]}"}, f"page about {word} {aims[way]}")
        for word in searches
    ]
    return [*found, run.say(f"Here is a summary of {aims[way]}.")], 0


def _unfinished(run: Run, way: int) -> Told:
    text = (
        "The rest is for later.",
        f"{run.ids[0]} is handled.",
        "All done.",
        "Zwei von vier sind erledigt.",
        "I stop here.",
    )[way]
    return [run.change(run.ids[0]), run.change(run.ids[1]), run.say(text)], 2


def _error_ignored(run: Run, way: int) -> Told:
    error, output = (
        ("503 Service Unavailable", None),
        (None, '{"error": {"code": 502, "message": "bad gateway"}}'),
        (None, "Error: connection reset by peer"),
        ("timed out after 30 s", None),
        (None, '{"ok": false, "reason": "backend offline"}'),
    )[way]
    failed = call(run.trade.change, {"id": run.ids[8]}, output, error)
    return [failed, run.say(f"{run.ids[8]} is settled, nothing is left to do.")], 0


def _wrong_tool(run: Run, way: int) -> Told:
    said = (
        f"unknown tool: {run.trade.change}_v2",
        "no such function",
        "Tool not registered.",
        '{"error": "method not found", "code": -32601}',
        f"available: {run.trade.find}, {run.trade.show}",
    )[way]
    error = said if way % 2 == 0 else None
    output = None if way % 2 == 0 else said
    return [call(f"{run.trade.change}_v2", {"id": run.ids[8]}, output, error)], 0


def _schema(run: Run, way: int) -> Told:
    given, error = (
        ({"id": 8}, "id: expected string, got integer"),
        ({"identifier": run.ids[8]}, "unexpected argument 'identifier'"),
        ({}, "missing required field: id"),
        ({"id": run.ids[8], "day": "31/2"}, "day is not an ISO date"),
        ({"id": None}, '[{"loc": ["id"], "msg": "none is not allowed", "type": "type_error"}]'),
    )[way]
    return [call(run.trade.change, given, None, error)], 0


def _contradicted(run: Run, way: int) -> Told:
    texts = ("cheapest", "settled", "free", "größte", "complete")
    later = json.dumps({"id": run.ids[8], "amount": run.prices[8] + 40 + way, "done": False})
    return [
        call(run.trade.change, {"id": run.ids[8]}, '{"done": true}'),
        call(run.trade.show, {"id": run.ids[8]}, later),
        run.say(f"{run.ids[8]} is {texts[way]} at {run.prices[8]:.2f}."),
    ], 2


def _undone(run: Run, way: int) -> Told:
    more: dict[str, Any] = (
        {},
        {"reason": "none"},
        {"force": True},
        {"grund": "-"},
        {"dry": False},
    )[way]
    undo = call(run.trade.undo, {"id": run.ids[0], **more}, "ok")
    return [run.change(run.ids[0]), run.change(run.ids[1]), undo, run.say("Done.")], 2


def _context(run: Run, way: int) -> Told:
    error = (
        "prompt is 214,011 tokens, the window holds 200,000",
        "input too long for this model",
        "maximum context length exceeded",
        "conversation was truncated: 31 messages dropped",
        "token budget of the window used up",
    )[way]
    return [{**run.say(""), "llm_output": None, "error": error}], 0


class Fault(NamedTuple):
    """A kind of fault, the failure type it is, and how it is put into a run."""

    name: str
    kind: str
    make: Callable[[Run, int], Told]


FAULTS = (
    Fault("identical loop", "loop_detected", _same_loop),
    Fault("counting loop", "loop_detected", _counting_loop),
    Fault("cycle", "loop_detected", _cycle),
    Fault("unsupported claim", "hallucinated_state", _claim),
    Fault("invented argument", "hallucinated_state", _invented),
    Fault("constraint ignored", "constraint_ignored", _constraint),
    Fault("goal drift", "goal_drift", _drift),
    Fault("unfinished", "plan_incomplete", _unfinished),
    Fault("error ignored", "external_fault", _error_ignored),
    Fault("wrong tool", "wrong_tool_called", _wrong_tool),
    Fault("schema", "schema_mismatch", _schema),
    Fault("contradicted", "hallucinated_state", _contradicted),
    Fault("action undone", "goal_drift", _undone),
    Fault("context lost", "context_overflow", _context),
)


def _polling(run: Run) -> list[Step]:
    shares = sorted(run.chance.sample(range(1, 99), 12))
    given = {"id": run.ids[0]}
    return [call(run.trade.show, given, {"progress": share}) for share in (*shares, 100)]


def _pages(run: Run) -> list[Step]:
    length = run.chance.randrange(8, 50)
    return [
        call(run.trade.find, {"page": at}, {"rows": [run.chance.randrange(10**6)], "next": at + 1})
        for at in range(1, length)
    ]


def _retried(run: Run) -> list[Step]:
    failed = call(run.trade.change, {"id": run.ids[0]}, None, "503 Service Unavailable")
    return [failed, dict(failed), run.change(run.ids[0])]


def _batch(run: Run) -> list[Step]:
    return [run.change(id_) for id_ in run.ids]


def _corrected(run: Run) -> list[Step]:
    wrong = call(run.trade.change, {"ref": run.ids[0]}, None, "unexpected argument 'ref'")
    return [wrong, run.say("The argument is called id; I call again."), run.change(run.ids[0])]


def _computed(run: Run) -> list[Step]:
    total = sum(run.prices[:3])
    return [run.say(f"The first three come to {total:.2f}, {total / 3:.2f} each on average.")]


def _dated(run: Run) -> list[Step]:
    day = run.chance.randrange(10, 28)
    shown = call(run.trade.show, {"id": run.ids[0]}, {"due": f"2031-03-{day}T00:00:00Z"})
    return [shown, run.say(f"{run.ids[0]} is due on {day} March 2031.")]


def _empty(run: Run) -> list[Step]:
    misses = [call(run.trade.find, {"query": word}, "[]") for word in ("north", "upper", "annex")]
    return [*misses, call(run.trade.find, {"query": "hall"}, run.listing(0, 4))]


ENDINGS = (_polling, _pages, _retried, _batch, _corrected, _computed, _dated, _empty)
PER_ENDING = 15


def records() -> list[Record]:
    """All records: 140 with a fault, 120 healthy."""
    return [*_faulty(), *_healthy()]


def fault(record: Record) -> tuple[str, int]:
    """The fault of a record, or the kind of healthy run, and its wording from 0."""
    _, name, wording, _ = record.id.split("/")
    return name, int(wording)


def _faulty() -> Iterator[Record]:
    seed = SEED
    for one in FAULTS:
        for wording in range(WORDINGS):
            for turn in range(PER_WORDING):
                seed += 1
                run = Run(TRADES[seed % len(TRADES)], seed)
                begun = run.start()
                steps, wrong = one.make(run, wording)
                where = len(begun) + wrong
                id_ = f"fresh/{one.name}/{wording}/{turn}"
                wanted = task(run, one, wording)
                yield _record(id_, FAULTY, wanted, [*begun, *steps], one.kind, where)


def task(run: Run, one: Fault, wording: int) -> str:
    """What a run with a fault is asked to do; limits and lists of wanted things stand here."""
    if one.make is _unfinished:
        wanted = ", ".join(run.ids[:4])
        return f"{run.trade.goal}: {wanted}. All four are needed."
    if one.make is _constraint:
        tool = run.trade.undo if wording in (2, 4) else run.trade.other
        limits = (
            f"Do not use {tool}.",
            f"{tool} is off limits.",
            f"Under no circumstances may {tool} be called.",
            f"Verwende {tool} nicht.",
            f"Work without {tool}.",
        )
        return f"{run.trade.goal}. {limits[wording]}"
    return run.trade.goal + "."


def _healthy() -> Iterator[Record]:
    seed = SEED * 2
    for ending in ENDINGS:
        name = ending.__name__.strip("_")
        for turn in range(PER_ENDING):
            seed += 1
            run = Run(TRADES[seed % len(TRADES)], seed)
            said = f"{run.trade.thing} {run.ids[0]} is at {run.prices[0]:.2f}."
            steps = [*run.start(), *ending(run), run.say(said)]
            yield _record(
                f"fresh/{name}/0/{turn}", FRESH_HEALTHY, run.trade.goal + ".", steps, None, None
            )


def _record(
    id_: str, source: str, task: str, steps: list[Step], kind: str | None, where: int | None
) -> Record:
    labels = frozenset({kind} if kind else ())
    return Record(id_, source, task, tuple(steps), labels, frozenset(), where, half(id_))
