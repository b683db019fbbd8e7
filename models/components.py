"""Named components of a decoder, and the file that passes a list of them on.

A ranking writes the file, and so do patching and circuits; the method `components` reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmprobe.errors import InputError
from mmprobe.files import JsonRecord, read_record, write_whole

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

_NAME = re.compile(r"(?:head )?(\d+)\.(\d+)|ffn (\d+)")


class Component(JsonRecord):
    """A head, or the FFN of a layer.

    Attributes:
        name: `head LAYER.HEAD` or `ffn LAYER`, as in circuits.
        score: how much it matters, by what the list says; None where nobody measured it.
        mean: its mean output over tokens: [dim] of a head, [hidden] of an FFN. None where nobody measured it.

    Example:
        >>> Component(name="head 5.2").layer, Component(name="head 5.2").head, Component(name="ffn 7").head
        (5, 2, None)
    """

    name: str
    score: float | None = None
    mean: list[float] | None = None

    @property
    def kind(self) -> str:
        """`head` or `ffn`, as points have them."""
        return "ffn" if self.head is None else "head"

    @property
    def layer(self) -> int:
        """Number of the layer."""
        layer, _, ffn = self._parts()
        return int(layer or ffn)

    @property
    def head(self) -> int | None:
        """Number of the head in its layer; None for an FFN."""
        head = self._parts()[1]
        return None if head is None else int(head)

    def _parts(self) -> tuple[str, str, str]:
        match = _NAME.fullmatch(self.name)
        if match is None:
            raise InputError(f"component {self.name!r}: write head LAYER.HEAD or ffn LAYER, such as head 5.2")
        layer, head, ffn = match.groups()
        return layer, head, ffn


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


def read_components(text: str) -> ComponentList:
    """Return components from the name of a JSON file, or from names such as `head 5.2, ffn 7`.

    Raises:
        InputError: the file cannot be read, or a name is not that of a component, or a component is there twice.

    Example:
        >>> [component.name for component in read_components("5.2, ffn 7").components]
        ['head 5.2', 'ffn 7']
    """
    if text.endswith(".json"):
        try:
            found = read_record(Path(text), ComponentList)
        except FileNotFoundError:
            raise InputError(f"components {text}: no such file") from None
    else:
        names = [part.strip() for part in text.split(",") if part.strip()]
        found = ComponentList(
            components=[Component(name=f"head {name}" if name[0].isdigit() else name) for name in names]
        )
    if not found.components:
        raise InputError(
            f"components {text!r}: names none; write head 5.2, ffn 7, or the name of a .json file"
        )
    keys = [(component.kind, component.layer, component.head) for component in found.components]
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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole({path: json.dumps(listed.model_dump(exclude_none=True), indent=1).encode() + b"\n"})
    return path


def check_components(model: Model, components: Sequence[Component], where: str) -> None:
    """Check that a model has the components, and that their means fit it.

    Args:
        where: start of the message.

    Raises:
        InputError: the model lacks a component, or a mean has another size.
    """
    config = model.hf.config.get_text_config()
    for component in components:
        layer, head = component.layer, component.head
        if layer >= model.n_layers:
            raise InputError(f"{where}: {component.name}: the model has layers 0 to {model.n_layers - 1}")
        if head is not None and head >= model.n_heads:
            raise InputError(f"{where}: {component.name}: the model has heads 0 to {model.n_heads - 1}")
        parts = model.family.parts(model.family.decoder(model.hf).layers[layer])
        if (parts.attention if head is not None else parts.mid) is None:
            raise InputError(
                f"{where}: {component.name}: the layer has no such component ({model.why_irregular})"
            )
        size = len(component.mean or ())
        if head is None and component.mean is not None and size != config.hidden_size:
            raise InputError(
                f"{where}: {component.name}: its mean has {size} numbers, not {config.hidden_size}"
            )
