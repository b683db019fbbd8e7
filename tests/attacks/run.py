"""Attack what docs/reliability.md promises: kills, damage, two writers, links, keys and the live page.

python tests/attacks/run.py --seed 0 --n 1000              a table of what was held, and each case that was not
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from attacks.workers import run_cases  # noqa: E402
from attacks.world import Case, build_world  # noqa: E402

SHARES = {  # of the number of cases
    **{"damage": 0.4, "faults": 0.2, "writers": 0.08, "links": 0.1, "outputs": 0.12, "serving": 0.1}
}
WHAT = {
    "damage": "flipped bits, missing ends, zeroed pages, swapped files: damage is noticed",
    "faults": "kill -9, SIGTERM, Ctrl-C, a disk that fills up: nothing finished is lost",
    "writers": "two processes at once: one is refused",
    "links": "links in place of files and folders, and in an index of weights: nothing is written or read elsewhere",
    "outputs": "keys, control characters, formulas and TeX in what is written: keys reach no file",
    "serving": "requests to the live page without its token, from other sites, for other files: it is local",
}


def make_cases(seed: int, count: int, groups: list[str]) -> list[tuple[str, Case]]:
    """Return the cases with their classes."""
    cases = []
    for group in groups:
        module = importlib.import_module(f"attacks.{group}")
        rng = random.Random(f"{seed} {group}")
        cases += [(group, case) for case in module.cases(rng, round(count * SHARES[group]))]
    return cases


def attack(
    seed: int, count: int, groups: list[str] | None = None
) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Return for each class the numbers of cases and of those that held, and a line for each that did not."""
    cases = make_cases(seed, count, groups or list(SHARES))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        world = build_world(Path(folder))
        problems = run_cases(world, [case for _, case in cases], Path(folder))
    counts = {group: (0, 0) for group, _ in cases}
    failures = []
    for (group, case), problem in zip(cases, problems, strict=True):
        counts[group] = (counts[group][0] + 1, counts[group][1] + (problem is None))
        if problem is not None:
            failures.append(f"{group}: {case.name}: {problem}")
    return counts, failures


def format_table(counts: dict[str, tuple[int, int]], seed: int, count: int) -> str:
    """Return the table of the page."""
    rows = [f"`python tests/attacks/run.py --seed {seed} --n {count}`\n"]
    rows += ["| class | attacks | cases | held | not held |", "|---|---|---|---|---|"]
    rows += [
        f"| {group} | {WHAT[group]} | {n} | {held} | {n - held} |" for group, (n, held) in counts.items()
    ]
    n, held = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    return "\n".join([*rows, f"| all | | {n} | {held} | {n - held} |", ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--only", choices=SHARES, action="append", help="a class; may be given several times")
    options = parser.parse_args()
    began = time.monotonic()
    counts, failures = attack(options.seed, options.n, options.only)
    table = format_table(counts, options.seed, options.n)
    print("\n".join([*failures, table, f"{time.monotonic() - began:.0f} seconds"]))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
