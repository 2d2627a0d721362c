"""Diagnoses labelled trajectories and live exceptions, and prints how well.

    python -m bench.diagnosis [--trajectories ../shared/trajectories] [--rounds 3] [--no-peer]
        [--faultlab ../shared/faultlab] [--make-lab | --lab-python PYTHON [SECOND]] [--strict]
        [--only {trajectories,exceptions,faultlab} ...] [--misses]
    python -m bench.diagnosis --model MODEL [--provider openai] [--per-source 20]

Trajectories: beside constant answers and triage-agent. Every figure is given for all records and for
each half of them; the halves share no record. Fresh ones are made up by `fresh`, and no rule was
written for them: they are also told by fault and wording, without and with `grounding`. Exceptions:
those of the fault lab, beside what was published of triage-agent; those of `clients`, which are other
libraries; and near misses, which need none. The libraries are many; `--make-lab` alone installs them.
With `--model` only a model is asked, about some records of each source, by `LLMClassifier` and its
environment variables; without a key the exit status is 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench import envs, figures
from triage import UsageError
from triage.classifiers import LLMClassifier

from . import asked, exceptions, fresh, lab, ours, peer, records, scores

_SETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Who&When, algorithm-generated", ("whowhen_ag",)),
    ("MAST", ("mast_human_ag2", "mast_human_metagpt")),
    ("sentinel, faults", ("sentinel_fault",)),
    ("sentinel, faults and healthy", ("sentinel_fault", "sentinel_healthy")),
    ("sentinel, healthy", ("sentinel_healthy",)),
    ("tau2, went well", ("tau2_ok",)),
    ("tau2, failed", ("tau2_fail",)),
    ("fresh, faults", (fresh.FAULTY,)),
    ("fresh, faults and healthy", (fresh.FAULTY, records.FRESH_HEALTHY)),
    ("fresh, healthy", (records.FRESH_HEALTHY,)),
)
_HEAD = (
    "", "records", "labelled", "answered", "hits", "precision", "macro-F1", "loop F1", "exact step", "ECE",
)  # fmt: skip
_FRESH_HEAD = (
    "", "records", "answered", "right", *(f"wording {at + 1}" for at in range(fresh.WORDINGS)),
    "precision", "exact step", "right, grounding", "answered, grounding",
)  # fmt: skip
_LAB_HEAD = ("", "cases", "ours", "promised", "", "triage-agent 1.0.1, published")
_CLIENTS_HEAD = (
    "", "cases", "right", "misrouted", "abstained", "cause", "may pass", "retry_after", "invented",
)  # fmt: skip
_PARTS = ("trajectories", "exceptions", "faultlab")
_NOTHING = "–"  # noqa: RUF001 - a dash stands for no such thing


def main() -> int:
    """Print the tables; with `--strict` 1 unless the fault lab shows every promise kept.

    With `--model` 2 where no model can be asked.
    """
    options = _options()
    if options.model is not None:
        return _model(options)
    if "trajectories" in options.only:
        _trajectories(options)
    if "exceptions" in options.only:
        _exceptions(options)
    kept = _faults(options) if "faultlab" in options.only else None
    return int(options.strict and not kept)


def _model(options: argparse.Namespace) -> int:
    """Print how well a model diagnoses a sample of the records, beside the rules."""
    try:
        classifier = LLMClassifier(options.provider, options.model)
    except UsageError as error:
        print(f"no model can be asked: {error}", file=sys.stderr)
        return 2
    taken = asked.sample(_records(options), options.per_source)
    told = asked.answers(taken, classifier)
    ruled = ours.answers(taken)
    rows = [
        row
        for name, sources in _SETS
        if any(record.source in sources for record in taken)
        for row in (
            *_rows(name, _part(told.pairs, sources, None), ()),
            _row("  rules", _part(ruled, sources, None), counts=False),
        )
    ]
    print(f"\n{options.model}\n")
    _table(_HEAD, rows)
    used = told.usage
    print(f"\n{used.calls} requests, {used.input_tokens} tokens in, {used.output_tokens} out")
    for rule, count in told.failed.most_common():
        print(f"{count} of {len(taken)} records without an answer: {rule}")
    return 0


def _records(options: argparse.Namespace) -> list[records.Record]:
    taken = fresh.records()
    if (options.trajectories / records.FILE).is_file():
        taken += records.read(options.trajectories)
    else:
        print(
            "there are no trajectories of real agents: "
            f"{options.trajectories / records.FILE} is missing"
        )
    return taken


def _trajectories(options: argparse.Namespace) -> None:
    taken = _records(options)
    told = ours.answers(taken)
    python = None if options.no_peer else envs.ready("triage-agent")
    theirs = None if python is None else peer.answers(python, taken)
    for title, half in (("all records", None), ("first half", 0), ("second half", 1)):
        print(f"\n{title}\n")
        rows = [
            row
            for name, sources in _SETS
            if any(record.source in sources for record in taken)
            for row in _rows(name, _part(told, sources, half), _part(theirs, sources, half))
        ]
        _table(_HEAD, rows)
    _fresh(told)
    if python is not None:
        ratios = [ours.seconds() / peer.seconds(python) for _ in range(options.rounds)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"\n10,000 steps, time to triage-agent's: {median(ratios):.2f} ({spread})")


def _fresh(told: Sequence[scores.Pair]) -> None:
    """Print how each kind of fault is found in each of its wordings, and what healthy runs set off."""
    plain = [pair for pair in told if pair[0].source in (fresh.FAULTY, records.FRESH_HEALTHY)]
    grounded = ours.answers((record for record, _ in plain), grounding=True)
    print("\nfresh trajectories, by fault and wording\n")
    names = dict.fromkeys(fresh.fault(record)[0] for record, _ in plain)
    _table(
        _FRESH_HEAD,
        [_fresh_row(name, _of_fault(plain, name), _of_fault(grounded, name)) for name in names],
    )


def _fresh_row(
    name: str, plain: Sequence[scores.Pair], grounded: Sequence[scores.Pair]
) -> tuple[str, ...]:
    whole, with_grounds = scores.line("", plain), scores.line("", grounded)
    wordings = [
        scores.line("", [pair for pair in plain if fresh.fault(pair[0])[1] == at]).hits
        for at in range(fresh.WORDINGS)
    ]
    shares = (
        whole.answered, whole.hits, *wordings, whole.precision, whole.exact,
        with_grounds.hits, with_grounds.answered,
    )  # fmt: skip
    return (name, str(whole.records), *map(_share, shares))


def _of_fault(pairs: Sequence[scores.Pair], name: str) -> list[scores.Pair]:
    return [pair for pair in pairs if fresh.fault(pair[0])[0] == name]


def _exceptions(options: argparse.Namespace) -> None:
    """Print what is said of near misses and, where they are installed, of clients' exceptions."""
    near = exceptions.of_near_misses()
    print("\nnear misses\n")
    _table(_CLIENTS_HEAD, [_clients_row(exceptions.line("near misses", near))])
    python = exceptions.python(make=options.make_lab)
    told = [] if python is None else exceptions.of_clients(python)
    if python is None:
        print("\nthe clients are not measured, as they are not installed: --make-lab installs them")
    else:
        print("\nexceptions of clients, by library\n")
        _table(_CLIENTS_HEAD, [_clients_row(line) for line in exceptions.by_library(told)])
    if options.misses:
        for one in exceptions.missed([*near, *told]):
            print(f"\n{one}")


