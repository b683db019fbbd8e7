"""Directions of the residual stream for steering, and erasers, from the labelled answers of a run."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.probes.labelled_vectors import (
    REDUCTIONS,
    Target,
    Vectors,
    read_labels,
    read_vectors,
    select_classes,
    target_name,
)
from mmprobe.samples import image_sets

Reduce = Literal["mean", "last", "first"]
MINIMUM = 5  # answers of each class; our choice


def mean_difference(
    run: Run, target: Target = "faithful", reduce: Reduce = "mean", minimum: int = MINIMUM
) -> xr.Dataset:
    """Return the mean vector of one class of answers minus that of the other, by layer.

    Use it with `--method steer` to test what the model says when the stream moves from one class to the other
    (Marks and Tegmark, 2023, arXiv:2310.06824; Turner et al., 2023, arXiv:2308.10248). A direction that tells
    classes apart need not be one that the model uses: compare it with `random_direction`.

    Args:
        run: traces with `residual/post`.
        target: `faithful`, `difference_type`, `object_presence(name)`, or a function from a trace to a label
            (None for an answer to skip). It must give two classes. In alphabetical order, the direction goes
            from the first class to the second.
        reduce: how the steps become one vector: `mean`, `first` or `last`.
        minimum: answers of each class; our choice, the default is 5.

    Returns:
        A data set with dimensions `layer`, `hidden`, `class`.

        - direction (layer, hidden): in the unit of the stream after the layer
        - n (class), n_groups (class): numbers of answers, and of sets of images

        `ds.to_netcdf(path, engine="h5netcdf")` writes the file that `--set direction=FILE` takes.

    Raises:
        InputError: the run is empty, or the target has more than two classes.
        NotCaptured: `residual/post` was not captured.
        NotApplicable: fewer than two classes have enough answers.

    Example:
        >>> ds = mean_difference(run, lambda trace: trace.answer.startswith("Yes"))    # doctest: +SKIP
        >>> ds.to_netcdf("says-yes.nc", engine="h5netcdf")                             # doctest: +SKIP
    """
    data, second, out = _read_classes(run, target, reduce, minimum)
    difference = data.vectors[second].mean(0, dtype=float) - data.vectors[~second].mean(0, dtype=float)
    out["direction"] = (("layer", "hidden"), difference)
    out.attrs |= {"analysis": "mean_difference", "about": "Mean of one class minus the other, for steering."}
    return out


def probe_direction(
    run: Run, target: Target = "faithful", reduce: Reduce = "mean", minimum: int = MINIMUM
) -> xr.Dataset:
    """Return the weights of a linear probe as a direction, as long as the mean difference, by layer.

    The probe is that of `linear_probe`: a logistic regression (L2, C = 0.01, balanced class weights) on
    standardised vectors. The arguments, dimensions and errors are those of `mean_difference`. The length is
    our choice.

    Example:
        >>> ds = probe_direction(run, "faithful", reduce="last")             # doctest: +SKIP
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    data, second, out = _read_classes(run, target, reduce, minimum)
    directions = []
    for vectors in np.moveaxis(data.vectors.astype(float), 1, 0):
        scaler = StandardScaler().fit(vectors)
        model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000)
        weights = model.fit(scaler.transform(vectors), second).coef_[0] / scaler.scale_
        length = np.linalg.norm(vectors[second].mean(0) - vectors[~second].mean(0))
        directions.append(weights * length / max(np.linalg.norm(weights), 1e-30))
    out["direction"] = (("layer", "hidden"), np.array(directions))
    out.attrs |= {"analysis": "probe_direction", "about": "Weights of a linear probe, for steering."}
    return out


def random_direction(direction: xr.Dataset, seed: int = 0) -> xr.Dataset:
    """Return directions of the same lengths that point anywhere: the control of a steering experiment.

    Example:
        >>> ds = xr.Dataset({"direction": (("layer", "hidden"), [[3.0, 4.0]])}, {"layer": [2]})
        >>> round(float(np.linalg.norm(random_direction(ds).direction)), 6)
        5.0
    """
    values = direction["direction"].values
    drawn = np.random.default_rng(seed).normal(size=values.shape)
    drawn *= np.linalg.norm(values, axis=-1, keepdims=True) / np.linalg.norm(drawn, axis=-1, keepdims=True)
    out = direction.assign(direction=(("layer", "hidden"), drawn))
    about = "A random direction of the same length, for steering."
    return out.assign_attrs(analysis="random_direction", about=about, seed=seed)


