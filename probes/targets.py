"""What a linear probe reads off: a label for each answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable

Target = Literal["faithful", "difference_type"] | Callable[[Trace], Hashable | None]


def presence_of(thing: str) -> Callable[[Trace], str | None]:
    """A target for `linear_probe`: whether any picture of a sample shows a thing, `present` or `absent`.

    Pictures show what the sample's `metadata.objects` say, a list of descriptions for each picture, as `make-pairs`
    writes them; a sample that says nothing of that is not used.

    Args:
        thing: a word, or several that follow each other, of such a description.

    Example:
        >>> ds = linear_probe(run, presence_of("star"), reduce="first")      # doctest: +SKIP
    """

    def presence(trace: Trace) -> str | None:
        listed = trace.sample.metadata.get("objects")
        if listed is None or not trace.sample.images:
            return None
        shown = listed[: len(trace.sample.images)]
        there = any(f" {thing} " in f" {told} " for of_picture in shown for told in of_picture)
        return "present" if there else "absent"

    presence.__name__ = f"presence of {thing}"
    return presence


def _difference_type(trace: Trace) -> str | None:
    differences = trace.sample.metadata.get("differences")
    if not isinstance(differences, list) or len(trace.sample.images) < 2:  # a number of them, perhaps
        return None
    types = {str(change.get("type", "")) if isinstance(change, dict) else "" for change in differences}
    return None if len(types) > 1 or "" in types else next(iter(types), "none")


def labels_of(run: Run, target: Target) -> dict[str, Hashable]:
    """The label of every sample that has one, by id in order."""
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    if target == "faithful":
        faithful = {name: run.faithful(name) for name in sorted(run.ids)}
        words = {True: "faithful", False: "unfaithful"}
        return {name: words[is_] for name, is_ in faithful.items() if is_ is not None}
    of_trace = _difference_type if target == "difference_type" else target
    if not callable(of_trace):
        raise InputError(f"target {target!r}: choose faithful, difference_type or a function of a trace")
    found = {name: of_trace(run[name]) for name in sorted(run.ids)}
    return {name: label for name, label in found.items() if label is not None}


def large_classes(
    run: Run, labels: Mapping[str, Hashable], target: Target, needed: int, left_out: Sequence[str] = ()
) -> list[Hashable]:
    """The classes that hold as many samples as needed, in order."""
    values = list(labels.values())
    counts = {label: values.count(label) for label in sorted(set(values), key=str)}
    large = [label for label, count in counts.items() if count >= needed]
    if len(large) < 2:
        said = ", ".join(f"{count} {label}" for label, count in counts.items()) or "no samples"
        said += f" beside {len(left_out)} with values that are not finite" if left_out else ""
        source = {
            "faithful": "labels come from `faithful` in the samples file or from labels.jsonl in the run's folder",
            "difference_type": "types come from `metadata.differences` in the samples file",
        }.get(name_of(target), "labels come from the function that was given")
        raise NotApplicable(
            f"{run.path}: {name_of(target)} gives {said}; two classes of {needed} samples are needed; {source}"
        )
    return large


def name_of(target: Target) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
