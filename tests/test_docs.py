"""The documentation is run: every block of Python, with the output it shows; links and names are checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

import triage

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
MARK = "\x1e"
LONGEST_LINE = 90


class Block(NamedTuple):
    """A fenced block. line: that of its fence, from 1. shown: the output given right below it, if any."""

    language: str
    code: str
    line: int
    shown: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    made: list[Block] = []
    for match, following in zip_longest(found, found[1:]):
        shown = None
        if following is not None and following[1] == "text":
            between = text[match.end() : following.start()]
            shown = following[2] if not between.strip() else None
        made.append(Block(match[1], match[2], text.count("\n", 0, match.start()) + 1, shown))
    return made


def program(page: Path, code: list[Block]) -> str:
    """The page's Python as one program: each line has the number it has on the page."""
    lines = [""] * (page.read_text(encoding="utf-8").count("\n") + 1)
    for block in code:
        lines[block.line - 1] = f"print({MARK!r}, flush=True)"
        body = block.code.splitlines()
        lines[block.line : block.line + len(body)] = body
    return "\n".join(lines)


def ids(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_block_runs_as_written_and_prints_what_is_shown(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    for block in found:
        if block.language == "toml":  # its first line names the file: # policy.toml
            name = block.code.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(block.code, encoding="utf-8")
    code = [block for block in found if block.language == "python"]
    if not code:
        pytest.skip("no Python on this page")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page, code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "error", script.name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{MARK}\n")[1:]
    for block, output in zip(code, printed, strict=True):
        assert output == (block.shown or ""), f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_no_line_of_code_is_too_long_to_read(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            for line in block.code.splitlines():
                assert len(line) <= LONGEST_LINE, f"{page.name}: {line}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#{1,6} +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{page.name} links to {target}"


def test_the_index_lists_every_page() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert {page.name for page in PAGES[1:]} - {"index.md"} <= listed


def test_every_public_name_is_described() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES[1:])
    words = set(re.findall(r"\w+", text))
    assert set(triage.__all__) - words == set()


def test_the_design_names_every_module() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    parts = [path for path in (ROOT / "triage").iterdir() if not path.stem.startswith("__")]
    modules = {path.stem for path in parts if path.suffix == ".py" or path.is_dir()}
    assert {name for name in modules if f"`{name}`" not in text} == set()


def test_nothing_shown_names_a_machine() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(?:home|root|work|tmp|Users)/", text), page.name
