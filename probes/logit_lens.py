"""Logit lens: read each layer's residual stream through the final norm and the unembedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.analyses.source import SampleRows
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.prompt import decode_sequence, decode_tokens
from mmprobe.models.reading import cast_to_float32
from mmprobe.probes.answers import check_traced_model
from mmprobe.stats.compare import LABELS, MINIMUM
from mmprobe.stats.intervals import FRACTION, LENGTH, LOGPROB

RANGES = {"logprob": LOGPROB, "entropy": LENGTH, "first_share": FRACTION}
MEASURES = tuple(RANGES)
LensFunction = Callable[[Tensor], Tensor]


def logit_lens(model: Model, trace: Trace, top: int = 5) -> xr.Dataset:
    """Return each layer's prediction of the next token, at every step of one answer.

    The residual stream goes through the model's final norm and unembedding in single precision, without the
    later layers (nostalgebraist, 2020, "interpreting GPT: the logit lens"). Nothing is trained. An early
    layer with a poor prediction may still contain the information in a form that later layers transform.

    Args:
        model: the traced model.
        trace: a trace with `residual/post`.
        top: number of most likely tokens to list; our choice, the default is 5.

    Returns:
        A data set with dimensions `step`, `layer` (captured layers), `top`. Logarithms are natural.

        - logprob (step, layer): log-probability of the generated token, in nat. In the model's last layer it
          equals `steps/logprob` up to the precision of the stored residuals
        - rank (step, layer): number of tokens that are more likely; 0 for the most likely token
        - entropy (step, layer): entropy of the distribution, in nat
        - top_token, top_logprob (step, layer, top): texts and log-probabilities of the most likely tokens
        - depth (step): the first captured layer from which on the generated token has rank 0 in every layer;
          NaN if its rank in the last layer is not 0
        - token (step): texts of the generated tokens

        Layers that did not run are NaN, and their top_token is empty.

    Raises:
        NotApplicable: the family scales or caps its logits, so they are not the unembedding of the final
            norm.
        NotCaptured: resid_post was not captured.
        InputError: another model made the trace, the answer is empty, or top is out of range.

    Example:
        >>> ds = logit_lens(model, run["0001"])                     # doctest: +SKIP
        >>> ds.top_token.sel(step=0, layer=7).values                # doctest: +SKIP
        array([' yes', ' no', ...])
    """
    return _answer_lens(model, trace, make_lens(model), top)


def logit_lens_run(model: Model, run: Run, minimum: int = MINIMUM) -> xr.Dataset:
    """Return how well each layer predicts the generated tokens, over the answers of a run, by label.

    Args:
        model: the traced model.
        run: traces with `residual/post`.
        minimum: samples of each group for the comparison; our choice, the default is 5.

    Returns:
        A data set with dimensions `sample`, `layer`, `label` (all, faithful, unfaithful), `measure`.

        - logprob, entropy (sample, layer): means over the steps of each answer, in nat; see `logit_lens`
        - first_share (sample, layer): share of steps at which the generated token has rank 0
        - NAME_by_label (label, layer), with _low, _high: means over samples; n_label (label)
        - difference, with _low, _high, effect, p, p_holm (measure, layer): unfaithful minus faithful
          (`compare_groups`; Holm's correction over the layers of a measure); n_faithful, n_unfaithful. NaN if
          a group has fewer than `minimum` samples, with the reason in attrs["note"]

        Intervals are 95 % intervals over sets of images (`stats.intervals`); attrs["sets"] is their
        number. Samples without steps or with non-finite residuals are excluded. attrs["left_out"] names them,
        and n_left_out counts them.

    Raises:
        NotApplicable: as in `logit_lens`, or no sample has finite values.
        NotCaptured: resid_post was not captured.
        InputError: the run is empty, or another model made it.

    Example:
        >>> ds = logit_lens_run(model, run)                         # doctest: +SKIP
        >>> ds.first_share_by_label.sel(label="unfaithful").values  # doctest: +SKIP
    """
    if not len(run):
        raise InputError(f"{run.path}: has no finished samples")
    lens = make_lens(model)
    measured = SampleRows("logit_lens", run)
    for name, trace in run.stream("logit_lens"):
        residual = trace.array("residual/post")
        values = (
            _measure_trace(model, trace, lens) if len(residual) else np.full((1, len(MEASURES), 1), np.nan)
        )
        if not np.isfinite(values).all():
            measured.left_out.append(name)
            continue
        measured.add(trace, {"means": values.mean(0)})
    if not len(measured):
        raise NotApplicable(f"{run.path}: every sample has non-finite values in residual/post")
    coords = {"sample": measured.names, "layer": residual["layer"].values}
    out = xr.Dataset(coords=coords | {"label": list(LABELS), "measure": list(MEASURES)})
    values, labels = measured.rows["means"], measured.labels  # [sample, measure, layer]
    for index, name in enumerate(MEASURES):
        out[name] = (("sample", "layer"), values[:, index])
        out.update(labels.means(f"{name}_by_label", values[:, index], RANGES[name]))
    differences, note = labels.compare(values, ("measure", "layer"), minimum)
    out.update(labels.counts() | differences)
    about = {"analysis": "logit_lens", "about": "How well each layer predicts the generated tokens."}
    out.attrs = about | measured.describe(note)
    return out


def make_lens(model: Model) -> LensFunction:
    """Return a function from a residual stream [..., hidden] to log-probabilities [..., vocabulary].

    It computes in float32.

    Half-precision weights are copied once; see `cast_to_float32`.

    Raises:
        NotApplicable: the family scales or caps its logits.

    Example:
        >>> from mmprobe.models import load_model
        >>> make_lens(load_model("tiny-spd", device="cpu"))(torch.ones(2, 192)).exp().sum(-1).round().tolist()
        [1.0, 1.0]
    """
    if not model.has_plain_logits:
        raise NotApplicable(
            f"{model.name}: {model.family.name} scales or caps its logits after the unembedding, and the "
            "logit lens would ignore that"
        )
    norm, unembedding = map(
        cast_to_float32, (model.family.final_norm(model.hf), model.hf.get_output_embeddings())
    )

    def lens(stream: Tensor) -> Tensor:
        with torch.inference_mode():
            return unembedding(norm(stream.to(model.device, torch.float32))).log_softmax(-1)

    return lens


def final_norm(model: Model) -> Callable[[np.ndarray], np.ndarray]:
    """Return a model's last norm, from states [..., hidden] to states, in float32.

    `mmprobe.analyses.residual_drift` takes it for the reading of the released code.

    Example:
        >>> from mmprobe.models import load_model
        >>> final_norm(load_model("tiny-spd", device="cpu"))(np.ones((2, 192))).shape
        (2, 192)
    """
    norm = cast_to_float32(model.family.final_norm(model.hf))

    def normalize(states: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return norm(torch.from_numpy(states).to(model.device, torch.float32)).cpu().numpy()

    return normalize


def _answer_lens(model: Model, trace: Trace, lens: LensFunction, top: int) -> xr.Dataset:
    vocabulary = len(model.hf.get_output_embeddings().weight)
    if not 1 <= top <= vocabulary:
        raise InputError(f"top {top}: must be 1 to {vocabulary}, the size of the vocabulary")
    ids = trace.steps["id"].values
    layers = trace.array("residual/post")["layer"].values
    if not len(ids):
        raise InputError(f"trace {trace.id}: its answer has no tokens")
    shape = (len(ids), len(layers))
    values = {name: np.full(shape, np.nan) for name in ("logprob", "rank", "entropy")}
    top_logprobs = np.full((*shape, top), np.nan)
    top_ids = np.full((*shape, top), -1)
    for steps, layer, logprobs, block_ids in _read_blocks(model, trace, lens):
        generated = logprobs.gather(1, block_ids[:, None])
        values["logprob"][steps, layer] = generated[:, 0].cpu().numpy()
        values["rank"][steps, layer] = _rank_of(logprobs, generated)
        values["entropy"][steps, layer] = _entropy(logprobs)
        best = logprobs.topk(top)
        did_run = np.isfinite(generated.cpu().numpy())
        top_logprobs[steps, layer] = best.values.cpu().numpy()
        top_ids[steps, layer] = np.where(did_run, best.indices.cpu().numpy(), -1)
    _check_last_layer(model, trace, layers, values["logprob"])
    known = np.unique(top_ids[top_ids >= 0])
    texts = dict(zip(known.tolist(), decode_tokens(model, known), strict=True))
    out = xr.Dataset({name: (("step", "layer"), array) for name, array in values.items()})
    top_tokens = [[[texts.get(i, "") for i in ids] for ids in layer_ids] for layer_ids in top_ids.tolist()]
    out["top_token"] = (("step", "layer", "top"), np.array(top_tokens, dtype=str))
    out["top_logprob"] = (("step", "layer", "top"), top_logprobs)
    out["depth"] = ("step", find_depth(values["rank"], layers))
    out["token"] = ("step", np.array(decode_sequence(model, ids), dtype=str))
    out = out.assign_coords(step=np.arange(len(ids)), layer=layers, top=np.arange(top))
    out.attrs = {"analysis": "logit_lens", "sample": trace.id, "answer": trace.answer, "model": model.name}
    return out


def find_depth(rank: np.ndarray, layers: np.ndarray) -> np.ndarray:
    """Return [step], the first layer from which on all ranks [step, layer] are 0; NaN if the last is not 0.

    Example:
        >>> find_depth(np.array([[0, 1, 0, 0], [0, 0, 0, 2]]), np.array([0, 2, 4, 6]))
        array([ 4., nan])
    """
    counts = np.logical_and.accumulate((rank == 0)[:, ::-1], axis=1).sum(1)  # final layers of rank 0
    return np.array([layers[-count] if count else np.nan for count in counts.tolist()], float)


def _measure_trace(model: Model, trace: Trace, lens: LensFunction) -> np.ndarray:
    """Return the measures of a trace, [step, measure, layer]; NaN if a residual is not finite."""
    residual = trace.array("residual/post")
    values = np.full((len(residual), len(MEASURES), residual.sizes["layer"]), np.nan)
    for steps, layer, logprobs, ids in _read_blocks(model, trace, lens):
        generated = logprobs.gather(1, ids[:, None])
        rank = _rank_of(logprobs, generated)
        first = np.where(np.isfinite(rank), rank == 0, np.nan)
        values[steps, :, layer] = np.stack([generated[:, 0].cpu().numpy(), _entropy(logprobs), first], 1)
    _check_last_layer(model, trace, residual["layer"].values, values[:, 0])
    return values


def _read_blocks(
    model: Model, trace: Trace, lens: LensFunction
) -> Iterator[tuple[slice, int, Tensor, Tensor]]:
    """Yield blocks: steps, layer index, log-probabilities [step, vocabulary] and generated ids [step]."""
    residual, ids = trace.array("residual/post"), trace.steps["id"].values
    unembedding = model.hf.get_output_embeddings().weight
    if residual.shape[-1] != unembedding.shape[1] or ids.max(initial=0) >= len(unembedding):
        raise InputError(
            f"trace {trace.id}: was not made by {model.name}, which has another hidden or vocabulary size"
        )
    for start in range(0, len(ids), BLOCK_STEPS):
        steps = slice(start, min(start + BLOCK_STEPS, len(ids)))
        block = residual[steps].values
        block_ids = torch.from_numpy(ids[steps].astype(np.int64)).to(model.device)
        for layer in range(block.shape[1]):
            yield steps, layer, lens(torch.from_numpy(block[:, layer])), block_ids


def _rank_of(logprobs: Tensor, generated: Tensor) -> np.ndarray:
    rank = (logprobs > generated).sum(1).cpu().double()  # MPS has no float64
    return rank.masked_fill(generated[:, 0].isnan().cpu(), torch.nan).numpy()


def _entropy(logprobs: Tensor) -> np.ndarray:
    return torch.special.entr(logprobs.exp()).sum(-1).cpu().numpy()


def _check_last_layer(model: Model, trace: Trace, layers: np.ndarray, logprob: np.ndarray) -> None:
    """Check that the last layer, if captured, predicts what the model generated."""
    if layers[-1] == model.n_layers - 1:
        check_traced_model(model, trace, logprob[:, -1])
