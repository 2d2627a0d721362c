"""Build the page as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from triage.core import errors
from triage.incidents.desk import IncidentDesk
from triage.stores.base import Store
from triage.stores.opening import open_store

from .answers import Answers
from .incidents import Incidents, desk_of
from .pages import Fleet, Pages, Places, StaticFile, static_files
from .security import Guard, Login, Who, check_hosts
from .views import FleetPage, Views

_KEPT = "public, max-age=31536000, immutable"
_UNREADABLE: dict[type[errors.StoreError], tuple[str, tuple[str, ...]]] = {
    errors.StoreTooNew: (
        "The store was written by a newer release",
        (
            "Update triage where this page runs, then load the page again.",
            "Nothing was changed in the store.",
        ),
    ),
    errors.StoreUnavailable: (
        "The store cannot be reached",
        (
            "See whether its file, server or network is there.",
            "Load the page again; runs in progress keep what they have recorded.",
        ),
    ),
    errors.StoreKeyMissing: (
        "The key of the store is missing",
        ("Give this process the key that the runs were encrypted with.",),
    ),
    errors.StoreCorrupt: (
        "The store is damaged",
        ("Restore it from a copy; `triage doctor` reports the damage.",),
    ),
}


def app(
    store: Store | Fleet | str,
    *,
    who: Who | None = None,
    login: Login | None = None,
    hosts: Sequence[str] = (),
    agents: Iterable[Any] = (),
    desk: IncidentDesk | None = None,
) -> Starlette:
    """Make the page of a store's runs, to serve on its own or to mount in another application.

    store: a `Store`, its URL such as `"sqlite:///runs.db"`, or a `triage.adapters.fleet.Fleet`, whose
    queues, workers and waits are shown too. who: identifies the person behind a
    request when the host application has its own login. login: admits one person by a token instead.
    Without either, everybody can view and nobody can change anything. hosts: the exact host names to
    answer to, as in `Guard`; empty (default): only this machine's own names. agents: agents whose runs
    continue in this process once they are answered; runs of other agents wait for a worker to recover
    them. desk: the incident desk; None makes one on the store.

    Raises UsageError for an invalid store or host name, and if both `who` and `login` are given.
    """
    if who is not None and login is not None:
        raise errors.UsageError("give app() either who= or login=: one of them says who asks")
    check_hosts(hosts)
    fleet = store if isinstance(store, Fleet) else None
    opened = store.store if isinstance(store, Fleet) else open_store(store)
    files = static_files()
    desk = desk_of(opened) if desk is None else desk
    kinds = [("Runs", "/"), ("Questions", "/questions")]
    kinds += [] if desk is None else [("Incidents", "/incidents")]
    kinds += [] if fleet is None else [("Fleet", "/fleet")]
    pages = Pages(files, kinds)
    answers = Answers(opened, pages, agents)
    places = Places(fleet)
    views = Views(opened, pages, answers, places)
    troubles = _Troubles(pages)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        yield
        if desk is not None:
            await desk.close()

    return Starlette(
        routes=[
            Route("/static/{digest}/{name}", _statics(files), name="static"),
            *answers.routes(),
            *([] if desk is None else Incidents(desk, pages, places).routes()),
            *([] if fleet is None else FleetPage(fleet, pages).routes()),
            *views.routes(),
        ],
        middleware=[
            Middleware(Guard, who=who, login=login, hosts=tuple(hosts)),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=5),
        ],
        lifespan=lifespan,
        exception_handlers={
            HTTPException: troubles.http,
            errors.StoreError: troubles.store,
            errors.UsageError: troubles.usage,
        },
    )


def _statics(files: dict[str, StaticFile]) -> Callable[[Request], Awaitable[Response]]:
    async def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        if request.path_params["digest"] != file.digest:  # a page of an older release
            digest, name = file.digest, request.path_params["name"]
            return RedirectResponse(request.url_for("static", digest=digest, name=name))
        return Response(file.body, media_type=file.media_type, headers={"Cache-Control": _KEPT})

    return static


class _Troubles:
    """Answer errors with pages that name the problem and the remedy."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    async def http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code != 404:
            return self._pages.problem(request, error.status_code, "Refused", error.detail)
        unknown = error.detail == "Not Found"  # no route has this address
        text = "There is nothing at this address." if unknown else error.detail
        remedies = ("Go to the list of runs, and search there.",)
        return self._pages.problem(request, 404, "Not found", text, remedies)

    async def usage(self, request: Request, error: Exception) -> Response:
        return self._pages.problem(request, 400, "That cannot be done", str(error))

    async def store(self, request: Request, error: Exception) -> Response:
        if isinstance(error, errors.UnknownRun):
            gone = "Go to the list of runs: it may have been removed by `triage runs prune`."
            return self._pages.problem(request, 404, "No such run", str(error), (gone,))
        known = (found for kind, found in _UNREADABLE.items() if isinstance(error, kind))
        title, remedies = next(known, ("The store failed", ("Load the page again.",)))
        return self._pages.problem(request, 503, title, str(error), remedies)
