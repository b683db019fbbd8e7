"""Methods compared on benchmarks: every metric, its paired difference to the first method, and what each method costs."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from mmprobe.benchmarks.core.benchmark import (
    BENCHMARKS,
    Benchmark,
    add_template,
    answer_lengths,
    load_truth,
    options_for,
    wording_of,
)
from mmprobe.benchmarks.core.perturbations import check_kind
from mmprobe.benchmarks.core.results import Metric, paired_difference
from mmprobe.benchmarks.core.runner import (
    answers_ledger,
    check_questions,
    load_source,
    run_benchmark,
)
from mmprobe.benchmarks.judges.judge import LEXICAL, with_judge
from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.errors import InputError
from mmprobe.files import check_no_link, json_lines, write_atomic
from mmprobe.interventions.generate import Settings
from mmprobe.interventions.registry import load_methods, parse_value
from mmprobe.ledger import lock_folder
from mmprobe.models import Model
from mmprobe.models.checkpoints import locate
from mmprobe.models.devices import DeviceMap
from mmprobe.models.loading import settings_in_force
from mmprobe.stats.estimate import format_number, read_estimate

SAGE_STAGES = {  # SPD-Faith Bench (arXiv:2602.07833), table 14: cumulative
    "see": {"analyze": False, "generate": False},
    "see+analyze": {"generate": False},
    "see+analyze+generate": {},
}
_COLUMNS = (
    *("value", "low", "high", "n", "n_groups"),
    *("difference", "difference_low", "difference_high", "n_paired"),
)


class Contender(NamedTuple):
    """A method with parameters and a perturbation, and its name in tables."""

    name: str
    method: str
    parameters: dict[str, Any]
    perturbation: str | None = None


def make_contenders(
    methods: Sequence[str],
    ablate: str | None = None,
    sweep: str | None = None,
    perturbations: Sequence[str] = (),
) -> list[Contender]:
    """Return the contenders of a comparison. `plain` comes first, and is added if it is missing.

    Raises:
        InputError: an unknown method, parameter, ablation or perturbation, or two contenders share a name or
            folder.

    Example:
        >>> [contender.name for contender in make_contenders(["vcd"], sweep="sage.alpha=0,0.1")]
        ['plain', 'vcd', 'sage alpha=0', 'sage alpha=0.1']
    """
    contenders = [Contender(name, name, {}) for name in methods]
    if ablate is not None:
        if ablate != "sage":
            raise InputError(f"ablate {ablate!r}: only sage has stages")
        contenders += [
            Contender(f"sage: {stage}", "sage", settings) for stage, settings in SAGE_STAGES.items()
        ]
    if sweep is not None:
        contenders += _sweep_contenders(sweep)
    for kind in perturbations:
        check_kind(kind)
        contenders.append(Contender(f"plain, {kind}", "plain", {}, kind))
    if "plain" not in [contender.name for contender in contenders]:
        contenders.insert(0, Contender("plain", "plain", {}))
    contenders.sort(key=lambda contender: contender.name != "plain")
    _check_contenders(contenders)
    return contenders


def _sweep_contenders(sweep: str) -> list[Contender]:
    match = re.fullmatch(r"([\w-]+)\.(\w+)=([^,=]+(?:,[^,=]+)*)", sweep)
    if not match:
        raise InputError(f"sweep {sweep!r}: give METHOD.PARAMETER=VALUE,VALUE, such as sage.alpha=0,0.1")
    method, parameter, values = match.groups()
    return [
        Contender(
            f"{method} {parameter}={value}", method, {parameter: parse_value(value, f"sweep {sweep!r}")}
        )
        for value in values.split(",")
    ]


def _check_contenders(contenders: Sequence[Contender]) -> None:
    names: dict[str, str] = {}
    for contender in contenders:
        load_methods(contender.method, **contender.parameters)
        folder = folder_name(contender.name)
        if folder in names:
            raise InputError(
                f"compare: {contender.name!r} and {names[folder]!r} would share a folder; give each once"
            )
        names[folder] = contender.name


def compare(
    model: str | Model,
    out: str | Path,
    *,
    methods: Sequence[str] = ("plain",),
    benchmarks: Sequence[str] = ("spd-faith", "pope", "chair", "mme"),
    data: str | Path | None = None,
    limit: int | None = None,
    n: int = PAIRS,
    seed: int = SEED,
    ablate: str | None = None,
    sweep: str | None = None,
    perturbations: Sequence[str] = (),
    judge: str = LEXICAL,
    batch_size: int = 1,
    max_new_tokens: int | None = None,
    repetition_penalty: float | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: DeviceMap = None,
    resume: bool = False,
    overwrite: bool = False,
    shared_prefix: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
    template: Mapping[str, Any] = MappingProxyType({}),
    progress: Callable[[str], None] = print,
) -> xr.Dataset:
    """Compare methods with plain answers on benchmarks.

    Args:
        model: a model from `load_model`, or its alias, local folder or hub id.
        out: gets a result folder for each method and benchmark.
        methods: names or YAML files. `plain` is added.
        benchmarks: names of benchmarks.
        data: samples.jsonl of `make-pairs`, or the files of the only benchmark. None draws a small set.
        limit, n, seed, batch_size, max_new_tokens, repetition_penalty, device, dtype, device_map, shared_prefix: as
            in `evaluate`.
        resume, overwrite: keep the finished parts of an earlier call in `out`, or replace them.
        ablate: `sage` adds its stages one after the other.
        sweep: `METHOD.PARAMETER=VALUE,VALUE` adds one contender a value.
        perturbations: kinds of `mmprobe.benchmarks.core.perturbations`. Each adds plain answers to disturbed
            questions.
        judge: as in `evaluate`, for the benchmarks that need one.
        options: options of the benchmarks, such as `{"wording": "paper"}`. Each takes those that it has.
        template: arguments of the model's chat template, as in `evaluate`.
        progress: is called with a line on what comes next.

    Returns:
        The data set of `compare_contenders`.

    Raises:
        InputError: as `evaluate`.

    Example:
        >>> ds = compare("tiny-spd", "results/compare", methods=["sage", "vcd"])        # doctest: +SKIP
        >>> mp.viz.plot(ds).show()                                                      # doctest: +SKIP
    """
    out = Path(out)
    records = options_for([BENCHMARKS[name] for name in benchmarks], options)
    if isinstance(model, str):
        locate(model)
    contenders = make_contenders(methods, ablate, sweep, perturbations)
    with lock_folder(out, "comparing into it"):
        for part in [file.parent for file in out.glob("*/*/responses.jsonl")]:
            answers_ledger(part).check(resume, overwrite)
            if overwrite:
                answers_ledger(part).clear()
        records = [
            add_template(each, template) for each in _with_judges(records, judge, out / "judge.sqlite")
        ]
        answered = any(out.glob("*/*/responses.jsonl"))
        truths = [
            (benchmark, load_truth(benchmark, data, out / "data" / benchmark.name, n, seed, limit, answered))
            for benchmark in records
        ]
        for benchmark, truth in truths:
            check_questions(benchmark, truth)
        loaded = load_source(model, device, dtype, device_map).model
        settings = Settings(
            batch_size=batch_size, repetition_penalty=repetition_penalty, shared_prefix=shared_prefix
        )
        return compare_contenders(loaded, contenders, truths, out, settings, max_new_tokens, judge, progress)


def _with_judges(benchmarks: list[Benchmark], judge: str, cache: Path) -> list[Benchmark]:
    """Return the benchmarks with the judge, where they need one. One of them must."""
    judged = [each for each in benchmarks if each.score_with_judge is not None] or benchmarks
    return [with_judge(each, judge, cache)[0] if each in judged else each for each in benchmarks]


def compare_contenders(
    model: Model,
    contenders: Sequence[Contender],
    benchmarks: Sequence[tuple[Benchmark, Any]],
    out: Path,
    settings: Settings = Settings(),  # noqa: B008
    max_new_tokens: int | None = None,
    judge: str = LEXICAL,
    progress: Callable[[str], None] = print,
) -> xr.Dataset:
    """Ask the questions of every benchmark with every contender, and compare the scores.

    Finished parts of an earlier call in `out` are kept.

    Args:
        settings: how all contenders answer, but for their methods and the longest answers.
        max_new_tokens: the longest answer; None for the benchmark's own.
        judge: who judges the answers, for the benchmarks that need one.

    Returns:
        A data set with dimensions `metric` (`benchmark metric`) and `contender`:

        - value, low, high, n, n_groups (metric, contender): as in results.json
        - difference, difference_low, difference_high, n_paired (metric, contender): the metric minus the
          baseline's over the samples of both, with a 95 % paired interval over sets of images
          (`mmprobe.benchmarks.core.results.paired_difference`)
        - seconds (contender): wall-clock time of all answers
        - tokens_per_second (contender)
        - extra_memory (contender): peak memory less the memory at the start, in 2^20 bytes. This and the two
          times are NaN for answers that several calls gave.
    """
    scores: dict[tuple[str, str], dict[str, Metric]] = {}
    costs = []
    for contender in contenders:
        folder = out / folder_name(contender.name)
        results = {benchmark.name: folder / benchmark.name for benchmark, _ in benchmarks}
        has_answers = any((result / "responses.jsonl").exists() for result in results.values())
        with measure_cost(model) as cost:
            for benchmark, truth in benchmarks:
                progress(f"{contender.name}: {benchmark.name}")
                lengths = answer_lengths(benchmark, max_new_tokens)
                own = replace(
                    settings,
                    methods=load_methods(contender.method, **contender.parameters),
                    max_new_tokens=lengths,
                )
                judged = judge if benchmark.score_with_judge is not None else LEXICAL
                about = _describe(model, contender, own) | {"judge": judged, "wording": wording_of(benchmark)}
                result = results[benchmark.name]
                check_no_link(result)
                metrics, _ = run_benchmark(benchmark, truth, model, result, about, own, resume=True)
                scores[contender.name, benchmark.name] = metrics
        if not has_answers:
            cost.tokens = sum(count_tokens(model, result / "responses.jsonl") for result in results.values())
            cost.write(folder / "cost.json")
        costs.append(Cost.read(folder / "cost.json"))
    ds = make_dataset(
        scores, [contender.name for contender in contenders], [benchmark.name for benchmark, _ in benchmarks]
    )
    ds["seconds"] = ("contender", [cost.seconds for cost in costs])
    ds["tokens_per_second"] = ("contender", [cost.tokens / cost.seconds for cost in costs])
    ds["extra_memory"] = ("contender", [cost.extra_mb for cost in costs])
    ds.attrs["model"] = model.name
    return ds


def _describe(model: Model, contender: Contender, settings: Settings) -> dict[str, Any]:
    """Return what results.json says about how a contender answers."""
    return {
        "model": model.name,
        "method": contender.method,
        "parameters": contender.parameters,
        "perturbation": contender.perturbation,
        "max_new_tokens": settings.max_new_tokens,
        "repetition_penalty": settings.repetition_penalty,
        "generation": settings_in_force(model, repetition_penalty=settings.repetition_penalty),
    }


def folder_name(name: str) -> str:
    """Return a contender's name as a folder can have it.

    Example:
        >>> folder_name("sage: see+analyze")
        'sage-see+analyze'
    """
    return re.sub(r"[^\w.=+-]+", "-", name)


def count_tokens(model: Model, responses: Path) -> int:
    """Return the number of tokens in the answers of a file."""
    texts = [line["response"] for _, line in json_lines(responses)]
    return sum(len(ids) for ids in model.tokenizer(texts)["input_ids"]) if texts else 0


def make_dataset(
    scores: Mapping[tuple[str, str], Mapping[str, Metric]], contenders: list[str], benchmarks: list[str]
) -> xr.Dataset:
    """Return the metrics by `(contender, benchmark)` as a data set. The first contender is the baseline."""
    rows: dict[str, list[list[float]]] = {}
    for benchmark in benchmarks:
        baseline = scores[contenders[0], benchmark]
        names = dict.fromkeys(name for contender in contenders for name in scores[contender, benchmark])
        for name in names:
            rows[f"{benchmark} {name}"] = [
                _row(scores[contender, benchmark].get(name), baseline.get(name)) for contender in contenders
            ]
    values = np.array(list(rows.values()), float)
    return xr.Dataset(
        {column: (("metric", "contender"), values[..., index]) for index, column in enumerate(_COLUMNS)},
        coords={"metric": list(rows), "contender": contenders},
        attrs={"analysis": "method_comparison", "baseline": contenders[0]},
    )


def _row(metric: Metric | None, baseline: Metric | None) -> list[float]:
    """Return the numbers of `_COLUMNS`."""
    if metric is None:
        return [np.nan] * 3 + [0, 0] + [np.nan] * 3 + [0]
    interval = [np.nan if number is None else number for number in (metric.value, metric.low, metric.high)]
    sets = np.nan if metric.sets is None else metric.sets
    change = paired_difference(metric, baseline)
    return [*interval, metric.n, sets, change.value, change.low, change.high, change.n]


def markdown(ds: xr.Dataset, metrics: Sequence[str] | None = None) -> str:
    """Return the comparison as a table: each contender's value, and its difference to the first with the
    interval.
    """
    contenders = [str(name) for name in ds["contender"].values]
    lines = [f"| metric | {' | '.join(contenders)} |", "|---" * (len(contenders) + 1) + "|"]
    for metric in ds["metric"].values if metrics is None else metrics:
        cells = [_cell(ds.sel(metric=metric, contender=contender)) for contender in contenders]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    for title, name in (("tokens per second", "tokens_per_second"), ("extra memory, MB", "extra_memory")):
        if name in ds:
            cells = ["" if np.isnan(value) else f"{value:.0f}" for value in ds[name].values]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(ds: xr.Dataset) -> str:
    """Return one metric of one contender as text. The baseline has no difference to itself."""
    text = format_number(float(ds["value"]), ".3f")
    is_baseline = str(ds["contender"].values) == ds.attrs["baseline"]
    if not is_baseline and np.isfinite(ds["difference_low"]):
        text += f" ({read_estimate(ds, 'difference'):+.3f})"
    return text


@dataclass
class Cost:
    """Seconds and tokens of one method on all benchmarks, and its extra memory in 2^20 bytes; NaN if unknown.

    Extra memory is the peak less the memory at the start: of a GPU, else of the process, which only Linux
    reports.
    """

    seconds: float = math.nan
    tokens: float = math.nan
    extra_mb: float = math.nan

    def write(self, path: Path) -> None:
        """Write the numbers as JSON, null where one is not known."""
        numbers = {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}
        write_atomic(path, json.dumps(numbers) + "\n")

    @classmethod
    def read(cls, path: Path) -> Cost:
        """Return the cost in a file. Nothing is known if there is no such file.

        Example:
            >>> Cost.read(Path("nowhere")).seconds
            nan
        """
        try:
            numbers = json.loads(path.read_text())
            known = {name: numbers[name] for name in asdict(cls())}
            return cls(**{name: math.nan if value is None else value for name, value in known.items()})
        except (OSError, ValueError, KeyError, TypeError):
            return cls()


@contextmanager
def measure_cost(model: Model) -> Iterator[Cost]:
    """Within the block, measure time and memory. The cost is complete when the block ends."""
    cost = Cost()
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(model.device)
        before: float | None = torch.cuda.memory_allocated(model.device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present size
        before = _process_memory("VmRSS")
    start = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(model.device) if on_gpu else _process_memory("VmHWM")
    if before is not None and peak is not None:
        cost.extra_mb = (peak - before) / 2**20


def _process_memory(entry: str) -> float | None:
    """Return an entry of this process's status in bytes. None where the system does not report it."""
    try:
        match = re.search(rf"{entry}:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None
