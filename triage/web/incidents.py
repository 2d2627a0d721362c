"""The pages of incidents: the queue, and one incident with its log and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from triage.core.errors import UsageError
from triage.incidents.desk import IncidentDesk
from triage.incidents.journal import Incident
from triage.incidents.model import IncidentError, Status, UnknownIncident
from triage.stores.base import Store

from .pages import Pages, Places
from .security import Role, form_of, need, person_of

MOST = 100
"""The most incidents, and log entries of one incident, shown on a page."""
OUTCOMES = ("recovered", "failed", "ignored")


def desk_of(store: Store) -> IncidentDesk | None:
    """Return a desk on the incidents of a store; None if the store cannot hold incidents."""
    try:
        return IncidentDesk(store, owner="page")
    except UsageError:
        return None


class Incidents:
    """Handle the requests for pages of incidents."""

    def __init__(self, desk: IncidentDesk, pages: Pages, places: Places) -> None:
        self._desk = desk
        self._pages = pages
        self._places = places

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/incidents", self.queue, name="incidents"),
            Route("/incidents/{error}", self.incident, name="incident"),
            Route("/incidents/{error}", self.act, methods=["POST"]),
        ]

    async def queue(self, request: Request) -> Response:
        status = request.query_params.get("status", "")
        known = tuple(map(str, Status))
        found = await self._desk.incidents(status if status in known else None, limit=MOST)
        places = await self._places.of([one.run_id for one in found if one.run_id])
        return self._pages.render(
            request,
            "incidents/queue.html",
            incidents=found,
            places=places,
            chosen=status if status in known else "",
            statuses=known,
            most=MOST,
        )

    async def incident(self, request: Request) -> Response:
        one = await self._found(request)
        return await self._page(request, one)

    async def act(self, request: Request) -> Response:
        """Carry out the submitted action. If it is refused, show the form again with what was typed."""
        person = need(request, Role.ANSWER)
        one = await self._found(request)
        form = dict(await form_of(request))
        try:
            await self._carry_out(one.error_id, form, person.name)
        except (IncidentError, UsageError) as error:
            return await self._page(request, await self._found(request), form, error)
        base = request.scope.get("root_path", "").rstrip("/")
        return RedirectResponse(f"{base}/incidents/{one.error_id}", 303)

    async def _carry_out(self, error_id: str, form: Mapping[str, str], by: str) -> None:
        note = form.get("note", "").strip()
        match form.get("act"):
            case "acknowledge":
                await self._desk.acknowledge(error_id, by=by, note=note)
            case "escalate":
                await self._desk.escalate(error_id, form.get("level", ""), by=by)
            case "resolve":
                await self._desk.resolve(
                    error_id, by=by, outcome=form.get("outcome", ""), note=note
                )
            case _:
                raise UsageError("act: one of acknowledge, escalate, resolve")

    async def _found(self, request: Request) -> Incident:
        try:
            return await self._desk.incident(request.path_params["error"])
        except UnknownIncident as error:
            raise HTTPException(404, str(error)) from error

    async def _page(
        self,
        request: Request,
        one: Incident,
        form: Mapping[str, str] | None = None,
        error: Exception | None = None,
    ) -> Response:
        run_ids = [one.run_id] if one.run_id else []
        places = await self._places.of(run_ids)
        status = 200
        if error is not None:
            status = 409 if isinstance(error, IncidentError) else 422
        return self._pages.render(
            request,
            "incidents/incident.html",
            status=status,
            one=one,
            place=places.get(one.run_id or ""),
            log=one.log[-MOST:],
            messages=one.messages,
            levels=self._desk.levels,
            outcomes=OUTCOMES,
            typed=form or {},
            error="" if error is None else str(error),
            may=person_of(request).role.covers(Role.ANSWER),
        )
