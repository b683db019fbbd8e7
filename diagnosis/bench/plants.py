"""Anyone's plants: model folders, each with a card that says which causes a diagnosis should name."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, field_validator

from mmprobe.diagnosis.causes import CAUSES, RENAMED
from mmprobe.diagnosis.rules import UNKNOWN
from mmprobe.errors import InputError
from mmprobe.files import read_record
from mmprobe.models.organisms import Measure

CARD = "plant.json"
OTHER_WAYS = "other ways"


class Plant(BaseModel):
    """What was planted in a model.

    Attributes:
        causes: what a diagnosis should name; none for a control, `unknown` for a cause that is not listed.
        kind: how it was planted, or of which kind a control is, in a word or two.
        about: one sentence.
        split: `other ways`, or `development` where rules were chosen on it.
        accepts: verdicts that are right, too: `unknown` for a control that is bad at the task.
        check: the measures of a manipulation check by name.

    Example:
        >>> Plant(causes=["blind"], kind="weight edit").split
        'other ways'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    causes: tuple[str, ...]
    kind: str
    about: str = ""
    split: str = OTHER_WAYS
    accepts: tuple[str, ...] = ()
    check: dict[str, Measure] = {}

    @field_validator("causes")
    @classmethod
    def _known(cls, causes: tuple[str, ...]) -> tuple[str, ...]:
        causes = tuple(RENAMED.get(cause, cause) for cause in causes)
        for cause in causes:
            if cause not in (*CAUSES, UNKNOWN):
                raise ValueError(f"no cause is called {cause!r}; known: {', '.join([*CAUSES, UNKNOWN])}")
        return causes


def find_plants(folder: str | Path) -> dict[Path, Plant]:
    """Return the cards of the model folders in a folder, by path and in order. Those without a card are left out.

    Raises:
        InputError: the folder holds no plant, or a card cannot be read.
    """
    files = sorted(Path(folder).glob(f"*/{CARD}"))
    if not files:
        raise InputError(
            f"{folder}: holds no model folder with a {CARD}; docs/diagnosis-results.md shows one"
        )
    return {file.parent: read_record(file, Plant) for file in files}
