"""Attribution of a generated token's probability to image patches and parts of the prompt, by captum.

An answer's log-probabilities are a function of the presence of prompt tokens; maps are compared with a sample's
regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.analyses.regions import to_grids
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model
from mmprobe.models.reading import Reading, Row, float32_logits
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput, read_answer
from mmprobe.probes.tokens import GROUPS
from mmprobe.samples import Sample

_DEEPSTACK = "deepstack_visual_embeds"  # each [visual, hidden], added to the visual tokens after a layer
PresenceFunction = Callable[[Tensor], Tensor]


def _find_decoder_inputs(reading: Reading) -> dict[str, Any]:
    """Return the decoder's inputs for prompt and answer, with the images in `inputs_embeds`.

    Raises:
        NotApplicable: the decoder has other floating-point inputs, which may carry the images.
    """
    reading.logprobs()
    inputs = reading.decoder_inputs
    embeds = inputs.get("inputs_embeds")
    others = [
        name
        for name, value in inputs.items()
        for part in (value if isinstance(value, (list, tuple)) else [value])
        if name not in ("inputs_embeds", "attention_mask", _DEEPSTACK)
        and isinstance(part, Tensor)
        and part.is_floating_point()
    ]
    if embeds is None or others:
        reason = f"{others[0]} enters" if others else "no embeddings enter"
        name = reading.model.family.name
        raise NotApplicable(f"{name}: {reason} the decoder, so images cannot be removed from its inputs")
    return inputs


def _presence_function(
    row: Row,
    inputs: dict[str, Any],
    positions: np.ndarray,
    baseline: str,
    steps: Sequence[int],
) -> PresenceFunction:
    """Return the explained function from presence [1, position] to log-probabilities [1, step].

    Args:
        inputs: inputs of the decoder, from `_find_decoder_inputs`.
        positions: int [position], positions in the prompt with variable presence; all others have presence 1.
        baseline: `mean` or `zero`, as in `attribute`.
        steps: steps of the answer.
    """
    model, length = row.model, len(row.prompt.ids)
    decoder, unembedding = model.family.decoder(model.hf), model.hf.get_output_embeddings()
    rows = inputs["inputs_embeds"][0].detach()
    visual = torch.from_numpy(row.prompt.image >= 0).to(model.device)
    variable = torch.as_tensor(positions, device=model.device)
    selected = torch.as_tensor(list(steps), device=model.device)
    absent = torch.zeros(length, rows.shape[1], device=model.device)
    if baseline == "mean":
        for kind in (visual, ~visual):
            absent[kind] = rows[:length][kind].float().mean(0)
    means = [(part, part.float().mean(0).expand(part.shape)) for part in inputs.get(_DEEPSTACK) or []]
    deepstack = [(part, mean if baseline == "mean" else 0 * mean) for part, mean in means]

    def logprobs(presence: Tensor) -> Tensor:
        present = torch.ones(length, device=model.device).scatter(0, variable, presence[0].float())
        prompt = _fade_rows(rows[:length], absent, present)
        changed = dict(inputs, inputs_embeds=torch.cat([prompt, rows[length:]])[None])
        if deepstack:
            changed[_DEEPSTACK] = [_fade_rows(part, gone, present[visual]) for part, gone in deepstack]
        states = decoder(**changed).last_hidden_state[0, row.queries]
        distributions = unembedding(states[selected]).float().log_softmax(-1)
        return distributions.gather(1, row.ids[selected][:, None]).T

    return logprobs


def _fade_rows(rows: Tensor, absent: Tensor, present: Tensor) -> Tensor:
    """Return embeddings [token, hidden] at presence [token]: `rows` exactly at 1, `absent` exactly at 0."""
    return torch.lerp(absent, rows.float(), present[:, None]).to(rows.dtype)


METHODS = ("occlusion", "integrated_gradients", "feature_ablation")
BASELINES = ("mean", "zero")


def attribute(
    model: Model,
    sample: Sample,
    method: str = "occlusion",
    steps: int | Sequence[int] | None = None,
    baseline: str = "mean",
    block: int = 1,
    n_steps: int = 32,
    *,
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return the contribution of visual tokens or token groups to the log-probability of each step.

    The explained function is log p(token | prompt, answer so far), teacher-forced. Its argument is the
    presence of the prompt's tokens: at presence a, a token's embedding is `baseline + a (embedding -
    baseline)`. Captum compares presence 1 with presence 0. Visual tokens are the merged and projected
    embeddings that enter the decoder. DeepStack features of deeper layers change together with them.

    - `occlusion`: removes one visual token, or a block of them, at a time (Zeiler and Fergus, 2014); captum's
      FeatureAblation. One forward pass for each token or block.
    - `integrated_gradients`: Sundararajan et al. (2017), equation 1, on the embeddings of all visual tokens,
      summed over the hidden axis (equal to the integral over presence); captum's IntegratedGradients.
      `n_steps` forward and backward passes for each step of the answer.
    - `feature_ablation`: removes a whole group (template, system, visual, user), or all tokens of one image.

    Args:
        steps: one or several steps of the answer; None for all.
        baseline: `mean` or `zero`. `mean` is the mean embedding of the prompt's visual tokens for visual
            tokens, and the mean of its other tokens for other tokens; our choice, the default is `mean`.
        block: side of the squares of visual tokens that occlusion removes together. The contribution of a
            square is divided equally among its tokens; our choice, the default is 1.
        n_steps: points of the integral; our choice, the default is 32.
        answer: text or token ids, of at most `max_new_tokens` where the model gives it. Without an answer the model's own greedy one is read.

    Returns:
        A data set with dimensions `step` and, except for feature_ablation, `image` (views), `y`, `x`. Values
        are in nat.

        - attribution (step, image, y, x): above 0 if a token makes the step's token more likely; NaN outside
          a view's grid
        - group_attribution (step, group), n_tokens (group): for feature_ablation. Groups are template,
          system, visual, user, and each image (`image 0` and so on); NaN for a group without tokens
        - logprob (step), logprob_baseline (step): with all tokens present, and without the explained tokens
        - delta (step): |sum of the attributions - (logprob - logprob_baseline)|; for feature_ablation the sum
          is over the four groups. For integrated gradients it is the error of the integral, which decreases
          with `n_steps`. For the others it is the deviation from additivity
        - token (step): texts of the tokens
        - grid, size (image, axis), box (image, corner), source (image): as in a trace

    Raises:
        InputError: an argument is out of range.
        NotApplicable: the model reads images by cross-attention or passes them to the decoder in another way,
            the sample has no images, or the family scales or caps its logits.

    Example:
        >>> maps = attribute(model, sample, steps=[0])              # doctest: +SKIP
        >>> maps.attribution.sel(step=0, image=1).plot()            # doctest: +SKIP
    """
    _check_arguments(model, method, baseline, block, n_steps)
    reading = read_answer(model, sample, answer, max_new_tokens)
    row = reading.row
    prompt = row.prompt
    selected = _resolve_steps(steps, len(row.ids))
    if method != "feature_ablation" and not len(prompt.visual_positions):
        raise NotApplicable(f"sample {sample.id}: its prompt has no visual tokens")
    with float32_logits(model):
        inputs = _find_decoder_inputs(reading)
        positions = np.arange(len(prompt.ids)) if method == "feature_ablation" else prompt.visual_positions
        logprobs = _presence_function(row, inputs, positions, baseline, selected)
        out = xr.Dataset(coords={"step": selected})
        if method == "feature_ablation":
            image_logprobs = _presence_function(row, inputs, prompt.visual_positions, baseline, selected)
            has_images = len(prompt.visual_positions) > 0
            total = _add_groups(out, row, logprobs, image_logprobs if has_images else None)
        else:
            if method == "occlusion":
                blocks = _number_blocks(prompt.grids, block)
                values = _ablate_features(logprobs, blocks, model) / np.bincount(blocks)[blocks]
            else:
                values = _integrate_gradients(logprobs, len(positions), n_steps, len(selected), model)
            out["attribution"] = (("step", "image", "y", "x"), to_grids(values, prompt.grids))
            total = values.sum(1)
        with torch.no_grad():
            present = torch.ones(1, len(positions), device=model.device)
            full, absent = (
                logprobs(presence)[0].cpu().numpy().astype(float) for presence in (present, 0 * present)
            )
    out["logprob"] = ("step", full)
    out["logprob_baseline"] = ("step", absent)
    out["delta"] = ("step", np.abs(total - (full - absent)))
    out["token"] = ("step", row.texts()[selected])
    _add_views(out, row)
    out.attrs = {
        "analysis": "attribution",
        "method": method,
        "baseline": baseline,
        "model": model.name,
        "sample": sample.id,
        "answer": row.text,
    } | ({"block": block} if method == "occlusion" else {})
    return out


