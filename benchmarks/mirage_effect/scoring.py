"""Every metric of the mirage effect, and a record a question, from answers and their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mmprobe.benchmarks.core.benchmark import Scored
from mmprobe.benchmarks.core.results import Metric, count_metric, mean_metric, of_samples
from mmprobe.benchmarks.mirage_effect.choices import chosen, is_right, said
from mmprobe.benchmarks.mirage_effect.data import (
    MODALITIES,
    VARIANTS,
    ChoiceQuestion,
    ImagelessQuestion,
)
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels
from mmprobe.benchmarks.mirage_effect.metrics import (
    NO_ANSWER,
    answer_bias,
    answer_similarity,
    answers_kept,
    mirage_rates,
    mirage_scores,
)
from mmprobe.benchmarks.mirage_effect.questions import (
    ABSENT,
    GUESSED,
    MirageEffectTruth,
    diagnosis_prompts,
    imageless_id,
    varied_questions,
)
from mmprobe.benchmarks.mirage_effect.rule_labels import diagnosis_of, is_alarming

Answers = Mapping[str, Sequence[str]]
Given = Mapping[str, ImagelessLabels | None]


def labelled_answers(truth: MirageEffectTruth, answers: Answers) -> dict[str, tuple[str, str]]:
    """The question and the first answer of all that was asked without a picture and without saying so, by id.

    Example:
        >>> truth = MirageEffectTruth([ImagelessQuestion("1", "art/x", "Who painted this?")], [])
        >>> labelled_answers(truth, {"1": ["Rembrandt.", "Vermeer."]})
        {'1': ('Who painted this?', 'Rembrandt.')}
    """
    asked = {imageless_id(one.id, variant): one.question for one in truth.imageless for variant in VARIANTS}
    asked |= {question.id + ABSENT: question.question for question in truth.choices}
    return {name: (text, answers[name][0]) for name, text in asked.items() if answers.get(name)}


def scored(truth: MirageEffectTruth, answers: Answers, labels: Given) -> Scored:
    """Metrics and records; the first answer to a question counts, all of them for distributions.

    Args:
        answers: by id, those to several seeds together (`by_question`).
        labels: of each of `labelled_answers`, None where there is none.

    Returns:
        As `docs/benchmarks.md` says, and a record of each question and of each modality's diagnoses.

    Example:
        >>> metrics, records = scored(truth, answers, labels)                   # doctest: +SKIP
    """
    metrics = _of_imageless(truth.imageless, labels)
    if truth.choices:
        metrics |= _of_choices(truth.choices, answers, labels)
    records = [_imageless_record(one, answers, labels) for one in truth.imageless]
    records += [_choice_record(question, answers, labels) for question in truth.choices]
    for modality in MODALITIES:
        found, record = _of_diagnoses(modality, answers)
        metrics |= found
        records.append(record)
    return metrics, records


def _of_imageless(asked: Sequence[ImagelessQuestion], labels: Given) -> dict[str, Metric]:
    """Mirage rates of the plain questions, by domain, and of each variant with its difference to the plain ones."""
    metrics = _rates([one.id for one in asked], labels)
    domains = {one.category.partition("/")[0]: None for one in asked}
    for domain in domains if len(domains) > 1 else ():
        mine = [one.id for one in asked if one.category.partition("/")[0] == domain]
        metrics[f"mirage_rate[domain={domain}]"] = _rates(mine, labels)["mirage_rate"]
    varied = [one.id for one in varied_questions(asked)]
    for variant in VARIANTS[1:]:
        names = [imageless_id(name, variant) for name in varied]
        rates = of_samples(_rates(names, labels), varied)
        metrics |= {f"{name}_{variant}": rate for name, rate in rates.items()}
        change = [
            _change(labels.get(plain), labels.get(name)) for plain, name in zip(varied, names, strict=True)
        ]
        metrics |= of_samples(
            {f"mirage_rate_change_{variant}": mean_metric(change, "lower", (-1.0, 1.0))}, varied
        )
    return metrics


def _rates(names: Sequence[str], labels: Given) -> dict[str, Metric]:
    return of_samples(mirage_rates([labels.get(name) for name in names]), names)


def _change(plain: ImagelessLabels | None, varied: ImagelessLabels | None) -> float | None:
    """What a variant changes in one question's being a mirage: 1 becomes one, -1 no longer is one."""
    return None if plain is None or varied is None else float(plain.notices) - float(varied.notices)


