"""Image interchange: how much an answer loses when the model sees other images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from PIL import Image

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model, Prompt
from mmprobe.models.prompt import Chat, build_chat, decode_sequence
from mmprobe.models.reading import read_chats
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput, find_ids, name_answer
from mmprobe.samples import Region, Sample


def image_interchange(
    model: Model,
    sample: Sample,
    counterfactual: Sample,
    regions: Sequence[Region] | None = None,
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return how much less likely each token of an answer is when the images are exchanged for others.

    The effect at step s is log p(y_s | x, y_<s) - log p(y_s | x', y_<s): the same answer is read after the
    sample's own images x and after the counterfactual's images x'. A model that does not use its images has
    an effect of 0. The images should be of the kind that the model knows, and differ in what is asked
    (semantic pairs, NOTICE, arXiv:2406.16320). Identical images give exactly 0.

    It takes two forward passes, and one for each region.

    Use it to test whether an answer depends on the images at all, at which words and on which region.
    It does not say by which way through the model; `patch_components` does.

    Args:
        sample: the sample with the measured answer.
        counterfactual: a sample with as many images. Its texts are not used.
        regions: boxes on the sample's images; one at a time, the pixels of the visual tokens that they touch
            are exchanged alone. None for the sample's own regions; without any, for each frame of its videos. Their
            images must have the size of the counterfactual's.
        answer: text or token ids, such as `run[sample.id].answer`, what the model said. None for the true one in
            `sample.answer`, or the model's own greedy answer if there is none; attrs["answer_from"] tells.
        max_new_tokens: maximum length of the model's own answer; our choice, the default is 64.

    Returns:
        A data set with dimensions `step`, `region`. All values are in nat; above 0 where the sample's own
        images make the answer likelier.

        - effect (step): of all images
        - effect_by_region (region, step): of the visual tokens that one region touches
        - logprob, logprob_counterfactual (step): after the own and the other images
        - region_image (region), region_box (region, corner): the image and the x, y, width and height of the
          pixels that were exchanged. Images are counted from 0, and after them the frames that the model is shown
        - token (step): texts of the tokens

        attrs: answer_from, whose answer was read, `given`, `true` (the sample's) or `own` (the model's);
        effect_per_token, the mean over steps; n, the number of steps; forward_passes, without those that
        generate the answer.

    Raises:
        NotApplicable: the sample has neither images nor videos.
        InputError: the numbers of images differ, or the sizes of images with regions.

    Example:
        >>> said = run[samples[0].id].answer                                 # doctest: +SKIP
        >>> ds = image_interchange(model, samples[0], samples[8], answer=said)   # doctest: +SKIP
        >>> ds.effect.values.round(1)                                        # doctest: +SKIP
        array([11.2,  0. ,  0.1, 4.6])
    """
    if not sample.files:
        raise NotApplicable(f"sample {sample.id} has no images to exchange")
    chat, other = build_chat(sample, model), build_chat(counterfactual, model)
    if regions is None:
        regions = sample.regions or list_frames(chat)
    _check_images(sample, counterfactual, chat.images, other.images, regions)
    ids = find_ids(model, sample, sample.answer if answer is None else answer, max_new_tokens)
    variants = [chat.images, other.images]
    boxes = cover_cells(model.prompt(sample), regions) if regions else []
    variants += [exchange_regions(chat.images, other.images, [box]) for box in boxes]
    own, exchanged, *by_region = (
        read_chats(model, [chat._replace(images=images)], [ids]).logprobs()[0].cpu().numpy().astype(float)
        for images in variants
    )
    effect = own - exchanged
    out = xr.Dataset(coords={"step": np.arange(len(ids)), "region": np.arange(len(regions))})
    out["effect"] = ("step", effect)
    out["effect_by_region"] = (
        ("region", "step"),
        np.array([own - row for row in by_region]).reshape(-1, len(ids)),
    )
    out["logprob"], out["logprob_counterfactual"] = ("step", own), ("step", exchanged)
    out["region_image"] = ("region", np.array([region.image for region in regions], int))
    corners = np.array([box.box for box in boxes], int).reshape(-1, 4)
    out["region_box"] = (("region", "corner"), corners)
    out["token"] = ("step", np.array(decode_sequence(model, np.array(ids)), dtype=str))
    out.attrs = {
        "analysis": "image_interchange",
        "model": model.name,
        "sample": sample.id,
        "counterfactual": counterfactual.id,
        "answer": model.tokenizer.decode(ids, skip_special_tokens=True),
        "answer_from": name_answer(sample, answer),
        "effect_per_token": float(effect.mean()),
        "n": len(ids),
        "forward_passes": len(variants),
    }
    return out