def _check_arguments(model: Model, method: str, baseline: str, block: int, n_steps: int) -> None:
    if method not in METHODS:
        raise InputError(f"method {method!r}: choose {', '.join(METHODS)}")
    if baseline not in BASELINES:
        raise InputError(f"baseline {baseline!r}: choose {', '.join(BASELINES)}")
    if block < 1 or n_steps < 1:
        raise InputError(f"block {block} and n_steps {n_steps} must be 1 or more")
    if model.has_cross_attention:
        raise NotApplicable(
            f"{model.family.name} reads images by cross-attention and has no visual tokens to attribute to"
        )
    if not model.has_plain_logits:
        raise NotApplicable(f"{model.name}: {model.family.name} scales or caps its logits")


def _resolve_steps(steps: int | Sequence[int] | None, count: int) -> list[int]:
    selected = list(range(count)) if steps is None else np.ravel(steps).tolist()
    for step in selected:
        if not 0 <= step < count:
            raise InputError(f"step {step}: the answer has steps 0 to {count - 1}")
    if not selected:
        raise InputError("steps: choose at least one")
    return selected


def _import_captum() -> ModuleType:
    """Import captum's methods, which takes a second."""
    try:
        from captum import attr
    except ImportError as error:
        raise InputError(
            f"attribution needs captum, which cannot be imported ({error}); install it again"
        ) from None
    return attr


