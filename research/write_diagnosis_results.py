"""Fill docs/diagnosis-results.md, and the record in research/results/diagnosis.md, from scores of `mmprobe bench diagnosis`.

python -m mmprobe bench diagnosis --n 24 --out build/tools                        # the models of `make organisms`
python research/organisms/plant.py --seeds 5 --out build/fresh-organisms           # and new ones
python -m mmprobe bench diagnosis --n 24 --out build/tools --tools diagnosis --models build/fresh-organisms/blind-rolled-5,...
python research/organisms/plant_otherwise.py --split "other ways" --first-seed 50 --out build/plants-fresh   # and plants by other ways
python -m mmprobe make-pairs --n 24 --seed 1370000 --out build/fresh/pairs/other-ways-24          # about pairs that no rule was tried on
python -m mmprobe bench diagnosis --n 24 --out build/fresh --tools diagnosis --plants build/plants-fresh  # --draws 4 tells how stable
python research/photographs_case.py build/photographs --plants build/plants-dev/said-colours-0    # needs scikit-image; its own text has the whole
python -m mmprobe bench diagnosis --n 24 --out build/again --tools diagnosis        # --again: 94 organisms, 25 s of one core each
python research/sweep_thresholds.py build/again build/dev --plants build/plants        # fills its part; its own text has the whole
python research/easy_vqa_case.py build/easy-vqa                                    # needs easy-vqa; half an hour of one core
python research/write_diagnosis_results.py build/tools --plants build/fresh --cards build/plants-fresh --photographs build/photographs \\
  --easy-vqa build/easy-vqa
python research/write_diagnosis_results.py --easy-vqa build/easy-vqa                   # these parts alone, as with --photographs and --real
python research/organisms/plant_real.py --diagnose build/plants-real                  # its own text has the whole
python research/write_diagnosis_results.py --real build/plants-real                   # and the folders of further draws of pairs

Further draws of the fresh pairs, `other-ways-24-draw-1` to `-draw-3`, have the seeds 1371000 to 1373000, those of the real model's 5402 to 5404.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from page import PageParts, fill_pages
from plant_real import WAYS
from write_control_ranges import KNOWN

from mmprobe.diagnosis.battery.decided_first import DecidedFirst
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
from mmprobe.diagnosis.rules import CONTROL, UNKNOWN
from mmprobe.files import json_lines, read_record
from mmprobe.notebook import markdown_table
from mmprobe.stats.estimate import Estimate

HELD_OUT = (3, 4)
FRESH = 5  # the seed of models that were planted after all rules and thresholds were fixed; they do not ship
LATER = ("ignores-an-image", "order", "unsure-agreeable", "copies-context", "quantity")
FAILED = "failed.json"  # in place of the card of a plant whose check failed
PLANTS_OF_REAL = Path(__file__).parent / "organisms" / "real"
AS_IT_IS = "as-it-is"  # the real model's diagnosis, among those of its plants
RESULTS = "docs/diagnosis-results.md"
RECORD = "research/results/diagnosis.md"
Pages = dict[str, PageParts]
COLUMNS = {
    "macro_f1": "macro-F1", "false_alarms": "false alarms on controls", "mean_auroc": "AUROC, mean over causes",
    "auroc_answers": "AUROC of answers", "passes": "passes an answer",
}  # fmt: skip


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
    rows = ([name, *format_scores(own, COLUMNS)] for name, own in scored.measures[split].items())
    return markdown_table([f"tool, {split}", *COLUMNS.values()], rows)


def format_scores(measures: Mapping[str, Estimate[float]], names: Iterable[str]) -> list[str]:
    """Return the cells of some scores."""
    return [format_score(measures[name]) for name in names]


def causes_auroc(scored: ScoredTools, split: str) -> str:
    """Return a table of the AUROC of each cause against control, by tool."""
    names = [f"auroc {cause}" for cause in CAUSES]
    rows = ([name, *format_scores(own, names)] for name, own in scored.measures[split].items())
    return markdown_table([f"AUROC, {split}", *CAUSES], rows)


def seeds_table(rows: list[ToolResult]) -> str:
    """Return the scores of the diagnosis for each held-out seed alone."""
    own = [row for row in rows if row.tool == "diagnosis"]
    development = [row for row in own if row.split == DEVELOPMENT]
    seeds = []
    for seed in (*HELD_OUT, FRESH):
        chosen = [row for row in own if row.model.endswith(f"-{seed}")]
        if chosen:
            found = score_tool([*development, *chosen])
            seeds.append([f"seed {seed}", *format_scores(found, COLUMNS)])
    return markdown_table(["diagnosis", *COLUMNS.values()], seeds)


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
    confusion = scored.confusions[split].get("diagnosis", {})
    if not confusion:
        return f"No {split} model is scored yet."
    names = [*CAUSES, CONTROL, UNKNOWN]
    columns = [name for name in names if any(name in counts for counts in confusion.values())]
    planted = sorted(confusion, key=lambda name: names.index(name.split(" + ")[0]))
    rows = ([cause, *(confusion[cause].get(name, "") for name in columns)] for cause in planted)
    return markdown_table([f"planted, {split}", *columns], rows)


def read_plants(folder: Path | None) -> list[ToolResult]:
    """Return what was found of the plants, from the folder of their scores."""
    if folder is None:
        raise SystemExit("--plants: give the scores of plants, from which the page takes the passes")
    pairs = next(line["n"] for _, line in json_lines(folder / SCORES))
    return list(read_rows(folder / SCORES, pairs).values())


def plants_parts(folder: Path, cards: Sequence[Path] = ()) -> Pages:
    """Return the parts about plants.

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
    lines = []
    splits = [split for split in (OTHER_WAYS, DEVELOPMENT) if any(row.split == split for row in rows)]
    for split in splits:
        own = scored.measures[split]["diagnosis"] | {"stable": stable.measures[split]["diagnosis"]["stable"]}
        models = len({row.model for row in rows if row.split == split})
        lines.append([split, models, *format_scores(own, columns)])
    seeds = {int(row.model.rpartition("-")[2]) for row in rows if row.split == OTHER_WAYS}
    record = {
        "plants-pairs": pairs,
        "plants-seed": min(seeds - {0}, default=0),  # ways without random numbers are of seed 0
        "plants-confusion": "\n\n".join(confusion_table(scored, split) for split in splits),
        "plants-misses": plant_misses(rows),
    }
    if cards:
        record["plants-failed"] = failed_list(cards)
    results = {
        "plants-table": markdown_table([f"diagnosis, {pairs} pairs", "models", *columns.values()], lines),
        "plants-kinds": _count_kinds(rows, splits),
        "plants-draws": _count_draws(rows),
        "plants-goals": _say_missed(scored, stable),
    }
    return {RESULTS: results, RECORD: record}


