"""What desks ask of large stores is answered from indexes: SQLite's own plans say so."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tables import table

from triage.stores import SQLiteStore
from triage.stores.base import Order
from triage.stores.sql import Query

QUERIES: tuple[tuple[str, str | None, str | None, Order, str], ...] = (
    ("incident", None, None, "due", "runs_by_due (kind=? AND due>? AND due<?)"),
    ("incident", "detected", None, "updated", "runs_by_kind (kind=? AND status=? AND updated<?)"),
    ("incident", None, "T-1 ", "updated", "runs_by_subject (kind=? AND subject>? AND subject<?)"),
    ("task", "waiting", None, "updated", "runs_by_kind (kind=? AND status=? AND updated<?)"),
    ("run", "escalated", None, "finished", "runs_by_end (finished>? AND finished<?)"),
    ("run", "running", None, "idle", "runs_by_status (status=?)"),
)


@table(("kind", "status", "subject", "by", "index"), QUERIES)
def test_each_query_has_its_index(
    kind: str, status: str | None, subject: str | None, by: Order, index: str, tmp_path: Path
) -> None:
    driver = SQLiteStore(tmp_path / "runs.db").connect(writes=False)
    said: list[str] = []
    with closing(driver):
        driver.raw.set_trace_callback(said.append)
        driver.journals(Query(kind, status, subject, by, None, 1.0, 10))
        driver.raw.set_trace_callback(None)
        (asked,) = [statement for statement in said if "FROM runs" in statement]
        plan = [row[3] for row in driver.raw.execute(f"EXPLAIN QUERY PLAN {asked}")]
    assert f"USING INDEX {index}" in plan[0], plan


def test_without_its_index_a_query_is_a_scan_so_the_test_can_fail(tmp_path: Path) -> None:
    driver = SQLiteStore(tmp_path / "runs.db").connect(writes=True)
    with closing(driver):
        driver.raw.execute("DROP INDEX runs_by_due")
        driver.raw.execute("DROP INDEX runs_by_kind")
        driver.raw.execute("DROP INDEX runs_by_subject")
        asked = "EXPLAIN QUERY PLAN SELECT * FROM runs WHERE kind = 'incident' AND due < 1"
        assert any(row[3].startswith("SCAN") for row in driver.raw.execute(asked))
