"""Classifiers: why an attempt failed. What most programs do not use is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage.core.constructors import check_constructors
from triage.core.environment import lazily

from .base import (
    Classifier,
    as_diagnosis,
    check_classifier,
    classifier_name,
    consult,
)
from .chain import ChainClassifier, HybridClassifier
from .detectors.answers import last_answer
from .detectors.arguments import arguments_of, check, load_schemas
from .detectors.finding import LOOP, Finding
from .detectors.loops import Calls, Loop
from .detectors.outcomes import changes, omitted
from .detectors.results import read
from .detectors.tool_calls import check_output, objection
from .detectors.watch import Watch
from .error_results import REFUSED_ARGUMENTS, error_of_result
from .facts import Fact
from .grounding import Grounding, Grounds
from .llm_clients import PROSE, Asked, Unusable, endpoint_of, provider_of
from .overrides import Override
from .rules import RULES, RulesClassifier, diagnose
from .tables.rule import Rule, lines

if TYPE_CHECKING:
    from .blocking import Asker, BlockingClassifier
    from .llm import Budget, LLMClassifier

__all__ = [
    "LOOP",
    "PROSE",
    "REFUSED_ARGUMENTS",
    "RULES",
    "Asked",
    "Asker",
    "BlockingClassifier",
    "Budget",
    "Calls",
    "ChainClassifier",
    "Classifier",
    "Fact",
    "Finding",
    "Grounding",
    "Grounds",
    "HybridClassifier",
    "LLMClassifier",
    "Loop",
    "Override",
    "Rule",
    "RulesClassifier",
    "Unusable",
    "Watch",
    "arguments_of",
    "as_diagnosis",
    "changes",
    "check",
    "check_classifier",
    "check_output",
    "classifier_name",
    "consult",
    "diagnose",
    "endpoint_of",
    "error_of_result",
    "last_answer",
    "lines",
    "load_schemas",
    "objection",
    "omitted",
    "provider_of",
    "read",
]


__getattr__, __dir__ = lazily(
    __name__,
    {"blocking": ("Asker", "BlockingClassifier"), "llm": ("Budget", "LLMClassifier")},
)

check_constructors(globals())
