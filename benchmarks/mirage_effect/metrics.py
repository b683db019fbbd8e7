"""Metrics of the mirage effect (arXiv:2603.21687): mirage rate, mirage score, bias, and similarity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmprobe.benchmarks.core.results import (
    Combine,
    Direction,
    Metric,
    accuracy_metrics,
    change_metric,
    count_metric,
    mean_metric,
    metrics_by_group,
    with_bounds,
    with_ids,
)
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, ImagelessQuestion, MirageEffectTruth
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels
from mmprobe.benchmarks.mirage_effect.prompts import MODALITIES, VARIANTS
from mmprobe.benchmarks.mirage_effect.rule_labels import (
    find_diagnosis,
    find_option,
    is_alarming,
    is_correct,
    normalize_answer,
)
from mmprobe.benchmarks.mirage_effect.samples import (
    ABSENT,
    ABSENT_NAMED,
    FEW_SHOT,
    GUESSED,
    NAMED,
    WAYS,
    diagnosis_prompts,
    imageless_id,
    select_varied,
)
from mmprobe.errors import InputError
from mmprobe.files import read_results
from mmprobe.stats.compare import PERMUTATIONS
from mmprobe.stats.intervals import sums_interval

NO_ANSWER = "no answer found"
_SCORES = ("mirage_score", "mirage_score_above_chance")


def mirage_rates(
    labels: Sequence[ImagelessLabels | None], asked: Sequence[bool] | None = None
) -> dict[str, Metric]:
    """Return how often a model answers as if it saw an image that nobody gave it (section 7.3), as shares.

    `mirage_rate` is 1 - share of answers that notice the missing image or are unsure, as in the paper;
    `describes_rate` the share that state a visual detail; `mirage_rate_described` the share that do and do
    not notice: here, general answers and refusals do not count as mirages. They are over the answers that were read; their
    bounds say what they are if the unread ones of those `asked`, by default all, were all one or the other.

    Example:
        >>> pairs = [(False, True), (False, False), (True, False)]
        >>> labels = [ImagelessLabels(notices, describes) for notices, describes in pairs]
        >>> rates = mirage_rates(labels)
        >>> round(rates["mirage_rate"].value, 3), round(rates["mirage_rate_described"].value, 3)
        (0.667, 0.333)
    """
    mirages = [None if label is None else not label.notices for label in labels]
    descriptions = [None if label is None else label.describes for label in labels]
    described_mirages = [
        None if label is None else False if label.notices else label.describes for label in labels
    ]
    known = [True] * len(labels) if asked is None else asked

    def rate(values: Sequence[bool | None]) -> Metric:
        numbers = [None if value is None else float(value) for value in values]
        unread = [was and value is None for value, was in zip(values, known, strict=True)]
        return mean_metric(numbers, "lower", unread=unread)

    return {
        "mirage_rate": rate(mirages),
        "describes_rate": rate(descriptions),
        "mirage_rate_described": rate(described_mirages),
    }


def mirage_scores(
    without_image: Sequence[bool | None],
    with_image: Sequence[bool | None],
    options: Sequence[int | None],
    asked: Sequence[bool] | None = None,
) -> dict[str, Metric]:
    """Return how much of a model's accuracy remains without the images (equation 1), as a ratio.

    All values are over the questions asked both ways (`asked`, by default all). An unread answer (None) is wrong;
    `accuracy_with[read]` and `accuracy_without[read]` leave it out. `options` counts those of each question; None for an open question, which chance cannot answer. `mirage_score` is accuracy without
    divided by accuracy with: above 1 if the images do harm, undefined if the latter is 0.
    `mirage_score_above_chance`, our choice, subtracts the accuracy of random choice (mean of 1 / options) from
    both; it is undefined unless the accuracy with images is above chance. `visual_gain` is accuracy with
    minus accuracy without.

    Example:
        >>> scores = mirage_scores([True, False, True, False], [True, True, True, False], [4] * 4)
        >>> round(scores["mirage_score"].value, 3), scores["mirage_score_above_chance"].value
        (0.667, 0.5)
    """
    known = [True] * len(without_image) if asked is None else asked
    answers = list(zip(without_image, with_image, options, known, strict=True))

    def count_rows(unread_without: float = 0.0, unread_with: float = 0.0) -> list[tuple[float, ...] | None]:
        """Return right without, right with, chance, and number of each question."""
        return [
            (
                unread_without if absent is None else float(absent),
                unread_with if present is None else float(present),
                1 / count if count else 0.0,
                1.0,
            )
            if was
            else None
            for absent, present, count, was in answers
        ]

    unread = sum(was and (absent is None or present is None) for absent, present, _, was in answers)

    def score_above_chance(counts: np.ndarray) -> np.ndarray:
        gain = counts[..., 1] - counts[..., 2]
        is_above = gain > 1e-9 * counts[..., 3]
        return np.where(is_above, (counts[..., 0] - counts[..., 2]) / np.where(is_above, gain, 1), np.nan)

    def score(counts: np.ndarray) -> np.ndarray:
        return np.where(counts[..., 1] > 0, counts[..., 0] / counts[..., 1], np.nan)

    def bounded(combine: Combine, direction: Direction, limits: tuple[float | None, float | None]) -> Metric:
        less, more = count_rows(0.0, 1.0), count_rows(1.0, 0.0)  # the images matter most, and least
        ends = (more, less) if direction == "higher" else (less, more)
        return with_bounds(count_metric(count_rows(), combine, direction, limits), unread, combine, *ends)

    return {
        **accuracy_metrics("accuracy_without", without_image, known, "neither"),
        **accuracy_metrics("accuracy_with", with_image, known),
        "mirage_score": bounded(score, "lower", (0.0, None)),
        "mirage_score_above_chance": bounded(score_above_chance, "lower", (None, None)),
        "visual_gain": bounded(lambda c: (c[..., 1] - c[..., 0]) / c[..., 3], "higher", (-1.0, 1.0)),
    }


def answer_shares(answers: Sequence[str | None]) -> dict[str, Metric]:
    """Return the share of each answer to a prompt, None too, most frequent first (section 7.4, figure 2).

    Example:
        >>> shares = answer_shares(["melanoma", "melanoma", "naevus", None])
        >>> [(answer, share.value) for answer, share in shares.items()]
        [('melanoma', 0.5), ('naevus', 0.25), ('no answer found', 0.25)]
    """
    texts = [NO_ANSWER if answer is None else answer for answer in answers]
    counts = sorted(Counter(texts).items(), key=lambda item: (-item[1], item[0]))
    return {answer: mean_metric([text == answer for text in texts], "neither") for answer, _ in counts}


def entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy in bits of counts [..., answer]: 0 if all answers are equal.

    Example:
        >>> float(entropy(np.array([2, 1, 1])))
        1.5
    """
    shares = counts / counts.sum(-1, keepdims=True)
    return np.abs(-(shares * np.log2(np.where(shares > 0, shares, 1))).sum(-1))


