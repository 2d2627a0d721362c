"""What other systems tell a desk: failures, the lives of agents, and what tasks wait for."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from functools import partial
from typing import Any

import anyio

from triage._capture import capture
from triage._env import Environment
from triage._options import check_count, check_number, check_word, misuse
from triage.errors import UsageError

from . import _rows as rows
from ._db import Db
from ._errors import UnknownIncident
from ._lanes import Lanes
from ._model import AgentRecord, Incident, Sighting, TaskRecord
from ._playbook import said
from ._seeing import Judge, Rules, see
from ._texts import MAX_FILES, MAX_MESSAGE, check_id, clean

ENDS = ("done", "failed", "killed", "timeout")
TASK_STATUSES = ("open", "done", "failed")


class Reporting:
    """What of a desk is told things."""

    _lanes: Lanes
    _judge: Judge
    _rules: Rules
    _env: Environment

    async def report(
        self,
        message: str = "",
        *,
        error: BaseException | None = None,
        agent_id: str | None = None,
        agent_type: str = "",
        task_id: str | None = None,
        run_id: str | None = None,
        stack_trace: str | None = None,
        files: Iterable[str] = (),
        key: str | None = None,
    ) -> Incident:
        """A failure of another system; its incident.

        message: what went wrong; may be left out where `error`, an exception, is given. agent_id,
        agent_type, task_id, run_id: whose. stack_trace: the error's own by default. files: those that are
        affected, beside the ones the message names. key: names this failure; reported again under it,
        it is the same one, None for a new one each time.

        Raises UsageError for a report that says nothing or is malformed.
        """
        sighting = self._reported(message, error, agent_id, agent_type, task_id, run_id)
        if stack_trace is not None and not isinstance(stack_trace, str):
            raise misuse("report.stack_trace", stack_trace, "text or None")
        name = self._env.new_token() if key is None else check_id("report.key", key)
        sighting = sighting._replace(key=name, trace=stack_trace, files=_files(files))
        draft = await anyio.to_thread.run_sync(_drafted, self._judge, sighting, error)
        return await self._lanes.write(partial(_reported, self._rules, sighting, draft))

    def _reported(
        self,
        message: object,
        error: object,
        agent_id: str | None,
        agent_type: object,
        task_id: str | None,
        run_id: str | None,
    ) -> Sighting:
        if not isinstance(message, str):
            raise misuse("report.message", message, "text")
        if error is not None and not isinstance(error, BaseException):
            raise misuse("report.error", error, "an exception or None")
        if not message.strip() and error is None:
            raise UsageError("report.message must say what went wrong, or give error=")
        if not isinstance(agent_type, str):
            raise misuse("report.agent_type", agent_type, "text")
        for name, value in (("agent_id", agent_id), ("task_id", task_id), ("run_id", run_id)):
            if value is not None:
                check_id(f"report.{name}", value)
        info = capture(error) if isinstance(error, BaseException) else None
        text = message.strip() or str(info)
        return Sighting(
            "reports",
            "",
            text,
            agent_id,
            agent_type,
            task_id,
            run_id,
            scope=agent_id,
            diagnosed=info,
        )

    # The lives of agents --------------------------------------------------------------------------

    async def agent_started(
        self,
        agent_id: str,
        agent_type: str,
        *,
        task_id: str | None = None,
        heartbeat_s: float | None = None,
        replaces: str | None = None,
    ) -> AgentRecord:
        """An agent lives. heartbeat_s: seconds within which it promises each sign of life, None for none.

        replaces: the agent it was started in place of. Told twice, it is the same agent. Raises
        UsageError for an id that another agent has.
        """
        check_id("agent_id", agent_id)
        check_id("agent_type", agent_type)
        if task_id is not None:
            check_id("task_id", task_id)
        if heartbeat_s is not None:
            check_number("heartbeat_s", heartbeat_s, "seconds", above=True)
        started = (agent_id, agent_type, task_id, heartbeat_s, replaces)
        return await self._lanes.write(partial(_start, self._rules, started))

    async def heartbeat(self, agent_id: str) -> AgentRecord:
        """A sign of life; one that was taken for dead lives again.

        Raises UnknownIncident for an agent that is not known.
        """
        check_id("agent_id", agent_id)
        return await self._lanes.write(partial(_beat, self._rules, agent_id))

    async def agent_ended(
        self, agent_id: str, status: str = "done", message: str = ""
    ) -> AgentRecord:
        """An agent's end: `done`, or `failed`, `killed` or `timeout`, which the next look detects."""
        check_id("agent_id", agent_id)
        check_word("status", status, ENDS)
        if not isinstance(message, str):
            raise misuse("message", message, "text")
        text = self._judge.text(message.strip())
        return await self._lanes.write(partial(_end, self._rules, agent_id, status, text))

    async def agent(self, agent_id: str) -> AgentRecord | None:
        """What is known of an agent, None if nothing is."""
        check_id("agent_id", agent_id)
        return await self._lanes.read(lambda db: rows.agent(db, agent_id))

    async def put_task(
        self,
        task_id: str,
        *,
        title: str = "",
        status: str = "open",
        priority: int | None = None,
        estimated_hours: float | None = None,
        timeout_s: float | None = None,
        waits_for: Iterable[str] | None = None,
    ) -> TaskRecord:
        """Write down a task, as it is now. waits_for: other tasks; None leaves them as they were.

        Open tasks that wait for each other in a circle are a deadlock, which the next look detects.
        """
        check_id("task_id", task_id)
        check_word("status", status, TASK_STATUSES)
        if not isinstance(title, str):
            raise misuse("title", title, "text")
        if priority is not None:
            check_count("priority", priority, 0)
        if estimated_hours is not None:
            check_number("estimated_hours", estimated_hours, "hours")
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, "seconds", above=True)
        waits = None if waits_for is None else _names("waits_for", waits_for)
        record = TaskRecord(
            task_id, clean(title, MAX_MESSAGE), status, priority, estimated_hours, timeout_s
        )
        await self._lanes.write(lambda db: rows.put_task(db, record, waits))
        return record

    async def task(self, task_id: str) -> TaskRecord | None:
        """What is known of a task, None if nothing is."""
        check_id("task_id", task_id)
        return await self._lanes.read(lambda db: rows.task(db, task_id))


