"""A clean and a corrupt prompt, read with the same answer, and the tokens at which they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.shared_prefix import why_not_shared
from mmprobe.probes.components.decoder_pass import DecoderPass, first_difference
from mmprobe.probes.components.metrics import Metric, MetricFunction, make_metric
from mmprobe.probes.components.token_places import find_tokens
from mmprobe.probes.teacher_forcing import Answer, TeacherForcing, force_answer
from mmprobe.samples import Sample


class ComponentPair(NamedTuple):
    """A clean and a corrupt prompt with the same answer.

    Attributes:
        clean, corrupt: forward passes over each.
        metric: a function of the logits [step, vocabulary].
        metric_name: its name.
        before, after: its value for the clean and for the corrupt prompt.
        unchanged: logits of the clean prompt as later passes compute them, to the last bit.
    """

    clean: DecoderPass
    corrupt: DecoderPass
    metric: MetricFunction
    metric_name: str
    before: float
    after: float
    unchanged: Tensor

    def lose(self, logits: Tensor) -> float:
        """Return the metric of the clean prompt minus that of other logits."""
        return self.before - float(self.metric(logits))

    def lose_by_step(self, logits: Tensor) -> Tensor:
        """Return what the log-probability of each token of the answer loses, float32 [step]."""
        ids = self.clean.forcing.ids[:, None]
        own, other = (each.log_softmax(-1).gather(1, ids)[:, 0] for each in (self.unchanged, logits))
        return own - other


def read_pair(
    model: Model, clean: Sample, corrupt: Sample, metric: Metric, answer: Answer, max_new_tokens: int
) -> ComponentPair:
    """Read the clean and the corrupt prompt with the clean sample's answer.

    Raises:
        InputError: the prompts differ in length or in the grids of their images.
    """
    forcing = force_answer(model, clean, clean.answer if answer is None else answer, max_new_tokens)
    other = force_answer(model, corrupt, forcing.ids.tolist())
    check_lengths(forcing, other, clean, corrupt)
    passes = DecoderPass(forcing), DecoderPass(other)
    function, name = make_metric(metric, forcing, passes[0].first_logits)
    before, after = (float(function(each.first_logits)) for each in passes)
    return ComponentPair(*passes, function, name, before, after, passes[0].first_logits)


def begin_at_change(
    pair: ComponentPair, metric: Metric, places: Sequence[Tensor], replacement: str = "corrupt"
) -> tuple[ComponentPair, list[Tensor]]:
    """Let the passes of a pair begin at the first token that a patch can change; return the pair and the places.

    Tokens before the first one in which the prompts differ have the same components in both. Their keys and
    values are read once and reused, if the family's can be (`why_not_shared`). It takes three more passes over
    a part of the tokens, so it is left alone where a quarter of the tokens or fewer would be saved; our choice.

    Args:
        metric: as in `read_pair`; it is measured anew, so that equal prompts have equal metrics to the last bit.
        places: positions that are patched.
        replacement: `corrupt`; with another one a patch changes also what is equal in both prompts.

    Returns:
        The pair, and each place without the tokens before the start, as positions from the start on.
    """
    clean, corrupt = pair.clean, pair.corrupt
    if why_not_shared(clean.forcing.model) is not None:
        return pair, list(places)
    first, differs = min(int(place.min()) for place in places), first_difference(clean.inputs, corrupt.inputs)
    if replacement == "corrupt":
        first = max(first, differs)
    if first <= clean.inputs["inputs_embeds"].shape[1] / 4:
        return pair, list(places)
    start = clean.begin_at(first)
    corrupt.begin_at(start, clean.keys if start <= differs else None)
    unchanged, other = clean.logits(), corrupt.logits()
    function, name = make_metric(metric, clean.forcing, unchanged)
    before, after = float(function(unchanged)), float(function(other))
    began = ComponentPair(clean, corrupt, function, name, before, after, unchanged)
    return began, [place[place >= start] - start for place in places]


def check_lengths(forcing: TeacherForcing, other: TeacherForcing, sample: Sample, corrupt: Sample) -> None:
    """Raise InputError if two prompts differ in length or in the grids of their images."""
    lengths = len(forcing.prompt.ids), len(other.prompt.ids)
    if forcing.prompt.grids != other.prompt.grids or lengths[0] != lengths[1]:
        raise InputError(
            f"corrupt {corrupt.id}: its prompt has {lengths[1]} tokens and that of {sample.id} has {lengths[0]}, or "
            "their images have other grids; choose a sample with as many images of the same size, and texts of the "
            "same length"
        )


def find_all_tokens(forcing: TeacherForcing, sample: Sample, names: Sequence[str] | None) -> Tensor:
    """Return the positions of all named tokens, sorted; None means all of prompt and answer."""
    if names is None:
        return torch.arange(len(forcing.prompt.ids) + len(forcing.ids), device=forcing.model.device)
    positions = np.unique(np.concatenate([find_tokens(forcing, sample, name) for name in names]))
    return torch.from_numpy(positions).to(forcing.model.device)
