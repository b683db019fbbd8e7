"""A LaTeX table of several result folders: methods x benchmarks, with intervals and paired tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmprobe.errors import InputError
from mmprobe.samples import image_sets
from mmprobe.stats.compare import holm, sign_flip_p
from mmprobe.stats.estimate import Estimate, estimate_mean, format_number
from mmprobe.stats.intervals import COSINE
from mmprobe.viz.latex import escape
from mmprobe.viz.report.answers import collect_answers, find_sample
from mmprobe.viz.report.results import ResultFolder, read_results
from mmprobe.viz.report.two_runs import Side, match_answers

_LEVEL = 0.05


class Cell(NamedTuple):
    """The answers of one method to one benchmark.

    Attributes:
        share: of right answers among all that were asked for, with its interval; None where no answer has a label.
        difference: to the baseline, over the questions of both; None for the baseline.
        p: of the paired test of this difference; NaN for the baseline, and where nothing can be compared.
        unread: answers that nobody could read, which are not right.
        word: `right`, or `faithful` where the labels say more than what is right.
    """

    share: Estimate[float] | None
    difference: Estimate[float] | None
    p: float
    unread: int
    word: str = "right"


def _find_folders(source: Path) -> list[Path]:
    """Return the result folders in a folder of `compare`, its baseline first; another result folder is alone.

    Example:
        >>> _find_folders(Path("results/compare"))                   # doctest: +SKIP
        [PosixPath('results/compare/plain/pope'), PosixPath('results/compare/sage/pope')]
    """
    if (source / "results.json").is_file():
        return [source]
    found = [file.parent for file in sorted(source.glob("*/*/results.json"))]
    if not found:
        raise InputError(
            f"{source}: contains no results.json; name a result folder of bench, score or compare"
        )
    return sorted(found, key=lambda folder: folder.parent.name != "plain")


def write_table(sources: Sequence[Path]) -> str:
    """Return a LaTeX table with a row for each method and columns for each benchmark. It needs the package booktabs.

    A benchmark has the share of right (or faithful) answers among all that were asked for, with its 95 % interval over
    sets of images; the number of questions; the difference to the first folder of the benchmark over the questions
    of both, with its paired interval; and p of a two-sided test that flips the signs of the differences of whole sets
    of images: McNemar's exact test where each question has its own images. p is adjusted by Holm's rule for all tests of
    the table.

    Args:
        sources: result folders, or folders of `compare`, whose baseline is plain.

    Raises:
        InputError: a folder has no results, two have the same method, model and benchmark, or a benchmark's folders have
            no question in common.

    Example:
        >>> print(write_table([Path("results/compare")]))           # doctest: +SKIP
    """
    results = [read_results(folder) for source in sources for folder in _find_folders(Path(source))]
    names = _name_rows(results)
    cells: dict[tuple[str, str], Cell] = {}
    first: dict[str, ResultFolder] = {}
    for name, each in zip(names, results, strict=True):
        if (name, each.benchmark) in cells:
            raise InputError(
                f"{each.folder}: a folder of {name} and {each.benchmark} is there already; give each once"
            )
        baseline = first.setdefault(each.benchmark, each)
        cells[name, each.benchmark] = _measure(each, None if baseline is each else baseline)
    tested = [key for key, cell in cells.items() if np.isfinite(cell.p)]
    adjusted = dict(zip(tested, holm(np.array([cells[key].p for key in tested])).tolist(), strict=True))
    return _format(list(dict.fromkeys(names)), list(first), cells, adjusted, names[0])


def _name_rows(results: Sequence[ResultFolder]) -> list[str]:
    """Return what tells each folder's answers from the others': the method with its parameters, and the model if several."""

    def describe(about: dict[str, Any]) -> str:
        method = str(about.get("method") or "plain")
        parameters = about.get("parameters")
        settings = (
            [f"{key}={value}" for key, value in parameters.items()] if isinstance(parameters, dict) else []
        )
        perturbed = [str(about["perturbation"])] if about.get("perturbation") else []
        return ", ".join([" ".join([method, *settings]), *perturbed])

    models = [str(each.about.get("model") or each.folder.name) for each in results]
    several = len(set(models)) > 1
    return [
        f"{model}, {describe(each.about)}" if several else describe(each.about)
        for model, each in zip(models, results, strict=True)
    ]


def _measure(results: ResultFolder, baseline: ResultFolder | None) -> Cell:
    answers = collect_answers(None, results)
    if all(label is None for label in answers.labels):
        return Cell(None, None, np.nan, 0)
    right = np.array([label is True for label in answers.labels], float)
    sets = image_sets(find_sample(None, answers, number) for number in range(len(answers.rows)))
    share, unread, word = estimate_mean(right, sets), answers.labels.count(None), answers.names[True]
    if baseline is None:
        return Cell(share, None, np.nan, unread, word)
    both = match_answers((Side("", None, [], baseline), Side("", None, [], results)))
    before, after = np.nan_to_num(both.labels)  # an unread answer is not right
    difference = estimate_mean(after - before, both.groups, COSINE)
    return Cell(share, difference, sign_flip_p(after - before, both.groups), unread, word)


def _format(
    rows: Sequence[str],
    benchmarks: Sequence[str],
    cells: dict[tuple[str, str], Cell],
    adjusted: dict[tuple[str, str], float],
    baseline: str,
) -> str:
    heads = "".join(rf" & \multicolumn{{4}}{{c}}{{{escape(name)}}}" for name in benchmarks)
    words = [next(cell.word for (_, each), cell in cells.items() if each == name) for name in benchmarks]
    rules = " ".join(rf"\cmidrule(lr){{{2 + 4 * place}-{5 + 4 * place}}}" for place in range(len(benchmarks)))
    lines = [
        f"{heads} \\\\",
        rules,
        "method" + "".join(rf" & {word} & $n$ & difference & $p$" for word in words) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        shown = [_format_cell(cells.get((row, name)), adjusted.get((row, name))) for name in benchmarks]
        lines.append(f"{escape(row)} & {' & '.join(shown)} \\\\")
    unread = sum(cell.unread for cell in cells.values())
    caption = (
        f"Share of {' or '.join(dict.fromkeys(words))} answers with 95\\,\\% intervals over sets of images, $n$ questions asked, and the paired difference to "
        f"{escape(baseline)} over shared questions. $p$: sign-flip test over sets of images, adjusted by Holm's rule for the "
        f"{len(adjusted)} tests of the table; bold below {_LEVEL}."
        + (f" {unread} answers could not be read; they are not right." if unread else "")
    )
    body = "\n".join(f"    {line}" for line in lines)
    return (
        "% Needs \\usepackage{booktabs}.\n\\begin{table*}[t]\n  \\centering\\small\n"
        f"  \\begin{{tabular}}{{l{'rrrr' * len(benchmarks)}}}\n    \\toprule\n{body}\n    \\bottomrule\n  \\end{{tabular}}\n"
        f"  \\caption{{{caption}}}\n  \\label{{tab:comparison}}\n\\end{{table*}}\n"
    )


def _format_cell(cell: Cell | None, p: float | None) -> str:
    """Return share, n, difference and p of one method and benchmark."""
    if cell is None or cell.share is None:
        return " & ".join(["--"] * 4)
    difference = "" if cell.difference is None else _math(f"{cell.difference:+.3f}")
    shown = "" if p is None else f"${'<' if p < 0.001 else ''}{format_number(max(p, 0.001), '.3f')}$"
    if p is not None and p < _LEVEL:
        shown = rf"\textbf{{\boldmath{shown}}}"
    return f"{_math(f'{cell.share:.3f}')} & {cell.share.n} & {difference} & {shown}"


def _math(text: str) -> str:
    """Return numbers with a minus of the right width."""
    return re.sub(r"([-+])(?=\d)", r"$\1$", text)
