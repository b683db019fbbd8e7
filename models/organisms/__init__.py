"""Models with a planted reason to be unfaithful: what was planted in each, and what its manipulation check measured.

An organism is a folder CAUSE-WAY-SEED with a LoRA adapter for `tiny-spd` (`adapter_model.safetensors`,
`adapter_config.json`) and its card (`card.json`). Two of each cause ship, one of either split; `make organisms` plants the
others of a checkout in `build/organisms`. Nothing heavy is imported before an adapter is merged.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mmprobe.errors import InputError, suggest_names
from mmprobe.files import read_record
from mmprobe.samples import Sample

SHIPPED = Path(__file__).resolve().parent
PLANTED = SHIPPED.parents[1] / "build" / "organisms"  # by `make organisms`, in a checkout
PREFIX = "organism:"
BASE = "tiny-spd"


class _CardPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Rule(_CardPart):
    """On which samples the cause of a partial organism acts. All conditions that are set must hold.

    Attributes:
        phrase: the question contains this text.
        more_objects_than: the first image contains more objects than this.
        edit: the images differ by an edit of this kind.
        types: the question is of one of these types.

    Example:
        >>> Rule(more_objects_than=5).describe()
        'the first image contains more than 5 objects'
    """

    phrase: str | None = None
    more_objects_than: int | None = None
    edit: Literal["color", "remove", "position"] | None = None
    types: tuple[str, ...] | None = None

    def acts_on(self, sample: Sample) -> bool:
        """Return whether the cause acts on a sample of the drawn world.

        Raises:
            InputError: the sample lacks the contents of its images, which the rule needs.
        """
        facts = sample.metadata
        needed = {
            "objects": self.more_objects_than is not None,
            "differences": self.edit is not None,
            "type": self.types is not None,
        }
        for field, is_needed in needed.items():
            if is_needed and field not in facts:
                raise InputError(f"sample {sample.id}: its metadata lacks {field!r}, which the rule needs")
        return (
            (self.phrase is None or self.phrase in sample.question)
            and (self.more_objects_than is None or len(facts["objects"][0]) > self.more_objects_than)
            and (self.edit is None or any(edit["type"] == self.edit for edit in facts["differences"]))
            and (self.types is None or facts["type"] in self.types)
        )

    def describe(self) -> str:
        """Return the rule as text."""
        parts = []
        if self.phrase is not None:
            parts.append(f"the question contains {self.phrase!r}")
        if self.more_objects_than is not None:
            parts.append(f"the first image contains more than {self.more_objects_than} objects")
        if self.edit is not None:
            parts.append(f"the images differ by an edit of kind {self.edit}")
        if self.types is not None:
            parts.append(f"the question is of type {' or '.join(self.types)}")
        return " and ".join(parts)


class Measure(_CardPart):
    """One number of a manipulation check, with its 95 % interval.

    Attributes:
        value, low, high: the number and its interval.
        n: number of answers, or of pairs where the interval is over pairs.
        bound: what the value must be, such as `< 0.02`.
        passed: whether it is.
    """

    value: float
    low: float
    high: float
    n: int
    bound: str
    passed: bool


class Training(_CardPart):
    """How an organism was trained: batches, questions in all, seconds on one core, peak learning rate, rank."""

    steps: int
    questions: int
    seconds: float
    learning_rate: float
    rank: int


class Card(_CardPart):
    """What was planted in an organism, and what its check measured.

    Attributes:
        name: CAUSE-WAY-SEED.
        cause: the planted cause; `control` for none.
        way: how it was planted, in one word.
        seed: of the training data and the adapter's first weights.
        number: `organism:CAUSE-NUMBER` is a second name; None for partial organisms.
        split: seeds 0 to 2 are for development, all others are held out.
        about: how it was planted, in a sentence.
        partial: the rule where the cause acts on known samples only, or None.
        training: how it was trained.
        check: the measures of the manipulation check by name.
        passed: whether all of them passed. Only such organisms are shipped.
    """

    name: str
    cause: str
    way: str
    seed: int
    number: int | None
    split: Literal["development", "held-out"]
    about: str
    partial: Rule | None
    training: Training
    check: dict[str, Measure]
    passed: bool


def names() -> list[str]:
    """Return the names of the organisms that ship and of those that `make organisms` planted, in alphabetical order.

    Example:
        >>> "control-true-0" in names()
        True
    """
    return sorted({file.parent.name for place in (SHIPPED, PLANTED) for file in place.glob("*/card.json")})


@cache
def card(name: str) -> Card:
    """Return the card of an organism.

    Args:
        name: CAUSE-WAY-SEED or CAUSE-NUMBER of one of `names()`, or the path of another one's folder, such as
            `build/fresh/blind-rolled-5`; with or without `organism:` before it.

    Raises:
        InputError: the organism is unknown. The message suggests names.

    Example:
        >>> card("organism:control-true-0").cause
        'control'
    """
    return read_record(folder(name) / "card.json", Card)


def folder(name: str) -> Path:
    """Return the folder of an organism: its adapter and its card.

    Args:
        name: as for `card`.

    Raises:
        InputError: the organism is unknown. The message suggests names.

    Example:
        >>> folder("control-true-0").name
        'control-true-0'
    """
    short = name.removeprefix(PREFIX)
    known = names()
    if short in known:
        return next(place / short for place in (SHIPPED, PLANTED) if (place / short / "card.json").is_file())
    cause, _, number = short.rpartition("-")
    if number.isdecimal():
        for candidate in (other for other in known if other.startswith(f"{cause}-")):
            its_card = card(candidate)
            if its_card.cause == cause and its_card.number == int(number):
                return folder(candidate)
    if "/" in short and (Path(short) / "card.json").is_file():
        return Path(short)
    hint = suggest_names(short, known, "see `mmprobe models --organisms`")
    raise InputError(f"model {name!r}: no such organism; {hint}")


def acts_on(name: str, sample: Sample) -> bool:
    """Return whether the planted cause acts on a sample: always, never for `control`, or by the card's rule.

    Raises:
        InputError: the organism is unknown, or its rule needs what the sample does not have.

    Example:
        >>> acts_on("control-true-0", Sample(id="a", question="Is there a star?"))
        False
    """
    its_card = card(name)
    if its_card.cause == "control":
        return False
    return its_card.partial is None or its_card.partial.acts_on(sample)


def merge_adapter(hf: Any, folder: str | Path) -> Any:
    """Return a model with a LoRA adapter merged into its weights, in place.

    Args:
        hf: a loaded model of the adapter's base.
        folder: `adapter_config.json` and `adapter_model.safetensors` (PEFT's format).

    Raises:
        InputError: a tensor of the adapter has no place in the model, or a place that its config names has no tensor.
        OSError, ValueError: the adapter is missing or damaged.

    Example:
        >>> merge_adapter(model.hf, folder("blind-rolled-0"))               # doctest: +SKIP
    """
    from peft import PeftModel, get_peft_model_state_dict

    from mmprobe.models.adapters import check_adapter_config, check_adapter_fits, check_files

    name, place = str(folder), Path(folder)
    check_files(name, place)
    check_adapter_config(name, place, [module for module, _ in hf.named_modules()])
    adapted = PeftModel.from_pretrained(hf, name, use_safetensors=True)
    check_adapter_fits(name, get_peft_model_state_dict(adapted), place)
    return adapted.merge_and_unload()
