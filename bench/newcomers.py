"""Five newcomers on a bare machine: a fresh clone, an empty home, no cache. Prints how long each took.

    python -m bench.newcomers [demo init loop kill diagnose]

What is installed is fetched anew. Each does what the pages say and nothing else; the first command that
fails ends its story, and the program with 1.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 600


class Newcomer:
    """Somebody with a clone and an empty home. told: what the last command printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clone = folder / "triage"
        self.python = folder / "venv" / "bin" / "python"
        self.environment = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUTF8": "1",
        }
        self.does("git", "clone", "--quiet", str(ROOT), str(self.clone), where=folder)

    def does(self, *command: str, where: Path | None = None) -> str:
        """Run a command, and give what it prints. Raises RuntimeError where it fails."""
        done = subprocess.run(
            command,
            cwd=where or self.folder,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            timeout=LONGEST_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def installs(self, *extras: str) -> None:
        """Install the package as a user would, with these extras."""
        self.does(sys.executable, "-m", "venv", "venv")
        wanted = f"{self.clone}[{','.join(extras)}]" if extras else str(self.clone)
        self.does(str(self.python), "-m", "pip", "install", "--quiet", wanted)

    def writes(self, name: str, text: str) -> None:
        """Write a file."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def reads(self, page: str) -> list[str]:
        """The blocks of Python of a page."""
        text = (self.clone / page).read_text(encoding="utf-8")
        return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)

    def sees(self, told: str, *wanted: str) -> None:
        """Expect words in what was printed."""
        for words in wanted:
            if words not in told:
                raise RuntimeError(f"{words!r} is not in:\n{told}")


def demo(new: Newcomer) -> None:
    """See the demonstration, and run the lines it ends with."""
    told = new.does("make", "demo", where=new.clone)
    new.sees(told, '"mode": "triage", "tasks": 13, "done": 13')
    lines = told.partition("from any framework or none.\n")[2].partition("\n{")[0]
    code = "\n".join(line.strip() for line in lines.splitlines())
    own = f"async def your_function(task): return f'did {{task}}'\n{code}\n"
    new.sees(new.does(".venv/bin/python", "-c", own, where=new.clone), "did your task")


def init(new: Newcomer) -> None:
    """Install it, have a first agent written, and run that."""
    new.installs("cli")
    triage = str(new.python.with_name("triage"))
    told = new.does(triage, "init")
    (command,) = re.findall(r"^  triage (run \S+) '", told, re.MULTILINE)
    new.sees(new.does(triage, *command.split(), "When does it open?"), "It opens at nine.")
    new.sees(new.does(triage, "doctor"), "nothing wrong")


def loop(new: Newcomer) -> None:
    """Have the page's own loop over an OpenAI client recover, as the page is written."""
    new.installs("openai", "anthropic")
    new.writes("loop.py", "\n".join(new.reads("docs/your-own-loop.md")))
    new.does(str(new.python), "loop.py")


def kill(new: Newcomer) -> None:
    """Kill a process between a payment and the end of its run, and go on in another."""
    new.installs("cli")
    new.writes(
        "orders.py",
        "import asyncio, os, sys, triage\n"
        "@triage.tool(effect='once')\n"
        "async def charge(cents):\n"
        "    open('charged', 'a').write(f'{cents}\\n')\n"
        "    return 'receipt 1'\n"
        "async def pay(order):\n"
        "    receipt = await charge(4200)\n"
        "    if os.path.exists('wait'):\n"
        "        print('charged', flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "    return receipt\n"
        "desk = triage.Agent(pay, store='sqlite:///runs.db')\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(desk.run('order 7', run_id='order-7'))\n",
    )
    new.writes("wait", "")
    process = subprocess.Popen(
        [new.python, "orders.py"], cwd=new.folder, env=new.environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    (new.folder / "wait").unlink()
    triage = str(new.python.with_name("triage"))
    store = ("--store", "sqlite:///runs.db")
    new.sees(new.does(triage, "runs", "list", *store), "order-7", "running")
    # Nobody else can know that its owner is dead, so the command says to wait or to use --force.
    told = new.does(triage, "runs", "recover", "order-7", "orders:desk", "--force", *store)
    new.sees(told, "receipt 1")
    if (new.folder / "charged").read_text(encoding="utf-8") != "4200\n":
        raise RuntimeError("it was charged twice")


def diagnose(new: Newcomer) -> None:
    """Ask why a recorded conversation failed, without wrapping anything."""
    new.installs("cli")
    new.writes(
        "conversation.json",
        '[{"role": "user", "content": "Find a flight to Oslo"},'
        ' {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function",'
        ' "function": {"name": "flight_search", "arguments": "{}"}}]},'
        ' {"role": "tool", "tool_call_id": "a", "content": "Error: unknown tool flight_search"}]',
    )
    triage = str(new.python.with_name("triage"))
    new.sees(new.does(triage, "diagnose", "conversation.json"), "wrong_tool_called")


STORIES: dict[str, Callable[[Newcomer], None]] = {
    story.__name__: story for story in (demo, init, loop, kill, diagnose)
}


def main(names: list[str]) -> int:
    """Play the named stories, all by default."""
    failed = 0
    for name in names or STORIES:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            try:
                STORIES[name](Newcomer(Path(folder)))
                said = "done"
            except RuntimeError as error:
                said, failed = f"FAILED: {error}", 1
            print(f"{name:10}{time.perf_counter() - began:6.1f} s  {said}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
