"""An operation from its parameters, as a command line or another program gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from triage._options import check_word, misuse, nearest
from triage.errors import UsageError

if TYPE_CHECKING:
    from .desk import IncidentDesk

ACTIONS = ("detect", "handle", "recover", "escalate")
_NEEDS = {
    "detect": (),
    "handle": ("ERROR_ID",),
    "recover": ("TASK_ID", "RECOVERY_STRATEGY"),
    "escalate": ("ERROR_ID", "ESCALATION_LEVEL"),
}
_ALWAYS = ("ACTION", "ORCHESTRATOR_INSTANCE_ID")


async def invoke(desk: IncidentDesk, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Do what the parameters ask for.

    ORCHESTRATOR_INSTANCE_ID may be given, and must be the desk's owner. Raises UsageError for a parameter
    that is missing, not known to the action, or wrong.
    """
    if not isinstance(parameters, Mapping):
        raise misuse("parameters", parameters, "a mapping")
    action = parameters.get("ACTION")
    check_word("ACTION", action, ACTIONS)
    needs = _NEEDS[str(action)]
    for name in needs:
        if name not in parameters:
            raise UsageError(f"{action} needs the parameter {name}")
    for name in parameters:
        if name not in (*_ALWAYS, *needs):
            guess = nearest(str(name), (*_ALWAYS, *needs))
            raise UsageError(f"{action} knows no parameter {name!r}{guess and f'; {guess}'}")
    owner = parameters.get("ORCHESTRATOR_INSTANCE_ID", desk.owner)
    if owner != desk.owner:
        raise misuse("ORCHESTRATOR_INSTANCE_ID", owner, f"the desk's owner, {desk.owner}")
    given = [parameters[name] for name in needs]
    if action == "detect":
        return await desk.detect()
    if action == "handle":
        return await desk.handle(*given)
    if action == "recover":
        return await desk.recover(*given)
    return await desk.escalate(*given)
