"""Runs in SQL: statements and their logic, written once for all dialects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple

from triage.core.errors import (
    DeadLetter,
    RunBusy,
    RunOver,
    StaleWriter,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
    UnknownRun,
)
from triage.core.events import Event

from .base import Change, Order, Owned, RunInfo
from .rows import Append, Row, events_of, info_of, packed, refused, row_of

Values = Mapping[str, Any]
Transaction = Literal["commit", "large", "prune", "read"]
"""Kinds of transaction: appends or changes of owners, appends with large values, removal, reading."""

PRUNED = 200
"""Runs removed in one commit. Others may write between two commits."""

# Statements. `:name` stands for a value, `:now` for the store's time. A dialect fills in the braces:
# sound     whether the row of a run matches its checksum
# sealed    sets the checksum of a row whose claims become 0
# rows      in a statement for many rows of values, their source; and_rows after another source
# written   the runs that an append has just changed
# skip      leaves out rows that others have locked

_LEASE = "THEN coalesce(:now + :lease_s, runs.lease_until)"
_FINISHED = "CASE WHEN :ended THEN :now END"
# These change nothing for a writer that is not the owner or not at the journal's end.
_BY_OWNER = """{rows}
WHERE runs.run_id = :run_id AND runs.epoch = :epoch AND runs.events = :at AND :at > 0 AND {sound}"""
CREATE = f"""
INSERT INTO runs (run_id, kind, agent, parent, started, updated, events, status, token, subject, due,
    lease_until, finished, epoch, claims, claimant)
SELECT :run_id, :kind, :agent, :parent, :started, :updated, :count, :status, :token, :subject, :due,
    CASE WHEN :leased THEN :now + :lease_s END, {_FINISHED}, 0, 0, ''
{{rows}} WHERE :at = 0 AND :epoch = 0 AND :agent IS NOT NULL
ON CONFLICT (run_id) DO NOTHING"""
GO_ON = f"""
UPDATE runs SET
    events = runs.events + :count,
    updated = :updated,
    claims = CASE WHEN :progress THEN 0 ELSE runs.claims END,
    lease_until = CASE WHEN runs.status = 'running' {_LEASE} ELSE runs.lease_until END
{_BY_OWNER} AND :status IS NULL"""
# Separate from the statement before, which must not touch indexed columns.
TURN = f"""
UPDATE runs SET
    events = runs.events + :count,
    updated = :updated,
    status = :status,
    token = :token,
    subject = coalesce(:subject, runs.subject),
    due = :due,
    claims = CASE WHEN :leased AND NOT :progress THEN runs.claims ELSE 0 END,
    lease_until = CASE WHEN :leased {_LEASE} END,
    finished = {_FINISHED}
{_BY_OWNER} AND :status IS NOT NULL"""
ADD = """
INSERT INTO events (run, seq, count, crc, body, refs)
SELECT {written}.id, :at, :count, :crc, :body, :refs FROM {written}{and_rows}
WHERE {written}.run_id = :run_id"""
_KEEP = """
INSERT INTO blobs (digest, body) SELECT :digest, :packed {rows} WHERE true
ON CONFLICT (digest) DO NOTHING"""
_USE = """
INSERT INTO uses (run, digest)
SELECT runs.id, :digest FROM runs{and_rows} WHERE runs.run_id = :run_id
ON CONFLICT (run, digest) DO NOTHING"""
# Resets the claims of the runs around a run that made progress.
_FORGIVE = """
WITH RECURSIVE around (run_id) AS (
    SELECT runs.parent FROM runs{and_rows} WHERE runs.run_id = :run_id AND runs.parent IS NOT NULL
    UNION
    SELECT runs.parent FROM runs JOIN around USING (run_id) WHERE runs.parent IS NOT NULL)
UPDATE runs SET claims = 0{sealed}
WHERE run_id IN (SELECT run_id FROM around) AND claims > 0 AND status = 'running' AND {sound}"""

_OWNED = """
SELECT runs.run_id, :now, runs.status, runs.events, runs.epoch, runs.claims, runs.lease_until,
    runs.claimant, runs.finished IS NOT NULL
FROM runs{and_rows} WHERE runs.run_id = :run_id AND {sound}"""
# Compare-and-set: leaves a row that has changed since it was read. Without a lock, which a hanging process
# would keep.
_OWN = """
UPDATE runs SET status = :status, epoch = :epoch, claims = :claims, lease_until = :lease_until,
    claimant = :claimant
{rows}
WHERE runs.run_id = :run_id AND runs.status = :was_status AND runs.events = :was_events
    AND runs.epoch = :was_epoch AND runs.claims = :was_claims AND runs.claimant = :was_claimant
    AND coalesce(runs.lease_until, 0) = coalesce(:was_lease_until, 0)"""

_RUN = "SELECT id, events FROM runs WHERE run_id = :run_id AND {sound}"
_ROWS = """
SELECT seq, count, crc, body, refs FROM events WHERE run = :run AND seq >= coalesce(
    (SELECT max(seq) FROM events WHERE run = :run AND seq <= :start), 0)
