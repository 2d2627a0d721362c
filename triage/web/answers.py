"""Questions and answers: what a run accepts, as forms, and the pages that answer, cancel and fork runs."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from anyio import to_thread
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types
from jsonschema.exceptions import SchemaError, best_match  # type: ignore[import-untyped] # as above
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from triage.core.actions import Replan, Reply
from triage.core.errors import AlreadyResumed, RunBusy, RunOver, StoreError, TriageError, UsageError
from triage.core.events import AttemptFailed, Event
from triage.core.json_values import refuse_constant
from triage.core.observers import logger
from triage.core.quoting import json_text, one_line, span
from triage.core.redaction import redact
from triage.core.wire import Keyring, to_json
from triage.engine import outside
from triage.engine.agents import Agent, underlying_agent
from triage.engine.answering import waits_for
from triage.engine.forking import fork
from triage.engine.questions import Question, question_at
from triage.plan.answers import answer_in, asked_in
from triage.plan.replies import WITHOUT_REASON, reply_of
from triage.stores.base import RunInfo, Store

from .pages import Pages, run_and_events, slug, unslug
from .security import Person, Role, base_of, form_of, need, person_of

Schemas: TypeAlias = Mapping[str, Mapping[str, Any] | None]
"""JSON Schemas of tools' arguments by tool name; None for an unknown schema."""

ENDED = ("escalated", "aborted", "fatal", "cancelled", "error")
"""Final statuses of runs that can be tried again in a new run."""
_LONG = 80
_WORDS = {
    "approve": "Approve",
    "reject": "Reject",
    "edit": "Approve with changes",
    "happened": "It happened",
    "rerun": "It did not happen: run it again",
    "retry": "Try again",
    "replan": "Make a new plan",
    "abort": "End the run",
    "escalate": "Escalate",
}


class Field(NamedTuple):
    """A form field for one argument of a call.

    name: the argument's name. key: the field's name in the form. kind: `text`, `lines`, `number`, `flag`,
    `choice` or `json`. value: the current value as text. choices: the values a `choice` allows. note: the
    description in the schema, or "".
    """

    name: str
    key: str
    kind: str
    value: str
    choices: tuple[str, ...] = ()
    note: str = ""


class Offer(NamedTuple):
    """What a person can do with a run.

    question: identifies the open question; empty if the run is not waiting. names: the answers it accepts.
    about: the question about a call, plan or step; None if it is not about one. fields: the form fields for
    changing the call's arguments or the plan. retries_at: position of the
    failure from which a new run can try again; None if there is none. command: the shell command that
    recovers the run; empty if nobody needs to run it.
    """

    question: str = ""
    names: tuple[str, ...] = ()
    about: Question | None = None
    fields: tuple[Field, ...] = ()
    retries_at: int | None = None
    command: str = ""

    @property
    def choices(self) -> dict[str, str]:
        """The labels of the buttons by the names of the answers."""
        return {name: _WORDS[name] for name in self.names}

    @property
    def arguments(self) -> str:
        """The arguments of the call in question, or the plan or step, as JSON."""
        return "" if self.about is None else _indented(self.about.arguments)

    @property
    def takes_reason(self) -> bool:
        """Whether any of the answers takes a reason."""
        return any(name not in WITHOUT_REASON for name in self.names)


def offer_of(
    info: RunInfo,
    events: Sequence[Event],
    schemas: Schemas,
    *,
    runs_here: bool,
    question: Question | None = None,
) -> Offer:
    """Return what can be done with a run.

    runs_here: whether this process continues it by itself. question: of a run inside it that asks; None for
    its own.
    """
    force = " --force" if info.status == "dead_letter" else ""
    recover = f"triage runs recover {shlex.quote(info.run_id)} module:agent{force}"
    left = info.status == "dead_letter" or (info.status == "running" and info.lease_until is None)
    offer = Offer(command=recover if left and not runs_here and info.parent is None else "")
    if info.status in ENDED:
        failed = [event.seq for event in events if isinstance(event, AttemptFailed)]
        return offer._replace(retries_at=failed[-1] if failed else None)
    asked = waits_for(events)
    if asked is None:
        return offer
    offer = offer._replace(question=asked.token_digest)
    question = question or question_at(events)
    fields = tuple(_fields(question, schemas))
    # Without fields there is nothing to edit.
    names = tuple(name for name in outside.answers_to(events) if name != "edit" or fields)
    return offer._replace(names=names, fields=fields, about=question)


