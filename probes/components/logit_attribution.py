"""Direct logit attribution: what each component adds to the logit of each token of an answer."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model
from mmprobe.models.attention import AttentionCall, softmax_rows
from mmprobe.models.devices import read_weight
from mmprobe.models.hooks import Listener
from mmprobe.models.points import Point
from mmprobe.models.reading import Reading
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput, name_answer, read_true_answer
from mmprobe.probes.tokens import touched_cells
from mmprobe.samples import Sample

TOLERANCE = 1e-4  # of the sum, as a share of the largest logit
_SOURCES = tuple(group.name.lower() for group in Group)


def direct_logit_attribution(
    model: Model,
    sample: Sample,
    contrast: str | None = None,
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return what each component adds to the logit of each token of an answer, straight through the unembedding.

    The residual stream at a step's query is the sum of the embedding and of what heads and FFNs add. The
    scale of the final norm is kept as it is ("frozen"), so the logit is a sum over components (Elhage et al.,
    2021, "A mathematical framework for transformer circuits"; Wang et al., 2023). A head's part is again a
    sum over the tokens that it attends to: attention times value vector, through the output projection.

    It takes one forward pass.

    Use it to see what is written into the answer, and straight from which image region. It does not see what
    a component does for later components; `patch_components` does.

    Args:
        sample: the sample with the explained answer.
        contrast: a word; then the logit is that of each step's token minus that of the word's first token.
        answer: text or token ids, such as `run[sample.id].answer`, what the model said. None for the true one in
            `sample.answer`, or the model's own greedy answer if there is none; attrs["answer_from"] tells.
        max_new_tokens: maximum length of the model's own answer; our choice, the default is 64.

    Returns:
        A data set with dimensions `component`, `step`, `source` (template, system, visual, user, generated),
        `region`. Values are logits.

        - share (component, step): sums to `logit`. Components are `embedding`, `head L.H`, `ffn L`, and where
          there are such, `bias L` (of the attention's output) and `between L` (added between layers)
        - logit (step)
        - by_source (component, source, step): for heads, the part from the tokens of each group; the sources
          of a head sum to its share. 0 for other components
        - by_region (region, step): the part of all heads from the visual tokens that a region touches
        - kind (component), layer (component): embedding, head, ffn, bias or between; -1 for the embedding
        - token (step): texts of the tokens

        attrs: n, the number of components; forward_passes; largest_error of the sum.

    Raises:
        NotApplicable: the family scales or caps its logits, or its norms or projections are of another form.
        InputError: the answer is empty.

    Example:
        >>> ds = direct_logit_attribution(model, samples[0])                # doctest: +SKIP
        >>> ds.share.sum("component").values - ds.logit.values               # doctest: +SKIP
        array([-1.9e-06,  9.5e-07])
    """
    if not model.has_plain_logits:
        raise NotApplicable(
            f"{model.name}: {model.family.name} scales or caps its logits, so they are not a sum"
        )
    if model.why_irregular:
        raise NotApplicable(f"{model.name}: {model.why_irregular}, of which this probe makes the sum")
    reading = read_true_answer(model, sample, answer, max_new_tokens)
    record = _AnswerPass(reading)
    direction, logit = record.direction(contrast)
    parts, regions = _list_parts(record, sample, direction)
    share = np.array([part.share for part in parts])
    error = float(np.abs(share.sum(0) - logit).max())
    if error > TOLERANCE * max(1.0, float(np.abs(logit).max())):
        raise NotApplicable(
            f"{model.name}: the components of {model.family.name} sum to another logit (off by {error:.2g}); its norms "
            "or projections are of a form that this probe does not know"
        )
    names = [part.name for part in parts]
    out = xr.Dataset(coords={"component": names, "step": np.arange(len(logit)), "source": list(_SOURCES)})
    out["share"], out["logit"] = (("component", "step"), share), ("step", logit)
    out["by_source"] = (("component", "source", "step"), np.array([part.by_source for part in parts]))
    out["by_region"] = (("region", "step"), regions)
    out["kind"] = ("component", [part.kind for part in parts])
    out["layer"] = ("component", [part.layer for part in parts])
    out["token"] = ("step", reading.row.texts())
    out.attrs = {
        "analysis": "direct_logit_attribution",
        "model": model.name,
        "sample": sample.id,
        "contrast": contrast or "",
        "answer": reading.row.text,
        "answer_from": name_answer(sample, answer),
        "n": len(names),
        "forward_passes": 1,
        "largest_error": error,
    }
    return out


