"""The page as an application: its routes, its addresses, and what it says of what goes wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from triage.stores import MemoryStore
from triage.web import app
from triage.web.pages import slug, unslug


@given(st.text())
def test_a_run_id_is_read_back_from_its_address(run_id: str) -> None:
    part = slug(run_id)
    assert unslug(part) == run_id
    assert part not in (".", "..")
    assert set(part) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.~")


def test_an_unknown_run_gets_a_page_that_says_where_to_look() -> None:
    page = TestClient(app(MemoryStore()), base_url="http://localhost").get("/runs/nobody")
    assert page.status_code == 404
    assert "knows no run nobody" in page.text
    assert "Go to the list of runs" in page.text
