"""Fill docs/visual-tokens.md: what lenses find in the visual tokens of drawn images, with and without a planted cause.

python research/write_visual_tokens.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from page import fill_pages

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models import Model
from mmprobe.notebook import markdown_table
from mmprobe.probes.answers import find_ids
from mmprobe.probes.visual_tokens.run import LENSES
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import Estimate, estimate_mean, read_estimate

MODELS = (
    "tiny-spd", "organism:control-true-0", "organism:control-hard-0",
    "organism:blind-rolled-0", "organism:blind-likely-0", "organism:misperceives-swapped-0",
)  # fmt: skip
SEED = 4_000_000  # of images that no training and no other page uses
MEASURES = {"named": "own", "elsewhere": "other cells", "shuffled": "shuffled", "cell_auc": "AUC"}
HALF = 24  # images on which the layer is chosen, and as many others on which it is measured
KINDS = {"colour": "colours", "thing": "shapes"}


class LensMeasures(NamedTuple):
    """What was measured of a model: on images that choose the layers, and on others; and what it says itself."""

    chosen: xr.Dataset
    held_out: xr.Dataset
    says: Estimate[float]


def main() -> None:
    """Measure all models, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        samples = mp.load_samples(make_pairs(Path(folder) / "pairs", n=2 * HALF, seed=SEED))
        drawn = [
            sample.model_copy(update={"answer": None})  # so that the bank is of the model's own answers
            for sample in samples
            if sample.metadata["type"] == "describe"
        ]
        measured = {name: measure(mp.load_model(name, device="cpu"), drawn) for name in MODELS}
    first = measured[MODELS[0]].held_out
    parts = {
        "top": first.attrs["top"],
        "by-layer": table_by_layer(first),
        "by-model": table_by_model(measured),
        "conclusions": conclude(measured),
    }
    fill_pages({"docs/visual-tokens.md": parts})


def measure(model: Model, samples: list[Sample]) -> LensMeasures:
    """Return what was measured of a model."""
    parts = [mp.probes.visual_tokens_run(model, part) for part in (samples[:HALF], samples[HALF:])]
    shares: list[float] = []
    for sample in samples[HALF:]:
        said = model.tokenizer.decode(find_ids(model, sample), skip_special_tokens=True).lower()
        words = [word for text in sample.metadata["objects"][0] for word in text.split()[:2]]
        shares.append(sum(word in said for word in words) / len(words))
    says = estimate_mean(np.array(shares), image_sets(samples[HALF:]), (0.0, 1.0))
    return LensMeasures(*parts, says)


def table_by_layer(ds: xr.Dataset) -> str:
    """Return the table of one model: each lens and layer, colours and shapes together."""
    rows = []
    for lens in LENSES:
        for layer in ds.layer.values.tolist():
            rows.append([f"`{lens}`", layer, *_format(ds.sel(lens=lens, layer=layer, kind="all"))])
    return markdown_table(["lens", "layer", *MEASURES.values()], rows)


def table_by_model(measured: dict[str, LensMeasures]) -> str:
    """Return the table of all models, at the layer that other images chose."""
    rows = []
    for name, each in measured.items():
        for kind, words in KINDS.items():
            for lens in LENSES:
                layer = choose_layer(each.chosen, lens, kind)
                cells = _format(each.held_out.sel(lens=lens, layer=layer, kind=kind))
                rows.append([f"`{name}`", f"{each.says:.2f}", words, f"`{lens}`", layer, *cells])
    return markdown_table(["model", "says", "words", "lens", "layer", *MEASURES.values()], rows)


def choose_layer(ds: xr.Dataset, lens: str, kind: str) -> int:
    """Return the layer with the highest AUC."""
    return int(ds.cell_auc.sel(lens=lens, kind=kind).idxmax("layer"))


def _format(ds: xr.Dataset) -> list[str]:
    return [f"{read_estimate(ds, name):.2f}" for name in MEASURES]


def conclude(measured: dict[str, LensMeasures]) -> str:
    """Return for each model which lenses find words at their own cells."""
    lines = []
    for name, each in measured.items():
        parts = []
        for kind, words in KINDS.items():
            found = []
            for lens in LENSES:
                ds = each.held_out.sel(lens=lens, layer=choose_layer(each.chosen, lens, kind), kind=kind)
                auc = read_estimate(ds, "cell_auc")
                if auc.low > 0.5:
                    found.append((auc.value, f"`{lens}` ({auc:.2f})"))
            listed = ", ".join(text for _, text in sorted(found, reverse=True)) or "no lens"
            parts.append(f"{words} by {listed}")
        lines.append(f"- `{name}` says {each.says:.0%} of the words; AUC above chance: {'; '.join(parts)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
