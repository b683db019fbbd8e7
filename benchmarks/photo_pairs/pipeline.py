"""Make pairs of photographs from COCO's images and instances: plan, edit, check, keep or reject."""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from mmprobe.benchmarks.photo_pairs.check import check_files, check_pixels
from mmprobe.benchmarks.photo_pairs.edits import Inpainter, apply_edits, get_inpainter
from mmprobe.benchmarks.photo_pairs.layout import (
    append_rejection,
    find_pair_folders,
    make_row,
    move_pair,
    read_rejections,
    write_jpeg,
    write_lists,
    write_metadata,
)
from mmprobe.benchmarks.photo_pairs.photos import ImageEntry, Photo, Rejection, read_entries, read_photo
from mmprobe.benchmarks.photo_pairs.planner import (
    MAX_EDITS,
    PhotoEdit,
    Rules,
    plan_by_rules,
    rate_difficulty,
)
from mmprobe.benchmarks.photo_pairs.review import write_review
from mmprobe.benchmarks.synthetic.pairs import check_options
from mmprobe.benchmarks.synthetic.scene import MIX_LEVELS, Difficulty, Mix, count_levels, draw_count
from mmprobe.errors import InputError
from mmprobe.files import make_folders
from mmprobe.ledger import Ledger, lock_folder

_FORMAT = 1
_BATCH_SIZE = 8  # photographs in one call of a model planner, our choice


class PhotoPairsResult(NamedTuple):
    """The numbers of finished pairs and rejected images, the samples file and the review page."""

    pairs: int
    rejected: int
    samples: Path
    review: Path


class _PlannedPair(NamedTuple):
    photo: Photo
    edits: list[PhotoEdit]
    planner: str


PlanPhotos = Callable[[list[Photo]], list[_PlannedPair | Rejection]]


@dataclass(frozen=True)
class PhotoPairSettings:
    """What pairs of photographs are like, and who makes them.

    Attributes:
        seed: of what is drawn at random.
        differences: smallest and largest number of edits in a pair, within 1-5.
        difficulty: keep only pairs of this difficulty; None for all.
        planner: `rules`; `model:NAME` for a model of inspect-ai; or such a model.
        inpainter: `opencv`, `lama`, or a function from pixels and hole to pixels.
        rules: of the edits that are possible.
        mix: `paper` draws the number of edits, and keeps as many pairs of each difficulty, as in SPD-Faith
            Bench (`mmprobe.benchmarks.synthetic.scene`).
    """

    seed: int = 0
    differences: tuple[int, int] = (1, MAX_EDITS)
    difficulty: Difficulty | None = None
    planner: Any = "rules"
    inpainter: str | Inpainter = "opencv"
    rules: Rules = Rules()
    mix: Mix = "even"

    def count_edits(self, name: str) -> tuple[int, int]:
        """Return the smallest and largest number of edits of an image."""
        if self.mix == "even":
            return self.differences
        count = draw_count(_make_rng(self.seed, f"{name} mix"), MAX_EDITS)
        return count, count

    def count_pairs(self, n: int) -> Mapping[Difficulty, int]:
        """Return the largest number of pairs of each difficulty, of `n` pairs."""
        if self.mix == "paper":
            return count_levels(n)
        return {self.difficulty: n} if self.difficulty else dict.fromkeys(MIX_LEVELS, n)


