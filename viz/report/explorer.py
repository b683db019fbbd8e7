"""The report's explorer page: a list of samples, and a data block for each."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import xarray as xr

from mmprobe.cache import Run
from mmprobe.viz.report.elements import LABEL_NAMES, data_block, label_counts, render
from mmprobe.viz.report.explorer_data import sample_blocks, select_ids
from mmprobe.viz.report.images import Images


class Explorer(NamedTuple):
    """The explorer.

    Attributes:
        html: the page.
        data: data blocks of its samples.
        links: fragment of each sample in it, by sample id.
    """

    html: str
    data: list[str]
    links: dict[str, str]


def explorer_page(
    run: Run, labels: dict[str, bool | None], size: int, images: Images, interchange: xr.Dataset | None = None
) -> Explorer:
    """Return the explorer of a run's samples, with at most `size` samples.

    Args:
        labels: by sample id, whether the sample is faithful; None if unknown.
        images: gets the images of the samples.
        interchange: data set of `image_interchange_run`, or None.
    """
    measured = () if interchange is None else set(interchange["sample"].values.tolist())
    selected = select_ids(labels, size, measured)
    blocks = sample_blocks(run, selected, images, interchange)
    shown = selected[: len(blocks)]
    samples = [
        {
            "block": f"sample-{number}",
            "id": name,
            "label": LABEL_NAMES[labels[name]],
            "question": run.sample(name).question,
        }
        for number, name in enumerate(shown)
    ]
    html = render(
        "explorer.html",
        note=_size_note(len(run), len(shown), len(shown) < len(selected), bool(measured)),
        takes_more=len(shown) == len(selected) < len(run),
        filters=label_counts(Counter(labels[name] for name in shown)),
        samples=samples,
    )
    data = [data_block(f"sample-{number}", block) for number, block in enumerate(blocks)]
    return Explorer(html, data, {name: f"explorer/{name}" for name in shown})


def _size_note(finished: int, shown: int, is_full: bool, is_measured: bool) -> str:
    """Return how many samples the explorer shows and why, or nothing if it shows all."""
    if shown == finished:
        return ""
    reason = " More samples would make the file too large." if is_full else ""
    then = "then those with measured causes, in" if is_measured else "then in"
    return (
        f"Shows {shown} of {finished} samples: unfaithful samples first, {then} the order of the run.{reason}"
    )