def list_frames(chat: Chat) -> list[Region]:
    """Return each frame of a chat's videos as a region.

    Example:
        >>> list_frames(build_chat(Sample(id="a", question="?")))
        []
    """
    places = range(chat.n_images, len(chat.images))
    return [Region(image=place, box=(0, 0, *chat.images[place].size)) for place in places]


def cover_cells(prompt: Prompt, regions: Sequence[Region]) -> list[Region]:
    """Return each region enlarged to the borders of the visual tokens that it touches.

    Where several views show an image, those with the smallest cells count.

    Example:
        >>> cover_cells(model.prompt(sample), sample.regions)                # doctest: +SKIP
        [Region(image=0, box=(56, 28, 28, 28))]
    """
    covered = []
    for region in regions:
        cells = [
            (view.box[2] / view.grid[1], view.box[3] / view.grid[0], view.box[0], view.box[1])
            for number, view in enumerate(prompt.views)
            if prompt.shows(number, region.image)
        ]
        cell_width, cell_height, left, top = min(cells)
        x, y, width, height = region.box
        across = _cover(x - left, x + width - left, cell_width)
        down = _cover(y - top, y + height - top, cell_height)
        box = (round(left + across[0]), round(top + down[0]))
        end = (round(left + across[1]), round(top + down[1]))
        covered.append(Region(image=region.image, box=(*box, end[0] - box[0], end[1] - box[1])))
    return covered


def _cover(start: float, end: float, cell: float) -> tuple[float, float]:
    """Return the smallest span of whole cells that contains a span."""
    return np.floor(start / cell + 1e-6) * cell, np.ceil(end / cell - 1e-6) * cell


def exchange_regions(
    images: Sequence[Image.Image], others: Sequence[Image.Image], regions: Sequence[Region]
) -> list[Image.Image]:
    """Return copies of images with the pixels of some regions taken from other images of the same size.

    Example:
        >>> white, black = Image.new("RGB", (2, 1), "white"), Image.new("RGB", (2, 1))
        >>> mixed = exchange_regions([white], [black], [Region(image=0, box=(1, 0, 1, 1))])
        >>> [mixed[0].getpixel((x, 0))[0] for x in (0, 1)]
        [255, 0]
    """
    copies = [image.copy() for image in images]
    for region in regions:
        image, other = copies[region.image], others[region.image]
        x, y, width, height = region.box
        left, top = max(x, 0), max(y, 0)
        right, bottom = min(x + width, image.width), min(y + height, image.height)
        if left < right and top < bottom:
            image.paste(other.crop((left, top, right, bottom)), (left, top))
    return copies


def _check_images(
    sample: Sample,
    counterfactual: Sample,
    images: Sequence[Image.Image],
    others: Sequence[Image.Image],
    regions: Sequence[Region],
) -> None:
    if len(images) != len(others):
        raise InputError(
            f"counterfactual {counterfactual.id}: has {len(others)} images and sample {sample.id} has "
            f"{len(images)}; choose a sample with as many"
        )
    for region in regions:
        if region.image >= len(images):
            raise InputError(f"regions: image {region.image} of {len(images)}")
        image, other = images[region.image], others[region.image]
        if image.size != other.size:
            sizes = " and ".join(f"{picture.width} x {picture.height}" for picture in (image, other))
            raise InputError(
                f"counterfactual {counterfactual.id}: image {region.image} has another size ({sizes} pixels), so "
                "its regions cannot be exchanged; give images of the same size, or regions=[]"
            )