def _of_choices(questions: Sequence[ChoiceQuestion], answers: Answers, labels: Given) -> dict[str, Metric]:
    names = [question.id for question in questions]
    options = [len(question.choices) or None for question in questions]
    right = {
        end: [is_right(question, _first(answers, question.id + end)) for question in questions]
        for end in ("", ABSENT, GUESSED)
    }
    metrics = mirage_scores(right[ABSENT], right[""], options)
    guessed = mirage_scores(right[GUESSED], right[""], options)
    for found in ("mirage_score", "mirage_score_above_chance"):
        metrics[found.replace("mirage", "guess")] = guessed[found]
    metrics["accuracy_guess"] = mean_metric([_number(one) for one in right[GUESSED]], "neither")
    metrics["mirage_minus_guess"] = _difference(right[ABSENT], right[GUESSED])
    metrics |= _chosen(questions, answers)
    texts = [[_said(question, answers, end) for question in questions] for end in ("", ABSENT)]
    metrics["answers_kept"] = answers_kept(*texts)
    rates = mirage_rates([labels.get(name + ABSENT) for name in names])
    metrics |= {f"{name}_choices": rate for name, rate in rates.items()}
    metrics = of_samples(metrics, names)
    return metrics | _by_category(questions, right, options) | _alike(questions, answers)


def _by_category(
    questions: Sequence[ChoiceQuestion],
    right: Mapping[str, Sequence[bool | None]],
    options: Sequence[int | None],
) -> dict[str, Metric]:
    categories = list(dict.fromkeys(question.category for question in questions))
    metrics: dict[str, Metric] = {}
    for category in categories if len(categories) > 1 else ():
        mine = [place for place, question in enumerate(questions) if question.category == category]
        parts = [[values[place] for place in mine] for values in (right[ABSENT], right[""])]
        found = of_samples(
            mirage_scores(parts[0], parts[1], [options[place] for place in mine]),
            [questions[place].id for place in mine],
        )
        metrics |= {f"{name}[category={category}]": metric for name, metric in found.items()}
    return metrics


def _chosen(questions: Sequence[ChoiceQuestion], answers: Answers) -> dict[str, Metric]:
    """Share of answers that choose no option, which are wrong; open questions have none to choose."""
    metrics = {}
    for name, end in (("no_choice_with", ""), ("no_choice_without", ABSENT)):
        given = [(question, _first(answers, question.id + end)) for question in questions]
        metrics[name] = mean_metric(
            [
                None if text is None or not question.choices else float(chosen(question, text) is None)
                for question, text in given
            ],
            "lower",
        )
    return metrics


def _alike(questions: Sequence[ChoiceQuestion], answers: Answers) -> dict[str, Metric]:
    """How alike the answers with and without pictures are: by category and seed pooled, and of each question."""
    metrics: dict[str, Metric] = {}
    categories = list(dict.fromkeys(question.category for question in questions))
    groups = {"": list(questions)}
    for category in categories if len(categories) > 1 else ():
        groups[f"[category={category}]"] = [one for one in questions if one.category == category]
    for suffix, group in groups.items():
        present, absent = (
            [f"{one.category}: {text}" for one in group for text in _every(one, answers, end)]
            for end in ("", ABSENT)
        )
        found = answer_similarity(present, absent)
        bare = replace(found.similarity, low=None, high=None, direction="neither")
        metrics[f"similarity{suffix}"] = found.similarity
        metrics[f"similarity_by_chance{suffix}"] = replace(bare, value=found.by_chance)
        metrics[f"similarity_p{suffix}"] = replace(bare, value=found.p)
    seeded = [[_every(one, answers, end) for end in ("", ABSENT)] for one in questions]
    if any(min(len(present), len(absent)) > 1 for present, absent in seeded):
        values = [
            answer_similarity(present, absent, permutations=1).similarity.value
            if min(len(present), len(absent)) > 1
            else None
            for present, absent in seeded
        ]
        metrics["similarity_over_seeds"] = mean_metric(values, "lower")
    return metrics


