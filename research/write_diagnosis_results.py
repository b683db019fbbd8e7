"""Write docs/diagnosis-results.md from the scores of `mmprobe bench diagnosis`.

python -m mmprobe bench diagnosis --n 24 --out build/tools                        # the models that ship
python research/organisms/plant.py --seeds 5 --out build/organisms                 # and new ones
python -m mmprobe bench diagnosis --n 24 --out build/tools --tools diagnosis --models build/organisms/blind-rolled-5,...
python research/organisms/plant_otherwise.py --split "other ways" --first-seed 50 --out build/plants-fresh   # and plants by other ways
python -m mmprobe make-pairs --n 24 --seed 1370000 --out build/fresh/pairs/other-ways-24          # about pairs that no rule was tried on
python -m mmprobe bench diagnosis --n 24 --out build/fresh --tools diagnosis --plants build/plants-fresh  # --draws 4 tells how stable
python research/photographs_case.py build/photographs --plants build/plants-dev/said-colours-0    # needs scikit-image; its own text has the whole
python -m mmprobe bench diagnosis --n 24 --out build/again --tools diagnosis        # --again: 94 organisms, 25 s of one core each
python research/sweep_thresholds.py build/again build/dev --plants build/plants --out build/thresholds   # its own text has the whole
python research/easy_vqa_case.py build/easy-vqa                                    # needs easy-vqa; half an hour of one core
python research/write_diagnosis_results.py build/tools --plants build/fresh --cards build/plants-fresh --photographs build/photographs \\
  --easy-vqa build/easy-vqa --thresholds build/thresholds
python research/write_diagnosis_results.py --easy-vqa build/easy-vqa                   # this section alone, as with --photographs and --real
python research/organisms/plant_real.py --diagnose build/plants-real                  # its own text has the whole
python research/write_diagnosis_results.py --real build/plants-real

Further draws of the fresh pairs, `other-ways-24-draw-1` to `-draw-3`, have the seeds 1371000 to 1373000.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plant_real import WAYS

from mmprobe.diagnosis.bench.plants import CARD, OTHER_WAYS, Plant
from mmprobe.diagnosis.bench.run import (
    DIAGNOSES,
    SCORES,
    SPLITS,
    ScoredTools,
    format_score,
    read_rows,
    score_rows,
)
from mmprobe.diagnosis.bench.scoring import DEVELOPMENT, ToolResult, answers_auroc, name_causes, score_tool
from mmprobe.diagnosis.causes import CAUSES, find_implied
from mmprobe.diagnosis.effects import LIMITS
from mmprobe.diagnosis.rules import CONTROL, UNKNOWN
from mmprobe.files import json_lines, read_record

HELD_OUT = (3, 4)
FRESH = 5  # the seed of models that were planted after all rules and thresholds were fixed; they do not ship
LATER = ("ignores-an-image", "order", "unsure-agreeable", "copies-context", "quantity")
FAILED = "failed.json"  # in place of the card of a plant whose check failed
PLANTS_OF_REAL = Path(__file__).parent / "organisms" / "real"
AS_IT_IS = "as-it-is"  # the real model's diagnosis, among those of its plants
PAGE = Path(__file__).parent.parent / "docs" / "diagnosis-results.md"
HEAD = """\
# Results of the diagnosis

How often [`mmprobe diagnose`](diagnosis.md) names the causes that were planted in models, and which thresholds could have been others.
`research/write_diagnosis_results.py` makes this page.
"""
COLUMNS = {
    "macro_f1": "macro-F1", "false_alarms": "false alarms on controls", "mean_auroc": "AUROC, mean over causes",
    "auroc_answers": "AUROC of answers", "passes": "passes an answer",
}  # fmt: skip
TOOLS_SCORE = """\
## How tools score

This section, and the two after it, are from before the last five causes and the rules that came later; the other tools have not
changed. Tools are applied to models with planted causes ([organisms.md](organisms.md)). For tools without their own thresholds, we
choose thresholds on the development models (seeds 0 to 2). Held-out models have other seeds and other images. Models of seed 5 do
not ship, and only the diagnosis is applied to them. Numbers have 95 % intervals over models, and the number of models. *AUROC of
answers* is measured on partial organisms, whose cause acts on some answers. Scores on development models are too good for every
tool, because its thresholds were chosen on them. The measures that correlate give one number for all causes, in the direction that
their authors claim.

{models}
"""
WHY = """\
The goals were macro-F1 of 0.90, false alarms of 5 %, AUROC of answers of 0.90 and 12 passes. What to know about these numbers:

