"""Measure the case of docs/case-study.md, and write its tables, its numbers and its figures; the prose is in the page.

    make real
    PYTHONPATH=scripts:research python research/case_study.py --model build/real

What is measured stays in `build/case-study`, so a second call draws and writes only. Without that folder it takes
about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import torch
import xarray as xr
from findings_figures import draw_png
from page import fill
from PIL import Image
from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from torch import Tensor

import mmprobe as mp
from mmprobe.benchmarks.things.scene import (
    PlacedThing,
    ThingEdit,
    ThingScene,
    draw_scene,
    edit_regions,
    recolour,
    render,
    thing_box,
)
from mmprobe.cache import Run, Trace
from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.probes.answers import read_answers
from mmprobe.probes.cross_validation import measures_with_interval, predict_held_out, split_samples
from mmprobe.probes.tokens import touched_cells
from mmprobe.samples import Region, Sample
from mmprobe.stats.estimate import Estimate, estimate_mean, stack_estimates
from mmprobe.stats.intervals import QUANTITY
from mmprobe.traces.capture import CaptureSpec
from mmprobe.viz.panel import apply_layout, error_bars, interval_band

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "case-study.md"
FIGURES = ROOT / "docs" / "case-study"
SEED = 5_000_000  # of scenes that no training and no other page uses
AXES = {"row": ("top", "middle", "bottom"), "column": ("left", "center", "right")}
CAPTURE = CaptureSpec(datasets=["residual/pre"], positions="all", groups=["visual"])
LITTLE = CaptureSpec(datasets=["attention/mass"])  # where the answer is all that is needed
PROBED = {"tower": (0, 8), "thing": (0, 9, 15, 27), "query": (0, 15, 24, 27)}  # layers
# that are patched; what enters layer 0 is what the projector makes of the tower's last layer
LAYERS = (0, 14, 20, 22, 23, 25, 27)
BLOCK = 32  # pixels across, of two patches, that are exchanged at a time
BLOCK_SCENES = 4  # whose blocks are exchanged one by one
COLOURS = {"row": "#0072b2", "column": "#d55e00", "colour": "#009e73"}  # after Okabe and Ito
BATCH = 8


class GridCase(NamedTuple):
    """A scene with one thing that is asked about, and the same scene with the thing in another row and in another column.

    Attributes:
        cell: where the thing is, 0 to 8 in reading order.
        samples: the question about the scene, `own`. `row` and `column` are the same with the scene in which the thing is
            moved as counterfactual, and both places of the thing as regions; `colour` asks for the colour, and the thing has
            another one in its counterfactual. `flipped` is about the transposed image,
            whose columns are the rows of the scene, and `choice` asks for the column alone.
    """

    cell: int
    samples: dict[str, Sample]


def draw_cases(folder: Path, repeats: int) -> list[GridCase]:
    """Write the scenes, as many with the thing in each cell, and return the questions *where*."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for cell in range(9):
        for number in range(repeats):
            rng = np.random.default_rng([SEED, cell, number])
            row, column = divmod(cell, 3)
            step = 1 + int(rng.integers(2))
            places = {"row": (row + step) % 3 * 3 + column, "column": row * 3 + (column + step) % 3}
            scene = draw_scene(rng, 2)
            thing, other = (replace(each) for each in scene.things)
            free = [each for each in range(9) if each not in (cell, *places.values())]
            other = replace(other, cell=free[rng.integers(len(free))])
            thing = replace(thing, cell=cell)
            scene = replace(scene, things=(thing, other))
            name, samples = f"{cell}-{number}", dict[str, Sample]()
            question = f"Where is the {thing.name}?"
            path = _write(folder / f"{name}.png", scene)
            objects = [[_describe(each) for each in scene.things]]
            samples["own"] = Sample(id=name, images=[path], question=question, metadata={"objects": objects})
            flipped = folder / f"{name}-flipped.png"
            Image.open(path).transpose(Image.Transpose.TRANSPOSE).save(flipped)
            samples["flipped"] = samples["own"].model_copy(update={"images": [flipped]})
            choice = f"Is the {thing.name} on the left, in the center or on the right?"
            samples["choice"] = samples["own"].model_copy(update={"question": choice})
            for axis, place in places.items():
                edit = ThingEdit(thing, replace(thing, cell=place))
                shown = _write(folder / f"{name}-{axis}.png", edit.apply(scene))
                metadata = {"objects": objects, "counterfactual": [shown.name]}
                samples[axis] = samples["own"].model_copy(
                    update={"id": f"{name}-{axis}", "regions": edit_regions(edit, [0]), "metadata": metadata}
                )
            edit = recolour(rng, thing)
            shown = _write(folder / f"{name}-colour.png", edit.apply(scene))
            metadata = {"objects": objects, "counterfactual": [shown.name]}
            fields = {"id": f"{name}-colour", "question": f"What color is the {thing.name}?"}
            fields |= {"regions": edit_regions(edit, [0]), "metadata": metadata}
            samples["colour"] = samples["own"].model_copy(update=fields)
            cases.append(GridCase(cell, samples))
    return cases


