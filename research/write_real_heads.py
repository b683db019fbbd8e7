"""Fill the section of docs/components.md on the real model: heads ranked on colors, ablated on colors and on other questions.

make real
PYTHONPATH=scripts:research python research/write_real_heads.py
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
from page import fill_pages
from write_components import measure_right

import mmprobe as mp
from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.benchmarks.things.scene import COLOURS
from mmprobe.notebook import markdown_table
from mmprobe.samples import Sample
from mmprobe.stats.estimate import read_estimate

MODEL = "build/real"
SEED = 5_100_000  # of scenes that no training and no other page uses
RANKED, MEASURED = 6, 12  # pairs
HEADS = 10  # that are ablated together
DRAWS = 4  # of as many other heads
ASKED = {
    "color": "color",
    "where": "place",
    "exist": "whether it is there",
}  # types of questions, and what they ask for
BATCH = 8


def is_right(text: str, sample: Sample) -> bool:
    """Return whether an answer names the true color, place, or yes or no, and no other."""
    said, kind = text.lower(), sample.metadata["type"]
    if kind == "where":
        return said.rstrip(". ").endswith(f"in the {sample.answer}")
    words = set(re.findall(r"[a-z]+", said))
    return words & {*COLOURS, "yes", "no"} == {sample.answer}


def main() -> None:
    """Measure, and fill the page."""
    model = mp.load_model(MODEL, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        samples = mp.load_samples(make_things(Path(folder) / "things", n=RANKED + MEASURED, seed=SEED))
        first = [
            each.model_copy(update={"answer": None})  # the model's own answer is read
            for each in samples
            if each.metadata["type"] == "color" and int(each.id[:4]) < RANKED
        ]
        ranking = mp.probes.rank_heads(
            model, first, by="attribution", top=HEADS, counterfactual="minimal", batch_size=1
        )
        heads = mp.probes.list_components(ranking, HEADS)
        drawn = [mp.probes.random_components(model, heads, seed) for seed in range(DRAWS)]
        rows = []
        for kind, about in ASKED.items():
            rest = [each for each in samples if each.metadata["type"] == kind and int(each.id[:4]) >= RANKED]
            plain, without, *others = (
                measure_right(model, rest, listed, is_right, BATCH) for listed in (None, heads, *drawn)
            )
            values = [each.value for each in others]
            random = f"{np.mean(values):.2f}, {min(values):.2f} to {max(values):.2f}"
            rows.append((about, len(rest), f"{plain:.2f}", f"{without:.2f}", random))
    columns = ("question asks for", "n", "plain", "without the first heads", "without random heads")
    names = ", ".join(each.name.removeprefix("head ") for each in heads.components)
    agree = {name: f"{read_estimate(ranking, name):.2f}" for name in ("stability", "stability_top")}
    parts = {
        "real-table": markdown_table(columns, rows),
        "real-heads": names,
        "real-stability": agree["stability"],
        "real-top": agree["stability_top"],
    }
    fill_pages({"docs/components.md": parts})


if __name__ == "__main__":
    main()
