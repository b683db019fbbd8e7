"""Check a checkpoint's files and its adapter before libraries read them: nothing but safetensors is loaded, and an adapter
must fit its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.errors import InputError
from mmprobe.files import JsonRecord, read_record

if TYPE_CHECKING:
    from torch import Tensor


def check_files(name: str, folder: Path) -> None:
    """Check the files of a checkpoint, if it is a local folder.

    Args:
        name: of the model, for messages.

    Raises:
        InputError: an index of weights names files that are no safetensors in the folder, or an adapter has no safetensors.
    """
    for file in sorted(folder.glob("*.index.json")):
        places = _read_config(name, file).get("weight_map")
        for place in places.values() if isinstance(places, dict) else ():
            if not isinstance(place, str) or Path(place).name != place or not place.endswith(".safetensors"):
                raise _refuse(
                    name, file, f"names {str(place)[:200]!r}, which is no file of safetensors in this folder"
                )
    if (folder / "adapter_config.json").exists() and not (folder / "adapter_model.safetensors").is_file():
        raise _refuse(
            name, folder / "adapter_model.safetensors", "is missing; other files of adapters are not read"
        )


def _refuse(name: str, file: Path, problem: str) -> InputError:
    return InputError(
        f"model {name!r}: {file} {problem}; do not use this checkpoint unless you can repair it"
    )


def _read_config(name: str, file: Path) -> dict[str, Any]:
    try:
        return read_record(file, JsonRecord).model_dump()
    except (OSError, InputError) as error:
        raise InputError(
            f"model {name!r}: could not be loaded ({error}); check that the folder contains a complete checkpoint"
        ) from None


def check_adapter_config(name: str, folder: Path, modules: Iterable[str]) -> None:
    """Check that a model has the modules that an adapter's config names.

    Args:
        name: of the model, for messages.
        folder: that of the adapter.
        modules: names of all modules of the base.

    Raises:
        InputError: a module that is named as a target is not there.
    """
    known = list(modules)
    targets = _read_config(name, folder / "adapter_config.json").get("target_modules")
    for target in targets if isinstance(targets, list) else ():
        if not any(each == target or each.endswith(f".{target}") for each in known):
            raise InputError(
                f"model {name!r}: its adapter changes {str(target)[:200]!r}, which the model does not have; it is an "
                "adapter of another model"
            )


def check_adapter_fits(name: str, adapted: Mapping[str, Tensor], folder: Path) -> None:
    """Check that adapter tensors and adapter slots match one to one.

    PEFT leaves out what it finds no place for, and the model would answer as its base.

    Args:
        name: of the model, for messages.
        adapted: the tensors of the adapter in the model, by name.
        folder: that of the adapter.

    Raises:
        InputError: the adapter belongs to another model, or lacks tensors.
    """
    from safetensors.torch import load_file

    stored = load_file(folder / "adapter_model.safetensors")
    dtypes = {tensor.dtype for tensor in adapted.values()}
    places = Counter(_hash_tensor(tensor) for tensor in adapted.values())
    lost = []
    for key, tensor in stored.items():
        place = next((each for dtype in dtypes if places[each := _hash_tensor(tensor.to(dtype))]), None)
        if place is None:
            lost.append(key)
        else:
            places[place] -= 1
    if lost:
        raise InputError(
            f"model {name!r}: {len(lost)} of the {len(stored)} tensors of its adapter have no place in the model, such "
            f"as {lost[0]}; it is an adapter of another model"
        )
    if empty := places.total():
        raise InputError(
            f"model {name!r}: its adapter lacks {empty} of the {len(adapted)} tensors that its config names; check "
            "that it is complete"
        )


def _hash_tensor(tensor: Tensor) -> tuple[Any, ...]:
    import torch
    import xxhash

    content = tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy()
    return tensor.dtype, tuple(tensor.shape), xxhash.xxh3_64_intdigest(content.tobytes())
