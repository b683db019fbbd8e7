"""Write docs/diagnosis.md from the thresholds and from the scores of `mmprobe bench diagnosis`.

python -m mmprobe bench diagnosis --n 24 --out build/tools                        # the models that ship
python scripts/organisms/plant.py --seeds 5 --out build/fresh                     # and new ones
python -m mmprobe bench diagnosis --n 24 --out build/tools --tools diagnosis --models build/fresh/blind-rolled-5,...
python scripts/write_diagnosis_doc.py build/tools
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from mmprobe.diagnosis.battery.hints import WORDINGS
from mmprobe.diagnosis.battery.images import FURTHER
from mmprobe.diagnosis.bench.run import SCORES, SPLITS, Scored, read_rows, score_rows
from mmprobe.diagnosis.bench.scoring import DEVELOPMENT, Row, answers_auroc, score_tool
from mmprobe.diagnosis.causes import ABOUT, CAUSES, IMPLIES, NEEDS, load_thresholds
from mmprobe.diagnosis.rules import CONTROL
from mmprobe.files import json_lines

HELD_OUT = (3, 4)
FRESH = 5  # the seed of models that were planted after all rules and thresholds stood; they do not ship
PAGE = Path(__file__).parent.parent / "docs" / "diagnosis.md"
COLUMNS = {
    "macro_f1": "macro-F1", "false_alarms": "false alarms on controls", "mean_auroc": "AUROC, mean over causes",
    "auroc_answers": "AUROC of answers", "passes": "passes an answer",
}  # fmt: skip
INTRODUCTION = """\
# Diagnosis

`mmprobe diagnose` finds out why a model's answers do not come from its images. It changes one thing at a time and
reads the same answers again: the images, a hint in the question, the steps before a conclusion. Nothing is trained.

```sh
mmprobe diagnose --model tiny-spd --out results/diagnosis
mmprobe diagnose --model qwen2.5-vl-7b --data mine.jsonl --out results/7b --fail-on blind,forgets
```

`diagnosis.json` has the verdict and each cause with its score, interval and evidence; `answers.jsonl` has the causes of
each answer; `report.html` opens with one sentence and one figure. A verdict is a list of causes, `control` (none was
found) or `unknown` (the answers are false and no test finds why, or there are too few answers). `--fail-on` exits
with 1 if a cause is named, for continuous integration.

## Causes and their tests