ORDER BY seq"""
_BODY = "SELECT body FROM blobs WHERE digest = :digest"
_RUNS = f"SELECT {{sound}}, {', '.join(RunInfo._fields)} FROM runs"
_WAITING = "SELECT {sound}, run_id FROM runs WHERE token = :token AND status = 'suspended'"
_ENDED = """
SELECT id FROM runs WHERE finished < :border AND kind = :kind AND id NOT IN (
    SELECT id FROM runs WHERE finished IS NOT NULL AND kind = :kind
    ORDER BY finished DESC, id DESC LIMIT :keep)
LIMIT :most {skip}"""
_TIMES: Mapping[Order, str] = {
    "updated": "updated",
    "finished": "finished",
    "idle": "coalesce(lease_until, updated)",
    "due": "due",
}
_REMOVE = (
    "DELETE FROM events WHERE run IN ({gone})",
    (
        "DELETE FROM blobs WHERE digest IN (SELECT digest FROM uses WHERE run IN ({gone})) AND NOT EXISTS ("
        "SELECT 1 FROM uses WHERE uses.digest = blobs.digest AND run NOT IN ({gone}))"
    ),
    "DELETE FROM uses WHERE run IN ({gone})",
)
_ALL = 2**62
"""A limit above any number of runs."""


INDEXES = (
    "CREATE INDEX runs_by_kind ON runs (kind, status, updated) WHERE subject IS NOT NULL",
    "CREATE INDEX runs_by_subject ON runs (kind, subject) WHERE subject IS NOT NULL",
    "CREATE INDEX runs_by_due ON runs (kind, due) WHERE due IS NOT NULL",
)
"""Indexes of the columns that journals of other kinds than runs have."""


def error_events(value: str) -> str:
    """Return the statement that makes the view of incidents. value: reads `{field}` of `{entry}`."""

    def of(entry: str, field: str) -> str:
        return value.format(entry=f"{entry}.body", field=field)

    action = of("later", "recovery_action")
    return f"""
CREATE VIEW error_events AS
SELECT runs.run_id AS error_id, {of("first", "agent_id")} AS agent_id,
    {of("first", "task_id")} AS task_id, {of("first", "message")} AS error_message,
    {of("first", "level")} AS severity, {of("first", "stack_trace")} AS stack_trace,
    (SELECT {action} FROM events later WHERE later.run = runs.id AND {action} IS NOT NULL
        ORDER BY later.seq DESC LIMIT 1) AS recovery_action,
    runs.status = 'recovered' AS recovered, runs.started AS created_at,
    CASE WHEN runs.status IN ('recovered', 'failed', 'ignored')
        THEN coalesce(runs.finished, runs.updated) END AS resolved_at
