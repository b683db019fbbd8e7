"""Claims are matched with the truth and with each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mmprobe.benchmarks.answers.claims import Claim
from mmprobe.benchmarks.spd_faith.data import Difference
from mmprobe.benchmarks.spd_faith.match import (
    compare_claims,
    match_claims,
    maximum_matching,
    pair_claims,
    values_agree,
)

DOG = Difference("remove", "dog")
CAR = Difference("color", "car", before="red", after="blue")
CUP = Difference("position", "cup", before="A1", after="B3")


def test_the_matching_is_as_large_as_can_be() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, columns = rng.integers(0, 5, 2)
        fits = rng.random((rows, columns)) < 0.4
        matching = maximum_matching(
            range(rows), range(columns), lambda row, column, fits=fits: bool(fits[row, column])
        )
        assert all(fits[row, column] for row, column in matching.items())
        assert len(set(matching.values())) == len(matching)
        slots = [*range(columns), *[None] * rows]  # brute force: every assignment of a column or nothing
        best = max(
            sum(column is not None and bool(fits[row, column]) for row, column in enumerate(choice))
            for choice in itertools.permutations(slots, int(rows))
        )
        assert len(matching) == best


def test_true_claims_match_whatever_their_order() -> None:
    claims = [
        Claim("position", "cup", after="B3"),
        Claim("remove", "dog"),
        Claim("color", "car", "red", "blue"),
    ]
    assert match_claims(claims, [DOG, CAR, CUP]) == ([2, 0, 1], [None, None, None])


def test_the_vague_claim_leaves_the_fitting_difference_to_the_precise_one() -> None:
    blue, green = Difference("color", "car", after="blue"), Difference("color", "car", after="green")
    claims = [Claim("color", "car"), Claim("color", "car", after="blue")]
    assert match_claims(claims, [blue, green])[0] == [1, 0]


@pytest.mark.parametrize(
    ("claim", "truth", "error"),
    [
        (Claim("remove", "person"), DOG, "type_category_mismatch"),  # the paper's four examples
        (Claim("color", "dog"), DOG, "type_confusion"),
        (Claim("color", "car", after="yellow"), CAR, "attribute_error"),
        (Claim("color", "bus", after="blue"), DOG, "fabrication"),
        (Claim("position", "cup", after="C3"), CUP, "attribute_error"),
        (Claim("remove", "dog", quantity=2), DOG, "quantity_error"),
        (Claim(None, "dog"), DOG, "type_confusion"),
        (Claim("remove", None), DOG, "type_category_mismatch"),
        (Claim(None, None), DOG, "fabrication"),
    ],
)
def test_each_error_category(claim: Claim, truth: Difference, error: str) -> None:
    assert match_claims([claim], [truth]) == ([None], [error])


def test_a_difference_explains_one_wrong_claim_and_none_that_is_matched() -> None:
    claims = [Claim("remove", "dog"), Claim("remove", "cat"), Claim("remove", "cow"), Claim("remove", "dog")]
    truth = [DOG, Difference("remove", "horse")]
    assert match_claims(claims, truth)[1] == [None, "type_category_mismatch", "fabrication", "quantity_error"]


def test_all_claims_about_equal_images_are_fabrications() -> None:
    assert match_claims([Claim("remove", "dog"), Claim("color", "car")], []) == (
        [None, None],
        ["fabrication"] * 2,
    )
    assert match_claims([], [DOG]) == ([], [])


def test_values_that_fit() -> None:
    assert (
        values_agree(None, "red") and values_agree("blue", "light blue") and values_agree("left", "top left")
    )
    assert values_agree("A1", "left")  # a cell and a side cannot be compared
    assert not values_agree("dark blue", "light blue") and not values_agree("red", "blue")
    assert not values_agree("top left", "top right") and not values_agree("A1", "A2")


@pytest.mark.parametrize(
    ("first", "second", "label"),
    [
        (Claim("remove", "dog"), Claim("remove", "dog"), "consistent"),
        (Claim("color", "car"), Claim("color", "car", "red", "blue"), "consistent"),
        (Claim("color", "car", after="green"), Claim("color", "car", after="blue"), "contradictory"),
        (Claim("remove", "dog"), Claim("color", "dog"), "contradictory"),
        (Claim("color", "dog"), Claim("position", "dog"), "ambiguous"),
        (Claim("remove", "dog"), Claim("remove", "dog", negated=True), "contradictory"),
        (Claim("remove", "dog"), Claim(None, "dog", negated=True), "contradictory"),
        (Claim("color", "dog", negated=True), Claim("color", "dog", negated=True), "consistent"),
        (Claim("remove", "dog", quantity=2), Claim("remove", "dog", quantity=3), "contradictory"),
        (Claim("remove", "dog"), Claim("remove", "cat"), "ambiguous"),
        (Claim("remove", None), Claim("remove", None), "ambiguous"),
        (Claim(None, "dog"), Claim("remove", "dog"), "ambiguous"),
    ],
)
def test_labels_of_two_claims_do_not_depend_on_their_order(first: Claim, second: Claim, label: str) -> None:
    assert compare_claims(first, second) == compare_claims(second, first) == label


def test_claims_are_paired_one_to_one() -> None:
    first = [Claim("remove", "dog"), Claim("color", "car", after="red"), Claim("position", "cup")]
    second = [Claim("color", "car", after="blue"), Claim("remove", "dog")]
    assert pair_claims(first, second) == [(0, 1, "consistent"), (1, 0, "contradictory")]
    assert pair_claims(first, first) == [(0, 0, "consistent"), (1, 1, "consistent"), (2, 2, "consistent")]
    assert pair_claims(first, []) == []


def test_every_claim_is_true_or_wrong_in_one_way() -> None:
    rng = np.random.default_rng(1)
    kinds, things, colours = (
        ("color", "remove", "position", None),
        ("dog", "cat", None),
        ("red", "blue", None),
    )
    for _ in range(300):
        claims = [
            Claim(kinds[a], things[b], after=colours[c], quantity=(None, 1, 3)[d])  # type: ignore[arg-type]
            for a, b, c, d in zip(
                *rng.integers(0, [[4], [3], [3], [3]], (4, rng.integers(0, 7))), strict=True
            )
        ]
        truth = [
            Difference(kinds[a], things[b], after=colours[c])  # type: ignore[arg-type]
            for a, b, c in zip(*rng.integers(0, [[3], [2], [3]], (3, rng.integers(0, 5))), strict=True)
        ]
        matched, errors = match_claims(claims, truth)
        assert len(matched) == len(errors) == len(claims)
        assert all((at is None) == (error is not None) for at, error in zip(matched, errors, strict=True))
        taken = [at for at in matched if at is not None]
        assert len(set(taken)) == len(taken)
        for claim, at in zip(claims, matched, strict=True):
            if at is not None:
                assert (claim.type, claim.category) == (truth[at].type, truth[at].category)
