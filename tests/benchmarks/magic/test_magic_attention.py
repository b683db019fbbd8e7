"""Attention on numbered boxes, compared with attention spread over pixels, and from a real trace."""

from __future__ import annotations

import numpy as np
import pytest

import mmprobe as mp
from mmprobe.benchmarks.magic.attention import (
    AttentionView,
    measure_box_attention,
    read_attention_views,
    score_attention,
)
from mmprobe.benchmarks.magic.benchmark import Magic
from mmprobe.benchmarks.magic.data import NumberedBox
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable

WHOLE = (0, 0, 40, 18)


def test_attention_on_boxes_agrees_with_attention_spread_over_pixels():
    attention = np.random.default_rng(2).random((3, 4))
    boxes = [(0, 0, 10, 6), (5, 3, 17, 9), (33, 1, 7, 17), WHOLE]
    attention_on_boxes = measure_box_attention([AttentionView(attention, WHOLE)], boxes)
    spread = np.kron(attention, np.ones((6, 10))) / 60
    mass = [spread[y : y + h, x : x + w].sum() / spread.sum() for x, y, w, h in boxes]
    assert attention_on_boxes.mass == pytest.approx(np.array(mass))
    lift = np.array(mass) / [w * h / (40 * 18) for _, _, w, h in boxes]
    assert attention_on_boxes.lift == pytest.approx(lift)
    assert attention_on_boxes.attended == {i + 1 for i in range(3) if lift[i] > 1}


def test_attention_on_several_views_of_one_image():
    # An overview of 1 x 2 tokens and two tiles of 1 x 2. The left box contains half of the tokens and 5/8 of the mass.
    views = [
        AttentionView(np.array([[1.0, 1.0]]), (0, 0, 20, 10)),
        AttentionView(np.array([[3.0, 1.0]]), (0, 0, 10, 10)),
        AttentionView(np.array([[2.0, 0.0]]), (10, 0, 10, 10)),
    ]
    attention = measure_box_attention(views, [(0, 0, 10, 10), (10, 0, 10, 10), (0, 0, 5, 10), (30, 0, 5, 5)])
    assert attention.mass == pytest.approx([5 / 8, 3 / 8, 3.5 / 8, 0])
    assert attention.lift[:3] == pytest.approx([10 / 8, 6 / 8, (3.5 / 8) / (1.5 / 6)]) and np.isnan(
        attention.lift[3]
    )
    assert attention.attended == {1, 3}


def test_uniform_attention_attends_to_no_box():
    boxes = [(3, 3, 7, 5), (0, 0, 100, 70), (50, 20, 33, 11)]
    attention = measure_box_attention([AttentionView(np.ones((7, 9)), (0, 0, 100, 70))], boxes)
    assert attention.lift == pytest.approx(np.ones(3)) and attention.attended == frozenset()
    weights = np.zeros((7, 10))
    weights[0, 0] = 5
    corner = [AttentionView(weights, (0, 0, 100, 70))]
    assert measure_box_attention(corner, [(0, 0, 10, 10), (50, 0, 10, 10)]).attended == {1}
    assert measure_box_attention(corner, [(0, 0, 10, 10)], minimum_lift=71).attended == frozenset()


def test_unusable_attention():
    boxes = [(0, 0, 5, 5)]
    for nothing in (np.zeros((2, 2)), np.array([[np.nan, 1.0]]), np.array([[np.inf, 1.0]])):
        assert measure_box_attention([AttentionView(nothing, WHOLE)], boxes) is None
    assert measure_box_attention([], boxes) is None
    for wrong in (np.array([[-1.0, 2.0]]), np.ones(4), np.ones((0, 2))):
        with pytest.raises(InputError, match="attention map"):
            measure_box_attention([AttentionView(wrong, WHOLE)], boxes)


def test_attention_views_of_a_trace(tiny_spd, tmp_path):
    samples = mp.load_samples(make_pairs(tmp_path / "pairs", n=1, seed=3))
    pair = next(sample for sample in samples if len(sample.images) == 2)
    run = mp.trace(tiny_spd, [pair], tmp_path / "run", capture="default", max_new_tokens=4)
    trace = run[pair.id]
    mean = trace.attention_visual.values.astype(float).mean((0, 1))
    parts = [read_attention_views(trace, image)[0] for image in (0, 1)]
    assert np.concatenate([part.weights.ravel() for part in parts]) == pytest.approx(mean)
    assert parts[0].box == (0, 0, 112, 112)
    assert measure_box_attention(parts[:1], [(0, 0, 112, 112)]).mass[0] == pytest.approx(1)
    with pytest.raises(NotApplicable, match="image 2"):
        read_attention_views(trace, 2)


def test_scores_of_a_run(tiny_spd, tmp_path):
    """The boxes lie where the attention of a real answer is strongest and weakest."""
    truth = Magic().read(Magic().draw(tmp_path / "data", 1, 3))
    samples = Magic().ask(truth)
    run = mp.trace(tiny_spd, samples[:2], tmp_path / "run", capture="default", max_new_tokens=8)
    questions = []
    for question in truth.questions[:2]:
        weights = read_attention_views(run[question.id])[0].weights
        boxes = {
            kind: (28 * int(place[1]), 28 * int(place[0]), 28, 28)
            for kind, place in (
                ("most", np.unravel_index(weights.argmax(), (4, 4))),
                ("least", np.unravel_index(weights.argmin(), (4, 4))),
            )
        }
        # the relevant box has the most attention in the first question, the least in the second
        relevant_kind = "most" if not questions else "least"
        numbered = [NumberedBox(box=box, relevant=kind == relevant_kind) for kind, box in boxes.items()]
        questions.append(question.model_copy(update={"boxes": numbered}))
    questions.append(truth.questions[2])
    metrics, rows = score_attention(questions, run)
    assert [rows[question.id]["attended"] for question in questions] == [[1], [1], None]
    assert metrics["attention_magiscore_micro_precision"].value == 0.5
    assert metrics["attention_magiscore_macro_recall"].value == 0.5
    assert metrics["attention_magiscore_micro_f1"].coverage == pytest.approx(2 / 3)
    lifts = np.array([rows[question.id]["lift"] for question in questions[:2]])
    assert (lifts[:, 0] > 1).all() and (lifts[:, 1] < 1).all()
    assert metrics["attention_lift_relevant"].value == pytest.approx((lifts[0, 0] + lifts[1, 1]) / 2)
    assert metrics["attention_lift_adversarial"].value == pytest.approx((lifts[0, 1] + lifts[1, 0]) / 2)
    weights = read_attention_views(run[questions[0].id])[0].weights
    assert lifts[0, 0] == pytest.approx(weights.max() / weights.mean())


def test_a_run_without_attention_is_undefined(tiny_spd, tmp_path):
    truth = Magic().read(Magic().draw(tmp_path / "data", 1, 3))
    spec = tmp_path / "bare.yaml"
    spec.write_text("datasets: [attention/mass]\n")
    run = mp.trace(tiny_spd, Magic().ask(truth)[:1], tmp_path / "run", capture=spec, max_new_tokens=4)
    metrics, rows = score_attention(truth.questions, run)
    assert {(metric.value, metric.n) for metric in metrics.values()} == {(None, 0)}
    assert rows[truth.questions[0].id] == {"attended": None, "lift": None}