def _write(path: Path, scene: ThingScene) -> Path:
    Image.fromarray(render(scene)).save(path)
    return path


def _describe(thing: PlacedThing) -> dict[str, Any]:
    return {"name": thing.name, "colour": thing.colour, "bbox": thing_box(thing)}


def read_place(answer: str) -> dict[str, int]:
    """Return the row and the column that an answer names, -1 for none; *center* alone is the middle of both.

    Example:
        >>> read_place("The shoe is in the top center."), read_place("It is in the center.")
        ({'row': 0, 'column': 1}, {'row': 1, 'column': 1})
    """
    words = re.findall(r"\w+", answer.lower())
    place = {axis: next((names.index(w) for w in words if w in names), -1) for axis, names in AXES.items()}
    if place["column"] == 1 and place["row"] < 0:
        place["row"] = 1
    return place


def place_steps(trace: Trace) -> dict[str, int] | None:
    """Return the step of an answer that decides each axis; None without both. Of *center* alone it is one step."""
    texts = [str(text).strip() for text in trace.tokens["text"].values[-trace.steps.sizes["step"] :]]
    found = {axis: [step for step, text in enumerate(texts) if text in names] for axis, names in AXES.items()}
    if not found["column"]:
        return None
    column = found["column"][0]
    return {"row": found["row"][0] if found["row"] else column, "column": column}


# Measurements, each kept in a file.


def measure_answers(run: Run, name: str, cases: Sequence[GridCase]) -> xr.Dataset:
    """Return what is said of each axis, int [case, axis], beside what is true of the scene."""
    said = [list(read_place(run[case.samples[name].id].answer).values()) for case in cases]
    truth = [divmod(case.cell, 3) for case in cases]
    return xr.Dataset(
        {"said": (("case", "axis"), said), "truth": (("case", "axis"), truth)},
        {"case": [case.samples["own"].id for case in cases], "axis": list(AXES)},
    )


def measure_interchange(model: Model, run: Run, cases: Sequence[GridCase], finished: Path) -> xr.Dataset:
    """Return what the words of each axis lose when the thing is moved along each axis, whole or one place at a time.

    nat [case, moved, word, exchanged]: NaN where an answer names no place.
    """
    exchanged = ("both places", "old place", "new place")
    loss = np.full((len(cases), 2, 2, len(exchanged)), np.nan)
    steps = [place_steps(run[case.samples["own"].id]) for case in cases]
    answers = {
        case.samples["own"].id: run[case.samples["own"].id].steps["id"].values.tolist() for case in cases
    }
    for moved, axis in enumerate(AXES):
        samples = [case.samples[axis] for case in cases]
        given = {case.samples[axis].id: answers[case.samples["own"].id] for case in cases}
        options: Any = {"answers": given, "batch_size": BATCH, "finished": finished / f"moved-{axis}"}
        ds = mp.probes.image_interchange_run(model, samples, ["minimal"], **options)
        for number, case in enumerate(cases):
            if steps[number] is None or case.samples[axis].id not in ds.sample.values:
                continue
            own = ds.sel(sample=case.samples[axis].id)
            for word, name in enumerate(AXES):
                step = (steps[number] or {})[name]
                loss[number, moved, word] = [
                    float(own["effect"][step]),
                    *own["effect_by_region_step"][:, step].values.tolist(),
                ]
    dims = ("case", "moved", "word", "exchanged")
    return xr.Dataset(
        {"loss": (dims, loss)}, {"moved": list(AXES), "word": list(AXES), "exchanged": list(exchanged)}
    )


