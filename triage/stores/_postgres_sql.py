"""The tables in Postgres and what is asked of them."""

from __future__ import annotations

from typing import LiteralString

MIGRATIONS: tuple[LiteralString, ...] = (
    """
    CREATE TABLE runs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run_id text NOT NULL COLLATE "C" UNIQUE,
        agent text NOT NULL COLLATE "C",
        parent text COLLATE "C",
        status text NOT NULL COLLATE "C",
        token text COLLATE "C",
        started float8 NOT NULL,
        updated float8 NOT NULL,
        finished float8,
        events int NOT NULL,
        epoch int NOT NULL DEFAULT 0,
        claims int NOT NULL DEFAULT 0,
        lease_until float8,
        claimant text NOT NULL DEFAULT '' COLLATE "C"
    ) WITH (fillfactor = 70);
    CREATE INDEX runs_by_status ON runs (status, id);
    CREATE INDEX runs_by_token ON runs (token) WHERE token IS NOT NULL;
    CREATE INDEX runs_by_end ON runs (finished) WHERE finished IS NOT NULL;
    CREATE TABLE events (
        run bigint NOT NULL,
        seq int NOT NULL,
        count int NOT NULL,
        crc bigint NOT NULL,
        body text NOT NULL,
        refs text,
        PRIMARY KEY (run, seq)
    );
    CREATE TABLE blobs (digest text COLLATE "C" PRIMARY KEY, body bytea NOT NULL);
    ALTER TABLE blobs ALTER COLUMN body SET STORAGE EXTERNAL;
    CREATE TABLE uses (run bigint NOT NULL, digest text NOT NULL COLLATE "C", PRIMARY KEY (run, digest));
    CREATE INDEX uses_by_digest ON uses (digest);
    """,
)
"""What brings the tables from each version to the next."""
VERSION = len(MIGRATIONS)

LOCK = 0x747269616765
"""Advisory lock: held while tables are changed; shared by who writes large values, alone by `prune`."""

APPEND = """
WITH stamp AS MATERIALIZED (
    SELECT extract(epoch FROM clock_timestamp())::float8 AS now
), given AS MATERIALIZED (
    SELECT * FROM unnest(
        %s::text[], %s::int[], %s::int[], %s::int[], %s::float8[], %s::float8[], %s::text[],
        %s::text[], %s::text[], %s::text[], %s::float8[], %s::bigint[], %s::text[], %s::text[]
    ) AS g (
        run_id, at, epoch, added, updated, lease_s, status, token, agent, parent, started, crc,
        body, refs)
), created AS (
    INSERT INTO runs (
        run_id, agent, parent, started, updated, events, status, token, lease_until, finished)
    SELECT g.run_id, g.agent, g.parent, g.started, g.updated, g.added, g.status, g.token,
        CASE WHEN g.status = 'running' THEN stamp.now + g.lease_s END,
        CASE WHEN g.status NOT IN ('running', 'suspended') THEN stamp.now END
    FROM given g, stamp
    WHERE g.at = 0 AND g.epoch = 0 AND g.started IS NOT NULL
    ON CONFLICT (run_id) DO NOTHING
    RETURNING id, run_id
), added AS (
    UPDATE runs r SET
        events = r.events + g.added,
        updated = g.updated,
        status = coalesce(g.status, r.status),
        token = CASE WHEN g.status IS NULL THEN r.token ELSE g.token END,
        claims = CASE WHEN coalesce(g.status, 'running') = 'running' THEN r.claims ELSE 0 END,
        lease_until = CASE coalesce(g.status, r.status)
            WHEN 'running' THEN coalesce(stamp.now + g.lease_s, r.lease_until)
            ELSE CASE WHEN g.status IS NULL THEN r.lease_until END END,
        finished = CASE
            WHEN coalesce(g.status, 'running') NOT IN ('running', 'suspended') THEN stamp.now
            ELSE r.finished END
    FROM given g, stamp
    WHERE g.at > 0 AND r.run_id = g.run_id AND r.epoch = g.epoch AND r.events = g.at
    RETURNING r.id, r.run_id
), written AS (
    SELECT id, run_id FROM created UNION ALL SELECT id, run_id FROM added
), kept AS (
    INSERT INTO events (run, seq, count, crc, body, refs)
    SELECT w.id, g.at, g.added, g.crc, g.body, g.refs FROM written w JOIN given g USING (run_id)
)
SELECT run_id, id FROM written"""

KEEP = """
INSERT INTO blobs (digest, body) SELECT * FROM unnest(%s::text[], %s::bytea[])
ON CONFLICT DO NOTHING"""
USE = """
INSERT INTO uses (run, digest) SELECT * FROM unnest(%s::bigint[], %s::text[])
ON CONFLICT DO NOTHING"""

OWNED = """
SELECT status, events, epoch, claims, lease_until, claimant,
    extract(epoch FROM clock_timestamp())::float8
FROM runs WHERE run_id = %s FOR UPDATE"""
OWN = """
UPDATE runs SET status = %s, epoch = %s, claims = %s, lease_until = %s, claimant = %s
WHERE run_id = %s"""

READ = """
SELECT e.seq, e.count, e.crc, e.body, e.refs FROM events e
WHERE e.run = %(run)s AND e.seq >= coalesce(
    (SELECT max(seq) FROM events WHERE run = %(run)s AND seq <= %(from)s), 0)
ORDER BY e.seq"""

RUNS = """
SELECT run_id, agent, status, started, updated, events, epoch, claims, lease_until, parent
FROM runs
WHERE (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(agent)s::text IS NULL OR agent = %(agent)s)
    AND (%(parent)s::text IS NULL OR parent = %(parent)s)
ORDER BY id DESC LIMIT %(limit)s"""

ENDED = """
SELECT id FROM runs
WHERE finished < extract(epoch FROM clock_timestamp())::float8 - %s AND id NOT IN (
    SELECT id FROM runs WHERE finished IS NOT NULL ORDER BY finished DESC, id DESC LIMIT %s)
LIMIT %s FOR UPDATE SKIP LOCKED"""
REMOVE = (
    "DELETE FROM events WHERE run = ANY(%(gone)s)",
    """DELETE FROM blobs WHERE digest IN (SELECT digest FROM uses WHERE run = ANY(%(gone)s))
    AND NOT EXISTS (
        SELECT 1 FROM uses WHERE uses.digest = blobs.digest AND run <> ALL(%(gone)s))""",
    "DELETE FROM uses WHERE run = ANY(%(gone)s)",
    "DELETE FROM runs WHERE id = ANY(%(gone)s)",
)
