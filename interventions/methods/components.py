"""Components: named heads and FFNs scaled or ablated while the model answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.registry import boolean, choice, file_name, number
from mmprobe.models import Model
from mmprobe.models.components import Component, check_components, read_components
from mmprobe.models.points import Changes


@dataclass(frozen=True)
class Components(Method):
    """Scale what named heads and FFNs write: x becomes m + scale (x - m), where m is 0 or the component's mean.

    A scale of 0 ablates them: by zero, or by the mean (Wang et al., 2023, arXiv:2211.00593), which leaves what a
    component writes at all tokens. A scale above 1 writes more of it. A head's output is that before the output
    projection, an FFN's what it adds to the stream. Compare with the same number of random components.

    Parameters:
        components: names such as `head 5.2, ffn 7`, or a .json file of them, as `mmprobe.probes.rank_heads` and
            `list_components` write it.
        scale: -10 to 10; 1 changes nothing; the default, 0, ablates.
        baseline: `zero` or `mean`. The means are in the file.
        prompt: whether all tokens of the prompt are changed, and not only the query of each step; the default,
            true, is our choice.
    """

    name: ClassVar[str] = "components"
    reference: ClassVar[str] = (
        "Wang et al., 2023, Interpretability in the wild; Michel et al., 2019, Are sixteen heads really better than one?"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"scale": 1}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"components": "head 0.0, head 0.1, ffn 0", "scale": -2}

    components: str = file_name()
    scale: float = number(0.0, -10, 10)
    baseline: str = choice("zero", ("zero", "mean"))
    prompt: bool = boolean(True)

    @property
    def neutral(self) -> bool:
        return self.scale == 1

    @property
    def shares_prefix(self) -> bool:
        return not self.prompt

    def check_supported(self, model: Model, n_images: int, prompt_name: str) -> None:
        super().check_supported(model, n_images, prompt_name)
        if not self.neutral:
            self.find(model)

    def find(self, model: Model) -> list[Component]:
        """Return the components that are changed.

        Raises:
            InputError: they cannot be read, do not fit the model, or lack the means that the baseline needs.
        """
        found = read_components(self.components).components
        where = f"method components: {self.components}"
        check_components(model, found, where)
        for component in found:
            if self.baseline == "mean" and component.mean is None:
                raise InputError(
                    f"{where}: {component.name} has no mean; write the file with rank_heads, or set baseline=zero"
                )
        return found

    def create_state(self, context: MethodContext) -> MethodState:
        return _ComponentState(self, context.model)


class _ComponentState(MethodState):
    """Changes the components' outputs, and records how large the change is."""

    def __init__(self, method: Components, model: Model):
        self.method = method
        place: dict[str, Any] = {"device": model.device, "dtype": model.hf.dtype}
        self.found = method.find(model)
        self.by_point = defaultdict[tuple[str, int], list[tuple[int | None, Tensor]]](list)
        for component in self.found:
            has_mean = method.baseline == "mean"
            mean = torch.tensor(component.mean if has_mean else 0.0, **place)
            self.by_point[component.kind, component.layer].append((component.head, mean))

    def changes(self) -> Changes:
        return {point: partial(self._change, parts) for point, parts in self.by_point.items()}

    def _change(self, parts: Sequence[tuple[int | None, Tensor]], value: Tensor) -> Tensor:
        """Return a changed component, [row, position, head, dim] or [row, position, hidden]."""
        changed = value.clone()
        positions = slice(None) if self.method.prompt else slice(-1, None)
        for head, mean in parts:
            own = changed[:, positions] if head is None else changed[:, positions, head]
            if mean.dim() and mean.shape != own.shape[-1:]:
                raise InputError(
                    f"method components: {self.method.components}: a mean has {len(mean)} numbers, and the output of its "
                    f"component {own.shape[-1]}"
                )
            own.copy_(mean + self.method.scale * (own - mean))
        return changed

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return the names of the components."""
        return {"components": [component.name for component in self.found]}
