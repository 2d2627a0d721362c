"""The pages that change runs: answer questions singly or in bulk, cancel, recover and fork."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from triage.core import (
    AlreadyResumed,
    Event,
    Keyring,
    Replan,
    RunBusy,
    RunOver,
    StoreError,
    TriageError,
    UnknownRun,
    UsageError,
    logger,
    one_line,
)
from triage.engine import Agent, cancel, fork, resolve, waits_for
from triage.plan import ApprovalAnswer, Orchestrator, answer_in
from triage.stores import RunInfo, Store

from .asking import First, Offer, Schemas, first_answer, offer_of, refilled, reply_of
from .pages import Pages, slug, unslug
from .security import Person, Role, form_of, need, person_of

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
    first: First | None = None


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
            agent = given.agent if isinstance(given, Orchestrator) else given
            if not isinstance(agent, Agent):
                raise UsageError(f"agents= takes agents, not {type(agent).__name__}")
            here = agent.stored_in(store)
            self._agents |= dict.fromkeys((agent.name, *agent.aliases), here)
            self._schemas |= {} if agent.checks is None else agent.checks.manifest

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/questions", self.questions, name="questions"),
            Route("/questions", self.answer_many, methods=["POST"]),
            Route("/runs/{run}/answer", self.question, name="answer"),
            Route("/runs/{run}/answer", self.answer, methods=["POST"]),
            Route("/runs/{run}/cancel", self.cancel, methods=["POST"]),
            Route("/runs/{run}/recover", self.recover, methods=["POST"]),
            Route("/runs/{run}/fork", self.fork, methods=["POST"]),
        ]

    def offer(self, info: RunInfo, events: Sequence[Event]) -> Offer:
        """Return what can be done with a run."""
        schemas: Schemas = self._schemas
        return offer_of(info, events, schemas, runs_here=self.runs(info.agent))

    def runs(self, agent: str) -> bool:
        """Return whether this process can continue the runs of this agent."""
        return agent in self._agents

    # One run --------------------------------------------------------------------------------------

    async def question(self, request: Request) -> Response:
        """Show a run's question and the form that answers it."""
        info, events = await self._read(request)
        return self._form(request, info, events, self.offer(info, events))

    async def answer(self, request: Request) -> Response:
        """Record an answer. If it is invalid, show the form again with what was typed."""
        person = need(request, Role.ANSWER)
        info, events = await self._read(request)
        form = dict(await form_of(request))
        question = form.get("question", "")
        first = first_answer(events, question)
        offer = self.offer(info, events)
        if first is not None or question != offer.question:
            return self._late(request, info, first)
        try:
            said = reply_of(events, offer, form, self._schemas, person.name)
            await self._write(info, question, said, person)
        except (AlreadyResumed, RunOver):
            events = await self._store.read(info.run_id)
            return self._late(request, info, first_answer(events, question))
        except (RunBusy, UsageError) as error:
            typed = offer._replace(fields=refilled(offer.fields, form))
            return self._form(request, info, events, typed, form, str(error))
        self._go_on(info)
        return _to_run(request, info.run_id)

    async def _write(self, info: RunInfo, question: str, said: Any, person: Person) -> None:
        if isinstance(said, ApprovalAnswer):
            await answer_in(self._store, said)
            return
        now = time.time()
        await resolve(self._store, info.run_id, said, now=now, by=person.name, question=question)

    def _form(
        self,
        request: Request,
        info: RunInfo,
        events: Sequence[Event],
        offer: Offer,
        typed: Mapping[str, str] | None = None,
        error: str = "",
    ) -> Response:
        return self._pages.render(
            request,
            "answers/question.html",
            status=422 if error else 200,
            info=info,
            asked=waits_for(events),
            offer=offer,
            typed=typed or {},
            error=error,
        )

    def _late(self, request: Request, info: RunInfo, first: First | None) -> Response:
        return self._pages.render(request, "answers/late.html", status=409, info=info, first=first)

    async def cancel(self, request: Request) -> Response:
        """Cancel a run, even one that another process owns."""
        person = need(request, Role.ADMIN)
        info, _ = await self._read(request)
        try:
            await cancel(self._store, info.run_id, now=time.time(), by=person.name)
        except RunOver:
            events = await self._store.read(info.run_id)
            end = events[-1]
            first = First(getattr(end, "by", ""), end.time, getattr(end, "status", "it has ended"))
            return self._late(request, info, first)
        return _to_run(request, info.run_id)

    async def recover(self, request: Request) -> Response:
        """Recover a run whose process is gone, if its agent is available here."""
        need(request, Role.ADMIN)
        info, events = await self._read(request)
        if not self.runs(info.agent):
            raise UsageError(
                f"this page does not run the agent {one_line(info.agent, 60)}; recover the run with: "
                f"{self.offer(info, events).command or 'recover_all() in any worker'}"
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
        try:
            if one is None:
                events = await self._store.read(run_id)
                return Outcome(run_id, done=False, said="", first=first_answer(events, question))
            if form.get("answer") == "cancel":
                await cancel(self._store, run_id, now=time.time(), by=person.name)
                return Outcome(run_id, done=True, said="cancelled")
            events = await self._store.read(run_id)
            said = reply_of(events, one.offer, form, self._schemas, person.name)
            await self._write(one.info, question, said, person)
        except (AlreadyResumed, RunOver):
            events = await self._store.read(run_id)
            return Outcome(run_id, done=False, said="", first=first_answer(events, question))
        except (StoreError, TriageError) as error:
            return Outcome(run_id, done=False, said=str(error))
        self._go_on(one.info)
        return Outcome(run_id, done=True, said="answered")

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
                offer = await to_thread.run_sync(self.offer, info, events)
                text = f"{info.run_id} {info.agent} {asked.question} {offer.tool}".casefold()
                if all(word in text for word in words.casefold().split()):
                    pick = f"{slug(info.run_id)}*{asked.token_digest}"
                    found.append(Waiting(info, pick, asked.question, asked.time, offer))
        return sorted(found, key=lambda one: one.since)

    async def _read(self, request: Request) -> tuple[RunInfo, list[Event]]:
        part = request.path_params["run"]
        run_id = unslug(part)
        info = None if run_id is None else await self._store.info(run_id)
        if info is None:
            raise UnknownRun(f"the store knows no run {one_line(run_id or part)}")
        return info, await self._store.read(info.run_id)


def _filter_of(given: Mapping[str, str]) -> tuple[str, str]:
    return given.get("agent", "")[:_MOST_NAMED], given.get("q", "")[:_MOST_NAMED]


def _to_run(request: Request, run_id: str) -> Response:
    base = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(f"{base}/runs/{slug(run_id)}", 303)
