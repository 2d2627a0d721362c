r"""The sixth set of trajectories and those after it, each run written by hand, the rules unread.

Each has twelve places of work, a file each, with ten faulty runs and ten healthy ones. Such a file is read
line by line:

    %tool NAME {"argument": "type", "optional?": "type"} [-> {"field": "type"}]
    %noise NAME {"argument": …} => RESULT       a step that any run of this place may contain
    %words WORD …                               what {w} and {W} stand for: {w} once in a step. {x} and {X}
                                                are numbers, {n} counts, {h} and {d} are its hour and day
    ## KIND/WORDING FORM                        a run; the next line is its task, - if it has none
    > NAME {"argument": …}     a call           $ CODE      a call of `python`
    < RESULT   ! ERROR         what it gave     + TEXT      what the agent said with it
    @ TEXT   @NAME| TEXT       an answer        ? TEXT      the user
    ~ N                        steps of noise   x N         the last step, N times more
    ^                          before a step: the decisive one

`\n` is a line break, and `{{log N}}` N lines of a log. FORM is `steps`, `lines` (steps as benches with
injected faults write them), `openai` or `anthropic`. Tools are declared where messages are recorded.

The decisive step is the first that decided the failure: the first call of a loop, the first result of
an injected fault, the call or the answer that was wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from .dealing import Step, call, say
from .records import FAULTY, MADE_HEALTHY, Record, half
from .worlds_fifth import recorded

KINDS = {
    "identical loop": "loop_detected",
    "reworded loop": "loop_detected",
    "cycle": "loop_detected",
    "told to retry": "loop_detected",
    "no such tool": "wrong_tool_called",
    "unfit tool": "wrong_tool_called",
    "bad arguments": "schema_mismatch",
    "broken data": "schema_mismatch",
    "invented argument": "hallucinated_state",
    "invented data": "hallucinated_state",
    "unsupported answer": "hallucinated_state",
    "held on": "hallucinated_state",
    "injected order": "goal_drift",
    "strayed": "goal_drift",
    "rule broken": "constraint_ignored",
    "part left out": "plan_incomplete",
    "done though failed": "hallucinated_state plan_incomplete",
    "given up early": "plan_incomplete",
    "window full": "context_overflow",
    "lost context": "context_overflow",
    "tools down": "external_fault",
    "rate limit": "external_fault",
    "timeout": "external_fault",
    "hidden outage": "external_fault",
}
"""The faults, and the failure types that are right for each."""
_NUMBERS = range(103, 998)
_SCHEMA = {"str": "string", "int": "integer", "num": "number", "bool": "boolean", "list": "array"}


class Written(NamedTuple):
    """A run as it was written. where: which step is decisive, None in a healthy run."""

    title: str
    form: str
    task: str
    steps: list[Step]
    where: int | None


class Place:
    """A place of work: its tools, and the runs in it."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.tools: dict[str, Any] = {}
        self.runs: list[Written] = []
        self._noise: list[tuple[str, str, str]] = []
        self._words: list[str] = []
        head, *runs = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for line in filter(None, head.splitlines()):
            self._declare(line)
        self.runs = [self._run(text) for text in runs]

    def _declare(self, line: str) -> None:
        what, _, rest = line.partition(" ")
        match what:
            case "%tool":
                name, _, forms = rest.partition(" ")
                given, _, gives = forms.partition(" -> ")
                self.tools[name] = {"inputSchema": _schema(json.loads(given))}
                if gives:
                    self.tools[name]["outputSchema"] = _schema(json.loads(gives))
            case "%noise":
                name, _, rest = rest.partition(" ")
                given, _, result = rest.partition(" => ")
                self._noise.append((name, given, result))
            case "%words":
                self._words = rest.split()
            case _:
                raise ValueError(f"{self.name}: {line}")

    def _run(self, text: str) -> Written:
        head, task, *lines = text.strip().splitlines()
        title, _, form = head.rpartition(" ")
        rng = Random(f"{self.name}/{title}")
        counter = count(rng.randint(11, 60))
        steps: list[Step] = []
        where: int | None = None
        for line in filter(None, lines):
            body = self._filled(line.removeprefix("^"), rng)
            sign, rest = body[0], body[1:].strip()
            if line.startswith("^"):
                where = len(steps)
            match sign:
                case "~":
                    steps += [self._any(rng, counter) for _ in range(int(rest))]
                case "x":
                    steps += [dict(steps[-1]) for _ in range(int(rest))]
                case "+" | "<" | "!":
                    field = {"+": "llm_output", "<": "tool_output", "!": "error"}[sign]
                    steps[-1][field] = _value(rest) if sign == "<" else _text(rest)
                case _:
                    steps.append(_step(sign, rest))
        return Written(title, form, "" if task == "-" else task, steps, where)

    def _any(self, rng: Random, counter: Iterator[int]) -> Step:
        number = next(counter)
        name, given, result = self._noise[number % len(self._noise)]
        fixed = {"n": str(number), "h": f"{number % 24:02d}", "d": f"{number % 28 + 1:02d}"}
        fixed |= {"w": rng.choice(self._words), "x": str(rng.randint(103, 997))}

        def drawn(found: re.Match[str]) -> str:
            return fixed.get(found[1]) or str(
                rng.choice(self._words if found[1] == "W" else _NUMBERS)
            )

        given, result = (re.sub(r"\{([nhdwxWX])\}", drawn, text) for text in (given, result))
        return call(name, json.loads(given), _value(result))

    def _filled(self, line: str, rng: Random) -> str:
        def log(found: re.Match[str]) -> str:
            lines = (
                f"{at:05d} {rng.choice(self._words)} {rng.choice(self._words)} {rng.randint(100, 9999)}"
                for at in range(int(found[1]))
            )
            return "\\n".join(lines)

        return re.sub(r"\{\{log (\d+)\}\}", log, line)