def make_photo_pairs(
    images: str | Path,
    annotations: str | Path,
    out: str | Path,
    n: int,
    settings: PhotoPairSettings = PhotoPairSettings(),
    limit: int | None = None,
) -> PhotoPairsResult:
    """Make pairs until there are `n`, or no images are left. Each image gives at most one pair.

    A pair depends only on the image and the settings. So the same call finishes an interrupted run,
    and a larger `n` only adds pairs. With a model as planner this holds while its replies repeat; they are
    kept in `planner.sqlite`.

    Args:
        images, annotations: folder of the images, and COCO's instances file.
        out: output folder: new, empty, or from an earlier call with the same settings.
        limit: use only the first images of the instances file; None for all.

    Raises InputError where a file or an argument is wrong, `out` contains something else, or no image gave a
    pair.

    Example:
        >>> make_photo_pairs("val2017", "instances_val2017.json", "photos", 100).pairs      # doctest: +SKIP
        100
    """
    images, annotations, out = Path(images), Path(annotations), Path(out)
    check_options(n, settings.seed, settings.differences, (1, MAX_EDITS), settings.difficulty)
    if not images.is_dir():
        raise InputError(f"images {images}: no such folder")
    entries = read_entries(annotations)[:limit]
    model, inpainter = _open_planner_model(settings.planner), settings.inpainter
    fill = get_inpainter(inpainter) if isinstance(inpainter, str) else inpainter
    with lock_folder(out, "making pairs in it"):
        _open_folder(
            out,
            {
                "format": _FORMAT,
                "annotations": hashlib.sha256(annotations.read_bytes()).hexdigest(),
                "seed": settings.seed,
                "differences": list(settings.differences),
                "difficulty": settings.difficulty,
                "planner": "rules" if model is None else f"model:{model}",
                "inpainter": inpainter if isinstance(inpainter, str) else inpainter.__qualname__,
                "rules": asdict(settings.rules),
                "mix": settings.mix if settings.mix == "paper" else None,
            },
        )
        plan_photos = _make_planner(model, out, settings)
        try:
            _make_pairs(entries, images, out, n, settings, plan_photos, fill)
        finally:
            samples, review = write_lists(out), write_review(out)
        n_rejected = len(read_rejections(out))
        if samples is None or review is None:
            raise InputError(
                f"{annotations}: none of its {len(entries)} images gave a pair; see {out / 'rejected.jsonl'}"
            )
        return PhotoPairsResult(len(find_pair_folders(out)), n_rejected, samples, review)


def _open_folder(out: Path, options: dict[str, Any]) -> None:
    """Create the folder, or check that an earlier call with the same options made it."""
    differs = "contains pairs made with other {names}"
    ledger = Ledger(out, "make-pairs.json", "pairs of photographs", differs, "choose another folder")
    if not ledger.begun and not ledger.is_empty():
        raise InputError(f"{out}: exists and contains no pairs of photographs; choose another folder")
    ledger.begin(options)
    shutil.rmtree(out / ".part", ignore_errors=True)


def _open_planner_model(planner: Any) -> Any:
    """Return the model that plans, or None for the rules. Opening it now reports errors before any work."""
    if planner == "rules":
        return None
    if isinstance(planner, str):
        kind, _, name = planner.partition(":")
        if kind != "model" or not name:
            raise InputError(f"planner {planner!r}: must be rules, or model:NAME such as model:openai/gpt-4o")
        planner = name
    from mmprobe.benchmarks.core.api_models import open_model

    open_model(planner, "judge")
    return planner


