"""The lexical judge scores answers of the synthetic world, plain English and bad answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mmprobe.benchmarks.core.results import write_results
from mmprobe.benchmarks.spd_faith.data import Difference, Pair, read_synthetic_pairs
from mmprobe.benchmarks.spd_faith.rule_labels import score_by_rules
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES
from mmprobe.errors import InputError
from mmprobe.samples import load_samples

TRUTH = Pair(
    "7", (Difference("color", "car", before="red", after="blue"), Difference("remove", "dog")), "easy"
)


def lines(*answers: tuple[str, str | None], name: str = "7") -> list[dict]:
    return [{"id": name, "question_type": kind, "response": text} for kind, text in answers]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Pair], list[dict]]:
    samples = load_samples(make_pairs(tmp_path_factory.mktemp("world") / "pairs", n=24, seed=1))
    asked = [
        sample
        for sample in samples
        if sample.metadata["type"] in ("same", "different", "count", "find", "steps")
    ]
    answers = [
        {"id": sample.id, "question_type": sample.metadata["type"], "response": sample.answer}
        for sample in asked
    ]
    return read_synthetic_pairs(samples), answers


def test_true_answers_are_perfect(world: tuple[list[Pair], list[dict]]) -> None:
    metrics, records = score_by_rules(*world)
    for name in (
        "dqr_exact",
        "dqr_ratio",
        "ds_tolerance",
        "ds_exist",
        "tf1_micro",
        "tf1_macro",
        "cf1",
        "cf1_code",
        "drf",
    ):
        assert metrics[name].value == 1, name
    assert (
        metrics["consistency_ratio"].value == metrics["drf_of_count"].value == metrics["drf_steps"].value == 1
    )
    assert metrics["contradiction_rate"].value == metrics["yes_ratio"].value == 0
    assert metrics["dqr_exact"].n == len(records) == 24
    assert metrics["drf"].n == sum(bool(pair.differences) for pair in world[0])


def test_answers_of_other_pairs_score_as_a_slow_count_of_them_does(
    world: tuple[list[Pair], list[dict]],
) -> None:
    """Every pair gets the next pair's `find` answer: DRF by plain comparison of sentences."""
    pairs = [pair for pair in world[0] if pair.differences]
    moved = pairs[1:] + pairs[:1]
    answers = [
        {
            "id": pair.id,
            "question_type": "find",
            "response": " ".join(claimed.description for claimed in other.differences),
        }
        for pair, other in zip(pairs, moved, strict=True)
    ]
    shares = [
        np.mean(
            [
                claimed.description in {true.description for true in pair.differences}
                for claimed in other.differences
            ]
        )
        for pair, other in zip(pairs, moved, strict=True)
    ]
    metrics, _ = score_by_rules(pairs, answers)
    assert metrics["drf"].value == pytest.approx(np.mean(shares)) and metrics["drf"].n == len(pairs)
    errors = [
        name
        for name in metrics
        if name.startswith("drf_") and metrics[name].direction == "lower" and "[" not in name
    ]
    n_claims = sum(len(pair.differences) for pair in moved)
    right = sum(share * len(other.differences) for share, other in zip(shares, moved, strict=True))
    assert len(errors) == 5
    assert sum(metrics[name].value for name in errors) == pytest.approx(1 - right / n_claims)  # type: ignore[misc]


def test_plain_english_is_scored() -> None:
    metrics, (record,) = score_by_rules(
        [TRUTH],
        lines(
            ("same", "No. The dog is gone and the red car is now blue."),
            ("different", "Yes, the car turned green."),
            ("count", "I can see **three** differences."),
            (
                "find",
                "1. The puppy was removed.\n2. The car changed from red to green.\n3. A bench moved left.",
            ),
            ("list", "- color: car\n- remove: cat"),
        ),
    )
    assert record["scores"]["dqr_ratio"] == 1.5 and record["scores"]["drf"] == pytest.approx(1 / 3)
    assert record["answers"]["find"]["errors"] == (None, "attribute_error", "fabrication")
    assert record["scores"]["drf_of_count"] == pytest.approx(1 / 3)
    assert [label for _, _, label in record["agreement"]] == ["contradictory"]
    assert metrics["consistency_ratio"].value == -1
    assert metrics["tf1_micro"].value == 1 and metrics["cf1"].value == 0.5  # of the listing, not of `find`
    assert metrics["drf[difficulty=easy]"].value == pytest.approx(1 / 3)


def test_find_stands_in_for_a_listing_that_was_not_asked() -> None:
    metrics, _ = score_by_rules([TRUTH], lines(("find", "The dog is missing.")))
    assert metrics["cf1_recall"].value == 0.5


