"""Where a verdict can be read: linear probes at the ends of the steps of a chain of thought."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes.cross_validation import (
    MEASURES,
    compute_measures,
    measures_with_interval,
    predict_held_out,
    split_samples,
)
from mmprobe.probes.reasoning.chain_tests import CONCLUSION, split_chain
from mmprobe.probes.targets import select_classes
from mmprobe.samples import Sample
from mmprobe.stats.estimate import Estimate, stack_estimates
from mmprobe.stats.folds import shuffle_within_folds

MINIMUM = 20  # answers of each verdict; our choice
SHUFFLES = 20  # of the verdicts, for the chance level; our choice


def early_verdict(
    run: Run,
    read_verdict: Callable[[str], Hashable | None],
    conclusion: str = CONCLUSION,
    folds: int = 5,
    minimum: int = MINIMUM,
    seed: int = 0,
) -> xr.Dataset:
    """Return how well an answer's verdict can be read before the first step, after each step, and at the end.

    Use it beside `chain_tests` to ask where a verdict stands first. That it can be read does not say that it is
    used.

    The probe is that of `linear_probe`, fitted at the token that predicts the first token of a step: the last
    token of the prompt before step 1, and the last token of step k after it. A verdict that can be read before
    the first step was linearly present there. Whether the model uses it there, steering shows: see
    `prefill_chain` and `dose_response`.

    Args:
        run: traces with `residual/post` of answers with steps on lines of their own.
        read_verdict: function from the text of a conclusion, without the words that mark it, to a verdict;
            None where it cannot be read.
        conclusion: the words that the conclusion begins with.
        folds: number of folds; images are in one fold.
        minimum: answers of each verdict; ours, the default is 20.
        seed: of the folds and the shuffles.

    Returns:
        A data set with dimensions `point`, `layer`.

        - auc, auc_low, auc_high (point, layer): area under the ROC curve on held-out answers, with 95 %
          intervals over sets of images
        - auc_shuffled (point, layer): mean over 20 shuffles of the verdicts
        - n (point): number of answers that have so many steps

        attrs: n_unread counts answers without steps or without a verdict.

    Raises:
        NotCaptured: `residual/post` was not captured.
        NotApplicable: fewer than two verdicts have enough answers, or there are too few sets of images.

    Example:
        >>> ds = early_verdict(run, lambda text: text.strip() == "Nothing changed.")   # doctest: +SKIP
        >>> ds.auc.sel(point="before step 1").max().item()                             # doctest: +SKIP
        0.93
    """
    if folds < 2 or minimum < folds:
        raise InputError(f"folds {folds} and minimum {minimum}: give 2 folds or more, and no fewer answers")
    labels: dict[str, Hashable] = {}
    samples: dict[str, Sample] = {}
    vectors: dict[str, dict[str, np.ndarray]] = {}
    layers = np.zeros(0, int)
    n_unread = 0
    for trace in tqdm(run, desc="read", unit="answer", disable=None):
        chain = split_chain(trace.answer, conclusion)
        verdict = None if chain is None else read_verdict(chain.conclusion.removeprefix(conclusion))
        if chain is None or verdict is None:
            n_unread += 1
            continue
        streams = trace.array("residual/post")
        layers = streams["layer"].values
        labels[trace.id], samples[trace.id] = verdict, trace.sample
        for point, step in _find_points(trace, len(chain.steps)).items():
            vectors.setdefault(point, {})[trace.id] = streams[step].values.astype("f4")
    classes = select_classes(run, labels, "the verdict", minimum)
    if len(classes) > 2:
        verdicts = ", ".join(map(str, classes))
        raise NotApplicable(f"{run.path}: there are the verdicts {verdicts}; the probe tells two apart")
    out = xr.Dataset(coords={"point": list(vectors), "layer": layers})
    unknown = np.full(len(layers), np.nan)
    aucs, shuffled = (
        [Estimate(unknown, unknown, unknown)] * len(vectors),
        np.full((len(vectors), len(layers)), np.nan),
    )
    counts = []
    for row, by_name in enumerate(tqdm(vectors.values(), desc="early_verdict", unit="point", disable=None)):
        names = [name for name in by_name if labels[name] in classes]
        counts.append(len(names))
        if min(sum(labels[name] == label for name in names) for label in classes) >= minimum:
            stacked = np.array([by_name[name] for name in names])
            aucs[row], shuffled[row] = _read_layers(
                stacked,
                [labels[name] for name in names],
                [samples[name] for name in names],
                classes,
                folds,
                seed,
                str(run.path),
            )
    out.update(stack_estimates(aucs).variables("auc", ("point", "layer")))
    out["auc_shuffled"] = (("point", "layer"), shuffled)
    out["n"] = ("point", np.array(counts))
    out.attrs = {
        "analysis": "early_verdict",
        "about": "How well a verdict can be read before and after the steps of an answer.",
        "run": str(run.path),
        "model": run.config["model"]["name"],
        "verdicts": ", ".join(map(str, classes)),
        "folds": folds,
        "shuffles": SHUFFLES,
        "n_unread": n_unread,
    }
    return out


def _find_points(trace: Trace, n_steps: int) -> dict[str, int]:
    """Return the generation step whose query stands before step 1, and at the end of each of the steps."""
    generated = trace.tokens["text"].values[-len(trace.steps["id"]) :]
    points = {"before step 1": 0}
    line, written = 0, ""
    for number, text in enumerate(generated.tolist()):
        written += text
        if "\n" in text and line < n_steps and written.strip():
            line, written = line + 1, ""
            name = f"after step {line}" if line < n_steps else "before the conclusion"
            points[name] = number + 1
    return {name: step for name, step in points.items() if step < len(generated)}


def _read_layers(
    vectors: np.ndarray,
    labels: list[Hashable],
    samples: list[Sample],
    classes: list[Hashable],
    folds: int,
    seed: int,
    where: str,
) -> tuple[Estimate[np.ndarray], np.ndarray]:
    """Return the AUC [layer] with its interval, and its mean over shuffles [layer]."""
    split = split_samples(samples, labels, classes, folds, seed, where)
    rng = np.random.default_rng(seed)
    shuffles = [shuffle_within_folds(split.truth, split.groups, split.fold, rng) for _ in range(SHUFFLES)]
    auc = MEASURES.index("auc")
    measured, by_chance = [], []
    for layer in np.moveaxis(vectors, 1, 0):
        own, *shuffled = predict_held_out(layer, [split.truth, *shuffles], split.fold)
        chance = [compute_measures(p, truth)[auc, 0] for p, truth in zip(shuffled, shuffles, strict=True)]
        measured.append(measures_with_interval(own, split)[auc])
        by_chance.append(np.mean(chance))
    return stack_estimates(measured), np.array(by_chance)
