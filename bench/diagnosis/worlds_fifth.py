"""Ten places of work for the fifth look, and a run in one of them, recorded in one of four ways."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

from triage.adapters.recordings import read

from .dealing import Healthy, Step, Told, call, say

_CHANCE_LONG = 0.4
_FIELDS = ("action", "tool_called", "tool_input", "tool_output", "llm_output", "error")


class World(NamedTuple):
    """A place of work. find, look, act, undo, tell, aside: its tools. key: the argument that names one
    of its things. number: how ids are written. slot: what `act` changes. ask: the task. after: what a
    thing's status is once that is done. stray: an aim that nobody asked for. talk: remarks about
    things, in the words of failures.
    """

    name: str
    find: str
    look: str
    act: str
    undo: str
    tell: str
    aside: str
    key: str
    noun: str
    number: str
    slot: str
    slots: tuple[str, ...]
    kinds: tuple[str, ...]
    people: tuple[str, ...]
    amount: str
    before: str
    after: str
    ask: str
    stray: str
    talk: tuple[str, ...]


WORLDS = (
    World(
        "logistics", "list_shipments", "get_shipment", "reroute_shipment", "cancel_reroute",
        "message_driver", "lookup_fuel_prices", "shipment_id", "shipment", "SHP-{:05d}", "depot",
        ("Lyon Sud", "Ghent Harbour", "Brno East", "Turin Nord", "Lodz"),
        ("ceramic tiles", "bottled water", "bicycle frames", "medical gloves"),
        ("Marta Keller", "Idris Bello", "Jonas Vind", "Sofia Prado"),
        "weight_kg", "in transit", "rerouted",
        "Reroute shipment {id} to the {slot} depot and let {person} know when that is done.",
        "compare diesel prices along the A7",
        ("Driver reported: scan failed twice at gate 4, label printed again", "Unauthorized stop, 12 min",
         "Timeout at the weighbridge, queue of lorries", "ERROR label on pallet 3 is the brand's name"),
    ),
    World(
        "clinic", "search_appointments", "get_appointment", "move_appointment", "cancel_appointment",
        "text_patient", "read_formulary", "appointment_id", "appointment", "APT{:06d}", "room",
        ("Room 2B", "Room 5A", "Ultrasound 1", "Physio Hall", "Day Ward"),
        ("check-up", "ultrasound", "physiotherapy", "blood sample"),
        ("Nadia Olsen", "Peter Achterberg", "Lucia Moreau", "Hamid Rezai"),
        "minutes", "booked", "moved",
        "Move appointment {id} into {slot} and text {person} about the change.",
        "look up which painkillers the formulary lists",
        ("Heart failure, follow-up in 6 weeks", "Patient timed out of the treadmill test at 9 min",
         "Referral rejected by insurer in May, accepted in June", "Allergy: error in the old record, none"),
    ),
    World(
        "museum", "search_catalogue", "open_entry", "assign_location", "withdraw_assignment",
        "notify_curator", "translate_label", "object_no", "object", "1987.{:04d}", "store",
        ("Store C shelf 9", "North Vault", "Paper Room", "Textile Drawer 12", "Quarantine Bay"),
        ("gouache on card", "bronze fibula", "ledger of 1771", "glass negative"),
        ("Dr. Elin Sandqvist", "Tomasz Wrona", "Amina Haddad", "Colm Brady"),
        "height_mm", "unplaced", "placed",
        "Give object {id} the location {slot} and notify {person}.",
        "translate the labels of the Greek gallery",
        ("Title: 'The Failed Crossing', etching", "Inscription reads 404, meaning unknown",
         "Provenance disputed, claim denied in 1953", "Print from the series 'Errors of the Moon'"),
    ),
    World(
        "farm", "list_sensors", "read_sensor", "set_zone", "clear_zone", "page_agronomist",
        "get_market_price", "sensor", "sensor", "soil-{:03d}", "zone",
        ("orchard-west", "tunnel-3", "lower-meadow", "barley-7", "seedling-house"),
        ("moisture probe", "thermometer", "salinity probe", "rain gauge"),
        ("Greta Lindqvist", "Owen Parry", "Chidi Eze", "Paula Neumann"),
        "reading", "unassigned", "assigned",
        "Put sensor {id} into zone {slot} and page {person} afterwards.",
        "find out what wheat fetches at the exchange",
        ("pump relay: retry count 3, then primed", "frost failed to set in, vents stayed open",
         "rate limit on valve 2 is 40 l/min", "connection to well 4 is a 2-inch pipe"),
    ),
    World(
        "tax office", "query_filings", "fetch_filing", "assign_filing", "release_filing", "write_letter",
        "read_gazette", "filing_ref", "filing", "T/{:06d}", "desk",
        ("Desk 14", "Desk 3 (VAT)", "Appeals", "Desk 21", "Cross-border Unit"),
        ("VAT return", "income statement", "excise declaration", "refund claim"),
        ("Ruth Calloway", "Ibrahim Sesay", "Vera Dvořák", "Lars Tveit"),
        "amount_eur", "received", "with a desk",
        "Assign filing {id} to {slot} and write to {person} that this was done.",
        "summarise this month's gazette",
        ("Taxpayer failed to sign page 2, signed since", "Penalty quota exhausted under § 14",
         "Late: the deadline was exceeded by a day, excused", "Access to the file denied to third parties"),
    ),
    World(
        "game back office", "list_players", "get_player", "grant_item", "revoke_item", "send_mail",
        "read_forum", "player_id", "player", "p{:07d}", "item",
        ("amber_saddle", "storm_lantern", "iron_heron", "winter_cloak", "second_map"),
        ("ranger", "tinker", "bard", "warden"),
        ("ossifrage", "MiraBelle", "tin_whistle", "kpt_null"),
        "gold", "eligible", "granted",
        "Grant {slot} to player {id}, then mail {person} that it is in the bag.",
        "collect what the forum says about the new map",
        ("quest 'Error of the King' finished", "guild 'Connection Refused' joined",
         "died 503 times at the bridge", "bug report closed: timeout was the player's own wifi"),
    ),
    World(
        "library", "search_loans", "show_loan", "extend_loan", "end_loan", "email_reader",
        "search_reviews", "loan", "loan", "L-{:06d}", "branch",
        ("Hillside", "Old Mill", "Station Road", "Campus", "Riverside"),
        ("The Long Dark Harbour", "Field Guide to Moss", "Bread by Hand", "A Trial of Errors"),
        ("Annette Kirby", "Daniel Okoro", "Yuki Tanabe", "Rosa Fuentes"),
        "days_left", "open", "extended",
        "Extend loan {id} at the {slot} branch and email {person} the news.",
        "collect reviews of books about moss",
        ("Book: 'Timeout: A Coach's Life'", "Invalid card in 2019, replaced",
         "Subject heading: Error (Logic); Failure (Psychology)", "Returned with a page missing, not found"),
    ),
    World(
        "chat support", "search_tickets", "read_ticket", "route_ticket", "unroute_ticket",
        "reply_customer", "search_blog", "ticket", "ticket", "#{:05d}", "queue",
        ("billing", "mobile", "refunds", "onboarding", "enterprise"),
        ("cannot log in", "double charge", "wrong language", "invoice address"),
        ("Priya Nair", "Gustav Holm", "Leila Farouk", "Ben Achebe"),
        "age_h", "new", "routed",
        "Route ticket {id} to the {slot} queue and reply to {person}.",
        "look for blog posts about our rivals",
        ("Customer sees 'Error 401 Unauthorized' since Monday", "App says request timed out after update",
         "Says payment failed; bank says it went through", "Asks what 'rate limit exceeded' means"),
    ),
    World(
        "operations", "list_services", "describe_service", "pin_release", "unpin_release", "page_oncall",
        "search_wiki", "service", "service", "svc-{:04d}", "release",
        ("2026.11.3", "2026.10.9", "2026.11.1", "2026.9.14", "2026.8.30"),
        ("checkout", "thumbnailer", "ledger", "mail relay"),
        ("Farid Amini", "Hanne Bakke", "Joao Lima", "Wei Song"),
        "replicas", "floating", "pinned",
        "Pin service {id} to release {slot} and page {person} when it holds.",
        "read up on the history of the wiki",
        ("runbook: on ECONNREFUSED drain the node first", "alert name: HighErrorRate, resolved at 02:10",
         "postmortem of the 503 storm, closed", "log level ERROR is routed to the cold index"),
    ),
    World(
        "travel", "search_trips", "get_trip", "change_hotel", "drop_hotel", "mail_traveller",
        "get_weather", "trip", "trip", "TRV{:05d}", "hotel",
        ("Hotel Amsel", "Casa Verde", "The Anchor", "Pension Iris", "Grand Tivoli"),
        ("long weekend", "conference", "honeymoon", "school journey"),
        ("Clara Weiss", "Mateo Ruiz", "Ingrid Aas", "Samuel Adeyemi"),
        "nights", "planned", "changed",
        "Change the hotel of trip {id} to {slot} and mail {person}.",
        "find the sunniest island in March",
        ("Visa denied in 2018, granted in 2024", "Flight cancelled by the airline, refunded",
         "Wants a bar called 'Null Pointer'", "Ferry failed to sail in the storm, next one taken"),
    ),
)  # fmt: skip

SHAPES = ("openai", "anthropic", "mcp", "by hand")
"""How a run is recorded: as chat messages, as blocks, with results as MCP gives them, or as plain steps."""
_MATES = ("intake", "records", "dispatch")


def asks(text: str) -> Step:
    """One step in which the user says something more."""
    return {**call(None, None, None), "action": f"user: {text}"}


class Job:
    """A run in one world. id: the thing it is about. slot, person: what is to be done with it, and who
    is told. others: more things, which the task does not name.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.rng = Random(seed * 7919)
        self.world = WORLDS[(seed + 3 * (seed // 10)) % len(WORLDS)]
        self.shape = self.rng.choice(SHAPES)
        numbers = self.rng.sample(range(100, 999), 260)
        self.id, *self.others = (self.world.number.format(number) for number in numbers)
        self.slot, self.other_slot, *_ = self.rng.sample(self.world.slots, 3)
        self.person, self.other_person, *_ = self.rng.sample(self.world.people, 3)
        self.task = self.world.ask.format(id=self.id, slot=self.slot, person=self.person)
        self._read = 0

    @property
    def tools(self) -> Mapping[str, Any]:
        """The tools with the schemas of their arguments and results; none where steps are kept by hand."""
        if self.shape == "by hand":
            return {}
        world = self.world
        text, whole = {"type": "string"}, {"type": "integer"}
        thing = {
            world.key: text, "kind": text, "status": text, world.slot: text, world.amount: whole,
        }  # fmt: skip
        return {
            world.find: _schemas({"query": text, "page": whole}, ["query"]),
            world.look: _schemas({world.key: text}, [world.key], thing),
            world.act: _schemas({world.key: text, world.slot: text}, [world.key, world.slot]),
            world.undo: _schemas({world.key: text}, [world.key]),
            world.tell: _schemas({"to": text, "text": text}, ["to", "text"]),
            world.aside: _schemas({"about": text}, ["about"]),
            **{f"transfer_to_{mate}": _schemas({}, []) for mate in _MATES},
        }

    def start(self) -> list[Step]:
        """None to three steps, or forty to a hundred that read on and on, some with hand-overs."""
        steps = [say(f"I will look at {self.id} first, then see to the rest.", "plan")]
        if self.rng.random() < _CHANCE_LONG:
            steps += self.work(self.rng.randint(38, 98))
        else:
            steps = steps[: self.rng.randint(0, 1)] + self.work(self.rng.randint(0, 2))
        return self._shaped(steps)

    def told(self, steps: Iterable[Step], wrong: int, task: str | None = None) -> Told:
        """A faulty run. wrong: which of the steps is decisive."""
        shaped = self._shaped(steps)
        return task or self.task, shaped, wrong

    def went(self, steps: Iterable[Step], task: str | None = None) -> Healthy:
        """A run that went well."""
        return task or self.task, self._shaped(steps)

    def work(self, count: int) -> list[Step]:
        """So many steps that serve the task and are about other things each time."""
        steps: list[Step] = []
        while len(steps) < count:
            batch, listed = self.page()
            steps.append(listed)
            steps += [self.read(one) for one in batch[: self.rng.randint(2, 4)]]
            if self.rng.random() < 0.3:
                mate = self.rng.choice(_MATES)
                steps.append(call(f"transfer_to_{mate}", {}, {"agent": mate, "page": self._read}))
            if self.rng.random() < 0.4:
                steps.append(
                    say(f"{batch[-1]} has nothing to do with {self.id}; page {self._read} is read.")
                )
        return steps[:count]

    def page(self) -> tuple[list[str], Step]:
        """The ids on the next page of the list, and the step that reads it."""
        ids = self.others[self._read * 4 : self._read * 4 + 4]
        self._read += 1
        items = [{self.world.key: one, "kind": self.thing(one)["kind"]} for one in ids]
        asked = {"query": self.world.before, "page": self._read}
        return ids, call(self.world.find, asked, {"items": items, "page": self._read})

    def last_page(self) -> Step:
        """The page after the last."""
        asked = {"query": self.world.before, "page": self._read + 1}
        return call(self.world.find, asked, {"items": [], "page": self._read + 1})

    def thing(self, id_: str, **more: Any) -> dict[str, Any]:
        """What is on record about a thing, always the same."""
        rng = Random(f"{self._seed}/{id_}")
        world = self.world
        return {
            world.key: id_,
            "kind": rng.choice(world.kinds),
            "status": world.before,
            world.slot: self.other_slot if id_ == self.id else rng.choice(world.slots),
            world.amount: rng.randint(11, 980),
            **more,
        }

    def read(self, id_: str, **more: Any) -> Step:
        """Look one thing up."""
        return call(self.world.look, {self.world.key: id_}, self.thing(id_, **more))

    def act(self, id_: str | None = None, slot: str | None = None, **more: Any) -> Step:
        """Do to a thing what the task asks for, with success."""
        world, at = self.world, slot or self.slot
        given = {world.key: id_ or self.id, world.slot: at}
        return call(world.act, given, {"ok": True, **given, "status": world.after, **more})

    def refused(self, output: Any, error: str | None = None) -> Step:
        """Do what the task asks for, without success."""
        given = {self.world.key: self.id, self.world.slot: self.slot}
        return call(self.world.act, given, output, error)

    def undo(self, id_: str | None = None) -> Step:
        """Take it back."""
        given = {self.world.key: id_ or self.id}
        return call(self.world.undo, given, {"ok": True, **given, "status": self.world.before})

    def tell(self, text: str | None = None, to: str | None = None) -> Step:
        """Send a message."""
        said = text or f"{self.id}: {self.world.slot} is now {self.slot}."
        return call(self.world.tell, {"to": to or self.person, "text": said}, {"sent": True})

    def done(self) -> Step:
        """Say that the task is done."""
        return say(
            f"{self.id} is {self.world.after}: {self.world.slot} {self.slot}. I told {self.person}."
        )

    def _shaped(self, steps: Iterable[Step]) -> list[Step]:
        steps = list(steps)
        match self.shape:
            case "openai":
                return _read_back(steps, {"messages": list(_messages(steps))}, "openai")
            case "anthropic":
                return _read_back(steps, {"messages": list(_blocks(steps))}, "anthropic")
            case "mcp":
                return [_as_mcp(step) for step in steps]
            case _:
                return steps


def _schemas(given: dict[str, Any], needed: list[str], result: Any = None) -> dict[str, Any]:
    made = {"inputSchema": {"type": "object", "properties": given, "required": needed}}
    if result:
        made["outputSchema"] = {"type": "object", "properties": result, "required": list(result)}
    return made


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _messages(steps: list[Step]) -> Iterable[dict[str, Any]]:
    """The steps as chat messages with tool calls."""
    yield {"role": "user", "content": "Go on."}
    for at, step in enumerate(steps):
        if step["tool_called"]:
            given = (
                step["tool_input"]
                if isinstance(step["tool_input"], str)
                else _text(step["tool_input"])
            )
            function = {"name": step["tool_called"], "arguments": given}
            asked = [{"id": f"call_{at}", "type": "function", "function": function}]
            yield {"role": "assistant", "content": step["llm_output"], "tool_calls": asked}
            said = f"Error: {step['error']}" if step["error"] else _text(step["tool_output"])
            yield {"role": "tool", "tool_call_id": f"call_{at}", "content": said}
        elif step["llm_output"] is None:
            yield {"role": "user", "content": step["action"].removeprefix("user: ")}
        else:
            yield {"role": "assistant", "content": step["llm_output"]}


def _blocks(steps: list[Step]) -> Iterable[dict[str, Any]]:
    """The steps as messages of content blocks."""
    yield {"role": "user", "content": "Go on."}
    for at, step in enumerate(steps):
        spoken = [{"type": "text", "text": step["llm_output"]}] if step["llm_output"] else []
        if step["tool_called"]:
            use = {"type": "tool_use", "id": f"toolu_{at}", "name": step["tool_called"]}
            yield {"role": "assistant", "content": [*spoken, {**use, "input": step["tool_input"]}]}
            result = {
                "type": "tool_result",
                "tool_use_id": f"toolu_{at}",
                "is_error": bool(step["error"]),
            }
            text = {"type": "text", "text": step["error"] or _text(step["tool_output"])}
            yield {"role": "user", "content": [{**result, "content": [text]}]}
        elif spoken:
            yield {"role": "assistant", "content": spoken}
        else:
            yield {"role": "user", "content": step["action"].removeprefix("user: ")}


def _read_back(steps: list[Step], talk: dict[str, Any], form: str) -> list[Step]:
    """The steps as a reader of recordings gives them, one for each."""
    if not steps:
        return []
    [trace] = read(json.dumps(talk).encode(), form).traces
    found = [{name: getattr(step, name) for name in _FIELDS} for step in trace.trajectory]
    if len(found) != len(steps):
        raise ValueError(f"{len(steps)} steps were read back as {len(found)}")
    return found


def _as_mcp(step: Step) -> Step:
    """The step with its result as an MCP server gives it."""
    if not step["tool_called"]:
        return step
    output, error = step["tool_output"], step["error"]
    result: dict[str, Any] = {"content": [{"type": "text", "text": error or _text(output)}]}
    if isinstance(output, dict) and not error:
        result["structuredContent"] = output
    return {**step, "tool_output": {**result, "isError": bool(error)}, "error": None}
