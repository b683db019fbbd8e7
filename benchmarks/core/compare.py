"""Methods compared on benchmarks: every metric, its paired difference to the first method, and what each method costs."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import xarray as xr

from mmprobe.benchmarks.core.benchmark import (
    Benchmark,
    answer_lengths,
    load_truth,
    make_benchmarks,
    wording_of,
)
from mmprobe.benchmarks.core.perturbations import check_perturbation
from mmprobe.benchmarks.core.results import Metric, paired_difference, paired_p, values_on_shared
from mmprobe.benchmarks.core.runner import (
    answers_ledger,
    check_questions,
    load_source,
    run_benchmark,
)
from mmprobe.benchmarks.core.stability import check_samples, run_several
from mmprobe.benchmarks.judges.judge import LEXICAL, RULES, Judging, open_judging
from mmprobe.benchmarks.synthetic import SEED
from mmprobe.errors import InputError
from mmprobe.files import check_no_link, json_lines, write_atomic
from mmprobe.interventions.registry import load_methods, parse_value
from mmprobe.ledger import lock_folder
from mmprobe.models import Model
from mmprobe.models.checkpoints import locate
from mmprobe.models.compiled import say_compiled
from mmprobe.models.loading import settings_in_force
from mmprobe.notebook import markdown_table
from mmprobe.settings import (
    AskSettings,
    DataSettings,
    EvaluateArgs,
    FolderSettings,
    ModelSettings,
    sort_settings,
)
from mmprobe.stats.compare import holm
from mmprobe.stats.estimate import format_number, read_estimate

SAGE_STAGES = {  # SPD-Faith Bench (arXiv:2602.07833), table 14: cumulative
    "see": {"analyze": False, "generate": False},
    "see+analyze": {"generate": False},
    "see+analyze+generate": {},
}
_COLUMNS = (
    *("value", "low", "high", "n", "n_groups"),
    *(
        "difference",
        "difference_low",
        "difference_high",
        "n_paired",
        "value_paired",
        "baseline_paired",
        "n_unread",
        "p",
    ),
)
_LENGTH = re.compile(r"\[(words|matched)=\d+\]")
"""Ends the name of a metric of captions at one length (`mmprobe bench chair --lengths`)."""


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
        check_perturbation(kind)
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
    ablate: str | None = None,
    sweep: str | None = None,
    perturbations: Sequence[str] = (),
    judge: str = LEXICAL,
    samples: int = 1,
    options: Mapping[str, Any] = MappingProxyType({}),
    progress: Callable[[str], None] = print,
    **settings: Unpack[EvaluateArgs],
) -> xr.Dataset:
    """Compare methods with plain answers on benchmarks.

    Args:
        model: a model from `load_model`, or its alias, local folder or hub id.
        out: gets a result folder for each method and benchmark.
        methods: names or YAML files. `plain` is added.
        benchmarks: names of benchmarks.
        ablate: `sage` adds its stages one after the other.
        sweep: `METHOD.PARAMETER=VALUE,VALUE` adds one contender a value.
        perturbations: kinds of `mmprobe.benchmarks.core.perturbations`. Each adds plain answers to disturbed
            questions.
        judge: as in `evaluate`, for the benchmarks that need one.
        samples: number of answers to each question, at a temperature, as in `evaluate`.
        options: options of the benchmarks, such as `{"wording": "paper"}`. Each takes those that it has.
        progress: is called with a line on what comes next.
        settings: as in `evaluate`, but for a method, workers and shards (`LEFT_OUT`). `data` is samples.jsonl of `make-pairs`, or
            the files of the only benchmark. `resume` and `overwrite` keep the finished parts of an earlier call in `out`, or
            replace them.

    Returns:
        The data set of `compare_contenders`.

    Raises:
        InputError: as `evaluate`.

    Example:
        >>> ds = compare("tiny-spd", "results/compare", methods=["sage", "vcd"])        # doctest: +SKIP
        >>> mp.viz.plot(ds).show()                                                      # doctest: +SKIP
    """
    out = Path(out)
    loading, asking, data, folder = sort_settings(
        compare, {**settings, "out": out}, ModelSettings, AskSettings, DataSettings, FolderSettings
    )
    chosen = make_benchmarks(benchmarks, options)
    if isinstance(model, str):
        locate(model)
    check_samples(samples, asking, perturb=perturbations)
    contenders = make_contenders(methods, ablate, sweep, perturbations)
    with lock_folder(out, "comparing into it"):
        for part in [file.parent for file in out.glob("*/**/responses.jsonl")]:
            answers_ledger(part).check(folder.resume, folder.overwrite)
            if folder.overwrite:
                answers_ledger(part).clear()
        judgings = _open_judges(chosen, judge, out / "judge.sqlite")
        answered = any(out.glob("*/**/responses.jsonl"))
        seed = SEED if asking.seed is None else asking.seed
        truths = [(each, load_truth(each, data, out / "data" / each.name, seed, answered)) for each in chosen]
        for benchmark, truth in truths:
            check_questions(benchmark, truth)
        loaded = load_source(model, loading.chosen).model
        return compare_contenders(loaded, contenders, truths, out, asking, judgings, progress, samples)


def _open_judges(benchmarks: list[Benchmark], judge: str, cache: Path) -> dict[str, Judging]:
    """Return the judge of each benchmark that needs one, by name. One of them must."""
    judged = [each for each in benchmarks if each.judged_fields] or benchmarks
    return {each.name: open_judging(each, judge, cache) for each in judged}


def compare_contenders(
    model: Model,
    contenders: Sequence[Contender],
    benchmarks: Sequence[tuple[Benchmark, Any]],
    out: Path,
    settings: AskSettings = AskSettings(),  # noqa: B008
    judgings: Mapping[str, Judging] = MappingProxyType({}),
    progress: Callable[[str], None] = print,
    samples: int = 1,
) -> xr.Dataset:
    """Ask the questions of every benchmark with every contender, and compare the scores.

    Finished parts of an earlier call in `out` are kept.

    Args:
        settings: how all contenders answer, but for their methods. Without a longest answer, the benchmark's own.
        judgings: who labels the answers, by the name of the benchmark; by default its rules.
        samples: number of answers to each question.

    Returns:
        A data set with dimensions `metric` (`benchmark metric`) and `contender`:

        - value, low, high, n, n_groups (metric, contender): as in results.json
        - difference, difference_low, difference_high, n_paired (metric, contender): the metric minus the
          baseline's over the samples of both, with a 95 % paired interval over sets of images
          (`mmprobe.benchmarks.core.results.paired_difference`)
        - value_paired, baseline_paired (metric, contender): the metric and the baseline's over these same samples
        - n_unread (metric, contender): answers that nobody could read
        - p, p_holm (metric, contender): of the exchange test of the difference (`mmprobe.stats.compare.exchange_p`), and adjusted
          by Holm's rule over the contenders and, where a metric is of captions at several lengths, over these. NaN for metrics
          of other parts of the samples
        - seconds (contender): wall-clock time of all answers
        - tokens_per_second (contender)
        - extra_memory (contender): peak memory of a GPU less the memory at the start, in 2^20 bytes; NaN without one. This
          and the two times are NaN for answers that several calls gave.
    """
    scores: dict[tuple[str, str], dict[str, Metric]] = {}
    costs = []
    for contender in contenders:
        folder = out / folder_name(contender.name)
        results = {benchmark.name: folder / benchmark.name for benchmark, _ in benchmarks}
        has_answers = any(any(result.rglob("responses.jsonl")) for result in results.values())
        with measure_cost(model) as cost:
            for benchmark, truth in benchmarks:
                progress(f"{contender.name}: {benchmark.name}")
                own = settings.replace(
                    method=contender.method,
                    parameters=contender.parameters,
                    max_new_tokens=answer_lengths(benchmark, settings.max_new_tokens),
                )
                judging = judgings.get(benchmark.name, RULES)
                about = _describe(model, contender, own)
                about |= {"judge": judging.name, "wording": wording_of(benchmark)}
                result = results[benchmark.name]
                check_no_link(result)
                call = partial(run_several, samples=samples) if samples > 1 else run_benchmark
                metrics, _ = call(
                    benchmark,
                    truth,
                    model,
                    result,
                    about,
                    own,
                    resume=True,
                    title=f"{contender.name}: {benchmark.name}",
                    judging=judging,
                )
                scores[contender.name, benchmark.name] = metrics
        if not has_answers:
            cost.tokens = sum(
                count_tokens(model, file)
                for result in results.values()
                for file in result.rglob("responses.jsonl")
            )
            if model.device.type != "cuda":
                cost.extra_mb = math.nan  # the process keeps what earlier methods took
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


def _describe(model: Model, contender: Contender, settings: AskSettings) -> dict[str, Any]:
    """Return what results.json says about how a contender answers."""
    return {
        "model": model.name,
        "method": contender.method,
        "parameters": contender.parameters,
        "perturbation": contender.perturbation,
        **{
            name: value
            for name, value in settings.record().items()
            if settings.temperature or name == "max_new_tokens"
        },
        **say_compiled(model, settings, [each.name for each in settings.methods if not each.neutral]),
        "repetition_penalty": settings.repetition_penalty,
        "generation": settings_in_force(model, settings.temperature, settings.repetition_penalty),
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
                _row(name, scores[contender, benchmark].get(name), baseline.get(name))
                for contender in contenders
            ]
    values = np.array(list(rows.values()), float)
    columns = dict(zip(_COLUMNS, np.moveaxis(values, -1, 0), strict=True))
    columns["p_holm"] = _adjust(columns["p"], list(rows))
    return xr.Dataset(
        {name: (("metric", "contender"), column) for name, column in columns.items()},
        coords={"metric": list(rows), "contender": contenders},
        attrs={"analysis": "method_comparison", "baseline": contenders[0]},
    )


def _adjust(p: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return p [metric, contender] adjusted by Holm's rule, over the contenders and the lengths of a metric."""
    out = np.full(p.shape, np.nan)
    families: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        families.setdefault(_LENGTH.sub(r"[\1]", name), []).append(row)
    for members in families.values():
        own = p[members]
        own[np.isfinite(own)] = holm(own[np.isfinite(own)])
        out[members] = own
    return out