def others_parts(first: Sequence[Path], again: Sequence[Path]) -> Pages:
    """Return the parts about plants made by others.

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
    lines, record = [], {}
    for name, words, folders in (
        ("first", "when they were finished", first),
        ("again", "by the rules as they are", again),
    ):
        rows = [row for folder in folders for row in read_plants(folder)]
        scored = score_rows(rows)
        own = scored.measures[OTHER_WAYS]["diagnosis"]
        lines.append([words, len(rows), *format_scores(own, columns)])
        record[f"others-{name}"] = plant_misses(rows)
        record["others-confusion"] = confusion_table(scored, OTHER_WAYS)
    scores = markdown_table(["plants made by others", "models", *columns.values()], lines)
    return {RESULTS: {"others-table": scores}, RECORD: record}


def failed_list(cards: Sequence[Path]) -> str:
    """Return the plants whose manipulation check failed, with its measures."""
    files = [file for folder in cards for file in sorted(folder.glob(f"*/{FAILED}"))]
    failed = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    lines = [
        f"- `{name}` ({', '.join(card['causes']) or CONTROL}; {card['split']}, {card['kind']}): {describe_checks(card)}"
        for name, card in failed.items()
    ]
    return "\n".join(lines) or "None."


def real_parts(folder: Path, plants: Path = PLANTS_OF_REAL, further: Sequence[Path] = ()) -> Pages:
    """Return the parts about plants in the real model.

    Args:
        folder: where they were diagnosed.
        plants: their cards, those that failed their check among them.
        further: where some were diagnosed about other draws of pairs.
    """
    found = _read_diagnoses(folder)
    cards = {file.parent.name: read_record(file, Plant) for file in sorted(plants.glob(f"*/{CARD}"))}
    own = set(KNOWN) | (_named_causes(found[AS_IT_IS]) if AS_IT_IS in found else set())
    rows = []
    if AS_IT_IS in found:
        named = _describe_named(found[AS_IT_IS])
        rows.append(("the model as it is", "–", "nothing", "–", named, "–"))
    scored = 0
    for name, card in cards.items():
        if name in found:
            verdict = judge_plant(card, _named_causes(found[name]), own)
            scored += verdict == "yes"
            planted = f"{', '.join(card.causes) or CONTROL}: {card.about}"
            checks = describe_checks(card.model_dump())
            said_of = _describe_named(found[name], card.causes)
            rows.append((f"`{name}`", card.kind, planted, checks, said_of, verdict))
    waiting = [
        f"`{name}` ({', '.join(card.causes) or CONTROL})" for name, card in cards.items() if name not in found
    ]
    asked = max((each["n"] for each in found.values()), default=0)
    pairs = len({line["id"].partition("-")[0] for _, line in json_lines(folder / "pairs" / "samples.jsonl")})
    diagnosed = {name: (card, _named_causes(found[name])) for name, card in cards.items() if name in found}
    accused = [
        name
        for name, (card, named) in diagnosed.items()
        if not card.causes and named - own - set(card.accepts)
    ]
    controls = [name for name, (card, _) in diagnosed.items() if not card.causes]
    f1 = measure_f1(list(diagnosed.values()), own)
    said = f"The verdict is true of {scored} of these {len(diagnosed)} plants; {len(accused)} of {len(controls)} control plants accused"
    said += "." if math.isnan(f1) else f"; macro-F1 over the planted causes {f1:.2f}."
    if waiting:
        said += f" These passed their check and have not been diagnosed: {', '.join(waiting)}."
    left = [f"`{name}`" for name in WAYS if not (plants / name).is_dir()]
    if left:
        said += f" The script has further ways, which are not planted yet: {', '.join(left)}."
    parts = {"real-asked": asked, "real-pairs": pairs, "real-verdict": said}
    parts["real-table"] = markdown_table(["plant", "way", "what was planted", "check", "named", "true"], rows)
    parts["real-effects"] = effects_table({name: found[name] for name in (AS_IT_IS, *cards) if name in found})
    if further:
        draws = [found, *map(_read_diagnoses, further)]
        parts["real-draws"] = draws_table({name: cards.get(name) for name in (AS_IT_IS, *cards)}, draws, own)
    passes = [
        each["forward_passes_per_answer"] for each in found.values() if "forward_passes_per_answer" in each
    ]
    parts["real-passes"] = (
        " to ".join(dict.fromkeys(f"{each(passes):.1f}" for each in (min, max))) if passes else "no"
    )
    return {RESULTS: parts, RECORD: {"real-failed": failed_list([plants])}}


def _read_diagnoses(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the diagnoses in a folder by the name of the model."""
    return {
        file.parent.name: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob(f"{DIAGNOSES}/*/diagnosis.json"))
    }


