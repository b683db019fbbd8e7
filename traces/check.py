"""Check a model where it arrives: what a trace of it says is compared with what the model does.

Nobody can run every checkpoint beforehand. These checks take a minute. Each compares mmprobe with something that does
not depend on it: eager attention and torch's own hooks, the processor's own template, a painted cell of an image.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.image_utils import load_image

from mmprobe.errors import InputError
from mmprobe.files import format_bytes
from mmprobe.ledger import FINGERPRINT
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.attention import observe_attention
from mmprobe.models.devices import is_dispatched
from mmprobe.models.families import FAMILIES, View
from mmprobe.models.finite import not_finite
from mmprobe.models.hooks import observe
from mmprobe.models.loading import find_numeric_errors, find_structure_errors
from mmprobe.models.prompt import build_chat
from mmprobe.models.reading import append_answers
from mmprobe.samples import Sample
from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.engines import find_way, model_limits
from mmprobe.traces.plan import peak_bytes
from mmprobe.traces.run import run_config, trace

STEPS = 16  # tokens of the compared answers
PAINTED = 12  # cells of each image that are painted, one at a time
PAINTED_EACH = 4  # of each awkward picture
MOST_VARIATION = 0.5  # between the next token's probabilities in the model's dtype and in float32; our choice
LEAST_FOUND = 0.5  # of the painted cells must move the visual token of their own place most
LEAST_FOLLOWING = (
    0.6  # correlation of painted rows and columns with those of what changes, where encoders spread it
)
SPREAD = "the centre of what changes follows"  # in the text of a check of such an encoder
LEAST_CHANGE = 1e-4  # of the largest visual state; smaller changes are rounding
SIZES = ((168, 280), (280, 168))  # height and width of the drawn images
QUESTIONS = ("What is in this picture?", "Compare the two pictures step by step.")
TOLERANCES = {
    torch.float32: (1e-4, 1e-4, 1e-3),
    torch.bfloat16: (0.05, 0.05, 0.5),
    torch.float16: (0.02, 0.02, 0.1),
}
"""By dtype, the largest difference of a share of attention, of a residual stream as a share of its largest value, and
of a log-probability in nat, that rounding explains; our choice."""


class Check(NamedTuple):
    """One line of a check.

    Attributes:
        name: what was checked.
        ok: None if it could not be checked with this model.
        value: the measured number; None where there is none.
        text: what was found, in words.
    """

    name: str
    ok: bool | None
    value: float | None
    text: str

    def __str__(self) -> str:
        return f"{'not run' if self.ok is None else 'ok' if self.ok else 'NOT OK':8}{self.name}: {self.text}"


class EagerReading(NamedTuple):
    """What eager attention and torch's own hooks show of an answer, at the query of each token.

    Attributes:
        rows: attention on the prompt and the answer, float32 [layer, head, step, key]; NaN for layers and heads that
            have none, and None if no layer has any.
        pre, post: the residual stream before and after each layer, float32 [layer, step, hidden].
        logprobs: of the answer's tokens, float32 [step].
    """

    rows: np.ndarray | None
    pre: np.ndarray
    post: np.ndarray
    logprobs: np.ndarray


def check_model(model: Model, samples: Sequence[Sample] = ()) -> Iterator[Check]:
    """Check that traces of a model are right, one line after another.

    Args:
        samples: questions about images, of which two are compared beside the drawn ones.

    Raises:
        InputError: a sample cannot be read.

    Example:
        >>> from mmprobe.models import load_model
        >>> all(check.ok for check in check_model(load_model("tiny-spd")))               # doctest: +SKIP
        True
    """
    with tempfile.TemporaryDirectory(prefix="mmprobe-check-") as folder:
        shown = [*draw_samples(Path(folder)), *samples[:2]]
        try:
            model.prompt(shown[1])
        except InputError as error:
            yield Check("two images", None, None, f"not with this model: {error}")
            shown = [shown[0], *[sample for sample in shown[2:] if len(sample.images) < 2]]
        declared = "declared" if model.family.name in FAMILIES else "not declared, read from its structure"
        yield Check("family", True, None, f"{model.family.name}, {declared}")
        errors = find_structure_errors(model.hf, model.family) or find_numeric_errors(model.hf, model.family)
        yield Check("structure", not errors, None, errors[0] if errors else f"{model.n_layers} layers fit")
        numbers = list(_check_numbers(model, shown[0]))
        yield from numbers
        if any(check.ok is False for check in numbers):
            return  # nothing else can be compared
        yield _compare_dtypes(model, shown[0])
        yield from _check_prompts(model, shown)
        grid = _check_grid(model, shown[min(1, len(shown) - 1)])
        yield grid
        yield from _check_pictures(model, Path(folder), paints=grid.ok is True and SPREAD not in grid.text)
        limits = model_limits(model, list(range(model.n_layers)), batch_size=1)
        full = load_capture("full")
        missing = {name: reason for name, reason in limits.items() if name in full.stored}
        spec = full.model_copy(update={"dtype": "float32"}).without(missing)
        yield from _check_traces(model, shown, spec, Path(folder))
        yield _list_missing(missing)
        yield _measure_trace(model, shown[min(1, len(shown) - 1)], spec, Path(folder))


def describe_setting(model: Model) -> dict[str, Any]:
    """Return the model, its weights' fingerprint, the versions and the device, for a report of a problem.

    Example:
        >>> from mmprobe.models import load_model
        >>> describe_setting(load_model("tiny-spd", device="cpu"))["device"]
        'cpu'
    """
    config = run_config(model, load_capture("default"), "native", 1, {"temperature": 0.0})
    on_gpu = model.device.type == "cuda"
    device = torch.cuda.get_device_name(model.device) if on_gpu else model.device.type
    return {name: config[name] for name in ("model", FINGERPRINT, "versions")} | {"device": device}


def was_checked(model: Model, file: Path = Path("check.json")) -> bool:
    """Return whether a file of `mmprobe check` is about this model, by the content of its weights and settings.

    The models that mmprobe ships count as checked.

    Example:
        >>> from mmprobe.models import load_model
        >>> was_checked(load_model("tiny-spd", device="cpu"))
        True
    """
    if model.source.startswith(("embedded:", "organism:")):
        return True
    try:
        return bool(json.loads(file.read_bytes())[FINGERPRINT]["model"] == model.fingerprint)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def draw_samples(folder: Path) -> list[Sample]:
    """Return a question about a wide image, and one about a wide and a high one."""
    rng = np.random.default_rng(0)
    paths = []
    for number, (height, width) in enumerate(SIZES):
        coarse = rng.integers(0, 256, (height // 28, width // 28, 3), np.uint8)
        paths.append(folder / f"{number}.png")
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(
            paths[-1], compress_level=0
        )
    return [
        Sample(id=f"drawn-{count}", images=paths[:count], question=QUESTIONS[count - 1]) for count in (1, 2)
    ]


def _check_numbers(model: Model, sample: Sample) -> Iterator[Check]:
    """Look for NaN and infinities in a pass over a question with an image, and without."""
    blind = sample.model_copy(update={"images": []})
    for name, shown in (("numbers without an image", blind), ("numbers with an image", sample)):
        try:
            inputs = model.prepare(shown)
            with torch.inference_mode():
                logits = model.hf(**inputs, use_cache=False).logits[:, -1]
            finite = bool(logits.amax(-1).isfinite().all())
        except (InputError, ValueError, TypeError) as error:  # BLIP-2 takes no prompt without an image
            yield Check(name, None, None, f"not with this model: {error}")
            continue
        yield Check(name, finite, None, "all finite" if finite else str(not_finite(model, inputs)))


def _compare_dtypes(model: Model, sample: Sample) -> Check:
    """Say how far the next token's probabilities in the model's dtype are from those in float32."""
    if model.hf.dtype == torch.float32:
        return Check("dtype", True, 0.0, "float32")
    dtype = str(model.hf.dtype).removeprefix("torch.")
    if model.settings.load_in or getattr(model.hf, "is_quantized", False):
        return Check("dtype", None, None, f"{dtype}; quantised weights have no form in float32")
    if is_dispatched(model.hf) or not _has_room_for_float32(model):
        return Check("dtype", None, None, f"{dtype}; there is no memory for the model in float32 beside it")

    def read(hf: Any) -> Tensor:
        inputs = model.prepare(sample)
        inputs = {
            name: value.to(hf.dtype) if value.is_floating_point() else value for name, value in inputs.items()
        }
        with torch.inference_mode():
            return hf(**inputs, use_cache=False).logits[0, -1].float().softmax(-1).cpu()

    own, wide = read(model.hf), read(copy.deepcopy(model.hf).float())
    distance = float((own - wide).abs().sum() / 2)
    same = "the same" if own.argmax() == wide.argmax() else "another"
    text = f"{dtype}: {same} next token as float32, probabilities {distance:.1e} apart (total variation)"
    return Check("dtype", distance <= MOST_VARIATION, distance, text)


def _has_room_for_float32(model: Model) -> bool:
    """Return whether a copy of a model in float32 fits into the free memory of its device."""
    needed = 4 * sum(weight.numel() for weight in model.hf.parameters())
    if model.device.type == "cuda":
        return needed < torch.cuda.mem_get_info(model.device)[0]
    try:
        return needed < os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except ValueError:  # not on macOS
        return needed < 2**33


def _draw_pictures(folder: Path) -> dict[str, Path]:
    """Write pictures as people have them, and return their files: turned by EXIF, thin, tiny, large, transparent.

    Example:
        >>> import tempfile
        >>> list(_draw_pictures(Path(tempfile.mkdtemp())))
        ['EXIF-rotated', 'thin', 'tiny', 'large', 'transparent']
    """
    rng = np.random.default_rng(1)
    sizes = {
        "EXIF-rotated": (112, 224),
        "thin": (40, 1200),
        "tiny": (28, 28),
        "large": (512, 2048),
        "transparent": (140, 196),
    }
    files = {}
    for name, (height, width) in sizes.items():
        coarse = rng.integers(0, 256, (max(height // 28, 2), max(width // 28, 2), 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        if name == "EXIF-rotated":
            exif[0x0112] = 6
        if name == "transparent":
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        files[name] = folder / f"{name}.png"
        image.save(files[name], exif=exif, compress_level=0)
    return files


def _check_pictures(model: Model, folder: Path, paints: bool) -> Iterator[Check]:
    """Compare what the model is shown of awkward pictures with the processor's own, and paint some of their cells.

    The processor's own input is made from the file by transformers' `load_image` and `apply_chat_template`.

    Args:
        paints: whether cells are painted, which says nothing of an encoder that spreads what is painted over its tokens.
    """
    for name, file in _draw_pictures(folder).items():
        sample = Sample(id=name, images=[file], question=QUESTIONS[0])
        try:
            got = model.prepare(sample)
        except InputError as error:
            yield Check(f"{name} picture", None, None, f"not with this model: {error}")
            continue
        if model.processor.chat_template is None:
            yield Check(f"{name} picture", None, None, "the processor has no chat template")
            continue
        content = [
            {"type": "image", "image": load_image(str(file))},
            {"type": "text", "text": sample.question},
        ]
        own = model.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        differing = [each for each in got if each in own and not _is_equal(got[each], own[each])]
        if differing:
            text = f"{', '.join(differing)} differ from the processor's own"
            yield Check(f"{name} picture", False, None, text)
            continue
        grid = (
            _check_grid(model, sample, PAINTED_EACH) if paints else Check("grid", True, None, "not painted")
        )
        ok = grid.ok is not False
        yield Check(f"{name} picture", ok, grid.value, f"as the processor's own; {grid.text}")


def _is_equal(values: Tensor, expected: Tensor) -> bool:
    expected = expected.to(values.device, values.dtype)
    return values.shape == expected.shape and bool(torch.equal(values, expected))


def _check_prompts(model: Model, samples: Sequence[Sample]) -> Iterator[Check]:
    """Compare token ids with those of the processor's own template."""
    if getattr(model.processor, "chat_template", None) is None:
        yield Check("prompt", None, None, "the processor has no chat template")
        return
    for sample in [*samples, *_make_conversations(samples)]:
        chat = build_chat(sample, model)
        images = iter(chat.images)
        messages = [
            turn
            | {
                "content": [
                    {"type": "image", "image": next(images)} if part["type"] == "image" else part
                    for part in turn["content"]
                ]
            }
            for turn in chat.messages
        ]
        try:
            ids = model.prompt(sample).ids.tolist()
        except InputError as error:
            if not sample.messages:
                raise
            yield Check(f"prompt of {sample.id}", None, None, str(error))
            continue
        expected = model.processor.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )["input_ids"][0].tolist()
        yield Check(
            f"prompt of {sample.id}",
            ids == expected,
            None,
            f"{len(ids)} tokens, as apply_chat_template"
            if ids == expected
            else f"{len(ids)} tokens, but apply_chat_template gives {len(expected)} or other ones",
        )


