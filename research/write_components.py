"""Fill docs/components.md: heads that are ranked on one half of drawn images, ablated on the other, beside random heads.

write_head_tests.py fills its sections about benchmarks and organisms, write_real_heads.py that about the real model.

python research/write_components.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from page import fill_pages

import mmprobe as mp
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.interventions import generate_batch, load_method
from mmprobe.models import Model
from mmprobe.models.components import ComponentList
from mmprobe.notebook import markdown_table
from mmprobe.probes.components.ranking import BY
from mmprobe.samples import Sample, image_sets
from mmprobe.settings import AskSettings
from mmprobe.stats.estimate import Estimate, estimate_mean, read_estimate

SEED = 5_000_000  # of images that no training and no other page uses
PAIRS = 8  # of each half
TYPES = ("exists", "colour", "find")
HEADS = 3  # that are ablated together
DRAWS = 100


def main() -> None:
    """Measure, and fill the page."""
    model = mp.load_model("tiny-spd", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        samples = mp.load_samples(
            make_pairs(Path(folder) / "pairs", n=2 * PAIRS, seed=SEED, differences=(1, 1))
        )
        chosen = [sample for sample in samples if sample.metadata["type"] in TYPES]
        first = [sample for sample in chosen if int(sample.id[:4]) < PAIRS]
        rest = [sample for sample in chosen if int(sample.id[:4]) >= PAIRS]
        plain = measure_right(model, rest, None)
        listed = {by: mp.probes.rank_heads(model, first, by=by, top=HEADS) for by in BY}
        heads = {by: mp.probes.list_components(ds, HEADS) for by, ds in listed.items()}
        drawn = [
            measure_right(model, rest, mp.probes.random_components(model, heads["patching"], seed)).value
            for seed in range(DRAWS)
        ]
        rows = []
        for by, ds in listed.items():
            right = measure_right(model, rest, heads[by])
            names = ", ".join(each.name.removeprefix("head ") for each in heads[by].components)
            p = (1 + sum(value <= right.value for value in drawn)) / (DRAWS + 1)
            agree = [f"{read_estimate(ds, name):.2f}" for name in ("stability", "stability_top")]
            rows.append([f"`{by}`", names, *agree, f"{right:.2f}", f"{p:.3f}"])
    low, high = np.quantile(drawn, [0.025, 0.975])
    parts = {
"plain": f"{plain:.2f}",
"table": markdown_table(["by", "first heads", "stability", "same first", "right", "p"], rows),
"random-mean": f"{float(np.mean(drawn)):.2f}",
"random-low": f"{low:.2f}",
"random-high": f"{high:.2f}",
}  # fmt: skip
    fill_pages({"docs/components.md": parts})


def is_drawn_right(text: str, sample: Sample) -> bool:
    """Return whether an answer to a question of the drawn world is right."""
    check = check_sample(text, sample)
    return check is not None and bool(check.correct)


def measure_right(
    model: Model,
    samples: Sequence[Sample],
    components: ComponentList | None,
    is_right: Callable[[str, Sample], bool] = is_drawn_right,
    together: int = 32,
) -> Estimate[float]:
    """Return the share of right answers without some components.

    Args:
        together: number of answers in a batch.
    """
    names = "" if components is None else ", ".join(each.name for each in components.components)
    methods = [load_method("components", components=names)] if names else []
    settings = AskSettings(max_new_tokens=14).acting(methods)
    answers = [
        answer.text
        for start in range(0, len(samples), together)
        for answer in generate_batch(model, samples[start : start + together], settings, None)
    ]
    right = np.array([float(is_right(text, sample)) for text, sample in zip(answers, samples, strict=True)])
    return estimate_mean(right, image_sets(samples))


if __name__ == "__main__":
    main()
