"""Measure what causal probes cost, and attribution patching against exact patching on held-out pairs.

python perf/patching.py
python perf/patching.py --pairs 2 --counterfactual unrelated

Each of the pairs is a drawn question on two images that the embedded model was not trained on, whole answer. The
counterfactual shows the first image twice (`minimal`) or another pair (`unrelated`). Effects of all heads are compared
by Spearman's rank correlation, and by how many of the ten largest are among the ten largest estimates, with 95 %
intervals over pairs. The pairs are others than those on which the number of verified heads was chosen. One row measures
several pairs in each pass, as probes over a run do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy.stats import spearmanr
from toys import parser
from transformer_lens.tools.analysis.attribution_patching import attribution_patch

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models import Model, load_model
from mmprobe.notebook import markdown_lines
from mmprobe.probes import (
    attention_knockout,
    attention_routes,
    attribution_patching,
    image_interchange,
    patch_components,
)
from mmprobe.probes.answers import read_answer
from mmprobe.probes.components.attribution_patching import AttributionSettings, estimate_pairs
from mmprobe.probes.components.pairs import read_pairs
from mmprobe.samples import Sample, load_samples
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.stats.intervals import QUANTITY
from mmprobe.traces.engines.transformer_lens import load_bridge

CHOSEN_ON = 1_000_001  # on ten pairs of this seed, the default of 20 verified heads was chosen
HELD_OUT = 1_500_001  # training used seeds below 1,000,000
FEW = 5  # pairs on which all ways are measured
BATCH = 4  # pairs in a pass, the default over a run
Probing = Callable[[Model, Sample, Sample], xr.Dataset]
ESTIMATES: dict[str, dict[str, Any]] = {
    "atp": {"method": "atp"},
    "atp_star, nothing verified": {"verify": 0},
    "atp_star, 20 verified (the default)": {},
    "ig, 5 steps": {"method": "ig", "steps": 5},
}
ON_ALL = (
    "patch_components, 48 heads",
    "attribution_patching, atp",
    "attribution_patching, atp_star, 20 verified (the default)",
)
COLUMNS = ("probe", "pairs", "forward", "backward", "seconds a pair", "Spearman", "top ten")


def draw_pairs(folder: Path, count: int, counterfactual: str, seed: int) -> list[tuple[Sample, Sample]]:
    """Return clean and corrupt samples."""
    samples = load_samples(make_pairs(folder / "pairs", n=count + 1, seed=seed, differences=(1, 3)))
    clean = [sample for sample in samples if sample.metadata["type"] == "different"]
    images = [
        [sample.images[0]] * 2 if counterfactual == "minimal" else following.images
        for sample, following in zip(clean, clean[1:], strict=False)
    ]
    return [
        (sample, sample.model_copy(update={"id": f"{sample.id}-other", "images": paths}))
        for sample, paths in zip(clean, images, strict=False)
    ]


def compare(estimate: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Return Spearman's correlation, and how many of the ten largest are shared."""
    top, found = (set(np.argsort(-np.abs(values), axis=None)[:10].tolist()) for values in (exact, estimate))
    return float(spearmanr(estimate.ravel(), exact.ravel()).statistic), len(top & found)


class ImagesBridge:
    """TransformerLens' model of tokens over prompts with images: a token is the number of a prompt."""

    def __init__(self, bridge: Any, prompts: list[dict[str, torch.Tensor]]):
        self.bridge, self.prompts = bridge, prompts
        self.cfg, self.hook_dict, self.hooks = bridge.cfg, bridge.hook_dict, bridge.hooks

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.bridge.original_model(**self.prompts[int(tokens)], use_cache=False).logits


def peer(model: Model, clean: Sample, corrupt: Sample) -> xr.Dataset:
    """Return TransformerLens' attribution patching of all heads and FFNs, as the loss by the heads.

    It takes the gradient at its second prompt, and says what the metric gains.
    """
    own = read_answer(model, clean, clean.answer)
    other = read_answer(model, corrupt, own.row.ids.tolist())
    steps = len(own.row.ids)

    def logprob(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -steps - 1 : -1].float().log_softmax(-1).gather(1, own.row.ids[:, None]).sum()

    bridge = ImagesBridge(load_bridge(model), [own.inputs, other.inputs])
    with torch.enable_grad():
        result = attribution_patch(bridge, torch.tensor([[1]]), torch.tensor([[0]]), logprob)
    effect = np.zeros((model.n_layers, model.n_heads))
    for node, score in result.node_scores.items():
        if node.kind == "attn_head_out":
            effect[node.layer, node.head] -= score
    passes = {"forward_passes": 2, "backward_passes": 1}
    return xr.Dataset({"effect": (("layer", "head"), effect)}, attrs=passes)


def knock_out(model: Model, clean: Sample, corrupt: Sample) -> xr.Dataset:
    ds = attention_knockout(model, clean, answer=clean.answer)
    return ds.assign_attrs(forward_passes=2 + model.n_layers)


