"""Fill docs/features.md: what the shipped dictionary explains, which features the drawn world's attributes have, and clamps.

Its sections about effects over answers and about organisms are of write_feature_tests.py.

python research/write_features.py
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from page import fill_pages
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES
from mmprobe.interventions import generate_batch, load_method
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary, load_dictionary
from mmprobe.notebook import markdown_table
from mmprobe.probes.answer_records import RunAnswer
from mmprobe.probes.features.run import GROUPS, read_states
from mmprobe.samples import Sample, image_sets
from mmprobe.settings import AskSettings
from mmprobe.stats.auc import estimate_auc, weighted_auc
from mmprobe.stats.estimate import Estimate, estimate_mean, read_estimate

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "tests" / "models" / "saelens"
SEED = 6_600_000  # of images that no training and no other page uses
HALF = 48  # scenes that choose features, and as many others on which they are measured
ASKED = 24  # of these, whose questions are answered under each clamp
MULTIPLES = (1, 3, 6)  # of the mean activation at cells of the colour
DRAWS = 3  # random features for each colour
SHUFFLES = 10
ENOUGH = 0.95
COLUMNS = "ABCD"
FeatureRow = tuple[object, ...]


class Cells(NamedTuple):
    """The cells of some scenes: their states, activations, objects, numbers, and sets of images."""

    states: np.ndarray
    activations: np.ndarray
    objects: np.ndarray
    places: np.ndarray
    sets: np.ndarray

    def having(self, name: str) -> np.ndarray:
        """Return which cells have an attribute: a colour, a shape, or a place such as B2."""
        if name in self.places:
            return self.places == name
        return np.array([name in text.split() for text in self.objects])


def main() -> None:
    """Measure, and write the page."""
    model, dictionary = mp.load_model("tiny-spd", device="cpu"), load_dictionary("tiny-spd")
    with tempfile.TemporaryDirectory() as folder:
        samples = mp.load_samples(make_pairs(Path(folder) / "pairs", n=2 * HALF, seed=SEED))
        asked = [sample for sample in samples if sample.metadata["type"] == "colour"]
        described = [sample for sample in samples if sample.metadata["type"] == "describe"]
        first, rest = asked[:HALF], asked[HALF:]
        ds = mp.probes.features_run(model, rest, "tiny-spd")
        fit = [
            [
                group,
                f"{int(ds.n_tokens.sel(group=group)):,}",
                *(f"{read_estimate(ds.sel(group=group), name):.3f}" for name in ("explained", "l0", "dead")),
            ]
            for group in GROUPS
        ]
        cells = [read_cells(model, dictionary, part) for part in (first, rest)]
        attributes, conclusion = measure_attributes(*cells)
        clamps, by_colour = measure_clamps(model, dictionary, cells[0], rest[:ASKED])
        told, false = measure_labels(model, described[:HALF])
    version, cases, difference = compare_with_saelens()
    aurocs = ("attribute", "feature", "AUROC, all cells", "AUROC, objects", "linear, all cells")
    parts = {
        "version": version,
        "difference": f"{difference:.1e}",
        "features": dictionary.n_features,
        "active": dictionary.k,
        "layer": dictionary.reads[1],
        "fit": markdown_table(
            ["tokens", "n", "variance explained", "active features", "share never active"], fit
        ),
        "attributes": markdown_table(aurocs, attributes),
        "conclusion": conclusion,
        "clamps": markdown_table(["clamped to", "feature", "answers", "to the colour", "changed"], clamps),
        "by-colour": markdown_table(
            ["colour", "feature", "to the colour", "random, to the colour"], by_colour
        ),
        "told": told,
        "false": false,
    }
    fill_pages({"docs/features.md": parts})


def compare_with_saelens() -> tuple[str, int, float]:
    """Return SAELens' version, the number of dictionaries, and the largest difference from its own outputs."""
    largest, version = 0.0, ""
    cases = sorted(REFERENCE.iterdir())
    for case in cases:
        version = json.loads((case / "cfg.json").read_text())["metadata"]["sae_lens_version"]
        known, dictionary = load_file(case / "outputs.safetensors"), load_dictionary(str(case))
        features = dictionary.encode(known["inputs"])
        output = dictionary.decode(features, known["inputs"])
        for own, other in ((features, known["features"]), (output, known["output"])):
            largest = max(largest, float((own - other).abs().max()))
    return version, len(cases), largest