def _of_diagnoses(modality: str, answers: Answers) -> tuple[dict[str, Metric], dict[str, Any]]:
    """What is diagnosed in a picture that is not there, over wordings and seeds: shares, alarm, entropy."""
    prompts = diagnosis_prompts(modality)
    texts = [(name, text) for name in prompts for text in answers.get(name, ())]
    found = [diagnosis_of(text) for _, text in texts]
    bias = answer_bias(found, {one for one in found if one is not None and is_alarming(one)})
    kinds = list(bias.shares)
    rows = [[float(kind == (one or NO_ANSWER)) for kind in kinds] for one in found]
    end = f"[modality={modality}]"
    metrics = {
        f"diagnosis_rate{end}": mean_metric([float(one is not None) for one in found], "lower"),
        f"diagnosis_alarming{end}": replace(bias.flagged, direction="lower"),
        f"diagnosis_entropy{end}": count_metric(rows, _entropy, "neither", (0.0, None)),
    }
    record = {
        "id": next(iter(prompts)).rpartition("-")[0],
        "kind": "diagnosis",
        "modality": modality,
        "answers": [
            {"id": name, "response": text, "diagnosis": one}
            for (name, text), one in zip(texts, found, strict=True)
        ],
        "shares": {kind: share.value for kind, share in bias.shares.items()},
    }
    return metrics, record


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy in bits of counts [..., kind]."""
    part = counts / counts.sum(-1, keepdims=True)
    return np.abs(-(part * np.log2(np.where(part > 0, part, 1))).sum(-1))


def _first(answers: Answers, name: str) -> str | None:
    return answers[name][0] if answers.get(name) else None


def _every(question: ChoiceQuestion, answers: Answers, end: str) -> list[str]:
    return [said(question, text) or NO_ANSWER for text in answers.get(question.id + end, ())]


def _said(question: ChoiceQuestion, answers: Answers, end: str) -> str | None:
    text = _first(answers, question.id + end)
    return None if text is None else said(question, text)


def _number(value: bool | None) -> float | None:
    return None if value is None else float(value)


def _difference(one: Sequence[bool | None], two: Sequence[bool | None]) -> Metric:
    pairs = zip(one, two, strict=True)
    values = [None if a is None or b is None else float(a) - float(b) for a, b in pairs]
    return mean_metric(values, "neither", (-1.0, 1.0))


def _imageless_record(one: ImagelessQuestion, answers: Answers, labels: Given) -> dict[str, Any]:
    names = {variant: imageless_id(one.id, variant) for variant in VARIANTS}
    return {
        "id": one.id,
        "kind": "imageless",
        "category": one.category,
        "question": one.question,
        "answers": {
            variant: _told(name, answers, labels) for variant, name in names.items() if answers.get(name)
        },
    }


def _told(name: str, answers: Answers, labels: Given) -> dict[str, Any]:
    found = labels.get(name)
    return {
        "id": name,
        "response": _first(answers, name),
        "notices": None if found is None else found.notices,
        "describes": None if found is None else found.describes,
    }


def _choice_record(question: ChoiceQuestion, answers: Answers, labels: Given) -> dict[str, Any]:
    told = {}
    for kind, end in (("present", ""), ("absent", ABSENT), ("guess", GUESSED)):
        name = question.id + end
        if (text := _first(answers, name)) is not None:
            told[kind] = _told(name, answers, labels) | {
                "said": said(question, text),
                "correct": is_right(question, text),
            }
    return {
        "id": question.id,
        "kind": "choice",
        "category": question.category,
        "question": question.question,
        "options": len(question.choices) or None,
        "true_answer": question.choices.get(question.answer, question.answer),
        "answers": told,
    }
