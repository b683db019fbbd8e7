"""The same benchmark at several values of one setting, such as the pixels of an image: what the model gains, and whether it looks more."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.core.evaluate import evaluate
from mmprobe.errors import InputError, unknown_name
from mmprobe.notebook import markdown_table
from mmprobe.samples import image_sets
from mmprobe.settings import AskSettings, ModelSettings
from mmprobe.stats.estimate import Estimate, estimate_mean, format_number
from mmprobe.stats.intervals import FRACTION

MEASURES = {
    "accuracy": "share of right answers",
    "attention": "share of attention on the images",
    "loss": "nat a token that the answer loses without its images",
    "seconds": "seconds for an answer",
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kM])")


class SweepValue(NamedTuple):
    """What is measured at one value of a setting; `seconds` has no interval."""

    accuracy: Estimate[Any]
    attention: Estimate[Any]
    loss: Estimate[Any]
    seconds: float


def read_values(option: str, text: str) -> list[Any]:
    """Return the values of a setting from a text with commas; `256k` is 256,000 and `1M` a million.

    Raises:
        InputError: no model and no way of asking has such a setting, or a value is out of range.

    Example:
        >>> read_values("max_pixels", "256k,1M")
        [256000, 1000000]
    """
    record = next((each for each in (ModelSettings, AskSettings) if option in each.model_fields), None)
    if record is None or option == "name":
        known = [*ModelSettings.model_fields, *AskSettings.model_fields]
        raise unknown_name("setting", option, [name for name in known if name != "name"])
    values = []
    for part in filter(None, text.split(",")):
        amount = _AMOUNT.fullmatch(part)
        number = str(int(float(amount[1]) * {"k": 1_000, "M": 1_000_000}[amount[2]])) if amount else part
        given: dict[str, Any] = {option: number}
        values.append(getattr(record(**given), option))
    return values


def sweep(
    benchmark: str,
    model: str,
    out: str | Path,
    option: str,
    values: Sequence[Any],
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    resume: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> xr.Dataset:
    """Evaluate a model at several values of one setting, with traces, each in a folder of its own.

    Args:
        benchmark, model, options, settings: as in `evaluate`.
        out: gets `OPTION=VALUE` for each value, as `evaluate` writes it with `trace`.
        option: a field of `ModelSettings` or `AskSettings`.
        values: of it; `read_values` reads them from a text.
        resume, overwrite: keep what an earlier call in `out` answered, or replace it.

    Returns:
        accuracy, attention, loss (setting), each with `NAME_low` and `NAME_high`, 95 % intervals over sets of images, and
        seconds (setting): `MEASURES`. `loss` is the mean difference of the log-probability of an answer's tokens with its images and
        without them, over questions with images; NaN where the model reads no prompt without images. `seconds` is NaN where several calls answered.

    Raises:
        InputError: as `evaluate`; or the benchmark has no accuracy, or a value is not of the setting.

    Example:
        >>> sweep("vqa", "tiny-spd", "out", "max_pixels", [20_000, 50_000])["accuracy"]     # doctest: +SKIP
    """
    if len(values) < 2:
        raise InputError(f"sweep: give two or more values of {option}, with commas between")
    if "accuracy" not in make_benchmark(benchmark, options).headline:
        raise InputError(f"sweep {benchmark}: it has no accuracy; sweep one that has, such as vqa or pope")
    from mmprobe.models import load_model

    of_model = {name: settings.pop(name) for name in ModelSettings.model_fields if name in settings}
    found, loaded = [], None
    for value in values:
        loading, asking = of_model, {**settings}
        if option in ModelSettings.model_fields:
            loading, loaded = of_model | {option: value}, None
        else:
            asking[option] = value
        loaded = loaded or load_model(model, **loading)
        folder = Path(out) / f"{option}={value}"
        resumed = resume and folder.exists()
        started = time.monotonic()
        evaluation = evaluate(
            benchmark,
            loaded,
            folder,
            trace=True,
            options=options,
            resume=resumed,
            overwrite=overwrite,
            **asking,
        )
        seconds = float("nan") if resumed else time.monotonic() - started
        found.append(_measure(loaded, evaluation.folder, evaluation.metrics, seconds))
    return _make_dataset(option, values, found, benchmark, model)


def _measure(model: Any, folder: Path, metrics: Mapping[str, Any], seconds: float) -> SweepValue:
    """Return what is measured of the traces of an evaluation."""
    from mmprobe.cache import open_run

    run = open_run(folder / "run")
    sets = image_sets([run.sample(name) for name in run.ids])
    attention = [float(trace.attention_mass.sel(group="visual").mean()) for trace in run]
    lost = np.array([_lose_images(model, run.sample(name), run[name]) for name in run.ids])
    known = np.isfinite(lost)
    return SweepValue(
        metrics["accuracy"],
        estimate_mean(np.array(attention), sets, FRACTION),
        estimate_mean(lost[known], sets[known]),
        seconds / max(len(run), 1),
    )


def _lose_images(model: Any, sample: Any, trace: Any) -> float:
    """Return how many nat a token an answer loses without its images; NaN where there is no such prompt."""
    from mmprobe.models.reading import Reading

    ids = trace.steps["id"].values.tolist()
    if not ids or not sample.images:
        return float("nan")
    text = sample.model_copy(update={"images": [], "regions": []})
    try:
        without = Reading(model, model.batch([text]), [ids]).logprobs()[0]
    except (InputError, TypeError, ValueError):
        return float("nan")
    return float(trace.steps["logprob"].values.mean() - float(without.mean()))


def _make_dataset(
    option: str, values: Sequence[Any], found: Sequence[SweepValue], benchmark: str, model: str
) -> xr.Dataset:
    variables: dict[str, Any] = {"seconds": ("setting", [each.seconds for each in found])}
    for name in ("accuracy", "attention", "loss"):
        estimates = [getattr(each, name) for each in found]
        for suffix, part in (("", "value"), ("_low", "low"), ("_high", "high"), ("_n", "n")):
            numbers = [getattr(each, part) for each in estimates]
            variables[f"{name}{suffix}"] = ("setting", [np.nan if each is None else each for each in numbers])
    for name, text in MEASURES.items():
        variables[name] = (*variables[name], {"long_name": text})
    attrs = {"analysis": "sweep", "option": option, "benchmark": benchmark, "model": model}
    return xr.Dataset(variables, {"setting": [str(value) for value in values]}, attrs)


def markdown(ds: xr.Dataset) -> str:
    """Return the table of a sweep in Markdown, a row a value."""
    rows = []
    for value in ds["setting"].values:
        row = ds.sel(setting=value)
        cells = []
        for name in MEASURES:
            ends = [float(row[f"{name}{end}"]) for end in ("_low", "_high")] if f"{name}_low" in row else []
            between = f" [{format_number(ends[0], '.3f')}, {format_number(ends[1], '.3f')}]" if ends else ""
            cells.append(f"{format_number(float(row[name]), '.3f')}{between}")
        rows.append([value, *cells])
    return markdown_table([ds.attrs["option"], *MEASURES], rows)
