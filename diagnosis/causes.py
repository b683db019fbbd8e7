"""The causes that a diagnosis can name, each with its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmprobe.registry import Registry

if TYPE_CHECKING:
    from mmprobe.diagnosis.causal_test import CausalTest

_SHIPPED: dict[str, type[CausalTest] | str] = {
    name: f"mmprobe.diagnosis.battery.{name.replace('-', '_')}:{test}"
    for name, test in {
        "blind": "Blind",
        "looks-unused": "LooksUnused",
        "forgets": "Forgets",
        "decided-first": "DecidedFirst",
        "language-prior": "LanguagePrior",
        "follows-hints": "FollowsHints",
        "co-occurrence": "CoOccurrence",
        "misperceives": "Misperceives",
        "ignores-an-image": "IgnoresAnImage",
        "order": "Order",
        "unsure-agreeable": "UnsureAgreeable",
        "copies-context": "CopiesContext",
        "quantity": "WrongQuantity",
    }.items()
}
CAUSES: Registry[type[CausalTest]] = Registry(
    "cause", "causes", _SHIPPED, form="mmprobe.diagnosis.causal_test:CausalTest", holds_classes=True
)
"""The test of every cause, by its name. A test is imported when it is used."""

RENAMED = {"prior": "co-occurrence"}
"""Causes by the names that they had in files of earlier versions."""


def load_tests() -> dict[str, CausalTest]:
    """Return the tests of all causes by name, with their own thresholds."""
    return {name: test() for name, test in CAUSES.working()}


def find_implied(name: str) -> str:
    """Return the cause that a cause implies; "" for one that implies none, and for `control` and `unknown`.

    Example:
        >>> find_implied("looks-unused"), find_implied("control")
        ('blind', '')
    """
    test = CAUSES.get(name)
    return "" if test is None else test.implies
