"""What must hold of a model of any family: parity with eager transformers, and that its grids show the images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from helpers.reference import eager_generate
from PIL import Image

import mmprobe as mp
from mmprobe.models import Group, Model
from mmprobe.models.attention import observe_attention
from mmprobe.models.families import View
from mmprobe.models.hooks import observe
from mmprobe.samples import Sample

STEPS = 4
SHAPES = {"wide": (40, 120), "tall": (120, 40), "square": (64, 64), "long": (48, 112), "thin": (3, 40),
          "thin and tall": (40, 3)}  # fmt: skip
"""Height and width of drawn images."""
DATASETS = ["attention/mass", "attention/leading", "attention/row", "attention/visual", "residual/pre",
            "residual/mid", "residual/post", "ffn/gate_sum", "tam/logit"]  # fmt: skip
CAPTURE = mp.CaptureSpec(datasets=DATASETS, dtype="float32", missing="skip")


def draw_image(folder: Path, name: str) -> Path:
    """Return the path of an image of random coloured squares."""
    path = folder / f"{name}.png"
    if not path.exists():
        height, width = SHAPES[name]
        shape = -(-height // 4), -(-width // 4), 3
        squares = np.random.default_rng(len(name)).integers(0, 256, shape, np.uint8)
        Image.fromarray(squares.repeat(4, 0).repeat(4, 1)[:height, :width]).save(path)
    return path


THIN = {"thin": (3, 40), "thin and tall": (40, 3)}
"""Three pixels may be taken for the three colours."""


def check_ends(model: Model, folder: Path) -> None:
    """Paint either end of an image of three pixels' height or width: what changes lies at that end of each view."""
    for name, (height, width) in THIN.items():
        path, axis = draw_image(folder, name), int(width > height)
        ends = (
            ((0, 0, width, 12), (0, 28, width, 40))
            if axis == 0
            else ((0, 0, 12, height), (28, 0, 40, height))
        )
        sample = Sample(id="a", images=[path], question="What?")
        painted = [sample.model_copy(update={"images": [paint(path, end, folder)]}) for end in ends]
        before, *after = read_batch_of_visual_states(model, [sample, *painted])
        prompt = model.prompt(sample)
        stops = np.cumsum([rows * columns for rows, columns in prompt.grids])
        for stop, (rows, columns), view in zip(stops, prompt.grids, prompt.views, strict=True):
            start, length = view.box[1 - axis], view.box[3 - axis]
            if (rows, columns)[axis] < 2 or start > 6 or start + length < 34:
                continue  # a tile that shows one end alone
            own = slice(stop - rows * columns, stop)
            weights = [np.linalg.norm(states[own] - before[own], axis=-1) ** 2 for states in after]
            if min(each.sum() for each in weights) > 1e-9:  # the ends of a cropped image are not shown
                places = np.mgrid[:rows, :columns].reshape(2, -1)[axis]
                first, last = ((places * each).sum() / each.sum() for each in weights)
                assert first < last, f"{name}: view of {rows, columns}: {first:.2f} is not before {last:.2f}"
        whole = [view for view in prompt.views if view.box == (0, 0, width, height)]
        shapes = [view.grid for view in whole if view.grid[0] != view.grid[1]]
        assert all((columns > rows) == bool(axis) for rows, columns in shapes), (name, prompt.grids)


def make_samples(folder: Path, most: int = 2) -> list[Sample]:
    """Return samples with one or two images, square and not, whose prompts differ in length."""
    combinations = {
        "a": (["wide", "tall"], "Compare the two images."),
        "b": (["square"], "What?"),
        "c": (["tall", "square"], "Is there a star in the image, or is there none?"),
        "d": (["wide"], "Which one is larger?"),
        "e": (["tall", "square"], "Which image shows more?"),  # the images of c: they are read once
    }
    return [
        Sample(id=name, images=[draw_image(folder, image) for image in images[:most]], question=question)
        for name, (images, question) in combinations.items()
    ]


