"""`Report`: the facts of a failure and what was made of them, as plain values that print anywhere."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from triage._options import check_word
from triage.errors import UsageError
from triage.steps import Usage

from ._clean import as_json, from_json, safely
from ._facts import Facts, for_a_person, without_internals

Audience: TypeAlias = Literal["person", "developer"]
AUDIENCES = ("person", "developer")
Completeness: TypeAlias = Literal["full", "structured", "minimal", "constant"]
VERSION = 1
CONSTANT = "Something went wrong, and no report of it could be made."


class Analysis(NamedTuple):
    """What an analyst makes of the facts: an opinion.

    text: why it failed, in a few sentences. suggestions: what to do now, one text each. by: who says
    so. usage: what it consumed, None where not known.
    """

    text: str
    suggestions: tuple[str, ...] = ()
    by: str = ""
    usage: Usage | None = None


class Report(NamedTuple):
    """What is told of a failure.

    time: when it was made, seconds since the epoch. completeness: `"full"` with an analysis,
    `"structured"` without one, `"minimal"` where little more than the failure is known, `"constant"`
    where not even that could be read. facts: all values plain, bounded and without secrets. analysis:
    None without one; missing: why there is none, in words, empty where none was asked for.

    A person sees what happened, the steps and what can be done; a developer sees all. Whatever tools,
    models and errors said is quoted. Nothing here raises, apart from UsageError for an audience that
    does not exist.
    """

    time: float = 0.0
    completeness: Completeness = "constant"
    facts: Facts = Facts()
    analysis: Analysis | None = None
    missing: str = ""

    def to_markdown(self, audience: Audience = "person") -> str:
        """The report as CommonMark."""
        from ._pages import markdown, page

        shown = self.seen_by(audience)
        return safely(lambda: markdown(page(shown)), f"{CONSTANT}\n")

    def to_text(self, audience: Audience = "person") -> str:
        """The report as plain lines."""
        from ._pages import page, text

        shown = self.seen_by(audience)
        return safely(lambda: text(page(shown)), f"{CONSTANT}\n")

    def as_dict(self, audience: Audience = "developer") -> dict[str, Any]:
        """The report as a JSON object; fields that have their defaults are left out."""
        shown = self.seen_by(audience)
        found: dict[str, Any] = {
            "v": VERSION,
            "time": shown.time,
            "completeness": shown.completeness,
            "facts": as_json(shown.facts),
        }
        if shown.analysis is not None:
            analysis = as_json(shown.analysis)
            if shown.analysis.usage is not None:
                analysis["usage"] = shown.analysis.usage._asdict()
            found["analysis"] = analysis
        if shown.missing:
            found["missing"] = shown.missing
        return found

    def to_json(self, audience: Audience = "developer") -> str:
        """`as_dict` in one line, ASCII only."""
        shown = self.seen_by(audience)
        return safely(lambda: json.dumps(shown.as_dict(), allow_nan=False), "{}")

    def seen_by(self, audience: Audience) -> Report:
        """The report with what this audience may see. Raises UsageError for another word."""
        check_word("audience", audience, AUDIENCES)
        if audience == "developer":
            return self
        told = self.analysis
        if told is not None:
            said = (told.text, *told.suggestions)
            text, *more = (without_internals(one, self.facts) for one in said)
            told = told._replace(text=text, suggestions=tuple(more), usage=None)
        missing = "No analysis could be made." if self.missing else ""
        return self._replace(facts=for_a_person(self.facts), analysis=told, missing=missing)

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """The report that `as_dict` made this of. Raises UsageError naming the field that is wrong."""
        if not isinstance(data, dict):
            raise UsageError(f"a report must be a JSON object, not {type(data).__name__}")
        version, how = data.get("v"), data.get("completeness")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise UsageError(f"Report.v must be a version from 1 to {VERSION}, not {version!r}")
        check_word("Report.completeness", how, ("full", "structured", "minimal", "constant"))
        time, missing = data.get("time", 0.0), data.get("missing", "")
        if isinstance(time, bool) or not isinstance(time, int | float):
            raise UsageError(f"Report.time must be a number, not {type(time).__name__}")
        if not isinstance(missing, str):
            raise UsageError(f"Report.missing must be text, not {type(missing).__name__}")
        facts = from_json(Facts, data.get("facts", {}), "Report.facts")
        complete = cast("Completeness", how)
        return cls(float(time), complete, facts, _analysis(data.get("analysis")), missing)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote. Raises UsageError for anything else."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"a report must be one JSON object: {error}") from None
        return cls.from_dict(data)

    def __str__(self) -> str:
        return self.to_text()


class _Opinion(NamedTuple):
    text: str = ""
    suggestions: tuple[str, ...] = ()
    by: str = ""


def _analysis(data: object) -> Analysis | None:
    if data is None:
        return None
    said = from_json(_Opinion, data, "Report.analysis")
    used = data.get("usage") if isinstance(data, dict) else None
    try:
        usage = None if used is None else Usage(**used)
    except (TypeError, ValueError) as error:
        raise UsageError(f"Report.analysis.usage cannot be read: {error}") from None
    return Analysis(said.text, said.suggestions, said.by, usage)