BAD = [
    "",
    None,
    "   ",
    "**",
    "<p></p>",
    "狗很可爱",
    "Je ne vois rien.",
    "{" * 5000,
    "\ud83d",
    "I cannot answer.",
    "la " * 9000,
]


@pytest.mark.parametrize("text", BAD)
def test_answers_not_understood_are_counted(text: str | None, tmp_path: Path) -> None:
    kinds = ("same", "different", "count", "find", "list", "steps")
    metrics, records = score_by_rules([TRUTH], lines(*((kind, text) for kind in kinds)))
    for name in ("dqr_exact", "tf1_micro", "cf1", "drf", "drf_steps"):
        read = metrics[f"{name}[read]"]
        assert (read.value, read.n, read.coverage) == (None, 0, 0), name
        assert metrics[name].value == 0 and metrics[name].bounds == (0, 1), name
    assert metrics["consistency_ratio"].value is None
    assert not any(records[0]["answers"][kind]["understood"] for kind in ("find", "list", "steps"))
    assert metrics["unread"].value == 1 and metrics["unread"].n == len(kinds)
    stored = json.loads(write_results(tmp_path / "out", "spd-faith", metrics, records).read_text())
    assert stored["metrics"]["drf"]["bounds"] == [0, 1] and stored["metrics"]["drf"]["unread"] == 1


def test_prose_is_unread_and_a_declared_answer_in_it_is_read() -> None:
    prose = "At first glance the two scenes look alike. On a closer look the dog can no longer be made out."
    metrics, _ = score_by_rules(
        [TRUTH], lines(("list", prose), ("steps", f"{prose}\nAnswer: The dog was removed."))
    )
    assert metrics["unread"].value == 0.5 and metrics["unread"].n == 2
    assert metrics["tf1_micro[read]"].value is None and metrics["drf_steps"].value == 1


def test_saying_that_nothing_changed_is_understood() -> None:
    metrics, _ = score_by_rules(
        [TRUTH], lines(("list", "The pictures are identical."), ("find", "Nothing changed."))
    )
    assert (metrics["cf1"].value, metrics["cf1"].coverage) == (0, 1)
    assert (metrics["drf"].value, metrics["drf"].n) == (None, 0)  # no claims: nothing to be faithful


def test_claims_about_equal_images_are_fabrications() -> None:
    metrics, _ = score_by_rules([Pair("7", ())], lines(("find", "The dog is gone."), ("count", "1")))
    assert metrics["drf"].value == 0 and metrics["drf_fabrication"].value == 1
    assert metrics["dqr_exact"].value == 0 and metrics["dqr_ratio"].value is None


def test_pairs_without_an_answer_are_left_out() -> None:
    metrics, records = score_by_rules([TRUTH, Pair("8", ())], lines(("count", "2")))
    assert [record["id"] for record in records] == ["7"] and metrics["dqr_exact"].coverage == 1


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "no responses"),
        (lines(("count", "1"), ("count", "2")), "response 2: 'count' of '7' was answered already"),
        (lines(("count", "1"), name="9"), "id '9' is in no pair"),
        (lines(("colour", "red")), "question_type is 'colour'"),
        ([{"id": "7", "question_type": "count"}], "'response' is missing"),
        ([{"id": "7", "question_type": "count", "response": 3}], "'response' is missing or not a text"),
    ],
)
def test_malformed_responses_are_named(answers: list[dict], message: str) -> None:
    with pytest.raises(InputError, match=message):
        score_by_rules([TRUTH], answers)


def test_an_id_belongs_to_one_pair() -> None:
    with pytest.raises(InputError, match="two pairs"):
        score_by_rules([TRUTH, TRUTH], lines(("count", "1")))
    with pytest.raises(InputError, match="'8' names two pairs"):
        score_by_rules([TRUTH, Pair("9", (), question_ids=("8",)), Pair("8", ())], lines(("count", "1")))


def test_any_text_is_scored_without_a_crash() -> None:
    rng = np.random.default_rng(0)
    words = [*SHAPES, *COLOURS, "the", "was", "not", "removed", "moved", "from", "to", "B2", "and", "no", "differences",
             "is", "now", "3", "two", "dog", "car's", ".", ",", "\n", "1.", "|", "{", "}", "first image", "\x00", "é"]  # fmt: skip
    truths = [Pair(str(k), TRUTH.differences) for k in range(300)]
    answers = [
        {"id": str(k), "question_type": kind, "response": " ".join(rng.choice(words, rng.integers(0, 40)))}
        for k in range(300)
        for kind in ("same", "different", "count", "find", "steps")
    ]
    metrics, records = score_by_rules(truths, answers)
    json.dumps(records, allow_nan=False)
    assert metrics["unread"].n == 1500 and metrics["unread"].value > 0.5
