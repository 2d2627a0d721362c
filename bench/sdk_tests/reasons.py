"""Why a test of the SDK's ends otherwise where its runs are wrapped: what each difference is, once."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reason(NamedTuple):
    """One difference. error: what the failure says, as a pattern. tests: their names, as a pattern."""

    name: str
    says: str
    error: str
    tests: str = ""

    def holds(self, test: str, error: str) -> bool:
        """Whether it explains why a test failed with this error."""
        return bool(re.search(self.error, error) and re.search(self.tests, test))


REASONS = (
    Reason(
        "approvals",
        "a tool that needs approval suspends the run, and a token goes on with it; the test asks the "
        "result for its interruptions",
        r"is suspended: may |get_interruptions|SimpleNamespace",
    ),
    Reason(
        "an empty answer is none",
        "a model that says nothing has not answered: the script of the test gives an empty answer",
        r"plan_incomplete \(incomplete\)",
    ),
    Reason(
        "our own log",
        "that a provider did not close is said in the log `triage.adapters`",
        r"Failed to close model provider",
    ),
    Reason(
        "doubt is asked",
        "a tool of a server, whose effect nobody declared, may have done what it was to do: a person is "
        "asked",
        r"is suspended: did ",
    ),
    Reason(
        "the runner is replaced",
        "the test puts a mock in the place of the SDK's default runner, or looks inside of it",
        "",
        r"static_run_methods|output_guardrails_use_adapter_conversation_policy|callbacks_once",
    ),
    Reason(
        "errors of the escalation",
        "the run ends in an escalation whose cause is the SDK's error; the test looks at groups around it "
        "and at what its context says",
        r"BaseExceptionGroup|DIAGNOSTIC|TriageEscalationError\('run",
    ),
    Reason(
        "sessions are read by us",
        "what an attempt says is held back until it has come to an end, so a session is read once more "
        "and written at the end, and not at all by a run that was cancelled; the test counts its calls, or "
        "looks into it after a tool has raised a cancellation",
        r"session|get_items|IndexError",
        r"cancel|session|waits_for_input_verdict|input_verdict_during",
    ),
)
