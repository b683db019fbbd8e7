"""Fill the tables of docs/models.md, and the lists of families in the README and in the guide of videos, from the families' declarations.

python scripts/write_families_doc.py
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from functools import cache

from page import PageParts, fill_pages
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES as VIDEO_PROCESSORS

from mmprobe.models.checkpoints import load_aliases
from mmprobe.models.families import FAMILIES
from mmprobe.models.families.refused import REFUSED
from mmprobe.notebook import markdown_table

KNOWN = ("qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision", "gemma3", "llama4", "molmo2")
CHECKPOINT = re.compile(r'checkpoint="([\w.-]+/[\w.-]+)"')
TYPES = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
COLUMNS = (
    "type",
    "traced",
    "checkpoints of the hub, among others",
    "extras",
    "answers are read",
    "vision encoder",
    "video",
    "TransformerLens",
    "",
)


@cache
def read_checkpoints() -> dict[str, list[str]]:
    """Return hub ids by type: those with a short name, and what the documentation of the type's config names.

    Configs that were copied from another type's name the other's checkpoint: it is left out.
    """
    found = {kind: [] for kind in TYPES}
    for alias in load_aliases().values():
        if "/" in alias.source:
            found[alias.family].append(alias.source)
    documented = {}
    for kind in TYPES:
        source = inspect.getsource(inspect.getmodule(CONFIG_MAPPING[kind]))
        before = source[: source.find(f"class {CONFIG_MAPPING[kind].__name__}(")]
        documented[kind] = (CHECKPOINT.findall(before) or CHECKPOINT.findall(source) or [None])[-1]
    known = Counter(documented.values())
    for kind, checkpoint in documented.items():
        if checkpoint and known[checkpoint] == 1 and checkpoint not in found[kind]:
            found[kind].append(checkpoint)
    return found


def row(kind: str) -> tuple[str, ...]:
    """Return the cells of a type that is traced."""
    family = next(each for each in FAMILIES.values() if kind in each.model_types)
    return (
        f"`{kind}`",
        "without a map" if family.without_map else "yes",
        ", ".join(f"`{each}`" for each in read_checkpoints()[kind]),
        ", ".join(f"`{extra}`" for extra in family.extras),
        "after" if family.shares_prefixes else "while decoding",
        "yes" if family.vision else "no",
        "yes" if family.video_views else "no",
        "yes" if TYPES[kind] in SUPPORTED_ARCHITECTURES else "no",
        family.notes,
    )


def pages() -> dict[str, PageParts]:
    """Return the parts of the pages."""
    traced = sorted(kind for family in FAMILIES.values() for kind in family.model_types if kind in TYPES)
    mapless = [kind for family in FAMILIES.values() if family.without_map for kind in family.model_types]
    refused = [(f"`{kind}`", reason) for kind, reason in sorted(REFUSED.items())]
    models = {
        "types": len(TYPES),
        "traced": len(traced),
        "mapless": len(mapless),
        "refused": len(REFUSED),
        "table": markdown_table(COLUMNS, map(row, traced)),
        "reasons": markdown_table(["type", "why"], refused),
    }
    return {
        "docs/models.md": models,
        "README.md": {"families": counted()},
        "docs/guides/video.md": {"families": videos()},
    }


def counted() -> str:
    """Return the README's line of families."""
    count = sum(len(family.model_types) for family in FAMILIES.values())
    return f"{count} types of models are traced, such as {', '.join(KNOWN)}: [which, how, and why others are not](docs/models.md).\n"


def videos() -> str:
    """Return the lists of the guide of videos: which types are shown them, and which others have a processor that reads them."""
    types = {kind: family for family in FAMILIES.values() for kind in family.model_types}
    shown = sorted(kind for kind, family in types.items() if family.video_views is not None)
    others = sorted(
        kind
        for kind in types
        if VIDEO_PROCESSORS.get(kind) and kind not in shown and not types[kind].without_map
    )
    limits = {
        "equal": sorted(kind for kind in shown if types[kind].equal_videos),
        "alone": sorted(kind for kind in shown if types[kind].videos_alone),
    }
    lines = (
        f"Types that take videos: {_list_types(shown)}.",
        f"Refused, though transformers has a video processor for them: {_list_types(others)}.",
        f"Videos of one number of frames at a time: {_list_types(limits['equal'])}.",
        f"Images or videos in a prompt, and not both: {_list_types(limits['alone'])}.",
    )
    return "\n".join(textwrap.fill(f"- {line}", 120, subsequent_indent="  ") for line in lines) + "\n"


def _list_types(kinds: list[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds)


if __name__ == "__main__":
    fill_pages(pages())