def measure_blocks(model: Model, run: Run, cases: Sequence[GridCase], finished: Path) -> xr.Dataset:
    """Return what the word of an axis loses when one block of two by two patches is that of the scene with the thing moved along it.

    nat [case, axis, y, x]: 0 where both scenes are equal in a block, NaN where an answer names no place.
    """
    side = render(draw_scene(np.random.default_rng(SEED), 2)).shape[0] // BLOCK
    loss = np.zeros((len(cases), 2, side, side))
    for place, axis in enumerate(AXES):
        blocks = {case.samples[axis].id: _find_blocks(case.samples[axis]) for case in cases}
        samples = [
            case.samples[axis].model_copy(update={"regions": blocks[case.samples[axis].id]}) for case in cases
        ]
        given = {
            case.samples[axis].id: run[case.samples["own"].id].steps["id"].values.tolist() for case in cases
        }
        options: Any = {"answers": given, "batch_size": BATCH, "finished": finished / f"blocks-{axis}"}
        ds = mp.probes.image_interchange_run(model, samples, ["minimal"], **options)
        for number, case in enumerate(cases):
            steps, name = place_steps(run[case.samples["own"].id]), case.samples[axis].id
            if steps is None:
                loss[number, place] = np.nan
                continue
            losses = ds["effect_by_region_step"].sel(sample=name)[:, steps[axis]].values
            for region, value in zip(blocks[name], losses, strict=False):
                loss[number, place, region.box[1] // BLOCK, region.box[0] // BLOCK] = value
    return xr.Dataset(
        {"loss": (("case", "axis", "y", "x"), loss)},
        {"case": [case.samples["own"].id for case in cases], "axis": list(AXES)},
    )


def _find_blocks(sample: Sample) -> list[Region]:
    """Return the blocks in which a sample's image and its counterfactual differ."""
    own = sample.images[0]
    images = [
        np.asarray(Image.open(path).convert("RGB"))
        for path in (own, own.parent / sample.metadata["counterfactual"][0])
    ]
    differ = (images[0] != images[1]).any(-1)
    side = len(differ) // BLOCK
    blocks = differ.reshape(side, BLOCK, side, BLOCK).any((1, 3))
    return [
        Region(image=0, box=(x * BLOCK, y * BLOCK, BLOCK, BLOCK)) for y, x in np.argwhere(blocks).tolist()
    ]


def measure_probes(model: Model, run: Run, cases: Sequence[GridCase]) -> xr.Dataset:
    """Return the accuracy of a linear probe of each axis, by what it reads.

    It reads the mean over the patches that the thing's box touches, after each layer of the tower, after the projector
    and before each layer of the decoder; and the queries of the words of each axis, before each layer.
    """
    hidden = {"tower": list[np.ndarray](), "thing": list[np.ndarray](), "query row": [], "query column": []}
    samples = [case.samples["own"] for case in cases]
    for sample in samples:
        trace = run[sample.id]
        prompt = model.prompt(sample)
        box = sample.metadata["objects"][0][0]["bbox"]
        cells = touched_cells(prompt, Region(image=0, box=box))
        hidden["tower"].append(_read_tower(model, sample)[list(PROBED["tower"])][:, cells].mean(1))
        stream = trace.array("prompt/residual_pre").transpose("layer", ...).values.astype(np.float32)
        hidden["thing"].append(stream[list(PROBED["thing"])][:, cells].mean(1))
        steps = place_steps(trace)
        queries = trace.residual_pre.transpose("layer", "step", "hidden").values.astype(np.float32)
        for axis in AXES:
            hidden[f"query {axis}"].append(
                queries[list(PROBED["query"]), -1 if steps is None else steps[axis]]
            )
    out = {}
    for place, vectors in hidden.items():
        stacked = np.stack(vectors)  # [case, layer, hidden]
        for axis, number in (("row", 0), ("column", 1)):
            if place.startswith("query") and place != f"query {axis}":
                continue
            labels = [divmod(case.cell, 3)[number] for case in cases]
            split = split_samples(samples, labels, [0, 1, 2], 5, 0, "scenes")
            scores = [
                measures_with_interval(
                    predict_held_out(stacked[:, layer], [split.truth], split.fold)[0], split
                )[0]
                for layer in range(stacked.shape[1])
            ]
            out |= stack_estimates(scores).variables(
                f"{place.split()[0]} {axis}", f"{place.split()[0]}_layer"
            )
    return xr.Dataset(out)


def _read_tower(model: Model, sample: Sample) -> np.ndarray:
    """Return the patches of an image after each layer of the tower, float32 [layer, patch, hidden]."""
    with torch.no_grad():
        pixels = model.prepare(sample)["pixel_values"]
        states = model.hf.model.vision_tower(pixels, output_hidden_states=True).hidden_states
    return torch.stack([state[0] for state in states]).float().cpu().numpy()


def measure_patching(
    model: Model, run: Run, answered: str, cases: Sequence[GridCase], name: str, finished: Path
) -> xr.Dataset:
    """Return how often what is said follows the patches of a thing that was moved or has another colour, by layer.

    Where no answer would say anything else of the other scene, there is `n` alone, which is 0.

    Args:
        answered: the name of the questions that the run answers.
        name: the name of the same questions with their counterfactual.
    """
    given = {
        case.samples[name].id: run[case.samples[answered].id].steps["id"].values.tolist() for case in cases
    }
    options: Any = {"answers": given, "batch_size": BATCH, "finished": finished}
    samples = [case.samples[name] for case in cases]
    try:
        return mp.probes.patch_regions_run(model, samples, layers=LAYERS, **options)
    except NotApplicable:
        return xr.Dataset({"n": 0}, attrs={"n_unmoved": len(cases)})


def measure_order(model: Model, run: Run, cases: Sequence[GridCase]) -> xr.Dataset:
    """Return which row and column the model says when the visual tokens are transposed, int [case, axis].

    The token of row r and column c takes the place of that of row c and column r in the sequence. If the model reads a place
    from the features, it says what it said; if it reads it from the order, it says row and column exchanged.
    """
    out = np.full((len(cases), 2), -1)
    for number, case in enumerate(cases):
        sample = case.samples["own"]
        ids = run[sample.id].steps["id"].values.tolist()
        steps = place_steps(run[sample.id])
        if steps is None:
            continue
        reading = read_answers(model, [sample], [ids])
        visual = torch.from_numpy(reading.row.prompt.visual_positions)
        side = int(len(visual) ** 0.5)
        swapped = visual.reshape(side, side).T.flatten()

        def transpose(value: Tensor, visual: Tensor = visual, swapped: Tensor = swapped) -> Tensor:
            changed = value.clone()
            changed[:, visual] = value[:, swapped]
            return changed

        with torch.no_grad():
            logits = reading.logits({("residual", 0): transpose})[0]
        for place, (axis, names) in enumerate(AXES.items()):
            words = (
                ["top", "center", "bottom"] if steps["row"] == steps["column"] and axis == "row" else names
            )
            tokens = [model.tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in words]
            out[number, place] = int(logits[steps[axis], tokens].argmax())
    names = [case.samples["own"].id for case in cases]
    return xr.Dataset({"said": (("case", "axis"), out)}, {"case": names, "axis": list(AXES)})


# The page.


def draw_answers(ds: xr.Dataset) -> go.Figure:
    """Draw how often each true row or column is said to be which."""
    figure = make_subplots(1, 2, subplot_titles=[f"{axis}s" for axis in AXES], horizontal_spacing=0.2)
    for place, (axis, names) in enumerate(AXES.items()):
        said, truth = (ds[name].sel(axis=axis).values for name in ("said", "truth"))
        counts = [[int(((truth == true) & (said == each)).sum()) for each in range(3)] for true in range(3)]
        figure.add_heatmap(
            x=list(names), y=list(names), z=counts, text=counts, texttemplate="%{text}", colorscale="Blues",
            showscale=False, row=1, col=place + 1,
        )  # fmt: skip
        figure.update_xaxes(title="said", row=1, col=place + 1)
        figure.update_yaxes(title="true", autorange="reversed", row=1, col=place + 1)
    return apply_layout(figure, 320)


def draw_interchange(ds: xr.Dataset) -> go.Figure:
    figure = go.Figure()
    for moved in AXES:
        loss = ds["loss"].sel(moved=moved, exchanged="both places").values
        mean = stack_estimates([_mean_of_known(column) for column in loss.T])
        figure.add_bar(
            x=[f"word of the {axis}" for axis in AXES], y=mean.value, name=f"thing moved to another {moved}",
            marker={"color": COLOURS[moved]}, error_y=error_bars(mean),
        )  # fmt: skip
    figure.update_yaxes(title="log-probability lost, nat")
    return apply_layout(figure.update_layout(barmode="group"), 320)


def draw_blocks(ds: xr.Dataset, cases: Sequence[GridCase]) -> go.Figure:
    """Draw scenes with what the words lose by block; the first row moves the thing to another row, the second to another column."""
    by_id = {case.samples["own"].id: case.samples["own"] for case in cases}
    names = ds["case"].values.tolist()
    titles = [by_id[name].question for name in names] + [""] * len(names)
    figure = make_subplots(
        2, len(names), subplot_titles=titles, horizontal_spacing=0.02, vertical_spacing=0.04
    )
    largest = float(np.nanmax(np.abs(ds["loss"].values)))
    centres = (np.arange(ds.sizes["x"]) + 0.5) * BLOCK - 0.5
    for column, name in enumerate(names, 1):
        with Image.open(by_id[name].images[0]) as image:
            pixels = np.asarray(image.convert("RGB"))
        for row, axis in enumerate(AXES, 1):
            loss = ds["loss"].sel(case=name, axis=axis).values
            figure.add_image(z=pixels, row=row, col=column)
            figure.add_heatmap(
                x=centres, y=centres, z=np.where(loss == 0, np.nan, loss), zmin=-largest, zmax=largest, opacity=0.65,
                colorscale="RdBu_r", colorbar={"title": "nat lost"}, showscale=row == column == 1,
                texttemplate="%{z:.1f}", textfont={"size": 10}, row=row, col=column,
            )  # fmt: skip
            figure.update_yaxes(title=f"word of the {axis}" if column == 1 else "", row=row, col=column)
    hidden = {"showticklabels": False, "showgrid": False, "ticks": ""}
    figure.update_xaxes(**hidden).update_yaxes(**hidden)
    return apply_layout(figure, 520).update_layout(margin={"l": 40, "r": 8, "t": 40, "b": 8})


def draw_shares(rows: dict[str, Estimate[Any]], title: str, reference: float) -> go.Figure:
    """Draw a share with its interval on each line."""
    share = stack_estimates(list(rows.values()))
    figure = go.Figure()
    figure.add_scatter(
        x=share.value, y=list(rows), mode="markers", marker={"color": COLOURS["column"], "size": 10},
        error_x=error_bars(share, symmetric=False, thickness=2, width=8),
    )  # fmt: skip
    figure.add_vline(x=reference, line={"width": 1, "dash": "dot", "color": "#888888"})
    figure.update_xaxes(title=title, range=[-0.03, 1.03], tickformat=".0%")
    figure.update_yaxes(autorange="reversed", type="category")
    return apply_layout(figure, 120 + 45 * len(rows)).update_layout(margin={"l": 260})


def draw_probes(ds: xr.Dataset) -> go.Figure:
    titles = {
        "tower": "tower, the thing's patches",
        "thing": "decoder, the thing's patches",
        "query": "decoder, query of the word",
    }
    figure = make_subplots(
        1, 3, subplot_titles=list(titles.values()), shared_yaxes=True, horizontal_spacing=0.03
    )
    for column, place in enumerate(titles, 1):
        for axis in AXES:
            score = _read(ds, f"{place} {axis}")
            layers = list(PROBED[place])
            for band in interval_band(layers, score, COLOURS[axis]):
                figure.add_trace(band, row=1, col=column)
            figure.add_scatter(
                x=layers, y=score.value, name=axis, legendgroup=axis, showlegend=column == 1, mode="lines",
                line={"color": COLOURS[axis], "dash": "solid" if axis == "row" else "dash"}, row=1, col=column,
            )  # fmt: skip
        figure.add_hline(y=1 / 3, line={"width": 1, "dash": "dot", "color": "#888888"}, row=1, col=column)
        figure.update_xaxes(title="layer", row=1, col=column)
    figure.update_yaxes(range=[0, 1.03], tickformat=".0%")
    figure.update_yaxes(title="accuracy of the probe", row=1, col=1)
    return apply_layout(figure, 340)


def _read(ds: xr.Dataset, name: str) -> Estimate[np.ndarray]:
    return Estimate(*(ds[f"{name}{end}"].values for end in ("", "_low", "_high")))


def draw_patching(patched: dict[str, xr.Dataset]) -> go.Figure:
    figure = go.Figure()
    for name, ds in patched.items():
        share = _read(ds.sel(tokens="region"), "follows")
        figure.add_traces(interval_band(ds.layer.values, share, COLOURS[name]))
        for place, dash in (("region", "solid"), ("other patches", "dot")):
            figure.add_scatter(
                x=ds.layer.values, y=ds["follows"].sel(tokens=place).values, mode="lines+markers",
                name=f"{name}, {'its' if place == 'region' else 'other'} patches",
                line={"color": COLOURS[name], "dash": dash},
            )  # fmt: skip
    figure.update_xaxes(title="layer whose input is exchanged")
    figure.update_yaxes(title="answers that follow", range=[-0.03, 1.03], tickformat=".0%")
    return apply_layout(figure, 380)


def draw_scenes(cases: Sequence[GridCase], run: Run, ds: xr.Dataset) -> go.Figure:
    """Draw the first scenes of different cells whose column is said wrongly."""
    wrong = (ds["said"].sel(axis="column") != ds["truth"].sel(axis="column")).values
    chosen = {case.cell: case.samples["own"] for case, each in zip(cases, wrong, strict=True) if each}
    samples = list(chosen.values())[:4]
    titles = [f"{sample.question}<br>{run[sample.id].answer}" for sample in samples]
    figure = make_subplots(1, len(samples), subplot_titles=titles, horizontal_spacing=0.02)
    for place, sample in enumerate(samples, 1):
        with Image.open(sample.images[0]) as image:
            figure.add_image(z=np.asarray(image.convert("RGB")), row=1, col=place)
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    figure.update_annotations(font={"size": 12})
    return apply_layout(figure, 300).update_layout(margin={"l": 8, "r": 8, "t": 60, "b": 8})


def keep(file: Path, measure: Callable[[], xr.Dataset]) -> xr.Dataset:
    """Return what is kept in a file, or measure and keep it."""
    if not file.exists():
        measure().to_netcdf(file, engine="h5netcdf")
    with xr.open_dataset(file, engine="h5netcdf") as ds:
        return ds.load()


def answer(model: Model, cases: Sequence[GridCase], name: str, folder: Path, **options: Any) -> Run:
    """Return the run of the questions of a name."""
    samples = [case.samples[name] for case in cases]
    return mp.trace(
        model, samples, folder, batch_size=BATCH, max_new_tokens=24, resume=folder.exists(), **options
    )


def measure_steps(
    model: Model, folder: Path, repeats: int, only: Sequence[str]
) -> tuple[list[GridCase], Run, CaseData]:
    """Return the scenes, the answers and what was measured of each named step."""
    cases = draw_cases(folder / "scenes", repeats)
    few, fewer = cases[::2], cases[::4]  # for what takes many passes, and more: of all places alike
    run = answer(model, cases, "own", folder / "own", capture=CAPTURE)

    def try_out(name: str) -> xr.Dataset:
        samples, options = TRIED[name]
        return measure_answers(
            answer(model, few, samples, folder / name, capture=LITTLE, **options), samples, few
        )

    def patch(name: str) -> xr.Dataset:
        finished = folder / "finished" / name
        if name == "colour":
            colours = answer(model, fewer, name, folder / name, capture=LITTLE)
            return measure_patching(model, colours, name, fewer, name, finished)
        # What is said seldom changes with the column, so all scenes are read.
        return measure_patching(model, run, "own", cases if name == "column" else fewer, name, finished)

    steps: dict[str, Callable[[], xr.Dataset]] = {
        "answers": lambda: measure_answers(run, "own", cases),
        "interchange": lambda: measure_interchange(model, run, fewer, folder / "finished"),
        "blocks": lambda: measure_blocks(
            model, run, few[:: len(few) // BLOCK_SCENES][:BLOCK_SCENES], folder / "finished"
        ),
        "probes": lambda: measure_probes(model, run, cases),
        "order": lambda: measure_order(model, run, few),
    }
    steps |= {name: partial(try_out, name) for name in TRIED}
    steps |= {f"patching-{name}": partial(patch, name) for name in PATCHED}
    return cases, run, {name: keep(folder / f"{name}.nc", steps[name]) for name in only}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="build/real", help="the real model, as `make real` builds it")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "case-study", help="what is measured")
    parser.add_argument("--repeats", type=int, default=4, help="scenes for each of the nine places")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, help="the steps that the page has")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model = mp.load_model(arguments.model, device="cpu")
    cases, run, measured = measure_steps(model, arguments.folder, arguments.repeats, arguments.only)
    save_figures(draw_figures(cases, run, measured))
    text = PAGE.read_text(encoding="utf-8")
    made = write_numbers(measured)
    used = re.findall(r"<!-- ([\w-]+) -->", text)
    PAGE.write_text(fill(text, {name: made[name] for name in used}), encoding="utf-8")


