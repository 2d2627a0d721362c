"""The tables of the room, beside those of the runs, in two dialects."""

from __future__ import annotations

from triage.taxonomy import FailureType, Level, Severity

from ._model import CLOSED, RecoveryStrategy, Status


def _words(words: object) -> str:
    return ", ".join(f"'{word}'" for word in words)  # type: ignore[attr-defined] # enums and sets


_CLOSED = _words(sorted(CLOSED))

# {id}, {real}, {text} and {big} are the dialect's words; all else is the same.
TABLES: tuple[str, ...] = (
    """CREATE TABLE tasks (
        task_id {text} PRIMARY KEY NOT NULL,
        title {text} NOT NULL DEFAULT '',
        status {text} NOT NULL CHECK (status IN ('open', 'done', 'failed')),
        priority {big},
        estimated_hours {real} CHECK (estimated_hours >= 0),
        timeout_s {real} CHECK (timeout_s > 0))""",
    """CREATE TABLE waits (
        task_id {text} NOT NULL REFERENCES tasks (task_id),
        waits_for {text} NOT NULL,
        PRIMARY KEY (task_id, waits_for))""",
    f"""CREATE TABLE incidents (
        id {{id}},
        fingerprint {{text}} NOT NULL,
        source {{text}} NOT NULL,
        agent_id {{text}},
        agent_type {{text}} NOT NULL DEFAULT '',
        task_id {{text}},
        run_id {{text}},
        message {{text}} NOT NULL,
        failure_type {{text}} NOT NULL CHECK (failure_type IN ({_words(FailureType)})),
        cause {{text}},
        severity {{text}} NOT NULL CHECK (severity IN ({_words(Severity)})),
        level {{text}} NOT NULL CHECK (level IN ({_words(Level)})),
        retryable {{big}} NOT NULL CHECK (retryable IN (0, 1)),
        action {{text}} NOT NULL,
        strategy {{text}} NOT NULL CHECK (strategy IN ({_words(RecoveryStrategy)})),
        status {{text}} NOT NULL CHECK (status IN ({_words(Status)})),
        attempt {{big}} NOT NULL DEFAULT 0 CHECK (attempt >= 0),
        max_retries {{big}} NOT NULL CHECK (max_retries >= 0),
        retry_after_s {{real}},
        next_attempt_at {{real}},
        escalation_level {{text}},
        ack_due {{real}},
        acknowledged_by {{text}},
        owner {{text}},
        lease_until {{real}},
        stamp {{text}} NOT NULL DEFAULT '',
        files {{text}} NOT NULL DEFAULT '[]',
        stack_trace {{text}},
        recovery_action {{text}},
        first_seen {{real}} NOT NULL,
        last_seen {{real}} NOT NULL CHECK (last_seen >= first_seen),
        occurrences {{big}} NOT NULL DEFAULT 1 CHECK (occurrences >= 1),
        resolved_at {{real}},
        version {{big}} NOT NULL DEFAULT 0,
        CHECK ((status = 'recovering') = (owner IS NOT NULL)),
        CHECK ((owner IS NULL) = (lease_until IS NULL)),
        CHECK ((status = 'waiting') = (next_attempt_at IS NOT NULL)),
        CHECK ((status IN ({_CLOSED})) = (resolved_at IS NOT NULL)))""",
    "CREATE UNIQUE INDEX incidents_open ON incidents (fingerprint) WHERE resolved_at IS NULL",
    "CREATE INDEX incidents_by_fingerprint ON incidents (fingerprint, id)",
    "CREATE INDEX incidents_by_status ON incidents (status, last_seen, id)",
    "CREATE INDEX incidents_open_by_time ON incidents (last_seen, id) WHERE resolved_at IS NULL",
    "CREATE INDEX incidents_by_level ON incidents (level, status)",
    "CREATE INDEX incidents_by_task ON incidents (task_id) WHERE task_id IS NOT NULL",
    "CREATE INDEX incidents_by_run ON incidents (run_id) WHERE run_id IS NOT NULL",
    "CREATE INDEX incidents_by_type ON incidents (agent_type)",
    "CREATE INDEX incidents_due ON incidents (next_attempt_at) WHERE next_attempt_at IS NOT NULL",
    "CREATE INDEX incidents_leased ON incidents (lease_until) WHERE lease_until IS NOT NULL",
    "CREATE INDEX incidents_unheard ON incidents (ack_due) WHERE ack_due IS NOT NULL",
    "CREATE INDEX incidents_ended ON incidents (resolved_at) WHERE resolved_at IS NOT NULL",
    # What a source has shown us already; without an incident where that was pruned.
    """CREATE TABLE sightings (
        source {text} NOT NULL,
        key {text} NOT NULL,
        incident {big} REFERENCES incidents (id),
        at {real} NOT NULL,
        PRIMARY KEY (source, key))""",
    "CREATE INDEX sightings_by_incident ON sightings (incident, at)",
    "CREATE INDEX sightings_by_time ON sightings (at)",
    "CREATE TABLE cursors (source {text} PRIMARY KEY NOT NULL, mark {text} NOT NULL)",
    """CREATE TABLE agents (
        agent_id {text} PRIMARY KEY NOT NULL,
        agent_type {text} NOT NULL,
        task_id {text} REFERENCES tasks (task_id),
        status {text} NOT NULL CHECK (status IN
            ('running', 'done', 'failed', 'killed', 'timeout', 'dead', 'replaced')),
        started {real} NOT NULL,
        heartbeat {real},
        heartbeat_s {real} CHECK (heartbeat_s > 0),
        due {real},
        ended {real},
        message {text},
        replaces {text} REFERENCES agents (agent_id),
        root {text} NOT NULL,
        attempt {big} NOT NULL DEFAULT 1 CHECK (attempt >= 1),
        unseen {big} NOT NULL DEFAULT 0 CHECK (unseen IN (0, 1)),
        CHECK ((status = 'running') = (ended IS NULL)))""",
    "CREATE INDEX agents_unseen ON agents (ended) WHERE unseen = 1",
    "CREATE INDEX agents_by_status ON agents (status, due)",
    "CREATE INDEX agents_by_task ON agents (task_id) WHERE task_id IS NOT NULL",
    """CREATE TABLE incident_log (
        id {id},
        incident {big} REFERENCES incidents (id),
        at {real} NOT NULL,
        verb {text} NOT NULL,
        actor {text} NOT NULL,
        status {text},
        attempt {big},
        text {text} NOT NULL DEFAULT '')""",
    "CREATE INDEX incident_log_by_incident ON incident_log (incident, id)",
    f"""CREATE TABLE messages (
        id {{id}},
        incident {{big}} NOT NULL REFERENCES incidents (id),
        role {{text}} NOT NULL,
        level {{text}} NOT NULL CHECK (level IN ({_words(Level)})),
        kind {{text}} NOT NULL,
        key {{text}} NOT NULL UNIQUE,
        text {{text}} NOT NULL,
        body {{text}} NOT NULL,
        status {{text}} NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sent', 'failed')),
        attempts {{big}} NOT NULL DEFAULT 0 CHECK (attempts >= 0),
        created_at {{real}} NOT NULL,
        due {{real}} NOT NULL,
        sent_at {{real}},
        CHECK ((status = 'sent') = (sent_at IS NOT NULL)))""",
    "CREATE INDEX messages_by_role ON messages (role, sent_at) WHERE sent_at IS NOT NULL",
    "CREATE INDEX messages_by_status ON messages (status, due)",
    "CREATE INDEX messages_by_incident ON messages (incident)",
    # The last commit of each desk, so that one whose reply was lost is known.
    """CREATE TABLE commits (
        desk {text} PRIMARY KEY NOT NULL,
        stamp {text} NOT NULL,
        at {real} NOT NULL)""",
    # A row stands in it only inside of the transaction that prunes.
    "CREATE TABLE pruning (at {real} NOT NULL)",
)

