"""A model with its processor: load it by alias, local folder or hub id, check it, and generate with it.

A loaded model is checked against the declaration of its family, in a few milliseconds (`check_loaded`). The arguments of
transformers' `generate` are the same for plain answers, traces and methods (`build_generation_kwargs`).
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread
from typing import TYPE_CHECKING, Any, Unpack
from weakref import ref

import torch
import transformers
from huggingface_hub import constants, get_session
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from PIL import Image
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models.adapters import check_adapter_config, check_adapter_fits, check_files
from mmprobe.models.attention import AttentionCall, observe_attention, softmax_rows
from mmprobe.models.checkpoints import (
    Checkpoint,
    find_base,
    find_checkpoint,
    find_gguf,
    fingerprint_checkpoint,
    fingerprint_memory,
    load_aliases,
    locate,
)
from mmprobe.models.devices import (
    check_device_map,
    check_places,
    find_device,
    has_weights,
    read_weight,
)
from mmprobe.models.families import Family, find_family
from mmprobe.models.families.base import find_width
from mmprobe.models.families.generic import build_views
from mmprobe.models.hooks import Change, hooks_disabled, observe
from mmprobe.models.organisms import PREFIX, folder, merge_adapter
from mmprobe.models.pixels import scale_images
from mmprobe.models.points import change_named
from mmprobe.models.prompt import (
    Batch,
    Chat,
    ImageProcessor,
    Prompt,
    build_batch,
    build_chat,
    list_control_tokens,
)
from mmprobe.samples import Sample
from mmprobe.settings import ModelArgs, ModelSettings

if TYPE_CHECKING:
    from mmprobe.traces.look import Look

log = logging.getLogger("mmprobe")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Model:
    """A loaded vision-language model with its processor.

    Attributes:
        name: the name that the model was loaded by.
        source: local folder or hub id that it was loaded from; `embedded:NAME` for the embedded model,
            `organism:NAME` for one with a planted cause.
        revision: commit on the hub, or None.
        hf: the `transformers.PreTrainedModel`, such as a `Qwen2_5_VLForConditionalGeneration`.
        processor: its `transformers.ProcessorMixin`.
        family: the declaration of the model's family.
        checkpoint: where `hf` was loaded from; None for a model made in memory.
        settings: how it was loaded.

    Example:
        >>> model = load_model("tiny-spd")
        >>> model.n_layers, model.n_heads
        (8, 6)
    """

    name: str
    source: str
    revision: str | None
    hf: Any
    processor: Any
    family: Family
    checkpoint: Checkpoint | None = None
    settings: ModelSettings = ModelSettings()

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers, {self.n_heads} heads"
        dtype, device = str(self.hf.dtype).removeprefix("torch."), find_device(self.hf.get_input_embeddings())
        return f"<Model {self.name}: {self.family.name}, {size}, {dtype} on {device}>"

    @property
    def n_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.family.decoder(self.hf).layers)

    @property
    def device(self) -> torch.device:
        """Device of the inputs: that of the embeddings, or the CPU for a model without weights."""
        return find_device(self.hf.get_input_embeddings()) if has_weights(self.hf) else torch.device("cpu")

    @cached_property
    def n_heads(self) -> int:
        """Number of query heads of a decoder layer: of the one with most, where layers differ."""
        layers = self.hf.config.get_text_config().per_layer_config
        return max(config.num_attention_heads for config in layers)

    @property
    def rounding(self) -> torch.dtype:
        """The dtype whose rounding its numbers have: that of the weights, or bfloat16 where these are quantised."""
        quantised = self.settings.load_in is not None or getattr(self.hf, "is_quantized", False)
        return torch.bfloat16 if quantised else self.hf.dtype

    @cached_property
    def has_plain_logits(self) -> bool:
        """Whether the logits are the unembedding of the final norm's output, without a scale or a cap."""
        return has_plain_logits(self.hf, self.family)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Hashes of weights, configuration, template and processor, by part (`mmprobe.models.checkpoints`), and the dtype.

        Example:
            >>> load_model("tiny-spd", device="cpu").fingerprint["dtype"]
            'float32'
        """
        dtype = {"dtype": self.settings.load_in or str(self.hf.dtype).removeprefix("torch.")}
        if self.checkpoint is None or self.checkpoint.hf() is not self.hf:
            return fingerprint_memory(self.hf, self.processor) | dtype
        parts = fingerprint_checkpoint(self.checkpoint.places, self.revision) | dtype
        if self.settings.pixels:
            parts["processor"] += f" {self.settings.pixels}"
        return parts

    @cached_property
    def image_processor(self) -> ImageProcessor:
        """The processor's part for images, which keeps what it made of the newest ones."""
        return ImageProcessor(self.processor.image_processor)

    @cached_property
    def has_cross_attention(self) -> bool:
        """Whether the model sees images by cross-attention instead of by tokens of the prompt."""
        return any(
            self.family.parts(layer).has_cross_attention for layer in self.family.decoder(self.hf).layers
        )

    @cached_property
    def why_irregular(self) -> str | None:
        """Why not every layer has attention rows, a module that reads resid_mid, and as many heads; None if all have.

        Example:
            >>> load_model("tiny-spd").why_irregular is None
            True
        """
        parts = [self.family.parts(layer) for layer in self.family.decoder(self.hf).layers]
        if any(each.attention is None for each in parts):
            return f"some layers of {self.family.name} have no attention rows"
        if any(each.mid is None for each in parts):
            return f"attention and FFN of {self.family.name} read the same residual stream"
        layers = self.hf.config.get_text_config().per_layer_config
        if len({config.num_attention_heads for config in layers}) > 1:
            return f"layers of {self.family.name} have different numbers of heads"
        return None

    @cached_property
    def why_no_videos(self) -> str | None:
        """Why the model cannot be shown videos, with what to do; None if it can.

        Example:
            >>> load_model("tiny-spd").why_no_videos is None
            True
        """
        if self.family.video_views is None:
            others = "a model of another type (docs/guides/video.md lists them)"
            return f"mmprobe shows {self.family.name} no videos; leave them out, or choose {others}"
        if getattr(self.processor, "video_processor", None) is None or not self.processor.video_token:
            return f"the processor of {self.name} has no video part; load it with its own (AutoProcessor)"
        return None

    @cached_property
    def n_neurons(self) -> int:
        """Number of gate neurons of a decoder layer: of the widest FFN with gates, where layers differ."""
        layers = self.family.decoder(self.hf).layers
        widths = [find_width(layer) for layer in layers if self.family.parts(layer).activation is not None]
        known = [width for width in widths if width is not None]
        return max(known) if known else getattr(self.hf.config.get_text_config(), "intermediate_size", 0)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids of the tokens that end an answer."""
        ids = self.hf.generation_config.eos_token_id
        return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return self.processor.tokenizer

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """Strings that the tokenizer reads as one special token, longest first."""
        return list_control_tokens(self.tokenizer)

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Within the block, compute no gradients of the weights, which saves the memory of their inputs.

        Example:
            >>> model = load_model("tiny-spd")
            >>> with model.freeze():
            ...     any(weight.requires_grad for weight in model.hf.parameters())
            False
        """
        trainable = [weight for weight in self.hf.parameters() if weight.requires_grad]
        for weight in trainable:
            weight.requires_grad_(False)
        try:
            yield
        finally:
            for weight in trainable:
                weight.requires_grad_(True)

    def prompt(self, sample: Sample) -> Prompt:
        """Return a sample's token ids with their groups and views.

        Raises:
            InputError: an image of the sample cannot be decoded.
        """
        return self.batch([sample]).prompts[0]

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Return the inputs of several samples, padded on the left, with the prompt of each.

        Raises:
            InputError: an image of a sample cannot be decoded.
        """
        return build_batch(self, [build_chat(sample, self) for sample in samples])

    def prepare(self, sample: Sample) -> dict[str, Any]:
        """Return tensors for `model.hf.generate(**model.prepare(sample))`, on the model's device.

        Raises:
            InputError: an image of the sample cannot be decoded.

        Example:
            >>> model = load_model("tiny-spd")
            >>> sorted(model.prepare(Sample(id="a", question="Is there a star?")))
            ['attention_mask', 'input_ids', 'mm_token_type_ids']
        """
        return self.batch([sample]).inputs

    def look(
        self,
        sample: Sample,
        points: Sequence[str] = (),
        *,
        answer: str | Sequence[int] | None = None,
        capture: Any = "full",
        **settings: Any,
    ) -> Look:
        """Answer a sample, or take an answer, and return what the model computes: a trace in memory.

        Args:
            sample: the question with its images.
            points: what is returned as it is, in `tensors` (`docs/reading.md` lists the names): `resid_post.12`,
                `attention.5.heads`, `attention.5.weights`, `vision.resid_post.3`, `projector`, …
            answer: its text, without a token of its end, or its token ids; None to let the model answer.
            capture: what the trace has, as in `mmprobe.trace`. Data sets that the model cannot give are left out.
            settings: fields of `AskSettings`, such as `max_new_tokens`, and parameters of the method.

        Returns:
            The trace, with the arrays of a stored one. No file is left.

        Raises:
            InputError: a point or a setting is unknown, or the model cannot read the sample or the answer.

        Example:
            >>> sample = Sample(id="a", question="Is there a star?")
            >>> seen = load_model("tiny-spd", device="cpu").look(sample, ["resid_post.3"], answer="No.")
            >>> seen.attention_mass.dims, seen.tensors["resid_post.3"].shape[-1]
            (('step', 'layer', 'head', 'group'), 192)
        """
        look: Callable[..., Look] = resolve_name("mmprobe.traces.look:look")  # traces import models
        return look(self, sample, points, answer, capture, **settings)

    def change(self, point: str, change: Change) -> AbstractContextManager[None]:
        """Within the block, apply a function to what the model computes at a point, whoever runs it.

        Args:
            point: as in `look`; but for `gate` and weights of attention, which can only be looked at.
            change: gets and returns a tensor: [row, position, hidden] of the decoder ([row, position, head, dim] for
                `attention.N.heads`), [patch, hidden] of all images for `vision.…`, [token, hidden] for `projector`. A
                generation calls it with the prompt, and then with one position at a time.

        Raises:
            InputError: the model has no such point, or it cannot be changed.

        Example:
            >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
            >>> with model.change("ffn.7", lambda update: 0 * update):
            ...     without = model.look(sample, max_new_tokens=4).answer
        """
        return change_named(self, point, change)


def load_model(name: str, **loading: Unpack[ModelArgs]) -> Model:
    """Load a vision-language model. Code that comes with a checkpoint is never run.

    Args:
        name: an alias or `organism:NAME` (see `mmprobe models`), a local folder, or an id on the Hugging Face hub.
        loading: fields of `ModelSettings`:

            - `device`: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.
            - `dtype`: `auto` (the checkpoint's on a GPU, float32 on a CPU), `float32`, `bfloat16` or `float16`.
            - `revision`: branch, tag or commit on the hub.
            - `device_map`: spreads the model over devices, in place of `device`: accelerate's `auto`, `balanced`,
              `balanced_low_0` or `sequential`, or devices by module, such as `{"model": 0, "lm_head": "cpu"}`. Extra: `hub`.
            - `min_pixels`, `max_pixels`, `image_size`: how large images are shown, where the processor lets one choose.
            - `load_in`: `4bit` or `8bit` quantises the weights with bitsandbytes while they are loaded.

    Returns:
        The model in evaluation mode. It has been checked against its family's declaration.

    Raises:
        InputError: the name or the family is unknown; an extra, the network, the device or the dtype is not
            available; or the checkpoint is damaged or lacks weights.

    Example:
        >>> load_model("tiny-spd").family.name
        'qwen2_5_vl'
    """
    settings = ModelSettings(name=name, **loading)
    revision, device_map, load_in = settings.revision, settings.device_map, settings.load_in
    torch_device = _find_device(settings.device)
    source, path = locate(name)
    _refuse_gguf(name, path)
    adapter = str(folder(name)) if source.startswith(PREFIX) else path if find_base(path) else None
    path = find_base(path) or path
    check_device_map(name, device_map)
    config, family, processor = _load_parts(settings, path)
    quantised = _find_quantisation(name, config, load_in)
    placed: Any = device_map
    if device_map is None and (quantised or find_spec("accelerate") is not None):
        placed = {
            "": torch_device
        }  # weights go there as they are read; quantised ones cannot be moved afterwards
    hf, info = load_pretrained(
        name,
        transformers.AutoModelForImageTextToText.from_pretrained,
        path,
        revision=revision,
        dtype=_choose_dtype(settings.dtype, torch_device, config),
        attn_implementation="sdpa",
        **({"config": config} if _set_sdpa(config) or "thinker" in config.model_type else {}),
        **({"quantization_config": _quantise(load_in)} if load_in else {}),
        use_safetensors=True,
        output_loading_info=True,
        device_map=placed,
        quantised=quantised,
    )
    check_places(hf, device_map)
    if info["missing_keys"]:  # transformers draws them at random and continues
        first, *more = sorted(info["missing_keys"])
        missing = f"{first} and {len(more)} more" if more else first
        raise InputError(
            f"model {name!r}: its checkpoint lacks weights ({missing}); check that it is complete"
        )
    commit = getattr(hf.config, "_commit_hash", None) if not Path(path).is_dir() else None
    if adapter is not None:
        hf = load_pretrained(name, lambda path, **_: merge_adapter(hf, path), adapter)
    elif (Path(path) / "adapter_config.json").is_file():  # transformers has put it into the model
        load_pretrained(
            name, lambda _, **__: check_adapter_fits(name, hf.get_adapter_state_dict(), Path(path)), path
        )
    if placed is None:
        load_pretrained(name, lambda _, **__: hf.to(torch_device), path)
    load_pretrained(name, lambda _, **__: check_loaded(hf.eval(), family, name), path, quantised)
    checkpoint = Checkpoint(find_checkpoint(name), ref(hf))
    model = Model(name, source, commit or revision, hf, processor, family, checkpoint, settings)
    return _check_images(model)


def describe_place(model: Model) -> str:
    """Return where and how a model computes, in one line: device, dtype, attention and the memory of its weights.

    Example:
        >>> describe_place(load_model("tiny-spd", device="cpu"))
        'tiny-spd: cpu, float32, sdpa attention, 0.02 GB of weights'
    """
    places = dict.fromkeys(tensor.device for tensor in model.hf.parameters())
    names = [
        f"{place} ({torch.cuda.get_device_name(place)})" if place.type == "cuda" else str(place)
        for place in places
    ]
    size = sum(tensor.nbytes for tensor in model.hf.parameters())
    attention = model.hf.config.get_text_config()._attn_implementation
    dtype = model.settings.load_in or str(model.hf.dtype).removeprefix("torch.")
    return f"{model.name}: {', '.join(names)}, {dtype}, {attention} attention, {size / 1e9:.2f} GB of weights"


def wrap(hf: Any, processor: Any, name: str = "") -> Model:
    """Return a model that is loaded already, such as one that is quantised, sharded or being trained.

    Args:
        hf: a `transformers.PreTrainedModel` that takes images, or a `peft.PeftModel` around one. It is put into
            evaluation mode.
        processor: its `transformers.ProcessorMixin`.
        name: the name in traces and reports; the default is the name that the weights were loaded by.

    Raises:
        InputError: the model does not fit its family's declaration, or computes NaN.

    Example:
        >>> model = load_model("tiny-spd")
        >>> wrap(model.hf, model.processor, "mine")
        <Model mine: qwen2_5_vl, 8 layers, 6 heads, float32 on cpu>
    """
    hf = hf.get_base_model() if hasattr(hf, "peft_config") and hasattr(hf, "get_base_model") else hf
    source = hf.config.name_or_path or type(hf).__name__
    name = name or source
    family = find_family(hf.config)
    check_loaded(hf.eval(), family, name)
    model = Model(name, source, getattr(hf.config, "_commit_hash", None), hf, processor, family)
    return _check_images(model)


def _check_images(model: Model) -> Model:
    """Return a model of a family that is not declared, once it has shown that it can read images of two shapes.

    Raises:
        InputError: the views of an image cannot be told; the message says why.
    """
    if model.family.views is build_views:
        content = [{"type": "image"}, {"type": "text", "text": "What?"}]
        for size in ((128, 96), (96, 160)):
            image = Image.new("RGB", size, (90, 120, 60))
            try:
                build_batch(model, [Chat([{"role": "user", "content": content}], [image], "a small image")])
            except InputError as error:
                raise InputError(f"model {model.name!r}: cannot be traced ({error})") from None
    return model


def load_shapes(name: str, **loading: Unpack[ModelArgs]) -> Model:
    """Load a model without its weights, on torch's meta device. It serves for plans, but cannot answer.

    Args:
        name: as in `load_model`. Where the files of an alias cannot be had, the shapes that mmprobe has of it serve,
            and the model has no processor.
        loading: as in `load_model`. The device, on which the model would run, decides the dtype. The shapes are those of
            weights that are not quantised.

    Raises:
        InputError: as in `load_model`.

    Example:
        >>> load_shapes("tiny-spd").n_layers
        8
    """
    settings = ModelSettings(name=name, **loading)
    source, path = locate(name)
    _refuse_gguf(name, path)
    path = find_base(path) or path
    try:
        config, family, processor = _load_parts(settings, path)
    except InputError as error:
        alias = load_aliases().get(name)
        if alias is None or not alias.shapes:
            raise
        log.warning("%s; its shapes are those that mmprobe has", error)
        config, processor = transformers.AutoConfig.for_model(alias.family, **alias.shapes), None
        family = find_family(config)
    _find_quantisation(name, config, settings.load_in)
    torch_dtype = _choose_dtype(settings.dtype, _find_device(settings.device), config)

    def build(_: str, **options: Any) -> Any:
        with torch.device("meta"):
            return transformers.AutoModelForImageTextToText.from_config(config, dtype=torch_dtype, **options)

    hf = load_pretrained(name, build, path)
    if processor is not None:
        with suppress(OSError):  # a checkpoint without its own has what the config says
            hf.generation_config = transformers.GenerationConfig.from_pretrained(
                path, revision=settings.revision or "main"
            )
    checkpoint = Checkpoint(find_checkpoint(name), ref(hf))
    return Model(name, source, settings.revision, hf, processor, family, checkpoint, settings)


def _refuse_gguf(name: str, path: str) -> None:
    """Raise InputError for a GGUF file: it holds a language model alone, which transformers converts."""
    if (gguf := find_gguf(path)) is not None:
        raise InputError(
            f"model {name!r}: a GGUF holds a language model without its vision encoder; convert it with "
            f"AutoModelForCausalLM.from_pretrained({str(gguf.parent)!r}, gguf_file={gguf.name!r}).save_pretrained(OUT) and "
            "put the encoder's weights beside it, or take the checkpoint in safetensors; judges take it as it is (local/…)"
        )


def _load_parts(settings: ModelSettings, path: str) -> tuple[Any, Family, Any]:
    """Return the config of a checkpoint, its family and its processor, once its files are checked."""
    name, revision = settings.name, settings.revision
    check_files(name, Path(path))
    config = load_pretrained(name, transformers.AutoConfig.from_pretrained, path, revision=revision)
    config = getattr(config, "thinker_config", config)  # of Qwen's Omni models: the part that does not speak
    if (Path(path) / "adapter_config.json").is_file():
        load_pretrained(name, lambda path, **_: _check_adapter(name, config, Path(path)), path)
    family = load_pretrained(name, lambda _, **__: find_family(config), path)
    processor = _load_processor(name, path, revision, family)
    _complete_processor(processor, config)
    scale_images(processor, settings)
    return config, family, processor


def _complete_processor(processor: Any, config: Any) -> None:
    """Set what older checkpoints of LLaVA leave to the model's config: without it, visual tokens cannot be counted."""
    vision = getattr(config, "vision_config", None)
    for attribute, value in (
        ("patch_size", getattr(vision, "patch_size", None)),
        ("vision_feature_select_strategy", getattr(config, "vision_feature_select_strategy", None)),
    ):
        if getattr(processor, attribute, value) is None and value is not None:
            setattr(processor, attribute, value)


def _find_quantisation(name: str, config: Any, load_in: str | None) -> str | None:
    """Return how the weights are quantised, by the name of the method; None if they are not.

    Raises:
        InputError: the checkpoint is quantised already, or bitsandbytes is missing.
    """
    own: Any = getattr(config, "quantization_config", None)
    own = own.to_dict() if hasattr(own, "to_dict") else own
    method = str(own.get("quant_method", "bitsandbytes")) if isinstance(own, dict) else None
    if load_in is None and method in (None, "bitsandbytes"):
        return method
    if load_in is None:
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING  # a second, for few models

        if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
            raise InputError(
                f"model {name!r}: its weights are quantised ({method}), a method that transformers does not know; "
                "take the checkpoint that is not quantised"
            )
        return method
    if method is not None:
        raise InputError(f"model {name!r}: is quantised already ({method}); leave out load_in {load_in}")
    if find_spec("bitsandbytes") is None:
        raise InputError(f"load_in {load_in}: needs bitsandbytes; install it with: pip install bitsandbytes")
    return "bitsandbytes"


def _quantise(load_in: str) -> Any:
    """Return the configuration with which transformers quantises weights as it loads them."""
    return transformers.BitsAndBytesConfig(**{f"load_in_{load_in}": True})


def _check_adapter(name: str, config: Any, folder: Path) -> None:
    """Check the config of an adapter against the modules of its base, which are built without weights."""
    with torch.device("meta"):
        base = transformers.AutoModelForImageTextToText.from_config(config)
    check_adapter_config(name, folder, [module for module, _ in base.named_modules()])


def _find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        if name == "cpu" and (reason := _find_unused_gpu()):
            log.warning("this machine has a GPU that torch cannot use (%s); computing on the CPU", reason)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device {name}: not available; choose auto or cpu") from None
    return device


def _find_unused_gpu() -> str | None:
    """Return why torch cannot use an NVIDIA GPU that this machine has; None without one, or if it can.

    Example:
        >>> _find_unused_gpu()                                                             # doctest: +SKIP
        'The NVIDIA driver on your system is too old (found version 11040)'
    """
    if torch.cuda.is_available() or not DRIVER.exists():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0].partition(". ")[0]
    return (
        "CUDA_VISIBLE_DEVICES hides it"
        if os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        else "no device is visible"
    )