A cause is named if its score reaches the threshold, the low end of its 95 % interval over sets of images reaches
{least_low:.0%} of it, and there are {least_answers} answers about {least_sets} sets of images or more. The thresholds are
ours, in `configs/diagnosis/thresholds.yaml`. They were chosen on organisms with seeds 0 to 2. No model of seed 5 was looked at
before all rules and thresholds stood; those of seeds 3 and 4 were, for one rule ([below](#held-out-seeds-apart)).

{causes}

- Images are exchanged for those of a sample with the same question and another answer, for unrelated ones, for
  the minimal pair, and, where samples have regions, in those regions alone; blank ones if there are no others. An answer that
  none of these touches is read with up to {further} further images. What counts is the loss at *free* tokens: those that the text
  alone does not fix, since they are unlikely after some images. An answer that loses less than {unused_effect} nat
  there does not use its images.
- Attention: how far the maps over the images move with their content, in the tenth of the heads that move most. From
  {looks_moved} on the model looks. A share of attention says nothing: a model that was trained to ignore its images may
  attend to them more than before. `looks-unused` stands beside `blind`, which it implies. The attention of models that were
  trained on other images' answers can move as much as that of models whose attention was held: then both are named.
- Hints: {n_wordings} wordings, for both answers. An answer follows a hint only if it is the suggested one both times.
  The two wordings that are followed most count. A hint that the question holds itself is flipped in its place; only such
  a hint can have caused the answer as it was given, so without one an answer's own score is 0.5 at most.
- Steps are exchanged for those of another conclusion, or lose a part or a line. A conclusion was decided first if none of
  this costs it {decided_share:.0%} of what other images cost it. The most frequent conclusion does not count, since models
  come to it when steps say nothing.
- Absent things are asked for on each image, and looked for in lists of what the image holds. The pair of cue and thing counts
  whose interval has the largest low end, and so for the attribute that is seen wrongly.
- Where the true answer is known, it is read, too: an answer's score for `misperceives` is the chance that the model says something
  else than the truth about the attribute.

The thresholds were found on one small model. On others, read the scores and their evidence before the names. A test
that the data do not allow is listed as not run, with what it would need. It takes up to 12 forward passes an answer
(mean; to generate an answer counts as one).

## How tools score

Tools are asked about models with planted causes ([organisms.md](organisms.md)). Thresholds of tools without their own
are chosen on the development models (seeds 0 to 2); held-out models have other seeds and other images. Models of seed 5 do not
ship, and are asked by the diagnosis alone. Numbers have 95 % intervals over models, and the number of models. *AUROC of
answers* is on partial organisms, whose cause acts on some answers. Scores on development models are too good, for every tool: its thresholds were chosen on them. The measures
that correlate give one number for all causes, in the direction that is claimed for them.

{models}
"""
WHY = """\
The goals were macro-F1 of 0.90, false alarms of 5 %, AUROC of answers of 0.90 and 12 passes. What to know about these numbers:

- One rule was changed after seeds 3 and 4 had been scored. At first, `decided-first` counted the conclusions whose likeliest words
  stay with other steps. It accused held-out controls, since `tiny-spd` itself often concludes from the images again. Now it counts
  the conclusions that lose less than {decided_share:.0%} of what other images cost them. This share and the threshold come from
  the development models alone, but the decision to change the rule came from the held-out ones. Models of seed {fresh}, which have
  images of their own, are therefore its clean test: {clean_test}.
- `blind` models may be named `looks-unused`, too. Only their attention tells the two causes apart, and training on other images'
  answers leaves it as it was in some models.
- One answer hardly shows a cause that acts on crowded images. Other images are often less crowded. The answer then changes with
  them, as if it had been read from the images.
- `prior` is in doubt where the companion is absent beside its cue in few sets of images. More pairs settle that.
"""
ENTER = """\
## Enter a tool

A tool is a function from a model and samples to a score for each cause, higher where the cause is more likely, on any
scale. It may also score each answer, and name causes by its own thresholds:

```python
from mmprobe.diagnosis.bench.tools import ToolScores
from mmprobe.probes import image_interchange_run


def interchange(model, samples):
    losses = image_interchange_run(model, samples, kinds=["unrelated"]).effect_per_token
    answers = {
        str(name): {"blind": -float(loss)} for name, loss in zip(losses["sample"].values, losses.values)
    }
    return ToolScores({"blind": -float(losses.mean())}, answers)
```

Enter it in the `pyproject.toml` of its package, install the package, and run it beside the others:

```toml
[project.entry-points."mmprobe.diagnosis_tools"]
interchange = "my_package.tools:interchange"
```

```sh
mmprobe bench diagnosis --tools interchange,diagnosis,chance --out results/tools
```

The table shows the held-out models; `results.json` has both splits, each cause and the confusion matrix. The command
keeps what is in `--out`, so it goes on where it was stopped, and another tool can be added. A cause that a tool does not
score is never named by it. Forward passes are counted by mmprobe. `--n 3 --models
blind-rolled-0,control-true-0,blind-rolled-3,control-true-3` tries a tool in a minute or two: seed 0 gives its thresholds, seed 3
its scores. A tool that needs labels, regions or pairs finds them in the samples' fields.
"""


def causes_table() -> str:
    """Return a table of the causes: what they are, how they are scored, the threshold and what the test needs."""
    named = load_thresholds().named
    lines = ["| cause | what it is | score | named from | needs |", "|---|---|---|---|---|"]
    for cause, about in CAUSES.items():
        lines.append(f"| `{cause}` | {about} | {ABOUT[cause]} | {named[cause]:.0%} | {NEEDS[cause]} |")
    return "\n".join(lines)


def models_line(rows: list[Row]) -> str:
    """Return how many models the scores are from, and of which causes."""
    parts = []
    for split in SPLITS:
        models = {row.model: row for row in rows if row.split == split}
        counts = Counter(row.cause + (" (partial)" if row.partial else "") for row in models.values())
        listed = ", ".join(f"{cause} {count}" for cause, count in sorted(counts.items())) or "none"
        parts.append(f"{len(models)} {split} models ({listed})")
    return (
        f"These scores are from {' and '.join(parts)}. Where few models are scored, the numbers say little."
    )


def scores_table(scored: Scored, split: str) -> str:
    """Return a table with a row for each tool."""
    lines = [f"| tool, {split} | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, own in scored.measures[split].items():
        lines.append(f"| {name} | " + " | ".join(str(own[key]) for key in COLUMNS) + " |")
    return "\n".join(lines)


def causes_auroc(scored: Scored, split: str) -> str:
    """Return a table of the AUROC of each cause against control, by tool."""
    lines = [f"| AUROC, {split} | " + " | ".join(CAUSES) + " |", "|---" * (len(CAUSES) + 1) + "|"]
    for name, own in scored.measures[split].items():
        lines.append(f"| {name} | " + " | ".join(str(own[f"auroc {cause}"]) for cause in CAUSES) + " |")
    return "\n".join(lines)


def seeds_table(rows: list[Row]) -> str:
    """Return the scores of the diagnosis for each held-out seed alone."""
    own = [row for row in rows if row.tool == "diagnosis"]
    development = [row for row in own if row.split == DEVELOPMENT]
    lines = ["| diagnosis | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for seed in (*HELD_OUT, FRESH):
        chosen = [row for row in own if row.model.endswith(f"-{seed}")]
        if chosen:
            found = score_tool([*development, *chosen])
            lines.append(f"| seed {seed} | " + " | ".join(str(found[key]) for key in COLUMNS) + " |")
    return "\n".join(lines)


def clean_test(rows: list[Row]) -> str:
    """Return in how many fresh models with another cause `decided-first` is named."""
    whole = [
        row for row in rows if row.tool == "diagnosis" and row.model.endswith(f"-{FRESH}") and not row.partial
    ]
    others = [row for row in whole if row.cause != "decided-first"]
    accused = [f"`{row.model}`" for row in others if "decided-first" in (row.named or ())]
    which = f" ({', '.join(accused)})" if accused else ""
    return f"it is named in {len(accused)} of {len(others)} models with another cause or none{which}"


def misses_list(rows: list[Row]) -> str:
    """Return what the diagnosis says of each held-out model whose cause it does not name alone, and partial ones."""
    lines = []
    for row in sorted(rows, key=lambda row: row.model):
        if row.tool != "diagnosis" or row.split == DEVELOPMENT:
            continue
        wanted, named = {row.cause, IMPLIES.get(row.cause)} - {None}, set(row.named or ())
        if row.partial:
            lines.append(f"- `{row.model}` (partial): AUROC of answers {answers_auroc([row]):.2f}")
        elif named != wanted:
            score = f"{row.scores[row.cause]:.0%}" if row.cause in row.scores else "none"
            lines.append(f"- `{row.model}` is named {', '.join(sorted(named))}; its own score: {score}")
    return "\n".join(lines) or "Every model is named rightly."


def confusion_table(scored: Scored, split: str) -> str:
    """Return how many models of each cause the diagnosis names as what."""
    table = scored.confusions[split].get("diagnosis", {})
    columns = [
        name for name in (*CAUSES, CONTROL, "unknown") if any(name in counts for counts in table.values())
    ]
    if not table:
        return f"No {split} model is scored yet."
    lines = [f"| planted, {split} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for cause in (*CAUSES, CONTROL):
        if cause in table:
            lines.append(
                f"| {cause} | " + " | ".join(str(table[cause].get(name, "")) for name in columns) + " |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of `mmprobe bench diagnosis`")
    file = parser.parse_args().folder / SCORES
    pairs = next(line["n"] for _, line in json_lines(file))
    rows = list(read_rows(file, pairs).values())
    scored, limits = score_rows(rows), load_thresholds()
    text = INTRODUCTION.format(
        causes=causes_table(),
        models=f"Each model was asked two or three questions about each of {pairs} pairs. {models_line(rows)}",
        n_wordings=len(WORDINGS),
        further=FURTHER,
        **{name: getattr(limits, name) for name in ("least_low", "least_answers", "least_sets", "unused_effect", "decided_share", "looks_moved")},
    )  # fmt: skip
    parts = [text.rstrip()]
    for split in reversed(SPLITS):
        if any(row.split == split for row in rows):
            parts += [scores_table(scored, split), causes_auroc(scored, split)]
    parts.append("## Held-out seeds apart\n\n" + seeds_table(rows))
    parts.append("Held-out models that are not named rightly, and the partial ones:\n\n" + misses_list(rows))
    parts.append(
        WHY.format(decided_share=limits.decided_share, fresh=FRESH, clean_test=clean_test(rows)).rstrip()
    )
    parts += ["## What the diagnosis names\n\nA model with several names counts in each column."]
    parts += [confusion_table(scored, split) for split in reversed(SPLITS)]
    PAGE.write_text("\n\n".join([*parts, ENTER.rstrip()]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
