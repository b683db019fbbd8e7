"""Check what a checkpoint of unknown origin contains, before libraries read it: its files, numbers, templates, patterns.

Libraries follow an index out of the folder, block on a named pipe, and let a template or a pattern take all memory or
time. What can do so runs once in a process of its own, which has little of both.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.errors import InputError
from mmprobe.files import JsonRecord, check_readable, hash_file, read_record

if TYPE_CHECKING:
    from torch import Tensor

CONFIGS = ("config.json", "preprocessor_config.json", "processor_config.json", "adapter_config.json")
LARGEST = 10**12  # of a number in a config; larger ones are meant to exhaust memory
MOST_LAYERS = 10_000
TEMPLATE_CHARS = 1_000_000
SECONDS, MEMORY = 5, 2**31  # of a process that tries something out
_SHORT_CONFIG = 2**26  # bytes

_LIMIT = f"""
import json, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
except (ImportError, ValueError, OSError):
    pass
content = json.load(sys.stdin)
"""
_MATCH = """
import re
for pattern in content["patterns"]:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        sys.exit(f"not a pattern: {error}")
    for name in content["names"]:
        compiled.fullmatch(name)
"""
_RENDER = """
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
class Generation(Extension):
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)
    def _render(self, caller):
        return caller()
def refuse(message):
    raise ValueError(message)
environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
)
environment.filters["tojson"] = lambda value, **options: json.dumps(value)
environment.globals.update(raise_exception=refuse, strftime_now=lambda form: "2026-01-01")
parts = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Is there a star?"}]
question, text = {"role": "user", "content": parts}, {"role": "user", "content": "Is there a star?"}
system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
for template in content["templates"]:
    for messages in ([question], [system, question], [text]):
        try:
            made = environment.from_string(template).render(messages=messages, add_generation_prompt=True,
                                                            bos_token="<s>", eos_token="</s>")
        except MemoryError:
            sys.exit("takes all memory")
        except Exception:
            continue  # a template need not take every conversation
        if len(made) > content["longest"]:
            sys.exit("makes too long a text")
"""
_ENCODE = """
from tokenizers import Tokenizer
try:
    tokenizer = Tokenizer.from_file(content["file"])
except Exception:
    sys.exit()  # whoever loads it says what is wrong
for text in ("a" * 3000 + "!", " " * 3000 + "a", "1" * 3000 + "a", "aA1 ,.\\n" * 500, "\\n" * 3000, "\u00e9\u4e2d" * 1000):
    tokenizer.encode(text)
"""


def check_files(name: str, folder: Path) -> None:
    """Check the files of a checkpoint, if it is a local folder.

    Args:
        name: of the model, for messages.

    Raises:
        InputError: a file is a named pipe or a device; an index of weights leads elsewhere or to other files than
            safetensors; a config has numbers that exhaust memory; or an adapter has no safetensors.
    """
    if not folder.is_dir():
        return
    for file in sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*")]):
        mode = file.stat().st_mode if file.exists() else 0
        if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise _refuse(name, file, "is a named pipe or a device, not a file")
    for file in sorted(folder.glob("*.index.json")):
        content = _read_config(name, file)
        places = content.get("weight_map")
        for place in places.values() if isinstance(places, dict) else ():
            if not isinstance(place, str) or Path(place).name != place or not place.endswith(".safetensors"):
                raise _refuse(
                    name, file, f"names {str(place)[:200]!r}, which is no file of safetensors in this folder"
                )
    for config in CONFIGS:
        if (folder / config).exists():
            for key, number in _numbers(_read_config(name, folder / config)):
                limit = MOST_LAYERS if "layers" in key or key == "depth" else LARGEST
                if not -limit <= number <= limit:
                    raise _refuse(name, folder / config, f"has {key} {number:.3g}, over {limit:.0e}")
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
        if check_readable(file).stat().st_size > _SHORT_CONFIG:
            raise _refuse(name, file, f"has over {_SHORT_CONFIG >> 20} MiB")
        return read_record(file, JsonRecord).model_dump()
    except (OSError, InputError) as error:
        raise InputError(
            f"model {name!r}: could not be loaded ({error}); check that the folder contains a complete checkpoint"
        ) from None


def _numbers(content: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a config, each with its key."""
    if isinstance(content, dict):
        for own, value in content.items():
            yield from _numbers(value, str(own))
    elif isinstance(content, list):
        for value in content:
            yield from _numbers(value, key)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield key, content


