"""Analyses of a span of the answers: they see its steps alone, and whatever came before them counts as before."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.analyses import ANALYSES, analyze_all
from mmprobe.analyses.regions import find_mentions
from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable, NotCaptured
from mmprobe.probes.interchange.run import image_interchange_run
from mmprobe.samples import Region, Sample

ANSWERS = {
    "a": "<think>The star is red.</think>No, the star is blue.",
    "b": "<think>It is.</think>Yes.",
    "c": "Yes.",
}


@pytest.fixture(scope="module")
def run(tiny_spd, tmp_path_factory) -> Run:
    from helpers.family_checks import draw_image

    folder: Path = tmp_path_factory.mktemp("spans")
    images = [draw_image(folder, "wide"), draw_image(folder, "tall")]
    regions = [Region(image=0, box=(0, 0, 28, 28))]
    samples = [
        Sample(id=name, images=images, question="Is the star red?", regions=regions) for name in ANSWERS
    ]
    return mp.trace(tiny_spd, samples, folder / "run", answers=ANSWERS)


def text_of(run: Run, name: str) -> str:
    return "".join(run[name].step_texts)


def test_spans_are_stored(run):
    assert "steps/span" in run["a"].captured
    thought, said = run.within("thinking"), run.within("answer")
    assert (thought.ids, said.ids) == (["a", "b"], ["a", "b", "c"])
    assert text_of(thought, "a") == "The star is red."
    assert text_of(said, "a").startswith("No, the star is blue.")


def test_every_analysis_takes_a_span():
    for name, analyze in ANALYSES.items():
        assert ("span" in inspect.signature(analyze).parameters) == (name != "picture_absence"), name


@pytest.mark.parametrize(
    "name", ["attention_decay", "sublayer_transitions", "attention_vs_activation", "attention_ratio"]
)
def test_the_keyword_is_the_limited_run(run, name):
    limited = ANALYSES[name](run, span="answer")
    assert limited.attrs["span"] == "answer"
    assert limited.drop_attrs().equals(ANALYSES[name](run.within("answer")).drop_attrs())
    assert not limited.drop_attrs().equals(ANALYSES[name](run).drop_attrs())
    assert "span" not in ANALYSES[name](run).attrs


def test_maps_of_a_span_are_those_of_the_whole_answer(run):
    """Causal inference subtracts what earlier words explain, those of the thought too."""
    trace = run["a"]
    whole, said = mp.analyses.token_activation(trace), mp.analyses.token_activation(trace, span="answer")
    steps = np.flatnonzero(trace.spans == 2)
    assert 0 < len(steps) < len(trace.spans)
    for name in ("tam", "raw"):
        np.testing.assert_array_equal(said[name].values, whole[name].values[steps])
    assert said.token.values.tolist() == whole.token.values[steps].tolist()


def test_mentions_are_counted_in_the_span(run):
    trace = run["a"]
    whole, said = (
        find_mentions(trace, ["star"])["star"],
        find_mentions(trace.within("answer"), ["star"])["star"],
    )
    assert (len(whole), len(said)) == (2, 1)
    texts = trace.within("answer").step_texts
    assert "".join(texts[step] for step in said[0]).strip() == "star"
    assert find_mentions(trace.within("thinking"), ["blue"]) == {}


def test_means_over_a_span_by_hand(run):
    ds = mp.analyses.sublayer_transitions(run, span="thinking")
    trace = run["a"]
    expected = trace.update_cos_mha.values[trace.spans == 1].mean(0)
    np.testing.assert_allclose(ds.cos_mha.sel(sample="a"), expected, rtol=1e-5)


def test_what_cannot_be_limited_is_named(run):
    with pytest.raises(NotCaptured, match="ffn/gate_sum .*'answer'"):
        mp.analyses.neuron_activation(run, span="answer")
    with pytest.raises(NotApplicable, match="compares whole answers"):
        mp.analyses.picture_absence(run.within("answer"))
    with pytest.raises(InputError, match="^span 'think': .* thinking or answer$"):
        mp.analyses.attention_decay(run, span="think")


@pytest.mark.slow
def test_workers_limit_too(run):
    one, two = (analyze_all(run.within("answer"), workers=workers)[0] for workers in (1, 2))
    assert [each.attrs["span"] for each in two.values()] == ["answer"] * len(two)
    assert list(one) == list(two) and all(one[name].equals(each) for name, each in two.items())


def test_probes_read_whole_answers(tiny_spd, run):
    with pytest.raises(InputError, match="^span 'answer'"):
        image_interchange_run(tiny_spd, run.within("answer"))


def test_the_command(run, tmp_path):
    result = run_in_process(
        "analyze", str(run.path), "--span", "answer", "--only", "attention-decay", "--json"
    )
    file = Path(json.loads(result.stdout)["files"][0])
    assert file.parent == run.path / "analyses" / "answer"
    assert not (run.path / "analyses" / "attention_decay.nc").exists()
    assert_fails(
        run_in_process("analyze", str(run.path), "--span", "said"), "span 'said': choose thinking or answer"
    )
    assert_fails(
        run_in_process("analyze", str(run.path), "--span", "answer", "--model", "tiny-spd"),
        "--span: limits analyses",
    )
    assert_fails(
        run_in_process("analyze", str(run.path), "--span", "answer", "--only", "linear-probe"),
        "reads whole answers",
    )
