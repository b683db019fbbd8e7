"""Write activations of a run as the shards that SAELens trains on, in its own environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.files import new_folder
from mmprobe.ledger import lock_file
from mmprobe.models import Model
from mmprobe.models.dictionaries import check_point, find_point
from mmprobe.models.reading import Reading
from mmprobe.probes.answer_records import AnswerSource, RunAnswer
from mmprobe.probes.features.run import GROUPS, SINKS, check_sinks, find_sinks, group_tokens
from mmprobe.samples import Sample

CONTEXT = 32  # tokens of a row; our choice
ROWS = 4096  # of a shard; our choice
_BATCH = 4  # answers in a pass; our choice


class Written(NamedTuple):
    """What was written.

    Attributes:
        folder: the data set; `datasets.load_from_disk` opens it.
        rows: number of rows of `context` tokens.
        dropped: number of tokens at the end that fill no row.
        answers: number of answers that were read.
        left_out: number of samples without an answer that can be read.
        sinks: number of sink tokens that were not written.
    """

    folder: Path
    rows: int
    dropped: int
    answers: int
    left_out: int
    sinks: int = 0


def write_activations(
    model: Model,
    source: Run | Sequence[Sample],
    out: str | Path,
    hooks: Sequence[str],
    groups: Sequence[str] = GROUPS,
    context: int = CONTEXT,
    sinks: float = SINKS,
) -> Written:
    """Write what is at some points of the decoder, at tokens of prompts and answers, in SAELens' format.

    It is the data set that SAELens' `CacheActivationsRunner` writes: a column for each hook, float32 [context, d_in], and
    `token_ids`. Train on it with `use_cached_activations=True`, `new_cached_activations_path` or
    `cached_activations_path` the folder, `context_size` and `hook_name`. Tokens of several answers follow one another in
    a row: the activations are those of their own prompts.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own greedy answer
            if they have none. One pass for each four of them.
        out: the folder, which must not exist.
        hooks: names such as `blocks.3.hook_resid_post` (`mmprobe.models.dictionaries.HOOKS`).
        groups: of the tokens that are written: visual, text, generated.
        context: number of tokens of a row.
        sinks: as in `features_run`: tokens whose state at a hook has so many times the median norm of the answer's tokens
            are not written, since a dictionary would learn little else; our choice, the default is 10.

    Raises:
        InputError: a hook or a group is unknown, sinks is not above 1, no token is left, `datasets` is missing, or `out` exists.

    Example:
        >>> write_activations(model, run, "activations", ["blocks.3.hook_resid_post"])     # doctest: +SKIP
        Written(folder=PosixPath('activations'), rows=120, dropped=7, answers=40, left_out=0)
    """
    try:
        import datasets
        from datasets.arrow_writer import ArrowWriter
    except ImportError:
        raise InputError("activations need datasets; pip install datasets") from None
    out = Path(out)
    if not hooks or len(set(hooks)) < len(hooks):
        raise InputError("hooks: name each once, such as blocks.3.hook_resid_post")
    points = {hook: find_point(hook) for hook in hooks}
    for hook, (kind, layer) in points.items():
        check_point(model, kind, layer, f"hook {hook}")
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"groups: {group!r}: choose {', '.join(GROUPS)}")
    check_sinks(sinks)
    if context < 1:
        raise InputError(f"context {context}: must be 1 or more")
    if out.exists():
        raise InputError(f"{out}: exists; choose another folder for the activations")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it first")
    answered = AnswerSource(model, source)
    numbers = [GROUPS.index(group) for group in groups]
    left, rows, shards, read, dropped_sinks = dict[str, np.ndarray](), 0, list[str](), 0, 0
    writer: Any = None
    with lock_file(out, "writing activations to it"), new_folder(out) as part:
        for answers in _batches(answered):
            read += len(answers)
            for columns, found in _read(model, points, answers, numbers, sinks):
                dropped_sinks += found
                left = {
                    name: np.concatenate([left[name], new]) if left else new for name, new in columns.items()
                }
            whole = len(left.get("token_ids", ())) // context
            if whole:
                cut = {name: values[: whole * context] for name, values in left.items()}
                left = {name: values[whole * context :] for name, values in left.items()}
                if writer is None or rows - (len(shards) - 1) * ROWS >= ROWS:
                    _close(writer)
                    shards.append(f"data-{len(shards):05d}.arrow")
                    described = _describe(datasets, cut, context)
                    writer = ArrowWriter(features=described, path=str(part / shards[-1]))
                writer.write_batch(
                    {
                        name: list(values.reshape(whole, context, *values.shape[1:]))
                        for name, values in cut.items()
                    }
                )
                rows += whole
        if writer is None:
            raise InputError(
                f"{answered.name}: fewer than {context} tokens of {', '.join(groups)}; set a smaller context"
            )
        _close(writer)
        _finish(datasets, part, described, shards)
    dropped = len(left["token_ids"])
    return Written(out, rows, dropped, read, len(answered.samples) - read, dropped_sinks)


def _batches(answered: AnswerSource) -> Iterator[list[RunAnswer]]:
    """Yield answers that can be read, a batch at a time; all of a batch have images, or none."""
    batch: list[RunAnswer] = []
    size = _BATCH if answered.model.family.batches else 1
    for sample in tqdm(answered.samples, desc="activations", disable=None):
        answer = answered.find(sample)
        if not answer.ids:
            continue
        if batch and (len(batch) == size or bool(batch[0].sample.images) != bool(sample.images)):
            yield batch
            batch = []
        batch.append(answer)
    if batch:
        yield batch


def _read(
    model: Model, points: dict[str, Any], answers: Sequence[RunAnswer], groups: Sequence[int], sinks: float
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yield for each answer its token ids [token] and by hook what is there, float32 [token, d_in]; and how many sinks it has.

    Sinks are left out.
    """
    kept: dict[str, Tensor] = {}
    batch = model.batch([answer.sample for answer in answers])
    reading = Reading(model, batch, [answer.ids for answer in answers])
    by_point: dict[Any, Callable[[Tensor], None]] = {
        point: partial(kept.__setitem__, hook) for hook, point in points.items()
    }
    with torch.no_grad():
        reading.logits(observers=by_point)
    for number, row in enumerate(reading.rows):
        group = group_tokens(row.prompt, len(row.ids) - 1)
        own = slice(row.prompt.padding, row.prompt.padding + len(group))
        is_sink = (
            torch.stack([find_sinks(kept[hook][number, own].flatten(1), sinks) for hook in points])
            .any(0)
            .cpu()
            .numpy()
        )
        wanted = np.isin(group, groups)
        chosen = wanted & ~is_sink
        ids = np.concatenate([row.prompt.ids, row.ids.cpu().numpy()[:-1]])
        columns = {"token_ids": ids[chosen].astype(np.int32)}
        for hook, point in points.items():
            value = kept[hook][number, own]
            value = value.flatten(1) if point[0] == "head" else value
            columns[hook] = value.float().cpu().numpy()[chosen]
        yield columns, int((wanted & is_sink).sum())


def _describe(datasets: Any, columns: dict[str, np.ndarray], context: int) -> Any:
    """Return the types of the columns, as SAELens has them."""
    named: dict[str, Any] = {
        hook: datasets.Array2D(shape=(context, values.shape[1]), dtype="float32")
        for hook, values in columns.items()
        if hook != "token_ids"
    }
    named["token_ids"] = datasets.Sequence(datasets.Value(dtype="int32"), length=context)
    return datasets.Features(named)


def _close(writer: Any) -> None:
    if writer is not None:
        writer.finalize()


def _finish(datasets: Any, part: Path, described: Any, shards: Sequence[str]) -> None:
    """Write what `datasets.load_from_disk` reads beside the shards."""
    datasets.DatasetInfo(features=described).write_to_directory(str(part))
    names = "".join(f"{name} {(part / name).stat().st_size}" for name in shards)
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in shards],
        "_fingerprint": hashlib.sha256(names.encode()).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (part / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
