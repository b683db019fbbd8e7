"""SAGE as it is defined, slowly: whole attention matrices, and one pass over the whole text for each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from helpers.answers import compute_logits, replace_attention
from torch import Tensor
from torch.nn.functional import kl_div

from mmprobe.interventions.methods.sage import Sage
from mmprobe.interventions.visual import find_pixels, paint_pixels, with_images
from mmprobe.models import Model
from mmprobe.models.prompt import build_batch


class SlowSage:
    """SAGE on one prompt.

    Row L0 - 1 + t is the query of step t. The taus of earlier steps are kept.
    """

    def __init__(self, model: Model, sage: Sage, chats: Any, batch: Any):
        self.model, self.sage, self.chats, self.batch = model, sage, chats, batch
        self.length = batch.inputs["input_ids"].shape[1]
        self.layers = list(model.family.decoder(model.hf).layers)
        self.shallow = round(sage.shallow * len(self.layers))
        self.visual = torch.zeros(self.length, dtype=torch.bool)
        self.visual[torch.from_numpy(batch.prompts[0].visual_positions)] = True
        self.taus: list[float] = []
        self.conflicts: dict[tuple[int, int], float] = {}  # by step and layer
        self.weights: dict[
            int, Tensor
        ] = {}  # of the last pass without the first stage, by layer, [head, query, key]
        self.changed: dict[int, Tensor] = {}  # of the last pass with the first stage
        self.normed = torch.empty(0)

    def answer(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return tokens [step] and logits [step, vocabulary]."""
        generated = torch.zeros(1, 0, dtype=torch.long)
        all_logits = []
        occluded_inputs = None
        for step in range(steps):
            self.taus.append(self.tau(step))
            logits = self.read(generated)[0, -1]
            if self.sage.generates:
                if step == 0 or (self.sage.refresh and step % self.sage.refresh == 0):
                    occluded_inputs = self.occlude(int(logits.argmax()), step)
                logits = logits + self.sage.eta * (
                    logits - compute_logits(self.model, occluded_inputs, generated)[0, -1]
                ).clamp(min=0)
            all_logits.append(logits)
            generated = torch.cat([generated, logits.argmax()[None, None]], 1)
        return generated[0], torch.stack(all_logits)

    def tau(self, step: int) -> float:
        if self.sage.tau is not None:
            return self.sage.tau
        earlier = [value for (at, _), value in self.conflicts.items() if at < step]
        return float(np.quantile(earlier, self.sage.tau_quantile)) if earlier else np.inf

    def read(self, generated: Tensor) -> Tensor:
        """Return the logits of one pass with the first two stages."""
        hooks, residual = [], {}
        if self.sage.analyzes:
            for layer, module in enumerate(self.layers):
                parts = self.model.family.parts(module)
                hooks.append(module.register_forward_pre_hook(
                    lambda m, a, k, i=layer: residual.__setitem__((i, "pre"), (a[0] if a else k["hidden_states"]).clone()),
                    with_kwargs=True))  # fmt: skip
                hooks.append(parts.mid.register_forward_pre_hook(
                    lambda m, a, i=layer: residual.__setitem__((i, "mid"), a[0].clone())))  # fmt: skip
                hooks.append(module.register_forward_hook(
                    lambda m, a, out, i=layer: self.suppress(i, residual, out)))  # fmt: skip
        norm = self.model.family.decoder(self.model.hf).norm
        hooks.append(norm.register_forward_hook(lambda m, a, out: setattr(self, "normed", out[0])))
        try:
            with replace_attention(self.model, self.attend):
                return compute_logits(self.model, self.batch.inputs, generated)
        finally:
            for hook in hooks:
                hook.remove()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
    ) -> Tensor:
        scores = query @ key.transpose(2, 3) * scale
        weights = (scores + mask[..., : key.shape[2]]).softmax(-1)
        self.weights[layer] = weights[0].clone()
        visual = torch.zeros(key.shape[2], dtype=torch.bool)
        visual[: self.length] = self.visual
        first = 0 if self.sage.prompt else self.length - 1
        if self.sage.sees:
            attention = weights[0, :, :, visual].sum(-1).mean(0)  # before any row is changed, [query]
            for row in range(first, query.shape[2]):
                alpha = self.alpha(layer, attention, row)
                unchanged = weights[0, :, row]  # [head, key]
                share = unchanged[:, visual].sum(-1)
                text = unchanged[:, : self.length][:, ~self.visual].sum(-1)
                if self.sage.rule == "take":
                    changed = unchanged + alpha * unchanged * visual * (text / share)[:, None]
                else:
                    changed = unchanged * (1 + alpha * visual)
                if self.sage.renormalise:
                    changed = changed / changed.sum(-1, keepdim=True)
                weights[0, :, row] = changed
        self.changed[layer] = weights[0].clone()
        return weights @ value

    def alpha(self, layer: int, attention: Tensor, row: int) -> float:
        """Return alpha of one row.

        Args:
            layer: number of the layer.
            attention: attention to visual tokens, [query].
            row: the query.
        """
        if layer < self.shallow:
            return self.sage.alpha
        at = max(row, self.length - 1)  # rows of the prompt belong to the first step
        reference = self.sage.attention_reference
        if reference is None:
            reference = float(attention[self.length - 1])
        decay = max(0.0, 1 - float(attention[at]) / reference)
        return self.sage.alpha * (1 + decay if self.sage.decay_map == "one_plus" else decay)

    def suppress(self, layer: int, residual: dict[Any, Tensor], out: Any) -> Any:
        post = out[0] if isinstance(out, tuple) else out
        pre, mid = residual[layer, "pre"], residual[layer, "mid"]
        changed = post.clone()
        for row in range(0 if self.sage.prompt else self.length - 1, post.shape[1]):
            # float64 and logarithms: where updates are in the hundreds, a softmax of float32 has zeros
            log_p, log_q = (x[0, row].double().log_softmax(-1) for x in (mid - pre, post - mid))
            conflict = float(kl_div(log_q, log_p, reduction="sum", log_target=True))
            step = max(row - self.length + 1, 0)
            if row >= self.length - 1:
                self.conflicts[step, layer] = conflict
            if conflict > self.taus[step]:
                changed[0, row] = mid[0, row] + self.sage.beta * (post - mid)[0, row]
        return (changed, *out[1:]) if isinstance(out, tuple) else changed

    def occlude(self, token: int, step: int) -> dict[str, Tensor]:
        attention = torch.stack(
            [rows[:, self.length - 1 + step, : self.length] for rows in self.weights.values()]
        )
        attention = attention.mean((0, 1))[self.visual]
        activation = (self.normed[: self.length] @ self.model.hf.get_output_embeddings().weight[token])[
            self.visual
        ]
        count = round(self.sage.k * len(attention))
        in_both = set(attention.topk(count).indices.tolist()) & set(activation.topk(count).indices.tolist())
        occluded = np.zeros(len(attention), bool)
        occluded[list(in_both)] = True
        assert occluded.any(), "the test is void: nothing is occluded"
        chat = self.chats[0]
        masks = find_pixels(self.batch.prompts[0], occluded)
        images = [
            paint_pixels(image, pixels, self.sage.fill)
            for image, pixels in zip(chat.images, masks, strict=True)
        ]
        return build_batch(self.model, [with_images(chat, images)]).inputs
