"""The pages that show runs: the list, one run, its attempts side by side, single events, and a fleet."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from triage.core.events import Event
from triage.core.quoting import one_line
from triage.core.redaction import redact
from triage.core.taxonomy import FailureType
from triage.core.wire import dump
from triage.engine.answering import waits_for
from triage.engine.digest import status_of
from triage.engine.outside import asks_of, lease_of
from triage.plan.orchestrator import report_in
from triage.plan.routing import fold_plan
from triage.stores.base import RunInfo, Store

from .answers import Answers
from .digest import Digests, Query, Row, find, row_of
from .live import Live
from .pages import Fleet, Pages, Places, run_and_events, run_at
from .pictures import picture_of
from .story import Story, compared
from .timeline import Entry, entries_of, lasted

STATUSES = (
    "running", "suspended", "dead_letter", "done", "escalated", "aborted", "fatal", "cancelled", "error",
)  # fmt: skip
PER_PAGE = 50
"""How many runs a page of the list shows."""
MOMENTS = 100
"""How many moments a page of a run's timeline shows."""
_MOST_SHOWN = 200_000
"""The most characters of an event's field that its page shows."""
_MOST_PLACES = 200
"""The most runs that the page of a fleet lists."""


class Views:
    """Handle the requests for pages of runs."""

    def __init__(self, store: Store, pages: Pages, answers: Answers, places: Places) -> None:
        self._store = store
        self._answers = answers
        self._pages = pages
        self._places = places
        self._digests = Digests(store)
        self._live = Live(store, self._digests, places)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.runs, name="runs"),
            Route("/live", self.live, name="live"),
            Route("/runs/{run}", self.run, name="run"),
            Route("/runs/{run}/live", self.live_run, name="live_run"),
            Route("/runs/{run}/events/{seq}", self.event, name="event"),
            Route("/runs/{run}/attempts", self.attempts, name="attempts"),
            Route("/runs/{run}/report", self.report, name="report"),
        ]

    async def runs(self, request: Request) -> Response:
        """List the runs that match the query, newest first."""
        query = Query.of(request.query_params)
        start = _number(request, "from") or 0
        found = await find(self._store, self._digests, query, start, PER_PAGE)
        places = await self._places.of([info.run_id for info, _ in found.runs])
        now = await self._store.now()
        agents = {query.agent, *(info.agent for info, _ in found.runs)}

        def further(older: int) -> str:
            given = {k: v for k, v in request.query_params.items() if v and k != "from"}
            return urlencode({**given, **({"from": older} if older else {})})

        return self._pages.render(
            request,
            "runs.html",
            query=query,
            start=start,
            rows=[
                row_of(info, digest, now, places.get(info.run_id)) for info, digest in found.runs
            ],
            blank=Row(),
            older=found.older,
            hasty=found.hasty,
            looked_at=found.looked_at,
            further=further,
            # One that cannot be displayed unchanged cannot be chosen either.
            agents=sorted(name for name in agents if name and one_line(name) == name),
            statuses=STATUSES,
            failures=[kind.value for kind in FailureType],
        )

    async def live(self, request: Request) -> Response:
        return await self._live.runs(request)

    async def live_run(self, request: Request) -> Response:
        info = await run_at(self._store, request.path_params["run"])
        after = _number(request, "after")
        return await self._live.run(request, info.run_id, -1 if after is None else after)

    async def run(self, request: Request) -> Response:
        """Show one run: its status, why it failed, and its timeline."""
        info, events = await self._read(request)
        now = await self._store.now()
        place = (await self._places.of([info.run_id])).get(info.run_id)
        at, page = _number(request, "at"), _number(request, "page")
        offer = await self._answers.offer(info, events)

        def made() -> Response:
            story = Story(events)
            pages = max(1, -(-len(story.moments) // MOMENTS))
            newest = pages if info.status == "running" else 1
            chosen = newest if page is None else page
            if at is not None:
                chosen = story.page_of(at, MOMENTS)
            number = min(max(1, chosen), pages)
            moments, before = story.page(number, MOMENTS)
            return self._pages.render(
                request,
                "run.html",
                info=info,
                story=story,
                state=story.state,
                asked=waits_for(events),
                asks=asks_of(events),
                offer=offer,
                runs_here=self._answers.runs(info.agent),
                shown=status_of(info, events, now),
                lease=lease_of(info, now),
                place=place,
                picture=picture_of(story),
                plan=fold_plan(events) if story.has_plan else None,
                entries=list(entries_of(moments, story.started, before)),
                aliases={
                    moment.first.seq: [event.seq for event in moment.events[1:]]
                    for moment in moments
                },
                page=number,
                pages=pages,
                page_of=lambda seq: story.page_of(seq, MOMENTS),
                lasted=lasted,
                blank=Entry(0, 0, "", "", "", " "),
            )

        return await to_thread.run_sync(made)

    async def event(self, request: Request) -> Response:
        info, events = await self._read(request)
        seq = _whole(request.path_params["seq"])
        if seq is None or seq >= len(events):
            raise HTTPException(404, f"the run has the events 0 to {len(events) - 1}")

        def made() -> Response:
            moment = next(
                one for one in Story(events).moments if seq in [event.seq for event in one.events]
            )
            (entry,) = entries_of([moment], events[0].time, None)
            return self._pages.render(
                request,
                "event.html",
                info=info,
                seq=seq,
                last=len(events) - 1,
                time=events[seq].time,
                kind=type(events[seq]).__name__,
                entry=entry,
                together=[one.seq for one in moment.events],
                fields=_fields(events[seq]),
            )

        return await to_thread.run_sync(made)

    async def attempts(self, request: Request) -> Response:
        """Show two attempts side by side; by default, the last two."""
        info, events = await self._read(request)
        left, right = _number(request, "left"), _number(request, "right")

        def made() -> Response:
            story = Story(events)
            numbers = [one.number for one in story.attempts]
            if len(numbers) < 2:
                raise HTTPException(
                    404, "this run has made one attempt: there is nothing to compare"
                )
            one = left if left in numbers else numbers[-2]
            two = right if right in numbers else numbers[-1]
            return self._pages.render(
                request,
                "attempts.html",
                info=info,
                numbers=numbers,
                story=story,
                sides=compared(story, one, two),
                lasted=lasted,
            )

        return await to_thread.run_sync(made)

    async def report(self, request: Request) -> Response:
        """Return the report of a failed run as Markdown."""
        _, events = await self._read(request)
        text = await to_thread.run_sync(lambda: report_in(events).to_markdown("developer"))
        return PlainTextResponse(text)

    async def _read(self, request: Request) -> tuple[RunInfo, list[Event]]:
        return await run_and_events(self._store, request.path_params["run"])


class FleetPage:
    """Handle the requests for the page of a fleet."""

    def __init__(self, fleet: Fleet, pages: Pages) -> None:
        self._fleet = fleet
        self._pages = pages

    def routes(self) -> list[BaseRoute]:
        return [Route("/fleet", self.show, name="fleet")]

    async def show(self, request: Request) -> Response:
        """List the delayed, queued and running runs, those that have waited longest first."""
        places = sorted(await self._fleet.places(), key=lambda place: -place.waited_s)
        return self._pages.render(
            request,
            "fleet.html",
            places=places[:_MOST_PLACES],
            count=len(places),
            most=_MOST_PLACES,
        )


def _number(request: Request, name: str) -> int | None:
    """Read a whole number from the query; None if it is missing or invalid."""
    return _whole(request.query_params.get(name, ""))


def _whole(text: str) -> int | None:
    """Read a non-negative whole number of at most nine digits; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _fields(event: Event) -> list[tuple[str, str]]:
    """Return the fields of an event as redacted text; values other than text as JSON."""
    found: dict[str, Any] = redact(dump(event))
    return [
        (
            str(name),
            (value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))[
                :_MOST_SHOWN
            ],
        )
        for name, value in found.items()
        if name not in ("run_id", "sealed")
    ]
