"""`triage init`: a policy and a first wrapped agent, which runs as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from triage.core.errors import UsageError

from .options import AsJson, epilogue, suggested
from .output import json_line, write

_CODES = """\
exit codes:
  0    the files are written
  2    one of them is there already, or the directory cannot be written
"""
_TASK = "When does the museum open?"
_FILES = {
    "policy.toml": """\
# What is done about which failure; whatever is not named is escalated to you.
EXTERNAL_FAULT = { strategy = "backoff_and_retry", max_attempts = 4, backoff = { base = 0.1 } }
SCHEMA_MISMATCH = { strategy = "backoff_and_retry", max_attempts = 2, backoff = { base = 0 } }
LOOP_DETECTED = { strategy = "replan", hint = "Try another source." }
default = "escalate"
""",
    "agents.py": '''\
"""A first agent. Run it by: python agents.py"""

import asyncio
from pathlib import Path

from triage import Agent, FailurePolicy, Limits, Run, Step


async def answer(question: str, *, run: Run) -> str:
    """Put your agent here: any async function, with any framework or none."""
    if run.attempt == 1:
        raise ConnectionError("the service is down")  # as services are, now and then
    run.record_step(Step(tool_called="search", tool_input=question, tool_output="from nine"))
    return "It opens at nine."


agent = Agent(
    answer,
    FailurePolicy.from_file(Path(__file__).with_name("policy.toml")),
    limits=Limits(attempts=5, seconds=60),
)

if __name__ == "__main__":
    print(asyncio.run(agent.run("When does the museum open?")))
''',
}

app = App(name="init", help_epilogue=epilogue(_CODES, "init", "init my-agent", "init . --force"))


@app.default
def init(
    directory: Annotated[str, Parameter(help="Where; it is made if it is not there (here).")] = ".",
    /,
    *,
    force: Annotated[bool, Parameter(help="Overwrite files that are there.")] = False,
    json: AsJson = False,
) -> None:
    """Write a policy file and a first wrapped agent that runs as it stands."""
    place = Path(directory)
    paths = [place / name for name in _FILES]
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise UsageError(f"{' and '.join(there)} would be overwritten; --force does so")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, _FILES.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror or error}") from error
    steps = [suggested("run", "agents:agent", _TASK, store=None)]
    if place.resolve() != Path.cwd():
        steps.insert(0, shlex.join(["cd", directory]))
    if json:
        write(json_line({"written": [str(path) for path in paths], "next": steps}))
        return
    for path in paths:
        write(f"{path} is written")
    write("next:")
    for step in steps:
        write(f"  {step}")
