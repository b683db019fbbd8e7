"""Plans compared with real runs of the tiny models."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from helpers.asking import answer_batch
from helpers.command_line import assert_fails, read_result, run_in_process
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.files import format_bytes
from mmprobe.interventions import Method, load_method
from mmprobe.interventions.contrast import ContrastPath
from mmprobe.models import load_shapes
from mmprobe.models.dictionaries import load_dictionary
from mmprobe.models.reading import PrefixStore, repeated_keys
from mmprobe.samples import Sample
from mmprobe.traces import load_capture
from mmprobe.traces.capture import PromptSize, data_bytes
from mmprobe.traces.engines import resolve_capture
from mmprobe.traces.plan import dry_run, mean_prompt_size, plan, residual_bytes

ROWS = mp.CaptureSpec(
    datasets=["attention/row", "residual/mid"], positions="all", dtype="float32", heads=[0, 2]
)
MEMORY = """
import resource, sys
import mmprobe as mp
from mmprobe.interventions import Method, load_method
from mmprobe.interventions.contrast import ContrastPath
from mmprobe.models import load_shapes
from mmprobe.models.reading import PrefixStore, repeated_keys
from mmprobe.samples import Sample
from mmprobe.traces import load_capture
from mmprobe.traces.capture import PromptSize
from mmprobe.traces.plan import plan
shapes = load_shapes("tiny-spd", device="cpu")
print(plan(shapes, load_capture("full"), 4, 128, 4, PromptSize(90, 0, 80)).host)
model = mp.load_model("tiny-spd", device="cpu")
samples = [Sample(id=str(i), question="Is there a star?" * 20) for i in range(4)]
mp.trace(model, samples, sys.argv[1], capture="full", max_new_tokens=128, batch_size=4)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.parametrize("capture", first_fast(["full", "default", ROWS]), ids=["full", "default", "rows"])
@pytest.mark.slow
def test_disk_is_predicted_within_a_fifth(random_qwen, image_paths, tmp_path, capture):
    spec = load_capture(capture)
    samples = [
        Sample(id=str(index), images=image_paths[:index], question="Is there a star?") for index in range(4)
    ]
    sizes = mean_prompt_size(random_qwen, samples)
    predicted = plan(random_qwen, spec, len(samples), 40, prompt=sizes)
    mp.trace(random_qwen, samples, tmp_path / "run", capture=spec, max_new_tokens=40)
    written = sum(path.stat().st_size for path in (tmp_path / "run" / "samples").iterdir())
    assert predicted.disk == pytest.approx(written, rel=0.2)
    measured = dry_run(random_qwen, spec, samples[::2], len(samples), 40)
    assert measured.disk == pytest.approx(written, rel=0.2)
    assert measured.seconds > 0 and predicted.seconds is None


VISION = mp.CaptureSpec(datasets=["vision/residual", "vision/attention", "vision/place"])


@pytest.mark.parametrize("capture", ["full", VISION], ids=["full", "vision"])
@pytest.mark.parametrize("family", first_fast(["qwen2_vl", "llava", "llava_next", "internvl", "mllama"]))
def test_arrays_are_predicted_to_the_byte(family, image_paths, tmp_path, capture):
    """The families have cross-attention, class tokens, tiles, or an encoder narrower than its output."""
    model = load_tiny_model(family)
    sample = Sample(id="a", images=image_paths[:2], question="Is there a star?")
    spec = resolve_capture(load_capture(capture), model)
    trace = mp.trace(model, [sample], tmp_path / "run", capture=spec, max_new_tokens=7)["a"]
    written = sum(trace.array(name).values.nbytes for name in spec.stored)
    assert data_bytes(model, spec, mean_prompt_size(model, [sample]), 7) == written


@pytest.mark.stress
def test_memory_is_predicted_within_a_fifth(tmp_path):
    """One process does both, since each has to load torch."""
    command = [sys.executable, "-P", "-c", MEMORY, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, check=True)
    planned, measured = map(int, done.stdout.split())
    assert planned == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("name", first_fast(["sage", "plain", "vcd", "icd"], 2))
def test_what_methods_keep_is_predicted(tiny_spd, image_paths, monkeypatch, name):
    """Two questions about each of two pairs of images, answered together: prefixes, and caches of second paths."""
    samples = [
        Sample(id=f"{pair}-{len(question)}", images=image_paths[pair : pair + 2], question=question)
        for question in ("Are the two pictures the same?", "Compare the two pictures.")
        for pair in (0, 1)
    ]
    paths: list[ContrastPath] = []
    create = ContrastPath.__init__
    monkeypatch.setattr(
        ContrastPath, "__init__", lambda path, *args: paths.append(path) or create(path, *args)
    )
    monkeypatch.setattr(
        "mmprobe.traces.plan.peak_bytes", lambda: 0
    )  # this process's may grow between the plans
    method, new, size = load_method(name), 12, 2
    store = PrefixStore(tiny_spd, repeated_keys(samples), method.needs_final_states)
    for first in (0, size):
        batch = samples[first : first + size]
        answer_batch(tiny_spd, batch, method, max_new_tokens=new, prefixes=store)

    prompt, spec = mean_prompt_size(tiny_spd, samples), load_capture(mp.CaptureSpec(datasets=["update/kl"]))

    def predict(n_samples: int, methods: list[Method]) -> int:
        return plan(tiny_spd, spec, n_samples, new, size, prompt, methods=methods).host

    base = predict(1, [])
    kept = predict(len(samples), [method]) - predict(1, [method])
    assert kept == pytest.approx(sum(each.nbytes for each in store.prefixes.values()), rel=0.4)
    assert len(store.prefixes) == 2 * method.n_prefixes and bool(paths) == method.has_contrast_path
    caches = [sum(layer.keys.nbytes + layer.values.nbytes for layer in path.cache.layers) for path in paths]
    assert predict(1, [method]) - base == pytest.approx(
        max(caches, default=0), rel=0.3
    )  # ICD adds an instruction


