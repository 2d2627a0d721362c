"""The outbox: messages written with the moves they tell of, delivered at least once, later."""

from __future__ import annotations

from typing import Any, NamedTuple

from triage.taxonomy import Level

from . import _rows as rows
from ._db import Db
from ._model import Message, Sighting, Status
from ._seeing import Judge, Rules, see

AT_ONCE = 10
"""Messages that one desk delivers at the same time."""

DUE = f"""
SELECT {rows.MESSAGE} FROM messages
WHERE status = 'pending' AND due <= :now{{but}} ORDER BY due LIMIT :most"""  # noqa: S608 - our own columns
_SENT = "SELECT count(*) FROM messages WHERE role = :role AND sent_at > :since"


class Delivery(NamedTuple):
    """How the delivery of a message ended. error: None where its sink took it."""

    message: Message
    error: str | None


def take(db: Db, rules: Rules, most: int) -> list[Message]:
    """Messages to deliver now; until some time has passed nobody else gets them.

    Those of a role that was told enough for the moment wait; critical ones do not.
    """
    room: dict[str, int] = {}
    taken: list[Message] = []
    while len(taken) < most:
        full = [role for role, left in room.items() if left <= 0]
        found = _due(db, full, most - len(taken))
        for message in found:
            left = room.get(message.role)
            if left is None:
                left = _room(db, rules, message.role)
            room[message.role] = left - 1
            if left > 0 or message.level is Level.CRITICAL:
                # As long as this desk may take for it and for those before it, and once more.
                turns = len(taken) // AT_ONCE + 2
                due = db.now + turns * rules.notifications.deadline_s
                taken.append(_begun(db, message, due))
        # Behind many of a role that is full there may be some of another.
        if not any(left <= 0 and role not in full for role, left in room.items()):
            break
    return taken


def _due(db: Db, full: list[str], most: int) -> list[Message]:
    names = {f"role_{at}": role for at, role in enumerate(full)}
    but = ""
    if names:
        but = (
            f" AND (level = 'critical' OR role NOT IN ({', '.join(f':{name}' for name in names)}))"
        )
    found = db.rows(DUE.format(but=but), {"now": db.now, "most": most, **names})
    return [rows.message_of(row) for row in found]


def _room(db: Db, rules: Rules, role: str) -> int:
    """How many messages a role may still get within the window."""
    policy = rules.notifications
    found = db.one(_SENT, {"role": role, "since": db.now - policy.window_s})
    return policy.rate - (0 if found is None else int(found[0]))


def _begun(db: Db, message: Message, due: float) -> Message:
    db.run(
        "UPDATE messages SET due = :due, attempts = attempts + 1 WHERE id = :id",
        {"due": due, "id": message.id},
    )
    return message._replace(attempts=message.attempts + 1)


def settle(
    db: Db, rules: Rules, judge: Judge, ended: list[Delivery], unbegun: list[Message]
) -> int:
    """Write down how deliveries ended; how many were taken. A sink that fails is one incident.

    unbegun: messages that no sink was given, as the desk was stopped; they are due again at once.
    """
    for message in unbegun:
        db.run(
            "UPDATE messages SET due = :now, attempts = attempts - 1 "
            "WHERE id = :id AND status = 'pending' AND attempts = :attempts",
            {"now": db.now, "id": message.id, "attempts": message.attempts},
        )
    count = 0
    for message, error in ended:
        values: dict[str, Any] = {"id": message.id, "now": db.now, "attempts": message.attempts}
        incident = rows.load(db, message.incident)
        if error is None:
            count += db.run(
                "UPDATE messages SET status = 'sent', sent_at = :now "
                "WHERE id = :id AND status = 'pending'",
                values,
            )
            rows.log(db, "message sent", rules.owner, f"{message.kind} to {message.role}", incident)
            continue
        given_up = message.attempts >= rules.notifications.tries
        delay = rules.notifications.backoff.delay(message.attempts)
        db.run(
            "UPDATE messages SET status = :status, due = :due "
            "WHERE id = :id AND status = 'pending' AND attempts = :attempts",
            {**values, "status": "failed" if given_up else "pending", "due": db.now + delay},
        )
        what = "given up" if given_up else f"tried again in {delay:g} s"
        rows.log(db, "message failed", rules.owner, f"to {message.role}: {error}; {what}", incident)
        sighting = Sighting(
            "desk", f"sink:{message.role}", f"Messages to {message.role} are not delivered: {error}",
            agent_type="sink", scope=f"sink:{message.role}", diagnosed="sink_failing",
        )  # fmt: skip
        draft = judge.draft(sighting)
        see(db, rules, sighting, draft)
    return count


def counts(db: Db) -> dict[str, Any]:
    """What the tables hold, in numbers."""
    by_status = dict(db.rows("SELECT status, count(*) FROM incidents GROUP BY status"))
    by_level = dict(
        db.rows(
            "SELECT level, count(*) FROM incidents WHERE status NOT IN "
            "('recovered', 'failed', 'ignored') GROUP BY level"
        )
    )
    healed = db.one(
        "SELECT avg(resolved_at - first_seen) FROM incidents WHERE status = 'recovered'"
    )
    mean = None if healed is None or healed[0] is None else float(healed[0])
    ended = sum(int(by_status.get(word, 0)) for word in ("recovered", "failed", "ignored"))
    total = sum(map(int, by_status.values()))
    return {
        "incidents": total,
        "open": total - ended,
        "by_status": {str(word): int(by_status.get(word, 0)) for word in Status},
        "open_by_severity": {str(word): int(by_level.get(word, 0)) for word in Level},
        "mean_time_to_recover_s": mean,
        "messages": _grouped(db, "messages"),
        "agents": _grouped(db, "agents"),
    }


def _grouped(db: Db, table: str) -> dict[str, int]:
    statement = f"SELECT status, count(*) FROM {table} GROUP BY status ORDER BY status"  # noqa: S608
    return {str(word): int(count) for word, count in db.rows(statement)}
