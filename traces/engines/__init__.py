"""The engines by name, and the check of what a model and an engine can record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import ModuleType, NoneType
from typing import Any, Literal, NamedTuple

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method
from mmprobe.models import Model
from mmprobe.models.devices import has_weights, is_dispatched
from mmprobe.models.families import Family
from mmprobe.models.hooks import find_hook_after_norm, find_hooked_module
from mmprobe.models.reading import why_not_cut_back, why_not_shared
from mmprobe.registry import Registry, check_made
from mmprobe.traces.capture import PROMPT_DATASETS, RECORDABLE, CaptureSpec

log = logging.getLogger("mmprobe")

ENGINES: Registry[ModuleType] = Registry(
    "engine",
    "engines",
    {
        "native": "mmprobe.traces.engines.native",
        "nnsight": "mmprobe.traces.engines.nnsight",
        "transformer_lens": "mmprobe.traces.engines.transformer_lens",
    },
    form="types:ModuleType",
)
"""The module of each engine, by the name of the engine."""


def load_engine(name: str) -> ModuleType:
    """Return an engine's module, which has `record`, and `unsupported_reason` unless it supports every model.

    Raises:
        InputError: the engine is unknown, its library cannot be imported, or it has no `record`.

    Example:
        >>> load_engine("native").record.__name__
        'record'
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r}: choose {', '.join(ENGINES)}")
    try:
        module = ENGINES[name]
        if not callable(getattr(module, "record", None)):
            raise InputError(f"engine {name}: its module {module.__name__} has no function `record`")
        return module
    except ImportError as error:
        if name == "native":
            raise
        raise InputError(
            f"engine {name}: cannot be imported ({error}); install it again, or use native"
        ) from None


def resolve_capture(
    spec: CaptureSpec, model: Model, engine: str = "native", batch_size: int = 1, remote: bool | str = False
) -> CaptureSpec:
    """Return the part of a capture that the model and the engine can record.

    Raises:
        InputError: a data set cannot be recorded and the capture says `missing: refuse`; or a
            layer, head or engine does not exist; or the engine does not support the run.

    Example:
        >>> from mmprobe.models import load_model
        >>> spec = CaptureSpec(datasets=["attention/mass"])
        >>> resolve_capture(spec, load_model("tiny-spd")) == spec
        True
    """
    layers = spec.layer_indices(model.n_layers)
    spec.head_indices(model.n_heads)
    if remote and engine != "nnsight":
        raise InputError(f'engine {engine}: cannot run remotely; use engine="nnsight"')
    module = load_engine(engine)
    reasons = model_limits(model, layers, batch_size)
    if engine != "native":
        why = getattr(module, "unsupported_reason", lambda model, batch_size: None)
        unsupported = check_made(why, why(model, batch_size), str, NoneType)
        if unsupported is not None:
            raise InputError(f"engine {engine}: {unsupported}")
        if is_dispatched(model.hf):
            raise InputError(
                f'engine {engine}: needs a model on one device, without accelerate\'s hooks; use engine="native"'
            )
        hooked = find_hooked_module(model.hf)
        if hooked is not None:
            raise InputError(
                f"engine {engine}: runs a copy of the model, and may miss the torch hook on {hooked}; "
                'remove the hook or use engine="native"'
            )
        reason = f"engine {engine} records the answer's steps only"
        reasons |= dict.fromkeys(_names("vision/", "prompt/"), reason)
    if remote and not has_weights(model.hf):
        reasons |= dict.fromkeys(_names("tam/"), "the unembedding is where the model is")
    missing = {
        name: reason for name, reason in reasons.items() if name in spec.stored or name in spec.datasets
    }
    for reason in dict.fromkeys(missing.values()):
        names = ", ".join(name for name in missing if missing[name] == reason)
        if spec.missing == "refuse":
            raise InputError(f"capture: {names}: not available ({reason}); leave it out")
        log.warning("%s: not recorded, since %s", names, reason)
    return spec.without(missing)


