"""The engines by name, and what each of them and the model can give."""

from __future__ import annotations

import logging
from importlib import import_module
from types import ModuleType

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.traces.capture import PROMPT_SIDES, RECORDABLE, CaptureSpec

log = logging.getLogger("mmprobe")

ENGINES = {
    "native": "mmprobe.traces.engines.native",
    "nnsight": "mmprobe.traces.engines.nnsight",
    "transformer_lens": "mmprobe.traces.engines.transformer_lens",
}


def load_engine(name: str) -> ModuleType:
    """A module with `record`, and with `refuses` where it cannot do every model.

    Raises:
        InputError: no such engine.

    Example:
        >>> load_engine("native").record.__name__
        'record'
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r}: choose {', '.join(ENGINES)}")
    return import_module(ENGINES[name])


def available(
    spec: CaptureSpec, model: Model, engine: str = "native", batch_size: int = 1, remote: bool | str = False
) -> CaptureSpec:
    """The part of a capture that can be recorded.

    Raises:
        InputError: something cannot, and the capture says `missing: refuse`; or no such layer, head or engine.

    Example:
        >>> from mmprobe.models import load_model
        >>> spec = CaptureSpec(datasets=["attention/mass"])
        >>> available(spec, load_model("tiny-spd")) == spec
        True
    """
    layers = spec.layer_indices(model.n_layers)
    spec.head_indices(model.n_heads)
    if remote and engine != "nnsight":
        raise InputError(f"engine {engine}: cannot run remotely; use --engine nnsight")
    module, reasons = load_engine(engine), _of_model(model, layers, batch_size)
    if engine != "native":
        refusal = module.refuses(model, batch_size)
        if refusal is not None:
            raise InputError(f"engine {engine}: {refusal}")
        reasons |= dict.fromkeys(
            _named("vision/", "prompt/"), f"engine {engine} records the answer's steps only"
        )
    if remote and model.hf.device.type == "meta":
        reasons |= dict.fromkeys(_named("tam/"), "the unembedding is where the model is")
    missing = {
        name: reason for name, reason in reasons.items() if name in spec.stored or name in spec.datasets
    }
    for reason in dict.fromkeys(missing.values()):
        names = ", ".join(name for name in missing if missing[name] == reason)
        if spec.missing == "refuse":
            raise InputError(f"capture: {names}: not available ({reason}); leave it out")
        log.warning("%s: not recorded, since %s", names, reason)
    return spec.without(missing)


def _of_model(model: Model, layers: list[int], batch_size: int) -> dict[str, str]:
    """What this model cannot give, with the reason."""
    reasons: dict[str, str] = {}
    family, decoder = model.family, model.family.decoder(model.hf)
    parts = [family.parts(decoder.layers[layer]) for layer in layers]
    if any(part.activation is None for part in parts):
        reasons |= dict.fromkeys(_named("ffn/"), f"{family.name}'s FFNs are mixtures of experts")
    if model.has_cross_attention:
        reasons |= dict.fromkeys(_named("tam/"), f"in {family.name} pictures are no tokens of the prompt")
    elif model.hf.device.type == "meta":
        pass  # a plan, or a run elsewhere
    elif not model.has_plain_logits:
        reasons |= dict.fromkeys(_named("tam/"), f"{family.name} rescales its logits")
    if family.vision is None:
        reasons |= dict.fromkeys(_named("vision/"), f"{family.name}'s vision encoder cannot be recorded")
    elif batch_size > 1:
        reasons |= dict.fromkeys(_named("vision/"), "it needs a batch size of 1")
    return reasons


def _named(*prefixes: str) -> list[str]:
    return [name for name in (*RECORDABLE, *PROMPT_SIDES.values()) if name.startswith(prefixes)]
