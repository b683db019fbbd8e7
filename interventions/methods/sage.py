"""SAGE: see, analyze, generate (paper 003, section 5 and appendix E), of which no code was released."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import changed_steps
from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.interventions.parameters import choice, number, switch, whole
from mmprobe.interventions.visual import AttentionMap, Cells, largest, painted, shown_by, with_pictures
from mmprobe.models.attention_bias import AttentionBias, LastQuery
from mmprobe.models.prompt import build_batch

_APART = 2**12  # measurements that stay single tensors; to join them costs time, to keep more costs memory


@dataclass(frozen=True)
class Sage(Method):
    """More attention to visual tokens, less of FFN updates that conflict, and logits against occluded pictures.

    See (equations 3 and 4): softmax weights of visual tokens times 1 + alpha, renormalised, which is log(1 + alpha)
    added to their scores. Shallow layers have a fixed alpha; in deep ones it is alpha f(decay), decay =
    max(0, 1 - a / a_ref), with a the layer's own attention on visual tokens at this step, before the change.
    Analyze (equations 5 and 23): the update of a layer's FFN times beta where KL(softmax(d_MHA) || softmax(d_FFN))
    exceeds tau. Generate (equations 6, 7 and 24): z + eta ReLU(z - z'), z' from pictures with those patches occluded
    that are both in the top k of the attention map and in the top k of the token activation map (equation 18, of the
    token that is most likely). The second path is the unchanged model, without the first two stages.

    Parameters:
        alpha: 0 to 10; the paper's 0.1.
        beta: 0 to 1; the paper's 0.9.
        eta: 0 to 10; the paper's 0.5.
        see, analyze, generate: stages to leave out.
        rule: `scale` as above, or `take`: visual tokens are given alpha times the weight that the rest of the prompt
            has, in proportion to their own. The paper's equation admits both readings; ours is `scale`.
        shallow: 0 to 1, share of the layers with a fixed alpha (l_s). The paper does not give it; ours, a third.
        decay_map: f, `one_plus` for 1 + decay or `decay` for the decay alone. The paper does not give it; ours.
        attention_reference: 0 to 1, a_ref, a share of attention; None for the layer's own at the first step. The
            paper does not give it; ours, None.
        renormalise: whether rows sum to 1 again. The paper does not say; ours, true.
        prompt: whether the first two stages also act at the prompt's other tokens, and not only at the query of each
            step. The paper does not say; ours, false. True keeps the fast kernel too, but needs rule `scale` and
            renormalisation, since otherwise what is added depends on each query's row.
        tau: 0 to 1000, in nat; None for a running quantile over all layers and all steps so far, so that the first
            step suppresses nothing. The paper does not give it; ours, None.
        tau_quantile: 0 to 1, that quantile; ours, 0.75.
        k: 0 to 1, share of the visual tokens of all pictures. The paper does not give it; ours, 0.2.
        fill: `mean`, the picture's mean colour, or `black`. The paper does not give it; ours, `mean`.
        refresh: 0 to 100000, steps after which the occlusion is made anew; 0 for never. The paper does not give it;
            ours, 0.
    """

    name: ClassVar[str] = "sage"
    reference: ClassVar[str] = "SPD-Faith Bench and SAGE (arXiv 2602.07833), section 5 and appendix E"
    visual: ClassVar[bool] = True
    cells: ClassVar[bool] = True

    alpha: float = number(0.1, 0, 10, "how much more weight visual tokens get")
    beta: float = number(0.9, 0, 1, "what is left of an FFN's update in conflict")
    eta: float = number(0.5, 0, 10, "weight of the contrast with occluded pictures")
    see: bool = switch(True, "the first stage")
    analyze: bool = switch(True, "the second stage")
    generate: bool = switch(True, "the third stage")
    rule: str = choice("scale", ("scale", "take"), "how visual tokens get more weight")
    shallow: float = number(1 / 3, 0, 1, "share of the layers whose alpha is fixed")
    decay_map: str = choice("one_plus", ("one_plus", "decay"), "from decay to the factor of alpha")
    attention_reference: float | None = number(
        None, 0, 1, "attention on visual tokens that counts as no decay"
    )
    renormalise: bool = switch(True, "whether attention rows sum to 1 again")
    prompt: bool = switch(False, "whether the prompt's other tokens are changed too")
    tau: float | None = number(None, 0, 1000, "conflict above which FFN updates are suppressed, in nat")
    tau_quantile: float = number(0.75, 0, 1, "running quantile of the conflict that takes the place of tau")
    k: float = number(0.2, 0, 1, "share of the visual tokens that counts as salient")
    fill: str = choice("mean", ("mean", "black"), "what occluded patches are painted with")
    refresh: int = whole(0, 0, 100_000, "steps after which the occlusion is made anew")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt and self.sees and (self.rule == "take" or not self.renormalise):
            raise InputError("method sage: prompt=true needs rule=scale and renormalise=true")

    @property
    def sees(self) -> bool:
        return self.see and self.alpha > 0

    @property
    def analyzes(self) -> bool:
        return self.analyze and self.beta < 1

    @property
    def generates(self) -> bool:
        return self.generate and self.eta > 0

    @property
    def neutral(self) -> bool:
        return not (self.sees or self.analyzes or self.generates)

    def begin(self, asked: MethodContext) -> MethodState:
        return _Sage(self, asked)

    def combine(self, main: Tensor, second: Tensor) -> Tensor:
        """New logits from the answer's and the second path's, each [batch, vocabulary] (equation 24)."""
        return main + self.eta * (main - second).relu()


class _Sage(MethodState):
    """What SAGE remembers of one batch: its step, attention and conflict so far, and the second path."""

    def __init__(self, method: Sage, asked: MethodContext):
        self.method, self.asked, self.step = method, asked, 0
        self.n_layers = asked.model.n_layers
        self.shallow = round(method.shallow * self.n_layers)
        visual = asked.marked(lambda prompt: prompt.visual_positions)
        own = asked.marked(lambda prompt: np.arange(len(prompt.ids)))
        self.visual, self.text = Cells(visual), Cells(own & ~visual)
        self.fixed: tuple[tuple[int, int], AttentionBias] | None = (
            None  # of the latest number of keys and step
        )
        self.least = method.alpha if method.decay_map == "one_plus" else 0.0  # alpha without decay
        self.most = torch.tensor(method.alpha + self.least, device=asked.model.device)
        self.inverse: dict[int, Tensor] = {}  # 1 / a_ref by layer, a_ref summed over heads, [batch, 1, 1, 1]
        # of the deep layers of all steps in turn, each [batch, 1, 1, 1]
        self.attention: list[Tensor] = []
        self.strengths: list[Tensor] = []
        self.heads = 1
        # of this step's layers, each [batch, position, 1]; of earlier steps, each [batch, layer]
        self.latest: list[Tensor] = []
        self.conflicts: list[Tensor] = []
        self.sorted = torch.empty(len(asked.chats), 0, device=asked.model.device)  # each row's earlier ones
        given = torch.inf if method.tau is None else method.tau
        self.taus = [torch.full((len(asked.chats), 1, 1), given, device=asked.model.device)]  # by step
        self.map = AttentionMap(asked)
        self.normed: Tensor | None = (
            None  # what the unembedding reads at the prompt, [batch, position, hidden]
        )
        self.changed: list[Tensor] = []
        self.occluded: list[tuple[int, list[int]]] = []  # step, and visual tokens occluded by row
        # [batch, 1], whether the second path's pictures are others at all
        self.painted = torch.empty(0, dtype=torch.bool)

    @property
    def due(self) -> bool:
        """Whether this step's maps make the occlusion."""
        refresh = self.method.refresh
        return self.method.generates and (self.step == 0 or (refresh > 0 and self.step % refresh == 0))

    def contrasts(self) -> bool:
        return self.method.generates

    def layers(self) -> Sequence[int]:
        return range(self.n_layers) if self.method.sees or self.method.generates else ()

    def shift(self, layer: int, last: LastQuery) -> AttentionBias | None:
        method, keys = self.method, last.key.shape[2]
        if not (method.sees or self.due):
            return None
        visual = self.visual.as_ones(keys, self.step)
        by_row = layer >= self.shallow or method.rule == "take" or not method.renormalise
        if not (by_row or self.due):
            return self._fixed(visual)
        weights = last.weights()
        if self.due:
            self.map.add(weights, self.step)
        if not method.sees:
            return None
        share = (weights * visual).sum(-1, keepdim=True)  # [batch, head, 1, 1]
        strength: Any = method.alpha if layer < self.shallow else self._alpha(layer, share)
        if method.rule == "take":
            text = (weights * self.text.as_ones(keys, self.step)).sum(-1, keepdim=True)
            strength = strength * text / share.clamp_min(1e-9)
        bias = visual * (math.log1p(strength) if isinstance(strength, float) else strength.log1p())
        return AttentionBias(
            bias, method.prompt, None if method.renormalise else 1 + (strength * share)[..., 0]
        )

    def _fixed(self, visual: Tensor) -> AttentionBias:
        """What shallow layers get, made once for all with as many keys."""
        at = visual.shape[-1], self.step
        if self.fixed is None or self.fixed[0] != at:
            self.fixed = at, AttentionBias(visual * math.log1p(self.method.alpha), self.method.prompt)
        return self.fixed[1]

    def _alpha(self, layer: int, share: Tensor) -> Tensor:
        """A deep layer's alpha at this step, [batch, 1, 1, 1], from its heads' attention on visual tokens."""
        attention = share.sum(1, keepdim=True)
        if layer not in self.inverse:
            given, self.heads = self.method.attention_reference, share.shape[1]
            reference = attention if given is None else torch.full_like(attention, given * self.heads)
            self.inverse[layer] = 1 / reference.clamp_min(1e-9)
        found = torch.addcmul(self.most, attention, self.inverse[layer], value=-self.method.alpha)
        found.clamp_(min=self.least)
        self.attention.append(attention)
        self.strengths.append(found)
        return found

    def updated(self) -> Sequence[int]:
        return range(self.n_layers) if self.method.analyzes else ()

    def update(self, layer: int, pre: Tensor, mid: Tensor, post: Tensor) -> Tensor:
        own = post
        if post.shape[1] > 1 and not self.method.prompt:
            pre, mid, own = pre[:, -1:], mid[:, -1:], post[:, -1:]
        of_ffn = own - mid
        attention, ffn = (mid - pre).float().log_softmax(-1), of_ffn.float().log_softmax(-1)
        # torch's kl_div spends half its time on its options
        conflict = attention.exp().mul_(attention - ffn).sum(-1, keepdim=True)  # [batch, position, 1]
        self.latest.append(conflict)
        suppressed = torch.add(mid, of_ffn, alpha=self.method.beta)
        own = torch.where(conflict > self.taus[-1], suppressed, own)
        return own if own.shape[1] == post.shape[1] else torch.cat([post[:, :-1], own], 1)

    def wants_states(self) -> bool:
        return self.method.generates

    def states(self, normed: Tensor) -> None:
        if self.normed is None:
            self.normed = normed

    def logits(self, generated: Tensor, scores: Tensor) -> Tensor:
        if self.latest:
            self._note(torch.cat(self.latest, -1)[:, -1])
        if self.method.generates:
            if self.due:
                self.path = self._occlude(scores.argmax(-1))
            before = scores.argmax(-1)
            if self.path is not None:
                combined = self.method.combine(scores, self.path.follow(generated))
                scores = torch.where(self.painted, combined, scores)
            self.changed.append(scores.argmax(-1) != before)
        if len(self.attention) > _APART:
            self.attention, self.strengths = [torch.cat(self.attention, 1)], [torch.cat(self.strengths, 1)]
        self.step += 1
        return scores

    def _note(self, conflicts: Tensor) -> None:
        """End a step with its conflicts, [batch, layer], which give tau of the next one."""
        self.latest.clear()
        self.conflicts.append(conflicts)
        tau = self.taus[-1] if self.method.tau is not None else self._quantile(conflicts)[:, None, None]
        self.taus.append(tau)

    def _quantile(self, conflicts: Tensor) -> Tensor:
        """Of all conflicts so far, [batch], with these [batch, layer]; a tenth of the time of torch's own."""
        self.sorted = torch.cat([self.sorted, conflicts], 1).sort(1).values
        last = self.sorted.shape[1] - 1
        place = self.method.tau_quantile * last
        low = int(place)
        return torch.lerp(self.sorted[:, low], self.sorted[:, min(low + 1, last)], place - low)

    def _occlude(self, tokens: Tensor) -> SecondPath | None:
        """A path whose pictures lack what the tokens [batch] are seen in; None where the two maps share nothing."""
        chats, counts = [], []
        assert self.normed is not None
        classes = self.asked.model.hf.get_output_embeddings().weight[tokens]
        for row, (chat, prompt) in enumerate(zip(self.asked.chats, self.asked.batch.prompts, strict=True)):
            states = self.normed[row, torch.from_numpy(prompt.visual_positions + prompt.padding)]
            activation = (states @ classes[row]).float()
            both = largest(self.map.of(row), self.method.k) & largest(activation, self.method.k)
            counts.append(int(both.sum()))
            shown = zip(chat.images, shown_by(prompt, both), strict=True)
            chats.append(
                with_pictures(chat, [painted(picture, pixels, self.method.fill) for picture, pixels in shown])
            )
        self.map = AttentionMap(self.asked)
        self.occluded.append((self.step, counts))
        self.painted = torch.tensor(counts, device=tokens.device)[:, None] > 0
        return (
            SecondPath(self.asked.model, build_batch(self.asked.model, chats).inputs) if any(counts) else None
        )

    def report(self, row: int, steps: int) -> dict[str, Any]:
        """By step: attention on visual tokens and alpha (mean over deep layers), conflict (mean over layers, in nat),
        suppressed (share of the layers); steps whose most likely token became another; and how many visual tokens
        were occluded from which step on."""
        found: dict[str, Any] = {}
        if self.attention:
            attention, alpha = (
                torch.cat(kept, 1)[row].view(-1, len(self.inverse))[:steps].mean(1)
                for kept in (self.attention, self.strengths)
            )
            found |= {"visual_attention": (attention / self.heads).tolist(), "alpha": alpha.tolist()}
        if self.conflicts:
            conflicts = torch.stack([each[row] for each in self.conflicts[:steps]])  # [step, layer]
            taus = torch.stack([tau[row, 0] for tau in self.taus[: len(conflicts)]])
            found["conflict"] = conflicts.mean(1).tolist()
            found["suppressed"] = (conflicts > taus).float().mean(1).tolist()
        if self.method.generates:
            found["changed"] = changed_steps(self.changed[:steps], row)
            found["occluded"] = {step: counts[row] for step, counts in self.occluded if step < steps}
        return found
