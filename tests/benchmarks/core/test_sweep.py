"""A sweep: each value is what `bench` gives alone, and its other numbers are those of the traces and of readings by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.benchmarks.core.sweep import markdown, read_values
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models.reading import append_answers


@pytest.mark.exhaustive
def test_a_sweep_of_pixels(tmp_path):
    data = make_pairs(tmp_path / "pairs", n=2, seed=3)
    ds = mp.benchmarks.sweep(
        "vqa", "tiny-spd", tmp_path / "out", "max_pixels", [4000, 50_000], data=data, limit=5, device="cpu"
    )
    alone = mp.benchmarks.evaluate("vqa", "tiny-spd", tmp_path / "one", data=data, limit=5, max_pixels=4000)
    assert ds["accuracy"].values[0] == alone.metrics["accuracy"].value
    assert ds["accuracy_low"].values[0] == alone.metrics["accuracy"].low
    run, model = (
        mp.open_run(tmp_path / "out" / "max_pixels=50000" / "run"),
        mp.load_model("tiny-spd", device="cpu"),
    )
    share = np.mean([each.attention_mass.values[..., 2].mean() for each in run])
    assert ds["attention"].values[1] == pytest.approx(share)
    assert (ds["attention_low"] >= 0).all() and (ds["attention_high"] <= 1).all()
    lost = []
    for trace in run:
        ids = trace.steps["id"].values.tolist()
        text = trace.sample.model_copy(update={"images": [], "regions": []})
        inputs = append_answers(model, model.prepare(text), [ids])
        with torch.no_grad():
            logits = model.hf(**inputs).logits[0, -len(ids) - 1 : -1].log_softmax(-1)
        lost.append(trace.steps["logprob"].values.mean() - logits[range(len(ids)), ids].mean().item())
    assert ds["loss"].values[1] == pytest.approx(np.mean(lost), abs=1e-4)
    assert markdown(ds).count("\n") == 3 and (ds["seconds"] > 0).all()


def test_values_of_any_setting():
    assert read_values("max_pixels", "256k,1.5M") == [256_000, 1_500_000]
    assert read_values("temperature", "0,0.5") == [0.0, 0.5]
    for option, text, message in [
        ("max_pixls", "1,2", "did you mean max_pixels"),
        ("batch_size", "0,1", "must be 1 or more"),
    ]:
        with pytest.raises(mp.InputError, match=message):
            read_values(option, text)


def test_the_command_writes_a_table_and_a_figure(tmp_path):
    out = tmp_path / "out"
    options = ("sweep", "vqa", "--model", "tiny-spd", "--limit", "1", "--max-new-tokens", "2,4", "--out", out)
    done = run_in_process(*options)
    assert done.code == 0, done.stderr
    assert {"sweep.nc", "sweep.md", "sweep.html", "max_new_tokens=2"} <= {each.name for each in out.iterdir()}
    before = (out / "sweep.md").read_text().splitlines()
    answers = (out / "max_new_tokens=4" / "responses.jsonl").read_bytes()
    (out / "max_new_tokens=2" / "results.json").unlink()
    assert_fails(run_in_process(*options), "use --resume to continue, --overwrite")
    done = run_in_process(*options, "--resume")
    assert done.code == 0, done.stderr
    after = (out / "sweep.md").read_text().splitlines()
    assert [row.rsplit("|", 2)[0] for row in after] == [row.rsplit("|", 2)[0] for row in before]
    assert (
        after[2].endswith("| – |") and (out / "max_new_tokens=4" / "responses.jsonl").read_bytes() == answers
    )
    done = run_in_process(*options, "--overwrite")
    assert done.code == 0 and not (out / "sweep.md").read_text().splitlines()[2].endswith("| – |")
    other = ("sweep", "chair", "--model", "tiny-spd", "--max-new-tokens", "2,4", "--out", tmp_path / "b")
    assert_fails(run_in_process(*other), "sweep chair: it has no accuracy")
    assert not (tmp_path / "b").exists()
    wrong = ("sweep", "vqa", "--model", "tiny-spd", "--max-new-tokens", "2", "--out", tmp_path / "b")
    assert_fails(run_in_process(*wrong), "sweep: give one setting several values")