def _shown(value: Any) -> Any:
    """Convert a value to JSON data with its secrets redacted."""
    return redact(to_json(value))


def _indented(value: Any) -> str:
    return json.dumps(_shown(value), ensure_ascii=False, indent=2)


# The form of a call's arguments ---------------------------------------------------------------------


def _fields(question: Question | None, schemas: Schemas) -> Iterator[Field]:
    if question is None or not question.not_begun or not isinstance(question.arguments, Mapping):
        return
    schema = schemas.get(question.tool) or {}
    for at, name in enumerate(question.editable):
        value = _shown(question.arguments.get(name))
        yield _field(str(name), f"arg-{at}", value, schema.get("properties", {}).get(name))


def _field(name: str, key: str, value: Any, known: Any) -> Field:
    """Make the field of an argument. known: its schema; without one, the value decides the kind."""
    schema: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
    note = str(schema.get("description", ""))
    choices = schema.get("enum")
    if isinstance(choices, list) and all(isinstance(one, str) for one in choices):
        return Field(name, key, "choice", json_text(value), tuple(choices), note)
    kind = schema.get("type")
    if kind == "boolean" or (kind is None and isinstance(value, bool)):
        return Field(name, key, "flag", "true" if value is True else "false", (), note)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in ("integer", "number") or (kind is None and is_number):
        return Field(name, key, "number", json_text(value), (), note)
    if isinstance(value, str) and kind in ("string", None):
        long = len(value) > _LONG or "\n" in value
        return Field(name, key, "lines" if long else "text", value, (), note)
    return Field(name, key, "json", json.dumps(value, ensure_ascii=False, indent=2), (), note)


def refilled(fields: Sequence[Field], form: Mapping[str, str]) -> tuple[Field, ...]:
    """Return the fields with the submitted values filled in."""
    return tuple(field._replace(value=form.get(field.key, field.value)) for field in fields)


def _changed(offer: Offer, form: Mapping[str, str], schemas: Schemas) -> dict[str, Any]:
    """Return the changed arguments. Raises UsageError if one is not valid or none has changed."""
    changed: dict[str, Any] = {}
    for field in offer.fields:
        given = form.get(field.key, field.value).replace("\r\n", "\n")
        if given != field.value.replace("\r\n", "\n"):
            as_text = field.kind in ("text", "lines", "choice")
            changed[field.name] = given if as_text else _json(field.name, given)
    if not changed:
        raise UsageError("nothing is changed: change an argument, or approve the call as it is")
    question = offer.about
    schema = None if question is None else schemas.get(question.tool)
    if question is None or not schema or not isinstance(question.arguments, Mapping):
        return changed
    given_all = {**question.arguments, **changed}
    with suppress(SchemaError):
        error = best_match(Draft202012Validator(schema).iter_errors(given_all))
        if error is not None:
            where = ".".join(map(str, error.absolute_path)) or "the arguments"
            raise UsageError(f"{where}: {error.message[:300]}")
    return changed


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} must be JSON, text in double quotes: {error}") from None


# From a form to an answer ---------------------------------------------------------------------------


