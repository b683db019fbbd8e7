"""Fill the sections of docs/features.md about effects over many answers and about organisms.

python research/write_feature_tests.py effects organisms labels

More scenes and pairs (`--n`) give narrower intervals and take longer.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from page import PageParts, fill_pages
from write_features import Cells, choose_feature, read_cells

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES
from mmprobe.diagnosis.bench.run import list_subjects, load_pairs
from mmprobe.diagnosis.truth import judge_answer
from mmprobe.interventions import load_method
from mmprobe.interventions.base import Method
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary, load_dictionary
from mmprobe.notebook import markdown_table
from mmprobe.samples import Sample, image_sets
from mmprobe.settings import AskSettings
from mmprobe.stats.auc import auc_without_groups, weighted_auc
from mmprobe.stats.estimate import Estimate, estimate_mean, read_estimate
from mmprobe.stats.intervals import degrees_of_freedom, jackknife_interval
from mmprobe.traces import answer

SEED = 8_300_000  # of images that no training and no other page uses
ORGANISMS = (
    "control-true-0", "control-hard-0", "blind-rolled-0", "blind-likely-0", "looks-unused-decoy-0",
    "looks-unused-kept-0", "misperceives-swapped-0", "misperceives-channels-0",
)  # fmt: skip
PARTIAL = ("blind-crowd-0", "blind-phrase-0", "misperceives-recoloured-0", "follows-hints-expert-0")
RANDOM, SHUFFLES, DRAWS = 8, 10, 10
MULTIPLE = 3  # of the mean activation at cells of the colour
EXPLAINED = 0.5  # share of variance below which a dictionary's features are not read; our choice
LENGTH = 64  # of an organism's answers, in tokens


def main() -> None:
    """Measure, and write the sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="+", choices=("effects", "organisms", "labels"))
    parser.add_argument(
        "--n", type=int, default=24, help="scenes that choose, and half of those that are measured"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measures = {"effects": measure_effects, "organisms": measure_organisms, "labels": measure_labels}
    for name in arguments.sections:
        with tempfile.TemporaryDirectory() as folder:
            fill_pages({"docs/features.md": measures[name](Path(folder), arguments.n)})


def draw(folder: Path, n: int) -> tuple[list[Sample], list[Sample]]:
    """Return questions about colours of n scenes that choose features, and of twice as many others."""
    samples = mp.load_samples(make_pairs(folder / "pairs", n=3 * n, seed=SEED))
    asked = [sample for sample in samples if sample.metadata["type"] == "colour"]
    return asked[:n], asked[n:]


def choose(cells: Cells, names: Sequence[str]) -> dict[str, int]:
    """Return the feature of each attribute, the best among objects."""
    shows = cells.objects != ""
    return {name: choose_feature(cells, name, shows) for name in names}


def measure_effects(folder: Path, n: int) -> PageParts:
    """Return the parts of the section about effects over answers."""
    model, dictionary = mp.load_model("tiny-spd", device="cpu"), load_dictionary("tiny-spd")
    first, rest = draw(folder, n)
    cells = read_cells(model, dictionary, first)
    chosen = choose(cells, list(COLOURS))
    often = (cells.activations > 0).mean(0)
    least = min(often[list(chosen.values())])
    others = np.setdiff1d(np.flatnonzero(often >= least), list(chosen.values()))
    random = np.random.default_rng(0).choice(others, min(RANDOM, len(others)), replace=False).tolist()
    said = np.array([str(each.answer) for each in rest])
    rows, values = [], []
    for name, feature in chosen.items():
        own = np.array([f" {name}" in text for text in said])
        values.append(MULTIPLE * float(cells.activations[cells.having(name), feature].mean()))
        parts = [
            measure_change(model, rest, kept, [feature], *change)
            for kept, change in ((own, ("ablate", 0.0)), (~own, ("clamp", values[-1])))
        ]
        rows.append([f"{name}, {feature}", *parts[0], *parts[1]])
    every, changes = np.ones(len(rest), bool), (("ablate", 0.0), ("clamp", float(np.mean(values))))
    parts = [measure_change(model, rest, every, random, *change) for change in changes]
    rows.append(["random", *parts[0], *parts[1]])
    columns = ["feature", "own", "loss, ablated", "changed", "other", "loss, clamped", "changed"]
    return {"effects-table": markdown_table(columns, rows)}


def measure_change(
    model: Model,
    samples: Sequence[Sample],
    kept: np.ndarray,
    features: Sequence[int],
    action: str,
    value: float,
) -> list[str]:
    """Return the cells of a table: the number of answers, and the mean over features of their loss and of what changes."""
    chosen = [sample for sample, own in zip(samples, kept, strict=True) if own]
    if len(chosen) < 2:
        return [str(len(chosen)), "", ""]
    ds = mp.probes.feature_effects_run(model, chosen, features, "tiny-spd", action, value)
    loss = estimate_mean(ds.effect_by_sample.values.mean(1), image_sets(chosen), (None, None))
    moved = read_estimate(ds.isel(feature=0), "moved")
    mean = f"{moved:.2f}" if len(features) == 1 else f"{float(ds.moved.mean()):.2f}"
    return [str(len(chosen)), f"{loss:.2f}", mean]


def measure_organisms(folder: Path, n: int) -> PageParts:
    """Return the parts of the section about features of attributes in organisms."""
    dictionary = load_dictionary("tiny-spd")
    first, rest = draw(folder, n)
    cells = read_cells(mp.load_model("tiny-spd", device="cpu"), dictionary, first)
    kinds = {"colours": choose(cells, list(COLOURS)), "shapes": choose(cells, list(SHAPES))}
    rows, fires = [], {}
    for name in ("tiny-spd", *(f"organism:{each}" for each in ORGANISMS)):
        model = mp.load_model(name, device="cpu")
        own = read_cells(model, dictionary, rest)
        aucs = {kind: mean_auc(own, chosen) for kind, chosen in kinds.items()}
        right = measure_right(model, rest, [])
        explained = read_estimate(
            mp.probes.features_run(model, rest, "tiny-spd").sel(group="visual"), "explained"
        )
        fires[name.removeprefix("organism:")] = explained, aucs["colours"]
        numbers = (f"{each:.3f}" for each in (explained, aucs["colours"], aucs["shapes"]))
        rows.append([f"`{name.removeprefix('organism:')}`", f"{right:.2f}", *numbers])
    verdict = conclude({name: numbers for name, numbers in fires.items() if "blind" in name})
    return {
        "organisms-table": markdown_table(["organism", "right", "explained", "colours", "shapes"], rows),
        "organisms-verdict": verdict,
    }


def conclude(fires: dict[str, tuple[Estimate[float], Estimate[float]]]) -> str:
    """Return in words whether the colours' features still fire in blind models, where the dictionary explains their states."""
    parts = []
    for name, (explained, auc) in fires.items():
        if explained.low < EXPLAINED:
            parts.append(
                f"in `{name}` the dictionary explains {explained.value:.2f} of the variance, so its features are not to be read "
                f"(AUROC of colours {auc:.2f})"
            )
        else:
            still = "still fire" if auc.low > 0.9 else "fire less"
            parts.append(
                f"in `{name}` the colours' features {still} (AUROC {auc:.2f}), though no answer uses them"
            )
    text = "; ".join(parts)
    return (
        f"{text[0].upper()}{text[1:]}. Training that went blind can change the states so far that a dictionary of the sighted model no longer "
        "explains them; look at `explained` first. A linear probe that is fitted on the blind model itself finds its objects "
        "([visual-tokens.md](visual-tokens.md))."
    )


def mean_auc(cells: Cells, chosen: dict[str, int]) -> Estimate[float]:
    """Return the mean over attributes of the AUROC of their features, with its interval over sets of images."""
    number = np.unique(cells.sets, return_inverse=True)[1]
    values, without = [], []
    for name, feature in chosen.items():
        score, own = cells.activations[:, feature], cells.having(name)
        values.append(float(weighted_auc(score, own)[0]))
        without.append(auc_without_groups(score, own, number))
    low, high = jackknife_interval(
        np.array(np.mean(values)), np.mean(without, 0), (0.0, 1.0), degrees_of_freedom(np.bincount(number))
    )
    return Estimate(float(np.mean(values)), float(low), float(high), len(cells.sets), int(number.max()) + 1)


def ask(model: Model, samples: Sequence[Sample], methods: Sequence[Method]) -> dict[str, bool | None]:
    """Return whether each answer is faithful; None where that cannot be read."""
    given = answer(model, samples, None, AskSettings(method=methods, max_new_tokens=LENGTH, batch_size=16))
    texts = {name: model.tokenizer.decode(each.token_ids, skip_special_tokens=True) for name, each in given}
    return {each.id: judge_answer(each, texts[each.id]) for each in samples}


def measure_right(model: Model, samples: Sequence[Sample], methods: Sequence[Method]) -> Estimate[float]:
    """Return the share of answers that are right."""
    right = ask(model, samples, methods)
    return estimate_mean(np.array([float(bool(right[each.id])) for each in samples]), image_sets(samples))


def measure_labels(folder: Path, n: int) -> PageParts:
    """Return the parts of the section about features that tell faithful from unfaithful answers of organisms."""
    rows = []
    for subject in list_subjects(list(PARTIAL)):
        model = mp.load_model(subject.source, device="cpu")
        samples = load_pairs(folder / "pairs", subject, n)
        given = {
            name: each.token_ids
            for name, each in answer(model, samples, None, AskSettings(max_new_tokens=LENGTH, batch_size=16))
        }
        texts = {name: model.tokenizer.decode(ids, skip_special_tokens=True) for name, ids in given.items()}
        labels = {each.id: judge_answer(each, texts[each.id]) for each in samples}
        known = [each for each in samples if labels[each.id] is not None and texts[each.id].strip()]
        own = np.array([labels[each.id] for each in known])
        told = find_told(model, known, own, texts)
        rng = np.random.default_rng(0)
        false = sum(bool(len(find_told(model, known, rng.permutation(own), texts))) for _ in range(SHUFFLES))
        unfaithful = [each for each, faithful in zip(known, own, strict=True) if not faithful]
        without, random = remove(model, unfaithful, told)
        shuffled = f"{false} of {SHUFFLES}"
        counts = int(own.sum()), len(unfaithful), len(told), shuffled
        rows.append((f"`{subject.name}`", *counts, without, random))
        print(*rows[-1], flush=True)
    columns = ["organism", "faithful", "unfaithful", "told", "shuffled", "without", "random"]
    return {"labels-table": markdown_table(columns, rows)}


def find_told(
    model: Model, samples: Sequence[Sample], labels: np.ndarray, texts: dict[str, str]
) -> list[int]:
    """Return the features that tell answers with one label from those with the other."""
    labelled = [
        each.model_copy(update={"faithful": bool(label), "answer": texts[each.id]})
        for each, label in zip(samples, labels.tolist(), strict=True)
    ]
    told = mp.probes.features_run(model, labelled, "tiny-spd").told.any("group").values
    return [int(number) for number in np.flatnonzero(told)]


def remove(model: Model, samples: Sequence[Sample], told: Sequence[int]) -> tuple[str, str]:
    """Return the share of answers that become faithful without some features, and without as many others."""
    if not told or len(samples) < 2:
        return "", ""
    dictionary, rng = load_dictionary("tiny-spd"), np.random.default_rng(1)
    active = find_active(model, dictionary, samples)

    def measure(features: Sequence[int]) -> Estimate[float]:
        named = ", ".join(map(str, features))
        method = load_method("features", dictionary="tiny-spd", features=named, action="ablate")
        return measure_right(model, samples, [method])

    drawn = [
        measure(rng.choice(np.setdiff1d(active, told), len(told), replace=False).tolist()).value
        for _ in range(DRAWS)
    ]
    return f"{measure(told):.2f}", f"{np.mean(drawn):.2f}, {max(drawn):.2f}"


def find_active(model: Model, dictionary: Dictionary, samples: Sequence[Sample]) -> np.ndarray:
    """Return the features that are active at some token."""
    ds = mp.probes.features_run(model, samples, "tiny-spd")
    return np.flatnonzero((ds.density.fillna(0) > 0).any("group").values)


if __name__ == "__main__":
    main()
