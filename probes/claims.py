"""The interventions that the claims of `findings` imply, on some answers of a run.

Answers get other images, as a whole, in their regions and in places beside them, and the updates of attention or
of the FFNs are replaced by their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.analyses.attention_decay import slope_over_steps
from mmprobe.analyses.findings import first_deep_layer
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.interventions import load_methods
from mmprobe.models import Model
from mmprobe.models.hooks import Change
from mmprobe.models.points import Point
from mmprobe.models.prompt import build_chat
from mmprobe.models.reading import read_chats
from mmprobe.probes.answers import check_traced_model, check_whole, read_answer
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, ImageList
from mmprobe.probes.interchange.image_interchange import cover_cells, exchange_regions
from mmprobe.samples import Region, Sample
from mmprobe.settings import AskSettings
from mmprobe.traces.asking import answer


def exchange_images(
    model: Model, trace: Trace, others: ImageList, rng: np.random.Generator
) -> dict[str, float]:
    """Return what an answer loses when its images, or parts of them, are exchanged for others, in nat.

    It takes one forward pass over two to four rows.

    Args:
        trace: of a sample with images.
        others: other images of the same sizes.
        rng: draws the places beside the regions.

    Returns:
        - interchange: mean over the answer's tokens, all images exchanged
        - interchange_slope: its least-squares slope over steps; NaN for fewer than two steps
        - regions: of the whole answer, all regions exchanged; NaN without regions
        - elsewhere: of the whole answer, as many cells of the same images exchanged beside the regions; NaN
          if they do not fit

    Raises:
        InputError: another model made the trace.
    """
    check_whole(trace)
    sample, ids = trace.sample, trace.steps["id"].values.tolist()
    chat = build_chat(sample)
    prompt = model.prompt(sample)
    boxes = cover_cells(prompt, sample.regions) if sample.regions else []
    moved = move_regions(boxes, [image.size for image in chat.images], rng)
    parts = [part for part in (boxes, moved) if part]
    variants = [chat.images, others, *(exchange_regions(chat.images, others, part) for part in parts)]
    chats = [chat._replace(images=images) for images in variants]
    logprobs = read_chats(model, chats, [ids] * len(chats)).logprobs()
    own, *exchanged = (row.cpu().numpy().astype(float) for row in logprobs)
    check_traced_model(model, trace, own)
    losses = [own - row for row in exchanged]
    return {
        "interchange": float(losses[0].mean()),
        "interchange_slope": float(slope_over_steps(losses[0])),
        "regions": float(losses[1].sum()) if boxes else np.nan,
        "elsewhere": float(losses[2].sum()) if moved else np.nan,
    }


def move_regions(
    boxes: Sequence[Region], sizes: Sequence[tuple[int, int]], rng: np.random.Generator
) -> list[Region]:
    """Return boxes of the same sizes at random places of the same images, none over any of the boxes.

    A box moves by a multiple of its own width and height, so it covers whole visual tokens again.

    Args:
        boxes: of whole visual tokens.
        sizes: width and height of each image.

    Returns:
        As many boxes; none where a box finds no place.

    Example:
        >>> move_regions([Region(image=0, box=(0, 0, 28, 28))], [(56, 28)], np.random.default_rng(0))
        [Region(image=0, box=(28, 0, 28, 28))]
    """
    taken, moved = list(boxes), []
    for image, (x, y, width, height) in ((box.image, box.box) for box in boxes):
        places = [
            Region(image=image, box=(left, top, width, height))
            for left in np.arange(x % width, sizes[image][0] - width + 1, width).tolist()
            for top in np.arange(y % height, sizes[image][1] - height + 1, height).tolist()
        ]
        free = [place for place in places if not any(_overlap(place, other) for other in taken)]
        if not free:
            return []
        moved.append(free[rng.integers(len(free))])
        taken.append(moved[-1])
    return moved


def _overlap(one: Region, two: Region) -> bool:
    (x, y, width, height), (left, top, across, down) = one.box, two.box
    return (
        one.image == two.image
        and x < left + across
        and left < x + width
        and y < top + down
        and top < y + height
    )


KINDS = ("attention", "ffn")
Means = dict[tuple[str, int], Tensor]


def lose_updates(
    model: Model, answers: Sequence[tuple[Sample, Sequence[int]]], layers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return what each answer loses with updates replaced by their mean, nat a token [answer], by kind.

    Mean ablation (Wang et al., 2023): at the queries of the answer's steps, the update of each layer is
    replaced by its mean over the queries of all answers. All layers are replaced at once, attention and FFNs
    apart. It takes three forward passes an answer.

    Args:
        answers: samples with the token ids of their answers.
        layers: layers to change.

    Example:
        >>> lose_updates(model, [(trace.sample, trace.steps["id"].values) for trace in run], [6, 7])["ffn"]
        ... # doctest: +SKIP
        array([0.31, 0.44])
    """
    sums: Means = {}
    own, losses = [], {kind: np.empty(len(answers)) for kind in KINDS}
    with tqdm(total=2 * len(answers), desc="updates", unit="answer", disable=None) as progress:
        for sample, ids in answers:
            own.append(
                _read(
                    model,
                    sample,
                    ids,
                    {(k, n): _add_sum(sums, (k, n), len(ids)) for k in KINDS for n in layers},
                )
            )
            progress.update()
        count = sum(len(ids) for _, ids in answers)
        for index, (sample, ids) in enumerate(answers):
            for kind in KINDS:
                changes = {
                    key: _put_mean(total / count, len(ids)) for key, total in sums.items() if key[0] == kind
                }
                losses[kind][index] = own[index] - _read(model, sample, ids, changes)
            progress.update()
    return losses