def is_close(values: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> bool:
    """Return whether values are within a share of the largest of their vector: kernels sum in another order."""
    largest = np.abs(expected).max(-1, keepdims=True, initial=1e-30)
    return bool((np.abs(values - expected) <= tolerance * np.maximum(largest, 1)).all())


def check_parity(model: Model, folder: Path, most: int = 2) -> None:
    """Compare traces with eager transformers, and a padded batch of three with single samples.

    Args:
        most: the most images of a sample.
    """
    samples = make_samples(folder, most)
    run = mp.trace(model, samples, folder / "single", capture=CAPTURE, max_new_tokens=STEPS, batch_size=1)
    refused = [failure for failure in run.failures if "refuses the text or the images" in failure["message"]]
    assert refused == run.failures, run.failures
    samples = [sample for sample in samples if sample.id in run.ids]
    assert len(samples) >= 3, (
        "only Perception-LM refuses some pairs of images, those with unlike numbers of tiles"
    )
    assert most == 1 or any(len(sample.images) > 1 for sample in samples)
    for sample in samples:
        compare_with_eager(model, sample, run[sample.id])
    batched = mp.trace(
        model, samples[:3], folder / "batched", capture=CAPTURE, max_new_tokens=STEPS, batch_size=3
    )
    assert not batched.failures, batched.failures
    for trace in batched:
        assert trace.captured == run[trace.id].captured
        for name in trace.captured:
            expected, values = run[trace.id].array(name).values, trace.array(name).values
            if expected.dtype.kind == "f":
                assert is_close(np.nan_to_num(values), np.nan_to_num(expected)), f"{name} in a batch"
            elif not name.startswith("ffn/"):
                np.testing.assert_array_equal(values, expected, err_msg=f"{name} in a batch")


def compare_with_eager(model: Model, sample: Sample, trace: mp.Trace) -> None:
    """Compare a trace with what eager transformers computes for its sample."""
    eager = eager_generate(model, model.prepare(sample), STEPS)
    np.testing.assert_array_equal(trace.steps["id"].values, eager["ids"], err_msg="tokens")
    rows = trace.array("attention/row").values
    np.testing.assert_array_equal(
        np.isnan(rows).all(-1), np.isnan(eager["attention"]).all(-1), err_msg="layers and heads with rows"
    )
    np.testing.assert_allclose(np.nan_to_num(rows), np.nan_to_num(eager["attention"]), atol=1e-5)
    group = trace.tokens["group"].values
    has_cross_attention = ~np.isnan(eager["cross_attention"]).all((0, 2, 3))
    expected = np.stack([eager["attention"][..., group == code].sum(-1) for code in range(len(Group))], -1)
    expected[np.isnan(eager["attention"]).all(-1)] = np.nan
    expected[:, has_cross_attention] = 0
    expected[:, has_cross_attention, :, Group.VISUAL] = 1
    np.testing.assert_allclose(trace.attention_mass.values, expected, atol=1e-5, err_msg="masses")
    for name in ("pre", "mid", "post"):
        values = trace.array(f"residual/{name}").values
        np.testing.assert_array_equal(np.isnan(values), np.isnan(eager[name]))
        assert is_close(np.nan_to_num(values), np.nan_to_num(eager[name])), f"residual/{name}"
    if "ffn/gate_sum" in trace.captured:
        assert is_close(np.nan_to_num(trace.ffn_gate_sum.values), np.nan_to_num(eager["gate"].sum(0)))
    if sample.images:
        assert (group == Group.VISUAL).any() or has_cross_attention.any()
    text = model.tokenizer.decode(trace.tokens["id"].values[group == Group.USER]).strip()
    assert text == sample.question or sample.messages
    _compare_grids(trace, sample)


def _compare_grids(trace: mp.Trace, sample: Sample) -> None:
    """Check that the cells are the visual tokens, and that each view shows its image."""
    if "attention/visual" not in trace.captured:
        assert not len(trace.images["grid"])
        return
    grids, image = trace.images["grid"].values, trace.tokens["image"].values
    if not sample.videos:
        assert sorted(set(trace.images["source"].values.tolist())) == list(range(len(sample.images)))
    assert trace.attention_visual.sizes["visual"] == sum(rows * columns for rows, columns in grids)
    if (image >= 0).any():
        assert [(image == number).sum() for number in range(len(grids))] == [r * c for r, c in grids]
        np.testing.assert_array_equal(image >= 0, trace.tokens["group"].values == Group.VISUAL)


def read_visual_states(model: Model, sample: Sample) -> np.ndarray:
    """Return what the decoder first reads of the visual tokens, [visual, feature]."""
    return read_batch_of_visual_states(model, [sample])[0]


def read_batch_of_visual_states(model: Model, samples: Sequence[Sample]) -> list[np.ndarray]:
    """Return what the decoder first reads of each sample's visual tokens, in one pass where the model batches."""
    if not model.family.batches and len(samples) > 1:
        return [read_visual_states(model, sample) for sample in samples]
    batch = model.batch(list(samples))
    prompts, decoder = batch.prompts, model.family.decoder(model.hf)
    states: list[torch.Tensor] = []
    crossing = [
        parts.attention
        for parts in map(model.family.parts, decoder.layers)
        if parts.has_cross_attention and prompts[0].visual_keys is not None
    ]
    if crossing:
        config = model.hf.config.get_text_config()
        watch = observe_attention([config], {crossing[0]: lambda call: states.append(call.value.clone())})
    else:
        watch = observe(decoder.layers[0], inputs=lambda values: states.append(values.clone()))
    with torch.inference_mode(), watch:
        model.hf.generate(**batch.inputs, max_new_tokens=1, do_sample=False)
    if crossing:
        return [
            values.transpose(0, 1).flatten(1)[prompt.visual_keys].float().numpy()
            for values, prompt in zip(states[0], prompts, strict=True)
        ]
    return [
        values[prompt.padding + prompt.visual_positions].float().numpy()
        for values, prompt in zip(states[0], prompts, strict=True)
    ]


def choose_cells(
    views: Sequence[View], sources: Sequence[int], sizes: Sequence[tuple[int, int]], most: int
) -> Iterator[tuple[int, int, int]]:
    """Yield view, row and column of some cells that lie within their images.

    Views take turns, large ones first. Of each come first the cells that have another place among the tokens if
    these come column by column.
    """
    rng = np.random.default_rng(3)
    inside = [
        (number, row, column)
        for number, (view, source) in enumerate(zip(views, sources, strict=True))
        for row in range(view.grid[0])
        for column in range(view.grid[1])
        if _is_inside(cell_box(view, row, column), sizes[source])
    ]
    by_view: list[list[tuple[int, int, int]]] = [[] for _ in views]
    for index in rng.permutation(len(inside)):
        by_view[inside[index][0]].append(inside[index])
    for number, (rows, columns) in enumerate(view.grid for view in views):
        by_view[number].sort(key=lambda cell: cell[1] * columns + cell[2] == cell[2] * rows + cell[1])
    in_turn = [
        cell
        for each in zip_longest(*sorted(by_view, key=len, reverse=True))
        for cell in each
        if cell is not None
    ]
    yield from in_turn[:most]


def cell_box(view: View, row: int, column: int) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a cell in pixels of the image's file."""
    x, y, width, height = view.box
    cell_width, cell_height = width / view.grid[1], height / view.grid[0]
    left, top = x + column * cell_width, y + row * cell_height
    return left, top, left + cell_width, top + cell_height


def _is_inside(box: tuple[float, float, float, float], size: tuple[int, int]) -> bool:
    """Return whether most of a cell shows its image (height, width); the rest of it shows padding."""
    left, top, right, bottom = box
    width, height = min(right, size[1]) - max(left, 0), min(bottom, size[0]) - max(top, 0)
    return min(width, height) > 0 and width * height > 0.6 * (right - left) * (bottom - top)


def paint(path: Path, box: tuple[float, float, float, float], folder: Path) -> Path:
    """Return the path of a copy of an image with the colours of a rectangle inverted."""
    pixels = np.array(Image.open(path))
    left, top, right, bottom = (round(edge) for edge in box)
    region = pixels[max(top, 0) : max(bottom, top + 1), max(left, 0) : max(right, left + 1)]
    region[:] = 255 - region
    painted = folder / f"{path.stem}-{left}-{top}.png"
    Image.fromarray(pixels).save(painted)
    return painted


SPREADS = {
    "chameleon": 4,  # cells along the painted square, for encoders that spread what is painted
    "emu3": 4,  # a vector quantiser chooses codes again all around it
    "deepseek_vl_hybrid": 1,  # strided convolutions shift its second encoder by half a cell
}


MISSES = {"granite4_vision": 1 / 4}
"""The share of painted cells that may miss: of this one, windows of an attending downsampler mix their cells."""


def check_grids(model: Model, folder: Path, images: Sequence[str] = ("wide", "tall"), most: int = 12) -> None:
    """Paint cells of images that are not square, and see which visual token changes most.

    It must be that of the cell, but for one in eight, since resizing and attention spread what is painted. Then rows
    are rows, columns are columns, and the box is where the view looks. Where an encoder spreads what is painted, the
    centre of what changes must follow the painted cell along rows and along columns.
    """
    block = SPREADS.get(model.name, 1)
    most = 24 if model.name in SPREADS else most
    paths = [draw_image(folder, name) for name in images]
    sample = Sample(id="a", images=paths, question="What?")
    prompt = model.prompt(sample)
    sizes = [SHAPES[name] for name in images]
    ends = np.cumsum([rows * columns for rows, columns in prompt.grids])
    cells = list(choose_cells(prompt.views, prompt.sources, sizes, most))
    samples, lasts = [sample], []
    for number, row, column in cells:
        view, source = prompt.views[number], prompt.sources[number]
        last = min(row + block, view.grid[0]) - 1, min(column + block, view.grid[1]) - 1
        box = (*cell_box(view, row, column)[:2], *cell_box(view, *last)[2:])
        painted = list(paths)
        painted[source] = paint(paths[source], box, folder)
        samples.append(sample.model_copy(update={"images": painted}))
        lasts.append(last)
    before, *painted_states = read_batch_of_visual_states(model, samples)
    tried, missed = len(cells), []
    pairs: list[tuple[int, np.ndarray, np.ndarray]] = []  # view, painted and moved
    for (number, row, column), last, states in zip(cells, lasts, painted_states, strict=True):
        rows, columns = prompt.views[number].grid
        change = np.linalg.norm(states - before, axis=-1)[ends[number] - rows * columns : ends[number]]
        moved = np.array(divmod(int(change.argmax()), columns), float)
        if moved.tolist() != [row, column]:
            missed.append(
                f"view {number} with {rows, columns}: painted {row, column}, {moved.tolist()} moved"
            )
        weights = change**2 + 1e-30  # equal where nothing changes
        centre = (np.mgrid[:rows, :columns].reshape(2, -1) * weights).sum(1) / weights.sum()
        pairs.append((number, (np.array([row, column]) + last) / 2, centre))
    assert tried >= 4, "there are too few cells to paint"
    if model.name not in SPREADS:
        assert len(missed) <= tried * MISSES.get(model.name, 1 / 8), missed
        return
    for number in range(len(prompt.views)):
        painted_cells, centres = (
            np.array([pair[part] for pair in pairs if pair[0] == number]) for part in (1, 2)
        )
        for axis in range(2):
            with np.errstate(
                invalid="ignore", divide="ignore"
            ):  # NaN, which follows nothing, if all are equal
                follows = np.corrcoef(painted_cells[:, axis], centres[:, axis])[0, 1]
            assert follows > 0.45, (
                f"what moved does not follow what is painted: {follows:.2f} along axis {axis}"
            )
