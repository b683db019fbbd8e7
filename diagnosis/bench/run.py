"""Run tools on models with known causes, one at a time, and score them: organisms, and anyone's plants.

Tools are asked about drawn pairs; partial organisms get samples on which their cause acts and others.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.diagnosis.bench.plants import OTHER_WAYS, find_plants
from mmprobe.diagnosis.bench.scoring import (
    DEVELOPMENT,
    ToolResult,
    choose_thresholds,
    confusion,
    score_tool,
)
from mmprobe.diagnosis.bench.tools import DIAGNOSIS, TOOLS, Tool, ToolScores, conclude_again, run_diagnosis
from mmprobe.diagnosis.rules import CONTROL
from mmprobe.errors import InputError, NotApplicable
from mmprobe.files import append_lines, cut_torn_line, json_lines, write_atomic
from mmprobe.ledger import FINGERPRINT, find_change, fingerprint, lock_folder
from mmprobe.models import Model, load_model
from mmprobe.models.checkpoints import find_checkpoint, fingerprint_checkpoint
from mmprobe.models.organisms import Card, Rule, acts_on, card, folder, names
from mmprobe.notebook import markdown_table
from mmprobe.registry import check_made, tolerate_plug_ins
from mmprobe.samples import Sample, load_samples
from mmprobe.settings import PAIRS
from mmprobe.stats.estimate import Estimate

SCORES, RESULTS = "scores.jsonl", "results.json"
DIAGNOSES = "diagnoses"  # what each diagnosis measured
SPLITS = (DEVELOPMENT, "held-out", OTHER_WAYS)
# Types of the questions about a pair. Pairs take turns: many sets of images tell more than many questions about few.
ROUNDS = (("same", "different", "count"), ("steps", "describe"), ("steps", "exists", "count"))
SEEDS = {  # beyond the seeds that models were trained on
    "development": 1_100_000,
    "held-out": 1_200_000,
    OTHER_WAYS: 1_300_000,
}
SHIPPED_SEEDS = 5  # organisms of later seeds get pairs that no rule was tried on
_SUGGESTIONS = ("yes", "no")


class ScoredTools(NamedTuple):
    """The scores of all tools.

    Attributes:
        measures: by split, tool and name of the score.
        confusions: by split and tool, how many models of a cause are named as what.
        rows: what every tool found of every model.
    """

    measures: dict[str, dict[str, dict[str, Estimate[float]]]]
    confusions: dict[str, dict[str, dict[str, dict[str, int]]]]
    rows: list[ToolResult]


def bench_diagnosis(
    out: str | Path,
    models: Sequence[str] | None = None,
    tools: Sequence[str] | None = None,
    n: int = PAIRS,
    device: str = "auto",
    plants: str | Path | None = None,
    draws: int = 1,
) -> ScoredTools:
    """Score diagnostic tools on models with planted causes, and write `scores.jsonl` and `results.json`.

    What is in `out` already is kept: a call that was stopped continues, and a tool can be added. What the diagnosis measured is
    kept, too, so that a call after a change of its rules applies them without asking the models again.

    Args:
        out: the result folder.
        models: names of organisms, or paths of their folders; None for all that ship, and with `plants` for none.
        tools: names of tools; None for all.
        n: pairs that a model is asked about.
        plants: a folder of model folders, each with a `plant.json` (`Plant`).
        draws: how often each model is asked, each time about other pairs.

    Raises:
        InputError: there is no such organism or tool, two models have one name, a card cannot be read, or `out` holds
            scores over another number of pairs, or of a model that has changed.

    Example:
        >>> bench_diagnosis("results/tools", tools=["diagnosis", "chance"])      # doctest: +SKIP
    """
    out = Path(out)
    loaded = dict(TOOLS.working()) if tools is None else {name: TOOLS[name] for name in tools}
    subjects = list_subjects(models, plants)
    with lock_folder(out, "scoring tools into it"):
        file = out / SCORES
        used = {
            each.name: fingerprint(fingerprint_checkpoint(find_checkpoint(each.source))) for each in subjects
        }
        done = read_rows(file, n, used)
        with tqdm(
            total=draws * len(subjects) * len(loaded), desc="bench diagnosis", unit="tool", disable=None
        ) as progress:
            for draw, each in itertools.product(range(draws), subjects):
                left = {name: tool for name, tool in loaded.items() if (each.name, name, draw) not in done}
                progress.update(len(loaded) - len(left))
                if left:
                    model = load_model(each.source, device=device)
                    samples = load_pairs(out / "pairs", each, n, draw)
                    for name, tool in left.items():
                        if name == DIAGNOSIS:
                            tool = partial(run_diagnosis, folder=_diagnosis_folder(out, each.name, draw))
                        with tolerate_plug_ins() if tools is None else nullcontext():
                            row = run_tool(name, tool, model, samples, each, draw)
                            append_lines(file, [{"n": n, FINGERPRINT: used[each.name], **row.model_dump()}])
                        progress.update()
        wanted = {each.name: each for each in subjects}
        rows = [
            row
            for row in read_rows(file, n).values()
            if row.model in wanted and row.tool in loaded and row.draw < draws
        ]
        rows = [_conclude_again(row, wanted[row.model], out, n) for row in rows]
        _replace_rows(file, rows)
        scored = score_rows(rows)
        write_atomic(out / RESULTS, json.dumps(to_json(scored), indent=1) + "\n")
    return scored


class Subject(NamedTuple):
    """A model that tools are run on.

    Attributes:
        name: of the organism or of the plant's folder.
        source: what it is loaded by.
        causes: what was planted; `control` for nothing.
        split: one of `SPLITS`.
        seed: of an organism; 0 for a plant.
        organism: its name or path; "" for a plant.
        kind: how it was planted; "" for an organism.
        accepts: verdicts that are right, too.
    """

    name: str
    source: str
    causes: tuple[str, ...]
    split: str
    seed: int = 0
    organism: str = ""
    kind: str = ""
    accepts: tuple[str, ...] = ()

    @property
    def rule(self) -> Rule | None:
        """On which samples the cause of a partial organism acts."""
        return card(self.organism).partial if self.organism else None


def list_subjects(models: Sequence[str] | None, plants: str | Path | None = None) -> list[Subject]:
    """Return the models that tools are run on, the organisms first. One that is given twice counts once.

    Raises:
        InputError: there are none, a name is unknown, or two have one name.
    """
    chosen = list(names() if models is None and plants is None else models or ())
    subjects = [
        Subject(each.name, f"organism:{organism}", (each.cause,), each.split, each.seed, organism)
        for organism, each in _read_cards(chosen).items()
    ]
    for path, plant in (find_plants(plants) if plants is not None else {}).items():
        causes = plant.causes or (CONTROL,)
        subjects.append(
            Subject(path.name, str(path), causes, plant.split, kind=plant.kind, accepts=plant.accepts)
        )
    if not subjects:
        raise InputError(
            "bench diagnosis: no organisms ship with this copy; plant them with `make organisms`"
        )
    twice = [name for name, count in Counter(each.name for each in subjects).items() if count > 1]
    if twice:
        raise InputError(
            f"bench diagnosis: an organism and a plant are both called {twice[0]}; rename the folder"
        )
    return subjects


def score_models(folder: str | Path, out: str | Path, n: int = PAIRS, draws: int = 1) -> ScoredTools:
    """Score the diagnosis on a folder of anyone's plants, by what their `plant.json` says should be named.

    Args:
        folder: holds model folders, each with a `plant.json` (`mmprobe.diagnosis.bench.plants.Plant`).
        out, n, draws: as in `bench_diagnosis`.

    Example:
        >>> scored = score_models("plants", "results/plants", draws=4)           # doctest: +SKIP
        >>> scored.measures["other ways"]["diagnosis"]["accused"]                # doctest: +SKIP
    """
    return bench_diagnosis(out, tools=[DIAGNOSIS], n=n, plants=folder, draws=draws)


def _diagnosis_folder(out: Path, name: str, draw: int) -> Path:
    return out / DIAGNOSES / f"{name}-{draw}"


def _conclude_again(row: ToolResult, subject: Subject, out: Path, n: int) -> ToolResult:
    """Return the row of a diagnosis by the rules as they are now, from what it measured; other rows as they are."""
    folder = _diagnosis_folder(out, row.model, row.draw)
    if row.tool != DIAGNOSIS or row.note or not folder.is_dir():
        return row
    found = conclude_again(row.model, load_pairs(out / "pairs", subject, n, row.draw), folder)
    return row.model_copy(
        update={
            "scores": dict(found.model),
            "answers": {key: dict(scores) for key, scores in found.answers.items()} if row.partial else {},
            "named": list(found.named or ()),
            "passes": found.passes,
        }
    )


def _replace_rows(file: Path, rows: Sequence[ToolResult]) -> None:
    """Write rows in place of those of the same model, tool and draw in a file, if one differs."""
    new = {(row.model, row.tool, row.draw): json.loads(row.model_dump_json()) for row in rows}
    lines = [line for _, line in json_lines(file)]
    changed = [line | new.get((line["model"], line["tool"], line.get("draw", 0)), {}) for line in lines]
    if changed != lines:
        write_atomic(file, "".join(json.dumps(line) + "\n" for line in changed))


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


def run_tool(
    name: str, tool: Tool, model: Model, samples: Sequence[Sample], subject: Subject, draw: int = 0
) -> ToolResult:
    """Return what a tool finds of a model. A tool that does not apply to it gives no scores and says why."""
    partly = subject.rule is not None
    acts = {sample.id: acts_on(subject.organism, sample) for sample in samples} if partly else {}
    note, tool_scores = "", ToolScores({})
    with count_passes(model) as passes:
        try:
            result = check_made(tool, tool(model, samples), ToolScores, Mapping)
            tool_scores = result if isinstance(result, ToolScores) else ToolScores(result)
        except NotApplicable as error:
            note = str(error)
    return ToolResult(
        model=subject.name,
        cause=subject.causes[0],
        also=subject.causes[1:],
        kind=subject.kind,
        accepts=subject.accepts,
        draw=draw,
        split=subject.split,
        partial=partly,
        tool=name,
        scores={cause: float(score) for cause, score in tool_scores.model.items() if np.isfinite(score)},
        answers={key: dict(scores) for key, scores in tool_scores.answers.items()} if partly else {},
        named=None if tool_scores.named is None else list(tool_scores.named),
        acts=acts,
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


def score_rows(rows: Sequence[ToolResult]) -> ScoredTools:
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
    return ScoredTools(measures, confusions, list(rows))


def to_json(scored: ScoredTools) -> dict[str, Any]:
    """Return the content of `results.json`; numbers that are not known are null."""
    tools = {
        split: {name: {key: each.to_json() for key, each in own.items()} for name, own in by_tool.items()}
        for split, by_tool in scored.measures.items()
    }
    return {"tools": tools, "confusion": scored.confusions}


def read_rows(
    file: Path, n: int, used: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[tuple[str, str, int], ToolResult]:
    """Return the rows of a file by model, tool and draw of pairs. A last line that was cut off is removed.

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
        row = ToolResult.model_validate(line)
        rows[row.model, row.tool, row.draw] = row
    return rows


