"""B-Clean against the paper's printed counts, shares and rankings, and sets made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.benchmarks.mirage_effect.b_clean import b_clean, chance_share, rank_changes
from mmprobe.errors import InputError

PRINTED = [
    # name, questions, options, right without the picture (three models), kept, percent removed
    ("MicroVQA", 1042, 5, (456, 468, 335), 240, 77.0),
    ("MedXpertQA-MM", 2000, 5, (877, 984, 758), 514, 74.3),
    ("MMMU-Pro", 1730, 4, (829, 858, 772), 428, 75.3),
]


@pytest.mark.parametrize(("name", "count", "options", "right", "kept", "percent"), PRINTED)
def test_the_papers_removal_shares(name, count, options, right, kept, percent):
    # the paper prints the sets' sizes and that of what is left: sets of these sizes with that union
    union = count - kept
    sets = [range(right[0]), range(100, 100 + right[1]), range(union - right[2], union)]
    assert len(set().union(*sets)) == union
    ids = [f"q{number}" for number in range(count)]
    models = {
        f"model {index}": [number in blind for number in range(count)] for index, blind in enumerate(sets)
    }
    found = b_clean(ids, models, [options] * count)
    assert len(found.kept) == kept and found.kept == ids[union:]
    assert [len(gone) for gone in found.compromised.values()] == list(right)
    assert round(100 * found.removed.value, 1) == percent and found.removed.n == count
    blind_guessing = 1 - np.mean(np.random.default_rng(0).integers(0, options, (200_000, 3)).all(1))
    assert found.removed_by_chance == pytest.approx(blind_guessing, abs=0.005)


def test_chance_by_hand():
    assert chance_share([4, 2, None], 2) == pytest.approx((7 / 16 + 3 / 4 + 0) / 3)
    assert chance_share([4], 1) == 0.25 and chance_share([], 3) is None
    assert [round(100 * chance_share([k], 3), 1) for k in (4, 5)] == [57.8, 48.8]


def test_the_union_goes_and_what_was_not_scored_stays():
    right = {"m": [True, False, None, False, False], "n": [True, True, False, False, None]}
    found = b_clean(list("abcde"), right, [4] * 5, by_text_model={"d"})
    assert found.kept == ["c", "e"] and found.compromised == {"m": ["a"], "n": ["a", "b"]}
    assert found.unscored == {"m": 1, "n": 1} and found.removed.value == pytest.approx(3 / 5)
    assert found.removed_by_chance == pytest.approx(1 - (3 / 4) ** 3), "the text model can guess, too"


def test_input_that_does_not_fit():
    with pytest.raises(InputError, match="one model"):
        b_clean(["a"], {}, [4])
    with pytest.raises(InputError, match="2 entries for 1 questions"):
        b_clean(["a"], {"m": [True, False]}, [4])
    with pytest.raises(InputError, match="options"):
        b_clean(["a"], {"m": [True]}, [])
    with pytest.raises(InputError, match="twice"):
        b_clean(["a", "a"], {"m": [True, False]}, [4, 4])


RANKINGS = [
    # name, questions, kept, percent with pictures before and after: GPT-5.1, Gemini-3-Pro, Gemini-2.5-Pro
    ("MMMU-Pro", 1730, 428, (76.0, 81.0, 68.0), (67.1, 72.8, 68.2), (2, 1, 3), (3, 1, 2)),
    ("MedXpertQA-MM", 2000, 514, (65.5, 77.8, 65.9), (41.1, 52.3, 39.1), (3, 1, 2), (2, 1, 3)),
    ("MicroVQA", 1042, 240, (61.5, 68.8, 63.5), (15.4, 23.2, 22.1), (3, 1, 2), (3, 1, 2)),
]


@pytest.mark.parametrize(("name", "count", "kept", "before", "after", "first", "last"), RANKINGS)
def test_the_papers_rankings_change_on_two_of_three_sets(name, count, kept, before, after, first, last):
    def answers(whole: float, inside: float) -> list[bool]:
        on_kept, on_all = round(inside * kept / 100), round(whole * count / 100)
        on_rest = on_all - on_kept
        rest = count - kept
        assert 0 <= on_rest <= rest
        return [i < on_kept for i in range(kept)] + [i < on_rest for i in range(rest)]

    ids = [f"q{number}" for number in range(count)]
    right = {f"m{i}": answers(*pair) for i, pair in enumerate(zip(before, after, strict=True))}
    found = rank_changes(ids, right, set(ids[:kept]))
    assert [round(100 * c.before.value, 1) for c in found.values()] == pytest.approx(before, abs=0.06)
    assert [round(100 * c.after.value, 1) for c in found.values()] == pytest.approx(after, abs=0.25)
    assert tuple(c.rank_before for c in found.values()) == first
    assert tuple(c.rank_after for c in found.values()) == last
    assert sum(bool(c.changed) for c in found.values()) == (0 if name == "MicroVQA" else 2)
    for change in found.values():
        low, high = change.rank_after_interval
        assert 1 <= low <= change.rank_after <= high <= 3


def test_equal_accuracies_share_a_rank_and_chance_widens_it():
    rng = np.random.default_rng(0)
    ids = [str(number) for number in range(40)]
    same = [bool(v) for v in rng.integers(0, 2, 40)]
    other = [not v for v in same] if sum(same) == 20 else same[::-1]
    found = rank_changes(ids, {"a": same, "b": other, "c": [False] * 40}, ids)
    assert found["a"].rank_before == found["b"].rank_before == 1.5
    assert found["a"].rank_before_interval == (1, 2) and found["c"].rank_before_interval == (3, 3)
    assert found["a"].changed is False


def test_ranks_of_nothing_are_undefined():
    found = rank_changes(["a", "b"], {"m": [True, False], "n": [False, True]}, set())
    assert found["m"].rank_after is None and found["m"].changed is None and found["m"].after.value is None
    assert found["m"].rank_before == 1.5
    single = rank_changes(["a"], {"m": [True], "n": [None]}, {"a"})
    assert single["m"].rank_before is None
