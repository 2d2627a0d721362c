"""Errors in other languages are known as those in English are."""

from __future__ import annotations

import pytest

from triage import Cause, FailureType, diagnose

KNOWN = [
    ("连接失败", FailureType.EXTERNAL_FAULT, Cause.CONNECTION),
    ("查询超时", FailureType.EXTERNAL_FAULT, Cause.TIMEOUT),
    ("系统繁忙,请稍后重试", FailureType.EXTERNAL_FAULT, Cause.UNAVAILABLE),
    ("调用次数超过上限", FailureType.EXTERNAL_FAULT, Cause.RATE_LIMITED),
    ("缺少必填字段 name", FailureType.SCHEMA_MISMATCH, Cause.INVALID_ARGUMENTS),
    ("未知工具 cerca", FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL),
    ("トークンの期限が切れています", FailureType.EXTERNAL_FAULT, Cause.AUTH),
    ("テーブル orders が存在しません", FailureType.HALLUCINATED_STATE, Cause.MISSING_RESOURCE),
    ("연결이 거부되었습니다", FailureType.EXTERNAL_FAULT, Cause.CONNECTION),
    ("Die Verbindung wurde vom Rechner abgelehnt", FailureType.EXTERNAL_FAULT, Cause.CONNECTION),
    ("Der Kunde 17 wurde nicht gefunden", FailureType.HALLUCINATED_STATE, Cause.MISSING_RESOURCE),
    ("Le serveur des tarifs est surchargé", FailureType.EXTERNAL_FAULT, Cause.UNAVAILABLE),
    ("El campo ciudad es obligatorio", FailureType.SCHEMA_MISMATCH, Cause.INVALID_ARGUMENTS),
]
OTHER = [
    "超时设置为空",
    "标签\u201c连接失败\u201d的颜色未定义",
    "列「接続エラー」の幅は負です",
    "die Farbe der Verbindung ist rot",
    "la couleur du service est verte",
]


@pytest.mark.parametrize(("message", "kind", "cause"), KNOWN)
def test_what_an_error_says_in_another_language_is_known(
    message: str, kind: FailureType, cause: Cause
) -> None:
    found = diagnose(RuntimeError(message))
    assert (found.failure_type, found.cause) == (kind, cause)
    assert "the words" in found.evidence[0].text


@pytest.mark.parametrize("message", OTHER)
def test_a_name_or_another_thing_in_the_same_words_is_not(message: str) -> None:
    assert diagnose(RuntimeError(message)).failure_type is FailureType.UNKNOWN


def test_an_unknown_tool_behind_used_up_retries_decides() -> None:
    class UnexpectedModelBehavior(Exception):
        pass

    error = UnexpectedModelBehavior("Tool exceeded its retries")
    error.__cause__ = ValueError("Unknown tool name: 'serch'. Available tools: 'search'")
    found = diagnose(error)
    assert found.failure_type is FailureType.WRONG_TOOL_CALLED
