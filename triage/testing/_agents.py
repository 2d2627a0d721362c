"""A copy of an agent: with other code, another environment, one more observer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from triage import Agent
from triage._function import read_function
from triage._options import misuse

from ._wrap import Wrapping, around

if TYPE_CHECKING:
    from triage import Environment
    from triage.observers import Observer

    from ._plan import FaultPlan

_WRAPPED = "__triage_faults__"


def wrap(plan: FaultPlan, agent: Any) -> Any:
    """An agent or agent function whose attempts fail as the plan says."""
    if not isinstance(agent, Agent):
        if isinstance(agent, staticmethod | classmethod) or not callable(agent):
            raise misuse("wrap(agent)", agent, "an Agent or an agent function")
        read_function(agent, bound=False)
        return _faulty(plan, agent, getattr(agent, "__name__", type(agent).__name__))
    copied = _copy(agent)
    copied._wrapped = _faulty(plan, agent._function.function, agent.name)  # noqa: SLF001 - a copy made here
    copied._function = replace(agent._function, function=copied._wrapped)  # noqa: SLF001
    return copied


def _faulty(plan: FaultPlan, function: Any, name: str) -> Any:
    made = around(Wrapping(plan, name, "agent"), function)
    setattr(made, _WRAPPED, (*getattr(function, _WRAPPED, ()), plan))
    return made


def has_faults_of(agent: Agent[Any], plan: FaultPlan) -> bool:
    """Whether this agent is wrapped by this plan already."""
    return plan in getattr(agent._function.function, _WRAPPED, ())  # noqa: SLF001 - what is read here was put there here


def observed(agent: Agent[Any], env: Environment, observer: Observer) -> Agent[Any]:
    """A copy of the agent that takes its time from `env` and has one more observer."""
    copied = _copy(agent)
    config = agent._config  # noqa: SLF001 - the options of the agent that is tested
    watching = (*config.observers, observer)
    copied._config = replace(config, env=env, observers=watching, plain=False, busy=True)  # noqa: SLF001
    return copied


def _copy(agent: Agent[Any]) -> Agent[Any]:
    copied: Agent[Any] = object.__new__(type(agent))
    copied.__dict__.update(agent.__dict__)
    return copied