def _read(model: Model, sample: Sample, ids: Sequence[int], changes: Mapping[Point, Change]) -> float:
    """Return the mean log-probability of an answer's tokens while components are changed."""
    return float(read_answer(model, sample, ids).logprobs(changes)[0].mean())


def _add_sum(sums: Means, key: tuple[str, int], steps: int) -> Change:
    """Return a function that adds a component at the answer's queries to its sum, and leaves it as it is."""

    def add(value: Tensor) -> Tensor:
        total = value[0, -steps - 1 : -1].double().sum(0)
        sums[key] = sums[key] + total if key in sums else total
        return value

    return add


def _put_mean(mean: Tensor, steps: int) -> Change:
    """Return a function that replaces a component at the answer's queries by its mean."""

    def put(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[0, -steps - 1 : -1] = mean.to(value.dtype)
        return changed

    return put


ANSWERS = 40
CheckAnswer = Callable[[str, Sample], bool | None]


def claim_interventions(
    model: Model,
    run: Run,
    check: CheckAnswer | None = None,
    answers: int = ANSWERS,
    alpha: float = 0.1,
    beta: float = 0.9,
    seed: int = 0,
    batch_size: int = 8,
) -> xr.Dataset:
    """Return what happens to answers of a run under the interventions that the claims of `findings` imply.

    Unfaithful answers are rare, so up to half of the chosen answers are unfaithful. Each answer has a weight,
    the number of answers of the run that it represents. Means over the run use it.

    It takes one forward pass over four rows and three over one row an answer, and two generations.

    Use it to test whether a correlation of `findings` has the cause that it suggests. `findings` tests the
    numbers.

    Args:
        check: function that reads an answer to a sample and returns whether it is faithful; None where it cannot
            tell. Without it nothing is generated.
        answers: number of answers, drawn from those with images; our choice, the default is 40.
        alpha: SAGE's `see` shift: the weights of visual tokens are multiplied by 1 + alpha, and by more where
            attention to them has fallen; the paper's 0.1. With much more a model may write no sentences any more.
        beta: SAGE's `analyze` factor of an FFN update that conflicts with attention; the paper's 0.9.
        seed: of the draw of answers and of places.
        batch_size: answers that are generated together; our choice, the default is 8.

    Returns:
        A data set with dimension `sample`, the chosen answers in the order of the run:

        - weight: answers of the run that the answer represents
        - interchange: nat a token that the answer loses with unrelated images; interchange_slope: its slope
          over steps
        - regions, elsewhere: nat that it loses when all its regions, or as many places beside them, are exchanged
        - attention, ffn: nat a token that it loses when the updates of the last third of the layers are
          replaced by their mean over these answers
        - faithful_before: whether `check` calls the answer faithful, 1, 0 or NaN; faithful_attention,
          faithful_ffn: the same for the answers with attention raised and with FFN updates scaled
        - answer_attention, answer_ffn: these answers

    Raises:
        InputError: `answers` is under 1, or another model made the run.
        NotApplicable: no answer has images that could be exchanged.

    Example:
        >>> ds = claim_interventions(model, run)                     # doctest: +SKIP
        >>> findings(run, [attention_decay(run), ds]).agree.values   # doctest: +SKIP
        array(['–', '–', 'no', 'no', ...], dtype='<U4')
    """
    check_whole(run)
    if answers < 1:
        raise InputError(f"answers {answers}: must be 1 or more")
    rng = np.random.default_rng(seed)
    samples = [sample for sample in map(run.sample, run.ids) if sample.images or sample.videos]
    images = CounterfactualImages(samples)
    chosen, rows = [], []
    for sample, weight in tqdm(
        _choose(samples, run, answers, rng), desc="exchanged images", unit="answer", disable=None
    ):
        others = images.find(sample, "unrelated")
        if others is not None and run[sample.id].steps.sizes["step"]:
            chosen.append(sample)
            rows.append({"weight": weight} | exchange_images(model, run[sample.id], others, rng))
    if not rows:
        raise NotApplicable(f"{run.path}: no answer has images that could be exchanged for others")
    out = xr.Dataset(coords={"sample": [sample.id for sample in chosen]})
    for name in rows[0]:
        out[name] = ("sample", [row[name] for row in rows])
    ids = [run[sample.id].steps["id"].values.tolist() for sample in chosen]
    layers = range(first_deep_layer(model.n_layers), model.n_layers)
    for name, losses in lose_updates(model, list(zip(chosen, ids, strict=True)), layers).items():
        out[name] = ("sample", losses)
    out.attrs = {
        "analysis": "claim_interventions",
        "about": "What happens to answers under the interventions that the claims of `findings` imply.",
        "run": str(run.path),
        "model": model.name,
        "answers": len(chosen),
        "run_answers": len(run),
        "alpha": alpha,
        "beta": beta,
        "note": _why_not_asked(model, run, check),
    }
    if check is not None and not out.attrs["note"]:
        _ask_again(out, model, run, chosen, check, batch_size)
    return out


def _choose(
    samples: Sequence[Sample], run: Run, count: int, rng: np.random.Generator
) -> list[tuple[Sample, float]]:
    """Return `count` samples, up to half of them unfaithful, and how many samples each represents."""
    unfaithful = np.array([run.faithful(sample.id) is False for sample in samples], bool)
    strata = [np.flatnonzero(unfaithful), np.flatnonzero(~unfaithful)]
    count = min(count, len(samples))
    first = min(len(strata[0]), max(count // 2, count - len(strata[1])))
    weights = np.zeros(len(samples))
    for members, size in zip(strata, (first, count - first), strict=True):
        if size:
            weights[rng.choice(members, size, replace=False)] = len(members) / size
    return [(samples[index], float(weights[index])) for index in np.flatnonzero(weights).tolist()]


def _why_not_asked(model: Model, run: Run, check: CheckAnswer | None) -> str:
    """Return why no answer is generated again, or nothing."""
    settings = run.config["generate"]
    if check is None:
        return "no rule reads these answers, so none was generated again"
    if settings.get("temperature") or settings.get("methods"):
        return "the run's answers were sampled or made with a method, so none was generated again"
    if model.has_cross_attention:
        return f"{model.family.name} has no visual tokens, so attention to them cannot be raised"
    return ""


def _ask_again(
    out: xr.Dataset, model: Model, run: Run, samples: Sequence[Sample], check: CheckAnswer, batch_size: int
) -> None:
    """Add whether the answers are faithful before and after each intervention, and the new answers."""
    settings = run.config["generate"]
    methods = {
        "attention": {"analyze": False, "alpha": out.attrs["alpha"]},
        "ffn": {"see": False, "beta": out.attrs["beta"]},
    }
    texts: dict[str, list[str]] = {"before": [run[sample.id].answer for sample in samples]}
    for name, parameters in methods.items():
        asked = AskSettings(
            method=load_methods("sage", generate=False, **parameters),
            max_new_tokens=settings.get("max_new_tokens", 256),
            batch_size=batch_size,
            repetition_penalty=settings.get("repetition_penalty"),
        )
        answers = dict(answer(model, samples, None, asked, title=f"changed answers: {name}"))
        texts[name] = [answers[sample.id] for sample in samples]
        out[f"answer_{name}"] = ("sample", np.array(texts[name], dtype=str))
    number = {True: 1.0, False: 0.0, None: np.nan}
    for name, given in texts.items():
        out[f"faithful_{name}"] = (
            "sample",
            [number[check(text, sample)] for text, sample in zip(given, samples, strict=True)],
        )
