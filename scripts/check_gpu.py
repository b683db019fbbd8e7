"""Compare a trace on the GPU with one on the CPU: the same tokens, numbers within rounding.

    python scripts/check_gpu.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.traces import load_capture


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        samples = mp.load_samples(make_pairs(Path(folder) / "pairs", 2, 1_000_002))
        spec = load_capture("full").model_copy(update={"dtype": "float32"})
        runs = [
            mp.trace(
                mp.load_model("tiny-spd", device=device, dtype="float32"), samples, Path(folder) / device, capture=spec
            )
            for device in ("cpu", "cuda")
        ]
        worst: dict[str, float] = {}
        for name in runs[0].ids:
            cpu, cuda = (run[name] for run in runs)
            assert cpu.answer == cuda.answer, (cpu.answer, cuda.answer)
            for path in spec.datasets:
                if path != "ffn/active":
                    a, b = cpu.array(path).values, cuda.array(path).values
                    off = np.nanmax(np.abs(a - b)) / max(1.0, np.nanmax(np.abs(a))) if a.size else 0.0
                    worst[path] = max(worst.get(path, 0.0), float(off))
        print(f"{len(samples)} samples, equal answers; largest difference, relative where values exceed 1:")
        for path, off in worst.items():
            print(f"  {path:24} {off:.1e}")


if __name__ == "__main__":
    main()
