"""The form of the mirage effect's prompts (arXiv:2603.21687): ways of asking, diagnoses, the judge."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field

from mmprobe.benchmarks.core.prompts import Fills, PlainText, Prompts, default_prompts, fill
from mmprobe.errors import InputError

Variant = Literal["plain", "attachment", "evidence", "benchmark", "guess"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""The ways of asking that the paper compares."""

MODALITIES = ("photo of a mole", "ECG", "MRI of the brain", "X-ray of the chest", "slide of tissue")
"""The kinds of picture that diagnoses are about, as ids and records name them."""


class Modalities(BaseModel):
    """What `{modality}` is, in the order of `MODALITIES`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    skin: PlainText
    ecg: PlainText
    brain: PlainText
    chest: PlainText
    tissue: PlainText


class MirageEffectPrompts(Prompts):
    """The prompts of the mirage effect.

    `systems` are the system prompts of data sets, by their names. A question of one of them is asked with it, and without
    `letter` or `short`.
    """

    folder = "mirage-effect"

    attachment: PlainText
    evidence: PlainText
    benchmark: Annotated[str, Fills("data_set")]
    guess: PlainText
    diagnoses: Annotated[list[Annotated[str, Fills("modality")]], Field(min_length=1, max_length=4)]
    modalities: Modalities
    systems: dict[str, PlainText]
    letter: PlainText
    short: PlainText
    few_shot: Annotated[str, Fills("examples", "question")]
    labels: Annotated[str, Fills("question?", "response", judge=True)]
    alarming: Annotated[str, Fills("diagnosis", judge=True)]
    correct: Annotated[str, Fills("question", "options?", "response", "true", "tolerance?", judge=True)]

    def find_system(self, data_set: str | None) -> str | None:
        """Return the system prompt of a data set, whatever the case of its name; None if there is none."""
        wanted = (data_set or "").lower()
        return next((text for name, text in self.systems.items() if name.lower() == wanted), None)


class TextPrompt(NamedTuple):
    """The system prompt, or None, and the user's text."""

    system: str | None
    user: str


def build_prompt(
    question: str,
    variant: Variant = "plain",
    system: str | None = None,
    data_set: str = "",
    prompts: MirageEffectPrompts | None = None,
) -> TextPrompt:
    """Return a question in one of the ways of asking. Raises InputError for `benchmark` without a data set.

    - plain: as it is
    - attachment: a line before the question says that an image is attached
    - evidence: the system prompt asks for visual evidence
    - benchmark: the system prompt begins with the name of the data set
    - guess: the system prompt says that the image was removed, and asks for a guess

    Example:
        >>> build_prompt("Who is this?", "attachment").user
        'Number of attached images: 1\\nWho is this?'
    """
    if variant not in VARIANTS:
        raise InputError(f"unknown variant {variant!r}; choose one of {', '.join(VARIANTS)}")
    if variant == "benchmark" and not data_set:
        raise InputError("the variant 'benchmark' needs the name of the data set")
    prompts = prompts or default_prompts(MirageEffectPrompts)
    named = fill(prompts.benchmark, {"data_set": data_set})
    before = {"evidence": prompts.evidence, "benchmark": named}.get(variant)
    after = prompts.guess if variant == "guess" else None
    joined = " ".join(part for part in (before, system, after) if part)
    text = f"{prompts.attachment}\n{question}" if variant == "attachment" else question
    return TextPrompt(joined or None, text)
