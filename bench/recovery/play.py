"""Plays tasks for some contestants in this interpreter, and prints a line of JSON for each play.

    python bench/recovery/play.py '{"contestants": ["bare"], "seed": 1, "kinds": [], "tasks": 0}'

With `"part": [0, 2]` only every second task.

The checkout that this file stands in is played, whatever is installed. triage-agent alone is played as it
is installed: its package has the name of ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any


def homes() -> dict[str, str]:
    """The module of each contestant, in the order of the table."""
    return {
        "bare": "plain",
        "tenacity": "plain",
        "langchain": "plain",
        "triage-agent": "peer",
        "ours: steps": "ours",
        "ours: run.model": "ours",
        "ours: record": "ours",
        "ours: langgraph": "ours",
        "ours: pydantic-ai": "ours",
        "nothing declared: own loop": "ours",
        "nothing declared: langgraph": "ours",
        "nothing declared: pydantic-ai": "ours",
    }


async def main(wanted: dict[str, Any]) -> None:
    """Play what is wanted; each contestant plays every task, one after the other."""
    desk: Any = import_module("bench.recovery.desk")
    kinds: Any = import_module("bench.recovery.kinds")
    chosen = kinds.chosen(wanted["seed"], tuple(wanted["kinds"]), wanted["tasks"])
    part, parts = wanted.get("part", (0, 1))
    chosen = chosen[part::parts]
    lab = desk.Lab()
    for contestant in wanted["contestants"]:
        module: Any = import_module(f"bench.recovery.{homes()[contestant]}")
        for task in chosen:
            line = await lab.play(contestant, module.CONTESTANTS[contestant], task)
            print(json.dumps(line), flush=True)
    await lab.close()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    if given["contestants"] == ["triage-agent"]:
        sys.path.append(sys.path.pop(0))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    asyncio.run(main(given))
