"""From a model and samples to named causes: run the tests, apply the rules, write the results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

import numpy as np
import xarray as xr

from mmprobe.benchmarks.judges.judge import LEXICAL, describe_unscored, open_judge
from mmprobe.diagnosis.causes import CAUSES, load_tests
from mmprobe.diagnosis.controls import ControlRange, list_ranges
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, Effect
from mmprobe.diagnosis.examples import EXAMPLES, Example, ask_examples, choose_examples
from mmprobe.diagnosis.images import describe_loss
from mmprobe.diagnosis.judged import count_labels
from mmprobe.diagnosis.rules import Named, find_verdict, measure_causes, measure_effects, name_causes
from mmprobe.diagnosis.run import ANSWERS, answer_all, find_unread, list_kept, run_battery
from mmprobe.diagnosis.table import Table
from mmprobe.errors import InputError, NotApplicable, name_option, option
from mmprobe.files import redact, write_whole
from mmprobe.ledger import Ledger, fingerprint, hash_questions, lock_folder
from mmprobe.models import Model
from mmprobe.probes import ObjectsTold, tell_objects
from mmprobe.samples import Sample, with_template
from mmprobe.settings import (
    DIAGNOSED,
    DIAGNOSED_TOKENS,
    AskSettings,
    FolderSettings,
    TraceArgs,
    sort_settings,
)
from mmprobe.traces.asking import GivenAnswers, digest, read_given_answers

SETTINGS = "settings.json"
RESULTS = ("diagnosis.json", "answers.jsonl", "report.html")


class EffectRow(NamedTuple):
    """The effect of one test, with its range in control models.

    Attributes:
        test: the cause that it is of.
        kind: of questions; "" for all.
        effect: in its own unit, with its interval and n.
        controls: the range of the same effect by base of controls.
        outside: whether it is outside their range, and named; None if that is open or was not measured.
        p: of a kind, by Holm's rule over the kinds; NaN else.
        unread: answers that the test could not read.
    """

    test: str
    kind: str
    effect: Effect
    controls: Mapping[str, ControlRange]
    outside: bool | None
    p: float = math.nan
    unread: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the row as `diagnosis.json` has it. What was not measured is null."""
        effect = self.effect
        numbers = {"value": effect.value, "low": effect.low, "high": effect.high}
        row: dict[str, Any] = {"test": self.test, "kind": self.kind or None, "effect": effect.name}
        row |= {"unit": effect.unit} | {name: _round(number) for name, number in numbers.items()}
        row |= {"n": effect.n, "sets": effect.sets, "outside": self.outside}
        row["controls"] = {base: each._asdict() for base, each in self.controls.items()}
        row |= {"p": _round(self.p)} if self.kind else {}
        if self.unread:
            row |= {"unread": self.unread, "bounds": [_round(each) for each in effect.bound(self.unread)]}
        return row | ({"needs": effect.needs} if effect.needs else {})


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
        examples: of each named cause, answers on which it acts, with what the model says to a changed prompt.
        effects: one row a test, and one for each kind of questions that it is scored for (`EffectRow`).
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
    effects: Sequence[EffectRow] = ()
    examples: Sequence[Example] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content of `diagnosis.json`. What was not tested is null; `named` is also null where the test cannot decide."""
        return {
            "model": self.model,
            "effects": [row.to_json() for row in self.effects],
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
            "examples": [each._asdict() for each in self.examples],
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
    answers: GivenAnswers | None = None,
    judge: str = LEXICAL,
    retry_unscored: bool = True,
    **settings: Unpack[TraceArgs],
) -> Diagnosis:
    """Find out why a model's answers are not faithful to their images, by causal tests.

    The model answers the samples. It then reads each answer again with other images, in another order, with other hints, earlier
    turns and steps, and is asked about objects that are not in the images. Rules with thresholds name the causes; docs/diagnosis.md
    lists both. Tests that the data do not allow are not run.

    It takes 14 to 18 forward passes per answer, as a mean over the answers. Generating an answer counts as one.

    Args:
        samples: questions about images. More tests apply where several samples have the same question, where answers
            have steps, and where `metadata.objects` says what the images hold, as in the pairs that `make-pairs`
            draws.
        out: folder for `diagnosis.json`, `answers.jsonl`, and the measures, from which `resume` continues.
        answers: given answers, in place of the model's own: a file of lines of `id` and `response`, the folder of a
            benchmark's results or of a run, or texts or token ids by id. The causes are then those by which the model
            would give these answers.
        judge: who reads in answers what rules cannot: whether they are true, and which of the objects that `metadata.objects`
            lists they name. `lexical` for nobody, `model:PROVIDER/MODEL`, `model:local/FOLDER` or `ensemble:A,B,C`; its
            replies are kept in `judge.sqlite`.
        retry_unscored: ask the judge again what it left unscored in an earlier call.
        settings: of `AskSettings`, `batch_size` (8 answers or readings in a pass), `max_new_tokens` (128) and `template`; of
            `FolderSettings`, `resume` and `overwrite`.

    Raises:
        InputError: an argument is out of range; no such judge, or it cannot be opened; `out` holds a diagnosis
            already, or one of other samples, or the model or an image changed since; a sample has a prefill.
        NotApplicable: no sample has images, or no answer holds a word.

    Example:
        >>> diagnosis = diagnose(model, samples, "results/diagnosis")         # doctest: +SKIP
        >>> diagnosis.verdict                                                  # doctest: +SKIP
        ['blind']
    """
    asking, folder = sort_settings(diagnose, {**settings, "out": out}, AskSettings, FolderSettings)
    asking = DIAGNOSED.replace(**asking.chosen)
    samples, out = with_template(samples, asking.template), Path(out)
    batch_size, max_new_tokens = asking.batch_size, asking.max_new_tokens or DIAGNOSED_TOKENS
    if not isinstance(max_new_tokens, int):
        raise InputError(f"{name_option('max_new_tokens')}: diagnose takes one length for all answers")
    with lock_folder(out, "diagnosing into it"):
        ledger = diagnosis_ledger(out)
        ledger.check(folder.resume, folder.overwrite)
        if folder.overwrite:
            ledger.clear()
        given = None if answers is None else read_given_answers(answers, samples)
        call = {"model": model.name, "samples": hash_questions(samples), "max_new_tokens": max_new_tokens}
        call |= {"answers": None if given is None else digest(given)}
        call |= {"judge": None if judge == LEXICAL else judge}
        opened = open_judge(judge, out / "judge.sqlite", retry_unscored)
        is_first = not ledger.begun
        ledger.begin(call, fingerprint(model.fingerprint, samples))
        try:
            shown = [sample for sample in samples if sample.images]
            records = run_battery(model, samples, ledger, batch_size, max_new_tokens, given, opened)
            unread = find_unread(ledger)
            if not records:
                reason = f"; {next(iter(unread.values()))}" if unread else ""
                raise NotApplicable(
                    f"diagnose: {model.name} gave no answer, so nothing can be tested{reason}"
                )
        except InputError:
            if is_first and not any(record["ids"] for record in ledger.lines(ANSWERS)):
                ledger.clear()  # it would only be in the way of the next call
            raise
        diagnosis = conclude(model.name, records, samples)._replace(unread=unread)
        diagnosis = _add_sight(diagnosis, model, samples)
        study = answer_all(model, shown, ledger, batch_size, max_new_tokens, given)
        chosen = choose_examples(diagnosis.verdict, diagnosis.answers)
        examples = ask_examples(study, chosen, load_tests(), ledger, batch_size)
        passes = sum(each.passes for each in examples) / diagnosis.n
        diagnosis = diagnosis._replace(examples=examples, passes=diagnosis.passes + passes)
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


def conclude(model: str, records: Sequence[AnswerRecord], samples: Sequence[Sample]) -> Diagnosis:
    """Return the diagnosis from the records of `run_battery`.

    Raises:
        NotApplicable: no answer holds a word.
    """
    wordless = [record.id for record in records if not re.search(r"\w", record.answer)]
    records = [record for record in records if record.id not in set(wordless)]
    if not records:
        raise NotApplicable(
            f"diagnose: none of the {len(wordless)} answers of {model} holds a word, so nothing can be tested; "
            "check the prompt and the model"
        )
    table = Table(records, samples, LIMITS, load_tests())
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
                "id": record.id,
                "causes": [
                    cause
                    for cause in verdict
                    if own.get(cause, 0) >= 0.5 and _acts_on(causes[cause], table.kinds[number])
                ],
                "scores": own,
                "evidence": describe_loss(record, loss)
                + [line for test in table.tests.values() for line in test.describe(record)],
                "answer": record.answer,
            }
        )
    passes = sum(record.passes for record in records) / len(records)
    effects = [*(each.effect for each in scores.values()), *measure_effects(table).values()]
    tests = [effect.describe() for effect in effects]
    return Diagnosis(
        model,
        causes,
        verdict,
        why,
        len(records),
        answers,
        tests,
        passes,
        wordless,
        effects=list_effects(causes),
    )


def list_effects(causes: Mapping[str, Named]) -> list[EffectRow]:
    """Return the rows of all tests, each followed by those of the kinds of questions."""
    rows = []
    for name, each in causes.items():
        ranges, unread = list_ranges(name), each.unread
        outside = each.of_all if each.named is not None else None
        rows.append(EffectRow(name, "", each.effect, ranges, outside, unread=unread))
        for kind in each.kinds:
            own = list_ranges(name, kind.kind) or ranges
            rows.append(EffectRow(name, kind.kind, kind.effect, own, kind.outside, kind.p, kind.unread))
    return rows


def _acts_on(cause: Named, kind: str) -> bool:
    """Return whether a cause is named of all questions, or of those of a kind."""
    return cause.of_all or any(each.kind == kind for each in cause.outside)


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
        owns=(SETTINGS, *list_kept(), EXAMPLES, *RESULTS),
    )


def _round(number: float) -> float | None:
    return None if math.isnan(number) else round(number, 6)


def _cause_to_json(each: Named) -> dict[str, Any]:
    effect: Effect = each.effect
    numbers = {"score": effect.value, "low": effect.low, "high": effect.high}
    return {
        **{name: _round(number) for name, number in numbers.items()},
        "named": each.named,
        "tested": each.tested,
        "kinds": [kind.kind for kind in each.outside],
        "smallest_named": _round(each.smallest),
        "n": effect.n,
        "evidence": each.evidence,
    }