def read_cells(model: Model, dictionary: Dictionary, samples: Sequence[Sample]) -> Cells:
    """Return the cells of the image of each sample."""
    states: list[torch.Tensor] = []
    objects: list[str] = []
    for start in range(0, len(samples), 16):
        answers = [
            RunAnswer(sample, model.tokenizer(sample.answer)["input_ids"], None)
            for sample in samples[start : start + 16]
        ]
        read = read_states(model, dictionary, (), answers)
        states += [each.read[torch.from_numpy(each.group == 0)] for each in read]
    places = [f"{column}{row}" for row in range(1, 5) for column in COLUMNS]
    for sample in samples:
        by_place = {text.split()[2]: text for text in sample.metadata["objects"][0]}
        objects += [by_place.get(place, "") for place in places]
    joined = torch.cat(states)
    return Cells(
        joined.numpy(), dictionary.encode(joined).numpy(), np.array(objects), np.array(places * len(samples)),
        np.repeat(image_sets(list(samples)), len(places)),
    )  # fmt: skip


def choose_feature(cells: Cells, name: str, among: np.ndarray) -> int:
    """Return the feature with the largest AUROC for an attribute among some cells."""
    own = cells.having(name)[among]
    aucs = [
        float(weighted_auc(column, own)[0]) if column.any() else 0.5 for column in cells.activations[among].T
    ]
    return int(np.argmax(aucs))


def measure_attributes(first: Cells, rest: Cells) -> tuple[list[FeatureRow], str]:
    """Return the rows of the table, and what it says."""
    rows, found, missing = [], [], []
    kinds = {"colour": list(COLOURS), "shape": list(SHAPES), "cell": ["A1", "B2", "C3", "D4"]}
    position: list[tuple[str, float, float]] = []
    for kind, names in kinds.items():
        for name in names:
            shows = rest.objects != ""
            feature = choose_feature(first, name, np.ones(len(first.objects), bool))
            score, own = rest.activations[:, feature], rest.having(name)
            whole = estimate_auc(score, own, rest.sets)
            among = estimate_auc(score[shows], own[shows], rest.sets[shows])
            linear = make_pipeline(
                StandardScaler(), LogisticRegression(C=0.1, max_iter=300, class_weight="balanced")
            )
            linear.fit(first.states, first.having(name))
            known = estimate_auc(linear.decision_function(rest.states), own, rest.sets)
            aucs = (f"{each:.3f}" for each in (whole, among, known))
            rows.append((f"{kind} {name}", feature, *aucs))
            if kind == "cell":
                position.append((name, whole.value, known.value))
            else:
                (found if whole.value >= ENOUGH else missing).append((name, among.value, known.value))
    text = f"{len(found)} of {len(found) + len(missing)} colours and shapes have a feature with an AUROC of {ENOUGH} or more"
    if missing:
        listed = ", ".join(f"{name} (a linear probe has {known:.3f})" for name, _, known in missing)
        text += f"; not {listed}: the states hold it, and the dictionary spends no feature on it alone"
    shared = [name for name, among, _ in (*found, *missing) if among < ENOUGH]
    if shared:
        text += (
            f". Against other objects it is below {ENOUGH} for {', '.join(shared)}: the feature also fires, less, at other "
            "objects"
        )
    best = max(position, key=lambda row: row[1])
    listed = ", ".join(f"{name} {known:.3f}" for name, _, known in position)
    text += (
        f". No feature says which cell it is: the best of the four has an AUROC of {best[1]:.3f} ({best[0]}). Positions enter "
        "this model's attention by rotation, so its stream need not have them. What it has of them, a linear probe finds "
        f"best at the first and the last cell ({listed})."
    )
    return rows, text


