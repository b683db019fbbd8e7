"""Subspaces that carry a variable: interchange interventions with a learnt basis, and their controls (DAS)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from tqdm import tqdm
from transformer_lens.tools.analysis.interchange import (
    SubspaceInterchange,
    arbitrary_targets,
    collect_activations,
    fit_das,
    intervened_logits,
    random_basis,
)

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.devices import find_device
from mmprobe.models.hooks import replace
from mmprobe.models.reading import Reading
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_known

CONTROLS = ("learned", "random subspace", "arbitrary labels", "random initialisation")
HELD_OUT = 0.5
InterchangePair = tuple[Sample, Sample, int]


def align_subspace(
    model: Model,
    pairs: Sequence[InterchangePair],
    choices: Sequence[str],
    layer: int,
    rank: int = 1,
    *,
    epochs: int = 10,
    batch_size: int = 16,
    lr: float = 0.01,
    seed: int = 0,
) -> xr.Dataset:
    """Return whether a subspace of the residual stream carries a variable: its interchange accuracy.

    The stream after a layer, at the last token of the prompt, is set to that of another sample, inside a
    subspace only. If the answer becomes the one that a causal model predicts for the base with the variable of
    the source, the subspace carries the variable there (Geiger et al., 2021, arXiv:2106.02997). The subspace
    is learnt by distributed alignment search (Geiger et al., 2024, arXiv:2303.02536; TransformerLens' code) on
    one part of the pairs and scored on the others.

    Use it to test whether a variable, such as the verdict, is in a direction at a layer, where steering shows
    that the direction matters. If you try many layers, score the best one on pairs that you did not use before.

    Accuracy alone means little: the search also fits arbitrary labels and models that learnt nothing. So three
    controls are trained and scored in the same way: a random subspace, arbitrary labels, and the model with
    random weights.

    Args:
        pairs: base sample, source sample, and the number of the choice that the causal model predicts for the
            base with the source's variable. Give pairs that differ in more than the variable, too.
        choices: beginnings of answers, such as `("Yes", "No")`. Their first tokens must differ.
        layer: the layer.
        rank: dimensions of the subspace.
        epochs: passes of the search over the pairs. TransformerLens' defaults, but for fewer epochs, are our choice.
        batch_size: pairs that are read together.
        lr: the learning rate.
        seed: of the basis, the order, the controls and the held-out half. Pairs that share images are in one half.

    Returns:
        A data set with dimensions `control`, `hidden`, `component`, `pair`.

        - accuracy, accuracy_low, accuracy_high (control): share of held-out pairs with the predicted answer,
          with 95 % intervals over sets of images
        - unchanged (): the same share without an intervention, which the learnt subspace must exceed
        - basis (hidden, component): orthonormal
        - right (control, pair): of each held-out pair; source (pair), base (pair): their ids
        - n (): number of held-out pairs

    Raises:
        InputError: an argument is out of range, two choices begin with one token, or one half has no pairs.

    Example:
        >>> ds = align_subspace(model, pairs, ("Yes", "No"), layer=5)          # doctest: +SKIP
        >>> ds.accuracy.sel(control="learned").item()                          # doctest: +SKIP
        0.94
    """
    _check_arguments(model, layer, rank, epochs)
    tokens = _first_tokens(model, choices)
    labels = np.array([label for *_, label in pairs], int)
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(choices)):
        raise InputError(
            f"pairs: a label is not between 0 and {len(choices) - 1}, the numbers of the choices"
        )
    train, test, groups = _split_pairs(pairs, seed)
    sources = [source.id for _, source, _ in pairs]
    task = _Task(model, pairs, tokens, layer)
    random = _Task(replace_fields(model, hf=_random_copy(model.hf, seed)), pairs, tokens, layer)
    arbitrary = arbitrary_targets(sources, len(choices), seed).numpy()
    searches = {
        "learned": (task, labels),
        "arbitrary labels": (task, arbitrary),
        "random initialisation": (random, labels),
    }
    right: dict[str, np.ndarray] = {}
    bases: dict[str, Tensor] = {}
    for name, (searched, targets) in tqdm(
        searches.items(), desc="align_subspace", unit="search", disable=None
    ):
        numbers = torch.from_numpy(train)
        bases[name] = fit_das(
            searched,
            "",
            numbers,
            numbers + len(pairs),
            torch.from_numpy(targets[train]),
            searched.read_choices,
            rank=rank,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
        ).basis
        right[name] = searched.choose(test, bases[name], batch_size) == targets[test]
    placebo = random_basis(len(bases["learned"]), rank, seed)
    right["random subspace"] = task.choose(test, placebo, batch_size) == labels[test]
    unchanged = task.choose(test, torch.zeros_like(placebo), batch_size) == labels[test]
    matrix = np.array([right[name] for name in CONTROLS])
    out = xr.Dataset(coords={"control": list(CONTROLS), "pair": test})
    out.update(estimate_known(matrix.T, groups[test]).variables("accuracy", "control"))
    out["unchanged"] = ((), unchanged.mean())
    out["basis"] = (("hidden", "component"), bases["learned"].cpu().numpy())
    out["right"] = (("control", "pair"), matrix)
    for part, position in {"base": 0, "source": 1}.items():
        out[part] = ("pair", np.array([pairs[number][position].id for number in test], dtype=str))
    out["n"] = ((), len(test))
    out.attrs = {
        "analysis": "subspace",
        "about": "Share of interchanges within a subspace that give the predicted answer, on held-out pairs.",
        "model": model.name,
        "layer": layer,
        "rank": rank,
        "choices": ", ".join(choices),
        "n_train": len(train),
        "n_groups": len(np.unique(groups[test])),
        "epochs": epochs,
        "seed": seed,
    }
    return out


class _Task(nn.Module):
    """A model whose inputs are numbers: those of the pairs for bases, and those beyond for sources.

    TransformerLens' search hooks it by `hooks`, and gets the stream after the layer at the last position.
    """

    def __init__(self, model: Model, pairs: Sequence[InterchangePair], tokens: Tensor, layer: int):
        super().__init__()
        self.hf = model.hf
        self._model, self._tokens = model, tokens
        self._samples = [base for base, *_ in pairs] + [source for _, source, _ in pairs]
        self._module = model.family.decoder(model.hf).layers[layer]
        self.eval()

    @contextmanager
    def hooks(self, fwd_hooks: Sequence[tuple[str, Callable[..., Tensor | None]]]) -> Iterator[None]:
        """Within the block, call TransformerLens' hooks with the stream [batch, hidden]."""
        with ExitStack() as stack:
            for _, hook in fwd_hooks:
                stack.enter_context(replace(self._module, outputs=partial(_change_last, hook)))
            yield

    def read_choices(self, numbers: Tensor) -> Tensor:
        """Return the logits of the choices after the prompts, [batch, choice]."""
        samples = [self._samples[number] for number in numbers.tolist()]
        reading = Reading(self._model, self._model.batch(samples), [()] * len(samples))
        return reading.logits()[:, 0, self._tokens]

    def choose(self, numbers: np.ndarray, basis: Tensor, batch_size: int) -> np.ndarray:
        """Return the choice of each pair under the interchange, int [pair]."""
        bases = torch.from_numpy(numbers)
        count = len(self._samples) // 2
        sources = collect_activations(self, "", bases + count, self.read_choices, batch_size=batch_size)
        logits = intervened_logits(
            self, "", SubspaceInterchange(basis), bases, sources, self.read_choices, batch_size=batch_size
        )
        return logits.argmax(-1).numpy()


def _change_last(hook: Callable[..., Tensor | None], stream: Tensor) -> Tensor:
    changed = hook(stream[:, -1], hook=None)
    return stream if changed is None else torch.cat([stream[:, :-1], changed[:, None]], 1)


def _check_arguments(model: Model, layer: int, rank: int, epochs: int) -> None:
    hidden = model.hf.config.get_text_config().hidden_size
    if not 0 <= layer < model.n_layers:
        raise InputError(f"layer {layer}: the model has layers 0 to {model.n_layers - 1}")
    if not 1 <= rank <= hidden:
        raise InputError(f"rank {rank}: must be 1 to {hidden}")
    if epochs < 1:
        raise InputError(f"epochs {epochs}: must be 1 or more")


def _first_tokens(model: Model, choices: Sequence[str]) -> Tensor:
    """Return the first token of each choice."""
    ids = [model.tokenizer(choice, add_special_tokens=False)["input_ids"] for choice in choices]
    first = [tokens[0] for tokens in ids if tokens]
    if len(choices) < 2 or len(set(first)) < len(choices):
        raise InputError(
            f"choices {', '.join(choices)}: give two or more texts that begin with different tokens"
        )
    return torch.tensor(first, device=model.device)


def _split_pairs(pairs: Sequence[InterchangePair], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of the pairs for training and testing, and the set of images of each pair."""
    joined = [
        Sample(id=str(number), question="?", images=[*base.images, *source.images])
        for number, (base, source, _) in enumerate(pairs)
    ]
    groups = image_sets(joined) if joined else np.zeros(0, int)
    order = np.random.default_rng(seed).permutation(len(np.unique(groups)))
    in_train = np.isin(groups, order[: round(len(order) * (1 - HELD_OUT))])
    if not in_train.any() or in_train.all():
        raise InputError(f"pairs: {len(pairs)} over {len(order)} sets of images; each half needs one set")
    return np.flatnonzero(in_train), np.flatnonzero(~in_train), groups


def _random_copy(hf: Any, seed: int) -> nn.Module:
    """Return a model of the same config with the initial weights of its class."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        other = type(hf)(copy.deepcopy(hf.config))
    return other.to(device=find_device(hf.get_input_embeddings()), dtype=hf.dtype).eval()
