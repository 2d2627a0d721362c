"""How far the package is from the shape that it is to have.

    python -m bench.house

Prints each figure beside its bound, and exits with 1 while one other than a budget of lines is over.
Imports in functions count as edges, since they are run some time; those for type checkers alone do not.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import trips

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "triage"

BY_POSITION = re.compile(r"tuple\.__new__|object\.__new__|\b_new\(|\b_made\(")
COSTS = re.compile(r"#.*(?:\bcosts?\b|is felt|third of|times as|collector|dearer)")


ROOMS = {
    "core": 7_000,
    "strategies": 3_800,
    "classifiers": 7_500,
    "stores": 2_300,
    "engine": 8_000,
    "reports": 500,
    "plan": 2_800,
    "incidents": 2_400,
    "adapters": 8_500,
    "testing": 4_000,
    "web": 2_600,
    "cli": 2_800,
}
"""The budget of each room, in lines."""


class Bound(NamedTuple):
    """A figure and the most that it may be. budget: it is reported, and fails nothing."""

    name: str
    value: int
    most: int
    budget: bool = False

    @property
    def over(self) -> bool:
        """Whether it is more."""
        return self.value > self.most


class Module:
    """A file of the package.

    imports: what it names. late: how many of its imports stand in functions. typing_blocks: how many
    `if TYPE_CHECKING:` it has. import_lines: lines of its imports. shadows: local names equal to a module
    that it imports.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.count("\n")
        self.late = self.typing_blocks = 0
        self._named: set[str] = set()
        self._is_package = path.name == "__init__.py"
        tree = ast.parse(self.text)
        self.imports = tuple(self._imports(tree.body, late=False))
        self.import_lines = sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        self.is_face = path.name == "__init__.py"
        self._bound = Counter(_names_bound(tree))
        self.public = next(map(len, self._lists(tree, "__all__")), 0)

    def _imports(self, body: Iterable[ast.AST], *, late: bool) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.late += late
                base = f"{self._base(node)}." if isinstance(node, ast.ImportFrom) else ""
                self._named |= {f"{base}{one.name}" for one in node.names if one.asname is None}
                yield from (f"{base}{one.name}" for one in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                self.typing_blocks += 1
                yield from self._imports(node.orelse, late=late)
            else:
                inner = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from self._imports(ast.iter_child_nodes(node), late=inner)

    def _base(self, node: ast.ImportFrom) -> str:
        parts = self.name.split(".")
        if node.level:
            above = node.level - self._is_package
            parts = parts[: len(parts) - above] if above else parts
        else:
            parts = []
        return ".".join([*parts, *([node.module] if node.module else [])])

    def shadows(self, modules: Container[str]) -> int:
        """How many local names are equal to that of a module of the package that this file imports."""
        imported = {one.rpartition(".")[2] for one in self._named if one in modules}
        return sum(times for name, times in self._bound.items() if name in imported)

    @staticmethod
    def _lists(tree: ast.Module, name: str) -> Iterator[list[ast.expr]]:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
                targets = [one.id for one in node.targets if isinstance(one, ast.Name)]
                if name in targets:
                    yield node.value.elts


class House:
    """A package: its modules by name, and what each imports of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = {name: Module(path, name) for path, name in _files(root)}
        self.edges = {
            name: {
                found
                for one in module.imports
                if (found := self._module_of(one)) is not None and found != name
            }
            for name, module in self.modules.items()
        }

    def _module_of(self, target: str) -> str | None:
        """The module that an import is of: the target itself, or the module that has it."""
        if target in self.modules:
            return target
        parent = target.rpartition(".")[0]
        return parent if parent in self.modules else None

    def _lines_of(self, room: str) -> int:
        inside = f"{self.root.name}.{room}"
        return sum(
            m.lines
            for name, m in self.modules.items()
            if name == inside or name.startswith(f"{inside}.")
        )

    def _through_doors(self) -> int:
        """How many names the files of a room, its doors aside, take from a door of the package."""
        doors = {name for name, one in self.modules.items() if one.is_face and "." in name}
        return sum(
            one not in self.modules and one.rpartition(".")[0] in doors
            for module in self.modules.values()
            if not module.is_face and module.name.count(".") > 1
            for one in module.imports
        )

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """All figures."""
        modules = self.modules.values()
        text = "\n".join(module.text for module in modules)
        top = [path for path in self.root.iterdir() if path.name not in ("py.typed", "__pycache__")]
        private = [path for path in top if re.match(r"_[^_].*\.py$", path.name)]
        circles, chain = circles_and_chain(self.edges)
        lines = sum(module.lines for module in modules)
        import_lines = sum(module.import_lines for module in modules)
        return (
            Bound("lines", lines, 52_000, budget=True),
            Bound("files", len(self.modules), 175, budget=True),
            *(
                Bound(f"lines of {room}", self._lines_of(room), most, budget=True)
                for room, most in ROOMS.items()
            ),
            Bound(
                "per mille of the lines that are imports", 1_000 * import_lines // max(lines, 1), 45
            ),
            Bound("names taken from the door of a room", self._through_doors(), 0),
            Bound(
                "local names that shadow an imported module",
                sum(m.shadows(self.modules) for m in modules),
                0,
            ),
            Bound("entries at the top", len(top), 14),
            Bound("private files at the top", len(private), 0),
            Bound("layers of the longest contract", _layers(self.root.parent), 12),
            Bound("files of the longest chain of imports", chain, 99, budget=True),
            Bound("files in circles of imports", circles, 0),
            Bound("imports in functions", sum(m.late for m in modules), 60),
            Bound("TYPE_CHECKING blocks", sum(m.typing_blocks for m in modules), 15),
            Bound("public names", self.modules[self.root.name].public, 45),
            Bound("values made by position", len(BY_POSITION.findall(text)), 0),
            Bound("comments on what a line costs", len(COSTS.findall(text)), 0),
            Bound("noqa", text.count("# noqa"), 60),
            Bound("lines of the largest file", max(m.lines for m in modules), 900),
        )


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names_bound(tree: ast.AST) -> Iterator[str]:
    """The names that a file binds other than by an import: variables, parameters, functions, fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _layers(project: Path) -> int:
    read = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = read["tool"]["importlinter"]["contracts"]
    return max(len(one.get("layers", ())) for one in contracts)


def circles_and_chain(graph: Mapping[str, Iterable[str]]) -> tuple[int, int]:
    """How many files stand in circles, and the longest chain of files where a circle counts as one."""
    reach = {name: _reached(graph, name) for name in graph}
    room = {
        name: frozenset({name} | {one for one in reach[name] if name in reach[one]})
        for name in graph
    }

    @cache
    def chain(names: frozenset[str]) -> int:
        below = {room[target] for name in names for target in graph[name]} - {names}
        return 1 + max(map(chain, below), default=0)

    circles = sum(len(one) for one in set(room.values()) if len(one) > 1)
    return circles, max(map(chain, room.values()), default=0)


def _reached(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def files_of_the_trip() -> int:
    """How many files, classifiers aside, run code between an exception of an agent and its next attempt."""
    files = asyncio.run(trips.from_failure_to_hint()).files
    return sum(not name.startswith("classifiers/") for name in files)


def main() -> int:
    """Print each figure beside its bound; 1 while one other than a budget is over."""
    bounds = [
        *House(ROOT / PACKAGE).bounds,
        Bound("files between an exception and the next attempt", files_of_the_trip(), 14),
    ]
    for one in bounds:
        told = f"{one.name} (a budget)" if one.budget else one.name
        print(f"{'OVER' if one.over else 'ok':4} {one.value:7,} of {one.most:7,}  {told}")
    return int(any(one.over for one in bounds if not one.budget))


if __name__ == "__main__":
    sys.exit(main())
