"""The run loop: trace every sample of a data set into a folder."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from mmprobe import __version__
from mmprobe.cache import Run, TraceWriter, open_run
from mmprobe.cache.schema import FORMAT_VERSION, GROUP_NAMES, VARIABLES
from mmprobe.errors import InputError
from mmprobe.models import Model, Prompt
from mmprobe.models.prompt import token_texts
from mmprobe.samples import Sample
from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.native import record

ENGINES = {"native": record}


def trace(
    model: Model,
    samples: Sequence[Sample],
    out: str | Path,
    capture: str | Path | CaptureSpec = "default",
    max_new_tokens: int = 256,
    engine: str = "native",
    temperature: float = 0.0,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
) -> Run:
    """Let the model answer every sample and record what happens inside.

    The answers are those of `model.hf.generate`, token by token. A sample that fails goes to
    `failures.jsonl` and the run goes on; whatever was finished before an interruption stays.

    Args:
        model: from `load_model`.
        samples: from `load_samples`; ids must be unique.
        out: the run's folder.
        capture: `default`, `full`, a YAML file, or a `CaptureSpec`.
        max_new_tokens: longest answer.
        engine: `native`.
        temperature: 0 answers greedily; above 0 samples, seeded anew for each sample.
        seed: of the sampling.
        resume: keep what an earlier, equal call finished in `out`, and do the rest.
        overwrite: delete an earlier run in `out` first.

    Raises:
        InputError: a run is there already, cannot be resumed, or does not fit on the disk.

    Example:
        >>> import mmprobe as mp                                     # doctest: +SKIP
        >>> run = mp.trace(model, samples, out="runs/demo")          # doctest: +SKIP
    """
    spec, out = load_capture(capture), Path(out)
    if engine not in ENGINES:
        raise InputError(f"engine {engine!r}: choose {', '.join(ENGINES)}")
    if max_new_tokens < 1:
        raise InputError(f"--max-new-tokens {max_new_tokens}: must be 1 or more")
    if temperature < 0:
        raise InputError(f"--temperature {temperature}: must be 0 or more")
    ids = [sample.id for sample in samples]
    if len(set(ids)) != len(ids):
        raise InputError("samples: two have the same id")
    spec.layer_indices(model.layer_count)
    config = _describe(model, ids, spec, max_new_tokens, engine, temperature, seed)
    done = _open_folder(out, config, resume, overwrite, expected_bytes(model, spec, len(ids), max_new_tokens))
    generate = _generate_options(model, max_new_tokens, temperature)
    todo = [sample for sample in samples if sample.id not in done]
    for sample in tqdm(
        todo, desc="trace", unit="sample", initial=len(done), total=len(samples), disable=None
    ):
        torch.manual_seed(seed)
        try:
            trace_sample(model, sample, out / "samples" / f"{sample.id}.h5", spec, generate, engine)
        except (InputError, torch.OutOfMemoryError) as error:
            _note_failure(out, sample.id, error)
    return open_run(out)


def trace_sample(
    model: Model,
    sample: Sample,
    path: Path,
    spec: CaptureSpec,
    generate: dict[str, Any],
    engine: str = "native",
) -> None:
    """Trace one sample into one file."""
    prompt = model.prompt(sample)
    config = model.hf.config.get_text_config()
    coordinates = {
        "layer": np.array(spec.layer_indices(model.layer_count), np.int32),
        "head": np.arange(config.num_attention_heads),
        "group": np.array(GROUP_NAMES),
    }
    about = {
        "sample": sample.model_dump_json(),
        "model": model.source,
        "neurons": str(model.family.ffn_width(model.hf.config)),
    }
    with TraceWriter(path, coordinates, about, half=spec.dtype == "float16") as writer:
        generated = ENGINES[engine](model, prompt, spec, writer, generate)
        _write_tokens(model, prompt, generated, writer)


def _write_tokens(model: Model, prompt: Prompt, generated: np.ndarray, writer: TraceWriter) -> None:
    ids = np.concatenate([prompt.ids, generated])
    writer.write("tokens/id", ids)
    writer.write("tokens/group", np.concatenate([prompt.group, np.full(len(generated), 4)]))
    writer.write("tokens/image", np.concatenate([prompt.image, np.full(len(generated), -1)]))
    writer.write("tokens/text", np.array([_storable(text) for text in token_texts(model, ids)], dtype=object))
    writer.write("images/grid", np.reshape(prompt.grids, (-1, 2)))
    writer.write("images/size", np.reshape(prompt.sizes, (-1, 2)))
    writer.set_attributes({"answer": _storable(model.tokenizer.decode(generated, skip_special_tokens=True))})


def _storable(text: str) -> str:
    """HDF5 texts end at a NUL; a model can generate one."""
    return text.replace("\0", "\ufffd")


def _generate_options(model: Model, max_new_tokens: int, temperature: float) -> dict[str, Any]:
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        options["temperature"] = temperature
    else:
        options |= {"temperature": None, "top_p": None, "top_k": None}  # unused, and warned about when set
    return options


def _describe(
    model: Model,
    ids: list[str],
    spec: CaptureSpec,
    max_new_tokens: int,
    engine: str,
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """The run's `run.json`."""
    return {
        "format": FORMAT_VERSION,
        "model": {
            "name": model.name,
            "source": model.source,
            "revision": model.revision,
            "family": model.family.name,
            "dtype": str(model.hf.dtype).removeprefix("torch."),
            "layers": model.layer_count,
        },
        "capture": spec.model_dump(),
        "generate": {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed},
        "engine": engine,
        "versions": {
            "python": platform.python_version(),
            "mmprobe": __version__,
            **{name: version(name) for name in ("torch", "transformers", "h5py")},
        },
        "order": ids,
    }


