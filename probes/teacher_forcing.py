"""Teacher forcing: one forward pass over a prompt and its answer.

Causal probes change the model inside such a pass. The answer's tokens stay the same, whatever the change
does."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable, option
from mmprobe.ledger import FINGERPRINT, find_change, hash_images
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.devices import check_one_device, copy_module
from mmprobe.models.generation import build_generation_kwargs
from mmprobe.models.prompt import decode_tokens
from mmprobe.models.reading import append_answers
from mmprobe.samples import Sample

log = logging.getLogger("mmprobe")

GROUPS = tuple(group.name.lower() for group in Group if group is not Group.GENERATED)
MAX_NEW_TOKENS = 64
_MAX_DIFFERENCE = 1.0  # nat; a larger mean difference of log-probabilities means another model
_MAY_DIFFER = ("dtype", "generation config")  # of the model that reads a run's answers again
GivenAnswer = str | Sequence[int] | np.ndarray | None


class TeacherForcing(NamedTuple):
    """A prompt with its answer, ready for one forward pass.

    Attributes:
        model: the model.
        inputs: inputs of the forward pass over prompt and answer; of all rows, if it is a row of a batch
            (`force_answers`).
        prompt: the prompt.
        ids: int64 [step], token ids of the answer.
    """

    model: Model
    inputs: dict[str, Any]
    prompt: Prompt
    ids: Tensor

    def logprobs(self) -> Tensor:
        """Return float32 [step], the log-probability of each token of the answer."""
        hf, steps = self.model.hf, len(self.ids)
        options = {"logits_to_keep": steps + 1} if hf._supports_logits_to_keep() else {}
        with torch.no_grad():
            logits = hf(**self.inputs, **options, use_cache=False).logits[0, -steps - 1 : -1]
        return logits.float().log_softmax(-1).gather(1, self.ids[:, None])[:, 0]

    def texts(self) -> np.ndarray:
        """Return str [step], the texts of the answer's tokens."""
        return np.array(decode_tokens(self.model, self.ids.cpu().numpy()), dtype=str)


def force_answer(
    model: Model, sample: Sample, answer: GivenAnswer = None, max_new_tokens: int = MAX_NEW_TOKENS
) -> TeacherForcing:
    """Append an answer to a sample's prompt.

    Args:
        answer: text or token ids; None for the model's own greedy answer.
        max_new_tokens: maximum length of the model's own answer.

    Raises:
        InputError: an image cannot be decoded, or the answer is empty or has tokens that are not text.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> force_answer(model, sample, " no").logprobs().shape
        torch.Size([1])
    """
    return force_answers(model, [sample], [answer], max_new_tokens)[0]


