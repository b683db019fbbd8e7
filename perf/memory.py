"""Peak memory of traced generation beyond plain `generate`, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from toys import LONG_SIDE

COLUMNS = ("model", "new", "side", "capture", "plain MB", "extra MB", "goal")
SCRIPT = r"""
import re, sys, tempfile
from pathlib import Path
import torch
import h5netcdf, hdf5plugin, pandas, xarray  # plain generation has them in memory, too
import mmprobe as mp
from mmprobe.traces import trace
from mmprobe.traces.engines import native
from toys import samples, toy
name, capture, new, side, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) or None, sys.argv[5]
model, chosen = toy(name, side=side), samples(Path(folder), 2)
with torch.inference_mode():
    model.hf.generate(**model.prepare(chosen[0].model_copy(update={"images": []})), max_new_tokens=2, do_sample=False)
options = {"max_new_tokens": new, "shared_prefix": False}
if capture == "given":
    options["answers"] = {sample.id: [7] * new for sample in chosen}
if capture == "sage alone":
    from mmprobe.interventions import generate_batch, load_methods
    from mmprobe.settings import AskSettings
    for sample in chosen:
        generate_batch(model, [sample], AskSettings(method=load_methods("sage"), max_new_tokens=new))
elif capture == "plain":
    with torch.inference_mode():
        for sample in chosen:
            model.hf.generate(**model.prepare(sample), max_new_tokens=new, do_sample=False)
else:
    options["method"] = "sage" if capture == "sage" else "plain"
    options["capture"] = capture if capture in ("default", "full") else "default"
    mp.trace(model, chosen, Path(folder) / "run", **options)
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024)  # ru_maxrss counts the parent's, too
"""


def peak(name: str, capture: str, new: int, side: int, runs: int) -> float:
    """Return the peak memory in MB: the smallest of some runs, since the allocator only ever adds."""
    peaks = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", SCRIPT, name, capture, str(new), str(side), folder]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
            )
            peaks.append(float(done.stdout))
    return min(peaks)


def rows(quick: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    cases = [("12 layers", 32, 0), ("12 layers", 512, 0), ("12 layers", 16, LONG_SIDE)]
    for name, new, side in [("tiny-spd", 4, 0)] if quick else cases:
        runs = 1 if quick else 2
        plains = {way: peak(name, way, new, side, runs) for way in ("plain", "sage alone")}
        for capture in ("default", "given", "sage") if quick else ("default", "full", "given", "sage"):
            plain = plains["sage alone" if capture == "sage" else "plain"]
            extra = peak(name, capture, new, side, runs) - plain
            yield name, new, side or "", capture, f"{plain:.0f}", f"{extra:.0f}", 64