class Similarity(NamedTuple):
    """The similarity of answers with and without the image: 1 - total variation distance, 1 if equal.

    `by_chance` is the mean similarity of two samples of this size from one distribution, to compare it with.
    `p` is the p value of no difference, by shuffling which answers had the image.
    """

    similarity: Metric
    by_chance: float | None
    p: float | None


def answer_similarity(
    present: Sequence[str], absent: Sequence[str], permutations: int = PERMUTATIONS
) -> Similarity:
    """Return how similar the answers with and without the image are (section 2.2). Grounded answers differ.

    Example:
        >>> result = answer_similarity(["cat", "dog"] * 10, ["cat"] * 20)
        >>> result.similarity.value, result.p < 0.01
        (0.5, True)
    """
    answers = sorted({*present, *absent})
    n = len(present), len(absent)
    if not min(n):
        nothing = Metric(None, None, None, sum(n), coverage=None, direction="lower", range=(0.0, 1.0))
        return Similarity(nothing, None, None)
    index = {answer: i for i, answer in enumerate(answers)}
    present_counts = np.bincount([index[answer] for answer in present], minlength=len(answers))
    absent_counts = np.bincount([index[answer] for answer in absent], minlength=len(answers))

    def similarity(counts: np.ndarray) -> np.ndarray:
        first, second = np.split(counts, 2, axis=-1)
        shares = first / first.sum(-1, keepdims=True) - second / second.sum(-1, keepdims=True)
        return np.round(1 - np.abs(shares).sum(-1) / 2, 12)  # so that disjoint answers give exactly 0

    rng = np.random.default_rng(0)
    value = float(similarity(np.concatenate([present_counts, absent_counts])))
    total_counts = present_counts + absent_counts
    shuffled = rng.multivariate_hypergeometric(total_counts, n[0], size=permutations)
    by_chance = similarity(np.concatenate([shuffled, total_counts - shuffled], axis=1))
    p = (int((by_chance <= value + 1e-12).sum()) + 1) / (permutations + 1)
    rows = np.eye(2 * len(answers))
    places = [index[answer] for answer in present] + [len(answers) + index[answer] for answer in absent]
    low, high = (float(end) for end in sums_interval(similarity, rows[places], None, (0.0, 1.0)))
    known = math.isfinite(low)
    metric = Metric(
        value,
        low if known else None,
        high if known else None,
        sum(n),
        coverage=1.0,
        direction="lower",
        range=(0.0, 1.0),
    )
    return Similarity(metric, float(by_chance.mean()), p)


