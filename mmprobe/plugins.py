"""What other packages add to mmprobe: families, analyses and benchmarks, by a call or by an entry point."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from mmprobe.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from mmprobe.benchmarks.core.benchmark import Benchmark
    from mmprobe.models.families import Family
    from mmprobe.viz import Panel

GROUPS = ("families", "analyses", "figures", "benchmarks")
"""The entry point groups are `mmprobe.families` and so on."""

_added: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}


def register_family(family: Family) -> None:
    """Add the declaration of a model family; it comes before those that ship with mmprobe.

    A package does the same with an entry point of the group `mmprobe.families` whose object is the family.

    Raises:
        InputError: another family was registered under its name.

    Example:
        >>> mp.register_family(Family(name="mine", model_types=("my_vlm",), ...))    # doctest: +SKIP
    """
    _add("families", family.name, family)


def register_analysis(
    name: str,
    analysis: Callable[..., xr.Dataset],
    panels: Callable[[xr.Dataset], list[Panel]] | None = None,
) -> None:
    """Add an analysis: `mmprobe analyze` runs it, and the report has a page of it.

    A package does the same with an entry point of the group `mmprobe.analyses`, and one of the same name in
    `mmprobe.figures`.

    Args:
        name: with underscores; the `analysis` attribute of the data sets.
        analysis: a function from a run to a data set. It raises `NotApplicable` where the run lacks what it
            needs.
        panels: a function from the data set to figures. None for a page without figures.

    Raises:
        InputError: another analysis has this name.

    Example:
        >>> mp.register_analysis("answer_length", answer_length)                     # doctest: +SKIP
    """
    from mmprobe.analyses import ANALYSES

    if name in ANALYSES:
        raise InputError(f"analysis {name!r}: mmprobe has one of this name; choose another")
    _add("analyses", name, analysis)
    if panels is not None:
        _add("figures", name, panels)


def register_benchmark(benchmark: Benchmark[Any]) -> None:
    """Add a benchmark: `mmprobe bench NAME` and `mmprobe.benchmarks.evaluate` take it.

    A package does the same with an entry point of the group `mmprobe.benchmarks` whose object is the record.

    Raises:
        InputError: another benchmark has its name.

    Example:
        >>> mp.register_benchmark(Benchmark(name="mine", about="Mine.", ...))        # doctest: +SKIP
    """
    from mmprobe.benchmarks.core.benchmark import NAMES

    if benchmark.name in NAMES:
        raise InputError(f"benchmark {benchmark.name!r}: mmprobe has one of this name; choose another")
    _add("benchmarks", benchmark.name, benchmark)


def _add(group: str, name: str, thing: Any) -> None:
    if _added[group].get(name, thing) is not thing:
        raise InputError(f"{group}: {name!r} is registered already")
    _added[group][name] = thing


def find_added(group: str) -> dict[str, Any]:
    """Return what was added to a group, by name: by calls of this process, then by entry points.

    Raises:
        InputError: an entry point cannot be imported.

    Example:
        >>> find_added("families")
        {}
    """
    return _load_entry_points(group) | _added[group]


@cache
def _load_entry_points(group: str) -> dict[str, Any]:
    loaded = {}
    for entry in entry_points(group=f"mmprobe.{group}"):
        try:
            loaded[entry.name] = entry.load()
        except Exception as error:  # another package's code: anything can go wrong in it
            raise InputError(
                f"entry point {entry.value} of mmprobe.{group}: cannot be imported ({error}); repair or uninstall its package"
            ) from None
    return loaded
