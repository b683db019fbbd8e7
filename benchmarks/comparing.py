"""Methods against each other on benchmarks: every metric, and its paired difference to the first method."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.statistics import bootstrap_mean
from mmprobe.benchmarks.answering import local, run_benchmark
from mmprobe.benchmarks.benchmark import Benchmark
from mmprobe.benchmarks.perturbing import KINDS, perturbed
from mmprobe.errors import InputError
from mmprobe.models import Model

SAGE_STAGES = {  # paper 003, table 14: cumulative
    "see": {"analyze": False, "generate": False},
    "see+analyze": {"generate": False},
    "see+analyze+generate": {},
}


class Contender(NamedTuple):
    """A method with parameters, under the name that tables give it."""

    name: str
    method: str
    parameters: dict[str, Any]
    perturbation: str | None = None


def contenders(
    methods: Sequence[str],
    ablate: str | None = None,
    sweep: str | None = None,
    perturbations: Sequence[str] = (),
) -> list[Contender]:
    """Who is compared; `plain` comes first, added if it is missing.

    Args:
        methods: names or YAML files.
        ablate: `sage`, whose stages are then added one after the other.
        sweep: `METHOD.PARAMETER=VALUE,VALUE,…`, one contender a value.
        perturbations: of the questions, answered plainly, one contender each (`mmprobe.benchmarks.perturbing`).

    Raises:
        InputError: an unknown method, parameter, ablation or perturbation.

    Example:
        >>> [each.name for each in contenders(["vcd"], sweep="sage.alpha=0,0.1")]
        ['plain', 'vcd', 'sage alpha=0', 'sage alpha=0.1']
    """
    from mmprobe.interventions.registry import load_methods

    found = [Contender(name, name, {}) for name in methods]
    if ablate is not None:
        if ablate != "sage":
            raise InputError(f"--ablate {ablate}: only sage has stages")
        found += [Contender(f"sage: {stage}", "sage", given) for stage, given in SAGE_STAGES.items()]
    if sweep is not None:
        parts = re.fullmatch(r"([\w-]+)\.(\w+)=([^,=]+(?:,[^,=]+)*)", sweep)
        if not parts:
            raise InputError(f"--sweep {sweep}: give METHOD.PARAMETER=VALUE,VALUE, such as sage.alpha=0,0.1")
        method, parameter, values = parts.groups()
        for value in values.split(","):
            found.append(Contender(f"{method} {parameter}={value}", method, {parameter: json.loads(value)}))
    for kind in perturbations:
        if kind not in KINDS:
            raise InputError(f"--perturb {kind}: choose {', '.join(KINDS)}")
        found.append(Contender(f"plain, {kind}", "plain", {}, kind))
    if "plain" not in [each.name for each in found]:
        found.insert(0, Contender("plain", "plain", {}))
    found.sort(key=lambda each: each.name != "plain")
    for each in found:
        load_methods(each.method, **each.parameters)
    return found


def compare(
    model: Model,
    who: Sequence[Contender],
    what: Sequence[tuple[Benchmark, Any]],
    out: Path,
    batch_size: int = 1,
    progress: Callable[[str], None] = print,
) -> xr.Dataset:
    """Ask every benchmark with every method, and compare; finished parts of an earlier call are kept.

    Args:
        model: who answers.
        who: the first one is what the others are compared with.
        what: benchmarks with their truth.
        out: gets a result folder for each method and benchmark.
        batch_size: questions answered together.
        progress: is told what comes next.

    Returns:
        A data set with dimensions `metric` (`benchmark metric`) and `contender`:

        - value, low, high (metric, contender), n (metric, contender): as in results.json
        - difference (metric, contender), with _low, _high: mean over samples of the score minus the first method's
          score of the same sample, 95 % paired bootstrap; n_paired (metric, contender). NaN for metrics that are no
          means over samples.
        - seconds (contender): to answer everything; tokens_per_second (contender); NaN for what was kept from earlier

    Example:
        >>> ds = compare(model, contenders(["sage"]), [(pope, truth)], Path("out"))      # doctest: +SKIP
        >>> ds.difference.sel(contender="sage", metric="pope accuracy").item()              # doctest: +SKIP
    """
    found: dict[tuple[str, str], tuple[dict, list]] = {}
    seconds, speed = [], []
    for each in who:
        began, answered, asked_anew = time.perf_counter(), 0, True
        for benchmark, truth in what:
            folder = out / slug(each.name) / benchmark.name
            progress(f"{each.name}: {benchmark.name}")
            asked_anew &= not (folder / "responses.jsonl").exists()
            answer = local(
                model, benchmark.max_new_tokens, batch_size, method=each.method, parameters=each.parameters
            )
            if each.perturbation is not None:
                answer = perturbed(answer, each.perturbation, folder / "perturbed")
            about = {
                "model": model.name,
                "method": each.method,
                "parameters": each.parameters,
                "perturbation": each.perturbation,
            }
            found[each.name, benchmark.name] = run_benchmark(
                benchmark, truth, answer, folder, about, resume=True
            )
            answered += _tokens(model, folder / "responses.jsonl")
        took = time.perf_counter() - began
        seconds.append(took if asked_anew else np.nan)
        speed.append(answered / took if asked_anew else np.nan)
    ds = _dataset(found, [each.name for each in who], [benchmark for benchmark, _ in what])
    ds["seconds"], ds["tokens_per_second"] = ("contender", seconds), ("contender", speed)
    ds.attrs = {"analysis": "method_comparison", "model": model.name, "baseline": who[0].name}
    return ds


def slug(name: str) -> str:
    return re.sub(r"[^\w.=+-]+", "-", name)


def _tokens(model: Model, responses: Path) -> int:
    texts = [json.loads(line)["response"] for line in responses.read_text(encoding="utf-8").splitlines()]
    return sum(len(ids) for ids in model.tokenizer(texts)["input_ids"]) if texts else 0


def _dataset(
    found: Mapping[tuple[str, str], tuple[dict, list]], methods: list[str], benchmarks: list[Benchmark]
) -> xr.Dataset:
    rows: dict[str, list[list[float]]] = {}
    for benchmark in benchmarks:
        first = found[methods[0], benchmark.name]
        names = dict.fromkeys(name for method in methods for name in found[method, benchmark.name][0])
        for name in names:
            rows[f"{benchmark.name} {name}"] = [
                _row(found[method, benchmark.name], first, benchmark, name) for method in methods
            ]
    columns = ("value", "low", "high", "n", "difference", "difference_low", "difference_high", "n_paired")
    cube = np.array(list(rows.values()), float)
    return xr.Dataset(
        {name: (("metric", "contender"), cube[..., number]) for number, name in enumerate(columns)},
        coords={"metric": list(rows), "contender": methods},
    )


def _row(mine: tuple[dict, list], first: tuple[dict, list], benchmark: Benchmark, name: str) -> list[float]:
    metric = mine[0].get(name)
    if metric is None:
        return [np.nan] * 3 + [0] + [np.nan] * 3 + [0]
    own, theirs = (_scores(records, benchmark, name) for _, records in (mine, first))
    shared = [each for each in own if each in theirs]
    differences = np.array([own[each] - theirs[each] for each in shared])
    low, high = bootstrap_mean(differences)
    numbers = [np.nan if end is None else end for end in (metric.value, metric.low, metric.high)]
    mean = differences.mean() if shared else np.nan
    return [*numbers, metric.n, mean, float(low), float(high), len(shared)]


def _scores(records: Sequence[Mapping[str, Any]], benchmark: Benchmark, name: str) -> dict[str, float]:
    """A metric's score of each sample that has one."""
    scores = {str(record["id"]): benchmark.scores(record).get(name) for record in records}
    return {each: float(score) for each, score in scores.items() if score is not None}


def markdown(ds: xr.Dataset, metrics: Sequence[str] | None = None) -> str:
    """The comparison as a table: each method's value, and its difference to the first with the interval.

    Example:
        >>> print(markdown(ds))                                     # doctest: +SKIP
    """
    methods = [str(name) for name in ds["contender"].values]
    lines = [f"| metric | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    for metric in ds["metric"].values if metrics is None else metrics:
        one = ds.sel(metric=metric)
        cells = []
        for number, method in enumerate(methods):
            of = one.sel(contender=method)
            text = "undefined" if np.isnan(of["value"]) else f"{float(of['value']):.3f}"
            if number and np.isfinite(of["difference_low"]):
                ends = [float(of[f"difference{end}"]) for end in ("", "_low", "_high")]
                text += f" ({ends[0]:+.3f} [{ends[1]:+.3f}, {ends[2]:+.3f}])"
            cells.append(text)
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    return "\n".join(lines)