def draw_figures(cases: Sequence[GridCase], run: Run, measured: CaseData) -> dict[str, go.Figure]:
    """Return the figures of the steps that were measured, by name."""
    drawn = {
        "scenes": draw_scenes(cases, run, measured["answers"]),
        "answers": draw_answers(measured["answers"]),
    }
    for name, draw in (("interchange", draw_interchange), ("probes", draw_probes)):
        if name in measured:
            drawn[name] = draw(measured[name])
    if "blocks" in measured:
        drawn["blocks"] = draw_blocks(measured["blocks"], cases)
    if patched := {name: ds for name, ds in read_patched(measured).items() if name in ("row", "colour")}:
        drawn["patching"] = draw_patching(patched)
    if "order" in measured:
        shares = share_order(measured["answers"], measured["order"])
        rows = {
            "the row of the order of tokens": shares["order"],
            "the row that the features come from": shares["features"],
        }
        drawn["order"] = draw_shares(rows, "answers that say it", 1 / 3)
    if set(TRIED) <= set(measured):
        rows = {"as it is": estimate_mean(_is_right(measured["answers"], "column"), None)}
        rows |= {SHOWN[name]: estimate_mean(_is_right(measured[name], "column"), None) for name in SHOWN}
        drawn["tried"] = draw_shares(rows, "right columns", 1 / 3)
    return drawn


