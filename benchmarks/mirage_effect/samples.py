"""The samples of the mirage effect: every question with its ids, and the answers grouped by question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, ImagelessQuestion, MirageEffectTruth
from mmprobe.benchmarks.mirage_effect.prompts import (
    DIAGNOSES,
    LETTER,
    MODALITIES,
    SHORT,
    VARIANTS,
    Variant,
    build_prompt,
)
from mmprobe.errors import InputError
from mmprobe.samples import SAFE_ID, Sample

ABSENT = "--absent"  # suffix of the id of a question without its images
GUESSED = "--guess"  # suffix of the id of a question without its images that asks for a guess
VARIED_PER_CATEGORY = 2  # questions of each category that are asked in every variant, ours
DATA_SET = "MMMU-Pro"  # named by the variant `benchmark`, ours: models know it, and it covers many subjects
_SEED = re.compile(r"(.+)--seed-(\d+)")


def ask_questions(truth: MirageEffectTruth) -> list[Sample]:
    """Return every question with its images, without them, and as a guess; then the questions without images.

    Raises:
        InputError: a question with a known answer has no image.

    Example:
        >>> question = ChoiceQuestion(id="1", images=["a.png"], question="What is it?", answer="a cat")
        >>> [sample.id for sample in ask_questions(MirageEffectTruth([], [question]))][:3]
        ['1', '1--absent', '1--guess']
    """
    for question in truth.choices:
        if not question.images:
            raise InputError(f"question {question.id!r}: has no 'images', so none can be taken away")
    samples = [sample for question in truth.choices for sample in _make_choice_samples(question)]
    varied = select_varied(truth.imageless)
    for imageless in truth.imageless:
        variants = VARIANTS if imageless in varied else VARIANTS[:1]
        samples += [_make_imageless_sample(imageless, variant) for variant in variants]
    for modality in MODALITIES:
        metadata = {"picture": "none", "kind": "diagnosis", "modality": modality}
        samples += [
            Sample(id=sample_id, question=text, metadata=metadata)
            for sample_id, text in diagnosis_prompts(modality).items()
        ]
    return samples


def _make_choice_samples(question: ChoiceQuestion) -> list[Sample]:
    """Return the samples with images, without them, and as a guess. `with_picture` names the first."""
    metadata: dict[str, Any] = {"kind": "choice", "category": question.category}
    present = Sample(
        id=question.id,
        images=question.images,
        question=_build_choice_prompt(question),
        system=question.system,
        answer=question.choices.get(question.answer, question.answer),
        pair_id=question.id,
        metadata=metadata | {"picture": "present"},
    )
    absent = present.model_copy(
        update={
            "id": question.id + ABSENT,
            "images": [],
            "metadata": metadata | {"picture": "absent", "with_picture": question.id},
        }
    )
    guess = present.model_copy(
        update={
            "id": question.id + GUESSED,
            "images": [],
            "system": build_prompt(present.question, "guess", question.system).system,
            "metadata": metadata | {"picture": "guess"},
        }
    )
    return [present, absent, guess]


def _build_choice_prompt(question: ChoiceQuestion) -> str:
    if question.prompt is not None:
        return question.prompt
    options = "".join(f"\n{letter}. {text}" for letter, text in question.choices.items())
    return f"{question.question}{options}\n\n{LETTER if options else SHORT}"


def _make_imageless_sample(question: ImagelessQuestion, variant: Variant) -> Sample:
    system, text = build_prompt(question.question, variant, data_set=DATA_SET)
    return Sample(
        id=imageless_id(question.id, variant),
        question=text,
        system=system,
        metadata={
            "picture": "none",
            "kind": "imageless",
            "category": question.category,
            "variant": variant,
        },
    )


def imageless_id(question_id: str, variant: Variant) -> str:
    """Return the id of a question in one of the ways of asking.

    Example:
        >>> imageless_id("scene-people-01", "guess"), imageless_id("scene-people-01", "plain")
        ('scene-people-01--guess', 'scene-people-01')
    """
    return question_id if variant == "plain" else f"{question_id}--{variant}"


def select_varied(questions: Sequence[ImagelessQuestion]) -> list[ImagelessQuestion]:
    """Return the first questions of each category. They are asked in every variant.

    Example:
        >>> questions = [ImagelessQuestion(f"x-{number}", "art/x", "?") for number in range(5)]
        >>> [question.id for question in select_varied(questions)]
        ['x-0', 'x-1']
    """
    by_category: dict[str, list[ImagelessQuestion]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    return [question for members in by_category.values() for question in members[:VARIED_PER_CATEGORY]]


def diagnosis_prompts(modality: str) -> dict[str, str]:
    """Return the requests for a diagnosis of one modality, in several wordings, by id.

    Example:
        >>> list(diagnosis_prompts("ECG"))[0]
        'diagnosis-ecg-1'
    """
    slug = re.sub(r"\W+", "-", modality.lower())
    return {
        f"diagnosis-{slug}-{number}": text.format(modality=modality)
        for number, text in enumerate(DIAGNOSES, 1)
    }


def check_ids(truth: MirageEffectTruth, source: str) -> None:
    """Check the ids of all samples.

    Args:
        truth: the questions.
        source: name of their file, for messages.

    Raises:
        InputError: an id is used twice, is too long, or ends as the id of a seed.

    Example:
        >>> questions = [ImagelessQuestion("1", "art/x", "Who painted this?")]
        >>> check_ids(MirageEffectTruth(questions, []), "questions.jsonl")
    """
    used: set[str] = set()
    for sample_id in _sample_ids(truth):
        if not SAFE_ID.fullmatch(sample_id) or _SEED.fullmatch(sample_id) or sample_id in used:
            reason = (
                "is used by another question" if sample_id in used else "is too long or ends with --seed-N"
            )
            raise InputError(f"{source}: the sample id {sample_id!r} {reason}; rename the question")
        used.add(sample_id)


def _sample_ids(truth: MirageEffectTruth) -> Iterator[str]:
    """Yield every possible id, also of questions that are not asked in every variant."""
    for question in truth.choices:
        yield from (question.id, question.id + ABSENT, question.id + GUESSED)
    for imageless in truth.imageless:
        yield from (imageless_id(imageless.id, variant) for variant in VARIANTS)
    for modality in MODALITIES:
        yield from diagnosis_prompts(modality)


def group_by_question(truth: MirageEffectTruth, responses: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the answers to each question: the plain one, then those with seeds (`ID--seed-3`) in order.

    Raises:
        InputError: a response answers no question of the data, or two answer the same question.

    Example:
        >>> question = ChoiceQuestion(id="1", question="What is it?", answer="a cat")
        >>> group_by_question(MirageEffectTruth([], [question]), {"1--seed-10": "dog", "1--seed-9": "cat"})
        {'1': ['cat', 'dog']}
    """
    known = set(_sample_ids(truth))
    answers: dict[str, dict[int, str]] = {}
    for name, text in responses.items():
        response_id = name.partition("/")[0]
        seeded = _SEED.fullmatch(response_id)
        sample_id, seed = (seeded[1], int(seeded[2])) if seeded else (response_id, -1)
        if sample_id not in known:
            raise InputError(f"mirage-effect: response {response_id!r} answers no question of the data")
        by_seed = answers.setdefault(sample_id, {})
        if seed in by_seed:
            raise InputError(
                f"mirage-effect: {response_id!r} was answered before; each answer needs an id of its own"
            )
        by_seed[seed] = text
    return {sample_id: [by_seed[seed] for seed in sorted(by_seed)] for sample_id, by_seed in answers.items()}
