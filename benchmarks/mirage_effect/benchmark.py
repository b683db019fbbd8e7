"""The mirage effect (arXiv:2603.21687): what a model says about images that nobody gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.answers.refusals import is_refusal
from mmprobe.benchmarks.core.benchmark import Benchmark, Scored
from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.judges.agreement import labels_at
from mmprobe.benchmarks.mirage_effect.data import (
    YES_NO,
    ChoiceQuestion,
    ImagelessQuestion,
    MirageEffectTruth,
    imageless_questions,
    load_imageless,
    load_questions,
)
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels
from mmprobe.benchmarks.mirage_effect.metrics import (
    AnswersById,
    Labels,
    Verdicts,
    collect_diagnoses,
    compute_metrics,
    first_answer,
    read_alarming,
    read_choices,
    select_answers_to_label,
)
from mmprobe.benchmarks.mirage_effect.model_labels import judge_choices, judge_diagnoses, label_by_judge
from mmprobe.benchmarks.mirage_effect.prompts import MODALITIES, VARIANTS, MirageEffectPrompts
from mmprobe.benchmarks.mirage_effect.rule_labels import label_by_rules, normalize_answer
from mmprobe.benchmarks.mirage_effect.samples import (
    WAYS,
    MirageEffectOptions,
    ask_questions,
    check_ids,
    diagnosis_prompts,
    group_by_question,
    imageless_id,
)
from mmprobe.benchmarks.mirage_effect.synthetic import draw_questions, synthetic_questions
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.errors import InputError
from mmprobe.files import json_lines
from mmprobe.samples import load_short_samples


def read_data(path: Path, examples: Path | None = None, closed: bool = False) -> MirageEffectTruth:
    """Read questions with options, and those of `imageless.jsonl` beside them; without this file, our 200.

    `path` is a file of questions, `samples.jsonl` of `make-pairs`, or a folder with one; `examples` a file of
    further questions, for few-shot prompts. With `closed`, only questions of yes or no are taken. Raises InputError,
    with line and field, for an invalid line, an id that is used twice, or data without such questions.
    """
    file = path / "samples.jsonl" if path.is_dir() else path
    if _is_imageless(file):
        truth = MirageEffectTruth(load_imageless(file), [], _read_choices(examples) if examples else ())
        check_ids(truth, str(file))
        return truth
    imageless_file = file.with_name("imageless.jsonl")
    imageless = load_imageless(imageless_file) if imageless_file.exists() else list(imageless_questions())
    choices = _read_choices(file)
    if closed:
        choices = [question for question in choices if question.choices == YES_NO]
        if not choices:
            raise InputError(f"{path}: contains no question whose answer is yes or no; leave out --closed")
    truth = MirageEffectTruth(imageless, choices, _read_choices(examples) if examples else ())
    check_ids(truth, str(file))
    return truth


def _is_imageless(file: Path) -> bool:
    """Return whether a file contains questions about missing images alone: their lines have a category and no answer."""
    first = next((row for _, row in json_lines(file)), None) if file.is_file() else None
    return isinstance(first, dict) and {"id", "category", "question"} == first.keys()


def _read_choices(file: Path) -> list[ChoiceQuestion]:
    return (
        synthetic_questions(load_short_samples(file, "mirage-effect"))
        if is_synthetic(file)
        else load_questions(file)
    )


def score_answers(truth: MirageEffectTruth, responses: Mapping[str, str]) -> Scored:
    """Return metrics and records with labels by rules.

    Responses are by sample id: `ID` with images, `ID--absent` without them and so on (`WAYS`); `ID--VARIANT`
    for the ways of asking about missing images. `--seed-N` after an id names one of several answers to the
    same question.
    """
    answers = group_by_question(truth, responses)
    labels = {
        name: label_by_rules(text) for name, (_, text) in select_answers_to_label(truth, answers).items()
    }
    return _score(truth, answers, labels, read_choices(truth, answers), read_alarming(answers))


def score_with_judge(
    truth: MirageEffectTruth,
    responses: Mapping[str, str],
    judge: Judge,
    prompts: MirageEffectPrompts | None = None,
) -> Scored:
    """Return metrics and records with labels by a judge, and the share of answers that it left unscored.

    The judge also decides the answers to questions with a known answer that rules cannot read, and those to open
    questions that rules do not find right, and says which diagnoses beside our lists are alarming.
    """
    answers = group_by_question(truth, responses)
    selected = select_answers_to_label(truth, answers)
    judged = label_by_judge(selected, judge, prompts)
    labels = {name: ImagelessLabels(*each.items) if each.items else None for name, each in judged.items()}
    verdicts = read_choices(truth, answers)
    questions = {question.id + suffix: question for question in truth.choices for suffix in WAYS.values()}
    undecided = {
        name: (questions[name], text)
        for name, right in verdicts.items()
        if (text := first_answer(answers, name) or "").strip()
        and (right is None or (right is False and not questions[name].choices and not is_refusal(text)))
    }
    for name, judgement in judge_choices(undecided, judge, prompts).items():
        verdicts[name] = None if judgement.items is None else judgement.items == (True,)
    alarming = read_alarming(answers)
    alarming |= judge_diagnoses([text for text, known in alarming.items() if known is None], judge, prompts)
    metrics, records = _score(truth, answers, labels, verdicts, alarming)
    metrics["unscored"] = mean_metric([each.unscored is not None for each in judged.values()], "lower")
    for record in records:
        for answer in record["answers"].values() if record["kind"] != "diagnosis" else ():
            if answer["id"] in selected:
                asked = judged.get(answer["id"])
                answer["unscored"] = None if asked is None else asked.unscored
    return metrics, records


def _score(
    truth: MirageEffectTruth,
    answers: AnswersById,
    labels: Labels,
    verdicts: Verdicts,
    alarming: Mapping[str, bool | None],
) -> Scored:
    """Return metrics, and a record of each question and of the diagnoses of each modality."""
    records = [make_imageless_record(question, answers, labels) for question in truth.imageless]
    records += [make_record(question, answers, labels, verdicts) for question in truth.choices]
    records += [make_diagnosis_record(modality, answers, alarming) for modality in MODALITIES]
    return compute_metrics(truth, answers, labels, verdicts, alarming), records


def make_record(
    question: ChoiceQuestion, answers: AnswersById, labels: Labels, verdicts: Verdicts
) -> dict[str, Any]:
    """Return the record of a question with a known answer for `samples.jsonl`."""
    answer_records = {}
    for kind, suffix in WAYS.items():
        name = question.id + suffix
        text = first_answer(answers, name)
        if text is not None:
            answer_records[kind] = _make_answer_record(name, answers, labels) | {
                "said": normalize_answer(question, text),
                "correct": verdicts.get(name),
            }
    return {
        "id": question.id,
        "kind": "choice",
        "category": question.category,
        "question": question.question,
        "options": len(question.choices) or None,
        "true_answer": question.choices.get(question.answer, question.answer),
        "answers": answer_records,
    }


def make_imageless_record(
    question: ImagelessQuestion, answers: AnswersById, labels: Labels
) -> dict[str, Any]:
    """Return the record of a question about a missing image for `samples.jsonl`."""
    ids = {variant: imageless_id(question.id, variant) for variant in VARIANTS}
    return {
        "id": question.id,
        "kind": "imageless",
        "category": question.category,
        "question": question.question,
        "answers": {
            variant: _make_answer_record(name, answers, labels)
            for variant, name in ids.items()
            if answers.get(name)
        },
    }


def make_diagnosis_record(
    modality: str, answers: AnswersById, alarming: Mapping[str, bool | None]
) -> dict[str, Any]:
    """Return the record of the diagnoses of one modality for `samples.jsonl`."""
    texts, diagnoses, shares = collect_diagnoses(modality, answers)
    return {
        "id": next(iter(diagnosis_prompts(modality))).rpartition("-")[0],
        "kind": "diagnosis",
        "modality": modality,
        "answers": [
            {
                "id": name,
                "response": text,
                "diagnosis": diagnosis,
                "alarming": alarming.get(diagnosis) if diagnosis else None,
            }
            for (name, text), diagnosis in zip(texts, diagnoses, strict=True)
        ],
        "shares": {kind: share.value for kind, share in shares.items()},
    }


def _make_answer_record(name: str, answers: AnswersById, labels: Labels) -> dict[str, Any]:
    answer_labels = labels.get(name)
    return {
        "id": name,
        "response": first_answer(answers, name),
        "notices": None if answer_labels is None else answer_labels.notices,
        "describes": None if answer_labels is None else answer_labels.describes,
    }


def faithful_answers(truth: MirageEffectTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Return whether each answer is faithful.

    With its image it is if it is right, without its image if it notices that and describes nothing. Left out
    are answers without an image that do neither, and guesses.
    """
    faithful: dict[str, bool] = {}
    for record in records:
        if record["kind"] == "diagnosis":
            continue
        for kind, answer in record["answers"].items():
            if kind in ("present", "named"):
                if answer["correct"] is not None:
                    faithful[answer["id"]] = answer["correct"]
            elif (
                kind != "guess"
                and answer["describes"] is not None
                and (answer["notices"] or answer["describes"])
            ):
                faithful[answer["id"]] = answer["notices"] and not answer["describes"]
    return faithful


