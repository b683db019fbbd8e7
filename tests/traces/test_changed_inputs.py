"""A model or an image that changes under its name is noticed before an earlier call is continued."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.slow import first_fast
from PIL import Image
from safetensors.torch import load_file, save_file

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models.checkpoints import locate

COMMANDS: dict[str, tuple[str, ...]] = {
    "trace": ("trace", "--limit", "3", "--max-new-tokens", "2"),
    "bench": ("bench", "mme", "--max-new-tokens", "2"),
    "compare": ("compare", "--benchmarks", "mme", "--max-new-tokens", "2"),
    "diagnose": ("diagnose", "--limit", "3", "--max-new-tokens", "2"),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    return Path(shutil.copytree(locate("tiny-spd")[1], tmp_path / "model"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("drawn") / "pairs", 1, 5)


@pytest.fixture
def pairs(drawn: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(drawn.parent, tmp_path / "pairs")) / "samples.jsonl"


def change_weights(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[0]
    save_file(weights | {name: weights[name] * 1.5}, file, {"format": "pt"})


def change_template(checkpoint: Path) -> None:
    file = checkpoint / "chat_template.jinja"
    file.write_text(file.read_text() + " ")


def change_config(checkpoint: Path) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"note": "trained further"}))


def remove_generation_config(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").unlink()


def change_image(pairs: Path) -> None:
    """Turn the first image of the first sample upside down."""
    file = mp.load_samples(pairs)[0].images[0]
    with Image.open(file) as image:
        turned = image.rotate(180)
    turned.save(file)


@pytest.mark.slow
@pytest.mark.parametrize("command", first_fast(COMMANDS, 2))
def test_a_changed_model_is_named_and_the_same_model_elsewhere_is_not(command, checkpoint, pairs, tmp_path):
    call = [*COMMANDS[command], "--data", pairs, "--out", tmp_path / "out", "--device", "cpu"]
    assert run_in_process(*call, "--model", checkpoint).code == 0
    changes: list[tuple[str, Callable[[Path], None]]] = [
        ("chat template", change_template),
        ("config", change_config),
        ("generation config", remove_generation_config),
        ("weights", change_weights),
    ]
    for part, change in changes:
        kept = Path(shutil.copytree(checkpoint, tmp_path / "kept"))
        change(checkpoint)
        remedy = "overwrite" if command in ("trace", "diagnose") else "choose another folder"
        refused = run_in_process(*call, "--model", checkpoint, "--resume")
        assert refused.code == 2
        message = refused.stderr.splitlines()[-1]  # compare says before what comes next
        assert f"the model's {part} changed since" in message
        assert remedy in message and "=True" not in message
        shutil.rmtree(checkpoint)
        kept.rename(checkpoint)  # equal files with other times and other places on the disk
    assert run_in_process(*call, "--model", checkpoint, "--resume").code == 0


@pytest.mark.slow
def test_a_voter_that_changed_is_named(checkpoint, pairs, tmp_path):
    call = [
        "data",
        "filter",
        "--data",
        pairs,
        "--limit",
        "2",
        "--max-new-tokens",
        "2",
        "--out",
        tmp_path / "out",
    ]
    assert run_in_process(*call, "--device", "cpu", "--voters", checkpoint).code == 0
    change_weights(checkpoint)
    refused = run_in_process(*call, "--device", "cpu", "--voters", f"tiny-spd,{checkpoint}", "--resume")
    assert refused.code == 2
    assert f"weights of voter {checkpoint} changed since it voted; " in refused.stderr
    assert run_in_process(*call, "--device", "cpu", "--voters", "tiny-spd", "--resume").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bench", "compare", "diagnose"])
def test_a_changed_image_is_named_by_its_sample(command, pairs, tmp_path):
    call = [*COMMANDS[command], "--data", pairs, "--out", tmp_path / "out", "--model", "tiny-spd"]
    assert run_in_process(*call, "--device", "cpu").code == 0
    settings = next((tmp_path / "out").glob("**/settings.json" if command == "diagnose" else "**/asked.json"))
    first = next(iter(json.loads(settings.read_text())["fingerprint"]["images"]))
    change_image(pairs)
    refused = run_in_process(*call, "--device", "cpu", "--resume")
    assert refused.code == 2
    assert f"the images of sample {first} changed since" in refused.stderr


@pytest.mark.slow
def test_a_run_is_analysed_with_the_model_as_it_was(checkpoint, pairs, tmp_path):
    call = ["trace", "--limit", "2", "--max-new-tokens", "2", "--data", pairs, "--out", tmp_path / "run"]
    assert run_in_process(*call, "--model", checkpoint, "--device", "cpu").code == 0
    analyze = ["analyze", tmp_path / "run", "--only", "image-interchange", "--model"]
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    assert run_in_process(*analyze, other).code == 0
    change_weights(other)
    differ = f"was traced with {checkpoint}, not with {other}: the model's weights differ; give the model of the run"
    assert_fails(run_in_process(*analyze, other, "--out", tmp_path / "out"), differ)
    change_weights(checkpoint)
    changed = f"was traced with {checkpoint}, and the model's weights changed since; give the model as it was"
    assert_fails(run_in_process(*analyze, checkpoint, "--out", tmp_path / "out"), changed)


@pytest.mark.slow
def test_a_diagnosis_of_other_questions_says_so(pairs, tmp_path):
    call = [*COMMANDS["diagnose"], "--data", pairs, "--out", tmp_path / "out", "--model", "tiny-spd"]
    assert run_in_process(*call).code == 0
    pairs.write_text(pairs.read_text().replace('"question": "', '"question": "Well, '))
    assert_fails(
        run_in_process(*call, "--resume"), "contains a diagnosis of another call, by its samples; use"
    )


def test_a_sample_whose_image_changed_is_traced_again(random_qwen, image_paths, tmp_path, caplog):
    images = [Path(shutil.copy(path, tmp_path)) for path in image_paths[:2]]
    samples = [mp.Sample(id=str(number), question="?", images=[path]) for number, path in enumerate(images)]
    mp.trace(random_qwen, samples, tmp_path / "run", max_new_tokens=2)
    times = [(tmp_path / "run" / "samples" / f"{name}.h5").stat().st_mtime_ns for name in "01"]
    Image.new("RGB", (56, 56), "red").save(images[1])
    run = mp.trace(random_qwen, samples, tmp_path / "run", max_new_tokens=2, resume=True)
    assert "1 of 2 finished traces" in caplog.text
    again = [(tmp_path / "run" / "samples" / f"{name}.h5").stat().st_mtime_ns for name in "01"]
    assert again[0] == times[0] and again[1] != times[1]
    assert run["1"].image_hash != run["0"].image_hash
    caplog.clear()
    mp.trace(random_qwen, samples, tmp_path / "run", max_new_tokens=2, resume=True)
    assert not caplog.text


def test_weights_in_memory_are_sampled(random_qwen, image_paths, tmp_path):
    from dataclasses import replace

    import torch

    model, sample = replace(random_qwen), mp.Sample(id="a", question="?", images=image_paths[:1])
    assert model.fingerprint == random_qwen.fingerprint and model.fingerprint["of"] == "memory"
    mp.trace(model, [sample], tmp_path / "run", max_new_tokens=2)
    weight = next(model.hf.parameters())
    with torch.no_grad():
        weight.mul_(2)
    try:
        with pytest.raises(mp.errors.InputError, match="weights changed"):
            mp.trace(replace(model), [sample], tmp_path / "run", max_new_tokens=2, resume=True)
    finally:
        with torch.no_grad():
            weight.div_(2)
    assert len(mp.trace(replace(model), [sample], tmp_path / "run", max_new_tokens=2, resume=True)) == 1


def test_an_older_run_has_no_fingerprint_and_is_continued(random_qwen, image_paths, tmp_path):
    sample = mp.Sample(id="a", question="?", images=image_paths[:1])
    mp.trace(random_qwen, [sample], tmp_path / "run", max_new_tokens=2)
    file = tmp_path / "run" / "run.json"
    config = json.loads(file.read_text())
    assert config["fingerprint"] == {"model": random_qwen.fingerprint}
    del config["fingerprint"]
    file.write_text(json.dumps(config))
    assert len(mp.trace(random_qwen, [sample], tmp_path / "run", max_new_tokens=2, resume=True)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", first_fast([*COMMANDS, "filter"], 2))
def test_another_dtype_is_refused(command, checkpoint, pairs, tmp_path):
    own = ["data", "filter", "--limit", "2", "--max-new-tokens", "2"]
    call = [*COMMANDS.get(command, own), "--data", pairs, "--out", tmp_path / "out", "--device", "cpu"]
    call += ["--voters" if command == "filter" else "--model", checkpoint]
    assert run_in_process(*call).code == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    refused = run_in_process(*call, "--dtype", "bfloat16", "--resume")
    assert refused.code == 2 and ("dtype" in refused.stderr or "another model" in refused.stderr)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert run_in_process(*call, "--dtype", "float32", "--resume").code == 0, "as it was loaded"


@pytest.mark.slow
def test_deleted_traces_of_a_benchmark_are_made_again_and_links_refused(pairs, tmp_path):
    out = tmp_path / "out"
    call = ["bench", "mme", "--model", "tiny-spd", "--data", pairs, "--limit", "2", "--max-new-tokens", "2"]
    call += ["--trace", "--out", out, "--device", "cpu"]
    assert run_in_process(*call).code == 0
    whole, answers = mp.open_run(out / "run").ids, (out / "responses.jsonl").read_bytes()
    deleted = [out / "run" / "samples" / f"{whole[0]}.h5", out / "run" / "samples", out / "run"]
    for place in deleted:
        place.unlink() if place.is_file() else shutil.rmtree(place)
        assert run_in_process(*call, "--resume").code == 0
        assert mp.open_run(out / "run").ids == whole and mp.verify(out / "run") == []
        assert (out / "responses.jsonl").read_bytes() == answers, "an answer was added twice"
    for place in (out / "run" / "samples", out / "run"):
        moved = place.rename(tmp_path / "elsewhere")
        place.symlink_to(moved)
        refused = run_in_process(*call, "--resume")
        assert refused.code == 2 and "is a link" in refused.stderr
        place.unlink()
        moved.rename(place)
