"""Classifiers: why an attempt failed."""

from __future__ import annotations

from ._rule import Rule
from .base import Classifier
from .diagnose import as_diagnosis, diagnose
from .rules import RULES, RulesClassifier

__all__ = ["RULES", "Classifier", "Rule", "RulesClassifier", "as_diagnosis", "diagnose"]
