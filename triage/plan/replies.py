"""A person's answer to any question of a run, by words: how command line and page answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from triage.core import actions
from triage.core.errors import UsageError, check_word

WITHOUT_REASON = ("approve", "edit", "happened", "rerun")
_REPLIES: dict[str, Callable[[str | None, Any, bool], actions.Reply]] = {
    "approve": lambda _reason, _payload, _again: actions.approve(),
    "reject": lambda reason, _payload, again: actions.reject(reason, ask_again=again),
    "edit": lambda _reason, payload, _again: _edit(payload),
    "happened": lambda _reason, payload, _again: actions.happened(payload),
    "rerun": lambda _reason, _payload, _again: actions.rerun(),
    "retry": lambda reason, _payload, _again: actions.Retry(reason),
    "replan": lambda reason, _payload, _again: actions.Replan(reason),
    "abort": lambda reason, _payload, _again: actions.Abort(reason),
    "escalate": lambda reason, _payload, _again: actions.Escalate(reason),
}


def reply_of(
    word: str, *, reason: str | None = None, payload: Any = None, ask_again: bool = False
) -> actions.Reply:
    """Return the answer that a word stands for.

    word: `approve`, `reject`, `edit`, `happened`, `rerun`, `retry`, `replan`, `abort` or `escalate`.
    reason: of a refusal or an end, or the hint of a new attempt. payload: changed arguments for `edit`, the
    result for `happened`. ask_again: as in `reject`. Raises UsageError for anything that does not belong to
    the word.
    """
    if reason is not None and word in WITHOUT_REASON:
        raise UsageError(f"{word} takes no reason; leave it out")
    if payload is not None and word not in ("edit", "happened"):
        raise UsageError(f"{word} takes no payload; leave it out")
    if ask_again and word != "reject":
        raise UsageError(f"only a rejection can be asked about again; leave that out with {word}")
    check_word("answer", word, tuple(_REPLIES))
    return _REPLIES[word](reason, payload, ask_again)


def _edit(payload: Any) -> actions.Edited:
    if not isinstance(payload, Mapping):
        raise UsageError('edit takes a payload with the arguments to change, as in {"days": 3}')
    try:
        return actions.edit(payload)
    except ValueError as error:
        raise UsageError(f"payload: {error}") from error
