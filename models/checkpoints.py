"""Checkpoints: their short names (one YAML file each in `configs/models`), where their files are, and fingerprints.

A fingerprint tells a model from another one under the same name, such as a checkpoint whose folder was trained further.
It is cheap: of large weights, a block of each tensor is read. The module imports nothing heavy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from weakref import ReferenceType

import xxhash
import yaml

from mmprobe.errors import InputError, suggest_names
from mmprobe.files import JsonRecord, check_readable, file_state, hash_file, read_record
from mmprobe.models import organisms

EMBEDDED = "embedded:"
PARTS = {  # of a checkpoint: the files of each, or patterns of them
    "config": ("config.json", "adapter_config.json"),
    "generation config": ("generation_config.json",),
    "chat template": ("chat_template.jinja", "chat_template.json"),
    "tokenizer": (
        *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model"),
        *("special_tokens_map.json", "added_tokens.json"),
    ),
    "processor": ("preprocessor_config.json", "processor_config.json"),
    "video processor": ("video_preprocessor_config.json",),
    "further chat templates": ("additional_chat_templates/*.jinja",),
    "further tokenizers": (
        *("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "qformer_tokenizer/*.json"),
        "qformer_tokenizer/*.txt",
    ),
    "index of weights": ("*.safetensors.index.json",),
}
SMALL = 1 << 24  # bytes of a file of weights that is read whole
BLOCK = 1 << 14  # bytes that are read of each tensor of a larger file
VALUES = 64  # that are read of each tensor in memory
GONE = {
    "tiny-llava": "no longer ships; use tiny-spd, or the LLaVA model that `make real` builds in build/real"
}


@dataclass(frozen=True)
class Alias:
    """A short name for a model.

    Attributes:
        name: the short name.
        source: a hub id, or `embedded:` and a folder of this package.
        family: name of the model's family.
        description: size and memory, in one line.
        shapes: what its config says of its shapes; empty if they are read from its files alone.
    """

    name: str
    source: str
    family: str
    description: str
    shapes: Mapping[str, Any] = field(default_factory=dict)


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
    if name in GONE and not Path(name).exists():
        raise InputError(f"model {name!r}: {GONE[name]}")
    if Path(source).is_file() and find_gguf(source):
        return source, source
    if not Path(source).is_dir() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
        hint = suggest_names(name, aliases, "see `mmprobe models`")
        raise InputError(f"model {name!r}: neither an alias, a folder, nor a hub id 'owner/name'; {hint}")
    return source, source


def find_gguf(path: str) -> Path | None:
    """Return the GGUF file that a path is, or that a folder without other weights has alone; None if there is none.

    Example:
        >>> find_gguf("Qwen/Qwen2.5-VL-7B-Instruct") is None
        True
    """
    place = Path(path)
    if place.is_file():
        return place if place.suffix.lower() == ".gguf" else None
    files = sorted(place.glob("*.gguf")) if place.is_dir() and not any(place.glob("*.safetensors")) else []
    return files[0] if len(files) == 1 else None


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


@dataclass(frozen=True)
class Checkpoint:
    """What a `transformers.PreTrainedModel` was loaded from.

    Attributes:
        places: local folder, or id on the hub; that of an adapter after that of the model whose weights it changes.
        hf: the model. Another one that takes its place was not loaded from there.
    """

    places: tuple[str, ...]
    hf: ReferenceType[Any]


def fingerprint_files(folders: Sequence[Path]) -> dict[str, str]:
    """Return hashes of the parts of a checkpoint.

    With the variable `MMPROBE_WHOLE_WEIGHTS`, every byte of the weights is read, too, for `whole weights`, which takes as
    long as to read the files.

    Args:
        folders: where its files are; that of an adapter after that of the model whose weights it changes.

    Returns:
        Hashes by part: `weights` and those of `PARTS`, and `of`, which is `files`. A part without files is empty.

    Example:
        >>> fingerprint_files([Path("nowhere")])["weights"]
        ''
    """
    weights = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    parts = {"of": "files", "weights": _join(map(_hash_weights, weights))}
    for part, names in PARTS.items():
        files = [file for folder in folders for name in names for file in sorted(folder.glob(name))]
        parts[part] = _join(f"{file.name} {hash_file(file)}" for file in files if file.is_file())
    if os.environ.get("MMPROBE_WHOLE_WEIGHTS"):
        parts["whole weights"] = _join(map(hash_file, weights))
    return parts


def fingerprint_checkpoint(places: Sequence[str], revision: str | None = None) -> dict[str, str]:
    """Return hashes of the parts of a checkpoint, as `fingerprint_files`.

    Args:
        places: as those of a `Checkpoint`.
        revision: commit on the hub. What was not downloaded is empty.
    """
    folders = []
    if (gguf := find_gguf(places[0])) is not None:
        return {"of": "files", "weights": hash_file(gguf)}
    for place in places:
        if Path(place).is_dir():
            folders.append(Path(place))
        else:
            from huggingface_hub import snapshot_download

            with suppress(OSError, ValueError):
                folders.append(Path(snapshot_download(place, revision=revision, local_files_only=True)))
    return fingerprint_files(folders)


def fingerprint_memory(hf: Any, processor: Any) -> dict[str, str]:
    """Return hashes of the parts of a model in memory: of a sample of each weight's values, and of its settings.

    Args:
        hf: a `transformers.PreTrainedModel`. Weights that are not in memory are left out.
        processor: its `transformers.ProcessorMixin`.

    Returns:
        Hashes by part: `weights`, `config`, `generation config` and `chat template`, and `of`, which is `memory`.
    """
    config = {name: value for name, value in hf.config.to_dict().items() if name != "_name_or_path"}
    generation = getattr(hf, "generation_config", None)
    template = getattr(processor, "chat_template", None)
    texts = {
        "config": config,
        "generation config": None if generation is None else generation.to_dict(),
        "chat template": template,
    }
    parts = {
        part: _join([json.dumps(content, sort_keys=True, default=str)]) for part, content in texts.items()
    }
    return {"of": "memory", "weights": _join(_sample_weights(hf)), **parts}


def _join(texts: Iterable[str]) -> str:
    """Return a hash of texts in order; an empty text if there are none."""
    found = list(texts)
    return xxhash.xxh3_64_hexdigest("\n".join(found).encode()) if found else ""


def _hash_weights(file: Path) -> str:
    """Return a hash of a file of safetensors, which is read again only if it has another size or time."""
    status = check_readable(file).stat()
    return hash_file(file) if status.st_size <= SMALL else _sample_file(file, *file_state(status))


@cache
def _sample_file(file: Path, *state: int) -> str:
    """Return a hash of the header of a file of safetensors, and of a block in the middle of each tensor."""
    digest = xxhash.xxh3_64()
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = stream.read(size)
        digest.update(header)
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        for first, end in sorted(entry["data_offsets"] for entry in tensors):
            start = max(first, (first + end - BLOCK) // 2)
            stream.seek(8 + size + start)
            digest.update(stream.read(min(BLOCK, end - start)))
    return digest.hexdigest()


def _sample_weights(hf: Any) -> Iterable[str]:
    """Yield name, shape and hash of some values of each weight in memory."""
    import torch

    for name, weight in hf.named_parameters():
        values = weight.detach()
        values = values.to_local() if hasattr(values, "to_local") else values
        if values.is_meta or not values.numel():
            continue
        step = max(1, values.numel() // VALUES)
        chosen = values.flatten()[::step][: VALUES + 1].to("cpu", torch.float32)
        yield f"{name} {tuple(values.shape)} {xxhash.xxh3_64_hexdigest(chosen.numpy().tobytes())}"