def _clients_row(line: exceptions.Line) -> tuple[str, ...]:
    shares = map(_share, (line.cause, line.passes, line.delay))
    counts = (str(line.misrouted), str(line.abstained))
    return (line.title, str(line.cases), _share(line.right), *counts, *shares, str(line.invented))


def _faults(options: argparse.Namespace) -> bool | None:
    """Print the table of the fault lab; whether all promises are kept, None if it was not measured."""
    folder = options.faultlab.resolve()
    if not (folder / lab.SCRIPT).is_file():
        print(f"\nthere is no fault lab: {folder / lab.SCRIPT} is missing")
        return None
    pythons = lab.pythons(folder, options.lab_python, make=options.make_lab)
    if not any(pythons):
        print(
            "\nthe fault lab is not measured, as its client libraries are not installed: --make-lab "
            "installs them into .venv-bench, --lab-python takes an interpreter that has them"
        )
        return None
    found = lab.figures(lab.records(folder, pythons))
    without = [name for name, python in zip(lab.VENVS, pythons, strict=True) if python is None]
    left_out = f", without the libraries of its {without[0]} environment" if without else ""
    print(f"\nfault lab{left_out}\n")
    _table(_LAB_HEAD, [_figure(figure) for figure in found])
    return all(figure.met for figure in found)


