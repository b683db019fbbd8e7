"""The command that makes pairs of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mmprobe.cli.options import AsJson, say
from mmprobe.errors import InputError


def make_pairs(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    n: Annotated[int, typer.Option("--n", help="Number of pairs.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    source: Annotated[
        Literal["synthetic", "coco"],
        typer.Option(help="Where the pictures come from: drawn, or photographs with COCO's instances."),
    ] = "synthetic",
    differences: Annotated[
        str | None, typer.Option(help="A number, or a range as 1-3; default: 0-3 drawn, 1-5 of photographs.")
    ] = None,
    difficulty: Annotated[
        Literal["easy", "medium", "hard"] | None,
        typer.Option(help="Default: drawn, all three in turn; of photographs, as they come."),
    ] = None,
    images: Annotated[Path | None, typer.Option(help="coco: folder of the pictures.")] = None,
    annotations: Annotated[Path | None, typer.Option(help="coco: the instances file.")] = None,
    planner: Annotated[
        str | None, typer.Option(help="coco: who chooses the edits: rules (default), model:PROVIDER/MODEL.")
    ] = None,
    inpainter: Annotated[
        str | None, typer.Option(help="coco: who fills the holes: opencv (default), lama.")
    ] = None,
    reviews: Annotated[
        Path | None,
        typer.Option(help="coco: do what a reviewer decided about the pairs in --out, make none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make picture pairs with known differences, and questions.

    Each question has its true answer. With --source coco a second call goes on where the first one was, up to --n pairs.

    \b
    Examples:
      mmprobe make-pairs --source synthetic --out pairs --n 30 --seed 7
      mmprobe make-pairs --source synthetic --out hard --n 30 --seed 7 --differences 2-3 --difficulty hard
      mmprobe make-pairs --source coco --images val2017 --annotations instances_val2017.json --out photos --n 100
      mmprobe make-pairs --source coco --out photos --n 100 --reviews reviews.json
    """
    of_photos = {"--images": images, "--annotations": annotations, "--planner": planner}
    of_photos |= {"--inpainter": inpainter, "--reviews": reviews}
    if source == "synthetic" and (given := [name for name, value in of_photos.items() if value]):
        raise InputError(f"{given[0]}: goes with --source coco")
    if reviews is not None:
        from mmprobe.benchmarks.photo_pairs.review import apply_reviews

        found = apply_reviews(out, reviews)
        text = f"{found.accepted} pairs accepted, {found.rejected} rejected, {found.left} not reviewed: {out}"
        say(found._asdict(), text, as_json)
        return
    low, dash, high = (differences or ("0-3" if source == "synthetic" else "1-5")).partition("-")
    if not (low.isdecimal() and (high.isdecimal() if dash else not high)):
        raise InputError(f"--differences {differences}: give a number or a range such as 1-3")
    wanted = int(low), int(high or low)
    if source == "coco":
        if images is None or annotations is None:
            raise InputError("--source coco: needs --images and --annotations")
        from mmprobe.benchmarks.photo_pairs.pipeline import make_photo_pairs

        inpainter, planner = inpainter or "opencv", planner or "rules"
        made = make_photo_pairs(images, annotations, out, n, seed, wanted, difficulty, planner, inpainter)
        text = f"{made.pairs} pairs, {made.rejected} pictures rejected: {made.samples}; review: {made.review}"
        say({**made._asdict(), "samples": str(made.samples), "review": str(made.review)}, text, as_json)
        return
    from mmprobe.benchmarks.synthetic.pairs import make_pairs as make

    written = make(out, n, seed, wanted, difficulty)
    with written.open(encoding="utf-8") as lines:
        count = sum(1 for _ in lines)
    say(
        {"samples": str(written), "pairs": n, "questions": count},
        f"{n} pairs, {count} questions: {written}",
        as_json,
    )
