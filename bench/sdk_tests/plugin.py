"""A plugin for pytest: each `Runner.run` of a test is a run of the same agent, wrapped.

Nothing is recovered here, so that what differs is what wrapping does: each failure ends the run, and the
error is raised as the SDK would raise it. Tools of the agent are declared as reads, since what a tool of a
test does to the world cannot be told from its name.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any

import agents

import triage
from triage import Escalate, FailurePolicy, TriageError, TriageSuspendedError
from triage.adapters.openai_agents import agents_of

_wrapped: ContextVar[bool] = ContextVar("sdk_tests_wrapped", default=False)
_bare: Any = agents.Runner.__dict__["run"].__func__


async def _run(cls: Any, starting_agent: Any, input: Any, **options: Any) -> Any:
    if _wrapped.get():
        return await _bare(cls, starting_agent, input, **options)
    token = _wrapped.set(True)
    try:
        held = [tool for agent in agents_of(starting_agent) for tool in agent.tools]
        names = [str(getattr(tool, "name", "")) for tool in held]
        agent = triage.wrap(
            starting_agent,
            policy=FailurePolicy(default=Escalate()),
            effects=dict.fromkeys(filter(None, names), "read"),
        )
        return await agent.run(input, **options)
    except TriageSuspendedError:
        raise
    except TriageError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from error.__cause__.__cause__
    finally:
        _wrapped.reset(token)


_replaced: Any = functools.update_wrapper(_run, _bare)
setattr(agents.Runner, "run", classmethod(_replaced))  # noqa: B010 - for every test
