"""The report's explorer page: a list of samples, and a data block for each, small enough to embed.

A block contains the texts, images and maps of a sample, and the parts of its answer that say something false.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import xarray as xr
from annotated_types import Len

from mmprobe.analyses.regions import find_patches, find_views, mask_patches
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError
from mmprobe.files import JsonRecord, check_readable, parse_record
from mmprobe.samples import Region, Sample
from mmprobe.viz.panel import shown_groups
from mmprobe.viz.report.answers import Answers
from mmprobe.viz.report.elements import data_block, dump_json, label_counts, pack_array, render
from mmprobe.viz.report.images import Images
from mmprobe.viz.report.overview import HOW, NO_MAPS


class Explorer(NamedTuple):
    """The explorer.

    Attributes:
        html: the page.
        data: data blocks of its samples.
        links: fragment of each sample in it, by sample id.
    """

    html: str
    data: list[str]
    links: dict[str, str]


def explorer_page(
    run: Run,
    answers: Answers,
    size: int,
    images: Images,
    interchange: xr.Dataset | None = None,
    words: xr.Dataset | None = None,
) -> Explorer:
    """Return the explorer of a run's samples, with at most `size` samples.

    Args:
        answers: those of the report, with the words for the labels.
        images: gets the images of the samples.
        interchange: data set of `image_interchange_run`, or None.
        words: data set of `visual_tokens_run`, or None.
    """
    labels = {name: run.faithful(name) for name in run.ids}
    marks = dict(zip((row.id for row in answers.rows), answers.words, strict=True))
    measured = () if interchange is None else set(interchange["sample"].values.tolist())
    selected = _select_ids(labels, size, measured)
    blocks = sample_blocks(run, selected, images, interchange, words)
    shown = selected[: len(blocks)]
    samples = [
        {
            "block": f"sample-{number}",
            "id": name,
            "label": marks.get(name, answers.names[labels[name]]),
            "question": run.sample(name).question,
        }
        for number, name in enumerate(shown)
    ]
    html = render(
        "explorer.html",
        note=_size_note(
            len(run), len(shown), len(shown) < len(selected), bool(measured), answers.names[False]
        ),
        takes_more=len(shown) == len(selected) < len(run),
        filters=label_counts(str(sample["label"]) for sample in samples),
        samples=samples,
    )
    data = [data_block(f"sample-{number}", block) for number, block in enumerate(blocks)]
    return Explorer(html, data, {name: f"explorer/{name}" for name in shown})


def _size_note(finished: int, shown: int, is_full: bool, is_measured: bool, bad: str) -> str:
    """Return how many samples the explorer shows and why, or nothing if it shows all."""
    if shown == finished:
        return ""
    reason = " More samples would make the file too large." if is_full else ""
    then = "then those with measured causes, in" if is_measured else "then in"
    return f"Shows {shown} of {finished} samples: {bad} samples first, {then} the order of the run.{reason}"


MAX_BYTES = 60_000_000
MAX_HEAD_BYTES = (
    6_000_000  # of attention of single heads; a sample beyond them has the mean over heads; our choice
)
_MASS_UNIT = 65_535
_NO_CAUSE = (
    f"Attention is not use: what this answer loses with other images was not measured. {HOW} measures it; then "
    "write the report again."
)
_SPECIAL_TOKEN = re.compile(r"<\|[^<>\s]+\|>|</?[A-Za-z_]+>|\[[A-Z_]+\]")


def _select_ids(labels: dict[str, bool | None], size: int, measured: Collection[str] = ()) -> list[str]:
    """Return the ids of at most `size` samples, in the order of the run.

    Unfaithful samples come first, then those whose causes were measured.

    Example:
        >>> _select_ids({"a": None, "b": True, "c": False, "d": None}, 3, {"d"})
        ['c', 'd', 'a']
    """
    return sorted(labels, key=lambda name: (labels[name] is not False, name not in measured))[:size]


def sample_blocks(
    run: Run,
    names: list[str],
    images: Images,
    interchange: xr.Dataset | None = None,
    words: xr.Dataset | None = None,
) -> list[str]:
    """Return JSON for each sample, safe inside `<script>`. Stop before the total exceeds `MAX_BYTES`.

    Args:
        images: gets the images of the samples.
        interchange: data set of `image_interchange_run`, or None.
        words: data set of `visual_tokens_run`, or None.

    Example:
        >>> blocks = sample_blocks(run, run.ids[:24], Images())   # doctest: +SKIP
    """
    blocks: list[str] = []
    size, left = 0, MAX_HEAD_BYTES
    false_spans = read_false_spans(run)
    for name in names:
        trace = run[name]
        try:
            cost = _head_bytes(trace)
            with_heads = 0 < cost <= left
            spans = false_spans.get(name, ())
            data = sample_data(trace, run.faithful(name), images, interchange, spans, with_heads, words)
        finally:
            trace.close()
        left -= cost if with_heads else 0
        block = dump_json(data)
        size += len(block)
        if size + images.size > MAX_BYTES:
            break
        blocks.append(block)
    return blocks


def _head_bytes(trace: Trace) -> int:
    """Return the number of bytes that attention of single heads takes, before it is deflated."""
    arrays = {"attention/mass": 2, "attention/visual_head": 1}
    return sum(size * trace.array(name).size for name, size in arrays.items() if name in trace.captured)


def sample_data(
    trace: Trace,
    faithful: bool | None,
    images: Images,
    interchange: xr.Dataset | None = None,
    false_spans: Sequence[tuple[int, int]] = (),
    with_heads: bool = True,
    words: xr.Dataset | None = None,
) -> dict[str, Any]:
    """Return the explorer's data of one trace, ready for JSON.

    Args:
        false_spans: parts of the answer that say something false, as positions of their first character and of
            the one after the last.
        with_heads: whether attention is that of each head, where it was captured, or the mean over heads.
        words: data set of `visual_tokens_run`, or None.

    Returns:
        Texts, images and tokens, and these arrays as base64 of deflated little-endian data:

        - attention.weights: uint8 [step, layer, head, visual], to be multiplied by `attention.scale / 255`. The
          mean over heads is one head, and `attention.heads` is 0.
        - attention.scale: float32 [step, layer, head], the largest weight of each row
        - activation.weights, raw.weights: uint8 [step, visual], full and raw token activation maps, 0 where a map is undefined
        - activation.scale, raw.scale: float32 [step]
        - mass.values: uint16 [step, layer, head, group], to be divided by 65535
        - share: float32 [step, layer], attention on all visual tokens if mass was not captured
        - cause: as `cause_data` returns it
        - words: as `word_data` returns it

        An array that was not captured is None, and `notes` says so.
    """
    sample = trace.sample
    mass = trace.attention_mass if "attention/mass" in trace.captured else None
    heads = with_heads and "attention/visual_head" in trace.captured
    visual = "attention/visual_head" if heads else "attention/visual"
    attention = trace.array(visual).values if visual in trace.captured else None
    if attention is not None and not heads:
        attention = attention[:, :, None]
    captured = [name for name in ("attention/mass", visual) if name in trace.captured]
    layers = trace.array(captured[0])["layer"].values.tolist() if captured else []
    cause = cause_data(trace, interchange)
    maps, reason = _activation_maps(trace) if sample.files else ({}, "")
    return {
        "id": sample.id,
        "question": sample.transcript,
        "truth": sample.answer,
        "faithful": faithful,
        "images": _view_data(trace, sample, images),
        "tokens": _token_data(trace, false_spans),
        "logprob": _round_values(trace.steps["logprob"].values),
        "entropy": _round_values(trace.steps["entropy"].values),
        "layers": layers,
        "attention": None
        if attention is None or not attention.size
        else {"heads": attention.shape[2] if heads else 0, **_quantise(attention)},
        "activation": _quantise(maps["tam"]) if maps else None,
        "raw": _quantise(maps["raw"]) if maps else None,
        "mass": None if mass is None else _pack_mass(mass, with_heads),
        "share": _visual_share(attention) if mass is None else None,
        "cause": cause,
        "words": word_data(trace, words),
        "notes": _capture_notes(trace, mass, attention, with_heads)
        + ([f"No token activation maps: {reason}."] if reason else [])
        + ([_NO_CAUSE] if sample.images and cause is None else [])
        + _find_words_elsewhere(trace, words),
    }


def _pack_mass(mass: xr.DataArray, with_heads: bool) -> dict[str, Any]:
    """Return attention by token group, with the names of the groups and the number of heads (1: their mean)."""
    mass = mass.sel(group=shown_groups(mass))
    mass = mass if with_heads else mass.mean("head", keepdims=True)
    values = np.rint(_MASS_UNIT * np.clip(np.nan_to_num(mass.values), 0, 1))
    return {
        "groups": mass["group"].values.tolist(),
        "heads": mass.sizes["head"],
        "values": pack_array(values, "<u2"),
    }


def _activation_maps(trace: Trace) -> tuple[dict[str, np.ndarray], str]:
    """Return the full and the raw token activation maps [step, visual], or none and the reason why there are none."""
    from mmprobe.analyses.token_activation import activation_maps, read_logits, visual_positions

    try:
        positions, grids = visual_positions(trace)
        tam, raw = activation_maps(read_logits(trace, positions), grids)
    except InputError as error:  # one damaged sample must not stop the report
        return {}, str(error).rstrip(".")
    return ({"tam": tam, "raw": raw} if tam.size else {}), ""


def _capture_notes(
    trace: Trace, mass: xr.DataArray | None, attention: np.ndarray | None, with_heads: bool
) -> list[str]:
    notes = []
    if not trace.sample.files:
        notes.append("This sample has no images.")
    elif not trace.images.sizes["image"]:
        notes.append(f"Maps: {NO_MAPS}.")
    elif attention is None:
        notes.append("attention/visual was not captured, so the heat map is missing.")
    captured = {"attention/mass", "attention/visual_head"} & set(trace.captured)
    if captured and not with_heads:
        notes.append(
            "Attention is the mean over heads: a report has room for the single heads of its first samples."
        )
    if mass is None:
        notes.append("attention/mass was not captured, so the attention by token group is missing.")
    return notes


def _visual_share(attention: np.ndarray | None) -> str | None:
    """Return attention on all visual tokens [step, layer], packed."""
    return None if attention is None else pack_array(attention.astype(np.float32).sum(-1).mean(-1), "<f4")


def _quantise(weights: np.ndarray) -> dict[str, Any]:
    """Return weights [step, ..., visual] in 8 bits, each row relative to its largest weight."""
    levels = np.empty(weights.shape, np.uint8)
    scale = np.empty(weights.shape[:-1], np.float32)
    for step, rows in enumerate(weights):  # by step, because all steps in float32 can take gigabytes
        rows = np.nan_to_num(rows.astype(np.float32), posinf=0)
        scale[step] = rows.max(-1)
        levels[step] = np.rint(255 * rows / np.where(scale[step] > 0, scale[step], 1)[..., None])
    return {"weights": pack_array(levels, "u1"), "scale": pack_array(scale, "<f4")}


def _round_values(values: np.ndarray) -> list[float | None]:
    """Return values rounded for display, with None instead of NaN and infinity."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]