def _row(name: str, metric: Metric | None, baseline: Metric | None) -> list[float]:
    """Return the numbers of `_COLUMNS`."""
    if metric is None:
        return [np.nan] * 3 + [0, 0] + [np.nan] * 3 + [0] + [np.nan] * 4
    interval = [np.nan if number is None else number for number in (metric.value, metric.low, metric.high)]
    sets = np.nan if metric.sets is None else metric.sets
    change = paired_difference(metric, baseline)
    unread = np.nan if metric.unread is None else metric.unread
    paired = values_on_shared(metric, baseline)
    is_tested = metric is not baseline and ("[" not in name or _LENGTH.search(name))
    p = paired_p(metric, baseline) if is_tested else np.nan
    return [*interval, metric.n, sets, change.value, change.low, change.high, change.n, *paired, unread, p]


def markdown(ds: xr.Dataset, metrics: Sequence[str] | None = None) -> str:
    """Return the comparison as a table: each contender's value, its paired difference to the first with the interval, Holm's p, the
    number of questions, and how many of them are unread. Where not all questions are shared, both values are over those that are.
    """
    contenders = [str(name) for name in ds["contender"].values]
    rows = []
    for metric in ds["metric"].values if metrics is None else metrics:
        baseline = float(ds["value"].sel(metric=metric, contender=contenders[0]))
        cells = [_cell(ds.sel(metric=metric, contender=contender), baseline) for contender in contenders]
        rows.append([metric, *cells])
    for title, name in (("tokens per second", "tokens_per_second"), ("extra memory, MB", "extra_memory")):
        if name in ds and bool(ds[name].notnull().any()):
            cells = ["" if np.isnan(value) else f"{value:.0f}" for value in ds[name].values]
            rows.append([title, *cells])
    return markdown_table(["metric", *contenders], rows)


def _cell(ds: xr.Dataset, baseline_value: float) -> str:
    """Return one metric of one contender as text. The baseline has no difference to itself."""
    value, n = float(ds["value"]), int(ds["n"])
    notes = []
    if str(ds["contender"].values) != ds.attrs["baseline"] and np.isfinite(ds["difference_low"]):
        own, baseline = float(ds["value_paired"]), float(ds["baseline_paired"])
        notes.append(f"{read_estimate(ds, 'difference'):+.3f}")
        notes += [f"p = {p:.2g}"] if np.isfinite(p := float(ds["p_holm"])) else []
        n = int(ds["n_paired"])
        if int(ds["n"]) != n or not math.isclose(value, own) or not math.isclose(baseline, baseline_value):
            value = own
            notes.append(f"against {format_number(baseline, '.3f')} on the same")
    unread = float(ds["n_unread"])
    notes += [f"n = {n}"] if n else []
    notes += [f"{unread:.0f} unread"] if unread > 0 else []
    return format_number(value, ".3f") + (f" ({', '.join(notes)})" if notes else "")


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
