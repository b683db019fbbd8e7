"""Predict the disk space, the memory and the devices of a run from shapes alone, or its time, too, from a dry run."""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError
from mmprobe.files import format_bytes
from mmprobe.interventions.base import Method
from mmprobe.interventions.registry import whole_prompt_methods
from mmprobe.models import Group, Model
from mmprobe.models.devices import check_accelerate
from mmprobe.models.dictionaries import Dictionary
from mmprobe.models.reading import MAX_BYTES, prefix_bytes
from mmprobe.samples import Sample
from mmprobe.traces.capture import CaptureSpec, PromptSize, data_bytes, load_capture, recorded_positions
from mmprobe.traces.engines import find_way, why_whole_prompts
from mmprobe.traces.engines.native import longest_pass
from mmprobe.traces.run import trace

log = logging.getLogger("mmprobe")

_FILE_BYTES = 40_000  # headers, indices, dimension scales and texts of one trace


class Plan(NamedTuple):
    """The needs of a run.

    Attributes:
        disk: bytes of all traces, for answers of the maximum length, or as long as those of a dry run.
        host: the process's peak memory in bytes.
        device: torch's peak GPU memory in bytes; 0 on a CPU.
        seconds: time; None without a dry run.
        assumed: the assumptions of these numbers, in words.
        prefixes: what is kept of prompts with the same images, in words; it is part of the memory.
        recording: when the answers are recorded, in words.
    """

    disk: int
    host: int
    device: int
    seconds: float | None
    assumed: str
    prefixes: str
    recording: str


def plan(
    model: Model,
    spec: CaptureSpec,
    n_samples: int,
    max_new_tokens: int,
    batch_size: int = 1,
    prompt: PromptSize | None = None,
    on_gpu: bool = False,
    methods: Sequence[Method] = (),
) -> Plan:
    """Predict the needs of a run from shapes alone.

    Args:
        model: the model; it may be on the meta device, without weights.
        n_samples: number of samples.
        prompt: sizes of a typical prompt.
        on_gpu: whether the model will run on a GPU.
        methods: how the answers will be made; none for plainly.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.traces import load_capture
        >>> plan(load_model("tiny-spd", device="cpu"), load_capture("default"), 100, 64).disk > 10**7
        True
    """
    prompt = prompt or PromptSize()
    trace_bytes = data_bytes(model, spec, prompt, max_new_tokens) + _FILE_BYTES
    weights = sum(weight.nbytes for weight in model.hf.parameters())
    active = [method for method in methods if not method.neutral]
    kept, prefixes = _plan_prefixes(model, spec, n_samples, prompt, active)
    paths = sum(method.has_contrast_path for method in active)
    contrast = paths * prefix_bytes(model, prompt.tokens + max_new_tokens, keeps_states=False)
    steps = min(max_new_tokens, longest_pass("cuda" if on_gpu else "cpu", batch_size))
    working = batch_size * (_working_bytes(model, spec, prompt, max_new_tokens, steps) + contrast) + kept
    loaded = sum(
        weight.nbytes for weight in model.hf.parameters() if weight.device.type == "cpu"
    )  # part of the process's peak already
    visual = "visual ones beside them" if model.has_cross_attention else "of them visual"
    return Plan(
        disk=n_samples * trace_bytes,
        host=peak_bytes()
        + weights
        - loaded
        + (0 if on_gpu else working),  # a GPU's weights are read here, too
        device=weights + working if on_gpu else 0,
        seconds=None,
        assumed=(
            f"prompts of {prompt.tokens:.0f} tokens, {prompt.visual:.0f} {visual}, "
            f"answers of {max_new_tokens} tokens" + _describe_prompt(model, spec, prompt)
        ),
        prefixes=prefixes,
        recording=find_way(model, spec, active).text,
    )


def _describe_prompt(model: Model, spec: CaptureSpec, prompt: PromptSize) -> str:
    """Return what is recorded of prompts, in words; nothing if nothing is."""
    if not spec.wants("prompt/"):
        return ""
    of_groups = "" if spec.groups is None else f" ({', '.join(spec.groups)})"
    layers = len(spec.layer_indices(model.n_layers))
    return (
        f"; {recorded_positions(spec, prompt):.0f} tokens of each prompt{of_groups} are recorded in {layers} of "
        f"{model.n_layers} layers"
    )


