"""The page: the runs of a store in a browser, each in detail and live. Needs the extra `web`.

    from triage.web import app

    application = app("sqlite:///runs.db")      # an ASGI application to mount behind a login

`triage web --store URL` serves it to this machine only.
"""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .application import app
from .security import LOOPBACK, Login, Person, Role, Who, check_bind

__all__ = ["LOOPBACK", "Login", "Person", "Role", "Who", "app", "check_bind"]

check_constructors(globals())
