"""Forward passes over an answer in which some queries cannot see some keys, or see others in their place.

Pairs of query and key have names, such as steps of the answer that do not read an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model
from mmprobe.models.attention import (
    AttentionCall,
    KeyReplacement,
    block_attention,
    observe_attention,
    replace_keys,
)
from mmprobe.probes.components.decoder_pass import DecoderPass, KeysAndValues
from mmprobe.probes.components.pairs import find_tokens
from mmprobe.probes.teacher_forcing import GROUPS, TeacherForcing
from mmprobe.samples import Sample

EARLIER = "earlier sentences"
STEPS = "steps"
_JOINT = " + "


def find_pairs(forcing: TeacherForcing, sample: Sample, source: str, query: str) -> np.ndarray:
    """Return which queries are not to see which keys, bool [query, key], over prompt and answer.

    A query always keeps its own key. Several names are joined as in `image 0 + user`.

    Args:
        source: tokens whose keys are hidden, as in `find_tokens`; or `earlier sentences`: for each query of a
            step, the answer's tokens in sentences before the one that the step belongs to.
        query: tokens that do not see them, as in `find_tokens`; or `steps`: the queries of all steps, which
            are the last token of the prompt and the answer's tokens but the last. That last token of the
            prompt belongs to no other group of queries.

    Raises:
        InputError: the name is unknown, or the number is too large.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> find_pairs(forcing, sample, "image 0", "steps").any(1).sum()     # doctest: +SKIP
        12
    """
    steps, first = len(forcing.ids), len(forcing.prompt.ids) - 1
    length = first + 1 + steps
    queries = np.zeros(length, bool)
    for name in query.split(_JOINT):
        queries[_find_queries(forcing, sample, name)] = True
    pairs = np.zeros((length, length), bool)
    for name in source.split(_JOINT):
        if name == EARLIER:
            sentence = np.full(length, -1)  # of the token that a query predicts
            sentence[first:-1] = split_sentences(forcing.texts().tolist())
            own = np.append(-1, sentence[:-1])  # of a key
            pairs |= (own >= 0) & (own < sentence[:, None])
        else:
            pairs[:, find_tokens(forcing, sample, name)] = True
    pairs &= queries[:, None]
    np.fill_diagonal(pairs, False)
    return pairs


def _find_queries(forcing: TeacherForcing, sample: Sample, name: str) -> np.ndarray:
    first = len(forcing.prompt.ids) - 1
    if name == STEPS:
        return np.arange(first, first + len(forcing.ids))
    positions = find_tokens(forcing, sample, name)
    return positions[positions != first] if name in GROUPS else positions


def split_sentences(texts: list[str]) -> np.ndarray:
    """Return the number of the sentence that each token of an answer belongs to, int [step].

    A sentence ends after a token that ends in a full stop, an exclamation or a question mark, if the next
    token begins with a space, and after a line. The numbers of lists (`1.`) end none.

    Example:
        >>> split_sentences(["It", " is", " 2", ".", "5", ".", " Yes", "."]).tolist()
        [0, 0, 0, 0, 0, 0, 1, 1]
    """
    numbers, number, begun = [], 0, ""
    for index, text in enumerate(texts):
        numbers.append(number)
        begun += text
        following = texts[index + 1] if index + 1 < len(texts) else ""
        ends = text.rstrip().endswith((".", "!", "?")) and (following[:1].isspace() or text[-1:].isspace())
        if "\n" in text or (ends and not begun.strip().rstrip(".").isdigit()):
            number, begun = number + 1, ""
    return np.array(numbers, int)


def present_names(forcing: TeacherForcing, sample: Sample) -> tuple[list[str], list[str]]:
    """Return the groups that a prompt and its answer have, as sources and as queries.

    Example:
        >>> present_names(forcing, sample)                                   # doctest: +SKIP
        (['image 0', 'system', 'user', 'template', 'generated'], ['image 0', ..., 'steps'])
    """
    images = [f"image {number}" for number in range(len(sample.images))]
    groups = [
        name for name in ("system", "user", "template") if (forcing.prompt.group == Group[name.upper()]).any()
    ]
    return [*images, *groups, "generated"], [*images, *groups, STEPS]


def check_family(model: Model) -> None:
    """Raise NotApplicable if the model's tokens do not attend to its images in the prompt."""
    if model.has_cross_attention:
        raise NotApplicable(f"{model.family.name} reads images by cross-attention and has no visual tokens")
    if model.why_irregular:
        raise NotApplicable(f"{model.name}: {model.why_irregular}, so not every path can be blocked")


def list_windows(n_layers: int, window: int | None, stride: int | None) -> list[range]:
    """Return windows of layers that begin at multiples of the stride and reach the last layer.

    Args:
        window: number of layers that are blocked together; None for a quarter of the layers, rounded up.
        stride: layers from one window to the next; None for the window.

    Raises:
        InputError: one of them is out of range.

    Example:
        >>> list_windows(8, 3, 2)
        [range(0, 3), range(2, 5), range(4, 7), range(6, 8)]
    """
    window = -(-n_layers // 4) if window is None else window
    stride = window if stride is None else stride
    if not 1 <= stride <= window <= n_layers:
        raise InputError(
            f"window {window} and stride {stride}: give a stride of 1 or more, and a window from it to {n_layers}, "
            "the number of layers"
        )
    last = max(n_layers - window, 0)
    return [range(start, min(start + window, n_layers)) for start in range(0, last + stride, stride)]


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
