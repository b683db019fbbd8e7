"""The mirage effect with a mock model, and with the embedded model, traced with and without images."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.analyses import picture_absence
from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.runner import run_benchmark, write_labels
from mmprobe.benchmarks.mirage_effect.b_clean import clean_folders
from mmprobe.cache import open_run
from mmprobe.settings import AskSettings
from mmprobe.traces.run import Recording
from mmprobe.viz import figures

BENCHMARK = BENCHMARKS["mirage-effect"]()
SEED = 5


@pytest.mark.exhaustive
def test_the_task_of_inspect_scores_as_the_command_does(tmp_path):
    inspect_ai = pytest.importorskip("inspect_ai", reason="the extra eval is not installed")
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from mmprobe.benchmarks.core import inspect_tasks

    has_image: dict[str, bool] = {}

    def answer(text: str, image_attached: bool) -> str:
        if "<diagnosis>" in text:
            return "<diagnosis>Melanoma</diagnosis>"
        return "Yes, it is red." if image_attached else "I do not see a picture."

    def outputs(input, tools, tool_choice, config):
        message = input[-1]
        has_image[message.id] = isinstance(message.content, list) and len(message.content) > 1
        output = ModelOutput.from_content("mockllm/model", answer(message.text, has_image[message.id]))
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    (log,) = inspect_ai.eval(
        inspect_tasks.mirage_effect(n=1, seed=SEED),
        model=get_model("mockllm/model", custom_outputs=outputs, memoize=False),
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    assert log.status == "success", log.error
    values = {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}
    truth = BENCHMARK.read(BENCHMARK.draw(tmp_path / "drawn", 1, SEED))
    samples = BENCHMARK.ask(truth)
    assert has_image == {sample.id: bool(sample.images) for sample in samples}
    answers = {sample.id: answer(sample.question, bool(sample.images)) for sample in samples}
    expected = {name: metric.value for name, metric in BENCHMARK.score(truth, answers)[0].items()}
    expected = {name: value for name, value in expected.items() if value is not None}
    assert values == pytest.approx(expected | {"truncated": 0.0})
    assert values["mirage_rate"] == 0 and values["diagnosis_alarming[modality=ECG]"] == 1


@pytest.mark.slow
def test_the_embedded_model_with_and_without_images(tiny_spd, tmp_path):
    drawn = BENCHMARK.read(BENCHMARK.draw(tmp_path / "data", 2, 1_000_001))
    truth = drawn._replace(imageless=drawn.imageless[:1])
    folder = tmp_path / "out"
    settings, recording = AskSettings(max_new_tokens=8, batch_size=4), Recording("full")
    about = {"model": "tiny-spd"}
    metrics, records = run_benchmark(BENCHMARK, truth, tiny_spd, folder, about, settings, recording)
    assert metrics["accuracy_with"].value == 1 and metrics["accuracy_with"].n == 6
    assert metrics["accuracy_without"].value < 0.7
    assert metrics["mirage_rate_choices"].value == 1  # it was never trained to notice a missing image
    assert metrics["mirage_rate"].n == 1
    write_labels(folder / "run", BENCHMARK.label(truth, records))
    run = open_run(folder / "run")
    assert all(run.faithful(question.id) is True for question in truth.choices)

    ds = picture_absence(run)
    assert ds.pair.values.tolist() == [question.id for question in truth.choices]
    assert ds.attrs["n_left_out"] == ds.attrs["n_unpaired"] == 0
    assert (ds["mass"].sel(picture="absent", group="visual") == 0).all()
    assert (ds["mass"].sel(picture="present", group="visual") > 0).all()
    np.testing.assert_allclose(ds["mass"].sum("group"), 1, rtol=1e-4)
    assert (
        ds.distance_first_mean[-1] > 5 * ds.distance_first_mean[0]
    ).all()  # the image reaches the query only in later layers
    first = run[truth.choices[0].id].array("residual/post").values[0].astype(float)
    blind = run[f"{truth.choices[0].id}--absent"].array("residual/post").values[0].astype(float)
    cosine = (first * blind).sum(-1) / np.sqrt((first**2).sum(-1) * (blind**2).sum(-1))
    np.testing.assert_allclose(ds.distance_first[0], 1 - cosine, atol=1e-9)
    assert len(figures(ds)) == 4

    cleaned = clean_folders([folder])
    assert cleaned.models == ["tiny-spd"] and len(cleaned.records) == 6
    assert cleaned.metrics["rank_before[model=tiny-spd]"].value == 1
