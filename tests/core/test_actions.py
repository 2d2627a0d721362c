"""Actions are values: compared, printed, matched, replaced, sent away and never changed."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest
from tables import table

import triage
from triage import Abort, Escalate, Replan, Resume, Retry, Rollback, Suspend
from triage.core import Action

# Each twice, made anew, with how it is printed.
ACTIONS: list[tuple[Action, Action, str]] = [
    (
        Retry("again", 2.5, {"model": "big"}),
        Retry(hint="again", delay=2.5, inject={"model": "big"}),
        "Retry(hint='again', delay=2.5, inject={'model': 'big'})",
    ),
    (Replan("else"), Replan(hint="else", delay=0.0), "Replan(hint='else', delay=0.0)"),
    (Rollback(3), Rollback(checkpoint_id=3), "Rollback(checkpoint_id=3, hint=None)"),
    (Resume("b"), Resume(subgoal="b"), "Resume(subgoal='b', hint=None)"),
    (
        Suspend("may I?", {"who": "me"}),
        Suspend(question="may I?", metadata={"who": "me"}),
        "Suspend(question='may I?', metadata={'who': 'me'}, expires_s=None)",
    ),
    (Escalate("no"), Escalate(reason="no"), "Escalate(reason='no')"),
    (Abort("no", True), Abort(reason="no", compensate=True), "Abort(reason='no', compensate=True)"),  # noqa: FBT003 - by position is what is tested
]
EACH = table(("action", "same", "text"), ACTIONS)


@EACH
def test_an_action_equals_one_of_the_same_kind_with_the_same_fields(
    action: Action, same: Action, text: str
) -> None:
    assert action == same
    assert [action == other for other, _, _ in ACTIONS].count(True) == 1
    assert type(action)() != action, text


@EACH
def test_an_action_is_printed_as_it_is_written(action: Action, same: Action, text: str) -> None:
    assert repr(action) == repr(same) == text
    assert eval(text, vars(triage)) == action  # its own text


@EACH
def test_an_action_can_be_sent_and_copied(action: Action, same: Action, text: str) -> None:
    for sent in (pickle.loads(pickle.dumps(action)), copy.copy(action), copy.deepcopy(action)):
        assert sent == same
        assert repr(sent) == text


@EACH
def test_an_action_never_changes_and_is_replaced(action: Action, same: Action, text: str) -> None:
    names = [field.name for field in msgspec.structs.fields(action)]
    assert type(action).__match_args__ == tuple(names)
    for name in names:
        with pytest.raises(AttributeError):
            setattr(action, name, None)
        with pytest.raises(AttributeError):
            delattr(action, name)
    assert repr(action) == text
    assert msgspec.structs.replace(action) == same
    default: Any = getattr(type(action)(), names[0])
    assert msgspec.structs.replace(action, **{names[0]: default}) != action


def test_equal_actions_are_one_in_a_set() -> None:
    assert len({Replan("else"), Replan("else"), Resume("else"), Escalate("no"), Abort("no")}) == 4
    for unhashable in (Retry(), Suspend()):
        with pytest.raises(TypeError):
            hash(unhashable)


def test_an_action_is_matched_by_position_and_by_name() -> None:
    match Retry("again", 2.0):
        case Retry(hint, delay=delay):
            assert (hint, delay) == ("again", 2.0)
        case _:
            pytest.fail("not matched")