def _choose_dtype(name: str, device: torch.device, config: Any) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    return torch.float32 if device.type == "cpu" else getattr(config, "dtype", None) or torch.bfloat16


def _load_processor(name: str, path: str, revision: str | None, family: Family) -> Any:
    processor = load_pretrained(name, _load_pil_processor, path)
    if processor is not None:
        return processor
    if "hub" in family.extras and find_spec("torchvision") is None:
        raise InputError(
            f"model {name!r}: its processor needs torchvision; install it with: pip install 'mmprobe[hub]'"
        )
    return load_pretrained(name, transformers.AutoProcessor.from_pretrained, path, revision=revision)


def _load_pil_processor(path: str, **_: Any) -> Any:
    """Return the processor without torchvision, or None if the checkpoint does not name it."""
    config = Path(path) / "preprocessor_config.json"
    if not config.is_file() or json.loads(config.read_text()).get("processor_class") != "PilQwenProcessor":
        return None
    from mmprobe.models.pil_processor import PilQwenProcessor

    return PilQwenProcessor.from_folder(Path(path))


def _set_sdpa(config: transformers.PretrainedConfig) -> bool:
    """Replace flash attention that a config names for itself or a part, and return whether it named it.

    `attn_implementation` overrides that of the whole, but not of its parts.
    """
    parts = [getattr(config, name, None) for name in config.sub_configs]
    found = [_set_sdpa(part) for part in parts if isinstance(part, transformers.PretrainedConfig)]
    named = "flash" in (config._attn_implementation or "")
    if named:
        config._attn_implementation = "sdpa"
    return named or any(found)


