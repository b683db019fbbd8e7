"""Load a model and its processor by alias, local folder or hub id."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from mmprobe.errors import InputError
from mmprobe.models.aliases import locate
from mmprobe.models.families import Family, family_of
from mmprobe.models.prompt import Batch, Prompt, build_batch, chat_of
from mmprobe.models.self_check import check, has_plain_logits
from mmprobe.samples import Sample

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Model:
    """A loaded vision-language model with its processor.

    Attributes:
        name: the name it was asked for by.
        source: local folder or hub id it was loaded from; `embedded:NAME` for the embedded one.
        revision: commit of the hub it was loaded at, or None.
        hf: the transformers module.
        processor: its processor.
        family: where its parts are.
    """

    name: str
    source: str
    revision: str | None
    hf: Any
    processor: Any
    family: Family

    @property
    def n_layers(self) -> int:
        return len(self.family.decoder(self.hf).layers)

    @property
    def device(self) -> torch.device:
        """Where inputs go: that of the model, or the CPU for one without weights."""
        return self.hf.device if self.hf.device.type != "meta" else torch.device("cpu")

    @property
    def n_heads(self) -> int:
        return self.hf.config.get_text_config().num_attention_heads

    @cached_property
    def has_plain_logits(self) -> bool:
        """Whether the unembedding of the final norm's output is the logits, with no scale or cap behind it."""
        return has_plain_logits(self.hf, self.family)

    @property
    def has_cross_attention(self) -> bool:
        """Whether pictures are seen by cross-attention instead of being tokens of the prompt."""
        return any(
            self.family.parts(layer).has_cross_attention for layer in self.family.decoder(self.hf).layers
        )

    @property
    def n_neurons(self) -> int:
        """Gate neurons of a layer."""
        return self.hf.config.get_text_config().intermediate_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids of the tokens that end an answer."""
        ids = self.hf.generation_config.eos_token_id
        return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """Strings that the tokenizer would read as one token of its template."""
        added = (token.content for token in self.tokenizer.added_tokens_decoder.values())
        return tuple(
            sorted((content for content in added if len(content.strip()) > 1), key=len, reverse=True)
        )

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within the block, without gradients of the weights, whose inputs would be kept in memory for nothing.

        Example:
            >>> model = load_model("tiny-spd")
            >>> with model.frozen():
            ...     any(weight.requires_grad for weight in model.hf.parameters())
            False
        """
        free = [weight for weight in self.hf.parameters() if weight.requires_grad]
        for weight in free:
            weight.requires_grad_(False)
        try:
            yield
        finally:
            for weight in free:
                weight.requires_grad_(True)

    def prompt(self, sample: Sample) -> Prompt:
        """Token ids, groups and views of a sample."""
        return self.batch([sample]).prompts[0]

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Inputs of several samples at once, padded on the left, with each one's prompt.

        Raises:
            InputError: an image cannot be decoded.
        """
        return build_batch(self, [chat_of(sample) for sample in samples])

    def prepare(self, sample: Sample) -> dict[str, Any]:
        """Tensors for `model.hf.generate(**model.prepare(sample))`, on the model's device.

        Raises:
            InputError: an image of the sample cannot be decoded.

        Example:
            >>> model = load_model("tiny-spd")
            >>> sorted(model.prepare(Sample(id="a", question="Is there a star?")))
            ['attention_mask', 'input_ids', 'mm_token_type_ids']
        """
        return self.batch([sample]).inputs


def load_model(name: str, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> Model:
    """Load a vision-language model. Code that comes with a checkpoint is never run.

    Args:
        name: an alias (see `mmprobe models`), a local folder, or an id on the Hugging Face hub.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.
        dtype: `auto` (the checkpoint's on a GPU, float32 on a CPU), `float32`, `bfloat16` or `float16`.
        revision: branch, tag or commit on the hub.

    Raises:
        InputError: unknown name or family, missing extra, no network, device or dtype not to be had, or a checkpoint
            that is damaged or lacks weights.

    Example:
        >>> load_model("tiny-spd").family.name
        'qwen2_5_vl'
    """
    where = _device(device)
    source, place = locate(name)
    config = from_hub(name, transformers.AutoConfig.from_pretrained, place, revision=revision)
    family = family_of(config)
    processor = _processor(name, place, revision, family)
    chosen = _dtype(dtype, where, config)
    hf, found = from_hub(
        name,
        transformers.AutoModelForImageTextToText.from_pretrained,
        place,
        revision=revision,
        dtype=chosen,
        attn_implementation="sdpa",
        use_safetensors=True,
        output_loading_info=True,
    )
    if found["missing_keys"]:  # transformers draws them at random and goes on
        first, *more = sorted(found["missing_keys"])
        lacking = f"{first} and {len(more)} more" if more else first
        raise InputError(f"model {name!r}: its checkpoint lacks weights ({lacking}); check that it is whole")
    commit = getattr(hf.config, "_commit_hash", None) if not Path(place).is_dir() else None
    try:
        hf = hf.to(where).eval()
        check(hf, family, name)
    except torch.OutOfMemoryError:
        raise InputError(
            f"model {name!r}: does not fit into the memory of {where}; choose a smaller model, --dtype bfloat16 or "
            "--device cpu"
        ) from None
    return Model(name, source, commit or revision, hf, processor, family)


def load_shapes(name: str, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> Model:
    """A model without its weights, on torch's meta device: for plans, not for answers.

    Args:
        device: where it would run, which decides its dtype.

    Raises:
        InputError: as `load_model`.

    Example:
        >>> load_shapes("tiny-spd").n_layers
        8
    """
    source, place = locate(name)
    config = from_hub(name, transformers.AutoConfig.from_pretrained, place, revision=revision)
    family = family_of(config)
    processor = _processor(name, place, revision, family)
    chosen = _dtype(dtype, _device(device), config)
    with torch.device("meta"):
        hf = transformers.AutoModelForImageTextToText.from_config(config, dtype=chosen)
    return Model(name, source, revision, hf, processor, family)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"--device {name}: not available here; choose auto or cpu") from None
    return device


def _dtype(name: str, device: torch.device, config: Any) -> torch.dtype:
    if name != "auto" and name not in DTYPES:
        raise InputError(f"--dtype {name}: choose auto, {', '.join(DTYPES)}")
    if name != "auto":
        return DTYPES[name]
    return torch.float32 if device.type == "cpu" else getattr(config, "dtype", None) or torch.bfloat16


def _processor(name: str, place: str, revision: str | None, family: Family) -> Any:
    if (own := from_hub(name, _pil_processor, place)) is not None:
        return own
    if "hub" in family.needs and find_spec("torchvision") is None:
        raise InputError(
            f"model {name!r}: its processor needs torchvision; install it with: pip install 'mmprobe[hub]'"
        )
    return from_hub(name, transformers.AutoProcessor.from_pretrained, place, revision=revision)


def _pil_processor(place: str, **_: Any) -> Any:
    """The processor without torchvision, or None of a checkpoint that is not for it."""
    described = Path(place) / "preprocessor_config.json"
    if (
        not described.is_file()
        or json.loads(described.read_text()).get("processor_class") != "PilQwenProcessor"
    ):
        return None
    from mmprobe.models.pil_processor import PilQwenProcessor

    return PilQwenProcessor.from_folder(Path(place))


def from_hub(name: str, load: Any, place: str, **options: Any) -> Any:
    """Call a `from_pretrained`, without remote code, and say in one line what went wrong.

    Args:
        name: what errors call it.
        load: such as `transformers.AutoConfig.from_pretrained`.
        place: a local folder, or an id on the hub.
        options: of `load`.

    Raises:
        InputError: it cannot be loaded.

    Example:
        >>> from_hub("tiny-spd", transformers.AutoConfig.from_pretrained, locate("tiny-spd")[1]).model_type
        'qwen2_5_vl'
    """
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    try:
        return load(place, trust_remote_code=False, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # each reader of a damaged file has errors of its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if isinstance(error, ImportError):
            hint = "install what is missing, perhaps with: pip install 'mmprobe[hub]'"
        elif Path(place).is_dir():
            hint = "check that the folder holds a whole checkpoint with safetensors"
        else:
            hint = "check the name and the network, or give a local folder"
        raise InputError(f"model {name!r}: could not be loaded ({reason}); {hint}") from None
