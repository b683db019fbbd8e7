"""A model that computes NaN only when an image is there: each sample fails and says where, nothing is scored in silence."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
import torch
from helpers.command_line import run_in_process
from PIL import Image
from safetensors.torch import load_file, save_file

import mmprobe as mp
from mmprobe.benchmarks.core import runner
from mmprobe.benchmarks.core.likelihood import describe_all
from mmprobe.errors import InputError
from mmprobe.models.finite import find_not_finite
from mmprobe.models.text_model import answer_texts, load_text_model
from mmprobe.probes.answers import read_answer
from mmprobe.samples import Sample

EMBEDDED = Path(str(resources.files("mmprobe.models") / "tiny_spd"))
OVERFLOWS = "model.visual.merger.mlp.2"
"""Its weights are finite in float16, and what it computes is not: over 65,504."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkpoint whose vision tower is right in float32 and overflows in float16."""
    folder = tmp_path_factory.mktemp("model") / "large"
    shutil.copytree(EMBEDDED, folder)
    weights = load_file(folder / "model.safetensors")
    (name,) = [key for key in weights if key.endswith(f"{OVERFLOWS.removeprefix('model.')}.weight")]
    weights[name] = weights[name] / weights[name].abs().max() * 6e4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> mp.Model:
    return mp.load_model(str(folder), device="cpu", dtype="float16")


def write_data(folder: Path, images: list[Path]) -> Path:
    lines = [
        {"id": "with", "question": "Is there a star?", "images": [str(images[0])], "answer": "no"},
        {"id": "two", "question": "Is there a ring?", "images": [str(images[0])], "answer": "no"},
        {"id": "without", "question": "Is there a star?", "answer": "no"},
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "data.jsonl"


def test_the_message_names_the_dtype_and_the_first_module(model, image_paths):
    """The right module is found by hand: torch's own hook on it sees the first value that is not finite."""
    sample = Sample(id="a", question="?", images=image_paths[:1])
    with pytest.raises(InputError) as error:
        mp.generate(model, sample, max_new_tokens=2)
    message = str(error.value)
    assert "float16" in message and f" {OVERFLOWS};" in message and "\n" not in message
    seen = {}
    module = model.hf.get_submodule(OVERFLOWS)
    handle = module.register_forward_hook(
        lambda _, inputs, output: seen.update(
            before=inputs[0].isfinite().all(), after=output.isfinite().all()
        )
    )
    with torch.no_grad():
        logits = model.hf(**model.prepare(sample)).logits
    handle.remove()
    assert seen["before"] and not seen["after"] and logits.isnan().any()
    assert find_not_finite(model, model.prepare(sample.model_copy(update={"images": []}))) is None


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"shared_prefix": False}, {"answers": {"with": "No.", "two": "No.", "without": "No."}}],
                         ids=["single", "batch", "whole prompts", "given"])  # fmt: skip
def test_a_trace_fails_for_samples_with_images_alone(model, image_paths, tmp_path, options):
    data = write_data(tmp_path, image_paths)
    run = mp.trace(model, data, tmp_path / "run", max_new_tokens=3, **options)
    assert run.ids == ["without"]
    assert [failure["id"] for failure in run.failures] == ["with", "two"]
    assert all(
        "float16" in failure["message"] and OVERFLOWS in failure["message"] for failure in run.failures
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["nnsight", "transformer_lens"])
def test_other_engines_fail_such_samples_too(model, image_paths, tmp_path, engine):
    run = mp.trace(
        model, write_data(tmp_path, image_paths), tmp_path / "run", engine=engine, max_new_tokens=3
    )
    assert run.ids == ["without"] and [failure["id"] for failure in run.failures] == ["with", "two"]
    assert all(f" {OVERFLOWS};" in failure["message"] for failure in run.failures)


def mirror(file: Path, folder: Path) -> Path:
    with Image.open(file) as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "mirrored.png")
    return folder / "mirrored.png"


