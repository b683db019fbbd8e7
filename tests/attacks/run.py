"""Attack mmprobe: damage, crafted files, hostile inputs, faults, two writers, judges, changed models, links, plug-ins and hosts.

python tests/attacks/run.py --seed 0 --n 1000              a table of what was held, and each case that was not
python tests/attacks/run.py --seed 0 --n 1000 --write      writes the table into docs/reliability.md, too
"""

from __future__ import annotations

import argparse
import importlib
import random
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from attacks.workers import run_cases  # noqa: E402
from attacks.world import Case, build_world  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"
MARKS = re.compile(r"(?<=<!-- attacks -->\n).*?(?=<!-- /attacks -->)", re.DOTALL)
SHARES = {  # of the number of cases
    **{"damage": 0.16, "crafted": 0.24, "inputs": 0.4, "faults": 0.08, "writers": 0.03, "judges": 0.09},
    **{"identity": 0.06, "links": 0.04, "plug_ins": 0.04, "models": 0.04, "hosts": 0.015, "load": 0.01},
    **{"names": 0.08, "formats": 0.1, "videos": 0.06, "serving": 0.036, "outputs": 0.042},
}
WHAT = {
    "damage": "flipped bits, missing ends, zeroed pages, swapped files",
    "crafted": "traces with valid checksums and hostile content",
    "inputs": "samples, images, YAML, benchmark data, answers, results, options",
    "faults": "kill -9, SIGTERM, Ctrl-C, a disk that fills up",
    "writers": "two processes at once",
    "judges": "useless, huge and late replies of a judge",
    "identity": "weights, settings, images, questions and adapters that change under their names",
    "links": "links in place of files, parts and folders, and in an index of weights",
    "plug_ins": "broken plug-ins of each kind: of a wrong type, that raise or exit when imported or used",
    "models": "pipes, devices, bombs and huge numbers in model folders, YAML, paths and notes of locks",
    "hosts": "processes of other host names, killed or alive",
    "load": "hundreds of small works in one process",
    "names": "paths and ids that are too long, of too many parts, or not text, for every command",
    "formats": "conversations, template arguments, components, dictionaries, plants, given answers, exports, tables and pairs of runs",
    "videos": "damaged containers, playlists that point elsewhere, pipes, huge frames, false headers, frames that are not images",
    "serving": "requests to the live page: without its token, from other sites, for other files, huge or malformed",
    "outputs": "keys, control characters, formulas and TeX in exports, activations, reports, the live page and trackers",
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
    parser.add_argument("--write", action="store_true", help="write the table into docs/reliability.md")
    options = parser.parse_args()
    began = time.monotonic()
    counts, failures = attack(options.seed, options.n, options.only)
    table = format_table(counts, options.seed, options.n)
    print("\n".join([*failures, table, f"{time.monotonic() - began:.0f} seconds"]))
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(MARKS.sub(lambda _: table, text), encoding="utf-8")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
