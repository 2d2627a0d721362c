"""Values of a run as a notebook shows them: small, in the page's own colours, and inert."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from tables import table

from core.hostile_texts import STEERING, steers
from triage import Agent, Diagnosis, Escalate, FailurePolicy, FailureType, Step, TriageError
from triage.core import Evidence, Trajectory
from triage.core.state import RunState

PASSWORD = "sk-ant-api03-" + "a1B2c3D4" * 10
HARMLESS = {"table", "caption", "b", "tr", "th", "td", "pre"}


class Page(HTMLParser):
    """Collects the tags, the attributes and the text of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def failed(text: str) -> TriageError:
    """The error of a run that has `text` wherever a run can have it."""

    async def agent(task: Any, *, record_step: Any) -> None:
        record_step(Step(tool_called=text, tool_input={text: text}, tool_output=text))
        record_step(Step(action="look", llm_output=text, error=text))
        raise RuntimeError(text)

    with pytest.raises(TriageError) as caught:
        asyncio.run(Agent(agent, FailurePolicy(default=Escalate(text))).run(text))
    return caught.value


def values(text: str) -> Iterator[Any]:
    """One of each kind of value a notebook shows, with `text` wherever it may be."""
    error = failed(text)
    assert error.context is not None
    yield error.context.trajectory
    yield error.report
    yield Diagnosis(
        FailureType.UNKNOWN,
        cause=text or None,
        evidence=(Evidence("steps.loop", text, step=0),),
        hint=text,
        technical_details=text,
        suggestions=(text,),
    )
    state = RunState()
    state.run_id = state.agent = state.question = text
    state.task = state.result = {text: [text]}
    state.history = list(error.context.attempt_history)
    yield state


@table("name", STEERING)
def test_hostile_text_is_text_in_a_notebook_too(name: str) -> None:
    plain = [Page(value._repr_html_()) for value in values("harmless")]
    for value, harmless in zip(values(STEERING[name]), plain, strict=True):
        page = Page(value._repr_html_())
        assert page.tags <= HARMLESS
        assert page.attributes <= harmless.attributes
        assert list(steers(page.text)) == []


def test_a_secret_is_not_kept_in_a_notebook() -> None:
    for value in values(f"password={PASSWORD}"):
        assert "[redacted]" in value._repr_html_()
        assert PASSWORD not in value._repr_html_()


def test_what_a_notebook_shows_is_small_whatever_it_is_made_of() -> None:
    long = Trajectory(Step(tool_called="read", tool_output="x" * 100_000) for _ in range(1_000))
    html = long._repr_html_()
    assert len(html) < 30_000
    assert "960 more" in html
    assert "step 0" in html
    assert "step 999" in html


def test_colours_are_the_pages_own() -> None:
    for value in values("x"):
        html = value._repr_html_()
        assert "color:inherit" in html
        assert "background:none" in html
        assert "color:#" not in html
