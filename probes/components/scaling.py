"""Scaling by component: what an answer loses when named heads or FFNs write more, less or nothing."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.interventions.methods.components import Components
from mmprobe.models import Model
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput, name_answer, read_true_answer
from mmprobe.samples import Sample


def scale_components(
    model: Model,
    sample: Sample,
    components: str,
    scale: float = 0.0,
    baseline: str = "zero",
    *,
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return what an answer loses when named components are scaled at all of its tokens (Michel et al., 2019).

    The change is that of the method `components`: x becomes m + scale (x - m). The same answer is read with it and
    without it, so the effect at step s is log p(y_s) - log p'(y_s). A scale of 1 gives exactly 0. It takes two forward
    passes.

    Use it to try single heads by hand. It says how much this answer needs them, and not what they do; and heads that
    replace each other seem idle.

    Args:
        components: names such as `head 5.2, ffn 7`, or a .json file of them.
        scale: -10 to 10; 0 ablates.
        baseline: m: `zero`, or `mean`, which the file then has.
        answer: text or token ids. Without an answer the sample's true one is read, or
            the model's own if there is none.

    Returns:
        A data set with the dimension `step`, in nat: effect, above 0 where the components make the answer likelier;
        logprob, without the change; token, the texts. attrs: components, scale, answer, answer_from, effect_per_token,
        n, the number of steps.

    Raises:
        InputError: a component is unknown or there twice, the model lacks it, or the scale is out of range.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> scale_components(model, sample, "head 5.2", answer="no").effect.sizes["step"]
        1
    """
    method = Components(components=components, scale=scale, baseline=baseline)
    changes = method.changes(model)
    reading = read_true_answer(model, sample, answer, max_new_tokens)
    own, changed = (
        reading.logprobs(each)[0].cpu().numpy().astype(float)
        for each in (None, changes if scale != 1 else None)
    )
    effect = own - changed
    out = xr.Dataset({"effect": ("step", effect), "logprob": ("step", own)}, {"step": np.arange(len(effect))})
    out["token"] = ("step", reading.row.texts())
    out.attrs = {
        "analysis": "component_scaling",
        "model": model.name,
        "sample": sample.id,
        "components": components,
        "scale": scale,
        "answer": reading.row.text,
        "answer_from": name_answer(sample, answer),
        "effect_per_token": float(effect.mean()),
        "n": len(effect),
    }
    return out