class _Contribution(NamedTuple):
    """What one component adds to the logits: its share [step], for heads by source [source, step]."""

    kind: str
    layer: int
    name: str
    share: np.ndarray
    by_source: np.ndarray


def _list_parts(
    record: _AnswerPass, sample: Sample, direction: Tensor
) -> tuple[list[_Contribution], np.ndarray]:
    """Return all components in the order of the forward pass, and the heads' sum by region, [region, step]."""
    steps = len(direction)
    nothing, regions = np.zeros((len(_SOURCES), steps)), np.zeros((len(sample.regions), steps))
    previous = record.pre[0]
    parts = [_Contribution("embedding", -1, "embedding", record.project(previous, direction), nothing)]
    for layer in sorted(record.pre):
        if not torch.equal(record.pre[layer], previous):
            between = record.project(record.pre[layer] - previous, direction)
            parts.append(_Contribution("between", layer, f"between {layer}", between, nothing))
        by_key, bias = record.head_parts(layer, direction)
        for head, of_head in enumerate(by_key):
            by_source, by_region = record.group_keys(layer, of_head, sample)
            regions += by_region
            parts.append(_Contribution("head", layer, f"head {layer}.{head}", of_head.sum(0), by_source))
        if bias is not None:
            parts.append(_Contribution("bias", layer, f"bias {layer}", bias, nothing))
        ffn = record.project(record.post[layer] - record.mid[layer], direction)
        parts.append(_Contribution("ffn", layer, f"ffn {layer}", ffn, nothing))
        previous = record.post[layer]
    return parts, regions


