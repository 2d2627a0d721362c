"""Measures what users feel, ours and the others in turn, each in its own interpreter.

python -m bench [--rounds 5] [--only clean crowd] [--json] [--strict]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from . import envs, figures
from .peers.measure import NAMES

_PEERS = {
    # package: its environment and the module that measures it
    figures.OURS: ("ours", "ours"),
    "triage-agent": ("triage-agent", "triage_agent"),
    "tenacity": ("retry", "tenacity_"),
    "stamina": ("retry", "stamina_"),
}
_RUNNER = Path(__file__).resolve().parent / "peers" / "run.py"
_MORE_ROUNDS = {"import": 4}
"""Measurements that are one short sample in a process are taken so many times as often."""


def main() -> int:
    """Run the benchmark; 1 if a promise is not kept and `--strict` is set, else 0."""
    options = _options()
    pythons = {name: envs.ready(name) for name, _ in _PEERS.values()}
    rounds: dict[str, list[figures.Round]] = {}
    for name in options.only:
        print(f"measuring {name}", file=sys.stderr)
        _round(pythons, name)  # not counted: files are read, bytecode is compiled
        count = options.rounds * _MORE_ROUNDS.get(name, 1)
        rounds[name] = [_round(pythons, name) for _ in range(count)]
    lines = figures.compare(rounds)
    if options.json:
        print(json.dumps({"lines": [_plain(line) for line in lines], "rounds": rounds}, indent=1))
    else:
        print(figures.table(lines))
    return int(options.strict and not all(line.met for line in lines))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs to take the median of")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, help="these measurements alone"
    )
    parser.add_argument("--json", action="store_true", help="all values, as JSON")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 when a promise is not kept"
    )
    return parser.parse_args()


def _round(pythons: dict[str, Path], name: str) -> figures.Round:
    """One measurement of each package, one after the other."""
    taken: dict[str, dict[str, float] | None] = {}
    for package, (environment, module) in _PEERS.items():
        command = (pythons[environment], "-E", _RUNNER, module, name)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        taken[package] = json.loads(done.stdout)
    return taken


def _plain(line: figures.Line) -> dict[str, object]:
    return {
        **line.figure._asdict(),
        "met": line.met,
        "amounts": {
            name: None if one is None else one._asdict() for name, one in line.amounts.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
