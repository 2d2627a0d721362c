"""What an adapter says where its framework is not installed."""

from __future__ import annotations


def missing(extra: str, error: ImportError) -> ModuleNotFoundError:
    """Make the error for a package that is not installed: it names the extra that brings the package."""
    return ModuleNotFoundError(
        f"this adapter needs {error.name}: pip install 'triage-recovery[{extra}]'", name=error.name
    )
