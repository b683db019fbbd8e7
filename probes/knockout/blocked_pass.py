"""Forward passes over an answer in which some queries cannot see some keys, or see others in their place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from mmprobe.models import Group
from mmprobe.models.attention import (
    AttentionCall,
    KeyReplacement,
    block_attention,
    observe_attention,
    replace_keys,
)
from mmprobe.probes.components.decoder_pass import DecoderPass, KeysAndValues
from mmprobe.probes.teacher_forcing import TeacherForcing


class BlockedPass:
    """Repeated passes over one prompt with its answer, each without some pairs of query and key.

    All passes use the same kernel and the same kind of mask, so any difference comes from what is blocked. A pass
    begins at the first query that is blocked: what earlier tokens compute is reused (`DecoderPass.begin_at`), and
    compared with a pass over the same tokens.

    Args:
        forcing: a prompt with its answer.

    Attributes:
        forcing: the prompt with its answer.
        before: float32 [step], log-probability of each token with nothing blocked.
        visible: bool [query, key], True where some layer lets a query see a key.
        keys: keys and values of each layer that runs, [1, kv_head, position, dim].

    Example:
        >>> passes = BlockedPass(forcing)                                    # doctest: +SKIP
        >>> passes.measure(pairs, [3, 4], "block")                           # doctest: +SKIP
        tensor([0.0312, 0.0000, 1.7500])
    """

    def __init__(self, forcing: TeacherForcing):
        self.forcing, self.keys = forcing, KeysAndValues()
        model, length = forcing.model, len(forcing.prompt.ids) + len(forcing.ids)
        self._configs = [model.hf.config.get_text_config()]
        self._attentions = [
            model.family.parts(layer).attention for layer in model.family.decoder(model.hf).layers
        ]
        self._nothing = torch.zeros(length, length, dtype=torch.bool, device=model.device)
        self.visible = self._nothing.clone()
        observers = {
            attention: (lambda call, layer=layer: self._keep(layer, call))
            for layer, attention in enumerate(self._attentions)
        }
        with self._same_kernel(0), observe_attention(self._configs, observers):
            self._passes = DecoderPass(forcing)
        self.before = self._read(self._passes.first_logits)
        self._before = {0: self.before}  # by the first token of a pass

    @property
    def count(self) -> int:
        """Number of forward passes so far."""
        return self._passes.count

    def measure(
        self,
        pairs: Tensor,
        layers: Sequence[int],
        replacement: str,
        others: KeysAndValues | None = None,
    ) -> Tensor:
        """Return what each token of the answer loses, float32 [step] in nat.

        Args:
            pairs: bool [query, key], the pairs that are blocked.
            layers: the layers in which they are, in rising order.
            replacement: `block`, `mean` or `counterfactual`, as in `attention_routes`.
            others: for `counterfactual`, the keys and values of the other prompt.
        """
        seen = pairs & self.visible
        if others is not None:
            seen = seen & self._differ(layers, others)
        if not seen.any():
            return torch.zeros_like(self.before)
        start = self._passes.begin_at(int(pairs.any(1).nonzero()[0]), self.keys)
        with self._same_kernel(start), torch.no_grad():
            if start not in self._before:
                self._before[start] = self._read(self._passes.logits())
            with self._replace(pairs, layers, replacement, others):
                logits = self._passes.logits(first_layer=layers[0])
        return self._before[start] - self._read(logits)

    def _differ(self, layers: Sequence[int], others: KeysAndValues) -> Tensor:
        """Return which positions have another key or value in the other prompt in some layer, bool [position]."""
        differ = torch.zeros_like(self._nothing[0])
        for layer in (layer for layer in layers if layer in self.keys):
            for own, other in zip(self.keys[layer], others[layer], strict=True):
                differ |= (own != other).flatten(0, 1).any(-1).any(0)
        return differ

    def _read(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1).gather(1, self.forcing.ids[:, None])[:, 0]

    def _keep(self, layer: int, call: AttentionCall) -> None:
        self.keys[layer] = call.key, call.value
        if call.mask is not None:
            seen = (
                call.mask if call.mask.dtype == torch.bool else call.mask > torch.finfo(call.mask.dtype).min
            )
            self.visible |= seen[0].any(0)

    def _same_kernel(self, start: int) -> AbstractContextManager[None]:
        return block_attention(self._configs, dict.fromkeys(self._attentions, self._nothing[start:]))

    def _replace(
        self, pairs: Tensor, layers: Sequence[int], replacement: str, others: KeysAndValues | None
    ) -> AbstractContextManager[None]:
        at = pairs.any(0).nonzero()[:, 0]
        pairs = pairs[self._passes.start :]
        replacements = {}
        for layer in (layer for layer in layers if layer in self.keys):
            if replacement == "counterfactual":
                assert others is not None
                key, value = (stored[:, :, at] for stored in others[layer])
                replace = partial(_take_others, key, value)
            else:
                replace = partial(_take_values, self._average_values(layer)[:, :, at])
            replacements[self._attentions[layer]] = KeyReplacement(pairs, at, replace)
        if replacement == "block":
            return block_attention(self._configs, dict.fromkeys(replacements, pairs))
        return replace_keys(self._configs, replacements)

    def _average_values(self, layer: int) -> Tensor:
        """Return the mean value of each token's group, [1, kv_head, position, dim]."""
        prompt, value = self.forcing.prompt, self.keys[layer][1]
        groups = torch.from_numpy(prompt.group).to(value.device).long()
        groups = torch.cat([groups, groups.new_full((len(self.forcing.ids),), Group.GENERATED)])
        means = value.clone()
        for group in groups.unique():
            means[:, :, groups == group] = value[:, :, groups == group].mean(2, keepdim=True)
        return means


def _take_others(other_key: Tensor, other_value: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return other_key, other_value


def _take_values(other_value: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return key, other_value
