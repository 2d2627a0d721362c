"""The site of the documentation: built from the pages as they are, and complete without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, str(ROOT / "docs" / "build_site.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


pytestmark = pytest.mark.timeout(200)


def test_every_page_is_there_for_people_and_for_programs(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    for name in {*pages, "readme", "contributing", "security", "changelog", "examples-demo"}:
        text = (site / f"{name}.md").read_text(encoding="utf-8")
        assert f"]({name}.md): " in listed
        assert text in whole
        assert "<h1" in (site / name / "index.html").read_text(encoding="utf-8")


def test_it_is_searched_offline_and_loads_nothing_from_another_host(site: Path) -> None:
    assert "idempotency" in (site / "search.json").read_text(encoding="utf-8")
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="https?:', text), page
        assert not re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="https?:', text), page
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8"), style