def why_whole_prompts(
    model: Model, spec: CaptureSpec, engine: str = "native", methods: Sequence[Method] = ()
) -> str | None:
    """Return why each prompt of a run is read whole, or None if prompts can share prefixes.

    Example:
        >>> from mmprobe.models import load_model
        >>> why_whole_prompts(load_model("tiny-spd"), CaptureSpec(datasets=["vision/residual"]))
        'vision/residual is recorded while the whole prompt is read'
    """
    if engine != "native":
        return f"engine {engine} reads whole prompts"
    if changing := [method.name for method in methods if not method.shares_prefix]:
        return f"method {changing[0]} changes how the whole prompt is read"
    whole = sorted(name for name in spec.stored if name.startswith(("prompt/", "vision/")))
    if whole:
        return f"{whole[0]} is recorded while the whole prompt is read"
    return why_not_shared(model)


class Way(NamedTuple):
    """How the native engine records answers.

    Attributes:
        name: `read` from the cache that generation leaves; `whole`, read with their prompts from the first token on;
            or `decoded`, recorded while the model decodes them.
        reason: why they are not read from the cache; empty if they are.
    """

    name: Literal["read", "whole", "decoded"]
    reason: str = ""

    @property
    def text(self) -> str:
        """The way in words."""
        words = {
            "read": "answers are read once more after they are generated",
            "whole": "answers are read once more with their prompts and images",
            "decoded": "while answers are decoded",
        }
        return f"{words[self.name]}: {self.reason}" if self.reason else words[self.name]


def find_way(model: Model, spec: CaptureSpec, methods: Sequence[Method] = ()) -> Way:
    """Return how the native engine records the answers of a run.

    Example:
        >>> from mmprobe.models import load_model
        >>> find_way(load_model("tiny-spd"), CaptureSpec(datasets=["residual/mid"], positions="all")).text
        'while answers are decoded: prompt/residual_mid is recorded while the prompt is read'
    """
    if methods:
        return Way("decoded", f"method {methods[0].name} changes each step as it is decoded")
    of_prompt = sorted(name for name in spec.stored if name.startswith("prompt/"))
    if of_prompt:
        return Way("decoded", f"{of_prompt[0]} is recorded while the prompt is read")
    if hooked := find_hooked_module(model.hf):
        return Way("decoded", f"the torch hook on {hooked} may expect one token at a time")
    if why := why_not_cut_back(model):
        return Way("whole", why)
    return Way("read")


def model_limits(model: Model, layers: list[int], batch_size: int) -> dict[str, str]:
    """Return the data sets that cannot be recorded from this model, each with the reason."""
    reasons: dict[str, str] = {}
    family, decoder = model.family, model.family.decoder(model.hf)
    parts = [family.parts(decoder.layers[layer]) for layer in layers]
    if any(part.activation is None for part in parts):
        reasons |= dict.fromkeys(_names("ffn/"), _why_no_gates(decoder.layers, family))
    if model.has_cross_attention:
        reasons |= dict.fromkeys(_names("tam/"), f"in {family.name} images are not tokens of the prompt")
    elif not has_weights(model.hf):
        pass  # without weights, nothing can be said about the logits
    elif hooked := find_hook_after_norm(model.hf, family.final_norm(model.hf)):
        reasons |= dict.fromkeys(_names("tam/"), f"a torch hook on {hooked} may change the logits")
    elif not model.has_plain_logits:
        reasons |= dict.fromkeys(
            _names("tam/"), f"{family.name} rescales its logits, or its unembedding is quantised"
        )
    if getattr(model.hf.config.get_text_config(), "num_kv_shared_layers", 0):  # Gemma 4 E2B and E4B
        reason = "its last layers share keys, and transformers computes them at a prompt's last token only"
        reasons |= dict.fromkeys(_names("tam/", "prompt/"), reason)
    if family.without_map:
        names = _names("attention/visual", "prompt/attention_visual", "tam/")
        reasons |= dict.fromkeys(names, f"in {family.name}, {family.without_map}")
    if family.vision is None:
        reasons |= dict.fromkeys(_names("vision/"), f"{family.name}'s vision encoder cannot be recorded")
    elif batch_size > 1:
        reasons |= dict.fromkeys(_names("vision/"), "it needs a batch size of 1")
    return reasons


def _why_no_gates(layers: Any, family: Family) -> str:
    if any(hasattr(module, "experts") for layer in layers for module in (layer, *layer.children())):
        return f"{family.name}'s FFNs are mixtures of experts"
    return f"{family.name}'s FFNs have no module that returns act(gate)"


def _names(*prefixes: str) -> list[str]:
    """Return the data sets with one of these prefixes."""
    return [name for name in (*RECORDABLE, *PROMPT_DATASETS.values()) if name.startswith(prefixes)]
