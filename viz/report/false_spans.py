"""The parts of answers that say something false, as labels.jsonl has them."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Len

from mmprobe.cache import Run
from mmprobe.json_files import JsonRecord, parse_record
from mmprobe.samples import regular_file


class _Spans(JsonRecord):
    """A line of labels.jsonl."""

    id: str
    false_spans: list[Annotated[list[int], Len(2, 2)]] = []


def read_false_spans(run: Run) -> dict[str, list[tuple[int, int]]]:
    """Return the parts of each answer that say something false, by sample; nothing for a packed run.

    Returns:
        Positions of the part's first character in the answer, and of the one after its last.

    Raises:
        InputError: a line of labels.jsonl has something else than such positions.

    Example:
        >>> read_false_spans(run)["0003-0-same"]                    # doctest: +SKIP
        [(27, 56)]
    """
    file = run.path / "labels.jsonl"
    if run.packed or not file.is_file():
        return {}
    lines = regular_file(file).read_bytes().splitlines()
    records = [
        parse_record(line, _Spans, f"{file}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    return {
        record.id: [(first, last) for first, last in record.false_spans]
        for record in records
        if record.false_spans
    }