def force_answers(
    model: Model,
    samples: Sequence[Sample],
    answers: Sequence[GivenAnswer],
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[TeacherForcing]:
    """Append answers to the prompts of several samples, for one forward pass over all of them.

    Prompts are padded on the left and answers on the right, where no token before the padding sees it.

    Args:
        samples: all with images, or none.
        answers, max_new_tokens: for each sample, as in `force_answer`.

    Returns:
        The rows of one batch: each has its own prompt and answer, and the inputs of all.

    Raises:
        InputError: an image cannot be decoded, or an answer is empty or has tokens that are not text.
    """
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens {max_new_tokens}: must be 1 or more")
    check_one_device(model.hf, "probes")
    inputs, prompts = model.batch(samples)
    ids = []
    for sample, answer in zip(samples, answers, strict=True):
        if answer is None:
            own = inputs if len(samples) == 1 else model.prepare(sample)
            with torch.inference_mode():
                output = model.hf.generate(**own, **build_generation_kwargs(model, max_new_tokens))
            answer = output[0, own["input_ids"].shape[1] :].tolist()
        elif isinstance(answer, str):
            answer = model.tokenizer(answer, add_special_tokens=False)["input_ids"]
        ids.append(torch.tensor(np.asarray(answer, dtype=np.int64), device=model.device))
        _check_answer(model, sample, ids[-1])
    extended = append_answers(model, inputs, ids)
    return [TeacherForcing(model, extended, prompt, row) for prompt, row in zip(prompts, ids, strict=True)]


def _check_answer(model: Model, sample: Sample, ids: Tensor) -> None:
    """Raise InputError if the token ids of an answer cannot be read."""
    if not len(ids):
        raise InputError(f"sample {sample.id}: its answer is empty; give at least one token")
    most = model.hf.get_input_embeddings().num_embeddings - 1
    if int(ids.min()) < 0 or int(ids.max()) > most:
        raise InputError(
            f"sample {sample.id}: its answer has token ids that the model lacks; they are 0 to {most}"
        )
    if bool((ids == model.family.image_token_id(model.hf.config)).any()):
        raise InputError(f"sample {sample.id}: its answer has the token of an image; give text alone")


def name_answer(sample: Sample, answer: GivenAnswer) -> str:
    """Return whose answer a probe reads that takes the sample's if None is given: `given`, `true` or `own`.

    Example:
        >>> sample = Sample(id="a", question="Is there a star?", answer="no")
        >>> name_answer(sample, None), name_answer(sample, "yes")
        ('true', 'given')
    """
    if answer is not None:
        return "given"
    return "own" if sample.answer is None else "true"


@contextmanager
def float32_logits(model: Model) -> Iterator[None]:
    """Compute the model's logits in float32 within the block.

    This covers the unembedding and any scaling or capping of logits. Large bfloat16 logits are 0.125 apart,
    more than one token of a prompt contributes. Half-precision weights are copied within the block, which
    takes 2.2 GB for a 7B model. Generate answers outside the block: float32 logits may change them.

    Example:
        >>> with float32_logits(model):                                # doctest: +SKIP
        ...     logprobs = forcing.logprobs()
    """
    unembedding = model.hf.get_output_embeddings()
    float32_unembedding = cast_to_float32(unembedding)
    if float32_unembedding is unembedding:
        yield
        return
    handle = unembedding.register_forward_hook(
        lambda module, args, output: float32_unembedding(args[0].float())
    )
    try:
        yield
    finally:
        handle.remove()


def cast_to_float32(module: nn.Module) -> nn.Module:
    """Return a module in single precision: the module itself, or a copy without gradients.

    A copy of the unembedding of a 7B model takes 2.2 GB.

    Example:
        >>> cast_to_float32(nn.Linear(2, 3, dtype=torch.bfloat16)).weight.dtype
        torch.float32
    """
    if next(module.parameters()).dtype == torch.float32:
        return module
    return copy_module(module).float().requires_grad_(False)


def check_run(model: Model, run: Run) -> None:
    """Check that a run is of a model, and that its images are those that the model saw.

    Its dtype and its generation config may differ: a run of a GPU can be analysed on a CPU.

    Raises:
        InputError: naming what differs.
    """
    about, place = run.config["model"], f"{run.path}: was traced with {run.config['model']['name']}"
    used = {name: value for name, value in model.fingerprint.items() if name not in _MAY_DIFFER}
    if change := find_change(run.config.get(FINGERPRINT), {"model": used}):
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
        if (seen := trace.image_hash) and (now := hash_images(trace.sample)) and seen != now:
            raise InputError(
                f"{run.path}: the images of sample {trace.id} changed since it was traced; trace it again with "
                f"{option('resume')}, or put them back"
            )


def check_model(model: Model, trace: Trace, logprob: np.ndarray) -> None:
    """Check that the model assigns the log-probabilities [step] of the trace to its answer.

    Raises:
        InputError: another model made the trace.
    """
    difference = np.abs(logprob - trace.steps["logprob"].values).mean()
    if difference > _MAX_DIFFERENCE:
        raise InputError(
            f"trace {trace.id}: was not made by {model.name}; their log-probabilities differ by {difference:.1f} nat"
        )


def find_positions(model: Model, prompt: Prompt, groups: Sequence[str]) -> np.ndarray:
    """Return the positions of a prompt's tokens in these groups, sorted."""
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"group {group!r}: choose from {', '.join(GROUPS)}")
    if model.has_cross_attention and "visual" in groups:
        raise NotApplicable(f"{model.family.name} reads images by cross-attention and has no visual tokens")
    positions = np.flatnonzero(np.isin(prompt.group, [Group[group.upper()] for group in groups]))
    if not len(positions):
        raise NotApplicable(f"the prompt has no {' or '.join(groups)} tokens")
    return positions


def resolve_layers(model: Model, layers: Sequence[int] | None) -> list[int]:
    """Return layers as sorted indices from 0. None means all layers, negative numbers count from the last."""
    count = model.n_layers
    for layer in () if layers is None else layers:
        if not -count <= layer < count:
            raise InputError(f"layer {layer}: the model has layers 0 to {count - 1}")
    return list(range(count)) if layers is None else sorted({layer % count for layer in layers})


def change_dataset(forcing: TeacherForcing, layers: list[int], before: Tensor, changes: Tensor) -> xr.Dataset:
    """Return a data set of log-probabilities [step] and their changes [layer, step], in nat."""
    values = changes.cpu().numpy().astype(float)
    return xr.Dataset(
        {
            "change": ("layer", values.sum(1)),
            "change_by_step": (("layer", "step"), values),
            "logprob": ("step", before.cpu().numpy()),
            "token": ("step", forcing.texts()),
        },
        coords={"layer": layers, "step": np.arange(len(before))},
    )
