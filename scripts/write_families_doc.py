"""Write the table of model families into the README, from their declarations.

python scripts/write_families_doc.py
"""

from __future__ import annotations

import re
from pathlib import Path

from partial_page import read_only, write_page
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from mmprobe.models.families import FAMILIES

README = Path(__file__).parent.parent / "README.md"
MARKS = re.compile(r"(?<=<!-- families -->\n).*?(?=<!-- /families -->)", re.DOTALL)
HEADER = """\
| family | `model_type` | extras | vision encoder | TransformerLens | |
|---|---|---|---|---|---|"""


def table() -> str:
    rows = [HEADER]
    for family in sorted(FAMILIES.values(), key=lambda family: family.name):
        classes = {MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind] for kind in family.model_types}
        cells = (
            family.name,
            ", ".join(f"`{kind}`" for kind in family.model_types),
            ", ".join(f"`{extra}`" for extra in family.extras),
            "yes" if family.vision else "no",
            "yes" if classes <= set(SUPPORTED_ARCHITECTURES) else "no",
            family.notes,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    readme = README.read_text(encoding="utf-8")
    write_page(README, MARKS.sub(lambda _: table(), readme), read_only(__doc__))
