"""Counts the words of the pages that people wrote: `python docs/count_words.py`.

Left out are code blocks, parts between `<!-- name -->` and `<!-- end of name -->`, which programs write,
targets of links, and the pages that are records: `rules.md` and `commands.md` are generated,
`promises.md` lists each promise with its tests. A word has a letter or a digit: lines of tables count too,
their bars do not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = {"commands.md", "promises.md", "rules.md"}
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- (\w+) -->.*?<!-- end of \1 -->", re.DOTALL)
TARGET = re.compile(r"(?<=\])\([^)\s]*\)")
WORD = re.compile(r"\S*\w\S*")


def words(page: str) -> list[str]:
    """The words of a page that count."""
    for left_out in (FENCE, GENERATED, TARGET):
        page = left_out.sub("", page)
    found = WORD.findall(page)
    return [word.strip("[]`*.") for word in found]


def counted() -> dict[str, int]:
    """The number of words of each page, the longest page first."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = {
        page.name: len(words(page.read_text(encoding="utf-8")))
        for page in pages
        if page.name not in RECORDS
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main() -> None:
    """Print the pages with their words, and the sum."""
    found = counted()
    for name, number in {**found, "all pages": sum(found.values())}.items():
        sys.stdout.write(f"{number:6,}  {name}\n")


if __name__ == "__main__":
    main()