def draws_table(
    cards: Mapping[str, Plant | None], draws: Sequence[Mapping[str, Mapping[str, Any]]], own: set[str]
) -> str:
    """Return what is named of each model that was diagnosed about several draws of pairs, and for how many it is always the same.

    Args:
        cards: by the name of the model; None for one without a plant.
        draws: diagnoses by the name of the model, of each draw.
        own: as in `judge_plant`.
    """
    rows, stable = [], 0
    for name, card in cards.items():
        verdicts = [frozenset(draw[name]["verdict"]) for draw in draws if name in draw]
        count = len(verdicts)
        if count < 2:
            continue
        often = Counter(verdicts).most_common(1)[0][1]
        stable += often == count
        true = "–"
        if card is not None:
            right = sum(judge_plant(card, set(each) & set(CAUSES), own) == "yes" for each in verdicts)
            true = f"{right} of {count}"
        named = Counter(cause for verdict in verdicts for cause in sorted(verdict))
        words = ", ".join(f"{cause} {times}" for cause, times in named.most_common())
        rows.append((f"`{name}`", words, f"{often} of {count}", true))
    table = markdown_table(["plant", "named, on how many draws", "same verdict", "true"], rows)
    said = f"The verdict is the same on all draws for {stable} of these {len(rows)} models"
    whole = sum(row[2].endswith(f"of {len(draws)}") for row in rows)
    return f"{table}\n\n{said}. {whole} of them were diagnosed on all {len(draws)} draws."


