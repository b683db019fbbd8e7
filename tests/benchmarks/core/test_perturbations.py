"""Perturbed questions and images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mmprobe as mp
from mmprobe.benchmarks.core.benchmark import BENCHMARKS, Benchmark
from mmprobe.benchmarks.core.compare import make_contenders
from mmprobe.benchmarks.core.perturbations import BLOCKS, perturb
from mmprobe.benchmarks.core.runner import run_benchmark
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    pixels = np.random.default_rng(0).integers(0, 255, (80, 112, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return Sample(id="1", images=[tmp_path / "a.png"], question="Same?", metadata={"type": "same"})


@pytest.mark.parametrize("share", [25, 50, 75, 100])
def test_masks_hide_the_share_of_blocks(sample, share, tmp_path):
    changed = perturb(sample, f"mask-{share}", tmp_path / "out")
    assert changed.model_copy(update={"images": sample.images}) == sample
    before, after = (np.array(Image.open(one.images[0])) for one in (sample, changed))
    mean = before.mean((0, 1)).round().astype(np.uint8)
    blocks = after.reshape(BLOCKS, 80 // BLOCKS, BLOCKS, 112 // BLOCKS, 3)
    hidden = (blocks == mean).all((1, 3, 4))
    assert hidden.sum() == share / 100 * BLOCKS**2
    untouched = (after == before).all(-1).reshape(BLOCKS, 80 // BLOCKS, BLOCKS, 112 // BLOCKS).all((1, 3))
    assert (untouched == ~hidden).all()
    again = perturb(sample, f"mask-{share}", tmp_path / "again")
    np.testing.assert_array_equal(after, np.array(Image.open(again.images[0])))


def test_a_torn_or_other_mask_is_not_used_again(sample, tmp_path, monkeypatch):
    """A call is killed while it writes an image, and later calls use the same folder."""
    save = Image.Image.save

    def write_part(self, file, **options):
        save(self, file, **options)
        Path(file).write_bytes(Path(file).read_bytes()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", write_part)
    with pytest.raises(KeyboardInterrupt):
        perturb(sample, "mask-50", tmp_path / "out")
    monkeypatch.undo()
    whole, half = (
        np.array(Image.open(perturb(sample, kind, tmp_path / "out").images[0]))
        for kind in ("mask-100", "mask-50")
    )
    assert (whole == whole[0, 0]).all() and not (half == half[0, 0]).all()


def hidden_blocks(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    rows, columns = (np.arange(side) * BLOCKS // side for side in before.shape[:2])
    changed = np.zeros((BLOCKS, BLOCKS), bool)
    np.logical_or.at(changed, (rows[:, None], columns), (before != after).any(-1))
    return changed


def test_both_images_of_a_pair_hide_the_same_blocks(tmp_path):
    """Equal images stay equal, and images of two sizes that differ keep their difference and get no other."""
    rng = np.random.default_rng(0)
    plain = rng.integers(0, 255, (80, 112, 3), np.uint8)
    other = plain.copy()
    other[:12, :20] = 255 - other[:12, :20]
    large = rng.integers(0, 255, (90, 131, 3), np.uint8)
    for name, pixels in {"a": plain, "b": plain, "c": other, "d": large}.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")

    def mask(*names, kind="mask-25", id="1"):
        images = [tmp_path / f"{name}.png" for name in names]
        masked = perturb(Sample(id=id, images=images, question="?"), kind, tmp_path / "out").images
        assert len(set(masked)) == len(names)
        return [np.array(Image.open(path)) for path in masked]

    equal = mask("a", "b")
    np.testing.assert_array_equal(*equal)
    assert hidden_blocks(plain, equal[0]).sum() == BLOCKS**2 / 4
    first, second = mask("a", "c")
    np.testing.assert_array_equal((first != second).any(-1)[12:], False)
    first, second = mask("a", "d")
    np.testing.assert_array_equal(hidden_blocks(plain, first), hidden_blocks(large, second))
    for one, two in zip(mask("a", "d"), mask("a", "d", id="2"), strict=True):
        np.testing.assert_array_equal(one, two)
    first, second = mask("a", "c", kind="mask-100")
    np.testing.assert_array_equal(first, second)


def test_hints_change_only_the_question(sample, tmp_path):
    assert perturb(sample, "explicit", tmp_path).question == "Same? The answer is"
    tagged = perturb(sample, "implicit", tmp_path)
    assert "<question>Same?</question>" in tagged.question
    assert tagged.model_copy(update={"question": "Same?"}) == sample


def test_answers_keep_the_ids_of_the_samples(sample, tmp_path):
    questions = []

    def answer(samples, settings):
        for perturbed in samples:
            questions.append(perturbed.question)
            yield perturbed.id, "Yes."

    class One(Benchmark):
        name = "one"

        def score(self, truth, responses, judge=None):
            return {}, [{"id": name, "said": text} for name, text in responses.items()]

    _, records = run_benchmark(One(), [sample], answer, tmp_path, {"perturbation": "explicit"})
    assert [(record["id"], record["said"]) for record in records] == [("1", "Yes.")]
    assert questions == ["Same? The answer is"]


@pytest.mark.parametrize(
    ("question", "answer", "metadata", "targets"),
    [
        ("Is it red?", "yes", {}, {"no"}),
        ("Which? (A) red (B) blue (C) green", "B", {}, {"A", "C"}),
        ("Which?", "blue", {"candidates": ["red", "blue", "green"]}, {"red", "green"}),
        ("How many?", "3", {}, {"4"}),
        ("What is it?", "a cat", {"target": "a dog"}, {"a dog"}),
        ("Is it red?", "yes", {"target": "blue"}, {"blue"}),
    ],
)
def test_targets_are_wrong_answers(question, answer, metadata, targets, tmp_path):
    suggested = set()
    for number in range(40):
        sample = Sample(id=str(number), question=question, answer=answer, metadata=metadata)
        changed = perturb(sample, "target", tmp_path).question
        assert changed.startswith(f"{question} The answer is ") and changed.endswith(".")
        suggested.add(changed.removeprefix(f"{question} The answer is ").removesuffix("."))
    assert suggested == targets


def test_a_question_without_a_target_is_refused(tmp_path):
    with pytest.raises(InputError, match="sample 7.*metadata.target"):
        perturb(Sample(id="7", question="What is it?", answer="a cat"), "target", tmp_path)


def test_unknown_perturbations_are_refused(sample, tmp_path):
    for call in (
        lambda: perturb(sample, "mask-30", tmp_path),
        lambda: mp.benchmarks.evaluate("pope", "tiny-spd", tmp_path / "out", perturbation="mask"),
        lambda: make_contenders(["plain"], perturbations=["blur"]),
    ):
        with pytest.raises(InputError, match="perturbation .*explicit, implicit, mask-25"):
            call()


def test_perturbations_are_compared_with_plain():
    assert [contender.name for contender in make_contenders(["plain"], perturbations=["explicit"])] == [
        "plain",
        "plain, explicit",
    ]


@pytest.mark.slow
def test_bench_reports_the_paired_change_of_a_model_behind_an_api(tmp_path, monkeypatch):
    """The model says yes to every question, and no where the question is tagged."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    import mmprobe.benchmarks.core.api_models as api_models

    def outputs(input, tools, tool_choice, config):
        output = ModelOutput.from_content(
            "mockllm/model", "No." if "<question>" in input[-1].text else "Yes."
        )
        output.usage = ModelUsage()
        return output

    model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    monkeypatch.setattr(api_models, "open_model", lambda *_: model)
    data = make_pairs(tmp_path / "pairs", 12, 5)
    out = tmp_path / "out"
    made = mp.benchmarks.evaluate("pope", "mockllm/model", out, data=data, perturbation="implicit")
    plain, stored = (
        json.loads((folder / "results.json").read_text())["metrics"] for folder in (out / "plain", out)
    )
    change = made.metrics["accuracy_change"]
    is_yes = [sample.answer == "yes" for sample in BENCHMARKS["pope"]().read(data)]
    assert plain["accuracy"]["value"] == pytest.approx(np.mean(is_yes))
    assert change.value == pytest.approx(1 - 2 * np.mean(is_yes)), (
        "right answers become wrong, and wrong right"
    )
    assert change.n == len(is_yes) and change.low <= change.value <= change.high
    assert change.high - change.low > 0 and change.range == (-1, 1)
    assert stored["accuracy_change"]["low"] == change.low and "accuracy_change" not in plain
    assert not [name for name in made.metrics if "[" in name and name.endswith("_change")]


def test_another_seed_in_a_used_folder_draws_other_blocks(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(tmp_path / "a.png")
    sample = Sample(id="1", images=[tmp_path / "a.png"], question="?")
    first, second, again = (
        perturb(sample, "mask-50", tmp_path / "out", seed).images[0] for seed in (0, 1, 0)
    )
    assert first == again != second
    assert not np.array_equal(np.array(Image.open(first)), np.array(Image.open(second)))
