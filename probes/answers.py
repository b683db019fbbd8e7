"""The answers that probes read: given ones, a sample's true one, or the model's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, option
from mmprobe.ledger import FINGERPRINT, find_change
from mmprobe.models import Model
from mmprobe.models.devices import check_one_device
from mmprobe.models.finite import watch_finite
from mmprobe.models.loading import build_generation_kwargs
from mmprobe.models.reading import Reading
from mmprobe.samples import Sample

log = logging.getLogger("mmprobe")

MAX_NEW_TOKENS = 64
_MAY_DIFFER = ("dtype", "generation config")  # of the model that reads a run's answers again
_MAX_DIFFERENCE = 1.0  # nat; a larger mean difference of log-probabilities means another model
AnswerInput = str | Sequence[int] | np.ndarray | None


def read_answer(
    model: Model, sample: Sample, answer: AnswerInput = None, max_new_tokens: int = MAX_NEW_TOKENS
) -> Reading:
    """Return the reading of an answer after its sample's prompt.

    Args:
        answer: text or token ids; None for the model's own greedy answer.
        max_new_tokens: maximum length of the model's own answer.

    Raises:
        InputError: an image cannot be decoded, or the answer is empty or has tokens that are not text.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> read_answer(model, sample, " no").logprobs()[0].shape
        torch.Size([1])
    """
    return read_answers(model, [sample], [answer], max_new_tokens)


def read_true_answer(
    model: Model, sample: Sample, answer: AnswerInput = None, max_new_tokens: int = MAX_NEW_TOKENS
) -> Reading:
    """Return the reading of an answer; None for the sample's true one, or the model's own if there is none.

    The other arguments and the errors are those of `read_answer`.

    Example:
        >>> from mmprobe.models import load_model
        >>> sample = Sample(id="a", question="Is there a star?", answer="no")
        >>> read_true_answer(load_model("tiny-spd", device="cpu"), sample).row.text
        'no'
    """
    return read_answer(model, sample, sample.answer if answer is None else answer, max_new_tokens)


def read_answers(
    model: Model,
    samples: Sequence[Sample],
    answers: Sequence[AnswerInput],
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> Reading:
    """Return the reading of answers after the prompts of several samples.

    Args:
        samples: all with images, or none.
        answers, max_new_tokens: for each sample, as in `read_answer`.

    Raises:
        InputError: an image cannot be decoded, or an answer is empty or has tokens that are not text.
    """
    pairs = zip(samples, answers, strict=True)
    ids = [find_ids(model, sample, answer, max_new_tokens) for sample, answer in pairs]
    return Reading(model, model.batch(samples), ids)


def find_ids(
    model: Model, sample: Sample, answer: AnswerInput = None, max_new_tokens: int = MAX_NEW_TOKENS
) -> list[int]:
    """Return the token ids of an answer. The arguments and the errors are those of `read_answer`.

    Example:
        >>> from mmprobe.models import load_model
        >>> len(find_ids(load_model("tiny-spd"), Sample(id="a", question="Is there a star?"), "No."))
        2
    """
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens {max_new_tokens}: must be 1 or more")
    check_one_device(model.hf, "probes")
    if answer is None:
        inputs = model.prepare(sample)
        with torch.inference_mode(), watch_finite(model, inputs):
            output = model.hf.generate(**inputs, **build_generation_kwargs(model, max_new_tokens))
        ids = output[0, inputs["input_ids"].shape[1] :].tolist()
    elif isinstance(answer, str):
        ids = model.tokenizer(answer, add_special_tokens=False)["input_ids"]
    else:
        ids = np.asarray(answer, dtype=np.int64).tolist()
    _check_ids(model, sample, ids)
    return ids


def _check_ids(model: Model, sample: Sample, ids: Sequence[int]) -> None:
    """Raise InputError if the token ids of an answer cannot be read."""
    if not ids:
        raise InputError(f"sample {sample.id}: its answer is empty; give at least one token")
    most = model.hf.get_input_embeddings().num_embeddings - 1
    if min(ids) < 0 or max(ids) > most:
        raise InputError(
            f"sample {sample.id}: its answer has token ids that the model lacks; they are 0 to {most}"
        )
    if model.family.image_token_id(model.hf.config) in ids:
        raise InputError(f"sample {sample.id}: its answer has the token of an image; give text alone")


def name_answer(sample: Sample, answer: AnswerInput) -> str:
    """Return whose answer a probe reads that takes the sample's if None is given: `given`, `true` or `own`.

    Example:
        >>> sample = Sample(id="a", question="Is there a star?", answer="no")
        >>> name_answer(sample, None), name_answer(sample, "yes")
        ('true', 'given')
    """
    if answer is not None:
        return "given"
    return "own" if sample.answer is None else "true"


def check_whole(traced: Trace | Run) -> None:
    """Raise InputError if a trace, or those of a run, are limited to a span: a model reads answers from the first token on."""
    if traced.span is not None:
        raise InputError(f"span {traced.span!r}: probes read whole answers; give them the run as it is")


def check_run(model: Model, run: Run) -> None:
    """Check that a run is of a model, and that its images are those that the model saw.

    Its dtype and its generation config may differ: a run of a GPU can be analysed on a CPU.

    Raises:
        InputError: naming what differs.
    """
    about, place = run.config["model"], f"{run.path}: was traced with {run.config['model']['name']}"
    used = {name: value for name, value in model.fingerprint.items() if name not in _MAY_DIFFER}
    if change := find_change(run.config.get(FINGERPRINT), {"model": used}):
        if model.name == about["name"]:
            raise InputError(
                f"{place}, and {change} changed since; give the model as it was, or trace it again"
            )
        raise InputError(f"{place}, not with {model.name}: {change} differ; give the model of the run")
    known = {"family": model.family.name, "layers": model.n_layers}
    for name, value in known.items():
        if about[name] and about[name] != value:
            raise InputError(
                f"{place}, whose {name} is {about[name]}, and that of {model.name} is {value}; give the model of the run"
            )
    if not run.config.get(FINGERPRINT) and about["source"] not in ("", model.source):
        log.warning("%s (%s), and is analysed with %s", place, about["source"], model.source)
    for trace in run:
        if trace.images_changed:
            raise InputError(
                f"{run.path}: the images of sample {trace.id} changed since it was traced; trace it again with "
                f"{option('resume')}, or put them back"
            )


def check_traced_model(model: Model, trace: Trace, logprob: np.ndarray) -> None:
    """Check that the model assigns the log-probabilities [step] of the trace to its answer.

    Raises:
        InputError: another model made the trace, or it is limited to a span.
    """
    check_whole(trace)
    difference = np.abs(logprob - trace.steps["logprob"].values).mean()
    if difference > _MAX_DIFFERENCE:
        raise InputError(
            f"trace {trace.id}: was not made by {model.name}; their log-probabilities differ by {difference:.1f} nat"
        )


def resolve_layers(model: Model, layers: Sequence[int] | None) -> list[int]:
    """Return layers as sorted indices from 0. None means all layers, negative numbers count from the last."""
    count = model.n_layers
    for layer in () if layers is None else layers:
        if not -count <= layer < count:
            raise InputError(f"layer {layer}: the model has layers 0 to {count - 1}")
    return list(range(count)) if layers is None else sorted({layer % count for layer in layers})
