"""For those who write their own stores: what a store must do, as checks to run."""

from __future__ import annotations

from .store_contract import store_checks, store_contract

__all__ = ["store_checks", "store_contract"]