SQLITE_KEEP: tuple[str, ...] = (
    """CREATE TRIGGER incident_log_no_update BEFORE UPDATE ON incident_log
    BEGIN SELECT RAISE(ABORT, 'the incident log is only added to'); END""",
    """CREATE TRIGGER incident_log_no_delete BEFORE DELETE ON incident_log
    WHEN NOT EXISTS (SELECT 1 FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'the incident log is only added to'); END""",
)
POSTGRES_KEEP: tuple[str, ...] = (
    """CREATE FUNCTION incident_log_kept() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            IF EXISTS (SELECT 1 FROM pruning) THEN RETURN NULL; END IF;
        END IF;
        RAISE EXCEPTION 'the incident log is only added to';
    END $$""",
    """CREATE TRIGGER incident_log_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON incident_log
    FOR EACH STATEMENT EXECUTE FUNCTION incident_log_kept()""",
)
"""What keeps the log from being changed, and from being shortened but by pruning, also by hand."""

SQLITE_WORDS = {
    "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "real": "REAL",
    "text": "TEXT",
    "big": "INTEGER",
}
POSTGRES_WORDS = {
    "id": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "real": "float8",
    "text": 'text COLLATE "C"',
    "big": "bigint",
}
MIGRATIONS: tuple[tuple[str, ...], ...] = (TABLES,)
"""What brings the tables from each version to the next."""
VERSION = len(MIGRATIONS)
