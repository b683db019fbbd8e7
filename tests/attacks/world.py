"""What the attacks are made on: drawn pairs, a finished run, a packed run, results, and data of each benchmark."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from helpers.command_line import Finished, run_in_process
from inspect_ai.model import get_model
from tqdm import tqdm

import mmprobe as mp
from mmprobe.analyses import ANALYSES
from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.synthetic.pairs import make_pairs

N_SAMPLES = 4
Attack = Callable[["World", Path], None]


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        name: what is attacked, and how.
        attack: takes the world and an empty folder; raises if the tool did not hold.
    """

    name: str
    attack: Attack


@dataclass(frozen=True)
class World:
    """Files that attacks copy before they spoil them.

    Attributes:
        data: samples file; a run has its first `N_SAMPLES`.
        run, packed: the same run as folder and as file.
        results: result folder of a traced benchmark.
        benchmarks: by name, data and responses.
        contents: what the run holds, by sample.
    """

    data: Path
    run: Path
    packed: Path
    results: Path
    benchmarks: dict[str, tuple[Path, Path]]
    contents: dict[str, tuple[bytes, ...]]

    def trace(self, out: Path, *options: object) -> list[object]:
        """Return the arguments that make the run anew."""
        call = ["trace", "--model", "tiny-spd", "--data", self.data, "--out", out, "--capture", "full"]
        return [*call, "--limit", N_SAMPLES, "--max-new-tokens", 4, *options]

    def bench(self, out: Path, *options: object) -> list[object]:
        """Return the arguments that make the results anew."""
        call = ["bench", "spd-faith", "--model", "tiny-spd", "--n", 1, "--max-new-tokens", 4]
        return [*call, "--trace", "--out", out, *options]

    def copy_run(self, folder: Path) -> Path:
        """Copy the run into a folder."""
        return Path(shutil.copytree(self.run, folder / "run"))


def build_world(folder: Path) -> World:
    """Make everything once, with the embedded model, which all commands then share."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # a process that is killed would keep the usual one
    tqdm.monitor_interval = 0
    model = mp.load_model("tiny-spd", device="cpu")
    mp.models.load_model = lambda name, **options: _load(name, model, load_model, options)
    load_model = mp.models.loading.load_model
    data = make_pairs(folder / "pairs", 1, 5)
    world = World(data, folder / "run", folder / "run.h5", folder / "results", {}, {})
    for call in (
        world.trace(world.run),
        ("pack", world.run, "--out", world.packed),
        world.bench(world.results),
        ("analyze", world.run, "--out", folder / "analyses"),  # these two load libraries once for all cases
        ("report", world.run, "--out", folder / "report.html"),
    ):
        assert run_in_process(*call).code == 0
    get_model("mockllm/model")  # loads inspect-ai's plug-ins
    world.contents.update(read_contents(world.run))
    for name in BENCHMARKS:
        world.benchmarks[name] = _draw(name, folder / name)
    return world


def _load(name: str, model: object, load_model: Callable[..., object], options: dict[str, object]) -> object:
    return model if name == "tiny-spd" else load_model(name, **options)


def _draw(name: str, folder: Path) -> tuple[Path, Path]:
    """Draw a benchmark's own set, and write an answer to each of its questions."""
    benchmark = BENCHMARKS[name]()
    truth = benchmark.read(benchmark.draw(folder, 4, 7))
    lines = [
        json.dumps({"id": sample.id, "response": f"The red star is gone. Answer: {'yes' if n % 2 else '1'}"})
        for n, sample in enumerate(benchmark.ask(truth))
    ]
    responses = folder.with_name(f"{name}-responses.jsonl")
    responses.write_text("\n".join(lines) + "\n")
    return folder / "samples.jsonl", responses


def read_contents(run: Path) -> dict[str, tuple[bytes, ...]]:
    """Return the contents of each trace of a run."""
    names = ("tokens/id", "attention/mass", "attention/visual", "residual/mid", "tam/logit")
    return {
        trace.id: tuple(trace.array(name).values.tobytes() for name in names) for trace in mp.open_run(run)
    }


def run_command(*arguments: object) -> Finished:
    """Run a command in this process. An exception that leaves it is a traceback for the user."""
    try:
        return run_in_process(*arguments)
    except Exception as error:
        raise AssertionError(f"traceback of {type(error).__name__}: {str(error)[:200]}") from error


def check(finished: Finished, *codes: int) -> Finished:
    """Check the exit code, and that every line on stderr is a line of mmprobe."""
    lines = finished.stderr.splitlines()
    assert finished.code in (codes or (0, 1, 2)), f"exit {finished.code}: {finished.stderr[-300:]}"
    assert all(line.startswith("mmprobe: ") for line in lines), f"stderr: {finished.stderr[:300]}"
    assert finished.code == 0 or lines or finished.stdout, "failed without a word"
    assert all(len(line) < 2_100 for line in lines), f"a line of {max(map(len, lines))} characters"
    errors = [line for line in lines if not any(note in line for note in NOTES)]
    assert len(errors) <= 1, f"{len(errors)} lines: {finished.stderr[:300]}"
    return finished


NOTES = ("left out: ", "can take up to", "stopping after", "made again", "unscored", "failed, see", "unanswered",
         "a call failed", "not recorded", "since the model would obey it",
         "was not checked here", "plain: mme")  # fmt: skip


def check_same_run(world: World, run: Path) -> None:
    """Check that a run is whole and contains what the undisturbed one contains."""
    assert mp.verify(run) == []
    assert read_contents(run) == world.contents, "the run differs from an undisturbed one"


def read_run(rng: random.Random, path: Path, folder: Path, packs: bool = False) -> dict[str, Finished]:
    """Verify a run and run one more command that reads it, now and then also `pack`. Check each."""
    analysis = rng.choice([*ANALYSES, *ANALYSES, *ANALYSES, "all", "report", "report"])
    calls: dict[str, list[object]] = {"verify": ["verify", path]}
    if analysis == "report":
        calls["read"] = ["report", path, "--out", folder / "report.html"]
    elif analysis == "all":
        calls["read"] = ["analyze", path, "--out", folder / "out"]
    else:
        calls["read"] = ["analyze", path, "--only", analysis.replace("_", "-"), "--out", folder / "out"]
    if packs and rng.random() < 0.3:
        calls["pack"] = ["pack", path, "--out", folder / "packed.h5"]
    return {name: check(run_command(*call)) for name, call in calls.items()}
