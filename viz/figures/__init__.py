"""Figures of every analysis."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go
import xarray as xr

from mmprobe.analyses import ANALYSES
from mmprobe.errors import InputError
from mmprobe.files import write_whole
from mmprobe.registry import Registry, check_made, tolerate_plug_ins
from mmprobe.viz.panel import Panel, drop_undefined_intervals, name_labels_in

FIGURES: Registry[Callable[[xr.Dataset], list[Panel]]] = Registry(
    "figures of analysis",
    "figures",
    {name: f"mmprobe.viz.figures.{name}:panels" for name in ANALYSES.shipped}
    | {
        "linear_probe": "mmprobe.viz.figures.linear_probe:panels",
        "linear_probe_by_step": "mmprobe.viz.figures.linear_probe:panels",
        "logit_lens": "mmprobe.viz.figures.logit_lens:panels",
        "image_interchange": "mmprobe.viz.figures.image_interchange:panels",
        "attention_knockout": "mmprobe.viz.figures.knockout:panels",
        "attention_routes": "mmprobe.viz.figures.knockout:route_panels",
        "component_patching": "mmprobe.viz.figures.component_effects:panels",
        "region_patching": "mmprobe.viz.figures.region_patching:panels",
        "attribution_patching": "mmprobe.viz.figures.component_effects:panels",
        "head_ranking": "mmprobe.viz.figures.component_effects:ranking_panels",
        "direct_logit_attribution": "mmprobe.viz.figures.logit_attribution:panels",
        "features": "mmprobe.viz.figures.features:panels",
        "feature_effects": "mmprobe.viz.figures.features:effect_panels",
        "visual_tokens": "mmprobe.viz.figures.visual_tokens:panels",
        "circuit": "mmprobe.viz.figures.circuit:panels",
        "circuit_faithfulness": "mmprobe.viz.figures.circuit_faithfulness:panels",
        "circuit_check": "mmprobe.viz.figures.circuit_faithfulness:check_panels",
        "edge_patching": "mmprobe.viz.figures.circuit_faithfulness:edge_panels",
        "attribution": "mmprobe.viz.figures.attribution:panels",
        "subspace": "mmprobe.viz.figures.subspace:panels",
        "chain_tests": "mmprobe.viz.figures.chain_tests:panels",
        "early_verdict": "mmprobe.viz.figures.early_verdict:panels",
        "diagnosis": "mmprobe.viz.figures.diagnosis:panels",
        "sweep": "mmprobe.viz.figures.sweep:panels",
        "dose_response": "mmprobe.viz.figures.dose_response:panels",
        "calibration": "mmprobe.viz.figures.calibration:panels",
        "caption_lengths": "mmprobe.viz.figures.caption_lengths:panels",
        "method_comparison": "mmprobe.viz.figures.method_comparison:panels",
        "pair_statistics": "mmprobe.viz.figures.pair_statistics:panels",
        "training": "mmprobe.viz.figures.training:panels",
    },
)
"""By the name of an analysis: the function from its data set to its figures."""


def register_analysis(
    name: str,
    analysis: Callable[..., xr.Dataset],
    panels: Callable[[xr.Dataset], list[Panel]] | None = None,
) -> None:
    """Add an analysis: `mmprobe analyze` runs it, and the report has a page of it.

    A package does the same with an entry point of the group `mmprobe.analyses`, and one of the same name in
    `mmprobe.figures`.

    Args:
        name: with underscores; becomes the `analysis` attribute of the data sets.
        analysis: a function from a run to a data set, whose coordinate `sample` has the ids of the samples with values: the
            sets of images are counted from it (`mmprobe.analyses.source.count_sets`). It raises `NotApplicable` where the
            run lacks what it needs.
        panels: a function from the data set to figures. None for a page without figures.

    Raises:
        InputError: another analysis has this name.

    Example:
        >>> mp.register_analysis("answer_length", answer_length)                     # doctest: +SKIP
    """
    ANALYSES.register(name, analysis)
    if panels is not None:
        FIGURES.register(name, panels)


def figures(dataset: xr.Dataset) -> list[Panel]:
    """Return all figures of an analysis, in the order of the report.

    Raises:
        InputError: no analysis or probe returns such a data set.

    Example:
        >>> [panel.title for panel in figures(attention_decay(run))]     # doctest: +SKIP
    """
    if not isinstance(dataset, xr.Dataset):
        raise InputError(
            f"figures of a {type(dataset).__name__}: they are drawn of what an analysis returns, "
            "such as mp.analyses.attention_decay(run)"
        )
    name = str(dataset.attrs.get("analysis"))
    if name in FIGURES:
        panels: list[Panel] = []
        with tolerate_plug_ins():
            draw = FIGURES[name]
            panels = [check_made(draw, each, Panel) for each in check_made(draw, draw(dataset), list)]
            for panel in panels:
                drop_undefined_intervals(panel.figure)
        return [name_labels_in(panel, dataset) for panel in panels]
    if name in ANALYSES:
        return []  # it has numbers alone
    raise InputError(f"no figures for analysis {name!r}; known: {', '.join(FIGURES)}")


def plot(dataset: xr.Dataset) -> go.Figure:
    """Return the first figure of an analysis.

    Example:
        >>> mp.viz.plot(mp.analyses.attention_decay(run)).show()         # doctest: +SKIP
    """
    return figures(dataset)[0].figure


IMAGE_FORMATS = ("svg", "png", "pdf")


def save(source: xr.Dataset | go.Figure, out: str | Path) -> list[Path]:
    """Save a figure, or all figures of an analysis, as SVG, PNG or PDF. It needs the extra `figures`.

    Args:
        source: a data set of an analysis, or a plotly figure.
        out: the file; its ending says which format. Further figures are NAME-2.svg, NAME-3.svg, …

    Returns:
        The files.

    Raises:
        InputError: the ending is another, there are no figures, kaleido or a Chromium is missing, or the folder of
            `out` is.

    Example:
        >>> mp.viz.save(mp.analyses.attention_decay(run), "decay.pdf")   # doctest: +SKIP
        [PosixPath('decay.pdf'), PosixPath('decay-2.pdf')]
    """
    out = Path(out)
    kind = out.suffix.removeprefix(".").lower()
    if kind not in IMAGE_FORMATS:
        raise InputError(f"{out}: figures are saved as {', '.join(IMAGE_FORMATS)}; choose such an ending")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it first")
    drawn = [source] if isinstance(source, go.Figure) else [panel.figure for panel in figures(source)]
    if not drawn:
        raise InputError(f"analysis {source.attrs['analysis']!r}: has numbers alone, and no figure to save")
    files = [
        out if number == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        for number in range(1, len(drawn) + 1)
    ]
    with one_browser() if len(drawn) > 1 else nullcontext():
        write_whole({file: draw_file(figure, kind) for file, figure in zip(files, drawn, strict=True)})
    return files


NO_KALEIDO = "figures as files need kaleido; pip install 'mmprobe[figures]'"


def _check_kaleido() -> None:
    """Raise InputError if kaleido is missing, before anything is computed or written."""
    if find_spec("kaleido") is None:
        raise InputError(NO_KALEIDO)


@contextmanager
def one_browser() -> Iterator[None]:
    """Within the block, figures are drawn in one Chromium; kaleido starts one a figure otherwise, which takes seconds.

    Raises:
        InputError: kaleido or a Chromium is missing, or it does not start.
    """
    _check_kaleido()
    import kaleido

    server = getattr(kaleido, "_global_server", None)
    if server is None or server.is_running():
        yield
        return
    draw_file(go.Figure(), "svg")  # kaleido's server would wait for ever for a browser that does not start
    kaleido.start_sync_server(silence_warnings=True)
    try:
        yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)


def draw_file(figure: go.Figure, kind: str, scale: float = 2) -> bytes:
    """Return a figure as the content of a file, `svg`, `png` or `pdf`; of a PNG, `scale` is pixels a pixel of the figure.

    Raises:
        InputError: kaleido or a Chromium is missing.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The kopts argument is ignored")  # plotly's, of its own options
            return figure.to_image(format=kind, scale=scale)
    except ValueError as error:  # plotly's, without kaleido
        if "kaleido" not in str(error).lower():
            raise
        raise InputError(NO_KALEIDO) from None
    except RuntimeError as error:  # of kaleido, without a browser
        reason = str(error.args[0] if error.args else error).strip().splitlines()[0].rstrip(".")
        raise InputError(f"figures as files need a Chromium that starts ({reason})") from None
