"""The outbox: messages are written with the moves they report, and delivered later, at least once."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from triage.core.errors import TriageError, UsageError, check_number, misuse
from triage.core.observers import logger
from triage.core.taxonomy import Level

from . import database as rows
from .database import Db
from .detection import Judge, Rules, see
from .model import Message, Sighting, Status

AT_ONCE = 10
"""Messages one desk delivers at the same time."""

DUE = f"""
SELECT {rows.MESSAGE} FROM messages
WHERE status = 'pending' AND due <= :now{{but}} ORDER BY due LIMIT :most"""
_SENT = "SELECT count(*) FROM messages WHERE role = :role AND sent_at > :since"


class Delivery(NamedTuple):
    """The outcome of a delivery. error: None if the sink accepted the message."""

    message: Message
    error: str | None


def take(db: Db, rules: Rules, most: int) -> list[Message]:
    """Take the messages that are due; for some time no other desk takes them.

    Messages to a role beyond its rate wait, except critical ones.
    """
    policy = rules.notifications
    room: dict[str, int] = {}
    """How many more messages each role may get within the window."""
    taken: list[Message] = []
    while len(taken) < most:
        full = [role for role, left in room.items() if left <= 0]
        names = {f"role_{at}": role for at, role in enumerate(full)}
        others = f"role NOT IN ({', '.join(f':{name}' for name in names)})"
        but = f" AND (level = 'critical' OR {others})" if full else ""
        values = {"now": db.now, "most": most - len(taken), **names}
        for message in map(rows.message_of, db.rows(DUE.format(but=but), values)):
            if message.role not in room:
                sent = db.one(_SENT, {"role": message.role, "since": db.now - policy.window_s})
                room[message.role] = policy.rate - int((sent or (0,))[0])
            left = room[message.role]
            room[message.role] = left - 1
            if left > 0 or message.level is Level.CRITICAL:
                # As long as this desk may need for the messages up to this one, and one deadline more.
                turns = len(taken) // AT_ONCE + 2
                db.run(
                    "UPDATE messages SET due = :due, attempts = attempts + 1 WHERE id = :id",
                    {"due": db.now + turns * policy.deadline_s, "id": message.id},
                )
                taken.append(message._replace(attempts=message.attempts + 1))
        # There may be messages to other roles behind those to a role that is full.
        if not any(left <= 0 and role not in full for role, left in room.items()):
            break
    return taken


def settle(
    db: Db, rules: Rules, judge: Judge, ended: list[Delivery], unbegun: list[Message]
) -> int:
    """Write how deliveries ended; returns how many were accepted. A failing sink becomes an incident.

    A message that another desk has taken meanwhile is left to it: the outcome is only logged.
    unbegun: messages no sink received because the desk was stopped; they are due again at once.
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
        to = f"{message.kind} to {message.role}"
        if error is None:
            sent = db.run(
                "UPDATE messages SET status = 'sent', sent_at = :now "
                "WHERE id = :id AND status = 'pending'",
                values,
            )
            count += sent
            rows.log(db, "message sent" if sent else "came too late", rules.owner, to, incident)
            continue
        given_up = message.attempts >= rules.notifications.tries
        delay = rules.notifications.backoff.delay(message.attempts)
        held = db.run(
            "UPDATE messages SET status = :status, due = :due "
            "WHERE id = :id AND status = 'pending' AND attempts = :attempts",
            {**values, "status": "failed" if given_up else "pending", "due": db.now + delay},
        )
        if not held:  # another desk has taken it, and says how it goes
            rows.log(db, "came too late", rules.owner, f"{to}: {error}", incident)
            continue
        what = "given up" if given_up else f"tried again in {delay:g} s"
        rows.log(db, "message failed", rules.owner, f"to {message.role}: {error}; {what}", incident)
        sighting = Sighting(
            source="desk",
            key=f"sink:{message.role}",
            message=f"Messages to {message.role} are not delivered: {error}",
            agent_type="sink",
            scope=f"sink:{message.role}",
            diagnosed="sink_failing",
        )
        see(db, rules, sighting, judge.draft(sighting))
    return count


def counts(db: Db) -> dict[str, Any]:
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
    statement = f"SELECT status, count(*) FROM {table} GROUP BY status ORDER BY status"
    return {str(word): int(count) for word, count in db.rows(statement)}


