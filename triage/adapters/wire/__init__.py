"""Model calls as they leave the process, in whatever framework or client they are made.

A request to a model that is made in an attempt is a recorded call, whatever library sends it. All other
requests, and all requests outside of a run, pass untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage.core.environment import lazily

from .endpoints import Endpoint, endpoint

if TYPE_CHECKING:
    from .clients import recorded_client

__all__ = ["Endpoint", "endpoint", "recorded_client"]

__getattr__, __dir__ = lazily(__name__, {"clients": ("recorded_client",)})