def residual_bytes(model: Model, spec: CaptureSpec, prompt: PromptSize) -> dict[str, int]:
    """Return the bytes that a prompt's residual streams take in each trace, by token group; {} if none are captured.

    `other` are the tokens of the template, the system's text and earlier turns.

    Example:
        >>> from mmprobe.models import load_model
        >>> spec = CaptureSpec(datasets=["residual/post"], positions="prompt", groups=["visual"], layers=[0, 5])
        >>> residual_bytes(load_model("tiny-spd", device="cpu"), spec, PromptSize(tokens=60, visual=32))
        {'visual': 24576}
    """
    names = [name for name in spec.stored if name.startswith("prompt/residual_")]
    layers, hidden = len(spec.layer_indices(model.n_layers)), model.hf.config.get_text_config().hidden_size
    width = sum(
        layers * hidden * (4 if spec.dtype == "float32" else np.dtype(VARIABLES[name].dtype).itemsize)
        for name in names
    )
    visual = 0.0 if model.has_cross_attention else prompt.visual
    counts = {"visual": visual, "user": prompt.user}
    chosen = {name: count for name, count in counts.items() if spec.groups is None or name in spec.groups}
    chosen["other"] = max(recorded_positions(spec, prompt) - sum(chosen.values()), 0)
    return {name: int(width * count) for name, count in chosen.items() if width * count}


class SmallerCapture(NamedTuple):
    """A capture that answers one question and takes little room.

    Attributes:
        question: what its traces tell.
        capture: a name, or the fields of a YAML file.
        bytes: of one trace's data sets.
    """

    question: str
    capture: str | dict[str, list[Any]]
    bytes: int


SMALLER = 0.1  # of the planned capture, at most


