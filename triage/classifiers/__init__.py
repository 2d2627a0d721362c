"""Classifiers: why an attempt failed. Those that ask a model are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage._lazy import lazily as _lazily

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
    "_llm_budget": ("Budget",),
    "blocking": ("BlockingClassifier",),
    "chain": ("ChainClassifier",),
    "hybrid": ("HybridClassifier",),
    "llm": ("LLMClassifier",),
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

__getattr__, __dir__ = _lazily(__name__, _HOMES)