def answers_kept(
    present: Sequence[str | None], absent: Sequence[str | None], asked: Sequence[bool] | None = None
) -> Metric:
    """Return the share of questions with the same answer with and without the image, our choice.

    It is over the questions where both answers were read. The bounds say what it is over all that were `asked` both ways, by
    default all, if the unread answers differ, and if they are kept.

    Example:
        >>> kept = answers_kept(["A", "B", None], ["A", "C", "D"])
        >>> kept.value, kept.bounds
        (0.5, (0.3333333333333333, 0.6666666666666666))
    """
    pairs = list(zip(present, absent, strict=True))
    known = [True] * len(pairs) if asked is None else asked
    kept = [None if a is None or b is None else float(a == b) for a, b in pairs]
    return mean_metric(
        kept, "lower", unread=[was and same is None for same, was in zip(kept, known, strict=True)]
    )


AnswersById = Mapping[str, Sequence[str]]
"""The answers to each question by its id, as `group_by_question` returns them."""
Labels = Mapping[str, ImagelessLabels | None]
"""The labels of the answers without images, by the id of the question."""
Verdicts = Mapping[str, bool | None]
"""Whether each answer to a question with a known answer is right, by id; None if it is unread."""


class Diagnoses(NamedTuple):
    """The diagnoses of images of one modality that were never attached.

    Attributes:
        answers: id and text of each answer, over wordings and seeds.
        diagnoses: the diagnosis in each answer; None without one.
        shares: the share of each diagnosis.
    """

    answers: list[tuple[str, str]]
    diagnoses: list[str | None]
    shares: dict[str, Metric]


def select_answers_to_label(truth: MirageEffectTruth, answers: AnswersById) -> dict[str, tuple[str, str]]:
    """Return question and first answer, by id, of the questions that were asked without their images.

    Requests that tell the model about the missing image are left out.
    """
    questions = {
        imageless_id(question.id, variant): question.question
        for question in truth.imageless
        for variant in VARIANTS
    }
    questions |= {question.id + ABSENT: question.question for question in truth.choices}
    return {name: (text, answers[name][0]) for name, text in questions.items() if answers.get(name)}


def read_choices(truth: MirageEffectTruth, answers: AnswersById) -> dict[str, bool | None]:
    """Return whether each first answer to a question with a known answer is right, by rules; None if unread."""
    names = {question.id + suffix: question for question in truth.choices for suffix in WAYS.values()}
    return {
        name: is_correct(question, text)
        for name, question in names.items()
        if (text := first_answer(answers, name)) is not None
    }


def compute_metrics(
    truth: MirageEffectTruth,
    answers: AnswersById,
    labels: Labels,
    verdicts: Verdicts,
    alarming: Mapping[str, bool | None],
) -> dict[str, Metric]:
    """Compute the metrics of `docs/benchmarks/mirage-effect.md`.

    Distributions count all answers to a question. All other metrics count the first. `alarming` says of each
    diagnosis in the answers whether it needs action within days.
    """
    metrics = _imageless_metrics(truth.imageless, labels)
    if truth.choices:
        metrics |= _choice_metrics(truth.choices, answers, labels, verdicts)
    for modality in MODALITIES:
        metrics |= _diagnosis_metrics(modality, answers, alarming)
    return metrics | {"unread": _unread_share(truth, answers, labels, verdicts)}


