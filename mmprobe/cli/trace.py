"""The command `trace`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    TO_CONTINUE,
    AnswersOption,
    AsJson,
    Capture,
    ReadingName,
    check_data,
    check_method,
    check_one_process,
    print_run,
)
from mmprobe.errors import InputError
from mmprobe.ledger import check_earlier, check_unlocked
from mmprobe.settings import AskSettings, DataSettings, FolderSettings, ModelSettings

log = logging.getLogger("mmprobe")


def trace(
    model: ModelSettings,
    asking: AskSettings,
    folder: FolderSettings,
    data: DataSettings = DataSettings(),  # noqa: B008
    capture: Capture = "default",
    engine: Annotated[
        str, typer.Option(help="What records: native (fast), nnsight or transformer_lens.")
    ] = "native",
    remote: Annotated[
        bool, typer.Option("--remote", help="With --engine nnsight: on NDIF's cluster; needs NDIF_API_KEY.")
    ] = False,
    pack_every: Annotated[
        int | None,
        typer.Option(help="Number of traces per file (default: 1).", min=1),
    ] = None,
    compress: Annotated[
        bool, typer.Option("--compress", help="Compress the numbers of traces (blosc2); needs hdf5plugin.")
    ] = False,
    answers: AnswersOption = None,
    read: ReadingName = "text",
    as_json: AsJson = False,
) -> None:
    """Answer samples with a model and record its internals.

    Answers to samples that have an `answer` are labelled right or wrong, where rules can read them. With --read likelihood,
    closed questions (yes or no, options) are labelled by which answer is most probable, and so by which margin.

    \b
    Examples:
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/first
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --capture full --limit 50
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --batch-size 8 --resume
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/sage --method sage --set eta=0
      mmprobe trace --model qwen3.5-27b --data mine.jsonl --out runs/thinks --template enable_thinking=true
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --answers responses.jsonl
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --read likelihood
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --shard 1/4
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out /shared/7b --ray 10.0.0.1:6379
      mmprobe trace --config run.yaml --out runs/second --resume
    """
    if remote and not folder.one_process:
        raise InputError("--remote: goes with one process; leave out --workers and --ray")
    check_one_process(model, folder, remote)
    if data.data is None and answers is None:
        raise InputError("--data: give the samples (see mmprobe trace --help)")
    check_data(data.data, answers)
    check_method(asking)
    if read != "text":
        from mmprobe.benchmarks.core.evaluate import check_likelihood
        from mmprobe.benchmarks.core.likelihood import check_closed, check_reading, describe_all

        check_reading(read)
        check_likelihood(model.name, asking, folder, remote=remote or None)
    out = folder.out
    check_earlier(out / "run.json", "a run", folder.resume, folder.overwrite, TO_CONTINUE)
    check_unlocked(out)
    if folder.part is not None:
        from mmprobe.traces.shards import check_shard, shard_folder, shards_differ

        check_shard(out, folder.part)
        check_unlocked(shard_folder(out, folder.part))

    from mmprobe.samples import load_samples
    from mmprobe.traces.capture import load_capture

    spec = load_capture(capture)
    if compress:
        spec = spec.model_copy(update={"compression": "blosc2"})
    samples = load_samples(data.data) if data.data else []
    _ = asking.methods  # a package's may not be importable

    from mmprobe.traces.asking import answered_samples

    samples = data.choose(samples or answered_samples(answers or Path()))
    if read != "text":
        check_closed(samples)

    import mmprobe
    from mmprobe.benchmarks.vqa.benchmark import label_answers
    from mmprobe.models import load_model, load_shapes
    from mmprobe.traces import trace as trace_samples
    from mmprobe.traces.check import was_checked
    from mmprobe.traces.workers import open_workers

    workers = open_workers(folder, model.device)
    if remote or workers is not None:
        loaded = load_shapes(**model.chosen)
    else:
        loaded = load_model(**model.chosen)
        if not was_checked(loaded):
            name = model.name
            log.warning("%s was not checked here; mmprobe check %s takes about a minute", name, name)
    run = trace_samples(
        loaded,
        samples,
        capture=spec,
        engine=engine,
        remote=remote,
        pack_every=pack_every,
        answers=answers,
        **asking.chosen,
        **folder.chosen | {"workers": workers},
    )
    if folder.part is not None and shards_differ(out):
        raise typer.Exit(1)  # a warning said why
    if folder.part is None or run.path == out:
        answered = {name: trace.response for name, trace in run.stream("answers")} if read != "text" else {}
        asked = [run.sample(name) for name in answered]
        told = describe_all(loaded, asked, answered, run.path, asking.batch_size) if asked else {}
        label_answers(run, told)
        run = mmprobe.open_run(run.path)  # with the labels, and what failed to be read
    print_run(run, as_json)
