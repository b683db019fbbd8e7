"""What an analysis is of: a run and the samples that count, or a span of their answers: what the model thinks or says."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, update_wrapper, wraps
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError
from mmprobe.registry import check_made, first_line
from mmprobe.samples import image_sets, set_keys
from mmprobe.stats.compare import ByLabel, label_masks
from mmprobe.stats.sets import Sets

_SPAN = inspect.Parameter("span", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")


def analysis_of_run(analyze: Callable[..., xr.Dataset]) -> Callable[..., xr.Dataset]:
    """Return an analysis whose data set says what it is of (`count_sets`), and which takes the keyword `span`.

    `span` is `thinking` or `answer` for the steps of this span alone, None for all. Answers without the span are left out, with
    a warning. The data set's attribute `span` names it. A run without samples, and a span that is unknown, raise InputError;
    NotCaptured says that a data set that the analysis needs cannot be limited.

    Example:
        >>> mp.analyses.attention_decay(run, span="thinking").attrs["span"]        # doctest: +SKIP
        'thinking'
    """

    @wraps(analyze)
    def limited(source: Run | Trace, *args: Any, span: str | None = None, **settings: Any) -> xr.Dataset:
        if isinstance(source, Run) and not len(source):
            raise InputError(f"{source.path}: contains no finished samples")
        source = source if span is None else source.within(span)
        dataset = analyze(source, *args, **settings)
        if not {"sets", "sample"} & set(dataset.attrs):  # `describe` counted them, or it is of one answer
            dataset = count_sets(analyze.__name__, source, dataset)
        return dataset if source.span is None else dataset.assign_attrs(span=source.span)

    signature = inspect.signature(analyze)
    limited.__signature__ = signature.replace(parameters=[*signature.parameters.values(), _SPAN])  # type: ignore[attr-defined]
    return limited


class AddedAnalysis:
    """An analysis of another package: what it returns gets the attributes of `count_sets`.

    Args:
        name: in the registry.
        analyze: a function of a run.
    """

    def __init__(self, name: str, analyze: Callable[..., xr.Dataset]):
        self.name, self.about = name, first_line(analyze)
        update_wrapper(self, analyze)

    def __call__(self, source: Run | Trace, *args: Any, **settings: Any) -> xr.Dataset:
        """Return the data set of a run."""
        analyze = self.__wrapped__  # type: ignore[attr-defined]
        made = check_made(analyze, analyze(source, *args, **settings), xr.Dataset)
        return count_sets(self.name, source, made)


def count_sets(name: str, source: Run | Trace, dataset: xr.Dataset) -> xr.Dataset:
    """Return the data set of an analysis with what it is of: `analysis`, and of a run `run`, `model`, `samples` and `sets`.

    The two numbers are counted from the coordinate `sample`, the ids of the samples with values: `sets` are the sets of images
    (`mmprobe.samples.image_sets`), which are independent. Without the coordinate nothing is counted.

    Raises:
        InputError: the coordinate names a sample that the run does not have.

    Example:
        >>> count_sets("lengths", run, xr.Dataset(coords={"sample": run.ids})).attrs["sets"]     # doctest: +SKIP
        12
    """
    counts: dict[str, Any] = {"analysis": name}
    if isinstance(source, Run):
        counts |= {"run": str(source.path), "model": source.config["model"]["name"]}
        if "sample" in dataset.dims:
            names = list(map(str, dataset["sample"].values.tolist()))
            known = set(source.ids)
            if unknown := [each for each in names if each not in known]:
                raise InputError(
                    f"analysis {name}: the coordinate 'sample' has {unknown[0]!r}, but {source.path} has no such sample"
                )
            sets = image_sets(source.sample(each) for each in names)
            counts |= {"samples": len(names), "sets": len(np.unique(sets))}
    return dataset.assign_attrs(counts)


class SampleRows:
    """The samples of a run that an analysis measured, one after the other: their numbers, labels and sets of images.

    Attributes:
        rows: the numbers of each sample.
        faithful: whether each answer is faithful; None where nobody knows.
        left_out: names of the samples whose values are not finite.

    Example:
        >>> measured = SampleRows("lengths", run)                                    # doctest: +SKIP
        >>> for name, trace in run.stream("lengths"):                              # doctest: +SKIP
        ...     measured.add(trace, {"length": len(trace.steps["id"])})
        >>> measured.rows["length"].mean(), measured.describe()["sets"]            # doctest: +SKIP
    """

    def __init__(self, analysis: str, run: Run):
        self.analysis, self.run = analysis, run
        self.rows = Columns()
        self.faithful: list[bool | None] = []
        self.left_out: list[str] = []
        self._sets = Sets()

    def __len__(self) -> int:
        return len(self.faithful)

    def add(self, trace: Trace, row: Mapping[str, ArrayLike] | None = None) -> None:
        """Add a sample, with a row of numbers if the analysis keeps any."""
        sample = trace.sample
        self._sets.add(sample.id, set_keys(sample))
        self.faithful.append(self.run.faithful(sample.id))
        if row is not None:
            self.rows.append(row)

    @property
    def names(self) -> list[str]:
        """The ids of the samples."""
        return self._sets.names

    @cached_property
    def sets(self) -> np.ndarray:
        """The set of images of each sample, int [sample]; for when all are added."""
        return self._sets.number()

    @property
    def labels(self) -> ByLabel:
        """The samples by label."""
        return ByLabel(label_masks(self.faithful), self.sets)

    def describe(
        self, note: str = "", counts: Mapping[str, int] | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Return the attributes of the data set (`describe`), with further counts, and a note where there is one."""
        about = describe(self.analysis, self.run, len(self), self.sets, self.left_out, **settings)
        return about | dict(counts or {}) | ({"note": note} if note else {})


