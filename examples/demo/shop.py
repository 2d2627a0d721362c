"""The world of the demonstration: a fare list in CSV and a shop in SQLite.

The shipped files are never written: a `Shop` works on its own copy of the database.
"""

from __future__ import annotations

import csv
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parent / "data"


class Fare(NamedTuple):
    """One fare: its id, the airline, free seats and the price of one seat in cents."""

    fare_id: str
    airline: str
    seats: int
    cents: int


class Order(NamedTuple):
    """One order of a customer, with the most they will pay, in cents."""

    order_id: int
    customer: str
    city: str
    budget_cents: int


class Charge(NamedTuple):
    """One row of the ledger: money really taken."""

    receipt: str
    order_id: int
    cents: int


class Shop:
    """Fares, orders and the ledger of charges; safe to use from several threads.

    directory: where the copy of `data/shop.sqlite` is put.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "shop.sqlite"
        shutil.copyfile(DATA / "shop.sqlite", self.path)

    def fares(self, city: str, passengers: int = 1) -> list[Fare]:
        """The fares to a city with that many free seats, in the order of the file."""
        with (DATA / "fares.csv").open(encoding="utf-8", newline="") as file:
            return [
                Fare(row["fare_id"], row["airline"], int(row["seats"]), int(row["cents"]))
                for row in csv.DictReader(file)
                if row["city"].casefold() == city.casefold() and int(row["seats"]) >= passengers
            ]

    def order(self, order_id: int) -> Order | None:
        """The order, None if there is none of that number."""
        query = "SELECT order_id, customer, city, budget_cents FROM orders WHERE order_id = ?"
        with closing(self._connect()) as db:
            row = db.execute(query, (order_id,)).fetchone()
        return None if row is None else Order(*row)

    def charge(self, order_id: int, cents: int, key: str) -> str:
        """Take the money and return the receipt; the same key again takes nothing.

        Raises LookupError for an unknown order.
        """
        if self.order(order_id) is None:
            raise LookupError(f"there is no order {order_id}")
        insert = (
            "INSERT INTO charges (order_id, cents, idempotency_key) VALUES (?, ?, ?)"
            " ON CONFLICT (idempotency_key) DO NOTHING"
        )
        with closing(self._connect()) as db, db:
            db.execute(insert, (order_id, cents, key))
            select = "SELECT charge_id FROM charges WHERE idempotency_key = ?"
            (charge_id,) = db.execute(select, (key,)).fetchone()
        return f"R-{charge_id}"

    def charges(self, order_id: int | None = None) -> list[Charge]:
        """The ledger, oldest first: of one order, or all of it."""
        query = "SELECT charge_id, order_id, cents FROM charges ORDER BY charge_id"
        with closing(self._connect()) as db:
            rows = db.execute(query).fetchall()
        ledger = [Charge(f"R-{charge_id}", order, cents) for charge_id, order, cents in rows]
        return [row for row in ledger if order_id is None or row.order_id == order_id]

    def repeated_charges(self) -> int:
        """How many charges are second or later ones of their order."""
        ledger = self.charges()
        return len(ledger) - len({row.order_id for row in ledger})

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=5)