def measure_clamps(
    model: Model, dictionary: Dictionary, first: Cells, samples: Sequence[Sample]
) -> tuple[list[FeatureRow], list[FeatureRow]]:
    """Return the rows of the two tables of clamps."""
    shows = first.objects != ""
    alive = np.flatnonzero((first.activations > 0).any(0))
    rng = np.random.default_rng(0)
    chosen = {name: choose_feature(first, name, shows) for name in COLOURS}
    random = {
        name: rng.choice(np.setdiff1d(alive, [chosen[name]]), DRAWS, replace=False).tolist()
        for name in COLOURS
    }
    lengths = dictionary.weights["W_dec"].norm(dim=-1)
    assert float((lengths - 1).abs().max()) < 1e-3
    rows, by_colour = [], []
    for multiple in MULTIPLES:
        turned: dict[str, list[tuple[float, float, int]]] = {"own": [], "random": []}
        for name, feature in chosen.items():
            value = multiple * float(first.activations[first.having(name), feature].mean())
            asked = [sample for sample in samples if _find_colour(str(sample.answer)) != name]
            parts = {"own": [feature], "random": random[name]}
            per_colour = []
            for kind, features in parts.items():
                found = [each for number in features for each in ask(model, asked, number, value, name)]
                turned[kind] += found
                per_colour.append(_share(found, 0))
            if multiple == MULTIPLES[-1]:
                by_colour.append((name, feature, *(f"{share:.2f}" for share in per_colour)))
        for kind, label in (("own", "the colour's"), ("random", "random")):
            shares = (f"{_share(turned[kind], place):.2f}" for place in (0, 1))
            rows.append((f"{multiple} x mean", label, len(turned[kind]), *shares))
    return rows, by_colour


def ask(
    model: Model, samples: Sequence[Sample], feature: int, value: float, colour: str
) -> list[tuple[float, float, int]]:
    """Return for each answer whether it says the colour, whether it is not the true one, and its set of images."""
    parameters = {"dictionary": "tiny-spd", "features": str(feature), "action": "clamp", "tokens": "visual"}
    method = load_method("features", value=value, **parameters)
    answers = generate_batch(model, list(samples), AskSettings(method=[method], max_new_tokens=8), None)
    out = []
    for answer, sample in zip(answers, samples, strict=True):
        said = _find_colour(answer.text)
        out.append(
            (float(said == colour), float(said != _find_colour(str(sample.answer))), int(sample.id[:4]))
        )
    return out


def _find_colour(text: str) -> str | None:
    match = re.search(r"is (\w+)", text)
    return match[1] if match else None


def _share(found: Sequence[tuple[float, float, int]], place: int) -> Estimate[float]:
    values = np.array(found)
    return estimate_mean(values[:, place], values[:, 2].astype(int), (0.0, 1.0))


def measure_labels(model: Model, samples: Sequence[Sample]) -> tuple[int, int]:
    """Return how many features are told by a planted label, and how many runs with shuffled labels tell any."""
    has = np.array(["heart" in str(sample.metadata["objects"][0]) for sample in samples])
    rng = np.random.default_rng(0)
    counts = []
    for number in range(SHUFFLES + 1):
        labels = (rng.permutation(has) if number else has).tolist()
        labelled = [
            sample.model_copy(update={"faithful": not label})
            for sample, label in zip(samples, labels, strict=True)
        ]
        ds = mp.probes.features_run(model, labelled, "tiny-spd")
        counts.append(int(ds.told.any("group").sum()))
    return counts[0], sum(count > 0 for count in counts[1:])


if __name__ == "__main__":
    main()
