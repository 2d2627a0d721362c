"""Repeat a failed model request in its place, by the policy of the run.

Only failures that this cannot cure fail the attempt.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from triage.core.actions import Retry
from triage.core.capture import capture
from triage.core.failures import Attempt, words_of
from triage.core.observers import logger
from triage.core.quoting import quote
from triage.core.taxonomy import FailureType, Severity
from triage.strategies.limits import delay_of

from .recovery import context_of, diagnose, within_limits
from .run import Recorder

__all__ = ["mend"]


async def mend(run: Recorder, error: Exception, until: float = math.inf) -> bool:
    """Wait as the policy decides for this error; return whether to repeat the request.

    False, so that the attempt fails with the error, if the policy chooses anything but such a wait, or one
    that ends after `until`, in monotonic seconds.
    """
    try:
        tried = await _tried(run, error, until)
    except Exception:
        logger.exception("run %s: a failed request is not made again in its place", run.run_id)
        return False
    if tried is None:
        return False
    run.session.tries = (*run.session.tries, tried)
    await run.session.config.env.sleep(delay_of(tried.action))
    return not run.over and run.interrupt is None


async def _tried(run: Recorder, error: Exception, until: float) -> Attempt | None:
    """Return the failed request as an attempt, for the policy, if it is to be repeated; else None."""
    session = run.session
    if run.over or run.interrupt is not None or session.question is not None:
        return None
    info = capture(error, session.handled)
    trajectory = run.ended_by(info)
    diagnosis = await diagnose(session, trajectory)
    lasts = diagnosis.severity in (Severity.CRITICAL, Severity.FATAL) or info.refused
    if lasts or diagnosis.failure_type is not FailureType.EXTERNAL_FAULT:
        return None
    context = await context_of(session, run, error, trajectory, diagnosis)
    action = await within_limits(session, context)
    if not isinstance(action, Retry) or replace(action, delay=0.0, outage=False) != Retry():
        return None
    if session.limits.too_long(action, diagnosis.retry_after_s):
        return None
    if session.config.env.monotonic() + delay_of(action) > until:
        return None
    most = session.limits.outage_seconds
    session.waits.say(
        f"request {diagnosis.failure_type} {diagnosis.cause}",
        session.named,
        action.delay,
        f"a request to a model failed with {info.type_name} {quote(words_of(info))}, and is made again",
        "without end" if most is None else f"at most {most:g} s for one outage",
        "Agent(limits=Limits(outage_seconds=…)), or a policy that does not wait",
    )
    now = session.config.env.time()
    return Attempt(
        number=run.number,
        trajectory=trajectory,
        state={},
        error=info,
        diagnosis=diagnosis,
        action=action,
        usage=session.state.attempt_usage,
        started=now - context.attempt_s,
        ended=now,
    )
