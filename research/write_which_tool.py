"""Fill docs/which-tool.md: which tool answers which question rightly, where the truth is known by construction; and the measured
part of docs/benchmarks/swap.md.

python research/write_which_tool.py --n 10

More pairs of images (`--n`) give narrower intervals and take longer.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import fill_pages
from sklearn.linear_model import LogisticRegression
from write_components import measure_right

import mmprobe as mp
from mmprobe.analyses import token_activation
from mmprobe.benchmarks.answers.texts import normalize_words
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.scene import SHAPES
from mmprobe.contents import declared_objects
from mmprobe.diagnosis.bench.run import count_passes
from mmprobe.models import Model
from mmprobe.models.components import Component, ComponentList
from mmprobe.models.dictionaries import load_dictionary
from mmprobe.models.reading import Reading
from mmprobe.notebook import markdown_table
from mmprobe.probes.components.ranking import BY
from mmprobe.probes.logit_lens import make_lens
from mmprobe.probes.tokens import touched_cells
from mmprobe.probes.visual_tokens.cells import States, read_cells
from mmprobe.samples import Sample, image_sets
from mmprobe.settings import AskSettings
from mmprobe.stats.auc import estimate_auc, weighted_auc
from mmprobe.stats.estimate import Estimate, estimate_from_sums, estimate_mean
from mmprobe.stats.intervals import FRACTION, percentile_interval
from mmprobe.traces import answer

COLUMNS = ("tool", "right", "false yes", "passes", "n")
SEED = 7_200_000  # of images that no training and no other page uses
USED = ("control-true-0", "control-hard-0", "control-true-1")
UNUSED = ("blind-rolled-0", "blind-likely-0", "looks-unused-kept-0", "looks-unused-decoy-0")
LAYER = 1  # of the linear probe: docs/visual-tokens.md has all layers
DICTIONARY = "tiny-spd"  # whose features are read and ablated, in organisms, too
DEAD, FIRST = 4, 4  # heads that are cut off; first heads of a ranking that count
LOST = 0.1  # share of right answers without which a head counts as a carrier


@dataclass
class ToolCases:
    """Scores of a tool for cases with a known truth.

    Attributes:
        scores: by tool, [case]; NaN where a tool says nothing.
        truth: bool [case].
        sets: int [case], the set of images.
        passes: by tool, forward passes for each case.
        right: share of right answers; NaN where it is not the truth.
    """

    scores: dict[str, list[float]]
    truth: list[bool]
    sets: list[int]
    passes: dict[str, float]
    right: float = float("nan")


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=10, help="pairs of images, of each half")
    n = parser.parse_args().n
    torch.set_num_threads(1)
    model = mp.load_model("tiny-spd", device="cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = mp.load_samples(make_pairs(folder / "pairs", n=2 * n, seed=SEED, differences=(1, 1)))
        exists = ask_shapes([each for each in samples if each.metadata["type"] == "exists"])
        seen = tabulate(measure_answers(model, exists, folder / "seen"), "answer")
        colour = [each for each in samples if each.metadata["type"] == "colour"]
        parts = [
            measure_answers(
                mp.load_model(f"organism:{name}", device="cpu"), colour, folder / name, name in USED
            )
            for name in (*USED, *UNUSED)
        ]
        joined = join(parts)
        used = tabulate(joined, None)
        named = dict(zip((*USED, *UNUSED), (part.right for part in parts), strict=True))
        for name, share in named.items():
            if (share > 0.5) != (name in USED):
                raise SystemExit(f"{name}: {share:.2f} of its answers are right, which contradicts its place")
        right = ", ".join(f"{name} {share:.2f}" for name, share in named.items())
        asked = [each for each in samples if each.metadata["type"] in ("exists", "colour")]
        heads = rank(model, asked)
    ends = {
        key: value
        for name, table in (("seen", seen), ("used", used))
        for key, value in zip((f"best-{name}", f"chance-{name}"), conclude(table), strict=True)
    }
    parts = {
"seen": seen,
"use": used,
"right": right,
**ends,
**heads,
}  # fmt: skip
    told = {f"auc-{name}": f"{measure_auc(joined, name):.3f}" for name in ("swap", "interchange")}
    pages = {
        "docs/which-tool.md": parts | {"n": n},
        "docs/benchmarks/swap.md": told | {"n-answers": len(joined.truth)},
    }
    fill_pages(pages)


def ask_shapes(samples: Sequence[Sample]) -> list[Sample]:
    """Return each sample with a question about a shape that its images show, and one about another shape."""
    out = []
    for sample in samples:
        asked = next(shape for shape in SHAPES if shape in sample.question)
        drawn = {text.split()[1] for image in sample.metadata["objects"] for text in image}
        for shape in (next(iter(sorted(drawn))), next((each for each in SHAPES if each not in drawn), None)):
            if shape is not None:
                out.append(
                    sample.model_copy(
                        update={
                            "id": f"{sample.id}-{shape}", "question": sample.question.replace(asked, shape),
                            "answer": None, "regions": [],
                            "metadata": sample.metadata | {"shape": shape, "drawn": shape in drawn},
                        }
                    )
                )  # fmt: skip
    return out


def measure_answers(
    model: Model, samples: Sequence[Sample], out: Path, used: bool | None = None
) -> ToolCases:
    """Return what each tool says of each answer of a model.

    Args:
        used: whether the model uses its images; None where the truth is whether the shape is drawn.
    """
    spent: dict[str, float] = {}  # passes of each step, for each answer

    @contextmanager
    def count(step: str) -> Iterator[None]:
        with count_passes(model) as passes:
            yield
        spent[step] = passes[0] / len(samples)

    with count("answer"):
        given = {
            name: each.token_ids
            for name, each in answer(model, samples, None, AskSettings(max_new_tokens=24, batch_size=8))
        }
    with count("trace"):
        run = mp.trace(model, samples, out=out, capture="default", answers=given, batch_size=8)
    with count("states"):
        states = {each.id: read_cells(model, [each], range(model.n_layers))[0] for each in samples}
    sets = image_sets(samples)
    words = {each.id: find_words(each) for each in samples}
    half = sets % 2 == 0
    shown = [(each, states[each.id]) for each, first in zip(samples, half, strict=True) if first]
    lens = choose_lens(
        model, [states[each.id] for each in samples], [words[each.id] for each in samples], half
    )
    probe, feature = fit_probe(shown), choose_features(shown)
    found: dict[str, list[float]] = {
        "attention": [float(run[each.id].attention_visual.mean(("step", "layer")).max()) for each in samples],
        "TAM": [
            float(np.nanmax(token_activation(run[each.id])["tam"].mean("step").values)) for each in samples
        ],
        "logit lens": [lens(states[each.id], words[each.id]) for each in samples],
        "linear probe": [probe(states[each.id], words[each.id]) for each in samples],
        "feature": [activate(states[each.id], feature[words[each.id]]) for each in samples],
    }
    with count("ablation"):
        found["feature ablated"] = [
            float(
                mp.probes.feature_effects(
                    model, each, [feature[words[each.id]]], DICTIONARY, answer=given[each.id]
                ).effect.sum()
            )
            for each in samples
        ]
    with count("interchange"):
        found["interchange"] = [
            read_loss(model, each, find_other(samples, sets, number), given[each.id])
            for number, each in enumerate(samples)
        ]
    if used is None:
        found["answer"] = [float(run[each.id].answer.strip().lower().startswith("yes")) for each in samples]
    else:
        with count("swap"):
            others = [
                each.model_copy(update={"images": find_other(samples, sets, number).images})
                for number, each in enumerate(samples)
            ]
            swapped = dict(
                answer(model, others, None, AskSettings(max_new_tokens=24, batch_size=8, shared_prefix=False))
            )
            found["swap"] = [
                float(normalize_words(swapped[each.id]) != normalize_words(run[each.id].answer))
                for each in samples
            ]
        with count("patching"):
            ds = mp.probes.attribution_patching_run(model, run, "atp")
        effect = ds["effect_by_sample"].max(("layer", "head")).to_series().to_dict()
        found["patching"] = [float(effect.get(each.id, np.nan)) for each in samples]
    steps = {  # that a tool needs
        "attention": ("answer", "trace"), "TAM": ("answer", "trace"), "logit lens": ("states",),
        "linear probe": ("states",), "feature": ("states",), "feature ablated": ("answer", "ablation"),
        "interchange": ("answer", "interchange"), "swap": ("answer", "swap"), "answer": ("answer",), "patching": ("answer", "patching"),
    }  # fmt: skip
    truth = [bool(each.metadata["drawn"]) if used is None else used for each in samples]
    passes = {name: sum(spent[step] for step in steps[name]) for name in found}
    checks = [check_sample(run[each.id].answer, each) for each in samples]
    right = float(np.mean([bool(each is not None and each.correct) for each in checks]))
    return ToolCases(found, truth, sets.tolist(), passes, right)


def find_other(samples: Sequence[Sample], sets: np.ndarray, number: int) -> Sample:
    """Return the next sample about other images whose true answer is another one, or the next one."""
    order = [
        each for each in np.roll(np.arange(len(samples)), -number).tolist() if sets[each] != sets[number]
    ]
    return samples[next((each for each in order if samples[each].answer != samples[number].answer), order[0])]


def find_words(sample: Sample) -> str:
    """Return the shape that a question is about."""
    return next((shape for shape in SHAPES if shape in sample.question), "")


def choose_lens(
    model: Model, states: Sequence[States], words: Sequence[str], half: np.ndarray
) -> Callable[[States, str], float]:
    """Return the logit lens at the layer whose scores vary most between words that are drawn and others, on a half."""
    lens, layers = make_lens(model), range(model.n_layers)
    ids = {shape: model.tokenizer(f" {shape}", add_special_tokens=False)["input_ids"][0] for shape in SHAPES}

    def score(each: States, word: str, layer: int) -> float:
        logits = lens(each.values[layer])
        return float(logits.log_softmax(-1)[:, ids[word]].max()) if word in ids else np.nan

    with torch.no_grad():
        spread = [
            np.nanstd(
                [score(each, word, layer) for each, word, own in zip(states, words, half, strict=True) if own]
            )
            for layer in layers
        ]
    best = int(np.nanargmax(spread))
    return lambda each, word: score(each, word, best)


def fit_probe(shown: Sequence[tuple[Sample, States]]) -> Callable[[States, str], float]:
    """Return the largest probability over cells that a cell shows a shape, by a regression on other images."""
    vectors, labels = [], []
    for sample, states in shown:
        own = np.full(states.values.shape[1], "none", dtype=object)
        for thing, region in declared_objects(sample, states.prompt.sizes):
            own[touched_cells(states.prompt, region)] = thing.words["thing"]
        vectors.append(states.values[LAYER].numpy())
        labels += own.tolist()
    fitted = LogisticRegression(max_iter=2000).fit(np.concatenate(vectors), labels)
    known = fitted.classes_.tolist()

    def score(states: States, word: str) -> float:
        if word not in known:
            return float("nan")
        return float(fitted.predict_proba(states.values[LAYER].numpy())[:, known.index(word)].max())

    return score


def choose_features(shown: Sequence[tuple[Sample, States]]) -> dict[str, int]:
    """Return for each shape the feature whose activation tells its cells best from the others."""
    dictionary, active, objects = load_dictionary(DICTIONARY), list[np.ndarray](), list[str]()
    for sample, states in shown:
        own = np.full(states.values.shape[1], "none", dtype=object)
        for thing, region in declared_objects(sample, states.prompt.sizes):
            own[touched_cells(states.prompt, region)] = thing.words["thing"]
        active.append(dictionary.encode(states.values[dictionary.reads[1]]).numpy())
        objects += own.tolist()
    values, names = np.concatenate(active), np.array(objects)
    out = {}
    for shape in SHAPES:
        own = names == shape
        aucs = [float(weighted_auc(column, own)[0]) if own.any() else 0.5 for column in values.T]
        out[shape] = int(np.argmax(aucs))
    return out


def activate(states: States, feature: int) -> float:
    """Return the largest activation of a feature over cells."""
    dictionary = load_dictionary(DICTIONARY)
    return float(dictionary.encode(states.values[dictionary.reads[1]])[:, feature].max())


def read_loss(model: Model, sample: Sample, other: Sample, ids: list[int]) -> float:
    """Return how much of its answer's log-probability a question loses with the images of another sample."""
    changed = sample.model_copy(update={"images": other.images[: len(sample.images)]})
    own, lost = (
        float(Reading(model, model.batch([each]), [ids]).logprobs()[0].sum()) for each in (sample, changed)
    )
    return own - lost


