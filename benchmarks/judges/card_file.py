"""Where the card of a judge is kept, by what its labels depend on, and what results say of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mmprobe.benchmarks.core.prompts import shared_text
from mmprobe.errors import InputError
from mmprobe.files import read_json

if TYPE_CHECKING:
    from mmprobe.benchmarks.judges.judge import Judge

FOLDER = "MMPROBE_JUDGES"  # the environment's variable that names the folder of cards


def identify(name: str, judge: Judge | None) -> str:
    """Return a hash of what a judge's labels depend on: its name, its weights where they are here, its prompt."""
    members = getattr(judge, "members", None) or [judge]
    parts = [getattr(member, "identity", name) for member in members]
    content = json.dumps([name.partition(":")[0], *parts, shared_text("correct")])
    return hashlib.sha256(content.encode()).hexdigest()


def card_folder() -> Path:
    """Return the folder where cards are looked up: `MMPROBE_JUDGES`, or `judges` in the current folder."""
    return Path(os.environ.get(FOLDER) or "judges")


def card_file(folder: Path, name: str, identity: str) -> Path:
    """Return the file of a judge's card.

    Example:
        >>> card_file(Path("judges"), "model:openai/gpt-4o", "0123456789").as_posix()
        'judges/model-openai-gpt-4o-01234567.json'
    """
    return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-')[:100]}-{identity[:8]}.json"


def describe_card(name: str, judge: Judge | None, folder: Path | None = None) -> str:
    """Return in one line what the card of a judge says, or that it has none.

    Example:
        >>> describe_card("model:openai/gpt-4o", None, Path("none"))[:38]
        'judge model:openai/gpt-4o has no card:'
    """
    file = card_file(card_folder() if folder is None else folder, name, identify(name, judge))
    if not file.is_file():
        return (
            f"judge {name} has no card: nobody knows how rightly it reads; mmprobe bench judges --judge {name} "
            f"--out {card_folder()} measures it"
        )
    try:
        card = read_json(file)
        rightly, bias = card["metrics"]["read_rightly"], card["metrics"]["bias"]
        return (
            f"judge {name} reads {rightly['value']:.2f} [{rightly['low']:.2f}, {rightly['high']:.2f}] of "
            f"{rightly['n']} labelled answers rightly, bias {bias['value']:+.2f} (its card: {file})"
        )
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{file}: is not a card of a judge; measure it again") from None
