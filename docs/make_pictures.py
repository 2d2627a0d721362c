"""Draws what programs print at 80 columns, as SVG, from real runs: `python docs/make_pictures.py`.

With names, only those pictures: `python docs/make_pictures.py runs doctor`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich import console as rich_console
from rich.console import Console
from rich.text import Text

from examples.demo.__main__ import main as demo
from examples.plan.__main__ import main as plan

ROOT = Path(__file__).resolve().parents[1]
PICTURES = Path(__file__).with_name("pictures")
WIDTH = 80
DEMOS: dict[str, Callable[[Console], int]] = {"demo": partial(demo, []), "demo-plan": plan}
COMMANDS = {
    "runs": ["runs", "list"],
    "runs-show": ["runs", "show", "order-17"],
    "incidents": ["incidents", "list"],
    "diagnose": ["diagnose", "talk.json"],
    "doctor": ["doctor"],
}
"""A picture's name and the command that it shows, in the folder that `SHOP` fills."""
SHOP = """
import asyncio, contextlib, json
from triage import Agent, FailurePolicy, Retry, Step, TriageError, tool
from triage.incidents import IncidentDesk

answers = [TimeoutError("the bank did not answer")]

@tool(effect="read")
async def price(item):
    return 4200

@tool(effect="once")
async def charge(cents):
    if answers:
        raise answers.pop()
    return "r-301"

async def pay(order, *, run):
    cents = await price(order)
    if order != "order 17" and run.attempt == 1:
        raise ConnectionError("the shop is restarting")
    return f"paid, receipt {await charge(cents)}"

async def pack(order, *, record_step):
    for _ in range(3):
        record_step(Step(tool_called="find_box", tool_input=order, tool_output=[]))
    raise RuntimeError("no box after 3 turns")

async def main():
    store = "sqlite:///runs.db"
    quick = FailurePolicy.recommended().replace(EXTERNAL_FAULT=Retry())
    for agent, order, name in ((pay, "order 17", "order-17"), (pay, "order 18", "order-18"),
                               (pack, "order 18", "parcel-18")):
        with contextlib.suppress(TriageError):
            await Agent(agent, quick, store=store).run(order, run_id=name)
    desk = IncidentDesk(store)
    await desk.report("Merge conflict in src/models.py", agent_id="coder-2", task_id="TASK-2")
    await desk.report("Process died unexpectedly", agent_id="coder-1", task_id="TASK-1")
    await desk.detect()
    await desk.close()

asyncio.run(main())
call = {"name": "search", "arguments": '{"q": "opening hours"}'}
turn = [
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
    {"role": "tool", "tool_call_id": "c", "content": "[]"},
]
with open("talk.json", "w") as file:
    json.dump([{"role": "user", "content": "When does the museum open?"}, *turn * 3], file)
"""


def recording() -> Console:
    """A console of 80 columns whose lines can be drawn."""
    return Console(record=True, width=WIDTH, file=io.StringIO())


def drawn(console: Console, title: str) -> str:
    """What was printed, as SVG that asks no host for a font."""
    form = re.sub(r"@font-face \{\{.*?\}\}", "", rich_console.CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=form, unique_id="triage")


def printed(folder: Path, *command: str) -> str:
    """What a command prints in a terminal of 80 columns, colours included."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRIAGE_STORE": "sqlite:///runs.db",
        "COLUMNS": str(WIDTH),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return done.stdout + done.stderr


def main(names: list[str]) -> int:
    """Draw the pictures of these names, or all; 0 if the demonstrations did what they are to do."""
    PICTURES.mkdir(exist_ok=True)
    wanted = set(names) or {*DEMOS, *COMMANDS}
    pictures: dict[str, str] = {}
    failed = 0
    for name in wanted & set(DEMOS):
        console = recording()
        failed |= DEMOS[name](console)
        pictures[name] = drawn(console, f"make {name}")
    with tempfile.TemporaryDirectory() as shop:
        sys.stderr.write(printed(Path(shop), "-c", SHOP))
        for name in wanted & set(COMMANDS):
            console = recording()
            console.print(Text.from_ansi(printed(Path(shop), "-m", "triage.cli", *COMMANDS[name])))
            pictures[name] = drawn(console, f"triage {' '.join(COMMANDS[name])}")
    for name, svg in pictures.items():
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