FROM runs JOIN events first ON first.run = runs.id AND first.seq = 0 WHERE runs.kind = 'incident'"""


def check_version(place: str, version: int, known: int) -> None:
    """Raise StoreTooNew for tables of a newer release."""
    if version > known:
        raise StoreTooNew(
            f"{place} has tables of version {version}, this release knows {known}; use the release "
            "that wrote it or a newer one"
        )


class Query(NamedTuple):
    """The arguments of `Store.journals`; kind, status and subject are columns."""

    kind: str
    status: str | None
    subject: str | None
    by: Order
    since: float | None
    until: float | None
    limit: int | None


class Driver(ABC):
    """A connection to the database of the runs, used by one thread at a time.

    Texts are columns, as `as_column` makes them. close_at_fork: whether it must be closed before the
    process forks. place: names the database in messages. raw: the connection itself.
    """

    close_at_fork: ClassVar[bool]
    place: str
    raw: Any

    # The dialect ----------------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    @abstractmethod
    def now(self) -> float:
        """As in `Store`."""

    @abstractmethod
    def translated(self) -> AbstractContextManager[None]:
        """Raise errors of the connection inside as a StoreError, or as `Lost`."""

    @abstractmethod
    def _transaction(self, kind: Transaction) -> AbstractContextManager[None]:
        """Raise errors as a StoreError, and take the locks that this kind of transaction needs."""

    @abstractmethod
    def _rows(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        """Execute a statement once; return the rows found."""

    @abstractmethod
    def _each(self, statement: str, values: Sequence[Values]) -> list[tuple[Any, ...]]:
        """Execute a statement once for each of these values; return the rows found."""

    @abstractmethod
    def _change(self, statement: str, values: Sequence[Values]) -> set[str]:
        """Change a run's row for each of these values; return the ids of the changed runs."""

    @abstractmethod
    def _append(self, values: Sequence[Values]) -> set[str]:
        """Create or change runs, and add their events; return the ids of the changed runs."""

    def _remove(self, gone: str) -> None:
        """Delete these rows of runs."""
        self._rows(f"DELETE FROM runs WHERE id IN ({gone})", {})

    def _is_known(self, _run_id: str) -> bool:
        """Whether another table has a run that was not found."""
        return False

    def _past_index(self, _token: str) -> list[tuple[Any, ...]]:
        """Search a token without the index that did not find it; mark a run that has it as damaged."""
        return []

    # Appends --------------------------------------------------------------------------------------

    def commit(self, batch: list[Append]) -> None:
        """Write appends in one commit, in order for each run; set `error` of refused ones."""
        # Compress before taking the lock, for which other processes wait.
        bodies = {piece.digest: packed(piece.body) for each in batch for piece in each.pieces}
        left = [append for append in batch if append.error is None]
        try:
            with self._transaction("commit"):
                for some in _rounds(left):
                    self._write(some, bodies)
        except StoreError as error:
            if type(error) is not StoreError:  # the database failed, whatever it was to keep
                raise
            if len(left) > 1:
                for append in left:
                    self.commit([append])
                return
            (append,) = left
            append.error = StoreError(
                f"run {append.run_id}: the database cannot keep the events from {append.at} on"
            )
            append.error.__cause__ = error

    def _write(self, batch: list[Append], bodies: Mapping[str, bytes]) -> None:
        """Write appends of different runs."""
        left = [append for append in batch if append.lines]
        # Nearly always one pass. An unwritten append is checked, and retried unless refused. Another writer
        # may win each time, but the journal then grows each time.
        while left:
            written = self._written(left, bodies)
            stale = [append for append in left if append.run_id not in written]
            for append in stale:
                append.error = self._refused(append)
            left = [append for append in stale if append.error is None and append.lines]

    def _refused(self, append: Append) -> StoreError | None:
        owned, _ = self._owned([append.run_id]).get(append.run_id, (None, 0.0))
        return refused(append, owned, lambda: self._journal(append.run_id, append.at)[1])

    def _written(self, batch: list[Append], bodies: Mapping[str, bytes]) -> set[str]:
        """Write the appends that are not stale; return the ids of their runs."""
        is_large = any(append.pieces for append in batch)
        with self._transaction("large") if is_large else nullcontext():
            written = self._append([append.columns() for append in batch])
            done = [append for append in batch if append.run_id in written]
            uses = [
                {"run_id": append.run_id, "digest": piece.digest}
                for append in done
                for piece in append.pieces
            ]
            if uses:
                digests = sorted({use["digest"] for use in uses})  # prevents deadlocks
                self._each(_KEEP, [{"digest": one, "packed": bodies[one]} for one in digests])
                self._each(_USE, uses)
        got_on = [{"run_id": append.run_id} for append in done if append.progress and append.epoch]
        if got_on:
            # A separate statement, since a process that hangs in a transaction would block the owners.
            self._each(_FORGIVE, got_on)
        return written

    # Owners ---------------------------------------------------------------------------------------

    def own(self, batch: list[tuple[str, Change]]) -> list[Owned | StoreError]:
        """Change the rows of runs; return the new row of each, or the error of `change`."""
        rows: dict[int, Owned | StoreError] = {}
        with self._transaction("commit"):
            while left := [at for at in range(len(batch)) if at not in rows]:
                turn = {batch[at][0]: at for at in reversed(left)}  # the first change of each run
                found = self._owned(turn)
                after: dict[str, Owned] = {}
                for run_id, at in turn.items():
                    try:
                        after[run_id] = batch[at][1](*found.get(run_id, (None, 0.0)))
                    except (RunBusy, RunOver, DeadLetter, UnknownRun, StaleWriter) as refusal:
                        rows[at] = refusal
                values = [_compared(run_id, found[run_id][0], row) for run_id, row in after.items()]
                if values:
                    rows |= {turn[one]: after[one] for one in self._change(_OWN, values)}
        return [rows[at] for at in range(len(batch))]

    def _owned(self, run_ids: Iterable[str]) -> dict[str, tuple[Owned, float]]:
        """Return the rows of the existing runs among these, each with the store's time."""
        rows = self._each(_OWNED, [{"run_id": run_id} for run_id in run_ids])
        found = {run_id: (Owned(*row), now) for run_id, now, *row in rows}
        for run_id in run_ids:
            if run_id not in found:
                self._check_unknown(run_id)
        return found

    def _check_unknown(self, run_id: str) -> None:
        if self._is_known(run_id):
            raise self._damaged(run_id)

    # Reading --------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int) -> list[Event]:
        """As in `Store`."""
        with self._transaction("read"):
            length, rows = self._journal(run_id, after + 1)
            if length != (rows[-1].end if rows else 0):
                raise StoreCorrupt(f"run {run_id} lacks events before position {length}")
            return events_of(run_id, rows, after, self._fetch)

    def _journal(self, run_id: str, start: int) -> tuple[int, list[Row]]:
        """Return the journal's length and its rows from a position on; 0 and none for an unknown run."""
        found = self._rows(_RUN, {"run_id": run_id})
        if not found:
            self._check_unknown(run_id)
            return 0, []
        [(run, length)] = found
        rows = self._rows(_ROWS, {"run": run, "start": start})
        return length, [row_of(run_id, row) for row in rows]

    def _fetch(self, digest: str) -> bytes | None:
        found = self._rows(_BODY, {"digest": digest})
        return bytes(found[0][0]) if found else None

    def runs(self, where: Mapping[str, str], limit: int | None) -> list[RunInfo]:
        """Return the journals whose columns have these values, newest first."""
        # The statement contains only names of columns; values are bound.
        tests = " AND ".join(f"{name} = :{name}" for name in where)
        found = self._found(f"{tests} ORDER BY id DESC", where, limit)
        if not found and "run_id" in where:
            with self.translated():
                if not self._rows(_RUN, where):  # perhaps a journal of another kind
                    self._check_unknown(where["run_id"])
        return found

    def journals(self, query: Query) -> list[RunInfo]:
        """As in `Store`."""
        time = _TIMES[query.by]
        # No index of the status, where that of the time finds few: many runs have ever failed.
        status = "status || ''" if query.by == "finished" else "status"
        tests = [
            "kind = :kind",
            "subject IS NOT NULL" if query.kind != "run" else "",
            f"{status} = :status" if query.status is not None else "",
            "subject >= :subject AND subject < :beyond" if query.subject is not None else "",
            f"{time} >= :since" if query.since is not None else "",
            f"{time} < :until" if query.until is not None else "",
            f"{time} IS NOT NULL" if query.by in ("finished", "due") else "",
            "coalesce(lease_until, 0) <= :now" if query.by == "due" else "",
        ]
        subject = "" if query.subject is None else query.subject
        # Columns have no character beyond `~`.
        values = {
            **query._asdict(),
            "subject": subject,
            "beyond": f"{subject}\x7f",
            "now": self.now(),
        }
        order = f"{time} DESC, id DESC" if query.by == "updated" else f"{time}, id"
        return self._found(
            f"{' AND '.join(filter(None, tests))} ORDER BY {order}", values, query.limit
        )

    def _found(self, where: str, values: Values, limit: int | None) -> list[RunInfo]:
        most = _ALL if limit is None else limit
        with self.translated():
            rows = self._rows(f"{_RUNS} WHERE {where} LIMIT :most", {**values, "most": most})
        return [info_of(self._sound(*row)) for row in rows]

    def _sound(self, sound: object, *columns: Any) -> dict[str, Any]:
        info = dict(zip(RunInfo._fields, columns, strict=True))
        if not sound:
            raise self._damaged(info["run_id"])
        return info

    def find(self, token: str) -> str | None:
        """Return the run that waits with this token, None if there is none."""
        with self.translated():
            found = self._rows(_WAITING, {"token": token}) or self._past_index(token)
        for sound, run_id in found:
            if not sound:
                raise self._damaged(run_id)
            return str(run_id)
        return None

    def _damaged(self, run_id: str) -> StoreCorrupt:
        return StoreCorrupt(f"{self.place} is damaged at run {run_id!r}; restore it from a copy")

    def prune(self, older_than: float | None, keep: int | None, kind: str) -> int:
        """As in `Store`, with one of the first two arguments at least. kind: a column."""
        count = 0
        while True:
            with self._transaction("prune"):
                border = float("inf") if older_than is None else self.now() - older_than
                values = {"border": border, "keep": keep or 0, "most": PRUNED, "kind": kind}
                found = self._rows(_ENDED, values)
                if found:
                    gone = ", ".join(str(int(run)) for (run,) in found)
                    for statement in _REMOVE:
                        self._rows(statement.replace("{gone}", gone), {})
                    self._remove(gone)
            count += len(found)
            if len(found) < PRUNED:
                return count


def _rounds(batch: Iterable[Append]) -> list[list[Append]]:
    """Split appends into rounds with one append of each run, since a statement changes a run only once."""
    rounds: list[list[Append]] = []
    counts: Counter[str] = Counter()
    for append in batch:
        turn = counts[append.run_id]
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(append)
        counts[append.run_id] += 1
    return rounds


def _compared(run_id: str, before: Owned, after: Owned) -> Values:
    """Return the values of a compare-and-set."""
    was = {f"was_{name}": value for name, value in before._asdict().items()}
    return {"run_id": run_id, **after._asdict(), **was}