def smaller_captures(
    model: Model, spec: CaptureSpec, new_tokens: int, prompt: PromptSize | None = None
) -> list[SmallerCapture]:
    """Return captures that take a tenth of a planned one at most, with the question that each answers.

    The layers are those at a third, half and two thirds of the model, and the last one.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.traces import load_capture
        >>> model, full = load_model("tiny-spd", device="cpu"), load_capture("full")
        >>> smaller_captures(model, full, 64)[0].capture
        {'datasets': ['residual/post'], 'layers': [2, 4, 5, 7]}
    """
    prompt, last = prompt or PromptSize(), model.n_layers - 1
    layers = sorted({model.n_layers // 3, model.n_layers // 2, 2 * model.n_layers // 3, last})
    questions: dict[str, str | dict[str, list[Any]]] = {
        "where answers look, and what each layer does to the stream": "default",
        "which heads look where": {
            "datasets": ["attention/mass", "attention/visual_head"],
            "layers": [layers[0], layers[-2], last],
        },
        "what a probe or a lens reads": {"datasets": ["residual/post"], "layers": layers},
        "which neurons are active": {"datasets": ["ffn/active", "ffn/gate_sum"]},
    }
    most, found = SMALLER * data_bytes(model, spec, prompt, new_tokens), []
    for question, capture in questions.items():
        own = load_capture(capture) if isinstance(capture, str) else CaptureSpec.model_validate(capture)
        own = own.without(own.stored - spec.stored)
        size = data_bytes(model, own, prompt, new_tokens)
        if own.datasets and size <= most:
            found.append(SmallerCapture(question, capture, size))
    return found


class FeaturePlan(NamedTuple):
    """What a dictionary of features needs.

    Attributes:
        memory: bytes of its weights.
        working: bytes of the activations of one answer, at all tokens of its prompt and of the answer.
        disk: bytes that `mmprobe activations` writes at the dictionary's hook for all samples.
    """

    memory: int
    working: int
    disk: int


def plan_features(
    dictionary: Dictionary, n_samples: int, max_new_tokens: int, prompt: PromptSize | None = None
) -> FeaturePlan:
    """Predict what it takes to read the features of answers of the maximum length.

    Example:
        >>> from mmprobe.models.dictionaries import load_dictionary
        >>> plan_features(load_dictionary("tiny-spd"), 100, 24, PromptSize(tokens=100)).disk == 100 * 124 * 192 * 4
        True
    """
    tokens = (prompt or PromptSize()).tokens + max_new_tokens
    return FeaturePlan(
        memory=sum(weight.nbytes for weight in dictionary.weights.values()),
        working=int(
            tokens * dictionary.n_features * (4 + 8)
        ),  # float32, and what is counted of it in float64
        disk=int(n_samples * tokens * dictionary.d_in * 4),
    )


def _plan_prefixes(
    model: Model, spec: CaptureSpec, n_samples: int, prompt: PromptSize, methods: Sequence[Method]
) -> tuple[int, str]:
    """Return the bytes of what is kept of prompts with the same images, and how they come about."""
    if reason := why_whole_prompts(model, spec, methods=methods):
        return 0, f"prompts are read whole: {reason}"
    keeps_states = spec.wants("tam/") or any(method.needs_final_states for method in methods)
    prefix_size = prefix_bytes(model, prompt.tokens, keeps_states)
    of_images = prefix_size + sum(
        (method.n_prefixes - 1) * prefix_bytes(model, prompt.tokens, keeps_states=False) for method in methods
    )
    kept = min(MAX_BYTES, n_samples // 2 * of_images)
    if prefix_size > MAX_BYTES:
        return (
            0,
            f"prompts are read whole: a prefix takes {format_bytes(prefix_size)}, and {format_bytes(MAX_BYTES)} are kept",
        )
    return (
        kept,
        f"{format_bytes(of_images)} for each set of images with several questions, {format_bytes(kept)} at most"
        + ("" if methods else f"; methods that read whole prompts: {', '.join(whole_prompt_methods())}"),
    )


def mean_prompt_size(model: Model, samples: Sequence[Sample]) -> PromptSize:
    """Return the mean sizes of the samples' prompts."""
    return PromptSize(*np.mean([_prompt_size(model, sample) for sample in samples], 0).tolist())


MANY_TOKENS = 4_000
"""Visual tokens of an image from which a plan warns: a photograph of 12 megapixels makes 16,000 for Qwen2.5-VL."""


def warn_of_large_images(model: Model, samples: Sequence[Sample]) -> None:
    """Say which sample's images make more than 4,000 visual tokens each, and how they make fewer."""
    pictures = [sample for sample in samples if sample.images and not sample.videos]
    sizes = {sample.id: _prompt_size(model, sample).visual / len(sample.images) for sample in pictures}
    if sizes and sizes[name := max(sizes, key=sizes.__getitem__)] > MANY_TOKENS:
        log.warning(
            "an image of sample %s makes %.0f visual tokens; --max-pixels or --image-size makes fewer",
            name,
            sizes[name],
        )


def _prompt_size(model: Model, sample: Sample) -> PromptSize:
    if model.processor is None:
        raise InputError(f"plan: prompts are measured by the processor of {model.name!r}; leave out --data")
    batch = model.batch([sample])
    prompt, vision = batch.prompts[0], model.family.vision
    return PromptSize(
        len(prompt.ids),
        sum(rows * columns for rows, columns in prompt.grids),
        int((prompt.group == Group.USER).sum()),
        len(vision.patch_positions(batch.inputs, model.hf)) if vision and prompt.views else 0,
    )


def peak_bytes() -> int:
    """Return the peak memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _working_bytes(model: Model, spec: CaptureSpec, prompt: PromptSize, new_tokens: int, steps: int) -> int:
    """Return the temporary memory per sample of a batch.

    It consists of the cache of keys and values, the activations of the widest layer, and the internals of the steps
    that one pass reads, before they are reduced.
    """
    config = model.hf.config.get_text_config()
    itemsize = model.hf.dtype.itemsize
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    tokens = prompt.tokens + new_tokens
    cache = 2 * model.n_layers * config.num_key_value_heads * head_dim * tokens * itemsize
    prefill = prompt.tokens * (3 * model.n_neurons + 6 * config.hidden_size) * itemsize
    recorded = steps * (
        2 * model.n_layers * (3 * config.hidden_size + model.n_neurons) * itemsize + 12 * config.vocab_size
    )
    rows = 3 * model.n_heads * steps * tokens * 4 if spec.wants("attention/", "prompt/attention") else 0
    states = 2 * tokens * config.hidden_size * itemsize if spec.wants("tam/") else 0
    return int(cache + max(prefill, recorded + rows) + states)


def read_memories(text: str) -> list[int]:
    """Return the bytes of each GPU: `24GB,24GB`, or what is free on those of this machine for `auto`.

    Raises:
        InputError: a size cannot be read, or no GPU is found.

    Example:
        >>> read_memories("24GB,512MB")
        [24000000000, 512000000]
    """
    check_accelerate()
    from accelerate.utils import convert_file_size_to_int

    if text != "auto":
        try:
            return [convert_file_size_to_int(size.strip()) for size in text.split(",")]
        except ValueError:
            raise InputError(
                f"--devices {text}: give the memory of each GPU, such as 24GB,24GB, or auto"
            ) from None
    found = [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]
    if not found:
        raise InputError("--devices auto: finds no GPU here; give the memory of each, such as 24GB,24GB")
    return found


def plan_devices(model: Model, memories: Sequence[int], working: int = 0) -> dict[str, int]:
    """Predict the bytes of weights on each device with `device_map="auto"`, by accelerate.

    Args:
        model: the model; it may be on the meta device, without weights.
        memories: bytes of each GPU.
        working: bytes to keep free on each GPU for the run itself.

    Returns:
        Bytes by `cuda:0`, `cuda:1`, …, and `cpu` for what no GPU has room for. Their sum is the model's size.

    Example:
        >>> from mmprobe.models import load_shapes
        >>> plan_devices(load_shapes("tiny-spd", device="cpu"), [10**9])
        {'cuda:0': 18071552, 'cpu': 0}
    """
    from accelerate.utils import get_balanced_memory, infer_auto_device_map

    weights = sum(weight.nbytes for weight in model.hf.parameters())
    room: dict[int | str, int | str] = {
        number: max(memory - working, 0) for number, memory in enumerate(memories)
    }
    room["cpu"] = 2 * weights
    whole = model.hf._no_split_modules
    log = logging.getLogger("accelerate.utils.modeling")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of GPUs that this machine lacks
    try:
        balanced = get_balanced_memory(model.hf, dict(room), no_split_module_classes=whole)
        places = infer_auto_device_map(model.hf, balanced, no_split_module_classes=whole)
    finally:
        log.setLevel(level)
    sizes = {f"cuda:{number}": 0 for number in range(len(memories))} | {"cpu": 0}
    for name, weight in model.hf.named_parameters():
        while name not in places:
            name = name.rpartition(".")[0]
        place = places[name]
        sizes[f"cuda:{place}" if isinstance(place, int) else str(place)] += weight.nbytes
    return sizes


def dry_run(
    model: Model,
    spec: CaptureSpec,
    samples: Sequence[Sample],
    n_samples: int,
    max_new_tokens: int,
    batch_size: int = 1,
    methods: Sequence[Method] = (),
) -> Plan:
    """Predict the needs of a run of `n_samples` samples by tracing a few of them.

    The first batch is traced twice: once to warm up, which counts for memory but not for time.

    Args:
        samples: the samples to trace.
        n_samples: number of samples of the planned run.
        methods: how the answers will be made; none for plainly.

    Raises:
        InputError: one of the samples fails.

    Example:
        >>> from mmprobe.models import load_model                                         # doctest: +SKIP
        >>> dry_run(load_model("tiny-spd"), load_capture("full"), few, 1000, 64).seconds  # doctest: +SKIP
        312.4
    """
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "capture": spec,
            "max_new_tokens": max_new_tokens,
            "batch_size": batch_size,
            "method": methods or "plain",
        }
        trace(model, samples[:batch_size], Path(folder) / "warm-up", **options)
        start = time.perf_counter()
        run = trace(model, samples, Path(folder) / "run", **options)
        seconds = (time.perf_counter() - start) / len(samples)
        if run.failures:
            failure = run.failures[0]
            raise InputError(
                f"dry run: sample {failure['id']} fails ({failure['error']}: {failure['message']})"
            )
        disk = sum(path.stat().st_size for path in run.path.glob("samples/*.h5")) / len(samples)
        lengths = [sample_trace.steps.sizes["step"] for sample_trace in run]
    predicted = plan(
        model, spec, n_samples, max_new_tokens, batch_size, mean_prompt_size(model, samples), methods=methods
    )
    device = torch.cuda.max_memory_reserved(model.device) if model.device.type == "cuda" else 0
    mean_length = sum(lengths) / len(lengths)
    return Plan(
        disk=int(n_samples * disk),
        host=peak_bytes(),
        device=device,
        seconds=n_samples * seconds,
        assumed=f"measured on {len(samples)} samples, with answers of {mean_length:.0f} tokens",
        prefixes=predicted.prefixes,
        recording=predicted.recording,
    )
