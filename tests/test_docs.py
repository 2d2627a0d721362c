"""The documentation is run, and its output compared; links and names are checked."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import fields

import triage
from docs import count_words
from triage import (
    Checks,
    Durability,
    FailureType,
    Limits,
    TriageError,
    UsageError,
    incidents,
    plan,
    testing,
)
from triage.adapters.otel import NotExported
from triage.cli import main
from triage.core import AttemptInterrupted, Cause
from triage.core.events import Recorded

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
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


def python(page: Path) -> list[Block]:
    """The blocks of Python of a page, in order."""
    return [block for block in blocks(page) if block.language == "python"]


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


def prepare(page: Path, folder: Path) -> None:
    """Save the blocks whose first line names a file (`# policy.toml`)."""
    for block in blocks(page):
        name = re.match(r"# ([\w.]+\.(?:py|toml))\n", block.code)
        if name is not None:
            (folder / name[1]).write_text(block.code, encoding="utf-8")


FORKS = """
import importlib, json, os, sys, traceback
import triage

for name in triage.__all__:
    getattr(triage, name)
for room in ("adapters.openai", "classifiers", "incidents", "plan", "stores", "strategies", "testing"):
    importlib.import_module(f"triage.{room}")
for line in sys.stdin:
    folder = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number, name in ((1, "printed"), (2, "errors")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), number)
        sys.path[0] = folder
        with open("as_written.py", encoding="utf-8") as script:
            code = compile(script.read(), "as_written.py", "exec")
        try:
            exec(code, vars(sys.modules["__main__"]))
        except Exception:
            traceback.print_exc()
            sys.exit(1)
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs the page in each folder that it reads, in a process of its own that has its imports already."""


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ, "PYTHONPATH": str(Path(triage.__file__).parents[1]), "PYTHONUTF8": "1"
    }  # fmt: skip
    command = [sys.executable, "-W", "error", "-c", FORKS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in PAGES if python(page)], ids=ids)
def test_every_block_runs_as_written_and_prints_what_is_shown(
    page: Path, tmp_path: Path, forks: subprocess.Popen[str]
) -> None:
    prepare(page, tmp_path)
    code = python(page)
    (tmp_path / "as_written.py").write_text(program(page, code), encoding="utf-8")
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(f"{json.dumps(str(tmp_path))}\n")
    forks.stdin.flush()
    ended = forks.stdout.readline()
    assert ended == "0\n", (tmp_path / "errors").read_text(encoding="utf-8")
    printed = (tmp_path / "printed").read_text(encoding="utf-8").split(f"{MARK}\n")[1:]
    for block, output in zip(code, printed, strict=True):
        assert output == (block.shown or ""), f"{page.name}, line {block.line}"


def commands(page: Path) -> list[tuple[str, str]]:
    """The `triage` commands a page shows, each with its output."""
    shown = "".join(block.code for block in blocks(page) if block.language == "console")
    pieces = [piece.partition("\n") for piece in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in pieces if command.startswith("triage ")]


def settled(output: str) -> str:
    """Output without what is never the same: seconds, ids and tokens."""
    output = re.sub(r" +\d+\.\d\d s", " 0.00 s", output)
    output = re.sub(r'"seconds": [\d.]+', '"seconds": 0.0', output)
    return re.sub(r"\b[0-9a-f]{8}(?:[0-9a-f]{24})?\b", "an id", output)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=ids)
@pytest.mark.usefixtures("theirs_may_block")
def test_every_command_prints_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for command, shown in commands(page):
        known, printed = set(sys.modules), io.StringIO()
        for module in tmp_path.glob("*.py"):
            monkeypatch.delitem(sys.modules, module.stem, raising=False)
        with redirect_stdout(printed), redirect_stderr(printed):
            main(shlex.split(command)[1:])
        for name in set(sys.modules) - known:
            if (tmp_path / f"{name}.py").exists():
                del sys.modules[name]  # as in a process of its own
        assert settled(printed.getvalue()) == settled(shown), command


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_no_line_of_code_is_too_long_to_read(page: Path) -> None:
    for block in python(page):
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
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert pages - {"index.md"} | {"../CONTRIBUTING.md", "../SECURITY.md"} <= listed


def described() -> set[str]:
    """The words that stand as code in the pages: between backticks, in a block, or as a heading."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    prose = FENCE.sub("", text)
    code = [block[2] for block in FENCE.finditer(text)] + re.findall(r"`([^`\n]+)`", prose)
    code += re.findall(r"^### (\w+)$", prose, re.MULTILINE)
    return set(re.findall(r"\w+", " ".join(code)))


