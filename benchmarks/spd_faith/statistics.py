"""What a data set of pairs holds, as in figure 10 of SPD-Faith Bench (arXiv:2602.07833)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import xarray as xr

from mmprobe.benchmarks.spd_faith.rows import Pair
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, EDIT_TYPES


def pair_statistics(pairs: Sequence[Pair]) -> xr.Dataset:
    """Return numbers of `pairs` (difficulty, differences) and `changes` (difficulty, differences, type).

    Example:
        >>> from mmprobe.benchmarks.spd_faith.rows import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"), Difference("color", "car")), "easy")
        >>> int(pair_statistics([pair]).changes.sel(difficulty="easy", type="color").sum())
        1
    """
    kinds = [(pair.difficulty or "unknown", len(pair.differences)) for pair in pairs]
    levels = [name for name in (*DIFFICULTIES, "unknown") if name in {level for level, _ in kinds}]
    counts = sorted({count for _, count in kinds})
    n_pairs = Counter(kinds)
    n_changes = Counter(
        (*kind, difference.type)
        for kind, pair in zip(kinds, pairs, strict=True)
        for difference in pair.differences
    )
    return xr.Dataset(
        {
            "pairs": (
                ("difficulty", "differences"),
                [[n_pairs[level, count] for count in counts] for level in levels],
            ),
            "changes": (
                ("difficulty", "differences", "type"),
                [
                    [[n_changes[level, count, name] for name in EDIT_TYPES] for count in counts]
                    for level in levels
                ],
            ),
        },
        coords={"difficulty": levels, "differences": counts, "type": list(EDIT_TYPES)},
        attrs={"analysis": "pair_statistics"},
    )
