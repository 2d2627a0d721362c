"""SQL statements on procrastinate's tables, where each run has a job that is found by the run's id."""

from __future__ import annotations

from psycopg import sql

PATIENT, SPACING = 2, 2
"""How many owners a run may lose without progress before takeovers are delayed, and by how many leases."""
MOST = 500
"""Maximum number of rows returned by one query."""

OURS = """
CREATE INDEX IF NOT EXISTS triage_jobs_by_id ON procrastinate_jobs ((args ->> 'id'));
CREATE INDEX IF NOT EXISTS triage_jobs_by_status ON procrastinate_jobs (status)
    WHERE status IN ('todo', 'doing');
CREATE OR REPLACE FUNCTION triage_submit(
    of_id text, of_queue text, of_priority int, of_args jsonb, delay_s float8, once text
) RETURNS jsonb LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    known jsonb;
    due timestamptz := CASE WHEN delay_s IS NOT NULL THEN now() + make_interval(secs => delay_s) END;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(of_id, 1));
    SELECT args INTO known FROM procrastinate_jobs WHERE args ->> 'id' = of_id ORDER BY id LIMIT 1;
    IF known IS NOT NULL THEN
        RETURN known;
    END IF;
    IF once IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(of_queue || ' ' || once, 2));
        IF EXISTS (
            SELECT 1 FROM procrastinate_jobs
            WHERE status IN ('todo', 'doing') AND queue_name = of_queue AND args ->> 'once' = once
        ) THEN
            RAISE unique_violation;
        END IF;
    END IF;
    PERFORM procrastinate_defer_jobs_v1(ARRAY[
        ROW(of_queue, 'triage.run', of_priority, NULL, NULL, of_args, due)
    ]::procrastinate_job_to_defer_v1[]);
    RETURN NULL;
END $$"""
"""The indexes and the function that triage adds to procrastinate's schema."""

_BEGAN = """(SELECT extract(epoch FROM max(e.at)) FROM procrastinate_events e
    WHERE e.job_id = j.id AND e.type = 'started')"""
_DEFERRED = """(SELECT extract(epoch FROM max(e.at)) FROM procrastinate_events e
    WHERE e.job_id = j.id AND e.type = 'deferred')"""
_NOW = "extract(epoch FROM clock_timestamp())"
_RUN = "split_part(j.args ->> 'id', '~', 1)"

_ABANDONED = f"""
SELECT j.args ->> 'id', j.queue_name
FROM procrastinate_jobs j LEFT JOIN {{runs}} r ON r.run_id = {_RUN} COLLATE "C"
WHERE j.status = 'doing' AND j.args ->> 'fleet' = %(fleet)s
    AND {_NOW} > greatest(
        {_BEGAN} + %(lease_s)s,
        coalesce(r.lease_until, r.updated + %(lease_s)s, 0)
            + CASE WHEN r.claims >= {{patient}} THEN {{spacing}} * %(lease_s)s ELSE 0 END)
ORDER BY j.id LIMIT {{most}}"""

_ANSWERED = f"""
SELECT r.run_id, r.events, r.agent, j.queue_name, -j.priority,
    (j.args -> 'payload' ->> 'deadline')::float8
FROM {{runs}} r JOIN procrastinate_jobs j ON j.args ->> 'id' = r.run_id
WHERE r.status = 'running' AND j.status = 'succeeded' AND j.args ->> 'fleet' = %(fleet)s
    AND coalesce(r.lease_until, 0) < {_NOW}
    AND NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs v WHERE v.args ->> 'id' = r.run_id || '~' || r.events)
    AND r.run_id NOT IN (
        SELECT split_part(v.args ->> 'id', '~', 1) COLLATE "C" FROM procrastinate_jobs v
        WHERE v.status IN ('todo', 'doing') AND v.args ->> 'fleet' = %(fleet)s)
LIMIT {{most}}"""

_PLACES = f"""
SELECT DISTINCT ON (1) {_RUN}, j.queue_name,
    CASE WHEN j.status = 'todo' AND j.scheduled_at > now() THEN 'delayed'
        WHEN j.status = 'todo' THEN 'queued' WHEN j.status = 'doing' THEN 'running' ELSE 'ended' END,
    j.args ->> 'worker',
    coalesce({_BEGAN}, {_NOW}) - greatest({_DEFERRED}, extract(epoch FROM j.scheduled_at))
FROM procrastinate_jobs j
WHERE j.args ->> 'fleet' = %(fleet)s AND {{which}}
ORDER BY 1, j.id DESC"""
_LIVING = "j.status IN ('todo', 'doing')"
_THESE = f"(j.args ->> 'id' = ANY(%(ids)s) OR ({_LIVING} AND {_RUN} = ANY(%(ids)s)))"


class Tables:
    """Statements for one schema of procrastinate and one of journals.

    schema: the name of procrastinate's schema. triage: the name of the store's schema.
    """

    def __init__(self, schema: str, triage: str) -> None:
        names = {
            "runs": sql.Identifier(triage, "runs"),
            "patient": sql.Literal(PATIENT),
            "spacing": sql.Literal(SPACING),
            "most": sql.Literal(MOST),
        }
        submit = sql.Identifier(schema, "triage_submit")
        self.abandoned = sql.SQL(_ABANDONED).format(**names)
        self.answered = sql.SQL(_ANSWERED).format(**names)
        self.places = sql.SQL(_PLACES).format(which=sql.SQL(_THESE))
        self.living = sql.SQL(_PLACES).format(which=sql.SQL(_LIVING))
        self.submit = sql.SQL(
            "SELECT {}(%(id)s, %(queue)s, %(priority)s, %(args)s::jsonb, %(delay_s)s::float8, %(once)s)"
        ).format(submit)
        self.known = sql.SQL(
            "SELECT id, args, status::text FROM procrastinate_jobs WHERE args ->> 'id' = %(id)s LIMIT 1"
        ).format()
        self.cancel = sql.SQL("SELECT procrastinate_cancel_job_v1(%(job)s, false, false)").format()
        self.requeue = sql.SQL(
            "SELECT procrastinate_retry_job_v2(id, now(), NULL, NULL, NULL) FROM procrastinate_jobs "
            "WHERE args ->> 'id' = ANY(%(ids)s) AND status = 'doing'"
        ).format()
        self.check = sql.SQL(
            "SELECT to_regclass('procrastinate_jobs'), to_regproc('triage_submit'), "
            "to_regproc('procrastinate_retry_job_v2')"
        ).format()
        self.taken = sql.SQL(
            "UPDATE procrastinate_jobs SET args = args || jsonb_build_object('worker', %(worker)s::text) "
            "WHERE id = %(job)s RETURNING id"
        ).format()
        self.finish = sql.SQL(
            "UPDATE procrastinate_jobs SET status = %(status)s::procrastinate_job_status, "
            "attempts = attempts + 1, abort_requested = false "
            "WHERE id = %(job)s AND status = 'doing' AND worker_id = %(worker)s "
            "AND attempts = %(attempts)s RETURNING id"
        ).format()