def _make_conversations(samples: Sequence[Sample]) -> list[Sample]:
    """Return the last question with texts before each image, and after an example."""
    last = samples[-1]
    shown: list[dict[str, Any]] = []
    for number, image in enumerate(last.images, 1):
        shown += [{"type": "text", "text": f"Image {number}: "}, {"type": "image", "image": image}]
    question = {"role": "user", "content": [*shown, {"type": "text", "text": last.question}]}
    example = (
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": last.images[0]},
                    {"type": "text", "text": "What is it?"},
                ],
            },
            {"role": "assistant", "content": "A picture."},
        ]
        if last.images
        else []
    )
    return [
        Sample.model_validate({"id": f"{last.id}-{name}", "messages": messages})
        for name, messages in (("interleaved", [question]), ("few-shot", [*example, question]))
    ]


def _check_grid(model: Model, sample: Sample, painted_each: int = PAINTED) -> Check:
    """Paint cells of the images, one at a time: the visual token of the same cell must change most."""
    prompt = model.prompt(sample)
    if not prompt.views:
        return Check("grid", None, None, "images are not shown as a map of patches")
    images = [np.asarray(image.convert("RGB")) for image in build_chat(sample).images]
    before = _visual_states(model, sample)
    cells = _choose_cells(prompt, painted_each)
    if not cells:
        return Check("grid", None, None, "no cell is within the image")
    changes = []
    with tempfile.TemporaryDirectory() as folder:
        for view, row, column in cells:
            source = prompt.sources[view]
            left, top, right, bottom = find_pixels(prompt.views[view], row, column)
            painted = images[source].copy()
            painted[top:bottom, left:right] = 255 - painted[top:bottom, left:right]
            shown = list(sample.images)
            shown[source] = Path(folder) / "painted.png"
            Image.fromarray(painted).save(shown[source], compress_level=0)
            states = _visual_states(model, sample.model_copy(update={"images": shown}))
            changes.append((states - before).norm(dim=-1))
    change = torch.stack(changes)
    if change.max() < LEAST_CHANGE * before.norm(dim=-1).max():
        return Check("grid", None, None, "painted cells change the visual tokens too little to tell")
    of_its_mean = change / change.mean(0).clamp(min=1e-12)  # some tokens change whatever is painted
    found, centres = 0, []
    for (view, row, column), values, relative in zip(cells, change, of_its_mean, strict=True):
        rows, columns = prompt.views[view].grid
        own, chosen = row * columns + column, torch.from_numpy(_cells_of_view(prompt, view))
        found += own in (int(values[chosen].argmax()), int(relative[chosen].argmax()))
        weights = (values[chosen] ** 2).reshape(
            rows, columns
        ).numpy() + 1e-30  # of a view in which nothing changes, equal
        places = np.indices((rows, columns)) * weights / weights.sum()
        centres.append(places.sum((1, 2)) / (rows, columns))
    text = f"{found} of {len(cells)} painted cells change their own visual token most"
    share = found / len(cells)
    if share >= LEAST_FOUND:
        return Check("grid", True, share, text)
    # an encoder may spread what is painted: its centre follows the painted cell then
    painted_at = np.array([np.divide((row, column), prompt.views[view].grid) for view, row, column in cells])
    follows = [float(np.corrcoef(painted_at[:, axis], np.array(centres)[:, axis])[0, 1]) for axis in range(2)]
    text += f"; {SPREAD} it with correlations of {follows[0]:.2f} and {follows[1]:.2f}"
    return Check("grid", min(follows) >= LEAST_FOLLOWING, min(follows), text)


