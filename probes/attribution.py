"""Which patches and which parts of the prompt a generated token owes its probability to, by captum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from captum.attr import FeatureAblation, IntegratedGradients
from torch import Tensor

from mmprobe.analyses.token_activation import to_grids
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model
from mmprobe.probes.teacher_forcing import (
    GROUPS,
    MAX_NEW_TOKENS,
    Answer,
    ForcedAnswer,
    float32_logits,
    force_answer,
)
from mmprobe.samples import Sample

METHODS = ("occlusion", "integrated_gradients", "feature_ablation")
BASELINES = ("mean", "zero")
_DEEPER = "deepstack_visual_embeds"  # each [visual, hidden], added to the visual rows after a layer
Explained = Callable[[Tensor], Tensor]


def attribute(
    model: Model,
    sample: Sample,
    method: str = "occlusion",
    steps: int | Sequence[int] | None = None,
    answer: Answer = None,
    baseline: str = "mean",
    block: int = 1,
    n_steps: int = 32,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """What each visual token, or each group of the prompt's tokens, adds to the log-probability of a step's token.

    What is explained is log p(token | prompt, answer so far), teacher-forced, as a function of how present the
    tokens of the prompt are: at presence a, a token's embedding is `baseline + a (embedding - baseline)`, and
    captum compares presence 1 with 0. Visual tokens are taken as they enter the decoder, merged and projected;
    what DeepStack adds to them in deeper layers goes with them.

    - `occlusion`: one visual token (or a block of them) is taken away at a time, all others stay (Zeiler and
      Fergus, 2014); captum's FeatureAblation. One forward pass a token or block.
    - `integrated_gradients`: Sundararajan et al. (2017), equation 1, on the embeddings of all visual tokens and
      summed over the hidden axis, which is what integrating over presence gives; captum's IntegratedGradients.
      `n_steps` forward and backward passes for each step of the answer.
    - `feature_ablation`: a whole group (template, system, visual, user), or all of one picture, is taken away.

    Args:
        steps: of the answer, one or several; None for all.
        answer: text or token ids; None for the sample's own, greedy answer.
        baseline: `mean`, the mean embedding of the prompt's visual tokens for visual ones and that of its other
            tokens for others, or `zero`; ours, the default is `mean`.
        block: side of the squares of visual tokens that occlusion takes away together; what a square adds is
            spread evenly over its tokens. Ours, the default is 1.
        n_steps: points of the integral; ours, the default is 32.
        max_new_tokens: longest answer, if the model gives it; ours, the default is 64.

    Returns:
        A data set with dimensions `step` and, but for feature_ablation, `image` (views), `y`, `x`; in nat.

        - attribution (step, image, y, x): above 0 where a token makes the step's token more likely; NaN beyond
          a view's own grid
        - group_attribution (step, group), n_tokens (group): for feature_ablation; groups are template, system,
          visual, user and each picture, `image 0` and so on; NaN for a group without tokens
        - logprob (step), logprob_baseline (step): with everything present, and with all that is explained gone
        - delta (step): |sum of the attributions - (logprob - logprob_baseline)|, over the four groups for
          feature_ablation. For integrated gradients the error of the integral, to be made small by `n_steps`;
          for the others how far what the tokens add is from adding up
        - token (step): texts; grid, size (image, axis), box (image, corner), source (image): as in a trace

    Raises:
        InputError: an argument is out of range.
        NotApplicable: pictures are seen by cross-attention, enter the decoder in another way, or are not there;
            or the family scales or caps its logits.

    Example:
        >>> maps = attribute(model, sample, steps=[0])              # doctest: +SKIP
        >>> maps.attribution.sel(step=0, image=1).plot()            # doctest: +SKIP
    """
    _check(model, method, baseline, block, n_steps)
    forced = force_answer(model, sample, answer, max_new_tokens)
    prompt, chosen = forced.prompt, _chosen_steps(steps, len(forced.ids))
    if method != "feature_ablation" and not len(prompt.visual_positions):
        raise NotApplicable(f"sample {sample.id}: its prompt has no visual tokens")
    with float32_logits(model):
        inputs = decoder_inputs(forced)
        places = np.arange(len(prompt.ids)) if method == "feature_ablation" else prompt.visual_positions
        explained = by_presence(forced, inputs, places, baseline, chosen)
        out = xr.Dataset(coords={"step": chosen})
        if method == "feature_ablation":
            of_pictures = by_presence(forced, inputs, prompt.visual_positions, baseline, chosen)
            total = _add_groups(out, forced, explained, of_pictures if len(prompt.visual_positions) else None)
        else:
            if method == "occlusion":
                squares = _blocks(prompt.grids, block)
                values = _ablated(explained, squares, model) / np.bincount(squares)[squares]
            else:
                values = _integrated(explained, len(places), n_steps, len(chosen), model)
            out["attribution"] = (("step", "image", "y", "x"), to_grids(values, prompt.grids))
            total = values.sum(1)
        with torch.no_grad():
            everything = torch.ones(1, len(places), device=model.device)
            full, gone = (
                explained(part)[0].cpu().numpy().astype(float) for part in (everything, 0 * everything)
            )
    out["logprob"], out["logprob_baseline"] = ("step", full), ("step", gone)
    out["delta"] = ("step", np.abs(total - (full - gone)))
    out["token"] = ("step", forced.texts()[chosen])
    _add_views(out, forced)
    out.attrs = {
        "analysis": "attribution",
        "method": method,
        "baseline": baseline,
        "model": model.name,
        "sample": sample.id,
        "answer": model.tokenizer.decode(forced.ids.tolist(), skip_special_tokens=True),
    } | ({"block": block} if method == "occlusion" else {})
    return out


def _check(model: Model, method: str, baseline: str, block: int, n_steps: int) -> None:
    if method not in METHODS:
        raise InputError(f"method {method!r}: choose {', '.join(METHODS)}")
    if baseline not in BASELINES:
        raise InputError(f"baseline {baseline!r}: choose {', '.join(BASELINES)}")
    if block < 1 or n_steps < 1:
        raise InputError(f"block {block} and n_steps {n_steps} must be 1 or more")
    if model.has_cross_attention:
        raise NotApplicable(
            f"in {model.family.name} pictures are seen by cross-attention; they have no visual tokens to attribute to"
        )
    if not model.has_plain_logits:
        raise NotApplicable(f"{model.name}: {model.family.name} scales or caps its logits")


def _chosen_steps(steps: int | Sequence[int] | None, count: int) -> list[int]:
    chosen = list(range(count)) if steps is None else np.ravel(steps).tolist()
    for step in chosen:
        if not 0 <= step < count:
            raise InputError(f"step {step}: the answer has steps 0 to {count - 1}")
    if not chosen:
        raise InputError("steps: name one at least")
    return chosen


def decoder_inputs(forced: ForcedAnswer) -> dict[str, Any]:
    """What the decoder is given when prompt and answer are read: `inputs_embeds` with the pictures put in, and
    what goes with it.

    Raises:
        NotApplicable: something else carries numbers to the decoder, so the pictures may be in that.
    """
    seen: list[dict[str, Any]] = []
    decoder = forced.model.family.decoder(forced.model.hf)
    handle = decoder.register_forward_pre_hook(
        lambda module, args, options: seen.append(options), with_kwargs=True
    )
    try:
        forced.logprobs()
    finally:
        handle.remove()
    inputs = seen[0]
    embeds = inputs.get("inputs_embeds")
    others = [
        name
        for name, value in inputs.items()
        for part in (value if isinstance(value, (list, tuple)) else [value])
        if name not in ("inputs_embeds", "attention_mask", _DEEPER)
        and isinstance(part, Tensor)
        and part.is_floating_point()
    ]
    if embeds is None or others:
        what = f"{others[0]} enters" if others else "no embeddings enter"
        name = forced.model.family.name
        raise NotApplicable(f"{name}: {what} the decoder, so pictures cannot be taken out of it")
    return inputs


def by_presence(
    forced: ForcedAnswer, inputs: dict[str, Any], places: np.ndarray, baseline: str, steps: Sequence[int]
) -> Explained:
    """The function that is explained: presence [1, place] to log-probabilities [1, step].

    Args:
        inputs: from `decoder_inputs`.
        places: int [place], positions in the prompt whose presence varies; that of others is 1.
        steps: of the answer.
    """
    model, length, count = forced.model, len(forced.prompt.ids), len(forced.ids)
    decoder, unembedding = model.family.decoder(model.hf), model.hf.get_output_embeddings()
    rows = inputs["inputs_embeds"][0].detach()
    visual = torch.from_numpy(forced.prompt.image >= 0).to(model.device)
    where, wanted = (torch.as_tensor(index, device=model.device) for index in (places, list(steps)))
    absent = torch.zeros(length, rows.shape[1], device=model.device)
    if baseline == "mean":
        for kind in (visual, ~visual):
            absent[kind] = rows[:length][kind].float().mean(0)
    means = [(part, part.float().mean(0).expand(part.shape)) for part in inputs.get(_DEEPER) or []]
    deeper = [(part, mean if baseline == "mean" else 0 * mean) for part, mean in means]

    def explained(presence: Tensor) -> Tensor:
        present = torch.ones(length, device=model.device).scatter(0, where, presence[0].float())
        prompt = _faded(rows[:length], absent, present)
        changed = dict(inputs, inputs_embeds=torch.cat([prompt, rows[length:]])[None])
        if deeper:
            changed[_DEEPER] = [_faded(part, without, present[visual]) for part, without in deeper]
        states = decoder(**changed).last_hidden_state[0, length - 1 : length - 1 + count]
        logprobs = unembedding(states[wanted]).float().log_softmax(-1)
        return logprobs.gather(1, forced.ids[wanted][:, None]).T

    return explained


def _faded(rows: Tensor, absent: Tensor, present: Tensor) -> Tensor:
    """Embeddings [token, hidden] at presence [token]; exactly themselves at 1 and what is absent at 0."""
    return torch.lerp(absent, rows.float(), present[:, None]).to(rows.dtype)


def _ablated(explained: Explained, features: np.ndarray, model: Model) -> np.ndarray:
    """[step, place], at each place what the feature that it belongs to adds; features int [place]."""
    present = torch.ones(1, len(features), device=model.device)
    mask = torch.from_numpy(features).to(model.device)[None]
    found = FeatureAblation(explained).attribute(present, baselines=0.0, feature_mask=mask)
    return found.cpu().numpy().astype(float)


def _integrated(explained: Explained, places: int, n_steps: int, steps: int, model: Model) -> np.ndarray:
    """[step, place], integrated gradients along the line from no presence to full presence."""
    present, method = torch.ones(1, places, device=model.device), IntegratedGradients(explained)
    options = {"baselines": 0.0, "n_steps": n_steps, "internal_batch_size": 1}
    with model.freeze():
        found = [method.attribute(present, target=step, **options) for step in range(steps)]
    return torch.cat(found).detach().cpu().numpy().astype(float)


def _blocks(grids: Sequence[tuple[int, int]], side: int) -> np.ndarray:
    """int [visual], the number of the square of so many tokens a side that each visual token lies in."""
    found, first = [], 0
    for rows, columns in grids:
        row, column = np.mgrid[:rows, :columns] // side
        found.append(first + (row * -(-columns // side) + column).ravel())
        first = int(found[-1][-1]) + 1
    return np.concatenate(found)


def _add_groups(out: xr.Dataset, forced: ForcedAnswer, groups: Explained, pictures: Explained | None) -> np.ndarray:
    """Add what groups and pictures add; returns the sum over the groups, [step].

    Args:
        groups, pictures: by the presence of all tokens and of the visual ones, the latter None without any.
    """
    prompt, steps = forced.prompt, out.sizes["step"]
    values: dict[str, np.ndarray] = {name: np.full(steps, np.nan) for name in GROUPS}
    counts = {name: int((prompt.group == Group[name.upper()]).sum()) for name in GROUPS}
    kinds, first, features = np.unique(prompt.group, return_index=True, return_inverse=True)
    found = _ablated(groups, features, forced.model)
    values |= {GROUPS[kind]: found[:, place] for kind, place in zip(kinds, first, strict=True)}
    total = found[:, first].sum(1)
    if pictures is not None:
        shown = np.array(prompt.sources)[prompt.image[prompt.visual_positions]]
        numbers, first, features, sizes = np.unique(
            shown, return_index=True, return_inverse=True, return_counts=True
        )
        found = _ablated(pictures, features, forced.model)
        values |= {f"image {number}": found[:, place] for number, place in zip(numbers, first, strict=True)}
        counts |= {f"image {number}": int(size) for number, size in zip(numbers, sizes, strict=True)}
    out["group_attribution"] = (("step", "group"), np.stack(list(values.values()), 1))
    out["n_tokens"] = ("group", list(counts.values()))
    out.coords["group"] = list(values)
    return total


def _add_views(out: xr.Dataset, forced: ForcedAnswer) -> None:
    """Add where the views' tokens lie in the pictures."""
    prompt = forced.prompt
    out["grid"] = (("image", "axis"), np.reshape(prompt.grids, (-1, 2)))
    out["size"] = (("image", "axis"), np.reshape([prompt.sizes[i] for i in prompt.sources], (-1, 2)))
    out["box"] = (("image", "corner"), np.reshape([view.box for view in prompt.views], (-1, 4)))
    out["source"] = ("image", np.array(prompt.sources, np.int32))
    out.coords["image"] = np.arange(len(prompt.views))
    out.coords["axis"], out.coords["corner"] = ["height", "width"], ["x", "y", "width", "height"]
