"""Named components of a decoder, and the file that passes a list of them on.

A ranking writes the file, and so do patching and circuits; the method `components` reads it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmprobe.errors import InputError
from mmprobe.files import JsonRecord, make_folders, read_record, write_whole
from mmprobe.models.families.base import find_down

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

_NAME = re.compile(r"(?:(head|neuron) )?(\d+)\.(\d+)|(ffn) (\d+)")


class Component(JsonRecord):
    """A head, the FFN of a layer, or one of its neurons.

    What it writes is a vector [size]: [dim] of a head before the output projection, [hidden] that an FFN adds to the
    stream, [1] of a neuron, which the last projection of the FFN reads.

    Attributes:
        name: `head LAYER.HEAD` or `ffn LAYER`, as in circuits, or `neuron LAYER.NEURON`.
        score: how much it matters, by what the list says; None where nobody measured it.
        mean: its mean output over tokens, [size]. None where nobody measured it, as for the next two.
        draws: its outputs at tokens of other prompts, [draw, size].
        direction: what steering adds to its output, [size].

    Example:
        >>> Component(name="head 5.2").layer, Component(name="head 5.2").number, Component(name="ffn 7").number
        (5, 2, None)
    """

    name: str
    score: float | None = None
    mean: list[float] | None = None
    draws: list[list[float]] | None = None
    direction: list[float] | None = None

    @property
    def kind(self) -> str:
        """`head`, `ffn` or `neuron`, as points have them."""
        return self._parts()[0]

    @property
    def layer(self) -> int:
        """Number of the layer."""
        return self._parts()[1]

    @property
    def number(self) -> int | None:
        """Number of the head or of the neuron in its layer; None for an FFN."""
        return self._parts()[2]

    def _parts(self) -> tuple[str, int, int | None]:
        match = _NAME.fullmatch(self.name)
        if match is None:
            raise InputError(
                f"component {self.name!r}: write head LAYER.HEAD, ffn LAYER or neuron LAYER.NEURON, such as head 5.2"
            )
        kind, layer, number, ffn, ffn_layer = match.groups()
        return (ffn, int(ffn_layer), None) if ffn else (kind or "head", int(layer), int(number))

    def vectors(self) -> list[list[float]]:
        """Return all vectors of the record: its mean, its direction and its draws, where it has them."""
        return [each for each in (self.mean, self.direction, *(self.draws or ())) if each is not None]


class ComponentList(JsonRecord):
    """A list of components, the most important one first, and how it came about.

    Attributes:
        components: the components.
        model: name of the model; None where it is not known.
        by: what the scores are.
    """

    components: list[Component]
    model: str | None = None
    by: str = ""


def read_components(source: str | Path) -> ComponentList:
    """Return components from the file of `write_components`, or from names such as `head 5.2, ffn 7`.

    Args:
        source: the file, as a path or as a text that ends in .json; or names in a text.

    Raises:
        InputError: the file cannot be read, or a name is not that of a component, or a component is there twice.

    Example:
        >>> [component.name for component in read_components("5.2, ffn 7").components]
        ['head 5.2', 'ffn 7']
    """
    text = str(source)
    if isinstance(source, Path) or text.endswith(".json"):
        try:
            found = read_record(Path(source), ComponentList)
        except FileNotFoundError:
            raise InputError(f"components {text}: no such file") from None
    else:
        names = [part.strip() for part in text.split(",") if part.strip()]
        found = ComponentList(
            components=[Component(name=f"head {name}" if name[0].isdigit() else name) for name in names]
        )
    if not found.components:
        raise InputError(
            f"components {text!r}: names none; write head 5.2, ffn 7, neuron 3.17, or the name of a .json file"
        )
    keys = [(component.kind, component.layer, component.number) for component in found.components]
    for key, component in zip(keys, found.components, strict=True):
        if keys.count(key) > 1:
            raise InputError(f"components {text}: {component.name} is there twice; name it once")
    return found


def write_components(listed: ComponentList, file: str | Path) -> Path:
    """Write a list of components, and return the file, which must end in .json.

    Raises:
        InputError: the file cannot be written.

    Example:
        >>> write_components(ComponentList(components=[]), "heads.txt")
        Traceback (most recent call last):
        mmprobe.errors.InputError: heads.txt: a file of components ends in .json
    """
    path = Path(file)
    if path.suffix != ".json":
        raise InputError(f"{path}: a file of components ends in .json")
    make_folders(path.parent)
    write_whole({path: json.dumps(listed.model_dump(exclude_none=True), indent=1).encode() + b"\n"})
    return path


def check_components(model: Model, components: Sequence[Component], where: str) -> None:
    """Check that a model has the components, and that their vectors fit it.

    Args:
        where: start of the message.

    Raises:
        InputError: the model lacks a component, or a vector has another size or is not finite.
    """
    config = model.hf.config.get_text_config()
    for component in components:
        kind, layer, number = component.kind, component.layer, component.number
        if layer >= model.n_layers:
            raise InputError(f"{where}: {component.name}: the model has layers 0 to {model.n_layers - 1}")
        if kind == "head" and number is not None and number >= model.n_heads:
            raise InputError(f"{where}: {component.name}: the model has heads 0 to {model.n_heads - 1}")
        module = model.family.decoder(model.hf).layers[layer]
        parts = model.family.parts(module)
        needed = {"head": parts.attention, "ffn": parts.mid, "neuron": find_down(module)}[kind]
        if needed is None:
            reason = model.why_irregular or f"layer {layer} has experts, or an FFN of another form"
            raise InputError(f"{where}: {component.name}: the layer has no such component ({reason})")
        if kind == "neuron" and number is not None and number >= needed.in_features:
            raise InputError(
                f"{where}: {component.name}: the layer has neurons 0 to {needed.in_features - 1}"
            )
        size = {"head": None, "ffn": config.hidden_size, "neuron": 1}[kind]  # a head's shows when it runs
        for vector in component.vectors():
            if size is not None and len(vector) != size:
                raise InputError(f"{where}: {component.name}: a vector has {len(vector)} numbers, not {size}")
            if not all(map(math.isfinite, vector)):
                raise InputError(f"{where}: {component.name}: a vector has numbers that are not finite")
