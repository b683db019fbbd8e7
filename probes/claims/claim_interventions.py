"""The interventions that the claims of `findings` imply, on some answers of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.analyses.findings import first_deep_layer
from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.interventions import generate_batch
from mmprobe.models import Model
from mmprobe.probes.claims.exchanged_images import exchange_images
from mmprobe.probes.claims.mean_updates import lose_updates
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages
from mmprobe.samples import Sample

ANSWERS = 40
Check = Callable[[str, Sample], bool | None]


def claim_interventions(
    model: Model,
    run: Run,
    check: Check | None = None,
    answers: int = ANSWERS,
    alpha: float = 0.1,
    beta: float = 0.9,
    seed: int = 0,
    batch_size: int = 8,
) -> xr.Dataset:
    """Return what happens to answers of a run under the interventions that the claims of `findings` imply.

    Unfaithful answers are rare, so up to half of the chosen answers are unfaithful. Each answer has a weight,
    the number of answers of the run that it stands for. Means over the run use it.

    It takes one forward pass over four rows and three over one row an answer, and two generations.

    Use it to ask whether a correlation of `findings` has the cause that it suggests. `findings` tests the
    numbers.

    Args:
        check: function that reads an answer to a sample and returns whether it is faithful; None where it cannot
            tell. Without it nothing is generated.
        answers: number of answers, drawn from those with images; our choice, the default is 40.
        alpha: SAGE's `see` shift: the weights of visual tokens are multiplied by 1 + alpha, and by more where
            attention to them has fallen; the paper's 0.1. With much more a model may write no sentences any more.
        beta: SAGE's `analyze` factor of an FFN update that conflicts with attention; the paper's 0.9.
        seed: of the draw of answers and of places.
        batch_size: answers that are generated together; our choice, the default is 8.

    Returns:
        A data set with dimension `sample`, the chosen answers in the order of the run:

        - weight: answers of the run that the answer stands for
        - interchange: nat a token that the answer loses with unrelated images; interchange_slope: its slope
          over steps
        - regions, elsewhere: nat that it loses when all its regions, or as many places beside them, are exchanged
        - attention, ffn: nat a token that it loses when the updates of the last third of the layers are
          replaced by their mean over these answers
        - faithful_before: whether `check` calls the answer faithful, 1, 0 or NaN; faithful_attention,
          faithful_ffn: the same for the answers with attention raised and with FFN updates scaled
        - answer_attention, answer_ffn: these answers

    Raises:
        InputError: `answers` is under 1, or another model made the run.
        NotApplicable: no answer has images that could be exchanged.

    Example:
        >>> ds = claim_interventions(model, run)                     # doctest: +SKIP
        >>> findings(run, [attention_decay(run), ds]).agree.values   # doctest: +SKIP
        array(['–', '–', 'no', 'no', ...], dtype='<U4')
    """
    if answers < 1:
        raise InputError(f"answers {answers}: must be 1 or more")
    rng = np.random.default_rng(seed)
    samples = [sample for sample in map(run.sample, run.ids) if sample.images]
    images = CounterfactualImages(samples)
    chosen, rows = [], []
    for sample, weight in tqdm(
        _choose(samples, run, answers, rng), desc="exchanged images", unit="answer", disable=None
    ):
        others = images.find(sample, "unrelated")
        if others is not None and run[sample.id].steps.sizes["step"]:
            chosen.append(sample)
            rows.append({"weight": weight} | exchange_images(model, run[sample.id], others, rng))
    if not rows:
        raise NotApplicable(f"{run.path}: no answer has images that could be exchanged for others")
    out = xr.Dataset(coords={"sample": [sample.id for sample in chosen]})
    for name in rows[0]:
        out[name] = ("sample", [row[name] for row in rows])
    ids = [run[sample.id].steps["id"].values.tolist() for sample in chosen]
    layers = range(first_deep_layer(model.n_layers), model.n_layers)
    for name, losses in lose_updates(model, list(zip(chosen, ids, strict=True)), layers).items():
        out[name] = ("sample", losses)
    out.attrs = {
        "analysis": "claim_interventions",
        "about": "What happens to answers under the interventions that the claims of `findings` imply.",
        "run": str(run.path),
        "model": model.name,
        "answers": len(chosen),
        "run_answers": len(run),
        "alpha": alpha,
        "beta": beta,
        "note": _why_not_asked(model, run, check),
    }
    if check is not None and not out.attrs["note"]:
        _ask_again(out, model, run, chosen, check, batch_size)
    return out


def _choose(
    samples: Sequence[Sample], run: Run, count: int, rng: np.random.Generator
) -> list[tuple[Sample, float]]:
    """Return `count` samples, up to half of them unfaithful, and how many samples each stands for."""
    unfaithful = np.array([run.faithful(sample.id) is False for sample in samples], bool)
    strata = [np.flatnonzero(unfaithful), np.flatnonzero(~unfaithful)]
    count = min(count, len(samples))
    first = min(len(strata[0]), max(count // 2, count - len(strata[1])))
    weights = np.zeros(len(samples))
    for members, size in zip(strata, (first, count - first), strict=True):
        if size:
            weights[rng.choice(members, size, replace=False)] = len(members) / size
    return [(samples[index], float(weights[index])) for index in np.flatnonzero(weights).tolist()]


def _why_not_asked(model: Model, run: Run, check: Check | None) -> str:
    """Return why no answer is generated again, or nothing."""
    settings = run.config["generate"]
    if check is None:
        return "no rule reads these answers, so none was generated again"
    if settings.get("temperature") or settings.get("methods"):
        return "the run's answers were sampled or made with a method, so none was generated again"
    if model.has_cross_attention:
        return f"{model.family.name} has no visual tokens, so attention to them cannot be raised"
    return ""


def _ask_again(
    out: xr.Dataset, model: Model, run: Run, samples: Sequence[Sample], check: Check, batch_size: int
) -> None:
    """Add whether the answers are faithful before and after each intervention, and the new answers."""
    settings = run.config["generate"]
    methods = {
        "attention": {"analyze": False, "alpha": out.attrs["alpha"]},
        "ffn": {"see": False, "beta": out.attrs["beta"]},
    }
    texts: dict[str, list[str]] = {"before": [run[sample.id].answer for sample in samples]}
    with tqdm(total=2 * len(samples), desc="changed answers", unit="answer", disable=None) as progress:
        for name, parameters in methods.items():
            texts[name] = []
            for start in range(0, len(samples), batch_size):
                batch = samples[start : start + batch_size]
                texts[name] += [
                    answer.text
                    for answer in generate_batch(
                        model,
                        batch,
                        "sage",
                        max_new_tokens=settings.get("max_new_tokens", 256),
                        repetition_penalty=settings.get("repetition_penalty"),
                        generate=False,
                        **parameters,
                    )
                ]
                progress.update(len(batch))
            out[f"answer_{name}"] = ("sample", np.array(texts[name], dtype=str))
    number = {True: 1.0, False: 0.0, None: np.nan}
    for name, answers in texts.items():
        out[f"faithful_{name}"] = (
            "sample",
            [number[check(text, sample)] for text, sample in zip(answers, samples, strict=True)],
        )
