"""SAGE: see, analyze, generate (SPD-Faith Bench, arXiv:2602.07833, section 5 and appendix E).

No code was released, so what the paper leaves open is a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import ContrastPath, list_changed_steps
from mmprobe.interventions.registry import boolean, choice, integer, number
from mmprobe.interventions.visual import (
    AttentionMap,
    TokenMask,
    find_pixels,
    paint_pixels,
    select_largest,
    with_images,
)
from mmprobe.models.attention import AttentionBias, LastQuery
from mmprobe.models.devices import read_weight
from mmprobe.models.hooks import Listener
from mmprobe.models.points import Changes, Observers, Point
from mmprobe.models.prompt import build_batch

MAX_SEPARATE = 2**12  # tensors kept before they are joined: joining costs time, separate tensors cost memory


@dataclass(frozen=True)
class Sage(Method):
    """More attention to visual tokens, weaker FFN updates in conflict, and contrast with occluded images.

    - See (equations 3 and 4): the softmax weights of visual tokens are multiplied by 1 + alpha_t and
      renormalised. This is the same as adding log(1 + alpha_t) to their scores. In shallow layers, alpha_t is
      alpha. In deep layers, it is alpha f(decay) with decay = max(0, 1 - a_t / a_ref). a_t is the layer's
      attention to visual tokens at step t, before the change.
    - Analyze (equations 5 and 23): the update of a layer's FFN is multiplied by beta if the conflict
      KL(softmax(d_MHA) || softmax(d_FFN)) exceeds tau. d_MHA and d_FFN are the updates of attention and FFN.
    - Generate (equations 6, 7 and 24): the logits become z + eta ReLU(z - z'). z' are the logits of the
      unchanged model, without the first two stages, for occluded images. A patch is occluded if its token is
      among the top k both of the attention map and of the token activation map (equation 18) of the most
      likely token.

    Parameters:
        alpha: 0 to 10, strength of the first stage; the paper's 0.1.
        beta: 0 to 1, share of an FFN update that remains in conflict; the paper's 0.9.
        eta: 0 to 10, weight of the contrast; the paper's 0.5.
        see: whether the first stage acts.
        analyze: whether the second stage acts.
        generate: whether the third stage acts.
        rule: `scale` as above. With `take`, visual tokens gain alpha_t times the weight of the prompt's other
            tokens, in proportion to their own weights. Equation 3 can be read both ways; the default, `scale`, is our choice.
        shallow: 0 to 1, share of the layers that are shallow. The paper does not give it; the default, a third, is our choice.
        decay_map: f, `one_plus` for 1 + decay or `decay` for decay itself. The paper does not give it; the
            default, `one_plus`, is our choice.
        attention_reference: 0 to 1, a_ref, a share of attention; None for the layer's own attention at the
            first step. The paper does not give it; the default, None, is our choice.
        renormalise: whether the weights of a query sum to 1 again. The paper does not say; the default, true, is our choice.
        prompt: whether the first two stages act at all positions of the prompt, and not only at the query of
            each step. The paper does not say; the default, false, is our choice. True needs the rule `scale` and
            `renormalise`, because the fast kernel can only add the same scores at all queries.
        tau: 0 to 1000, in nats; None for a running quantile of the conflicts of all layers and earlier steps,
            so that the first step suppresses nothing. The paper does not give it; the default, None, is our choice.
        tau_quantile: 0 to 1, the running quantile; the default, 0.75, is our choice.
        k: 0 to 1, share of the visual tokens of all images. The paper does not give it; the default, 0.2, is our choice.
        fill: colour of occluded patches, `mean` for the image's mean colour, or `black`. The paper does not
            give it; the default, `mean`, is our choice.
        refresh: 0 to 100000, steps after which the occlusion is computed again; 0 for never; the default, 0, is our choice.
    """

    name: ClassVar[str] = "sage"
    reference: ClassVar[str] = "SPD-Faith Bench and SAGE (arXiv 2602.07833), section 5 and appendix E"
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 0, "beta": 1, "eta": 0}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 3, "beta": 0.2, "eta": 4, "k": 0.8}
    needs_images: ClassVar[bool] = True
    needs_visual_tokens: ClassVar[bool] = True

    alpha: float = number(0.1, 0, 10)
    beta: float = number(0.9, 0, 1)
    eta: float = number(0.5, 0, 10)
    see: bool = boolean(True)
    analyze: bool = boolean(True)
    generate: bool = boolean(True)
    rule: str = choice("scale", ("scale", "take"))
    shallow: float = number(1 / 3, 0, 1)
    decay_map: str = choice("one_plus", ("one_plus", "decay"))
    attention_reference: float | None = number(None, 0, 1)
    renormalise: bool = boolean(True)
    prompt: bool = boolean(False)
    tau: float | None = number(None, 0, 1000)
    tau_quantile: float = number(0.75, 0, 1)
    k: float = number(0.2, 0, 1)
    fill: str = choice("mean", ("mean", "black"))
    refresh: int = integer(0, 0, 100_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt and self.sees and (self.rule == "take" or not self.renormalise):
            raise InputError("method sage: prompt=true needs rule=scale and renormalise=true")

    @property
    def sees(self) -> bool:
        """Whether the first stage changes anything."""
        return self.see and self.alpha > 0

    @property
    def analyzes(self) -> bool:
        """Whether the second stage changes anything."""
        return self.analyze and self.beta < 1

    @property
    def generates(self) -> bool:
        """Whether the third stage changes anything."""
        return self.generate and self.eta > 0

    @property
    def neutral(self) -> bool:
        return not (self.sees or self.analyzes or self.generates)

    @property
    def shares_prefix(self) -> bool:
        return not self.prompt

    @property
    def has_contrast_path(self) -> bool:
        return self.generates

    @property
    def needs_final_states(self) -> bool:
        return self.generates

    def create_state(self, context: MethodContext) -> MethodState:
        return _SageState(self, context)

    def combine(self, main: Tensor, contrast: Tensor) -> Tensor:
        """Return new logits from the answer's and the contrast path's, [batch, vocabulary] (equation 24)."""
        return main + self.eta * (main - contrast).relu()


class _SageState(MethodState):
    """What SAGE remembers while it answers one batch."""

    def __init__(self, method: Sage, context: MethodContext):
        n_rows, device = len(context.chats), context.model.device
        self.method, self.context = method, context
        self.step = 0
        self.n_layers = context.model.n_layers

        # see
        self.n_shallow = round(method.shallow * self.n_layers)
        visual = context.mask_tokens(lambda prompt: prompt.visual_positions)
        prompt = context.mask_tokens(lambda prompt: np.arange(len(prompt.ids)))
        self.visual, self.text = TokenMask(visual), TokenMask(prompt & ~visual)
        self.shallow_bias: tuple[tuple[int, int], AttentionBias] | None = None  # latest: (n_keys, step), bias
        self.min_alpha = method.alpha if method.decay_map == "one_plus" else 0.0  # alpha f(0)
        self.max_alpha = torch.tensor(method.alpha + self.min_alpha, device=device)  # alpha f(1)
        self.n_heads = 1
        # for each deep layer: 1 / a_ref, where a_ref is summed over heads, [batch, 1, 1, 1]
        self.inverse_reference: dict[int, Tensor] = {}
        # for each deep layer of each step, in turn: [batch, 1, 1, 1]
        self.attention: list[Tensor] = []  # to visual tokens, summed over heads
        self.alphas: list[Tensor] = []

        # analyze
        self.streams: dict[Point, Tensor] = {}  # before and in the middle of the layer that runs
        self.step_conflicts: list[Tensor] = []  # for each layer of this step: [batch, position, 1]
        self.conflicts: list[Tensor] = []  # for each earlier step: [batch, layer]
        self.sorted_conflicts = torch.empty(n_rows, 0, device=device)  # of each row's earlier steps
        first_tau = torch.inf if method.tau is None else method.tau
        self.taus = [torch.full((n_rows, 1, 1), first_tau, device=device)]  # for each step

        # generate
        self.map = AttentionMap(context)
        start = context.start
        # what the unembedding reads of the prompt, or of a shared beginning, [batch, position, hidden]
        self.prompt_states: Tensor | None = None if start is None else start.states
        self.is_occluded = torch.empty(0, dtype=torch.bool)  # rows with an occluded patch, [batch, 1]
        self.occluded: list[tuple[int, list[list[int]]]] = []  # step, and occluded tokens of each row
        self.changed: list[Tensor] = []  # bool [batch] for each step: the most likely token became another

    def attention_layers(self) -> Sequence[int]:
        return range(self.n_layers) if self.method.sees or self.method.generates else ()

    def attention_bias(self, layer: int, last_query: LastQuery) -> AttentionBias | None:
        """Return the bias of the first stage (equations 3 and 4), and record the map of the third."""
        method, n_keys = self.method, last_query.key.shape[2]
        occlusion_due = self._is_occlusion_due()
        if not (method.sees or occlusion_due):
            return None
        visual = self.visual.align_as_float(n_keys, self.step)
        is_shallow = layer < self.n_shallow
        if is_shallow and method.rule == "scale" and method.renormalise and not occlusion_due:
            return self._get_shallow_bias(visual)
        weights = last_query.weights()
        if occlusion_due:
            self.map.add_layer(weights, self.step)
        if not method.sees:
            return None
        visual_weight = (weights * visual).sum(-1, keepdim=True)  # [batch, head, 1, 1]
        alpha: Any = method.alpha if is_shallow else self._compute_alpha(layer, visual_weight)
        if method.rule == "take":
            text = self.text.align_as_float(n_keys, self.step)
            text_weight = (weights * text).sum(-1, keepdim=True)
            alpha = alpha * text_weight / visual_weight.clamp_min(1e-9)
        bias = visual * (math.log1p(alpha) if isinstance(alpha, float) else alpha.log1p())
        # the kernel always renormalises; the gain undoes that
        gain = None if method.renormalise else 1 + (alpha * visual_weight)[..., 0]
        return AttentionBias(bias, method.prompt, gain)

    def _get_shallow_bias(self, visual: Tensor) -> AttentionBias:
        """Return the bias of shallow layers (equation 3), built once for all layers with as many keys."""
        n_keys_and_step = visual.shape[-1], self.step
        if self.shallow_bias is None or self.shallow_bias[0] != n_keys_and_step:
            bias = AttentionBias(visual * math.log1p(self.method.alpha), self.method.prompt)
            self.shallow_bias = n_keys_and_step, bias
        return self.shallow_bias[1]

    def _compute_alpha(self, layer: int, visual_weight: Tensor) -> Tensor:
        """Return a deep layer's alpha_t, alpha f(1 - a / a_ref) but at least alpha f(0), [batch, 1, 1, 1]."""
        attention = visual_weight.sum(1, keepdim=True)
        if layer not in self.inverse_reference:
            self.n_heads = visual_weight.shape[1]
            share = self.method.attention_reference
            reference = attention if share is None else torch.full_like(attention, share * self.n_heads)
            self.inverse_reference[layer] = 1 / reference.clamp_min(1e-9)
        alpha = torch.addcmul(
            self.max_alpha, attention, self.inverse_reference[layer], value=-self.method.alpha
        )
        alpha.clamp_(min=self.min_alpha)
        self.attention.append(attention)
        self.alphas.append(alpha)
        return alpha

    def observers(self) -> Observers:
        layers = range(self.n_layers) if self.method.analyzes else ()
        points = [(kind, layer) for layer in layers for kind in ("residual", "resid_mid")]
        observers: dict[Point, Listener] = {
            point: partial(self.streams.__setitem__, point) for point in points
        }
        return observers | ({("normed", -1): self._keep_prompt_states} if self.method.generates else {})

    def changes(self) -> Changes:
        layers = range(self.n_layers) if self.method.analyzes else ()
        return {("resid_post", layer): partial(self._suppress_conflict, layer) for layer in layers}

    def _suppress_conflict(self, layer: int, post: Tensor) -> Tensor:
        """Return the residual stream after a layer with weaker FFN updates where the conflict exceeds tau (equation 5)."""
        pre, mid, changed = (
            self.streams.pop(("residual", layer)),
            self.streams.pop(("resid_mid", layer)),
            post,
        )
        if post.shape[1] > 1 and not self.method.prompt:
            pre, mid, changed = pre[:, -1:], mid[:, -1:], post[:, -1:]
        ffn_update = changed - mid
        log_p, log_q = (update.log_softmax(-1, dtype=torch.float32) for update in (mid - pre, ffn_update))
        conflict = log_p.exp().mul_(log_p - log_q).sum(-1, keepdim=True)  # half the time of torch's kl_div
        self.step_conflicts.append(conflict)
        suppressed = torch.add(mid, ffn_update, alpha=self.method.beta)
        changed = torch.where(conflict > self.taus[-1], suppressed, changed)
        return changed if changed.shape[1] == post.shape[1] else torch.cat([post[:, :-1], changed], 1)

    def _finish_conflicts(self) -> None:
        """Keep the conflicts of this step, and compute tau of the next one."""
        conflicts = torch.cat(self.step_conflicts, -1)[:, -1]  # [batch, layer]
        self.step_conflicts.clear()
        self.conflicts.append(conflicts)
        fixed = self.method.tau is not None
        self.taus.append(self.taus[-1] if fixed else self._update_quantile(conflicts)[:, None, None])

    def _update_quantile(self, conflicts: Tensor) -> Tensor:
        """Add conflicts, [batch, layer], and return each row's quantile of all so far, [batch].

        torch's own quantile takes ten times as long.
        """
        self.sorted_conflicts = torch.cat([self.sorted_conflicts, conflicts], 1).sort(1).values
        last = self.sorted_conflicts.shape[1] - 1
        position = self.method.tau_quantile * last
        low = int(position)
        high = min(low + 1, last)
        return torch.lerp(self.sorted_conflicts[:, low], self.sorted_conflicts[:, high], position - low)

    def _keep_prompt_states(self, states: Tensor) -> None:
        if self.prompt_states is None:
            self.prompt_states = states

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        """Finish a step, and return the logits of the third stage (equation 24)."""
        if self.step_conflicts:
            self._finish_conflicts()
        if self.method.generates:
            before = logits.argmax(-1)
            if self._is_occlusion_due():
                self.contrast_path = self._build_occluded_path(before)
            if self.contrast_path is not None:
                combined = self.method.combine(logits, self.contrast_path.read_answer(generated))
                logits = torch.where(self.is_occluded, combined, logits)
            self.changed.append(logits.argmax(-1) != before)
        if len(self.attention) > MAX_SEPARATE:
            self.attention, self.alphas = [torch.cat(self.attention, 1)], [torch.cat(self.alphas, 1)]
        self.step += 1
        return logits

    def _is_occlusion_due(self) -> bool:
        refresh = self.method.refresh
        return self.method.generates and (self.step == 0 or (refresh > 0 and self.step % refresh == 0))

    def _build_occluded_path(self, tokens: Tensor) -> ContrastPath | None:
        """Return a path with occluded images (equation 6), for each row's likeliest token [batch]; None without patches."""
        model, method, prompts = self.context.model, self.method, self.context.batch.prompts
        assert self.prompt_states is not None
        unembedding = read_weight(model.hf.get_output_embeddings())[tokens]
        chats, tokens_of = [], []
        for row, (chat, prompt) in enumerate(zip(self.context.chats, prompts, strict=True)):
            states = self.prompt_states[row, torch.from_numpy(prompt.visual_positions + prompt.padding)]
            attended = select_largest(self.map.select_visual(row), method.k)
            occluded = attended & select_largest((states @ unembedding[row]).float(), method.k)  # equation 18
            masks = find_pixels(prompt, occluded)
            images = [
                paint_pixels(image, pixels, method.fill)
                for image, pixels in zip(chat.images, masks, strict=True)
            ]
            chats.append(with_images(chat, images))
            tokens_of.append(np.flatnonzero(occluded).tolist())
        self.map = AttentionMap(self.context)
        self.occluded.append((self.step, tokens_of))
        self.is_occluded = torch.tensor([len(row) > 0 for row in tokens_of], device=tokens.device)[:, None]
        return ContrastPath(model, build_batch(model, chats).inputs) if any(tokens_of) else None

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return what each stage did, with one item a step.

        - visual_attention, alpha: attention to visual tokens and alpha_t, mean over deep layers; alphas: by layer
        - conflict: mean over layers, nats; suppressed, suppressed_layers: share and indices of layers above tau
        - changed: the steps at which the most likely token became another
        - occluded, occluded_tokens: number and indices of occluded visual tokens, by the step from which
        """
        report: dict[str, Any] = {}
        if self.attention:
            attention, alphas = (
                torch.cat(values, 1)[row].view(-1, len(self.inverse_reference))[:n_steps]
                for values in (self.attention, self.alphas)
            )
            report["visual_attention"] = (attention.mean(1) / self.n_heads).tolist()
            report |= {"alpha": alphas.mean(1).tolist(), "alphas": alphas.tolist()}
        if self.conflicts:
            conflicts = torch.stack([conflict[row] for conflict in self.conflicts[:n_steps]])  # [step, layer]
            taus = torch.stack([tau[row, 0] for tau in self.taus[: len(conflicts)]])
            report["conflict"] = conflicts.mean(1).tolist()
            report["suppressed"] = (conflicts > taus).float().mean(1).tolist()
            report["suppressed_layers"] = [layers.nonzero()[:, 0].tolist() for layers in conflicts > taus]
        if self.method.generates:
            report["changed"] = list_changed_steps(self.changed[:n_steps], row)
            tokens = {step: rows[row] for step, rows in self.occluded if step < n_steps}
            report |= {
                "occluded": {step: len(each) for step, each in tokens.items()},
                "occluded_tokens": tokens,
            }
        return report
