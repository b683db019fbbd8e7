"""From COCO's pictures and instances to pairs of photographs: plan, edit, check, keep or reject, one by
one."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from mmprobe.benchmarks.core.jsonl import write_atomic
from mmprobe.benchmarks.photo_pairs.check import check_files, check_pixels
from mmprobe.benchmarks.photo_pairs.edits import apply_edits
from mmprobe.benchmarks.photo_pairs.inpainting import Inpainter, inpainter_of
from mmprobe.benchmarks.photo_pairs.layout import (
    encode,
    keep_pair,
    pair_folders,
    read_rejected,
    reject,
    row_of,
    write_lists,
    write_metadata,
)
from mmprobe.benchmarks.photo_pairs.photos import Listed, Photo, Rejected, list_photos, read_photo
from mmprobe.benchmarks.photo_pairs.planner import (
    MOST_EDITS,
    Edit,
    Rules,
    difficulty_of,
    plan_by_rules,
)
from mmprobe.benchmarks.photo_pairs.review import write_review
from mmprobe.benchmarks.synthetic.pairs import check_options
from mmprobe.benchmarks.synthetic.scene import Difficulty
from mmprobe.errors import InputError

_FORMAT = 1
_AT_A_TIME = 8  # photographs that a model is asked about together, ours


class Made(NamedTuple):
    """What there is after a run: finished pairs, rejected pictures, and the files."""

    pairs: int
    rejected: int
    samples: Path
    review: Path


class _Planned(NamedTuple):
    photo: Photo
    edits: list[Edit]
    planner: str


def make_photo_pairs(
    images: str | Path,
    annotations: str | Path,
    out: str | Path,
    n: int,
    seed: int = 0,
    differences: tuple[int, int] = (1, MOST_EDITS),
    difficulty: Difficulty | None = None,
    planner: Any = "rules",
    inpainter: str | Inpainter = "opencv",
    rules: Rules | None = None,
    limit: int | None = None,
) -> Made:
    """Make pairs until there are `n`, or no pictures are left; each picture gives at most one.

    What a pair is like depends on the seed, the picture and the options alone, so a run that was cut off is
    finished by the same call, and a larger `n` only adds pairs. With a model as planner that holds as far as
    the model's replies repeat; they are kept in `planner.sqlite`.

    Args:
        images: folder of the pictures.
        annotations: COCO's instances file.
        out: the pairs' folder; new, empty, or of an earlier call with the same options.
        n: how many pairs there shall be.
        differences: fewest and most edits of a pair, within 1-5.
        difficulty: only pairs of this one; None for all.
        planner: `rules`; `model:NAME` for a model as inspect-ai names it, or such a model.
        inpainter: `opencv`, `lama`, or a function from pixels and hole to pixels.
        rules: what may be edited; None for the defaults.
        limit: only the first so many images of the instances file. None for all.

    Raises:
        InputError: a file or an option is wrong, `out` holds something else, or no picture gave a pair.

    Example:
        >>> make_photo_pairs("val2017", "instances_val2017.json", "photos", 100).pairs      # doctest: +SKIP
        100
    """
    images, annotations, out, rules = Path(images), Path(annotations), Path(out), rules or Rules()
    check_options(n, seed, differences, (1, MOST_EDITS), difficulty)
    if not images.is_dir():
        raise InputError(f"--images {images}: no such folder")
    listed = list_photos(annotations)[:limit]
    model = _model_of(planner)
    fill = inpainter_of(inpainter) if isinstance(inpainter, str) else inpainter
    _open_folder(
        out,
        {
            "format": _FORMAT,
            "annotations": hashlib.sha256(annotations.read_bytes()).hexdigest(),
            "seed": seed,
            "differences": list(differences),
            "difficulty": difficulty,
            "planner": "rules" if model is None else f"model:{model}",
            "inpainter": inpainter if isinstance(inpainter, str) else inpainter.__qualname__,
            "rules": asdict(rules),
        },
    )
    plan = _planner_of(model, out, seed, differences, rules)
    try:
        _make(listed, images, out, n, seed, difficulty, plan, fill, rules)
    finally:
        samples, review = write_lists(out), write_review(out)
    rejected = len(read_rejected(out))
    if samples is None or review is None:
        raise InputError(
            f"{annotations}: none of its {len(listed)} pictures gave a pair; see {out / 'rejected.jsonl'}"
        )
    return Made(len(pair_folders(out)), rejected, samples, review)


def _open_folder(out: Path, options: dict[str, Any]) -> None:
    """Make the folder, or find it to be of an earlier call with the same options."""
    file = out / "make-pairs.json"
    if file.is_file():
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError):
            raise InputError(f"{file}: cannot be read; choose another --out") from None
        other = [key for key in options if not isinstance(before, dict) or before.get(key) != options[key]]
        if other:
            raise InputError(f"{out}: holds pairs made with other {', '.join(other)}; choose another --out")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and holds no pairs of photographs; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / ".part", ignore_errors=True)
        write_atomic(file, json.dumps(options, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None


def _model_of(planner: Any) -> Any:
    """The model that plans, None for the rules; whether it can be reached is told before any work."""
    if planner == "rules":
        return None
    if isinstance(planner, str):
        kind, _, planner = planner.partition(":")
        if kind != "model" or not planner:
            raise InputError(f"--planner {kind}: choose rules, or model:NAME such as model:openai/gpt-4o")
    from mmprobe.benchmarks.judges.model import open_model

    open_model(planner)
    return planner


Plan = Callable[[list[Photo]], list[_Planned | Rejected]]


def _rng(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _planner_of(model: Any, out: Path, seed: int, differences: tuple[int, int], rules: Rules) -> Plan:
    def by_rules(photo: Photo, planner: str = "rules") -> _Planned | Rejected:
        try:
            edits = plan_by_rules(photo, differences, _rng(seed, photo.name), rules)
        except Rejected as reason:
            return reason
        return _Planned(photo, edits, planner)

    if model is None:
        return lambda photos: [by_rules(photo) for photo in photos]
    from mmprobe.benchmarks.judges.model import ModelJudge
    from mmprobe.benchmarks.photo_pairs.model_planner import plan_by_model

    judge = ModelJudge(model, out / "planner.sqlite")

    def by_model(photos: list[Photo]) -> list[_Planned | Rejected]:
        asked = [(photo, partial(_rng, seed, photo.name)) for photo in photos]
        planned: list[_Planned | Rejected] = []
        for photo, plan in zip(photos, plan_by_model(judge, asked, differences, rules), strict=True):
            if isinstance(plan, list):
                planned.append(_Planned(photo, plan, judge.name))
            else:
                planned.append(by_rules(photo, f"rules, since {judge.name} gave no plan ({plan})"))
        return planned

    return by_model


def _make(
    listed: list[Listed],
    images: Path,
    out: Path,
    n: int,
    seed: int,
    difficulty: Difficulty | None,
    plan: Plan,
    fill: Inpainter,
    rules: Rules,
) -> None:
    finished, rejected = set(pair_folders(out)), {row["image_id"] for row in read_rejected(out)}
    for name in finished & rejected:  # rejected by a reviewer, then cut off
        shutil.rmtree(pair_folders(out)[name])
    finished -= rejected
    order = np.random.default_rng(seed).permutation(len(listed))
    left = iter([listed[at] for at in order if listed[at].name not in finished | rejected])
    with tqdm(total=n, initial=min(len(finished), n), desc="pairs", unit="pair", disable=None) as bar:
        count = len(finished)
        while count < n and (some := list(islice(left, min(_AT_A_TIME, n - count)))):
            for one in _planned(some, images, out, plan):
                try:
                    _make_pair(one, out, difficulty, fill, rules)
                except Rejected as reason:
                    reject(out, one.photo.name, reason)
                    continue
                count += 1
                bar.update()


def _planned(some: list[Listed], images: Path, out: Path, plan: Plan) -> Iterator[_Planned]:
    photos = []
    for listed in some:
        try:
            photos.append(read_photo(listed, images))
        except Rejected as reason:
            reject(out, listed.name, reason)
    for photo, planned in zip(photos, plan(photos), strict=True):
        if isinstance(planned, Rejected):
            reject(out, photo.name, planned)
        else:
            yield planned


def _make_pair(
    planned: _Planned, out: Path, difficulty: Difficulty | None, fill: Inpainter, rules: Rules
) -> None:
    """Edit, check and write one pair.

    Raises:
        Rejected: a check fails, or the pair is of another difficulty than wanted.
    """
    photo, edits, planner = planned
    changed = apply_edits(photo, edits, fill, rules.margin)
    area = float(check_pixels(photo, edits, changed, rules.margin).mean())
    level = difficulty_of(photo.count, area, rules)
    if difficulty not in (None, level):
        raise Rejected("difficulty", f"the pair is {level}, {difficulty} is wanted")
    made = out / ".part" / "pair" / photo.name
    made.mkdir(parents=True, exist_ok=True)
    facts = {
        "difficulty": level,
        "instances": photo.count,
        "changed_area": round(area, 6),
        "planner": planner,
        "source": photo.source,
    }
    row = row_of(photo, edits, facts)
    original = encode(photo.pixels, made / row["image1"])
    check_files(photo, edits, original, encode(changed, made / row["image2"]), rules.margin)
    write_metadata(made, row)
    keep_pair(made, out, level, photo.name)
