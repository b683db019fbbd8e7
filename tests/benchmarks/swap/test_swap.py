"""Does the answer change with the image? Checked on answers whose numbers are counted by hand, and on models of known sight."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.openai_server import serve_openai
from PIL import Image

import mmprobe as mp
from mmprobe.benchmarks.swap.benchmark import Swap
from mmprobe.benchmarks.swap.data import edit
from mmprobe.samples import image_sets


@pytest.fixture
def data(tmp_path):
    """Four questions about three images: red twice, green, and red again in another file."""
    lines = []
    for number, (name, colour) in enumerate([("r", "red"), ("r", "red"), ("g", "green"), ("s", "red")]):
        pixels = np.full((20, 40, 3), {"red": [250, 0, number % 2], "green": [0, 250, 0]}[colour], np.uint8)
        if not (tmp_path / f"{name}.png").exists():
            pixels[0, 0] = ord(name)
            Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        question = "Is it red?" if number != 1 else "Which colour?"
        answer = {0: "yes", 1: "red", 2: "no", 3: "yes"}[number]
        lines.append({"id": f"q{number}", "images": [f"{name}.png"], "question": question, "answer": answer})
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_what_is_asked(data, tmp_path):
    benchmark = Swap()
    truth = benchmark.show(benchmark.read(data), tmp_path / "shown")
    asked = {sample.id: sample for sample in benchmark.ask(truth)}
    assert len(asked) == 4 * 7
    assert [path.name for path in asked["q0--other"].images] == ["g.png"], (
        "the one that calls for another answer"
    )
    assert [path.name for path in asked["q3--other"].images] == ["g.png"]
    assert truth.contrasts == {"q0", "q2", "q3"}
    assert asked["q0--text"].images == [] and asked["q0--same"].images == asked["q0"].images
    sets = dict(zip(asked, image_sets(asked.values()).tolist(), strict=True))
    assert sets["q0"] == sets["q1--other"] == sets["q0--blank"], (
        "of one image, whatever is shown in its place"
    )
    assert len(set(sets.values())) == 3


def test_the_edits_show_less_at_the_same_size():
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    for kind in ("blank", "blurred", "cropped"):
        assert edit(image, kind).size == image.size
    assert np.asarray(edit(image, "blurred")).std() < 0.2 * pixels.std()
    corner = image.crop((36, 24, 48, 32)).resize(image.size)
    assert np.array_equal(np.asarray(edit(image, "cropped")), np.asarray(corner))


def test_the_numbers_are_those_counted_by_hand(data, tmp_path):
    responses = {
        **{
            "q0": "Yes.",
            "q0--same": "Yes, it is.",
            "q0--other": "No.",
            "q0--blank": "I cannot see an image.",
        },
        **{"q1": "Red.", "q1--same": "It is red.", "q1--other": "Green.", "q1--blank": "Red."},
        **{"q2": "Yes", "q2--same": "Yes", "q2--other": "Yes", "q2--blank": "No"},
        **{"q3": "yes", "q3--same": "no", "q3--other": "yes", "q3--text": "yes"},
    }
    metrics = mp.benchmarks.score("swap", data, responses, tmp_path / "out").metrics
    values = {name: (metric.value, metric.n) for name, metric in metrics.items()}
    # q0 and q1 change with the other image; of the right q0, q1 and q3 two are lost
    assert values["changed_other"] == (2 / 4, 4)
    assert values["lost_other"] == (pytest.approx(2 / 3), 3)
    assert values["hedged_blank"] == (pytest.approx(1 / 3), 3)
    # "Red." and "It is red." are other words, and q3 says the opposite
    assert values["changed_same"] == (2 / 4, 4)
    assert values["changed_other_above_same"] == (0, 4)
    assert values["accuracy_own"] == (3 / 4, 4) and values["accuracy_text"] == (1, 1)
    assert metrics["changed_other"].sets == 3
    assert values["changed_other[other=contrast]"] == (pytest.approx(1 / 3), 3)


def test_a_model_behind_an_api_that_counts_its_images(data, tmp_path, monkeypatch):
    """It never looks at one, and refuses without any: nothing changes but the text-only answers."""
    pytest.importorskip("openai", reason="the provider's package is not installed")
    calls = []

    def answer(text, n_images):
        calls.append(text)
        return "Yes." if n_images else "I cannot see an image."

    with serve_openai(answer) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        metrics = mp.benchmarks.evaluate("swap", "openai/gpt-4o", tmp_path / "out", data=data).metrics
    values = {name: metric.value for name, metric in metrics.items()}
    assert values["changed_other"] == values["changed_blank"] == values["changed_same"] == 0
    assert values["changed_text"] == values["hedged_text"] == 1 and values["hedged_own"] == 0
    assert len(calls) == mp.benchmarks.count_calls("swap", data=data).calls


def test_a_dry_run_counts_and_asks_nobody(data, tmp_path):
    arguments = (
        "bench",
        "swap",
        "--model",
        "openai/none",
        "--data",
        data,
        "--out",
        tmp_path / "out",
        "--dry-run",
    )
    said = json.loads(run_in_process(*arguments, "--price", "3,10", "--json").stdout)
    pixels = 4 * 6 * 20 * 40  # of 7 questions one has no image
    characters = 7 * (3 * len("Is it red?") + len("Which colour?"))
    assert said["calls"] == 28 and said["images"] == 24 and said["output_tokens"] == 28 * 128
    assert said["input_tokens"] == characters // 4 + pixels // 750
    assert said["cost"] == pytest.approx((said["input_tokens"] * 3 + 28 * 128 * 10) / 1e6)
    assert not (tmp_path / "out").exists()
    assert_fails(run_in_process(*arguments, "--price", "3"), "--price 3: write two numbers")
