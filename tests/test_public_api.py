"""What `import triage` gives, and what it does not cost."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
from tables import table

import triage
import triage.core.actions
import triage.core.errors
import triage.core.taxonomy

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "triage.classifiers",
    "triage.cli",
    "triage.plan",
    "triage.stores",
    "triage.strategies",
    "triage.engine.calls",
)


def declared() -> dict[str, str]:
    """What type checkers see in `triage`: each name with the module it is imported from."""
    tree = ast.parse(inspect.getsource(triage))
    guarded = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    return {
        alias.asname or alias.name: f"triage.{node.module}" if node.module else "triage"
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_name_that_is_promised_is_there() -> None:
    for name in triage.__all__:
        assert getattr(triage, name) is not None, name


def test_type_checkers_and_programs_get_the_same_names_from_the_same_places() -> None:
    seen = declared()
    assert set(seen) == set(triage.__all__) - {"__version__"}
    for name, module in seen.items():
        assert getattr(triage, name) is getattr(importlib.import_module(module), name), name


def test_the_names_are_sorted_and_named_once() -> None:
    assert triage.__all__ == sorted(set(triage.__all__))


def test_nothing_public_is_missing() -> None:
    for name in triage.__all__:
        getattr(triage, name)  # from now on it is a global of the module
    ours = {
        name
        for name in dir(triage)
        if not name.startswith("_")
        and not isinstance(getattr(triage, name), ModuleType)
        and getattr(getattr(triage, name), "__module__", "triage").startswith("triage")
    }
    assert ours - set(triage.__all__) <= {"TYPE_CHECKING", "annotations"}


def test_every_error_and_every_action_is_public() -> None:
    errors = {
        name
        for name, value in vars(triage.core.errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert errors <= set(triage.core.__all__)
    assert {action.__name__ for action in triage.core.actions.ACTIONS} <= set(triage.__all__)
    words = {
        name
        for name, value in vars(triage.core.taxonomy).items()
        if isinstance(value, type) and value.__module__ == "triage.core.taxonomy"
    }
    assert words <= set(triage.core.__all__)


@table("package", PACKAGES)
def test_every_name_a_package_promises_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name), f"{package}.{name}"


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        getattr(triage, "Agnet")  # noqa: B009 - spelt so that a type checker does not refuse it


HEAVY = ("anthropic", "httpx", "openai", "psycopg", "redis", "rich", "trio")

PROGRAM = f"""
import sys
import triage

async def works(task, *, record_step):
    return task

triage.Agent(works)
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""

AT_ONCE = """
import asyncio
import sys
from threading import Barrier, Thread
from triage import Agent

THREADS = 8
sys.setswitchinterval(1e-6)
barrier = Barrier(THREADS)

async def works(task):
    return task

agent = Agent(works)

def use(number):
    barrier.wait()
    asyncio.run(agent.run(number))

threads = [Thread(target=use, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(asyncio.run(agent.store.runs("done"))))
"""


def printed(program: str) -> list[str]:
    """What a program prints, in a process that has imported nothing before."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=Path(triage.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def test_importing_triage_and_making_an_agent_imports_nothing_heavy() -> None:
    assert printed(PROGRAM) == [""]


def test_threads_that_use_an_agent_first_at_once_share_its_store() -> None:
    assert printed(AT_ONCE) == ["8"]


@table("name", ["StoreFull", "Cause", "CircuitBreaker", "LLMClassifier"])
def test_a_name_that_has_moved_says_where_it_is(name: str) -> None:
    with pytest.raises(
        ImportError, match=rf"triage\.{name} has moved: import it from (triage\.\w+)"
    ) as caught:
        getattr(triage, name)
    room = importlib.import_module(str(caught.value).rpartition(" ")[2])
    assert name in room.__all__


@table("name", ["events", "gates", "traces", "steps", "faults"])
def test_a_module_that_has_moved_says_where_its_names_are(name: str) -> None:
    with pytest.raises(
        ModuleNotFoundError, match=rf"triage\.{name} has moved: import from"
    ) as caught:
        importlib.import_module(f"triage.{name}")
    importlib.import_module(str(caught.value).rpartition(" ")[2])


def test_the_types_are_shipped() -> None:
    assert files("triage").joinpath("py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["triage"]}


def test_the_version_is_that_of_the_project_and_of_the_newest_changes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert triage.__version__ == project["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changes, re.MULTILINE)[0] == triage.__version__