def describe(
    analysis: str,
    run: Run,
    n: int,
    sets: np.ndarray,
    left_out: Sequence[str],
    *,
    of: str = "samples",
    **settings: Any,
) -> dict[str, Any]:
    """Return what the data set of an analysis says about itself, in its attributes.

    Args:
        analysis: its name.
        n: number of samples that it rests on.
        sets: int [sample], the set of images of each of them.
        left_out: names of the other samples.
        of: what `n` counts: samples or pairs.
        settings: what else there is to know.

    Example:
        >>> describe("attention_ratio", run, 2, np.array([0, 0]), [], draws=20)    # doctest: +SKIP
        {'analysis': 'attention_ratio', 'run': 'runs/demo', 'samples': 2, 'sets': 1, 'model': 'tiny-spd', 'draws': 20, ...}
    """
    return {
        "analysis": analysis,
        "run": str(run.path),
        of: n,
        "sets": len(np.unique(sets)),
        "model": run.config["model"]["name"],
        **settings,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    } | ({"labels": "right or wrong"} if run.labels_say_right else {})


class Columns:
    """Arrays by name, float64 [row, ...], that grow by a row at a time, for the names that all rows have.

    A list of small arrays takes three times the memory, and leaves it in pieces. No row can be added while one of
    the arrays is in use.

    Example:
        >>> columns = Columns()
        >>> columns.append({"ratio": [0.5, 1.0], "n": 3})
        >>> columns.append({"ratio": [0.0, 0.5], "n": 4})
        >>> columns["ratio"].mean(0).tolist(), columns["n"].tolist()
        ([0.25, 0.75], [3.0, 4.0])
    """

    def __init__(self) -> None:
        self._numbers: dict[str, array[float]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column, float64 [row, ...]."""
        return np.frombuffer(self._numbers[name]).reshape(self._count, *self._shapes[name])

    def append(self, row: Mapping[str, ArrayLike]) -> None:
        """Add a row: a value for each name, of the same shape as in other rows.

        Raises:
            ValueError: a shape is not that of the first row.
            BufferError: one of the arrays is in use.
        """
        if not self._count:
            self._shapes = {name: np.shape(values) for name, values in row.items()}
            self._numbers = {name: array("d") for name in row}
        self._numbers = {name: numbers for name, numbers in self._numbers.items() if name in row}
        for name, numbers in self._numbers.items():
            values = np.asarray(row[name], float)
            if values.shape != self._shapes[name]:
                raise ValueError(
                    f"{name} has shape {values.shape}, and {self._shapes[name]} in the first row"
                )
            numbers.frombytes(values.tobytes())
        self._count += 1
