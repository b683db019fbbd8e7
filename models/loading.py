"""A model with its processor: load it by alias, local folder or hub id, check it, and generate with it.

A loaded model is checked against the declaration of its family, in a few milliseconds (`check_model`). The arguments of
transformers' `generate` are the same for plain answers, traces and methods (`build_generation_kwargs`).
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import ref

import torch
import transformers
from huggingface_hub import constants, get_session
from PIL import Image
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models.attention import AttentionCall, observe_attention, softmax_rows
from mmprobe.models.checkpoints import (
    Checkpoint,
    find_base,
    find_checkpoint,
    fingerprint_checkpoint,
    fingerprint_memory,
    locate,
)
from mmprobe.models.devices import (
    DeviceMap,
    check_device_map,
    check_places,
    find_device,
    has_weights,
    read_weight,
)
from mmprobe.models.families import Family, find_family
from mmprobe.models.families.base import find_width
from mmprobe.models.families.generic import build_views
from mmprobe.models.hooks import hooks_disabled, observe
from mmprobe.models.organisms import PREFIX, folder, merge_adapter
from mmprobe.models.prompt import (
    Batch,
    Chat,
    ImageProcessor,
    Prompt,
    build_batch,
    build_chat,
    list_control_tokens,
)
from mmprobe.models.untrusted import (
    check_adapter_config,
    check_adapter_fits,
    check_files,
    check_templates,
    check_tokenizer,
)
from mmprobe.samples import Sample

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
        dtype = {"dtype": str(self.hf.dtype).removeprefix("torch.")}
        if self.checkpoint is not None and self.checkpoint.hf() is self.hf:
            return fingerprint_checkpoint(self.checkpoint.places, self.revision) | dtype
        return fingerprint_memory(self.hf, self.processor) | dtype

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


def load_model(
    name: str,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    device_map: DeviceMap = None,
) -> Model:
    """Load a vision-language model. Code that comes with a checkpoint is never run.

    Args:
        name: an alias or `organism:NAME` (see `mmprobe models`), a local folder, or an id on the Hugging Face hub.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.
        dtype: `auto` (the checkpoint's on a GPU, float32 on a CPU), `float32`, `bfloat16` or `float16`.
        revision: branch, tag or commit on the hub.
        device_map: spreads the model over devices, in place of `device`: accelerate's `auto`, `balanced`, `balanced_low_0`
            or `sequential`, or devices by module, such as `{"model": 0, "lm_head": "cpu"}`. Extra: `hub`.

    Returns:
        The model in evaluation mode. It has been checked against its family's declaration.

    Raises:
        InputError: the name or the family is unknown; an extra, the network, the device or the dtype is not
            available; or the checkpoint is damaged or lacks weights.

    Example:
        >>> load_model("tiny-spd").family.name
        'qwen2_5_vl'
    """
    torch_device = _find_device(device)
    source, path = locate(name)
    adapter = str(folder(name)) if source.startswith(PREFIX) else path if find_base(path) else None
    path = find_base(path) or path
    check_device_map(name, device, device_map)
    config, family, processor = _load_parts(name, path, revision)
    hf, info = load_pretrained(
        name,
        transformers.AutoModelForImageTextToText.from_pretrained,
        path,
        revision=revision,
        dtype=_choose_dtype(dtype, torch_device, config),
        attn_implementation="sdpa",
        **({"config": config} if _set_sdpa(config) or "thinker" in config.model_type else {}),
        use_safetensors=True,
        output_loading_info=True,
        device_map=device_map,
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
    try:
        hf = (hf if device_map is not None else hf.to(torch_device)).eval()
        load_pretrained(name, lambda _, **__: check_model(hf, family, name), path)
    except torch.OutOfMemoryError:
        raise InputError(
            f"model {name!r}: does not fit into the memory of {torch_device}; choose a smaller model, "
            "dtype bfloat16, device cpu or a device map"
        ) from None
    checkpoint = Checkpoint(find_checkpoint(name), ref(hf))
    return _check_images(Model(name, source, commit or revision, hf, processor, family, checkpoint))


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
    check_model(hf.eval(), family, name)
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


def load_shapes(name: str, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> Model:
    """Load a model without its weights, on torch's meta device. It serves for plans, but cannot answer.

    Args:
        name, dtype, revision: as in `load_model`.
        device: the device that the model would run on; it decides the dtype.

    Raises:
        InputError: as in `load_model`.

    Example:
        >>> load_shapes("tiny-spd").n_layers
        8
    """
    source, path = locate(name)
    path = find_base(path) or path
    config, family, processor = _load_parts(name, path, revision)
    torch_dtype = _choose_dtype(dtype, _find_device(device), config)

    def build(_: str, **options: Any) -> Any:
        with torch.device("meta"):
            return transformers.AutoModelForImageTextToText.from_config(config, dtype=torch_dtype, **options)

    hf = load_pretrained(name, build, path)
    with suppress(OSError):  # a checkpoint without its own has what the config says
        hf.generation_config = transformers.GenerationConfig.from_pretrained(
            path, revision=revision or "main"
        )
    return Model(name, source, revision, hf, processor, family, Checkpoint(find_checkpoint(name), ref(hf)))


def _load_parts(name: str, path: str, revision: str | None) -> tuple[Any, Family, Any]:
    """Return the config of a checkpoint, its family and its processor, once its files are checked."""
    is_known = path.startswith(str(resources.files("mmprobe.models")))  # ships with mmprobe
    if not is_known:
        check_files(name, Path(path))
        check_tokenizer(name, Path(path))
    config = load_pretrained(name, transformers.AutoConfig.from_pretrained, path, revision=revision)
    config = getattr(config, "thinker_config", config)  # of Qwen's Omni models: the part that does not speak
    if (Path(path) / "adapter_config.json").is_file():
        load_pretrained(name, lambda path, **_: _check_adapter(name, config, Path(path)), path)
    family = load_pretrained(name, lambda _, **__: find_family(config), path)
    processor = _load_processor(name, path, revision, family)
    if not is_known:
        check_templates(name, processor)
    return config, family, processor


def _check_adapter(name: str, config: Any, folder: Path) -> None:
    """Check the config of an adapter against the modules of its base, which are built without weights."""
    with torch.device("meta"):
        base = transformers.AutoModelForImageTextToText.from_config(config)
    check_adapter_config(name, folder, [module for module, _ in base.named_modules()])


def _find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device {name}: not available; choose auto or cpu") from None
    return device


def _choose_dtype(name: str, device: torch.device, config: Any) -> torch.dtype:
    if name != "auto" and name not in DTYPES:
        raise InputError(f"dtype {name}: unknown; choose auto, {', '.join(DTYPES)}")
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


def load_pretrained(name: str, load: Callable[..., Any], path: str, **options: Any) -> Any:
    """Call a `from_pretrained` method without remote code, and turn its errors into one line.

    Args:
        name: the name of the model in error messages.
        load: a method such as `transformers.AutoConfig.from_pretrained`.
        path: a local folder, or an id on the hub.
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
    except (torch.OutOfMemoryError, InputError, KeyboardInterrupt, SystemExit):
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
        if "flash" in reason.lower():
            hint = "load it without flash attention: set attn_implementation to sdpa"
        elif isinstance(error, ImportError):
            hint = "install what is missing, perhaps with: pip install 'mmprobe[hub]'"
        elif Path(path).is_dir():
            hint = "check that the folder contains a complete checkpoint with safetensors"
        else:
            hint = "check the name and the network, or give a local folder"
        raise InputError(f"model {name!r}: could not be loaded ({reason}); {hint}") from None


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


def check_model(hf: Any, family: Family, name: str) -> None:
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
}


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
    kwargs: dict[str, Any] = _STEPWISE | {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        kwargs |= {"temperature": temperature, "top_k": 50, "top_p": 1.0}
    else:
        kwargs |= {"temperature": None, "top_p": None, "top_k": None}  # unused, and warned about when set
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
