"""Calls of one turn of a model that wait for a person: they are one question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triage.core.errors import UsageError
from triage.core.json_values import plain
from triage.engine.tools import shown

from .asking import AskedCall, Said
from .base import Seam


def answers_to(
    seam: Seam, approvals: Sequence[AskedCall], elsewhere: Sequence[AskedCall]
) -> dict[str, Said]:
    """A person's answers to these calls, by the calls' ids. Without answers yet, end the attempt and
    suspend the run. An answer that does not fit is asked for again.

    approvals: calls that may be made or not; one that was decided before is not asked about. Their values,
    where they have one, are True, False, a reason against the call, or the arguments it may have.
    elsewhere: calls of which a person tells the result. The ids are the same in each attempt.
    """
    calls = [*approvals, *elsewhere]
    known = seam.verdicts(approvals)
    left = [call for call in calls if call.id not in known]
    name = f"{_tools(calls)} ({'approval' if approvals else 'done elsewhere'})"
    about: list[Any] = [list(call) for call in calls]
    words = "; ".join(f"{call.tool} with {shown(plain(call.arguments))}" for call in left)
    given: Any = {call.id: [call.tool, plain(call.arguments)] for call in left}
    editable: tuple[str, ...] = ()
    if len(left) == 1:
        given = plain(left[0].arguments)
        editable = tuple(given) if isinstance(given, dict) and not elsewhere else ()
    said, wrong = None, ""
    while True:
        if left:
            said = seam.ask_person(
                name, about, f"{wrong}the agent waits for an answer about {words}",
                arguments=given, editable=editable, elsewhere=bool(elsewhere), calls=left,
            )  # fmt: skip
        try:
            each = _each(calls, known, said, approvals)
        except UsageError as error:
            wrong = f"{error}; "
            about = [*about, wrong]
            continue
        for call in approvals:
            one = each[call.id]
            if one.decision == "answered" and (one.value is False or isinstance(one.value, str)):
                seam.refuse(call, one.value or "")
        return each


def _each(
    calls: Sequence[AskedCall],
    known: Mapping[str, Said],
    said: Said | None,
    approvals: Sequence[AskedCall],
) -> dict[str, Said]:
    """What a person said of each call. Raises UsageError where it does not fit them.

    known: decisions on calls that it does not name. said: None where nothing was asked.
    """
    ids = [call.id for call in calls]
    if said is None:
        return dict(known)
    if said.decision != "answered":
        if len(approvals) < len(calls):  # of a journal in which they could be approved
            raise UsageError(f"{_tools(calls)} is done elsewhere: answer with happened(result)")
        return {**dict.fromkeys(ids, said), **known}
    told = said.value if len(ids) > 1 else dict.fromkeys(ids, said.value)
    named = {one: told[one] for one in ids if isinstance(told, Mapping) and one in told}
    missing = ", ".join(one for one in ids if one not in known and one not in named)
    if missing:
        many = f"{len(ids)} calls wait: answer with happened({{id: answer, …}})"
        raise UsageError(f"{many}; there is none for {missing}")
    for call in approvals:
        value = named.get(call.id, True)
        if not isinstance(value, bool | str | Mapping):
            raise UsageError(
                "a call that waits for approval is answered with approve(), reject(reason), or "
                "happened() of True, False, the reason against it, or the arguments it may have; not "
                f"{type(value).__name__}"
            )
    return {**known, **{one: Said("answered", value) for one, value in named.items()}}


def _tools(calls: Iterable[AskedCall]) -> str:
    return ", ".join(dict.fromkeys(call.tool for call in calls))