PROBES = {
    "interchange": lambda probes, *pair: probes.image_interchange(*pair, answer="No."),
    "knockout": lambda probes, *pair: probes.attention_knockout(*pair[:2], answer="No."),
    "routes": lambda probes, *pair: probes.attention_routes(*pair[:2], answer="No."),
    "patching": lambda probes, *pair: probes.patch_components(*pair, answer="No."),
    "patched answer": lambda probes, *pair: probes.generate_patched(*pair, layers=[2]),
    "gradients": lambda probes, *pair: probes.attribution_patching(*pair, answer="No."),
    "occlusion": lambda probes, *pair: probes.attribute(*pair[:2], answer="No."),
    "words of visual tokens": lambda probes, *pair: probes.visual_words(*pair[:2]),
    "features": lambda probes, *pair: probes.attribute_features(
        *pair[:2], dictionary="tiny-spd", answer="No."
    ),
    "own answer": lambda probes, *pair: read_answer(*pair[:2]),
}


@pytest.mark.parametrize("name", PROBES)
def test_no_probe_returns_what_are_no_numbers(model, image_paths, tmp_path, name):
    sample = Sample(id="a", question="Is there a star?", images=image_paths[:1])
    other = sample.model_copy(update={"id": "b", "images": [mirror(image_paths[0], tmp_path)]})
    with pytest.raises(InputError, match=rf"float16; the first module .* {OVERFLOWS};"):
        PROBES[name](mp.probes, model, sample, other)


@pytest.mark.parametrize("method", ["opera", "vcd", "chi", "self-consistency"])
def test_no_method_answers(model, image_paths, method):
    """OPERA searches by itself, CHI asks a hinter, VCD reads other images beside the answer, and self-consistency samples."""
    sample = Sample(id="a", question="Is there a star?", images=image_paths[:1])
    with pytest.raises(InputError, match=rf"float16; the first module .* {OVERFLOWS};"):
        mp.generate(model, sample, method=method, max_new_tokens=2)


def test_other_images_that_overflow_are_said(image_paths, monkeypatch):
    """The answer's own images are read as numbers; those that VCD reads beside them are not."""
    model, calls = mp.load_model("tiny-spd", device="cpu"), []

    def overflow(module, inputs, output):
        calls.append(len(inputs))
        return output * torch.nan if len(calls) > 1 else output

    handle = model.hf.get_submodule(OVERFLOWS).register_forward_hook(overflow)
    sample = Sample(id="a", question="Is there a star?", images=image_paths[:1])
    try:
        with pytest.raises(InputError, match="computes NaN in float32"):
            mp.generate(model, sample, method="vcd", max_new_tokens=2)
    finally:
        handle.remove()


def test_a_judge_that_computes_none_gives_no_verdict():
    judge = load_text_model("tiny-spd")
    with torch.no_grad():
        judge.hf.model.layers[3].mlp.down_proj.weight.fill_(torch.inf)
    with pytest.raises(InputError, match=r"float32; the first module .* model\.layers\.3\.mlp\.down_proj;"):
        answer_texts(judge, ["Is it true?"], 3)


def test_bench_counts_such_questions_as_unanswered(folder, image_paths, tmp_path):
    data = write_data(tmp_path, image_paths)
    result = run_in_process(
        "bench", "vqa", "--model", folder, "--data", data, "--dtype", "float16", "--device", "cpu",
        "--max-new-tokens", 3, "--out", tmp_path / "out",
    )  # fmt: skip
    assert result.code == 1 and "float16" in result.stderr
    records = map(json.loads, (tmp_path / "out" / "samples.jsonl").read_text().splitlines())
    responses = {record["id"]: record["response"] for record in records}
    assert responses["with"] is responses["two"] is None and responses["without"]
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert metrics["accuracy"]["value"] is None or metrics["accuracy"]["coverage"] <= 1 / 3


