"""Shards of a benchmark's answers: parts that processes answer independently, and their merge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, answer_lengths, with_options, wording_of
from mmprobe.benchmarks.core.load_data import load_truth
from mmprobe.files import write_whole
from mmprobe.ledger import check_unlocked, lock_folder

if TYPE_CHECKING:
    from mmprobe.models.devices import DeviceMap
    from mmprobe.traces.scale.crew import Workers


def answer_shard(
    name: str,
    model: str,
    out: str | Path,
    shard: str,
    *,
    data: str | Path,
    limit: int | None = None,
    trace: bool = False,
    capture: str = "default",
    method: str = "plain",
    batch_size: int = 1,
    max_new_tokens: int | None = None,
    repetition_penalty: float | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: DeviceMap = None,
    resume: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
    workers: Workers | None = None,
    shared_prefix: bool = True,
    **parameters: Any,
) -> bool:
    """Answer one of n parts of a benchmark's questions.

    The last shard that finishes makes the answers of a single process of them. `evaluate` with `resume` then asks
    what follows from the answers, if anything, and scores.

    Args:
        name, model, out, limit, options: as in `evaluate`.
        shard: `i/n`, as in `mmprobe.trace`.
        data: published files, or samples.jsonl of `make-pairs`.
        resume: continue an earlier call of this shard.
        trace, capture, method, batch_size, max_new_tokens, repetition_penalty, device, dtype, device_map, workers:
            as in `evaluate`, as are `shared_prefix` and `parameters`.

    Returns:
        Whether `out` contains all answers now.

    Raises:
        InputError: as `evaluate`; or the shard cannot be made in `out`, or another process makes it.

    Example:
        >>> answer_shard("spd-faith", "tiny-spd", "results/spd", "1/2", data="pairs/samples.jsonl")   # doctest: +SKIP
        False
    """
    from mmprobe.benchmarks.core.runner import answer_part, check_questions, load_for, local_answerer
    from mmprobe.benchmarks.scale.batches import GenerationSettings, answer_batches
    from mmprobe.interventions.registry import load_methods
    from mmprobe.models.aliases import locate
    from mmprobe.traces.run import trace as trace_samples
    from mmprobe.traces.scale.shards import choose_part, finish_shard, merge_if_last

    out = Path(out)
    benchmark = with_options(BENCHMARKS[name], options)
    methods = load_methods(method, **parameters)
    locate(model)
    truth = load_truth(benchmark, data, out / "data", limit=limit)
    check_questions(benchmark, truth)
    questions, lengths = benchmark.ask_questions(truth), answer_lengths(benchmark, max_new_tokens)
    if trace:
        run = trace_samples(
            load_for(workers, model, device, dtype, device_map),
            questions,
            out / "run",
            capture=capture,
            max_new_tokens=lengths,
            batch_size=batch_size,
            repetition_penalty=repetition_penalty,
            method=methods,
            resume=resume,
            shard=shard,
            workers=workers,
            shared_prefix=shared_prefix,
        )
        return run.path == out / "run"
    settings = GenerationSettings(lengths, batch_size, methods, repetition_penalty, shared_prefix)
    part = choose_part(out, shard, answer_batches(questions, settings))
    call: dict[str, Any] = {
        "model": model,
        "method": method,
        "parameters": parameters,
        "max_new_tokens": lengths,
        "wording": wording_of(benchmark),
    }
    call["repetition_penalty"] = repetition_penalty
    with lock_folder(part.folder, "answering into it"):
        loaded = load_for(workers, model, device, dtype, device_map)
        answerer = local_answerer(
            loaded,
            *(lengths, batch_size, None, capture, methods, None, repetition_penalty, workers, shared_prefix),
        )
        answer_part(part.folder, questions, part.samples, answerer, call, resume, benchmark.name, loaded)
        finish_shard(part)
    merge_if_last(out, merge_answers)
    return (out / "responses.jsonl").exists()


def merge_answers(out: Path) -> int:
    """Make one file of the finished shards' answers; return their number. Raises InputError for others."""
    from mmprobe.traces.scale.shards import FOLDER, check_all_alike, read_shards, whole_order

    with lock_folder(out, "merging its shards"):
        if not (out / "responses.jsonl").exists():
            shards = read_shards(out)
            for folder in shards:
                check_unlocked(folder)
            check_all_alike(shards)
            line_of = {
                json.loads(line)["id"]: line
                for folder in shards
                for line in (folder / "responses.jsonl").read_bytes().splitlines(keepends=True)
            }
            answers = b"".join(line_of[name] for name in whole_order(shards.values()))
            asked = (next(iter(shards)) / "asked.json").read_bytes()
            write_whole({out / "asked.json": asked, out / "responses.jsonl": answers})
        shutil.rmtree(out / FOLDER, ignore_errors=not (out / FOLDER).exists())
        return len((out / "responses.jsonl").read_bytes().splitlines())
