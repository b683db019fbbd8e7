"""The command `number-boxes`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mmprobe.cli.options import (
    AsJson,
    OutFolder,
    Seed,
    check_out,
    print_result,
)


def number_boxes(
    data: Annotated[Path, typer.Option(help="Questions of MagiC without boxes, or a folder of GQA.")],
    out: OutFolder,
    limit: Annotated[
        int | None, typer.Option(help="Only so many questions, from the first on.", min=1)
    ] = None,
    seed: Seed = 0,
    threshold: Annotated[
        float, typer.Option(help="Share of a saliency map's maximum above which it is salient.", min=0, max=1)
    ] = 0.5,
    minimum_area: Annotated[
        float, typer.Option(help="Smallest share of the image that a salient part fills.", min=0, max=1)
    ] = 0.002,
    clean: Annotated[int, typer.Option(help="Iterations of closing and opening a map; 0: none.", min=0)] = 1,
    overlap: Annotated[
        float, typer.Option(help="Largest overlap of two relevant boxes.", min=0, max=1)
    ] = 0.5,
    rule: Annotated[
        Literal["coverage", "iou"], typer.Option(help="Overlap as share of the smaller box, or of the union.")
    ] = "coverage",
    count: Annotated[int, typer.Option(help="Boxes that are irrelevant to the question.", min=0)] = 3,
    areas: Annotated[
        tuple[float, float], typer.Option(help="Smallest and largest share of the image for such a box.")
    ] = (0.002, 0.25),
    as_json: AsJson = False,
) -> None:
    """Make the boxes of MagiC's questions by algorithm 1 of the paper, and draw them with their numbers.

    Relevant boxes come from `objects` and from maps of where people looked (`saliency`), the others from
    `distractors` or at random. Questions without a relevant box, or without room for the others, are left
    out and counted. bench magic reads the result as --data.

    \b
    Examples:
      mmprobe data number-boxes --data questions.jsonl --out numbered
      mmprobe data number-boxes --data gqa --limit 700 --rule iou --overlap 0.4 --out numbered
    """
    from mmprobe.benchmarks.layouts import unpack
    from mmprobe.benchmarks.magic.numbering import number_regions

    check_out(out, [data])
    rules: dict[str, Any] = {
        "threshold": threshold,
        "minimum_area": minimum_area,
        "clean": clean,
        "overlap": overlap,
    }
    rules |= {"rule": rule, "count": count, "areas": areas}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        questions = unpack("magic", data, Path(folder), limit)
        samples = number_regions(questions, out, seed, limit, left_out, **rules)
    text = f"Numbered: {samples}"
    if left_out:
        name, reason = next(iter(left_out.items()))
        text += f"\n{len(left_out)} left out, such as {name}: {reason}"
    print_result({"samples": str(samples), "left_out": left_out}, text, as_json)
