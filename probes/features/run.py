"""How well a dictionary explains the states of a run, by token group, and which of its features tell answers apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import xarray as xr
from scipy.stats import false_discovery_control
from torch import Tensor

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model, Prompt, organisms
from mmprobe.models.checkpoints import locate
from mmprobe.models.dictionaries import Dictionary, check_dictionary, load_dictionary
from mmprobe.models.points import Point
from mmprobe.models.prompt import decode_tokens
from mmprobe.models.reading import Reading
from mmprobe.probes.answer_records import (
    AnswerArrays,
    AnswerSource,
    Arrays,
    RunAnswer,
    RunOptions,
    measure_answers,
)
from mmprobe.probes.visual_tokens.cells import cell_boxes
from mmprobe.samples import image_sets
from mmprobe.stats.compare import MINIMUM, compare_groups
from mmprobe.stats.estimate import estimate_from_sums
from mmprobe.stats.intervals import FRACTION, LENGTH

GROUPS = ("visual", "text", "generated")
STREAMS = {"residual": "residual_pre", "resid_mid": "residual_mid", "resid_post": "residual_post"}
RATE = 0.05  # false discovery rate
SHOWN, TOP = 8, 5  # features whose first tokens are listed, and how many of them; our choice
SINKS = 10.0  # times the median norm of an answer's tokens, above which a token is a sink; our choice
_OFTEN = 0.5  # share of visual tokens; a feature that is active at more of them is not listed


class TokenStates(NamedTuple):
    """What a dictionary reads and writes at each token that some token of the answer sees.

    Attributes:
        prompt: the prompt.
        ids: int64 [token], the prompt and the answer without its last token.
        group: int [token], the index in `GROUPS`.
        read: float32 [token, d_in].
        write: float32 [token, d_out], the same as `read` but for transcoders.
    """

    prompt: Prompt
    ids: np.ndarray
    group: np.ndarray
    read: Tensor
    write: Tensor


def features_run(
    model: Model,
    source: Run | Sequence[Any],
    dictionary: str = "",
    features: Sequence[int] | None = None,
    sinks: float = SINKS,
    **options: Unpack[RunOptions],
) -> xr.Dataset:
    """Return how well a dictionary explains the states of answers, where its features fire, and which tell labels.

    A dictionary that was trained on text need not explain visual tokens: `explained` says it for each group. Where
    it is low, what its features say about these tokens says little about the model.

    Sink tokens are left out. Most decoders write hundreds of times the usual norm into one of the first tokens (Sun et al.,
    2024, "Massive Activations in Large Language Models", arXiv:2402.17762), and that token alone would be the variance.

    Use it before anything else with a dictionary. A feature that tells faithful from unfaithful answers need not
    cause them: change it (`--method features`, `feature_effects`).

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own greedy
            answer if they have none. States that a trace has are not read again.
        dictionary: as in `load_dictionary`; empty for the one that ships for the model.
        features: the features whose first tokens are listed; None for those that tell the labels apart and, after
            them, those with the largest activations that are active at no more than half of the visual tokens.
        sinks: how many times the median norm of an answer's tokens a token's state must have to be a sink; our choice,
            the default is 10. Infinity leaves none out.
        options: those of `RunOptions`.

    Returns:
        A data set with dimensions `group` (visual, text, generated), `feature`, `shown`, `place`.

        - explained (group): share of the variance over tokens that the reconstruction explains
        - l0 (group): mean number of active features of a token
        - dead (group): share of features that are active at no token
        - n_tokens (group): of those that count; n_sinks (group): those that are left out
        - density (group, feature): share of tokens at which the feature is active
        - told_p, told_difference (group, feature): of the mean activation of unfaithful minus that of faithful
          answers, on the sets of images that did not choose; NaN where it was not chosen. A half of the sets chooses
          by permutation tests with a false discovery rate of 5 % over groups and features
        - told (group, feature): whether the chosen feature passes on the other half, by the same rate
        - listed (shown): the features that are listed
        - top_activation, top_text, top_sample, top_group, top_image (shown, place), top_box (shown, place, corner):
          the tokens where they are most active; x, y, width and height in pixels, -1 for tokens that show no cell
        - top_path, top_height, top_width (shown, place): the image's file, and its size in pixels

        explained, l0 and dead have _low and _high: 95 % intervals over sets of images (`stats.intervals`).

    Raises:
        InputError: no dictionary is named, or it does not fit the model; or another model made the run; or sinks is not
            above 1.
        NotApplicable: no answer can be read.

    Example:
        >>> ds = features_run(model, run, "tiny-spd")                        # doctest: +SKIP
        >>> ds.explained.sel(group="visual").item()                          # doctest: +SKIP
        0.99
    """
    check_sinks(sinks)
    chosen = find_dictionary(model, dictionary)
    answered = AnswerSource(model, source, options)

    def measure(answers: list[RunAnswer]) -> list[Arrays]:
        kept = [answer for answer in answers if answer.ids]
        states = iter(read_states(model, chosen, source, kept))
        return [measure_states(chosen, next(states), sinks) if answer.ids else {} for answer in answers]

    size = options.get("batch_size", 4) if model.family.batches else 1
    settings = {"analysis": "features", "dictionary": dictionary or chosen.name, "sinks": sinks}
    records = [record for record in measure_answers(answered, measure, settings, size) if record.arrays]
    if not records:
        raise NotApplicable(f"{answered.name}: no sample has an answer that can be read")
    sets = image_sets([record.answer.sample for record in records])
    out = xr.Dataset(coords={"group": list(GROUPS), "feature": np.arange(chosen.n_features)})
    out.update(measure_fit(records, sets))
    out.update(_tell_labels(records, sets))
    shown = _choose(out, records) if features is None else list(features)
    for number in shown:
        if not 0 <= number < chosen.n_features:
            raise InputError(f"features: {number}: the dictionary has features 0 to {chosen.n_features - 1}")
    out.update(_list_tokens(model, records, shown))
    return out.assign_attrs(
        analysis="features", about="What a dictionary explains of the states, and where its features fire.",
        run=str(source.path) if isinstance(source, Run) else "samples", model=model.name, dictionary=chosen.name,
        hook=chosen.hook, trained_on=chosen.model or "", samples=len(records), sets=len(np.unique(sets)),
        left_out=len(answered.samples) - len(records), **answered.describe(),
    )  # fmt: skip


def find_dictionary(model: Model, name: str) -> Dictionary:
    """Return a dictionary on the model's device once it fits; without a name the one that ships for the model.

    Raises:
        InputError: none is named and none ships, or it does not fit.

    Example:
        >>> from mmprobe.models import load_model
        >>> find_dictionary(load_model("tiny-spd", device="cpu"), "").name
        'tiny-spd'
    """
    if not name and not model.source.startswith((locate(organisms.BASE)[0], organisms.PREFIX)):
        raise InputError(
            f"dictionary: none ships for {model.name}; name one, such as --set dictionary=FOLDER (docs/features.md)"
        )
    dictionary = load_dictionary(name or "tiny-spd")
    check_dictionary(model, dictionary)
    return dictionary.to(model.device)


def read_states(
    model: Model, dictionary: Dictionary, source: Run | Sequence[Any], answers: Sequence[RunAnswer]
) -> list[TokenStates]:
    """Return what a dictionary reads and writes at the tokens of prompts and answers.

    They are taken from the traces of a run where these have them all, else from one pass over all answers.

    Example:
        >>> read_states(model, dictionary, run, answers)[0].read.shape       # doctest: +SKIP
        torch.Size([97, 192])
    """
    samples = [answer.sample for answer in answers]
    if not samples:
        return []
    if isinstance(source, Run):
        traced = [_read_trace(model, dictionary, source[answer.sample.id], answer) for answer in answers]
        if all(states is not None for states in traced):
            return [states for states in traced if states is not None]
    if len({bool(sample.images) for sample in samples}) > 1:  # a batch has images, or it has none
        return [read_states(model, dictionary, (), [answer])[0] for answer in answers]
    reading = Reading(model, model.batch(samples), [answer.ids for answer in answers])
    kept: dict[Point, Tensor] = {}
    points = {dictionary.reads, dictionary.writes}

    def keep(point: Point, value: Tensor) -> None:
        kept[point] = value.detach()

    with torch.no_grad():
        reading.logits(observers={point: _bind(keep, point) for point in points})
    out = []
    for number, row in enumerate(reading.rows):
        own = slice(row.prompt.padding, row.prompt.padding + len(row.prompt.ids) + len(row.ids) - 1)
        read, write = (
            dictionary.flatten(kept[point][number, own]) if point[0] == "head" else kept[point][number, own]
            for point in (dictionary.reads, dictionary.writes)
        )
        out.append(_join(row.prompt, row.ids.cpu().numpy(), read.float(), write.float()))
    return out


def _bind(keep: Any, point: Point) -> Any:
    return lambda value: keep(point, value)


def _read_trace(model: Model, dictionary: Dictionary, trace: Trace, answer: RunAnswer) -> TokenStates | None:
    """Return the states of a trace that has them at all tokens; else None."""
    kind, layer = dictionary.reads
    stream = STREAMS.get(kind, "")
    names = (f"prompt/{stream}", stream.replace("_", "/"))
    if dictionary.is_transcoder or not set(names) <= set(trace.captured):
        return None
    if trace.steps["id"].values.tolist() != answer.ids:
        return None  # other answers are read
    prompt = model.prompt(answer.sample)
    before, after = (trace.array(name) for name in names)
    if (
        len(before) != len(prompt.ids)
        or layer not in before["layer"].values
        or layer not in after["layer"].values
    ):
        return None
    parts = [
        before.sel(layer=layer).values,
        after.sel(layer=layer).values[1:],
    ]  # the first is the prompt's last token
    states = torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(model.device)
    return _join(prompt, np.array(answer.ids), states, states)


def _join(prompt: Prompt, ids: np.ndarray, read: Tensor, write: Tensor) -> TokenStates:
    group = group_tokens(prompt, len(ids) - 1)
    return TokenStates(prompt, np.concatenate([prompt.ids, ids[:-1]]), group, read, write)


def group_tokens(prompt: Prompt, steps: int) -> np.ndarray:
    """Return the index in `GROUPS` of each token of a prompt and of some tokens of its answer, int [token].

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> group_tokens(load_model("tiny-spd").prompt(Sample(id="a", question="What?")), 2)[-3:].tolist()
        [1, 2, 2]
    """
    group = np.ones(len(prompt.ids), int)
    group[prompt.visual_positions] = 0
    return np.concatenate([group, np.full(steps, 2)])


def check_sinks(sinks: float) -> None:
    """Raise InputError unless sink tokens have more than the median norm."""
    if not sinks > 1:
        raise InputError(f"sinks {sinks}: must be above 1, in median norms of an answer's tokens")


def find_sinks(states: Tensor, sinks: float) -> Tensor:
    """Return which tokens of an answer have a norm of more than `sinks` times the median, bool [token].

    Args:
        states: [token, size].

    Example:
        >>> find_sinks(torch.tensor([[27000.0], [50.0], [-60.0], [70.0]]), 10).tolist()
        [True, False, False, False]
    """
    norms = states.float().norm(dim=-1)
    return norms > sinks * norms.median()


def measure_states(dictionary: Dictionary, states: TokenStates, sinks: float) -> Arrays:
    """Return sums over the tokens of one answer, by group, and where each feature is most active."""
    with torch.no_grad():
        is_sink = find_sinks(states.read, sinks)
        z = dictionary.encode(states.read) * ~is_sink[:, None]
        error = (dictionary.decode(z, states.read) - states.write).double().pow(2).sum(-1)
        write = states.write.double()
        counts, sums, activation = [], [], []
        for number in range(len(GROUPS)):
            own = torch.from_numpy(states.group == number).to(z.device) & ~is_sink
            part = z[own]
            active = (part > 0).double()
            numbers = [own.sum(), error[own].sum(), write[own].pow(2).sum(), active.sum()]
            sums.append(torch.cat([torch.stack([each.double() for each in numbers]), write[own].sum(0)]))
            counts.append(active.sum(0))
            activation.append(part.sum(0) / max(len(part), 1))
        best = z.topk(min(TOP, len(z)), 0)
    arrays = {
        "sums": torch.stack(sums), "counts": torch.stack(counts), "activation": torch.stack(activation),
        "best": best.values, "place": best.indices,
    }  # fmt: skip
    return {name: value.cpu().numpy() for name, value in arrays.items()} | {
        "ids": states.ids,
        "group": states.group,
        "sinks": np.bincount(states.group[is_sink.cpu().numpy()], minlength=len(GROUPS)),
    }


def measure_fit(records: Sequence[AnswerArrays], sets: np.ndarray) -> dict[str, Any]:
    """Return explained variance, L0 and dead features by group, and the density of each feature."""
    sums = np.stack([record.arrays["sums"] for record in records])  # [answer, group, number]
    counts = np.stack([record.arrays["counts"] for record in records])  # [answer, group, feature]
    per_token = sums.sum(0)[:, :1]
    out: dict[str, Any] = {"n_tokens": (("group",), per_token[:, 0].astype(int))}
    out["n_sinks"] = (("group",), np.sum([record.arrays["sinks"] for record in records], 0))

    def explain(total: np.ndarray) -> np.ndarray:
        n = total[..., :1]
        variance = total[..., 2] - (total[..., 4:] ** 2 / n).sum(-1)
        return np.asarray(1 - total[..., 1] / np.where(variance > 0, variance, np.nan))

    measures = {
        "explained": (explain, sums, (None, 1.0)),
        "l0": (lambda total: total[..., 3] / total[..., 0], sums, LENGTH),
        "dead": (lambda total: (total == 0).mean(-1), counts, FRACTION),
    }
    with np.errstate(invalid="ignore", divide="ignore"):
        out["density"] = (("group", "feature"), counts.sum(0) / per_token)
        for name, (combine, values, ends) in measures.items():
            estimates = []
            for number in range(len(GROUPS)):
                own = values[:, number]
                estimates.append(estimate_from_sums(combine, own, sets, ends))
            parts = [[getattr(each, end) for each in estimates] for end in ("value", "low", "high")]
            known = per_token[:, 0] > 0
            for suffix, part in zip(("", "_low", "_high"), parts, strict=True):
                out[name + suffix] = (("group",), np.where(known, np.array(part, float), np.nan))
    return out


def _tell_labels(records: Sequence[AnswerArrays], sets: np.ndarray) -> dict[str, Any]:
    """Return which features tell unfaithful from faithful answers: a half of the sets chooses, the other tests."""
    values = np.stack([record.arrays["activation"] for record in records])
    shape = values.shape[1:]
    flat = values.reshape(len(values), -1).astype(float)
    labels = np.array([-1 if r.answer.faithful is None else int(r.answer.faithful) for r in records])
    half = np.unique(sets, return_inverse=True)[1] % 2
    p, difference, told = (np.full(flat.shape[1], np.nan) for _ in range(3))
    told[:] = 0
    counts = [int(((labels == label) & (half == part)).sum()) for label in (0, 1) for part in (0, 1)]
    if min(counts) >= MINIMUM:
        varies = flat.std(0) > 0
        first = _compare(flat[:, varies], labels, half == 0, sets)
        chosen = np.flatnonzero(varies)[false_discovery_control(first[1]) <= RATE] if varies.any() else []
        if len(chosen):
            difference[chosen], p[chosen] = _compare(flat[:, chosen], labels, half == 1, sets)
            same = np.sign(difference[chosen]) == np.sign(first[0][np.isin(np.flatnonzero(varies), chosen)])
            told[chosen] = (false_discovery_control(p[chosen]) <= RATE) & same
    dims = ("group", "feature")
    return {
        "told_p": (dims, p.reshape(shape)),
        "told_difference": (dims, difference.reshape(shape)),
        "told": (dims, told.reshape(shape).astype(bool)),
        "n_faithful": ((), int((labels == 1).sum())),
        "n_unfaithful": ((), int((labels == 0).sum())),
    }


def _compare(
    values: np.ndarray, labels: np.ndarray, kept: np.ndarray, sets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    found = compare_groups(values[kept], labels[kept] == 0, labels[kept] == 1, sets=sets[kept])
    return found.value, found.p


def _choose(out: xr.Dataset, records: Sequence[AnswerArrays]) -> list[int]:
    """Return the features that are listed."""
    told = np.flatnonzero(out["told"].values.any(0)).tolist()
    best = np.max(
        [
            np.where(record.arrays["group"][record.arrays["place"]] == 0, record.arrays["best"], 0).max(0)
            for record in records
        ],
        0,
    )
    if not best.any():  # no visual tokens
        best = np.max([record.arrays["best"][0] for record in records], 0)
    often = np.nan_to_num(out["density"].values[0]) > _OFTEN
    order = np.argsort(np.where(often, -1, best))[::-1]
    return [*told, *(int(each) for each in order if each not in told and best[each] > 0)][:SHOWN]


def _list_tokens(model: Model, records: Sequence[AnswerArrays], shown: Sequence[int]) -> dict[str, Any]:
    """Return the tokens at which some features are most active."""
    shape = (len(shown), TOP)
    activation, box = np.full(shape, np.nan), np.full((*shape, 4), -1.0)
    text, sample, group, path = (np.full(shape, "", dtype=object) for _ in range(4))
    image, height, width = (np.full(shape, -1) for _ in range(3))
    for number, feature in enumerate(shown):
        found = [
            (float(value), row, int(place))
            for row, record in enumerate(records)
            for value, place in zip(
                record.arrays["best"][:, feature], record.arrays["place"][:, feature], strict=True
            )
            if value > 0
        ]
        seen: set[tuple[Any, ...]] = set()
        for value, row, place in sorted(found, reverse=True):
            record = records[row]
            own, count = record.answer.sample, len(seen)
            token = int(record.arrays["ids"][place])
            kind = int(record.arrays["group"][place])
            key = (tuple(map(str, own.images)), place) if kind == 0 else (token, own.id)
            if key in seen or count >= TOP:  # questions about the same images have the same visual tokens
                continue
            seen.add(key)
            at = (number, count)
            activation[at], sample[at], group[at] = value, own.id, GROUPS[kind]
            text[at] = decode_tokens(model, np.array([token]))[0]
            prompt = model.prompt(own)
            if kind == 0 and prompt.views:
                cell = int(np.searchsorted(prompt.visual_positions, place))
                index, *corners = cell_boxes(prompt)[cell]
                image[at], box[at], path[at] = int(index), corners, str(own.images[int(index)])
                height[at], width[at] = prompt.sizes[int(index)]
    dims = ("shown", "place")
    named = {
        "activation": activation, "text": text.astype(str), "sample": sample.astype(str), "group": group.astype(str),
        "image": image, "path": path.astype(str), "height": height, "width": width,
    }  # fmt: skip
    out: dict[str, Any] = {f"top_{name}": (dims, values) for name, values in named.items()}
    return out | {"top_box": ((*dims, "corner"), box), "listed": (("shown",), np.array(shown, int))}
