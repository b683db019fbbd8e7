"""What is asked of the mirage effect: every question's samples, their ids, and the data that they come from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.mirage_effect.data import (
    DIAGNOSES,
    MODALITIES,
    VARIANTS,
    ChoiceQuestion,
    ImagelessQuestion,
    Variant,
    imageless_questions,
    load_imageless,
    load_questions,
    prompt,
)
from mmprobe.benchmarks.mirage_effect.synthetic import world_questions
from mmprobe.benchmarks.synthetic.pairs import is_world
from mmprobe.errors import InputError
from mmprobe.samples import SAFE_ID, Sample, load_samples

ABSENT, GUESSED = "--absent", "--guess"
VARIED = 2  # questions of each category that are asked in every variant, ours
DATA_SET = "MMMU-Pro"  # named by the variant `benchmark`, ours: models know it, and it covers many subjects
LETTER = "Choose one option. End with its letter in double square brackets, such as [[A]]."
SHORT = "Answer with a word or a short phrase. End with it in double square brackets, such as [[answer]]."
_SEED = re.compile(r"(.+)--seed-(\d+)")


class MirageEffectTruth(NamedTuple):
    """Questions about pictures that nobody attaches, and questions with pictures and known answers."""

    imageless: list[ImagelessQuestion]
    choices: list[ChoiceQuestion]


def read(path: Path) -> MirageEffectTruth:
    """Questions with options, and those of `imageless.jsonl` beside them; if there is none, our own 200.

    Args:
        path: a file of such questions, or `samples.jsonl` of `make-pairs`; or a folder with a `samples.jsonl`.

    Raises:
        InputError: naming line and field, or an id that is taken by another question's answers.

    Example:
        >>> len(read(Path("questions.jsonl")).imageless)                       # doctest: +SKIP
        200
    """
    file = path / "samples.jsonl" if path.is_dir() else path
    beside = file.with_name("imageless.jsonl")
    imageless = load_imageless(beside) if beside.exists() else list(imageless_questions())
    choices = world_questions(load_samples(file)) if is_world(file) else load_questions(file)
    truth = MirageEffectTruth(imageless, choices)
    taken: set[str] = set()
    for sample_id in _ids(truth):
        if not SAFE_ID.fullmatch(sample_id) or _SEED.fullmatch(sample_id) or sample_id in taken:
            reason = (
                "is another question's too" if sample_id in taken else "is too long or ends with --seed-N"
            )
            raise InputError(f"{file}: the id {sample_id!r} of what is asked {reason}; rename the question")
        taken.add(sample_id)
    return truth


def ask(truth: MirageEffectTruth) -> list[Sample]:
    """Every question: with its pictures, without them, and as a guess; then those that never had a picture.

    Raises:
        InputError: a question with a known answer has no picture.

    Example:
        >>> question = ChoiceQuestion(id="1", images=["a.png"], question="What is it?", answer="a cat")
        >>> [sample.id for sample in ask(MirageEffectTruth([], [question]))][:3]
        ['1', '1--absent', '1--guess']
    """
    for question in truth.choices:
        if not question.images:
            raise InputError(f"question {question.id!r}: has no 'images'; nothing can be taken away from it")
    found = [sample for question in truth.choices for sample in _of_choice(question)]
    varied = varied_questions(truth.imageless)
    for one in truth.imageless:
        found += [_of_imageless(one, variant) for variant in (VARIANTS if one in varied else ("plain",))]
    return found + [
        Sample(
            id=name, question=text, metadata={"picture": "none", "kind": "diagnosis", "modality": modality}
        )
        for modality in MODALITIES
        for name, text in diagnosis_prompts(modality).items()
    ]


def _of_choice(question: ChoiceQuestion) -> list[Sample]:
    """With pictures, without, and without and told so; `with_picture` names the first of them."""
    facts: dict[str, Any] = {"kind": "choice", "category": question.category}
    seen = Sample(
        id=question.id,
        images=question.images,
        question=_text(question),
        system=question.system,
        answer=question.choices.get(question.answer, question.answer),
        pair_id=question.id,
        metadata=facts | {"picture": "present"},
    )
    blind = {"picture": "absent", "with_picture": question.id}
    told = prompt(seen.question, "guess", question.system).system
    return [
        seen,
        seen.model_copy(update={"id": question.id + ABSENT, "images": [], "metadata": facts | blind}),
        seen.model_copy(
            update={
                "id": question.id + GUESSED,
                "images": [],
                "system": told,
                "metadata": facts | {"picture": "guess"},
            }
        ),
    ]


def _text(question: ChoiceQuestion) -> str:
    if question.prompt is not None:
        return question.prompt
    options = "".join(f"\n{letter}. {text}" for letter, text in question.choices.items())
    return f"{question.question}{options}\n\n{LETTER if options else SHORT}"


def _of_imageless(question: ImagelessQuestion, variant: Variant) -> Sample:
    system, text = prompt(question.question, variant, name=DATA_SET)
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


def imageless_id(name: str, variant: Variant) -> str:
    """What a question's answers are known by.

    Example:
        >>> imageless_id("scene-people-01", "guess"), imageless_id("scene-people-01", "plain")
        ('scene-people-01--guess', 'scene-people-01')
    """
    return name if variant == "plain" else f"{name}--{variant}"


def varied_questions(imageless: Sequence[ImagelessQuestion]) -> list[ImagelessQuestion]:
    """The questions that are asked in every variant: the first of each category.

    Example:
        >>> len(varied_questions(imageless_questions()))
        40
    """
    found: dict[str, list[ImagelessQuestion]] = {}
    for question in imageless:
        found.setdefault(question.category, []).append(question)
    return [question for same in found.values() for question in same[:VARIED]]


def diagnosis_prompts(modality: str) -> dict[str, str]:
    """The requests for a diagnosis of one modality, in several wordings, by id.

    Example:
        >>> list(diagnosis_prompts("ECG"))[0]
        'diagnosis-ecg-1'
    """
    slug = re.sub(r"\W+", "-", modality.lower())
    return {
        f"diagnosis-{slug}-{number}": text.format(modality=modality)
        for number, text in enumerate(DIAGNOSES, 1)
    }


def _ids(truth: MirageEffectTruth) -> Iterable[str]:
    """The id of everything that is asked, whether it can be or not."""
    for question in truth.choices:
        yield from (question.id, question.id + ABSENT, question.id + GUESSED)
    for one in truth.imageless:
        yield from (imageless_id(one.id, variant) for variant in VARIANTS)
    for modality in MODALITIES:
        yield from diagnosis_prompts(modality)


def by_question(truth: MirageEffectTruth, responses: Mapping[str, str]) -> dict[str, list[str]]:
    """The answers to each question, those to seeds (`ID--seed-3`) in the order of the seeds, the plain one first.

    Raises:
        InputError: a response answers no question of the data, or one that was answered.

    Example:
        >>> question = ChoiceQuestion(id="1", question="What is it?", answer="a cat")
        >>> by_question(MirageEffectTruth([], [question]), {"1--seed-10": "dog", "1--seed-9": "cat"})
        {'1': ['cat', 'dog']}
    """
    known = set(_ids(truth))
    found: dict[str, dict[int, str]] = {}
    for name, text in responses.items():
        plain = name.partition("/")[0]
        seeded = _SEED.fullmatch(plain)
        base, seed = (seeded[1], int(seeded[2])) if seeded else (plain, -1)
        if base not in known:
            raise InputError(f"mirage-effect: response {plain!r} answers no question of the data")
        answers = found.setdefault(base, {})
        if seed in answers:
            raise InputError(
                f"mirage-effect: {plain!r} was answered before; each answer needs an id of its own"
            )
        answers[seed] = text
    return {base: [answers[seed] for seed in sorted(answers)] for base, answers in found.items()}
