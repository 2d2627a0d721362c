"""What the agents of the lab work on: domains, their items in SQLite and files, orders, a clock."""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Domain:
    """The words of one line of business; the tools take their names from it."""

    name: str
    noun: str
    prefix: str
    places: tuple[str, ...]
    words: tuple[str, ...]
    search: str
    backup: str
    detail: str
    note: str
    act: str
    status: str
    found_in_note: str


DOMAINS = (
    Domain(
        "flights", "flight", "FL",
        ("Lisbon", "Oslo", "Vienna", "Rome", "Porto", "Riga"),
        ("Morning", "Express", "Night", "Budget", "Coastal", "Alpine"),
        "search_flights", "search_charter_flights", "get_flight", "read_boarding_note",
        "book_flight", "get_checkin_status", "gate",
    ),
    Domain(
        "hotels", "room", "RM",
        ("Kyoto", "Malaga", "Bergen", "Ghent", "Turin", "Split"),
        ("Garden", "Harbour", "Attic", "Royal", "Quiet", "Corner"),
        "find_rooms", "find_rooms_by_phone_list", "get_room", "read_arrival_note",
        "reserve_room", "get_cleaning_status", "door code",
    ),
    Domain(
        "parts", "part", "PT",
        ("Depot A", "Depot B", "Depot C", "Yard 4", "Yard 7", "Yard 9"),
        ("Bearing", "Valve", "Gasket", "Filter", "Piston", "Sensor"),
        "search_stock", "search_supplier_stock", "get_part", "read_fitting_note",
        "order_part", "get_shipment_status", "torque",
    ),
    Domain(
        "books", "book", "BK",
        ("Main Hall", "Annex", "Law", "Music", "Maps", "Archive"),
        ("Atlas", "Primer", "Letters", "Diaries", "Sonatas", "Charters"),
        "search_catalogue", "search_union_catalogue", "get_book", "read_shelf_note",
        "purchase_book", "get_loan_status", "shelf mark",
    ),
    Domain(
        "concerts", "ticket", "TK",
        ("Arena", "Opera", "Club", "Park", "Chapel", "Pier"),
        ("Stalls", "Balcony", "Box", "Terrace", "Pit", "Circle"),
        "list_tickets", "list_resale_tickets", "get_ticket", "read_venue_note",
        "buy_ticket", "get_queue_status", "entrance",
    ),
    Domain(
        "pharmacy", "medicine", "MD",
        ("Ward 1", "Ward 2", "Ward 3", "Clinic", "Lab", "Store"),
        ("Tablets", "Drops", "Spray", "Patch", "Syrup", "Ampoules"),
        "search_medicines", "search_wholesale", "get_medicine", "read_storage_note",
        "order_medicine", "get_cooling_status", "cabinet",
    ),
    Domain(
        "cars", "car", "CR",
        ("Airport", "Station", "Centre", "Port", "Campus", "Fair"),
        ("Estate", "Compact", "Van", "Coupe", "Electric", "Cabrio"),
        "search_cars", "search_partner_cars", "get_car", "read_pickup_note",
        "rent_car", "get_charging_status", "parking bay",
    ),
    Domain(
        "servers", "machine", "SV",
        ("eu-1", "eu-2", "us-1", "us-2", "ap-1", "ap-2"),
        ("web", "queue", "cache", "index", "proxy", "batch"),
        "search_machines", "search_spare_machines", "get_machine", "read_runbook",
        "lease_machine", "get_rollout_status", "rack",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One thing there is."""

    id: str
    name: str
    place: str
    price: int
    file: str
    code: str


@lru_cache
def items_of(domain: Domain, seed: int) -> tuple[Item, ...]:
    """Four to six items in each place, no two of one price."""
    rng = random.Random(f"{domain.name}-{seed}")
    numbers = rng.sample(range(100, 999), 60)
    prices = rng.sample(range(40, 990), 60)
    made = []
    for place in domain.places:
        names = rng.sample(domain.words, rng.randint(4, 6))
        for name in names:
            number = numbers.pop()
            made.append(
                Item(
                    f"{domain.prefix}-{number}",
                    f"{name} {rng.choice('ABCDEFGH')}{rng.randint(2, 9)}",
                    place,
                    prices.pop(),
                    f"{domain.prefix.lower()}{number}.json",
                    f"{rng.choice('KLMNPR')}{rng.randint(10, 99)}",
                )
            )
    return tuple(made)


class Clock:
    """Virtual seconds: whoever sleeps moves the clock, and nobody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self.now += max(0.0, seconds)
        self.slept += max(0.0, seconds)


@dataclass
class World:
    """What one play of one task has: its own data, orders, clock and counters."""

    domain: Domain
    seed: int
    folder: Path
    clock: Clock = field(default_factory=Clock)
    tool_calls: list[tuple[str, dict[str, Any], Any]] = field(default_factory=list)
    holding: sqlite3.Connection | None = None
    idempotent: bool = False
    """Whether an order of what was ordered before gets the first receipt again."""

    def __post_init__(self) -> None:
        self.items = items_of(self.domain, self.seed)
        self.database = self.folder / "world.db"
        rows = [(i.id, i.name, i.place, i.price, 1, i.file) for i in self.items]
        with self.connect() as made:
            made.execute("create table items (id primary key, name, place, price, version, file)")
            made.execute("create table orders (n integer primary key, item, price, memo)")
            made.executemany("insert into items values (?, ?, ?, ?, ?, ?)", rows)
        made.close()
        for item in self.items:
            note = {"file": item.file, self.domain.found_in_note: item.code}
            (self.folder / item.file).write_text(json.dumps(note), encoding="utf-8")

    def connect(self) -> sqlite3.Connection:
        """A connection of its own; it waits for no lock, and nothing here outlives a power cut."""
        made = sqlite3.connect(self.database, timeout=0, check_same_thread=False)
        made.execute("pragma synchronous=off")
        return made

    def reprice(self, item_id: str) -> None:
        """Change what an item costs: whoever has read it before has read something stale."""
        with self.connect() as made:
            made.execute(
                "update items set price = price + 13, version = version + 1 where id = ?",
                (item_id,),
            )
        made.close()

    def order(self, item_id: str, price: int, memo: str) -> str | None:
        """Write an order into the ledger; its receipt, or None if that is not the price."""
        with self.connect() as made:
            row = made.execute("select price from items where id = ?", (item_id,)).fetchone()
            if row is None or row[0] != price:
                return None
            before = made.execute("select n from orders where item = ?", (item_id,)).fetchone()
            if self.idempotent and before is not None:
                return f"R-{item_id}-{before[0]}"
            done = made.execute(
                "insert into orders (item, price, memo) values (?, ?, ?)", (item_id, price, memo)
            )
            number = done.lastrowid
        made.close()
        return f"R-{item_id}-{number}"

    def orders(self) -> list[tuple[str, int]]:
        """What was ordered, in order."""
        made = self.connect()
        rows = made.execute("select item, price from orders order by n").fetchall()
        made.close()
        return [(str(item), int(price)) for item, price in rows]

    def lock(self) -> None:
        """Hold the database, so that nobody else can read it."""
        self.holding = self.connect()
        self.holding.execute("begin exclusive")

    def unlock(self) -> None:
        """Let others read again."""
        if self.holding is not None:
            self.holding.rollback()
            self.holding.close()
            self.holding = None


def new_world(domain: Domain, seed: int) -> World:
    """A world in a folder of its own, which the caller removes."""
    return World(domain, seed, Path(tempfile.mkdtemp(prefix="recovery-")))
