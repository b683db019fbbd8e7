"""Write docs/models.md, and the lists of families in the README and in the guide of videos, from the families' declarations.

python scripts/write_families_doc.py
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path

from partial_page import read_only, write_page
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES as VIDEO_PROCESSORS

from mmprobe.models.checkpoints import load_aliases
from mmprobe.models.families import FAMILIES
from mmprobe.models.families.refused import REFUSED

ROOT = Path(__file__).parent.parent
README, PAGE, VIDEOS = ROOT / "README.md", ROOT / "docs" / "models.md", ROOT / "docs" / "guides" / "video.md"
MARKS = re.compile(r"(?<=<!-- families -->\n).*?(?=<!-- /families -->)", re.DOTALL)
KNOWN = ("qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision", "gemma3", "llama4", "molmo2")
CHECKPOINT = re.compile(r'checkpoint="([\w.-]+/[\w.-]+)"')
TYPES = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
HEADER = """\
| type | traced | checkpoints of the hub, among others | extras | answers are read | vision encoder | video | TransformerLens | |
|---|---|---|---|---|---|---|---|---|"""
ABOUT = """\
# Models

transformers lists {types} types of models that write text about images. mmprobe traces {traced} of them, {mapless} of these
without a map of patches, and refuses {refused} when they are loaded. A model's type is `model_type` in its `config.json`.

For each type that is traced, a tiny model with random weights is compared with eager transformers: tokens, attention rows,
masses and residual streams, with one image and two, square and not, alone and in a batch of three with prompts of several
lengths. Cells of images are painted, and the visual token that changes most must be that of the cell, so rows are rows and
columns are columns. `make families` runs these tests for all types; `make test` for a part. No checkpoint of the hub is
among the tests: `mmprobe check MODEL` does the same with yours.

**Without a map** means that a visual token is a learned query, which shows no part of an image: groups, residual streams and
heads are recorded; maps, attention by patch and token activation maps are not. **Answers are read** after they are generated
in one pass, or while they are decoded, which takes longer. **Video**: whether it is shown videos ([Videos](guides/video.md)). Checkpoints that are fine-tuned from others have their type. A
type that transformers does not list can work as well: [add a family](adding-a-family.md).

## Types that are traced

{table}

## Types that are refused

| type | why |
|---|---|
{reasons}
"""


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


def row(kind: str) -> str:
    """Return the row of a type that is traced."""
    family = next(each for each in FAMILIES.values() if kind in each.model_types)
    cells = (
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
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return docs/models.md."""
    traced = sorted(kind for family in FAMILIES.values() for kind in family.model_types if kind in TYPES)
    mapless = [kind for family in FAMILIES.values() if family.without_map for kind in family.model_types]
    return ABOUT.format(
        types=len(TYPES),
        traced=len(traced),
        mapless=len(mapless),
        refused=len(REFUSED),
        table="\n".join([HEADER, *map(row, traced)]),
        reasons="\n".join(f"| `{kind}` | {reason} |" for kind, reason in sorted(REFUSED.items())),
    )


def table() -> str:
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


def fill_in(file: Path, text: str) -> None:
    """Write a text between the marks of a file."""
    file.write_text(MARKS.sub(lambda _: text, file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    only = read_only(__doc__)
    write_page(PAGE, page(), only)
    if not only:
        fill_in(README, table())
        fill_in(VIDEOS, videos())
