"""What each layer would have said: the residual stream read through the final norm and the unembedding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from mmprobe.analyses.statistics import (
    LABELS,
    MINIMUM,
    compare_labels,
    label_masks,
    means_by_label,
)
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.prompt import decode_tokens

MEASURES = ("logprob", "entropy", "first_share")
_OTHER_MODEL = 1.0  # nat that the last layer is off, on average, only where the residuals are another model's
Lens = Callable[[Tensor], Tensor]


def logit_lens(model: Model, trace: Trace, top: int = 5) -> xr.Dataset:
    """What the residual stream after each layer says the next token is, at every step of one answer.

    The stream goes through the model's final norm and unembedding, in single precision, as if the layers that
    follow were not there (nostalgebraist, 2020, "interpreting GPT: the logit lens"). Nothing is trained: that
    an early layer says little may be because later layers turn what it holds, not because it holds little.

    Args:
        model: the one that was traced.
        trace: with `residual/post`.
        top: most likely tokens to list; ours, the default is 5.

    Returns:
        A data set with dimensions `step`, `layer` (captured ones), `top`. Logarithms are natural.

        - logprob (step, layer): log-probability of the token that was generated, in nat; for the model's last
          layer this is `steps/logprob`, up to the precision of the stored residuals
        - rank (step, layer): how many tokens are more likely than it, 0 for the most likely one
        - entropy (step, layer): of the distribution, in nat
        - top_token, top_logprob (step, layer, top): the most likely tokens' texts and log-probabilities
        - depth (step): the first captured layer from which on the generated token is the most likely one in
          all that follow, NaN if it is not in the last
        - token (step): the generated tokens' texts

        Layers that did not run are NaN, and their top_token is empty.

    Raises:
        NotApplicable: the family scales or caps its logits, so they are not the unembedding of its final norm.
        NotCaptured: resid_post was not captured.
        InputError: the trace is another model's, is empty, or top is out of range.

    Example:
        >>> ds = logit_lens(model, run["0001"])                     # doctest: +SKIP
        >>> ds.top_token.sel(step=0, layer=7).values                # doctest: +SKIP
        array([' yes', ' no', ...])
    """
    return _one(model, trace, make_lens(model), top)


def logit_lens_run(model: Model, run: Run, minimum: int = MINIMUM) -> xr.Dataset:
    """How early the layers say what is going to be said, over the answers of a run, by label.

    Args:
        model: the one that was traced.
        run: traces with `residual/post`.
        minimum: samples that both groups of the comparison need; ours, the default is 5.

    Returns:
        A data set with dimensions `sample`, `layer`, `label` (all, faithful, unfaithful), `measure`.

        - logprob, entropy (sample, layer): means over the steps of each answer, in nat; see `logit_lens`
        - first_share (sample, layer): share of the steps whose token is the most likely one at the layer
        - NAME_by_label (label, layer), with _low, _high: means of these over samples; n_label (label)
        - difference, with _low, _high, effect, p, p_holm (measure, layer): unfaithful minus faithful
          (`compare_groups`; Holm over the layers of a measure); n_faithful, n_unfaithful. NaN where a group
          has fewer than `minimum` samples; attrs["note"] says so.

        Intervals are 95 % percentile bootstraps over samples. attrs["left_out"] names samples without steps
        or with a residual that is not finite; n_left_out counts them, and nothing holds them.

    Raises:
        NotApplicable: as `logit_lens`, or no sample has finite values.
        NotCaptured: resid_post was not captured.
        InputError: the run is empty or another model's.

    Example:
        >>> ds = logit_lens_run(model, run)                         # doctest: +SKIP
        >>> ds.first_share_by_label.sel(label="unfaithful").values  # doctest: +SKIP
    """
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    lens = make_lens(model)
    rows, names, labels, left_out = [], [], [], []
    for name, trace in run.stream("logit_lens"):
        residual = trace.array("residual/post")
        found = _measured(model, trace, lens) if len(residual) else np.full((1, len(MEASURES), 1), np.nan)
        if not np.isfinite(found).all():
            left_out.append(name)
            continue
        rows.append(found.mean(0))
        names.append(name)
        labels.append(run.faithful(name))
    if not rows:
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in residual/post")
    coords = {"sample": names, "layer": residual["layer"].values}
    out = xr.Dataset(coords=coords | {"label": list(LABELS), "measure": list(MEASURES)})
    note = _add_means(out, np.array(rows), label_masks(labels), minimum)
    out.attrs = {
        "analysis": "logit_lens",
        "about": "How early the layers say what is going to be said.",
        "run": str(run.path),
        "samples": len(rows),
        "model": run.config["model"]["name"],
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    } | ({"note": note} if note else {})
    return out


def make_lens(model: Model) -> Lens:
    """Log-probabilities [..., vocabulary] of the next token from a residual stream [..., hidden], in float32.

    Weights in half precision are copied once; see `cast_to_float32`.

    Raises:
        NotApplicable: the family scales or caps its logits.

    Example:
        >>> from mmprobe.models import load_model
        >>> make_lens(load_model("tiny-spd", device="cpu"))(torch.ones(2, 192)).exp().sum(-1).round().tolist()
        [1.0, 1.0]
    """
    if not model.has_plain_logits:
        raise NotApplicable(
            f"{model.name}: {model.family.name} scales or caps its logits behind the unembedding, which the "
            "logit lens would leave out"
        )
    norm, unembedding = map(
        cast_to_float32, (model.family.decoder(model.hf).norm, model.hf.get_output_embeddings())
    )

    def lens(stream: Tensor) -> Tensor:
        with torch.inference_mode():
            return unembedding(norm(stream.to(model.device, torch.float32))).log_softmax(-1)

    return lens


def cast_to_float32(part: nn.Module) -> nn.Module:
    """A part of a model in single precision: itself, or a copy without gradients (2.2 GB for the unembedding of a 7B).

    Example:
        >>> cast_to_float32(nn.Linear(2, 3, dtype=torch.bfloat16)).weight.dtype
        torch.float32
    """
    if next(part.parameters()).dtype == torch.float32:
        return part
    return copy.deepcopy(part).float().requires_grad_(False)


def _one(model: Model, trace: Trace, lens: Lens, top: int) -> xr.Dataset:
    vocabulary = len(model.hf.get_output_embeddings().weight)
    if not 1 <= top <= vocabulary:
        raise InputError(f"top {top}: must be 1 to {vocabulary}, the size of the vocabulary")
    ids = trace.steps["id"].values
    layers = trace.array("residual/post")["layer"].values
    if not len(ids):
        raise InputError(f"trace {trace.id}: its answer has no tokens")
    shape = (len(ids), len(layers))
    found = {name: np.full(shape, np.nan) for name in ("logprob", "rank", "entropy")}
    tops, top_ids = np.full((*shape, top), np.nan), np.full((*shape, top), -1)
    for where, layer, logprobs, said in _blocks(model, trace, lens):
        own = logprobs.gather(1, said[:, None])
        found["logprob"][where, layer] = own[:, 0].cpu().numpy()
        found["rank"][where, layer] = _rank(logprobs, own)
        found["entropy"][where, layer] = _entropy(logprobs)
        best = logprobs.topk(top)
        ran = np.isfinite(own.cpu().numpy())
        tops[where, layer] = best.values.cpu().numpy()
        top_ids[where, layer] = np.where(ran, best.indices.cpu().numpy(), -1)
    _check_last(model, trace, layers, found["logprob"])
    known = np.unique(top_ids[top_ids >= 0])
    texts = dict(zip(known.tolist(), decode_tokens(model, known), strict=True))
    out = xr.Dataset({name: (("step", "layer"), values) for name, values in found.items()})
    spoken = [[[texts.get(i, "") for i in of_layer] for of_layer in of_step] for of_step in top_ids.tolist()]
    out["top_token"] = (("step", "layer", "top"), np.array(spoken, dtype=str))
    out["top_logprob"] = (("step", "layer", "top"), tops)
    out["depth"] = ("step", find_depth(found["rank"], layers))
    out["token"] = ("step", np.array(decode_tokens(model, ids), dtype=str))
    out = out.assign_coords(step=np.arange(len(ids)), layer=layers, top=np.arange(top))
    out.attrs = {"analysis": "logit_lens", "sample": trace.id, "answer": trace.answer, "model": model.name}
    return out


def find_depth(rank: np.ndarray, layers: np.ndarray) -> np.ndarray:
    """For ranks [step, layer], the first layer from which on all are 0, [step]; NaN if the last is not.

    Example:
        >>> find_depth(np.array([[0, 1, 0, 0], [0, 0, 0, 2]]), np.array([0, 2, 4, 6]))
        array([ 4., nan])
    """
    settled = np.logical_and.accumulate((rank == 0)[:, ::-1], axis=1).sum(1)  # layers at the end of rank 0
    return np.array([layers[-count] if count else np.nan for count in settled.tolist()], float)


def _measured(model: Model, trace: Trace, lens: Lens) -> np.ndarray:
    """The measures of a trace, [step, measure, layer]; NaN where a residual is not finite."""
    residual = trace.array("residual/post")
    found = np.full((len(residual), len(MEASURES), residual.sizes["layer"]), np.nan)
    for where, layer, logprobs, said in _blocks(model, trace, lens):
        own = logprobs.gather(1, said[:, None])
        first = np.where(np.isfinite(rank := _rank(logprobs, own)), rank == 0, np.nan)
        found[where, :, layer] = np.stack([own[:, 0].cpu().numpy(), _entropy(logprobs), first], 1)
    _check_last(model, trace, residual["layer"].values, found[:, 0])
    return found


def _blocks(model: Model, trace: Trace, lens: Lens) -> Iterator[tuple[slice, int, Tensor, Tensor]]:
    """Steps, index of the layer, log-probabilities [step, vocabulary] and ids said [step], block by block."""
    residual, ids = trace.array("residual/post"), trace.steps["id"].values
    unembedding = model.hf.get_output_embeddings().weight
    if residual.shape[-1] != unembedding.shape[1] or ids.max(initial=0) >= len(unembedding):
        raise InputError(f"trace {trace.id}: was not made by {model.name}, whose stream has another width")
    for start in range(0, len(ids), BLOCK_STEPS):
        where = slice(start, min(start + BLOCK_STEPS, len(ids)))
        block = residual[where].values
        said = torch.from_numpy(ids[where].astype(np.int64)).to(model.device)
        for layer in range(block.shape[1]):
            yield where, layer, lens(torch.from_numpy(block[:, layer])), said


def _rank(logprobs: Tensor, own: Tensor) -> np.ndarray:
    rank = (logprobs > own).sum(1).cpu().double()  # MPS has no float64
    return rank.masked_fill(own[:, 0].isnan().cpu(), torch.nan).numpy()


def _entropy(logprobs: Tensor) -> np.ndarray:
    return torch.special.entr(logprobs.exp()).sum(-1).cpu().numpy()


def _check_last(model: Model, trace: Trace, layers: np.ndarray, logprob: np.ndarray) -> None:
    """The model's last layer must say what the model said."""
    if layers[-1] != model.n_layers - 1:
        return
    off = np.abs(logprob[:, -1] - trace.steps["logprob"].values).mean()
    if off > _OTHER_MODEL:
        raise InputError(
            f"trace {trace.id}: was not made by {model.name}, whose last layer would be {off:.1f} nat off"
        )


def _add_means(out: xr.Dataset, values: np.ndarray, members: dict[str, np.ndarray], minimum: int) -> str:
    """Add what the values [sample, measure, layer] give, and say why groups are not compared, if so."""
    for index, name in enumerate(MEASURES):
        out[name] = (("sample", "layer"), values[:, index])
        out.update(means_by_label(f"{name}_by_label", values[:, index], members, ("label", "layer")))
    out["n_label"] = ("label", [int(mine.sum()) for mine in members.values()])
    out["n_faithful"], out["n_unfaithful"] = ((), int(out["n_label"][1])), ((), int(out["n_label"][2]))
    compared, note = compare_labels(values, members, ("measure", "layer"), minimum)
    out.update(compared)
    return note
