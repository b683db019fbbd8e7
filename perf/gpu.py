"""Check and measure mmprobe on a GPU, and fill the tables of docs/performance-gpu.md, or of a copy of it.

    python perf/gpu.py --out docs/performance-gpu.md         # parts of up to eight minutes on one card: call it again
    python perf/gpu.py --only parity overhead                # these sections; they are measured again
    python perf/gpu.py --device cpu --only counts            # what needs no card: operations and waits
    python perf/gpu.py --device cpu --quick                  # every line of this script, on tiny models

Each row is written when it is done. No section begins late in a call (`--minutes`). A second call measures the sections that the
page lacks or that were stopped. Nothing is downloaded: large models have random weights and the published sizes, small ones are
made in the tests' way. Each traced call writes into a folder of its own. Earlier folders are deleted and the disk is synced before
each call, outside its time.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from paired import Paired, in_turn
from toys import GREEDY, LONG_SIDE, parser, samples, toy
from transformers import CompileConfig

import mmprobe as mp
from mmprobe.benchmarks.core.compare import measure_cost
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.diagnosis import diagnose
from mmprobe.interventions.base import Method
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import METHODS, load_method
from mmprobe.models import Group, Model, load_model, load_shapes
from mmprobe.models.reading import append_answers
from mmprobe.notebook import markdown_lines
from mmprobe.probes import PROBES, image_interchange_run, patch_components, run_probes
from mmprobe.samples import load_samples
from mmprobe.traces import RayActors, recorder
from mmprobe.traces.engines import ENGINES

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.append(str(Path(__file__).parent.parent / "scripts"))
from helpers.counters import OperationCounter, WaitCounter, count_rows
from helpers.equal_runs import full_precision
from helpers.reference import eager_generate
from helpers.tiny_models import load_tiny_model
from page import fill

PAGE = Path(__file__).parent.parent / "docs" / "performance-gpu.md"
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava", "llava_next", "internvl", "idefics3")
DTYPES = ("float32", "bfloat16", "float16")
STEPS = 6  # tokens of an answer that is compared with eager


@dataclass
class GpuRun:
    """What the sections measure.

    Attributes:
        quick: whether to run the smallest case of each section.
    """

    device: str
    quick: bool
    folder: Path

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 5

    def large(self, name: str, side: int | None = None) -> Model:
        """Return a random model of a published size in bfloat16, or a small one where all is quick."""
        if self.quick:
            return toy("28 layers", self.device, dtype=torch.bfloat16)
        return toy(name, self.device, side)

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    @property
    def runs(self) -> Path:
        """The folder of the runs that the next `rest` deletes."""
        return self.folder / "runs"

    def rest(self) -> None:
        """Delete earlier runs, and wait until the disk has nothing to do."""
        shutil.rmtree(self.runs, ignore_errors=True)
        self.runs.mkdir()
        os.sync()

    def time(self, ways: dict[str, Callable[[], Any]]) -> dict[str, Paired]:
        """Time ways in turn, each on a disk at rest."""
        return in_turn(ways, self.rounds, before=self.rest)


class Watch:
    """The seconds of a call that its writer works and that the model waits for the writer, and what the card does.

    Example:
        >>> with Watch() as watch:                                              # doctest: +SKIP
        ...     mp.trace(model, samples, "runs/demo")
        >>> watch.seconds["writer"], watch.seconds["waiting"]                    # doctest: +SKIP
        (0.4, 0.02)
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.stack = ExitStack()

    def __enter__(self) -> Watch:
        thread = recorder.WriterThread
        places = [(recorder, "_make_call", "writer")]
        places += [(thread, name, "waiting") for name in ("submit", "wait", "__exit__")]
        for owner, name, part in places:
            self.stack.enter_context(patch.object(owner, name, self._timed(getattr(owner, name), part)))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds[part] += time.perf_counter() - began

        return call


def profile_card(call: Callable[[], Any], device: str) -> tuple[float, int]:
    """Return the seconds that a card's kernels take in a call, and their number; NaN and 0 without a card."""
    if not device.startswith("cuda"):
        call()
        return math.nan, 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    events = profiler.key_averages()
    return sum(each.self_device_time_total for each in events) / 1e6, sum(each.count for each in events)