def _figure(figure: lab.Figure) -> tuple[str, ...]:
    promised = f"at {'most' if figure.at_most else 'least'} {figure.bound:g}"
    counted = figure.title.startswith("near")
    values = (figure.value, figure.theirs)
    shown = [_NOTHING if v is None else f"{v:g}" if counted else f"{v:.3f}" for v in values]
    verdict = "ok" if figure.met else "missed"
    return (figure.title, str(figure.cases), shown[0], promised, verdict, shown[1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis", description=__doc__)
    parser.add_argument(
        "--trajectories", type=Path, default=envs.ROOT.parent / "shared" / "trajectories"
    )
    parser.add_argument("--rounds", type=int, default=3, help="timings to take the median of")
    parser.add_argument("--no-peer", action="store_true", help="leave triage-agent out")
    parser.add_argument("--faultlab", type=Path, default=envs.ROOT.parent / "shared" / "faultlab")
    parser.add_argument(
        "--only", nargs="+", choices=_PARTS, default=_PARTS, help="measure these parts alone"
    )
    parser.add_argument("--misses", action="store_true", help="show each exception told wrongly")
    parser.add_argument("--model", help="score this model alone")
    parser.add_argument(
        "--provider", default="openai", help="openai, openai-responses or anthropic"
    )
    parser.add_argument(
        "--per-source", type=int, default=20, help="records of each source a model is asked about"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--make-lab", action="store_true", help="install the client libraries of the fault lab"
    )
    where.add_argument(
        "--lab-python",
        type=Path,
        nargs="+",
        default=[],
        metavar="PYTHON",
        help="interpreters that have them: the main one, and the second",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 unless the fault lab shows every promise kept",
    )
    return parser.parse_args()


def _part(
    pairs: Sequence[scores.Pair] | None, sources: tuple[str, ...], half: int | None
) -> list[scores.Pair]:
    return [
        pair
        for pair in pairs or ()
        if pair[0].source in sources and (half is None or pair[0].half == half)
    ]


def _rows(
    name: str, told: Sequence[scores.Pair], theirs: Sequence[scores.Pair]
) -> list[tuple[str, ...]]:
    """A set's own row, what constant answers get in it, and triage-agent."""
    found = [_row(name, told)]
    if any(record.labels for record, _ in told):
        found.append(_best(told))
    if theirs:
        found.append(_row("  triage-agent 1.0.1", theirs, counts=False))
    return found


def _row(name: str, pairs: Sequence[scores.Pair], *, counts: bool = True) -> tuple[str, ...]:
    line = scores.line(name, pairs)
    loops = scores.loop_f1(pairs) if any(scores.LOOP in r.labels for r, _ in pairs) else None
    sizes = (str(line.records), str(line.labelled)) if counts else ("", "")
    shares = (line.answered, line.hits, line.precision, line.macro_f1, loops, line.exact)
    return (name, *sizes, *map(_share, shares), _share(scores.calibration_error(pairs)))


def _best(pairs: Sequence[scores.Pair]) -> tuple[str, ...]:
    """The best that an answer which never changes gets, each figure with its own best answer."""

    def best(score: Callable[[Sequence[scores.Pair]], float | None]) -> str:
        kind, value = scores.constants(pairs, score)
        return f"{_share(value)} ({kind})"

    loops = any(scores.LOOP in record.labels for record, _ in pairs)
    position = scores.best_position(pairs)
    return (
        "  best constant", "", "", _NOTHING,
        best(lambda given: scores.line("", given).hits),
        best(lambda given: scores.line("", given).precision),
        best(scores.macro_f1),
        best(scores.loop_f1) if loops else _NOTHING,
        _NOTHING if position is None else f"{_share(position[1])} (step {position[0]})",
        _NOTHING,
    )  # fmt: skip


def _share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3f}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    print(figures.markdown([head, *rows]))


if __name__ == "__main__":
    sys.exit(main())
