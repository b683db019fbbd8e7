"""Measure attribution patching against exact patching on held-out pairs of the embedded model, and its cost.

python perf/causes.py
python perf/causes.py --pairs 2 --counterfactual unrelated

Each of the pairs is a drawn question on two pictures that the embedded model was not trained on, whole answer. The
counterfactual shows the first picture twice (`minimal`) or another pair (`unrelated`). Effects of all heads are compared
by Spearman's rank correlation, and by how many of the ten largest are among the ten largest estimates.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models import load_model
from mmprobe.probes import attribution_patching, patch_components
from mmprobe.samples import Sample, load_samples

SEED = 1_000_001  # training used seeds below 1,000,000
WAYS: dict[str, dict[str, Any]] = {
    "atp": {"method": "atp"},
    "atp_star, nothing verified": {"method": "atp_star", "verify": 0},
    "atp_star": {"method": "atp_star"},
    "ig 5": {"method": "ig", "steps": 5},
    "ig 10": {"method": "ig", "steps": 10},
}


def draw_pairs(folder: Path, count: int, counterfactual: str) -> list[tuple[Sample, Sample]]:
    """Return clean and corrupt samples."""
    samples = load_samples(make_pairs(folder / "pairs", n=count + 1, seed=SEED, differences=(1, 3)))
    clean = [sample for sample in samples if sample.metadata["type"] == "different"]
    images = [
        [sample.images[0]] * 2 if counterfactual == "minimal" else following.images
        for sample, following in zip(clean, clean[1:], strict=False)
    ]
    return [
        (sample, sample.model_copy(update={"id": f"{sample.id}-other", "images": paths}))
        for sample, paths in zip(clean, images, strict=False)
    ]


def compare(estimate: np.ndarray, exact: np.ndarray) -> tuple[float, int]:
    """Return Spearman's correlation, and how many of the ten largest are shared."""
    top, found = (set(np.argsort(-np.abs(values), axis=None)[:10].tolist()) for values in (exact, estimate))
    return float(spearmanr(estimate.ravel(), exact.ravel()).statistic), len(top & found)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--pairs", type=int, default=20)
    options.add_argument("--counterfactual", choices=("minimal", "unrelated"), default="minimal")
    options.add_argument("--metric", choices=("logprob", "verdict"), default="logprob")
    options.add_argument("--quick", action="store_true", help="one pair, to see that it works")
    arguments = options.parse_args()
    metric: Any = ("Yes", "No") if arguments.metric == "verdict" else "logprob"
    model = load_model("tiny-spd", device="cpu")
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in ("exact", *WAYS)}
    with tempfile.TemporaryDirectory() as folder:
        count = 1 if arguments.quick else arguments.pairs
        for clean, corrupt in draw_pairs(Path(folder), count, arguments.counterfactual):
            began = time.perf_counter()
            exact = patch_components(model, clean, corrupt, metric=metric)
            seconds = time.perf_counter() - began
            rows["exact"].append((1.0, 10, exact.attrs["forward_passes"], 0, seconds))
            for name, way in WAYS.items():
                began = time.perf_counter()
                ds = attribution_patching(model, clean, corrupt, metric=metric, **way)
                seconds = time.perf_counter() - began
                passes = ds.attrs["forward_passes"], ds.attrs["backward_passes"]
                rows[name].append((*compare(ds["effect"].values, exact["effect"].values), *passes, seconds))
    print(f"{count} pairs, {arguments.counterfactual}, {arguments.metric}: 48 heads; means over pairs")
    print("| method | Spearman | top ten | forward | backward | seconds a pair |\n|---|---|---|---|---|---|")
    for name, values in rows.items():
        rho, shared, forward, backward, seconds = np.mean(values, 0)
        print(f"| {name} | {rho:.2f} | {shared:.1f} | {forward:.0f} | {backward:.0f} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