def _names(field: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise misuse(field, values, "a list of ids")
    return tuple(check_id(f"{field} item", value) for value in values)


def _files(files: object) -> tuple[str, ...]:
    if isinstance(files, str) or not isinstance(files, Iterable):
        raise misuse("report.files", files, "a list of paths")
    found = tuple(files)
    for name in found:
        if not isinstance(name, str) or not name:
            raise misuse("report.files item", name, "text that is not empty")
    return found[:MAX_FILES]


def _drafted(judge: Judge, sighting: Sighting, error: BaseException | None) -> Incident:
    if error is not None and sighting.trace is None:
        sighting = sighting._replace(trace="".join(traceback.format_exception(error)))
    return judge.draft(sighting)


def _reported(rules: Rules, sighting: Sighting, draft: Incident, db: Db) -> Incident:
    found = see(db, rules, sighting, draft)
    if found is None:
        row = db.one(
            "SELECT incident FROM sightings WHERE source = 'reports' AND key = :key",
            {"key": sighting.key},
        )
        found = rows.load(db, int((row or (0,))[0]))
    return found


def _start(rules: Rules, started: tuple[Any, ...], db: Db) -> AgentRecord:
    agent_id, agent_type, task_id, every, replaces = started
    old = rows.agent(db, replaces)
    if replaces is not None and old is None:
        raise UsageError(f"replaces: no agent {replaces} is known")
    record = AgentRecord(
        agent_id, agent_type, task_id, "running", db.now, None, every,
        None if every is None else db.now + every, None, None, replaces,
        agent_id if old is None else old.root, 1 if old is None else old.attempt + 1,
    )  # fmt: skip
    if rows.put_agent(db, record):
        rows.log(db, "agent started", rules.owner, f"{agent_type} {agent_id}")
        return record
    there = rows.agent(db, agent_id)
    if there is None or (there.agent_type, there.task_id) != (agent_type, task_id):
        raise UsageError(
            f"agent_id {agent_id} is taken; an agent that is started anew has an id of its own"
        )
    return there


def _known(db: Db, agent_id: str) -> AgentRecord:
    found = rows.agent(db, agent_id)
    if found is None:
        raise UnknownIncident(f"the store knows no agent {agent_id}; tell agent_started first")
    return found


def _beat(rules: Rules, agent_id: str, db: Db) -> AgentRecord:
    record = _known(db, agent_id)
    if record.status not in ("running", "dead"):
        return record
    due = None if record.heartbeat_s is None else db.now + record.heartbeat_s
    db.run(
        "UPDATE agents SET heartbeat = :now, due = :due, status = 'running', ended = NULL "
        "WHERE agent_id = :agent_id",
        {"now": db.now, "due": due, "agent_id": agent_id},
    )
    if record.status == "dead":
        rows.log(db, "agent came back", rules.owner, agent_id)
    return record._replace(heartbeat=db.now, due=due, status="running", ended=None)


def _end(rules: Rules, agent_id: str, status: str, message: str, db: Db) -> AgentRecord:
    record = _known(db, agent_id)
    if record.status not in ("running", "dead"):
        return record
    values = {
        "status": status,
        "now": db.now,
        "message": message or None,
        # One that was found dead has its incident already.
        "unseen": int(status != "done" and record.status == "running"),
        "agent_id": agent_id,
    }
    db.run(
        "UPDATE agents SET status = :status, ended = :now, due = NULL, message = :message, "
        "unseen = :unseen WHERE agent_id = :agent_id",
        values,
    )
    text = f"{agent_id}: {status}" + (f", {said(status, message)}" if status != "done" else "")
    rows.log(db, "agent ended", rules.owner, text)
    return record._replace(status=status, ended=db.now, due=None, message=message or None)
