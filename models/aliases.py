"""Short names for models, one YAML file each in `configs/models`. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import yaml

from mmprobe.errors import InputError, suggest_names
from mmprobe.files import JsonRecord, read_record
from mmprobe.models import organisms

EMBEDDED = "embedded:"


@dataclass(frozen=True)
class Alias:
    """A short name for a model.

    Attributes:
        name: the short name.
        source: a hub id, or `embedded:` and a folder of this package.
        family: name of the model's family.
        description: size and memory, in one line.
    """

    name: str
    source: str
    family: str
    description: str


@cache  # the package's own files; thirty of them took a fifth of the time to load the embedded model
def load_aliases() -> dict[str, Alias]:
    """Return all aliases by name, in alphabetical order.

    Example:
        >>> load_aliases()["qwen2.5-vl-7b"].source
        'Qwen/Qwen2.5-VL-7B-Instruct'
    """
    files = (resources.files("mmprobe.configs") / "models").iterdir()
    entries = [
        yaml.safe_load(file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".yaml")
    ]
    return {entry["name"]: Alias(**entry) for entry in sorted(entries, key=lambda entry: entry["name"])}


def locate(name: str) -> tuple[str, str]:
    """Return the source of a name, and the local folder or hub id where transformers finds it.

    Args:
        name: an alias, `organism:` and the name of an organism, a local folder or a hub id. The folder of an
            organism is that of the model whose weights its adapter changes.

    Raises:
        InputError: the name is neither an alias, nor a folder, nor looks like a hub id; or no such organism.

    Example:
        >>> locate("qwen2.5-vl-3b")
        ('Qwen/Qwen2.5-VL-3B-Instruct', 'Qwen/Qwen2.5-VL-3B-Instruct')
    """
    if name.startswith(organisms.PREFIX):
        return f"{organisms.PREFIX}{organisms.folder(name).name}", locate(organisms.BASE)[1]
    aliases = load_aliases()
    source = aliases[name].source if name in aliases else name
    if source.startswith(EMBEDDED):
        return source, str(resources.files("mmprobe.models") / source.removeprefix(EMBEDDED))
    if not Path(source).is_dir() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
        hint = suggest_names(name, aliases, "see `mmprobe models`")
        raise InputError(f"model {name!r}: neither an alias, a folder, nor a hub id 'owner/name'; {hint}")
    return source, source


def find_base(path: str) -> str | None:
    """Return the folder or hub id of the model that a folder's adapter changes, as PEFT saves adapters.

    None if the folder has no adapter, or has the model's config beside it, so that transformers loads both.

    Raises:
        InputError: the adapter does not name its base, or names neither a folder nor a hub id.

    Example:
        >>> find_base("Qwen/Qwen2.5-VL-7B-Instruct") is None
        True
    """
    adapter = Path(path) / "adapter_config.json"
    if not adapter.is_file() or (Path(path) / "config.json").is_file():
        return None
    base = read_record(adapter, JsonRecord).model_dump().get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise InputError(
            f"model {path!r}: its adapter names no base_model_name_or_path; add it to {adapter.name}"
        )
    return locate(base)[1]


def find_checkpoint(name: str) -> tuple[str, ...]:
    """Return the local folders or hub ids of a model's weights: of an adapter, and so of an organism, its base first.

    Raises:
        InputError: as `locate`.

    Example:
        >>> find_checkpoint("qwen2.5-vl-3b")
        ('Qwen/Qwen2.5-VL-3B-Instruct',)
    """
    _, path = locate(name)
    if name.startswith(organisms.PREFIX):
        return path, str(organisms.folder(name))
    adapter = Path(path) / "adapter_config.json"
    if adapter.is_file():
        base = read_record(adapter, JsonRecord).model_dump().get("base_model_name_or_path")
        return (base, path) if isinstance(base, str) and base != path else (path,)
    return (path,)