def find_pixels(view: View, row: int, column: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a cell in pixels of the image's file."""
    x, y, width, height = view.box
    rows, columns = view.grid
    left, right = x + width * column / columns, x + width * (column + 1) / columns
    top, bottom = y + height * row / rows, y + height * (row + 1) / rows
    return round(left), round(top), round(right), round(bottom)


def _cells_of_view(prompt: Prompt, view: int) -> np.ndarray:
    """Return which of the prompt's visual tokens are the cells of a view, row by row."""
    counts = [each.grid[0] * each.grid[1] for each in prompt.views]
    if prompt.visual_keys is not None:
        return np.arange(counts[view]) + sum(counts[:view])
    return np.flatnonzero(prompt.image[prompt.visual_positions] == view)


def _choose_cells(prompt: Prompt, most: int) -> list[tuple[int, int, int]]:
    """Return view, row and column of some cells that are within their image, drawn at random for each image."""
    cells: dict[int, list[tuple[int, int, int]]] = {}
    for view, (shown, source) in enumerate(zip(prompt.views, prompt.sources, strict=True)):
        height, width = prompt.sizes[source]
        for row, column in np.ndindex(shown.grid):
            left, top, right, bottom = find_pixels(shown, row, column)
            if 0 <= left < right <= width and 0 <= top < bottom <= height:
                cells.setdefault(source, []).append((view, row, column))
    rng = np.random.default_rng(0)
    return [each[index] for each in cells.values() for index in rng.permutation(len(each))[:most]]


class _Stop(Exception):
    pass


def _visual_states(model: Model, sample: Sample) -> Tensor:
    """Return what the decoder is shown of the images, float32 [visual, feature].

    That is what enters it at the visual tokens, or with cross-attention the keys of the first layer that has it.
    """
    prompt, layers = model.prompt(sample), model.family.decoder(model.hf).layers
    states: list[Tensor] = []

    def keep(values: Tensor) -> None:
        states.append(values)
        raise _Stop

    with ExitStack() as stack:
        if prompt.visual_keys is None:
            stack.enter_context(observe(layers[0], inputs=keep))
            positions = prompt.visual_positions
        else:
            parts = next(parts for parts in map(model.family.parts, layers) if parts.has_cross_attention)
            observers = {parts.attention: lambda call: keep(call.key[0].transpose(0, 1).flatten(1)[None])}
            stack.enter_context(observe_attention([model.hf.config.get_text_config()], observers))
            positions = prompt.visual_keys
        stack.enter_context(suppress(_Stop))
        stack.enter_context(torch.inference_mode())
        model.hf(**model.prepare(sample), use_cache=False)
    return states[0][0, torch.from_numpy(positions).to(states[0].device)].float().cpu()


def _check_traces(
    model: Model, samples: Sequence[Sample], spec: CaptureSpec, folder: Path
) -> Iterator[Check]:
    """Trace answers, and compare with an eager pass over them, and reading with decoding."""
    run = trace(model, samples, folder / "compared", capture=spec, max_new_tokens=STEPS)
    for failure in run.failures:
        yield Check(f"trace of {failure['id']}", False, None, f"{failure['error']}: {failure['message']}")
    of_mass, of_stream, of_logprob = TOLERANCES[model.rounding]
    for traced in run:
        sample = next(sample for sample in samples if sample.id == traced.id)
        answer = traced.steps["id"].values
        steps = _count_text(model, answer)
        if not steps:
            yield Check(f"trace of {traced.id}", None, None, "its answer begins with a token of an image")
            continue
        try:
            eager = read_eagerly(model, sample, answer[:steps])
        except (RuntimeError, ValueError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            yield Check(
                f"parity of {traced.id}", None, None, f"no eager pass over prompt and answer ({reason})"
            )
            continue
        gaps = []
        if eager.rows is None:
            yield Check(f"attention of {traced.id}", None, None, "no layer has rows on the prompt")
        else:
            known = np.eye(len(Group))[traced.tokens["group"].values][: eager.rows.shape[-1]]  # [key, group]
            mass = np.einsum("lhsk,kg->slhg", eager.rows, known)
            got = traced.attention_mass.values[:steps]
            known_rows = ~np.isnan(mass).any(-1)
            gap = float(np.max(np.abs(got - mass)[known_rows]))
            text = f"within {gap:.1e} of eager attention, by group of tokens"
            yield Check(f"attention of {traced.id}", gap <= of_mass, gap, text)
        for name, expected in (("pre", eager.pre), ("post", eager.post)):
            got = traced.array(f"residual/{name}").values[:steps].swapaxes(0, 1)
            gaps.append(float(np.nanmax(np.abs(got - expected)) / np.nanmax(np.abs(expected))))
        gap = max(gaps)
        text = f"within {gap:.1e} of torch's own hooks, of the largest value"
        yield Check(f"residual stream of {traced.id}", gap <= of_stream, gap, text)
        gap = float(np.max(np.abs(traced.steps["logprob"].values[:steps] - eager.logprobs)))
        yield Check(
            f"log-probabilities of {traced.id}",
            gap <= of_logprob,
            gap,
            f"within {gap:.1e} nat of eager attention",
        )
        if (reading := traced.reading) is not None:
            gap = reading["difference"]
            text = (
                f"within {gap:.1e} nat of decoding; the same most likely token in {reading['agreeing']:.0f} of "
                f"{reading['steps']:.0f} steps"
            )
            yield Check(f"reading of {traced.id}", gap <= of_logprob, gap, text)
    if (way := find_way(model, load_capture("default"))).reason:
        yield Check("reading", None, None, way.text)


def _count_text(model: Model, answer: np.ndarray) -> int:
    """Return how many tokens of an answer come before one that stands for an image: a model of random weights writes them."""
    config = model.hf.config.to_dict()
    images = [number for name, number in config.items() if name.endswith("_token_id") and "eos" not in name]
    images += [number for name, number in config.items() if name.endswith(("_token_index", "_token"))]
    found = np.flatnonzero(np.isin(answer, [number for number in images if isinstance(number, int)]))
    return int(found[0]) if len(found) else len(answer)


def read_eagerly(model: Model, sample: Sample, answer: Sequence[int] | np.ndarray) -> EagerReading:
    """Read prompt and answer in one pass with eager attention, and look with the model's flags and torch's hooks.

    Args:
        answer: token ids [step].
    """
    layers = model.family.decoder(model.hf).layers
    prompt = model.prepare(sample)
    inputs = append_answers(model, prompt, [torch.as_tensor(answer)])
    first = prompt["input_ids"].shape[1] - 1
    streams: dict[tuple[str, int], Tensor] = {}

    def keep(name: str, index: int) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, options: Any, output: Any = None) -> None:
            values = (arguments[0] if arguments else options["hidden_states"]) if name == "pre" else output
            values = values[0] if isinstance(values, tuple) else values
            streams[name, index] = values[0, first:-1].float().cpu()

        return hook

    rows: dict[int, Tensor] = {}

    def keep_rows(index: int) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            rows[index] = output[1][0, :, first:-1].float().cpu()

        return hook

    with ExitStack() as stack:
        for index, layer in enumerate(layers):
            parts = model.family.parts(layer)
            if parts.attention is not None and not parts.has_cross_attention:
                handle = parts.attention.register_forward_hook(keep_rows(index))
                stack.callback(handle.remove)
            handle = layer.register_forward_pre_hook(keep("pre", index), with_kwargs=True)
            stack.callback(handle.remove)
            handle = layer.register_forward_hook(keep("post", index), with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(_eager(model))
        with torch.inference_mode():
            output = model.hf(**inputs, use_cache=False, return_dict=True)
    logprobs = output.logits[0, first:-1].float().log_softmax(-1).cpu()
    ids = torch.as_tensor(np.asarray(answer), dtype=torch.long)[:, None]
    steps, keys = len(ids), inputs["input_ids"].shape[1]
    n_heads = max((len(each) for each in rows.values()), default=0)
    all_rows = np.full((len(layers), n_heads, steps, keys), np.nan, np.float32)
    for index, each in rows.items():  # the keys of a window are the last ones
        all_rows[index, : len(each)] = 0
        all_rows[index, : len(each), :, keys - each.shape[-1] :] = each.numpy()
    missing = torch.full_like(next(iter(streams.values())), torch.nan)
    pre, post = (
        torch.stack([streams.get((name, index), missing) for index in range(len(layers))]).numpy()
        for name in ("pre", "post")
    )
    return EagerReading(all_rows if rows else None, pre, post, logprobs.gather(1, ids)[:, 0].numpy())


@contextmanager
def _eager(model: Model) -> Iterator[None]:
    """Within the block, attention is eager."""
    before = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.hf.set_attn_implementation(before)


def _list_missing(missing: Mapping[str, str]) -> Check:
    """Say what of the capture `full` the model does not have, by name with the reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    texts = [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
    return Check("capture", True, None, f"full without {'; '.join(texts)}" if texts else "all of full")


def _measure_trace(model: Model, sample: Sample, spec: CaptureSpec, folder: Path) -> Check:
    """Measure one trace of the default capture against plain `generate` of the same answer."""
    default = load_capture("default")
    capture = default.without(default.stored - spec.stored)

    def generate() -> None:
        with torch.inference_mode():
            inputs = model.prepare(sample)
            model.hf.generate(**inputs, max_new_tokens=2 * STEPS, do_sample=False)

    def record() -> None:
        trace(model, [sample], folder / "timed", capture=capture, max_new_tokens=2 * STEPS, overwrite=True)

    seconds = []
    for call in (generate, record):
        call()
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    on_gpu = model.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated(model.device) if on_gpu else peak_bytes()
    text = (
        f"{seconds[1]:.2f} s for up to {2 * STEPS} tokens, {seconds[1] / seconds[0]:.2f} times plain generate; "
        f"peak memory {format_bytes(memory)}"
    )
    return Check("one trace", True, seconds[1], text)
