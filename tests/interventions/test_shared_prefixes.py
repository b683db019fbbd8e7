"""Methods give the answers of whole prompts where prompts share what was read of their common beginning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from helpers.asking import answer_batch
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import ImageOps

import mmprobe as mp
from mmprobe.interventions import METHODS, load_method
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.visual import with_images
from mmprobe.models import Model
from mmprobe.models.hooks import wrap_forward
from mmprobe.models.reading import PrefixStore, repeated_keys
from mmprobe.samples import Sample

QUESTIONS = [
    "Is there a star?",
    "What?",
    "Compare the two pictures, please, step by step.",
    "How many?",
    "Are they the same?",
    "Why is it blue?",
]
N_ANSWERS = 2 * len(QUESTIONS)  # about two pairs of images


class Case(NamedTuple):
    """Methods with their parameters, and the number of vision passes that the shared answers take, if it is checked.

    The main path takes one for each pair of images. A contrast path takes one for each pair where its images are
    the same for all questions, none where they are the answer's own, and else one for each answer.
    """

    methods: dict[str, dict[str, Any]]
    vision_passes: int | None = None


CASES = {
    "sage": Case({"sage": {"alpha": 3, "beta": 0.2, "eta": 1, "k": 0.8, "refresh": 2}}, 2 + 2 * N_ANSWERS),
    "vcd": Case({"vcd": {"alpha": 1, "beta": 0}}, 4),
    "icd": Case({"icd": {"alpha": 1, "beta": 0}}, 2),
    "pai": Case({"pai": {"alpha": 1, "gamma": 2, "beta": 0}}, 2),
    "agla": Case({"agla": {"alpha": 1, "beta": 0, "keep": 0.2}}, 2 + N_ANSWERS),
    "steer": Case({"steer": {"scale": 3, "layer": 0}}, 2),
    "sage+icd": Case({"sage": {"k": 0.8}, "icd": {"beta": 0}}, 2 + N_ANSWERS),
    "self-consistency": Case({"self-consistency": {"answers": 2}}, 2),
    "self-refine": Case({"self-refine": {}}, 2),
    "chi": Case({"chi": {}}, 2),
    "zoom-refine": Case({"zoom-refine": {}}, 2 + N_ANSWERS),
}
SHARING = [
    name
    for name in METHODS
    if METHODS[name].neutral_parameters
    and load_method(name).shares_prefix
    and not getattr(METHODS[name], "exclusive", False)  # has a test of its own
]
CASES |= {name: Case({name: dict(METHODS[name].strong_parameters)}) for name in SHARING if name not in CASES}
FAMILIES = ["qwen2_5_vl", "qwen3_vl", "llava_next", "internvl", "glm4v", "tiny-spd"]
FAST = {("qwen2_5_vl", name) for name in ("vcd", "icd")}
OF_EVERY_KIND = (
    "sage+icd",
    "vcd",
    "agla",
    "zoom-refine",
)  # attention, other images, images for each answer, asking again
GRID = [
    (family, name)
    for family in FAMILIES
    for name in CASES
    if family in ("qwen2_5_vl", "tiny-spd") or name in OF_EVERY_KIND
]


@dataclass(frozen=True)
class LogprobRecorder(Method):
    """Reports the log-probabilities of each step; as the last method, those that the others made."""

    name: ClassVar[str] = "recorder"
    shares_prefix: ClassVar[bool] = True

    def create_state(self, context: MethodContext) -> MethodState:
        return _RecorderState()


class _RecorderState(MethodState):
    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def change_logits(self, generated: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.steps.append(logits.log_softmax(-1))
        return logits

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        return {"logprobs": torch.stack(self.steps[:n_steps])[:, row].numpy()}


def make_samples(image_paths: list[Path]) -> list[Sample]:
    """Return every question about two pairs of images, which take turns in no fixed order."""
    pairs = [image_paths[:2], image_paths[1:3]]
    return [
        Sample(id=f"{number}-{pair}", images=pairs[pair], question=question, system="You answer questions.")
        for number, question in enumerate(QUESTIONS)
        for pair in (number % 2, 1 - number % 2)
    ]


def load(name: str) -> Model:
    model = mp.load_model("tiny-spd", device="cpu") if name == "tiny-spd" else load_tiny_model(name)
    if name == "tiny-spd":  # its logits reach 40, and a contrast multiplies float32's rounding of them
        model.hf.double()
    model.hf.generation_config.eos_token_id = None
    return model


def make_methods(case: Case, model: Model, folder: Path) -> list[Method]:
    hidden = model.hf.config.get_text_config().hidden_size
    np.save(folder / "direction.npy", np.random.default_rng(0).normal(size=hidden).astype("f4"))
    file = {"steer": {"direction": str(folder / "direction.npy")}}
    return [load_method(name, **given, **file.get(name, {})) for name, given in case.methods.items()]


@contextmanager
def vision_passes_of(model: Model) -> Iterator[list[None]]:
    """Yield a list with one element for each vision pass within the block."""
    calls: list[None] = []
    assert model.family.vision is not None
    first_layer = next(iter(model.family.vision.layers(model.hf)))

    def count(forward):
        return lambda *args, **options: calls.append(None) or forward(*args, **options)

    with wrap_forward(first_layer, count):
        yield calls


def answer(
    model: Model, samples: list[Sample], methods: list[Method], size: int, shared: bool
) -> tuple[list[Any], int]:
    """Return the answers, and how often images were encoded."""
    keeps_states = any(method.needs_final_states for method in methods)
    prefixes = PrefixStore(model, repeated_keys(samples), keeps_states) if shared else None
    answers = []
    with vision_passes_of(model) as calls:
        for first in range(0, len(samples), size):
            batch = samples[first : first + size]
            answers += answer_batch(
                model, batch, [*methods, LogprobRecorder()], max_new_tokens=4, prefixes=prefixes
            )
    return answers, len(calls)


def assert_close(shared: Any, whole: Any) -> None:
    """Compare log-probabilities of all tokens."""
    logprobs, numbers = (one.diagnostics["recorder"]["logprobs"] for one in (shared, whole))
    np.testing.assert_allclose(logprobs, numbers, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, marks=[] if (family, name) in FAST else pytest.mark.exhaustive)
        for family, name in GRID
    ],
)
def test_shared_prefixes_give_the_answers_of_whole_prompts(family, name, image_paths, tmp_path):
    """Six questions about each of two pairs of images, one by one and four together, against whole prompts alone."""
    model, samples = load(family), make_samples(image_paths)
    methods = make_methods(CASES[name], model, tmp_path)
    whole, _ = answer(model, samples, methods, 1, shared=False)
    for size in (1, 4):
        if size > 1 and "self-consistency" in CASES[name].methods:  # what it draws depends on the batch
            whole, _ = answer(model, samples, methods, size, shared=False)
        shared, vision_passes = answer(model, samples, methods, size, shared=True)
        assert [each.token_ids for each in shared] == [each.token_ids for each in whole]
        for each, expected in zip(shared, whole, strict=True):
            assert_close(each, expected)
        if size == 1 and CASES[name].vision_passes is not None:
            assert vision_passes == CASES[name].vision_passes


@pytest.mark.parametrize(
    ("name", "vision_passes"),
    {
        "icd": 1,
        "self-consistency": 1,
        "self-refine": 1,
        "chi": 1,
        "vcd": 2,
        "zoom-refine": 2,
        "sage+icd": 2,
    }.items(),
)
def test_one_answer_reads_its_images_once(name, vision_passes, image_paths, tmp_path):
    """`generate` has one sample, whose images some methods ask about again; VCD and zoom-refine show other images."""
    model, sample = load("qwen2_5_vl"), make_samples(image_paths)[4]
    methods = [*make_methods(CASES[name], model, tmp_path), LogprobRecorder()]
    with vision_passes_of(model) as calls:
        shared = mp.generate(model, sample, methods, max_new_tokens=4)
    (whole,) = answer_batch(model, [sample], methods, max_new_tokens=4)
    assert shared.token_ids == whole.token_ids
    assert_close(shared, whole)
    assert len(calls) == vision_passes


@pytest.mark.parametrize("family", first_fast(["qwen2_5_vl", "llava_next"]))
def test_a_search_reads_the_images_of_several_questions_once(family, image_paths, monkeypatch):
    """Its beams go back after the prompt, and the prompt is not read again for that."""
    monkeypatch.setattr("mmprobe.interventions.methods.opera.WARM_UP", 1)
    model, samples = load(family), make_samples(image_paths)[:6]
    opera = [load_method("opera", beams=2, candidates=2, scale=30, threshold=1)]
    prefixes = PrefixStore(model, repeated_keys(samples), keeps_states=False)
    with vision_passes_of(model) as calls:
        shared = [
            answer_batch(model, [each], opera, max_new_tokens=16, prefixes=prefixes)[0] for each in samples
        ]
        of_shared = len(calls)
        whole = [answer_batch(model, [each], opera, max_new_tokens=16)[0] for each in samples]
    assert [each.token_ids for each in shared] == [each.token_ids for each in whole]
    passes = of_shared / 2  # of one pair of images
    assert len(calls) - of_shared == passes * len(samples)
    reports = [each.diagnostics["opera"] for each in whole]
    assert any(report["rollbacks"] for report in reports)
    for report, one in zip(reports, shared, strict=True):
        np.testing.assert_allclose(
            one.diagnostics["opera"]["penalty"], report["penalty"], rtol=1e-4, atol=1e-6
        )


def test_noise_of_another_seed_or_step_is_read_anew(image_paths):
    """One store serves several calls, so what is kept of noisy images must not serve other noise."""
    model, samples = load("qwen2_5_vl"), make_samples(image_paths)[1:3]
    prefixes = PrefixStore(model, repeated_keys(samples), keeps_states=False)
    for seed, noise_step in ((0, 500), (1, 500), (0, 900), (0, 500)):
        settings = {"seed": seed, "max_new_tokens": 3}
        method = [load_method("vcd", noise_step=noise_step, alpha=5, beta=0), LogprobRecorder()]
        for sample in samples:
            (shared,) = answer_batch(model, [sample], method, prefixes=prefixes, **settings)
            (whole,) = answer_batch(model, [sample], method, **settings)
            assert_close(shared, whole)


@dataclass(frozen=True)
class Inverted(PromptMethod):
    """Asks about the inverted images, which have as many tokens, and then about the images."""

    name: ClassVar[str] = "inverted"
    shares_prefix: ClassVar[bool] = True

    def answer(self, model, chats, ask, seed, max_new_tokens):
        inverted = ask([with_images(chat, [ImageOps.invert(each) for each in chat.images]) for chat in chats])
        later = ask(chats[1:])
        return [*inverted, *later]


def test_images_that_a_method_made_do_not_share(image_paths):
    model, samples = load("qwen2_5_vl"), make_samples(image_paths)[:4]
    prefixes = PrefixStore(model, repeated_keys(samples), keeps_states=False)
    answer_batch(model, samples, max_new_tokens=1, prefixes=prefixes)
    methods = [Inverted(), LogprobRecorder()]
    shared = answer_batch(model, samples, methods, max_new_tokens=3, prefixes=prefixes)
    for each, expected in zip(shared, answer_batch(model, samples, methods, max_new_tokens=3), strict=True):
        assert_close(each, expected)


@dataclass(frozen=True)
class Undeclared(Method):
    """A method that does nothing and does not say so."""

    name: ClassVar[str] = "undeclared"

    def create_state(self, context: MethodContext) -> MethodState:
        return MethodState()


@pytest.mark.parametrize("name", ["sage", "steer", "attention-prompting", "undeclared"])
def test_what_needs_whole_prompts_gets_them(name, image_paths, tmp_path, monkeypatch):
    model, samples = load("qwen2_5_vl"), make_samples(image_paths)[:4]
    monkeypatch.setattr(PrefixStore, "start", None)  # a call would fail
    prefixes = PrefixStore(model, repeated_keys(samples), keeps_states=True)
    whole = Case({name: {"sage": {"prompt": True}, "steer": {"layer": 0, "prompt": True}}.get(name, {})})
    methods = [Undeclared()] if name == "undeclared" else make_methods(whole, model, tmp_path)
    assert len(answer_batch(model, samples[:2], methods, max_new_tokens=1, prefixes=prefixes)) == 2


@pytest.mark.parametrize("name", ["vcd", "icd"])
def test_a_prefix_that_is_too_large_is_read_whole(name, image_paths):
    model, samples = load("qwen2_5_vl"), make_samples(image_paths)[:4]
    prefixes = PrefixStore(model, repeated_keys(samples), keeps_states=False, max_bytes=1)
    shared = answer_batch(model, samples, name, max_new_tokens=3, prefixes=prefixes)
    assert not prefixes.prefixes
    assert shared == answer_batch(model, samples, name, max_new_tokens=3)
