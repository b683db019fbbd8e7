"""Match claims with true differences, and the claims of two answers with each other.

The error types are those of SPD-Faith Bench (arXiv:2602.07833), appendix B.2.3. We wrote the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from mmprobe.benchmarks.answers.claims import Claim
from mmprobe.benchmarks.answers.coco import GENERIC
from mmprobe.benchmarks.answers.colours import compare_colours, name_hue
from mmprobe.benchmarks.answers.places import parse_place
from mmprobe.benchmarks.spd_faith.data import Difference

Agreement = Literal["consistent", "contradictory", "ambiguous"]
ClaimError = Literal[
    "type_category_mismatch", "type_confusion", "attribute_error", "quantity_error", "fabrication"
]
CLAIM_ERRORS: tuple[ClaimError, ...] = (
    "type_category_mismatch",
    "type_confusion",
    "attribute_error",
    "quantity_error",
    "fabrication",
)
AGREEMENT_WEIGHTS: dict[Agreement, float] = {"consistent": 1.0, "contradictory": -1.0, "ambiguous": 0.5}
_OPPOSITES = ({"left", "right"}, {"top", "bottom"}, {"foreground", "background"})
First = TypeVar("First")
Second = TypeVar("Second")


def maximum_matching(
    first: Sequence[First], second: Sequence[Second], fits: Callable[[First, Second], bool]
) -> dict[int, int]:
    """Return the largest one-to-one matching of two lists, by augmenting paths: index in first -> in second.

    Example:
        >>> maximum_matching([1, 2], [2, 3], lambda a, b: b - a in (0, 1))
        {0: 0, 1: 1}
    """
    options = [[j for j, other in enumerate(second) if fits(item, other)] for item in first]
    owner: dict[int, int] = {}
    partner: dict[int, int] = {}
    for start in range(len(first)):
        reached_from: dict[int, int] = {}  # index in second -> index in first
        queue = [start]
        free = None
        for i in queue:
            for j in options[i]:
                if j not in reached_from:
                    reached_from[j] = i
                    if j not in owner:
                        free = j
                        break
                    queue.append(owner[j])
            if free is not None:
                break
        while free is not None:  # back along the path: each item hands on its old partner
            i = reached_from[free]
            owner[free], partner[i], free = i, free, partner.get(i)
    return partner


def values_agree(first: str | None, second: str | None) -> bool:
    """Return whether two colours or places can be the same. A missing value agrees with every value.

    `light blue` agrees with `blue`, `navy` with `blue`, and `top left` with `left`; the center with no other place. A
    grid cell and a side cannot be compared, so they agree.

    Example:
        >>> values_agree("top left", "left"), values_agree("top left", "center"), values_agree("turquoise", "cyan")
        (True, False, True)
    """
    if first is None or second is None or first == second:
        return True
    if _is_cell(first) != _is_cell(second):
        return True
    if _is_cell(first):
        return False
    place, other_place = parse_place(first), parse_place(second)
    if place is not None and other_place is not None:
        if len(place) == len(other_place) == 2:
            return place == other_place  # the bottom right is not the bottom center
        own, other = (
            place - {"center"} or place,
            other_place - {"center"} or other_place,
        )  # the middle left is on the left
        opposed = any(pair & own and pair & other and pair & own != pair & other for pair in _OPPOSITES)
        return not opposed and ("center" in own) == ("center" in other)
    words, other_words = first.split(), second.split()
    if words[-1] == other_words[-1]:
        return min(len(words), len(other_words)) == 1
    both_colours = name_hue(first) is not None and name_hue(second) is not None
    return both_colours and compare_colours(first, second) is None  # navy may be blue


def _is_cell(value: str) -> bool:
    return len(value) == 2 and value[0].isalpha() and value[1].isdigit()


def _categories_agree(first: str | None, second: str | None) -> bool:
    """Return whether two words can name the same thing: equal categories, or one that is a word for several.

    Example:
        >>> _categories_agree("bag", "handbag"), _categories_agree("bag", "dog"), _categories_agree(None, None)
        (True, False, False)
    """
    if first is None or second is None:
        return False
    return first == second or second in GENERIC.get(first, ()) or first in GENERIC.get(second, ())


def _attributes_agree(claim: Claim, other: Claim | Difference) -> bool:
    """Return whether the values before and after the change agree."""
    return values_agree(claim.before, other.before) and values_agree(claim.after, other.after)


def match_claims(
    claims: Sequence[Claim], differences: Sequence[Difference]
) -> tuple[list[int | None], list[ClaimError | None]]:
    """Match each claim with a true difference, and name the error of each claim without one.

    A claim is true of a difference if the types and categories are equal, the attributes agree, and the
    claimed number of things is not too large. The matching is one to one and as large as possible. Returns
    for each claim the index of its difference, or None, and its error, or None. The first that applies is the
    error; a difference without a match explains at most one wrong claim.

    - attribute_error: right type and category, wrong colour or place
    - quantity_error: right type and category, but the number is too large, or the claim is repeated more often
      than it is true
    - type_confusion: right category, another type
    - type_category_mismatch: right type, another category
    - fabrication: none of these

    Example:
        >>> match_claims([Claim("color", "car"), Claim("remove", "cat")], [Difference("remove", "dog")])
        ([None, None], ['fabrication', 'type_category_mismatch'])
    """

    def true_count(claim: Claim) -> int:
        return sum(same_object(claim, difference) for difference in differences)

    def same_object(claim: Claim, difference: Difference) -> bool:
        return claim.type == difference.type and _categories_agree(claim.category, difference.category)

    def is_true(claim: Claim, difference: Difference) -> bool:
        return (
            same_object(claim, difference)
            and (claim.quantity or 1) <= max(1, true_count(claim))
            and _attributes_agree(claim, difference)
        )

    matched = maximum_matching(claims, differences, is_true)
    errors: list[ClaimError | None] = [None] * len(claims)
    open_claims = [i for i in range(len(claims)) if i not in matched]
    open_differences = [j for j in range(len(differences)) if j not in matched.values()]
    rules: tuple[tuple[ClaimError, Callable[[Claim, Difference], bool]], ...] = (
        (
            "attribute_error",
            lambda claim, true: same_object(claim, true) and not _attributes_agree(claim, true),
        ),
        ("quantity_error", same_object),
        ("type_confusion", lambda claim, true: _categories_agree(claim.category, true.category)),
        ("type_category_mismatch", lambda claim, true: claim.type == true.type),
    )
    for error, fits in rules:
        explained = maximum_matching(
            [claims[i] for i in open_claims], [differences[j] for j in open_differences], fits
        )
        for position in explained:
            errors[open_claims[position]] = error
        used = {open_differences[position] for position in explained.values()}
        open_claims = [i for position, i in enumerate(open_claims) if position not in explained]
        open_differences = [j for j in open_differences if j not in used]
        if error == "quantity_error":
            surplus = [i for i in open_claims if true_count(claims[i])]
            for i in surplus:
                errors[i] = error
            open_claims = [i for i in open_claims if i not in surplus]
    for i in open_claims:
        errors[i] = "fabrication"
    return [matched.get(i) for i in range(len(claims))], errors


def compare_claims(first: Claim, second: Claim) -> Agreement:
    """Return whether two claims describe the same difference, conflict, or cannot be compared.

    Example:
        >>> red, blue = Claim("color", "car", after="red"), Claim("color", "car", after="blue")
        >>> compare_claims(red, red), compare_claims(red, blue), compare_claims(red, Claim("remove", "dog"))
        ('consistent', 'contradictory', 'ambiguous')
    """
    if not _categories_agree(first.category, second.category):
        return "ambiguous"
    if first.negated != second.negated:
        denial = first if first.negated else second
        return "contradictory" if denial.type is None or first.type == second.type else "ambiguous"
    if first.negated:
        return "consistent" if first.type == second.type else "ambiguous"
    if first.type is None or second.type is None:
        return "ambiguous"
    if first.type != second.type:  # a removed object has no new colour and no new place
        return "contradictory" if "remove" in (first.type, second.type) else "ambiguous"
    same_quantity = None in (first.quantity, second.quantity) or first.quantity == second.quantity
    return "consistent" if _attributes_agree(first, second) and same_quantity else "contradictory"


def pair_claims(
    first: Sequence[Any], second: Sequence[Any], compare: Callable[[Any, Any], Agreement] = compare_claims
) -> list[tuple[int, int, Agreement]]:
    """Pair the claims of two answers one to one, as sorted (index in first, index in second, agreement).

    Claims that agree are paired first, then claims that conflict, then the rest in order: as many pairs as
    claims in the shorter answer. If each were paired with each, two equal answers with several claims could
    not score 1, and the ratios in the paper's Table 3 would be impossible.

    Example:
        >>> cat, dog = Claim("remove", "cat"), Claim("remove", "dog")
        >>> pair_claims([cat, dog], [dog])
        [(1, 0, 'consistent')]
    """
    pairs: list[tuple[int, int, Agreement]] = []
    open_first = list(range(len(first)))
    open_second = list(range(len(second)))
    for agreement in AGREEMENT_WEIGHTS:
        if agreement == "ambiguous":
            matching = {position: position for position in range(min(len(open_first), len(open_second)))}
        else:
            target: Agreement = agreement
            matching = maximum_matching(
                [first[i] for i in open_first],
                [second[j] for j in open_second],
                lambda claim, other, target=target: compare(claim, other) == target,  # type: ignore[misc]
            )
        pairs += [(open_first[i], open_second[j], agreement) for i, j in matching.items()]
        open_first = [i for position, i in enumerate(open_first) if position not in matching]
        open_second = [j for position, j in enumerate(open_second) if position not in matching.values()]
    return sorted(pairs)
