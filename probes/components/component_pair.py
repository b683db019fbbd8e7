"""A clean and a corrupt prompt, read with the same answer, and the tokens at which they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.probes.components.decoder_pass import DecoderPass
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
    """

    clean: DecoderPass
    corrupt: DecoderPass
    metric: MetricFunction
    metric_name: str
    before: float
    after: float


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
    return ComponentPair(*passes, function, name, before, after)


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