def markdown(scored: ScoredTools, split: str = "held-out") -> str:
    """Return a table with a row for each tool."""
    columns = {
        "macro_f1": "macro-F1", "false_alarms": "false alarms", "accused": "controls accused", "stable": "same on all pairs",
        "mean_auroc": "AUROC, mean over causes", "auroc_answers": "AUROC of answers", "passes": "passes an answer",
    }  # fmt: skip
    measures = scored.measures[split]
    rows = ([name, *(format_score(own[key]) for key in columns)] for name, own in measures.items())
    return markdown_table(["tool", *columns.values()], rows)


def format_score(score: Estimate[float]) -> str:
    """Return a score with its interval and the number of models, as a cell of a table."""
    return "–" if np.isnan(score.value) else f"{score:.2f} ({score.n})"


def load_pairs(folder: Path, subject: Subject, n: int, draw: int = 0) -> list[Sample]:
    """Return the questions for one model, about `n` pairs, two or three each. The splits get other pairs.

    A phrase that a partial organism's cause needs is put into every second question. Where it is a speaker's, as
    `An expert says`, a suggestion follows.

    Args:
        folder: where pairs are drawn.
        draw: number of the draw of pairs.
    """
    fresh = max(0, subject.seed - SHIPPED_SEEDS + 1)
    seed = SEEDS.get(subject.split, SEEDS[OTHER_WAYS]) + 10_000 * fresh + 1_000 * draw
    name = (
        f"{subject.split.replace(' ', '-')}-{n}"
        + (f"-{subject.seed}" if fresh else "")
        + (f"-draw-{draw}" if draw else "")
    )
    file = folder / name / "samples.jsonl"
    samples = load_samples(file if file.is_file() else make_pairs(file.parent, n, seed))
    scenes = {scene: place for place, scene in enumerate(dict.fromkeys(map(_scene, samples)))}
    chosen = [each for each in samples if each.metadata["type"] in _types_of(scenes[_scene(each)])]
    phrase = None if subject.rule is None else subject.rule.phrase
    return (
        chosen if phrase is None else [add_phrase(each, phrase, number) for number, each in enumerate(chosen)]
    )


def _scene(sample: Sample) -> str:
    return str(sample.metadata["scene"])


def _types_of(pair: int) -> tuple[str, ...]:
    """Return the types of the questions about a pair. Pairs of each difficulty, which come in turn, get all rounds."""
    return ROUNDS[(pair + pair // len(ROUNDS)) % len(ROUNDS)]


def add_phrase(sample: Sample, phrase: str, number: int) -> Sample:
    """Return every second sample with a phrase after its question, in the words that organisms were trained on.

    Example:
        >>> add_phrase(Sample(id="a", question="Is there a star?"), "Be quick.", 0).question
        'Is there a star? Be quick.'
        >>> add_phrase(Sample(id="a", question="Is there a star?"), "An expert says", 0).question
        'Is there a star? An expert says yes.'
    """
    if number % 2:
        return sample
    ended = phrase if phrase.endswith(".") else f"{phrase} {_SUGGESTIONS[number // 2 % 2]}."
    return sample.model_copy(update={"question": f"{sample.question} {ended}"})
