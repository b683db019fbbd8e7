"""The causes that a diagnosis can name, and the thresholds from which on it names them."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict, Field

CAUSES = {
    "blind": "the answers do not use the images",
    "looks-unused": "attention moves with the images, but the answers do not use them",
    "forgets": "the first sentences come from the images, later ones do not",
    "decided-first": "the conclusion comes from the images, whatever the steps before it say",
    "follows-hints": "the answers go with what the question suggests",
    "prior": "a thing is claimed because another one is there",
    "misperceives": "one attribute of things is seen wrongly, and the others rightly",
}
IMPLIES = {"looks-unused": "blind"}  # what is looked at and not used is not used
ABOUT = {
    "blind": "answers that lose nothing with other images",
    "looks-unused": "answers that lose nothing with other images, although attention moves with them",
    "forgets": "answers whose first sentences depend on the images and later ones do not",
    "decided-first": "conclusions that move with the images and lose almost nothing with other steps",
    "follows-hints": "answers that are the suggested one, whichever is suggested",
    "prior": "absent thing claimed where its cue is, less the share where it is not",
    "misperceives": "wrong claims about one attribute, less those about the others",
}
NEEDS = {
    "blind": "images of other samples",
    "looks-unused": "a model whose visual tokens are in the prompt",
    "forgets": "answers of several sentences",
    "decided-first": "answers with steps on lines of their own and different conclusions",
    "follows-hints": "closed questions: yes or no, or several samples with the same question",
    "prior": "the contents of the images (metadata.objects)",
    "misperceives": "the contents of the images (metadata.objects)",
}


class Thresholds(BaseModel):
    """When a cause is named. `configs/diagnosis/thresholds.yaml` explains each and has the values."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unused_effect: float = Field(gt=0)
    forgotten_share: float = Field(gt=0, lt=1)
    decided_share: float = Field(gt=0, lt=1)
    looks_moved: float = Field(gt=0, lt=1)
    named: dict[str, float]
    least_low: float = Field(ge=0, le=1)
    least_answers: int = Field(ge=1)
    least_sets: int = Field(ge=2)
    wrong_share: float = Field(gt=0, lt=1)


@cache
def load_thresholds() -> Thresholds:
    """Return the thresholds that ship with the package.

    Example:
        >>> sorted(load_thresholds().named) == sorted(CAUSES)
        True
    """
    file = resources.files("mmprobe.configs") / "diagnosis" / "thresholds.yaml"
    return Thresholds.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