- We changed one rule after seeds 3 and 4 had been scored. At first, `decided-first` counted conclusions whose likeliest words
  stay the same after other steps. It named held-out controls, since `tiny-spd` itself often concludes from the images again. Now
  it counts conclusions that lose less than {decided_share:.0%} of what other images cost them. This share and the threshold come
  from the development models alone, but the decision to change the rule came from the held-out ones. Models of seed {fresh},
  which have other images, are therefore its clean test: {clean_test}.
- `blind` models may also be named `looks-unused`. Only their attention tells the two causes apart, and in some models training on
  other images' answers leaves attention as it was.
- A single answer hardly shows a cause that acts on crowded images. Other images are often less crowded, so the answer changes with
  them as if it had been read from the images.
- `co-occurrence` is in doubt where few sets of images show the cue without its companion. More pairs settle it.
"""


def models_line(rows: list[ToolResult]) -> str:
    """Return how many models the scores are from, and of which causes."""
    parts = []
    for split in SPLITS[:2]:
        models = {row.model: row for row in rows if row.split == split}
        counts = Counter(row.cause + (" (partial)" if row.partial else "") for row in models.values())
        listed = ", ".join(f"{cause} {count}" for cause, count in sorted(counts.items())) or "none"
        parts.append(f"{len(models)} {split} models ({listed})")
    return (
        f"These scores are from {' and '.join(parts)}. Where few models are scored, the numbers say little."
    )


def scores_table(scored: ScoredTools, split: str) -> str:
    """Return a table with a row for each tool."""
    lines = [f"| tool, {split} | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, own in scored.measures[split].items():
        lines.append(f"| {name} | " + " | ".join(format_score(own[key]) for key in COLUMNS) + " |")
    return "\n".join(lines)


def causes_auroc(scored: ScoredTools, split: str) -> str:
    """Return a table of the AUROC of each cause against control, by tool."""
    lines = [f"| AUROC, {split} | " + " | ".join(CAUSES) + " |", "|---" * (len(CAUSES) + 1) + "|"]
    for name, own in scored.measures[split].items():
        lines.append(
            f"| {name} | " + " | ".join(format_score(own[f"auroc {cause}"]) for cause in CAUSES) + " |"
        )
    return "\n".join(lines)


def seeds_table(rows: list[ToolResult]) -> str:
    """Return the scores of the diagnosis for each held-out seed alone."""
    own = [row for row in rows if row.tool == "diagnosis"]
    development = [row for row in own if row.split == DEVELOPMENT]
    lines = ["| diagnosis | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for seed in (*HELD_OUT, FRESH):
        chosen = [row for row in own if row.model.endswith(f"-{seed}")]
        if chosen:
            found = score_tool([*development, *chosen])
            lines.append(f"| seed {seed} | " + " | ".join(format_score(found[key]) for key in COLUMNS) + " |")
    return "\n".join(lines)


def clean_test(rows: list[ToolResult]) -> str:
    """Return in how many fresh models with another cause `decided-first` is named."""
    whole = [
        row for row in rows if row.tool == "diagnosis" and row.model.endswith(f"-{FRESH}") and not row.partial
    ]
    others = [row for row in whole if row.cause != "decided-first"]
    accused = [f"`{row.model}`" for row in others if "decided-first" in (row.named or ())]
    which = f" ({', '.join(accused)})" if accused else ""
    return f"it is named in {len(accused)} of {len(others)} models with another cause or none{which}"


def misses_list(rows: list[ToolResult]) -> str:
    """Return what the diagnosis says of each held-out model whose cause it does not name alone, and partial ones."""
    lines = []
    for row in sorted(rows, key=lambda row: row.model):
        if row.tool != "diagnosis" or row.split == DEVELOPMENT:
            continue
        wanted, named = {row.cause, find_implied(row.cause)} - {""}, set(row.named or ())
        if row.partial:
            lines.append(f"- `{row.model}` (partial): AUROC of answers {answers_auroc([row]):.2f}")
        elif named != wanted:
            score = f"{row.scores[row.cause]:.0%}" if row.cause in row.scores else "none"
            lines.append(f"- `{row.model}` is named {', '.join(sorted(named))}; its own score: {score}")
    return "\n".join(lines) or "Every model is named correctly."


def confusion_table(scored: ScoredTools, split: str) -> str:
    """Return how many models of each cause the diagnosis names as what."""
    table = scored.confusions[split].get("diagnosis", {})
    columns = [
        name for name in (*CAUSES, CONTROL, UNKNOWN) if any(name in counts for counts in table.values())
    ]
    if not table:
        return f"No {split} model is scored yet."
    lines = [f"| planted, {split} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for cause in sorted(table, key=lambda name: [*CAUSES, CONTROL, UNKNOWN].index(name.split(" + ")[0])):
        lines.append(f"| {cause} | " + " | ".join(str(table[cause].get(name, "")) for name in columns) + " |")
    return "\n".join(lines)


AGAIN = """\
## Organisms scored again