# Sinks: where messages go.

Sink = Callable[[Message], Any]
"""Delivers a message, sync (in a thread) or async. An exception means that it was not delivered."""

TIMESTAMP = "Triage-Timestamp"
SIGNATURE = "Triage-Signature"
DELIVERY = "Triage-Delivery"
_LOUD = (Level.HIGH, Level.CRITICAL)
_LEAST_SECRET = 16


class NotDelivered(TriageError):
    """A webhook did not accept a message."""


class LogSink:
    """Logs messages to the logger `triage`: high and critical ones as errors, others as warnings."""

    def __call__(self, message: Message) -> None:
        write = logger.error if message.level in _LOUD else logger.warning
        write("to %s: %s", message.role, message.text)

    def __repr__(self) -> str:
        return "LogSink()"


class FileSink:
    """Appends messages to a file, one JSON object per line. A new file has mode 0600.

    Raises UsageError for anything but a path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise misuse("FileSink.path", path, "the path of a file")
        self._path = Path(path).absolute()

    def __call__(self, message: Message) -> None:
        line = json.dumps(payload(message)) + "\n"
        place = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(place, line.encode("ascii"))
        finally:
            os.close(place)

    def __repr__(self) -> str:
        return f"FileSink({self._path.name!r})"


class WebhookSink:
    """Posts messages as JSON to a URL, signed.

    url: `https://…` or `http://…`. secret: at least 16 characters, shared with the receiver; it signs
    `timestamp.body` with HMAC-SHA256, in the header `Triage-Signature: v1=<hex>` beside
    `Triage-Timestamp` (seconds since the epoch) and `Triage-Delivery` (the same for every delivery of one
    message). `signature_fits` checks it. timeout_s: seconds, 10 by default. Redirects are refused: they
    would carry a message elsewhere. Any answer but 2xx raises NotDelivered, which names only the host.

    Raises UsageError, which shows neither the secret nor the URL.
    """

    def __init__(self, url: str, secret: str, *, timeout_s: float = 10.0) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
        except (ValueError, AttributeError, TypeError):
            parts, host = None, None
        if parts is None or parts.scheme not in ("http", "https") or not host:
            raise UsageError("WebhookSink.url must be an http or https URL with a host")
        if not isinstance(secret, str) or len(secret) < _LEAST_SECRET:
            raise UsageError(
                f"WebhookSink.secret must be text of at least {_LEAST_SECRET} characters"
            )
        check_number("WebhookSink.timeout_s", timeout_s, "seconds", above=True)
        self._url = url
        self._host = host
        self._secret = secret
        self._timeout = timeout_s
        self._opener = build_opener(_NoRedirects)

    def __call__(self, message: Message) -> None:
        """Post a message. Blocks, so it is called in a thread."""
        body = json.dumps(payload(message)).encode("ascii")
        stamp = str(int(time.time()))
        request = Request(self._url, body, method="POST")  # noqa: S310 - the scheme was checked
        request.add_header("Content-Type", "application/json")
        request.add_header(TIMESTAMP, stamp)
        request.add_header(SIGNATURE, signature(self._secret, stamp, body))
        request.add_header(DELIVERY, message.key)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                answer.read(1024)
        except HTTPError as error:
            error.close()
            raise NotDelivered(f"{self._host} answered {error.code}") from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise NotDelivered(f"{self._host} was not reached: {type(reason).__name__}") from None

    def __repr__(self) -> str:
        return f"WebhookSink({self._host!r})"


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


def payload(message: Message) -> dict[str, Any]:
    return {
        "key": message.key,
        "role": message.role,
        "created_at": message.created_at,
        **message.body,
    }


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The value of the header `Triage-Signature`."""
    signed = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={signed.hexdigest()}"


def signature_fits(
    secret: str, timestamp: str, body: bytes, given: str, *, now: float, tolerance_s: float = 300.0
) -> bool:
    """For the receiver of a webhook: whether the sender knows the secret and sent the body recently.

    now: seconds since the epoch. tolerance_s: the largest age, against replays.
    """
    try:
        age = abs(now - float(timestamp))
    except ValueError:
        return False
    fits = hmac.compare_digest(signature(secret, timestamp, body).encode(), given.encode())
    return fits and age <= tolerance_s