def list_ways(metric: Any) -> dict[str, Probing]:
    """Return the measured probes by name; the first is the exact one."""

    def estimate(options: dict[str, Any], *pair: Any) -> xr.Dataset:
        return attribution_patching(*pair, metric=metric, **options)

    ways: dict[str, Probing] = {"patch_components, 48 heads": partial(patch_components, metric=metric)}
    ways |= {f"attribution_patching, {name}": partial(estimate, way) for name, way in ESTIMATES.items()}
    if metric == "logprob":
        ways["TransformerLens' attribution_patch"] = peer
    return ways | {
        "image_interchange": image_interchange,
        "attention_knockout": knock_out,
        "attention_routes": attention_routes,
    }


def measure_pair(
    ways: dict[str, Probing], model: Model, clean: Sample, corrupt: Sample
) -> dict[str, list[float]]:
    """Return forward and backward passes, seconds, and agreement with the first way, by way."""
    rows: dict[str, list[float]] = {}
    exact = None
    for name, way in ways.items():
        began = time.perf_counter()
        ds = way(model, clean, corrupt)
        seconds = time.perf_counter() - began
        exact = ds["effect"].values if exact is None else exact
        alike = ds["effect"].shape == exact.shape if "effect" in ds else False
        agreed = compare(ds["effect"].values, exact) if alike else (np.nan, np.nan)
        rows[name] = [ds.attrs["forward_passes"], ds.attrs.get("backward_passes", 0), seconds, *agreed]
    return rows


def measure_batch(model: Model, pairs: list[tuple[Sample, Sample]], metric: Any) -> list[list[float]]:
    """Return forward and backward passes a pair and seconds a pair of AtP over all pairs at once, by pair."""
    began = time.perf_counter()
    given = [(clean, corrupt, None) for clean, corrupt in pairs]
    sets = estimate_pairs(read_pairs(model, given, metric), AttributionSettings("atp"))
    seconds = (time.perf_counter() - began) / len(pairs)
    return [[ds.attrs["forward_passes"], ds.attrs["backward_passes"], seconds, np.nan, np.nan] for ds in sets]


def write_row(name: str, measured: list[list[float]]) -> list[object]:
    """Return the cells of a row: means over pairs, the median of the seconds, and intervals of the agreement."""
    values = np.array(measured)
    forward, backward = values[:, :2].mean(0)
    row: list[object] = [
        name,
        len(values),
        f"{forward:.0f}",
        f"{backward:.0f}",
        f"{np.median(values[:, 2]):.2f}",
    ]
    if np.isnan(values[:, 3:]).any():
        return [*row, "", ""]
    agreement = estimate_mean(values[:, 3:], None, QUANTITY)
    for column, best in enumerate((1, 10)):
        own = agreement[column]
        row.append(f"{Estimate(own.value, own.low, min(own.high, best)):.2f}")
    return row


def lines(options: Any) -> Iterator[str]:
    """Measure, and yield the lines of the table and one that says what was measured."""
    metric: Any = ("Yes", "No") if options.metric == "verdict" else "logprob"
    model, ways = load_model("tiny-spd", device="cpu"), list_ways(metric)
    rows: dict[str, list[list[float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        count = 1 if options.quick else options.pairs
        pairs = draw_pairs(Path(folder), count, options.counterfactual, options.seed)
        if not options.quick:
            measure_pair(ways, model, *pairs[0])  # warms up
        for number, pair in enumerate(pairs):
            few = ways if number < FEW else {name: way for name, way in ways.items() if name in ON_ALL}
            for name, row in measure_pair(few, model, *pair).items():
                rows[name].append(row)
        for start in range(0, min(len(pairs), 2 * BATCH), BATCH):
            batch = measure_batch(model, pairs[start : start + BATCH], metric)
            rows.setdefault(f"attribution_patching, atp, {BATCH} pairs in a pass", []).extend(batch)
    yield from markdown_lines(COLUMNS, (write_row(name, measured) for name, measured in rows.items()))
    yield ""
    yield f"Counterfactual {options.counterfactual}, metric {options.metric}, seed {options.seed}."


def measure(quick: bool) -> Iterator[str]:
    """Yield the lines about minimal pairs that are held out."""
    options = {"pairs": 20, "counterfactual": "minimal", "metric": "logprob", "seed": HELD_OUT}
    return lines(SimpleNamespace(quick=quick, **options))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--pairs", type=int, default=20)
    options.add_argument("--counterfactual", choices=("minimal", "unrelated"), default="minimal")
    options.add_argument("--metric", choices=("logprob", "verdict"), default="logprob")
    options.add_argument(
        "--seed", type=int, default=HELD_OUT, help=f"of the pairs; {CHOSEN_ON} chose the default"
    )
    for line in lines(options.parse_args()):
        print(line, flush=True)
