"""Draw runs of everything that is deterministic, and write what came out as JSON: two commits are compared bit by bit.

    python scripts/snapshot.py before                     # in a checkout of the one commit, some minutes
    python scripts/snapshot.py after                      # in a checkout of the other
    diff -r before after                                  # no output: nothing that a user sees has changed
    python scripts/snapshot.py some --only scores,methods
    python scripts/snapshot.py tests/snapshots --compact  # what tests/face/test_snapshot.py compares with

Only the public contract is used: the names of `mmprobe` and the command line, so the script runs on commits whose
modules have other names; it may be copied into an older checkout. A folder that a command wrote becomes a folder
with one JSON file for each of its files; keys keep the order in which they were written. Numbers have all their
digits. Of large arrays there is the hash of their bytes and a summary. Left out are images, plotly.js, versions, times
and absolute paths.

With --compact each part is one small file without hashes, with numbers of six digits, so that it can be compared to a
tolerance on another processor, and the slow parts are left out.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import random
import re
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import h5py
import numpy as np
import xarray as xr

import mmprobe as mp

BENCHMARKS = ("spd-faith", "pope", "chair", "mme", "mirage", "magic", "mirage-effect", "mmreason")
MANY_QUESTIONS = ("--batch-size", 32, "--max-new-tokens", 8)
BENCH_OPTIONS: dict[str, Sequence[object]] = {"mirage-effect": MANY_QUESTIONS, "mmreason": MANY_QUESTIONS}
"""Blind answers of the embedded model end only at the limit."""
VARIANTS: dict[str, Sequence[object]] = {
    "spd-faith-traced": ("spd-faith", "--trace", "--capture", "full"),
    "spd-faith-perturbed": ("spd-faith", "--perturb", "explicit", "--wording", "paper"),
    "pope-batches": ("pope", "--batch-size", 4, "--no-shared-prefix", "--limit", 2),
    "pope-sage": ("pope", "--method", "sage", "--set", "eta=0.25", "--limit", 1),
    "mirage-corrected": ("mirage", "--corrected", "--threshold", 0.1, "--limit", 6),
    "magic-traced": ("magic", "--trace"),
    "mirage-effect-named": ("mirage-effect", "--data-set", "MicroVQA", "--limit", 8, *MANY_QUESTIONS),
}
SCORE_OPTIONS: dict[str, Sequence[object]] = {
    "spd-faith": ("--profile", "paper-appendix"),
    "mirage": ("--threshold", 0.1, "--reasonable", 0.5),
}
PROBES = (
    "logit-lens",
    "image-interchange",
    "attention-knockout",
    "attention-routes",
    "component-patching",
    "region-patching",
    "attribution-patching",
    "circuit",
)
FULL = (
    *("attention/mass", "attention/leading", "attention/visual", "attention/visual_head"),
    *("residual/pre", "residual/mid", "residual/post", "update/cos_mha", "update/cos_ffn", "update/kl"),
    *("ffn/gate_sum", "ffn/gate_first", "ffn/active", "tam/logit", "tam/prompt"),
)
"""The data sets of the capture `full`."""
UNSTABLE = re.compile(r"p|p_.*|score|weight.*")
"""Variables of analyses that another processor's rounding moves: counts of permutations, and where a solver stops."""
HASHES_OF_PATHS = (("asked.json", "pope", "questions"), ("settings.json", "diagnosed", "samples"))
"""Files, their places and keys whose hashes hold the absolute paths of drawn images."""
QUESTION = "Are the two pictures the same?"
MODEL = ("--model", "tiny-spd", "--device", "cpu")
ODD_ANSWERS = (
    "",
    "   \n",
    "Yes",
    "no.",
    "YES!!!",
    "**No**",
    "Yes and no.",
    "I cannot see any image.",
    "I'm sorry, but no image was provided. Please upload the picture.",
    "There are three differences.",
    "There is 1 difference, I think, or maybe 2.",
    "There are no differences.",
    "The answer is (B).",
    "\\boxed{C}",
    "Answer: 3.5",
    "about 1,000 or 1e3",
    "The star was removed. A red circle was added at B2. The heart changed from green to blue.",
    "The diamond did not move. The cross moved from A1 to D4.",
    "Step 1: I look at [2].\nStep 2: The triangle is blue.\nTherefore: No.",
    "A red circle at A1, a dog, two cats and a blue square at D4.",
    "Nein, das Herz ist rot. \N{SNOWMAN}",
    '{"answer": "yes"}',
)
MOULDS = (
    "{}",
    "{}",
    "The answer is {}",
    "**{}**",
    "Let me look at both pictures first.\n1. One shape is red.\n2. The other one is not.\n\nFinal answer: {}",
    "<think>The pictures differ.</think> {}",
    "{} I am not sure, though.",
)
WHOLE = 512  # arrays up to this size are written with all their values; longer ones as hash and summary
WHOLE_COMPACT = 48
VOLATILE = ("versions", "version", "created", "time", "seconds", "tokens_per_second", "extra_memory")
VOLATILE_LINE = re.compile(
    r"(seconds|tokens_per_second|extra_memory),|\| (tokens per second|extra memory, MB) \|"
)

