"""Run the public tests of the OpenAI Agents SDK that call `Runner.run`, bare and wrapped.

    python -m bench.sdk_tests [--tests PATTERN]

They come with the source distribution of the version that is pinned here. A test that passes bare and fails
wrapped is a difference: it is printed under its reason, or as unexplained, and then the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from bench.envs import HOME, ROOT, pinned, ready

from .reasons import REASONS

SDK = "openai-agents"
ELSEWHERE = ("extensions", "sandbox", "voice", "realtime")
"""Folders of tests that need services, or packages of their own."""


def main() -> int:
    """Run both, compare, print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sdk_tests", description="The SDK's public tests, bare and wrapped."
    )
    parser.add_argument("--tests", default="", help="files whose path holds this alone")
    options = parser.parse_args()
    python = ready("sdk-tests")
    source = _source(python)
    files = [path for path in _files(source) if options.tests in path]
    bare = _run(python, source, files, wrapped=False)
    wrapped = _run(python, source, files, wrapped=True)
    return _report(bare, wrapped)


def _source(python: Path) -> Path:
    """The folder of the SDK's source distribution, downloaded first if it is missing."""
    home = HOME / "sdk-tests-source"
    version = pinned(SDK)
    folder = home / f"{SDK.replace('-', '_')}-{version}"
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            (python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", SDK,
             "--dest", str(home), f"{SDK}=={version}"),
            check=True,
        )  # fmt: skip
        with tarfile.open(folder.with_name(f"{folder.name}.tar.gz")) as archive:
            archive.extractall(home, filter="data")
    return folder


def _files(source: Path) -> list[str]:
    """The files whose tests call `Runner.run`."""
    found: list[str] = []
    for path in sorted((source / "tests").rglob("test_*.py")):
        name = path.relative_to(source)
        if not set(ELSEWHERE) & set(name.parts) and "Runner.run(" in path.read_text("utf-8"):
            found.append(str(name))
    return found


def _run(python: Path, source: Path, files: list[str], *, wrapped: bool) -> Mapping[str, str]:
    """How each test ended: empty where it passed, else its error; what did not run is left out."""
    report = source / f"{'wrapped' if wrapped else 'bare'}.xml"
    plugin = ("-p", "bench.sdk_tests.plugin") if wrapped else ()
    print(f"{len(files)} files, {'wrapped' if wrapped else 'bare'} …", file=sys.stderr)
    subprocess.run(
        (python, "-m", "pytest", "-q", "-n", "2", "--timeout", "15", "-p", "no:cacheprovider",
         "--continue-on-collection-errors", *plugin, f"--junitxml={report}", *files),
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    ended: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        wrong = [child for child in case if child.tag in ("failure", "error")]
        if wrong or not any(child.tag == "skipped" for child in case):
            error = " ".join(f"{child.get('message')} {child.text}" for child in wrong)
            ended[f"{case.get('classname')}::{case.get('name')}"] = error
    return ended


def _report(bare: Mapping[str, str], wrapped: Mapping[str, str]) -> int:
    passed = [test for test, error in bare.items() if not error and test in wrapped]
    differences: dict[str, list[str]] = defaultdict(list)
    unexplained: list[tuple[str, str]] = []
    for test in passed:
        error = wrapped[test]
        if not error:
            continue
        reason = next((one for one in REASONS if one.holds(test, error)), None)
        if reason is None:
            unexplained.append((test, error))
        else:
            differences[reason.name].append(test)
    different = len(unexplained) + sum(map(len, differences.values()))
    print(f"{len(passed)} tests pass bare; {len(passed) - different} of them pass wrapped\n")
    print("| otherwise | tests | because |")
    print("|---|---|---|")
    for one in REASONS:
        if differences[one.name]:
            print(f"| {one.name} | {len(differences[one.name])} | {one.says} |")
    for test, error in unexplained:
        print(
            f"unexplained: {test}: {error.strip().splitlines()[0][:200] if error.strip() else ''}"
        )
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
