"""The second embedded model answers from its images, and is read as any other model."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.asking import answer_batch

import mmprobe as mp
from mmprobe.benchmarks.synthetic.check import check_answer
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models import Model, load_aliases
from mmprobe.models.checkpoints import EMBEDDED, locate
from mmprobe.models.text_model import load_text_model
from mmprobe.probes.features.run import find_dictionary
from mmprobe.samples import load_samples
from mmprobe.traces.check import check_model

NAMES = sorted(name for name, alias in load_aliases().items() if alias.source.startswith(EMBEDDED))


@pytest.fixture(scope="module")
def tiny_llava() -> Model:
    return mp.load_model("tiny-llava", device="cpu")


@pytest.mark.parametrize("name", NAMES)
def test_an_embedded_model_is_small_and_safe(name):
    folder = Path(locate(name)[1])
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000
    assert not [file for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".py", ".pkl")]
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n")


def test_most_answers_are_true_and_fewer_are_with_other_images(tiny_llava, tmp_path):
    """Bounds are far below the card's shares, since there are few pairs."""
    samples = load_samples(make_pairs(tmp_path / "pairs", 4, 2_000_000))
    others = [
        sample.model_copy(update={"images": samples[-1].images[:1] * len(sample.images)})
        for sample in samples
    ]
    shares = []
    for shown in (samples, others):
        answers = answer_batch(tiny_llava, shown, max_new_tokens=96)
        right = [
            check_answer(answer.text, sample.answer or "", sample.metadata).correct
            for answer, sample in zip(answers, samples, strict=True)
        ]
        shares.append(sum(right) / len(right))
    assert shares[0] >= 0.8 and shares[1] <= shares[0] - 0.2


def test_every_check_of_it_passes(tiny_llava):
    checks = list(check_model(tiny_llava))
    assert [str(check) for check in checks if check.ok is False] == []
    assert {"grid", "one trace"} <= {check.name.split(" of ")[0] for check in checks if check.ok}


def test_its_decoder_is_a_text_model():
    assert type(load_text_model("tiny-llava").hf).__name__ == "LlamaForCausalLM"


def test_the_dictionary_of_another_model_is_not_taken_unasked(tiny_llava):
    with pytest.raises(mp.errors.InputError, match="none ships for tiny-llava"):
        find_dictionary(tiny_llava, "")
