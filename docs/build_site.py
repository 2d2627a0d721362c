"""Builds the site of these pages: `python docs/build_site.py [FOLDER]`, `site` by default.

The pages are those that `index.md` lists, in its order and under its headings. They are copied flat into a
folder of their own first, as some stand outside of `docs`, and the links between them are rewritten. Beside
each page stands its Markdown, and `llms.txt` and `llms-full.txt` are made of the same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NAME = "triage"
SUMMARY = "Know why an LLM agent failed, recover, lose nothing, pay for nothing twice."
HEADING = re.compile(r"^## (.+)$")
ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\((?P<path>[^)#]+\.md)\) \| (?P<says>.+) \|$")
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


class Page(NamedTuple):
    """A page of the site. source: its Markdown. name: that of its copy. says: what it is about."""

    title: str
    source: Path
    name: str
    says: str


def sections() -> dict[str, list[Page]]:
    """The pages that the index lists, by its headings."""
    found: dict[str, list[Page]] = {}
    pages: list[Page] = []
    for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines():
        if heading := HEADING.match(line):
            pages = found.setdefault(heading[1], [])
        elif row := ROW.match(line):
            source = (DOCS / row["path"]).resolve()
            pages.append(Page(row["title"], source, name_of(source), row["says"]))
    return found


def name_of(source: Path) -> str:
    """The name of a page's copy: its own in `docs`, made of its path elsewhere."""
    path = source.relative_to(ROOT)
    parts = path.parts[1:] if path.parts[0] == "docs" else path.parts
    return "-".join(parts).lower().replace("-readme", "")


def copied(page: Path, names: dict[Path, str]) -> str:
    """A page's text with its links to pages rewritten; a link to any other file becomes its path."""

    def rewritten(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if "://" in target:
            return link[0]
        file = (page.parent / target).resolve()
        if text.startswith("!"):
            return f"{text}({file.relative_to(DOCS).as_posix()})"
        if file in names:
            return f"{text}({names[file]}{anchor})"
        return f"`{file.relative_to(ROOT).as_posix()}`"

    parts = FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(part if part.startswith("```") else LINK.sub(rewritten, part) for part in parts)


def configuration(found: dict[str, list[Page]]) -> str:
    """The settings of the site generator: nothing is fetched from another host."""
    nav = ['  { "Overview" = "index.md" },']
    for heading, pages in found.items():
        listed = ", ".join(f'{{ "{page.title}" = "{page.name}" }}' for page in pages)
        nav.append(f'  {{ "{heading}" = [{listed}] }},')
    return "\n".join([
        "[project]",
        f'site_name = "{NAME}"',
        f'site_description = "{SUMMARY}"',
        'docs_dir = "pages"',
        'site_dir = "site"',
        "nav = [",
        *nav,
        "]",
        "[project.theme]",
        "font = false",
        'features = ["navigation.sections", "search.highlight", "content.code.copy", "toc.follow"]',
        "[[project.theme.palette]]",
        'media = "(prefers-color-scheme: light)"',
        'scheme = "default"',
        "[[project.theme.palette]]",
        'media = "(prefers-color-scheme: dark)"',
        'scheme = "slate"',
        "",
    ])  # fmt: skip


def listing(found: dict[str, list[Page]]) -> str:
    """`llms.txt`: the pages for programs that read, each with what it is about."""
    lines = [f"# {NAME}", "", f"> {SUMMARY}"]
    for heading, pages in found.items():
        lines += ["", f"## {heading}", ""]
        lines += [f"- [{page.title}]({page.name}): {page.says}" for page in pages]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """Build the site; 1 where the generator has found fault with a page."""
    target = Path(arguments[0] if arguments else "site").resolve()
    found = sections()
    pages = [page for listed in found.values() for page in listed]
    names = {page.source: page.name for page in pages} | {DOCS / "index.md": "index.md"}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "pages").mkdir()
        texts = {name: copied(source, names) for source, name in names.items()}
        for name, text in texts.items():
            (work / "pages" / name).write_text(text, encoding="utf-8")
        shutil.copytree(DOCS / "pictures", work / "pages" / "pictures")
        (work / "zensical.toml").write_text(configuration(found), encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
        built = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if built.returncode:
            sys.stderr.write(built.stdout + built.stderr)
            return 1
        for name, text in texts.items():
            (work / "site" / name).write_text(text, encoding="utf-8")
        (work / "site" / "llms.txt").write_text(listing(found), encoding="utf-8")
        whole = "\n\n".join(texts[page.name] for page in pages)
        (work / "site" / "llms-full.txt").write_text(whole, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "site", target)
    sys.stdout.write(f"{len(pages)} pages: {target / 'index.html'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