def _ablate_features(logprobs: PresenceFunction, features: np.ndarray, model: Model) -> np.ndarray:
    """Return [step, position], the contribution of the feature int [position] of each position."""
    present = torch.ones(1, len(features), device=model.device)
    mask = torch.from_numpy(features).to(model.device)[None]
    contributions = (
        _import_captum().FeatureAblation(logprobs).attribute(present, baselines=0.0, feature_mask=mask)
    )
    return contributions.cpu().numpy().astype(float)


def _integrate_gradients(
    logprobs: PresenceFunction, positions: int, n_steps: int, steps: int, model: Model
) -> np.ndarray:
    """Return [step, position], integrated gradients along the line from presence 0 to presence 1."""
    present = torch.ones(1, positions, device=model.device)
    method = _import_captum().IntegratedGradients(logprobs)
    options = {"baselines": 0.0, "n_steps": n_steps, "internal_batch_size": 1}
    with model.freeze():
        gradients = [method.attribute(present, target=step, **options) for step in range(steps)]
    return torch.cat(gradients).detach().cpu().numpy().astype(float)


def _number_blocks(grids: Sequence[tuple[int, int]], side: int) -> np.ndarray:
    """Return int [visual], the number of each visual token's block; blocks have `side` x `side` tokens."""
    numbers: list[np.ndarray] = []
    first = 0
    for rows, columns in grids:
        row, column = np.mgrid[:rows, :columns] // side
        numbers.append(first + (row * -(-columns // side) + column).ravel())
        first = int(numbers[-1][-1]) + 1
    return np.concatenate(numbers)


def _add_groups(
    out: xr.Dataset,
    row: Row,
    logprobs: PresenceFunction,
    image_logprobs: PresenceFunction | None,
) -> np.ndarray:
    """Add the contributions of groups and images, and return their sum over the groups, [step].

    Args:
        logprobs: function of the presence of all tokens.
        image_logprobs: function of the presence of the visual tokens; None without visual tokens.
    """
    prompt, steps = row.prompt, out.sizes["step"]
    values: dict[str, np.ndarray] = {name: np.full(steps, np.nan) for name in GROUPS}
    counts = {name: int((prompt.group == Group[name.upper()]).sum()) for name in GROUPS}
    kinds, first, features = np.unique(prompt.group, return_index=True, return_inverse=True)
    by_token = _ablate_features(logprobs, features, row.model)
    values |= {GROUPS[kind]: by_token[:, position] for kind, position in zip(kinds, first, strict=True)}
    total = by_token[:, first].sum(1)
    if image_logprobs is not None:
        image_of_token = np.array(prompt.sources)[prompt.image[prompt.visual_positions]]
        images, first, features, sizes = np.unique(
            image_of_token, return_index=True, return_inverse=True, return_counts=True
        )
        by_token = _ablate_features(image_logprobs, features, row.model)
        for image, position, size in zip(images, first, sizes, strict=True):
            values[f"image {image}"] = by_token[:, position]
            counts[f"image {image}"] = int(size)
    out["group_attribution"] = (("step", "group"), np.stack(list(values.values()), 1))
    out["n_tokens"] = ("group", list(counts.values()))
    out.coords["group"] = list(values)
    return total


def _add_views(out: xr.Dataset, row: Row) -> None:
    """Add the grids of the views and their boxes in the images."""
    prompt = row.prompt
    out["grid"] = (("image", "axis"), np.reshape(prompt.grids, (-1, 2)))
    out["size"] = (("image", "axis"), np.reshape([prompt.sizes[i] for i in prompt.sources], (-1, 2)))
    out["box"] = (("image", "corner"), np.reshape([view.box for view in prompt.views], (-1, 4)))
    out["source"] = ("image", np.array(prompt.sources, np.int32))
    out.coords["image"] = np.arange(len(prompt.views))
    out.coords["axis"], out.coords["corner"] = ["height", "width"], ["x", "y", "width", "height"]


def compare_with_regions(maps: xr.Dataset, sample: Sample) -> xr.Dataset:
    """Return the share of the attribution on a sample's regions, and the share of the images that they cover.

    Args:
        maps: data set of `attribute`, by occlusion or integrated gradients.
        sample: the explained sample, with `regions`.

    Returns:
        A data set with dimension `step`. Shares are over the visual tokens of all views, from 0 to 1.

        - share (step): share of the positive attribution on the regions. A partly covered cell counts in
          part. NaN if no attribution is positive
        - area: share of the cells that the regions cover; the share of a uniform map
        - hit (step): whether the largest attribution is in a region (the pointing game of Zhang et al.,
          2018). A cell counts if a region covers at least half of it, or covers it most of all cells
        - hit_by_chance: share of such cells

    Raises:
        InputError: the maps are of another sample, or of groups.
        NotApplicable: the sample has no regions, or no view shows them.

    Example:
        >>> overlap = compare_with_regions(attribute(model, sample), sample)   # doctest: +SKIP
        >>> float(overlap.share.mean()), float(overlap.area)        # doctest: +SKIP
    """
    if "attribution" not in maps or maps.attrs.get("sample") != sample.id:
        raise InputError(
            f"sample {sample.id}: maps: give maps of this sample, by occlusion or integrated_gradients"
        )
    if not sample.regions:
        raise NotApplicable(f"sample {sample.id} has no regions")
    covered = _region_cover(maps, sample)
    cells = np.isfinite(covered)
    covered, values = covered[cells], maps["attribution"].values[:, cells]
    if not covered.sum():
        raise NotApplicable(f"sample {sample.id}: no view shows its regions")
    on_region = covered >= min(0.5, covered.max())
    positive = values.clip(0)
    with np.errstate(invalid="ignore"):
        share = positive @ covered / positive.sum(1)
    out = xr.Dataset(coords={"step": maps["step"].values})
    out["share"], out["hit"] = ("step", share), ("step", on_region[values.argmax(1)])
    out["area"], out["hit_by_chance"] = ((), covered.mean()), ((), on_region.mean())
    out.attrs = {"analysis": "attribution_on_regions", "sample": sample.id, "method": maps.attrs["method"]}
    return out


def _region_cover(maps: xr.Dataset, sample: Sample) -> np.ndarray:
    """Return [image, y, x], the share of each visual token's cell that the regions cover; NaN without a cell.

    Example:
        >>> _region_cover(attribute(model, sample), sample).shape    # doctest: +SKIP
        (2, 4, 4)
    """
    cover = np.full(maps["attribution"].shape[1:], np.nan)
    for view, image in enumerate(maps["source"].values.tolist()):
        (height, width), (rows, columns) = maps["size"].values[view], maps["grid"].values[view]
        inside = np.zeros((height, width))
        for region in sample.regions:
            # a view of a video shows its frame and those merged with it, up to the next view's
            shown = max((each for each in maps["source"].values.tolist() if each <= region.image), default=-1)
            if image == (shown if sample.videos else region.image):
                x, y, box_width, box_height = region.box
                inside[max(y, 0) : max(y + box_height, 0), max(x, 0) : max(x + box_width, 0)] = 1
        left, top, view_width, view_height = maps["box"].values[view]
        row_overlap = _cell_overlaps(top, view_height, rows, height)
        column_overlap = _cell_overlaps(left, view_width, columns, width)
        cell_area = view_height / rows * view_width / columns
        cover[view, :rows, :columns] = row_overlap @ inside @ column_overlap.T / cell_area
    return cover


def _cell_overlaps(start: float, extent: float, cells: int, pixels: int) -> np.ndarray:
    """Return [cell, pixel], the share of each pixel that each of the equal cells covers along one axis."""
    edges = start + extent * np.arange(cells + 1) / cells
    pixel = np.arange(pixels)
    return (np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)).clip(0)