def concept_eraser(
    run: Run, target: Target = "faithful", reduce: Reduce = "mean", minimum: int = MINIMUM
) -> xr.Dataset:
    """Return what takes a label out of the residual stream, so that no linear probe can read it, by layer.

    The eraser is LEACE's (Belrose et al., 2023, arXiv:2306.03819) with the library's defaults. Use it with
    `--method steer --set action=remove` to test what the model says when the label cannot be read there. The
    arguments and errors are those of `mean_difference`; more than two classes are allowed.

    Returns:
        A data set with dimensions `layer`, `hidden`, `component`, `class`. The stream x becomes
        x - left right^T (x - mean).

        - left, right (layer, hidden, component); mean (layer, hidden)
        - n (class), n_groups (class): numbers of answers, and of sets of images

    Example:
        >>> ds = concept_eraser(run, "difference_type")                      # doctest: +SKIP
    """
    import torch
    from concept_erasure import LeaceEraser

    data, labels, out = _read_labelled(run, target, reduce, minimum)
    one_hot = torch.from_numpy((labels[:, None] == out["class"].values).astype(float))
    erasers = [
        LeaceEraser.fit(torch.from_numpy(vectors), one_hot)
        for vectors in np.moveaxis(data.vectors.astype(float), 1, 0)
    ]
    matrix, vector = ("layer", "hidden", "component"), ("layer", "hidden")
    out["left"] = (matrix, np.array([eraser.proj_left.numpy() for eraser in erasers]))
    out["right"] = (matrix, np.array([eraser.proj_right.mH.numpy() for eraser in erasers]))
    out["mean"] = (vector, np.array([eraser.bias.numpy() for eraser in erasers if eraser.bias is not None]))
    out.attrs |= {"analysis": "concept_eraser", "about": "Takes a label out of the stream (LEACE)."}
    return out


def _read_classes(
    run: Run, target: Target, reduce: Reduce, minimum: int
) -> tuple[Vectors, np.ndarray, xr.Dataset]:
    """Return the vectors, a mask of the second class [sample], and a data set with the counts."""
    data, labels, out = _read_labelled(run, target, reduce, minimum)
    if out.sizes["class"] > 2:
        names = ", ".join(out["class"].values.tolist())
        raise InputError(
            f"{run.path}: {target_name(target)} gives the classes {names}; a direction joins two"
        )
    return data, labels == out["class"].values[1], out


def _read_labelled(
    run: Run, target: Target, reduce: Reduce, minimum: int
) -> tuple[Vectors, np.ndarray, xr.Dataset]:
    """Return the vectors, their labels [sample] as texts, and a data set with the counts of each class."""
    if reduce not in REDUCTIONS:
        raise InputError(f"reduce {reduce!r}: choose {', '.join(REDUCTIONS)}")
    if minimum < 2:
        raise InputError(f"minimum {minimum}: must be 2 or more")
    labels = read_labels(run, target)
    classes = select_classes(run, labels, target, minimum)
    names = [name for name in labels if labels[name] in classes]
    data = read_vectors(run, names, "residual/post", REDUCTIONS[reduce])
    classes = select_classes(run, {name: labels[name] for name in data.names}, target, minimum, data.left_out)
    texts = np.array([str(labels[name]) for name in data.names])
    groups = image_sets(data.samples)
    out = xr.Dataset(coords={"layer": data.layers, "class": [str(label) for label in classes]})
    of_class = [texts == label for label in out["class"].values]
    out["n"] = ("class", np.array([mask.sum() for mask in of_class]))
    out["n_groups"] = ("class", np.array([len(np.unique(groups[mask])) for mask in of_class]))
    attrs: dict[str, Any] = {
        "run": str(run.path),
        "model": run.config["model"]["name"],
        "target": target_name(target),
        "reduce": reduce,
        "left_out": ", ".join(data.left_out),
        "n_left_out": len(data.left_out),
    }
    out.attrs = attrs
    return data, texts, out
