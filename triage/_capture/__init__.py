"""Exceptions as data: `capture` reads one, `hint` and `not_attempted` write onto one."""

from __future__ import annotations

from ._hint import hint, not_attempted, said_in
from ._take import capture

__all__ = ["capture", "hint", "not_attempted", "said_in"]