def measure_f1(diagnosed: Collection[tuple[Plant, set[str]]], own: set[str]) -> float:
    """Return the mean of F1 over the causes that were planted and the diagnosis knows; NaN without one.

    Args:
        diagnosed: cards with the causes that were named. What a card accepts is neither right nor wrong.
        own: as in `judge_plant`; neither right nor wrong.

    Example:
        >>> cards = [Plant(causes=causes, kind="edit") for causes in (["blind"], ["order"], [])]
        >>> measure_f1(list(zip(cards, [{"blind"}, {"blind"}, set()])), set())
        0.3333333333333333
    """
    scores = []
    for cause in sorted({cause for card, _ in diagnosed for cause in card.causes} & set(CAUSES)):
        right = sum(cause in card.causes and cause in named for card, named in diagnosed)
        missed = sum(cause in card.causes and cause not in named for card, named in diagnosed)
        false = sum(
            cause
            in named
            - own
            - set(card.causes)
            - set(card.accepts)
            - {find_implied(each) for each in card.causes}
            for card, named in diagnosed
        )
        scores.append(2 * right / (2 * right + missed + false))
    return sum(scores) / len(scores) if scores else math.nan


def _named_causes(diagnosis: Mapping[str, Any]) -> set[str]:
    return set(diagnosis["verdict"]) & set(CAUSES)


def effects_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the effects of all questions: a row for each test, a column for each model; bold where it is named.

    Args:
        found: diagnoses by the name of the model.
    """
    effects: dict[str, dict[str, str]] = {}
    for name, diagnosis in found.items():
        for row in diagnosis.get("effects", ()):
            if row["kind"] is None and row["low"] is not None and row["n"]:
                percent = (f"{100 * row[key]:.0f}" for key in ("value", "low", "high"))
                words = "{} [{}, {}] ({})".format(*percent, row["n"])
                named = row["test"] in diagnosis["verdict"]
                effects.setdefault(row["test"], {})[name] = f"**{words}**" if named else words
    rows = ([f"`{test}`", *(own.get(name, "–") for name in found)] for test, own in effects.items())
    return markdown_table(["test", *(f"`{name}`" for name in found)], rows)


def judge_plant(card: Plant, named: set[str], own: set[str]) -> str:
    """Return `yes`, or what is wrong with what is named of a plant.

    Args:
        named: the causes that are named of it.
        own: those that the model has before it is changed: named of it, or found by checks outside the diagnosis.

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