def test_every_public_name_is_described() -> None:
    names = {*triage.__all__, *plan.__all__, *incidents.__all__, *testing.__all__}
    assert names - described() == set()


def test_every_event_cause_type_error_and_setting_is_described() -> None:
    names = {kind.__name__ for kind in Recorded.__subclasses__()}
    names |= {*Cause, *(kind.name for kind in FailureType)}
    names |= {one.name for settings in (Limits, Checks, Durability) for one in fields(settings)}
    assert names - described() == set()


def subclasses(kind: type[object]) -> set[type[object]]:
    """A class of ours and all that are made of it."""
    found = {below for child in kind.__subclasses__() for below in subclasses(child)}
    return {one for one in {kind, *found} if one.__module__.startswith("triage.")}


def test_each_error_leads_to_its_anchor_and_each_anchor_has_its_error() -> None:
    page = ROOT / "docs" / "errors.md"
    heads = re.findall(r"^### (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ours = subclasses(TriageError) | {AttemptInterrupted, NotExported}
    assert sorted(heads) == sorted(error.__name__ for error in ours)
    for error in subclasses(TriageError):
        bare = error.__new__(error)  # without the arguments that some of them need
        assert isinstance(bare, TriageError)
        name, _, anchor = bare.help.partition("#")
        assert ROOT / name == page
        assert anchor in anchors(page)


def test_a_traceback_ends_in_an_explanation_that_needs_no_file() -> None:
    error = UsageError("Limits.attempts must be a whole number")
    printed = traceback.format_exception(error)
    note = (
        "explained: triage was used wrongly. Raised as early as possible, and never recovered from."
    )
    assert printed[-1] == f"{note}\n"
    assert str(error) == "Limits.attempts must be a whole number"
    copy = pickle.loads(pickle.dumps(error))
    assert copy.__notes__ == [note]


class HouseRule(UsageError):
    """An error made from one of ours."""


def test_an_error_made_from_one_of_ours_leads_to_ours() -> None:
    assert HouseRule("no").help == "docs/errors.md#usageerror"


def test_the_page_of_commands_is_what_the_program_says() -> None:
    program = [sys.executable, str(ROOT / "docs" / "generate_commands.py"), "--check"]
    checked = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)
    assert checked.returncode == 0, checked.stderr


PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def test_every_picture_is_shown_says_what_it_shows_and_loads_nothing() -> None:
    shown: set[Path] = set()
    for page in PAGES:
        for words, target in PICTURE.findall(page.read_text(encoding="utf-8")):
            assert len(words) > 20, f"{page.name}: {target}"
            shown.add((page.parent / target).resolve())
    assert shown == set((ROOT / "docs" / "pictures").iterdir())
    for picture in shown:
        if picture.suffix == ".png":
            assert picture.read_bytes().startswith(b"\x89PNG"), picture.name
            continue
        svg = picture.read_text(encoding="utf-8")
        assert not re.search(r"(?:href|src)=|url\(\s*[\"']?http|@import", svg), picture.name


def test_the_pages_are_short_enough_to_be_read() -> None:
    counted = count_words.counted()
    assert sum(counted.values()) <= 35_000, counted


def test_words_are_counted_without_code_generated_parts_and_targets_of_links() -> None:
    page = """# A page

One [two](three.md#four) `five` | — 6.

```python
seven = 8
```

<!-- matrix -->
| nine |
<!-- end of matrix -->
"""
    assert count_words.words(page) == ["A", "page", "One", "two", "five", "6"]


def test_the_files_to_change_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = page.partition("## Where do I change")[2].partition("\n## ")[0]
    rows = [row for row in text.splitlines() if row.startswith("| ") and "`" in row]
    named = {name for row in rows for name in re.findall(r"`((?:triage|tests)/[\w/.]*)`", row)}
    assert len(rows) == 10
    assert not {name for name in named if not (ROOT / name).exists()}


def test_the_design_names_every_module() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    parts = [path for path in (ROOT / "triage").iterdir() if not path.stem.startswith("__")]
    modules = {path.stem for path in parts if path.suffix == ".py" or path.is_dir()}
    assert {name for name in modules if f"`{name}`" not in text} == set()


def test_nothing_shown_names_a_machine() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(?:home|root|work|tmp|Users)/", text), page.name
