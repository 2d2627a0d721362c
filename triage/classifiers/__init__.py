"""Classifiers: why an attempt failed. Those that ask a model are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._override import Override
from ._rule import Rule
from .base import Classifier
from .diagnose import as_diagnosis, diagnose
from .rules import RULES, RulesClassifier

if TYPE_CHECKING:
    from ._llm_budget import Budget
    from .blocking import BlockingClassifier
    from .chain import ChainClassifier
    from .hybrid import HybridClassifier
    from .llm import LLMClassifier

_HOMES = {
    "BlockingClassifier": "blocking",
    "Budget": "_llm_budget",
    "ChainClassifier": "chain",
    "HybridClassifier": "hybrid",
    "LLMClassifier": "llm",
}

__all__ = [
    "RULES",
    "BlockingClassifier",
    "Budget",
    "ChainClassifier",
    "Classifier",
    "HybridClassifier",
    "LLMClassifier",
    "Override",
    "Rule",
    "RulesClassifier",
    "as_diagnosis",
    "diagnose",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'triage.classifiers' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