DRIVER = Path("/proc/driver/nvidia/version")  # is there where a kernel has NVIDIA's driver
HUB_SECONDS = 5  # a hub that has not answered by then is treated as absent; our choice


@contextmanager
def _offline_without_hub() -> Iterator[None]:
    """Within the block, only files at hand count if the hub does not answer: its client would try for a minute."""
    if not constants.HF_HUB_OFFLINE and not _hub_answers(constants.ENDPOINT):
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before
    else:
        yield


@cache
def _hub_answers(endpoint: str) -> bool:
    """Return whether the hub answers anything, asked once a process, through the proxy that is set."""
    problems: list[str] = ["timeout"]

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=HUB_SECONDS)
            problems.clear()
        except Exception as error:  # of the client, of the proxy, of the system
            problems[:] = [type(error).__name__]

    thread = Thread(
        target=ask, daemon=True
    )  # the client's own limit leaves out the search for the host's address
    thread.start()
    thread.join(HUB_SECONDS)
    for problem in problems:
        log.warning("the hub does not answer (%s); only what is at hand can be loaded", problem)
    return not problems


def load_pretrained(
    name: str, load: Callable[..., Any], path: str, quantised: str | None = None, **options: Any
) -> Any:
    """Call a `from_pretrained` method without remote code, and turn its errors into one line.

    Args:
        name: the name of the model in error messages.
        load: a method such as `transformers.AutoConfig.from_pretrained`.
        path: a local folder, or an id on the hub.
        quantised: how the weights are quantised, for messages.
        options: further arguments of `load`.

    Raises:
        InputError: `load` failed.

    Example:
        >>> _, path = locate("tiny-spd")
        >>> load_pretrained("tiny-spd", transformers.AutoConfig.from_pretrained, path).model_type
        'qwen2_5_vl'
    """
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    try:
        with nullcontext() if Path(path).is_dir() else _offline_without_hub():
            return load(path, trust_remote_code=False, **options)
    except torch.OutOfMemoryError:
        raise InputError(
            f"model {name!r}: does not fit into the memory of the device; choose a smaller model, dtype bfloat16, "
            "load_in 4bit, device cpu or a device map"
        ) from None
    except (InputError, KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # readers of damaged files raise errors of many types, and those in Rust panic
        lines = (str(error).strip() or type(error).__name__).splitlines()
        is_heading = lines[0].endswith(":")  # such as that of torch over what does not fit
        reason = " ".join(line.strip() for line in lines[: 1 + is_heading]).rstrip(".")
        if "attention implementation" in reason or "attention through" in reason:
            raise InputError(
                f"model {name!r}: cannot be traced, since transformers has no sdpa attention for it, whose queries and "
                "keys are what is recorded (docs/models.md)"
            ) from None
        if unknown := re.search(r"model type `([^`]+)`", reason):
            raise InputError(
                f"model {name!r}: is of type {unknown[1]!r}, which transformers {transformers.__version__} does not know; "
                "update transformers, or take a checkpoint that was converted for it (often named -hf)"
            ) from None
        if quantised is not None:
            raise InputError(
                f"model {name!r}: its weights are quantised ({quantised}), and transformers cannot load them here ({reason}); "
                "install what it names, or take the checkpoint that is not quantised"
            ) from None
        if "flash" in reason.lower():
            hint = "load it without flash attention: set attn_implementation to sdpa"
        elif isinstance(error, ImportError):
            hint = "install what is missing, perhaps with: pip install 'mmprobe[hub]'"
        elif Path(path).is_dir():
            hint = "check that the folder contains a complete checkpoint with safetensors"
        else:
            raise InputError(f"model {name!r}: {_explain_hub(error, path)}") from None
        raise InputError(f"model {name!r}: could not be loaded ({reason}); {hint}") from None


def _explain_hub(error: BaseException, path: str) -> str:
    """Return why the hub did not give a checkpoint, and what to do. Libraries raise the hub's own error from another one."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    page = f"{constants.ENDPOINT}/{path}"
    log_in = "hf auth login (or set HF_TOKEN)"
    if any(isinstance(each, GatedRepoError) for each in chain):
        return f"is gated; accept its licence at {page}, then run {log_in}"
    if any(isinstance(each, RevisionNotFoundError) for each in chain):
        return f"the hub has no such revision of it; see {page}/tree/main"
    if any(isinstance(each, RepositoryNotFoundError) for each in chain):
        return f"the hub has no such repository; check the name, and for a private one run {log_in}"
    if constants.HF_HUB_OFFLINE or not _hub_answers(constants.ENDPOINT):
        return f"the hub ({constants.ENDPOINT}) cannot be reached and it was not downloaded before; check the network, or give a local folder"
    return (
        f"could not be loaded ({str(error).strip().splitlines()[0]}); check the name, or give a local folder"
    )


N_TOKENS = 6
LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv", "mlp"}


def find_structure_errors(hf: Any, family: Family) -> list[str]:
    """Return the reasons in a model's config and modules why it cannot be traced.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_structure_errors(model.hf, model.family)
        []
    """
    errors = []
    try:
        family.image_token_id(hf.config)
    except LookupError as error:
        errors.append(str(error))
    if hf.config.is_encoder_decoder or hf.config.get_text_config().is_encoder_decoder:
        errors.append(f"{type(hf).__name__} has a text encoder beside its decoder")
    if hf.get_output_embeddings() is None:
        errors.append(f"{type(hf).__name__} has no output embeddings")
    if not hasattr(hf, "get_decoder"):
        return [*errors, f"{type(hf).__name__} has no get_decoder"]
    decoder = family.decoder(hf)
    try:
        family.final_norm(hf)
    except LookupError:
        errors.append(f"its decoder, {type(decoder).__name__}, has no final norm")
    if not hasattr(decoder, "layers"):
        return [*errors, f"its decoder, {type(decoder).__name__}, has no layers"]
    unknown = set(getattr(hf.config.get_text_config(), "layer_types", None) or LAYER_TYPES) - LAYER_TYPES
    if unknown:
        errors.append(f"it has layers of {' and '.join(sorted(unknown))}, whose rows cannot be recorded")
    if not any(_has_rows(layer, family) for layer in decoder.layers):
        errors.append("none of its layers has attention")
    return errors + sorted({error for layer in decoder.layers for error in _find_layer_errors(layer, family)})


def _has_rows(layer: Any, family: Family) -> bool:
    try:
        return family.parts(layer).attention is not None
    except (LookupError, AttributeError):
        return True  # another error says what is missing


def _find_layer_errors(layer: Any, family: Family) -> list[str]:
    try:
        attention = family.parts(layer).attention
    except (LookupError, AttributeError) as error:
        return [f"its layers have an unknown structure: {error}"]
    if attention is not None and not _calls_registry(type(attention)):
        return [f"{type(attention).__name__} does not call transformers' attention registry"]
    return []


def _calls_registry(attention: type) -> bool:
    methods = [
        unwrap(value) for base in attention.__mro__ for value in vars(base).values() if callable(value)
    ]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    return any("ALL_ATTENTION_FUNCTIONS" in code.co_names for code in codes)


def find_numeric_errors(hf: Any, family: Family) -> list[str]:
    """Return what does not fit the declaration in a forward pass over a few tokens of text, by layer.

    Softmax rows times values must equal the output of the attention kernel. resid_pre plus the attention's
    update must equal resid_mid.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_numeric_errors(model.hf, model.family)
        []
    """
    decoder = family.decoder(hf)
    parts = [family.parts(layer) for layer in decoder.layers]
    values: dict[tuple[int, str], Any] = {}
    observers = {}

    def keep(index: int, name: str) -> Callable[[Any], None]:
        return lambda value: values.__setitem__((index, name), value)

    with ExitStack() as stack:
        for index, (layer, part) in enumerate(zip(decoder.layers, parts, strict=True)):
            stack.enter_context(observe(layer, inputs=keep(index, "pre")))
            if part.update is not None and part.mid is not None:
                stack.enter_context(observe(part.update, outputs=keep(index, "update")))
                stack.enter_context(observe(part.mid, inputs=keep(index, "mid")))
            if part.attention is not None:
                observers[part.attention] = keep(index, "call")
        stack.enter_context(observe_attention([hf.config.get_text_config()], observers))
        _run_forward(hf, family)
    tolerance = 1e-4 if hf.dtype == torch.float32 else 3e-2
    errors = []
    for index, part in enumerate(parts):
        if (index, "pre") not in values:
            continue  # a layer that attends to images; the text has none
        if (index, "mid") in values:
            mid = values[index, "mid"][:, -1].float()
            pre, update = (values[index, name][:, -1].to(mid) for name in ("pre", "update"))
            gain = 1 if part.gain is None else part.gain().to(mid)
            if _relative_error(pre + gain * update, mid) > tolerance:
                errors.append(
                    f"layer {index}: resid_pre and the attention's update do not add up to resid_mid"
                )
        if part.attention is None:
            continue
        if (index, "call") not in values:
            errors.append(f"layer {index}: its attention does not go through transformers' registry")
            continue
        if (
            _relative_error(
                _attend_last_query(values[index, "call"]), values[index, "call"].output[0, -1].float()
            )
            > tolerance
        ):
            errors.append(f"layer {index}: softmax rows do not give what its attention returned")
    return errors


def has_plain_logits(hf: Any, family: Family) -> bool:
    """Return whether the logits are the unembedding of the final norm's output, without a scale or a cap.

    They are not if the unembedding is quantised: then there is no vector of each token to read.
    """
    states: list[Tensor] = []
    norm = family.final_norm(hf)
    handle = norm.register_forward_hook(lambda module, inputs, output: states.append(output))
    try:
        with hooks_disabled():  # the caller's hooks, if any, are not about this pass
            logits = _run_forward(hf, family).logits
    finally:
        handle.remove()
    with torch.inference_mode():
        head = hf.get_output_embeddings()
        if not read_weight(head).is_floating_point() or read_weight(head).ndim != 2:  # packed by a quantiser
            return False
        expected = states[-1].to(find_device(head)) @ read_weight(head).T
        return _relative_error(expected, logits.to(expected.device)) < 3e-2


def _run_forward(hf: Any, family: Family) -> Any:
    """Return the model's output for a few tokens of text."""
    ids = torch.arange(N_TOKENS, device=find_device(hf.get_input_embeddings()))[None] + 10
    with torch.inference_mode():
        return family.answering(hf)(input_ids=ids, use_cache=False)


def check_loaded(hf: Any, family: Family, name: str) -> None:
    """Check that a model fits its family's declaration and computes no NaN.

    Args:
        name: the name of the model in error messages.

    Raises:
        InputError: it does not; the message names family and layer.
    """
    has_nan: list[Tensor] = []
    with observe(family.answering(hf), outputs=lambda output: has_nan.append(output.logits.isnan().any())):
        errors = find_structure_errors(hf, family) or find_numeric_errors(hf, family)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise InputError(f"model {name!r}: {family.name}: {errors[0]}{more}; see docs/adding-a-family.md")
    if any(has_nan):  # comparisons with NaN find no error
        dtype = str(hf.dtype).removeprefix("torch.")
        raise InputError(
            f"model {name!r}: computes NaN; its weights are damaged, or too large for dtype {dtype}"
        )


def _attend_last_query(call: AttentionCall) -> Tensor:
    """Return the softmax rows of the last query times the values, float32 [head, dim]."""
    rows, value = softmax_rows(call, 0, slice(-1, None)), call.value[0].float()
    return (rows @ value.repeat_interleave(len(rows) // len(value), 0))[:, 0]


def _relative_error(values: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a share of the largest expected value."""
    return float((values - expected).abs().max() / expected.abs().max().clamp(min=1e-6))


# Recording and methods rely on these, whatever a checkpoint sets: each answer is one row; the prompt is read
# in one pass, and then one token in each step, with a cache that grows.
_STEPWISE: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "use_cache": True,
    "cache_implementation": None,
    "prefill_chunk_size": None,
    "return_dict_in_generate": False,
    "penalty_alpha": None,
    "dola_layers": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "use_mtp": None,
    "constraints": None,
    "force_words_ids": None,
}
# All settings of transformers that choose among tokens by their probability, each where it changes nothing: those of a
# checkpoint would act beside the temperature. `test_no_sampling_setting_is_forgotten` keeps the list whole.
_NO_SAMPLING: dict[str, Any] = {
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "min_p": None,
    "top_h": None,
    "typical_p": None,
    "epsilon_cutoff": None,
    "eta_cutoff": None,
}
GREEDY: dict[str, Any] = _STEPWISE | _NO_SAMPLING | {"do_sample": False}
TOP_K = 50  # tokens that are sampled from: transformers' default


def build_generation_kwargs(model: Model, max_new_tokens: int, temperature: float = 0.0) -> dict[str, Any]:
    """Return the arguments of `generate`: greedy at temperature 0, else sampling from 50 tokens.

    These are the 50 most likely tokens, the default of transformers. The settings of a checkpoint are not
    used: those of one Qwen2-VL sample from a single token, which is greedy.

    Args:
        max_new_tokens: the longest answer.
        temperature: of the sampling; 0 for greedy answers.

    Example:
        >>> build_generation_kwargs(model, 64)["do_sample"]                # doctest: +SKIP
        False
    """
    kwargs: dict[str, Any] = GREEDY | {"max_new_tokens": max_new_tokens}
    if temperature > 0:
        kwargs |= {"do_sample": True, "temperature": temperature, "top_k": TOP_K, "top_p": 1.0}
    if model.hf.generation_config.pad_token_id is None and model.tokenizer.pad_token_id is not None:
        kwargs["pad_token_id"] = model.tokenizer.pad_token_id
    return kwargs


@contextmanager
def use_repetition_penalty(model: Model, penalty: float | None) -> Iterator[None]:
    """Within the block, let a repetition penalty act in place of the checkpoint's. None leaves that.

    The penalty acts in plain answers, in all methods and in their contrast paths, since all read it from the
    model's generation settings.

    Example:
        >>> with use_repetition_penalty(model, 1.0):                       # doctest: +SKIP
        ...     answers = generate_batch(model, samples)
    """
    settings = model.hf.generation_config
    earlier = settings.repetition_penalty
    if penalty is not None:
        settings.repetition_penalty = penalty
    try:
        yield
    finally:
        settings.repetition_penalty = earlier


def settings_in_force(
    model: Model, temperature: float = 0.0, repetition_penalty: float | None = None
) -> dict[str, Any]:
    """Return the settings of `generate` that differ from its defaults, the checkpoint's and mmprobe's.

    They always include the repetition penalty, 1.0 for none, and never the longest answer.

    Args:
        temperature: of the sampling.
        repetition_penalty: None for the checkpoint's own.

    Example:
        >>> settings_in_force(model)["repetition_penalty"]                 # doctest: +SKIP
        1.05
    """
    settings = copy.deepcopy(model.hf.generation_config)
    settings.update(**build_generation_kwargs(model, 1, temperature))
    if repetition_penalty is not None:
        settings.repetition_penalty = repetition_penalty
    changed = {"repetition_penalty": settings.repetition_penalty or 1.0} | settings.to_diff_dict()
    for name in ("transformers_version", "max_new_tokens", "max_length", "_from_model_config"):
        changed.pop(name, None)
    return json.loads(json.dumps({"do_sample": temperature > 0} | changed, default=str))