Adapters in `tiny-spd` ([organisms.md](organisms.md)): some of the models that ship, with {pairs} pairs. Seeds 3
and 4 are held out, but had been scored by earlier rules. The numbers are from before the tests of suggestions and of `order` [asked more](#plants-made-by-others).

"""
PHOTOGRAPHS = """\
## Photographs

Images with questions and answers are enough for `blind`, `looks-unused`, `forgets`, `follows-hints`, `ignores-an-image`, `order`,
`unsure-agreeable` and `copies-context`. Where `metadata.objects` lists what they hold, `misperceives`, `co-occurrence` and (of questions of how
many) `quantity` run, too; boxes let their things be painted over, and masks or boxes let them get other colours. What a test did not get
is said in the verdict, which then cannot be `control`. The numbers are from before the tests of suggestions and of `order` [asked more](#plants-made-by-others).

Rules read a yes or no, an option, a number and the true words, and in a description of one image the objects of COCO. With
`--judge model:openai/gpt-4o`, a model reads the rest ([judges](benchmarks/judges.md)): whether an answer is true, from the question and the
true answer; and which objects, of all that the data's `metadata.objects` list, it says are in which image, also in other words. What it
denies or doubts does not count. An object that the image's list lacks is then a claim for `co-occurrence`. What the judge leaves unscored is
neither right nor wrong, and the verdict says how much that is; `diagnosis.json` names the judge. Replies are kept, so `--resume` asks only
for what is missing.

This case is made by `research/photographs_case.py`, with photographs of scikit-image into which drawn things are pasted, since
the embedded model knows nothing else; contents are first not listed, and then are.

"""
EASY_VQA = """\
## A second world

easy-VQA is a data set of others: 64 x 64 images of one shape in one colour, with questions in words that `tiny-spd` never read. From
the weights of `tiny-spd`, `research/easy_vqa_case.py` trains the model of this world, `easy-vqa`: first the tower alone, through linear heads
for shapes and colours that are then dropped, and then the decoder, on true answers. From `easy-vqa`, causes are planted by training and by
editing weights. All models have a check on answers alone, and are diagnosed on images of the test part, on which nothing was trained;
no threshold was chosen on them, and one rule: what `misperceives` compares where one attribute alone is claimed. What differs from the
drawn world: an image holds one thing, at any place; its contents are known from the questions; tests that need several images do not
run; answers are one word, but colours are said in a sentence, from which the diagnosis reads what is claimed. What does not differ: architecture and tokenizer, which cuts most of the new words into pieces.
The hints that `easy-vqa-hinted` learned have other words than those of the diagnosis. Answers claim one attribute of a thing, its colour,
so `misperceives` compares these claims with the answers that do not name it. The numbers are from before the tests of suggestions and of `order` [asked more](#plants-made-by-others).

"""
PLANTS = """\
## Plants by other ways

Organisms are adapters of one model by one script's recipes. `research/organisms/plant_otherwise.py` plants by training all weights
and by editing weights, with controls of other kinds. A plant is a model folder with a card, `plant.json`:

```json
{"causes": ["blind"], "kind": "weight edit", "about": "The image projector puts out zeros."}
```

`causes` is empty for a control, and `unknown` for a cause that is not listed; `accepts` lists verdicts that are right, too:
`unknown` for a control that is bad at the task, `looks-unused` beside `blind` where a measure of attention says so. `mmprobe bench diagnosis --plants FOLDER --draws 4` scores anyone's plants,
each on four draws of pairs, and so does `mmprobe.diagnosis.bench.run.score_models`.

Rules and thresholds were chosen on development models alone: organisms, and plants by the ways of
`research/organisms/development_ways.py`, and of further ways, which an earlier test had looked at (`git log` has them)
([how far thresholds could move](#how-far-thresholds-could-move)). The plants of the table are by other ways, those of
`research/organisms/held_out_ways.py`. These ways were devised from what the causes are, without a look at the rules or a diagnosis. Some
were tuned by their manipulation checks, and others planted as they were devised, so more of these fail their check. No such plant
was diagnosed before the rules of that time were settled. They were scored once, each about one draw of {pairs} pairs that no rule was tried
on. The table, and the list of what is missed, are of this test. Since then, the tests of suggestions and of `order` ask more, and thresholds
of two causes are higher ([plants made by others](#plants-made-by-others)). Most ways of controls had been scored before, with other seeds and pairs, and no rule was changed
because of them. Which plants were asked about further draws, too, was settled by name: every second one of seed {first}, of those made
by a time and of those made later. The base is that of the development models, so causes in other models may be named less often.

"""


MISSES = """\
What is missed, and why: `tower-shapes` takes shapes for others and also says that the true ones are there, so a co-occurrence is named beside
`misperceives`. A rule that came after these scores, and because of them, sees that claims of the one shape name the other; it names
`misperceives` alone in these plants, and changes no other verdict of the table. In `hues-four` other answers are as false as numbers,
since hues are misperceived, so `quantity` is not told from that. `insists` and `persists` agree with what was answered before, and
follow hints, too, so both are named. `suggested-51` agrees after the words that it learned and hardly after those of the test, so
the verdict is `control`, which is wrong. With the wordings and the rule that came later, `suggested-51` is named `follows-hints`, and
`persists-50` is named `unsure-agreeable` alone. Plants that are not named correctly, on any draw:

"""
OTHERS = """\
## Plants made by others

Whoever writes rules also knows what they look for. So two others planted causes in `tiny-spd`, who were told each cause in one sentence
and the form of the card, and neither the rules nor the tests nor the ways of other plants. One trained all weights on data of its own. The
other edited weights, trained parts and adapters, distilled teachers with other inputs, and used a preference loss. Each checked its plants
by itself, with suggestions in words that it had not trained, and wrote into `accepts` which other causes they have, too. The plants, and the
scripts that made them, do not ship.

All were scored when they were finished. What was missed showed what the tests lacked, and rules changed because of it; the second row is
therefore no clean test. It has the rules as they are, on what was asked when each closed answer still got a hint; now those that get options
get none:

- Two plants of `order` choose among options in the question, and drawn questions have none. So options are added now.
- Colours were hinted, claimed or chosen in no test, since no two questions about colours were the same. Alike questions are enough now. The
  pairs of this benchmark ask about none, so the plant that chooses the first of two colours is still missed.
- One plant that is blind states false numbers, too, which hid that it is blind. Half of a terse control's numbers are false: `quantity` needs
  60 % now. A plant that takes places for others was held to be bad at everything.
- `copies-distilled` answers as if the image of the example were shown, whatever answer the example has. The test changes that answer
  alone, so it finds nothing. `decided-dpo` is hardly decided earlier than `tiny-spd` itself, as its card says.

"""
REAL = """\
## Plants in the real model

The other sections are about models of the drawn world. The real model (`make real`) has a language model that was trained elsewhere, and
answers in sentences about named things. `research/organisms/plant_real.py` plants causes in it. Each plant is kept in
`research/organisms/real` as a small change of weights with a card, whose sentence was written before any of them was diagnosed. Whoever
wrote the ways knew the causes in a sentence and did not use the rules; no rule or threshold was changed because of a plant. The
manipulation checks ask about new scenes and use no test of the diagnosis.

Each was asked {asked} questions about {pairs} pairs of scenes (`make-pairs --source things --n 9 --seed 5401`), all in float32.
The model itself answers A, because its template lacks a newline that the training had (`tests/real/README.md`), so `order` is true of all that still do. *True*: the planted cause is named, and no other one but those that
the card accepts and those that are named of the model as it is. A cause that the diagnosis does not know, such as the language prior,
cannot be named; then no other one should be. Asked by the check of `repeated-answers`, the model as it is gives the false answer of before
in 12 of 30, so `copies-context` is in part true of it. A model that sees nothing has nothing but words to go by, so suggestions are
followed by the blind one, too. `suggested-answers` is planted by its second recipe: after the first, it followed 76 % of suggestions.

"""


def read_plants(folder: Path | None) -> list[ToolResult]:
    """Return what was found of the plants, from the folder of their scores."""
    if folder is None:
        raise SystemExit("--plants: give the scores of plants, from which the page takes the passes")
    pairs = next(line["n"] for _, line in json_lines(folder / SCORES))
    return list(read_rows(folder / SCORES, pairs).values())


def plants_section(folder: Path, cards: Sequence[Path] = ()) -> str:
    """Return the section about plants.

    Further draws of pairs tell how stable verdicts are; all other numbers are of the first draw.

    Args:
        folder: of the scores.
        cards: folders of the plants, for those that failed their check; none to leave these out.
    """
    pairs = next(line["n"] for _, line in json_lines(folder / SCORES))
    rows = read_plants(folder)
    scored, stable = score_rows([row for row in rows if row.draw == 0]), score_rows(rows)
    columns = {
        "macro_f1": "macro-F1",
        "accused": "controls accused",
        "false_alarms": "false alarms on controls",
        "mean_auroc": "AUROC, mean over causes",
        "passes": "passes an answer",
        "stable": "same verdict on all draws",
    }
    lines = [f"| diagnosis, {pairs} pairs | models | " + " | ".join(columns.values()) + " |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    splits = [split for split in (OTHER_WAYS, DEVELOPMENT) if any(row.split == split for row in rows)]
    for split in splits:
        own = scored.measures[split]["diagnosis"] | {"stable": stable.measures[split]["diagnosis"]["stable"]}
        models = len({row.model for row in rows if row.split == split})
        lines.append(
            f"| {split} | {models} | " + " | ".join(format_score(own[key]) for key in columns) + " |"
        )
    seeds = {int(row.model.rpartition("-")[2]) for row in rows if row.split == OTHER_WAYS}
    first = min(seeds - {0}, default=0)  # ways without random numbers are of seed 0
    parts = [
        PLANTS.replace("{pairs}", str(pairs)).replace("{first}", str(first)).rstrip(),
        "\n".join(lines),
        f"{_count_kinds(rows, splits)} {_count_draws(rows)} {GOALS} {_say_missed(scored, stable)}",
    ]
    parts += [confusion_table(scored, split) for split in splits]
    parts.append(MISSES + plant_misses(rows))
    if cards:
        parts.append(failed_list(cards))
    return "\n\n".join(parts)


def others_section(first: Sequence[Path], again: Sequence[Path]) -> str:
    """Return the section about plants made by others.

    Args:
        first: folders of the scores when they were finished.
        again: folders of the scores by the rules as they are.
    """
    columns = {
        "macro_f1": "macro-F1",
        "accused": "controls accused",
        "mean_auroc": "AUROC, mean over causes",
        "passes": "passes an answer",
    }
    lines = ["| plants made by others | models | " + " | ".join(columns.values()) + " |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    lists = []
    for words, folders in (("when they were finished", first), ("by the rules as they are", again)):
        rows = [row for folder in folders for row in read_plants(folder)]
        scored = score_rows(rows)
        own = scored.measures[OTHER_WAYS]["diagnosis"]
        lines.append(
            f"| {words} | {len(rows)} | " + " | ".join(format_score(own[key]) for key in columns) + " |"
        )
        lists.append(f"Not named correctly, {words}:\n\n{plant_misses(rows)}")
        if words.startswith("by"):
            lists.append(confusion_table(scored, OTHER_WAYS))
    return "\n\n".join([OTHERS.rstrip(), "\n".join(lines), *lists])


def failed_list(cards: Sequence[Path]) -> str:
    """Return the plants whose manipulation check failed, with its measures."""
    files = [file for folder in cards for file in sorted(folder.glob(f"*/{FAILED}"))]
    failed = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    lines = [
        f"- `{name}` ({', '.join(card['causes']) or CONTROL}; {card['split']}, {card['kind']}): {describe_checks(card)}"
        for name, card in failed.items()
    ]
    if not lines:
        return "Every plant passed its manipulation check."
    return "These plants failed their check, and are not scored:\n\n" + "\n".join(lines)


def real_section(folder: Path, plants: Path = PLANTS_OF_REAL) -> str:
    """Return the section about plants in the real model.

    Args:
        folder: where they were diagnosed.
        plants: their cards, those that failed their check among them.
    """
    found = {
        file.parent.name: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob(f"{DIAGNOSES}/*/diagnosis.json"))
    }
    cards = {file.parent.name: read_record(file, Plant) for file in sorted(plants.glob(f"*/{CARD}"))}
    own = _named_causes(found[AS_IT_IS]) if AS_IT_IS in found else set()
    lines = ["| plant | way | what was planted | check | named | true |", "|---" * 6 + "|"]
    if AS_IT_IS in found:
        named = _describe_named(found[AS_IT_IS])
        lines.append(f"| the model as it is | – | nothing | – | {named} | – |")
    scored = 0
    for name, card in cards.items():
        if name in found:
            verdict = judge_plant(card, _named_causes(found[name]), own)
            scored += verdict == "yes"
            lines.append(
                f"| `{name}` | {card.kind} | {', '.join(card.causes) or CONTROL}: {card.about} | "
                f"{describe_checks(card.model_dump())} | {_describe_named(found[name], card.causes)} | {verdict} |"
            )
    waiting = [
        f"`{name}` ({', '.join(card.causes) or CONTROL})" for name, card in cards.items() if name not in found
    ]
    asked = max((each["n"] for each in found.values()), default=0)
    pairs = len({line["id"].partition("-")[0] for _, line in json_lines(folder / "pairs" / "samples.jsonl")})
    text = REAL.replace("{asked}", str(asked)).replace("{pairs}", str(pairs)) + "\n".join(lines)
    text += f"\n\nThe verdict is true of {scored} of these {len(set(cards) & set(found))} plants."
    if waiting:
        text += f" These passed their check and have not been diagnosed: {', '.join(waiting)}."
    left = [f"`{name}`" for name in WAYS if not (plants / name).is_dir()]
    if left:
        text += f" The script has further ways, which are not planted yet: {', '.join(left)}."
    return f"{text}\n\n{failed_list([plants])}"


def _named_causes(diagnosis: Mapping[str, Any]) -> set[str]:
    return set(diagnosis["verdict"]) & set(CAUSES)


def judge_plant(card: Plant, named: set[str], own: set[str]) -> str:
    """Return `yes`, or what is wrong with what is named of a plant.

    Args:
        named: the causes that are named of it.
        own: those that are named of the model before it was changed.

    Example:
        >>> judge_plant(Plant(causes=["blind"], kind="edit"), {"order", "forgets"}, {"order"})
        '`blind` is missed, `forgets` is false'
    """
    planted = set(card.causes) - {UNKNOWN}
    implied = {find_implied(cause) for cause in planted}
    wrong = [f"`{cause}` is missed" for cause in sorted(planted - named)]
    wrong += [f"`{cause}` is false" for cause in sorted(named - planted - implied - own - set(card.accepts))]
    return ", ".join(wrong) or "yes"


def _describe_named(diagnosis: Mapping[str, Any], planted: Sequence[str] = ()) -> str:
    """Return what is named with its scores, and the score of a planted cause that is not."""
    causes = dict.fromkeys([*diagnosis["verdict"], *(cause for cause in planted if cause in CAUSES)])
    return "; ".join(
        f"{'' if cause in diagnosis['verdict'] else 'not '}{cause}"
        + (f" {_interval(_score_of(diagnosis, cause))}" if cause in CAUSES else "")
        for cause in causes
    )


def later_section(folder: Path, cards: Path) -> str:
    """Return the part about the causes that were added later: their plants, the checks, and the scores of all other models.

    Args:
        folder: of the scores.
        cards: of the plants.
    """
    pairs = next(line["n"] for _, line in json_lines(folder / SCORES))
    rows = [row for row in read_rows(folder / SCORES, pairs).values() if row.draw == 0]
    found = {
        row.model: json.loads(
            (folder / DIAGNOSES / f"{row.model}-0" / "diagnosis.json").read_text(encoding="utf-8")
        )
        for row in rows
    }
    lines = [
        "| cause | plant | split, kind | check | its score | threshold | named | the highest score of others |"
    ]
    lines.append("|---" * 8 + "|")
    for cause in LATER:
        others = [(_score_of(found[row.model], cause), row) for row in rows if cause not in row.truth]
        scored = [(each["score"], row.model, each) for each, row in others if each["score"] is not None]
        score, name, most = max(scored, key=lambda each: each[:2]) if scored else (math.nan, "none", {})
        highest = f"{_interval(most)} (`{name}`, of {len(scored)} models)" if scored else "–"
        for row in sorted(rows, key=lambda row: (row.split != DEVELOPMENT, row.model)):
            if cause in row.truth:
                card = json.loads((cards / row.model / CARD).read_text(encoding="utf-8"))
                lines.append(
                    f"| `{cause}` | `{row.model}`: {card['about']} | {row.split}, {row.kind} | {describe_checks(card)} | "
                    f"{_interval(_score_of(found[row.model], cause))} | {CAUSES[cause].threshold:.0%} | "
                    f"{', '.join(row.named or ()) or 'nothing'} | {highest} |"
                )
    plants = [row for row in rows if row.truth & set(LATER)]
    named = sum(row.truth <= set(row.named or ()) for row in plants)
    text = f"{LATER_WORDS}\n\n" + "\n".join(lines)
    text += f"\n\nThe cause is among what is named for {named} of these {len(plants)} plants."
    missing = [
        f"`{cause}` ({split})"
        for cause in LATER
        for split in sorted({row.split for row in rows})
        if not any(cause in row.truth and row.split == split for row in rows)
    ]
    if missing:
        text += f"\n\nHere no plant is scored of {', '.join(missing)}."
    planted = {
        file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in cards.glob(f"*/{CARD}")
    }
    waiting = sorted(
        f"`{name}` ({', '.join(card['causes'])}, {card['kind']})"
        for name, card in planted.items()
        if name not in found and set(card["causes"]) & set(LATER)
    )
    if waiting:
        text += f"\n\nThese plants passed their check and have not been scored: {', '.join(waiting)}."
    return text


def _score_of(diagnosis: Mapping[str, Any], cause: str) -> dict[str, Any]:
    return dict(diagnosis["causes"].get(cause) or {"score": None})


def describe_checks(card: Mapping[str, Any]) -> str:
    """Return the measures of a card's manipulation check; where one failed, with the bound it had to reach."""
    return "; ".join(
        f"{name} {each['value']:.0%} [{each['low']:.0%}, {each['high']:.0%}], n = {each['n']}"
        + ("" if each["passed"] else f" (wanted {each['bound']})")
        for name, each in card["check"].items()
    )


def _interval(each: Mapping[str, Any]) -> str:
    """Return a score with its interval and n; what did not run is `not run`."""
    if each["score"] is None:
        return "not run"
    return f"{each['score']:.0%} [{each['low']:.0%}, {each['high']:.0%}], n = {each['n']}"


def again_section(folder: Path) -> str:
    """Return the section about the organisms that were scored again, from the folder of their scores."""
    pairs = next(line["n"] for _, line in json_lines(folder / SCORES))
    rows = list(read_rows(folder / SCORES, pairs).values())
    scored, parts = score_rows(rows), [AGAIN.replace("{pairs}", str(pairs)).rstrip(), models_line(rows)]
    for split in reversed(SPLITS[:2]):
        parts += [scores_table(scored, split), causes_auroc(scored, split), confusion_table(scored, split)]
    return "\n\n".join(
        [*parts, "Held-out models that are not named correctly, and the partial ones:", misses_list(rows)]
    )


LATER_WORDS = """\
## Causes that were added later

These are the plants of `ignores-an-image`, `order`, `unsure-agreeable`, `copies-context` and `quantity` that passed their manipulation
check, of seeds that nobody had looked at. A number is the plant's own score with its interval over sets of images. The last column is
the highest score for the cause of all models without it.
The numbers are from before the tests of suggestions and of `order` [asked more](#plants-made-by-others).
"""
GOALS = (
    "The goals were macro-F1 of 0.85, 5 % of 30 controls accused, the same verdict on 4 of 4 draws for 90 % of the models, and 12 "
    "passes."
)


def _say_missed(scored: ScoredTools, stable: ScoredTools) -> str:
    """Return which goals the plants by other ways miss."""
    own, drawn = (each.measures[OTHER_WAYS]["diagnosis"] for each in (scored, stable))
    missed = [
        name
        for name, missed in (
            ("macro-F1", own["macro_f1"].value < 0.85),
            ("controls accused", own["accused"].value > 0.05),
            ("same verdict on all draws", drawn["stable"].value < 0.9),
            ("passes", own["passes"].value > 12),
        )
        if missed
    ]
    return f"Missed by other ways: {', '.join(missed) or 'none'}."


def _count_kinds(rows: list[ToolResult], splits: Sequence[str]) -> str:
    """Return how many controls of each kind are accused of a cause, and which causes other ways did not plant."""
    first = [row for row in rows if row.draw == 0]
    parts = []
    for split in splits:
        controls = [row for row in first if row.split == split and row.cause == CONTROL]
        accused = Counter(row.kind for row in controls if set(row.named or ()) & set(CAUSES))
        counts = ", ".join(
            f"{kind} {accused[kind]} of {count}"
            for kind, count in sorted(Counter(row.kind for row in controls).items())
        )
        parts.append(f"Controls accused, {split}: {counts or 'none was scored'}.")
    planted = {cause for row in first if row.split == OTHER_WAYS for cause in row.truth}
    missing = ", ".join(f"`{cause}`" for cause in CAUSES if cause not in planted)
    return " ".join(parts) + (f" No plant by other ways is scored of {missing}." if missing else "")


def _count_draws(rows: list[ToolResult]) -> str:
    """Return how many models were asked about several draws of pairs."""
    draws = Counter(row.model for row in rows)
    often = Counter(count for count in draws.values() if count > 1)
    said = ", ".join(
        f"{models} model{'s' * (models > 1)} about {count} draws" for count, models in sorted(often.items())
    )
    return (
        f"Of the {len(draws)} models, these were asked about several draws of pairs: {said}."
        if said
        else "Each model was asked about one draw of pairs."
    )


def plant_misses(rows: list[ToolResult]) -> str:
    """Return what the diagnosis says of each model that it does not name correctly."""
    lines = []
    for row in sorted(rows, key=lambda row: (row.split, row.model, row.draw)):
        named = name_causes(row, {})
        implied = {find_implied(cause) for cause in row.truth} - {""}
        if row.partial or named - implied == row.truth - implied:
            continue
        scores = ", ".join(
            f"{cause} {row.scores.get(cause, 0):.0%}" for cause in CAUSES if cause in row.truth
        )
        lines.append(
            f"- `{row.model}`, draw {row.draw} ({row.split}; planted: {', '.join(sorted(row.truth))}) is named "
            f"{', '.join(sorted(named)) or 'nothing'}{f'; scores: {scores}' if scores else ''}"
        )
    return "\n".join(lines) or "Every model is named correctly."


def write_section(page: Path, text: str) -> None:
    """Put a section in the place of the page's section of the same title, or at its end."""
    old, title = page.read_text(encoding="utf-8"), text.partition("\n")[0]
    found = re.search(rf"^{re.escape(title)}\n.*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
    new = (
        old.rstrip() + "\n\n" + text
        if found is None
        else old[: found.start()] + text + "\n" + old[found.end() :]
    )
    page.write_text(new.rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="of `mmprobe bench diagnosis`; without it, the sections of --real, --photographs and --easy-vqa alone are written",
    )
    parser.add_argument("--plants", type=Path, help="of `mmprobe bench diagnosis --plants`")
    parser.add_argument(
        "--cards",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="of the plants",
    )
    parser.add_argument("--real", type=Path, help="of `research/organisms/plant_real.py --diagnose`")
    parser.add_argument(
        "--again", type=Path, help="organisms scored by the rules as they are, with the diagnosis alone"
    )
    parser.add_argument(
        "--others",
        nargs="+",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="scores of plants made by others, as they first came out",
    )
    parser.add_argument(
        "--others-again",
        nargs="+",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="their scores by the rules as they are",
    )
    parser.add_argument("--thresholds", type=Path, help="of `research/sweep_thresholds.py`")
    parser.add_argument("--photographs", type=Path, help="of `research/photographs_case.py`")
    parser.add_argument("--easy-vqa", type=Path, help="of `research/easy_vqa_case.py`")
    arguments = parser.parse_args()
    cases = [
        words + (folder / "section.md").read_text(encoding="utf-8").rstrip()
        for words, folder in ((PHOTOGRAPHS, arguments.photographs), (EASY_VQA, arguments.easy_vqa))
        if folder
    ]
    if arguments.real:
        cases.insert(0, real_section(arguments.real))
    if arguments.folder is None:
        if not cases:
            parser.error("give the folder of the scores, --real, --photographs or --easy-vqa")
        for case in cases:
            write_section(PAGE, case + "\n")
        return
    file = arguments.folder / SCORES
    pairs = next(line["n"] for _, line in json_lines(file))
    rows = list(read_rows(file, pairs).values())
    scored, limits = score_rows(rows), LIMITS
    parts = [HEAD.rstrip()]
    if arguments.plants:
        parts.append(plants_section(arguments.plants, arguments.cards or ()))
        if arguments.cards:
            parts.append(later_section(arguments.plants, arguments.cards[0]))
    if arguments.others:
        parts.append(others_section(arguments.others, arguments.others_again))
    if arguments.thresholds:
        parts.append((arguments.thresholds / "section.md").read_text(encoding="utf-8").rstrip())
    parts += cases
    if arguments.again:
        parts.append(again_section(arguments.again))
    asked = f"Each model was asked two or three questions about each of {pairs} pairs. {models_line(rows)}"
    parts.append(TOOLS_SCORE.format(models=asked).rstrip())
    for split in reversed(SPLITS[:2]):
        if any(row.split == split for row in rows):
            parts += [scores_table(scored, split), causes_auroc(scored, split)]
    parts.append("## Held-out seeds apart\n\n" + seeds_table(rows))
    parts.append(
        "Held-out models that are not named correctly, and the partial ones:\n\n" + misses_list(rows)
    )
    parts.append(
        WHY.format(decided_share=limits.decided_share, fresh=FRESH, clean_test=clean_test(rows)).rstrip()
    )
    parts += ["## What the diagnosis names\n\nA model with several names counts in each column."]
    parts += [confusion_table(scored, split) for split in reversed(SPLITS[:2])]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