def _token_data(trace: Trace, false_spans: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the text of each generated token, whether it looks special, and whether it says something false.

    A special token looks special and is not in the answer.
    """
    texts = trace.step_texts
    answer = trace.answer
    start = max("".join(texts).find(answer), 0)
    tokens = []
    end = -start
    for text in texts:
        begin, end = end, end + len(text)
        wrong = any(begin < last and first < end for first, last in false_spans)
        special = bool(_SPECIAL_TOKEN.fullmatch(text)) and text not in answer
        tokens.append({"text": text, "special": special, "wrong": wrong})
    return tokens


def _view_data(trace: Trace, sample: Sample, images: Images) -> list[dict[str, Any]]:
    """Return each view as its part of the image: size (height, width) and boxes (x, y, width, height)."""
    data = []
    changed = trace.images_changed  # maps would lie on what the model never saw
    grids, sources = (trace.array(f"images/{name}").values.tolist() for name in ("grid", "source"))
    for grid, image, view in zip(grids, sources, find_views(trace), strict=True):
        left, top, width, height = view.box
        source, problem = (
            (None, f"{view.file.name} changed since it was traced")
            if changed
            else images.add(view.file, (left, top, left + width, top + height), frame=view.frame)
        )
        regions = [
            region.box for region in sample.regions if region.image in range(image, image + view.shown)
        ]
        data.append(
            {
                **({"name": view.name} if view.name else {}),
                "source": source,
                "problem": problem,
                "size": [height, width],
                "grid": grid,
                "regions": [(x - left, y - top, w, h) for x, y, w, h in regions],
            }
        )
    return data


class _Spans(JsonRecord):
    """A line of labels.jsonl."""

    id: str
    false_spans: list[Annotated[list[int], Len(2, 2)]] = []


def read_false_spans(run: Run) -> dict[str, list[tuple[int, int]]]:
    """Return the parts of each answer that say something false, by sample; nothing for a packed run.

    Returns:
        Positions of the part's first character in the answer, and of the one after its last.

    Raises:
        InputError: a line of labels.jsonl has something else than such positions.

    Example:
        >>> read_false_spans(run)["0003-0-same"]                    # doctest: +SKIP
        [(27, 56)]
    """
    file = run.path / "labels.jsonl"
    if run.packed or not file.is_file():
        return {}
    lines = check_readable(file).read_bytes().splitlines()
    records = [
        parse_record(line, _Spans, f"{file}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    return {
        record.id: [(first, last) for first, last in record.false_spans]
        for record in records
        if record.false_spans
    }


def cause_data(trace: Trace, ds: xr.Dataset | None) -> dict[str, Any] | None:
    """Return the explorer's data on what one answer loses with other images, or None if it was not measured.

    Returns:
        - steps: float32 [step], nat that a token loses at most with all images exchanged, packed
        - losses: float32 [region, step], with one region exchanged, packed; all images without regions
        - cells: for each region the numbers of the visual tokens that were exchanged
        - visual: number of visual tokens
        - regions: whether there are regions
        - free: what its free tokens lose, as `_free_tokens` returns it
    """
    steps = trace.steps.sizes["step"]
    if ds is None or trace.id not in ds["sample"].values:
        return None
    row = ds.sel(sample=trace.id)
    effect = row["effect"].values
    if np.isfinite(effect).sum() != steps or not np.isfinite(effect[:steps]).all():
        return None  # of another answer to the same question
    most = row["effect_most"].values if "effect_most" in row else effect
    grids = [(int(height), int(width)) for height, width in trace.array("images/grid").values]
    visual = sum(height * width for height, width in grids)
    cells, losses = [], []
    for number, (image, box) in enumerate(
        zip(row["region_image"].values.tolist(), row["region_box"].values.tolist(), strict=True)
    ):
        if image >= 0:
            patches = find_patches(trace, [Region(image=image, box=box)])
            cells.append(np.flatnonzero(mask_patches(patches, grids)).tolist())
            losses.append(row["effect_by_region_step"].values[number, :steps])
    has_regions = bool(cells)
    if not has_regions:
        cells, losses = [list(range(visual))], [most[:steps]]
    return {
        "steps": pack_array(most[:steps], "<f4"),
        "losses": pack_array(np.array(losses), "<f4"),
        "cells": cells,
        "visual": visual,
        "regions": has_regions,
        "free": _free_tokens(row) if "unused" in row else None,
    }


def _free_tokens(row: xr.Dataset) -> dict[str, Any]:
    """Return what one answer's free tokens lose, from its part of the data set.

    Returns:
        - tokens: steps of the free tokens
        - effect, floor: nat that they lose with other images, and with images of the same content
        - kinds, others: names of the kinds of other images, minimal pairs first, and the number of sets
        - unused: whether no other images change the answer; None with too few sets to say so
    """
    shown = row["kind"].values[np.isfinite(row["effect_by_kind"].values)].tolist()
    unused = float(row["unused"])
    return {
        "tokens": np.flatnonzero(row["free"].values == 1).tolist(),
        "effect": float(row["free_effect"]),
        "floor": float(row["free_floor"]),
        "kinds": sorted(shown, key=lambda kind: kind != "minimal"),
        "others": int(row["n_others"]),
        "unused": bool(unused) if np.isfinite(unused) else None,
    }


def find_words(datasets: Iterable[xr.Dataset]) -> xr.Dataset | None:
    """Return the data set of `visual_tokens_run`, or None."""
    named = (ds for ds in datasets if ds.attrs.get("analysis") == "visual_tokens")
    return next((ds for ds in named if {"word", "cell_image", "image_path"} <= set(ds)), None)


def word_data(trace: Trace, ds: xr.Dataset | None) -> dict[str, Any] | None:
    """Return the explorer's data on what lenses read at the visual tokens of one sample, or None if it was not read.

    Returns:
        - lenses, layers: their names and numbers
        - texts: the words
        - places: number of words of each cell
        - ids: uint32 [lens, layer, visual, place], the number of each word in texts, packed
    """
    if ds is None or trace.id not in ds["sample"].values:
        return None
    row = ds.sel(sample=trace.id)
    cells = int((row["cell_image"].values >= 0).sum())
    if cells != sum(int(height * width) for height, width in trace.array("images/grid").values):
        return None  # of other images
    words = row["word"].transpose("lens", "layer", "cell", "place").values[:, :, :cells].astype(str)
    texts, ids = np.unique(words, return_inverse=True)
    return {
        "lenses": row["lens"].values.tolist(),
        "layers": row["layer"].values.tolist(),
        "texts": texts.tolist(),
        "places": words.shape[-1],
        "ids": pack_array(ids.reshape(words.shape), "<u4"),
    }


def _find_words_elsewhere(trace: Trace, ds: xr.Dataset | None) -> list[str]:
    """Return a note that names the sample with the words of the same images, where this one has none."""
    own = [str(path) for path in trace.sample.images]
    if ds is None or not own or trace.id in ds["sample"].values:
        return []
    rows = zip(ds["sample"].values.tolist(), ds["image_path"].values.tolist(), strict=True)
    found = next((name for name, paths in rows if [path for path in paths if path] == own), None)
    return [] if found is None else [f"Words of these images' visual tokens are at sample {found}."]