def _open_folder(out: Path, config: dict[str, Any], resume: bool, overwrite: bool, needed: int) -> set[str]:
    """Make the run's folder and say which samples are finished already."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; choose another folder for the run")
    there = out.is_dir() and any(out.iterdir())
    if there and not (out / "run.json").is_file():
        raise InputError(f"{out}: is not empty and holds no run; choose another folder")
    if there and not resume and not overwrite:
        raise InputError(
            f"{out}: holds a run already; use --resume to finish it or --overwrite to replace it"
        )
    _check_space(out, needed)
    if there and overwrite:
        shutil.rmtree(out)
        there = False
    if there:
        earlier = open_run(out)
        for part in ("model", "capture", "generate", "engine", "order"):
            if earlier.config[part] != config[part]:
                raise InputError(
                    f"{out}: was traced with another {part}; --resume needs the same, or use --overwrite"
                )
        (out / "failures.jsonl").unlink(missing_ok=True)
        return set(earlier.ids)
    try:
        (out / "samples").mkdir(parents=True)
        part_file = out / "run.json.part"
        part_file.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        os.replace(part_file, out / "run.json")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    return set()


def _check_space(out: Path, needed: int) -> None:
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise InputError(
            f"{out}: the run can take {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "choose another folder, a smaller capture, --limit or fewer --max-new-tokens"
        )


def expected_bytes(model: Model, spec: CaptureSpec, samples: int, max_new_tokens: int) -> int:
    """The most that a run writes to disk if no prompt is longer than 1,024 tokens, all of them visual."""
    config = model.hf.config.get_text_config()
    layers = len(spec.layer_indices(model.layer_count))
    width = model.family.ffn_width(model.hf.config)
    sizes = {
        "step": max_new_tokens,
        "layer": layers,
        "head": config.num_attention_heads,
        "group": len(GROUP_NAMES),
        "visual": 1024,
        "user_token": 64,
        "token": 1024 + max_new_tokens,
        "hidden": config.hidden_size,
        "neuron": width,
        "neuron_byte": -(-width // 8),
    }
    per_sample = 64 * 1024
    for name in spec.datasets:
        variable = VARIABLES[name]
        itemsize = (
            4 if (variable.dtype, spec.dtype) == ("f2", "float32") else np.dtype(variable.dtype).itemsize
        )
        per_sample += itemsize * int(np.prod([sizes[dim] for dim in variable.dims], dtype=object))
    return samples * per_sample


def _note_failure(out: Path, sample_id: str, error: Exception) -> None:
    line = {"id": sample_id, "error": type(error).__name__, "message": str(error).splitlines()[0]}
    with open(out / "failures.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
