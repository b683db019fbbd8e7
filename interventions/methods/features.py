"""Features: activations of a sparse dictionary that are ablated, clamped or steered while the model answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.registry import boolean, choice, file_name, number
from mmprobe.models import Model
from mmprobe.models.dictionaries import (
    Dictionary,
    check_dictionary,
    edit_features,
    load_dictionary,
    parse_features,
)
from mmprobe.models.points import Changes


@dataclass(frozen=True)
class Features(Method):
    """Change what named features of an SAE or a transcoder write: x becomes x + (z' - z) D, where D decodes.

    What the dictionary does not explain stays, since only the change is decoded, so x stays exactly the same where z
    does. `ablate` makes z 0, `clamp` makes it the value, `steer` adds the value (Templeton et al., 2024,
    Scaling monosemanticity). Compare with random features whose change has the same norm.

    Parameters:
        dictionary: a folder in SAELens' format, `OWNER/NAME/FOLDER` on the hub, or `tiny-spd`
            (`mmprobe.models.dictionaries`).
        features: numbers of features, such as `12, 40`.
        action: `ablate`, `clamp` or `steer`.
        value: the activation that is set or added, in the unit of the dictionary's activations; -1e6 to 1e6.
        tokens: `all` tokens, `visual` ones only, or the `queries` of the answer's steps; the default, all, is our
            choice.
        only_active: whether features are changed only where they are active; the default, false, is our choice.
    """

    name: ClassVar[str] = "features"
    reference: ClassVar[str] = (
        "Templeton et al., 2024, Scaling monosemanticity; Bricken et al., 2023, Towards monosemanticity"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"action": "steer", "value": 0}

    dictionary: str = file_name()
    features: str = file_name()
    action: str = choice("ablate", ("ablate", "clamp", "steer"))
    value: float = number(0.0, -1e6, 1e6)
    tokens: str = choice("all", ("all", "visual", "queries"))
    only_active: bool = boolean(False)

    @property
    def neutral(self) -> bool:
        return self.action == "steer" and self.value == 0

    @property
    def shares_prefix(self) -> bool:
        return self.tokens == "queries"

    def check_model(self, model: Model) -> None:
        if not self.neutral:
            self.find(model)
            if self.tokens == "visual" and model.has_cross_attention:
                raise InputError(
                    f"method features: {model.family.name} sees images by cross-attention, so its prompts have no "
                    "visual tokens; set tokens=all"
                )

    def find(self, model: Model) -> tuple[Dictionary, list[int]]:
        """Return the dictionary and the features that are changed.

        Raises:
            InputError: they cannot be read, or do not fit the model.
        """
        dictionary = load_dictionary(self.dictionary)
        check_dictionary(model, dictionary)
        return dictionary, parse_features(self.features, dictionary)

    def create_state(self, context: MethodContext) -> MethodState:
        return _FeatureState(self, context)


class _FeatureState(MethodState):
    """Changes what features write, and counts where they were active."""

    def __init__(self, method: Features, context: MethodContext):
        self.method = method
        dictionary, self.found = method.find(context.model)
        self.dictionary = dictionary.to(context.model.device)
        self.prompt_length = context.prompt_length
        self.visual = context.mask_tokens(lambda prompt: prompt.visual_positions)
        self.read: Tensor | None = None  # what a transcoder reads in this pass

    def changes(self) -> Changes:
        reads, writes = self.dictionary.reads, self.dictionary.writes
        if reads == writes:
            return {reads: lambda value: self._change(value, value)}
        return {reads: self._keep, writes: self._change_output}

    def _keep(self, value: Tensor) -> Tensor:
        self.read = value
        return value

    def _change_output(self, value: Tensor) -> Tensor:
        assert self.read is not None, "the norm comes before the FFN"
        return self._change(self.read, value)

    def _change(self, read: Tensor, value: Tensor) -> Tensor:
        """Return what is at the point, changed, [row, position, ...].

        Args:
            read: what the dictionary encodes.
            value: what it writes to.
        """
        mask = self._find_tokens(value)
        change = edit_features(
            self.dictionary, self.dictionary.flatten(read), self.found, self.method.action, self.method.value,
            self.method.only_active,
        )  # fmt: skip
        return value + (change * mask[..., None]).reshape(value.shape).to(value.dtype)

    def _find_tokens(self, value: Tensor) -> Tensor:
        """Return which tokens of a pass are changed, bool [row, position]."""
        rows, count = value.shape[:2]
        mask = torch.ones(rows, count, dtype=torch.bool, device=value.device)
        if self.method.tokens == "queries":
            mask[:, :-1] = False
        if self.method.tokens == "visual":
            mask[:] = False
            if count >= self.prompt_length:  # a pass over the prompt, and not over a step
                mask[:, : self.prompt_length] = self.visual[:rows].to(value.device)
        return mask

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return the numbers of the features."""
        return {"features": self.found}