def _schema(fields: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name.rstrip("?"): {"type": _SCHEMA.get(kind, kind)} for name, kind in fields.items()
        },
        "required": [name for name in fields if not name.endswith("?")],
    }


def _value(text: str) -> Any:
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return _text(text)


def _text(written: str) -> str:
    return written.replace("\\n", "\n")


def _step(sign: str, rest: str) -> Step:
    match sign:
        case ">":
            name, _, given = rest.partition(" ")
            return call(name, json.loads(given or "{}"), None)
        case "$":
            return call("python", {"code": _text(rest)}, None)
        case "?":
            return {**call(None, None, None), "action": f"user: {rest}"}
        case "@":
            who, bar, text = rest.partition("|")
            if not bar or len(who.split()) > 2:
                who, text = "answer", rest
            return say(_text(text.strip()), who)
        case _:
            raise ValueError(sign + rest)


def _lines(steps: list[Step]) -> list[Step]:
    """The steps with each call and its result repeated as text."""
    return [_line(step) if step["tool_called"] else step for step in steps]


def _line(step: Step) -> Step:
    result = step["error"] or step["tool_output"]
    text = f"[{step['tool_called']}({json.dumps(step['tool_input'])}) -> {str(result)[:100]}]"
    return {**step, "tool_output": result, "llm_output": step["llm_output"] or text}


class Look:
    """A set, with the names that other sets have. places: all places of work, by name."""

    def __init__(self, folder: str) -> None:
        self.name = f"fresh-{folder}"
        self._folder = Path(__file__).parent / folder

    @property
    def places(self) -> list[Place]:
        return [Place(path) for path in sorted(self._folder.glob("*.txt"))]

    def records(self) -> list[Record]:
        """All records, those with a fault first."""
        found = [self._record(place, run) for place in self.places for run in place.runs]
        order = {name: at for at, name in enumerate(KINDS)}
        return sorted(
            found, key=lambda one: (one.healthy, order.get(one.id.split("/")[1], 0), one.id)
        )

    def _record(self, place: Place, run: Written) -> Record:
        kind, _, wording = run.title.partition("/")
        labels = frozenset(KINDS[kind].split()) if run.where is not None else frozenset[str]()
        id_ = f"{self.name}/{kind}/{int(wording) - 1}/{place.name}"
        steps = _lines(run.steps) if run.form == "lines" else recorded(run.steps, run.form)
        declared = run.form in ("openai", "anthropic")
        return Record(
            id_, self.name + (FAULTY if labels else MADE_HEALTHY), run.task, tuple(steps), labels,
            frozenset(), run.where, half(id_), place.tools if declared else {},
        )  # fmt: skip


SIXTH = Look("sixth")
SEVENTH = Look("seventh")
EIGHTH = Look("eighth")
