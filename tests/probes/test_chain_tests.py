"""Changed chains on scripted models whose use of their steps is known."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes import reasoning as module
from mmprobe.probes.reasoning import chain_tests, prefill_chain, split_chain
from mmprobe.samples import Answer, Sample
from mmprobe.viz.figures import figures

SHOWN = ["star", "heart", "star", "heart", "star", "heart"]


def make_samples() -> list[Sample]:
    return [
        Sample(id=f"s{number}", question=f"What? {shape}", images=[f"{number // 2}.png"])
        for number, shape in enumerate(SHOWN)
    ]


def read_verdict(text: str) -> str | None:
    match = re.search("star|heart", text)
    return match[0] if match else None


def script_model(monkeypatch, conclude):
    """Let a model write two steps, the second of which names what it sees, and conclude by a function."""

    def answer(model, samples, folder, settings, title):
        for sample in samples:
            shape = sample.question.split()[-1]
            steps = sample.prefill.split("\n")[:-1] if sample.prefill else ["I look.", f"It is a {shape}."]
            end = f" a {conclude(sample, steps)}."
            text = end if sample.prefill else "\n".join([*steps, f"Therefore:{end}"])
            yield sample.id, Answer(text)

    monkeypatch.setattr(module, "answer", answer)


def read_steps(sample: Sample, steps: list[str]) -> str:
    """Conclude from the steps alone: `star` where they do not say."""
    return next((shape for step in steps[::-1] if (shape := read_verdict(step))), "star")


def look(sample: Sample, steps: list[str]) -> str:
    return sample.question.split()[-1]


def test_a_model_that_reads_its_steps_follows_changed_steps(tiny_spd, monkeypatch):
    script_model(monkeypatch, read_steps)
    reword = lambda sample, steps: [step.replace("It is", "I see") for step in steps]  # noqa: E731
    ds = chain_tests(tiny_spd, make_samples(), read_verdict, paraphrase=reword)
    share = ds["share"].to_series()
    # without the second step the model says star, which changes the three hearts
    expected = {"whole": 0, "truncated to 0": 0.5, "truncated to 1": 0.5, "mistake": 1, "filler": 0.5}
    assert share.to_dict() == expected | {"paraphrase": 0}
    assert ds["n"].values.tolist() == [6] * 6
    assert ds["changed"].sel(test="truncated to 1").values.tolist() == [0, 1, 0, 1, 0, 1]
    assert (ds.attrs["n_groups"], ds.attrs["n_unread"]) == (3, 0)
    assert (ds["low"] <= ds["share"]).all() and (ds["share"] <= ds["high"]).all()
    assert ds["high"].sel(test="whole") > 0.3, "three sets of images show little"
    assert len(figures(ds)) == 1


def test_a_model_that_looks_again_keeps_its_verdict(tiny_spd, monkeypatch):
    script_model(monkeypatch, look)
    ds = chain_tests(tiny_spd, make_samples(), read_verdict)
    assert ds["share"].values.tolist() == [0, 0, 0, 0, 0]
    assert "paraphrase" not in ds["test"].values


def test_what_cannot_be_read_is_left_out_and_counted(tiny_spd, monkeypatch):
    def conclude(sample, steps):
        unread = sample.id.endswith("-s0") or (sample.id.endswith("-s1") and len(steps) < 2)
        return "thing" if unread else look(sample, steps)

    script_model(monkeypatch, conclude)
    ds = chain_tests(tiny_spd, make_samples(), read_verdict)
    assert ds.attrs["n_unread"] == 1
    assert ds["n"].to_series().to_dict() == {
        "whole": 5, "truncated to 0": 4, "truncated to 1": 4, "mistake": 5, "filler": 5
    }  # fmt: skip
    assert np.isnan(ds["changed"].sel(test="truncated to 0", sample="s1"))
    with pytest.raises(NotApplicable, match="'So:'"):
        chain_tests(tiny_spd, make_samples(), read_verdict, conclusion="So:")
    with pytest.raises(InputError, match="without a prefill"):
        chain_tests(tiny_spd, [prefill_chain(make_samples()[0], ["A."])], read_verdict)


def test_fillers_have_as_many_tokens_as_the_steps(tiny_spd):
    steps = ["Picture one: red circle A1.", "Picture two: red circle A1, blue star B2."]
    filler = module._Filler(tiny_spd)(make_samples()[0], steps)
    assert [len(text.split()) for text in filler] == [
        len(tiny_spd.tokenizer(step, add_special_tokens=False)["input_ids"]) for step in steps
    ]


@pytest.mark.parametrize(
    "answer", ["Therefore: Nothing changed.", "One: a star.", "", "One: a star. Therefore: Nothing changed."]
)
def test_answers_without_steps_or_conclusion_have_no_chain(answer):
    assert split_chain(answer) is None


@pytest.mark.slow
def test_the_embedded_model_continues_its_own_steps_as_before(tiny_spd, tmp_path):
    samples = [
        s for s in mp.load_samples(make_pairs(tmp_path / "pairs", 6, seed=910_000)) if "-steps" in s.id
    ]
    ds = chain_tests(tiny_spd, samples, lambda text: text.strip(), max_new_tokens=120)
    assert ds["share"].sel(test="whole") == 0 and ds["n"].sel(test="whole") == len(samples)
