"""The other side, over real HTTP: a model's provider and the service behind the tools.

The model of a request names the play; the service has the play in its path. A fault is what a client
would see: a status, a header, a body that is no JSON, a connection that breaks.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.client import responses
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .script import Model, Move, view_of
from .tasks import Breakage, Outage, Task
from .world import World

MODEL_SECONDS = 1.0
TOOL_SECONDS = 0.2
DROP = "drop"
Reply = tuple[int, dict[str, str], bytes] | str


@dataclass
class Play:
    """One contestant at one task, as the other side sees it."""

    id: str
    task: Task
    world: World
    model: Model
    known: tuple[str, ...]
    faulty: bool = True
    requests: list[str] = field(default_factory=list)
    """What was asked of the provider, in order: the turn, `!` and the fault, or `~` and the slip."""
    answered: int = 0
    calls: list[str] = field(default_factory=list)
    """What was asked of the tools, in order, with what came of it."""
    met: Counter[str] = field(default_factory=Counter)
    since: dict[str, float] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)
    """What a person was asked."""
    asks_first: bool = True
    """Whether a tool that buys asks that person itself."""
    over: bool = False
    broken_at: float | None = None
    heard_at: float | None = None
    """Virtual seconds at which a tool first failed, and at which the model was first told."""

    def fails(self, fault: Outage | Breakage) -> bool:
        """Whether the fault is there now; a call of its place has come."""
        key = repr(fault)
        self.met[key] += 1
        at = self.met[key] - getattr(fault, "after", 0)
        if at <= 0:
            return False
        since = self.since.setdefault(key, self.world.clock.now)
        if fault.times:
            return at <= fault.times
        return not fault.seconds or self.world.clock.now < since + fault.seconds

    def allows(self, question: str) -> bool:
        """Ask a person about a purchase. Only the first items of a task with `allowed` may be bought."""
        self.questions.append(question)
        allowed = range(int(self.task.options["allowed"]))
        return any(self.model.wanted(n).id in question for n in allowed)

    def broken(self, tool: str) -> Breakage | None:
        """The fault that a call of this tool meets."""
        if not self.faulty:
            return None
        for breakage in self.task.breakages:
            if breakage.tool == tool and self.fails(breakage):
                return breakage
        return None


def _reply(status: int, body: Any, headers: dict[str, str] | None = None) -> Reply:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status, {"content-type": "application/json", **(headers or {})}, sent


def _error(status: int, code: str, message: str, kind: str = "error", **headers: str) -> Reply:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return _reply(status, {"error": error}, {k.replace("_", "-"): v for k, v in headers.items()})


def _outage(fault: Outage) -> Reply:  # noqa: PLR0911 - a table of failures
    """What the provider says when it fails."""
    after = "" if fault.retry_after is None else str(int(fault.retry_after))
    wait = {"retry_after": after} if after else {}
    match fault.how:
        case "503":
            return _error(503, "overloaded", "The server is overloaded or not ready yet.", **wait)
        case "500":
            return _error(500, "server_error", "The server had an error.", "server_error")
        case "429":
            text = f"Rate limit reached for requests. Please try again in {after or 20}s."
            return _error(429, "rate_limit_exceeded", text, "requests", **wait)
        case "quota":
            text = "You exceeded your current quota, please check your plan and billing details."
            return _error(429, "insufficient_quota", text, "insufficient_quota")
        case "key":
            text = "Incorrect API key provided: sk-***. You can find your API key in your account."
            return _error(401, "invalid_api_key", text, "invalid_request_error")
        case "no_model":
            text = "The model does not exist or you do not have access to it."
            return _error(404, "model_not_found", text, "invalid_request_error")
        case "error_in_200":
            error = {"message": "Provider returned error: upstream overloaded", "code": 502}
            return _reply(200, {"error": error, "user_id": "u-1"})
        case "bad_json":
            return _reply(200, b'{"id": "c-1", "object": "chat.completion", "choices": [{"ind')
        case "drop":
            return DROP
    raise AssertionError(fault.how)


def _completion(play: Play, move: Move, at: int) -> Reply:
    message: dict[str, Any] = {"role": "assistant", "content": move.text}
    finish = move.finish
    if move.calls:
        finish = "tool_calls"
        message["content"] = None
        message["tool_calls"] = [
            {
                "id": f"call_{at}_{n}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": given if isinstance(given, str) else json.dumps(given),
                },
            }
            for n, (name, given) in enumerate(move.calls)
        ]
    body = {
        "id": f"c-{play.answered}",
        "object": "chat.completion",
        "created": 1,
        "model": play.id,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }
    return _reply(200, body)


def provide(play: Play, body: dict[str, Any]) -> Reply:
    """Answer a chat completion."""
    play.world.clock.now += MODEL_SECONDS
    messages = body["messages"]
    view = view_of(messages, play.known)
    turn = play.model.clean(view).turn
    told = "+told" if view.told else ""
    if told and play.broken_at is not None and play.heard_at is None:
        play.heard_at = play.world.clock.now - MODEL_SECONDS
    if play.faulty:
        for fault in play.task.outages:
            if fault.turn in (turn, "*") and play.fails(fault):
                play.requests.append(f"{turn}!{fault.how}{told}")
                return _outage(fault)
    room = play.task.options.get("room")
    if turn == "final":
        room = play.task.options.get("last_room", room)
    if room and len(json.dumps(messages)) > room:
        play.requests.append(f"{turn}!overflow{told}")
        text = (
            f"This model's maximum context length is {room // 4} tokens. However, your messages "
            f"resulted in {len(json.dumps(messages)) // 4} tokens. Please reduce their length."
        )
        return _error(400, "context_length_exceeded", text, "invalid_request_error")
    slipped = sum(play.model.slipped.values())
    move = play.model.answer(view) if play.faulty else play.model.clean(view)
    slip = "~slip" if sum(play.model.slipped.values()) > slipped else ""
    play.answered += 1
    play.requests.append(f"{turn}{slip}{told}")
    return _completion(play, move, len(messages))


def serve(play: Play, tool: str, given: dict[str, Any]) -> Reply:  # noqa: C901, PLR0911, PLR0912 - a table of paths
    """Do what a tool asks of the service."""
    world, domain = play.world, play.world.domain
    world.clock.now += TOOL_SECONDS
    fault = play.broken(tool)
    brief = json.dumps(given, sort_keys=True)
    play.calls.append(f"{tool} {brief}" + (f" !{fault.how}" if fault else ""))
    if fault and play.broken_at is None:
        play.broken_at = world.clock.now
    if fault and fault.how != "lost":
        if fault.how == "reset":
            return DROP
        if fault.how == "page":
            page = b"<!DOCTYPE html><html><body>Please sign in</body></html>"
            return _reply(200, page, {"content-type": "text/html"})
        status = int(fault.how)
        wait = {} if fault.retry_after is None else {"retry-after": str(int(fault.retry_after))}
        texts = {
            401: "token expired", 403: "permission denied", 404: "not found", 410: "gone for good",
            409: "conflict", 429: "too many requests", 500: "internal error", 503: "unavailable",
        }  # fmt: skip
        if status == 401:
            wait["www-authenticate"] = (
                'Bearer error="invalid_token", error_description="The access token expired"'
            )
        return _reply(status, {"detail": texts[status]}, wait)
    if tool in (domain.search, domain.backup):
        there = [i for i in world.items if i.place == given["place"]]
        rows: list[dict[str, Any]] = [
            {"id": item.id, "name": item.name} for item in sorted(there, key=lambda i: i.id)
        ]
        if int(given.get("limit", 10)) > 100:
            filler = "as described in the long text of the catalogue, " * 40
            rows = [{**row, "text": filler, "n": n} for n in range(12) for row in rows]
        return _reply(200, rows)
    if tool == domain.act:
        if play.faulty and play.task.options.get("stale") and play.met["repriced"] == 0:
            play.met["repriced"] += 1
            world.reprice(given["item_id"])
        receipt = world.order(given["item_id"], int(given["price"]), given.get("memo", ""))
        if receipt is None:
            play.calls[-1] += " !409"
            text = f"conflict: the price of {given['item_id']} has changed, read it again"
            return _reply(409, {"detail": text})
        if fault:
            return DROP
        return _reply(200, {"receipt": receipt})
    if tool == "order_all":
        *ids, sold_out = given["item_ids"].split(",")
        prices = {item.id: item.price for item in world.items}
        receipts = [world.order(one, prices[one], "") for one in ids]
        return _reply(200, {"receipts": receipts, "failed": [sold_out]})
    if tool == domain.status:
        if given["job"] == "stuck":
            return _reply(200, {"job": "stuck", "progress": 0})
        play.met["status"] += 1
        at = play.met["status"]
        wanted = int(play.task.options.get("polls", 4))
        if at >= wanted:
            return _reply(
                200, {"job": given["job"], "state": "done", "value": 100 + play.task.seed}
            )
        if play.task.options.get("still"):
            return _reply(200, {"job": given["job"], "state": "running"})
        progress = round(100 * at / wanted)
        return _reply(200, {"job": given["job"], "state": "running", "progress": progress})
    return _reply(404, {"detail": f"no such path {tool}"})


class Server:
    """Both in a thread of their own, until `close`."""

    def __init__(self) -> None:
        self.plays: dict[str, Play] = {}
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            self.closed = f"http://127.0.0.1:{closed.getsockname()[1]}"

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
            started.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    def close(self) -> None:
        """Stop serving."""

        async def stop() -> None:
            self._server.close()
            mine = asyncio.current_task()
            waiting = [task for task in asyncio.all_tasks() if task is not mine]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split(" ", 2)
                length = 0
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode().partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                reply = self._reply(method, path, body)
                if isinstance(reply, str):
                    break
                status, headers, sent = reply
                head = [
                    f"HTTP/1.1 {status} {responses.get(status, '')}",
                    f"content-length: {len(sent)}",
                ]
                head += [f"{name}: {value}" for name, value in headers.items()]
                writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + sent)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _reply(self, method: str, path: str, body: bytes) -> Reply:
        try:
            split = urlsplit(path)
            parts = [unquote(part) for part in split.path.split("/") if part]
            if parts[-2:] == ["chat", "completions"]:
                asked = json.loads(body)
                play = self.plays[asked["model"]]
                return _gone(play) or provide(play, asked)
            play = self.plays[parts[0]]
            given: dict[str, Any]
            if method == "GET":
                given = {name: values[0] for name, values in parse_qs(split.query).items()}
            else:
                given = json.loads(body)
            return _gone(play) or serve(play, parts[1], given)
        except Exception as error:
            return _reply(418, {"detail": f"the lab itself failed: {error!r}"})


def _gone(play: Play) -> Reply | None:
    return _reply(410, {"detail": "the play is over"}) if play.over else None