def join(parts: Sequence[ToolCases]) -> ToolCases:
    """Return the cases of several models together."""
    return ToolCases(
        {name: [value for part in parts for value in part.scores[name]] for name in parts[0].scores},
        [value for part in parts for value in part.truth],
        [value for part in parts for value in part.sets],
        {name: float(np.mean([part.passes[name] for part in parts])) for name in parts[0].passes},
    )


def measure_auc(cases: ToolCases, tool: str) -> Estimate[float]:
    """Return the area under the ROC curve of a tool's scores."""
    return estimate_auc(np.array(cases.scores[tool]), np.array(cases.truth), np.array(cases.sets))


def tabulate(cases: ToolCases, given: str | None) -> str:
    """Return the table of a question.

    Args:
        given: the tool whose scores are yes and no already.
    """
    rows: list[tuple[object, ...]] = []
    truth, sets = np.array(cases.truth), np.array(cases.sets)
    for name, listed in cases.scores.items():
        scores = np.array(listed)
        first, rest = ((sets % 2 == part) & np.isfinite(scores) for part in (0, 1))
        limit = 0.5 if name == given else choose_limit(scores[first], truth[first])
        said = scores > limit
        counts = np.column_stack([truth & said, truth, ~truth & ~said, ~truth])[rest].astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            right = estimate_from_sums(balance, counts, sets[rest], FRACTION)
        no = rest & ~truth
        wrong = estimate_mean(said[no].astype(float), sets[no])
        rows.append((name, f"{right:.2f}", f"{wrong:.2f}", f"{cases.passes[name]:.1f}", rest.sum()))
    return markdown_table(COLUMNS, rows)


