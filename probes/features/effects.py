"""What an answer owes to features: their changes, and the gradient of a token times each activation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary, edit_features
from mmprobe.models.points import Changes, Point
from mmprobe.models.prompt import decode_tokens
from mmprobe.models.reading import Reading, float32_logits
from mmprobe.probes.answer_records import (
    AnswerSource,
    Arrays,
    RunAnswer,
    RunOptions,
    measure_answers,
    one_by_one,
)
from mmprobe.probes.answers import read_true_answer
from mmprobe.probes.features.run import GROUPS, find_dictionary, group_tokens
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_known, estimate_mean
from mmprobe.stats.intervals import QUANTITY

ACTIONS = ("ablate", "clamp", "steer")


def feature_effects(
    model: Model,
    sample: Sample,
    features: Sequence[int],
    dictionary: str = "",
    action: str = "ablate",
    value: float = 0.0,
    answer: str | Sequence[int] | None = None,
) -> xr.Dataset:
    """Return what each token of an answer loses when one feature is changed at all tokens, in nat.

    What the dictionary does not explain stays as it is. It takes one forward pass for each feature.

    Args:
        features: numbers of features.
        dictionary: as in `load_dictionary`; empty for the one that ships for the model.
        action, value: as in the method `features`.
        answer: text or token ids; None for the sample's true answer, or else the model's own greedy one.

    Returns:
        A data set with dimensions `feature`, `step`.

        - effect (feature, step): log-probability of the token without the change, minus that with it
        - likeliest (feature, step): the token that the model would say with the change
        - token (step): texts of the answer's tokens

    Raises:
        InputError: the dictionary does not fit, a feature is not one of the dictionary, or the action is unknown.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> feature_effects(model, sample, [3, 4], action="steer", value=0.0, answer="No.").effect.values.any()
        np.False_
    """
    found = _check(model, features, dictionary, action)
    reading = read_true_answer(model, sample, answer)
    plain = reading.predict()[0].logprobs
    effect, tokens = _measure(reading, plain, found, features, action, value)
    likeliest = [decode_tokens(model, row) for row in tokens]
    dims = ("feature", "step")
    return xr.Dataset(
        {
            "effect": (dims, effect),
            "likeliest": (dims, np.array(likeliest, dtype=str)),
            "token": (("step",), reading.row.texts()),
        },
        coords={"feature": list(features), "step": np.arange(len(plain))},
        attrs={
            "analysis": "feature_effects", "model": model.name, "dictionary": found.name, "action": action,
            "value": value, "forward_passes": reading.count,
        },
    )  # fmt: skip


def feature_effects_run(
    model: Model,
    source: Run | Sequence[Sample],
    features: Sequence[int] | None = None,
    dictionary: str = "",
    action: str = "ablate",
    value: float = 0.0,
    **options: Unpack[RunOptions],
) -> xr.Dataset:
    """Return what answers lose when one feature is changed at all tokens, over many answers.

    Use it to see whether features that fire where something is, or that tell labels (`features_run`), matter for the
    answers. Name some other features that are as active, too: what any feature loses is what is compared with.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own greedy
            answer if they have none. One forward pass for each feature and answer, and one more.
        features: numbers of features; some must be named.
        dictionary, action, value: as in `feature_effects`.
        options: those of `RunOptions`; `batch_size` is 1.

    Returns:
        A data set with dimensions `feature`, `sample`.

        - effect (feature): mean over answers of the log-probability that the answer loses, in nat
        - moved (feature): share of answers in which the model would say another token at some step, and says the
          answer's without the change
        - effect_by_sample (sample, feature): the loss of each answer
        - n_effect (feature): number of answers

        effect and moved have _low and _high: 95 % intervals over sets of images (`stats.intervals`).

    Raises:
        InputError: as in `feature_effects`, or no feature is named, or another model made the run.
        NotApplicable: no answer can be read.

    Example:
        >>> ds = feature_effects_run(model, run, [315, 440])                 # doctest: +SKIP
        >>> ds.effect.sel(feature=315).item()                                # doctest: +SKIP
        2.1
    """
    if not features:
        raise InputError(
            "features: name some, such as --set features=[12,40]; the analysis features lists them"
        )
    numbers = list(features)
    found = _check(model, numbers, dictionary, action)
    answered = AnswerSource(model, source, options)

    def measure(answer: RunAnswer) -> Arrays:
        reading = Reading(model, model.batch([answer.sample]), [answer.ids])
        plain = reading.predict()[0]
        effect, tokens = _measure(reading, plain.logprobs, found, numbers, action, value)
        own = plain.likeliest.cpu().numpy()
        kept = own == np.array(answer.ids)  # steps at which the model says what the answer says
        return {
            "logprob": plain.logprobs.cpu().numpy(),
            "effect": effect.sum(1),
            "moved": ((tokens != own) & kept).any(1),
        }

    settings = {
        "analysis": "feature_effects", "dictionary": dictionary or found.name, "features": numbers, "action": action,
        "value": value,
    }  # fmt: skip
    records = [r for r in measure_answers(answered, one_by_one(measure), settings) if r.arrays]
    if not records:
        raise NotApplicable(f"{answered.name}: no sample has an answer that can be read")
    sets = image_sets([record.answer.sample for record in records])
    effects, moved = (
        np.stack([record.arrays[name] for record in records]).astype(float) for name in ("effect", "moved")
    )
    out = xr.Dataset(estimate_known(effects, sets, QUANTITY).variables("effect", ("feature",), n="n_effect"))
    out.update(estimate_mean(moved, sets).variables("moved", ("feature",)))
    out["effect_by_sample"] = ("sample", "feature"), effects
    out = out.assign_coords(feature=numbers, sample=[record.answer.sample.id for record in records])
    return out.assign_attrs(
        analysis="feature_effects", about="What answers lose when one feature is changed.", model=model.name,
        run=str(source.path) if isinstance(source, Run) else "samples", dictionary=found.name, hook=found.hook,
        action=action, value=value, samples=len(records), sets=len(np.unique(sets)),
        left_out=len(answered.samples) - len(records), **answered.describe(),
    )  # fmt: skip


def _check(model: Model, features: Sequence[int], dictionary: str, action: str) -> Dictionary:
    """Return the dictionary once it fits, and has the features."""
    found = find_dictionary(model, dictionary)
    if action not in ACTIONS:
        raise InputError(f"action {action!r}: choose {', '.join(ACTIONS)}")
    for number in features:
        if not 0 <= number < found.n_features:
            raise InputError(f"features: {number}: the dictionary has features 0 to {found.n_features - 1}")
    return found


def _measure(
    reading: Reading,
    plain: Tensor,
    dictionary: Dictionary,
    features: Sequence[int],
    action: str,
    value: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each token loses with each feature changed, and the token that the model would say, [feature, step].

    Args:
        plain: the log-probability of each token without a change, [step].
    """
    effect, likeliest = [], []
    for number in features:
        said = reading.predict(_changes(dictionary, number, action, value))[0]
        effect.append((plain - said.logprobs).cpu().numpy())
        likeliest.append(said.likeliest.cpu().numpy())
    return np.array(effect), np.array(likeliest)


