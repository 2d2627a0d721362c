"""What the analyst can do: five capabilities over a SQLite database and CSV files."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from triage.plan import Capability, Registry

DATA = Path(__file__).parent / "data"
TASK = (
    "Which regions missed their sales target in October 2025, and by how much? Publish the finding."
)
_TABLES = "the table sales(day TEXT as YYYY-MM-DD, region TEXT, units INTEGER, cents INTEGER)"
_FILES = "targets.csv(region, target: units in October 2025), managers.csv(region, manager)"
_MOST_ROWS = 200


class Desk:
    """The analyst's desk: a database of its own, made from the shipped one, and the CSV files."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "sales.sqlite"
        self.database.write_bytes((DATA / "sales.sqlite").read_bytes())

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of one SELECT. The database cannot be changed here."""
        address = f"file:{self.database}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=0.05)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(sql).fetchmany(_MOST_ROWS)]

    def load(self, name: str) -> list[dict[str, Any]]:
        """The rows of a CSV file of this folder; numbers as numbers."""
        if Path(name).name != name:
            raise ValueError(f"{name} is not the name of a file of this folder")
        with (DATA / name).open(newline="", encoding="utf-8") as file:
            return [
                {key: int(value) if value.isdecimal() else value for key, value in row.items()}
                for row in csv.DictReader(file)
            ]

    def compare(
        self, table: list[list[dict[str, Any]]], key: str, actual: str, wanted: str
    ) -> list[dict[str, Any]]:
        """What is short of what was wanted, the most first: two tables joined by `key`."""
        first, second = table
        targets = {row[key]: row[wanted] for row in second}
        short = [
            {key: row[key], "actual": row[actual], "wanted": targets[row[key]]} for row in first
        ]
        missed = [row | {"short": row["wanted"] - row["actual"]} for row in short]
        return sorted((row for row in missed if row["short"] > 0), key=lambda row: -row["short"])

    def publish(self, finding: list[dict[str, Any]], title: str) -> int:
        """Publish a finding, for everybody to see; its number."""
        with closing(sqlite3.connect(self.database, timeout=5)) as database, database:
            told = database.execute(
                "INSERT INTO published (title, body) VALUES (?, ?)", (title, sentence(finding))
            )
            return int(told.lastrowid or 0)

    def published(self) -> list[tuple[int, str, str]]:
        """All that was published."""
        with closing(sqlite3.connect(self.database, timeout=5)) as database:
            return database.execute("SELECT id, title, body FROM published").fetchall()

    @contextmanager
    def locked(self) -> Generator[sqlite3.Connection]:
        """Another program has the database to itself, until it rolls back."""
        with closing(sqlite3.connect(self.database, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield other

    def registry(self) -> Registry:
        """The five, as a planner may use them."""
        return Registry([
            Capability(
                "query", f"the rows of one SQL SELECT of SQLite, over {_TABLES}", self.query,
                provides=("TABLE",), effect="read",
            ),
            Capability(
                "load", f"the rows of a CSV file: {_FILES}", self.load,
                provides=("TABLE",), effect="read",
            ),
            Capability(
                "compare",
                "what is short of what was wanted. Give it two TABLE inputs: first the actual numbers, "
                "then the wanted ones; key, actual and wanted are names of columns",
                self.compare, requires=("TABLE",), provides=("FINDING",), effect="read",
            ),
            Capability(
                "publish", "publishes a FINDING for everybody to see, under a title", self.publish,
                requires=("FINDING",), provides=("RECEIPT",), effect="once",
            ),
            Capability(
                "respond", "answers the user with a FINDING, and the RECEIPT if it was published",
                respond, effect="read", responds=True,
            ),
        ])  # fmt: skip


def sentence(finding: list[dict[str, Any]]) -> str:
    """A finding in words."""
    if not finding:
        return "Every target was met."
    return "; ".join(
        f"{next(iter(row.values()))} sold {row['actual']} of {row['wanted']}, {row['short']} short"
        for row in finding
    )


def respond(finding: list[dict[str, Any]], receipt: int | None = None) -> str:
    """The answer to the user."""
    where = "" if receipt is None else f" (published as number {receipt})"
    return f"{sentence(finding)}{where}"
