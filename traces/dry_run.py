"""A plan from trying: a few samples are traced, and what they took is multiplied."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.plan import Plan, peak_bytes
from mmprobe.traces.run import trace


def probe(
    model: Model,
    spec: CaptureSpec,
    tried: Sequence[Sample],
    samples: int,
    max_new_tokens: int,
    batch_size: int = 1,
) -> Plan:
    """Predict what a run of so many samples needs from tracing those tried.

    The first batch warms up and counts for disk and memory, not for time.

    Raises:
        InputError: a sample tried fails.

    Example:
        >>> from mmprobe.models import load_model                                       # doctest: +SKIP
        >>> probe(load_model("tiny-spd"), load_capture("full"), some, 1000, 64).seconds  # doctest: +SKIP
        312.4
    """
    with tempfile.TemporaryDirectory() as folder:
        warm = list(tried[:batch_size])
        trace(model, warm, Path(folder) / "warm", spec, max_new_tokens, batch_size=batch_size)
        began = time.perf_counter()
        run = trace(model, tried, Path(folder) / "run", spec, max_new_tokens, batch_size=batch_size)
        seconds = (time.perf_counter() - began) / len(tried)
        if run.failures:
            failure = run.failures[0]
            raise InputError(
                f"probe: sample {failure['id']} fails ({failure['error']}: {failure['message']})"
            )
        disk = sum(path.stat().st_size for path in run.path.glob("samples/*.h5")) / len(tried)
        lengths = [trace.steps.sizes["step"] for trace in run]
    device = torch.cuda.max_memory_reserved(model.hf.device) if model.hf.device.type == "cuda" else 0
    return Plan(
        disk=int(samples * disk),
        host=peak_bytes(),
        device=device,
        seconds=samples * seconds,
        assumed=f"what {len(tried)} of them took, with answers of {sum(lengths) / len(lengths):.0f} tokens",
    )