def _changes(dictionary: Dictionary, feature: int, action: str, value: float) -> Changes:
    """Return the change of one feature, at all tokens of a pass."""
    read: list[Tensor] = []

    def keep(own: Tensor) -> Tensor:
        read.append(own)
        return own

    def change(own: Tensor) -> Tensor:
        source = read.pop() if dictionary.is_transcoder else own
        added = edit_features(dictionary, dictionary.flatten(source), [feature], action, value)
        return own + added.reshape(own.shape).to(own.dtype)

    if dictionary.is_transcoder:
        return {dictionary.reads: keep, dictionary.writes: change}
    return {dictionary.writes: change}


def attribute_features(
    model: Model,
    sample: Sample,
    step: int = 0,
    dictionary: str = "",
    answer: str | Sequence[int] | None = None,
) -> xr.Dataset:
    """Return how much of a token's lead each feature accounts for: gradient times activation, in logits.

    The lead is the token's logit less that of the likeliest other token; a log-probability hardly has a gradient where
    the model is sure. It is the first-order estimate of what is lost when the feature is ablated at the tokens of a
    group (Marks et al., 2024, arXiv:2403.19647, attribution patching to 0). It takes two forward passes and a backward
    one. Check what matters with `feature_effects`.

    Args:
        step: the answer's token.
        dictionary, answer: as in `feature_effects`.

    Returns:
        A data set with dimensions `group` (visual, text, generated), `feature`.

        - attribution (group, feature): sum over the group's tokens of activation times gradient along the feature
        - unexplained (group): that of what the dictionary does not explain, its bias apart

    Raises:
        InputError: the dictionary does not fit, or the answer has no such step.

    Example:
        >>> ds = attribute_features(model, sample, step=3)                   # doctest: +SKIP
        >>> ds.attribution.sum("group").argmax("feature").item()             # doctest: +SKIP
        17
    """
    found = find_dictionary(model, dictionary)
    reading = read_true_answer(model, sample, answer)
    row = reading.row
    if not 0 <= step < len(row.ids):
        raise InputError(f"step {step}: the answer has steps 0 to {len(row.ids) - 1}")
    kept: dict[Point, Tensor] = {}

    def keep(point: Point, value: Tensor) -> None:
        kept[point] = value[0].detach()

    with torch.no_grad():
        reading.logits(observers={point: partial(keep, point) for point in {found.reads, found.writes}})
    kind, layer = found.writes
    token = int(row.ids[step])

    def measure(logits: Tensor) -> Tensor:
        others = logits[0, step].clone()
        others[token] = -torch.inf
        return logits[0, step, token] - others.max()

    with float32_logits(model):
        gradient = reading.gradients([kind], measure, [layer])[kind][layer][0].float()
    read = found.flatten(kept[found.reads]).float()
    write, gradient = (each.flatten(1) for each in (kept[found.writes].float(), gradient))
    with torch.no_grad():
        z = found.encode(read)
        along = found.gradients(gradient, read)
        error = ((write - found.decode(z, read)) * gradient).sum(-1)
    group = group_tokens(reading.row.prompt, len(reading.row.ids))
    masks = [torch.from_numpy(group == number) for number in range(len(GROUPS))]
    attribution, rest = (z * along).cpu(), error.cpu()
    sums, rests = (
        [attribution[mask].sum(0).numpy() for mask in masks],
        [float(rest[mask].sum()) for mask in masks],
    )
    attributes: dict[str, Any] = {
        "analysis": "feature_attribution",
        "model": model.name,
        "dictionary": found.name,
    }
    return xr.Dataset(
        {"attribution": (("group", "feature"), np.array(sums)), "unexplained": (("group",), rests)},
        coords={"group": list(GROUPS), "feature": np.arange(found.n_features)},
        attrs=attributes | {"step": step, "token": str(row.texts()[step])},
    )
