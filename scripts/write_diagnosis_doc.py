"""Fill the table of causes of docs/diagnosis.md, and write the rules in docs/diagnosis-rules.md from the docstrings of the tests.

python scripts/write_diagnosis_doc.py

A docstring names a number by its field or constant, in braces. `{wordings}` is the length of `WORDINGS` of the test's module.
"""

from __future__ import annotations

import sys
from inspect import cleandoc
from types import ModuleType
from typing import Any

from page import PageParts, fill_pages

from mmprobe.diagnosis import claims, images, study, suggestions
from mmprobe.diagnosis.causal_test import CausalTest
from mmprobe.diagnosis.causes import CAUSES, load_tests
from mmprobe.diagnosis.effects import LIMITS
from mmprobe.notebook import markdown_table


def pages() -> dict[str, PageParts]:
    """Return the parts of the pages."""
    guide = {
        "least-low": f"{LIMITS.least_low:.0%}",
        "least-answers": LIMITS.least_answers,
        "least-sets": LIMITS.least_sets,
        "causes": causes_table(),
    }
    return {"docs/diagnosis.md": guide, "docs/diagnosis-rules.md": {"rules": rules()}}


def causes_table() -> str:
    """Return a table of the causes: what they are, how they are scored, the threshold and what the test needs."""
    rows = (
        (f"`{name}`", cause.about, cause.effect, f"{cause.threshold:.0%}", cause.needs)
        for name, cause in CAUSES.items()
    )
    return markdown_table(["cause", "what it is", "score", "threshold", "needs"], rows)


def rules() -> str:
    """Return a section for what the tests share, and one for each test."""
    shared = (("Images exchanged", images), ("Contents", claims), ("Suggestions", suggestions))
    sections = [f"## {title}\n\n{describe_module(module)}" for title, module in shared]
    sections += [f"## `{name}`\n\n{describe_test(test)}" for name, test in load_tests().items()]
    return "\n\n".join(sections)


def describe_module(module: ModuleType) -> str:
    """Return the paragraphs of a module's docstring after its first line."""
    text = cleandoc(module.__doc__ or "").partition("\n\n")[2]
    return text.format_map(list_constants(module, study))


def describe_test(test: CausalTest) -> str:
    """Return the docstring of a test, with its numbers."""
    values = list_constants(study, sys.modules[type(test).__module__]) | LIMITS.model_dump() | vars(test)
    return f"*{cleandoc(type(test).__doc__ or '').format_map(values)}".replace("\n\n", "*\n\n", 1)


def list_constants(*modules: ModuleType) -> dict[str, Any]:
    """Return the constants of modules by their names in small letters; of a list its length."""
    named = {
        name.lower(): value for module in modules for name, value in vars(module).items() if name.isupper()
    }
    return {name: len(value) if isinstance(value, list | tuple) else value for name, value in named.items()}


if __name__ == "__main__":
    fill_pages(pages())