def conclude(tools: str) -> tuple[str, str]:
    """Return the tools of a table that are most often right, and those that cannot be told from chance."""
    cells = [[cell.strip() for cell in row.strip("| ").split("|")] for row in tools.splitlines()[2:]]
    values = {row[0]: (float(row[1].split()[0]), float(row[1].split("[")[1].split(",")[0])) for row in cells}
    most = max(value for value, _ in values.values())
    best = ", ".join(f"{name} ({value:.2f})" for name, (value, _) in values.items() if value == most)
    return best, ", ".join(name for name, (_, low) in values.items() if low <= 0.5) or "none"


def balance(sums: np.ndarray) -> np.ndarray:
    """Return the mean of the shares of yes and of no that are found, from [..., found yes, yes, found no, no]."""
    return np.asarray((sums[..., 0] / sums[..., 1] + sums[..., 2] / sums[..., 3]) / 2)


def choose_limit(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the threshold with the largest mean of the shares of yes and of no that are found."""
    ends = np.unique(scores)
    limits = [ends[0] - 1, *(ends[:-1] + np.diff(ends) / 2), ends[-1]]
    return float(
        max(limits, key=lambda limit: (scores > limit)[truth].mean() + (scores <= limit)[~truth].mean())
    )


def rank(model: Model, samples: Sequence[Sample]) -> Mapping[str, Any]:
    """Return the table of rankings of heads, with what it is about, by name."""
    half = image_sets(samples) % 2
    first, rest = ([each for each, own in zip(samples, half, strict=True) if own == part] for part in (0, 1))
    by_attention = mp.probes.list_components(mp.probes.rank_heads(model, first, by="attention"))
    needed = find_carriers(model, rest)
    looked = ComponentList(
        components=[each for each in by_attention.components if each.name not in needed][:DEAD]
    )
    cut = cut_heads(model, looked)
    carriers = find_carriers(cut, rest)
    if not carriers:
        raise SystemExit(f"no head is needed for {LOST} of the answers: raise --n, or lower LOST")
    dead = {each.name for each in looked.components}
    count = cut.n_layers * cut.n_heads
    rows: list[tuple[object, ...]] = []
    chance: list[str] = []
    for by in BY:
        with count_passes(cut) as passes:
            ds = mp.probes.rank_heads(cut, first, by=by)
        values, sets = ds["score_by_sample"].values, image_sets(first)
        names = [f"head {layer}.{head}" for layer in range(cut.n_layers) for head in range(cut.n_heads)]

        def find_shares(
            weights: np.ndarray, values: np.ndarray = values, names: list[str] = names
        ) -> np.ndarray:
            """Return the shares of carriers and of cut heads among the first, [2, draw]."""
            shares = []
            for mean in np.tensordot(weights / weights.sum(1, keepdims=True), values, 1):
                order = [names[place] for place in np.argsort(-mean.ravel())]
                shares.append(
                    (
                        len(carriers & set(order[:FIRST])) / len(carriers),
                        len(dead & set(order[: 2 * FIRST])) / len(dead),
                    )
                )
            return np.array(shares).T

        right, wrong = find_shares(np.ones((1, len(first))))[:, 0]
        low, high = percentile_interval(find_shares, sets, len(first))
        found = (
            f"{share:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]"
            for share, ends in zip((right, wrong), zip(low, high, strict=True), strict=True)
        )
        rows.append((by, *found, f"{passes[0] / len(first):.1f}", len(first)))
        chance += [by] if round(wrong, 2) > 0 else []
    heads = markdown_table(COLUMNS, rows)
    return {
        "heads": heads, "best-heads": conclude(heads)[0], "chance-heads": ", ".join(chance) or "none", "dead-heads": short(dead), "carriers": short(carriers) or "none",
        "n-carriers": len(carriers), "n-heads": count, "chance": f"{FIRST / count:.2f}", "chance-dead": f"{2 * FIRST / count:.2f}",
    }  # fmt: skip


def find_carriers(model: Model, samples: Sequence[Sample]) -> set[str]:
    """Return the heads without which at least the share LOST of a model's answers is no longer right."""
    plain = measure_right(model, samples, None).value
    names = [f"head {layer}.{head}" for layer in range(model.n_layers) for head in range(model.n_heads)]
    return {
        name
        for name in names
        if plain - measure_right(model, samples, ComponentList(components=[Component(name=name)])).value
        >= LOST
    }


def short(names: set[str]) -> str:
    """Return heads in order, as 5.0, 5.2."""
    return ", ".join(sorted(name.removeprefix("head ") for name in names))


def cut_heads(model: Model, listed: ComponentList) -> Model:
    """Return a copy of a model in which some heads write nothing."""
    hf = copy.deepcopy(model.hf)
    layers = model.family.decoder(hf).layers
    with torch.no_grad():
        for each in listed.components:
            assert each.number is not None
            module = layers[each.layer].self_attn
            dim = module.head_dim
            module.o_proj.weight[:, each.number * dim : (each.number + 1) * dim] = 0
    return replace(model, hf=hf)


if __name__ == "__main__":
    main()
