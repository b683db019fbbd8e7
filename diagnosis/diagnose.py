"""From a model and samples to named causes: run the tests, apply the rules, write the results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.benchmarks.judges.judge import LEXICAL, describe_unscored, open_judge
from mmprobe.diagnosis.battery.judged import count_labels
from mmprobe.diagnosis.battery.run import ANSWERS, KEPT, MAX_NEW_TOKENS, find_unread, run_battery
from mmprobe.diagnosis.causes import CAUSES, measure_causes
from mmprobe.diagnosis.effects import Effect, Loss, Table, load_thresholds
from mmprobe.diagnosis.rules import Named, find_verdict, name_causes
from mmprobe.errors import InputError, NotApplicable, option
from mmprobe.files import redact, write_whole
from mmprobe.ledger import Ledger, fingerprint, hash_questions, lock_folder
from mmprobe.models import Model
from mmprobe.probes import ObjectsTold, tell_objects
from mmprobe.samples import Sample
from mmprobe.stats.estimate import format_number
from mmprobe.traces.asking import GivenAnswers, digest, read_given_answers

SETTINGS = "settings.json"
RESULTS = ("diagnosis.json", "answers.jsonl", "report.html")


class Diagnosis(NamedTuple):
    """What was found about a model.

    Attributes:
        model: its name.
        causes: by cause its score, interval and evidence, and whether it is named.
        verdict: the named causes; `control` if every test ran and found none; else `unknown`.
        why: the verdict in a sentence, with what is in doubt and what was not tested.
        n: number of answers that were tested.
        answers: one record an answer: id, causes (those of the verdict that act on it), scores of all causes.
        tests: every test, with its number or what it would need.
        passes: forward passes an answer, mean. To generate an answer counts as one.
        wordless: ids of the answers that hold no word. They are not tested.
        unread: by id, why no given answer can be read. These samples are not tested.
        objects: where `blind` is named or in doubt, how well visual tokens tell the objects of other images apart; in
            words why that was not tested.
        judge: who read what rules could not; `lexical` if nobody did.
        judging: what a judge was asked about: the number of `answers`, of `judged` items (whether one is true, which objects it
            names), and of those left `unscored`, by reason.
    """

    model: str
    causes: dict[str, Named]
    verdict: list[str]
    why: str
    n: int
    answers: list[dict[str, Any]]
    tests: list[str]
    passes: float
    wordless: list[str]
    unread: Mapping[str, str] = MappingProxyType({})
    objects: ObjectsTold | str = "the answers use the images"
    judge: str = LEXICAL
    judging: Mapping[str, Any] = MappingProxyType({})

    def to_json(self) -> dict[str, Any]:
        """Return the content of `diagnosis.json`. What was not tested is null; `named` is also null where the test cannot decide."""
        return {
            "model": self.model,
            "causes": {cause: _cause_to_json(each) for cause, each in self.causes.items()},
            "verdict": self.verdict,
            "why": self.why,
            "n": self.n,
            "wordless": self.wordless,
            "unread": dict(self.unread),
            **({} if self.judge == LEXICAL else {"judge": self.judge, "judging": dict(self.judging)}),
            "objects_in_visual_tokens": {"needs": self.objects}
            if isinstance(self.objects, str)
            else {**self.objects.auc.to_json(), "layer": self.objects.layer},
            "tests": self.tests,
            "forward_passes_per_answer": round(self.passes, 2),
        }

    def to_dataset(self) -> xr.Dataset:
        """Return the scores [cause] with `low`, `high`, `n`, `named` and `threshold`, for the figure."""
        out = xr.Dataset(coords={"cause": list(self.causes)})
        effects = [each.effect for each in self.causes.values()]
        for name in ("value", "low", "high", "n"):
            out["score" if name == "value" else name] = (
                "cause",
                np.array([getattr(effect, name) for effect in effects], float),
            )
        out["threshold"] = ("cause", [CAUSES[cause].threshold for cause in self.causes])
        out["named"] = ("cause", [each.named is True for each in self.causes.values()])
        out["tested"] = ("cause", [each.tested for each in self.causes.values()])
        out["in_doubt"] = ("cause", [each.in_doubt for each in self.causes.values()])
        out["evidence"] = ("cause", ["\n".join(each.evidence) for each in self.causes.values()])
        out.attrs = {
            "analysis": "diagnosis",
            "model": self.model,
            "verdict": ", ".join(self.verdict),
            "why": self.why,
            "samples": self.n,
        }
        return out


def diagnose(
    model: Model,
    samples: Sequence[Sample],
    out: str | Path,
    *,
    batch_size: int = 8,
    max_new_tokens: int = MAX_NEW_TOKENS,
    answers: GivenAnswers | None = None,
    judge: str = LEXICAL,
    retry_unscored: bool = True,
    resume: bool = False,
    overwrite: bool = False,
) -> Diagnosis:
    """Find out why a model's answers are not faithful to their images, by causal tests.

    The model answers the samples. It then reads each answer again with other images, in another order, with other hints, earlier
    turns and steps, and is asked about objects that are not in the images. Rules with thresholds name the causes; docs/diagnosis.md
    lists both. Tests that the data do not allow are not run.

    It takes 10 to 16 forward passes per answer, as a mean over the answers. Generating an answer counts as one.

    Args:
        samples: questions about images. More tests apply where several samples have the same question, where answers
            have steps, and where `metadata.objects` says what the images hold, as in the pairs that `make-pairs`
            draws.
        out: folder for `diagnosis.json`, `answers.jsonl`, and the measures, from which `resume` continues.
        batch_size: answers that are read together; halve it when memory runs out.
        max_new_tokens: the longest answer.
        answers: given answers, in place of the model's own: a file of lines of `id` and `response`, the folder of a
            benchmark's results or of a run, or texts or token ids by id. The causes are then those by which the model
            would give these answers.
        judge: who reads in answers what rules cannot: whether they are true, and which of the objects that `metadata.objects`
            lists they name. `lexical` for nobody, `model:PROVIDER/MODEL`, `model:local/FOLDER` or `ensemble:A,B,C`; its
            replies are kept in `judge.sqlite`.
        retry_unscored: ask the judge again what it left unscored in an earlier call.
        resume: continue an earlier call with the same arguments.
        overwrite: delete the files of an earlier call first.

    Raises:
        InputError: an argument is out of range; no such judge, or it cannot be opened; `out` holds a diagnosis
            already, or one of other samples, or the model or an image changed since; a sample has a prefill.
        NotApplicable: no sample has images, or no answer holds a word.

    Example:
        >>> diagnosis = diagnose(model, samples, "results/diagnosis")         # doctest: +SKIP
        >>> diagnosis.verdict                                                  # doctest: +SKIP
        ['blind']
    """
    out = Path(out)
    if batch_size < 1 or max_new_tokens < 1:
        raise InputError("diagnose: give a batch_size and max_new_tokens of 1 or more")
    with lock_folder(out, "diagnosing into it"):
        ledger = diagnosis_ledger(out)
        ledger.check(resume, overwrite)
        if overwrite:
            ledger.clear()
        given = None if answers is None else read_given_answers(answers, samples)
        settings = {"model": model.name, "samples": hash_questions(samples), "max_new_tokens": max_new_tokens}
        settings |= {"answers": None if given is None else digest(given)}
        settings |= {"judge": None if judge == LEXICAL else judge}
        opened = open_judge(judge, out / "judge.sqlite", retry_unscored)
        is_first = not ledger.begun
        ledger.begin(settings, fingerprint(model.fingerprint, samples))
        try:
            records = run_battery(model, samples, ledger, batch_size, max_new_tokens, given, opened)
            unread = find_unread(ledger)
            if not records:
                reason = f"; {next(iter(unread.values()))}" if unread else ""
                raise NotApplicable(
                    f"diagnose: {model.name} answers nothing, so nothing can be tested{reason}"
                )
        except InputError:
            if is_first and not any(record["ids"] for record in ledger.lines(ANSWERS)):
                ledger.clear()  # it would only be in the way of the next call
            raise
        diagnosis = conclude(model.name, records, samples)._replace(unread=unread)
        diagnosis = _add_sight(diagnosis, model, samples)
        if unread:
            why = (
                f"{diagnosis.why}; {len(unread)} of {len(unread) + len(records)} given answers cannot be read"
            )
            diagnosis = diagnosis._replace(why=why)
        if judge != LEXICAL:
            judging = count_labels(ledger)
            why = "; ".join(filter(None, (diagnosis.why, describe_unscored(judging))))
            diagnosis = diagnosis._replace(why=why, judge=judge, judging=judging)
        write_results(diagnosis, out)
    return diagnosis


def conclude(model: str, records: Sequence[dict[str, Any]], samples: Sequence[Sample]) -> Diagnosis:
    """Return the diagnosis from the records of `run_battery`.

    Raises:
        NotApplicable: no answer holds a word.
    """
    wordless = [record["id"] for record in records if not re.search(r"\w", record["answer"])]
    records = [record for record in records if record["id"] not in set(wordless)]
    if not records:
        raise NotApplicable(
            f"diagnose: none of the {len(wordless)} answers of {model} holds a word, so nothing can be tested; "
            "check the prompt and the model"
        )
    table = Table(records, samples, load_thresholds())
    scores = measure_causes(table)
    causes = name_causes(scores, table)
    verdict, why = find_verdict(causes, table)
    if wordless:
        total = len(wordless) + len(records)
        why = f"{len(wordless)} of {total} answers hold no word, so check the prompt and the model; of the others: {why}"
    answers = []
    for number, (record, loss) in enumerate(zip(records, table.losses, strict=True)):
        own = {
            cause: round(score, 4)
            for cause, each in scores.items()
            if (score := each.answers[number]) is not None
        }
        answers.append(
            {
                "id": record["id"],
                "causes": [cause for cause in verdict if own.get(cause, 0) >= 0.5],
                "scores": own,
                "evidence": describe_answer(record, loss),
                "answer": record["answer"],
            }
        )
    passes = sum(record["passes"] for record in records) / len(records)
    effects = [*(each.effect for each in scores.values()), *table.effects.values()]
    tests = [effect.describe() for effect in effects]
    return Diagnosis(model, causes, verdict, why, len(records), answers, tests, passes, wordless)


def _add_sight(diagnosis: Diagnosis, model: Model, samples: Sequence[Sample]) -> Diagnosis:
    """Return the diagnosis of a model whose answers do not use the images with whether its visual tokens tell the objects."""
    blind = diagnosis.causes.get("blind")
    if blind is None or not (blind.named or blind.in_doubt):
        return diagnosis
    try:
        told = tell_objects(model, [sample for sample in samples if sample.images])
    except NotApplicable as error:
        line = f"objects in the visual tokens: not tested; {error}"
        causes = {**diagnosis.causes, "blind": blind._replace(evidence=[*blind.evidence, line])}
        return diagnosis._replace(causes=causes, objects=str(error))
    number = f"AUC {told.auc:.2f}, n = {told.auc.n}, chance 0.50"
    line = f"a linear probe, fitted on other images, tells their objects apart at their visual tokens after layer {told.layer}: {number}"
    causes = {**diagnosis.causes, "blind": blind._replace(evidence=[*blind.evidence, line])}
    if told.auc.low > 0.5:
        why = f"the image is read, the answer does not use it: visual tokens tell the objects ({number})"
    else:
        why = f"nothing shows that the image is read: visual tokens do not tell the objects ({number})"
    return diagnosis._replace(
        causes=causes,
        why=f"{diagnosis.why}; {why}",
        passes=diagnosis.passes + told.passes / diagnosis.n,
        objects=told,
    )


def describe_answer(record: Mapping[str, Any], loss: Loss) -> list[str]:
    """Return what the tests found of one answer, one line a test that applied."""
    images = record["images"]
    whole = {kind: value for kind, value in images["effect"].items() if not kind.startswith("alone")}
    losses = ", ".join(f"{format_number(value)} with {kind} images" for kind, value in whole.items())
    lines = [
        f"loses {losses} (nat per token); {format_number(loss.effect)} of the usual margin per token that images decide"
    ]
    if loss.alone:
        by_image = ", ".join(
            f"{format_number(effect)} (image {number})" for number, effect in sorted(loss.alone.items())
        )
        lines.append(f"loses with one image exchanged {by_image} of the usual margin")
    if len(loss.sentences) > 1:
        by_sentence = ", ".join(f"{format_number(effect)}" for _, effect in loss.sentences)
        lines.append(f"loses by sentence {by_sentence} of the usual margin (tokens that speak of content)")
    if record["steps"] is not None:
        moved = [name for name, value in record["steps"]["moved"].items() if value]
        by_images = "changes" if record["steps"]["moved_by_images"] else "does not change"
        changes = ", ".join(moved) or "none"
        lines.append(f"conclusion {by_images} with the images; step edits that change it: {changes}")
    if record["hints"]:
        followed = sum(hint["followed"] for hint in record["hints"])
        lines.append(f"follows {followed} of {len(record['hints'])} hints, whichever answer they suggest")
    if record.get("places") is not None:
        changes = "changes" if record["places"]["moved"] else "does not change"
        lines.append(f"{changes} when {record['places']['kind']} change places")
    for key, name in (
        ("claimed", "a claimed earlier answer"),
        ("copied", "the answer of an earlier turn or example"),
    ):
        if record.get(key) is not None:
            lines.append(f"{'follows' if record[key]['followed'] else 'does not follow'} {name}")
    if (count := record.get("count")) is not None:
        edit = {1: "one more", -1: "one less", 0: ""}[count["by"]]
        then = "an unread number" if count["followed"] is None else str(count["said"] + count["followed"])
        lines.append(
            f"counts {count['said']}, true is {count['true']}" + (f"; with {edit} {then}" if edit else "")
        )
    wrong = [claim for claim in record["attributes"] if claim["wrong"]]
    if wrong:
        lines.append(f"wrong claims: {', '.join(sorted({claim['attribute'] for claim in wrong}))}")
    for each in record.get("altered", ()):
        said = each["said"] or "nothing of it"
        lines.append(f"with {each['true']} for {each['was']} it claims {said}, before {each['before']}")
    return lines


def write_results(diagnosis: Diagnosis, out: Path) -> None:
    """Write `diagnosis.json` and `answers.jsonl`."""
    text = json.dumps(diagnosis.to_json(), indent=1) + "\n"
    lines = "".join(json.dumps(answer) + "\n" for answer in diagnosis.answers)
    write_whole({out / RESULTS[0]: redact(text).encode(), out / RESULTS[1]: redact(lines).encode()})


def diagnosis_ledger(out: Path) -> Ledger:
    """Return what `diagnose` keeps in a folder."""
    return Ledger(
        out,
        settings=SETTINGS,
        holds="a diagnosis",
        differs="contains a diagnosis of another call, by its {words}",
        remedy=f"use {option('overwrite')} to replace it",
        offer=f"use {option('resume')} to finish it or {option('overwrite')} to replace it",
        owns=(SETTINGS, *KEPT, *RESULTS),
    )


def _cause_to_json(each: Named) -> dict[str, Any]:
    effect: Effect = each.effect
    numbers = {"score": effect.value, "low": effect.low, "high": effect.high}
    rounded = {name: None if math.isnan(number) else round(number, 6) for name, number in numbers.items()}
    return {
        **rounded,
        "named": each.named,
        "tested": each.tested,
        "smallest_named": None if math.isnan(each.smallest) else round(each.smallest, 6),
        "n": effect.n,
        "evidence": each.evidence,
    }