def describe_all_broken(model: mp.Model, *arguments):
    module = model.hf.get_submodule(OVERFLOWS)
    handle = module.register_forward_hook(lambda _, inputs, output: output * torch.nan)
    try:
        return describe_all(model, *arguments)
    finally:
        handle.remove()


def test_a_trace_whose_answers_cannot_be_read_by_likelihood_says_so(tmp_path, image_paths, monkeypatch):
    data, out = write_data(tmp_path, image_paths), tmp_path / "run"
    call = ["trace", "--model", "tiny-spd", "--data", data, "--out", out, "--read", "likelihood", "--device", "cpu",
            "--max-new-tokens", 3]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("mmprobe.benchmarks.core.likelihood.describe_all", describe_all_broken)
        broken = run_in_process(*call)
    assert broken.code == 1 and "2 failed" in broken.stdout and OVERFLOWS in broken.stdout
    run = mp.open_run(out)
    assert len(run) == 3 and set(run.margins) == {"without"}
    assert run_in_process("verify", out).code == 0
    assert run_in_process(*call, "--resume").code == 0
    assert mp.open_run(out).failures == []


def test_a_reading_by_likelihood_that_fails_is_unanswered_and_tried_again(tmp_path, image_paths, monkeypatch):
    """The answers are generated; then the model computes NaN wherever an image is there."""
    data, out = write_data(tmp_path, image_paths), tmp_path / "out"
    model = mp.load_model("tiny-spd", device="cpu")
    call = {"data": data, "max_new_tokens": 3, "read": "likelihood"}
    with monkeypatch.context() as patch:
        patch.setattr(runner, "describe_all", describe_all_broken)
        broken = mp.benchmarks.evaluate("vqa", model, out, **call)
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert [failure["id"] for failure in failures] == ["with", "two"]
    assert all(OVERFLOWS in failure["message"] for failure in failures) and broken.failures == {out: 2}
    told = {record["id"]: record["likelihood"]["chosen"] for record in broken.records}
    assert told["with"] is told["two"] is None and told["without"] in ("yes", "no")
    assert broken.metrics["likelihood_accuracy"].n == 1
    for name in ("likelihood_accuracy", "likelihood_ece", "likelihood_mass"):
        assert broken.metrics[name].coverage == pytest.approx(1 / 3)
    mended = mp.benchmarks.evaluate("vqa", model, out, **call, resume=True)
    whole = mp.benchmarks.evaluate("vqa", model, tmp_path / "whole", **call)
    assert mended.failures == {} and mended.metrics["likelihood_accuracy"].coverage == 1
    assert mended.metrics["likelihood_accuracy"].to_json() == whole.metrics["likelihood_accuracy"].to_json()


@pytest.mark.slow
def test_diagnose_says_so_in_one_line(folder, image_paths, tmp_path):
    lines = [json.loads(line) for line in write_data(tmp_path, image_paths).read_text().splitlines()[:2]]
    (tmp_path / "seen.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = run_in_process(
        "diagnose", "--model", folder, "--data", tmp_path / "seen.jsonl", "--dtype", "float16", "--device", "cpu",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert result.code in (1, 2) and "float16" in result.stderr and "unforeseen" not in result.stderr


@pytest.mark.exhaustive
def test_check_is_not_ok(folder, tmp_path):
    for dtype, code in (("float16", 1), ("float32", 0)):
        result = run_in_process(
            "check", folder, "--dtype", dtype, "--device", "cpu", "--out", tmp_path / f"{dtype}.json"
        )
        assert result.code == code, result.stdout
        checks = {
            each["name"]: each for each in json.loads((tmp_path / f"{dtype}.json").read_text())["checks"]
        }
        assert checks["numbers without an image"]["ok"]
        assert checks["numbers with an image"]["ok"] is (dtype == "float32")
        assert (OVERFLOWS in checks["numbers with an image"]["text"]) is (dtype == "float16")
