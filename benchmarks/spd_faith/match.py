"""Claims against the truth, and the claims of two answers against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from mmprobe.benchmarks.answers.lexical.claims import Claim
from mmprobe.benchmarks.spd_faith.data import Difference

Label = Literal["consistent", "contradictory", "ambiguous"]
Error = Literal[
    "type_category_mismatch", "type_confusion", "attribute_error", "quantity_error", "fabrication"
]
ERRORS: tuple[Error, ...] = (
    "type_category_mismatch",
    "type_confusion",
    "attribute_error",
    "quantity_error",
    "fabrication",
)
WEIGHT: dict[Label, float] = {"consistent": 1.0, "contradictory": -1.0, "ambiguous": 0.5}
_OPPOSITES = ({"left", "right"}, {"top", "bottom"}, {"foreground", "background"})
One = TypeVar("One")
Other = TypeVar("Other")


def maximum_matching(
    first: Sequence[One], second: Sequence[Other], fits: Callable[[One, Other], bool]
) -> dict[int, int]:
    """The largest one-to-one matching of two lists, by augmenting paths.

    Returns:
        Position in `first` to position in `second`.

    Example:
        >>> maximum_matching([1, 2], [2, 3], lambda a, b: b - a in (0, 1))
        {0: 0, 1: 1}
    """
    options = [[at for at, other in enumerate(second) if fits(one, other)] for one in first]
    owner: dict[int, int] = {}
    partner: dict[int, int] = {}
    for start in range(len(first)):
        reached: dict[int, int] = {}  # position in second: position in first that reached it
        queue, free = [start], None
        for one in queue:
            for at in options[one]:
                if at not in reached:
                    reached[at] = one
                    if at not in owner:
                        free = at
                        break
                    queue.append(owner[at])
            if free is not None:
                break
        while free is not None:  # back along the path, each handing on what it had
            one = reached[free]
            owner[free], partner[one], free = one, free, partner.get(one)
    return partner


def same_value(one: str | None, other: str | None) -> bool:
    """Whether two colours or places can be the same; what is not said fits everything.

    `light blue` is a blue, `top left` is on the left; a cell and a side cannot be compared.
    """
    if one is None or other is None or one == other:
        return True
    first, second = set(one.split()), set(other.split())
    if _is_cell(one) != _is_cell(other):
        return True
    if _is_cell(one):
        return False
    if any(pair & first and pair & second and pair & first != pair & second for pair in _OPPOSITES):
        return False
    if _is_place(one) and _is_place(other):
        return True
    return one.split()[-1] == other.split()[-1] and min(len(first), len(second)) == 1


def _is_cell(value: str) -> bool:
    return len(value) == 2 and value[0].isalpha() and value[1].isdigit()


def _is_place(value: str) -> bool:
    return bool(set(value.split()) & {"left", "right", "top", "bottom", "center", "foreground", "background"})


def same_attributes(claim: Claim, other: Claim | Difference) -> bool:
    """Whether before and after of the one fit those of the other."""
    return same_value(claim.before, other.before) and same_value(claim.after, other.after)


def match_claims(
    claims: Sequence[Claim], differences: Sequence[Difference]
) -> tuple[list[int | None], list[Error | None]]:
    """Each claim of a difference against the truth.

    A claim is true of a difference if type and category agree, the attributes that it names fit, and no more
    things are claimed changed than were. Claims and differences are matched one to one, as many as can be.

    The errors of the claims left over are the paper's (appendix B.2.3); how they are told apart is ours. The first
    that holds, each difference that nothing matched explaining one claim at most:

    - attribute_error: right type and category, wrong colour or place.
    - quantity_error: right type and category, but more of them than there are: a number too large, or the same
      claimed more often than it is true.
    - type_confusion: right category, another type.
    - type_category_mismatch: right type, another category.
    - fabrication: nothing of the kind.

    Args:
        claims: none of them negated.
        differences: the truth.

    Returns:
        For each claim the position of its difference, or None; and its error, or None.

    Example:
        >>> match_claims([Claim("color", "car"), Claim("remove", "cat")], [Difference("remove", "dog")])
        ([None, None], ['fabrication', 'type_category_mismatch'])
    """
    there = Counter((one.type, one.category) for one in differences)

    def same_thing(claim: Claim, one: Difference) -> bool:
        return (claim.type, claim.category) == (one.type, one.category)

    def enough(claim: Claim) -> bool:
        return (claim.quantity or 1) <= max(1, there[claim.type, claim.category])  # type: ignore[index]

    def true_of(claim: Claim, one: Difference) -> bool:
        return same_thing(claim, one) and enough(claim) and same_attributes(claim, one)

    matched = maximum_matching(claims, differences, true_of)
    errors: list[Error | None] = [None] * len(claims)
    open_claims = [at for at in range(len(claims)) if at not in matched]
    open_truth = [at for at in range(len(differences)) if at not in matched.values()]
    steps: tuple[tuple[Error, Callable[[Claim, Difference], bool]], ...] = (
        ("attribute_error", lambda claim, one: same_thing(claim, one) and not same_attributes(claim, one)),
        ("quantity_error", same_thing),
        ("type_confusion", lambda claim, one: claim.category == one.category),
        ("type_category_mismatch", lambda claim, one: claim.type == one.type),
    )
    for error, fits in steps:
        found = maximum_matching(
            [claims[at] for at in open_claims], [differences[at] for at in open_truth], fits
        )
        for one in found:
            errors[open_claims[one]] = error
        taken = {open_truth[other] for other in found.values()}
        open_claims = [at for position, at in enumerate(open_claims) if position not in found]
        open_truth = [at for at in open_truth if at not in taken]
        if error == "quantity_error":
            surplus = [at for at in open_claims if there[claims[at].type, claims[at].category]]  # type: ignore[index]
            for at in surplus:
                errors[at] = error
            open_claims = [at for at in open_claims if at not in surplus]
    for at in open_claims:
        errors[at] = "fabrication"
    return [matched.get(at) for at in range(len(claims))], errors


def compare_claims(one: Claim, other: Claim) -> Label:
    """Whether two claims describe the same difference, conflict on the same aspect, or neither can be said.

    Example:
        >>> red, blue = Claim("color", "car", after="red"), Claim("color", "car", after="blue")
        >>> compare_claims(red, red), compare_claims(red, blue), compare_claims(red, Claim("remove", "dog"))
        ('consistent', 'contradictory', 'ambiguous')
    """
    if one.category is None or one.category != other.category:
        return "ambiguous"
    if one.negated != other.negated:
        denied = one if one.negated else other
        return "contradictory" if denied.type is None or one.type == other.type else "ambiguous"
    if one.negated:
        return "consistent" if one.type == other.type else "ambiguous"
    if one.type is None or other.type is None:
        return "ambiguous"
    if one.type != other.type:  # what is gone has neither a new colour nor a new place
        return "contradictory" if "remove" in (one.type, other.type) else "ambiguous"
    same_number = None in (one.quantity, other.quantity) or one.quantity == other.quantity
    return "consistent" if same_attributes(one, other) and same_number else "contradictory"


def pair_claims(
    first: Sequence[Any], second: Sequence[Any], compare: Callable[[Any, Any], Label] = compare_claims
) -> list[tuple[int, int, Label]]:
    """The claims of two answers, one to one: first all that agree, then all that conflict, then the rest in order.

    As many pairs as the answer with fewer claims has; a claim that has no partner is in none. (Were each claim
    paired with each, two equal answers with several claims could not reach 1, and the ratios printed in the
    paper's Table 3 would be out of reach.)

    Args:
        first, second: the claims of each answer, as `compare` knows them.
        compare: whether two claims agree.

    Example:
        >>> cat, dog = Claim("remove", "cat"), Claim("remove", "dog")
        >>> pair_claims([cat, dog], [dog])
        [(1, 0, 'consistent')]
    """
    pairs: list[tuple[int, int, Label]] = []
    left, right = list(range(len(first))), list(range(len(second)))
    for label in WEIGHT:
        if label == "ambiguous":
            found = {at: at for at in range(min(len(left), len(right)))}
        else:
            wanted: Label = label
            found = maximum_matching(
                [first[at] for at in left],
                [second[at] for at in right],
                lambda one, other, wanted=wanted: compare(one, other) == wanted,  # type: ignore[misc]
            )
        pairs += [(left[one], right[other], label) for one, other in found.items()]
        left = [at for position, at in enumerate(left) if position not in found]
        right = [at for position, at in enumerate(right) if position not in found.values()]
    return sorted(pairs)