def reply_in(offer: Offer, form: Mapping[str, str], schemas: Schemas, by: str) -> Reply:
    """Convert a submitted form to an answer. Raises UsageError naming the field that is wrong."""
    name = form.get("answer", "")
    if name not in offer.names:
        known = ", ".join(offer.names) or "nothing"
        wrong = f", not with {name[:40]!r}" if name else ": press one of the buttons"
        raise UsageError(f"this run can be answered with {known}{wrong}")
    reason = form.get("reason", "").strip() or None
    if name == "reject" and reason is None:
        raise UsageError("reason: say why, so that the agent can find another way")
    if name == "abort" and reason is None:
        reason = f"{by} ended it"
    payload: Any = None
    if name == "edit":
        payload = _changed(offer, form, schemas)
    elif name == "happened" and form.get("result", "").strip():
        payload = _json("result", form["result"])
    return reply_of(
        name,
        reason=None if name in WITHOUT_REASON else reason,
        payload=payload,
        ask_again=name == "reject" and form.get("ask_again") == "true",
    )


# Many runs -------------------------------------------------------------------------------------------


MOST_WAITING = 200
"""The most runs that the page of questions lists and that one click can answer."""
_MOST_NAMED = 120


class Waiting(NamedTuple):
    """A suspended run.

    pick: identifies its question in a form. asks: the text of the question. since: when it asked, in
    seconds since the epoch. offer: how it can be answered.
    """

    info: RunInfo
    pick: str
    asks: str
    since: float
    offer: Offer


class Outcome(NamedTuple):
    """The outcome for one run of a bulk answer. first: the earlier answer that won; None without one."""

    run_id: str
    done: bool
    said: str
    first: outside.FirstAnswer | None = None