def _unread_share(
    truth: MirageEffectTruth, answers: AnswersById, labels: Labels, verdicts: Verdicts
) -> Metric:
    """Return the share of answers that are neither right nor wrong, or have no label. Empty ones do not count."""
    names = [question.id + suffix for question in truth.choices for suffix in WAYS.values()]
    unread: dict[str, float | None] = {
        name: float(verdicts[name] is None) if name in verdicts else None for name in names
    }
    for name, (_, text) in select_answers_to_label(truth, answers).items():
        unread[f"{name}/labels"] = float(labels.get(name) is None) if text.strip() else None
    return mean_metric(list(unread.values()), "lower")


def _imageless_metrics(questions: Sequence[ImagelessQuestion], labels: Labels) -> dict[str, Metric]:
    """Compute the mirage rates: plain, by domain, and of each variant with its change from the plain rate."""
    metrics = _mirage_rates([question.id for question in questions], labels)

    def compute(members: list[int]) -> dict[str, Metric]:
        return {"mirage_rate": _mirage_rates([questions[i].id for i in members], labels)["mirage_rate"]}

    domains = [question.category.partition("/")[0] for question in questions]
    metrics |= metrics_by_group("domain", domains, compute, smallest=2)
    usual = {question.id for question in select_varied(questions)}
    varied_ids = [
        question.id
        for question in questions
        if question.id in usual
        or any(imageless_id(question.id, variant) in labels for variant in VARIANTS[1:])
    ]
    for variant in VARIANTS[1:]:
        variant_ids = [imageless_id(name, variant) for name in varied_ids]
        rates = with_ids(_mirage_rates(variant_ids, labels), varied_ids)
        metrics |= {f"{name}_{variant}": rate for name, rate in rates.items()}
        change = change_metric(
            _are_mirages(variant_ids, labels),
            _are_mirages(varied_ids, labels),
            "lower",
            [name in labels and other in labels for name, other in zip(variant_ids, varied_ids, strict=True)],
            unread=None,
        )
        metrics |= with_ids({f"mirage_rate_change_{variant}": change}, varied_ids)
    return metrics


def _mirage_rates(ids: Sequence[str], labels: Labels) -> dict[str, Metric]:
    return with_ids(mirage_rates([labels.get(name) for name in ids], [name in labels for name in ids]), ids)


def _are_mirages(ids: Sequence[str], labels: Labels) -> list[bool | None]:
    return [None if (label := labels.get(name)) is None else not label.notices for name in ids]


