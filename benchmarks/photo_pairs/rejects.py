"""The pictures that gave no pair, and why: `rejected.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path

from mmprobe.benchmarks.lines import write_whole
from mmprobe.benchmarks.photo_pairs.photos import Rejected
from mmprobe.errors import InputError


def reject(out: Path, name: str, reason: Rejected) -> None:
    """Add one line: image_id, stage (read, plan, check, difficulty, review) and reason."""
    line = json.dumps({"image_id": name, "stage": reason.stage, "reason": " ".join(str(reason).split())})
    with (out / "rejected.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_rejected(out: Path) -> list[dict[str, str]]:
    """The rejected pictures; a last line that was cut off is taken away, so that its picture is tried again.

    Raises:
        InputError: another line is damaged.
    """
    file = out / "rejected.jsonl"
    if not file.is_file():
        return []
    whole, _, rest = file.read_text(encoding="utf-8").rpartition("\n")
    if rest:
        write_whole(file, whole + "\n" if whole else "")
    rows = []
    for number, line in enumerate(whole.split("\n") if whole else [], 1):
        try:
            row = json.loads(line)
            rows.append({key: str(row[key]) for key in ("image_id", "stage", "reason")})
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{file}, line {number}: damaged; choose another --out") from None
    return rows
