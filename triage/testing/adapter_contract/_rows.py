"""All scenarios, in the order of the matrix."""

from __future__ import annotations

from . import _kept, _scenarios, _streams, _teams

SCENARIOS = (
    _scenarios.healthy,
    _scenarios.rate_limited_model,
    _scenarios.unavailable_tool,
    _scenarios.unknown_tool,
    _scenarios.bad_arguments,
    _scenarios.malformed_output,
    _scenarios.loop,
    _scenarios.budget,
    _scenarios.hang,
    _scenarios.hanging_tool,
    _scenarios.crash_and_resume,
    _scenarios.rollback,
    _scenarios.approval,
    _scenarios.soft_failure,
    _scenarios.cancellation,
    _scenarios.parallel_tools,
    _streams.streaming,
    _streams.broken_stream,
    _streams.unfinished_stream,
    _teams.sub_agent,
    _teams.parallel_agents,
    _teams.handoff,
    _kept.open_call,
    _kept.interrupted_turn,
    _kept.nested_retries,
)