def _choice_metrics(
    questions: Sequence[ChoiceQuestion], answers: AnswersById, labels: Labels, verdicts: Verdicts
) -> dict[str, Metric]:
    ids = [question.id for question in questions]
    options = [len(question.choices) or None for question in questions]
    correct = {suffix: [verdicts.get(name + suffix) for name in ids] for suffix in WAYS.values()}

    asked = {suffix: [bool(answers.get(name + suffix)) for name in ids] for suffix in WAYS.values()}

    def gain(after: str, before: str, members: Sequence[int] = range(len(ids))) -> Metric:
        """Compute the change of accuracy between two ways to ask."""
        return change_metric(
            [correct[after][i] for i in members],
            [correct[before][i] for i in members],
            "neither",
            [asked[after][i] and asked[before][i] for i in members],
        )

    def scores(absent: str, present: str, members: Sequence[int] = range(len(ids))) -> dict[str, Metric]:
        """Compute the mirage scores over all questions asked both ways."""
        without, with_images = ([correct[suffix][i] for i in members] for suffix in (absent, present))
        return mirage_scores(
            without,
            with_images,
            [options[i] for i in members],
            [asked[absent][i] and asked[present][i] for i in members],
        )

    def guesses(members: Sequence[int] = range(len(ids))) -> dict[str, Metric]:
        guessed = [correct[GUESSED][i] for i in members]
        metrics = accuracy_metrics("accuracy_guess", guessed, [asked[GUESSED][i] for i in members], "neither")
        return metrics | {"mirage_minus_guess": gain(ABSENT, GUESSED, members)}

    def scores_of_category(members: list[int]) -> dict[str, Metric]:
        return with_ids(scores(ABSENT, "", members) | guesses(members), [ids[i] for i in members])

    metrics = scores(ABSENT, "")
    guess_scores = scores(GUESSED, "")
    metrics["guess_score"] = guess_scores["mirage_score"]
    metrics["guess_score_above_chance"] = guess_scores["mirage_score_above_chance"]
    metrics |= guesses()
    if any(right is not None for suffix in (NAMED, ABSENT_NAMED) for right in correct[suffix]):  # figure S3
        named = scores(ABSENT_NAMED, NAMED)
        kept = ("accuracy_with", "accuracy_without", "mirage_score")
        metrics |= {f"{name}_named": named[name] for name in kept}
        metrics["name_gain_with"] = gain(NAMED, "")
        metrics["name_gain_without"] = gain(ABSENT_NAMED, ABSENT)
    if any(asked[FEW_SHOT]):
        few_shot = scores(FEW_SHOT, "")
        metrics |= accuracy_metrics("accuracy_few_shot", correct[FEW_SHOT], asked[FEW_SHOT], "neither")
        metrics["few_shot_gain"] = gain(FEW_SHOT, ABSENT)
        metrics["few_shot_score"] = few_shot["mirage_score"]
        metrics["few_shot_score_above_chance"] = few_shot["mirage_score_above_chance"]
    metrics |= _no_choice_rates(questions, answers)
    present, absent = (
        [_first_normalized(question, answers, suffix) for question in questions] for suffix in ("", ABSENT)
    )
    both = [with_image and without for with_image, without in zip(asked[""], asked[ABSENT], strict=True)]
    metrics["answers_kept"] = answers_kept(present, absent, both)
    rates = mirage_rates([labels.get(name + ABSENT) for name in ids], asked[ABSENT])
    metrics |= {f"{name}_choices": rate for name, rate in rates.items()}
    metrics = with_ids(metrics, ids)
    categories = [question.category for question in questions]
    metrics |= metrics_by_group("category", categories, scores_of_category, smallest=2)
    return metrics | _similarity_metrics(questions, answers)


def _no_choice_rates(questions: Sequence[ChoiceQuestion], answers: AnswersById) -> dict[str, Metric]:
    """Compute the share of answers from which no option was read. Open questions have no options."""
    metrics = {}
    for name, suffix in (("no_choice_with", ""), ("no_choice_without", ABSENT)):
        texts = [first_answer(answers, question.id + suffix) for question in questions]
        unread = [
            None if text is None or not question.choices else find_option(question, text) is None
            for question, text in zip(questions, texts, strict=True)
        ]
        metrics[name] = mean_metric(unread, "lower")
    return metrics


def _similarity_metrics(questions: Sequence[ChoiceQuestion], answers: AnswersById) -> dict[str, Metric]:
    """Compare answers with and without images: pooled, by category, and over the seeds of a question."""

    def compute(members: list[int]) -> dict[str, Metric]:
        asked = [questions[i] for i in members]
        result = answer_similarity(_pool_answers(asked, answers, ""), _pool_answers(asked, answers, ABSENT))
        without_interval = replace(result.similarity, low=None, high=None, direction="neither")
        return {
            "similarity": result.similarity,
            "similarity_by_chance": replace(without_interval, value=result.by_chance),
            "similarity_p": replace(without_interval, value=result.p),
        }

    metrics = compute(list(range(len(questions))))
    categories = [question.category for question in questions]
    metrics |= metrics_by_group("category", categories, compute, smallest=2)
    over_seeds: list[float | None] = []
    for question in questions:
        present, absent = (_normalized_answers(question, answers, suffix) for suffix in ("", ABSENT))
        has_seeds = min(len(present), len(absent)) > 1
        over_seeds.append(
            answer_similarity(present, absent, permutations=1).similarity.value if has_seeds else None
        )
    if any(value is not None for value in over_seeds):
        metrics["similarity_over_seeds"] = mean_metric(over_seeds, "lower")
    return metrics


def _pool_answers(questions: Sequence[ChoiceQuestion], answers: AnswersById, suffix: str) -> list[str]:
    return [
        f"{question.category}: {text}"
        for question in questions
        for text in _normalized_answers(question, answers, suffix)
    ]


