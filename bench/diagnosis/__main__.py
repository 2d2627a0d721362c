"""Diagnoses labelled trajectories and live exceptions, and prints how well.

    python -m bench.diagnosis [--trajectories ../shared/trajectories] [--rounds 3] [--no-peer]
        [--faultlab ../shared/faultlab] [--make-lab | --lab-python PYTHON [SECOND]] [--strict]
        [--only {trajectories,exceptions,faultlab} ...] [--looks LOOK ...] [--misses]
    python -m bench.diagnosis --ablate
    python -m bench.diagnosis --model MODEL [--provider openai] [--per-source 20]

Trajectories: real ones, which were at hand while the rules were written, beside made-up ones which were
not (`fresh`, the first look, to `written`, the sixth to ninth), each as of a live run and as a
post-mortem, beside constant answers and triage-agent. The made-up ones are also told by fault and wording.
`--ablate` shows instead what each rule on steps does for all of them. Exceptions: those of the fault lab,
beside what was published of triage-agent; those of `clients`, which are other libraries; and near misses,
which need none. The libraries are many; `--make-lab` alone installs them.
With `--model` only a model is asked, about some records of each source, by `LLMClassifier` and its
environment variables; without a key the exit status is 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from bench import envs, figures
from triage import UsageError
from triage.classifiers import LLMClassifier
from triage.classifiers.tables.steps import STEP_RULES

from . import (
    ablate,
    answers_third,
    asked,
    dealing,
    exceptions,
    fresh,
    fresh_fifth,
    fresh_fourth,
    fresh_second,
    fresh_third,
    lab,
    near_misses,
    near_misses_fifth,
    near_misses_second,
    near_misses_third,
    ours,
    peer,
    provoke,
    records,
    scores,
    written,
)

_REAL: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("people's labels: Who&When, MAST", ("whowhen_ag", "mast_human_ag2", "mast_human_metagpt")),
    ("sentinel, faults", ("sentinel_fault",)),
    ("sentinel, healthy", ("sentinel_healthy",)),
    ("tau2, went well", ("tau2_ok",)),
)
_LOOKS: Mapping[str, dealing.Dealt] = {
    "first look": fresh.LOOK,
    "second look": fresh_second.LOOK,
    "third look": fresh_third.LOOK,
    "fourth look": fresh_fourth.LOOK,
    "fifth look": fresh_fifth.LOOK,
    "sixth look": written.SIXTH,
    "seventh look": written.SEVENTH,
    "eighth look": written.EIGHTH,
    "ninth look": written.NINTH,
}
"""The made-up sets."""
_HEAD = (
    "", "records", "labelled", "answered", "right", "precision", "macro-F1", "mechanical F1",
    "exact step", "ECE",
)  # fmt: skip
_FRESH_HEAD = (
    "", "records", "answered", "right", *(f"wording {at + 1}" for at in range(dealing.WORDINGS)),
    "precision", "exact step", "right, grounding", "answered, grounding", "right, post-mortem",
)  # fmt: skip
_LAB_HEAD = ("", "cases", "ours", "promised", "", "triage-agent 1.0.1, published")
_CLIENTS_HEAD = (
    "", "cases", "right", "misrouted", "abstained", "cause", "may pass", "retry_after", "invented",
)  # fmt: skip
_NEAR = (
    ("first set", near_misses.cases),
    ("second set", near_misses_second.cases),
    ("third set", near_misses_third.cases),
    ("fifth set", near_misses_fifth.cases),
)
_PARTS = ("trajectories", "exceptions", "faultlab")
_NOTHING = "–"  # noqa: RUF001 - a dash stands for no such thing


def main() -> int:
    """Print the tables; with `--strict` 1 unless the fault lab shows every promise kept.

    With `--model` 2 where no model can be asked.
    """
    options = _options()
    if options.model is not None:
        return _model(options)
    if options.ablate:
        _ablate(options)
        return 0
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
    sets = _sets(options)
    taken = asked.sample([one for some in sets.values() for one in some], options.per_source)
    told = asked.answers(taken, classifier)
    ruled = ours.answers(taken)
    rows: list[tuple[str, ...]] = []
    for title, some in sets.items():
        ids = {record.id for record in some}
        of_model = [pair for pair in told.pairs if pair[0].id in ids]
        rows.append(_row(title, of_model))
        if any(record.labels for record, _ in of_model):
            rows.append(_best(of_model))
        of_rules = [pair for pair in ruled if pair[0].id in ids]
        rows.append(_row("  rules", of_rules, counts=False))
    print(f"\n{options.model}\n")
    _table(_HEAD, rows)
    used = told.usage
    print(f"\n{used.calls} requests, {used.input_tokens} tokens in, {used.output_tokens} out")
    for rule, count in told.failed.most_common():
        print(f"{count} of {len(taken)} records without an answer: {rule}")
    return 0


def _sets(options: argparse.Namespace) -> dict[str, list[records.Record]]:
    """The records of each set by its title, the made-up ones first."""
    sets: dict[str, list[records.Record]] = {
        title: _LOOKS[title].records() for title in options.looks
    }
    if (options.trajectories / records.FILE).is_file():
        real = list(records.read(options.trajectories))
        for title, sources in _REAL:
            sets[title] = [record for record in real if record.source in sources]
    else:
        print(
            "there are no trajectories of real agents: "
            f"{options.trajectories / records.FILE} is missing"
        )
    return sets


def _trajectories(options: argparse.Namespace) -> None:
    sets = _sets(options)
    python = None if options.no_peer else envs.ready("triage-agent")
    told = {title: ours.answers(taken) for title, taken in sets.items()}
    # Only runs that failed have a post-mortem.
    failed = {
        title: ours.answers([record for record in taken if not record.healthy], failed=True)
        for title, taken in sets.items()
    }
    print("\ntrajectories\n")
    rows: list[tuple[str, ...]] = []
    for title, taken in sets.items():
        rows.append(_row(title, told[title]))
        if any(record.labels for record in taken):
            rows.append(_row("  post-mortem", failed[title]))
            rows.append(_best(told[title]))
        if python is not None:
            rows.append(_row("  triage-agent 1.0.1", peer.answers(python, taken), counts=False))
    _table(_HEAD, rows)
    for title in options.looks:
        print(f"\n{title}, by fault and wording\n")
        _fresh(told[title], failed[title])
    print("\nanswers of the third look, with grounding\n")
    _grounding()
    print("\nconfidence and the share of right answers, over the looks\n")
    pairs = [pair for title in options.looks for pair in told[title]]
    _table(("confidence", "answers", "mean", "right"), list(map(_tenth, scores.tenths(pairs))))
    seconds = [ours.seconds() for _ in range(options.rounds)]
    print(f"\n10,000 steps: {1000 * median(seconds):.0f} ms")


def _ablate(options: argparse.Namespace) -> None:
    """Print what each rule on steps does for all records, live and as post-mortems."""
    taken = [record for some in _sets(options).values() for record in some]
    found = ablate.needs([rule.name for rule in STEP_RULES], taken)
    rows: list[tuple[str, ...]] = [
        (one.rule, str(one.decides), str(one.lost), str(one.spared)) for one in found
    ]
    _table(("", "decides", "right less without it", "wrong less without it"), rows)


def _tenth(tenth: scores.Tenth) -> tuple[str, ...]:
    low = tenth.at / 10
    shares = (tenth.mean, tenth.right)
    return (f"{low:.1f} to {low + 0.1:.1f}", str(tenth.answers), *map(_share, shares))


def _fresh(told: Sequence[scores.Pair], failed: Sequence[scores.Pair]) -> None:
    """Print how each kind of fault is found in each of its wordings, and what healthy runs set off."""
    taken = [record for record, _ in told]
    ways = (told, ours.answers(taken, grounding=True), failed)
    names = dict.fromkeys(dealing.kind(record)[0] for record in taken)
    rows = [
        _fresh_row(name, *([p for p in way if dealing.kind(p[0])[0] == name] for way in ways))
        for name in names
    ]
    _table(_FRESH_HEAD, rows)


def _grounding() -> None:
    """Print how many of each kind of invented answer are found, and what true ones set off."""
    told = ours.answers(answers_third.LOOK.records(), grounding=True)
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(dealing.kind(record)[0] for record, _ in told):
        line = scores.line(name, [pair for pair in told if dealing.kind(pair[0])[0] == name])
        rows.append((name, str(line.records), _share(line.hits), _share(line.answered)))
    for title, healthy in (("all invented", False), ("all true", True)):
        line = scores.line(title, [pair for pair in told if pair[0].healthy is healthy])
        rows.append((title, str(line.records), _share(line.hits), _share(line.answered)))
    _table(("", "answers", "right", "answered"), rows)


def _fresh_row(
    name: str,
    plain: Sequence[scores.Pair],
    grounded: Sequence[scores.Pair],
    failed: Sequence[scores.Pair],
) -> tuple[str, ...]:
    whole, with_grounds = scores.line("", plain), scores.line("", grounded)
    wordings = [
        scores.line("", [pair for pair in plain if dealing.kind(pair[0])[1] == at]).hits
        for at in range(dealing.WORDINGS)
    ]
    shares = (
        whole.answered, whole.hits, *wordings, whole.precision, whole.exact,
        with_grounds.hits, with_grounds.answered, scores.line("", failed).hits,
    )  # fmt: skip
    return (name, str(whole.records), *map(_share, shares))


def _exceptions(options: argparse.Namespace) -> None:
    """Print what is said of near misses and, where they are installed, of clients' exceptions."""
    near = [exceptions.of_near_misses(cases()) for _, cases in _NEAR]
    print("\nnear misses\n")
    lines = [exceptions.line(name, told) for (name, _), told in zip(_NEAR, near, strict=True)]
    _table(_CLIENTS_HEAD, [_clients_row(line) for line in lines])
    shown = [one for told in near for one in told]
    lab_python = exceptions.python(make=options.make_lab)
    fifth_python = exceptions.python("clients-fifth", make=options.make_lab)
    sixth_python = exceptions.python("clients-sixth", make=options.make_lab)
    if None in (lab_python, fifth_python, sixth_python):
        print(
            "\nmost clients are not measured, as they are not installed: --make-lab installs them"
        )
    for title, module, python in (
        ("first", provoke.FIRST, lab_python),
        ("second", provoke.SECOND, lab_python),
        ("third", provoke.THIRD, Path(sys.executable)),
        ("fifth", provoke.FIFTH, fifth_python),
        ("sixth", provoke.SIXTH, sixth_python),
    ):
        if python is not None:
            told = exceptions.of_clients(python, module)
            shown += told
            print(f"\nexceptions of clients, {title} set, by library\n")
            _table(_CLIENTS_HEAD, [_clients_row(line) for line in exceptions.by_library(told)])
    if options.misses:
        for one in exceptions.missed(shown):
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
    parser.add_argument(
        "--looks",
        nargs="+",
        choices=_LOOKS,
        default=[*_LOOKS],
        metavar="LOOK",
        help="the made-up sets to measure, such as 'ninth look'; all of them by default",
    )
    parser.add_argument("--misses", action="store_true", help="show each exception told wrongly")
    parser.add_argument(
        "--ablate",
        action="store_true",
        help="switch each rule on steps off, and count what that changes",
    )
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