class _AnswerPass:
    """What one forward pass computes at the queries of an answer's steps.

    Attributes:
        pre, mid, post: residual streams by layer, [step, hidden].
        updates: outputs of the attention sublayer by layer, [step, hidden].
        calls: calls of the attention kernel by layer.
    """

    def __init__(self, reading: Reading):
        self.row, self.calls = reading.row, dict[int, AttentionCall]()
        self.pre, self.mid, self.post, self.updates, self._normed = (dict[int, Tensor]() for _ in range(5))
        streams = {"residual": self.pre, "resid_mid": self.mid, "resid_post": self.post}
        observers: dict[Point, Listener] = {
            (kind, layer): partial(self._keep, store, layer)
            for kind, store in (streams | {"attention": self.updates}).items()
            for layer in range(reading.model.n_layers)
        }
        observers |= {
            ("call", layer): partial(self.calls.__setitem__, layer) for layer in range(reading.model.n_layers)
        }
        observers["stream", -1] = partial(self._keep, self._normed, 0)
        observers["normed", -1] = partial(self._keep, self._normed, 1)
        reading.predict(observers=observers)

    def _keep(self, store: dict[int, Tensor], layer: int, value: Tensor) -> None:
        store[layer] = value[0, self.row.queries].detach().float()

    def direction(self, contrast: str | None) -> tuple[Tensor, np.ndarray]:
        """Return the direction of each step's logit in the stream, [step, hidden], and the logits [step]."""
        model, ids = self.row.model, self.row.ids
        unembedding = read_weight(model.hf.get_output_embeddings()).detach().float()
        rows = unembedding[ids]
        if contrast is not None:
            tokens = model.tokenizer(contrast, add_special_tokens=False)["input_ids"]
            if not tokens:
                raise InputError("contrast: give a word, not an empty text")
            rows = rows - unembedding[tokens[0]]
        logit = (self._normed[1] * rows).sum(-1)
        norm = model.family.final_norm(model.hf)
        factor = frozen_factor(model, norm, self._normed[0], self._normed[1])
        return rows * factor, logit.cpu().numpy().astype(float)

    @staticmethod
    def project(values: Tensor, direction: Tensor) -> np.ndarray:
        return (values.double() * direction.double()).sum(-1).cpu().numpy()

    def head_parts(self, layer: int, direction: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the logits from each head and key, [head, key, step], and from the projection's bias, [step]."""
        model, call = self.row.model, self.calls[layer]
        parts = model.family.parts(model.family.decoder(model.hf).layers[layer])
        projection = _find_projection(model, parts.attention)
        weights = softmax_rows(call, 0, self.row.queries)  # [head, step, key]
        value = call.value[0].float().repeat_interleave(len(weights) // call.value.shape[1], 0)
        if parts.update is not parts.attention:  # a norm follows the projection
            heads = torch.einsum("hsk,hkd->shd", weights, value).flatten(1)
            projected = torch.nn.functional.linear(
                heads, read_weight(projection).detach().float(), _float(read_weight(projection, "bias"))
            )
            direction = direction * frozen_factor(model, parts.update, projected, self.updates[layer])
        if parts.gain is not None:
            direction = direction * parts.gain().detach().float()
        matrix = (
            read_weight(projection).detach().float().view(-1, len(weights), value.shape[-1])
        )  # [hidden, head, dim]
        reading = torch.einsum("se,ehd->hsd", direction, matrix)
        by_key = weights * torch.einsum("hsd,hkd->hsk", reading, value)
        bias = (
            None
            if projection.bias is None
            else self.project(read_weight(projection, "bias").detach().float(), direction)
        )
        return by_key.transpose(1, 2).double().cpu().numpy(), bias

    def group_keys(self, layer: int, by_key: np.ndarray, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of [key, step] over the keys of each group, [source, step], and region, [region, step]."""
        prompt, model = self.row.prompt, self.row.model
        parts = model.family.parts(model.family.decoder(model.hf).layers[layer])
        if parts.has_cross_attention:
            groups = np.full(len(by_key), int(Group.VISUAL))
            visual = prompt.visual_keys
        else:
            groups = np.concatenate(
                [prompt.group, np.full(len(by_key) - len(prompt.group), int(Group.GENERATED))]
            )
            visual = None if model.has_cross_attention else prompt.visual_positions
        by_source = np.array([by_key[groups == int(group)].sum(0) for group in Group])
        touched = [
            by_key[visual[touched_cells(prompt, region)]].sum(0) if visual is not None else 0 * by_key[0]
            for region in sample.regions
        ]
        return by_source, np.array(touched).reshape(len(touched), by_key.shape[1])


def frozen_factor(model: Model, norm: nn.Module, values: Tensor, outputs: Tensor) -> Tensor:
    """Return the factor [position, hidden] by which a root-mean-square norm scaled its input.

    Args:
        values, outputs: its input and its output, [position, hidden].

    Raises:
        NotApplicable: the norm is of another form.
    """
    ones = torch.ones(1, 1, values.shape[-1], device=values.device, dtype=model.hf.dtype)
    with torch.no_grad():
        gain = norm(ones)[0, 0].float()  # the learned weights, but for epsilon
    scaled = gain * values
    factor = gain * ((outputs * scaled).sum(-1) / scaled.square().sum(-1))[:, None]
    largest = outputs.abs().max().clamp(min=1e-9)
    if ((factor * values - outputs).abs().max() / largest) > 2e-2 * (model.hf.dtype != torch.float32) + 1e-4:
        raise NotApplicable(
            f"{model.name}: {model.family.name} has norms that are not root-mean-square norms"
        )
    return factor


def _find_projection(model: Model, attention: nn.Module) -> nn.Linear:
    for name in ("o_proj", "out_proj", "dense"):
        if isinstance(getattr(attention, name, None), nn.Linear):
            return getattr(attention, name)
    raise NotApplicable(f"{model.name}: {model.family.name} has no output projection that this probe knows")


def _float(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.detach().float()