def test_photographs_of_many_visual_tokens_are_told(tmp_path):
    """A token of the embedded model is 28 x 28 pixels."""
    for name, size in (("large", (1960, 1624)), ("small", (1400, 1400))):
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    line = {"question": "What is it?"}
    data = tmp_path / "samples.jsonl"
    data.write_text(
        "".join(
            json.dumps(line | {"id": name, "images": [f"{name}.png"]}) + "\n" for name in ("small", "large")
        )
    )
    call = ("plan", "--model", "tiny-spd", "--data", data, "--json")
    told = run_in_process(*call, "--max-pixels", 10_000_000)
    assert told.code == 0 and "sample large makes 4060 visual tokens; --max-pixels" in told.stderr
    assert "makes" not in run_in_process(*call).stderr, "the embedded model's processor makes images small"


@pytest.mark.slow
def test_a_model_without_weights_gives_the_same_plan(tiny_spd):
    spec = load_capture("full")
    shapes = load_shapes("tiny-spd", device="cpu")
    assert plan(shapes, spec, 10, 64).disk == plan(tiny_spd, spec, 10, 64).disk
    on_gpu = plan(shapes, spec, 10, 64, on_gpu=True)
    assert on_gpu.device > sum(weight.nbytes for weight in tiny_spd.hf.parameters())


def test_the_command_prints_its_assumptions():
    arguments = ("plan", "--model", "tiny-spd", "--samples", 100, "--max-new-tokens", 64, "--json")
    result = read_result(run_in_process(*arguments))
    assert result["disk"] > 10**6 and result["seconds"] is None
    assert re.findall(r"\d+", result["assumed"]) == ["1024", "768", "64"]
    assert_fails(run_in_process("plan", "--model", "tiny-spd"), "plan: give --samples, --data or both")


def test_a_diagnosis_and_a_benchmark_have_plans_of_their_own():
    diagnosis = read_result(
        run_in_process("plan", "diagnose", "--model", "tiny-spd", "--samples", 90, "--json")
    )
    assert diagnosis["passes"] == [1260, 1620] and diagnosis["seconds"] is None
    assert_fails(run_in_process("plan", "diagnose", "--model", "tiny-spd"), "give --samples, --data or both")
    bench = ("bench", "--difference", 0.05, "--accuracy", 0.7, "--json")
    assert read_result(run_in_process("plan", *bench))["paired"] == 1254
    assert_fails(run_in_process("plan", "--model", "tiny-spd", *bench), "plan bench: ")


def test_smaller_captures_can_be_recorded_and_take_a_tenth(image_paths, tmp_path):
    """Each is a file that a trace takes."""
    model = load_tiny_model("qwen2_5_vl")
    arguments = ["plan", "--model", "tiny-spd", "--samples", 3, "--max-new-tokens", 24, "--json"]
    full = read_result(run_in_process(*arguments, "--capture", "full"))
    assert len(full["smaller"]) >= 2
    for number, each in enumerate(full["smaller"]):
        assert 10 * each["bytes"] <= data_bytes(
            load_shapes("tiny-spd"), load_capture("full"), PromptSize(), 24
        )
        file = tmp_path / f"{number}.yaml"
        file.write_text(json.dumps(each["capture"]))
        spec = load_capture(each["capture"] if isinstance(each["capture"], str) else file)
        assert read_result(run_in_process(*arguments, "--capture", file))["disk"] < full["disk"]
        layers = [layer for layer in spec.layers or [0] if layer < model.n_layers]
        sample = Sample(id="a", images=image_paths[:1], question="Is there a star?")
        options = {"capture": spec.model_copy(update={"layers": layers}), "max_new_tokens": 2}
        run = mp.trace(model, [sample], tmp_path / str(number), **options)
        assert not run.failures and set(spec.datasets) <= set(run["a"].captured)


