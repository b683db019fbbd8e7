"""Mean mirage scores of models over data sets, and of data sets over models (arXiv:2603.21687, section 7.6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.core.results import Metric, mean_metric, with_ids
from mmprobe.errors import InputError
from mmprobe.files import read_results

_SCORES = ("mirage_score", "mirage_score_above_chance")


class MeanScores(NamedTuple):
    """Mean mirage scores, and one row a folder: its model, its data set and its scores.

    `NAME[model=M]` is the mean over data sets, `NAME[data=D]` that over models, and `NAME` that over all
    folders, for `mirage_score` and `mirage_score_above_chance`.
    """

    metrics: dict[str, Metric]
    records: list[dict[str, Any]]


def mean_mirage_scores(folders: Sequence[str | Path]) -> MeanScores:
    """Average the mirage scores of result folders of mirage-effect, one for each model and data set.

    Data sets are told apart by the path of `--data`. An undefined score lowers the coverage. Raises
    InputError for other results, or two folders of the same model and data set.
    """
    records = [_read_folder(Path(folder)) for folder in folders]
    earlier: dict[tuple[str, str], str] = {}
    for record in records:
        pair = record["model"], record["data"]
        if pair in earlier:
            raise InputError(
                f"{record['id']} and {earlier[pair]}: both hold {pair[0]} on {pair[1]}; each pair counts once"
            )
        earlier[pair] = record["id"]
    metrics: dict[str, Metric] = {}
    groups = [("", records)]
    for key in ("model", "data"):
        for value in dict.fromkeys(record[key] for record in records):
            groups.append((f"[{key}={value}]", [record for record in records if record[key] == value]))
    for suffix, members in groups:
        means = {
            f"{name}{suffix}": mean_metric([row[name] for row in members], "lower", (0.0, None))
            for name in _SCORES
        }
        metrics |= with_ids(means, [row["id"] for row in members])
    return MeanScores(metrics, records)


def _read_folder(folder: Path) -> dict[str, Any]:
    results = read_results(folder)
    missing = [name for name in _SCORES if name not in results.metrics]
    if results.benchmark != "mirage-effect" or missing:
        raise InputError(
            f"{folder / 'results.json'}: contains no mirage score of bench or score mirage-effect"
        )
    model = results.model_name() or folder.name  # answers that another system gave
    scores = {name: results.metrics[name].value for name in _SCORES}
    return {"id": str(folder), "model": model, "data": results.entry("data") or "unknown data", **scores}
