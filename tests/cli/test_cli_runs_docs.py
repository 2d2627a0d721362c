"""The commands of the page on operations, run in order: each prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import triage

ROOT = Path(triage.__file__).parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def settled(text: str) -> str:
    """Without times, which may make a column wider."""
    return re.sub(r" {2,}", "  ", re.sub(r"(?<=  )\d+ s(?=  )", "a time", text))


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    printed: list[str] = []
    shown: list[str] = []
    for language, code in FENCE.findall(PAGE):
        if language == "python":
            (tmp_path / "orders.py").write_text(code, encoding="utf-8")
        elif language == "text":
            shown.append(settled(code))
        elif language == "sh":
            printed.append("")
            for line in code.splitlines():
                name, *arguments = shlex.split(line)
                if name == "export":
                    variable, _, value = arguments[0].partition("=")
                    environment[variable] = value
                    continue
                program = ["-m", "triage.cli"] if name == "triage" else []
                done = subprocess.run(
                    [sys.executable, *program, *arguments],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    encoding="utf-8",
                    timeout=60,
                    check=True,
                )
                if arguments[1:2] == ["show"]:
                    assert re.search(
                        r"^ +waits  did charge with .* happen", done.stdout, re.MULTILINE
                    )
                else:
                    printed[-1] += settled(done.stdout)
    assert len(printed) == 2
    assert printed == shown
