"""Methods against each other on benchmarks: every metric, and its paired difference to the first method."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.benchmarks.core.benchmark import Benchmark
from mmprobe.benchmarks.core.cost import Cost, measuring
from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.benchmarks.core.paired_bootstrap import paired_difference
from mmprobe.benchmarks.core.perturbations import KINDS, perturbed
from mmprobe.benchmarks.core.results import Metric
from mmprobe.benchmarks.core.runner import local, run_benchmark
from mmprobe.errors import InputError
from mmprobe.interventions.parameters import parameter_value
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
        perturbations: of the questions, answered plainly, one contender each (`mmprobe.benchmarks.core.perturbations`).

    Raises:
        InputError: an unknown method, parameter, ablation or perturbation, or two contenders of one name or folder.

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
            given = {parameter: parameter_value(value, f"--sweep {sweep}")}
            found.append(Contender(f"{method} {parameter}={value}", method, given))
    for kind in perturbations:
        if kind not in KINDS:
            raise InputError(f"--perturb {kind}: choose {', '.join(KINDS)}")
        found.append(Contender(f"plain, {kind}", "plain", {}, kind))
    if "plain" not in [each.name for each in found]:
        found.insert(0, Contender("plain", "plain", {}))
    found.sort(key=lambda each: each.name != "plain")
    folders: dict[str, str] = {}
    for each in found:
        load_methods(each.method, **each.parameters)
        if slug(each.name) in folders:
            other = folders[slug(each.name)]
            raise InputError(f"compare: {each.name!r} and {other!r} would share a folder; give each once")
        folders[slug(each.name)] = each.name
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
        - difference (metric, contender), with _low, _high: the metric minus the first method's, both of the samples
          that both have, 95 % paired bootstrap over samples (`mmprobe.benchmarks.core.paired_bootstrap`); n_paired (metric, contender)
        - seconds (contender): to answer everything; tokens_per_second (contender); extra_memory (contender): largest
          memory less that before, in 2^20 bytes (`mmprobe.benchmarks.core.cost`). NaN for answers that several calls gave

    Example:
        >>> ds = compare(model, contenders(["sage"]), [(pope, truth)], Path("out"))      # doctest: +SKIP
        >>> ds.difference.sel(contender="sage", metric="pope accuracy").item()              # doctest: +SKIP
    """
    found: dict[tuple[str, str], tuple[dict, list]] = {}
    costs = []
    for each in who:
        folders = {benchmark.name: out / slug(each.name) / benchmark.name for benchmark, _ in what}
        asked_before = any((folder / "responses.jsonl").exists() for folder in folders.values())
        with measuring(model) as cost:
            for benchmark, truth in what:
                progress(f"{each.name}: {benchmark.name}")
                found[each.name, benchmark.name] = _ask(
                    model, each, benchmark, truth, folders[benchmark.name], batch_size
                )
        noted = out / slug(each.name) / "cost.json"
        if not asked_before:
            cost.tokens = sum(_tokens(model, folder / "responses.jsonl") for folder in folders.values())
            cost.write(noted)
        costs.append(Cost.read(noted))
    ds = _dataset(found, [each.name for each in who], [benchmark for benchmark, _ in what])
    ds["seconds"] = ("contender", [cost.seconds for cost in costs])
    ds["tokens_per_second"] = ("contender", [cost.tokens / cost.seconds for cost in costs])
    ds["extra_memory"] = ("contender", [cost.extra_mb for cost in costs])
    ds.attrs = {"analysis": "method_comparison", "model": model.name, "baseline": who[0].name}
    return ds


def _ask(
    model: Model, who: Contender, benchmark: Benchmark, truth: Any, folder: Path, batch_size: int
) -> tuple[dict, list]:
    answer = local(model, benchmark.max_new_tokens, batch_size, method=who.method, parameters=who.parameters)
    if who.perturbation is not None:
        answer = perturbed(answer, who.perturbation, folder / "perturbed")
    about = {
        "model": model.name,
        "method": who.method,
        "parameters": who.parameters,
        "perturbation": who.perturbation,
    }
    return run_benchmark(benchmark, truth, answer, folder, about, resume=True)


def slug(name: str) -> str:
    return re.sub(r"[^\w.=+-]+", "-", name)


def _tokens(model: Model, responses: Path) -> int:
    texts = [line["response"] for _, line in json_lines(responses)]
    return sum(len(ids) for ids in model.tokenizer(texts)["input_ids"]) if texts else 0


def _dataset(
    found: Mapping[tuple[str, str], tuple[dict, list]], methods: list[str], benchmarks: list[Benchmark]
) -> xr.Dataset:
    rows: dict[str, list[list[float]]] = {}
    for benchmark in benchmarks:
        first = found[methods[0], benchmark.name][0]
        names = dict.fromkeys(name for method in methods for name in found[method, benchmark.name][0])
        for name in names:
            rows[f"{benchmark.name} {name}"] = [
                _row(found[method, benchmark.name][0].get(name), first.get(name)) for method in methods
            ]
    columns = ("value", "low", "high", "n", "difference", "difference_low", "difference_high", "n_paired")
    cube = np.array(list(rows.values()), float)
    return xr.Dataset(
        {name: (("metric", "contender"), cube[..., number]) for number, name in enumerate(columns)},
        coords={"metric": list(rows), "contender": methods},
    )


def _row(mine: Metric | None, first: Metric | None) -> list[float]:
    if mine is None:
        return [np.nan] * 3 + [0] + [np.nan] * 3 + [0]
    numbers = [np.nan if end is None else end for end in (mine.value, mine.low, mine.high)]
    return [*numbers, mine.n, *paired_difference(mine, first)]


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
    for title, name in (("tokens per second", "tokens_per_second"), ("extra memory, MB", "extra_memory")):
        if name in ds:
            cells = ["" if np.isnan(value) else f"{value:.0f}" for value in ds[name].values]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)
