"""Components: named heads, FFNs and neurons scaled, ablated or steered while the model answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.registry import boolean, choice, file_name, integer, number
from mmprobe.models import Model
from mmprobe.models.components import Component, check_components, read_components
from mmprobe.models.points import Changes

PERIOD = 4096  # tokens after which draws repeat; our choice


@dataclass(frozen=True)
class Components(Method):
    """Scale what named heads, FFNs and neurons write, x, to m + scale (x - m), where m is a baseline; or steer it.

    A scale of 0 ablates them: by zero; by the mean (Wang et al., 2023, arXiv:2211.00593), which leaves what a
    component writes at all tokens; or by resampling, where m is its output at a random token of other prompts, drawn
    anew for each token. A scale above 1 writes more of it. Steering adds a direction instead, x + scale d (Li et al.,
    2023, arXiv:2306.03341). A head's output is that before the output projection, an FFN's what it adds to the
    stream, a neuron's what the FFN's last projection reads. Compare with the same number of random components.

    Parameters:
        components: names such as `head 5.2, ffn 7, neuron 3.17`, or a .json file of them, as `mmprobe analyze --only
            head-ranking` and `mmprobe.models.components.write_components` write it.
        first: 0 to 100000, how many components of the list are changed, from its beginning; 0 for all.
        scale: -1000 to 1000. Without it, 0, which ablates; with action=steer, 1. A scale of 1 changes nothing, with
            action=steer 0.
        action: `scale` or `steer`. The directions are in the file.
        baseline: `zero`, `mean` or `resample`. Means and draws are in the file.
        prompt: whether all tokens of the prompt are changed, and not only the query of each step; the default,
            true, is our choice.
    """

    name: ClassVar[str] = "components"
    reference: ClassVar[str] = (
        "Wang et al., 2023, Interpretability in the wild; Michel et al., 2019, Are sixteen heads really better than one?; "
        "Li et al., 2023, Inference-time intervention"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"scale": 1}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"components": "head 0.0, head 0.1, ffn 0", "scale": -2}

    components: str = file_name()
    first: int = integer(0, 0, 100_000)
    scale: float | None = number(None, -1000, 1000)
    action: str = choice("scale", ("scale", "steer"))
    baseline: str = choice("zero", ("zero", "mean", "resample"))
    prompt: bool = boolean(True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.components:
            read_components(self.components)  # a list that cannot be read shows before a model is loaded

    @property
    def factor(self) -> float:
        """The scale, or its default: 0, and 1 where components are steered."""
        return float(self.action == "steer") if self.scale is None else self.scale

    @property
    def neutral(self) -> bool:
        return self.factor == float(self.action == "scale")

    @property
    def shares_prefix(self) -> bool:
        return not self.prompt

    def check_model(self, model: Model) -> None:
        if not self.neutral:
            self.find(model)

    def find(self, model: Model) -> list[Component]:
        """Return the components that are changed.

        Raises:
            InputError: they cannot be read, do not fit the model, or lack what the action or the baseline needs.
        """
        found = read_components(self.components).components
        found = found[: self.first] if self.first else found
        where = f"method components: {self.components}"
        check_components(model, found, where)
        for component in found:
            if self.action == "steer":
                if component.direction is None:
                    raise InputError(
                        f"{where}: {component.name} has no direction; add it with mmprobe.probes.add_directions"
                    )
            elif self.baseline == "mean" and component.mean is None:
                raise InputError(
                    f"{where}: {component.name} has no mean; add it with mmprobe.probes.add_baselines, or set baseline=zero"
                )
            elif self.baseline == "resample" and not component.draws:
                raise InputError(
                    f"{where}: {component.name} has no draws; add them with mmprobe.probes.add_baselines, or set "
                    "baseline=zero"
                )
        return found

    def create_state(self, context: MethodContext) -> MethodState:
        return _ComponentState(self, context.model, context.prompt_length, context.seed)

    def changes(self, model: Model) -> Changes:
        """Return what the method changes in a forward pass, by point. The errors are those of `find`."""
        return _ComponentState(self, model, prompt_length=0).changes()


class _ChangedComponent(NamedTuple):
    """A component with the vectors that its output moves to or along.

    Attributes:
        vectors: [draw, size], one of them for each token; or [1, size]; or [1, 1] of zero.
        order: int [token], which of the vectors a token gets, repeated.
    """

    number: int | None
    vectors: Tensor
    order: np.ndarray


class _ComponentState(MethodState):
    """Changes the components' outputs."""

    def __init__(self, method: Components, model: Model, prompt_length: int, seed: int = 0):
        self.method, self.prompt_length = method, prompt_length
        self.found = method.find(model)
        self.by_point = defaultdict[tuple[str, int], list[_ChangedComponent]](list)
        self.seen: dict[tuple[str, int], int] = {}  # tokens, by point
        rng = np.random.default_rng(seed)
        for component in self.found:
            vectors: Any
            if method.action == "steer":
                vectors = [component.direction]
            else:
                vectors = {"zero": [[0.0]], "mean": [component.mean], "resample": component.draws}[
                    method.baseline
                ]
            tensor = torch.tensor(vectors, device=model.device, dtype=model.hf.dtype)
            changed = _ChangedComponent(component.number, tensor, rng.integers(len(tensor), size=PERIOD))
            self.by_point[component.kind, component.layer].append(changed)

    def changes(self) -> Changes:
        return {point: partial(self._change, point) for point in self.by_point}

    def _change(self, point: tuple[str, int], value: Tensor) -> Tensor:
        """Return a changed component, [row, position, head, dim], [row, position, hidden] or [row, position, neuron].

        A token's draw depends on its distance to the end of the prompt, so a row is changed as if it were alone.
        """
        first = self.seen.get(point, self.prompt_length - value.shape[1])
        self.seen[point] = first + value.shape[1]
        places = np.arange(first, first + value.shape[1]) - self.prompt_length
        changed, kind = value.clone(), point[0]
        positions = slice(None) if self.method.prompt else slice(-1, None)
        for index, vectors, order in self.by_point[point]:
            own = changed[:, positions]
            if index is not None:
                own = own[..., index : index + 1] if kind == "neuron" else own[:, :, index]
            if vectors.shape[1] not in (1, own.shape[-1]):
                raise InputError(
                    f"method components: {self.method.components}: a vector has {vectors.shape[1]} numbers, and the output "
                    f"of its component {own.shape[-1]}"
                )
            drawn = vectors[order[places[positions] % PERIOD]] if len(vectors) > 1 else vectors
            if self.method.action == "steer":
                own += self.method.factor * drawn
            else:
                own.copy_(drawn + self.method.factor * (own - drawn))
        return changed

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return the names of the components."""
        return {"components": [component.name for component in self.found]}