def _row(name: str, pairs: Sequence[scores.Pair], *, counts: bool = True) -> tuple[str, ...]:
    line = scores.line(name, pairs)
    sizes = (str(line.records), str(line.labelled)) if counts else ("", "")
    shares = (line.answered, line.hits, line.precision, line.macro_f1, line.mechanical, line.exact)
    return (name, *sizes, *map(_share, shares), _share(scores.calibration_error(pairs)))


def _best(pairs: Sequence[scores.Pair]) -> tuple[str, ...]:
    """The best that an answer which never changes gets, each figure with its own best answer."""

    def best(score: Callable[[Sequence[scores.Pair]], float | None]) -> str:
        kind, value = scores.constants(pairs, score)
        return f"{_share(value)} ({kind})"

    position = scores.best_position(pairs)
    return (
        "  best constant", "", "", _NOTHING,
        best(lambda given: scores.line("", given).hits),
        best(lambda given: scores.line("", given).precision),
        best(scores.macro_f1),
        best(lambda given: scores.macro_f1(given, scores.MECHANICAL)),
        _NOTHING if position is None else f"{_share(position[1])} (step {position[0]})",
        _NOTHING,
    )  # fmt: skip


def _share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3f}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    print(figures.markdown([head, *rows]))


if __name__ == "__main__":
    sys.exit(main())