class Answers:
    """Handle the requests that change runs.

    agents: agents whose answered runs continue in this process, in the server's event loop. For any
    other agent the answer is only recorded, and the run waits for a worker to recover it.
    """

    def __init__(self, store: Store, pages: Pages, agents: Iterable[Any] = ()) -> None:
        self._store = store
        self._pages = pages
        self._agents: dict[str, Agent[Any]] = {}
        self._schemas: dict[str, Mapping[str, Any] | None] = {}
        self._works: set[asyncio.Task[None]] = set()
        for given in agents:
            agent = underlying_agent(given)
            if agent is None:
                raise UsageError(f"agents= takes agents, not {type(given).__name__}")
            here = agent.stored_in(store)
            self._agents |= dict.fromkeys((agent.name, *agent.aliases), here)
            self._schemas |= {} if agent.checks is None else agent.checks.manifest

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/questions", self.questions, name="questions"),
            Route("/questions", self.answer_many, methods=["POST"]),
            Route("/runs/{run}/answer", self.question, name="answer"),
            Route("/runs/{run}/answer", self.answer, methods=["POST"]),
            Route("/runs/{run}/cancel", self.cancel, methods=["POST"]),
            Route("/runs/{run}/recover", self.recover, methods=["POST"]),
            Route("/runs/{run}/fork", self.fork, methods=["POST"]),
        ]

    async def offer(self, info: RunInfo, events: Sequence[Event]) -> Offer:
        """Return what can be done with a run."""
        question = await asked_in(self._store, info.run_id, events)
        schemas: Schemas = self._schemas
        made = partial(offer_of, runs_here=self.runs(info.agent), question=question)
        return await to_thread.run_sync(made, info, events, schemas)

    def runs(self, agent: str) -> bool:
        """Return whether this process can continue the runs of this agent."""
        return agent in self._agents

    # One run --------------------------------------------------------------------------------------

    async def question(self, request: Request) -> Response:
        """Show a run's question and the form that answers it."""
        info, events = await self._read(request)
        return self._form(request, info, events, await self.offer(info, events))

    async def answer(self, request: Request) -> Response:
        """Record an answer. If it is invalid, show the form again with what was typed."""
        person = need(request, Role.ANSWER)
        info, events = await self._read(request)
        form = dict(await form_of(request))
        question = form.get("question", "")
        first = outside.first_answer(events, question)
        offer = await self.offer(info, events)
        if first is not None or question != offer.question:
            return self._late(request, info, first)
        try:
            await self._answer(info, offer, form, person)
        except (AlreadyResumed, RunOver):
            events = await self._store.read(info.run_id)
            return self._late(request, info, outside.first_answer(events, question))
        except (RunBusy, UsageError) as error:
            typed = offer._replace(fields=refilled(offer.fields, form))
            if isinstance(error, RunBusy):
                busy = f"somebody else is answering this; try again in {span(error.wait_s)}"
                return self._form(request, info, events, typed, form, busy, status=409)
            return self._form(request, info, events, typed, form, str(error), status=422)
        self._go_on(info)
        return _to_run(request, info.run_id)

    async def _answer(
        self, info: RunInfo, offer: Offer, form: Mapping[str, str], person: Person
    ) -> None:
        reply = reply_in(offer, form, self._schemas, person.name)
        question = offer.question
        await answer_in(self._store, info.run_id, reply, by=person.name, question=question)

    def _form(
        self,
        request: Request,
        info: RunInfo,
        events: Sequence[Event],
        offer: Offer,
        typed: Mapping[str, str] | None = None,
        error: str = "",
        status: int = 200,
    ) -> Response:
        return self._pages.render(
            request,
            "answers/question.html",
            status=status,
            info=info,
            asked=waits_for(events),
            offer=offer,
            typed=typed or {},
            error=error,
        )

    def _late(self, request: Request, info: RunInfo, first: outside.FirstAnswer | None) -> Response:
        return self._pages.render(request, "answers/late.html", status=409, info=info, first=first)

    async def cancel(self, request: Request) -> Response:
        """Cancel a run, even one that another process owns."""
        person = need(request, Role.ADMIN)
        info, _ = await self._read(request)
        try:
            await outside.cancel(self._store, info.run_id, now=time.time(), by=person.name)
        except RunOver:
            events = await self._store.read(info.run_id)
            end = events[-1]
            first = outside.FirstAnswer(
                getattr(end, "by", ""), end.time, getattr(end, "status", "it has ended")
            )
            return self._late(request, info, first)
        return _to_run(request, info.run_id)

    async def recover(self, request: Request) -> Response:
        """Recover a run whose process is gone, if its agent is available here."""
        need(request, Role.ADMIN)
        info, events = await self._read(request)
        if not self.runs(info.agent):
            offer = await self.offer(info, events)
            raise UsageError(
                f"this page does not run the agent {one_line(info.agent, 60)}; recover the run with: "
                f"{offer.command or 'recover_all() in any worker'}"
            )
        self._go_on(info)
        return _to_run(request, info.run_id)

    async def fork(self, request: Request) -> Response:
        """Start a new run that continues from a step or a failure of this one."""
        person = need(request, Role.ADMIN)
        info, _ = await self._read(request)
        form = dict(await form_of(request))
        at, hint = form.get("at", ""), form.get("hint", "").strip()
        if not at.isdecimal() or len(at) > 9:
            raise UsageError("at: give the position of the event that the new run continues from")
        made = await fork(
            self._store,
            info.run_id,
            at=int(at),
            now=time.time(),
            by=person.name,
            action=Replan(hint) if hint else None,
            end=form.get("end") == "yes",
            keys=Keyring.of(None),
        )
        begun = await self._store.info(made)
        assert begun is not None
        self._go_on(begun)
        return _to_run(request, made)

    def _go_on(self, info: RunInfo) -> None:
        """Recover a run in this process if its agent is available here and no other run contains it."""
        agent = self._agents.get(info.agent)
        if agent is None or info.parent is not None:
            return
        force = info.status == "dead_letter"

        async def work() -> None:
            try:
                await agent.recover(info.run_id, force=force, at_once=False)
            except TriageError as error:
                logger.info("run %s, continued by the page: %s", info.run_id, error)
            except Exception:
                logger.exception("run %s failed while the page continued it", info.run_id)

        task = asyncio.get_running_loop().create_task(work())
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    # Many runs ------------------------------------------------------------------------------------

    async def questions(self, request: Request) -> Response:
        """List the suspended runs, oldest question first."""
        agent, words = _filter_of(request.query_params)
        waiting = await self._waiting(agent, words)
        return self._pages.render(
            request,
            "answers/questions.html",
            waiting=waiting,
            agents=sorted({one.info.agent for one in waiting} | ({agent} if agent else set())),
            agent=agent,
            words=words,
            most=MOST_WAITING,
            person=person_of(request),
        )

    async def answer_many(self, request: Request) -> Response:
        """Answer the picked questions, or all that match the filter and were asked when it was shown."""
        person = need(request, Role.ANSWER)
        pairs = await form_of(request)
        form = dict(pairs)
        if form.get("answer") == "cancel":
            need(request, Role.ADMIN)
        picked = {value for name, value in pairs if name == "pick"}
        agent, words = _filter_of(form)
        waiting = await self._waiting(agent, words)
        known = {one.pick: one for one in waiting}
        if form.get("all") == "yes":
            seen = (
                float(form["seen"]) if form.get("seen", "").replace(".", "", 1).isdecimal() else 0.0
            )
            picked |= {one.pick for one in waiting if one.since <= seen}
        outcomes = [
            await self._answer_one(pick, known.get(pick), form, person) for pick in sorted(picked)
        ]
        return self._pages.render(
            request, "answers/answered.html", outcomes=outcomes, answer=form.get("answer", "")
        )

    async def _answer_one(
        self, pick: str, one: Waiting | None, form: Mapping[str, str], person: Person
    ) -> Outcome:
        part, _, question = pick.rpartition("*")
        run_id = unslug(part) or part
        cancels = form.get("answer") == "cancel"
        try:
            if one is not None and cancels:
                await outside.cancel(self._store, run_id, now=time.time(), by=person.name)
                return Outcome(run_id, done=True, said="cancelled")
            if one is not None:
                await self._answer(one.info, one.offer, form, person)
                self._go_on(one.info)
                return Outcome(run_id, done=True, said="answered")
        except (AlreadyResumed, RunOver):
            pass
        except (StoreError, TriageError) as error:
            return Outcome(run_id, done=False, said=str(error))
        first = outside.first_answer(await self._store.read(run_id), question)
        return Outcome(run_id, done=False, said="", first=first)

    async def _waiting(self, agent: str, words: str) -> list[Waiting]:
        infos = await self._store.runs("suspended", agent=agent or None, limit=MOST_WAITING)
        found: list[Waiting] = []
        for info in infos:
            if info.parent is not None:
                continue  # its question is the outer run's
            with suppress(StoreError):  # pruned or damaged: its own page says so
                events = await self._store.read(info.run_id)
                asked = waits_for(events)
                if asked is None:
                    continue
                offer = await self.offer(info, events)
                tool = "" if offer.about is None else offer.about.tool
                text = f"{info.run_id} {info.agent} {asked.question} {tool}".casefold()
                if all(word in text for word in words.casefold().split()):
                    pick = f"{slug(info.run_id)}*{asked.token_digest}"
                    found.append(Waiting(info, pick, asked.question, asked.time, offer))
        return sorted(found, key=lambda one: one.since)

    async def _read(self, request: Request) -> tuple[RunInfo, list[Event]]:
        return await run_and_events(self._store, request.path_params["run"])


def _filter_of(given: Mapping[str, str]) -> tuple[str, str]:
    return given.get("agent", "")[:_MOST_NAMED], given.get("q", "")[:_MOST_NAMED]


def _to_run(request: Request, run_id: str) -> Response:
    return RedirectResponse(f"{base_of(request.scope)}/runs/{slug(run_id)}", 303)
