"""mmprobe: does what a vision-language model says come from what it sees?

    import mmprobe as mp
    model = mp.load_model("tiny-spd")
    run = mp.trace(model, mp.load_samples("pairs/samples.jsonl"), out="runs/first")
    mp.viz.plot(mp.analyses.attention_decay(run)).show()

Everything is imported when it is first used, so `import mmprobe` is quick.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_source_tree = Path(__file__).parent.parent
if (_source_tree / "cache" / "schema.py").is_file():
    __path__.append(str(_source_tree))  # in a clone, the other folders stand beside this one

if TYPE_CHECKING:
    from mmprobe import analyses, probes, viz
    from mmprobe.cache import Run, Trace, open_run, pack, verify
    from mmprobe.errors import InputError
    from mmprobe.interventions import generate
    from mmprobe.models import load_model
    from mmprobe.samples import Sample, load_samples
    from mmprobe.traces import CaptureSpec, trace

_HOMES = {
    "load_model": "mmprobe.models",
    "generate": "mmprobe.interventions",
    "Sample": "mmprobe.samples",
    "load_samples": "mmprobe.samples",
    "CaptureSpec": "mmprobe.traces",
    "trace": "mmprobe.traces",
    "open_run": "mmprobe.cache",
    "pack": "mmprobe.cache",
    "verify": "mmprobe.cache",
    "Run": "mmprobe.cache",
    "Trace": "mmprobe.cache",
    "InputError": "mmprobe.errors",
}
_MODULES = ("analyses", "probes", "viz")

__all__ = [
    "CaptureSpec",
    "InputError",
    "Run",
    "Sample",
    "Trace",
    "analyses",
    "generate",
    "load_model",
    "load_samples",
    "open_run",
    "pack",
    "probes",
    "trace",
    "verify",
    "viz",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"mmprobe.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmprobe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
