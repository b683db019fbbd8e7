"""The command `make-pairs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mmprobe.cli.options import (
    AsJson,
    NewFolder,
    Seed,
    print_result,
)
from mmprobe.errors import InputError


def make_pairs(
    out: NewFolder,
    n: Annotated[int, typer.Option("--n", help="Number of pairs.", min=1)],
    seed: Seed = 0,
    source: Annotated[
        Literal["synthetic", "things", "coco"],
        typer.Option(help="Drawn shapes, drawn things of daily life, or photographs with COCO's instances."),
    ] = "synthetic",
    differences: Annotated[
        str | None, typer.Option(help="A number, or a range as 1-3; default: 0-3 drawn, 1-5 of photographs.")
    ] = None,
    difficulty: Annotated[
        Literal["easy", "medium", "hard"] | None,
        typer.Option(
            help="Of shapes and photographs. Default: all three in turn of shapes, any of photographs."
        ),
    ] = None,
    mix: Annotated[
        Literal["even", "paper"],
        typer.Option(
            help="paper: numbers of differences and difficulties as in SPD-Faith Bench (not of things)."
        ),
    ] = "even",
    statistics: Annotated[Path | None, typer.Option(help="An HTML file for figures of the pairs.")] = None,
    images: Annotated[Path | None, typer.Option(help="coco: folder of the images.")] = None,
    annotations: Annotated[Path | None, typer.Option(help="coco: the instances file.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="coco: only the first so many images of the instances file.", min=1)
    ] = None,
    planner: Annotated[
        str | None, typer.Option(help="coco: who chooses the edits: rules (default), model:PROVIDER/MODEL.")
    ] = None,
    inpainter: Annotated[
        str | None, typer.Option(help="coco: who fills the holes: opencv (default), lama.")
    ] = None,
    reviews: Annotated[
        Path | None,
        typer.Option(help="coco: apply a reviewer's decisions about the pairs in --out, and make none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make image pairs with known differences, and questions about them.

    Each question has its true answer. With --source coco a second call continues where the first one stopped,
    up to --n pairs.

    \b
    Examples:
      mmprobe make-pairs --source synthetic --out pairs --n 30 --seed 7
      mmprobe make-pairs --source synthetic --out hard --n 30 --seed 7 --differences 2-3 --difficulty hard
      mmprobe make-pairs --source things --out things --n 20
      mmprobe make-pairs --mix paper --out mixed --n 300 --statistics mixed.html
      mmprobe make-pairs --source coco --images val2017 --annotations instances_val2017.json \\
        --out photos --n 100
      mmprobe make-pairs --source coco --out photos --n 100 --reviews reviews.json
    """
    coco_options = {
        "--images": images,
        "--annotations": annotations,
        "--limit": limit,
        "--planner": planner,
        "--inpainter": inpainter,
        "--reviews": reviews,
    }
    if source != "coco":
        for option, value in coco_options.items():
            if value:
                raise InputError(f"{option}: goes with --source coco")
    if source == "things":
        for option, given in {"--difficulty": difficulty, "--mix paper": mix == "paper"}.items():
            if given:
                raise InputError(f"{option}: goes with --source synthetic or coco; things have no difficulty")
    if mix == "paper" and (differences or difficulty):
        raise InputError("--mix paper: draws differences and difficulty; leave out those options")
    if reviews is not None:
        _apply_reviews(out, reviews, as_json)
    elif source == "coco":
        if images is None or annotations is None:
            raise InputError("--source coco: needs --images and --annotations")
        from mmprobe.benchmarks.photo_pairs.pipeline import PhotoPairSettings, make_photo_pairs

        made = make_photo_pairs(
            images,
            annotations,
            out,
            n,
            PhotoPairSettings(
                seed,
                _parse_range(differences or "1-5"),
                difficulty,
                planner or "rules",
                inpainter or "opencv",
                mix=mix,
            ),
            limit,
        )
        if statistics:
            _write_statistics(statistics, made.samples)
        text = f"{made.pairs} pairs, {made.rejected} images rejected: {made.samples}; review: {made.review}"
        print_result(
            {**made._asdict(), "samples": str(made.samples), "review": str(made.review)}, text, as_json
        )
    else:
        from mmprobe.benchmarks.synthetic.pairs import make_pairs as draw_pairs
        from mmprobe.benchmarks.things.pairs import make_things

        asked = _parse_range(differences or "0-3")
        if source == "things":
            file = make_things(out, n, seed, asked)
        else:
            file = draw_pairs(out, n, seed, asked, difficulty, mix)
        if statistics:
            _write_statistics(statistics, file)
        with file.open(encoding="utf-8") as lines:
            n_questions = sum(1 for _ in lines)
        result = {"samples": str(file), "pairs": n, "questions": n_questions}
        print_result(result, f"{n} pairs, {n_questions} questions: {file}", as_json)


def _write_statistics(file: Path, samples: Path) -> None:
    from mmprobe.benchmarks.spd_faith.benchmark import SpdFaith
    from mmprobe.benchmarks.spd_faith.data import pair_statistics
    from mmprobe.viz import write_figures

    write_figures(
        pair_statistics(SpdFaith().read(samples).pairs), file, (samples.parent.name, "pairs of images")
    )


def _apply_reviews(out: Path, reviews: Path, as_json: bool) -> None:
    from mmprobe.benchmarks.photo_pairs.review import apply_reviews

    counts = apply_reviews(out, reviews)
    text = f"{counts.accepted} pairs accepted, {counts.rejected} rejected, {counts.left} not reviewed: {out}"
    print_result(counts._asdict(), text, as_json)


def _parse_range(differences: str) -> tuple[int, int]:
    """Return the ends of a range such as `1-3`, or twice a number."""
    low, dash, high = differences.partition("-")
    if not (low.isdecimal() and (high.isdecimal() if dash else not high)):
        raise InputError(f"--differences {differences}: give a number or a range such as 1-3")
    return int(low), int(high or low)