def read_patched(measured: CaseData) -> CaseData:
    """Return what was patched, by what differs in the other scene."""
    return {name: measured[f"patching-{name}"] for name in PATCHED if f"patching-{name}" in measured}


TRIED: dict[str, tuple[str, dict[str, Any]]] = {
    "flipped": ("flipped", {}),
    "choice": ("choice", {}),
    "sage": ("own", {"method": "sage"}),
    "pai": ("own", {"method": "pai"}),
}
"""What was tried, by name: the questions, and further options."""
SHOWN = {"choice": "asked for the column alone", "sage": "SAGE", "pai": "PAI"}
"""What was tried to get the column right, and how the figure names it."""
PATCHED = ("row", "column", "colour")
STEPS = (
    "answers",
    "interchange",
    "blocks",
    "probes",
    "order",
    *TRIED,
    *(f"patching-{name}" for name in PATCHED),
)
CaseData = dict[str, xr.Dataset]


def save_figures(drawn: dict[str, go.Figure]) -> None:
    """Write figures as PNG files."""
    FIGURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page()
        page.set_default_timeout(600_000)  # milliseconds; a busy machine takes long to read plotly
        page.set_content(f"<body><div id=plot></div><script>{get_plotlyjs()}</script>")
        for name, figure in drawn.items():
            (FIGURES / f"{name}.png").write_bytes(draw_png(page, figure))
        browser.close()


