"""Spans of an answer: what is thought and what is said, whatever tokens the marks are cut into."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import write_run

import mmprobe as mp
from mmprobe.errors import InputError, NotCaptured
from mmprobe.thoughts import SPAN_NAMES, find_spans


def show(texts: list[str], before: str = "") -> str:
    """Return a letter a token: other, thinking, answer."""
    return "".join(SPAN_NAMES[span][0] for span in find_spans(texts, before))


@pytest.mark.parametrize(
    ("texts", "before", "expected"),
    [
        (["A", " star", "."], "", "aaa"),
        ([], "", ""),
        (["<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Yes", "<|im_end|>"], "", "ottttoaaa"),
        (["<", "think", ">", "Hm", "</", "think", ">", "Yes"], "", "oootoooa"),  # marks cut into tokens
        (["<think>", "never", " ends"], "", "ott"),
        (["Hm", "</think>", "Yes"], "<|im_start|>assistant\n<think>\n", "toa"),  # the template opens it
        (["Hm", " so", "</think>", "Yes"], "", "ttoa"),  # so does a prefill that is not known
        (["Yes"], "<think>\n\n</think>\n\n", "a"),  # the template closes it: no thinking
        (["Hm", "<answer>", "Yes", "</answer>", "."], "", "ooaoo"),
        (["<think>", "<answer>", "no", "</answer>", "</think>", "<answer>", "Yes"], "", "otttooa"),
        (["<think>", "a", "</think>", "b", "<think>", "c", "</think>", "d"], "", "otoaotoa"),
        (["[THINK]", "Hm", "[/THINK]", "Yes"], "", "otoa"),
        (["<|channel>", "thought", "\nHm", "<channel|>", "Yes"], "", "ootoa"),
        (["So", " <|begin_of_box|>", "2", "<|end_of_box|>"], "", "ooao"),
        (["Hm.</think>Yes", "."], "<think>", "ta"),  # a token is of the span of its first character
        (["Is", " <", "b", ">", " a", " tag", "?"], "", "aaaaaaa"),
    ],
)  # fmt: skip
def test_spans(texts, before, expected):
    assert show(texts, before) == expected


def test_a_part_of_a_character_is_of_the_span_around_it():
    assert show(["<think>", "", "\ufffd", "</think>", "", "Yes"]) == "ottoaa"


@pytest.fixture
def run(tmp_path):
    """Return a run of an answer with a thought, and of one without; the prompt is two tokens of the user."""
    rng = np.random.default_rng(0)
    runs = {}
    for name, said in {"a": ["<think>", "Hm", "</think>", "A", " star"], "b": ["No", "."]}.items():
        steps, n_tokens = len(said), 3 + len(said)
        mass = rng.dirichlet(np.ones(6), (steps, 2, 2)).astype("f4")
        runs[name] = {
            "tokens/id": np.arange(n_tokens),
            "tokens/text": np.array(["v", "Is", "it?", *said], object),
            "tokens/group": np.array([2, 3, 3, *[4] * steps], "u1"),
            "tokens/image": np.array([0, -1, -1, *[-1] * steps], "i2"),
            "images/grid": np.array([[1, 1]], "i4"),
            "steps/id": np.arange(3, n_tokens),
            "steps/entropy": rng.random(steps).astype("f4"),
            "attention/mass": mass,
            "ffn/gate_sum": rng.normal(size=(2, 4)).astype("f4"),
            "images": ["a.png"],
        }
    return write_run(tmp_path / "run", runs, answer="Hm A star")


def test_data_sets_of_steps_are_limited_and_no_others(run):
    whole, said = run["a"], run["a"].within("answer")
    np.testing.assert_array_equal(said.attention_mass.values, whole.attention_mass.values[3:])
    np.testing.assert_array_equal(said.steps["entropy"].values, whole.steps["entropy"].values[3:])
    assert said.step_texts == ["A", " star"]
    assert said.tokens.sizes == whole.tokens.sizes
    assert said.whole.attention_mass.shape == whole.attention_mass.shape
    with pytest.raises(NotCaptured, match="ffn/gate_sum"):
        said.ffn_gate_sum  # noqa: B018
    assert "ffn/gate_sum" not in said.captured and "ffn/gate_sum" in whole.captured


def test_a_run_keeps_the_answers_that_have_the_span(run, caplog):
    thoughts = run.within("thinking")
    assert thoughts.ids == ["a"]
    assert "1 of 2 answers have no thinking" in caplog.text
    assert thoughts[0].step_texts == ["Hm"]
    assert [trace.step_texts for _, trace in run.within("answer").stream("x")] == [
        ["A", " star"],
        ["No", "."],
    ]
    assert run.within("answer").select(["b"])["b"].span == "answer"
    with pytest.raises(InputError, match="span 'thoughts': .*thinking or answer"):
        run.within("thoughts")


def test_the_step_of_a_token_counts_those_before_it(run):
    """Attention a token is divided by the number of generated tokens so far, thoughts included."""
    ds = mp.analyses.attention_decay(run.within("answer").select(["a"]))
    mass = run["a"].attention_mass.sel(group="generated").values[3:].mean(2)
    np.testing.assert_allclose(
        ds.mass_per_token.sel(group="generated").T.values, mass / np.array([[3], [4]]), rtol=1e-5
    )


def test_stacks_are_limited(run):
    stacked = run.within("answer").stack("steps/entropy")
    assert stacked.sizes["step"] == 2
    assert stacked["step_token"].values.tolist() == [["A", " star"], ["No", "."]]