def later_parts(folder: Path, cards: Path) -> Pages:
    """Return the parts about the causes that were added later: their plants, the checks, and the scores of all other models.

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
    lines = []
    for cause in LATER:
        others = [(_score_of(found[row.model], cause), row) for row in rows if cause not in row.truth]
        scored = [(each["score"], row.model, each) for each, row in others if each["score"] is not None]
        score, name, most = max(scored, key=lambda each: each[:2]) if scored else (math.nan, "none", {})
        highest = f"{_interval(most)} (`{name}`, of {len(scored)} models)" if scored else "–"
        for row in sorted(rows, key=lambda row: (row.split != DEVELOPMENT, row.model)):
            if cause in row.truth:
                card = json.loads((cards / row.model / CARD).read_text(encoding="utf-8"))
                about, own = f"`{row.model}`: {card['about']}", _interval(_score_of(found[row.model], cause))
                named, threshold = ", ".join(row.named or ()) or "nothing", f"{CAUSES[cause].threshold:.0%}"
                kind = f"{row.split}, {row.kind}"
                lines.append(
                    (f"`{cause}`", about, kind, describe_checks(card), own, threshold, named, highest)
                )
    plants = [row for row in rows if row.truth & set(LATER)]
    named = sum(row.truth <= set(row.named or ()) for row in plants)
    text = f"The cause is among what is named for {named} of these {len(plants)} plants."
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
    return {RECORD: {"later-table": "\n".join(lines), "later-counts": text}}


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


def again_parts(folder: Path) -> Pages:
    """Return the parts about the organisms that were scored again, from the folder of their scores."""
    pairs = next(line["n"] for _, line in json_lines(folder / SCORES))
    rows = list(read_rows(folder / SCORES, pairs).values())
    scored = score_rows(rows)
    tables = [
        table
        for split in reversed(SPLITS[:2])
        for table in (
            scores_table(scored, split),
            causes_auroc(scored, split),
            confusion_table(scored, split),
        )
    ]
    parts = {
        "again-pairs": pairs,
        "again-models": models_line(rows),
        "again-tables": "\n\n".join(tables),
        "again-misses": misses_list(rows),
    }
    return {RECORD: parts}


def tools_parts(folder: Path) -> Pages:
    """Return the parts about how tools score."""
    pairs = next(line["n"] for _, line in json_lines(folder / SCORES))
    rows = list(read_rows(folder / SCORES, pairs).values())
    scored = score_rows(rows)
    held_out, development = SPLITS[1], SPLITS[0]
    tables = [causes_auroc(scored, held_out)]
    if any(row.split == development for row in rows):
        tables += [scores_table(scored, development), causes_auroc(scored, development)]
    record = {
        "tools-tables": "\n\n".join(tables),
        "seeds-table": seeds_table(rows),
        "seeds-misses": misses_list(rows),
        "decided-share": f"{DecidedFirst().decided_share:.0%}",
        "fresh-seed": FRESH,
        "clean-test": clean_test(rows),
        "named-tables": "\n\n".join(confusion_table(scored, split) for split in reversed(SPLITS[:2])),
    }
    results = {
        "tools-pairs": pairs,
        "tools-models": models_line(rows),
        "tools-table": scores_table(scored, held_out),
    }
    return {RESULTS: results, RECORD: record}


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


def read_section(folder: Path) -> str:
    """Return what a case wrote into its folder, without a title."""
    text = (folder / "section.md").read_text(encoding="utf-8").strip()
    return text.partition("\n")[2].strip() if text.startswith("## ") else text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="of `mmprobe bench diagnosis`; without it, only the parts of the other options are written",
    )
    parser.add_argument("--plants", type=Path, help="of `mmprobe bench diagnosis --plants`")
    parser.add_argument(
        "--cards",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="of the plants",
    )
    parser.add_argument(
        "--real",
        nargs="+",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="of `research/organisms/plant_real.py --diagnose`, and those of further draws of pairs",
    )
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
    parser.add_argument("--photographs", type=Path, help="of `research/photographs_case.py`")
    parser.add_argument("--easy-vqa", type=Path, help="of `research/easy_vqa_case.py`")
    arguments = parser.parse_args()
    made: list[Pages] = [
        {RECORD: {name: read_section(folder)}}
        for name, folder in (
            ("photographs", arguments.photographs),
            ("easy-vqa", arguments.easy_vqa),
        )
        if folder
    ]
    if arguments.real:
        made.append(real_parts(arguments.real[0], further=arguments.real[1:]))
    if arguments.plants:
        made.append(plants_parts(arguments.plants, arguments.cards or ()))
        if arguments.cards:
            made.append(later_parts(arguments.plants, arguments.cards[0]))
    if arguments.others:
        made.append(others_parts(arguments.others, arguments.others_again))
    if arguments.again:
        made.append(again_parts(arguments.again))
    if arguments.folder:
        made.append(tools_parts(arguments.folder))
    if not made:
        parser.error("give a folder of scores or of a case")
    for pages in made:
        fill_pages(pages)


if __name__ == "__main__":
    main()