Item = tuple[str, Any]


# Commands, and what they write.


def run_command(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Run an `mmprobe` command in this process, and return its output.

    Raises:
        RuntimeError: it ended with another exit code.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    logging.getLogger().handlers.clear()  # the command sets up its own, on this stderr
    got = 0
    with (
        warnings.catch_warnings(action="ignore"),
        patch.object(sys, "argv", ["mmprobe", *map(str, arguments)]),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            runpy.run_module("mmprobe", run_name="__main__")
        except SystemExit as error:
            got = error.code if isinstance(error.code, int) else int(error.code is not None)
    if got != code:
        raise RuntimeError(f"mmprobe {' '.join(map(str, arguments))}: exit code {got}\n{stderr.getvalue()}")
    return {"stdout": stdout.getvalue().splitlines(), "stderr": stderr.getvalue().splitlines()}


def read_folder(folder: Path, name: str) -> Iterator[Item]:
    """Return the content of each file in a folder, by path; without images."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix not in (".png", ".sqlite", ".lock"):
            yield f"{name}/{file.relative_to(folder).as_posix()}", read_file(file)


def read_file(file: Path) -> Any:
    """Return the content of a file as something that JSON can hold."""
    if file.suffix in (".h5", ".nc"):
        return read_hdf5(file)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        content = without_volatile(json.loads(text))
        for name, place, key in HASHES_OF_PATHS:
            if file.name == name and place in str(file.parent):
                del content[key]
        return content
    if file.suffix == ".jsonl":
        return [without_volatile(json.loads(line)) for line in text.splitlines()]
    if file.suffix == ".html":
        return read_page(text)
    return [line for line in text.splitlines() if not VOLATILE_LINE.match(line)]


def read_hdf5(file: Path) -> dict[str, Any]:
    """Return attributes and data sets of an HDF5 file by path."""
    content: dict[str, Any] = {}

    def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
        attributes = {
            key: describe_array(np.asarray(value)) if isinstance(value, np.ndarray) else plain(value)
            for key, value in sorted(node.attrs.items())
            if not isinstance(value, h5py.Reference)
            and key not in ("DIMENSION_LIST", "REFERENCE_LIST", "_NCProperties", *VOLATILE)
        }
        content[path] = {"attributes": attributes}
        if isinstance(node, h5py.Dataset):
            values = node.asstr()[()] if h5py.check_string_dtype(node.dtype) else node[()]
            content[path]["values"] = describe_array(np.asarray(values))

    with h5py.File(file) as opened:
        visit("/", opened)
        opened.visititems(visit)
    return without_volatile(content)


def read_page(html: str) -> dict[str, Any]:
    """Return the text of a page in lines, with data blocks unpacked, and without images and plotly.js."""
    blocks: dict[str, Any] = {}

    def take(match: re.Match[str]) -> str:
        opening, body = match.groups()
        name = re.search(r'id="([^"]*)"', opening)
        if "plotly.js" in body[:200]:
            return "<script>plotly.js</script>"
        key = name[1] if name else f"script {len(blocks)}: {body[:90].strip()}"
        blocks[key] = unpack_block(body)
        return f"<script>{key}</script>"

    text = re.sub(r"(<script[^>]*>)(.*?)</script>", take, html, flags=re.S)
    text = re.sub(
        r"(<style[^>]*>)(.*?)</style>", lambda match: f"<style>{digest(match[2])}</style>", text, flags=re.S
    )
    text = re.sub(r"data:image/[^\"')]*", "IMAGE", text)
    text = re.sub(r"'sha256-[^']*'", "HASH", text)
    return {"text": [line for line in text.splitlines() if line.strip()], "blocks": blocks}


def unpack_block(body: str) -> Any:
    """Return what a script block of a page holds: data, or the hash of its text."""
    with contextlib.suppress(ValueError, zlib.error):
        data = json.loads(body)
        if isinstance(data, str):
            if data.startswith("data:image"):
                return "IMAGE"
            data = json.loads(zlib.decompress(base64.b64decode(data, validate=True)))
        return shorten(without_volatile(data))
    return digest(body)


# Values as JSON.


def digest(content: str | bytes) -> dict[str, Any]:
    """Return hash and length of a text or of bytes."""
    data = hide_paths(content).encode() if isinstance(content, str) else content
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def describe_array(array: np.ndarray) -> dict[str, Any]:
    """Return dtype, shape and values of an array, or for a large one its hash and a summary."""
    described: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size <= _whole:
        return described | {"values": plain(array.tolist())}
    if array.dtype.kind not in "biuf":
        return described | digest("\n".join(str(plain(value)) for value in array.ravel()))
    described |= digest(np.ascontiguousarray(array).tobytes())
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    described["finite"] = int(finite.size)
    if finite.size:
        summary = {"mean": finite.mean(), "spread": finite.std(), "min": finite.min(), "max": finite.max()}
        described |= {key: float(f"{value:.10g}") for key, value in summary.items()}
    return described


def describe_dataset(dataset: xr.Dataset) -> dict[str, Any]:
    """Return coordinates, variables and attributes of a data set."""

    def describe(array: xr.DataArray) -> dict[str, Any]:
        return {
            "dims": list(array.dims),
            "attributes": without_volatile(plain(dict(array.attrs))),
            **describe_array(array.values),
        }

    return {
        "sizes": plain(dict(dataset.sizes)),
        "attributes": without_volatile(plain(dict(dataset.attrs))),
        "coords": {str(name): describe(array) for name, array in dataset.coords.items()},
        "variables": {str(name): describe(array) for name, array in dataset.data_vars.items()},
    }


def describe_figure(figure: Any) -> dict[str, Any]:
    """Return traces and layout of a plotly figure, with long lists as hash and summary."""
    content = json.loads(figure.to_json())
    template = content["layout"].pop("template", None)
    return shorten(content) | {"template": digest(json.dumps(template))}


def describe_panels(dataset: xr.Dataset, name: str) -> Iterator[Item]:
    """Return title, caption and figure of each panel of an analysis."""
    for number, panel in enumerate(mp.viz.figures(dataset)):
        described = {"title": panel.title, "caption": panel.caption, "figure": describe_figure(panel.figure)}
        yield f"{name}/panel-{number}", described


def shorten(value: Any) -> Any:
    """Return JSON data with each long list of numbers or texts, also plotly's packed ones, described."""
    if isinstance(value, dict):
        if set(value) >= {"dtype", "bdata"}:
            array = np.frombuffer(base64.b64decode(value["bdata"]), np.dtype(value["dtype"]))
            return describe_array(array) | {"packed": value.get("shape", "")}
        return {key: shorten(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 64 and all(isinstance(item, (int, float, type(None))) for item in value):
        return describe_array(np.asarray(value, np.float64))
    if len(value) > 64 and all(isinstance(item, str) for item in value):
        return digest("\n".join(value)) | {"length": len(value)}
    return [shorten(item) for item in value]


def plain(value: Any) -> Any:
    """Return a value in Python's own types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, np.ndarray):
        return describe_array(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def without_volatile(value: Any) -> Any:
    """Return JSON data without what differs from call to call."""
    if isinstance(value, dict):
        return {key: without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    return [without_volatile(item) for item in value] if isinstance(value, list) else value


def hide_paths(text: str) -> str:
    """Return a text without the name of the folder that was drawn into."""
    return text.replace(str(Path.cwd()), "OUT")


def make_compact(value: Any) -> Any:
    """Return JSON data without hashes, and with numbers of six digits."""
    if isinstance(value, dict):
        return {key: make_compact(item) for key, item in value.items() if key not in ("sha256", "bytes")}
    if isinstance(value, list):
        return [make_compact(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


# What several parts draw from.


@functools.cache
def load_model() -> mp.Model:
    """Return the embedded model."""
    return mp.load_model("tiny-spd", device="cpu")


@functools.cache
def draw_pairs(n: int = 20, seed: int = 3) -> Path:
    """Draw pairs with questions, and return their file."""
    out = Path(f"pairs-{n}-{seed}")
    run_command("make-pairs", "--source", "synthetic", "--out", out, "--n", n, "--seed", seed)
    return out / "samples.jsonl"


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_lines(file: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    """Write objects as a file of JSON lines."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


@functools.cache
def trace_labelled(dtype: str = "float16") -> mp.Run:
    """Trace opposite questions about 20 pairs, with labels, and some of them without their images.

    The labels are arbitrary, so that both groups are as large as the analyses need them.

    Args:
        dtype: of what is captured. Half precision makes a difference in rounding a thousand times as large.
    """
    pairs = draw_pairs()
    lines = [line for line in read_lines(pairs) if line.get("polarity")]
    for number, line in enumerate(lines):
        line["faithful"] = number // 2 % 2 == 0
    left_out = ("regions", "pair_id", "polarity", "faithful")
    for line in lines[:6]:
        absent = {key: value for key, value in line.items() if key not in left_out}
        absent |= {"id": f"{line['id']}--absent", "images": [], "metadata": {"with_picture": line["id"]}}
        lines.append(absent)
    data = write_lines(pairs.parent / "labelled.jsonl", lines)
    capture: Any = "full"
    if dtype != "float16":
        capture = mp.CaptureSpec(datasets=list(FULL), missing="skip", dtype=dtype)
    out = "labelled" if capture == "full" else f"labelled-{dtype}"
    return mp.trace(load_model(), data, out=out, capture=capture, max_new_tokens=12)


@functools.cache
def trace_few() -> Path:
    """Trace a few questions of all kinds by the command line, for probes that read each answer many times."""
    lines = [line for line in read_lines(draw_pairs()) if line["id"][:4] in ("0001", "0002")]
    lines = [line for line in lines if line["metadata"]["type"] in ("same", "different", "exists")]
    data = write_lines(draw_pairs().parent / "few.jsonl", lines)
    run_command(
        "trace",
        *MODEL,
        "--data",
        data,
        "--out",
        "few",
        "--capture",
        "full",
        "--max-new-tokens",
        16,
        "--batch-size",
        4,
    )
    return Path("few")


# The parts.


def lists(compact: bool) -> Iterator[Item]:
    """What is there, by name."""
    for kind in ("benchmarks", "methods", "analyses", "causes"):
        yield kind, run_command("list", kind)
    yield "models", run_command("models")


def pairs(compact: bool) -> Iterator[Item]:
    """Drawn pairs and their questions."""
    calls: dict[str, Sequence[object]] = {
        "default": ("--n", 3, "--seed", 0),
        "hard": ("--n", 3, "--seed", 1, "--differences", "2-3", "--difficulty", "hard"),
        "paper": ("--n", 6, "--seed", 2, "--mix", "paper", "--statistics", "statistics.html"),
    }
    for name, options in calls.items():
        run_command("make-pairs", "--source", "synthetic", "--out", f"drawn-{name}", *options)
        yield from read_folder(Path(f"drawn-{name}"), name)
        images = sorted(Path(f"drawn-{name}").rglob("*.png"))
        yield f"{name}/images", {image.name: digest(image.read_bytes()) for image in images}
    yield "statistics.html", read_page(Path("statistics.html").read_text(encoding="utf-8"))


def benches(compact: bool) -> Iterator[Item]:
    """Benchmarks that the embedded model answers, with their main options."""
    calls: dict[str, Sequence[object]] = {}
    for seed in (0, 1):
        for name in BENCHMARKS:
            calls[f"{name}-{seed}"] = (name, "--n", 3, "--seed", seed, *BENCH_OPTIONS.get(name, ()))
    if compact:
        calls = {name: calls[name] for name in ("spd-faith-0", "magic-0")}
    else:
        calls |= {name: (*options, "--n", 3, "--seed", 0) for name, options in VARIANTS.items()}
    for name, arguments in calls.items():
        out = Path("bench") / name
        printed = run_command("bench", *arguments, *MODEL, "--out", out, "--json")
        yield f"{name}/printed", printed
        for path, content in read_folder(out, name):
            if not compact or path.endswith("/results.json"):
                yield path, content


def scores(compact: bool) -> Iterator[Item]:
    """Scores of answers that nobody gave: right, wrong, odd and missing ones."""
    for name in BENCHMARKS:
        drawn = Path("asked") / name
        quick = ("--n", 3 if compact else 4, "--seed", 1, "--batch-size", 32, "--max-new-tokens", 1)
        run_command("bench", name, *MODEL, *quick, "--out", drawn)
        ids, truths = find_truths(drawn)
        for seed in (1,) if compact else (0, 1):
            answers = fabricate(ids, truths, random.Random(f"{name} {seed}"))
            responses = write_lines(drawn / f"fabricated-{seed}.jsonl", answers)
            options: Sequence[object] = SCORE_OPTIONS.get(name, ()) if seed else ()
            files = ("--data", drawn / "data" / "samples.jsonl", "--responses", responses)
            out = Path("scored") / f"{name}-{seed}"
            yield (
                f"{name}-{seed}/printed",
                run_command("score", name, *files, *options, "--out", out, "--json"),
            )
            yield from read_folder(out, f"{name}-{seed}")


def find_truths(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the ids of a benchmark's questions, and the true answers of those that have one."""
    truths: dict[str, str] = {}

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            truth = value.get("truth") or value.get("answer")
            if "id" in value and isinstance(truth, str):
                truths.setdefault(value["id"], truth)
            for item in value.values():
                visit(item)
        elif isinstance(value, list):
            for item in value:
                visit(item)

    visit(read_lines(folder / "samples.jsonl"))
    visit(read_lines(folder / "data" / "samples.jsonl"))
    return sorted({line["id"] for line in read_lines(folder / "responses.jsonl")}), truths


def fabricate(ids: Sequence[str], truths: Mapping[str, str], rng: random.Random) -> list[dict[str, Any]]:
    """Return answers to questions: half of them true in some form, some of another question, some odd."""
    answers: list[dict[str, Any]] = []
    known = sorted(set(truths.values()))
    for name in ids:
        kind = rng.random()
        text: str | None = rng.choice(ODD_ANSWERS)
        if kind < 0.5 and name in truths:
            text = rng.choice(MOULDS).format(truths[name])
        elif kind < 0.75 and known:
            text = rng.choice(MOULDS).format(rng.choice(known))
        elif kind > 0.97:
            text = None
        elif kind > 0.93 and len(answers) > 1:
            continue
        answers.append({"id": name, "response": text})
    return answers


def traces(compact: bool) -> Iterator[Item]:
    """Runs on disk."""
    yield from read_folder(trace_labelled().path, "labelled")
    few = trace_few()
    yield from read_folder(few, "few")
    yield "pack/printed", run_command("pack", few, "--out", "few.h5")
    yield "pack/few.h5", read_hdf5(Path("few.h5"))
    yield "verify", run_command("verify", few)
    data = ("--data", draw_pairs().parent / "few.jsonl", "--max-new-tokens", 8, "--limit", 5)
    for shard in ("1/2", "2/2"):
        run_command("trace", *MODEL, *data, "--out", "sharded", "--shard", shard)
    yield from read_folder(Path("sharded"), "sharded")
    run_command(
        "trace", *MODEL, *data, "--out", "sampled", "--temperature", 0.8, "--seed", 4, "--pack-every", 2
    )
    yield from read_folder(Path("sampled"), "sampled")
    run_command("trace", *MODEL, *data, "--out", "sage", "--method", "sage", "--capture", "full")
    yield from read_folder(Path("sage"), "sage")


def analyses(compact: bool) -> Iterator[Item]:
    """Every analysis of a labelled run with its figures, in Python and by the command line."""
    run = trace_labelled("float32") if compact else trace_labelled()
    for name in sorted(set(mp.analyses.ANALYSES) - {"attention_by_frame"}):  # its samples have no videos
        dataset = getattr(mp.analyses, name)(run)
        unstable = [name for name in dataset if UNSTABLE.fullmatch(str(name))] if compact else []
        yield f"{name}/dataset", describe_dataset(dataset.drop_vars(unstable))
        if not compact:
            yield f"{name}/plot", describe_figure(mp.viz.plot(dataset))
            yield from describe_panels(dataset, name)
    if compact:
        return
    yield "all/printed", run_command("analyze", run.path, "--out", "analyzed", "--json")
    yield from read_folder(Path("analyzed"), "all")
    set_alpha = ("--only", "failure-modes", "--set", "alpha=0.2", "--out", "failure-modes")
    yield "failure-modes-alpha/printed", run_command("analyze", run.path, *set_alpha)
    yield from read_folder(Path("failure-modes"), "failure-modes-alpha")


def probes(compact: bool) -> Iterator[Item]:
    """Probes that `analyze` runs, with their figures."""
    few, labelled = trace_few(), trace_labelled().path
    calls = [(name, few) for name in PROBES] + [("linear-probe", labelled), ("findings", few)]
    for name, run in calls:
        extra = ("--json", "--set", "answers=4") if name == "findings" else ("--json",)
        out = few / "analyses" if run == few else Path("probed")
        try:
            printed = run_command("analyze", run, "--only", name, "--model", "tiny-spd", "--out", out, *extra)
        except TypeError as error:
            yield f"{name}/error", str(error)
            continue
        yield f"{name}/printed", printed
        for file in json.loads("\n".join(printed["stdout"]))["files"]:
            yield f"{name}/{Path(file).name}", read_file(Path(file))
            if file.endswith(".nc"):
                dataset = xr.load_dataset(file, engine="h5netcdf")
                yield f"{name}/{Path(file).stem}-dataset", describe_dataset(dataset)
                if name != "findings":  # which has a table in the report, and no figures
                    yield from describe_panels(dataset, f"{name}/{Path(file).stem}")


def python_probes(compact: bool) -> Iterator[Item]:
    """Probes that only Python reaches."""
    model, run = load_model(), trace_labelled()
    samples = [run.sample(name) for name in run.ids[:4]]
    for method in ("occlusion", "integrated_gradients"):
        attributed = mp.probes.attribute(model, samples[0], method, max_new_tokens=4, n_steps=4)
        yield f"attribute-{method}", describe_dataset(attributed)
    yield "direct_logit_attribution", describe_dataset(mp.probes.direct_logit_attribution(model, samples[0]))
    yield "linear_probe_by_step", describe_dataset(mp.probes.linear_probe_by_step(run))
    direction = mp.probes.mean_difference(run)
    directions = {
        "mean": direction,
        "probe": mp.probes.probe_direction(run),
        "random": mp.probes.random_direction(direction, seed=1),
    }
    for name, each in directions.items():
        yield f"direction-{name}", describe_dataset(each)
    yield "concept_eraser", describe_dataset(mp.probes.concept_eraser(run))
    response = mp.probes.dose_response(
        model,
        samples,
        directions,
        lambda text: float(text.startswith("Yes")),
        scales=(-1.0, 0.0, 2.0),
        max_new_tokens=8,
    )
    yield "dose_response", describe_dataset(response)


def reports(compact: bool) -> Iterator[Item]:
    """Reports of runs and results, as text and data."""
    labelled, few = trace_labelled().path, trace_few()
    quick = ("--n", 3, "--seed", 0)
    run_command("bench", "spd-faith", *MODEL, *quick, "--trace", "--out", "reported/spd-faith")
    run_command("bench", "mirage", *MODEL, *quick, "--out", "reported/mirage")
    data = ("--data", draw_pairs().parent / "few.jsonl", "--limit", 6, "--max-new-tokens", 8)
    for method in ("plain", "vcd"):
        run_command("trace", *MODEL, *data, "--method", method, "--out", f"reported/{method}")
    calls: dict[str, Sequence[object]] = {
        "run": (labelled,),
        "run-with-model": (few, "--model", "tiny-spd"),
        "bench": ("reported/spd-faith", "--explore", 4),
        "results": ("reported/mirage",),
        "two": ("reported/plain", "reported/vcd"),
    }
    for name, arguments in calls.items():
        out = Path(f"report-{name}.html")
        yield f"{name}/printed", run_command("report", *arguments, "--out", out)
        yield f"{name}/page", read_page(out.read_text(encoding="utf-8"))


def comparisons(compact: bool) -> Iterator[Item]:
    """Methods beside each other."""
    calls: dict[str, Sequence[object]] = {
        "methods": ("--methods", "plain,sage,vcd", "--benchmarks", "spd-faith,pope", "--n", 3, "--seed", 0),
        "sweep": ("--sweep", "sage.alpha=0,0.1", "--benchmarks", "chair", "--n", 3, "--seed", 0),
        "perturbed": ("--perturb", "implicit", "--benchmarks", "spd-faith", "--n", 3, "--seed", 1),
    }
    for name, arguments in calls.items():
        out = Path("compared") / name
        yield f"{name}/printed", run_command("compare", *MODEL, *arguments, "--out", out, "--json")
        yield from read_folder(out, name)


def methods(compact: bool) -> Iterator[Item]:
    """One question to every method."""
    pairs_file = draw_pairs()
    images = [
        argument
        for side in "ab"
        for argument in ("--image", pairs_file.parent / "images" / f"0001{side}.png")
    ]
    call = ("generate", *MODEL, *images, "--prompt", QUESTION, "--max-new-tokens", 24, "--json")
    names = [line.split()[0] for line in run_command("list", "methods")["stdout"]]
    for name in names:
        if name not in ("components", "features", "steer"):
            yield name, json.loads("\n".join(run_command(*call, "--method", name)["stdout"]))
    yield "sampled", json.loads("\n".join(run_command(*call, "--temperature", 0.9, "--seed", 5)["stdout"]))
    if compact:
        return
    mp.probes.mean_difference(trace_labelled()).to_netcdf("direction.nc", engine="h5netcdf")
    steer = ("--method", "steer", "--set", "direction=direction.nc", "--set", "scale=2")
    yield "steer", json.loads("\n".join(run_command(*call, *steer)["stdout"]))
    sample = mp.load_samples(pairs_file)[8]
    for settings in ({"method": "sage", "eta": 0.25}, {"method": ["vcd", "pai"]}):
        answer = mp.generate(load_model(), sample, max_new_tokens=24, **settings)
        yield f"python-{settings['method']}", plain(answer._asdict())


def diagnoses(compact: bool) -> Iterator[Item]:
    """A diagnosis of drawn pairs, and of answers without images."""
    out = Path("diagnosed")
    yield "drawn/printed", run_command("diagnose", *MODEL, "--n", 4, "--seed", 0, "--out", out, "--json")
    yield from read_folder(out, "drawn")


def cleanings(compact: bool) -> Iterator[Item]:
    """Filtered and cleaned sets, mean mirage scores, agreement of judges."""
    out = Path("filtered")
    call = (
        "--data",
        draw_pairs(),
        "--limit",
        8,
        "--voters",
        "tiny-spd",
        "--rounds",
        1,
        "--max-new-tokens",
        8,
    )
    yield (
        "filter/printed",
        run_command("data", "filter", *call, "--device", "cpu", "--batch-size", 8, "--out", out, "--json"),
    )
    yield from read_folder(out, "filter")
    asked = Path("blind/asked")
    quick = ("--n", 4, "--seed", 1, "--batch-size", 32, "--max-new-tokens", 1)
    run_command("bench", "mirage-effect", *MODEL, *quick, "--out", asked)
    ids, truths = find_truths(asked)
    results = []
    for seed in (2, 3, 4):
        answers = write_lines(asked / f"{seed}.jsonl", fabricate(ids, truths, random.Random(seed)))
        results.append(Path(f"blind/{seed}"))
        data = asked / "data" / "samples.jsonl"
        run_command("score", "mirage-effect", "--data", data, "--responses", answers, "--out", results[-1])
    for command in ("clean", "mirage-score"):
        yield (
            f"{command}/printed",
            run_command("data", command, *results, "--out", f"blind/{command}", "--json"),
        )
        yield from read_folder(Path(f"blind/{command}"), command)


PARTS: dict[str, Callable[[bool], Iterator[Item]]] = {
    "lists": lists,
    "pairs": pairs,
    "benches": benches,
    "scores": scores,
    "traces": traces,
    "analyses": analyses,
    "probes": probes,
    "python-probes": python_probes,
    "reports": reports,
    "comparisons": comparisons,
    "methods": methods,
    "diagnoses": diagnoses,
    "cleanings": cleanings,
}
COMPACT_PARTS = ("benches", "scores", "analyses", "methods")
_whole = WHOLE


def write_snapshot(out: Path, only: Sequence[str], compact: bool) -> None:
    """Draw parts in a temporary folder, and write them under `out`: a folder a part, or if compact a file a part."""
    global _whole
    _whole = WHOLE_COMPACT if compact else WHOLE
    out = out.resolve()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(Path(folder).resolve())
        try:
            for part in only:
                start = time.process_time()
                items = PARTS[part](compact)
                if compact:
                    write_json(out / f"{part}.json", make_compact(dict(items)))
                else:
                    for path, content in items:
                        write_json(out / part / (path.removesuffix(".json") + ".json"), content)
                print(f"{part}: {time.process_time() - start:.0f} s of a core", file=sys.stderr)
        finally:
            os.chdir(before)


def write_json(file: Path, content: Any) -> None:
    """Write JSON data, one value a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = hide_paths(json.dumps(content, indent=1, ensure_ascii=False))
    file.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the folder for the JSON files")
    parser.add_argument("--only", default="", help=f"names with commas between, of {', '.join(PARTS)}")
    parser.add_argument(
        "--compact", action="store_true", help="small files for the test, without the slow parts"
    )
    arguments = parser.parse_args()
    only = [name for name in arguments.only.split(",") if name] or (
        COMPACT_PARTS if arguments.compact else PARTS
    )
    unknown = [name for name in only if name not in PARTS]
    if unknown:
        parser.error(f"--only {unknown[0]}: no such part")
    write_snapshot(arguments.out, list(only), arguments.compact)


if __name__ == "__main__":
    if (
        os.environ.get("PYTHONHASHSEED") != "0"
    ):  # a circuit's files hold what networkx took from a set, in its order
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        sys.exit(subprocess.run([sys.executable, *sys.orig_argv[1:]], env=environment).returncode)
    main()