def write_numbers(measured: CaseData) -> dict[str, str]:
    """Return the numbers and tables of the page by name, of the steps that were measured."""
    answers = measured["answers"]
    right = answers["said"] == answers["truth"]
    made = {"n": str(answers.sizes["case"]), "n-in-cell": str(answers.sizes["case"] // 9)}
    made |= {f"plain-{axis}": _share(right.sel(axis=axis).values) for axis in AXES}
    said = answers["said"].sel(axis="column").values
    made |= {f"said-{word}": _share(said == place) for place, word in enumerate(AXES["column"])}
    if "interchange" in measured:
        made |= _write_interchange(measured["interchange"])
    if "blocks" in measured:
        made |= _write_blocks(measured["blocks"])
    if "probes" in measured:
        made |= _write_probes(measured["probes"])
    if "order" in measured:
        made |= _write_order(answers, measured["order"])
    for name in TRIED:
        if name in measured:
            made |= _write_tried(name, measured[name], right)
    return made | _write_patched(read_patched(measured))


def _write_interchange(ds: xr.Dataset) -> dict[str, str]:
    made = {"n-interchange": str(ds.sizes["case"])}
    for moved in AXES:
        for word in AXES:
            for name in ds["exchanged"].values.tolist():
                loss = ds["loss"].sel(moved=moved, word=word, exchanged=name).values
                made[f"loss-{moved}-{word}-{name.split()[0]}"] = f"{_mean_of_known(loss):.2f}"
    return made


def _write_probes(ds: xr.Dataset) -> dict[str, str]:
    made = {}
    for place, layers in PROBED.items():
        for axis in AXES:
            score = _read(ds, f"{place} {axis}")
            best = int(np.argmax(score.value))
            for name, row in (("first", 0), ("last", -1), ("best", best)):
                made[f"{place}-{axis}-{name}"] = f"{score[row]:.0%}"
            made[f"{place}-{axis}-best-layer"] = str(layers[best])
    return made


def _write_order(answers: xr.Dataset, order: xr.Dataset) -> dict[str, str]:
    shares = share_order(answers, order)
    return {"order-n": str(shares["order"].n)} | {
        f"order-row-{name}": f"{share:.0%}" for name, share in shares.items()
    }


def share_order(answers: xr.Dataset, order: xr.Dataset) -> dict[str, Estimate[Any]]:
    """Return how often the row that is said of transposed tokens is that of their features, and of their order, where these differ."""
    order = order.isel(case=(order["said"] >= 0).all("axis").values)
    plain = answers.sel(case=order["case"])
    own, truth, swapped = plain["said"].values, plain["truth"].values, order["said"].values
    tells = own[:, 0] != truth[:, 1]
    return {
        "features": estimate_mean((swapped[:, 0] == own[:, 0])[tells], None),
        "order": estimate_mean((swapped[:, 0] == truth[:, 1])[tells], None),
    }


def _is_right(ds: xr.Dataset, axis: str) -> np.ndarray:
    return np.asarray((ds["said"] == ds["truth"]).sel(axis=axis).values)


def _write_blocks(ds: xr.Dataset) -> dict[str, str]:
    """Return what the most important block of each scene costs, by axis."""
    most = {axis: ds["loss"].sel(axis=axis).max(("y", "x")).values for axis in AXES}
    return {"n-blocks": str(ds.sizes["case"])} | {
        f"block-{axis}": f"{_mean_of_known(values):.2f}" for axis, values in most.items()
    }


def _write_tried(name: str, ds: xr.Dataset, right: xr.DataArray) -> dict[str, str]:
    """Return the shares that are right, and the change against the same scenes without the change."""
    tried, made = ds["said"] == ds["truth"], {"n-tried": str(ds.sizes["case"])}
    for axis in AXES:
        own = tried.sel(axis=axis).values
        change = own.astype(float) - right.sel(case=ds["case"], axis=axis).values
        made[f"{name}-{axis}"] = _share(own)
        made[f"{name}-{axis}-change"] = f"{estimate_mean(change, None, (-1.0, 1.0)):+.0%}"
    # The rows of the transposed image are the columns of the scene.
    made[f"{name}-row-is-column"] = _share((ds["said"][:, 0] == ds["truth"][:, 1]).values)
    return made


def _write_patched(patched: CaseData) -> dict[str, str]:
    made = {}
    for name, ds in patched.items():
        n, unmoved = int(ds["n"]), int(ds.attrs["n_unmoved"])
        made[f"patched-{name}-moved"] = _share(np.arange(n + unmoved) < n)
        made[f"patched-{name}-n"] = str(n)
        if not n:
            made |= {f"patched-{name}-{what}": "undefined" for what in ("first", "last", "half", "others")}
            continue
        layers, region = ds["layer"].values.tolist(), _read(ds.sel(tokens="region"), "follows")
        made[f"patched-{name}-first"] = f"{region[0]:.0%}"
        half = [layer for layer, share in zip(layers, region.value, strict=True) if share >= 0.5]
        made[f"patched-{name}-half"] = str(max(half, default=-1))
        others = _read(ds.sel(tokens="other patches"), "follows")
        made[f"patched-{name}-others"] = f"{others[int(np.argmax(others.value))]:.0%}"
        made[f"patched-{name}-last"] = f"{region[len(layers) - 1]:.0%}"
        made["patched-last-layer"] = str(layers[-1])
    return made


def _share(values: np.ndarray) -> str:
    return f"{estimate_mean(values, None):.0%}"


def _mean_of_known(values: np.ndarray) -> Estimate[Any]:
    return estimate_mean(values[np.isfinite(values)], None, QUANTITY)


if __name__ == "__main__":
    main()