def _make_rng(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _make_planner(model: Any, out: Path, settings: PhotoPairSettings) -> PlanPhotos:
    """Return a function that plans photographs by rules, or by a model with the rules as a fallback."""
    seed, count_edits, rules = settings.seed, settings.count_edits, settings.rules

    def plan_one_by_rules(photo: Photo, planner: str = "rules") -> _PlannedPair | Rejection:
        try:
            edits = plan_by_rules(photo, count_edits(photo.name), _make_rng(seed, photo.name), rules)
        except Rejection as rejection:
            return rejection
        return _PlannedPair(photo, edits, planner)

    if model is None:
        return lambda photos: [plan_one_by_rules(photo) for photo in photos]
    from mmprobe.benchmarks.judges.model import ModelJudge
    from mmprobe.benchmarks.photo_pairs.model_planner import plan_by_model

    judge = ModelJudge(model, out / "planner.sqlite")

    def plan_all_by_model(photos: list[Photo]) -> list[_PlannedPair | Rejection]:
        photos_with_rngs = [(photo, partial(_make_rng, seed, photo.name)) for photo in photos]
        plans = plan_by_model(judge, photos_with_rngs, count_edits, rules)
        planned: list[_PlannedPair | Rejection] = []
        for photo, plan in zip(photos, plans, strict=True):
            if isinstance(plan, list):
                planned.append(_PlannedPair(photo, plan, judge.name))
            else:
                reason = f"rules, since {judge.name} gave no plan ({plan})"
                planned.append(plan_one_by_rules(photo, reason))
        return planned

    return plan_all_by_model


def _make_pairs(
    entries: list[ImageEntry],
    images: Path,
    out: Path,
    n: int,
    settings: PhotoPairSettings,
    plan_photos: PlanPhotos,
    fill: Inpainter,
) -> None:
    """Make pairs in random order until there are `n`, and of each difficulty no more than the settings say."""
    finished = set(find_pair_folders(out))
    rejected = {row["image_id"] for row in read_rejections(out)}
    for name in finished & rejected:  # a review was interrupted before it deleted the rejected pair
        shutil.rmtree(find_pair_folders(out)[name])
    finished -= rejected
    order = np.random.default_rng(settings.seed).permutation(len(entries))
    remaining = iter([entries[index] for index in order if entries[index].name not in finished | rejected])
    with tqdm(total=n, initial=min(len(finished), n), desc="pairs", unit="pair", disable=None) as bar:
        n_pairs = len(finished)
        folders = find_pair_folders(out).values()
        left = Counter[str](settings.count_pairs(n))
        left.subtract(folder.parent.name for folder in folders)
        while n_pairs < n and (batch := list(islice(remaining, min(_BATCH_SIZE, n - n_pairs)))):
            for planned in _plan_batch(batch, images, out, plan_photos):
                try:
                    left[_make_pair(planned, out, left, fill, settings.rules)] -= 1
                except Rejection as rejection:
                    append_rejection(out, planned.photo.name, rejection)
                    continue
                n_pairs += 1
                bar.update()


def _plan_batch(
    batch: list[ImageEntry], images: Path, out: Path, plan_photos: PlanPhotos
) -> Iterator[_PlannedPair]:
    photos = []
    for entry in batch:
        try:
            photos.append(read_photo(entry, images))
        except Rejection as rejection:
            append_rejection(out, entry.name, rejection)
    for photo, planned in zip(photos, plan_photos(photos), strict=True):
        if isinstance(planned, Rejection):
            append_rejection(out, photo.name, planned)
        else:
            yield planned


def _make_pair(
    planned: _PlannedPair, out: Path, left: Mapping[str, int], fill: Inpainter, rules: Rules
) -> Difficulty:
    """Edit, check and write one pair, and return its difficulty."""
    photo, edits, planner = planned
    changed = apply_edits(photo, edits, fill, rules.margin)
    changed_share = float(check_pixels(photo, edits, changed, rules.margin).mean())
    level = rate_difficulty(photo.n_objects, changed_share, rules)
    if left.get(level, 0) < 1:
        wanted = " or ".join(name for name, number in left.items() if number > 0)
        raise Rejection("difficulty", f"the pair is {level}, {wanted} is wanted")
    folder = out / ".part" / "pair" / photo.name
    make_folders(folder)
    properties = {
        "difficulty": level,
        "instances": photo.n_objects,
        "changed_area": round(changed_share, 6),
        "planner": planner,
        "source": photo.source,
    }
    row = make_row(photo, edits, properties)
    first = write_jpeg(photo.pixels, folder / row["image1"])
    second = write_jpeg(changed, folder / row["image2"])
    check_files(photo, edits, first, second, rules.margin)
    write_metadata(folder, row)
    move_pair(folder, out, level, photo.name)
    return level
