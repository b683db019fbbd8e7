"""The probes of a run, by name."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from mmprobe.registry import Registry, describe_docstring, first_line, load

if TYPE_CHECKING:
    from mmprobe.models import Model


@dataclass(frozen=True)
class Probe:
    """A probe of a run. What must be known of it is written here, since its module may take seconds to import.

    Attributes:
        place: the function, or its place as `module:attribute`: from a run to a data set, or from a model and
            a run.
        needs_model: whether the first argument of the function is the traced model.
        is_slow: whether it takes as long as tracing. Then it is computed where it is named only, and its
            argument `finished` is a folder where it keeps what is finished, or None.
        reads_answers: whether it reads answers again, so that its argument `answers` may be other answers than the
            run's.

    Example:
        >>> Probe("mmprobe.probes.linear:linear_probe", needs_model=False).load().__name__
        'linear_probe'
    """

    place: str | Callable[..., xr.Dataset]
    needs_model: bool = True
    is_slow: bool = False
    reads_answers: bool = False

    def load(self) -> Callable[..., xr.Dataset]:
        """Return the function."""
        return load(self.place) if isinstance(self.place, str) else self.place

    @property
    def about(self) -> str:
        """One line about the probe. It is read from the source, since most modules take seconds to import."""
        if not isinstance(self.place, str) or not self.place.startswith(f"{__package__}."):
            return first_line(self.load())
        module, _, function = self.place.removeprefix(f"{__package__}.").partition(":")
        source = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
        body = ast.parse(source.read_text(encoding="utf-8")).body
        found = next(each for each in body if isinstance(each, ast.FunctionDef) and each.name == function)
        return describe_docstring(ast.get_docstring(found) or "")


PROBES: Registry[Probe] = Registry(
    "probe",
    "probes",
    {
        "linear_probe": Probe("mmprobe.probes.linear:linear_probe", needs_model=False),
        "logit_lens": Probe("mmprobe.probes.logit_lens:logit_lens_run"),
        "image_interchange": Probe(
            "mmprobe.probes.interchange.run:image_interchange_run", is_slow=True, reads_answers=True
        ),
        "attention_knockout": Probe(
            "mmprobe.probes.knockout.attention_knockout:attention_knockout_run",
            is_slow=True,
            reads_answers=True,
        ),
        "attention_routes": Probe(
            "mmprobe.probes.knockout.attention_routes:attention_routes_run", is_slow=True, reads_answers=True
        ),
        "component_patching": Probe(
            "mmprobe.probes.components.run:patch_components_run", is_slow=True, reads_answers=True
        ),
        "attribution_patching": Probe(
            "mmprobe.probes.components.run:attribution_patching_run", is_slow=True, reads_answers=True
        ),
        "head_ranking": Probe(
            "mmprobe.probes.components.ranking:rank_heads", is_slow=True, reads_answers=True
        ),
        "visual_tokens": Probe(
            "mmprobe.probes.visual_tokens.run:visual_tokens_run", is_slow=True, reads_answers=True
        ),
        "features": Probe("mmprobe.probes.features.run:features_run", is_slow=True, reads_answers=True),
        "feature_effects": Probe(
            "mmprobe.probes.features.effects:feature_effects_run", is_slow=True, reads_answers=True
        ),
        "circuit": Probe("mmprobe.probes.circuits.run:circuit_run", is_slow=True, reads_answers=True),
    },
    form="mmprobe.probes.registry:Probe",
)
"""Probes that `mmprobe analyze` computes in addition to the analyses, by name."""


def run_probes(
    model: Model | None = None,
    slow: bool = False,
    finished: Path | None = None,
    answers: Path | None = None,
) -> dict[str, Callable[..., xr.Dataset]]:
    """Return the probes of a run by name. Each is a function of the run, as in `mmprobe.analyses.ANALYSES`.

    Args:
        model: the traced model; None for probes without a model.
        slow: whether to include probes that take as long as tracing.
        finished: folder where such probes keep what is finished, each in a folder of its name. They do not
            measure again what is there.
        answers: answers for probes that read answers again, in place of the run's; the other probes are left out.

    Example:
        >>> list(run_probes())
        ['linear_probe']
    """
    probes: dict[str, Callable[..., xr.Dataset]] = {}
    for name, probe in PROBES.working():
        if (probe.needs_model and model is None) or (probe.is_slow and not slow):
            continue
        if answers is not None and not probe.reads_answers:
            continue
        options: dict[str, Any] = {"finished": finished and finished / name} if probe.is_slow else {}
        options |= {} if answers is None else {"answers": answers}
        probes[name] = partial(probe.load(), *([model] if probe.needs_model else []), **options)
    return probes