class Options(MirageEffectOptions):
    """The options of the mirage effect, as `MirageEffectOptions`."""

    def configure(self, benchmark: Benchmark[Any]) -> Benchmark[Any]:
        """Return the mirage effect with these options in force."""
        prompts = self.read_prompts()
        return replace(
            benchmark,
            read_data=partial(read_data, examples=self.examples, closed=self.closed),
            filters=self.closed,
            ask_questions=partial(ask_questions, options=self, prompts=prompts),
            score_with_judge=partial(score_with_judge, prompts=prompts),
        )


BENCHMARK = Benchmark(
    name="mirage-effect",
    about="What a model says about images that nobody gave it, and how well it answers without them.",
    read_data=read_data,
    draw_files=draw_questions,
    take=lambda truth, n: truth._replace(imageless=truth.imageless[:n], choices=truth.choices[:n], varied=n),
    ask_questions=ask_questions,
    score_answers=score_answers,
    score_with_judge=score_with_judge,
    find_labels=labels_at("answers.*.notices", "answers.*.describes"),
    headline=(
        "mirage_rate",
        "mirage_rate_described",
        "accuracy_with",
        "accuracy_without",
        "accuracy_guess",
        "accuracy_with_named",
        "accuracy_without_named",
        "name_gain_with",
        "name_gain_without",
        "accuracy_few_shot",
        "mirage_score",
        "mirage_score_above_chance",
        "similarity",
        "similarity_by_chance",
    ),
    faithful_answers=faithful_answers,
    max_new_tokens=512,  # our choice: the prompts ask for a line at the end, which 128 tokens cut off
    visual=False,
    options=Options,
)