def check_adapter_config(name: str, folder: Path, modules: Iterable[str]) -> None:
    """Check the patterns in an adapter's config against the names of a model's modules.

    Args:
        name: of the model, for messages.
        folder: that of the adapter.
        modules: names of all modules of the base.

    Raises:
        InputError: a pattern is none, or takes too long; or a module that is named as a target is not there.
    """
    config, known = _read_config(name, folder / "adapter_config.json"), list(modules)
    targets = config.get("target_modules")
    patterns = [config.get(key) for key in ("target_modules", "exclude_modules")]
    patterns += [key for table in ("rank_pattern", "alpha_pattern") for key in config.get(table) or {}]
    texts = [each for each in patterns if isinstance(each, str)]
    if problem := _try_out(_MATCH, {"patterns": texts, "names": known}) if texts else None:
        raise _refuse(name, folder / "adapter_config.json", f"has a pattern that cannot be used ({problem})")
    for target in targets if isinstance(targets, list) else ():
        if not any(each == target or each.endswith(f".{target}") for each in known):
            raise InputError(
                f"model {name!r}: its adapter changes {str(target)[:200]!r}, which the model does not have; it is an "
                "adapter of another model"
            )


def check_adapter_fits(name: str, adapted: Mapping[str, Tensor], folder: Path) -> None:
    """Check that each tensor of an adapter is in the model, and that each place for one has one.

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


def check_templates(name: str, processor: Any) -> None:
    """Check the chat templates of a processor by trying them out.

    Raises:
        InputError: they take too much time or memory.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    templates = {
        text for holder in (processor, tokenizer) for text in _texts(getattr(holder, "chat_template", None))
    }
    if templates and (problem := _try_templates(tuple(sorted(templates)))):
        raise InputError(f"model {name!r}: its chat template {problem}; do not use this checkpoint")


def check_tokenizer(name: str, folder: Path) -> None:
    """Check the patterns of the tokenizer in a folder, if there is one, by trying them out.

    Raises:
        InputError: they take too much time or memory, or panic.
    """
    file = folder / "tokenizer.json"
    if file.is_file() and (problem := _try_tokenizer(file, hash_file(file))):
        raise InputError(
            f"model {name!r}: its tokenizer.json cannot be used ({problem}); do not use this checkpoint"
        )


def _texts(template: Any) -> list[str]:
    return (
        [template]
        if isinstance(template, str)
        else list(template.values())
        if isinstance(template, dict)
        else []
    )


@cache
def _try_templates(templates: tuple[str, ...]) -> str | None:
    if max(map(len, templates)) > TEMPLATE_CHARS:
        return f"has over {TEMPLATE_CHARS} characters"
    return _try_out(_RENDER, {"templates": templates, "longest": TEMPLATE_CHARS})


@cache
def _try_tokenizer(file: Path, content: str) -> str | None:
    if '"Regex"' not in file.read_text(encoding="utf-8", errors="replace"):
        return None
    return _try_out(_ENCODE, {"file": str(file)})


def _try_out(code: str, content: Any) -> str | None:
    """Run code on a JSON value in a process with little time and memory. Return what was wrong; None for nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _LIMIT + code],
            input=json.dumps(content),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=6 * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "takes too long"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return "takes too long"
    lines = done.stderr.strip().splitlines() or ["it fails"]
    return "takes all memory" if "MemoryError" in lines[-1] else lines[-1][:200]