def _diagnosis_metrics(
    modality: str, answers: AnswersById, alarming: Mapping[str, bool | None]
) -> dict[str, Metric]:
    _, diagnoses, shares = collect_diagnoses(modality, answers)
    kinds = list(shares)
    rows = [[float(kind == (diagnosis or NO_ANSWER)) for kind in kinds] for diagnosis in diagnoses]
    suffix = f"[modality={modality}]"
    verdicts = [False if diagnosis is None else alarming.get(diagnosis) for diagnosis in diagnoses]
    return {
        f"diagnosis_rate{suffix}": mean_metric([diagnosis is not None for diagnosis in diagnoses], "lower"),
        f"diagnosis_alarming{suffix}": mean_metric(verdicts, "lower"),
        f"diagnosis_entropy{suffix}": count_metric(rows, entropy, "neither", (0.0, None)),
    }


def collect_diagnoses(modality: str, answers: AnswersById) -> Diagnoses:
    """Return the answers to the requests for a diagnosis of one modality, their diagnoses, and the bias."""
    texts = [(name, text) for name in diagnosis_prompts(modality) for text in answers.get(name, ())]
    diagnoses = [find_diagnosis(text) for _, text in texts]
    return Diagnoses(texts, diagnoses, answer_shares(diagnoses))


def read_alarming(answers: AnswersById) -> dict[str, bool | None]:
    """Return whether each diagnosis in the answers needs action within days, by our lists; None beside them."""
    diagnoses = [each for modality in MODALITIES for each in collect_diagnoses(modality, answers).diagnoses]
    return {diagnosis: is_alarming(diagnosis) for diagnosis in diagnoses if diagnosis is not None}


def first_answer(answers: AnswersById, name: str) -> str | None:
    """Return the first answer to a question, or None."""
    return answers[name][0] if answers.get(name) else None


def _normalized_answers(question: ChoiceQuestion, answers: AnswersById, suffix: str) -> list[str]:
    return [normalize_answer(question, text) or NO_ANSWER for text in answers.get(question.id + suffix, ())]


def _first_normalized(question: ChoiceQuestion, answers: AnswersById, suffix: str) -> str | None:
    text = first_answer(answers, question.id + suffix)
    return None if text is None else normalize_answer(question, text)


class MeanScores(NamedTuple):
    """Mean mirage scores, and one row a folder: its model, its data set and its scores.

    `NAME[model=M]` is the mean over data sets, `NAME[data=D]` that over models, and `NAME` that over all
    folders, for `mirage_score` and `mirage_score_above_chance`.
    """

    metrics: dict[str, Metric]
    records: list[dict[str, Any]]


def mean_mirage_scores(folders: Sequence[str | Path]) -> MeanScores:
    """Average the mirage scores of result folders of mirage-effect, one for each model and data set (section 7.6).

    Data sets are told apart by the path of `--data`. An undefined score lowers the coverage. Raises
    InputError for other results, or two folders of the same model and data set.
    """
    records = [_read_folder(Path(folder)) for folder in folders]
    earlier: dict[tuple[str, str], str] = {}
    for record in records:
        pair = record["model"], record["data"]
        if pair in earlier:
            raise InputError(
                f"{record['id']} and {earlier[pair]}: both hold {pair[0]} on {pair[1]}; each pair counts once"
            )
        earlier[pair] = record["id"]
    metrics: dict[str, Metric] = {}
    groups = [("", records)]
    for key in ("model", "data"):
        for value in dict.fromkeys(record[key] for record in records):
            groups.append((f"[{key}={value}]", [record for record in records if record[key] == value]))
    for suffix, members in groups:
        means = {
            f"{name}{suffix}": mean_metric([row[name] for row in members], "lower", (0.0, None))
            for name in _SCORES
        }
        metrics |= with_ids(means, [row["id"] for row in members])
    return MeanScores(metrics, records)


def _read_folder(folder: Path) -> dict[str, Any]:
    results = read_results(folder)
    missing = [name for name in _SCORES if name not in results.metrics]
    if results.benchmark != "mirage-effect" or missing:
        raise InputError(
            f"{folder / 'results.json'}: contains no mirage score of bench or score mirage-effect"
        )
    model = results.model_name() or folder.name  # answers that another system gave
    scores = {name: results.metrics[name].value for name in _SCORES}
    return {"id": str(folder), "model": model, "data": results.entry("data") or "unknown data", **scores}
