"""Runs of every kind, to look at on the page."""

from __future__ import annotations

from .desk import Working, file_incidents, fill, work

__all__ = ["Working", "file_incidents", "fill", "work"]
