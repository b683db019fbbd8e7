"""What one answer loses with other images: step by step, in its regions, and in places beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmprobe.analyses.attention_decay import slope_over_steps
from mmprobe.cache import Trace
from mmprobe.models import Model
from mmprobe.models.chat import build_chat
from mmprobe.probes.interchange.answer_logprobs import read_logprobs
from mmprobe.probes.interchange.counterfactual_images import Images
from mmprobe.probes.interchange.image_interchange import cover_cells, exchange_regions
from mmprobe.probes.teacher_forcing import check_model
from mmprobe.samples import Region


def exchange_images(model: Model, trace: Trace, others: Images, rng: np.random.Generator) -> dict[str, float]:
    """Return what an answer loses when its images, or parts of them, are exchanged for others, in nat.

    It takes one forward pass over two to four rows.

    Args:
        trace: of a sample with images.
        others: other images of the same sizes.
        rng: draws the places beside the regions.

    Returns:
        - interchange: mean over the answer's tokens, all images exchanged
        - interchange_slope: its least-squares slope over steps; NaN for fewer than two steps
        - regions: of the whole answer, all regions exchanged; NaN without regions
        - elsewhere: of the whole answer, as many cells of the same images exchanged beside the regions; NaN
          where there is no room

    Raises:
        InputError: another model made the trace.
    """
    sample, ids = trace.sample, trace.steps["id"].values.tolist()
    chat = build_chat(sample)
    prompt = model.prompt(sample)
    boxes = cover_cells(prompt, sample.regions) if sample.regions else []
    moved = move_regions(boxes, [image.size for image in chat.images], rng)
    parts = [part for part in (boxes, moved) if part]
    variants = [chat.images, others, *(exchange_regions(chat.images, others, part) for part in parts)]
    chats = [chat._replace(images=images) for images in variants]
    own, *exchanged = (row.numpy().astype(float) for row in read_logprobs(model, chats, [ids] * len(chats)))
    check_model(model, trace, own)
    losses = [own - row for row in exchanged]
    return {
        "interchange": float(losses[0].mean()),
        "interchange_slope": float(slope_over_steps(losses[0])),
        "regions": float(losses[1].sum()) if boxes else np.nan,
        "elsewhere": float(losses[2].sum()) if moved else np.nan,
    }


def move_regions(
    boxes: Sequence[Region], sizes: Sequence[tuple[int, int]], rng: np.random.Generator
) -> list[Region]:
    """Return boxes of the same sizes at random places of the same images, none over any of the boxes.

    A box moves by a multiple of its own width and height, so it covers whole visual tokens again.

    Args:
        boxes: of whole visual tokens.
        sizes: width and height of each image.

    Returns:
        As many boxes; none where a box finds no place.

    Example:
        >>> move_regions([Region(image=0, box=(0, 0, 28, 28))], [(56, 28)], np.random.default_rng(0))
        [Region(image=0, box=(28, 0, 28, 28))]
    """
    taken, moved = list(boxes), []
    for image, (x, y, width, height) in ((box.image, box.box) for box in boxes):
        places = [
            Region(image=image, box=(left, top, width, height))
            for left in np.arange(x % width, sizes[image][0] - width + 1, width).tolist()
            for top in np.arange(y % height, sizes[image][1] - height + 1, height).tolist()
        ]
        free = [place for place in places if not any(_overlap(place, other) for other in taken)]
        if not free:
            return []
        moved.append(free[rng.integers(len(free))])
        taken.append(moved[-1])
    return moved


def _overlap(one: Region, two: Region) -> bool:
    (x, y, width, height), (left, top, across, down) = one.box, two.box
    return (
        one.image == two.image
        and x < left + across
        and left < x + width
        and y < top + down
        and top < y + height
    )
