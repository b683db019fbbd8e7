"""Read public data sets in the layouts in which they are published: one file a layout, and its line here."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

from mmprobe.benchmarks.layouts.base import Layout
from mmprobe.benchmarks.synthetic.pairs import staging_folder
from mmprobe.errors import InputError
from mmprobe.files import check_no_link, read_json, validate_record
from mmprobe.registry import Registry, check_made, tolerate_plug_ins

LAYOUTS: Registry[Layout] = Registry(
    "layout",
    "layouts",
    {
        "GQA": "mmprobe.benchmarks.layouts.gqa:GQA",
        "MathVista": "mmprobe.benchmarks.layouts.options:MATHVISTA",
        "MathVision": "mmprobe.benchmarks.layouts.options:MATHVISION",
        "MMStar": "mmprobe.benchmarks.layouts.options:MMSTAR",
        "MMBench": "mmprobe.benchmarks.layouts.options:MMBENCH",
        "MedXpertQA": "mmprobe.benchmarks.layouts.medxpertqa:MEDXPERTQA",
        "MicroVQA": "mmprobe.benchmarks.layouts.microvqa:MICROVQA",
        "MMMU-Pro": "mmprobe.benchmarks.layouts.mmmu_pro:MMMU_PRO",
        "MMReason": "mmprobe.benchmarks.layouts.mmreason:MMREASON",
        "MIRAGE": "mmprobe.benchmarks.layouts.mirage:MIRAGE",
        "Phantom-0": "mmprobe.benchmarks.layouts.phantom:PHANTOM",
        "SPD-Faith Bench, parquet": "mmprobe.benchmarks.layouts.spd_faith:SPD_FAITH",
        "VQA-RAD": "mmprobe.benchmarks.layouts.vqa_rad:VQA_RAD",
        "VQA-RAD, parquet": "mmprobe.benchmarks.layouts.vqa_rad:VQA_RAD_PARQUET",
    },
    form="mmprobe.benchmarks.layouts.base:Layout",
    added_first=True,
)
"""Every layout by its name. Data are read in the first that matches them."""
NOTE = "published.json"  # beside the questions: what they were made of


def find_layout(benchmark: str, path: Path) -> Layout | None:
    """Return the layout of published data of a benchmark; None if they have the benchmark's own form.

    Example:
        >>> find_layout("mmreason", Path("questions.jsonl")) is None
        True
    """
    for _, each in LAYOUTS.working():
        if each.benchmark == benchmark:
            with tolerate_plug_ins():
                if check_made(each.matches, each.matches(path), bool):
                    return each
    return None


def unpack(benchmark: str, path: Path, folder: Path, limit: int | None = None, kept: bool = True) -> Path:
    """Return a file of the benchmark's questions: made of published data, or the path if it has its own form.

    The folder gets `samples.jsonl`, and `images/` where the published files contain the images. What an
    earlier call made of the same data is kept, and what it made of other data is replaced unless it is `kept`. Raises InputError
    for an invalid row, which it names, or other data in the folder.

    Example:
        >>> unpack("mmreason", Path("MMReason_testmini.tsv"), Path("results/data"))      # doctest: +SKIP
        PosixPath('results/data/samples.jsonl')
    """
    layout = find_layout(benchmark, path)
    if layout is None:
        return path
    samples, note = folder / "samples.jsonl", folder / NOTE
    about = {"layout": layout.name, "data": str(path.resolve()), "limit": limit}
    if samples.exists():
        earlier = read_json(note) if note.exists() else None
        if earlier == about:
            return samples
        if kept or earlier is None:
            raise InputError(f"{folder}: contains other data, or another --limit; choose another folder")
        remove_data(folder)
    with staging_folder(folder) as part:
        _write_questions(layout, path, part, limit)
        (part / NOTE).write_text(json.dumps(about) + "\n", encoding="utf-8")
    return samples


def remove_data(folder: Path) -> None:
    """Remove what was drawn or unpacked into a folder. `samples.jsonl` goes first: a part is not taken for the whole."""
    check_no_link(folder)
    (folder / "samples.jsonl").unlink(missing_ok=True)
    shutil.rmtree(folder)


def layout_of(folder: Path) -> str | None:
    """Return the name of the layout that `unpack` found for the data in a folder; None if they had the benchmark's form."""
    note = folder / NOTE
    return json.loads(note.read_text(encoding="utf-8")).get("layout") if note.is_file() else None


def _write_questions(layout: Layout, path: Path, folder: Path, limit: int | None) -> None:
    ids: set[str] = set()
    with (folder / "samples.jsonl").open("w", encoding="utf-8", errors="replace") as file:
        for where, line in islice(layout.read(path, folder), limit):
            validate_record(line, layout.record, where)
            if line["id"] in ids:
                raise InputError(f"{where}: id {line['id']!r} was used before")
            ids.add(line["id"])
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    if not ids:
        raise InputError(f"{path}: contains no question that can be asked; {layout.name} was expected")
