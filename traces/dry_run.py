"""Plan a run from a dry run: trace a few samples and multiply what they took."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.plan import Plan, mean_prompt_size, peak_bytes, plan
from mmprobe.traces.run import trace


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
