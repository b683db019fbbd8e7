"""The commands `plan`, `plan diagnose` and `plan bench`: what a run and a diagnosis take, how many questions are needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmprobe.cli.options import AsJson, Capture, print_result
from mmprobe.errors import InputError
from mmprobe.files import format_bytes, read_results
from mmprobe.settings import DIAGNOSED, AskSettings, ModelSettings
from mmprobe.stats.power import design_effect, questions_for

if TYPE_CHECKING:
    from mmprobe.samples import Sample

_N_TRIED = 8  # samples whose prompts a plan measures

SampleCount = Annotated[int | None, typer.Option(help="Number of samples; default: all of --data.", min=1)]
PromptData = Annotated[Path | None, typer.Option(help="Samples that give the lengths of the prompts.")]
Trying = Annotated[
    bool, typer.Option("--probe", help="Try a few samples of --data, to measure time and lengths.")
]


def plan(
    context: typer.Context,
    asking: AskSettings,
    model: ModelSettings = ModelSettings(),  # noqa: B008
    samples: SampleCount = None,
    data: PromptData = None,
    capture: Capture = "default",
    probe: Trying = False,
    dictionary: Annotated[
        str | None,
        typer.Option(help="A dictionary of features: its memory, and the disk of activations at its hook."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="Memory of each GPU, as 24GB,24GB, or auto: what --device-map auto puts where."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict what a run takes; plan diagnose: a diagnosis; plan bench: how many questions show a difference.

    Without --probe no weights are loaded. Without --data the prediction is for prompts of 1,024 tokens, 768
    of them visual.

    \b
    Examples:
      mmprobe plan --model tiny-spd --samples 1000 --max-new-tokens 64
      mmprobe plan --model qwen2.5-vl-7b --data mine.jsonl --capture full --probe
      mmprobe plan --model qwen2.5-vl-7b --samples 1000 --method vcd
      mmprobe plan --model tiny-spd --samples 1000 --dictionary tiny-spd
      mmprobe plan --model qwen2.5-vl-72b --samples 1000 --devices 80GB,80GB
      mmprobe plan diagnose --model qwen2.5-vl-7b --data mine.jsonl --probe
      mmprobe plan bench --difference 0.05 --accuracy 0.7
    """
    if name := context.invoked_subcommand:
        sources = map(context.get_parameter_source, context.params)
        if any(source is not None and source.name != "DEFAULT" for source in sources):
            raise InputError(f"plan {name}: write its options after {name}")
        return
    if probe and devices is not None:
        raise InputError("plan: --devices predicts from shapes; leave --probe out")
    known = _load_known("plan", model, asking, samples, data, probe)

    import torch

    from mmprobe.models import load_model, load_shapes
    from mmprobe.models.dictionaries import check_dictionary, load_dictionary
    from mmprobe.samples import longest
    from mmprobe.traces import load_capture
    from mmprobe.traces.capture import PromptSize
    from mmprobe.traces.engines import resolve_capture
    from mmprobe.traces.plan import (
        dry_run,
        mean_prompt_size,
        plan_devices,
        plan_features,
        read_memories,
        residual_bytes,
        smaller_captures,
        warn_of_large_images,
    )
    from mmprobe.traces.plan import plan as plan_run

    methods, batch_size, max_new_tokens = asking.methods, asking.batch_size, longest(asking.lengths)
    spec, count = load_capture(capture), samples or len(known)
    memories = read_memories(devices) if devices is not None else []
    features = load_dictionary(dictionary) if dictionary is not None else None
    if probe:
        loaded = load_model(**model.chosen)
        wanted = max(_N_TRIED, 2 * batch_size)
        tried = known[:: max(len(known) // wanted, 1)][:wanted]
        made = dry_run(loaded, spec, tried, count, max_new_tokens, batch_size, methods)
        prompt = mean_prompt_size(loaded, tried)
    else:
        # on the GPUs that are to come, the dtype is the checkpoint's, as on any device but the CPU
        loaded = load_shapes(**model.chosen | ({"device": "meta"} if memories else {}))
        prompt = mean_prompt_size(loaded, known[:: max(len(known) // _N_TRIED, 1)]) if known else PromptSize()
        device = model.device
        on_gpu = (
            bool(memories) or device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        )
        spec = resolve_capture(spec, loaded, batch_size=batch_size)
        made = plan_run(loaded, spec, count, max_new_tokens, batch_size, prompt, on_gpu, methods)
    warn_of_large_images(loaded, known[:: max(len(known) // _N_TRIED, 1)])
    seconds = "not known without --probe" if made.seconds is None else f"{made.seconds:.0f} s"
    text = (
        f"disk    {format_bytes(made.disk)}\nhost    {format_bytes(made.host)}\ndevice  {format_bytes(made.device)}\n"
        f"prefix  {made.prefixes}\nrecord  {made.recording}\ntime    {seconds}\nfor {count} samples: {made.assumed}"
    )
    result = made._asdict()
    if model.pixels:
        result["pixels"] = model.pixels
        text += f"\npixels  {', '.join(f'{name} {value:,}' for name, value in model.pixels.items())}"
    if streams := residual_bytes(loaded, resolve_capture(spec, loaded, batch_size=batch_size), prompt):
        result["prompt_residuals"] = streams
        parts = ", ".join(f"{group} {format_bytes(size)}" for group, size in streams.items())
        text += f"\nstreams {parts}: residual streams of the tokens of each prompt, part of the disk"
    if smaller := smaller_captures(loaded, resolve_capture(spec, loaded), max_new_tokens, prompt):
        result["smaller"] = [each._asdict() for each in smaller]
        text += "".join(
            f"\nless    {format_bytes(count * each.bytes)} for {each.question}: {_show_capture(each.capture)}"
            for each in smaller
        )
    if features is not None:
        check_dictionary(loaded, features)
        needs = plan_features(features, count, max_new_tokens, prompt)
        result["features"] = needs._asdict()
        text += (
            f"\nfeature {format_bytes(needs.memory)} for {features.n_features:,} features at {features.hook}, "
            f"{format_bytes(needs.working)} for those of an answer; mmprobe activations writes {format_bytes(needs.disk)}"
        )
    if memories:
        weights = sum(weight.nbytes for weight in loaded.hf.parameters())
        result["devices"] = plan_devices(loaded, memories, made.device - weights)
        result["working"] = made.device - weights
        text += f"\nweights by --device-map auto, predicted, with {format_bytes(result['working'])} free on each GPU:\n"
        text += "\n".join(f"{name:7} {format_bytes(size)}" for name, size in result["devices"].items())
    print_result(result, text, as_json)


def _show_capture(capture: str | dict[str, list[Any]]) -> str:
    """Return a capture as a line: an option, or the fields of a file."""
    if isinstance(capture, str):
        return f"--capture {capture}"
    return ", ".join(f"{name}: [{', '.join(map(str, values))}]" for name, values in capture.items())


def _load_known(
    command: str, model: ModelSettings, asking: AskSettings, count: int | None, data: Path | None, probe: bool
) -> list[Sample]:
    """Return the samples of --data, with their template.

    Raises:
        InputError: an option is missing, or the data cannot be read.
    """
    if not model.name:
        raise InputError(f"{command}: give --model")
    if count is None and data is None:
        raise InputError(f"{command}: give --samples, --data or both")
    if probe and data is None:
        raise InputError(f"{command}: --probe needs --data, samples to try")
    from mmprobe.samples import load_samples, with_template

    return with_template(load_samples(data), asking.template) if data else []


def plan_diagnose(
    asking: AskSettings = DIAGNOSED,
    model: ModelSettings = ModelSettings(),  # noqa: B008
    samples: SampleCount = None,
    data: PromptData = None,
    probe: Trying = False,
    as_json: AsJson = False,
) -> None:
    """Predict the forward passes of a diagnosis and, with --probe, its minutes.

    \b
    Examples:
      mmprobe plan diagnose --model qwen2.5-vl-7b --samples 90
      mmprobe plan diagnose --model qwen2.5-vl-7b --data mine.jsonl --probe
    """
    known = _load_known("plan diagnose", model, asking, samples, data, probe)
    from mmprobe.diagnosis.plan import plan_diagnosis

    trying = None
    if probe:
        from mmprobe.models import load_model

        trying = load_model(**model.chosen)
    cost = plan_diagnosis(trying, known, samples or len(known), **asking.chosen)
    print_result(cost._asdict(), cost.describe(), as_json)


def plan_bench(
    difference: Annotated[
        float, typer.Option(help="The difference of two accuracies that is to be seen, as 0.05.")
    ],
    accuracy: Annotated[float | None, typer.Option(help="Of the first model.")] = None,
    disagreeing: Annotated[
        float | None, typer.Option(help="Share of questions that exactly one of two models gets right.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Earlier results, for the accuracy and the sets of images.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict how many questions show a difference between two models.

    \b
    Example:
      mmprobe plan bench --difference 0.05 --accuracy 0.7
    """
    design, first = 1.0, accuracy
    if results is not None:
        metric = read_results(results).metrics.get("accuracy")
        if metric is None or metric.value is None:
            raise InputError(f"--results {results}: has no accuracy; give --accuracy")
        first = metric.value if accuracy is None else accuracy
        if metric.low is not None and metric.high is not None and metric.n and 0 < metric.value < 1:
            design = design_effect(metric.value, metric.low, metric.high, int(metric.n))
    if first is None:
        raise InputError("plan bench: give --accuracy of the first model, or --results of an earlier call")
    if not 0 < difference < 1 or not 0 <= first <= 1 - difference:
        raise InputError(
            f"--difference {difference:g}: must be above 0, and with the accuracy {first:g} at most 1"
        )
    if disagreeing is not None and not difference <= disagreeing <= 1:
        raise InputError(f"--disagreeing {disagreeing:g}: must be from the difference to 1")
    needed = questions_for(difference, first, disagreeing, design)
    lines = [
        f"to see {first:.3f} become {first + difference:.3f} with 80 % power at the 5 % level:",
        f"paired       {needed.paired:,} questions that both models answer, {needed.disagreeing:.3f} of which only one gets right",
        f"independent  {needed.independent:,} questions for each model",
    ]
    if design > 1:
        lines.append(f"sets         {design:.2f} times as many as if each question had images of its own")
    print_result(needed._asdict() | {"design": design}, "\n".join(lines), as_json)
