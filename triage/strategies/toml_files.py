"""Read TOML: files of users, with errors that name the file, and text of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triage.core import UsageError


def read_toml(path: Path, where: str) -> dict[str, Any]:
    """Read a file of TOML.

    Raises UsageError, which begins with `where`, for one that cannot be read or is not TOML.
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{where}: is not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text of TOML. Raises ValueError for any other."""
    import tomllib  # an import of triage would take longer by 3 ms for what few programs use

    return tomllib.loads(text)
