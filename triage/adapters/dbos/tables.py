"""SQL statements on DBOS' tables for which its client has no call, such as joins with the journals."""

from __future__ import annotations

from psycopg import sql

PATIENT = 2
"""How many owners a run may lose without progress before the next takeover is delayed."""
SPACING = 2
"""The delay in leases, so that a run that kills its workers does not kill all of them at once."""
MOST = 500
"""Maximum number of rows returned by one query."""

_ABANDONED = """
SELECT w.workflow_uuid, w.queue_name
FROM {status} w
LEFT JOIN {runs} r ON r.run_id = split_part(w.workflow_uuid, '~', 1) COLLATE "C"
WHERE w.status = 'PENDING' AND w.application_name = %(fleet)s
    AND w.name IN (%(run)s, %(due)s)
    AND extract(epoch FROM clock_timestamp()) > greatest(
        w.started_at_epoch_ms / 1000.0 + %(lease_s)s,
        coalesce(r.lease_until, r.updated + %(lease_s)s, 0)
            + CASE WHEN r.claims >= {patient} THEN {spacing} * %(lease_s)s ELSE 0 END)
ORDER BY w.started_at_epoch_ms LIMIT {most}"""

_ANSWERED = """
SELECT r.run_id, r.events, r.agent, w.queue_name, w.queue_partition_key, i.inputs
FROM {runs} r
JOIN {status} w ON w.workflow_uuid = r.run_id
JOIN {input} i USING (workflow_uuid)
WHERE r.status = 'running' AND w.status = 'SUCCESS' AND w.application_name = %(fleet)s
    AND coalesce(r.lease_until, 0) < extract(epoch FROM clock_timestamp())
    AND NOT EXISTS (
        SELECT 1 FROM {status} v
        WHERE v.workflow_uuid = r.run_id || '~' || r.events)
    AND r.run_id NOT IN (
        SELECT split_part(v.workflow_uuid, '~', 1) COLLATE "C" FROM {status} v
        WHERE v.status IN ('ENQUEUED', 'PENDING', 'DELAYED') AND v.application_name = %(fleet)s)
LIMIT {most}"""

_PLACES = """
SELECT DISTINCT ON (1) split_part(w.workflow_uuid, '~', 1) AS run, w.queue_name, w.status, w.executor_id,
    coalesce(w.started_at_epoch_ms, extract(epoch FROM clock_timestamp()) * 1000)
        - greatest(w.created_at, coalesce(w.delay_until_epoch_ms, 0)),
    w.application_version
FROM {status} w
WHERE w.application_name = %(fleet)s AND w.name = %(run)s AND {which}
ORDER BY 1, w.created_at DESC"""
_LIVING = "w.status IN ('ENQUEUED', 'PENDING', 'DELAYED')"
_THESE = f"""(w.workflow_uuid = ANY(%(ids)s)
    OR ({_LIVING} AND split_part(w.workflow_uuid, '~', 1) = ANY(%(ids)s)))"""

_KNOWN = """
SELECT i.inputs, w.status
FROM {status} w JOIN {input} i USING (workflow_uuid)
WHERE w.workflow_uuid = %(id)s"""
_ENQUEUE = """
SELECT {function}(
    workflow_name => %(name)s, queue_name => %(queue)s, positional_args => ARRAY[%(payload)s::json],
    workflow_id => %(id)s, app_version => %(version)s, deduplication_id => %(deduplication)s,
    priority => %(priority)s, queue_partition_key => %(partition)s,
    delay_until_epoch_ms => (extract(epoch FROM clock_timestamp()) * 1000 + %(delay_ms)s::float8)::bigint,
    application_name => %(fleet)s)"""


class Tables:
    """Statements for one schema of DBOS and one of journals.

    dbos: the name of DBOS' schema. triage: the name of the store's schema.
    """

    def __init__(self, dbos: str, triage: str) -> None:
        names = {
            "status": sql.Identifier(dbos, "workflow_status"),
            "input": sql.Identifier(dbos, "workflow_input"),
            "function": sql.Identifier(dbos, "enqueue_workflow"),
            "runs": sql.Identifier(triage, "runs"),
            "patient": sql.Literal(PATIENT),
            "spacing": sql.Literal(SPACING),
            "most": sql.Literal(MOST),
        }
        self.abandoned = sql.SQL(_ABANDONED).format(**names)
        self.answered = sql.SQL(_ANSWERED).format(**names)
        self.places = sql.SQL(_PLACES).format(**names, which=sql.SQL(_THESE))
        self.living = sql.SQL(_PLACES).format(**names, which=sql.SQL(_LIVING))
        self.known = sql.SQL(_KNOWN).format(**names)
        self.enqueue = sql.SQL(_ENQUEUE).format(**names)
