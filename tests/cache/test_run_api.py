"""What analysts type: places, parts, stacks and tables of a run, and what a notebook shows of it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import runs
from PIL import Image

from mmprobe.analyses import sublayer_transitions
from mmprobe.cache import open_run, pack
from mmprobe.errors import InputError, NotCaptured

TOKENS = {"a": ["Is", "it", "?", " yes", " it", " is"], "b": ["Is", "?", " no"], "c": ["?", " a", " b"]}
STEPS = {"a": 3, "b": 1, "c": 2}


@pytest.fixture
def run(tmp_path):
    """Three answers of different lengths in a system of three layers, one of them labelled afterwards."""
    rng = np.random.default_rng(0)
    Image.new("RGB", (400, 300), "red").save(tmp_path / "red <1>.png")
    traces = {
        name: {
            "tokens/text": texts,
            "tokens/group": [3] * (len(texts) - STEPS[name]) + [4] * STEPS[name],
            "tokens/id": range(len(texts)),
            "tokens/image": [-1] * len(texts),
            "steps/id": range(STEPS[name]),
            "steps/logprob": rng.normal(size=STEPS[name]),
            "update/cos_mha": rng.uniform(size=(STEPS[name], 3)),
            "update/cos_ffn": rng.uniform(size=(STEPS[name], 3)),
            "update/kl": rng.uniform(size=(STEPS[name], 3)),
            "metadata": {"type": "same" if name == "b" else "steps"},
            "question": "a < b?",
            "faithful": name != "b",
            "images": [str(tmp_path / "red <1>.png")],
        }
        for name, texts in TOKENS.items()
    }
    made = runs.write_run(tmp_path / "run", traces, layers=[2, 5, 7], answer="It is <b>.")
    (made.path / "labels.jsonl").write_text('{"id": "c", "faithful": false}\n')
    return open_run(made.path)


def test_traces_are_found_by_place_and_parts_by_slice(run):
    assert [run[0].id, run[-1].id, run["b"].id] == ["a", "c", "b"]
    part = run[1:]
    assert part.ids == ["b", "c"] and len(part) == 2 and "a" not in part
    assert part[0].id == "b" and repr(part) == f"<Run {run.path}: 2 of 2 samples, hand>"
    assert run.ids == ["a", "b", "c"]
    with pytest.raises(IndexError):
        run[3]


def test_a_part_is_selected_by_fields_and_labels(run):
    """`c` is faithful in the samples file, but its label says that it is not."""
    assert run.select(faithful=False).ids == ["b", "c"]
    assert run.select(faithful=False, type="steps").ids == ["c"]
    assert run.select(["c", "b"], type="same").ids == ["b"]
    assert run.select(type="neither").ids == []
    with pytest.raises(InputError, match="'typ'.*type"):
        run.select(typ="same")


def test_an_analysis_of_a_part_is_that_of_a_run_of_its_samples(run, tmp_path):
    packed = open_run(pack(run.path, tmp_path / "run.h5"))
    part = sublayer_transitions(run.select(["a", "c"]))
    (run.path / "samples" / "b.h5").unlink()
    for other in (sublayer_transitions(packed[::2]), sublayer_transitions(open_run(run.path))):
        for name in part:
            np.testing.assert_array_equal(part[name], other[name], err_msg=name)


def test_a_stack_is_nan_beyond_the_end_of_each_answer(run):
    stack = run.stack("update/cos_ffn")
    assert stack.dims == ("sample", "step", "layer") and stack.shape == (3, 3, 3)
    assert stack.sample.values.tolist() == ["a", "b", "c"] and stack.layer.values.tolist() == [2, 5, 7]
    for trace in run:
        values = trace["update/cos_ffn"].values
        np.testing.assert_array_equal(stack.sel(sample=trace.id)[: len(values)], values)
        assert np.isnan(stack.sel(sample=trace.id)[len(values) :]).all()
    assert stack.step_token.values.tolist() == [[" yes", " it", " is"], [" no", "", ""], [" a", " b", ""]]
    assert run.stack("tokens/text").sel(sample="b").values.tolist() == [*TOKENS["b"], "", "", ""]
    assert run.stack("steps/id").dtype.kind == "f"
    with pytest.raises(NotCaptured):
        run.stack("residual/mid")


def test_a_table_has_a_row_a_sample(run):
    table = run.to_dataframe()
    assert table.index.tolist() == ["a", "b", "c"]
    assert table["faithful"].tolist() == [True, False, False]
    assert table["n_steps"].tolist() == [3, 1, 2]
    assert table["metadata.type"].tolist() == ["steps", "same", "steps"]
    assert "update/cos_mha" in run.captured and run.captured == run[0].captured


def test_a_notebook_shows_escaped_text_and_thumbnails(run):
    assert "a &lt; b?" in run._repr_html_() and "<b>" not in run._repr_html_()
    for page in (run[0]._repr_html_(), run[0].sample._repr_html_()):
        assert "a &lt; b?" in page and 'alt="red &lt;1&gt;.png" src="data:image/png;base64,' in page
    run[0].sample.images[0].write_bytes(b"no image")
    assert "red &lt;1&gt;.png cannot be read" in run[0]._repr_html_()
    assert run._ipython_key_completions_() == ["a", "b", "c"]
