"""Run tools on the organisms, one model at a time, and score them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from mmprobe.benchmarks.synthetic import PAIRS
from mmprobe.diagnosis.bench.data import load_pairs
from mmprobe.diagnosis.bench.scoring import (
    DEVELOPMENT,
    Row,
    choose_thresholds,
    confusion,
    score_tool,
)
from mmprobe.diagnosis.bench.tools import TOOLS, Tool, ToolScores
from mmprobe.errors import InputError, NotApplicable
from mmprobe.files import append_lines, cut_torn_line, json_lines, write_atomic
from mmprobe.ledger import FINGERPRINT, find_change, fingerprint, lock_folder
from mmprobe.models import Model, load_model
from mmprobe.models.aliases import find_checkpoint
from mmprobe.models.fingerprint import fingerprint_checkpoint
from mmprobe.models.organisms import Card, acts_on, card, folder, names
from mmprobe.samples import Sample
from mmprobe.stats.estimate import Estimate

SCORES, RESULTS = "scores.jsonl", "results.json"
SPLITS = (DEVELOPMENT, "held-out")


class Scored(NamedTuple):
    """The scores of all tools.

    Attributes:
        measures: by split, tool and name of the score.
        confusions: by split and tool, how many models of a cause are named as what.
        rows: what every tool found of every model.
    """

    measures: dict[str, dict[str, dict[str, Estimate[float]]]]
    confusions: dict[str, dict[str, dict[str, dict[str, int]]]]
    rows: list[Row]


def bench_diagnosis(
    out: str | Path,
    models: Sequence[str] | None = None,
    tools: Sequence[str] | None = None,
    n: int = PAIRS,
    device: str = "auto",
) -> Scored:
    """Score diagnostic tools on models with planted causes, and write `scores.jsonl` and `results.json`.

    What is in `out` already is kept, so a call that was stopped goes on, and a tool can be added.

    Args:
        out: the result folder.
        models: names of organisms, or paths of their folders; None for all that ship.
        tools: names of tools; None for all.
        n: pairs that a model is asked about.

    Raises:
        InputError: there is no such organism or tool, two organisms have one name, or `out` holds scores over
            another number of pairs, or of an organism that has changed.

    Example:
        >>> bench_diagnosis("results/tools", tools=["diagnosis", "chance"])      # doctest: +SKIP
    """
    out, chosen = Path(out), list(names() if models is None else models)
    loaded = {name: TOOLS[name] for name in (TOOLS if tools is None else tools)}
    if not chosen:
        raise InputError(
            "bench diagnosis: no organisms ship with this copy; plant them with `make organisms`"
        )
    cards = _read_cards(chosen)
    with lock_folder(out, "scoring tools into it"):
        file = out / SCORES
        used = {
            each.name: fingerprint(fingerprint_checkpoint(find_checkpoint(f"organism:{organism}")))
            for organism, each in cards.items()
        }
        done = read_rows(file, n, used)
        total = len(cards) * len(loaded)
        with tqdm(total=total, desc="bench diagnosis", unit="tool", disable=None) as progress:
            for organism, each in cards.items():
                left = {name: tool for name, tool in loaded.items() if (each.name, name) not in done}
                progress.update(len(loaded) - len(left))
                if left:
                    model = load_model(f"organism:{organism}", device=device)
                    samples = load_pairs(out / "pairs", each, n)
                    for name, tool in left.items():
                        row = run_tool(name, tool, model, samples, organism)
                        append_lines(file, [{"n": n, FINGERPRINT: used[each.name], **row.model_dump()}])
                        progress.update()
        wanted = {each.name for each in cards.values()}
        rows = [row for row in read_rows(file, n).values() if row.model in wanted and row.tool in loaded]
        scored = score_rows(rows)
        write_atomic(out / RESULTS, json.dumps(to_json(scored), indent=1) + "\n")
    return scored


def _read_cards(organisms: Sequence[str]) -> dict[str, Card]:
    """Return the card of each organism, by the name or path that was given. One that is given twice counts once."""
    cards: dict[str, Card] = {}
    given: dict[str, str] = {}
    for organism in organisms:
        own = card(organism)
        first = given.setdefault(own.name, organism)
        if first == organism:
            cards[organism] = own
        elif folder(first).resolve() != folder(organism).resolve():
            raise InputError(
                f"bench diagnosis: {first} and {organism} are both called {own.name} in card.json; "
                "scores are kept by name, so change one of them"
            )
    return cards


def run_tool(name: str, tool: Tool, model: Model, samples: Sequence[Sample], organism: str) -> Row:
    """Return what a tool finds of a model. A tool that does not apply to it gives no scores and says why."""
    about = card(organism)
    acts = {sample.id: acts_on(organism, sample) for sample in samples}
    note, tool_scores = "", ToolScores({})
    with count_passes(model) as passes:
        try:
            result = tool(model, samples)
            tool_scores = result if isinstance(result, ToolScores) else ToolScores(result)
        except NotApplicable as error:
            note = str(error)
    return Row(
        model=about.name,
        cause=about.cause,
        split=about.split,
        partial=about.partial is not None,
        tool=name,
        scores={cause: float(score) for cause, score in tool_scores.model.items() if np.isfinite(score)},
        answers={key: dict(scores) for key, scores in tool_scores.answers.items()} if about.partial else {},
        named=None if tool_scores.named is None else list(tool_scores.named),
        acts=acts if about.partial else {},
        passes=passes[0] / len(samples) if tool_scores.passes is None else tool_scores.passes,
        note=note,
    )


@contextmanager
def count_passes(model: Model) -> Iterator[list[int]]:
    """Within the block, count the rows that the model reads. To generate an answer counts as one."""
    counts = [0]

    def count(module: Any, args: Any, options: Mapping[str, Any]) -> None:
        ids = options.get("input_ids", args[0] if args else None)
        if ids is not None and ids.shape[1] > 1:  # later tokens of a generated answer come one at a time
            counts[0] += len(ids)

    handle = model.hf.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()


def score_rows(rows: Sequence[Row]) -> Scored:
    """Return the scores of all tools in the rows, on both splits."""
    by_tool = {
        name: [row for row in rows if row.tool == name] for name in dict.fromkeys(row.tool for row in rows)
    }
    measures = {split: {name: score_tool(own, split) for name, own in by_tool.items()} for split in SPLITS}
    confusions: dict[str, dict[str, dict[str, dict[str, int]]]] = {split: {} for split in SPLITS}
    for name, own in by_tool.items():
        whole = [row for row in own if not row.partial]
        limits = choose_thresholds([row for row in whole if row.split == DEVELOPMENT])
        for split in SPLITS:
            confusions[split][name] = confusion([row for row in whole if row.split == split], limits)
    return Scored(measures, confusions, list(rows))


def to_json(scored: Scored) -> dict[str, Any]:
    """Return the content of `results.json`; numbers that are not known are null."""
    tools = {
        split: {name: {key: each.to_json() for key, each in own.items()} for name, own in by_tool.items()}
        for split, by_tool in scored.measures.items()
    }
    return {"tools": tools, "confusion": scored.confusions}


def read_rows(
    file: Path, n: int, used: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[tuple[str, str], Row]:
    """Return the rows of a file by model and tool. A last line that was cut off is removed.

    Args:
        used: fingerprints of models by name.

    Raises:
        InputError: the rows are over another number of pairs, or of a model that has changed.
    """
    rows = {}
    for _, line in json_lines(file) if cut_torn_line(file) else ():
        if change := find_change(line.pop(FINGERPRINT, None), used.get(line["model"])):
            raise InputError(
                f"{file}: of {line['model']}, {change} changed since it was scored; choose another folder"
            )
        pairs = line.pop("n")
        if pairs != n:
            raise InputError(
                f"{file}: holds scores over {pairs} pairs, not {n}; choose another folder, or --n {pairs}"
            )
        row = Row.model_validate(line)
        rows[row.model, row.tool] = row
    return rows


def markdown(scored: Scored, split: str = "held-out") -> str:
    """Return a table with a row for each tool."""
    columns = {
        "macro_f1": "macro-F1", "false_alarms": "false alarms", "mean_auroc": "AUROC, mean over causes",
        "auroc_answers": "AUROC of answers", "passes": "passes an answer",
    }  # fmt: skip
    lines = ["| tool | " + " | ".join(columns.values()) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, own in scored.measures[split].items():
        lines.append(f"| {name} | " + " | ".join(_cell(own[key]) for key in columns) + " |")
    return "\n".join(lines)


def _cell(score: Estimate[float]) -> str:
    return "–" if np.isnan(score.value) else f"{score:.2f} ({score.n})"
