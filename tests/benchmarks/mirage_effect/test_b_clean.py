"""B-Clean, compared with the paper's counts, shares and rankings, and with hand-made sets."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.benchmarks.mirage_effect.b_clean import chance_of_removal, clean_questions, rank_changes

PRINTED = [
    # name, questions, options, right without the picture (three models), kept, percent removed
    ("MicroVQA", 1042, 5, (456, 468, 335), 240, 77.0),
    ("MedXpertQA-MM", 2000, 5, (877, 984, 758), 514, 74.3),
    ("MMMU-Pro", 1730, 4, (829, 858, 772), 428, 75.3),
]


@pytest.mark.parametrize(("name", "count", "options", "n_right", "kept", "percent"), PRINTED)
def test_the_papers_removal_shares(name, count, options, n_right, kept, percent):
    # The paper prints the sizes of the sets and of the kept part. These sets have the same sizes and union.
    union = count - kept
    sets = [range(n_right[0]), range(100, 100 + n_right[1]), range(union - n_right[2], union)]
    assert len(set().union(*sets)) == union
    ids = [f"q{number}" for number in range(count)]
    models = {
        f"model {index}": {name: number in blind for number, name in enumerate(ids)}
        for index, blind in enumerate(sets)
    }
    kept_ids = clean_questions(models)
    assert len(kept_ids) == kept and kept_ids == ids[union:]
    assert round(100 * (1 - len(kept_ids) / count), 1) == percent
    blind_guessing = 1 - np.mean(np.random.default_rng(0).integers(0, options, (200_000, 3)).all(1))
    assert chance_of_removal([options], 3) == [pytest.approx(blind_guessing, abs=0.005)]


def test_chance_by_hand():
    assert chance_of_removal([4, 2, None], 2) == pytest.approx([7 / 16, 3 / 4, 0])
    assert chance_of_removal([4], 1) == [0.25] and chance_of_removal([], 3) == []
    assert [round(100 * chance, 1) for chance in chance_of_removal([4, 5], 3)] == [57.8, 48.8]


def test_the_union_is_removed_and_unscored_questions_stay():
    first = dict(a=True, b=False, c=None, d=False, e=False)
    second = dict(a=True, b=True, c=False, d=False, e=None)
    assert clean_questions({"m": first, "n": second}, by_text_model={"d"}) == ["c", "e"]


RANKINGS = [
    # name, questions, kept, percent with images before and after: GPT-5.1, Gemini-3-Pro, Gemini-2.5-Pro
    ("MMMU-Pro", 1730, 428, (76.0, 81.0, 68.0), (67.1, 72.8, 68.2), (2, 1, 3), (3, 1, 2)),
    ("MedXpertQA-MM", 2000, 514, (65.5, 77.8, 65.9), (41.1, 52.3, 39.1), (3, 1, 2), (2, 1, 3)),
    ("MicroVQA", 1042, 240, (61.5, 68.8, 63.5), (15.4, 23.2, 22.1), (3, 1, 2), (3, 1, 2)),
]


@pytest.mark.parametrize(("name", "count", "kept", "before", "after", "first", "last"), RANKINGS)
@pytest.mark.slow
def test_the_papers_rankings_change_on_two_of_three_sets(name, count, kept, before, after, first, last):
    def answers(whole: float, inside: float) -> list[bool]:
        on_kept, on_all = round(inside * kept / 100), round(whole * count / 100)
        on_rest = on_all - on_kept
        rest = count - kept
        assert 0 <= on_rest <= rest
        return [i < on_kept for i in range(kept)] + [i < on_rest for i in range(rest)]

    ids = [f"q{number}" for number in range(count)]
    correct = {f"m{i}": answers(*pair) for i, pair in enumerate(zip(before, after, strict=True))}
    changes = rank_changes(ids, correct, set(ids[:kept]))
    assert [round(100 * change["accuracy_before"].value, 1) for change in changes.values()] == pytest.approx(
        before, abs=0.06
    )
    assert [round(100 * change["accuracy_after"].value, 1) for change in changes.values()] == pytest.approx(
        after, abs=0.25
    )
    assert tuple(change["rank_before"].value for change in changes.values()) == first
    assert tuple(change["rank_after"].value for change in changes.values()) == last
    assert sum(bool(change["rank_change"].value) for change in changes.values()) == (
        0 if name == "MicroVQA" else 2
    )
    for change in changes.values():
        after = change["rank_after"]
        assert 1 <= after.low <= after.value <= after.high <= 3


def test_equal_accuracies_share_a_rank_with_a_wide_interval():
    rng = np.random.default_rng(0)
    ids = [str(number) for number in range(40)]
    same = [bool(v) for v in rng.integers(0, 2, 40)]
    other = [not v for v in same] if sum(same) == 20 else same[::-1]
    changes = rank_changes(ids, {"a": same, "b": other, "c": [False] * 40}, ids)
    a, b, c = (changes[name]["rank_before"] for name in "abc")
    assert a.value == b.value == 1.5
    assert (a.low, a.high) == (1, 2) and (c.low, c.high) == (3, 3)
    assert changes["a"]["rank_change"].value == 0


def test_ranks_of_nothing_are_undefined():
    changes = rank_changes(["a", "b"], {"m": [True, False], "n": [False, True]}, set())
    undefined = ("rank_after", "rank_change", "accuracy_after")
    assert all(changes["m"][name].value is None and changes["m"][name].low is None for name in undefined)
    assert changes["m"]["rank_before"].value == 1.5
    single = rank_changes(["a"], {"m": [True], "n": [None]}, {"a"})
    assert single["m"]["rank_before"].value is None