def measure_disk(setting: GpuRun, size: int) -> float:
    """Return the seconds that the disk takes for so many bytes in one file, with fsync."""
    setting.rest()
    piece, began = bytes(2**24), time.perf_counter()
    with open(setting.runs / "file", "wb") as file:
        for first in range(0, size, len(piece)):
            file.write(piece[: size - first])
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def name_limit(seconds: float, card: float, waiting: float, writer: float, disk: float) -> str:
    """Return what a call waits for most of all.

    Args:
        seconds: of the call.
        card: of its kernels.
        waiting: that the model waits for the writer.
        writer: that the writer works.
        disk: that the disk alone takes for the same bytes.
    """
    if card >= 0.8 * seconds:
        return "card"
    if waiting >= 0.1 * seconds:
        return "disk" if disk >= 0.5 * writer else "host: the writer"
    return "launches"


def measure_parity(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield a row for each family and dtype: how far traces are from eager attention and torch's own hooks."""
    for family in FAMILIES[:1] if setting.quick else FAMILIES:
        for dtype in DTYPES:
            model = load_tiny_model(family)
            model.hf.to(setting.device, getattr(torch, dtype))
            sample = samples(setting.new_folder(), 1)[0].model_copy(update={"images": []})
            sample = sample.model_copy(update={"images": samples(setting.new_folder(), 1)[0].images[:1]})
            eager = eager_generate(model, model.prepare(sample), STEPS)
            answers = {sample.id: eager["ids"].tolist()}
            out = setting.new_folder() / "run"
            trace = mp.trace(model, [sample], out, capture=full_precision(), answers=answers)[sample.id]
            group = trace.tokens["group"].values
            known = np.eye(len(Group))[group][:-1]  # [key, group]
            mass = eager["attention"][..., : len(known)] @ known
            logprob = torch.from_numpy(eager["logits"]).float().log_softmax(-1)
            expected = logprob.gather(1, torch.from_numpy(eager["ids"]).long()[:, None])[:, 0].numpy()
            gaps = [
                np.nanmax(np.abs(trace.attention_mass.values - mass)),
                *(
                    np.nanmax(np.abs(trace.array(f"residual/{name}").values - eager[name]))
                    / np.nanmax(np.abs(eager[name]))
                    for name in ("pre", "post")
                ),
                np.max(np.abs(trace.array("steps/logprob").values - expected)),
            ]
            yield family, dtype, *(f"{gap:.1e}" for gap in gaps)


def measure_cpu(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield a row for each engine, method and probe: how far its results on the card are from those on the CPU.

    A failure is a row, too.
    """
    pairs = load_samples(make_pairs(setting.new_folder() / "pairs", 8, 1_750_000))
    chosen = [sample for sample in pairs if sample.metadata["type"] == "different"]
    models = [load_model("tiny-spd", device=name, dtype="float32") for name in ("cpu", setting.device)]
    direction = setting.new_folder() / "direction.npy"
    np.save(direction, np.ones(models[0].hf.config.text_config.hidden_size, np.float32))
    parameters: dict[str, dict[str, Any]] = {
        "features": {"dictionary": "tiny-spd", "features": "1, 2"},
        "steer": {"direction": str(direction), "layer": 2},
        "self-consistency": {"answers": 2},
    }
    methods = {
        name: load_method(name, **parameters.get(name, dict(method.strong_parameters)))
        for name, method in METHODS.working()
    }
    engines, probes = list(ENGINES), [name for name, probe in PROBES.working() if probe.needs_model]
    if setting.quick:
        engines, methods, probes = engines[:1], {"chi": methods["chi"], "pai": methods["pai"]}, probes[:2]

    def trace(model: Model, **options: Any) -> mp.Run:
        return mp.trace(model, chosen, setting.new_folder() / "run", max_new_tokens=24, **options)

    def compare_method(method: Method) -> tuple[str, str]:
        if not isinstance(method, PromptMethod):
            return compare_traces([trace(model, method=method, batch_size=4) for model in models])
        answers = [
            [mp.generate(model, each, method, max_new_tokens=24).text for each in chosen] for model in models
        ]
        return f"{sum(map(str.__eq__, *answers))} of {len(chosen)} answers", ""

    for name in engines:
        yield row_of(
            "engine", name, lambda name=name: compare_traces([trace(model, engine=name) for model in models])
        )
    for name, method in methods.items():
        yield row_of("method", name, partial(compare_method, method))
    run = trace(models[0], capture="full")
    for name in probes:
        yield row_of("probe", name.replace("_", "-"), partial(compare_probe, name, models, run))


def row_of(kind: str, name: str, compare: Callable[[], tuple[str, str]]) -> Sequence[object]:
    """Return the cells of a row with the result of a comparison, or with its error, after which the others go on."""
    try:
        result = compare()
    except Exception as error:
        result = f"failed: {type(error).__name__}: {error}".replace("\n", " "), ""
    return kind, name, *result


def compare_traces(runs: list[mp.Run]) -> tuple[str, str]:
    """Return how many answers of two runs are equal, and how far the log-probabilities of their tokens are."""
    one, other = runs
    same = [name for name in one.ids if one[name].answer == other[name].answer]
    logprobs = [[run[name].array("steps/logprob").values for run in runs] for name in same]
    largest = max((float(np.abs(first - second).max()) for first, second in logprobs), default=math.nan)
    return f"{len(same)} of {len(one.ids)} answers", f"{largest:.1e} nat"


def compare_probe(name: str, models: list[Model], run: mp.Run) -> tuple[str, str]:
    """Return how many variables of a probe are equal on two devices, and the largest difference of their numbers."""
    options = {"features": [1, 2]} if name == "feature_effects" else {}
    results = [run_probes(model, slow=True)[name](run, **options) for model in models]
    gaps = {}
    for key, variable in results[0].data_vars.items():
        one, other = variable.values, results[1][key].values
        if variable.dtype.kind == "f" and one.size and one.shape == other.shape:
            one, other = np.nan_to_num(one), np.nan_to_num(other)
            gaps[key] = float(np.max(np.abs(one - other)) / max(np.max(np.abs(one)), 1e-6))
        else:
            gaps[key] = 0.0 if np.array_equal(one, other) else math.inf
    worst = max(gaps, key=lambda key: gaps[key])
    equal = sum(gap < 1e-3 for gap in gaps.values())
    return f"{equal} of {len(gaps)} variables", f"{gaps[worst]:.1e}, `{worst}`"


def measure_reading(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield a row for each dtype: how far reading an answer is from decoding it."""
    chosen = load_samples(make_pairs(setting.new_folder() / "pairs", 1 if setting.quick else 4, 1_700_000))
    for dtype in DTYPES:
        model = load_model("tiny-spd", device=setting.device, dtype=dtype)
        run = mp.trace(model, chosen, setting.new_folder() / "run", batch_size=8, max_new_tokens=64)
        gaps = [trace.reading for trace in run]
        steps = sum(gap["steps"] for gap in gaps)
        agreeing = 100 * sum(gap["agreeing"] for gap in gaps) / steps
        largest = max(gap["difference"] for gap in gaps)
        yield dtype, len(run), steps, f"{largest:.1e}", f"{agreeing:.1f}"


def measure_counts(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield how many operations and waits plain and traced answers take, for models of two depths."""
    new = 2 if setting.quick else 16
    depths = {"tiny-spd": 8, "28 layers": 28}
    counts: dict[tuple[str, int, str], tuple[int, int]] = {}
    for name in depths:
        model = toy(name, setting.device)
        for batch in (1, 8):
            chosen = samples(setting.new_folder(), batch)
            ways = {"plain": plain(model, chosen, batch, new)}
            ways |= {way: traced(setting, model, chosen, batch, new, way) for way in ("default", "full")}
            for way, call in ways.items():
                if way == "default":
                    call()  # the first trace checks the model
                together = patch.dict(recorder.ROWS_BYTES, cpu=recorder.ROWS_BYTES["cuda"])
                with together, OperationCounter() as operations, WaitCounter() as waits:
                    call()
                counts[name, batch, way] = operations.total, waits.calls.total()
            free_memory()
    first, last = depths
    for (name, batch, way), (operations, waits) in counts.items():
        more = {each: counts[each, batch, way][0] - counts[each, batch, "plain"][0] for each in depths}
        slope = (more[last] - more[first]) / (depths[last] - depths[first])
        waited = waits - counts[name, batch, "plain"][1]
        yield depths[name], batch, way, operations, more[name], f"{slope:.1f}", waits, waited


def measure_compiled(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield the time of traced answers that are decoded with compiled layers, compiling included, against plain `generate`."""
    new, count, batch = (3, 2, 1) if setting.quick else (256, 64, 8)
    model = setting.large("7B")
    if setting.quick:
        model.hf.generation_config.compile_config = CompileConfig(backend="eager")
    chosen = samples(setting.new_folder(), count)
    plain(model, chosen[:batch], batch, 2)()  # the first call of a process takes longer
    setting.rest()
    began = time.perf_counter()
    with torch.inference_mode():
        batches = [model.batch(chosen[first : first + batch]).inputs for first in range(0, count, batch)]
        ids = [model.hf.generate(**inputs, max_new_tokens=new, **GREEDY) for inputs in batches]
    known = [row[-new:].tolist() for part in ids for row in part]
    seconds = time.perf_counter() - began
    start = model.name, len(model.prompt(chosen[0]).ids), new, count, batch
    yield *start, "plain", f"{seconds:.2f}", "1.00", "", ""
    for way, options in {"default": {}, "default, compiled": {"compile": True}}.items():
        setting.rest()
        began = time.perf_counter()
        run = mp.trace(
            model,
            chosen,
            setting.runs / "run",
            max_new_tokens=new,
            batch_size=batch,
            shared_prefix=False,
            **options,
        )
        ratio = (time.perf_counter() - began) / seconds
        equal = np.mean(
            [run[each.id].steps["id"].values == own for each, own in zip(chosen, known, strict=True)]
        )
        goal = "0.5" if options else ""
        yield *start, way, f"{ratio * seconds:.2f}", f"{ratio:.2f}", goal, f"{100 * equal:.1f}"


def measure_overhead(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield a row for each model, batch and way: time and memory against plain `generate`, and what limits it."""
    new = 2 if setting.quick else 64
    cases: list[tuple[str, int, int | None]] = [("7B", 1, None), ("7B", 8, None), ("7B", 1, LONG_SIDE)]
    for name, batch, side in cases[:1] if setting.quick else cases:
        yield from measure_model(setting, name, batch, side, new)
        free_memory()  # now that nothing holds the model: the next one would need room beside it


OVERHEAD_GOALS = {
    ("default", 1): "1.03",
    ("full", 1): "1.10",
    ("default", 8): "1.05",
    ("full", 8): "1.25",
}


def measure_model(
    setting: GpuRun, name: str, batch: int, side: int | None, new: int
) -> Iterator[Sequence[object]]:
    """Yield the rows of one model and batch size."""
    model = setting.large(name, side)
    chosen = samples(setting.new_folder(), batch * 2)
    ways = {"plain": plain(model, chosen, batch, new)}
    ways |= {way: traced(setting, model, chosen, batch, new, way) for way in ("default", "full")}
    extra = dict.fromkeys(ways, math.nan)
    spent: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in ways}
    sizes = dict.fromkeys(ways, 0)

    def call(way: str) -> None:
        with measure_cost(model) as cost, Watch() as watch:
            ways[way]()
        extra[way] = np.nanmin([extra[way], cost.extra_mb])
        for part in ("writer", "waiting"):
            spent[way][part].append(watch.seconds[part])
        sizes[way] = sum(path.stat().st_size for path in setting.runs.rglob("*.h5"))

    prompt = len(model.prompt(chosen[0]).ids)
    start = model.name, prompt, new, batch
    for way, paired in setting.time({way: partial(call, way) for way in ways}).items():
        setting.rest()
        card, launches = profile_card(ways[way], setting.device)
        writer, waiting = (float(np.median(spent[way][part])) for part in ("writer", "waiting"))
        disk = measure_disk(setting, sizes[way])
        limit = name_limit(paired.seconds, card, waiting, writer, disk)
        megabytes, beyond = sizes[way] / 1e6, (extra[way] - extra["plain"]) / 1024
        parts = f"{card:.2f}", launches, f"{writer:.2f}", f"{waiting:.2f}"
        goal = OVERHEAD_GOALS.get((way, batch), "")
        yield *start, way, *paired.cells, goal, *parts, f"{megabytes:.0f}", limit, f"{beyond:.2f}"
        if sizes[way]:
            alone = f"the disk alone, as much as {way}", f"{disk:.3f}"
            yield *start, *alone, *[""] * 8, f"{megabytes:.0f}", "disk", ""


def measure_given(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield the time of tracing given answers, against generating them and against one plain forward pass."""
    new = 4 if setting.quick else 256
    model = setting.large("7B")
    chosen = samples(setting.new_folder(), 1)
    inputs = model.prepare(chosen[0])
    answer = (model.tokenizer("a star ", add_special_tokens=False)["input_ids"] * new)[:new]
    both = append_answers(model, inputs, [answer])

    def one_pass() -> None:
        with torch.inference_mode():
            model.hf(**both, logits_to_keep=new)

    ways = {
        "generating": plain(model, chosen, 1, new),
        "one plain pass over prompt and answer": one_pass,
        "tracing the given answer": traced(
            setting, model, chosen, 1, new, "default", answers={chosen[0].id: answer}
        ),
    }
    times = setting.time(ways)
    passed = times["one plain pass over prompt and answer"].seconds
    prompt = inputs["input_ids"].shape[1]
    for way, paired in times.items():
        goals = "0.03; 2" if way == "tracing the given answer" else ""
        ratios = f"{paired.ratio:.3f}", f"{paired.seconds / passed:.2f}"
        yield model.name, prompt, new, way, f"{paired.seconds:.3f}", *ratios, goals


def measure_prefixes(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield the time of six traced questions about the same long pair, whole and shared, against plain answers."""
    new = 2 if setting.quick else 16
    model = setting.large("7B", LONG_SIDE)
    chosen = samples(setting.new_folder(), 6)
    ways = {
        "plain": plain(model, chosen, 1, new),
        "traced, whole": traced(setting, model, chosen, 1, new, "default"),
        "traced, shared": traced(setting, model, chosen, 1, new, "default", shared_prefix=True),
    }
    prompt = len(model.prompt(chosen[0]).ids)
    for way, paired in setting.time(ways).items():
        goal = "0.97" if way == "traced, whole" else ""
        yield model.name, prompt, len(chosen), new, way, *paired.cells, goal


def measure_writing(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield what is written of full traces, and the pinned memory on the way to it."""
    new = 2 if setting.quick else 64
    model = setting.large("7B")
    chosen = samples(setting.new_folder(), 16)
    on_gpu = setting.device.startswith("cuda")
    setting.rest()
    if on_gpu:
        torch.cuda.reset_peak_host_memory_stats()
    began = time.perf_counter()
    with Watch() as watch:
        traced(setting, model, chosen, 8, new, "full")()
    seconds = time.perf_counter() - began
    size = sum(path.stat().st_size for path in setting.runs.rglob("*.h5"))
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.peak"] / 1e6 if on_gpu else math.nan
    disk = size / measure_disk(setting, size) / 1e6
    waits = (f"{watch.seconds[part]:.2f}" for part in ("writer", "waiting"))
    written = f"{size / 1e6:.0f}", f"{size / 1e6 / seconds:.0f}"
    yield model.name, 8, "full", *written, *waits, f"{disk:.0f}", f"{pinned:.0f}"


def measure_causes(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield the seconds an answer of causal probes, and their rows a second, against plain passes over prompts."""
    model = load_model("tiny-spd", device=setting.device)
    chosen = load_samples(make_pairs(setting.new_folder() / "pairs", 2 if setting.quick else 24, 1_800_000))
    pairs = [sample for sample in chosen if sample.metadata["type"] == "different"]
    pairs = pairs[: 1 if setting.quick else 5]

    def prefill() -> None:
        with torch.inference_mode():
            for first in range(0, len(chosen), 8):
                model.hf(**model.batch(chosen[first : first + 8]).inputs, logits_to_keep=1)

    def patch_all() -> None:
        for sample in pairs:
            patch_components(model, sample, sample.model_copy(update={"images": [sample.images[0]] * 2}))

    prefill()
    began = time.perf_counter()
    prefill()
    if setting.device.startswith("cuda"):
        torch.cuda.synchronize()
    prefills = len(chosen) / (time.perf_counter() - began)
    commands = {
        "diagnose": (chosen, lambda: diagnose(model, chosen, setting.new_folder() / "out", batch_size=8)),
        "image_interchange_run": (chosen, lambda: image_interchange_run(model, chosen, batch_size=8)),
        "patch_components": (pairs, patch_all),
    }
    for name, (answered, call) in commands.items():
        began = time.perf_counter()
        with count_rows(model) as rows:
            call()
        seconds, count = time.perf_counter() - began, len(answered)
        passes = f"{len(rows) / count:.0f}", f"{np.mean(rows):.1f}", f"{sum(rows) / seconds:.0f}"
        yield name, count, f"{seconds / count:.2f}", *passes, f"{prefills:.0f}"


def measure_devices(setting: GpuRun) -> Iterator[Sequence[object]]:
    """Yield traces a second with one worker a GPU, and whether a model over all GPUs gives the same answers."""
    count = torch.cuda.device_count() if setting.device.startswith("cuda") else 0
    chosen = load_samples(make_pairs(setting.new_folder() / "pairs", 1 if setting.quick else 48, 1_900_000))
    for workers in sorted({1, count or 2}):
        began = time.perf_counter()
        shapes = load_shapes("tiny-spd")
        run = mp.trace(
            shapes, chosen, setting.new_folder() / "run", batch_size=8, workers=RayActors(count=workers)
        )
        seconds = time.perf_counter() - began
        result = f"{len(run)} traces, {len(run.failures)} failures"
        yield count, f"{workers} workers, with their start", len(chosen), f"{seconds:.1f}", result
    few = chosen[:8]
    one = mp.trace(
        load_model("tiny-spd", device=setting.device), few, setting.new_folder() / "one", batch_size=8
    )
    began = time.perf_counter()
    devices = "balanced" if count > 1 else {"": setting.device}
    placed = load_model("tiny-spd", device_map=devices)
    spread = mp.trace(placed, few, setting.new_folder() / "spread", batch_size=8)
    seconds = time.perf_counter() - began
    same = sum(spread[name].answer == one[name].answer for name in one.ids)
    way = (
        f"one model over {count}"
        if count > 1
        else "a device map of one device; over several: not run, it needs two"
    )
    yield count, way, len(few), f"{seconds:.1f}", f"{same} answers equal"


SECTIONS: dict[str, tuple[str, Callable[[GpuRun], Iterator[Sequence[object]]]]] = {
    "parity": (
        "family | dtype | mass | resid_pre | resid_post | log-probability, nat",
        measure_parity,
    ),
    "cpu": (
        "of mmprobe | name | equal | largest difference",
        measure_cpu,
    ),
    "reading": (
        "dtype | answers | tokens | largest difference, nat | same most likely token, %",
        measure_reading,
    ),
    "counts": (
        "layers | batch | way | operations | more than plain | more a layer | waits | more than plain",
        measure_counts,
    ),
    "overhead": (
        "model | prompt | new | batch | way | s | ratio | middle half | rounds | goal | card, s | launches | writer, s | waiting for it, s | MB | limit | GB beyond plain",
        measure_overhead,
    ),
    "compiled": (
        "model | prompt | new | answers | batch | way | s | ratio | goal | equal tokens, %",
        measure_compiled,
    ),
    "given": (
        "model | prompt | answer | way | s | to generating | to one plain pass | goals",
        measure_given,
    ),
    "prefixes": (
        "model | prompt | questions | new | way | s | ratio | middle half | rounds | goal",
        measure_prefixes,
    ),
    "writing": (
        "model | batch | capture | MB | MB/s of the whole run | writer, s | waiting for it, s | disk alone, MB/s | peak of pinned memory, MB",
        measure_writing,
    ),
    "causes": (
        "command | answers | s an answer | passes an answer | rows a pass | rows a second | plain prefills a second",
        measure_causes,
    ),
    "devices": (
        "GPUs | way | answers | s | result",
        measure_devices,
    ),
}
"""By the name of a part of the page: the columns of its table, and what yields the cells of each row."""
WITHOUT_CARD = ("counts",)  # sections that need none


def plain(model: Model, chosen: list, batch: int, new: int) -> Callable[[], None]:
    """Return a function that lets transformers answer, a batch at a time."""

    def call() -> None:
        with torch.inference_mode():
            for first in range(0, len(chosen), batch):
                inputs = model.batch(chosen[first : first + batch]).inputs
                model.hf.generate(**inputs, max_new_tokens=new, **GREEDY)

    return call


def traced(
    setting: GpuRun, model: Model, chosen: list, batch: int, new: int, capture: str, **options: Any
) -> Callable[[], None]:
    """Return a function that traces the same answers."""
    options = {"shared_prefix": False, "capture": capture, "batch_size": batch} | options

    def call() -> None:
        setting.runs.mkdir(exist_ok=True)
        out = Path(tempfile.mkdtemp(dir=setting.runs)) / "run"  # nothing is deleted within the time
        mp.trace(model, chosen, out, max_new_tokens=new, **options)

    return call


def free_memory() -> None:
    """Give back the GPU's memory that nothing uses."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def name_code() -> str:
    """Return the commit of the checkout, with a plus where files differ from it."""
    call = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip()
    return f"commit {found}" if found else "commit unknown"


def describe_machine(device: str) -> str:
    """Return the card, its driver and the versions, as a line."""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}"
    versions += f", {name_code()}"
    if not device.startswith("cuda"):
        return f"No GPU: {device}, {versions}."
    card = torch.cuda.get_device_properties(device)
    driver = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+(\.\d+)?", driver.read_text()) if driver.exists() else None
    return (
        f"{torch.cuda.device_count()} x {card.name}, {card.total_memory / 2**30:.0f} GB, driver "
        f"{found[0] if found else 'unknown'}, CUDA {torch.version.cuda}, {versions}."
    )


UNFINISHED = ("Not measured yet.", "Stopped before its last row.")


def read_parts(page: Path) -> dict[str, str]:
    """Return the parts of a page by the names of their sections."""
    text = page.read_text(encoding="utf-8")
    found = {name: re.search(rf"<!-- {name} -->(.*?)<!-- /{name} -->", text, re.S) for name in SECTIONS}
    return {name: match[1].strip() for name, match in found.items() if match}


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(device="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--out", type=Path, default=PAGE)
    options.add_argument(
        "--only", nargs="+", choices=SECTIONS, help="measure these sections, again if need be"
    )
    options.add_argument("--minutes", type=float, default=6.0, help="no section begins later")
    arguments = options.parse_args()
    asked = arguments.only or SECTIONS
    if arguments.device == "cpu" and not arguments.quick and set(asked) - set(WITHOUT_CARD):
        options.error("torch sees no GPU; --device cpu takes --quick, which runs every line on tiny models")
    if not arguments.out.exists():
        empty = dict.fromkeys(SECTIONS, UNFINISHED[0])
        arguments.out.write_text(fill(PAGE.read_text(encoding="utf-8"), empty), encoding="utf-8")
    done = read_parts(arguments.out)
    folder = Path(tempfile.mkdtemp(prefix="mmprobe-gpu-"))
    try:
        machine = describe_machine(arguments.device)
        missing = [name for name in SECTIONS if done[name].endswith(UNFINISHED)]

        def write(name: str, lines: list[str], end: str) -> None:
            page = fill(
                arguments.out.read_text(encoding="utf-8"), {name: "\n".join([*lines, "", f"{machine} {end}"])}
            )
            arguments.out.write_text(page, encoding="utf-8")

        started = time.perf_counter()
        for name in arguments.only or missing:
            began = time.perf_counter()
            if began - started > 60 * arguments.minutes:
                print(f"\n{name}: left to the next call", flush=True)
                break
            print(f"\n## {name}", flush=True)
            columns, measure = SECTIONS[name]
            lines = []
            for line in markdown_lines(
                columns.split(" | "), measure(GpuRun(arguments.device, arguments.quick, folder))
            ):
                print(line, flush=True)
                lines.append(line)
                write(name, lines, UNFINISHED[1])
            free_memory()
            seconds = time.perf_counter() - began
            write(name, lines, f"Measured in {seconds:.0f} s.")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