def test_streams_of_prompts_are_predicted_by_group_to_the_byte(tiny_spd, image_paths, tmp_path):
    sample = Sample(id="a", images=image_paths[:2], question="Is there a star?", system="Be short.")
    everything = mp.CaptureSpec(
        datasets=["residual/post", "residual/mid"], positions="prompt", layers=[2, 5], dtype="float32"
    )
    for groups in (None, ["visual"], ["visual", "user"]):
        spec = resolve_capture(everything.model_copy(update={"groups": groups}), tiny_spd)
        size = mean_prompt_size(tiny_spd, [sample])
        predicted = residual_bytes(tiny_spd, spec, size)
        trace = mp.trace(tiny_spd, [sample], tmp_path / f"{groups}", capture=spec, max_new_tokens=2)["a"]
        written = [
            trace.array(name).values.nbytes for name in spec.stored if name.startswith("prompt/residual")
        ]
        assert sum(predicted.values()) == sum(written) > 0 and len(written) == 2
        assert list(predicted) == [*(groups or ["visual", "user", "other"])]
    assert residual_bytes(tiny_spd, load_capture("default"), size) == {}


def test_the_command_says_what_streams_and_features_take(make_pairs_file, tmp_path):
    capture, data = tmp_path / "visual.yaml", make_pairs_file
    capture.write_text("datasets: [residual/post]\npositions: prompt\ngroups: [visual]\nlayers: [0, 7]\n")
    call = ("plan", "--model", "tiny-spd", "--data", data, "--max-new-tokens", 12)
    said = run_in_process(*call, "--capture", capture, "--dictionary", "tiny-spd").stdout
    shapes = load_shapes("tiny-spd", device="cpu")
    prompt = mean_prompt_size(shapes, mp.load_samples(data))
    (visual,) = residual_bytes(shapes, load_capture(str(capture)), prompt).items()
    assert f"streams visual {format_bytes(visual[1])}: residual streams" in said
    assert "512 features at blocks.3.hook_resid_post" in said and "mmprobe activations writes" in said
    planned = read_result(run_in_process(*call, "--dictionary", "tiny-spd", "--json"))["features"]
    call = ("--model", "tiny-spd", "--hooks", "blocks.3.hook_resid_post", "--out", tmp_path / "shards")
    assert (
        run_in_process(
            "trace", *call[:2], "--data", data, "--out", tmp_path / "run", "--max-new-tokens", 12
        ).code
        == 0
    )
    assert run_in_process("activations", tmp_path / "run", *call).code == 0
    written = sum(file.stat().st_size for file in (tmp_path / "shards").iterdir())
    assert planned["disk"] == pytest.approx(written, rel=0.1)
    assert planned["memory"] == sum(each.nbytes for each in load_dictionary("tiny-spd").weights.values())
    assert_fails(
        run_in_process("plan", "--model", "tiny-spd", "--samples", 1, "--dictionary", "gone"),
        "no such folder",
    )


@pytest.fixture
def make_pairs_file(tmp_path):
    return make_pairs(tmp_path / "pairs", n=1, seed=3)


def test_what_is_kept_of_prompts_is_predicted_and_said(random_qwen, image_paths, tmp_path):
    samples = [
        Sample(id=str(index), images=image_paths[:2], question="Is there a star?") for index in range(2)
    ]
    whole = mp.CaptureSpec(datasets=["residual/post"], positions="prompt", dtype="float32")
    some = whole.model_copy(update={"groups": ["visual"], "layers": [0, 2]})
    sizes = mean_prompt_size(random_qwen, samples)
    per_token = 4 * random_qwen.hf.config.get_text_config().hidden_size
    assert data_bytes(random_qwen, whole, sizes, 5) == sizes.tokens * 3 * per_token
    assert data_bytes(random_qwen, some, sizes, 5) == sizes.visual * 2 * per_token
    text = plan(random_qwen, some, 2, 5, prompt=sizes).assumed
    assert text.endswith(f"; {sizes.visual:.0f} tokens of each prompt (visual) are recorded in 2 of 3 layers")
    assert "recorded in" not in plan(random_qwen, load_capture("default"), 2, 5, prompt=sizes).assumed
    run = mp.trace(random_qwen, samples, tmp_path / "run", capture=some, max_new_tokens=5)
    assert run["0"].array("prompt/residual_post").nbytes == data_bytes(random_qwen, some, sizes, 5)


def test_a_photograph_of_more_than_four_thousand_tokens_is_said(tmp_path):
    """The right number is that of transformers' own rule: cells of 28 pixels, two patches each way."""
    Image.new("RGB", (1792, 1764)).save(tmp_path / "large.png")
    Image.new("RGB", (112, 112)).save(tmp_path / "small.png")
    lines = [{"id": name, "question": "?", "images": [f"{name}.png"]} for name in ("small", "large")]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    call = ["plan", "--model", "tiny-spd", "--data", tmp_path / "data.jsonl", "--max-new-tokens", 4]
    height, width = smart_resize(1764, 1792, 28, 784, 10_000_000)
    number = height * width // 784
    assert number > 4_000
    told = run_in_process(*call, "--max-pixels", 10_000_000)
    assert f"an image of sample large makes {number} visual tokens; --max-pixels" in told.stderr
    assert "visual tokens;" not in run_in_process(*call).stderr
