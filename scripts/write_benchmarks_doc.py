"""Score the embedded model on held-out pairs and write the tables of docs/benchmarks.md.

python scripts/write_benchmarks_doc.py --folder results        # two CPU cores: about fifteen minutes; goes on where it was
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MARKS = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)
SEED = 1_900_000  # held out: the embedded model was trained on seeds below 1,000,000
SPLIT = re.compile(
    r"_unparsed_0|\[|_(random|popular|adversarial)$"
)  # of parts of the data; all are in results.json
PAIRS = {"spd-faith": 300, "pope": 40, "chair": 100, "mme": 60}
PAIRS |= dict.fromkeys(("mirage", "magic", "mirage-effect", "mmreason"), 24)  # these four in ten minutes


def ask(name: str, folder: Path) -> Path:
    """The result folder of a benchmark, made by the command that the page gives."""
    out = folder / name
    command = [sys.executable, "-m", "mmprobe", *line(name, out).split()[1:], "--resume"]
    subprocess.run(command, check=True)
    return out


def line(name: str, out: Path | str) -> str:
    return f"mmprobe bench {name} --model tiny-spd --n {PAIRS[name]} --seed {SEED} --batch-size 8 --out {out}"


def table(name: str, results: dict) -> str:
    rows = ["| metric | value [95 %] | n | coverage | better | range |", "|---|---|---|---|---|---|"]
    for metric, found in results["metrics"].items():
        if SPLIT.search(metric):
            continue
        if found["value"] is None:
            value = "undefined"
        else:
            ends = "" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]"
            value = f"{found['value']:.3f}{ends}"
        low, high = ("" if end is None else f"{end:g}" for end in found["range"])
        coverage = "" if found["coverage"] is None else f"{found['coverage']:.0%}"
        rows.append(
            f"| `{metric}` | {value} | {found['n']} | {coverage} | {found['direction']} | {low} to {high} |"
        )
    return f"### {name}\n\n`{line(name, f'results/{name}')}`\n\n" + "\n".join(rows) + "\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--folder", type=Path, default=Path("results"))
    folder = asked.parse_args().folder
    tables = [table(name, json.loads((ask(name, folder) / "results.json").read_text())) for name in PAIRS]
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKS.sub(lambda _: "\n".join(tables), text), encoding="utf-8")


if __name__ == "__main__":
    main()
