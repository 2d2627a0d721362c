"""What a rule is: one line of a table, with what makes it fire and what must not."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

from triage.taxonomy import Cause, FailureType, Level, Severity

LooksAt = Literal["status", "code", "name", "answer", "text"]


class Rule(NamedTuple):
    """One rule of `RulesClassifier`.

    name: as it appears in evidence. failure_type, cause, severity, level: of the diagnosis;
    severity and level None take the defaults of cause and type. looks_at: what `keys` are compared
    with:

    - `"status"`: the HTTP status, as digits (`"429"`, or `"5xx"` for what is not listed).
    - `"code"`: SQLSTATE (five characters, or the two of its class), errno, gRPC and protocol codes,
    exact.
    - `"name"`: the end of a class name or of a provider's code, in words without `error` or
    `exception`:
      `"rate limit"` fits RateLimitError, LMRateLimitError and `rate_limit_error`, not
      RateLimitSettings; `"invalid *"` fits a name of an error or a code that has these words and
      more after them. A key with a dot is a full class name and fits only that class.
    - `"answer"`: regular expressions on what the other side answered; tried only on errors that
    carry an
      answer (a status, a code, a body), in lower case with `_` and `-` as spaces.
    - `"text"`: regular expressions on the message of any error, the same way, after all else was
    silent.

    weak: what the error was raised from may say more. unquoted: the text is read without its quoted
    names. source: where the rule comes from. examples, near_misses: messages (or statuses, codes,
    class names) on which it must and must not fire; both are tested. Those of the rules on steps,
    `steps.…`, are runs as lines of JSON.
    """

    name: str
    failure_type: FailureType
    cause: Cause | str | None
    looks_at: LooksAt
    keys: tuple[str, ...]
    severity: Severity | None = None
    level: Level | None = None
    weak: bool = False
    unquoted: bool = False
    confidence: float = 0.9
    source: str = ""
    examples: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()


def name_rule(
    name: str,
    failure_type: FailureType,
    cause: Cause | None,
    keys: str,
    *,
    examples: str,
    near: str,
    severity: Severity | None = None,
    weak: bool = False,
) -> Rule:
    """A rule on names. keys: separated by commas. examples, near: names that fit and do not."""
    return Rule(
        f"name.{name}",
        failure_type,
        cause,
        "name",
        tuple(" ".join(key.split()) for key in keys.split(",")),
        severity,
        weak=weak,
        source="class names and codes that clients and providers of many makes share",
        examples=tuple(examples.split()),
        near_misses=tuple(near.split()),
    )


def word_rule(
    name: str,
    failure_type: FailureType,
    cause: Cause | None,
    keys: str,
    *,
    on: str,
    not_on: str,
    severity: Severity | None = None,
    looks_at: LooksAt = "text",
    unquoted: bool = False,
    source: str = "wording that clients, tools and agent frameworks share",
) -> Rule:
    """A rule on words. keys, on, not_on: expressions and messages, one a line; see `lines`."""
    return Rule(
        f"{looks_at}.{name}",
        failure_type,
        cause,
        looks_at,
        lines(keys),
        severity,
        unquoted=unquoted,
        confidence=0.75 if looks_at == "text" else 0.9,
        source=source,
        examples=lines(on),
        near_misses=lines(not_on),
    )


def lines(block: str) -> tuple[str, ...]:
    """The lines of a block without their indent; one indented further goes on the line before."""
    found: list[str] = []
    indent = 0
    for line in block.splitlines():
        text = line.strip()
        if not text:
            continue
        depth = len(line) - len(line.lstrip())
        if not found:
            indent = depth
        if depth > indent:
            found[-1] += text
        else:
            found.append(text)
    return tuple(found)


_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+"
_EMPTY_WORDS = frozenset({"error", "errors", "exception", "err", "exc", "fault"})


@cache
def words_of(name: str) -> tuple[str, ...]:
    """A class name or code in lower-case words, without those at the end that say only "error"."""
    words = [word.lower() for word in re.findall(_WORD, name[:120])]
    while len(words) > 1 and words[-1] in _EMPTY_WORDS:
        words.pop()
    return tuple(words)


def bounded(key: str) -> re.Pattern[str]:
    """The expression of a key, bounded by words on both sides."""
    return re.compile(rf"(?<!\w)(?:{key})(?!\w)", re.DOTALL)


def normal(text: str) -> str:
    """Lower case, with `_`, `-` and line ends as spaces."""
    if text.isascii():
        # The same, at a third of the cost.
        return text.encode().translate(_NORMAL).decode()
    low = text.lower().replace("_", " ").replace("-", " ").replace("\n", " ")
    return low.replace("\u2019", "'").replace("\t", " ").replace("\r", " ")


_NORMAL = bytes(range(128)).lower().translate(bytes.maketrans(b"_-\n\t\r", b"     ")).ljust(256)


_QUOTED = {
    # The mark first: what is before it is looked at only where one stands.
    "'": r"'(?<!\w')[^']{1,80}'(?!\w)",
    '"': r"\"[^\"]{1,80}\"",
    "`": r"`[^`]{1,80}`",
    "\u201c": r"\u201c[^\u201d]{1,80}\u201d",
}
_says_more = re.compile(r"[a-z]{2}").search


@cache
def _quoted(marks: str) -> re.Pattern[str]:
    return re.compile("|".join(_QUOTED[mark] for mark in marks))


def unquoted(text: str) -> str:
    """The text without its short quoted parts: names are data, not statements.

    A text of which nothing but a quotation is left is a statement after all, and is kept.
    """
    marks = "".join([mark for mark in _QUOTED if mark in text])
    # Without a quotation mark there is nothing to take out.
    bare = _quoted(marks).sub(" ", text) if marks else text
    return bare if _says_more(bare) else text
