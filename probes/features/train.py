"""Train a dictionary of a model's own states: a TopK SAE (Gao et al., 2024, arXiv:2406.04093), in SAELens' format.

SAELens and dictionary-learning need other versions of libraries than this package, and train on text that a language model
reads. Here the states are those of images, questions and answers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from tqdm import tqdm

from mmprobe.analyses import export
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.files import new_folder
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary, check_point, find_point, save_dictionary
from mmprobe.models.points import Point
from mmprobe.probes.answer_records import AnswerSource, RunAnswer
from mmprobe.probes.answers import check_run
from mmprobe.probes.features.health import measure_health
from mmprobe.probes.features.run import GROUPS, SINKS, find_sinks, read_states
from mmprobe.probes.features.settings import DictionarySettings
from mmprobe.samples import image_sets

_BATCH = 4  # answers in a pass; our choice
AUXILIARY, MOST_DEAD = 1 / 32, 32  # weight of the loss of dead features, and how many of them take part


class GroupStates(NamedTuple):
    """States of one group of tokens, [token, size], with their mean [size] and their variance, summed over the size."""

    states: np.ndarray
    mean: np.ndarray
    variance: float


def train_dictionary(
    model: Model,
    runs: Sequence[Run],
    layer: int,
    out: str | Path,
    settings: DictionarySettings = DictionarySettings(),  # noqa: B008
    hook: str = "hook_resid_post",
) -> xr.Dataset:
    """Train a TopK SAE on the states of runs' prompts and answers, write it, and return how well it explains those held out.

    A share of the sets of images is held out. Sink tokens are left out, as in `features_run`.

    Args:
        runs: of the model, with its answers.
        layer, hook: where the states are, as `blocks.LAYER.HOOK` (`mmprobe.models.dictionaries.HOOKS`).
        out: a folder that must not exist. It gets the dictionary, which SAELens reads, too, and the data set as files.

    Returns:
        The data set of `dictionary_health`, of the answers about the images that are held out.

    Raises:
        InputError: `out` exists, another model made a run, the model lacks the layer or the hook, or there are fewer than two
            sets of images.

    Example:
        >>> ds = train_dictionary(model, [run], layer=3, out="dictionary")                 # doctest: +SKIP
        >>> ds.explained.sel(group="visual").item()                                        # doctest: +SKIP
        0.98
    """
    out = Path(out)
    if out.exists() or not out.parent.is_dir():
        reason = (
            "exists; choose another folder" if out.exists() else f"{out.parent} does not exist; make it first"
        )
        raise InputError(f"{out}: {reason}")
    point = find_point(f"blocks.{layer}.{hook}", where="hook")
    size = check_point(model, *point, "layer")
    torch.manual_seed(settings.seed)
    begun = begin(point, size, settings.features or 8 * size, settings.active, model.name)
    answers: list[RunAnswer] = []
    for run in runs:
        check_run(model, run)
        source = AnswerSource(model, run)
        answers += [answer for sample in source.samples if (answer := source.find(sample)).ids]
    sets = image_sets([answer.sample for answer in answers])
    names = np.random.default_rng(settings.seed).permutation(np.unique(sets))
    if len(names) < 2:
        raise InputError("train dictionary: needs answers about two sets of images or more; one is held out")
    is_held = np.isin(sets, names[: max(1, round(settings.held_out * len(names)))])
    held, first = (
        [each for each, own in zip(answers, is_held, strict=True) if own == part] for part in (True, False)
    )
    with tempfile.TemporaryDirectory() as folder:
        groups = _collect_states(model, begun, first, Path(folder))
        counts = share_batch([len(group.states) for group in groups], settings.batch_size)
        trained = fit(begun, groups, counts, settings)
        del groups
    ds = measure_health(model, trained.to(model.device), held).assign_attrs(dictionary=str(out))
    with new_folder(out) as part:
        save_dictionary(trained, part)
        export(ds, part)
    return ds


def begin(point: Point, size: int, features: int, active: int, model: str) -> Dictionary:
    """Return a dictionary before its training: random directions, along which it reads and writes.

    Example:
        >>> begin(("resid_post", 3), size=4, features=16, active=2, model="mine").n_features
        16
    """
    if not active <= features:
        raise InputError(f"active {active}: must be at most the number of features, {features}")
    decoder = nn.functional.normalize(torch.randn(features, size), dim=-1)
    weights = {
        "W_enc": decoder.T.clone(),
        "b_enc": torch.zeros(features),
        "W_dec": decoder,
        "b_dec": torch.zeros(size),
    }
    return Dictionary("", "topk", point, point, weights, active, subtracts_bias=True, model=model)


def _collect_states(
    model: Model, begun: Dictionary, answers: Sequence[RunAnswer], folder: Path
) -> list[GroupStates]:
    """Return the states at a dictionary's point of visual, text and generated tokens, those that there are, without sinks.

    Args:
        folder: gets a file a group, from which the states are read: they need not fit the memory.
    """
    sums, counts = np.zeros((len(GROUPS), 2, begun.d_in)), np.zeros(len(GROUPS), int)
    size = _BATCH if model.family.batches else 1
    for start in tqdm(range(0, len(answers), size), desc="states", disable=None):
        for states in read_states(model, begun, (), answers[start : start + size]):
            is_sink, values = find_sinks(states.read, SINKS).cpu().numpy(), states.read.cpu().numpy()
            for number, group in enumerate(GROUPS):
                own = values[(states.group == number) & ~is_sink]
                with (folder / group).open("ab") as file:
                    file.write(own.tobytes())
                sums[number] += [own.sum(0, dtype=float), np.square(own, dtype=float).sum(0)]
                counts[number] += len(own)
    found = []
    for group, (total, squares), count in zip(GROUPS, sums, counts.tolist(), strict=True):
        if count:
            values = np.memmap(folder / group, np.float32, "r", shape=(count, begun.d_in))
            found.append(
                GroupStates(values, total / count, float((squares / count - (total / count) ** 2).sum()))
            )
    return found


def share_batch(sizes: Sequence[int], batch: int) -> list[int]:
    """Return how many tokens of each group a step reads: by the root of their number, so that few ones count (our choice).

    Example:
        >>> share_batch([10_000, 100], 110)
        [100, 10]
    """
    roots = np.sqrt(sizes)
    return np.maximum(1, np.round(batch * roots / roots.sum())).astype(int).tolist()


def fit(
    begun: Dictionary, groups: Sequence[GroupStates], counts: Sequence[int], settings: DictionarySettings
) -> Dictionary:
    """Return a dictionary that is trained on states, each group of which weighs as much as its tokens in a step.

    The loss is the squared error relative to the variance of the token's group and, for features that have not fired for a while,
    that of their own reconstruction of the error.

    Args:
        counts: how many tokens of each group a step reads.
    """
    scale = (groups[0].variance / begun.d_in) ** 0.5
    sizes = list(zip(groups, counts, strict=True))
    shares = torch.cat([torch.full((count,), scale**2 / group.variance) for group, count in sizes]) / sum(
        counts
    )
    weights = {name: nn.Parameter(value.clone()) for name, value in begun.weights.items()}
    with torch.no_grad():
        weights["b_dec"].copy_(torch.from_numpy(np.mean([group.mean for group in groups], 0) / scale))
    optimiser, steps = torch.optim.Adam(weights.values(), lr=settings.learning_rate), settings.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, 5 * (1 - step / steps)))
    idle = torch.zeros(begun.n_features)
    for step in (progress := tqdm(range(steps), desc="dictionary", mininterval=5, disable=None)):
        drawn = [group.states[torch.randint(len(group.states), (count,)).numpy()] for group, count in sizes]
        batch = torch.from_numpy(np.concatenate(drawn)) / scale
        before = (batch - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]
        features = _keep_largest(before, begun.k or 1)
        error = batch - features @ weights["W_dec"] - weights["b_dec"]
        loss = (error.pow(2).sum(-1) * shares).sum()
        idle = torch.where((features > 0).any(0), 0, idle + 1)
        dead = (idle > settings.dead_after).nonzero()[:, 0]
        if len(dead):
            own = _keep_largest(before[:, dead], min(MOST_DEAD, len(dead)))
            rest, whole = error.detach() - own @ weights["W_dec"][dead], error.detach().pow(2).sum(-1)
            loss = loss + AUXILIARY * (rest.pow(2).sum(-1) / whole.clamp_min(1e-6)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            weights["W_dec"].div_(weights["W_dec"].norm(dim=-1, keepdim=True))
        if step % 100 == 0:
            progress.set_postfix(loss=loss.item(), dead=len(dead))
    plain = {name: value.detach().clone() for name, value in weights.items()}
    for name in ("b_enc", "b_dec"):  # of the states as they are: an activation is a length in the stream
        plain[name] *= scale
    return replace(begun, weights=plain)


def _keep_largest(before: Tensor, count: int) -> Tensor:
    """Return the largest values of each row, where they are above 0, and 0 elsewhere."""
    largest = before.topk(count, -1)
    return torch.zeros_like(before).scatter(-1, largest.indices, largest.values.relu())
