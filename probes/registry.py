"""The probes of a run, by name."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args, get_origin, get_type_hints

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
        parameters: names of the arguments that `--set` gives, for a function whose module takes seconds to import; None to
            read them from the function.

    Example:
        >>> Probe("mmprobe.probes.linear:linear_probe", needs_model=False).load().__name__
        'linear_probe'
    """

    place: str | Callable[..., xr.Dataset]
    needs_model: bool = True
    is_slow: bool = False
    reads_answers: bool = False
    parameters: tuple[str, ...] | None = None

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


def read_parameters(function: Callable[..., Any], given: Iterable[str]) -> dict[str, Any]:
    """Return the types of a function's arguments by name, with those of its `**options`.

    Args:
        given: names of arguments that are left out, since something else gives them.

    Example:
        >>> def measure(run: str, top: int = 5, **options: Unpack[dict]) -> float: ...
        >>> read_parameters(measure, ["run"])
        {'top': <class 'int'>}
    """
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(function).items():
        types |= get_type_hints(get_args(hint)[0]) if get_origin(hint) is Unpack else {name: hint}
    left_out = {"return", *given}
    return {
        name: hint
        for name, hint in types.items()
        if name not in left_out and get_origin(hint) is not Callable
    }


GIVEN = ("run", "source", "model", "check", "answers", "finished")
"""Arguments of probes and analyses that the command line gives by itself."""
_OF_RUNS = ("max_new_tokens", "batch_size")  # of `RunOptions`
_OF_PAIRS = (*_OF_RUNS, "metric", "counterfactual")  # of `PairRunOptions`


def _slow(place: str, *parameters: str) -> Probe:
    """Return a probe that reads answers again and takes as long as tracing."""
    return Probe(f"mmprobe.probes.{place}", is_slow=True, reads_answers=True, parameters=parameters)


PROBES: Registry[Probe] = Registry(
    "probe",
    "probes",
    {
        "linear_probe": Probe(
            "mmprobe.probes.linear:linear_probe",
            needs_model=False,
            parameters=("target", "stream", "reduce", "folds", "seed", "minimum"),
        ),
        "logit_lens": Probe("mmprobe.probes.logit_lens:logit_lens_run", parameters=("minimum",)),
        "image_interchange": _slow("interchange.run:image_interchange_run", *_OF_RUNS, "kinds", "ids"),
        "attention_knockout": _slow(
            "knockout.attention_knockout:attention_knockout_run",
            *(*_OF_RUNS, "group", "layers", "window", "minimum"),
        ),
        "attention_routes": _slow(
            "knockout.attention_routes:attention_routes_run",
            *(*_OF_RUNS, "counterfactual", "sources", "queries", "window", "stride", "replacement"),
        ),
        "component_patching": _slow(
            "components.run:patch_components_run", *_OF_PAIRS, "kind", "tokens", "replacement"
        ),
        "region_patching": _slow(
            "components.region_patching:patch_regions_run", *_OF_RUNS, "counterfactual", "kind", "layers"
        ),
        "attribution_patching": _slow(
            "components.run:attribution_patching_run",
            *(*_OF_PAIRS, "method", "steps", "kind", "tokens", "verify"),
        ),
        "head_ranking": _slow("components.ranking:rank_heads", *_OF_PAIRS, "by", "top"),
        "visual_tokens": _slow("visual_tokens.run:visual_tokens_run", *_OF_RUNS, "layers", "lenses", "top"),
        "features": _slow("features.run:features_run", *_OF_RUNS, "dictionary", "features", "sinks"),
        "feature_effects": _slow(
            "features.effects:feature_effects_run",
            *(*_OF_RUNS, "features", "dictionary", "action", "value"),
        ),
        "circuit": _slow("circuits.run:circuit_run", *_OF_RUNS, "pairs", "steps"),
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
