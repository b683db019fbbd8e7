"""The claims of SPD-Faith Bench on a run, with what happens under the interventions that they imply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

    from mmprobe.cache import Run
    from mmprobe.models import Model
    from mmprobe.samples import Sample


def find_claims(run: Run, model: Model | None = None, **settings: Any) -> list[xr.Dataset]:
    """Return the data set of `findings`, and with a model also that of the interventions.

    Args:
        model: the model of the run; None for the claims' correlations alone.
        settings: arguments of `claim_interventions`.

    Raises:
        InputError: an argument is out of range, or another model made the run.
    """
    from mmprobe.analyses import ANALYSES, analyze_all, findings
    from mmprobe.analyses.findings import CLAIMED

    datasets, _ = analyze_all(run, {name: ANALYSES[name] for name in CLAIMED})
    interventions = [] if model is None else [intervene(run, model, **settings)]
    return [findings(run, datasets + interventions), *interventions]


def intervene(run: Run, model: Model, **settings: Any) -> xr.Dataset:
    """Return the data set of `claim_interventions`; answers about drawn images are checked."""
    from mmprobe.benchmarks.synthetic.check import check_sample
    from mmprobe.probes import claim_interventions

    def check(text: str, sample: Sample) -> bool | None:
        verdict = check_sample(text, sample)
        return None if verdict is None else verdict.faithful

    drawn = any(check_sample("", run.sample(name)) is not None for name in run.ids)
    return claim_interventions(model, run, check if drawn else None, **settings)
